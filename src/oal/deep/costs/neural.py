"""Neural costs: a bounded, Lipschitz network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from oal.deep.costs.base import mean
from oal.deep.costs.network import NetworkConfig, NetworkCost
from oal.deep.replay import Pairs
from oal.errors import at_least


@dataclass(frozen=True)
class NeuralConfig(NetworkConfig):
    """A bounded, Lipschitz network as the cost."""

    bregman: float = 0.0
    """Weight of mean (c - c_old)²: how close to the cost before the update its gradient steps stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("bregman", self.bregman, 0.0)


@final
@dataclass(frozen=True)
class Neural(NetworkCost):
    """Gradient ascent on <c, μ_π - μ_E> over networks, held to slope 1, small outputs and near the last cost."""

    config: NeuralConfig = NeuralConfig()

    name: ClassVar[str] = "neural"
    Config: ClassVar[type[NeuralConfig]] = NeuralConfig

    def objective(self, of_learner: jax.Array, of_expert: jax.Array, learner: Pairs, expert: Pairs) -> jax.Array:
        return mean(of_expert, expert.weight) - mean(of_learner, learner.weight)

    def extra_penalties(self, change: Callable[[], jax.Array]) -> dict[str, jax.Array]:
        if self.config.bregman == 0.0:
            return {}
        return {"bregman": self.config.bregman * jnp.mean(change() ** 2)}
