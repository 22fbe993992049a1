"""Kills, full disks, two trainers and clocks that go back: nothing is lost, and the end is the same bit by bit."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

import kills
from oal.base import stopping
from oal.base.folder import BusyError, RunFolder
from oal.errors import InputError
from oal.lab import run as training
from test_stopping import UNCLONED
from test_training import contents, small


@pytest.mark.slow
def test_fifty_random_kills_change_nothing(tmp_path: Path) -> None:
    """Its table is what  python tests/kills.py  writes to docs/results/kills.csv."""
    rows = kills.main(50, 0, tmp_path, lambda row: print(row))
    kills.write(tmp_path / "kills.csv", rows)
    assert sum(row["exit"] != 0 for row in rows) >= 45
    assert {row["run"] for row in rows} == {*kills.PLAYERS, "sweep"}
    assert {row["signal"] for row in rows} == {"SIGKILL", "SIGTERM", "SIGINT"}
    assert all(row["equal"] for row in rows)


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush to the disk fails once: the run says so, and goes on from its checkpoint once there is room."""
    config = small(learner=UNCLONED, total_steps=200, checkpoint_every=100, evaluation_episodes=1)
    training.start(config, tmp_path / "whole").go()
    flush, path, said, left = os.fsync, tmp_path / "cut", [], [0]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for failing in range(1, 100):
        left[0] = failing
        begun = RunFolder(path).described and (path / "demos.npz").exists()
        if not begun and path.exists():
            RunFolder(path).forget()
        try:
            (training.resume(path) if begun else training.start(config, path)).go()
            break
        except InputError as error:
            said.append(str(error))
        assert not list(path.glob(".*.part*"))
    assert len(said) >= 10
    assert all("No space left" in each for each in said)
    assert left[0] > 0, "it came to its end without another failure"
    assert contents(path) == contents(tmp_path / "whole")


def test_two_trainers_do_not_share_a_folder(tmp_path: Path) -> None:
    config = small(learner=UNCLONED, total_steps=100)
    first = training.start(config, tmp_path / "run")
    for begin in (lambda: training.resume(tmp_path / "run"), lambda: training.start(config, tmp_path / "run")):
        with pytest.raises(BusyError, match=f"id {os.getpid()}"):
            begin()
    first.folder.release()
    training.resume(tmp_path / "run").folder.release()


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(learner=UNCLONED, total_steps=200, checkpoint_every=100, evaluation_episodes=1)
    training.start(config, tmp_path / "whole").go()
    now = [time.time()]

    def backwards() -> float:
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    pace = stopping.Pace(1e-9)
    time.sleep(0.01)
    assert pace.due()
    run = training.start(config, tmp_path / "back")
    os.utime(tmp_path / "back" / "status.json", (0, 0))

    def stop(record: Any) -> None:
        if record["step"] == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go(sinks=[stop])
    training.resume(tmp_path / "back").go()
    assert contents(tmp_path / "back") == contents(tmp_path / "whole")
