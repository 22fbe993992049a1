"""`oal figure`: the paper's figures, from nothing to data, picture and decided claims."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.lab.figures import DEEP, REGIMES, TABULAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oal.lab.claims import Claim
    from oal.lab.looks import Looks


def _listed(figures: dict[str, Any]) -> str:
    return "\n\n".join(f"{name}: {figure.about}" for name, figure in figures.items())


HELP = f"""Draw a figure of the paper and decide what the paper says of it by confidence intervals.

Tabular, at the paper's scale unless --quick:

{_listed(TABULAR)}

Deep, as a sweep that can be stopped and started again, ending in a report:

{_listed(DEEP)}

suite: imitation from one, ten subsampled and ten demonstrations, as one table; on the three locomotion tasks whose
demonstrations are shipped, and with --demonstrations FOLDER also from other people's, of five tasks.
"""


def figure(
    name: str = typer.Argument(..., help="One of those above."),
    out: Path = typer.Option(
        None, help="Folder for data (CSV), pictures (PNG, SVG) and configuration; figures/NAME if not given."
    ),
    seeds: int | None = typer.Option(None, help="Number of seeds; the figure's own if not given."),
    episodes: int | None = typer.Option(None, help="Number of episodes (K); the figure's own if not given."),
    bonus_scale: float | None = typer.Option(None, help="Multiplies the theorem's bonus."),
    policy_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's policy step (chain figures)."),
    cost_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's cost step (chain figures)."),
    demos: int | None = typer.Option(None, help="Number of demonstrations of the figure noise."),
    task: list[str] = typer.Option([], help="Of the figure newer: one of its tasks; repeatable, all if not given."),
    quick: bool = typer.Option(False, "--quick", help="A small version, in seconds."),
    threads: int | None = typer.Option(None, help="Parallel runs; all cores if not given."),
    scale: str = typer.Option("small", help="Of a deep figure: smoke (minutes), small (hours), paper (3M steps)."),
    policy: str | None = typer.Option(None, help="Of a deep figure: one policy player alone, e.g. trpo."),
    cloned: bool = typer.Option(False, "--cloned", help="Of a deep figure: start from cloning, not from scratch."),
    until_decided: bool = typer.Option(
        False, "--until-decided", help="Of a deep figure: add seeds where the claims over all tasks are undecided."
    ),
    most_seeds: int = typer.Option(10, help="With --until-decided: as many seeds as a comparison may get."),
    demonstrations: list[Path] = typer.Option([], help="Of a deep figure: a folder with ENV.npz files; repeatable."),
    regime: list[str] = typer.Option([], help=f"Of the suite: {', '.join(REGIMES)}; repeatable, all if not given."),
    steps: int | None = typer.Option(None, help="Of a deep figure or the suite: steps of every run, not its own."),
    on_policy_steps: int | None = typer.Option(None, help="Of a deep figure: the same for TRPO."),
    only_table: bool = typer.Option(False, "--only-table", help="Of the suite: run nothing, read what is there."),
    against: list[Path] = typer.Option([], help="Of a deep figure: other runs that its claims may compare with."),
    ray: str | None = typer.Option(None, help="Of a deep figure: run on a Ray cluster, auto or HOST:PORT."),
) -> None:
    """Draw a figure; the help that the command line shows is `HELP`."""
    from oal.cli.typed import given
    from oal.errors import choice

    choice("figure", name, (*TABULAR, *DEEP, "suite"))
    folder = out or Path("figures") / name
    _refuse(
        name,
        {"episodes": episodes, "bonus-scale": bonus_scale, "policy-step-scale": policy_step_scale, "demos": demos}
        | {"cost-step-scale": cost_step_scale, "task": task, "quick": quick},
        name not in TABULAR,
    )
    deep = {"policy": policy, "cloned": cloned, "until-decided": until_decided, "on-policy-steps": on_policy_steps}
    _refuse(name, deep | {"against": against, "ray": ray, "scale": scale != "small"}, name not in DEEP)
    _refuse(name, {"steps": steps, "demonstrations": demonstrations}, name in TABULAR)
    _refuse(name, {"regime": regime, "only-table": only_table}, name != "suite")
    if name == "suite":
        _suite(folder, regime, demonstrations, seeds or 3, steps, threads, only_table)
    elif name in DEEP:
        looks = _looks(seeds or 3, most_seeds) if until_decided else None
        plan = {"scale": scale, "policy": policy, "cloned": cloned, "steps": steps, "demonstrations": demonstrations}
        plan["on_policy_steps"] = on_policy_steps
        plan["seeds"] = most_seeds if until_decided else seeds
        _deep(name, folder, plan, looks, threads, against, ray)
    else:
        options = given(
            seeds=seeds,
            episodes=episodes,
            bonus_scale=bonus_scale,
            policy_step_scale=policy_step_scale,
            cost_step_scale=cost_step_scale,
            demonstrations=demos,
            tasks=tuple(task) or None,
        )
        tabular_figure(name, folder, options, quick, threads)


def _refuse(name: str, given: dict[str, Any], unknown: bool) -> None:
    """Refuse options of other figures: hours of something else would be run without a word."""
    from oal.errors import InputError

    for option, value in given.items():
        if unknown and value not in (None, False, []):
            raise InputError(f"the figure {name} has no option --{option}: leave it out")


def tabular_figure(name: str, folder: Path, options: dict[str, Any], quick: bool, threads: int | None) -> None:
    """Draw a tabular figure with some of its settings changed; say what it decides."""
    from oal.base import console, stopping
    from oal.errors import InputError
    from oal.lab import tabular_figures

    usual = TABULAR[name].settings
    for option in options:
        # a figure whose axis is the number of demonstrations has a list of them
        if (isinstance(usual.get(option), tuple) and option != "tasks") or option not in usual:
            flag = {"demonstrations": "demos", "tasks": "task"}.get(option, option.replace("_", "-"))
            raise InputError(f"the figure {name} has no option --{flag}: leave it out")
    changes = (TABULAR[name].quick if quick else {}) | options
    with stopping.going_on(stopping.typed()):
        claims = tabular_figures.draw(name, folder, threads=threads, **changes)
    _show(name, claims, smoke=quick)
    console.say(f"Data, pictures and configuration: {folder}")


def _show(name: str, claims: "Sequence[Claim]", *, smoke: bool) -> None:
    from oal.base.console import say, table

    columns = ["claim", "where", "gain", "95 %", "verdict", "seeds", "looks"]
    rows = [
        [
            c.claim,
            c.where,
            c.difference.mean,
            # one seed has no interval
            "one seed" if math.isnan(c.difference.low) else f"{c.difference.low:.3g} to {c.difference.high:.3g}",
            c.verdict,
            "" if c.seeds is None else c.seeds,
            c.looks,
        ]
        for c in claims
    ]
    if all(c.seeds is None for c in claims):
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    table(f"{name}: claims (a positive gain favours the first)", columns, rows)
    if smoke:
        say(
            "This is a smoke test: with so few episodes and seeds, holds and fails say nothing of the paper. "
            "Run it at full size to decide."
        )


def _looks(first: int, most: int) -> "Looks":
    from oal.lab.looks import Looks

    return Looks.planned(first, most)


def _deep(
    name: str,
    out: Path,
    plan: dict[str, Any],
    looks: "Looks | None",
    processes: int | None,
    against: "Sequence[Path]",
    ray: str | None,
) -> None:
    from oal.base import console, runtime, stopping

    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    from oal.lab import deep_figures
    from oal.lab.executors import Processes, RayCluster

    sweep = deep_figures.plan(name, out=out, **plan)
    runs = console.counted(len(sweep.runs()), "run")
    if looks is not None:
        each = f"each at {looks.level:.2%}" if len(looks.sizes) > 1 else f"at {looks.level:.0%}"
        runs = f"up to {runs}, looked at with {', '.join(map(str, looks.sizes))} seeds {each},"
    console.say(f"{name}, {plan['scale']}: {runs} in {sweep.out}; it can be stopped and started again.")
    executor = (lambda: Processes(processes)) if ray is None else lambda: RayCluster(ray)
    with stopping.going_on(stopping.typed()):
        summary, claims = deep_figures.draw(sweep, out, against=against, executor=executor, looks=looks)
    _show(name, claims, smoke=plan["scale"] == "smoke")
    console.say(f"{summary}\nReport: {out / 'report.html'}")
    if not summary.complete:
        raise typer.Exit(1)


def _suite(
    out: Path,
    regimes: "Sequence[str]",
    folders: "Sequence[Path]",
    seeds: int,
    steps: int | None,
    processes: int | None,
    only_table: bool,
) -> None:
    from oal.base import console, runtime

    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    from oal.errors import InputError, choice
    from oal.lab import suite
    from oal.lab.executors import Processes

    chosen = [choice("regime", regime, REGIMES) for regime in regimes] or list(REGIMES)
    complete = True
    if not only_table:
        for regime in chosen:
            sweep = suite.plan(regime, out / "runs", folders=folders, seeds=seeds, steps=steps)
            console.say(f"{sweep.name}: {len(sweep.runs())} runs in {sweep.out}; it can be stopped and started again.")
            complete &= sweep.go(Processes(processes), show=True).complete
    places = [place for regime in chosen if (place := out / "runs" / regime).is_dir()]
    runs = suite.read(places) if places else []
    if not runs:
        raise InputError(f"{out / 'runs'} holds no run with an evaluation: leave out --only-table")
    tables = suite.write(runs, out)
    shown = [
        "task",
        "demonstrations",
        "seeds",
        "clone",
        "evaluation 50k",
        "evaluation 50k (worst)",
        "first at 0.9",
        "kept",
    ]
    for regime in chosen:
        table = [[row[column] for column in shown] for row in tables.per_task if row["regime"] == regime]
        if table:
            console.table(f"{regime}: shares of the expert's return", shown, table)
    _show("suite", tables.claims, smoke=False)
    for row in tables.overall:
        reached = {mark: row[f"evaluation {mark // 1000}k"] for mark in suite.MARKS}
        means = [f"{value:.3f} at {mark:,} steps" for mark, value in reached.items() if value is not None]
        console.say(f"{row['regime']}, {row['tasks']}: inter-quartile mean {', '.join(means) or 'of no mark yet'}")
    written = ("suite.csv", "suite-overall.csv", "claims.csv", "suite.png")
    console.say(f"Tables and picture: {', '.join(str(out / name) for name in written)}")
    if not complete:
        raise typer.Exit(1)
