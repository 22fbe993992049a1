"""One look for all pictures: a figure with the house's style, saved as PNG and SVG."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oal.base.files import replacing

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Names come from files: a dollar sign in one is a dollar sign, and no formula that may not even parse.
    "text.parse_math": False,
    # Nor is it LaTeX, whatever a matplotlibrc in the current folder says.
    "text.usetex": False,
    # The same data gives the same file.
    "svg.hashsalt": "oal",
}


def _label_plainly(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers: Matplotlib's own labels are formulas, which are not parsed here."""

    def between(x: float, _: Any) -> str:
        low, high = axis.get_view_interval()
        return f"{x:g}" if high < 30 * low and f"{x:e}"[0] in "25" else ""

    axis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set_minor_formatter(between)


@contextmanager
def picture(
    path: str | os.PathLike[str], *, rows: int = 1, columns: int = 1, width: float = 5.0, height: float = 3.6
) -> Iterator[Any]:
    """Yield rows and columns of axes (one if 1); at the end save `path`.png and `path`.svg. No screen is used."""
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns)
        yield axes
        for axis in (axis for one in figure.axes for axis in (one.xaxis, one.yaxis) if axis.get_scale() == "log"):
            _label_plainly(axis)
        for suffix in (".png", ".svg"):
            metadata = {"Date": None} if suffix == ".svg" else {}
            with replacing(Path(f"{path}{suffix}")) as temporary:
                figure.savefig(temporary, metadata=metadata)
