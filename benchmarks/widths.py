"""How far off clones are on pairs that they were not fitted to: the width of the default preset's prior.

    python benchmarks/widths.py --out docs/results/widths [--demos FILE_OR_FOLDER ...]

In standard deviations of the demonstrated actions: the mean over the dimensions of the actions, and the largest.
"""

import argparse
from pathlib import Path

import numpy as np
from cloning import env_of, sets

from oal import demos
from oal.base import console, files, provenance, runtime

REGIMES = ((1, 1), (10, 20), (10, 1))
"""Trajectories, and every how many steps are kept."""


def widths(env: str, shown: demos.Demos, updates: int = 3_000) -> np.ndarray:
    """Clone as the default preset does; return each dimension's width over its standard deviation."""
    from oal.deep.bc import BC, BCConfig

    clone = BC(env, shown, config=BCConfig(updates=updates, width=None)).learn()
    log_std = np.asarray(clone.members[0][-1].bias)[clone.spec.action_size :]
    return np.exp(log_std) / np.concatenate([each.action for each in clone._episodes]).std(axis=0)


def number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--demos", type=Path, nargs="*", default=[])
    parser.add_argument("--regimes", type=int, default=len(REGIMES), help="one demonstration; ten subsampled; ten")
    options = parser.parse_args()
    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    rows = []
    for name, source in sets(options.demos).items():
        loaded, env = demos.load(source), env_of(source)
        if loaded[0].actions.dtype.kind != "f":
            continue  # discrete: the prior has no width
        for trajectories, subsample in REGIMES[: options.regimes]:
            shown = loaded[:trajectories] if subsample == 1 else loaded[:trajectories].subsample(subsample)
            found = widths(env, shown)
            about = {"demonstrations": name, "trajectories": trajectories, "subsample": subsample, "pairs": shown.steps}
            rows.append({**about, "off": float(found.mean()), "off (largest)": float(found.max())})
    console.table("How far off clones are", list(rows[0]), [[*map(number, row.values())] for row in rows])
    if options.out is not None:
        files.write_csv(options.out / "widths.csv", rows)
        files.write_json(options.out / "widths.json", provenance.provenance())


if __name__ == "__main__":
    main()
