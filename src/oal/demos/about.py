"""What a file says about its demonstrations besides the arrays: one JSON text, the same in every format."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from oal.base import jsontext
from oal.base.limits import MAX_TEXT
from oal.base.spaces import space_from_json, space_to_json
from oal.errors import InputError, is_whole, shortened

if TYPE_CHECKING:
    from oal.demos.trajectories import Demos

VERSION = 1
SPACES = ("observation_space", "action_space")


@dataclass(frozen=True)
class About:
    """The parsed text; what it does not say is left out."""

    where: str = "about"
    """The file and field that it was read from, for messages."""
    of_demos: Mapping[str, Any] = field(default_factory=dict)
    """What it says of the set, as arguments of `Demos`."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """One entry per episode each, by the names in `COLUMNS`."""
    endings_known: bool = True
    has_rewards: bool | None = None

    def check_columns(self, episodes: int) -> None:
        """Refuse columns that do not have one entry per episode."""
        for name, column in self.columns.items():
            if len(column) != episodes:
                raise InputError(f"{self.where}: {name} has {len(column)} entries: the file has {episodes} episodes")

    def check_rewards(self, where: str, found: bool) -> None:
        """Refuse rewards that got lost."""
        if self.has_rewards and not found:
            raise InputError(f"{where} is missing, though the file was written with rewards")

    def final_is_known(self, episode: int) -> bool:
        """Whether the final observation in the file was recorded, not filled in because other episodes have one."""
        return "has_final" not in self.columns or self.columns["has_final"][episode]

    def of_episode(self, episode: int) -> dict[str, Any]:
        """Return what is known of one episode, as arguments of `Trajectory`."""
        known = {COLUMNS[name].attribute: column[episode] for name, column in self.columns.items()}
        known.pop("has_final", None)
        return known


def write(demos: "Demos", *, endings: bool) -> str:
    """Return the text about `demos`; with `endings`, also how each episode ended (for formats without room for it)."""
    about: dict[str, Any] = {"oal_demos": VERSION, "env_id": demos.env_id, "source": demos.source}
    for name in SPACES:
        space = getattr(demos, name)
        about[name] = None if space is None else space_to_json(space)
    about["metadata"] = demos.metadata
    about["endings_known"] = demos.endings_known
    columns = {name: [getattr(t, column.attribute) for t in demos] for name, column in COLUMNS.items()}
    says_something = {
        "terminated": endings,
        "truncated": endings,
        "seeds": any(seed is not None for seed in columns["seeds"]),
        "initial_states": any(state is not None for state in columns["initial_states"]),
        "strides": max(columns["strides"]) > 1,
        "has_final": len(set(columns["has_final"])) == 2,
    }
    about |= {name: column for name, column in columns.items() if says_something[name]}
    about["has_rewards"] = demos.rewards is not None
    text = json.dumps(about, allow_nan=False)
    if len(text) > MAX_TEXT:
        raise InputError(
            f"metadata, seeds and initial states take {len(text)} characters of JSON: at most {MAX_TEXT} can be saved"
        )
    return text


def read(where: str, text: str | bytes) -> About:
    """Parse and check the text."""
    value = jsontext.parse(where, text)
    if not isinstance(value, dict) or not is_whole(value.get("oal_demos")):
        raise InputError(f"{where} does not say 'oal_demos' with a format version")
    if value["oal_demos"] > VERSION:
        raise InputError(
            f"{where} has format version {value['oal_demos']}, newer than {VERSION}: update oal to read it"
        )
    if value["oal_demos"] < 1:
        raise InputError(f"{where} has format version {value['oal_demos']}: versions start at 1")
    for name in ("env_id", "source"):
        jsontext.expect(value.get(name), f"{where}: {name}", str, or_none=True)
    metadata = jsontext.expect(value.get("metadata") or {}, f"{where}: metadata", dict)
    spaces = {name: space_from_json(f"{where}: {name}", value[name]) for name in SPACES if value.get(name) is not None}
    columns = {name: value[name] for name in COLUMNS if value.get(name) is not None}
    for name, column in columns.items():
        if not isinstance(column, list):
            raise InputError(f"{where}: {name} is {shortened(column)}: it must be a list with one entry per episode")
        for episode, entry in enumerate(column):
            if not COLUMNS[name].fits(entry):
                wanted = COLUMNS[name].wanted
                raise InputError(f"{where}: {name} of episode {episode} is {shortened(entry)}: it must be {wanted}")
    switches = {name: value.get(name, True) for name in ("endings_known", "has_rewards")}
    for name, switch in switches.items():
        jsontext.expect(switch, f"{where}: {name}", bool)
    of_demos = {"env_id": value.get("env_id"), "source": value.get("source"), "metadata": metadata, **spaces}
    return About(where, of_demos, columns, **switches)


def read_optional(container: Any) -> About:
    """Read the text in the member `about` of an archive or an HDF5 file, if there is one."""
    if "about" not in container:
        return About()
    return read(f"{container.name}: about", container.read_text("about"))


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


class Column(NamedTuple):
    """An attribute of trajectories: what an entry must be, as a check and in words."""

    attribute: str
    fits: Callable[[Any], bool]
    wanted: str


COLUMNS = {
    "terminated": Column("terminated", _is_bool, "true or false"),
    "truncated": Column("truncated", _is_bool, "true or false"),
    "seeds": Column("seed", lambda seed: seed is None or is_whole(seed), "a whole number or null"),
    "initial_states": Column(
        "initial_state", lambda state: state is None or _is_named_vectors(state), "named lists of numbers, or null"
    ),
    "strides": Column("stride", is_whole, "a whole number"),
    "has_final": Column("has_final", _is_bool, "true or false"),
}
