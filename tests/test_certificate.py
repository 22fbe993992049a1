"""The imitation certificate and the regret meter: slow references, laws, calibration, bad input."""

import json
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from oal import envs, equations
from oal.base import seeding
from oal.base.files import write_json
from oal.base.stats import permutation_p_value
from oal.deep import certificate, verdict
from oal.deep.al_regret import Features, RegretMeter, episode_masses
from oal.deep.certificate import certify, imitation_distance
from oal.deep.costs import LinearConfig, cost_player
from oal.deep.learned_cost import LearnedCost
from oal.deep.replay import Pairs
from oal.demos import Trajectory
from oal.demos.pairs import encode
from oal.demos.record import record_encoded
from oal.envs import Envs, EnvSpec, EpisodeRunner, uniform_actions
from oal.errors import InputError

SPEC = EnvSpec("Probe-v0", "continuous", 3, 2, (-2.0, -1.0), (2.0, 3.0), (2,), horizon=40)
DISCRETE = EnvSpec("Buttons-v0", "discrete", 2, 3, action_start=1, horizon=20)


def episodes(
    rng: np.random.Generator,
    count: int,
    *,
    length: int = 40,
    terminated: bool = False,
    shift: float = 0.0,
    spread: float = 0.5,
    correlation: float = 0.0,
    seeds: bool = False,
) -> list[Trajectory]:
    """Episodes whose steps share an effect of the episode (`spread`), so that steps are far from independent."""
    made = []
    for index in range(count):
        effect = rng.normal(size=3) * spread
        noise = rng.normal(size=(length + 1, 3))
        observations = (noise + effect + np.array([shift, 0.0, 0.0])) * np.array([1.0, 10.0, 0.1])
        unit = correlation * noise[:-1, :2] + math.sqrt(1 - correlation**2) * rng.normal(size=(length, 2))
        made.append(
            Trajectory(
                observations.astype(np.float32),
                np.clip(np.array([0.0, 1.0]) + 0.5 * unit, [-2, -1], [2, 3]).astype(np.float32),
                rng.normal(size=length).astype(np.float32) + np.float32(shift),
                terminated,
                not terminated,
                seed=index if seeds else None,
            )
        )
    return made


def expectation(trajectory: Trajectory, expert: list[Trajectory]) -> np.ndarray:
    """Feature expectations, step by step."""
    rows = [
        np.append(o, [a[0] / 2.0, (a[1] - 1.0) / 2.0])
        for t in expert
        for o, a in zip(t.observations[:-1], t.actions, strict=True)
    ]
    mean, std = np.mean(rows, axis=0), np.std(rows, axis=0)
    total = np.zeros(6)
    for o, a in zip(trajectory.observations[:-1], trajectory.actions, strict=True):
        row = np.append(o, [a[0] / 2.0, (a[1] - 1.0) / 2.0])
        total[:5] += (row - mean) / std / SPEC.horizon
    if trajectory.terminated:
        total[5] = 1.0 - len(trajectory) / SPEC.horizon
    return total


# Slow obvious references ---------------------------------------------------------------------------------------------


def test_linear_gaps_are_the_norms_of_the_difference_of_feature_expectations(rng) -> None:
    learner = episodes(rng, 5, shift=0.7) + episodes(rng, 2, length=15, terminated=True)
    held_out, training = episodes(rng, 6), episodes(rng, 3)
    pool = learner + held_out + training
    gap = np.mean([expectation(t, pool) for t in learner], axis=0) - np.mean(
        [expectation(t, pool) for t in held_out], axis=0
    )
    found = certify(learner, held_out, spec=SPEC, training=training)
    assert found.linear_l2.value == pytest.approx(np.linalg.norm(gap), rel=1e-5)
    assert found.linear_simplex.value == pytest.approx(np.abs(gap).max(), rel=1e-5)
    np.testing.assert_allclose(list(found.worst_l2.values()), gap / np.linalg.norm(gap), atol=1e-5)
    names = ["obs[0]", "obs[1]", "obs[2]", "action[0]", "action[1]", "absorbing"]
    assert list(found.worst_l2) == names
    worst = int(np.abs(gap).argmax())
    assert found.worst_simplex == f"{'+' if gap[worst] > 0 else '-'} {names[worst]}"


def test_the_kernel_distance_is_the_unbiased_mmd_over_pairs_of_different_episodes(rng) -> None:
    learner = episodes(rng, 3, length=10, shift=1.0) + episodes(rng, 1, length=6, terminated=True)
    held_out = episodes(rng, 3, length=10)
    features = Features(learner + held_out, SPEC)
    steps = [features.standardised(*encoded_pairs(t, SPEC)) for t in learner + held_out]
    absorbing = [1.0 - len(t) / SPEC.horizon if t.terminated else 0.0 for t in learner + held_out]
    everyone = np.concatenate(steps)
    distances = [np.sum((x - y) ** 2) for i, x in enumerate(everyone) for y in everyone[:i]]
    bandwidth = np.median(distances)

    def inner(i: int, j: int) -> float:
        alive = np.mean([np.exp(-np.sum((x - y) ** 2) / (2 * bandwidth)) for x in steps[i] for y in steps[j]])
        return float((1 - absorbing[i]) * (1 - absorbing[j]) * alive + absorbing[i] * absorbing[j])

    mine, theirs = range(4), range(4, 7)
    expected = (
        np.mean([inner(i, j) for i in mine for j in mine if i != j])
        + np.mean([inner(i, j) for i in theirs for j in theirs if i != j])
        - 2 * np.mean([inner(i, j) for i in mine for j in theirs])
    )
    found = certify(learner, held_out, spec=SPEC).kernel
    assert found.value == pytest.approx(expected, abs=2e-6)


def test_the_learned_cost_is_averaged_over_occupancies(rng) -> None:
    learner, held_out = episodes(rng, 3, length=25, terminated=True), episodes(rng, 4)

    def cost(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return observations[:, 1] - 2.0 * actions[:, 0]

    def paid(trajectory: Trajectory) -> float:
        total = sum(o[1] - a[0] for o, a in zip(trajectory.observations[:-1], trajectory.actions, strict=True))
        rest = (SPEC.horizon - len(trajectory)) * 7.0 if trajectory.terminated else 0.0
        return (total + rest) / SPEC.horizon

    expected = np.mean([paid(t) for t in learner]) - np.mean([paid(t) for t in held_out])
    found = certify(learner, held_out, spec=SPEC, cost=cost, absorbing_cost=7.0).learned_cost
    assert found is not None
    assert found.value == pytest.approx(expected, rel=1e-5)
    opposite = certify(learner, held_out, spec=SPEC, cost=lambda o, a: -cost(o, a), absorbing_cost=-7.0).learned_cost
    assert opposite is not None
    assert (opposite.value, opposite.low, opposite.high) == pytest.approx((-found.value, -found.high, -found.low))
    assert certify(learner, held_out, spec=SPEC).learned_cost is None


def test_a_learned_cost_is_asked_with_encoded_actions_and_for_the_absorbing_state(rng) -> None:
    """An object that also takes actions in the environment's units must not be handed encoded ones as such."""
    player = cost_player(LinearConfig()).sized(3, 2, 0.99)
    observed, taken = (rng.normal(size=(50, size)).astype(np.float32) for size in (3, 2))
    shown = Pairs(observed, taken, np.ones(50, np.float32))
    view = player.init(0, shown).view
    view = view._replace(params=np.arange(1.0, 1 + view.params.size, dtype=np.float32), absorbing=np.float32(0.25))
    learned = LearnedCost(player, view, SPEC, 0.99, names=NAMES)
    learner, held_out = episodes(rng, 4, length=25, terminated=True, shift=0.5), episodes(rng, 4)
    certified = certify(learner, held_out, spec=SPEC, cost=learned)
    assert {difference.feature for difference in certified.differences} == set(NAMES)
    found = certified.learned_cost
    assert found == certify(learner, held_out, spec=SPEC, cost=learned.encoded, absorbing_cost=0.25).learned_cost
    assert found != certify(learner, held_out, spec=SPEC, cost=learned.__call__, absorbing_cost=0.25).learned_cost


def prepared(learner: list[Trajectory], held_out: list[Trajectory], spec: EnvSpec = SPEC) -> certificate._Sets:
    features = Features(learner + held_out, spec)
    made = [certificate._episode(t, features, None, None) for t in encode(learner + held_out, spec)]
    n, count = len(learner), len(made)
    return certificate._Sets(made, np.arange(n), np.arange(n, count), np.arange(n, count))


def test_the_classifier_never_sees_the_two_episodes_it_compares(rng) -> None:
    """Each area equals that of a discriminant fitted from the other episodes' means, step against step."""
    sets = prepared(episodes(rng, 3, length=8, shift=0.5, terminated=True), episodes(rng, 4, length=8))
    scoring = certificate._Scoring(sets, np.arange(7), rng)
    i, j = np.array([0, 2, 1]), np.array([3, 0, 2])
    for pair, area in enumerate(scoring.areas(sets.learner, sets.held_out, i, j)):
        one, other = int(i[pair]), 3 + int(j[pair])
        mine, theirs = [e for e in range(3) if e != one], [e for e in range(3, 7) if e != other]
        direction = scoring.scores[:, :, mine].mean(-1) - scoring.scores[:, :, theirs].mean(-1)
        expected = sum(
            scoring.weights[one, k] * scoring.weights[other, l] * (0.5 if math.isclose(x, y) else float(x > y))
            for k, x in enumerate(direction[one])
            for l, y in enumerate(direction[other])
        )
        assert area == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(scoring.weights.sum(1), 1.0)


# Laws ----------------------------------------------------------------------------------------------------------------


def test_a_learner_that_is_the_expert_has_no_gap(rng) -> None:
    same = episodes(rng, 6)
    found = certify(same, same, spec=SPEC, cost=lambda o, a: o[:, 0])
    assert found.linear_l2.value == pytest.approx(0.0, abs=1e-12)
    assert found.linear_simplex.value == pytest.approx(0.0, abs=1e-12)
    assert found.learned_cost is not None
    assert found.learned_cost.value == 0.0
    assert found.kernel.value <= 0.0
    assert found.linear_l2.low == 0.0
    for measure in found.measures:
        assert measure.p_value > 0.5
        assert measure.low <= measure.value <= measure.high
        assert measure.verdict == verdict.NEAR
    assert found.sentence == "indistinguishable from the expert on 6 episodes"


def test_the_order_of_episodes_does_not_matter(rng) -> None:
    learner, held_out = episodes(rng, 5, shift=0.5), episodes(rng, 6)
    one = certify(learner, held_out, spec=SPEC)
    other = certify(learner[::-1], held_out[::-1], spec=SPEC)
    for a, b in zip(one.measures, other.measures, strict=True):
        assert a.value == pytest.approx(b.value, abs=1e-6)
        assert a.high == pytest.approx(b.high, rel=0.2)


def test_units_of_the_observations_do_not_matter(rng) -> None:
    learner, held_out = episodes(rng, 5, shift=0.5), episodes(rng, 6)

    def in_other_units(trajectory: Trajectory) -> Trajectory:
        scale, offset = np.array([8.0, 0.25, -4.0], np.float32), np.array([1.0, -2.0, 0.0], np.float32)
        return replace(trajectory, observations=trajectory.observations * scale + offset)

    one = certify(learner, held_out, spec=SPEC)
    other = certify([in_other_units(t) for t in learner], [in_other_units(t) for t in held_out], spec=SPEC)
    for a, b in zip(one.measures, other.measures, strict=True):
        assert a.value == pytest.approx(b.value, abs=1e-4)
        assert a.scale == pytest.approx(b.scale, abs=1e-3)


def test_dying_early_shows_in_the_absorbing_coordinate_and_being_cut_off_does_not(rng) -> None:
    held_out = episodes(rng, 8, spread=0.1)
    dies = certify(episodes(rng, 8, length=20, terminated=True, spread=0.1), held_out, spec=SPEC)
    assert dies.worst_simplex == "+ absorbing"
    assert dies.linear_simplex.value == pytest.approx(0.5)
    assert dies.worst_l2["absorbing"] > 0.9
    assert dies.kernel.value > 10 * dies.kernel.scale_high
    assert dies.classifier.value > 0.7
    assert dies.classifier.p_value < 0.05
    cut = certify(episodes(rng, 8, length=20, spread=0.1), held_out, spec=SPEC)
    assert cut.worst_l2["absorbing"] == 0.0
    assert cut.linear_simplex.value < 0.2
    assert cut.classifier.p_value > 0.01


def test_the_absorbing_state_tells_nothing_when_both_die_alike(rng) -> None:
    found = certify(episodes(rng, 6, length=4, terminated=True), episodes(rng, 6, length=4, terminated=True), spec=SPEC)
    assert found.worst_l2["absorbing"] == 0.0
    assert 0.4 < found.classifier.value < 0.6


def test_a_larger_shift_is_a_larger_gap_and_is_seen(rng) -> None:
    held_out = episodes(rng, 10, spread=0.2)
    found = [certify(episodes(rng, 10, shift=shift, spread=0.2), held_out, spec=SPEC) for shift in (0.6, 2.0)]
    for a, b in zip(found[0].measures, found[1].measures, strict=True):
        assert a.value < b.value
    for measure in found[1].measures:
        assert measure.p_value <= 0.05
        assert measure.differs
        assert measure.low > measure.scale
    assert found[1].worst_simplex == "+ obs[0]"


def test_the_classifier_sees_what_linear_costs_cannot(rng) -> None:
    """Same means, but the learner's actions do not follow the state."""
    found = certify(
        episodes(rng, 8, spread=0.0, correlation=0.0), episodes(rng, 8, spread=0.0, correlation=0.95), spec=SPEC
    )
    assert found.linear_l2.verdict == verdict.NEAR
    assert found.classifier.differs
    assert found.sentence.endswith("differs in how things go together, in no single feature")
    assert found.classifier.value > 0.7
    assert found.classifier.p_value <= 0.05


def test_more_features_than_products_are_looked_at(rng) -> None:
    spec = EnvSpec("Wide-v0", "continuous", 60, 1, (-1.0,), (1.0,), (1,), horizon=12)

    def wide(count: int, shift: float) -> list[Trajectory]:
        return [
            Trajectory(rng.normal(shift, 1, (13, 60)).astype(np.float32), rng.uniform(-1, 1, (12, 1)), truncated=True)
            for _ in range(count)
        ]

    assert certify(wide(5, 0.0), wide(5, 0.5), spec=spec).classifier.value > 0.9


def test_discrete_actions_are_compared_by_how_often_they_are_taken(rng) -> None:
    def press(count: int, chances: list[float]) -> list[Trajectory]:
        return [
            Trajectory(
                rng.normal(size=(21, 2)).astype(np.float32), rng.choice([1, 2, 3], 20, p=chances), truncated=True
            )
            for _ in range(count)
        ]

    found = certify(press(8, [0.1, 0.1, 0.8]), press(8, [0.4, 0.4, 0.2]), spec=DISCRETE)
    assert found.worst_simplex == "+ action[2]"
    never = certify(press(4, [0.5, 0.25, 0.25]), press(4, [0.0, 0.5, 0.5]), spec=DISCRETE)
    assert Features(press(4, [0.0, 0.5, 0.5]), DISCRETE).std[2] == 1.0, (
        "an action the expert never takes keeps its unit"
    )
    assert never.linear_simplex.value < 2.0


def test_the_same_seed_gives_the_same_certificate(rng) -> None:
    learner, held_out = episodes(rng, 4, shift=0.3), episodes(rng, 5)
    one, again, other = (certify(learner, held_out, spec=SPEC, seed=seed) for seed in (3, 3, 4))
    assert one == again
    assert one.linear_l2.high != other.linear_l2.high
    assert one.linear_l2.value == other.linear_l2.value


def test_thinned_episodes_keep_their_mass(rng) -> None:
    trajectory = episodes(rng, 1, length=30, terminated=True)[0]
    whole, thinned = episode_masses(trajectory, 40), episode_masses(trajectory.subsample(5), 40)
    assert thinned.absorbing == pytest.approx(whole.absorbing)
    assert thinned.alive.sum() == pytest.approx(whole.alive.sum())
    assert len(thinned.alive) == 6
    uneven = episode_masses(episodes(rng, 1, length=40)[0].subsample(7), 40)
    assert uneven.alive.sum() == pytest.approx(1.0)
    kept = [episode.subsample(7) for episode in episodes(rng, 3)]
    found = certify(episodes(rng, 3), kept, spec=SPEC)
    assert (found.lengths.learner.mean, found.lengths.expert.mean) == (40.0, 40.0), "no longer than the horizon"


# Calibration ---------------------------------------------------------------------------------------------------------


def gaps(rng: np.random.Generator, n: int, m: int, shift: float, dimensions: int) -> certificate._Gap:
    """A gap between Gaussian episodes: one feature expectation each."""
    x = rng.normal(size=(n + m, dimensions))
    x[:n, 0] += shift
    blank = certificate._Episode(np.zeros(1), np.zeros((1, 1)), np.zeros(1), 0.0, 0.0)
    sets = certificate._Sets([blank] * (n + m), np.arange(n), np.arange(n, n + m), np.arange(n, n + m))
    return certificate._Gap("probe", lambda g: np.linalg.norm(g @ x, axis=-1), sets, 0.95, 300, rng)


@pytest.mark.parametrize("dimensions", [1, 12])
@pytest.mark.parametrize(("n", "m"), [(10, 10), (10, 5), (4, 15)])
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_intervals_cover_the_true_gap(rng, n: int, m: int, shift: float, dimensions: int) -> None:
    found = [gaps(rng, n, m, shift, dimensions).measure() for _ in range(150)]
    covered = sum(measure.low <= shift <= measure.high for measure in found)
    # 95 % at least; the bound lets a true 95 % fail once in a thousand times
    assert covered >= stats.binom(150, 0.95).ppf(0.001)


@pytest.mark.parametrize("dimensions", [1, 12])
@pytest.mark.parametrize(("n", "m"), [(10, 10), (10, 5), (4, 15)])
def test_two_experts_are_seldom_called_different(rng, n: int, m: int, dimensions: int) -> None:
    found = [gaps(rng, n, m, 0.0, dimensions).measure() for _ in range(200)]
    assert sum(measure.value > measure.scale_high for measure in found) <= stats.binom(200, 0.05).ppf(0.999)
    assert sum(measure.p_value <= 0.05 for measure in found) <= stats.binom(200, 0.05).ppf(0.999)
    # the scale is what it says: the typical value
    ratio = np.median([measure.value / measure.scale for measure in found])
    assert 0.75 < ratio < 1.35
    squares = [gaps(rng, n, m, 0.0, dimensions) for _ in range(100)]
    assert abs(np.mean([g.value**2 for g in squares]) / np.mean([np.mean(g.null**2) for g in squares]) - 1.0) < 0.35


def test_a_gap_that_is_there_is_found(rng) -> None:
    found = [gaps(rng, 10, 10, 3.0, 12).measure() for _ in range(50)]
    assert sum(measure.value > measure.scale_high for measure in found) >= 45
    assert sum(measure.p_value <= 0.05 for measure in found) >= 45


def test_the_kernel_and_the_classifier_seldom_tell_two_experts_apart(rng) -> None:
    found = [certify(episodes(rng, 6), episodes(rng, 6), spec=SPEC, resamples=200) for _ in range(40)]
    limit = stats.binom(40, 0.05).ppf(0.999)
    for name in ("kernel", "classifier", "linear_l2"):
        assert sum(getattr(c, name).p_value <= 0.05 for c in found) <= limit, name
    assert sum(c.kernel.value > c.kernel.scale_high for c in found) <= limit
    areas = np.array([c.classifier.value for c in found])
    assert abs(areas.mean() - 0.5) < 4 * areas.std(ddof=1) / math.sqrt(len(areas))
    squares = np.array([c.kernel.value for c in found])
    assert abs(squares.mean()) < 4 * squares.std(ddof=1) / math.sqrt(len(squares)), "MMD² is unbiased"
    # the interval of the classifier's area covers its mean
    covered = sum(c.classifier.low <= areas.mean() <= c.classifier.high for c in found)
    assert covered >= stats.binom(40, 0.95).ppf(0.001)


def test_a_thousand_steps_of_a_cheetah_take_seconds(rng) -> None:
    spec = EnvSpec("Cheetah-v0", "continuous", 17, 6, (-1.0,) * 6, (1.0,) * 6, (6,), horizon=1_000)
    made = [
        Trajectory(rng.normal(size=(1_001, 17)).astype(np.float32), rng.uniform(-1, 1, (1_000, 6)), truncated=True)
        for _ in range(20)
    ]
    start = time.process_time()
    certify(made[:10], made[10:], spec=spec)
    assert time.process_time() - start < 15.0


def test_the_actual_split_counts_among_the_permuted_ones(rng) -> None:
    """Where no random split differs as much as the actual one, p is 1 / (permutations + 1), and never 0."""
    found = certify(episodes(rng, 10, shift=9.0), episodes(rng, 10), spec=SPEC, resamples=300)
    assert [measure.p_value for measure in (found.linear_l2, found.linear_simplex, found.kernel)] == [1 / 301] * 3
    assert found.classifier.p_value == 1 / (certificate.CLASSIFIER_PERMUTATIONS + 1)


def test_all_ways_to_deal_are_tried_where_they_are_few(rng) -> None:
    """Three high numbers against four low ones: 1 of 35 ways; with ties, all that leave as much."""

    def p_value(*numbers: float) -> float:
        x = np.array(numbers)
        statistic = lambda mine, theirs: x[mine].mean(1) - x[theirs].mean(1)  # noqa: E731
        return permutation_p_value(statistic, 3, 7, permutations=100, rng=rng)

    assert p_value(9, 8, 7, 1, 2, 3, 4) == 1 / 35
    assert p_value(9, 8, 0.7 + 0.1, 1, 2, 3, 0.8) == 5 / 35
    assert p_value(1, 2, 3, 4, 5, 6, 7) == 1.0


def test_p_values_have_their_level_where_few_episodes_are_held_out(rng, monkeypatch) -> None:
    """Units taken from the four held-out episodes alone show here: 10 % to 50 % of the p-values are below 5 %."""
    monkeypatch.setattr(certificate, "CLASSIFIER_PERMUTATIONS", 40)
    spec = EnvSpec("Wide-v0", "continuous", 20, 1, (-1.0,), (1.0,), (1,), horizon=6)

    def wide(count: int) -> list[Trajectory]:
        places = 3.0 * rng.normal(size=(count, 1, 20)) + rng.normal(size=(count, 7, 20))
        return [Trajectory(each, rng.uniform(-1, 1, (6, 1)), truncated=True) for each in places.astype(np.float32)]

    found = [certify(wide(8), wide(4), spec=spec, resamples=100) for _ in range(200)]
    for name in ("linear_l2", "linear_simplex", "kernel", "classifier"):
        p_values = np.array([getattr(each, name).p_value for each in found])
        assert (p_values <= 0.05).sum() <= stats.binom(200, 0.05).ppf(0.999), name
        # at every level, not only at that one
        assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 0.001, name


# The true return, and what is written --------------------------------------------------------------------------------


def test_returns_are_normalised_by_random_and_expert(rng) -> None:
    learner, held_out = episodes(rng, 4), episodes(rng, 5, shift=1.0)
    found = certify(learner, held_out, spec=SPEC, random_return=-10.0)
    mine = np.array([t.total_reward for t in learner], float)
    theirs = np.mean([float(t.total_reward or 0.0) for t in held_out])
    assert found.returns is not None
    assert found.returns.normalised is not None
    assert found.returns.learner.mean == pytest.approx(mine.mean())
    assert found.returns.normalised.mean == pytest.approx((mine.mean() + 10.0) / (theirs + 10.0))
    half = stats.t(3).ppf(0.975) * mine.std(ddof=1) / 2.0
    assert found.returns.learner.high == pytest.approx(mine.mean() + half)
    assert found.returns.normalised.half_width == pytest.approx(half / (theirs + 10.0))
    assert found.lengths.learner.mean == 40.0
    named = certify(learner, held_out, spec=SPEC, names=["x", "y", "z", "left", "right"])
    assert list(named.worst_l2) == ["x", "y", "z", "left", "right", "absorbing"]
    silent = [replace(t, rewards=None) for t in learner]
    assert certify(silent, held_out, spec=SPEC).returns is None
    flat = [replace(t, rewards=np.zeros(40, np.float32)) for t in learner]
    failed = certify(flat, flat, spec=SPEC, random=flat)
    assert failed.returns is not None
    assert failed.returns.normalised is None, "an expert that earns what a random policy does is shown too"
    with pytest.raises(InputError, match=r"random_return is 0.0, the expert's own"):
        certify(flat, flat, spec=SPEC, random_return=0.0)
    assert found.returns.verdict == (verdict.LESS if mine.mean() < theirs else verdict.MORE)


def test_it_is_written_as_plain_json_and_as_a_table(rng, tmp_path) -> None:
    found = certify(episodes(rng, 2), episodes(rng, 3), spec=SPEC, cost=lambda o, a: o[:, 0], random_return=0.0)
    write_json(tmp_path / "certificate.json", found.to_json())
    read = json.loads((tmp_path / "certificate.json").read_text())
    assert read["linear_l2"]["value"] == found.linear_l2.value
    assert read["returns"]["normalised"]["mean"] == found.returns.normalised.mean  # pyright: ignore
    assert read["classifier"]["scale"] is None, "three expert episodes cannot be split into two sets of two"
    assert (len(found.table()), len(found.score_table()), len(found.feature_table())) == (5, 2, 5)
    for rows, columns in (
        (found.table(), found.columns),
        (found.score_table(), found.score_columns),
        (found.feature_table(), found.feature_columns),
    ):
        assert all(len(row) == len(columns) for row in rows)
    assert found.linear_l2.verdict == verdict.TOO_FEW
    assert found.sentence.startswith("too few episodes to tell: 2 of the policy and 3 of the expert")


# What it says --------------------------------------------------------------------------------------------------------

NAMES = ["position cart", "velocity cart", "angle", "push", "pull"]


def test_one_that_stands_elsewhere_is_as_good_and_said_to_stand_elsewhere(rng) -> None:
    """The same return, every step alive: no failure, whatever the kernel says."""
    learner, held_out = (episodes(rng, 8, spread=0.0, shift=shift) for shift in (2.0, 0.0))
    learner, held_out = ([replace(t, rewards=np.ones(40)) for t in some] for some in (learner, held_out))
    near, far = (episodes(rng, 6, length=4, terminated=True, shift=shift) for shift in (0.0, -60.0))
    near, far = ([replace(t, rewards=np.ones(4)) for t in some] for some in (near, far))
    found = certify(learner, held_out, spec=SPEC, random=near, names=NAMES)
    assert found.linear_l2.on_scale(found.linear_l2.value) > 1.0, "nearer than this is a policy that falls at once"
    assert found.sentence.startswith("earns what the expert earns (40 against 40); differs in where it stands: ")
    found = certify(learner, held_out, spec=SPEC, random=far, names=NAMES)
    assert found.kernel.differs
    assert found.returns is not None
    assert found.returns.verdict == verdict.AS_MUCH
    within = f"within {found.linear_l2.high:.2g} (a random policy: {found.linear_l2.random:.2g})"
    said = f"earns what the expert earns (40 against 40), as good as the expert for every linear cost {within}; differs"
    assert found.sentence.startswith(said)
    first = found.differences[0]
    assert (first.feature, first.beyond, first.acts) == ("position cart", True, False)
    mine, theirs = (np.mean([t.observations[:-1, 0] for t in some]) for some in (learner, held_out))
    spread = np.std([t.observations[:-1, 0] for t in held_out])
    assert (first.learner, first.expert, first.spread) == pytest.approx((mine, theirs, spread), rel=1e-5)
    assert (
        f"position cart {first.learner:.3g} instead of {first.expert:.3g} ({first.deviations:+.2g} sd)"
        in found.sentence
    )
    assert not any(each.beyond for each in found.differences[1:])


def test_features_differ_in_the_environments_units(rng) -> None:
    """The second action lies in [-1, 3], around 1; actions beyond two experts are what it does."""
    learner, held_out = episodes(rng, 6, spread=0.0), episodes(rng, 6, spread=0.0)
    learner = [replace(t, actions=np.stack([t.actions[:, 0], np.full(40, 2.5)], 1).astype(np.float32)) for t in learner]
    found = certify(learner, held_out, spec=SPEC, names=NAMES)
    pull = found.differences[0]
    assert (pull.feature, pull.acts) == ("pull", True)
    assert pull.learner == pytest.approx(2.5)
    assert pull.expert == pytest.approx(np.mean([t.actions[:, 1] for t in held_out]), rel=1e-4)
    assert pull.spread == pytest.approx(np.std([t.actions[:, 1] for t in held_out]), rel=1e-4)
    assert "; differs in what it does: pull 2.5 instead of" in found.sentence


def test_one_that_falls_is_worse_and_the_clone_stands_beside(rng) -> None:
    held_out, clone = episodes(rng, 8, spread=0.1), episodes(rng, 8, spread=0.1)
    learner = episodes(rng, 8, length=20, terminated=True, spread=0.1)
    held_out, learner, clone = ([replace(t, rewards=np.ones(len(t))) for t in x] for x in (held_out, learner, clone))
    wild = [replace(t, rewards=np.ones(len(t))) for t in episodes(rng, 5, length=3, terminated=True)]
    found = certify(learner, held_out, spec=SPEC, clone=clone, random=wild)
    said = "worse than the expert: return 20 instead of 40, it ends after 20 steps instead of 40"
    assert found.sentence.startswith(said)
    assert found.sentence.endswith("; worse than the clone")
    silent = [[replace(t, rewards=None) for t in some] for some in (learner, held_out)]
    without = certify(*silent, spec=SPEC, clone=clone, random=wild)
    assert without.sentence.startswith("unlike the expert: it ends after 20 steps instead of 40")
    assert without.sentence.endswith("; farther from the expert than the clone")
    for measure in found.measures:
        # 0 = two experts, 1 = a random policy; the clone is an expert, the learner in between
        assert measure.on_scale(measure.zero) == 0.0
        assert measure.on_scale(measure.random) == 1.0
        assert abs(measure.on_scale(measure.clone)) < 0.25 < measure.on_scale(measure.value)
    assert "clone" in found.columns
    assert found.score_table()[0][:5] == ("return", "20", "40", "40", "3")
    written = json.loads(json.dumps(found.to_json()))
    assert written["sentence"] == found.sentence
    assert written["kernel"]["on_scale"]["value"] == found.kernel.on_scale(found.kernel.value)


def test_a_measure_by_which_a_random_policy_is_an_expert_has_no_scale_and_no_word(rng) -> None:
    """Episodes that vary much between them: no linear cost tells even the random policy, so it is no yardstick."""
    learner, held_out = episodes(rng, 12, correlation=0.95), episodes(rng, 8)
    learner, held_out = ([replace(t, rewards=None) for t in some] for some in (learner, held_out))
    wild = [replace(t, rewards=None) for t in episodes(rng, 6, shift=0.3)]
    found = certify(learner, held_out, spec=SPEC, random=wild)
    gap = found.linear_l2
    assert gap.zero < gap.random <= gap.scale_high
    assert math.isnan(gap.on_scale(gap.value))
    assert found.table()[0][0] == "linear, L2*"
    assert not gap.differs
    assert gap.high > gap.random
    assert found.classifier.differs
    assert found.sentence.startswith("no linear cost tells it from the expert; differs in how things go together")


def test_p_and_verdict_agree(rng) -> None:
    for shift in (0.0, 0.15, 0.3, 0.45, 0.6):
        found = certify(episodes(rng, 6, shift=shift), episodes(rng, 6), spec=SPEC, resamples=200)
        adjusted = stats.false_discovery_control([measure.p_value for measure in found.measures])
        for measure, p_value in zip(found.measures, adjusted, strict=True):
            assert measure.adjusted_p == p_value
            assert measure.differs == (p_value <= 0.05)
        assert found.sentence.startswith("indistinguishable") == (not (adjusted <= 0.05).any())


def test_the_demonstrations_compared_with_are_named_first_where_they_flatter(rng) -> None:
    learner, shown = episodes(rng, 4), episodes(rng, 10)
    found = certify(learner, shown, spec=SPEC, against="training")
    assert str(found).startswith("None of the 10 demonstrations is held out: it is compared with those it learned from")
    own = str(certify(learner, shown, spec=SPEC, against="own"))
    assert own.startswith("Compared with 10 recorded episodes of its own best policy. ")
    assert str(certify(learner, shown, spec=SPEC)).endswith(
        ". Compared with 10 demonstrations that were held out from learning."
    )
    with pytest.raises(InputError, match="against"):
        certify(learner, shown, spec=SPEC, against="nothing")


def test_the_picture_shows_the_features_that_differ(rng, tmp_path) -> None:
    found = certify(episodes(rng, 4, shift=2.0), episodes(rng, 4), spec=SPEC, names=NAMES)
    found.picture(tmp_path / "certificate")
    drawn = (tmp_path / "certificate.svg").read_text()
    assert all(name in drawn for name in NAMES)
    assert (tmp_path / "certificate.png").stat().st_size > 5_000


# The distance alone --------------------------------------------------------------------------------------------------


def test_the_distance_is_that_of_the_means_in_the_kernels_space(rng) -> None:
    """Over all pairs of episodes, an episode with itself too: the certificate's leaves those out."""
    learner, expert = episodes(rng, 5, shift=0.5), episodes(rng, 6)
    found = imitation_distance(learner, expert, spec=SPEC)
    encoded = encode([*learner, *expert], SPEC)
    features = Features(encoded, SPEC)
    made = [certificate._episode(each, features, None, None) for each in encoded]
    gram = certificate._gram(made, 11, seeding.generator(0, "certificate", 4))
    sides = range(5), range(5, 11)
    mean = {(i, j): np.mean([gram[a, b] for a in sides[i] for b in sides[j]]) for i in (0, 1) for j in (0, 1)}
    assert found == pytest.approx(mean[0, 0] + mean[1, 1] - 2.0 * mean[0, 1], rel=1e-9)
    others = [np.mean([gram[a, b] for a in side for b in side if a != b]) for side in sides]
    assert certify(learner, expert, spec=SPEC).kernel.value == pytest.approx(sum(others) - 2.0 * mean[0, 1], rel=1e-9)
    silent = [replace(t, rewards=None) for t in learner]
    assert imitation_distance(silent, expert, spec=SPEC) == found


@pytest.mark.parametrize("demonstrations", [1, 5])
def test_of_two_policies_the_one_that_never_falls_is_the_nearer(rng, demonstrations: int) -> None:
    """One episode in five that ends early is seen: by the certificate's distance it would be a matter of luck."""
    seen = 0
    for _ in range(30):
        expert = episodes(rng, demonstrations, spread=0.2)
        steady = imitation_distance(episodes(rng, 5, spread=0.2), expert, spec=SPEC)
        falling = [*episodes(rng, 4, spread=0.2), *episodes(rng, 1, length=12, terminated=True, spread=0.2)]
        seen += imitation_distance(falling, expert, spec=SPEC) > steady
    assert seen >= 27


@pytest.mark.parametrize("demonstrations", [1, 5])
def test_the_distance_orders_policies_without_a_reward(rng, demonstrations: int) -> None:
    """Two experts, one that stands where the expert hardly ever is, one that falls half-way, one that falls at once."""
    expert = episodes(rng, demonstrations, spread=0.0)

    def far(count: int, **how: Any) -> float:
        return imitation_distance(episodes(rng, count, spread=0.0, **how), expert, spec=SPEC)

    found = [
        far(5),
        far(5, shift=4.0),
        far(5, length=20, terminated=True),
        far(5, length=4, terminated=True),
    ]
    assert found == sorted(found)
    assert abs(found[0]) < 0.05 < 0.2 < found[1] < found[2] < found[3] < 2.0
    assert far(1, shift=400.0) < 2.0, "a single runaway is far, and no farther than that"


def test_the_distance_takes_episodes_as_the_runner_gives_them() -> None:
    runner = EpisodeRunner("CartPole-v1", parallel=2)
    played = runner.run(envs.UniformPolicy(runner.spec).act, [1, 2])
    runner.close()
    shown = record_encoded("CartPole-v1", envs.UniformPolicy(runner.spec).act, episodes=3, seed=1)
    assert imitation_distance(played, shown, spec=runner.spec) < 0.5
    with pytest.raises(InputError, match="2 episodes and 0 demonstrations"):
        imitation_distance(played, [], spec=runner.spec)


# Bad input -----------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_a_fix(rng) -> None:
    good = episodes(rng, 4)
    with pytest.raises(InputError, match="1 rollouts: at least 2"):
        certify(good[:1], good, spec=SPEC)
    with pytest.raises(InputError, match="0 held-out demonstrations: at least 2"):
        certify(good, [], spec=SPEC)
    with pytest.raises(InputError, match="another environment"):
        certify(good, good, spec=replace(SPEC, observation_size=5))
    with pytest.raises(InputError, match="takes 1"):
        certify(good, good, spec=replace(SPEC, action_size=1))
    with pytest.raises(InputError, match="more than the horizon of 30"):
        certify(good, good, spec=replace(SPEC, horizon=30))
    with pytest.raises(InputError, match="confidence is 1"):
        certify(good, good, spec=SPEC, confidence=1.0)
    with pytest.raises(InputError, match="resamples"):
        certify(good, good, spec=SPEC, resamples=5)
    with pytest.raises(InputError, match="2 names are given for 3 observations and 2 actions"):
        certify(good, good, spec=SPEC, names=["x", "y"])
    short = episodes(rng, 2, length=10, terminated=True)
    with pytest.raises(InputError, match="say the cost of the absorbing state"):
        certify(short, good, spec=SPEC, cost=lambda o, a: o[:, 0])
    with pytest.raises(InputError, match="one number each"):
        certify(good, good, spec=SPEC, cost=lambda o, a: o)
    with pytest.raises(InputError, match="not finite"):
        certify(good, good, spec=SPEC, cost=lambda o, a: np.full(len(o), np.nan))
    one = [replace(t, rewards=np.zeros(40)) for t in good]
    with pytest.raises(InputError, match="random_return"):
        certify(one, one, spec=SPEC, random_return=0.0)


def test_shared_reset_seeds_are_warned_of(rng) -> None:
    with pytest.warns(UserWarning, match="share reset seeds"):
        certify(episodes(rng, 3, seeds=True), episodes(rng, 3, seeds=True), spec=SPEC)


# The regret meter ----------------------------------------------------------------------------------------------------


def encoded_pairs(trajectory: Trajectory, spec: Any) -> tuple[np.ndarray, np.ndarray]:
    (episode,) = encode([trajectory], spec)
    return episode.observation, episode.action


def feed(meter: RegretMeter, streams: list[list[Trajectory]], rng: np.random.Generator) -> list[Trajectory]:
    """Step through several environments' episodes together; after each end an environment only resets itself."""
    finished: list[Trajectory] = []
    places = [(0, 0)] * len(streams)
    resetting = np.zeros(len(streams), bool)
    while all(which < len(stream) for (which, _), stream in zip(places, streams, strict=True)):
        valid = ~resetting
        observation = np.full((len(streams), 3), 1e6, np.float32)
        action = np.full((len(streams), 2), 1e6, np.float32)
        terminated, truncated = np.zeros((2, len(streams)), bool)
        resetting = np.zeros(len(streams), bool)
        for i in np.flatnonzero(valid):
            which, t = places[i]
            trajectory = streams[i][which]
            encoded = encoded_pairs(trajectory, SPEC)
            observation[i], action[i] = encoded[0][t], encoded[1][t]
            last = t + 1 == len(trajectory)
            terminated[i], truncated[i] = last and trajectory.terminated, last and trajectory.truncated
            places[i] = (which + 1, 0) if last else (which, t + 1)
            if last:
                finished.append(trajectory)
                resetting[i] = bool(rng.random() < 0.5)
        meter.step(observation, action, terminated, truncated, valid)
    return finished


def test_the_meter_is_the_definition_of_the_regret(rng) -> None:
    expert = episodes(rng, 4)
    streams = [
        episodes(rng, 2) + episodes(rng, 2, length=13, terminated=True, shift=1.0),
        episodes(rng, 3, length=9, shift=-2.0) + episodes(rng, 3, length=22, terminated=True),
        episodes(rng, 5, length=7, terminated=True),
    ]
    meter = RegretMeter(expert, spec=SPEC, environments=3)
    assert meter.l2 is None
    assert meter.simplex is None
    finished = feed(meter, streams, rng)
    demonstrated = np.mean([expectation(t, expert) for t in expert], axis=0)
    total = np.sum([expectation(t, expert) - demonstrated for t in finished], axis=0)
    assert meter.episodes == len(finished) > 5
    np.testing.assert_allclose(meter.total, total, atol=1e-5)
    assert meter.l2 == pytest.approx(equations.ball_support(total) / len(finished), rel=1e-5)
    assert meter.simplex == pytest.approx(np.abs(total).max() / len(finished), rel=1e-5)


def test_a_learner_that_repeats_the_demonstrations_has_no_regret(rng) -> None:
    expert = episodes(rng, 4) + episodes(rng, 2, length=11, terminated=True)
    meter = RegretMeter(expert, spec=SPEC)
    feed(meter, [expert], rng)
    assert meter.l2 == pytest.approx(0.0, abs=1e-6)


def test_the_meter_continues_from_its_state_in_the_middle_of_an_episode(rng) -> None:
    expert, learner = episodes(rng, 3), episodes(rng, 2, shift=0.5)
    pairs = [encoded_pairs(t, SPEC) for t in learner]
    never, always = np.zeros(1, bool), np.ones(1, bool)

    def steps(meter: RegretMeter, start: int, stop: int) -> None:
        for t in range(start, stop):
            observation, action = (part[t % 40][None] for part in pairs[t // 40])
            meter.step(observation, action, never, always if t % 40 == 39 else never, always)

    whole, first, second = (RegretMeter(expert, spec=SPEC) for _ in range(3))
    steps(whole, 0, 80)
    steps(first, 0, 55)
    saved = first.state()
    steps(first, 55, 60)  # what was saved must not change with it
    second.restore(saved)
    steps(second, 55, 80)
    assert second.episodes == 2
    np.testing.assert_array_equal(second.total, whole.total)
    assert second.l2 == whole.l2
    with pytest.raises(InputError, match="same environment and number"):
        RegretMeter(expert, spec=SPEC, environments=2).restore(saved)


def test_an_abandoned_episode_is_not_counted(rng) -> None:
    expert = episodes(rng, 3)
    meter = RegretMeter(expert, spec=SPEC)
    never, always = np.zeros(1, bool), np.ones(1, bool)
    meter.step(np.full((1, 3), 9.0), np.ones((1, 2)), never, never, always)
    meter.abandon()
    feed(meter, [expert], rng)
    assert meter.episodes == 3
    assert meter.l2 == pytest.approx(0.0, abs=1e-6)


def test_the_meter_follows_a_real_environment_and_costs_microseconds() -> None:
    running = Envs("CartPole-v1", count=2, seed=0)
    draw = seeding.generator(0, "probe")
    expert = record_encoded("CartPole-v1", envs.UniformPolicy(running.spec).act, episodes=5, seed=1)
    meter = RegretMeter(expert, spec=running.spec, environments=2)
    steps = []
    for _ in range(400):
        step = running.step(uniform_actions(running.spec, 2, draw))
        steps.append(step)
        meter.step(step.observation, step.action, step.terminated, step.truncated, step.valid)
    running.close()
    assert meter.episodes == len(running.finished) > 10
    mass = np.mean([1.0 - length / 500 for _, length in running.finished])
    expected = mass - np.mean(1.0 - expert.lengths / 500)
    assert meter.total[-1] / meter.episodes == pytest.approx(expected)
    start = time.process_time()
    for step in steps:
        meter.step(step.observation, step.action, step.terminated, step.truncated, step.valid)
    assert (time.process_time() - start) / len(steps) < 200e-6


def test_the_meter_refuses_what_does_not_fit(rng) -> None:
    with pytest.raises(InputError, match="no demonstrations"):
        RegretMeter([], spec=SPEC)
    with pytest.raises(InputError, match="number of environments"):
        RegretMeter(episodes(rng, 2), spec=SPEC, environments=0)
    with pytest.raises(InputError, match="absorbing coordinate last"):
        RegretMeter(episodes(rng, 2), spec=SPEC).add(np.zeros(5))
