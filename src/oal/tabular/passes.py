"""Exact passes over a finite MDP's sparse transitions: values backwards in time, occupancies forwards, sampling.

Compiled by Numba without the interpreter lock; `oal.tabular.mdp` checks the arguments and calls these.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.tabular.fastmath import draw, invert, jit, uniform

Index = NDArray[np.int64]


class Transitions(NamedTuple):
    """An MDP as the compiled code reads it; see `FiniteMDP` for the rows."""

    indptr: Index
    successors: Index
    probabilities: Array
    cumulative: Array  # running sums of the probabilities within each row
    stationary: bool
    initial: Array
    initial_cumulative: Array


_none, _nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
NO_TRANSITIONS = Transitions(_nowhere, _nowhere, _none, _none, True, _none, _none)
"""What is known of an environment that can only be sampled."""


@jit
def cumulate_rows(indptr, probabilities):
    """Return the running sums of the probabilities within each row."""
    cumulative = np.empty_like(probabilities)
    for row in range(len(indptr) - 1):
        total = 0.0
        for e in range(indptr[row], indptr[row + 1]):
            total += probabilities[e]
            cumulative[e] = total
    return cumulative


@jit
def expected_next(indptr, successors, probabilities, row, values):
    """Return `sum_s' p(s' | row) values[s']`."""
    total = 0.0
    for e in range(indptr[row], indptr[row + 1]):
        total += probabilities[e] * values[successors[e]]
    return total


@jit
def evaluate(transitions, policy, cost):
    """Return V and Q of a policy."""
    indptr, successors, probabilities = transitions.indptr, transitions.successors, transitions.probabilities
    H, S, A = policy.shape
    V = np.zeros((H, S))
    Q = cost.copy()
    for h in range(H - 1, -1, -1):
        first = 0 if transitions.stationary else h * S
        for s in range(S):
            for a in range(A):
                if h + 1 < H:
                    Q[h, s, a] += expected_next(indptr, successors, probabilities, (first + s) * A + a, V[h + 1])
                V[h, s] += policy[h, s, a] * Q[h, s, a]
    return V, Q


@jit
def optimal(transitions, cost):
    """Return a deterministic policy of least cost, the first action among equals, and its V."""
    indptr, successors, probabilities = transitions.indptr, transitions.successors, transitions.probabilities
    H, S, A = cost.shape
    V = np.zeros((H, S))
    policy = np.zeros((H, S, A))
    for h in range(H - 1, -1, -1):
        first = 0 if transitions.stationary else h * S
        for s in range(S):
            best, least = 0, np.inf
            for a in range(A):
                q = cost[h, s, a]
                if h + 1 < H:
                    q += expected_next(indptr, successors, probabilities, (first + s) * A + a, V[h + 1])
                if q < least:
                    best, least = a, q
            policy[h, s, best] = 1.0
            V[h, s] = least
    return policy, V


@jit
def occupancy(transitions, policy):
    """Return d of a policy started from the initial distribution."""
    indptr, successors, probabilities = transitions.indptr, transitions.successors, transitions.probabilities
    H, S, A = policy.shape
    d = np.zeros((H, S, A))
    mass = transitions.initial.copy()
    for h in range(H):
        first = 0 if transitions.stationary else h * S
        after = np.zeros(S)
        for s in range(S):
            if mass[s] == 0.0:
                continue
            for a in range(A):
                d[h, s, a] = mass[s] * policy[h, s, a]
                row = (first + s) * A + a
                for e in range(indptr[row], indptr[row + 1]):
                    after[successors[e]] += d[h, s, a] * probabilities[e]
        mass = after
    return d


@jit
def sample(transitions, policy, episodes, stream):
    """Return the states and actions `[episodes, H]` of a policy's episodes."""
    indptr, successors, cumulative = transitions.indptr, transitions.successors, transitions.cumulative
    H, S, A = policy.shape
    states = np.empty((episodes, H), dtype=np.int64)
    actions = np.empty((episodes, H), dtype=np.int64)
    for i in range(episodes):
        s = invert(transitions.initial_cumulative, 0, S, uniform(stream))
        for h in range(H):
            a = draw(policy[h, s], uniform(stream))
            states[i, h] = s
            actions[i, h] = a
            if h + 1 < H:
                row = ((0 if transitions.stationary else h) * S + s) * A + a
                s = successors[invert(cumulative, indptr[row], indptr[row + 1], uniform(stream))]
    return states, actions


@jit
def reachable(transitions, horizon, n_states, n_actions):
    """Return which states can be reached at which step by some policy: `[H, S]`."""
    reached = np.zeros((horizon, n_states), dtype=np.bool_)
    for s in range(n_states):
        reached[0, s] = transitions.initial[s] > 0.0
    for h in range(horizon - 1):
        layer = 0 if transitions.stationary else h
        for s in range(n_states):
            if reached[h, s]:
                first = (layer * n_states + s) * n_actions
                for e in range(transitions.indptr[first], transitions.indptr[first + n_actions]):
                    if transitions.probabilities[e] > 0.0:
                        reached[h + 1, transitions.successors[e]] = True
    return reached
