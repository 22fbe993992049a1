"""The paper's deep figures as sweeps: what they run, and that one goes from nothing to a report."""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import made_clone, make_run
from oal import demos, report
from oal.base.folder import plain
from oal.deep import nets
from oal.deep.bc import PAPER_BC
from oal.deep.loop import OAL
from oal.deep.presets import preset
from oal.errors import InputError
from oal.lab import deep_figures
from oal.lab.claims import Claim
from oal.lab.executors import Inline, Processes
from oal.lab.figures import DEEP, TASKS_OF_PAPER
from oal.lab.looks import Looks
from oal.lab.run import CloneConfig, RunConfig
from oal.lab.sweep import Summary, Sweep


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A folder with demonstrations of the tasks that may not be shipped, for plans that never open them."""
    folder = tmp_path / "demonstrations"
    folder.mkdir()
    for env in TASKS_OF_PAPER:
        (folder / f"{env}.npz").touch()
    return folder


def learners(sweep: Sweep) -> list[RunConfig]:
    return [run.config for run in sweep.runs() if isinstance(run.config, RunConfig)]


def clones(sweep: Sweep) -> list[CloneConfig]:
    return [run.config for run in sweep.runs() if isinstance(run.config, CloneConfig)]


def test_the_papers_scale_is_the_papers(tmp_path: Path, shown: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", scale="paper", policy="mdpo", out=tmp_path, demonstrations=[shown])
    configs = learners(sweep)
    assert len(configs) == 5 * 5 * 3
    assert {config.env for config in configs} == set(TASKS_OF_PAPER)
    assert {config.learner.cost for config in configs} == {"linear", "neural", "gail"}
    assert {(c.total_steps, c.trajectories, c.learner.preset, c.learner.policy) for c in configs} == {
        (3_000_000, 10, "paper", "mdpo")
    }
    assert {config.seed for config in configs} == set(range(5))
    assert [config.seed for config in configs[:15]] == [0] * 15, "all tasks and algorithms before the next seed"
    assert {config.bc_config for config in clones(sweep)} == {PAPER_BC}


def test_small_is_the_papers_regime(tmp_path: Path, shown: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", out=tmp_path, demonstrations=[shown])
    configs = learners(sweep)
    assert {(c.env, c.learner.policy, c.learner.cost) for c in configs} == {
        (env, policy, cost)
        for env in TASKS_OF_PAPER
        for policy in ("mdpo", "trpo")
        for cost in ("linear", "neural", "gail")
    }
    assert {config.learner.bc_config for config in configs} == {None}, "from scratch"
    assert {config.trajectories for config in configs} == {10}
    assert {(c.learner.policy, c.total_steps) for c in configs} == {("mdpo", 150_000), ("trpo", 1_000_000)}
    seeds = {env: {c.seed for c in configs if c.env == env} for env in TASKS_OF_PAPER}
    assert all(seeds[env] == set(range(3 if env == "Humanoid-v5" else 5)) for env in TASKS_OF_PAPER)
    longer = deep_figures.plan("gail-vs-oal", steps=7_000, on_policy_steps=9_000, out=tmp_path, demonstrations=[shown])
    assert {(c.learner.policy, c.total_steps) for c in learners(longer)} == {("mdpo", 7_000), ("trpo", 9_000)}


def test_cloned_figures_start_from_the_presets_own_clones(tmp_path: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", cloned=True, seeds=1, out=tmp_path)
    assert {config.learner.bc_config for config in learners(sweep)} == {preset("mdpo", "neural").bc_config}


def test_tasks_join_when_their_demonstrations_are_there(tmp_path: Path, shown: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(demos, "shipped", lambda: ("Hopper-v5",))
    few = deep_figures.plan("gail-vs-oal", out=tmp_path)
    assert {config.env for config in learners(few)} == {"Hopper-v5"}
    assert "Humanoid-v5 is left out" in capsys.readouterr().err
    all_of_them = deep_figures.plan("gail-vs-oal", out=tmp_path, demonstrations=[shown])
    assert {config.env for config in learners(all_of_them)} == set(TASKS_OF_PAPER)
    with pytest.raises(InputError, match="no demonstrations of HalfCheetah-v5"):
        deep_figures.plan("pretraining", out=tmp_path)


def test_clones_are_of_the_same_seeds_and_demonstrations(tmp_path: Path, shown: Path) -> None:
    for name in DEEP:
        sweep = deep_figures.plan(name, out=tmp_path, demonstrations=[shown])
        asked = {(c.env, c.demos, c.trajectories, c.seed) for c in learners(sweep)}
        assert {(c.env, c.demos, c.trajectories, c.seed) for c in clones(sweep)} == asked
        assert len(clones(sweep)) == len(asked)
        assert {config.bc_config for config in clones(sweep)} == {preset("mdpo", "neural").bc_config}
        assert len({run.name for run in sweep.runs()}) == len(sweep.runs())


def test_on_policy_figures_use_vector_environments(tmp_path: Path) -> None:
    for sweep in (
        deep_figures.plan("gail-vs-oal", policy="trpo", out=tmp_path),
        deep_figures.plan("pretraining", out=tmp_path),
    ):
        assert {(c.learner.policy, c.learner.environments) for c in learners(sweep)} == {("trpo", 8)}
        assert {config.total_steps for config in learners(sweep)} == {1_000_000}


@pytest.mark.parametrize("cloned", [False, True])
def test_both_policy_players_explore_with_the_same_width(tmp_path: Path, cloned: bool) -> None:
    """A wider policy's behaviour earns less whatever it has learned: the comparison must not be one of widths."""
    sweep = deep_figures.plan("gail-vs-oal", scale="smoke", cloned=cloned, seeds=1, out=tmp_path)
    widths = {}
    for config in learners(sweep):
        if (config.env, config.learner.cost) != ("Hopper-v5", "neural"):
            continue
        shown = demos.load("Hopper-v5")[:1]
        learner = OAL("Hopper-v5", shown, config=config.learner, seed=0)
        learner.pretrain()
        policy = learner.policy()
        observed = np.asarray(shown[0].observations[:200], np.float32)
        seen = observed if policy.normaliser is None else policy.normaliser(observed)
        outputs = nets.mlp(policy.actor.layers, seen, activation=policy.actor.activation)
        widths[config.learner.policy] = float(np.mean(np.asarray(outputs)[:, outputs.shape[1] // 2 :]))
        learner.close()
    assert set(widths) == {"mdpo", "trpo"}
    assert widths["mdpo"] == pytest.approx(widths["trpo"], abs=0.25)


def test_the_papers_trpo_has_one_environment_and_clones_where_the_paper_does(tmp_path: Path, shown: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", scale="paper", policy="trpo", out=tmp_path, demonstrations=[shown])
    configs = learners(sweep)
    assert len(configs) == 5 * 5 * 3
    assert {config.learner.environments for config in configs} == {1}
    cloned = {(c.env, c.learner.cost) for c in configs if c.learner.bc_config is not None}
    assert cloned == {(env, cost) for env in ("HalfCheetah-v5", "Humanoid-v5") for cost in ("neural", "gail")}
    assert {c.learner.bc_config.epochs for c in configs if c.learner.bc_config} == {1_000}


def test_what_each_figure_varies(tmp_path: Path, shown: Path) -> None:
    def start(config: RunConfig) -> str:
        return "scratch" if config.learner.bc_config is None else "cloned"

    lipschitz = learners(deep_figures.plan("lipschitz", out=tmp_path))
    assert {(c.env, start(c), c.learner.cost, c.learner.cost_config.lipschitz) for c in lipschitz} == {  # pyright: ignore
        ("HalfCheetah-v5", "scratch", cost, weight) for cost in ("neural", "gail") for weight in (0.0, 0.1, 1.0, 10.0)
    }
    numbers = learners(deep_figures.plan("trajectories", out=tmp_path))
    assert {(config.env, start(config), config.trajectories) for config in numbers} == {
        ("Walker2d-v5", begun, number) for begun in ("scratch", "cloned") for number in (1, 4, 10)
    }
    cloned = learners(deep_figures.plan("pretraining", out=tmp_path, demonstrations=[shown]))
    assert {(c.env, start(c), c.learner.cost) for c in cloned} == {
        (env, begun, cost)
        for env in ("HalfCheetah-v5", "Humanoid-v5")
        for begun in ("scratch", "cloned")
        for cost in ("linear", "neural", "gail")
    }
    paper = learners(deep_figures.plan("pretraining", scale="paper", out=tmp_path, demonstrations=[shown]))
    epochs = {None if c.learner.bc_config is None else c.learner.bc_config.epochs for c in paper}
    assert epochs == {None, 1_000}


def test_missing_demonstrations_and_unknown_names_are_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(demos, "shipped", lambda: ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"))
    with pytest.raises(InputError, match="oal expert Ant-v5"):
        deep_figures.plan("gail-vs-oal", scale="paper", out=tmp_path)
    with pytest.raises(InputError, match="figure 'nothing' is unknown"):
        deep_figures.plan("nothing", out=tmp_path)
    with pytest.raises(InputError, match="scale 'huge' is unknown"):
        deep_figures.plan("lipschitz", scale="huge", out=tmp_path)


Tops = Callable[[Any], float]


def making(monkeypatch, top: Tops) -> list[int]:
    """Let sweeps make up their runs, each with the level that `top` says; return how many runs each sweep made."""
    made = []

    def go(sweep: Sweep, executor=None, *, show: bool = False) -> Summary:
        count = 0
        for run in sweep.runs():
            config = run.config
            if run.folder.exists():
                continue
            count += 1
            if isinstance(config, CloneConfig):
                made_clone(run.folder, config, top(config))
                continue
            learner = plain(config.learner.to_json())
            kept = ("policy", "cost", "preset", "cost_config", "bc_config")
            about = {"trajectories": config.trajectories, "env": config.env} | {name: learner[name] for name in kept}
            make_run(run.folder, seed=config.seed, top=top(config), **about)
        made.append(count)
        return Summary(())

    monkeypatch.setattr(Sweep, "go", go)
    return made


def test_a_figure_writes_a_report_its_tables_claims_and_where_they_come_from(tmp_path: Path, monkeypatch) -> None:
    making(monkeypatch, lambda config: 0.5 if isinstance(config, CloneConfig) else 1.0)
    sweep = deep_figures.plan("trajectories", scale="smoke", seeds=4, out=tmp_path)
    _, decided = deep_figures.draw(sweep, tmp_path)
    verdicts = {claim.claim: set() for claim in decided}
    for claim in decided:
        if "final evaluation" in claim.where:
            verdicts[claim.claim].add(claim.verdict)
    assert set(verdicts) == {"the number of trajectories hardly matters", "the game improves on cloning"}
    assert verdicts["the game improves on cloning"] == {"holds"}
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {"report.html", "report.csv", "report-steps.csv", "report.tex", "claims.csv", "config.json"}
    assert written >= {"trajectories.png", "trajectories.svg"}
    assert (tmp_path / "claims.csv").read_text().splitlines()[0].endswith("verdict,seeds,looks")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["figure"] == "trajectories"
    assert config["runs"] == [run.name for run in sweep.runs()]
    assert {"command", "commit", "versions", "commits of the runs"} <= set(config)


def test_seeds_are_added_where_a_comparison_is_undecided_and_nowhere_else(tmp_path: Path, monkeypatch) -> None:
    """GAIL is far behind, which three seeds show; linear and neural costs differ by as much as their margin."""
    noise = np.random.default_rng(0)

    def top(config: Any) -> float:
        if isinstance(config, CloneConfig):
            return 0.2
        level = {"gail": 0.4, "neural": 1.0, "linear": 0.95}[config.learner.cost]
        return level + (0.0 if config.learner.cost == "gail" else 0.1 * noise.normal())

    made = making(monkeypatch, top)
    monkeypatch.setattr(report, "write", lambda *_, **__: None)  # the test above looks at it
    looks = Looks.planned(3, 8)
    sweep = deep_figures.plan("gail-vs-oal", scale="smoke", policy="mdpo", seeds=8, out=tmp_path)
    _, decided = deep_figures.draw(sweep, tmp_path, looks=looks)
    # 2 tasks x (3 costs + clones) x 3 seeds; then 2 and 3 seeds more of linear and neural on both tasks
    assert made == [24, 8, 12]
    claims = {claim.where: claim for claim in decided if "final evaluation" in claim.where}

    def found(pair: str) -> Claim:
        return next(claim for where, claim in claims.items() if where.startswith("all 2 tasks") and pair in where)

    assert (found("neural against gail").verdict, found("neural against gail").seeds) == ("holds", 3)
    assert found("neural against gail").looks == "1 of 3"
    assert (found("linear against neural").seeds, found("linear against neural").looks) == (8, "3 of 3")
    assert json.loads((tmp_path / "config.json").read_text())["looks at seeds"] == [3, 5, 8]
    made.clear()
    _, again = deep_figures.draw(sweep, tmp_path, looks=looks)
    assert sum(made) == 0, "started again, it goes the same way from the run folders"
    assert again == decided


def test_runs_of_another_folder_never_stand_for_the_figures_own(tmp_path: Path, monkeypatch) -> None:
    """The other folder holds the same runs with other returns, and what they are compared with."""
    monkeypatch.setattr(report, "write", lambda *_, **__: None)
    old = deep_figures.plan("gail-vs-oal", scale="smoke", seeds=3, out=tmp_path / "old")
    making(monkeypatch, lambda config: 0.1)
    old.go()
    making(monkeypatch, lambda config: 0.2 if isinstance(config, CloneConfig) else 1.0)
    new = deep_figures.plan("gail-vs-oal", scale="smoke", policy="mdpo", seeds=3, out=tmp_path / "new")
    _, decided = deep_figures.draw(new, tmp_path / "new", against=[tmp_path / "old"])
    said = {claim.where: claim.difference.mean for claim in decided if "final evaluation" in claim.where}
    ahead = [gain for where, gain in said.items() if "mdpo against trpo" in where]
    assert ahead == pytest.approx([0.9] * len(ahead), abs=0.01)
    assert len(ahead) == 3 * 3
    clones = [gain for where, gain in said.items() if where.endswith("against BC") and "mdpo" in where]
    assert clones == pytest.approx([0.8] * len(clones), abs=0.01)
    assert clones
    # of another penalty, which comparisons of costs leave open
    other = next(run for run in old.runs() if "trpo-neural-0" in run.name)
    made = shutil.copytree(other.folder, tmp_path / "penalty" / "trpo-neural-0")
    config = json.loads((made / "config.json").read_text())
    config["config"]["cost_config"]["lipschitz"] = 3.0
    (made / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"two runs would be seed 0 of one side of a comparison"):
        deep_figures.draw(new, tmp_path / "new", against=[tmp_path / "old", tmp_path / "penalty"])


def test_a_stopped_figure_goes_on_where_it_was(tmp_path: Path, monkeypatch) -> None:
    """A look that lacks a seed is not taken, whatever other seeds are there."""
    making(monkeypatch, lambda config: 1.0)
    sweep = deep_figures.plan("trajectories", scale="smoke", seeds=3, out=tmp_path)
    sweep.go()
    for run in sweep.runs():
        if run.config.seed == 1 and run.config.trajectories == 10:
            shutil.rmtree(run.folder)
    decided = deep_figures.decide("trajectories", report.read([tmp_path / "runs"]).runs, Looks((3, 5)))
    incomplete = [claim for claim in decided if "against 10" in claim.where]
    assert {(claim.verdict, claim.looks) for claim in incomplete} == {("undecided", "0 of 2")}


def test_the_ladder_goes_from_the_papers_table_one_rung_at_a_time(tmp_path: Path) -> None:
    sweep = Sweep.read(Path(__file__).parents[1] / "experiments" / "paper-ladder.toml", out=tmp_path)
    published = preset("mdpo", "neural", "paper")
    first, *others = sweep.runs()
    assert first.config.learner == published, "the first run is the published recipe"  # pyright: ignore
    assert all(run.config.learner != published for run in others)  # pyright: ignore
    points = [dict(run.point) for run in others]
    begun = next(place for place, point in enumerate(points) if len(point) > 1 and "policy.kl_weight" in point)
    alone, steps = points[:begun], points[begun:]
    for before, after in itertools.pairwise(steps):
        assert before.items() < after.items(), "each rung has what the one below it has, and more"
    top = steps[-1]
    used = {name for point in alone for name in point} - {"bc.epochs"}
    assert used == set(top), "what is climbed is what was tried alone"


@pytest.mark.slow
def test_clones_are_jobs_of_the_sweep(tmp_path: Path) -> None:
    sweep = deep_figures.plan("trajectories", scale="smoke", seeds=1, out=tmp_path)
    mine = replace(sweep, planned=tuple(run for run in sweep.runs() if isinstance(run.config, CloneConfig))[:2])
    assert len(mine.go(Processes(2)).of("finished")) == 2
    assert len(mine.go(Inline()).of("kept")) == 2, "nothing is cloned twice"
    for run in mine.runs():
        (read,) = report.read([run.folder]).runs
        assert read.config["algorithm"] == "BC"
        assert read.source_return == pytest.approx(np.mean(demos.load("Walker2d-v5").returns))


@pytest.mark.slow
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    sweep = deep_figures.plan("gail-vs-oal", scale="smoke", out=tmp_path)
    outcome, decided = deep_figures.draw(sweep, tmp_path, executor=lambda: Processes(2), show=False)
    assert outcome.complete
    assert {claim.claim for claim in decided} == {
        *("OAL is at least as good as GAIL", "linear costs are nearly as good as neural ones", "MDPO is ahead of TRPO"),
        "the game improves on cloning",
    }
    assert (tmp_path / "claims.csv").read_text().count("\n") == len(decided) + 1
    page = (tmp_path / "report.html").read_text()
    assert all(word in page for word in ("Hopper-v5", "HalfCheetah-v5", "gail", "neural", "linear"))
    assert (tmp_path / "report.csv").exists()
    again, _ = deep_figures.draw(sweep, tmp_path, executor=lambda: Processes(2), show=False)
    assert len(again.of("kept")) == 2 * 2 * (2 * 3 + 1), "nothing runs twice"
