"""Runs in folders: what they hold, what stops them, and that a killed run goes on as if it had never been stopped."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from oal import demos
from oal.base.folder import RunFolder
from oal.cli import app
from oal.deep.bc import BCConfig, start_members
from oal.deep.learned_cost import LearnedCost
from oal.deep.loop import DivergedError
from oal.deep.policy import Policy
from oal.deep.presets import preset
from oal.envs import describe
from oal.errors import InputError
from oal.lab import run as training

SMALL = {
    "policy.hidden": [16],
    "policy.batch_size": 16,
    "replay.warmup_steps": 100,
    "replay.block": 20,
    "cost.hidden": [8],
    "cost.minibatches": 2,
    "cost.batch_size": 16,
    "bc.epochs": 1,
    "bc.members": 2,
}


def small(**changes: Any) -> training.RunConfig:
    fields: dict[str, Any] = {
        "env": "InvertedPendulum-v5",
        "learner": preset("mdpo", "neural", settings=SMALL),
        "total_steps": 600,
        "trajectories": 2,
        "log_every": 100,
        "evaluate_every": 200,
        "evaluation_episodes": 2,
        "checkpoint_every": 200,
    }
    return training.RunConfig(**fields | changes)


class Kill(BaseException):
    """Stops a run in the middle, as a signal does."""


def contents(path: Path) -> dict[str, Any]:
    """Everything a run left that must not depend on how often it was stopped."""
    folder = RunFolder(path)
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in folder.records()]
    return {
        "records": records,
        "policy": folder.policy.read_bytes(),
        "best": folder.best.read_bytes(),
        "cost": folder.cost.read_bytes(),
    }


def test_a_run_folder_holds_what_reporting_needs(tmp_path: Path) -> None:
    run = training.start(small(), tmp_path / "run")
    learner = run.go()
    folder = RunFolder.open(tmp_path / "run")
    assert folder.status["status"] == "finished"
    records = folder.records()
    assert [record["step"] for record in records] == [0, 100, 200, 300, 400, 500, 600]
    evaluated = [record["step"] for record in records if record.get("evaluation_return") is not None]
    assert evaluated == [0, 200, 400, 600]
    assert all(np.isfinite(record["al_regret_l2"]) for record in records[1:])
    assert folder.metadata["expert_return"] == 1000.0
    assert 0.0 < folder.metadata["random_return"] < 100.0
    assert folder.metadata["environment_state"] == "saved"
    assert len(demos.load(folder.demos)) == 2
    assert len(demos.load(folder.held_out)) == 18
    assert folder.table.read_text().count("\n") == 8
    observation = demos.load(folder.demos)[0].observations[0]
    action, _ = Policy.load(folder.policy).predict(observation)
    np.testing.assert_array_equal(action, learner.predict(observation)[0])
    cost = LearnedCost.load(folder.cost)
    assert np.isfinite(cost(observation[None], action[None])).all()
    assert training.RunConfig.from_json(folder.config) == small()


@pytest.mark.parametrize(("policy", "cost"), [("mdpo", "neural"), ("trpo", "linear")])
def test_an_interrupted_run_equals_the_one_that_was_not(
    policy: str, cost: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    settings = SMALL if policy == "mdpo" else {"policy.hidden": [8], "policy.batch_steps": 50, "bc.epochs": 1}
    if cost == "linear":
        settings = {name: value for name, value in settings.items() if not name.startswith("cost.")}
    config = small(learner=preset(policy, cost, settings=settings))
    training.start(config, tmp_path / "whole").go()

    stops = 0
    run = training.start(config, tmp_path / "cut")
    while True:
        at = run.learner.step + int(rng.integers(20, 260))
        try:
            run.go(sinks=[lambda record, at=at: _stop_after(record["step"], at)])
            break
        except Kill:
            stops += 1
            run = training.resume(tmp_path / "cut")
    assert stops >= 1
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def _stop_after(step: int, at: int) -> None:
    if step >= at:
        raise Kill


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    run = training.start(small(total_steps=300), tmp_path / "run")
    with pytest.raises(Kill):
        run.go(sinks=[lambda record: _stop_after(record["step"], 100)])
    again = training.resume(tmp_path / "run")
    assert again.learner.step == 0
    assert RunFolder(tmp_path / "run").records() == []
    again.go()
    training.start(small(total_steps=300), tmp_path / "whole").go()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_resumed_run_may_be_given_another_end(tmp_path: Path) -> None:
    training.start(small(total_steps=400), tmp_path / "run").go()
    training.resume(tmp_path / "run", total_steps=600).go()
    folder = RunFolder(tmp_path / "run")
    assert folder.status == {"status": "finished", "step": 600}
    assert folder.config["total_steps"] == 600
    assert [record["step"] for record in folder.records()] == [0, 100, 200, 300, 400, 500, 600]


def test_an_end_before_the_steps_taken_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = training.start(small(total_steps=600), tmp_path / "run")

    def stops(record: Any) -> None:
        if record["step"] >= 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go(sinks=[stops])
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(InputError, match=r"has taken 200 steps, and 100 .*for 100 more, say --steps 300"):
        training.resume(tmp_path / "run", total_steps=100)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert RunFolder(tmp_path / "run").status["status"] == "stopped"
    slow = training.resume(tmp_path / "run", step_timeout=900.0, checkpoint_seconds=0.0)
    assert (slow.config.step_timeout, slow.config.checkpoint_seconds) == (900.0, 0.0)
    slow.folder.release()


def test_what_a_run_left_at_an_earlier_end_is_not_taken_for_its_last(tmp_path: Path) -> None:
    training.start(small(total_steps=200), tmp_path / "run").go()
    folder = RunFolder(tmp_path / "run")
    assert folder.policy.exists()
    longer = training.resume(tmp_path / "run", total_steps=600)

    def stops(record: Any) -> None:
        if record["step"] >= 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        longer.go(sinks=[stops])
    assert not folder.policy.exists()
    assert not folder.cost.exists()
    assert training.policy_of(folder).info["step"] == 400, "the checkpoint's"


def test_a_finished_run_without_a_checkpoint_is_not_begun_anew(tmp_path: Path) -> None:
    training.start(small(total_steps=200), tmp_path / "run").go()
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="has finished and holds no checkpoint"):
        training.resume(tmp_path / "run", total_steps=400)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_what_is_kept_of_demonstrations_is_what_was_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actions beyond the bounds are clipped, for the certificate too."""
    shown = demos.load("InvertedPendulum-v5")[:4]
    wild = replace(shown, trajectories=tuple(replace(t, actions=t.actions + np.float32(3.0)) for t in shown))
    wild.save(tmp_path / "wild.npz")
    with pytest.warns(UserWarning, match="lie outside its bounds"):
        run = training.start(small(total_steps=200, demos=str(tmp_path / "wild.npz")), tmp_path / "run")
    run.go()
    source, quick = str(tmp_path / "wild.npz"), BCConfig(updates=5)
    with pytest.warns(UserWarning, match="lie outside its bounds"):
        training.clone("InvertedPendulum-v5", tmp_path / "clone", source=source, trajectories=2, config=quick)
    for folder in (run.folder, RunFolder(tmp_path / "clone")):
        for file in (folder.demos, folder.held_out):
            assert demos.load(file).actions.max() == 3.0

    class Seen(Exception):
        pass

    def look(rollouts: Any, held_out: Any, **_: Any) -> None:
        assert held_out.actions.max() == 3.0
        raise Seen

    monkeypatch.setattr(training.certificate, "certify", look)
    with pytest.raises(Seen):
        training.certify(tmp_path / "run", episodes=2, given=str(tmp_path / "wild.npz"))


def test_numbers_of_states_are_kept_as_they_were_learned_from(tmp_path: Path) -> None:
    """An environment whose observations are one number out of 16, as a plain file has them."""
    lengths = [5, 7, 4]
    arrays = {"obs": np.arange(16) % 16, "acts": np.arange(16) % 4, "lengths": np.array(lengths)}
    shown = demos.Demos.from_arrays(arrays["obs"], arrays["acts"], lengths=lengths)
    shown.save(tmp_path / "lake.npz")
    config = small(env="FrozenLake-v1", demos=str(tmp_path / "lake.npz"), trajectories=1, total_steps=200)
    folder = training.start(config, tmp_path / "run").folder
    folder.release()
    assert demos.load(folder.held_out).observations.shape == (11, 16)
    training.resume(tmp_path / "run").go()
    assert np.isfinite(training.certify(tmp_path / "run", episodes=3).linear_l2.value)
    done = CliRunner().invoke(app, ["cost", str(tmp_path / "run")], catch_exceptions=False)
    assert "expert pays" in done.output


def test_what_goes_wrong_is_written_down_and_loses_nothing(tmp_path: Path) -> None:
    run = training.start(small(), tmp_path / "run")

    def fails(record: Any) -> None:
        if record["step"] >= 300:
            raise DivergedError("actor_loss became NaN by step 300")

    with pytest.raises(DivergedError):
        run.go(sinks=[fails])
    folder = RunFolder(tmp_path / "run")
    assert folder.status["status"] == "failed"
    assert "actor_loss became NaN" in folder.status["error"]
    assert "Traceback" in folder.status["traceback"]
    assert training.resume(folder.path).learner.step == 200, "the last good checkpoint"


def test_the_certificate_of_a_run(tmp_path: Path) -> None:
    training.start(small(total_steps=200), tmp_path / "run").go()
    result = training.certify(tmp_path / "run", episodes=3)
    written = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert written["against"] == "held-out"
    assert written["sentence"] == result.sentence
    assert (tmp_path / "run" / "certificate.png").exists()
    assert np.isfinite(result.kernel.clone), "the clone that the run started from stands beside it"
    assert written["linear_l2"]["value"] == pytest.approx(result.linear_l2.value)
    assert result.learned_cost is not None
    assert result.returns is not None
    assert result == training.certify(tmp_path / "run", episodes=3), "the same seed, the same certificate"


def made(path: Path, kind: str, seed: int = 0) -> Path:
    """A run of any kind with a policy that has learned nothing, and four demonstrations."""
    env = gym.make("InvertedPendulum-v5")
    spec = describe(env)
    env.close()
    folder = RunFolder.create(path, {"env": spec.env_id, "seed": seed}, {"random_return": 5.0}, kind=kind)
    policy = Policy(spec, start_members(spec, [8], 1, seed)[0])
    policy.save(folder.policy)
    policy.save(folder.best)
    demos.load(spec.env_id)[:4].save(folder.demos)
    folder.set_status("finished", step=0)
    folder.release()
    return path


def test_clones_and_experts_are_evaluated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)  # JAX is loaded here already
    clone, expert = made(tmp_path / "clone", "clone"), made(tmp_path / "expert", "expert")
    shown = CliRunner().invoke(app, ["eval", str(clone), "--episodes", "6"])
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0].startswith("None of the 4 demonstrations is held out: it is compared with those it learned from")
    assert lines[1].startswith("InvertedPendulum-v5: worse than the expert: return ")
    assert "instead of 1,000, it ends after" in lines[1]
    # one line for each measure: nothing is wrapped at 80 columns
    assert sum("differs" in line for line in lines if line.startswith("│")) == 4
    assert sum("below the expert" in line for line in lines if line.startswith("│")) == 2
    result = training.certify(expert, episodes=6)
    assert result.against == "own"
    assert result.compared == "Compared with 4 recorded episodes of its own best policy."
    beside = made(tmp_path / "other", "clone", seed=1)
    given = training.certify(expert, episodes=6, given="InvertedPendulum-v5", clone=beside)
    assert given.against == "given"
    assert given.held_out > 4
    assert np.isfinite(given.kernel.clone)
    demos.load("InvertedPendulum-v5")[:1].save(expert / "demos.npz")
    with pytest.raises(InputError, match=r"has one demonstration to compare with.*at least 2 with --demos"):
        training.certify(expert, episodes=6)
    for asked in (training.certify, training.film):
        with pytest.raises(InputError, match=r"learned on InvertedPendulum-v5 with observation_size 4.*has 11"):
            asked(other_sized(tmp_path))
    (expert / "demos.npz").unlink()
    with pytest.raises(InputError, match="no demonstrations to compare with: name some with --demos"):
        training.certify(expert, episodes=6)


def other_sized(path: Path) -> Path:
    """A clone whose environment has become another one."""
    folder = RunFolder(made(path / str(len(list(path.iterdir()))), "clone"))
    write = json.loads((folder.path / "config.json").read_text())
    write["config"]["env"] = "Hopper-v5"
    (folder.path / "config.json").write_text(json.dumps(write))
    return folder.path


def test_a_mistyped_environment_is_not_a_missing_file() -> None:
    with pytest.raises(InputError, match=r"environment 'Hoper-v5' cannot be made"):
        training.select("", "Hoper-v5", trajectories=10)
    with pytest.raises(InputError, match=r"no demonstrations of Acrobot-v1 are shipped, only of .*: name some with"):
        training.select("", "Acrobot-v1", trajectories=10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": 0}, "steps is 0"),
        ({"trajectories": 0}, "trajectories is 0"),
        ({"checkpoint_every": 250}, "multiple of log_every"),
        ({"evaluation_episodes": 0}, "evaluation_episodes is 0"),
    ],
)
def test_bad_settings_of_a_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**changes)


def test_bad_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds 20 trajectories, and 30 are to be learned from"):
        training.start(small(trajectories=30), tmp_path / "many")
    with pytest.raises(InputError, match="another environment"):
        training.start(small(env="InvertedPendulum-v5", demos="Hopper-v5"), tmp_path / "other")
    assert not (tmp_path / "other" / "config.json").exists()
    with pytest.raises(InputError, match="holds no run"):
        training.resume(tmp_path / "nowhere")
    training.start(small(total_steps=100), tmp_path / "run").go()
    with pytest.raises(InputError, match="holds a run already"):
        training.start(small(), tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
        training.resume(tmp_path / "run", total_steps=200)


@pytest.mark.slow
def test_ten_kills_in_one_run_change_nothing(tmp_path: Path) -> None:
    """SIGKILL at random moments, at least ten times, from the command line; each time `oal resume` goes on."""
    arguments = ["InvertedPendulum-v5", "--steps", "60000", "--trajectories", "2", "--quiet"]
    arguments += ["--checkpoint-every", "2000", "--evaluate-every", "10000", "--evaluation-episodes", "1"]
    for name, value in SMALL.items():
        arguments += ["--set", f"{name}={json.dumps(value)}"]
    oal = [sys.executable, "-m", "oal"]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    subprocess.run([*oal, "train", *arguments, "--out", str(tmp_path / "whole")], check=True, env=environment)

    cut, kills = tmp_path / "cut", 0
    rng = np.random.default_rng(0)
    process = subprocess.Popen([*oal, "train", *arguments, "--out", str(cut)], env=environment)
    while process.poll() is None:
        reached = _checkpointed(cut)
        # let it take at least one checkpoint more, then a random moment longer
        while process.poll() is None and _checkpointed(cut) == reached:
            time.sleep(0.02)
        time.sleep(float(rng.uniform(0.0, 1.0)))
        if process.poll() is None and kills < 12:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            process = subprocess.Popen([*oal, "resume", str(cut), "--quiet"], env=environment)
    assert process.returncode == 0
    assert kills >= 10
    assert contents(cut) == contents(tmp_path / "whole")


def _checkpointed(folder: Path) -> float:
    path = folder / "checkpoint.safetensors"
    return path.stat().st_mtime if path.exists() else 0.0


@pytest.mark.parametrize(
    "distances, says",
    [
        ([0.0541, None, 0.0542], None),  # the same in print
        ([0.05, 0.09, 0.04], None),
        ([0.05, 0.02, 0.31], r"\(0\.31\) than the clone it started from \(0\.05\): take best\.safetensors"),
        ([0.05], None),
    ],
)
def test_a_learner_that_ends_further_away_than_its_clone_is_told(tmp_path: Path, distances: Any, says: Any) -> None:
    folder = RunFolder.create(tmp_path / "run", {"env": "Pendulum-v1"}, {})
    for i, distance in enumerate(distances):
        folder.log({"step": 1_000 * i, "evaluation_distance": distance})
    said = training.Run(folder, *[cast(Any, None)] * 2).worse_than_clone()
    assert said is None if says is None else re.search(says, said or "")
