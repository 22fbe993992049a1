"""`oal figure`: the paper's figures, from nothing to data, picture and decided claims."""

import inspect
from pathlib import Path

import typer


def figure(
    name: str = typer.Argument(..., help="exploration, noise, bc or options."),
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
) -> None:
    """Draw a figure of the paper at its full scale, and decide the paper's claims by confidence intervals.

    exploration: regret over the number of demonstrations, with and without bonus and expert model (chain, 400 seeds).

    noise: regret over the chain's alpha, the same four variants.

    bc: behavioural cloning against OAL started from it (spawn).

    options: what each option beyond the paper does to the regret (chain, FrozenLake, CliffWalking).
    """
    from oal import figures
    from oal.cli.tabular import given
    from oal.console import table
    from oal.errors import InputError, choice

    draw = figures.FIGURES[choice("figure", name, figures.FIGURES)]
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
    table(
        f"{name}: the paper's claims (a negative difference speaks for the claim)",
        ["claim", "where", "difference", "95 % interval", "verdict"],
        [
            [c.claim, c.where, c.difference.mean, f"{c.difference.low:.3f} to {c.difference.high:.3f}", c.verdict]
            for c in claims
        ],
    )
    typer.echo(f"Data, pictures and configuration: {folder}")
