"""Mirror descent towards an ensemble of clones: each part against plain loops, then what the players do with it."""

import itertools
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
from oal.deep.mdpo import MDPOConfig, init_mdpo, mdpo_update
from oal.deep.mirror import Mirror, MirrorConfig, init_mirror, mirror_update
from oal.deep.offpolicy import ReplayConfig, WithPrior, compile_block
from oal.deep.players import Charge, Game, Shapes, recorded_cost
from oal.deep.prior import Ensemble
from oal.deep.replay import Batch, Replay
from oal.deep.sac import SAC, SACConfig, init_sac, sac_update
from oal.envs import Step
from oal.errors import InputError
from prior_reference import (
    CONTINUOUS,
    DISCRETE,
    batch_of,
    divergence_between,
    log_softmax,
    members,
    outputs,
    policy_at,
    worst_cost,
)
from shapes import checked

BOTH = pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
CONFIG = MirrorConfig(hidden=(8,), batch_size=16, prior_weight=0.3, prior_updates=8, kl_weight=0.2, gamma=0.9)
OPTIMISTIC = replace(CONFIG, critics=3, optimism=0.75)
SAC_CONFIG = SACConfig(hidden=(8,), batch_size=16)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@BOTH
def test_columns_are_the_ensembles_mean_and_width(
    shapes: Shapes, activation: nets.Activation, rng: np.random.Generator
) -> None:
    """Discrete: the mean of the members' logits, and the mean of their probabilities with 5 % of the uniform one."""
    ensemble = Ensemble(shapes.kind, members(shapes), activation=activation)
    observations = rng.normal(size=(5, 3)).astype(np.float32)
    columns = ensemble.columns(observations)
    assert columns.dtype == np.float32
    assert columns.shape == (5, 2 * shapes.action_size)
    for row, observation in zip(columns, observations, strict=True):
        each = np.stack([outputs(member, observation, activation=activation) for member in ensemble.members])
        if shapes.kind == "discrete":
            np.testing.assert_allclose(row[:4], each.mean(axis=0), atol=1e-5)
            probabilities = np.mean([np.exp(log_softmax(logits)) for logits in each], axis=0)
            np.testing.assert_allclose(np.exp(row[4:]), 0.95 * probabilities + 0.05 / 4, atol=1e-5)
            assert np.exp(row[4:]).sum() == pytest.approx(1.0, abs=1e-5)
            continue
        means = each[:, :2]
        np.testing.assert_allclose(row[:2], means.mean(axis=0), atol=1e-5)
        spread = np.mean((means - means.mean(axis=0)) ** 2, axis=0)
        own = np.mean(np.exp(2.0 * each[:, 2:]), axis=0)
        np.testing.assert_allclose(np.exp(2.0 * row[2:]), own + (4 / 3) * spread, rtol=1e-4)


def test_a_prior_of_clones_that_are_sure_rules_no_action_out() -> None:
    """Logits of thousands: all but one action have the uniform share, and nothing is infinite."""
    sure = [nets.Layer(1e4 * layer.weight, 1e4 * layer.bias) for layer in members(DISCRETE, 1)[0]]
    columns = Ensemble("discrete", [tuple(sure)] * 2).columns(np.ones((1, 3), np.float32))
    assert np.isfinite(columns).all()
    np.testing.assert_allclose(np.sort(np.exp(columns[0, 4:])), [0.0125, 0.0125, 0.0125, 0.9625], rtol=1e-4)


@BOTH
def test_the_policy_alone_is_one_network(shapes: Shapes, rng: np.random.Generator) -> None:
    """Members' mean plus the actor; the width is the actor's own."""
    ensemble, actor = Ensemble(shapes.kind, members(shapes)), members(shapes, 1, seed=9)[0]
    observations = rng.normal(size=(5, 3)).astype(np.float32)
    whole = np.asarray(nets.mlp(ensemble.plus(actor), observations))
    for row, observation in zip(whole, observations, strict=True):
        expected = outputs(actor, observation)
        size = 2 if shapes.kind == "continuous" else 4
        expected[:size] += np.mean([outputs(member, observation)[:size] for member in ensemble.members], axis=0)
        np.testing.assert_allclose(row, expected, atol=1e-5)


@lru_cache
def compiled(shapes: Shapes, config: MirrorConfig) -> Any:
    return jax.jit(partial(mirror_update, shapes=shapes, config=config))


@pytest.mark.parametrize("config", [CONFIG, OPTIMISTIC], ids=["pessimistic", "optimistic"])
@pytest.mark.parametrize("experts", [0, 8], ids=["alone", "shown"])
@pytest.mark.parametrize("with_prior", [True, False], ids=["clones", "uniform"])
@BOTH
def test_an_update_agrees_with_plain_loops(
    shapes: Shapes, with_prior: bool, experts: int, config: MirrorConfig, rng: np.random.Generator
) -> None:
    """Targets, losses and divergences of a state that has learned a little, step by step in NumPy."""
    ensemble = Ensemble(shapes.kind, members(shapes)) if with_prior else None
    believed, feared = (-0.5, 1.0) if config is OPTIMISTIC else (None, None)
    state, _ = init_mirror(0, shapes, config)
    first, second, old = (init_mirror(seed, shapes, config)[0] for seed in (3, 5, 7))
    scaled = partial(jax.tree.map, lambda leaf: 200.0 * leaf)  # critics start near 0
    critics, targets_ = (
        tuple((*critic[:-1], scaled(critic[-1])) for critic in each.critics) for each in (first, second)
    )
    state = state._replace(updates=jnp.int32(3), old_actor=old.actor, critics=critics, target_critics=targets_)
    rows = batch_of(shapes, rng, ensemble, experts=experts)
    noise = rng.normal(size=(2, 16, 2 if shapes.kind == "continuous" else 0)).astype(np.float32)
    after, metrics = compiled(shapes, config)(state, rows, jnp.float32(0.4), noise)

    half = 2 * shapes.action_size if with_prior else 0
    alpha = 0.3 * (1 + 8 / 4) if with_prior else 0.3  # the fourth update
    successors = [
        policy_at(shapes, state.actor, rows.next_observation[b], rows.extra[b, half : 2 * half], noise[0, b])
        for b in range(16)
    ]
    usual = sum(divergence for _, _, divergence in successors) / 16  # what the absorbing state is charged too
    targets, errors, held = [], [], 0
    for b in range(16):
        x, y = rows.observation[b], rows.next_observation[b]
        _, action, divergence = successors[b]
        value = worst_cost(shapes, state.target_critics, y, action, layer_norm=True, spreads=feared)
        value += alpha * (divergence - usual)
        if b >= 16 - experts:  # leaving the expert's path is not thought better than staying on it
            stays = worst_cost(shapes, state.target_critics, y, rows.following[b - 16], layer_norm=True, spreads=feared)
            held += stays > value
            value = max(value, stays)
        value = 0.4 / (1 - 0.9) if rows.terminated[b] else value
        targets.append(rows.cost[b] + 0.9 * value)
        each = [worst_cost(shapes, [critic], x, rows.action[b], layer_norm=True) for critic in state.critics]
        errors.append([(q - targets[-1]) ** 2 for q in each])
    assert (experts == 0) == (held == 0)
    assert held in range(experts) or experts == 0, "on some the policy's own is the larger one"
    assert float(metrics["target_mean"]) == pytest.approx(np.mean(targets), rel=1e-4, abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors, axis=0).sum(), rel=1e-3)

    losses, from_prior, from_old = [], [], []
    for b in range(16):
        x, columns = rows.observation[b], rows.extra[b, :half]
        new, action, divergence = policy_at(shapes, state.actor, x, columns, noise[1, b])
        before, _, _ = policy_at(shapes, state.old_actor, x, columns, noise[1, b])
        moved = divergence_between(shapes, new, before)
        value = worst_cost(shapes, after.critics, x, action, layer_norm=True, spreads=believed)
        losses.append(alpha * divergence + 0.2 * moved + value)
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
        np.testing.assert_allclose(slow, 0.995 * old + 0.005 * new, atol=2e-6)


def player(
    shapes: Shapes,
    config: Any = CONFIG,
    capacity: int = 40,
    experts: int = 0,
    shown: np.ndarray | None = None,
    n_steps: int = 1,
) -> WithPrior:
    memory = Replay(capacity, 3, shapes.action_size)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(experts, memory.rows.shape[1])).astype(np.float32) if shown is None else shown
    fraction = 0.25 if len(rows) else 0.0
    replay = ReplayConfig(capacity=capacity, warmup_steps=8, block=4, expert_fraction=fraction, n_steps=n_steps)
    made = (SAC if isinstance(config, SACConfig) else Mirror)(config, replay)
    made.begin(Game(shapes, 0, 3, memory, recorded_cost, rows))
    return made


@pytest.mark.parametrize("config", [CONFIG, SAC_CONFIG], ids=["mirror", "sac"])
@BOTH
def test_the_first_policy_is_the_ensembles_mean(shapes: Shapes, config: Any, rng: np.random.Generator) -> None:
    made, clones = player(shapes, config), members(shapes)
    made.adopt(clones)
    assert not made.ready, "clones act during the warm-up"
    observations = rng.normal(size=(6, 3)).astype(np.float32)
    mean = np.mean([[outputs(member, x) for x in observations] for member in clones], axis=0)
    if shapes.kind == "continuous":
        np.testing.assert_allclose(made.actor.mode(observations), np.tanh(mean[:, :2]), atol=1e-5)
        np.testing.assert_allclose(made.actor.outputs(observations)[:, 2:], -1.0, atol=1e-5)
    else:
        np.testing.assert_allclose(made.actor.outputs(observations), mean, atol=1e-5)
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
    rows, following, _ = made._rows()
    assert rows.shape[:2] == (6, 16), "a block of 4 steps is two of each of three environments"
    cut = made.memory.unpack(rows.reshape(-1, rows.shape[-1]))
    expected = np.concatenate(
        [made.ensemble.columns(cut.observation), made.ensemble.columns(cut.next_observation)], axis=1
    )
    np.testing.assert_allclose(cut.extra, expected, atol=1e-5)
    assert following is not None
    assert following.shape == (6, 4, shapes.action_size)
    assert np.isnan(following).all(), "no two of these rows follow each other"
    # a full ring goes on in a larger one, oldest first
    assert made.memory.position != 0
    larger = player(shapes, capacity=50, experts=5)
    larger.restore(*made.snapshot())
    larger.memory.restore(*made.memory.state())
    kept = larger.memory.unpack(larger.memory.rows[:40])
    columns = [larger.ensemble.columns(seen) for seen in (kept.observation, kept.next_observation)]
    np.testing.assert_allclose(larger._columns[:40], np.concatenate(columns, axis=1), atol=1e-5)


def test_what_the_expert_did_next_is_known_within_an_episode(rng: np.random.Generator) -> None:
    """Three episodes of 4, 1 and 3 steps; the first truly ends, and the third begins where it ended."""
    states, action = rng.normal(size=(11, 3)).astype(np.float32), rng.normal(size=(8, 2)).astype(np.float32)
    states[7] = states[4]
    path = [0, 1, 2, 3, 5, 7, 8, 9]
    end = [1, 2, 3, 4, 6, 8, 9, 10]
    experts = Batch(states[path], action, np.zeros(8), states[end], np.array([0, 0, 0, 1, 0, 0, 0, 0], np.float32))
    following = prior.expert_next(experts)
    for row, then in enumerate([1, 2, 3, None, None, 6, 7, None]):
        if then is None:
            assert np.isnan(following[row]).all()
        else:
            np.testing.assert_array_equal(following[row], action[then])
    jumbled = [0, 1, 2, 3, 5, 4, 6, 7]  # the third episode's first step right after the end it begins at
    assert np.isnan(prior.expert_next(Batch(*(np.asarray(part)[jumbled] for part in experts[:5])))[3]).all()
    assert prior.expert_next(Batch(*(np.asarray(part)[:0] for part in experts[:5]))).shape == (0, 2)


@BOTH
def test_the_experts_next_actions_are_drawn_with_their_rows(shapes: Shapes, rng: np.random.Generator) -> None:
    """The last rows of every batch are demonstrated steps, each with what the expert did after it."""
    path = rng.normal(size=(7, 3)).astype(np.float32)
    action = batch_of(shapes, rng, None, size=6).action
    demonstrated = Replay(6, 3, shapes.action_size)
    demonstrated.add(path[:-1], action, np.zeros(6), path[1:], np.zeros(6))
    made = player(shapes, shown=demonstrated.rows)
    made.memory.add(*batch_of(shapes, rng, None, size=9)[:5])
    rows, following, _ = made._rows()
    assert following is not None
    drawn = made.memory.unpack(rows[:, -4:]).observation.reshape(-1, 3)
    for state, then in zip(drawn, following.reshape(-1, shapes.action_size), strict=True):
        (place,) = np.flatnonzero((path == state).all(axis=1))
        np.testing.assert_array_equal(then, action[place + 1] if place < 5 else np.full_like(then, np.nan))
    assert np.isfinite(following).any()


@BOTH
def test_targets_of_several_steps_follow_the_rows_own_episodes(shapes: Shapes, rng: np.random.Generator) -> None:
    """Learner's and expert's rows: three steps on, less where an episode or the memory is over; against a search."""
    path = rng.normal(size=(7, 3)).astype(np.float32)
    demonstrated = Replay(6, 3, shapes.action_size)
    demonstrated.add(path[:-1], batch_of(shapes, rng, None, size=6).action, rng.normal(size=6), path[1:], np.zeros(6))
    made = player(shapes, shown=demonstrated.rows, n_steps=3)
    made.adopt(members(shapes))
    state, time = rng.normal(size=(2, 3)).astype(np.float32), np.zeros(2, int)
    for _ in range(30):  # two environments, 60 steps in a memory of 40
        action, successor = made.act(state, rng), rng.normal(size=(2, 3)).astype(np.float32)
        ended, cut, there = rng.random(2) < 0.2, rng.random(2) < 0.1, np.ones(2, bool)
        step = Step(state, action, rng.normal(size=2), successor, ended, cut, there)
        made.observe(step)
        made.memory.add(*step[:5], time=time, source=np.arange(2))
        over = ended | cut
        state, time = np.where(over[:, None], rng.normal(size=(2, 3)), successor).astype(np.float32), time + 1
        time[over] = 0
    rows, following, steps = made._rows()
    assert steps is not None
    own = made.memory.own
    assert steps.steps.shape == (6, 16, 3, own)
    lengths = set()
    for each, beside, there, discount in zip(
        rows.reshape(96, -1),
        steps.steps.reshape(96, 3, -1),
        steps.there.reshape(96, 3),
        steps.discount.ravel(),
        strict=True,
    ):
        table = demonstrated.rows if (demonstrated.rows[:, :3] == each[:3]).all(axis=1).any() else made.memory.rows
        (here,) = np.flatnonzero((table[:, :3] == each[:3]).all(axis=1))
        walked = [here]
        while len(walked) < 3 and table[walked[-1], -1] == 0.0:
            then = np.flatnonzero((table[:, :3] == made.memory.unpack(table[walked[-1]]).next_observation).all(axis=1))
            if len(then) == 0:
                break
            walked.append(then[0])
        count = len(walked)
        lengths.add(count)
        np.testing.assert_array_equal(beside[:count], table[walked, :own])
        assert there.tolist() == [j < count for j in range(3)]
        assert discount == pytest.approx(0.9**count, rel=1e-6)
        one, last = made.memory.unpack(each), made.memory.unpack(table[walked[-1]])
        np.testing.assert_array_equal(one.observation, table[here, :3])
        np.testing.assert_array_equal(one.next_observation, last.next_observation)
        assert one.terminated == last.terminated
        columns = [made.ensemble.columns(x[None])[0] for x in (one.observation, last.next_observation)]
        np.testing.assert_allclose(one.extra, np.concatenate(columns), atol=1e-5)
    assert lengths == {1, 2, 3}
    assert following is not None
    ends = made.memory.unpack(rows[:, -4:]).next_observation.reshape(-1, 3)
    shown = demonstrated.unpack(demonstrated.rows).action
    for end, then in zip(ends, following.reshape(24, -1), strict=True):
        (place,) = np.flatnonzero((path == end).all(axis=1))
        np.testing.assert_array_equal(then, shown[place] if place < 6 else np.full_like(then, np.nan))


@pytest.mark.parametrize(
    ("n_steps", "newest"), [(1, 0.25), (5, 0.5)], ids=["one step: all alike", "several: newer ones"]
)
def test_batches_for_targets_of_several_steps_prefer_newer_ones(n_steps: int, newest: float) -> None:
    """Half of them are of the newest quarter of the memory, wherever the ring begins."""
    made = player(CONTINUOUS, capacity=40, n_steps=n_steps)
    for number in range(100):
        parts = np.full((1, 3), number), np.zeros((1, 2)), np.zeros(1), np.zeros((1, 3)), np.zeros(1)
        made.memory.add(*parts, np.array([number]), np.array([0]))
    drawn = np.concatenate([made._rows()[0][..., 0].ravel() for _ in range(200)])
    assert drawn.min() >= 60, "only what is there"
    assert np.mean(drawn >= 90) == pytest.approx(newest, abs=0.03)


def test_every_step_of_a_target_is_charged_as_it_was(rng: np.random.Generator) -> None:
    """By what came after each step itself, though the row itself ends where the last of them does."""
    made = player(CONTINUOUS, n_steps=3)
    states = rng.normal(size=(21, 1, 3)).astype(np.float32)
    for time, (state, successor) in enumerate(itertools.pairwise(states)):
        ended = np.array([time == 19])
        made.memory.add(state, np.zeros((1, 2)), np.zeros(1), successor, ended, np.array([time]), np.array([0]))

    def charge(params: Any, batch: Batch) -> Charge:
        cost = params * batch.next_observation[:, 0] + batch.observation[:, 1] + 5.0 * batch.terminated
        return Charge(cost, jnp.float32(0.25))

    def seen(state: Any, batch: Batch, absorbing: Any, noise: Any, *, shapes: Shapes, config: Any) -> tuple[Any, Any]:
        return state, {"cost": batch.cost, "discount": batch.discount, "end": batch.next_observation[:, 2] + absorbing}

    rows, following, path = made._rows()
    key = jax.random.key_data(jax.random.key(0))
    block = compile_block(seen, CONTINUOUS, CONFIG, draws=2, charge=charge)
    _, _, shown = block(jnp.zeros(1), key, rows, jnp.float32(2.0), following, path)
    expected = []
    for row in rows.reshape(-1, rows.shape[-1]):
        (here,) = np.flatnonzero((states[:, 0] == row[:3]).all(axis=1))
        count = min(3, 20 - here)
        paid = [2.0 * states[here + j + 1, 0, 0] + states[here + j, 0, 1] for j in range(count)]
        paid[-1] += 5.0 * (here + count == 20)
        cost = sum(0.9**j * each for j, each in enumerate(paid))
        expected.append((cost, 0.9**count, states[here + count, 0, 2] + 0.25))
    for name, values in zip(("cost", "discount", "end"), np.transpose(expected), strict=True):
        assert float(shown[name]) == pytest.approx(values.mean(), rel=1e-4), name


def test_the_loops_memory_knows_what_came_next() -> None:
    """In a learner's run with two environments: a linked step begins where the one before it ended."""
    shown = demos.load("CartPole-v1")[:2]
    settings = {"environments": 2, "replay.warmup_steps": 20, "policy.hidden": (8,), "bc": None}
    memory = OAL("CartPole-v1", shown, settings=settings, seed=0).learn(300).memory
    linked = np.flatnonzero(memory.hops)
    batch = memory.unpack(memory.rows[: len(memory)])
    then = batch.observation[(linked + memory.hops[linked]) % memory.capacity]
    np.testing.assert_array_equal(then, batch.next_observation[linked])
    assert not batch.terminated[linked].any()
    begun = int((memory.times[: len(memory)] == 0).sum())
    assert begun > 4, "episodes ended"
    assert len(memory) - len(linked) == begun, "every episode has one step that is its last"


@pytest.mark.parametrize(
    "update, init, config",
    [
        (mirror_update, init_mirror, CONFIG),
        (sac_update, init_sac, SAC_CONFIG),
        (mdpo_update, init_mdpo, MDPOConfig(hidden=(8,), batch_size=16)),
    ],
    ids=["mirror", "sac", "mdpo"],
)
def test_what_a_state_some_steps_later_counts_for(
    update: Any, init: Any, config: Any, rng: np.random.Generator
) -> None:
    """A discount of its own does what another γ would do, where nothing is paid after the end."""
    state, _ = init(0, CONTINUOUS, config)
    rows, noise = batch_of(CONTINUOUS, rng, None), jnp.asarray(rng.normal(size=(2, 16, 2)), jnp.float32)
    noise = noise[: 1 if config.__class__ is MDPOConfig else 2]
    plain = partial(update, shapes=CONTINUOUS)
    discounted = rows._replace(discount=jnp.full(16, 0.5))
    one = plain(state, discounted, jnp.float32(0.0), noise, config=config)[0]
    same = plain(state, rows, jnp.float32(0.0), noise, config=replace(config, gamma=0.5))[0]
    other = plain(state, rows, jnp.float32(0.0), noise, config=config)[0]
    assert games.leaves_equal(one, same)
    assert not games.leaves_equal(one, other)


@pytest.mark.parametrize("weight, near", [(100.0, True), (0.0, False)])
def test_the_weight_holds_the_policy_at_its_prior(weight: float, near: bool, rng: np.random.Generator) -> None:
    """One state, and a cost that wants another action than the clones': 400 updates."""
    config = replace(CONFIG, prior_weight=weight, learning_rate=3e-3, actor_average=0.0)
    ensemble = Ensemble("continuous", members(CONTINUOUS))
    state, _ = init_mirror(0, CONTINUOUS, config)
    state = state._replace(actor=prior.started_at_prior(state.actor, members(CONTINUOUS, 1)[0], CONTINUOUS))
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


def test_what_acts_is_the_average_of_the_actors_weights() -> None:
    made, rng = player(CONTINUOUS), np.random.default_rng(0)
    made.memory.add(*batch_of(CONTINUOUS, rng, None)[:5])
    made.work_ahead(None)
    made.settle()
    assert games.leaves_equal(made.actor.layers, made.state.average)
    assert not games.leaves_equal(made.actor.layers, made.state.actor)


SMALL = {"cost.hidden": [8], "cost.update_every": 20, "cost.minibatches": 2, "cost.batch_size": 8}
SMALL |= {"policy.hidden": [8], "bc.updates": 20, "bc.members": 3}
SMALL_OFF = {"policy.batch_size": 8, "replay.block": 10, "replay.warmup_steps": 20, "replay.capacity": 50}
SMALL_ON = {"policy.batch_steps": 30, "policy.critic_epochs": 2, "policy.critic_minibatch": 10}


@pytest.mark.parametrize("policy", ["mdpo", "sac", "mdpo-on", "trpo"])
def test_a_learner_goes_on_bit_for_bit_with_its_prior(policy: str, tmp_path) -> None:
    settings = SMALL | (SMALL_OFF if policy in ("mdpo", "sac") else SMALL_ON)
    shown = demos.load("CartPole-v1")[:2]
    whole = OAL("CartPole-v1", shown, policy, settings=settings, seed=1).learn(120)
    stopped = OAL("CartPole-v1", shown, policy, settings=settings, seed=1).learn(60)
    stopped.save(tmp_path / "checkpoint")
    resumed = OAL.load(tmp_path / "checkpoint").learn(120)
    assert len(resumed.player.ensemble.members) == 3
    assert games.leaves_equal(whole.player.ensemble.members, resumed.player.ensemble.members)
    assert games.leaves_equal(whole.player.state, resumed.player.state)
    assert games.leaves_equal(whole.player.actor.layers, resumed.player.actor.layers)
    assert games.leaves_equal(whole.cost, resumed.cost)
    assert whole.numbers() == resumed.numbers()
    if policy in ("mdpo", "sac"):
        assert games.leaves_equal(whole.player._columns, resumed.player._columns)


@pytest.mark.parametrize("config", [CONFIG, SAC_CONFIG], ids=["mirror", "sac"])
def test_a_snapshots_prior_that_does_not_fit_is_refused(config: Any, rng: np.random.Generator) -> None:
    made = player(CONTINUOUS, config)
    made.adopt(members(CONTINUOUS))
    made.memory.add(*batch_of(CONTINUOUS, rng, None)[:5])
    arrays, info = made.snapshot()
    with pytest.raises(InputError, match="prior has columns"):
        player(CONTINUOUS, config, capacity=8).restore(arrays, info)
    for columns in (np.zeros((16, 3), np.float32), np.zeros(16, np.float32)):
        with pytest.raises(InputError, match="prior has columns"):
            player(CONTINUOUS, config).restore({**arrays, "prior/columns": columns}, info)
    for lost, message in (("prior/columns", "prior has columns"), ("prior/1/0/weight", "lacks")):
        with pytest.raises(InputError, match=message):
            player(CONTINUOUS, config).restore({name: arrays[name] for name in arrays if name != lost}, info)


@BOTH
def test_arrays_have_the_shapes_that_annotations_say(shapes: Shapes, rng: np.random.Generator) -> None:
    ensemble = Ensemble(shapes.kind, members(shapes))
    batch = jax.tree.map(jnp.asarray, batch_of(shapes, rng, ensemble))
    noise = jnp.zeros((2, 16, 2 if shapes.kind == "continuous" else 0))
    state, _ = checked(init_mirror)(0, shapes, CONFIG)
    columns = batch.extra[:, : batch.extra.shape[1] // 2]
    checked(prior.chosen)(state.actor, state.old_actor, batch.observation, columns, noise[0], kind=shapes.kind)
    jax.eval_shape(partial(checked(mirror_update), shapes=shapes, config=CONFIG), state, batch, jnp.float32(0.0), noise)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prior_weight": -0.1}, "prior_weight is -0.1"),
        ({"prior_updates": -1}, "prior_updates is -1"),
        ({"kl_weight": -1.0}, "kl_weight is -1.0"),
        ({"policy_steps": 0}, "policy_steps is 0"),
        ({"actor_average": 1.0}, "actor_average is 1.0"),
        ({"critics": 1}, "critics is 1"),
        ({"optimism": 1.5}, r"optimism is 1.5: it must lie in \[0, 1\]"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MirrorConfig(**settings)
