"""Demonstrations from arrays that people have in memory or in a plain file: what is taken, and what is asked."""

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from games import CONTINUOUS, DICTIONARY, Walk
from oal import demos
from oal.cli import app
from oal.demos import Demos
from oal.errors import InputError

LENGTHS = [3, 2, 4]
OBSERVATIONS = [np.arange(2 * n + 2, dtype=np.float32).reshape(n + 1, 2) / 20 + i for i, n in enumerate(LENGTHS)]
ACTIONS = [np.linspace(-1, 2, n, dtype=np.float32)[:, None] for n in LENGTHS]
REWARDS = [np.arange(n) + i for i, n in enumerate(LENGTHS)]


def flags(*ends: bool) -> np.ndarray:
    """One flag a step, set at the last steps of the episodes that are named."""
    flag = np.zeros(sum(LENGTHS), bool)
    flag[np.cumsum(LENGTHS) - 1] = ends
    return flag


def same(one: Demos, other: Demos) -> None:
    assert [t.content_hash for t in one] == [t.content_hash for t in other]


def test_lists_of_episodes_are_taken_as_they_are():
    made = Demos.from_arrays(OBSERVATIONS, ACTIONS, REWARDS, terminated=[True, False, True])
    assert made.lengths.tolist() == LENGTHS
    assert made.has_finals
    assert [(t.terminated, t.truncated) for t in made] == [(True, False), (False, True), (True, False)]
    assert made.endings_known
    assert made.returns is not None
    assert made.returns.tolist() == [3, 3, 14]
    for trajectory, observations in zip(made, OBSERVATIONS, strict=True):
        np.testing.assert_array_equal(trajectory.observations, observations)


def test_without_endings_episodes_are_cut_off_and_that_is_a_guess():
    made = Demos.from_arrays(OBSERVATIONS, ACTIONS)
    assert all(t.truncated and not t.terminated for t in made)
    assert not made.endings_known
    assert made.rewards is None


@pytest.mark.parametrize("finals", [True, False])
def test_steps_in_a_row_are_cut_by_lengths_or_by_flags(finals):
    shown = OBSERVATIONS if finals else [observations[:-1] for observations in OBSERVATIONS]
    rows = [np.concatenate(part) for part in (shown, ACTIONS, REWARDS)]
    expected = Demos.from_arrays(shown, ACTIONS, REWARDS, terminated=[True, False, True])
    terminated, truncated = flags(True, False, True), flags(False, True, False)
    same(Demos.from_arrays(*rows, terminated=terminated, truncated=truncated), expected)
    same(Demos.from_arrays(*rows, lengths=LENGTHS, terminated=terminated), expected)
    same(Demos.from_arrays(*rows, lengths=np.array(LENGTHS), terminated=terminated.astype(float)), expected)


def test_a_last_episode_without_an_ending_is_a_part_of_one():
    rows = np.zeros((9, 2)), np.zeros((9, 1))
    made = Demos.from_arrays(*rows, terminated=flags(True, False, False), truncated=flags(False, False, False))
    assert [(len(t), t.terminated, t.truncated) for t in made] == [(3, True, False), (6, False, False)]


def test_one_length_stands_for_all_episodes():
    assert Demos.from_arrays(np.zeros((9, 2)), np.zeros(9, int), lengths=3).lengths.tolist() == [3, 3, 3]
    assert Demos.from_arrays(np.zeros((12, 2)), np.zeros(9, int), lengths=3).has_finals
    with pytest.raises(InputError, match="9 steps are no whole number of episodes of 4"):
        Demos.from_arrays(np.zeros((9, 2)), np.zeros(9, int), lengths=4)


def test_steps_in_a_row_without_a_word_on_episodes_are_a_question():
    with pytest.raises(InputError, match=r"9 steps in a row: where do episodes begin and end\? Say lengths="):
        Demos.from_arrays(np.zeros((9, 2)), np.zeros((9, 1)))


def test_the_environment_tells_a_stack_of_episodes_from_steps():
    stack = np.zeros((4, 6, 2), np.float32), np.zeros((4, 5, 1), np.float32)
    assert Demos.from_arrays(*stack, env=CONTINUOUS).lengths.tolist() == [5, 5, 5, 5]
    steps = [np.zeros(2)] * 6, [np.zeros(1)] * 6
    assert Demos.from_arrays(*steps, env=CONTINUOUS, lengths=6).lengths.tolist() == [6]


@pytest.mark.parametrize("env", [CONTINUOUS, Walk, Walk()], ids=["id", "function", "environment"])
def test_actions_are_checked_against_the_environment(env):
    with pytest.warns(UserWarning, match="1 of 3 action values lie outside its bounds, first 3.5"):
        made = Demos.from_arrays([np.zeros((3, 2))], [[[-1.0], [0.0], [3.5]]], env=env)
    assert made.actions.ravel().tolist() == [-1.0, 0.0, 3.0]
    assert made.action_space == spaces.Box(-1.0, 3.0, (1,), np.float32)
    with pytest.raises(InputError, match="1 of 3 action values"):
        Demos.from_arrays([np.zeros((3, 2))], [[[-1.0], [0.0], [3.5]]], env=env, strict=True)
    assert made.env_id == (CONTINUOUS if isinstance(env, str) else None)


PLACE = np.linspace(-1, 1, 7, dtype=np.float32)[:, None]


def test_dict_observations_become_what_the_learner_sees():
    """As arrays of each key, as lists of episodes of these, and as the dictionaries that the environment gave."""
    ones = np.ones_like(PLACE)
    given = {"place": PLACE, "one": ones}
    taken = np.zeros((6, 1), np.float32)
    flat = np.concatenate([ones, PLACE], axis=1)  # in the space's order of keys
    steps = [{"place": PLACE[i], "one": ones[i]} for i in range(7)]
    for observations, actions, more in (
        (given, taken, {"lengths": 6}),
        ([given], [taken], {}),
        ([steps], [taken], {}),
        (steps, taken, {"lengths": 6}),
        (flat, taken, {"lengths": 6}),
    ):
        made = Demos.from_arrays(observations, actions, env=DICTIONARY, **more)
        np.testing.assert_array_equal(made[0].observations, flat)
        assert made.observations.dtype == np.float32
    with pytest.raises(InputError, match=r"a dictionary, whose keys have no order.*env="):
        Demos.from_arrays(given, taken, lengths=6)
    with pytest.raises(InputError, match=r"a dictionary, and those of the environment are Box.*another environment"):
        Demos.from_arrays(given, taken, lengths=6, env=CONTINUOUS)
    with pytest.raises(InputError, match="its part 'one' is missing"):
        Demos.from_arrays({"place": PLACE}, taken, lengths=6, env=DICTIONARY)


def test_nested_spaces_of_the_environments_own_samples():
    class Nested(Walk):
        def __init__(self) -> None:
            super().__init__()
            inner = spaces.Dict({"goal": spaces.Box(-1, 1, (2, 2)), "on": spaces.MultiBinary(2)})
            self.observation_space = spaces.Dict({"task": inner, "room": spaces.Tuple([spaces.Discrete(3)])})

    space = Nested().observation_space
    space.seed(1)
    samples = [space.sample() for _ in range(5)]
    made = Demos.from_arrays([samples], [np.zeros((4, 1))], env=Nested)
    expected = np.stack([spaces.flatten(space, sample) for sample in samples])
    np.testing.assert_allclose(made[0].observations, expected)


@pytest.mark.parametrize("rewards", [None, [None] * 3, [np.full(n, np.nan) for n in LENGTHS], [[1.0, None, 2.0]] * 3])
def test_rewards_of_none_or_nan_are_no_rewards(rewards):
    assert Demos.from_arrays(OBSERVATIONS, ACTIONS, rewards).rewards is None


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((OBSERVATIONS[:2], ACTIONS), "observations are of 2 episodes and actions of 3"),
        ((OBSERVATIONS, ACTIONS, REWARDS[:1]), "rewards are of 1 episodes and actions of 3"),
        (([o[:-2] for o in OBSERVATIONS], ACTIONS), "episode 0: there are 2 observations and 3 actions"),
        (([np.full((4, 2), np.nan)], [ACTIONS[0]]), "episode 0: observations hold nan at step 0"),
    ],
)
def test_what_does_not_fit_is_named(arguments, says):
    with pytest.raises(InputError, match=re.escape(says)):
        Demos.from_arrays(*arguments)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"lengths": [4, 4]}, "lengths sum to 8: there are 9 actions"),
        ({"lengths": [9], "observations": np.zeros((8, 2))}, "8 observations and 9 actions in 1 episodes: give 9"),
        ({"lengths": [9], "rewards": np.zeros(4)}, "rewards have shape (4,): there are 9 actions"),
        ({"terminated": np.ones(4)}, "terminated has shape (4,): with 9 actions"),
        ({"terminated": np.full(9, 0.5)}, "terminated has shape (9,)"),
        ({"lengths": [9], "actions": [np.zeros((9, 1))]}, "with one array per episode leave them out"),
    ],
)
def test_steps_in_a_row_that_do_not_fit_are_named(arguments, says):
    with pytest.raises(InputError, match=re.escape(says)):
        Demos.from_arrays(**{"observations": np.zeros((9, 2)), "actions": np.zeros((9, 1)), **arguments})


# Plain files


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.npz"
    np.savez(path, obs=np.concatenate(OBSERVATIONS), acts=np.concatenate(ACTIONS))
    return path


def test_a_plain_file_is_a_question_and_its_answer(plain):
    with pytest.raises(InputError, match=r"holds obs and acts, 9 steps in a row: where do episodes .* --lengths"):
        demos.load(plain)
    same(demos.load(plain, lengths=LENGTHS), Demos.from_arrays(OBSERVATIONS, ACTIONS))
    assert demos.detect(plain) == "arrays"
    with pytest.raises(InputError, match=r"plain\.npz: lengths sum to 8"):
        demos.load(plain, lengths=[4, 4])
    with pytest.raises(InputError, match="knows where its episodes begin"):
        demos.load("CartPole-v1", lengths=3)


def test_a_plain_file_may_say_it_itself(tmp_path):
    rows = {"states": np.concatenate(OBSERVATIONS), "actions": np.concatenate(ACTIONS)}
    np.savez(tmp_path / "a.npz", **rows, lengths=LENGTHS)
    np.savez(tmp_path / "b.npz", **rows, terminals=flags(True, False, True), timeouts=flags(False, True, False))
    same(demos.load(tmp_path / "a.npz"), Demos.from_arrays(OBSERVATIONS, ACTIONS))
    same(demos.load(tmp_path / "b.npz"), Demos.from_arrays(OBSERVATIONS, ACTIONS, terminated=[True, False, True]))
    np.savez(tmp_path / "c.npz", **rows, extra=np.zeros(3))
    with pytest.raises(InputError, match="holds states, actions, extra; the formats have"):
        demos.load(tmp_path / "c.npz")


def test_the_command_asks_and_takes_the_answer(plain, tmp_path):
    run = CliRunner()
    asked = run.invoke(app, ["demos", "convert", str(plain), str(tmp_path / "demos.npz")])
    assert "where do episodes begin" in str(asked.exception)
    done = run.invoke(app, ["demos", "convert", str(plain), str(tmp_path / "demos.npz"), "--lengths", "3,2,4"])
    assert done.exit_code == 0, done.output
    same(demos.load(tmp_path / "demos.npz"), Demos.from_arrays(OBSERVATIONS, ACTIONS))
    assert "--lengths is '3;2'" in str(run.invoke(app, ["demos", "show", str(plain), "--lengths", "3;2"]).exception)


def test_what_came_from_arrays_can_be_learned_from(tmp_path):
    gym.make(DICTIONARY).close()
    made = Demos.from_arrays({"place": PLACE, "one": PLACE}, np.zeros((6, 1), np.float32), env=DICTIONARY, lengths=6)
    made.save(tmp_path / "demos.npz")
    assert demos.load(tmp_path / "demos.npz", env=DICTIONARY) == made


def test_flags_of_each_step_say_how_an_episode_ended_and_one_flag_does_not_say_where():
    each = [np.arange(n) == n - 1 for n in LENGTHS]
    ended = [each[0], np.zeros(LENGTHS[1], bool), each[2].tolist()]
    same(
        Demos.from_arrays(OBSERVATIONS, ACTIONS, REWARDS, terminated=ended),
        Demos.from_arrays(OBSERVATIONS, ACTIONS, REWARDS, terminated=[True, False, True]),
    )
    with pytest.raises(InputError, match=r"episode 0: terminated has shape \(2,\).*each of the 3 steps"):
        Demos.from_arrays(OBSERVATIONS, ACTIONS, terminated=[[True, False], False, True])
    rows = [np.concatenate([observations[:-1] for observations in OBSERVATIONS]), np.concatenate(ACTIONS)]
    for flag in (True, False):
        with pytest.raises(InputError, match="where do episodes begin and end"):
            Demos.from_arrays(*rows, truncated=flag)
    same(Demos.from_arrays(*rows, lengths=9, truncated=True), Demos.from_arrays(*rows, lengths=[9]))
