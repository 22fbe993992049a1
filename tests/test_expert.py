"""Expert training: repeatable, resumable bit for bit, and (slow) good enough."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import games
from oal.base import checkpoint
from oal.base.config import parse
from oal.base.folder import RunFolder
from oal.deep.loop import KIND, OAL
from oal.deep.policy import Policy
from oal.demos import load
from oal.envs import EpisodeRunner, Step, episode_seeds, evaluate
from oal.errors import InputError
from oal.lab import expert, run
from oal.lab.expert import expert_config
from oal.lab.run import RunConfig

TINY = expert_config(
    "Pendulum-v1",
    600,
    seed=3,
    settings={
        "policy.hidden": [16, 16],
        "policy.batch_size": 16,
        "replay.warmup_steps": 100,
        "replay.block": 20,
        "replay.n_steps": 3,
    },
    evaluate_every=200,
    evaluation_episodes=1,
    log_every=200,
    checkpoint_every=200,
)


def train(folder: Path, config: RunConfig = TINY, *, resume: bool = False) -> None:
    going = run.resume(folder, total_steps=config.total_steps) if resume else run.start(config, folder)
    going.go().close()


def everything(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    arrays, info = checkpoint.load(folder / "checkpoint.safetensors", kind=KIND)
    return arrays, {name: value for name, value in info.items() if name != "seconds"}


def assert_equal_runs(one: Path, other: Path) -> None:
    (arrays, info), (other_arrays, other_info) = everything(one), everything(other)
    assert info == other_info
    assert arrays.keys() == other_arrays.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], other_arrays[name], err_msg=name)

    def curve(folder: Path) -> list[tuple[float, float | None]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [(line["step"], line.get("evaluation_return")) for line in lines]

    assert curve(one) == curve(other)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expert") / "run"
    train(folder)
    return folder


def test_same_seed_same_run_and_another_seed_another(finished: Path, tmp_path: Path) -> None:
    train(tmp_path / "again")
    assert_equal_runs(finished, tmp_path / "again")
    train(tmp_path / "other", replace(TINY, seed=4))
    rows = [everything(folder)[0]["memory/rows"] for folder in (finished, tmp_path / "other")]
    assert not np.array_equal(*rows)


def test_a_run_stopped_anywhere_and_resumed_equals_the_run_never_stopped(finished: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    folder = tmp_path / "run"
    for stop_at in (120, 340, 520):
        going = run.resume(folder) if folder.exists() else run.start(TINY, folder)

        def stop(steps: int, going: Any = going, stop_at: int = stop_at, step: Any = going.learner.envs.step) -> Step:
            if going.learner.step >= stop_at:
                raise Stop
            return step(steps)

        going.learner.envs.step = stop
        with pytest.raises(Stop):
            going.go()
        going.learner.close()
    train(folder, resume=True)
    assert_equal_runs(finished, folder)


def test_the_run_folder_tells_what_was_done(finished: Path) -> None:
    folder = RunFolder.open(finished, kind="expert")
    assert RunConfig.from_json(folder.config) == TINY
    assert folder.metadata["environment"]["env_id"] == "Pendulum-v1"
    assert folder.status["status"] == "finished"
    lines = folder.records()
    assert [line["step"] for line in lines] == [200, 400, 600]
    assert not folder.cost.exists(), "there is no cost player"
    best = max(line["evaluation_return"] for line in lines)
    policy = Policy.load(folder.best)
    seeds = episode_seeds(TINY.seed, "evaluation", 1)
    assert EpisodeRunner("Pendulum-v1").evaluate(policy.act, seeds).mean_return == pytest.approx(best)


def test_an_expert_is_the_loop_without_a_cost_player(finished: Path) -> None:
    learner = OAL("Pendulum-v1", None, "sac", None, config=TINY.learner, seed=3)
    learner.learn(600)
    assert learner.cost_updates == 0
    assert learner.regret is None
    for one, other in zip(
        learner.policy().actor.layers, Policy.load(finished / "policy.safetensors").actor.layers, strict=True
    ):
        np.testing.assert_array_equal(one.weight, other.weight)


def test_a_saved_policy_acts_as_before_in_the_environments_units(finished: Path, tmp_path: Path) -> None:
    policy = Policy.load(finished / "policy.safetensors")
    observation = np.array([0.5, -0.5, 1.0])
    action, state = policy.predict(observation)
    assert state is None
    assert action.shape == (1,)
    assert abs(action[0]) <= 2.0
    np.testing.assert_allclose(action, 2.0 * policy.act(observation[None].astype(np.float32))[0])
    many, _ = policy.predict(np.stack([observation, observation]))
    np.testing.assert_allclose(many, [action, action], rtol=1e-5)
    policy.save(tmp_path / "copy.safetensors")
    np.testing.assert_array_equal(Policy.load(tmp_path / "copy.safetensors").predict(observation)[0], action)
    with pytest.raises(InputError, match="4 numbers"):
        policy.predict(np.zeros(4))


def test_recorded_demonstrations_carry_their_origin(finished: Path) -> None:
    demos = expert.record(finished, episodes=3)
    assert load(finished / "demos.npz") == demos
    words = shlex.split(str(demos.metadata["command"]))
    assert words[:7] == ["oal", "expert", "Pendulum-v1", "--steps", "600", "--seed", "3"]
    changed = dict(parse(word) for word in words if "=" in word)
    assert words[7:] == [word for name in words if "=" in name for word in ("--set", name)]
    assert {"policy.batch_size", "policy.hidden", "replay.block", "replay.n_steps"} <= changed.keys()
    assert expert_config("Pendulum-v1", 600, settings=changed).learner == TINY.learner
    assert len(demos) == 3
    assert len({trajectory.seed for trajectory in demos}) == 3
    assert all(trajectory.truncated and not trajectory.terminated for trajectory in demos)


def test_a_finished_run_can_go_on(finished: Path, tmp_path: Path) -> None:
    train(tmp_path / "run")
    train(tmp_path / "run", replace(TINY, total_steps=800), resume=True)
    folder = RunFolder.open(tmp_path / "run", kind="expert")
    assert RunConfig.from_json(folder.config).total_steps == 800
    assert [record["step"] for record in folder.records()] == [200, 400, 600, 800]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run.start(TINY, folder).folder.release()
    RunFolder(folder).log({"step": 150, "evaluation_return": 7.0})
    train(folder, resume=True)
    assert_equal_runs(finished, folder)


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    going = run.start(TINY, tmp_path / "run")
    with pytest.raises(InputError, match=f"id {os.getpid()}"):
        run.resume(tmp_path / "run")
    going.folder.release()
    run.resume(tmp_path / "run").folder.release()


def test_misuse_is_named(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="oal resume"):
        run.start(TINY, finished)
    with pytest.raises(InputError, match="seed 3, not"):
        expert.resume(finished, "Pendulum-v1", seed=9)
    with pytest.raises(InputError, match="Pendulum-v1 with seed 3, not CartPole-v1"):
        expert.resume(finished, "CartPole-v1", seed=3)
    with pytest.raises(InputError, match="no such file"):
        expert.resume(tmp_path / "nothing", "Pendulum-v1", seed=3)
    with pytest.raises(InputError, match="steps is 0"):
        expert_config("Pendulum-v1", 0)
    with pytest.raises(InputError, match="n_step"):
        expert_config("Pendulum-v1", 600, settings={"replay.n_step": 3})
    with pytest.raises(InputError, match=r"has no time limit.*--horizon"):
        expert_config(games.Walk, 600)  # type: ignore[arg-type]
    assert expert_config(games.Walk, 600, horizon=7).horizon == 7  # type: ignore[arg-type]
    short = expert_config("Pendulum-v1", 600, horizon=50)
    assert expert.command(short) == "oal expert Pendulum-v1 --steps 600 --seed 0 --horizon 50"


def test_a_resumed_run_keeps_its_settings(finished: Path) -> None:
    words = ["expert", "Pendulum-v1", "--resume", "--seed", "3", "--out", str(finished), "--set", "replay.n_steps=5"]
    words += ["--stop-at-return", "5"]
    result = subprocess.run([sys.executable, "-m", "oal", *words], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "leave out replay.n_steps, --stop-at-return" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_command_says_what_is_wrong_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "oal", "expert", "NoSuchEnv-v0"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "NoSuchEnv" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_observation_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = run.start(TINY, tmp_path / "run")
    step = going.learner.envs.step

    def broken(action: np.ndarray) -> Step:
        result = step(action)
        if going.learner.step == 339:  # the last of its block: nothing acts on it any more
            result.next_observation[0, 1] = np.nan
        return result

    monkeypatch.setattr(going.learner.envs, "step", broken)
    with pytest.raises(InputError, match="not finite at step 340"):
        going.go()
    going.learner.close()
    assert everything(tmp_path / "run")[1]["step"] == 200


# ----- learning


def run_cli(*arguments: str) -> str:
    """Run the command in a process of its own, as it must set up its threads before JAX is loaded."""
    command = [sys.executable, "-m", "oal", "expert", *arguments, "--quiet"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id, steps, maximum", [("InvertedPendulum-v5", 40_000, 1000.0), ("CartPole-v1", 40_000, 500.0)]
)
def test_the_expert_reaches_the_maximum_return(env_id: str, steps: int, maximum: float, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_cli(env_id, "--steps", str(steps), "--out", str(folder), "--stop-at-return", str(maximum))
    policy = Policy.load(folder / "best.safetensors")
    evaluation = evaluate(env_id, policy.act, episodes=20, seed=123)
    assert evaluation.mean_return >= 0.99 * maximum
    assert load(folder / "demos.npz").env_id == env_id


@pytest.mark.slow
def test_a_run_killed_at_random_resumes_to_the_same_result(tmp_path: Path) -> None:
    arguments = ["Pendulum-v1", "--steps", "3000", "--checkpoint-every", "500", "--quiet", "--episodes", "1"]
    command = [sys.executable, "-m", "oal", "expert", *arguments]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True)
    rng = np.random.default_rng(0)
    folder, kills = tmp_path / "killed", 0
    # each time a little after the run has got somewhere new: begun, then one checkpoint further (however slow it is)
    for awaited in ("config.json", *["checkpoint.safetensors"] * 4):
        path = folder / awaited
        before = path.stat().st_mtime_ns if path.exists() else 0
        resume = ["--resume"] if (folder / "config.json").exists() else []
        process = subprocess.Popen([*command, "--out", str(folder), *resume])
        while process.poll() is None and (path.stat().st_mtime_ns if path.exists() else 0) == before:
            time.sleep(0.02)
        time.sleep(float(rng.uniform(0.0, 3.0)))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    subprocess.run([*command, "--out", str(folder), "--resume"], check=True)
    assert kills >= 2
    assert_equal_runs(tmp_path / "whole", folder)
