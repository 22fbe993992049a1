"""What an environment looks like: its spaces, sizes and time limit, and the scale of its actions.

Inside oal observations are flat float32 vectors and actions are *encoded*: continuous ones scaled to [-1, 1], discrete
ones one-hot. Actions of several discrete parts (MultiDiscrete, MultiBinary) are one choice among all combinations.
"""

import importlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from oal.base import jsontext
from oal.base.spaces import flatten, is_composite, leaves, refuse_pictures, space_from_json, space_to_json
from oal.envs.sources import EnvSource, call, resolved
from oal.errors import InputError, at_least, choice, is_whole, shortened, whole

Act = Callable[[np.ndarray], np.ndarray]
"""Observations [n, O] -> encoded actions [n, A]."""
LARGEST = 1 << 62
MAX_OBSERVATION = 1 << 18
"""Numbers of an observation: some more than the pixels of an Atari game's screen."""
MAX_HORIZON = 1 << 31
MAX_COMBINATIONS = 4_096
"""Of the parts of an action: the players sum over all of them, and each has its own output of the networks."""


@dataclass(frozen=True)
class EnvSpec:
    """Sizes, action bounds and horizon of an environment, as plain values that fit in JSON."""

    env_id: str
    kind: str
    observation_size: int
    action_size: int
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    action_shape: tuple[int, ...] = ()
    action_start: int = 0
    horizon: int = 0
    observation_space: str = ""
    """As JSON, where observations are something else than flat vectors."""
    action_counts: tuple[int, ...] = ()
    """How many values each part of an action has, where it has several discrete ones; action_size is their product."""
    action_starts: tuple[int, ...] = ()
    """The first value of each part."""

    def to_json(self) -> dict[str, Any]:
        optional = ("observation_space", "action_counts", "action_starts")
        return {name: value for name, value in asdict(self).items() if name not in optional or value}

    @property
    def combinations(self) -> np.ndarray | None:
        """The actions in the order of their numbers [A, *action_shape], where they have several discrete parts."""
        if not self.action_counts:
            return None
        parts = np.stack(np.unravel_index(np.arange(self.action_size), self.action_counts), axis=1)
        return (parts + np.array(self.action_starts, np.int64)).reshape(self.action_size, *self.action_shape)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "EnvSpec":
        """Read what `to_json` gave. Its id names no module: Gymnasium's own ids (see `describe`) never do."""
        try:
            fields: dict[str, Any] = {n: tuple(item) if isinstance(item, list) else item for n, item in value.items()}
            spec = cls(**fields)
        except (AttributeError, TypeError) as error:
            raise InputError(f"the description of the environment cannot be read ({error})") from None
        where = "the description of the environment"
        id_from_file(spec.env_id, where)
        spec._check()
        jsontext.expect(spec.observation_space, f"{where}: observation_space", str)
        if spec.space is not None and spaces.flatdim(spec.space) != spec.observation_size:
            raise InputError(f"{where}: its observation space is not of {shortened(spec.observation_size)} numbers")
        return spec

    @cached_property
    def space(self) -> spaces.Space | None:
        """The observation space, or None where observations are flat vectors."""
        if not self.observation_space:
            return None
        where = f"{self.env_id}: the observation space"
        return space_from_json(where, jsontext.parse(where, self.observation_space))

    def flat(self, observation: Any) -> np.ndarray:
        """Return an observation in the environment's own form, or a batch, as flat vectors [O] or [n, O].

        What is flat already stays so. A Dict's parts are found by their keys, in any order.
        """
        space = self.space
        if space is None or (is_composite(space) and isinstance(observation, np.ndarray)):
            try:
                return np.asarray(observation, np.float32)
            except (TypeError, ValueError):
                raise InputError(
                    f"the observation is {shortened(observation)}: {self.env_id} has {self.observation_size} numbers"
                ) from None
        if is_composite(space):
            try:
                return flat_observations(space, observation)
            except (KeyError, IndexError, TypeError) as error:
                raise InputError(f"the observation lacks the part {error}: {self.env_id} gives {space}") from None
        values = np.asarray(observation)
        if values.shape == space.shape:
            return flatten("the observation", space, values[None])[0].astype(np.float32)
        whole = isinstance(space, spaces.Discrete)
        if (
            values.shape[-1:] == (self.observation_size,)
            and values.ndim <= 2
            and (not whole or values.dtype.kind == "f")
        ):
            return values.astype(np.float32)
        return flatten("observations", space, values).astype(np.float32)

    def expect(self, found: "EnvSpec", what: str, fix: str = "say the environment that it was made with") -> None:
        """Refuse an environment of other sizes, bounds or actions than this one, which `what` was learned on."""
        names = ("kind", "observation_size", "action_size", "action_low", "action_high", "action_start")
        for name in (*names, "action_counts", "action_starts"):
            if getattr(self, name) != getattr(found, name):
                raise InputError(
                    f"{what} was learned on {self.env_id} with {name} {getattr(self, name)}, {found.env_id} has "
                    f"{getattr(found, name)}: {fix}"
                )

    def _check(self) -> None:
        """Refuse what `describe` cannot have said: networks and memories are made in these sizes."""
        where = "the description of the environment:"
        choice(f"{where} kind", shortened(self.kind).strip("'"), ("continuous", "discrete"))
        for name in ("observation_size", "action_size"):
            if whole(f"{where} {name}", getattr(self, name), 1) > MAX_OBSERVATION:
                raise InputError(f"{where} {name} is {getattr(self, name)}: at most {MAX_OBSERVATION} are learned from")
        whole(f"{where} horizon", self.horizon, 0)
        if not is_whole(self.action_start) or not -LARGEST <= self.action_start <= LARGEST:
            raise InputError(f"{where} action_start is {shortened(self.action_start)}: it must be a whole number")
        if self.kind == "discrete":
            self._check_parts(where)
            return
        for name in ("action_low", "action_high"):
            bounds = getattr(self, name)
            numbers = isinstance(bounds, tuple) and all(type(b) in (int, float) and math.isfinite(b) for b in bounds)
            if not numbers or len(bounds) != self.action_size:
                raise InputError(f"{where} {name} is {shortened(bounds)}: it must list {self.action_size} numbers")
        shape = self.action_shape
        if not isinstance(shape, tuple) or not all(map(is_whole, shape)) or math.prod(shape) != self.action_size:
            raise InputError(f"{where} action_shape is {shortened(shape)}, of {self.action_size} numbers")

    def _check_parts(self, where: str) -> None:
        counts, starts, shape = self.action_counts, self.action_starts, self.action_shape
        if not counts:
            return
        for name, values, low in (("action_counts", counts, 1), ("action_starts", starts, -LARGEST)):
            if not isinstance(values, tuple) or not all(is_whole(v) and low <= v <= LARGEST for v in values):
                raise InputError(f"{where} {name} is {shortened(values)}: it must list whole numbers")
        fits = isinstance(shape, tuple) and all(map(is_whole, shape)) and math.prod(shape) == len(counts) == len(starts)
        if not fits or math.prod(counts) != self.action_size or self.action_size > MAX_COMBINATIONS:
            raise InputError(
                f"{where} action_counts {shortened(counts)}, action_starts {shortened(starts)} and action_shape "
                f"{shortened(shape)} do not make {self.action_size} actions"
            )


def id_from_file(env_id: Any, where: str, *, trust: bool = False) -> str:
    """Return an environment's id that was read from a file; one that would run code needs `trust`.

    Gymnasium imports the module before a colon. A user who types such an id means it; a file may be a stranger's.
    """
    if not isinstance(env_id, str):
        raise InputError(f"{where} names the environment {shortened(env_id)}: an id is text")
    if ":" in env_id and not trust:
        raise InputError(
            f"{where} names the environment {shortened(env_id)}, which would import the module before the colon and "
            "run its code: type it again with --env, or add --trust (in Python: env=, trust=True), if you know where "
            "the file comes from"
        )
    return env_id


def describe(env: gym.Env | VectorEnv, *, horizon: int | None = None) -> EnvSpec:
    """Read an environment's spaces; refuse what cannot be learned on, naming why."""
    vector = isinstance(env, VectorEnv)
    observation_space = env.single_observation_space if vector else env.observation_space
    action_space = env.single_action_space if vector else env.action_space
    env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if not observation_space.is_np_flattenable:
        raise InputError(f"{env_id}: observations of {observation_space} have no fixed size and cannot be flattened")
    if any(isinstance(leaf, spaces.Text) for _, leaf in leaves(observation_space)):
        raise InputError(f"{env_id}: observations of {observation_space} are text: give numbers, with a wrapper")
    refuse_pictures(env_id, observation_space)
    size = spaces.flatdim(observation_space)
    if size > MAX_OBSERVATION:
        raise InputError(
            f"{env_id}: observations of {observation_space} are {size:,} numbers, at most {MAX_OBSERVATION:,} are "
            f"learned from: a memory of a million steps takes {8e6 * size / 1e12:.1f} TB, and a layer of 256 units "
            f"{1024 * size / 1e9:.1f} GB; make them smaller with a wrapper"
        )
    steps = horizon if horizon is not None else time_limit(env)
    if steps is None:
        raise InputError(
            f"{env_id} has no time limit: register it with max_episode_steps, wrap it with "
            "gymnasium.wrappers.TimeLimit, or say the horizon (--horizon, in Python horizon=)"
        )
    at_least("horizon", steps, 1)
    common: dict[str, Any] = {
        "env_id": env_id,
        "observation_size": size,
        "horizon": int(steps),
        "observation_space": _space_text(observation_space),
    }
    if isinstance(action_space, spaces.Discrete):
        return EnvSpec(kind="discrete", action_size=int(action_space.n), action_start=int(action_space.start), **common)
    if isinstance(action_space, spaces.Box):
        low, high = action_space.low.astype(np.float64).ravel(), action_space.high.astype(np.float64).ravel()
        with np.errstate(over="ignore"):
            bounded = np.isfinite((high - low).astype(np.float32)).all()
        if not bounded:
            raise InputError(
                f"{env_id}: the action space {action_space} is unbounded: say the range in which it is used, as with "
                "gymnasium.wrappers.TransformAction(env, lambda action: action, gymnasium.spaces.Box(-1.0, 1.0, shape))"
            )
        if action_space.dtype.kind != "f":
            raise InputError(
                f"{env_id}: the action space {action_space} takes whole numbers, and what is learned are real ones: "
                "say it as a MultiDiscrete (or Discrete) space, with a gymnasium.ActionWrapper"
            )
        if not (low < high).all():
            raise InputError(f"{env_id}: the action space {action_space} has a dimension without room (low = high)")
        return EnvSpec(
            kind="continuous",
            action_size=len(low),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            action_shape=tuple(action_space.shape),
            **common,
        )
    if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return EnvSpec(kind="discrete", **_parts(env_id, action_space), **common)
    raise InputError(
        f"{env_id}: actions of {action_space} are not supported; Box, Discrete, MultiDiscrete and MultiBinary are"
    )


def _space_text(space: spaces.Space) -> str:
    """Return a space as JSON; nothing where observations are flat vectors, or where it is of an unknown kind."""
    try:
        return "" if flattener(space) is None else json.dumps(space_to_json(space))
    except InputError:
        return ""


def _parts(env_id: str, space: spaces.MultiDiscrete | spaces.MultiBinary) -> dict[str, Any]:
    """Describe actions of several discrete parts, which are learned as one choice among their combinations."""
    shape = tuple(int(size) for size in space.shape or ())
    counts, starts = (2,) * math.prod(shape), (0,) * math.prod(shape)
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
    total = math.prod(counts)
    if total > MAX_COMBINATIONS:
        raise InputError(
            f"{env_id}: actions of {space} have {total:,} combinations, at most {MAX_COMBINATIONS:,} are learned as "
            "one choice: leave some out with a gymnasium.ActionWrapper"
        )
    return {"action_size": total, "action_shape": shape, "action_counts": counts, "action_starts": starts}


def time_limit(env: gym.Env | VectorEnv) -> int | None:
    """Return an environment's time limit: its registration's, or that of a wrapper around it."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, gym.wrappers.TimeLimit):
            return int(layer._max_episode_steps)
        layer = layer.env
    return None


def centre_and_half(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 centres and half widths [A] of the action bounds, such that centre ± half lies within them.

    Bounds of float64 are rounded inwards, and the half width by as much as its sum with the centre rounds outwards:
    environments may insist.
    """
    bounds = [np.array(bound, np.float64) for bound in (spec.action_low, spec.action_high)]
    low, high = (bound.astype(np.float32) for bound in bounds)
    low = np.where(low < bounds[0], np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > bounds[1], np.nextafter(high, np.float32(-np.inf)), high)
    centre, half = (high + low) * np.float32(0.5), (high - low) * np.float32(0.5)
    while (outside := (centre + half > high) | (centre - half < low)).any():
        half = np.where(outside, np.nextafter(half, np.float32(0.0)), half)
    return centre, half


class ActionCodec:
    """Encode environment actions for the learner and decode the learner's: one scale for learner and expert alike."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        # rows [1, A]: NumPy multiplies equal shapes in half the time that broadcasting takes
        self._centre, self._half = (part[None] for part in centre_and_half(spec))
        self._is_unit = not self._centre.any() and bool((self._half == 1.0).all())
        self._is_centred = not self._centre.any()
        self._is_flat = len(spec.action_shape) == 1
        self._is_discrete = spec.kind == "discrete"
        self._combinations = spec.combinations

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Environment actions [n, ...] -> encoded [n, A]: scaled to [-1, 1], or one-hot."""
        actions = np.asarray(actions)
        if self.spec.kind == "discrete":
            index = self._numbers(actions)
            if len(index) and not (index.min() >= 0 and index.max() < self.spec.action_size):
                raise InputError(f"an action lies outside the {self.spec.action_size} actions of {self.spec.env_id}")
            return np.eye(self.spec.action_size, dtype=np.float32)[index]
        flat = actions.reshape(len(actions), -1).astype(np.float32)
        if flat.shape[1] != self.spec.action_size:
            raise InputError(f"actions have {flat.shape[1]} numbers, {self.spec.env_id} takes {self.spec.action_size}")
        return flat if self._is_unit else (flat - self._centre) / self._half

    def _numbers(self, actions: np.ndarray) -> np.ndarray:
        """Number discrete actions from 0."""
        if self._combinations is None:
            return actions.reshape(len(actions)).astype(np.int64) - self.spec.action_start
        counts, starts = np.array(self.spec.action_counts), np.array(self.spec.action_starts)
        if actions.shape[1:] != self.spec.action_shape:
            raise InputError(
                f"actions have the shape {actions.shape[1:]}, those of {self.spec.env_id} {self.spec.action_shape}"
            )
        parts = actions.reshape(len(actions), -1).astype(np.int64) - starts
        if not ((parts >= 0) & (parts < counts)).all():
            raise InputError(f"an action lies outside the combinations of {self.spec.env_id}")
        return np.asarray(np.ravel_multi_index(tuple(parts.T), self.spec.action_counts))

    def decode(self, encoded: np.ndarray) -> Any:
        """Encoded actions [n, A] -> a sequence of n environment actions; continuous ones are clipped to the bounds."""
        if self.spec.kind == "discrete":
            return self.decode_inside(encoded)
        return self.decode_inside(np.minimum(np.maximum(encoded, np.float32(-1.0)), np.float32(1.0)))

    def decode_inside(self, encoded: np.ndarray) -> Any:
        """As `decode`, for actions known to lie in [-1, 1], as every actor of oal gives them.

        This runs once per environment step: each operation is a percent of a fast simulator's step.
        """
        if self._is_discrete:
            if self._combinations is not None:
                return list(self._combinations[encoded.argmax(axis=1)])
            start = self.spec.action_start
            return [index + start for index in encoded.argmax(axis=1).tolist()]
        # a copy: environments may change what they are given
        scaled = encoded.copy() if self._is_unit else encoded * self._half
        if not self._is_centred:
            scaled += self._centre
        return scaled if self._is_flat else scaled.reshape(len(scaled), *self.spec.action_shape)


def flattener(space: spaces.Space) -> Callable[[Any], np.ndarray] | None:
    """Return the map from observations to flat vectors, or None when they are flat vectors already."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return None
    return lambda observation: np.asarray(spaces.flatten(space, observation), np.float32)


def flat_observations(space: spaces.Space, observation: Any) -> np.ndarray:
    """Return an observation of the space as a flat vector [O], or a batch as vector environments give it as [n, O]."""
    flatten = flattener(space)
    if flatten is None:
        return np.asarray(observation, np.float32)
    leaf_space, leaf = space, observation
    while isinstance(leaf_space, (spaces.Dict, spaces.Tuple)):
        key: Any = next(iter(leaf_space.spaces)) if isinstance(leaf_space, spaces.Dict) else 0
        leaf_space, leaf = leaf_space[key], leaf[key]
    if np.ndim(leaf) == len(leaf_space.shape or ()):
        return flatten(observation)
    parts = gym.vector.utils.iterate(gym.vector.utils.batch_space(space, len(leaf)), observation)
    return np.stack([flatten(part) for part in parts])


def make(
    source: EnvSource, *, horizon: int | None = None, render_mode: str | None = None, picture_size: int = 240
) -> gym.Env:
    """Make an environment from its name (see `oal.envs.sources`) or by a function; an unknown name is an InputError.

    With a render mode, MuJoCo's pictures are `picture_size` pixels wide and high (drawn by the processor, size costs).
    """
    if horizon is not None and whole("horizon", horizon, 1) > MAX_HORIZON:
        raise InputError(f"horizon is {shortened(horizon)}: episodes have at most {MAX_HORIZON:,} steps")
    made_by = resolved(source) if isinstance(source, str) else source
    try:
        if not isinstance(made_by, str):
            env = call(made_by, render_mode=render_mode)
        else:
            extra: dict[str, Any] = {} if horizon is None else {"max_episode_steps": horizon}
            if render_mode is not None:  # an environment that cannot be drawn need not accept the argument
                extra["render_mode"] = render_mode
            if _is_mujoco(made_by):
                _warn_through_python()
                if render_mode is not None:
                    extra |= {"width": picture_size, "height": picture_size}
            env = gym.make(made_by, disable_env_checker=True, **extra)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"environment {source}: {error}") from None
    except gym.error.Error as error:
        raise InputError(f"environment '{source}' cannot be made: {error}") from None
    if not isinstance(env, gym.Env):
        raise InputError(f"{source} made a {type(env).__name__}: a gymnasium.Env is needed")
    if not isinstance(made_by, str) and horizon is not None:
        env = gym.wrappers.TimeLimit(env, horizon)
    return env


def _is_mujoco(env_id: str) -> bool:
    registered = gym.registry.get(env_id)
    return registered is not None and str(registered.entry_point).startswith("gymnasium.envs.mujoco")


def _warn_through_python() -> None:
    """Send MuJoCo's warnings to Python's: by default it writes a log file into the working folder.

    Deprecated attributes in model files are Gymnasium's to mend, so users are not shown them.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(
        lambda message: None if "deprecated" in message else warnings.warn(f"MuJoCo: {message}", stacklevel=2)
    )


class ActionShape(Protocol):
    """The kind and number of actions, as `EnvSpec` and the learners' own shapes say it."""

    @property
    def kind(self) -> str: ...
    @property
    def action_size(self) -> int: ...


def uniform_actions(spec: ActionShape, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` encoded actions uniformly: in the box [-1, 1]^A, or one of the discrete ones."""
    if spec.kind == "continuous":
        return rng.uniform(-1.0, 1.0, (count, spec.action_size)).astype(np.float32)
    return np.eye(spec.action_size, dtype=np.float32)[rng.integers(0, spec.action_size, size=count)]
