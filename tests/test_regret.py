"""The AL regret against a linear program over costs, its decomposition against the definitions, and its estimate."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

import bruteforce
from bruteforce import random_distributions, random_mdp
from oal import equations
from oal.errors import InputError
from oal.tabular import mdp as mdps
from oal.tabular import regret
from oal.tabular.costsets import CostSet
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP, Trajectories

KINDS = pytest.mark.parametrize("kind", ["box", "l2", "simplex"])
MODELS = pytest.mark.parametrize("model", ["estimated", "known"])


def make_set(kind, shape, rng, d=3):
    return CostSet(kind, shape, None if kind == "box" else rng.uniform(-1, 1, size=(shape[1], d)))


def worst(cost_set, gaps):
    """Maximise `x . gaps` over the coordinates of the set: by a linear program, or along a grid of directions."""
    gaps = np.ravel(gaps)
    if cost_set.kind == "box":
        return -linprog(-gaps, bounds=(0, 1)).fun
    if cost_set.kind == "simplex":
        return -linprog(-gaps, A_eq=np.ones((1, len(gaps))), b_eq=[1], bounds=(0, None)).fun
    assert len(gaps) == 2
    angle = np.linspace(0, 2 * np.pi, 200_001)
    return float((np.cos(angle) * gaps[0] + np.sin(angle) * gaps[1]).max())


def basis_costs(cost_set):
    """The costs whose coordinates are the unit vectors."""
    n = cost_set.dimension
    return [np.array(cost_set.cost(unit.reshape(cost_set.start().shape))) for unit in np.eye(n)]


def play(learner, episodes):
    """Learn one episode at a time; return the policies and the costs that were played."""
    policies, costs = [], []
    for _ in range(episodes):
        policies.append(learner.policy)
        costs.append(learner.cost)
        learner.learn(1, planned=episodes)
    return policies, costs


# Definition 1 --------------------------------------------------------------------------------------------------------


@KINDS
def test_regret_is_the_program_over_costs_of_definition_1(rng, kind):
    """max_c sum_k [V^{pi_k, c} - V^{E, c}] with values computed cost by cost, then a program over c."""
    mdp = random_mdp(rng, 2, 3, 2, expert=True)
    cost_set = make_set(kind, mdp.shape, rng, d=2)
    policies = [random_distributions(rng, *mdp.shape) for _ in range(5)]
    costs = basis_costs(cost_set)
    got = regret.al_regret(
        cost_set, np.array([mdps.occupancy(mdp, pi) for pi in policies]), mdps.occupancy(mdp, mdp.expert)
    )
    gaps = np.zeros(len(costs))
    for k, pi in enumerate(policies):
        gaps += [mdps.value(mdp, pi, c) - mdps.value(mdp, mdp.expert, c) for c in costs]
        assert got[k] == pytest.approx(worst(cost_set, gaps), abs=1e-8)


@KINDS
@MODELS
def test_the_learners_regret_is_that_of_the_policies_it_played(rng, kind, model):
    mdp = random_mdp(rng, 3, 4, 2, expert=True)
    demos = mdps.sample(mdp, mdp.expert, 6, rng=rng)
    cost_set = make_set(kind, mdp.shape, rng)
    learner = TabularOAL(mdp, demos, cost_set=cost_set, model=model)
    policies, _ = play(learner, 30)
    occupancies = np.array([mdps.occupancy(mdp, pi) for pi in policies])
    expected = regret.al_regret(cost_set, occupancies, mdps.occupancy(mdp, mdp.expert))
    np.testing.assert_allclose(learner.regret, expected, atol=1e-10)
    empirical = regret.al_regret(cost_set, occupancies, demos.occupancy(mdp.shape))
    np.testing.assert_allclose(learner.empirical_regret, empirical, atol=1e-10)


@KINDS
def test_the_expert_has_no_regret_and_nobody_beats_it_on_every_cost(rng, kind):
    """The lemma that both regrets are equal rests on this: max_c V^pi - V^E >= 0, with 0 at the expert."""
    mdp = random_mdp(rng, 3, 3, 2, expert=True)
    cost_set = make_set(kind, mdp.shape, rng)
    expert = mdps.occupancy(mdp, mdp.expert)
    assert regret.al_regret(cost_set, np.stack([expert] * 4), expert) == pytest.approx(np.zeros(4), abs=1e-12)
    if kind != "simplex":
        others = np.array([mdps.occupancy(mdp, random_distributions(rng, *mdp.shape)) for _ in range(20)])
        assert (regret.al_regret(cost_set, others, expert) >= 0).all()


# The decomposition ---------------------------------------------------------------------------------------------------


@KINDS
@MODELS
@pytest.mark.parametrize("start", ["default", "given"])
def test_each_part_of_the_decomposition_is_what_it_is_said_to_be(rng, kind, model, start):
    """Every part by its definition: programs over costs, and all deterministic policies one by one."""
    mdp = random_mdp(rng, 2, 3, 2, expert=True)
    demos = mdps.sample(mdp, mdp.expert, 5, rng=rng)
    cost_set = make_set(kind, mdp.shape, rng, d=2)
    if start == "given":
        given = cost_set.step(cost_set.start(), rng.normal(size=cost_set.start().shape), 0.3)
    learner = TabularOAL(
        mdp, demos, cost_set=cost_set, model=model, decompose=True, initial_cost=given if start == "given" else None
    )
    K = 25
    policies, costs = play(learner, K)
    parts = regret.decompose(learner)

    occupancies = [bruteforce.occupancy(mdp.table(), pi, mdp.initial) for pi in policies]
    d_expert, d_hat = bruteforce.occupancy(mdp.table(), mdp.expert, mdp.initial), demos.occupancy(mdp.shape)

    def gap(d):
        return worst(cost_set, [(c * d).sum() for c in basis_costs(cost_set)])

    total_regret = gap(sum(d - d_expert for d in occupancies))
    played = sum((c * d).sum() for c, d in zip(costs, occupancies, strict=True))
    least = min(
        sum((c * bruteforce.occupancy(mdp.table(), pi, mdp.initial)).sum() for c in [np.sum(costs, axis=0)])
        for pi in bruteforce.deterministic_policies(2, 3, 2)
    )
    demonstrated = sum((c * d_hat).sum() for c in costs)
    assert parts.regret == pytest.approx(total_regret, abs=1e-8)
    assert parts.policy == pytest.approx(played - least, abs=1e-9)
    assert parts.cost == pytest.approx(gap(sum(d - d_hat for d in occupancies)) - (played - demonstrated), abs=1e-8)
    limit = 2 * K * max(gap(d_expert - d_hat), gap(d_hat - d_expert))
    assert parts.statistical_limit == pytest.approx(limit, abs=1e-7)
    assert parts.policy >= -1e-12, "the best fixed policy is at most as costly as what was played"


@KINDS
@MODELS
def test_the_decomposition_is_an_identity_and_the_lemma_holds(kind, model):
    for seed in range(8):
        rng = np.random.default_rng([seed, 2])
        H, S, A = (int(x) for x in (rng.integers(2, 6), rng.integers(2, 7), rng.integers(2, 4)))
        mdp = random_mdp(rng, H, S, A, stationary=bool(seed % 2), expert=True)
        demos = mdps.sample(mdp, mdp.expert, int(rng.integers(1, 20)), rng=rng)
        cost_set = make_set(kind, mdp.shape, rng)
        learner = TabularOAL(mdp, demos, cost_set=cost_set, model=model, decompose=True, seed=seed)
        for _ in range(3):
            learner.learn(40)
            parts = regret.decompose(learner)
            scale = 1e-12 * H * learner.episodes
            assert abs(parts.regret - (parts.policy + parts.cost + parts.statistical)) <= scale
            assert parts.regret == pytest.approx(learner.regret[-1], abs=scale)
            assert parts.statistical <= parts.statistical_limit + scale
            assert parts.regret <= parts.bound + scale
            assert parts.bound == parts.policy + parts.cost + parts.statistical_limit


def test_the_decomposition_asks_for_what_it_needs(rng):
    mdp = random_mdp(rng, expert=True)
    demos = mdps.sample(mdp, mdp.expert, 3, rng=rng)
    with pytest.raises(InputError, match="decompose=True"):
        regret.decompose(TabularOAL(mdp, demos).learn(3))
    with pytest.raises(InputError, match="regret='exact'"):
        regret.decompose(TabularOAL(mdp, demos, regret="none", decompose=True).learn(3))
    with pytest.raises(InputError, match="nothing was learned yet"):
        regret.decompose(TabularOAL(mdp, demos, decompose=True))


# The bound -----------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_theorems_after_each_episode():
    curve = regret.bound((2, 3, 2), 100, 50)
    assert curve.shape == (100,)
    assert curve[-1] == pytest.approx(267.68521719610)
    for k in (1, 7, 60):
        assert curve[k - 1] == pytest.approx(equations.regret_bound((2, 3, 2), k, 50))
    assert (np.diff(curve) > 0).all()


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_the_regret_is_below_the_theorems_bound(rng, preset):
    for _ in range(5):
        mdp = random_mdp(rng, 4, 5, 3, expert=True)
        demos = mdps.sample(mdp, mdp.expert, 10, rng=rng)
        learner = TabularOAL(mdp, demos, preset=preset).learn(500)
        assert (learner.regret <= regret.bound(mdp.shape, 500, 10)).all()


# The estimate --------------------------------------------------------------------------------------------------------


def coverage_problem(kind, seed, K=300, N=30):
    rng = np.random.default_rng([seed, 11])
    mdp = random_mdp(rng, 3, 3, 2, expert=True)
    demos, fresh = (mdps.sample(mdp, mdp.expert, N, rng=rng) for _ in range(2))
    cost_set = make_set(kind, mdp.shape, rng, d=2)
    learner = TabularOAL(mdp, demos, cost_set=cost_set, seed=seed, keep_trajectories=True).learn(K)
    return mdp, demos, fresh, cost_set, learner, rng


@KINDS
@pytest.mark.parametrize("expert", ["learned from", "held out", "known"])
def test_the_interval_covers_the_exact_regret_at_its_level(kind, expert):
    """Over problems and seeds; the interval may cover more often than it says, not less."""
    level, runs = 0.9, 40
    covered, widths = 0, []
    for seed in range(runs):
        mdp, demos, fresh, cost_set, learner, rng = coverage_problem(kind, seed)
        options = {
            "learned from": {},
            "held out": {"held_out": True},
            "known": {"expert_features": cost_set.coordinates(mdps.occupancy(mdp, mdp.expert))},
        }[expert]
        e = regret.estimate(
            cost_set,
            learner.trajectories,
            fresh if expert == "held out" else demos,
            level=level,
            resamples=40,
            rng=rng,
            **options,
        )
        assert e.low <= e.regret <= e.high
        assert (e.level, e.episodes) == (level, 300)
        covered += e.low <= learner.regret[-1] <= e.high
        widths.append((e.high - e.low) / (300 * mdp.horizon))
    assert stats.binomtest(covered, runs, level, alternative="less").pvalue > 0.01, f"covered {covered} of {runs}"
    assert np.mean(widths) < 0.25, "an interval this wide says nothing"


def test_a_learner_that_fits_its_demonstrations_is_not_mistaken_for_the_expert():
    """One step, ten actions, all alike to the expert: copying 20 demonstrations has their error as regret."""
    mdp = FiniteMDP.dense(np.ones((1, 10, 1)), horizon=1, expert=np.full((1, 10), 0.1))
    cost_set, K = CostSet("box", mdp.shape), 2000
    ratios, covered, covered_as_if_held_out = [], 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        demos = mdps.sample(mdp, mdp.expert, 20, rng=rng)
        copied = mdps.policy_of_occupancy(demos.occupancy(mdp.shape))
        episodes = mdps.sample(mdp, copied, K, rng=rng)
        exact = K * cost_set.support(mdps.occupancy(mdp, copied) - mdps.occupancy(mdp, mdp.expert))
        e = regret.estimate(cost_set, episodes, demos, resamples=60, rng=rng)
        as_if = regret.estimate(cost_set, episodes, demos, resamples=60, rng=rng, held_out=True)
        covered += e.low <= exact <= e.high
        covered_as_if_held_out += as_if.low <= exact <= as_if.high
        ratios.append(e.regret / exact)
    assert covered >= 18
    assert 0.7 < np.mean(ratios) < 1.4
    assert covered_as_if_held_out < 15, "the case is too easy to show anything"


def test_the_interval_narrows_with_data():
    widths = []
    for K, N in ((100, 20), (1600, 320)):
        _, demos, _, cost_set, learner, rng = coverage_problem("l2", 3, K, N)
        e = regret.estimate(cost_set, learner.trajectories, demos, resamples=100, rng=rng)
        widths.append((e.high - e.low) / K)
    assert widths[1] < 0.5 * widths[0]


@KINDS
def test_episodes_are_read_in_the_sets_coordinates(rng, kind):
    """With the expert known and one policy throughout, the middle of the estimate is the exact regret."""
    mdp = random_mdp(rng, 3, 4, 2, expert=True)
    cost_set = make_set(kind, mdp.shape, rng)
    pi = random_distributions(rng, *mdp.shape)
    K = 20_000
    episodes = mdps.sample(mdp, pi, K, rng=rng)
    d, expert = mdps.occupancy(mdp, pi), mdps.occupancy(mdp, mdp.expert)
    exact = K * cost_set.support(cost_set.coordinates(d - expert))
    e = regret.estimate(
        cost_set, episodes, episodes[:1], resamples=20, rng=rng, expert_features=cost_set.coordinates(expert)
    )
    assert e.regret == pytest.approx(exact, abs=0.05 * K)
    assert e.low <= exact <= e.high


@KINDS
def test_the_fewest_episodes_give_finite_ends(rng, kind):
    mdp = random_mdp(rng, expert=True)
    few = mdps.sample(mdp, mdp.expert, 4, rng=rng)
    e = regret.estimate(make_set(kind, mdp.shape, rng), few, few, resamples=200, rng=rng)
    assert np.isfinite([e.low, e.regret, e.high]).all()


def test_bad_input_of_the_estimate(rng):
    mdp = random_mdp(rng, expert=True)
    box = CostSet("box", mdp.shape)
    good = mdps.sample(mdp, mdp.expert, 6, rng=rng)
    other = Trajectories(np.zeros((6, 5), dtype=int), np.zeros((6, 5), dtype=int))
    cases = [
        ((good, good), {"level": 1.0}, "level is 1.0"),
        ((good[:3], good), {}, "at least 4 episodes"),
        ((good, good[:3]), {}, "4 demonstrations"),
        ((good, good), {"resamples": 1}, "resamples is 1"),
        ((good, other), {}, "demonstrations have 5 steps"),
        ((other, good), {}, "5 steps"),
        ((good, good), {"expert_features": np.zeros(3)}, r"expert_features have the shape \(3,\): the box set wants"),
    ]
    for trajectories, options, message in cases:
        with pytest.raises(InputError, match=message):
            regret.estimate(box, *trajectories, rng=rng, **options)
