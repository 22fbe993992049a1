"""Soft actor-critic in cost form: each part against a reference, then probe problems with known answers."""

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oal.deep import nets
from oal.deep.offpolicy import compile_block, draw_noise
from oal.deep.players import Charge, ChargeBatch, Shapes, recorded_cost
from oal.deep.prior import Ensemble, chosen, started_at_prior
from oal.deep.replay import Batch
from oal.deep.sac import SACConfig, SACState, init_sac, sac_update
from oal.errors import InputError
from prior_reference import batch_of, members, policy_at, worst_cost
from shapes import checked

CONTINUOUS = Shapes("continuous", 3, 2)
DISCRETE = Shapes("discrete", 3, 4)
SMALL = SACConfig(hidden=(16, 16), batch_size=32)


def random_batch(shapes: Shapes, size: int = 32, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (size, shapes.action_size))
    if shapes.kind == "discrete":
        action = np.eye(shapes.action_size)[rng.integers(0, shapes.action_size, size)]
    parts = (
        rng.normal(size=(size, shapes.observation_size)),
        action,
        rng.normal(size=size),
        rng.normal(size=(size, shapes.observation_size)),
        rng.random(size) < 0.3,
        np.zeros((size, 0)),
    )
    return Batch(*(jnp.array(part, jnp.float32) for part in parts))


def noise_for(shapes: Shapes, size: int = 32) -> jax.Array:
    """What an update draws with: for the target's actions and the actor's; nothing for discrete ones."""
    return jax.random.normal(jax.random.key(5), (2, size, shapes.action_size if shapes.kind == "continuous" else 0))


@lru_cache
def compiled_update(shapes: Shapes, config: SACConfig):
    return jax.jit(partial(sac_update, shapes=shapes, config=config))


def compile_sac(shapes: Shapes, config: SACConfig, charge: ChargeBatch = recorded_cost) -> Any:
    return compile_block(sac_update, shapes, config, draws=2, charge=charge)


def pack(batch: Batch) -> np.ndarray:
    return np.concatenate(
        [
            batch.observation,
            batch.action,
            np.asarray(batch.cost)[:, None],
            batch.next_observation,
            np.asarray(batch.terminated)[:, None],
        ],
        axis=1,
    )


def soft_value(state: SACState, critics: Any, observation: Any, noise: Any, shapes: Shapes, alpha: float) -> Any:
    """E_{a~π}[max_i Q_i(s, a) + α log π(a|s)], and the entropy of π: SAC's value with the uniform prior."""
    terms = chosen(state.actor, None, observation, jnp.zeros((len(observation), 0)), noise, kind=shapes.kind)
    worst = nets.critic_bound(critics, shapes.kind, observation, terms.action, layer_norm=False)
    return worst + alpha * terms.from_prior, terms.entropy


def test_discrete_soft_value_is_the_exact_expectation() -> None:
    state, _ = init_sac(0, DISCRETE, SMALL)
    observation = random_batch(DISCRETE).observation
    value, entropy = soft_value(state, state.critics, observation, noise_for(DISCRETE)[0], DISCRETE, 0.3)
    log_policy = np.asarray(nets.log_policy(state.actor, observation), np.float64)
    first, second = (np.asarray(nets.mlp(critic, observation), np.float64) for critic in state.critics)
    for b in range(len(observation)):
        expected = sum(
            np.exp(log_policy[b, a]) * (max(first[b, a], second[b, a]) + 0.3 * log_policy[b, a]) for a in range(4)
        )
        assert value[b] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(entropy, -(np.exp(log_policy) * log_policy).sum(axis=1), atol=1e-5)


def test_continuous_soft_value_is_pessimistic_about_costs() -> None:
    """The larger of the two cost critics counts, at the action that was drawn."""
    state, _ = init_sac(0, CONTINUOUS, SMALL)
    observation = random_batch(CONTINUOUS).observation
    noise = noise_for(CONTINUOUS)[0]
    value, entropy = soft_value(state, state.critics, observation, noise, CONTINUOUS, 0.3)
    action, _, log_prob = nets.squashed(nets.gaussian(state.actor, observation), noise)
    both = [nets.critic_value(critic, "continuous", observation, action) for critic in state.critics]
    np.testing.assert_allclose(value, np.maximum(*both) + 0.3 * log_prob, rtol=1e-5)
    np.testing.assert_allclose(entropy, -log_prob)


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_critics_step_along_the_gradient_of_the_squared_error(shapes: Shapes) -> None:
    """Adam's first step is -learning rate x sign(gradient): compare the signs with a numerical gradient."""
    (state, _), batch = init_sac(0, shapes, SMALL), random_batch(shapes)
    noise = noise_for(shapes)
    new, metrics = compiled_update(shapes, SMALL)(state, batch, jnp.float32(0.7), noise)
    next_value, _ = soft_value(state, state.target_critics, batch.next_observation, noise[0], shapes, 1.0)
    gamma = SMALL.gamma
    target = [batch.cost[b] + gamma * (0.7 / (1 - gamma) if batch.terminated[b] else next_value[b]) for b in range(32)]
    assert metrics["target_mean"] == pytest.approx(np.mean(target), rel=1e-5)

    def loss(bias: float) -> float:
        first = state.critics[0]
        moved = (*first[:-1], nets.Layer(first[-1].weight, first[-1].bias.at[0].add(bias)))
        value = nets.critic_value(moved, shapes.kind, batch.observation, batch.action)
        return float(np.mean((np.asarray(value, np.float64) - np.array(target)) ** 2))

    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    moved = float(new.critics[0][-1].bias[0] - state.critics[0][-1].bias[0])
    assert moved == pytest.approx(-np.sign(slope) * SMALL.learning_rate, rel=1e-3)


def test_targets_follow_at_their_rate() -> None:
    state, _ = init_sac(0, CONTINUOUS, SMALL)
    new, _ = compiled_update(CONTINUOUS, SMALL)(
        state, random_batch(CONTINUOUS), jnp.float32(0.0), noise_for(CONTINUOUS)
    )
    for old, critic, target in zip(
        jax.tree.leaves(state.target_critics),
        jax.tree.leaves(new.critics),
        jax.tree.leaves(new.target_critics),
        strict=True,
    ):
        np.testing.assert_allclose(target, old + 0.005 * (critic - old), atol=1e-7)


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_temperature_moves_towards_the_target_entropy(shapes: Shapes) -> None:
    """A wide policy lowers the temperature, a narrow one raises it."""
    state, _ = init_sac(0, shapes, SMALL)
    last = state.actor[-1]
    if shapes.kind == "continuous":
        wide, narrow = (last.bias.at[shapes.action_size :].set(value) for value in (1.0, -9.0))
    else:
        wide, narrow = (last.bias.at[0].set(value) for value in (0.0, 50.0))
    for bias, direction in ((wide, -1.0), (narrow, 1.0)):
        actor = (*state.actor[:-1], nets.Layer(last.weight, bias))
        changed, batch = state._replace(actor=actor), random_batch(shapes)
        new, _ = compiled_update(shapes, SMALL)(changed, batch, jnp.float32(0.0), noise_for(shapes))
        assert np.sign(new.log_temperature - state.log_temperature) == direction


# ----- with clones as the prior

CLONED = SACConfig(hidden=(8,), batch_size=16, gamma=0.9, initial_temperature=0.3, layer_norm=True)


def with_clones(shapes: Shapes) -> tuple[SACState, Ensemble]:
    """A state between two updates: the actor has left its prior a little, the targets are not the critics."""
    state, ensemble = init_sac(0, shapes, CLONED)[0], Ensemble(shapes.kind, members(shapes))
    return state._replace(target_critics=init_sac(7, shapes, CLONED)[0].critics), ensemble


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_an_update_with_clones_agrees_with_plain_loops(shapes: Shapes, rng: np.random.Generator) -> None:
    """Target, losses, divergence and the temperature's step, state by state in NumPy."""
    state, ensemble = with_clones(shapes)
    batch, noise = batch_of(shapes, rng, ensemble, experts=8), np.asarray(noise_for(shapes, 16))
    after, metrics = compiled_update(shapes, CLONED)(state, batch, jnp.float32(0.4), noise)
    now, then = np.split(batch.extra, 2, axis=1)
    target_mean, critic_loss, actor_loss, divergences = 0.0, 0.0, 0.0, []
    successors = [policy_at(shapes, state.actor, batch.next_observation[b], then[b], noise[0, b]) for b in range(16)]
    usual = sum(divergence for _, _, divergence in successors) / 16  # what the absorbing state is charged too
    for b in range(16):
        x, y = batch.observation[b], batch.next_observation[b]
        _, action, divergence = successors[b]
        value = worst_cost(shapes, state.target_critics, y, action, layer_norm=True) + 0.3 * (divergence - usual)
        if b >= 8:  # the expert's
            value = max(value, worst_cost(shapes, state.target_critics, y, batch.following[b - 16], layer_norm=True))
        target = batch.cost[b] + 0.9 * (0.4 / (1 - 0.9) if batch.terminated[b] else value)
        target_mean += target / 16
        for critic in state.critics:
            critic_loss += (worst_cost(shapes, [critic], x, batch.action[b], layer_norm=True) - target) ** 2 / 16
        _, action, divergence = policy_at(shapes, state.actor, x, now[b], noise[1, b])
        actor_loss += (0.3 * divergence + worst_cost(shapes, after.critics, x, action, layer_norm=True)) / 16
        divergences.append(divergence)
    assert float(metrics["target_mean"]) == pytest.approx(target_mean, rel=1e-4, abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss, rel=1e-3)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss, rel=2e-3, abs=1e-4)
    assert float(metrics["prior_divergence"]) == pytest.approx(np.mean(divergences), rel=2e-3)
    assert min(divergences) > 0.0
    # the temperature aims at as many nats from the clones as the target entropy has
    goal = 2.0 if shapes.kind == "continuous" else 0.3 * np.log(4)
    direction = np.sign(np.mean(divergences) - goal)
    assert float(after.log_temperature - state.log_temperature) == pytest.approx(3e-4 * direction, rel=1e-3)


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_the_temperature_holds_the_policy_at_a_distance_from_its_prior(
    shapes: Shapes, rng: np.random.Generator
) -> None:
    """At the clones it falls, so that the policy may leave; far from them it rises, and with it the pull back."""
    state, ensemble = with_clones(shapes)
    batch, noise = batch_of(shapes, rng, ensemble), noise_for(shapes, 16)
    near = started_at_prior(state.actor, members(shapes)[0], shapes)
    away = jnp.asarray([8.0, 0.0, 0.0, 0.0] if shapes.kind == "discrete" else [3.0, 3.0, -1.0, -1.0])
    far = (*near[:-1], nets.Layer(near[-1].weight, away))
    for actor, direction in ((near, -1.0), (far, 1.0)):
        changed = state._replace(actor=actor)
        after, _ = compiled_update(shapes, CLONED)(changed, batch, jnp.float32(0.0), noise)
        assert np.sign(after.log_temperature - state.log_temperature) == direction


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_a_block_equals_single_updates_and_compiles_once(shapes: Shapes) -> None:
    block = compile_sac(shapes, SMALL)
    batches = [random_batch(shapes, seed=seed) for seed in range(3)]
    state, key, _ = block(*init_sac(0, shapes, SMALL), np.stack([pack(batch) for batch in batches]), None)
    one_by_one, first_key = init_sac(0, shapes, SMALL)
    next_key, noise = draw_noise(first_key, (3, *noise_for(shapes).shape))
    for batch, drawn in zip(batches, noise, strict=True):
        one_by_one, _ = compiled_update(shapes, SMALL)(one_by_one, batch, jnp.float32(0.0), drawn)
    assert not np.array_equal(first_key, key)
    np.testing.assert_array_equal(key, next_key)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    for _ in range(3):
        state, key, _ = block(state, key, np.stack([pack(batch) for batch in batches]), None)
    assert block._cache_size() == 1


def test_charged_costs_replace_the_recorded_ones() -> None:
    batch = random_batch(DISCRETE)
    rows = np.stack([pack(batch)])
    block = compile_sac(DISCRETE, SMALL, lambda scale, b: Charge(scale * b.observation[..., 0], jnp.float32(0.0)))
    state, _, _ = block(*init_sac(0, DISCRETE, SMALL), rows, jnp.float32(2.0))
    charged = batch._replace(cost=2.0 * batch.observation[:, 0])
    expected, _, _ = compile_sac(DISCRETE, SMALL)(*init_sac(0, DISCRETE, SMALL), np.stack([pack(charged)]), None)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


# ----- probe problems: tiny, each with a known answer

PROBE = SACConfig(hidden=(32, 32), learning_rate=3e-3, gamma=0.5, batch_size=64, target_rate=0.05, target_entropy=0.1)


def with_absorbing_cost(absorbing_cost: jax.Array, batch: Batch) -> Charge:
    return Charge(batch.cost, absorbing_cost)


def train(shapes: Shapes, config: SACConfig, batch_of: object, blocks: int, absorbing_cost: float = 0.0) -> SACState:
    block = compile_sac(shapes, config, with_absorbing_cost)
    state, key = init_sac(0, shapes, config)
    rng = np.random.default_rng(0)
    for _ in range(blocks):
        rows = np.stack([pack(batch_of(rng, config.batch_size)) for _ in range(50)])  # pyright: ignore[reportCallIssue]
        state, key, _ = block(state, key, rows, jnp.float32(absorbing_cost))
    return state


def one_action_episodes(terminated: float) -> object:
    """Two actions costing 1 and -1 in one state, which is also the successor."""

    def draw(rng: np.random.Generator, size: int) -> Batch:
        index = rng.integers(0, 2, size)
        observation = np.ones((size, 1), np.float32)
        return Batch(
            observation,
            np.eye(2, dtype=np.float32)[index],
            np.array([1.0, -1.0], np.float32)[index],
            observation,
            np.full(size, terminated, np.float32),
        )

    return draw


@pytest.mark.parametrize("absorbing_cost", [0.0, 3.0])
def test_probe_termination_pays_the_cost_and_the_absorbing_state(absorbing_cost: float) -> None:
    state = train(Shapes("discrete", 1, 2), PROBE, one_action_episodes(1.0), 20, absorbing_cost)
    values = nets.mlp(state.critics[0], jnp.ones((1, 1)))[0]
    np.testing.assert_allclose(values, np.array([1.0, -1.0]) + 0.5 * absorbing_cost / 0.5, atol=0.1)
    assert float(nets.log_policy(state.actor, jnp.ones((1, 1)))[0, 1]) > np.log(0.9), "the cheaper action"


def test_probe_truncation_bootstraps() -> None:
    """Never terminated: Q = c + γ V with V = -1 + γ V = -2 up to the entropy's small share."""
    state = train(Shapes("discrete", 1, 2), PROBE, one_action_episodes(0.0), 30)
    values = np.asarray(nets.mlp(state.critics[0], jnp.ones((1, 1)))[0])
    assert values[0] - values[1] == pytest.approx(2.0, abs=0.15)
    assert values[1] == pytest.approx(-2.0, abs=0.35)


def test_probe_continuous_actor_finds_the_cheapest_action() -> None:
    def draw(rng: np.random.Generator, size: int) -> Batch:
        observation = rng.uniform(-0.6, 0.6, (size, 1)).astype(np.float32)
        action = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
        cost = (3.0 * (action - observation) ** 2)[:, 0]
        return Batch(observation, action, cost, observation, np.ones(size, np.float32))

    config = SACConfig(hidden=(32, 32), learning_rate=3e-3, gamma=0.5, batch_size=64, target_entropy=-3.0)
    state = train(Shapes("continuous", 1, 1), config, draw, 20)
    observation = np.linspace(-0.5, 0.5, 5, dtype=np.float32)[:, None]
    np.testing.assert_allclose(nets.HostActor("continuous", state.actor).mode(observation), observation, atol=0.12)


@pytest.mark.parametrize(
    "field, value", [("gamma", 1.0), ("target_rate", 0.0), ("batch_size", 0), ("learning_rate", -1.0)]
)
def test_impossible_settings_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError):
        SACConfig(**{field: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
def test_arrays_have_the_shapes_that_annotations_say(shapes: Shapes) -> None:
    state, _ = checked(init_sac)(0, shapes, SMALL)
    batch, noise = random_batch(shapes), noise_for(shapes)
    update = partial(jax.eval_shape, partial(checked(sac_update), shapes=shapes, config=SMALL))
    update(state, batch, jnp.float32(0.0), noise)
    with pytest.raises(AssertionError, match=r"noise is float32\(1, 32"):
        update(state, batch, jnp.float32(0.0), noise[:1])
    with pytest.raises(AssertionError, match=r"batch.terminated is float32\(31,\)"):
        update(state, batch._replace(terminated=batch.terminated[1:]), jnp.float32(0.0), noise)


def test_noise_has_the_shape_asked_for() -> None:
    checked(draw_noise)(jax.random.key_data(jax.random.key(0)), (2, 3))
