"""Each equation of the paper against loops, numerical optimisation, or numbers worked out by hand."""

import itertools
import math

import equations_page
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import rel_entr

from bruteforce import random_distributions, random_mdp
from oal import equations
from oal.tabular import mdp as mdps

# H, S, A of the numbers worked out by hand below, with K = 100 episodes, N = 50 demonstrations and delta = 0.3.
SHAPE = (2, 3, 2)


# Section 2 -----------------------------------------------------------------------------------------------------------


def test_inner_product_sums_over_steps_states_and_actions(rng):
    c, d = rng.normal(size=(2, *SHAPE))
    expected = 0.0
    for h, s, a in itertools.product(*map(range, SHAPE)):
        expected += c[h, s, a] * d[h, s, a]
    assert equations.inner(c, d) == pytest.approx(expected, abs=1e-14)


def test_feature_expectations_sum_the_features_along_the_way(rng):
    mdp = random_mdp(rng, *SHAPE)
    pi, phi = random_distributions(rng, *SHAPE), rng.uniform(-1, 1, size=(3, 4))
    d = equations.occupancy(mdp.table(), pi, mdp.initial)
    expected = np.zeros(4)
    for h, s, a in itertools.product(*map(range, SHAPE)):
        expected += d[h, s, a] * phi[s]
    np.testing.assert_allclose(equations.feature_expectations(d, phi), expected, atol=1e-14)
    # A linear cost is the same cost, summed before or after: <w, Phi> = <c, d> with c(s) = w . phi(s).
    w = rng.normal(size=4)
    c = np.broadcast_to((phi @ w)[None, :, None], SHAPE)
    assert w @ equations.feature_expectations(d, phi) == pytest.approx(equations.inner(c, d), abs=1e-13)


def test_occupancy_of_an_incomplete_model_loses_the_rest(rng):
    """The empirical model has empty rows: what enters them is gone, and nothing becomes negative or more."""
    mdp = random_mdp(rng, 4, 3, 2)
    p, pi = mdp.table(), random_distributions(rng, *mdp.shape)
    p[1, 2] = 0
    d = equations.occupancy(p, pi, mdp.initial)
    whole = equations.occupancy(mdp.table(), pi, mdp.initial)
    np.testing.assert_allclose(d[:2], whole[:2], atol=1e-15)
    assert d[2].sum() == pytest.approx(1 - d[1, 2].sum(), abs=1e-14)
    assert (d <= whole + 1e-15).all()


# Section 3: mirror steps against a numerical argmin -----------------------------------------------------------------


def least_over_simplex(objective, d):
    """Minimise over the simplex with a general-purpose solver."""
    found = minimize(
        objective,
        np.full(d, 1 / d),
        method="SLSQP",
        bounds=[(1e-12, 1)] * d,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success, found.message
    return found.x


@pytest.mark.parametrize("t", [0.05, 0.7, 3.0])
def test_policy_step_is_the_argmin_over_distributions(rng, t):
    for A in (2, 3, 5):
        pi, Q = rng.dirichlet(np.ones(A)), rng.normal(size=A)

        def objective(x, pi=pi, Q=Q):
            return Q @ x + rel_entr(x, pi).sum() / t

        step = equations.policy_step(pi, Q, t)
        np.testing.assert_allclose(step, least_over_simplex(objective, A), atol=2e-5)
        assert all(objective(step) <= objective(x) + 1e-12 for x in rng.dirichlet(np.ones(A), size=200))


def test_policy_step_goes_state_by_state_and_keeps_distributions(rng):
    pi, Q = random_distributions(rng, 4, 5, 3), rng.normal(size=(4, 5, 3))
    step = equations.policy_step(pi, Q, 0.8)
    for h, s in itertools.product(range(4), range(5)):
        expected = pi[h, s] * np.exp(-0.8 * Q[h, s])
        np.testing.assert_allclose(step[h, s], expected / expected.sum(), atol=1e-14)
    np.testing.assert_array_equal(step[pi == 0], 0)
    np.testing.assert_allclose(equations.policy_step(pi, Q, 0.0), pi, atol=1e-15)
    np.testing.assert_allclose(equations.policy_step(pi, Q + 7.5, 0.8), step, atol=1e-14)
    np.testing.assert_allclose(
        equations.policy_step(equations.policy_step(pi, Q, 0.3), Q, 0.5), step, atol=1e-14, err_msg="0.3 and 0.5 is 0.8"
    )
    extreme = equations.policy_step(pi, 1e6 * Q, 1.0)
    np.testing.assert_allclose(extreme.sum(-1), 1.0)


@pytest.mark.parametrize("t", [0.05, 0.7, 3.0])
def test_box_step_is_the_argmax_over_the_box(rng, t):
    c, g = rng.random(6), rng.normal(size=6)
    found = minimize(
        lambda x: -(g @ x) + ((x - c) ** 2).sum() / (2 * t),
        np.full(6, 0.5),
        method="L-BFGS-B",
        bounds=[(0, 1)] * 6,
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    np.testing.assert_allclose(equations.box_step(c, g, t), found.x, atol=1e-6)


@pytest.mark.parametrize("t", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("length", [0.2, 1.0])
def test_ball_step_is_the_argmax_over_the_ball(rng, t, length):
    w, g = rng.normal(size=(2, 4))
    w *= length / np.linalg.norm(w)

    def loss(x):
        return -(g @ x) + ((x - w) ** 2).sum() / (2 * t)

    found = minimize(
        loss,
        w / 2,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    step = equations.ball_step(w, g, t)
    np.testing.assert_allclose(step, found.x, atol=1e-5)
    others = rng.normal(size=(200, 4))
    others /= np.maximum(1, np.linalg.norm(others, axis=1, keepdims=True))
    assert all(loss(step) <= loss(x) + 1e-12 for x in others)


@pytest.mark.parametrize("t", [0.05, 0.7, 3.0])
def test_simplex_step_is_the_argmax_over_the_simplex(rng, t):
    w, g = rng.dirichlet(np.ones(4)), rng.normal(size=4)

    def loss(x):
        return -(g @ x) + rel_entr(x, w).sum() / t

    step = equations.simplex_step(w, g, t)
    np.testing.assert_allclose(step, least_over_simplex(loss, 4), atol=2e-5)
    assert all(loss(step) <= loss(x) + 1e-12 for x in rng.dirichlet(np.ones(4), size=200))
    np.testing.assert_allclose(equations.simplex_step(w, 1e8 * g, t).sum(), 1.0)


def test_cost_gradient_is_the_derivative_of_the_gap(rng):
    mdp = random_mdp(rng, *SHAPE)
    pi, expert = random_distributions(rng, 2, *SHAPE)
    c = rng.random(SHAPE)
    gradient = equations.cost_gradient(mdps.occupancy(mdp, pi), mdps.occupancy(mdp, expert))

    def gap(cost):
        return mdps.value(mdp, pi, cost) - mdps.value(mdp, expert, cost)

    for index in itertools.product(*map(range, SHAPE)):
        nudge = np.zeros(SHAPE)
        nudge[index] = 0.5
        assert gradient[index] == pytest.approx(gap(c + nudge) - gap(c - nudge), abs=1e-13)


# Section 3.2: Algorithm 2 --------------------------------------------------------------------------------------------


def test_empirical_model_is_the_share_of_visits():
    counts = np.zeros((1, 2, 2, 2))
    counts[0, 0, 1] = [1, 3]
    counts[0, 1, 0] = [0, 1]
    expected = np.zeros((1, 2, 2, 2))
    expected[0, 0, 1] = [0.25, 0.75]
    expected[0, 1, 0] = [0, 1]
    np.testing.assert_array_equal(equations.empirical_model(counts), expected)


def optimistic_by_loops(p, pi, c, b):
    H, S, A = c.shape
    Q, V = np.zeros((H, S, A)), np.zeros((H + 1, S))
    for h in range(H - 1, -1, -1):
        for s in range(S):
            for a in range(A):
                q = c[h, s, a] - b[h, s, a]
                for t in range(S):
                    q += p[h, s, a, t] * V[h + 1, t]
                Q[h, s, a] = q if q > 0 else 0.0
                V[h, s] += pi[h, s, a] * Q[h, s, a]
    return Q, V[:-1]


def test_optimistic_values_subtract_the_bonus_and_stop_at_zero(rng):
    mdp = random_mdp(rng, 4, 3, 2)
    p, pi = mdp.table(), random_distributions(rng, 4, 3, 2)
    c, b = rng.random((4, 3, 2)), rng.random((4, 3, 2))
    for got, expected in zip(equations.optimistic_values(p, pi, c, b), optimistic_by_loops(p, pi, c, b), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-14)
    assert (equations.optimistic_values(p, pi, c, b)[0] == 0).any(), "the truncation was never reached"
    for got, expected in zip(
        equations.optimistic_values(p, pi, c, 0 * b), equations.action_values(p, pi, c), strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-14)
    more = equations.optimistic_values(p, pi, c, b + rng.random(b.shape))[0]
    assert (more <= equations.optimistic_values(p, pi, c, b)[0]).all()


def test_the_theorems_bonus_makes_values_optimistic(rng):
    """What the bonus is for: with it, values under the empirical model are at most the true ones."""
    mdp = random_mdp(rng, 3, 4, 2)
    p, pi, c = mdp.table(), random_distributions(rng, 3, 4, 2), rng.random((3, 4, 2))
    true = equations.action_values(p, pi, c)[0]
    for n in (1, 5, 50, 500):
        counts = np.array([rng.multinomial(n, row) for row in p.reshape(-1, 4)], dtype=float).reshape(p.shape)
        b = equations.bonus(counts.sum(-1), (3, 4, 2), K=n, delta=0.1)
        assert (equations.optimistic_values(equations.empirical_model(counts), pi, c, b)[0] <= true).all()


def test_bonus_formula_by_hand():
    # delta' = 0.3 / 3 = 0.1;  3 H^2 S A K / delta' = 3 * 4 * 3 * 2 * 100 / 0.1 = 72,000;  its log is 11.18442139...
    log = 11.184421397998193
    assert equations.bonus_logarithm(SHAPE, 100, 0.3) == pytest.approx(log, rel=1e-14)
    # 4 H^2 S = 48;  sqrt(48 * 11.1844...) = 23.170071797..., halved by four visits, the same for none and for one.
    got = equations.bonus(np.array([0.0, 1.0, 4.0]), SHAPE, 100, 0.3)
    np.testing.assert_allclose(got, [23.17007179755629, 23.17007179755629, 11.585035898778145], rtol=1e-12)


def test_bernstein_bonus_formula_by_hand():
    # L = 11.1844...;  variance 0.5, n = 4: sqrt(2 * 0.5 * L / 4) + 7 * 2 * L / 12 = 1.672155898... + 13.048491630...
    got = equations.bernstein_bonus(np.array([4.0, 0.0]), np.array([0.5, 0.0]), SHAPE, 100, 0.3)
    L = 11.184421397998193
    np.testing.assert_allclose(got, [1.6721558986827598 + 13.048491630997892, 14 * L / 3], rtol=1e-12)


def test_step_sizes_by_hand():
    # sqrt(2 log 2 / (4 * 100)) = sqrt(0.0034657359...);  sqrt(6 / 200) = sqrt(0.03)
    assert equations.policy_step_size(SHAPE, 100) == pytest.approx(0.05887050112577373, rel=1e-13)
    assert equations.box_step_size(SHAPE, 100) == pytest.approx(0.17320508075688773, rel=1e-13)
    # 1 / (2 * 4 * 0.5 * 5) = 0.05;  sqrt(2 log 3 / 100) / (2 * 4 * 0.5) = 0.148230380736.../4
    assert equations.ball_step_size(0.5, 4, 25) == pytest.approx(0.05, rel=1e-13)
    assert equations.simplex_step_size(0.5, 3, 4, 100) == pytest.approx(0.0370575951840, rel=1e-11)


@pytest.mark.parametrize("K", [10, 1000])
def test_step_sizes_are_the_best_of_their_regret_bounds(K):
    """Each is the minimiser of divergence / t + t / 2 * sum of squared gradients, found numerically."""
    H, S, A = SHAPE
    G = 2 * H * 0.7

    def best(bound):
        return math.exp(minimize_scalar(lambda log_t: bound(math.exp(log_t)), bounds=(-15, 5), method="bounded").x)

    # The proof of the cost player's regret bounds the box's by HSA / t + 2 t H K.
    assert equations.box_step_size(SHAPE, K) == pytest.approx(best(lambda t: H * S * A / t + 2 * t * H * K), rel=1e-3)
    assert equations.ball_step_size(0.7, H, K) == pytest.approx(best(lambda t: 0.5 / t + t / 2 * G**2 * K), rel=1e-3)
    assert equations.simplex_step_size(0.7, 5, H, K) == pytest.approx(
        best(lambda t: math.log(5) / t + t / 2 * G**2 * K), rel=1e-3
    )
    # Of the policy's: H log A / t + t H^3 K / 2.
    assert equations.policy_step_size(SHAPE, K) == pytest.approx(
        best(lambda t: H * math.log(A) / t + t * H**3 * K / 2), rel=1e-3
    )


# Regret --------------------------------------------------------------------------------------------------------------


def test_support_functions_by_hand():
    x = np.array([3.0, -4.0, 0.0])
    assert equations.box_support(x) == 3.0
    assert equations.ball_support(x) == pytest.approx(5.0)
    assert equations.simplex_support(x) == 3.0
    assert equations.simplex_support(x - 10) == -7.0


def test_regret_bound_by_hand():
    # sqrt(16 * 9 * 2 * 100) + sqrt(8 * 3 * 2 * 10,000 / 50) = sqrt(28,800) + sqrt(9,600)
    assert equations.regret_bound(SHAPE, 100, 50) == pytest.approx(169.70562748477 + 97.97958971133, rel=1e-12)
    # The first term grows as sqrt(K), the second as K / sqrt(N).
    assert equations.regret_bound(SHAPE, 400, 1e30) == pytest.approx(2 * 169.70562748477, rel=1e-12)
    assert equations.regret_bound(SHAPE, 1e12, 50) == pytest.approx(0.9797958971133e12, rel=1e-4)
    assert equations.regret_bound(SHAPE, 1e12, 200) == pytest.approx(0.48989794855e12, rel=1e-4)


def test_statistical_bound_by_hand_and_on_samples(rng):
    # sqrt(8 * 3 * 2 * log(4 / 0.1) / 100) = sqrt(0.48 * 3.688879454...) = sqrt(1.770662138...)
    assert equations.statistical_bound(SHAPE, 50, 0.3) == pytest.approx(1.3306622931, rel=1e-9)
    mdp = random_mdp(rng, *SHAPE)
    expert = random_distributions(rng, *SHAPE)
    d, failures, trials = mdps.occupancy(mdp, expert), 0, 400
    worst = 0.0
    for _ in range(trials):
        error = d - mdps.sample(mdp, expert, 50, rng=rng).occupancy(SHAPE)
        deviation = max(equations.box_support(error), equations.box_support(-error))
        worst = max(worst, deviation)
        failures += deviation >= equations.statistical_bound(SHAPE, 50, 0.3)
    assert failures / trials <= 0.1, "the failure event is to happen with probability delta' = 0.1 at most"
    assert worst > 0.1 * equations.statistical_bound(SHAPE, 50, 0.3), "the deviation should be of the bound's order"


def test_value_difference_lemma(rng):
    for _ in range(10):
        mdp, other = random_mdp(rng, 4, 3, 2), random_mdp(rng, 4, 3, 2)
        pi, pi_other = random_distributions(rng, 2, 4, 3, 2)
        c, c_other = rng.normal(size=(2, 4, 3, 2))
        p, p_other, mu = mdp.table(), other.table(), mdp.initial
        expected = (
            mu @ (equations.action_values(p, pi, c)[1] - equations.action_values(p_other, pi_other, c_other)[1])[0]
        )
        got = equations.value_difference(p, pi, c, p_other, pi_other, c_other, mu)
        assert got == pytest.approx(expected, abs=1e-12)


# docs/equations.md ---------------------------------------------------------------------------------------------------


def test_every_equation_names_its_place_in_the_paper_and_has_a_test():
    listed = equations_page.entries()
    users = equations_page.tests_by_name(equations_page.ROOT / "tests")
    functions = {name for name, value in vars(equations).items() if getattr(value, "__module__", "") == "oal.equations"}
    assert {entry.name for entry in listed} == functions
    assert not [entry.name for entry in listed if not entry.paper], "these docstrings lack a line `Paper: ...`"
    assert not [entry.name for entry in listed if not users.get(entry.name)], "these equations have no test"
    unknown = set(users) - functions
    assert not unknown, "tests name equations that do not exist"


def test_the_page_of_equations_is_up_to_date():
    written = equations_page.PAGE.read_text(encoding="utf-8")
    assert written == equations_page.page(equations_page.ROOT / "tests"), "docs/equations.md is stale: run  make docs"
    assert all(f"| `{entry.name}` |" in written for entry in equations_page.entries())
