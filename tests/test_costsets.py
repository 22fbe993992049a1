"""Cost sets against linear programs and numerical maxima, and the laws of support functions and mirror steps."""

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from bruteforce import random_distributions, random_mdp
from oal import equations
from oal.errors import InputError
from oal.tabular import mdp as mdps
from oal.tabular.costsets import CostSet

SHAPE = (2, 4, 2)
KINDS = pytest.mark.parametrize("kind", ["box", "l2", "simplex"])


def make(kind, rng, d=3):
    return CostSet(kind, SHAPE, None if kind == "box" else rng.uniform(-1, 1, size=(SHAPE[1], d)))


def member(cost_set, rng):
    """Draw coordinates from the set; vertices and faces too."""
    if cost_set.kind == "box":
        return np.clip(rng.uniform(-0.5, 1.5, size=cost_set.shape), 0, 1)
    x = rng.normal(size=cost_set.dimension)
    if cost_set.kind == "l2":
        return x / max(1.0, np.linalg.norm(x))
    return random_distributions(rng, cost_set.dimension)


def largest(cost_set, x):
    """Maximise <c, x> over the set with a solver: a linear program, or for the ball a smooth problem."""
    x = np.ravel(x)
    if cost_set.kind == "l2":
        # The maximum of a linear function lies on the sphere: go over all directions u / ||u||, with u held near it.
        found = minimize(lambda u: -(u @ x) / np.linalg.norm(u) + (np.linalg.norm(u) - 1) ** 2, np.ones(len(x)))
        return float(found.x @ x / np.linalg.norm(found.x))
    if cost_set.kind == "box":
        found = linprog(-x, bounds=(0, 1))
    else:
        found = linprog(-x, A_eq=np.ones((1, len(x))), b_eq=[1], bounds=(0, None))
    assert found.success, found.message
    return -found.fun


@KINDS
def test_support_function_is_the_programs_value(rng, kind):
    for _ in range(5):
        cost_set = make(kind, rng)
        x = rng.normal(size=cost_set.start().shape)
        support = {"box": equations.box_support, "l2": equations.ball_support, "simplex": equations.simplex_support}
        assert support[kind](x) == pytest.approx(largest(cost_set, x), abs=1e-7)
        assert cost_set.support(x) == support[kind](x)
        response = cost_set.best_response(x)
        assert (response * x).sum() == pytest.approx(cost_set.support(x), abs=1e-12)
        np.testing.assert_array_equal(cost_set.check(response), response)
        assert all((member(cost_set, rng) * x).sum() <= cost_set.support(x) + 1e-12 for _ in range(100))


@KINDS
def test_support_function_of_occupancies_is_the_worst_cost_of_the_set(rng, kind):
    """The program is over costs c in C here, not over coordinates: <c, d - d'> with c built from w and phi."""
    mdp = random_mdp(rng, *SHAPE)
    cost_set = make(kind, rng)
    d, other = (mdps.occupancy(mdp, random_distributions(rng, *SHAPE)) for _ in range(2))
    n = cost_set.dimension
    gaps = np.array(
        [
            equations.inner(np.array(cost_set.cost(np.eye(n)[i].reshape(cost_set.start().shape))), d - other)
            for i in range(n)
        ]
    )
    expected = largest(cost_set, gaps)
    assert cost_set.support(cost_set.coordinates(d - other)) == pytest.approx(expected, abs=1e-7)


@KINDS
def test_coordinates_and_costs_are_dual(rng, kind):
    cost_set = make(kind, rng)
    d, x = rng.random(SHAPE), member(cost_set, rng)
    cost = cost_set.cost(x)
    assert cost.shape == SHAPE
    assert (x * cost_set.coordinates(d)).sum() == pytest.approx((cost * d).sum(), abs=1e-12)


@KINDS
def test_support_functions_are_sublinear(rng, kind):
    cost_set = make(kind, rng)
    shape = cost_set.start().shape
    for _ in range(50):
        a, b, t = rng.normal(size=shape), rng.normal(size=shape), 3 * rng.random()
        assert cost_set.support(a + b) <= cost_set.support(a) + cost_set.support(b) + 1e-12
        assert cost_set.support(t * a) == pytest.approx(t * cost_set.support(a), abs=1e-12)
    if kind != "simplex":
        assert cost_set.support(rng.normal(size=shape)) >= 0
    assert cost_set.support(np.zeros(shape)) == 0


@KINDS
def test_mirror_steps_stay_in_the_set_and_do_not_move_without_a_gradient(rng, kind):
    cost_set = make(kind, rng)
    for t in (1e-3, 1.0, 100.0):
        x = cost_set.start()
        for _ in range(50):
            x = cost_set.step(x, rng.normal(size=x.shape), t)
            cost_set.check(x)
    x = member(cost_set, rng)
    np.testing.assert_allclose(cost_set.step(x, np.zeros(x.shape), 2.0), x, atol=1e-14)


@pytest.mark.parametrize("kind", ["box", "l2"])
def test_projections_are_idempotent_and_do_not_expand(rng, kind):
    """A Euclidean step from x along (y - x) lands on the projection of y."""
    cost_set = make(kind, rng)
    x = member(cost_set, rng)
    project = lambda y: cost_set.step(x, y - x, 1.0)  # noqa: E731
    for _ in range(50):
        y, z = 2 * rng.normal(size=x.shape), 2 * rng.normal(size=x.shape)
        once = project(y)
        np.testing.assert_allclose(project(once), once, atol=1e-14)
        assert np.linalg.norm(once - project(z)) <= np.linalg.norm(y - z) + 1e-12
        nearer = member(cost_set, rng)
        assert np.linalg.norm(once - y) <= np.linalg.norm(nearer - y) + 1e-12


@KINDS
def test_a_mirror_step_gains_along_its_gradient(rng, kind):
    cost_set = make(kind, rng)
    for _ in range(30):
        x, g = member(cost_set, rng), rng.normal(size=cost_set.start().shape)
        assert ((cost_set.step(x, g, 0.3) - x) * g).sum() >= -1e-13


@KINDS
def test_small_steps_repeated_reach_the_best_response(rng, kind):
    cost_set = make(kind, rng)
    x, g = cost_set.start(), rng.normal(size=cost_set.start().shape)
    for _ in range(3000):
        x = cost_set.step(x, g, 0.1)
    assert (x * g).sum() == pytest.approx(cost_set.support(g), abs=1e-6)


@KINDS
def test_low_and_width_bound_the_costs_of_the_members(rng, kind):
    cost_set = make(kind, rng)
    costs = [np.array(cost_set.cost(member(cost_set, rng))) for _ in range(300)]
    assert np.min(costs) >= cost_set.low - 1e-12
    assert np.max(costs) <= cost_set.low + cost_set.width + 1e-12
    if kind == "box":
        assert (cost_set.low, cost_set.width) == (0, 1)
    if kind == "l2":
        longest = np.linalg.norm(cost_set.phi, axis=1)
        extreme = cost_set.cost(cost_set.phi[longest.argmax()] / longest.max())
        assert extreme.max() == pytest.approx(cost_set.low + cost_set.width)


def test_one_feature_for_each_state_is_the_tabular_set(rng):
    """Without features the linear sets are sets of costs of the states; the ball's regret is a plain norm."""
    d = rng.random(SHAPE) - rng.random(SHAPE)
    ball, simplex = CostSet("l2", SHAPE), CostSet("simplex", SHAPE)
    np.testing.assert_array_equal(ball.phi, np.eye(4))
    assert ball.support(ball.coordinates(d)) == pytest.approx(np.linalg.norm(d.sum((0, 2))))
    assert simplex.support(simplex.coordinates(d)) == pytest.approx(d.sum((0, 2)).max())


def test_step_sizes_follow_the_features(rng):
    phi = rng.uniform(-1, 1, size=(4, 3))
    K = 50
    assert CostSet("box", SHAPE).step_size(K) == equations.box_step_size(SHAPE, K)
    longest = max(np.linalg.norm(row) for row in phi)
    assert CostSet("l2", SHAPE, phi).step_size(K) == pytest.approx(equations.ball_step_size(longest, 2, K))
    entry = abs(phi).max()
    assert CostSet("simplex", SHAPE, phi).step_size(K) == pytest.approx(equations.simplex_step_size(entry, 3, 2, K))


def test_starts():
    assert not CostSet("box", SHAPE).start().any()
    assert not CostSet("l2", SHAPE).start().any()
    np.testing.assert_array_equal(CostSet("simplex", SHAPE).start(), np.full(4, 0.25))


def test_features_are_copied(rng):
    phi = rng.uniform(-1, 1, size=(4, 3))
    phi.flags.writeable = False
    cost_set = CostSet("l2", SHAPE, phi)
    assert cost_set.phi.flags.writeable, "read-only features would make the learner compile again"
    assert not np.shares_memory(cost_set.phi, phi)


BAD = {
    "kind": (lambda: CostSet("ball", SHAPE), "cost set 'ball' is unknown: choose one of box, l2, simplex"),
    "box features": (lambda: CostSet("box", SHAPE, np.ones((4, 1))), "it takes no features; use l2 or simplex"),
    "rows": (lambda: CostSet("l2", SHAPE, np.ones((3, 2))), r"features have the shape \(3, 2\): .* S = 4"),
    "flat": (lambda: CostSet("l2", SHAPE, np.ones(4)), r"features have the shape \(4,\)"),
    "empty": (lambda: CostSet("simplex", SHAPE, np.ones((4, 0))), r"features have the shape \(4, 0\)"),
    "large": (lambda: CostSet("l2", SHAPE, np.full((4, 2), 3.0)), "features must lie in .*largest entry is 3"),
    "nan": (lambda: CostSet("l2", SHAPE, np.full((4, 2), np.nan)), "features must lie in .*nan"),
    "box outside": (lambda: CostSet("box", SHAPE).check(np.full(SHAPE, 1.1)), "initial cost is outside the box set"),
    "box negative": (lambda: CostSet("box", SHAPE).check(np.full(SHAPE, -0.1)), "outside the box set"),
    "ball outside": (lambda: CostSet("l2", SHAPE).check(np.ones(4)), "initial cost is outside the l2 set"),
    "simplex outside": (lambda: CostSet("simplex", SHAPE).check(np.ones(4)), "outside the simplex set"),
    "simplex negative": (lambda: CostSet("simplex", SHAPE).check([1.5, -0.5, 0, 0]), "outside the simplex set"),
    "cost nan": (lambda: CostSet("l2", SHAPE).check(np.full(4, np.nan)), "outside the l2 set"),
    "shape": (lambda: CostSet("l2", SHAPE).check(np.ones(3)), r"shape \(3,\): the l2 set wants \(4,\)"),
    "box shape": (lambda: CostSet("box", SHAPE).check(np.ones(3)), r"the box set wants \(2, 4, 2\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case):
    build, message = BAD[case]
    with pytest.raises(InputError, match=message):
        build()
