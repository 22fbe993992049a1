"""The page: one self-contained HTML file, readable on a phone, printable, light and dark, without any network."""

import base64
import hashlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from oal.base.console import counted
from oal.base.opening import opened
from oal.base.plots import COLOURS
from oal.errors import InputError
from oal.report import charts, statistics, summary, views
from oal.report.charts import short, written
from oal.report.groups import Group, algorithms, comparability, shared, tasks
from oal.report.html import Html, Number, figure, folded, items, joined, safe, table, tag
from oal.report.results import (
    WHOSE,
    Certificate,
    LinearCost,
    Measure,
    Results,
    Run,
    Score,
    certificate,
    gather,
    linear_cost,
)
from oal.report.summary import AREA, FINAL_BEHAVIOUR, FINAL_EVALUATION, Aggregate, Reached
from oal.report.views import CURVE_TITLES

MEGABYTE = 2**20
VIDEO_CAP = 4 * MEGABYTE
ALL_VIDEOS_CAP = 32 * MEGABYTE
FEATURES_SHOWN = 30
DIFFERENCES_SHOWN = 12
# Lines stay visible on a dark ground.
DARK_COLOURS = {"#000000": "#e6e9ec", "#0072B2": "#3d9fdc"}


@dataclass(frozen=True)
class Report:
    """Everything a page shows."""

    title: str
    results: Results
    groups: list[Group]
    aggregates: list[Aggregate]
    made_by: dict[str, Any]

    @property
    def algorithms(self) -> list[str]:
        return algorithms(self.groups)

    def place(self, group: Group) -> int:
        return self.algorithms.index(group.algorithm)


def render(report: Report) -> str:
    """Return the whole page."""
    # Damaged extras are found while their sections are made, so the failures come last.
    sections = {
        "summary": ("Summary", _summary(report)),
        "curves": ("Learning curves", _curves(report)),
        "aggregates": ("Over all tasks", _aggregates(report)),
        "certificates": ("Imitation certificates", _certificates(report)),
        "costs": ("Learned linear costs", _costs(report)),
        "films": ("Videos", _videos(report)),
        "runs": ("What was run", _what_was_run(report)),
    }
    sections["failures"] = ("Failed, unfinished and left out", _failures(report))
    present = {name: (title, content) for name, (title, content) in sections.items() if content}
    links = (tag("a", title, href=f"#{name}") for name, (title, _) in present.items())
    body = joined(
        [
            tag("header", tag("h1", report.title), _introduction(report), tag("nav", joined(links))),
            _notices(report),
            tag(
                "main",
                *(tag("section", tag("h2", title), content, id=name) for name, (title, content) in present.items()),
            ),
            _footer(report),
        ]
    )
    return _document(report.title, body)


def _document(title: str, body: Html) -> str:
    style, script = _resource("page.css") + _colours(), _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is loaded from anywhere, and no script runs but the page's own.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return (files("oal.report") / name).read_text(encoding="utf-8")


def _colours() -> str:
    light = "".join(f".s{place} {{ --c: {colour}; }}\n" for place, colour in enumerate(COLOURS))
    dark = "".join(
        f".s{place} {{ --c: {DARK_COLOURS[colour]}; }}\n"
        for place, colour in enumerate(COLOURS)
        if colour in DARK_COLOURS
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


# Head and foot -------------------------------------------------------------------------------------------------------


def _introduction(report: Report) -> Html:
    runs = report.results.runs
    if not runs:
        return tag("p", "No run could be counted: see below for the reasons.")
    counts = [
        counted(len(runs), "run"),
        counted(len(report.algorithms), "algorithm"),
        counted(len(tasks(report.groups)), "task"),
    ]
    return joined(
        [
            tag("p", f"{counts[0]} of {counts[1]} on {counts[2]}."),
            tag(
                "p",
                "Normalised return: 0 is the random policy's, 1 the expert's. Final: mean over the last tenth of the "
                "steps. Area: mean of the behaviour's return over all steps, the online objective. Intervals: 95 %, "
                "Student's over seeds (Wilson's and Newcombe's for shares), which hold with three seeds; with one "
                "there are none.",
                class_="soft",
            ),
        ]
    )


def _notices(report: Report) -> Html:
    notices: list[Any] = [*report.results.notices, *comparability(report.groups)]
    if report.results.failures:
        folders = counted(len(report.results.failures), "folder")
        notices.append(
            tag("span", tag("a", folders, href="#failures"), " failed, unfinished, damaged or left out: see why.")
        )
    return items(notices, class_="notices") if notices else Html()


def _footer(report: Report) -> Html:
    made = report.made_by
    return tag(
        "footer",
        tag(
            "p",
            "This page was made by ",
            tag("code", made["command"]),
            f", oal {made['versions']['oal']}",
            class_="soft",
        ),
    )


# Summary -------------------------------------------------------------------------------------------------------------


def _summary(report: Report) -> Html:
    if not report.groups:
        return Html()
    columns = ("Task", "Algorithm", "Seeds", "Final evaluation", "Final behaviour", "Area", "Steps to 90 %")
    rows = [
        [
            group.task,
            _algorithm(report, group),
            len(group.judged),
            *(Number(_measured(group, measure)) for measure in (FINAL_EVALUATION, FINAL_BEHAVIOUR, AREA)),
            Number(_steps(summary.reached(group, 0.9, summary.main_kind(group)))),
        ]
        for group in report.groups
    ]
    return joined(
        [
            table(columns, rows, cards=True),
            tag(
                "p",
                "Mean over seeds of normalised returns, below it the return itself. Steps: by then half of the seeds "
                "had reached 90 % of the expert (in evaluations where there are any), or reached it to stay.",
                class_="soft",
            ),
            folded("Other estimates and levels", _estimates(report), _levels(report)),
        ]
    )


def _algorithm(report: Report, group: Group) -> Html:
    return joined([Html(charts.swatch(report.place(group))), group.algorithm], "")


def _measured(group: Group, measure: str) -> Html:
    raw = summary.estimate(group, measure, normalised=False)
    if raw is None:
        return safe("–")
    found = summary.estimate(group, measure)
    if found is None:
        return joined([short(raw.value), tag("small", "return")], "")
    return joined([written(found), tag("small", f"return {short(raw.value)}")], "")


def _steps(found: Reached | None) -> Html:
    if found is None:
        return safe("–")
    first = f"{_at(found.first)} ({found.first_seeds} of {found.seeds})"
    if found.first_seeds == 0:
        return safe(first)
    stays = f"stays: {_at(found.stays)} ({found.stays_seeds} of {found.seeds})"
    return joined([first, tag("small", stays)], "")


def _at(steps: float) -> str:
    return short(steps) if math.isfinite(steps) else "not reached"


def _estimates(report: Report) -> Html:
    columns = ("Task", "Algorithm", "Measure", *summary.WITHIN_TASK)
    rows = []
    for group, measure in itertools.product(report.groups, summary.MEASURES):
        found = [summary.estimate(group, measure, estimator) for estimator in summary.WITHIN_TASK]
        if all(found):
            rows.append([group.task, group.algorithm, measure, *(Number(written(each)) for each in found if each)])
    return table(columns, rows) if rows else Html()


def _levels(report: Report) -> Html:
    columns = ("Task", "Algorithm", "Returns", *(f"Steps to {level:.0%}" for level in summary.LEVELS))
    rows = []
    for group, kind in itertools.product(report.groups, CURVE_TITLES):
        found = [summary.reached(group, level, kind) for level in summary.LEVELS]
        if any(found):
            rows.append([group.task, group.algorithm, CURVE_TITLES[kind], *(Number(_steps(each)) for each in found)])
    return table(columns, rows) if rows else Html()


# Curves --------------------------------------------------------------------------------------------------------------


def _curves(report: Report) -> Html:
    found = {title: views.learning_curves(report.groups, kind) for kind, title in CURVE_TITLES.items()}
    regrets = views.learning_curves(report.groups, "regret")
    if regrets:
        found[views.REGRET_TITLE] = regrets
    drawn = []
    for task in tasks(report.groups):
        shown = [_figure(title, by_task[task]) for title, by_task in found.items() if task in by_task]
        if shown:
            drawn.append(joined([tag("h3", task), _charts(shown)]))
    if not drawn:
        return Html()
    said = "Dashed: the expert's return. Dotted: the random policy's. Point at a chart for its values."
    if regrets:
        said += (
            " AL regret: how much more a step has cost than the expert's by the worst linear cost of norm 1, over all "
            "episodes so far; it goes to 0 as the learner becomes as good as the expert for every such cost."
        )
    return joined([Html(charts.legend(report.algorithms)), tag("p", said, class_="soft"), *drawn])


def _figure(caption: str, chart: charts.Chart) -> Html:
    return figure(caption[:1].upper() + caption[1:], Html(charts.svg(chart)))


def _charts(figures: Iterable[Html]) -> Html:
    return tag("div", *figures, class_="charts")


# Aggregates ----------------------------------------------------------------------------------------------------------


def _aggregates(report: Report) -> Html:
    if not report.groups:
        return Html()
    if not report.aggregates:
        return tag("p", "No task has normalised returns of every algorithm, so there is nothing to aggregate.")
    over = report.aggregates[0].tasks
    left_out = [task for task in tasks(report.groups) if task not in over]
    parts: list[Any] = [tag("p", f"Over {', '.join(over)}.")]
    if left_out:
        said = f"Left out, since an algorithm has no normalised returns there: {', '.join(left_out)}."
        parts.append(tag("p", said))
    lines = [
        _figure(f"inter-quartile mean, {title}", chart)
        for kind, title in CURVE_TITLES.items()
        if (chart := views.aggregate_curve(report.groups, over, kind))
    ]
    parts += [_aggregate_table(report), Html(charts.legend(report.algorithms)), _charts(lines) if lines else Html()]
    for each in summary.worth_drawing(report.aggregates):
        shown = _charts(_figure(caption, chart) for caption, chart in views.aggregate_charts(each).items())
        parts.append(joined([tag("h3", each.measure[:1].upper() + each.measure[1:]), shown]))
    return joined(parts)


def _aggregate_table(report: Report) -> Html:
    estimators = list(statistics.AGGREGATES)
    rows = [
        [each.measure, name, *(Number(written(estimates[key])) for key in estimators)]
        for each in report.aggregates
        for name, estimates in each.estimates.items()
    ]
    return table(["Measure", "Algorithm", *estimators], rows, cards=True)


# Certificates, costs, videos -----------------------------------------------------------------------------------------

MEASURE_COLUMNS = ("Measure", "Seed", "Learner", "Interval", "Clone", "p", "Verdict")
SCORE_COLUMNS = ("Mean", "Seed", *(who.capitalize() for who in WHOSE), "Verdict")
FEATURE_COLUMNS = ("Feature", "Seed", "Learner", "Expert", "Expert's sd", "Differs by")


def _certificates(report: Report) -> Html:
    found: dict[Run, Certificate] = dict(gather(report.results, certificate))
    parts = []
    for group in report.groups:
        certified = [(run.seed, found[run]) for run in group.runs if run in found]
        if certified:
            parts += [tag("h3", f"{group.task}, {group.algorithm}"), *_verdicts(report, group, certified)]
    if not parts:
        return Html()
    note = (
        "How far the learner's episodes are from the expert's, on one scale: 0 is what two sets of expert episodes "
        "give, 1 what a random policy gives. p: how often episodes split at random differ as much, adjusted for the "
        "number of measures."
    )
    return joined([tag("p", note, class_="soft"), *parts])


def _verdicts(report: Report, group: Group, certified: Sequence[tuple[Any, Certificate]]) -> list[Html]:
    """Say the sentence of every seed, then measures, means and features."""
    said = [f"Seed {seed}: {each.said}" for seed, each in certified if each.said]
    parts = [items(said, class_="verdicts")] if said else []
    measures = [(each.name, _measure_cells(each, seed)) for seed, one in certified for each in one.measures]
    scores = [(each.name, _score_cells(each, seed)) for seed, one in certified for each in one.scores]
    for columns, rows in ((MEASURE_COLUMNS, measures), (SCORE_COLUMNS, scores)):
        order = list(dict.fromkeys(name for name, _ in rows))
        if rows:
            parts.append(table(columns, [cells for _, cells in sorted(rows, key=lambda row: order.index(row[0]))]))
    parts += _feature_parts(report, group, certified)
    worst = [f"{each.worst_feature} (seed {seed})" for seed, each in certified if each.worst_feature]
    if worst:
        parts.append(tag("p", "Tells learner and expert apart most: " + ", ".join(worst), class_="soft"))
    return parts


def _measure_cells(measure: Measure, seed: Any) -> list[Any]:
    known = math.isfinite(measure.low) and math.isfinite(measure.high)
    interval = f"[{short(measure.low)}, {short(measure.high)}]" if known else "–"
    cells = [short(measure.value), interval, short(measure.clone), short(measure.p_value)]
    return [measure.name, seed, *(Number(cell) for cell in cells), measure.verdict]


def _score_cells(score: Score, seed: Any) -> list[Any]:
    means = {who: short(mean) for who, mean in score.means.items()}
    if score.half_width > 0.0:
        means["learner"] += f" ± {short(score.half_width)}"
    return [score.name, seed, *(Number(means[who]) for who in WHOSE), score.verdict]


def _feature_parts(report: Report, group: Group, certified: Sequence[tuple[Any, Certificate]]) -> list[Html]:
    """Draw by how many standard deviations features differ, and list them in their own units."""
    by_seed = [{each.name: each.deviations for each in one.differences} for _, one in certified if one.differences]
    if not by_seed:
        return []
    shared = [name for name in by_seed[0] if all(math.isfinite(seed.get(name, math.nan)) for seed in by_seed)]
    values = {name: np.array([seed[name] for seed in by_seed]) for name in shared}
    shown = sorted(shared, key=lambda name: -abs(values[name].mean()))[:DIFFERENCES_SHOWN]
    parts = []
    if shown:
        title = f"{group.task}, {group.algorithm}: where the learner differs"
        label = "learner - expert, in the expert's standard deviations"
        drawn = np.stack([values[name] for name in shown])
        chart = charts.bar_chart(title, shown, drawn, place=report.place(group), x_label=label)
        parts.append(_charts([figure(title, Html(chart))]))
    rows = [
        [
            each.name,
            seed,
            *(Number(short(x)) for x in (each.learner, each.expert, each.spread)),
            Number(f"{short(each.deviations)} sd"),
        ]
        for seed, one in certified
        for each in one.differences[:DIFFERENCES_SHOWN]
    ]
    return [*parts, folded("Features in their own units", table(FEATURE_COLUMNS, rows))]


def _costs(report: Report) -> Html:
    found: dict[Run, LinearCost] = dict(gather(report.results, linear_cost))
    pictures = []
    for group in report.groups:
        members = [found[run] for run in group.runs if run in found]
        # Seeds are averaged if they name the same features, as they do unless files were changed by hand.
        for features, costs in itertools.groupby(members, key=lambda cost: cost.features):
            pictures.append(_cost_chart(report, group, features, list(costs)))
    if not pictures:
        return Html()
    note = (
        "Weights of the learned cost; bars are means over seeds, dots seeds. Positive weights are of costly features."
    )
    return joined([tag("p", note, class_="soft"), _charts(pictures)])


def _cost_chart(report: Report, group: Group, features: Sequence[str], costs: Sequence[LinearCost]) -> Html:
    weights = np.array([cost.weights for cost in costs], dtype=np.float64).T
    largest = np.argsort(-np.abs(np.nan_to_num(weights)).mean(axis=1), kind="stable")[:FEATURES_SHOWN]
    shown = np.sort(largest)
    labels = [features[int(place)] for place in shown]
    values = np.nan_to_num(weights[shown])
    absorbing = np.array([[cost.absorbing for cost in costs]])
    if np.isfinite(absorbing).all():
        labels, values = [*labels, "absorbing state"], np.concatenate([values, absorbing])
    title = f"{group.task}, {group.algorithm}"
    more = f" (the {len(shown)} largest of {len(features)})" if len(shown) < len(features) else ""
    chart = charts.bar_chart(title, labels, values, place=report.place(group), x_label="cost weight")
    return figure(title + more, Html(chart))


def _videos(report: Report) -> Html:
    left = ALL_VIDEOS_CAP
    pairs = []
    for group in report.groups:
        for run in group.runs:
            expert = run.folder.path / "expert.gif"
            if not run.folder.video.exists():
                continue
            halves = []
            for name, path in (("learned", run.folder.video), ("expert", expert)):
                if path.exists():
                    content, size = _video(path, left)
                    left -= size
                    halves.append(tag("div", content, tag("small", name)))
            pairs.append(
                figure(f"{group.task}, {group.algorithm}, seed {run.seed}", tag("div", *halves, class_="pair"))
            )
    return tag("div", *pairs, class_="films") if pairs else Html()


def _video(path: Path, left: int) -> tuple[Html, int]:
    """Return a video as part of the page, or a line that says why not; and the bytes it took."""
    try:
        with opened(path, inside=path.parent) as file:
            size = os.fstat(file.fileno()).st_size
            if size > min(VIDEO_CAP, left):
                said = f"{path} has {size / MEGABYTE:.1f} MB, too much for this page: open the file itself."
                return tag("p", said, class_="soft"), 0
            data = file.read(size)
    except InputError as error:
        return tag("p", str(error), class_="soft"), 0
    if data[:6] not in (b"GIF87a", b"GIF89a"):
        return tag("p", f"{path} is not a GIF.", class_="soft"), 0
    return Html(f'<img alt="{safe(path.stem)}" src="data:image/gif;base64,{base64.b64encode(data).decode()}">'), size


# What was run --------------------------------------------------------------------------------------------------------


def _what_was_run(report: Report) -> Html:
    runs = report.results.runs
    if not runs:
        return Html()
    common = shared(runs)
    rows = [
        [
            group.task,
            group.algorithm,
            ", ".join(str(run.seed) for run in group.runs),
            Number(", ".join(sorted({f"{int(run.steps[-1]):,}" for run in group.runs}))),
            Number(_minutes(group)),
            ", ".join(f"{n} {status}" for status, n in Counter(run.status for run in group.runs).items()),
        ]
        for group in report.groups
    ]
    parts: list[Any] = [table(("Task", "Algorithm", "Seeds", "Steps", "Minutes per run", "Status"), rows)]
    if common:
        settings = table(("Setting", "Value"), [[name, tag("code", value)] for name, value in common.items()])
        parts.append(folded("Settings that all runs share", settings))
    parts += [_commands(runs), _versions(runs), _folders(report)]
    return joined(parts)


def _minutes(group: Group) -> str:
    seconds = [run.seconds for run in group.runs if math.isfinite(run.seconds)]
    return f"{sum(seconds) / len(seconds) / 60:.1f}" if seconds else "–"


def _commands(runs: Sequence[Run]) -> Html:
    commands = Counter(str(run.metadata.get("command") or "not recorded") for run in runs)
    lines = "\n".join(f"{command}{f'   # {n} runs' if n > 1 else ''}" for command, n in commands.items())
    if len(commands) > 8:
        return folded(f"{len(commands)} commands", tag("pre", lines))
    return joined([tag("h3", "Commands"), tag("pre", lines)])


def _versions(runs: Sequence[Run]) -> Html:
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        versions = run.metadata.get("versions")
        named = {"commit": run.metadata.get("commit"), **(versions if isinstance(versions, dict) else {})}
        for name, value in named.items():
            seen.setdefault(str(name), {})[str(value) if value is not None else "not known"] = None
    rows = [[name, tag("code", ", ".join(values))] for name, values in seen.items()]
    return joined([tag("h3", "Commit and versions"), table(("What", "Version"), rows)])


def _folders(report: Report) -> Html:
    rows = [
        [run.name, group.task, group.algorithm, run.seed, run.status] for group in report.groups for run in group.runs
    ]
    return folded("Run folders", table(("Folder", "Task", "Algorithm", "Seed", "Status"), rows))


def _failures(report: Report) -> Html:
    if not report.results.failures:
        return Html()
    rows = [[each.name, each.status, tag("pre", each.reason, class_="reason")] for each in report.results.failures]
    return table(("Folder", "Status", "Reason"), rows, cards=True)
