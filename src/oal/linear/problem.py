"""Linear MDPs and episodes of them: one-hot features of a finite MDP, and anchored problems of any number of states.

A problem has a horizon H, or is discounted: then an episode goes on after each step with probability gamma, which makes
sums over episodes discounted sums. Expected features are sums over an episode in both. States are never enumerated,
except once for the expected features of an anchored problem's expert.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.base import seeding
from oal.equations import Array
from oal.errors import InputError, at_least, whole
from oal.linear import features
from oal.linear.features import Model
from oal.tabular import mdp as tables
from oal.tabular.mdp import FiniteMDP, Trajectories
from oal.tabular.passes import NO_TRANSITIONS, Index

LARGEST = 1 << 50
"""States are numbered with 64 bits, of which products with actions and anchors take some."""
LEFT_OUT = 1e-12
"""Episodes of a discounted problem are cut where this share of them would still go on."""
PLANNED_STATES = 400
"""States of each anchor from which an anchored problem's expert is planned."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes of a linear MDP: `states[N, T]` and `actions[N, T]`, of which the first `lengths[N]` steps count."""

    states: Index
    actions: Index
    lengths: Index

    def __post_init__(self) -> None:
        pairs = Trajectories(self.states, self.actions)  # checks shapes and types
        lengths = np.asarray(self.lengths)
        if lengths.shape != (len(pairs),) or not np.issubdtype(lengths.dtype, np.integer):
            raise InputError(f"lengths are {lengths.dtype}{lengths.shape}: they must be N = {len(pairs)} whole numbers")
        if lengths.min() < 1 or lengths.max() > pairs.states.shape[1]:
            raise InputError(f"lengths run from {lengths.min()} to {lengths.max()}: they must lie in 1..T")
        object.__setattr__(self, "states", pairs.states)
        object.__setattr__(self, "actions", pairs.actions)
        object.__setattr__(self, "lengths", np.array(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, which: slice) -> "Episodes":
        return Episodes(self.states[which], self.actions[which], self.lengths[which])

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Which steps count, `[N, T]`."""
        return np.arange(self.states.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True, eq=False)
class LinearMDP:
    """A linear MDP: P_h(s' | s, a) = <phi(s, a), mu_h(s')>, with phi(s, a) a distribution over d anchors.

    Make one with `one_hot` or `anchored`. `expert[H, d]` (or `[1, d]`, discounted) is the expert's policy, proportional
    to exp(-expert . phi); it is there for experiments only, and no learner reads it.
    """

    name: str
    model: Model
    horizon: int | None
    """None in a discounted problem."""
    discount: float
    """1 where there is a horizon."""
    expert: Array | None

    def __post_init__(self) -> None:
        if self.horizon is not None:
            whole("horizon", self.horizon, 1)
            if self.discount != 1:
                raise InputError(f"discount is {self.discount} beside a horizon of {self.horizon}: give one of the two")
        elif not 0 < self.discount < 1:
            raise InputError(f"discount is {self.discount}: it must lie strictly between 0 and 1")
        if self.expert is not None and self.expert.shape != (self.steps, self.dimension):
            raise InputError(f"expert has the shape {self.expert.shape}: it must be {(self.steps, self.dimension)}")

    @property
    def n_states(self) -> int:
        return self.model.n_states

    @property
    def n_actions(self) -> int:
        return self.model.n_actions

    @property
    def dimension(self) -> int:
        return self.model.dimension

    @property
    def steps(self) -> int:
        """How many policies there are: one for each step, or one in a discounted problem."""
        return self.horizon or 1

    @property
    def length(self) -> float:
        """The expected length of an episode: H, or 1 / (1 - gamma)."""
        return float(self.horizon) if self.horizon is not None else 1.0 / (1.0 - self.discount)

    @property
    def longest(self) -> int:
        """How long an episode can be."""
        return self.horizon or math.ceil(math.log(LEFT_OUT) / math.log(self.discount))

    def phi(self, states: ArrayLike) -> Array:
        """Return phi(s, a) as `[..., A, d]` (for small problems and tests)."""
        states = np.asarray(states, dtype=np.int64)
        index, value = self.sparse_phi(states.ravel())
        dense = np.zeros((*index.shape[:2], self.dimension))
        rows = np.arange(len(dense))[:, None, None]
        np.add.at(dense, (rows, np.arange(self.n_actions)[:, None], index), value)
        return dense.reshape(*states.shape, self.n_actions, self.dimension)

    def sparse_phi(self, states: Index) -> tuple[Index, Array]:
        """Return the features of states `[n]` as `index[n, A, support]` and `value[n, A, support]`."""
        if states.size and (states.min() < 0 or states.max() >= self.n_states):
            raise InputError(f"state {states.min()} or {states.max()} is outside the states of {self.name}")
        index = np.empty((len(states), self.n_actions, self.model.support), dtype=np.int64)
        value = np.empty(index.shape)
        features.open_states(self.model, np.array(states, dtype=np.int64), index, value)
        return index, value

    def sample(self, episodes: int, *, rng: np.random.Generator, policy: Array | None = None) -> Episodes:
        """Play the expert, or the policy proportional to exp(-policy . phi)."""
        at_least("number of episodes", episodes, 1)
        theta = self.expert if policy is None else np.ascontiguousarray(policy, dtype=np.float64)
        if theta is None:
            raise InputError(f"{self.name} has no expert: give the episodes or a policy")
        stream = rng.integers(0, 2**64, size=4, dtype=np.uint64)
        states = np.zeros((episodes, self.longest), dtype=np.int64)
        actions, lengths = np.zeros_like(states), np.zeros(episodes, dtype=np.int64)
        arguments = (self.model, theta, self.discount, episodes, self.longest, stream)
        features.sample_linear(*arguments, states, actions, lengths)
        width = int(lengths.max())
        return Episodes(states[:, :width], actions[:, :width], lengths)

    def check(self, demos: Episodes | Trajectories) -> Episodes:
        """Return demonstrations as `Episodes` after refusing those of another problem."""
        if isinstance(demos, Trajectories):
            demos = Episodes(demos.states, demos.actions, np.full(len(demos), demos.states.shape[1]))
        width = demos.states.shape[1]
        if self.horizon is not None and (width != self.horizon or demos.lengths.min() < width):
            raise InputError(
                f"demonstrations have {int(demos.lengths.min())} to {width} steps but the horizon of {self.name} is "
                f"{self.horizon}"
            )
        Trajectories(demos.states, demos.actions).check((width, self.n_states, self.n_actions), of=self.name)
        return demos

    def feature_sums(self, episodes: Episodes) -> Array:
        """Return the mean over episodes of each step's features `[H, d]`, or, discounted, of their sum `[1, d]`."""
        states, actions = episodes.states[episodes.counted], episodes.actions[episodes.counted]
        index, value = self.sparse_phi(states)
        rows = np.arange(len(states))
        steps = np.nonzero(episodes.counted)[1] if self.horizon is not None else np.zeros(len(states), dtype=np.int64)
        total = np.zeros((self.steps, self.dimension))
        np.add.at(total, (steps[:, None], index[rows, actions]), value[rows, actions])
        return total / len(episodes)

    @cached_property
    def expert_flow(self) -> Array:
        """The expert's E_{s ~ mu_i} sum_a pi_h(a | s) phi(s, a), `[H, d, d]`: exact, from a visit to every state."""
        assert self.expert is not None
        assert self.model.kind == features.ANCHORED
        flow = np.empty((self.steps, self.dimension, self.dimension))
        for h in range(self.steps):
            features.linear_flow(self.model, self.expert[h], flow[h])
        return flow

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that makes the problem, its expert apart: a learner goes on in the same problem only."""
        digest = hashlib.sha256(repr((self.horizon, self.discount, self.model[:6])).encode())
        for array in (self.model.key, self.model.start, *self.model.transitions):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        span = f"H={self.horizon}" if self.horizon is not None else f"discount {self.discount:g}"
        return f"LinearMDP({self.name}: {span}, S={self.n_states:,}, A={self.n_actions}, d={self.dimension})"


def one_hot(table: FiniteMDP, *, discount: float | None = None) -> LinearMDP:
    """Return a finite MDP as a linear one with a feature for each (s, a), d = S A.

    With a `discount` the horizon is dropped: the dynamics must not depend on the step, and the expert's policy at the
    first step is taken for all.
    """
    H, S, A = table.shape
    if discount is not None and not table.stationary:
        raise InputError(f"the dynamics of {table.name} depend on the step: a discounted problem has none")
    expert = None
    if table.has_expert:
        with np.errstate(divide="ignore"):
            # actions never taken get what is nothing after exp
            expert = np.minimum(-np.log(tables.expert_policy(table)), 1e4).reshape(H, S * A)
        expert = expert if discount is None else expert[:1]
    model = Model(features.ONE_HOT, S, A, S * A, 1, 0, np.zeros(1, dtype=np.uint64), table.transitions, np.zeros(0))
    return LinearMDP(table.name, model, None if discount is not None else H, discount or 1.0, expert)


def anchored(
    n_states: int = 1_000_000,
    dimension: int = 20,
    n_actions: int = 5,
    *,
    horizon: int | None = None,
    discount: float | None = None,
    support: int = 3,
    reach: int | None = None,
    temperature: float = 0.05,
    seed: int = 0,
) -> LinearMDP:
    """A random linear MDP whose states are made when they are visited: time and memory do not depend on their number.

    States are cut into d blocks, one for each anchor. In block i, each (s, a) has its own distribution over `support`
    of the anchors i, i + 1, ..., i + `reach` - 1 (in a circle; a third of them if not given). Episodes start in block 0
    and take `horizon` steps (10), or are discounted. The expert plays exp(-Q / temperature) for a hidden cost of the
    box, with Q planned from a sample of states.
    """
    whole("number of states", n_states, 1)
    whole("dimension", dimension, 1)
    whole("number of actions", n_actions, 1)
    whole("support", support, 1)
    if not dimension <= n_states <= LARGEST:
        raise InputError(f"number of states is {n_states}: it must lie between the dimension, {dimension}, and 2^50")
    reach = min(max(2, dimension // 3), dimension) if reach is None else whole("reach", reach, 1)
    if reach > dimension:
        raise InputError(f"reach is {reach}: there are only {dimension} anchors")
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}: it must be positive; a small one is a greedy expert")
    if discount is None and horizon is None:
        horizon = 10
    start = np.zeros(dimension)
    start[0] = 1.0
    key = seeding.sequence(seed, "linear mdp").generate_state(1, np.uint64).astype(np.uint64)
    model = Model(features.ANCHORED, n_states, n_actions, dimension, support, reach, key, NO_TRANSITIONS, start)
    name = f"anchored({n_states:,}, d={dimension})"
    bare = LinearMDP(name, model, horizon, 1.0 if discount is None else discount, None)
    hidden = seeding.generator(seed, "linear mdp cost").random(dimension)
    expert = _planned(bare, hidden, seeding.generator(seed, "linear mdp plan")) / temperature
    return LinearMDP(name, model, bare.horizon, bare.discount, expert)


def block_sample(problem: LinearMDP, count: int, rng: np.random.Generator) -> Index:
    """Draw `count` states of each anchor's block, `[d, count]`."""
    edges = np.arange(problem.dimension + 1) * problem.n_states // problem.dimension
    return edges[:-1, None] + (rng.random((problem.dimension, count)) * np.diff(edges)[:, None]).astype(np.int64)


def _planned(problem: LinearMDP, cost: Array, rng: np.random.Generator) -> Array:
    """Return the weights `[H, d]` of Q for the cost `cost . phi`, by value iteration over a sample of each block."""
    states = block_sample(problem, PLANNED_STATES, rng)
    index, value = problem.sparse_phi(states.ravel())

    def after(theta: Array) -> Array:
        least = (theta[index] * value).sum(-1).min(-1)
        return least.reshape(states.shape).mean(1)

    theta = np.empty((problem.steps, problem.dimension))
    theta[-1] = cost
    for h in reversed(range(problem.steps - 1)):
        theta[h] = cost + after(theta[h + 1])
    if problem.horizon is None:
        for _ in range(min(problem.longest, 1000)):
            theta[0] = cost + problem.discount * after(theta[0])
    return theta
