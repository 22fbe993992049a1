"""From the arrays of a file to `Demos`: what the readers of all formats share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oal.base.limits import check_episodes
from oal.demos.about import About
from oal.demos.trajectories import Demos, Trajectory
from oal.errors import InputError


def build(where: str, episodes: Sequence[Mapping[str, Any]], about: About, *, endings_known: bool = True) -> Demos:
    """Make `Demos` of the arguments for each `Trajectory`; errors name the file and the episode.

    What the text says of an episode is taken before what its arrays say.
    """
    about.check_columns(len(episodes))
    trajectories = []
    for episode, arguments in enumerate(episodes):
        try:
            trajectories.append(Trajectory(**{**arguments, **about.of_episode(episode)}))
        except InputError as error:
            raise InputError(f"{where}: episode {episode}: {error}") from None
    try:
        return Demos(tuple(trajectories), **about.of_demos, endings_known=about.endings_known and endings_known)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def by_episode(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the arguments of each `Trajectory` from named columns with one entry per episode."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def split(where: str, array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Cut `array` into consecutive pieces; `where` names file and field."""
    if array.ndim == 0 or len(array) != sum(lengths):
        raise InputError(f"{where} has shape {array.shape}: the lengths of the episodes want {sum(lengths)} rows")
    ends = np.cumsum(lengths)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def episode_column(where: str, array: np.ndarray) -> list[int]:
    """Return a vector with one whole number per episode as a list."""
    check_episodes(where, array.size)
    return column(where, array, "iu")


def column(where: str, array: np.ndarray, kinds: str, entries: int | None = None) -> list[Any]:
    """Return a vector of one kind of number ('b' or 'iu') as a list of Python values."""
    if array.ndim != 1 or array.dtype.kind not in kinds or (entries is not None and len(array) != entries):
        wanted = {"b": "booleans", "iu": "whole numbers"}[kinds]
        count = "" if entries is None else f"{entries} "
        raise InputError(f"{where} has shape {array.shape} of {array.dtype}: it must be a vector of {count}{wanted}")
    return array.tolist()


def flags(where: str, array: np.ndarray, entries: int) -> np.ndarray:
    """Return a vector of booleans, which some writers store as the numbers 0 and 1."""
    if array.shape != (entries,) or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(f"{where} has shape {array.shape} of {array.dtype}: it must be {entries} zeros and ones")
    return array.astype(bool)


def only_at_end(where: str, name: str, flag: np.ndarray) -> bool:
    """Return an episode's per-step flag as one; refuse it anywhere but at the last step."""
    if flag[:-1].any():
        raise InputError(f"{where}: {name} at step {int(np.argmax(flag))}, but the episode has {len(flag)} steps")
    return bool(len(flag) and flag[-1])
