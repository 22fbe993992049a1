"""What a file says about its demonstrations beside the arrays: one JSON text, the same in every format."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oal.base.limits import MAX_TEXT
from oal.demos.spaces import space_from_json, space_to_json
from oal.errors import InputError, is_whole, shortened

if TYPE_CHECKING:
    import gymnasium

    from oal.demos.trajectories import Demos

VERSION = 1


@dataclass(frozen=True)
class About:
    """The parsed text. Columns hold one entry per episode, or are None when the file does not say."""

    where: str = "about"
    """The file and field that it was read from, for messages."""
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
    has_final: Sequence[bool] | None = None
    has_rewards: bool | None = None

    def check_columns(self, episodes: int) -> None:
        """Refuse columns that do not have one entry per episode."""
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != episodes:
                raise InputError(f"{self.where}: {name} has {len(column)} entries: the file has {episodes} episodes")

    def check_rewards(self, where: str, found: bool) -> None:
        """Refuse rewards that got lost."""
        if self.has_rewards and not found:
            raise InputError(f"{where} is missing, though the file was written with rewards")

    def final_is_known(self, episode: int) -> bool:
        """Whether the final observation in the file is a real one, not filled in beside others."""
        return self.has_final is None or self.has_final[episode]

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


def write(demos: "Demos", *, endings: bool) -> str:
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
    if len({t.has_final for t in demos}) == 2:
        about["has_final"] = [t.has_final for t in demos]
    about["has_rewards"] = demos.rewards is not None
    text = json.dumps(about, allow_nan=False)
    if len(text) > MAX_TEXT:
        raise InputError(
            f"metadata, seeds and initial states take {len(text)} characters of JSON: at most {MAX_TEXT} can be saved"
        )
    return text


def parse(where: str, text: str | bytes) -> Any:
    """Return the JSON value in `text`; `where` names file and field."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{where} is not valid text ({error})") from None
    if len(text) > MAX_TEXT:
        raise InputError(f"{where} is {len(text)} characters long: at most {MAX_TEXT} are read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error})") from None


def read(where: str, text: str | bytes) -> About:
    """Parse and check the text."""
    value = parse(where, text)
    if not isinstance(value, dict) or not is_whole(value.get("oal_demos")):
        raise InputError(f"{where} does not say 'oal_demos' with a format version")
    if value["oal_demos"] > VERSION:
        raise InputError(
            f"{where} has format version {value['oal_demos']}, newer than {VERSION}: update oal to read it"
        )
    if value["oal_demos"] < 1:
        raise InputError(f"{where} has format version {value['oal_demos']}: versions start at 1")
    for name in ("env_id", "source"):
        if not isinstance(value.get(name), (str, type(None))):
            raise InputError(f"{where}: {name} is {shortened(value[name])}: it must be text")
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InputError(f"{where}: metadata is {shortened(metadata)}: it must be a dictionary")
    spaces = {
        name: None if value.get(name) is None else space_from_json(f"{where}: {name}", value[name])
        for name in ("observation_space", "action_space")
    }
    columns: dict[str, Any] = {}
    for name, (is_right, wanted) in _COLUMNS.items():
        column = value.get(name)
        if column is None:
            continue
        if not isinstance(column, list):
            raise InputError(f"{where}: {name} is {shortened(column)}: it must be a list with one entry per episode")
        for episode, entry in enumerate(column):
            if not is_right(entry):
                raise InputError(f"{where}: {name} of episode {episode} is {shortened(entry)}: it must be {wanted}")
        columns[name] = column
    switches = {name: value.get(name, True) for name in ("endings_known", "has_rewards")}
    for name, switch in switches.items():
        if not _is_bool(switch):
            raise InputError(f"{where}: {name} is {shortened(switch)}: it must be true or false")
    return About(
        where, value.get("env_id"), **spaces, source=value.get("source"), metadata=metadata, **switches, **columns
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_named_vectors(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(vector, list) and all(map(_is_number, vector)) for vector in value.values())


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1 << 63 if isinstance(value, int) else math.isfinite(value)


_COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "terminated": (_is_bool, "true or false"),
    "truncated": (_is_bool, "true or false"),
    "seeds": (lambda seed: seed is None or is_whole(seed), "a whole number or null"),
    "initial_states": (lambda state: state is None or _is_named_vectors(state), "named lists of numbers, or null"),
    "strides": (is_whole, "a whole number"),
    "has_final": (_is_bool, "true or false"),
}
