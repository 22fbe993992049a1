"""Do demonstrations fit an environment? Its spaces say; what fits comes back as the environment would show it."""

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oal.base.spaces import flatten, is_composite, refuse_pictures
from oal.errors import InputError

if TYPE_CHECKING:
    import gymnasium

    from oal.demos.trajectories import Demos, Trajectory
    from oal.envs.spec import EnvSource

    Space = gymnasium.Space[Any]

ROUNDING = 1e-6
"""Actions this near to a bound (relative to it) are put on it without being counted as outside."""


def check(
    demos: "Demos",
    env: "EnvSource | gymnasium.Env | None",
    *,
    observation_space: "Space | None",
    action_space: "Space | None",
    strict: bool,
) -> "Demos":
    """See `Demos.check`."""
    env_id = None
    if env is not None:
        env_id, observation_space, action_space = of_environment(env)
    if observation_space is None or action_space is None:
        raise InputError("give an environment, or an observation space and an action space, to check against")
    named = env_id or "the environment"
    demos = _observations(demos, named, observation_space, strict)
    demos = _actions(demos, named, action_space, strict)
    return replace(demos, env_id=env_id or demos.env_id)


def of_environment(env: "EnvSource | gymnasium.Env") -> "tuple[str | None, Space, Space]":
    """Return the id and the spaces of an environment, or of the one that an id or a function makes."""
    from oal import envs

    if callable(env) or isinstance(env, str):
        made = envs.make(env)
        made.close()
        return (env if isinstance(env, str) else _id(made)), made.observation_space, made.action_space
    return _id(env), env.observation_space, env.action_space


def _id(env: "gymnasium.Env") -> str | None:
    return env.spec.id if env.spec is not None else None


def _observations(demos: "Demos", named: str, space: "Space", strict: bool) -> "Demos":
    """Match observations to the space; those of other than vector spaces become flat vectors, as in `oal.envs`."""
    from gymnasium import spaces

    refuse_pictures(named, space)
    shape = demos[0].observations.shape[1:]
    if not space.is_np_flattenable:
        raise InputError(f"{named}: observations of {space} have no fixed size and cannot be flattened")
    flat = spaces.flatten_space(space)
    if shape != flat.shape:
        if is_composite(space) or shape != space.shape:
            wanted = " or ".join({str(s): None for s in (space.shape, flat.shape) if s is not None})
            raise InputError(
                f"observations have shape {shape} each, {named} has {wanted}: "
                "are these demonstrations of another environment?"
            )
        trajectories = [
            replace(t, observations=flatten(f"episode {i}: observations", space, t.observations).astype(np.float32))
            for i, t in enumerate(demos)
        ]
        demos = replace(demos, trajectories=tuple(trajectories), observation_space=None)
    if isinstance(flat, spaces.Box):
        _refuse_or_warn(_outside("observation", demos, named, flat), strict)
    return replace(demos, observation_space=flat)


def _actions(demos: "Demos", named: str, space: "Space", strict: bool) -> "Demos":
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        trajectories = [_discrete(f"episode {i}", named, t, space) for i, t in enumerate(demos)]
        return replace(demos, trajectories=tuple(trajectories), action_space=space)
    shape = demos[0].actions.shape[1:]
    if shape != space.shape:
        raise InputError(
            f"actions have shape {shape} each, {named} takes {space.shape}: "
            "are these demonstrations of another environment?"
        )
    if isinstance(space, spaces.Box):
        message = _outside("action", demos, named, space)
        _refuse_or_warn(message, strict, remedy="leave out `strict` to have them clipped", done="they were clipped")
        clipped = (replace(t, actions=np.clip(t.actions, space.low, space.high).astype(t.actions.dtype)) for t in demos)
        return replace(demos, trajectories=tuple(clipped), action_space=space)
    for i, trajectory in enumerate(demos):
        if not all(space.contains(action) for action in trajectory.actions):
            raise InputError(f"{named}: episode {i} has an action that is not in {space}")
    return replace(demos, action_space=space)


def _refuse_or_warn(message: str, strict: bool, *, remedy: str = "", done: str = "") -> None:
    if message and strict:
        raise InputError(message + (f": {remedy}" if remedy else ""))
    if message:
        warnings.warn(message + (f"; {done}" if done else ""), stacklevel=5)  # where `Demos.check` was called


def _discrete(where: str, named: str, trajectory: "Trajectory", space: "gymnasium.spaces.Discrete") -> "Trajectory":
    actions = trajectory.actions
    if actions.shape[1:] == (1,):
        actions = actions[:, 0]
    if actions.ndim != 1 or (actions.dtype.kind == "f" and (actions % 1 != 0).any()):
        raise InputError(
            f"{where} has actions {actions.shape} of {actions.dtype}: {named} takes one whole number a step"
        )
    actions = actions.astype(np.int64)
    wrong = np.flatnonzero((actions < space.start) | (actions >= space.start + space.n))
    if len(wrong):
        last = space.start + space.n - 1
        raise InputError(f"{where}, step {wrong[0]}: action {actions[wrong[0]]} is not one of {space.start} to {last}")
    return replace(trajectory, actions=actions)


def _outside(name: str, demos: "Demos", named: str, space: "gymnasium.spaces.Box") -> str:
    """Count the values beyond the bounds and describe the first; return nothing when all are inside."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    margin_low, margin_high = (ROUNDING * np.maximum(1, np.abs(bound)) for bound in (low, high))
    count = total = 0
    first = ""
    for episode, trajectory in enumerate(demos):
        values = getattr(trajectory, f"{name}s")
        beyond = (values < low - margin_low) | (values > high + margin_high)
        total += beyond.size
        count += int(beyond.sum())
        if not first and beyond.any():
            step, *rest = map(int, np.unravel_index(np.argmax(beyond), beyond.shape))
            place = tuple(rest)
            bounds = f"[{low[place]:g}, {high[place]:g}]"
            first = f"first {values[(step, *place)]:g} in episode {episode}, step {step}, where {bounds} is allowed"
    return f"{named}: {count} of {total} {name} values lie outside its bounds, {first}" if count else ""
