"""Cloning that is stopped and goes on: everything that an epoch changes, in one file."""

import os
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from oal.base import checkpoint, stopping
from oal.errors import InputError

KIND = "cloning"
Fit = TypeVar("Fit")


class PausedCloning:
    """Keeps a fit under way in a file, at a stop and by the clock, and takes it back from there."""

    def __init__(self, path: str | os.PathLike[str], *, seconds: float = stopping.KEEP_SECONDS) -> None:
        self.path, self.pace = Path(path), stopping.Pace(seconds)

    def taken(self, fit: Fit) -> tuple[Fit, list[float], list[float]]:
        """Return the fit and its losses so far: what was kept, or `fit` if nothing was."""
        if not checkpoint.exists(self.path):
            return fit, [], []
        arrays, _ = checkpoint.load_newest(self.path, kind=KIND, inside=self.path.parent)
        fit, found = checkpoint.restored(fit, arrays, "fit"), []
        for name in ("losses", "validated"):
            values = arrays.get(name, np.zeros(0, bool))
            if values.dtype != np.float64 or values.ndim != 1:
                raise InputError(f"{self.path}: '{name}' is {values.dtype}{values.shape}: the file is damaged")
            found.append(values.tolist())
        return fit, *found

    def keep(self, fit: Any, losses: list[float], validated: list[float]) -> None:
        """Write the fit if it is time to."""
        if self.pace.due():
            with self.pace.keeping():
                found = {"losses": np.array(losses, np.float64), "validated": np.array(validated, np.float64)}
                arrays = checkpoint.named(fit, "fit") | found
                checkpoint.save(self.path, arrays, {"epochs": len(losses)}, kind=KIND, keep_previous=True)
