"""The policy player with an ensemble of clones as its prior: each part against plain loops, then what it does."""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import games
from oal import demos
from oal.deep import nets, prior
from oal.deep.loop import OAL
from oal.deep.offpolicy import ReplayConfig
from oal.deep.players import Game, Shapes, recorded_cost
from oal.deep.prior import Ensemble, PriorConfig, PriorMDPO, init_prior, prior_update
from oal.deep.replay import Batch, Replay
from oal.envs import Step
from oal.errors import InputError

CONTINUOUS, DISCRETE = Shapes("continuous", 3, 2), Shapes("discrete", 3, 4)
BOTH = pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
CONFIG = PriorConfig(hidden=(8,), batch_size=16, prior_weight=0.3, prior_log_std=-1.0, kl_weight=0.2, gamma=0.9)


def members(shapes: Shapes, count: int = 3, seed: int = 0) -> list[nets.MLP]:
    keys = jax.random.split(jax.random.key(seed), count)
    return [nets.init_actor(key, *shapes, (8,)) for key in keys]


def outputs(member: nets.MLP, observation: np.ndarray) -> np.ndarray:
    """One network at one observation, written out."""
    first, last = member
    hidden = np.maximum(observation @ np.asarray(first.weight, np.float64) + np.asarray(first.bias), 0.0)
    return hidden @ np.asarray(last.weight, np.float64) + np.asarray(last.bias)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.sum(np.exp(logits)))


@BOTH
def test_columns_are_the_ensembles_mean_and_width(shapes: Shapes, rng: np.random.Generator) -> None:
    ensemble = Ensemble(shapes.kind, members(shapes), -1.0)
    observations = rng.normal(size=(5, 3)).astype(np.float32)
    columns = ensemble.columns(observations)
    for row, observation in zip(columns, observations, strict=True):
        each = np.stack([outputs(member, observation) for member in ensemble.members])
        if shapes.kind == "discrete":
            np.testing.assert_allclose(row, log_softmax(each.mean(axis=0)), atol=1e-5)
            continue
        means = each[:, :2]
        np.testing.assert_allclose(row[:2], means.mean(axis=0), atol=1e-5)
        spread = np.mean((means - means.mean(axis=0)) ** 2, axis=0)
        np.testing.assert_allclose(np.exp(2.0 * row[2:]), np.exp(-2.0) + (4 / 3) * spread, rtol=1e-4)


@BOTH
def test_the_policy_alone_is_one_network(shapes: Shapes, rng: np.random.Generator) -> None:
    """Members' mean plus the actor; the width is the actor's own."""
    ensemble, actor = Ensemble(shapes.kind, members(shapes), -1.0), members(shapes, 1, seed=9)[0]
    observations = rng.normal(size=(5, 3)).astype(np.float32)
    whole = np.asarray(nets.mlp(ensemble.plus(actor), observations))
    for row, observation in zip(whole, observations, strict=True):
        expected = outputs(actor, observation)
        size = 2 if shapes.kind == "continuous" else 4
        expected[:size] += np.mean([outputs(member, observation)[:size] for member in ensemble.members], axis=0)
        np.testing.assert_allclose(row, expected, atol=1e-5)


def batch_of(shapes: Shapes, rng: np.random.Generator, ensemble: Ensemble | None, size: int = 16) -> Batch:
    observation, successor = rng.normal(size=(2, size, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    if shapes.kind == "discrete":
        action = np.eye(4, dtype=np.float32)[rng.integers(0, 4, size)]
    both = [np.zeros((size, 0), np.float32)] * 2
    if ensemble is not None:
        both = [ensemble.columns(observation), ensemble.columns(successor)]
    terminated = (rng.random(size) < 0.3).astype(np.float32)
    return Batch(observation, action, rng.normal(size=size), successor, terminated, np.concatenate(both, axis=1))


@lru_cache
def compiled(shapes: Shapes, config: PriorConfig) -> Any:
    return jax.jit(partial(prior_update, shapes=shapes, config=config))


def slow_policy(
    shapes: Shapes, actor: Any, x: np.ndarray, columns: np.ndarray, noise: np.ndarray
) -> tuple[Any, Any, float]:
    """(the policy's parameters, its action, KL to the prior) at one state."""
    own = outputs(actor, x)
    if shapes.kind == "discrete":
        log_probs = log_softmax(own + (columns if columns.size else 0.0))
        probabilities = np.exp(log_probs)
        return log_probs, probabilities, float(np.sum(probabilities * (log_probs - (columns if columns.size else 0.0))))
    if not columns.size:
        u = own[:2] + np.exp(own[2:]) * noise
        density = -0.5 * noise**2 - own[2:] - 0.5 * np.log(2 * np.pi)
        return own, np.tanh(u), float(np.sum(density - np.log(1.0 - np.tanh(u) ** 2)))
    mean, log_std, wide = columns[:2] + own[:2], own[2:], columns[2:]
    gap, ratio = own[:2] * np.exp(-wide), log_std - wide
    divergence = 0.5 * np.sum(gap**2 + np.exp(2 * ratio) - 1 - 2 * ratio)
    return own, np.tanh(mean + np.exp(log_std) * noise), float(divergence)


def slow_q(shapes: Shapes, critics: Any, x: np.ndarray, action: np.ndarray) -> float:
    if shapes.kind == "continuous":
        return max(float(outputs(critic, np.concatenate([x, action]))[0]) for critic in critics)
    return float(np.sum(action * np.maximum(*(outputs(critic, x) for critic in critics))))


@pytest.mark.parametrize("with_prior", [True, False], ids=["clones", "uniform"])
@BOTH
def test_an_update_agrees_with_plain_loops(shapes: Shapes, with_prior: bool, rng: np.random.Generator) -> None:
    """Targets, losses and divergences of a state that has learned a little, step by step in NumPy."""
    config = replace(CONFIG, layer_norm=False)
    ensemble = Ensemble(shapes.kind, members(shapes), -1.0) if with_prior else None
    state, _ = init_prior(0, shapes, config)
    state = state._replace(mean=jnp.float32([0.1, -0.2, 0.3]), std=jnp.float32([1.5, 0.5, 1.0]), updates=jnp.int32(3))
    state = state._replace(old_actor=init_prior(7, shapes, config)[0].actor)
    rows = batch_of(shapes, rng, ensemble)
    noise = rng.normal(size=(2, 16, 2 if shapes.kind == "continuous" else 0)).astype(np.float32)
    after, metrics = compiled(shapes, config)(state, rows, jnp.float32(0.4), noise)

    mean, std = np.asarray(state.mean), np.asarray(state.std)
    half = rows.extra.shape[1] // 2
    targets, errors = [], []
    for b in range(16):
        x, y = (rows.observation[b] - mean) / std, (rows.next_observation[b] - mean) / std
        _, action, divergence = slow_policy(shapes, state.actor, y, rows.extra[b, half:], noise[0, b])
        value = slow_q(shapes, state.target_critics, y, action) + 0.3 * divergence
        value = 0.4 / (1 - 0.9) if rows.terminated[b] else value
        targets.append(rows.cost[b] + 0.9 * value)
        each = (
            [slow_q(shapes, [critic], x, rows.action[b]) for critic in state.critics]
            if shapes.kind == "continuous"
            else [float(np.sum(rows.action[b] * outputs(critic, x))) for critic in state.critics]
        )
        errors.append([(q - targets[-1]) ** 2 for q in each])
    assert float(metrics["target_mean"]) == pytest.approx(np.mean(targets), rel=1e-4, abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors, axis=0).sum(), rel=1e-3)

    losses, from_prior, from_old = [], [], []
    for b in range(16):
        x, columns = (rows.observation[b] - mean) / std, rows.extra[b, :half]
        own, action, divergence = slow_policy(shapes, state.actor, x, columns, noise[1, b])
        old, _, _ = slow_policy(shapes, state.old_actor, x, columns, noise[1, b])
        if shapes.kind == "discrete":
            moved = float(np.sum(np.exp(own) * (own - old)))
        else:
            gap, ratio = (own[:2] - old[:2]) * np.exp(-old[2:]), own[2:] - old[2:]
            moved = float(0.5 * np.sum(gap**2 + np.exp(2 * ratio) - 1 - 2 * ratio))
        losses.append(0.3 * divergence + 0.2 * moved + slow_q(shapes, after.critics, x, action))
        from_prior.append(divergence)
        from_old.append(moved)
    assert float(metrics["actor_loss"]) == pytest.approx(np.mean(losses), rel=2e-3, abs=1e-4)
    assert float(metrics["prior_divergence"]) == pytest.approx(np.mean(from_prior), rel=2e-3)
    assert float(metrics["divergence"]) == pytest.approx(np.mean(from_old), rel=2e-3)
    for new, old, average in zip(*map(jax.tree.leaves, (after.actor, state.average, after.average)), strict=True):
        np.testing.assert_allclose(average, 0.998 * old + 0.002 * new, atol=1e-6)
    for new, old, slow in zip(
        *map(jax.tree.leaves, (after.critics, state.target_critics, after.target_critics)), strict=True
    ):
        np.testing.assert_allclose(slow, 0.995 * old + 0.005 * new, atol=1e-6)


def player(shapes: Shapes, config: PriorConfig = CONFIG, capacity: int = 40, experts: int = 0) -> PriorMDPO:
    memory = Replay(capacity, 3, shapes.action_size)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(experts, memory.rows.shape[1])).astype(np.float32)
    made = PriorMDPO(
        config, ReplayConfig(capacity=capacity, warmup_steps=8, block=4, expert_fraction=0.25 if experts else 0.0)
    )
    mean, std = np.float32([0.5, 0.0, -0.5]), np.float32([2.0, 1.0, 0.5])
    made.begin(Game(shapes, 0, 3, memory, recorded_cost, rows, mean, std))
    return made


@BOTH
def test_the_first_policy_is_the_ensembles_mean(shapes: Shapes, rng: np.random.Generator) -> None:
    made, clones = player(shapes), members(shapes)
    made.adopt(clones)
    observations = rng.normal(size=(6, 3)).astype(np.float32)
    mean = np.mean([[outputs(member, x) for x in observations] for member in clones], axis=0)
    if shapes.kind == "continuous":
        np.testing.assert_allclose(made.actor.mode(observations), np.tanh(mean[:, :2]), atol=1e-5)
        np.testing.assert_allclose(made.actor.outputs(observations)[:, 2:], -1.0, atol=1e-5)
    else:
        np.testing.assert_array_equal(made.actor.mode(observations).argmax(axis=1), mean.argmax(axis=1))
    drawn = [made.act(observations, np.random.default_rng(seed)) for seed in range(2_000)]
    same = [made.actor.sample(observations, np.random.default_rng(10_000 + seed)) for seed in range(2_000)]
    np.testing.assert_allclose(
        np.mean(drawn, axis=0), np.mean(same, axis=0), atol=0.06, err_msg="it acts as it is saved"
    )


@BOTH
def test_columns_stay_beside_their_steps(shapes: Shapes, rng: np.random.Generator) -> None:
    """Also where the memory has wrapped around, and where a vector environment only reset itself."""
    made = player(shapes, experts=5)
    made.adopt(members(shapes))
    for _ in range(20):
        observation, successor = rng.normal(size=(2, 3, 3)).astype(np.float32)
        valid = rng.random(3) < 0.8
        action = made.act(observation, rng)
        nothing = np.zeros(3, bool)
        made.observe(Step(observation, action, np.zeros(3, np.float32), successor, nothing, nothing, valid))
        kept = (observation[valid], action[valid], np.zeros(valid.sum()), successor[valid], nothing[valid])
        made.memory.add(*kept)
    assert len(made.memory) == made.memory.capacity
    rows = made._rows()
    assert rows.shape[:2] == (4, 16)
    cut = made.memory.unpack(rows.reshape(-1, rows.shape[-1]))
    expected = np.concatenate(
        [made.ensemble.columns(cut.observation), made.ensemble.columns(cut.next_observation)], axis=1
    )
    np.testing.assert_allclose(cut.extra, expected, atol=1e-5)


@pytest.mark.parametrize("weight, near", [(100.0, True), (0.0, False)])
def test_the_weight_holds_the_policy_at_its_prior(weight: float, near: bool, rng: np.random.Generator) -> None:
    """One state, and a cost that wants another action than the clones': 400 updates."""
    config = replace(CONFIG, prior_weight=weight, learning_rate=3e-3, actor_average=0.0)
    ensemble = Ensemble("continuous", members(CONTINUOUS), -1.0)
    state, _ = init_prior(0, CONTINUOUS, config)
    state = state._replace(actor=prior.started_at_prior(state.actor, CONTINUOUS, -1.0))
    x = np.ones((16, 3), np.float32)
    columns = ensemble.columns(x)
    goal = -np.sign(columns[0, :2])
    for _ in range(400):
        action = rng.uniform(-1, 1, (16, 2)).astype(np.float32)
        cost = 3.0 * np.sum((action - goal) ** 2, axis=1)
        rows = Batch(x, action, cost, x, np.ones(16, np.float32), np.concatenate([columns, columns], axis=1))
        state, _ = compiled(CONTINUOUS, config)(
            state, rows, jnp.float32(0.0), rng.normal(size=(2, 16, 2)).astype(np.float32)
        )
    moved = np.abs(np.asarray(nets.gaussian(state.actor, x[:1]).mean)).max()
    assert (moved < 0.05) == near
    assert near or moved > 0.3


def test_a_learner_goes_on_bit_for_bit_with_its_prior(tmp_path) -> None:
    settings = {
        "policy.hidden": [8],
        "policy.batch_size": 8,
        "replay.block": 10,
        "replay.warmup_steps": 20,
        "replay.capacity": 50,
        "cost.hidden": [8],
        "cost.update_every": 20,
        "cost.minibatches": 2,
        "cost.batch_size": 8,
        "bc.updates": 20,
        "bc.members": 3,
    }
    shown = demos.load("CartPole-v1")[:2]
    whole = OAL("CartPole-v1", shown, "mdpo-prior", settings=settings, seed=1).learn(120)
    stopped = OAL("CartPole-v1", shown, "mdpo-prior", settings=settings, seed=1).learn(70)
    stopped.save(tmp_path / "checkpoint")
    resumed = OAL.load(tmp_path / "checkpoint").learn(120)
    assert len(resumed.player.ensemble.members) == 3
    assert games.leaves_equal(whole.player.state, resumed.player.state)
    assert games.leaves_equal(whole.player._columns, resumed.player._columns)
    assert whole.numbers() == resumed.numbers()
    shapes, memory = Shapes("discrete", 4, 2), Replay(10, 4, 2)
    broken = PriorMDPO(whole.player.config, replace(whole.player.replay, expert_fraction=0.0))
    broken.begin(Game(shapes, 0, 1, memory, recorded_cost, memory.rows[:0], *games.unit(shapes)))
    with pytest.raises(InputError, match="prior has columns"):
        broken.restore(*whole.player.snapshot())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prior_weight": -0.1}, "prior_weight is -0.1"),
        ({"kl_weight": -1.0}, "kl_weight is -1.0"),
        ({"policy_steps": 0}, "policy_steps is 0"),
        ({"prior_log_std": 3.0}, "prior_log_std is 3.0"),
        ({"actor_average": 1.0}, "actor_average is 1.0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PriorConfig(**settings)
