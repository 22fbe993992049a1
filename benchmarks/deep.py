"""Benchmarks of the deep part: the stepping layer against raw Gymnasium, soft actor-critic against its peers.

Every function returns plain dicts. What is compared runs in turn, in one run, repeated; ratios come with their spread.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, install, ratios, spread

# torch first and pinned: the others would otherwise choose a build of their own
PEER_PACKAGES = (("torch==2.13.0",), ("stable-baselines3==2.9.0", "sbx-rl==0.28.0", "gymnasium[mujoco]"))


def _timed_raw(env_id: str, steps: int, actions: np.ndarray) -> float:
    """Steps per second of gymnasium.make(env_id) in a bare loop."""
    import gymnasium as gym

    from oal.seeding import integer

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


def stepping_share(
    env_ids: Sequence[str] = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "InvertedPendulum-v5"),
    *,
    steps: int = 10_000,
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Measure the stepping layer's environment steps per second as a share of raw Gymnasium's (aim: 0.8).

    Both are loops of one thread, so the thread's own clock is used: what else the machine does drops out.
    """
    from oal.envs import ActionCodec, describe, make, uniform_actions

    results = []
    for env_id in env_ids:
        spec = describe(make(env_id))
        encoded = uniform_actions(spec, 256, np.random.default_rng(0))
        actions = np.asarray(ActionCodec(spec).decode(encoded))
        ours, raw = [], []
        for _ in range(repeats):
            raw.append(_timed_raw(env_id, steps, actions))
            ours.append(_timed_oal(env_id, steps, encoded))
        results.append(
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
    return results


def _worker(python: Path, library: str, *, steps: int, skip: int, threads: int, env_id: str) -> float:
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [
        *(str(python), str(Path(__file__).with_name("sac_worker.py")), "--library", library, "--env", env_id),
        *("--steps", str(steps), "--skip", str(skip), "--threads", str(threads)),
    ]
    result = subprocess.run(
        command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"{library} failed: {result.stderr[-2000:]}")
    return float(json.loads(result.stdout.strip().splitlines()[-1])["steps_per_second"])


def sac_against_peers(
    *, env_id: str = "HalfCheetah-v5", steps: int = 4_000, skip: int = 1_500, repeats: int = 3, threads: int = 2
) -> list[dict[str, Any]]:
    """Measure SAC's environment steps per second at one update per step against sbx and Stable-Baselines3.

    256-256, batch 256, the same threads for all. What differs: oal does its updates in blocks of 50 after 50 steps.
    """
    peers_python = install("sb3", PEER_PACKAGES)
    pythons = {"oal": Path(sys.executable), "sbx": peers_python, "sb3": peers_python}
    rates: dict[str, list[float]] = {library: [] for library in pythons}
    for _ in range(repeats):
        for library, python in pythons.items():
            rates[library].append(_worker(python, library, steps=steps, skip=skip, threads=threads, env_id=env_id))
    return [
        {
            "name": f"SAC {env_id}, one update per step, against {name}",
            "unit": "environment steps/s",
            "threads": threads,
            "oal": spread(rates["oal"]),
            peer: spread(rates[peer]),
            "ratio": ratios(rates["oal"], rates[peer]),
            "aim": aim,
            "repeats": repeats,
        }
        for peer, name, aim in (("sbx", "sbx", 1.5), ("sb3", "Stable-Baselines3", 1.5))
    ]


def update_block(*, updates: int = 50, repeats: int = 5) -> list[dict[str, Any]]:
    """Measure one SAC update and its share of the f32 matmul ceiling, both in this process with its threads."""
    import jax

    from oal.offpolicy import SACConfig, Shapes, compile_sac, init_sac

    shapes, config = Shapes("continuous", 17, 6), SACConfig()
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(updates, config.batch_size, 2 * 17 + 6 + 2)).astype(np.float32)
    state, block = init_sac(0, shapes, config), compile_sac(shapes, config)
    state, _ = jax.block_until_ready(block(state, rows, None))
    seconds, ceilings = [], []
    for _ in range(repeats):
        ceilings.append(_matmul_ceiling())
        start = time.perf_counter()
        state, _ = jax.block_until_ready(block(state, rows, None))
        seconds.append((time.perf_counter() - start) / updates)
    work = sac_flops(17, 6, config.hidden, config.batch_size)
    return [
        {
            "name": "SAC update, 256-256, batch 256",
            "unit": "ms",
            "oal": spread([1e3 * value for value in seconds]),
            "gigaflop": work / 1e9,
            "matmul_ceiling_gigaflops": spread([value / 1e9 for value in ceilings]),
            "ratio": spread([work / value / ceiling for value, ceiling in zip(seconds, ceilings, strict=True)]),
            "aim": 0.7,
            "repeats": repeats,
        }
    ]


def sac_flops(observation_size: int, action_size: int, hidden: Sequence[int], batch_size: int) -> float:
    """Floating-point operations of the matrix products of one SAC update.

    A pass forward costs one product per layer; gradients of the weights cost as much again, and gradients of a
    layer's input as much again wherever that input depends on what is differentiated.
    """

    def products(sizes: Sequence[int]) -> list[float]:
        return [2.0 * batch_size * a * b for a, b in itertools.pairwise(sizes)]

    actor = products([observation_size, *hidden, 2 * action_size])
    critic = products([observation_size + action_size, *hidden, 1])
    forward_actor, forward_critic = sum(actor), sum(critic)
    next_value = forward_actor + 2 * forward_critic
    critics = 2 * (2 * forward_critic + sum(critic[1:]))
    policy = 2 * forward_actor + sum(actor[1:]) + 2 * (2 * forward_critic)
    return next_value + critics + policy


def _matmul_ceiling(size: int = 1024, products: int = 4) -> float:
    """Return floating-point operations per second of large f32 products in JAX."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((size, size), jnp.float32)

    @jax.jit
    def chain(x: jax.Array) -> jax.Array:
        for _ in range(products):
            x = x @ a * (1.0 / size)
        return x

    jax.block_until_ready(chain(a))
    start = time.perf_counter()
    jax.block_until_ready(chain(a))
    return 2.0 * products * size**3 / (time.perf_counter() - start)


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    """Run all deep benchmarks; `quick` takes fewer and shorter repetitions."""
    repeats = 2 if quick else 5
    return [
        *stepping_share(steps=3_000 if quick else 10_000, repeats=repeats),
        *update_block(repeats=repeats),
        *sac_against_peers(steps=2_000 if quick else 3_500, skip=800 if quick else 1_000, repeats=1 if quick else 3),
    ]
