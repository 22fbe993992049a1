"""Tabular OAL against the algorithms before it, from the same demonstrations (`oal tabular compare`, `oal.prior`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from oal.base import seeding
from oal.errors import at_least
from oal.tabular.baselines import cloning, frank_wolfe, mwal, no_regret_costs, projection, solve_lp
from oal.tabular.costsets import CostSet
from oal.tabular.game import Game, MixedPolicy, Solution, empirical_mdp
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP, Trajectories, expert_policy, occupancy, sample, uniform_policy

# `oal.prior` is this module: it offers the algorithms and what they take and return as well.
__all__ = [
    "Comparison",
    "Game",
    "MixedPolicy",
    "Solution",
    "cloning",
    "compare",
    "empirical_mdp",
    "frank_wolfe",
    "mwal",
    "no_regret_costs",
    "projection",
    "solve_lp",
]

PLANNERS: dict[str, tuple[Callable[..., Solution], ...]] = {
    "box": (),
    "l2": (projection, frank_wolfe),
    "simplex": (mwal,),
}


@dataclass(frozen=True)
class Comparison:
    """One row of the comparison: how good a policy, at which price."""

    algorithm: str
    model: str
    """`known`, `estimated` (from the demonstrations and the episodes sampled), or `none`."""
    gap: float
    """Worst difference of values to the expert over the cost set, in the true MDP."""
    mdps_solved: int
    episodes_sampled: int


def compare(
    mdp: FiniteMDP,
    demos: Trajectories,
    cost_set: str | CostSet = "box",
    *,
    episodes: int = 1000,
    iterations: int = 200,
    expert: ArrayLike | None = None,
    unseen: str = "sink",
    preset: str = "default",
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
    **settings: Any,
) -> list[Comparison]:
    """Compare tabular OAL with the algorithms the paper stands on, from the same demonstrations.

    The algorithms that plan are given the true model, or one estimated from the demonstrations and as many episodes of
    the uniform policy as OAL samples, pooled over the steps where OAL pools. OAL is read twice: the one policy it
    returns (`average_policy`), and the mixture of the policies it played, whose gap is its regret divided by K. With a
    known model these are the same, and its updates use no samples.

    Args:
        episodes: K, what OAL learns from and the estimated model is made of (besides the demonstrations).
        iterations: at most how many MDPs each of the algorithms that plan iteratively may solve.
        expert: the policy that gaps are measured against; without one, that of the MDP's family; if it has none, gaps
            are measured against the demonstrations and OAL's online mixture is left out.
        unseen: what rows never seen do in the estimated model, see `empirical_mdp`.
        preset: of `TabularOAL`, as are `settings`.
        advance: called with 1 for each row, to show progress.
    """
    at_least("number of episodes", episodes, 1)
    at_least("number of iterations", iterations, 1)
    demos.check(mdp.shape, of=mdp.name)
    costs = CostSet(cost_set, mdp.shape) if isinstance(cost_set, str) else cost_set
    if expert is None and mdp.has_expert:
        expert = expert_policy(mdp)
    d_expert = demos.occupancy(mdp.shape) if expert is None else occupancy(mdp, expert)
    learners = {
        model: TabularOAL(mdp, demos, cost_set=costs, expert=expert, preset=preset, model=model, seed=seed, **settings)
        for model in ("known", "estimated")
    }
    explored = sample(mdp, uniform_policy(mdp), episodes, rng=seeding.generator(seed, "comparison"))
    pooled = learners["estimated"].pooled
    models = {"known": mdp, "estimated": empirical_mdp([demos, explored], mdp, unseen=unseen, pooled=pooled)}
    games = {name: Game(model, demos, costs, truth=mdp, true_expert=d_expert) for name, model in models.items()}
    rows: list[Comparison] = []

    def add(algorithm: str, model: str, gap: float, mdps_solved: int) -> None:
        sampled = episodes if model == "estimated" else 0
        rows.append(Comparison(algorithm, model, float(gap), mdps_solved, sampled))
        if advance is not None:
            advance(1)

    clone = cloning(games["known"])
    add(clone.algorithm, "none", clone.gap, clone.mdps_solved)
    for name, game in games.items():
        found = [plan(game, iterations=iterations) for plan in (*PLANNERS[costs.kind], no_regret_costs)]
        for solution in (*found, solve_lp(game)):
            add(solution.algorithm, name, solution.gap, solution.mdps_solved)
        learner = learners[name].learn(episodes)
        returned = costs.coordinates(occupancy(mdp, learner.average_policy))
        add("OAL, policy returned", name, costs.support(returned - costs.coordinates(d_expert)), 0)
        if learner.exact_regret and name == "estimated":
            add("OAL, policies played", name, learner.regret[-1] / episodes, 0)
    return rows
