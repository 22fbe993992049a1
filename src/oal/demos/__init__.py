"""Demonstrations: trajectories of an expert, checked on the way in, in the formats people have them in."""

from oal.demos.formats import FORMATS, detect, load, save, shipped
from oal.demos.limits import Budget
from oal.demos.trajectories import Demos, Spread, Statistics, Trajectory

__all__ = ["FORMATS", "Budget", "Demos", "Spread", "Statistics", "Trajectory", "detect", "load", "save", "shipped"]
