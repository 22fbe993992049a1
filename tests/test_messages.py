"""What the command line says: phases, plurals, what to expect, what to do instead."""

import math

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from oal.base.console import counted
from oal.base.stats import Mean
from oal.cli import app
from oal.cli.figure import _show
from oal.errors import InputError
from oal.lab.claims import Claim


def test_one_run_is_not_runs() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 1_000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
    assert counted(1, "trajectory", "trajectories") == "1 trajectory"
    assert counted(4, "trajectory", "trajectories") == "4 trajectories"


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


def test_the_shell_completes() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert "--install-completion" in shown.output
