"""Finite MDPs (`oal.mdp`): exact values, occupancies, optimal policies and sampling.

The MDP itself is defined in `problem`, ready-made ones are in `families`; both are offered here too. Arrays are
`[H, S, A]`, see `problem`.
"""

import numpy as np
from numpy.typing import ArrayLike

from oal.equations import Array
from oal.errors import InputError, at_least
from oal.tabular import passes
from oal.tabular.families import chain, from_gymnasium, garnet, gridworld, spawn
from oal.tabular.problem import FiniteMDP, Trajectories, as_cost, as_policy
from oal.tabular.sampler import make_discrete

__all__ = [
    "FiniteMDP",
    "Trajectories",
    "as_cost",
    "as_policy",
    "chain",
    "evaluate",
    "expert_policy",
    "from_gymnasium",
    "garnet",
    "gridworld",
    "make_discrete",
    "occupancy",
    "optimal_policy",
    "policy_of_occupancy",
    "sample",
    "spawn",
    "uniform_policy",
    "value",
]


def uniform_policy(mdp: FiniteMDP) -> Array:
    """Return the policy that takes every action with the same probability."""
    return np.full(mdp.shape, 1.0 / mdp.n_actions)


def evaluate(mdp: FiniteMDP, policy: ArrayLike, cost: ArrayLike) -> tuple[Array, Array]:
    """Return `V[H, S]` and `Q[H, S, A]`: the expected cost to go of a policy."""
    return passes.evaluate(mdp.transitions, as_policy(mdp, policy), as_cost(mdp, cost))


def optimal_policy(mdp: FiniteMDP, cost: ArrayLike) -> tuple[Array, Array]:
    """Return a deterministic policy `[H, S, A]` of least cost (the first action among equals) and its `V[H, S]`."""
    return passes.optimal(mdp.transitions, as_cost(mdp, cost))


def occupancy(mdp: FiniteMDP, policy: ArrayLike) -> Array:
    """Return `d[h, s, a] = Pr(s_h = s, a_h = a)` of a policy started from the initial distribution."""
    return passes.occupancy(mdp.transitions, as_policy(mdp, policy))


def value(mdp: FiniteMDP, policy: ArrayLike, cost: ArrayLike) -> float:
    """Return the expected cost of an episode, `<c, d>`."""
    return float(mdp.initial @ evaluate(mdp, policy, cost)[0][0])


def policy_of_occupancy(d: Array, *, elsewhere: Array | None = None) -> Array:
    """Return the policy `d[h, s, a] / d[h, s]`; where the occupancy is zero it is uniform, or the one given."""
    mass = d.sum(-1, keepdims=True)
    other = 1.0 / d.shape[-1] if elsewhere is None else elsewhere
    return np.where(mass > 0, d / np.where(mass > 0, mass, 1.0), other)


def sample(mdp: FiniteMDP, policy: ArrayLike, episodes: int, *, rng: np.random.Generator) -> Trajectories:
    """Roll out a policy: `episodes` independent trajectories of H steps."""
    at_least("number of episodes", episodes, 1)
    stream = rng.integers(0, 2**64, size=4, dtype=np.uint64)
    return Trajectories(*passes.sample(mdp.transitions, as_policy(mdp, policy), episodes, stream))


def expert_policy(mdp: FiniteMDP) -> Array:
    """Return the expert a family comes with: its own, or the optimal policy of its cost."""
    if mdp.expert is not None:
        return mdp.expert
    if mdp.cost is None:
        raise InputError(f"{mdp.name} has neither an expert nor a cost: give the expert's policy or trajectories")
    return optimal_policy(mdp, mdp.cost)[0]
