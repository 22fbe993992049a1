"""Does exploration matter for deep OAL? Optimistic against pessimistic critics, where random steps do not get there.

    python benchmarks/exploration.py --out docs/results/deep-optimism [--seeds 5] [--steps 10000] [--workers N]

Three tasks, one demonstration each, from cloning and from scratch: the paper's chain behind a random embedding,
MountainCarContinuous, and a maze whose rooms are joined by narrow doors. The default preset with small networks
(64, 64), against the same with four critics of which the actor believes the lower bound (`policy.critics=4`,
`policy.optimism=1`) and with four of which it believes the upper one: that tells what the number of critics gives from
what is made of them. Runs that are in the table already are kept. Returns are shares: 0 is a random policy's, 1 the
expert's.
"""

import argparse
import csv
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

CHAIN_LENGTH = 24
MOVE = 0.05
DOORS = ((1 / 3, 0.85), (2 / 3, 0.15))
"""Walls stand at these x; each has a door of width 0.1 around this y."""
GOAL = np.array([0.9, 0.9])
EVALUATIONS = 10
MARGIN = 0.05
"""Of the expert's return: differences below it do not matter."""


class Chain(gym.Env):
    """The paper's chain: only going right at every step reaches the end in time; one step in ten goes the other way.

    An observation is a fixed random vector of the state, so nothing tells which states are neighbours.
    """

    def __init__(self) -> None:
        self.embedding = np.random.default_rng(0).normal(size=(CHAIN_LENGTH, 16)).astype(np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (16,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.embedding[self.place], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right = (int(action) == 1) != (self.np_random.random() < 0.1)
        self.place = min(max(self.place + (1 if right else -1), 0), CHAIN_LENGTH - 1)
        return self.embedding[self.place], float(self.place == CHAIN_LENGTH - 1), False, False, {}


class Maze(gym.Env):
    """Three rooms side by side; a reward of 1 for each step near the far corner of the last one."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(0.05, 0.15, 2)
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        there = np.clip(self.place + MOVE * np.clip(action, -1.0, 1.0), 0.0, 1.0)
        for wall, door in DOORS:
            crosses = (self.place[0] - wall) * (there[0] - wall) <= 0.0
            if crosses and abs(there[1] - door) > 0.05:
                there[0] = self.place[0]
        self.place = there
        return there.astype(np.float32), float(np.linalg.norm(there - GOAL) < 0.1), False, False, {}


def right(observation: np.ndarray) -> int:
    """The chain's expert."""
    return 1


def swing(observation: np.ndarray) -> np.ndarray:
    """MountainCarContinuous's expert: push the way that the car goes."""
    return np.array([1.0 if observation[1] >= 0.0 else -1.0], np.float32)


def through_the_doors(observation: np.ndarray) -> np.ndarray:
    """The maze's expert: to the next door's height, through it, and to the goal."""
    goal = GOAL
    for wall, door in reversed(DOORS):
        if observation[0] < wall + 0.02:
            near = abs(observation[1] - door) < 0.03
            goal = np.array([wall + 0.06 if near else min(observation[0], wall - 0.04), door])
    return np.clip((goal - observation) / MOVE, -1.0, 1.0).astype(np.float32)


gym.register("Chain-v0", entry_point=Chain, max_episode_steps=CHAIN_LENGTH + 8)
gym.register("Maze-v0", entry_point=Maze, max_episode_steps=120)
TASKS = {"Chain-v0": right, "MountainCarContinuous-v0": swing, "Maze-v0": through_the_doors}
STARTS: dict[str, dict[str, Any]] = {"clones": {}, "scratch": {"bc": None}}
CRITICS: dict[str, dict[str, Any]] = {
    "two critics": {},
    "four, pessimistic": {"policy.critics": 4},
    "four, optimistic": {"policy.critics": 4, "policy.optimism": 1.0},
}


def run(task: str, start: str, critics: str, seed: int, steps: int) -> list[dict[str, Any]]:
    """Learn once; return the evaluations on the way."""
    import oal
    from oal.demos.record import record_demos
    from oal.envs import UniformPolicy, describe, evaluate, make

    shown = record_demos(task, TASKS[task], episodes=1, seed=seed)
    expert = record_demos(task, TASKS[task], episodes=20, seed=1_000)
    env = make(task)
    random = evaluate(task, UniformPolicy(describe(env)).act, episodes=20, seed=0).mean_return
    env.close()
    learner = oal.OAL(task, shown, seed=seed, settings={"policy.hidden": (64, 64), **STARTS[start], **CRITICS[critics]})
    about = {"task": task, "start": start, "critics": critics, "seed": seed}
    rows = []
    for done in range(EVALUATIONS + 1):
        if done:
            learner.learn(done * steps // EVALUATIONS)
        else:
            learner.pretrain()
        reached = learner.evaluate(episodes=10).mean_return
        share = (reached - random) / (float(expert.returns.mean()) - random)
        rows.append({**about, "step": done * steps // EVALUATIONS, "share": round(float(share), 4)})
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what optimism adds to the mean evaluation after the start, paired over seeds, and whether it matters.

    It matters if the interval leaves 0 out, and does not if it lies within a margin.
    """
    from oal.base.stats import mean_interval
    from oal.lab.claims import unlike

    areas: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for row in rows:
        if int(row["step"]) > 0:
            key = (row["task"], row["start"], row["critics"])
            areas.setdefault(key, {}).setdefault(int(row["seed"]), []).append(float(row["share"]))
    found = []
    for task in TASKS:
        for start in STARTS:
            means = {name: areas.get((task, start, name), {}) for name in CRITICS}
            seeds = sorted(set.intersection(*(set(each) for each in means.values())))
            if not seeds:
                continue
            mean = {name: np.array([np.mean(each[seed]) for seed in seeds]) for name, each in means.items()}
            gain = mean_interval(mean["four, optimistic"] - mean["four, pessimistic"])
            found.append(
                {
                    "task": task,
                    "start": start,
                    "seeds": len(seeds),
                    **{name: round(float(value.mean()), 3) for name, value in mean.items()},
                    "optimism adds": round(gain.mean, 3),
                    "half width": round(gain.half_width, 3),
                    "optimism matters": {"holds": "yes", "fails": "no"}.get(unlike(gain, MARGIN), "undecided"),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Optimistic against pessimistic critics on tasks of exploration.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()

    from oal.base import console, files
    from oal.base.provenance import provenance

    path = options.out / "runs.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    done = {(row["task"], row["start"], row["critics"], int(row["seed"])) for row in rows}
    # seeds come first, so that what was stopped has few seeds of everything
    wanted = [
        (task, start, critics, seed)
        for seed in range(options.seeds)
        for task in TASKS
        for start in STARTS
        for critics in CRITICS
    ]
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", NPROC="1")
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(run, *each, options.steps) for each in wanted if each not in done]
        for count, job in enumerate(as_completed(jobs), 1):
            rows += job.result()
            files.write_csv(path, rows)
            print(f"{count} of {len(jobs)}", flush=True)
    found = table(rows)
    files.write_csv(options.out / "table.csv", found)
    files.write_json(options.out / "config.json", {**provenance(), "steps": options.steps, "seeds": options.seeds})
    console.table("Does optimism help?", list(found[0]), [list(row.values()) for row in found])


if __name__ == "__main__":
    sys.exit(main())
