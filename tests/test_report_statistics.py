"""Statistics of the report: against rliable's numbers, slow obvious references, and laws."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from oal.errors import InputError
from oal.report import statistics

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())
ALGORITHMS = sorted(REFERENCE["scores"])


def scores_of(name: str) -> list[np.ndarray]:
    """Return one array per task; rliable's matrices are [seeds, tasks]."""
    return list(np.array(REFERENCE["scores"][name]).T)


def rliable_draws(*shapes: tuple[int, int], replications: int) -> list[np.ndarray]:
    """Return the very indices [replications, seeds, tasks] that rliable drew for each matrix."""
    rng = np.random.RandomState(REFERENCE["seed"])  # the stream rliable draws from
    drawn = [[rng.choice(shape[0], shape) for shape in shapes] for _ in range(replications)]
    return [np.stack([each[place] for each in drawn]) for place in range(len(shapes))]


def taken(name: str, indices: np.ndarray) -> list[np.ndarray]:
    return [task[indices[:, :, place]] for place, task in enumerate(scores_of(name))]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("estimator", statistics.AGGREGATES)
def test_aggregates_equal_rliables(name, estimator):
    function = statistics.AGGREGATES[estimator]
    value, low, high = REFERENCE["aggregates"][name][estimator]
    assert_allclose(function(scores_of(name)), value, rtol=0, atol=1e-14)
    shape = np.array(REFERENCE["scores"][name]).shape
    (indices,) = rliable_draws(shape, replications=REFERENCE["replications"])
    assert_allclose(statistics.limits(function(taken(name, indices))), [low, high], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("estimator", statistics.AGGREGATES)
def test_our_own_draws_give_rliables_intervals_up_to_chance(name, estimator):
    function = statistics.AGGREGATES[estimator]
    reference = REFERENCE["long aggregates"][name][estimator]
    ours = [
        statistics.interval(function, scores_of(name), replications=REFERENCE["long"], seed=seed) for seed in range(8)
    ]
    assert all(each.value == pytest.approx(reference[0], abs=1e-14) for each in ours)
    for place in (1, 2):
        limits = np.array([each[place] for each in ours])
        # Both sides are one draw of the same limit: their difference has twice the variance of ours.
        chance = np.sqrt(2) * limits.std(ddof=1) + 1e-3
        assert abs(limits.mean() - reference[place]) < 4 * chance


@pytest.mark.parametrize("case", REFERENCE["improvement"], ids=lambda case: f"{case['first']}-{case['second']}")
def test_probability_of_improvement_equals_rliables(case):
    first, second = case["first"], case["second"]
    value, low, high = case["interval"]
    assert_allclose(statistics.improvement(scores_of(first), scores_of(second)), value, rtol=0, atol=1e-14)
    shapes = [np.array(REFERENCE["scores"][name]).shape for name in (first, second)]
    draws = rliable_draws(*shapes, replications=REFERENCE["pair replications"])
    drawn = statistics.improvement(taken(first, draws[0]), taken(second, draws[1]))
    assert_allclose(statistics.limits(drawn), [low, high], rtol=0, atol=1e-12)


def test_performance_profile_equals_rliables():
    wanted = REFERENCE["profile"]
    name, thresholds = wanted["algorithm"], np.array(wanted["thresholds"])
    assert_allclose(statistics.profile(scores_of(name), thresholds), wanted["value"], rtol=0, atol=1e-14)
    shape = np.array(REFERENCE["scores"][name]).shape
    (indices,) = rliable_draws(shape, replications=REFERENCE["replications"])
    drawn = statistics.profile(taken(name, indices), thresholds)
    assert_allclose(statistics.limits(drawn.T), [wanted["low"], wanted["high"]], rtol=0, atol=1e-12)
    band = statistics.profile_band(scores_of(name), thresholds, replications=4_000)
    assert_allclose(band.value, wanted["value"], rtol=0, atol=1e-14)
    # A profile moves in steps of one run.
    assert_allclose(band.low, wanted["low"], atol=1 / 25 + 1e-9)
    assert_allclose(band.high, wanted["high"], atol=1 / 25 + 1e-9)


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


def test_bootstrap_equals_the_enumeration_of_all_resamples():
    """Three seeds have 27 resamples; the limits are percentiles of their means."""
    task = np.array([0.1, 0.5, 1.2])
    means = np.sort([np.mean(drawn) for drawn in itertools.product(task, repeat=3)])
    # 2.5 % of 27 lies in the first step of the distribution (1/27 = 3.7 %), 97.5 % in the last.
    found = statistics.interval(statistics.mean, [task])
    assert found == pytest.approx((task.mean(), means[0], means[-1]))


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
    assert statistics.interval(statistics.improvement, better, y) == (1, 1, 1)


def test_the_quick_interval_of_improvement_is_the_slow_one(monkeypatch):
    rng = np.random.default_rng(0)
    first = [rng.integers(0, 6, n).astype(float) for n in (3, 7, 1)]  # with draws
    second = [rng.integers(0, 6, n).astype(float) for n in (4, 2, 1)]
    slow = statistics.interval(statistics.improvement, first, second, replications=500, seed=3)
    assert_allclose(statistics.improvement_interval(first, second, replications=500, seed=3), slow, atol=1e-12)
    one = [np.array([1.0])]
    assert not statistics.improvement_interval(one, one).known


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
