"""`oal figure`: the paper's figures, from nothing to data, picture and decided claims."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.lab.figures import DEEP, TABULAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oal.lab.claims import Claim


def _listed(figures: dict[str, Any]) -> str:
    return "\n\n".join(f"{name}: {figure.about}" for name, figure in figures.items())


HELP = f"""Draw a figure of the paper and decide what the paper says of it by confidence intervals.

Tabular, at the paper's scale unless --quick:

{_listed(TABULAR)}

Deep, as a sweep that can be stopped and started again, ending in a report:

{_listed(DEEP)}
"""


def figure(
    name: str = typer.Argument(..., help="One of those above."),
    out: Path = typer.Option(
        None, help="Folder for data (CSV), pictures (PNG, SVG) and configuration; figures/NAME if not given."
    ),
    seeds: int | None = typer.Option(None, help="Number of seeds; the paper's if not given."),
    episodes: int | None = typer.Option(None, help="Number of episodes (K); the paper's 10,000 if not given."),
    bonus_scale: float | None = typer.Option(None, help="Multiplies the theorem's bonus."),
    policy_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's policy step (chain figures)."),
    cost_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's cost step (chain figures)."),
    demos: int | None = typer.Option(None, help="Number of demonstrations of the figure noise."),
    quick: bool = typer.Option(False, "--quick", help="A small version, in seconds."),
    threads: int | None = typer.Option(None, help="Parallel runs; all cores if not given."),
    scale: str = typer.Option("small", help="Of a deep figure: smoke (minutes), small (hours), paper (3M steps)."),
    policy: str | None = typer.Option(None, help="Of a deep figure: another policy player, e.g. trpo."),
    demonstrations: Path | None = typer.Option(None, help="Of a deep figure: a folder with ENV.npz files."),
    against: list[Path] = typer.Option([], help="Of a deep figure: other runs that its claims may compare with."),
    ray: str | None = typer.Option(None, help="Of a deep figure: run on a Ray cluster, auto or HOST:PORT."),
) -> None:
    """Draw a figure; the help that the command line shows is `HELP`."""
    from oal.cli.tabular import given
    from oal.errors import choice

    choice("figure", name, (*TABULAR, *DEEP))
    folder = out or Path("figures") / name
    if name in DEEP:
        _deep(name, folder, scale, policy, demonstrations, threads, against, ray)
    else:
        options = given(
            seeds=seeds,
            episodes=episodes,
            bonus_scale=bonus_scale,
            policy_step_scale=policy_step_scale,
            cost_step_scale=cost_step_scale,
            demonstrations=demos,
        )
        _tabular(name, folder, options, quick, threads)


def _tabular(name: str, folder: Path, options: dict[str, Any], quick: bool, threads: int | None) -> None:
    from oal.errors import InputError
    from oal.lab import tabular_figures

    usual = TABULAR[name].settings
    for option in options:
        # a figure whose axis is the number of demonstrations has a list of them
        if isinstance(usual.get(option), tuple) or option not in usual:
            flag = "demos" if option == "demonstrations" else option.replace("_", "-")
            raise InputError(f"the figure {name} has no option --{flag}: leave it out")
    changes = (TABULAR[name].quick if quick else {}) | options
    _show(name, tabular_figures.draw(name, folder, threads=threads, **changes), smoke=quick)
    typer.echo(f"Data, pictures and configuration: {folder}")


def _show(name: str, claims: "Sequence[Claim]", *, smoke: bool) -> None:
    from oal.base.console import table

    columns = ["claim", "where", "gain", "95 %", "verdict"]
    rows = [
        [
            c.claim,
            c.where,
            c.difference.mean,
            # one seed has no interval
            "one seed" if math.isnan(c.difference.low) else f"{c.difference.low:.3g} to {c.difference.high:.3g}",
            c.verdict,
        ]
        for c in claims
    ]
    table(f"{name}: the paper's claims (a positive gain favours the first)", columns, rows)
    if smoke:
        typer.echo(
            "This is a smoke test: with so few episodes and seeds, holds and fails say nothing of the paper. "
            "Run it at full size to decide."
        )


def _deep(
    name: str,
    out: Path,
    scale: str,
    policy: str | None,
    demonstrations: Path | None,
    processes: int | None,
    against: "Sequence[Path]",
    ray: str | None,
) -> None:
    from oal.base import console, runtime

    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    from oal.lab import deep_figures
    from oal.lab.executors import Processes, RayCluster

    sweep = deep_figures.plan(name, scale=scale, policy=policy, out=out, demonstrations=demonstrations)
    runs = console.counted(len(sweep.runs()), "run")
    typer.echo(f"{name}, {scale}: {runs} in {sweep.out}; it can be stopped and started again.")
    executor = Processes(processes) if ray is None else RayCluster(ray)
    summary, claims = deep_figures.draw(sweep, out, against=against, executor=executor)
    _show(name, claims, smoke=scale == "smoke")
    typer.echo(f"{summary}\nReport: {out / 'report.html'}")
    if not summary.complete:
        raise typer.Exit(1)
