"""On-policy mirror descent policy optimisation (on-policy MDPO), in cost form.

θ <- m Adam steps on L(θ) + kl_weight · mean KL(π_θ, π_old), with the surrogate L of `rollout`
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp
import optax

from oal.deep.distributions import Distribution, distribution, divergence
from oal.deep.nets import MLP
from oal.deep.players import Shapes
from oal.deep.rollout import Data, OnPolicy, OnPolicyConfig, above_zero, surrogate
from oal.errors import at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Scalar


@dataclass(frozen=True)
class MDPOOnConfig(OnPolicyConfig):
    """On-policy mirror descent policy optimisation: several gradient steps on a KL-penalised surrogate."""

    kl_weight: float = 2.0
    """Weight of the divergence from the old policy: the larger, the smaller the step. One over the step size t."""
    policy_steps: int = 20
    """Gradient steps, each on the whole rollout, per frozen old policy (m in the paper)."""
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("kl_weight", self.kl_weight, 0.0)
        at_least("policy_steps", self.policy_steps, 1)
        above_zero("learning_rate", self.learning_rate)


PAPER_MDPO_ON = MDPOOnConfig(policy_steps=10, learning_rate=3e-4, critic_learning_rate=3e-4, critic_epochs=5)
"""The table's t = 0.5: the reference code of on-policy MDPO divides the divergence by t, so its weight is 2."""


def mdpo_on_loss(
    actor: MLP, old: Distribution, data: Data, *, shapes: Shapes, config: MDPOOnConfig
) -> tuple["Scalar", "Scalar"]:
    """L(θ) + kl_weight · mean KL(π_θ, π_old), and that divergence."""
    loss, new = surrogate(actor, old, data, shapes=shapes, config=config)
    moved = jnp.sum(data.weight * divergence(new, old))
    return loss + config.kl_weight * moved, moved


def mdpo_on_step(
    actor: MLP, optimiser: Any, data: Data, *, shapes: Shapes, config: MDPOOnConfig
) -> tuple[MLP, Any, dict[str, "Scalar"]]:
    """Take m gradient steps on the whole rollout towards the mirror step from the policy that collected it."""
    old = distribution(actor, data.observation, kind=shapes.kind, activation=config.activation)
    objective = partial(mdpo_on_loss, old=old, data=data, shapes=shapes, config=config)
    adam = optax.adam(config.learning_rate)

    def body(carry: tuple[MLP, Any], _: None) -> tuple[tuple[MLP, Any], None]:
        actor, optimiser = carry
        gradient = jax.grad(lambda actor: objective(actor)[0])(actor)
        step, optimiser = adam.update(gradient, optimiser)
        moved: Any = optax.apply_updates(actor, step)
        return (moved, optimiser), None

    (actor, optimiser), _ = jax.lax.scan(body, (actor, optimiser), None, length=config.policy_steps)
    loss, moved = objective(actor)
    return actor, optimiser, {"actor_loss": loss, "divergence": moved}


@final
class MDPOOn(OnPolicy):
    """On-policy mirror descent as a policy player."""

    name = "mdpo-on"
    Config: ClassVar[type[MDPOOnConfig]] = MDPOOnConfig
    policy_step = staticmethod(mdpo_on_step)

    @staticmethod
    def fresh_optimiser(actor: MLP, config: MDPOOnConfig) -> Any:
        return optax.adam(config.learning_rate).init(actor)
