"""Costs that are recorded with each step, not learned: the environment's own, with which the loop trains an expert."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np

from oal.deep.players import Charge, Metrics, recorded_cost
from oal.deep.replay import Batch, ExpertData, Pairs, Replay


class NoState(NamedTuple):
    """Nothing is learned."""

    view: None = None


@dataclass(frozen=True)
class NoRounds:
    """Charge what is recorded with a step; there is no round to play."""

    name: ClassVar[str]

    @property
    def update_every(self) -> int:
        return sys.maxsize

    @property
    def remembers(self) -> int:
        return 1

    def sized(self, observation_size: int, action_size: int, gamma: float) -> Self:
        return self

    def init(self, seed: int, expert: Pairs, ended: float) -> NoState:
        return NoState()

    def weigh(self, times: np.ndarray) -> np.ndarray:
        return np.ones(times.shape, np.float32)

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        raise NotImplementedError("a cost that is recorded plays no rounds")

    def update(self, state: NoState, learner: Pairs, expert: Pairs, masses: Any) -> tuple[NoState, Metrics]:
        raise NotImplementedError("a cost that is recorded plays no rounds")

    def __call__(self, view: None, batch: Batch) -> Charge:
        return recorded_cost(view, batch)


@final
@dataclass(frozen=True)
class EnvironmentCost(NoRounds):
    """Charge what the environment charges."""

    name: ClassVar[str] = "environment"
