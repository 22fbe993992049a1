"""Mirror descent towards a prior: the policy starts as an ensemble of clones and leaves it where the costs say so.

The prior is narrow where the clones agree (on the expert's paths) and wide where they do not, so it holds the policy
where there is something to hold and lets it go elsewhere, state by state. It is the policy that is best for the cost
-α log prior: the game begins with a cost for which the clones are already the best response.

    prior(u|s) = N(mean of the members' means, s0² + (1 + 1/M) · their variance)  over pre-tanh actions u
    π(u|s)     = N(mean of the prior + f(s), σ(s)²) with networks f, σ:  at first f = 0

One update, on a batch (s, a, c, s', terminated), with the old policy frozen for m updates, α = `prior_weight` and
t = `kl_weight`:
    y     = c + γ (V_abs if terminated else E_{a'~π}[max_i Q̄_i(s', a')] + α KL(π, prior)(s'))
    Q_i  <- Adam on mean (Q_i(s, a) - y)²
    π    <- Adam on mean [α KL(π, prior)(s) + t KL(π, π_old)(s) + E_{a~π} max_i Q_i(s, a)]
    Q̄_i  <- Q̄_i + τ (Q_i - Q̄_i)
What acts is the exponential average of the actor's weights. Discrete policies are the softmax of the mean of the
members' logits plus f(s). Without clones the prior is uniform, and KL(π, prior) is minus the entropy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.base import checkpoint
from oal.deep import nets
from oal.deep.nets import MLP, ActionKind, Gaussian, HostActor, Layer
from oal.deep.offpolicy import OffPolicy, OffPolicyConfig, copied
from oal.deep.players import Game, Shapes, Snapshot
from oal.deep.replay import Batch
from oal.envs import Step, bootstrap_target
from oal.errors import InputError, at_least


@dataclass(frozen=True)
class PriorConfig(OffPolicyConfig):
    """How far, how fast and how freely the policy leaves its prior."""

    layer_norm: bool = True
    batch_size: int = 128
    prior_weight: float = 0.08
    """α: what a step away from the prior costs, in units of the costs."""
    prior_log_std: float = -2.0
    """log s0, the prior's width where all members agree; also the policy's first."""
    kl_weight: float = 0.04
    """Weight t of the divergence from the old policy: the larger, the smaller the step."""
    policy_steps: int = 10
    """Updates per frozen old policy (m in the paper)."""
    actor_average: float = 0.998
    """Decay of the average of the actor's weights, which acts and is evaluated; 0: the newest weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("prior_weight", self.prior_weight, 0.0)
        at_least("kl_weight", self.kl_weight, 0.0)
        at_least("policy_steps", self.policy_steps, 1)
        if not nets.LOG_STD_MIN <= self.prior_log_std <= nets.LOG_STD_MAX:
            raise InputError(f"prior_log_std is {self.prior_log_std}: it must lie in [-20, 2]")
        if not 0.0 <= self.actor_average < 1.0:
            raise InputError(f"actor_average is {self.actor_average}: it must lie in [0, 1)")


# ----------------------------------------------------------------------------------------------------------------
# The ensemble, on the host


class Ensemble:
    """Clones side by side; an observation's columns are what the prior is there.

    Continuous: mean and log-std of each pre-tanh action [n, 2A]. Discrete: normalised logits [n, A].
    """

    def __init__(self, kind: ActionKind, members: Sequence[MLP], log_std: float) -> None:
        self.kind, self.log_std = kind, log_std
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
        """Observations [n, O] -> columns [n, 2A] or [n, A]."""
        x: np.ndarray = observation[None]
        for layer in self._layers[:-1]:
            x = np.maximum(x @ layer.weight + layer.bias, 0.0)
        outputs = x @ self._layers[-1].weight + self._layers[-1].bias
        if self.kind == "discrete":
            logits = outputs.mean(axis=0)
            logits -= logits.max(axis=1, keepdims=True)
            return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        means = outputs[..., : outputs.shape[-1] // 2]
        variance = np.exp(2.0 * self.log_std) + (1.0 + 1.0 / len(self.members)) * means.var(axis=0)
        return np.concatenate([means.mean(axis=0), 0.5 * np.log(variance)], axis=1)

    def plus(self, actor: MLP) -> MLP:
        """Return one network for the policy: the members' mean plus the actor's outputs, and the actor's log-stds."""
        shown = np.ones(self.members[0][-1].bias.size, np.float32)
        if self.kind == "continuous":  # the members say nothing about the policy's width
            shown[shown.size // 2 :] = 0.0
        own = [(*member[:-1], Layer(member[-1].weight * shown, member[-1].bias * shown)) for member in self.members]
        return nets.sum_of([nets.mean_of(own), actor])


# ----------------------------------------------------------------------------------------------------------------
# One update


class PriorState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    actor: MLP
    average: MLP
    old_actor: MLP
    critics: tuple[MLP, MLP]
    target_critics: tuple[MLP, MLP]
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    updates: jax.Array
    mean: jax.Array
    std: jax.Array
    """Of the demonstrated observations [O]: all networks see standardised ones."""


def init_prior(seed: int, shapes: Shapes, config: PriorConfig) -> tuple[PriorState, jax.Array]:
    """Draw a fresh state and a key for the noise of updates; `seed` is a 32-bit integer.

    Observations are taken as they are until the demonstrations' mean and standard deviation are put in.
    """
    actor_key, first_key, second_key, key = jax.random.split(jax.random.key(seed), 4)
    actor = nets.init_actor(actor_key, *shapes, config.hidden)
    # critics that know nothing yet have no slope for the policy to follow
    critics = (
        nets.nearly_zero(nets.init_critic(first_key, *shapes, config.hidden)),
        nets.nearly_zero(nets.init_critic(second_key, *shapes, config.hidden)),
    )
    adam = optax.adam(config.learning_rate)
    state = PriorState(
        actor=actor,
        average=copied(actor),
        old_actor=copied(actor),
        critics=critics,
        target_critics=copied(critics),
        actor_optimiser=adam.init(actor),
        critic_optimiser=adam.init(critics),
        updates=jnp.int32(0),
        mean=jnp.zeros(shapes.observation_size),
        std=jnp.ones(shapes.observation_size),
    )
    return state, jax.random.key_data(key)


def started_at_prior(actor: MLP, shapes: Shapes, log_std: float) -> MLP:
    """Return the actor with outputs of 0, so that the policy is the prior's mean, and with this log-std."""
    weight, bias = jnp.zeros_like(jnp.asarray(actor[-1].weight)), jnp.zeros_like(jnp.asarray(actor[-1].bias))
    if shapes.kind == "continuous":
        bias = bias.at[shapes.action_size :].set(log_std)
    return (*actor[:-1], Layer(weight, bias))


class Chosen(NamedTuple):
    """What the objective asks of the policy at each state [B]."""

    action: jax.Array
    """A reparameterised draw (continuous) or the probabilities of all actions (discrete) [B, A]."""
    from_prior: jax.Array
    """KL(π, prior); for the uniform prior minus the entropy, by the draw where it is continuous."""
    from_old: jax.Array
    """KL(π, π_old); 0 if no old policy is given."""
    entropy: jax.Array
    """Of π, by the draw where it is continuous."""


def chosen(
    actor: MLP,
    old_actor: MLP | None,
    observation: jax.Array,
    prior: jax.Array,
    noise: jax.Array,
    *,
    kind: ActionKind,
) -> Chosen:
    """Evaluate the policy's own terms; `prior` are the columns [B, 2A] or [B, A], or [B, 0] for the uniform one."""
    uniform = prior.shape[-1] == 0
    if kind == "discrete":
        logits = nets.mlp(actor, observation) + (0.0 if uniform else prior)
        log_probs = jax.nn.log_softmax(logits)
        action = jnp.exp(log_probs)
        from_prior = jnp.sum(action * (log_probs - (0.0 if uniform else prior)), axis=-1)
        from_old = jnp.zeros_like(from_prior)
        if old_actor is not None:
            old = jax.nn.log_softmax(nets.mlp(old_actor, observation) + (0.0 if uniform else prior))
            from_old = jnp.sum(action * (log_probs - old), axis=-1)
        return Chosen(action, from_prior, from_old, -jnp.sum(action * log_probs, axis=-1))
    own = nets.gaussian(actor, observation)
    # both policies are shifted by the same mean, which their divergence does not see
    from_old = jnp.float32(0.0)
    if old_actor is not None:
        from_old = nets.gaussian_divergence(own, nets.gaussian(old_actor, observation))
    if uniform:
        action, _, log_prob = nets.squashed(own, noise)
        return Chosen(action, log_prob, from_old, -log_prob)
    mean, log_std = jnp.split(prior, 2, axis=-1)
    policy = Gaussian(mean + own.mean, own.log_std)
    action, _, log_prob = nets.squashed(policy, noise)
    return Chosen(action, nets.gaussian_divergence(policy, Gaussian(mean, log_std)), from_old, -log_prob)


def prior_update(
    state: PriorState,
    batch: Batch,
    absorbing_cost: jax.Array,
    noise: jax.Array,
    evidence: jax.Array | float = 1.0,
    *,
    shapes: Shapes,
    config: PriorConfig,
) -> tuple[PriorState, dict[str, jax.Array]]:
    """Do one gradient step of critics and actor, then move the target critics and the average actor.

    `noise` is standard normal [2, B, A]: for the target's actions and for the actor's. Discrete actions need none.
    `batch.extra` are the prior's columns at s and at s' side by side.
    """
    kind, layer_norm, alpha = shapes.kind, config.layer_norm, config.prior_weight
    adam = optax.adam(config.learning_rate)
    assert batch.extra is not None
    prior, next_prior = jnp.split(batch.extra, 2, axis=-1)
    observation, successor = ((x - state.mean) / state.std for x in (batch.observation, batch.next_observation))
    # every m updates the policy that was reached becomes the old one
    freeze = state.updates % config.policy_steps == 0
    old_actor = jax.tree.map(lambda new, old: jnp.where(freeze, new, old), state.actor, state.old_actor)

    then = chosen(state.actor, None, successor, next_prior, noise[0], kind=kind)
    next_value = alpha * then.from_prior + nets.worst_value(
        state.target_critics, kind, successor, then.action, layer_norm=layer_norm
    )
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost)
    critic_value, gradient = nets.critic_regression(
        state.critics, kind, observation, batch.action, target, layer_norm=layer_norm
    )
    step, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    critics: Any = optax.apply_updates(state.critics, step)

    def actor_loss(actor: MLP) -> tuple[jax.Array, Chosen]:
        now = chosen(actor, old_actor, observation, prior, noise[1], kind=kind)
        worst = nets.worst_value(critics, kind, observation, now.action, layer_norm=layer_norm)
        return jnp.mean(alpha * now.from_prior + config.kl_weight * now.from_old + worst), now

    (actor_value, now), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
    step, actor_optimiser = adam.update(gradient, state.actor_optimiser)
    actor: Any = optax.apply_updates(state.actor, step)
    average: Any = optax.incremental_update(actor, state.average, 1.0 - config.actor_average)
    target_critics: Any = optax.incremental_update(critics, state.target_critics, config.target_rate)
    new = state._replace(
        actor=actor,
        average=average,
        old_actor=old_actor,
        critics=critics,
        target_critics=target_critics,
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        updates=state.updates + 1,
    )
    return new, {
        "critic_loss": critic_value,
        "actor_loss": actor_value,
        "divergence": jnp.mean(now.from_old),
        "prior_divergence": jnp.mean(now.from_prior),
        "entropy": jnp.mean(now.entropy),
        "target_mean": jnp.mean(target),
        "policy_cost": jnp.mean(batch.cost),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }


# ----------------------------------------------------------------------------------------------------------------
# The player


@final
class PriorMDPO(OffPolicy):
    """Mirror descent towards an ensemble of clones as a policy player.

    The prior's columns of every step are kept beside the memory, at the same places, so that updates pay nothing for
    the ensemble.
    """

    name = "mdpo-prior"
    Config: ClassVar[type[PriorConfig]] = PriorConfig
    draws = 2
    update = staticmethod(prior_update)

    def begin(self, game: Game) -> None:
        super().begin(game)
        self.state = self.state._replace(mean=jnp.array(game.mean), std=jnp.array(game.std))
        self._residual = HostActor(game.shapes.kind, self.state.average)
        self._take_prior(())
        self.settle()

    def _take_prior(self, members: Sequence[MLP]) -> None:
        config, shapes = self.config, self._shapes
        self.ensemble = Ensemble(shapes.kind, members, config.prior_log_std) if members else None
        width = 0 if not members else shapes.action_size * (2 if shapes.kind == "continuous" else 1)
        self._columns = np.zeros((self.memory.capacity, 2 * width), np.float32)
        experts = self.memory.unpack(self._expert_rows)
        self._expert_columns = self._both(experts.observation, experts.next_observation)

    def _both(self, observation: np.ndarray, successor: np.ndarray) -> np.ndarray:
        if self.ensemble is None:
            return np.zeros((len(observation), 0), np.float32)
        return np.concatenate([self.ensemble.columns(observation), self.ensemble.columns(successor)], axis=1)

    def init(self, seed: int, shapes: Shapes) -> tuple[PriorState, jax.Array]:
        return init_prior(seed, shapes, self.config)

    def with_actor(self, actor: MLP) -> PriorState:
        optimiser = optax.adam(self.config.learning_rate).init(actor)
        return self.state._replace(
            actor=copied(actor), average=copied(actor), old_actor=copied(actor), actor_optimiser=optimiser
        )

    def adopt(self, members: Sequence[MLP]) -> None:
        """Start from these clones: their ensemble is the prior, and the first policy."""
        self._take_prior(members)
        self.state = self.with_actor(started_at_prior(self.state.actor, self._shapes, self.config.prior_log_std))
        self.uniform_warmup = False
        self.settle()

    def follow(self) -> None:
        """Wait for the block under way and act by what it learned; the members stay apart, which is quicker."""
        average = nets.in_own_coordinates(self.state.average, self.state.mean, self.state.std)
        self._residual.load(average)
        if self.ensemble is None:
            self.actor.load(average)

    def settle(self) -> None:
        """As `follow`; afterwards `actor` is the whole policy as one network."""
        self.follow()
        if self.ensemble is not None:
            self.actor.load(self.ensemble.plus(self._residual.layers))

    def act(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw actions [n, A]: uniform ones during a warm-up without clones, then the policy's."""
        if self.ensemble is None:
            return super().act(observation, rng)
        return self._residual.sample(observation, rng, offset=self.ensemble.columns(observation))

    def observe(self, step: Step) -> None:
        """Keep the prior's columns of these steps; the loop stores the steps themselves next."""
        if self.ensemble is not None:
            kept = step.valid
            place = (self.memory.position + np.arange(int(kept.sum()))) % self.memory.capacity
            self._columns[place] = self._both(step.observation[kept], step.next_observation[kept])

    def _rows(self) -> np.ndarray:
        size, experts = (self._updates, self.config.batch_size - self._expert_count), self._expert_count
        index = self._rng.integers(0, len(self.memory), size=size)
        rows = np.concatenate([self.memory.rows[index], self._columns[index]], axis=-1)
        if not experts:
            return rows
        index = self._rng.integers(0, len(self._expert_rows), size=(self._updates, experts))
        shown = np.concatenate([self._expert_rows[index], self._expert_columns[index]], axis=-1)
        return np.concatenate([rows, shown], axis=1)

    def snapshot(self) -> Snapshot:
        """Return what is needed to go on bit for bit, the clones and the columns of the memory included."""
        arrays, info = super().snapshot()
        members = () if self.ensemble is None else self.ensemble.members
        arrays |= checkpoint.named(members, "prior") | {"prior/columns": self._columns[: len(self.memory)]}
        return arrays, {**info, "members": len(members)}

    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Take back what `snapshot` gave."""
        template = tuple(self.state.actor for _ in range(int(info["members"])))
        self._take_prior(jax.tree.map(np.asarray, checkpoint.restored(template, arrays, "prior")))
        columns = arrays["prior/columns"]
        if columns.ndim != 2 or columns.shape[1] != self._columns.shape[1] or len(columns) > len(self._columns):
            raise InputError(f"the checkpoint's prior has columns {columns.shape}, {self._columns.shape} are needed")
        self._columns[: len(columns)] = columns
        super().restore(arrays, info)
