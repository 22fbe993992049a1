"""Seeds until a comparison is decided, by a rule that is fixed in advance and honest about looking more than once.

The numbers of seeds at which a comparison is looked at are fixed before the first run: K looks, each at half as many
seeds more. At each look the interval of the difference has the level 1 - 0.05/K (Bonferroni over looks), and the first
look whose interval decides ends it. All K intervals hold together with a probability of 95 %, whatever the rule makes
of them and whenever it stops: so a verdict errs, and the interval that is reported misses the difference, in at most
5 % of comparisons. The price is width: with four looks 98.75 % in place of 95 %.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oal.base.stats import Mean, difference_interval
from oal.errors import InputError, at_least

UNDECIDED = "undecided"
LEVEL = 0.95

Sample = Mapping[int, float]
"""One number for each seed, on one task."""


@dataclass(frozen=True)
class Looks:
    """When a comparison is looked at: the numbers of seeds, growing."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("seeds of the first look", self.sizes[0], 2)
        if any(later <= earlier for earlier, later in itertools.pairwise(self.sizes)):
            raise InputError(f"the looks are at {self.sizes} seeds: each needs more than the one before it")

    @classmethod
    def planned(cls, first: int, most: int) -> "Looks":
        """Look first at so many seeds, then at half as many more each time, and last at the most."""
        at_least("the most seeds", most, first)
        sizes = [first]
        while sizes[-1] < most:
            sizes.append(min(most, math.ceil(1.5 * sizes[-1])))
        return cls(tuple(sizes))

    @property
    def level(self) -> float:
        """The level of each look's interval; that of all of them together is 95 %."""
        return 1.0 - (1.0 - LEVEL) / len(self.sizes)


class Seen(NamedTuple):
    """What the looks so far say of one comparison."""

    difference: Mean
    verdict: str
    seeds: int
    """Of each side, on each task."""
    looks: int
    """How many were taken; 0: there are too few seeds for the first."""
    following: int | None
    """Seeds at the next look; None if it is decided, or the last look was taken."""


def look(looks: Looks, first: Sequence[Sample], second: Sequence[Sample], rule: Callable[[Mean], str]) -> Seen:
    """Take the looks that the seeds allow, up to the first that decides; both sides are one sample per task.

    A look at n seeds is of the seeds 0 to n - 1, and of no others: which seeds are there does not depend on what they
    showed.
    """
    samples = [*first, *second]
    seen: Seen | None = None
    for number, size in enumerate(looks.sizes, start=1):
        if not all(seed in sample for sample in samples for seed in range(size)):
            break
        sides = [[[sample[seed] for seed in range(size)] for sample in side] for side in (first, second)]
        difference = difference_interval(sides[0], sides[1], level=looks.level)
        verdict = rule(difference)
        last = verdict != UNDECIDED or number == len(looks.sizes)
        seen = Seen(difference, verdict, size, number, None if last else looks.sizes[number])
        if verdict != UNDECIDED:
            break
    if seen is not None:
        return seen
    sides = [[list(sample.values()) for sample in side] for side in (first, second)]
    everything = difference_interval(sides[0], sides[1])
    seeds = min(len(sample) for sample in samples)
    unknown = Mean(everything.mean, math.nan, everything.n)
    return Seen(unknown, UNDECIDED, seeds, 0, looks.sizes[0])
