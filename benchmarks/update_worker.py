"""Time one update of SAC, of MDPO and of the paper's MDPO as shares of the f32 matmul ceiling; print a line of JSON.

Run by benchmarks/deep.py, once for each number of threads: the ceiling and the updates share a process and its threads.
"""

import argparse
import inspect
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from common import memory_megabytes

SIZES = (17, 6)
"""Of HalfCheetah's observations and actions."""
BATCH_SIZE = 256
SEEDS = 4
TRIALS = 3
"""Ceiling and updates are each the best of so many samples of about equal length: noise weighs on both alike."""


def matmul_ceiling(size: int = 1024, products: int = 24, trials: int = TRIALS) -> float:
    """Return floating-point operations per second of large f32 products in JAX: the best of a few trials."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((size, size), jnp.float32)

    @jax.jit
    def chain(x: jax.Array) -> jax.Array:
        for _ in range(products):
            x = x @ a * (1.0 / size)
        return x

    jax.block_until_ready(chain(a))
    seconds = []
    for _ in range(trials):
        start = time.perf_counter()
        jax.block_until_ready(chain(a))
        seconds.append(time.perf_counter() - start)
    return 2.0 * products * size**3 / min(seconds)


def seeds_together(
    init: Callable[[int], Any], compiled: Callable[..., Any], given: tuple[Any, ...], *, repeats: int
) -> dict[str, list[float]]:
    """Time a block of updates of several seeds, one after the other and as one vectorised program."""
    import jax
    import jax.numpy as jnp

    from oal.base import runtime

    states = [init(seed) for seed in range(SEEDS)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together = jax.vmap(inspect.unwrap(compiled), in_axes=(0, 0, None, None, None))
    vectorised = jax.jit(together, donate_argnums=(0, 1), compiler_options=runtime.compiler_options())
    *stacked, _ = jax.block_until_ready(vectorised(*stacked, *given))
    seconds: dict[str, list[float]] = {"one after the other": [], "vectorised": []}
    for _ in range(repeats):
        start = time.perf_counter()
        states = [jax.block_until_ready(compiled(*state, *given))[:2] for state in states]
        seconds["one after the other"].append(time.perf_counter() - start)
        start = time.perf_counter()
        *stacked, _ = jax.block_until_ready(vectorised(*stacked, *given))
        seconds["vectorised"].append(time.perf_counter() - start)
    return seconds


def players() -> dict[str, tuple[Any, ...]]:
    """Return each player's (state, key) from a seed, compiled block, work of an update, and what a block of so many
    updates is given besides.

    The default preset's MDPO learns with clones as its prior and with the expert's rows, the other two without.
    """
    import flops
    import numpy as np

    from oal.deep.costs import cost_player
    from oal.deep.costs.network import NetworkConfig
    from oal.deep.offpolicy import OffPolicy, OffPolicyConfig, compile_block
    from oal.deep.players import ChargeBatch, Shapes, recorded_cost
    from oal.deep.presets import policy_player, preset
    from oal.deep.replay import Pairs
    from oal.deep.sac import SAC, SACConfig

    shapes = Shapes("continuous", *SIZES)
    rng = np.random.default_rng(0)
    observation, action = (rng.normal(size=(1000, size)).astype(np.float32) for size in SIZES)
    pairs = Pairs(observation, action, np.ones(1000, np.float32))

    def started_and_compiled(player: OffPolicy, charge: ChargeBatch) -> tuple[Any, ...]:
        block = compile_block(type(player).update, shapes, player.config, draws=player.draws, charge=charge)
        return lambda seed: player.init(seed, shapes), block

    def mdpo(name: str) -> tuple[Any, ...]:
        settings = {"policy.hidden": (256, 256), "policy.batch_size": BATCH_SIZE}
        learner = preset("mdpo", "neural", name, settings=settings)
        config, cost = learner.policy_config, learner.cost_config
        assert isinstance(config, OffPolicyConfig)
        assert isinstance(cost, NetworkConfig)
        charge = cost_player(cost).sized(*SIZES, config.gamma)
        sizes = (*SIZES, config.hidden, config.batch_size)
        if name == "paper":
            work, beside = flops.mdpo(*sizes, cost.hidden), {}
        else:
            assert learner.replay_config is not None
            experts = round(learner.replay_config.expert_fraction * config.batch_size)
            n_steps = learner.replay_config.n_steps
            work = flops.mirror(*sizes, cost.hidden, experts=experts, n_steps=n_steps)
            beside = {"columns": 4 * SIZES[1], "experts": experts, "n_steps": n_steps}
        return (
            *started_and_compiled(policy_player("mdpo", name)(config), charge),
            work,
            partial(given, charge.init(0, pairs).view, **beside),
        )

    sac = SACConfig(batch_size=BATCH_SIZE)
    work_of_sac = flops.sac(*SIZES, sac.hidden, sac.batch_size)
    return {
        "SAC": (*started_and_compiled(SAC(sac), recorded_cost), work_of_sac, partial(given, None)),
        "MDPO": mdpo("default"),
        "MDPO with the paper's settings": mdpo("paper"),
    }


def given(view: Any, updates: int, *, columns: int = 0, experts: int = 0, n_steps: int = 1) -> tuple[Any, ...]:
    """Return made-up rows of a replay memory, a batch for each update with a prior's columns beside it, the costs, the
    expert's next actions, and the steps of the targets."""
    import numpy as np

    from oal.deep.replay import Path

    rng = np.random.default_rng(1)
    width = 2 * SIZES[0] + SIZES[1] + 2
    rows = rng.normal(size=(updates, BATCH_SIZE, width + columns)).astype(np.float32)
    following = rng.normal(size=(updates, experts, SIZES[1])).astype(np.float32) if experts else None
    if n_steps == 1:
        return rows, view, following
    steps = rng.normal(size=(updates, BATCH_SIZE, n_steps, sum(SIZES) + 1)).astype(np.float32)
    there = np.ones((updates, BATCH_SIZE, n_steps), bool)
    return rows, view, following, Path(steps, there, np.ones(there.shape[:2], np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    from oal.base import runtime

    runtime.set_threads(options.threads)
    runtime.keep_compiled_programs()
    import jax

    games = players()
    drawn = {name: given(options.updates) for name, (*_, given) in games.items()}
    states = {
        name: jax.block_until_ready(block(*init(0), *drawn[name]))[:2] for name, (init, block, *_) in games.items()
    }
    measured: dict[str, dict[str, list[float]]] = {
        name: {"milliseconds": [], "ceiling": [], "share": []} for name in games
    }
    for _ in range(options.repeats):
        for name, (_, block, work, _) in games.items():
            ceiling, trials = matmul_ceiling(), []
            for _ in range(TRIALS):
                start = time.perf_counter()
                *states[name], _ = jax.block_until_ready(block(*states[name], *drawn[name]))
                trials.append((time.perf_counter() - start) / options.updates)
            seconds = min(trials)
            measured[name]["milliseconds"].append(1e3 * seconds)
            measured[name]["ceiling"].append(ceiling / 1e9)
            measured[name]["share"].append(work / seconds / ceiling)
    init, block, *_ = games["MDPO"]
    together = seeds_together(init, block, drawn["MDPO"], repeats=options.repeats)
    updates = {name: {**values, "gigaflop": games[name][2] / 1e9} for name, values in measured.items()}
    print(json.dumps({"updates": updates, "seeds": together, "peak_memory_megabytes": memory_megabytes("VmHWM")}))


if __name__ == "__main__":
    main()
