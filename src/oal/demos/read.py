"""Find out which format demonstrations are in, and read them; `oal.demos.write` writes them.

The `.npz` formats, all read through `oal.base.npz`, which opens no pickle:

oal          observations, actions, rewards, lengths, has_final, terminated, truncated, about (JSON text)
sb           Stable-Baselines ExpertDataset: obs, actions, rewards, episode_starts, episode_returns; here with
             terminated, truncated, final_obs and about beside them, which other readers ignore
imitation    the imitation library: obs (T + 1 per episode), acts, rews, terminal, indices; here with about
arrays       anybody's: observations and actions (also obs, states, acts), rewards; and one of lengths (of episodes),
             terminated and truncated (one flag a step). Read only

`hf` is read in `oal.demos.arrow`, `hdf5` and `minari` in `oal.demos.hdf5`.
"""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from oal.base import npz
from oal.base.limits import DEFAULT_BUDGET, Budget, check_episodes, damage
from oal.base.opening import MissingFileError, opened
from oal.demos import about as about_text
from oal.demos import arrow, hdf5, places
from oal.demos.assembly import build, by_episode, column, episode_column, flags, only_at_end, split
from oal.demos.places import MINARI, shipped
from oal.demos.trajectories import Demos
from oal.errors import InputError

if TYPE_CHECKING:
    import gymnasium

    from oal.envs.spec import EnvSource

RETURN_TOLERANCE = 1e-3
"""How far `episode_returns` of a Stable-Baselines file may be from the sum of rewards, relative to their sizes."""


# oal's own


def read_oal(archive: npz.Archive) -> Demos:
    """Read oal's own format."""
    name = archive.name
    about = about_text.read(f"{name}: about", archive.read_text("about"))
    lengths = episode_column(f"{name}: lengths", archive.read("lengths"))
    for episode, length in enumerate(lengths):
        if length < 1:
            raise InputError(f"{name}: lengths: episode {episode} has length {length}: it must be 1 or more")
    known, terminated, truncated = (
        column(f"{name}: {key}", archive.read(key), "b", len(lengths))
        for key in ("has_final", "terminated", "truncated")
    )
    with_final = [length + final for length, final in zip(lengths, known, strict=True)]
    pieces = {
        "observations": split(f"{name}: observations", archive.read("observations"), with_final),
        "actions": split(f"{name}: actions", archive.read("actions"), lengths),
        "terminated": terminated,
        "truncated": truncated,
    }
    if about.has_rewards:
        pieces["rewards"] = split(f"{name}: rewards", archive.read("rewards"), lengths)
    return build(name, by_episode(pieces), about)


# Stable-Baselines


def read_sb(archive: npz.Archive) -> Demos:
    """Read an `ExpertDataset`; how episodes ended is known only if the file has `terminated` and `truncated`."""
    name = archive.name
    arrays = {"observations": _scalars(archive.read("obs")), "actions": _scalars(archive.read("actions"))}
    if "rewards" in archive:
        rewards = archive.read("rewards")
        arrays["rewards"] = rewards[:, 0] if rewards.shape[1:] == (1,) else rewards
    steps = len(arrays["actions"]) if arrays["actions"].ndim else 0
    starts = flags(f"{name}: episode_starts", archive.read("episode_starts"), steps)
    if not steps or not starts[0]:
        raise InputError(f"{name}: episode_starts must begin with a start: the first step belongs to no episode")
    check_episodes(f"{name}: episode_starts", int(starts.sum()))
    lengths = np.diff(np.flatnonzero(starts), append=steps).tolist()
    for key in ("terminated", "truncated"):
        if key in archive:
            arrays[key] = flags(f"{name}: {key}", archive.read(key), steps)
    about = about_text.read_optional(archive)
    about.check_columns(len(lengths))
    about.check_rewards(f"{name}: rewards", "rewards" in arrays)
    finals = archive.read("final_obs") if "final_obs" in archive else None
    if finals is not None and (finals.ndim == 0 or len(finals) != len(lengths)):
        raise InputError(f"{name}: final_obs has shape {finals.shape}: episode_starts has {len(lengths)} episodes")
    pieces = {key: split(f"{name}: {key}", array, lengths) for key, array in arrays.items()}
    known = "terminated" in pieces and "truncated" in pieces
    episodes = by_episode(pieces)
    for i, arguments in enumerate(episodes):
        for key in ("terminated", "truncated"):
            at_end = only_at_end(f"{name}: episode {i}", key, arguments[key]) if known else key == "truncated"
            arguments[key] = at_end
        if finals is not None and about.final_is_known(i):
            arguments["observations"] = _append(f"{name}: final_obs", arguments["observations"], finals[i])
    demos = build(name, episodes, about, endings_known=known)
    if demos.returns is not None and "episode_returns" in archive:
        _check_returns(name, demos, archive.read("episode_returns"))
    return demos


def _scalars(array: np.ndarray) -> np.ndarray:
    """Drop the last axis of whole numbers kept as [n, 1], as Stable-Baselines keeps Discrete spaces' values."""
    return array[:, 0] if array.dtype.kind in "iu" and array.shape[1:] == (1,) else array


def _append(where: str, observations: np.ndarray, final: np.ndarray) -> np.ndarray:
    if final.shape != observations.shape[1:] or final.dtype != observations.dtype:
        wanted = f"{observations.shape[1:]} of {observations.dtype}, as in obs"
        raise InputError(f"{where} has rows of shape {final.shape} of {final.dtype}: they must be {wanted}")
    return np.concatenate([observations, final[None]])


def _check_returns(name: str, demos: Demos, stated: np.ndarray) -> None:
    if stated.dtype.kind not in "iuf" or stated.size != len(demos):
        raise InputError(
            f"{name}: episode_returns has shape {stated.shape} of {stated.dtype}: "
            f"episode_starts has {len(demos)} episodes"
        )
    for episode, (trajectory, value) in enumerate(zip(demos, stated.ravel().tolist(), strict=True)):
        total, size = trajectory.total_reward or 0.0, float(np.abs(trajectory.rewards).sum())  # type: ignore[arg-type]
        if not abs(total - value) <= RETURN_TOLERANCE * (1 + size):
            raise InputError(
                f"{name}: episode {episode}: its rewards sum to {total:g} and episode_returns says {value:g}: "
                "episode_starts or rewards are wrong"
            )


# imitation


def read_imitation(archive: npz.Archive) -> Demos:
    """Read the imitation library's file; its `terminal` says that an episode ended, not how."""
    name = archive.name
    actions = archive.read("acts")
    steps = len(actions) if actions.ndim else 0
    cuts = episode_column(f"{name}: indices", archive.read("indices"))
    bounds = [0, *cuts, steps]
    lengths = [end - start for start, end in pairwise(bounds)]
    for episode, length in enumerate(lengths):
        if length < 1:
            raise InputError(f"{name}: indices: episode {episode} goes from {bounds[episode]} to {bounds[episode + 1]}")
    ended = column(f"{name}: terminal", archive.read("terminal"), "b", len(lengths))
    pieces = {
        "observations": split(f"{name}: obs", archive.read("obs"), [length + 1 for length in lengths]),
        "actions": split(f"{name}: acts", actions, lengths),
        "truncated": ended,
    }
    if "rews" in archive:
        pieces["rewards"] = split(f"{name}: rews", archive.read("rews"), lengths)
    about = about_text.read_optional(archive)
    return build(name, by_episode(pieces), about, endings_known="terminated" in about.columns)


# Arrays of anybody's

PLAIN = {
    "observations": ("observations", "obs", "states"),
    "actions": ("actions", "acts"),
    "rewards": ("rewards", "rews"),
    "terminated": ("terminated", "terminations", "terminals"),
    "truncated": ("truncated", "truncations", "timeouts"),
    "lengths": ("lengths",),
}
"""What plain arrays may be called."""


def _plain_names(keys: Sequence[str]) -> dict[str, str]:
    """Return which of the file's arrays is what, or nothing if it is not a file of plain arrays."""
    found = {what: [name for name in names if name in keys] for what, names in PLAIN.items()}
    one_each = all(len(names) <= 1 for names in found.values()) and found["observations"] and found["actions"]
    if not one_each or sum(map(len, found.values())) < len(keys):
        return {}
    return {what: names[0] for what, names in found.items() if names}


def read_arrays(archive: npz.Archive, lengths: Any = None) -> Demos:
    """Read plain arrays; where the file does not say how steps make episodes, `lengths` must."""
    name, names = archive.name, _plain_names(archive.keys)
    arrays: dict[str, Any] = {what: archive.read(key) for what, key in names.items()}
    if lengths is not None:
        arrays["lengths"] = lengths
    elif not arrays.keys() & {"lengths", "terminated", "truncated"}:
        steps = len(arrays["actions"]) if arrays["actions"].ndim else 0
        raise InputError(
            f"{name}: holds {' and '.join(names.values())}, {steps} steps in a row: where do episodes begin and end? "
            f"Say it once:  oal demos convert {name} NEW.npz --lengths N  if all have N steps, or N,M,... (in Python "
            f"lengths=; {steps} if it is one episode). Or add an array 'lengths', or 'terminated' and 'truncated' with "
            "one flag a step, to the file"
        )
    if "lengths" in arrays and lengths is None:
        check_episodes(f"{name}: lengths", arrays["lengths"].size)
    try:
        return Demos.from_arrays(**arrays)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


# Which format

_NPZ: dict[str, tuple[Callable[[npz.Archive], Demos], set[str]]] = {
    "oal": (read_oal, {"lengths", "observations", "actions", "about"}),
    "imitation": (read_imitation, {"obs", "acts", "indices", "terminal"}),
    "sb": (read_sb, {"obs", "actions", "episode_starts"}),
}
ARRAYS = "arrays"


def npz_format(archive: npz.Archive) -> str:
    """Tell the `.npz` formats apart by the arrays they hold."""
    for format_name, (_, keys) in _NPZ.items():
        if keys <= set(archive.keys):
            return format_name
    if _plain_names(archive.keys):
        return ARRAYS
    wanted = "; ".join(f"{format_name} {', '.join(sorted(keys))}" for format_name, (_, keys) in _NPZ.items())
    raise InputError(f"{archive.name}: holds {', '.join(archive.keys) or 'nothing'}; the formats have: {wanted}")


def read_npz(file: BinaryIO, name: str, *, budget: Budget = DEFAULT_BUDGET, lengths: Any = None) -> Demos:
    """Read any of the `.npz` formats from an open file; `name` is what error messages call it."""
    with damage(f"{name}: the demonstrations are damaged"), npz.Archive(file, name, budget) as archive:
        format_name = npz_format(archive)
        if format_name == ARRAYS:
            return read_arrays(archive, lengths)
        _refuse_lengths(name, lengths)
        return _NPZ[format_name][0](archive)


def _refuse_lengths(name: str, lengths: Any) -> None:
    if lengths is not None:
        raise InputError(f"{name}: knows where its episodes begin and end: leave out the lengths")


def detect(path: str | os.PathLike[str]) -> str:
    """Return the format that demonstrations (a path, a shipped name or minari:ID) are in, by looking at them."""
    name = os.fspath(path)
    if name.startswith(MINARI):
        return "minari"
    if name in shipped():
        return "oal"
    file = Path(name)
    if file.is_dir():
        if (file / "state.json").is_file() or (file / "dataset_dict.json").is_file():
            return "hf"
        if any((file / place).is_file() for place in ("data/metadata.json", "main_data.hdf5")):
            return "minari"
        raise InputError(f"{name}: is a folder, but neither a Hugging Face dataset nor a Minari one")
    with _opened(name) as opened_file:
        return _detect(opened_file, name)


def _opened(name: str, inside: str | os.PathLike[str] | None = None) -> BinaryIO:
    if inside is None and name in shipped():
        return (places.SHIPPED / f"{name}.npz").open("rb")
    try:
        return opened(name, inside=inside)
    except MissingFileError:
        raise InputError(
            f"{name}: there is no such file; shipped demonstrations are {', '.join(shipped()) or 'none'}"
        ) from None


def _detect(file: BinaryIO, name: str) -> str:
    """Return the format of a single file: `hdf5` or one of the `.npz` formats."""
    start = file.read(8)
    if start.startswith(b"PK"):
        with npz.Archive(file, name) as archive:
            return npz_format(archive)
    if start == b"\x89HDF\r\n\x1a\n":
        return "hdf5"
    kinds = {
        b"\x80": "a Python pickle, which is never opened",
        b"\x93NUMPY": "a single .npy array, not an .npz archive",
    }
    looks = next((kind for magic, kind in kinds.items() if start.startswith(magic)), "no .npz archive and no HDF5 file")
    raise InputError(f"{name}: is {looks if start else 'empty'}")


def load(
    source: str | os.PathLike[str],
    *,
    env: "EnvSource | gymnasium.Env | None" = None,
    strict: bool = False,
    time_limit: int | None = None,
    lengths: int | Sequence[int] | None = None,
    budget: Budget = DEFAULT_BUDGET,
    inside: str | os.PathLike[str] | None = None,
) -> Demos:
    """Load demonstrations: the name of shipped ones, a file or folder in any format, or minari:DATASET-ID.

    env: also check them against this environment (an id or an environment), see `Demos.check`; `strict` as there.
    time_limit: for formats that do not say how episodes ended, see `Demos.with_time_limit`.
    lengths: for files of plain arrays that do not say where episodes begin and end, see `Demos.from_arrays`.
    budget: how much a file may unpack to, before it is taken for a bomb.
    inside: the run folder whose file it is, a single one that must not lead out of the folder.
    """
    name = os.fspath(source)
    demos = _read(name, budget, lengths, inside)
    try:
        if time_limit is not None:
            demos = demos.with_time_limit(time_limit)
        return demos if env is None else demos.check(env, strict=strict)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _read(name: str, budget: Budget, lengths: Any, inside: str | os.PathLike[str] | None) -> Demos:
    if inside is None and name.startswith(MINARI):
        _refuse_lengths(name, lengths)
        return hdf5.load_minari(name.removeprefix(MINARI), budget=budget)
    if inside is None and name not in shipped() and Path(name).is_dir():
        _refuse_lengths(name, lengths)
        reader = {"minari": hdf5.read_minari_folder, "hf": arrow.read_folder}[detect(name)]
        return reader(Path(name), name, budget=budget)
    with _opened(name, inside) as file:  # once: what is read is what was looked at
        if _detect(file, name) == "hdf5":
            _refuse_lengths(name, lengths)
            return hdf5.read_d4rl(file, name, budget=budget)
        return read_npz(file, name, budget=budget, lengths=lengths)
