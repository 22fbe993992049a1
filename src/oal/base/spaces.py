"""Gymnasium spaces as JSON, and their values as flat vectors."""

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.base.jsontext import expect
from oal.errors import InputError, is_whole, shortened

if TYPE_CHECKING:
    import gymnasium

    Space = gymnasium.Space[Any]

MAX_SPACE_SIZE = 1 << 20
MAX_NESTING = 16


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
    if isinstance(space, spaces.Dict):
        # JSON keeps the order, which is that of the flat vector; Gymnasium's own is by name
        return {
            "type": "Dict",
            "ordered": True,
            "subspaces": {str(key): space_to_json(part) for key, part in space.spaces.items()},
        }
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [space_to_json(part) for part in space.spaces]}
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
            inner: Any = expect(value["subspaces"], f"{where}: subspaces", dict if kind == "Dict" else list)
            room[0] -= len(inner)
            pairs: list[tuple[Any, Any]] = list(inner.items() if kind == "Dict" else enumerate(inner))
            built = [(key, _space(f"{where}: {key}", part, nesting=nesting + 1, room=room)) for key, part in pairs]
            # in the order that is written: a plain dictionary would be sorted, and rows are in the space's order
            return spaces.Dict(OrderedDict(built)) if kind == "Dict" else spaces.Tuple([part for _, part in built])
        if kind in ("Box", "MultiDiscrete", "MultiBinary"):
            room[0] -= _size(kind, value)
        if room[0] < 0:
            raise InputError(f"{where} is larger than {MAX_SPACE_SIZE} numbers in all")
        if kind == "Box":
            return _box(value)
        if kind == "Discrete" and is_whole(value["n"]) and is_whole(value["start"]):
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
    if len(shape) > MAX_NESTING or not all(is_whole(length) and 0 <= length <= MAX_SPACE_SIZE for length in shape):
        raise ValueError(f"shape {shortened(value)}")
    return shape


# Flat vectors

SMALLEST_PICTURE = 1 << 10


def refuse_pictures(named: str, space: "Space") -> None:
    """Say at once that images cannot be learned from."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            refuse_pictures(f"{named}: part '{key}'", part)
    elif isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        looks = len(space.shape) in (2, 3) and size >= SMALLEST_PICTURE
        if looks and (space.dtype == np.uint8 or len(space.shape) == 3):
            raise InputError(
                f"{named}: observations are images (shape {space.shape}, {space.dtype}), which are not supported: give "
                "vectors, as with a gymnasium.ObservationWrapper that returns features of them"
            )


def leaves(space: "Space", name: str = "") -> "list[tuple[str, Space]]":
    """List the simple spaces in a Dict or Tuple space in the order of the flat vector, named by their keys."""
    if not is_composite(space):
        return [(name, space)]
    inner: Any = space
    parts = inner.spaces.items() if hasattr(inner.spaces, "items") else enumerate(inner.spaces)
    return [leaf for key, part in parts for leaf in leaves(part, f"{name}/{key}" if name else str(key))]


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
    rows = array.reshape(len(array), math.prod(space.shape))  # not -1, which no array without rows has
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
