"""OAL against the field: `imitation`'s GAIL and AIRL with SAC and PPO, and BC, at equal environment steps.

python benchmarks/field.py --runs FOLDER [--runs FOLDER ...] [--steps 150000] [--on-policy-steps 1000000] [--seeds 3]
    [--env ID ...] [--learner NAME ...] [--demonstrations FOLDER] [--out FOLDER] [--only-table]

Peers learn from the same ten demonstrations as oal's runs, with the same seeds, each in a process of its own; their
evaluations are written to field.csv as each learner ends, and what is there is not run again. oal's side are run
folders, as `oal figure gail-vs-oal` and `oal train --cost dac|sqil|csil` leave them. From both: field-table.csv, and
field.png with a panel for each task. Returns are normalised: 0 is a random policy's, 1 the mean of all demonstrations.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import PEERS, ROOT, WorkerError, end_worker_when_stopped, install, work
from deep import DEMONSTRATIONS

from oal import demos, report
from oal.base import console, files, plots
from oal.base.provenance import commit, provenance
from oal.errors import InputError
from oal.report import statistics
from oal.report.charts import short

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
"""Of which `imitation` has environments with the same observations; Ant and Humanoid changed theirs in v5."""
PEER_LEARNERS: dict[str, dict[str, str]] = {
    "imitation GAIL + SAC": {"algorithm": "gail", "player": "off"},
    "imitation GAIL + PPO": {"algorithm": "gail", "player": "on"},
    "imitation AIRL + SAC": {"algorithm": "airl", "player": "off"},
    "imitation AIRL + PPO": {"algorithm": "airl", "player": "on"},
    "imitation BC": {"algorithm": "bc", "player": "off"},
}
COLUMNS = ("environment", "learner", "seed", "step", "return", "seconds", "expert_return", "random_return", "commit")
EPISODES = 10
LEVEL = 0.9
Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run, normalised; a clone has one, at step 0."""

    environment: str
    learner: str
    seed: int
    steps: np.ndarray
    values: np.ndarray

    def until(self, step: float) -> "Curve":
        kept = self.steps <= step
        return Curve(self.environment, self.learner, self.seed, self.steps[kept], self.values[kept])


# ----------------------------------------------------------------------------------------------------------------
# Running the peers


def scale_of(env_id: str, folder: Path | None, out: Path) -> tuple[Path, float, float]:
    """Return the demonstrations for `imitation`, the mean return of all of the source, and a random policy's."""
    from oal.envs import UniformPolicy, describe, evaluate, make

    source = demos.load(folder / f"{env_id}.npz" if folder is not None else env_id)
    if source.returns is None:
        raise InputError(f"the demonstrations of {env_id} have no rewards: returns cannot be normalised")
    path = out / "demos" / f"{env_id}-{DEMONSTRATIONS}.npz"
    demos.save(source[:DEMONSTRATIONS], path, format="imitation")
    env = make(env_id)
    policy = UniformPolicy(describe(env))
    env.close()
    return path, float(source.returns.mean()), evaluate(env_id, policy.act, episodes=20).mean_return


def read_rows(path: Path) -> list[Row]:
    """Read field.csv; nothing is there before the first learner has ended."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if rows and set(COLUMNS) - set(rows[0]):
        raise InputError(f"{path} lacks the columns {sorted(set(COLUMNS) - set(rows[0]))}: it is not this benchmark's")
    return rows


def run_peers(
    out: Path,
    *,
    env_ids: Sequence[str],
    learners: Sequence[str],
    seeds: int,
    steps: int,
    on_policy_steps: int,
    folder: Path | None = None,
) -> tuple[list[Row], dict[str, str]]:
    """Run what is not in field.csv yet; return all its rows, and why a learner was skipped."""
    path = out / "field.csv"
    rows, skipped = read_rows(path), {}
    done = {(row["environment"], row["learner"], int(row["seed"])) for row in rows}
    scales: dict[str, tuple[Path, float, float]] = {}
    # seeds come first, so that what was stopped has few seeds of everything
    for seed in range(seeds):
        for env_id in env_ids:
            for learner in learners:
                if (env_id, learner, seed) in done or learner in skipped:
                    continue
                if env_id not in scales:
                    scales[env_id] = scale_of(env_id, folder, out)
                shown, expert, random = scales[env_id]
                options = PEER_LEARNERS[learner]
                until = on_policy_steps if options["player"] == "on" else steps
                print(f"  {env_id}, {learner}, seed {seed}: {until:,} steps ...", flush=True)
                try:
                    result = work(
                        install("imitation"),
                        "imitation_worker.py",
                        threads=1,
                        library="imitation",
                        env=env_id,
                        demos=shown,
                        until=until,
                        every_steps=max(1, until // 30),
                        episodes=EPISODES,
                        seed=seed,
                        **options,
                    )
                except WorkerError as error:
                    skipped[learner] = str(error)
                    continue
                about = {"environment": env_id, "learner": learner, "seed": seed}
                ends = {"expert_return": round(expert, 3), "random_return": round(random, 3), "commit": commit()}
                rows += [
                    about
                    | {"step": int(p["step"]), "return": round(p["return"], 3), "seconds": round(p["seconds"], 1)}
                    | ends
                    for p in result["curve"]
                ]
                files.write_csv(path, rows)
    return rows, skipped


# ----------------------------------------------------------------------------------------------------------------
# Both sides as curves


def curves_of_rows(rows: Iterable[Row]) -> list[Curve]:
    """Return the peers' curves."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["environment"], row["learner"], int(row["seed"])), []).append(row)
    return [
        Curve(
            *key,
            np.array([float(row["step"]) for row in group]),
            statistics.normalised(
                [float(row["return"]) for row in group],
                random=float(group[0]["random_return"]),
                expert=float(group[0]["expert_return"]),
            ),
        )
        for key, group in found.items()
    ]


def name_of(config: Row) -> str:
    """Name a run folder's learner: its algorithm, costs and policy player, and whether it began from clones."""
    if config.get("algorithm") == "BC":
        return "oal BC"
    cost, policy = (
        config["cost"],
        {"mdpo": "MDPO", "trpo": "TRPO", "sac": "SAC", "mdpo-on": "MDPO-on"}[config["policy"]],
    )
    algorithm = f"OAL, {cost}" if cost in ("linear", "neural") else cost.upper()
    return f"oal {algorithm} + {policy}" + (", cloned" if config.get("bc_config") else "")


def curves_of_runs(runs: Iterable[report.Run]) -> list[Curve]:
    """Return the evaluations of finished runs of the default preset on whole demonstrations."""
    found = []
    for run in runs:
        about = run.config
        asked = (about.get("trajectories"), about.get("subsample", 1), about.get("preset", "default"))
        if run.unfinished or not run.can_be_normalised or asked != (DEMONSTRATIONS, 1, "default"):
            continue
        values = run.values("evaluation", normalised=True)
        has = np.isfinite(values)
        if has.any():
            found.append(Curve(run.task, name_of(about), int(run.seed), run.steps[has], values[has]))
    return found


# ----------------------------------------------------------------------------------------------------------------
# The table and the picture


def table(curves: Sequence[Curve]) -> list[Row]:
    """Return one row per task and learner, at the steps that all of the learner's seeds have taken."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.environment, curve.learner), []).append(curve)
    rows = []
    for (environment, learner), members in groups.items():
        end = min(curve.steps[-1] for curve in members)
        cut = [curve.until(end) for curve in members]
        finals = np.array([statistics.final(curve.steps, curve.values) for curve in cut])
        final = statistics.interval(statistics.mean, [finals])
        firsts = sorted(statistics.steps_to(curve.steps, curve.values, LEVEL)[0] for curve in cut)
        middle = firsts[len(firsts) // 2]
        rows.append(
            {
                "environment": environment,
                "learner": learner,
                "seeds": len(members),
                "steps": int(end),
                "final evaluation": round(final.value, 3),
                "low": round(final.low, 3) if final.known else "",
                "high": round(final.high, 3) if final.known else "",
                "least": round(float(finals.min()), 3),
                f"steps to {LEVEL:.0%} (median)": int(middle) if np.isfinite(middle) else "never",
                f"seeds at {LEVEL:.0%}": int(np.isfinite(firsts).sum()),
            }
        )
    return sorted(rows, key=lambda row: (row["environment"], -row["final evaluation"]))


def draw(path: Path, curves: Sequence[Curve]) -> None:
    """Draw a panel for each task; steps are on a logarithmic axis, since on-policy learners need many more."""
    tasks = list(dict.fromkeys(curve.environment for curve in curves))
    learners = list(dict.fromkeys(curve.learner for curve in curves))
    with plots.picture(path, columns=len(tasks), width=4.4, height=4.2) as grid:
        handles: dict[str, Any] = {}
        for axes, task in zip(np.ravel(grid), tasks, strict=True):
            for place, learner in enumerate(learners):
                members = [curve for curve in curves if (curve.environment, curve.learner) == (task, learner)]
                if not members:
                    continue
                colour = plots.COLOURS[place % len(plots.COLOURS)]
                style = {"color": colour, "ls": "-" if learner.startswith("oal") else "--"}
                if all(curve.steps[-1] == 0 for curve in members):
                    level = float(np.mean([curve.values[-1] for curve in members]))
                    handles[learner] = axes.axhline(level, color=colour, ls=":" if learner.startswith("oal") else "-.")
                    continue
                steps, band = joined(members)
                handles[learner] = axes.plot(steps, band.value, label=learner, **style)[0]
                axes.fill_between(steps, band.low, band.high, color=colour, alpha=0.15, lw=0)
            axes.axhline(1.0, color="black", lw=0.8, ls="--")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: short(value))
            axes.set(title=task, xlabel="environment steps", ylabel="normalised evaluation")
        np.ravel(grid)[0].figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=7
        )


def joined(members: Sequence[Curve]) -> tuple[np.ndarray, statistics.Band]:
    """Return the mean over seeds at all steps at which one was evaluated, each seed with its newest value."""
    learned = [curve for curve in members if (curve.steps > 0).any()]
    begin = max(curve.steps[curve.steps > 0][0] for curve in learned)
    end = min(curve.steps[-1] for curve in learned)
    steps = np.unique(np.concatenate([curve.steps for curve in learned]))
    steps = steps[(steps >= begin) & (steps <= end)]
    newest = [curve.values[np.searchsorted(curve.steps, steps, side="right") - 1] for curve in learned]
    return steps, statistics.band(statistics.mean, [np.stack(newest, axis=-1)])


def write(out: Path, curves: Sequence[Curve], about: Row) -> list[Row]:
    """Write table, picture and where they come from."""
    if not curves:
        raise InputError("there is nothing to compare: give run folders with --runs, or let peers run")
    rows = table(curves)
    files.write_csv(out / "field-table.csv", rows)
    draw(out / "field", curves)
    files.write_json(out / "field.json", {**provenance(), **about, "peer packages": PEERS["imitation"][-1]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="OAL against the field, at equal environment steps.")
    parser.add_argument("--runs", type=Path, action="append", default=[], help="oal's run folders; repeatable")
    parser.add_argument("--steps", type=int, default=150_000, help="of the peers with SAC")
    parser.add_argument("--on-policy-steps", type=int, default=1_000_000, help="of the peers with PPO")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env", action="append", choices=TASKS, help="repeatable; all if not given")
    parser.add_argument("--learner", action="append", choices=tuple(PEER_LEARNERS), help="repeatable; all if not given")
    parser.add_argument("--demonstrations", type=Path, help="a folder with ENV.npz; the shipped ones if not given")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "field")
    parser.add_argument("--only-table", action="store_true", help="run no peer, read field.csv as it is")
    options = parser.parse_args()
    end_worker_when_stopped()
    skipped: dict[str, str] = {}
    if options.only_table:
        rows = read_rows(options.out / "field.csv")
    else:
        rows, skipped = run_peers(
            options.out,
            env_ids=options.env or TASKS,
            learners=options.learner or tuple(PEER_LEARNERS),
            seeds=options.seeds,
            steps=options.steps,
            on_policy_steps=options.on_policy_steps,
            folder=options.demonstrations,
        )
    runs = report.read(options.runs).runs if options.runs else []
    commits = sorted({str(run.metadata.get("commit")) for run in runs})
    ours = [curve for curve in curves_of_runs(runs) if curve.environment in (options.env or TASKS)]
    about = {"commits of the runs": commits, "skipped": skipped}
    found = write(options.out, [*ours, *curves_of_rows(rows)], about)
    console.table("OAL against the field", list(found[0]), [list(row.values()) for row in found])
    for learner, why in skipped.items():
        print(f"{learner}: skipped, {why}")
    print(f"Written: {options.out / 'field-table.csv'}, {options.out / 'field.png'}")


if __name__ == "__main__":
    sys.exit(main())
