"""A paper's statements, decided by the confidence interval of a difference.

One convention for all of them: a difference is how much better the first of a pair did than the second (regret saved,
return gained), so a positive one speaks for the first. An interval of unknown width, that of one seed, decides nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from oal.base.stats import Mean


def ahead(d: "Mean") -> str:
    """The first is better."""
    return "holds" if d.low > 0 else "fails" if d.high < 0 else "undecided"


def at_least(d: "Mean", margin: float) -> str:
    """The first is no worse than the second by more than a margin."""
    return "holds" if d.low >= -margin else "fails" if d.high < -margin else "undecided"


def alike(d: "Mean", margin: float) -> str:
    """The two differ by less than a margin."""
    if d.low >= -margin and d.high <= margin:
        return "holds"
    return "fails" if d.low > margin or d.high < -margin else "undecided"


def unlike(d: "Mean", margin: float) -> str:
    """The two differ at all; it fails only if they differ by less than a margin."""
    if d.low > 0 or d.high < 0:
        return "holds"
    return "fails" if alike(d, margin) == "holds" else "undecided"


def saved(first: "ArrayLike", second: "ArrayLike", *, paired: bool = True) -> "Mean":
    """Return how much less regret the first has than the second: in pairs over the seeds that both have, or apart."""
    import numpy as np

    from oal.base.stats import difference_interval, mean_interval

    first, second = np.asarray(first), np.asarray(second)
    if not paired:
        return difference_interval([second], [first])
    shared = min(first.size, second.size)
    return mean_interval(second[:shared] - first[:shared])


@dataclass(frozen=True)
class Claim:
    """A statement about one comparison, and what the interval of the difference says of it."""

    claim: str
    where: str
    difference: "Mean"
    verdict: str
    seeds: int | None = None
    """Of each side, on each task, at least; None where it is said elsewhere."""
    looks: str = ""
    """How often was looked of how often at most; more than once widens the interval (`oal.lab.looks`)."""

    @property
    def row(self) -> dict[str, Any]:
        d = self.difference
        more = {} if self.seeds is None else {"seeds": self.seeds, "looks": self.looks}
        return {
            "claim": self.claim,
            "where": self.where,
            "difference": round(d.mean, 4),
            # one seed has no interval
            "low": "" if math.isnan(d.low) else round(d.low, 4),
            "high": "" if math.isnan(d.high) else round(d.high, 4),
            "verdict": self.verdict,
            **more,
        }


@dataclass(frozen=True)
class Statement:
    """What a figure is said to show: pairs along one axis, compared wherever another axis has the same value."""

    text: str
    axis: str
    pairs: tuple[tuple[Any, Any], ...]
    """The first of each pair is the one that the statement favours."""
    held: str
    """The axis whose value both sides share."""
    rule: "Callable[[Mean], str]" = ahead
    at: tuple[Any, ...] | None = None
    """The values of the held axis that it speaks of; None: all."""
    paired: bool = True
    """Compare seed by seed; otherwise as independent samples, with all the seeds that only one side has."""

    def decided(self, where: str, difference: "Mean") -> Claim:
        return Claim(self.text, where, difference, self.rule(difference))
