"""Frozen dataclasses of settings: made from JSON, changed by dotted names, and never with an unknown field."""

import dataclasses
import json
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from oal.errors import InputError, choice, shortened

Settings = TypeVar("Settings")


def build(cls: type[Settings], values: Mapping[str, Any], *, name: str) -> Settings:
    """Make a dataclass from a JSON object; an unknown field is an error that lists the known ones."""
    if not isinstance(values, Mapping):  # what a file holds in this place may be anything
        raise InputError(f"the {name} settings are {shortened(values)}: an object with names and values is needed")
    return _replace(cls, {}, values, name)


def changed(settings: Settings, values: Mapping[str, Any], *, name: str) -> Settings:
    """Return settings with some fields changed."""
    current = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}  # pyright: ignore
    return _replace(type(settings), current, values, name)


def _replace(cls: type[Settings], current: Mapping[str, Any], values: Mapping[str, Any], name: str) -> Settings:
    fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore
    arguments = dict(current)
    for key, value in values.items():
        choice(f"{name} setting", key, fields)
        arguments[key] = _like(fields[key], value, f"{name}.{key}")
    try:
        return cls(**arguments)
    except TypeError as error:
        raise InputError(f"the {name} settings cannot be read ({error})") from None


_UNFIT = object()


def _like(field: dataclasses.Field, value: Any, name: str) -> Any:
    """Make a value what the field's annotation says: JSON has no tuples, and 1 where 1.0 is meant."""
    annotation: Any = field.type
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    for kind in kinds:
        made = _made(kind, value)
        if made is not _UNFIT:
            return made
    called = {NoneType: "None", float: "a finite float"}
    words = " or ".join(called.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds)
    like = "" if field.default is dataclasses.MISSING else f", as in {field.default!r}"
    raise InputError(f"{name} is {value!r}: {words} is needed{like}")


def _made(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Literal:  # which words are allowed is for the dataclass to say
        return value if isinstance(value, str) else _UNFIT
    if get_origin(kind) is tuple:
        items = [_made(get_args(kind)[0], item) for item in value] if isinstance(value, (list, tuple)) else [_UNFIT]
        return _UNFIT if _UNFIT in items else tuple(items)
    if isinstance(value, bool) and kind is not bool:
        return _UNFIT
    if kind is float and isinstance(value, (int, float)):
        try:
            return float(value) if math.isfinite(value) else _UNFIT
        except OverflowError:  # a whole number beyond all floats
            return _UNFIT
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, kind) else _UNFIT


def parse(text: str) -> tuple[str, Any]:
    """Read `name=value`; the value is JSON where it can be (numbers, true, null, lists), None, or otherwise text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"'{text}' is not a setting: write name=value, as in policy.kl_weight=0.1")
    try:
        return name.strip(), json.loads(value)
    except json.JSONDecodeError:
        # None is null as the Python of the docs spells it
        return name.strip(), None if value.strip() == "None" else value.strip()
