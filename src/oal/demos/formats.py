"""Find out which format a file is in, and read and write the `.npz` ones.

oal          observations, actions, rewards, lengths, has_final, terminated, truncated, about (JSON text)
sb           Stable-Baselines ExpertDataset: obs, actions, rewards, episode_starts, episode_returns; here with
             terminated, truncated, final_obs and about beside them, which other readers ignore
imitation    the imitation library: obs (T + 1 per episode), acts, rews, terminal, indices; here with about
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from oal.demos import about as about_text
from oal.demos import npz
from oal.demos.trajectories import Demos, Trajectory
from oal.errors import InputError


def build(where: str, episodes: Iterable[Mapping[str, Any]], **of_demos: Any) -> Demos:
    """Make `Demos` of the arguments for each `Trajectory`; errors name the file and the episode."""
    trajectories = []
    for episode, arguments in enumerate(episodes):
        try:
            trajectories.append(Trajectory(**arguments))
        except InputError as error:
            raise InputError(f"{where}: episode {episode}: {error}") from None
    try:
        return Demos(tuple(trajectories), **of_demos)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def split(where: str, array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Cut `array` into consecutive pieces; `where` names file and field."""
    if array.ndim == 0 or len(array) != sum(lengths):
        raise InputError(f"{where} has shape {array.shape}: the episodes' lengths want {sum(lengths)} rows")
    ends = np.cumsum(lengths)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def column(where: str, array: np.ndarray, kinds: str, entries: int | None = None) -> list[Any]:
    """Return a vector of one kind of number ('b', 'iu', ...) as a list of Python values."""
    if array.ndim != 1 or array.dtype.kind not in kinds or (entries is not None and len(array) != entries):
        wanted = {"b": "booleans", "iu": "whole numbers"}[kinds]
        count = "" if entries is None else f"{entries} "
        raise InputError(f"{where} has shape {array.shape} of {array.dtype}: it must be a vector of {count}{wanted}")
    return array.tolist()


# oal's own


def read_oal(archive: npz.Archive) -> Demos:
    name = archive.name
    lengths = column(f"{name}: lengths", archive.read("lengths"), "iu")
    about = about_text.read(f"{name}: about", archive.read_text("about"), episodes=len(lengths))
    for episode, length in enumerate(lengths):
        if length < 1:
            raise InputError(f"{name}: lengths: episode {episode} has length {length}: it must be 1 or more")
    flags = {
        key: column(f"{name}: {key}", archive.read(key), "b", len(lengths))
        for key in ("has_final", "terminated", "truncated")
    }
    with_final = [length + final for length, final in zip(lengths, flags["has_final"], strict=True)]
    pieces = {
        "observations": split(f"{name}: observations", archive.read("observations"), with_final),
        "actions": split(f"{name}: actions", archive.read("actions"), lengths),
    }
    if "rewards" in archive:
        pieces["rewards"] = split(f"{name}: rewards", archive.read("rewards"), lengths)
    episodes = (
        {
            **about.of_episode(i),
            **{key: piece[i] for key, piece in pieces.items()},
            "terminated": flags["terminated"][i],
            "truncated": flags["truncated"][i],
        }
        for i in range(len(lengths))
    )
    return build(name, episodes, **about.of_demos(), endings_known=about.endings_known)


def write_oal(demos: Demos, path: str | os.PathLike[str]) -> None:
    arrays = {"about": npz.text(about_text.write(demos, endings=False))}
    arrays["lengths"] = demos.lengths
    for key in ("has_final", "terminated", "truncated"):
        arrays[key] = np.array([getattr(trajectory, key) for trajectory in demos], dtype=bool)
    arrays["observations"] = np.concatenate([trajectory.observations for trajectory in demos])
    arrays["actions"] = demos.actions
    if demos.rewards is not None:
        arrays["rewards"] = demos.rewards
    npz.write(path, arrays)


# Which format


NPZ_READERS = {"oal": read_oal}
NPZ_WRITERS = {"oal": write_oal}


def read_npz(file: BinaryIO, name: str, *, format: str | None = None, budget: npz.Budget = npz.DEFAULT_BUDGET) -> Demos:
    """Read any `.npz` format from an open file; `name` is what error messages call it."""
    with npz.Archive(file, name, budget) as archive:
        return NPZ_READERS[format or "oal"](archive)


def _data() -> Any:
    from importlib.resources import files

    return files("oal") / "data" / "demos"


def shipped() -> list[str]:
    """Return the names of the demonstrations that come with oal."""
    folder = _data()
    return (
        sorted(entry.name.removesuffix(".npz") for entry in folder.iterdir() if entry.name.endswith(".npz"))
        if folder.is_dir()
        else []
    )


def load(name_or_path: str | os.PathLike[str]) -> Demos:
    """Load shipped demonstrations by name, or a file."""
    name = os.fspath(name_or_path)
    if name in shipped():
        with (_data() / f"{name}.npz").open("rb") as file:
            return read_npz(file, name)
    try:
        with Path(name).open("rb") as file:
            return read_npz(file, name)
    except FileNotFoundError:
        raise InputError(
            f"{name}: there is no such file, and no shipped demonstrations of that name ({', '.join(shipped()) or 'none'})"
        ) from None


def save(demos: Demos, path: str | os.PathLike[str]) -> None:
    """Write demonstrations as oal's `.npz`."""
    write_oal(demos, path)
