"""What an environment hands out, checked: NumPy broadcasts an observation of a wrong shape silently."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from oal.envs.spec import flattener
from oal.errors import InputError, is_whole, shortened

Read = Callable[[Any], np.ndarray]


def observation_reader(space: spaces.Space, env_id: str) -> Read:
    """Return the map from observations to flat vectors; one of another shape or type than the space's is an InputError.

    Numbers of a wider type of the same kind (float64 for float32) are taken; values outside of a Box's bounds too.
    """
    flatten = flattener(space)

    def checked(observation: Any) -> np.ndarray:
        why = misfit(space, observation)
        if why is not None:
            raise InputError(
                f"{env_id} gave an observation that does not fit its observation space ({why}): mend the environment, "
                "or wrap it"
            )
        return observation if flatten is None else flatten(observation)

    if flatten is not None:
        return checked
    shape, usual = space.shape, (np.dtype(np.float32), np.dtype(np.float64))
    if not np.can_cast(np.float64, space.dtype or np.float32, "same_kind"):
        return checked

    def read(observation: Any) -> np.ndarray:
        # once per environment step: the usual case costs three comparisons
        if observation.__class__ is np.ndarray and observation.shape == shape and observation.dtype in usual:
            return observation
        return checked(observation)

    return read


def misfit(space: spaces.Space, value: Any) -> str | None:
    """Say what is wrong with an observation of a space, or None."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            keys = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            return f"{shortened(keys)}, not a dictionary with {', '.join(map(str, space.spaces))}"
        parts = ((name, part, value[name]) for name, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            return f"{shortened(value)}, not {len(space.spaces)} parts"
        parts = ((i, part, value[i]) for i, part in enumerate(space.spaces))
    else:
        return _leaf(space, value)
    for name, part, inner in parts:
        if (why := misfit(part, inner)) is not None:
            return f"{name}: {why}"
    return None


def _leaf(space: spaces.Space, value: Any) -> str | None:
    if isinstance(space, spaces.Discrete):
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        inside = is_whole(value) and space.start <= value < space.start + space.n
        return None if inside else f"{shortened(value)}, not a whole number of {space}"
    if not isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return None if space.contains(value) else f"{shortened(value)}, not in {space}"
    if not isinstance(value, (np.ndarray, np.generic)) and not (space.shape == () and isinstance(value, (int, float))):
        return f"{type(value).__name__}, not an array"
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"shape {array.shape}, not {space.shape}"
    if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, space.dtype or array.dtype, "same_kind"):
        return f"numbers of type {array.dtype}, not {space.dtype}"
    return None


def no_reward(env_id: str, reward: Any, step: int) -> InputError:
    """Return the error for a reward that is no number."""
    return InputError(
        f"{env_id} gave the reward {shortened(reward)} at step {step}: a reward is one number, or None if there is none"
    )
