"""Seeds until a comparison is decided: the rule against a slow reference, and how often it errs."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import ttest_ind

from oal.base.stats import Mean
from oal.errors import InputError
from oal.lab.claims import ahead, alike, at_least
from oal.lab.looks import Looks, Seen, look

LOOKS = Looks.planned(3, 10)


def sampled(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def played(first: np.ndarray, second: np.ndarray, rule=ahead, looks: Looks = LOOKS) -> Seen:
    return look(looks, [sampled(first)], [sampled(second)], rule)


def test_looks_are_fixed_in_advance():
    assert LOOKS.sizes == (3, 5, 8, 10)
    assert LOOKS.level == pytest.approx(1 - 0.05 / 4)
    assert Looks.planned(3, 3) == Looks((3,))
    assert Looks.planned(3, 3).level == pytest.approx(0.95), "one look is no penalty"
    with pytest.raises(InputError, match="the most seeds is 2"):
        Looks.planned(3, 2)
    with pytest.raises(InputError, match="seeds of the first look is 1"):
        Looks.planned(1, 4)
    with pytest.raises(InputError, match="each needs more"):
        Looks((3, 3))


def by_hand(first: np.ndarray, second: np.ndarray) -> tuple[str, int]:
    """Welch's test again at each look, at 5 % over four."""
    for size in (3, 5, 8, 10):
        test = ttest_ind(first[:size], second[:size], equal_var=False)
        if test.pvalue < 0.05 / 4:
            return "holds" if test.statistic > 0 else "fails", size
    return "undecided", 10


@pytest.mark.parametrize("drift", [0.0, 1.0, -2.0])
def test_the_rule_is_that_of_a_slow_reference(drift):
    rng = np.random.default_rng(3)
    for _ in range(200):
        first, second = rng.normal(drift, 1.0, size=10), rng.normal(0.0, 0.5, size=10)
        seen = played(first, second)
        assert (seen.verdict, seen.seeds) == by_hand(first, second)
        assert seen.following is None, "all seeds are there: it is decided, or the looks are over"


def test_under_the_null_it_errs_in_at_most_one_of_twenty_where_plain_looking_does_not():
    rng = np.random.default_rng(4)
    studies = rng.normal(size=(1_500, 2, 10))
    errs = np.mean([played(*study).verdict != "undecided" for study in studies])
    tests = [ttest_ind(studies[:, 0, :n], studies[:, 1, :n], axis=1, equal_var=False) for n in LOOKS.sizes]
    plain = np.mean(np.any([test.pvalue < 0.05 for test in tests], axis=0))
    assert errs < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1_500)
    assert plain > 0.07, "looking again and again at 95 % is what the rule is against"


@pytest.mark.parametrize(("rule", "wrong", "truth"), [(at_least, "holds", -0.05), (alike, "holds", 0.05)])
def test_at_the_edge_of_a_margin_it_seldom_says_what_is_not_so(rule, wrong, truth):
    rng = np.random.default_rng(5)
    judged = [
        played(rng.normal(truth, 0.03, size=10), rng.normal(0.0, 0.03, size=10), partial(rule, margin=0.05)).verdict
        for _ in range(800)
    ]
    assert np.mean([verdict == wrong for verdict in judged]) < 0.05


def test_with_a_drift_it_stops_early_in_the_right_direction_and_its_interval_covers():
    rng = np.random.default_rng(6)
    for drift, least in ((1.0, 0.3), (2.0, 0.9), (4.0, 0.99)):
        seen = [played(rng.normal(drift, size=10), rng.normal(size=10)) for _ in range(400)]
        assert np.mean([each.verdict == "holds" for each in seen]) > least
        assert np.mean([each.verdict == "fails" for each in seen]) < 0.02
        # whenever it stopped: stopping picks the looks that show much, and the interval must bear it
        covered = [each.difference.low <= drift <= each.difference.high for each in seen]
        assert np.mean(covered) > 0.95 - 2 * math.sqrt(0.05 * 0.95 / 400)
    assert np.mean([each.seeds for each in seen]) < 5


def test_what_comes_next_is_said():
    rng = np.random.default_rng(7)
    alike_sides = [sampled(rng.normal(size=10)) for _ in range(4)]
    cut = lambda n: [{seed: value for seed, value in side.items() if seed < n} for side in alike_sides]  # noqa: E731
    one, other, third, fourth = cut(4)
    seen = look(LOOKS, [one, other], [third, fourth], lambda d: "undecided")
    assert (seen.seeds, seen.looks, seen.following) == (3, 1, 5), "a fourth seed waits for the next look"
    seen = look(LOOKS, *([side] for side in cut(2)[:2]), lambda d: "undecided")
    assert (seen.seeds, seen.looks, seen.following) == (2, 0, 3)
    assert math.isnan(seen.difference.half_width)
    last = look(LOOKS, [alike_sides[0]], [alike_sides[1]], lambda d: "undecided")
    assert (last.looks, last.following) == (4, None)


def test_a_verdict_stays_when_more_seeds_come():
    first = np.array([5.0, 5.1, 4.9, -90.0, -80.0])
    assert played(first[:3], np.array([0.0, 0.1, -0.1])).verdict == "holds"
    later = played(first, np.array([0.0, 0.1, -0.1, 0.0, 0.1]))
    assert (later.verdict, later.seeds) == ("holds", 3)


def test_a_seed_that_is_missing_is_not_replaced_by_another():
    whole = sampled(np.zeros(5))
    without = {seed: value for seed, value in whole.items() if seed != 1} | {7: 100.0}
    seen = look(Looks((3, 5)), [without], [whole], lambda d: "holds")
    assert (seen.verdict, seen.looks) == ("undecided", 0)


def test_the_interval_is_that_of_its_look():
    rng = np.random.default_rng(8)
    first, second = rng.normal(size=3), rng.normal(size=3)
    seen = played(first, second)
    theirs = ttest_ind(first, second, equal_var=False).confidence_interval(1 - 0.05 / 4)
    assert isinstance(seen.difference, Mean)
    assert (seen.difference.low, seen.difference.high) == pytest.approx((theirs.low, theirs.high))
