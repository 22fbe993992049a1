"""Run folders made up for the tests of reporting, written as the contract says and without any learner."""

import json
from pathlib import Path
from typing import Any

import numpy as np

EXPERT, RANDOM = {"Hopper-v5": 3700.0, "HalfCheetah-v5": 4200.0}, {"Hopper-v5": 20.0, "HalfCheetah-v5": -280.0}
# The smallest GIF: one transparent pixel.
GIF = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")

CERTIFICATE = {
    "format": 2,
    "sentence": "indistinguishable from the expert on 10 episodes",
    "compared": "Compared with 15 demonstrations that were held out from learning.",
    "env_id": "Hopper-v5",
    "linear_l2": {
        "name": "linear cost, L2", "value": 0.21, "low": 0.12, "high": 0.3, "scale": 0.19, "scale_high": 0.25,
        "p_value": 0.2, "adjusted_p": 0.4, "verdict": "as two experts", "clone": 0.4, "random": 2.1,
        "on_scale": {"value": 0.013, "low": 0.0, "high": 0.058, "clone": 0.11},
    },
    "learned_cost": None,
    "returns": {
        "name": "return", "learner": {"mean": 3500.0, "half_width": 80.0, "n": 10},
        "expert": {"mean": 3700.0, "half_width": 10.0, "n": 10}, "normalised": None, "verdict": "less than the expert",
        "clone": {"mean": 2900.0, "half_width": 10.0, "n": 10}, "random": None,
    },
    "worst_l2": {"position 1": 0.4, "torque 2": -0.3},
    "worst_simplex": "position 1",
    "differences": [
        {"feature": "position 1", "learner": 1.21, "expert": 1.35, "spread": 0.05, "deviations": -2.8, "beyond": True},
        {"feature": "torque 2", "learner": 0.1, "expert": 0.0, "spread": 0.4, "deviations": 0.25, "beyond": False},
    ],
}  # fmt: skip


def make_run(
    folder: Path,
    *,
    env: str = "Hopper-v5",
    seed: int = 0,
    steps: int = 20_000,
    total_steps: int | None = None,
    half: float = 8_000,
    top: float = 1.0,
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a run whose normalised return climbs to `top`, half of it reached at `half` steps; `config` adds fields."""
    folder.mkdir(parents=True)
    fields = {"env": env, "demos": env, "trajectories": 10, "policy": "mdpo", "cost": "neural", "preset": "default"}
    fields |= {"seed": seed, "total_steps": total_steps or steps, "policy_config": {"kl_weight": 0.02}} | config
    expert, random = EXPERT.get(env, 100.0), RANDOM.get(env, 0.0)
    origin = {"command": f"oal learn {env} --seed {seed}", "commit": "0123456789ab", "versions": {"oal": "0.1.0"}}
    write(folder / "config.json", {"format": 1, "config": fields})
    write(folder / "metadata.json", origin | {"expert_return": expert, "random_return": random} | (metadata or {}))
    write(folder / "status.json", {"status": "finished", "step": steps} | (status or {}))
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(1_000, steps + 1, 1_000):
        level = top / (1 + np.exp(-(step - half) / 2_000)) + 0.03 * rng.normal()
        record = {
            "step": step,
            "seconds": step / 100,
            "return": random + 0.9 * level * (expert - random),
            "length": 900,
        }
        if step % 3_000 == 0:
            record["return"] = None
        if step % 5_000 == 0:
            value = random + level * (expert - random)
            record |= {"evaluation_return": value, "evaluation_returns": [value, value], "evaluation_length": 950}
        lines.append(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def made_clone(folder: Path, config: Any, top: float) -> Path:
    """Write the run of a clone that reaches `top`, as `oal.lab.run.clone` leaves it."""
    folder.mkdir(parents=True)
    expert, random = EXPERT.get(config.env, 100.0), RANDOM.get(config.env, 0.0)
    write(folder / "config.json", {"format": 1, "kind": "clone", "config": config.to_json()})
    write(folder / "metadata.json", {"commit": "0123456789ab", "expert_return": expert, "random_return": random})
    write(folder / "status.json", {"status": "finished", "step": 0})
    value = random + top * (expert - random)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "evaluation_return": value}) + "\n")
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def make_study(root: Path, *, seeds: int = 3, steps: int = 20_000) -> Path:
    """Write two tasks x three algorithms x seeds, with certificates, linear costs, films and three broken runs."""
    rng = np.random.default_rng(0)
    costs = {"linear": (0.45, 0.95), "neural": (0.35, 1.02), "gail": (0.6, 0.7)}
    for env in EXPERT:
        for cost, (half, top) in costs.items():
            for seed in range(seeds):
                folder = root / f"{env}-{cost}-{seed}"
                late, less = (1 + 0.1 * rng.normal(size=2)).tolist()
                make_run(folder, env=env, cost=cost, seed=seed, steps=steps, half=late * half * steps, top=less * top)
                if cost == "linear":
                    names = [f"position {i}" for i in range(5)] + [f"torque {i}" for i in range(3)]
                    weights = (np.linspace(-1, 1, 8) + 0.1 * rng.normal(size=8)).tolist()
                    write(folder / "cost.json", {"features": names, "weights": weights, "absorbing": 0.7})
                write(folder / "certificate.json", CERTIFICATE)
    (root / "Hopper-v5-neural-0" / "video.gif").write_bytes(GIF)
    (root / "Hopper-v5-neural-0" / "expert.gif").write_bytes(GIF)
    trace = "Traceback (most recent call last):\n  ...\nFloatingPointError: the critic's loss is nan"
    make_run(root / "failed", seed=7, steps=3_000, status={"status": "failed", "step": 3_000, "error": trace})
    make_run(root / "cut short", seed=8, steps=6_000, total_steps=steps, status={"status": "running", "step": 6_000})
    make_run(root / "damaged", seed=9)
    (root / "damaged" / "config.json").write_text("{")
    return root
