"""Minutes to the expert, what a user feels: oal against `imitation`, each given the same minutes on two cores.

python benchmarks/wallclock.py [--minutes 15] [--seeds 3] [--trajectories 1] [--env ID ...] [--learner NAME ...]
    [--out FOLDER] [--resume]

Every learner starts from nothing in a process of its own, alone on the machine, with the same demonstrations. Its
deterministic policy is evaluated as it goes; evaluations do not count. Curves are written as they come: curves.json,
curves.csv, arrivals.csv and a plot over minutes, normalised so that the expert is 1 and uniformly random actions are 0.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import PEERS, ROOT, WorkerError, end_worker_when_stopped, install, ratios, spread, work
from deep import OURS, THREADS, exported_demos

from oal.base import console, files, plots
from oal.base.provenance import commit, provenance
from oal.deep.presets import preset

ENVIRONMENTS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
LEARNERS: dict[str, dict[str, str]] = {
    "OAL-neural": {"library": "oal", "player": "off", "cost": "neural"},
    "OAL-linear": {"library": "oal", "player": "off", "cost": "linear"},
    "OAL-neural, not cloned": {"library": "oal", "player": "off", "cost": "neural", "bc_epochs": "0"},
    "imitation GAIL + SAC": {"library": "imitation", "player": "off"},
    "imitation GAIL + PPO": {"library": "imitation", "player": "on"},
    "imitation BC": {"library": "imitation", "player": "on", "algorithm": "bc"},
}
THRESHOLD = 0.9


def normalised(value: float, expert: float, random: float) -> float:
    """Place a return between random actions (0) and the expert (1)."""
    return (value - random) / (expert - random)


def minutes_to(curve: Sequence[dict[str, float]], level: float, limit: float) -> tuple[float, bool]:
    """Return the minutes after which a curve first reaches `level`, and whether it does; `limit` if it does not.

    A learner notices the end of its time when a block ends: a twentieth more is let pass.
    """
    for point in curve:
        minutes = point["seconds"] / 60.0
        if point["normalised"] >= level and minutes <= 1.05 * limit:
            return min(minutes, limit), True
    return limit, False


def differs(learner: str) -> str:
    """Say what is not equal between the two sides."""
    options = LEARNERS[learner]
    cloned = options.get("bc_epochs") != "0" and preset("mdpo", options["cost"]).bc_config is not None
    start = ", which starts from a cloned policy" if cloned else ", without cloning"
    return (
        f"oal's default preset{start}; imitation: a random start, PPO and BC as tuned there for the task, SAC at one "
        "update per step, environment version v4. A learner that does not get there counts with all its minutes"
    )


def task(env_id: str, trajectories: int) -> dict[str, Any]:
    """Return the demonstrations' file and the returns that normalise: the demonstrations' own, and random actions'."""
    from oal import demos
    from oal.envs import UniformPolicy, describe, evaluate, make

    path = exported_demos(env_id, trajectories)
    returns = demos.load(path).returns
    assert returns is not None
    env = make(env_id)
    policy = UniformPolicy(describe(env))
    env.close()
    return {
        "demos": path,
        "expert": float(returns.mean()),
        "random": evaluate(env_id, policy.act, episodes=20).mean_return,
    }


def measure(
    *,
    minutes: float,
    env_ids: Sequence[str] = ENVIRONMENTS,
    learners: Sequence[str] = tuple(LEARNERS),
    seeds: int = 3,
    trajectories: int = 1,
    out: Path = ROOT / ".bench" / "wallclock",
    resume: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run every learner on every environment with every seed; return the curves, and why a learner was skipped.

    With `resume`, curves of these minutes and demonstrations that are in the folder already are not drawn again.
    """
    curves: list[dict[str, Any]] = []
    if resume and (out / "curves.json").exists():
        asked = {"minutes": minutes, "demonstrations": trajectories}
        curves = [curve for curve in files.read_json(out / "curves.json")["curves"] if asked.items() <= curve.items()]
    drawn = {(curve["environment"], curve["learner"], curve["seed"]) for curve in curves}
    skipped: dict[str, str] = {}
    tasks = {env_id: task(env_id, trajectories) for env_id in env_ids}
    for seed in range(seeds):
        for env_id in env_ids:
            for learner in learners:
                if learner in skipped or (env_id, learner, seed) in drawn:
                    continue
                print(f"  {env_id}, {learner}, seed {seed}: {minutes:g} minutes ...", flush=True)
                options = LEARNERS[learner]
                scale = tasks[env_id]
                try:
                    python = OURS if options["library"] == "oal" else install(options["library"])
                    result = work(
                        python,
                        "imitation_worker.py",
                        threads=THREADS,
                        env=env_id,
                        demos=scale["demos"],
                        minutes=minutes,
                        every=max(5.0, 1.5 * minutes),
                        seed=seed,
                        **options,
                    )
                except WorkerError as error:
                    if options["library"] == "oal":
                        raise
                    skipped[learner] = str(error)
                    continue
                for point in result["curve"]:
                    point["normalised"] = normalised(point["return"], scale["expert"], scale["random"])
                curves.append(
                    {
                        "environment": env_id,
                        "learner": learner,
                        "seed": seed,
                        "minutes": minutes,
                        "commit": commit(),
                        "demonstrations": trajectories,
                        "expert_return": scale["expert"],
                        "random_return": scale["random"],
                        "peak_memory_megabytes": round(result["peak_memory_megabytes"]),
                        "curve": result["curve"],
                    }
                )
                write(out, curves, skipped)
    return curves, skipped


def write(out: Path, curves: Sequence[dict[str, Any]], skipped: dict[str, str]) -> None:
    """Write what there is so far: JSON, CSV and a plot."""
    files.write_json(out / "curves.json", {"curves": list(curves), "skipped": skipped, **provenance()})
    rows = [
        {
            "environment": curve["environment"],
            "learner": curve["learner"],
            "seed": curve["seed"],
            "minutes": round(point["seconds"] / 60.0, 4),
            "step": int(point["step"]),
            "return": round(point["return"], 3),
            "normalised": round(point["normalised"], 5),
        }
        for curve in curves
        for point in curve["curve"]
    ]
    files.write_csv(out / "curves.csv", rows)
    files.write_csv(out / "arrivals.csv", arrivals(curves))
    draw(out / "curves", curves)


def arrivals(curves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say of every curve when it reached 90 % of the expert, and where it ended."""
    rows = []
    for curve in curves:
        minutes, reached = minutes_to(curve["curve"], THRESHOLD, curve["minutes"])
        last = curve["curve"][-1]
        rows.append(
            {
                "environment": curve["environment"],
                "learner": curve["learner"],
                "seed": curve["seed"],
                f"minutes to {THRESHOLD:.0%}": f"{minutes:.1f}" if reached else f"not in {curve['minutes']:g}",
                "normalised return at the end": round(last["normalised"], 3),
                "steps": int(last["step"]),
            }
        )
    return rows


def draw(path: str | os.PathLike[str], curves: Sequence[dict[str, Any]]) -> None:
    env_ids = list(dict.fromkeys(curve["environment"] for curve in curves))
    with plots.picture(path, columns=len(env_ids)) as grid:
        for axes, env_id in zip([grid] if len(env_ids) == 1 else grid, env_ids, strict=True):
            shown = set()
            for curve in (curve for curve in curves if curve["environment"] == env_id):
                learner = curve["learner"]
                axes.plot(
                    [point["seconds"] / 60.0 for point in curve["curve"]],
                    [point["normalised"] for point in curve["curve"]],
                    color=plots.COLOURS[list(LEARNERS).index(learner)],
                    label=None if learner in shown else learner,
                    marker=".",
                )
                shown.add(learner)
            axes.axhline(1.0, color="black", lw=0.8, ls=":")
            axes.set_xlim(left=0.0)
            axes.set(title=env_id, xlabel="minutes on two cores", ylabel="normalised return")
            axes.legend(fontsize=7)


def entries(curves: Sequence[dict[str, Any]], skipped: dict[str, str], minutes: float) -> list[dict[str, Any]]:
    """Compare minutes to 90 % of the expert: each of oal's learners against each of `imitation`'s, seed by seed."""
    reached: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    memory: dict[tuple[str, str], int] = {}
    for curve in curves:
        key = (curve["environment"], curve["learner"])
        reached.setdefault(key, []).append(minutes_to(curve["curve"], THRESHOLD, minutes))
        memory[key] = max(memory.get(key, 0), curve["peak_memory_megabytes"])
    found = []
    for env_id in dict.fromkeys(env_id for env_id, _ in reached):
        for ours in (name for name, options in LEARNERS.items() if options["library"] == "oal"):
            for peer in (name for name, options in LEARNERS.items() if options["library"] != "oal"):
                name = f"minutes to {THRESHOLD:.0%} of the expert on {env_id}, {ours} against {peer}"
                if peer in skipped:
                    found.append({"name": name, "skipped": skipped[peer]})
                    continue
                if (env_id, ours) not in reached or (env_id, peer) not in reached:
                    continue
                us, them = reached[env_id, ours], reached[env_id, peer]
                found.append(
                    {
                        "name": name,
                        "unit": f"minutes (of {minutes:g})",
                        "oal": spread([value for value, _ in us]),
                        "imitation": spread([value for value, _ in them]),
                        "reached": {"oal": sum(yes for _, yes in us), "imitation": sum(yes for _, yes in them)},
                        "ratio": ratios([value for value, _ in them], [value for value, _ in us]),
                        "repeats": len(us),
                        "threads": THREADS,
                        "differs": differs(ours),
                        "peer_packages": PEERS["imitation"][-1],
                        "peak_memory_megabytes": {"oal": memory[env_id, ours], "imitation": memory[env_id, peer]},
                    }
                )
    return found


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """The benchmark's part `wallclock`: half a day, or a minute each to see that all of it works."""
    minutes = 1.0 if quick else 15.0
    return entries(*measure(minutes=minutes, seeds=1 if quick else 3), minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw returns over minutes for oal and for imitation.")
    parser.add_argument("--minutes", type=float, default=15.0, help="of learning, for each learner")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trajectories", type=int, default=1, help="demonstrations to learn from")
    parser.add_argument("--env", action="append", choices=ENVIRONMENTS, help="may be given more than once")
    parser.add_argument("--learner", action="append", choices=tuple(LEARNERS), help="may be given more than once")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "wallclock")
    parser.add_argument("--resume", action="store_true", help="keep the folder's curves of as many minutes")
    options = parser.parse_args()
    end_worker_when_stopped()
    curves, skipped = measure(
        minutes=options.minutes,
        env_ids=options.env or ENVIRONMENTS,
        learners=options.learner or tuple(LEARNERS),
        seeds=options.seeds,
        trajectories=options.trajectories,
        out=options.out,
        resume=options.resume,
    )
    if rows := arrivals(curves):
        console.table("Minutes to the expert", list(rows[0]), [list(row.values()) for row in rows])
    for learner, why in skipped.items():
        print(f"{learner}: skipped, {why}")
    print(f"Written: {options.out / 'curves.csv'}")


if __name__ == "__main__":
    sys.exit(main())
