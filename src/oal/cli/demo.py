"""`oal demo`: the main job in a minute, on data made on the spot, with a picture at the end."""

from pathlib import Path
from typing import Any

import typer

SIZE, HORIZON, WALLS = 6, 24, ((1, 1), (1, 2), (2, 4), (3, 1), (4, 3), (4, 4))


def demo(
    out: Path = typer.Option(Path("oal-demo"), help="Folder for the picture and the numbers."),
    demos: int = typer.Option(50, help="Number of expert trajectories."),
    episodes: int = typer.Option(10_000, help="Episodes of learning."),
    seeds: int = typer.Option(8, help="Independent runs."),
) -> None:
    """Learn to cross a slippery grid from an expert's trajectories, without its cost, and measure how close it is."""
    from oal import mdp, seeding
    from oal.console import progress, table
    from oal.costsets import CostSet
    from oal.figures import write_csv
    from oal.stats import mean_interval
    from oal.tabular import TabularOAL, behavioural_cloning, learn_seeds

    typer.echo("An expert crosses a slippery grid; the learner sees its trajectories, not its cost.")
    problem = mdp.gridworld(SIZE, HORIZON, slip=0.1, walls=WALLS)
    expert = mdp.expert_policy(problem)
    d_expert = mdp.occupancy(problem, expert)
    box = CostSet("box", problem.shape)

    def demonstrations(seed: int) -> mdp.Trajectories:
        return mdp.sample(problem, expert, demos, rng=seeding.generator(seed, "demonstrations", demos))

    with progress("warming up the compiler", 1) as advance:
        TabularOAL(problem, demonstrations(0)).learn(2)
        advance(1)
    with progress(f"OAL: {seeds} runs of {episodes:,} episodes", seeds) as advance:
        learners = learn_seeds(
            lambda seed: TabularOAL(problem, demonstrations(seed), seed=seed),
            range(seeds),
            episodes,
            each=lambda learner: learner,
            advance=advance,
        )
    window = max(1, episodes // 10)
    late = mean_interval([(x.regret[-1] - x.regret[-1 - window]) / window for x in learners if episodes > window])
    early = mean_interval([x.regret[window - 1] / window for x in learners])
    cloned = [behavioural_cloning(x.demos, problem.shape) for x in learners]
    uniform = mdp.uniform_policy(problem)

    true_cost = problem.cost
    assert true_cost is not None

    def cost(policies: list[Any]) -> float:
        return mean_interval([mdp.value(problem, policy, true_cost) for policy in policies]).mean

    def gap(policies: list[Any]) -> float:
        return mean_interval([box.support(mdp.occupancy(problem, policy) - d_expert) for policy in policies]).mean

    learned = [x.policy for x in learners]
    rows = [
        ["expert", cost([expert]), gap([expert])],
        ["OAL", cost(learned), gap(learned)],
        ["behavioural cloning", cost(cloned), gap(cloned)],
        ["uniform", cost([uniform]), gap([uniform])],
    ]
    columns = ["policy", "true cost of an episode", "worst gap over all costs in [0, 1]"]
    table(f"{problem.name}: {demos} demonstrations, {episodes:,} episodes, mean of {seeds} seeds", columns, rows)
    typer.echo(
        f"AL regret per episode: {early.mean:.2f} in the first {window:,}, {late.mean:.2f} in the last {window:,}."
    )
    write_csv(out / "demo.csv", [dict(zip(columns, row, strict=True)) for row in rows])
    _picture(out / "demo", problem, learners, d_expert, cloned)
    typer.echo(f"Picture: {out / 'demo.png'}")


def _picture(path: Path, problem: Any, learners: list[Any], d_expert: Any, cloned: list[Any]) -> None:
    import numpy as np

    from oal import mdp, plots
    from oal.costsets import CostSet

    box = CostSet("box", problem.shape)
    k = np.unique(np.geomspace(1, learners[0].episodes, 200).astype(int))
    curves = np.stack([x.regret for x in learners])[:, k - 1]
    bc = np.mean([box.support(mdp.occupancy(problem, policy) - d_expert) for policy in cloned])
    uniform = box.support(mdp.occupancy(problem, mdp.uniform_policy(problem)) - d_expert)
    with plots.picture(path, columns=3, width=3.9, height=3.4) as (left, middle, right):
        left.plot(k, (curves / k).T, color=plots.COLOURS[0], alpha=0.25, lw=1)
        left.plot(k, (curves / k).mean(0), color=plots.COLOURS[0], lw=2, label="OAL while it learns")
        left.axhline(bc, color=plots.COLOURS[1], ls="--", label="behavioural cloning")
        left.axhline(uniform, color="0.5", ls=":", label="uniform")
        left.set(
            xscale="log",
            ylim=(0, None),
            xlabel="episode",
            ylabel="AL regret per episode",
            title="how close, while learning",
        )
        left.legend(fontsize=8)
        occupancies = (
            (middle, "expert: time in each cell", d_expert),
            (right, "OAL: time in each cell", mdp.occupancy(problem, learners[0].policy)),
        )
        brightest = max(d.sum((0, 2)).max() for _, _, d in occupancies)
        for axes, title, d in occupancies:
            grid = d.sum((0, 2)).reshape(SIZE, SIZE)
            for row, column in WALLS:
                grid[row, column] = np.nan
            axes.imshow(np.log1p(grid), cmap="viridis", vmin=0, vmax=np.log1p(brightest))
            axes.set(title=title, xticks=[], yticks=[])
            axes.grid(False)
            axes.text(0, 0, "start", ha="center", va="center", color="white", fontsize=7)
            axes.text(SIZE - 1, SIZE - 1, "goal", ha="center", va="center", color="black", fontsize=7)
