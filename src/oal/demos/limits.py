"""How much a file from a stranger may make us allocate."""

from dataclasses import dataclass

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
