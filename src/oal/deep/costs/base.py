"""What all cost players share: their data, how the policy reads a cost, and the round they play.

A cost player plays  max_{c in C} <c, μ_π - μ_E>: the cost goes up where the learner is and down where the expert is. It
is a set of pure functions over one pytree, `CostState`; the policy player needs only its `CostView`.

What the policy pays is the player's own output, standardised (centred between the learner's and the expert's mean,
divided by the standard deviation of both together) and clipped. All occupancies have the same mass, so this shift and
scale change no best response. The absorbing state behind a true termination is a coordinate of its own: a number in
[-b, b] moved by mirror ascent on the absorbing masses. After standardisation the learner's mean cost is at most 1, so
a bound b a little above 1 makes ending an episode cost more than going on as it is, and no more. An expert that never
came to an end can only be left by ending: the ascent then starts where it would go, at b.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from oal.deep.players import Charge
from oal.deep.replay import Batch, ExpertData, Pairs, Replay
from oal.errors import InputError, at_least, at_most, choice

if TYPE_CHECKING:
    from oal.deep.arrays import AnyActions, AnyObservations, Array, Float, Inputs, Int, KeyData, PerRow, RngKey, Scalar

_STD_FLOOR = 1e-3
"""Inputs that hardly vary are not scaled up more than a thousandfold."""
ALL_PAST = 1_000_000
"""Steps that are kept for a player that learns from all past policies."""
ABSORBING_STEP = 0.1
"""Of the mirror ascent on the absorbing state's cost."""


@dataclass(frozen=True)
class CostConfig:
    """What all cost players share: their data, and how the policy reads them."""

    update_every: int = 2_000
    """Environment steps between two updates."""
    window: int | None = 2_000
    """The learner's pairs: those of so many last steps (the paper), or of all past policies (None; it follows the
    leader)."""
    minibatches: int = 20
    batch_size: int = 128
    inputs: Literal["pairs", "states"] = "pairs"
    """The cost of (state, action), or of the state alone."""
    scale: Literal["own", "unit", "evidence"] = "own"
    """What the policy pays: the output as it is; standardised; or standardised and multiplied by the evidence, how well
    it tells learner and expert apart. The last two start from a network near 0: a cost that nobody has learned yet does
    not move the policy."""
    clip: float | None = 10.0
    """The policy's costs are cut to [-clip, clip]."""
    absorbing: float | None = None
    """The absorbing state has a cost coordinate of its own, in ± this; None: nothing is paid after an episode's end."""

    def __post_init__(self) -> None:
        for name in ("update_every", "minibatches", "batch_size"):
            at_least(name, getattr(self, name), 1)
        for name in ("minibatches", "batch_size"):
            at_most(name, getattr(self, name))
        if self.window is not None:
            at_least("window", self.window, 1)
        choice("inputs", self.inputs, ("pairs", "states"))
        choice("scale", self.scale, ("own", "unit", "evidence"))
        if self.clip is not None and not self.clip > 0.0:
            raise InputError(f"clip is {self.clip}: it must be above 0, or None for costs as they are")
        if self.absorbing is not None:
            at_least("absorbing", self.absorbing, 0.0)


# ----------------------------------------------------------------------------------------------------------------
# State


class CostView(NamedTuple):
    """What is needed to compute costs."""

    params: Any
    """The weights w [F] (linear), or a network."""
    frozen: Any
    """What is drawn once and never learned: Fourier frequencies and phases, or None."""
    mean: "Float[Array, 'D']"
    std: "Float[Array, 'D']"
    """Standardisation of the inputs."""
    centre: "Scalar"
    scale: "Scalar"
    """Standardisation of the outputs."""
    absorbing: "Scalar"
    """The absorbing state's cost, in the units of standardised outputs."""
    gain: "Scalar"
    """What both are multiplied by before the policy pays."""
    evidence: "Scalar"
    """How well the outputs tell learner and expert apart: half the gap of their means over the spread, in [0, 1]."""


class Moments(NamedTuple):
    """How many inputs were seen, their mean and their variance."""

    seen: "Scalar"
    mean: "Float[jax.Array, 'D']"
    variance: "Float[jax.Array, 'D']"


class CostState(NamedTuple):
    """Everything a cost player learns, as one pytree of arrays."""

    view: CostView
    dual: "Float[jax.Array, 'dual'] | None"
    """The linear player's weights before they are normalised or projected; None for networks."""
    moments: Moments
    optimiser: Any
    key: "KeyData"


def merge(moments: Moments, values: "Float[jax.Array, 'N D']") -> Moments:
    """Add values to running moments."""
    added = values.shape[0]
    total = moments.seen + added
    gap = values.mean(axis=0) - moments.mean
    share = added / total
    variance = (1 - share) * moments.variance + share * values.var(axis=0) + share * (1 - share) * gap**2
    return Moments(total, moments.mean + share * gap, variance)


# ----------------------------------------------------------------------------------------------------------------
# The player


class Update(NamedTuple):
    """What one round changes of a cost: its parameters, what the player keeps besides, and numbers to report."""

    params: Any
    kept: dict[str, Any]
    metrics: dict[str, "Scalar"]


@dataclass(frozen=True)
class CostBase(ABC):
    """The functions of one cost player; `state` goes in and comes out. Equal players share compiled programs."""

    config: Any
    observation_size: int = 0
    action_size: int = 0
    gamma: float = 0.99

    name: ClassVar[str]

    def sized(self, observation_size: int, action_size: int, gamma: float) -> Self:
        """Return this player for an environment's sizes and the policy player's discount."""
        return replace(self, observation_size=observation_size, action_size=action_size, gamma=gamma)

    @property
    def input_size(self) -> int:
        return self.observation_size + (self.action_size if self.config.inputs == "pairs" else 0)

    @property
    def update_every(self) -> int:
        """Environment steps between two rounds."""
        return self.config.update_every

    @property
    def remembers(self) -> int:
        """How many of the learner's newest steps this player learns from."""
        return self.config.window or ALL_PAST

    # ----- what a player of its own kind is

    @abstractmethod
    def output(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "PerRow":
        """Pairs -> the player's own output."""

    @abstractmethod
    def begin(self, view: CostView, key: "RngKey", expert: Pairs) -> tuple[CostView, dict[str, Any]]:
        """Draw parameters; return the view with them and what the player keeps besides."""

    @abstractmethod
    def learn(self, before: CostState, view: CostView, learner: Pairs, expert: Pairs) -> Update:
        """Play one round against minibatches [n, B, ...] with the inputs standardised as `view` has it."""

    @abstractmethod
    def draw(self, memory: Replay, expert: ExpertData, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
        """Choose the minibatches [n, B, ...] of learner and expert for one round."""

    # ----- reading

    def inputs(self, observation: "AnyObservations", action: "AnyActions") -> "Float[Array, '*B D']":
        """Pairs -> inputs before standardisation."""
        return observation if self.config.inputs == "states" else jnp.concatenate([observation, action], axis=-1)

    def standardised(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "Inputs":
        """Pairs -> standardised inputs."""
        return (self.inputs(observation, action) - view.mean) / view.std

    def read(self, output: "PerRow") -> "PerRow":
        """The player's output -> the cost before it is standardised."""
        return output

    def cost(self, view: CostView, observation: "AnyObservations", action: "AnyActions") -> "PerRow":
        """Pairs -> what the policy pays."""
        cost = self.read(self.output(view, observation, action))
        cost = (cost - view.centre) / view.scale
        if self.config.clip is not None:
            cost = jnp.clip(cost, -self.config.clip, self.config.clip)
        return view.gain * cost

    def absorbing_cost(self, view: CostView) -> "Scalar":
        """What each step after a true termination costs."""
        return view.gain * view.absorbing

    def __call__(self, view: CostView, batch: Batch) -> Charge:
        """Charge a batch, inside the policy player's compiled block.

        The costs are shifted by the absorbing cost, so that the absorbing state's value is 0, where value networks
        start: episodes that end early would else have values near c_abs/(1-γ) to climb to before they learn anything.
        """
        cost = self.cost(view, batch.observation, batch.action)
        return Charge(cost - self.absorbing_cost(view), jnp.zeros_like(view.absorbing))

    # ----- learning

    def init(self, seed: int, expert: Pairs, ended: float = 1.0) -> CostState:
        """Draw a fresh cost that has seen the expert only; `ended` is the share of its episodes that truly ended."""
        draw_key, key = jax.random.split(jax.random.key(seed))
        x = jnp.asarray(self.inputs(expert.observation, expert.action))
        moments = Moments(jnp.float32(len(x)), x.mean(axis=0), x.var(axis=0))
        view = CostView(
            params=None,
            frozen=None,
            mean=moments.mean,
            std=_std(moments),
            centre=jnp.float32(0.0),
            scale=jnp.float32(1.0),
            absorbing=jnp.float32((1.0 - ended) * (self.config.absorbing or 0.0)),
            gain=jnp.float32(1.0),
            evidence=jnp.float32(0.0),
        )
        view, kept = self.begin(view, draw_key, expert)
        return CostState(view=view, moments=moments, key=jax.random.key_data(key), **kept)

    def update(
        self, state: CostState, learner: Pairs, expert: Pairs, masses: "tuple[float, float]"
    ) -> tuple[CostState, dict[str, "Scalar"]]:
        """Play one round against minibatches [n, B, ...]; `masses` are the absorbing masses (learner, expert)."""
        return _compiled_update(self)(state, learner, expert, jnp.asarray(masses, jnp.float32))

    def _update(
        self, state: CostState, learner: Pairs, expert: Pairs, masses: "Float[jax.Array, '2']"
    ) -> tuple[CostState, dict[str, "Scalar"]]:
        config = self.config
        both = flat(learner), flat(expert)
        seen = [self.inputs(pairs.observation, pairs.action) for pairs in both]
        moments = merge(state.moments, jnp.concatenate(seen))
        view = state.view._replace(mean=moments.mean, std=_std(moments))
        params, kept, metrics = self.learn(state, view, learner, expert)
        view = view._replace(params=params)

        costs = [self.read(self.output(view, pairs.observation, pairs.action)) for pairs in both]
        means = [mean(cost, pairs.weight) for cost, pairs in zip(costs, both, strict=True)]
        centre = 0.5 * (means[0] + means[1])
        squares = [mean((cost - centre) ** 2, pairs.weight) for cost, pairs in zip(costs, both, strict=True)]
        spread = jnp.sqrt(0.5 * (squares[0] + squares[1]))
        evidence = jnp.clip(0.5 * (means[0] - means[1]) / jnp.maximum(spread, 1e-6), 0.0, 1.0)
        view = view._replace(evidence=evidence)
        if config.scale != "own":
            view = view._replace(centre=centre, scale=jnp.maximum(spread, 1e-6))
        if config.scale == "evidence":
            view = view._replace(gain=evidence)
        if config.absorbing is not None:
            moved = view.absorbing + ABSORBING_STEP * (masses[0] - masses[1])
            view = view._replace(absorbing=jnp.clip(moved, -config.absorbing, config.absorbing))
        metrics |= {
            "cost_gap": means[0] - means[1],
            "cost_spread": spread,
            "evidence": evidence,
            "absorbing_mass": masses[0],
        }
        return state._replace(view=view, moments=moments, **kept), metrics

    # ----- data

    def weigh(self, times: "Int[np.ndarray, '*n']") -> "Float[np.ndarray, '*n']":
        """How much steps at these times of their episodes count."""
        return np.ones(times.shape, np.float32)

    def minibatches(self, memory: Replay, rng: np.random.Generator) -> Pairs:
        """Draw minibatches of the learner's pairs, from the window or from all past steps."""
        count = (self.config.minibatches, self.config.batch_size)
        if self.config.window is None:
            index = rng.integers(0, len(memory), size=count)
        else:
            index = rng.choice(memory.newest(self.config.window), size=count)
        return memory.pairs(index, self.weigh)


@lru_cache(maxsize=32)
def _compiled_update(player: CostBase) -> Callable[..., tuple[CostState, dict[str, "Scalar"]]]:
    return jax.jit(player._update)


def flat(pairs: Pairs) -> Pairs:
    """Minibatches [n, B, ...] as one [n B, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), pairs)


def _std(moments: Moments) -> "Float[jax.Array, 'D']":
    return jnp.maximum(jnp.sqrt(moments.variance), _STD_FLOOR)


def mean(values: "Float[jax.Array, 'B *F']", weight: "PerRow") -> "Float[jax.Array, '*F']":
    """Weighted mean over the first axis."""
    return jnp.tensordot(weight, values, axes=1) / jnp.sum(weight)
