"""What a file says about its demonstrations beside the arrays: one JSON text, the same in every format."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.demos.trajectories import Demos
from oal.errors import InputError

if TYPE_CHECKING:
    import gymnasium

VERSION = 1
MAX_TEXT = 16 << 20
MAX_SPACE_SIZE = 1 << 24


@dataclass(frozen=True)
class About:
    """The parsed text. Columns hold one entry per episode, or are None when the file does not say."""

    env_id: str | None = None
    observation_space: "gymnasium.Space[Any] | None" = None
    action_space: "gymnasium.Space[Any] | None" = None
    source: str | None = None
    metadata: Mapping[str, Any] | None = None
    endings_known: bool = True
    terminated: Sequence[bool] | None = None
    truncated: Sequence[bool] | None = None
    seeds: Sequence[int | None] | None = None
    initial_states: Sequence[Mapping[str, Sequence[float]] | None] | None = None
    strides: Sequence[int] | None = None

    def of_episode(self, episode: int) -> dict[str, Any]:
        """Return what is known of one episode, as arguments of `Trajectory`."""
        columns = {
            "terminated": self.terminated,
            "truncated": self.truncated,
            "seed": self.seeds,
            "initial_state": self.initial_states,
            "stride": self.strides,
        }
        return {name: column[episode] for name, column in columns.items() if column is not None}

    def of_demos(self) -> dict[str, Any]:
        """Return what is known of the set, as arguments of `Demos`."""
        return {
            "env_id": self.env_id,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "source": self.source,
            "metadata": self.metadata or {},
        }


def write(demos: Demos, *, endings: bool) -> str:
    """Return the text about `demos`; with `endings`, also how each episode ended (for formats without room for it)."""
    about: dict[str, Any] = {"oal_demos": VERSION, "env_id": demos.env_id, "source": demos.source}
    for name in ("observation_space", "action_space"):
        space = getattr(demos, name)
        about[name] = None if space is None else space_to_json(space)
    about["metadata"] = demos.metadata
    about["endings_known"] = demos.endings_known
    if endings:
        about["terminated"] = [t.terminated for t in demos]
        about["truncated"] = [t.truncated for t in demos]
    if any(t.seed is not None for t in demos):
        about["seeds"] = [t.seed for t in demos]
    if any(t.initial_state is not None for t in demos):
        about["initial_states"] = [t.initial_state for t in demos]
    if any(t.stride > 1 for t in demos):
        about["strides"] = [t.stride for t in demos]
    return json.dumps(about, allow_nan=False)


def parse(where: str, text: str) -> Any:
    """Return the JSON value in `text`; `where` names file and field."""
    if len(text) > MAX_TEXT:
        raise InputError(f"{where} is {len(text)} characters long: at most {MAX_TEXT} are read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error})") from None


def read(where: str, text: str, *, episodes: int | None = None) -> About:
    """Parse and check the text; with `episodes`, its columns must have that many entries."""
    value = parse(where, text)
    if not isinstance(value, dict) or not _is_int(value.get("oal_demos")):
        raise InputError(f"{where} does not say 'oal_demos' with a format version")
    if value["oal_demos"] > VERSION:
        raise InputError(
            f"{where} has format version {value['oal_demos']}, newer than {VERSION}: update oal to read it"
        )
    if value["oal_demos"] < 1:
        raise InputError(f"{where} has format version {value['oal_demos']}: versions start at 1")
    for name in ("env_id", "source"):
        if not isinstance(value.get(name), (str, type(None))):
            raise InputError(f"{where}: {name} is {_short(value[name])}: it must be text")
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InputError(f"{where}: metadata is {_short(metadata)}: it must be a dictionary")
    spaces = {
        name: None if value.get(name) is None else space_from_json(f"{where}: {name}", value[name])
        for name in ("observation_space", "action_space")
    }
    checks = {
        "terminated": (_is_bool, "true or false"),
        "truncated": (_is_bool, "true or false"),
        "seeds": (lambda seed: seed is None or _is_int(seed), "a whole number or null"),
        "initial_states": (lambda state: state is None or _is_named_vectors(state), "named lists of numbers, or null"),
        "strides": (_is_int, "a whole number"),
    }
    columns: dict[str, Any] = {}
    for name, (is_right, wanted) in checks.items():
        column = value.get(name)
        if column is None:
            continue
        if not isinstance(column, list) or (episodes is not None and len(column) != episodes):
            raise InputError(f"{where}: {name} is {_short(column)}: it must be a list with one entry per episode")
        for episode, entry in enumerate(column):
            if not is_right(entry):
                raise InputError(f"{where}: {name} of episode {episode} is {_short(entry)}: it must be {wanted}")
        columns[name] = column
    endings_known = value.get("endings_known", True)
    if not _is_bool(endings_known):
        raise InputError(f"{where}: endings_known is {_short(endings_known)}: it must be true or false")
    return About(
        value.get("env_id"),
        **spaces,
        source=value.get("source"),
        metadata=metadata,
        endings_known=endings_known,
        **columns,
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_named_vectors(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(vector, list) and all(map(_is_number, vector)) for vector in value.values())


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1 << 63 if isinstance(value, int) else math.isfinite(value)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def space_to_json(space: "gymnasium.Space[Any]") -> dict[str, Any]:
    """Return a Gymnasium space of plain arrays as JSON values; bounds that are all alike are one number."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    raise InputError(f"the space {space} cannot be saved: flatten it first (gymnasium.spaces.flatten_space)")


def _bound_to_json(bound: np.ndarray) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return value if math.isfinite(value) else str(value)

    first = bound.flat[0] if bound.size else bound.dtype.type(0)
    return plain(first.item()) if bool((bound == first).all()) else plain(bound.tolist())


def space_from_json(where: str, value: Any) -> "gymnasium.Space[Any]":
    """Build the space that `space_to_json` wrote."""
    from gymnasium import spaces

    try:
        kind = value["type"]
        if kind == "Box":
            dtype, shape = np.dtype(value["dtype"]), _shape(value["shape"])
            if dtype.kind not in "biuf":
                raise ValueError(f"dtype {dtype}")
            low, high = (np.broadcast_to(np.array(value[end], np.float64), shape) for end in ("low", "high"))
            if dtype.kind != "f":
                low, high = (np.broadcast_to(np.array(value[end], dtype), shape) for end in ("low", "high"))
            return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
        if kind == "Discrete" and _is_int(value["n"]) and _is_int(value["start"]):
            return spaces.Discrete(value["n"], start=value["start"])
        if kind == "MultiDiscrete":
            nvec, start = (np.array(value[name], np.int64) for name in ("nvec", "start"))
            return spaces.MultiDiscrete(nvec, start=start)
        if kind == "MultiBinary":
            return spaces.MultiBinary(_shape(value["shape"]))
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError, RecursionError, IndexError) as error:
        raise InputError(f"{where} is {_short(value)}, which is no space ({type(error).__name__}: {error})") from None
    raise InputError(f"{where} is {_short(value)}: its type must be Box, Discrete, MultiDiscrete or MultiBinary")


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(value)
    if not all(_is_int(length) and length >= 0 for length in shape) or math.prod(shape) > MAX_SPACE_SIZE:
        raise ValueError(f"shape {_short(value)}")
    return shape
