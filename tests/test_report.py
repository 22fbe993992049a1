"""Reports of run folders: reading, grouping, numbers, files and bad input. The page itself: test_report_browser.py."""

import csv
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from made_runs import CERTIFICATE, EXPERT, GIF, RANDOM, made_clone, make_run, make_study, write
from oal import report
from oal.base import plots
from oal.cli import app
from oal.deep.bc import BCConfig
from oal.demos import Demos, Trajectory
from oal.errors import InputError
from oal.lab import run as lab_run
from oal.report import as_in_the_paper, charts, curves, groups, pictures, results, summary
from oal.report.statistics import Interval


def read_groups(*paths: Path) -> list[groups.Group]:
    return groups.group(results.read(paths).runs)


def named(found: list[groups.Group]) -> list[tuple[str, str, int]]:
    return [(each.task, each.algorithm, len(each.runs)) for each in found]


def page_of(folder: Path, **options) -> str:
    return report.write([folder], folder / "report.html", **options)[0].read_text()


def text_of(page: str) -> str:
    """Return the page's text without elements."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<body>")[1]))


# Reading -------------------------------------------------------------------------------------------------------------


def test_a_run_is_read(tmp_path):
    make_run(tmp_path / "a", seed=3, steps=5_000)
    (run,) = results.read([tmp_path]).runs
    assert (run.task, run.seed, run.status) == ("Hopper-v5", 3, "finished")
    assert run.steps.tolist() == [1_000, 2_000, 3_000, 4_000, 5_000]
    assert np.isnan(run.returns["behaviour"]).tolist() == [False, False, True, False, False]
    assert np.isfinite(run.returns["evaluation"]).tolist() == [False, False, False, False, True]
    scaled = run.values("evaluation", normalised=True)[-1]
    raw = run.values("evaluation", normalised=False)[-1]
    assert scaled == pytest.approx((raw - RANDOM["Hopper-v5"]) / (EXPERT["Hopper-v5"] - RANDOM["Hopper-v5"]))


def test_each_folder_is_read_once(tmp_path):
    make_run(tmp_path / "a")
    assert len(results.read([tmp_path, tmp_path / "a", tmp_path / "a" / ".." / "a"]).runs) == 1


def test_a_copy_does_not_count_as_another_seed(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    found = results.read([tmp_path])
    assert len(found.runs) == 1
    assert [(each.status, each.reason) for each in found.failures] == [
        ("left out", f"the same config and seed as {tmp_path / 'a'}")
    ]


def test_of_runs_that_are_the_same_a_finished_one_counts(tmp_path):
    make_run(tmp_path / "a")
    write(tmp_path / "a" / "status.json", {"status": "stopped", "step": 5})
    make_run(tmp_path / "b")
    make_run(tmp_path / "c")
    found = results.read([tmp_path])
    assert [run.name for run in found.runs] == [str(tmp_path / "b")]
    assert {each.reason for each in found.failures} == {f"the same config and seed as {tmp_path / 'b'}"}


def test_runs_without_rewards_count_by_what_they_say(tmp_path):
    folder = make_run(tmp_path / "a")
    records = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    silent = [record | {"return": None, "evaluation_return": None, "al_regret_l2": 0.5} for record in records]
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in silent))
    metadata = json.loads((tmp_path / "a" / "metadata.json").read_text())
    write(tmp_path / "a" / "metadata.json", metadata | {"expert_return": None, "random_return": None})
    assert len(results.read([tmp_path]).runs) == 1, folder
    report.write([tmp_path], tmp_path / "report.html", csv=True)
    page = (tmp_path / "report.html").read_text()
    assert "No run could be counted" not in page


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{]")


def break_status(folder: Path) -> None:
    write(folder / "status.json", {"status": "asleep"})


def lose_the_environment(folder: Path) -> None:
    write(folder / "config.json", {"format": 1, "config": {"seed": 0}})


def lose_metadata(folder: Path) -> None:
    (folder / "metadata.json").unlink()


def come_from_the_future(folder: Path) -> None:
    write(folder / "config.json", {"format": 99, "config": {"env": "Hopper-v5"}})


def go_back_in_steps(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "return": 3}\n')


def write_words_for_numbers(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99000, "return": "much"}\n')


def write_words_for_scales(folder: Path) -> None:
    write(folder / "metadata.json", {"expert_return": "high", "random_return": 0})


def lose_all_records(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


def fail(folder: Path) -> None:
    trace = "Traceback (most recent call last):\nOSError: no room on the disk"
    write(folder / "status.json", {"status": "failed", "step": 5, "error": "no room on the disk", "traceback": trace})


@pytest.mark.parametrize(
    "damage, reason",
    [
        (break_config, "not valid JSON"),
        (break_status, "'asleep'"),
        (lose_the_environment, "names no environment"),
        (lose_metadata, "there is no such file"),
        (come_from_the_future, "later version"),
        (go_back_in_steps, "do not increase"),
        (write_words_for_numbers, "'much'"),
        (write_words_for_scales, "'high'"),
        (lose_all_records, "no record of any return"),
        (fail, "no room on the disk\nTraceback (most recent call last):"),
    ],
)
def test_a_damaged_folder_is_reported_and_the_others_go_on(tmp_path, damage, reason):
    make_run(tmp_path / "good")
    damage(make_run(tmp_path / "bad", seed=1))
    found = results.read([tmp_path])
    assert [run.folder.path.name for run in found.runs] == ["good"]
    assert [each.name for each in found.failures] == [str(tmp_path / "bad")]
    assert reason in found.failures[0].reason
    text = text_of(page_of(tmp_path))
    assert "1 run of 1 algorithm on 1 task" in text
    assert str(tmp_path / "bad") in text


def test_a_line_cut_short_is_no_damage(tmp_path):
    folder = make_run(tmp_path / "a", steps=4_000, status={"status": "running"})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50')
    (run,) = results.read([tmp_path]).runs
    assert run.steps.size == 4


def test_numbers_that_are_not_finite_are_missing(tmp_path):
    folder = make_run(tmp_path / "a", steps=2_000)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3000, "return": NaN}\n{"step": 4000, "return": 1e999}\n')
        file.write(f'{{"step": 5000, "return": {10**400}}}\n')
    (run,) = results.read([tmp_path]).runs
    assert np.isnan(run.returns["behaviour"][2:]).all()
    assert "nan" not in text_of(page_of(tmp_path)).lower()


def test_no_runs(tmp_path):
    with pytest.raises(InputError, match="no runs to report"):
        report.write([], tmp_path / "report.html")
    nowhere = [tmp_path / "nowhere", tmp_path]
    with pytest.raises(InputError, match=r"no runs to report.*nowhere"):
        report.write(nowhere, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_only_broken_runs_still_make_a_page(tmp_path):
    fail(make_run(tmp_path / "a"))
    text = text_of(page_of(tmp_path, csv=True, png=True, latex_table=True))
    assert "No run could be counted" in text
    assert "no room on the disk" in text


def test_runs_of_experts_are_left_out(tmp_path):
    make_run(tmp_path / "a")
    folder = make_run(tmp_path / "expert", seed=1)
    write(folder / "config.json", {"format": 1, "kind": "expert", "config": {"env_id": "Hopper-v5"}})
    found = results.read([tmp_path])
    assert len(found.runs) == 1
    assert found.failures == []
    assert found.notices == ["Training runs of experts are left out: 1."]


# Grouping ------------------------------------------------------------------------------------------------------------


def test_seeds_are_grouped_and_labels_say_what_differs(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"l{seed}", cost="linear", seed=seed)
        make_run(tmp_path / f"n{seed}", cost="neural", seed=seed)
    assert named(read_groups(tmp_path)) == [("Hopper-v5", "linear", 2), ("Hopper-v5", "neural", 2)]


def test_fields_that_follow_from_the_label_are_not_in_it(tmp_path):
    make_run(tmp_path / "a", policy="mdpo", policy_config={"kl_weight": 0.02})
    make_run(tmp_path / "b", policy="trpo", policy_config={"max_kl": 0.01})
    make_run(tmp_path / "c", policy="trpo", preset="paper", policy_config={"max_kl": 0.01})
    labels = [each.algorithm for each in read_groups(tmp_path)]
    assert labels == ["mdpo", "trpo, default", "trpo, paper"]


def test_other_fields_tell_apart_what_the_main_ones_do_not(tmp_path):
    for weight in (1, 10):
        make_run(tmp_path / f"neural{weight}", cost="neural", cost_config={"gradient_penalty": weight})
    make_run(tmp_path / "linear", cost="linear", cost_config={"step": 0.05})
    labels = {each.algorithm for each in read_groups(tmp_path)}
    assert labels == {"neural, gradient penalty 1", "neural, gradient penalty 10", "linear"}


def test_clones_are_called_what_they_are(tmp_path):
    """They have no players, so that there is nothing else to call them by."""
    for cost in ("linear", "neural"):
        make_run(tmp_path / cost, env="Hopper-v5", cost=cost, trajectories=10)
    made_clone(tmp_path / "clone", lab_run.CloneConfig("Hopper-v5", BCConfig()), 0.4)
    assert set(groups.algorithms(read_groups(tmp_path))) == {"mdpo, linear", "mdpo, neural", "BC"}
    made_clone(tmp_path / "fewer", lab_run.CloneConfig("Hopper-v5", BCConfig(), trajectories=4), 0.4)
    found = set(groups.algorithms(read_groups(tmp_path)))
    assert found == {"mdpo, linear", "mdpo, neural", "BC, trajectories 10", "BC, trajectories 4"}


def test_what_differs_between_tasks_only_belongs_to_the_task(tmp_path):
    for env, steps in (("Hopper-v5", 8_000), ("HalfCheetah-v5", 10_000)):
        for cost in ("linear", "neural"):
            make_run(tmp_path / f"{env}{cost}", env=env, steps=steps, cost=cost)
    found = read_groups(tmp_path)
    assert [each.task for each in found] == ["HalfCheetah-v5"] * 2 + ["Hopper-v5"] * 2
    assert groups.algorithms(found) == ["linear", "neural"]


def test_algorithms_of_different_tasks_are_not_mixed(tmp_path):
    make_run(tmp_path / "a", env="Hopper-v5", policy="mdpo")
    make_run(tmp_path / "b", env="HalfCheetah-v5", policy="trpo")
    assert groups.algorithms(read_groups(tmp_path)) == ["trpo", "mdpo"]


def test_one_algorithm_is_named_by_its_players(tmp_path):
    make_run(tmp_path / "a")
    assert named(read_groups(tmp_path)) == [("Hopper-v5", "mdpo, neural", 1)]


def test_the_same_last_name_of_two_fields_is_written_in_full(tmp_path):
    for policy_lr, cost_lr in ((1, 1), (1, 2), (2, 1)):
        config = {"policy_config": {"lr": policy_lr}, "cost_config": {"lr": cost_lr}}
        make_run(tmp_path / f"{policy_lr}{cost_lr}", **config)
    labels = {each.algorithm for each in read_groups(tmp_path)}
    assert len(labels) == 3
    assert "policy config.lr 2" in labels
    assert "policy config.lr 1, cost config.lr 2" in labels


def test_different_lengths_on_one_task_are_different_algorithms_and_said(tmp_path):
    make_run(tmp_path / "a", steps=5_000)
    make_run(tmp_path / "b", steps=9_000)
    assert [each.algorithm for each in read_groups(tmp_path)] == ["total steps 5000", "total steps 9000"]
    assert "runs of different lengths (5,000, 9,000 steps)" in text_of(page_of(tmp_path))


def test_unfinished_runs_are_drawn_but_not_judged(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"{seed}", seed=seed, top=1.0)
    half = make_run(tmp_path / "half", seed=2, steps=4_000, total_steps=20_000, status={"status": "stopped"})
    (group,) = read_groups(tmp_path)
    assert len(group.runs) == 3
    assert summary.scores(group, summary.FINAL_EVALUATION).size == 2
    curve = curves.learning_curve(group, "behaviour")
    assert curve is not None
    assert curve.seeds.max() == 3
    assert curve.seeds[-1] == 2
    text = text_of(page_of(tmp_path))
    assert "1 of 3 runs unfinished" in text
    assert "4,000 of 20,000 steps so far" in text
    (alone,) = read_groups(half)
    assert summary.scores(alone, summary.FINAL_BEHAVIOUR).size == 1


# Numbers -------------------------------------------------------------------------------------------------------------


def test_curves_average_the_seeds(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"{seed}", seed=seed)
    (group,) = read_groups(tmp_path)
    curve = curves.learning_curve(group, "evaluation")
    assert curve is not None
    assert curve.steps.tolist() == [5_000, 10_000, 15_000, 20_000]
    values = [run.returns["evaluation"][np.isfinite(run.returns["evaluation"])] for run in group.runs]
    np.testing.assert_allclose(curve.band.value, np.mean(values, axis=0))
    assert (curve.band.low <= curve.band.value).all()
    assert (curve.band.value <= curve.band.high).all()


def test_long_curves_are_binned_without_losing_a_record(tmp_path):
    make_run(tmp_path / "a", steps=600_000, half=200_000)
    (group,) = read_groups(tmp_path)
    curve = curves.learning_curve(group, "behaviour")
    assert curve is not None
    assert curve.steps.size == curves.POINTS["behaviour"]
    run = group.runs[0]
    inside = (run.steps > curve.steps[4]) & (run.steps <= curve.steps[5])
    assert curve.band.value[5] == pytest.approx(np.nanmean(run.returns["behaviour"][inside]))


def test_the_summary_is_that_of_the_runs(tmp_path):
    study = make_study(tmp_path / "runs")
    found = read_groups(study)
    group = next(each for each in found if (each.task, each.algorithm) == ("Hopper-v5", "linear"))
    last = [run.values("evaluation", normalised=True)[-1] for run in group.judged]
    estimate = summary.estimate(group, summary.FINAL_EVALUATION)
    assert estimate is not None
    assert estimate.value == pytest.approx(np.mean(last))
    assert estimate.low < min(last) < estimate.value < max(last) < estimate.high, (
        "three seeds show little of their spread"
    )
    reached = summary.reached(group, 0.5, "evaluation")
    assert reached is not None
    assert reached.first_seeds == reached.seeds == 3
    assert reached.first in (10_000, 15_000)
    never = summary.reached(group, 5.0, "evaluation")
    assert never is not None
    assert (never.first, never.first_seeds) == (np.inf, 0)


def test_the_table_of_milestones_has_the_same_last_tenth_as_everything_else(tmp_path):
    """Evaluations at 45,000 steps are not of the last tenth of 50,000."""
    for seed in range(2):
        folder = make_run(tmp_path / str(seed), env="Other-v0", seed=seed, steps=50_000)
        levels = {25_000: 40.0, 45_000: 10.0, 46_000: 50.0 + seed, 50_000: 95.0}
        records = [{"step": step, "return": 2.0, "evaluation_return": value} for step, value in levels.items()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    groups = read_groups(tmp_path)
    early, late = summary.at_milestones(groups)
    assert (early["task"], early["steps"], early["seeds"]) == ("Other-v0", 25_000, 2)
    assert (early["evaluation"], early["kept"]) == (pytest.approx(0.4), pytest.approx(0.25))
    assert late["steps"] == 50_000
    assert late["evaluation"] == pytest.approx(np.mean([0.725, 0.73]))
    assert late["evaluation_least"] == pytest.approx(0.725)
    assert late["evaluation_low"] <= late["evaluation"] <= late["evaluation_high"]
    assert (late["behaviour"], late["kept"]) == (pytest.approx(0.02), 1.0)
    final = summary.estimate(groups[0], summary.FINAL_EVALUATION)
    assert final is not None
    assert late["evaluation"] == final.value, "the report's final value, and the one that claims are decided by"


def test_returns_are_normalised_by_all_demonstrations_of_the_source(tmp_path):
    """However few of them were learned from: runs on one and on ten of them then have the same expert."""
    lab_run.clone(
        "CartPole-v1", tmp_path / "run", source=str(_cart_poles(tmp_path)), trajectories=2, config=BCConfig(epochs=1)
    )
    run = report.read([tmp_path / "run"]).runs[0]
    assert run.metadata["held_out_return"] == pytest.approx(12.0)
    assert run.expert_return == pytest.approx(30.0)
    raw, normalised = (run.values("evaluation", normalised=flag)[0] for flag in (False, True))
    assert run.source_return == pytest.approx(24.0)
    assert normalised == pytest.approx((raw - run.random_return) / (24.0 - run.random_return))
    # a run of before the source's return was recorded
    earlier = replace(run, metadata={name: x for name, x in run.metadata.items() if name != "source_return"})
    assert earlier.source_return == pytest.approx(30.0)


def _cart_poles(folder: Path) -> Path:
    """Save demonstrations of 20, 40 and 12 steps; a step earns 1."""
    made = [
        Trajectory(np.zeros((n + 1, 4), np.float32), np.arange(n) % 2, np.ones(n, np.float32), terminated=True)
        for n in (20, 40, 12)
    ]
    Demos(made, env_id="CartPole-v1").save(folder / "demos.npz")
    return folder / "demos.npz"


def test_intervals_do_not_stretch_the_papers_axes():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.plot([0, 1], [np.nan, 10.0])
    axes.plot([0, 1], [0.0, 5.0])
    axes.fill_between([0, 1], -1_000, 1_000)
    as_in_the_paper._hold_lines(axes)
    assert axes.get_ylim() == pytest.approx((-1.0, 11.0))


def test_the_papers_figure_has_its_rows_columns_and_lines(tmp_path):
    for env, policy, cost, seed in itertools.product(
        ("Humanoid-v5", "HalfCheetah-v5"), ("trpo", "mdpo"), ("gail", "linear"), range(2)
    ):
        folder = tmp_path / "runs" / f"{env}-{policy}-{cost}-{seed}"
        make_run(folder, env=env, policy=policy, cost=cost, seed=seed, steps=8_000)
    clone = lab_run.CloneConfig("Humanoid-v5", BCConfig())
    made_clone(tmp_path / "runs" / "clone", clone, 0.4)
    assert as_in_the_paper.draw(tmp_path / "figure", report.read([tmp_path / "runs"]).runs) == tmp_path / "figure.png"
    written = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "figure.svg").read_text())
    for before, after in (("HalfCheetah-v5", "Humanoid-v5"), ("MDPO", "TRPO")):
        assert written.index(before) < written.index(after), "columns and rows in the paper's order"
    for label in ("OAL, linear costs", "GAIL", "expert", "BC"):
        assert written.count(label) == 1
    assert not any("from scratch" in word for word in written), "what all lines share is not said"
    make_run(tmp_path / "runs" / "other", env="Humanoid-v5", cost="gail", seed=0, bc_config={"updates": 9}, steps=8_000)
    as_in_the_paper.draw(tmp_path / "figure", report.read([tmp_path / "runs"]).runs)
    assert "GAIL, cloned" in (tmp_path / "figure.svg").read_text()
    assert as_in_the_paper.draw(tmp_path / "none", report.read([tmp_path / "runs" / "clone"]).runs) is None


def test_aggregates_use_the_tasks_that_all_share(tmp_path):
    for env in EXPERT:
        make_run(tmp_path / f"{env}", env=env, cost="linear")
    make_run(tmp_path / "more", env="Hopper-v5", cost="neural")
    aggregate = summary.aggregate(read_groups(tmp_path), summary.AREA)
    assert aggregate is not None
    assert aggregate.tasks == ("Hopper-v5",)
    text = text_of(page_of(tmp_path))
    assert "Left out, since an algorithm has no normalised returns there: HalfCheetah-v5." in text


def test_without_a_scale_returns_stay_as_they_are(tmp_path):
    make_run(tmp_path / "a", metadata={"expert_return": None})
    (group,) = read_groups(tmp_path)
    assert summary.estimate(group, summary.AREA) is None
    assert summary.estimate(group, summary.AREA, normalised=False) is not None
    text = text_of(page_of(tmp_path, csv=True, latex_table=True))
    assert "1 of 1 runs cannot be normalised" in text
    assert "nothing to aggregate" in text


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    make_study(folder / "runs", seeds=2)
    runner = CliRunner()
    words = ["report", str(folder / "runs"), "-o", str(folder / "out" / "study.html"), "--title", "A study"]
    done = runner.invoke(app, [*words, "--csv", "--png", "--latex-table"])
    assert done.exit_code == 0, done.output
    return folder / "out", done.output


def test_the_command_writes_what_it_says(written):
    folder, output = written
    names = {Path(line).name for line in output.split()}
    assert {
        "study.html",
        "study.csv",
        "study-steps.csv",
        "study.tex",
        "study-behaviour.png",
        "study-evaluation.png",
    } <= names
    assert all((folder / name).stat().st_size > 500 for name in names)
    assert not list(folder.glob("*.part*"))


def test_the_page_holds_everything(written):
    folder, _ = written
    page = (folder / "study.html").read_text()
    text = text_of(page)
    assert "<title>A study</title>" in page
    for wanted in ("Hopper-v5", "HalfCheetah-v5", "oal learn Hopper-v5 --seed 1", "0123456789ab"):
        assert wanted in text
    assert "FloatingPointError: the critic&#x27;s loss is nan" in page
    assert "not valid JSON" in text
    assert page.count("data:image/gif;base64,") == 2
    assert all(colour in page for colour in plots.COLOURS)
    assert "http://" not in page.replace('http-equiv="', "")
    assert "https://" not in page


def test_the_table_of_numbers_is_tidy(written):
    folder, _ = written
    with (folder / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [tuple(row[name] for name in ("task", "algorithm", "quantity", "scale", "estimator")) for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(row["value"] == "" or np.isfinite(float(row["value"])) for row in rows)
    quantities = {row["quantity"] for row in rows}
    assert set(summary.MEASURES) <= quantities
    assert "steps to 90% of the expert, evaluation, and stays" in quantities
    found = read_groups(folder.parent / "runs")
    group = next(each for each in found if (each.task, each.algorithm) == ("Hopper-v5", "gail"))
    wanted = summary.estimate(group, summary.AREA, "inter-quartile mean")
    place = ("Hopper-v5", "gail", summary.AREA, "normalised", "inter-quartile mean")
    row = rows[keys.index(place)]
    assert tuple(float(row[name]) for name in ("value", "low", "high")) == pytest.approx(wanted)
    assert any(row["estimator"] == "probability of beating neural" for row in rows)


def test_the_latex_table(written):
    folder, _ = written
    lines = (folder / "study.tex").read_text().splitlines()
    assert lines[1].startswith(r"\begin{tabular}")
    assert [lines.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}")] == [1, 2, 1, 1]
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 1 + 6
    assert {line.count("&") for line in body} == {6}
    assert summary.latex("a_b & 50% of $x^2$ {\\x}") == (
        r"a\_b \& 50\% of \$x\textasciicircum{}2\$ \{\textbackslash{}x\}"
    )


def test_pictures_have_the_page_s_colours(written):
    folder, _ = written
    drawn = (folder / "study-behaviour.svg").read_text().lower()
    assert all(plots.COLOURS[place].lower() in drawn for place in range(3))
    assert pictures._style(8)["ls"] == "--"


def test_the_same_runs_make_the_same_page(tmp_path):
    make_study(tmp_path / "runs", seeds=1)
    first = report.write([tmp_path / "runs"], tmp_path / "report.html")[0].read_bytes()
    assert report.write([tmp_path / "runs"], tmp_path / "report.html")[0].read_bytes() == first


def test_costs_with_many_features_show_the_largest(tmp_path):
    folder = make_run(tmp_path / "a", cost="linear")
    weights = np.linspace(0, 1, 100).tolist()
    write(folder / "cost.json", {"features": [f"f{i}" for i in range(100)], "weights": weights, "absorbing": 0.5})
    page = page_of(tmp_path)
    assert "(the 30 largest of 100)" in page
    assert ">f99<" in page
    assert ">f69<" not in page
    assert ">absorbing state<" in page


def test_certificates_lead_with_the_sentence_and_stand_on_one_scale(tmp_path):
    folder = make_run(tmp_path / "a")
    write(folder / "certificate.json", CERTIFICATE)
    page = page_of(tmp_path)
    text = text_of(page).split("Imitation certificates")[-1]
    said = (
        "Seed 0: indistinguishable from the expert on 10 episodes. Compared with 15 demonstrations that were held out"
    )
    assert said in text
    assert text.index(said) < text.index("linear cost, L2")
    assert "linear cost, L2 0 0.013 [0, 0.058] 0.11 0.4 as two experts" in text
    assert "return 0 3,500 ± 80 3,700 2,900 – less than the expert" in text
    assert "position 1 0 1.21 1.35 0.05 −2.8 sd" in text
    assert ": where the learner differs" in text
    flattering = "None of the 15 demonstrations is held out."
    write(folder / "certificate.json", {**CERTIFICATE, "compared": flattering, "against": "training"})
    assert f"Seed 0: {flattering} indistinguishable from the expert on 10 episodes." in text_of(page_of(tmp_path))
    old = {name: entry for name, entry in CERTIFICATE.items() if name not in ("sentence", "compared", "differences")}
    old["linear_l2"] = {"name": "linear, L2", "value": 0.21, "low": 0.12, "high": 0.3, "scale": 0.19, "p_value": 0.4}
    write(folder / "certificate.json", old)
    assert "linear, L2 (unscaled) 0 0.21 [0.12, 0.3] – 0.4" in text_of(page_of(tmp_path))


def test_the_regret_is_drawn(tmp_path):
    folder = make_run(tmp_path / "a")
    assert "AL regret" not in page_of(tmp_path)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"al_regret_l2": 1e3 / record["step"]}) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = page_of(tmp_path)
    assert "AL regret per episode" in text_of(page)
    assert page.count("<polyline") == 1 + page_of(make_run(tmp_path / "other" / "b").parent).count("<polyline")


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("cost.json", {"features": ["a"], "weights": [1, 2]}, "lists of one length"),
        ("cost.json", {"features": ["a"], "weights": ["b"]}, "not a number"),
        ("cost.json", [], "not a JSON object"),
        ("certificate.json", {"kernel": {"value": "small"}}, "not a number"),
        ("certificate.json", 3, "not a JSON object"),
    ],
)
def test_damaged_extras_are_said_and_the_run_counts(tmp_path, name, content, reason):
    folder = make_run(tmp_path / "a")
    write(folder / name, content)
    text = text_of(page_of(tmp_path))
    assert "1 run of 1 algorithm" in text
    assert reason in text.split("Failed, unfinished and left out")[-1]


def test_films_that_are_too_large_or_no_gifs_are_left_out(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "a")
    (folder / "video.gif").write_bytes(b"<script>")
    (folder / "expert.gif").write_bytes(GIF)
    page = page_of(tmp_path)
    assert "is not a GIF" in page
    assert page.count("data:image/gif") == 1
    (folder / "video.gif").write_bytes(GIF + b"\0" * 5 * 2**20)
    assert "5.0 MB, too much for this page" in page_of(tmp_path)


def test_many_algorithms_differ_in_dashes(tmp_path):
    for number in range(9):
        make_run(tmp_path / f"{number}", trajectories=number, steps=5_000)
    page = page_of(tmp_path)
    assert 'class="line s1 d0"' in page
    assert 'class="line s1 d1"' in page


@pytest.mark.parametrize("low, high", [(0, 1), (-280, 4200), (0, 3e6), (0.1234, 0.1239), (-5e-7, 2e-7), (1e9, 3e9)])
def test_ticks_are_round_and_few(low, high):
    found = charts.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert low <= found[0] < found[-1] <= high
    np.testing.assert_allclose(np.diff(found), found[1] - found[0], rtol=1e-6)


@pytest.mark.parametrize(
    "value, text",
    [(150_000, "150k"), (3_000_000, "3M"), (1_250_000, "1,250k"), (4_200, "4,200"), (0.25, "0.25"), (-2.5, "−2.5"),
     (12_345, "12,345"), (float("inf"), "–"), (0, "0")],
)  # fmt: skip
def test_short_numbers(value, text):
    assert charts.short(value) == text


def test_written_intervals():
    assert charts.written(Interval(0.974, 0.931, 1.0)) == "0.97 [0.93, 1.00]"
    assert charts.written(Interval(-0.001, -0.25, 0.1)) == "0.00 [−0.25, 0.10]"
    assert charts.written(Interval(0.5, float("nan"), float("nan"))) == "0.50"


def test_bad_commands(tmp_path):
    runner = CliRunner()
    done = runner.invoke(app, ["report", str(tmp_path / "nowhere"), "-o", str(tmp_path / "r.html")])
    assert isinstance(done.exception, InputError)
    assert "no runs to report" in str(done.exception)
    make_run(tmp_path / "a")
    done = runner.invoke(app, ["report", str(tmp_path / "a"), "-o", str(tmp_path / "r.pdf")])
    assert isinstance(done.exception, InputError)
    assert "must be an .html file" in str(done.exception)


def test_the_helper_writes_the_contract(tmp_path):
    """What the tests make up is what `oal.base.folder` reads."""
    from oal.base.folder import RunFolder

    folder = RunFolder.open(make_run(tmp_path / "a"))
    assert folder.kind == "learner"
    assert folder.config["env"] == "Hopper-v5"
    assert json.loads(folder.metrics.read_text().splitlines()[4])["evaluation_return"] is not None
