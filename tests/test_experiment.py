"""Sweeps: what a file means, what is refused, and that killed workers and a killed sweep change no result."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oal import cli
from oal.base import provenance
from oal.base.folder import RunFolder, flattened, plain
from oal.deep.presets import preset
from oal.errors import InputError
from oal.lab import sweep as experiment
from oal.lab import worker
from oal.lab.executors import LOG, Ending, Inline, Processes, RayCluster
from oal.lab.sweep import Summary, Sweep
from oal.lab.worker import Job

TINY: dict[str, Any] = {
    "env": "InvertedPendulum-v5",
    "policy": "mdpo",
    "preset": "paper",
    "trajectories": 2,
    "total_steps": 600,
    "log_every": 50,
    "checkpoint_every": 50,
    "evaluate_every": 200,
    "evaluation_episodes": 1,
    "policy.hidden": [16, 16],
    "policy.batch_size": 16,
    "replay.warmup_steps": 100,
    "cost.update_every": 100,
    "cost.window": 100,
}
"""Runs of a few seconds that use every part: replay, both players, evaluations, checkpoints."""


def toml(path: Path, **tables: Any) -> Path:
    """Write a sweep file. Python's literals for text, numbers and lists are TOML's too, apart from truth values."""
    lines = []
    for name, table in tables.items():
        for part in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines += [f'"{field}" = {value!r}' for field, value in part.items()]
    path.write_text("\n".join(lines))
    return path


def tiny(out: Path, **grid: list[Any]) -> Sweep:
    return Sweep.parse({"sweep": {**TINY, "cost": "linear"}, "grid": grid}, name="tiny", out=out)


# ----- what a file means


EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_experiments_of_the_repository_are_sweeps(path):
    configs = [run.config for run in Sweep.read(path).runs()]
    assert len({repr(config) for config in configs}) == len(configs) >= 1


def test_each_run_on_the_ingredients_leaves_one_out():
    runs = [run.config for run in Sweep.read(EXPERIMENTS / "ingredients.toml").runs()]
    whole, left_out = flattened(preset("mdpo", "neural").to_json()), Counter()
    for run in runs:
        learner = flattened(run.learner.to_json())
        changed = [name for name, value in whole.items() if learner[name] != value]
        assert len(changed) <= 1, changed
        left_out[changed[0] if changed else "nothing"] += 1
    assert len(left_out) == 13
    assert set(left_out.values()) == {6}, "two tasks and three seeds of each"


def test_a_sweep_is_every_combination_of_its_grid(tmp_path):
    grid = {"seed": [0, 1, 2], "cost": ["linear", "neural"], "policy.kl_weight": [0.1, 0.5]}
    sweep = Sweep.read(toml(tmp_path / "study.toml", sweep=TINY, grid=grid))
    assert (sweep.name, sweep.out) == ("study", Path("runs/study"))
    configs = [run.config for run in sweep.runs()]
    combinations = {(c.seed, c.learner.cost, c.learner.policy_config.kl_weight) for c in configs}
    assert len(configs) == 12 == len(combinations)
    first = configs[0]
    assert (first.env, first.total_steps, first.trajectories) == ("InvertedPendulum-v5", 600, 2)
    assert first.learner.policy_config.hidden == (16, 16)
    assert all(run.folder.parent == sweep.out for run in sweep.runs())


def test_tables_of_runs_are_combined_with_the_grid(tmp_path):
    variants = [{"cost": "gail"}, {"cost": "neural", "cost.lipschitz": 0.5}]
    path = toml(
        tmp_path / "s.toml", sweep={**TINY, "name": "pair", "out": "there"}, grid={"seed": [3, 4]}, runs=variants
    )
    sweep = Sweep.read(path)
    assert (sweep.name, sweep.out) == ("pair", Path("there"))
    assert [(r.config.learner.cost, r.config.seed) for r in sweep.runs()] == [
        ("gail", 3), ("neural", 3), ("gail", 4), ("neural", 4),
    ]  # fmt: skip
    assert sweep.runs()[1].config.learner.cost_config.lipschitz == 0.5
    alone = Sweep.read(toml(tmp_path / "t.toml", sweep=TINY, runs=variants), out=tmp_path / "else")
    assert [run.config.learner.cost for run in alone.runs()] == ["gail", "neural"]
    assert alone.out == tmp_path / "else"


def test_a_run_of_its_own_may_say_otherwise_than_all(tmp_path):
    runs = Sweep.parse({"sweep": TINY, "runs": [{"seed": 5}, {"seed": 6, "total_steps": 700}]}, name="s").runs()
    assert [(run.config.seed, run.config.total_steps) for run in runs] == [(5, 600), (6, 700)]


def test_dotted_settings_need_no_quotes_and_zero_trajectories_are_all(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        '[sweep]\nenv = "CartPole-v1"\ntotal_steps = 10\ntrajectories = 0\nreplay.capacity = 5_000\n'
        "[grid]\npolicy.kl_weight = [1, 2.5]\n"
    )
    weights = [run.config.learner.policy_config.kl_weight for run in Sweep.read(path).runs()]
    assert weights == [1.0, 2.5]
    config = Sweep.read(path).runs()[0].config
    assert config.trajectories is None
    assert config.learner.replay_config is not None
    assert config.learner.replay_config.capacity == 5_000


def test_a_run_is_addressed_by_what_it_is_and_not_by_its_place(tmp_path):
    first = {run.name for run in tiny(tmp_path, seed=[0, 1]).runs()}
    extended = {run.name for run in tiny(tmp_path, seed=[2, 1, 0]).runs()}
    assert first < extended
    changed = Sweep.parse({"sweep": {**TINY, "cost": "linear", "total_steps": 700}, "grid": {"seed": [0, 1]}}, name="x")
    assert not first & {run.name for run in changed.runs()}
    # the default written out is the default
    plain = Sweep.parse({"sweep": TINY, "grid": {"seed": [0]}}, name="x")
    written = Sweep.parse({"sweep": TINY | {"cost": "neural", "demos": ""}, "grid": {"seed": [0]}}, name="x")
    assert plain.runs()[0].name == written.runs()[0].name
    assert plain.runs()[0].name.startswith("InvertedPendulum-v5-mdpo-neural-0-")


GRID = {"seed": [0]}


@pytest.mark.parametrize(
    "tables, message",
    [
        ({"sweep": TINY}, r"nothing to run: add a \[grid\]"),
        ({"sweep": TINY, "grid": {}}, r"\[grid\] is empty"),
        ({"sweep": TINY, "grid": {"seed": []}}, r"\[grid\]: seed is an empty list"),
        ({"sweep": TINY, "grid": {"seed": 3}}, r"\[grid\]: seed is 3: give a list"),
        ({"sweep": TINY, "grid": {"seed": [1, 2, 1]}}, r"\[grid\]: seed lists 1 twice"),
        (
            {"sweep": TINY, "grid": {"policy.kl_weight": [1, 1.0]}},
            "kl_weight = 1 .* are the same, in one folder",
        ),
        ({"sweep": TINY, "grid": {"sed": [0]}}, r"\[grid\]: field 'sed' is unknown: choose one of env, policy"),
        ({"sweep": {**TINY, "stepz": 3}, "grid": GRID}, r"\[sweep\]: field 'stepz' is unknown"),
        ({"sweep": TINY, "runs": [{"sed": 1}]}, r"\[\[runs\]\]: field 'sed' is unknown"),
        ({"sweep": TINY, "runs": [{}]}, r"\[\[runs\]\] is empty"),
        ({"sweep": TINY, "gird": GRID}, "table 'gird' is unknown: choose one of sweep, grid, runs"),
        ({"sweep": TINY, "grid": {"cost": ["linear", "lineer"]}}, "cost = \"lineer\".*cost 'lineer' is unknown"),
        ({"sweep": {**TINY, "policy": "ppo"}, "grid": GRID}, "policy 'ppo' is unknown: choose one of mdpo"),
        ({"sweep": TINY, "grid": {"policy.kl": [1]}}, "policy setting 'kl' is unknown: choose one of"),
        ({"sweep": TINY, "grid": {"player.x": [1]}}, "group 'player' is unknown: choose one of policy, cost"),
        ({"sweep": TINY, "grid": {"seed": ["zero"]}}, "run.seed is 'zero': int is needed"),
        ({"sweep": TINY, "grid": {"total_steps": [10]}}, r"total_steps stands in \[sweep\] and in \[grid\]"),
        ({"sweep": TINY, "grid": GRID, "runs": [{"seed": 1}]}, r"seed stands in \[grid\] and in \[\[runs\]\]"),
        ({"sweep": {"env": "Hopper-v5"}, "grid": GRID}, "total_steps is missing"),
        ({"sweep": {**TINY, "log_every": 30}, "grid": GRID}, "must be a multiple of log_every"),
        ({"sweep": {**TINY, "out": 3}, "grid": GRID}, "out is 3: give the path"),
        ({"sweep": 3, "grid": GRID}, r"write it as a table, \[sweep\]"),
        ({"sweep": TINY, "runs": {"seed": 1}}, r"each under a line \[\[runs\]\]"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_anything_runs(tables, message):
    with pytest.raises(InputError, match=f"study.toml: .*{message}"):
        Sweep.parse(tables, name="study", source="study.toml")


@pytest.mark.parametrize(
    "text, message",
    [(None, "no such file"), ("seed = ", "not valid TOML"), ('policy = "sac"\npolicy.x = 1', "settings are quoted")],
)
def test_a_file_that_is_no_toml_is_named(text, message, tmp_path):
    path = tmp_path / "s.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=rf"s\.toml: .*{message}"):
        Sweep.read(path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"env": "Inverted-v9"}, "the run Inverted-v9-mdpo.*'Inverted-v9' cannot be made"),
        ({"demos": "nowhere.npz"}, "the run Inverted.*nowhere.npz"),
        ({"trajectories": 1_000_000}, "and 1000000 are to be learned from: say --trajectories"),
    ],
)
def test_environments_and_demonstrations_are_looked_at_before_anything_runs(changes, message, tmp_path):
    sweep = Sweep.parse({"sweep": TINY | changes, "grid": GRID}, name="x", out=tmp_path / "out")
    with pytest.raises(InputError, match=message):
        sweep.go(Scripted({}))
    assert not (tmp_path / "out").exists()


# ----- what is done when workers end in one way or another


class Scripted:
    """An executor whose workers do what they are told: a list of actions for each seed, one for each attempt."""

    def __init__(self, script: dict[int, list[str]], slots: int = 2) -> None:
        self.script, self.slots = script, slots
        self.begun: list[int] = []
        self.under_way: list[Job] = []
        self.most = 0
        self.stopped = False

    def start(self, job: Job) -> None:
        self.under_way.append(job)
        self.most = max(self.most, len(self.under_way))

    def ended(self, timeout: float) -> list[Ending]:
        job = self.under_way.pop(0)
        seed = job.config["seed"]
        self.begun.append(seed)
        action = self.script[seed].pop(0)
        if action == "interrupt":
            raise KeyboardInterrupt
        folder = RunFolder(job.folder)
        if action in ("busy", "lie", "die at once"):
            codes = {"busy": worker.BUSY, "lie": worker.FINISHED, "die at once": None}
            return [Ending(job, codes[action], "killed")]
        if not folder.described:
            folder.describe(job.config, {})
        if action == "get on and die":
            folder.checkpoint.write_text("")
        states = {"finish": "finished", "finish and die": "finished", "fail": "failed"}
        why = {"error": "no luck", "traceback": "Tr"} if action == "fail" else {}
        folder.set_status(states.get(action, "running"), step=7, **why)
        codes = {"finish": worker.FINISHED, "fail": worker.FAILED}
        return [Ending(job, codes.get(action), "" if action in codes else "killed")]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """The scripted workers need neither environments nor demonstrations."""
    monkeypatch.setattr(experiment, "check", lambda runs: None)


def states(summary: Summary) -> list[str]:
    return [outcome.state for outcome in summary.outcomes]


@pytest.mark.usefixtures("unchecked")
def test_a_failed_run_stops_no_other_and_is_taken_up_on_request_only(tmp_path):
    sweep = tiny(tmp_path, seed=[0, 1, 2])
    executor = Scripted({0: ["finish"], 1: ["fail"], 2: ["finish"]})
    summary = sweep.go(executor)
    assert states(summary) == ["finished", "failed", "finished"]
    assert executor.stopped
    assert executor.most == 2
    assert not summary.complete
    (failure,) = summary.of("failed")
    assert (failure.error, failure.traceback) == ("no luck", "Tr")
    again = Scripted({})
    summary = sweep.go(again)
    assert states(summary) == ["kept", "failed", "kept"]
    assert summary.of("failed")[0].traceback == "Tr"
    assert again.begun == []
    last = Scripted({1: ["finish"]})
    assert states(sweep.go(last, retry=True)) == ["kept", "finished", "kept"]
    assert last.begun == [1]
    assert str(sweep.go(Scripted({}))) == "3 runs: 3 finished before"


@pytest.mark.usefixtures("unchecked")
def test_a_sweep_that_is_extended_runs_what_is_new(tmp_path):
    tiny(tmp_path, seed=[0, 1]).go(Scripted({0: ["finish"], 1: ["finish"]}))
    executor = Scripted({2: ["finish"]})
    assert states(tiny(tmp_path, seed=[2, 0, 1]).go(executor)) == ["finished", "kept", "kept"]
    assert executor.begun == [2]


@pytest.mark.usefixtures("unchecked")
def test_a_worker_that_dies_is_replaced_a_bounded_number_of_times(tmp_path):
    sweep = tiny(tmp_path, seed=[0, 1, 2])
    script = {0: ["die", "die", "die", "finish"], 1: ["die"] * 4, 2: ["die at once"] * 4}
    summary = sweep.go(Scripted(script))
    assert states(summary) == ["finished", "failed", "failed"]
    for outcome in summary.of("failed"):
        assert "killed, 4 times since its last checkpoint" in outcome.error
        status = RunFolder(outcome.run.folder).status
        assert (status["status"], status["error"]) == ("failed", outcome.error)
    assert [RunFolder(o.run.folder).status["step"] for o in summary.of("failed")] == [7, 0]
    assert states(sweep.go(Scripted({1: ["die"], 2: ["finish"]}), retry=True, retries=0)) == [
        "kept", "failed", "finished",
    ]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
def test_a_run_that_gets_on_between_deaths_is_not_given_up(tmp_path):
    script = {0: ["get on and die"] * 5 + ["die"] * 2 + ["finish"]}
    assert states(tiny(tmp_path, seed=[0]).go(Scripted(script))) == ["finished"]
    script = {1: ["get on and die"] + ["die"] * 3 + ["finish"]}
    assert states(tiny(tmp_path, seed=[1]).go(Scripted(script))) == ["failed"]


@pytest.mark.usefixtures("unchecked")
def test_a_worker_that_dies_after_the_end_has_finished(tmp_path):
    executor = Scripted({0: ["finish and die"]})
    assert states(tiny(tmp_path, seed=[0]).go(executor)) == ["finished"]


@pytest.mark.usefixtures("unchecked")
def test_a_run_that_another_process_has_is_left_to_it(tmp_path):
    executor = Scripted({0: ["busy"] * 4, 1: ["busy", "finish"]})
    summary = tiny(tmp_path, seed=[0, 1]).go(executor)
    assert states(summary) == ["busy", "finished"]
    assert "another process trains it" in summary.outcomes[0].error
    assert not RunFolder(summary.outcomes[0].run.folder).described


@pytest.mark.usefixtures("unchecked")
def test_a_folder_that_other_machines_do_not_share_is_noticed(tmp_path):
    summary = tiny(tmp_path, seed=[0]).go(Scripted({0: ["lie"]}))
    assert "on a disk that every node sees" in summary.outcomes[0].error


@pytest.mark.usefixtures("unchecked")
def test_a_damaged_folder_is_reported_and_the_others_go_on(tmp_path):
    sweep = tiny(tmp_path, seed=[0, 1, 2])
    for run, text in zip(sweep.runs(), ["{", '{"format": 1, "config": {"seed": 9}}'], strict=False):
        run.folder.mkdir(parents=True)
        (run.folder / "config.json").write_text(text)
    executor = Scripted({2: ["finish"]})
    summary = sweep.go(executor, retry=True)
    assert states(summary) == ["failed", "failed", "finished"]
    assert "not valid JSON" in summary.outcomes[0].error
    assert "another configuration" in summary.outcomes[1].error
    assert f"oal runs rm {sweep.runs()[0].folder}" in summary.outcomes[0].error


@pytest.mark.usefixtures("unchecked")
def test_ctrl_c_stops_the_workers_and_what_was_finished_stays(tmp_path, capsys):
    sweep = tiny(tmp_path, seed=[0, 1])
    executor = Scripted({0: ["finish"], 1: ["interrupt"]})
    with pytest.raises(KeyboardInterrupt):
        sweep.go(executor, show=True)
    assert executor.stopped
    assert "1 of 2 finished; start it again to go on" in capsys.readouterr().err
    assert states(sweep.go(Scripted({1: ["finish"]}))) == ["kept", "finished"]


@pytest.mark.usefixtures("unchecked")
def test_a_folder_that_cannot_be_written_fails_alone(tmp_path):
    sweep = tiny(tmp_path, seed=[0])
    sweep.runs()[0].folder.parent.mkdir(exist_ok=True)
    sweep.runs()[0].folder.write_text("a file where the folder should be")
    summary = sweep.go(Processes(1))
    assert states(summary) == ["failed"]
    assert "a worker cannot be started" in summary.outcomes[0].error


# ----- how far it is, for the reader


def test_the_table_follows_the_folders(tmp_path, monkeypatch):
    run = tiny(tmp_path, seed=[0]).runs()[0]
    folder = RunFolder(run.folder)
    folder.describe(run.config.to_json(), {})
    folder.set_status("running", step=100)
    now = [1_000.0]
    monkeypatch.setattr(experiment.time, "monotonic", lambda: now[0])
    watch = experiment._Watch(run)
    assert not watch.look(), "what stands there is from before"
    for step in (100, 400):
        now[0] += 10.0
        time.sleep(0.01)
        folder.log({"step": step, "evaluation_return": 2.5 * step})
        folder.set_status("running", step=step)
        assert watch.look()
    assert watch.row() == (run.name, "400", "600", "30", "7 s", "1000.0")
    assert [experiment.duration(s) for s in (5, 600, 12_060)] == ["5 s", "10 min", "3 h 21 min"]


# ----- one worker


def job_of(run: experiment.PlannedRun) -> Job:
    return Job(str(run.folder), plain(run.config.to_json()), ("oal", "sweep"), os.getcwd())


def test_why_a_run_could_not_begin_is_in_its_folder(tmp_path):
    run = Sweep.parse({"sweep": TINY | {"demos": "nowhere.npz"}, "grid": GRID}, name="x", out=tmp_path).runs()[0]
    assert worker.execute(job_of(run)) == worker.FAILED
    status = RunFolder.open(run.folder).status
    assert status["status"] == "failed"
    assert "nowhere.npz" in status["error"]
    assert "Traceback" in status["traceback"]


def test_a_run_that_another_process_holds_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "PATIENCE_SECONDS", 0.3)
    run = tiny(tmp_path, seed=[0]).runs()[0]
    holder = RunFolder.create(run.folder, run.config.to_json(), {})
    assert holder.busy
    assert worker.execute(job_of(run)) == worker.BUSY
    assert holder.status == {"status": "running", "step": 0}
    holder.release()
    assert not holder.busy


def test_a_run_that_was_killed_after_its_early_stop_learns_no_further(tmp_path):
    table = {"sweep": TINY | {"cost": "linear", "stop_at_return": -1.0}, "grid": GRID}
    run = Sweep.parse(table, name="x", out=tmp_path).runs()[0]
    assert worker.execute(job_of(run)) == worker.FINISHED
    folder = RunFolder(run.folder)
    assert folder.status["step"] == 200
    records, policy = folder.records(), folder.policy.read_bytes()
    folder.set_status("running", step=150)
    folder.policy.unlink()
    assert worker.execute(job_of(run)) == worker.FINISHED
    assert folder.status == {"status": "finished", "step": 200}
    assert folder.records() == records
    assert folder.policy.read_bytes() == policy


def test_a_job_survives_its_way_to_a_worker(tmp_path):
    job = job_of(tiny(tmp_path, seed=[0]).runs()[0])
    assert Job.from_json(job.to_json()) == job
    assert "\n" not in job.to_json()


# ----- killed, and the same in the end


def results(sweep: Sweep) -> dict[str, tuple[Any, ...]]:
    """Everything a run is for, bit by bit; without how long it took."""
    found = {}
    for run in sweep.runs():
        folder = RunFolder(run.folder)
        records = [{k: v for k, v in record.items() if k != "seconds"} for record in folder.records()]
        policies = [path.read_bytes() for path in (folder.policy, folder.cost, folder.best)]
        found[run.name] = (records, *policies)
        assert folder.status["status"] == "finished"
        assert len(records) == run.config.total_steps // run.config.log_every
    return found


def ends(run: experiment.PlannedRun) -> int:
    """How often a worker came to the end of the run."""
    return (run.folder / LOG).read_text().count("finished at step")


def begun(sweep: Sweep) -> int:
    """How often a worker started a run or resumed it."""
    logs = [(run.folder / LOG).read_text() for run in sweep.runs() if (run.folder / LOG).exists()]
    return sum(log.count(": starts") + log.count(": resumes") for log in logs)


def holder(folder: Path) -> int | None:
    """The process that trains into a folder now."""
    written = (folder / ".lock").read_text() if RunFolder(folder).busy else ""
    return int(written) if written else None


def kill_one(folders: list[Path], *, after_checkpoint: bool = True) -> Path | None:
    """SIGKILL the worker of the first of these runs that has one; return the run."""
    for folder in folders:
        if after_checkpoint and not RunFolder(folder).checkpoint.exists():
            continue
        try:
            pid = holder(folder)
            if pid:
                os.kill(pid, signal.SIGKILL)
                return folder
        except ProcessLookupError:
            continue
    return None


def until(true: Callable[[], Any], seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := true():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def command(path: Path, *options: str) -> subprocess.Popen[str]:
    """`oal sweep FILE` in a process of its own."""
    words = [sys.executable, "-m", "oal", "sweep", str(path), *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be gone after the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_killed_workers_and_a_killed_sweep_change_nothing(tmp_path, started):
    table = {"sweep": {**TINY, "cost": "linear"}, "grid": {"seed": [0, 1]}}
    undisturbed = Sweep.parse(table, name="x", out=tmp_path / "undisturbed")
    assert undisturbed.go(Inline()).complete
    path = toml(tmp_path / "s.toml", **table)
    disturbed = Sweep.read(path, out=tmp_path / "disturbed")
    folders = [run.folder for run in disturbed.runs()]

    options = ("--out", str(tmp_path / "disturbed"), "--processes", "1")
    started.append(command(path, *options))
    killed = until(lambda: kill_one(folders))  # a worker, once it has something to lose
    until(lambda: begun(disturbed) == 2 and "resumes at step" in (killed / LOG).read_text())
    started[0].kill()  # the sweep itself: its workers end with it
    assert "was killed by SIGKILL; it is restarted" in started[0].communicate()[0]
    until(lambda: not any(RunFolder(folder).busy for folder in folders), 20)
    assert not all(RunFolder(folder).policy.exists() for folder in folders)
    assert begun(disturbed) == 2

    started.append(command(path, *options))
    until(lambda: begun(disturbed) == 3)
    started[1].send_signal(signal.SIGINT)  # Ctrl-C
    output, _ = started[1].communicate()
    assert started[1].returncode == 130, output
    assert "start it again to go on" in output
    assert not any(RunFolder(folder).busy for folder in folders)
    # a worker that was still loading its libraries had nothing to say yet: its run stays "running"
    assert "failed" not in [RunFolder(folder).status["status"] for folder in folders if RunFolder(folder).described]

    started.append(command(path, *options))
    output, _ = started[2].communicate()
    assert started[2].returncode == 0, output
    assert "2 runs: " in output
    assert results(disturbed) == results(undisturbed)
    assert [ends(run) for run in disturbed.runs()] == [1, 1]
    made_by = RunFolder(folders[0]).metadata["command"]
    assert "sweep" in made_by
    assert "s.toml" in made_by


TWELVE: dict[str, Any] = {
    "sweep": TINY,
    "grid": {"seed": [0, 1, 2], "cost": ["linear", "neural"], "policy.kl_weight": [0.1, 0.5]},
}


@pytest.fixture(scope="module")
def twelve_undisturbed(tmp_path_factory) -> dict[str, tuple[Any, ...]]:
    sweep = Sweep.parse(TWELVE, name="x", out=tmp_path_factory.mktemp("undisturbed"))
    assert sweep.go(Processes(2)).complete
    return results(sweep)


@pytest.mark.slow
def test_twelve_runs_with_workers_killed_at_random_and_the_sweep_killed_twice(tmp_path, started, twelve_undisturbed):
    path = toml(tmp_path / "s.toml", **TWELVE)
    sweep = Sweep.read(path, out=tmp_path / "out")
    folders = [run.folder for run in sweep.runs()]
    chance = random.Random(0)
    killed: list[Path] = []

    def finished() -> int:
        return sum(RunFolder(folder).policy.exists() for folder in folders)

    for last_until in (3, 7, None):  # the sweep is killed after so many runs, and started again
        process = command(path, "--out", str(tmp_path / "out"), "--processes", "2")
        started.append(process)
        while process.poll() is None and (last_until is None or finished() < last_until):
            time.sleep(chance.uniform(0.05, 0.6))
            chance.shuffle(folders)  # each at most twice: more would be a reason to give it up
            victim = kill_one([f for f in folders if killed.count(f) < 2], after_checkpoint=False)
            killed += [] if victim is None else [victim]
        if last_until is not None:
            process.kill()
        output, _ = process.communicate()
    assert started[-1].returncode == 0, output
    assert len(killed) >= 12
    assert results(sweep) == twelve_undisturbed
    assert [ends(run) for run in sweep.runs()] == [1] * 12


# ----- a Ray cluster


def test_ray_missing_or_out_of_reach_is_said_plainly(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the package 'ray': install it with  pip install 'oal\[ray\]'"):
        RayCluster("auto")


def test_a_ray_cluster_that_is_not_there_is_named():
    pytest.importorskip("ray")
    for address in ("127.0.0.1:9", "auto", "nowhere"):
        with pytest.raises(InputError, match=f"no Ray cluster can be reached at '{address}' .*ray start --head"):
            RayCluster(address)


@pytest.mark.slow
def test_twelve_runs_on_two_ray_nodes_one_of_which_dies(tmp_path, twelve_undisturbed):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    sweep = Sweep.parse(TWELVE, name="x", out=tmp_path)
    folders = [run.folder for run in sweep.runs()]

    def kill_the_node() -> None:
        until(lambda: sum(RunFolder(f).checkpoint.exists() and bool(holder(f)) for f in folders) == 2)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill_the_node)
    killer.start()
    try:
        summary = sweep.go(RayCluster(cluster.address))
        killer.join()
    finally:
        cluster.shutdown()
    assert summary.complete, summary
    logs = "".join((folder / LOG).read_text() for folder in folders)
    assert "resumes at step" in logs
    assert results(sweep) == twelve_undisturbed
    assert [ends(run) for run in sweep.runs()] == [1] * 12


# ----- commands


@pytest.fixture
def oal(monkeypatch) -> Callable[..., Any]:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)  # JAX is loaded here already
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.mark.usefixtures("unchecked")
def test_the_commands_run_list_show_and_remove(oal, tmp_path, monkeypatch):
    path, out = toml(tmp_path / "s.toml", sweep=TINY, grid={"seed": [0, 1, 2]}), tmp_path / "out"
    shown = oal("sweep", path, "--out", out, "--dry-run")
    assert shown.exit_code == 0
    assert shown.output.count("new") == 3
    script = {0: ["finish"], 1: ["fail"], 2: ["finish"]}
    monkeypatch.setattr("oal.lab.executors.Processes", lambda count: Scripted(script))
    ran = oal("sweep", path, "--out", out)
    assert ran.exit_code == 1
    assert "3 runs: 2 finished, 1 failed" in ran.output
    assert "failed: no luck\nTr\n" in ran.output
    assert "--retry" in ran.output

    runs = Sweep.read(path, out=out).runs()
    RunFolder(runs[2].folder).set_status("running", step=3)  # and no process has it
    (runs[0].folder / "config.json").write_text("{")
    listed = oal("runs", "list", out)
    assert all(state in listed.output for state in ("damaged", "failed", "interrupted"))
    shown = oal("runs", "show", runs[1].folder)
    assert "no luck" not in shown.output.splitlines()[-1]
    assert shown.output.endswith("failed, step 7 of 600\nTr\n")
    assert "policy_config.kl_weight" in shown.output

    kept = oal("runs", "rm", out, "--state", "failed")  # the question is not answered
    assert kept.exit_code == 1
    assert runs[1].folder.exists()
    assert oal("runs", "rm", out, "--state", "failed", "--yes").exit_code == 0
    assert [run.folder.exists() for run in runs] == [True, False, True]
    script |= {1: ["finish"], 2: ["finish"]}
    assert oal("runs", "rm", runs[0].folder, "--yes").exit_code == 0
    script[0] = ["finish"]
    assert "3 runs: 3 finished" in oal("sweep", path, "--out", out, "--quiet").output
    nothing = oal("runs", "rm", out, "--state", "failed", "--yes").exception
    assert "there is no failed run" in str(nothing)
    assert "exclude each other" in str(oal("sweep", path, "--inline", "--ray", "auto").exception)


def test_a_run_that_is_being_trained_is_not_removed(oal, tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"env": "x"}, {})
    assert "is being trained" in str(oal("runs", "rm", tmp_path, "--yes").exception)
    assert folder.path.exists()
    assert "running" in oal("runs", "list", tmp_path).output
    folder.describe({"env": "x", "policy": "sac", "cost": None, "seed": 0}, {})
    assert "run (x sac 0)" in oal("runs", "list", tmp_path).output


def test_a_result_names_the_command_somebody_can_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/oal", "train", "Hopper-v5", "--out", "my run"])
    assert provenance.provenance()["command"] == "oal train Hopper-v5 --out 'my run'"
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/critics.py", "a"])
    assert provenance.provenance()["command"] == "python benchmarks/critics.py a"
