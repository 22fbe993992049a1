"""What on-policy players share: rollouts, advantages, the surrogate, the value function; in cost form.

Costs are minimised: V(s) is the expected discounted *cost*, and an action with a negative advantage is a cheap one.

One improvement, on T steps of n environments taken by π_old, with the cost c they were taken under:
    δ_t   = c_t + γ (V_abs if terminated else V(s_{t+1})) - V(s_t)
    A_t   = δ_t + γλ A_{t+1}, cut where an episode ends;  then standardised
    L(θ)  = mean (π_θ/π_old)(a|s) A - entropy_weight · H(π_θ) + prior_weight · KL(π_θ, prior)
    θ     <- a step that lowers L near π_old: see `trpo` and `mdpo_on`
    V     <- Adam on minibatches of (V(s) - (A + V_old(s)))²
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.base import checkpoint, seeding
from oal.deep import nets
from oal.deep.distributions import Distribution, distribution, divergence, entropy, log_likelihood
from oal.deep.nets import MLP, Activation, Gaussian, HostActor
from oal.deep.players import ChargeBatch, Game, Metrics, Shapes, Snapshot, recorded_cost
from oal.deep.prior import Ensemble
from oal.deep.replay import Batch
from oal.envs import Step, bootstrap_target
from oal.errors import InputError, at_least, choice

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Array, Bool, Float, Int, Observations, PerRow, PerStep, Scalar


@dataclass(frozen=True)
class OnPolicyConfig:
    """What TRPO and on-policy MDPO share."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the actor and of the value network."""
    activation: Activation = "tanh"
    batch_steps: int = 2000
    """Environment steps per improvement, over all environments together; rounded up to whole vector steps."""
    gamma: float = 0.99
    gae_lambda: float = 0.98
    standardise_advantages: bool = True
    flat_start: bool = True
    """The actor starts near 0: the first policy is about the same, wide one in every state."""
    entropy_weight: float = 0.0
    prior_weight: float = 0.0
    """What a step away from the clones that learning started with costs, in units of the advantages."""
    critic_learning_rate: float = 1e-3
    critic_epochs: int = 10
    critic_minibatch: int = 128

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden is {self.hidden}: name at least one layer of at least one unit")
        choice("activation", self.activation, ("relu", "tanh"))
        at_least("batch_steps", self.batch_steps, 2)
        if not 0.0 <= self.gamma < 1.0:
            raise InputError(f"gamma is {self.gamma}: it must lie in [0, 1)")
        if not 0.0 <= self.gae_lambda <= 1.0:
            raise InputError(f"gae_lambda is {self.gae_lambda}: it must lie in [0, 1]")
        at_least("entropy_weight", self.entropy_weight, 0.0)
        at_least("prior_weight", self.prior_weight, 0.0)
        above_zero("critic_learning_rate", self.critic_learning_rate)
        at_least("critic_epochs", self.critic_epochs, 1)
        at_least("critic_minibatch", self.critic_minibatch, 1)


def above_zero(name: str, value: float) -> None:
    """Refuse a setting that is not above 0."""
    if not value > 0.0:
        raise InputError(f"{name} is {value}: it must be above 0")


# ----------------------------------------------------------------------------------------------------------------
# Rollouts and advantages


class Rollout(NamedTuple):
    """What n environments did in T steps; `draw` is the action before its tanh. Only `valid` rows are learned from."""

    observation: "Float[Array, 'T n O']"
    draw: "Float[Array, 'T n A']"
    cost: "Float[Array, 'T n']"
    next_observation: "Float[Array, 'T n O']"
    terminated: "Bool[Array, 'T n']"
    truncated: "Bool[Array, 'T n']"
    valid: "Bool[Array, 'T n']"
    prior: "Float[Array, 'T n E']"
    """The prior's columns; none (E = 0) without one."""


def empty_rollout(steps: int, environments: int, shapes: Shapes, columns: int = 0) -> Rollout:
    """Return host arrays to fill; every row is invalid until it is written."""
    size = (steps, environments)
    return Rollout(
        observation=np.zeros((*size, shapes.observation_size), np.float32),
        draw=np.zeros((*size, shapes.action_size), np.float32),
        cost=np.zeros(size, np.float32),
        next_observation=np.zeros((*size, shapes.observation_size), np.float32),
        terminated=np.zeros(size, bool),
        truncated=np.zeros(size, bool),
        valid=np.zeros(size, bool),
        prior=np.zeros((*size, columns), np.float32),
    )


def continues(rollout: Rollout) -> "Bool[jax.Array, 'T n']":
    """Say of each row whether the row after it is the same episode's next step.

    An episode may also be cut without a flag, when the loop restarts its environments: then the next row does not
    begin where this one ended.
    """
    joined = jnp.all(rollout.next_observation[:-1] == rollout.observation[1:], axis=-1)
    joined &= rollout.valid[:-1] & rollout.valid[1:] & ~rollout.terminated[:-1] & ~rollout.truncated[:-1]
    return jnp.concatenate([joined, jnp.zeros((1, joined.shape[1]), bool)])


def advantages(
    rollout: Rollout,
    value: "PerStep",
    next_value: "PerStep",
    absorbing_cost: "Scalar",
    *,
    gamma: float,
    gae_lambda: float,
) -> "PerStep":
    """Generalised advantages of costs; 0 where a row is not valid.

    A termination is followed by the absorbing state's cost for ever; a truncation by the successor's value.
    """
    target = bootstrap_target(rollout.cost, next_value, rollout.terminated, gamma, absorbing_cost)
    residual = jnp.where(rollout.valid, target - value, 0.0)

    def backwards(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        residual, goes_on = row
        now = residual + gamma * gae_lambda * jnp.where(goes_on, later, 0.0)
        return now, now

    return jax.lax.scan(backwards, jnp.zeros_like(residual[0]), (residual, continues(rollout)), reverse=True)[1]


class Data(NamedTuple):
    """A rollout as B = T n rows, ready for the policy's step; `weight` is 1/(number of valid rows) or 0."""

    observation: "Observations"
    draw: "Actions"
    advantage: "PerRow"
    weight: "PerRow"
    prior: "Float[Array, 'B E']"


def surrogate(
    actor: MLP, old: Distribution, data: Data, *, shapes: Shapes, config: OnPolicyConfig
) -> tuple["Scalar", Distribution]:
    """L(θ): the mean advantage under π_θ's actions at π_old's states, entropy and prior weighed in; and π_θ there."""
    new = distribution(actor, data.observation, kind=shapes.kind, activation=config.activation)
    ratio = jnp.exp(log_likelihood(new, data.draw) - log_likelihood(old, data.draw))
    loss = jnp.sum(data.weight * ratio * data.advantage)
    if config.entropy_weight > 0.0:
        loss -= config.entropy_weight * jnp.sum(data.weight * entropy(new, data.draw, ratio))
    if config.prior_weight > 0.0 and data.prior.shape[-1] > 0:
        mean, log_std = jnp.split(data.prior, 2, axis=-1)
        prior = Gaussian(mean, log_std) if isinstance(new, Gaussian) else log_std
        loss += config.prior_weight * jnp.sum(data.weight * divergence(new, prior))
    return loss, new


# ----------------------------------------------------------------------------------------------------------------
# One improvement, compiled


class PolicyStep(Protocol):
    """One step of the policy: (actor, optimiser, data) -> (actor, optimiser, metrics)."""

    def __call__(
        self,
        actor: MLP,
        optimiser: Any,
        data: Data,
        *,
        shapes: Shapes,
        config: Any,
    ) -> tuple[MLP, Any, dict[str, "Scalar"]]: ...


class OnPolicyState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    actor: MLP
    critic: MLP
    actor_optimiser: Any
    """Adam's moments for MDPO; nothing for TRPO."""
    critic_optimiser: optax.OptState


def init_on_policy(
    seed: int, shapes: Shapes, config: OnPolicyConfig, fresh_optimiser: Callable[[MLP, Any], Any]
) -> OnPolicyState:
    """Draw a fresh state; `seed` is a 32-bit integer (see `oal.base.seeding.integer`)."""
    actor_key, critic_key = jax.random.split(jax.random.key(seed))
    actor = nets.init_actor(actor_key, *shapes, config.hidden)
    if config.flat_start:
        actor = nets.nearly_zero(actor)
    critic = nets.init_mlp(critic_key, (shapes.observation_size, *config.hidden, 1))
    return OnPolicyState(
        actor=actor,
        critic=critic,
        actor_optimiser=fresh_optimiser(actor, config),
        critic_optimiser=optax.adam(config.critic_learning_rate).init(critic),
    )


def minibatches(rows: int, rng: np.random.Generator, config: OnPolicyConfig) -> "Int[np.ndarray, 'K M']":
    """Draw the rows of the value function's K minibatches, epoch by epoch.

    The rows left over after whole minibatches are other ones in each epoch.
    """
    size = min(config.critic_minibatch, rows)
    whole = rows // size * size
    epochs = [rng.permutation(rows)[:whole].reshape(-1, size) for _ in range(config.critic_epochs)]
    return np.concatenate(epochs).astype(np.int32)


def fit_critic(
    critic: MLP,
    optimiser: Any,
    observation: "Observations",
    target: "PerRow",
    weight: "PerRow",
    order: "Int[Array, 'K M']",
    *,
    config: OnPolicyConfig,
) -> tuple[MLP, Any, "Scalar"]:
    """Fit V to the targets by one Adam step per minibatch of `order`; return also the mean squared error met."""
    adam = optax.adam(config.critic_learning_rate)

    def body(carry: tuple[MLP, Any], index: jax.Array) -> tuple[tuple[MLP, Any], jax.Array]:
        critic, optimiser = carry
        seen, goal, share = observation[index], target[index], weight[index]

        def loss_of(critic: MLP) -> jax.Array:
            error = nets.mlp(critic, seen, activation=config.activation)[..., 0] - goal
            return jnp.sum(share * error**2) / jnp.maximum(jnp.sum(share), 1e-12)

        loss, gradient = jax.value_and_grad(loss_of)(critic)
        step, optimiser = adam.update(gradient, optimiser)
        moved: Any = optax.apply_updates(critic, step)
        return (moved, optimiser), loss

    (critic, optimiser), losses = jax.lax.scan(body, (critic, optimiser), order)
    return critic, optimiser, jnp.mean(losses)


def improvement(
    state: OnPolicyState,
    rollout: Rollout,
    order: "Int[Array, 'K M']",
    cost_params: Any,
    *,
    shapes: Shapes,
    config: OnPolicyConfig,
    charge: ChargeBatch,
    policy_step: PolicyStep,
) -> tuple[OnPolicyState, dict[str, "Scalar"]]:
    """Improve the policy by one rollout with the costs of `cost_params`, then fit its value function.

    `order` are the rows of the value function's minibatches (see `minibatches`).
    """
    count = rollout.cost.size
    rows = jax.tree.map(lambda part: part.reshape(count, *part.shape[2:]), rollout)
    action = jnp.tanh(rows.draw) if shapes.kind == "continuous" else rows.draw
    batch = Batch(rows.observation, action, rows.cost, rows.next_observation, rows.terminated.astype(jnp.float32))
    cost, absorbing_cost = charge(cost_params, batch)
    cost = jnp.where(rows.valid, cost, 0.0)
    weight = rows.valid / jnp.maximum(jnp.sum(rows.valid), 1)

    value, next_value = (
        nets.mlp(state.critic, seen, activation=config.activation)[..., 0]
        for seen in (rows.observation, rows.next_observation)
    )
    size = rollout.cost.shape
    advantage = advantages(
        rollout._replace(cost=cost.reshape(size)),
        value.reshape(size),
        next_value.reshape(size),
        absorbing_cost,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    ).reshape(-1)
    target = advantage + value
    centred = advantage - jnp.sum(weight * advantage)
    unexplained = jnp.sum(weight * centred**2)
    used = centred / (jnp.sqrt(unexplained) + 1e-8) if config.standardise_advantages else advantage
    data = Data(rows.observation, rows.draw, used, weight, rows.prior)
    actor, actor_optimiser, metrics = policy_step(
        state.actor, state.actor_optimiser, data, shapes=shapes, config=config
    )

    critic, critic_optimiser, critic_loss = fit_critic(
        state.critic, state.critic_optimiser, rows.observation, target, weight, order, config=config
    )
    policy = distribution(actor, rows.observation, kind=shapes.kind, activation=config.activation)
    collected_by = distribution(state.actor, rows.observation, kind=shapes.kind, activation=config.activation)
    ratio = jnp.exp(log_likelihood(policy, rows.draw) - log_likelihood(collected_by, rows.draw))
    target_mean = jnp.sum(weight * target)
    spread = jnp.sum(weight * (target - target_mean) ** 2)
    metrics |= {
        "entropy": jnp.sum(weight * entropy(policy, rows.draw, ratio)),
        "critic_loss": critic_loss,
        "explained_variance": 1.0 - unexplained / (spread + 1e-8),
        "target_mean": target_mean,
        "policy_cost": jnp.sum(weight * cost),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }
    return OnPolicyState(actor, critic, actor_optimiser, critic_optimiser), metrics


@lru_cache(maxsize=32)
def compile_improvement(
    shapes: Shapes, config: Any, policy_step: PolicyStep, *, charge: ChargeBatch = recorded_cost
) -> Callable[[OnPolicyState, Rollout, Any, Any], tuple[OnPolicyState, Metrics]]:
    """Compile (state, rollout, minibatches, cost parameters) -> (state, metrics); equal settings share one program.

    The state is donated: the caller must not use the one it passed in.
    """
    improve = partial(improvement, shapes=shapes, config=config, charge=charge, policy_step=policy_step)
    return jax.jit(improve, donate_argnums=0)


# ----------------------------------------------------------------------------------------------------------------
# The player


class OnPolicy(ABC):
    """A player that learns from the steps its current policy took; its kind says how the policy moves.

    `improve` starts the compiled step and returns at once; `act` waits for it, since every step is the newest policy's.
    """

    name: ClassVar[str]
    policy_step: ClassVar[PolicyStep]

    def __init__(self, config: Any) -> None:
        self.config, self.gamma, self.block = config, config.gamma, config.batch_steps

    @staticmethod
    @abstractmethod
    def fresh_optimiser(actor: MLP, config: Any) -> Any:
        """Return what the policy's step keeps from one improvement to the next."""

    @property
    def remembers(self) -> int | None:
        return None

    @property
    def ready(self) -> bool:
        return True

    def begin(self, game: Game) -> None:
        config, shapes, environments = self.config, game.shapes, game.environments
        at_least("environments", environments, 1)
        seed = seeding.integer(game.seed, "policy-player")
        self.state = init_on_policy(seed, shapes, config, self.fresh_optimiser)
        self.actor = HostActor(shapes.kind, self.state.actor, activation=config.activation)
        self._steps = math.ceil(config.batch_steps / environments)
        self.block = self._steps * environments
        self._shapes, self._environments = shapes, environments
        self._improve = compile_improvement(shapes, config, type(self).policy_step, charge=game.charge)
        self._rng = seeding.generator(game.seed, "minibatches")
        self._settled = True
        self._draw: np.ndarray | None = None
        self.ensemble: Ensemble | None = None
        self._begin_rollout()

    def _begin_rollout(self) -> None:
        # new arrays: the compiled step may still be reading the last ones
        self._rollout = self._empty()
        self._filled = 0

    def _empty(self) -> Rollout:
        columns = 0 if self.ensemble is None else 2 * self._shapes.action_size
        return empty_rollout(self._steps, self._environments, self._shapes, columns)

    def act(self, observation: "Float[np.ndarray, 'n O']", rng: np.random.Generator) -> "Float[np.ndarray, 'n A']":
        """Draw actions, and remember the draws: rounding would lose them in the tanh."""
        if not self._settled:
            self.settle()
        self._draw = self.actor.draw(observation, rng)
        return np.tanh(self._draw) if self._shapes.kind == "continuous" else self._draw

    def observe(self, step: Step) -> None:
        """Keep what the last actions did."""
        if self._draw is None:
            raise InputError("observe was called without act: on-policy learning needs the player's own draws")
        if self._filled == self._steps:
            raise InputError(f"the rollout of {self.block} steps is full: call improve before stepping on")
        prior = 0.0 if self.ensemble is None else self.ensemble.columns(step.observation)
        for part, now in zip(
            self._rollout,
            (step.observation, self._draw, step.cost, step.next_observation, *step[4:], prior),
            strict=True,
        ):
            part[self._filled] = now
        self._draw = None
        self._filled += 1

    def work_ahead(self, cost_params: Any) -> Metrics:
        """Nothing to do before the next steps are there."""
        return {}

    def improve(self, cost_params: Any) -> Metrics:
        """Start one improvement with the costs of `cost_params`; the metrics are read from it later.

        A rollout that is not full yet is used as far as it goes.
        """
        if not self._rollout.valid.any():
            raise InputError("there is nothing to learn from: let the player act and observe before improve")
        order = minibatches(self.block, self._rng, self.config)
        self.state, metrics = self._improve(self.state, self._rollout, order, cost_params)
        self._settled = False
        self._begin_rollout()
        return metrics

    def settle(self) -> None:
        """Wait for the improvement under way and act by what it learned."""
        self.actor.load(self.state.actor)
        self._settled = True

    def adopt(self, members: Sequence[MLP]) -> None:
        """Start from the first of these clones, with all of them as the prior if it has a weight.

        Steps collected by another actor are forgotten.
        """
        actor = members[0]
        sizes, own = ([layer.weight.shape for layer in layers] for layers in (actor, self.state.actor))
        if sizes != own:
            raise InputError(f"the actor's layers are {sizes}, the player's {own}: train it with the same hidden sizes")
        config, kind = self.config, self._shapes.kind
        if config.prior_weight > 0.0:
            self.ensemble = Ensemble(kind, members, activation=config.activation)
        copied = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), actor)
        self.state = self.state._replace(actor=copied, actor_optimiser=self.fresh_optimiser(copied, self.config))
        self._begin_rollout()
        self.settle()

    def snapshot(self) -> Snapshot:
        """Return what is needed to go on bit for bit, the unfinished rollout included."""
        # copies: the state's own buffers are reused by the next improvement
        arrays = {name: np.array(array) for name, array in checkpoint.named(self.state, "policy").items()}
        for name, part in self._rollout._asdict().items():
            arrays[f"rollout/{name}"] = part[: self._filled].copy()
        info = {"filled": self._filled, "rng": self._rng.bit_generator.state, "members": 0}
        if self.ensemble is not None:
            arrays |= self.ensemble.arrays()
            info["members"] = len(self.ensemble.members)
        return arrays, info

    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Take back what `snapshot` gave."""
        state = checkpoint.restored(self.state, arrays, "policy")
        filled = int(info["filled"])
        members, activation = int(info.get("members", 0)), self.config.activation
        self.ensemble = None
        if members:
            self.ensemble = Ensemble.from_arrays(arrays, members, state.actor, self._shapes.kind, activation=activation)
        rollout = self._empty()
        for name, part in rollout._asdict().items():
            saved = arrays.get(f"rollout/{name}")
            if saved is None or filled > self._steps or saved.shape != part[:filled].shape:
                raise InputError(
                    f"the checkpoint's rollout does not fit {self._environments} environments of {self._steps} steps: "
                    "the same number of environments and batch_steps are needed"
                )
            part[:filled] = saved
        self.state, self._rollout, self._filled, self._draw = state, rollout, filled, None
        self._rng.bit_generator.state = info["rng"]
        self.settle()
