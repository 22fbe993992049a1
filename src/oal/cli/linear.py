"""`oal linear`: learn in linear MDPs, where there are too many states for a table."""

import functools
import json
from pathlib import Path
from typing import Any

import typer

from oal.base import console
from oal.cli.tabular import environment as table
from oal.cli.typed import given

app = typer.Typer(
    help="Linear MDPs: OGAP, ILARL and BRIG with a million states and more, and their regret.", no_args_is_help=True
)

PROBLEMS = """PROBLEM is a random linear MDP, whose states are made when they are visited, or a finite MDP with a
feature for each (state, action):

anchored[:STATES[:DIMENSION[:ACTIONS]]] | chain | spawn | garnet | gridworld | FrozenLake-v1 | ...

"""


def problem_named(name: str, horizon: int | None, discount: float | None, problem_seed: int) -> Any:
    """Make the linear MDP that a name of the command line stands for."""
    from oal.errors import InputError
    from oal.linear import anchored, one_hot

    family, *rest = name.split(":")
    if family != "anchored":
        return one_hot(table(name, horizon), discount=discount)
    try:
        sizes = [int(word.replace("_", "")) for word in rest]
    except ValueError:
        raise InputError(f"problem '{name}': after the colon come whole numbers, see oal linear learn --help") from None
    if len(sizes) > 3:
        raise InputError(f"problem '{name}': at most STATES, DIMENSION and ACTIONS follow, see oal linear learn --help")
    return anchored(*sizes, horizon=horizon, discount=discount, seed=problem_seed)


def demonstrations(problem: Any, episodes: int, seed: int) -> Any:
    """Sample episodes of the problem's expert."""
    from oal.base import seeding
    from oal.errors import at_least

    at_least("--demos", episodes, 1)
    return problem.sample(episodes, rng=seeding.generator(seed, "demonstrations", episodes))


def _measured(learner: Any) -> dict[str, Any]:
    """What is kept of a run: the regret and its interval, per episode, and the last policy's gap."""
    K = learner.episodes
    regret, low, high = (float(x) / K for x in learner.regret_interval[-1])
    gap, gap_low, gap_high = learner.gap()
    return {
        "seed": learner.seed,
        "regret_per_episode": regret,
        "regret_low": low,
        "regret_high": high,
        "gap_last": gap,
        "gap_low": gap_low,
        "gap_high": gap_high,
        "curve": learner.regret_interval.tolist(),
    }


@app.command(
    help=f"""Learn from an expert's demonstrations, and measure the AL regret: exactly with one-hot features, with an
interval otherwise.

{PROBLEMS}Example: oal linear learn anchored:1000000:20 --demos 500 --episodes 1000 --seeds 2"""
)
def learn(
    problem: str = typer.Argument(..., help="A linear or finite MDP, see above."),
    algorithm: str = typer.Option("ogap", help="ogap, or ilarl: BRIG with a horizon, ILARL with a discount."),
    demos: int = typer.Option(500, help="Number of expert trajectories (N)."),
    episodes: int = typer.Option(1000, help="Number of episodes (K)."),
    seeds: int = typer.Option(2, help="Number of independent runs."),
    seed: int = typer.Option(0, help="The first seed."),
    problem_seed: int = typer.Option(0, help="Which random linear MDP."),
    horizon: int | None = typer.Option(None, help="Steps of an episode (H): 10, or what the finite MDP has."),
    discount: float | None = typer.Option(None, help="A discounted problem instead (ilarl)."),
    cost_set: str = typer.Option("box", help="Weights of the cost at each step: box, l2 or simplex."),
    preset: str = typer.Option("default", help="default, or paper: the theorems' sizes."),
    bonus_scale: float | None = typer.Option(None, help="Multiplies the elliptic bonus; 0 switches exploration off."),
    policy_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's policy step."),
    cost_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's cost step."),
    anytime: bool | None = typer.Option(None, "--anytime/--planned", help="Step sizes that need not know K."),
    gradient: str | None = typer.Option(None, help="What moves the cost: the learner's episode, or the model."),
    ridge: float | None = typer.Option(None, help="What the covariance of the features starts from."),
    threads: int | None = typer.Option(None, help="Parallel runs; all cores if not given."),
    out: Path | None = typer.Option(None, help="Folder for curves (CSV), a picture and the configuration."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    from oal.base import stopping
    from oal.base.console import progress
    from oal.base.stats import mean_interval
    from oal.errors import at_least
    from oal.linear import LinearOAL
    from oal.tabular.seeds import Kept, learn_seeds

    at_least("--episodes", episodes, 1)
    at_least("--seeds", seeds, 1)
    made = problem_named(problem, horizon, discount, problem_seed)
    settings = given(
        bonus_scale=bonus_scale,
        policy_step_scale=policy_step_scale,
        cost_step_scale=cost_step_scale,
        anytime=anytime,
        gradient=gradient,
        ridge=ridge,
    )

    def make(one: int) -> LinearOAL:
        trajectories = demonstrations(made, demos, one)
        return LinearOAL(
            made, trajectories, algorithm=algorithm, cost_set=cost_set, preset=preset, seed=one, **settings
        )

    about = {"problem": problem, "problem_seed": problem_seed, "algorithm": algorithm, "demos": demos}
    about |= {"episodes": episodes, "horizon": horizon, "discount": discount, "cost_set": cost_set, "preset": preset}
    kept = Kept(out or "runs", {"command": "linear learn", **about, **settings})
    with stopping.going_on(stopping.typed()), stopping.deferred(), progress(f"{made.name}: runs", seeds) as advance:
        results = learn_seeds(
            make, range(seed, seed + seeds), episodes, threads=threads, each=_measured, advance=advance, kept=kept
        )
    kept.remove()
    curves = [result.pop("curve") for result in results]
    names = {"regret_per_episode": "AL regret per episode", "gap_last": "gap of the last policy"}
    summary = {name: mean_interval([result[name] for result in results]) for name in names}
    if out is not None:
        _write(out, made, results, curves, about | settings)
    if as_json:
        rows = {
            name: {"mean": m.mean, "half_width_95": None if m.n == 1 else m.half_width} for name, m in summary.items()
        }
        console.say(json.dumps(about | settings | {"summary": rows, "runs": results}, indent=2))
        return
    console.table(
        f"{made!r}, {algorithm}, {cost_set} costs, N={demos}, K={episodes:,}",
        ["", "mean", "± 95 %", "seeds"],
        [[names[name], m.mean, m.half_width, m.n] for name, m in summary.items()],
    )
    width = max(result["regret_high"] - result["regret_low"] for result in results)
    console.say(
        "A gap is the worst difference in value to the true expert over the cost set; 0 is perfect. A run's regret is "
        + ("exact." if width == 0 else f"measured at sampled states: its 95 % interval is at most {width:.3g} wide.")
    )
    if out is not None:
        console.say(f"Curves and picture: {out}")


def _points(curve: Any) -> list[int]:
    """Episodes at which a curve is written and drawn."""
    import numpy as np

    return np.unique(np.geomspace(1, len(curve), 200).astype(int)).tolist()


def _rows(curve: Any, about: dict[str, Any]) -> list[dict[str, Any]]:
    """A curve `[K, 3]` as rows of a table."""
    names = ("regret", "low", "high")
    return [about | {"episode": k} | dict(zip(names, curve[k - 1], strict=True)) for k in _points(curve)]


def _draw(axes: Any, rows: list[dict[str, Any]], colour: str, label: str) -> None:
    """Draw the regret per episode: a line for each run, all of their intervals as a band, and the mean."""
    import numpy as np

    runs = sorted({row["seed"] for row in rows})
    numbers = [
        [[row[x] for x in ("episode", "regret", "low", "high")] for row in rows if row["seed"] == r] for r in runs
    ]
    stacked = np.array(numbers, dtype=float)
    k = stacked[0, :, 0]
    regret, low, high = (stacked[:, :, column] / k for column in (1, 2, 3))
    axes.plot(k, regret.T, lw=0.6, alpha=0.35, color=colour)
    axes.fill_between(k, low.min(0), high.max(0), alpha=0.12, lw=0, color=colour)
    axes.plot(k, regret.mean(0), lw=2, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="episode")


def _scale_picture(out: Path, rows: list[dict[str, Any]], spans: dict[str, str]) -> None:
    """Draw the rows of regret.csv: a panel for each algorithm, a colour for each dimension."""
    from oal.base import plots

    dimensions = list(dict.fromkeys(row["dimension"] for row in rows))
    with plots.picture(out / "linear", columns=len(spans), width=4.2) as panels:
        for axes, (name, span) in zip(panels, spans.items(), strict=True):
            for number, d in enumerate(dimensions):
                mine = [row for row in rows if (row["algorithm"], row["dimension"]) == (name, d)]
                _draw(axes, mine, plots.COLOURS[number % len(plots.COLOURS)], f"d = {d}")
            axes.set_title(f"{name}, {span}")
            axes.legend()
        panels[0].set_ylabel("AL regret per episode")


def _write(out: Path, problem: Any, results: list[Any], curves: list[Any], config: dict[str, Any]) -> None:
    """Write the runs, the configuration, and the curves as data and picture."""
    from oal.base import files, plots
    from oal.base.provenance import provenance

    files.write_csv(out / "runs.csv", results)
    files.write_json(out / "config.json", config | provenance())
    rows = [row for r, curve in zip(results, curves, strict=True) for row in _rows(curve, {"seed": r["seed"]})]
    files.write_csv(out / "regret.csv", rows)
    with plots.picture(out / "regret") as axes:
        _draw(axes, rows, plots.COLOURS[0], "mean over seeds")
        axes.set(ylabel="AL regret per episode", title=problem.name)
        axes.legend()


@app.command()
def scale(
    states: int = typer.Option(1_000_000, help="Number of states."),
    dimensions: str = typer.Option("10,20,50", help="Dimensions of the features (d)."),
    demos: int = typer.Option(2000, help="Number of expert trajectories (N)."),
    episodes: int = typer.Option(1000, help="Number of episodes (K)."),
    seeds: int = typer.Option(3, help="Number of independent runs, each in a random problem of its own."),
    horizon: int = typer.Option(8, help="Steps of an episode (H); as long as the discounted episodes are on average."),
    threads: int | None = typer.Option(None, help="Parallel runs; all cores if not given."),
    out: Path = typer.Option(Path("runs/linear"), help="Folder for the table, the curves, a picture and the config."),
) -> None:
    """Learn where no table fits: OGAP, BRIG and ILARL over the dimension of the features, regret against episodes."""
    from oal.base import files, stopping
    from oal.base.console import progress
    from oal.base.provenance import provenance
    from oal.base.stats import mean_interval
    from oal.errors import InputError, at_least
    from oal.linear import LinearOAL, anchored
    from oal.tabular.seeds import Kept, learn_seeds

    at_least("--episodes", episodes, 1)
    at_least("--seeds", seeds, 1)
    at_least("--horizon", horizon, 2)
    try:
        sizes = [int(word) for word in dimensions.split(",")]
    except ValueError:
        raise InputError(f"--dimensions is '{dimensions}': give whole numbers, as in 10,20,50") from None
    discount = 1 - 1 / horizon
    kinds = {
        "OGAP": ("ogap", {"horizon": horizon}),
        "BRIG": ("ilarl", {"horizon": horizon}),
        "ILARL": ("ilarl", {"discount": discount}),
    }
    config = {"states": states, "dimensions": sizes, "demos": demos, "episodes": episodes, "seeds": seeds}
    config |= {"horizon": horizon, "discount": discount, "cost_set": "box", "preset": "default"}
    origin = provenance()  # of the code that runs, whatever is committed meanwhile
    kept = Kept(out, {"command": "linear scale", **config})
    problem_of = functools.cache(anchored)  # OGAP and BRIG learn in the same ones
    runs: list[dict[str, Any]] = []
    curves: dict[tuple[str, int], list[Any]] = {}
    going_on = stopping.going_on(stopping.typed())
    with going_on, stopping.deferred(), progress("runs", len(kinds) * len(sizes) * seeds) as advance:
        for d in sizes:
            for name, (algorithm, span) in kinds.items():

                def make(one: int, d: int = d, algorithm: str = algorithm, span: Any = span) -> LinearOAL:
                    problem = problem_of(states, d, seed=one, **span)
                    return LinearOAL(problem, demonstrations(problem, demos, one), algorithm=algorithm, seed=one)

                found = learn_seeds(
                    make,
                    range(seeds),
                    episodes,
                    threads=threads,
                    each=_with_the_first_policy(_measured),
                    advance=advance,
                    kept=kept,
                    named=f"{name}-{d}-",
                )
                curves[name, d] = [result.pop("curve") for result in found]
                runs += [{"algorithm": name, "dimension": d} | result for result in found]
    kept.remove()
    summary = []
    for name, d in curves:
        mine = [run for run in runs if (run["algorithm"], run["dimension"]) == (name, d)]
        regret, gap = (mean_interval([run[key] for run in mine]) for key in ("regret_per_episode", "gap_last"))
        at_start = sum(run["gap_first"] for run in mine) / len(mine)
        row = {"algorithm": name, "dimension": d, "gap_first": round(at_start, 4)}
        width = "" if regret.n == 1 else round(regret.half_width, 4)  # one seed has no interval
        row |= {"regret_per_episode": round(regret.mean, 4), "half_width_95": width}
        row |= {"widest_interval": round(max(run["regret_high"] - run["regret_low"] for run in mine), 4)}
        summary.append(row | {"gap_last": round(gap.mean, 4), "seeds": len(mine)})
    files.write_csv(out / "linear.csv", summary)
    files.write_csv(out / "runs.csv", runs)
    rows = [
        row
        for (name, d), found in curves.items()
        for seed, curve in enumerate(found)
        for row in _rows(curve, {"algorithm": name, "dimension": d, "seed": seed})
    ]
    files.write_csv(out / "regret.csv", rows)
    files.write_json(out / "config.json", config | origin)
    finite, discounted = f"H = {horizon}", f"gamma = {discount:.3g}"
    _scale_picture(out, rows, {"OGAP": finite, "BRIG": finite, "ILARL": discounted})
    title = f"{states:,} states, N={demos}, K={episodes:,}: AL regret per episode"
    names = [name.replace("_", " ") for name in summary[0]]
    console.table(title, names, [list(row.values()) for row in summary])
    console.say(f"Curves and picture: {out}")


def _with_the_first_policy(measure: Any) -> Any:
    """Add the uniform policy's gap, which is the regret of the first episode of OGAP and ILARL."""

    def measured(learner: Any) -> dict[str, Any]:
        result = measure(learner)
        return result | {"gap_first": float(learner.regret_interval[0, 0])}

    return measured
