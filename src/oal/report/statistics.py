"""Statistics of a few seeds on a few tasks, after Agarwal et al. 2021, "Deep RL at the edge of the statistical
precipice".

Scores are one array per task whose *last* axis runs over the seeds; tasks may have different numbers of seeds. Leading
axes (points of a curve, resamples of a bootstrap) are carried along, so every estimator is also its own bootstrap. With
equally many seeds everywhere the estimators are those of the library rliable. The intervals are not: they are made to
hold with three seeds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.base.stats import satterthwaite
from oal.errors import InputError

Array = NDArray[np.float64]
Scores = Sequence[Array]
Estimator = Callable[[Scores], Array]

LEVEL = 0.95
REPLICATIONS = 10_000
MOST_NUMBERS = 4_000_000
"""Numbers of resampled scores that are in memory at a time."""
MANY_RUNS = 50
"""With more runs than so many, fewer replications: the limits move less from one to the next."""


class Interval(NamedTuple):
    """An estimate with its confidence limits; the limits are NaN where one seed leaves them unknown."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


class Band(NamedTuple):
    """The same for every point of a curve."""

    value: Array
    low: Array
    high: Array


# Estimators ----------------------------------------------------------------------------------------------------------


def task_means(scores: Scores) -> Array:
    """Return [tasks, ...]: the mean over seeds of each task."""
    return np.stack([task.mean(axis=-1) for task in scores])


def mean(scores: Scores) -> Array:
    """Return the mean over tasks of the mean over seeds."""
    return task_means(scores).mean(axis=0)


def median(scores: Scores) -> Array:
    """Return the median over tasks of the mean over seeds."""
    return np.median(task_means(scores), axis=0)


def interquartile_mean(scores: Scores) -> Array:
    """Return the mean of the middle half of all runs, pooled over tasks (a task with more seeds weighs more)."""
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    runs = pooled.shape[-1]
    cut = int(0.25 * runs)
    return pooled[..., cut : runs - cut].mean(axis=-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> Array:
    """Return by how much runs fall short of the target on average; what lies above it earns nothing."""
    return target - mean([np.minimum(task, target) for task in scores])


def profile(scores: Scores, thresholds: Array) -> Array:
    """Return [..., thresholds]: the share of runs whose score is above each threshold."""
    above = [(task[..., None, :] > thresholds[:, None]).astype(np.float64) for task in scores]
    return mean(above)


def improvement(first: Scores, second: Scores) -> Array:
    """Return the probability that a run of the first beats one of the second on the same task; a draw counts half."""
    return np.mean([_wins(x, y).mean(axis=(-2, -1)) for x, y in zip(first, second, strict=True)], axis=0)


def _wins(x: Array, y: Array) -> Array:
    """Return [..., i, j]: 1 where run i of the first is better than run j of the second, 0.5 for a draw."""
    return (np.sign(x[..., :, None] - y[..., None, :]) + 1) / 2


AGGREGATES: dict[str, Estimator] = {
    "mean": mean,
    "median": median,
    "inter-quartile mean": interquartile_mean,
    "optimality gap": optimality_gap,
}


# Intervals that hold with few seeds ----------------------------------------------------------------------------------


def resample(scores: Scores, replications: int, rng: np.random.Generator) -> list[Array]:
    """Draw seeds with replacement within each task: arrays [..., seeds] become [..., replications, seeds].

    The points of a curve are resampled together, since a seed is one whole run.
    """
    return [task[..., chosen] for task, chosen in zip(scores, _chosen(scores, replications, rng), strict=True)]


def _chosen(scores: Scores, replications: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Draw which seeds each replication takes, [replications, seeds] for each task."""
    return [rng.integers(task.shape[-1], size=(replications, task.shape[-1])) for task in scores]


def _enough(replications: int, *scores: Scores) -> int:
    """Return how many of the replications asked for are made of so many runs, so that the work has a bound."""
    runs = max(sum(task.shape[-1] for task in each) for each in scores)
    return min(replications, max(1_000, replications * MANY_RUNS // max(runs, MANY_RUNS)))


def rescaled(scores: Scores, drawn: Scores) -> list[Array]:
    """Move what was drawn away from each task's mean by sqrt(n / (n - 1)) (Rao and Wu 1988).

    Resamples of n seeds vary by (n - 1)/n of what fresh seeds would: this makes their variance unbiased.
    """
    moved = []
    for task, resamples in zip(scores, drawn, strict=True):
        middle, n = task.mean(axis=-1)[..., None, None], task.shape[-1]
        moved.append(middle + np.sqrt(n / (n - 1)) * (resamples - middle))
    return moved


def known(scores: Scores) -> bool:
    """Tell whether every task has two seeds; a task with one says nothing of its spread."""
    return all(task.shape[-1] > 1 for task in scores)


def band(estimator: Estimator, scores: Scores, *, replications: int = 1_000, seed: int = 0) -> Band:
    """Return an estimate, of one number or [points], with its pointwise 95 % interval; scores are [points, seeds].

    The interval is Student's, with the standard error of a stratified and rescaled bootstrap and Satterthwaite's
    degrees of freedom: of a mean it is the usual one. Percentiles of a bootstrap, which are usual in this field, cover
    72 % instead of 95 % with three seeds.
    """
    from scipy.stats import t

    value = estimator(scores)
    if not known(scores):
        return Band(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    rng, replications = np.random.default_rng(seed), _enough(replications, scores)
    chosen = _chosen(scores, replications, rng)
    # a thousand runs of many points each would fill the memory if all replications were made at once
    rows = max(1, MOST_NUMBERS // max(sum(task.size for task in scores), 1))
    parts = []
    for at in range(0, replications, rows):
        drawn = [task[..., index[at : at + rows]] for task, index in zip(scores, chosen, strict=True)]
        parts.append(estimator(rescaled(scores, drawn)))
    error = np.concatenate(parts, axis=-1).std(axis=-1)
    variances = np.stack([task.var(axis=-1, ddof=1) / task.shape[-1] for task in scores])
    freedom = satterthwaite(variances, [task.shape[-1] - 1 for task in scores])
    half_width = t.ppf(0.5 + LEVEL / 2, freedom) * error
    return Band(value, value - half_width, value + half_width)


def interval(estimator: Estimator, scores: Scores, *, replications: int = REPLICATIONS, seed: int = 0) -> Interval:
    """Return one number with its 95 % interval."""
    found = band(estimator, scores, replications=replications, seed=seed)
    return Interval(*(float(part) for part in found))


def profile_band(scores: Scores, thresholds: Array) -> Band:
    """Return the performance profile with its pointwise 95 % interval, Wilson's for a share of runs.

    The share is a mean over tasks, whose variance is at most that of so many runs drawn alike: Σ_i 1/n_i tasks⁻² of
    p (1 - p).
    """
    value = profile(scores, thresholds)
    share = sum(1.0 / task.shape[-1] for task in scores) / len(scores) ** 2
    return Band(value, *_score_limits(value, lambda p: share * p * (1.0 - p)))


def improvement_interval(first: Scores, second: Scores) -> Interval:
    """Return the probability of improvement with its 95 % interval, Newcombe's (2006, method 5) for m and n runs.

    Among all p it holds those that lie within 1.96 standard errors of the estimate, with the standard error that p
    would have (Hanley and McNeil's, for exponential scores): it has a width also where every run beats every other.
    """
    value = improvement(first, second)
    sizes = [(x.shape[-1], y.shape[-1]) for x, y in zip(first, second, strict=True)]

    def variance(p: Array) -> Array:
        return np.mean([improvement_variance(p, m, n) for m, n in sizes], axis=0) / len(sizes)

    return Interval(float(value), *(float(limit) for limit in _score_limits(value, variance)))


def improvement_variance(p: Array, m: int, n: int) -> Array:
    """Return p (1 - p) (1 + N (1 - p)/(2 - p) + N p/(1 + p)) / (m n) with N = (m + n)/2 - 1."""
    more = (m + n) / 2 - 1
    return p * (1 - p) * (1 + more * (1 - p) / (2 - p) + more * p / (1 + p)) / (m * n)


def _score_limits(value: Array, variance: Callable[[Array], Array], *, halvings: int = 40) -> tuple[Array, Array]:
    """Return the ends of {p: |value - p| <= z sqrt(variance(p))} around a share, by bisection."""
    from scipy.stats import norm

    z = norm.ppf(0.5 + LEVEL / 2)
    limits = []
    for end in (0.0, 1.0):
        inside, outside = np.asarray(value, np.float64), np.full_like(value, end)
        for _ in range(halvings):
            middle = (inside + outside) / 2
            within = np.abs(value - middle) <= z * np.sqrt(variance(middle))
            inside, outside = np.where(within, middle, inside), np.where(within, outside, middle)
        limits.append(inside)
    return limits[0], limits[1]


# Of one run's curve --------------------------------------------------------------------------------------------------


def normalised(returns: ArrayLike, *, random: float, expert: float) -> Array:
    """Return (return - random) / (expert - random): 0 is the random policy's return, 1 the expert's."""
    if not abs(expert - random) > 0:
        raise InputError(f"the expert's return {expert} equals the random policy's: nothing to normalise by")
    return (np.asarray(returns, dtype=np.float64) - random) / (expert - random)


def area(steps: Array, values: Array) -> float:
    """Return the mean of a curve over environment steps: the area under it divided by its length.

    A record tells of the steps since the record before it, so its value counts for those. A value that is missing (NaN:
    no episode ended) is that of the next record that has one, since its episodes were under way.
    """
    has = np.isfinite(values)
    if not has.any():
        return float("nan")
    at, values = steps[has], values[has]
    lengths = np.diff(at, prepend=0.0)
    # What follows the last value is known only from it.
    lengths[-1] += steps[-1] - at[-1]
    return float((lengths * values).sum() / lengths.sum())


def final(steps: Array, values: Array, *, share: float = 0.1) -> float:
    """Return the mean of the values in the last tenth of the steps, or the last value if none lies there.

    A record tells of the steps since the one before it, so the record at nine tenths of the way is not of the last one.
    """
    has = np.isfinite(values)
    if not has.any():
        return float("nan")
    at, values = steps[has], values[has]
    late = values[at > (1 - share) * steps[-1]]
    return float(late.mean() if late.size else values[-1])


def steps_to(steps: Array, values: Array, level: float) -> tuple[float, float]:
    """Return the environment steps at which a curve first reaches a level, and from which on it stays; inf if never."""
    has = np.isfinite(values)
    at, reached = steps[has], values[has] >= level
    if not reached.any():
        return float("inf"), float("inf")
    first = float(at[np.argmax(reached)])
    if not reached[-1]:
        return first, float("inf")
    below = np.flatnonzero(~reached)
    return first, float(at[below[-1] + 1] if below.size else at[0])
