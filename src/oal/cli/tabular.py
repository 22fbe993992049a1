"""`oal tabular`: learn in finite MDPs, compare with the algorithms before and after OAL."""

import json
from pathlib import Path
from typing import Any

import typer

from oal.base import console
from oal.cli.typed import given

app = typer.Typer(
    help="Finite MDPs: Algorithm 2 with its exact regret, and the algorithms before it.", no_args_is_help=True
)

ENVIRONMENTS = """ENV is a family or a Gymnasium toy-text environment:

chain[:ALPHA] | spawn[:STATES] | garnet[:STATES[:ACTIONS]] | gridworld[:SIZE]
| FrozenLake-v1 | CliffWalking-v1 | Taxi-v4

"""


def environment(name: str, horizon: int | None) -> Any:
    """Make the MDP that a name of the command line stands for."""
    from oal.errors import InputError
    from oal.tabular import mdp

    family, *rest = name.split(":")
    families = {
        "chain": (lambda h, alpha=0.1: mdp.chain(h or 32, alpha), float),
        "spawn": (lambda h, states=50: mdp.spawn(states, h or 3), int),
        "garnet": (lambda h, states=20, actions=3: mdp.garnet(states, actions, h or 10), int),
        "gridworld": (lambda h, size=5: mdp.gridworld(size, h), int),
    }
    if family not in families:
        if "-v" not in family or rest:
            raise InputError(
                f"environment '{name}' is unknown: name {', '.join(families)} or a toy-text id like FrozenLake-v1"
            )
        return mdp.from_gymnasium(family, horizon or 20)
    make, number = families[family]
    try:
        numbers = [number(word) for word in rest]
        return make(horizon, *numbers)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"environment '{name}': after the colon come {number.__name__} numbers, see oal tabular learn --help"
        ) from None


def demonstrations(problem: Any, episodes: int, seed: int) -> Any:
    """Sample episodes of the problem's expert."""
    from oal.base import seeding
    from oal.errors import at_least
    from oal.tabular import mdp

    at_least("--demos", episodes, 1)
    rng = seeding.generator(seed, "demonstrations", episodes)
    return mdp.sample(problem, mdp.expert_policy(problem), episodes, rng=rng)


@app.command(
    help=f"""Learn from an expert's demonstrations and measure the AL regret exactly.

{ENVIRONMENTS}Example: oal tabular learn FrozenLake-v1 --demos 50 --episodes 5000 --seeds 8"""
)
def learn(
    env: str = typer.Argument(..., help="A family or a toy-text environment, see above."),
    demos: int = typer.Option(50, help="Number of expert trajectories (N)."),
    episodes: int = typer.Option(5000, help="Number of episodes (K)."),
    seeds: int = typer.Option(4, help="Number of independent runs."),
    seed: int = typer.Option(0, help="The first seed."),
    horizon: int | None = typer.Option(None, help="Steps of an episode (H); each family has its own default."),
    cost_set: str = typer.Option("box", help="Costs to match the expert on: box, l2 or simplex (linear in the state)."),
    preset: str = typer.Option("default", help="default; paper: Algorithm 2 as published; soar; mb-tail."),
    expert: str | None = typer.Option(
        None, help="How the expert's occupancy is estimated: empirical (counted) or transition-aware."
    ),
    known_model: bool = typer.Option(False, "--known-model", help="Algorithm 1 with the exact transition model."),
    samples_only: bool = typer.Option(
        False, "--samples-only", help="Learn without reading a transition table; the regret is estimated."
    ),
    bonus: str | None = typer.Option(None, help="hoeffding, bernstein, or a confidence set: kl or intervals."),
    bonus_scale: float | None = typer.Option(None, help="Multiplies the theorem's bonus; 0 switches exploration off."),
    policy_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's policy step."),
    cost_step_scale: float | None = typer.Option(None, help="Multiplies the theorem's cost step."),
    anytime: bool | None = typer.Option(None, "--anytime/--planned", help="Step sizes that need not know K."),
    pooled: bool | None = typer.Option(
        None, "--pooled/--per-step", help="One model for all steps (stationary dynamics)."
    ),
    expert_model: bool | None = typer.Option(
        None, "--expert-model/--no-expert-model", help="Start the model from the demonstrations."
    ),
    policy_start: str | None = typer.Option(None, help="uniform or bc."),
    initial_cost: float | None = typer.Option(None, help="The first cost of the box, in [0, 1]."),
    threads: int | None = typer.Option(None, help="Parallel runs; all cores if not given."),
    out: Path | None = typer.Option(None, help="Folder for curves (CSV), a picture and the configuration."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    import numpy as np

    from oal.base import seeding, stopping
    from oal.base.console import progress, table
    from oal.base.stats import mean_interval
    from oal.errors import InputError, at_least
    from oal.tabular import mdp, regret
    from oal.tabular.learner import TabularOAL, behavioural_cloning
    from oal.tabular.sampler import Sampler
    from oal.tabular.seeds import Kept, learn_seeds

    at_least("--episodes", episodes, 1)
    at_least("--seeds", seeds, 1)
    problem = environment(env, horizon)
    if samples_only and "-v" not in env:
        raise InputError(f"--samples-only is for Gymnasium environments, and {env} is a table: leave it out")
    d_expert = mdp.occupancy(problem, mdp.expert_policy(problem))
    settings = given(
        bonus=bonus,
        bonus_scale=bonus_scale,
        policy_step_scale=policy_step_scale,
        cost_step_scale=cost_step_scale,
        anytime=anytime,
        pooled=pooled,
        expert_model=expert_model,
        policy_start=policy_start,
        initial_cost=initial_cost,
        expert=expert,
    )

    def make(one: int) -> TabularOAL:
        return TabularOAL(
            Sampler(env, problem.horizon, max_episode_steps=problem.horizon + 1) if samples_only else problem,
            demonstrations(problem, demos, one),
            cost_set=cost_set,
            preset=preset,
            model="known" if known_model else "estimated",
            seed=one,
            **settings,
        )

    def measure(learner: TabularOAL) -> dict[str, Any]:
        costs = learner.cost_set
        gap = lambda policy: costs.support(costs.coordinates(mdp.occupancy(problem, policy) - d_expert))  # noqa: E731
        result = {
            "seed": learner.seed,
            "gap_last": gap(learner.policy),
            "gap_average": gap(learner.average_policy),
            "gap_bc": gap(behavioural_cloning(learner.demos, problem.shape)),
            "visited": learner.visited,
        }
        if samples_only:
            rng = seeding.generator(learner.seed, "regret estimate")
            e = regret.estimate(costs, learner.trajectories, learner.demos, rng=rng)
            ends = {"low": e.low / episodes, "high": e.high / episodes}
            return result | {"regret_per_episode": e.regret / episodes} | ends
        return result | {"regret_per_episode": learner.regret[-1] / episodes, "curve": learner.regret}

    about = {"env": env, "demos": demos, "episodes": episodes, "horizon": horizon, "cost_set": cost_set}
    about |= {"preset": preset, "known_model": known_model, "samples_only": samples_only, **settings}
    kept = Kept(out or "runs", {"command": "tabular learn", **about})
    with (
        stopping.going_on(stopping.typed()),
        stopping.deferred(),
        progress(f"{problem.name}: runs", seeds) as advance,
    ):
        results = learn_seeds(
            make,
            range(seed, seed + seeds),
            episodes,
            threads=threads,
            each=measure,
            advance=advance,
            kept=kept,
        )
    kept.remove()
    names = {
        "regret_per_episode": "AL regret per episode" + (" (estimated)" if samples_only else ""),
        "gap_last": "gap of the last policy",
        "gap_average": "gap of the average policy",
        "gap_bc": "gap of behavioural cloning",
    }
    summary = {name: mean_interval([result[name] for result in results]) for name in names}
    curves = [np.asarray(result.pop("curve")) for result in results if "curve" in result]
    if out is not None:
        config = {"env": env, "cost_set": cost_set, "preset": preset} | settings
        _write(out, problem, results, curves, demos, config)
    if as_json:
        document = {
            "env": problem.name,
            "cost_set": cost_set,
            "preset": preset,
            "demonstrations": demos,
            "episodes": episodes,
            "summary": {
                name: {"mean": m.mean, "half_width_95": None if m.n == 1 else m.half_width}
                for name, m in summary.items()
            },
            "runs": results,
        }
        console.say(json.dumps(document, indent=2))
        return
    sizes = f"H={problem.horizon}, S={problem.n_states}, A={problem.n_actions}"
    table(
        f"{problem.name}: {sizes}, {cost_set} costs, N={demos}, K={episodes:,}",
        ["", "mean", "± 95 %", "seeds"],
        [[names[name], m.mean, m.half_width, m.n] for name, m in summary.items()],
    )
    console.say("A gap is the worst difference in value to the true expert over the cost set; 0 is perfect.")
    if out is not None:
        console.say(f"Curves and picture: {out}")


def _write(out: Path, problem: Any, results: list[Any], curves: list[Any], demos: int, config: dict[str, Any]) -> None:
    """Write the runs, the configuration and, where the regret is exact, its curves as data and picture."""
    import numpy as np

    from oal.base import files, plots
    from oal.base.provenance import provenance
    from oal.tabular import regret

    files.write_csv(out / "runs.csv", results)
    files.write_json(out / "config.json", config | provenance())
    if not curves:
        return
    k = np.unique(np.geomspace(1, len(curves[0]), 200).astype(int))
    rows = [
        {"seed": r["seed"], "episode": int(i), "regret": float(c[i - 1])}
        for r, c in zip(results, curves, strict=True)
        for i in k
    ]
    files.write_csv(out / "regret.csv", rows)
    bound = regret.bound(problem.shape, len(curves[0]), demos)
    with plots.picture(out / "regret") as axes:
        for curve in curves:
            axes.plot(k, curve[k - 1], lw=1, alpha=0.5, color=plots.COLOURS[0])
        axes.plot(k, np.mean(curves, axis=0)[k - 1], lw=2, color=plots.COLOURS[0], label="mean over seeds")
        axes.plot(k, bound[k - 1], ls="--", color="0.5", label="theorem's bound (constants 1)")
        axes.set(xscale="log", yscale="log", xlabel="episode", ylabel="AL regret", title=problem.name)
        axes.legend()


ONE_RUN = {
    "demos": 50,
    "iterations": 100,
    "cost_set": "l2",
    "horizon": None,
    "expert": "empirical",
    "seed": 0,
    "json": False,
}
"""What `oal tabular compare ENV` takes where nothing is given."""


@app.command(
    help=f"""Compare OAL with the algorithms before and after it.

With ENV, one run of each: gap, MDPs solved, episodes sampled. Without, the regret of all of them over many runs, over K
and N, on the chain, spawn, garnets and toy-text: data, a picture and decided claims, as by oal figure newer.

{ENVIRONMENTS}"""
)
def compare(
    env: str | None = typer.Argument(None, help="A family or a toy-text environment, see above."),
    demos: int | None = typer.Option(None, help="With ENV: number of expert trajectories (N); 50 if not given."),
    episodes: int | None = typer.Option(None, help="Number of episodes (K), without ENV of the longest runs; 5000."),
    iterations: int | None = typer.Option(None, help="With ENV: iterations of those that solve an MDP in each; 100."),
    cost_set: str | None = typer.Option(None, help="With ENV: l2 (if not given), simplex (both of states) or box."),
    horizon: int | None = typer.Option(None, help="With ENV: steps of an episode (H)."),
    expert: str | None = typer.Option(
        None, help="With ENV: how all read the demonstrations, empirical (if not given) or transition-aware."
    ),
    seed: int | None = typer.Option(None, help="With ENV: seed of demonstrations and learners; 0 if not given."),
    as_json: bool = typer.Option(False, "--json", help="With ENV: print the rows as JSON."),
    task: list[str] = typer.Option([], help="Without ENV: one of the tasks; repeatable, all if not given."),
    seeds: int | None = typer.Option(None, help="Without ENV: number of seeds; the figure's own if not given."),
    out: Path | None = typer.Option(None, help="Without ENV: folder for data, picture, claims; figures/newer."),
    threads: int | None = typer.Option(None, help="Without ENV: parallel runs; all cores if not given."),
    quick: bool = typer.Option(False, "--quick", help="Without ENV: a small version, in seconds."),
) -> None:
    from oal.errors import InputError

    one = given(demos=demos, iterations=iterations, cost_set=cost_set, horizon=horizon, expert=expert, seed=seed)
    one |= given(json=as_json or None)
    many = given(task=task or None, seeds=seeds, out=out, threads=threads, quick=quick or None)
    for option in one if env is None else many:
        why = "no environment is named" if env is None else f"{env} is compared in one run"
        raise InputError(f"--{option.replace('_', '-')} does not go with this comparison, where {why}: leave it out")
    if env is None:
        from oal.cli.figure import tabular_figure

        options = given(seeds=seeds, tasks=tuple(task) or None, episodes=episodes)
        tabular_figure("newer", out or Path("figures/newer"), options, quick, threads)
    else:
        _compare_in_one(env, ONE_RUN | one, 5000 if episodes is None else episodes)


def _compare_in_one(env: str, options: dict[str, Any], episodes: int) -> None:
    """Compare the algorithms in one run of each, and print the table."""
    import dataclasses

    from oal.base.console import progress, table
    from oal.tabular.compare import compare as compare_algorithms

    cost_set, demos, seed = options["cost_set"], options["demos"], options["seed"]
    problem = environment(env, options["horizon"])
    trajectories = demonstrations(problem, demos, seed)
    with progress(f"{problem.name}: algorithms", 20) as advance:
        found = compare_algorithms(
            problem,
            trajectories,
            cost_set,
            iterations=options["iterations"],
            episodes=episodes,
            expert=options["expert"],
            seed=seed,
            newer=True,
            advance=advance,
        )
    rows = [dataclasses.asdict(row) for row in found]
    if options["json"]:
        console.say(json.dumps(rows, indent=2))
        return
    title = f"{problem.name}, {cost_set} costs, N={demos}, K={episodes:,}: gap to the expert, and its price"
    table(title, [name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])
