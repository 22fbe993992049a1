"""Draws the deep figures of `oal.lab.figures`: each is a sweep that ends in a report, a picture and decided claims."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oal import demos, report
from oal.base import console, files
from oal.base.provenance import provenance
from oal.base.stats import difference_interval
from oal.deep.bc import PAPER_BC, BCConfig
from oal.deep.presets import preset
from oal.errors import InputError, at_least, choice
from oal.lab.claims import Claim, Statement
from oal.lab.executors import Executor
from oal.lab.figures import CLONED, DEEP, IMPROVES, ON_POLICY, PAPER_CLONES, SCALES, SCRATCH, Scale
from oal.lab.looks import UNDECIDED, Looks, look
from oal.lab.run import CloneConfig
from oal.lab.sweep import PlannedRun, Summary, Sweep, folder_name
from oal.report import as_in_the_paper, summary
from oal.report.results import Run

NO_CLONING = {"bc.updates": 0}


def plan(
    name: str,
    *,
    scale: str = "small",
    policy: str | None = None,
    cloned: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    on_policy_steps: int | None = None,
    out: str | Path,
    demonstrations: Sequence[Path] = (),
) -> Sweep:
    """Return a figure's sweep: its algorithms, and clones of the same demonstrations with the same seeds.

    Tasks without shipped demonstrations take them from ENV.npz in `demonstrations`, or are left out where the scale
    allows it. `cloned`: every policy starts from cloning. `seeds` and `steps` are instead of the scale's.
    """
    figure, size = DEEP[choice("figure", name, DEEP)], SCALES[choice("scale", scale, SCALES)]
    size = replace(size, **size.figures.get(name, {}))
    if seeds is not None:
        at_least("seeds", seeds, 1)
        size = replace(size, seeds=seeds, few={})
    tasks = [found for env in figure.tasks or size.tasks if (found := _task(env, demonstrations, whole=size.whole))]
    if not tasks:
        raise InputError(_missing(figure.tasks[0] if figure.tasks else size.tasks[0]))
    starts = figure.starts or (CLONED if cloned else SCRATCH,)
    place = Path(out) / "runs"
    runs = [
        run
        for each in ((policy,) if policy else figure.policies)
        for run in _sweep(
            name, size, each, starts, tasks, place, on_policy_steps if each in ON_POLICY else steps
        ).planned
    ]
    numbers = figure.grid.get("trajectories", (10,))
    runs = [run for run in runs if run.config.seed < size.few.get(run.config.env, size.seeds)]
    clones = [
        clone
        for number, task in itertools.product(numbers, tasks)
        for clone in _clones(task, number, size.few.get(task["env"], size.seeds), size, place)
    ]
    # seeds come first, so that a sweep that was stopped has few seeds of everything, not all of a few
    return Sweep(name, place, tuple(sorted([*clones, *runs], key=lambda run: run.config.seed)))


def _sweep(
    name: str,
    size: Scale,
    policy: str,
    starts: Sequence[str],
    tasks: Sequence[Mapping[str, Any]],
    place: Path,
    steps: int | None,
) -> Sweep:
    """Return the runs of one policy player."""
    if policy in ON_POLICY:
        size = replace(size, **size.on_policy)
    figure = DEEP[name]
    grid = {"seed": list(range(size.seeds))} | {axis: list(values) for axis, values in figure.grid.items()}
    shared = {"policy": policy, "preset": size.preset, "total_steps": steps or size.steps, **size.shared}
    runs = [
        {**task, **(size.cloning if start == CLONED else NO_CLONING)}
        for start, task in itertools.product(starts, tasks)
    ]
    if size.preset != "paper" and policy in ON_POLICY:
        shared.setdefault("environments", 8)
    elif policy == "trpo" and not figure.starts and CLONED not in starts:
        where, costs, cloning = PAPER_CLONES
        runs = [
            {**task, "cost": cost, **(cloning if task["env"] in where and cost in costs else NO_CLONING)}
            for task, cost in itertools.product(tasks, grid.pop("cost"))
        ]
    tables = {"sweep": shared, "grid": grid, "runs": runs}
    return Sweep.parse(tables, name=name, source=f"the figure {name}", out=place)


def _task(env: str, demonstrations: Sequence[Path], *, whole: bool) -> dict[str, Any] | None:
    for folder in demonstrations:
        if (folder / f"{env}.npz").exists():
            return {"env": env, "demos": str(folder / f"{env}.npz")}
    if env in demos.shipped():
        return {"env": env}
    if whole:
        raise InputError(_missing(env))
    console.say(f"{env} is left out: {_missing(env)}", err=True)
    return None


def _missing(env: str) -> str:
    return (
        f"no demonstrations of {env} are shipped: make them with  oal expert {env}  and give the folder that "
        f"holds {env}.npz with --demonstrations"
    )


def _clones(task: Mapping[str, Any], number: int, seeds: int, size: Scale, place: Path) -> Iterable[PlannedRun]:
    """Plan what a figure's algorithms are compared with: cloning done as the scale's own learners would do it."""
    cloning = PAPER_BC if size.preset == "paper" else preset("mdpo", "neural", settings=size.cloning).bc_config
    for seed in range(seeds):
        config = CloneConfig(
            task["env"], cloning or BCConfig(), demos=task.get("demos", ""), trajectories=number, seed=seed
        )
        yield PlannedRun(place / folder_name(config), config, {"seed": seed, **task, "algorithm": "BC"})


# ----------------------------------------------------------------------------------------------------------------
# Running it


def draw(
    sweep: Sweep,
    out: str | Path,
    *,
    against: Sequence[str | Path] = (),
    executor: Callable[[], Executor] | None = None,
    looks: Looks | None = None,
    show: bool = True,
) -> tuple[Summary, list[Claim]]:
    """Run what is not finished, and write what is there: page, tables, pictures, and the claims it decides.

    `against` are folders of runs that the claims may compare with, such as those of another policy player. `looks`:
    begin with the seeds of the first look, and add seeds to what an undecided comparison over all tasks is made of,
    until the looks are over; the sweep then has the most seeds of everything.
    """
    out = Path(out)
    wanted = {
        key_of(run.config.to_json()): len(sweep.planned) if looks is None else looks.sizes[0] for run in sweep.planned
    }
    # read first: a wrong folder is said before hours of runs, not after; what is planned is this figure's to run
    others = [run for run in report.read(against).runs if key_of(run.config) not in wanted] if against else []
    while True:
        chosen = [run for run in sweep.planned if run.config.seed < wanted[key_of(run.config.to_json())]]
        outcome = replace(sweep, planned=tuple(chosen)).go(executor() if executor else None, show=show)
        names = {run.name for run in chosen}
        # what other plans left in the folder is not this figure's
        runs = [run for run in report.read([sweep.out]).runs if run.folder.path.name in names]
        compared = compare(sweep.name, [*runs, *others], looks)
        more = {
            key: each.following
            for each in compared
            if each.following is not None and each.overall
            for key in each.sides
            if key in wanted and wanted[key] < each.following
        }
        if not outcome.complete or not more:
            break
        console.say(f"{sweep.name}: {console.counted(len(more), 'group')} of runs go on to {max(more.values())} seeds")
        wanted |= more
    claims = [each.claim for each in compared]
    report.write(
        [run.folder.path for run in runs], out / "report.html", title=sweep.name, csv=True, png=True, latex_table=True
    )
    as_in_the_paper.draw(out / sweep.name, [*runs, *others])
    files.write_csv(out / "claims.csv", [claim.row for claim in claims])
    commits = sorted({str(run.metadata.get("commit")) for run in (*runs, *others)})
    about = {"figure": sweep.name, "runs": [run.name for run in chosen], "commits of the runs": commits}
    if looks is not None:
        about |= {"looks at seeds": looks.sizes, "level of each look": looks.level}
    files.write_json(out / "config.json", {**about, **provenance()})
    return outcome, claims


# ----------------------------------------------------------------------------------------------------------------
# Claims

BC_NAME = "BC"
AXES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "policy": lambda config: config["policy"],
    "cost": lambda config: config["cost"],
    "lipschitz": lambda config: (config.get("cost_config") or {}).get("lipschitz"),
    "trajectories": lambda config: config["trajectories"],
    "start": lambda config: CLONED if config.get("bc_config") else SCRATCH,
    "preset": lambda config: config["preset"],
}
FREE = {"cost": ("lipschitz",)}
"""What may differ between two sides beside the axis that they are compared along."""
MEASURED = (summary.FINAL_EVALUATION, summary.AREA)
"""The end of learning, and the paper's own objective: how the behaviour does while it learns."""

Key = tuple[Any, ...]


def key_of(config: Mapping[str, Any]) -> Key:
    """Return what runs share that differ in nothing but their seed, as far as claims tell them apart."""
    if config.get("algorithm") == BC_NAME:
        return (config["env"], BC_NAME, config["trajectories"])
    return (config["env"], *(axis(config) for axis in AXES.values()))


@dataclass(frozen=True)
class Compared:
    """A claim, and what more seeds could do for it."""

    claim: Claim
    overall: bool
    """Whether it is over all tasks that both sides have."""
    sides: tuple[Key, ...]
    following: int | None
    """The seeds of its next look, if it is undecided."""


def decide(name: str, runs: Sequence[Run], looks: Looks | None = None) -> list[Claim]:
    """Decide what the paper says of a figure, over all tasks and on each, by normalised returns at equal steps."""
    return [each.claim for each in compare(name, runs, looks)]


def compare(name: str, runs: Sequence[Run], looks: Looks | None = None) -> list[Compared]:
    """Compare what a figure's statements name, and every algorithm with cloning."""
    finished = [run for run in runs if not run.unfinished]
    clones = [run for run in finished if run.config.get("algorithm") == BC_NAME]
    learners = [run for run in finished if run.config.get("algorithm") != BC_NAME]
    found: list[Compared] = []
    for statement, measure in itertools.product(DEEP[name].statements, MEASURED):
        matched = _matched(name, statement.axis, learners)
        said = _varying(matched, learners, statement.held)
        for kept in dict.fromkeys(tuple(AXES[axis](run.config) for axis in matched) for run in learners):
            alike = [run for run in learners if tuple(AXES[axis](run.config) for axis in matched) == kept]
            label = _label({axis: value for axis, value in zip(matched, kept, strict=True) if axis in said})
            for pair in statement.pairs:
                sides = [[run for run in alike if AXES[statement.axis](run.config) == value] for value in pair]
                described = f"{measure}: {pair[0]} against {pair[1]} ({label})"
                found += _compared(statement, sides[0], sides[1], measure, described, looks)
    said = _varying(list(AXES), learners, "cost")
    for measure in MEASURED:
        for values in dict.fromkeys(tuple(axis(run.config) for axis in AXES.values()) for run in learners):
            first = [run for run in learners if tuple(axis(run.config) for axis in AXES.values()) == values]
            of = dict(zip(AXES, values, strict=True))
            second = [run for run in clones if run.config["trajectories"] == of["trajectories"]]
            label = _label({axis: value for axis, value in of.items() if axis in said})
            found += _compared(IMPROVES, first, second, measure, f"{measure}: {label} against {BC_NAME}", looks)
    return found


def _matched(name: str, axis: str, runs: Sequence[Run]) -> list[str]:
    """Return the axes along which both sides of a comparison must agree."""
    free = (axis, *FREE.get(axis, ()))
    if not DEEP[name].starts and any(run.config["preset"] == "paper" for run in runs):
        # the paper clones for some costs on some tasks, and compares
        free = (*free, "start")
    return [each for each in AXES if each not in free]


def _varying(axes: Sequence[str], runs: Sequence[Run], always: str) -> list[str]:
    """Return the axes that a reader must know the value of: those that differ where no other axis says it."""

    def values(axis: str) -> set[Any]:
        within = next((other for other, free in FREE.items() if axis in free), None)
        cells = {(AXES[within](run.config) if within else None, AXES[axis](run.config)) for run in runs}
        return {place for place, _ in cells if sum(place == other for other, _ in cells) > 1}

    return [axis for axis in axes if axis == always or values(axis)]


def _label(values: Mapping[str, Any]) -> str:
    named = {"lipschitz": "Lipschitz {}", "trajectories": "{} demonstrations", "preset": "preset {}"}
    return ", ".join(named.get(axis, "{}").format(value) for axis, value in values.items() if value is not None)


def _compared(
    statement: Statement,
    first: Sequence[Run],
    second: Sequence[Run],
    measure: str,
    described: str,
    looks: Looks | None,
) -> list[Compared]:
    """Decide one comparison over the tasks that both sides have, and on each of several."""
    tasks = [task for task in dict.fromkeys(run.task for run in first) if any(run.task == task for run in second)]
    if not tasks:
        return []
    first, second = ([run for run in side if run.task in tasks] for side in (first, second))
    end = min(run.steps[-1] for run in (*first, *second) if not _is_clone(run))

    def scores(runs: Sequence[Run], task: str) -> dict[int, float]:
        found: dict[int, Run] = {}
        for run in (run for run in runs if run.task == task):
            if run.seed in found:
                raise InputError(
                    f"two runs would be seed {run.seed} of one side of a comparison, {found[run.seed].name} and "
                    f"{run.name}: compare folders that hold one of them"
                )
            found[run.seed] = run
        return {seed: _score(run, measure, end) for seed, run in found.items()}

    places = {f"all {len(tasks)} tasks": tasks} if len(tasks) > 1 else {}
    places |= {task: [task] for task in tasks}
    found = []
    for place, members in places.items():
        sides = [[scores(side, task) for task in members] for side in (first, second)]
        where = f"{place}, {end:,.0f} steps, {described}"
        keys = tuple(dict.fromkeys(key_of(run.config) for run in (*first, *second) if run.task in members))
        overall = len(members) == len(tasks)
        if looks is None:
            values = [[list(sample.values()) for sample in side] for side in sides]
            difference = difference_interval(values[0], values[1])
            least = min(len(sample) for side in sides for sample in side)
            claim = replace(statement.decided(where, difference), seeds=least, looks="1 of 1")
            found.append(Compared(claim, overall, keys, None))
            continue
        seen = look(looks, sides[0], sides[1], statement.rule)
        number = f"{seen.looks} of {len(looks.sizes)}"
        claim = Claim(statement.text, where, seen.difference, seen.verdict, seen.seeds, number)
        found.append(Compared(claim, overall, keys, seen.following if seen.verdict == UNDECIDED else None))
    return found


def _is_clone(run: Run) -> bool:
    return run.config.get("algorithm") == BC_NAME


def _score(run: Run, measure: str, end: float) -> float:
    """Measure a run as it was at a step. A clone that does not learn earns the same at every step."""
    if _is_clone(run):
        return summary.MEASURES[summary.FINAL_EVALUATION](run, True)
    return summary.MEASURES[measure](run.until(end), True)
