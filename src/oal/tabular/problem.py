"""A finite-horizon Markov decision process and episodes of one, checked when they are made.

Arrays follow the paper with zero-based steps: a policy is `[H, S, A]` (or `[S, A]`, the same at every step), a cost
`[H, S, A]` (or `[S, A]`), an occupancy `[H, S, A]`, values `[H, S]`. Transitions are sparse: for each row `(h, s, a)` a
list of successors with their probabilities, stored once for all steps when the dynamics are the same at every step.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from oal.equations import Array
from oal.errors import InputError, at_least
from oal.tabular import passes
from oal.tabular.passes import Index

PROBABILITY_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """A finite-horizon MDP without a cost: `p_h(s' | s, a)`, an initial distribution and a horizon.

    Build one with `FiniteMDP.dense(p, initial)`, with a family of `oal.mdp`, or from edges with `FiniteMDP.sparse`.
    `cost` (the cost a family's expert minimises) and `expert` (that expert's policy) are there for experiments only: no
    learner of oal reads them.
    """

    horizon: int
    n_states: int
    n_actions: int
    initial: Array
    indptr: Index
    """Row `((h * S) + s) * A + a` of the transition table is `indptr[row]:indptr[row + 1]`; h = 0 if `stationary`."""
    successors: Index
    probabilities: Array
    stationary: bool
    name: str = "mdp"
    cost: Array | None = None
    expert: Array | None = None
    transitions: passes.Transitions = field(init=False, repr=False)
    """All that the compiled code reads of it, running sums for sampling included."""

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
        transitions = passes.Transitions(
            self.indptr,
            self.successors,
            self.probabilities,
            passes.cumulate_rows(self.indptr, self.probabilities),
            self.stationary,
            self.initial,
            np.cumsum(self.initial),
        )
        object.__setattr__(self, "transitions", transitions)
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
        rows = table.reshape(-1, table.shape[-1])
        row, successor = np.nonzero((rows != 0) | ~np.isfinite(rows))
        return cls.sparse(
            (int(horizon if horizon is not None else table.shape[0]), table.shape[-3], table.shape[-2]),
            row,
            successor,
            rows[row, successor],
            initial,
            stationary=table.ndim == 3,
            name=name,
            cost=cost,
            expert=expert,
        )

    @classmethod
    def sparse(
        cls,
        shape: tuple[int, int, int],
        rows: ArrayLike,
        successors: ArrayLike,
        probabilities: ArrayLike,
        initial: ArrayLike | int = 0,
        *,
        stationary: bool,
        name: str = "mdp",
        cost: ArrayLike | None = None,
        expert: ArrayLike | None = None,
    ) -> "FiniteMDP":
        """Build from edges in any order: each leads from a row `((h * S) + s) * A + a` to a successor."""
        horizon, n_states, n_actions = shape
        rows = np.asarray(rows)
        order = np.argsort(rows, kind="stable")
        n_rows = (1 if stationary else horizon) * n_states * n_actions
        return cls(
            horizon=horizon,
            n_states=n_states,
            n_actions=n_actions,
            initial=as_initial(initial, n_states),
            indptr=np.searchsorted(rows[order], np.arange(n_rows + 1)).astype(np.int64),
            successors=np.asarray(successors, dtype=np.int64)[order],
            probabilities=np.asarray(probabilities, dtype=np.float64)[order],
            stationary=stationary,
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

    @property
    def has_expert(self) -> bool:
        """Whether there is an expert: its policy, or a cost that it minimises."""
        return self.expert is not None or self.cost is not None

    def table(self) -> Array:
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

    states: Index
    actions: Index

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

    def occupancy(self, shape: tuple[int, int, int]) -> Array:
        """Estimate d^E by counting: `d_hat[h, s, a]` is the share of episodes with `(s, a)` at step h."""
        self.check(shape)
        d = np.zeros(shape)
        steps = np.broadcast_to(np.arange(shape[0]), self.states.shape)
        np.add.at(d, (steps, self.states, self.actions), 1.0 / len(self))
        return d


def as_initial(initial: ArrayLike | int, n_states: int) -> Array:
    """Return an initial distribution `[S]`, given as one or as the only state to start from."""
    if isinstance(initial, (int, np.integer)):
        if not 0 <= initial < n_states:
            raise InputError(f"initial state {initial} is outside the states 0..{n_states - 1}")
        one = np.zeros(n_states)
        one[initial] = 1.0
        return one
    return np.asarray(initial, dtype=np.float64)


def _check_distribution(what: str, values: Array, size: int) -> None:
    if values.shape != (size,):
        raise InputError(f"{what} has the shape {values.shape}: it must be ({size},)")
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        raise InputError(f"{what} holds {values[bad][0]}: probabilities must be finite and not negative")
    if abs(values.sum() - 1) > PROBABILITY_TOLERANCE:
        raise InputError(f"{what} sums to {values.sum():.10g}: it must sum to one")


def _per_step(mdp: FiniteMDP, values: ArrayLike, what: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in (mdp.shape, mdp.shape[1:]):
        raise InputError(f"{what} has the shape {array.shape}: it must be [H, S, A] = {mdp.shape} or {mdp.shape[1:]}")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{what} holds a value that is not finite")
    # A broadcast view is read-only, which Numba takes for another type: it would compile everything once more.
    return np.ascontiguousarray(array if array.shape == mdp.shape else np.array(np.broadcast_to(array, mdp.shape)))


def as_cost(mdp: FiniteMDP, cost: ArrayLike) -> Array:
    """Return a cost as `[H, S, A]`."""
    return _per_step(mdp, cost, "cost")


def as_policy(mdp: FiniteMDP, policy: ArrayLike) -> Array:
    """Return a policy as `[H, S, A]` after checking that its rows are distributions."""
    array = _per_step(mdp, policy, "policy")
    if array.min() < 0 or np.abs(array.sum(-1) - 1).max() > PROBABILITY_TOLERANCE:
        h, s = np.unravel_index(np.argmax(np.abs(array.sum(-1) - 1) + (array < 0).any(-1)), array.shape[:2])
        raise InputError(f"policy at (h={h}, s={s}) is {array[h, s]}: it must be a distribution over the actions")
    return array
