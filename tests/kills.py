"""Kill runs at random, again and again, and compare what they end with to runs that nobody touched.

    python tests/kills.py [--kills 50] [--seed S] [--out TABLE.csv]

Every policy player is trained from the command line, and a sweep with two workers, each killed by signals 9, 15 and 2
at random moments; one signal in three comes from inside a write: of a checkpoint, a status, a record, a policy. After
each the command that goes on is run. The table has a row for each kill; the end must be equal bit by bit.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oal.base.folder import RunFolder
from oal.lab.sweep import Sweep
from test_experiment import TINY, holder, results, toml
from test_training import contents

SMALL = ["--cost", "linear", "--trajectories", "2", "--quiet", "--evaluate-every", "1000", "--evaluation-episodes", "1"]
SMALL += ["--checkpoint-every", "1000", "--checkpoint-seconds", "1", "--set", "policy.hidden=[16]"]
OFF = ["--steps", "4000", "--set", "policy.batch_size=16", "--set", "replay.warmup_steps=100", "--set", "bc.epochs=1"]
ON = ["--steps", "20000", "--set", "policy.batch_steps=200"]
PLAYERS = {"mdpo": OFF, "sac": OFF, "mdpo-on": ON, "trpo": ON}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WRITES = ("checkpoint", "status", "metrics", "best", "policy")
KILL_WITHIN = """
import os, signal
from pathlib import Path
from oal.base import folder as folders
what, number, times = os.environ["KILL_WITHIN"].split()
left = [int(times)]
def count(path):
    left[0] -= Path(path).name.startswith(what)
    if left[0] == 0:
        os.kill(os.getpid(), int(number))
replace, log = Path.replace, folders.RunFolder.log
def replacing(self, target):
    count(target)
    return replace(self, target)
def logging(self, record):
    if what == "metrics":
        left[0] -= 1
        if left[0] == 0:
            with self.metrics.open("ab") as file:
                file.write(b'{"step": 7')
            os.kill(os.getpid(), int(number))
    return log(self, record)
Path.replace, folders.RunFolder.log = replacing, logging
"""
START = "import signal; [signal.signal(n, signal.SIG_DFL) for n in (1, 2, 15)]\n"


def start(words: list[str], within: str = "") -> subprocess.Popen[str]:
    """Start `oal` with signals as in a terminal; `within` names a write, a signal, and the how-manieth write it is."""
    code = START + (KILL_WITHIN if within else "") + "import oal.__main__"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "KILL_WITHIN": within},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(words: list[str]) -> None:
    output, _ = (process := start(words)).communicate()
    assert process.returncode == 0, output


def stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def kill_run(rng: random.Random, begin: list[str], path: Path, kills: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Kill a run so many times, each time after it has come a little further; then let it end."""
    for index in range(kills):
        begun = RunFolder(path).described and (path / "demos.npz").exists()
        if not begun:
            shutil.rmtree(path, ignore_errors=True)
        number, within = rng.choice(SIGNALS), ""
        if index % 3 == 2:
            within = f"{rng.choice(WRITES)} {int(number)} {rng.choice((1, 2))}"
        process = start(["resume", str(path), "--quiet"] if begun else begin, within)
        before = stamp(path / "status.json")
        while process.poll() is None and stamp(path / "status.json") == before:
            time.sleep(0.01)
        deadline = time.monotonic() + (60 if within else rng.uniform(0, seconds))
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(number)
        output, _ = process.communicate()
        status = RunFolder(path).status
        assert process.returncode in (0, -number, 128 + number), output
        assert "Traceback" not in output, output
        yield {
            "signal": signal.Signals(number).name,
            "within": within.split()[0] if within else "",
            "exit": process.returncode,
            "status": status["status"],
            "step": status["step"],
        }
        if process.returncode == 0:
            return
    finished(["resume", str(path), "--quiet"])


def kill_sweep(rng: random.Random, file: Path, sweep: Sweep, kills: int) -> Iterator[dict[str, Any]]:
    """Kill a sweep and its workers in turns."""
    words = ["sweep", str(file), "--out", str(sweep.out), "--processes", "2", "--quiet"]
    folders, process = [run.folder for run in sweep.runs()], None
    for _ in range(kills):
        if process is None or process.poll() is not None:
            process = start(words)
        target, number = rng.choice(("sweep", "worker")), rng.choice(SIGNALS)
        deadline, pid = time.monotonic() + 120, None
        while pid is None and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            pid = next((found for each in folders if (found := holder(each))), None)
        time.sleep(rng.uniform(0, 1.5))
        if process.poll() is None:
            try:
                os.kill(process.pid if target == "sweep" or pid is None else pid, number)
            except ProcessLookupError:
                continue
        if target == "sweep":
            process.communicate()
        steps = [RunFolder(each).status["step"] for each in folders if RunFolder(each).described]
        yield {"signal": signal.Signals(number).name, "within": target, "exit": process.poll(), "step": sum(steps)}
    if process is not None and process.poll() is None:
        process.communicate()
    finished(words)


def main(kills: int, seed: int, folder: Path, show: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Kill so many times in all; return the rows of the table, in which `equal` says how it ended."""
    rows: list[dict[str, Any]] = []
    shares = {**dict.fromkeys(PLAYERS, kills // 5), "sweep": kills - 4 * (kills // 5)}
    for player, more in PLAYERS.items():
        rng, done, attempt = random.Random(f"{player} {seed}"), 0, 0
        common = ["train", "InvertedPendulum-v5", "--policy", player, *SMALL, *more, "--out"]
        begun = time.monotonic()
        finished([*common, str(folder / player)])
        seconds = time.monotonic() - begun
        while done < shares[player]:
            path, attempt = folder / f"{player}-cut-{attempt}", attempt + 1
            found = list(kill_run(rng, [*common, str(path)], path, shares[player] - done, seconds / 3))
            equal = contents(path) == contents(folder / player)
            rows += (new := [{"run": player, **row, "equal": equal} for row in found])
            done += sum(row["exit"] != 0 for row in new)
            for row in new:
                show(row)
    table = {"sweep": {**TINY, "cost": "linear", "total_steps": 3_000, "checkpoint_every": 500}}
    file = toml(folder / "sweep.toml", **table, grid={"seed": [0, 1]})
    sweeps = [Sweep.read(file, out=folder / name) for name in ("undisturbed", "disturbed")]
    finished(["sweep", str(file), "--out", str(sweeps[0].out), "--quiet"])
    found = list(kill_sweep(random.Random(f"sweep {seed}"), file, sweeps[1], shares["sweep"]))
    equal = results(sweeps[1]) == results(sweeps[0])
    rows += (new := [{"run": "sweep", "status": "", **row, "equal": equal} for row in found])
    for row in new:
        show(row)
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["run", "signal", "within", "exit", "status", "step", "equal"])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/kills.csv"))
    given = parser.parse_args()
    shown: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        shown.append(row)
        write(given.out, shown)  # what is stopped has a table of what was done

    with tempfile.TemporaryDirectory() as scratch:
        killed = main(given.kills, given.seed, Path(scratch), show)
    sys.exit(not all(row["equal"] for row in killed))
