"""Demonstrations: trajectories of an expert, checked on the way in, in the formats people have them in."""

from typing import TYPE_CHECKING, Any

from oal.base.limits import Budget
from oal.demos.places import shipped
from oal.demos.read import detect, load
from oal.demos.trajectories import Demos, Spread, Statistics, Trajectory
from oal.demos.write import FORMATS, save

if TYPE_CHECKING:
    from oal.demos.record import record_demos

__all__ = [
    "FORMATS",
    "Budget",
    "Demos",
    "Spread",
    "Statistics",
    "Trajectory",
    "detect",
    "load",
    "record_demos",
    "save",
    "shipped",
]


def __getattr__(name: str) -> Any:
    # recording steps an environment; reading a file needs none, and no Gymnasium
    if name == "record_demos":
        from oal.demos.record import record_demos

        return record_demos
    raise AttributeError(f"module 'oal.demos' has no attribute '{name}'")
