"""The theorem's laws, measured: the regret grows as sqrt(K) at most, and its floor falls as 1/sqrt(N)."""

import itertools

import numpy as np
import pytest
from scipy import stats

from bruteforce import random_mdp
from oal.tabular import algorithm2, passes
from oal.tabular import mdp as mdps
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP, Trajectories

STEEPEST = 0.6  # sqrt(K), and a tenth for what is not asymptotic yet
DYNAMICS = pytest.mark.parametrize("stationary", [False, True], ids=["time-dependent", "stationary"])


def slope(x, y) -> float:
    """The exponent of the power law nearest to y(x): the slope of the least-squares line in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def doublings(first: int, last: int) -> np.ndarray:
    return first * 2 ** np.arange(int(np.log2(last // first)) + 1)


# The model that is learned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expert_model", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
def test_the_learned_model_keeps_its_mass_and_nears_the_truth(rng, pooled, expert_model):
    """Once everything was visited, the learner's own occupancy sums to one at each step and nears the true one."""
    mdp = random_mdp(rng, 4, 3, 2, stationary=True, expert=True)
    demos = mdps.sample(mdp, mdp.expert, 50, rng=rng)
    learner = TabularOAL(mdp, demos, preset="paper", pooled=pooled, expert_model=expert_model).learn(20_000)
    believed = learner._dense(learner._slots.occupancy, 0.0)
    np.testing.assert_allclose(believed.sum((1, 2)), 1.0, atol=1e-12)
    # The paper's steps are small: the policy before the last update is the policy after it, to three digits.
    np.testing.assert_allclose(believed, mdps.occupancy(mdp, learner.policy), atol=0.02)


# The rate in K -------------------------------------------------------------------------------------------------------


def coins(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random rows of probabilities 0, 1/2 and 1: each is decided by one coin."""
    rows = np.zeros(shape)
    for index in np.ndindex(*shape[:-1]):
        for outcome in rng.integers(shape[-1], size=2):
            rows[index][outcome] += 0.5
    return rows


def coin_problem(rng, H, S, A, *, stationary: bool, random_expert: bool) -> tuple[FiniteMDP, Trajectories]:
    """A random MDP whose every outcome is a coin, and as demonstrations all sequences of coins once.

    Their frequencies are the expert's occupancy exactly: demonstrations as abundant as can be, so that what is left of
    the regret is the players'.
    """
    expert = coins(rng, H, S, A) if random_expert else np.eye(A)[rng.integers(A, size=(H, S))]
    p = coins(rng, S, A, S) if stationary else coins(rng, H, S, A, S)
    mdp = FiniteMDP.dense(p, 0, horizon=H, expert=expert)
    table = mdp.table()

    def toss(row, coin):
        return int(np.repeat(np.arange(len(row)), (2 * row).astype(int))[coin])

    states, actions = [], []
    for tosses in itertools.product((0, 1), repeat=2 * H - 1):
        s, path = 0, []
        for h in range(H):
            a = toss(expert[h, s], tosses[2 * h])
            path.append((s, a))
            if h + 1 < H:
                s = toss(table[h, s, a], tosses[2 * h + 1])
        states.append([s for s, _ in path])
        actions.append([a for _, a in path])
    demos = Trajectories(np.array(states), np.array(actions))
    np.testing.assert_allclose(demos.occupancy(mdp.shape), mdps.occupancy(mdp, expert), atol=1e-12)
    return mdp, demos


def mean_regret_of_coin_problems(K, seeds, **kind) -> np.ndarray:
    """The regret after K (several) episodes, averaged over random MDPs and seeds."""
    curves = []
    for seed in range(seeds):
        mdp, demos = coin_problem(np.random.default_rng(seed), 4, 6, 3, **kind)
        curves.append(TabularOAL(mdp, demos, preset="default", seed=seed).learn(int(K[-1])).regret[K - 1])
    return np.mean(curves, axis=0)


@DYNAMICS
def test_regret_grows_no_faster_than_sqrt_k(stationary):
    K = doublings(1000, 16_000)
    regrets = mean_regret_of_coin_problems(K, 5, stationary=stationary, random_expert=False)
    assert slope(K, regrets) <= STEEPEST, regrets.round(1)


@pytest.mark.slow
@pytest.mark.parametrize("random_expert", [False, True], ids=["deterministic", "random"])
@DYNAMICS
def test_regret_grows_no_faster_than_sqrt_k_over_longer_runs(stationary, random_expert):
    K = doublings(1000, 64_000)
    regrets = mean_regret_of_coin_problems(K, 12, stationary=stationary, random_expert=random_expert)
    assert slope(K, regrets) <= STEEPEST, regrets.round(1)


def regret_with_demonstrations_in_proportion(K, garnets, *, stationary: bool) -> np.ndarray:
    """The regret of runs of K episodes, each with N = 10 K demonstrations: then the theorem says sqrt(K) for it all."""
    totals = np.zeros(len(K))
    for seed in range(garnets):
        mdp = mdps.garnet(8, 3, 5, seed=seed, stationary=stationary)
        for i, episodes in enumerate(K):
            rng = np.random.default_rng([seed, int(episodes)])
            demos = mdps.sample(mdp, mdps.expert_policy(mdp), 10 * int(episodes), rng=rng)
            totals[i] += TabularOAL(mdp, demos, preset="default", seed=seed).learn(int(episodes)).regret[-1]
    return totals / garnets


@DYNAMICS
def test_regret_grows_no_faster_than_sqrt_k_when_demonstrations_grow_with_k(stationary):
    K = doublings(1000, 8000)
    regrets = regret_with_demonstrations_in_proportion(K, 4, stationary=stationary)
    assert slope(K, regrets) <= STEEPEST, regrets.round(1)


@pytest.mark.slow
@DYNAMICS
def test_regret_grows_no_faster_than_sqrt_k_when_demonstrations_grow_with_k_over_longer_runs(stationary):
    K = doublings(1000, 64_000)
    regrets = regret_with_demonstrations_in_proportion(K, 6, stationary=stationary)
    assert slope(K, regrets) <= STEEPEST, regrets.round(1)


# The floor in N ------------------------------------------------------------------------------------------------------


def floors(N, K, seed, *, stationary: bool) -> list[float]:
    """The regret per episode over the second half of K episodes, for each number of a random expert's episodes."""
    mdp = mdps.garnet(6, 3, 4, seed=seed, stationary=stationary)
    expert = np.random.default_rng(seed).dirichlet(np.ones(3), size=(4, 6))
    found = []
    for n in N:
        demos = mdps.sample(mdp, expert, int(n), rng=np.random.default_rng([seed, int(n)]))
        regret = TabularOAL(mdp, demos, expert=expert, preset="default", seed=seed).learn(K).regret
        found.append((regret[-1] - regret[K // 2 - 1]) / (K - K // 2))
    return found


def check_floor(N, K, seeds, stationary):
    """A 95 % interval of the exponent, from one exponent for each random MDP, must lie about -1/2."""
    exponents = [slope(N, floors(N, K, seed, stationary=stationary)) for seed in range(seeds)]
    low, high = stats.t.interval(0.95, seeds - 1, loc=np.mean(exponents), scale=stats.sem(exponents))
    assert low > -0.62, (low, high)
    assert high < -0.38, (low, high)
    assert high - low < 0.2, "the interval is too wide to say anything"


@DYNAMICS
def test_the_floor_falls_as_one_over_sqrt_n(stationary):
    check_floor(np.array([16, 64, 256, 1024]), 8000, 8, stationary)


@pytest.mark.slow
@DYNAMICS
def test_the_floor_falls_as_one_over_sqrt_n_over_longer_runs(stationary):
    check_floor(np.array([16, 64, 256, 1024, 4096]), 60_000, 16, stationary)


# Facts of the machine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost_set", ["box", "l2"])
def test_a_loaded_learner_is_not_compiled_again(tmp_path, cost_set):
    mdp = mdps.garnet(6, 3, 4, seed=0)
    demos = mdps.sample(mdp, mdps.expert_policy(mdp), 5, rng=np.random.default_rng(0))
    TabularOAL(mdp, demos, cost_set=cost_set).learn(5).save(tmp_path / "learner.npz")
    before = len(algorithm2.learn.signatures)
    TabularOAL.load(tmp_path / "learner.npz", mdp).learn(5)
    assert len(algorithm2.learn.signatures) == before


def test_policies_and_costs_are_given_to_one_compiled_function():
    mdp = mdps.garnet(6, 3, 4, seed=0)
    mdps.value(mdp, mdps.uniform_policy(mdp), mdp.cost)
    before = len(passes.evaluate.signatures)
    mdps.value(mdp, np.full((6, 3), 1 / 3), np.zeros((6, 3)))
    mdps.value(mdp, np.full((6, 3), 1 / 3).tolist(), np.ones((6, 3), dtype=int))
    mdps.value(mdp, mdps.expert_policy(mdp), np.asfortranarray(mdp.cost))
    assert len(passes.evaluate.signatures) == before
