"""How claims are decided, and which runs a figure's claims compare."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from made_runs import make_run
from oal import report
from oal.base.stats import Mean, difference_interval, mean_interval
from oal.errors import InputError
from oal.lab import claims, deep_figures
from oal.lab.claims import Statement
from oal.lab.figures import DEEP


def test_claims_are_decided_by_the_interval_of_paired_differences():
    rng = np.random.default_rng(0)
    common = rng.normal(size=50) * 10
    lower, higher = common - 0.5 + 0.1 * rng.normal(size=50), common
    assert claims.ahead(claims.saved(lower, higher)) == "holds"
    assert claims.ahead(claims.saved(higher, lower)) == "fails"
    assert claims.ahead(claims.saved(rng.normal(size=50), rng.normal(size=50))) == "undecided"
    assert claims.alike(claims.saved(common, common + 1e-6), margin=8.0) == "holds"
    assert claims.alike(claims.saved(common, common + 100), margin=8.0) == "fails"


def test_an_estimate_beyond_the_margin_does_not_decide_where_its_interval_reaches_within():
    one = np.array([0.0, 1.0, 2.0, 3.0])
    other = one + np.array([0.2, 1.0, 2.0, 2.8])
    d = claims.saved(one, other)
    assert (d.mean, d.low < 1.0 < d.high) == (pytest.approx(1.5), True)
    assert Statement("alike", "", (), "", lambda d: claims.alike(d, 1.0)).decided("", d).verdict == "undecided"


def test_seeds_that_one_side_lacks_are_left_out_of_the_pairs():
    d = claims.saved([1.0, 2.0], [2.0, 4.0, 100.0])
    assert (d.mean, d.n) == (1.5, 2)
    apart = claims.saved([1.0, 2.0], [2.0, 4.0, 6.0], paired=False)
    assert (apart.mean, apart.n) == (2.5, 5)


def test_mean_interval_covers_at_its_level():
    rng = np.random.default_rng(1)
    covered = [abs((m := mean_interval(rng.normal(size=5))).mean) <= m.half_width for _ in range(2000)]
    assert 0.93 < np.mean(covered) < 0.97
    assert np.isnan(mean_interval([1.0]).half_width)


def test_a_difference_on_one_task_has_welchs_interval():
    rng = np.random.default_rng(2)
    one, other = rng.normal(1.0, 0.5, size=5), rng.normal(0.0, 2.0, size=9)
    ours = difference_interval([one], [other])
    theirs = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_a_difference_over_tasks_weighs_tasks_equally_and_covers_at_its_level():
    rng = np.random.default_rng(3)
    truth = np.mean([1.0, -0.5, 0.25])
    covered = []
    for _ in range(2_000):
        first = [rng.normal(mean, scale, size=3) for mean, scale in ((1.0, 0.1), (-0.5, 1.0), (0.25, 0.3))]
        second = [rng.normal(0.0, scale, size=seeds) for scale, seeds in ((0.2, 3), (0.5, 6), (0.3, 2))]
        d = difference_interval(first, second)
        assert d.mean == pytest.approx(np.mean([a.mean() - b.mean() for a, b in zip(first, second, strict=True)]))
        covered.append(d.low <= truth <= d.high)
    assert 0.93 < np.mean(covered) < 0.99


def test_differences_of_single_runs_have_no_interval_and_decide_nothing():
    d = difference_interval([[1.0, 1.1], [0.5]], [[0.2, 0.3], [0.1, 0.2]])
    assert d.mean == pytest.approx((0.8 + 0.35) / 2)
    assert np.isnan(d.half_width)
    for verdict in (claims.ahead, *(lambda d, v=v: v(d, 0.05) for v in (claims.at_least, claims.alike, claims.unlike))):
        assert verdict(d) == "undecided"
    assert claims.Claim("", "", d, "undecided").row["low"] == ""
    with pytest.raises(InputError, match="no values to compare"):
        difference_interval([[]], [[1.0]])


@pytest.mark.parametrize(
    ("low", "high", "ahead", "at_least", "alike", "unlike"),
    [
        (0.01, 0.3, "holds", "holds", "undecided", "holds"),
        (0.01, 0.03, "holds", "holds", "holds", "holds"),
        (-0.04, 0.03, "undecided", "holds", "holds", "fails"),
        (-0.02, 0.02, "undecided", "holds", "holds", "fails"),
        (-0.3, 0.3, "undecided", "undecided", "undecided", "undecided"),
        (-0.09, -0.01, "fails", "undecided", "undecided", "holds"),
        (-0.9, -0.3, "fails", "fails", "fails", "holds"),
        (0.3, 0.9, "holds", "holds", "fails", "holds"),
    ],
)
def test_verdicts(low, high, ahead, at_least, alike, unlike):
    d = Mean((low + high) / 2, (high - low) / 2, 6)
    assert claims.ahead(d) == ahead
    assert [rule(d, 0.05) for rule in (claims.at_least, claims.alike, claims.unlike)] == [at_least, alike, unlike]


def test_nearly_and_hardly_leave_a_twentieth_of_the_way_to_the_expert_open():
    def verdicts(text: str, *differences: float, width: float = 0.001) -> list[str]:
        rule = next(each.rule for figure in DEEP.values() for each in figure.statements if each.text == text)
        return [rule(Mean(difference, width, 6)) for difference in differences]

    for text in ("OAL is at least as good as GAIL", "linear costs are nearly as good as neural ones"):
        assert verdicts(text, -0.048, -0.052, 0.3) == ["holds", "fails", "holds"]
    assert verdicts("the number of trajectories hardly matters", 0.048, -0.048, 0.052, -0.052) == [
        *("holds", "holds", "fails", "fails"),
    ]
    assert verdicts("the Lipschitz penalty matters", 0.0, width=0.049) == ["fails"]
    assert verdicts("the Lipschitz penalty matters", 0.0, width=0.051) == ["undecided"]
    for text in ("MDPO is ahead of TRPO", "cloning first helps"):
        assert verdicts(text, 0.002, -0.002) == ["holds", "fails"]


def figure_runs(folder: Path, **levels: float) -> list[report.Run]:
    """Make three seeds of each cost on two tasks, with the given levels."""
    for name, top in levels.items():
        policy, cost = name.split("_")
        for env in ("Hopper-v5", "HalfCheetah-v5"):
            for seed in range(3):
                steps = 20_000 if policy == "mdpo" else 40_000
                make_run(
                    folder / f"{env}-{name}-{seed}",
                    env=env,
                    seed=seed,
                    steps=steps,
                    top=top,
                    policy=policy,
                    cost=cost,
                    bc_config=None,
                    cost_config={},
                )
    return report.read([folder]).runs


def test_a_task_that_one_side_lacks_does_not_cut_the_others_short(tmp_path: Path):
    figure_runs(tmp_path, mdpo_neural=1.0, trpo_neural=0.4)
    make_run(
        tmp_path / "walker",
        env="Walker2d-v5",
        seed=0,
        steps=5_000,
        top=1.0,
        policy="mdpo",
        cost="neural",
        bc_config=None,
        cost_config={},
    )
    decided = deep_figures.decide("gail-vs-oal", report.read([tmp_path]).runs)
    assert decided
    assert all("20,000 steps" in claim.where for claim in decided)


def test_a_figures_claims_compare_what_they_say(tmp_path: Path):
    runs = figure_runs(tmp_path, mdpo_neural=1.0, mdpo_linear=1.01, mdpo_gail=0.5, trpo_neural=0.4, trpo_gail=0.9)
    decided = {(c.claim, c.where): c for c in deep_figures.decide("gail-vs-oal", runs)}

    def verdict(claim: str, where: str) -> str:
        return decided[claim, where].verdict

    gail, measure = "OAL is at least as good as GAIL", "final evaluation"
    assert verdict(gail, f"all 2 tasks, 20,000 steps, {measure}: neural against gail (mdpo)") == "holds"
    assert verdict(gail, f"Hopper-v5, 20,000 steps, {measure}: linear against gail (mdpo)") == "holds"
    assert verdict(gail, f"all 2 tasks, 40,000 steps, {measure}: neural against gail (trpo)") == "fails"
    nearly = "linear costs are nearly as good as neural ones"
    assert verdict(nearly, f"all 2 tasks, 20,000 steps, {measure}: linear against neural (mdpo)") == "holds"
    ahead = "MDPO is ahead of TRPO"
    place = f"all 2 tasks, 20,000 steps, {measure}: mdpo against trpo"
    assert verdict(ahead, f"{place} (neural)") == "holds"
    assert verdict(ahead, f"{place} (gail)") == "fails"
    assert not any("trpo (linear)" in where for _, where in decided), "what one side lacks is not compared"


def test_a_run_until_a_step_is_what_it_was_then(tmp_path: Path):
    make_run(tmp_path / "run", steps=20_000)
    run = report.read([tmp_path]).runs[0]
    half = run.until(10_000)
    assert half.steps[-1] == 10_000
    np.testing.assert_array_equal(half.returns["behaviour"], run.returns["behaviour"][: half.steps.size])


def test_other_figures_claims(tmp_path: Path):
    for seed in range(8):
        for weight, top in ((0.0, 0.3), (1.0, 1.0), (10.0, 1.0)):
            make_run(
                tmp_path / "lipschitz" / f"{weight}-{seed}",
                seed=seed,
                top=top,
                cost_config={"lipschitz": weight},
                bc_config=None,
            )
        for number, top in ((1, 1.0), (10, 1.0)):
            make_run(
                tmp_path / "trajectories" / f"{number}-{seed}",
                seed=seed,
                top=top,
                trajectories=number,
                cost_config={},
                bc_config=None,
            )
        for cloned, top in ((None, 0.2), ({"epochs": 10}, 0.9)):
            make_run(
                tmp_path / "pretraining" / f"{bool(cloned)}-{seed}",
                seed=seed,
                top=top,
                cost_config={},
                bc_config=cloned,
            )

    def verdicts(name: str) -> list[str]:
        decided = deep_figures.decide(name, report.read([tmp_path / name]).runs)
        return [claim.verdict for claim in decided if "final evaluation" in claim.where]

    assert verdicts("lipschitz") == ["holds", "holds", "fails"]
    assert verdicts("trajectories") == ["holds"]
    assert verdicts("pretraining") == ["holds"]
