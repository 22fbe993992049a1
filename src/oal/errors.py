"""The errors a user can cause. Each message names thing, value and fix; the CLI prints it and exits with 2."""

from collections.abc import Iterable
from importlib import import_module
from numbers import Integral
from typing import Any, TypeGuard, TypeVar

Option = TypeVar("Option", bound=str)


class InputError(ValueError):
    """Something the caller gave cannot be used: a file, a value, a name, a shape."""


class MissingExtraError(InputError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the package '{package}': install it with  pip install 'oal[{extra}]'")


def require(package: str, *, extra: str, needed_for: str) -> Any:
    """Import an optional package, or say which extra brings it."""
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra=extra, needed_for=needed_for) from None


def import_module_of(env_id: str) -> None:
    """Import the module of an id "module:Name-v0", which Gymnasium would do with a traceback where it fails."""
    module, colon, name = env_id.rpartition(":")
    if not colon:
        return
    try:
        if ":" in module or not name:
            raise ValueError("write it as module:Name-v0")
        import_module(module)
    except Exception as error:  # the module is the user's, and may raise anything
        raise InputError(
            f"environment '{env_id}': the module '{module}' cannot be imported "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error


def choice(name: str, value: str, allowed: Iterable[Option]) -> Option:
    """Return the one of `allowed` that `value` is; otherwise say what `name` may be."""
    options = list(allowed)
    for option in options:
        if option == value:
            return option
    raise InputError(f"{name} '{value}' is unknown: choose one of {', '.join(options)}")


def at_least(name: str, value: float, minimum: float) -> None:
    """Refuse a number below `minimum` (or NaN)."""
    if not value >= minimum:
        raise InputError(f"{name} is {value}: it must be at least {minimum:g}")


LARGE = 1 << 20
"""More of anything that is made at once, as the pairs of a batch, fails only when memory is taken for it."""


def at_most(name: str, value: float, maximum: float = LARGE) -> None:
    """Refuse a number above `maximum`: a file may ask for any."""
    if value > maximum:
        raise InputError(f"{name} is {shortened(value)}: it must be at most {maximum:,}")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number, of Python's or NumPy's; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(name: str, value: Any, minimum: int) -> int:
    """Return a whole number of at least `minimum` as Python's, or refuse it."""
    if not is_whole(value) or value < minimum:
        raise InputError(f"{name} is {value!r}: it must be a whole number, {minimum} or larger")
    return int(value)


def shortened(value: Any, limit: int = 60) -> str:
    """Return the `repr` of a value the user gave, cut so that it fits into a message."""
    try:
        shown = repr(value)
    except RecursionError:
        shown = f"a deeply nested {type(value).__name__}"
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
