"""Cost players: what the learner pays, chosen against it."""

from typing import Any

from oal.deep.costs.base import CostBase, CostConfig, CostState, CostView
from oal.deep.costs.gail import GAIL, GAILConfig
from oal.deep.costs.linear import FeatureFunction, Linear, LinearConfig
from oal.deep.costs.network import NetworkConfig, NetworkCost
from oal.deep.costs.neural import Neural, NeuralConfig
from oal.errors import InputError

__all__ = [
    "COSTS",
    "GAIL",
    "AnyCostConfig",
    "CostBase",
    "CostConfig",
    "CostState",
    "CostView",
    "FeatureFunction",
    "GAILConfig",
    "Linear",
    "LinearConfig",
    "NetworkConfig",
    "NetworkCost",
    "Neural",
    "NeuralConfig",
    "cost_player",
]

AnyCostConfig = LinearConfig | NeuralConfig | GAILConfig
COSTS: dict[str, type[Any]] = {player.name: player for player in (Linear, Neural, GAIL)}


def cost_player(config: AnyCostConfig, *, function: FeatureFunction | None = None) -> CostBase:
    """Return the player that a configuration belongs to; `function` are the linear cost's own features."""
    player = next(player for player in COSTS.values() if player.Config is type(config))
    if function is None:
        return player(config)
    if player is not Linear:
        raise InputError(f"a feature function is for the linear cost, not for '{player.name}'")
    return Linear(config, function=function)  # pyright: ignore[reportArgumentType]
