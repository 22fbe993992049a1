"""Expert training: repeatable, resumable bit for bit, and (slow) good enough."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oal.base import checkpoint
from oal.base.files import write_json
from oal.base.folder import RunFolder
from oal.deep import expert
from oal.deep.expert import ExpertConfig, prepare
from oal.deep.offpolicy import SACConfig
from oal.deep.policy import Policy
from oal.demos import load
from oal.envs import Step, evaluate
from oal.errors import InputError

TINY = ExpertConfig(
    "Pendulum-v1",
    total_steps=600,
    seed=3,
    warmup_steps=100,
    block=20,
    evaluate_every=200,
    evaluation_episodes=1,
    checkpoint_every=200,
    sac=SACConfig(hidden=(16, 16), batch_size=16),
)


def train(folder: Path, config: ExpertConfig = TINY, *, resume: bool = False) -> None:
    trainer = prepare(config, folder, resume=resume)
    try:
        trainer.run()
    finally:
        trainer.close()


def everything(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    return checkpoint.load(folder / "checkpoint.safetensors", kind="expert-checkpoint")


def assert_equal_runs(one: Path, other: Path) -> None:
    (arrays, info), (other_arrays, other_info) = everything(one), everything(other)
    assert info == other_info
    assert arrays.keys() == other_arrays.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], other_arrays[name], err_msg=name)

    def curve(folder: Path) -> list[tuple[float, float]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [(line["step"], line["return_mean"]) for line in lines]

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
    rows = [everything(folder)[0]["replay/rows"] for folder in (finished, tmp_path / "other")]
    assert not np.array_equal(*rows)


def test_a_run_stopped_anywhere_and_resumed_equals_the_run_never_stopped(finished: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    folder = tmp_path / "run"
    for stop_at in (120, 340, 520):
        trainer = prepare(TINY, folder, resume=folder.exists())

        def stop(progress: expert.Progress, stop_at: int = stop_at) -> None:
            if progress.step >= stop_at:
                raise Stop

        with pytest.raises(Stop):
            trainer.run(stop)
        trainer.close()
    train(folder, resume=True)
    assert_equal_runs(finished, folder)


def test_the_run_folder_tells_what_was_done(finished: Path) -> None:
    run = RunFolder.open(finished, kind="expert")
    assert ExpertConfig.from_json(run.config) == TINY
    assert run.metadata["environment"]["env_id"] == "Pendulum-v1"
    assert run.status["status"] == "finished"
    lines = run.records()
    assert [line["step"] for line in lines] == [200, 400, 600]
    assert everything(finished)[1]["environment"] == "restarted at this checkpoint"
    best = max(line["return_mean"] for line in lines)
    policy = expert.best_policy(finished)
    seeds = expert.episode_seeds(TINY.seed, "expert-evaluation", 1)
    runner = expert.EpisodeRunner("Pendulum-v1")
    assert runner.evaluate(policy.act, seeds).mean_return == pytest.approx(best)


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
    assert demos.metadata["command"] == "oal expert Pendulum-v1 --steps 600 --seed 3 --batch-size 16"
    assert len(demos) == 3
    assert len({trajectory.seed for trajectory in demos}) == 3
    assert all(trajectory.truncated and not trajectory.terminated for trajectory in demos)


def test_a_run_folder_from_before_the_format_had_a_number_is_read_and_resumed(finished: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(finished, old)
    run = RunFolder(old)
    write_json(old / "config.json", {"expert": run.config, "environment": run.metadata["environment"]})
    (old / "metadata.json").unlink()
    write_json(old / "status.json", {"status": "trained", "step": 600, "best_return": None})
    assert RunFolder.open(old, kind="expert").status["status"] == "finished"
    assert run.metadata["environment"]["env_id"] == "Pendulum-v1"
    assert expert.saved_steps(old) == 600
    train(old, replace(TINY, total_steps=800), resume=True)
    assert ExpertConfig.from_json(run.config).total_steps == 800
    assert [record["step"] for record in run.records()] == [200, 400, 600, 800]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prepare(TINY, folder).close()
    RunFolder(folder).log({"step": 150, "return_mean": 7.0})
    train(folder, resume=True)
    assert_equal_runs(finished, folder)


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    trainer = prepare(TINY, tmp_path / "run")
    with pytest.raises(InputError, match=f"id {os.getpid()}"):
        prepare(TINY, tmp_path / "run", resume=True)
    trainer.close()
    prepare(TINY, tmp_path / "run", resume=True).close()


def test_misuse_is_named(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--resume"):
        prepare(TINY, finished)
    with pytest.raises(InputError, match="seed 3, not"):
        prepare(replace(TINY, seed=9), finished, resume=True)
    with pytest.raises(InputError, match="other hyper-parameters"):
        prepare(replace(TINY, sac=SACConfig()), finished, resume=True)
    with pytest.raises(InputError, match="no such file"):
        prepare(TINY, tmp_path / "nothing", resume=True)
    with pytest.raises(InputError, match="steps is 0"):
        ExpertConfig("Pendulum-v1", total_steps=0)


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
    trainer = prepare(TINY, tmp_path / "run")
    step = trainer.envs.step

    def broken(action: np.ndarray) -> Step:
        result = step(action)
        if trainer.progress.step == 339:  # the last of its block: nothing acts on it any more
            result.next_observation[0, 1] = np.nan
        return result

    monkeypatch.setattr(trainer.envs, "step", broken)
    with pytest.raises(InputError, match="not finite near step 340"):
        trainer.run()
    trainer.close()
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
    policy = expert.best_policy(folder)
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
