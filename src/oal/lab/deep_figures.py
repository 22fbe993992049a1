"""Draws the deep figures of `oal.lab.figures`: each is a sweep that ends in a report and in decided claims."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oal import demos, report
from oal.base import files
from oal.base.provenance import provenance
from oal.base.stats import difference_interval
from oal.errors import InputError, choice
from oal.lab.claims import Claim, Statement
from oal.lab.executors import Executor
from oal.lab.figures import DEEP, ON_POLICY, PAPER_CLONES, SCALES
from oal.lab.sweep import Summary, Sweep
from oal.report import summary


def plan(
    name: str, *, scale: str = "small", policy: str | None = None, out: str | Path, demonstrations: Sequence[Path] = ()
) -> Sweep:
    """Return a figure's sweep. Tasks without shipped demonstrations take them from ENV.npz in `demonstrations`."""
    figure, size = DEEP[choice("figure", name, DEEP)], SCALES[choice("scale", scale, SCALES)]
    policy = policy or figure.policy
    if policy in ON_POLICY:
        size = replace(size, **size.on_policy)
    size = replace(size, **size.figures.get(name, {}))
    # seeds come first, so that a sweep that was stopped has few seeds of everything, not all of a few
    grid = {"seed": list(range(size.seeds))}
    grid |= {axis: list(size.grid.get(axis, values)) for axis, values in figure.grid.items()}
    shared = {"policy": policy, "preset": size.preset, "total_steps": size.steps, **size.shared}
    runs = [_task(env, demonstrations) for env in figure.tasks or size.tasks]
    if size.preset != "paper" and policy in ON_POLICY:
        shared.setdefault("environments", 8)
    elif policy == "trpo" and "bc.epochs" not in grid:
        tasks, costs, cloned = PAPER_CLONES
        runs = [
            task | {"cost": cost} | (cloned if task["env"] in tasks and cost in costs else {})
            for task, cost in itertools.product(runs, grid.pop("cost"))
        ]
    tables = {
        "sweep": {field: value for field, value in shared.items() if field not in grid},
        "grid": grid,
        "runs": runs,
    }
    return Sweep.parse(tables, name=name, source=f"the figure {name}", out=Path(out) / "runs")


def _task(env: str, demonstrations: Sequence[Path]) -> dict[str, Any]:
    for folder in demonstrations:
        if (folder / f"{env}.npz").exists():
            return {"env": env, "demos": str(folder / f"{env}.npz")}
    if env not in demos.shipped():
        raise InputError(
            f"no demonstrations of {env} are shipped: make them with  oal expert {env}  and give the folder that "
            f"holds {env}.npz with --demonstrations"
        )
    return {"env": env}


def draw(
    sweep: Sweep,
    out: str | Path,
    *,
    against: Sequence[str | Path] = (),
    executor: Executor | None = None,
    show: bool = True,
) -> tuple[Summary, list[Claim]]:
    """Run what is not finished, and write what is there: page, tables, pictures, and the claims it decides.

    `against` are folders of runs that the claims may compare with, such as those of another policy player.
    """
    out = Path(out)
    # read first: a wrong folder is said before hours of runs, not after
    others = report.read(against).runs if against else []
    outcome = sweep.go(executor, show=show)
    report.write([sweep.out], out / "report.html", title=sweep.name, csv=True, png=True, latex_table=True)
    decided = decide(sweep.name, [*report.read([sweep.out]).runs, *others])
    files.write_csv(out / "claims.csv", [claim.row for claim in decided])
    files.write_json(
        out / "config.json", {"figure": sweep.name, "runs": [run.name for run in sweep.runs()], **provenance()}
    )
    return outcome, decided


# ----------------------------------------------------------------------------------------------------------------
# Claims

AXES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "policy": lambda config: config["policy"],
    "cost": lambda config: config["cost"],
    "lipschitz": lambda config: config["cost_config"].get("lipschitz"),
    "trajectories": lambda config: config["trajectories"],
    "cloning": lambda config: "cloned" if config["bc_config"] else "from scratch",
}
MEASURED = (summary.FINAL_EVALUATION, summary.AREA)
"""The end of learning, and the paper's own objective: how the behaviour does while it learns."""


def decide(name: str, runs: Sequence[report.Run]) -> list[Claim]:
    """Decide what the paper says of a figure, over all tasks and on each, by normalised returns at equal steps."""
    finished = [run for run in runs if not run.unfinished]
    decided = []
    for statement, measure in itertools.product(DEEP[name].statements, MEASURED):
        axis, other = AXES[statement.axis], AXES[statement.held]
        for held in dict.fromkeys(other(run.config) for run in finished):
            for pair in statement.pairs:
                first, second = (
                    [run for run in finished if (axis(run.config), other(run.config)) == (value, held)]
                    for value in pair
                )
                described = f"{measure}: {pair[0]} against {pair[1]} ({held})"
                decided += _compared(statement, first, second, measure, described)
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
    return [
        statement.decided(
            f"{place}, {end:,.0f} steps, {described}",
            difference_interval([scores(first, task) for task in members], [scores(second, task) for task in members]),
        )
        for place, members in places.items()
    ]
