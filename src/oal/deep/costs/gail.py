"""GAIL's cost: a discriminator between learner and expert."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import jax

from oal.deep.costs.base import mean
from oal.deep.costs.network import NetworkConfig, NetworkCost
from oal.deep.replay import Pairs
from oal.errors import choice


def logistic_loss(of_learner: jax.Array, of_expert: jax.Array, learner: Pairs, expert: Pairs) -> jax.Array:
    """-mean log σ(logit) over the learner's pairs - mean log(1 - σ(logit)) over the expert's."""
    return mean(jax.nn.softplus(-of_learner), learner.weight) + mean(jax.nn.softplus(of_expert), expert.weight)


@dataclass(frozen=True)
class GAILConfig(NetworkConfig):
    """A discriminator; its logit is the log density ratio of learner to expert when it is optimal."""

    lipschitz: float = 0.0
    reading: Literal["softplus", "logit"] = "softplus"
    """The policy pays log(1 - D_expert) = -softplus(-logit), as GAIL and the reference code do, or the logit."""
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("reading", self.reading, ("softplus", "logit"))


@final
@dataclass(frozen=True)
class GAIL(NetworkCost):
    """Logistic regression between both players' pairs; the learner's have the label 1."""

    config: GAILConfig = GAILConfig()

    name: ClassVar[str] = "gail"
    Config: ClassVar[type[GAILConfig]] = GAILConfig

    def objective(self, of_learner: jax.Array, of_expert: jax.Array, learner: Pairs, expert: Pairs) -> jax.Array:
        return logistic_loss(of_learner, of_expert, learner, expert)

    def extra_penalties(self, change: Callable[[], jax.Array]) -> dict[str, jax.Array]:
        return {}

    def read(self, output: jax.Array) -> jax.Array:
        return -jax.nn.softplus(-output) if self.config.reading == "softplus" else output
