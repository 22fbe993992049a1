"""Run folders, sweeps and terminals that meet a stranger's data: no code is run, nothing of the user's is touched."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from oal import cli, envs
from oal.base import console, files, plots, runtime
from oal.base.folder import RunFolder
from oal.base.limits import MAX_TEXT
from oal.deep import callbacks
from oal.deep.nets import Layer
from oal.deep.policy import Policy
from oal.deep.presets import preset
from oal.envs import EnvSpec
from oal.errors import InputError
from oal.lab import expert, worker
from oal.lab import run as training
from oal.lab import sweep as sweeps
from oal.lab.executors import LOG, WorkerProcess
from oal.lab.run import Run, RunConfig
from oal.lab.storage import Storage
from oal.lab.sweep import Sweep, TooManyRunsError
from oal.lab.worker import Job
from oal.tabular.sampler import make_discrete


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"env": "x", "total_steps": 5}, {"environment": {}})


@pytest.fixture
def oal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)  # JAX is loaded here already
    monkeypatch.setenv("COLUMNS", "400")
    return lambda *words, **options: CliRunner().invoke(cli.app, [str(word) for word in words], **options)


# ----- no code from data


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Put a module `hostile_code` on the path; return whether it has been run."""
    marker, place = tmp_path / "was-run", tmp_path / "modules"
    place.mkdir()
    (place / "hostile_code.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "hostile_code", raising=False)
    return marker.exists


def hostile_run(path: Path, *, cost: str | None = "linear") -> Path:
    config = RunConfig("hostile_code:Pendulum-v1", preset("mdpo", "linear"), 100)
    kind = training.KIND if cost else training.EXPERT
    RunFolder.create(path, config.to_json(), {"environment": {}}, kind=kind).release()
    return path


@pytest.mark.parametrize("use", [training.resume, training.certify, training.film, training.film_expert])
def test_a_module_named_by_a_run_folder_is_not_imported(use: Any, tmp_path: Path, hostile: Any) -> None:
    run = hostile_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"hostile_code:Pendulum-v1.*--trust"):
        use(run)
    assert not hostile()
    if use is training.film_expert:  # without demonstrations there is nothing to film
        assert use(run, trust=True) is None
        return
    with pytest.raises(InputError, match=r"no such file|neither a policy"):  # the folder holds nothing else
        use(run, trust=True)


def test_an_expert_is_not_recorded_from_a_strangers_folder(tmp_path: Path, hostile: Any) -> None:
    with pytest.raises(InputError, match="--trust"):
        expert.record(hostile_run(tmp_path / "run", cost=None), episodes=1)
    assert not hostile()


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_the_commands_take_trust(command: str, oal: Any, tmp_path: Path, hostile: Any) -> None:
    run = hostile_run(tmp_path / "run")
    assert "--trust" in str(oal(command, run).exception)
    assert "--trust" not in str(oal(command, run, "--trust").exception)


def test_a_policy_names_no_module(tmp_path: Path, hostile: Any) -> None:
    spec = EnvSpec("hostile_code:Pendulum-v1", "continuous", 3, 1, (-2.0,), (2.0,), (1,), horizon=200)
    with pytest.raises(InputError, match="hostile_code"):
        EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    layers = [Layer(np.zeros((3, 2), np.float32), np.zeros(2, np.float32))]
    Policy(spec, layers, activation="tanh", info={}).save(tmp_path / "policy")
    with pytest.raises(InputError, match="hostile_code"):
        Policy.load(tmp_path / "policy")
    assert not hostile()
    for junk in (3, None, ["a"]):
        with pytest.raises(InputError):
            EnvSpec.from_json(spec.to_json() | {"env_id": junk})


def test_an_id_that_was_typed_imports_its_module_and_the_spec_names_none(hostile: Any) -> None:
    env = envs.make("hostile_code:Pendulum-v1")
    assert hostile()
    assert EnvSpec.from_json(envs.describe(env).to_json()).env_id == "Pendulum-v1"


@pytest.mark.parametrize("name", ["no_such_module:X-v0", "a:b:c", ":X-v0", "json:", ".relative:X-v0"])
@pytest.mark.parametrize("make", [envs.make, make_discrete])
def test_an_unknown_module_is_one_line(make: Any, name: str) -> None:
    with pytest.raises(InputError, match="cannot be imported") as caught:
        make(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_module_ends_the_command_with_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oal.base.runtime.set_threads", lambda threads: None)
    demos = Path(training.__file__).parents[1] / "demos"
    shipped = next(iter(sorted(demos.rglob("*.npz"))), "Pendulum-v1")
    words = ["oal", "train", "no_such_module:X-v0", "--demos", str(shipped), "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", [*words, "--trajectories", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gymnasium.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    process = WorkerProcess(Job(str(tmp_path / "run"), {}, ("oal",), str(tmp_path)))
    process.end(60)
    assert not (tmp_path / "was-run").exists()
    assert RunFolder(tmp_path / "run").status["status"] == "failed"  # it came as far as its empty configuration


def test_a_workers_folder_is_trusted_with_the_sweeps_own_id_only(tmp_path: Path, hostile: Any) -> None:
    run = hostile_run(tmp_path / "run")
    RunFolder(run).demos.write_text("")
    config = RunConfig("Pendulum-v1", preset("mdpo", "linear"), 100).to_json()
    assert worker.execute(Job(str(run), config, ("oal",), str(tmp_path))) == worker.FAILED
    assert "--trust" in RunFolder(run).status["error"]
    assert not hostile()


# ----- a run folder is its own


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda f: f.log({"step": 1}),
        lambda f: f.set_status("running", step=1),
        lambda f: f.describe({}, {}),
        lambda f: f.rewind(0),
        lambda f: f.write_table(),
    ],
)
def test_a_folder_deleted_under_a_run_is_an_error(folder: RunFolder, write: Any, replaced: bool) -> None:
    shutil.rmtree(folder.path)
    other = RunFolder.create(folder.path, {"env": "other"}, {}) if replaced else None
    with pytest.raises(InputError, match="deleted or replaced"):
        write(folder)
    if other is None:
        assert not folder.path.exists()
    else:
        other.log({"step": 7})
        assert other.records() == [{"step": 7}]
        assert other.status["step"] == 0


def test_training_does_not_make_a_deleted_folder_again(tmp_path: Path) -> None:
    config = RunConfig("Pendulum-v1", preset("mdpo", "linear"), 100, evaluate_every=1, checkpoint_every=1, log_every=1)
    folder = RunFolder.create(tmp_path / "run", config.to_json(), {})

    class Learner:
        """Stands for a learner in the middle of its run; its checkpoint is not reached."""

        step, demos = 50, None

        def pretrain(self, *, progress_bar: bool) -> bool:
            return False

        def learn(self, total_steps: int, *, callback: Any, progress_bar: bool) -> None:
            shutil.rmtree(folder.path)
            for called in callback:
                called(self)

    learner: Any = Learner()
    with pytest.raises(InputError, match="deleted or replaced"):
        Run(folder, config, learner).go()
    assert not folder.path.exists()


def test_an_opened_folder_that_is_gone_is_not_locked_into_being(folder: RunFolder) -> None:
    folder.release()
    opened = RunFolder.open(folder.path)
    shutil.rmtree(folder.path)
    with pytest.raises(InputError):
        opened.lock()
    assert not folder.path.exists()


def test_a_folder_from_before_identities_works_and_gets_one(folder: RunFolder) -> None:
    folder.release()
    (folder.path / "run.uuid").unlink()
    old = RunFolder.open(folder.path)
    old.log({"step": 1})
    old.lock()
    assert (folder.path / "run.uuid").exists()
    old.log({"step": 2})
    assert [record["step"] for record in old.records()] == [1, 2]
    old.release()
    assert RunFolder.open(folder.path).remove() == []


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_leads_elsewhere_truncates_nothing(folder: RunFolder, link: Any, tmp_path: Path) -> None:
    folder.release()
    mine = tmp_path / "thesis.txt"
    mine.write_text("years of work")
    (folder.path / ".lock").unlink()
    link(mine, folder.path / ".lock")
    other = RunFolder.open(folder.path)
    with pytest.raises(InputError, match=r"\.lock is"):
        other.lock()
    assert not other.busy
    assert mine.read_text() == "years of work"


def test_a_lock_that_is_a_pipe_does_not_wait(folder: RunFolder) -> None:
    folder.release()
    (folder.path / ".lock").unlink()
    os.mkfifo(folder.path / ".lock")
    assert not folder.busy
    with pytest.raises(InputError, match=r"\.lock is"):
        folder.lock()


def test_records_and_logs_are_not_appended_to_what_a_link_leads_to(folder: RunFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("metrics.jsonl", LOG):
        (folder.path / name).symlink_to(mine)
    with pytest.raises(InputError, match="is a link"):
        folder.log({"step": 1})
    with pytest.raises(InputError, match="is a link"):
        WorkerProcess(Job(str(folder.path), {}, ("oal",), str(tmp_path)))
    assert mine.read_text() == "mine"
    with pytest.raises(InputError, match="is a link out of its folder"):
        Storage(tmp_path.joinpath("storage").as_uri()).push(folder.path, "run")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_workers_log_that_is_a_pipe_does_not_wait(folder: RunFolder, tmp_path: Path) -> None:
    log = folder.path / LOG
    os.mkfifo(log)
    with pytest.raises(InputError, match="not a file: nothing is written there"):
        WorkerProcess(Job(str(folder.path), {}, ("oal",), str(tmp_path)))
    assert sweeps._tail(log) == ""
    log.unlink()
    with log.open("wb") as file:
        file.truncate(MAX_TEXT * 4)
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last\nline\n")
    assert sweeps._tail(log, 2) == "the last\nline"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps that has everything a run leaves."""
    settings = {"policy.hidden": [4], "policy.batch_size": 8, "replay.capacity": 200, "replay.warmup_steps": 10}
    learner = replace(preset("mdpo", "linear", settings=settings), bc_config=None)
    every: dict[str, Any] = dict.fromkeys(("total_steps", "log_every", "evaluate_every", "checkpoint_every"), 20)
    path = tmp_path_factory.mktemp("finished") / "run"
    run = training.start(RunConfig("InvertedPendulum-v5", learner, trajectories=2, **every), path)
    run.go().policy().save(path / "clone.safetensors")
    run.learner.close()
    return path


def used(run: Path, name: str) -> None:
    """Use a run in the way that reads the file of this name."""
    if name in ("demos.npz", "checkpoint.safetensors"):
        training.resume(run).folder.release()
    else:
        training.certify(run, episodes=2, best=name == "best.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        *("demos.npz", "held-out.npz", "checkpoint.safetensors"),
        *("policy.safetensors", "best.safetensors", "clone.safetensors", "cost.safetensors"),
    ],
)
def test_no_file_of_a_run_leads_out_of_its_folder(name: str, finished: Path, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / name
    shutil.copytree(finished, run)
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{name} is a link out of its folder"):
        used(run, name)


def test_commands_read_no_link_out_of_a_run(oal: Any, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name in ("cost.safetensors", "best.safetensors", "policy.safetensors"):
        (run / name).rename(tmp_path / name)
        (run / name).symlink_to(tmp_path / name)
    for words in (
        ("cost", run),
        ("export", run, "--npz", tmp_path / "policy.npz"),
        ("demos", "record", run, "--out", tmp_path / "demos.npz"),
    ):
        assert "is a link out of its folder" in str(oal(*words).exception), words
    (tmp_path / "typed").symlink_to(tmp_path / "cost.safetensors")
    assert oal("cost", tmp_path / "typed").exit_code == 0  # a path that the user typed


@pytest.mark.parametrize(
    "name, field, value, says",
    [
        *(("config.json", "horizon", value, "horizon is") for value in ("x", [1], {}, -5, 0, 1e9, True)),
        *(("config.json", "seed", value, "seed") for value in (None, "0", 1.5)),
        ("config.json", "env", None, "env is None"),
        *(("metadata.json", "random_return", value, "random_return is") for value in ("x", [1], True)),
        ("metadata.json", "expert_return", "high", "expert_return is"),
        ("metadata.json", "environment", None, "environment"),
        ("metadata.json", "environment", [], "environment"),
    ],
)
def test_what_a_run_says_of_itself_is_checked_before_it_is_used(
    name: str, field: str, value: Any, says: str, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    written = json.loads((run / name).read_text())
    (written["config"] if name == "config.json" else written)[field] = value
    (run / name).write_text(json.dumps(written))
    use = training.film_expert if field == "environment" else training.certify
    with pytest.raises(InputError, match=says):
        use(run)


@pytest.mark.parametrize("record", [{}, {"step": None}, {"step": 1.5}, {"step": 3, "evaluation_distance": "far"}])
def test_records_without_steps_or_numbers_are_met(
    record: dict[str, Any], folder: RunFolder, tmp_path: Path, capsys: Any
) -> None:
    """A worker that fails says why, whatever the records are."""
    folder.release()
    (folder.path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    job = Job(str(folder.path), {"env": "x"}, ("oal",), str(tmp_path))
    if "evaluation_distance" in record:
        with pytest.raises(InputError, match="evaluation_distance of a record is 'far'"):
            folder.records()
        return
    assert worker.execute(job) == worker.FAILED
    assert folder.status["status"] == "failed"


def test_very_many_metrics_are_damage(folder: RunFolder) -> None:
    """A table of them has as many cells as lines times metrics."""
    (folder.path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, f"m{i}": 1}) + "\n" for i in range(1_001))
    )
    with pytest.raises(InputError, match="more than 1000 different metrics"):
        folder.write_table()


@pytest.mark.parametrize(
    "setting, value",
    [
        *(("policy_config.hidden", value) for value in ([10**6, 10**6], [2**40], [1] * 101, [0], [-1], [10**30])),
        *(("policy_config.batch_size", value) for value in (10**9, 10**30)),
        ("policy_config.critics", 10**6),
        *(("replay_config.capacity", value) for value in (10**12, 10**30)),
        ("replay_config.block", 10**12),
        ("replay_config.updates_per_step", 1e9),
        ("cost_config.batch_size", 10**10),
        ("cost_config.minibatches", 10**10),
        ("environments", 10**7),
        ("horizon", 10**30),
    ],
)
def test_sizes_that_no_machine_has_are_refused_by_name(
    setting: str, value: Any, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    written = json.loads((run / "config.json").read_text())
    *path, name = setting.split(".")
    table = written["config"]
    for part in path:
        table = table[part]
    table[name] = value
    (run / "config.json").write_text(json.dumps(written))
    says = {"capacity": "a memory of", "batch_size": "batch_size is"}.get(name, name)
    with pytest.raises(InputError, match=says):
        training.resume(run)


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 559 GiB"), RuntimeError("RESOURCE_EXHAUSTED: Out")])
def test_a_lack_of_memory_is_one_line(error: Exception, monkeypatch: Any, capsys: Any) -> None:
    def full() -> None:
        raise error

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is not enough memory")
    assert said.count("\n") == 1


def test_other_faults_keep_their_traceback(monkeypatch: Any) -> None:
    monkeypatch.setattr(cli, "app", lambda: [].pop())
    with pytest.raises(IndexError):
        cli.main()


def test_tensorboard_does_not_write_through_a_link(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "mine").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="is a link"):
        callbacks.tensorboard_sink(tmp_path / "tensorboard")
    assert not list((tmp_path / "mine").iterdir())


def test_somebody_elses_folder_is_not_removed(oal: Any, tmp_path: Path) -> None:
    for name, config, status in (
        ("app", {"theme": "dark"}, {"status": "ok"}),
        ("job", {"config": {}}, {"status": "running"}),
        ("service", {"config": {}}, {"status": "on", "step": 3}),
    ):
        (tmp_path / name / "photos").mkdir(parents=True)
        (tmp_path / name / "photos" / "1.jpg").write_text("a photo")
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "status.json").write_text(json.dumps(status))
    before = sorted(tmp_path.rglob("*"))
    removed = oal("runs", "rm", tmp_path, "--yes")
    assert isinstance(removed.exception, InputError)
    assert removed.output.count("left alone") == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_is_removed_without_what_is_not_its_own(oal: Any, folder: RunFolder) -> None:
    folder.log({"step": 1})
    folder.release()
    (folder.path / "tensorboard").mkdir()
    (folder.path / "tensorboard" / "events.out.tfevents.1").write_text("")
    assert "removes .lock, config.json, metadata.json, metrics.jsonl, run.uuid" in oal("runs", "rm", folder).output
    (folder.path / "notes").mkdir()
    (folder.path / "notes" / "thesis.txt").write_text("years of work")
    (folder.path / "tensorboard" / "events.out.tfevents.2").mkdir()
    inner = RunFolder.create(folder.path / "notes" / "inner", {"env": "y"}, {})
    inner.release()
    removed = oal("runs", "rm", folder, "--yes")
    assert removed.exit_code == 0, removed.output
    assert "leaves notes" in removed.output
    assert sorted(path.name for path in folder.path.rglob("*")) == [
        "events.out.tfevents.2", "notes", "tensorboard", "thesis.txt",
    ]  # fmt: skip


def test_a_whole_run_leaves_nothing_behind(oal: Any, folder: RunFolder) -> None:
    folder.release()
    for path in [*vars(folder).values(), *(folder.path / name for name in (LOG, "cost.json", "expert.gif"))]:
        if isinstance(path, Path) and not path.exists():
            path.write_text("")
    (folder.path / ".status.0123abcd.part.json").write_text("")
    assert oal("runs", "rm", folder, "--yes").exit_code == 0
    assert not folder.path.exists()


# ----- output is data

NASTY = "a\x1b]0;owned\x07b\x9b31m\u202egnp.exe\r\ud800"
SHOWN = r"a\x1b]0;owned\x07b\x9b31m\u202egnp.exe\r\ud800"


def test_control_characters_are_written_out(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert console.printable(NASTY) == SHOWN
    assert console.printable("é 漢字 \N{NO-BREAK SPACE}x\ty\nz") == "é 漢字 \N{NO-BREAK SPACE}x\ty\nz"
    console.table(f"title {NASTY}[red]", (f"column {NASTY}[b]",), [(f"cell {NASTY}[i]",)])
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 3
    assert all(word in shown for word in ("[red]", "[b]", "[i]"))
    console.say(NASTY)
    with console.Board(("a",)) as board:
        board.say(NASTY)
    shown = capsys.readouterr()
    assert shown.out == shown.err == SHOWN + "\n"


def test_errors_and_listings_of_hostile_names(oal: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    nasty = NASTY[:-1]  # no file can be named by a lone surrogate
    run = RunFolder.create(tmp_path / nasty, {"env": f"{nasty}-v0", "total_steps": 5}, {})
    run.release()
    for words in (("runs", "list", tmp_path), ("runs", "show", run), ("runs", "rm", tmp_path, "--yes")):
        shown = oal(*words).output
        assert "\x1b]0" not in shown
        assert r"\x1b]0;owned" in shown
    monkeypatch.setattr(sys, "argv", ["oal", "runs", "show", f"no{nasty}"])
    with pytest.raises(SystemExit):
        cli.main()
    assert r"error: no" + SHOWN[:-6] in capsys.readouterr().err


def test_cells_that_begin_like_formulas_are_text(folder: RunFolder, tmp_path: Path) -> None:
    harmless = ["a=b", "-1.5", "+3e4", "-inf", "", None, -2, 0.5]
    formulas = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
    rows = [{"name": value, "=x": 1} for value in [*harmless, *formulas]]
    files.write_csv(tmp_path / "table.csv", rows)
    with (tmp_path / "table.csv").open(newline="") as file:
        header, *cells = csv.reader(file)
    assert header == ["name", "'=x"]
    expected = ["" if value is None else str(value) for value in harmless] + [f"'{value}" for value in formulas]
    assert [cell[0] for cell in cells] == expected
    folder.log({"step": -1, "=cmd|' /C calc'!A0": "=1+1"})
    folder.write_table()
    assert folder.table.read_text().splitlines() == ["step,'=cmd|' /C calc'!A0", "-1,'=1+1"]


def test_names_in_pictures_are_not_mathematics(tmp_path: Path) -> None:
    name = r"$\frac{broken$ and $\alpha$"
    with plots.picture(tmp_path / "picture") as axes:
        axes.plot([0, 1], [0, 1], label=name)
        axes.set_title(name)
        axes.set_xticks([0, 1], [name, name])
        axes.legend()
    assert (tmp_path / "picture.svg").read_text().count(r"$\frac{broken$ and $\alpha$") >= 4


def test_a_matplotlibrc_of_the_current_folder_makes_no_latex_of_names(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\ntext.parse_math: True\n")
    code = (
        "from oal.base import plots\nfrom matplotlib import rcParams\nassert rcParams['text.usetex']\n"
        "with plots.picture('picture') as axes: axes.set_title(r'\\input{/etc/hostname} $x$')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert r"\input{/etc/hostname} $x$" in (tmp_path / "picture.svg").read_text()


# ----- quotas


def test_a_sweep_of_very_many_runs_asks_first(oal: Any, tmp_path: Path) -> None:
    axes = {f"policy.a{i}": list(range(100)) for i in range(8)}  # 1e16 runs: counted, never listed
    tables = {"sweep": {"env": "Pendulum-v1", "total_steps": 10}, "grid": axes}
    with pytest.raises(TooManyRunsError, match=r"10,000,000,000,000,000 runs.*--yes"):
        Sweep.parse(tables, name="s")
    small = {"sweep": {"env": "Pendulum-v1", "total_steps": 10}, "grid": {"seed": [0, 1, 2]}}
    with pytest.raises(TooManyRunsError, match="3 runs, more than 2"):
        Sweep.parse(small, name="s", most=2)
    assert len(Sweep.parse(small, name="s", most=None).runs()) == 3
    path = tmp_path / "s.toml"
    path.write_text(f"[sweep]\nenv = 'Pendulum-v1'\ntotal_steps = 10\n[grid]\nseed = {list(range(100_001))}\n")
    asked = oal("sweep", path, "--dry-run")
    assert "100,001 runs" in str(asked.exception)


def test_an_unwritable_cache_of_programs_is_one_line(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    runtime.keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unwritable_cache_of_numbas_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = os.environ | {
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        "NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache"),
    }
    code = "from oal.tabular import fastmath; import numpy as np; print(fastmath.draw(np.array([0.0, 1.0]), 0.5))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert done.stderr.count("\n") == 1
