"""What the benchmarks share: spreads, ratios, and peers installed into environments of their own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(np.median(values)), "min": float(min(values)), "max": float(max(values))}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratio of each repetition's pair, with its spread."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def install(name: str, packages: Sequence[Sequence[str]]) -> Path:
    """Install packages, group by group, into the environment .bench/NAME, once; return its Python."""
    folder = ROOT / ".bench" / name
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = json.dumps(packages)
    if done.exists() and done.read_text() == wanted:
        return python
    names = ", ".join(word for group in packages for word in group)
    print(f"Installing {names} into {folder.relative_to(ROOT)} (once) ...", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for group in packages:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *group]
        subprocess.run(command, check=True)
    done.write_text(wanted)
    return python
