"""Means with confidence intervals, and what resampling and permuting need."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.errors import InputError

Array = NDArray[np.float64]


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
        # a single value has no interval
        return f"{self.mean:.3f}" + ("" if math.isnan(self.half_width) else f" ± {self.half_width:.3f}")


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
    freedom = satterthwaite(variances, [x.size - 1 for x in samples])
    error = float(np.sqrt(variances.sum())) / len(pairs)
    return Mean(value, float(t.ppf(0.5 + level / 2, freedom)) * error, n)


def satterthwaite(variances: ArrayLike, degrees: Sequence[int]) -> Array:
    """Return the degrees of freedom of a sum over the first axis of independent estimates of variance.

    Infinity where all are 0.
    """
    variances = np.asarray(variances, dtype=np.float64)
    squares = np.tensordot(1.0 / np.asarray(degrees), variances**2, axes=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(squares > 0, variances.sum(axis=0) ** 2 / squares, math.inf)


def student_widening(level: float, degrees: float) -> float:
    """Return how much wider Student's interval is than the normal one."""
    from scipy.stats import norm, t

    if not math.isfinite(degrees):
        return 1.0
    upper = 0.5 + level / 2
    return float(t.ppf(upper, max(degrees, 1.0)) / norm.ppf(upper))


def resampled_shares(rng: np.random.Generator, draws: int, size: int, count: int) -> Array:
    """Draw `draws` of `size` items with replacement, `count` times: the share of each [count, size]."""
    return rng.multinomial(draws, np.full(size, 1.0 / size), size=count) / draws


def permutation_p_value(
    statistic: Callable[[NDArray[np.int64], NDArray[np.int64]], Array],
    first: int,
    size: int,
    *,
    permutations: int,
    rng: np.random.Generator,
) -> float:
    """Return how often `size` items that are dealt anew into `first` and the rest differ as much as the actual ones.

    `statistic` takes the items of both sides [k, first], [k, size - first] and gives k numbers, large for a large
    difference; it must know the items by nothing but their side. Actually the first items are the first side. The
    p-value is exact, and never 0: all ways to deal are tried if there are no more than `permutations`.
    """
    from scipy.stats import permutation_test

    items = np.arange(size)
    sides = items[:first], items[first:]
    value = float(statistic(*(side[None] for side in sides))[0])

    def tied(mine: Any, theirs: Any, axis: int) -> Array:
        found = statistic(*(np.atleast_2d(side).astype(np.int64) for side in (mine, theirs)))
        # rounding must not part equal values
        found = np.where(np.isclose(found, value, rtol=1e-9, atol=1e-21), value, found)
        return found.reshape(np.shape(mine)[:-1])

    test = permutation_test(
        sides, tied, vectorized=True, n_resamples=permutations, alternative="greater", axis=-1, rng=rng
    )
    return float(test.pvalue)
