"""What a report's charts show, as data: `charts` draws them into the page, `pictures` into files."""

import math
from collections.abc import Iterable, Sequence

from oal.report import curves
from oal.report.charts import Chart, IntervalChart, LineChart, Rule, Series
from oal.report.groups import Group, algorithms, tasks
from oal.report.results import Kind
from oal.report.summary import DRAWN_ESTIMATORS, Aggregate

CURVE_TITLES: dict[Kind, str] = {"behaviour": "return while learning", "evaluation": "evaluation return"}
REGRET_TITLE = "AL regret per episode"


def learning_curves(groups: Sequence[Group], kind: Kind) -> dict[str, LineChart]:
    """Return a chart for each task that has values of this kind."""
    names, found = algorithms(groups), {}
    title = CURVE_TITLES.get(kind, REGRET_TITLE)
    for task in tasks(groups):
        members = [group for group in groups if group.task == task]
        series = [
            _series(group.algorithm, names.index(group.algorithm), curve, of=len(group.runs))
            for group in members
            if (curve := curves.learning_curve(group, kind))
        ]
        if not series:
            continue
        runs = [run for group in members for run in group.runs]
        found[task] = LineChart(
            f"{task}: {title}",
            series,
            x_label="environment steps",
            y_label="return" if kind in CURVE_TITLES else "regret",
            x_end=max(float(run.steps[-1]) for run in runs),
            rules=[
                *_rules("expert", (run.source_return for run in runs)),
                *_rules("random", (run.random_return for run in runs)),
            ]
            if kind in CURVE_TITLES
            else [Rule("expert", 0.0)],
        )
    return found


def _series(label: str, place: int, curve: curves.Curve, *, of: int) -> Series:
    notes = [f"{n} seed{'' if n == 1 else 's'} of {of}" if n < of else "" for n in curve.seeds]
    return Series(label, place, curve.steps, *curve.band, notes=notes)


def _rules(name: str, values: Iterable[float]) -> list[Rule]:
    """Return a line per distinct return: another set of demonstrations may have another expert."""
    return [Rule(name, value, style=name) for value in sorted({value for value in values if math.isfinite(value)})]


def aggregate_curve(groups: Sequence[Group], over: Sequence[str], kind: Kind) -> LineChart | None:
    """Return the algorithms' inter-quartile means over the given tasks, or None without any."""
    series = []
    for place, name in enumerate(algorithms(groups)):
        members = [group for group in groups if group.algorithm == name and group.task in over]
        if curve := curves.aggregate_curve(members, kind):
            series.append(Series(name, place, curve.steps, *curve.band))
    if not series:
        return None
    title = f"Inter-quartile mean of the {CURVE_TITLES[kind]}"
    rules = [Rule("expert", 1.0)]
    return LineChart(title, series, x_label="environment steps", y_label="normalised return", rules=rules)


def aggregate_charts(each: Aggregate) -> dict[str, Chart]:
    """Return one measure's charts by caption: two estimates, the performance profile, and who beats whom."""
    places = {name: place for place, name in enumerate(each.estimates)}
    found: dict[str, Chart] = {}
    for estimator, x_label in DRAWN_ESTIMATORS.items():
        rows = [(name, place, each.estimates[name][estimator]) for name, place in places.items()]
        found[estimator] = IntervalChart(f"{each.measure}: {estimator}", rows, x_label=x_label)
    found["performance profile"] = LineChart(
        f"{each.measure}: performance profile",
        [Series(name, place, each.thresholds, *each.profiles[name]) for name, place in places.items()],
        x_label="normalised return τ",
        y_label="share of runs above τ",
        y_bounds=(-0.03, 1.03),
    )
    if each.improvements:
        found["probability of improvement"] = IntervalChart(
            f"{each.measure}: probability of improvement",
            [(f"{first} > {second}", places[first], estimate) for first, second, estimate in each.improvements],
            x_label="probability that a run of the first is better",
            bounds=(-0.03, 1.03),
            mark=0.5,
        )
    return found
