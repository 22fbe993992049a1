"""An environment of one's own: named by file or module, Dict observations, no reward, and what cannot be learned on."""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from games import CONTINUOUS, DICTIONARY, DISCRETE, HORIZON, Walk, demos_of
from oal import demos, envs
from oal.base.folder import RunFolder
from oal.cli import app
from oal.deep import callbacks
from oal.deep.bc import BC, BCConfig
from oal.deep.learned_cost import LearnedCost
from oal.deep.loop import OAL
from oal.deep.policy import Policy
from oal.demos import Demos, load, record_demos
from oal.demos.record import record_encoded
from oal.envs import EnvSpec, describe
from oal.envs.names import input_names
from oal.errors import InputError
from oal.lab import run as training

SMALL = {"policy.hidden": [8], "cost.hidden": [8], "bc.updates": 5, "replay.warmup_steps": 10, "replay.block": 10}
ROBOT = """
import gymnasium
import numpy as np
from gymnasium import spaces
{imports}

class Robot(gymnasium.Env):
    observation_space = spaces.Dict({{"speed": spaces.Box(-9, 9, (1,)), "arm": spaces.Box(-9, 9, (2,))}})
    action_space = spaces.Box(np.array([-0.5, 2.0], np.float32), np.array([0.5, 6.0], np.float32))
    metadata = {{"render_modes": ["rgb_array"]}}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _seen(self):
        return {{"speed": self.state[:1].copy(), "arm": self.state[1:].copy()}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self._seen(), {{}}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float32)), action
        self.state[:2] += 0.1 * (np.asarray(action) - [0.0, 4.0])
        return self._seen(), {reward}, False, False, {{}}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


def make_env(render_mode=None):
    return gymnasium.wrappers.TimeLimit(Robot(render_mode), 20)
"""


@pytest.fixture
def oal(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a robot in it, as the current one; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    (tmp_path / "helper_of_robot.py").write_text("")
    (tmp_path / "robot.py").write_text(ROBOT.format(reward=None, imports="import helper_of_robot"))
    yield tmp_path
    for name in set(sys.modules) - known:
        if "robot" in name:
            del sys.modules[name]


# ----- where it comes from


def test_a_function_in_a_file_makes_the_environment(here: Path) -> None:
    for source in ("robot.py:make_env", "./robot.py:make_env", here / "robot.py:make_env"):
        env = envs.make(str(source))
        assert describe(env).horizon == 20
    assert describe(envs.make("robot.py:Robot", horizon=5)).horizon == 5
    assert envs.make("robot.py:make_env", render_mode="rgb_array").render_mode == "rgb_array"
    assert envs.make("robot.py:make_env").unwrapped.__class__ is envs.make("robot.py:make_env").unwrapped.__class__


@pytest.mark.parametrize(
    "name, says",
    [
        ("robot.py:nothing", "robot.py has no function 'nothing'"),
        ("robot.py:np", "'np' is a module"),
        ("absent.py:make_env", r"there is no file absent\.py in "),
        ("broken.py:make_env", r"broken\.py cannot be imported \(ZeroDivisionError"),
    ],
)
def test_a_file_that_makes_none_is_one_line(here: Path, name: str, says: str) -> None:
    (here / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match=says) as caught:
        envs.make(name)
    assert "\n" not in str(caught.value)


def test_the_current_folder_is_searched_only_for_what_was_typed(here: Path, oal: Any) -> None:
    with pytest.raises(InputError, match="module 'robot' cannot be imported"):
        envs.make("robot:make_env")
    (here / "gymnasium.py").write_text("raise RuntimeError('this is not the library')")
    shown = oal("check", "robot:make_env", "--episodes", 1)
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert str(here) == sys.path[-1]  # last: what lies there hides no library


def test_a_module_that_registers_ids_is_gymnasiums_to_read(here: Path) -> None:
    (here / "robot_ids.py").write_text(
        "import gymnasium\nfrom robot import Robot\n"
        "gymnasium.register('Robot-v3', entry_point=Robot, max_episode_steps=7)\n"
    )
    sys.path.append(str(here))
    assert describe(envs.make("robot_ids:Robot-v3")).horizon == 7
    with pytest.raises(InputError, match="Robot"):
        envs.make("robot_ids:Robot-v1")
    gym.registry.pop("Robot-v3")


def expert(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Bring speed and the first of the arm to 0, in the robot's own units."""
    place = np.array([observation["speed"][0], observation["arm"][0]])
    return np.clip([0.0, 4.0] - 2.0 * place, [-0.5, 2.0], [0.5, 6.0]).astype(np.float32)


def test_a_run_of_a_file_is_typed_or_trusted_again(here: Path, oal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From recording to a certificate; and nothing is run because a folder says so."""
    record_demos("robot.py:make_env", expert, episodes=4).save("demos.npz")
    settings = [part for name, value in SMALL.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    lengths = ("--steps", 60, "--evaluate-every", 20, "--evaluation-episodes", 1)
    begun = oal(
        *("train", "robot.py:make_env", "--demos", "demos.npz", "--trajectories", 2, "--quiet", *settings, *lengths)
    )
    assert begun.exit_code == 0, (begun.output, begun.exception)
    assert "no reward" in begun.output
    run = here / "runs" / "robot-make_env-mdpo-neural-0"
    folder = RunFolder(run)
    assert folder.metadata["rewarded"] is False
    assert folder.metadata["expert_return"] is folder.metadata["random_return"] is None
    assert folder.best.exists()  # the nearest to the demonstrations, whatever the reward
    records = folder.records()
    assert all(record.get("return") is None and record.get("evaluation_return") is None for record in records)
    assert [record["evaluation_length"] for record in records if "evaluation_length" in record] == [20.0] * 4
    for command in (("resume", run, "--steps", 80), ("eval", run)):
        assert "--trust" in str(oal(*command).exception)
    assert "not on CartPole-v1" in str(oal("resume", run, "--env", "CartPole-v1").exception)
    resumed = oal("resume", run, "--steps", 80, "--env", "robot.py:make_env", "--quiet")
    assert resumed.exit_code == 0, (resumed.output, resumed.exception)
    (here / "moved.py").write_text((here / "robot.py").read_text())
    assert oal("resume", run, "--steps", 90, "--env", "moved.py:make_env", "--quiet").exit_code == 0
    assert folder.config["env"] == "moved.py:make_env"
    judged = oal("eval", run, "--episodes", 2, "--trust")
    assert judged.exit_code == 0, (judged.output, judged.exception)
    assert oal("eval", run, "--episodes", 2, "--best", "--trust").exit_code == 0
    recorded = oal("demos", "record", run, "--episodes", 1, "-o", "again.npz", "--env", "robot.py:make_env")
    assert recorded.exit_code == 0, (recorded.output, recorded.exception)
    assert demos.load("again.npz").rewards is None
    assert "--trust" in str(oal("demos", "record", run, "-o", "third.npz").exception)


def test_a_run_with_a_horizon_of_its_own_records_with_it(here: Path, oal: Any) -> None:
    """The class has no time limit: it is typed for random actions, and known of a policy."""
    assert "--horizon" in str(oal("demos", "record", "random", "--env", "robot:Robot", "-o", "no.npz").exception)
    wild = oal("demos", "record", "random", "--env", "robot:Robot", "--horizon", 7, "--episodes", 2, "-o", "wild.npz")
    assert wild.exit_code == 0, (wild.output, wild.exception)
    shown = demos.load("wild.npz")
    assert shown.lengths.tolist() == [7, 7]
    learning = ("--demos", "wild.npz", "--horizon", 7, "--trajectories", 0, "--updates", 2)
    cloned = oal("clone", "robot:Robot", *learning, "--out", "cloned")
    assert cloned.exit_code == 0, (cloned.output, cloned.exception)
    again = oal("demos", "record", "cloned", "--env", "robot:Robot", "--episodes", 1, "-o", "again.npz")
    assert again.exit_code == 0, (again.output, again.exception)
    assert demos.load("again.npz").lengths.tolist() == [7]


def test_without_shipped_demonstrations_they_are_asked_for(here: Path, oal: Any) -> None:
    assert "--demos FILE" in str(oal("train", "robot.py:make_env").exception)


# ----- Dict observations


def test_a_policy_acts_on_what_the_environment_gives(tmp_path: Path) -> None:
    clone = BC(DICTIONARY, demos_of(DICTIONARY), config=BCConfig(updates=20), hidden=(8,)).learn()
    clone.save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")  # no environment is made
    env = gym.make(DICTIONARY)
    one, _ = env.reset(seed=1)
    two, _ = env.reset(seed=2)
    flat = [spaces.flatten(env.observation_space, each) for each in (one, two)]
    expected = [policy.predict(each)[0] for each in flat]
    np.testing.assert_array_equal(policy.predict(one)[0], expected[0])
    np.testing.assert_array_equal(policy.predict(dict(reversed(one.items())))[0], expected[0])
    np.testing.assert_array_equal(clone.predict(one, deterministic=True)[0], expected[0])
    batch = {key: np.stack([one[key], two[key]]) for key in one}
    # one row or two, a product is rounded otherwise
    np.testing.assert_allclose(policy.predict(batch)[0], expected, rtol=1e-5)
    np.testing.assert_allclose(policy.predict(np.stack(flat))[0], expected, rtol=1e-5)
    with pytest.raises(InputError, match="lacks the part 'one'"):
        policy.predict({"place": one["place"]})
    with pytest.raises(InputError, match="by name"):
        policy.predict(one, False)  # type: ignore[arg-type]


def test_a_vector_is_wanted_where_there_is_no_dictionary() -> None:
    policy = BC(CONTINUOUS, demos_of(CONTINUOUS), hidden=(8,)).policy()
    with pytest.raises(InputError, match="ContinuousWalk-v0 has 2 numbers"):
        policy.predict({"place": np.zeros(1)})
    with pytest.raises(InputError, match="the observation has 3 numbers"):
        policy.predict(np.zeros((2, 3)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_an_error(value: float) -> None:
    """Of every kind of policy, by the name of the number."""
    plain, named = (BC(env, demos_of(env), hidden=(8,)).policy() for env in (CONTINUOUS, DICTIONARY))
    with pytest.raises(InputError, match=rf"holds {value} at obs\[1\]"):
        plain.predict(np.array([0.0, value]))
    with pytest.raises(InputError, match=rf"holds {value} at place"):
        named.predict({"place": np.array([value]), "one": np.ones(1)})
    learner = OAL(CONTINUOUS, demos_of(CONTINUOUS), settings=SMALL)
    with pytest.raises(InputError, match=r"at obs\[0\]"):
        learner.predict(np.array([[0.0, 1.0], [value, 1.0]]))
    learner.close()


SPACES = [
    spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Box(-1, 1, (2, 2)), "c": spaces.Box(-1, 1, (1,))}),
    spaces.Dict([("z", spaces.Box(-1, 1, (2,))), ("a", spaces.MultiDiscrete([2, 3]))]),  # in an order of its own
    spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"x": spaces.Box(-1, 1, ())})]),
    spaces.Discrete(5, start=2),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(-1, 1, (1, 3)),
    spaces.MultiDiscrete([2, 2]),
]


class Showing(Walk):
    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.observation_space = space


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_of_every_space_are_flattened_as_gymnasium_does(space: spaces.Space) -> None:
    spec = describe(Showing(space), horizon=5)
    again = EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.space == space
    space.seed(3)
    samples = [space.sample() for _ in range(4)]
    expected = np.stack([spaces.flatten(space, sample) for sample in samples]).astype(np.float32)
    batch: Any = gym.vector.utils.create_empty_array(space, 4)
    batch = gym.vector.utils.concatenate(space, samples, batch)
    for sample, flat in zip(samples, expected, strict=True):
        np.testing.assert_array_equal(again.flat(sample), flat)
        np.testing.assert_array_equal(again.flat(flat), flat)
    np.testing.assert_array_equal(again.flat(batch), expected)
    np.testing.assert_array_equal(again.flat(expected), expected)
    assert len(input_names(spec)) == spec.observation_size + spec.action_size


def test_features_go_by_the_keys_of_the_dictionary() -> None:
    names = input_names(describe(Showing(SPACES[0]), horizon=5))
    assert names == ["a[0,0]", "a[0,1]", "a[1,0]", "a[1,1]", "b=1", "b=2", "b=3", "c", "action[0]"]
    assert input_names(describe(Showing(SPACES[2]), horizon=5))[:3] == ["0[0]", "0[1]", "1/x"]
    learner = OAL(DICTIONARY, demos_of(DICTIONARY), cost="linear", settings={"policy.hidden": [8], "bc.updates": 5})
    cost = LearnedCost.of(learner)
    assert cost.names == ("one", "place", "action[0]")
    one = {"place": np.array([0.5], np.float32), "one": np.ones(1, np.float32)}
    assert cost(one, np.array([1.0])) == cost(np.array([1.0, 0.5]), np.array([1.0]))
    learner.close()


def test_a_damaged_description_of_a_space_is_refused() -> None:
    spec = describe(Showing(SPACES[0]), horizon=5).to_json()
    for damaged in ("{", 3, '{"type": "Box"}', json.dumps({"type": "Discrete", "n": 3, "start": 0})):
        with pytest.raises(InputError):
            EnvSpec.from_json(spec | {"observation_space": damaged})
    assert "observation_space" not in describe(Walk(), horizon=5).to_json()


# ----- no reward


class Unpaid(Walk):
    """A walk whose reward is always the same."""

    def __init__(self, reward: Any = None) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info


@pytest.mark.parametrize("reward", [None, np.nan])
def test_steps_without_a_reward_cost_nothing_and_have_no_return(reward: Any, tmp_path: Path) -> None:
    learner = OAL(lambda: Unpaid(reward), demos_of(CONTINUOUS).without_rewards(), settings=SMALL, horizon=HORIZON)
    seen: list[Any] = []
    evaluate = callbacks.Evaluate(20, episodes=2)
    learner.learn(40, callback=[evaluate, callbacks.Record(20, seen.append)])
    assert np.isfinite(learner.memory.last(10)).all()
    assert seen
    assert all(entry["return"] is None and entry["evaluation_return"] is None for entry in seen)
    assert np.isfinite(evaluate.best_score)  # the nearest to the demonstrations is the best
    assert learner._progress_note().startswith("distance to the expert")
    learner.scored, learner.envs.finished = None, [(np.nan, 5)]
    assert learner._progress_note() == "length 5"
    learner.save(tmp_path / "checkpoint")
    loaded = OAL.load(tmp_path / "checkpoint", lambda: Unpaid(reward))
    np.testing.assert_equal(loaded.envs.finished, [(np.nan, 5)])
    learner.close()
    with pytest.raises(InputError, match="reward nan"):
        OAL(lambda: Unpaid(reward), None, "sac", None, horizon=HORIZON).learn(20)


def test_demonstrated_rewards_of_zero_are_none(tmp_path: Path) -> None:
    shown = record_encoded(lambda: Unpaid(0.0), lambda o: np.zeros((len(o), 1), np.float32), episodes=2, horizon=8)
    assert shown.rewards is not None
    learner = OAL(lambda: Unpaid(0.0), shown, settings=SMALL, horizon=HORIZON)
    assert not learner.rewarded
    evaluate = callbacks.Evaluate(20, episodes=2, best=tmp_path / "best")
    learner.learn(20, callback=evaluate)
    assert (tmp_path / "best").exists()
    assert np.isnan(learner.scored.evaluation.returns).all()  # type: ignore[union-attr]
    learner.scored, learner.envs.finished = None, [(0.0, 5)]
    assert learner._progress_note() == "length 5"
    learner.rewarded = True
    assert learner._progress_note() == "return 0"
    learner.close()


@pytest.mark.parametrize(
    "returns, says",
    [
        (([0.0, 0.0], None), False),
        (([np.nan, np.nan], [1.0]), False),
        (([5.0, 5.0], [5.0]), False),
        (([5.0, 5.0], [500.0]), True),
        (([5.0, 8.0], None), True),
    ],
)
def test_returns_that_are_all_the_same_say_nothing(returns: Any, says: bool) -> None:
    assert training.tells(*(None if part is None else np.array(part) for part in returns)) is says


def test_a_clone_too_has_no_return_where_rewards_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "still.py").write_text("from test_own_environment import Unpaid\ndef make():\n    return Unpaid(0.0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    act = lambda o: np.zeros((len(o), 1), np.float32)  # noqa: E731
    record_encoded(lambda: Unpaid(0.0), act, episodes=3, horizon=8).save(tmp_path / "still.npz")
    options: Any = {"trajectories": 2, "horizon": 8, "evaluation_episodes": 2, "config": BCConfig(updates=5)}
    training.clone("still:make", tmp_path / "clone", source=str(tmp_path / "still.npz"), **options)
    (record,) = RunFolder(tmp_path / "clone").records()
    assert record["evaluation_return"] is None
    assert record["evaluation_length"] > 0


def test_vector_environments_without_a_reward() -> None:
    vector = envs.VectorEnvs(gym.vector.SyncVectorEnv([lambda: Unpaid(np.nan)] * 2), horizon=8)
    encoded = np.zeros((2, 1), np.float32)
    with pytest.raises(InputError, match="not finite"):
        vector.step(encoded)
    vector.needs_reward = False
    assert vector.step(encoded).cost.tolist() == [0.0, 0.0]
    assert np.isnan(vector.episode_returns).all()


def test_a_vector_environment_that_goes_on_past_its_horizon_is_named() -> None:
    class Endless(Unpaid):
        def step(self, action: Any) -> Any:
            self.place = 0.0
            return super().step(action)

    vector = envs.VectorEnvs(gym.vector.SyncVectorEnv([lambda: Endless(1.0)] * 2), horizon=3)
    encoded = np.zeros((2, 1), np.float32)
    for _ in range(3):
        vector.step(encoded)
    with pytest.raises(InputError, match=r"goes on after 3 steps, the horizon.*TimeLimit around each"):
        vector.step(encoded)


# ----- what cannot be learned on


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (84, 84, 3), np.uint8),
        spaces.Box(0, 255, (84, 84), np.uint8),
        spaces.Box(0, 1, (3, 64, 64), np.float32),
        spaces.Dict({"arm": spaces.Box(-1, 1, (3,)), "camera": spaces.Box(0, 255, (480, 640, 3), np.uint8)}),
    ],
    ids=str,
)
def test_images_are_refused_at_once(space: spaces.Space) -> None:
    with pytest.raises(InputError, match=r"(camera.*|)observations are images .* not supported.*ObservationWrapper"):
        OAL(lambda: Showing(space), demos_of(CONTINUOUS), horizon=5)
    with pytest.raises(InputError, match="observations are images"):
        Demos.from_arrays([np.zeros((2, 3))], [np.zeros((1, 1))], env=lambda: Showing(space))


def test_huge_vectors_are_refused_too() -> None:
    with pytest.raises(InputError, match="numbers, at most"):
        describe(Showing(spaces.Box(-1, 1, (10**6,))), horizon=5)


class Panel(gym.Env):
    """Two lamps and a knob (or three switches) that must follow what is shown."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), repr(action)
        reward = float((np.ravel(action) == np.ravel(self.right(self.shown))).mean())
        self.shown = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.shown, reward, False, False, {}

    def right(self, shown: Any) -> Any:
        space = self.action_space
        counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        starts = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        parts = np.minimum((np.resize(shown, counts.shape) + 1) / 2 * counts, counts - 1).astype(space.dtype)
        return parts + np.asarray(starts, space.dtype)


PANELS = [
    spaces.MultiDiscrete([2, 2, 3]),
    spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[-1, 4], [0, 2]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
]


@pytest.mark.parametrize("space", PANELS, ids=str)
def test_actions_of_several_parts_are_one_choice(space: Any) -> None:
    spec = describe(Panel(space), horizon=5)
    codec, every = envs.ActionCodec(spec), spec.combinations
    assert every is not None
    counts = (
        np.ravel(space.nvec).tolist() if isinstance(space, spaces.MultiDiscrete) else [2] * int(np.prod(space.shape))
    )
    assert len(every) == spec.action_size == np.prod(counts) == len({each.tobytes() for each in every})
    assert all(space.contains(each) for each in every)
    encoded = codec.encode(every)
    np.testing.assert_array_equal(encoded, np.eye(len(every)))
    np.testing.assert_array_equal(codec.decode(encoded), every)
    space.seed(0)
    for drawn in (space.sample() for _ in range(20)):
        (place,) = [i for i, each in enumerate(every) if (each == drawn).all()]
        assert codec.encode(drawn[None]).argmax() == place
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    names = input_names(spec)[spec.observation_size :]
    assert names[-1] == f"action={','.join(map(str, every[-1].ravel()))}"
    with pytest.raises(InputError, match="outside the combinations"):
        codec.encode(every[-1:] + 1)
    with pytest.raises(InputError, match="actions have the shape"):
        codec.encode(every.reshape(len(every), -1)[:, :-1])


@pytest.mark.parametrize(
    "changes",
    [
        {"action_counts": [2, 3]}, {"action_starts": [0]}, {"action_counts": [2, 2, "3"]}, {"action_counts": [0, 2, 3]},
        {"action_shape": [4]}, {"action_starts": [0, 0, 2**70]}, {"action_counts": [-2, -2, 3]}, {"action_counts": 12},
        {"action_counts": [2] * 14, "action_starts": [0] * 14, "action_shape": [14], "action_size": 2**14},
    ],
)  # fmt: skip
def test_combinations_that_a_file_claims_are_checked(changes: dict[str, Any]) -> None:
    spec = describe(Panel(PANELS[0]), horizon=5).to_json()
    with pytest.raises(InputError, match=r"description of the environment.*action_"):
        EnvSpec.from_json(json.loads(json.dumps(spec | changes)))


@pytest.mark.parametrize("space", [PANELS[1], PANELS[2]], ids=str)
def test_a_panel_is_learned_from_demonstrations(space: Any, tmp_path: Path) -> None:
    panel = Panel(space)

    def make() -> gym.Env:
        return gym.wrappers.TimeLimit(Panel(space), 20)

    demos = record_demos(make, panel.right, episodes=12)
    assert demos.returns.tolist() == [20.0] * 12
    assert demos.actions.shape == (240, *space.shape)
    demos.save(tmp_path / "demos.npz")
    again = Demos.from_arrays([t.observations for t in demos], [t.actions for t in demos], env=make, terminated=False)
    assert again[0].actions.tolist() == load(tmp_path / "demos.npz")[0].actions.tolist()
    clone = BC(make, demos, seed=0, config=BCConfig(updates=1500, learning_rate=3e-3)).learn()
    assert clone.evaluate(episodes=3).mean_return > 15.0
    learner = OAL(make, demos, settings=SMALL).learn(60)
    action, _ = learner.predict(demos[0].observations[0], deterministic=False)
    assert space.contains(action)
    learner.policy().save(tmp_path / "policy.safetensors")
    policy = Policy.load(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(
        policy.predict(demos[0].observations)[0], learner.policy().predict(demos[0].observations)[0]
    )
    cost = LearnedCost.of(learner)
    charged = cost.reward_wrapper(make())
    charged.reset(seed=0)
    assert np.isfinite(charged.step(panel.right(demos[0].observations[0]))[1])


def test_unbounded_actions_are_refused_with_the_way_out() -> None:
    env = Walk()
    env.action_space = spaces.Box(-np.inf, np.inf, (2,))
    with pytest.raises(InputError, match="unbounded") as caught:
        describe(env, horizon=5)
    advice = str(caught.value).split("as with ")[1]
    assert describe(eval(advice, {"gymnasium": gym, "env": env, "shape": (2,)}), horizon=5).action_size == 2


# ----- recording


class Predicting:
    """As the policies of Stable-Baselines3 and of sbx: a batch or one, a state for those that have one."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        self.asked.append((state, bool(episode_start[0]), deterministic))
        return np.array([2.5], np.float32), (0 if state is None else state) + 1


def test_any_predict_records_as_it_is() -> None:
    policy = Predicting()
    recorded = record_demos(CONTINUOUS, policy, episodes=2)
    assert (recorded.actions == 2.5).all()
    firsts = [state for state, first, _ in policy.asked if first]
    assert firsts == [None, None]
    assert max(state or 0 for state, _, _ in policy.asked) == max(recorded.lengths) - 1  # each episode has its own
    assert all(deterministic for *_, deterministic in policy.asked)
    record_demos(CONTINUOUS, policy, episodes=1, deterministic=False)
    assert policy.asked[-1][-1] is False


class Plain:
    def predict(self, observation: Any) -> Any:
        return 7


def test_a_function_and_a_plain_predict_record_in_the_environments_units() -> None:
    recorded = record_demos(CONTINUOUS, lambda observation: 2.0 * observation[:1] + 1.0, episodes=2)
    np.testing.assert_allclose(recorded.actions, 2.0 * recorded.observations[:, :1] + 1.0, rtol=1e-6)
    assert set(record_demos(DISCRETE, Plain(), episodes=1).actions.tolist()) == {7}
    given = gym.make(DICTIONARY)
    seen = record_demos(given, lambda observation: [1.0 + 0.0 * observation["place"][0]], episodes=2)
    assert len(seen) == 2
    given.reset()  # it was not closed


def test_a_policy_of_oals_records_alike_both_ways() -> None:
    policy = BC(DICTIONARY, demos_of(DICTIONARY), config=BCConfig(updates=20), hidden=(8,)).learn().policy()
    alone, together = record_demos(DICTIONARY, policy, episodes=3), record_encoded(DICTIONARY, policy.act, episodes=3)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.actions, other.actions, atol=1e-5)


@pytest.mark.parametrize(
    "env, policy, says",
    [
        (DISCRETE, lambda o: np.eye(3)[0], "takes one whole number of Discrete.* not its act"),
        (CONTINUOUS, lambda o: np.zeros(2), r"shape \(1,\)"),
        (CONTINUOUS, lambda o: np.array([np.nan]), "finite"),
        (CONTINUOUS, 3, "must be a function, or have a method predict"),
    ],
)
def test_actions_that_are_none_are_named(env: str, policy: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        record_demos(env, policy, episodes=1)
