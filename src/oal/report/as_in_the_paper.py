"""The paper's figure of returns: a row for each policy player, a column for each task, the expert dashed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oal.base import plots
from oal.report import curves
from oal.report.charts import short
from oal.report.groups import Group
from oal.report.results import Run

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
"""In the paper's order; others follow."""
POLICIES = {"mdpo": "MDPO", "trpo": "TRPO", "mdpo-on": "MDPO, on-policy", "sac": "SAC"}
COSTS = {
    "linear": ("OAL, linear costs", "#009E73"),
    "neural": ("OAL, neural costs", "#D55E00"),
    "gail": ("GAIL", "#0072B2"),
}
"""What each is called, and the paper's colour for it: green, orange, blue."""
OTHERS = ("#CC79A7", "#E69F00", "#56B4E9")


def draw(path: Path, runs: Sequence[Run]) -> Path | None:
    """Draw the behaviour's learning curves with 95 % intervals; return the PNG, or None without any run to draw.

    The axes hold the lines: intervals of few seeds reach far beyond what any run earned, and are cut there.
    The expert's return is dashed, that of clones dotted. Runs that differ in more than policy, cost and seed make
    a line for each such difference.
    """
    learners = [run for run in runs if "policy" in run.config and run.has("behaviour")]
    if not learners:
        return None
    rows = _ordered({run.config["policy"] for run in learners}, list(POLICIES))
    columns = _ordered({run.task for run in learners}, list(TASKS))
    lines = _lines(learners)
    with plots.picture(path, rows=len(rows), columns=len(columns), width=2.7, height=2.3) as axes:
        grid = np.reshape(axes, (len(rows), len(columns)))
        for (row, policy), (column, task) in ((r, c) for r in enumerate(rows) for c in enumerate(columns)):
            one = grid[row, column]
            here = [run for run in learners if (run.config["policy"], run.task) == (policy, task)]
            for place, (label, members) in enumerate(lines.items()):
                _line(one, [run for run in here if run in members], label, place)
            _levels(one, here, [run for run in runs if run.config.get("algorithm") == "BC" and run.task == task])
            _hold_lines(one)
            one.xaxis.set_major_formatter(lambda value, _: short(value))
            if row == 0:
                one.set_title(task)
            if row == len(rows) - 1:
                one.set_xlabel("environment steps")
            if column == 0:
                one.set_ylabel(f"{POLICIES.get(policy, policy)}\nreturn while learning")
        handles = {
            label: handle for one in grid.flat for handle, label in zip(*one.get_legend_handles_labels(), strict=True)
        }
        grid[0, 0].figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), fontsize=8
        )
    return Path(f"{path}.png")


def _ordered(found: set[str], known: Sequence[str]) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        stem = name.rsplit("-v", 1)[0]
        return next((i for i, each in enumerate(known) if each in (name, stem)), len(known)), name

    return sorted(found, key=place)


def _lines(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs into the lines that a cell may have: by cost, and by what else differs within a task and policy."""
    lipschitz = lambda run: (run.config.get("cost_config") or {}).get("lipschitz")  # noqa: E731
    parts: dict[str, Any] = {
        "Lipschitz": lipschitz,
        "demonstrations": lambda run: run.config.get("trajectories"),
        "start": lambda run: "cloned" if run.config.get("bc_config") else "from scratch",
        "preset": lambda run: run.config.get("preset"),
    }
    cells: dict[tuple[Any, ...], set[Any]] = {}
    for run in runs:
        for name, part in parts.items():
            cells.setdefault((name, run.config["policy"], run.config.get("cost"), run.task), set()).add(part(run))
    differs = {name for (name, *_), seen in cells.items() if len(seen) > 1}
    found: dict[str, list[Run]] = {}
    for run in runs:
        cost = run.config.get("cost")
        words = [COSTS[cost][0] if cost in COSTS else str(cost)]
        for name in (name for name in parts if name in differs):
            value = parts[name](run)
            words.append(str(value) if isinstance(value, str) else f"{name} {value}")
        found.setdefault(", ".join(words), []).append(run)
    order = list(COSTS)
    return dict(sorted(found.items(), key=lambda item: _place(item[1][0].config.get("cost"), order)))


def _place(cost: Any, order: Sequence[str]) -> int:
    return order.index(cost) if cost in order else len(order)


def _line(axes: Any, runs: Sequence[Run], label: str, place: int) -> None:
    if not runs:
        return
    curve = curves.learning_curve(Group(runs[0].task, label, tuple(runs)), "behaviour")
    assert curve is not None
    known = COSTS.get(str(runs[0].config.get("cost")))
    alone = known is not None and label == known[0]
    colour = known[1] if alone and known else (*plots.COLOURS, *OTHERS)[place % (len(plots.COLOURS) + len(OTHERS))]
    axes.plot(curve.steps, curve.band.value, color=colour, label=label, lw=1.2)
    axes.fill_between(curve.steps, curve.band.low, curve.band.high, color=colour, alpha=0.2, lw=0)


def _levels(axes: Any, runs: Sequence[Run], clones: Sequence[Run]) -> None:
    """Draw what does not change: the expert, and clones of its demonstrations."""
    experts = {run.source_return for run in runs if np.isfinite(run.source_return)}
    for value in sorted(experts):
        axes.axhline(value, color="black", ls="--", lw=1, label="expert")
    earned = [run.returns["evaluation"][-1] for run in clones if run.has("evaluation")]
    if earned:
        axes.axhline(float(np.mean(earned)), color="grey", ls=":", lw=1, label="BC")


def _hold_lines(axes: Any) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines] or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if values.size and values.min() < values.max():
        room = 0.1 * (values.max() - values.min())
        axes.set_ylim(values.min() - room, values.max() + room)
