"""Demonstrations as one picture: returns, lengths, and how observations and actions are spread."""

import os
from typing import Any

import numpy as np

from oal.base.files import replacing
from oal.demos.trajectories import Demos
from oal.errors import InputError

SUFFIXES = (".png", ".pdf", ".svg")
INK, SOFT = "#1f4e79", "#9dc3e6"
BINS = 41


def plot(demos: Demos, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw `demos` to an image file."""
    if not os.fspath(path).endswith(SUFFIXES):
        raise InputError(f"{path}: the picture's name must end in {', '.join(SUFFIXES)}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    upper, lower = figure.subplots(2, 2)
    figure.suptitle(title or demos.env_id or "Demonstrations", fontsize=13, parse_math=False)
    _returns(upper[0], demos)
    _lengths(upper[1], demos)
    _observations(lower[0], demos)
    _actions(figure, lower[1], demos)
    for axes in (*upper, *lower):
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _returns(axes: Any, demos: Demos) -> None:
    axes.set(title="Return of each episode", xlabel="episode", ylabel="sum of rewards")
    returns = demos.returns
    if returns is None:
        axes.text(0.5, 0.5, "no rewards recorded", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    axes.axhline(returns.mean(), color=SOFT, zorder=1)
    axes.plot(returns, "o", color=INK, markersize=5, zorder=2)
    axes.set_title(f"Return of each episode: mean {returns.mean():.1f}, std {returns.std():.1f}")
    _whole_numbers(axes.xaxis)
    axes.margins(y=0.15)


def _lengths(axes: Any, demos: Demos) -> None:
    steps = np.arange(len(demos))
    drawn: set[str] = set()
    looks = {"terminated": ("v", "#c00000"), "truncated": ("o", INK), "part of an episode": ("s", "#7f7f7f")}
    for step, trajectory in zip(steps, demos, strict=True):
        ended = "terminated" if trajectory.terminated else "truncated" if trajectory.truncated else "part of an episode"
        marker, colour = looks[ended]
        label = ended + ("" if demos.endings_known else " (a guess: not recorded)")
        axes.plot(step, len(trajectory), marker, color=colour, markersize=5, label=None if ended in drawn else label)
        drawn.add(ended)
    axes.set(title="Length of each episode", xlabel="episode", ylabel="steps")
    axes.set_ylim(0, demos.lengths.max() * 1.15)
    axes.legend(frameon=False, loc="lower left")
    _whole_numbers(axes.xaxis)


def _observations(axes: Any, demos: Demos) -> None:
    values = demos.observations.reshape(demos.steps, -1).astype(np.float64)
    low, lower, middle, upper, high = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.99], axis=0)
    at = np.arange(values.shape[1])
    axes.bar(at, high - low, bottom=low, width=0.7, color=SOFT, label="1 % to 99 %")
    axes.bar(at, upper - lower, bottom=lower, width=0.7, color=INK, label="25 % to 75 %")
    axes.hlines(middle, at - 0.35, at + 0.35, color="white", linewidth=1.2)
    axes.set(title="Observations: quantiles of each dimension", xlabel="dimension", ylabel="value")
    axes.use_sticky_edges = False
    size = np.maximum(np.abs(low), np.abs(high))
    if size.max() > 1000 * max(1.0, float(np.median(size))):
        axes.set_yscale("symlog", linthresh=1.0)
    axes.legend(frameon=False, fontsize=8)
    _whole_numbers(axes.xaxis)


def _actions(figure: Any, axes: Any, demos: Demos) -> None:
    if demos.actions.ndim == 1 and demos.actions.dtype.kind in "iu":
        chosen, counts = np.unique(demos.actions, return_counts=True)
        axes.bar(chosen, counts / demos.steps, color=INK)
        axes.set(title="Actions: share of the steps", xlabel="action", ylabel="share", xticks=chosen)
        return
    values = demos.actions.reshape(demos.steps, -1).astype(np.float64)
    ends = _value_range(demos, values)
    columns = np.stack([np.histogram(column, BINS, ends)[0] for column in values.T]) / demos.steps
    extent = (-0.5, values.shape[1] - 0.5, *ends)
    image = axes.imshow(columns.T, origin="lower", aspect="auto", extent=extent, cmap="Blues", vmin=0)
    axes.set(title="Actions: share of the steps by value", xlabel="dimension", ylabel="value")
    figure.colorbar(image, ax=axes, label=f"share in a {BINS}th of the range", shrink=0.9)
    _whole_numbers(axes.xaxis)


def _value_range(demos: Demos, values: np.ndarray) -> tuple[float, float]:
    """Return the action bounds if they are known and finite, else the range of the data."""
    low, high = (getattr(demos.action_space, name, np.array(np.inf)) for name in ("low", "high"))
    if np.isfinite(low).all() and np.isfinite(high).all():
        return float(low.min()), float(high.max())
    return float(values.min()), float(values.max()) + (0.0 if values.min() < values.max() else 1.0)


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
