"""SQIL, DAC and CSIL's cost: each equation against a slow reference, and that the loop pays what they say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import games
from oal.deep import nets
from oal.deep.costs import COSTS, CSIL, DAC, CSILConfig, DACConfig, SQILConfig, cost_player
from oal.deep.costs.csil import categorical_cost, fitted, gaussian_cost, is_one_hot
from oal.deep.costs.dac import with_absorbing
from oal.deep.learned_cost import LearnedCost
from oal.deep.loop import OAL
from oal.deep.presets import ALGORITHMS, PUBLISHED, preset
from oal.deep.replay import Batch, Pairs, Replay
from oal.demos import Demos, Trajectory
from oal.envs import bootstrap_target
from oal.errors import InputError
from oal.lab.run import RunConfig

O, A, GAMMA = 3, 2, 0.9
SMALL = {"bc": None, "policy.hidden": (8,), "replay.warmup_steps": 40, "replay.block": 20, "replay.capacity": 200}
NETWORK = {"cost.hidden": (4,), "cost.update_every": 20, "cost.minibatches": 2, "cost.batch_size": 8}


def demonstrations(*, ends: bool = True) -> Demos:
    rng = np.random.default_rng(0)
    return Demos(
        [
            Trajectory(
                np.stack([rng.uniform(-1, 1, n + 1), np.ones(n + 1)], axis=1).astype(np.float32),
                rng.uniform(0.5, 1.5, (n, 1)).astype(np.float32),
                np.ones(n, np.float32),
                terminated=ends,
            )
            for n in (10, 14)
        ]
    )


def learner(cost: str, **settings: Any) -> OAL:
    return OAL(games.Walk, demonstrations(), "mdpo", cost, horizon=30, settings={**SMALL, **settings})  # pyright: ignore


# SQIL ----------------------------------------------------------------------------------------------------------------


def test_sqil_writes_a_constant_for_each_side_into_the_memory():
    made = learner("sqil").learn(30)
    costs = made.memory.unpack(made.memory.rows[:30]).cost
    assert (costs == 0.0).all(), "the learner's steps earn nothing, whatever the environment pays"
    assert (made.memory.unpack(made.expert.rows).cost == -1.0).all()
    rows = made.memory.unpack(made.player._rows()[0])  # pyright: ignore
    assert rows.cost.mean() == pytest.approx(-0.5), "half of each batch are the expert's"
    charge = made.cost_player(None, rows)
    np.testing.assert_array_equal(charge.cost, rows.cost)
    assert charge.absorbing == 0.0
    assert made.algorithm == "SQIL"
    made.close()


def test_sqils_targets_are_those_of_its_paper():
    """y = r + γ V(s') with r = 1 for the expert and 0 for the learner, and nothing after an end; we pay -r."""
    cost, value, ended = np.array([-1.0, -1.0, 0.0, 0.0]), np.array([2.0, 3.0, 4.0, 5.0]), np.array([0, 1, 0, 1])
    rewards = [1.0 if c < 0 else 0.0 for c in cost]
    by_hand = [r + GAMMA * (0.0 if end else -v) for r, v, end in zip(rewards, value, ended, strict=True)]
    np.testing.assert_allclose(-bootstrap_target(cost, value, ended, GAMMA, 0.0), by_hand)


def test_sqil_needs_a_memory_and_whole_transitions():
    with pytest.raises(InputError, match="choose mdpo or sac"):
        preset("trpo", "sqil")
    with pytest.raises(InputError, match="expert_fraction is 0"):
        preset("mdpo", "sqil", settings={"replay.expert_fraction": 0.0})
    with pytest.raises(InputError, match="hold none"):
        OAL(games.Walk, demonstrations().subsample(2), "mdpo", "sqil", horizon=30, settings=SMALL)  # pyright: ignore
    with pytest.raises(InputError, match="below the learner's cost"):
        SQILConfig(expert=0.0)
    assert preset("sac", "sqil").replay_config.expert_fraction == 0.5  # pyright: ignore


# DAC -----------------------------------------------------------------------------------------------------------------


def dac(**settings: Any) -> tuple[DAC, Any]:
    config = DACConfig(hidden=(4,), minibatches=2, batch_size=6, **settings)
    player = DAC(config).sized(O, A, GAMMA)
    rng = np.random.default_rng(1)
    expert = Pairs(*(rng.normal(size=(9, n)).astype(np.float32) for n in (O, A)), np.ones(9, np.float32))
    return player, player.init(0, expert)


def logit(view: Any, observation: np.ndarray, action: np.ndarray, absorbing: bool) -> float:
    """The discriminator of one pair, layer by layer in NumPy."""
    x = np.concatenate([observation, action, [float(absorbing)]])
    x = (x - np.asarray(view.mean)) / np.asarray(view.std)
    for layer in view.params[:-1]:
        x = np.tanh(x @ np.asarray(layer.weight) + np.asarray(layer.bias))
    return float((x @ np.asarray(view.params[-1].weight) + np.asarray(view.params[-1].bias))[0])


def test_dac_descends_the_discriminators_loss():
    """-E_learner log(1 - D) - E_expert log D, D the expert's probability; an absorbing state counts like any other."""
    player, state = dac(lipschitz=0.0)
    rng = np.random.default_rng(2)
    sides = []
    for share in (0.5, 0.2):
        pairs = Pairs(*(rng.normal(size=(7, n)).astype(np.float32) for n in (O, A)), np.ones(7, np.float32))
        sides.append(with_absorbing(pairs, share, rng))
    total = 0.0
    for side, is_expert in zip(sides, (False, True), strict=True):
        for observation, action in zip(side.observation, side.action, strict=True):
            # the logit is of the learner
            D = 1.0 / (1.0 + math.exp(logit(state.view, observation[:O], action, bool(observation[O]))))
            total -= math.log(D if is_expert else 1.0 - D) / 7
    found, _ = player.loss(state.view.params, state.view, state.view, *sides, jax.random.key(0))
    assert float(found) == pytest.approx(total, rel=1e-4)


def test_dacs_reward_is_log_d_minus_log_one_minus_d_and_the_absorbing_state_has_one():
    player, state = dac()
    rng = np.random.default_rng(3)
    observation, action = rng.normal(size=(5, O)).astype(np.float32), rng.normal(size=(5, A)).astype(np.float32)
    batch = Batch(observation, action, np.zeros(5), observation, np.zeros(5))
    charge = player(state.view, batch)
    for place in range(5):
        D = 1.0 / (1.0 + math.exp(logit(state.view, observation[place], action[place], False)))
        assert -float(charge.cost[place]) == pytest.approx(math.log(D) - math.log(1.0 - D), rel=1e-3, abs=1e-5)
    nowhere = logit(state.view, np.zeros(O), np.zeros(A), True)
    assert float(charge.absorbing) == pytest.approx(nowhere, rel=1e-4, abs=1e-6)
    target = bootstrap_target(0.0, 99.0, 1.0, GAMMA, charge.absorbing)
    by_hand = sum(GAMMA**k * nowhere for k in range(1, 400))
    assert float(target) == pytest.approx(by_hand, rel=1e-3), "after an end the absorbing cost is paid for ever"


def test_dac_sees_one_absorbing_step_after_each_true_end():
    player, _ = dac(window=None)
    rng = np.random.default_rng(4)
    memory = Replay(40, O, A)
    ended = np.arange(40) % 4 == 3
    memory.add(rng.normal(size=(40, O)), rng.normal(size=(40, A)), np.zeros(40), rng.normal(size=(40, O)), ended)
    shown = type("Expert", (), {})()
    shown.time, shown.stride, shown.ends = np.arange(20), np.ones(20, int), 0
    shown.pairs = lambda index, weigh: memory.pairs(index, weigh)
    drawn = [player.draw(memory, shown, rng) for _ in range(200)]
    absorbing = np.mean([learners.observation[..., O] for learners, _ in drawn])
    assert absorbing == pytest.approx(10 / (40 + 10), abs=0.03)
    for learners, experts in drawn[:5]:
        gone = learners.observation[..., O] == 1.0
        assert not learners.observation[gone][:, :O].any()
        assert not learners.action[gone].any()
        assert not experts.observation[..., O].any(), "this expert never ends"
    # every second step of five episodes that all ended
    shown.stride, shown.ends = np.full(20, 2), 5
    drawn = [player.draw(memory, shown, rng)[1] for _ in range(200)]
    assert np.mean([experts.observation[..., O] for experts in drawn]) == pytest.approx(5 / (40 + 5), abs=0.03)


# CSIL ----------------------------------------------------------------------------------------------------------------


def test_csils_cost_is_the_log_ratio_of_the_clones_to_a_uniform_policy():
    rng = np.random.default_rng(5)
    means, action = rng.normal(size=(4, 6, A)), rng.uniform(-0.95, 0.95, size=(6, A))
    found = gaussian_cost(jnp.asarray(means), jnp.asarray(action), -1.0)
    for place in range(6):
        ratio = 0.0
        for j in range(A):
            members = means[:, place, j]
            deviation = math.sqrt(math.exp(-2.0) + 1.25 * members.var())
            u = math.atanh(action[place, j])
            density = norm.pdf(u, members.mean(), deviation) / (1.0 - action[place, j] ** 2)
            ratio += math.log(density / 0.5)
        assert float(found[place]) == pytest.approx(-ratio / A, rel=1e-4)


def test_csils_density_is_one():
    """exp(-c)/2 over the actions of one dimension sums to 1: c is minus the logarithm of a density's ratio."""
    grid = np.linspace(-LARGEST, LARGEST, 200_001)
    means = jnp.asarray([[[0.3]], [[0.5]]]).repeat(len(grid), axis=1)
    density = 0.5 * np.exp(-np.asarray(gaussian_cost(means, jnp.asarray(grid)[:, None], -1.0)))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)


LARGEST = 0.999


def test_csils_discrete_cost():
    logits = np.random.default_rng(6).normal(size=(3, 4, 3))
    action = np.eye(3)[[0, 2, 1, 1]]
    odds = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    by_hand = [-math.log(odds[:, i, action[i].argmax()].mean() / (1 / 3)) for i in range(4)]
    np.testing.assert_allclose(categorical_cost(jnp.asarray(logits), jnp.asarray(action)), by_hand, rtol=1e-4)
    assert bool(is_one_hot(jnp.asarray(action)))
    assert not bool(is_one_hot(jnp.asarray([[0.0, 1.0], [0.5, 0.5]])))
    assert not bool(is_one_hot(jnp.ones((4, 1)))), "one dimension at its bound is not discrete"


@pytest.mark.parametrize("discrete", [False, True])
def test_csils_clones_prefer_what_the_expert_does(discrete):
    rng = np.random.default_rng(7)
    observation = rng.normal(size=(64, O)).astype(np.float32)
    right = observation[:, 0] > 0
    action = (
        np.eye(2, dtype=np.float32)[right.astype(int)] if discrete else np.tile(np.where(right, 0.5, -0.5), (2, 1)).T
    )
    config = CSILConfig(hidden=(16,), members=3, updates=300, learning_rate=1e-2, batch_size=32)
    player = CSIL(config).sized(O, 2, GAMMA)
    state = player.init(0, Pairs(observation, action.astype(np.float32), np.ones(64, np.float32)))
    expert, other = (
        np.asarray(player.cost(state.view, observation, jnp.asarray(each))) for each in (action, action[::-1])
    )
    clear = np.abs(observation[:, 0]) > 0.3
    assert expert[clear].mean() < -0.3, "dearer than a uniform policy's"
    assert expert[clear].mean() < other[clear].mean() - 0.5
    # the clones' standardisation is theirs for ever, though the learner's steps move that of other costs
    moved = state.view._replace(mean=state.view.mean + 5.0)
    np.testing.assert_array_equal(player.cost(moved, observation, jnp.asarray(action)), expert)


def test_csils_fit_is_a_loop_of_adam_steps():
    rng = np.random.default_rng(8)
    x, action = rng.normal(size=(12, O)), rng.uniform(-1, 1, size=(12, A))
    config = CSILConfig(hidden=(4,), updates=3, batch_size=5, learning_rate=0.1)
    found = fitted(jax.random.key(3), jnp.asarray(x), jnp.asarray(action), jnp.asarray(False), config=config)
    start_key, data_key = jax.random.split(jax.random.key(3))
    flat, tree = jax.tree.flatten(nets.init_mlp(start_key, (O, 4, A)))
    weights = [np.array(part, np.float64) for part in flat]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]

    def loss(parts: Any, rows: Any) -> Any:
        return jnp.mean((jnp.tanh(nets.mlp(jax.tree.unflatten(tree, parts), x[rows])) - action[rows]) ** 2)

    for step, key in enumerate(jax.random.split(data_key, 3)):
        rows = np.asarray(jax.random.randint(key, (5,), 0, 12))
        rate = 0.1 * 0.5 * (1.0 + math.cos(math.pi * step / 3))
        for i, g in enumerate(jax.grad(loss)([jnp.asarray(w, jnp.float32) for w in weights], rows)):
            first[i] = 0.9 * first[i] + 0.1 * np.asarray(g)
            second[i] = 0.999 * second[i] + 0.001 * np.asarray(g) ** 2
            m, v = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
            weights[i] = weights[i] - rate * m / (np.sqrt(v) + 1e-8)
    for ours, by_hand in zip(jax.tree.leaves(found), weights, strict=True):
        np.testing.assert_allclose(ours, by_hand, atol=2e-4)


# In the loop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["dac", pytest.param("csil", marks=pytest.mark.slow)])
def test_they_learn_resume_and_can_be_taken_out(cost: str, tmp_path: Path) -> None:
    settings = NETWORK | ({"cost.updates": 20, "cost.members": 2} if cost == "csil" else {})
    first = learner(cost, **settings)
    first.learn(80, callback=lambda l: l.save(tmp_path / "kept") if l.step == 60 else None)
    assert first.cost_updates == 3
    resumed = OAL.load(tmp_path / "kept", games.Walk)
    resumed.learn(80)
    assert games.leaves_equal(first.player.state, resumed.player.state)  # pyright: ignore
    assert games.leaves_equal(first.cost, resumed.cost)
    taken = LearnedCost.of(first)
    taken.save(tmp_path / "cost.safetensors")
    loaded = LearnedCost.load(tmp_path / "cost.safetensors")
    shown = first.demos[0]  # pyright: ignore
    costs = loaded(shown.observations[:5], shown.actions[:5])
    np.testing.assert_array_equal(costs, taken(shown.observations[:5], shown.actions[:5]))
    assert loaded.absorbing == taken.absorbing == float(first.cost_player.absorbing_cost(first.cost.view))  # pyright: ignore
    assert loaded.kind == cost
    assert loaded.plot(tmp_path / "cost")[0].exists()
    for made in (first, resumed):
        made.close()


def test_they_have_names_in_every_preset():
    for name, config in PUBLISHED.items():
        for scheme in ("default", "paper"):
            learned = preset("mdpo", name, scheme)
            assert learned.cost_config == config
            run = RunConfig("Hopper-v5", learned, 10)
            assert run.algorithm == ALGORITHMS[name] == name.upper()
            assert RunConfig.from_json(run.to_json()) == run
        assert type(cost_player(config)) is COSTS[name]
    assert preset("trpo", "dac").cost_config == replace(DACConfig(), update_every=2_000, window=6_000)
    with pytest.raises(InputError, match="must be pairs"):
        CSILConfig(inputs="states")


def test_an_environment_of_discrete_actions_has_csils_cost_too():
    rng = np.random.default_rng(9)
    shown = Demos(
        [Trajectory(rng.uniform(-1, 1, size=(7, 2)).astype(np.float32), rng.integers(5, 8, 6), np.ones(6, np.float32))]
    )
    settings = SMALL | NETWORK | {"cost.updates": 5, "cost.members": 2}
    made = OAL(lambda: games.Walk(discrete=True), shown, "mdpo", "csil", horizon=30, settings=settings)
    assert bool(made.cost.view.frozen[2])
    assert isinstance(made.envs.action_space, gym.spaces.Discrete)
    made.close()
