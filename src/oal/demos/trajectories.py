"""Demonstrations in memory: frozen, checked trajectories and sets of them."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from oal.base import seeding
from oal.demos import arrays, fit, write
from oal.errors import InputError, at_least, is_whole, whole

if TYPE_CHECKING:
    import gymnasium

    from oal.envs.spec import EnvSource

NUMERIC_KINDS = "biuf"


def _frozen(name: str, values: Any) -> np.ndarray:
    """Return `values` as a read-only, native, C-ordered array of finite numbers; refuse anything else by name."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name} cannot become an array ({error}): give one row per step, all of one shape") from None
    if array.dtype.kind not in NUMERIC_KINDS or array.dtype.itemsize > 8:
        raise InputError(
            f"{name} have dtype {array.dtype}: they must be booleans, integers or floats of at most 64 bits"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        first = tuple(map(int, np.unravel_index(np.argmin(np.isfinite(array)), array.shape)))
        raise InputError(f"{name} hold {array[first]} at {_place(first)}: every value must be finite")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    if array.flags.writeable:
        array = array.copy() if array is values or array.base is not None else array
        array.flags.writeable = False
    return array


def _no_rewards(values: Any) -> bool:
    """Whether rewards say nothing: None, or NaN somewhere."""
    if values is None:
        return True
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return any(value is None for value in array.ravel())
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _named_vectors(name: str, value: Any) -> dict[str, tuple[float, ...]]:
    """Return a copy of a dictionary of vectors, after checking that it is one."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{name} is a {type(value).__name__}: it must be a dictionary of named vectors")
    vectors = {key: _frozen(f"{name} '{key}'", vector) for key, vector in value.items()}
    for key, vector in vectors.items():
        if vector.ndim != 1:
            raise InputError(f"{name} '{key}' has shape {vector.shape}: it must be a flat vector")
    return {key: tuple(vector.astype(np.float64).tolist()) for key, vector in vectors.items()}


def _place(index: tuple[int, ...]) -> str:
    step = f"step {index[0]}" if index else "its only value"
    return step + (f", index {index[1:]}" if index[1:] else "")


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """One episode, or a part of one: T actions and the observations they were taken in.

    Arrays are copied unless they are read-only already, and cannot be changed afterwards.

    observations: [T + 1, ...] when the one after the last action is known, else [T, ...].
    actions: [T, ...]: floats for Box, integers for Discrete action spaces, in the environment's units.
    rewards: [T], if they were recorded.
    terminated, truncated: how it ended: in a terminal state; cut off from outside. Neither: a part of an episode.
    seed, initial_state: for replaying: the reset seed, and the simulator's state after it as named vectors.
    stride: only every stride-th step of the episode was kept (so neighbouring rows are not consecutive when above 1).
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray | None = None
    terminated: bool = False
    truncated: bool = False
    _: KW_ONLY
    seed: int | None = None
    initial_state: Mapping[str, Sequence[float]] | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("observations", "actions"):
            set_field(self, name, _frozen(name, getattr(self, name)))
            if getattr(self, name).ndim == 0:
                raise InputError(f"{name} are a single number: give one row per step")
        length = len(self.actions)
        if length == 0:
            raise InputError("the episode has no steps: leave out episodes of length zero")
        if len(self.observations) not in (length, length + 1):
            raise InputError(
                f"there are {len(self.observations)} observations and {length} actions: give {length + 1} "
                f"observations, or {length} when the one after the last action is not known"
            )
        if self.rewards is not None:
            rewards = _frozen("rewards", self.rewards)
            if rewards.shape != (length,):
                raise InputError(f"rewards have shape {rewards.shape}: with {length} actions it must be ({length},)")
            set_field(self, "rewards", rewards if rewards.dtype.kind == "f" else _frozen("rewards", rewards * 1.0))
        for name in ("terminated", "truncated"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise InputError(f"{name} is {value!r}: it must be True or False")
            set_field(self, name, bool(value))
        if self.seed is not None:
            set_field(self, "seed", whole("seed", self.seed, 0))
        if self.initial_state is not None:
            set_field(self, "initial_state", _named_vectors("initial_state", self.initial_state))
        set_field(self, "stride", whole("stride", self.stride, 1))
        if self.stride > 1 and self.has_final:
            raise InputError(f"stride is {self.stride} with a final observation: a thinned episode has one per action")

    def __len__(self) -> int:
        """Return T, the number of actions."""
        return len(self.actions)

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last action is known."""
        return len(self.observations) == len(self.actions) + 1

    @property
    def next_observations(self) -> np.ndarray:
        """Return the observations after each action, [T, ...]."""
        if not self.has_final:
            raise InputError(
                "the observation after the last action is not known: use with_final(), which gives up that step"
            )
        return self.observations[1:]

    @property
    def total_reward(self) -> float | None:
        """Return the sum of the rewards of the kept steps, or None without rewards."""
        return None if self.rewards is None else float(self.rewards.sum(dtype=np.float64))

    def without_final(self) -> "Trajectory":
        """Return it with one observation per action."""
        return replace(self, observations=self.observations[: len(self)]) if self.has_final else self

    def with_final(self) -> "Trajectory":
        """Return it with T + 1 observations; where the last is not known, the last action is given up for it.

        What is left then is the part before the ending, so it is neither terminated nor truncated.
        """
        if self.has_final:
            return self
        if self.stride > 1:
            raise InputError(f"only one step in {self.stride} was kept: no observation follows the one before it")
        if len(self) == 1:
            raise InputError("the episode has one step and no final observation: nothing is left without that step")
        rewards = None if self.rewards is None else self.rewards[:-1]
        return replace(self, actions=self.actions[:-1], rewards=rewards, terminated=False, truncated=False)

    def subsample(self, every: int, start: int = 0) -> "Trajectory":
        """Keep steps start, start + every, ... as the imitation literature does; the final observation is dropped."""
        at_least("every", every, 1)
        at_least("start", start, 0)
        if every == 1 and start == 0:
            return self
        if start >= len(self):
            raise InputError(f"start is {start}: the episode has {len(self)} steps, so nothing would be left")
        steps = slice(start, len(self), every)
        rewards = None if self.rewards is None else self.rewards[steps]
        observations = self.observations[: len(self)][steps]
        return replace(
            self, observations=observations, actions=self.actions[steps], rewards=rewards, stride=self.stride * every
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return self._plain() == other._plain() and all(map(_same, self._arrays(), other._arrays()))

    def __hash__(self) -> int:
        return int(self.content_hash[:15], 16)

    def _plain(self) -> tuple[Any, ...]:
        state = None if self.initial_state is None else sorted(self.initial_state.items())
        return self.terminated, self.truncated, self.seed, self.stride, state

    def _arrays(self) -> tuple[np.ndarray | None, ...]:
        return self.observations, self.actions, self.rewards

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of every array (type, shape, bytes) and flag."""
        digest = hashlib.sha256(repr(self._plain()).encode())
        for array in self._arrays():
            if array is None:
                digest.update(b"none;")
            else:
                little = array.astype(array.dtype.newbyteorder("<"), copy=False)
                digest.update(f"{little.dtype.str}{little.shape};".encode())
                digest.update(np.ascontiguousarray(little).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        parts = [
            _count(len(self), "step"),
            f"observations {_shape(self.observations)}",
            f"actions {_shape(self.actions)}",
        ]
        if self.total_reward is not None:
            parts.append(f"return {_number(self.total_reward)}")
        parts += [name for name in ("terminated", "truncated") if getattr(self, name)] or ["not ended"]
        if self.stride > 1:
            parts.append(f"one step in {self.stride}")
        return f"Trajectory({', '.join(parts)})"


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(a, b)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}".replace(",", " " if n >= 10_000 else "")


def _shape(array: np.ndarray) -> str:
    return f"{array.shape} {array.dtype}"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, least and greatest of some numbers; of rows of numbers, each per column."""

    mean: Any
    std: Any
    min: Any
    max: Any

    @classmethod
    def of(cls, values: np.ndarray) -> "Spread":
        figures = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64), values.min(0), values.max(0)
        return cls(*(figure.tolist() for figure in figures))


@dataclass(frozen=True)
class Statistics:
    """Figures of a set of demonstrations, as plain numbers and lists. `returns` is None without rewards."""

    episodes: int
    steps: int
    terminated: int
    truncated: int
    lengths: Spread
    returns: Spread | None
    observations: Spread
    actions: Spread


@dataclass(frozen=True, eq=False, repr=False)
class Demos(Sequence[Trajectory]):
    """A set of trajectories of one environment, and where they come from.

    env_id: the Gymnasium id, if known. observation_space, action_space: Gymnasium spaces, if known.
    source: a sentence for people (who made it, how). metadata: anything else that JSON can hold.
    endings_known: False when the file's format did not say how episodes ended (they are then taken as truncated).
    """

    trajectories: tuple[Trajectory, ...]
    env_id: str | None = None
    observation_space: "gymnasium.Space[Any] | None" = None
    action_space: "gymnasium.Space[Any] | None" = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    endings_known: bool = True

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "trajectories", tuple(self.trajectories))
        if not self.trajectories:
            raise InputError("there are no trajectories: give at least one")
        for episode, trajectory in enumerate(self.trajectories):
            if not isinstance(trajectory, Trajectory):
                raise InputError(
                    f"episode {episode} is a {type(trajectory).__name__}: it must be an oal.demos.Trajectory"
                )
            self._check_alike(episode, trajectory)
        for name in ("env_id", "source"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InputError(f"{name} is {value!r}: it must be text or None")
        try:
            set_field(self, "metadata", json.loads(json.dumps(dict(self.metadata), allow_nan=False)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"metadata cannot be written as JSON ({error}): use text, numbers, lists and dicts"
            ) from None
        self._check_spaces()

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any = None,
        *,
        env: "EnvSource | gymnasium.Env | None" = None,
        terminated: Any = None,
        truncated: Any = None,
        lengths: Any = None,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> "Demos":
        """Make demonstrations of arrays in memory: one array per episode, or all steps in a row.

        Episodes: lists `observations[i]` ([T + 1, ...], or [T, ...] without the last one) and `actions[i]` ([T, ...]).
        All steps in a row: [N, ...] each, cut by `lengths` (one number if all episodes are as long) or by `terminated`
        and `truncated`, one flag a step. Observations of a Dict space are dictionaries of such arrays, or lists of the
        dictionaries that the environment gave; these need `env`.

        env: an id, a function or an environment, to check them against and clip actions by (see `check`, for `strict`).
        rewards: as the actions, or None. Rewards that are NaN are no rewards.
        terminated, truncated: how episodes ended: in a terminal state; cut off. One of them tells the other. Without
        both they are taken as cut off, and `endings_known` is False; `with_time_limit` can tell.
        """
        env_id, observation_space, action_space = (None, None, None) if env is None else fit.of_environment(env)
        parts = arrays.episodes(
            observations,
            actions,
            rewards,
            terminated=terminated,
            truncated=truncated,
            lengths=lengths,
            observation_space=observation_space,
            action_space=action_space,
        )
        if any(_no_rewards(part["rewards"]) for part in parts):
            parts = [{**part, "rewards": None} for part in parts]
        made = []
        for episode, part in enumerate(parts):
            try:
                made.append(Trajectory(**part))
            except InputError as error:
                raise InputError(f"episode {episode}: {error}") from None
        known = terminated is not None or truncated is not None
        about: dict[str, Any] = {"env_id": env_id, "source": source, "metadata": metadata or {}, "endings_known": known}
        demos = cls(tuple(made), **about)
        if observation_space is None or action_space is None:
            return demos
        return demos.check(observation_space=observation_space, action_space=action_space, strict=strict)

    def _check_alike(self, episode: int, trajectory: Trajectory) -> None:
        first = self.trajectories[0]
        for name in ("observations", "actions", "rewards"):
            ours, theirs = getattr(first, name), getattr(trajectory, name)
            if (ours is None) != (theirs is None):
                raise InputError(f"episode {episode} has {'no ' if theirs is None else ''}{name}, unlike episode 0")
            if ours is not None and (ours.shape[1:] != theirs.shape[1:] or ours.dtype != theirs.dtype):
                raise InputError(
                    f"episode {episode} has {name} of shape {theirs.shape[1:]} and dtype {theirs.dtype}, "
                    f"episode 0 has {ours.shape[1:]} and {ours.dtype}: all must be alike"
                )

    def _check_spaces(self) -> None:
        for name, array in (("observation", self[0].observations), ("action", self[0].actions)):
            space = getattr(self, f"{name}_space")
            if space is not None and space.shape is not None and space.shape != array.shape[1:]:
                raise InputError(
                    f"{name}s have shape {array.shape[1:]} each, the {name} space {space} wants {space.shape}: "
                    "are these demonstrations of another environment?"
                )

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> "Demos": ...
    def __getitem__(self, index: int | slice) -> "Trajectory | Demos":
        if isinstance(index, slice):
            return self._keep(self.trajectories[index])
        return self.trajectories[index]

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Demos):
            return NotImplemented
        return self.trajectories == other.trajectories and self._about() == other._about()

    def __hash__(self) -> int:
        return int(self.content_hash[:15], 16)

    def _about(self) -> tuple[Any, ...]:
        spaces = self.observation_space, self.action_space
        return self.env_id, *spaces, self.source, self.metadata, self.endings_known

    def _keep(self, trajectories: Iterable[Trajectory]) -> "Demos":
        kept = tuple(trajectories)
        if not kept:
            raise InputError(f"the selection is empty: there are {_count(len(self), 'episode')}")
        return replace(self, trajectories=kept)

    # Whole-set views. Rows of `observations`, `actions` and `rewards` belong together: N = the sum of all lengths.

    @property
    def steps(self) -> int:
        """Return the number of actions in all."""
        return sum(map(len, self))

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.array([len(trajectory) for trajectory in self], dtype=np.int64)

    @cached_property
    def returns(self) -> np.ndarray | None:
        """Return the sum of rewards of each episode, [episodes], or None without rewards."""
        if self[0].rewards is None:
            return None
        return np.array([trajectory.total_reward for trajectory in self], dtype=np.float64)

    @cached_property
    def observations(self) -> np.ndarray:
        """Return every observation an action was taken in, [N, ...]."""
        return _frozen("observations", np.concatenate([t.observations[: len(t)] for t in self]))

    @cached_property
    def actions(self) -> np.ndarray:
        return _frozen("actions", np.concatenate([t.actions for t in self]))

    @cached_property
    def rewards(self) -> np.ndarray | None:
        if self[0].rewards is None:
            return None
        return _frozen("rewards", np.concatenate([t.rewards for t in self if t.rewards is not None]))

    @property
    def has_finals(self) -> bool:
        """Whether every episode knows the observation after its last action."""
        return all(trajectory.has_final for trajectory in self)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the trajectories, the same whatever file format they came through."""
        return hashlib.sha256("".join(t.content_hash for t in self).encode()).hexdigest()

    def statistics(self) -> Statistics:
        """Return figures of the episodes and of each observation and action dimension (flattened)."""
        rows = (array.reshape(len(array), -1) for array in (self.observations, self.actions))
        return Statistics(
            episodes=len(self),
            steps=self.steps,
            terminated=sum(trajectory.terminated for trajectory in self),
            truncated=sum(trajectory.truncated for trajectory in self),
            lengths=Spread.of(self.lengths),
            returns=None if self.returns is None else Spread.of(self.returns),
            observations=Spread.of(next(rows)),
            actions=Spread.of(next(rows)),
        )

    # Selection

    def first(self, k: int) -> "Demos":
        """Keep the first k episodes."""
        return self._keep(self.trajectories[: self._how_many(k)])

    def random(self, k: int, *, seed: int) -> "Demos":
        """Keep k episodes chosen at random, in their old order."""
        chosen = seeding.generator(seed, "demos.random").choice(len(self), self._how_many(k), replace=False)
        return self._keep(self.trajectories[i] for i in sorted(chosen))

    def best(self, k: int) -> "Demos":
        """Keep the k episodes of highest return, best first; ties stay in their old order."""
        if self.returns is None:
            raise InputError("the demonstrations have no rewards: the best ones are not known")
        order = np.argsort(-self.returns, kind="stable")[: self._how_many(k)]
        return self._keep(self.trajectories[i] for i in order)

    def _how_many(self, k: int) -> int:
        if not is_whole(k) or not 1 <= k <= len(self):
            raise InputError(f"k is {k!r}: choose between 1 and {len(self)} episodes")
        return int(k)

    def subsample(self, every: int, *, seed: int | None = None) -> "Demos":
        """Keep every n-th step of each episode, from its first step on, or with `seed` from a random one below n.

        A random start per episode is what GAIL and its successors do; episodes shorter than n keep at least one step.
        """
        at_least("every", every, 1)
        if seed is None:
            return self._map(lambda t: t.subsample(every))
        draw = seeding.generator(seed, "demos.subsample")
        return self._map(
            lambda trajectory: trajectory.subsample(every, int(draw.integers(min(every, len(trajectory)))))
        )

    def _map(self, change: Callable[[Trajectory], Trajectory]) -> "Demos":
        changed = []
        for episode, trajectory in enumerate(self):
            try:
                changed.append(change(trajectory))
            except InputError as error:
                raise InputError(f"episode {episode}: {error}") from None
        return self._keep(changed)

    def without_final(self) -> "Demos":
        """Return them with one observation per action."""
        return self._map(Trajectory.without_final)

    def with_final(self) -> "Demos":
        """Return them with T + 1 observations; where the last is not known, the last action is given up for it."""
        return self._map(Trajectory.with_final)

    def without_rewards(self) -> "Demos":
        """Return them without their rewards."""
        return self._map(lambda trajectory: replace(trajectory, rewards=None))

    def with_time_limit(self, limit: int) -> "Demos":
        """Set how episodes ended from the environment's time limit: shorter ones terminated, those that reached it not.

        For formats that do not record endings. Episodes longer than the limit are an error.
        """
        at_least("time limit", limit, 1)

        def ended(trajectory: Trajectory) -> Trajectory:
            if trajectory.stride > 1:
                raise InputError(
                    "its length is not known, as steps were left out: set the time limit before subsampling"
                )
            if len(trajectory) > limit:
                raise InputError(f"it has {len(trajectory)} steps, more than the time limit of {limit}")
            short = len(trajectory) < limit
            return replace(trajectory, terminated=short, truncated=not short)

        return replace(self._map(ended), endings_known=True)

    def __repr__(self) -> str:
        parts = [self.env_id or "unknown environment", _count(len(self), "episode"), _count(self.steps, "step")]
        parts.append(f"observations {self[0].observations.shape[1:]} {self[0].observations.dtype}")
        parts.append(f"actions {self[0].actions.shape[1:]} {self[0].actions.dtype}")
        low, high = self.lengths.min(), self.lengths.max()
        parts.append(f"length {low}" if low == high else f"length {low} to {high}")
        if self.returns is not None:
            spread = f"{_number(self.returns.mean())} ± {_number(self.returns.std())}"
            parts.append(f"return {spread} [{_number(self.returns.min())}, {_number(self.returns.max())}]")
        if self[0].stride > 1:
            parts.append(f"one step in {self[0].stride}")
        parts.append(f"sha256 {self.content_hash[:8]}")
        return f"Demos({', '.join(parts)})"

    def check(
        self,
        env: "EnvSource | gymnasium.Env | None" = None,
        *,
        observation_space: "gymnasium.Space[Any] | None" = None,
        action_space: "gymnasium.Space[Any] | None" = None,
        strict: bool = False,
    ) -> "Demos":
        """Return them as the environment shows itself to a learner, or raise an InputError that says what does not fit.

        Give an environment, its id, a function that makes it, or both spaces. Observations must have its shape (those
        of other than vector spaces become flat vectors, as in `oal.envs`). Continuous actions outside the bounds are
        clipped, with a warning that counts them, or refused when `strict`; discrete ones outside are always refused.
        """
        return fit.check(self, env, observation_space=observation_space, action_space=action_space, strict=strict)

    def save(self, target: "str | os.PathLike[str]", *, format: str | None = None) -> None:
        """Write them; the format is `format`, or what the target's name asks for (.npz is oal's own)."""
        write.save(self, target, format=format)
