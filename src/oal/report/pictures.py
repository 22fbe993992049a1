"""The report's charts as PNG and SVG files, in the house's style."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oal.base import plots
from oal.report import views
from oal.report.charts import Chart, IntervalChart, LineChart, short
from oal.report.groups import Group
from oal.report.summary import Aggregate, worth_drawing

DASHES = ("-", "--", ":", "-.")
RULES = {"expert": "--", "random": ":"}


def draw(stem: Path, groups: Sequence[Group], aggregates: Sequence[Aggregate]) -> list[Path]:
    """Draw learning curves and aggregates beside a report; return the PNG files (an SVG stands beside each)."""
    made = []
    for kind in views.CURVE_TITLES:
        if found := views.learning_curves(groups, kind):
            titled = {chart.title: chart for chart in found.values()}
            made.append(_picture(stem.with_name(f"{stem.name}-{kind}"), titled, width=4.4))
    for each in worth_drawing(aggregates):
        name = each.measure.replace("'", "").replace(" ", "-")
        found, height = views.aggregate_charts(each), 0.4 * len(each.estimates) + 2.2
        made.append(_picture(stem.with_name(f"{stem.name}-{name}"), found, width=3.4, height=height))
    return made


def _picture(path: Path, found: Mapping[str, Chart], *, width: float, height: float = 3.6) -> Path:
    with plots.picture(path, columns=len(found), width=width, height=height) as axes:
        for one, (title, chart) in zip(np.ravel(axes), found.items(), strict=True):
            _lines(one, chart) if isinstance(chart, LineChart) else _intervals(one, chart)
            one.set(title=title, xlabel=chart.x_label)
    return Path(f"{path}.png")


def _style(place: int) -> dict[str, Any]:
    """Return the colour of the algorithm at a place, and dashes once the colours are used up."""
    again, colour = divmod(place, len(plots.COLOURS))
    return {"color": plots.COLOURS[colour], "ls": DASHES[again % len(DASHES)]}


def _lines(axes: Any, chart: LineChart) -> None:
    for series in chart.series:
        style = _style(series.place)
        axes.plot(series.x, series.y, label=series.label, **style)
        axes.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.2, lw=0)
    named = set()
    for rule in chart.rules:
        label = None if rule.label in named else rule.label
        axes.axhline(rule.y, color="black", ls=RULES[rule.style], lw=1, label=label)
        named.add(rule.label)
    axes.set(ylabel=chart.y_label, ylim=chart.y_bounds)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.legend(fontsize=7)


def _intervals(axes: Any, chart: IntervalChart) -> None:
    for row, (_, place, (value, low, high)) in enumerate(chart.rows):
        colour = _style(place)["color"]
        axes.barh(row, high - low, left=low, color=colour, alpha=0.5, height=0.6)
        axes.plot([value, value], [row - 0.4, row + 0.4], color=colour, lw=2)
    if chart.mark is not None:
        axes.axvline(chart.mark, color="black", ls="--", lw=1)
    axes.use_sticky_edges = False
    axes.set(xlim=chart.bounds)
    axes.set_yticks(range(len(chart.rows)), [label for label, _, _ in chart.rows], fontsize=7)
    axes.invert_yaxis()
