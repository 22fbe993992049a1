"""Cost players: linear costs, neural Lipschitz costs and the GAIL discriminator, over states and actions.

Each plays  max_{c in C} <c, μ_π - μ_E>: the cost goes up where the learner is and down where the expert is. A player
is a set of pure functions over one pytree, `CostState`; the policy player needs only its `CostView`.

What the policy pays is the player's own output, standardised (centred between the learner's and the expert's mean,
divided by the standard deviation of both together) and clipped. All occupancies have the same mass, so this shift and
scale change no best response. The absorbing state behind a true termination is a coordinate of its own: a number in
[-b, b] moved by mirror ascent on the absorbing masses. After standardisation the learner's mean cost is at most 1, so
a bound b a little above 1 makes ending an episode dearer than going on as it is, and no more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oal.deep import nets
from oal.deep.nets import MLP, Activation
from oal.deep.replay import Batch
from oal.errors import InputError, at_least, choice

_STD_FLOOR = 1e-3
"""Inputs that hardly vary are not blown up beyond a thousandfold."""


class Pairs(NamedTuple):
    """State-action pairs of a player for the cost: [..., B, O], [..., B, A], and how much each counts [..., B]."""

    observation: Any
    action: Any
    weight: Any


# ----------------------------------------------------------------------------------------------------------------
# Configuration


@dataclass(frozen=True)
class CostConfig:
    """What all cost players share: their data, and how the policy reads them."""

    update_every: int = 2_000
    """Environment steps between two updates."""
    data: Literal["window", "replay"] = "window"
    """The learner's pairs: the last `window` steps (the paper), or all past policies (follow the leader)."""
    window: int = 2_000
    minibatches: int = 20
    batch_size: int = 128
    inputs: Literal["pairs", "states"] = "pairs"
    """The cost of (state, action), or of the state alone."""
    normalise: Literal["running", "expert"] = "running"
    """Inputs are standardised by all data seen so far, or once by the expert's."""
    discounted: bool = False
    """Weigh step t of an episode by γ^t, as discounted occupancies do."""
    standardise: bool = False
    """Standardise the costs that the policy pays."""
    amplitude: Literal["unit", "gap"] = "unit"
    """gap: the policy's costs are multiplied by the evidence, how well they tell learner and expert apart."""
    clip: float | None = 10.0
    """The policy's costs are cut to [-clip, clip]."""
    absorbing: Literal["coordinate", "none"] = "none"
    """The absorbing state has a cost coordinate of its own, or nothing is paid once an episode has ended."""
    absorbing_bound: float = 1.3
    absorbing_step: float = 0.1

    def __post_init__(self) -> None:
        for name in ("update_every", "window", "minibatches", "batch_size"):
            at_least(name, getattr(self, name), 1)
        choice("data", self.data, ("window", "replay"))
        choice("inputs", self.inputs, ("pairs", "states"))
        choice("normalise", self.normalise, ("running", "expert"))
        choice("amplitude", self.amplitude, ("unit", "gap"))
        choice("absorbing", self.absorbing, ("coordinate", "none"))
        if self.clip is not None and not self.clip > 0.0:
            raise InputError(f"clip is {self.clip}: it must be above 0, or None for costs as they are")
        at_least("absorbing_bound", self.absorbing_bound, 0.0)
        at_least("absorbing_step", self.absorbing_step, 0.0)


@dataclass(frozen=True)
class LinearConfig(CostConfig):
    """c(s, a) = <w, φ(s, a)> with w in the L2 ball or the simplex; each update is one closed-form mirror step."""

    step: float = 0.05
    geometry: Literal["l2", "normalised", "simplex"] = "normalised"
    """l2: the unit ball, projected at each step. normalised: steps add up freely and w is read at unit length (the
    reference code). simplex: multiplicative weights over the features and their negatives."""
    features: Literal["inputs", "fourier", "function"] = "inputs"
    """The standardised inputs, random Fourier features of them, or a function of the user's."""
    fourier_features: int = 256
    fourier_scale: float = 1.0
    """Standard deviation of the random frequencies: larger sees finer differences."""
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("step", self.step, 0.0)
        choice("geometry", self.geometry, ("l2", "normalised", "simplex"))
        choice("features", self.features, ("inputs", "fourier", "function"))
        at_least("fourier_features", self.fourier_features, 1)
        if not self.fourier_scale > 0.0:
            raise InputError(f"fourier_scale is {self.fourier_scale}: it must be above 0")


@dataclass(frozen=True)
class NetworkConfig(CostConfig):
    """What the neural cost and the discriminator share."""

    hidden: tuple[int, ...] = (100, 100, 100)
    activation: Activation = "tanh"
    learning_rate: float = 3e-4
    lipschitz: float = 1.0
    """Weight of (‖gradient in the inputs‖ - 1)² at mixtures of learner and expert pairs."""
    output_entropy: float = 0.001
    """Weight of the outputs' Bernoulli entropy, read as logits: it pulls them towards 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden is {self.hidden}: name at least one layer of at least one unit")
        choice("activation", self.activation, ("relu", "tanh"))
        if not self.learning_rate > 0.0:
            raise InputError(f"learning_rate is {self.learning_rate}: it must be above 0")
        at_least("lipschitz", self.lipschitz, 0.0)
        at_least("output_entropy", self.output_entropy, 0.0)


@dataclass(frozen=True)
class NeuralConfig(NetworkConfig):
    """A bounded, Lipschitz network as the cost."""

    bregman: float = 0.0
    """Weight of mean (c - c_old)²: how close to the cost before the update its gradient steps stay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("bregman", self.bregman, 0.0)


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


AnyCostConfig = LinearConfig | NeuralConfig | GAILConfig
COSTS: dict[str, type[Any]] = {"linear": LinearConfig, "neural": NeuralConfig, "gail": GAILConfig}
FeatureFunction = Callable[[Any, Any], Any]
"""(observations [B, O], encoded actions [B, A]) -> features [B, F], traceable by JAX."""


# ----------------------------------------------------------------------------------------------------------------
# State


class CostView(NamedTuple):
    """What is needed to compute costs."""

    params: Any
    """The weights w [F] (linear), or a network."""
    frozen: Any
    """What is drawn once and never learned: Fourier frequencies and phases, or None."""
    mean: jax.Array
    std: jax.Array
    """Standardisation of the inputs [D]."""
    centre: jax.Array
    scale: jax.Array
    """Standardisation of the outputs."""
    absorbing: jax.Array
    """The absorbing state's cost, in the units of standardised outputs."""
    gain: jax.Array
    """What both are multiplied by before the policy pays."""
    evidence: jax.Array
    """How well the outputs tell learner and expert apart: half the gap of their means over the spread, in [0, 1]."""


class Moments(NamedTuple):
    """How many inputs [D] were seen, their mean and their variance."""

    seen: jax.Array
    mean: jax.Array
    variance: jax.Array


class CostState(NamedTuple):
    """Everything a cost player learns, as one pytree of arrays."""

    view: CostView
    dual: Any
    """The linear player's weights before they are normalised or projected; None for networks."""
    moments: Moments
    optimiser: Any
    key: jax.Array


def merge(moments: Moments, values: jax.Array) -> Moments:
    """Add values [N, D] to running moments."""
    added = values.shape[0]
    total = moments.seen + added
    gap = values.mean(axis=0) - moments.mean
    share = added / total
    variance = (1 - share) * moments.variance + share * values.var(axis=0) + share * (1 - share) * gap**2
    return Moments(total, moments.mean + share * gap, variance)


# ----------------------------------------------------------------------------------------------------------------
# Costs of a view


class CostPlayer:
    """The functions of one cost player; `state` goes in and comes out. Equal players share compiled programs."""

    def __init__(
        self,
        config: AnyCostConfig,
        observation_size: int,
        action_size: int,
        *,
        function: FeatureFunction | None = None,
    ) -> None:
        self.config = config
        self.observation_size, self.action_size = observation_size, action_size
        self.function = function
        wanted = isinstance(config, LinearConfig) and config.features == "function"
        if wanted != (function is not None):
            raise InputError(
                "features 'function' needs the function itself"
                if wanted
                else "a feature function is given, but the cost's features are not 'function'"
            )
        self.input_size = observation_size + (action_size if config.inputs == "pairs" else 0)

    def _key(self) -> tuple[Any, ...]:
        return self.config, self.observation_size, self.action_size, self.function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostPlayer) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    # ----- reading

    def inputs(self, observation: Any, action: Any) -> jax.Array:
        """Pairs -> inputs [..., D] before standardisation."""
        return observation if self.config.inputs == "states" else jnp.concatenate([observation, action], axis=-1)

    def standardised(self, view: CostView, observation: Any, action: Any) -> jax.Array:
        """Pairs -> standardised inputs [..., D]."""
        return (self.inputs(observation, action) - view.mean) / view.std

    def features(self, view: CostView, observation: Any, action: Any) -> jax.Array:
        """Pairs -> features [..., F] of the linear cost."""
        config = self.config
        assert isinstance(config, LinearConfig)
        if self.function is not None:
            return self.function(observation, action)
        x = self.standardised(view, observation, action)
        if config.features == "inputs":
            return x
        frequencies, phases = view.frozen
        return jnp.sqrt(2.0 / config.fourier_features) * jnp.cos(x @ frequencies + phases)

    def output(self, view: CostView, observation: Any, action: Any) -> jax.Array:
        """Pairs -> the player's own output [...]: <w, φ>, the network's cost, or the logit."""
        if isinstance(self.config, LinearConfig):
            return self.features(view, observation, action) @ view.params
        return self._network(view.params, self.standardised(view, observation, action))

    def _network(self, params: MLP, x: jax.Array) -> jax.Array:
        assert isinstance(self.config, NetworkConfig)
        return nets.mlp(params, x, activation=self.config.activation)[..., 0]

    def cost(self, view: CostView, observation: Any, action: Any) -> jax.Array:
        """Pairs -> what the policy pays [...]."""
        cost = self._read(self.output(view, observation, action))
        cost = (cost - view.centre) / view.scale
        if self.config.clip is not None:
            cost = jnp.clip(cost, -self.config.clip, self.config.clip)
        return view.gain * cost

    def _read(self, output: jax.Array) -> jax.Array:
        if isinstance(self.config, GAILConfig) and self.config.reading == "softplus":
            return -jax.nn.softplus(-output)
        return output

    def __call__(self, view: CostView, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Costs of a batch [B], of the absorbing state, and the evidence, for the policy player's compiled block.

        The costs are shifted by the absorbing cost, so that the absorbing state's value is 0, where value networks
        start: episodes that end early would else have values near c_abs/(1-γ) to climb to before they learn anything.
        """
        cost = self.cost(view, batch.observation, batch.action)
        return cost - view.gain * view.absorbing, jnp.zeros_like(view.absorbing), view.evidence

    # ----- learning

    def init(self, seed: int, expert: Pairs) -> CostState:
        """Draw a fresh player that has seen the expert's pairs [N, ...] only."""
        config, key = self.config, jax.random.key(seed)
        draw_key, key = jax.random.split(key)
        x = jnp.asarray(self.inputs(expert.observation, expert.action))
        moments = Moments(jnp.float32(len(x)), x.mean(axis=0), x.var(axis=0))
        view = CostView(
            params=None,
            frozen=None,
            mean=moments.mean,
            std=_std(moments),
            centre=jnp.float32(0.0),
            scale=jnp.float32(1.0),
            absorbing=jnp.float32(0.0),
            gain=jnp.float32(1.0),
            evidence=jnp.float32(0.0),
        )
        dual = optimiser = None
        if isinstance(config, LinearConfig):
            if config.features == "fourier":
                frequency_key, phase_key = jax.random.split(draw_key)
                shape = (self.input_size, config.fourier_features)
                frequencies = config.fourier_scale * jax.random.normal(frequency_key, shape)
                phases = jax.random.uniform(phase_key, shape[1:], minval=0.0, maxval=2.0 * np.pi)
                view = view._replace(frozen=(frequencies, phases))
            few = len(expert.observation[:2])
            features = self.features(view, expert.observation[:2], expert.action[:2])
            given = getattr(features, "shape", None)
            if given is None or len(given) != 2 or given[0] != few:
                what = type(features).__name__ if given is None else f"an array {given}"
                raise InputError(f"the feature function gives {what} for {few} pairs: an array [{few}, F] is needed")
            size = given[1]
            dual = jnp.zeros(2 * size if config.geometry == "simplex" else size)
            view = view._replace(params=_weights(config, dual))
        else:
            # a cost nobody has learned yet should not order the policy about
            params = nets.quiet(nets.init_mlp(draw_key, (self.input_size, *config.hidden, 1)))
            view = view._replace(params=params)
            optimiser = optax.adam(config.learning_rate).init(params)
        return CostState(view, dual, moments, optimiser, jax.random.key_data(key))

    def update(
        self, state: CostState, learner: Pairs, expert: Pairs, masses: Any
    ) -> tuple[CostState, dict[str, jax.Array]]:
        """Play one round against minibatches [n, B, ...] of both; `masses` are the absorbing masses (learner, expert).

        Networks take one gradient step per minibatch; the linear cost takes one mirror step on all of them together.
        """
        return _compiled_update(self)(state, learner, expert, jnp.asarray(masses, jnp.float32))

    def _update(
        self, state: CostState, learner: Pairs, expert: Pairs, masses: jax.Array
    ) -> tuple[CostState, dict[str, jax.Array]]:
        config = self.config
        all_learner, all_expert = both = _flat(learner), _flat(expert)
        moments = state.moments
        if config.normalise == "running":
            seen = [self.inputs(pairs.observation, pairs.action) for pairs in both]
            moments = merge(moments, jnp.concatenate(seen))
        view = state.view._replace(mean=moments.mean, std=_std(moments))
        if isinstance(config, LinearConfig):
            gap = _mean(self.features(view, all_learner.observation, all_learner.action), all_learner.weight) - _mean(
                self.features(view, all_expert.observation, all_expert.action), all_expert.weight
            )
            dual = linear_step(config, state.dual, gap)
            view = view._replace(params=_weights(config, dual))
            state, metrics = state._replace(dual=dual), {"feature_gap": jnp.linalg.norm(gap)}
        else:
            view, state, metrics = self._descend(view, state, learner, expert)

        costs = [self._read(self.output(view, pairs.observation, pairs.action)) for pairs in both]
        means = [_mean(cost, pairs.weight) for cost, pairs in zip(costs, both, strict=True)]
        centre = 0.5 * (means[0] + means[1])
        squares = [_mean((cost - centre) ** 2, pairs.weight) for cost, pairs in zip(costs, both, strict=True)]
        spread = jnp.sqrt(0.5 * (squares[0] + squares[1]))
        evidence = jnp.clip(0.5 * (means[0] - means[1]) / jnp.maximum(spread, 1e-6), 0.0, 1.0)
        view = view._replace(evidence=evidence)
        if config.standardise:
            view = view._replace(centre=centre, scale=jnp.maximum(spread, 1e-6))
        if config.amplitude == "gap":
            view = view._replace(gain=evidence)
        if config.absorbing == "coordinate":
            moved = view.absorbing + config.absorbing_step * (masses[0] - masses[1])
            view = view._replace(absorbing=jnp.clip(moved, -config.absorbing_bound, config.absorbing_bound))
        metrics |= {
            "cost_gap": means[0] - means[1],
            "cost_spread": spread,
            "evidence": evidence,
            "absorbing_mass": masses[0],
        }
        return state._replace(view=view, moments=moments), metrics

    def _descend(
        self, view: CostView, state: CostState, learner: Pairs, expert: Pairs
    ) -> tuple[CostView, CostState, dict[str, jax.Array]]:
        config = self.config
        assert isinstance(config, NetworkConfig)
        adam = optax.adam(config.learning_rate)
        before: MLP = state.view.params

        def body(carry: Any, minibatch: tuple[Pairs, Pairs]) -> tuple[Any, dict[str, jax.Array]]:
            params, optimiser, key = carry
            key, mix_key = jax.random.split(key)
            (_, parts), gradient = jax.value_and_grad(self.loss, has_aux=True)(
                params, before, view, *minibatch, mix_key
            )
            step, optimiser = adam.update(gradient, optimiser)
            return (optax.apply_updates(params, step), optimiser, key), parts

        key = jax.random.wrap_key_data(state.key)
        (params, optimiser, key), parts = jax.lax.scan(body, (before, state.optimiser, key), (learner, expert))
        state = state._replace(optimiser=optimiser, key=jax.random.key_data(key))
        return view._replace(params=params), state, jax.tree.map(jnp.mean, parts)

    def loss(
        self, params: MLP, before: MLP, view: CostView, learner: Pairs, expert: Pairs, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """What a network descends on one minibatch [B, ...]: its objective and the penalties."""
        config = self.config
        assert isinstance(config, NetworkConfig)
        x = self.standardised(view, learner.observation, learner.action)
        y = self.standardised(view, expert.observation, expert.action)
        cost_x, cost_y = self._network(params, x), self._network(params, y)
        if isinstance(config, GAILConfig):
            objective = _mean(jax.nn.softplus(-cost_x), learner.weight) + _mean(jax.nn.softplus(cost_y), expert.weight)
        else:
            objective = _mean(cost_y, expert.weight) - _mean(cost_x, learner.weight)
        parts = {"objective": objective}
        if config.output_entropy > 0.0:
            entropy = bernoulli_entropy(jnp.concatenate([cost_x, cost_y]))
            parts["output_entropy"] = -config.output_entropy * jnp.mean(entropy)
        if config.lipschitz > 0.0:
            share = jax.random.uniform(key, (len(x), 1))
            penalty = lipschitz_penalty(partial(self._network, params), share * x + (1.0 - share) * y)
            parts["lipschitz"] = config.lipschitz * penalty
        if isinstance(config, NeuralConfig) and config.bregman > 0.0:
            both = jnp.concatenate([x, y])
            change = jnp.concatenate([cost_x, cost_y]) - self._network(before, both)
            parts["bregman"] = config.bregman * jnp.mean(change**2)
        return sum(parts.values(), jnp.float32(0.0)), {f"cost_{name}": value for name, value in parts.items()}


@lru_cache(maxsize=32)
def _compiled_update(player: CostPlayer) -> Callable[..., tuple[CostState, dict[str, jax.Array]]]:
    return jax.jit(player._update)


def _flat(pairs: Pairs) -> Pairs:
    """Minibatches [n, B, ...] as one [n B, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), pairs)


def _std(moments: Moments) -> jax.Array:
    return jnp.maximum(jnp.sqrt(moments.variance), _STD_FLOOR)


def _mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Weighted mean over the first axis."""
    return jnp.tensordot(weight, values, axes=1) / jnp.sum(weight)


def linear_step(config: LinearConfig, dual: jax.Array, gap: jax.Array) -> jax.Array:
    """One mirror ascent step on <w, gap>: Euclidean, or in the simplex's logarithms over ± features."""
    if config.geometry == "simplex":
        return dual + config.step * jnp.concatenate([gap, -gap])
    dual = dual + config.step * gap
    if config.geometry == "l2":
        dual = dual / jnp.maximum(jnp.linalg.norm(dual), 1.0)
    return dual


def _weights(config: LinearConfig, dual: jax.Array) -> jax.Array:
    """Weights as they are read."""
    if config.geometry == "simplex":
        plus, minus = jnp.split(jax.nn.softmax(dual), 2)
        return plus - minus
    if config.geometry == "normalised":
        return dual / jnp.maximum(jnp.linalg.norm(dual), 1e-8)
    return dual


def bernoulli_entropy(logit: jax.Array) -> jax.Array:
    """Entropy of σ(logit): largest at 0."""
    return jax.nn.softplus(logit) - logit * jax.nn.sigmoid(logit)


def lipschitz_penalty(cost: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Mean of (‖∇c(x)‖ - 1)² over points [B, D], with the gradient in every input."""
    gradient = jax.grad(lambda points: jnp.sum(cost(points)))(x)
    norm = jnp.sqrt(jnp.sum(gradient**2, axis=-1) + 1e-12)
    return jnp.mean((norm - 1.0) ** 2)
