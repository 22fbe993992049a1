"""Write docs/results/deep/NAME.csv: normalised returns at fixed steps, from the run folders of `oal train|sweep|clone`.

python tools/deep_results.py gail-vs-oal figures/gail-vs-oal/runs runs/cloning --pictures --out docs/results/deep

`--pictures` adds the learning curves, NAME-behaviour.png and NAME-evaluation.png; a name that is a figure's adds what
its runs, and those of `--against`, say of the paper's claims, NAME-claims.csv.

A value at n steps is the mean over records in [0.9 n, n]: of the evaluations (deterministic policy, its own
environments), and of the behaviour's episodes while it learns. Normalised: random 0, expert 1. `kept` is the share of
evaluations at or above 0.9 from that step to the end. Runs that differ from their preset are told apart by `setting`.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from oal import report
from oal.base import files
from oal.base.folder import RunFolder, plain
from oal.base.provenance import provenance
from oal.base.stats import mean_interval
from oal.deep.presets import preset
from oal.lab import studies
from oal.report import groups, pictures

STEPS = (25_000, 50_000, 100_000, 150_000, 300_000, 1_000_000)
GOAL = 0.9


def around(records: list[dict[str, Any]], name: str, step: int) -> float:
    """Mean of a record's number over the last tenth of the way to a step; NaN where there is none."""
    values = [r[name] for r in records if 0.9 * step <= r["step"] <= step and r.get(name) is not None]
    return float(np.mean(values)) if values else math.nan


def setting(config: dict[str, Any]) -> str:
    """Say how a run's configuration differs from its preset, with cloning or without."""
    scratch = {"bc.epochs": 0} if config["bc_config"] is None else {}
    usual = plain(preset(config["policy"], config["cost"], config["preset"], settings=scratch).to_json())
    differences = ["from scratch"] if scratch and config["preset"] == "default" else []
    for group in ("policy", "cost", "replay", "bc"):
        given, known = config[f"{group}_config"] or {}, usual[f"{group}_config"] or {}
        differences += [f"{group}.{field}={value}" for field, value in given.items() if known.get(field) != value]
    return ", ".join(differences)


def label(folder: RunFolder) -> tuple[str, str, int, str]:
    """Environment, algorithm, demonstrations, and what is particular."""
    config = folder.config
    if folder.kind == "clone":
        return config["env"], "BC", config["trajectories"], f"{config['bc_config']['epochs']} epochs"
    name = "GAIL" if config["cost"] == "gail" else f"OAL-{config['cost']}"
    policy = f"{name} ({config['policy']}, {config['preset']})"
    return config["env"], policy, config["trajectories"], setting(config)


def measured(records: list[dict[str, Any]], about: dict[str, Any], step: int) -> dict[str, float]:
    """What one run's records show at a step."""
    low, high = about["random_return"], about["expert_return"]

    def normalised(value: float) -> float:
        return (value - low) / (high - low)

    later = [r["evaluation_return"] for r in records if r["step"] >= step and r.get("evaluation_return") is not None]
    return {
        "evaluation": normalised(around(records, "evaluation_return", step)),
        "behaviour": normalised(around(records, "return", step)),
        "evaluation_length": around(records, "evaluation_length", step),
        "kept": float(np.mean([normalised(value) >= GOAL for value in later] or [math.nan])),
    }


def rows(folders: list[RunFolder]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[RunFolder]] = defaultdict(list)
    for folder in folders:
        groups[label(folder)].append(folder)
    found = []
    for (env, algorithm, demonstrations, particular), members in groups.items():
        runs = [(folder.records(), folder.metadata) for folder in members]
        for step in (0,) if algorithm == "BC" else STEPS:
            reached = [
                measured(records, about, step) for records, about in runs if records and records[-1]["step"] >= step
            ]
            if not reached:
                continue
            row: dict[str, Any] = {"env": env, "algorithm": algorithm, "demonstrations": demonstrations}
            row |= {"setting": particular, "steps": step, "seeds": len(reached)}
            for column, digits in (("evaluation", 3), ("behaviour", 3), ("evaluation_length", 0), ("kept", 2)):
                values = [each[column] for each in reached if not math.isnan(each[column])]
                row[column] = f"{np.mean(values):.{digits}f}" if values else ""
                if column in ("evaluation", "behaviour"):
                    spread = mean_interval(values) if len(values) > 1 else None
                    row[f"{column}_half_width"] = "" if spread is None else f"{spread.half_width:.3f}"
                    row[f"{column}_least"] = f"{min(values):.3f}" if values else ""
            found.append(row)
    return found


def _without_folders(command: str) -> str:
    """Cut absolute paths to their last part: where a file lay on one machine tells nobody anything."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command.split(" "))


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarise deep runs.")
    parser.add_argument("name")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--against", type=Path, nargs="+", default=[])
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folders = [folder for root in options.runs for folder in RunFolder.find(root)]
    table = rows(folders)
    files.write_csv(options.out / f"{options.name}.csv", table)
    runs = [
        {"run": f.path.name, "command": _without_folders(f.metadata["command"]), "commit": f.metadata["commit"]}
        | {"status": f.status["status"], "step": f.status["step"], "seed": f.config["seed"]}
        for f in folders
    ]
    files.write_json(options.out / f"{options.name}.json", provenance() | {"runs": runs})
    learned = [run for run in report.read(options.runs).runs if "cost" in run.config]
    if options.name in studies.STATEMENTS:
        others = report.read(options.against).runs if options.against else []
        claims = [claim.row for claim in studies.decide(options.name, [*learned, *others])]
        files.write_csv(options.out / f"{options.name}-claims.csv", claims)
    if options.pictures:
        for picture in pictures.draw(options.out / options.name, groups.group(learned), aggregates=[]):
            picture.with_suffix(".svg").unlink()


if __name__ == "__main__":
    main()
