"""The suite's table: each number against a plain reading of made-up runs; its plan against the sweep files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from made_runs import write
from oal.base import plots
from oal.errors import InputError
from oal.lab import suite
from oal.lab.sweep import Sweep

ROOT = Path(__file__).parent.parent
EXPERT = 1_000.0


def made(
    folder: Path,
    evaluations: dict[int, float],
    behaviour: dict[int, float],
    *,
    distances: dict[int, float] | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write a run with these evaluations and returns of the behaviour, in shares of the expert's return."""
    folder.mkdir(parents=True)
    fields = {"env": "Walker2d-v5", "demos": "", "trajectories": 1, "subsample": 1, "policy": "mdpo", "cost": "neural"}
    write(folder / "config.json", {"format": 1, "config": fields | {"seed": seed, "preset": "default"} | config})
    origin = {"command": "oal train", "commit": "0123456789ab", "versions": {}}
    write(folder / "metadata.json", origin | {"expert_return": EXPERT, "random_return": 0.0})
    steps = sorted({*evaluations, *behaviour})
    write(folder / "status.json", {"status": "finished", "step": steps[-1]})
    lines = []
    for step in steps:
        record: dict[str, Any] = {"step": step, "seconds": 1.0, "return": None}
        if step in behaviour:
            record["return"] = EXPERT * behaviour[step]
        if step in evaluations:
            record["evaluation_return"] = EXPERT * evaluations[step]
        if distances and step in distances:
            record["evaluation_distance"] = distances[step]
        lines.append(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


QUICK = {0: 0.5, 5_000: 0.95, 10_000: 0.8, 15_000: 0.92, 20_000: 1.0, 25_000: 0.97}
SLOW = {0: 0.3, 5_000: 0.2, 10_000: 0.4, 15_000: 0.5, 20_000: 0.6, 25_000: 0.7}


def test_a_runs_scores(tmp_path: Path) -> None:
    made(tmp_path / "run", QUICK, {10_000: 0.4, 20_000: 0.8, 25_000: 1.0})
    found = suite.scores(suite.read([tmp_path])[0])
    assert found.clone == pytest.approx(0.5)
    assert found.evaluation[10_000] == pytest.approx(0.8)
    assert found.evaluation[25_000] == pytest.approx(0.97)
    assert np.isnan(found.evaluation[50_000])
    assert found.behaviour[25_000] == pytest.approx(1.0)
    assert found.area == pytest.approx((10 * 0.4 + 10 * 0.8 + 5 * 1.0) / 25)
    assert found.first == 5_000
    assert found.kept == pytest.approx(4 / 5)
    assert found.least == pytest.approx(0.8)


def test_the_selected_policy_is_the_nearest_so_far(tmp_path: Path) -> None:
    longer = {step: 1.0 - step / 100_000 for step in range(0, 30_000, 5_000)}
    # the clone is the nearest until 10,000; 20,000 is nearer, 25,000 is not
    near = {0: 0.3, 5_000: 0.5, 10_000: 0.31, 15_000: 0.2, 20_000: 0.1, 25_000: 0.15}
    made(tmp_path / "known", longer, {25_000: 1.0}, distances=near)
    made(tmp_path / "unknown", longer, {25_000: 1.0}, seed=1)
    known, unknown = (suite.scores(run) for run in suite.read([tmp_path]))
    assert known.selected[10_000] == pytest.approx(longer[0])
    assert known.selected[25_000] == pytest.approx(longer[20_000])
    assert np.isnan(known.selected[50_000])
    assert np.isnan(unknown.selected[25_000])


def test_runs_that_never_get_there_keep_nothing_and_those_without_an_expert_are_left_out(
    tmp_path: Path, capsys
) -> None:
    made(tmp_path / "a", QUICK, {25_000: 1.0})
    made(tmp_path / "b", SLOW, {25_000: 0.5}, seed=1)
    made(tmp_path / "c", {0: 0.5}, {}, seed=2)
    late = made(tmp_path / "late", {30_000: 1.0}, {5_000: 0.1, 30_000: 1.0}, seed=3)
    unknown = made(tmp_path / "unknown", QUICK, {25_000: 1.0}, seed=4)
    metadata = json.loads((unknown / "metadata.json").read_text())
    (unknown / "metadata.json").write_text(json.dumps(metadata | {"expert_return": None}))
    runs = suite.read([tmp_path])
    assert f"{unknown} is left out: its demonstrations have no rewards" in " ".join(capsys.readouterr().err.split())
    found = {run.seed: suite.scores(run) for run in runs}
    assert found.keys() == {0, 1, 2, 3}
    assert (found[0].kept, found[1].kept) == (pytest.approx(4 / 5), 0.0)
    assert np.isnan(found[2].kept)
    assert np.isnan(suite.scores(suite.read([late])[0]).evaluation[10_000]), "not evaluated until then"
    for runs_in_any_order in (runs, runs[::-1]):
        (row,) = suite.rows(runs_in_any_order)
        assert row["kept (worst)"] == 0.0
        assert row["lowest evaluation"] == pytest.approx(0.2)


def test_the_table_has_means_and_the_worst_seed_beside_them(tmp_path: Path) -> None:
    made(tmp_path / "a", QUICK, {25_000: 1.0})
    made(tmp_path / "b", SLOW, {25_000: 0.5}, seed=1)
    made(tmp_path / "c", SLOW, {25_000: 0.5}, trajectories=10, subsample=20, demos="others/Walker2d-v5.npz")
    made(tmp_path / "d", QUICK, {25_000: 0.9}, env="Humanoid-v5")
    per_task, overall, _ = suite.write(suite.read([tmp_path]), tmp_path / "out")
    one = next(row for row in per_task if (row["regime"], row["task"]) == ("one", "Walker2d-v5"))
    assert (one["demonstrations"], one["seeds"]) == ("shipped", 2)
    assert one["evaluation 25k"] == pytest.approx((0.97 + 0.7) / 2)
    assert one["evaluation 25k (worst)"] == pytest.approx(0.7)
    assert one["evaluation 50k"] is None
    # the upper of two middle seeds: half of them had reached it by then
    assert (one["first at 0.9"], one["first at 0.9 (worst)"]) == ("never", "never")
    assert one["lowest evaluation"] == pytest.approx(0.2)
    few = next(row for row in per_task if row["regime"] == "subsampled")
    assert (few["demonstrations"], few["clone"]) == ("others", pytest.approx(0.3))
    assert {(row["regime"], row["tasks"], row["runs"]) for row in overall} == {
        ("one", "Humanoid-v5", 1),
        ("one", "the other tasks", 2),
        ("subsampled", "the other tasks", 1),
    }
    assert json.loads((tmp_path / "out" / "suite.json").read_text())["commits of the runs"] == ["0123456789ab"]
    drawn = (tmp_path / "out" / "suite.svg").read_text()
    assert all(f">{title}<" in drawn for title in ("Walker2d-v5", "Walker2d-v5 (others)", "Humanoid-v5", "subsampled"))
    assert drawn.count(plots.COLOURS[0].lower()) == 4  # a line for each run


def test_every_run_is_compared_with_its_own_clones(tmp_path: Path) -> None:
    gains = {"Walker2d-v5": [0.1, 0.2, 0.3], "Hopper-v5": [0.5, 0.5, 0.8]}
    for task, gained in gains.items():
        for seed, gain in enumerate(gained):
            curve = {0: 0.2 * seed, 10_000: 0.2 * seed + gain}
            made(tmp_path / f"{task}-{seed}", curve, {10_000: 0.2 * seed - gain}, seed=seed, env=task)
    made(tmp_path / "alone", {0: 0.2, 10_000: 0.9}, {10_000: 0.5}, env="Humanoid-v5")
    decided = {claim.where: claim for claim in suite.claims(suite.read([tmp_path]))}
    assert len(decided) == 2 * 4
    places = ("2 tasks", "Walker2d-v5", "Humanoid-v5")
    both, one, alone = (decided[f"one, {place}, evaluation at 10,000 steps"] for place in places)
    assert (alone.difference.mean, alone.verdict) == (pytest.approx(0.7), "undecided")
    # one task: Student's interval of the three gains, t = 4.303 for two degrees of freedom
    assert one.difference.mean == pytest.approx(0.2)
    assert one.difference.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert one.verdict == "undecided"
    # two tasks: a quarter of the variances of both means, Satterthwaite's degrees of freedom
    variances = [0.01 / 3, 0.03 / 3]
    freedom = sum(variances) ** 2 / sum(variance**2 / 2 for variance in variances)
    half_width = stats.t.ppf(0.975, freedom) * sum(variances) ** 0.5 / 2
    assert (both.difference.mean, both.difference.half_width) == pytest.approx((0.4, half_width))
    assert (both.verdict, both.seeds) == ("holds", 3)
    assert decided["one, 2 tasks, area under the behaviour's curve"].verdict == "fails"
    suite.write(suite.read([tmp_path]), tmp_path / "out")
    assert (tmp_path / "out" / "claims.csv").read_text().count("\n") == 1 + 2 * 4


@pytest.mark.parametrize("regime", suite.REGIMES)
def test_the_sweep_files_are_the_suites_shipped_part(regime: str, tmp_path: Path) -> None:
    planned = suite.plan(regime, tmp_path)
    read = Sweep.read(ROOT / "experiments" / f"suite-{regime}.toml", out=tmp_path)
    assert {run.name for run in planned.runs()} == {run.name for run in read.runs()}
    assert len(planned.runs()) == 9


def test_other_peoples_demonstrations_are_found_by_their_task(tmp_path: Path) -> None:
    for name in ("Walker2d-v3.npz", "Humanoid-v5.npz", "Pendulum-v1.npz"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match="no folder"):
        suite.plan("one", tmp_path, folders=[tmp_path / "nowhere"])
    sources = suite.sources([tmp_path])
    assert [each for each in sources if "demos" in each] == [
        {"env": "Humanoid-v5", "demos": str(tmp_path / "Humanoid-v5.npz")},
        {"env": "Walker2d-v5", "demos": str(tmp_path / "Walker2d-v3.npz")},
    ]
