"""Tabular OAL against the algorithms before and after it, from the same demonstrations (`oal tabular compare`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from oal.base import seeding
from oal.equations import Array
from oal.errors import at_least, choice
from oal.tabular.baselines import cloning, frank_wolfe, mwal, no_regret_costs, projection, solve_lp
from oal.tabular.costsets import CostSet
from oal.tabular.game import Game, MixedPolicy, Solution, empirical_mdp
from oal.tabular.learner import TabularOAL, settings_for
from oal.tabular.mdp import FiniteMDP, Trajectories, expert_policy, occupancy, sample, uniform_policy
from oal.tabular.transition_aware import EXPERT_ESTIMATES

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


NEWER: dict[str, dict[str, Any]] = {
    "OAL, KL sets": {"preset": "default", "bonus": "kl", "bonus_scale": 1.0},
    "OAL, transition-aware": {"preset": "default", "expert_estimate": "transition-aware"},
    "SOAR": {"preset": "soar"},
    "MB-TAIL": {"preset": "mb-tail"},
}
"""The algorithms after OAL, as settings of `TabularOAL`; `oal figure newer` measures their regret over many seeds."""


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
    expert: ArrayLike | str | None = None,
    unseen: str = "sink",
    preset: str = "default",
    seed: int = 0,
    newer: bool = False,
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
            are measured against the demonstrations and OAL's online mixture is left out. Or how the demonstrations
            are read by every algorithm but cloning: `"empirical"` or `"transition-aware"`.
        unseen: what rows never seen do in the estimated model, see `empirical_mdp`.
        preset: of `TabularOAL`, as are `settings`.
        newer: also compare with the algorithms after OAL (`NEWER`), which learn from episodes of their own.
        advance: called with 1 for each row, to show progress.
    """
    at_least("number of episodes", episodes, 1)
    at_least("number of iterations", iterations, 1)
    demos.check(mdp.shape, of=mdp.name)
    costs = CostSet(cost_set, mdp.shape) if isinstance(cost_set, str) else cost_set
    how = settings.pop("expert_estimate", "empirical")
    if isinstance(expert, str):
        how, expert = expert, None
    choice("expert", how, EXPERT_ESTIMATES)
    settings["expert_estimate"] = how
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
    games = {
        name: Game(model, demos, costs, truth=mdp, true_expert=d_expert, expert_estimate=how)
        for name, model in models.items()
    }
    rows: list[Comparison] = []

    def add(algorithm: str, model: str, gap: float, mdps_solved: int) -> None:
        sampled = episodes if model == "estimated" else 0
        rows.append(Comparison(algorithm, model, float(gap), mdps_solved, sampled))
        if advance is not None:
            advance(1)

    def add_played(algorithm: str, model: str, learner: TabularOAL, policy: Array) -> None:
        returned = costs.coordinates(occupancy(mdp, policy))
        add(f"{algorithm}, policy returned", model, costs.support(returned - costs.coordinates(d_expert)), 0)
        if learner.exact_regret and model == "estimated":
            add(f"{algorithm}, policies played", model, learner.regret[-1] / episodes, 0)

    clone = cloning(Game(mdp, demos, costs, truth=mdp, true_expert=d_expert))
    add(clone.algorithm, "none", clone.gap, clone.mdps_solved)
    for name, game in games.items():
        found = [plan(game, iterations=iterations) for plan in (*PLANNERS[costs.kind], no_regret_costs)]
        for solution in (*found, solve_lp(game)):
            add(solution.algorithm, name, solution.gap, solution.mdps_solved)
        learner = learners[name].learn(episodes)
        add_played("OAL", name, learner, learner.average_policy)
    for name, own in NEWER.items() if newer else ():
        if len(demos) < 2 and settings_for(**own).expert_estimate == "transition-aware":
            continue
        learner = TabularOAL(mdp, demos, cost_set=costs, expert=expert, seed=seed, **own).learn(episodes)
        # MB-TAIL returns what it plays after its exploration, which the average would hold
        add_played(name, "estimated", learner, learner.policy if own["preset"] == "mb-tail" else learner.average_policy)
    return rows
