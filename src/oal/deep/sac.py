"""Soft actor-critic (SAC), in cost form, for continuous and discrete actions.

One update, on a batch (s, a, c, s', terminated):
    y      = c + γ (V_abs if terminated else E_{a'~π}[max_i Q̄_i(s', a')] + α KL(π, prior)(s'))
    Q_i   <- Adam on mean (Q_i(s, a) - y)²
    π     <- Adam on mean [α KL(π, prior)(s) + E_{a~π} max_i Q_i(s, a)]
    log α <- Adam on log α · (-KL(π, prior) - target)
    Q̄_i   <- Q̄_i + τ (Q_i - Q̄_i)
The uniform prior gives SAC as it is known: KL(π, prior) is then log π, its entropy's negative. With clones as the prior
the temperature aims at the same number of nats from them, and the critics' targets have the divergence less its mean
over the batch, as in `oal.deep.mirror`; so are targets of several steps, and what the expert's transitions ask of them.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from oal.deep import nets
from oal.deep.nets import MLP
from oal.deep.offpolicy import OffPolicyConfig, WithPrior, copied
from oal.deep.players import Shapes
from oal.deep.prior import Chosen, chosen, on_its_path
from oal.deep.replay import Batch
from oal.envs import bootstrap_target
from oal.errors import InputError

if TYPE_CHECKING:
    from oal.deep.arrays import Float, KeyData, Scalar


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic's hyper-parameters; the defaults are the paper's expert."""

    layer_norm: bool = False
    """Of the critics."""
    initial_temperature: float = 1.0
    target_entropy: float | None = None
    """None: minus the number of action dimensions (continuous), 0.3 log(number of actions) (discrete)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.initial_temperature > 0.0:
            raise InputError(f"initial_temperature is {self.initial_temperature}: it must be above 0")


DISCRETE_SAC = SACConfig(learning_rate=1e-3, target_rate=0.02)
"""For discrete actions: with the continuous rates values need 20,000 updates to climb (CartPole-v1 stays near 200)."""


class SACState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    actor: MLP
    critics: tuple[MLP, MLP]
    target_critics: tuple[MLP, MLP]
    log_temperature: "Scalar"
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState


def target_entropy(config: SACConfig, shapes: Shapes) -> float:
    """Return the entropy the temperature aims at."""
    if config.target_entropy is not None:
        return config.target_entropy
    if shapes.kind == "continuous":
        return -float(shapes.action_size)
    return 0.3 * math.log(shapes.action_size)


def init_sac(seed: int, shapes: Shapes, config: SACConfig) -> tuple[SACState, "KeyData"]:
    """Draw a fresh state and a key for the noise of updates; `seed` is a 32-bit integer."""
    actor_key, first_key, second_key, key = jax.random.split(jax.random.key(seed), 4)
    actor = nets.init_actor(actor_key, *shapes, config.hidden)
    critics = (
        nets.init_critic(first_key, *shapes, config.hidden),
        nets.init_critic(second_key, *shapes, config.hidden),
    )
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    adam = optax.adam(config.learning_rate)
    state = SACState(
        actor=actor,
        critics=critics,
        target_critics=copied(critics),
        log_temperature=log_temperature,
        actor_optimiser=adam.init(actor),
        critic_optimiser=adam.init(critics),
        temperature_optimiser=adam.init(log_temperature),
    )
    return state, jax.random.key_data(key)


def sac_update(
    state: SACState,
    batch: Batch,
    absorbing_cost: "Scalar",
    noise: "Float[jax.Array, '2 B Z']",
    *,
    shapes: Shapes,
    config: SACConfig,
) -> tuple[SACState, dict[str, "Scalar"]]:
    """Do one gradient step of critics, actor and temperature, then move the target critics.

    `noise` is standard normal: for the target's actions and for the actor's. Discrete actions need none.
    """
    kind, layer_norm = shapes.kind, config.layer_norm
    adam = optax.adam(config.learning_rate)
    target_noise, actor_noise = noise
    temperature = jnp.exp(state.log_temperature)
    assert batch.extra is not None
    prior, next_prior = jnp.split(batch.extra, 2, axis=-1)

    then = chosen(state.actor, None, batch.next_observation, next_prior, target_noise, kind=kind)
    paid = then.from_prior - jnp.mean(then.from_prior) if next_prior.shape[-1] > 0 else then.from_prior
    next_value = temperature * paid + nets.critic_bound(
        state.target_critics, kind, batch.next_observation, then.action, layer_norm=layer_norm
    )
    next_value = on_its_path(next_value, batch, state.target_critics, kind=kind, layer_norm=layer_norm)
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost, batch.discount)

    critic_value, gradient = nets.critic_regression(
        state.critics, kind, batch.observation, batch.action, target, layer_norm=layer_norm
    )
    step, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    critics: Any = optax.apply_updates(state.critics, step)

    def actor_loss(actor: MLP) -> tuple[jax.Array, Chosen]:
        now = chosen(actor, None, batch.observation, prior, actor_noise, kind=kind)
        worst = nets.critic_bound(critics, kind, batch.observation, now.action, layer_norm=layer_norm)
        return jnp.mean(temperature * now.from_prior + worst), now

    (actor_value, now), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
    step, actor_optimiser = adam.update(gradient, state.actor_optimiser)
    actor: Any = optax.apply_updates(state.actor, step)

    # d/d(log α) of log α (-KL - target): more freedom than asked lowers the temperature
    target_freedom = target_entropy(config, shapes)
    if prior.shape[-1] > 0:  # a divergence is never below 0: no temperature would reach a target above
        target_freedom = -abs(target_freedom)
    gradient = -jnp.mean(now.from_prior) - target_freedom
    step, temperature_optimiser = adam.update(gradient, state.temperature_optimiser)
    log_temperature: Any = optax.apply_updates(state.log_temperature, step)

    target_critics: Any = optax.incremental_update(critics, state.target_critics, config.target_rate)
    new = state._replace(
        actor=actor,
        critics=critics,
        target_critics=target_critics,
        log_temperature=log_temperature,
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        temperature_optimiser=temperature_optimiser,
    )
    metrics = {
        "critic_loss": critic_value,
        "actor_loss": actor_value,
        "prior_divergence": jnp.mean(now.from_prior),
        "entropy": jnp.mean(now.entropy),
        "temperature": temperature,
        "target_mean": jnp.mean(target),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }
    return new, metrics


@final
class SAC(WithPrior):
    """Soft actor-critic as a policy player."""

    name = "sac"
    Config: ClassVar[type[SACConfig]] = SACConfig
    draws = 2
    update = staticmethod(sac_update)

    def init(self, seed: int, shapes: Shapes) -> tuple[SACState, "KeyData"]:
        return init_sac(seed, shapes, self.config)

    def with_actor(self, actor: MLP) -> SACState:
        optimiser = optax.adam(self.config.learning_rate).init(actor)
        return self.state._replace(actor=copied(actor), actor_optimiser=optimiser)
