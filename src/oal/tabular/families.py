"""Families of finite MDPs: the paper's chain and spawn, garnets, gridworlds, and Gymnasium's toy-text environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from oal.errors import InputError, at_least
from oal.tabular.problem import FiniteMDP
from oal.tabular.sampler import make_discrete


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} is {value}: it must be a probability")


def chain(horizon: int = 32, alpha: float = 0.1) -> FiniteMDP:
    """The paper's stochastic chain (appendix, figure of the chain): two states, two actions, start in s0.

    In s0, a0 stays with probability 1 - alpha and a1 leaves for s1, which is never left. The expert always plays a0.
    """
    _probability("alpha", alpha)
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
    inner = FiniteMDP.sparse(
        (horizon, core, n_actions),
        np.repeat(np.arange(rows), branching),
        successors.ravel(),
        np.diff(cuts, axis=1, prepend=0.0, append=1.0).ravel(),
        stationary=stationary,
        name=f"garnet({core})",
        cost=rng.random((core, n_actions)),
    )
    return inner if core == n_states else _embed(inner, n_states, np.random.default_rng([seed, 1]))


def _embed(inner: FiniteMDP, n_states: int, rng: np.random.Generator) -> FiniteMDP:
    """Place the states of an MDP at random among more, which stay where they are and are never entered."""
    A = inner.n_actions
    place = rng.permutation(n_states)[: inner.n_states]
    states = np.arange(inner.layers)[:, None] * n_states + place
    rows = (states[:, :, None] * A + np.arange(A)).ravel()
    others = np.setdiff1d(np.arange(inner.layers * n_states * A), rows)
    initial = np.zeros(n_states)
    initial[place] = inner.initial
    cost = np.zeros((inner.horizon, n_states, A))
    cost[:, place] = inner.cost
    return FiniteMDP.sparse(
        (inner.horizon, n_states, A),
        np.concatenate([np.repeat(rows, np.diff(inner.indptr)), others]),
        np.concatenate([place[inner.successors], others // A % n_states]),
        np.concatenate([inner.probabilities, np.ones(len(others))]),
        initial,
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
    _probability("slip", slip)
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
    with and without termination gets an absorbing copy, so that the process stays Markov.
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
    edges: list[tuple[int, int, float]] = []
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
            edges += [(s * n_actions + a, target, p) for target, p in row.items() if p > 0]
    rows, successors, weights = (np.asarray(column) for column in zip(*edges, strict=True))
    initial = np.zeros(total)
    initial[:n_states] = start
    return FiniteMDP.sparse(
        (horizon, total, n_actions),
        rows,
        successors,
        weights / np.bincount(rows, weights)[rows],
        initial,
        stationary=True,
        name=env_id,
        cost=cost,
    )
