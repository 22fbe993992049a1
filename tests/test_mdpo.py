"""Off-policy mirror descent: the update against a NumPy reference, mirror descent's closed forms, and the player."""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import games
import golden_traces
import oal
from oal.deep import nets
from oal.deep.mdpo import MDPO, MDPOConfig, MDPONetworks, MDPOState, init_mdpo, mdpo_update, policy_terms
from oal.deep.mirror import Mirror, MirrorConfig
from oal.deep.nets import Layer
from oal.deep.offpolicy import OffPolicy, ReplayConfig, compile_block, draw_noise
from oal.deep.players import Charge, Game, Shapes, recorded_cost
from oal.deep.presets import preset
from oal.deep.replay import Batch, Path, Replay, walk
from oal.deep.sac import SAC, SACConfig
from oal.errors import InputError
from shapes import check_shapes, checked

CONTINUOUS = Shapes("continuous", 3, 2)
DISCRETE = Shapes("discrete", 3, 4)
# few programs are compiled and shared by the tests: compiling takes most of the time here
PAPER = MDPOConfig(hidden=(8,), batch_size=16, policy_steps=3)
SOFT = MDPOConfig(
    hidden=(8,),
    batch_size=16,
    gamma=0.9,
    policy_steps=3,
    entropy_weight=0.3,
    kl_weight=0.2,
    frozen_critic=False,
    layer_norm=True,
)
NOTHING = jnp.float32(0.0)
KINDS = pytest.mark.parametrize("shapes", [CONTINUOUS, DISCRETE], ids=lambda shapes: shapes.kind)
CONFIGS = pytest.mark.parametrize("config", [PAPER, SOFT], ids=["paper", "soft"])
ABSORBING_COST = 0.7


def random_batch(shapes: Shapes, size: int = 16, seed: int = 0) -> Batch:
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
    )
    return Batch(*(np.array(part, np.float32) for part in parts))


def pack(batch: Batch) -> np.ndarray:
    columns = (batch.observation, batch.action, batch.cost[:, None], batch.next_observation, batch.terminated[:, None])
    return np.concatenate(columns, axis=1)


def noise_of(batch: Batch) -> np.ndarray:
    """Standard normal noise, another for every batch."""
    rng = np.random.default_rng(np.asarray(batch.observation).view(np.uint32).ravel())
    return rng.standard_normal((1, *batch.action.shape), np.float32)


@lru_cache
def compiled_update(shapes: Shapes, config: MDPOConfig) -> Any:
    return jax.jit(partial(mdpo_update, shapes=shapes, config=config))


def update(shapes: Shapes, config: MDPOConfig) -> Any:
    """One update with the batch's own noise."""

    def apply(state: MDPOState, batch: Batch, absorbing_cost: Any) -> tuple[MDPOState, dict[str, Any]]:
        return compiled_update(shapes, config)(state, batch, absorbing_cost, noise_of(batch))

    return apply


def fresh(shapes: Shapes, config: MDPOConfig) -> MDPOState:
    return init_mdpo(0, shapes, config)[0]


def drawn(shapes: Shapes, config: MDPOConfig, seed: int) -> MDPONetworks:
    """Networks with outputs and slopes of ordinary size; a fresh player's critics are almost 0."""
    actor, first, second, value = jax.random.split(jax.random.key(seed), 4)
    return MDPONetworks(
        nets.init_actor(actor, *shapes, config.hidden),
        (nets.init_critic(first, *shapes, config.hidden), nets.init_critic(second, *shapes, config.hidden)),
        nets.init_mlp(value, (shapes.observation_size, *config.hidden, 1)),
    )


def in_mid_air(shapes: Shapes, config: MDPOConfig) -> MDPOState:
    """A state between two refreshments whose old policy, old critic and target differ from the newest ones."""
    old = drawn(shapes, config, 1)
    return fresh(shapes, config)._replace(
        networks=drawn(shapes, config, 0),
        updates=jnp.int32(4),
        old_actor=old.actor,
        old_critic=old.critics[0] if config.frozen_critic else None,
        target_value=old.value,
    )


def constant(network: Any, outputs: Any) -> Any:
    """The network's layers with zero weights: its outputs are the last bias, and only that one learns."""
    zeros = jax.tree.map(jnp.zeros_like, network)
    return (*zeros[:-1], Layer(zeros[-1].weight, jnp.array(outputs, jnp.float32)))


# ----- the reference: plain NumPy in double precision, one state at a time


def forward(params: Any, x: np.ndarray, layer_norm: bool = False) -> np.ndarray:
    for index, layer in enumerate(params):
        x = np.asarray(x, np.float64) @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        if index < len(params) - 1:
            if layer_norm:
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            x = np.maximum(x, 0.0)
    return x


def log_density(outputs: np.ndarray, u: np.ndarray) -> Any:
    """log π(tanh u) [...] of a squashed Gaussian with outputs [mean, log-std], at u [..., A]."""
    mean, log_std = np.split(outputs, 2)
    gaussian = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.sum(gaussian - np.log(1 - np.tanh(u) ** 2), axis=-1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def gaussian_kl(first: np.ndarray, second: np.ndarray) -> float:
    (m, s), (n, r) = np.split(first, 2), np.split(second, 2)
    return float(np.sum(r - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * r)) - 0.5))


class Reference:
    """The three losses of Algorithm 3 as functions of the networks they train."""

    def __init__(self, state: MDPOState, batch: Batch, shapes: Shapes, config: MDPOConfig) -> None:
        self.state, self.batch, self.shapes, self.config = state, batch, shapes, config
        self.noise = noise_of(batch)[0].astype(np.float64)

    def q(self, critic: Any, observation: np.ndarray, action: np.ndarray) -> float:
        if self.shapes.kind == "continuous":
            return float(forward(critic, np.concatenate([observation, action]), self.config.layer_norm)[0])
        return float(forward(critic, observation, self.config.layer_norm) @ action)

    def worst(self, observation: np.ndarray, action: np.ndarray) -> float:
        return max(self.q(critic, observation, action) for critic in self.state.networks.critics)

    def followed(self, observation: np.ndarray, action: np.ndarray) -> float:
        if self.state.old_critic is None:
            return self.worst(observation, action)
        return self.q(self.state.old_critic, observation, action)

    def actor_loss(self, actor: Any) -> float:
        t, alpha, total = self.config.kl_weight, self.config.entropy_weight, 0.0
        for s, noise in zip(self.batch.observation, self.noise, strict=True):
            new, old = forward(actor, s), forward(self.state.old_actor, s)
            if self.shapes.kind == "continuous":
                mean, log_std = np.split(new, 2)
                u = mean + np.exp(log_std) * noise
                total += t * gaussian_kl(new, old) + alpha * log_density(new, u) + self.followed(s, np.tanh(u))
            else:
                log_pi, log_old = log_softmax(new), log_softmax(old)
                for a, one_hot in enumerate(np.eye(self.shapes.action_size)):
                    total += np.exp(log_pi[a]) * (
                        t * (log_pi[a] - log_old[a]) + alpha * log_pi[a] + self.followed(s, one_hot)
                    )
        return total / len(self.batch.cost)

    def value_loss(self, value: Any) -> float:
        alpha, total = self.config.entropy_weight, 0.0
        for s, noise in zip(self.batch.observation, self.noise, strict=True):
            new = forward(self.state.actor, s)
            if self.shapes.kind == "continuous":
                mean, log_std = np.split(new, 2)
                u = mean + np.exp(log_std) * noise
                target = self.worst(s, np.tanh(u)) + alpha * log_density(new, u)
            else:
                log_pi = log_softmax(new)
                target = sum(
                    np.exp(log_pi[a]) * (self.worst(s, one_hot) + alpha * log_pi[a])
                    for a, one_hot in enumerate(np.eye(self.shapes.action_size))
                )
            total += (forward(value, s, self.config.layer_norm)[0] - target) ** 2
        return total / len(self.batch.cost)

    def target(self, index: int) -> float:
        if self.batch.terminated[index]:
            following = ABSORBING_COST / (1 - self.config.gamma)
        else:
            following = forward(self.state.target_value, self.batch.next_observation[index], self.config.layer_norm)[0]
        return float(self.batch.cost[index] + self.config.gamma * following)

    def critic_loss(self, critics: Any) -> float:
        total = 0.0
        for index, (s, a) in enumerate(zip(self.batch.observation, self.batch.action, strict=True)):
            total += sum((self.q(critic, s, a) - self.target(index)) ** 2 for critic in critics)
        return total / len(self.batch.cost)


@lru_cache
def one_update(shapes: Shapes, config: MDPOConfig) -> tuple[MDPOState, MDPOState, dict[str, Any], Reference]:
    state, batch = in_mid_air(shapes, config), random_batch(shapes)
    new, metrics = update(shapes, config)(state, batch, jnp.float32(ABSORBING_COST))
    return state, new, metrics, Reference(state, batch, shapes, config)


@KINDS
@CONFIGS
def test_the_losses_are_the_references(shapes: Shapes, config: MDPOConfig) -> None:
    state, _, metrics, reference = one_update(shapes, config)
    assert metrics["actor_loss"] == pytest.approx(reference.actor_loss(state.networks.actor), rel=1e-4, abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(reference.value_loss(state.networks.value), rel=1e-4)
    assert metrics["critic_loss"] == pytest.approx(reference.critic_loss(state.networks.critics), rel=1e-4)
    targets = [reference.target(index) for index in range(16)]
    assert metrics["target_mean"] == pytest.approx(np.mean(targets), rel=1e-4)


@KINDS
@CONFIGS
@pytest.mark.parametrize("part", ["actor", "value", "critics"])
def test_the_gradients_are_the_references(shapes: Shapes, config: MDPOConfig, part: str) -> None:
    """Slopes along random directions in double precision; Adam's first moment holds a tenth of the gradient."""
    state, new, _, reference = one_update(shapes, config)
    loss = getattr(reference, {"actor": "actor_loss", "value": "value_loss", "critics": "critic_loss"}[part])
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), getattr(state.networks, part))
    gradient = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) / 0.1, getattr(new.optimiser[0].mu, part))
    rng = np.random.default_rng(0)
    for _ in range(5):
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)
        ahead, behind = (loss(_moved(params, direction, step)) for step in (1e-6, -1e-6))
        slope = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
        assert slope == pytest.approx((ahead - behind) / 2e-6, rel=2e-3, abs=2e-4)


def _moved(params: Any, direction: Any, step: float) -> Any:
    return jax.tree.map(lambda leaf, d: leaf + step * d, params, direction)


@KINDS
def test_all_networks_take_adams_step(shapes: Shapes) -> None:
    state, new, _, _ = one_update(shapes, PAPER)
    moment = new.optimiser[0].mu
    for before, after, m in zip(*map(jax.tree.leaves, (state.networks, new.networks, moment)), strict=True):
        gradient = np.asarray(m, np.float64) / 0.1
        step = -PAPER.learning_rate * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(np.asarray(after) - np.asarray(before), step, atol=3e-7)


@KINDS
@CONFIGS
def test_the_target_follows_at_its_rate(shapes: Shapes, config: MDPOConfig) -> None:
    state, new, _, _ = one_update(shapes, config)
    for old, value, target in zip(
        *map(jax.tree.leaves, (state.target_value, new.networks.value, new.target_value)), strict=True
    ):
        np.testing.assert_allclose(target, old + 0.01 * (value - old), atol=1e-7)


def test_a_truncated_step_bootstraps_and_a_terminated_one_pays_the_absorbing_state() -> None:
    """The same transition with and without `terminated`: only the flag decides what follows."""
    state = fresh(CONTINUOUS, SOFT)
    state = state._replace(target_value=constant(state.target_value, [8.0]))
    batch = random_batch(CONTINUOUS)._replace(cost=np.ones(16, np.float32))
    for terminated, expected in ((0.0, 1.0 + 0.9 * 8.0), (1.0, 1.0 + 0.9 * 3.0 / 0.1)):
        flagged = batch._replace(terminated=np.full(16, terminated, np.float32))
        _, metrics = update(CONTINUOUS, SOFT)(state, flagged, jnp.float32(3.0))
        assert metrics["target_mean"] == pytest.approx(expected, rel=1e-5)


def test_the_divergence_is_the_mean_log_ratio_of_the_squashed_policies() -> None:
    """The exact divergence of the Gaussians against a Monte-Carlo mean over squashed actions."""
    actor, old = (init_mdpo(seed, CONTINUOUS, PAPER)[0].actor for seed in (0, 5))
    observation = random_batch(CONTINUOUS, 3).observation
    terms = policy_terms(actor, observation, jnp.zeros((3, 2)), kind="continuous")
    rng = np.random.default_rng(0)
    for s, divergence in zip(observation, terms.divergence_from(old), strict=True):
        new_outputs, old_outputs = forward(actor, s), forward(old, s)
        mean, log_std = np.split(new_outputs, 2)
        u = mean + np.exp(log_std) * rng.normal(size=(100_000, 2))
        ratios = log_density(new_outputs, u) - log_density(old_outputs, u)
        assert abs(divergence - np.mean(ratios)) < 4 * np.std(ratios) / np.sqrt(len(ratios))
        assert divergence > 0.01


@KINDS
@CONFIGS
def test_the_old_policy_is_refreshed_every_m_updates_exactly(shapes: Shapes, config: MDPOConfig) -> None:
    state = fresh(shapes, config)._replace(updates=jnp.int32(3))
    frozen = state.networks
    for index in range(8):
        if index % 3 == 0:
            frozen = state.networks
        state, _ = update(shapes, config)(state, random_batch(shapes, seed=index), NOTHING)
        assert games.leaves_equal(state.old_actor, frozen.actor), index
        assert not games.leaves_equal(state.old_actor, state.actor)
        if config.frozen_critic:
            assert games.leaves_equal(state.old_critic, frozen.critics[0]), index
        else:
            assert state.old_critic is None
    assert int(state.updates) == 3 + 8


@KINDS
@CONFIGS
def test_the_actor_follows_the_frozen_critic_or_the_live_ones(shapes: Shapes, config: MDPOConfig) -> None:
    """Changing the live critics between refreshments moves a live actor's loss, and not a frozen one's."""
    state, batch = in_mid_air(shapes, config), random_batch(shapes)
    networks = state.networks
    moved = networks._replace(critics=jax.tree.map(lambda leaf: leaf + 1.0, networks.critics))
    changed = state._replace(networks=moved)
    (_, before), (_, after) = (update(shapes, config)(each, batch, NOTHING) for each in (state, changed))
    assert (before["actor_loss"] == after["actor_loss"]) == config.frozen_critic
    assert before["value_loss"] != after["value_loss"]


# ----- mirror descent on one state: the answers are known


def block_of(shapes: Shapes, config: MDPOConfig) -> Any:
    return compile_block(mdpo_update, shapes, config, draws=1)


def test_m_updates_approach_the_mirror_step_of_a_discrete_policy() -> None:
    """argmin t KL(π, π_old) + <π, Q>  is  π ∝ π_old exp(-Q/t); twice m updates, two such steps."""
    shapes = Shapes("discrete", 1, 3)
    costs, t = np.array([0.4, -0.3, 1.0]), 0.5
    config = MDPOConfig(hidden=(4,), batch_size=3, kl_weight=t, policy_steps=800, learning_rate=0.02)
    state, key = init_mdpo(0, shapes, config)
    logits = np.array([0.5, 0.0, -0.5])
    # the critics know the costs of the episodes' only step exactly, so they stay as they are
    critics = tuple(constant(critic, costs) for critic in state.networks.critics)
    networks = state.networks._replace(actor=constant(state.networks.actor, logits), critics=critics)
    state = state._replace(networks=networks)
    one = np.ones((3, 1), np.float32)
    rows = pack(Batch(one, np.eye(3, dtype=np.float32), costs.astype(np.float32), one, one[:, 0]))
    policy = log_softmax(logits)
    for _ in range(2):
        state, key, metrics = block_of(shapes, config)(state, key, np.tile(rows, (800, 1, 1)), None)
        policy = log_softmax(policy - costs / t)
        assert float(metrics["critic_loss"]) == 0.0
        np.testing.assert_allclose(np.exp(nets.log_policy(state.actor, one)[0]), np.exp(policy), atol=5e-4)


def linear_critic(slope: float, hidden: int) -> Any:
    """c(s, a) = slope · a, as far as the first unit's ReLU is open."""
    first = np.zeros((2, hidden), np.float32)
    first[1, 0] = 1.0
    bias, second = np.zeros(hidden, np.float32), np.zeros((hidden, 1), np.float32)
    bias[0], second[0, 0] = 5.0, slope
    return Layer(jnp.array(first), jnp.array(bias)), Layer(jnp.array(second), jnp.array([-5.0 * slope], jnp.float32))


@pytest.mark.parametrize("slope, log_std", [(20.0, -3.0), (1.0, -0.5)], ids=["unsquashed", "squashed"])
def test_m_updates_approach_the_mirror_step_of_a_gaussian_policy(slope: float, log_std: float) -> None:
    """argmin t KL(N(μ,σ), N(μ_0,σ_0)) + E[slope tanh u], by quadrature; without squashing μ = μ_0 - σ_0² slope / t."""
    shapes, t, mean = Shapes("continuous", 1, 1), 0.5, 0.1
    config = MDPOConfig(hidden=(4,), batch_size=256, kl_weight=t, policy_steps=600, learning_rate=2e-3)
    state, key = init_mdpo(0, shapes, config)
    critics = linear_critic(slope, 4), linear_critic(slope, 4)
    networks = state.networks._replace(actor=constant(state.networks.actor, [mean, log_std]), critics=critics)
    state = state._replace(networks=networks)
    rng = np.random.default_rng(0)
    ones, action = np.ones((256, 1), np.float32), rng.uniform(-1, 1, (256, 1)).astype(np.float32)
    rows = pack(Batch(ones, action, slope * action[:, 0], ones, ones[:, 0]))
    for _ in range(2):  # the second 600 updates refresh the old policy only once, at their beginning
        state = state._replace(updates=jnp.where(state.updates == 600, 1, state.updates))
        state, key, _ = block_of(shapes, config)(state, key, np.tile(rows, (600, 1, 1)), None)
    points, weights = np.polynomial.hermite_e.hermegauss(64)

    def objective(parameters: np.ndarray) -> float:
        actions = np.tanh(parameters[0] + np.exp(parameters[1]) * points)
        divergence = gaussian_kl(parameters, np.array([mean, log_std]))
        return t * divergence + slope * float(weights @ actions) / np.sqrt(2 * np.pi)

    best = optimize.minimize(objective, [mean, log_std], tol=1e-10).x
    found = np.asarray(state.actor[-1].bias)
    std = np.exp(log_std)
    assert found[0] == pytest.approx(best[0], abs=0.06 * std)
    assert found[1] == pytest.approx(best[1], abs=0.06)
    if log_std == -3.0:
        assert best[0] == pytest.approx(mean - std**2 * slope / t, abs=0.02 * std)


# ----- the player

SAC_CONFIG = SACConfig(hidden=(8,), batch_size=16)
MIRROR = MirrorConfig(hidden=(8,), batch_size=16)
PLAYERS = {"paper": PAPER, "soft": SOFT, "mirror": MIRROR, "sac": SAC_CONFIG}
SMALL = ReplayConfig(capacity=200, warmup_steps=20, block=4)


def filled(shapes: Shapes, count: int = 40, capacity: int = 200) -> Replay:
    memory = Replay(capacity, shapes.observation_size, shapes.action_size)
    memory.add(*random_batch(shapes, count, seed=3)[:5])
    return memory


def player(
    shapes: Shapes = CONTINUOUS,
    config: Any = PAPER,
    replay: ReplayConfig = SMALL,
    *,
    memory: Replay | None = None,
    charge: Any = recorded_cost,
    expert_rows: Any = None,
) -> OffPolicy:
    kinds: dict[type, type[OffPolicy]] = {MDPOConfig: MDPO, MirrorConfig: Mirror, SACConfig: SAC}
    made = kinds[type(config)](config, replay)
    memory = memory or filled(shapes)
    made.begin(Game(shapes, 0, 1, memory, charge, memory.rows[:0] if expert_rows is None else expert_rows))
    return made


@pytest.mark.parametrize("fraction, count", [(0.25, 4), (0.7, 11)])
def test_every_batch_holds_the_experts_share_exactly(fraction: float, count: int) -> None:
    """The expert's transitions cost 1 here and the learner's 0: the mean cost of a batch counts them."""
    memory = filled(CONTINUOUS)
    memory.rows[:, 5] = 0.0
    expert = filled(CONTINUOUS).rows[:7].copy()
    expert[:, 5] = 1.0
    learner = player(replay=replace(SMALL, expert_fraction=fraction), memory=memory, expert_rows=expert)
    for _ in range(3):
        assert float(learner.work_ahead(None)["policy_cost"]) == pytest.approx(count / 16)


def test_an_expert_share_without_expert_transitions_is_said_and_left_out() -> None:
    """Demonstrations without whole transitions: batches are the learner's alone, and as large as ever."""
    with pytest.warns(UserWarning, match="expert_fraction is 0.5"):
        learner = player(replay=replace(SMALL, expert_fraction=0.5), expert_rows=np.zeros((0, 10), np.float32))
    plain = player()
    learner.work_ahead(None)
    plain.work_ahead(None)
    assert games.leaves_equal(learner.state, plain.state)


def test_the_updates_of_a_block_follow_its_ratio() -> None:
    for block, ratio in ((4, 1.0), (8, 0.5), (2, 2.0)):
        learner = player(replay=replace(SMALL, block=block, updates_per_step=ratio))
        learner.work_ahead(None)
        assert int(learner.state.updates) == 4
        assert learner.block == block


@KINDS
def test_nothing_is_learned_and_actions_are_uniform_during_the_warm_up(shapes: Shapes) -> None:
    memory = filled(shapes, 19)
    learner = player(shapes, memory=memory)
    before = [np.array(leaf) for leaf in jax.tree.leaves(learner.state)]
    assert learner.work_ahead(None) == {}
    assert all(np.array_equal(a, b) for a, b in zip(before, jax.tree.leaves(learner.state), strict=True))
    # an actor that always does the same would be seen among the draws
    learner.actor.load(constant(learner.state.actor, [9.0, 9.0, -9.0, -9.0]))
    drawn = learner.act(np.zeros((4_000, 3), np.float32), np.random.default_rng(0))
    if shapes.kind == "continuous":
        np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=0.05)
        np.testing.assert_allclose(drawn.var(axis=0), 1 / 3, atol=0.03)
    else:
        np.testing.assert_allclose(drawn.mean(axis=0), 0.25, atol=0.03)
    memory.add(*random_batch(shapes, 1)[:5])
    drawn = learner.act(np.zeros((100, 3), np.float32), np.random.default_rng(0))
    assert (drawn > 0.99).all() if shapes.kind == "continuous" else (drawn[:, :2].sum(axis=1) == 1.0).all()


def test_a_block_works_ahead_of_the_acting_policy() -> None:
    """The simulator acts by the policy before the block under way; `settle` brings the newest one."""
    learner = player()
    first = learner.actor.layers
    learner.work_ahead(None)
    assert games.leaves_equal(learner.actor.layers, first)
    learner.settle()
    assert games.leaves_equal(learner.actor.layers, learner.state.actor)
    assert not games.leaves_equal(learner.actor.layers, first)


def clones(shapes: Shapes, count: int = 2) -> list[nets.MLP]:
    return [init_mdpo(seed, shapes, PAPER)[0].actor for seed in range(9, 9 + count)]


@pytest.mark.parametrize("cloned", [False, True], ids=["scratch", "clones"])
@pytest.mark.parametrize("name", PLAYERS)
def test_snapshots_are_exact_and_going_on_from_them_too(name: str, cloned: bool) -> None:
    config, memory = PLAYERS[name], filled(CONTINUOUS)
    learner = player(config=config, memory=memory)
    if cloned:
        learner.adopt(clones(CONTINUOUS))
    learner.work_ahead(None)
    arrays, info = learner.snapshot()
    arrays = {name: array.copy() for name, array in arrays.items()}
    other = player(config=config, memory=memory)
    other.adopt(clones(CONTINUOUS, 3))  # must be undone by restoring
    other.restore(arrays, info)
    assert games.leaves_equal(other.state, learner.state)
    learner.settle()
    assert games.leaves_equal(other.actor.layers, learner.actor.layers)
    assert other.uniform_warmup != cloned
    for _ in range(3):
        learner.work_ahead(None)
        other.work_ahead(None)
    assert games.leaves_equal(other.state, learner.state)
    again, info_again = other.snapshot()
    assert again.keys() == arrays.keys()
    assert info_again != info, "the stream of drawn rows has moved on"
    observation = np.ones((5, 3), np.float32)
    acted = [each.act(observation, np.random.default_rng(0)) for each in (learner, other)]
    np.testing.assert_array_equal(*acted)


def test_a_snapshot_keeps_its_values_while_the_player_learns_on() -> None:
    learner = player()
    arrays, _ = learner.snapshot()
    before = {name: array.copy() for name, array in arrays.items()}
    for _ in range(3):
        learner.work_ahead(None)
    learner.settle()
    assert all(np.array_equal(arrays[name], before[name]) for name in arrays)


def test_restoring_another_algorithms_snapshot_is_refused() -> None:
    arrays, info = player().snapshot()
    with pytest.raises(InputError, match="lacks"):
        player(config=SAC_CONFIG).restore(arrays, info)


@KINDS
@CONFIGS
def test_an_adopted_actor_acts_from_the_first_step_and_is_the_old_policy(shapes: Shapes, config: MDPOConfig) -> None:
    """Of several clones the first: Algorithm 3 knows no prior."""
    learner = player(shapes, config, memory=filled(shapes, 1))
    cloned, *rest = clones(shapes)
    kept = [np.array(leaf) for leaf in jax.tree.leaves(cloned)]
    learner.adopt([cloned, *rest])
    assert games.leaves_equal(learner.state.actor, cloned)
    assert games.leaves_equal(learner.actor.layers, cloned)
    assert games.leaves_equal(learner.state.old_actor, cloned)
    observation = np.zeros((50, 3), np.float32)
    expected = nets.HostActor(shapes.kind, cloned).sample(observation, np.random.default_rng(0))
    assert not learner.ready
    np.testing.assert_array_equal(learner.act(observation, np.random.default_rng(0)), expected)
    if shapes.kind == "discrete":
        return
    # the compiled block reuses the state's memory: the adopted actor must not be in it
    learner.memory.add(*random_batch(shapes, 30)[:5])
    learner.work_ahead(None)
    learner.settle()
    assert all(np.array_equal(a, b) for a, b in zip(kept, jax.tree.leaves(cloned), strict=True))


def test_players_with_equal_settings_share_one_program() -> None:
    player().work_ahead(None)
    compiled = games.compilations
    other = player(config=replace(PAPER), replay=replace(SMALL))
    other.work_ahead(None)
    other.settle()
    assert int(other.state.updates) == 4
    assert games.compilations == compiled


@CONFIGS
def test_blocks_compile_once_and_the_key_moves_in_each(config: MDPOConfig) -> None:
    memory = filled(CONTINUOUS)
    learner = player(config=config, memory=memory)
    keys = {np.asarray(learner.key).tobytes()}
    learner.work_ahead(None)
    learner.settle()
    keys.add(np.asarray(learner.key).tobytes())
    compiled = games.compilations
    for _ in range(4):
        memory.add(*random_batch(CONTINUOUS, 7)[:5])
        learner.work_ahead(None)
        learner.settle()
        keys.add(np.asarray(learner.key).tobytes())
    assert games.compilations == compiled
    assert len(keys) == 6


def test_a_block_equals_single_updates() -> None:
    batches = [random_batch(CONTINUOUS, seed=seed) for seed in range(4)]
    rows = np.stack([pack(batch) for batch in batches])
    state, key, _ = block_of(CONTINUOUS, PAPER)(*init_mdpo(0, CONTINUOUS, PAPER), rows, None)
    one_by_one, first_key = init_mdpo(0, CONTINUOUS, PAPER)
    next_key, noise = draw_noise(first_key, (4, 1, *batches[0].action.shape))
    for batch, drawn in zip(batches, noise, strict=True):
        one_by_one, _ = compiled_update(CONTINUOUS, PAPER)(one_by_one, batch, NOTHING, drawn)
    np.testing.assert_array_equal(key, next_key)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_costs_are_computed_when_sampled() -> None:
    """What is recorded in the memory does not enter; the newest cost parameters do."""

    def charge(scale: Any, batch: Batch) -> Charge:
        return Charge(scale * batch.observation[..., 0], 2.0 * scale)

    first, second = filled(CONTINUOUS), filled(CONTINUOUS)
    second.rows[:, 5] = 1e6
    learner, other = (player(memory=memory, charge=charge) for memory in (first, second))
    for scale in (1.0, 3.0):
        metrics, others = learner.work_ahead(jnp.float32(scale)), other.work_ahead(jnp.float32(scale))
        assert float(metrics["absorbing_cost"]) == 2.0 * scale
        assert float(metrics["policy_cost"]) == float(others["policy_cost"])
    assert games.leaves_equal(learner.state, other.state)


@pytest.mark.parametrize(
    "field, value",
    [
        ("kl_weight", -0.1),
        ("kl_weight", float("nan")),
        ("entropy_weight", -1.0),
        ("policy_steps", 0),
        ("gamma", 1.0),
        ("hidden", ()),
        ("hidden", (0,)),
        ("target_rate", 1.5),
        ("batch_size", 0),
        ("learning_rate", 0.0),
    ],
)
def test_impossible_settings_of_the_algorithm_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        MDPOConfig(**{field: value})


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"capacity": 0}, "capacity"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"block": 0}, "block"),
        ({"updates_per_step": 0.001}, "updates_per_step"),
        ({"updates_per_step": float("nan")}, "updates_per_step"),
        ({"updates_per_step": float("inf")}, "updates_per_step"),
        ({"expert_fraction": 1.0}, "expert_fraction"),
        ({"expert_fraction": -0.1}, "expert_fraction"),
        ({"capacity": 100, "warmup_steps": 101}, "warmup_steps"),
    ],
)
def test_impossible_settings_of_the_replay_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ReplayConfig(**settings)


# ----- the bare player in the loop


def test_a_player_given_as_an_object_is_the_papers_preset() -> None:
    """Bit for bit what the preset's player computes."""
    settings = golden_traces.small("mdpo", "neural", golden_traces.CONTINUOUS, "paper")
    config = preset("mdpo", "neural", "paper", settings=settings)

    def with_an_object() -> oal.OAL:
        return oal.OAL(
            golden_traces.CONTINUOUS,
            golden_traces.demos_of(golden_traces.CONTINUOUS),
            MDPO(config.policy_config, config.replay_config),
            "neural",
            preset="paper",
            seed=11,
            settings={name: value for name, value in settings.items() if name.startswith("cost.")},
        )

    trace = golden_traces.learning(with_an_object, golden_traces.CONTINUOUS)
    assert golden_traces.check("learn-mdpo-neural-paper", trace) is None


@KINDS
def test_arrays_have_the_shapes_that_annotations_say(shapes: Shapes) -> None:
    state, _ = checked(init_mdpo)(0, shapes, PAPER)
    batch = jax.tree.map(jnp.asarray, random_batch(shapes))
    noise = jnp.asarray(noise_of(batch))
    terms = checked(policy_terms)(state.actor, batch.observation, noise[0], kind=shapes.kind)
    assert terms.divergence_from(state.old_actor).shape == (16,)
    checked(recorded_cost)(None, batch)
    update = partial(jax.eval_shape, partial(checked(mdpo_update), shapes=shapes, config=PAPER))
    update(state, batch, NOTHING, noise)
    with pytest.raises(AssertionError, match=r"batch.cost is float32\(16, 1\)"):
        update(state, batch._replace(cost=batch.cost[:, None]), NOTHING, noise)


def test_the_memory_gives_the_shapes_that_annotations_say() -> None:
    memory, batch = Replay(20, 3, 2), random_batch(CONTINUOUS)
    checked(memory.add)(*batch[:5], np.arange(16))
    places = checked(memory.places)(np.random.default_rng(0), 4, 5)
    checked(memory.unpack)(memory.rows[places])
    walked, there = checked(walk)(memory.hops, places, 3)
    check_shapes(Path(memory.rows[walked, : memory.own], there, np.ones(places.shape, np.float32)))
    checked(memory.pairs)(checked(memory.newest)(7), lambda times: np.ones(times.shape, np.float32))
    check_shapes(Game(CONTINUOUS, 0, 1, memory, recorded_cost, checked(memory.last)(3)))
    with pytest.raises(AssertionError, match=r"action is float32\(15, 2\)"):
        checked(memory.add)(*batch._replace(action=batch.action[1:])[:5])
