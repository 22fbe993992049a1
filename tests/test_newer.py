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
    for _ in range(25):
        counts, V, epsilon = random_row(rng)
        p, found = counts / counts.sum(), kernel_least(counts, V, epsilon, kind)
        assert found == pytest.approx(reference(p, V, epsilon), abs=1e-7)
        if kind == "kl" and epsilon > 0.01:
            others.append(kl_least_slowly(p, V, epsilon) - found)
            assert others[-1] > -1e-6
    assert kind != "kl" or np.mean(np.array(others) < 1e-4) > 0.5, "the optimiser should often find the same"


@pytest.mark.parametrize("kind", ["kl", "intervals"])
def test_no_member_of_the_set_is_below_and_a_larger_set_reaches_lower(rng, kind):
    for _ in range(20):
        counts, V, epsilon = random_row(rng)
        p = counts / counts.sum()
        least = kernel_least(counts, V, epsilon, kind)
        assert V.min() - 1e-9 <= least <= p @ V + 1e-9
        assert kernel_least(counts, V, 2 * epsilon, kind) <= least + 1e-9
        low, high = np.transpose([bernoulli_interval(float(x), epsilon) for x in p])
        for q in rng.dirichlet(0.3 + 20 * p, size=50):
            inside = divergence(p, q) <= epsilon if kind == "kl" else ((low <= q) & (q <= high)).all()
            assert not inside or q @ V >= least - 1e-9


@pytest.mark.parametrize("V", [[1e-310, 5.0], [1e-170, 0.0], [3.0, 3.0], [0.0, 0.0], [1e-200, 1e-200]], ids=str)
@pytest.mark.parametrize("epsilon", [1e-9, 0.5, 510.0])
def test_values_too_small_to_be_squared_do_no_harm(V, epsilon):
    """A row of 500 states has a radius of 510 at its first visit, and policies have probabilities of 1e-200."""
    for counts in ([1.0, 0.0], [3.0, 2.0], [0.0, 7.0]):
        found = kernel_least(np.array(counts), np.array(V), epsilon, "kl")
        assert min(V) <= found <= np.dot(counts, V) / np.sum(counts) * (1 + 1e-12)


def test_the_radius_holds_for_all_numbers_of_visits_at_once(rng):
    """Far more often than it must: the divergence crosses the bound in hardly any of many long runs."""
    crossed, runs, failure = 0, 100, 0.2
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
    cost_set, K = CostSet(kind, problem.shape, features), 5 if options.get("bonus") == "intervals" else 12
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


def test_samples_and_table_give_the_same_learner_from_the_same_episodes(rng):
    """Every kernel's sampled twin, fed the table's episodes, ends in the same policy."""
    from oal.tabular.sampler import Sampler

    problem, demos = small_problem(rng, stationary=True)
    for options in (
        {"preset": "soar"},
        {"preset": "mb-tail", "explore": 0.5},
        {"bonus": "intervals", "bonus_scale": 1},
    ):
        table = TabularOAL(problem, demos, keep_trajectories=True, seed=5, **options).learn(20)
        episodes = iter(zip(table.trajectories.states, table.trajectories.actions, strict=True))
        sampler = Sampler.__new__(Sampler)
        sampler.name, sampler.horizon, sampler.n_states, sampler.n_actions = "script", *problem.shape
        sampler.episode = lambda act, seed=None, episodes=episodes: next(episodes)
        sampled = TabularOAL(sampler, demos, seed=5, **options).learn(20)
        np.testing.assert_array_equal(table.policy, sampled.policy)


@pytest.mark.parametrize(
    "options", [{"preset": "soar"}, {"preset": "mb-tail", "explore": 0.3}, {"expert": "transition-aware"}], ids=str
)
@pytest.mark.parametrize("kind", ["box", "l2"])
def test_saved_and_loaded_goes_on_as_if_never_stopped(rng, tmp_path, options, kind):
    problem, demos = small_problem(rng, stationary=False)
    options = {"cost_set": kind, "keep_trajectories": True} | options
    whole = TabularOAL(problem, demos, **options).learn(60)
    for part in (10, 18, 40):  # while MB-TAIL explores, just before it plans, and after
        half = TabularOAL(problem, demos, **options).learn(part, planned=60)
        half.save(tmp_path / "half.npz")
        resumed = TabularOAL.load(tmp_path / "half.npz", problem).learn(60 - part, planned=60)
        np.testing.assert_array_equal(whole.regret, resumed.regret)
        np.testing.assert_array_equal(whole.policy, resumed.policy)


def test_ensembles_in_a_file_are_checked(rng, tmp_path):
    from oal.base import npz

    problem, demos = small_problem(rng, stationary=False)
    TabularOAL(problem, demos, preset="soar").learn(30).save(tmp_path / "soar.npz")
    with (tmp_path / "soar.npz").open("rb") as file, npz.Archive(file, "soar.npz") as archive:
        arrays = {name: archive.read(name) for name in archive.keys if name != "about"}
        about = archive.read_text("about")
    for name in ("slots.member_visits", "slots.member_weight"):
        for damaged in (arrays[name] + 1.0, arrays[name][..., :1], -arrays[name]):
            npz.write(tmp_path / "bad.npz", arrays | {name: np.ascontiguousarray(damaged), "about": npz.text(about)})
            with pytest.raises(InputError, match=r"bad\.npz"):
                TabularOAL.load(tmp_path / "bad.npz", problem)


def test_optimism_holds_over_whole_runs(rng):
    """What the theorem takes from its bonus: Q <= c + p V at every step of every episode, for the sets at scale 1."""
    problem, demos = small_problem(rng, stationary=True)
    p = problem.table()
    for options in ({"bonus": "kl"}, {"bonus": "intervals"}, {"bonus": "kl", "pooled": True, "expert_model": True}):
        learner = TabularOAL(problem, demos, preset="paper", **(FAST | options))
        for _ in range(60):
            cost, policy = learner.cost, learner.policy
            learner.learn(1, planned=60)
            Q = learner._dense(learner._slots.Q, 0.0)
            V = (Q * policy).sum(-1)
            after = np.concatenate([V[1:], np.zeros((1, problem.n_states))])
            limit = cost + np.einsum("hsat,ht->hsa", p, after)
            assert (limit + 1e-9 >= Q).all()


# The transition-aware expert -----------------------------------------------------------------------------------------


def test_transition_aware_equals_the_sum_over_trajectories(rng):
    for stationary in (True, False):
        problem, demos = small_problem(rng, stationary=stationary, demos=7)
        by_hand = transition_aware(demos, problem.table(), problem.initial, problem.shape)
        np.testing.assert_allclose(estimate(demos, problem), by_hand, atol=1e-12)
        known = TabularOAL(problem, demos, model="known", expert="transition-aware").learn(3)
        np.testing.assert_allclose(known._dense(known._slots.expert, 0.0), by_hand, atol=1e-12)


def test_transition_aware_is_exact_where_all_states_are_covered(rng):
    problem, _ = small_problem(rng, stationary=False)
    demos = mdps.sample(problem, problem.expert, 2000, rng=rng)
    exact = mdps.occupancy(problem, problem.expert)
    reached = exact.sum(-1) > 0
    shown = np.zeros_like(reached)
    shown[np.broadcast_to(np.arange(problem.horizon), demos.states[::2].shape), demos.states[::2]] = True
    assert (shown | ~reached).all(), "every state that the expert reaches is in the first half"
    np.testing.assert_allclose(estimate(demos, problem), exact, atol=1e-12)
    assert np.abs(demos.occupancy(problem.shape) - exact).max() > 1e-3, "counting is not exact"


def test_transition_aware_has_no_bias_and_less_error_than_counting(rng):
    problem, _ = small_problem(rng, stationary=False)
    exact = mdps.occupancy(problem, problem.expert)
    for n, draws, less in ((6, 1000, 1.0), (40, 100, 0.5)):
        found, counted = [], []
        for _ in range(draws):
            demos = mdps.sample(problem, problem.expert, n, rng=rng)
            found.append(estimate(demos, problem))
            counted.append(demos.occupancy(problem.shape))
        error = np.std(found, axis=0) / np.sqrt(draws)
        np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - exact), 5 * error + 1e-3 * (draws < 1000) + 1e-9)
        l1 = [np.abs(np.array(x) - exact).sum((1, 2, 3)).mean() for x in (found, counted)]
        assert l1[0] < less * l1[1], "1 / N against 1 / sqrt(N)"


def test_a_state_with_different_actions_is_counted_not_believed():
    demos = Trajectories(np.zeros((4, 1), dtype=int), np.array([[0], [1], [1], [1]]))
    problem = FiniteMDP.dense(np.ones((1, 1, 2, 1)), 0, horizon=1)
    np.testing.assert_allclose(estimate(demos, problem)[0, 0], [0.0, 1.0])  # the second half's own shares
    agreed = Trajectories(np.zeros((4, 1), dtype=int), np.array([[0], [1], [0], [1]]))
    np.testing.assert_allclose(estimate(agreed, problem)[0, 0], [1.0, 0.0])  # the first half's action


def test_games_take_the_transition_aware_expert(rng):
    problem, demos = small_problem(rng, stationary=False)
    game = Game(problem, demos, "box", expert_estimate="transition-aware")
    np.testing.assert_allclose(game.expert, estimate(demos, problem))
    model = empirical_mdp(demos, problem)
    with_sink = Game(model, demos, "box", truth=problem, expert_estimate="transition-aware")
    by_hand = transition_aware(
        demos, empirical_mdp(demos, problem, unseen="stay").table(), model.initial[:3], problem.shape
    )
    np.testing.assert_allclose(with_sink.expert[:, :3], by_hand, atol=1e-12)
    with pytest.raises(InputError, match="needs trajectories"):
        Game(problem, estimate(demos, problem), "box", expert_estimate="transition-aware")


# MB-TAIL -------------------------------------------------------------------------------------------------------------


def test_mb_tail_explores_then_plays_one_policy(rng):
    problem, demos = small_problem(rng, stationary=False)
    learner = TabularOAL(problem, demos, preset="mb-tail", explore=0.5)
    policies = []
    for _ in range(40):
        learner.learn(1, planned=40)
        policies.append(learner.policy)
    deterministic = [np.isin(policy[0], (0.0, 1.0)).all() for policy in policies[5:20]]
    assert all(deterministic), "exploration is greedy"
    assert not np.isin(policies[20], (0.0, 0.5, 1.0)).all(), "what is played is an average of best responses"
    for policy in policies[21:]:
        np.testing.assert_array_equal(policy, policies[20])


def test_reward_free_exploration_follows_its_recursion(rng):
    """W by hand from the episodes so far, and the greedy action of every state that was visited."""
    problem, demos = small_problem(rng, stationary=False)
    H, S, A = problem.shape
    learner = TabularOAL(problem, demos, preset="mb-tail", explore=0.9, expert_model=False, keep_trajectories=True)
    learner.learn(30, planned=1000)
    counts, n = np.zeros((H, S, A, S)), np.zeros((H, S, A))
    for states, actions in zip(learner.trajectories.states, learner.trajectories.actions, strict=True):
        for h in range(H):
            n[h, states[h], actions[h]] += 1
            if h + 1 < H:
                counts[h, states[h], actions[h], states[h + 1]] += 1
    learner.learn(1, planned=1000)  # its policy was chosen from these counts
    scale, delta = learner.settings.bonus_scale, learner.settings.delta
    beta = np.log(3 * S * A * H / delta) + S * np.log(8 * np.e * (n + 1))
    after, visited = np.zeros(S), n.sum(-1) > 0
    for h in reversed(range(H)):
        W = scale * 15 * H**2 * beta[h] / np.maximum(n[h], 1)
        W += (1 + 1 / H) * (counts[h] / np.maximum(n[h], 1)[..., None]) @ after
        W = np.where(n[h] > 0, np.minimum(W, H), H)
        after = W.max(-1)
        for s in np.flatnonzero(visited[h]):
            best = min(range(A), key=lambda a: (-W[s, a], n[h, s, a], a))
            assert learner.policy[h, s].argmax() == best


def test_mb_tail_finds_the_experts_policy_with_enough_of_everything(rng):
    problem, _ = small_problem(rng, stationary=True)
    demos = mdps.sample(problem, problem.expert, 400, rng=rng)
    learner = TabularOAL(problem, demos, preset="mb-tail", explore=0.5).learn(2000)
    late = (learner.regret[-1] - learner.regret[-101]) / 100
    uniform = mdps.occupancy(problem, mdps.uniform_policy(problem)) - mdps.occupancy(problem, problem.expert)
    assert late < 0.1 * learner.cost_set.support(uniform)


# Laws ----------------------------------------------------------------------------------------------------------------


def chain_regret(episodes: int, n: int, seeds: int = 3, **options) -> float:
    """The mean regret per episode over seeds."""
    problem, found = mdps.chain(8, 0.1), []
    for seed in range(seeds):
        demos = mdps.sample(problem, problem.expert, n, rng=seeding.generator(seed, "demonstrations", n))
        found.append(TabularOAL(problem, demos, seed=seed, **options).learn(episodes).regret[-1] / episodes)
    return float(np.mean(found))


@pytest.mark.parametrize("options", [{"bonus": "kl"}, {"models": 4}], ids=str)
def test_the_regret_grows_like_the_root_of_the_episodes_or_slower(options):
    """Per episode it falls by the root of 16 or more; where the optimism is vacuous it does not fall at all."""
    options = {"preset": "paper", "policy_step_scale": 30.0, "cost_step_scale": 10.0, "pooled": True} | options
    few, many = (chain_regret(K, 2000, expert="transition-aware", **options) for K in (500, 8000))
    assert many < few / 3.5
    vacuous = [chain_regret(K, 2000, **(options | {"bonus": "hoeffding", "models": 0})) for K in (500, 8000)]
    assert vacuous[1] > 0.5 * vacuous[0]


def test_counting_has_a_floor_in_n_which_the_transitions_take_away():
    """The chain has two states: ten demonstrations cover it, and what is left is the error of counting, 1 / sqrt(N)."""
    floors = {
        (n, expert): chain_regret(4000, n, seeds=6, bonus="kl", bonus_scale=1.0, expert=expert)
        for n in (10, 160)
        for expert in ("empirical", "transition-aware")
    }
    ratio = floors[10, "empirical"] / floors[160, "empirical"]
    assert 2.0 < ratio < 8.0, "a sixteenth of the demonstrations: four times the floor"
    assert floors[160, "transition-aware"] < 0.2 * floors[160, "empirical"]


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": 1}, "one model has no spread"),
        ({"models": -2}, "models is -2"),
        ({"models": 2, "explore": 0.1}, "two algorithms"),
        ({"explore": 1.0}, "explore is 1.0"),
        ({"explorer": "greedy"}, "explorer 'greedy' is unknown"),
        ({"model_spread": "most"}, "model_spread 'most' is unknown"),
        ({"plan_iterations": 0}, "plan_iterations is 0"),
        ({"expert": "oracle"}, "expert 'oracle' is unknown"),
        ({"bonus": "l1"}, "bonus 'l1' is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_options_are_refused_by_name(options, message):
    problem = mdps.chain(4, 0.1)
    demos = mdps.sample(problem, problem.expert, 2, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match=message):
        TabularOAL(problem, demos, **options)
    with pytest.raises(InputError, match="two demonstrations or more"):
        TabularOAL(problem, demos[:1], preset="mb-tail")


def test_presets_of_newer_algorithms_differ_from_the_default_in_what_they_are_named_for():
    assert PRESETS["soar"].models == 4
    assert PRESETS["mb-tail"].expert_estimate == "transition-aware"
    assert PRESETS["mb-tail"].explore > 0
