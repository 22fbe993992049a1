"""Random problems, and references that enumerate everything: slow, and too plain to be wrong."""

import itertools
from collections.abc import Iterator

import numpy as np

from oal.tabular.mdp import FiniteMDP


def random_distributions(rng: np.random.Generator, *shape: int, zeros: float = 0.3) -> np.ndarray:
    """Draw distributions over the last axis; a share of the entries is exactly zero."""
    x = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    keep = rng.random(shape) >= zeros
    keep[..., 0] |= ~keep.any(-1)
    x = np.where(keep, x, 0.0)
    return x / x.sum(-1, keepdims=True)


def random_mdp(
    rng: np.random.Generator, H: int = 3, S: int = 3, A: int = 2, *, stationary: bool = False, expert: bool = False
) -> FiniteMDP:
    shape = (S, A, S) if stationary else (H, S, A, S)
    return FiniteMDP.dense(
        random_distributions(rng, *shape),
        random_distributions(rng, S),
        horizon=H,
        expert=random_distributions(rng, H, S, A) if expert else None,
    )


def all_trajectories(
    p: np.ndarray, pi: np.ndarray, mu: np.ndarray
) -> Iterator[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """Yield the probability, the states and the actions of every possible trajectory."""
    H, S, A = pi.shape
    for states in itertools.product(range(S), repeat=H):
        for actions in itertools.product(range(A), repeat=H):
            probability = mu[states[0]]
            for h in range(H):
                probability *= pi[h, states[h], actions[h]]
                if h + 1 < H:
                    probability *= p[h, states[h], actions[h], states[h + 1]]
            yield float(probability), states, actions


def occupancy(p: np.ndarray, pi: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Add up the probabilities of the trajectories through each (h, s, a)."""
    d = np.zeros(pi.shape)
    for probability, states, actions in all_trajectories(p, pi, mu):
        for h, (s, a) in enumerate(zip(states, actions, strict=True)):
            d[h, s, a] += probability
    return d


def values(p: np.ndarray, pi: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average the cost over the trajectories that start at each (h, s) and at each (h, s, a)."""
    H, S, A = pi.shape
    V, Q = np.zeros((H, S)), np.zeros((H, S, A))
    for h in range(H):
        for s in range(S):
            for a in range(A):
                first = np.eye(A)[a]
                rest = pi[h:].copy()
                rest[0, s] = first
                for probability, states, actions in all_trajectories(p[h:], rest, np.eye(S)[s]):
                    cost = sum(c[h + t, x, u] for t, (x, u) in enumerate(zip(states, actions, strict=True)))
                    Q[h, s, a] += probability * cost
            V[h, s] = pi[h, s] @ Q[h, s]
    return V, Q


def deterministic_policies(H: int, S: int, A: int) -> Iterator[np.ndarray]:
    """Yield all A^(H S) of them, as [H, S, A]."""
    for choice in itertools.product(range(A), repeat=H * S):
        yield np.eye(A)[np.array(choice).reshape(H, S)]
