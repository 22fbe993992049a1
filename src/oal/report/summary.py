"""The numbers of a report: per task and algorithm, and aggregated over the tasks that all algorithms share."""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oal.base.files import csv_cell
from oal.report import statistics
from oal.report.groups import Group, algorithms, tasks
from oal.report.results import RETURNS, Kind, Run
from oal.report.statistics import Band, Estimator, Interval, Scores

Array = NDArray[np.float64]

LEVELS = (0.5, 0.9, 1.0)
FINAL_EVALUATION, FINAL_BEHAVIOUR, AREA = "final evaluation", "final behaviour", "area under the behaviour's curve"


def _final(kind: Kind) -> Callable[[Run, bool], float]:
    return lambda run, normalised: statistics.final(run.steps, run.values(kind, normalised=normalised))


def _area(run: Run, normalised: bool) -> float:
    return statistics.area(run.steps, run.values("behaviour", normalised=normalised))


FINAL: dict[Kind, str] = {"evaluation": FINAL_EVALUATION, "behaviour": FINAL_BEHAVIOUR}
MEASURES: dict[str, Callable[[Run, bool], float]] = {name: _final(kind) for kind, name in FINAL.items()} | {AREA: _area}

# Within one task the median is that of the seeds; over tasks it is that of the tasks' means.
WITHIN_TASK: dict[str, Estimator] = statistics.AGGREGATES | {"median": lambda scores: np.median(scores[0], axis=-1)}


def scores(group: Group, measure: str, *, normalised: bool = True) -> Array:
    """Return one number per seed that has one."""
    values = np.array([MEASURES[measure](run, normalised) for run in group.judged], dtype=np.float64)
    return values[np.isfinite(values)]


def estimate(group: Group, measure: str, estimator: str = "mean", *, normalised: bool = True) -> Interval | None:
    """Return an estimate over the seeds of a group with its interval, or None without any number."""
    values = scores(group, measure, normalised=normalised)
    return statistics.interval(WITHIN_TASK[estimator], [values]) if values.size else None


@dataclass(frozen=True)
class Reached:
    """Environment steps until a share of the expert's return: medians over seeds, and how many seeds got there."""

    kind: Kind
    level: float
    first: float
    first_seeds: int
    stays: float
    stays_seeds: int
    seeds: int


def reached(group: Group, level: float, kind: Kind) -> Reached | None:
    """Measure when normalised returns reach a level, or None if no run can be normalised."""
    runs = [run for run in group.judged if run.has(kind) and run.can_be_normalised]
    if not runs:
        return None
    pairs = [statistics.steps_to(run.steps, run.values(kind, normalised=True), level) for run in runs]
    first, stays = (np.sort(column) for column in zip(*pairs, strict=True))
    # The upper of two middle seeds: "half of the seeds had reached it by then", defined also where some never did.
    middle = len(runs) // 2
    return Reached(
        kind=kind,
        level=level,
        first=float(first[middle]),
        first_seeds=int(np.isfinite(first).sum()),
        stays=float(stays[middle]),
        stays_seeds=int(np.isfinite(stays).sum()),
        seeds=len(runs),
    )


@dataclass(frozen=True)
class Aggregate:
    """One measure over all tasks: estimates and profile per algorithm, and who beats whom how often."""

    measure: str
    tasks: tuple[str, ...]
    estimates: dict[str, dict[str, Interval]]
    thresholds: Array
    profiles: dict[str, Band]
    improvements: list[tuple[str, str, Interval]]


def shared_scores(groups: Sequence[Group], measure: str) -> tuple[list[str], dict[str, Scores]]:
    """Return the tasks on which every algorithm has normalised scores, and those scores."""
    cells = {(group.task, group.algorithm): scores(group, measure) for group in groups}
    names = algorithms(groups)
    common = [task for task in tasks(groups) if all(cells.get((task, name), np.empty(0)).size > 0 for name in names)]
    return common, {name: [cells[task, name] for task in common] for name in names}


def aggregate(groups: Sequence[Group], measure: str) -> Aggregate | None:
    """Aggregate one measure over the shared tasks, or None if there is no such task."""
    common, table = shared_scores(groups, measure)
    if not common:
        return None
    everything = np.concatenate([task for rows in table.values() for task in rows])
    thresholds = np.linspace(min(0.0, float(everything.min())), max(1.1, float(everything.max())), 101)
    return Aggregate(
        measure=measure,
        tasks=tuple(common),
        estimates={
            name: {key: statistics.interval(function, rows) for key, function in statistics.AGGREGATES.items()}
            for name, rows in table.items()
        },
        thresholds=thresholds,
        profiles={name: statistics.profile_band(rows, thresholds) for name, rows in table.items()},
        improvements=[
            (first, second, statistics.improvement_interval(table[first], table[second]))
            for first, second in itertools.combinations(table, 2)
        ],
    )


MILESTONES = (25_000, 50_000, 100_000, 150_000, 300_000, 1_000_000, 3_000_000)
KEPT_LEVEL = 0.9


def at_milestones(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """Yield what each group had reached at round numbers of steps and at its end: normalised, the mean over seeds.

    A value is the final one (`statistics.final`) of the runs as they were then. `kept` is the share of evaluations from
    there to the end that are at 90 % of the expert or above.
    """
    for group in groups:
        for step in sorted({*MILESTONES, *(int(run.steps[-1]) for run in group.judged)}):
            runs = [run for run in group.judged if run.steps[-1] >= step]
            then = replace(group, runs=tuple(run.until(step) for run in runs))
            seeds = {kind: scores(then, measure) for kind, measure in FINAL.items()}
            if not any(values.size for values in seeds.values()):
                continue
            row: dict[str, Any] = {"task": group.task, "algorithm": group.algorithm, "steps": step, "seeds": len(runs)}
            for kind, measure in FINAL.items():
                found = estimate(then, measure) or Interval(np.nan, np.nan, np.nan)
                least = min(seeds[kind], default=np.nan)
                row |= {kind: found.value, f"{kind}_low": found.low, f"{kind}_high": found.high, f"{kind}_least": least}
            yield row | {"kept": _kept(runs, step)}


def _kept(runs: Sequence[Run], step: int) -> float:
    """Return the share of evaluations from a step on that reach the level, the mean over seeds that have any."""
    later = [run.values("evaluation", normalised=True)[run.steps >= step] for run in runs]
    shares = [(values[np.isfinite(values)] >= KEPT_LEVEL).mean() for values in later if np.isfinite(values).any()]
    return float(np.mean(shares)) if shares else np.nan


# Of the four estimates, the two that say most about few runs are drawn.
DRAWN_ESTIMATORS = {"inter-quartile mean": "normalised return", "optimality gap": "lower is better"}


def worth_drawing(aggregates: Sequence[Aggregate]) -> list[Aggregate]:
    """Leave out the final behaviour, which is nearly the final evaluation, unless there is no evaluation."""
    evaluated = any(each.measure == FINAL_EVALUATION for each in aggregates)
    return [each for each in aggregates if each.measure != FINAL_BEHAVIOUR or not evaluated]


# As files ------------------------------------------------------------------------------------------------------------

COLUMNS: tuple[str, ...] = ("task", "algorithm", "quantity", "scale", "estimator", "seeds", "value", "low", "high")
MILESTONE_COLUMNS: tuple[str, ...] = (
    *("task", "algorithm", "steps", "seeds"),
    *(f"{kind}{part}" for kind in FINAL for part in ("", "_low", "_high", "_least")),
    "kept",
)


def tidy(groups: Sequence[Group], aggregates: Sequence[Aggregate]) -> Iterator[dict[str, Any]]:
    """Yield one row per number: of each task and algorithm, then over all tasks."""
    for group in groups:
        cell = {"task": group.task, "algorithm": group.algorithm}
        for measure, normalised in itertools.product(MEASURES, (True, False)):
            seeds = scores(group, measure, normalised=normalised).size
            for estimator in WITHIN_TASK:
                # Falling short of the expert has a meaning on the normalised scale only.
                if seeds and (normalised or estimator != "optimality gap"):
                    found = estimate(group, measure, estimator, normalised=normalised)
                    assert found is not None
                    scale = "normalised" if normalised else "return"
                    yield {**cell, "quantity": measure, "scale": scale, "estimator": estimator, "seeds": seeds} | (
                        found._asdict()
                    )
        for kind, level in itertools.product(RETURNS, LEVELS):
            yield from (cell | row for row in _reached_rows(reached(group, level, kind)))
    for each in aggregates:
        place = {"task": " + ".join(each.tasks), "scale": "normalised", "quantity": each.measure}
        for name, estimates in each.estimates.items():
            for estimator, found in estimates.items():
                yield {**place, "algorithm": name, "estimator": f"{estimator} over tasks", **found._asdict()}
        for first, second, found in each.improvements:
            yield {**place, "algorithm": first, "estimator": f"probability of beating {second}", **found._asdict()}


def _reached_rows(found: Reached | None) -> Iterator[dict[str, Any]]:
    if found is None:
        return
    for moment, steps, seeds in (
        ("first", found.first, found.first_seeds),
        ("and stays", found.stays, found.stays_seeds),
    ):
        row = {"quantity": f"steps to {found.level:.0%} of the expert, {found.kind}, {moment}", "scale": "steps"}
        yield row | {"estimator": "median", "seeds": found.seeds, "value": steps}
        yield row | {"estimator": "share of seeds", "seeds": found.seeds, "value": seeds / found.seeds}


def csv_text(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """Return rows as CSV; what is not known, or never happened, is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if _unknown(value) else csv_cell(value) for key, value in row.items()})
    return out.getvalue()


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and not np.isfinite(value)


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex(text: str) -> str:
    """Escape what LaTeX would read as a command."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def latex_text(groups: Sequence[Group]) -> str:
    """Return the summary as a LaTeX table (package booktabs): normalised returns with 95 % intervals."""
    lines = [
        "% Normalised returns, mean over seeds [95 % bootstrap interval]; needs \\usepackage{booktabs}.",
        r"\begin{tabular}{llrrrrr}",
        r"\toprule",
        r"Task & Algorithm & Seeds & Final evaluation & Final behaviour & Area & Steps to 90\,\% \\",
    ]
    for task, members in itertools.groupby(groups, key=lambda group: group.task):
        lines.append(r"\midrule")
        for place, group in enumerate(members):
            cells = [latex(task) if place == 0 else "", latex(group.algorithm), str(len(group.judged))]
            cells += [_latex_interval(estimate(group, measure)) for measure in MEASURES]
            cells.append(_latex_steps(reached(group, 0.9, main_kind(group))))
            lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def main_kind(group: Group) -> Kind:
    """Return by which returns a group is judged: evaluations if there are any, else the behaviour's."""
    return "evaluation" if any(run.has("evaluation") for run in group.judged) else "behaviour"


def _latex_interval(found: Interval | None) -> str:
    if found is None:
        return "--"
    if not found.known:
        return f"${found.value:z.2f}$"
    return rf"${found.value:z.2f}$ $[{found.low:z.2f}, {found.high:z.2f}]$"


def _latex_steps(found: Reached | None) -> str:
    if found is None:
        return "--"
    steps = f"{found.first:,.0f}".replace(",", r"\,") if np.isfinite(found.first) else "--"
    return f"{steps} ({found.first_seeds}/{found.seeds})"
