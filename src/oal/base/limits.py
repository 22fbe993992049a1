"""Limits for untrusted files: how much they may make us allocate, and how damage is reported."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from oal.errors import InputError, shortened

DEFLATE_MAX_RATIO = 1040
"""Deflate cannot expand by more than 1032; LZF and shuffling stay far below."""


@dataclass(frozen=True)
class Budget:
    """How many bytes of arrays a file may unpack to: `floor` + `ratio` times its size, at most `ceiling`."""

    floor: int = 64 << 20
    ratio: int = 64
    ceiling: int = 4 << 30

    def of(self, file_bytes: int) -> int:
        return min(self.floor + self.ratio * file_bytes, self.ceiling)


DEFAULT_BUDGET = Budget()

MAX_EPISODES = 1 << 17
MAX_TEXT = 8 << 20
"""Characters of JSON; what they say takes some twenty times as many bytes in memory."""


def check_episodes(where: str, count: int) -> None:
    """Refuse more episodes than a file may hold, before an object is made for each."""
    if count > MAX_EPISODES:
        raise InputError(f"{where} has {count} episodes: at most {MAX_EPISODES} are read")


_RAISED_BY_LIBRARIES = (
    *(OSError, EOFError, LookupError, ValueError, TypeError, AttributeError),
    *(RuntimeError, ArithmeticError, AssertionError, struct.error),
)


@contextmanager
def damage(message: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what libraries raise on a damaged file, and `more` of it, into an InputError with the message."""
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{message} (it does not fit into memory)") from None
    except (*_RAISED_BY_LIBRARIES, *more) as error:
        raise InputError(f"{message} ({shortened(str(error), 200)})") from None
