"""Demonstrations as the learner sees its own steps: flat observations and encoded actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oal.demos.trajectories import Trajectory
from oal.envs.spec import ActionCodec, EnvSpec
from oal.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Int32


class Transitions(NamedTuple):
    """Steps whose successor is known: the arguments of `Replay.add`."""

    observation: "Float32[np.ndarray, 'n O']"
    action: "Float32[np.ndarray, 'n A']"
    cost: "Float[np.ndarray, 'n']"
    next_observation: "Float32[np.ndarray, 'n O']"
    terminated: "Bool[np.ndarray, 'n']"
    time: "Int32[np.ndarray, 'n']"


@dataclass(frozen=True, eq=False)
class Encoded:
    """One demonstrated episode of T kept steps, encoded.

    action: in [-1, 1] or one-hot. time: which step of the episode each row is; with a stride it skips some.
    next_observation: of the first n steps; n is T, or T - 1 without a final observation, or 0 with a stride: the next
    kept row is then not the successor.
    """

    observation: "Float32[np.ndarray, 'T O']"
    action: "Float32[np.ndarray, 'T A']"
    time: "Int32[np.ndarray, 'T']"
    next_observation: "Float32[np.ndarray, 'n O']"
    rewards: "Float[np.ndarray, 'T'] | None"
    terminated: bool
    stride: int

    def __len__(self) -> int:
        """Return T, the number of kept steps."""
        return len(self.action)

    @property
    def steps(self) -> int:
        """Return how many steps the episode took in all; with a stride the last ones are a guess."""
        return len(self) * self.stride

    def transitions(self) -> Transitions:
        """Return the steps whose successor is known; without rewards they cost nothing."""
        known = len(self.next_observation)
        reward = np.zeros(known) if self.rewards is None else self.rewards[:known]
        time = self.time[:known]
        terminated = (time == len(self) - 1) & self.terminated
        return Transitions(
            self.observation[:known], self.action[:known], -reward, self.next_observation, terminated, time
        )


def encode(demos: Sequence[Trajectory | Encoded], spec: EnvSpec) -> tuple[Encoded, ...]:
    """Encode every episode for the environment; there must be at least one. Those that are encoded stay as they are."""
    if len(demos) == 0:
        raise InputError("there are no demonstrations: give at least one trajectory")
    codec = ActionCodec(spec)
    return tuple(episode if isinstance(episode, Encoded) else _encoded(episode, spec, codec) for episode in demos)


def _encoded(trajectory: Trajectory, spec: EnvSpec, codec: ActionCodec) -> Encoded:
    length = len(trajectory)
    flat = trajectory.observations.reshape(len(trajectory.observations), -1).astype(np.float32)
    if flat.shape[1] != spec.observation_size:
        raise InputError(
            f"observations have {flat.shape[1]} numbers, {spec.env_id} gives {spec.observation_size}: "
            "is this a trajectory of another environment?"
        )
    return Encoded(
        flat[:length],
        codec.encode(trajectory.actions),
        np.arange(length, dtype=np.int32) * trajectory.stride,
        flat[1:] if trajectory.stride == 1 else flat[:0],
        trajectory.rewards,
        trajectory.terminated,
        trajectory.stride,
    )
