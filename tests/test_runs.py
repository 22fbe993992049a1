"""Run folders: what is written is read again, and neither a kill nor a full disk loses what was there."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oal.base import files
from oal.base import folder as runs
from oal.base.folder import RunFolder
from oal.errors import InputError

CONFIG = {"env": "Hopper-v5", "seed": 3, "policy_config": {"hidden": (64, 64)}}
METADATA = {"commit": "abc", "expert_return": np.float32(2.5), "random_return": None}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG, METADATA)


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


# ----- what the run is


def test_what_is_created_is_opened_again(folder: RunFolder) -> None:
    again = RunFolder.open(folder.path)
    assert again.config == {"env": "Hopper-v5", "seed": 3, "policy_config": {"hidden": [64, 64]}}
    assert again.metadata == {"commit": "abc", "expert_return": 2.5, "random_return": None}
    assert again.kind == "learner"
    assert again.status == {"status": "running", "step": 0}
    assert again.records() == []
    assert json.loads((folder.path / "config.json").read_text())["format"] == 1


def test_a_resumed_run_may_be_described_anew(folder: RunFolder) -> None:
    folder.describe({"seed": 4}, {"commit": "def"})
    again = RunFolder.open(folder.path)
    assert (again.config, again.metadata) == ({"seed": 4}, {"commit": "def"})


@pytest.mark.parametrize("left", ["config.json", "metrics.jsonl", "checkpoint.safetensors"])
def test_a_folder_that_holds_a_run_is_not_overwritten(left: str, tmp_path: Path) -> None:
    (tmp_path / left).write_text("{}")
    with pytest.raises(
        InputError, match=r"holds a run already: go on with it by  oal resume .* or choose another folder"
    ):
        RunFolder.create(tmp_path, CONFIG, METADATA)
    assert (tmp_path / left).read_text() == "{}"
    assert not (tmp_path / "status.json").exists()
    RunFolder(tmp_path).lock()  # the refusal did not keep the lock


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no such file, so .* holds no run"),
        ('{"format": 1, "conf', "not valid JSON"),
        ("\x00\x01", "not valid JSON"),
        ("[1, 2]", "not a JSON object but list"),
        ('{"format": 1, "config": 3}', "not the config of a run"),
        ('{"seed": 3}', "not the config of a run"),
        ('{"format": 1, "kind": 5, "config": {}}', "not the config of a run"),
        ('{"format": 2, "config": {}}', "later version of oal"),
        ('{"format": 1, "kind": "expert", "config": {}}', "of kind 'expert', not 'learner'"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(text: str | None, message: str, folder: RunFolder) -> None:
    path = folder.path / "config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=message):
        RunFolder.open(folder.path, kind="learner")


def test_missing_metadata_and_paths_that_are_no_folders_are_named(folder: RunFolder, tmp_path: Path) -> None:
    (folder.path / "metadata.json").unlink()
    with pytest.raises(InputError, match=r"metadata\.json: there is no such file"):
        RunFolder.open(folder.path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used as a run folder"):
        RunFolder.create(tmp_path / "file", CONFIG, METADATA)
    with pytest.raises(InputError, match="no such folder"):
        RunFolder.find(tmp_path / "nothing")


def test_runs_are_found_at_any_depth_and_other_results_are_not_runs(tmp_path: Path) -> None:
    for name in ("b", "a/deep/er", "b/inner", ".hidden/run"):
        RunFolder.create(tmp_path / name, CONFIG, METADATA)
    files.write_json(tmp_path / "figure" / "config.json", {})
    assert [run.path for run in RunFolder.find(tmp_path)] == [tmp_path / name for name in ("a/deep/er", "b", "b/inner")]
    assert [run.path for run in RunFolder.find(tmp_path / "b" / "inner")] == [tmp_path / "b" / "inner"]


def test_the_status_says_why_a_run_failed(folder: RunFolder) -> None:
    folder.set_status("failed", step=7, error="the loss is NaN", best_return=-np.inf)
    assert folder.status == {"status": "failed", "step": 7, "error": "the loss is NaN", "best_return": None}
    with pytest.raises(InputError, match="status 'done' is unknown"):
        folder.set_status("done", step=8)


# ----- metrics


def test_records_of_any_kind_of_number_come_back_as_plain_ones(folder: RunFolder) -> None:
    folder.log({"step": np.int64(1), "loss": np.float32(0.5), "returns": np.array([1.0, np.nan]), "return": np.inf})
    folder.log({"step": 2, "nested": {"x": (float("nan"), 1)}, "ok": np.bool_(True), "none": None})
    assert folder.records() == [
        {"step": 1, "loss": 0.5, "returns": [1.0, None], "return": None},
        {"step": 2, "nested": {"x": [None, 1]}, "ok": True, "none": None},
    ]
    assert "NaN" not in folder.metrics.read_text()


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_cut_short_is_passed_over_and_the_next_record_is_whole(cut: int, folder: RunFolder) -> None:
    folder.log({"step": 1, "loss": 0.25})
    folder.log({"step": 2, "loss": 0.125})
    whole = folder.metrics.read_bytes()
    folder.metrics.write_bytes(whole[:-cut])
    folder.log({"step": 3})
    # a cut of one takes the end of the line only
    assert [record["step"] for record in folder.records()] == ([1, 2, 3] if cut == 1 else [1, 3])


def test_foreign_lines_are_passed_over(folder: RunFolder) -> None:
    folder.metrics.write_bytes(b'\xff\xfe\n[1]\n3\n\n{"step": 1, "loss": NaN}\n')
    assert folder.records() == [{"step": 1, "loss": None}]


def test_rewinding_drops_what_came_after_the_checkpoint(folder: RunFolder) -> None:
    folder.rewind(5)  # nothing logged yet
    for step in (0, 10, 20, 30):
        folder.log({"step": step, "loss": step / 7})
    with folder.metrics.open("a") as file:
        file.write('{"step": 40, "lo')
    folder.rewind(20)
    assert folder.records() == [{"step": step, "loss": step / 7} for step in (0, 10, 20)]
    assert folder.metrics.read_text().count("\n") == 3
    folder.rewind(-1)
    assert folder.records() == []


def test_the_table_has_every_scalar_in_first_seen_order_and_no_lists(folder: RunFolder) -> None:
    folder.log({"step": 1, "return": None, "returns": None, "name": "a, b"})
    folder.log({"step": 2, "loss": 0.5, "returns": [1.0, 2.0], "return": 3.5})
    folder.write_table()
    with folder.table.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["step", "return", "name", "loss"], ["1", "", "a, b", ""], ["2", "3.5", "", "0.5"]]


# ----- one process at a time


def test_a_lock_keeps_others_out_until_it_is_released(folder: RunFolder) -> None:
    folder.lock()  # the holder may ask again
    other = RunFolder.open(folder.path)
    with pytest.raises(InputError, match=rf"another process \(id {os.getpid()}\).*choose another folder"):
        other.lock()
    folder.release()
    other.lock()
    with pytest.raises(InputError, match="another process"):
        folder.lock()
    del other
    folder.lock()


def test_without_locks_the_run_goes_on(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "fcntl", None)
    RunFolder(folder.path).lock()
    monkeypatch.undo()

    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    assert runs.fcntl is not None
    monkeypatch.setattr(runs.fcntl, "flock", unsupported)
    RunFolder(folder.path).lock()


# ----- kills and full disks

WRITER = """
import os, signal, sys
from pathlib import Path
from oal.base.folder import RunFolder
folder = RunFolder.create(sys.argv[1], {"seed": 1}, {})
for step in range(10**6):
    folder.log({"step": step, "loss": [step / 7] * 50})
    folder.set_status("running", step=step)
    if step % 10 == 0:
        folder.write_table()
        folder.rewind(step)
    if step == int(sys.argv[2]):
        # the next file is complete under its temporary name and dies on the way to its own
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def start_writer(path: Path, dies_at: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(dies_at)])


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_killed_between_writing_and_renaming_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert start_writer(path, 7).wait(60) == -signal.SIGKILL
    folder = RunFolder.open(path)
    assert folder.status == {"status": "running", "step": 7}
    assert [record["step"] for record in folder.records()] == list(range(9))
    assert list(path.glob(".*part*")), "the kill left its temporary file"
    folder.lock()  # the dead process's lock is gone with it
    assert not list(path.glob(".*part*")), "who holds the folder next sweeps it"
    folder.rewind(7)
    folder.log({"step": 8})
    assert [record["step"] for record in folder.records()] == list(range(9))


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_killed_at_any_moment_the_folder_can_be_read_and_used(tmp_path: Path, rng: np.random.Generator) -> None:
    for attempt in range(5):
        path = tmp_path / f"run-{attempt}"
        process = start_writer(path, -1)
        deadline = time.monotonic() + 60
        while not (path / "metrics.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        with pytest.raises(InputError, match=f"id {process.pid}"):
            RunFolder(path).lock()
        time.sleep(float(rng.uniform(0.0, 0.1)))
        process.kill()
        process.wait()
        folder = RunFolder.open(path, kind="learner")
        folder.lock()
        steps = [record["step"] for record in folder.records()]
        assert steps == list(range(len(steps)))
        assert folder.status["step"] in (len(steps) - 2, len(steps) - 1)
        with folder.table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["step"]) for row in rows] == list(range(len(rows)))
        folder.log({"step": len(steps)})
        assert folder.records()[-1] == {"step": len(steps)}


def test_on_a_full_disk_nothing_that_was_written_is_lost(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.log({"step": 1})
    folder.write_table()
    kept = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    monkeypatch.setattr(os, "fsync", full_disk)
    for write in (
        lambda: folder.set_status("finished", step=9),
        lambda: folder.rewind(0),
        lambda: folder.write_table(),
        lambda: folder.describe({}, {}),
    ):
        with pytest.raises(InputError, match=r"No space left on device.*the file that was there before is kept"):
            write()
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == kept


def test_a_record_that_does_not_fit_on_the_disk_leaves_no_part_of_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.log({"step": 1})

    class FullFile:
        """A file on a disk that fills up in the middle of a line."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "FullFile":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> None:
            self.file.write(data[: len(data) // 2])
            full_disk()

    path_open = Path.open
    monkeypatch.setattr(Path, "open", lambda *arguments, **options: FullFile(path_open(*arguments, **options)))
    with pytest.raises(InputError, match=r"No space left on device.*the records before it are kept"):
        folder.log({"step": 2, "loss": 0.5})
    monkeypatch.undo()
    assert folder.metrics.read_text() == '{"step": 1}\n'


def test_a_full_disk_at_the_beginning_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="could not be written"):
        RunFolder.create(tmp_path / "run", CONFIG, METADATA)
    monkeypatch.undo()
    assert RunFolder.create(tmp_path / "run", CONFIG, METADATA).config["seed"] == 3
