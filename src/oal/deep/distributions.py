"""Policies at a batch of states, as functions of their parameters.

A policy is a `Gaussian` before the tanh (continuous) or log-probabilities (discrete). A draw from it is a
pre-tanh value or a one-hot action. The tanh's Jacobian cancels in every ratio and divergence.
"""

import math
from typing import TYPE_CHECKING, Any, Union

import jax.numpy as jnp

from oal.deep import nets
from oal.deep.nets import MLP, ActionKind, Activation, Gaussian

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Observations, PerRow

Distribution = Union[Gaussian, "Actions"]


def distribution(actor: MLP, observation: "Observations", *, kind: ActionKind, activation: Activation) -> Distribution:
    """π(·|s) at each state."""
    if kind == "continuous":
        return nets.gaussian(actor, observation, activation=activation)
    return nets.log_policy(actor, observation, activation=activation)


def log_likelihood(policy: Distribution, draw: "Actions") -> "PerRow":
    """log π(draw|s), up to what does not depend on the policy."""
    if isinstance(policy, Gaussian):
        return -jnp.sum(0.5 * ((draw - policy.mean) * jnp.exp(-policy.log_std)) ** 2 + policy.log_std, axis=-1)
    return jnp.sum(policy * draw, axis=-1)


def divergence(first: Distribution, second: Any) -> "PerRow":
    """KL(first, second) of two distributions of one kind, at each state."""
    if isinstance(first, Gaussian):
        return nets.gaussian_divergence(first, second)
    return jnp.sum(jnp.exp(first) * (first - second), axis=-1)


def entropy(policy: Distribution, draw: "Actions", ratio: "PerRow | float") -> "PerRow":
    """H(π(·|s)): exact for discrete actions.

    A squashed Gaussian's is the Gaussian's plus E[log tanh'(u)], which the draw estimates, weighted by the `ratio` of
    π to the policy that drew.
    """
    if isinstance(policy, Gaussian):
        of_gaussian = jnp.sum(policy.log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)
        return of_gaussian + ratio * jnp.sum(nets.squash_log_det(draw), axis=-1)
    return -jnp.sum(jnp.exp(policy) * policy, axis=-1)


def fisher_metric(policy: Distribution, tangent: Any) -> Distribution:
    """Multiply a change of the distribution's parameters by the Hessian of KL(π, ·) at π."""
    if isinstance(policy, Gaussian):
        return Gaussian(tangent.mean * jnp.exp(-2.0 * policy.log_std), 2.0 * tangent.log_std)
    # changes of log-probabilities keep the sum of probabilities, so the Hessian is diagonal in them
    return jnp.exp(policy) * tangent
