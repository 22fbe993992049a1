"""From the arrays of a file to `Demos` and back: what all formats share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from oal.base.limits import check_episodes
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


def per_step(demos: Demos, name: str) -> np.ndarray:
    """Return a flag of the trajectories as one boolean per step, set at last steps only."""
    array = np.zeros(demos.steps, bool)
    array[np.cumsum(demos.lengths) - 1] = [getattr(trajectory, name) for trajectory in demos]
    return array


def need_finals(demos: Demos, target: str) -> None:
    """Refuse to write into a format of T + 1 observations what has only T."""
    for episode, trajectory in enumerate(demos):
        if not trajectory.has_final:
            raise InputError(
                f"{target}: its format needs the observation after the last action, which episode {episode} does not "
                "have: use with_final() (on the command line --drop-last-step) to give up the last step"
            )
