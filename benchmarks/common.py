"""What the benchmarks share: spreads, ratios, peers installed into environments of their own, and workers.

Workers import this file with the peers' own Pythons too, so it needs the standard library alone.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# torch first and pinned: the others would otherwise choose a build of their own
TORCH = ("torch==2.13.0",)
PEERS = {
    "sb3": (TORCH, ("stable-baselines3==2.9.0", "sbx-rl==0.28.0", "gymnasium[mujoco]")),
    "imitation": (TORCH, ("imitation==1.0.1", "stable-baselines3==2.2.1", "gymnasium[mujoco]==0.29.1")),
    "tianshou": (TORCH, ("tianshou==2.0.1", "gymnasium[mujoco]")),
    "rlberry": (("rlberry", "rlberry-scool"),),
}


class WorkerError(Exception):
    """A peer that does not install or a worker that does not run; the text says why, without this machine's paths."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(statistics.median(values)), "min": float(min(values)), "max": float(max(values))}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratio of each repetition's pair, with its spread."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def reason(text: str) -> str:
    """Return the last line of a traceback without paths: it goes into a table of the docs."""
    last = (text.strip().splitlines() or ["no message"])[-1]
    return re.sub(r" ?\(?(?<![\w.])/[\w./+-]+\)?", "", last)[-300:].strip()


def install(name: str) -> Path:
    """Install a peer's packages, group by group, into the environment .bench/NAME, once; return its Python."""
    groups = PEERS[name]
    folder = ROOT / ".bench" / name
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = json.dumps(groups)
    if done.exists() and done.read_text() == wanted:
        return python
    names = ", ".join(word for group in groups for word in group)
    print(f"Installing {names} into {folder.relative_to(ROOT)} (once) ...", flush=True)
    commands = [] if python.exists() else [[sys.executable, "-m", "venv", str(folder)]]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in [*commands, *([*pip, *group] for group in groups)]:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise WorkerError(f"it does not install here: {reason(result.stderr)}")
    done.write_text(wanted)
    return python


def work(python: Path | str, script: str, *, threads: int, **options: Any) -> dict[str, Any]:
    """Run benchmarks/SCRIPT in a process of its own; return the JSON of its last line."""
    command = [str(python), str(Path(__file__).with_name(script)), "--threads", str(threads)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(result.stderr[-3000:], file=sys.stderr)
        raise WorkerError(f"it does not run here: {reason(result.stderr)}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def end_worker_when_stopped() -> None:
    """Turn a request to end this process into an exception, so that the worker under way is ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))


def limit_threads(threads: int) -> None:
    """Give a peer its threads, before any numerical library is loaded; oal has `runtime.set_threads` of its own."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)
    # the size of XLA's own pool
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def memory_megabytes(field: str) -> float:
    """Read VmHWM (the peak) or VmRSS (now) of this process.

    getrusage would not do: a process that was started by a larger one inherits its peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def against(
    rates: Mapping[str, Sequence[float]], memory: Mapping[str, Sequence[float]], peer: str, **about: Any
) -> dict[str, Any]:
    """Compare oal's steps per second with a peer's, repetition by repetition; peak memory stands beside."""
    return {
        **about,
        "unit": "environment steps/s",
        "oal": spread(rates["oal"]),
        peer: spread(rates[peer]),
        "ratio": ratios(rates["oal"], rates[peer]),
        "repeats": len(rates["oal"]),
        "peak_memory_megabytes": {name: round(max(memory[name])) for name in ("oal", peer)},
    }
