"""Draw who imports whom: layers as rows, packages as boxes with their modules, arrows between packages.

    python tools/import_graph.py        writes docs/house.png, docs/house.svg and docs/house.txt

docs/house.txt is the same graph as text; a test compares it with the source.
"""

import itertools
import textwrap
from pathlib import Path
from typing import NamedTuple

from house import LAYERS, package_graph, packages
from oal.base import plots
from oal.base.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, LINE, GAP, LETTER = 100.0, 2.1, 5.0, 0.78
"""Of the page, of a line of text, between layers and of a letter, in one unit."""
SPANS = {
    "linear": (0, 20),
    "lab": (24, 62),
    "interop": (66, 100),
    "tabular": (0, 27),
    "deep": (31, 73),
    "demos": (31, 73),
    "envs": (31, 73),
    "report": (77, 100),
    "base": (19, 100),
    "equations": (0, 27),
    "errors": (31, 100),
}
"""Where boxes begin and end, so that arrows go past those they do not concern; the others take the whole width."""


class Box(NamedTuple):
    layer: int
    left: float
    right: float
    bottom: float
    top: float
    lines: list[str]


def text() -> str:
    """Return the graph as text, from the highest layer down."""
    lines = ["Packages of oal, from the highest layer down; each line: what is in it -> what it imports."]
    inside, used = packages(), package_graph()
    for number, units in reversed(list(enumerate(LAYERS, start=1))):
        lines += ["", f"layer {number}"]
        for name in units:
            content = f" ({', '.join(inside[name])})" if inside[name] else ""
            lines.append(f"  {name}{content} -> {', '.join(sorted(used[name])) or 'nothing'}")
    return "\n".join(lines) + "\n"


def direct(used: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Leave out the arrows that follow from others: a -> c where a -> b -> c."""

    def reached(name: str) -> set[str]:
        return used[name] | {far for near in used[name] for far in reached(near)}

    return [
        (name, other)
        for name in used
        for other in sorted(used[name])
        if not any(other in reached(near) for near in used[name] - {other})
    ]


def draw(path: Path) -> None:
    """Write the picture as PNG and SVG."""
    from matplotlib.patches import FancyBboxPatch

    boxes = place(packages())
    height = max(box.top for box in boxes.values())
    with plots.picture(path, width=9.0, height=9.0 * height / WIDTH) as axes:
        axes.set(xlim=(-1, WIDTH + 1), ylim=(-1, height + 1), aspect="equal")
        axes.axis("off")
        for name, box in boxes.items():
            look = {"boxstyle": "round,pad=0,rounding_size=1", "facecolor": "#eef4fa", "edgecolor": plots.COLOURS[0]}
            axes.add_patch(FancyBboxPatch((box.left, box.bottom), box.right - box.left, box.top - box.bottom, **look))
            middle, top = (box.left + box.right) / 2, box.top - 1.1 * LINE
            words = {"ha": "center", "va": "center"}
            axes.text(middle, top, name, weight="bold", fontsize=10, **words)
            for i, line in enumerate(box.lines, start=1):
                axes.text(middle, top - (i + 0.2) * LINE, line, fontsize=8, **words)
        for start, end in direct(package_graph()):
            *way, last = _way(boxes, start, end)
            axes.plot(*zip(*way, strict=True), color="0.35", lw=1.1, zorder=0)
            axes.annotate(
                "",
                last,
                xytext=way[-1],
                arrowprops={"arrowstyle": "-|>", "color": "0.35", "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
                zorder=0,
            )


def place(inside: dict[str, list[str]]) -> dict[str, Box]:
    """Place a box for each package, the layers from the bottom up."""
    boxes: dict[str, Box] = {}
    bottom = 0.0
    for layer, units in enumerate(LAYERS):
        spans = {name: SPANS.get(name, (0, WIDTH)) for name in units}
        lines = {
            name: textwrap.wrap(", ".join(inside[name]), int((right - left) / LETTER) - 3, break_on_hyphens=False)
            for name, (left, right) in spans.items()
        }
        top = bottom + (max(map(len, lines.values())) + 2.2) * LINE
        boxes |= {name: Box(layer, *map(float, spans[name]), bottom, top, lines[name]) for name in units}
        bottom = top + GAP
    return boxes


def _way(boxes: dict[str, Box], start: str, end: str) -> list[tuple[float, float]]:
    """Return the corners of an arrow: straight down where nothing is in between, else aside first."""
    upper, lower = boxes[start], boxes[end]
    between = [box for box in boxes.values() if lower.layer < box.layer < upper.layer]
    straight = _free(max(upper.left, lower.left), min(upper.right, lower.right), between)
    if straight is not None:
        return [(straight, upper.bottom), (straight, lower.top)]
    aside = _free(lower.left, lower.right, between)
    assert aside is not None, f"no way from {start} to {end}: change SPANS"
    begin, bend = upper.left + 4 if aside < upper.left else upper.right - 4, upper.bottom - GAP / 2
    return [(begin, upper.bottom), (begin, bend), (aside, bend), (aside, lower.top)]


def _free(left: float, right: float, between: list[Box]) -> float | None:
    """Return the middle of the widest stretch that no box covers."""
    cuts = sorted({left, right, *(edge for box in between for edge in (box.left, box.right) if left < edge < right)})
    free = [
        (low, high)
        for low, high in itertools.pairwise(cuts)
        if not any(box.left < high and low < box.right for box in between)
    ]
    return None if not free else sum(max(free, key=lambda stretch: stretch[1] - stretch[0])) / 2


if __name__ == "__main__":
    draw(DOCS / "house")
    write_text(DOCS / "house.txt", text())
