"""Demonstrations that go by a name instead of a path: those shipped with oal, and Minari's."""

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from oal.errors import InputError

MINARI = "minari:"
SHIPPED: Any = files("oal") / "data" / "demos"


def shipped() -> list[str]:
    """Return the names of the demonstrations that come with oal."""
    if not SHIPPED.is_dir():
        return []
    return sorted(entry.name.removesuffix(".npz") for entry in SHIPPED.iterdir() if entry.name.endswith(".npz"))


def minari_folder(dataset_id: str) -> Path:
    """Return where Minari keeps the dataset."""
    parts = dataset_id.split("/")
    if not dataset_id or any(part in ("", ".", "..") for part in parts) or "\\" in dataset_id:
        raise InputError(f"minari:{dataset_id} is no dataset name: it looks like  minari:mujoco/hopper/expert-v0")
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return Path(root).joinpath(*parts)
