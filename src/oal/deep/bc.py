"""Behavioural cloning: fit an actor to demonstrated pairs, as a policy of its own or as a start for a policy player."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.base import console, seeding, stopping
from oal.deep import nets
from oal.deep.nets import MLP, Activation, Layer
from oal.deep.normaliser import Normaliser
from oal.deep.paused import PausedCloning
from oal.deep.policy import Policy
from oal.demos import Demos, Trajectory
from oal.demos.pairs import Encoded, encode
from oal.envs import EnvSource, EnvSpec, Evaluation, describe, evaluate, make
from oal.errors import InputError, at_least, at_most, choice

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Array, Float, Int, Observations, Scalar

EPOCHS_PER_DISPATCH = 10
STD_FLOOR = 1e-3
"""Actions that hardly vary are taken to vary so much, in [-1, 1]: a clone of a constant still has a width."""
PARTS = 5
"""Pairs are dealt into so many parts, to see how far off clones of all but one are on that one."""


@dataclass(frozen=True)
class BCConfig:
    """How an actor is fitted: to the squared error of its deterministic action, or by cross-entropy (discrete)."""

    updates: int = 10_000
    """Gradient steps, rounded to whole passes over the demonstrations: few pairs do not mean few updates."""
    epochs: int | None = None
    """Passes over the demonstrations, in place of `updates`."""
    batch_size: int = 100
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "cooldown", "constant"] = "cosine"
    """The learning rate falls to 0 along a cosine, or in a line over the last third of the updates, or stays. The last
    iterates of a constant rate are noisy: of two seeds with the same loss one walks and the other falls."""
    average: float = 0.998
    """The actor is the exponential average of the weights over the updates, with this decay; 0: the last weights."""
    members: int = 1
    """Actors fitted side by side in one program, each from its own start and in its own order; an ensemble."""
    width: float | None = 0.25
    """Standard deviation that a clone's Gaussian is left with, so that it can be sampled from and explores, in those of
    the demonstrated actions (each dimension its own); the prior's where all clones agree. None: how far off clones are
    on pairs that they were not fitted to."""
    validation_fraction: float = 0.0
    """Share of the episodes that is kept for validation."""

    def __post_init__(self) -> None:
        at_least("updates", self.updates, 1)
        if self.epochs is not None:
            at_least("epochs", self.epochs, 1)
        at_least("batch_size", self.batch_size, 1)
        at_least("members", self.members, 1)
        at_most("members", self.members, 1_000)
        choice("schedule", self.schedule, ("cosine", "cooldown", "constant"))
        for name in ("learning_rate", "width"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise InputError(f"{name} is {value}: it must be above 0")
        if not 0.0 <= self.average < 1.0:
            raise InputError(f"average is {self.average}: it must lie in [0, 1)")
        if not 0.0 <= self.validation_fraction < 1.0:
            raise InputError(f"validation_fraction is {self.validation_fraction}: it must lie in [0, 1)")


PAPER_BC = BCConfig(
    epochs=1_000,
    batch_size=64,
    learning_rate=1e-4,
    schedule="constant",
    average=0.0,
    validation_fraction=0.3,
)
"""The paper's 1,000 epochs with the pretraining of the library that its code is built on."""


class History(NamedTuple):
    """Mean loss of each epoch over the members, and the validation loss after it (None without validation)."""

    loss: "Float[np.ndarray, 'epochs']"
    validation_loss: "Float[np.ndarray, 'epochs'] | None"


# ----------------------------------------------------------------------------------------------------------------
# Losses


def squared_error(actor: MLP, observation: "Observations", action: "Actions", *, activation: Activation) -> "Scalar":
    """Mean of (tanh(mean) - a)² over pairs and action dimensions."""
    distribution = nets.gaussian(actor, observation, activation=activation)
    return jnp.mean((jnp.tanh(distribution.mean) - action) ** 2)


def cross_entropy(actor: MLP, observation: "Observations", action: "Actions", *, activation: Activation) -> "Scalar":
    """-mean log π(a|s) of one-hot actions."""
    return -jnp.mean(jnp.sum(action * nets.log_policy(actor, observation, activation=activation), axis=-1))


def loss_function(spec: EnvSpec, activation: Activation) -> Callable[[MLP, "Observations", "Actions"], "Scalar"]:
    """Return the loss for the environment's kind of actions."""
    return partial(cross_entropy if spec.kind == "discrete" else squared_error, activation=activation)


# ----------------------------------------------------------------------------------------------------------------
# Fitting


class _Fit(NamedTuple):
    """Everything that an epoch changes, for one member."""

    actor: MLP
    optimiser: Any
    average: MLP
    """Of the weights so far; the actor that comes out."""


Pairs = tuple["Float[Array, '_ O']", "Float[Array, '_ A']"]
"""Observations and as many encoded actions."""


def epochs_of(config: BCConfig, pairs: int) -> int:
    """Return how many passes over so many training pairs a configuration asks for."""
    if config.epochs is not None:
        return config.epochs
    return max(1, round(config.updates / (pairs // min(config.batch_size, pairs))))


def scheduled_adam(config: BCConfig, pairs: int) -> optax.GradientTransformation:
    """Return Adam with the rate's schedule for so many training pairs."""
    if config.schedule == "constant":
        return optax.adam(config.learning_rate)
    updates = epochs_of(config, pairs) * (pairs // min(config.batch_size, pairs))
    if config.schedule == "cosine":
        return optax.adam(optax.cosine_decay_schedule(config.learning_rate, updates))
    cooling = round(updates / 3)
    return optax.adam(optax.linear_schedule(config.learning_rate, 0.0, cooling, transition_begin=updates - cooling))


def averaged(average: MLP, actor: MLP, updates: "Scalar", decay: float) -> MLP:
    """Move the average of the weights after so many updates; early on it is short, and forgets the start."""
    keep = jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda old, new: keep * old + (1.0 - keep) * new, average, actor)


@lru_cache(maxsize=32)
def _compile_epochs(spec: EnvSpec, config: BCConfig, activation: Activation) -> Callable[..., Any]:
    """Compile (fits, training pairs, validation pairs or None, first epoch, keys [M, E], places [M, N] or None) ->
    (fits, two losses [M, E]).

    Members lie along the first axis of the fits, and each learns from the pairs at its places, or from all; the second
    losses are those of the validation.
    """
    loss = loss_function(spec, activation)

    def epochs(
        fits: _Fit,
        training: Pairs,
        validation: Pairs | None,
        first: "Scalar",
        keys: jax.Array,
        places: jax.Array | None = None,
    ) -> Any:
        count = len(training[0]) if places is None else places.shape[1]
        batch = min(config.batch_size, count)
        batches = count // batch
        adam = scheduled_adam(config, count)

        def step(carry: tuple[MLP, Any, MLP, jax.Array], index: jax.Array) -> tuple[Any, jax.Array]:
            actor, optimiser, average, done = carry
            value, gradient = jax.value_and_grad(loss)(actor, training[0][index], training[1][index])
            change, optimiser = adam.update(gradient, optimiser)
            actor: Any = optax.apply_updates(actor, change)
            return (actor, optimiser, averaged(average, actor, done, config.average), done + 1.0), value

        def epoch(
            own: jax.Array | None, carry: tuple[_Fit, jax.Array], key: jax.Array
        ) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            fit, done = carry
            # the pairs left over after the last whole batch are others in each epoch
            order = jax.random.permutation(key, count)[: batches * batch].reshape(-1, batch)
            order = order if own is None else own[order]
            start = (fit.actor, fit.optimiser, fit.average, done)
            (actor, optimiser, average, done), values = jax.lax.scan(step, start, order)
            validated = jnp.float32(jnp.nan) if validation is None else loss(average, *validation)
            return (_Fit(actor, optimiser, average), done), (jnp.mean(values), validated)

        def member(fit: _Fit, keys: jax.Array, own: jax.Array | None) -> Any:
            (fit, _), losses = jax.lax.scan(partial(epoch, own), (fit, first * float(batches)), keys)
            return fit, *losses

        if len(keys) > 1:
            return jax.vmap(member)(fits, keys, places)
        alone = member(*jax.tree.map(lambda leaf: leaf[0], (fits, keys, places)))
        return jax.tree.map(lambda leaf: leaf[None], alone)

    return jax.jit(epochs)


def clone(
    actor: MLP,
    demos: Sequence[Trajectory | Encoded],
    *,
    spec: EnvSpec,
    config: BCConfig | None = None,
    seed: int = 0,
    activation: Activation = "relu",
    progress_bar: bool = False,
) -> tuple[MLP, History]:
    """Fit an actor to demonstrations, from the weights given; return it and the losses on the way."""
    config = replace(config or BCConfig(), members=1)
    members, history = clone_members(
        [actor], demos, spec=spec, config=config, seed=seed, activation=activation, progress_bar=progress_bar
    )
    return members[0], history


def clone_members(
    actors: Sequence[MLP],
    demos: Sequence[Trajectory | Encoded],
    *,
    spec: EnvSpec,
    config: BCConfig,
    seed: int = 0,
    activation: Activation = "relu",
    progress_bar: bool = False,
    paused: PausedCloning | None = None,
) -> tuple[list[MLP], History]:
    """Fit several actors to the same demonstrations in one program, each from its own weights and in its own order.

    `paused` keeps the fit under way, and goes on from where it was stopped.
    """
    for actor in actors:
        _check_actor(actor, spec)
    training, validation = _split(demos, spec, config, seed)
    fitted = partial(_fitted, spec=spec, config=config, activation=activation, seed=seed, progress_bar=progress_bar)
    if spec.kind == "continuous":
        if config.width is None:
            width = unseen_error(actors, training, fitted, seed=seed, activation=activation)
        else:
            width = config.width * np.maximum(training[1].std(axis=0), STD_FLOOR)
        actors = [_with_log_std(actor, np.log(width)) for actor in actors]
    return fitted(actors, training, validation, stream="cloning", paused=paused)


def unseen_error(
    actors: Sequence[MLP],
    pairs: Pairs,
    fitted: Callable[..., tuple[list[MLP], History]],
    *,
    seed: int,
    activation: Activation,
) -> "Float[np.ndarray, 'A']":
    """Return how far off clones are on pairs that they were not fitted to: the root of the mean square, per dimension.

    The pairs are dealt into parts at random, and a clone of all but one is asked about that one.
    """
    observation, action = (np.asarray(each) for each in pairs)
    count = len(action)
    if count < PARTS:
        return np.maximum(action.std(axis=0), STD_FLOOR)
    part = seeding.generator(seed, "cloning-parts").permutation(count) % PARTS
    others = [np.flatnonzero(part != each) for each in range(PARTS)]
    places = np.stack([each[: min(map(len, others))] for each in others])
    starts = [actors[i % len(actors)] for i in range(PARTS)]
    clones, _ = fitted(starts, pairs, None, stream="cloning-parts", places=places)
    error = np.empty_like(action)
    for i, one in enumerate(clones):
        unseen = part == i
        host = nets.HostActor("continuous", one, activation=activation)
        error[unseen] = host.mode(observation[unseen]) - action[unseen]
    return np.maximum(np.sqrt(np.mean(error**2, axis=0)), STD_FLOOR)


def _fitted(
    actors: Sequence[MLP],
    training: Pairs,
    validation: Pairs | None,
    *,
    spec: EnvSpec,
    config: BCConfig,
    activation: Activation,
    seed: int,
    stream: str,
    progress_bar: bool,
    places: "Int[np.ndarray, 'M N'] | None" = None,
    paused: PausedCloning | None = None,
) -> tuple[list[MLP], History]:
    """Fit actors side by side, each to the pairs at its places or to all."""
    count = len(training[0]) if places is None else places.shape[1]
    adam, total = scheduled_adam(config, count), epochs_of(config, count)
    fits = [_Fit(actor, adam.init(actor), actor) for actor in actors]
    fit: _Fit = jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits)
    epochs = _compile_epochs(spec, config, activation)
    data, held_out, own = jax.tree.map(jnp.asarray, (training, validation, places))
    streams = [(stream,), *((stream, i) for i in range(1, len(actors)))]
    keys = jnp.stack([jax.random.split(jax.random.key(seeding.integer(seed, *each)), total) for each in streams])
    fit, losses, validated = (fit, [], []) if paused is None else paused.taken(fit)
    what = "cloning" if places is None else "cloning parts"
    with console.progress(what, total, enabled=progress_bar) as advance:
        while len(losses) < total:
            done = len(losses)
            fit, new, new_validated = epochs(
                fit, data, held_out, jnp.float32(done), keys[:, done : done + EPOCHS_PER_DISPATCH], own
            )
            losses += np.asarray(new).mean(axis=0).tolist()
            validated += np.asarray(new_validated).mean(axis=0).tolist()
            if not np.isfinite(losses[-1]):
                raise InputError(
                    f"the loss became {losses[-1]} by epoch {len(losses)}: lower learning_rate "
                    f"({config.learning_rate:g})"
                )
            advance(len(losses) - done, f"loss {losses[-1]:.4f}")
            if paused is not None:
                paused.keep(fit, losses, validated)
            stopping.check()
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], fit.average) for i in range(len(actors))]
    return members, History(np.array(losses), None if validation is None else np.array(validated))


def start_members(spec: EnvSpec, hidden: Sequence[int], members: int, seed: int) -> list[MLP]:
    """Draw fresh actors, the first of them as a policy player with this seed draws its own."""
    kind = "continuous" if spec.kind == "continuous" else "discrete"
    streams = [("policy-player",), *(("policy-player", i) for i in range(1, members))]
    keys = [jax.random.key(seeding.integer(seed, *stream)) for stream in streams]
    return [nets.init_actor(key, kind, spec.observation_size, spec.action_size, hidden) for key in keys]


def _check_actor(actor: MLP, spec: EnvSpec) -> None:
    outputs = spec.action_size * (2 if spec.kind == "continuous" else 1)
    found = actor[0].weight.shape[0], actor[-1].weight.shape[1]
    if found != (spec.observation_size, outputs):
        raise InputError(
            f"the actor takes {found[0]} numbers and gives {found[1]}, {spec.env_id} needs {spec.observation_size} "
            f"and {outputs}: it is another environment's"
        )


def _split(
    demos: Sequence[Trajectory | Encoded], spec: EnvSpec, config: BCConfig, seed: int
) -> tuple[Pairs, Pairs | None]:
    """Return training and validation pairs; whole episodes go to one side, as steps of one resemble each other."""
    episodes = encode(demos, spec)

    def joined(index: "Int[np.ndarray, 'episodes']") -> Pairs:
        chosen = [episodes[i] for i in index]
        return np.concatenate([each.observation for each in chosen]), np.concatenate([each.action for each in chosen])

    if config.validation_fraction == 0.0:
        return joined(np.arange(len(episodes))), None
    if len(episodes) < 2:
        raise InputError("one demonstration cannot be split: set validation_fraction to 0 or give more of them")
    order = seeding.generator(seed, "cloning-validation").permutation(len(episodes))
    kept = min(max(1, round(config.validation_fraction * len(episodes))), len(episodes) - 1)
    return joined(np.sort(order[kept:])), joined(np.sort(order[:kept]))


def _with_log_std(actor: MLP, log_std: "Float[np.ndarray, 'A']") -> MLP:
    """Give the actor the same log-std in every state; the squared error has no gradient there, so that it stays."""
    size = actor[-1].weight.shape[1] // 2
    weight, bias = jnp.asarray(actor[-1].weight), jnp.asarray(actor[-1].bias)
    return (*actor[:-1], Layer(weight.at[:, size:].set(0.0), bias.at[size:].set(log_std)))


# ----------------------------------------------------------------------------------------------------------------
# As an algorithm of its own


class BC:
    """Behavioural cloning: supervised learning of the expert's actions, without touching the environment.

    With `BCConfig(members=5)` the policy is the mean of five clones, which falls less often than each of them.
    """

    def __init__(
        self,
        env: EnvSource,
        demos: Demos,
        *,
        config: BCConfig | None = None,
        hidden: tuple[int, ...] = (256, 256),
        normalise: bool = True,
        seed: int = 0,
        horizon: int | None = None,
    ) -> None:
        """`normalise`: the actor sees observations standardised by the demonstrations."""
        made = make(env, horizon=horizon)
        self.spec = describe(made, horizon=horizon)
        self.demos = demos.check(observation_space=made.observation_space, action_space=made.action_space)
        made.close()
        self.config, self.seed = config or BCConfig(), seed
        self._source, self._horizon = env, horizon
        self._episodes = encode(self.demos, self.spec)
        self.normaliser = Normaliser.of(self._episodes) if normalise else None
        if self.normaliser is not None:
            self._episodes = self.normaliser.episodes(self._episodes)
        self.members = start_members(self.spec, hidden, self.config.members, seed)
        self.history: History | None = None

    def learn(self, *, progress_bar: bool = False, paused: PausedCloning | None = None) -> Self:
        """Clone for the configuration's updates; `paused` is as in `clone_members`."""
        self.members, self.history = clone_members(
            self.members,
            self._episodes,
            spec=self.spec,
            config=self.config,
            seed=self.seed,
            progress_bar=progress_bar,
            paused=paused,
        )
        return self

    @property
    def actor(self) -> MLP:
        """The clone, or the mean of the members as one network."""
        return nets.mean_of(self.members)

    def policy(self) -> Policy:
        """Return the policy alone, to act with or to save."""
        return Policy(self.spec, self.actor, normaliser=self.normaliser, info={"seed": self.seed, "algorithm": "BC"})

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, None]:
        """Return (action, no state) for an observation or a batch of them, in the environment's own units."""
        return self.policy().predict(observation, state, episode_start, deterministic)

    def evaluate(self, *, episodes: int = 10) -> Evaluation:
        """Run whole episodes of the deterministic policy on fresh environments."""
        return evaluate(self._source, self.policy().act, episodes=episodes, seed=self.seed, horizon=self._horizon)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to one file; `oal.deep.policy.Policy.load` reads it."""
        self.policy().save(path)
