"""The paper's deep figures as sweeps: what is run at each scale, the report it ends in, and the claims it decides.

`paper` is the paper's full scale: 3M steps, 5 seeds, five tasks, its own hyper-parameters; for whoever has the
machines. `small` fits two cores in some hours, with the default preset. `smoke` shows in minutes that all of it works.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from oal import demos, report
from oal.base import files
from oal.base.stats import Mean, difference_interval
from oal.errors import InputError, choice
from oal.lab import claims
from oal.lab.claims import Claim
from oal.lab.executors import Executor
from oal.lab.sweep import Summary, Sweep
from oal.report import summary

Tables = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    seeds: int
    steps: int
    tasks: tuple[str, ...]
    preset: str
    shared: dict[str, Any]
    """Fields and settings of every run."""
    on_policy: dict[str, Any] = field(default_factory=dict)
    """Changes of this scale for on-policy players, whose steps are quick and many."""
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of this scale for single figures."""


ON_POLICY = ("trpo", "mdpo-on")
SCALES = {
    "smoke": Scale(
        seeds=2,
        steps=3_000,
        tasks=("Hopper-v5", "HalfCheetah-v5"),
        preset="default",
        shared={
            "log_every": 500,
            "evaluate_every": 1_000,
            "evaluation_episodes": 2,
            "checkpoint_every": 1_000,
            "policy.hidden": [32, 32],
            "bc.epochs": 3,
        },
        on_policy={"steps": 4_000},
    ),
    "small": Scale(
        seeds=3,
        steps=150_000,
        tasks=("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"),
        preset="default",
        shared={},
        on_policy={
            "steps": 1_000_000,
            "tasks": ("Hopper-v5", "HalfCheetah-v5"),
            "shared": {"evaluate_every": 25_000, "checkpoint_every": 100_000},
        },
        figures={"lipschitz": {"seeds": 2, "steps": 100_000}},
    ),
    "paper": Scale(
        seeds=5,
        steps=3_000_000,
        tasks=("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"),
        preset="paper",
        shared={"evaluate_every": 10_000, "checkpoint_every": 100_000},
    ),
}


def _tables(scale: Scale, policy: str, grid: dict[str, list[Any]], variants: list[dict[str, Any]]) -> Tables:
    shared = {"policy": policy, "preset": scale.preset, "total_steps": scale.steps, **scale.shared}
    return {
        "sweep": {name: value for name, value in shared.items() if name not in grid},
        # seeds come first, so that a sweep that was stopped has few seeds of everything, not all of a few
        "grid": {"seed": list(range(scale.seeds)), **grid},
        "runs": variants,
    }


def gail_vs_oal(scale: Scale, policy: str) -> Tables:
    """OAL with linear and neural costs against GAIL, 10 trajectories."""
    return _tables(scale, policy, {}, _tasks(scale, [{"cost": cost} for cost in ("linear", "neural", "gail")]))


def lipschitz(scale: Scale, policy: str) -> Tables:
    """The coefficient of the Lipschitz penalty, for OAL and for GAIL, on HalfCheetah."""
    grid = {"cost": ["neural", "gail"], "cost.lipschitz": [0.0, 1.0, 10.0]}
    return _tables(scale, policy, grid, [{"env": "HalfCheetah-v5"}])


def trajectories(scale: Scale, policy: str) -> Tables:
    """The number of demonstrations, on Walker2d."""
    return _tables(scale, policy, {"trajectories": [1, 10]}, [{"env": "Walker2d-v5", "cost": "neural"}])


def pretraining(scale: Scale, policy: str) -> Tables:
    """On-policy learning with and without behavioural cloning before it, on HalfCheetah."""
    cloned = scale.shared.get("bc.epochs", 1_000)
    grid = {"cost": ["neural", "linear", "gail"], "bc.epochs": [0, cloned]}
    return _tables(scale, policy, grid, [{"env": "HalfCheetah-v5"}])


def _tasks(scale: Scale, variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"env": env, **variant} for env in scale.tasks for variant in variants]


STUDIES: dict[str, tuple[Callable[[Scale, str], Tables], str]] = {
    "gail-vs-oal": (gail_vs_oal, "mdpo"),
    "lipschitz": (lipschitz, "mdpo"),
    "trajectories": (trajectories, "mdpo"),
    "pretraining": (pretraining, "trpo"),
}
"""Each figure's sweep, and the policy player it has in the paper (gail-vs-oal has trpo too)."""


def plan(
    name: str, *, scale: str = "small", policy: str | None = None, out: str | Path, demonstrations: Path | None = None
) -> Sweep:
    """Return a figure's sweep. Tasks without shipped demonstrations take them from ENV.npz in `demonstrations`."""
    choice("figure", name, STUDIES)
    choice("scale", scale, SCALES)
    make, usual = STUDIES[name]
    policy = policy or usual
    size = SCALES[scale]
    if policy in ON_POLICY:
        size = replace(size, **size.on_policy)
    tables = make(replace(size, **size.figures.get(name, {})), policy)
    if policy in ON_POLICY:
        tables["sweep"].setdefault("environments", 8)
    for variant in tables["runs"]:
        env = variant["env"]
        if demonstrations is not None and (demonstrations / f"{env}.npz").exists():
            variant["demos"] = str(demonstrations / f"{env}.npz")
        elif env not in demos.shipped():
            raise InputError(
                f"no demonstrations of {env} are shipped: make them with  oal expert {env}  and give the folder that "
                f"holds {env}.npz with --demonstrations"
            )
    return Sweep.parse(tables, name=name, source=f"the figure {name}", out=Path(out) / "runs")


def draw(
    sweep: Sweep,
    out: str | Path,
    *,
    against: Sequence[str | Path] = (),
    executor: Executor | None = None,
    show: bool = True,
) -> tuple[Summary, list[Claim]]:
    """Carry out what is not finished, and write what is there: page, table, pictures, and the claims it decides.

    `against` are folders of runs that the claims may compare with, such as those of another policy player.
    """
    out = Path(out)
    # read first: a wrong folder is said before hours of runs, not after
    others = report.read(against).runs if against else []
    outcome = sweep.go(executor, show=show)
    report.write([sweep.out], out / "report.html", title=sweep.name, csv=True, png=True, latex_table=True)
    decided = decide(sweep.name, [*report.read([sweep.out]).runs, *others])
    files.write_csv(out / "claims.csv", [claim.row for claim in decided])
    return outcome, decided


# ----------------------------------------------------------------------------------------------------------------
# What the paper says of each figure

MARGIN = 0.05
"""What "nearly", "hardly" and "at least" leave open, as a part of the way from random actions to the expert."""

AXES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "policy": lambda config: config["policy"],
    "cost": lambda config: config["cost"],
    "lipschitz": lambda config: config["cost_config"].get("lipschitz"),
    "trajectories": lambda config: config["trajectories"],
    "cloning": lambda config: "cloned" if config["bc_config"] else "from scratch",
}


@dataclass(frozen=True)
class Statement:
    """A claim about a difference: runs that differ in one axis, with another held equal."""

    text: str
    axis: str
    pairs: tuple[tuple[Any, Any], ...]
    """The first of each pair is the one that the claim favours."""
    held: str
    verdict: Callable[[Mean], str]


STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "gail-vs-oal": (
        Statement(
            "OAL is at least as good as GAIL",
            *("cost", (("neural", "gail"), ("linear", "gail")), "policy"),
            verdict=partial(claims.at_least, margin=MARGIN),
        ),
        Statement(
            "linear costs are nearly as good as neural ones",
            *("cost", (("linear", "neural"),), "policy"),
            verdict=partial(claims.at_least, margin=MARGIN),
        ),
        Statement("MDPO is ahead of TRPO", "policy", (("mdpo", "trpo"),), "cost", verdict=claims.ahead),
    ),
    "lipschitz": (
        Statement(
            "the Lipschitz penalty matters",
            *("lipschitz", ((1.0, 0.0), (10.0, 0.0), (10.0, 1.0)), "cost"),
            verdict=partial(claims.unlike, margin=MARGIN),
        ),
    ),
    "trajectories": (
        Statement(
            "the number of trajectories hardly matters",
            *("trajectories", ((1, 10),), "cost"),
            verdict=partial(claims.alike, margin=MARGIN),
        ),
    ),
    "pretraining": (
        Statement("cloning first helps", "cloning", (("cloned", "from scratch"),), "cost", verdict=claims.ahead),
    ),
}
MEASURED = (summary.FINAL_EVALUATION, summary.AREA)
"""The end of learning, and the paper's own objective: how the behaviour does while it learns."""


def decide(name: str, runs: Sequence[report.Run]) -> list[Claim]:
    """Decide what the paper says of a figure, over all tasks and on each, by normalised returns at equal steps."""
    finished = [run for run in runs if not run.unfinished]
    decided = []
    for statement, measure in itertools.product(STATEMENTS[name], MEASURED):
        for held in dict.fromkeys(AXES[statement.held](run.config) for run in finished):
            for pair in statement.pairs:
                sides = [
                    [
                        run
                        for run in finished
                        if (AXES[statement.axis](run.config), AXES[statement.held](run.config)) == (value, held)
                    ]
                    for value in pair
                ]
                described = f"{measure}: {pair[0]} against {pair[1]} ({held})"
                decided += _compared(statement, sides[0], sides[1], measure, described)
    return decided


def _compared(
    statement: Statement, first: Sequence[report.Run], second: Sequence[report.Run], measure: str, described: str
) -> list[Claim]:
    """Decide one comparison over the tasks that both sides have, and on each of several."""
    tasks = [task for task in dict.fromkeys(run.task for run in first) if any(run.task == task for run in second)]
    if not tasks:
        return []
    first, second = ([run for run in side if run.task in tasks] for side in (first, second))
    end = min(run.steps[-1] for run in (*first, *second))

    def scores(runs: Sequence[report.Run], task: str) -> list[float]:
        return [summary.MEASURES[measure](run.until(end), True) for run in runs if run.task == task]

    places = {f"all {len(tasks)} tasks": tasks} if len(tasks) > 1 else {}
    places |= {task: [task] for task in tasks}
    decided = []
    for place, members in places.items():
        difference = difference_interval(
            [scores(first, task) for task in members], [scores(second, task) for task in members]
        )
        text = f"{place}, {end:,.0f} steps, {described}"
        decided.append(Claim(statement.text, text, difference, statement.verdict(difference)))
    return decided
