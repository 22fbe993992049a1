"""What the terminal shows: progress bars and tables. Rich is imported when something is shown."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(text: str, total: int, *, enabled: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr; yield the function (steps, note="") that advances it, from any thread.

    Without a terminal nothing is drawn, so logs stay readable.
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda steps, note="": None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total, note="")
        yield lambda steps, note="": bar.update(task, advance=steps, note=note)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout; numbers are set to the right."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        grid.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row))
    Console().print(grid)
