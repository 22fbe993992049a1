"""Environments that misbehave: they hang, crash, or hand out what their observation space does not have."""

import io
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from oal.base.folder import RunFolder
from oal.deep.replay import Replay
from oal.envs import EpisodeRunner, UniformPolicy, describe, hangs, stepping
from oal.envs.observations import misfit
from oal.errors import InputError
from oal.lab import run as training
from oal.lab import worker
from oal.lab.executors import LOG, Processes, WorkerProcess
from oal.lab.sweep import Sweep
from oal.lab.worker import Job
from test_experiment import TINY
from test_training import small


class Odd(gym.Env):
    """Gives what it was told to, from the second observation on."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, space: spaces.Space, odd: Any) -> None:
        self.observation_space, self.odd = space, odd

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.odd, 0.0, False, False, {}


THREE = spaces.Box(-1, 1, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (2, 2), np.uint8)
TWO = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)})
WRONG: list[tuple[spaces.Space, Any, str]] = [
    (THREE, np.zeros(1, np.float32), r"shape \(1,\), not \(3,\)"),  # broadcast, in the past
    (THREE, np.zeros((1, 3), np.float32), r"shape \(1, 3\)"),
    (THREE, np.float32(0.5), r"shape \(\)"),
    (THREE, [0.0, 0.0, 0.0], "list, not an array"),
    (THREE, None, "NoneType"),
    (THREE, np.zeros(3, complex), "complex128, not float32"),
    (THREE, np.array(["a", "b", "c"]), "<U1, not float32"),
    (THREE, np.array([None, None, None]), "object"),
    (PIXELS, np.zeros((2, 2)), "float64, not uint8"),
    (PIXELS, np.zeros((4,), np.uint8), r"shape \(4,\)"),
    (spaces.Discrete(3), 3, "3, not a whole number"),
    (spaces.Discrete(3), -1, "-1, not a whole number"),
    (spaces.Discrete(3), 1.0, "not a whole number"),
    (TWO, {"a": 1}, "not a dictionary with a, b"),
    (TWO, {"a": 1, "b": np.zeros(3)}, r"b: shape \(3,\)"),
    (spaces.Tuple((THREE, THREE)), (np.zeros(3),), "not 2 parts"),
    (spaces.MultiBinary(4), np.zeros(4), "float64, not int8"),
]


@pytest.mark.parametrize(("space", "odd", "message"), WRONG)
def test_an_observation_that_does_not_fit_its_space_is_an_error(space: spaces.Space, odd: Any, message: str) -> None:
    made = Odd(space, odd)
    envs = stepping(made, horizon=5)
    with pytest.raises(InputError, match=f"Odd gave an observation that does not fit .*{message}"):
        envs.step(np.zeros((1, 1), np.float32))
    runner = EpisodeRunner(lambda: made, horizon=5)
    with pytest.raises(InputError, match=message):
        runner.run(UniformPolicy(runner.spec).act, [0])


@pytest.mark.parametrize(
    ("space", "fine"),
    [
        (THREE, np.full(3, 2.0)),  # another width, and outside of the bounds
        (THREE, np.zeros(3, np.int64)),
        (PIXELS, np.zeros((2, 2), np.uint8)),
        (spaces.Discrete(3, start=2), np.int64(4)),
        (spaces.Discrete(3), np.array(2)),
        (spaces.Box(-1, 1, (), np.float32), 0.5),
        (TWO, {"b": np.zeros(2), "a": 0}),
        (spaces.Tuple((THREE, THREE)), [np.zeros(3), np.ones(3)]),
        (spaces.MultiBinary(4), np.zeros(4, bool)),
    ],
)
def test_what_fits_is_taken(space: spaces.Space, fine: Any) -> None:
    assert misfit(space, fine) is None
    stepping(Odd(space, fine), horizon=5).step(np.zeros((1, 1), np.float32))


def test_a_vector_environment_with_observations_of_another_shape_is_an_error() -> None:
    envs = gym.vector.SyncVectorEnv([lambda: gym.wrappers.TimeLimit(Odd(THREE, np.zeros(3)), 5)] * 2)
    stepped = stepping(envs, horizon=5)
    envs.step = lambda actions: (np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {})
    with pytest.raises(InputError, match=r"shape \(2, 1\), not \(2, 3\)"):
        stepped.step(np.zeros((2, 1), np.float32))


def test_an_observation_of_a_million_numbers_is_refused_with_its_memory() -> None:
    large = spaces.Box(-1.0, 1.0, (1_000_000,), np.float32)
    with pytest.raises(InputError, match=r"1,000,000 numbers.* 8\.0 TB"):
        describe(Odd(large, None), horizon=5)
    with pytest.raises(InputError, match=r"takes .* GB, and this machine has .* lower replay\.capacity"):
        Replay(10_000_000, 200_000, 1)


# ----- hanging


class Hanging(gym.Env):
    """Waits for ever in its third step."""

    observation_space = THREE
    action_space = Odd.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        while self.time == 3:
            time.sleep(0.01)
        return np.zeros(3, np.float32), 0.0, False, False, {}


def test_a_step_that_hangs_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    envs = stepping(Hanging(), horizon=9)
    begun = time.monotonic()
    message = r"Hanging-v9 has been .* for 0\.4 s.*--step-timeout"
    with pytest.raises(hangs.HungError, match=message), hangs.limited(0.4, "Hanging-v9"):  # noqa: PT012
        for _ in range(5):
            envs.step(np.zeros((1, 1), np.float32))
    assert 0.3 < time.monotonic() - begun < 5


def test_time_outside_of_environments_does_not_count() -> None:
    with hangs.limited(0.1, "x"):
        time.sleep(0.3)


def test_a_run_whose_environment_hangs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training.start(small(step_timeout=0.5, total_steps=200), tmp_path / "run")
    monkeypatch.setattr(run.learner.envs.envs[0], "step", lambda action: time.sleep(60))
    monkeypatch.setattr(run.learner, "learn", lambda *_, **__: run.learner.envs.step(np.zeros((1, 1), np.float32)))
    with pytest.raises(hangs.HungError):
        run.go()
    status = RunFolder(tmp_path / "run").status
    assert status["status"] == "failed"
    assert "hangs" in status["error"]
    assert "step_timeout" not in small().to_json()


def test_a_worker_that_hung_has_failed_and_is_not_tried_again() -> None:
    """Its run folder says why; another attempt would hang as long and write something else over that."""
    process = WorkerProcess.__new__(WorkerProcess)
    process.job, process._stdin = Job("run", {}, (), "."), io.BytesIO()
    process._process = SimpleNamespace(poll=lambda: hangs.EXIT_CODE)  # type: ignore[assignment]
    ending = process.ending()
    assert ending is not None
    assert ending.code == worker.FAILED


def test_a_hang_inside_compiled_code_ends_the_process_with_its_stack() -> None:
    code = """
        import hashlib
        from oal.envs import hangs
        hangs.PATIENCE_SECONDS = 0.2
        def step():
            hangs.watch.calls += 1
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
        with hangs.limited(0.5, "Deep-v0", give_up=lambda error: print("kept")):
            step()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == hangs.EXIT_CODE
    assert "in step" in done.stderr
    assert "error: Deep-v0 has been in one step" in done.stderr


# ----- crashing

CRASHES = """
    import ctypes
    import gymnasium as gym
    from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv

    class Crashing(InvertedPendulumEnv):
        def step(self, action):
            ctypes.string_at(0)

    gym.register("Crashing-v0", Crashing, max_episode_steps=1000)
"""


@pytest.mark.slow
def test_a_crashing_worker_leaves_its_python_stack_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "crashes.py").write_text(textwrap.dedent(CRASHES))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}:{Path(training.__file__).parents[2]}")
    table = {"sweep": {**TINY, "env": "crashes:Crashing-v0", "demos": "InvertedPendulum-v5"}, "grid": {"seed": [0]}}
    sweep = Sweep.parse(table, name="x", out=tmp_path / "runs")
    (outcome,) = sweep.go(Processes(1), retries=0).outcomes
    assert outcome.state == "failed"
    assert "SIGSEGV" in outcome.error
    log = (sweep.runs()[0].folder / LOG).read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert "crashes.py" in log
    assert "crashes.py" in outcome.traceback
