"""`oal check`: each thing that is looked at, sound and not, and what is said of it."""

import json
import shlex
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from games import CONTINUOUS, DICTIONARY, DISCRETE, Walk, demos_of
from oal.cli import app
from oal.demos import Demos, load
from oal.errors import InputError
from oal.lab.check import Finding, check


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


class Odd(Walk):
    """A walk with something wrong."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.count = wrong, 0
        if wrong == "space":
            self.observation_space = spaces.Box(5.0, 6.0, (2,), np.float32)
        if wrong == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seed = {"unseeded": None, "fixed": 0}.get(self.wrong, seed)
        super().reset(seed=seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        if self.wrong == "nan" and self.count == 3:
            observation = observation * np.nan
        terminated = terminated and self.wrong != "endless"
        if self.wrong == "constant":
            terminated = False
        reward = {"none": None, "zero": 0.0, "constant": 1.0, "steps": 1.0, "infinite": np.inf}.get(self.wrong, reward)
        return observation, reward, terminated, truncated, info


def look(wrong: str, **options: Any) -> dict[str, Finding]:
    return by_name(check(lambda: Odd(wrong), horizon=8, **options))


def test_a_sound_environment_and_its_demonstrations() -> None:
    found = by_name(check(DICTIONARY, demos_of(DICTIONARY, episodes=12)))
    assert {finding.verdict for finding in found.values()} <= {"good", "note"}
    assert found["observations"].found == "Dict: one (1), place (1)"
    assert found["observations"].consequence == "joined in this order into 2 numbers"
    assert found["actions"].found == "Box (1,) in [-1, 3]"
    assert "scaled from these bounds" in found["actions"].consequence
    assert found["horizon"].found == "8 steps"
    assert found["numbers"].found.endswith("1 of 2 never change")
    assert found["seeding"].verdict == found["reward"].verdict == found["replaying"].verdict == "good"
    assert found["held out"].consequence == "oal eval compares with the other 2"
    assert found["resuming"].consequence == "episodes begin anew at each checkpoint"


def test_known_environments() -> None:
    found = by_name(check("CartPole-v1", episodes=2))
    assert found["actions"].found == "Discrete, 0 to 1"
    assert found["reward"].found == "always 1: a return is a number of steps"
    assert found["resuming"].consequence == "a stopped run goes on bit for bit"
    assert by_name(check(DISCRETE))["actions"].found == "Discrete, 5 to 7"


@pytest.mark.parametrize(
    "wrong, about, verdict, says",
    [
        ("nan", "numbers", "problem", "NaN or infinite at step 3 of episode 0"),
        ("space", "numbers", "note", "the first observation is not in Box(5.0, 6.0"),
        ("unseeded", "seeding", "note", "the same seed and actions gave other observations"),
        ("fixed", "seeding", "note", "every seed begins in the same place"),
        ("none", "reward", "note", "none (None or NaN)"),
        ("zero", "reward", "note", "always 0"),
        ("constant", "reward", "note", "always 1"),
        ("steps", "reward", "good", "always 1: a return is a number of steps"),
        ("infinite", "reward", "problem", "infinite"),
        ("endless", "endings", "good", "0 of 3 random episodes ended by themselves, in 8 to 8 steps"),
        ("unbounded", "environment", "problem", "Odd"),
    ],
)
def test_each_thing_is_seen(wrong: str, about: str, verdict: str, says: str) -> None:
    found = look(wrong)[about]
    assert found.verdict == verdict
    assert says in found.found
    assert look("nothing").get(about) != found


def test_no_time_limit_is_a_problem_with_the_way_out() -> None:
    found = check(lambda: Odd("nothing"))
    assert [finding.verdict for finding in found] == ["problem"]
    assert "--horizon" in found[0].consequence
    wrapped = check(lambda: gym.wrappers.TimeLimit(Odd("nothing"), 9))
    assert by_name(wrapped)["horizon"].found == "9 steps"


def shown(observations: Any = 0.0, actions: Any = 0.0, length: int = 4, **more: Any) -> Demos:
    rows = np.full((length + 1, 2), observations, np.float32), np.full((length, 1), actions, np.float32)
    return Demos.from_arrays([rows[0]] * 2, [rows[1]] * 2, **more)


@pytest.mark.parametrize(
    "demos, about, verdict, says",
    [
        (shown(actions=9.0), "demonstrations", "note", "8 of 8 action values lie outside"),
        (shown(length=12), "their length", "problem", "--horizon 12"),
        (shown(), "their endings", "note", "--time-limit"),
        (shown(terminated=True), "their endings", "good", "counted"),
        (shown(), "held out", "note", "flatters"),
        (Demos(shown()[:1]), "held out", "note", "give them to it with --demos"),
        (shown(observations=500.0), "their scale", "note", "are units and order the environment's?"),
        (shown(), "their rewards", "good", "none are needed"),
        (shown(rewards=[np.zeros(4)] * 2), "their rewards", "note", "taken as none"),
        (Demos.from_arrays([np.zeros((3, 5))], [np.zeros((2, 1))]), "demonstrations", "problem", "another environment"),
    ],
)
def test_each_thing_of_demonstrations_is_seen(demos: Demos, about: str, verdict: str, says: str) -> None:
    found = by_name(check(CONTINUOUS, demos, episodes=2))[about]
    assert found.verdict == verdict
    assert says in found.consequence


def test_demonstrations_of_another_version_do_not_replay() -> None:
    recorded = demos_of(CONTINUOUS)
    assert by_name(check(CONTINUOUS, recorded))["replaying"].verdict == "good"
    assert by_name(check(lambda: Odd("fixed"), recorded, horizon=8))["replaying"].verdict == "note"


def test_what_is_ready_can_be_typed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plain arrays: the line that the check ends with converts them, and names a file that can be learned from."""
    monkeypatch.chdir(tmp_path)
    np.savez("two arrays.npz", observations=np.zeros((8, 2), np.float32), actions=np.zeros((8, 1), np.float32))
    oal = CliRunner()
    with pytest.raises(InputError, match=r"oal demos convert .*two arrays\.npz NEW\.npz --lengths N"):
        oal.invoke(app, ["check", CONTINUOUS, "--demos", "two arrays.npz"], catch_exceptions=False)
    ready = oal.invoke(app, ["check", CONTINUOUS, "--demos", "two arrays.npz", "--lengths", "4"])
    first, then = ready.output.partition("Ready:")[2].split("&&")
    convert, train = shlex.split(first), shlex.split(then)
    assert oal.invoke(app, convert[1:], catch_exceptions=False).exit_code == 0
    assert train == ["oal", "train", CONTINUOUS, "--demos", convert[4], "--trajectories", "0"]
    assert len(load(convert[4])) == 2


def test_the_command(tmp_path: Any) -> None:
    oal = CliRunner()
    demos_of(CONTINUOUS).save(tmp_path / "demos.npz")
    good = oal.invoke(app, ["check", CONTINUOUS, "--demos", str(tmp_path / "demos.npz")])
    assert good.exit_code == 0
    assert f"Ready:  oal train {CONTINUOUS} --demos" in good.output
    assert good.output.rstrip().endswith("--trajectories 0")  # there are fewer than it would learn from
    bad = oal.invoke(app, ["check", CONTINUOUS, "--demos", "CartPole-v1", "--json"])
    assert bad.exit_code == 1
    assert [row["about"] for row in json.loads(bad.stdout) if row["verdict"] == "problem"] == ["demonstrations"]
    assert isinstance(oal.invoke(app, ["check", "Nowhere-v0"]).exception, InputError)
