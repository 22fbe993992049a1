"""The paper's tabular figures: each is a grid of cells, run over seeds, written as data, pictures and decided claims.

The paper leaves open alpha, delta, the list of N and the scale of the bonus; the choices made here are the defaults of
each function and are written into `config.json` beside the data. The step sizes are the theorem's unless scaled. The
theorem's bonus is vacuous at 10,000 episodes (see `docs/results.md`), so the figures multiply it by `bonus_scale`, and
`exploration` also sweeps that scale. `policy_step_scale` and `cost_step_scale` multiply the theorem's steps.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oal.base import files, plots, seeding
from oal.base.console import progress
from oal.base.provenance import provenance
from oal.base.stats import Mean, mean_interval
from oal.errors import InputError, at_least
from oal.lab.claims import Claim, decide, decide_equal
from oal.tabular import mdp
from oal.tabular.costsets import CostSet
from oal.tabular.learner import TabularOAL, behavioural_cloning, learn_seeds
from oal.tabular.mdp import FiniteMDP

Array = NDArray[np.float64]

BONUS_SCALE = 0.005
DEMONSTRATIONS = (1, 3, 10, 30, 100, 300, 1000)
VARIANTS = {
    "no bonus": {"bonus_scale": 0.0, "expert_model": False},
    "bonus": {"expert_model": False},
    "no bonus, expert model": {"bonus_scale": 0.0, "expert_model": True},
    "bonus, expert model": {"expert_model": True},
}


@dataclass
class Study:
    """Cells of a figure: for each a label, its settings, and one number per seed."""

    name: str
    out: Path
    rows: list[dict[str, Any]]
    values: dict[tuple[Any, ...], Array]

    def add(self, key: tuple[Any, ...], values: Sequence[float], **columns: Any) -> None:
        interval = mean_interval(values)
        self.values[key] = np.asarray(values, dtype=np.float64)
        # Written only when known: one seed has no interval.
        width = "" if np.isnan(interval.half_width) else round(interval.half_width, 6)
        self.rows.append({**columns, "seeds": interval.n, "mean": round(interval.mean, 6), "half_width_95": width})

    def interval(self, key: tuple[Any, ...]) -> Mean:
        return mean_interval(self.values[key])

    def write(self, claims: Sequence[Claim], config: dict[str, Any]) -> None:
        files.write_csv(self.out / f"{self.name}.csv", self.rows)
        files.write_csv(self.out / "claims.csv", [claim.row for claim in claims])
        files.write_json(self.out / "config.json", config | provenance())


def _chain_regrets(
    problem: FiniteMDP,
    demonstrations: int,
    settings: dict[str, Any],
    *,
    seeds: int,
    episodes: int,
    threads: int | None,
    advance: Callable[[int], None],
) -> list[float]:
    """Run Algorithm 2 on the chain over seeds; return each one's regret per episode.

    A seed has the same demonstrations and random stream in every variant, so that variants are compared in pairs.
    """

    def make(seed: int) -> TabularOAL:
        rng = seeding.generator(seed, "demonstrations", demonstrations)
        demos = mdp.sample(problem, mdp.expert_policy(problem), demonstrations, rng=rng)
        return TabularOAL(problem, demos, preset="paper", seed=seed, **settings)

    return learn_seeds(
        make,
        range(seeds),
        episodes,
        threads=threads,
        each=lambda learner: learner.regret[-1] / episodes,
        advance=advance,
    )


def _check(seeds: int, episodes: int, **lists: Sequence[float]) -> None:
    at_least("number of seeds", seeds, 1)
    at_least("number of episodes", episodes, 1)
    for name, values in lists.items():
        if not values or min(values) <= 0:
            raise InputError(f"{name} is {list(values)}: it must list positive numbers")


def _bonus_claims(study: Study, name: str, xs: Sequence[float]) -> list[Claim]:
    return [
        decide(
            "(1) bonus below no bonus",
            f"{name}={x:g}{suffix}",
            study.values[x, f"bonus{suffix}"],
            study.values[x, f"no bonus{suffix}"],
        )
        for x in xs
        for suffix in ("", ", expert model")
    ]


def exploration(
    out: str | os.PathLike[str],
    *,
    seeds: int = 400,
    episodes: int = 10_000,
    alpha: float = 0.1,
    horizon: int = 32,
    demonstrations: Sequence[int] = DEMONSTRATIONS,
    bonus_scale: float = BONUS_SCALE,
    scales: Sequence[float] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 1.0),
    scale_demonstrations: Sequence[int] = (10, 100),
    policy_step_scale: float = 1.0,
    cost_step_scale: float = 1.0,
    threads: int | None = None,
    show_progress: bool = True,
) -> list[Claim]:
    """Draw the paper's figure of exploration: the regret for each number of demonstrations, four variants.

    Also sweeps the bonus's scale at a few numbers of demonstrations, to show how the conclusion depends on it.
    """
    _check(seeds, episodes, demonstrations=demonstrations, scales=scales, bonus_scale=[bonus_scale])
    out = Path(out)
    steps = {"policy_step_scale": policy_step_scale, "cost_step_scale": cost_step_scale}
    problem = mdp.chain(horizon, alpha)
    study = Study("exploration", out, [], {})
    sweep = Study("scale", out, [], {})
    sweep_seeds = max(2, seeds // 4)
    total = seeds * len(demonstrations) * len(VARIANTS) + sweep_seeds * len(scale_demonstrations) * (len(scales) + 1)
    with progress("exploration: runs", total, enabled=show_progress) as advance:
        run: dict[str, Any] = {"episodes": episodes, "threads": threads, "advance": advance}
        for n in demonstrations:
            for variant, change in VARIANTS.items():
                settings = {"bonus_scale": bonus_scale} | steps | change
                values = _chain_regrets(problem, n, settings, seeds=seeds, **run)
                study.add((n, variant), values, demonstrations=n, variant=variant, bonus_scale=settings["bonus_scale"])
        for n in scale_demonstrations:
            for scale in (0.0, *scales):
                values = _chain_regrets(problem, n, {"bonus_scale": scale} | steps, seeds=sweep_seeds, **run)
                sweep.add((n, scale), values, demonstrations=n, bonus_scale=scale)

    claims = _bonus_claims(study, "N", demonstrations)
    for few, many in itertools.pairwise(demonstrations):
        claims.append(
            decide(
                "(3) regret falls with N", f"N={few} to {many}", study.values[many, "bonus"], study.values[few, "bonus"]
            )
        )
    if len(demonstrations) >= 3:
        first, before, last = demonstrations[0], demonstrations[-2], demonstrations[-1]
        fall = study.interval((first, "bonus")).mean - study.interval((last, "bonus")).mean
        claims.append(
            decide_equal(
                "(3) ... to a floor: the last step changes less than 5 % of the whole fall",
                f"N={before} to {last}",
                study.values[before, "bonus"],
                study.values[last, "bonus"],
                margin=0.05 * abs(fall),
            )
        )
    for n in scale_demonstrations:
        for scale in scales:
            claims.append(
                decide(
                    "(1) bonus below no bonus, by scale",
                    f"N={n}, scale={scale:g}",
                    sweep.values[n, scale],
                    sweep.values[n, 0.0],
                )
            )

    with plots.picture(out / "exploration", columns=2) as (left, right):
        _errorbars(left, study, demonstrations, list(VARIANTS), "number of demonstrations N")
        left.set_xscale("log")
        left.set_title(f"chain, H={horizon}, alpha={alpha:g}, K={episodes:,}, {seeds} seeds")
        for n in scale_demonstrations:
            points = [sweep.interval((n, scale)) for scale in scales]
            line = right.errorbar(
                scales,
                [p.mean for p in points],
                [p.half_width for p in points],
                marker="o",
                ms=3,
                capsize=2,
                label=f"N={n}",
            )
            right.axhline(sweep.interval((n, 0.0)).mean, ls="--", lw=1, color=line[0].get_color())
        right.set(xscale="log", xlabel="scale of the theorem's bonus", title="dashed: no bonus")
        right.legend()
    files.write_csv(out / "scale.csv", sweep.rows)
    study.write(
        claims,
        {
            "figure": "exploration",
            "alpha": alpha,
            "horizon": horizon,
            "episodes": episodes,
            "seeds": seeds,
            "demonstrations": list(demonstrations),
            "bonus_scale": bonus_scale,
            "scales": list(scales),
            "scale_seeds": sweep_seeds,
            "delta": 0.1,
        }
        | steps,
    )
    return claims


def noise(
    out: str | os.PathLike[str],
    *,
    seeds: int = 200,
    episodes: int = 10_000,
    alphas: Sequence[float] = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5),
    horizon: int = 32,
    demonstrations: int = 100,
    bonus_scale: float = BONUS_SCALE,
    policy_step_scale: float = 1.0,
    cost_step_scale: float = 1.0,
    threads: int | None = None,
    show_progress: bool = True,
) -> list[Claim]:
    """Draw the paper's figure of the model's stochasticity: the regret for each alpha, four variants."""
    _check(seeds, episodes, alphas=alphas, demonstrations=[demonstrations], bonus_scale=[bonus_scale])
    out = Path(out)
    steps = {"policy_step_scale": policy_step_scale, "cost_step_scale": cost_step_scale}
    study = Study("noise", out, [], {})
    with progress("noise: runs", seeds * len(alphas) * len(VARIANTS), enabled=show_progress) as advance:
        for alpha in alphas:
            problem = mdp.chain(horizon, alpha)
            for variant, change in VARIANTS.items():
                settings = {"bonus_scale": bonus_scale} | steps | change
                values = _chain_regrets(
                    problem, demonstrations, settings, seeds=seeds, episodes=episodes, threads=threads, advance=advance
                )
                study.add((alpha, variant), values, alpha=alpha, variant=variant, bonus_scale=settings["bonus_scale"])
    claims = _bonus_claims(study, "alpha", alphas)
    for alpha in alphas:
        for prefix in ("no bonus", "bonus"):
            claims.append(
                decide(
                    "(2) expert-model start helps",
                    f"alpha={alpha:g}, {prefix}",
                    study.values[alpha, f"{prefix}, expert model"],
                    study.values[alpha, prefix],
                )
            )
    if len(alphas) >= 2:
        gain = {a: study.values[a, "no bonus, expert model"] / study.values[a, "no bonus"] - 1 for a in alphas}
        claims.append(
            decide(
                "(2) ... relatively more for small alpha than for large",
                f"alpha={alphas[0]:g} against {alphas[-1]:g}, no bonus",
                gain[alphas[0]],
                gain[alphas[-1]],
            )
        )
    with plots.picture(out / "noise") as axes:
        _errorbars(axes, study, alphas, list(VARIANTS), "alpha")
        axes.set_xscale("log")
        axes.set_title(f"chain, H={horizon}, N={demonstrations}, K={episodes:,}, {seeds} seeds")
    study.write(
        claims,
        {
            "figure": "noise",
            "alphas": list(alphas),
            "horizon": horizon,
            "episodes": episodes,
            "seeds": seeds,
            "demonstrations": demonstrations,
            "bonus_scale": bonus_scale,
            "delta": 0.1,
        }
        | steps,
    )
    return claims


def bc(
    out: str | os.PathLike[str],
    *,
    seeds: int = 20,
    bc_seeds: int = 1000,
    episodes: int = 10_000,
    n_states: int = 50,
    horizon: int = 3,
    demonstrations: Sequence[int] = (1, 3, 5, 10, 20, 50, 100, 200, 500),
    bonus_scale: float = BONUS_SCALE,
    threads: int | None = None,
    show_progress: bool = True,
) -> list[Claim]:
    """Draw the paper's figure of BC against OAL started from BC: the regret for each number of demonstrations."""
    _check(seeds, episodes, demonstrations=demonstrations, bonus_scale=[bonus_scale], bc_seeds=[bc_seeds])
    out = Path(out)
    problem = mdp.spawn(n_states, horizon)
    box = CostSet("box", problem.shape)
    expert = mdp.expert_policy(problem)
    d_expert = mdp.occupancy(problem, expert)
    study = Study("bc", out, [], {})

    def demos_of(seed: int, n: int) -> mdp.Trajectories:
        return mdp.sample(problem, expert, n, rng=seeding.generator(seed, "demonstrations", n))

    with progress("bc: runs", len(demonstrations) * (seeds + bc_seeds), enabled=show_progress) as advance:
        for n in demonstrations:
            values = []
            for seed in range(bc_seeds):
                policy = behavioural_cloning(demos_of(seed, n), problem.shape)
                values.append(box.support(mdp.occupancy(problem, policy) - d_expert))
                advance(1)
            study.add((n, "BC"), values, demonstrations=n, variant="BC")
            values = learn_seeds(
                lambda seed, n=n: TabularOAL(
                    problem, demos_of(seed, n), preset="paper", policy_start="bc", bonus_scale=bonus_scale, seed=seed
                ),
                range(seeds),
                episodes,
                threads=threads,
                each=lambda learner: learner.regret[-1] / episodes,
                advance=advance,
            )
            study.add((n, "OAL from BC"), values, demonstrations=n, variant="OAL from BC")
    claims = []
    for n in demonstrations:
        shared = min(seeds, bc_seeds)
        if n <= n_states:
            claims.append(
                decide(
                    "(4) OAL from BC below BC, few demonstrations",
                    f"N={n}",
                    study.values[n, "OAL from BC"][:shared],
                    study.values[n, "BC"][:shared],
                )
            )
        else:
            worst = study.interval((demonstrations[0], "BC")).mean
            claims.append(
                decide_equal(
                    "(4) ... and equal (within 2 % of BC's worst) when they are many",
                    f"N={n}",
                    study.values[n, "OAL from BC"],
                    study.values[n, "BC"],
                    margin=0.02 * worst,
                )
            )
    with plots.picture(out / "bc") as axes:
        _errorbars(axes, study, demonstrations, ["BC", "OAL from BC"], "number of demonstrations N")
        axes.set_xscale("log")
        axes.set_title(f"spawn, {n_states} states, K={episodes:,}, {bc_seeds:,} / {seeds} seeds")
    study.write(
        claims,
        {
            "figure": "bc",
            "n_states": n_states,
            "horizon": horizon,
            "episodes": episodes,
            "seeds": seeds,
            "bc_seeds": bc_seeds,
            "demonstrations": list(demonstrations),
            "bonus_scale": bonus_scale,
            "delta": 0.1,
        },
    )
    return claims


OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {"preset": "paper"},
    "paper, bonus x 0.005": {"preset": "paper", "bonus_scale": 0.005},
    "paper, no bonus": {"preset": "paper", "bonus_scale": 0.0},
    "paper, no bonus, anytime": {"preset": "paper", "bonus_scale": 0.0, "anytime": True},
    "paper, Bernstein bonus x 0.005": {"preset": "paper", "bonus_scale": 0.005, "bonus": "bernstein"},
    "paper, no bonus, pooled": {"preset": "paper", "bonus_scale": 0.0, "pooled": True},
    "paper, no bonus, expert model": {"preset": "paper", "bonus_scale": 0.0, "expert_model": True},
    "paper, no bonus, BC start": {"preset": "paper", "bonus_scale": 0.0, "policy_start": "bc", "bc_smoothing": 0.1},
    "paper, no bonus, steps x 30, x 10": {
        "preset": "paper",
        "bonus_scale": 0.0,
        "policy_step_scale": 30.0,
        "cost_step_scale": 10.0,
    },
    "default": {"preset": "default"},
    "default, planned steps": {"preset": "default", "anytime": False},
    "default, per-step model": {"preset": "default", "pooled": False},
    "default, no expert model": {"preset": "default", "expert_model": False},
    "default, uniform start": {"preset": "default", "policy_start": "uniform"},
    "default, steps x 100, x 30": {"preset": "default", "policy_step_scale": 100.0, "cost_step_scale": 30.0},
    "default, steps x 1": {"preset": "default", "policy_step_scale": 1.0, "cost_step_scale": 1.0},
    "default, bonus x 0.0001": {"preset": "default", "bonus_scale": 0.0001},
    "default, bonus x 0.001": {"preset": "default", "bonus_scale": 0.001},
    "default, Bernstein bonus x 0.0001": {"preset": "default", "bonus_scale": 0.0001, "bonus": "bernstein"},
    "default, Bernstein bonus x 0.001": {"preset": "default", "bonus_scale": 0.001, "bonus": "bernstein"},
}


def options(
    out: str | os.PathLike[str],
    *,
    seeds: int = 10,
    episodes: int = 5000,
    variants: Sequence[str] = tuple(OPTIONS),
    threads: int | None = None,
    show_progress: bool = True,
) -> list[Claim]:
    """Show what each option does to the regret: the chain, FrozenLake and CliffWalking; behind the default preset."""
    _check(seeds, episodes)
    out = Path(out)
    tasks = {
        "chain": (mdp.chain(32, 0.1), 100),
        "FrozenLake-v1": (mdp.from_gymnasium("FrozenLake-v1", 20), 100),
        "CliffWalking-v1": (mdp.from_gymnasium("CliffWalking-v1", 20), 20),
    }
    study = Study("options", out, [], {})
    with progress("options: runs", len(tasks) * len(variants) * seeds, enabled=show_progress) as advance:
        for task, (problem, n) in tasks.items():
            expert = mdp.expert_policy(problem)
            for variant in variants:

                def make(
                    seed: int, problem: FiniteMDP = problem, n: int = n, expert: Array = expert, variant: str = variant
                ) -> TabularOAL:
                    demos = mdp.sample(problem, expert, n, rng=seeding.generator(seed, "demonstrations", n))
                    return TabularOAL(problem, demos, seed=seed, **OPTIONS[variant])

                values = learn_seeds(
                    make,
                    range(seeds),
                    episodes,
                    threads=threads,
                    each=lambda learner: learner.regret[-1] / episodes,
                    advance=advance,
                )
                study.add((task, variant), values, task=task, demonstrations=n, variant=variant)
    claims = [
        decide(
            "below the paper's settings", f"{task}, {variant}", study.values[task, variant], study.values[task, "paper"]
        )
        for task in tasks
        for variant in variants
        if variant != "paper" and "paper" in variants
    ]
    with plots.picture(out / "options", columns=len(tasks), width=4.4, height=4.2) as axes:
        for one, task in zip(axes, tasks, strict=True):
            points = [study.interval((task, variant)) for variant in variants]
            one.barh(
                range(len(variants)),
                [p.mean for p in points],
                xerr=[p.half_width for p in points],
                color=plots.COLOURS[0],
            )
            one.set_yticks(range(len(variants)), variants if one is axes[0] else [""] * len(variants), fontsize=7)
            one.set(title=task, xlabel="AL regret per episode", xscale="log")
            one.invert_yaxis()
    study.write(
        claims,
        {
            "figure": "options",
            "episodes": episodes,
            "seeds": seeds,
            "tasks": {task: {"demonstrations": n, "horizon": problem.horizon} for task, (problem, n) in tasks.items()},
            "variants": {variant: OPTIONS[variant] for variant in variants},
        },
    )
    return claims


def _errorbars(axes: Any, study: Study, xs: Sequence[float], variants: Sequence[str], label: str) -> None:
    for variant in variants:
        points = [study.interval((x, variant)) for x in xs]
        axes.errorbar(
            xs, [p.mean for p in points], [p.half_width for p in points], marker="o", ms=3, capsize=2, label=variant
        )
    axes.set(xlabel=label, ylabel="AL regret per episode")
    axes.set_ylim(bottom=0)
    axes.legend()


FIGURES = {"exploration": exploration, "noise": noise, "bc": bc, "options": options}
QUICK: dict[str, dict[str, Any]] = {
    "exploration": {"seeds": 8, "episodes": 1000, "demonstrations": (1, 10, 100), "scales": (0.001, 0.005, 0.02)},
    "noise": {"seeds": 8, "episodes": 1000, "alphas": (0.03, 0.3)},
    "options": {"seeds": 2, "episodes": 200, "variants": ("paper", "default", "default, per-step model")},
    "bc": {"seeds": 4, "bc_seeds": 50, "episodes": 1000, "demonstrations": (1, 10, 100)},
}
