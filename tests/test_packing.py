"""Runs in one file: what a report reads of them is the same before and after, and a stranger's file does no harm."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from oal import report
from oal.base.folder import RunFolder
from oal.cli import app
from oal.errors import InputError
from oal.lab.packing import pack, unpack
from oal.lab.sweep import Sweep


def made(path: Path, *, seed: int = 0, status: str = "finished", **config: Any) -> RunFolder:
    """A run of three records, one of them with an evaluation; what only a checkpoint would need is there too."""
    fields = {"env": "Walker2d-v5", "policy": "mdpo", "cost": "neural", "preset": "default", "total_steps": 3_000}
    origin = {"commit": "0123456789ab", "expert_return": 1_000.0, "random_return": 2.5, "versions": {"oal": "0.1.0"}}
    folder = RunFolder.create(path, fields | {"seed": seed} | config, origin)
    for step in (1_000, 2_000, 3_000):
        evaluated = {"evaluation_return": 123.456789012 + step} if step == 2_000 else {}
        folder.log({"step": step, "seconds": step / 10, "return": step * 0.3, "critic_loss": 1.0, **evaluated})
    folder.checkpoint.write_bytes(b"large")
    folder.set_status(status, step=3_000)
    folder.release()
    return folder


def test_a_report_reads_the_same_of_runs_that_were_packed(tmp_path: Path) -> None:
    for seed in range(3):
        made(tmp_path / "runs" / "one" / str(seed), seed=seed)
    made(tmp_path / "runs" / "under way", seed=3, status="stopped")
    assert pack([tmp_path / "runs"], tmp_path / "runs.jsonl") == (3, 1)
    assert unpack(tmp_path / "runs.jsonl", tmp_path / "again") == (3, 0)
    before = [run for run in report.read([tmp_path / "runs"]).runs if run.status == "finished"]
    after = report.read([tmp_path / "again"]).runs
    assert [run.folder.path.relative_to(tmp_path / "again").as_posix() for run in after] == ["one/0", "one/1", "one/2"]
    for first, second in zip(before, after, strict=True):
        assert (first.config, first.metadata, first.status) == (second.config, second.metadata, second.status)
        np.testing.assert_array_equal(first.steps, second.steps)
        assert first.seconds == second.seconds
        for kind, values in first.returns.items():
            np.testing.assert_allclose(second.returns[kind], values, rtol=1e-5)
    assert not any(tmp_path.glob("again/**/*.safetensors"))


def test_a_sweep_takes_unpacked_runs_for_finished(tmp_path: Path) -> None:
    tables = {"sweep": {"env": "Pendulum-v1", "total_steps": 3_000}, "grid": {"seed": [0, 1]}}
    sweep = Sweep.parse(tables, name="small", source="a test", out=tmp_path / "runs")
    for run in sweep.planned:
        made(run.folder, **run.config.to_json())
    pack([tmp_path / "runs"], tmp_path / "runs.jsonl")
    moved = Sweep.parse(tables, name="small", source="a test", out=tmp_path / "elsewhere")
    unpack(tmp_path / "runs.jsonl", tmp_path / "elsewhere")
    summary = moved.go(show=False)
    assert summary.complete
    assert len(summary.of("kept")) == 2


def test_runs_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    folder = made(tmp_path / "runs" / "a")
    pack([tmp_path / "runs"], tmp_path / "runs.jsonl")
    assert unpack(tmp_path / "runs.jsonl", tmp_path / "runs") == (0, 1)
    assert folder.checkpoint.read_bytes() == b"large"
    assert "critic_loss" in folder.records()[0]


def test_names_that_meet_and_folders_without_a_run(tmp_path: Path) -> None:
    made(tmp_path / "first" / "a")
    made(tmp_path / "second" / "a", seed=1)
    with pytest.raises(InputError, match="two runs are called a"):
        pack([tmp_path / "first", tmp_path / "second"], tmp_path / "runs.jsonl")
    made(tmp_path / "third" / "a", status="stopped")
    with pytest.raises(InputError, match="no finished run"):
        pack([tmp_path / "third"], tmp_path / "runs.jsonl")
    assert not (tmp_path / "runs.jsonl").exists()


CHANGES = {
    "a name that leads out": ({"run": "../outside"}, "no path below a folder"),
    "an absolute name": ({"run": "/outside"}, "no path below a folder"),
    "no name": ({"run": ""}, "no path below a folder"),
    "a name with a step back inside": ({"run": "a/../../b"}, "no path below a folder"),
    "a name that is a number": ({"run": 3}, "must be"),
    "a config that is a list": ({"config": []}, "must be"),
    "no metadata": ({"metadata": None}, "must be"),
    "curves of two lengths": ({"curves": {"step": [1, 2], "return": [1.0]}}, "differ in length"),
    "a step that is a word": ({"curves": {"step": ["x"]}}, "must be"),
    "curves that are a number": ({"curves": 7}, "must be"),
}


@pytest.mark.parametrize("change, said", CHANGES.values(), ids=CHANGES)
def test_a_damaged_file_is_refused_by_name_and_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    made(tmp_path / "runs" / "a")
    path = tmp_path / "runs.jsonl"
    pack([tmp_path / "runs"], path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(InputError, match=said) as caught:
        unpack(path, tmp_path / "inside" / "again")
    assert "line 1" in str(caught.value)
    assert not (tmp_path / "inside" / "outside").exists()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "runs" / "a")
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert "1 run" in run(app, ["runs", "pack", "runs"]).output
    assert "1 run" in run(app, ["runs", "unpack", "runs.jsonl", "--out", "again"]).output
    assert "there already: 1" in run(app, ["runs", "unpack", "runs.jsonl", "--out", "again"]).output
    assert "finished" in run(app, ["runs", "list", "again"]).output
