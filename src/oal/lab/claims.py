"""A paper's statements, decided by confidence intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oal.base.stats import Mean, mean_interval


@dataclass(frozen=True)
class Claim:
    """A statement, and what the interval of a difference says of it."""

    claim: str
    where: str
    difference: Mean
    verdict: str

    @property
    def row(self) -> dict[str, Any]:
        d = self.difference
        return {
            "claim": self.claim,
            "where": self.where,
            "difference": round(d.mean, 4),
            # one seed has no interval
            "low": "" if np.isnan(d.low) else round(d.low, 4),
            "high": "" if np.isnan(d.high) else round(d.high, 4),
            "verdict": self.verdict,
        }


def decide(claim: str, where: str, lower: ArrayLike, higher: ArrayLike) -> Claim:
    """Decide "lower < higher" by the interval of their difference over the seeds they share."""
    d = mean_interval(np.asarray(lower) - np.asarray(higher))
    verdict = "holds" if d.high < 0 else "fails" if d.low > 0 else "undecided"
    return Claim(claim, where, d, verdict)


def decide_equal(claim: str, where: str, one: ArrayLike, other: ArrayLike, *, margin: float) -> Claim:
    """Decide "equal within a margin" by the interval of the difference of two independent samples."""
    a, b = mean_interval(one), mean_interval(other)
    d = Mean(a.mean - b.mean, float(np.hypot(a.half_width, b.half_width)), min(a.n, b.n))
    verdict = "holds" if max(abs(d.low), abs(d.high)) <= margin else "fails" if abs(d.mean) > margin else "undecided"
    return Claim(claim, where, d, verdict)


# Verdicts on a difference that speaks for the claim where it is positive; an unknown width decides nothing


def ahead(d: Mean) -> str:
    """The first is better."""
    return "holds" if d.low > 0 else "fails" if d.high < 0 else "undecided"


def at_least(d: Mean, margin: float) -> str:
    """The first is no worse than the second by more than a margin."""
    return "holds" if d.low >= -margin else "fails" if d.high < -margin else "undecided"


def alike(d: Mean, margin: float) -> str:
    """The two differ by less than a margin."""
    if d.low >= -margin and d.high <= margin:
        return "holds"
    return "fails" if d.low > margin or d.high < -margin else "undecided"


def unlike(d: Mean, margin: float) -> str:
    """The two differ at all; it fails only if they differ by less than a margin."""
    if d.low > 0 or d.high < 0:
        return "holds"
    return "fails" if alike(d, margin) == "holds" else "undecided"
