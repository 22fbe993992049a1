"""Learning curves of groups: records of several seeds at common steps, with pointwise intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oal.report import statistics
from oal.report.groups import Group
from oal.report.results import Kind, Run
from oal.report.statistics import Band

Array = NDArray[np.float64]
POINTS: dict[Kind, int] = {"behaviour": 40, "evaluation": 150, "regret": 150}
"""The most points of a curve; single episodes of the behaviour are noisy, so its points average more of them."""


@dataclass(frozen=True)
class Curve:
    """A mean over seeds with its interval, and how many seeds have got to each point."""

    steps: Array
    band: Band
    seeds: NDArray[np.int64]


def common_steps(runs: Sequence[Run], kind: Kind) -> Array:
    """Return the steps at which the runs have returns; if there are too many to draw, ends of equally long bins."""
    steps = np.unique(np.concatenate([run.steps[np.isfinite(run.returns[kind])] for run in runs]))
    points = POINTS[kind]
    return steps if steps.size <= points else np.linspace(steps[-1] / points, steps[-1], points)


def on_steps(run: Run, kind: Kind, grid: Array, *, normalised: bool) -> Array:
    """Return a run's curve at the grid: the mean of what lies in each bin, an empty bin keeps the value before it.

    NaN before its first value and after the run's end.
    """
    values = run.values(kind, normalised=normalised)
    has = np.isfinite(values)
    if not has.any():
        return np.full(grid.size, np.nan)
    # Bin k holds the steps above grid[k - 1] and up to grid[k]; what lies beyond the grid is not shown.
    bins = np.searchsorted(grid, run.steps)
    inside = has & (bins < grid.size)
    count = np.bincount(bins[inside], minlength=grid.size)
    total = np.bincount(bins[inside], weights=values[inside], minlength=grid.size)
    filled = np.maximum.accumulate(np.where(count > 0, np.arange(grid.size), -1))
    shown = (filled >= 0) & (np.arange(grid.size) <= bins[-1])
    curve = np.full(grid.size, np.nan)
    curve[shown] = total[filled[shown]] / count[filled[shown]]
    return curve


def learning_curve(group: Group, kind: Kind, *, normalised: bool = False) -> Curve | None:
    """Return the mean over the seeds that have got to each step, or None if no seed has returns of this kind."""
    runs = [run for run in group.runs if run.has(kind) and (run.can_be_normalised or not normalised)]
    if not runs:
        return None
    grid = common_steps(runs, kind)
    values = np.stack([on_steps(run, kind, grid, normalised=normalised) for run in runs], axis=-1)
    present = np.isfinite(values)
    result = Band(*(np.full(grid.size, np.nan) for _ in range(3)))
    # Runs of different lengths: the points with the same seeds present are averaged together.
    for pattern in np.unique(present, axis=0):
        rows = (present == pattern).all(axis=1)
        if pattern.any():
            part = statistics.band(statistics.mean, [values[rows][:, pattern]])
            for whole, piece in zip(result, part, strict=True):
                whole[rows] = piece
    return Curve(grid, result, present.sum(axis=1))


def aggregate_curve(groups: Sequence[Group], kind: Kind) -> Curve | None:
    """Return the inter-quartile mean of normalised returns over all runs of one algorithm, up to the shortest run."""
    members = [[run for run in group.judged if run.has(kind) and run.can_be_normalised] for group in groups]
    members = [runs for runs in members if runs]
    runs = [run for each in members for run in each]
    if not runs:
        return None
    grid = common_steps(runs, kind)
    grid = grid[grid <= min(run.steps[-1] for run in runs)]
    tasks = [np.stack([on_steps(run, kind, grid, normalised=True) for run in each], axis=-1) for each in members]
    shown = np.all([np.isfinite(task).all(axis=-1) for task in tasks], axis=0)
    if not shown.any():
        return None
    band = statistics.band(statistics.interquartile_mean, [task[shown] for task in tasks])
    return Curve(grid[shown], band, np.full(int(shown.sum()), len(runs)))
