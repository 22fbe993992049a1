"""Benchmark of load: ten million demonstrated steps, a thousand runs in a report, a hundred thousand sweep points."""

import sys
from typing import Any

from common import spread, work

TASKS = {
    "demonstrations": (10_000_000, "demonstrated steps read and hashed", 60.0, 2_000),
    "report": (1_000, "runs in a report", 10.0, 1_000),
    "sweep": (100_000, "points of a sweep planned, with their state", 120.0, 2_000),
}
"""How many, what, and within how many processor seconds and megabytes."""


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Measure processor seconds against their limits: a shared machine's clock says little. Memory has a limit too."""
    entries: list[dict[str, Any]] = []
    for task, (count, what, seconds, megabytes) in TASKS.items():
        given = max(1, count // 100) if quick else count
        found = work(sys.executable, "load_worker.py", threads=1, task=task, count=given)
        entries.append(
            {
                "name": f"{given:,} {what}: processor seconds as a share of {seconds:g} s, in at most {megabytes:,} MB",
                "unit": "s",
                "oal": spread([found["processor_seconds"]]),
                "ratio": spread([found["processor_seconds"] / seconds]),
                "aim": 1.0,
                "smaller_is_better": True,
                "repeats": 1,
                "peak_memory_megabytes": {"oal": round(found["peak"])},
                "within_memory": found["peak"] <= megabytes,
            }
        )
    return entries
