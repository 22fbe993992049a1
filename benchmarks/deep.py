"""Benchmarks of the deep part: stepping, updates against the matmul ceiling, learners against their peers, memory.

Every part returns plain dicts. What is compared runs in turn, in one run, repeated; ratios come with their spread.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import PEERS, ROOT, WorkerError, against, install, ratios, spread, work

THREADS = 2
DEMONSTRATIONS = 10
OURS = Path(sys.executable)
UPDATE_AIMS = {1: 0.8, 2: 0.7}
REPLAY_BYTES = 4e9
"""What a replay of a million Humanoid-v5 transitions may take."""


def _timed_raw(env_id: str, steps: int, actions: np.ndarray) -> float:
    """Steps per second of gymnasium.make(env_id) in a bare loop."""
    import gymnasium as gym

    from oal.base.seeding import integer

    env = gym.make(env_id)
    env.reset(seed=integer(0, "env", 0, 0))  # as `Envs` below: both walk through the same episodes
    start = time.thread_time()
    for step in range(steps):
        _, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
        if terminated or truncated:
            env.reset()
    rate = steps / (time.thread_time() - start)
    env.close()
    return rate


def _timed_oal(env_id: str, steps: int, encoded: np.ndarray) -> float:
    """Steps per second of oal's stepping layer: scaled actions, float32, final observations, costs."""
    from oal.envs import Envs

    stepper = Envs(env_id)
    batches = [action[None] for action in encoded]
    start = time.thread_time()
    for step in range(steps):
        stepper.step(batches[step % len(batches)])
    rate = steps / (time.thread_time() - start)
    stepper.close()
    return rate


def stepping(
    *,
    quick: bool = False,
    env_ids: Sequence[str] = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "InvertedPendulum-v5"),
) -> list[dict[str, Any]]:
    """Measure the stepping layer's environment steps per second as a share of raw Gymnasium's (aim: 0.8).

    Both are loops of one thread, so the thread's own clock is used: what else the machine does drops out. Many short
    turns rather than a few long ones: the processor's own speed changes within seconds.
    """
    from oal.envs import ActionCodec, describe, make, uniform_actions

    steps, repeats = (2_000, 3) if quick else (2_000, 25)
    entries = []
    for env_id in env_ids:
        spec = describe(make(env_id))
        encoded = uniform_actions(spec, 256, np.random.default_rng(0))
        actions = np.asarray(ActionCodec(spec).decode(encoded))
        ours, raw = [], []
        for _ in range(repeats):
            raw.append(_timed_raw(env_id, steps, actions))
            ours.append(_timed_oal(env_id, steps, encoded))
        entries.append(
            {
                "name": f"stepping {env_id}",
                "unit": "environment steps/s",
                "oal": spread(ours),
                "gymnasium": spread(raw),
                "ratio": ratios(ours, raw),
                "aim": 0.8,
                "repeats": repeats,
            }
        )
    return entries


def update(*, quick: bool = False) -> list[dict[str, Any]]:
    """Measure one update of SAC and of MDPO (OAL-neural's, costs computed inside) as shares of the matmul ceiling.

    Each number of threads has a process of its own, which measures the ceiling too.
    """
    repeats, updates = (1, 25) if quick else (9, 50)
    entries = []
    for threads, aim in UPDATE_AIMS.items():
        result = work(OURS, "update_worker.py", threads=threads, repeats=repeats, updates=updates)
        for name, values in result["updates"].items():
            entries.append(
                {
                    "name": f"{name} update, 256-256, batch 256, {threads} thread{'s' * (threads > 1)}: share of the "
                    "f32 matmul ceiling",
                    "unit": "ms (ceiling: GFLOP/s)",
                    "threads": threads,
                    "oal": spread(values["milliseconds"]),
                    "ceiling": spread(values["ceiling"]),
                    "gigaflop": values["gigaflop"],
                    "ratio": spread(values["share"]),
                    "aim": aim,
                    "repeats": repeats,
                    "peak_memory_megabytes": {"oal": round(result["peak_memory_megabytes"])},
                }
            )
        rates = {name: [1.0 / s for s in seconds] for name, seconds in result["seeds"].items()}
        entries.append(
            {
                "name": f"blocks of MDPO updates of four seeds as one vectorised program against one after the other, "
                f"{threads} thread{'s' * (threads > 1)}",
                "unit": "times all four seeds/s",
                "threads": threads,
                "vectorised": spread(rates["vectorised"]),
                "one after the other": spread(rates["one after the other"]),
                "ratio": ratios(rates["vectorised"], rates["one after the other"]),
                "repeats": repeats,
            }
        )
    return entries


Worker = Callable[[], dict[str, Any]]


def in_turn(
    workers: Mapping[str, Worker], peers: Collection[str], repeats: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Run workers in turn, `repeats` times; return what each measured, and why a peer was skipped.

    A peer that fails is left out from then on; a failure of one of oal's own workers is an error.
    """
    measured: dict[str, dict[str, list[float]]] = {name: {"rate": [], "memory": []} for name in workers}
    skipped: dict[str, str] = {}
    for _ in range(repeats):
        for name, worker in workers.items():
            if name in skipped:
                continue
            try:
                result = worker()
            except WorkerError as error:
                if name not in peers:
                    raise
                skipped[name] = str(error)
                continue
            measured[name]["rate"].append(result["steps_per_second"])
            measured[name]["memory"].append(result["peak_memory_megabytes"])
    return measured, skipped


def compared(
    workers: Mapping[str, Worker], comparisons: Sequence[tuple[str, str, Mapping[str, Any]]], repeats: int
) -> list[dict[str, Any]]:
    """Compare workers of oal with peers': each comparison names both, and says what its entry says."""
    measured, skipped = in_turn(workers, {peer for _, peer, _ in comparisons}, repeats)
    return [
        {"name": about["name"], "skipped": skipped[peer]}
        if peer in skipped
        else against(
            {"oal": measured[ours]["rate"], peer: measured[peer]["rate"]},
            {"oal": measured[ours]["memory"], peer: measured[peer]["memory"]},
            peer,
            **about,
        )
        for ours, peer, about in comparisons
    ]


def _peer(name: str, script: str, **options: Any) -> Worker:
    """Return the worker of a peer, installed when it is first run."""
    return lambda: work(install(name), script, **options)


def sac(*, quick: bool = False, env_id: str = "HalfCheetah-v5") -> list[dict[str, Any]]:
    """Measure SAC's environment steps per second at one update per step against sbx, Stable-Baselines3 and tianshou.

    256-256, batch 256, the same threads for all.
    """
    timed: dict[str, Any] = {
        "env": env_id,
        "threads": THREADS,
        "steps": 850 if quick else 3_500,
        "skip": 600 if quick else 1_000,
    }
    workers: dict[str, Worker] = {
        "oal": lambda: work(OURS, "sac_worker.py", library="oal", **timed),
        "sbx": _peer("sb3", "sac_worker.py", library="sbx", **timed),
        "sb3": _peer("sb3", "sac_worker.py", library="sb3", **timed),
        "tianshou": _peer("tianshou", "sac_worker.py", library="tianshou", **timed),
    }
    names = {"sbx": "sbx", "sb3": "Stable-Baselines3", "tianshou": "tianshou"}
    comparisons = [
        (
            "oal",
            peer,
            {
                "name": f"SAC {env_id}, one update per step, against {name}",
                "threads": THREADS,
                "aim": 1.5,
                "differs": "oal does 50 updates after every 50 steps, while the next 50 are simulated",
                "peer_packages": PEERS["tianshou" if peer == "tianshou" else "sb3"][-1],
            },
        )
        for peer, name in names.items()
    ]
    return compared(workers, comparisons, 1 if quick else 3)


def exported_demos(env_id: str, trajectories: int = DEMONSTRATIONS) -> Path:
    """Write the shipped demonstrations in imitation's format, for both sides to read; return the file."""
    from oal import demos

    path = ROOT / ".bench" / "demos" / f"{env_id}-{trajectories}.npz"
    demos.save(demos.load(env_id)[:trajectories], path, format="imitation")
    return path


def gail(*, quick: bool = False, env_id: str = "HalfCheetah-v5") -> list[dict[str, Any]]:
    """Measure OAL-neural with off-policy MDPO at one update per step against `imitation`'s GAIL + SAC and sbx's SAC.

    By the default preset and by the paper's, whose networks have no layer norm, as those of the peers.
    """
    timed: dict[str, Any] = {
        "env": env_id,
        "threads": THREADS,
        "steps": 850 if quick else 3_500,
        "skip": 600 if quick else 1_000,
    }
    learning = {"player": "off", "demos": exported_demos(env_id), **timed}
    workers: dict[str, Worker] = {
        "oal": lambda: work(OURS, "imitation_worker.py", library="oal", **learning),
        "oal, paper": lambda: work(OURS, "imitation_worker.py", library="oal", preset="paper", **learning),
        "imitation": _peer("imitation", "imitation_worker.py", library="imitation", **learning),
        "sbx": _peer("sb3", "sac_worker.py", library="sbx", **timed),
    }
    players = {
        "oal": ("OAL-neural with MDPO", "MDPO with layer norm, and five clones as its prior, asked at every step"),
        "oal, paper": ("OAL-neural with the paper's MDPO", "the paper's MDPO"),
    }
    comparisons = []
    for ours, (name, player) in players.items():
        name = f"{name}, {env_id}, one update per step, against"
        comparisons += [
            (
                ours,
                "imitation",
                {
                    "name": f"{name} imitation's GAIL + SAC",
                    "threads": THREADS,
                    "aim": 2.0,
                    "differs": f"oal: {player}, costs computed when sampled, a Lipschitz penalty, blocks of 50 steps; "
                    "imitation: SAC, rewards as they were when collected, no penalty, environment version v4. Both: "
                    "256-256, batch 256, cost network 100-100, 10 minibatches of 100 + 100 pairs every 100 steps",
                    "peer_packages": PEERS["imitation"][-1],
                },
            ),
            (
                ours,
                "sbx",
                {
                    "name": f"{name} sbx's SAC",
                    "threads": THREADS,
                    "aim": 1.5,
                    "differs": f"oal: {player}; sbx learns no cost: it has the environment's own reward",
                    "peer_packages": PEERS["sb3"][-1],
                },
            ),
        ]
    return compared(workers, comparisons, 1 if quick else 3)


def onpolicy(*, quick: bool = False, env_id: str = "HalfCheetah-v5") -> list[dict[str, Any]]:
    """Measure OAL-neural with TRPO against `imitation`'s GAIL + PPO, both with 8 environments in one process."""
    learning: dict[str, Any] = {
        "env": env_id,
        "player": "on",
        "demos": exported_demos(env_id),
        "threads": THREADS,
        "steps": 12_000 if quick else 60_000,
        "skip": 4_096,
    }
    workers: dict[str, Worker] = {
        "oal": lambda: work(OURS, "imitation_worker.py", library="oal", **learning),
        "imitation": _peer("imitation", "imitation_worker.py", library="imitation", **learning),
    }
    about = {
        "name": f"OAL-neural with TRPO, {env_id}, 8 environments, against imitation's GAIL + PPO",
        "threads": THREADS,
        "aim": 2.0,
        "differs": "oal: TRPO (conjugate gradients and line search on the whole batch), the value function alone "
        "fitted by minibatches, a Lipschitz penalty; imitation: PPO, policy and value by minibatches, no penalty, "
        "environment version v4. Both: 64-64, 2,048 steps per update, 10 epochs of minibatches of 128, cost "
        "network 100-100, 10 minibatches of 100 + 100 pairs per update",
        "peer_packages": PEERS["imitation"][-1],
    }
    return compared(workers, [("oal", "imitation", about)], 1 if quick else 3)


def memory(*, quick: bool = False, env_id: str = "Humanoid-v5") -> list[dict[str, Any]]:
    """Measure a full replay memory of Humanoid-v5 against 4 GB per million, and what saving and loading add to it."""
    transitions = 100_000 if quick else 1_000_000
    result = work(OURS, "memory_worker.py", threads=1, env=env_id, transitions=transitions)
    held = result["resident_megabytes"]
    room = REPLAY_BYTES / 2**20 * transitions / 1_000_000

    def entry(name: str, megabytes: float, whole: float, **about: Any) -> dict[str, Any]:
        return {
            "name": f"{name}, {transitions:,} transitions of {env_id}",
            "unit": "MB",
            "oal": spread([megabytes]),
            "ratio": spread([megabytes / whole]),
            "smaller_is_better": True,
            "repeats": 1,
            "replay_bytes": result["replay_bytes"],
            "checkpoint_bytes": result["checkpoint_bytes"],
            "peak_memory_megabytes": {"oal": round(result["peak_memory_megabytes"])},
            **about,
        }

    return [
        entry("replay memory as a share of 4 GB per million", held, room, aim=1.0),
        entry(
            "more memory while a checkpoint is written, as a share of the replay",
            result["more_while_saving_megabytes"],
            held,
            aim=0.05,
        ),
        entry(
            "more memory while a checkpoint is read back, as a share of the replay",
            result["more_while_loading_megabytes"],
            held,
        ),
    ]
