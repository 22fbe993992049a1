"""The one boundary to Gymnasium 1.x: spaces, stepping, final observations, absorbing states, evaluation, video."""

from oal.envs.absorbing import OccupancyMasses, absorbing_value, bootstrap_target, discounted_steps, occupancy_masses
from oal.envs.episodes import (
    Episode,
    EpisodeRunner,
    Evaluation,
    UniformPolicy,
    episode_seeds,
    evaluate,
    simulator_state,
    summarise,
)
from oal.envs.spec import (
    Act,
    ActionCodec,
    ActionShape,
    EnvSource,
    EnvSpec,
    describe,
    flat_observations,
    flattener,
    make,
    uniform_actions,
)
from oal.envs.stepping import Envs, Step, VectorEnvs, stepping
from oal.envs.video import record_video

__all__ = [
    "Act",
    "ActionCodec",
    "ActionShape",
    "EnvSource",
    "EnvSpec",
    "Envs",
    "Episode",
    "EpisodeRunner",
    "Evaluation",
    "OccupancyMasses",
    "Step",
    "UniformPolicy",
    "VectorEnvs",
    "absorbing_value",
    "bootstrap_target",
    "describe",
    "discounted_steps",
    "episode_seeds",
    "evaluate",
    "flat_observations",
    "flattener",
    "make",
    "occupancy_masses",
    "record_video",
    "simulator_state",
    "stepping",
    "summarise",
    "uniform_actions",
]
