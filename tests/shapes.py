"""Check arrays against the shapes that annotations say; the package itself loads no jaxtyping."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union

import jaxtyping

from oal.deep import arrays
from oal.deep.replay import Pairs

# optax says of its states only that they are trees of arrays
NAMES = {"ArrayTree": Any, **vars(jaxtyping), **vars(arrays)}
OWN_SIZES = (Pairs,)
"""Records whose letters are their own: there may be more pairs of the expert than of the learner."""
Part = tuple[str, Any, Any]
"""The name of a value, the value, and what its annotation says it is: one or several kinds of arrays or other types."""


def check_shapes(record: Any) -> None:
    """Refuse a record (a dataclass or a named tuple) with an array of another type or shape than annotated.

    The same letter stands for the same size in all of its fields.
    """
    with jaxtyping.jaxtyped("context"):
        _check(_parts(type(record).__name__, record, type(record)))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that arguments and result are checked, with one size for each letter in all of them.

    Records are checked by the annotations of their fields; the members of a sequence, such as layers, differ in size.
    """
    hints, signature = typing.get_type_hints(function, localns=NAMES), inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        with jaxtyping.jaxtyped("context"):
            _check(part for name in given if name in hints for part in _parts(name, given[name], hints[name]))
            result = function(*args, **kwargs)
            _check(_parts("the result", result, hints["return"]))
        return result

    return wrapped


def _check(parts: Iterator[Part]) -> None:
    # plain letters bind first, so that sums such as T+1 can be evaluated
    for name, value, kinds in sorted(parts, key=lambda part: any(sign in str(part[2]) for sign in "+*")):
        shown = f"{value.dtype}{value.shape}" if hasattr(value, "shape") else repr(value)
        assert any(isinstance(value, kind) for kind in kinds), f"{name} is {shown}, annotated {kinds}"


def _parts(name: str, value: Any, hint: Any) -> Iterator[Part]:
    """Find the arrays in a value, as far as its annotation names their shapes."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in of if kind is not type(None)]
        if _is_record(type(value)) or (value is not None and len(kinds) == 1):
            yield from _parts(name, value, type(value) if _is_record(type(value)) else kinds[0])
        elif any(_is_array(each) for each in of):
            yield name, value, tuple(each for each in of if isinstance(each, type))
    elif _is_array(hint):
        yield name, value, (hint,)
    elif origin is tuple and Ellipsis not in of:
        for i, (each, kind) in enumerate(zip(value, of, strict=True)):
            yield from _parts(f"{name}[{i}]", each, kind)
    elif origin in (tuple, list, Sequence):
        for i, each in enumerate(value):
            with jaxtyping.jaxtyped("context"):
                _check(_parts(f"{name}[{i}]", each, of[0]))
    elif origin in (dict, Mapping):
        for key, each in value.items():
            yield from _parts(f"{name}[{key!r}]", each, of[1])
    elif _is_record(hint):
        assert isinstance(value, hint), f"{name} is a {type(value).__name__}, annotated {hint}"
        kinds = typing.get_type_hints(type(value), localns=NAMES)
        fields = [(f"{name}.{each}", getattr(value, each), kinds[each]) for each in _fields(value)]
        if isinstance(value, OWN_SIZES):
            with jaxtyping.jaxtyped("context"):
                _check(part for field in fields for part in _parts(*field))
        else:
            yield from (part for field in fields for part in _parts(*field))


def _is_array(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind))


def _fields(record: Any) -> Sequence[str]:
    return getattr(record, "_fields", None) or [field.name for field in dataclasses.fields(record)]
