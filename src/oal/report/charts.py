"""Charts as inline SVG. Colours and lines come from the page's style sheet; numbers for hovering ride along as JSON."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.plots import COLOURS
from oal.report.statistics import Interval

Array = NDArray[np.float64]

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 12, 42


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


def _axes(across: Axis, up: Axis, x_label: str, y_label: str, *, y_ticks: bool = True) -> str:
    parts = []
    if y_ticks:
        for value in ticks(up.low, up.high):
            y = float(up.at(value))
            parts.append(f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{across.start - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
            )
    for value in ticks(across.low, across.high):
        x = float(across.at(value))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{up.end}" y2="{up.start}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{up.start + 16}" text-anchor="middle">{short(value)}</text>')
    middle = (across.start + across.end) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{up.start + 34}" text-anchor="middle">{escape(x_label)}</text>')
    if y_label:
        y = (up.start + up.end) / 2
        parts.append(
            f'<text class="axis" transform="translate(12 {y}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
        )
    return "".join(parts)


def _hover(series: Sequence[Series], rules: Sequence[Rule], across: Axis, up: Axis, x_label: str) -> str:
    """Return what the page's script needs to show values under the pointer, as JSON for an attribute."""

    def listed(values: Array) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]

    data = {
        "label": x_label,
        "x": [across.low, across.high, across.start, across.end],
        "y": [up.low, up.high, up.start, up.end],
        "rules": [{"label": rule.label, "y": float(f"{rule.y:.5g}"), "style": rule.style} for rule in rules],
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
            for each in series
        ],
    }
    return escape(json.dumps(data, separators=(",", ":"), allow_nan=False))


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    rules: Sequence[Rule] = (),
    y_bounds: tuple[float, float] | None = None,
) -> str:
    """Draw lines with intervals. The pointer shows the values at its place (see page.js)."""
    xs = [each.x for each in series]
    right = max(float(x.max()) for x in xs)
    left = min(0.0, *(float(x.min()) for x in xs))
    across = Axis(left, right if right > left else left + 1, LEFT, WIDTH - RIGHT)
    ys = [part for each in series for part in (each.y, each.low, each.high)]
    up = Axis(*(y_bounds or _bounds([*ys, [rule.y for rule in rules]])), HEIGHT - BOTTOM, TOP)
    drawn = "".join(
        f'<line class="rule {rule.style}" x1="{across.start}" x2="{across.end}" '
        f'y1="{float(up.at(rule.y)):.1f}" y2="{float(up.at(rule.y)):.1f}"/>'
        for rule in rules
    )
    lines = "".join(_line(each, across, up) for each in series)
    return (
        f'<svg class="chart lines" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'data-chart="{_hover(series, rules, across, up, x_label)}">'
        f'{_axes(across, up, x_label, y_label)}{drawn}{lines}<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        "</svg>"
    )


def _clipped(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def interval_chart(
    title: str,
    rows: Sequence[tuple[str, int, Interval]],
    *,
    x_label: str,
    bounds: tuple[float, float] | None = None,
    mark: float | None = None,
) -> str:
    """Draw one row per estimate: a point with its interval. `mark` is a dashed line to compare with."""
    row, label_width = 26, 150
    height = TOP + row * len(rows) + BOTTOM
    marked = [] if mark is None else [mark]
    low, high = bounds or _bounds([*(interval for _, _, interval in rows), marked])
    across = Axis(low, high, label_width, WIDTH - RIGHT)
    up = Axis(0, 1, height - BOTTOM, TOP)
    parts = [_axes(across, up, x_label, "", y_ticks=False)]
    for value in marked:
        x = float(across.at(value))
        parts.append(f'<line class="rule expert" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    for place, (label, colour, interval) in enumerate(rows):
        y = TOP + row * (place + 0.5)
        value, left, right = (float(across.at(number)) for number in interval)
        parts.append(
            f'<text class="tick" x="{label_width - 8}" y="{y + 4}" text-anchor="end">{escape(_clipped(label, 24))}</text>'
        )
        if math.isfinite(left) and math.isfinite(right):
            parts.append(
                f'<rect class="bar {classes(colour)}" x="{left:.1f}" width="{max(right - left, 0.5):.1f}" y="{y - 7}" '
                'height="14"/>'
            )
        parts.append(
            f'<line class="line {classes(colour)}" x1="{value:.1f}" x2="{value:.1f}" y1="{y - 9}" y2="{y + 9}">'
            f"<title>{escape(f'{label}: {written(interval)}')}</title></line>"
        )
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def bar_chart(title: str, labels: Sequence[str], values: Array, *, place: int, x_label: str) -> str:
    """Draw one bar per label for the mean over seeds, and a dot for each seed. `values` is [labels, seeds]."""
    row, label_width = 18, 150
    height = TOP + row * len(labels) + BOTTOM
    low, high = _bounds([values, [0.0]])
    across = Axis(low, high, label_width, WIDTH - RIGHT)
    up = Axis(0, 1, height - BOTTOM, TOP)
    zero = float(across.at(0.0))
    parts = [_axes(across, up, x_label, "", y_ticks=False)]
    for number, (label, seeds) in enumerate(zip(labels, values, strict=True)):
        y = TOP + row * (number + 0.5)
        mean = float(seeds.mean())
        end = float(across.at(mean))
        parts.append(
            f'<text class="tick" x="{label_width - 8}" y="{y + 4}" text-anchor="end">{escape(_clipped(label, 24))}</text>'
            f'<rect class="bar {classes(place)}" x="{min(zero, end):.1f}" width="{abs(end - zero):.1f}" y="{y - 6}" '
            f'height="12"><title>{escape(f"{label}: {mean:.4g}")}</title></rect>'
        )
        parts += [
            f'<circle class="dot {classes(place)}" cx="{float(across.at(one)):.1f}" cy="{y}" r="2"/>'
            for one in seeds
            if seeds.size > 1
        ]
    parts.append(f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def written(interval: Interval, digits: int = 2) -> str:
    """Write an estimate with its interval: 0.97 [0.93, 1.00]."""
    value = f"{interval.value:.{digits}f}"
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        value += f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
    return value.replace("-", "−")


def legend(algorithms: Sequence[str]) -> str:
    """Name the colours of the algorithms, once for many charts."""
    items = "".join(
        f'<li><svg viewBox="0 0 28 10" aria-hidden="true"><line class="line {classes(place)}" x1="1" x2="27" y1="5" '
        f'y2="5"/></svg>{escape(name)}</li>'
        for place, name in enumerate(algorithms)
    )
    return f'<ul class="legend">{items}</ul>'
