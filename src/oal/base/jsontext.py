"""Read JSON that somebody else may have written, and check the types of what it says: all that can fail is InputError.

Beyond being valid, a text is of bounded length and depth, its whole numbers have a bounded number of digits (Python's
own limit costs seconds), and its strings can be printed and written again (no lone surrogates). Where a name is there
twice, the last one counts, as in every other reader.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

from oal.base.limits import MAX_TEXT
from oal.errors import InputError, shortened

MAX_DEPTH = 100
MAX_DIGITS = 100

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a dictionary",
}

T = TypeVar("T")


def parse(
    where: str,
    text: str | bytes,
    *,
    max_characters: int = MAX_TEXT,
    not_finite: Literal["kept", "null", "refused"] = "kept",
) -> Any:
    """Return the JSON value in `text`; `where` names file and field. NaN and Infinity, no JSON, are as `not_finite`."""
    if len(text) > max_characters:
        raise InputError(f"{where} is {len(text)} characters long: at most {max_characters} are read")
    try:
        # both ways, bytes and what other libraries give as text are checked to be valid Unicode
        text = text.decode("utf-8") if isinstance(text, bytes) else text.encode("utf-8").decode("utf-8")
    except UnicodeError as error:
        raise InputError(f"{where} is not valid text ({error})") from None
    try:
        value = _DECODERS[not_finite].decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error})") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise InputError(f"{where} is not valid JSON for us (it is nested more than {MAX_DEPTH} deep)")
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeError:
            raise InputError(f"{where} is not valid text (it holds half of a character)") from None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits: at most {MAX_DIGITS} are read")
    return int(digits)


_DECODERS = {
    "kept": json.JSONDecoder(parse_int=_whole),
    "null": json.JSONDecoder(parse_int=_whole, parse_constant=lambda _: None),
    "refused": json.JSONDecoder(parse_int=_whole, parse_constant=_refuse),
}


def _deeper(value: Any, depth: int) -> bool:
    """Whether a value is nested deeper than `depth`; level by level, so that depth costs no stack."""
    level = [value]
    for _ in range(depth):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(part for part in each.values() if isinstance(part, (dict, list)))
            elif isinstance(each, list):
                inner.extend(part for part in each if isinstance(part, (dict, list)))
        level = inner
        if not level:
            return False
    return True


@overload
def expect(value: Any, name: str, kind: type[T]) -> T: ...
@overload
def expect(value: Any, name: str, kind: type[T], *, or_none: Literal[True]) -> T | None: ...
def expect(value: Any, name: str, kind: type[T], *, or_none: bool = False) -> T | None:
    """Return `value` if it is of a JSON type, or refuse it; `name` names file and field.

    A whole number is a float too; true and false are neither.
    """
    if value is None and or_none:
        return None
    allowed = (int, float) if kind is float else (kind,)
    if type(value) not in allowed:  # not isinstance, for which true and false are whole numbers
        wanted = _NAMES.get(kind, kind.__name__) + (" or null" if or_none else "")
        raise InputError(f"{name} is {shortened(value)}: it must be {wanted}")
    return value


def field(where: str, table: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a field that a dictionary must have; `where` names the file and the dictionary."""
    if name not in table:
        raise InputError(f"{where}: '{name}' is missing")
    return expect(table[name], f"{where}: {name}", kind)
