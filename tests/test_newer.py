"""The algorithms after OAL: against slow references, laws, and the facts users rely on."""

import numpy as np
import pytest

import bruteforce
from newer_reference import (
    ReferenceNewer,
    bernoulli_interval,
    divergence,
    interval_least,
    kl_least,
    kl_least_slowly,
    radius,
    transition_aware,
)
from oal.base import seeding
from oal.errors import InputError
from oal.tabular import confidence
from oal.tabular import mdp as mdps
from oal.tabular.costsets import CostSet
from oal.tabular.game import Game, empirical_mdp
from oal.tabular.learner import PRESETS, TabularOAL, settings_for
from oal.tabular.mdp import FiniteMDP, Trajectories
from oal.tabular.transition_aware import transition_aware as estimate

# Confidence sets -----------------------------------------------------------------------------------------------------


def random_row(rng: np.random.Generator):
    S, n = int(rng.integers(2, 6)), int(10 ** rng.uniform(0, 4))
    p = bruteforce.random_distributions(rng, S)
    counts = rng.multinomial(n, p).astype(float)
    V = rng.random(S) * 10
    if rng.random() < 0.3:
        V = np.round(V / 4) * 4  # ties, and states that share the least value
    return counts, V, 10 ** rng.uniform(-4, 1)


def kernel_least(counts: np.ndarray, V: np.ndarray, epsilon: float, kind: str) -> float:
    to = np.flatnonzero(counts)
    weight, n = counts[to], counts.sum()
    if kind == "kl":
        return confidence.kl_minimum(to, weight, 0, len(to), 1 / n, V, 0, epsilon, V.min())
    low = np.array([confidence.bernoulli_least(w / n, epsilon) for w in weight])
    high = np.array([confidence.bernoulli_most(w / n, epsilon) for w in weight])
    elsewhere = (len(V) - len(to)) * confidence.bernoulli_most(0.0, epsilon)
    return confidence.interval_minimum(to, low, high, 0, len(to), V, 0, elsewhere, V.min())


@pytest.mark.parametrize("kind", ["kl", "intervals"])
def test_the_least_value_in_a_set_is_what_an_optimiser_finds(rng, kind):
    reference = kl_least if kind == "kl" else interval_least
    others = []
    for _ in range(60):
        counts, V, epsilon = random_row(rng)
        p, found = counts / counts.sum(), kernel_least(counts, V, epsilon, kind)
        assert found == pytest.approx(reference(p, V, epsilon), abs=1e-7)
        if kind == "kl" and epsilon > 0.01:
            others.append(kl_least_slowly(p, V, epsilon) - found)
            assert others[-1] > -1e-6
    assert kind != "kl" or np.mean(np.array(others) < 1e-4) > 0.5, "the optimiser should often find the same"


@pytest.mark.parametrize("kind", ["kl", "intervals"])
def test_no_member_of_the_set_is_below_and_a_larger_set_reaches_lower(rng, kind):
    for _ in range(40):
        counts, V, epsilon = random_row(rng)
        p = counts / counts.sum()
        least = kernel_least(counts, V, epsilon, kind)
        assert V.min() - 1e-9 <= least <= p @ V + 1e-9
        assert kernel_least(counts, V, 2 * epsilon, kind) <= least + 1e-9
        for q in rng.dirichlet(0.3 + 20 * p, size=200):
            inside = divergence(p, q) <= epsilon
            if kind == "intervals":
                inside = all(lo <= x <= hi for x, (lo, hi) in zip(q, (bernoulli_interval(x, epsilon) for x in p)))
            assert not inside or q @ V >= least - 1e-9


def test_the_radius_holds_for_all_numbers_of_visits_at_once(rng):
    """Far more often than it must: the divergence crosses the bound in hardly any of many long runs."""
    crossed, runs, failure = 0, 400, 0.2
    for _ in range(runs):
        p = rng.dirichlet(np.ones(3))
        n = np.arange(1, 301)
        shares = np.cumsum(rng.multinomial(1, p, size=300), axis=0) / n[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.where(shares > 0, shares * np.log(shares / p), 0.0).sum(-1)
        bound = np.array([confidence.kl_radius(float(k), 3, failure) for k in n])
        crossed += bool((n * kl > bound).any())
    assert crossed <= failure * runs
    assert confidence.kl_radius(50.0, 4, 0.01) == pytest.approx(radius(50.0, 4, 0.01))
    assert confidence.kl_radius(50.0, 1, 0.01) == 0.0


# The kernels against their transcriptions ----------------------------------------------------------------------------

FAST = {"policy_step_scale": 20.0, "cost_step_scale": 5.0}
VARIANTS = [
    {"bonus": "kl"},
    {"bonus": "kl", "bonus_scale": 0.05, "pooled": True, "anytime": True, "expert_model": True},
    {"bonus": "intervals"},
    {"bonus": "intervals", "bonus_scale": 0.05, "pooled": True, "expert_model": True},
    {"models": 3},
    {"models": 2, "model_spread": "deviation", "pooled": True, "expert_model": True},
    {"bonus_scale": 0.0, "expert_estimate": "transition-aware"},
    {"bonus_scale": 0.01, "expert_estimate": "transition-aware", "pooled": True, "expert_model": True},
    {"models": 2, "expert_estimate": "transition-aware", "policy_start": "bc", "bc_smoothing": 0.1},
]


def small_problem(rng: np.random.Generator, *, stationary: bool, demos: int = 6):
    H, S, A = 4, 3, 2
    p = bruteforce.random_distributions(rng, *((S, A, S) if stationary else (H, S, A, S)))
    expert = np.eye(A)[rng.integers(A, size=(H, S))]
    problem = FiniteMDP.dense(p, bruteforce.random_distributions(rng, S), horizon=H, expert=expert)
    return problem, mdps.sample(problem, expert, demos, rng=rng)


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("kind", ["box", "l2"])
def test_kernel_equals_the_transcription_episode_by_episode(rng, options, kind):
    options = FAST | options
    problem, demos = small_problem(rng, stationary=bool(options.get("pooled")))
    features = None if kind == "box" else rng.uniform(-1, 1, size=(problem.n_states, 2))
    cost_set, K = CostSet(kind, problem.shape, features), 25
    learner = TabularOAL(problem, demos, cost_set=cost_set, preset="paper", seed=3, **options)
    reference = ReferenceNewer(
        problem,
        demos,
        settings_for("paper", **options),
        cost_set,
        K=K,
        expert=problem.expert,
        stream=seeding.sequence(3, "tabular").generate_state(4, np.uint64),
    )
    for _ in range(K):
        learner.learn(1, planned=K)
        reference.episode()
        np.testing.assert_allclose(learner.policy, reference.pi, atol=1e-6, rtol=0)
        np.testing.assert_allclose(learner.cost, cost_set.cost(reference.x), atol=1e-6, rtol=0)
        assert learner.regret[-1] == pytest.approx(reference.regret[-1], abs=1e-6)
        assert learner.empirical_regret[-1] == pytest.approx(reference.empirical_regret[-1], abs=1e-6)
