"""Building blocks of a page. Text is escaped unless it is known to be HTML already."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML and must not be escaped again."""

    __slots__ = ()


def safe(value: Any) -> Html:
    """Return a value as HTML: escaped, unless it is HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *content: Any, **attributes: Any) -> Html:
    """Return an element. In the names of attributes a trailing underscore is lost, any other becomes a dash."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(map(safe, content))}</{name}>")


def joined(parts: Iterable[Any], separator: str = "\n") -> Html:
    return Html(separator.join(map(safe, parts)))


def items(parts: Iterable[Any], **attributes: Any) -> Html:
    return tag("ul", *(tag("li", part) for part in parts), **attributes)


@dataclass(frozen=True)
class Number:
    """A table cell for numbers, which does not wrap."""

    content: Any


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cards: bool = False) -> Html:
    """Return a table. On a narrow screen it scrolls sideways; with `cards` each row becomes a card instead."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = joined(tag("tr", *(_cell(column, cell) for column, cell in zip(columns, row, strict=True))) for row in rows)
    style = "cards" if cards else "scroll"
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_=style)


def _cell(column: str, cell: Any) -> Html:
    if isinstance(cell, Number):
        return tag("td", tag("div", cell.content), class_="number", data_column=column)
    return tag("td", tag("div", cell), data_column=column)


def figure(caption: Any, *content: Any) -> Html:
    return tag("figure", tag("figcaption", caption), *content)


def folded(title: Any, *content: Any) -> Html:
    return tag("details", tag("summary", title), *content)
