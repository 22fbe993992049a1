"""The one boundary to Gymnasium 1.x: spaces, stepping, final observations, absorbing states, evaluation, video."""

from oal.envs.absorbing import OccupancyMasses, absorbing_value, bootstrap_target, occupancy_masses
from oal.envs.episodes import (
    Episode,
    EpisodeRunner,
    Evaluation,
    UniformPolicy,
    episode_seeds,
    evaluate,
    simulator_state,
)
from oal.envs.spec import (
    Act,
    ActionCodec,
    EnvSource,
    EnvSpec,
    describe,
    flat_observations,
    flattener,
    id_from_file,
    make,
    uniform_actions,
)
from oal.envs.stepping import Envs, Step, VectorEnvs, stepping
from oal.envs.video import record_video

__all__ = [
    "Act",
    "ActionCodec",
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
    "episode_seeds",
    "evaluate",
    "flat_observations",
    "flattener",
    "id_from_file",
    "make",
    "occupancy_masses",
    "record_video",
    "simulator_state",
    "stepping",
    "uniform_actions",
]
