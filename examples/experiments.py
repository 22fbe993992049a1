"""Experiments and clusters: the code of docs/experiments.md, from which  make docs  writes this file."""

from oal.lab.executors import Inline
from oal.lab.sweep import Sweep

tables = {
    "sweep": {"env": "InvertedPendulum-v5", "total_steps": 1_000, "trajectories": 4, "bc.updates": 200},
    "grid": {"seed": [0, 1], "cost": ["linear"]},
}
sweep = Sweep.parse(tables, name="small", out="runs/small")
summary = sweep.go(Inline())  # Processes(2) for two processes, RayCluster("auto") for a cluster
print(summary)
assert summary.complete
