"""The state of an environment, read and written so exactly that it goes on bit for bit in another process.

Only environments known to hold nothing else are read: Gymnasium's MuJoCo tasks (v5), classic control and the grids of
toy text, in no other wrappers than `gymnasium.make` puts around them. For all others `read` returns None: a state that
is almost right would be worse than a new episode.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from oal.envs.names import class_name
from oal.errors import InputError

Snapshot = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Named arrays, and the rest as values that fit in JSON."""

# what changes while an episode runs, apart from the generator of random numbers
_ATTRIBUTES = {
    "gymnasium.envs.classic_control.acrobot.AcrobotEnv": ("state",),
    "gymnasium.envs.classic_control.cartpole.CartPoleEnv": ("state", "steps_beyond_terminated"),
    "gymnasium.envs.classic_control.continuous_mountain_car.Continuous_MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.mountain_car.MountainCarEnv": ("state",),
    "gymnasium.envs.classic_control.pendulum.PendulumEnv": ("state", "last_u"),
    "gymnasium.envs.toy_text.cliffwalking.CliffWalkingEnv": ("s", "lastaction"),
    "gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv": ("s", "lastaction"),
    "gymnasium.envs.toy_text.taxi.TaxiEnv": ("s", "lastaction", "fickle_step", "taxi_orientation"),
}
# Ant and Humanoid measure their speed from these as the last step left them, half a step behind the positions
_MUJOCO_FRAMES = ("xpos", "xipos")


def read(env: gym.Env) -> Snapshot | None:
    """Return the state of an environment in the middle of an episode, or None if it is not known how to read it."""
    limits = _time_limits(env)
    inner: Any = env.unwrapped
    if limits is None or any(limit._elapsed_steps is None for limit in limits):
        return None
    if type(inner.np_random.bit_generator) is not np.random.PCG64:
        return None
    name = class_name(inner)
    if _is_mujoco(name):
        arrays, values = _read_mujoco(inner), {}
    elif name in _ATTRIBUTES:
        arrays, values = {}, {}
        for attribute in _ATTRIBUTES[name]:
            value = getattr(inner, attribute)
            if isinstance(value, tuple) and all(isinstance(number, (float, int)) for number in value):
                value = np.array(value, np.float64)
            if isinstance(value, np.ndarray):
                arrays[attribute] = value.copy()
            elif value is None or isinstance(value, (bool, int, float, np.generic)):
                values[attribute] = value.item() if isinstance(value, np.generic) else value
            else:
                return None
    else:
        return None
    return arrays, {
        "class": name,
        "world": _world(inner),
        "values": values,
        "elapsed_steps": [limit._elapsed_steps for limit in limits],
        "np_random": inner.np_random.bit_generator.state,
    }


def write(env: gym.Env, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
    """Put an environment that was made in the same way, and reset, into the state that was read."""
    limits = _time_limits(env) or []
    inner: Any = env.unwrapped
    name = class_name(inner)
    if (info["class"], info["world"], len(info["elapsed_steps"])) != (name, _world(inner), len(limits)):
        raise InputError(f"the saved state of a {info['class']} does not fit this {name}: it was made in another way")
    if _is_mujoco(name):
        _write_mujoco(inner, arrays)
    else:
        for attribute in _ATTRIBUTES[name]:
            setattr(inner, attribute, arrays[attribute].copy() if attribute in arrays else info["values"][attribute])
    for limit, elapsed in zip(limits, info["elapsed_steps"], strict=True):
        limit._elapsed_steps = elapsed
    inner.np_random.bit_generator.state = info["np_random"]


def _time_limits(env: gym.Env) -> list[gym.wrappers.TimeLimit] | None:
    """Return the time limits around an environment; None if a wrapper around it may hold other state."""
    limits = []
    while isinstance(env, gym.Wrapper):
        if type(env) is gym.wrappers.TimeLimit:
            limits.append(env)
        elif type(env) not in (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker):
            return None
        env = env.env
    return limits


def _world(inner: Any) -> list[str] | None:
    """Return the map of a frozen lake, which may be generated for each environment."""
    desc = getattr(inner, "desc", None)
    return None if desc is None else ["".join(row) for row in np.asarray(desc).astype(str).tolist()]


# ----- MuJoCo


def _is_mujoco(name: str) -> bool:
    module = name.rpartition(".")[0]
    return module.startswith("gymnasium.envs.mujoco.") and module.endswith("_v5")


def _read_mujoco(inner: Any) -> dict[str, np.ndarray]:
    mujoco: Any = importlib.import_module("mujoco")
    # the widest state there is: with the solver's warm start, on which the next step depends bit for bit
    everything = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    state = np.empty(mujoco.mj_stateSize(inner.model, everything))
    mujoco.mj_getState(inner.model, inner.data, state, everything)
    return {"integration": state} | {name: getattr(inner.data, name).copy() for name in _MUJOCO_FRAMES}


def _write_mujoco(inner: Any, arrays: Mapping[str, np.ndarray]) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    everything = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    if arrays["integration"].size != mujoco.mj_stateSize(inner.model, everything):
        raise InputError(
            f"the saved state of {type(inner).__name__} has another size than the model's: it is another model's, "
            "or another version of mujoco's"
        )
    mujoco.mj_setState(inner.model, inner.data, arrays["integration"], everything)
    # no mj_forward here: it would move the warm start
    for name in _MUJOCO_FRAMES:
        getattr(inner.data, name)[:] = arrays[name]
