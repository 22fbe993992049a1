"""Write docs/results/deep: normalised returns at fixed steps, from the run folders of `oal train`.

python tools/deep_results.py runs/deep --out docs/results/deep

A value at n steps is the mean over records in [0.9 n, n]: of the evaluations (deterministic policy, its own
environments), and of the behaviour's episodes while it learns. Normalised: random 0, expert 1.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from oal import files
from oal.provenance import provenance
from oal.runs import RunFolder
from oal.stats import mean_interval

STEPS = (5_000, 25_000, 50_000, 100_000, 150_000)


def around(records: list[dict[str, Any]], name: str, step: int) -> float | None:
    values = [r[name] for r in records if 0.9 * step <= r["step"] <= step and r.get(name) is not None]
    return float(np.mean(values)) if values else None


def rows(folders: list[RunFolder]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[RunFolder]] = defaultdict(list)
    for folder in folders:
        config = folder.config
        if folder.kind == "clone":
            groups[config["env"], "BC"].append(folder)
            continue
        name = "GAIL" if config["cost"] == "gail" else f"OAL-{config['cost']}"
        groups[config["env"], f"{name} ({config['policy']}, {config['preset']})"].append(folder)
    found = []
    for (env, algorithm), members in sorted(groups.items()):
        for step in (0,) if algorithm == "BC" else STEPS:
            row: dict[str, Any] = {"env": env, "algorithm": algorithm, "steps": step, "seeds": 0}
            columns: dict[str, list[float]] = defaultdict(list)
            for folder in members:
                records, about = folder.records(), folder.metadata
                if not records or records[-1]["step"] < step:
                    continue
                row["seeds"] += 1
                low, high = about["random_return"], about["expert_return"]
                for column, name in (("evaluation", "evaluation_return"), ("behaviour", "return")):
                    value = around(records, name, step)
                    if value is not None:
                        columns[column].append((value - low) / (high - low))
                length = around(records, "evaluation_length", step)
                if length is not None:
                    columns["evaluation_length"].append(length)
            if row["seeds"]:
                for column in ("evaluation", "behaviour", "evaluation_length"):
                    values = columns[column]
                    row[column] = f"{np.mean(values):.3f}" if values else ""
                    interval = mean_interval(values) if len(values) > 1 else None
                    row[f"{column}_half_width"] = "" if interval is None else f"{interval.high - interval.mean:.3f}"
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarise deep runs.")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folders = [folder for root in options.runs for folder in RunFolder.find(root)]
    table = rows(folders)
    with files.replacing(options.out / "deep.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    runs = [
        {"command": f.metadata["command"], "commit": f.metadata["commit"], "status": f.status["status"]}
        | {"step": f.status["step"], "seed": f.config["seed"]}
        for f in folders
    ]
    files.write_json(options.out / "config.json", provenance() | {"runs": runs})


if __name__ == "__main__":
    main()
