"""Trust region policy optimisation (TRPO), in cost form.

x = (F + damping)⁻¹ ∇L by conjugate gradients;  θ <- θ - β x with the largest β tried that lowers the surrogate L
and keeps mean KL(π_old, π_θ) <= max_kl, or θ stays
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from oal.deep.distributions import Distribution, distribution, divergence, fisher_metric
from oal.deep.nets import MLP
from oal.deep.players import Shapes
from oal.deep.rollout import Data, OnPolicy, OnPolicyConfig, above_zero, surrogate
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Bool, Int, Parameters, PerRow, Scalar


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    """Trust region policy optimisation: a natural-gradient step inside a hard bound on the divergence."""

    max_kl: float = 0.01
    cg_steps: int = 10
    cg_damping: float = 0.1
    backtracks: int = 10
    """Step lengths tried before the policy is left as it is."""
    backtrack_factor: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero("max_kl", self.max_kl)
        at_least("cg_steps", self.cg_steps, 1)
        at_least("cg_damping", self.cg_damping, 0.0)
        at_least("backtracks", self.backtracks, 1)
        if not 0.0 < self.backtrack_factor < 1.0:
            raise InputError(f"backtrack_factor is {self.backtrack_factor}: it must lie in (0, 1)")


PAPER_TRPO = TRPOConfig(critic_learning_rate=3e-4, critic_epochs=5, backtrack_factor=0.5)
"""The paper's on-policy table; what it leaves open is as in Stable-Baselines."""


def fisher_product(
    policy_of: Callable[["Parameters"], Distribution], parameters: "Parameters", weight: "PerRow", damping: float
) -> Callable[["Parameters"], "Parameters"]:
    """Return v -> (F + damping) v, where F is the Hessian of the mean KL(π, π_θ) at π_θ = π.

    F = Jᵀ M J with the network's Jacobian J and the distribution's own metric M: one pass forwards and one backwards
    along the linearised network, whose activations are kept for all products.
    """
    policy, push = jax.linearize(policy_of, parameters)
    pull = jax.linear_transpose(push, parameters)

    def product(vector: "Parameters") -> "Parameters":
        metric = fisher_metric(policy, push(vector))
        weighted = jax.tree.map(lambda part: part * weight[:, None], metric)
        return pull(weighted)[0] + damping * vector

    return product


class Solution(NamedTuple):
    """Where the conjugate gradients are."""

    steps: "Int[jax.Array, '']"
    x: "Parameters"
    residual: "Parameters"
    direction: "Parameters"
    squared: "Scalar"
    """‖residual‖²"""


def conjugate_gradient(
    product: Callable[["Parameters"], "Parameters"], target: "Parameters", *, steps: int, tolerance: float = 1e-10
) -> "Parameters":
    """Solve product(x) = target in at most `steps` steps, or until ‖residual‖² <= tolerance · ‖target‖²."""

    def body(now: Solution) -> Solution:
        image = product(now.direction)
        length = now.squared / (now.direction @ image)
        residual = now.residual - length * image
        squared = residual @ residual
        direction = residual + (squared / now.squared) * now.direction
        return Solution(now.steps + 1, now.x + length * now.direction, residual, direction, squared)

    start = Solution(jnp.int32(0), jnp.zeros_like(target), target, target, target @ target)
    return jax.lax.while_loop(
        lambda now: (now.steps < steps) & (now.squared > tolerance * start.squared), body, start
    ).x


ROUNDING = 1e-6
"""Share of the mean absolute advantage below which a change of the surrogate may be rounding (float32)."""


class Search(NamedTuple):
    """Where the line search is."""

    tries: "Int[jax.Array, '']"
    parameters: "Parameters"
    loss: "Scalar"
    divergence: "Scalar"
    accepted: "Bool[jax.Array, '']"


def trpo_step(
    actor: MLP, optimiser: Any, data: Data, *, shapes: Shapes, config: TRPOConfig
) -> tuple[MLP, Any, dict[str, "Scalar"]]:
    """Take the natural-gradient step that lowers L within the bound; without one the actor stays as it is."""
    bound = config.max_kl
    start, unravel = ravel_pytree(actor)
    policy_of = partial(_policy_of, unravel=unravel, data=data, shapes=shapes, config=config)
    old = policy_of(start)

    def loss_of(parameters: "Parameters") -> tuple["Scalar", Distribution]:
        return surrogate(unravel(parameters), old, data, shapes=shapes, config=config)

    (loss, _), gradient = jax.value_and_grad(loss_of, has_aux=True)(start)
    product = fisher_product(policy_of, start, data.weight, config.cg_damping)
    direction = conjugate_gradient(product, gradient, steps=config.cg_steps)
    # the step at which the quadratic model of the divergence meets the bound
    full = direction * jnp.sqrt(2.0 * bound / (direction @ product(direction)))
    # the step's length does not depend on the gradient's: without this, one of rounding errors alone would be taken
    least_gain = ROUNDING * jnp.sum(data.weight * jnp.abs(data.advantage))

    def attempt(search: Search) -> Search:
        parameters = start - config.backtrack_factor ** search.tries.astype(jnp.float32) * full
        new_loss, new = loss_of(parameters)
        moved = jnp.sum(data.weight * divergence(old, new))
        accepted = (loss - new_loss > least_gain) & (moved <= bound)
        return Search(search.tries + 1, parameters, new_loss, moved, accepted)

    search = jax.lax.while_loop(
        lambda search: ~search.accepted & (search.tries < config.backtracks),
        attempt,
        Search(jnp.int32(0), start, loss, jnp.float32(0.0), jnp.bool_(False)),
    )
    metrics = {
        "actor_loss": jnp.where(search.accepted, search.loss, loss),
        "actor_gain": jnp.where(search.accepted, loss - search.loss, 0.0),
        "divergence": jnp.where(search.accepted, search.divergence, 0.0),
        "accepted": search.accepted.astype(jnp.float32),
        "line_search_tries": search.tries.astype(jnp.float32),
    }
    return unravel(jnp.where(search.accepted, search.parameters, start)), optimiser, metrics


def _policy_of(
    parameters: "Parameters", *, unravel: Callable[..., MLP], data: Data, shapes: Shapes, config: OnPolicyConfig
) -> Distribution:
    return distribution(unravel(parameters), data.observation, kind=shapes.kind, activation=config.activation)


@final
class TRPO(OnPolicy):
    """TRPO as a policy player."""

    name = "trpo"
    Config: ClassVar[type[TRPOConfig]] = TRPOConfig
    policy_step = staticmethod(trpo_step)

    @staticmethod
    def fresh_optimiser(actor: MLP, config: TRPOConfig) -> tuple[()]:
        return ()
