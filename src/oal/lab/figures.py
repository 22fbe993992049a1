"""The paper's figures as records: what each runs and what it is said to show.

`oal.lab.tabular_figures` and `oal.lab.deep_figures` run and draw them; nothing here computes anything.

Tabular. The paper leaves open alpha, delta, the list of N and the scale of the bonus. The choices made here are each
figure's settings, which are written to `config.json` beside the data. The step sizes are the theorem's unless scaled.
The theorem's bonus is vacuous at 10,000 episodes (see `docs/results-tabular.md`), so the figures multiply it by
`bonus_scale`, and `exploration` also sweeps that scale.

Deep. `paper` is the paper's full scale: 3M steps, 5 seeds, five tasks, its own hyper-parameters; for whoever has the
machines. `small` is the paper's regime with the default preset on two cores: five tasks, ten demonstrations, nothing
cloned (but where a figure is about it, or --cloned says so). `smoke` shows in minutes that all of it works.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oal.errors import choice
from oal.lab.claims import Statement, alike, at_least, unlike

Settings = dict[str, Any]

# ----------------------------------------------------------------------------------------------------------------
# Tabular


@dataclass(frozen=True)
class Grid:
    """Cells, one for each place along an axis and each variant: a figure's settings, with those of the two."""

    axis: str
    """A column of its table; `symbol` stands for it in claims, `label` in the picture."""
    symbol: str
    label: str
    along: Mapping[Any, Settings]
    variants: Mapping[str, Settings]
    columns: tuple[str, ...]
    of: str = ""
    """What its claims and its panel begin with, in a figure of many grids, which share one file."""


Means = Callable[[Any, str], float]
"""(place, variant) -> mean regret, in a figure's first grid."""


@dataclass(frozen=True)
class TabularFigure:
    """A figure of regrets: its settings at the paper's scale, the grids they make, and what they are said to show."""

    about: str
    title: str
    settings: Settings
    quick: Settings
    """Changes for a version that takes seconds."""
    grids: Callable[[Settings], dict[str, Grid]]
    statements: Callable[[Settings, Means], list[Statement]]


def _by_demonstrations(s: Settings, variants: Mapping[str, Settings], *columns: str) -> Grid:
    along = {n: {"demonstrations": n} for n in s["demonstrations"]}
    columns = ("demonstrations", "variant", *columns)
    return Grid("demonstrations", "N", "number of demonstrations N", along, variants, columns)


VARIANTS: dict[str, Settings] = {
    "no bonus": {"bonus_scale": 0.0, "expert_model": False},
    "bonus": {"expert_model": False},
    "no bonus, expert model": {"bonus_scale": 0.0, "expert_model": True},
    "bonus, expert model": {"expert_model": True},
}
"""Of the chain's figures."""
BONUS = (("bonus", "no bonus"), ("bonus, expert model", "no bonus, expert model"))
MODEL = (("no bonus, expert model", "no bonus"), ("bonus, expert model", "bonus"))


def _exploration(s: Settings) -> dict[str, Grid]:
    scales = {scale: {"bonus_scale": scale} for scale in (0.0, *s["scales"])}
    few = max(2, s["seeds"] // 4)
    numbers = {f"N={n}": {"demonstrations": n, "seeds": few} for n in s["scale_demonstrations"]}
    columns = ("bonus_scale", "demonstrations")
    return {
        "exploration": _by_demonstrations(s, VARIANTS, "bonus_scale"),
        "scale": Grid("bonus_scale", "scale", "scale of the theorem's bonus", scales, numbers, columns),
    }


def _exploration_says(s: Settings, mean: Means) -> list[Statement]:
    ns = s["demonstrations"]
    falls = tuple((many, few) for few, many in itertools.pairwise(ns))
    floor = Statement(
        "(3) ... to a floor: the last step changes less than 5 % of the whole fall",
        *("N", falls[-1:] if len(ns) > 2 else (), "variant"),
        rule=partial(alike, margin=0.05 * abs(mean(ns[0], "bonus") - mean(ns[-1], "bonus"))),
        at=("bonus",),
        paired=False,
    )
    return [
        Statement("(1) bonus below no bonus", "variant", BONUS, held="N"),
        Statement("(3) regret falls with N", "N", falls, held="variant", at=("bonus",)),
        floor,
        Statement("(1) bonus below no bonus, by scale", "scale", tuple((x, 0.0) for x in s["scales"]), held="variant"),
    ]


def _noise(s: Settings) -> dict[str, Grid]:
    along = {alpha: {"alpha": alpha} for alpha in s["alphas"]}
    return {"noise": Grid("alpha", "alpha", "alpha", along, VARIANTS, ("alpha", "variant", "bonus_scale"))}


def _noise_says(s: Settings, mean: Means) -> list[Statement]:
    small, large = s["alphas"][0], s["alphas"][-1]
    more = "(2) ... relatively more for small alpha than for large"
    ends = ((small, large),) if small != large else ()
    return [
        Statement("(1) bonus below no bonus", "variant", BONUS, held="alpha"),
        Statement("(2) expert-model start helps", "variant", MODEL, held="alpha"),
        Statement(more, "alpha", ends, held="variant", at=(" / ".join(MODEL[0]),)),
    ]


def _bc(s: Settings) -> dict[str, Grid]:
    cloning = {"cloning": True, "seeds": s["bc_seeds"]}
    return {"bc": _by_demonstrations(s, {"BC": cloning, "OAL from BC": {"policy_start": "bc"}})}


def _bc_says(s: Settings, mean: Means) -> list[Statement]:
    ns, pairs = s["demonstrations"], (("OAL from BC", "BC"),)
    few, many = (tuple(n for n in ns if (n <= s["n_states"]) == side) for side in (True, False))
    equal = partial(alike, margin=0.02 * mean(ns[0], "BC"))
    close = "(4) ... and equal (within 2 % of BC's worst) when they are many"
    return [
        Statement("(4) OAL from BC below BC, few demonstrations", "variant", pairs, held="N", at=few),
        Statement(close, "variant", pairs, held="N", at=many, rule=equal, paired=False),
    ]


OPTIONS: dict[str, Settings] = {
    "paper": {"preset": "paper"},
    "paper, bonus x 0.005": {"preset": "paper", "bonus_scale": 0.005},
    "paper, no bonus": {"preset": "paper", "bonus_scale": 0.0},
    "paper, no bonus, anytime": {"preset": "paper", "bonus_scale": 0.0, "anytime": True},
    "paper, Bernstein bonus x 0.005": {"preset": "paper", "bonus_scale": 0.005, "bonus": "bernstein"},
    "paper, no bonus, pooled": {"preset": "paper", "bonus_scale": 0.0, "pooled": True},
    "paper, no bonus, expert model": {"preset": "paper", "bonus_scale": 0.0, "expert_model": True},
    "paper, no bonus, BC start": {"preset": "paper", "bonus_scale": 0.0, "policy_start": "bc", "bc_smoothing": 0.1},
    "paper, no bonus, steps x 30, x 10": {"preset": "paper", "bonus_scale": 0.0}
    | {"policy_step_scale": 30.0, "cost_step_scale": 10.0},
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
OPTIMISM: dict[str, Settings] = {
    "no bonus": {"bonus_scale": 0.0},
    "theorem's bonus": {"bonus_scale": 1.0},
    "theorem's bonus x 0.005": {"bonus_scale": 0.005},
    "KL sets": {"bonus": "kl"},
    "intervals": {"bonus": "intervals"},
    "pooled, no bonus": {"bonus_scale": 0.0, "pooled": True},
    "pooled, theorem's bonus x 0.005": {"bonus_scale": 0.005, "pooled": True},
    "pooled, KL sets": {"bonus": "kl", "pooled": True},
    "pooled, intervals": {"bonus": "intervals", "pooled": True},
}


def _optimism(s: Settings) -> dict[str, Grid]:
    return {"optimism": _by_demonstrations(s, OPTIMISM)}


def _optimism_says(s: Settings, mean: Means) -> list[Statement]:
    sets = ("KL sets", "intervals")
    none = tuple((f"{pooled}{one}", f"{pooled}no bonus") for pooled in ("", "pooled, ") for one in sets)
    scaled = tuple((f"{p}{one}", f"{p}theorem's bonus x 0.005") for p in ("", "pooled, ") for one in sets)
    return [
        Statement("sets below the theorem's bonus", "variant", tuple((x, "theorem's bonus") for x in sets), held="N"),
        Statement("sets below no bonus", "variant", none, held="N"),
        Statement("sets below the bonus scaled by hand", "variant", scaled, held="N"),
    ]


NEWER: dict[str, Settings] = {
    "BC": {"cloning": True},
    "explore, then plan": {"preset": "mb-tail", "explorer": "uniform", "expert_estimate": "empirical"},
    "OAL, paper, bonus x 0.005": {"preset": "paper", "bonus_scale": 0.005},
    "OAL, default": {"preset": "default"},
    "OAL, KL sets": {"preset": "default", "bonus": "kl", "bonus_scale": 1.0},
    "OAL, transition-aware": {"preset": "default", "expert_estimate": "transition-aware"},
    "SOAR": {"preset": "soar"},
    "SOAR, transition-aware": {"preset": "soar", "expert_estimate": "transition-aware"},
    "MB-TAIL": {"preset": "mb-tail"},
}
NEWER_TASKS: dict[str, Settings] = {
    "chain": {"problem": "chain", "horizon": 32, "alpha": 0.1},
    "spawn": {"problem": "spawn", "horizon": 3, "n_states": 50},
    "garnet": {"problem": "garnet", "horizon": 10, "n_states": 20},
    "garnet, stationary": {"problem": "garnet, stationary", "horizon": 10, "n_states": 20},
    "FrozenLake-v1": {"problem": "FrozenLake-v1", "horizon": 20},
    "Taxi-v4": {"problem": "Taxi-v4", "horizon": 20},
}
SLOW_TASKS = {"Taxi-v4": {"seeds": 5, "episodes": 1000}}
"""Tasks of the figure of newer algorithms that have at most so many seeds and episodes."""


def _lengths(episodes: int) -> tuple[int, ...]:
    """The numbers of episodes that runs of the figure of newer algorithms have."""
    return tuple(sorted({max(1, episodes // 50), max(1, episodes // 5), episodes}))


def _newer(s: Settings) -> dict[str, Grid]:
    grids = {}
    for task in s["tasks"]:
        choice("task", task, NEWER_TASKS)
        most = SLOW_TASKS.get(task, {})
        seeds = min(s["seeds"], most.get("seeds", s["seeds"]))
        for n in s["demonstrations"]:
            shared = NEWER_TASKS[task] | {"demonstrations": n, "seeds": seeds, "task": task}
            along = {k: shared | {"episodes": k} for k in _lengths(s["episodes"]) if k <= most.get("episodes", k)}
            columns = ("task", "demonstrations", "episodes", "variant")
            of = f"{task}, N={n}"
            grids[f"newer-{task}-{n}"] = Grid("episodes", "K", "episodes K", along, NEWER, columns, of)
    return grids


def _newer_says(s: Settings, mean: Means) -> list[Statement]:
    ours = "OAL, default"
    newer = tuple(name for name in NEWER if name not in (ours, "OAL, paper, bonus x 0.005", "BC", "explore, then plan"))
    longest = _lengths(s["episodes"])[-2:]
    before = tuple((ours, other) for other in ("BC", "explore, then plan", "OAL, paper, bonus x 0.005"))
    return [
        Statement("below OAL's default", "variant", tuple((x, ours) for x in newer), held="K", at=longest),
        Statement("OAL's default below what came before", "variant", before, held="K", at=longest),
    ]


TASKS: dict[str, Settings] = {
    "chain": {"problem": "chain", "horizon": 32, "alpha": 0.1, "demonstrations": 100},
    "FrozenLake-v1": {"problem": "FrozenLake-v1", "horizon": 20, "demonstrations": 100},
    "CliffWalking-v1": {"problem": "CliffWalking-v1", "horizon": 20, "demonstrations": 20},
}


def _options(s: Settings) -> dict[str, Grid]:
    variants = {name: OPTIONS[name] for name in s["variants"]}
    return {"options": Grid("task", "task", "", TASKS, variants, ("task", "demonstrations", "variant"))}


def _options_say(s: Settings, mean: Means) -> list[Statement]:
    others = tuple((name, "paper") for name in s["variants"] if name != "paper" and "paper" in s["variants"])
    return [Statement("below the paper's settings", "variant", others, held="task")]


_PAPER = {"episodes": 10_000, "preset": "paper", "delta": 0.1, "bonus_scale": 0.005}
_CHAIN = _PAPER | {"problem": "chain", "horizon": 32, "policy_step_scale": 1.0, "cost_step_scale": 1.0}
_SCALES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 1.0)
TABULAR: dict[str, TabularFigure] = {
    "exploration": TabularFigure(
        about="regret over the number of demonstrations, with and without bonus and expert model (chain, 400 seeds).",
        title="chain, H={horizon}, alpha={alpha:g}, K={episodes:,}, {seeds} seeds",
        settings=_CHAIN
        | {"seeds": 400, "alpha": 0.1, "demonstrations": (1, 3, 10, 30, 100, 300, 1000)}
        | {"scales": _SCALES, "scale_demonstrations": (10, 100)},
        quick={"seeds": 8, "episodes": 1000, "demonstrations": (1, 10, 100), "scales": (0.001, 0.005, 0.02)},
        grids=_exploration,
        statements=_exploration_says,
    ),
    "noise": TabularFigure(
        about="regret over the chain's alpha, the same four variants.",
        title="chain, H={horizon}, N={demonstrations}, K={episodes:,}, {seeds} seeds",
        settings=_CHAIN | {"seeds": 200, "demonstrations": 100, "alphas": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)},
        quick={"seeds": 8, "episodes": 1000, "alphas": (0.03, 0.3)},
        grids=_noise,
        statements=_noise_says,
    ),
    "bc": TabularFigure(
        about="behavioural cloning against OAL started from it (spawn).",
        title="spawn, {n_states} states, K={episodes:,}, {bc_seeds:,} / {seeds} seeds",
        settings=_PAPER
        | {"problem": "spawn", "n_states": 50, "horizon": 3, "seeds": 20, "bc_seeds": 1000}
        | {"demonstrations": (1, 3, 5, 10, 20, 50, 100, 200, 500)},
        quick={"seeds": 4, "bc_seeds": 50, "episodes": 1000, "demonstrations": (1, 10, 100)},
        grids=_bc,
        statements=_bc_says,
    ),
    "options": TabularFigure(
        about="what each option beyond the paper does to the regret (chain, FrozenLake, CliffWalking).",
        title="",
        settings={"seeds": 10, "episodes": 5000, "variants": tuple(OPTIONS)},
        quick={"seeds": 2, "episodes": 200, "variants": ("paper", "default", "default, per-step model")},
        grids=_options,
        statements=_options_say,
    ),
    "optimism": TabularFigure(
        about="confidence sets against no bonus, the theorem's, and the theorem's scaled by hand (chain).",
        title="chain, H={horizon}, alpha={alpha:g}, K={episodes:,}, {seeds} seeds",
        settings=_CHAIN | {"bonus_scale": 1.0, "seeds": 40, "alpha": 0.1, "demonstrations": (10, 100)},
        quick={"seeds": 4, "episodes": 1000, "demonstrations": (10,)},
        grids=_optimism,
        statements=_optimism_says,
    ),
    "newer": TabularFigure(
        about="where OAL stands: SOAR, MB-TAIL, KL sets and the transition-aware expert, with what came before, over K"
        " and N (chain, spawn, garnets, FrozenLake, Taxi).",
        title="",
        settings={"seeds": 10, "episodes": 5000, "demonstrations": (10, 100), "tasks": tuple(NEWER_TASKS)},
        quick={"seeds": 2, "episodes": 200, "demonstrations": (10,), "tasks": ("chain", "garnet")},
        grids=_newer,
        statements=_newer_says,
    ),
}


# ----------------------------------------------------------------------------------------------------------------
# Deep


TASKS_OF_PAPER = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
"""In the order of its figure."""
SCRATCH, CLONED = "from scratch", "cloned"
"""Where a policy starts."""


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    seeds: int
    steps: int
    tasks: tuple[str, ...]
    preset: str
    shared: Settings
    """Fields and settings of every run."""
    cloning: Settings
    """Settings of a run that starts from cloning; with none of them it is the preset's own."""
    few: dict[str, int] = field(default_factory=dict)
    """Tasks that have fewer seeds."""
    whole: bool = False
    """Whether a task without demonstrations is an error; otherwise it is left out."""
    on_policy: Settings = field(default_factory=dict)
    """Changes of this scale for on-policy players, whose steps are quick and many."""
    figures: dict[str, Settings] = field(default_factory=dict)
    """Changes of this scale for single figures."""


ON_POLICY = ("trpo", "mdpo-on")
PAPER_CLONES = ({"HalfCheetah-v5", "Humanoid-v5"}, {"neural", "gail"}, {"bc.epochs": 1_000})
"""The tasks and costs for which the paper starts TRPO from cloning, and how."""
SCALES = {
    "smoke": Scale(
        seeds=2,
        steps=3_000,
        tasks=("Hopper-v5", "HalfCheetah-v5"),
        preset="default",
        shared={
            "log_every": 500,
            "evaluate_every": 1_000,
            "evaluation_episodes": 2,
            "checkpoint_every": 1_000,
            "policy.hidden": [32, 32],
        },
        cloning={"bc.epochs": 3},
        on_policy={"steps": 4_000},
    ),
    "small": Scale(
        seeds=5,
        steps=150_000,
        tasks=TASKS_OF_PAPER,
        preset="default",
        shared={},
        cloning={},
        few={"Humanoid-v5": 3},
        on_policy={"steps": 1_000_000, "shared": {"evaluate_every": 25_000, "checkpoint_every": 100_000}},
        figures={name: {"seeds": 3} for name in ("lipschitz", "trajectories", "pretraining")},
    ),
    "paper": Scale(
        seeds=5,
        steps=3_000_000,
        tasks=TASKS_OF_PAPER,
        preset="paper",
        shared={"evaluate_every": 10_000, "checkpoint_every": 100_000},
        cloning={"bc.epochs": 1_000},
        whole=True,
    ),
}


@dataclass(frozen=True)
class DeepFigure:
    """A figure of returns: a sweep over a grid, with its policy players of the paper, and what it is said to show."""

    about: str
    policies: tuple[str, ...]
    grid: dict[str, tuple[Any, ...]]
    statements: tuple[Statement, ...]
    tasks: tuple[str, ...] = ()
    """Empty: those of the scale."""
    starts: tuple[str, ...] = ()
    """Empty: from scratch, unless all is to be cloned."""


MARGIN = 0.05
"""What "nearly", "hardly" and "at least" leave open, as a part of the way from random actions to the expert."""
_NO_WORSE, _ALIKE, _UNLIKE = (partial(rule, margin=MARGIN) for rule in (at_least, alike, unlike))
_TO_GAIL, _TO_NEURAL = (("neural", "gail"), ("linear", "gail")), (("linear", "neural"),)
_WEIGHTS = ((0.1, 0.0), (1.0, 0.0), (10.0, 0.0), (10.0, 1.0))
IMPROVES = Statement("the game improves on cloning", "algorithm", (("OAL or GAIL", "BC"),), held="policy")
"""Of every figure: each of its algorithms against clones of the same demonstrations."""

REGIMES: dict[str, Settings] = {
    "one": {"trajectories": 1},
    "subsampled": {"trajectories": 10, "subsample": 20},
    "ten": {"trajectories": 10},
}
"""Of the suite (`oal.lab.suite`): how much of the expert there is to learn from."""
SUITE_STEPS = {
    "HalfCheetah-v5": 100_000,
    "Hopper-v5": 100_000,
    "Walker2d-v5": 100_000,
    "Ant-v5": 100_000,
    "Humanoid-v5": 150_000,
}

DEEP: dict[str, DeepFigure] = {
    "gail-vs-oal": DeepFigure(
        "linear and neural costs against GAIL, with off-policy MDPO and on-policy TRPO (--policy for one of them).",
        policies=("mdpo", "trpo"),
        grid={"cost": ("linear", "neural", "gail")},
        statements=(
            Statement("OAL is at least as good as GAIL", "cost", _TO_GAIL, held="policy", rule=_NO_WORSE),
            Statement(
                "linear costs are nearly as good as neural ones", "cost", _TO_NEURAL, held="policy", rule=_NO_WORSE
            ),
            Statement("MDPO is ahead of TRPO", "policy", (("mdpo", "trpo"),), held="cost"),
        ),
    ),
    "lipschitz": DeepFigure(
        "the coefficient of the Lipschitz penalty (HalfCheetah).",
        policies=("mdpo",),
        grid={"cost": ("neural", "gail"), "cost.lipschitz": (0.0, 0.1, 1.0, 10.0)},
        statements=(Statement("the Lipschitz penalty matters", "lipschitz", _WEIGHTS, held="cost", rule=_UNLIKE),),
        tasks=("HalfCheetah-v5",),
    ),
    "trajectories": DeepFigure(
        "the number of demonstrations, from scratch and from cloning (Walker2d).",
        policies=("mdpo",),
        grid={"cost": ("neural",), "trajectories": (1, 4, 10)},
        statements=(
            Statement(
                "the number of trajectories hardly matters",
                *("trajectories", ((1, 10), (4, 10)), "cost"),
                rule=_ALIKE,
            ),
        ),
        tasks=("Walker2d-v5",),
        starts=(SCRATCH, CLONED),
    ),
    "pretraining": DeepFigure(
        "with and without behavioural cloning first (TRPO; HalfCheetah, Humanoid).",
        policies=("trpo",),
        grid={"cost": ("linear", "neural", "gail")},
        statements=(Statement("cloning first helps", "start", ((CLONED, SCRATCH),), held="cost"),),
        tasks=("HalfCheetah-v5", "Humanoid-v5"),
        starts=(SCRATCH, CLONED),
    ),
}
