"""Stops: a signal never loses a step, says how to go on, and what goes on ends as if it had never been stopped."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from oal import OAL
from oal.base import checkpoint, stopping
from oal.base.folder import RunFolder
from oal.deep import callbacks
from oal.deep.bc import BCConfig
from oal.deep.presets import preset
from oal.lab import run as training
from oal.lab import tabular_figures
from oal.lab.executors import Inline
from oal.lab.sweep import Sweep
from oal.tabular import lanes
from oal.tabular import mdp as mdps
from oal.tabular.learner import TabularOAL
from oal.tabular.sampler import Sampler
from oal.tabular.seeds import Kept, learn_seeds
from test_experiment import TINY
from test_training import SMALL, contents, small

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")


# ----- the mechanism


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_stops_at_once_where_nothing_is_deferred(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(stopping.Stopped) as stop, stopping.going_on("oal this"), stopping.listening():
        signal.raise_signal(number)
    assert (stop.value.code, stop.value.go_on) == (128 + number, "oal this")
    assert str(stop.value) == f"stopped by {signal.Signals(number).name}; go on with\n  oal this"
    assert signal.getsignal(number) == before


def test_a_deferred_signal_asks_first_and_the_second_does_not() -> None:
    seen = []
    with pytest.raises(stopping.Stopped) as stop, stopping.deferred():  # noqa: PT012
        with stopping.deferred():
            signal.raise_signal(signal.SIGHUP)
            seen.append(stopping.asked())
        seen.append("inner")  # only the outermost block raises by itself
        with pytest.raises(stopping.Stopped):
            stopping.check()
        with pytest.raises(stopping.Stopped):
            signal.raise_signal(signal.SIGTERM)
        seen.append("done")
    assert seen == [True, "inner", "done"]
    assert stop.value.number == signal.SIGHUP
    assert not stopping.asked()
    stopping.check()


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping.deferred():
            signal.raise_signal(signal.SIGHUP)
            assert not stopping.asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_forked_process_has_its_signals_to_itself() -> None:
    """multiprocessing ends a simulator's process with SIGTERM, which must not only ask."""
    process = python(FORKED)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "-15 False\n")


FORKED = """
    import os, time
    from oal.base import stopping
    with stopping.deferred():
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), 15)
            time.sleep(10)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stopping.asked())
"""
IN_COMPILED_CODE = """
    import hashlib
    from oal.base import stopping
    with stopping.deferred():
        print("begun", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes without a Python statement
"""


def python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)


def test_the_second_signal_ends_a_process_that_is_inside_compiled_code() -> None:
    process = python(IN_COMPILED_CODE)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - begun < stopping.AT_ONCE_SECONDS + 3


def test_work_is_kept_by_the_clock_for_a_twentieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace, never = stopping.Pace(10.0), stopping.Pace(0)

    def at(moment: float) -> bool:
        now[0] = moment
        return pace.due()

    assert [at(9.9), at(10.0)] == [False, True]
    with pace.keeping():
        now[0] += 1.0
    assert [at(30.9), at(31.0)] == [False, True]
    assert not never.due()


# ----- in this process


def stop_at(step: int, number: int = signal.SIGTERM) -> Callable[..., Any]:
    """Return a sink that sends a signal when a record of this step comes."""
    return lambda record: signal.raise_signal(number) if record["step"] == step else None


UNCLONED = training.replace(preset("mdpo", "neural", settings=SMALL), bc_config=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "run"
    training.start(small(learner=UNCLONED), path).go()
    return contents(path)


def test_a_run_that_is_stopped_between_checkpoints_goes_on_from_there(tmp_path: Path, whole: dict[str, Any]) -> None:
    path = tmp_path / "run with a space"
    run = training.start(small(learner=UNCLONED, checkpoint_every=600), path)
    with pytest.raises(stopping.Stopped) as stop:
        run.go(sinks=[stop_at(300)])
    assert stop.value.go_on == f"oal resume '{path}'"
    assert RunFolder(path).status == {"status": "stopped", "step": 300}
    assert not RunFolder(path).busy
    resumed = training.resume(path)
    assert resumed.learner.step == 300
    resumed.go()
    assert contents(path) == whole


def test_checkpoints_by_the_clock_change_nothing(tmp_path: Path, whole: dict[str, Any], monkeypatch: Any) -> None:
    saved = []
    monkeypatch.setattr(stopping, "_SAVING_SHARE", 0.0)
    monkeypatch.setattr(checkpoint, "save", lambda *args, **rest: saved.append(args) or save(*args, **rest))
    config = small(learner=UNCLONED, checkpoint_every=600, checkpoint_seconds=1e-6)
    training.start(config, tmp_path / "run").go()
    assert len([args for args in saved if str(args[0]).endswith("checkpoint.safetensors")]) == 30  # one for each block
    assert contents(tmp_path / "run") == whole
    assert config.to_json()["checkpoint_seconds"] == 1e-6
    assert "checkpoint_seconds" not in small().to_json(), "runs from before have the same name and configuration"


save = checkpoint.save


class Opaque(gym.Env):
    """A simulator whose state cannot be read."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, False, self.time == 7, {}


def test_where_no_state_can_be_saved_the_clock_saves_nothing_and_a_stop_does() -> None:
    config = training.replace(UNCLONED, cost=None, cost_config=None)
    learner = OAL(Opaque, None, config=config, horizon=7)
    watching = callbacks.Checkpoint(10_000, "unused", seconds=1e-6)
    learner.learn(40, callback=lambda learner: learner.step < 40 and watching.due(learner))
    assert watching.pace.seconds == 0


@pytest.mark.slow
def test_cloning_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BCConfig(epochs=30, members=2, validation_fraction=0.5)
    options: dict[str, Any] = {"trajectories": 2, "config": config, "evaluation_episodes": 1}
    training.clone("InvertedPendulum-v5", tmp_path / "whole", **options)

    def interrupt(text: str, total: int, **_: Any) -> Any:
        class Bar:
            def __enter__(self) -> Callable[..., None]:
                return lambda *_: signal.raise_signal(signal.SIGHUP)

            def __exit__(self, *_: object) -> None: ...

        return Bar()

    with monkeypatch.context() as patched:
        patched.setattr("oal.base.console.progress", interrupt)
        with pytest.raises(stopping.Stopped) as stop:
            training.clone("InvertedPendulum-v5", tmp_path / "cut", **options)
    folder = RunFolder(tmp_path / "cut")
    assert stop.value.go_on == f"oal resume {folder}"
    assert folder.status["status"] == "stopped"
    assert checkpoint.load(folder.checkpoint, kind="cloning")[1] == {"epochs": 10}
    training.resume_clone(folder.path)
    assert folder.policy.read_bytes() == RunFolder(tmp_path / "whole").policy.read_bytes()
    assert folder.records() == RunFolder(tmp_path / "whole").records()
    assert folder.status["status"] == "finished"


@pytest.mark.slow
def test_a_sweep_in_this_process_is_stopped_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"sweep": {**TINY, "cost": "linear", "total_steps": 200, "checkpoint_every": 200}, "grid": {"seed": [0]}}
    sweep = Sweep.parse(table, name="x", out=tmp_path)
    logging = RunFolder.log

    def log(folder: RunFolder, record: Any) -> None:
        logging(folder, record)
        stop_at(100, signal.SIGINT)(record)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "log", log)
        with pytest.raises(stopping.Stopped) as stop:
            sweep.go(Inline())
    assert stop.value.code == 130
    folder = RunFolder(sweep.runs()[0].folder)
    assert folder.status == {"status": "stopped", "step": 100}
    assert sweep.go(Inline()).complete
    assert [record["step"] for record in folder.records()] == [50, 100, 150, 200]


def tabular(seed: int, *, sampled: bool = False, **settings: Any) -> TabularOAL:
    problem = mdps.from_gymnasium("FrozenLake-v1", 8) if sampled else mdps.chain(8, 0.1)
    shown = mdps.sample(problem, mdps.expert_policy(problem), 5, rng=np.random.default_rng(seed))
    env = Sampler("FrozenLake-v1", 8, max_episode_steps=9) if sampled else problem
    return TabularOAL(env, shown, seed=seed, preset="paper", bonus_scale=0.01, **settings)


def test_seeds_that_are_stopped_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side in lanes: eight have finished, and the next two are stopped together."""
    expected = learn_seeds(tabular, range(10), 300, threads=1)
    learn, kept, stopped = lanes.learn, Kept(tmp_path, {"a": 1}), []

    def interrupted(inside: Any, rules: Any, truth: Any, first: int, regrets: Any) -> None:
        learn(inside, rules, truth, first, regrets)
        done = first - 1 + regrets.shape[1]
        if len(kept._results) == 8 and done >= 9 and not stopped:
            stopped.append(done)
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(lanes, "learn", interrupted)
        with pytest.raises(stopping.Stopped), stopping.deferred():
            learn_seeds(tabular, range(10), 300, threads=1, kept=kept)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["8.npz", "9.npz", "results.json"]
    loaded = [TabularOAL.load(kept.folder / f"{seed}.npz", mdps.chain(8, 0.1)) for seed in (8, 9)]
    assert [learner.episodes for learner in loaded] == stopped * 2
    assert not (Kept(tmp_path, {"a": 2}).folder).exists(), "other settings do not go on from there"
    kept = Kept(tmp_path, {"a": 1})
    assert list(kept._results) == [str(seed) for seed in range(8)]
    found = learn_seeds(tabular, range(10), 300, threads=2, kept=kept)
    np.testing.assert_array_equal(found, expected)
    kept.remove()
    assert not list(tmp_path.iterdir())


def test_seeds_that_run_alone_are_kept_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(seed: int) -> TabularOAL:
        return tabular(seed, cost_set="l2")

    expected = learn_seeds(make, range(4), 300, threads=1)
    play, kept = TabularOAL._play_table, Kept(tmp_path, {"a": 1})

    def interrupted(self: TabularOAL, episodes: int) -> None:
        play(self, episodes)
        if self.seed == 2 and self.episodes >= 9:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(TabularOAL, "_play_table", interrupted)
        with pytest.raises(stopping.Stopped), stopping.deferred():
            learn_seeds(make, range(4), 300, threads=1, kept=kept)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["2.npz", "results.json"]
    kept = Kept(tmp_path, {"a": 1})
    assert list(kept._results) == ["0", "1"]
    np.testing.assert_array_equal(learn_seeds(make, range(4), 300, threads=2, kept=kept), expected)


def test_a_sampled_environment_goes_on_from_a_seed_of_its_own(tmp_path: Path) -> None:
    """Gymnasium's generator cannot be saved; what comes after a stop still follows from the seed."""
    learner = tabular(0, sampled=True).learn(20)
    learner.save(tmp_path / "kept.npz")
    environment = learner.env
    one, two = (TabularOAL.load(tmp_path / "kept.npz", environment).learn(20) for _ in range(2))
    np.testing.assert_array_equal(one.trajectories.states, two.trajectories.states)


def test_a_figure_that_is_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"seeds": 2, "episodes": 20, "alphas": (0.1,), "horizon": 6, "show_progress": False}
    tabular_figures.draw("noise", tmp_path / "whole", threads=1, **options)
    monkeypatch.setattr("oal.lab.tabular_figures._picture", lambda *_: None)
    add, added = Kept.add, []

    def stopping_at_the_third(self: Kept, key: str, result: Any) -> None:
        add(self, key, result)
        added.append(key)
        if len(added) == 3:
            signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(Kept, "add", stopping_at_the_third)
    with pytest.raises(stopping.Stopped):
        tabular_figures.draw("noise", tmp_path / "cut", threads=1, **options)
    assert not (tmp_path / "cut" / "noise.csv").exists()
    tabular_figures.draw("noise", tmp_path / "cut", threads=1, **options)
    assert len(added) == len(set(added)) == 8, "nothing is learned twice"
    for name in ("noise.csv", "claims.csv"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert not list((tmp_path / "cut").glob("unfinished-*"))


# ----- real signals to real processes

TRAIN = ["InvertedPendulum-v5", "--trajectories", "2", "--quiet", "--evaluate-every", "2000"]
TRAIN += ["--evaluation-episodes", "1", *(f"--set={name}={json.dumps(value)}" for name, value in SMALL.items())]


AS_IN_A_TERMINAL = "import signal; [signal.signal(n, signal.SIG_DFL) for n in (1, 2, 15)]; "
OFTEN = "from oal.base import stopping; stopping.KEEP_SECONDS = 0.1; "


def oal(*words: Any, often: bool = False, **options: Any) -> subprocess.Popen[str]:
    """Start `oal`, with signals as in a terminal however the tests were started; `often` keeps work all the time."""
    return subprocess.Popen(
        [sys.executable, "-c", AS_IN_A_TERMINAL + OFTEN * often + "import oal.__main__", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def stopped(process: subprocess.Popen[str], when: Callable[[], Any], number: int, *, within: float = 30.0) -> str:
    """Send the signal once `when` is true; return the command that goes on. Ctrl-C reaches workers too, as it does."""
    deadline = time.monotonic() + 300
    while process.poll() is None and not when() and time.monotonic() < deadline:
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    begun = time.monotonic()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, output
    assert time.monotonic() - begun < within
    assert f"stopped by {signal.Signals(number).name}; go on with\n  oal " in output
    assert "Traceback" not in output
    return output.splitlines()[-1].strip()


def went_on(command: str, **options: Any) -> str:
    output, _ = (process := oal(*shlex.split(command)[1:], **options)).communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def test_tabular_learning_reacts_at_once_and_goes_on(tmp_path: Path) -> None:
    words = ["tabular", "learn", "chain", "--demos", 5, "--seeds", 2, "--threads", 2, "--horizon", 12, "--json"]
    process = oal(*words, "--episodes", 10_000_000, cwd=tmp_path, often=True)
    command = stopped(process, lambda: len(list(tmp_path.rglob("*.npz"))) == 2, signal.SIGTERM, within=20)
    assert command == "oal " + shlex.join(map(str, [*words, "--episodes", 10_000_000]))
    (kept,) = (tmp_path / "runs").glob("unfinished-*")
    learners = [TabularOAL.load(path, mdps.chain(12, 0.1)) for path in kept.glob("*.npz")]
    assert len(learners) == 2
    assert all(0 < learner.episodes < 10_000_000 for learner in learners)


def step_of(path: Path) -> int:
    try:
        return int(RunFolder(path).status["step"])
    except Exception:  # not begun
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_training_is_stopped_and_goes_on(tmp_path: Path, number: int) -> None:
    words = ["train", *TRAIN, "--steps", 20_000, "--checkpoint-every", 20_000, "--out"]
    went_on(shlex.join(map(str, ["oal", *words, tmp_path / "whole"])))
    path = tmp_path / "cut"
    command = stopped(oal(*words, path), lambda: step_of(path), number)
    assert command == f"oal resume {path}"
    assert RunFolder(path).status["status"] == "stopped"
    assert step_of(path) % 20 == 0
    went_on(command + " --quiet")
    assert contents(path) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_an_expert_is_stopped_and_goes_on(tmp_path: Path) -> None:
    words = ["expert", "Pendulum-v1", "--steps", 3000, "--quiet", "--episodes", 1, "--out"]
    went_on(shlex.join(map(str, ["oal", *words, tmp_path / "whole"])))
    path = tmp_path / "cut"
    command = stopped(oal(*words, path), lambda: step_of(path) >= 1000, signal.SIGINT)
    assert step_of(path) < 3000
    went_on(command + " --quiet")
    for name in ("policy.safetensors", "best.safetensors", "demos.npz"):
        assert (path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_cloning_is_stopped_and_goes_on_from_the_command_line(tmp_path: Path) -> None:
    words = ["clone", "InvertedPendulum-v5", "--updates", 60_000, "--quiet", "--evaluation-episodes", 1, "--out"]
    went_on(shlex.join(map(str, ["oal", *words, tmp_path / "whole"])))
    path = tmp_path / "cut"
    time_of = lambda: (path / "status.json").exists() and time.time() > (path / "status.json").stat().st_mtime + 5  # noqa: E731
    command = stopped(oal(*words, path), time_of, signal.SIGINT)
    assert RunFolder(path).status["status"] == "stopped"
    went_on(command + " --quiet")
    assert (path / "policy.safetensors").read_bytes() == (tmp_path / "whole" / "policy.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_and_its_workers_are_stopped_and_go_on(tmp_path: Path, number: int) -> None:
    from test_experiment import results, toml

    table = {"sweep": {**TINY, "total_steps": 20_000, "checkpoint_every": 20_000}, "grid": {"seed": [0, 1]}}
    path = toml(tmp_path / "s.toml", **table)
    sweeps = [Sweep.read(path, out=tmp_path / name) for name in ("whole", "cut")]
    went_on(shlex.join(["oal", "sweep", str(path), "--out", str(sweeps[0].out), "--quiet"]))
    process = oal("sweep", path, "--out", sweeps[1].out, "--processes", 2)
    folders = [run.folder for run in sweeps[1].runs()]
    command = stopped(process, lambda: all(map(step_of, folders)), number)
    assert command == shlex.join(["oal", "sweep", str(path), "--out", str(sweeps[1].out), "--processes", "2"])
    assert [RunFolder(folder).status["status"] for folder in folders] == ["stopped", "stopped"]
    went_on(command)
    assert results(sweeps[1]) == results(sweeps[0])


@pytest.mark.slow
def test_a_figure_is_stopped_and_goes_on_from_the_command_line(tmp_path: Path) -> None:
    words = ["figure", "noise", "--seeds", 8, "--episodes", 20_000, "--threads", 1, "--out"]
    went_on(shlex.join(map(str, ["oal", *words, tmp_path / "whole"])))
    process = oal(*words, tmp_path / "cut", often=True)
    command = stopped(process, lambda: list(tmp_path.rglob("*.npz")), signal.SIGINT, within=5)
    assert list((tmp_path / "cut").glob("unfinished-*"))
    went_on(command)
    assert (tmp_path / "cut" / "noise.csv").read_text() == (tmp_path / "whole" / "noise.csv").read_text()
