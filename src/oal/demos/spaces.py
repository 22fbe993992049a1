"""Gymnasium spaces: as JSON, as flat vectors, and as what demonstrations are checked against."""

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.demos.trajectories import Demos, Trajectory
from oal.errors import InputError, shortened

if TYPE_CHECKING:
    import gymnasium

    Space = gymnasium.Space[Any]

MAX_SPACE_SIZE = 1 << 20
MAX_NESTING = 16
ROUNDING = 1e-6
"""Actions this near to a bound (relative to it) are put on it without being counted as outside."""


def space_to_json(space: "Space") -> dict[str, Any]:
    """Return a space of plain arrays as JSON values, much as Minari does; bounds that are all alike are one number."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        bounds = {"low": _bound_to_json(space.low), "high": _bound_to_json(space.high)}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    raise InputError(f"the space {space} cannot be saved: flatten it first (gymnasium.spaces.flatten_space)")


def _bound_to_json(bound: np.ndarray) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return value if math.isfinite(value) else str(value)

    first = bound.flat[0] if bound.size else bound.dtype.type(0)
    return plain(first.item()) if bool((bound == first).all()) else plain(bound.tolist())


def space_from_json(where: str, value: Any) -> "Space":
    """Build the space that `space_to_json` or Minari wrote; `where` names file and field."""
    return _space(where, value, nesting=0, room=[MAX_SPACE_SIZE])


def _space(where: str, value: Any, *, nesting: int, room: list[int]) -> "Space":
    """Build a space; the numbers it takes to hold it, and those inside it, are taken from `room`."""
    from gymnasium import spaces

    if nesting > MAX_NESTING:
        raise InputError(f"{where} has spaces nested more than {MAX_NESTING} deep")
    try:
        kind = value["type"]
        if kind in ("Dict", "Tuple"):
            inner = value["subspaces"]
            room[0] -= len(inner)
            pairs: list[tuple[Any, Any]] = list(inner.items() if kind == "Dict" else enumerate(inner))
            built = [(key, _space(f"{where}: {key}", part, nesting=nesting + 1, room=room)) for key, part in pairs]
            return spaces.Dict(dict(built)) if kind == "Dict" else spaces.Tuple([part for _, part in built])
        if kind in ("Box", "MultiDiscrete", "MultiBinary"):
            room[0] -= _size(kind, value)
        if room[0] < 0:
            raise InputError(f"{where} is larger than {MAX_SPACE_SIZE} numbers in all")
        if kind == "Box":
            return _box(value)
        if kind == "Discrete" and _is_int(value["n"]) and _is_int(value["start"]):
            return spaces.Discrete(value["n"], start=value["start"])
        if kind == "MultiDiscrete":
            nvec, start = (np.array(value[name], np.int64) for name in ("nvec", "start"))
            return spaces.MultiDiscrete(nvec, start=start)
        if kind == "MultiBinary":
            n = value["n"]
            return spaces.MultiBinary(_shape(n) if isinstance(n, list) else _shape([n])[0])
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError, RecursionError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{where} is {shortened(value)}, which is no space ({type(error).__name__}: {error})"
        ) from None
    raise InputError(
        f"{where} is {shortened(value)}: spaces are Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _size(kind: str, value: Any) -> int:
    if kind == "MultiDiscrete":
        return np.size(value["nvec"])
    shape = value["shape" if kind == "Box" else "n"]
    return math.prod(_shape(shape if isinstance(shape, list) else [shape]))


def _box(value: Any) -> "Space":
    from gymnasium import spaces

    dtype, shape = np.dtype(value["dtype"]), _shape(value["shape"])
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"dtype {dtype}")
    exact = np.float64 if dtype.kind == "f" else dtype
    low, high = (np.broadcast_to(np.array(value[end], exact), shape).astype(dtype) for end in ("low", "high"))
    if np.isnan(low).any() or np.isnan(high).any():
        raise ValueError("a bound is NaN")
    return spaces.Box(low, high, shape, dtype.type)


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(value)
    if len(shape) > MAX_NESTING or not all(_is_int(length) and 0 <= length <= MAX_SPACE_SIZE for length in shape):
        raise ValueError(f"shape {shortened(value)}")
    return shape


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Flat vectors


def is_composite(space: "Space") -> bool:
    """Whether values of the space are not single arrays."""
    from gymnasium import spaces

    return isinstance(space, (spaces.Dict, spaces.Tuple))


def flatten(where: str, space: "Space", values: Any) -> np.ndarray:
    """Return a batch of values of `space` as flat vectors [n, flatdim], each what `gymnasium.spaces.flatten` gives.

    `values` is an array [n, ...] for a simple space, and a dictionary or list of such for a Dict or Tuple space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [flatten(f"{where}/{key}", inner, _part(where, values, key)) for key, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [flatten(f"{where}/{i}", inner, _part(where, values, i)) for i, inner in enumerate(space.spaces)]
    else:
        return _flatten_array(where, space, np.asarray(values))
    if len({len(part) for part in parts}) > 1:
        raise InputError(f"{where}: its parts have {', '.join(str(len(part)) for part in parts)} rows")
    dtype = spaces.flatten_space(space).dtype
    return np.concatenate(parts, axis=1, dtype=dtype, casting="unsafe")


def _part(where: str, values: Any, key: Any) -> Any:
    try:
        return values[key]
    except (KeyError, IndexError, TypeError):
        raise InputError(f"{where}: its part '{key}' is missing") from None


def _flatten_array(where: str, space: "Space", array: np.ndarray) -> np.ndarray:
    from gymnasium import spaces

    if space.shape is None or array.shape[1:] != space.shape or array.ndim == 0:
        raise InputError(f"{where} has shape {array.shape}: the space {space} wants one row of {space.shape} per step")
    rows = array.reshape(len(array), -1)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return rows
    if isinstance(space, spaces.Discrete):
        return _one_hot(where, rows[:, 0], int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        starts, counts = space.start.ravel(), space.nvec.ravel()
        parts = [_one_hot(where, rows[:, i], int(starts[i]), int(n)) for i, n in enumerate(counts)]
        return np.concatenate(parts, axis=1)
    raise InputError(f"{where}: values of {space} cannot be made flat vectors")


def _one_hot(where: str, values: np.ndarray, start: int, count: int) -> np.ndarray:
    if values.dtype.kind not in "iu" or (len(values) and not start <= values.min() <= values.max() < start + count):
        raise InputError(f"{where} must be whole numbers from {start} to {start + count - 1}")
    flat = np.zeros((len(values), count), np.int64)
    flat[np.arange(len(values)), values.astype(np.int64) - start] = 1
    return flat


# Checking


def of_environment(env: "str | gymnasium.Env") -> "tuple[str | None, Space, Space]":
    """Return the id and the spaces of an environment, or of the one with that id."""
    if isinstance(env, str):
        from oal import envs

        made = envs.make(env)
        try:
            return env, made.observation_space, made.action_space
        finally:
            made.close()
    return (env.spec.id if env.spec is not None else None), env.observation_space, env.action_space


def check(
    demos: Demos, *, env_id: str | None, observation_space: "Space", action_space: "Space", strict: bool
) -> Demos:
    """Return the demonstrations as the environment would show them to a learner, or say why they cannot be its own."""
    named = env_id or "the environment"
    demos = _observations(demos, named, observation_space, strict)
    demos = _actions(demos, named, action_space, strict)
    return replace(demos, env_id=env_id or demos.env_id)


def _observations(demos: Demos, named: str, space: "Space", strict: bool) -> Demos:
    """Match observations to the space; those of other than vector spaces become flat vectors, as in `oal.envs`."""
    from gymnasium import spaces

    shape = demos[0].observations.shape[1:]
    if not space.is_np_flattenable:
        raise InputError(f"{named}: observations of {space} have no fixed size and cannot be flattened")
    flat = spaces.flatten_space(space)
    if shape != flat.shape:
        if is_composite(space) or shape != space.shape:
            wanted = " or ".join({str(s): None for s in (space.shape, flat.shape) if s is not None})
            raise InputError(
                f"observations have shape {shape} each, {named} has {wanted}: "
                "are these demonstrations of another environment?"
            )
        trajectories = [
            replace(t, observations=flatten(f"episode {i}: observations", space, t.observations).astype(np.float32))
            for i, t in enumerate(demos)
        ]
        demos = replace(demos, trajectories=tuple(trajectories), observation_space=None)
    if isinstance(flat, spaces.Box):
        _warn_outside(demos, named, flat, strict)
    return replace(demos, observation_space=flat)


def _warn_outside(demos: Demos, named: str, space: "gymnasium.spaces.Box", strict: bool) -> None:
    message = _outside("observation", demos, named, space)
    if message:
        if strict:
            raise InputError(message)
        warnings.warn(message, stacklevel=5)


def _actions(demos: Demos, named: str, space: "Space", strict: bool) -> Demos:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        trajectories = [_discrete(f"episode {i}", named, t, space) for i, t in enumerate(demos)]
        return replace(demos, trajectories=tuple(trajectories), action_space=space)
    shape = demos[0].actions.shape[1:]
    if shape != space.shape:
        raise InputError(
            f"actions have shape {shape} each, {named} takes {space.shape}: "
            "are these demonstrations of another environment?"
        )
    if isinstance(space, spaces.Box):
        message = _outside("action", demos, named, space)
        if message:
            if strict:
                raise InputError(message + ": leave out `strict` to have them clipped")
            warnings.warn(message + "; they were clipped", stacklevel=5)
        clipped = (replace(t, actions=np.clip(t.actions, space.low, space.high).astype(t.actions.dtype)) for t in demos)
        return replace(demos, trajectories=tuple(clipped), action_space=space)
    for i, trajectory in enumerate(demos):
        if not all(space.contains(action) for action in trajectory.actions):
            raise InputError(f"{named}: episode {i} has an action that is not in {space}")
    return replace(demos, action_space=space)


def _discrete(where: str, named: str, trajectory: Trajectory, space: "gymnasium.spaces.Discrete") -> Trajectory:
    actions = trajectory.actions
    if actions.shape[1:] == (1,):
        actions = actions[:, 0]
    if actions.ndim != 1 or (actions.dtype.kind == "f" and (actions % 1 != 0).any()):
        raise InputError(
            f"{where} has actions {actions.shape} of {actions.dtype}: {named} takes one whole number a step"
        )
    actions = actions.astype(np.int64)
    wrong = np.flatnonzero((actions < space.start) | (actions >= space.start + space.n))
    if len(wrong):
        last = space.start + space.n - 1
        raise InputError(f"{where}, step {wrong[0]}: action {actions[wrong[0]]} is not one of {space.start} to {last}")
    return replace(trajectory, actions=actions)


def _outside(name: str, demos: Demos, named: str, space: "gymnasium.spaces.Box") -> str:
    """Count the values beyond the bounds and describe the first; return nothing when all are inside."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    margin_low, margin_high = (ROUNDING * np.maximum(1, np.abs(bound)) for bound in (low, high))
    count = total = 0
    first = ""
    for episode, trajectory in enumerate(demos):
        values = getattr(trajectory, f"{name}s")
        beyond = (values < low - margin_low) | (values > high + margin_high)
        total += beyond.size
        count += int(beyond.sum())
        if not first and beyond.any():
            step, *rest = map(int, np.unravel_index(np.argmax(beyond), beyond.shape))
            place = tuple(rest)
            bounds = f"[{low[place]:g}, {high[place]:g}]"
            first = f"first {values[(step, *place)]:g} in episode {episode}, step {step}, where {bounds} is allowed"
    return f"{named}: {count} of {total} {name} values lie outside its bounds, {first}" if count else ""
