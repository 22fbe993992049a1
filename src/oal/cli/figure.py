"""`oal figure`: the paper's figures, from nothing to data, picture and decided claims."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oal.lab.claims import Claim

DEEP = ("gail-vs-oal", "lipschitz", "trajectories", "pretraining")


def figure(
    name: str = typer.Argument(..., help="One of those below."),
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
    """Draw a figure of the paper and decide what the paper says of it by confidence intervals.

    Tabular, at the paper's scale unless --quick:

    exploration: regret over the number of demonstrations, with and without bonus and expert model (chain, 400 seeds).

    noise: regret over the chain's alpha, the same four variants.

    bc: behavioural cloning against OAL started from it (spawn).

    options: what each option beyond the paper does to the regret (chain, FrozenLake, CliffWalking).

    Deep, as a sweep that can be stopped and started again, ending in a report:

    gail-vs-oal: linear and neural costs against GAIL; with --policy trpo, on-policy (--against the other's runs).

    lipschitz: the coefficient of the Lipschitz penalty (HalfCheetah).

    trajectories: the number of demonstrations (Walker2d).

    pretraining: with and without behavioural cloning first (TRPO, HalfCheetah).
    """
    if name in DEEP:
        _deep(name, out or Path("figures") / name, scale, policy, demonstrations, threads, against, ray)
        return
    from oal.cli.tabular import given
    from oal.errors import InputError, choice
    from oal.lab import figures

    choice("figure", name, (*figures.FIGURES, *DEEP))
    draw = figures.FIGURES[name]
    options = (figures.QUICK[name] if quick else {}) | given(
        seeds=seeds,
        episodes=episodes,
        bonus_scale=bonus_scale,
        policy_step_scale=policy_step_scale,
        cost_step_scale=cost_step_scale,
        demonstrations=demos,
    )
    for option in options:
        if option not in inspect.signature(draw).parameters or (
            option == "demonstrations" and demos and name != "noise"
        ):
            flag = "demos" if option == "demonstrations" else option.replace("_", "-")
            raise InputError(f"the figure {name} has no option --{flag}: leave it out")
    folder = out or Path("figures") / name
    claims = draw(folder, threads=threads, **options)
    _show(claims, f"{name}: the paper's claims (a negative difference speaks for the claim)")
    typer.echo(f"Data, pictures and configuration: {folder}")


def _show(claims: "Sequence[Claim]", title: str) -> None:
    from oal.base.console import table

    columns = ["claim", "where", "difference", "95 % interval", "verdict"]
    rows = [
        [c.claim, c.where, c.difference.mean, f"{c.difference.low:.3f} to {c.difference.high:.3f}", c.verdict]
        for c in claims
    ]
    table(title, columns, rows)


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
    from oal.base import runtime

    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    from oal.lab import studies
    from oal.lab.executors import Processes, RayCluster

    sweep = studies.plan(name, scale=scale, policy=policy, out=out, demonstrations=demonstrations)
    typer.echo(f"{name}, {scale}: {len(sweep.runs())} runs in {sweep.out}; stop and start again at will.")
    executor = Processes(processes) if ray is None else RayCluster(ray)
    summary, claims = studies.draw(sweep, out, against=against, executor=executor)
    _show(claims, f"{name}: the paper's claims (a positive difference favours the first)")
    typer.echo(f"{summary}\nReport: {out / 'report.html'}")
    if not summary.complete:
        raise typer.Exit(1)
