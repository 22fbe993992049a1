"""Demonstrations: trajectories of an expert, checked on the way in, in the formats people have them in."""

from oal.demos.formats import load, save, shipped
from oal.demos.trajectories import Demos, Trajectory

__all__ = ["Demos", "Trajectory", "load", "save", "shipped"]
