"""The boundary to Gymnasium: final observations, scaling, absorbing states, evaluation."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from oal import envs
from oal.demos.record import record_encoded
from oal.envs import (
    ActionCodec,
    Envs,
    EnvSpec,
    EpisodeRunner,
    VectorEnvs,
    absorbing_value,
    bootstrap_target,
    describe,
    occupancy_masses,
)
from oal.envs.names import input_names
from oal.errors import InputError
from replaying import replay_rewards
from shapes import check_shapes


class Counter(gym.Env):
    """Observes [steps so far, episode number]; dies at step `dies_at` or is cut off at step `cut_at`. Reward 2."""

    observation_space: spaces.Space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space: spaces.Space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))

    def __init__(self, dies_at: int = 3, cut_at: int = 10**6) -> None:
        self.dies_at, self.cut_at = dies_at, cut_at
        self.time, self.episode, self.seeds = 0, -1, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.time, self.episode = 0, self.episode + 1
        return np.array([0.0, self.episode]), {}

    def step(self, action: Any):
        self.last_action = action
        self.time += 1
        dead = self.time >= self.dies_at
        return np.array([self.time, self.episode], float), 2.0, dead, not dead and self.time >= self.cut_at, {}


def actions(count: int) -> np.ndarray:
    return np.zeros((count, 2), np.float32)


def test_final_observation_enters_the_step_and_the_next_episode_begins() -> None:
    stepper = Envs(lambda: Counter(dies_at=2), horizon=50)
    first, last, after = (stepper.step(actions(1)) for _ in range(3))
    assert first.next_observation.tolist() == [[1.0, 0.0]]
    assert not first.terminated[0]
    assert last.observation.tolist() == [[1.0, 0.0]]
    assert last.next_observation.tolist() == [[2.0, 0.0]], "the final observation, not the reset one"
    assert last.terminated.tolist() == [True]
    assert last.truncated.tolist() == [False]
    assert after.observation.tolist() == [[0.0, 1.0]]
    assert first.cost.tolist() == [-2.0]
    assert stepper.finished == [(4.0, 2)]
    assert first.observation.dtype == first.next_observation.dtype == first.cost.dtype == np.float32


def test_time_limit_truncates_and_does_not_terminate() -> None:
    stepper = Envs(lambda: Counter(dies_at=100), horizon=3)
    steps = [stepper.step(actions(1)) for _ in range(3)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True]
    assert not any(step.terminated[0] for step in steps)
    assert steps[-1].next_observation.tolist() == [[3.0, 0.0]]


def test_environments_of_one_stepper_end_independently_and_have_their_own_seeds() -> None:
    lengths = iter([2, 3])
    stepper = Envs(lambda: Counter(dies_at=next(lengths)), count=2, horizon=50)
    seeds = [env.unwrapped.seeds[0] for env in stepper.envs]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(set(seeds)) == 2
    stepper.step(actions(2))
    step = stepper.step(actions(2))
    assert step.terminated.tolist() == [True, False]
    assert step.next_observation.tolist() == [[2.0, 0.0], [2.0, 0.0]]
    assert stepper.observation.tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_same_seed_same_episodes_and_restart_depends_on_its_index_only() -> None:
    def trace(restart: int | None, steps_before: int) -> np.ndarray:
        stepper = Envs("Pendulum-v1", seed=7)
        for _ in range(steps_before):
            stepper.step(np.zeros((1, 1), np.float32))
        if restart is not None:
            stepper.restart(restart)
        return np.concatenate([stepper.step(np.ones((1, 1), np.float32)).next_observation for _ in range(210)])

    np.testing.assert_array_equal(trace(None, 0), trace(None, 0))
    np.testing.assert_array_equal(trace(5, 3), trace(5, 17))
    assert not np.array_equal(trace(5, 0), trace(6, 0))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_autoreset_mode_gives_the_transitions_of_single_environments(mode: AutoresetMode) -> None:
    def single(dies_at: int) -> gym.Env:
        return gym.wrappers.TimeLimit(Counter(dies_at), 4)

    vector = SyncVectorEnv([lambda: single(2), lambda: single(9)], autoreset_mode=mode)
    stepper = VectorEnvs(vector, horizon=4)
    seen: list[list[tuple[Any, ...]]] = [[], []]
    for _ in range(12):
        step = stepper.step(actions(2))
        for i in range(2):
            if step.valid[i]:
                seen[i].append(
                    (
                        step.observation[i].tolist(),
                        step.next_observation[i].tolist(),
                        float(step.cost[i]),
                        bool(step.terminated[i]),
                        bool(step.truncated[i]),
                    )
                )
    for i, dies_at in enumerate((2, 9)):
        reference = Envs(lambda dies_at=dies_at: single(dies_at), horizon=4)
        expected = []
        for _ in range(len(seen[i])):
            step = reference.step(actions(1))
            expected.append(
                (
                    step.observation[0].tolist(),
                    step.next_observation[0].tolist(),
                    float(step.cost[0]),
                    bool(step.terminated[0]),
                    bool(step.truncated[0]),
                )
            )
        assert seen[i] == expected
        assert len(seen[i]) >= 8
    assert stepper.finished[:2] == [(4.0, 2), (4.0, 2)] or (8.0, 4) in stepper.finished


def test_whatever_the_user_brings_is_stepped_alike() -> None:
    vector = SyncVectorEnv([Counter])
    for env in (Counter, Counter(), vector):
        stepper = envs.stepping(env, horizon=9)
        assert stepper.step(actions(1)).next_observation.tolist() == [[1.0, 0.0]]
    assert len(envs.stepping(Counter, count=3, horizon=9)) == 3
    with pytest.raises(InputError, match="give its id"):
        envs.stepping(Counter(), count=2, horizon=9)


def test_actions_are_scaled_to_one_range_and_back() -> None:
    codec = ActionCodec(describe(Counter(), horizon=10))
    raw = np.array([[-2.0, 0.0], [2.0, 1.0], [1.0, 0.25]], np.float32)
    encoded = codec.encode(raw)
    np.testing.assert_allclose(encoded, [[-1, -1], [1, 1], [0.5, -0.5]])
    np.testing.assert_allclose(np.stack(codec.decode(encoded)), raw)
    beyond = np.stack(codec.decode(np.array([[5.0, -5.0]], np.float32)))
    np.testing.assert_array_equal(beyond, [[2.0, 0.0]])


def test_the_environment_receives_its_own_units() -> None:
    stepper = Envs(Counter, horizon=10)
    stepper.step(np.array([[1.0, 0.0]], np.float32))
    env: Any = stepper.envs[0].unwrapped
    np.testing.assert_array_equal(env.last_action, [2.0, 0.5])
    assert env.last_action.dtype == np.float32


def test_discrete_actions_are_one_hot_and_keep_their_start() -> None:
    env = Counter()
    env.action_space = spaces.Discrete(3, start=-1)
    codec = ActionCodec(describe(env, horizon=10))
    assert codec.encode(np.array([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert codec.decode(np.eye(3, dtype=np.float32)) == [-1, 0, 1]
    with pytest.raises(InputError, match="outside the 3 actions"):
        codec.encode(np.array([2]))


@pytest.mark.parametrize(
    "space, size",
    [
        (spaces.Dict({"a": spaces.Box(-1, 1, (2, 2)), "b": spaces.Discrete(3)}), 7),
        (spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2))), 3),
        (spaces.Discrete(5), 5),
        (spaces.Box(0, 255, (2, 3), np.uint8), 6),
    ],
)
def test_structured_observations_are_flattened(space: spaces.Space, size: int) -> None:
    class Structured(Counter):
        observation_space = space

        def reset(self, **options: Any):
            super().reset(**options)
            return space.sample(), {}

        def step(self, action: Any):
            return space.sample(), *super().step(action)[1:]

    stepper = Envs(Structured, horizon=5)
    step = stepper.step(actions(1))
    assert step.next_observation.shape == (1, size)
    assert step.next_observation.dtype == np.float32
    vector = VectorEnvs(SyncVectorEnv([Structured, Structured]), horizon=5)
    assert vector.step(actions(2)).next_observation.shape == (2, size)
    episode = EpisodeRunner(Structured, horizon=5).run(lambda observation: actions(len(observation)), [1])[0]
    assert episode.observations.shape == (4, size)


def test_unusable_environments_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="no time limit"):
        describe(Counter())
    unbounded = Counter()
    unbounded.action_space = spaces.Box(-np.inf, np.inf, (1,))
    with pytest.raises(InputError, match="unbounded"):
        describe(unbounded, horizon=5)
    multi = Counter()
    multi.action_space = spaces.MultiDiscrete([2] * 13)
    with pytest.raises(InputError, match=r"8,192 combinations, at most 4,096"):
        describe(multi, horizon=5)
    multi.action_space = spaces.Tuple([spaces.Discrete(2)])
    with pytest.raises(InputError, match="Box, Discrete, MultiDiscrete and MultiBinary are"):
        describe(multi, horizon=5)
    shapeless = Counter()
    shapeless.observation_space = spaces.Sequence(spaces.Discrete(2))
    with pytest.raises(InputError, match="flattened"):
        describe(shapeless, horizon=5)
    with pytest.raises(InputError, match="NoSuchEnv"):
        envs.make("NoSuchEnv-v0")


def test_a_reward_that_is_not_finite_stops_the_run() -> None:
    class Broken(Counter):
        def step(self, action: Any):
            observation, _, *rest = super().step(action)
            return observation, float("nan"), *rest

    with pytest.raises(InputError, match="reward nan"):
        Envs(Broken, horizon=5).step(actions(1))


# ----- absorbing states: a hand-made environment that dies at step t, everything counted by hand


def brute_force_masses(length: int, horizon: int, gamma: float) -> tuple[np.ndarray, float]:
    """Walk the whole horizon step by step, in the absorbing state once the episode is over."""
    weights = [gamma**time for time in range(horizon)]
    return np.array(weights[:length]) / sum(weights), sum(weights[length:]) / sum(weights)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("dies_at", [1, 3, 10])
def test_masses_of_an_episode_that_dies(gamma: float, dies_at: int) -> None:
    episode = EpisodeRunner(lambda: Counter(dies_at), horizon=10).run(lambda o: actions(len(o)), [0])[0]
    assert episode.terminated
    masses = occupancy_masses(len(episode.rewards), terminated=episode.terminated, gamma=gamma, horizon=10)
    alive, absorbing = brute_force_masses(dies_at, 10, gamma)
    np.testing.assert_allclose(masses.alive, alive)
    assert masses.absorbing == pytest.approx(absorbing, abs=1e-12)
    assert masses.unknown == 0.0
    assert masses.alive.sum() + masses.absorbing == pytest.approx(1.0)


def test_masses_of_an_endless_horizon() -> None:
    masses = occupancy_masses(4, terminated=True, gamma=0.8)
    np.testing.assert_allclose(masses.alive, 0.2 * 0.8 ** np.arange(4))
    assert masses.absorbing == pytest.approx(0.8**4)


def test_a_truncated_episode_books_no_absorbing_mass() -> None:
    episode = EpisodeRunner(lambda: Counter(dies_at=100, cut_at=4), horizon=10).run(lambda o: actions(len(o)), [0])[0]
    assert episode.truncated
    assert not episode.terminated
    masses = occupancy_masses(4, terminated=False, gamma=0.9, horizon=10)
    alive, rest = brute_force_masses(4, 10, 0.9)
    assert masses.absorbing == 0.0
    assert masses.unknown == pytest.approx(rest)
    np.testing.assert_allclose(masses.alive, alive)
    whole = occupancy_masses(10, terminated=False, horizon=10)
    assert whole.absorbing == whole.unknown == 0.0


def test_absorbing_value_is_the_sum_of_the_costs_to_come() -> None:
    assert absorbing_value(0.7, 0.9) == pytest.approx(sum(0.7 * 0.9**time for time in range(2_000)))
    assert absorbing_value(0.7, 0.9, steps_left=5) == pytest.approx(sum(0.7 * 0.9**time for time in range(5)))
    assert absorbing_value(0.7, 1.0, steps_left=5) == pytest.approx(3.5)


@pytest.mark.parametrize("absorbing_cost", [0.0, 1.5, -2.0])
def test_bootstrapped_values_equal_the_walk_through_the_absorbing_state(absorbing_cost: float) -> None:
    """Backing up the dying episode's targets gives the discounted sum of its costs and of c_abs ever after."""
    gamma = 0.9
    stepper = Envs(lambda: Counter(dies_at=3), horizon=50)
    steps = [stepper.step(actions(1)) for _ in range(3)]
    value = np.float64(123.0)  # whatever a network says of the final observation must not matter
    for step in reversed(steps):
        value = bootstrap_target(float(step.cost[0]), value, float(step.terminated[0]), gamma, absorbing_cost)
    walk = sum(gamma**time * (-2.0 if time < 3 else absorbing_cost) for time in range(3_000))
    assert value == pytest.approx(walk)


def test_bootstrap_counts_the_successor_of_a_truncated_step_in_full() -> None:
    stepper = Envs(lambda: Counter(dies_at=100), horizon=2)
    stepper.step(actions(1))
    step = stepper.step(actions(1))
    assert step.truncated[0]
    target = bootstrap_target(step.cost, np.array([7.0]), step.terminated.astype(np.float32), 0.9, 5.0)
    np.testing.assert_allclose(target, [-2.0 + 0.9 * 7.0])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"length": 0, "terminated": True, "horizon": 5}, "episode length"),
        ({"length": 6, "terminated": True, "horizon": 5}, "more than the horizon"),
        ({"length": 3, "terminated": True}, "needs gamma below 1"),
        ({"length": 3, "terminated": True, "gamma": 1.5, "horizon": 5}, "must lie in"),
    ],
)
def test_impossible_masses_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        occupancy_masses(**arguments)


# ----- whole episodes


def test_evaluation_counts_returns_lengths_and_successes() -> None:
    class Succeeding(Counter):
        def step(self, action: Any):
            *rest, _ = super().step(action)
            return *rest, {"is_success": self.np_random.random() < 0.5}

    evaluation = envs.evaluate(lambda: Succeeding(4), lambda o: actions(len(o)), episodes=7, horizon=20)
    assert evaluation.returns.tolist() == [8.0] * 7
    assert evaluation.lengths.tolist() == [4] * 7
    assert evaluation.successes is not None
    assert 0 < evaluation.successes.mean() < 1
    assert envs.evaluate(Counter, lambda o: actions(len(o)), episodes=2, horizon=9).successes is None


def test_lockstep_episodes_equal_episodes_one_by_one() -> None:
    def act(observation: np.ndarray) -> np.ndarray:
        return np.tanh(observation[:, :1] - observation[:, 1:2])

    seeds = [3, 5, 8]
    together = EpisodeRunner("Pendulum-v1", parallel=3).run(act, seeds)
    alone = EpisodeRunner("Pendulum-v1").run(act, seeds)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.rewards, other.rewards)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Pendulum-v1", "CartPole-v1"])
def test_recorded_actions_replayed_from_the_recorded_state_give_the_recorded_rewards(env_id: str) -> None:
    spec = describe(envs.make(env_id))
    demos = record_encoded(env_id, envs.UniformPolicy(spec, seed=1).act, episodes=3, seed=2)
    assert demos.env_id == env_id
    for trajectory in demos:
        assert trajectory.seed is not None
        assert trajectory.rewards is not None
        env = envs.make(env_id)
        replayed = replay_rewards(env, trajectory.actions, initial_state=trajectory.initial_state, seed=trajectory.seed)
        np.testing.assert_allclose(replayed, trajectory.rewards, rtol=1e-5, atol=1e-5)
        assert len(replayed) == len(trajectory)


def test_a_video_shows_the_whole_episode(tmp_path: Any) -> None:
    from PIL import Image

    path = tmp_path / "episode.gif"
    total = envs.record_video(
        "CartPole-v1", lambda o: np.eye(2, dtype=np.float32)[np.zeros(len(o), int)], path, frames=250
    )
    with Image.open(path) as picture:
        assert getattr(picture, "n_frames", 1) == pytest.approx(total / 2, abs=1.5)
    with pytest.raises(InputError, match=r"\.gif"):
        envs.record_video("CartPole-v1", lambda o: o, tmp_path / "episode.avi")


def test_the_description_survives_json() -> None:
    spec = describe(Counter(), horizon=12)
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_inputs_of_an_unknown_environment_are_named_by_place() -> None:
    env = gym.wrappers.TransformObservation(Counter(), lambda seen: seen[:1], spaces.Box(0.0, 1.0, (1,)))
    assert input_names(describe(env, horizon=5), env) == ["obs[0]", "action[0]", "action[1]"]


def test_arrays_have_the_shapes_that_their_annotations_say() -> None:
    stepper = Envs(lambda: Counter(dies_at=2), count=3, horizon=5)
    steps = [stepper.step(actions(3)) for _ in range(3)]
    vector = VectorEnvs(SyncVectorEnv([lambda: Counter(dies_at=2)] * 3), horizon=5)
    steps += [vector.step(actions(3)) for _ in range(3)]
    for step in steps:
        check_shapes(step)
    runner = EpisodeRunner(lambda: Counter(dies_at=4), parallel=2, horizon=5)
    act = envs.UniformPolicy(runner.spec).act
    check_shapes(runner.run(act, [1])[0])
    check_shapes(runner.evaluate(act, [1, 2, 3]))
    check_shapes(occupancy_masses(4, terminated=True, gamma=0.8))
    with pytest.raises(AssertionError, match=r"Step.cost is float32\(2,\)"):
        check_shapes(steps[0]._replace(cost=steps[0].cost[:2]))


@pytest.mark.parametrize("bounds", [(-0.35, 1.05), (1.1, 6.3), (-0.4, 0.4), (-1.0, 1.0), (-3.0, 3.0), (0.1, 0.7)])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_decoded_actions_never_leave_the_space_by_rounding(bounds, kind):
    space = spaces.Box(*(np.array([each], kind) for each in bounds), dtype=kind)
    low, high = float(space.low[0]), float(space.high[0])
    spec = EnvSpec("Probe-v0", "continuous", 1, 1, (low,), (high,), (1,), horizon=5)
    codec = ActionCodec(spec)
    for encoded in (-1.0, 0.3, 1.0):
        (action,) = codec.decode_inside(np.array([[encoded]], np.float32))
        assert low <= float(action[0]) <= high
        assert float(action[0]) == pytest.approx((low + high) / 2 + encoded * (high - low) / 2, abs=1e-6)
    np.testing.assert_allclose(codec.encode(np.array([[low], [high]])), [[-1.0], [1.0]], atol=1e-6)


def test_bounds_without_a_finite_width_are_refused():
    class Wide(gym.Env):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Box(np.float32(-3e38), np.float32(3e38), (1,))

    with pytest.raises(InputError, match="is unbounded"):
        describe(Wide(), horizon=5)


def test_environments_may_change_the_actions_that_they_are_given():
    class Greedy(gym.Env):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Box(-1, 1, (1,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            action *= 5.0
            return np.zeros(2, np.float32), 0.0, False, False, {}

    act = lambda observation: np.full((len(observation), 1), 0.5, np.float32)  # noqa: E731
    assert Envs(Greedy, horizon=3).step(act(np.zeros((1, 2)))).action.tolist() == [[0.5]]
    (episode,) = EpisodeRunner(Greedy, horizon=3).run(act, [0])
    assert episode.actions.tolist() == [[0.5]] * 3
