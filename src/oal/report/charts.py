"""Charts as inline SVG. Colours and lines come from the page's style sheet, values under the pointer from JSON."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.base.plots import COLOURS
from oal.report.statistics import Interval

Array = NDArray[np.float64]

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 60, 18, 12, 44
# Charts of rows: the width of their labels, and the height of a row.
LABELS, INTERVAL_ROW, BAR_ROW = 150, 26, 18


@dataclass(frozen=True)
class Series:
    """One line with its interval; `place` is its algorithm's place in the list of all algorithms."""

    label: str
    place: int
    x: Array
    y: Array
    low: Array
    high: Array
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A horizontal line across the chart, such as the expert's return."""

    label: str
    y: float
    style: str = "expert"


@dataclass(frozen=True)
class LineChart:
    """Lines with intervals, at least up to `x_end`."""

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    x_end: float = -math.inf
    rules: Sequence[Rule] = ()
    y_bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class IntervalChart:
    """One row per estimate (label, place, interval): a point with its interval. `mark` is a line to compare with."""

    title: str
    rows: Sequence[tuple[str, int, Interval]]
    x_label: str
    bounds: tuple[float, float] | None = None
    mark: float | None = None


Chart = LineChart | IntervalChart


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, drawn from `start` to `end` (in the units of the picture)."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: ArrayLike) -> Array:
        share = (np.asarray(value, dtype=np.float64) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def classes(place: int) -> str:
    """Return the style classes of the algorithm at a place: a colour, and dashes once the colours are used up."""
    return f"s{place % len(COLOURS)} d{place // len(COLOURS) % 4}"


def short(value: float) -> str:
    """Write a number for an axis or a table: 1,234 or 0.123, and 150k for round thousands."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 10_000 and value % 1_000 == 0:
        whole = f"{value / 1e6:g}M" if value % 100_000 == 0 and abs(value) >= 1e6 else f"{value / 1e3:,.0f}k"
        return whole.replace("-", "−")
    if abs(value) >= 1e7:
        return f"{value:.3g}".replace("-", "−")
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}").replace("-", "−")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between two bounds: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if span / (factor * power) <= count)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # Multiples, not sums: errors do not pile up, and zero is zero.
    return [round(place * step, 12) for place in range(first, last + 1)]


def _bounds(values: Iterable[ArrayLike], *, margin: float = 0.05) -> tuple[float, float]:
    """Return bounds around all finite values, never empty."""
    flat = np.concatenate([np.ravel(np.asarray(each, dtype=np.float64)) for each in values])
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return 0.0, 1.0
    low, high = float(flat.min()), float(flat.max())
    span = (high - low) or max(abs(high), 1.0)
    return low - margin * span, high + margin * span


def _runs_of(present: NDArray[np.bool_]) -> list[slice]:
    """Return the stretches in which a mask is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], present, [False]]).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _points(x: Array, y: Array) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _line(series: Series, across: Axis, up: Axis) -> str:
    """Draw the interval as an area and the mean as a line, with gaps where there is no value."""
    parts = []
    x = across.at(series.x)
    for part in _runs_of(np.isfinite(series.low) & np.isfinite(series.high)):
        there, back = _points(x[part], up.at(series.high[part])), _points(x[part][::-1], up.at(series.low[part])[::-1])
        parts.append(f'<polygon class="band {classes(series.place)}" points="{there} {back}"/>')
    for part in _runs_of(np.isfinite(series.y)):
        points = _points(x[part], up.at(series.y[part]))
        if part.stop - part.start == 1:
            cx, cy = points.split(",")
            parts.append(f'<circle class="dot {classes(series.place)}" cx="{cx}" cy="{cy}" r="2.5"/>')
        else:
            parts.append(f'<polyline class="line {classes(series.place)}" points="{points}"/>')
    return "".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "middle", style: str = "tick", turn: str = "") -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(text)}</text>'


def _straight(style: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    return f'<line class="{style}" x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="{y[0]:.1f}" y2="{y[1]:.1f}"/>'


def _across(across: Axis, up: Axis, label: str) -> str:
    """Draw the horizontal axis: grid, numbers and label."""
    parts = []
    for value in ticks(across.low, across.high):
        x = float(across.at(value))
        parts += [_straight("grid", (x, x), (up.end, up.start)), _text(x, up.start + 16, short(value))]
    parts.append(_text((across.start + across.end) / 2, up.start + 36, label, style="axis"))
    return "".join(parts)


def _up(across: Axis, up: Axis, label: str) -> str:
    """Draw the vertical axis."""
    parts = []
    for value in ticks(up.low, up.high):
        y = float(up.at(value))
        parts += [
            _straight("grid", (across.start, across.end), (y, y)),
            _text(across.start - 6, y + 4, short(value), anchor="end"),
        ]
    parts.append(_text(13, (up.start + up.end) / 2, label, style="axis", turn="-90"))
    return "".join(parts)


def _svg(title: str, height: float, content: str, *, style: str = "chart", data: str = "") -> str:
    return (
        f'<svg class="{style}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"{data}>'
        f"{content}</svg>"
    )


def _hover(chart: LineChart, across: Axis, up: Axis) -> str:
    """Return what the page's script needs to show values under the pointer, as JSON for an attribute."""

    def listed(values: Array) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]

    data = {
        "label": chart.x_label,
        "x": [across.low, across.high, across.start, across.end],
        "y": [up.low, up.high, up.start, up.end],
        "rules": [{"label": rule.label, "y": float(f"{rule.y:.5g}"), "style": rule.style} for rule in chart.rules],
        "series": [
            {
                "label": each.label,
                "style": classes(each.place),
                "x": listed(each.x),
                "y": listed(each.y),
                "low": listed(each.low),
                "high": listed(each.high),
                "notes": list(each.notes),
            }
            for each in chart.series
        ],
    }
    return escape(json.dumps(data, separators=(",", ":"), allow_nan=False))


def svg(chart: Chart) -> str:
    """Draw a chart for the page."""
    return _line_chart(chart) if isinstance(chart, LineChart) else _interval_chart(chart)


def _line_chart(chart: LineChart) -> str:
    """Draw lines with intervals. The pointer shows the values at its place (see page.js)."""
    series, rules = chart.series, chart.rules
    xs = [each.x for each in series]
    right = max(chart.x_end, *(float(x.max()) for x in xs))
    left = min(0.0, *(float(x.min()) for x in xs))
    across = Axis(left, right if right > left else left + 1, LEFT, WIDTH - RIGHT)
    ys = [part for each in series for part in (each.y, each.low, each.high)]
    up = Axis(*(chart.y_bounds or _bounds([*ys, [rule.y for rule in rules]])), HEIGHT - BOTTOM, TOP)
    ends = (across.start, across.end)
    heights = [float(up.at(rule.y)) for rule in rules]
    drawn = [_straight(f"rule {rule.style}", ends, (y, y)) for rule, y in zip(rules, heights, strict=True)]
    drawn += [_line(each, across, up) for each in series]
    cursor = f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    data = f' data-chart="{_hover(chart, across, up)}"'
    content = _across(across, up, chart.x_label) + _up(across, up, chart.y_label) + "".join(drawn) + cursor
    return _svg(chart.title, HEIGHT, content, style="chart lines", data=data)


def _clipped(text: str, letters: int = 24) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _interval_chart(chart: IntervalChart) -> str:
    height = TOP + INTERVAL_ROW * len(chart.rows) + BOTTOM
    marked = [] if chart.mark is None else [chart.mark]
    low, high = chart.bounds or _bounds([*(interval for _, _, interval in chart.rows), marked])
    across = Axis(low, high, LABELS, WIDTH - RIGHT)
    up = Axis(0, 1, height - BOTTOM, TOP)
    parts = [_across(across, up, chart.x_label)]
    places = [float(across.at(value)) for value in marked]
    parts += [_straight("rule expert", (x, x), (up.end, up.start)) for x in places]
    for number, (label, place, interval) in enumerate(chart.rows):
        y = TOP + INTERVAL_ROW * (number + 0.5)
        value, left, right = (float(across.at(each)) for each in interval)
        parts.append(_text(LABELS - 8, y + 4, _clipped(label), anchor="end"))
        if interval.known:
            parts.append(_rectangle(place, (left, right), y, 14, f"{label}: {written(interval)}"))
        parts.append(_straight(f"line {classes(place)}", (value, value), (y - 9, y + 9)))
    return _svg(chart.title, height, "".join(parts))


def bar_chart(title: str, labels: Sequence[str], values: Array, *, place: int, x_label: str) -> str:
    """Draw one bar per label for the mean over seeds, and a dot for each seed. `values` is [labels, seeds]."""
    height = TOP + BAR_ROW * len(labels) + BOTTOM
    across = Axis(*_bounds([values, [0.0]]), LABELS, WIDTH - RIGHT)
    up = Axis(0, 1, height - BOTTOM, TOP)
    zero = float(across.at(0.0))
    parts = [_across(across, up, x_label)]
    for number, (label, seeds) in enumerate(zip(labels, values, strict=True)):
        y = TOP + BAR_ROW * (number + 0.5)
        mean = float(seeds.mean())
        ends = sorted((zero, float(across.at(mean))))
        parts.append(_text(LABELS - 8, y + 4, _clipped(label), anchor="end"))
        parts.append(_rectangle(place, (ends[0], ends[1]), y, 12, f"{label}: {mean:.4g}"))
        parts += [
            f'<circle class="dot {classes(place)}" cx="{float(across.at(one)):.1f}" cy="{y}" r="2"/>'
            for one in seeds
            if seeds.size > 1
        ]
    parts.append(_straight("zero", (zero, zero), (up.end, up.start)))
    return _svg(title, height, "".join(parts))


def _rectangle(place: int, ends: tuple[float, float], y: float, height: float, title: str) -> str:
    width = max(ends[1] - ends[0], 0.5)
    return (
        f'<rect class="bar {classes(place)}" x="{ends[0]:.1f}" width="{width:.1f}" y="{y - height / 2}" '
        f'height="{height}"><title>{escape(title)}</title></rect>'
    )


def written(interval: Interval, digits: int = 2) -> str:
    """Write an estimate with its interval: 0.97 [0.93, 1.00]."""
    value = f"{interval.value:z.{digits}f}"
    if interval.known:
        value += f" [{interval.low:z.{digits}f}, {interval.high:z.{digits}f}]"
    return value.replace("-", "−")


def swatch(place: int) -> str:
    """Return a short piece of an algorithm's line."""
    return (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">'
        f'<line class="line {classes(place)}" x1="1" x2="27" y1="5" y2="5"/></svg>'
    )


def legend(algorithms: Sequence[str]) -> str:
    """Name the colours of the algorithms, once for many charts."""
    named = "".join(f"<li>{swatch(place)}{escape(name)}</li>" for place, name in enumerate(algorithms))
    return f'<ul class="legend">{named}</ul>'
