"""Demonstrations as the learner sees its own steps: flat observations and encoded actions."""

import numpy as np

from oal.demos.trajectories import Trajectory
from oal.envs.spec import ActionCodec, EnvSpec
from oal.errors import InputError


def encoded_pairs(trajectory: Trajectory, spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return a trajectory's observations [T, O] and encoded actions [T, A], as the learner sees its own."""
    observations = trajectory.observations[: len(trajectory)].reshape(len(trajectory), -1).astype(np.float32)
    if observations.shape[1] != spec.observation_size:
        raise InputError(
            f"observations have {observations.shape[1]} numbers, {spec.env_id} gives {spec.observation_size}: "
            "is this a trajectory of another environment?"
        )
    return observations, ActionCodec(spec).encode(trajectory.actions)
