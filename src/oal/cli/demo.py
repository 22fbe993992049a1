"""`oal demo`: the main job in minutes, on shipped demonstrations, with pictures at the end; then a grid in seconds."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.base import console

if TYPE_CHECKING:
    from oal.base.folder import RunFolder

GRID_DEMONSTRATIONS = 50
SIZE, HORIZON, WALLS = 6, 24, ((1, 1), (1, 2), (2, 4), (3, 1), (4, 3), (4, 4))


ENVIRONMENT = "Hopper-v5"
HEIGHT = 0
"""Which number of the observation is the height of its body."""


def demo(
    out: Path = typer.Option(Path("oal-demo"), help="Folder for the run, the pictures and the numbers."),
    steps: int = typer.Option(12_000, help="Environment steps of deep learning; 0 leaves that part out."),
    episodes: int = typer.Option(10_000, help="Episodes of tabular learning; 0 leaves that part out."),
    seeds: int = typer.Option(8, help="Independent tabular runs."),
    threads: int = typer.Option(2, help="Threads of computation."),
) -> None:
    """Learn to hop from one shipped demonstration whose clone falls, without its reward, and say how close it is."""
    from oal.base import runtime

    runtime.set_threads(threads)
    runtime.keep_compiled_programs()
    if steps:
        _deep(out, steps)
    if episodes:
        _tabular(out, episodes, seeds)


def _deep(out: Path, steps: int) -> None:
    from oal.cli.train import show_certificate
    from oal.deep.presets import preset
    from oal.lab import run as training

    console.say(f"{ENVIRONMENT}: the learner sees one demonstration, and not what it was rewarded for.")
    # a second demo does not touch the first one's run
    folder = next(path for n in count(1) if not (path := out / ("run" if n == 1 else f"run-{n}")).exists())
    config = training.RunConfig(
        env=ENVIRONMENT,
        learner=preset("mdpo", "neural"),
        total_steps=steps,
        trajectories=1,
        log_every=500,
        evaluate_every=1_000,
        evaluation_episodes=5,
        checkpoint_every=max(500, steps // 2 // 500 * 500),
    )
    run = training.start(config, folder)
    run.go(progress_bar=True).close()
    result = training.certify(folder, episodes=10, best=True)
    typer.echo("How close is it?")
    show_certificate(result)
    training.film(folder, best=True)
    training.film_expert(folder)
    _curves(out / "demo", run.folder)
    console.say(
        f"Picture: {out / 'demo.png'}; films: {folder / 'video.gif'} (learned), {folder / 'expert.gif'} (expert)"
    )
    console.say(f"More:  oal report {folder} -o report.html   oal cost {folder}")


def _curves(path: Path, folder: "RunFolder") -> None:
    from oal import demos
    from oal.base import plots
    from oal.deep.policy import Policy
    from oal.envs import EpisodeRunner, episode_seeds

    records, expert = folder.records(), folder.metadata["held_out_return"]
    evaluated = [record for record in records if record.get("evaluation_return") is not None]
    clone, learned = plots.COLOURS[1], plots.COLOURS[0]
    with plots.picture(path, columns=3, width=3.9, height=3.4) as (left, middle, right):
        left.plot(
            [record["step"] for record in evaluated],
            [record["evaluation_return"] for record in evaluated],
            color=learned,
            marker="o",
            ms=3,
            label="learner",
        )
        left.axhline(expert, color="0.4", ls="--", label="expert")
        left.axhline(evaluated[0]["evaluation_return"], color=clone, ls=":", label="its clone")
        left.set(xlabel="environment steps", ylabel="return (never seen by the learner)", title=ENVIRONMENT)
        left.set_ylim(0, 1.1 * expert)
        left.legend(fontsize=8, loc="lower right")
        middle.plot(
            [record["step"] for record in evaluated],
            [record["evaluation_distance"] for record in evaluated],
            color=learned,
            marker="o",
            ms=3,
        )
        middle.set(
            xlabel="environment steps",
            ylabel="distance to the demonstration",
            ylim=(0, None),
            title="how close, without a reward",
        )
        shown = demos.load(folder.demos, inside=folder.path)[0].observations[:, HEIGHT]
        right.plot(shown, color="0.4", ls="--", lw=1, label=f"expert: {len(shown) - 1:,} steps")
        runner = EpisodeRunner(ENVIRONMENT)
        for name, kept, colour in (("learner", folder.best, learned), ("its clone", folder.clone, clone)):
            episode = runner.run(Policy.load(kept).act, episode_seeds(0, "demo", 1))[0]
            steps = len(episode.rewards)
            end = f"falls after {steps:,} steps" if episode.terminated else f"{steps:,} steps"
            right.plot(episode.observations[:, HEIGHT], color=colour, lw=1, label=f"{name}: {end}")
        runner.close()
        right.set(xlabel="time in one episode", ylabel="height of the body", title="who stays up")
        right.legend(fontsize=8)


def _tabular(out: Path, episodes: int, seeds: int) -> None:
    from oal.base import seeding
    from oal.base.console import progress, table
    from oal.base.files import write_csv
    from oal.base.stats import mean_interval
    from oal.tabular import mdp
    from oal.tabular.costsets import CostSet
    from oal.tabular.learner import TabularOAL, behavioural_cloning
    from oal.tabular.seeds import learn_seeds

    console.say("And exactly, in a finite MDP: an expert crosses a slippery grid, the learner sees its trajectories.")
    demos = GRID_DEMONSTRATIONS
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
    policies = {
        "expert": [expert],
        "OAL": [x.policy for x in learners],
        "behavioural cloning": [behavioural_cloning(x.demos, problem.shape) for x in learners],
        "uniform": [mdp.uniform_policy(problem)],
    }
    rows = []
    true_cost = problem.cost
    assert true_cost is not None
    for name, each in policies.items():
        costs = [mdp.value(problem, policy, true_cost) for policy in each]
        gaps = [box.support(mdp.occupancy(problem, policy) - d_expert) for policy in each]
        rows.append([name, mean_interval(costs).mean, mean_interval(gaps).mean])
    columns = ["policy", "true cost of an episode", "worst gap over all costs in [0, 1]"]
    table(f"{problem.name}: {demos} demonstrations, {episodes:,} episodes, mean of {seeds} seeds", columns, rows)
    console.say(
        f"AL regret per episode: {early.mean:.2f} in the first {window:,}, {late.mean:.2f} in the last {window:,}."
    )
    write_csv(out / "grid.csv", [dict(zip(columns, row, strict=True)) for row in rows])
    mean_gaps = {name: gap for name, _, gap in rows}
    _picture(out / "grid", learners, mean_gaps, d_expert, mdp.occupancy(problem, learners[0].policy))
    console.say(f"Picture: {out / 'grid.png'}")


def _picture(path: Path, learners: list[Any], gaps: dict[str, float], d_expert: Any, d_learned: Any) -> None:
    import numpy as np

    from oal.base import plots

    k = np.unique(np.geomspace(1, learners[0].episodes, 200).astype(int))
    curves = np.stack([x.regret for x in learners])[:, k - 1]
    with plots.picture(path, columns=3, width=3.9, height=3.4) as (left, middle, right):
        left.plot(k, (curves / k).T, color=plots.COLOURS[0], alpha=0.25, lw=1)
        left.plot(k, (curves / k).mean(0), color=plots.COLOURS[0], lw=2, label="OAL while it learns")
        for name, colour, style in (("behavioural cloning", plots.COLOURS[1], "--"), ("uniform", "0.5", ":")):
            left.axhline(gaps[name], color=colour, ls=style, label=name)
        left.set(
            xscale="log",
            ylim=(0, None),
            xlabel="episode",
            ylabel="AL regret per episode",
            title="how close, while learning",
        )
        left.legend(fontsize=8)
        times = [d.sum((0, 2)).reshape(SIZE, SIZE) for d in (d_expert, d_learned)]
        brightest = np.log1p(np.max(times))
        for axes, who, grid in zip((middle, right), ("expert", "OAL"), times, strict=True):
            grid[tuple(zip(*WALLS, strict=True))] = np.nan
            axes.imshow(np.log1p(grid), cmap="viridis", vmin=0, vmax=brightest)
            axes.set(title=f"{who}: time in each cell", xticks=[], yticks=[])
            axes.grid(False)
            axes.text(0, 0, "start", ha="center", va="center", color="white", fontsize=7)
            axes.text(SIZE - 1, SIZE - 1, "goal", ha="center", va="center", color="black", fontsize=7)
