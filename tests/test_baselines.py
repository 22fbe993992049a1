"""The baselines against the exact value of the game, and that value against enumeration."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog, nnls

from oal.errors import InputError
from oal.tabular import baselines, game, passes
from oal.tabular import mdp as mdps
from oal.tabular.compare import compare
from oal.tabular.costsets import CostSet
from oal.tabular.game import Game
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP, Trajectories
from oal.tabular.sampler import Sampler

KINDS = ["box", "l2", "simplex"]


def small_mdp(seed: int) -> FiniteMDP:
    """A random MDP: the dynamics depend on the step or not, some states cannot be reached, one start or several."""
    if seed % 3 == 2:
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.full(5, 0.3), size=(4, 5, 2))
        return FiniteMDP.dense(p, rng.dirichlet(np.ones(5)), cost=rng.random((5, 2)))
    return mdps.garnet(7, 3, 4, branching=2, seed=seed, stationary=seed % 3 == 1, reachable=5 if seed % 2 else None)


def features_of(mdp: FiniteMDP, rng: np.random.Generator, dimension: int = 4) -> np.ndarray:
    return rng.uniform(-1, 1, size=(mdp.n_states, dimension))


def cost_set_of(kind: str, mdp: FiniteMDP, rng: np.random.Generator) -> CostSet:
    return CostSet(kind, mdp.shape, None if kind == "box" else features_of(mdp, rng))


def demos_of(mdp: FiniteMDP, rng: np.random.Generator, episodes: int = 4) -> Trajectories:
    return mdps.sample(mdp, mdps.expert_policy(mdp), episodes, rng=rng)


def expert_of(form: str, mdp: FiniteMDP, rng: np.random.Generator):
    return demos_of(mdp, rng) if form == "trajectories" else mdps.occupancy(mdp, mdps.expert_policy(mdp))


def gap_of(cost_set: CostSet, d: np.ndarray, d_expert: np.ndarray) -> float:
    return cost_set.support(cost_set.coordinates(d) - cost_set.coordinates(d_expert))


def check_bounds(solution: game.Solution, mdp: FiniteMDP, expert, cost_set: CostSet, rng: np.random.Generator) -> None:
    """No policy's gap lies below the lower bound, and the upper bound is the gap of the solution's own policy."""
    d_expert = expert.occupancy(mdp.shape) if isinstance(expert, Trajectories) else expert
    assert solution.upper == pytest.approx(gap_of(cost_set, solution.occupancy(mdp), d_expert), abs=1e-9)
    assert solution.lower <= solution.upper + 1e-9
    for _ in range(20):
        policy = rng.dirichlet(np.full(mdp.n_actions, 0.3), size=mdp.shape[:2])
        assert gap_of(cost_set, mdps.occupancy(mdp, policy), d_expert) >= solution.lower - 1e-9


# The exact value ----------------------------------------------------------------------------------------------------


def every_deterministic_policy(mdp: FiniteMDP):
    H, S, A = mdp.shape
    for actions in itertools.product(range(A), repeat=H * S):
        yield np.eye(A)[np.array(actions).reshape(H, S)]


def value_by_enumeration(mdp: FiniteMDP, d_expert: np.ndarray, cost_set: CostSet) -> float:
    """Solve the game between all deterministic policies and all extreme costs."""
    differences = np.array(
        [
            cost_set.coordinates(mdps.occupancy(mdp, policy) - d_expert).ravel()
            for policy in every_deterministic_policy(mdp)
        ]
    )
    if cost_set.kind == "l2":
        # Nearest point of a hull: the nonnegative y that fits (differences^T, 1) y = (0, 1) best points to it.
        y = nnls(np.vstack([differences.T, np.ones(len(differences))]), np.append(np.zeros(differences.shape[1]), 1.0))[
            0
        ]
        return float(np.linalg.norm(y @ differences) / y.sum())
    n = differences.shape[1]
    costs = np.eye(n) if cost_set.kind == "simplex" else np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    payoff = costs @ differences.T
    answer = linprog(
        np.append(np.zeros(len(differences)), 1.0),
        A_ub=np.hstack([payoff, -np.ones((len(payoff), 1))]),
        b_ub=np.zeros(len(payoff)),
        A_eq=np.append(np.ones(len(differences)), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * len(differences) + [(None, None)],
    )
    return answer.fun


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["trajectories", "occupancy", "unreachable"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_value_is_that_of_the_game_over_all_deterministic_policies(rng, kind, form, seed):
    S = 2 if kind == "box" else 3
    mdp = mdps.garnet(S, 2, 2, branching=2, seed=seed, stationary=seed == 1)
    # "unreachable": an expert that no policy of this MDP can imitate.
    expert = (
        rng.dirichlet(np.ones(S * 2), size=2).reshape(mdp.shape) if form == "unreachable" else expert_of(form, mdp, rng)
    )
    d_expert = expert.occupancy(mdp.shape) if isinstance(expert, Trajectories) else expert
    for dimension in (1, 3):
        features = None if kind == "box" else features_of(mdp, rng, dimension)
        cost_set = CostSet(kind, mdp.shape, features)
        exact = baselines.solve_lp(Game(mdp, expert, cost_set))
        assert exact.upper == pytest.approx(value_by_enumeration(mdp, d_expert, cost_set), abs=1e-7)
        assert exact.upper - exact.lower < 1e-8
        assert exact.gap == pytest.approx(exact.upper, abs=1e-12)
        check_bounds(exact, mdp, expert, cost_set, rng)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_exact_solution_is_certified(rng, kind, seed):
    mdp = small_mdp(seed)
    cost_set = cost_set_of(kind, mdp, rng)
    for form in ("trajectories", "occupancy"):
        expert = expert_of(form, mdp, rng)
        exact = baselines.solve_lp(Game(mdp, expert, cost_set))
        assert -1e-12 < exact.upper - exact.lower < 1e-7
        check_bounds(exact, mdp, expert, cost_set, rng)
        if form == "occupancy":
            # The expert itself is a policy of gap zero.
            assert exact.upper <= 1e-7


def test_nearest_point_in_many_dimensions(rng):
    mdp = mdps.garnet(30, 3, 8, seed=5)
    exact = baselines.solve_lp(Game(mdp, demos_of(mdp, rng), "l2"))
    assert isinstance(exact.policy, game.MixedPolicy)
    assert 10 < len(exact.policy) <= mdp.n_states + 1  # Carathéodory: affinely independent vertices
    assert exact.upper - exact.lower < 1e-8
    assert exact.mdps_solved == exact.iterations == len(exact.history)
    assert np.all(np.diff(exact.history) <= 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_flow_constraints_hold_for_occupancies_and_only_for_them(rng, seed):
    mdp = small_mdp(seed)
    flow = baselines.Flow(mdp)
    policy = rng.dirichlet(np.ones(mdp.n_actions), size=mdp.shape[:2])
    d = mdps.occupancy(mdp, policy)
    np.testing.assert_allclose(flow.matrix @ flow.read(d), flow.mass, atol=1e-12)
    np.testing.assert_array_equal(flow.dense(flow.read(d)), d)
    reachable = mdps.occupancy(mdp, mdps.uniform_policy(mdp)).sum(-1) > 0
    assert flow.matrix.shape == (reachable.sum(), reachable.sum() * mdp.n_actions)
    bent = flow.read(d)
    bent[0] += 0.1
    assert np.abs(flow.matrix @ bent - flow.mass).max() > 0.05


# The iterative algorithms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["trajectories", "occupancy"])
def test_projection_and_frank_wolfe_reach_the_exact_value(rng, form, seed):
    mdp = small_mdp(seed)
    cost_set = CostSet("l2", mdp.shape, features_of(mdp, rng))
    expert = expert_of(form, mdp, rng)
    value = baselines.solve_lp(Game(mdp, expert, cost_set)).upper
    diameter = 2 * mdp.horizon * np.linalg.norm(cost_set.phi, axis=1).max()
    T = 400
    plain = {
        "projection": baselines.projection(Game(mdp, expert, cost_set), iterations=T, tolerance=1e-9),
        "plain": baselines.frank_wolfe(Game(mdp, expert, cost_set), iterations=T, tolerance=1e-9, away_steps=False),
    }
    for found in plain.values():
        t = 1 + np.arange(found.iterations)
        # Frank-Wolfe: f(x_t) - f* <= 2 diameter^2 / (t + 2) for f = distance^2 / 2.
        assert np.all(found.history**2 - value**2 <= 4 * diameter**2 / (t + 2))
        assert np.all(np.diff(found.history) <= 1e-12)
        assert -1e-9 <= found.upper - value <= 0.02
        assert found.lower <= value + 1e-9
        check_bounds(found, mdp, expert, cost_set, rng)
    away = baselines.frank_wolfe(Game(mdp, expert, cost_set), iterations=T, tolerance=1e-9)
    # At most half of the away steps can drop a component, the others gain as much as plain steps do.
    assert away.upper**2 - value**2 <= 4 * diameter**2 / (away.iterations / 2 + 2)
    assert -1e-9 <= away.upper - value <= 0.02
    assert np.all(np.diff(away.history) <= 1e-12)
    check_bounds(away, mdp, expert, cost_set, rng)
    # Zahavy et al.: the projection algorithm is Frank-Wolfe with line search.
    np.testing.assert_allclose(plain["projection"].history, plain["plain"].history, atol=1e-12)


def test_away_steps_are_the_published_algorithm(rng):
    mdp = mdps.garnet(6, 3, 5, branching=2, seed=0)
    demos, phi = demos_of(mdp, rng), features_of(mdp, rng)
    T = 60
    expectations = lambda policy: mdps.occupancy(mdp, policy).sum((0, 2)) @ phi  # noqa: E731
    target = demos.occupancy(mdp.shape).sum((0, 2)) @ phi
    first = np.zeros(mdp.shape)
    first[..., 0] = 1
    vertices, weights, history, away_steps = {first.tobytes(): expectations(first)}, {first.tobytes(): 1.0}, [], 0
    for _ in range(T):
        x = sum(weight * vertices[key] for key, weight in weights.items())
        gradient = x - target
        policy = mdps.optimal_policy(mdp, np.broadcast_to((phi @ gradient)[None, :, None], mdp.shape))[0]
        s, v = policy.tobytes(), max(weights, key=lambda key: vertices[key] @ gradient)
        vertices[s] = expectations(policy)
        towards, away = vertices[s] - x, x - vertices[v]
        if -gradient @ towards >= -gradient @ away:
            step = np.clip(-gradient @ towards / (towards @ towards), 0, 1)
            weights = {key: (1 - step) * weight for key, weight in weights.items()}
            weights[s] = weights.get(s, 0.0) + step
        else:
            away_steps += 1
            step = np.clip(-gradient @ away / (away @ away), 0, weights[v] / (1 - weights[v]))
            weights = {key: (1 + step) * weight for key, weight in weights.items()}
            weights[v] -= step
        weights = {key: weight for key, weight in weights.items() if weight > 1e-13}
        history.append(np.linalg.norm(sum(weight * vertices[key] for key, weight in weights.items()) - target))
    found = baselines.frank_wolfe(Game(mdp, demos, CostSet("l2", mdp.shape, phi)), iterations=T, tolerance=0)
    assert 5 < away_steps < T - 5
    np.testing.assert_allclose(found.history, history, atol=1e-9)
    assert isinstance(found.policy, game.MixedPolicy)
    np.testing.assert_allclose(np.sort(found.policy.weights), np.sort(list(weights.values())), atol=1e-7)


def test_away_steps_converge_linearly_where_plain_steps_do_not():
    mdp = mdps.garnet(6, 3, 5, branching=2, seed=0)
    rng = np.random.default_rng(0)
    demos = demos_of(mdp, rng)
    cost_set = CostSet("l2", mdp.shape, features_of(mdp, rng))
    value = baselines.solve_lp(Game(mdp, demos, cost_set)).upper
    assert value > 0.1  # the nearest point lies on the boundary
    away = baselines.frank_wolfe(Game(mdp, demos, cost_set), iterations=1500, tolerance=1e-12)
    plain = baselines.frank_wolfe(Game(mdp, demos, cost_set), iterations=1500, tolerance=1e-12, away_steps=False)
    assert away.history[-1] - value < 1e-9
    assert plain.history[-1] - value > 1e-6


@pytest.mark.parametrize("form", ["trajectories", "occupancy"])
def test_mwal_reaches_the_exact_value_at_its_rate(rng, form):
    errors = []
    for seed in range(6):
        mdp = small_mdp(seed)
        cost_set = CostSet("simplex", mdp.shape, features_of(mdp, rng))
        expert = expert_of(form, mdp, rng)
        value = baselines.solve_lp(Game(mdp, expert, cost_set)).upper
        for T in (100, 1600):
            found = baselines.mwal(Game(mdp, expert, cost_set), iterations=T)
            L = np.log(cost_set.dimension)
            bound = 4 * mdp.horizon * (np.sqrt(2 * L / T) + L / T)
            errors.append(found.upper - value)
            assert -1e-9 <= errors[-1] <= bound
            assert found.lower <= value + 1e-9
            assert found.upper - found.lower <= bound
            check_bounds(found, mdp, expert, cost_set, rng)
    at_100, at_1600 = np.mean(np.reshape(errors, (6, 2)), axis=0)
    assert at_1600 < at_100 / 2  # a rate of 1/sqrt(T) makes it a quarter
    assert at_1600 < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_no_regret_costs_reach_the_exact_value(rng, kind, seed):
    mdp = small_mdp(seed)
    cost_set = cost_set_of(kind, mdp, rng)
    demos = demos_of(mdp, rng)
    value = baselines.solve_lp(Game(mdp, demos, cost_set)).upper
    T = 1500
    found = baselines.no_regret_costs(Game(mdp, demos, cost_set), iterations=T)
    H, S, A = mdp.shape
    if kind == "box":
        assert found.upper - found.lower <= H * np.sqrt(2 * S * A / T)
    assert -1e-9 <= found.upper - value <= 0.1
    check_bounds(found, mdp, demos, cost_set, rng)


def test_mwal_is_the_published_update(rng):
    mdp = small_mdp(0)
    demos = demos_of(mdp, rng)
    phi = features_of(mdp, rng)
    T, k, H = 25, phi.shape[1], mdp.horizon
    beta = 1 / (1 + np.sqrt(2 * np.log(k) / T))
    expectations = lambda d: np.einsum("hsa,sk->k", d, phi)  # noqa: E731
    expert = expectations(demos.occupancy(mdp.shape))
    W, total, history = np.ones(k), np.zeros(k), []
    for t in range(1, T + 1):
        cost = np.broadcast_to((phi @ (W / W.sum()))[None, :, None], mdp.shape)
        Phi = expectations(mdps.occupancy(mdp, mdps.optimal_policy(mdp, cost)[0]))
        # Their rewards are minus our costs: an apprentice that is ahead in a feature loses weight there.
        W = W * beta ** ((-(Phi - expert) / H + 2) / 4)
        total += Phi
        history.append((total / t - expert).max())
    found = baselines.mwal(Game(mdp, demos, CostSet("simplex", mdp.shape, phi)), iterations=T)
    np.testing.assert_allclose(found.history, history, atol=1e-10)
    assert isinstance(found.policy, game.MixedPolicy)
    np.testing.assert_allclose(found.policy.weights * T, np.round(found.policy.weights * T), atol=1e-9)  # 1/T each


@pytest.mark.parametrize("name", ["projection", "frank_wolfe", "mwal", "no_regret_costs", "solve_lp"])
def test_mdps_solved_are_counted(rng, monkeypatch, name):
    mdp = small_mdp(0)
    kind = {"mwal": "simplex", "no_regret_costs": "box"}.get(name, "l2")
    demos, cost_set = demos_of(mdp, rng), cost_set_of(kind, mdp, rng)
    solved = []
    solve = passes.optimal
    monkeypatch.setattr(passes, "optimal", lambda *arguments: solved.append(1) or solve(*arguments))
    found = getattr(baselines, name)(Game(mdp, demos, cost_set), iterations=50)
    assert found.mdps_solved == found.iterations == len(found.history) == len(solved) > 0
    assert found.history[-1] == pytest.approx(found.upper, abs=1e-9)


def test_start_at_the_expert_needs_no_mdp(rng):
    mdp = small_mdp(1)
    policy = mdps.expert_policy(mdp)
    for algorithm in (baselines.projection, baselines.frank_wolfe):
        found = algorithm(Game(mdp, mdps.occupancy(mdp, policy), "l2"), start=policy.argmax(-1))
        assert found.gap < 1e-12
        assert found.mdps_solved == found.iterations == len(found.history) == 0


# Behavioural cloning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_cloning_counts(rng, seed):
    mdp = small_mdp(seed)
    demos = mdps.sample(mdp, mdps.uniform_policy(mdp), 3, rng=rng)
    found = baselines.cloning(Game(mdp, demos, "box"))
    assert found.mdps_solved == found.iterations == 0
    for h, s in np.ndindex(mdp.shape[:2]):
        here = demos.actions[demos.states[:, h] == s, h]
        counts = np.array([(here == a).sum() for a in range(mdp.n_actions)])
        expected = counts / counts.sum() if len(here) else np.full(mdp.n_actions, 1 / mdp.n_actions)
        np.testing.assert_allclose(found.markov(mdp)[h, s], expected, atol=1e-12)
    assert found.gap == pytest.approx(
        gap_of(CostSet("box", mdp.shape), found.occupancy(mdp), demos.occupancy(mdp.shape))
    )


# Mixed policies -----------------------------------------------------------------------------------------------------


def test_sampled_occupancy_of_a_mixed_policy_is_its_exact_one(rng):
    mdp = small_mdp(2)
    found = baselines.projection(Game(mdp, demos_of(mdp, rng), "l2"), iterations=20)
    mixed = found.policy
    assert isinstance(mixed, game.MixedPolicy)
    assert len(mixed) > 3
    n = 20_000
    exact, sampled = mixed.occupancy(mdp), mixed.sample(mdp, n, rng=rng).occupancy(mdp.shape)
    assert np.all(np.abs(sampled - exact) <= 5 * np.sqrt(exact * (1 - exact) / n) + 1e-12)
    np.testing.assert_allclose(mdps.occupancy(mdp, mixed.markov(mdp)), exact, atol=1e-12)
    np.testing.assert_array_equal(found.occupancy(mdp), exact)


def test_a_mixed_policy_follows_one_component_for_the_whole_episode(rng):
    H, S = 6, 5
    mdp = mdps.garnet(S, 2, H, seed=0)
    never_and_always = np.array([np.zeros((H, S)), np.ones((H, S))], dtype=int)
    mixed = game.MixedPolicy(np.array([0.3, 0.7]), never_and_always, 2)
    played = mixed.sample(mdp, 2000, rng=rng).actions
    assert np.all(played == played[:, :1])
    assert abs(played[:, 0].mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / 2000)
    # The Markov policy with the same occupancy draws anew at each step.
    again = mdps.sample(mdp, mixed.markov(mdp), 200, rng=rng).actions
    assert not np.all(again == again[:, :1])
    assert {int(mixed.draw(rng)[0, 0]) for _ in range(50)} == {0, 1}


def test_a_mixed_policy_is_executed_in_an_environment_that_can_only_be_sampled(rng):
    sampler = Sampler("FrozenLake-v1", 8)
    actions = rng.integers(0, 4, size=(2, 8, 16))
    mixed = game.MixedPolicy(np.array([0.5, 0.5]), actions, 4)
    played = mixed.sample(sampler, 20, rng=rng)
    steps = np.arange(8)
    followed = [
        [np.array_equal(a, table[steps, s]) for table in actions]
        for s, a in zip(played.states, played.actions, strict=True)
    ]
    assert all(any(which) for which in followed)
    assert {which.index(True) for which in followed} == {0, 1}


# Estimated models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unseen", ["sink", "stay"])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_empirical_mdp_counts(rng, seed, pooled, unseen):
    mdp = small_mdp(seed)
    H, S, A = mdp.shape
    sets = [mdps.sample(mdp, mdps.uniform_policy(mdp), n, rng=rng) for n in (3, 9)]
    model = game.empirical_mdp(sets, mdp, unseen=unseen, pooled=pooled)
    n = np.zeros((H, S, A, S))
    first = np.zeros(S)
    for episodes in sets:
        for states, actions in zip(episodes.states, episodes.actions, strict=True):
            first[states[0]] += 1
            for h in range(H - 1):
                n[h, states[h], actions[h], states[h + 1]] += 1
    if pooled:
        n[:] = n.sum(0)
    p = model.table()
    assert p.shape[1] == S + (unseen == "sink")
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(model.initial[:S], first / 12)
    for h, s, a in np.ndindex(H, S, A):
        if n[h, s, a].sum() > 0:
            np.testing.assert_allclose(p[h, s, a, :S], n[h, s, a] / n[h, s, a].sum(), atol=1e-12)
        else:
            assert p[h, s, a, S if unseen == "sink" else s] == 1
    if unseen == "sink":
        assert np.all(p[:, S, :, S] == 1)
    known = game.empirical_mdp(sets, mdp, unseen=unseen, initial="known")
    np.testing.assert_array_equal(known.initial[:S], mdp.initial)


def test_empirical_mdp_of_one_step(rng):
    mdp = mdps.garnet(4, 2, 1, seed=0)
    model = game.empirical_mdp(demos_of(mdp, rng), mdp.shape)
    assert model.shape == (1, 5, 2)
    assert baselines.solve_lp(Game(model, demos_of(mdp, rng), CostSet("box", mdp.shape))).upper < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unseen", ["sink", "stay"])
def test_in_the_model_of_the_demonstrations_cloning_is_perfect(rng, kind, unseen):
    mdp = small_mdp(0)
    demos = mdps.sample(mdp, mdps.uniform_policy(mdp), 6, rng=rng)
    cost_set = cost_set_of(kind, mdp, rng)
    model = game.empirical_mdp(demos, mdp, unseen=unseen)
    clone = baselines.cloning(Game(model, demos, cost_set, truth=mdp))
    assert abs(clone.upper) < 1e-9
    assert clone.markov(mdp).shape == mdp.shape
    assert clone.gap > clone.upper + 0.01  # the truth knows what was not demonstrated
    assert baselines.solve_lp(Game(model, demos, cost_set)).upper < 1e-7


@pytest.mark.parametrize("unseen", ["sink", "stay"])
@pytest.mark.parametrize("name", ["projection", "frank_wolfe", "mwal", "no_regret_costs", "solve_lp"])
def test_gap_is_measured_in_the_truth_and_against_the_true_expert(rng, name, unseen):
    mdp = small_mdp(0)
    kind = {"mwal": "simplex", "no_regret_costs": "box", "solve_lp": "box"}.get(name, "l2")
    demos, cost_set = demos_of(mdp, rng), cost_set_of(kind, mdp, rng)
    explored = mdps.sample(mdp, mdps.uniform_policy(mdp), 30, rng=rng)
    model = game.empirical_mdp([demos, explored], mdp, unseen=unseen)
    d_expert = mdps.occupancy(mdp, mdps.expert_policy(mdp))
    found = getattr(baselines, name)(Game(model, demos, cost_set, truth=mdp, true_expert=d_expert), iterations=100)
    assert found.gap == pytest.approx(gap_of(cost_set, found.occupancy(mdp), d_expert), abs=1e-10)
    assert found.markov(mdp).shape == mdp.shape
    assert found.sample(mdp, 3, rng=rng).states.shape == (3, mdp.horizon)
    in_model = getattr(baselines, name)(Game(model, demos, cost_set), iterations=100)
    assert in_model.gap == pytest.approx(in_model.upper, abs=1e-12)
    assert in_model.upper == found.upper != found.gap


@pytest.mark.parametrize("unseen", ["sink", "stay"])
def test_an_estimated_model_becomes_as_good_as_the_known_one(rng, unseen):
    mdp = small_mdp(1)
    d_expert = mdps.occupancy(mdp, mdps.expert_policy(mdp))
    gaps = []
    for episodes in (30, 30_000):
        explored = mdps.sample(mdp, mdps.uniform_policy(mdp), episodes, rng=rng)
        model = game.empirical_mdp(explored, mdp, unseen=unseen)
        gaps.append(baselines.solve_lp(Game(model, d_expert, CostSet("box", mdp.shape), truth=mdp)).gap)
    assert gaps[1] < 0.05 < gaps[0]


def test_the_sink_keeps_planning_to_what_was_seen(rng):
    mdp = mdps.chain(horizon=10, alpha=0.3)
    expert = mdps.expert_policy(mdp)
    demos = mdps.sample(mdp, expert, 50, rng=rng)
    cost_set = CostSet("simplex", mdp.shape, np.array([[0.0], [1.0]]))  # the time spent in s1
    found = {}
    for unseen in ("sink", "stay"):
        model = game.empirical_mdp(demos, mdp, unseen=unseen)
        found[unseen] = baselines.solve_lp(
            Game(model, demos, cost_set, truth=mdp, true_expert=mdps.occupancy(mdp, expert))
        )
    # Nobody has tried a1, which leaves for s1 at once: a model in which it stays in s0 makes it look best.
    assert found["stay"].upper < -1
    assert found["stay"].gap > 2
    assert abs(found["sink"].upper) < 1e-9
    assert found["sink"].gap < 1e-9


def test_oal_prior_offers_the_baselines_what_they_take_and_return_and_the_comparison():
    import oal

    algorithms = {"cloning", "frank_wolfe", "mwal", "no_regret_costs", "projection", "solve_lp", "compare"}
    data = {"Comparison", "Game", "MixedPolicy", "Solution", "empirical_mdp"}
    assert set(oal.prior.__all__) == algorithms | data
    assert all(hasattr(oal.prior, name) for name in oal.prior.__all__)


# The comparison -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_comparison_has_a_row_for_each_algorithm(rng, kind):
    mdp = small_mdp(0)
    ticks = []
    rows = compare(mdp, demos_of(mdp, rng), kind, episodes=50, iterations=20, advance=ticks.append)
    assert len(ticks) == len(rows)
    names = [row.algorithm for row in rows]
    expected = {
        "box": {"no-regret costs", "linear program"},
        "l2": {"projection", "Frank-Wolfe with away steps", "no-regret costs", "minimum-norm point"},
        "simplex": {"MWAL", "no-regret costs", "linear program"},
    }[kind]
    assert set(names) == expected | {"behavioural cloning", "OAL, policy returned", "OAL, policies played"}
    for row in rows:
        assert np.isfinite(row.gap)
        solves = not row.algorithm.startswith(("OAL", "behavioural"))
        assert (row.mdps_solved > 0) == solves
        assert row.episodes_sampled == (50 if row.model == "estimated" else 0)
    again = compare(mdp, demos_of(mdp, np.random.default_rng(0)), kind, episodes=50, iterations=20)
    same = compare(mdp, demos_of(mdp, np.random.default_rng(0)), kind, episodes=50, iterations=20)
    assert again == same


def test_comparison_with_newer_algorithms_and_the_transition_aware_expert(rng):
    mdp = small_mdp(0)
    demos = demos_of(mdp, rng)
    options = {"episodes": 60, "iterations": 20}
    before = compare(mdp, demos, "box", **options)
    rows = compare(mdp, demos, "box", newer=True, **options)
    assert rows[: len(before)] == before
    added = {row.algorithm.rpartition(", ")[0] for row in rows[len(before) :]}
    assert added == {"OAL, KL sets", "OAL, transition-aware", "SOAR", "MB-TAIL"}
    soar = next(row for row in rows if row.algorithm == "SOAR, policies played")
    assert soar.gap == TabularOAL(mdp, demos, preset="soar").learn(60).regret[-1] / 60
    aware = compare(mdp, demos, "box", expert="transition-aware", **options)
    assert aware[0] == before[0], "cloning reads no transitions"
    assert all(one.gap != other.gap for one, other in zip(aware[1:], before[1:], strict=True))
    with pytest.raises(InputError, match="expert 'oracle' is unknown"):
        compare(mdp, demos, "box", expert="oracle")


@pytest.mark.parametrize("preset, pooled", [("default", True), ("paper", False)])
def test_all_estimated_models_are_pooled_where_oal_pools(rng, preset, pooled):
    mdp = mdps.gridworld(3, 6)
    demos = demos_of(mdp, rng)
    options = {"preset": preset, "episodes": 40, "iterations": 10}
    rows = compare(mdp, demos, "l2", **options)
    assert rows == compare(mdp, demos, "l2", pooled=pooled, **options)
    assert rows != compare(mdp, demos, "l2", pooled=not pooled, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_beats_the_exact_solution(rng, kind):
    with_expert = small_mdp(2)
    demos = demos_of(with_expert, rng)
    # Without an expert, gaps are against the demonstrations: those that the algorithms make small.
    mdp = FiniteMDP.dense(with_expert.table(), with_expert.initial)
    rows = compare(mdp, demos, kind, episodes=200, iterations=50)
    exact = min(row.gap for row in rows if row.algorithm in ("linear program", "minimum-norm point"))
    assert all(row.gap >= exact - 1e-7 for row in rows)
    assert "OAL, policies played" not in {row.algorithm for row in rows}


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m, d: baselines.projection(Game(m, d, "box")), "projection is for the cost set l2, not for box"),
        (lambda m, d: baselines.frank_wolfe(Game(m, d, "simplex")), "for the cost set l2, not for simplex"),
        (lambda m, d: baselines.mwal(Game(m, d, "l2")), "MWAL is for the cost set simplex, not for l2"),
        (lambda m, d: baselines.solve_lp(Game(m, d, "cube")), "cost set 'cube' is unknown"),
        (lambda m, d: baselines.projection(Game(m, d, "l2"), iterations=0), "number of iterations is 0"),
        (lambda m, d: baselines.mwal(Game(m, d, "simplex"), iterations=0), "number of iterations is 0"),
        (lambda m, d: baselines.no_regret_costs(Game(m, d), iterations=0), "number of iterations is 0"),
        (lambda m, d: baselines.solve_lp(Game(m, d), tolerance=-1.0), "tolerance is -1.0"),
        (lambda m, d: compare(m, d, episodes=0), "number of episodes is 0"),
        (lambda m, d: compare(m, d, iterations=0), "number of iterations is 0"),
        (lambda m, d: baselines.solve_lp(Game(m, np.zeros((2, 3, 4)))), r"shape \(2, 3, 4\): it must be \[H, S, A\]"),
        (
            lambda m, d: baselines.solve_lp(Game(m, np.zeros(m.shape))),
            "sums to 0 .least entry 0.: it must be a distribution",
        ),
        (lambda m, d: baselines.solve_lp(Game(m, np.full(m.shape, np.nan))), "sums to nan .*: it must be"),
        (lambda m, d: baselines.solve_lp(Game(m, d, CostSet("box", (2, 3, 2)))), "the cost set is one of the shape"),
        (lambda m, d: baselines.solve_lp(Game(m, d, CostSet("box", m.shape), truth=mdps.chain(4))), "chain"),
        (lambda m, d: baselines.cloning(Game(Sampler("FrozenLake-v1", 4), d)), "plans in a FiniteMDP, not in Sampler"),
        (
            lambda m, d: baselines.projection(Game(m, d, "l2"), start=np.zeros((2, 2), dtype=int)),
            "start is int64 of the shape",
        ),
        (
            lambda m, d: baselines.projection(Game(m, d, "l2"), start=np.full(m.shape[:2], 9)),
            "start holds an action outside",
        ),
        (lambda m, d: baselines.projection(Game(mdps.chain(4), d, "l2")), "demonstrations hold the"),
        (lambda m, d: baselines.projection(Game(mdps.chain(5), d, "l2")), "demonstrations have 4 steps"),
        (lambda m, d: game.empirical_mdp([], m), "no trajectories"),
        (lambda m, d: game.empirical_mdp(d, mdps.chain(5)), "demonstrations have 4 steps"),
        (lambda m, d: game.empirical_mdp(d, m, unseen="fly"), "unseen 'fly' is unknown"),
        (lambda m, d: game.empirical_mdp(d, m.shape, initial="known"), "is not known"),
        (lambda m, d: game.MixedPolicy(np.ones(2), np.zeros((2, 4, 7), dtype=int), 3), "sum to 2"),
        (lambda m, d: game.MixedPolicy(np.ones(1), np.full((1, 4, 7), 3), 3), "whole numbers in 0..2"),
        (
            lambda m, d: game.MixedPolicy(np.ones(3) / 3, np.zeros((2, 4, 7), dtype=int), 3),
            r"give \[n\] and \[n, H, S\]",
        ),
        (lambda m, d: game.MixedPolicy(np.ones(1), np.zeros((1, 4, 9), dtype=int), 3).occupancy(m), "has the shape"),
    ],
)
def test_bad_input_is_explained(rng, call, message):
    mdp = small_mdp(0)
    with pytest.raises(InputError, match=message):
        call(mdp, demos_of(mdp, rng))
