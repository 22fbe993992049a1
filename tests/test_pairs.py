"""Demonstrations as a learner takes them: encoded once, and packed into a checkpoint."""

import numpy as np
import pytest

from oal.base.arrays import below, prefixed
from oal.demos import Demos, Trajectory
from oal.demos.pack import pack, unpack
from oal.demos.pairs import encode
from oal.envs import EnvSpec
from oal.errors import InputError
from shapes import check_shapes

CONTINUOUS = EnvSpec("Some-v0", "continuous", 3, 2, (-2.0, 0.0), (2.0, 1.0), (2,), horizon=50)
DISCRETE = EnvSpec("Other-v0", "discrete", 3, 4, action_start=1, horizon=50)


def episode(rng, length: int, *, final: bool = True, rewards: bool = True, **more) -> Trajectory:
    actions = rng.uniform([-2.0, 0.0], [2.0, 1.0], (length, 2))
    reward = rng.normal(size=length) if rewards else None
    return Trajectory(rng.normal(size=(length + final, 3)), actions, reward, **more)


def test_every_step_is_encoded_as_the_learners_own(rng):
    trajectory = episode(rng, 5)
    (encoded,) = encode([trajectory], CONTINUOUS)
    for t in range(5):
        assert encoded.observation[t] == pytest.approx(trajectory.observations[t])
        low, high = np.array(CONTINUOUS.action_low), np.array(CONTINUOUS.action_high)
        assert encoded.action[t] == pytest.approx(2 * (trajectory.actions[t] - low) / (high - low) - 1, abs=1e-6)
    assert encoded.observation.dtype == encoded.action.dtype == np.float32
    assert encoded.time.tolist() == [0, 1, 2, 3, 4]


def test_discrete_actions_are_one_hot_and_pictures_flat(rng):
    pictures = rng.integers(0, 255, (3, 3, 1)).astype(np.uint8)
    (encoded,) = encode([Trajectory(pictures, np.array([1, 4, 2]))], DISCRETE)
    assert encoded.action.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert encoded.observation.tolist() == pictures[:, :, 0].tolist()


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("rewards", [True, False])
def test_transitions_are_the_steps_whose_successor_is_known(final, terminated, rewards, rng):
    trajectory = episode(rng, 6, final=final, rewards=rewards, terminated=terminated)
    (encoded,) = encode([trajectory], CONTINUOUS)
    steps = encoded.transitions()
    check_shapes(encoded)
    check_shapes(steps)
    known = 6 if final else 5
    assert {len(part) for part in steps} == {known}
    assert steps.next_observation == pytest.approx(trajectory.observations[1 : known + 1])
    assert steps.cost == pytest.approx(-trajectory.rewards[:known] if rewards else np.zeros(known))
    assert steps.terminated.tolist() == [terminated and t == 5 for t in range(known)]
    assert steps.time.tolist() == list(range(known))


def test_a_thinned_episode_has_pairs_but_no_transitions(rng):
    (encoded,) = encode([episode(rng, 10, terminated=True).subsample(4)], CONTINUOUS)
    assert len(encoded) == 3
    assert encoded.time.tolist() == [0, 4, 8]
    assert encoded.steps == 12
    assert {len(part) for part in encoded.transitions()} == {0}
    check_shapes(encoded)
    check_shapes(encoded.transitions())


def test_what_cannot_be_encoded_is_refused(rng):
    with pytest.raises(InputError, match="there are no demonstrations"):
        encode([], CONTINUOUS)
    with pytest.raises(InputError, match="observations have 2 numbers, Some-v0 gives 3"):
        encode([episode(rng, 3), Trajectory(np.zeros((2, 2)), np.zeros((2, 2)))], CONTINUOUS)
    with pytest.raises(InputError, match="actions have 3 numbers, Some-v0 takes 2"):
        encode([Trajectory(np.zeros((2, 3)), np.zeros((2, 3)))], CONTINUOUS)


def test_packing_keeps_what_learning_uses(rng):
    demos = Demos((episode(rng, 4, terminated=True), episode(rng, 7, truncated=True).subsample(3)), "Some-v0")
    arrays = prefixed("demos", pack(demos))
    assert {name for name in arrays if name.startswith("demos/1/")} == {
        f"demos/1/{name}" for name in ("observations", "actions", "rewards", "ends", "stride")
    }
    assert unpack(below("demos", arrays | {"other/0/actions": np.zeros(1)}), "Some-v0") == demos


def test_packing_without_rewards(rng):
    demos = Demos(tuple(episode(rng, length, rewards=False) for length in range(1, 13)))
    assert unpack(pack(demos), None) == demos
