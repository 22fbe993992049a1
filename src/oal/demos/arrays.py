"""From arrays as people have them in memory to episodes: lists of episodes, or all steps in a row and where to cut."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.base.spaces import flatten, is_composite
from oal.errors import InputError, whole

if TYPE_CHECKING:
    import gymnasium

    Space = gymnasium.Space[Any]


def episodes(
    observations: Any,
    actions: Any,
    rewards: Any = None,
    *,
    terminated: Any = None,
    truncated: Any = None,
    lengths: Any = None,
    observation_space: "Space | None" = None,
    action_space: "Space | None" = None,
) -> list[dict[str, Any]]:
    """Return the arguments of each `Trajectory`; see `Demos.from_arrays`."""
    if isinstance(observations, Mapping):
        if observation_space is None:
            raise InputError(
                "observations are a dictionary, whose keys have no order of their own: say the environment they are "
                "of (env=), which has one"
            )
        if not is_composite(observation_space):
            raise InputError(
                f"observations are a dictionary, and those of the environment are {observation_space}: are these "
                "demonstrations of another environment?"
            )
    if _is_list_of_episodes(actions, action_space):
        if lengths is not None:
            raise InputError("lengths are for single arrays of all steps: with one array per episode leave them out")
        return _from_lists(observations, actions, rewards, terminated, truncated, observation_space)
    return _from_rows(observations, actions, rewards, terminated, truncated, lengths, observation_space)


def ending(terminated: Any, truncated: Any) -> dict[str, bool]:
    """Return how an episode ended; where nothing is said it is taken as cut off, and one answer tells the other."""
    if terminated is None:
        terminated = False if truncated is None else not truncated
    return {"terminated": bool(terminated), "truncated": not terminated if truncated is None else bool(truncated)}


# One array per episode


def _is_list_of_episodes(actions: Any, space: "Space | None") -> bool:
    """Whether the first axis counts episodes: known from the action space, else lists do and arrays do not."""
    if space is None or space.shape is None:
        return isinstance(actions, (list, tuple))
    if isinstance(actions, (list, tuple)):
        return bool(len(actions)) and np.ndim(actions[0]) == len(space.shape) + 1
    return np.ndim(actions) == len(space.shape) + 2


def _from_lists(
    observations: Any, actions: Any, rewards: Any, terminated: Any, truncated: Any, space: "Space | None"
) -> list[dict[str, Any]]:
    count = len(actions)
    if isinstance(observations, Mapping) or len(observations) != count:
        found = "one dictionary" if isinstance(observations, Mapping) else f"{len(observations)}"
        raise InputError(f"observations are of {found} episodes and actions of {count}: give one entry per episode")
    given = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
    columns = {}
    for name, values in given.items():
        values = [values] * count if values is None or np.isscalar(values) else list(values)
        if len(values) != count:
            raise InputError(f"{name} are of {len(values)} episodes and actions of {count}: give one entry per episode")
        if name != "rewards":
            values = [_last(f"episode {i}: {name}", value, len(actions[i])) for i, value in enumerate(values)]
        columns[name] = values
    return [
        {
            "observations": _rows(f"episode {i}: observations", observations[i], space),
            "actions": actions[i],
            "rewards": columns["rewards"][i],
            **ending(columns["terminated"][i], columns["truncated"][i]),
        }
        for i in range(count)
    ]


def _last(where: str, flag: Any, steps: int) -> Any:
    """Return how an episode ended of one flag, or of one for each of its steps, of which the last one says it."""
    if flag is None or np.ndim(flag) == 0:
        return flag
    if np.shape(flag) != (steps,):
        raise InputError(f"{where} has shape {np.shape(flag)}: give one flag, or one for each of the {steps} steps")
    return flag[-1]


# All steps in a row


def _from_rows(
    observations: Any,
    actions: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    lengths: Any,
    space: "Space | None",
) -> list[dict[str, Any]]:
    shown, taken = _rows("observations", observations, space), np.asarray(actions)
    steps = len(taken) if taken.ndim else 0
    flags = {name: _flags(name, flag, steps) for name, flag in (("terminated", terminated), ("truncated", truncated))}
    if lengths is None:
        # one flag for all says how episodes end, not where
        places = [flag for flag in (terminated, truncated) if np.ndim(flag)]
        lengths = _lengths_of_flags([np.asarray(flag, bool) for flag in places], steps)
    lengths = as_lengths(lengths, steps)
    finals = len(shown) == steps + len(lengths)
    if not finals and len(shown) != steps:
        raise InputError(
            f"there are {len(shown)} observations and {steps} actions in {len(lengths)} episodes: give {steps} "
            f"observations, or {steps + len(lengths)} with the one after each episode's last action"
        )
    paid = None if rewards is None else np.asarray(rewards)
    if paid is not None and paid.shape[:1] != (steps,):
        raise InputError(f"rewards have shape {paid.shape}: there are {steps} actions, so it must be ({steps},)")
    cut = []
    for i, (start, end) in enumerate(pairwise([0, *np.cumsum(lengths).tolist()])):
        first, last = (start + i, end + i + 1) if finals else (start, end)
        cut.append(
            {
                "observations": shown[first:last],
                "actions": taken[start:end],
                "rewards": None if paid is None else paid[start:end],
                **_ending_of_rows(flags, end - 1),
            }
        )
    return cut


def _flags(name: str, flag: Any, steps: int) -> np.ndarray | None:
    if flag is None:
        return None
    flag = np.asarray(flag)
    if flag.shape not in ((), (steps,)) or not np.isin(flag, (0, 1)).all():
        raise InputError(f"{name} has shape {flag.shape}: with {steps} actions in one array, give {steps} flags")
    return np.broadcast_to(flag.astype(bool), (steps,))


def _ending_of_rows(flags: Mapping[str, np.ndarray | None], last: int) -> dict[str, bool]:
    """Return the ending of an episode by the flags at its last step; flags that are there and not set mean neither."""
    terminated, truncated = (None if flag is None else bool(flag[last]) for flag in flags.values())
    if terminated is not None and truncated is not None:
        return {"terminated": terminated, "truncated": truncated}
    return ending(terminated, truncated)


def _lengths_of_flags(flags: Sequence[np.ndarray], steps: int) -> list[int]:
    if not flags:
        raise InputError(question(steps))
    ends = np.flatnonzero(np.any(flags, axis=0)) + 1
    bounds = [0, *ends.tolist()]
    return np.diff(bounds if bounds[-1] == steps else [*bounds, steps]).tolist()


def question(steps: int) -> str:
    """Ask where episodes begin and end."""
    return (
        f"there are {steps} steps in a row: where do episodes begin and end? Say lengths= (steps of each episode, or "
        f"one number if all have as many; {steps} if it is one episode), or terminated= and truncated= (one flag a "
        "step), or give lists with one array per episode"
    )


def as_lengths(lengths: Any, steps: int) -> list[int]:
    """Return the steps of each episode; one number stands for all of them."""
    if np.ndim(lengths) == 0:
        each = whole("lengths", lengths.item() if isinstance(lengths, np.ndarray) else lengths, 1)
        if steps % each:
            raise InputError(f"lengths is {each}: {steps} steps are no whole number of episodes of {each}")
        return [each] * (steps // each)
    numbers = [whole(f"lengths: episode {i}", length, 1) for i, length in enumerate(np.asarray(lengths).tolist())]
    if sum(numbers) != steps:
        raise InputError(f"lengths sum to {sum(numbers)}: there are {steps} actions")
    return numbers


# Observations of Dict and Tuple spaces


def _rows(where: str, values: Any, space: "Space | None") -> Any:
    """Return observations as an array of rows; those of a Dict or Tuple space become flat vectors."""
    if space is None or not is_composite(space):
        return np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values  # flat vectors already
    if isinstance(values, (list, tuple)) and len(values) and _is_one(space, values[0]):
        values = _joined(where, space, values)
    return flatten(where, space, values).astype(np.float32)


def _is_one(space: Any, value: Any) -> bool:
    """Whether a value is one of the space's own, not a batch or a part of one."""
    while is_composite(space):
        key = next(iter(space.spaces)) if isinstance(value, Mapping) else 0
        try:
            space, value = space[key], value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return np.ndim(value) == len(space.shape or ())


def _joined(where: str, space: Any, values: Sequence[Any]) -> Any:
    """Turn a list of the space's values into one value of rows."""
    if not is_composite(space):
        return np.asarray(values)
    keys = list(space.spaces) if hasattr(space.spaces, "keys") else range(len(space.spaces))
    try:
        parts = {key: _joined(where, space[key], [value[key] for value in values]) for key in keys}
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{where}: the part {error} is missing in a step") from None
    return parts
