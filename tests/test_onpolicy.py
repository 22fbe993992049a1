"""TRPO and on-policy MDPO in cost form: each part against a reference, then probe problems with known answers."""

import inspect
from dataclasses import fields, replace
from functools import lru_cache, partial
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces
from jax.flatten_util import ravel_pytree
from scipy import integrate, stats

from oal.base import checkpoint, seeding
from oal.deep import nets
from oal.deep.distributions import Distribution, distribution, divergence, entropy, log_likelihood
from oal.deep.mdpo_on import PAPER_MDPO_ON, MDPOOn, MDPOOnConfig, mdpo_on_loss, mdpo_on_step
from oal.deep.nets import Gaussian
from oal.deep.players import Charge, ChargeBatch, Game, Shapes, recorded_cost
from oal.deep.prior import Ensemble
from oal.deep.replay import Batch, Replay
from oal.deep.rollout import (
    Data,
    OnPolicy,
    OnPolicyConfig,
    OnPolicyState,
    Rollout,
    advantages,
    compile_improvement,
    continues,
    fit_critic,
    improvement,
    init_on_policy,
    minibatches,
    surrogate,
)
from oal.deep.trpo import PAPER_TRPO, TRPO, TRPOConfig, conjugate_gradient, fisher_product, trpo_step
from oal.envs import Envs, Step, VectorEnvs, evaluate
from oal.errors import InputError
from prior_reference import gaussian_kl, log_softmax, outputs
from shapes import checked

CONTINUOUS = Shapes("continuous", 3, 2)
DISCRETE = Shapes("discrete", 3, 4)
BOTH = pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
TINY = TRPOConfig(hidden=(5,), batch_steps=48, critic_epochs=2, critic_minibatch=16)
TINY_MDPO = MDPOOnConfig(hidden=(5,), batch_steps=48, critic_epochs=2, critic_minibatch=16)
PLAYERS = pytest.mark.parametrize("config", [TINY, TINY_MDPO], ids=["trpo", "mdpo"])


def random_actor(shapes: Shapes, config: OnPolicyConfig, seed: int = 0) -> nets.MLP:
    """An actor whose outputs depend on the state, unlike a fresh one's."""
    return nets.init_actor(jax.random.key(seed), *shapes, config.hidden)


def random_rollout(shapes: Shapes, steps: int = 16, environments: int = 3, seed: int = 0) -> Rollout:
    """Episodes that go on, terminate, are truncated, are restarted without a flag, and rows that only reset."""
    rng = np.random.default_rng(seed)
    size = (steps, environments)
    starts = rng.normal(size=(steps + 1, environments, shapes.observation_size))
    terminated, truncated = rng.random(size) < 0.15, rng.random(size) < 0.15
    restarted = rng.random(size) < 0.1
    valid = np.ones(size, bool)
    valid[1:] &= ~((terminated | truncated)[:-1] & (rng.random((steps - 1, environments)) < 0.5))
    terminated &= valid
    truncated &= valid
    successor = starts[1:].copy()
    successor[terminated | truncated | restarted] += 10.0
    draw = rng.normal(size=(*size, shapes.action_size))
    if shapes.kind == "discrete":
        draw = np.eye(shapes.action_size)[rng.integers(0, shapes.action_size, size)]
    observation, draw, cost, successor = (
        np.asarray(part, np.float32) for part in (starts[:-1], draw, rng.normal(size=size), successor)
    )
    nothing = np.zeros((*size, 0), np.float32)
    return Rollout(observation, draw, cost, successor, terminated, truncated, valid, nothing)


def random_data(shapes: Shapes, rows: int = 64, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    draw = rng.normal(size=(rows, shapes.action_size))
    if shapes.kind == "discrete":
        draw = np.eye(shapes.action_size)[rng.integers(0, shapes.action_size, rows)]
    valid = rng.random(rows) < 0.8
    parts = (rng.normal(size=(rows, shapes.observation_size)), draw, rng.normal(size=rows), valid / valid.sum())
    return Data(*(jnp.array(part, jnp.float32) for part in parts), jnp.zeros((rows, 0)))


def player_of(config: OnPolicyConfig) -> type[OnPolicy]:
    return TRPO if isinstance(config, TRPOConfig) else MDPOOn


def fresh(config: OnPolicyConfig) -> OnPolicyState:
    return init_on_policy(0, CONTINUOUS, config, player_of(config).fresh_optimiser)


def begun(
    shapes: Shapes, config: OnPolicyConfig, *, seed: int, environments: int, charge: ChargeBatch = recorded_cost
) -> OnPolicy:
    """A player before its first step."""
    player, memory = player_of(config)(config), Replay(1, shapes.observation_size, shapes.action_size)
    player.begin(Game(shapes, seed, environments, memory, charge, memory.rows[:0]))
    return player


def policy_at(actor: nets.MLP, data: Data, shapes: Shapes, config: OnPolicyConfig) -> Distribution:
    return distribution(actor, data.observation, kind=shapes.kind, activation=config.activation)


def assert_equal_trees(first: object, second: object) -> None:
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


# ----- distributions


def test_divergence_of_squashed_gaussians_is_the_integral_over_actions() -> None:
    first, second = (0.3, -0.4), (-0.5, 0.2)

    def density(action: float, mean: float, log_std: float) -> float:
        return stats.norm(mean, np.exp(log_std)).pdf(np.arctanh(action)) / (1 - action**2)

    def integrand(action: float) -> float:
        p = density(action, *first)
        return 0.0 if p == 0.0 else p * np.log(p / density(action, *second))

    exact = integrate.quad(integrand, -0.999999, 0.999999, limit=200)[0]
    computed = divergence(*(Gaussian(*(jnp.full((1, 1), part) for part in g)) for g in (first, second)))
    assert computed[0] == pytest.approx(exact, rel=1e-4)


def test_divergence_of_categoricals_is_scipys() -> None:
    p, q = np.random.default_rng(0).dirichlet(np.ones(4), (2, 5))
    computed = divergence(jnp.log(jnp.array(p)), jnp.log(jnp.array(q)))
    np.testing.assert_allclose(computed, stats.entropy(p, q, axis=1), rtol=1e-5)


def test_likelihood_ratios_are_those_of_the_squashed_densities() -> None:
    first, second = (
        Gaussian(*(jnp.array(np.random.default_rng(seed).normal(size=(2, 6, 2)), jnp.float32))) for seed in (0, 1)
    )
    draw = jnp.array(np.random.default_rng(2).normal(size=(6, 2)), jnp.float32)
    expected = nets.gaussian_log_prob(first, draw) - nets.gaussian_log_prob(second, draw)
    ratio = log_likelihood(first, draw) - log_likelihood(second, draw)
    np.testing.assert_allclose(ratio, expected, rtol=1e-4, atol=1e-4)


def test_likelihood_tells_draws_apart_that_the_tanh_rounds_to_one() -> None:
    policy = Gaussian(jnp.zeros((2, 1)), jnp.full((2, 1), 2.0))
    draw = jnp.array([[12.0], [14.0]], jnp.float32)
    assert np.tanh(draw)[0] == np.tanh(draw)[1] == 1.0
    likelihood = log_likelihood(policy, draw)
    assert likelihood[0] - likelihood[1] == pytest.approx((14.0**2 - 12.0**2) / (2 * np.exp(4.0)), rel=1e-4)


def test_entropy_of_a_squashed_gaussian_and_its_gradient_are_those_of_the_density() -> None:
    """At draws of another policy, weighted by the ratio, as in the surrogate."""

    def exact(mean: float, log_std: float) -> float:
        density = stats.norm(mean, np.exp(log_std)).pdf
        return integrate.quad(
            lambda u: -density(u) * (np.log(density(u)) - 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))), -8, 8
        )[0]

    old = Gaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    # quantiles in place of draws: the mean over them is the expectation to a few digits
    draw = jnp.array(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000), jnp.float32)[:, None]

    def estimate(parameters: jax.Array) -> jax.Array:
        new = Gaussian(parameters[:1], parameters[1:])
        ratio = jnp.exp(log_likelihood(new, draw) - log_likelihood(old, draw))
        return jnp.mean(entropy(new, draw, ratio))

    at = np.array([0.4, -0.3])
    value, gradient = jax.jit(jax.value_and_grad(estimate))(jnp.array(at, jnp.float32))
    assert value == pytest.approx(exact(*at), abs=2e-3)
    slope = [(exact(*(at + step)) - exact(*(at - step))) / 2e-3 for step in 1e-3 * np.eye(2)]
    np.testing.assert_allclose(gradient, slope, atol=5e-3)


def test_entropy_of_a_categorical_is_scipys() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), 5)
    computed = entropy(jnp.log(jnp.array(p)), jnp.zeros((5, 4)), 1.0)
    np.testing.assert_allclose(computed, stats.entropy(p, axis=1), rtol=1e-5)


# ----- advantages


def slow_advantage(
    rollout: Rollout, value: np.ndarray, next_value: np.ndarray, absorbing: float, gamma: float, lam: float
) -> np.ndarray:
    """Sum the discounted residuals of each row's own episode, one row at a time."""
    steps, environments = rollout.cost.shape
    result = np.zeros((steps, environments))
    for i in range(environments):
        for start in range(steps):
            weight = 1.0
            for t in range(start, steps):
                if not rollout.valid[t, i]:
                    break
                after = absorbing / (1 - gamma) if rollout.terminated[t, i] else next_value[t, i]
                result[start, i] += weight * (rollout.cost[t, i] + gamma * after - value[t, i])
                weight *= gamma * lam
                ended = rollout.terminated[t, i] or rollout.truncated[t, i]
                if ended or t + 1 == steps or (rollout.next_observation[t, i] != rollout.observation[t + 1, i]).any():
                    break
    return result


@pytest.mark.parametrize("seed", range(3))
def test_advantages_equal_a_slow_loop(seed: int) -> None:
    rollout = random_rollout(CONTINUOUS, seed=seed)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    assert not rollout.valid.all()
    value, next_value = np.random.default_rng(seed + 9).normal(size=(2, *rollout.cost.shape)).astype(np.float32)
    computed = advantages(rollout, value, next_value, 0.3, gamma=0.9, gae_lambda=0.8)  # pyright: ignore
    np.testing.assert_allclose(computed, slow_advantage(rollout, value, next_value, 0.3, 0.9, 0.8), atol=1e-5)
    assert (np.asarray(computed)[~rollout.valid] == 0.0).all()


def test_a_termination_is_worth_the_absorbing_cost_and_a_truncation_its_successor() -> None:
    rollout = random_rollout(CONTINUOUS, steps=1, environments=2)._replace(
        cost=np.array([[1.0, 1.0]], np.float32),
        terminated=np.array([[True, False]]),
        truncated=np.array([[False, True]]),
        valid=np.ones((1, 2), bool),
    )
    value, next_value = jnp.full((1, 2), 7.0), jnp.full((1, 2), 5.0)
    target = value + advantages(rollout, value, next_value, 0.2, gamma=0.9, gae_lambda=0.5)
    np.testing.assert_allclose(target, [[1.0 + 0.9 * 0.2 / 0.1, 1.0 + 0.9 * 5.0]], rtol=1e-6)


# ----- TRPO


def natural_gradient_parts(shapes: Shapes, config: OnPolicyConfig):
    """Compile (actor, data, vectors [K, P], damping) -> gradient, dense Fisher, products, and solutions after steps."""

    def parts(actor: nets.MLP, data: Data, vectors: jax.Array, damping: float):
        flat, unravel = ravel_pytree(actor)
        old = policy_at(actor, data, shapes, config)

        def policy_of(parameters: jax.Array) -> Distribution:
            return policy_at(unravel(parameters), data, shapes, config)

        def mean_divergence(parameters: jax.Array) -> jax.Array:
            return jnp.sum(data.weight * divergence(old, policy_of(parameters)))

        def loss(parameters: jax.Array) -> jax.Array:
            return surrogate(unravel(parameters), old, data, shapes=shapes, config=config)[0]

        product = fisher_product(policy_of, flat, data.weight, damping)
        gradient = jax.grad(loss)(flat)
        solutions = jax.lax.map(
            lambda steps: conjugate_gradient(product, gradient, steps=steps), jnp.array([100, 10, 1])
        )
        return gradient, jax.hessian(mean_divergence)(flat), jax.lax.map(product, vectors), solutions

    return jax.jit(parts, static_argnums=3)


@BOTH
def test_fisher_products_are_the_divergences_hessian_and_conjugate_gradients_invert_it(shapes: Shapes) -> None:
    actor, data = random_actor(shapes, TINY), random_data(shapes)
    size = len(ravel_pytree(actor)[0])
    vectors = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    gradient, hessian, products, solutions = natural_gradient_parts(shapes, TINY)(actor, data, vectors, 0.1)
    damped = np.asarray(hessian, np.float64) + 0.1 * np.eye(size)
    assert np.abs(hessian).max() > 0.1, "there is more than the damping"
    np.testing.assert_allclose(products, vectors @ damped, atol=2e-4)
    gradient = np.asarray(gradient, np.float64)
    np.testing.assert_allclose(solutions[0], np.linalg.solve(damped, gradient), atol=1e-4)
    # ten steps, as TRPO takes them, come close already; one does not
    errors = [np.linalg.norm(damped @ solution - gradient) / np.linalg.norm(gradient) for solution in solutions]
    assert errors[1] < 0.03 < 0.1 < errors[2]


CAREFUL = replace(TINY, max_kl=1e-3, cg_damping=1e-3)
# one try at a step for which the quadratic model is rough: some pass and some do not
DARING = replace(TINY, max_kl=0.02, cg_damping=1e-3, backtracks=1)


@lru_cache
def compiled_trpo_step(shapes: Shapes, config: TRPOConfig):
    return jax.jit(partial(trpo_step, shapes=shapes, config=config))


@BOTH
def test_accepted_steps_keep_the_bound_and_lower_the_surrogate_and_others_change_nothing(shapes: Shapes) -> None:
    @jax.jit
    def measure(actor: nets.MLP, new: nets.MLP, data: Data) -> tuple[jax.Array, jax.Array, jax.Array]:
        old = policy_at(actor, data, shapes, TINY)
        before, after = (surrogate(each, old, data, shapes=shapes, config=TINY)[0] for each in (actor, new))
        return jnp.sum(data.weight * divergence(old, policy_at(new, data, shapes, TINY))), before, after

    accepted: dict[TRPOConfig, list[bool]] = {}
    for config in (CAREFUL, DARING):
        accepted[config] = []
        for seed in range(12):
            actor, data = random_actor(shapes, TINY, seed), random_data(shapes, seed=seed)
            new, _, metrics = compiled_trpo_step(shapes, config)(actor, (), data)
            moved, before, after = measure(actor, new, data)
            accepted[config].append(bool(metrics["accepted"]))
            if metrics["accepted"]:
                assert moved <= config.max_kl * (1 + 1e-3)
                assert after < before
                assert metrics["divergence"] == pytest.approx(float(moved), rel=1e-2, abs=1e-6)
                assert metrics["actor_gain"] == pytest.approx(float(before - after), rel=1e-2, abs=1e-6)
            else:
                assert_equal_trees(new, actor)
                assert metrics["divergence"] == metrics["actor_gain"] == 0.0
            if config == CAREFUL:
                assert moved > 0.4 * config.max_kl, "the step uses what it may"
    assert all(accepted[CAREFUL]), "with backtracking every ordinary step finds its length"
    assert set(accepted[DARING]) == {True, False}


@pytest.mark.parametrize("advantage", [0.0, np.nan])
def test_without_a_direction_the_actor_stays(advantage: float) -> None:
    actor, data = random_actor(DISCRETE, TINY), random_data(DISCRETE)
    data = data._replace(advantage=jnp.full_like(data.advantage, advantage))
    new, _, metrics = compiled_trpo_step(DISCRETE, CAREFUL)(actor, (), data)
    assert not metrics["accepted"]
    assert_equal_trees(new, actor)


def test_a_gain_of_rounding_errors_moves_nothing() -> None:
    """One state, only its likelier action taken: centred advantages have no gradient but what rounding leaves."""
    flat, outcomes = random_data(DISCRETE), []
    for seed in range(12):
        advantage = np.random.default_rng(seed).normal(size=64)
        data = flat._replace(
            observation=jnp.ones_like(flat.observation),
            draw=jnp.tile(jnp.eye(4)[0], (64, 1)),
            advantage=jnp.array((advantage - advantage.mean()) / advantage.std(), jnp.float32),
            weight=jnp.full(64, 1 / 64),
        )
        actor = random_actor(DISCRETE, TINY, seed)
        new, _, metrics = compiled_trpo_step(DISCRETE, CAREFUL)(actor, (), data)
        outcomes.append(bool(metrics["accepted"]))
        assert_equal_trees(new, actor)
    assert not any(outcomes)


# ----- MDPO


@BOTH
def test_mdpos_first_gradient_is_the_policy_gradient(shapes: Shapes) -> None:
    actor, data = random_actor(shapes, TINY_MDPO), random_data(shapes)
    old = policy_at(actor, data, shapes, TINY_MDPO)
    first = jax.jit(jax.grad(lambda actor: mdpo_on_loss(actor, old, data, shapes=shapes, config=TINY_MDPO)[0]))(actor)

    def score(actor: nets.MLP) -> jax.Array:
        if shapes.kind == "continuous":
            return nets.gaussian_log_prob(nets.gaussian(actor, data.observation, activation="tanh"), data.draw)
        return jnp.sum(nets.log_policy(actor, data.observation, activation="tanh") * data.draw, axis=-1)

    expected = jax.jit(jax.grad(lambda actor: jnp.sum(data.weight * data.advantage * score(actor))))(actor)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_mdpo_takes_m_adam_steps_from_one_old_policy() -> None:
    """On one state with two actions the objective is written out; the gradient is numerical."""
    config = replace(TINY_MDPO, policy_steps=3, learning_rate=0.05, kl_weight=1.5)
    shapes = Shapes("discrete", 1, 2)
    actor = random_actor(shapes, config)
    data = Data(jnp.ones((2, 1)), jnp.eye(2), jnp.array([0.7, -0.2]), jnp.array([0.5, 0.5]), jnp.zeros((2, 0)))
    flat, unravel = ravel_pytree(actor)

    @jax.jit
    @jax.vmap
    def log_probabilities(parameters: jax.Array) -> jax.Array:
        return nets.log_policy(unravel(parameters), jnp.ones((1, 1)), activation="tanh")[0]

    def probabilities(parameters: np.ndarray) -> np.ndarray:
        return np.exp(np.asarray(log_probabilities(parameters.astype(np.float32)), np.float64))

    x, mean, square = np.asarray(flat, np.float64), np.zeros(len(flat)), np.zeros(len(flat))
    shifts = 1e-2 * np.concatenate([np.eye(len(x)), -np.eye(len(x))])
    old = probabilities(np.repeat(x[None], len(shifts), axis=0))[0]
    for step in range(1, 4):
        p = probabilities(x + shifts)
        objective = 0.5 * (p / old) @ [0.7, -0.2] + 1.5 * (p * np.log(p / old)).sum(axis=1)
        gradient = (objective[: len(x)] - objective[len(x) :]) / 2e-2
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        x = x - 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    state = MDPOOn.fresh_optimiser(actor, config)
    step_once = jax.jit(partial(mdpo_on_step, shapes=shapes, config=config))
    new, _, metrics = step_once(actor, state, data)
    p = probabilities(np.repeat(x[None], len(shifts), axis=0))[0]
    reached = np.exp(nets.log_policy(new, jnp.ones((1, 1)), activation="tanh")[0])
    np.testing.assert_allclose(reached, p, atol=2e-3)
    assert metrics["divergence"] == pytest.approx(p @ np.log(p / old), rel=0.05)
    assert abs(p - old).max() > 0.05


def test_a_larger_kl_weight_keeps_the_policy_nearer() -> None:
    actor, data = random_actor(CONTINUOUS, TINY_MDPO), random_data(CONTINUOUS)
    moved = []
    for weight in (0.5, 50.0):
        config = replace(TINY_MDPO, kl_weight=weight, learning_rate=3e-3, policy_steps=100)
        step = jax.jit(partial(mdpo_on_step, shapes=CONTINUOUS, config=config))
        _, _, metrics = step(actor, MDPOOn.fresh_optimiser(actor, config), data)
        moved.append(float(metrics["divergence"]))
    assert moved[0] > 5 * moved[1] > 0.0


# ----- one improvement


def improve(state: OnPolicyState, rollout: Rollout, config, params=None, charge: ChargeBatch = recorded_cost):
    # a copy: the compiled step takes the state's buffers
    copied = jax.tree.map(jnp.copy, state)
    order = minibatches(rollout.cost.size, np.random.default_rng(0), config)
    step = compile_improvement(CONTINUOUS, config, player_of(config).policy_step, charge=charge)
    return step(copied, rollout, order, params)


@PLAYERS
def test_rows_that_are_not_valid_teach_nothing(config: TRPOConfig | MDPOOnConfig) -> None:
    state, rollout = fresh(config), random_rollout(CONTINUOUS)
    skipped = ~rollout.valid
    assert skipped.any()
    noise = np.random.default_rng(5)
    other = Rollout(*(part.copy() for part in rollout))
    for part in (other.observation, other.draw, other.cost, other.next_observation):
        part[skipped] = noise.normal(size=part[skipped].shape)
    first, second = (improve(state, each, config)[0] for each in (rollout, other))
    assert_equal_trees(first, second)
    taught = Rollout(*(part.copy() for part in rollout))
    taught.cost[rollout.valid] += noise.normal(size=rollout.valid.sum())
    assert not np.array_equal(first.actor[0].weight, improve(state, taught, config)[0].actor[0].weight)


def mixed_cost(mix: jax.Array, batch: Batch) -> Charge:
    cost = mix[0] * batch.observation[..., 0] + mix[1] * batch.action[..., 1] + mix[2] * batch.cost
    return Charge(cost, mix[3])


def test_costs_are_the_newest_ones_of_the_squashed_actions() -> None:
    state, rollout = fresh(TINY_MDPO), random_rollout(CONTINUOUS)
    charged = 2.0 * rollout.observation[..., 0] + np.tanh(rollout.draw[..., 1])
    first, metrics = improve(
        state, rollout, TINY_MDPO, params=jnp.array([2.0, 1.0, 0.0, 0.7], jnp.float32), charge=mixed_cost
    )
    second, _ = improve(
        state,
        rollout._replace(cost=charged),
        TINY_MDPO,
        params=jnp.array([0.0, 0.0, 1.0, 0.7], jnp.float32),
        charge=mixed_cost,
    )
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert metrics["policy_cost"] == pytest.approx(charged[rollout.valid].mean(), abs=1e-5)
    assert metrics["absorbing_cost"] == np.float32(0.7)


def test_minibatches_pass_over_the_rows_once_per_epoch() -> None:
    config = replace(TINY, critic_epochs=3, critic_minibatch=16)
    order = minibatches(50, np.random.default_rng(0), config)
    assert order.shape == (9, 16)
    epochs = [set(order[3 * epoch : 3 * epoch + 3].ravel().tolist()) for epoch in range(3)]
    assert [len(rows) for rows in epochs] == [48, 48, 48]
    assert set.union(*epochs) == set(range(50)), "no row is left out for ever"
    assert minibatches(5, np.random.default_rng(0), config).shape == (3, 5)


def test_the_critic_goes_to_its_targets() -> None:
    config = replace(TINY, critic_epochs=300, critic_learning_rate=0.01, hidden=(32,))
    critic = fresh(config).critic
    rng = np.random.default_rng(0)
    observation = jnp.array(rng.normal(size=(40, 3)), jnp.float32)
    target, weight = observation[:, 0] - 2.0, jnp.array(rng.random(40) < 0.7, jnp.float32)
    wrong = jnp.where(weight > 0, target, 1e3)
    fitted, _, _ = jax.jit(partial(fit_critic, config=config))(
        critic,
        optax.adam(0.01).init(critic),
        observation,
        wrong,
        weight,
        minibatches(40, np.random.default_rng(0), config),
    )
    value = nets.mlp(fitted, observation, activation="tanh")[:, 0]
    assert float(jnp.max(jnp.abs(value - target) * weight)) < 0.1


def test_standardised_advantages_forget_the_scale_of_costs_and_others_do_not() -> None:
    rollout = random_rollout(CONTINUOUS)
    scaled = rollout._replace(cost=100.0 * rollout.cost)
    for config, forgets in ((TINY_MDPO, True), (replace(TINY_MDPO, standardise_advantages=False), False)):
        state = fresh(config)
        # values of 0, so that advantages scale as the costs do
        state = state._replace(critic=jax.tree.map(jnp.zeros_like, state.critic))
        small, large = (float(improve(state, each, config)[1]["actor_loss"]) for each in (rollout, scaled))
        assert small < 0.0
        assert (large == pytest.approx(small, rel=0.01)) == forgets
        assert (large < 50 * small) != forgets


@BOTH
def test_the_entropy_bonus_is_part_of_the_surrogate(shapes: Shapes) -> None:
    config = replace(TINY, entropy_weight=0.3)
    actor, data = random_actor(shapes, TINY), random_data(shapes)
    old = policy_at(random_actor(shapes, TINY, seed=1), data, shapes, TINY)
    plain, new = surrogate(actor, old, data, shapes=shapes, config=TINY)
    ratio = jnp.exp(log_likelihood(new, data.draw) - log_likelihood(old, data.draw))
    bonus = jnp.sum(data.weight * entropy(new, data.draw, ratio))
    loss, _ = surrogate(actor, old, data, shapes=shapes, config=config)
    assert loss == pytest.approx(float(plain - 0.3 * bonus), rel=1e-5)
    assert abs(bonus) > 0.1


# ----- with clones as the prior


def clones_of(shapes: Shapes, config: OnPolicyConfig, count: int = 3) -> list[nets.MLP]:
    return [random_actor(shapes, config, seed) for seed in range(20, 20 + count)]


def with_prior(data: Data, shapes: Shapes) -> Data:
    ensemble = Ensemble(shapes.kind, clones_of(shapes, TINY), activation="tanh")
    return data._replace(prior=jnp.asarray(ensemble.columns(np.asarray(data.observation))))


def slow_surrogate(actor: nets.MLP, old: nets.MLP, data: Data, shapes: Shapes, prior_weight: float) -> float:
    """Σ weight (ratio · advantage + prior_weight · KL(π, prior)), row by row."""
    total, clones = 0.0, clones_of(shapes, TINY)
    for x, draw, advantage, weight in zip(*(np.asarray(part, np.float64) for part in data[:4]), strict=True):
        new, before, *each = (outputs(network, x, activation="tanh") for network in (actor, old, *clones))
        if shapes.kind == "discrete":
            log_p, log_old = log_softmax(new), log_softmax(before)
            probabilities = np.mean([np.exp(log_softmax(logits)) for logits in each], axis=0)
            log_prior = np.log(0.95 * probabilities + 0.05 / 4)
            ratio = np.exp((log_p - log_old) @ draw)
            divergence = float(np.exp(log_p) @ (log_p - log_prior))
        else:
            likelihoods = [stats.norm(o[:2], np.exp(o[2:])).logpdf(draw).sum() for o in (new, before)]
            ratio = np.exp(likelihoods[0] - likelihoods[1])
            means = np.stack([o[:2] for o in each])
            own = np.mean([np.exp(2.0 * o[2:]) for o in each], axis=0)
            width = np.sqrt(own + (1 + 1 / 3) * means.var(axis=0))
            divergence = gaussian_kl(new[:2], new[2:], means.mean(axis=0), np.log(width))
        total += weight * (ratio * advantage + prior_weight * divergence)
    return total


@BOTH
def test_the_surrogate_with_a_prior_equals_a_slow_loop(shapes: Shapes) -> None:
    config, data = replace(TINY, prior_weight=0.4), with_prior(random_data(shapes), shapes)
    actor, old = (random_actor(shapes, TINY, seed) for seed in (0, 1))
    before = policy_at(old, data, shapes, TINY)
    losses = {}
    for weight in (0.0, 0.4):
        loss, _ = surrogate(actor, before, data, shapes=shapes, config=replace(config, prior_weight=weight))
        losses[weight] = float(loss)
        assert losses[weight] == pytest.approx(slow_surrogate(actor, old, data, shapes, weight), rel=1e-4, abs=1e-5)
    assert losses[0.4] > losses[0.0] + 0.01
    # a prior's weight without clones weighs nothing
    nothing = data._replace(prior=jnp.zeros((64, 0)))
    assert float(surrogate(actor, before, nothing, shapes=shapes, config=config)[0]) == losses[0.0]


@PLAYERS
@BOTH
def test_the_weight_pulls_the_policy_towards_its_prior(shapes: Shapes, config: TRPOConfig | MDPOOnConfig) -> None:
    """Without advantages nothing but the prior moves the policy, and it goes there."""
    data = with_prior(random_data(shapes), shapes)
    data = data._replace(advantage=jnp.zeros_like(data.advantage))
    mean, log_std = jnp.split(data.prior, 2, axis=-1)
    prior = Gaussian(mean, log_std) if shapes.kind == "continuous" else log_std

    def distance(actor: nets.MLP) -> float:
        return float(jnp.sum(data.weight * divergence(policy_at(actor, data, shapes, TINY), prior)))

    actor, kind = random_actor(shapes, TINY), player_of(config)
    for weight in (0.0, 0.5):
        step = jax.jit(partial(kind.policy_step, shapes=shapes, config=replace(config, prior_weight=weight)))
        now, optimiser = actor, kind.fresh_optimiser(actor, config)
        for _ in range(20):
            now, optimiser, _ = step(now, optimiser, data)
        if weight == 0.0:
            assert distance(now) == pytest.approx(distance(actor), rel=0.01)
        else:
            assert distance(now) < 0.7 * distance(actor)


# ----- the player


def steps_of(shapes: Shapes, player: OnPolicy, environments: int, count: int, seed: int) -> None:
    """Let a player act in a made-up world that depends on its actions."""
    rng, action_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    observation = rng.normal(size=(environments, shapes.observation_size)).astype(np.float32)
    for _ in range(count):
        action = player.act(observation, action_rng)
        following = (0.5 * observation + action.mean(axis=1, keepdims=True)).astype(np.float32)
        ends = rng.random((3, environments)) < 0.1
        player.observe(Step(observation, action, action.sum(axis=1), following, ends[0], ends[1] & ~ends[0], ~ends[2]))
        observation = following


@pytest.mark.parametrize("weight", [0.0, 0.3], ids=["plain", "prior"])
@pytest.mark.parametrize("shapes, config", [(CONTINUOUS, TINY), (DISCRETE, TINY_MDPO)], ids=["trpo", "mdpo"])
def test_a_snapshot_continues_bit_for_bit(shapes: Shapes, config, weight: float, tmp_path) -> None:
    config = replace(config, prior_weight=weight)
    player = begun(shapes, config, seed=1, environments=3)
    if weight:
        player.adopt(clones_of(shapes, config))
    steps_of(shapes, player, 3, 16, seed=0)
    player.improve(None)
    steps_of(shapes, player, 3, 7, seed=1)
    arrays, info = player.snapshot()
    checkpoint.save(tmp_path / "player", arrays, info, kind="test")
    later = begun(shapes, config, seed=2, environments=3)
    later.adopt(clones_of(shapes, config, 2))  # must be undone by restoring
    later.restore(*checkpoint.load(tmp_path / "player", kind="test"))
    for each in (player, later):
        steps_of(shapes, each, 3, 9, seed=2)
        each.improve(None)
        each.settle()
    assert_equal_trees(player.state, later.state)
    assert_equal_trees(player.actor.layers, later.actor.layers)
    assert (later.ensemble is None) == (weight == 0.0)
    observation = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(*(each.act(observation, np.random.default_rng(0)) for each in (player, later)))
    # the snapshot itself was not touched by what came after it
    again = checkpoint.load(tmp_path / "player", kind="test")[0]
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


@PLAYERS
def test_the_same_seed_gives_the_same_player_and_another_a_different_one(config) -> None:
    states = []
    for seed in (3, 3, 4):
        player = begun(CONTINUOUS, config, seed=seed, environments=3)
        steps_of(CONTINUOUS, player, 3, 16, seed=0)
        player.improve(None)
        states.append(player.state)
    assert_equal_trees(states[0], states[1])
    assert not np.array_equal(states[0].actor[0].weight, states[2].actor[0].weight)


@PLAYERS
def test_nothing_is_compiled_after_the_first_improvement(config) -> None:
    """Whatever fills the rollout and wherever the state comes from."""
    player = begun(CONTINUOUS, config, seed=0, environments=3)
    steps_of(CONTINUOUS, player, 3, 16, seed=0)
    player.improve(None)
    compiled = player._improve._cache_size()  # pyright: ignore[reportFunctionMemberAccess]
    assert compiled >= 1
    for block, steps in enumerate((16, 10)):
        player.restore(*player.snapshot())
        steps_of(CONTINUOUS, player, 3, steps, seed=block)
        player.improve(None)
    player.adopt([random_actor(CONTINUOUS, config)])
    steps_of(CONTINUOUS, player, 3, 16, seed=9)
    player.improve(None)
    assert player._improve._cache_size() == compiled  # pyright: ignore[reportFunctionMemberAccess]


def test_nothing_is_learned_before_the_steps_are_taken() -> None:
    """Only `improve` moves the policy, with the cost its steps were taken under."""
    player = begun(CONTINUOUS, TINY, seed=0, environments=3)
    steps_of(CONTINUOUS, player, 3, 16, seed=0)
    before = jax.tree.map(np.array, player.state)
    assert player.work_ahead(None) == {}
    assert_equal_trees(player.state, before)
    assert player.improve(None)["accepted"] == 1.0


def test_the_actor_on_the_host_is_the_newest_one() -> None:
    player = begun(CONTINUOUS, TINY, seed=0, environments=3)
    steps_of(CONTINUOUS, player, 3, 16, seed=0)
    metrics = player.improve(None)
    assert metrics["accepted"] == 1.0
    player.act(np.zeros((3, 3), np.float32), np.random.default_rng(0))
    assert_equal_trees(player.actor.layers, player.state.actor)


@PLAYERS
def test_a_pretrained_actor_is_adopted(config) -> None:
    player = begun(CONTINUOUS, config, seed=0, environments=3)
    steps_of(CONTINUOUS, player, 3, 4, seed=0)
    actor = random_actor(CONTINUOUS, config, seed=5)
    player.adopt([actor])
    assert_equal_trees(player.actor.layers, actor)
    with pytest.raises(InputError, match="nothing to learn from"):
        player.improve(None)
    steps_of(CONTINUOUS, player, 3, 16, seed=0)
    player.improve(None)
    assert np.isfinite(actor[0].weight).all(), "the actor given stays the giver's"
    with pytest.raises(InputError, match="hidden sizes"):
        player.adopt([random_actor(CONTINUOUS, replace(config, hidden=(7,)))])


@BOTH
def test_a_rollout_keeps_the_priors_columns_beside_its_steps(shapes: Shapes) -> None:
    """Of all clones, with the player's own activation; the first of them is the policy."""
    config = replace(TINY, prior_weight=0.3)
    player, clones = begun(shapes, config, seed=0, environments=3), clones_of(shapes, config)
    before = player.snapshot()
    player.adopt(clones)
    assert_equal_trees(player.actor.layers, clones[0])
    steps_of(shapes, player, 3, 5, seed=0)
    prior = Ensemble(shapes.kind, clones, activation="tanh")
    rollout = player._rollout
    assert rollout.prior.shape == (16, 3, 2 * shapes.action_size)
    for t in range(5):
        np.testing.assert_allclose(rollout.prior[t], prior.columns(rollout.observation[t]), atol=1e-6)
    player.restore(*before)
    assert player.ensemble is None, "a snapshot without a prior has none"
    assert player._rollout.prior.shape == (16, 3, 0)
    unweighted = begun(shapes, TINY, seed=0, environments=3)
    unweighted.adopt(clones)
    assert unweighted.ensemble is None
    assert unweighted._rollout.prior.shape == (16, 3, 0)


def test_the_block_is_whole_vector_steps() -> None:
    assert begun(CONTINUOUS, replace(TINY, batch_steps=2000), seed=0, environments=8).block == 2000
    assert begun(CONTINUOUS, replace(TINY, batch_steps=1024), seed=0, environments=3).block == 1026


def test_misuse_is_refused() -> None:
    player = begun(CONTINUOUS, TINY, seed=0, environments=3)
    steps_of(CONTINUOUS, player, 3, 16, seed=0)
    with pytest.raises(InputError, match="full"):
        steps_of(CONTINUOUS, player, 3, 1, seed=0)
    step = Envs("CartPole-v1", count=3).step(np.eye(2, dtype=np.float32)[[0, 0, 0]])
    player = begun(CONTINUOUS, TINY, seed=0, environments=3)
    with pytest.raises(InputError, match="without act"):
        player.observe(step)
    arrays, info = player.snapshot()
    with pytest.raises(InputError, match="number of environments"):
        begun(CONTINUOUS, TINY, seed=0, environments=2).restore(arrays, info)
    with pytest.raises(InputError, match="another environment or configuration"):
        begun(CONTINUOUS, replace(TINY, hidden=(9,)), seed=0, environments=3).restore(arrays, info)


def test_steps_that_only_reset_a_vector_environment_are_left_out() -> None:
    envs = VectorEnvs(gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync"), seed=0)
    player = begun(Shapes.of(envs.spec), PROBE_TRPO, seed=0, environments=4, charge=with_absorbing_cost)
    rng = np.random.default_rng(0)
    for _ in range(player.block // 4):
        player.observe(envs.step(player.act(envs.observation, rng)))
    rollout = player._rollout
    assert not rollout.valid.all()
    goes_on = np.asarray(continues(rollout))
    np.testing.assert_array_equal(goes_on[:-1], (rollout.valid & ~rollout.terminated)[:-1])
    # a step that only resets costs nothing; every real one costs -1
    assert player.improve(jnp.float32(0.0))["policy_cost"] == pytest.approx(-1.0, abs=1e-6)
    envs.close()


# ----- settings


@pytest.mark.parametrize(
    "config, field, value",
    [
        (TINY, "gamma", 1.0),
        (TINY, "gae_lambda", 1.1),
        (TINY, "hidden", ()),
        (TINY, "activation", "elu"),
        (TINY, "batch_steps", 1),
        (TINY, "entropy_weight", -0.1),
        (TINY, "prior_weight", -0.1),
        (TINY, "critic_learning_rate", 0.0),
        (TINY, "critic_epochs", 0),
        (TINY, "critic_minibatch", 0),
        (TINY, "max_kl", 0.0),
        (TINY, "cg_steps", 0),
        (TINY, "cg_damping", -1.0),
        (TINY, "backtracks", 0),
        (TINY, "backtrack_factor", 1.0),
        (TINY_MDPO, "kl_weight", np.nan),
        (TINY_MDPO, "policy_steps", 0),
        (TINY_MDPO, "learning_rate", 0.0),
    ],
)
def test_impossible_settings_are_refused(config, field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        replace(config, **{field: value})


def test_paper_presets_are_the_papers_table() -> None:
    trpo, mdpo = PAPER_TRPO, PAPER_MDPO_ON
    for config in (trpo, mdpo):
        assert config.batch_steps == 2000
        assert (config.gamma, config.gae_lambda, config.entropy_weight) == (0.99, 0.98, 0.0)
        assert (config.critic_minibatch, config.critic_learning_rate) == (128, 3e-4)
        assert 3 <= config.critic_epochs <= 5
        assert (config.hidden, config.activation) == ((64, 64), "tanh")
    assert (trpo.max_kl, trpo.cg_steps, trpo.cg_damping) == (0.01, 10, 0.1)
    assert (mdpo.kl_weight, mdpo.policy_steps, mdpo.learning_rate) == (1 / 0.5, 10, 3e-4)


def test_every_setting_is_read_somewhere() -> None:
    """A setting that only its own declaration mentions would be recorded but not used."""
    for player in (TRPO, MDPOOn):
        text = "".join(Path(inspect.getfile(kind)).read_text(encoding="utf-8") for kind in (OnPolicy, player))
        for field in fields(player.Config):
            assert f"config.{field.name}" in text, field.name


# ----- probe problems: tiny, each with a known answer


class Target(gym.Env):
    """One step: the cheapest action is the observation."""

    observation_space = spaces.Box(-0.6, 0.6, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-0.6, 0.6, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        return self.seen, -10.0 * float((action[0] - self.seen[0]) ** 2), True, False, {}


class Drift(gym.Env):
    """Steer a point on a line to the middle; cut off by a time limit."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.x.copy(), {}

    def step(self, action):
        self.x += 0.5 * action
        return self.x.copy(), -float(self.x[0] ** 2), False, False, {}


class Corridor(gym.Env):
    """Four cells, a cost of 1 per step, the end at the right; left and right are swapped in odd cells."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def _see(self) -> np.ndarray:
        return np.eye(4, dtype=np.float32)[min(self.cell, 3)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self._see(), {}

    def step(self, action):
        right = (action == 1) != (self.cell % 2 == 1)
        self.cell = self.cell + 1 if right else max(self.cell - 1, 0)
        return self._see(), -1.0, self.cell == 4, False, {}


class LiveOrDie(gym.Env):
    """Action 1 goes on living at a cost of 0.5, action 0 ends the episode free of charge."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(4, np.float32), {}

    def step(self, action):
        return np.ones(4, np.float32), -0.5 * float(action), action == 0, False, {}


PROBE_TRPO = TRPOConfig(
    hidden=(16,),
    batch_steps=256,
    gamma=0.9,
    max_kl=0.05,
    cg_damping=0.01,
    critic_learning_rate=0.01,
    critic_minibatch=64,
)
PROBE_MDPO = MDPOOnConfig(
    hidden=(16,),
    batch_steps=256,
    gamma=0.9,
    kl_weight=1.0,
    learning_rate=0.01,
    policy_steps=20,
    critic_learning_rate=0.01,
    critic_minibatch=64,
)
PROBES = pytest.mark.parametrize("config", [PROBE_TRPO, PROBE_MDPO], ids=["trpo", "mdpo"])


def with_absorbing_cost(absorbing_cost: jax.Array, batch: Batch) -> Charge:
    return Charge(batch.cost, absorbing_cost)


def learn(
    env, config, improvements: int, *, horizon: int | None = None, absorbing_cost: float = 0.0, environments=4, seed=0
) -> OnPolicy:
    envs = Envs(env, count=environments, seed=seed, horizon=horizon)
    player = begun(Shapes.of(envs.spec), config, seed=seed, environments=environments, charge=with_absorbing_cost)
    rng = seeding.generator(seed, "actions")
    for _ in range(improvements):
        for _ in range(player.block // environments):
            player.observe(envs.step(player.act(envs.observation, rng)))
        player.improve(jnp.float32(absorbing_cost))
    player.settle()
    envs.close()
    return player


@PROBES
def test_probe_one_step_continuous(config) -> None:
    player = learn(Target, config, 60, horizon=1)
    observation = np.linspace(-0.5, 0.5, 5, dtype=np.float32)[:, None]
    np.testing.assert_allclose(player.actor.mode(observation), observation, atol=0.12)


@PROBES
def test_probe_few_steps_continuous(config) -> None:
    player = learn(Drift, config, 60, horizon=6)
    result = evaluate(Drift, player.actor.mode, episodes=20, seed=0, horizon=6)
    # from x in [-1, 1] the best is two steps of at most 0.5 to the middle: 1/12 on average
    assert result.mean_return > -0.2


@PROBES
def test_probe_few_steps_discrete(config) -> None:
    player = learn(Corridor, config, 40, horizon=20)
    assert evaluate(Corridor, player.actor.mode, episodes=3, seed=0, horizon=20).lengths.tolist() == [4, 4, 4]
    value = nets.mlp(player.state.critic, jnp.eye(4), activation="tanh")[:, 0]
    np.testing.assert_allclose(value, [(1 - 0.9**n) / 0.1 for n in (4, 3, 2, 1)], atol=0.4)


@PROBES
@pytest.mark.parametrize("absorbing_cost, lives", [(0.0, False), (1.0, True)])
def test_probe_the_absorbing_cost_decides_whether_to_live(config, absorbing_cost: float, lives: bool) -> None:
    """Living for ever costs 0.5 / (1 - γ) = 5; dying 0.9 c_abs / (1 - γ), which is 0 or 9."""
    player = learn(LiveOrDie, config, 40, horizon=8, absorbing_cost=absorbing_cost)
    assert player.actor.mode(np.ones((1, 4), np.float32)).argmax() == lives
    value = float(nets.mlp(player.state.critic, jnp.ones((1, 4)), activation="tanh")[0, 0])
    assert value == pytest.approx(5.0 if lives else 0.0, abs=0.2)


# ----- learning


@pytest.mark.slow
@pytest.mark.parametrize("config", [TRPOConfig(), MDPOOnConfig()], ids=["trpo", "mdpo"])
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_learned_from_its_own_cost(config, seed: int) -> None:
    player = learn("CartPole-v1", config, 40, environments=8, seed=seed)
    returns = evaluate("CartPole-v1", player.actor.mode, episodes=20, seed=seed).returns
    assert returns.mean() >= 475.0


@pytest.mark.slow
@pytest.mark.parametrize("config", [TRPOConfig(), MDPOOnConfig()], ids=["trpo", "mdpo"])
@pytest.mark.parametrize("seed", range(3))
def test_inverted_pendulum_is_learned_from_its_own_cost(config, seed: int) -> None:
    player = learn("InvertedPendulum-v5", config, 50, environments=8, seed=seed)
    returns = evaluate("InvertedPendulum-v5", player.actor.mode, episodes=20, seed=seed).returns
    assert returns.mean() >= 900.0


@BOTH
def test_arrays_have_the_shapes_that_annotations_say(shapes: Shapes) -> None:
    rollout, data, actor = random_rollout(shapes), random_data(shapes), random_actor(shapes, TINY)
    checked(continues)(rollout)
    value = jnp.zeros((16, 3))
    checked(advantages)(rollout, value, value, jnp.float32(0.1), gamma=0.9, gae_lambda=0.8)
    policy = checked(distribution)(actor, data.observation, kind=shapes.kind, activation="tanh")
    ratio = checked(log_likelihood)(policy, data.draw)
    checked(divergence)(policy, policy)
    checked(entropy)(policy, data.draw, ratio)
    checked(surrogate)(actor, policy, data, shapes=shapes, config=TINY)
    checked(surrogate)(actor, policy, with_prior(data, shapes), shapes=shapes, config=replace(TINY, prior_weight=0.1))
    order = checked(minibatches)(48, np.random.default_rng(0), TINY)
    state = checked(init_on_policy)(0, shapes, TINY, TRPO.fresh_optimiser)
    jax.eval_shape(partial(checked(trpo_step), shapes=shapes, config=TINY), actor, (), data)
    adam = MDPOOn.fresh_optimiser(actor, TINY_MDPO)
    jax.eval_shape(partial(checked(mdpo_on_step), shapes=shapes, config=TINY_MDPO), actor, adam, data)
    step = partial(checked(improvement), shapes=shapes, config=TINY, charge=recorded_cost, policy_step=trpo_step)
    jax.eval_shape(step, state, rollout, order, None)
    with pytest.raises(AssertionError, match=r"value is float32\(3, 16\)"):
        checked(advantages)(rollout, value.T, value, jnp.float32(0.1), gamma=0.9, gae_lambda=0.8)
    with pytest.raises(AssertionError, match=r"rollout.valid is float32\(16, 3\)"):
        checked(continues)(rollout._replace(valid=np.ones((16, 3), np.float32)))


def test_vectors_of_parameters_have_the_shapes_that_annotations_say() -> None:
    matrix = jnp.diag(jnp.arange(1.0, 5.0))
    checked(conjugate_gradient)(lambda vector: matrix @ vector, jnp.ones(4), steps=3)
    with pytest.raises(AssertionError, match=r"target is float32\(4, 4\)"):
        checked(conjugate_gradient)(lambda vector: matrix @ vector, matrix, steps=3)
