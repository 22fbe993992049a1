"""Record a policy's episodes as demonstrations."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from oal.demos.trajectories import Demos, Trajectory
from oal.envs.episodes import EpisodeRunner, episode_seeds
from oal.envs.spec import Act, EnvSource, flattener
from oal.errors import at_least


def record_demos(
    source: EnvSource,
    act: Act,
    *,
    episodes: int,
    seed: int = 0,
    horizon: int | None = None,
    described_as: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Demos:
    """Run whole episodes of a policy and keep them as demonstrations: actions in the environment's units.

    Each trajectory carries its reset seed and, where the environment shows it, the simulator's initial state.
    Observations that were flattened get the flattened space.
    """
    at_least("episodes", episodes, 1)
    runner = EpisodeRunner(source, parallel=min(episodes, 10), horizon=horizon)
    try:
        recorded = runner.run(act, episode_seeds(seed, "demonstrations", episodes))
        observation_space = runner.envs[0].observation_space
        return Demos(
            tuple(
                Trajectory(
                    episode.observations,
                    episode.actions,
                    episode.rewards.astype(np.float32),
                    episode.terminated,
                    episode.truncated,
                    seed=episode.seed,
                    initial_state=episode.initial_state,
                )
                for episode in recorded
            ),
            env_id=runner.spec.env_id,
            observation_space=(
                observation_space if flattener(observation_space) is None else spaces.flatten_space(observation_space)
            ),
            action_space=runner.envs[0].action_space,
            source=described_as,
            metadata=dict(metadata or {}),
        )
    finally:
        runner.close()
