"""Off-policy policy players: soft actor-critic for continuous and discrete actions, in cost form.

Costs are minimised: Q(s, a) is the expected discounted *cost*, the pessimistic one of two critics is their maximum,
and the actor minimises E[α log π(a|s) + Q(s, a)].

One update, on a batch (s, a, c, s', terminated):
    y      = c + γ (V_abs if terminated else E_{a'~π}[max_i Q̄_i(s', a') + α log π(a'|s')])
    Q_i   <- Adam on mean (Q_i(s, a) - y)²
    π     <- Adam on mean E_{a~π}[α log π(a|s) + max_i Q_i(s, a)]
    log α <- Adam on log α · (H(π) - target entropy)
    Q̄_i   <- Q̄_i + τ (Q_i - Q̄_i)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from oal import nets
from oal.envs import bootstrap_target
from oal.errors import InputError, at_least
from oal.nets import MLP, ActionKind
from oal.replay import Batch, unpack


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic's hyper-parameters; the defaults are the paper's expert."""

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    gamma: float = 0.99
    target_rate: float = 0.005
    batch_size: int = 256
    initial_temperature: float = 1.0
    target_entropy: float | None = None
    """None: minus the number of action dimensions (continuous), 0.3 log(number of actions) (discrete)."""
    layer_norm: bool = False

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        if not 0.0 <= self.gamma < 1.0:
            raise InputError(f"gamma is {self.gamma}: it must lie in [0, 1)")
        if not 0.0 < self.target_rate <= 1.0:
            raise InputError(f"target_rate is {self.target_rate}: it must lie in (0, 1]")
        if not self.learning_rate > 0.0 or not self.initial_temperature > 0.0:
            raise InputError("learning_rate and initial_temperature must be above 0")


DISCRETE_SAC = SACConfig(learning_rate=1e-3, target_rate=0.02)
"""For discrete actions: with the continuous rates values need 20,000 updates to climb (CartPole-v1 stays near 200)."""


class Shapes(NamedTuple):
    """What the networks must know of an environment."""

    kind: ActionKind
    observation_size: int
    action_size: int


class SACState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    actor: MLP
    critics: tuple[MLP, MLP]
    target_critics: tuple[MLP, MLP]
    log_temperature: jax.Array
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    key: jax.Array
    """Raw key data (uint32 [2]), so that a checkpoint holds plain arrays only."""


def target_entropy(config: SACConfig, shapes: Shapes) -> float:
    """Return the entropy the temperature aims at."""
    if config.target_entropy is not None:
        return config.target_entropy
    if shapes.kind == "continuous":
        return -float(shapes.action_size)
    return 0.3 * math.log(shapes.action_size)


def init_sac(seed: int, shapes: Shapes, config: SACConfig) -> SACState:
    """Draw a fresh player; `seed` is a 32-bit integer (see `oal.seeding.integer`)."""
    actor_key, first_key, second_key, key = jax.random.split(jax.random.key(seed), 4)
    actor = nets.init_actor(actor_key, *shapes, config.hidden)
    critics = (
        nets.init_critic(first_key, *shapes, config.hidden),
        nets.init_critic(second_key, *shapes, config.hidden),
    )
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    adam = optax.adam(config.learning_rate)
    return SACState(
        actor=actor,
        critics=critics,
        # copies: a donated state must not hold one array twice
        target_critics=jax.tree.map(jnp.copy, critics),
        log_temperature=log_temperature,
        actor_optimiser=adam.init(actor),
        critic_optimiser=adam.init(critics),
        temperature_optimiser=adam.init(log_temperature),
        key=jax.random.key_data(key),
    )


def soft_value(
    actor: MLP,
    critics: tuple[MLP, MLP],
    temperature: jax.Array,
    observation: jax.Array,
    key: jax.Array,
    *,
    kind: ActionKind,
    layer_norm: bool,
) -> tuple[jax.Array, jax.Array]:
    """E_{a~π}[max_i Q_i(s, a) + α log π(a|s)] [B] and the entropy of π [B].

    Continuous: one reparameterised draw stands for the expectation. Discrete: the expectation is exact.
    """
    first, second = critics
    if kind == "continuous":
        action, _, log_prob = nets.sample_squashed(nets.gaussian(actor, observation), key)
        pair = jnp.concatenate([observation, action], axis=-1)
        worst = jnp.maximum(
            nets.mlp(first, pair, layer_norm=layer_norm)[..., 0], nets.mlp(second, pair, layer_norm=layer_norm)[..., 0]
        )
        return worst + temperature * log_prob, -log_prob
    log_probs = nets.log_policy(actor, observation)
    worst = jnp.maximum(
        nets.mlp(first, observation, layer_norm=layer_norm), nets.mlp(second, observation, layer_norm=layer_norm)
    )
    probs = jnp.exp(log_probs)
    entropy = -jnp.sum(probs * log_probs, axis=-1)
    return jnp.sum(probs * worst, axis=-1) - temperature * entropy, entropy


def sac_update(
    state: SACState, batch: Batch, absorbing_cost: jax.Array, *, shapes: Shapes, config: SACConfig
) -> tuple[SACState, dict[str, jax.Array]]:
    """Do one gradient step of critics, actor and temperature, then move the target critics."""
    kind, layer_norm = shapes.kind, config.layer_norm
    adam = optax.adam(config.learning_rate)
    key, target_key, actor_key = jax.random.split(jax.random.wrap_key_data(state.key), 3)
    temperature = jnp.exp(state.log_temperature)

    next_value, _ = soft_value(
        state.actor,
        state.target_critics,
        temperature,
        batch.next_observation,
        target_key,
        kind=kind,
        layer_norm=layer_norm,
    )
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost)

    def critic_loss(critics: tuple[MLP, MLP]) -> jax.Array:
        first, second = (
            nets.critic_value(critic, kind, batch.observation, batch.action, layer_norm=layer_norm)
            for critic in critics
        )
        return jnp.mean((first - target) ** 2) + jnp.mean((second - target) ** 2)

    critic_value, gradient = jax.value_and_grad(critic_loss)(state.critics)
    step, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    critics: Any = optax.apply_updates(state.critics, step)

    def actor_loss(actor: MLP) -> tuple[jax.Array, jax.Array]:
        value, entropy = soft_value(
            actor, critics, temperature, batch.observation, actor_key, kind=kind, layer_norm=layer_norm
        )
        return jnp.mean(value), jnp.mean(entropy)

    (actor_value, entropy), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
    step, actor_optimiser = adam.update(gradient, state.actor_optimiser)
    actor: Any = optax.apply_updates(state.actor, step)

    # d/d(log α) of log α (H - target): more entropy than asked lowers the temperature
    gradient = entropy - target_entropy(config, shapes)
    step, temperature_optimiser = adam.update(gradient, state.temperature_optimiser)
    log_temperature: Any = optax.apply_updates(state.log_temperature, step)

    target_critics: Any = optax.incremental_update(critics, state.target_critics, config.target_rate)
    new = SACState(
        actor=actor,
        critics=critics,
        target_critics=target_critics,
        log_temperature=log_temperature,
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        temperature_optimiser=temperature_optimiser,
        key=jax.random.key_data(key),
    )
    metrics = {
        "critic_loss": critic_value,
        "actor_loss": actor_value,
        "entropy": entropy,
        "temperature": temperature,
        "target_mean": jnp.mean(target),
    }
    return new, metrics


Relabel = Callable[[Any, Batch], tuple[jax.Array, jax.Array]]
"""(cost parameters, batch) -> (costs [B], cost of the absorbing state []): costs are computed when sampled."""


def recorded_cost(_: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Use the environment's own cost; once terminated nothing more is paid."""
    return batch.cost, jnp.float32(0.0)


def compile_block(
    update: Callable[..., tuple[Any, dict[str, jax.Array]]],
    shapes: Shapes,
    *,
    relabel: Relabel = recorded_cost,
) -> Callable[[Any, Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Compile (state, rows [G, B, width], cost parameters) -> (state, mean metrics) for G updates in one scan.

    `update` is (state, batch, absorbing cost) -> (state, metrics). The state is donated: the caller must not use the
    one it passed in. The call returns at once; reading a result waits for it.
    """

    def block(state: Any, rows: jax.Array, cost_params: Any) -> tuple[Any, dict[str, jax.Array]]:
        def body(state: Any, rows: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
            batch = unpack(rows, shapes.observation_size, shapes.action_size)
            cost, absorbing_cost = relabel(cost_params, batch)
            return update(state, batch._replace(cost=cost), absorbing_cost)

        state, metrics = jax.lax.scan(body, state, rows)
        return state, jax.tree.map(jnp.mean, metrics)

    return jax.jit(block, donate_argnums=0)


@lru_cache(maxsize=32)
def compile_sac(shapes: Shapes, config: SACConfig, *, relabel: Relabel = recorded_cost) -> Callable[..., Any]:
    """Compile SAC's block of updates (see `compile_block`); equal settings share one compiled program."""
    return compile_block(partial(sac_update, shapes=shapes, config=config), shapes, relabel=relabel)
