"""DAC's cost: a discriminator on all past steps, which also knows the absorbing state.

Kostrikov, Agrawal, Dwibedi, Levine and Tompson 2019, "Discriminator-actor-critic": GAIL off-policy, with a gradient
penalty, the reward log D - log(1 - D), and absorbing states that the discriminator sees like any other: all numbers 0,
and an input of its own that is 1 there and 0 elsewhere. In the memory each true termination is followed by one step in
the absorbing state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from oal.deep.costs.base import CostView
from oal.deep.costs.gail import logistic_loss
from oal.deep.costs.network import NetworkConfig, NetworkCost
from oal.deep.players import Charge
from oal.deep.replay import Batch, ExpertData, Pairs, Replay

if TYPE_CHECKING:
    from oal.deep.arrays import AnyActions, AnyObservations, Array, Float, Scalar


@dataclass(frozen=True)
class DACConfig(NetworkConfig):
    """A discriminator as DAC trains it: one minibatch for each step, from all past steps."""

    update_every: int = 100
    window: int | None = None
    minibatches: int = 100
    batch_size: int = 100
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    lipschitz: float = 10.0
    output_entropy: float = 0.0
    clip: float | None = None


@final
@dataclass(frozen=True)
class DAC(NetworkCost):
    """Logistic regression between both players' pairs and absorbing states; the policy pays the logit."""

    config: DACConfig = DACConfig()

    name: ClassVar[str] = "dac"
    Config: ClassVar[type[DACConfig]] = DACConfig

    @property
    def input_size(self) -> int:
        return super().input_size + 1

    def inputs(self, observation: "AnyObservations", action: "AnyActions") -> "Float[Array, '*B D']":
        """Pairs and whether each is in the absorbing state, which `draw` says in a further column of observations."""
        size = self.observation_size
        known = observation.shape[-1] > size
        absorbing = observation[..., size:] if known else jnp.zeros((*observation.shape[:-1], 1))
        return jnp.concatenate([super().inputs(observation[..., :size], action), absorbing], axis=-1)

    def objective(self, of_learner: jax.Array, of_expert: jax.Array, learner: Pairs, expert: Pairs) -> jax.Array:
        return logistic_loss(of_learner, of_expert, learner, expert)

    def extra_penalties(self, change: Callable[[], jax.Array]) -> dict[str, jax.Array]:
        return {}

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        learners, experts = super().draw(memory, expert, rng)
        window = memory.newest(self.config.window or len(memory))
        ends = [memory.rows[window, -1].sum(), expert.ends]
        counts = [len(window), expert.stride.sum()]
        shares = [end / (count + end) for end, count in zip(ends, counts, strict=True)]
        return with_absorbing(learners, shares[0], rng), with_absorbing(experts, shares[1], rng)

    def absorbing_cost(self, view: CostView) -> "Scalar":
        there = jnp.zeros((1, self.observation_size + 1)).at[0, -1].set(1.0)
        return self.cost(view, there, jnp.zeros((1, self.action_size)))[0]

    def __call__(self, view: CostView, batch: Batch) -> Charge:
        return Charge(self.cost(view, batch.observation, batch.action), self.absorbing_cost(view))


def with_absorbing(pairs: Pairs, share: float, rng: np.random.Generator) -> Pairs:
    """Put the absorbing state in place of a share of the pairs, and say where in a further column."""
    there = rng.random(pairs.weight.shape) < share
    gone = there[..., None]
    observation = np.concatenate([np.where(gone, 0.0, pairs.observation), gone], axis=-1).astype(np.float32)
    return pairs._replace(observation=observation, action=np.where(gone, 0.0, pairs.action).astype(np.float32))
