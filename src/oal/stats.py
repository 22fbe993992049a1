"""Means with confidence intervals."""

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
