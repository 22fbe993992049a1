"""The suite: imitation from one, from ten subsampled and from ten demonstrations, on five tasks, as one table.

Returns are shares of the mean return of the demonstrations that a run learned from. Every number is read from run
folders; nothing here trains.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oal import demos, report
from oal.base import console, files, plots
from oal.base.provenance import provenance
from oal.base.stats import difference_interval
from oal.errors import InputError
from oal.lab.claims import Claim
from oal.lab.figures import IMPROVES, REGIMES, SUITE_STEPS
from oal.lab.sweep import Sweep
from oal.report import Run, statistics
from oal.report.charts import short

MARKS = (10_000, 25_000, 50_000, 100_000, 150_000)
AREA_TO = 50_000
LEVEL = 0.9


def sources(folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Return where demonstrations of the suite's tasks are: the shipped ones, and those in the folders.

    A file TASK-vN.npz in a folder holds demonstrations of the task, of whichever version; the newest one is played.
    """
    found: list[dict[str, Any]] = [{"env": env} for env in SUITE_STEPS if env in demos.shipped()]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder: name one that holds files such as Walker2d-v5.npz")
        for path in sorted(folder.glob("*.npz")):
            task = next((env for env in SUITE_STEPS if env.split("-")[0] == path.stem.split("-")[0]), None)
            if task is not None:
                found.append({"env": task, "demos": str(path)})
    return found


def plan(
    regime: str, out: str | Path, *, folders: Sequence[Path] = (), seeds: int = 3, steps: int | None = None
) -> Sweep:
    """Return the sweep of one regime on all of its sources."""
    tables = {
        "sweep": {**REGIMES[regime], "evaluation_episodes": 10},
        # seeds come first, so that a suite that was stopped has few seeds of everything, not all of a few
        "grid": {"seed": list(range(seeds))},
        "runs": [{"total_steps": steps or SUITE_STEPS[source["env"]], **source} for source in sources(folders)],
    }
    return Sweep.parse(tables, name=f"suite-{regime}", source=f"the suite's regime {regime}", out=Path(out) / regime)


# ----------------------------------------------------------------------------------------------------------------
# The table


class Scores(NamedTuple):
    """What one run reached, in shares of the expert's return."""

    clone: float
    """The policy before the first step."""
    evaluation: dict[int, float]
    """At each mark: the last evaluation until then; NaN where the run is not there yet."""
    selected: dict[int, float]
    """At each mark: the evaluation nearest to the demonstrations until then, the clone's among them: of the policy in
    best.safetensors. NaN also where distances are not known."""
    behaviour: dict[int, float]
    """At each mark: the mean of the behaviour's last tenth of the way there."""
    area: float
    """Mean of the behaviour's curve to 50,000 steps, or to the run's end."""
    first: float
    """Steps to the first evaluation at 0.9; infinite if there is none."""
    kept: float
    """Share of the evaluations from then on that are at 0.9 or above; 0 if none ever was."""
    least: float
    """The lowest evaluation of all but the clone's."""


def scores(run: Run) -> Scores:
    """Measure one run."""
    evaluated = run.returns["evaluation"] / run.expert_return
    has = np.isfinite(evaluated)
    at, value, distance = run.steps[has], evaluated[has], run.returns["distance"][has]
    learned, known = at > 0, np.isfinite(distance)
    distance = np.where(known, distance, np.inf)
    nearest = np.where(known, value[[int(np.argmin(distance[: n + 1])) for n in range(len(value))]], np.nan)
    clone = float(value[~learned][0]) if (~learned).any() else float("nan")
    at, value, nearest = at[learned], value[learned], nearest[learned]
    behaved = run.returns["behaviour"] / run.expert_return

    def until(mark: int, read: Callable[[], float]) -> float:
        reached = run.steps.size and run.steps[-1] >= mark and (at <= mark).any()
        return read() if reached else float("nan")

    def upto(step: float) -> tuple[np.ndarray, np.ndarray]:
        kept = run.steps <= step
        return run.steps[kept], behaved[kept]

    first, _ = statistics.steps_to(at, value, LEVEL)
    later = value[at >= first] if np.isfinite(first) else value
    return Scores(
        clone,
        {mark: until(mark, lambda mark=mark: float(value[at <= mark][-1])) for mark in MARKS},
        {mark: until(mark, lambda mark=mark: float(nearest[at <= mark][-1])) for mark in MARKS},
        {mark: until(mark, lambda mark=mark: statistics.final(*upto(mark))) for mark in MARKS},
        statistics.area(*upto(AREA_TO)),
        first,
        float(np.mean(later >= LEVEL)) if later.size else float("nan"),
        float(value.min()) if value.size else float("nan"),
    )


def regime_of(run: Run) -> str:
    """Return which regime a run belongs to, by its demonstrations."""
    trajectories, subsample = run.config.get("trajectories"), run.config.get("subsample", 1)
    for name, regime in REGIMES.items():
        if (trajectories, subsample) == (regime["trajectories"], regime.get("subsample", 1)):
            return name
    return f"{trajectories} by {subsample}"


def source_of(run: Run) -> str:
    """Say whose demonstrations a run learned from: the name of the folder they lie in."""
    path = run.config.get("demos")
    return Path(path).parent.name if path else "shipped"


def rows(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return one row per regime, task and source: means over seeds, and the worst seed beside each."""
    groups: dict[tuple[str, str, str], list[Scores]] = {}
    for run in runs:
        groups.setdefault((regime_of(run), run.task, source_of(run)), []).append(scores(run))
    table = []
    for (regime, task, source), found in sorted(groups.items()):
        row: dict[str, Any] = {"regime": regime, "task": task, "demonstrations": source, "seeds": len(found)}
        row |= _spread("clone", [each.clone for each in found])
        for mark in MARKS:
            row |= _spread(f"evaluation {mark // 1000}k", [each.evaluation[mark] for each in found])
            row |= _spread(f"selected {mark // 1000}k", [each.selected[mark] for each in found])
            row[f"behaviour {mark // 1000}k"] = _mean([each.behaviour[mark] for each in found])
        row |= _spread("area to 50k", [each.area for each in found])
        first = sorted(each.first for each in found)
        row["first at 0.9"] = _steps(first[len(first) // 2])
        row["first at 0.9 (worst)"] = _steps(first[-1])
        row |= _spread("kept", [each.kept for each in found])
        row["lowest evaluation"] = _spread("least", [each.least for each in found])["least (worst)"]
        table.append(row)
    return table


def aggregates(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return one row per regime: inter-quartile means over tasks, sources and seeds, Humanoid apart."""
    groups: dict[tuple[str, str], list[Scores]] = {}
    for run in runs:
        which = "Humanoid-v5" if run.task == "Humanoid-v5" else "the other tasks"
        groups.setdefault((regime_of(run), which), []).append(scores(run))
    table = []
    for (regime, which), found in sorted(groups.items()):
        row: dict[str, Any] = {"regime": regime, "tasks": which, "runs": len(found)}
        row["clone"] = _middle([each.clone for each in found])
        for mark in MARKS:
            row[f"evaluation {mark // 1000}k"] = _middle([each.evaluation[mark] for each in found])
            row[f"selected {mark // 1000}k"] = _middle([each.selected[mark] for each in found])
            row[f"behaviour {mark // 1000}k"] = _middle([each.behaviour[mark] for each in found])
        row["area to 50k"] = _middle([each.area for each in found])
        row["kept"] = _middle([each.kept for each in found])
        table.append(row)
    return table


def claims(runs: Iterable[Run]) -> list[Claim]:
    """Decide for each regime, over tasks and on each, whether the game improves on the clones that it began from.

    Seed by seed: every run is compared with its own clones, at the last mark that all runs reached and while learning.
    What has one seed has no interval, and is left out of those over tasks.
    """
    groups: dict[str, dict[tuple[str, str], list[Scores]]] = {}
    for run in runs:
        groups.setdefault(regime_of(run), {}).setdefault((run.task, source_of(run)), []).append(scores(run))
    found = []
    for regime, tasks in sorted(groups.items()):
        everything = [each for members in tasks.values() for each in members]
        reached = [mark for mark in MARKS if all(np.isfinite(each.evaluation[mark]) for each in everything)]
        gains: dict[str, Callable[[Scores], float]] = {
            f"evaluation at {mark:,} steps": lambda each, mark=mark: each.evaluation[mark] - each.clone
            for mark in reached[-1:]
        }
        gains["area under the behaviour's curve"] = lambda each: each.area - each.clone
        several = [task for task, members in tasks.items() if len(members) > 1]
        places = {f"{len(several)} tasks": several} if len(several) > 1 else {}
        places |= {task if source == "shipped" else f"{task} ({source})": [(task, source)] for task, source in tasks}
        for (measure, gain), (place, members) in itertools.product(gains.items(), places.items()):
            gained = [[gain(each) for each in tasks[member]] for member in members]
            # differences already: against nothing, they are one sample each
            difference = difference_interval(gained, [np.zeros(len(sample)) for sample in gained])
            claim = IMPROVES.decided(f"{regime}, {place}, {measure}", difference)
            found.append(replace(claim, seeds=min(map(len, gained)), looks="1 of 1"))
    return found


class Tables(NamedTuple):
    """What the suite comes to."""

    per_task: list[dict[str, Any]]
    overall: list[dict[str, Any]]
    claims: list[Claim]


def write(runs: Sequence[Run], out: str | Path) -> Tables:
    """Write the tables, the claims, the picture and where they come from."""
    out = Path(out)
    tables = Tables(rows(runs), aggregates(runs), claims(runs))
    files.write_csv(out / "suite.csv", tables.per_task)
    files.write_csv(out / "suite-overall.csv", tables.overall)
    files.write_csv(out / "claims.csv", [claim.row for claim in tables.claims])
    draw(out / "suite", runs)
    commits = sorted({str(run.metadata.get("commit")) for run in runs})
    files.write_json(out / "suite.json", {**provenance(), "commits of the runs": commits, "runs": len(runs)})
    return tables


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Draw each seed's evaluations: a row for each regime, a column for each task and source.

    A line begins at the clone, whose level is dotted; the expert is dashed.
    """
    cells: dict[str, dict[tuple[str, str], list[Run]]] = {}
    for run in runs:
        cells.setdefault(regime_of(run), {}).setdefault((run.task, source_of(run)), []).append(run)
    regimes = [*(name for name in REGIMES if name in cells), *sorted(cells.keys() - REGIMES.keys())]
    columns = sorted({place for row in cells.values() for place in row})
    with plots.picture(path, rows=len(regimes), columns=len(columns), width=2.9, height=2.4) as axes:
        grid = np.reshape(axes, (len(regimes), len(columns)))
        for (row, regime), (column, place) in ((r, c) for r in enumerate(regimes) for c in enumerate(columns)):
            one, found = grid[row, column], cells[regime].get(place, [])
            if not found:
                one.set_axis_off()
                continue
            for run in found:
                value = run.returns["evaluation"] / run.expert_return
                has = np.isfinite(value)
                one.plot(run.steps[has], value[has], color=plots.COLOURS[0], lw=1.2, alpha=0.7)
                one.axhline(float(value[has][0]), color="grey", ls=":", lw=0.8)
            one.axhline(1.0, color="black", ls="--", lw=0.8)
            one.set_ylim(0.0, 1.2)
            one.xaxis.set_major_formatter(lambda value, _: short(value))
            if regime == next(name for name in regimes if place in cells[name]):
                one.set_title(place[0] if place[1] == "shipped" else f"{place[0]} ({place[1]})", fontsize=10)
            if row == len(regimes) - 1:
                one.set_xlabel("environment steps")
            if place == min(cells[regime]):
                one.set_ylabel(f"{regime}\nshare of the expert's return")


def read(folders: Sequence[Path]) -> list[Run]:
    """Read every run below the folders that has learned something, where the expert's return is known."""
    learned = [run for run in report.read(folders).runs if np.isfinite(run.returns["evaluation"]).any()]
    for run in learned:
        if not np.isfinite(run.expert_return):
            console.say(
                f"{run.name} is left out: its demonstrations have no rewards, so nothing to be a share of", err=True
            )
    return [run for run in learned if np.isfinite(run.expert_return)]


def _finite(values: Sequence[float]) -> np.ndarray:
    found = np.array(values, np.float64)
    return found[np.isfinite(found)]


def _mean(values: Sequence[float]) -> float | None:
    found = _finite(values)
    return float(found.mean()) if found.size else None


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    found = _finite(values)
    return {name: _mean(values), f"{name} (worst)": float(found.min()) if found.size else None}


def _middle(values: Sequence[float]) -> float | None:
    found = _finite(values)
    return float(statistics.interquartile_mean([found])) if found.size else None


def _steps(steps: float) -> int | str:
    return int(steps) if np.isfinite(steps) else "never"
