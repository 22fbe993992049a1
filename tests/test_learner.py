"""The loop over both players: every pair of them, machine facts, borders, checkpoints, and the cost player's data."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import games
from games import CONTINUOUS, DICTIONARY, DISCRETE, HORIZON, Walk, demos_of
from oal.base import checkpoint
from oal.deep.loop import GAIL, OAL, DivergedError
from oal.deep.presets import OFF_POLICY, POLICIES
from oal.deep.replay import ExpertData
from oal.demos import Demos, Trajectory
from oal.demos.pairs import encode
from oal.envs import VectorEnvs
from oal.errors import InputError

OFF = {
    "policy.hidden": [8],
    "policy.batch_size": 8,
    "replay.block": 10,
    "replay.warmup_steps": 20,
    "replay.capacity": 500,
    "replay.updates_per_step": 0.5,
}
ON = {"policy.hidden": [8], "policy.batch_steps": 20, "policy.critic_epochs": 1}
CLONED = {"bc.epochs": 2, "bc.members": 2}
# the same for all policy players, so that one program serves them all
COST: dict[str, Any] = {
    "cost.update_every": 20,
    "cost.window": 40,
    "cost.minibatches": 2,
    "cost.batch_size": 8,
}


def small(policy: str, cost: str | None) -> dict[str, Any]:
    """Settings with which a run takes a moment: compiling is what remains."""
    costs = {} if cost is None else COST if cost == "linear" else {**COST, "cost.hidden": [8]}
    return {**(OFF if policy in OFF_POLICY else ON), **CLONED, **costs}


def make(
    policy: str = "mdpo",
    cost: str | None = "neural",
    env: Any = CONTINUOUS,
    *,
    demos: Demos | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> OAL:
    demos = demos or demos_of(env if isinstance(env, str) else CONTINUOUS)
    return OAL(env, demos, policy, cost, settings={**small(policy, cost), **(settings or {})}, **options)


def at(step: int, what: Any) -> Any:
    """A callback that does something once the given step is reached."""
    return lambda learner: what() if learner.step == step else None


def same_run(first: OAL, second: OAL) -> bool:
    """Whether two learners agree in everything they have learned and seen, bit for bit."""
    (rows, counters), (other_rows, other_counters) = first.memory.state(), second.memory.state()
    return (
        games.leaves_equal(first.player.state, second.player.state)
        and games.leaves_equal(first.cost, second.cost)
        and games.leaves_equal(rows, other_rows)
        and games.leaves_equal(first.regret.state(), second.regret.state())
        and counters == other_counters
        and first.numbers() == second.numbers()
        and (first.step, first.cost_updates) == (second.step, second.cost_updates)
    )


# ----- every pair


@pytest.mark.parametrize("policy, cost", list(itertools.product(POLICIES, ("linear", "neural", "gail"))))
def test_every_pair_learns_repeats_itself_and_resumes(policy: str, cost: str, tmp_path: Path) -> None:
    """Same seed same run, other seed other run, a resumed run is the uninterrupted one, nothing compiles twice."""
    env = DISCRETE if cost == "linear" else CONTINUOUS
    path = tmp_path / "checkpoint"
    first = make(policy, cost, env)
    begun = [np.array(part) for layer in first.player.actor.layers for part in layer]
    first.learn(80, callback=at(40, lambda: first.save(path)))
    learned = [part for layer in first.player.actor.layers for part in layer]
    assert first.step == 80
    assert first.cost_updates == 80 // 20
    assert any(not np.array_equal(a, b) for a, b in zip(begun, learned, strict=True))
    numbers = first.numbers()
    assert {"actor_loss", "critic_loss", "entropy", "policy_cost", "cost_gap", "absorbing_mass"} <= numbers.keys()

    resumed = OAL.load(path)
    assert resumed.step == 40
    compiled = games.compilations
    resumed.learn(80)
    assert same_run(first, resumed)
    again = make(policy, cost, env)
    again.learn(80, callback=at(40, lambda: again.save(path)))
    assert same_run(first, again)
    assert games.compilations == compiled, "a second run compiles nothing"
    other = make(policy, cost, env, seed=1)
    other.learn(80)
    assert not games.leaves_equal(first.player.state.actor, other.player.state.actor)
    for learner in (first, resumed, again, other):
        learner.close()


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_a_known_simulator_goes_on_as_if_nothing_had_been_saved(policy: str, tmp_path: Path) -> None:
    """CartPole's state is saved: a run that was stopped and resumed equals one that never saved anything."""
    demos = Demos((Trajectory(np.zeros((9, 4), np.float32), np.zeros(8, np.int64), truncated=True),))
    options = {"env": "CartPole-v1", "demos": demos}
    whole = make(policy, None, **options)
    whole.learn(80)
    stopped = make(policy, None, **options)
    stopped.learn(40)
    stopped.save(tmp_path / "checkpoint")
    resumed = OAL.load(tmp_path / "checkpoint")
    resumed.learn(80)
    assert same_run(whole, resumed)
    assert whole.envs.finished == resumed.envs.finished


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_learning_in_two_goes_is_learning_in_one(policy: str) -> None:
    one, two = make(policy), make(policy)
    one.learn(80)
    two.learn(40)
    assert two.step == 40
    two.learn(80)
    assert same_run(one, two)
    with pytest.warns(UserWarning, match=r"nothing is left to learn: 80 .*for 80 more, say learn\(160\)"):
        two.learn(80)
    assert two.step == 80, "there is nothing left to do"


def test_reading_the_policy_between_blocks_changes_nothing() -> None:
    plain, watched = make(), make()
    plain.learn(60)

    def watch(learner: OAL) -> None:
        learner.predict(np.zeros(2, np.float32), deterministic=False)
        learner.evaluate(episodes=1)
        learner.numbers()

    watched.learn(60, callback=watch)
    assert same_run(plain, watched)


# ----- costs


class Rescaled(Walk):
    """The walk with other rewards."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, 7.0 - 100.0 * reward, *rest


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_rewards_are_never_used_unless_asked_for(policy: str) -> None:
    """Costs are computed from the learned cost when sampled: rewards of the environment and the expert do not enter."""
    shown = demos_of(CONTINUOUS)
    silent = Demos(tuple(Trajectory(t.observations, t.actions, None, t.terminated, t.truncated) for t in shown))
    for true_cost in (False, True) if policy == "mdpo" else (False,):
        plain, other = (
            make(policy, None if true_cost else "neural", env=env, demos=demos, horizon=HORIZON)
            for env, demos in ((Walk, shown), (Rescaled, silent))
        )
        plain.learn(60)
        other.learn(60)
        assert games.leaves_equal(plain.player.state.actor, other.player.state.actor) == (not true_cost)


def test_a_stored_cost_is_never_used() -> None:
    plain, poisoned = make(), make()
    plain.learn(60)

    def poison(learner: OAL) -> None:
        learner.memory.rows[:, 3] = 1e9

    poisoned.learn(60, callback=poison)
    assert games.leaves_equal(plain.player.state, poisoned.player.state)


@pytest.mark.parametrize("policy", ["trpo", "mdpo-on"])
def test_on_policy_steps_are_judged_by_the_cost_they_were_played_under(policy: str) -> None:
    """Algorithm 1: the policy is improved with c_k on the steps taken while c_k was there; then comes c_{k+1}."""
    learner = make(policy)
    player, step = learner.player, learner.envs.step
    played_under: list[Any] = []
    improved_with: list[Any] = []

    def improve(cost_params: Any) -> Any:
        improved_with.append((cost_params, learner.step))
        return player.improve(cost_params)

    def watch(action: np.ndarray) -> Any:
        played_under.append(learner.cost.view)
        return step(action)

    learner.player = games.Instead(player, improve=improve)
    learner.envs.step = watch
    learner.learn(100)
    assert [at for _, at in improved_with] == [20, 40, 60, 80, 100], "after every rollout, the last one too"
    for cost, at in improved_with:
        assert all(under is cost for under in played_under[at - 20 : at])
    assert len({id(cost) for cost, _ in improved_with}) == 5, "the cost moves after each of them"


def test_the_cost_stays_as_it_is_during_the_warm_up() -> None:
    learner = make(settings={"replay.warmup_steps": 50, "cost.update_every": 10})
    seen: list[tuple[int, int]] = []
    learner.learn(80, callback=lambda learner: seen.append((learner.step, learner.cost_updates)))
    assert seen == [(10, 0), (20, 0), (30, 0), (40, 0), (50, 1), (60, 2), (70, 3), (80, 4)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("width", [0.5, None])
def test_a_cloned_policy_is_as_wide_as_its_clones(policy: str, width: float | None) -> None:
    learner = make(policy, settings={"bc.width": width})
    learner.pretrain()
    _, found = np.split(
        learner.player.actor.outputs(np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)), 2, 1
    )
    actions = np.concatenate([each.action for each in learner._episodes])
    expected = np.log(0.5 * actions.std(axis=0))
    if width is None:  # as far off as clones are on what they have not seen: tests/test_bc.py
        expected = learner.player.ensemble.members[0][-1].bias[actions.shape[1] :]  # pyright: ignore
        assert not np.allclose(expected, np.log(0.25 * actions.std(axis=0)), atol=0.1)
    np.testing.assert_allclose(found, np.tile(expected, (5, 1)), atol=1e-4)


def test_the_true_cost_is_for_testing_the_policy_player_alone() -> None:
    learner = make(cost=None)
    learner.learn(60)
    assert learner.cost_updates == 0
    assert "cost_gap" not in learner.metrics
    recorded = np.concatenate([learner.memory.rows[: len(learner.memory)], learner.expert.rows])[:, 3]
    assert recorded.min() <= learner.numbers()["policy_cost"] <= recorded.max()


class Watched:
    """Keeps what the cost player is given; nobody learns, so nothing is compiled."""

    def __init__(self, learner: OAL) -> None:
        self.seen: list[tuple[Any, Any, Any, int]] = []

        def watch(state: Any, pairs: Any, expert: Any, masses: Any) -> Any:
            self.seen.append((pairs, expert, masses, learner.step))
            return state, {}

        learner.cost_player = games.Instead(learner.cost_player, update=watch)
        learner.player = games.Instead(learner.player, work_ahead=lambda _: {}, improve=lambda _: {})


def history(learner: OAL) -> np.ndarray:
    """All pairs so far [steps, O + A]; the memory has not wrapped around."""
    assert learner.step == len(learner.memory)
    return learner.memory.rows[: learner.step, :3]


def places(pairs: Any, steps: np.ndarray) -> np.ndarray:
    """Find each pair's step; continuous observations and actions do not repeat."""
    rows = np.concatenate([pairs.observation, pairs.action], axis=-1).reshape(-1, 3)
    found = (rows[:, None] == steps[None]).all(axis=2)
    assert (found.sum(axis=1) == 1).all()
    return found.argmax(axis=1)


def test_the_cost_player_learns_from_the_window_or_from_all_past_policies() -> None:
    for window, oldest in ((40, 60), (None, 0)):
        learner = make(settings={"cost.window": window})
        watched = Watched(learner)
        learner.learn(100)
        pairs, expert, _, step = watched.seen[-1]
        assert step == 100
        assert pairs.observation.shape == expert.observation.shape == (2, 8, 2)
        index = places(pairs, history(learner))
        assert index.min() >= oldest
        assert (index.min() < 60) == (window is None)
        known = np.concatenate([learner.expert.observation, learner.expert.action], axis=1)
        given = np.concatenate([expert.observation, expert.action], axis=-1).reshape(-1, 3)
        assert all((row == known).all(axis=1).any() for row in given)


def test_the_linear_cost_compares_the_whole_window_with_all_demonstrations() -> None:
    learner = make(cost="linear", settings={"cost.average": "episodes"})
    watched = Watched(learner)
    learner.learn(100)
    pairs, expert, _, _ = watched.seen[-1]
    np.testing.assert_array_equal(places(pairs, history(learner)), np.arange(60, 100))
    np.testing.assert_array_equal(expert.observation[0], learner.expert.observation)
    np.testing.assert_array_equal(expert.action[0], learner.expert.action)
    # the discounted average of each episode, and the mean over episodes
    times = learner.memory.times[60:100]
    expected = 0.01 * 0.99 ** times.astype(float) / np.count_nonzero(times == 0)
    np.testing.assert_allclose(pairs.weight[0], expected, rtol=1e-5)
    lengths = [len(trajectory) for trajectory in demos_of(CONTINUOUS)]
    expected = 0.01 * np.concatenate([0.99 ** np.arange(length) for length in lengths]) / len(lengths)
    np.testing.assert_allclose(expert.weight[0], expected, rtol=1e-5)


def test_a_window_that_is_not_full_yet_counts_each_step_once() -> None:
    """Every step has the same weight in the linear cost's mean, also before the window is full."""
    learner = make(cost="linear", settings={"cost.window": 64})
    watched = Watched(learner)
    learner.learn(40)
    pairs, _, _, step = watched.seen[-1]
    weights = np.zeros(step)
    np.add.at(weights, places(pairs, history(learner)), pairs.weight.ravel())
    np.testing.assert_allclose(weights, weights[0])


class Script(gym.Env):
    """Episodes of given lengths and ends, over and over; the observation is the step within the episode."""

    def __init__(self, *episodes: tuple[int, bool]) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.episodes = itertools.cycle(episodes)
        self.time, self.length, self.terminates = 0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time, (self.length, self.terminates) = 0, next(self.episodes)
        return np.array([0.0, 1.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        ends = self.time == self.length
        observation = np.array([self.time, 1.0], np.float32)
        return observation, 0.0, ends and self.terminates, ends and not self.terminates, {}


def test_absorbing_masses_are_those_of_a_hand_calculation() -> None:
    """γ^T of an episode that truly ended after T steps, 0 of one that was cut off; means over episodes."""
    rows = np.zeros((5, 2), np.float32)
    demos = Demos(
        (
            Trajectory(rows[:3], rows[:2, :1], np.zeros(2), terminated=True),
            Trajectory(rows[:5], rows[:4, :1], np.zeros(4), truncated=True),
        )
    )
    script = [(3, True), (5, False), (2, True)]
    learner = make(env=lambda: Script(*script), demos=demos, horizon=10, settings={"normalise": False})
    watched = Watched(learner)
    learner.learn(40)
    ends, step = [], 0
    for length, terminated in itertools.cycle(script):
        step += length
        if step > 40:
            break
        ends.append(0.99**length if terminated else 0.0)
    _, _, (mine, experts), at_step = watched.seen[-1]
    assert at_step == 40
    assert mine == pytest.approx(np.mean(ends))
    assert experts == pytest.approx(0.99**2 / 2)
    times = learner.memory.unpack(learner.memory.rows[:40]).observation[:, 0]
    np.testing.assert_array_equal(learner.memory.times[:40], times)


def test_a_users_feature_function(tmp_path: Path) -> None:
    def corners(observation: Any, action: Any) -> Any:
        return jnp.concatenate([observation, action, action**2], axis=-1)

    learner = make(cost="linear", features=corners)
    learner.learn(20)
    assert learner.cost.view.params.shape == (4,)
    assert float(jnp.abs(learner.cost.view.params).max()) > 0.0
    learner.save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="needs the function itself"):
        OAL.load(tmp_path / "checkpoint")
    assert OAL.load(tmp_path / "checkpoint", features=corners).step == 20
    with pytest.raises(InputError, match="feature function"):
        make(cost="neural", features=corners)


# ----- demonstrations as data


def test_expert_transitions_are_those_with_both_ends() -> None:
    learner = make()
    spec = learner.spec
    observations = np.arange(10, dtype=np.float32).reshape(5, 2) / 10
    actions = np.linspace(-1.0, 3.0, 4, dtype=np.float32)[:, None]
    whole = Trajectory(observations, actions, np.arange(4.0), terminated=True)
    endless = Trajectory(observations[:4], actions, np.arange(4.0), truncated=True)
    thinned = Trajectory(observations[:4], actions, np.arange(4.0), terminated=True, stride=3)

    expert = ExpertData(encode(Demos((whole,)), spec), spec, 0.9)
    batch = learner.memory.unpack(expert.rows)
    np.testing.assert_array_equal(batch.observation, observations[:4])
    np.testing.assert_allclose(batch.action[:, 0], np.linspace(-1, 1, 4), atol=1e-6)
    np.testing.assert_array_equal(batch.next_observation, observations[1:])
    np.testing.assert_array_equal(batch.terminated, [0, 0, 0, 1])
    np.testing.assert_array_equal(batch.cost, -np.arange(4.0))
    assert (expert.absorbing_mass, expert.ended) == (pytest.approx(0.9**4), 1.0)

    expert = ExpertData(encode(Demos((endless,)), spec), spec, 0.9)
    assert (len(expert.time), len(expert.rows)) == (4, 3)
    assert not learner.memory.unpack(expert.rows).terminated.any()
    assert (expert.absorbing_mass, expert.ended) == (0.0, 0.0)
    assert ExpertData(encode(Demos((whole, endless)), spec), spec, 0.9).ended == 0.5
    assert learner.expert.ended == 0.0  # of Pendulum, which never ends: its loop starts the absorbing cost there
    assert float(learner.cost.view.absorbing) == pytest.approx(learner.config.cost_config.absorbing)

    expert = ExpertData(encode(Demos((thinned,)), spec), spec, 0.9)
    assert (len(expert.time), len(expert.rows)) == (4, 0)
    np.testing.assert_array_equal(expert.time, [0, 3, 6, 9])
    assert expert.absorbing_mass == pytest.approx(0.9**12)


def test_thinned_demonstrations_give_pairs_only_and_stay_thinned(tmp_path: Path) -> None:
    thinned = demos_of(CONTINUOUS).subsample(2)
    with pytest.warns(UserWarning, match="expert_fraction"):
        make(demos=thinned)
    learner = make(demos=thinned, settings={"replay.expert_fraction": 0.0})
    learner.learn(20)
    learner.save(tmp_path / "checkpoint")
    loaded = OAL.load(tmp_path / "checkpoint")
    assert [trajectory.stride for trajectory in loaded.demos] == [2, 2, 2]
    assert games.leaves_equal(
        [(t.observations, t.actions, t.rewards) for t in loaded.demos],
        [(t.observations, t.actions, t.rewards) for t in learner.demos],
    )
    np.testing.assert_array_equal(loaded.expert.time, learner.expert.time)


def test_demonstrations_of_another_environment_are_refused() -> None:
    with pytest.raises(InputError, match="observations"):
        make(demos=Demos((Trajectory(np.zeros((4, 3), np.float32), np.zeros((3, 1), np.float32)),)))
    with pytest.raises(InputError, match="action"):
        make(demos=Demos((Trajectory(np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32)),)))
    with pytest.raises(InputError, match="action"):
        make(env=DISCRETE, demos=Demos((Trajectory(np.zeros((4, 2), np.float32), np.array([5, 6, 9])),)))


# ----- environments


def transitions_are_true(learner: OAL) -> bool:
    """Whether each stored transition is one of the walk's, and terminated exactly where the walk ends."""
    batch = learner.memory.unpack(learner.memory.rows[: len(learner.memory)])
    assert learner.normaliser is not None
    # the learner's own observations are normalised ones
    plain: Any = learner.normaliser.undone(lambda observation, _: observation)
    before, after = (np.asarray(plain(seen, None)) for seen in (batch.observation, batch.next_observation))
    return (
        np.allclose(after[:, 0], before[:, 0] + 0.5 * batch.action[:, 0], atol=1e-5)
        and np.array_equal(batch.terminated > 0, np.abs(after[:, 0]) > 1.0)
        and bool((before[:, 1] == 1.0).all())
    )


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name.lower())
def test_vector_environments_in_every_autoreset_mode(policy: str, mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([lambda: gym.make(CONTINUOUS) for _ in range(3)], autoreset_mode=mode)
    # a cloned policy would not fall
    learner = make(policy, env=vector, horizon=HORIZON, settings={"bc.epochs": 0, "cost.window": 100})
    assert isinstance(learner.envs, VectorEnvs)
    learner.learn(60)
    assert learner.step >= 60
    assert len(learner.memory) == min(learner.step, learner.memory.capacity)
    assert transitions_are_true(learner)
    assert learner.memory.times.max() < HORIZON
    ended = learner.memory.rows[:, -1].sum()
    assert len(learner.envs.finished) >= ended > 0
    with pytest.raises(InputError, match="environments of its own"):
        learner.evaluate(episodes=1)
    learner.close()


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_several_environments_at_once(policy: str, tmp_path: Path) -> None:
    learner = make(policy, environments=3)
    learner.learn(63, callback=at(42 if policy == "trpo" else 48, lambda: learner.save(tmp_path / "checkpoint")))
    assert learner.step % 3 == 0
    assert learner.step >= 63
    assert transitions_are_true(learner)
    starts = learner.memory.rows[:3, 0]
    assert len(set(starts.tolist())) == 3, "each environment has a seed of its own"
    resumed = OAL.load(tmp_path / "checkpoint")
    assert len(resumed.envs) == 3
    resumed.learn(63)
    assert same_run(learner, resumed)


def test_players_that_remember_nothing_are_paid_the_true_cost_in_several_environments() -> None:
    learner = make("trpo", None, environments=8).learn(48)
    assert learner.step == 48
    assert len(learner.memory) >= 24, "all steps of a block can be looked at"


def test_more_environments_than_a_checkpoint_can_name_are_refused() -> None:
    crowd = gym.make_vec("CartPole-v1", num_envs=5_000, vectorization_mode="vector_entry_point")
    with pytest.raises(InputError, match=r"environments is 5000: it must be at most 4,096"):
        OAL(crowd, None, "trpo", None, horizon=500)


def test_a_vector_environment_that_takes_one_seed_alone_is_given_one() -> None:
    """CartPole's own one, which gymnasium.make_vec makes unless told otherwise."""
    first, again = (VectorEnvs(gym.make_vec("CartPole-v1", num_envs=3), seed=1, horizon=500) for _ in range(2))
    np.testing.assert_array_equal(first.observation, again.observation)
    assert len(np.unique(first.observation)) == 12, "each environment begins somewhere else"
    first.restart(1)
    assert not np.isin(first.observation, again.observation).any()


def test_dictionary_observations() -> None:
    learner = make(env=DICTIONARY)
    learner.learn(40)
    assert learner.spec.observation_size == 2
    single = {"place": np.zeros(1, np.float32), "one": np.ones(1, np.float32)}
    batch = {"place": np.zeros((3, 1), np.float32), "one": np.ones((3, 1), np.float32)}
    action, _ = learner.predict(single)
    actions, _ = learner.predict(batch)
    assert action.shape == (1,)
    np.testing.assert_allclose(actions, np.tile(action, (3, 1)), atol=1e-6)
    assert learner.evaluate(episodes=2).returns.shape == (2,)


def test_an_environment_object_or_a_function_will_do(tmp_path: Path) -> None:
    for env in (gym.make(CONTINUOUS), lambda: gym.make(CONTINUOUS)):
        learner = make(env=env)
        learner.learn(20)
        learner.save(tmp_path / "checkpoint")
        assert OAL.load(tmp_path / "checkpoint", env).step == 20
    with pytest.raises(InputError, match="cannot be stepped 2 times"):
        make(env=gym.make(CONTINUOUS), environments=2)


def test_a_wrapped_simulator_is_found_again_as_it_was(tmp_path: Path) -> None:
    """The horizon is put around a function's environment only if the user asked for it."""
    demos = Demos((Trajectory(np.zeros((4, 3), np.float32), np.zeros((3, 1), np.float32)),))
    for horizon in (None, 50):
        learner = make(env=lambda: gym.make("Pendulum-v1"), demos=demos, horizon=horizon)
        learner.learn(10)
        learner.save(tmp_path / "checkpoint")
        loaded = OAL.load(tmp_path / "checkpoint", lambda: gym.make("Pendulum-v1"))
        assert loaded.spec.horizon == (horizon or 200)
        np.testing.assert_array_equal(loaded.envs.observation, learner.envs.observation)


class Unbounded(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_environments_that_cannot_be_learned_on_are_refused() -> None:
    with pytest.raises(InputError, match="no time limit"):
        make(env=Walk)
    with pytest.raises(InputError, match="unbounded"):
        make(env=Unbounded, horizon=8)
    with pytest.raises(InputError, match="cannot be made"):
        make(env="NoSuchTask-v0", demos=demos_of(CONTINUOUS))


# ----- acting


def test_predictions_are_in_the_environments_units() -> None:
    learner = make()
    learner.learn(40)
    observation = np.array([0.3, 1.0], np.float32)
    action, state = learner.predict(observation)
    assert state is None
    assert action.shape == (1,)
    assert -1.0 <= action[0] <= 3.0
    encoded = learner.policy().act(observation[None])
    np.testing.assert_allclose(action, 1.0 + 2.0 * encoded[0], atol=1e-6)
    actions, _ = learner.predict(np.tile(observation, (5, 1)))
    np.testing.assert_allclose(actions, np.tile(action, (5, 1)), atol=1e-6)
    drawn = np.array([learner.predict(observation, deterministic=False)[0] for _ in range(200)])
    assert len(np.unique(drawn)) > 150, "draws differ from call to call"
    assert drawn.min() >= -1.0
    assert drawn.max() <= 3.0
    with pytest.raises(InputError, match="3 numbers"):
        learner.predict(np.zeros(3, np.float32))


def test_predictions_of_discrete_actions() -> None:
    learner = make(cost="linear", env=DISCRETE, settings={"bc.epochs": 0})  # clones are sure of one action
    learner.learn(40)
    action, _ = learner.predict(np.array([0.3, 1.0], np.float32))
    assert isinstance(action, int)
    assert action in (5, 6, 7)
    actions, _ = learner.predict(np.zeros((4, 2), np.float32))
    assert actions.shape == (4,)
    drawn = {learner.predict(np.zeros(2, np.float32), deterministic=False)[0] for _ in range(200)}
    assert drawn == {5, 6, 7}


def test_evaluation_repeats_itself_and_leaves_training_alone() -> None:
    learner = make()
    learner.learn(40)
    first, second = learner.evaluate(episodes=4), learner.evaluate(episodes=4)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert (first.lengths <= HORIZON).all()
    with pytest.raises(InputError, match="episodes"):
        learner.evaluate(episodes=0)


# ----- callbacks and borders


def test_callbacks_are_called_after_each_block_and_stop_by_false() -> None:
    learner, calls = make(), []
    learner.learn(60, callback=[lambda it: calls.append(it.step), lambda it: it.step < 30])
    assert calls == [10, 20, 30]
    assert learner.step == 30
    learner.learn(40, callback=lambda it: calls.append((it.block_begun, it.step, it.goal)))
    assert calls[3:] == [(30, 40, 40)]


@pytest.mark.parametrize("steps", [0, -5])
def test_learning_takes_at_least_a_step(steps: int) -> None:
    with pytest.raises(InputError, match="total_steps"):
        make().learn(steps)


def test_a_last_block_may_be_short() -> None:
    learner = make()
    learner.learn(27)
    assert learner.step == len(learner.memory) == 27


@pytest.mark.parametrize("environments", [1, 7])
def test_updates_are_counted_by_steps_however_they_are_taken(environments: int, tmp_path: Path) -> None:
    """Half an update per step after the warm-up, in blocks, in cut ones, and of many environments; also resumed."""
    learner = make(environments=environments, settings={"replay.block": 8})
    block = 8 if environments == 1 else 14
    for goal in (56, 59, 70, 85, 112, 140, 168, 196, 224):
        learner.learn(goal)
        if goal == 85:
            learner.save(tmp_path / "checkpoint")
            learner = OAL.load(tmp_path / "checkpoint")
    # the updates of the newest block are still to come, and those of the warm-up never do
    late = learner.step - block - 20
    assert abs(int(learner.player.state.updates) - 0.5 * late) <= block
    assert learner.step >= 224


class Broken(Walk):
    """The walk, with an observation that is not a number after 33 steps in all."""

    steps = 0

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        self.steps += 1
        return (observation * np.nan if self.steps == 33 else observation), *rest


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_an_observation_that_is_not_finite_is_named_by_its_step(policy: str) -> None:
    learner = make(policy, env=Broken, horizon=HORIZON)
    with pytest.raises(DivergedError, match=r"Broken gave an observation that is not finite at step 33"):
        learner.learn(100)


@pytest.mark.parametrize("policy", ["mdpo", "trpo"])
def test_losses_that_are_not_finite_stop_learning(policy: str) -> None:
    """A discrete policy of NaN logits would otherwise act on as if nothing had happened."""
    learner = make(policy, "linear", DISCRETE)
    learner.learn(40)
    learner.cost = learner.cost._replace(view=learner.cost.view._replace(centre=jnp.float32(jnp.nan)))
    learner.cost_player = games.Instead(learner.cost_player, update=lambda state, *_: (state, {}))
    with pytest.raises(DivergedError, match=r"loss.* became infinite or NaN by step \d+: lower the learning rate"):
        learner.learn(200)
    assert learner.step < 100


def test_a_diverged_learner_does_not_overwrite_its_checkpoint(tmp_path: Path) -> None:
    learner = make()
    learner.learn(40)
    learner.save(tmp_path / "checkpoint")
    before = (tmp_path / "checkpoint").read_bytes()
    learner.metrics["actor_loss"] = jnp.float32(jnp.inf)
    with pytest.raises(DivergedError, match="actor_loss became infinite or NaN by step 40"):
        learner.save(tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint").read_bytes() == before


# ----- checkpoints


def test_checkpoints_of_another_kind_or_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make()
    learner.learn(20)
    learner.policy().save(tmp_path / "policy")
    with pytest.raises(InputError, match="holds a policy, not a learner"):
        OAL.load(tmp_path / "policy")
    with pytest.raises(InputError, match="no such file"):
        OAL.load(tmp_path / "nothing")
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 99)
    learner.save(tmp_path / "later")
    monkeypatch.undo()
    with pytest.raises(InputError, match="later version"):
        OAL.load(tmp_path / "later")


def test_a_checkpoint_fits_only_its_own_players_and_environment(tmp_path: Path) -> None:
    learner = make()
    learner.learn(20)
    learner.save(tmp_path / "checkpoint")
    for other in (make("sac"), make("trpo"), make("mdpo", "linear"), make(settings={"policy.hidden": [9]})):
        with pytest.raises(InputError, match="another"):
            other.restore(tmp_path / "checkpoint")
    with pytest.raises(InputError):
        OAL.load(tmp_path / "checkpoint", "Pendulum-v1")


def test_gail_is_the_same_loop_with_a_discriminator(tmp_path: Path) -> None:
    learner = GAIL(CONTINUOUS, demos_of(CONTINUOUS), settings=small("mdpo", "gail"))
    same = make("mdpo", "gail")
    learner.learn(40)
    same.learn(40)
    assert same_run(learner, same)
    learner.save(tmp_path / "checkpoint")
    loaded = GAIL.load(tmp_path / "checkpoint")
    assert loaded.algorithm == loaded.policy().info["algorithm"] == "GAIL"
    assert loaded.config == learner.config
