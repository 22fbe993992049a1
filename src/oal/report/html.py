"""Building blocks of a page. Text is escaped unless it is known to be HTML already."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML and must not be escaped again."""

    __slots__ = ()


def safe(value: Any) -> Html:
    """Return a value as HTML: escaped, unless it is HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *content: Any, **attributes: Any) -> Html:
    """Return an element. Attribute names with a trailing underscore lose it (`class_`)."""
    given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(map(safe, content))}</{name}>")


def joined(parts: Iterable[Any], separator: str = "\n") -> Html:
    return Html(separator.join(map(safe, parts)))


def items(parts: Iterable[Any], **attributes: Any) -> Html:
    return tag("ul", *(tag("li", part) for part in parts), **attributes)


def table(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table that scrolls sideways by itself where the page is narrow."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = joined(tag("tr", *(cell if is_cell(cell) else tag("td", cell) for cell in row)) for row in rows)
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll")


def number(*content: Any) -> Html:
    """Return a table cell for numbers, which does not wrap."""
    return tag("td", *content, class_="number")


def is_cell(value: Any) -> bool:
    return isinstance(value, Html) and value.startswith("<td")


def figure(caption: Any, *content: Any) -> Html:
    return tag("figure", tag("figcaption", caption), *content)


def folded(title: Any, *content: Any) -> Html:
    return tag("details", tag("summary", title), *content)
