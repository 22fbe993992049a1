"""The paper's deep figures as sweeps: what they run, and that one goes from nothing to a report."""

import json
from pathlib import Path

import pytest

from made_runs import make_run
from oal.errors import InputError
from oal.lab import deep_figures
from oal.lab.executors import Processes
from oal.lab.sweep import Summary, Sweep


def test_the_papers_scale_is_the_papers(tmp_path: Path) -> None:
    shown = tmp_path / "demonstrations"
    shown.mkdir()
    for env in ("Ant-v5", "Humanoid-v5"):
        (shown / f"{env}.npz").touch()
    sweep = deep_figures.plan("gail-vs-oal", scale="paper", out=tmp_path, demonstrations=[shown])
    configs = [run.config for run in sweep.runs()]
    assert len(configs) == 5 * 5 * 3
    assert {config.env for config in configs} == {
        *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"),
    }
    assert {config.learner.cost for config in configs} == {"linear", "neural", "gail"}
    assert {(c.total_steps, c.trajectories, c.learner.preset, c.learner.policy) for c in configs} == {
        (3_000_000, 10, "paper", "mdpo")
    }
    assert {config.seed for config in configs} == set(range(5))
    assert [config.seed for config in configs[:15]] == [0] * 15, "all tasks and algorithms before the next seed"


def test_on_policy_figures_use_vector_environments(tmp_path: Path) -> None:
    for sweep in (
        deep_figures.plan("gail-vs-oal", scale="small", policy="trpo", out=tmp_path),
        deep_figures.plan("pretraining", scale="small", out=tmp_path),
    ):
        assert {(r.config.learner.policy, r.config.learner.environments) for r in sweep.runs()} == {("trpo", 8)}
        assert {run.config.total_steps for run in sweep.runs()} == {1_000_000}


def test_the_papers_trpo_has_one_environment_and_clones_where_the_paper_does(tmp_path: Path) -> None:
    shown = tmp_path / "demonstrations"
    shown.mkdir()
    for env in ("Ant-v5", "Humanoid-v5"):
        (shown / f"{env}.npz").touch()
    sweep = deep_figures.plan("gail-vs-oal", scale="paper", policy="trpo", out=tmp_path, demonstrations=[shown])
    configs = [run.config for run in sweep.runs()]
    assert len(configs) == 5 * 5 * 3
    assert {config.learner.environments for config in configs} == {1}
    cloned = {(c.env, c.learner.cost) for c in configs if c.learner.bc_config is not None}
    assert cloned == {(env, cost) for env in ("HalfCheetah-v5", "Humanoid-v5") for cost in ("neural", "gail")}
    assert {c.learner.bc_config.epochs for c in configs if c.learner.bc_config} == {1_000}


def test_what_each_figure_varies(tmp_path: Path) -> None:
    lipschitz = [run.config for run in deep_figures.plan("lipschitz", out=tmp_path).runs()]
    assert {(c.learner.cost, c.learner.cost_config.lipschitz) for c in lipschitz} == {  # pyright: ignore
        (cost, weight) for cost in ("neural", "gail") for weight in (0.0, 1.0, 10.0)
    }
    numbers = [run.config for run in deep_figures.plan("trajectories", out=tmp_path).runs()]
    assert {(config.env, config.trajectories) for config in numbers} == {("Walker2d-v5", 1), ("Walker2d-v5", 10)}
    cloned = [run.config for run in deep_figures.plan("pretraining", out=tmp_path).runs()]
    epochs = {None if c.learner.bc_config is None else c.learner.bc_config.epochs for c in cloned}
    assert epochs == {None, 1_000}


def test_missing_demonstrations_and_unknown_names_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="oal expert Ant-v5"):
        deep_figures.plan("gail-vs-oal", scale="paper", out=tmp_path)
    with pytest.raises(InputError, match="figure 'nothing' is unknown"):
        deep_figures.plan("nothing", out=tmp_path)
    with pytest.raises(InputError, match="scale 'huge' is unknown"):
        deep_figures.plan("lipschitz", scale="huge", out=tmp_path)


def test_a_figure_writes_a_report_its_tables_claims_and_where_they_come_from(tmp_path: Path, monkeypatch) -> None:
    def go(sweep: Sweep, executor=None, *, show: bool = False) -> Summary:
        for run in sweep.runs():
            config = run.config
            made = {"trajectories": config.trajectories, "cost": config.learner.cost, "env": config.env}
            make_run(run.folder, seed=config.seed, cost_config={}, bc_config=None, **made)
        return Summary(())

    monkeypatch.setattr(Sweep, "go", go)
    sweep = deep_figures.plan("trajectories", scale="smoke", out=tmp_path)
    _, decided = deep_figures.draw(sweep, tmp_path)
    assert {claim.claim for claim in decided} == {"the number of trajectories hardly matters"}
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {"report.html", "report.csv", "report-steps.csv", "report.tex", "claims.csv", "config.json"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["figure"] == "trajectories"
    assert config["runs"] == [run.name for run in sweep.runs()]
    assert {"command", "commit", "versions"} <= set(config)


@pytest.mark.slow
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", scale="smoke", out=tmp_path)
    outcome, decided = deep_figures.draw(sweep, tmp_path, executor=Processes(2), show=False)
    assert outcome.complete
    assert {claim.claim for claim in decided} == {
        *("OAL is at least as good as GAIL", "linear costs are nearly as good as neural ones"),
    }, "one policy player alone decides nothing about two"
    assert (tmp_path / "claims.csv").read_text().count("\n") == len(decided) + 1
    page = (tmp_path / "report.html").read_text()
    assert all(word in page for word in ("Hopper-v5", "HalfCheetah-v5", "gail", "neural", "linear"))
    assert (tmp_path / "report.csv").exists()
    again, _ = deep_figures.draw(sweep, tmp_path, executor=Processes(2), show=False)
    assert len(again.of("kept")) == 12, "nothing runs twice"
