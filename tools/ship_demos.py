"""Copy the demonstrations of finished expert runs into the package, with the table of how each was made.

    python tools/ship_demos.py runs/expert-Hopper-v5 runs/expert-HalfCheetah-v5 ...

The table (src/oal/data/demos/table.json) keeps what other runs have put there.
"""

import sys
from pathlib import Path
from typing import Any

from oal import demos
from oal.base import files
from oal.base.folder import RunFolder
from oal.deep.policy import Policy
from oal.lab.run import EXPERT, RunConfig

DATA = Path(__file__).resolve().parent.parent / "src" / "oal" / "data" / "demos"


def entry(run: Path, shipped: demos.Demos, path: Path) -> dict[str, Any]:
    """Describe one file: how it was made and what it holds."""
    folder = RunFolder.open(run, kind=EXPERT)
    config, curve = RunConfig.from_json(folder.config), folder.records()
    assert shipped.returns is not None
    return {
        "command": shipped.metadata["command"],
        "algorithm": "soft actor-critic",
        "seed": config.seed,
        "policy_after_steps": Policy.load(folder.best).info["step"],
        "trained_steps": curve[-1]["step"],
        "episodes": len(shipped),
        "transitions": shipped.steps,
        "return_mean": round(float(shipped.returns.mean()), 2),
        "return_std": round(float(shipped.returns.std()), 2),
        "returns": [round(float(value), 3) for value in shipped.returns],
        "lengths": shipped.lengths.tolist(),
        "reset_seeds": [trajectory.seed for trajectory in shipped],
        "content_hash": shipped.content_hash,
        "bytes": path.stat().st_size,
    }


def main() -> None:
    table_path = DATA / "table.json"
    table = files.read_json(table_path) if table_path.exists() else {}
    for run in map(Path, sys.argv[1:]):
        recorded = demos.load(run / "demos.npz")
        assert recorded.env_id is not None
        path = DATA / f"{recorded.env_id}.npz"
        recorded.save(path)
        table[recorded.env_id] = entry(run, recorded, path)
        print(f"{path.name}: {recorded!r}, {path.stat().st_size / 1e6:.2f} MB")
    files.write_json(table_path, dict(sorted(table.items())))
    print(f"all together {sum(path.stat().st_size for path in DATA.glob('*.npz')) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
