"""What the terminal shows: progress bars and tables. Rich is imported when something is shown."""

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's control and format characters, lone surrogates and separators of lines."""


def printable(text: Any, *, keep: str = "\n\t") -> str:
    """Return text as a terminal may show it: control characters (but for `keep`) are written out, as in \\x1b.

    Names come from files, and a stranger's could otherwise move the cursor, forge lines or set the window's title.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if letter not in keep and unicodedata.category(letter) in _INVISIBLE
        else letter
        for letter in text
    )


def say(text: Any, *, err: bool = False) -> None:
    """Print a message on stdout or stderr; see `printable`."""
    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


def counted(n: int, one: str, many: str = "") -> str:
    """Return "1 run", "2 runs"; the plural is made with an s unless given."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


@contextmanager
def progress(text: str, total: int, *, enabled: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr; yield the function (steps, note="") that advances it, from any thread.

    Without a terminal nothing is drawn, so logs stay readable.
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda steps, note="": None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=12),  # with phase, numbers and note it fits into 80 columns
        bars.MofNCompleteColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(printable(text, keep=""), total=total, note="")
        yield lambda steps, note="": bar.update(task, advance=steps, note=note)


class Board:
    """A table on stderr that is redrawn in place, with messages above it; without a terminal, only the messages.

    Use it as a context: at the end the table is gone, and the messages stay.
    """

    def __init__(self, columns: Sequence[str], *, enabled: bool = True) -> None:
        self._columns, self._enabled = columns, enabled
        self._live: Any = None

    def __enter__(self) -> "Board":
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def live(self) -> bool:
        """Whether a table is drawn."""
        return self._live is not None

    def say(self, text: str) -> None:
        """Print a message."""
        if self._live is not None:
            self._live.console.print(printable(text), markup=False, highlight=False)
        elif self._enabled:
            say(text, err=True)

    def show(self, rows: Sequence[Sequence[Any]], caption: str) -> None:
        """Draw the table again."""
        if self._live is not None:
            self._live.update(_grid(self._columns, rows, caption=caption, caption_justify="left"))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout; numbers are set to the right."""
    from rich.console import Console
    from rich.text import Text

    Console().print(_grid(columns, rows, title=Text(printable(title, keep="")), title_justify="left"))


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]], **options: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table(**options)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        grid.add_column(Text(printable(column, keep="")), justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*(f"{x:.4g}" if isinstance(x, float) else Text(printable(x)) for x in row))
    return grid
