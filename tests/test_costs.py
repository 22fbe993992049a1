"""Cost players: every loss and step against slow obvious references, then laws, machine facts and bad input."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oal import equations
from oal.deep import nets
from oal.deep.costs import CostBase, CostState, CostView, GAILConfig, LinearConfig, NeuralConfig, cost_player
from oal.deep.costs.base import ABSORBING_STEP, CostConfig, Moments, mean, merge
from oal.deep.costs.linear import linear_step, weights
from oal.deep.costs.network import bernoulli_entropy, lipschitz_penalty
from oal.deep.nets import Layer
from oal.deep.replay import Batch, ExpertData, Pairs, Replay
from oal.errors import InputError
from oal.tabular.costsets import CostSet
from shapes import check_shapes, checked


def sized(config: Any, observation_size: int, action_size: int, *, function: Any = None) -> CostBase:
    return cost_player(config, function=function).sized(observation_size, action_size, 0.99)


O, A = 3, 2
# compiling takes most of the time here: few configurations, and minibatches of one shape wherever it does not matter
LINEAR = LinearConfig()
NEURAL = NeuralConfig(hidden=(8,), learning_rate=1e-2)
GAIL = GAILConfig(hidden=(8,), learning_rate=1e-2)
EACH = pytest.mark.parametrize("config", [LINEAR, NEURAL, GAIL], ids=["linear", "neural", "gail"])
PAID: dict[str, Any] = {
    "scale": "unit",
    "clip": None,
    "absorbing": 0.12,
}
"""Nearly how the policy pays in the default preset."""
ZERO_MASSES = (0.0, 0.0)


def random_pairs(
    rng: np.random.Generator, *shape: int, shift: float = 0.0, weighted: bool = False, sizes: tuple[int, int] = (O, A)
) -> Pairs:
    observation = rng.normal(size=(*shape, sizes[0])) + shift
    action = rng.uniform(-1.0, 1.0, size=(*shape, sizes[1]))
    weight = rng.uniform(0.1, 2.0, size=shape) if weighted else np.ones(shape)
    return Pairs(*(np.asarray(part, np.float32) for part in (observation, action, weight)))


def played(config: Any, rng: np.random.Generator, rounds: int = 3, **options: Any) -> tuple[CostBase, CostState]:
    """A player after some updates on data of two different distributions."""
    player = sized(config, O, A, **options)
    expert = random_pairs(rng, 2, 16, weighted=True)
    state = player.init(0, flat(expert))
    for _ in range(rounds):
        state, _ = player.update(state, random_pairs(rng, 2, 16, shift=1.0, weighted=True), expert, ZERO_MASSES)
    return player, state


def drawn_view(player: CostBase, rng: np.random.Generator) -> CostView:
    """A view with parameters and a standardisation that nothing was learned from."""
    view = player.init(0, random_pairs(rng, 40, shift=0.3)).view
    if isinstance(player.config, LinearConfig):
        return view._replace(params=jnp.array(rng.normal(size=view.params.shape), jnp.float32))
    sizes = (player.input_size, *player.config.hidden, 1)
    return view._replace(params=nets.init_mlp(jax.random.key(int(rng.integers(1_000))), sizes))


def flat(pairs: Pairs) -> Pairs:
    return Pairs(*(part.reshape(-1, *part.shape[2:]) for part in pairs))


def joined(pairs: Pairs) -> np.ndarray:
    return np.concatenate([pairs.observation, pairs.action], axis=-1).astype(np.float64)


def network(params: Any, x: np.ndarray) -> np.ndarray:
    """An MLP in plain NumPy, float64."""
    for layer in params[:-1]:
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        x = np.tanh(x)
    return (x @ np.asarray(params[-1].weight, np.float64) + np.asarray(params[-1].bias, np.float64))[..., 0]


def finite_differences(function: Any, x: np.ndarray, width: float = 1e-5) -> np.ndarray:
    gradient = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += width
        down[i] -= width
        gradient[i] = (function(up) - function(down)) / (2 * width)
    return gradient


def weighted_mean(values: np.ndarray, weight: np.ndarray) -> float:
    return sum(float(v) * float(w) for v, w in zip(values, weight, strict=True)) / sum(float(w) for w in weight)


def assert_same(first: Any, second: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, first, second)


# The parts of the losses ---------------------------------------------------------------------------------------------


def test_penalty_of_a_linear_cost_is_its_norm_minus_one_squared(rng: np.random.Generator) -> None:
    """With the gradient in every input, whatever the points are."""
    for scale in (0.2, 1.0, 3.0):
        w = scale * rng.normal(size=O + A).astype(np.float32)
        points = rng.normal(size=(7, O + A)).astype(np.float32)
        expected = (np.linalg.norm(w) - 1.0) ** 2
        assert float(lipschitz_penalty(lambda x, w=w: x @ w, jnp.array(points))) == pytest.approx(expected, rel=1e-5)

        def penalty(w: jax.Array, points: np.ndarray = points) -> jax.Array:
            return lipschitz_penalty(lambda x: x @ w, jnp.array(points))

        gradient = 2.0 * (np.linalg.norm(w) - 1.0) * w / np.linalg.norm(w)
        np.testing.assert_allclose(jax.grad(penalty)(jnp.array(w)), gradient, rtol=1e-4)


def test_penalty_of_a_network_agrees_with_finite_differences_in_observation_and_action(
    rng: np.random.Generator,
) -> None:
    player = sized(NEURAL, O, A)
    params = drawn_view(player, rng).params
    points = rng.normal(size=(5, O + A))
    norms = [np.linalg.norm(finite_differences(lambda z: network(params, z), point)) for point in points]
    penalty_of = jax.jit(lambda x: lipschitz_penalty(lambda z: player.network(params, z), x))
    penalty = penalty_of(jnp.array(points, jnp.float32))
    assert float(penalty) == pytest.approx(np.mean([(norm - 1.0) ** 2 for norm in norms]), rel=1e-4)


def test_the_loss_penalises_the_gradient_in_observation_and_action(rng: np.random.Generator) -> None:
    """A network kept in its linear range is the linear cost <w, x>."""
    config = replace(NEURAL, hidden=(O + A,), lipschitz=10.0, output_entropy=0.0)
    player = sized(config, O, A)
    learner, expert = random_pairs(rng, 16), random_pairs(rng, 16)
    view = player.init(0, expert).view
    w = rng.normal(size=O + A).astype(np.float32)
    linear = (
        Layer(1e-3 * jnp.eye(O + A), jnp.zeros(O + A)),
        Layer(1e3 * jnp.array(w)[:, None], jnp.zeros(1)),
    )
    _, parts = jax.jit(player.loss)(linear, view, view, learner, expert, jax.random.key(0))
    assert float(parts["cost_lipschitz"]) == pytest.approx(10.0 * (np.linalg.norm(w) - 1.0) ** 2, rel=1e-4)
    # the observation's gradient alone would give another number
    assert abs(np.linalg.norm(w[:O]) - np.linalg.norm(w)) > 0.1


@pytest.mark.parametrize("gail", [False, True], ids=["neural", "gail"])
def test_every_part_of_the_loss_agrees_with_a_loop(gail: bool, rng: np.random.Generator) -> None:
    common: dict[str, Any] = {"lipschitz": 10.0, "output_entropy": 0.3}
    config = replace(GAIL, **common) if gail else replace(NEURAL, bregman=100.0, **common)
    player = sized(config, O, A)
    view, before, key = drawn_view(player, rng), drawn_view(player, rng), jax.random.key(5)
    before = before._replace(mean=before.mean + 0.2, std=1.5 * before.std)
    learner, expert = random_pairs(rng, 16, shift=0.5, weighted=True), random_pairs(rng, 16, weighted=True)

    mean, std = np.asarray(view.mean, np.float64), np.asarray(view.std, np.float64)
    x, y = (joined(learner) - mean) / std, (joined(expert) - mean) / std
    c_x, c_y = (network(view.params, z) for z in (x, y))

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-z))

    if gail:
        # the learner's pairs are labelled 1, the expert's 0
        objective = weighted_mean(-np.log(sigmoid(c_x)), learner.weight)
        objective += weighted_mean(-np.log(1.0 - sigmoid(c_y)), expert.weight)
    else:
        objective = weighted_mean(c_y, expert.weight) - weighted_mean(c_x, learner.weight)
    p = sigmoid(np.concatenate([c_x, c_y]))
    entropy = -(p * np.log(p) + (1.0 - p) * np.log(1.0 - p)).mean()
    share = np.asarray(jax.random.uniform(key, (16, 1)), np.float64)
    gradients = [finite_differences(lambda z: network(view.params, z), z) for z in share * x + (1.0 - share) * y]
    penalty = np.mean([(np.linalg.norm(gradient) - 1.0) ** 2 for gradient in gradients])
    expected = {"cost_objective": objective, "cost_output_entropy": -0.3 * entropy, "cost_lipschitz": 10.0 * penalty}
    if not gail:
        # the old cost as it was: its own weights, and its own standardisation
        seen = ((joined(pairs) - np.asarray(before.mean)) / np.asarray(before.std) for pairs in (learner, expert))
        old = np.concatenate([network(before.params, z) for z in seen])
        expected["cost_bregman"] = 100.0 * np.mean((np.concatenate([c_x, c_y]) - old) ** 2)

    loss, parts = jax.jit(player.loss)(view.params, before, view, learner, expert, key)
    assert parts.keys() == expected.keys()
    for name, value in expected.items():
        assert float(parts[name]) == pytest.approx(value, rel=2e-3, abs=1e-5), name
    assert float(loss) == pytest.approx(sum(expected.values()), rel=2e-3)


def test_parts_without_weight_are_left_out(rng: np.random.Generator) -> None:
    config = replace(NEURAL, lipschitz=0.0, output_entropy=0.0)
    player = sized(config, O, A)
    view = drawn_view(player, rng)
    learner, expert = random_pairs(rng, 16), random_pairs(rng, 16)
    loss, parts = player.loss(view.params, view, view, learner, expert, jax.random.key(0))
    assert parts.keys() == {"cost_objective"}
    assert float(loss) == float(parts["cost_objective"])


def test_output_entropy_is_that_of_a_coin() -> None:
    logits = np.linspace(-30.0, 30.0, 121)
    p = 1.0 / (1.0 + np.exp(-logits[np.abs(logits) < 12]))
    expected = -(p * np.log(p) + (1.0 - p) * np.log1p(-p))
    got = np.asarray(bernoulli_entropy(jnp.array(logits, jnp.float32)))
    np.testing.assert_allclose(got[np.abs(logits) < 12], expected, rtol=1e-3, atol=1e-6)
    assert np.isfinite(got).all()
    assert got.argmax() == 60
    assert got[60] == pytest.approx(np.log(2.0))


# What training does --------------------------------------------------------------------------------------------------


def test_the_optimal_discriminator_is_the_log_density_ratio_on_a_finite_set() -> None:
    """One-hot states and actions; each minibatch holds every pair, weighted by its probability."""
    observation, action = (np.eye(2, dtype=np.float32)[index] for index in ([0, 0, 1, 1], [0, 1, 0, 1]))
    p, q = np.float32([0.1, 0.2, 0.3, 0.4]), np.float32([0.4, 0.3, 0.25, 0.05])
    config = GAILConfig(hidden=(16,), learning_rate=3e-3, output_entropy=0.0)
    player = sized(config, 2, 2)
    steps = 200
    learner, expert = (
        Pairs(*(np.broadcast_to(part, (steps, *part.shape)) for part in (observation, action, weight)))
        for weight in (p, q)
    )
    state = player.init(0, Pairs(observation, action, q))
    for _ in range(8):
        state, metrics = player.update(state, learner, expert, ZERO_MASSES)
    np.testing.assert_allclose(player.output(state.view, observation, action), np.log(p / q), atol=0.02)
    # at the optimum the loss is 2 log 2 - 2 JS(p, q)
    js = 0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))).sum()
    assert float(metrics["cost_objective"]) == pytest.approx(2 * np.log(2) - 2 * js, abs=1e-4)


def test_gradient_norms_come_near_one_on_separable_data(rng: np.random.Generator) -> None:
    """Along the line between two points at distance D the best slope is 1 + D / (2 λ)."""
    config = replace(
        NEURAL, hidden=(32,), lipschitz=20.0, output_entropy=0.0, learning_rate=3e-3, scale="unit", clip=None
    )
    player = sized(config, O, A)
    expert = random_pairs(rng, 100, 32)
    learner = random_pairs(rng, 100, 32)
    for pairs, place in ((expert, -1.0), (learner, 1.0)):
        pairs.observation[..., 1:] *= 0.1
        pairs.action[...] *= 0.1
        pairs.observation[..., 0] = place
    state = player.init(0, flat(expert))
    first = state
    for _ in range(8):
        state, _ = player.update(state, learner, expert, ZERO_MASSES)
    view = state.view
    x, y = (player.standardised(view, *flat(pairs)[:2]) for pairs in (learner, expert))
    share = rng.uniform(size=(len(x), 1)).astype(np.float32)

    def norms(params: Any) -> np.ndarray:
        points = share * x + (1.0 - share) * y
        return np.linalg.norm(jax.grad(lambda z: player.network(params, z).sum())(points), axis=1)

    assert norms(first.view.params).mean() < 0.1
    after = norms(view.params)
    assert after.mean() == pytest.approx(1.0 + 2.0 / 40.0, abs=0.1)
    assert np.quantile(np.abs(after - 1.0), 0.9) < 0.3
    costs = [player.output(view, pairs.observation, pairs.action) for pairs in (learner, expert)]
    assert float(jnp.mean(costs[0]) - jnp.mean(costs[1])) > 1.5


@EACH
def test_the_cost_rises_where_the_learner_is_and_falls_where_the_expert_is(
    config: Any, rng: np.random.Generator
) -> None:
    player = sized(config, O, A)
    expert, learner = random_pairs(rng, 2, 16), random_pairs(rng, 2, 16, shift=1.5)
    state = player.init(0, flat(expert))
    for _ in range(30):
        state, metrics = player.update(state, learner, expert, ZERO_MASSES)
    gap = float(
        jnp.mean(player.cost(state.view, learner.observation, learner.action))
        - jnp.mean(player.cost(state.view, expert.observation, expert.action))
    )
    assert gap > 0.2
    # the metric is the gap of the costs as the player reads them, before they are clipped
    assert float(metrics["cost_gap"]) == pytest.approx(gap, rel=0.02)


def test_a_network_takes_one_adam_step_per_minibatch(rng: np.random.Generator) -> None:
    """The update against Adam written out, with the same mixtures."""
    player = sized(replace(NEURAL, bregman=1.0), O, A)
    expert, learner = random_pairs(rng, 4, 16), random_pairs(rng, 4, 16, shift=0.5)
    state = player.init(0, flat(expert))
    after, _ = player.update(state, learner, expert, ZERO_MASSES)

    params = state.view.params
    view = state.view._replace(mean=after.view.mean, std=after.view.std)
    gradient_of = jax.jit(jax.grad(lambda p, both, key: player.loss(p, state.view, view, *both, key)[0]))
    first = second = jax.tree.map(np.zeros_like, params)
    key = jax.random.wrap_key_data(state.key)
    for i in range(4):
        key, mix_key = jax.random.split(key)
        minibatch = (Pairs(*(part[i] for part in learner)), Pairs(*(part[i] for part in expert)))
        gradient: Any = gradient_of(params, minibatch, mix_key)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
        step = jax.tree.map(
            lambda m, v, t=i + 1: 1e-2 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), first, second
        )
        params = jax.tree.map(lambda p, s: p - s, params, step)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, atol=5e-5), after.view.params, params)
    np.testing.assert_array_equal(after.key, jax.random.key_data(key))


# Linear steps --------------------------------------------------------------------------------------------------------


def first_observation(observation: Any, action: Any) -> Any:
    """Features of one-hot states: themselves."""
    return observation


def one_hot_pairs(d: np.ndarray) -> Pairs:
    """All (h, s, a) of a finite MDP as one minibatch of one-hot pairs, weighted by an occupancy."""
    H, S, A = d.shape
    _, s, a = (index.ravel() for index in np.meshgrid(range(H), range(S), range(A), indexing="ij"))
    return Pairs(
        np.eye(S, dtype=np.float32)[s][None], np.eye(A, dtype=np.float32)[a][None], d.astype(np.float32).ravel()[None]
    )


def occupancies(rng: np.random.Generator, rounds: int) -> tuple[tuple[int, int, int], np.ndarray, list[np.ndarray]]:
    """A small finite MDP, the expert's occupancy and those of some policies, all exact."""
    shape = H, S, A = 4, 5, 3
    p, mu = rng.dirichlet(np.ones(S), size=(H, S, A)), rng.dirichlet(np.ones(S))

    def draw() -> np.ndarray:
        return equations.occupancy(p, rng.dirichlet(0.3 * np.ones(A), size=(H, S)), mu)

    return shape, draw(), [draw() for _ in range(rounds)]


def test_a_linear_cost_with_one_hot_features_takes_the_tabular_steps_in_the_ball(rng: np.random.Generator) -> None:
    shape, expert, played_by = occupancies(rng, 25)
    H, S, A = shape
    tabular, t = CostSet("l2", shape), 2.0
    config = LinearConfig(geometry="l2", features="function", step=t)
    player = sized(config, S, A, function=first_observation)
    state = player.init(0, Pairs(*(part[0] for part in one_hot_pairs(expert))))
    w = tabular.start()
    outside = 0
    for d in played_by:
        # the deep player's means are over a distribution, the table's occupancies have mass H
        gradient = equations.cost_gradient(tabular.coordinates(d), tabular.coordinates(expert)) / H
        outside += np.linalg.norm(w + t * gradient) > 1.0
        w = tabular.step(w, gradient, t)
        state, metrics = player.update(state, one_hot_pairs(d), one_hot_pairs(expert), ZERO_MASSES)
        np.testing.assert_allclose(state.view.params, w, atol=2e-6)
        assert float(metrics["feature_gap"]) == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
        costs = player.cost(state.view, np.eye(S, dtype=np.float32), np.zeros((S, A), np.float32))
        np.testing.assert_allclose(costs, tabular.cost(w)[0, :, 0], atol=2e-6)
        assert float(metrics["cost_gap"]) == pytest.approx(w @ gradient, abs=1e-6)
    assert 0 < outside < len(played_by)


def test_the_simplex_is_multiplicative_weights_over_features_and_their_negatives(rng: np.random.Generator) -> None:
    shape, expert, played_by = occupancies(rng, 25)
    H, S, A = shape
    tabular, t = CostSet("simplex", shape, np.concatenate([np.eye(S), -np.eye(S)], axis=1)), 3.0
    config = LinearConfig(geometry="simplex", features="function", step=t)
    player = sized(config, S, A, function=first_observation)
    state = player.init(0, Pairs(*(part[0] for part in one_hot_pairs(expert))))
    np.testing.assert_array_equal(state.view.params, np.zeros(S))
    experts = np.full(2 * S, 1.0 / (2 * S))
    for d in played_by:
        gradient = equations.cost_gradient(tabular.coordinates(d), tabular.coordinates(expert)) / H
        experts = experts * np.exp(t * gradient)
        experts /= experts.sum()
        state, _ = player.update(state, one_hot_pairs(d), one_hot_pairs(expert), ZERO_MASSES)
        np.testing.assert_allclose(state.view.params, experts[:S] - experts[S:], atol=2e-6)
    assert np.abs(np.asarray(state.view.params)).sum() <= 1.0
    assert np.abs(np.asarray(state.view.params)).max() > 0.1


def test_normalised_steps_add_up_freely_and_are_read_at_unit_length(rng: np.random.Generator) -> None:
    """The reference code: w <- w + step * gap, read as w / |w|."""
    shape, expert, played_by = occupancies(rng, 25)
    H, S, A = shape
    config = LinearConfig(geometry="normalised", features="function", step=0.05)
    player = sized(config, S, A, function=first_observation)
    state = player.init(0, Pairs(*(part[0] for part in one_hot_pairs(expert))))
    np.testing.assert_array_equal(state.view.params, np.zeros(S))
    w = np.zeros(S)
    for d in played_by:
        w = w + 0.05 * (d - expert).sum(axis=(0, 2)) / H
        state, _ = player.update(state, one_hot_pairs(d), one_hot_pairs(expert), ZERO_MASSES)
        np.testing.assert_allclose(state.dual, w, atol=1e-6)
        np.testing.assert_allclose(state.view.params, w / np.linalg.norm(w), atol=1e-4)


@pytest.mark.parametrize("geometry", ["l2", "normalised", "simplex"])
def test_weights_stay_in_their_set_and_a_gap_of_nothing_moves_nothing(geometry: Any, rng: np.random.Generator) -> None:
    config = LinearConfig(geometry=geometry, step=5.0)
    player, state = played(config, rng, rounds=8)
    norm = np.linalg.norm(np.asarray(state.view.params), ord=1 if geometry == "simplex" else 2)
    assert norm <= 1.0 + 1e-6
    if geometry == "normalised":
        assert norm == pytest.approx(1.0, abs=1e-6)
    same = random_pairs(rng, 2, 16)
    after, metrics = player.update(state, same, same, ZERO_MASSES)
    assert float(metrics["feature_gap"]) < 1e-6
    np.testing.assert_allclose(after.view.params, state.view.params, atol=1e-6)
    np.testing.assert_allclose(linear_step(config, state.dual, jnp.zeros(O + A)), state.dual, atol=1e-6)


def test_discounted_weights_give_discounted_feature_expectations(rng: np.random.Generator) -> None:
    """Episodes of several lengths: (sum of γ^t φ_t) / (sum of γ^t), in a loop."""
    gamma, lengths = 0.9, (3, 7, 10)
    sums = []
    both = []
    for _ in range(2):
        steps = [rng.normal(size=(length, O)).astype(np.float32) for length in lengths]
        total, mass = np.zeros(O), 0.0
        for episode in steps:
            for t, phi in enumerate(episode):
                total, mass = total + gamma**t * phi, mass + gamma**t
        sums.append(total / mass)
        weight = np.concatenate([gamma ** np.arange(length) for length in lengths]).astype(np.float32)
        both.append(Pairs(np.concatenate(steps)[None], np.zeros((1, sum(lengths), A), np.float32), weight[None]))
    player = sized(LinearConfig(geometry="l2", features="function", step=0.5), O, A, function=first_observation)
    state, _ = player.update(player.init(0, flat(both[1])), *both, ZERO_MASSES)
    np.testing.assert_allclose(state.view.params, 0.5 * (sums[0] - sums[1]), atol=1e-6)


def test_a_weight_counts_like_repetition(rng: np.random.Generator) -> None:
    player = sized(replace(LINEAR, features="function", scale="unit"), O, A, function=first_observation)
    expert = random_pairs(rng, 1, 8)
    weighted = random_pairs(rng, 1, 8)
    weighted.weight[0, :3] = 3.0
    repeat = np.where(weighted.weight[0] == 3.0, 3, 1)
    repeated = Pairs(*(np.repeat(part, repeat, axis=1) for part in weighted[:2]), np.ones((1, repeat.sum()), "float32"))
    state = player.init(0, flat(expert))
    (first, _), (second, _) = (player.update(state, pairs, expert, ZERO_MASSES) for pairs in (weighted, repeated))
    for part in ("params", "centre", "scale", "evidence"):
        values = (getattr(state.view, part) for state in (first, second))
        np.testing.assert_allclose(*values, rtol=2e-4, atol=2e-5, err_msg=part)


# Features ------------------------------------------------------------------------------------------------------------


def test_inputs_are_observation_and_action_standardised(rng: np.random.Generator) -> None:
    player, state = played(LINEAR, rng)
    pairs = random_pairs(rng, 9)
    expected = (joined(pairs) - np.asarray(state.view.mean)) / np.asarray(state.view.std)
    np.testing.assert_allclose(player.features(state.view, *pairs[:2]), expected, rtol=1e-5, atol=1e-5)
    output = expected @ np.asarray(state.view.params)
    np.testing.assert_allclose(player.output(state.view, *pairs[:2]), output, rtol=1e-4, atol=1e-5)


def test_fourier_features_approximate_the_gaussian_kernel(rng: np.random.Generator) -> None:
    config = LinearConfig(features="fourier", fourier_features=20_000, fourier_scale=0.7)
    player = sized(config, O, A)
    expert = random_pairs(rng, 200)
    view = player.init(3, expert).view
    pairs = random_pairs(rng, 12)
    phi = np.asarray(player.features(view, *pairs[:2]))
    assert phi.shape == (12, 20_000)
    x = np.asarray(player.standardised(view, *pairs[:2]))
    square = ((x[:, None] - x[None]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(phi @ phi.T, np.exp(-0.5 * 0.7**2 * square), atol=0.04)


def test_fourier_features_are_drawn_once_and_never_learned(rng: np.random.Generator) -> None:
    config = LinearConfig(features="fourier", fourier_features=32)
    player, state = played(config, rng)
    expert = random_pairs(rng, 10)
    assert_same(state.view.frozen, player.init(0, expert).view.frozen)
    assert not np.array_equal(state.view.frozen[0], player.init(1, expert).view.frozen[0])


def test_fourier_features_tell_apart_what_raw_inputs_cannot(rng: np.random.Generator) -> None:
    """Equal means, other spreads: no linear cost of the inputs sees it."""
    expert, learner = random_pairs(rng, 1, 2_000), random_pairs(rng, 1, 2_000)
    learner.observation[...] *= 3.0
    for pairs in (expert, learner):
        pairs.observation[...] -= pairs.observation.mean(axis=1, keepdims=True)
        pairs.action[...] = 0.0
    gap = {}
    for features in ("inputs", "fourier"):
        player = sized(LinearConfig(features=features), O, A)
        _, metrics = player.update(player.init(0, flat(expert)), learner, expert, ZERO_MASSES)
        gap[features] = float(metrics["feature_gap"])
    assert gap["inputs"] < 1e-5
    assert gap["fourier"] > 0.1


def test_a_users_function_gives_the_features(rng: np.random.Generator) -> None:
    def speed_and_effort(observation: Any, action: Any) -> Any:
        return jnp.stack([observation[..., 0], jnp.sum(action**2, axis=-1)], axis=-1)

    config = LinearConfig(features="function", geometry="l2", step=0.1)
    player = sized(config, O, A, function=speed_and_effort)
    learner, expert = random_pairs(rng, 1, 40, shift=1.0), random_pairs(rng, 1, 40)
    state = player.init(0, flat(expert))
    assert state.view.params.shape == (2,)
    state, _ = player.update(state, learner, expert, ZERO_MASSES)
    means = [
        (pairs.observation[0, :, 0].mean(), (pairs.action[0] ** 2).sum(axis=1).mean()) for pairs in (learner, expert)
    ]
    np.testing.assert_allclose(state.view.params, 0.1 * np.subtract(*means), atol=1e-6)


@pytest.mark.parametrize("function", [lambda o, a: o[..., 0], lambda o, a: jnp.float32(1.0), lambda o, a: (o, a)])
def test_a_function_that_gives_no_features_is_refused(function: Any, rng: np.random.Generator) -> None:
    player = sized(LinearConfig(features="function"), O, A, function=function)
    with pytest.raises(InputError, match="feature function"):
        player.init(0, random_pairs(rng, 5))


@EACH
def test_a_cost_of_states_ignores_the_action(config: Any, rng: np.random.Generator) -> None:
    player = sized(replace(config, inputs="states"), O, A)
    view = drawn_view(player, rng)
    assert player.input_size == O
    assert view.mean.shape == (O,)
    pairs = random_pairs(rng, 10)
    costs = player.cost(view, pairs.observation, pairs.action)
    np.testing.assert_array_equal(costs, player.cost(view, pairs.observation, -pairs.action))
    assert np.ptp(costs) > 0.0
    player = sized(config, O, A)
    view = drawn_view(player, rng)
    assert player.input_size == O + A
    costs = player.cost(view, pairs.observation, pairs.action)
    assert not np.allclose(costs, player.cost(view, pairs.observation, -pairs.action), atol=1e-3)


# Normalisation -------------------------------------------------------------------------------------------------------


def test_merged_moments_are_those_of_the_concatenation(rng: np.random.Generator) -> None:
    parts = [rng.normal(loc=i, scale=1 + i, size=(n, 4)).astype(np.float32) for i, n in enumerate((7, 1, 50, 300))]
    moments = Moments(jnp.float32(7), jnp.array(parts[0].mean(axis=0)), jnp.array(parts[0].var(axis=0)))
    for part in parts[1:]:
        moments = merge(moments, jnp.array(part))
    everything = np.concatenate(parts).astype(np.float64)
    assert float(moments.seen) == len(everything)
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, everything.var(axis=0), rtol=1e-4)


@EACH
def test_running_normalisation_is_over_all_pairs_seen_so_far(config: Any, rng: np.random.Generator) -> None:
    player = sized(config, O, A)
    expert = random_pairs(rng, 2, 16)
    state = player.init(0, flat(expert))
    seen = [joined(flat(expert))]
    for shift in (0.0, 2.0, 5.0):
        learner = random_pairs(rng, 2, 16, shift=shift)
        state, _ = player.update(state, learner, expert, ZERO_MASSES)
        seen += [joined(flat(learner)), joined(flat(expert))]
    everything = np.concatenate(seen)
    np.testing.assert_allclose(state.view.mean, everything.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.view.std, everything.std(axis=0), rtol=1e-4)


def test_an_input_that_never_varies_is_not_blown_up(rng: np.random.Generator) -> None:
    expert = random_pairs(rng, 30)
    expert.observation[:, 1] = 4.0
    player = sized(LINEAR, O, A)
    view = player.init(0, expert).view
    x = player.standardised(view, expert.observation + np.float32([0.0, 0.01, 0.0]), expert.action)
    assert np.isfinite(x).all()
    assert np.abs(np.asarray(x)[:, 1]).max() <= 10.1


@EACH
def test_standardised_costs_are_symmetric_with_unit_spread(config: Any, rng: np.random.Generator) -> None:
    """The learner's and the expert's mean lie on both sides of 0, both together have spread 1, no mean exceeds 1."""
    player = sized(replace(config, **PAID), O, A)
    expert = random_pairs(rng, 2, 16, weighted=True)
    state = player.init(0, flat(expert))
    for shift in (0.1, 1.0, 30.0):
        learner = random_pairs(rng, 2, 16, shift=shift, weighted=True)
        state, metrics = player.update(state, learner, expert, ZERO_MASSES)
        costs = [np.asarray(player.cost(state.view, *flat(pairs)[:2])) for pairs in (learner, expert)]
        weights = [pairs.weight.ravel() for pairs in (learner, expert)]
        means = [np.average(c, weights=w) for c, w in zip(costs, weights, strict=True)]
        assert means[0] == pytest.approx(-means[1], abs=1e-3)
        assert -1.0 - 1e-4 <= means[0] <= 1.0 + 1e-4
        square = np.mean([np.average(c**2, weights=w) for c, w in zip(costs, weights, strict=True)])
        assert np.sqrt(square) == pytest.approx(1.0, abs=1e-3)
        assert float(metrics["cost_spread"]) == pytest.approx(float(state.view.scale), rel=1e-5)
        assert means[0] - means[1] == pytest.approx(float(metrics["cost_gap"] / metrics["cost_spread"]), abs=1e-3)
        # how well the outputs tell both apart
        assert float(metrics["evidence"]) == float(state.view.evidence)
        assert float(state.view.evidence) == pytest.approx(max(means[0], 0.0), abs=1e-3)


@EACH
def test_standardising_changes_no_order_of_costs(config: Any, rng: np.random.Generator) -> None:
    expert, learner, other = random_pairs(rng, 2, 16), random_pairs(rng, 2, 16, shift=0.7), random_pairs(rng, 50)
    costs, params = [], None
    for standardise in (False, True):
        player = sized(replace(config, **PAID) if standardise else config, O, A)
        state = player.init(0, flat(expert))
        # both from the same network: one whose costs are standardised would start near 0
        params = state.view.params if params is None else params
        state, _ = player.update(state._replace(view=state.view._replace(params=params)), learner, expert, ZERO_MASSES)
        costs.append(np.asarray(player.cost(state.view, *other[:2])))
        assert standardise != (float(state.view.centre) == 0.0 and float(state.view.scale) == 1.0)
    slope, level = np.polyfit(costs[0], costs[1], 1)
    assert slope > 0.0
    np.testing.assert_allclose(costs[1], slope * costs[0] + level, atol=2e-3)


@EACH
def test_costs_are_cut_to_the_clip(config: Any, rng: np.random.Generator) -> None:
    free = replace(config, **PAID)
    player, state = played(free, rng)
    cut = sized(replace(free, clip=0.5), O, A)
    pairs = random_pairs(rng, 200, shift=0.5)
    costs = np.asarray(player.cost(state.view, *pairs[:2]))
    assert np.abs(costs).max() > 0.5 > np.abs(costs).min()
    np.testing.assert_array_equal(cut.cost(state.view, *pairs[:2]), np.clip(costs, -0.5, 0.5))


def test_a_scale_by_the_evidence_pays_less_the_closer_both_are(rng: np.random.Generator) -> None:
    """What is paid is multiplied by the learner's standardised mean cost, which is never above 1."""
    player = sized(replace(LINEAR, **PAID | {"scale": "evidence"}), O, A)
    unit = sized(replace(LINEAR, **PAID), O, A)
    expert = random_pairs(rng, 2, 16)
    state = player.init(0, flat(expert))
    gains = []
    for shift in (30.0, 1.0, 0.0):
        learner = random_pairs(rng, 2, 16, shift=shift)
        state, metrics = player.update(state, learner, expert, (0.6, 0.1))
        standardised = np.asarray(unit.cost(state.view._replace(gain=jnp.float32(1.0)), *flat(learner)[:2]))
        gain = min(max(standardised.mean(), 0.0), 1.0)
        assert float(state.view.gain) == pytest.approx(gain, abs=1e-4) == float(metrics["evidence"])
        np.testing.assert_allclose(player.cost(state.view, *flat(learner)[:2]), gain * standardised, atol=1e-4)
        gains.append(gain)
    assert gains[0] > 0.9 > gains[1] > gains[2]
    batch = Batch(*flat(expert)[:2], None, None, None)
    paid, absorbing = player(state.view, batch)
    shift = float(state.view.gain * state.view.absorbing)
    np.testing.assert_allclose(paid, player.cost(state.view, *flat(expert)[:2]) - shift, atol=1e-6)
    assert float(absorbing) == 0.0


def test_gail_readings(rng: np.random.Generator) -> None:
    player, softplus = (sized(replace(GAIL, reading=reading), O, A) for reading in ("logit", "softplus"))
    view = drawn_view(player, rng)
    pairs = random_pairs(rng, 50, shift=0.5)
    logit = np.asarray(player.output(view, *pairs[:2]), np.float64)
    np.testing.assert_allclose(player.cost(view, *pairs[:2]), logit, rtol=1e-5)
    # log D, with D the probability that the pair is the learner's: what GAIL's policy minimises
    probability = 1.0 / (1.0 + np.exp(-logit))
    np.testing.assert_allclose(softplus.cost(view, *pairs[:2]), np.log(probability), rtol=1e-4)


# The absorbing state -------------------------------------------------------------------------------------------------


@EACH
def test_the_absorbing_cost_moves_with_the_masses_inside_its_bounds(config: Any, rng: np.random.Generator) -> None:
    player = sized(replace(config, **PAID), O, A)
    expert = random_pairs(rng, 2, 16)
    state = player.init(0, flat(expert))
    expected = 0.0
    for masses in [(0.6, 0.1)] * 4 + [(0.0, 0.3)] * 10 + [(0.2, 0.2)] * 2:
        state, metrics = player.update(state, random_pairs(rng, 2, 16), expert, masses)
        expected = min(max(expected + ABSORBING_STEP * (masses[0] - masses[1]), -0.12), 0.12)
        assert float(state.view.absorbing) == pytest.approx(expected, abs=1e-6)
        assert float(metrics["absorbing_mass"]) == pytest.approx(masses[0])
    assert expected == -0.12


@EACH
def test_an_end_that_the_expert_never_came_to_is_taken_for_the_worst(config: Any, rng: np.random.Generator) -> None:
    """The ascent starts at the bound, less as many of the expert's episodes ended."""
    player, expert = sized(replace(config, **PAID), O, A), flat(random_pairs(rng, 2, 16))
    starts = [float(player.init(0, expert, ended).view.absorbing) for ended in (0.0, 0.25, 1.0)]
    assert starts == pytest.approx([0.12, 0.09, 0.0])
    assert float(sized(replace(config, absorbing=None), O, A).init(0, expert, 0.0).view.absorbing) == 0.0


@EACH
def test_without_a_coordinate_the_absorbing_state_costs_nothing(config: Any, rng: np.random.Generator) -> None:
    player = sized(replace(config, absorbing=None), O, A)
    expert = random_pairs(rng, 2, 16)
    state, _ = player.update(player.init(0, flat(expert)), random_pairs(rng, 2, 16), expert, (1.0, 0.0))
    assert float(state.view.absorbing) == 0.0


def test_the_policy_pays_costs_shifted_to_an_absorbing_cost_of_zero(rng: np.random.Generator) -> None:
    player, state = played(NEURAL, rng)
    view = state.view._replace(absorbing=jnp.float32(0.7))
    pairs = random_pairs(rng, 6)
    nothing = np.zeros(6, np.float32)
    costs, absorbing = player(view, Batch(pairs.observation, pairs.action, nothing, pairs.observation, nothing))
    np.testing.assert_allclose(costs, player.cost(view, *pairs[:2]) - 0.7, atol=1e-6)
    # the value of the absorbing state, where value networks start
    assert float(absorbing) == 0.0


# Machine facts -------------------------------------------------------------------------------------------------------


@EACH
def test_the_same_seed_gives_the_same_player_bit_for_bit(config: Any) -> None:
    states = []
    for seed in (0, 0, 1):
        rng = np.random.default_rng(7)
        player = sized(config, O, A)
        expert = random_pairs(rng, 2, 16)
        state = player.init(seed, flat(expert))
        for _ in range(3):
            state, _ = player.update(state, random_pairs(rng, 2, 16), expert, ZERO_MASSES)
        states.append(state)
    assert_same(states[0], states[1])
    assert not np.array_equal(states[0].key, states[2].key)
    if not isinstance(config, LinearConfig):
        assert not np.array_equal(states[0].view.params[0].weight, states[2].view.params[0].weight)


def test_the_key_moves_with_every_update(rng: np.random.Generator) -> None:
    _, first = played(NEURAL, rng, rounds=1)
    _, second = played(NEURAL, rng, rounds=2)
    assert not np.array_equal(first.key, second.key)


def test_a_fresh_network_costs_next_to_nothing(rng: np.random.Generator) -> None:
    player = sized(NeuralConfig(scale="evidence"), O, A)
    view = player.init(0, random_pairs(rng, 50)).view
    assert np.abs(np.asarray(player.cost(view, *random_pairs(rng, 50)[:2]))).max() < 0.01


@pytest.mark.parametrize("config", [LINEAR, NEURAL], ids=["linear", "neural"])
def test_equal_players_share_one_compiled_update(
    config: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = []
    read = CostBase.read

    def counting(self: CostBase, output: Any) -> Any:
        if isinstance(output, jax.core.Tracer):
            traces.append(self)
        return read(self, output)

    monkeypatch.setattr(CostBase, "read", counting)
    # a setting no other test has: nobody has compiled it yet
    config = replace(config, absorbing=1.2345)
    expert = random_pairs(rng, 2, 16)
    counts = []
    for _ in range(2):
        player = sized(config, O, A)
        state = player.init(0, flat(expert))
        for masses in ((0.0, 0.0), (0.5, 0.25), (1, 0)):
            state, _ = player.update(state, random_pairs(rng, 2, 16), expert, masses)
            counts.append(len(traces))
    # one trace reads both sides' costs once
    assert counts == [2] * 6


def test_players_are_equal_when_all_that_decides_them_is() -> None:
    player = sized(LINEAR, O, A)
    assert player == sized(LinearConfig(), O, A)
    assert hash(player) == hash(sized(LinearConfig(), O, A))
    function = LinearConfig(features="function")
    others = [
        sized(replace(LINEAR, step=0.06), O, A),
        sized(LINEAR, O + 1, A),
        sized(LINEAR, O, A + 1),
        sized(function, O, A, function=first_observation),
        sized(function, O, A, function=lambda o, a: o),
        sized(NEURAL, O, A),
    ]
    assert len({player, *others}) == 1 + len(others)
    assert player != "linear"


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [LinearConfig, NeuralConfig, GAILConfig])
@pytest.mark.parametrize(
    "field, value",
    [
        ("update_every", 0),
        ("window", 0),
        ("minibatches", 0),
        ("batch_size", -1),
        ("inputs", "actions"),
        ("scale", "double"),
        ("clip", 0.0),
        ("clip", float("nan")),
        ("absorbing", -1.0),
        ("absorbing", float("nan")),
    ],
)
def test_values_no_player_takes_are_named(config: type[CostConfig], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        config(**{field: value})


@pytest.mark.parametrize(
    "config, field, value",
    [
        (LinearConfig, "step", -0.1),
        (LinearConfig, "geometry", "l1"),
        (LinearConfig, "average", "days"),
        (LinearConfig, "features", "pixels"),
        (LinearConfig, "fourier_features", 0),
        (LinearConfig, "fourier_scale", 0.0),
        (LinearConfig, "fourier_scale", float("nan")),
        (NeuralConfig, "hidden", ()),
        (NeuralConfig, "hidden", (10, 0)),
        (NeuralConfig, "learning_rate", 0.0),
        (NeuralConfig, "lipschitz", -1.0),
        (NeuralConfig, "output_entropy", -1.0),
        (NeuralConfig, "bregman", -1.0),
        (GAILConfig, "learning_rate", float("nan")),
        (GAILConfig, "reading", "sigmoid"),
    ],
)
def test_values_a_player_does_not_take_are_named(config: type[CostConfig], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        config(**{field: value})


def test_a_feature_function_and_the_setting_belong_together() -> None:
    with pytest.raises(InputError, match="needs the function"):
        sized(LinearConfig(features="function"), O, A)
    for config, said in ((LINEAR, "not 'function'"), (NEURAL, "for the linear cost, not for 'neural'")):
        with pytest.raises(InputError, match=said):
            sized(config, O, A, function=first_observation)


def test_the_bregman_term_compares_with_the_old_cost_as_it_was(rng: np.random.Generator) -> None:
    """The first minibatch meets the old weights with inputs standardised anew: the cost has changed already."""
    config = NeuralConfig(hidden=(8,), minibatches=1, bregman=3.0, lipschitz=0.0, output_entropy=0.0)
    player = sized(config, O, A)
    expert, learner = random_pairs(rng, 1, 16), random_pairs(rng, 1, 16, shift=4.0)
    before = player.init(0, flat(expert))
    after, metrics = player.update(before, learner, expert, ZERO_MASSES)
    moved = before.view._replace(mean=after.view.mean, std=after.view.std)
    changes = [
        np.asarray(player.output(moved, *flat(pairs)[:2]) - player.output(before.view, *flat(pairs)[:2]))
        for pairs in (learner, expert)
    ]
    expected = 3.0 * np.mean(np.concatenate(changes) ** 2)
    assert expected > 1e-3
    assert float(metrics["cost_bregman"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("config", [NEURAL, GAIL])
def test_a_cost_that_will_be_standardised_starts_near_zero(config: Any, rng: np.random.Generator) -> None:
    expert, pairs = random_pairs(rng, 50), random_pairs(rng, 50)
    sizes = []
    for scale in ("own", "unit", "evidence"):
        player = sized(replace(config, scale=scale), O, A)
        sizes.append(np.abs(np.asarray(player.output(player.init(0, expert).view, *pairs[:2]))).max())
    assert sizes[1] == sizes[2] == pytest.approx(0.01 * sizes[0], rel=1e-4)


def test_features_are_averaged_over_episodes_as_the_paper_has_it(rng: np.random.Generator) -> None:
    """μ = (1-γ) Σ_t γ^t φ_t of each episode, then the mean over episodes; steps by steps in plain loops."""
    gamma = 0.9
    config = LinearConfig(average="episodes", window=40, step=1.0, geometry="l2")
    player = sized(config, O, A).sized(O, A, gamma)
    memory = Replay(100, O, A)

    def drawn(*lengths: int) -> list[Any]:
        return [tuple(rng.normal(size=(n, size)).astype(np.float32) for size in (O, A)) for n in lengths]

    episodes, shown = drawn(7, 12), drawn(5, 9, 4)
    for observation, action in episodes:
        n = len(observation)
        memory.add(observation, action, np.zeros(n), observation, np.zeros(n), np.arange(n))
    expert = ExpertData.__new__(ExpertData)
    expert.observation, expert.action = (np.concatenate(part) for part in zip(*shown, strict=True))
    expert.time = np.concatenate([np.arange(len(observation)) for observation, _ in shown])
    expert.stride = np.ones(len(expert.time), int)
    state = player.init(0, expert.pairs(None, player.weigh))

    def average(episodes: Any) -> np.ndarray:
        totals = []
        for observation, action in episodes:
            phi = np.asarray(player.features(state.view, observation, action), np.float64)
            totals.append((1 - gamma) * sum(gamma**t * phi[t] for t in range(len(phi))))
        return np.mean(totals, axis=0)

    state, metrics = player.update(state, *player.draw(memory, expert, rng), ZERO_MASSES)
    assert float(metrics["feature_gap"]) == pytest.approx(np.linalg.norm(average(episodes) - average(shown)), rel=1e-4)
    with pytest.raises(InputError, match="average over episodes"):
        replace(config, window=None)
    # every third step, of episodes three times as long: each stands for the two that follow it
    expert.time, expert.stride = 3 * expert.time, np.full(len(expert.time), 3)
    thinned = [tuple(np.repeat(part, 3, axis=0) for part in episode) for episode in shown]
    state = player.init(0, expert.pairs(None, player.weigh))
    state, metrics = player.update(state, *player.draw(memory, expert, rng), ZERO_MASSES)
    assert float(metrics["feature_gap"]) == pytest.approx(
        np.linalg.norm(average(episodes) - average(thinned)), rel=1e-4
    )


@EACH
def test_steps_come_from_the_window_or_from_all_past_ones(config: Any, rng: np.random.Generator) -> None:
    """Step t of the memory has the observation t: the drawn ones say where they are from."""
    memory, expert = Replay(200, O, A), ExpertData.__new__(ExpertData)
    steps = np.repeat(np.arange(100, dtype=np.float32)[:, None], O, axis=1)
    memory.add(steps, np.zeros((100, A)), np.zeros(100), steps, np.zeros(100), np.arange(100))
    expert.observation, expert.action = np.zeros((5, O), np.float32), np.zeros((5, A), np.float32)
    expert.time = np.arange(5)
    for window in (30, None):
        player = sized(replace(config, window=window), O, A)
        assert player.remembers == (1_000_000 if window is None else 30)
        drawn, _ = player.draw(memory, expert, rng)
        places = set(drawn.observation[..., 0].ravel().astype(int).tolist())
        np.testing.assert_array_equal(drawn.weight, 1.0)
        assert places <= set(range(70, 100)) if window else min(places) < 20


# Shapes --------------------------------------------------------------------------------------------------------------


@EACH
def test_arrays_have_the_shapes_that_annotations_say(rng: np.random.Generator, config: Any) -> None:
    player, state = played(config, rng, rounds=0)
    learner, expert = random_pairs(rng, 2, 16), random_pairs(rng, 2, 16)
    check_shapes(checked(player.init)(0, flat(expert)))
    state, _ = checked(player.update)(state, learner, expert, ZERO_MASSES)
    check_shapes(state)
    pairs = Pairs(*(jnp.asarray(part[0]) for part in learner))
    for function in (player.output, player.standardised, player.cost):
        checked(function)(state.view, pairs.observation, pairs.action)
    checked(player.inputs)(pairs.observation, pairs.action)
    checked(player.read)(pairs.weight)
    checked(player.weigh)(np.arange(5, dtype=np.int32))
    batch = Batch(pairs.observation, pairs.action, pairs.weight, pairs.observation, pairs.weight)
    checked(player.__call__)(state.view, batch)
    with pytest.raises(AssertionError, match=r"learner.weight is float32\(16,\)"):
        checked(player.update)(state, learner._replace(weight=learner.weight[0]), expert, ZERO_MASSES)
    with pytest.raises(AssertionError, match=r"CostState.moments.mean is float32\(4,\)"):
        check_shapes(state._replace(moments=state.moments._replace(mean=state.moments.mean[1:])))


def test_parts_of_the_players_have_the_shapes_that_annotations_say(rng: np.random.Generator) -> None:
    values, weight, gap = jnp.ones((7, O + A)), jnp.ones(7), jnp.ones(3)
    checked(merge)(Moments(jnp.float32(2.0), jnp.zeros(O + A), jnp.ones(O + A)), values)
    checked(mean)(values, weight)
    checked(mean)(weight, weight)
    checked(bernoulli_entropy)(weight)
    checked(lipschitz_penalty)(lambda x: x.sum(axis=1), values)
    for config, size in ((LINEAR, 3), (LinearConfig(geometry="simplex"), 6)):
        dual = checked(linear_step)(config, jnp.zeros(size), gap)
        assert checked(weights)(config, dual).shape == gap.shape
    with pytest.raises(AssertionError, match=r"values is float32\(7, 4\)"):
        checked(merge)(Moments(jnp.float32(2.0), jnp.zeros(O + A), jnp.ones(O + A)), values[:, 1:])
