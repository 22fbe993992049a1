"""The paper's deep figures as sweeps: what is run at each scale, and the report it ends in.

`paper` is the paper's full scale: 3M steps, 5 seeds, five tasks, its own hyper-parameters; for whoever has the
machines. `small` fits two cores in some hours, with the default preset. `smoke` shows in minutes that all of it works.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oal import demos, report
from oal.errors import InputError, choice
from oal.executors import Executor
from oal.experiment import Summary, Sweep

Tables = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is run."""

    seeds: int
    steps: dict[str, int]
    """Environment steps, off-policy and on-policy."""
    tasks: tuple[str, ...]
    preset: str
    shared: dict[str, Any]
    """Fields and settings of every run."""
    on_policy: dict[str, Any] = field(default_factory=dict)
    """More of them for on-policy players, whose steps are quick and many."""


ON_POLICY = ("trpo", "mdpo-on")
SCALES = {
    "smoke": Scale(
        seeds=2,
        steps={"off": 3_000, "on": 4_000},
        tasks=("Hopper-v5", "HalfCheetah-v5"),
        preset="default",
        shared={
            "log_every": 500,
            "evaluate_every": 1_000,
            "evaluation_episodes": 2,
            "checkpoint_every": 1_000,
            "policy.hidden": [32, 32],
            "bc.epochs": 3,
        },
    ),
    "small": Scale(
        seeds=3,
        steps={"off": 150_000, "on": 1_000_000},
        tasks=("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"),
        preset="default",
        shared={},
        on_policy={"evaluate_every": 25_000, "checkpoint_every": 100_000},
    ),
    "paper": Scale(
        seeds=5,
        steps={"off": 3_000_000, "on": 3_000_000},
        tasks=("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"),
        preset="paper",
        shared={"evaluate_every": 10_000, "checkpoint_every": 100_000},
    ),
}


def _tables(scale: Scale, policy: str, grid: dict[str, list[Any]], variants: list[dict[str, Any]]) -> Tables:
    shared = {"policy": policy, "preset": scale.preset, **scale.shared}
    if policy in ON_POLICY:
        shared |= {"total_steps": scale.steps["on"], **scale.on_policy}
    else:
        shared["total_steps"] = scale.steps["off"]
    named = {name for variant in variants for name in variant} | set(grid)
    return {
        "sweep": {name: value for name, value in shared.items() if name not in named},
        # seeds come first, so that a sweep that was stopped has few seeds of everything, not all of a few
        "grid": {"seed": list(range(scale.seeds)), **grid},
        "runs": variants,
    }


def gail_vs_oal(scale: Scale, policy: str) -> Tables:
    """OAL with linear and neural costs against GAIL, 10 trajectories."""
    return _tables(scale, policy, {}, _tasks(scale, [{"cost": cost} for cost in ("linear", "neural", "gail")]))


def lipschitz(scale: Scale, policy: str) -> Tables:
    """The coefficient of the Lipschitz penalty, for OAL and for GAIL, on HalfCheetah."""
    grid = {"cost": ["neural", "gail"], "cost.lipschitz": [0.0, 1.0, 10.0]}
    return _tables(scale, policy, grid, [{"env": "HalfCheetah-v5"}])


def trajectories(scale: Scale, policy: str) -> Tables:
    """The number of demonstrations, on Walker2d."""
    return _tables(scale, policy, {"trajectories": [1, 10]}, [{"env": "Walker2d-v5", "cost": "neural"}])


def pretraining(scale: Scale, policy: str) -> Tables:
    """On-policy learning with and without behavioural cloning before it, on HalfCheetah."""
    cloned = scale.shared.get("bc.epochs", 1_000)
    grid = {"cost": ["neural", "linear", "gail"], "bc.epochs": [0, cloned]}
    return _tables(scale, policy, grid, [{"env": "HalfCheetah-v5"}])


def _tasks(scale: Scale, variants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"env": env, **variant} for env in scale.tasks for variant in variants]


STUDIES: dict[str, tuple[Callable[[Scale, str], Tables], str]] = {
    "gail-vs-oal": (gail_vs_oal, "mdpo"),
    "lipschitz": (lipschitz, "mdpo"),
    "trajectories": (trajectories, "mdpo"),
    "pretraining": (pretraining, "trpo"),
}
"""Each figure's sweep, and the policy player it has in the paper (gail-vs-oal has trpo too)."""


def plan(
    name: str, *, scale: str = "small", policy: str | None = None, out: str | Path, demonstrations: Path | None = None
) -> Sweep:
    """Return a figure's sweep. Tasks without shipped demonstrations take them from ENV.npz in `demonstrations`."""
    choice("figure", name, STUDIES)
    choice("scale", scale, SCALES)
    make, usual = STUDIES[name]
    tables = make(SCALES[scale], policy or usual)
    if policy in ON_POLICY or usual in ON_POLICY:
        tables["sweep"].setdefault("environments", 8)
    for variant in tables["runs"]:
        env = variant["env"]
        if demonstrations is not None and (demonstrations / f"{env}.npz").exists():
            variant["demos"] = str(demonstrations / f"{env}.npz")
        elif env not in demos.shipped():
            raise InputError(
                f"no demonstrations of {env} are shipped: make them with  oal expert {env}  and give the folder that "
                f"holds {env}.npz with --demonstrations"
            )
    return Sweep.parse(tables, name=name, source=f"the figure {name}", out=Path(out) / "runs")


def draw(sweep: Sweep, out: str | Path, *, executor: Executor | None = None, show: bool = True) -> Summary:
    """Carry out what is not finished, and write the report of everything that is there: page, table, pictures."""
    out = Path(out)
    summary = sweep.go(executor, show=show)
    report.write(
        [sweep.out],
        out / "report.html",
        title=f"{sweep.name}",
        csv=True,
        png=True,
        latex_table=True,
    )
    return summary
