"""The prior: an ensemble of clones that mirror descent starts from, and pays for leaving.

The prior is narrow where the clones agree (on the expert's paths) and wide where they do not, so it holds the policy
where there is something to hold and lets it go elsewhere, state by state. It is the policy that is best for the cost
-α log prior: the game begins with a cost for which the clones are already the best response.

    prior(u|s) = N(mean of the members' means, mean of their variances + (1 + 1/M) · variance of their means)
    π(u|s)     = N(mean of the prior + f(s), σ(s)²) with networks f, σ:  at first f = 0, and σ as the members have it

over pre-tanh actions u. A clone's own width is how far off clones are on pairs that they were not fitted to, or a share
of how much the demonstrated actions vary (`bc.width`): nothing depends on the units of actions or on how much of their
bounds the expert uses.

Discrete actions: the prior is the mean of the members' probabilities and a little of the uniform distribution, the
policy the softmax of the mean of their logits plus f(s). Without clones the prior is uniform, and
KL(π, prior) is minus the entropy: learning from scratch is the same code.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from oal.base import checkpoint
from oal.deep import nets
from oal.deep.nets import MLP, ActionKind, Activation, Gaussian, Layer
from oal.deep.players import Shapes
from oal.deep.replay import Batch

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Float, Noise, Observations, PerRow

UNIFORM_SHARE = 0.05
"""Of the prior over discrete actions: clones of a deterministic expert are sure of themselves, right or wrong."""

# ----------------------------------------------------------------------------------------------------------------
# The ensemble, on the host


class Ensemble:
    """Clones side by side; an observation's columns [n, 2A] are what the prior is there.

    Continuous: mean and log-std of each pre-tanh action. Discrete: the mean logits, which the policy starts as, and the
    prior's log-probabilities.
    """

    def __init__(self, kind: ActionKind, members: Sequence[MLP], *, activation: Activation = "relu") -> None:
        self.kind, self.activation = kind, activation
        self.members = tuple(
            tuple(Layer(np.array(layer.weight, np.float32), np.array(layer.bias, np.float32)) for layer in member)
            for member in members
        )
        # one product per layer for all members
        self._layers = [
            Layer(np.stack([layer.weight for layer in same]), np.stack([layer.bias for layer in same])[:, None])
            for same in zip(*self.members, strict=True)
        ]

    def columns(self, observation: np.ndarray) -> np.ndarray:
        """Observations [n, O] -> columns [n, 2A]."""
        x: np.ndarray = observation[None]
        for layer in self._layers[:-1]:
            x = x @ layer.weight + layer.bias
            x = np.maximum(x, 0.0) if self.activation == "relu" else np.tanh(x)
        outputs = x @ self._layers[-1].weight + self._layers[-1].bias
        if self.kind == "discrete":
            odds = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
            probabilities = (odds / odds.sum(axis=-1, keepdims=True)).mean(axis=0)
            share = UNIFORM_SHARE / probabilities.shape[1]
            return np.concatenate([outputs.mean(axis=0), np.log((1.0 - UNIFORM_SHARE) * probabilities + share)], axis=1)
        means, log_stds = np.split(outputs, 2, axis=-1)
        variance = np.exp(2.0 * log_stds).mean(axis=0) + (1.0 + 1.0 / len(self.members)) * means.var(axis=0)
        return np.concatenate([means.mean(axis=0), 0.5 * np.log(variance)], axis=1)

    def plus(self, actor: MLP) -> MLP:
        """Return one network for the policy: the members' mean plus the actor's outputs, and the actor's log-stds."""
        shown = np.ones(self.members[0][-1].bias.size, np.float32)
        if self.kind == "continuous":  # the members say nothing about the policy's width
            shown[shown.size // 2 :] = 0.0
        own = [(*member[:-1], Layer(member[-1].weight * shown, member[-1].bias * shown)) for member in self.members]
        return nets.sum_of([nets.mean_of(own), actor])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps."""
        return checkpoint.named(self.members, "prior")

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        count: int,
        like: MLP,
        kind: ActionKind,
        *,
        activation: Activation = "relu",
    ) -> Self:
        """Read so many members that `arrays` gave, each with the layers of `like`."""
        return cls(kind, checkpoint.restored((like,) * count, arrays, "prior"), activation=activation)


# ----------------------------------------------------------------------------------------------------------------
# The policy around it


def started_at_prior(actor: MLP, clone: MLP, shapes: Shapes) -> MLP:
    """Return the actor with outputs of 0, so that the policy is the prior's mean, and as wide as this clone is."""
    weight, bias = jnp.zeros_like(jnp.asarray(actor[-1].weight)), jnp.zeros_like(jnp.asarray(actor[-1].bias))
    if shapes.kind == "continuous":
        bias = bias.at[shapes.action_size :].set(jnp.asarray(clone[-1].bias)[shapes.action_size :])
    return (*actor[:-1], Layer(weight, bias))


class Chosen(NamedTuple):
    """What the objective asks of the policy at each state."""

    action: "Actions"
    """A reparameterised draw (continuous) or the probabilities of all actions (discrete)."""
    from_prior: "PerRow"
    """KL(π, prior); for the uniform prior minus the entropy, by the draw where it is continuous."""
    from_old: "PerRow"
    """KL(π, π_old); 0 if no old policy is given."""
    entropy: "PerRow"
    """Of π, by the draw where it is continuous."""


def chosen(
    actor: MLP,
    old_actor: MLP | None,
    observation: "Observations",
    prior: "Float[jax.Array, 'B E']",
    noise: "Noise",
    *,
    kind: ActionKind,
) -> Chosen:
    """Evaluate the policy's own terms; `prior` are the columns [B, 2A], or [B, 0] for the uniform one."""
    uniform = prior.shape[-1] == 0
    if kind == "discrete":
        offset, log_prior = (0.0, 0.0) if uniform else jnp.split(prior, 2, axis=-1)
        log_probs = jax.nn.log_softmax(nets.mlp(actor, observation) + offset)
        action = jnp.exp(log_probs)
        from_prior = jnp.sum(action * (log_probs - log_prior), axis=-1)
        from_old = jnp.zeros_like(from_prior)
        if old_actor is not None:
            old = jax.nn.log_softmax(nets.mlp(old_actor, observation) + offset)
            from_old = jnp.sum(action * (log_probs - old), axis=-1)
        return Chosen(action, from_prior, from_old, -jnp.sum(action * log_probs, axis=-1))
    own = nets.gaussian(actor, observation)
    # both policies are shifted by the same mean, which their divergence does not see
    from_old = jnp.zeros(observation.shape[0])
    if old_actor is not None:
        from_old = nets.gaussian_divergence(own, nets.gaussian(old_actor, observation))
    if uniform:
        action, _, log_prob = nets.squashed(own, noise)
        return Chosen(action, log_prob, from_old, -log_prob)
    mean, log_std = jnp.split(prior, 2, axis=-1)
    policy = Gaussian(mean + own.mean, own.log_std)
    action, _, log_prob = nets.squashed(policy, noise)
    return Chosen(action, nets.gaussian_divergence(policy, Gaussian(mean, log_std)), from_old, -log_prob)


# ----------------------------------------------------------------------------------------------------------------
# On the expert's path


def expert_next(experts: Batch) -> np.ndarray:
    """Rows of demonstrations, in order -> what the expert did next, [N, A]; NaN where its path ends."""
    following = np.full_like(experts.action, np.nan)
    if len(following) > 1:
        goes_on = (experts.next_observation[:-1] == experts.observation[1:]).all(axis=-1) & ~(
            experts.terminated[:-1] > 0
        )
        following[:-1][goes_on] = experts.action[1:][goes_on]
    return following


def on_its_path(
    value: "PerRow", batch: Batch, critics: Sequence[MLP], *, kind: ActionKind, layer_norm: bool
) -> "PerRow":
    """Return the policy's cost-to-go at s', and on the expert's path no less than the expert's there.

    The learner may never come to those very states, so nothing would tell the critics that leaving the path is not as
    good as they think; and the better they think of it, the further the policy goes.
    """
    if batch.following is None:
        return value
    first = len(value) - len(batch.following)  # the expert's rows are the last
    following, own = jnp.asarray(batch.following), value[first:]
    kept = nets.critic_bound(
        critics, kind, batch.next_observation[first:], jnp.nan_to_num(following), layer_norm=layer_norm
    )
    own = jnp.where(jnp.isnan(following[:, 0]), own, jnp.maximum(own, kept))
    return jnp.concatenate([value[:first], own])
