"""Cost players: what the learner pays, chosen against it."""

from typing import Any

from oal.deep.costs.base import CostBase, CostConfig, CostState, CostView
from oal.deep.costs.csil import CSIL, CSILConfig
from oal.deep.costs.dac import DAC, DACConfig
from oal.deep.costs.gail import GAIL, GAILConfig
from oal.deep.costs.linear import FeatureFunction, Linear, LinearConfig
from oal.deep.costs.network import NetworkConfig, NetworkCost
from oal.deep.costs.neural import Neural, NeuralConfig
from oal.deep.costs.sqil import SQIL, SQILConfig
from oal.deep.players import CostPlayer
from oal.errors import InputError

__all__ = [
    "COSTS",
    "CSIL",
    "DAC",
    "GAIL",
    "SQIL",
    "AnyCostConfig",
    "CSILConfig",
    "CostBase",
    "CostConfig",
    "CostState",
    "CostView",
    "DACConfig",
    "FeatureFunction",
    "GAILConfig",
    "Linear",
    "LinearConfig",
    "NetworkConfig",
    "NetworkCost",
    "Neural",
    "NeuralConfig",
    "SQILConfig",
    "cost_player",
]

AnyCostConfig = LinearConfig | NeuralConfig | GAILConfig | SQILConfig | DACConfig | CSILConfig
COSTS: dict[str, type[Any]] = {player.name: player for player in (Linear, Neural, GAIL, SQIL, DAC, CSIL)}
"""The paper's three, and those of other papers."""


def cost_player(config: AnyCostConfig, *, function: FeatureFunction | None = None) -> CostPlayer:
    """Return the player that a configuration belongs to; `function` are the linear cost's own features."""
    player = next(player for player in COSTS.values() if player.Config is type(config))
    if function is None:
        return player(config)
    if player is not Linear:
        raise InputError(f"a feature function is for the linear cost, not for '{player.name}'")
    return Linear(config, function=function)  # pyright: ignore[reportArgumentType]
