"""Linear costs: c(s, a) = <w, φ(s, a)>, with w in the L2 ball, at unit length, or in the simplex of ± features."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import jax
import jax.numpy as jnp
import numpy as np

from oal.deep.costs.base import CostBase, CostConfig, CostState, CostView, Update, flat, mean
from oal.deep.replay import ExpertData, Pairs, Replay
from oal.envs.absorbing import discounted_steps
from oal.errors import InputError, at_least, choice

if TYPE_CHECKING:
    from oal.deep.arrays import AnyActions, AnyObservations, Array, Features, Float, Int, PerRow, RngKey

FeatureFunction = Callable[["AnyObservations", "AnyActions"], "Float[Array, 'B F']"]
"""(observations, encoded actions) -> features, traceable by JAX."""


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
    average: Literal["steps", "episodes"] = "steps"
    """What the two players' features are compared by: their mean over steps, or the discounted averages of episodes,
    (1-γ) Σ_t γ^t φ_t, as in the paper, over a window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if choice("average", self.average, ("steps", "episodes")) == "episodes" and self.window is None:
            raise InputError("the average over episodes is one over a window: name its number of steps")
        at_least("step", self.step, 0.0)
        choice("geometry", self.geometry, ("l2", "normalised", "simplex"))
        choice("features", self.features, ("inputs", "fourier", "function"))
        at_least("fourier_features", self.fourier_features, 1)
        if not self.fourier_scale > 0.0:
            raise InputError(f"fourier_scale is {self.fourier_scale}: it must be above 0")


@final
@dataclass(frozen=True)
class Linear(CostBase):
    """Mirror ascent on <w, μ_π(φ) - μ_E(φ)>; one closed-form step per round, on all pairs together."""

    config: LinearConfig = LinearConfig()
    function: FeatureFunction | None = None
    """The features, if the configuration says that they are a function."""

    name: ClassVar[str] = "linear"
    Config: ClassVar[type[LinearConfig]] = LinearConfig

    def __post_init__(self) -> None:
        wanted = self.config.features == "function"
        if wanted != (self.function is not None):
            raise InputError(
                "features 'function' needs the function itself"
                if wanted
                else "a feature function is given, but the cost's features are not 'function'"
            )

    def features(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "Features":
        """Pairs -> features."""
        config = self.config
        if self.function is not None:
            return self.function(observation, action)
        x = self.standardised(view, observation, action)
        if config.features == "inputs":
            return x
        frequencies, phases = view.frozen
        return jnp.sqrt(2.0 / config.fourier_features) * jnp.cos(x @ frequencies + phases)

    def output(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "PerRow":
        return self.features(view, observation, action) @ view.params

    def begin(self, view: CostView, key: "RngKey", expert: Pairs) -> tuple[CostView, dict[str, Any]]:
        config = self.config
        if config.features == "fourier":
            frequency_key, phase_key = jax.random.split(key)
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
        dual = jnp.zeros(2 * given[1] if config.geometry == "simplex" else given[1])
        return view._replace(params=weights(config, dual)), {"dual": dual, "optimiser": None}

    def learn(self, before: CostState, view: CostView, learner: Pairs, expert: Pairs) -> Update:
        # by episodes, the weights of `draw` are those of the average already
        average = mean if self.config.average == "steps" else lambda values, weight: weight @ values
        of_learner, of_expert = (
            average(self.features(view, pairs.observation, pairs.action), pairs.weight)
            for pairs in (flat(learner), flat(expert))
        )
        gap = of_learner - of_expert
        assert before.dual is not None
        dual = linear_step(self.config, before.dual, gap)
        return Update(weights(self.config, dual), {"dual": dual}, {"feature_gap": jnp.linalg.norm(gap)})

    def weigh(self, times: "Int[np.ndarray, '*n']") -> "Float[np.ndarray, '*n']":
        if self.config.average == "episodes":
            return np.power(self.gamma, times, dtype=np.float32)
        return super().weigh(times)

    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        """All of the expert's pairs, and all of the window's: the averages need no sampling."""
        everything = jax.tree.map(lambda leaf: leaf[None], expert.pairs(None, self.weigh))
        if self.config.window is None:
            return self.minibatches(memory, rng), everything
        window = memory.newest(self.config.window)
        # always as many rows as the window has room for, so that one program serves; rows still to come weigh nothing
        learner = memory.pairs(np.resize(window, (1, self.config.window)), self.weigh)
        learner.weight[:, len(window) :] = 0.0
        if self.config.average == "episodes":
            for pairs, times in ((learner, memory.times[window]), (everything, expert.time)):
                pairs.weight[:] *= (1.0 - self.gamma) / max(1, np.count_nonzero(times == 0))
            # a kept step of a subsampled demonstration stands for those left out after it
            everything.weight[:] *= discounted_steps(expert.stride, self.gamma)
        return learner, everything


def linear_step(
    config: LinearConfig, dual: "Float[jax.Array, 'dual']", gap: "Float[jax.Array, 'F']"
) -> "Float[jax.Array, 'dual']":
    """One mirror ascent step on <w, gap>: Euclidean, or in the simplex's logarithms over ± features."""
    if config.geometry == "simplex":
        return dual + config.step * jnp.concatenate([gap, -gap])
    dual = dual + config.step * gap
    if config.geometry == "l2":
        dual = dual / jnp.maximum(jnp.linalg.norm(dual), 1.0)
    return dual


def weights(config: LinearConfig, dual: "Float[jax.Array, 'dual']") -> "Float[jax.Array, 'F']":
    """Weights as they are read."""
    if config.geometry == "simplex":
        plus, minus = jnp.split(jax.nn.softmax(dual), 2)
        return plus - minus
    if config.geometry == "normalised":
        return dual / jnp.maximum(jnp.linalg.norm(dual), 1e-8)
    return dual
