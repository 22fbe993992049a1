"""Trajectories and sets of them: what they accept, keep, select, say and check."""

import dataclasses
import re
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from oal.base.spaces import flatten, space_from_json, space_to_json
from oal.demos import Demos, Trajectory
from oal.errors import InputError

OBSERVATIONS = np.arange(10, dtype=np.float32).reshape(5, 2)
ACTIONS = np.linspace(-1, 1, 4, dtype=np.float32)[:, None]
REWARDS = np.array([1.0, 2.0, 4.0, 8.0])


def episode(length: int = 4, *, offset: float = 0.0, final: bool = True, **changes) -> Trajectory:
    observations = np.arange(2 * (length + final), dtype=np.float32).reshape(-1, 2) + offset
    actions = np.linspace(-1, 1, length, dtype=np.float32)[:, None]
    return Trajectory(observations, actions, np.arange(length) + offset, **{"truncated": True, **changes})


class TestTrajectory:
    def test_keeps_its_own_frozen_copy(self):
        mine = OBSERVATIONS.copy()
        trajectory = Trajectory(mine, ACTIONS, REWARDS)
        mine[0, 0] = 99
        assert trajectory.observations[0, 0] == 0
        with pytest.raises(ValueError, match="read-only"):
            trajectory.observations[0, 0] = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            trajectory.terminated = True  # type: ignore[misc]

    def test_shares_arrays_that_are_read_only_already(self):
        mine = OBSERVATIONS.copy()
        mine.flags.writeable = False
        assert np.shares_memory(Trajectory(mine, ACTIONS).observations, mine)

    @pytest.mark.parametrize(
        "arguments, says",
        [
            ({"observations": OBSERVATIONS[:3]}, "3 observations and 4 actions: give 5 observations, or 4"),
            ({"actions": np.zeros((0, 1))}, "no steps"),
            ({"actions": 3.0}, "actions are a single number"),
            ({"observations": np.where(OBSERVATIONS == 5, np.nan, OBSERVATIONS)}, r"nan at step 2, index \(1,\)"),
            ({"actions": np.where(ACTIONS == 1, np.inf, ACTIONS)}, r"actions hold inf at step 3"),
            ({"observations": np.array([[{}]] * 5)}, "observations have dtype object"),
            ({"observations": np.zeros((5, 2), complex)}, "dtype complex128"),
            ({"observations": [[1, 2], [3]]}, "cannot become an array"),
            ({"rewards": REWARDS[:3]}, r"rewards have shape \(3,\): with 4 actions"),
            ({"rewards": REWARDS[:, None]}, r"rewards have shape \(4, 1\)"),
            ({"terminated": 1}, "terminated is 1: it must be True or False"),
            ({"seed": -1}, "seed is -1"),
            ({"initial_state": [1.0]}, "initial_state is a list"),
            ({"initial_state": {"qpos": [[1.0]]}}, r"'qpos' has shape \(1, 1\)"),
            ({"stride": 0}, "stride is 0"),
            ({"stride": 2}, "stride is 2 with a final observation"),
        ],
    )
    def test_refuses_what_is_not_an_episode(self, arguments, says):
        with pytest.raises(InputError, match=says):
            Trajectory(**{"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, **arguments})

    def test_final_observation_is_optional(self):
        known, unknown = Trajectory(OBSERVATIONS, ACTIONS), Trajectory(OBSERVATIONS[:4], ACTIONS)
        assert known.has_final
        assert not unknown.has_final
        assert (known.next_observations == OBSERVATIONS[1:]).all()
        with pytest.raises(InputError, match="not known"):
            _ = unknown.next_observations
        assert known.without_final() == unknown

    def test_with_final_gives_up_the_last_step_and_with_it_the_ending(self):
        cut = Trajectory(OBSERVATIONS[:4], ACTIONS, REWARDS, terminated=True).with_final()
        assert len(cut) == 3
        assert cut.has_final
        assert cut.total_reward == 7
        assert not cut.terminated
        whole = Trajectory(OBSERVATIONS, ACTIONS, terminated=True)
        assert whole.with_final() is whole
        with pytest.raises(InputError, match="one step"):
            Trajectory(OBSERVATIONS[:1], ACTIONS[:1]).with_final()

    def test_subsampling_keeps_pairs_together(self):
        thinned = Trajectory(OBSERVATIONS, ACTIONS, REWARDS).subsample(2, 1)
        assert (thinned.observations == OBSERVATIONS[[1, 3]]).all()
        assert (thinned.actions == ACTIONS[[1, 3]]).all()
        assert thinned.total_reward == 10
        assert not thinned.has_final
        assert thinned.subsample(2).stride == 4
        with pytest.raises(InputError, match="start is 4"):
            Trajectory(OBSERVATIONS, ACTIONS).subsample(9, 4)

    def test_whole_number_rewards_become_floats_and_byte_order_native(self):
        trajectory = Trajectory(OBSERVATIONS.astype(">f4"), ACTIONS, np.ones(4, int))
        assert trajectory.rewards is not None
        assert trajectory.rewards.dtype == np.float64
        assert trajectory.observations.dtype.isnative
        assert (trajectory.observations == OBSERVATIONS).all()

    def test_hash_and_equality_see_every_field(self):
        base = {"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, "truncated": True}
        changes = [
            {"observations": OBSERVATIONS + 1},
            {"observations": OBSERVATIONS.astype(np.float64)},
            {"observations": OBSERVATIONS[:4]},
            {"actions": -ACTIONS},
            {"rewards": None},
            {"terminated": True},
            {"truncated": False},
            {"seed": 1},
            {"initial_state": {"qpos": [0.0]}},
            {"observations": OBSERVATIONS[:4], "stride": 2},
        ]
        trajectories = [Trajectory(**base), *(Trajectory(**{**base, **change}) for change in changes)]
        assert len({trajectory.content_hash for trajectory in trajectories}) == len(trajectories)
        assert Trajectory(**base) == trajectories[0]
        assert all(changed != trajectories[0] for changed in trajectories[1:])

    def test_repr_shows_shapes_and_return(self):
        shown = repr(Trajectory(OBSERVATIONS, ACTIONS, REWARDS, terminated=True))
        assert (
            shown == "Trajectory(4 steps, observations (5, 2) float32, actions (4, 1) float32, return 15.0, terminated)"
        )


class TestDemos:
    @pytest.fixture
    def demos(self) -> Demos:
        episodes = (
            episode(4),
            episode(3, offset=5),
            episode(6),
            episode(2, offset=5, terminated=True, truncated=False),
        )
        return Demos(episodes, "Some-v0", source="a test", metadata={"steps": 3})

    @pytest.mark.parametrize(
        "trajectories, says",
        [
            ([], "no trajectories"),
            ([episode(), "x"], "episode 1 is a str"),
            ([episode(), Trajectory(OBSERVATIONS, ACTIONS)], "episode 1 has no rewards"),
            (
                [episode(), Trajectory(OBSERVATIONS[:, :1], ACTIONS, REWARDS)],
                r"episode 1 has observations of shape \(1,\)",
            ),
            ([episode(), Trajectory(OBSERVATIONS.astype(np.float64), ACTIONS, REWARDS)], "dtype float64"),
        ],
    )
    def test_refuses_what_does_not_belong_together(self, trajectories, says):
        with pytest.raises(InputError, match=says):
            Demos(trajectories)

    def test_refuses_spaces_of_another_shape_and_metadata_that_is_no_json(self):
        with pytest.raises(InputError, match="another environment"):
            Demos((episode(),), observation_space=spaces.Box(-1, 1, (3,)))
        with pytest.raises(InputError, match="metadata cannot be written as JSON"):
            Demos((episode(),), metadata={"when": object()})

    def test_whole_set_views_line_up(self, demos):
        assert demos.steps == len(demos.actions) == len(demos.observations) == 15
        assert demos.lengths.tolist() == [4, 3, 6, 2]
        assert demos.returns.tolist() == [6, 18, 15, 11]
        start = 0
        for trajectory in demos:
            rows = slice(start, start + len(trajectory))
            assert (demos.observations[rows] == trajectory.observations[: len(trajectory)]).all()
            assert (demos.rewards[rows] == trajectory.rewards).all()
            start += len(trajectory)

    def test_selection(self, demos):
        assert demos[1:3].returns.tolist() == [18, 15]
        assert demos.first(2).returns.tolist() == [6, 18]
        assert demos.best(3).returns.tolist() == [18, 15, 11]
        assert demos[:2].env_id == "Some-v0"
        assert demos[0] is demos.trajectories[0]
        assert demos[-1].terminated
        with pytest.raises(InputError, match="selection is empty: there are 4 episodes"):
            _ = demos[9:]
        for k in (0, 5, True):
            with pytest.raises(InputError, match="between 1 and 4"):
                demos.first(k)

    def test_random_selection_is_a_seeded_subset(self, demos):
        chosen = [tuple(demos.random(2, seed=seed).returns) for seed in range(30)]
        assert chosen == [tuple(demos.random(2, seed=seed).returns) for seed in range(30)]
        pairs = {(a, b) for i, a in enumerate(demos.returns) for b in demos.returns[i + 1 :]}
        assert set(chosen) == pairs  # all six, each in the old order

    def test_subsampling_draws_a_start_per_episode(self, demos):
        assert demos.subsample(3).lengths.tolist() == [2, 1, 2, 1]
        starts = set()
        for seed in range(40):
            thinned = demos.subsample(3, seed=seed)
            assert thinned == demos.subsample(3, seed=seed)
            first = tuple(int(t.rewards[0] - whole.rewards[0]) for t, whole in zip(thinned, demos, strict=True))
            assert all(start < min(3, length) for start, length in zip(first, demos.lengths, strict=True))
            starts.add(first)
        assert len(starts) > 10

    def test_best_needs_rewards(self):
        with pytest.raises(InputError, match="no rewards"):
            Demos((Trajectory(OBSERVATIONS, ACTIONS),)).best(1)

    def test_time_limit_tells_terminations_from_cuts(self, demos):
        told = dataclasses.replace(demos, endings_known=False).with_time_limit(6)
        assert [t.terminated for t in told] == [True, True, False, True]
        assert [t.truncated for t in told] == [False, False, True, False]
        assert told.endings_known
        with pytest.raises(InputError, match="episode 2: it has 6 steps, more than the time limit of 5"):
            demos.with_time_limit(5)
        with pytest.raises(InputError, match="steps were left out"):
            demos.subsample(2).with_time_limit(6)

    def test_errors_of_one_episode_name_it(self, demos):
        with pytest.raises(InputError, match=r"episode 3: .*one step"):
            dataclasses.replace(demos, trajectories=(*demos.trajectories[:3], episode(1, final=False))).with_final()

    def test_statistics_are_numpys(self, demos):
        figures = demos.statistics()
        assert (figures.episodes, figures.steps, figures.terminated, figures.truncated) == (4, 15, 1, 3)
        assert figures.lengths.max == 6
        assert figures.returns is not None
        assert figures.returns.mean == pytest.approx(np.mean([6, 18, 15, 11]))
        assert figures.observations.std == pytest.approx(demos.observations.astype(float).std(0))
        assert figures.actions.min == [-1]

    def test_repr_and_hash(self, demos):
        shown = "Some-v0, 4 episodes, 15 steps, observations (2,) float32, actions (1,) float32, length 2 to 6"
        assert shown in repr(demos)
        assert "return 12.5 ± 4.5 [6.0, 18.0]" in repr(demos)
        assert demos.content_hash[:8] in repr(demos)
        renamed = dataclasses.replace(demos, env_id="Other-v0", source=None)
        assert renamed.content_hash == demos.content_hash
        assert renamed != demos
        assert demos[::-1].content_hash != demos.content_hash


class TestCheck:
    def bounded(self, actions: np.ndarray) -> Demos:
        return Demos((Trajectory(np.zeros((len(actions), 2), np.float32), actions),))

    def check(self, demos: Demos, action_space: spaces.Space, strict: bool = False) -> Demos:
        box = spaces.Box(-np.inf, np.inf, (2,))
        return demos.check(observation_space=box, action_space=action_space, strict=strict)

    def test_actions_outside_are_counted_and_clipped_or_refused(self):
        demos = self.bounded(np.array([[0.5], [1.5], [-3.0], [1.0]], np.float32))
        box = spaces.Box(-1, 1, (1,))
        with pytest.warns(UserWarning, match=r"2 of 4 action values lie outside .* first 1.5 in episode 0, step 1"):
            checked = self.check(demos, box)
        assert checked.actions.ravel().tolist() == [0.5, 1, -1, 1]
        assert checked.action_space == box
        with pytest.raises(InputError, match="2 of 4 action values"):
            self.check(demos, box, strict=True)

    def test_rounding_is_no_trespass(self):
        demos = self.bounded(np.array([[1.0000001]], np.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.check(demos, spaces.Box(-1, 1, (1,)), strict=True).actions.item() == 1.0

    @pytest.mark.parametrize("actions", [np.array([[2], [1]]), np.array([2.0, 1.0]), np.array([2, 1], np.uint8)])
    def test_discrete_actions_become_plain_integers(self, actions):
        checked = self.check(self.bounded(actions), spaces.Discrete(2, start=1))
        assert checked.actions.tolist() == [2, 1]
        assert checked.actions.dtype == np.int64

    @pytest.mark.parametrize(
        "actions, says",
        [
            (np.array([0, 3]), "step 1: action 3 is not one of 0 to 2"),
            (np.array([0.5, 1]), "one whole number a step"),
            (np.zeros((2, 2), int), "one whole number a step"),
        ],
    )
    def test_discrete_actions_outside_are_refused(self, actions, says):
        with pytest.raises(InputError, match=says):
            self.check(self.bounded(actions), spaces.Discrete(3))

    def test_another_environments_demonstrations_are_refused(self):
        demos = Demos((Trajectory(np.zeros((3, 4), np.float32), np.zeros((2, 1), np.float32)),))
        with pytest.raises(InputError, match=r"observations have shape \(4,\) each, Pendulum-v1 has \(3,\)"):
            demos.check("Pendulum-v1")
        with pytest.raises(InputError, match=r"actions .* CartPole-v1 takes one whole number"):
            Demos((Trajectory(demos[0].observations, np.zeros((2, 2))),)).check("CartPole-v1")
        with pytest.raises(InputError, match="Nowhere-v0"):
            demos.check("Nowhere-v0")
        with pytest.raises(InputError, match="give an environment"):
            demos.check()

    def test_observations_outside_their_bounds_are_counted(self):
        demos = Demos((Trajectory(np.full((3, 2), 2.0), np.zeros((2, 1))),))
        inside = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Box(-1, 1, (1,))}
        with pytest.warns(UserWarning, match="6 of 6 observation values"):
            demos.check(**inside)
        with pytest.raises(InputError, match="observation values lie outside"):
            demos.check(**inside, strict=True)

    def test_whole_number_observations_become_what_the_learner_sees(self):
        demos = Demos((Trajectory(np.array([0, 2, 1]), np.array([1, 0])),))
        checked = demos.check(observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2))
        assert checked[0].observations.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
        assert checked.observations.dtype == np.float32

    def test_against_a_real_environment(self):
        demos = Demos((Trajectory(np.zeros((3, 3), np.float32), np.zeros((2, 1), np.float32)),)).check("Pendulum-v1")
        assert demos.env_id == "Pendulum-v1"
        assert demos.action_space == spaces.Box(-2, 2, (1,))


SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(np.array([-1, -np.inf]), np.array([0.1, 2]), dtype=np.float64),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space):
    import json

    assert space_from_json("here", json.loads(json.dumps(space_to_json(space), allow_nan=False))) == space


@pytest.mark.parametrize(
    "space",
    [
        *SPACES,
        spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,), np.float32)}),
        spaces.Tuple(
            [spaces.MultiDiscrete([2, 3]), spaces.Dict({"x": spaces.MultiBinary(2)}), spaces.Discrete(2, start=5)]
        ),
    ],
    ids=str,
)
def test_flattening_batches_is_gymnasiums_flattening(space):
    space.seed(0)
    samples = [space.sample() for _ in range(7)]

    def batch(values, inner):
        if isinstance(inner, spaces.Dict):
            return {key: batch([value[key] for value in values], part) for key, part in inner.spaces.items()}
        if isinstance(inner, spaces.Tuple):
            return [batch([value[i] for value in values], part) for i, part in enumerate(inner.spaces)]
        return np.array(values)

    flat = flatten("here", space, batch(samples, space))
    expected = np.stack([spaces.flatten(space, sample) for sample in samples])
    assert flat.shape == expected.shape == (7, spaces.flatdim(space))
    assert (flat == expected).all()


def test_flattening_refuses_what_is_not_in_the_space():
    both = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,))})
    with pytest.raises(InputError, match=re.escape("here: its part 'b' is missing")):
        flatten("here", both, {"a": np.array([0])})
    with pytest.raises(InputError, match="whole numbers from 0 to 1"):
        flatten("here", both, {"a": np.array([2]), "b": np.zeros((1, 1))})
    with pytest.raises(InputError, match="1, 2 rows"):
        flatten("here", both, {"a": np.array([0]), "b": np.zeros((2, 1))})
