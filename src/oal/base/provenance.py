"""Where a result came from: the command, the commit and the versions, to be saved with every figure."""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from oal import __version__

PACKAGES = ("numpy", "numba", "scipy", "jax", "gymnasium", "mujoco")


def commit() -> str | None:
    """Return the commit of the source tree oal runs from (with `+changes`), or None for an installed package."""
    try:
        run = lambda *words: subprocess.run(  # noqa: E731
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        top = Path(run("rev-parse", "--show-toplevel"))
        if not (top / "src" / "oal").is_dir():
            return None
        changed = run("status", "--porcelain", "--untracked-files=no", "--", "src")
        return run("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """Return what was typed: a program without the folder it was found in, a script with the name of its own."""
    called = Path(sys.argv[0])
    words = ["python", f"{called.resolve().parent.name}/{called.name}"] if called.suffix == ".py" else [called.name]
    return shlex.join([*words, *sys.argv[1:]])


def provenance() -> dict[str, Any]:
    """Return what to save with a result."""
    versions = {"python": platform.python_version(), "oal": __version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "command": command(),
        "commit": commit(),
        "versions": versions,
    }
