"""Linear function approximation: against slow references, against the tabular learner, laws, files."""

import json

import numpy as np
import pytest

from bruteforce import random_mdp
from oal import equations as paper
from oal.errors import InputError
from oal.linear import Episodes, LinearOAL, anchored, cholesky, evaluation, features, one_hot, players
from oal.linear import equations as formulas
from oal.linear.costs import LinearCosts
from oal.tabular import mdp as tables
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP

# Small problems ------------------------------------------------------------------------------------------------------


def small(horizon: int | None = 3, discount: float | None = None, *, states: int = 17, d: int = 4, seed: int = 0):
    return anchored(states, d, 3, horizon=horizon, discount=discount, support=2, reach=3, seed=seed)


def demos_of(problem, n: int = 20, seed: int = 0) -> Episodes:
    return problem.sample(n, rng=np.random.default_rng(seed))


def law(problem) -> np.ndarray:
    """The anchors' laws mu[i, s] of an anchored problem, as a table."""
    d, S = problem.dimension, problem.n_states
    edges = [i * S // d for i in range(d + 1)]
    mu = np.zeros((d, S))
    for i in range(d):
        mu[i, edges[i] : edges[i + 1]] = 1 / (edges[i + 1] - edges[i])
    return mu


def as_table(problem) -> FiniteMDP:
    """An anchored problem as the finite MDP that it is."""
    phi, mu = problem.phi(np.arange(problem.n_states)), law(problem)
    scores = np.einsum("sad,hd->hsa", phi, problem.expert)
    expert = np.exp(scores.min(-1, keepdims=True) - scores)
    expert /= expert.sum(-1, keepdims=True)
    horizon = problem.horizon or 60
    return FiniteMDP.dense(
        phi @ mu,
        problem.model.start @ mu,
        horizon=horizon,
        expert=np.broadcast_to(expert, (horizon, *expert.shape[1:])),
    )


def policy_table(learner: LinearOAL) -> np.ndarray:
    env = learner.env
    return np.array([[learner.action_probabilities(s, h) for s in range(env.n_states)] for h in range(env.steps)])


# Features and problems -----------------------------------------------------------------------------------------------


def test_features_are_distributions_and_the_same_at_every_call():
    problem = anchored(10**12, 30, 4, horizon=3, seed=5)
    states = np.array([0, 1, 10**12 - 1, 123_456_789_012])
    phi = problem.phi(states)
    assert phi.shape == (4, 4, 30)
    np.testing.assert_allclose(phi.sum(-1), 1.0, atol=1e-12)
    assert phi.min() >= 0
    np.testing.assert_array_equal(phi, problem.phi(states))
    assert np.abs(phi - anchored(10**12, 30, 4, horizon=3, seed=6).phi(states)).max() > 0.1
    # block 0 leads to the first `reach` anchors only
    assert phi[0][:, problem.model.reach :].max() == 0
    with pytest.raises(InputError, match="outside the states"):
        problem.phi(np.array([10**12]))


@pytest.mark.parametrize("states", [17, 20, 1000])
def test_blocks_cover_all_states(states):
    problem = small(states=states)
    blocks = [features.block_of(problem.model, s) for s in range(states)]
    assert blocks == sorted(blocks)
    for i in range(problem.dimension):
        assert blocks.index(i) == features.block_start(problem.model, i)


def test_sampling_follows_the_anchors():
    problem = small(states=12)
    table = as_table(problem)
    drawn = problem.sample(40_000, rng=np.random.default_rng(1))
    d = tables.occupancy(table, table.expert)
    counted = tables.Trajectories(drawn.states, drawn.actions).occupancy(table.shape)
    np.testing.assert_allclose(counted, d, atol=5 / np.sqrt(40_000))


def test_discounted_episodes_have_geometric_lengths_and_discounted_sums():
    problem = small(None, 0.8, states=12)
    drawn = problem.sample(40_000, rng=np.random.default_rng(1))
    assert drawn.lengths.mean() == pytest.approx(5.0, rel=0.03)
    np.testing.assert_allclose(np.mean(drawn.lengths > 3), 0.8**3, atol=0.02)
    table = as_table(problem)
    d = tables.occupancy(table, table.expert) * 0.8 ** np.arange(60)[:, None, None]
    expected = np.einsum("hsa,sad->d", d, problem.phi(np.arange(12)))
    np.testing.assert_allclose(problem.feature_sums(drawn)[0], expected, atol=0.05)


def test_the_planned_expert_is_nearly_optimal():
    """In a problem with few states the plan's sample holds them all, and its greedy policy has the least cost."""
    problem = anchored(40, 4, 3, horizon=4, temperature=1e-4, seed=3)
    table = as_table(problem)
    hidden = problem.expert[-1] * 1e-4
    cost = problem.phi(np.arange(40)) @ hidden
    least = table.initial @ tables.optimal_policy(table, cost)[1][0]
    assert tables.value(table, table.expert, cost) == pytest.approx(least, abs=5e-3)
    assert tables.value(table, tables.uniform_policy(table), cost) > least + 0.2


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: anchored(5, 10), "number of states is 5"),
        (lambda: anchored(2**51, 10), "number of states"),
        (lambda: anchored(100, 10, reach=11), "reach is 11"),
        (lambda: anchored(100, 10, temperature=0), "temperature is 0"),
        (lambda: anchored(100, 10, horizon=3, discount=0.5), "give one of the two"),
        (lambda: anchored(100, 10, discount=1.5), "discount is 1.5"),
        (lambda: anchored(100, 0), "dimension is 0"),
        (lambda: LinearOAL(small(), demos_of(small(4))), "demonstrations have 4"),
        (lambda: LinearOAL(small(None, 0.5), demos_of(small(None, 0.5))), "OGAP needs a horizon"),
        (lambda: LinearOAL(small(), demos_of(small()), algorithm="lsvi"), "algorithm 'lsvi' is unknown"),
        (lambda: LinearOAL(small(), demos_of(small()), cost_set="l1"), "cost set 'l1' is unknown"),
        (lambda: LinearOAL(small(), demos_of(small()), ridge=0.0), "ridge is 0"),
        (lambda: LinearOAL(small(), demos_of(small()), step=1), "setting 'step' is unknown"),
        (lambda: LinearOAL(small(), demos_of(small(), 2)).learn(0), "number of episodes is 0"),
        (lambda: LinearOAL(small(None, 0.5), demos_of(small(None, 0.5)), algorithm="ilarl").learn(7), "multiple"),
        (lambda: Episodes(np.zeros((2, 3), int), np.zeros((2, 3), int), np.array([3, 4])), "lengths run"),
        (lambda: LinearOAL(small(), demos_of(small())).predict(17, 0), "outside of"),
        (lambda: LinearOAL(small(), demos_of(small()), regret="none").regret, "was not measured"),
        (lambda: LinearOAL(small(), demos_of(small())).trajectories, "no episode was played"),
    ],
)
def test_bad_input_is_refused(make, match):
    with pytest.raises(InputError, match=match):
        make()


# The pieces, against the definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [1.0, 1e-10])
def test_the_factor_is_that_of_the_covariance(rng, ridge):
    phi = rng.random((30, 6))
    L = np.sqrt(ridge) * np.eye(6)
    for x in phi:
        cholesky.update(L, x.copy())
    Lambda = formulas.covariance(phi, ridge)
    np.testing.assert_allclose(L @ L.T, Lambda, rtol=1e-10)
    b = rng.random(6)
    solved = b.copy()
    cholesky.solve(L, solved)
    np.testing.assert_allclose(Lambda @ solved, b, rtol=1e-8)
    inverse = np.empty((6, 6))
    cholesky.inverse(L, inverse)
    np.testing.assert_allclose(inverse @ Lambda, np.eye(6), atol=1e-7)
    assert cholesky.log_determinant(L) == pytest.approx(np.linalg.slogdet(Lambda)[1])


def test_the_factor_keeps_its_digits_where_the_ridge_is_tiny():
    """One-hot features and almost no ridge: 1 / n to rounding."""
    L = np.sqrt(1e-12) * np.eye(3)
    for n in (1, 2, 3):
        cholesky.update(L, np.array([0.0, 1.0, 0.0]))
        b = np.ones(3)
        cholesky.solve(L, b)
        assert b[1] == pytest.approx(1 / n, rel=1e-11)


def test_soft_minimum_is_the_minimum_over_distributions(rng):
    pi, Q = rng.dirichlet(np.ones(3)), rng.random(3)
    t = 1.7
    grid = rng.dirichlet(np.ones(3), size=20_000)
    objective = grid @ Q + (grid * np.log(grid / pi)).sum(-1) / t
    V = float(formulas.soft_minimum(pi, Q, t))
    assert objective.min() + 1e-9 >= V
    assert pytest.approx(objective.min(), abs=2e-3) == V
    assert float(formulas.soft_minimum(pi, Q, 0.0)) == pytest.approx(pi @ Q)
    assert float(formulas.soft_minimum(pi, Q, 1e-9)) == pytest.approx(pi @ Q, abs=1e-6)


@pytest.mark.parametrize("kind", ["box", "l2", "simplex"])
def test_cost_sets_project_support_and_respond(rng, kind):
    costs = LinearCosts(kind, 2, 4, 2.0)
    w = costs.start()
    for _ in range(50):
        w = costs.check(costs.step(w, rng.normal(size=(2, 4)), 0.5))
    x = rng.normal(size=(2, 4))
    response = costs.check(costs.best_response(x))
    assert np.vdot(response, x) == pytest.approx(costs.support(x))
    one = {"box": paper.box_support, "l2": paper.ball_support, "simplex": paper.simplex_support}[kind]
    assert costs.support(x) == pytest.approx(one(x[0]) + one(x[1]))
    assert np.vdot(w, x) <= costs.support(x) + 1e-12
    with pytest.raises(InputError, match="do not belong"):
        costs.check(w + 3)


# The learners, against plain loops -----------------------------------------------------------------------------------


class Reference:
    """OGAP and BRIG written down plainly: dense features, all past Q added up anew, `np.linalg` for everything.

    It is fed the learner's own episodes, so that both see the same data.
    """

    def __init__(self, learner: LinearOAL, planned: int) -> None:
        self.env, self.settings, self.costs = learner.env, learner.settings, learner.cost_set
        self.greedy = learner.algorithm == "ilarl"
        self.planned = planned
        self.w = self.costs.start()
        self.expert = np.zeros_like(self.w)
        for states, actions in zip(learner.demos.states, learner.demos.actions, strict=True):
            for h, (s, a) in enumerate(zip(states, actions, strict=True)):
                self.expert[h] += self.env.phi(s)[a] / len(learner.demos)
        self.episodes: list = []
        self.terms: list = []  # (theta[H], Lambda of the bonus [H], beta, step)
        self.bonus = [self.covariance(h) for h in range(self.env.horizon)]

    def covariance(self, h: int) -> np.ndarray:
        phi = [self.env.phi(states[h])[actions[h]] for states, actions in self.episodes]
        return formulas.covariance(np.array(phi).reshape(-1, self.env.dimension), self.settings.ridge)

    def q(self, h: int, s: int, term) -> np.ndarray:
        theta, bonus, beta, _ = term
        high = (self.env.horizon - h) * self.costs.width
        return formulas.optimistic_q(self.env.phi(s), theta[h], bonus[h], beta, high)

    def policy(self, h: int, s: int) -> np.ndarray:
        if self.greedy:
            return np.eye(self.env.n_actions)[np.argmin(self.q(h, s, self.terms[-1]))]
        scores = sum((term[3] * self.q(h, s, term) for term in self.terms), np.zeros(self.env.n_actions))
        weights = np.exp(scores.min() - scores)
        return weights / weights.sum()

    def mean_features(self, h: int, s: int) -> np.ndarray:
        return self.policy(h, s) @ self.env.phi(s)

    def model_features(self) -> np.ndarray:
        H, d = self.w.shape
        x = np.zeros((H, d))
        if self.episodes:
            x[0] = np.mean([self.mean_features(0, states[0]) for states, _ in self.episodes], axis=0)
        for h in range(H - 1):
            if self.episodes:
                phi = np.array([self.env.phi(states[h])[actions[h]] for states, actions in self.episodes])
                after = np.array([self.mean_features(h + 1, states[h + 1]) for states, _ in self.episodes])
                x[h + 1] = formulas.next_features(x[h], phi, after, self.settings.ridge)
        return x

    def evaluate(self, beta: float, step: float) -> None:
        """Least-squares value iteration of the current policy, or of the best response."""
        H, d = self.w.shape
        theta = np.zeros((H, d))
        term = (theta, list(self.bonus), beta, step)
        for h in reversed(range(H)):
            theta[h] = self.w[h] - self.costs.low
            if h + 1 < H and self.episodes:
                targets = []
                for states, _ in self.episodes:
                    Q = self.q(h + 1, states[h + 1], term)
                    targets.append(Q.min() if self.greedy else self.policy(h + 1, states[h + 1]) @ Q)
                phi = np.array([self.env.phi(states[h])[actions[h]] for states, actions in self.episodes])
                theta[h] += formulas.least_squares(phi, np.array(targets), self.settings.ridge)
        self.terms.append(term)

    def episode(self, states: np.ndarray, actions: np.ndarray) -> None:
        settings, H, d = self.settings, self.env.horizon, self.env.dimension
        K = len(self.episodes) + 1 if settings.anytime else self.planned
        A, width = self.env.n_actions, self.costs.width
        beta = settings.bonus_scale * width * d * H * np.sqrt(np.log(2 * d * H * K / settings.delta))
        step = settings.policy_step_scale * np.sqrt(2 * np.log(A) / (H**2 * K)) / width
        if self.greedy:
            self.evaluate(beta, step)
        if settings.gradient == "model":
            mine = self.model_features()
        else:
            mine = np.array([self.env.phi(s)[a] for s, a in zip(states, actions, strict=True)])
        if not self.greedy:
            self.evaluate(beta, step)
        self.w = self.costs.step(self.w, mine - self.expert, settings.cost_step_scale * self.costs.step_size(K))
        self.episodes.append((states, actions))
        for h in range(H):
            new = self.covariance(h)
            if np.linalg.slogdet(new)[1] > np.linalg.slogdet(self.bonus[h])[1] + np.log(settings.refresh):
                self.bonus[h] = new


@pytest.mark.parametrize("gradient", ["model", "episode"])
@pytest.mark.parametrize("cost_set", ["box", "l2", "simplex"])
@pytest.mark.parametrize("algorithm", ["ogap", "ilarl"])
def test_finite_horizons_agree_with_plain_loops(algorithm, cost_set, gradient):
    problem = small()
    options = {
        "bonus_scale": 0.01,
        "policy_step_scale": 5.0,
        "ridge": 1.0,
        "refresh": 1.4,
        "anytime": gradient == "model",
    }
    learner = LinearOAL(
        problem, demos_of(problem), algorithm=algorithm, cost_set=cost_set, gradient=gradient, regret="none", **options
    )
    reference = Reference(learner, planned=8)
    for _ in range(8):
        learner.learn(1, planned=8)
        last = learner.trajectories[-1:]
        reference.episode(last.states[0], last.actions[0])
        np.testing.assert_allclose(learner.weights, reference.w, rtol=1e-9, atol=1e-12)
        theta = learner._terms.theta[:, learner._count - 1]
        np.testing.assert_allclose(theta, reference.terms[-1][0], rtol=1e-9, atol=1e-12)
    assert learner._terms.epochs.min() > 1
    expected = [[reference.policy(h, s) for s in range(17)] for h in range(3)]
    np.testing.assert_allclose(policy_table(learner), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gradient", ["episode", "model"])
@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize("cost_set", ["box", "l2"])
def test_ilarl_agrees_with_plain_loops(cost_set, keep_data, gradient):
    problem = small(None, 0.7)
    learner = LinearOAL(
        problem,
        demos_of(problem),
        algorithm="ilarl",
        cost_set=cost_set,
        regret="none",
        preset="paper",
        bonus_scale=0.01,
        policy_step_scale=5.0,
        batch=2,
        updates=3,
        keep_data=keep_data,
        gradient=gradient,
    ).learn(8)
    # again, plainly, from the episodes it played
    d, gamma, settings, costs = problem.dimension, 0.7, learner.settings, learner.cost_set
    rows, actions = learner._roster.states[0, : learner._rows], learner._actions[0, : learner._rows]
    ends = np.flatnonzero(actions < 0)
    assert len(ends) == 8
    K, length, A = 8 * 3 / 2, 1 / 0.3, problem.n_actions
    high = costs.width * length
    step = settings.policy_step_scale * np.sqrt(2 * np.log(A) / K) / (length * costs.width)
    beta = settings.bonus_scale * costs.width * d * length * np.sqrt(np.log(2 * d * length * K / 0.1))
    w, terms = costs.start(), []

    def scores(s, terms):
        return sum((step * formulas.optimistic_q(problem.phi(s), *term, beta, high) for term in terms), np.zeros(A))

    def policy(s, terms):
        x = scores(s, terms)
        return np.exp(x.min() - x) / np.exp(x.min() - x).sum()

    def value(s):
        if not terms:
            return 0.0
        Q = formulas.optimistic_q(problem.phi(s), *terms[-1], beta, high)
        return float(formulas.soft_minimum(policy(s, terms[:-1]), Q, step))

    expert = problem.feature_sums(learner.demos)
    determinant = -np.inf
    for b in range(4):
        begin, end = (0 if b == 0 else ends[2 * b - 1] + 1), ends[2 * b + 1] + 1
        data = [i for i in range(0 if keep_data else begin, end) if actions[i] >= 0]
        phi = np.array([problem.phi(rows[i])[actions[i]] for i in data])
        mine = sum(problem.phi(rows[i])[actions[i]] for i in range(begin, end) if actions[i] >= 0) / 2
        Lambda = formulas.covariance(phi, 1.0)
        if not keep_data or np.linalg.slogdet(Lambda)[1] > determinant + np.log(2):
            bonus_matrix, determinant = Lambda, np.linalg.slogdet(Lambda)[1]
        if gradient == "model":
            starts = [i for i in range(0 if keep_data else begin, end) if i == 0 or actions[i - 1] < 0]
            mean = lambda s: policy(s, terms) @ problem.phi(s)  # noqa: E731
            x = first = np.mean([mean(rows[i]) for i in starts], axis=0)
            mine, after = first.copy(), np.array([mean(rows[i + 1]) for i in data])
            for _ in range(200):
                x = gamma * formulas.next_features(x, phi, after, 1.0)
                mine += x
        for _ in range(3):
            w = costs.step(w, mine[None] - expert, costs.step_size(K))
            targets = np.array([value(rows[i + 1]) for i in data])
            theta = w[0] - costs.low + gamma * formulas.least_squares(phi, targets, 1.0)
            terms.append((theta, bonus_matrix))
            np.testing.assert_allclose(learner._terms.theta[0, len(terms) - 1], theta, rtol=1e-9)
    np.testing.assert_allclose(learner.weights, w, rtol=1e-9, atol=1e-12)
    expected = [policy(s, terms) for s in range(17)]
    np.testing.assert_allclose(policy_table(learner)[0], expected, rtol=1e-9)


# One-hot features are the tabular learner ----------------------------------------------------------------------------


@pytest.mark.parametrize("anytime", [False, True])
@pytest.mark.parametrize("name", ["chain", "garnet", "random"])
def test_one_hot_features_reproduce_the_tabular_learner(rng, name, anytime):
    """No bonus, no ridge to speak of, the model's gradient: Algorithm 2 of the paper, episode by episode."""
    table = {
        "chain": lambda: tables.chain(6, 0.2),
        "garnet": lambda: tables.garnet(6, 3, 5),
        "random": lambda: random_mdp(rng, 4, 3, 2, expert=True),
    }[name]()
    demos = tables.sample(table, tables.expert_policy(table), 15, rng=rng)
    scales = {"policy_step_scale": 4.0, "cost_step_scale": 2.0, "bonus_scale": 0.0, "anytime": anytime}
    tabular = TabularOAL(table, demos, preset="paper", keep_trajectories=True, **scales)
    linear = LinearOAL(one_hot(table), demos, preset="paper", ridge=1e-12, gradient="model", **scales)
    linear._stream[:] = tabular._stream
    H, S, A = table.shape
    for _ in range(60):
        tabular.learn(1, planned=60)
        linear.learn(1, planned=60)
        np.testing.assert_allclose(linear.weights.reshape(H, S, A), tabular.cost, atol=1e-9)
        np.testing.assert_allclose(policy_table(linear), tabular.policy, atol=1e-9)
    np.testing.assert_array_equal(linear.trajectories.states, tabular.trajectories.states)
    np.testing.assert_array_equal(linear.trajectories.actions, tabular.trajectories.actions)
    assert linear.exact_regret
    np.testing.assert_allclose(linear.regret, tabular.regret, rtol=1e-9, atol=1e-9)
    assert tabular.cost.max() > 0.01
    assert np.abs(tabular.policy - 1 / A).max() > 0.01


def test_the_elliptic_bonus_of_one_hot_features_counts_visits(rng):
    """sqrt(phi^T Lambda^-1 phi) = 1 / sqrt(n + ridge): the tabular bonus, with the ridge for the `n v 1`."""
    table = tables.garnet(4, 2, 3)
    demos = tables.sample(table, tables.expert_policy(table), 5, rng=rng)
    learner = LinearOAL(one_hot(table), demos, ridge=1.0, refresh=1.0, bonus_scale=0.001).learn(40)
    visits = tables.Trajectories(learner.trajectories.states, learner.trajectories.actions).occupancy(table.shape) * 40
    for h in range(3):
        inverse = learner._terms.inverse[h, learner._terms.epochs[h] - 1]
        np.testing.assert_allclose(np.diag(inverse), 1 / (visits[h].ravel() + 1), rtol=1e-9)
    row = learner._roster.bonus[0, 7]
    np.testing.assert_allclose(row, 1 / np.sqrt(visits[0, learner.trajectories.states[7, 0]] + 1), rtol=1e-9)


@pytest.mark.parametrize("S, A, H, K", [(2, 2, 1, 1), (2, 2, 32, 10_000), (50, 2, 3, 100), (500, 6, 20, 1_000_000)])
def test_the_bonus_of_one_hot_features_covers_the_error_of_every_row(S, A, H, K):
    """By Weissman's inequality, over all rows and all numbers of visits; ridge 1 makes the model n / (n + 1) of it."""
    n = np.unique(np.geomspace(1, K, 50).astype(int))
    failure = 0.1 / (S * A * H * K)
    distance = np.sqrt(2 * (S * np.log(2) - np.log(failure)) / n)
    bonus = formulas.bonus_factor(S * A, H, K, 0.1) / np.sqrt(n + 1)
    assert (bonus >= H * distance * n / (n + 1)).all()


# The regret ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [None, 0.7])
def test_exact_features_are_those_of_the_table(rng, discount):
    table = random_mdp(rng, 4, 3, 2, stationary=discount is not None, expert=True)
    problem = one_hot(table, discount=discount)
    demos = demos_of(problem)
    learner = LinearOAL(problem, demos, algorithm="ogap" if discount is None else "ilarl", batch=5, updates=2)
    found = learner.learn(20)._ledger.features()[0]
    if discount is None:
        expected = tables.occupancy(table, policy_table(learner))
        np.testing.assert_allclose(found.reshape(table.shape), expected, atol=1e-12)
        np.testing.assert_allclose(learner._ledger.expert.reshape(table.shape), tables.occupancy(table, table.expert))
    else:
        long = FiniteMDP.dense(table.table()[0], table.initial, horizon=100)
        d = tables.occupancy(long, np.broadcast_to(policy_table(learner)[0], long.shape))
        expected = np.einsum("h,hsa->sa", discount ** np.arange(100), d)
        np.testing.assert_allclose(found.reshape(3, 2), expected, atol=1e-9)


@pytest.mark.parametrize("algorithm, discount", [("ogap", None), ("ilarl", None), ("ilarl", 0.8)])
def test_the_interval_of_the_sampled_regret_holds_the_exact_one(algorithm, discount):
    """An anchored problem that is small enough to write down: the interval holds the regret of the definition."""
    inside, widths = 0, []
    for seed in range(12):
        problem = anchored(
            60, 4, 3, horizon=None if discount else 4, discount=discount, temperature=0.2, support=2, seed=seed
        )
        learner = LinearOAL(
            problem,
            demos_of(problem, 100, seed),
            algorithm=algorithm,
            policy_step_scale=5.0,
            panel_samples=4,
            seed=seed,
        )
        table = as_table(problem)
        phi, weights = problem.phi(np.arange(60)), (discount or 1.0) ** np.arange(table.horizon)

        def exact(policy):
            d = tables.occupancy(table, np.broadcast_to(policy, table.shape))  # noqa: B023
            return np.einsum("hsa,sad,h->hd" if discount is None else "hsa,sad,h->d", d, phi, weights)  # noqa: B023

        expert = exact(table.expert)
        total = np.zeros_like(expert)
        for _ in range(6):
            before = policy_table(learner) if algorithm == "ogap" or discount else None
            learner.learn(5 if discount else 1)
            played = policy_table(learner) if before is None else before
            total += (5 if discount else 1) * (exact(played) - expert)
        truth = np.maximum(total, 0).sum()
        estimate, low, high = learner.regret_interval[-1]
        assert low <= estimate <= high
        inside += low <= truth <= high
        widths.append((high - low) / truth)
    assert inside >= 11  # 0.95^12 and what the bounds leave
    assert np.median(widths) < 0.8


def test_panels_of_the_experts_policy_have_no_error():
    problem = small(5, states=1000)
    learner = LinearOAL(problem, demos_of(problem))
    ledger = learner._ledger
    ledger.panel.roster.policy[:] = ledger.panel.base
    np.testing.assert_allclose(ledger.features() - ledger.expert, 0.0, atol=1e-14)
    table = as_table(problem)
    expected = np.einsum("hsa,sad->hd", tables.occupancy(table, table.expert), problem.phi(np.arange(1000)))
    np.testing.assert_allclose(ledger.expert, expected, atol=1e-12)
    assert len(ledger.difference) == evaluation.REPLICATES


# Laws ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm, discount", [("ogap", None), ("ilarl", None), ("ilarl", 0.8)])
def test_the_elliptic_potential_is_bounded(algorithm, discount):
    problem = small(None if discount else 3, discount, states=500, d=6)
    learner = LinearOAL(problem, demos_of(problem), algorithm=algorithm, regret="none", keep_data=True).learn(100)
    samples = 100 if discount is None else int(learner.trajectories.lengths.sum())
    bound = formulas.potential_bound(6, samples, 1.0)
    assert (learner.elliptic_potential <= bound).all()
    assert (learner.elliptic_potential > 0.05 * bound).all()
    # and so is how often the bonus takes a new matrix: the determinant doubles each time
    assert learner._terms.epochs.max() <= 2 + 6 * np.log2(1 + samples / 6)


@pytest.mark.parametrize("algorithm, discount", [("ogap", None), ("ilarl", None), ("ilarl", 0.8)])
def test_regret_per_episode_falls(algorithm, discount):
    problem = anchored(100_000, 8, 4, horizon=None if discount else 5, discount=discount, seed=1)
    learner = LinearOAL(problem, demos_of(problem, 500), algorithm=algorithm, seed=2).learn(400)
    per_episode = learner.regret / np.arange(1, 401)
    interval = learner.regret_interval
    assert per_episode[399] < 0.6 * per_episode[49]
    # beyond doubt: the intervals do not meet
    assert interval[399, 2] / 400 < interval[49, 1] / 50


def test_a_larger_bonus_explores_more():
    """The vacuous bonus of the theorem makes every Q zero, and the policy stays uniform."""
    problem = small(states=500)
    learner = LinearOAL(problem, demos_of(problem), preset="paper").learn(30)
    np.testing.assert_allclose(policy_table(learner), 1 / 3)
    learner = LinearOAL(problem, demos_of(problem), preset="paper", bonus_scale=0.0).learn(30)
    assert np.abs(policy_table(learner) - 1 / 3).max() > 0.01


def test_time_does_not_depend_on_the_number_of_states():
    """The same number of features is computed whether there are a thousand states or 2^50."""
    few, many = (anchored(n, 6, 3, horizon=4, seed=1) for n in (1000, 2**50))
    for problem in (few, many):
        demos = demos_of(problem, 50)
        learner = LinearOAL(problem, demos, regret="none").learn(50)
        assert learner._roster.states.shape[1] < 128
    assert learner.trajectories.states.max() > 2**40


# Files ---------------------------------------------------------------------------------------------------------------


CASES = pytest.mark.parametrize(
    "algorithm, discount, options",
    [
        ("ogap", None, {"bonus_scale": 0.01}),
        ("ogap", None, {"cost_set": "l2", "preset": "paper"}),
        ("ilarl", None, {"bonus_scale": 0.01}),
        ("ilarl", 0.8, {"bonus_scale": 0.01}),
        ("ilarl", 0.8, {"keep_data": False, "regret": "none"}),
    ],
)


@CASES
def test_a_saved_learner_goes_on_bit_for_bit(tmp_path, algorithm, discount, options):
    problem = small(None if discount else 3, discount, states=500)
    make = lambda: LinearOAL(problem, demos_of(problem), algorithm=algorithm, seed=3, **options)  # noqa: E731
    whole = make().learn(60)
    part = make().learn(25, planned=60)
    part.save(tmp_path / "part.npz")
    resumed = LinearOAL.load(tmp_path / "part.npz", small(None if discount else 3, discount, states=500))
    assert resumed.settings == part.settings
    resumed.learn(35, planned=60)
    for learner in (whole, resumed):
        learner.save(tmp_path / f"{learner is whole}.npz")
    assert (tmp_path / "True.npz").read_bytes() == (tmp_path / "False.npz").read_bytes()
    np.testing.assert_array_equal(
        *([[learner.action_probabilities(s, 0) for s in range(50)] for learner in (whole, resumed)])
    )
    assert whole.predict(7, 0, deterministic=True) == resumed.predict(7, 0, deterministic=True)
    assert repr(whole) == repr(resumed)


def test_the_same_seed_gives_the_same_run_and_another_another():
    problem = small(states=500)
    one, same, other = (LinearOAL(problem, demos_of(problem), seed=s).learn(20) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.trajectories.states, same.trajectories.states)
    np.testing.assert_array_equal(one.regret_interval, same.regret_interval)
    assert (one.trajectories.states != other.trajectories.states).any()


def rewritten(path, **changes):
    """Write a saved learner again with some arrays or entries of `about` changed."""
    from oal.base import npz

    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    for name, value in changes.items():
        if name in about:
            about[name] = value
        elif value is None:
            del arrays[name]
        else:
            arrays[name] = value(np.array(arrays[name]))
    npz.write(path, arrays | {"about": npz.text(json.dumps(about))})


def poked(value):
    def change(array):
        array.flat[-1] = value
        return array

    return change


@pytest.mark.parametrize(
    "changes",
    [
        {"states": poked(500)},
        {"states": poked(-1)},
        {"actions": poked(3)},
        {"actions": poked(-1)},
        {"theta": poked(np.nan)},
        {"theta": poked(1e308)},
        {"theta": lambda x: x[:, :-1]},
        {"theta": lambda x: x.astype(np.float32)},
        {"step": poked(-1.0)},
        {"beta": lambda x: x[:-1]},
        {"weights": poked(1.5)},
        {"weights": poked(np.inf)},
        {"stream": lambda x: x * 0},
        {"difference": lambda x: x[:1]},
        {"regrets": lambda x: x[:-1]},
        {"demo_states": poked(500)},
        {"demo_lengths": poked(9)},
        {"episodes": 11},
        {"episodes": "ten"},
        {"planned": 0},
        {"seed": -1},
        {"panel_samples": 0},
        {"regret": "maybe"},
        {"fingerprint": "0"},
        {"format": 2},
        {"what": "oal.TabularOAL"},
        {"settings": {"ridge": -1.0}},
        {"settings": {"unknown": 1}},
        {"algorithm": "lsvi"},
        {"theta": None},
    ],
)
def test_files_that_save_did_not_write_are_refused(tmp_path, changes):
    problem = small(states=500)
    learner = LinearOAL(problem, demos_of(problem)).learn(10)
    learner.save(tmp_path / "learner.npz")
    rewritten(tmp_path / "learner.npz", **changes)
    with pytest.raises(InputError):
        LinearOAL.load(tmp_path / "learner.npz", problem)


def test_discounted_files_whose_episodes_do_not_end_are_refused(tmp_path):
    problem = small(None, 0.8)
    LinearOAL(problem, demos_of(problem), algorithm="ilarl").learn(10).save(tmp_path / "learner.npz")
    rewritten(tmp_path / "learner.npz", actions=poked(0))
    with pytest.raises(InputError, match="do not make 10 episodes"):
        LinearOAL.load(tmp_path / "learner.npz", problem)


def test_a_roster_that_grows_keeps_what_it_has(rng):
    array = rng.random((2, 3, 4))
    larger = players.grown(array, 1, 5)
    assert larger.shape == (2, 6, 4)
    np.testing.assert_array_equal(larger[:, :3], array)
    assert players.grown(array, 1, 3) is array
