"""Names of the numbers in observations and actions, as an environment's makers would call them."""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from oal.base.spaces import is_composite, leaves
from oal.envs.spec import EnvSpec

_CLASSIC = {
    "acrobot.AcrobotEnv": "cos angle 1, sin angle 1, cos angle 2, sin angle 2, velocity 1, velocity 2",
    "cartpole.CartPoleEnv": "position cart, velocity cart, position pole, velocity pole",
    "continuous_mountain_car.Continuous_MountainCarEnv": "position, velocity",
    "mountain_car.MountainCarEnv": "position, velocity",
    "pendulum.PendulumEnv": "cos angle, sin angle, velocity",
}
# names of the coordinates of MuJoCo's joints of several: free (0) and ball (1)
_POSITIONS = {0: ("x", "y", "z", "qw", "qx", "qy", "qz"), 1: ("qw", "qx", "qy", "qz")}
_VELOCITIES = {0: ("x", "y", "z", "wx", "wy", "wz"), 1: ("wx", "wy", "wz")}


def class_name(env: gym.Env) -> str:
    """Return an environment's class with its module."""
    return f"{type(env).__module__}.{type(env).__qualname__}"


def input_names(spec: EnvSpec, env: gym.Env | None = None) -> list[str]:
    """Name the numbers of an observation and of an encoded action: by joints where an environment tells, else by place.

    Known are classic control, and MuJoCo's tasks that say how their observations are built (Gymnasium's v5). Parts of a
    Dict go by their keys.
    """
    observed = [f"obs[{i}]" for i in range(spec.observation_size)]
    if spec.space is not None and is_composite(spec.space):
        observed = [name for key, leaf in leaves(spec.space) for name in _leaf_names(key, leaf)]
    acted = [f"action[{i}]" for i in range(spec.action_size)]
    if spec.combinations is not None:
        acted = [f"action={','.join(map(str, each.ravel().tolist()))}" for each in spec.combinations]
    if env is None:
        return observed + acted
    inner: Any = env.unwrapped
    structure, model = getattr(inner, "observation_structure", None), getattr(inner, "model", None)
    classic = _CLASSIC.get(class_name(inner).removeprefix("gymnasium.envs.classic_control."))
    known = classic.split(", ") if classic else []
    if isinstance(structure, Mapping) and model is not None:
        known = _joint_names(structure, model)
        if spec.kind == "continuous" and model.nu == spec.action_size:
            acted = _actuator_names(model)
    # a wrapper may have put other numbers in their place
    return (known if len(known) == spec.observation_size else observed) + acted


def _leaf_names(key: str, space: Any) -> list[str]:
    """Name the numbers of one part: its key, and where it has several the place, or the value that one stands for."""
    if isinstance(space, spaces.Discrete):
        return [f"{key}={space.start + i}" for i in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        parts = zip(space.nvec.ravel().tolist(), space.start.ravel().tolist(), strict=True)
        return [f"{key}[{i}]={start + j}" for i, (count, start) in enumerate(parts) for j in range(count)]
    if math.prod(space.shape) == 1:
        return [key]
    return [f"{key}[{','.join(map(str, place))}]" for place in np.ndindex(space.shape)]


def _joint_names(structure: Mapping[str, int], model: Any) -> list[str]:
    positions, velocities = [""] * model.nq, [""] * model.nv
    for i in range(model.njnt):
        name, kind = model.joint(i).name or f"joint {i}", int(model.jnt_type[i])
        for target, stem, start, parts in (
            (positions, "position", int(model.jnt_qposadr[i]), _POSITIONS),
            (velocities, "velocity", int(model.jnt_dofadr[i]), _VELOCITIES),
        ):
            for k, part in enumerate(parts.get(kind, ("",))):
                target[start + k] = f"{stem} {name} {part}".rstrip()
    names: list[str] = []
    for block, size in structure.items():
        if block == "qpos":
            skipped = structure.get("skipped_qpos", 0)
            names += positions[skipped : skipped + size]
        elif block == "qvel":
            names += velocities[:size]
        elif block != "skipped_qpos":
            names += [f"{block}[{i}]" for i in range(size)]
    return names


def _actuator_names(model: Any) -> list[str]:
    """Name actuators by the joints they move, as all of Gymnasium's do."""
    moves_joint = [int(kind) == 0 for kind in model.actuator_trntype]
    return [
        f"action {model.joint(int(model.actuator_trnid[i, 0])).name}" if moves_joint[i] else f"action[{i}]"
        for i in range(model.nu)
    ]
