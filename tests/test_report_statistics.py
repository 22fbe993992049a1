"""Statistics of the report: against rliable's numbers, slow obvious references, and laws."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from oal.errors import InputError
from oal.report import statistics

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())
ALGORITHMS = sorted(REFERENCE["scores"])


def scores_of(name: str) -> list[np.ndarray]:
    """Return one array per task; rliable's matrices are [seeds, tasks]."""
    return list(np.array(REFERENCE["scores"][name]).T)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("estimator", statistics.AGGREGATES)
def test_aggregates_equal_rliables(name, estimator):
    value = REFERENCE["aggregates"][name][estimator][0]
    assert_allclose(statistics.AGGREGATES[estimator](scores_of(name)), value, rtol=0, atol=1e-14)
    assert statistics.interval(statistics.AGGREGATES[estimator], scores_of(name)).value == pytest.approx(value)


@pytest.mark.parametrize("case", REFERENCE["improvement"], ids=lambda case: f"{case['first']}-{case['second']}")
def test_probability_of_improvement_equals_rliables(case):
    first, second = case["first"], case["second"]
    value = case["interval"][0]
    assert_allclose(statistics.improvement(scores_of(first), scores_of(second)), value, rtol=0, atol=1e-14)
    assert statistics.improvement_interval(scores_of(first), scores_of(second)).value == pytest.approx(value)


def test_performance_profile_equals_rliables():
    wanted = REFERENCE["profile"]
    thresholds = np.array(wanted["thresholds"])
    band = statistics.profile_band(scores_of(wanted["algorithm"]), thresholds)
    assert_allclose(band.value, wanted["value"], rtol=0, atol=1e-14)
    assert ((band.low >= 0) & (band.low <= band.value) & (band.value <= band.high) & (band.high <= 1)).all()


def test_aggregates_equal_rliable_itself():
    """The same on fresh numbers, where rliable is installed."""
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is not installed: its stored numbers are tested")
    theirs = {
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "inter-quartile mean": metrics.aggregate_iqm,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    rng = np.random.default_rng()
    for seeds, tasks in itertools.product((1, 2, 3, 7), (1, 2, 5)):
        x, y = rng.normal(0.8, 0.4, size=(2, seeds, tasks))
        for name, function in statistics.AGGREGATES.items():
            assert_allclose(function(list(x.T)), theirs[name](x), atol=1e-13)
        improvement = statistics.improvement(list(x.T), list(y.T))
        assert_allclose(improvement, metrics.probability_of_improvement(x, y), atol=1e-13)


# Intervals that hold with few seeds ----------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students():
    task = np.array([0.1, 0.5, 1.2])
    found = statistics.interval(statistics.mean, [task], replications=200_000)
    low, high = stats.t.interval(0.95, 2, loc=task.mean(), scale=stats.sem(task))
    assert (found.value, found.low, found.high) == pytest.approx((task.mean(), low, high), rel=0.01)


def test_the_interval_of_a_mean_over_tasks_is_that_of_the_claims():
    """Satterthwaite's, as in the difference to a side that is known exactly."""
    rng = np.random.default_rng(7)
    tasks = [rng.normal(1.0, scale, size=n) for scale, n in ((0.1, 3), (1.0, 5), (0.4, 4))]
    found = statistics.interval(statistics.mean, tasks, replications=100_000)
    variances = np.array([task.var(ddof=1) / task.size for task in tasks])
    freedom = variances.sum() ** 2 / sum(v**2 / (task.size - 1) for v, task in zip(variances, tasks, strict=True))
    half = stats.t.ppf(0.975, freedom) * np.sqrt(variances.sum()) / 3
    assert found.high - found.value == pytest.approx(half, rel=0.02)


def test_rescaled_resamples_equal_the_enumeration_of_all():
    """Three seeds have 27 resamples; rescaled, their means vary as the variance of a mean says."""
    task = np.array([0.1, 0.5, 1.2])
    every = np.array(list(itertools.product(task, repeat=3)))
    moved = statistics.rescaled([task], [every])[0]
    assert moved.mean(axis=1).var() == pytest.approx(task.var(ddof=1) / 3)
    assert moved.mean() == pytest.approx(task.mean())


def covering(band: statistics.Band, truth: float) -> float:
    return float(np.mean((band.low <= truth) & (truth <= band.high)))


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_what_they_say_with_few_seeds(seeds):
    """Of 4,000 simulated studies; percentiles of a bootstrap, for comparison, do not."""
    rng = np.random.default_rng(seeds)
    one = [rng.normal(size=(4_000, seeds))]
    three = [rng.normal(0.0, scale, size=(4_000, seeds)) for scale in (0.1, 0.5, 1.0)]
    assert covering(statistics.band(statistics.mean, one, replications=300), 0.0) == pytest.approx(0.95, abs=0.015)
    for estimator in (statistics.mean, statistics.interquartile_mean, statistics.median):
        assert covering(statistics.band(estimator, three, replications=300), 0.0) > 0.935
    percentiles = np.percentile(statistics.mean(statistics.resample(one, 300, rng)), [2.5, 97.5], axis=-1)
    usual = covering(statistics.Band(percentiles[0], *percentiles), 0.0)
    assert usual < {3: 0.80, 5: 0.87, 10: 0.92}[seeds]


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_of_shares_cover_with_few_seeds(seeds):
    rng = np.random.default_rng(seeds)
    for shift in (0.0, 1.0, 2.0):
        truth, found = stats.norm.cdf(shift / np.sqrt(2)), []
        for _ in range(150):
            better, worse = ([rng.normal(level, size=seeds) for _ in range(2)] for level in (shift, 0.0))
            found.append(statistics.improvement_interval(better, worse))
        assert np.mean([each.low <= truth <= each.high for each in found]) > 0.88
    for truth in (0.5, 0.8):
        at = np.array([stats.norm.ppf(1 - truth)])
        bands = [statistics.profile_band(list(rng.normal(size=(2, seeds))), at) for _ in range(200)]
        assert np.mean([band.low[0] <= truth <= band.high[0] for band in bands]) > 0.9


def test_score_intervals_equal_a_search_over_all_shares():
    rng = np.random.default_rng(11)
    grid = np.linspace(0, 1, 200_001)
    z = stats.norm.ppf(0.975)
    for m, n in ((3, 3), (3, 6), (8, 2)):
        x, y = rng.normal(0.5, size=m), rng.normal(size=n)
        found, value = statistics.improvement_interval([x], [y]), np.mean(x[:, None] > y)
        inside = grid[np.abs(value - grid) <= z * np.sqrt(statistics.improvement_variance(grid, m, n))]
        assert (found.low, found.high) == pytest.approx((inside[0], inside[-1]), abs=1e-4)
    runs = np.array([0.2, 0.4, 0.9])
    band = statistics.profile_band([runs], np.array([0.3]))
    wilson = stats.binomtest(2, 3).proportion_ci(method="wilson")
    assert (band.low[0], band.high[0]) == pytest.approx((wilson.low, wilson.high))


def test_tasks_are_resampled_independently():
    """With independent strata the variance of the mean over two equal tasks is half that of one."""
    task = np.random.default_rng(0).normal(size=6)
    rng = np.random.default_rng(1)
    one = statistics.mean(statistics.resample([task], 20_000, rng)).var()
    two = statistics.mean(statistics.resample([task, task], 20_000, rng)).var()
    assert two == pytest.approx(one / 2, rel=0.05)


def test_tasks_may_have_different_numbers_of_seeds():
    scores = [np.array([0.0, 1.0]), np.array([0.2, 0.4, 0.6, 0.8])]
    assert statistics.mean(scores) == pytest.approx(0.5)
    assert statistics.optimality_gap(scores) == pytest.approx(0.5)
    assert statistics.interquartile_mean(scores) == pytest.approx(np.mean([0.2, 0.4, 0.6, 0.8]))
    found = statistics.interval(statistics.mean, scores)
    assert found.low < found.value < found.high


def test_one_seed_has_no_interval():
    found = statistics.interval(statistics.mean, [np.array([0.4]), np.array([0.6])])
    assert found.value == pytest.approx(0.5)
    assert np.isnan([found.low, found.high]).all()
    mixed = statistics.interval(statistics.mean, [np.array([0.4]), np.array([0.6, 0.7])])
    assert not mixed.known, "a task with one seed says nothing of its spread"
    curve = statistics.band(statistics.mean, [np.array([[0.1], [0.2]])])
    assert_allclose(curve.value, [0.1, 0.2])
    assert np.isnan(curve.low).all()


def test_a_band_is_the_interval_of_every_point():
    values = np.random.default_rng(3).normal(size=(4, 5))
    band = statistics.band(statistics.mean, [values], replications=500)
    for place, row in enumerate(values):
        point = statistics.interval(statistics.mean, [row], replications=500)
        assert (band.value[place], band.low[place], band.high[place]) == pytest.approx(tuple(point))


def test_improvement_is_a_chance_and_its_opposite():
    rng = np.random.default_rng(5)
    x, y = [rng.normal(size=4) for _ in range(3)], [rng.normal(size=6) for _ in range(3)]
    forward, backward = statistics.improvement(x, y), statistics.improvement(y, x)
    assert forward + backward == pytest.approx(1)
    assert statistics.improvement(x, x) == pytest.approx(0.5)
    better = [each + 100 for each in x]
    certain = statistics.improvement_interval(better, y)
    assert certain.value == certain.high == 1
    assert 0.5 < certain.low < 0.95, "twelve wins of twelve do not prove that no run ever loses"


def test_replications_in_parts_are_those_made_at_once(monkeypatch):
    rng = np.random.default_rng(1)
    scores = [rng.normal(size=(5, n)) for n in (4, 9)]
    whole = statistics.band(statistics.interquartile_mean, scores, replications=301)
    monkeypatch.setattr(statistics, "MOST_NUMBERS", 7 * sum(task.size for task in scores))
    for found, expected in zip(
        statistics.band(statistics.interquartile_mean, scores, replications=301), whole, strict=True
    ):
        assert_allclose(found, expected, rtol=0, atol=0)


def test_many_runs_are_resampled_less_often():
    few, many = [np.zeros((20,))] * 2, [np.zeros((400,))]
    assert statistics._enough(10_000, few) == 10_000
    assert statistics._enough(100_000, few) == 100_000
    assert statistics._enough(10_000, few, many) == 1_250
    assert statistics._enough(10_000, [np.zeros(10_000)]) == 1_000
    assert statistics._enough(200, [np.zeros(10_000)]) == 200


def test_normalised_returns():
    assert_allclose(statistics.normalised([-50, 0, 150], random=-50, expert=150), [0, 0.25, 1])
    with pytest.raises(InputError, match="nothing to normalise by"):
        statistics.normalised([1.0], random=3, expert=3)


STEPS = np.arange(1_000.0, 11_000.0, 1_000.0)
NAN = np.nan


@pytest.mark.parametrize(
    "values, first, stays",
    [
        ([0, 0, 0, 1, 1, 1, 1, 1, 1, 1], 4_000, 4_000),
        ([0, 0, 1, 0, 1, 1, 1, 1, 1, 1], 3_000, 5_000),
        ([0, 0, 1, 0, 1, 1, 1, 1, 1, 0], 3_000, np.inf),
        ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0], np.inf, np.inf),
        ([1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 1_000, 1_000),
        ([0, NAN, NAN, 1, NAN, NAN, NAN, 1, NAN, NAN], 4_000, 4_000),
        ([NAN] * 10, np.inf, np.inf),
    ],
)
def test_steps_to_a_level(values, first, stays):
    assert statistics.steps_to(STEPS, np.array(values, dtype=float), 0.9) == (first, stays)


@pytest.mark.parametrize(
    "values, area, final",
    [
        ([1.0] * 10, 1.0, 1.0),
        ([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], 0.5, 1.0),
        ([0, NAN, NAN, NAN, 1, 1, 1, 1, 1, 1], 0.9, 1.0),
        ([0, 0, 0, 0, 0, 0, 0, 0, 1, NAN], 0.2, 1.0),
        ([NAN] * 10, NAN, NAN),
    ],
)
def test_area_and_final(values, area, final):
    values = np.array(values, dtype=float)
    assert statistics.area(STEPS, values) == pytest.approx(area, nan_ok=True)
    assert statistics.final(STEPS, values) == pytest.approx(final, nan_ok=True)


def test_the_final_value_is_a_mean_over_the_last_tenth():
    steps = np.arange(1.0, 101.0)
    values = np.where(steps > 90, steps, 0.0)
    assert statistics.final(steps, values) == pytest.approx(np.mean(np.arange(91, 101)))
    assert statistics.final(steps, values, share=0.01) == 100


def test_area_counts_a_value_for_the_steps_before_it():
    """A loop over single steps is the reference."""
    rng = np.random.default_rng(2)
    steps = np.cumsum(rng.integers(1, 5, size=30)).astype(float)
    values = np.where(rng.random(30) < 0.3, NAN, rng.normal(size=30))
    values[-1] = 0.3
    each_step = []
    for step in range(1, int(steps[-1]) + 1):
        later = [value for at, value in zip(steps, values, strict=True) if at >= step and np.isfinite(value)]
        each_step.append(later[0])
    assert statistics.area(steps, values) == pytest.approx(np.mean(each_step))
