"""Read much at once: demonstrations, run folders in a report, a sweep's points; print one line of JSON on it."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import ROOT, memory_megabytes

Measured = Callable[[], object]


def demonstrations(count: int, folder: Path) -> Measured:
    """`count` steps in episodes of a thousand, no two alike: the reader refuses what unfolds to far more than it is."""
    import numpy as np
    from gymnasium import spaces

    from oal import demos

    length, rng = 1_000, np.random.default_rng(0)

    def episode() -> demos.Trajectory:
        observations = rng.standard_normal((length + 1, 4), np.float32)
        actions, rewards = rng.random((length, 1), np.float32), rng.random(length, np.float32)
        return demos.Trajectory(observations, actions, rewards, terminated=False, truncated=True)

    box = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
    demos.Demos(tuple(episode() for _ in range(count // length)), "Env-v0", *box).save(folder / "demos.npz")
    return lambda: demos.load(folder / "demos.npz").content_hash


def report(count: int, folder: Path) -> Measured:
    """`count` runs of twenty records."""
    sys.path.insert(0, str(ROOT / "tests"))
    from made_runs import make_run
    from oal import report as reporting

    for index in range(count):
        make_run(folder / "runs" / str(index), seed=index // 4, cost=("linear", "neural", "gail", "none")[index % 4])
    return lambda: reporting.write([folder / "runs"], folder / "report.html", csv=True)


def sweep(count: int, folder: Path) -> Measured:
    """`count` points, with the state of each, as `oal sweep --dry-run` shows them."""
    from oal.base.folder import RunFolder
    from oal.lab.sweep import Sweep

    tables = {"sweep": {"env": "Hopper-v5", "total_steps": 1_000}, "grid": {"seed": list(range(count))}}

    def plan() -> object:
        planned = Sweep.parse(tables, name="load", out=folder / "runs").runs()
        return [RunFolder(run.folder).described for run in planned]

    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--task", choices=("demonstrations", "report", "sweep"), required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    from oal.base import runtime

    runtime.set_threads(options.threads)
    (ROOT / ".bench").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".bench") as name:
        measured = {"demonstrations": demonstrations, "report": report, "sweep": sweep}[options.task](
            options.count, Path(name)
        )
        before = memory_megabytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        begun, processor = time.perf_counter(), time.process_time()
        measured()
        print(
            json.dumps(
                {
                    "seconds": time.perf_counter() - begun,
                    "processor_seconds": time.process_time() - processor,
                    "before": before,
                    "peak": memory_megabytes("VmHWM"),
                }
            )
        )


if __name__ == "__main__":
    main()
