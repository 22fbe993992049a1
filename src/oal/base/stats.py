"""Means with confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oal.errors import InputError


@dataclass(frozen=True)
class Mean:
    """A mean over `n` seeds and the half width of its confidence interval."""

    mean: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


def mean_interval(values: ArrayLike, level: float = 0.95) -> Mean:
    """Return the mean of independent values with Student's interval (no width for a single value is known: NaN)."""
    from scipy.stats import t

    x = np.asarray(values, dtype=np.float64).ravel()
    if x.size == 0:
        raise InputError("no values to average: at least one run is needed")
    if x.size == 1:
        return Mean(float(x[0]), float("nan"), 1)
    error = float(x.std(ddof=1) / np.sqrt(x.size))
    return Mean(float(x.mean()), float(t.ppf(0.5 + level / 2, x.size - 1)) * error, x.size)


def difference_interval(first: Sequence[ArrayLike], second: Sequence[ArrayLike], level: float = 0.95) -> Mean:
    """Return the mean over tasks of the difference of two independent samples' means, with Welch's interval.

    Both are one sample per task. The width is unknown (NaN) where some sample has a single value.
    """
    from scipy.stats import t

    pairs = [tuple(np.asarray(x, dtype=np.float64).ravel() for x in pair) for pair in zip(first, second, strict=True)]
    if not pairs or any(x.size == 0 for pair in pairs for x in pair):
        raise InputError("no values to compare: at least one run of each is needed on every task")
    value = float(np.mean([one.mean() - other.mean() for one, other in pairs]))
    samples = [x for pair in pairs for x in pair]
    n = sum(x.size for x in samples)
    if any(x.size == 1 for x in samples):
        return Mean(value, float("nan"), n)
    variances = np.array([x.var(ddof=1) / x.size for x in samples])
    if not variances.any():
        return Mean(value, 0.0, n)
    # Satterthwaite's degrees of freedom of a sum of variances
    freedom = variances.sum() ** 2 / np.sum(variances**2 / [x.size - 1 for x in samples])
    error = float(np.sqrt(variances.sum())) / len(pairs)
    return Mean(value, float(t.ppf(0.5 + level / 2, freedom)) * error, n)
