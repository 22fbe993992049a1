"""A learned cost alone: its numbers, its files, its reward wrapper, its names, its pictures and its command."""

import csv
import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from oal.base import checkpoint, files
from oal.base.folder import RunFolder
from oal.cli import app
from oal.deep.costs import CostBase, CostView, GAILConfig, LinearConfig, NeuralConfig, cost_player
from oal.deep.learned_cost import CostReward, LearnedCost, input_names
from oal.deep.nets import init_actor
from oal.deep.policy import Policy
from oal.deep.replay import Batch, Pairs
from oal.demos import Demos, Trajectory
from oal.envs import ActionCodec, Envs, EnvSpec, describe, make, uniform_actions
from oal.errors import InputError

LINEAR = LinearConfig(scale="unit", absorbing=1.3, clip=5.0)
NEURAL = NeuralConfig(hidden=(8, 8), scale="unit", absorbing=1.3, clip=5.0)
GAIL = GAILConfig(hidden=(8, 8))
EACH = pytest.mark.parametrize("config", [LINEAR, NEURAL, GAIL], ids=["linear", "neural", "gail"])
PENDULUM = EnvSpec("Pendulum-v1", "continuous", 3, 1, (-2.0,), (2.0,), (1,), horizon=200)
CARTPOLE = EnvSpec("CartPole-v1", "discrete", 4, 2, horizon=500)


@lru_cache
def drawn(config: Any, spec: EnvSpec, function: Any = None) -> tuple[CostBase, CostView]:
    """A player with a view of random numbers: as if learned, without the time it takes."""
    player = cost_player(config, function=function).sized(spec.observation_size, spec.action_size, 0.99)
    rng = np.random.default_rng(0)
    expert = Pairs(
        rng.normal(loc=0.3, scale=0.8, size=(50, spec.observation_size)).astype(np.float32),
        uniform_actions(spec, 50, rng),
        np.ones(50, np.float32),
    )
    view = player.init(1, expert).view
    return player, view._replace(
        params=jax.tree.map(lambda leaf: jnp.array(rng.normal(size=leaf.shape), jnp.float32), view.params),
        centre=jnp.float32(0.2),
        scale=jnp.float32(1.7),
        absorbing=jnp.float32(0.35),
        gain=jnp.float32(0.9),
    )


def learned(config: Any = LINEAR, spec: EnvSpec = PENDULUM, function: Any = None, **options: Any) -> LearnedCost:
    player, view = drawn(config, spec, function)
    return LearnedCost(player, view, spec, 0.99, {"step": 1_000, "seed": 3}, **options)


def sample(spec: EnvSpec, count: int, seed: int = 5) -> tuple[np.ndarray, Any]:
    """Observations and actions in the environment's units."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(count, spec.observation_size))
    actions = ActionCodec(spec).decode(uniform_actions(spec, count, rng))
    return observations, np.asarray(actions)


# Numbers -------------------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("spec", [PENDULUM, CARTPOLE], ids=["continuous", "discrete"])
def test_it_gives_the_players_costs_in_the_environments_units(config: Any, spec: EnvSpec) -> None:
    cost = learned(config, spec)
    observations, actions = sample(spec, 37)
    costs = cost(observations, actions)
    assert isinstance(costs, np.ndarray)
    assert costs.shape == (37,)
    player, view = drawn(config, spec)
    encoded = actions / 2.0 if spec is PENDULUM else np.eye(2)[actions]
    expected = player.cost(view, jnp.float32(observations), jnp.float32(encoded))
    np.testing.assert_allclose(costs, expected, rtol=1e-5, atol=1e-6)
    assert np.ptp(costs) > 0.05
    one = cost(observations[4], actions[4])
    assert one.shape == ()
    assert float(one) == pytest.approx(float(costs[4]), rel=1e-5, abs=1e-6)


def test_an_action_beyond_its_bounds_costs_what_the_bound_does() -> None:
    """Otherwise a policy could earn without end by actions that the simulator cuts anyway."""
    cost = learned()
    observations = sample(PENDULUM, 3)[0]
    far, bound, inside = (cost(observations, np.full((3, 1), a)) for a in (500.0, 2.0, 1.0))
    np.testing.assert_array_equal(far, bound)
    assert not np.array_equal(bound, inside)


def test_batches_of_any_size_compile_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    from oal.deep import learned_cost as module

    monkeypatch.setattr(module, "_LARGEST_BATCH", 16)
    traces = []
    # a setting of its own: not compiled by another test
    config = replace(LINEAR, absorbing=1.111)
    player, view = drawn(config, PENDULUM)
    cost = LearnedCost(player, view, PENDULUM, 0.99)
    read = CostBase.read

    def counting(self: CostBase, output: Any) -> Any:
        traces.append(output.shape) if isinstance(output, jax.core.Tracer) else None
        return read(self, output)

    monkeypatch.setattr(CostBase, "read", counting)
    observations, actions = sample(PENDULUM, 45)
    whole = cost(observations, actions)
    for count in range(46):
        np.testing.assert_allclose(cost(observations[:count], actions[:count]), whole[:count], rtol=1e-5, atol=1e-6)
    assert sorted(traces) == [(1,), (2,), (4,), (8,), (16,)]
    again = LearnedCost(cost_player(config).sized(3, 1, 0.99), view, PENDULUM, 0.99)
    np.testing.assert_array_equal(again(observations, actions), whole)
    assert len(traces) == 5


def test_the_absorbing_cost_is_in_the_units_that_the_policy_pays() -> None:
    player, view = drawn(NEURAL, PENDULUM)
    view = view._replace(gain=jnp.float32(0.5), absorbing=jnp.float32(0.8))
    cost = LearnedCost(player, view, PENDULUM, 0.99)
    assert cost.absorbing == pytest.approx(0.4)
    observations, actions = sample(PENDULUM, 6)
    paid, absorbing = player(view, Batch(jnp.float32(observations), jnp.float32(actions / 2.0), None, None, None))
    # what the policy pays is shifted by the absorbing cost
    np.testing.assert_allclose(paid - absorbing, cost(observations, actions) - cost.absorbing, rtol=1e-4, atol=1e-5)


def test_it_keeps_its_own_copy_of_what_the_learner_learned() -> None:
    player, view = drawn(NEURAL, PENDULUM)
    cost = LearnedCost(player, view, PENDULUM, 0.99)
    ours, theirs = (each.params[0].weight.unsafe_buffer_pointer() for each in (cost.view, view))
    assert ours != theirs


def test_it_is_taken_out_of_a_learner() -> None:
    player, view = drawn(LINEAR, PENDULUM)
    envs = Envs("Pendulum-v1")
    stand_in: Any = SimpleNamespace(
        cost_player=player,
        cost=SimpleNamespace(view=view),
        spec=envs.spec,
        envs=envs,
        player=SimpleNamespace(gamma=0.97),
        step=123,
        seed=4,
        algorithm="OAL",
        normaliser=None,
    )
    cost = LearnedCost.of(stand_in)
    assert cost.gamma == 0.97
    assert cost.info == {"step": 123, "seed": 4, "algorithm": "OAL"}
    assert cost.names == ("cos angle", "sin angle", "velocity", "action[0]")
    observations, actions = sample(PENDULUM, 5)
    np.testing.assert_array_equal(cost(observations, actions), learned()(observations, actions))


# Files ---------------------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("spec", [PENDULUM, CARTPOLE], ids=["continuous", "discrete"])
def test_a_saved_cost_is_the_same_cost(config: Any, spec: EnvSpec, tmp_path: Path) -> None:
    cost = learned(config, spec, names=[f"input {i}" for i in range(spec.observation_size + spec.action_size)])
    cost.save(tmp_path / "cost.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["cost.safetensors"]
    again = LearnedCost.load(tmp_path / "cost.safetensors")
    observations, actions = sample(spec, 20)
    np.testing.assert_array_equal(cost(observations, actions), again(observations, actions))
    assert again.player == cost.player
    assert (again.spec, again.gamma, again.info, again.names) == (spec, 0.99, cost.info, cost.names)
    assert again.absorbing == cost.absorbing == pytest.approx(0.9 * 0.35)
    jax.tree.map(np.testing.assert_array_equal, again.view, cost.view)


def test_fourier_frequencies_are_saved_with_the_cost(tmp_path: Path) -> None:
    cost = learned(replace(LINEAR, features="fourier", fourier_features=16))
    cost.save(tmp_path / "c.safetensors")
    observations, actions = sample(PENDULUM, 8)
    again = LearnedCost.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(cost(observations, actions), again(observations, actions))
    assert again.weights()[15][0] == "fourier[15]"


def angle_and_effort(observation: Any, action: Any) -> Any:
    return jnp.stack([observation[..., 0], action[..., 0] ** 2], axis=-1)


def angle_alone(observation: Any, action: Any) -> Any:
    return observation[..., :1]


def test_a_cost_of_a_users_features_needs_the_function_again(tmp_path: Path) -> None:
    cost = learned(replace(LINEAR, features="function"), function=angle_and_effort)
    path = tmp_path / "c.safetensors"
    cost.save(path)
    with pytest.raises(InputError, match=r"features=function"):
        LearnedCost.load(path)
    with pytest.raises(InputError, match="gives 1 features, the cost has 2 weights"):
        LearnedCost.load(path, features=angle_alone)
    again = LearnedCost.load(path, features=angle_and_effort)
    observations, actions = sample(PENDULUM, 8)
    np.testing.assert_array_equal(cost(observations, actions), again(observations, actions))
    assert [name for name, _ in again.weights()] == ["feature[0]", "feature[1]"]


def test_a_function_for_a_cost_that_has_none_is_refused(tmp_path: Path) -> None:
    learned().save(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="feature function"):
        LearnedCost.load(tmp_path / "c.safetensors", features=angle_alone)


def test_files_that_are_no_costs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(InputError, match="no such file"):
        LearnedCost.load(path)
    path.write_text("hello, this is no checkpoint")
    with pytest.raises(InputError, match=r"x\.safetensors"):
        LearnedCost.load(path)
    Policy(PENDULUM, init_actor(jax.random.key(0), "continuous", 3, 1, (4,))).save(path)
    with pytest.raises(InputError, match="holds a policy, not a cost"):
        LearnedCost.load(path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"cost": "quadratic"}, "quadratic"),
        ({"config": {"steps": 3}}, "steps"),
        ({"environment": {"name": "x"}}, "environment"),
        ({"gamma": None}, "gamma"),
        ({"names": None}, "names"),
        ({"info": None}, "info"),
        ({"cost": "neural", "config": {}}, "another"),
    ],
)
def test_a_cost_file_with_wrong_contents_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    learned().save(path)
    arrays, saved = checkpoint.load(path, kind="cost")
    saved = {name: value for name, value in (saved | change).items() if value is not None}
    checkpoint.save(path, arrays, saved, kind="cost")
    with pytest.raises(InputError, match=message):
        LearnedCost.load(path)


def test_a_cost_file_that_lacks_an_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    learned().save(path)
    arrays, saved = checkpoint.load(path, kind="cost")
    for name, array in arrays.items():
        checkpoint.save(path, {n: a for n, a in arrays.items() if n != name}, saved, kind="cost")
        with pytest.raises(InputError, match=name):
            LearnedCost.load(path)
        checkpoint.save(path, arrays | {name: np.stack([array, array])}, saved, kind="cost")
        with pytest.raises(InputError, match=name):
            LearnedCost.load(path)


# Bad input -----------------------------------------------------------------------------------------------------------


def test_arrays_of_other_sizes_are_refused() -> None:
    cost = learned()
    observations, actions = sample(PENDULUM, 4)
    with pytest.raises(InputError, match="observations"):
        cost(observations[:, :2], actions)
    with pytest.raises(InputError, match="actions"):
        cost(observations, np.zeros((4, 2)))
    with pytest.raises(InputError, match="actions"):
        cost(observations, actions[:3])
    with pytest.raises(InputError, match="outside the 2 actions"):
        learned(LINEAR, CARTPOLE)(np.zeros((1, 4)), [2])


def test_a_cost_and_an_environment_of_other_sizes_do_not_meet() -> None:
    player, view = drawn(LINEAR, PENDULUM)
    with pytest.raises(InputError, match="3 and 1 numbers, CartPole-v1 has 4 and 2"):
        LearnedCost(player, view, CARTPOLE, 0.99)
    with pytest.raises(InputError, match="gamma is 1"):
        LearnedCost(player, view, PENDULUM, 1.0)
    with pytest.raises(InputError, match="2 names"):
        LearnedCost(player, view, PENDULUM, 0.99, names=["a", "b"])


# The reward ----------------------------------------------------------------------------------------------------------


class Falls(gym.Env):
    """Pendulum's spaces; the episode truly terminates at the third step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self) -> None:
        self.buffer = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.buffer[:] = 0.0
        return self.buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # one buffer is handed out again and again
        self.buffer += np.float32([1.0, 0.5, float(action[0])])
        return self.buffer, 7.0, bool(self.buffer[0] >= 3.0), False, {"x": 1}


@pytest.mark.parametrize("absorbing", ["shift", "charge", "ignore"])
def test_the_reward_is_minus_the_cost_of_the_pair_before_the_step(absorbing: Any) -> None:
    cost = learned()
    assert cost.absorbing > 0.1
    env = cost.reward_wrapper(Falls(), absorbing=absorbing)
    before, _ = env.reset()
    terminated = False
    for step in range(3):
        before, action = before.copy(), np.float32([0.3 * step])
        expected = -float(cost(before, action))
        before, reward, terminated, truncated, info = env.step(action)
        assert (terminated, truncated) == (step == 2, False)
        assert info == {"x": 1, "environment_reward": 7.0, "cost": pytest.approx(-expected, abs=1e-6)}
        if absorbing == "shift":
            expected += cost.absorbing
        if absorbing == "charge" and terminated:
            expected -= 0.99 * cost.absorbing / (1.0 - 0.99)
        assert reward == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert terminated


def test_shift_and_charge_rank_policies_alike() -> None:
    """Discounted returns of episodes that die at T, or never do, differ by the same constant."""
    cost, gamma, long = learned(), 0.99, 5_000
    steps = np.random.default_rng(0).normal(size=long)
    differences = []
    for length in (1, 10, 200, long):
        weights = gamma ** np.arange(length)
        shift = (weights * (cost.absorbing - steps[:length])).sum()
        charge = -(weights * steps[:length]).sum()
        if length < long:
            charge -= gamma**length * cost.absorbing / (1.0 - gamma)
        differences.append(shift - charge)
    np.testing.assert_allclose(differences, cost.absorbing / (1.0 - gamma), rtol=1e-6)


def test_it_wraps_gymnasiums_environments_alone_and_in_vectors() -> None:
    cost = learned()
    env = cost.reward_wrapper(gym.make("Pendulum-v1"))
    assert isinstance(env, CostReward)
    env.reset(seed=1)
    _, reward, _, _, info = env.step(np.float32([0.5]))
    assert isinstance(reward, float)
    assert info["environment_reward"] < 0.0
    vector = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync", wrappers=[cost.reward_wrapper])
    observations, _ = vector.reset(seed=1)
    actions = np.float32([[0.5], [-1.0]])
    _, rewards, _, _, _ = vector.step(actions)
    np.testing.assert_allclose(rewards, cost.absorbing - cost(observations, actions), rtol=1e-5, atol=1e-6)
    vector.close()


def test_observations_are_flattened_and_discrete_actions_encoded() -> None:
    env = gym.make("FrozenLake-v1", is_slippery=False)
    spec = describe(env)
    cost = learned(LINEAR, spec)
    wrapped = cost.reward_wrapper(env)
    state, _ = wrapped.reset(seed=0)
    assert state == 0
    for action in (2, 2, 1):
        expected = cost.absorbing - float(cost(np.eye(16)[state], action))
        state, reward, *_ = wrapped.step(action)
        assert reward == pytest.approx(expected, abs=1e-6)
    assert state == 6


def test_a_truncated_step_is_an_ordinary_one() -> None:
    cost = learned()
    env = cost.reward_wrapper(gym.make("Pendulum-v1", max_episode_steps=2), absorbing="charge")
    observation, _ = env.reset(seed=0)
    action = np.float32([0.5])
    observation, *_ = env.step(action)
    expected = -float(cost(observation, action))
    _, reward, terminated, truncated, _ = env.step(action)
    assert (terminated, truncated) == (False, True)
    assert reward == pytest.approx(expected, abs=1e-6)


def test_other_environments_are_refused() -> None:
    cost = learned()
    with pytest.raises(InputError, match=r"learned on Pendulum-v1 with kind continuous, CartPole-v1 has discrete"):
        cost.reward_wrapper(gym.make("CartPole-v1"))
    with pytest.raises(InputError, match="observation_size 3, MountainCarContinuous-v0 has 2"):
        cost.reward_wrapper(gym.make("MountainCarContinuous-v0"))
    with pytest.raises(InputError, match="action_low"):
        cost.reward_wrapper(gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1.0, 1.0))
    vector: Any = gym.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(InputError, match="wrap each of its environments"):
        cost.reward_wrapper(vector)
    wrong: Any = "sometimes"
    with pytest.raises(InputError, match="absorbing 'sometimes'"):
        cost.reward_wrapper(gym.make("Pendulum-v1"), absorbing=wrong)
    with pytest.raises(gym.error.ResetNeeded):
        cost.reward_wrapper(Falls()).step(np.zeros(1))


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env_id", ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "InvertedPendulum-v5"]
)
def test_mujoco_inputs_are_named_by_the_joints_they_show(env_id: str) -> None:
    """Each name leads to the joint's own coordinate in the simulator."""
    env = make(env_id)
    inner: Any = env.unwrapped
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        observation, *_ = env.step(env.action_space.sample())
    spec = describe(env)
    names = input_names(spec, env)
    assert len(names) == len(set(names)) == spec.observation_size + spec.action_size
    seen = 0
    for name, value in zip(names, observation, strict=False):
        stem, _, rest = name.partition(" ")
        joint, _, part = rest.partition(" ")
        if stem == "position":
            numbers = inner.data.joint(joint).qpos
            seen += 1
        elif stem == "velocity":
            numbers = inner.data.joint(joint).qvel
            seen += 1
        else:
            assert name.startswith("cfrc_ext[")
            continue
        place = {"x": 0, "y": 1, "z": 2, "qw": 3, "qx": 4, "qy": 5, "qz": 6, "wx": 3, "wy": 4, "wz": 5, "": 0}[part]
        # some observations cut velocities to ±10
        assert value in (pytest.approx(numbers[place]), pytest.approx(np.clip(numbers[place], -10.0, 10.0)))
    assert seen >= 4
    for i, name in enumerate(names[spec.observation_size :]):
        moved = inner.model.joint(name.removeprefix("action "))
        assert inner.model.actuator_trnid[i, 0] == moved.id
    env.close()


def test_names_fall_back_to_places() -> None:
    assert input_names(CARTPOLE) == ["obs[0]", "obs[1]", "obs[2]", "obs[3]", "action[0]", "action[1]"]
    assert input_names(CARTPOLE, gym.make("CartPole-v1"))[2:] == [
        "position pole",
        "velocity pole",
        "action[0]",
        "action[1]",
    ]
    # a task that does not say how its observations are built
    reacher = make("Reacher-v5")
    assert input_names(describe(reacher), reacher)[9:] == ["obs[9]", "action[0]", "action[1]"]
    # a wrapper that shows other numbers
    stacked = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2)
    assert input_names(describe(stacked), stacked)[:2] == ["obs[0]", "obs[1]"]


# Looking at it -------------------------------------------------------------------------------------------------------


def test_json_alone_is_enough_to_compute_a_linear_cost() -> None:
    cost = learned()
    described = json.loads(json.dumps(cost.to_json()))
    assert described["features"] == ["obs[0]", "obs[1]", "obs[2]", "action[0]"]
    assert described["absorbing"] == cost.absorbing
    observations, actions = sample(PENDULUM, 30)
    inputs = np.concatenate([observations, actions / 2.0], axis=1)
    phi = (inputs - described["mean"]) / described["std"]
    output = (phi @ described["weights"] - described["centre"]) / described["scale"]
    expected = described["gain"] * np.clip(output, -described["clip"], described["clip"])
    np.testing.assert_allclose(cost(observations, actions), expected, rtol=1e-4, atol=1e-5)


def test_weights_of_a_cost_of_states_name_the_observation_only() -> None:
    cost = learned(replace(LINEAR, inputs="states"))
    assert [name for name, _ in cost.weights()] == ["obs[0]", "obs[1]", "obs[2]"]
    np.testing.assert_allclose([weight for _, weight in cost.weights()], cost.view.params)


def test_a_network_has_no_weight_per_feature(tmp_path: Path) -> None:
    cost = learned(NEURAL)
    for asked in (cost.weights, cost.to_json, lambda: cost.export(tmp_path / "c.csv")):
        with pytest.raises(InputError, match="network"):
            asked()
    assert not list(tmp_path.iterdir())


def test_exports(tmp_path: Path) -> None:
    cost = learned()
    cost.export(tmp_path / "c.json")
    assert files.read_json(tmp_path / "c.json") == cost.to_json()
    cost.export(tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["feature", "weight"]
    assert [(name, float(weight)) for name, weight in rows[1:]] == [*cost.weights(), ("absorbing", cost.absorbing)]
    cost.export(tmp_path / "c.safetensors")
    assert LearnedCost.load(tmp_path / "c.safetensors").weights() == cost.weights()
    with pytest.raises(InputError, match=r"\.txt"):
        cost.export(tmp_path / "c.txt")


def test_pictures(tmp_path: Path) -> None:
    observations, actions = sample(PENDULUM, 300)
    written = learned().plot(tmp_path / "linear.png")
    assert written == [tmp_path / "linear.png", tmp_path / "linear.svg"]
    drawn = written[1].read_text()
    assert all(name in drawn for name in ("obs[0]", "action[0]", "Pendulum-v1"))
    many = replace(LINEAR, features="fourier", fourier_features=60)
    assert "largest 40 of 60" in learned(many).plot(tmp_path / "many")[1].read_text()
    drawn = learned(NEURAL).plot(tmp_path / "network", observations=observations, actions=actions)[1].read_text()
    assert "quantile" in drawn
    assert "obs[1]" in drawn
    states = learned(replace(NEURAL, inputs="states"))
    drawn = states.plot(tmp_path / "states")[1].read_text()
    assert "standard deviations" in drawn
    assert "action[0]" not in drawn
    assert len(list(tmp_path.iterdir())) == 8


def test_the_curves_of_a_network_are_partial_dependences() -> None:
    """The mean over pairs, with one input replaced: in a loop."""
    cost = learned(NEURAL)
    observations, actions = sample(PENDULUM, 50)
    places, curves = cost._dependence(observations, actions)
    assert curves.shape == (4, len(places))
    inputs = np.concatenate([observations, actions / 2.0], axis=1).astype(np.float32)
    for i in range(4):
        for k in (0, 9, 18):
            moved = inputs.copy()
            moved[:, i] = np.quantile(inputs[:, i], places[k])
            expected = cost.encoded(moved[:, :3], moved[:, 3:]).mean()
            assert curves[i, k] == pytest.approx(expected, abs=1e-4)


# The command ---------------------------------------------------------------------------------------------------------


def run_with(cost: LearnedCost, path: Path) -> Path:
    """A finished run's folder with a cost and demonstrations."""
    folder = RunFolder.create(path, {"env": cost.spec.env_id}, {"environment": cost.spec.to_json()})
    cost.save(folder.cost)
    observations, actions = sample(cost.spec, 41)
    trajectory = Trajectory(
        observations.astype(np.float32), actions[:40].astype(np.float32), None, terminated=False, truncated=True
    )
    Demos((trajectory,), env_id=cost.spec.env_id).save(folder.demos)
    folder.set_status("finished", step=1_000)
    folder.release()
    return path


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def test_the_command_shows_a_linear_cost(tmp_path: Path) -> None:
    cost = learned()
    run = run_with(cost, tmp_path / "run")
    shown = invoke(run, "--plot", tmp_path / "w.png", "--export", tmp_path / "w.json")
    assert shown.exit_code == 0, shown.output
    for text in ("Pendulum-v1", "linear, 4 features", "expert pays", "1,000 steps", "obs[2]", "action[0]"):
        assert text in shown.output
    observations, actions = sample(PENDULUM, 41)
    assert f"{cost(observations[:40], actions[:40]).mean():.4g} per step" in shown.output
    assert (tmp_path / "w.png").stat().st_size > 1_000
    assert files.read_json(tmp_path / "w.json")["weights"] == cost.to_json()["weights"]


def test_the_command_shows_a_network(tmp_path: Path) -> None:
    run = run_with(learned(GAIL), tmp_path / "run")
    shown = invoke(run, "--plot", tmp_path / "n", "--export", tmp_path / "n.safetensors")
    assert shown.exit_code == 0, shown.output
    assert "gail network 8-8 tanh" in shown.output
    assert "quantile" in (tmp_path / "n.svg").read_text()
    assert invoke(tmp_path / "n.safetensors").exit_code == 0


def test_the_command_refuses_what_it_cannot_show(tmp_path: Path) -> None:
    def refused(*arguments: Any) -> str:
        done = invoke(*arguments)
        assert isinstance(done.exception, InputError), done.output
        return str(done.exception)

    assert "holds no run" in refused(tmp_path)
    run = run_with(learned(NEURAL), tmp_path / "run")
    assert "network" in refused(run, "--export", tmp_path / "n.csv")
    (run / "cost.safetensors").unlink()
    assert "holds no learned cost" in refused(run)
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    assert "x.safetensors" in refused(tmp_path / "x.safetensors")
