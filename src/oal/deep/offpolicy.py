"""Off-policy policy players for continuous and discrete actions, in cost form: mirror descent and soft actor-critic.

Costs are minimised: Q(s, a) is the expected discounted *cost* and the pessimistic one of two critics is their maximum.

One update of mirror descent (MDPO; Algorithm 3 of the paper), on a batch (s, a, c, s', terminated), with the old
policy frozen for m updates, t = `kl_weight` and α = `entropy_weight`:
    π     <- Adam on mean E_{a~π}[t (log π - log π_old)(a|s) + α log π(a|s) + Q(s, a)]
    V     <- Adam on mean (V(s) - E_{a~π}[max_i Q_i(s, a) + α log π(a|s)])²
    Q_i   <- Adam on mean (Q_i(s, a) - c - γ (V_abs if terminated else V̄(s')))²
    V̄     <- V̄ + τ (V - V̄)

One update of soft actor-critic (SAC):
    y      = c + γ (V_abs if terminated else E_{a'~π}[max_i Q̄_i(s', a') + α log π(a'|s')])
    Q_i   <- Adam on mean (Q_i(s, a) - y)²
    π     <- Adam on mean E_{a~π}[α log π(a|s) + max_i Q_i(s, a)]
    log α <- Adam on log α · (H(π) - target entropy)
    Q̄_i   <- Q̄_i + τ (Q_i - Q̄_i)
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.base import checkpoint, seeding
from oal.base.runtime import compiler_options
from oal.deep import nets
from oal.deep.nets import MLP, ActionKind, HostActor
from oal.deep.replay import Batch, Replay, unpack
from oal.envs import EnvSpec, Step, bootstrap_target, uniform_actions
from oal.errors import InputError, at_least


class Shapes(NamedTuple):
    """What the networks must know of an environment."""

    kind: ActionKind
    observation_size: int
    action_size: int

    @classmethod
    def of(cls, spec: EnvSpec) -> "Shapes":
        return cls("continuous" if spec.kind == "continuous" else "discrete", spec.observation_size, spec.action_size)


@dataclass(frozen=True)
class OffPolicyConfig:
    """What both players have: networks, rates and batches."""

    hidden: tuple[int, ...] = (256, 256)
    layer_norm: bool = False
    """Of critics and values."""
    learning_rate: float = 3e-4
    gamma: float = 0.99
    target_rate: float = 0.005
    batch_size: int = 256

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden is {self.hidden}: name at least one layer of at least one unit")
        if not 0.0 <= self.gamma < 1.0:
            raise InputError(f"gamma is {self.gamma}: it must lie in [0, 1)")
        if not 0.0 < self.target_rate <= 1.0:
            raise InputError(f"target_rate is {self.target_rate}: it must lie in (0, 1]")
        if not self.learning_rate > 0.0:
            raise InputError(f"learning_rate is {self.learning_rate}: it must be above 0")


# ----------------------------------------------------------------------------------------------------------------
# Soft actor-critic


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Soft actor-critic's hyper-parameters; the defaults are the paper's expert."""

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
    """Draw a fresh player; `seed` is a 32-bit integer (see `oal.base.seeding.integer`)."""
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
    noise: jax.Array,
    *,
    kind: ActionKind,
    layer_norm: bool,
) -> tuple[jax.Array, jax.Array]:
    """E_{a~π}[max_i Q_i(s, a) + α log π(a|s)] [B] and the entropy of π [B].

    Continuous: the draw that `noise` [B, A] gives stands for the expectation. Discrete: the expectation is exact.
    """
    if kind == "continuous":
        action, _, log_prob = nets.squashed(nets.gaussian(actor, observation), noise)
        entropy = -log_prob
    else:
        log_probs = nets.log_policy(actor, observation)
        action = jnp.exp(log_probs)
        entropy = -jnp.sum(action * log_probs, axis=-1)
    worst = nets.worst_value(critics, kind, observation, action, layer_norm=layer_norm)
    return worst - temperature * entropy, entropy


def sac_update(
    state: SACState,
    batch: Batch,
    absorbing_cost: jax.Array,
    noise: jax.Array,
    *,
    shapes: Shapes,
    config: SACConfig,
) -> tuple[SACState, dict[str, jax.Array]]:
    """Do one gradient step of critics, actor and temperature, then move the target critics.

    `noise` is standard normal [2, B, A]: for the target's actions and for the actor's. Discrete actions need none.
    """
    kind, layer_norm = shapes.kind, config.layer_norm
    adam = optax.adam(config.learning_rate)
    target_noise, actor_noise = noise
    temperature = jnp.exp(state.log_temperature)

    next_value, _ = soft_value(
        state.actor,
        state.target_critics,
        temperature,
        batch.next_observation,
        target_noise,
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
            actor, critics, temperature, batch.observation, actor_noise, kind=kind, layer_norm=layer_norm
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
        "entropy": entropy,
        "temperature": temperature,
        "target_mean": jnp.mean(target),
        "policy_cost": jnp.mean(batch.cost),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }
    return new, metrics


# ----------------------------------------------------------------------------------------------------------------
# Mirror descent policy optimisation


@dataclass(frozen=True)
class MDPOConfig(OffPolicyConfig):
    """Off-policy MDPO's hyper-parameters; the defaults are the paper's table and the reference code's."""

    target_rate: float = 0.01
    kl_weight: float = 0.5
    """Weight t of the divergence from the old policy: the larger, the smaller the step."""
    entropy_weight: float = 0.0
    policy_steps: int = 10
    """Updates per frozen old policy (m in the paper)."""
    frozen_critic: bool = True
    """The actor follows the first critic as it was when the old policy was frozen; otherwise the live critics."""
    evaluation_updates: int = 0
    """Updates of value and critics before the policy first moves: a cloned policy is evaluated before it is left."""
    cloning_weight: float = 0.0
    """Weight of the distance to the expert's action, at the expert's transitions in the batch."""
    anchor_weight: float = 0.0
    """Weight of the divergence from the policy that learning started with, in every state of the batch."""
    anchor_updates: int = 10_000
    """The anchor's weight falls as 1/(1 + k/this) over updates k that move the policy, as in following the leader."""
    by_evidence: bool = False
    """The anchor's weight is multiplied by (1 - e²)² and the entropy's by e², where e in [0, 1] is how well the cost
    tells learner and expert apart: a policy that imitates already is held, one that does not is let go and explores."""
    release_above: float | None = None
    """A policy that the cost tells apart from the expert better than this when it first moves was cloned in vain: from
    then on it has no anchor, all of the entropy, and the KL weight `released_kl_weight`. None: none is released."""
    released_kl_weight: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.release_above is not None and not self.by_evidence:
            raise InputError("release_above goes by the evidence: set by_evidence=True too")
        at_least("released_kl_weight", self.released_kl_weight, 0.0)
        at_least("anchor_weight", self.anchor_weight, 0.0)
        at_least("anchor_updates", self.anchor_updates, 1)
        at_least("kl_weight", self.kl_weight, 0.0)
        at_least("cloning_weight", self.cloning_weight, 0.0)
        at_least("entropy_weight", self.entropy_weight, 0.0)
        at_least("policy_steps", self.policy_steps, 1)
        at_least("evaluation_updates", self.evaluation_updates, 0)


class MDPONetworks(NamedTuple):
    """What gradients move."""

    actor: MLP
    critics: tuple[MLP, MLP]
    value: MLP


class MDPOState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    networks: MDPONetworks
    target_value: MLP
    old_actor: MLP
    old_critic: MLP | None
    anchor: MLP | None
    """The actor that learning started with, if the policy is held near it."""
    optimiser: optax.OptState
    updates: jax.Array
    key: jax.Array
    released: jax.Array | None
    """Whether the policy was let go (1 or 0), if it may be."""

    @property
    def actor(self) -> MLP:
        return self.networks.actor


def init_mdpo(seed: int, shapes: Shapes, config: MDPOConfig) -> MDPOState:
    """Draw a fresh player; `seed` is a 32-bit integer (see `oal.base.seeding.integer`)."""
    actor_key, first_key, second_key, value_key, key = jax.random.split(jax.random.key(seed), 5)
    networks = MDPONetworks(
        actor=nets.init_actor(actor_key, *shapes, config.hidden),
        # critics that know nothing yet must not have a slope for the policy to follow
        critics=(
            nets.quiet(nets.init_critic(first_key, *shapes, config.hidden)),
            nets.quiet(nets.init_critic(second_key, *shapes, config.hidden)),
        ),
        value=nets.quiet(nets.init_mlp(value_key, (shapes.observation_size, *config.hidden, 1))),
    )
    # copies: a donated state must not hold one array twice
    copy = partial(jax.tree.map, jnp.copy)
    return MDPOState(
        networks=networks,
        target_value=copy(networks.value),
        old_actor=copy(networks.actor),
        old_critic=copy(networks.critics[0]) if config.frozen_critic else None,
        anchor=copy(networks.actor) if config.anchor_weight > 0.0 else None,
        optimiser=optax.adam(config.learning_rate).init(networks),
        updates=jnp.int32(0),
        key=jax.random.key_data(key),
        released=None if config.release_above is None else jnp.float32(0.0),
    )


class PolicyTerms(NamedTuple):
    """What MDPO's objective asks of the policy alone, at each state [B]."""

    action: jax.Array
    """A reparameterised draw (continuous) or the probabilities of all actions (discrete) [B, A]."""
    entropy: jax.Array
    divergence: jax.Array
    """From the old policy."""
    strayed: jax.Array | float
    """The divergence from the anchor; 0 without one."""
    distance: jax.Array
    """From the batch's actions: squared from the policy's mode (continuous), -log π (discrete)."""


def policy_terms(
    actor: MLP,
    old_actor: MLP,
    anchor: MLP | None,
    observation: jax.Array,
    taken: jax.Array,
    noise: jax.Array,
    *,
    kind: ActionKind,
) -> PolicyTerms:
    """Evaluate the policy's own terms.

    Continuous: the draw stands for the mean of the entropy; the divergence of two squashed Gaussians is that of the
    Gaussians and is exact. Discrete: everything is exact.
    """
    if kind == "continuous":
        distribution = nets.gaussian(actor, observation)
        action, _, log_prob = nets.squashed(distribution, noise)
        entropy, distance = -log_prob, jnp.sum((jnp.tanh(distribution.mean) - taken) ** 2, axis=-1)

        def divergence_from(other: MLP) -> jax.Array:
            return nets.gaussian_divergence(distribution, nets.gaussian(other, observation))
    else:
        log_probs = nets.log_policy(actor, observation)
        action = jnp.exp(log_probs)
        entropy, distance = -jnp.sum(action * log_probs, axis=-1), -jnp.sum(taken * log_probs, axis=-1)

        def divergence_from(other: MLP) -> jax.Array:
            return jnp.sum(action * (log_probs - nets.log_policy(other, observation)), axis=-1)

    strayed = 0.0 if anchor is None else divergence_from(anchor)
    return PolicyTerms(action, entropy, divergence_from(old_actor), strayed, distance)


def mdpo_update(
    state: MDPOState,
    batch: Batch,
    absorbing_cost: jax.Array,
    noise: jax.Array,
    evidence: jax.Array | float = 1.0,
    *,
    shapes: Shapes,
    config: MDPOConfig,
    expert_rows: int = 0,
) -> tuple[MDPOState, dict[str, jax.Array]]:
    """Do one gradient step of actor, value and critics, then move the target value.

    `noise` is standard normal [1, B, A], for the actor's actions; discrete ones need none. The last `expert_rows` of
    the batch are the expert's transitions.
    """
    kind, layer_norm, networks = shapes.kind, config.layer_norm, state.networks
    # every m updates the policy that was reached becomes the old one
    freeze = state.updates % config.policy_steps == 0
    refreshed = partial(jax.tree.map, lambda new, old: jnp.where(freeze, new, old))
    old_actor = refreshed(networks.actor, state.old_actor)
    old_critic = None if state.old_critic is None else refreshed(networks.critics[0], state.old_critic)

    doubt = evidence**2 if config.by_evidence else None
    kl_weight, released = config.kl_weight, state.released
    if released is not None:
        assert config.release_above is not None
        assert doubt is not None
        failed = jnp.asarray(evidence > config.release_above, jnp.float32)
        released = jnp.where(state.updates == config.evaluation_updates, failed, released)
        kl_weight += released * (config.released_kl_weight - kl_weight)
        doubt = jnp.maximum(doubt, released)
    entropy_weight = config.entropy_weight if doubt is None else config.entropy_weight * doubt

    def actor_loss(actor: MLP) -> tuple[jax.Array, tuple[PolicyTerms, jax.Array]]:
        terms = policy_terms(actor, old_actor, state.anchor, batch.observation, batch.action, noise[0], kind=kind)
        chosen = (kind, batch.observation, terms.action)
        worst = followed = nets.worst_value(networks.critics, *chosen, layer_norm=layer_norm)
        if old_critic is not None:
            followed = nets.critic_value(old_critic, *chosen, layer_norm=layer_norm)
        loss = jnp.mean(kl_weight * terms.divergence - entropy_weight * terms.entropy + followed)
        if state.anchor is not None:
            moved = jnp.maximum(state.updates - config.evaluation_updates, 0)
            weight = config.anchor_weight / (1.0 + moved / config.anchor_updates)
            if doubt is not None:
                weight *= (1.0 - doubt) ** 2
            loss += weight * jnp.mean(terms.strayed)
        if expert_rows and config.cloning_weight > 0.0:
            loss += config.cloning_weight * jnp.mean(terms.distance[-expert_rows:])
        return loss, (terms, worst)

    (actor_value, (terms, worst)), actor_gradient = jax.value_and_grad(actor_loss, has_aux=True)(networks.actor)
    if config.evaluation_updates > 0:
        # Adam does not move on gradients that were 0 from the beginning
        moves = (state.updates >= config.evaluation_updates).astype(jnp.float32)
        actor_gradient = jax.tree.map(lambda leaf: moves * leaf, actor_gradient)
    soft_cost = worst - entropy_weight * terms.entropy

    next_value = nets.mlp(state.target_value, batch.next_observation, layer_norm=layer_norm)[..., 0]
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost)

    def value_loss(value: MLP) -> jax.Array:
        return jnp.mean((nets.mlp(value, batch.observation, layer_norm=layer_norm)[..., 0] - soft_cost) ** 2)

    def critic_loss(critics: tuple[MLP, MLP]) -> jax.Array:
        first, second = (
            nets.critic_value(critic, kind, batch.observation, batch.action, layer_norm=layer_norm)
            for critic in critics
        )
        return jnp.mean((first - target) ** 2) + jnp.mean((second - target) ** 2)

    value_value, value_gradient = jax.value_and_grad(value_loss)(networks.value)
    critic_value, critic_gradient = jax.value_and_grad(critic_loss)(networks.critics)
    gradient = MDPONetworks(actor_gradient, critic_gradient, value_gradient)
    step, optimiser = optax.adam(config.learning_rate).update(gradient, state.optimiser)
    networks: Any = optax.apply_updates(networks, step)
    target_value: Any = optax.incremental_update(networks.value, state.target_value, config.target_rate)
    new = state._replace(
        networks=networks,
        target_value=target_value,
        old_actor=old_actor,
        old_critic=old_critic,
        optimiser=optimiser,
        updates=state.updates + 1,
        released=released,
    )
    metrics = {
        "critic_loss": critic_value,
        "value_loss": value_value,
        "actor_loss": actor_value,
        "divergence": jnp.mean(terms.divergence),
        "entropy": jnp.mean(terms.entropy),
        "target_mean": jnp.mean(target),
        "policy_cost": jnp.mean(batch.cost),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }
    if released is not None:
        metrics["released"] = released
    return new, metrics


# ----------------------------------------------------------------------------------------------------------------
# Blocks of updates, compiled


class Priced(NamedTuple):
    """Costs as they are when sampled: of a batch [B], of the absorbing state [], and how much they are worth []."""

    cost: jax.Array
    absorbing: jax.Array
    evidence: jax.Array | float = 1.0
    """How well the cost tells learner and expert apart, in [0, 1]; 1 for a cost that is simply given."""


Relabel = Callable[[Any, Batch], tuple[jax.Array, ...]]
"""(cost parameters, batch) -> what `Priced` holds."""


def recorded_cost(_: Any, batch: Batch) -> tuple[jax.Array, ...]:
    """Use the environment's own cost; once terminated nothing more is paid."""
    return batch.cost, jnp.float32(0.0)


def draw_noise(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return raw data of the next key, and standard normal noise for a whole block of updates.

    It is drawn as one long row, which XLA vectorises: by updates and actions it takes several times as long.
    """
    key, noise_key = jax.random.split(jax.random.wrap_key_data(key))
    return jax.random.key_data(key), jax.random.normal(noise_key, (math.prod(shape),)).reshape(shape)


def compile_block(
    update: Callable[..., tuple[Any, dict[str, jax.Array]]],
    shapes: Shapes,
    *,
    draws: int,
    relabel: Relabel = recorded_cost,
) -> Callable[[Any, Any, Any], tuple[Any, dict[str, jax.Array]]]:
    """Compile (state, rows [G, B, width], cost parameters) -> (state, mean metrics) for G updates in one scan.

    `update` is (state, batch, absorbing cost, noise [draws, B, A], evidence) -> (state, metrics). The state is donated:
    the caller must not use the one it passed in. The call returns at once; reading a result waits for it.
    """
    noise_size = shapes.action_size if shapes.kind == "continuous" else 0

    def block(state: Any, rows: jax.Array, cost_params: Any) -> tuple[Any, dict[str, jax.Array]]:
        key, noise = draw_noise(state.key, (rows.shape[0], draws, rows.shape[1], noise_size))

        def body(state: Any, drawn: tuple[jax.Array, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
            rows, noise = drawn
            batch = unpack(rows, shapes.observation_size, shapes.action_size)
            priced = Priced(*relabel(cost_params, batch))
            return update(state, batch._replace(cost=priced.cost), priced.absorbing, noise, priced.evidence)

        state, metrics = jax.lax.scan(body, state._replace(key=key), (rows, noise))
        return state, jax.tree.map(jnp.mean, metrics)

    return jax.jit(block, donate_argnums=0, compiler_options=compiler_options())


@lru_cache(maxsize=32)
def compile_sac(shapes: Shapes, config: SACConfig, *, relabel: Relabel = recorded_cost) -> Callable[..., Any]:
    """Compile SAC's block of updates (see `compile_block`); equal settings share one compiled program."""

    def update(
        state: SACState, batch: Batch, absorbing_cost: jax.Array, noise: jax.Array, _: Any
    ) -> tuple[SACState, dict[str, jax.Array]]:
        return sac_update(state, batch, absorbing_cost, noise, shapes=shapes, config=config)

    return compile_block(update, shapes, draws=2, relabel=relabel)


@lru_cache(maxsize=32)
def compile_mdpo(
    shapes: Shapes, config: MDPOConfig, *, relabel: Relabel = recorded_cost, expert_rows: int = 0
) -> Callable[..., Any]:
    """Compile MDPO's block of updates (see `compile_block`); equal settings share one compiled program."""
    update = partial(mdpo_update, shapes=shapes, config=config, expert_rows=expert_rows)
    return compile_block(update, shapes, draws=1, relabel=relabel)


# ----------------------------------------------------------------------------------------------------------------
# The player


@dataclass(frozen=True)
class ReplayConfig:
    """How an off-policy player gathers experience and learns from it."""

    capacity: int = 1_000_000
    warmup_steps: int = 10_000
    """Steps before the first update, with uniformly random actions unless the player starts from a cloned policy."""
    block: int = 50
    """Environment steps per compiled block of updates."""
    updates_per_step: float = 1.0
    expert_fraction: float = 0.0
    """Share of expert transitions in every batch."""

    def __post_init__(self) -> None:
        at_least("capacity", self.capacity, 1)
        at_least("warmup_steps", self.warmup_steps, 0)
        if self.warmup_steps > self.capacity:
            raise InputError(
                f"warmup_steps is {self.warmup_steps}, but the replay holds {self.capacity} steps: nothing would ever "
                "be learned; lower it or raise capacity"
            )
        at_least("block", self.block, 1)
        if round(self.block * self.updates_per_step) < 1:
            raise InputError(
                f"updates_per_step is {self.updates_per_step}: a block of {self.block} steps needs an update"
            )
        if not 0.0 <= self.expert_fraction < 1.0:
            raise InputError(f"expert_fraction is {self.expert_fraction}: it must lie in [0, 1)")


class OffPolicy:
    """MDPO or SAC (by its configuration) learning from a replay memory that it shares with the loop.

    `improve` starts a block of updates and returns at once; the simulator collects the next steps meanwhile, with
    the actor that the block before it left.
    """

    def __init__(
        self,
        shapes: Shapes,
        config: MDPOConfig | SACConfig,
        replay: ReplayConfig,
        memory: Replay,
        *,
        seed: int,
        relabel: Relabel = recorded_cost,
        expert_rows: np.ndarray | None = None,
    ) -> None:
        """`expert_rows` are the expert's transitions in the memory's layout, needed if `expert_fraction` > 0."""
        self.config, self.replay, self.memory = config, replay, memory
        self.block = replay.block
        self._expert_count = round(replay.expert_fraction * config.batch_size)
        if self._expert_count and (expert_rows is None or len(expert_rows) == 0):
            warnings.warn(
                f"expert_fraction is {replay.expert_fraction}, but the demonstrations hold no whole transition "
                "(subsampled ones do not): batches are the learner's alone",
                stacklevel=2,
            )
            self._expert_count = 0
        seed_of_networks = seeding.integer(seed, "policy-player")
        if isinstance(config, MDPOConfig):
            self.state: Any = init_mdpo(seed_of_networks, shapes, config)
            self._run_block = compile_mdpo(shapes, config, relabel=relabel, expert_rows=self._expert_count)
        else:
            self.state = init_sac(seed_of_networks, shapes, config)
            self._run_block = compile_sac(shapes, config, relabel=relabel)
        self.actor = HostActor(shapes.kind, self.state.actor)
        self.uniform_warmup = True
        self._shapes = shapes
        self._rng = seeding.generator(seed, "replay")
        self._updates = round(replay.block * replay.updates_per_step)
        self._expert_rows = expert_rows

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over."""
        return len(self.memory) >= max(self.replay.warmup_steps, 1)

    def act(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw actions [n, A]: uniform ones during the warm-up, then the policy's."""
        if self.uniform_warmup and not self.ready:
            return uniform_actions(self._shapes, len(observation), rng)
        return self.actor.sample(observation, rng)

    def observe(self, step: Step) -> None:
        """Nothing to keep: the loop stores every transition in the shared memory."""

    def improve(self, cost_params: Any) -> dict[str, Any]:
        """Start a block of updates with the costs of `cost_params`; the metrics are read from it later."""
        self.settle()
        if not self.ready:
            return {}
        self.state, metrics = self._run_block(self.state, self._rows(), cost_params)
        return metrics

    def _rows(self) -> np.ndarray:
        learners = self.memory.sample(self._rng, self._updates, self.config.batch_size - self._expert_count)
        if not self._expert_count or self._expert_rows is None:
            return learners
        index = self._rng.integers(0, len(self._expert_rows), size=(self._updates, self._expert_count))
        return np.concatenate([learners, self._expert_rows[index]], axis=1)

    def settle(self) -> None:
        """Wait for the block under way and act by what it learned."""
        self.actor.load(self.state.actor)

    def adopt(self, actor: MLP) -> None:
        """Start from this actor, and let it act during the warm-up."""
        copy = partial(jax.tree.map, lambda leaf: jnp.array(leaf, copy=True))
        if isinstance(self.state, MDPOState):
            networks = self.state.networks._replace(actor=copy(actor))
            anchor = None if self.state.anchor is None else copy(actor)
            self.state = self.state._replace(networks=networks, old_actor=copy(actor), anchor=anchor)
        else:
            self.state = self.state._replace(actor=copy(actor))
        self.uniform_warmup = False
        self.settle()

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what is needed to go on bit for bit; the memory is the loop's to save."""
        return checkpoint.named(self.state, "policy"), {
            "rng": self._rng.bit_generator.state,
            "uniform_warmup": self.uniform_warmup,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Take back what `snapshot` gave."""
        self.state = checkpoint.restored(self.state, arrays, "policy")
        self._rng.bit_generator.state = info["rng"]
        self.uniform_warmup = bool(info["uniform_warmup"])
        self.settle()
