"""What the two network costs share: the network, its gradient steps and its penalties."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.deep import nets
from oal.deep.costs.base import CostBase, CostConfig, CostState, CostView, Update
from oal.deep.nets import MLP
from oal.deep.replay import ExpertData, Pairs, Replay
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.deep.arrays import AnyActions, AnyObservations, Float, Inputs, PerRow, RngKey, Scalar


@dataclass(frozen=True)
class NetworkConfig(CostConfig):
    """What the neural cost and the discriminator share."""

    hidden: tuple[int, ...] = (100, 100, 100)
    learning_rate: float = 3e-4
    lipschitz: float = 1.0
    """Weight of (‖gradient in the inputs‖ - 1)² at mixtures of learner and expert pairs."""
    output_entropy: float = 0.001
    """Weight of the outputs' Bernoulli entropy, read as logits: it pulls them towards 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden is {self.hidden}: name at least one layer of at least one unit")
        if not self.learning_rate > 0.0:
            raise InputError(f"learning_rate is {self.learning_rate}: it must be above 0")
        at_least("lipschitz", self.lipschitz, 0.0)
        at_least("output_entropy", self.output_entropy, 0.0)


@dataclass(frozen=True)
class NetworkCost(CostBase):
    """A network over standardised inputs; each round takes one gradient step per minibatch."""

    @abstractmethod
    def objective(self, of_learner: "PerRow", of_expert: "PerRow", learner: Pairs, expert: Pairs) -> "Scalar":
        """What the network descends, from its outputs at both players' pairs."""

    @abstractmethod
    def extra_penalties(self, change: Callable[[], "Float[jax.Array, '2*B']"]) -> dict[str, "Scalar"]:
        """Penalties of one kind of network; `change()` is how its outputs differ from those before the round."""

    def network(self, params: MLP, x: "Inputs") -> "PerRow":
        return nets.mlp(params, x, activation="tanh")[..., 0]

    def output(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "PerRow":
        return self.network(view.params, self.standardised(view, observation, action))

    def begin(self, view: CostView, key: "RngKey", expert: Pairs) -> tuple[CostView, dict[str, Any]]:
        params = nets.init_mlp(key, (self.input_size, *self.config.hidden, 1))
        if self.config.scale != "own":
            params = nets.nearly_zero(params)
        return view._replace(params=params), {
            "dual": None,
            "optimiser": optax.adam(self.config.learning_rate).init(params),
        }

    def learn(self, before: CostState, view: CostView, learner: Pairs, expert: Pairs) -> Update:
        adam = optax.adam(self.config.learning_rate)

        def body(carry: Any, minibatch: tuple[Pairs, Pairs]) -> tuple[Any, dict[str, jax.Array]]:
            params, optimiser, key = carry
            key, mix_key = jax.random.split(key)
            (_, parts), gradient = jax.value_and_grad(self.loss, has_aux=True)(
                params, before.view, view, *minibatch, mix_key
            )
            step, optimiser = adam.update(gradient, optimiser)
            return (optax.apply_updates(params, step), optimiser, key), parts

        start = (before.view.params, before.optimiser, jax.random.wrap_key_data(before.key))
        (params, optimiser, key), parts = jax.lax.scan(body, start, (learner, expert))
        kept = {"optimiser": optimiser, "key": jax.random.key_data(key)}
        return Update(params, kept, jax.tree.map(jnp.mean, parts))

    def loss(
        self, params: MLP, before: CostView, view: CostView, learner: Pairs, expert: Pairs, key: "RngKey"
    ) -> tuple["Scalar", dict[str, "Scalar"]]:
        """What a network descends on one minibatch: its objective and the penalties.

        `before` is the cost before the round as it was, with its own standardisation of the inputs.
        """
        config = self.config
        x = self.standardised(view, learner.observation, learner.action)
        y = self.standardised(view, expert.observation, expert.action)
        of_learner, of_expert = self.network(params, x), self.network(params, y)
        outputs = jnp.concatenate([of_learner, of_expert])
        parts = {"objective": self.objective(of_learner, of_expert, learner, expert)}
        if config.output_entropy > 0.0:
            parts["output_entropy"] = -config.output_entropy * jnp.mean(bernoulli_entropy(outputs))
        if config.lipschitz > 0.0:
            share = jax.random.uniform(key, (len(x), 1))
            penalty = lipschitz_penalty(partial(self.network, params), share * x + (1.0 - share) * y)
            parts["lipschitz"] = config.lipschitz * penalty

        def change() -> "Float[jax.Array, '2*B']":
            old = [self.output(before, pairs.observation, pairs.action) for pairs in (learner, expert)]
            return outputs - jnp.concatenate(old)

        parts |= self.extra_penalties(change)
        return sum(parts.values(), jnp.float32(0.0)), {f"cost_{name}": value for name, value in parts.items()}

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        count = (self.config.minibatches, self.config.batch_size)
        chosen = expert.pairs(rng.integers(0, len(expert.time), size=count), self.weigh)
        return self.minibatches(memory, rng), chosen


def bernoulli_entropy(logit: "PerRow") -> "PerRow":
    """Entropy of σ(logit): largest at 0."""
    return jax.nn.softplus(logit) - logit * jax.nn.sigmoid(logit)


def lipschitz_penalty(cost: Callable[["Inputs"], "PerRow"], x: "Inputs") -> "Scalar":
    """Mean of (‖∇c(x)‖ - 1)² over points x, with the gradient in every input."""
    gradient = jax.grad(lambda points: jnp.sum(cost(points)))(x)
    norm = jnp.sqrt(jnp.sum(gradient**2, axis=-1) + 1e-12)
    return jnp.mean((norm - 1.0) ** 2)
