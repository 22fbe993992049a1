"""The report's charts as PNG and SVG files, in the house's style."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oal.base import plots
from oal.report import charts, curves
from oal.report.groups import Group, algorithms, tasks
from oal.report.results import Kind
from oal.report.summary import DRAWN_ESTIMATORS, Aggregate, worth_drawing

Y_LABELS: dict[Kind, str] = {"behaviour": "return while learning", "evaluation": "evaluation return"}


def draw(stem: Path, groups: Sequence[Group], aggregates: Sequence[Aggregate]) -> list[Path]:
    """Draw learning curves and aggregates beside a report; return the PNG files (an SVG stands beside each)."""
    made = []
    for kind in Y_LABELS:
        if any(run.has(kind) for group in groups for run in group.runs):
            made.append(_curves(stem.with_name(f"{stem.name}-{kind}"), groups, kind))
    for each in worth_drawing(aggregates):
        name = each.measure.replace("'", "").replace(" ", "-")
        made.append(_aggregate(stem.with_name(f"{stem.name}-{name}"), each))
    return made


def _style(names: Sequence[str], name: str) -> dict[str, Any]:
    place = names.index(name)
    dashes = ("-", "--", ":", "-.")
    return {"color": plots.COLOURS[place % len(plots.COLOURS)], "ls": dashes[place // len(plots.COLOURS) % len(dashes)]}


def _axes_of(axes: Any, columns: int) -> list[Any]:
    return [axes] if columns == 1 else list(axes)


def _curves(path: Path, groups: Sequence[Group], kind: Kind) -> Path:
    names, shown = algorithms(groups), tasks(groups)
    with plots.picture(path, columns=len(shown), width=4.4) as axes:
        for one, task in zip(_axes_of(axes, len(shown)), shown, strict=True):
            members = [group for group in groups if group.task == task]
            for group in members:
                if curve := curves.learning_curve(group, kind):
                    style = _style(names, group.algorithm)
                    one.plot(curve.steps, curve.band.value, label=group.algorithm, **style)
                    one.fill_between(
                        curve.steps, curve.band.low, curve.band.high, color=style["color"], alpha=0.2, lw=0
                    )
            experts = {run.expert_return for group in members for run in group.runs}
            for place, value in enumerate(sorted(value for value in experts if math.isfinite(value))):
                one.axhline(value, color="black", ls="--", lw=1, label="expert" if place == 0 else None)
            one.set(title=task, xlabel="environment steps", ylabel=Y_LABELS[kind])
            one.xaxis.set_major_formatter(lambda step, _: charts.short(step))
            one.legend(fontsize=7)
    return Path(f"{path}.png")


def _aggregate(path: Path, each: Aggregate) -> Path:
    names = list(each.estimates)
    with plots.picture(path, columns=len(DRAWN_ESTIMATORS) + 1, width=3.4, height=0.4 * len(names) + 2.2) as axes:
        for one, (estimator, label) in zip(axes, DRAWN_ESTIMATORS.items(), strict=False):
            for row, name in enumerate(names):
                value, low, high = each.estimates[name][estimator]
                colour = _style(names, name)["color"]
                one.barh(row, high - low, left=low, color=colour, alpha=0.5, height=0.6)
                one.plot([value, value], [row - 0.4, row + 0.4], color=colour, lw=2)
            one.use_sticky_edges = False
            one.set(title=estimator, xlabel=label)
            one.set_yticks(range(len(names)), names if one is axes[0] else [""] * len(names))
            one.invert_yaxis()
        for name in names:
            style = _style(names, name)
            profile = each.profiles[name]
            axes[-1].plot(each.thresholds, profile.value, label=name, **style)
            axes[-1].fill_between(each.thresholds, profile.low, profile.high, color=style["color"], alpha=0.2, lw=0)
        axes[-1].set(title="performance profile", xlabel="normalised return", ylabel="share of runs above")
        axes[-1].legend(fontsize=7)
    return Path(f"{path}.png")
