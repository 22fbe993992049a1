"""Finite-horizon Markov decision processes: exact values, occupancies, optimal policies, sampling, and families.

Arrays follow the paper with zero-based steps: a policy is `[H, S, A]` (or `[S, A]`, the same at every step), a cost
`[H, S, A]` (or `[S, A]`), an occupancy `[H, S, A]`, values `[H, S]`. Transitions are sparse: for each row `(h, s, a)` a
list of successors with their probabilities, stored once for all steps when the dynamics are the same at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.errors import InputError, at_least
from oal.tabular import kernels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROBABILITY_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A finite-horizon MDP without a cost: `p_h(s' | s, a)`, an initial distribution and a horizon.

    Build one with `FiniteMDP.dense(p, initial)`, with a family of this module, or from sparse rows as they are stored
    here. `cost` (the cost a family's expert minimises) and `expert` (that expert's policy) are there for experiments
    only: no learner of oal reads them.
    """

    horizon: int
    n_states: int
    n_actions: int
    initial: Floats
    indptr: Ints
    """Row `((h * S) + s) * A + a` of the transition table is `indptr[row]:indptr[row + 1]`; h = 0 if `stationary`."""
    successors: Ints
    probabilities: Floats
    stationary: bool
    name: str = "mdp"
    cost: Floats | None = None
    expert: Floats | None = None
    cumulative: Floats = field(init=False, repr=False)
    """Running sums of `probabilities` within each row, for sampling by inversion."""

    def __post_init__(self) -> None:
        at_least("horizon", self.horizon, 1)
        at_least("n_states", self.n_states, 1)
        at_least("n_actions", self.n_actions, 1)
        _check_distribution("initial distribution", self.initial, self.n_states)
        rows = self.layers * self.n_states * self.n_actions
        if self.indptr.shape != (rows + 1,):
            raise InputError(
                f"transition table has {len(self.indptr) - 1} rows: it must have "
                f"{'S*A' if self.stationary else 'H*S*A'} = {rows}"
            )
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.successors):
            raise InputError(
                f"indptr runs from {self.indptr[0]} to {self.indptr[-1]}: it must run from 0 to the number of "
                f"successors, {len(self.successors)}"
            )
        if np.any(np.diff(self.indptr) < 1):
            row = int(np.argmax(np.diff(self.indptr) < 1))
            raise InputError(f"transition row {self.describe_row(row)} has no successor: each row must sum to one")
        if len(self.successors) != len(self.probabilities):
            raise InputError(f"{len(self.successors)} successors but {len(self.probabilities)} probabilities")
        outside = (self.successors < 0) | (self.successors >= self.n_states)
        if outside.any():
            worst = int(self.successors[np.argmax(outside)])
            raise InputError(f"successor {worst} is outside the states 0..{self.n_states - 1} of the MDP")
        bad = ~np.isfinite(self.probabilities) | (self.probabilities < 0)
        if bad.any():
            entry = int(np.argmax(bad))
            row = int(np.searchsorted(self.indptr, entry, side="right")) - 1
            raise InputError(
                f"transition row {self.describe_row(row)} holds the probability {self.probabilities[entry]}: "
                "probabilities must be finite and not negative"
            )
        sums = np.add.reduceat(self.probabilities, self.indptr[:-1])
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > PROBABILITY_TOLERANCE:
            raise InputError(
                f"transition row {self.describe_row(worst)} sums to {sums[worst]:.10g}: it must sum to one"
            )
        object.__setattr__(self, "cumulative", kernels.cumulate_rows(self.indptr, self.probabilities))
        if self.cost is not None:
            object.__setattr__(self, "cost", as_cost(self, self.cost))
        if self.expert is not None:
            object.__setattr__(self, "expert", as_policy(self, self.expert))

    @classmethod
    def dense(
        cls,
        p: ArrayLike,
        initial: ArrayLike | int = 0,
        *,
        horizon: int | None = None,
        name: str = "mdp",
        cost: ArrayLike | None = None,
        expert: ArrayLike | None = None,
    ) -> "FiniteMDP":
        """Build from `p[H, S, A, S']`, or from `p[S, A, S']` and a horizon when the dynamics are stationary."""
        table = np.asarray(p, dtype=np.float64)
        if table.ndim == 3 and horizon is None:
            raise InputError("p has the shape [S, A, S'] of stationary dynamics: give the horizon too")
        if table.ndim not in (3, 4) or table.shape[-1] != table.shape[-3]:
            raise InputError(f"p has the shape {table.shape}: it must be [H, S, A, S'] or [S, A, S'] with S' = S")
        if table.ndim == 4 and horizon not in (None, table.shape[0]):
            raise InputError(f"horizon is {horizon} but p has {table.shape[0]} steps: leave one of them out")
        n_states, n_actions = table.shape[-3], table.shape[-2]
        rows = table.reshape(-1, n_states)
        keep = (rows != 0) | ~np.isfinite(rows)
        indptr = np.concatenate([[0], np.cumsum(keep.sum(1))]).astype(np.int64)
        return cls(
            horizon=int(horizon if horizon is not None else table.shape[0]),
            n_states=n_states,
            n_actions=n_actions,
            initial=_as_initial(initial, n_states),
            indptr=indptr,
            successors=np.nonzero(keep)[1].astype(np.int64),
            probabilities=rows[keep],
            stationary=table.ndim == 3,
            name=name,
            cost=None if cost is None else np.asarray(cost, dtype=np.float64),
            expert=None if expert is None else np.asarray(expert, dtype=np.float64),
        )

    @property
    def layers(self) -> int:
        """How many copies of the transition table are stored: one, or one for each step."""
        return 1 if self.stationary else self.horizon

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.horizon, self.n_states, self.n_actions

    def table(self) -> Floats:
        """Return the dense `p[H, S, A, S']` (for small MDPs)."""
        size = self.horizon * self.n_states**2 * self.n_actions
        if size > 5e7:
            raise InputError(f"a dense table of {self.name} would hold {size:.1e} numbers: use the sparse rows")
        p = np.zeros((self.layers * self.n_states * self.n_actions, self.n_states))
        rows = np.repeat(np.arange(len(p)), np.diff(self.indptr))
        np.add.at(p, (rows, self.successors), self.probabilities)
        p = p.reshape(self.layers, self.n_states, self.n_actions, self.n_states)
        return np.broadcast_to(p, (self.horizon, *p.shape[1:])).copy()

    def describe_row(self, row: int) -> str:
        state_action, action = divmod(row, self.n_actions)
        step, state = divmod(state_action, self.n_states)
        at = "" if self.stationary else f"h={step}, "
        return f"({at}s={state}, a={action})"

    def __repr__(self) -> str:
        kind = "stationary" if self.stationary else "time-dependent"
        return (
            f"FiniteMDP({self.name}: H={self.horizon}, S={self.n_states}, A={self.n_actions}, {kind}, "
            f"{len(self.successors):,} transitions)"
        )


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes of a finite MDP: `states[N, H]` and `actions[N, H]`, whole numbers."""

    states: Ints
    actions: Ints

    def __post_init__(self) -> None:
        for name in ("states", "actions"):
            values = np.asarray(getattr(self, name))
            if values.ndim != 2 or values.size == 0:
                raise InputError(f"{name} of the trajectories have the shape {values.shape}: it must be [N, H], N >= 1")
            if not np.issubdtype(values.dtype, np.integer):
                raise InputError(f"{name} of the trajectories are {values.dtype}: they must be whole numbers")
            # A copy: arrays of a file are read-only, which Numba takes for another type and compiles for again.
            object.__setattr__(self, name, np.array(values, dtype=np.int64, order="C"))
        if self.states.shape != self.actions.shape:
            raise InputError(f"states {self.states.shape} and actions {self.actions.shape} must have the same shape")

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, which: slice) -> "Trajectories":
        return Trajectories(self.states[which], self.actions[which])

    def check(self, shape: tuple[int, int, int], *, of: str = "the MDP") -> None:
        """Refuse demonstrations of another horizon, state space or action space."""
        horizon, n_states, n_actions = shape
        if self.states.shape[1] != horizon:
            raise InputError(f"demonstrations have {self.states.shape[1]} steps but the horizon of {of} is {horizon}")
        for name, values, size in (("state", self.states, n_states), ("action", self.actions, n_actions)):
            if values.min() < 0 or values.max() >= size:
                bad = int(values.min()) if values.min() < 0 else int(values.max())
                raise InputError(
                    f"demonstrations hold the {name} {bad} but {of} has the {name}s 0..{size - 1}: "
                    "they were recorded in another MDP"
                )

    def occupancy(self, shape: tuple[int, int, int]) -> Floats:
        """Estimate d^E by counting: `d_hat[h, s, a]` is the share of episodes with `(s, a)` at step h."""
        self.check(shape)
        d = np.zeros(shape)
        steps = np.broadcast_to(np.arange(shape[0]), self.states.shape)
        np.add.at(d, (steps, self.states, self.actions), 1.0 / len(self))
        return d


def _as_initial(initial: ArrayLike | int, n_states: int) -> Floats:
    if isinstance(initial, (int, np.integer)):
        if not 0 <= initial < n_states:
            raise InputError(f"initial state {initial} is outside the states 0..{n_states - 1}")
        one = np.zeros(n_states)
        one[initial] = 1.0
        return one
    return np.asarray(initial, dtype=np.float64)


def _check_distribution(what: str, values: Floats, size: int) -> None:
    if values.shape != (size,):
        raise InputError(f"{what} has the shape {values.shape}: it must be ({size},)")
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        raise InputError(f"{what} holds {values[bad][0]}: probabilities must be finite and not negative")
    if abs(values.sum() - 1) > PROBABILITY_TOLERANCE:
        raise InputError(f"{what} sums to {values.sum():.10g}: it must sum to one")


def _per_step(mdp: FiniteMDP, values: ArrayLike, what: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in (mdp.shape, mdp.shape[1:]):
        raise InputError(f"{what} has the shape {array.shape}: it must be [H, S, A] = {mdp.shape} or {mdp.shape[1:]}")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{what} holds a value that is not finite")
    # A broadcast view is read-only, which Numba takes for another type: it would compile everything once more.
    return np.ascontiguousarray(array if array.shape == mdp.shape else np.array(np.broadcast_to(array, mdp.shape)))


def as_cost(mdp: FiniteMDP, cost: ArrayLike) -> Floats:
    """Return a cost as `[H, S, A]`."""
    return _per_step(mdp, cost, "cost")


def as_policy(mdp: FiniteMDP, policy: ArrayLike) -> Floats:
    """Return a policy as `[H, S, A]` after checking that its rows are distributions."""
    array = _per_step(mdp, policy, "policy")
    if array.min() < 0 or np.abs(array.sum(-1) - 1).max() > PROBABILITY_TOLERANCE:
        h, s = np.unravel_index(np.argmax(np.abs(array.sum(-1) - 1) + (array < 0).any(-1)), array.shape[:2])
        raise InputError(f"policy at (h={h}, s={s}) is {array[h, s]}: it must be a distribution over the actions")
    return array


def uniform_policy(mdp: FiniteMDP) -> Floats:
    return np.full(mdp.shape, 1.0 / mdp.n_actions)


def evaluate(mdp: FiniteMDP, policy: ArrayLike, cost: ArrayLike) -> tuple[Floats, Floats]:
    """Return `V[H, S]` and `Q[H, S, A]`: the expected cost to go of a policy."""
    return kernels.evaluate(
        mdp.indptr, mdp.successors, mdp.probabilities, mdp.stationary, as_policy(mdp, policy), as_cost(mdp, cost)
    )


def optimal_policy(mdp: FiniteMDP, cost: ArrayLike) -> tuple[Floats, Floats]:
    """Return a deterministic policy `[H, S, A]` of least cost (the first action among equals) and its `V[H, S]`."""
    return kernels.optimal(mdp.indptr, mdp.successors, mdp.probabilities, mdp.stationary, as_cost(mdp, cost))


def occupancy(mdp: FiniteMDP, policy: ArrayLike) -> Floats:
    """Return `d[h, s, a] = Pr(s_h = s, a_h = a)` of a policy started from the initial distribution."""
    return kernels.occupancy(
        mdp.indptr, mdp.successors, mdp.probabilities, mdp.stationary, mdp.initial, as_policy(mdp, policy)
    )


def value(mdp: FiniteMDP, policy: ArrayLike, cost: ArrayLike) -> float:
    """Return the expected cost of an episode, `<c, d>`."""
    return float(mdp.initial @ evaluate(mdp, policy, cost)[0][0])


def policy_of_occupancy(d: Floats) -> Floats:
    """Return the policy `d[h, s, a] / d[h, s]`, uniform where the occupancy is zero."""
    mass = d.sum(-1, keepdims=True)
    return np.where(mass > 0, d / np.where(mass > 0, mass, 1.0), 1.0 / d.shape[-1])


def sample(mdp: FiniteMDP, policy: ArrayLike, episodes: int, *, rng: np.random.Generator) -> Trajectories:
    """Roll out a policy: `episodes` independent trajectories of H steps."""
    at_least("number of episodes", episodes, 1)
    stream = rng.integers(0, 2**64, size=4, dtype=np.uint64)
    return Trajectories(
        *kernels.sample(
            mdp.indptr,
            mdp.successors,
            mdp.cumulative,
            mdp.stationary,
            np.cumsum(mdp.initial),
            as_policy(mdp, policy),
            episodes,
            stream,
        )
    )


def expert_policy(mdp: FiniteMDP) -> Floats:
    """Return the expert a family comes with: its own, or the optimal policy of its cost."""
    if mdp.expert is not None:
        return mdp.expert
    if mdp.cost is None:
        raise InputError(f"{mdp.name} has neither an expert nor a cost: give the expert's policy or trajectories")
    return optimal_policy(mdp, mdp.cost)[0]


# Families ---------------------------------------------------------------------------------------------------------


def chain(horizon: int = 32, alpha: float = 0.1) -> FiniteMDP:
    """The paper's stochastic chain (appendix, figure of the chain): two states, two actions, start in s0.

    In s0, a0 stays with probability 1 - alpha and a1 leaves for s1, which is never left. The expert always plays a0.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is {alpha}: it must be a probability")
    p = np.zeros((2, 2, 2))
    p[0, 0] = [1 - alpha, alpha]
    p[0, 1, 1] = p[1, :, 1] = 1.0
    return FiniteMDP.dense(p, 0, horizon=horizon, name=f"chain(alpha={alpha:g})", expert=[[1.0, 0.0], [1.0, 0.0]])


def spawn(n_states: int = 50, horizon: int = 3) -> FiniteMDP:
    """The MDP of the paper's BC experiment: start anywhere; a0 leads to the first state, a1 stays; then nothing moves.

    The first state stays where it is under both actions, and so does every state after the first step. The expert
    always plays a0, so it is in the first state from the second step on.
    """
    at_least("n_states", n_states, 2)
    at_least("horizon", horizon, 2)
    p = np.zeros((horizon, n_states, 2, n_states))
    p[:] = np.eye(n_states)[:, None, :]
    p[0, :, 0, :] = np.eye(n_states)[0]
    expert = np.zeros((n_states, 2))
    expert[:, 0] = 1.0
    initial = np.full(n_states, 1.0 / n_states)
    return FiniteMDP.dense(p, initial, name=f"spawn({n_states})", expert=expert)


def garnet(
    n_states: int = 20,
    n_actions: int = 3,
    horizon: int = 10,
    *,
    branching: int = 3,
    seed: int = 0,
    stationary: bool = False,
    reachable: int | None = None,
) -> FiniteMDP:
    """A random MDP (GARNET): each row has `branching` random successors with random probabilities; a random cost.

    `reachable` places that many states at random among `n_states` and lets only them be reached: the same process
    whatever the number of states around it.
    """
    at_least("branching", branching, 1)
    at_least("seed", seed, 0)
    core = n_states if reachable is None else reachable
    if not branching <= core <= n_states:
        raise InputError(f"branching {branching}, reachable {core} and n_states {n_states} must not decrease")
    rng = np.random.default_rng([seed, 0])
    rows = (1 if stationary else horizon) * core * n_actions
    # Distinct successors without a sort over all states: an arithmetic progression with random start and stride.
    start, stride = rng.integers(core, size=(2, rows, 1))
    successors = (start + (1 + stride % max(1, (core - 1) // branching)) * np.arange(branching)) % core
    cuts = np.sort(rng.random((rows, branching - 1)), axis=1)
    inner = FiniteMDP(
        horizon=horizon,
        n_states=core,
        n_actions=n_actions,
        initial=_as_initial(0, core),
        indptr=np.arange(rows + 1, dtype=np.int64) * branching,
        successors=successors.ravel(),
        probabilities=np.diff(cuts, axis=1, prepend=0.0, append=1.0).ravel(),
        stationary=stationary,
        name=f"garnet({core})",
        cost=rng.random((core, n_actions)),
    )
    return inner if core == n_states else _embed(inner, n_states, np.random.default_rng([seed, 1]))


def _embed(inner: FiniteMDP, n_states: int, rng: np.random.Generator) -> FiniteMDP:
    """Place the states of an MDP at random among more, which stay where they are and are never entered."""
    place = rng.permutation(n_states)[: inner.n_states]
    states = np.arange(inner.layers)[:, None] * n_states + place
    rows = (states[:, :, None] * inner.n_actions + np.arange(inner.n_actions)).ravel()
    width = np.ones(inner.layers * n_states * inner.n_actions, dtype=np.int64)
    width[rows] = inner_width = np.diff(inner.indptr)
    indptr = np.concatenate([[0], np.cumsum(width)])
    successors = np.empty(indptr[-1], dtype=np.int64)
    successors[indptr[:-1]] = np.arange(len(width)) // inner.n_actions % n_states
    probabilities = np.ones(indptr[-1])
    entries = np.repeat(indptr[rows] - inner.indptr[:-1], inner_width) + np.arange(len(inner.successors))
    successors[entries] = place[inner.successors]
    probabilities[entries] = inner.probabilities
    initial = np.zeros(n_states)
    initial[place] = inner.initial
    cost = None
    if inner.cost is not None:
        cost = np.zeros((inner.horizon, n_states, inner.n_actions))
        cost[:, place] = inner.cost
    return FiniteMDP(
        horizon=inner.horizon,
        n_states=n_states,
        n_actions=inner.n_actions,
        initial=initial,
        indptr=indptr,
        successors=successors,
        probabilities=probabilities,
        stationary=inner.stationary,
        name=f"{inner.name} among {n_states} states",
        cost=cost,
    )


def gridworld(
    size: int = 5, horizon: int | None = None, *, slip: float = 0.1, walls: Sequence[tuple[int, int]] = ()
) -> FiniteMDP:
    """A square grid with four moves (up, right, down, left): start in one corner, goal in the other, absorbing.

    With probability `slip` the move is replaced by one of the two to its sides. Each step away from the goal costs 1.
    """
    at_least("size", size, 2)
    if not 0 <= slip <= 1:
        raise InputError(f"slip is {slip}: it must be a probability")
    blocked = set(walls)
    goal = size * size - 1
    for wall in blocked:
        if wall in ((0, 0), (size - 1, size - 1)) or not all(0 <= x < size for x in wall):
            raise InputError(f"wall {wall} is the start, the goal or outside the grid")
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    p = np.zeros((size * size, 4, size * size))
    for row in range(size):
        for column in range(size):
            here = row * size + column
            landing = []
            for down, right in moves:
                r, c = row + down, column + right
                free = 0 <= r < size and 0 <= c < size and (r, c) not in blocked
                landing.append(r * size + c if free else here)
            for action in range(4):
                for turn, probability in ((0, 1 - slip), (1, slip / 2), (-1, slip / 2)):
                    p[here, action, landing[(action + turn) % 4]] += probability
    p[goal] = 0
    p[goal, :, goal] = 1
    cost = np.ones((size * size, 4))
    cost[goal] = 0
    horizon = 4 * size if horizon is None else horizon
    return FiniteMDP.dense(p, 0, horizon=horizon, name=f"gridworld({size})", cost=cost)


def from_gymnasium(env_id: str, horizon: int, **options: Any) -> FiniteMDP:
    """Read the transition table of a toy-text environment (FrozenLake, CliffWalking, Taxi) as installed.

    An episode that terminates spends the rest of the horizon in the state it ended in. A state that is entered both
    with and without termination gets an absorbing copy of its own, so that the process stays Markov.
    The cost is minus the expected reward.
    """
    env = make_discrete(env_id, **options)
    table = getattr(env.unwrapped, "P", None)
    if table is None:
        raise InputError(f"{env_id} has no transition table: learn from samples with  oal.tabular.Sampler")
    n_states, n_actions = int(env.observation_space.n), int(env.action_space.n)  # type: ignore[attr-defined]
    start = np.zeros(n_states)
    distribution = np.asarray(env.unwrapped.initial_state_distrib, dtype=np.float64)
    start[: len(distribution)] = distribution / distribution.sum()
    frontier = [int(s) for s in np.flatnonzero(start)]
    reached = set(frontier)
    ends: set[int] = set()
    goes_on = set(frontier)
    while frontier:
        s = frontier.pop()
        for a in range(n_actions):
            for probability, after, _, terminated in table[s][a]:
                if probability > 0:
                    (ends if terminated else goes_on).add(int(after))
                    if not terminated and after not in reached:
                        reached.add(int(after))
                        frontier.append(int(after))
    copies = {s: n_states + i for i, s in enumerate(sorted(ends & goes_on))}
    absorbing = (ends - set(copies)) | set(copies.values())
    total = n_states + len(copies)
    successors: list[int] = []
    probabilities: list[float] = []
    indptr = [0]
    cost = np.zeros((total, n_actions))
    for s in range(total):
        for a in range(n_actions):
            row: dict[int, float] = {}
            if s in absorbing:
                row[s] = 1.0
            else:
                for probability, after, reward, terminated in table[s][a]:
                    target = copies.get(int(after), int(after)) if terminated else int(after)
                    row[target] = row.get(target, 0.0) + float(probability)
                    cost[s, a] -= float(probability) * float(reward)
            row = {target: probability for target, probability in row.items() if probability > 0}
            successors += row.keys()
            probabilities += row.values()
            indptr.append(len(successors))
    initial = np.zeros(total)
    initial[:n_states] = start
    weights = np.asarray(probabilities)
    sums = np.add.reduceat(weights, indptr[:-1])
    return FiniteMDP(
        horizon=horizon,
        n_states=total,
        n_actions=n_actions,
        initial=initial,
        indptr=np.asarray(indptr, dtype=np.int64),
        successors=np.asarray(successors, dtype=np.int64),
        probabilities=weights / np.repeat(sums, np.diff(indptr)),
        stationary=True,
        name=env_id,
        cost=cost,
    )


def make_discrete(env_id: str, **options: Any) -> Any:
    """Make a Gymnasium environment with Discrete observations and actions, or say why it is not one."""
    import gymnasium

    try:
        env = gymnasium.make(env_id, **options)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise InputError(f"environment '{env_id}' cannot be made: {error}") from None
    for what, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
            raise InputError(f"{what} of {env_id} are {space}: tabular learning needs Discrete spaces that start at 0")
    return env
