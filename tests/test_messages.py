"""What the command line says: phases, plurals, what to expect, what to do instead."""

import io
import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from oal.base.console import counted, progress
from oal.base.stats import Mean
from oal.cli import app
from oal.cli.figure import _show
from oal.demos import record_demos
from oal.envs import Envs, describe, make
from oal.errors import InputError
from oal.lab.claims import Claim


def test_one_run_is_not_runs() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert counted(1, "trajectory", "trajectories") == "1 trajectory"
    assert counted(4, "trajectory", "trajectories") == "4 trajectories"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("phase, note", [("learning", "distance to the expert 0.012"), ("cloning parts", "loss 0.01")])
def test_the_progress_line_fits_into_a_terminal(phase: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers of the longest run: phase, steps, time left and note, nothing cut off."""
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with progress(phase, 3_000_000) as advance:
        for _ in range(3):
            advance(500_000, note)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue()).rstrip().splitlines()[-1]
    assert re.fullmatch(rf"{phase} .* 1500000/3000000 left \S+ {note}", last.strip())
    assert "…" not in last


def test_one_seed_has_no_interval_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    one = Mean(0.5, math.nan, 1)
    assert str(one) == "0.500"
    _show("bc", [Claim("OAL is ahead", "here", one, "undecided")], smoke=False)
    shown = capsys.readouterr().out
    assert "nan" not in shown
    assert "one seed" in shown


@pytest.mark.parametrize("smoke", [False, True])
def test_a_quick_figure_says_that_it_decides_nothing(smoke: bool, capsys: pytest.CaptureFixture[str]) -> None:
    _show("bc", [Claim("OAL is ahead", "here", Mean(-0.5, 0.1, 4), "fails")], smoke=smoke)
    assert ("This is a smoke test" in capsys.readouterr().out) == smoke


class Unbounded(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (3,))


def test_the_papers_preset_says_what_to_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)
    shown = CliRunner().invoke(app, ["train", "Hoper-v5", "--preset", "paper"])
    assert "over 3,000,000 steps: after 150,000 expect little more than a random policy" in shown.output
    assert isinstance(shown.exception, InputError)
    assert "environment 'Hoper-v5' cannot be made" in str(shown.exception)


@pytest.mark.parametrize(
    "observed, acting, says",
    [
        (gym.spaces.Text(5), gym.spaces.Discrete(2), "are text: give numbers"),
        (gym.spaces.Dict(said=gym.spaces.Text(5)), gym.spaces.Discrete(2), "are text: give numbers"),
        (gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Box(0, 5, (2,), np.int64), "say it as a MultiDiscrete"),
    ],
)
def test_spaces_that_cannot_be_learned_on_are_refused_at_once(observed: Any, acting: Any, says: str) -> None:
    env = Unbounded()
    env.observation_space, env.action_space = observed, acting
    with pytest.raises(InputError, match=says):
        describe(env, horizon=5)


@pytest.mark.parametrize("reward", ["much", {"speed": 1.0}, [1.0, 2.0]])
def test_a_reward_that_is_no_number_is_named(reward: Any) -> None:
    class Odd(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), reward, False, True, {}

    with pytest.raises(InputError, match=r"Odd gave the reward .* at step 0: a reward is one number, or None"):
        record_demos(Odd, lambda observation: 0, episodes=1, horizon=3)
    envs = Envs(Odd, horizon=3)
    with pytest.raises(InputError, match=r"Odd gave the reward .* at step 0: a reward is one number, or None"):
        envs.step(np.array([[1.0, 0.0]], np.float32))


def test_a_file_without_a_function_asks_for_it() -> None:
    with pytest.raises(InputError, match=r"as my_robot\.py:make_env"):
        make("my_robot.py")


def test_the_shell_completes() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert "--install-completion" in shown.output
