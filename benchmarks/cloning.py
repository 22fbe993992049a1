"""Compare ways of cloning: returns over seeds, on every demonstration set, with few and many trajectories.

    python benchmarks/cloning.py --out docs/results/cloning [--demos FILE_OR_FOLDER ...]

The shipped demonstrations are always among the sets. A set's trajectories are taken from its front. Rows that are there
already are kept, so a run that was stopped goes on. Returns are shares of the demonstrations' mean return.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from oal import demos
from oal.base import files, provenance, runtime

SEEDS = range(5)
REGIMES = ((1, 1), (4, 1), (10, 1), (10, 20))
"""Trajectories, and every how many steps are kept."""
EPISODES = 10
COLUMNS = ("demonstrations", "env", "trajectories", "subsample", "pairs", "method", "seed", "share")


def methods() -> dict[str, tuple]:
    """Name -> (configuration, members that act together)."""
    from oal.deep.bc import BCConfig

    before = BCConfig(epochs=300, batch_size=128, learning_rate=3e-4, schedule="cooldown", average=0.0)
    return {
        "300 epochs, 3e-4": (before, 1),
        "3,000 updates": (BCConfig(updates=3_000), 1),
        "10,000 updates": (BCConfig(), 1),
        "3,000 updates, 5 members": (BCConfig(updates=3_000), 5),
    }


def sets(given: list[Path]) -> dict[str, str]:
    """Name -> what `oal.demos.load` takes."""
    found = {f"{name} (shipped)": name for name in demos.shipped()}
    for path in given:
        for file in sorted(path.glob("*.npz")) if path.is_dir() else [path]:
            found[f"{file.parent.name}/{file.stem}"] = str(file)
    return found


def env_of(source: str) -> str:
    """The environment of a set; older versions of a task are played on the newest."""
    name = demos.load(source).env_id or Path(source).stem
    return {
        "HalfCheetah-v3": "HalfCheetah-v5",
        "Hopper-v3": "Hopper-v5",
        "InvertedPendulum-v2": "InvertedPendulum-v5",
    }.get(name, name)


def shares(env: str, shown: demos.Demos, expert: float, config, together: int) -> list[float]:
    """Clone with every seed, all in one program; return what each clone, or each mean of several, earns."""
    from oal.deep import nets
    from oal.deep.bc import clone_members, start_members
    from oal.deep.normaliser import Normaliser
    from oal.deep.policy import Policy
    from oal.demos.pairs import encode
    from oal.envs import EpisodeRunner, describe, episode_seeds, make

    spec = describe(make(env))
    starts = [member for seed in SEEDS for member in start_members(spec, (256, 256), together, seed)]
    episodes = encode(shown, spec)
    normaliser = Normaliser.of(episodes)
    members, _ = clone_members(starts, normaliser.episodes(episodes), spec=spec, config=config)
    runner = EpisodeRunner(env, parallel=EPISODES)
    found = []
    for seed in SEEDS:
        policy = Policy(spec, nets.mean_of(members[seed * together : (seed + 1) * together]), normaliser=normaliser)
        found.append(runner.evaluate(policy.act, episode_seeds(seed, "evaluation", EPISODES)).mean_return / expert)
    runner.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--demos", type=Path, nargs="*", default=[])
    parser.add_argument("--only", default="", help="sets whose name holds this")
    options = parser.parse_args()
    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    table = options.out / "cloning.csv"
    rows: list[dict] = []
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["demonstrations"], row["trajectories"], row["subsample"], row["method"]) for row in rows}
    for name, source in sets(options.demos).items():
        if options.only not in name:
            continue
        loaded, env = demos.load(source), env_of(source)
        for trajectories, subsample in REGIMES:
            shown = loaded[:trajectories]
            if len(shown) < trajectories or shown.returns is None or not np.mean(shown.returns) > 0.0:
                continue  # a share of a negative return says nothing
            expert = float(np.mean(shown.returns))
            shown = shown if subsample == 1 else shown.subsample(subsample)
            for method, (config, together) in methods().items():
                if (name, str(trajectories), str(subsample), method) in done:
                    continue
                found = shares(env, shown, expert, config, together)
                about = (name, env, trajectories, subsample, shown.steps, method)
                rows += [dict(zip(COLUMNS, (*about, seed, round(x, 4)), strict=True)) for seed, x in enumerate(found)]
                files.write_csv(table, rows)
                print(*about, " ".join(f"{x:.2f}" for x in found), flush=True)
    about = {"seeds": list(SEEDS), "episodes": EPISODES}
    files.write_json(options.out / "cloning.json", {**about, **provenance.provenance()})


if __name__ == "__main__":
    main()
