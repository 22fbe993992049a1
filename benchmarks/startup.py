"""Benchmark of starting: importing the package, the command's help, and a run's way to its first learned step."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from common import ratios, spread

LIMITS = {"import oal": 0.3, "oal --help": 0.5}
"""Seconds; the interpreter's own start is part of them."""
COMMANDS = {"import oal": ["-c", "import oal"], "oal --help": ["-m", "oal", "--help"]}
STEPS = 300


def _seconds(words: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=None if environment is None else {**os.environ, **environment},
    )
    return time.perf_counter() - begun


def _train(compiled: str) -> float:
    """Time a run that ends after its first blocks of updates, with a folder of compiled programs."""
    settings = ("bc.epochs=1", "replay.warmup_steps=100", "cost.update_every=100")
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "oal", "train", "HalfCheetah-v5", "--steps", str(STEPS), "--out", f"{folder}/run", "--quiet"]
        words += ["--evaluate-every", str(STEPS), "--evaluation-episodes", "1"]
        words += [word for setting in settings for word in ("--set", setting)]
        return _seconds(words, {"JAX_COMPILATION_CACHE_DIR": compiled})


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Measure start-up times against their limits, and a run with compiled programs at hand against one without."""
    repeats = 2 if quick else 5
    entries: list[dict[str, Any]] = []
    for name, limit in LIMITS.items():
        _seconds(COMMANDS[name])  # the files come from the disk once
        seconds = [_seconds(COMMANDS[name]) for _ in range(repeats)]
        entries.append(
            {
                "name": f"{name}: seconds as a share of {limit:g} s",
                "unit": "s",
                "oal": spread(seconds),
                "ratio": spread([second / limit for second in seconds]),
                "aim": 1.0,
                "smaller_is_better": True,
                "repeats": repeats,
            }
        )
    cold, warm = [], []
    for _ in range(1 if quick else 3):
        with tempfile.TemporaryDirectory() as compiled:
            cold.append(_train(compiled))
            warm.append(_train(compiled))
    entries.append(
        {
            "name": f"oal train HalfCheetah-v5 for {STEPS} steps: a second run against a first one that compiles",
            "unit": "s",
            "oal": spread(warm),
            "first run": spread(cold),
            "ratio": ratios(warm, cold),
            "smaller_is_better": True,
            "repeats": len(cold),
        }
    )
    return entries
