"""Frozen dataclasses of settings: made from JSON, changed by dotted names, and never with a field nobody knows."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from oal.errors import InputError, choice

Settings = TypeVar("Settings")


def build(cls: type[Settings], values: Mapping[str, Any], *, name: str) -> Settings:
    """Make a dataclass from a JSON object; an unknown field is an error that lists the known ones."""
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


def _like(field: dataclasses.Field, value: Any, name: str) -> Any:
    """Check a value against the field's default: JSON has no tuples, and whole numbers where fractions are meant."""
    default = field.default
    if isinstance(value, list):
        value = tuple(value)
    if default is dataclasses.MISSING or default is None or value is None or isinstance(value, type(default)):
        if isinstance(default, int) and not isinstance(default, bool) and isinstance(value, bool):
            raise InputError(f"{name} is {value}: a number is needed")
        if value is None and default is not None and "None" not in str(field.type):
            raise InputError(f"{name} cannot be None")
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, int) and not isinstance(default, bool) and isinstance(value, float) and value.is_integer():
        return int(value)
    raise InputError(f"{name} is {value!r}: {type(default).__name__} is needed, as in {default!r}")


def parse(text: str) -> tuple[str, Any]:
    """Read `name=value`; the value is JSON where it can be (numbers, true, null, lists), otherwise text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"'{text}' is not a setting: write name=value, as in policy.kl_weight=0.1")
    try:
        return name.strip(), json.loads(value)
    except json.JSONDecodeError:
        return name.strip(), value.strip()
