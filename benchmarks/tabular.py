"""Benchmarks of the tabular part: Algorithm 2's kernel against a vectorised NumPy version and against rlberry's UCBVI.

Every function returns plain dicts. What is compared runs in turn, in one run, repeated; ratios come with their spread.
Times are the process' own: what other programs take of the machine meanwhile does not count.
"""

import functools
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import WorkerError, install, ratios, reason, spread

from oal import equations
from oal.base import seeding
from oal.lab.figures import TABULAR
from oal.lab.tabular_figures import Table
from oal.tabular import mdp
from oal.tabular.learner import Settings, TabularOAL, settings_for
from oal.tabular.seeds import learn_seeds

SCALE = 0.005
FOUR_MINUTES = 480.0
"""Processor seconds in four minutes on two cores."""


class VectorisedOAL:
    """Algorithm 2 as one would write it in NumPy: dense arrays, a loop over steps, everything else vectorised."""

    def __init__(self, problem: mdp.FiniteMDP, demos: mdp.Trajectories, settings: Settings, episodes: int, seed: int):
        self.problem, self.settings, self.rng = problem, settings, np.random.default_rng(seed)
        self.p, self.shape = problem.table(), problem.shape
        H, S, A = self.shape
        self.cumulative = self.p.cumsum(-1)
        self.counts, self.n, self.starts = np.zeros((H, S, A, S)), np.zeros(self.shape), np.zeros(S)
        self.logits, self.pi, self.c = np.zeros(self.shape), np.full(self.shape, 1 / A), np.zeros(self.shape)
        self.d_hat = demos.occupancy(self.shape)
        self.d_expert = mdp.occupancy(problem, mdp.expert_policy(problem))
        self.total = np.zeros(self.shape)
        self.t_pi = equations.policy_step_size(self.shape, episodes)
        self.t_c = equations.box_step_size(self.shape, episodes)
        self.b = settings.bonus_scale * float(equations.bonus(np.ones(1), self.shape, episodes, settings.delta)[0])
        self.regret = np.zeros(episodes)

    def learn(self, episodes: int) -> None:
        H, S, _ = self.shape
        states, actions = np.zeros(H, dtype=int), np.zeros(H, dtype=int)
        Q = np.zeros(self.shape)
        for k in range(1, episodes + 1):
            u = self.rng.random((H, 2))
            s = int(np.searchsorted(np.cumsum(self.problem.initial), self.rng.random(), side="right"))
            cumulative_pi = self.pi.cumsum(-1)
            for h in range(H):
                a = int(np.searchsorted(cumulative_pi[h, s], u[h, 0] * cumulative_pi[h, s, -1], side="right"))
                states[h], actions[h] = s, a
                s = min(int(np.searchsorted(self.cumulative[h, s, a], u[h, 1], side="right")), S - 1)
            self.total += equations.occupancy(self.p, self.pi, self.problem.initial)
            self.regret[k - 1] = np.maximum(self.total - k * self.d_expert, 0).sum()
            inverse = 1 / np.maximum(self.n, 1)
            p_bar = self.counts * inverse[..., None]
            d = equations.occupancy(p_bar, self.pi, self.starts / max(self.starts.sum(), 1))
            base = self.c - self.b * np.sqrt(inverse)
            after = np.zeros(S)
            for h in reversed(range(H)):
                Q[h] = np.maximum(base[h] + p_bar[h] @ after, 0)
                after = (Q[h] * self.pi[h]).sum(-1)
            self.logits -= self.t_pi * Q
            self.logits -= self.logits.max(-1, keepdims=True)
            self.pi = np.exp(self.logits)
            self.pi /= self.pi.sum(-1, keepdims=True)
            self.c = np.clip(self.c + self.t_c * (d - self.d_hat), 0, 1)
            steps = np.arange(H)
            self.n[steps, states, actions] += 1
            self.counts[steps[:-1], states[:-1], actions[:-1], states[1:]] += 1
            self.starts[states[0]] += 1


@functools.cache
def _chain_and_expert() -> tuple[mdp.FiniteMDP, np.ndarray]:
    problem = mdp.chain(32, 0.1)
    return problem, mdp.expert_policy(problem)


def _chain(seed: int = 0) -> tuple[mdp.FiniteMDP, mdp.Trajectories]:
    problem, expert = _chain_and_expert()
    return problem, mdp.sample(problem, expert, 100, rng=seeding.generator(seed, "demonstrations"))


def _kernel_rate(problem: mdp.FiniteMDP, demos: mdp.Trajectories, episodes: int, seed: int) -> float:
    """Episodes per second of the compiled learner."""
    learner = TabularOAL(problem, demos, preset="paper", bonus_scale=SCALE, seed=seed)
    start = time.process_time()
    learner.learn(episodes)
    return episodes / (time.process_time() - start)


def kernel_against_numpy(
    *, repeats: int = 5, episodes: int = 50_000, numpy_episodes: int = 300
) -> list[dict[str, Any]]:
    """Episodes per second on the chain (H=32, S=A=2, exact regret on), one seed on one core."""
    problem, demos = _chain()
    _kernel_rate(problem, demos, 10, 0)  # compiles
    ours, theirs = [], []
    for repeat in range(repeats):
        ours.append(_kernel_rate(problem, demos, episodes, repeat))
        plain = VectorisedOAL(problem, demos, settings_for("paper", bonus_scale=SCALE), numpy_episodes, repeat)
        start = time.process_time()
        plain.learn(numpy_episodes)
        theirs.append(numpy_episodes / (time.process_time() - start))
    return [
        {
            "name": "Algorithm 2 on the chain (H=32, S=A=2, exact regret), one core, against vectorised NumPy",
            "unit": "episodes/s",
            "oal": spread(ours),
            "numpy": spread(theirs),
            "ratio": ratios(ours, theirs),
            "aim": 50.0,
            "repeats": repeats,
        }
    ]


def _chain_learner(seed: int) -> TabularOAL:
    problem, demos = _chain(seed)
    return TabularOAL(problem, demos, preset="paper", bonus_scale=SCALE, seed=seed)


def seeds_in_lanes(
    *, repeats: int = 3, seeds: int = 400, alone: int = 40, episodes: int = 10_000
) -> list[dict[str, Any]]:
    """Episodes per second of many seeds of the chain on one thread: in lanes, and one seed after the other.

    The second is how all seeds ran before there were lanes (commit e8886af). Making the learners counts.
    """

    def rate(run: Callable[[], Any], count: int) -> float:
        start = time.process_time()
        run()
        return count * episodes / (time.process_time() - start)

    learn_seeds(_chain_learner, range(2), 10, threads=1)  # compiles
    _chain_learner(0).learn(10)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(rate(lambda: learn_seeds(_chain_learner, range(seeds), episodes, threads=1), seeds))
        theirs.append(rate(lambda: [_chain_learner(seed).learn(episodes).regret for seed in range(alone)], alone))
    return [
        {
            "name": f"{seeds} seeds of the chain in the lanes of one core, against one seed after the other",
            "unit": "episodes/s",
            "oal": spread(ours),
            "one after the other": spread(theirs),
            "ratio": ratios(ours, theirs),
            "aim": 4.0,
            "repeats": repeats,
        }
    ]


def figure_of_exploration(*, repeats: int = 1, seeds: int = 40, **changes: Any) -> list[dict[str, Any]]:
    """Processor seconds of the whole figure of exploration, from a run with a part of its seeds."""
    figure = TABULAR["exploration"]
    settings = figure.settings | {"seeds": seeds} | changes
    whole = figure.settings["seeds"] / seeds
    tables = [Table(name, grid, settings) for name, grid in figure.grids(settings).items()]
    runs = round(whole * sum(table.runs for table in tables))
    learn_seeds(_chain_learner, range(2), 10, threads=1)  # compiles
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        for table in tables:
            table.fill(threads=1)
        seconds.append(whole * (time.process_time() - start))
    return [
        {
            "name": f"the figure of exploration, {runs:,} runs: {whole:g} times the processor seconds of {seeds} seeds,"
            f" as a share of {FOUR_MINUTES:g} s (4 minutes on two cores)",
            "unit": "s",
            "oal": spread(seconds),
            "ratio": ratios(seconds, [FOUR_MINUTES] * repeats),
            "aim": 1.0,
            "smaller_is_better": True,
            "repeats": repeats,
        }
    ]


RLBERRY = """
import sys, time, numpy as np
from rlberry_scool.agents import UCBVIAgent
from rlberry.envs.finite_mdp import FiniteMDP
H, alpha, episodes = 32, 0.1, int(sys.argv[1])
P = np.zeros((2, 2, 2)); P[0, 0] = [1 - alpha, alpha]; P[0, 1, 1] = P[1, :, 1] = 1
R = np.zeros((2, 2)); R[0, 0] = 1
env = FiniteMDP(R, P, initial_state_distribution=0)
agent = UCBVIAgent(env, horizon=H, gamma=1.0, stage_dependent=True, bonus_scale_factor=0.01, reward_free=False)
agent.fit(20)
start = time.process_time(); agent.fit(episodes); print(episodes / (time.process_time() - start))
"""


def kernel_against_rlberry(
    *, repeats: int = 3, episodes: int = 20_000, rlberry_episodes: int = 2_000
) -> list[dict[str, Any]]:
    """UCBVI of rlberry-scool on the same chain: one optimistic backward pass over (h, s, a) for each episode.

    Similar, not equal work: it has a known reward and no cost player, no occupancy pass and no exact regret.
    """
    name = "the same chain against rlberry-scool's UCBVI, which does less (no cost player, no exact regret)"
    try:
        python = install("rlberry")
    except WorkerError as error:
        return [{"name": name, "skipped": str(error)}]
    problem, demos = _chain()
    _kernel_rate(problem, demos, 10, 0)  # compiles
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ours, theirs = [], []
    for repeat in range(repeats):
        ours.append(_kernel_rate(problem, demos, episodes, repeat))
        command = [str(python), "-c", RLBERRY, str(rlberry_episodes)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return [{"name": name, "skipped": f"it does not run here: {reason(done.stderr)}"}]
        theirs.append(float(done.stdout.split()[-1]))
    return [
        {
            "name": name,
            "unit": "episodes/s",
            "oal": spread(ours),
            "rlberry": spread(theirs),
            "ratio": ratios(ours, theirs),
            "repeats": repeats,
        }
    ]


def growing_states(
    *, repeats: int = 3, episodes: int = 3000, sizes: tuple[int, ...] = (100, 1000, 10_000, 100_000)
) -> list[dict[str, Any]]:
    """Time per episode on one garnet of 100 reachable states placed among more and more states."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    visited = {}
    problems = {}
    for size in sizes:
        problem = mdp.garnet(size, 3, 10, branching=3, seed=0, reachable=100, stationary=True)
        demos = mdp.sample(problem, mdp.expert_policy(problem), 20, rng=seeding.generator(0, "demonstrations"))
        problems[size] = problem, demos
    for repeat in range(repeats + 1):
        for size, (problem, demos) in problems.items():
            # Without a policy step the visits, hence the work, are the same whatever S is.
            learner = TabularOAL(problem, demos, regret="none", policy_step_scale=0.0, seed=1)
            learner.learn(2000)
            start = time.process_time()
            learner.learn(episodes)
            if repeat:  # the first round warms up
                times[size].append((time.process_time() - start) / episodes)
            visited[size] = learner.visited
    first = times[sizes[0]]
    return [
        {
            "name": f"time per episode at S={size:,} against S={sizes[0]}, {visited[size]} visited (garnet, H=10, A=3)",
            "unit": "microseconds/episode",
            "oal": spread([1e6 * t for t in times[size]]),
            "ratio": ratios(times[size], first),
            "aim": 2.0,
            "smaller_is_better": True,
            "repeats": repeats,
        }
        for size in sizes[1:]
    ]


# Algorithm 2 reads or writes so many 8-byte numbers of each entry (h, s, a) in an episode. Forwards: the policy, d_hat,
# its sum (twice), 1/n and where the successors stand (two). Backwards: cost, logits and policy (twice each), Q, 1/n,
# 1/sqrt(n), d_hat, the experts' d_hat and the successors' place again. Both ways it reads each successor's place and
# count.
BYTES_PER_ENTRY = 8 * (7 + 13)
BYTES_PER_SUCCESSOR = 2 * 16


def memory_bandwidth(megabytes: int = 256, trials: int = 3) -> float:
    """Bytes per second, read and written, of a copy that no cache holds: the best of a few."""
    source = np.ones(megabytes * 2**20 // 8)
    target = np.empty_like(source)
    seconds = []
    for _ in range(trials + 1):
        start = time.process_time()
        np.copyto(target, source)
        seconds.append(time.process_time() - start)
    return 2 * source.nbytes / min(seconds[1:])


def time_per_entry(*, repeats: int = 3, quick: bool = False) -> list[dict[str, Any]]:
    """Nanoseconds per visited entry (h, s, a) and episode, against what moving its numbers through memory takes."""
    chain, taxi = mdp.chain(32, 0.1), mdp.from_gymnasium("Taxi-v4", 100)
    garnet = mdp.garnet(10_000, 3, 10, branching=3, seed=0, stationary=True)
    garnet_name = "a garnet (H=10, S=10,000, A=3)"
    problems = {
        "the chain (H=32, S=2, A=2)": (chain, 2_000, 5_000),
        "Taxi (H=100, S=500, A=6)": (taxi, 100 if quick else 1_000, 50),
        garnet_name: (garnet, 1_000 if quick else 3_000, 50),
    }
    found = []
    for name, (problem, before, episodes) in problems.items():
        demos = mdp.sample(problem, mdp.expert_policy(problem), 20, rng=seeding.generator(0, "demonstrations"))
        # the policy stays uniform, so that the visits go on spreading
        learner = TabularOAL(problem, demos, regret="none", policy_step_scale=0.0, seed=1)
        learner.learn(before)
        ours, floor = [], []
        for _ in range(repeats):
            start = time.process_time()
            learner.learn(episodes)
            seconds = (time.process_time() - start) / episodes
            entries = learner.visited * problem.shape[2]
            moved = BYTES_PER_ENTRY * entries + BYTES_PER_SUCCESSOR * learner.successors
            ours.append(1e9 * seconds / entries)
            floor.append(1e9 * moved / memory_bandwidth() / entries)
        found.append(
            {
                "name": f"Algorithm 2 on {name}, {entries:,} entries visited: share of the memory bandwidth",
                "unit": "ns/entry",
                "oal": spread(ours),
                "memory": spread(floor),
                "ratio": ratios(floor, ours),
                "repeats": repeats,
                **({"aim": 0.4} if name == garnet_name else {}),
            }
        )
    return found


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    if quick:
        return [
            *kernel_against_numpy(repeats=3, episodes=20_000, numpy_episodes=100),
            *seeds_in_lanes(repeats=2, seeds=40, alone=8, episodes=5_000),
            *figure_of_exploration(seeds=8),
            *growing_states(repeats=2, episodes=1000),
            *time_per_entry(repeats=2, quick=True),
        ]
    return [
        *kernel_against_numpy(),
        *seeds_in_lanes(),
        *figure_of_exploration(),
        *growing_states(),
        *time_per_entry(),
    ]


def rlberry(*, quick: bool = False) -> list[dict[str, Any]]:
    return kernel_against_rlberry(repeats=1 if quick else 3)
