"""`oal cost`: show, draw and export the cost that a run has learned."""

from pathlib import Path

import typer

from oal.base import console

SHOWN = 20


def cost(
    run: Path = typer.Argument(..., help="A run folder, or a cost.safetensors file."),
    plot: Path | None = typer.Option(None, help="Draw it: FILE.png and FILE.svg."),
    export: Path | None = typer.Option(None, help="Write it as .safetensors, or a linear cost as .json or .csv."),
) -> None:
    """Show a learned cost: what it is, and the weight of each feature of a linear one."""
    from oal import demos
    from oal.base.folder import RunFolder
    from oal.deep.costs import LinearConfig
    from oal.deep.learned_cost import LearnedCost
    from oal.errors import InputError

    folder = None if run.is_file() else RunFolder.open(run)
    if folder is not None and not folder.cost.exists():
        raise InputError(f"{folder} holds no learned cost ({folder.cost.name}): has the run finished?")
    learned = LearnedCost.load(run) if folder is None else LearnedCost.load(folder.cost, inside=folder.path)
    observations = actions = None
    lines = learned.summary()
    if folder is not None and folder.demos.exists():
        shown = demos.load(folder.demos, inside=folder.path)
        observations, actions = shown.observations.reshape(shown.steps, -1), shown.actions
        costs = learned(observations, actions)
        lines["expert pays"] = f"{costs.mean():.4g} per step (standard deviation {costs.std():.4g})"
    for name, line in lines.items():
        console.say(f"{name:<{max(map(len, lines))}}  {line}")
    if isinstance(learned.player.config, LinearConfig):
        weights = sorted(learned.weights(), key=lambda item: -abs(item[1]))
        title = "Weights" if len(weights) <= SHOWN else f"Weights, the {SHOWN} largest of {len(weights)}"
        console.table(title, ("feature", "weight"), weights[:SHOWN])
    if plot is not None:
        written = learned.plot(plot, observations=observations, actions=actions)
        console.say(f"drawn: {', '.join(map(str, written))}")
    if export is not None:
        learned.export(export)
        console.say(f"written: {export}")
