"""Check arrays against the shapes that the annotations of their class say; the package itself loads no jaxtyping."""

import typing
from typing import Any

import jaxtyping


def check_shapes(record: Any) -> None:
    """Refuse a record (a dataclass or a named tuple) with an array of another type or shape than annotated.

    The same letter stands for the same size in all of its fields.
    """
    hints = typing.get_type_hints(type(record), localns=vars(jaxtyping))
    with jaxtyping.jaxtyped("context"):
        # plain names bind first, so that sums such as T+1 can be evaluated
        for name, hint in sorted(hints.items(), key=lambda item: "+" in str(item[1])):
            if "ndarray" in str(hint):
                value = getattr(record, name)
                shown = f"{value.dtype}{value.shape}" if hasattr(value, "shape") else repr(value)
                assert isinstance(value, hint), f"{type(record).__name__}.{name} is {shown}, annotated {hint}"
