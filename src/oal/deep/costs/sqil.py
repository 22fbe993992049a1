"""SQIL: a constant cost for each side, and nothing to learn.

Reddy, Dragan and Levine 2020, "SQIL: imitation learning via reinforcement learning with sparse rewards": the expert's
steps earn 1 and the learner's own 0, half of each batch are the expert's, and an off-policy learner does the rest.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from oal.deep.costs.environment import NoRounds
from oal.deep.players import Prices
from oal.errors import InputError


@dataclass(frozen=True)
class SQILConfig:
    """What a step costs, by whose it is."""

    learner: float = 0.0
    expert: float = -1.0

    def __post_init__(self) -> None:
        if not self.expert < self.learner:
            raise InputError(f"expert is {self.expert}: it must be below the learner's cost, {self.learner}")


@final
@dataclass(frozen=True)
class SQIL(NoRounds):
    """Write the price of each side into the memory; the policy pays what is written there."""

    config: SQILConfig = SQILConfig()

    name: ClassVar[str] = "sqil"
    Config: ClassVar[type[SQILConfig]] = SQILConfig

    @property
    def prices(self) -> Prices:
        return Prices(self.config.learner, self.config.expert)
