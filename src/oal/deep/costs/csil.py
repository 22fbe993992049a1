"""CSIL's cost: what clones of the expert say of an action, and nothing more to learn.

Watson, Huang and Heess 2023, "Coherent soft imitation learning": the policy q that cloning gives is the best response
to the cost -log q(a|s)/p(a|s) with a prior p, so the game starts from a cost for which the clone is optimal. Far from
the demonstrations q must fall back to p, or the cost is made up there. CSIL has a network for that; here q is an
ensemble of clones, which is wide where they disagree. CSIL goes on to refine the cost; here it stays.

    c(s, a) = -(1/A) Σ_j log q(a_j|s) / p(a_j),   p uniform on [-1, 1]
    q = tanh of N(mean of the members' means, s0² + (1 + 1/M) · their variance)

Discrete actions: q is the mean of the members' probabilities, p uniform, and the sum is one logarithm.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.deep import nets
from oal.deep.costs.base import CostBase, CostConfig, CostState, CostView, Update
from oal.deep.nets import MLP, Gaussian
from oal.deep.replay import ExpertData, Pairs, Replay
from oal.errors import InputError, at_least, at_most

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, AnyActions, AnyObservations, Float, Inputs, PerRow, RngKey, Scalar

LARGEST_ACTION = 0.999
"""A squashed density is infinite at the bounds, where many an expert acts."""


@dataclass(frozen=True)
class CSILConfig(CostConfig):
    """How the clones are fitted, and how narrow they are where they agree."""

    hidden: tuple[int, ...] = (256, 256)
    members: int = 5
    updates: int = 3_000
    learning_rate: float = 1e-3
    batch_size: int = 100
    log_std: float = -2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("members", "updates"):
            at_least(name, getattr(self, name), 1)
        at_most("members", self.members, 1_000)
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden is {self.hidden}: name at least one layer of at least one unit")
        if not self.learning_rate > 0.0:
            raise InputError(f"learning_rate is {self.learning_rate}: it must be above 0")
        if self.inputs != "pairs":
            raise InputError(f"inputs is {self.inputs}: the cost is of an action, so it must be pairs")


@final
@dataclass(frozen=True)
class CSIL(CostBase):
    """The log-ratio of clones to a uniform policy; rounds only measure how learner and expert stand to it."""

    config: CSILConfig = CSILConfig()

    name: ClassVar[str] = "csil"
    Config: ClassVar[type[CSILConfig]] = CSILConfig

    def begin(self, view: CostView, key: "RngKey", expert: Pairs) -> tuple[CostView, dict[str, Any]]:
        config, size = self.config, self.observation_size
        # the clones see observations as they were standardised when they learned
        scale = view.mean[:size], view.std[:size]
        one_hot = is_one_hot(jnp.asarray(expert.action))
        x = (jnp.asarray(expert.observation) - scale[0]) / scale[1]
        keys = jax.random.split(key, config.members)
        fit = jax.jit(jax.vmap(partial(fitted, config=config), in_axes=(0, None, None, None)))
        members = fit(keys, x, jnp.asarray(expert.action), one_hot)
        return view._replace(params=members, frozen=(*scale, one_hot)), {"dual": None, "optimiser": None}

    def output(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "PerRow":
        mean, std, one_hot = view.frozen
        outputs = jax.vmap(nets.mlp, in_axes=(0, None))(view.params, (observation - mean) / std)
        discrete = categorical_cost(outputs, action)
        return jnp.where(one_hot, discrete, gaussian_cost(outputs, action, self.config.log_std))

    def learn(self, before: CostState, view: CostView, learner: Pairs, expert: Pairs) -> Update:
        return Update(before.view.params, {}, {})

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        count = (self.config.minibatches, self.config.batch_size)
        chosen = expert.pairs(rng.integers(0, len(expert.time), size=count), self.weigh)
        return self.minibatches(memory, rng), chosen


def is_one_hot(action: "Actions") -> jax.Array:
    """Whether these are discrete actions: a single 1 in each row, and more than one column."""
    binary = jnp.all((action == 0.0) | (action == 1.0)) & jnp.all(jnp.sum(action, axis=-1) == 1.0)
    return binary & (action.shape[-1] > 1)


def fitted(key: "RngKey", x: "Inputs", action: "Actions", one_hot: jax.Array, *, config: CSILConfig) -> MLP:
    """Fit one clone: by the squared error of its tanh action, or by cross-entropy."""
    start_key, data_key = jax.random.split(key)
    adam = optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.updates))
    start = nets.init_mlp(start_key, (x.shape[-1], *config.hidden, action.shape[-1]))

    def loss(params: MLP, index: jax.Array) -> "Scalar":
        output = nets.mlp(params, x[index])
        squares = jnp.mean((jnp.tanh(output) - action[index]) ** 2)
        return jnp.where(one_hot, -jnp.mean(jnp.sum(action[index] * jax.nn.log_softmax(output), axis=-1)), squares)

    def step(carry: tuple[MLP, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, optimiser = carry
        index = jax.random.randint(key, (config.batch_size,), 0, len(x))
        change, optimiser = adam.update(jax.grad(loss)(params, index), optimiser)
        return (optax.apply_updates(params, change), optimiser), None

    (params, _), _ = jax.lax.scan(step, (start, adam.init(start)), jax.random.split(data_key, config.updates))
    return params


def gaussian_cost(outputs: "Float[jax.Array, 'M *B A']", action: "AnyActions", log_std: float) -> "PerRow":
    """-(1/A) log q(a|s)/p(a) of members' pre-tanh means [M, B, A]."""
    variance = math.exp(2.0 * log_std) + (1.0 + 1.0 / len(outputs)) * outputs.var(axis=0)
    pre_tanh = jnp.arctanh(jnp.clip(action, -LARGEST_ACTION, LARGEST_ACTION))
    log_prob = nets.gaussian_log_prob(Gaussian(outputs.mean(axis=0), 0.5 * jnp.log(variance)), pre_tanh)
    return -log_prob / action.shape[-1] - math.log(2.0)


def categorical_cost(outputs: "Float[jax.Array, 'M *B A']", action: "AnyActions") -> "PerRow":
    """-log q(a|s)/p(a) of members' logits [M, B, A] and one-hot actions."""
    probability = jnp.sum(jax.nn.softmax(outputs).mean(axis=0) * action, axis=-1)
    return -jnp.log(jnp.maximum(probability, 1e-8)) - math.log(action.shape[-1])
