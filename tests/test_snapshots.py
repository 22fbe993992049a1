"""A restored environment goes on exactly as the one whose state was read, through ends of episodes and resets."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.vector import SyncVectorEnv

from oal.base import checkpoint
from oal.envs import Envs, VectorEnvs, uniform_actions
from oal.errors import InputError

MUJOCO = [
    *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5"),
    *("InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5"),
]
CLASSIC = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
TOY_TEXT = ["CliffWalking-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4"]


def walk(stepper: Envs, steps: int, rng: np.random.Generator) -> tuple[list[bytes], int]:
    """Act at random; return every bit of what happened, and the number of episodes that ended."""
    seen, ends = [], 0
    for _ in range(steps):
        step = stepper.step(uniform_actions(stepper.spec, len(stepper), rng))
        seen.append(b"".join(part.tobytes() for part in step) + stepper.observation.tobytes())
        ends += int((step.terminated | step.truncated).sum())
    return seen, ends


@pytest.mark.parametrize("env_id", [*MUJOCO, *CLASSIC, *TOY_TEXT])
def test_the_continuation_is_equal_bit_for_bit_over_several_episodes(env_id: str, tmp_path: Path) -> None:
    horizon = 60  # so that episodes end that would not by themselves
    for count, before in ((1, 25), (2, 47), (1, 60)):
        rng = np.random.default_rng(before)
        one = Envs(env_id, count=count, seed=1, horizon=horizon)
        walk(one, before, rng)
        snapshot = one.state()
        assert snapshot is not None
        checkpoint.save(tmp_path / "state.safetensors", *snapshot, kind="test")
        expected, ends = walk(one, 4 * horizon, np.random.default_rng(2))
        assert ends >= 3 * count

        other = Envs(env_id, count=count, seed=99, horizon=horizon)
        walk(other, 31, rng)
        other.restore(*checkpoint.load(tmp_path / "state.safetensors", kind="test"))
        assert walk(other, 4 * horizon, np.random.default_rng(2))[0] == expected
        assert (other.episode_returns, other.episode_lengths) == (one.episode_returns, one.episode_lengths)
        assert other.finished == one.finished


def test_reading_the_state_changes_nothing_and_the_state_is_a_copy() -> None:
    one, other = Envs("Ant-v5", seed=1), Envs("Ant-v5", seed=1)
    for stepper in (one, other):
        walk(stepper, 20, np.random.default_rng(0))
    snapshot = one.state()
    assert snapshot is not None
    kept = {name: array.copy() for name, array in snapshot[0].items()}, json.dumps(snapshot[1])
    assert walk(one, 50, np.random.default_rng(1)) == walk(other, 50, np.random.default_rng(1))
    assert json.dumps(snapshot[1]) == kept[1]
    for name, array in snapshot[0].items():
        np.testing.assert_array_equal(array, kept[0][name], err_msg=name)


@pytest.mark.parametrize(
    "env_id, part",
    [
        *[("Ant-v5", part) for part in ("np_random", "integration", "xpos", "elapsed_steps")],
        ("Humanoid-v5", "xipos"),
        ("Pendulum-v1", "state"),
    ],
)
def test_each_part_of_the_state_is_needed(env_id: str, part: str) -> None:
    """Without any one of them the continuation differs, so the test above would see it missing."""
    one = Envs(env_id, seed=1, horizon=40)
    walk(one, 25, np.random.default_rng(0))
    snapshot = one.state()
    assert snapshot is not None
    expected, _ = walk(one, 80, np.random.default_rng(2))
    other = Envs(env_id, seed=5, horizon=40)
    untouched = other.state()
    assert untouched is not None
    arrays, (info,) = dict(snapshot[0]), snapshot[1]["environments"]
    if part in info:
        info[part] = untouched[1]["environments"][0][part]
    else:
        arrays[f"0/{part}"] = untouched[0][f"0/{part}"]
    other.restore(arrays, {"environments": [info]})
    assert walk(other, 80, np.random.default_rng(2))[0] != expected


class OwnPendulum(PendulumEnv):
    """An environment of the user's that may remember anything."""


@pytest.mark.parametrize(
    "make",
    [
        OwnPendulum,
        lambda: gym.wrappers.NormalizeReward(gym.make("Pendulum-v1")),
        lambda: gym.wrappers.NormalizeObservation(gym.make("Hopper-v5")),
        lambda: gym.wrappers.TimeAwareObservation(gym.make("Pendulum-v1")),
        lambda: gym.make("Blackjack-v1"),
    ],
)
def test_what_is_not_known_is_not_read(make: Any) -> None:
    stepper = Envs(make, horizon=50)
    stepper.step(uniform_actions(stepper.spec, 1, np.random.default_rng(0)))
    assert stepper.state() is None


def test_another_kind_of_random_numbers_is_not_read() -> None:
    stepper = Envs("CartPole-v1")
    stepper.envs[0].unwrapped.np_random = np.random.Generator(np.random.MT19937(3))
    assert stepper.state() is None


def test_the_state_of_a_vector_environment_is_not_known() -> None:
    stepper = VectorEnvs(SyncVectorEnv([lambda: gym.make("Pendulum-v1")]), horizon=200)
    assert stepper.state() is None
    with pytest.raises(InputError, match="restart its episodes"):
        stepper.restore({}, {})


def test_a_state_that_does_not_fit_is_refused() -> None:
    snapshot = Envs("Pendulum-v1").state()
    assert snapshot is not None
    with pytest.raises(InputError, match="another number of them"):
        Envs("Pendulum-v1", count=2).restore(*snapshot)
    arrays, info = Envs("Hopper-v5").state() or pytest.fail("Hopper can be read")
    with pytest.raises(InputError, match="another environment"):
        Envs("Pendulum-v1").restore(arrays, info)
    arrays["0/integration"] = arrays["0/integration"][:-1]
    with pytest.raises(InputError, match="another model's"):
        Envs("Hopper-v5").restore(arrays, info)
    swapped = {**snapshot[1]["environments"][0], "class": "another.Env"}
    with pytest.raises(InputError, match=r"saved state of a another\.Env does not fit"):
        Envs("Pendulum-v1").restore(snapshot[0], {"environments": [swapped]})


def test_a_lake_drawn_at_random_is_not_taken_for_another() -> None:
    def lake() -> gym.Env:
        return gym.make("FrozenLake-v1", desc=None, map_name=None)

    drawn = Envs(lake, horizon=50)
    snapshot = drawn.state()
    assert snapshot is not None
    drawn.restore(*snapshot)
    with pytest.raises(InputError, match="made in another way"):
        Envs("FrozenLake8x8-v1", horizon=50).restore(*snapshot)
