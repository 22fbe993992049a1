"""Draws the tabular figures of `oal.lab.figures`: every cell over its seeds, then data, pictures and decided claims."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oal.base import files, plots, seeding, stopping
from oal.base.console import progress
from oal.base.folder import plain
from oal.base.provenance import provenance
from oal.base.stats import Mean, mean_interval
from oal.errors import InputError, at_least, choice
from oal.lab.claims import Claim, Statement, saved
from oal.lab.figures import TABULAR, Grid, Settings
from oal.tabular import mdp
from oal.tabular.costsets import CostSet
from oal.tabular.learner import TabularOAL, behavioural_cloning
from oal.tabular.seeds import Kept, learn_seeds

Array = NDArray[np.float64]
POSITIVE = ("demonstrations", "alphas", "scales", "scale_demonstrations", "bonus_scale", "bc_seeds")
NOT_IN_CELLS = ("bc_seeds",)


def draw(
    name: str,
    out: str | os.PathLike[str],
    *,
    threads: int | None = None,
    show_progress: bool = True,
    **changes: Any,
) -> list[Claim]:
    """Draw one figure into a folder, with some of its settings changed; return what it decides.

    A figure that is stopped keeps what it has in the folder, and goes on from there.
    """
    figure = TABULAR[choice("figure", name, TABULAR)]
    for change in changes:
        choice("setting", change, figure.settings)
    settings = figure.settings | changes
    _check(settings)
    out, grids = Path(out), figure.grids(settings)
    tables = [Table(title, grid, settings) for title, grid in grids.items()]
    kept = Kept(out, {"figure": name, **settings})
    total = sum(table.runs for table in tables)
    with stopping.deferred(), progress(f"{name}: runs", total, enabled=show_progress) as advance:
        for table in tables:
            table.fill(threads=threads, advance=advance, kept=kept)
    claims = [
        claim
        for statement in figure.statements(settings, lambda *key: tables[0].interval(key).mean)
        for table in tables
        for claim in table.decide(statement)
    ]
    _picture(out / name, tables, figure.title.format(**settings))
    rows: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        rows.setdefault(name if table.grid.of else table.name, []).extend(table.rows())
    for file, one in rows.items():
        files.write_csv(out / f"{file}.csv", one)
    files.write_csv(out / "claims.csv", [claim.row for claim in claims])
    if tables[0].grid.of:
        files.write_csv(out / "standing.csv", standing(claims))
    shape = {title: {"along": grid.along, "variants": grid.variants} for title, grid in grids.items()}
    files.write_json(out / "config.json", plain({"figure": name, **settings, "grids": shape, **provenance()}))
    kept.remove()
    return claims


def standing(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Sum up claims that are decided in many places: where each holds and where it fails."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for claim in claims:
        place, _, pair = claim.where.partition(": ")
        places = found.setdefault((claim.claim, pair), {"holds": [], "fails": [], "undecided": []})
        places[claim.verdict].append(place)
    return [
        {"claim": claim, "pair": pair}
        | {verdict: len(where) for verdict, where in places.items()}
        | {"holds in": "; ".join(places["holds"]), "fails in": "; ".join(places["fails"])}
        for (claim, pair), places in found.items()
    ]


def _check(settings: Settings) -> None:
    at_least("number of seeds", settings["seeds"], 1)
    at_least("number of episodes", settings["episodes"], 1)
    for name in POSITIVE:
        given = settings.get(name, (1,))
        values = given if isinstance(given, Sequence) else (given,)
        if not values or min(values) <= 0:
            raise InputError(f"{name} is {list(values)}: it must list positive numbers")


# ----------------------------------------------------------------------------------------------------------------
# Cells


@functools.cache
def _problem(name: str, horizon: int, alpha: float, n_states: int) -> mdp.FiniteMDP:
    makers = {
        "chain": lambda: mdp.chain(horizon, alpha),
        "spawn": lambda: mdp.spawn(n_states, horizon),
        "garnet": lambda: mdp.garnet(n_states, 3, horizon),
        "garnet, stationary": lambda: mdp.garnet(n_states, 3, horizon, stationary=True, seed=1),
    }
    return makers[name]() if name in makers else mdp.from_gymnasium(name, horizon)


def regrets(
    cell: Settings,
    episodes: int,
    *,
    threads: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
    kept: Kept | None = None,
    named: str = "",
) -> list[float]:
    """Return each seed's regret per episode, of Algorithm 2 or of behavioural cloning.

    A seed has the same demonstrations and random stream in every variant, so that variants are compared in pairs.
    """
    learner = {name: value for name, value in cell.items() if name != "task"}
    about = {name: learner.pop(name, 0) for name in ("horizon", "alpha", "n_states")}
    problem = _problem(learner.pop("problem"), **about)
    n, seeds, cloning = learner.pop("demonstrations"), learner.pop("seeds"), learner.pop("cloning", False)
    expert = mdp.expert_policy(problem)

    def demos(seed: int) -> mdp.Trajectories:
        return mdp.sample(problem, expert, n, rng=seeding.generator(seed, "demonstrations", n))

    if not cloning:
        return learn_seeds(
            lambda seed: TabularOAL(problem, demos(seed), seed=seed, **learner),
            range(seeds),
            episodes,
            threads=threads,
            each=lambda learner: learner.regret[-1] / episodes,
            advance=advance,
            kept=kept,
            named=named,
        )
    box, d_expert, found = CostSet("box", problem.shape), mdp.occupancy(problem, expert), []
    for seed in range(seeds):
        stopping.check()
        cloned = behavioural_cloning(demos(seed), problem.shape)
        found.append(box.support(mdp.occupancy(problem, cloned) - d_expert))
        advance(1)
    return found


class Table:
    """A grid's cells with one regret per seed."""

    def __init__(self, name: str, grid: Grid, settings: Settings) -> None:
        self.name, self.grid = name, grid
        # lists are what grids are made of; the other settings are every cell's
        shared = {key: value for key, value in settings.items() if not isinstance(value, tuple)}
        self.cells = {
            (place, variant): {key: value for key, value in (shared | one | other).items() if key not in NOT_IN_CELLS}
            for place, one in grid.along.items()
            for variant, other in grid.variants.items()
        }
        self._values: dict[tuple[Any, str], Array] = {}

    @property
    def runs(self) -> int:
        return sum(cell["seeds"] for cell in self.cells.values())

    def fill(self, **run: Any) -> None:
        for number, (key, cell) in enumerate(self.cells.items()):
            settings = {name: value for name, value in cell.items() if name != "episodes"}
            named = f"{self.name}-{number}-"
            self._values[key] = np.asarray(regrets(settings, cell["episodes"], named=named, **run))

    def values(self, key: tuple[Any, str]) -> Array:
        """Return a cell's regrets; the variant "a / b" stands for the ratio of two, seed by seed."""
        place, variant = key
        first, _, second = variant.partition(" / ")
        return self._values[place, first] / self._values[place, second] if second else self._values[key]

    def interval(self, key: tuple[Any, str]) -> Mean:
        return mean_interval(self.values(key))

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for key, values in self._values.items():
            interval = mean_interval(values)
            cell = self.cells[key] | {self.grid.axis: key[0], "variant": key[1]}
            # one seed has no interval
            width = "" if np.isnan(interval.half_width) else round(interval.half_width, 6)
            row = {name: cell[name] for name in self.grid.columns}
            found.append(row | {"seeds": interval.n, "mean": round(interval.mean, 6), "half_width_95": width})
        return found

    def decide(self, statement: Statement) -> Iterator[Claim]:
        """Decide a statement, if it speaks of this grid's axis."""
        symbol = self.grid.symbol
        if symbol not in (statement.axis, statement.held):
            return
        along = statement.held == symbol
        places = self.grid.along if along else self.grid.variants
        if statement.at is not None:
            # a grid of a slow task is shorter
            places = [place for place in statement.at if place in places] if along else statement.at
        for held in places:
            for pair in statement.pairs:
                keys = [(held, side) if along else (side, held) for side in pair]
                named = " against ".join(self._named(statement.axis, side) for side in pair)
                difference = saved(*(self.values(key) for key in keys), paired=statement.paired)
                of = f"{self.grid.of}, " if self.grid.of else ""
                yield statement.decided(f"{of}{self._named(statement.held, held)}: {named}", difference)

    def _named(self, axis: str, value: Any) -> str:
        return value if isinstance(value, str) else f"{axis}={value:g}"


# ----------------------------------------------------------------------------------------------------------------
# Pictures


def _picture(path: Path, tables: Sequence[Table], title: str) -> None:
    if tables[0].grid.of:
        _panels(path, tables)
        return
    if isinstance(next(iter(tables[0].grid.along)), str):
        _bars(path, tables[0])
        return
    with plots.picture(path, columns=len(tables)) as axes:
        for one, table in zip(np.ravel(axes), tables, strict=True):
            _errorbars(one, table)
            one.set_title(title if table is tables[0] else "dashed: no bonus")


def _errorbars(axes: Any, table: Table) -> None:
    """Draw each variant over the axis, which is logarithmic: what is at 0 becomes a dashed line."""
    grid = table.grid
    places = [place for place in grid.along if place > 0]
    for variant in grid.variants:
        points = [table.interval((place, variant)) for place in places]
        means, widths = [p.mean for p in points], [p.half_width for p in points]
        line = axes.errorbar(places, means, widths, marker="o", ms=3, capsize=2, label=variant)
        if 0 in grid.along:
            axes.axhline(table.interval((0, variant)).mean, ls="--", lw=1, color=line[0].get_color())
    axes.set(xscale="log", xlabel=grid.label, ylabel="AL regret per episode")
    axes.set_ylim(bottom=0)
    axes.legend()


def _panels(path: Path, tables: Sequence[Table]) -> None:
    """Draw a panel for each grid, with a line and a band for each variant; the grids of a row differ in their task."""
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = len({table.grid.of.rpartition(", ")[2] for table in tables})
    columns = -(-len(tables) // rows)
    with plots.picture(path, columns=columns, rows=rows, width=3.4, height=3.0) as axes:
        panels = np.reshape(axes, (rows, columns)).ravel(order="F")
        for one, table in zip(panels, tables, strict=True):
            places = list(table.grid.along)
            for i, variant in enumerate(table.grid.variants):
                points = [table.interval((place, variant)) for place in places]
                # a logarithmic axis has no 0
                least = 1e-3
                low, mean, high = (
                    np.maximum([getattr(p, end) for p in points], least) for end in ("low", "mean", "high")
                )
                colour = plots.COLOURS[i % len(plots.COLOURS)]
                style = "-" if i < len(plots.COLOURS) else "--"
                one.plot(places, mean, style, marker="o", ms=3, lw=1.3, color=colour, label=variant)
                one.fill_between(places, low, high, color=colour, alpha=0.15, lw=0)
            one.set(xscale="log", yscale="log", title=table.grid.of, xlabel=table.grid.label)
            # plain numbers: names come from files, so that formulas are not drawn (see `plots.STYLE`)
            for axis, marks in ((one.xaxis, (1.0,)), (one.yaxis, (1.0, 2.0, 5.0))):
                axis.set_major_locator(LogLocator(subs=marks))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
        panels[0].set_ylabel("AL regret per episode")
        panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)


def _bars(path: Path, table: Table) -> None:
    """Draw one panel for each place along the axis, with a bar for each variant."""
    tasks, variants = list(table.grid.along), list(table.grid.variants)
    with plots.picture(path, columns=len(tasks), width=4.4, height=4.2) as axes:
        for one, task in zip(axes, tasks, strict=True):
            points = [table.interval((task, variant)) for variant in variants]
            means, widths = [p.mean for p in points], [p.half_width for p in points]
            one.barh(range(len(variants)), means, xerr=widths, color=plots.COLOURS[0])
            one.set_yticks(range(len(variants)), variants if one is axes[0] else [""] * len(variants), fontsize=7)
            one.set(title=task, xlabel="AL regret per episode", xscale="log")
            one.invert_yaxis()
