"""Benchmark of sweeps: two processes against twice one, and what a run costs besides learning."""

import tempfile
import time
from pathlib import Path
from typing import Any

from common import ratios, spread

RUN_STEPS = 150_000
"""A run of usual length, against which the cost of starting one is set."""


def _timed(env_id: str, *, processes: int, steps: int, seeds: tuple[int, ...]) -> tuple[float, float]:
    """Run a sweep; return its wall time, and the seconds its runs spent in the learning loop together."""
    from oal.base.folder import RunFolder
    from oal.lab.executors import Processes
    from oal.lab.sweep import Sweep

    shared = {
        "env": env_id,
        "total_steps": steps,
        "checkpoint_every": 1_000,
        "evaluate_every": steps,
        "evaluation_episodes": 1,
        "replay.warmup_steps": 500,
        "bc.epochs": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep.parse({"sweep": shared, "grid": {"seed": list(seeds)}}, name="bench", out=Path(folder))
        begun = time.perf_counter()
        summary = sweep.go(Processes(processes))
        wall = time.perf_counter() - begun
        if not summary.complete:
            raise RuntimeError(f"{summary}: {summary.of('failed')[0].traceback}")
        return wall, sum(RunFolder(run.folder).records()[-1]["seconds"] for run in sweep.runs())


def run(*, quick: bool = False, env_id: str = "HalfCheetah-v5") -> list[dict[str, Any]]:
    """Measure environment steps per second of a 2-process sweep of OAL-neural over twice a 1-process one (aim: 0.85).

    Wall times of whole sweeps of the same two runs: processes, imports, compiled programs from the cache, learning,
    checkpoints and the last evaluation. Beside it, a run's wall time outside the learning loop.
    """
    steps, repeats = (700, 1) if quick else (5_000, 3)
    seeds = (0, 1)
    _timed(env_id, processes=1, steps=600, seeds=(0,))  # fills the cache of compiled programs
    rates: dict[int, list[float]] = {1: [], 2: []}
    overheads, shares = [], []
    for _ in range(repeats):
        for processes in (1, 2):
            wall, learning = _timed(env_id, processes=processes, steps=steps, seeds=seeds)
            rates[processes].append(steps * len(seeds) / wall)
            if processes == 1:
                overheads.append((wall - learning) / len(seeds))
                shares.append(overheads[-1] / (learning / len(seeds) * RUN_STEPS / steps))
    return [
        {
            "name": f"sweep of OAL-neural with MDPO, {env_id}, 2 processes against twice 1 process",
            "unit": "environment steps/s",
            "oal": spread(rates[2]),
            "twice one process": spread([2 * rate for rate in rates[1]]),
            "ratio": ratios(rates[2], [2 * rate for rate in rates[1]]),
            "aim": 0.85,
            "repeats": repeats,
        },
        {
            "name": f"a sweep's time per run outside the learning loop, as a share of {RUN_STEPS:,} steps of learning",
            "unit": "s",
            "oal": spread(overheads),
            "ratio": spread(shares),
            "smaller_is_better": True,
            "repeats": repeats,
        },
    ]
