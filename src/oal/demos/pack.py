"""Demonstrations as named arrays and back, so that a checkpoint is complete in itself.

What learning uses is kept: the arrays, how episodes ended and the stride; seeds, sources and spaces are not.
"""

from collections.abc import Mapping

import numpy as np

from oal.base.arrays import below, prefixed
from oal.demos.trajectories import Demos, Trajectory


def pack(demos: Demos) -> dict[str, np.ndarray]:
    """Return the arrays of episode i as i/observations, i/actions, i/rewards, i/ends and i/stride."""
    arrays = {}
    for index, trajectory in enumerate(demos):
        parts = {"observations": trajectory.observations, "actions": trajectory.actions}
        if trajectory.rewards is not None:
            parts["rewards"] = trajectory.rewards
        parts["ends"] = np.array([trajectory.terminated, trajectory.truncated])
        parts["stride"] = np.array(trajectory.stride)
        arrays |= prefixed(index, parts)
    return arrays


def unpack(arrays: Mapping[str, np.ndarray], env_id: str | None) -> Demos:
    """Take back what `pack` gave."""
    trajectories = []
    while parts := below(len(trajectories), arrays):
        terminated, truncated = parts["ends"].tolist()
        trajectories.append(
            Trajectory(
                parts["observations"],
                parts["actions"],
                parts.get("rewards"),
                terminated,
                truncated,
                stride=int(parts["stride"]),
            )
        )
    return Demos(tuple(trajectories), env_id=env_id)
