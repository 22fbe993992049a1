"""Golden traces: what the learners compute, number by number, so that a change of code can prove it changes nothing.

    python tests/golden_traces.py --write [name ...]    compute traces and write them to tests/golden
    python tests/golden_traces.py --check [name ...]    compute traces and compare them with what is written there
    python tests/golden_traces.py --list

A trace is a dictionary of arrays in the order in which they are computed. Arrays called `blocks/...` have one row per
block of learning, and are compared block by block, so that the first difference is where the runs part.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as the fast tests do, see conftest.py; JAX reads these when it is imported
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hashlib
import platform
from importlib import metadata

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import oal

Trace = dict[str, np.ndarray]

FOLDER = Path(__file__).parent / "golden"
BLOCKS = "blocks/"
CONTINUOUS, DISCRETE = "InvertedPendulum-v5", "CartPole-v1"
POLICIES, COSTS = ("mdpo", "sac", "mdpo-on", "trpo"), ("neural", "linear", "gail")


# ----------------------------------------------------------------------------------------------------------------
# Everything that knows more of the package than `import oal` promises. Where modules move, only this changes.

NAMES = (  # how a checkpoint's arrays begin -> how a trace calls them
    ("policy/state/networks/", ""),
    ("policy/state/", ""),
    ("policy/", ""),
    ("cost/view/", "cost/"),
    ("cost/", "cost/"),
    ("regret/", "regret/"),
)
INNER = ("optimiser", "key")
"""Parts of a player's state that are left out: what they hold shows in the weights of the next update."""


def learned_arrays(checkpoint: str | os.PathLike[str]) -> Trace:
    """Read the players' networks and the regret meter from a learner's checkpoint, under the names of the traces."""
    found: Trace = {}
    for name, array in load_file(checkpoint).items():
        if any(part in INNER or part.endswith("_optimiser") for part in name.split("/")):
            continue
        for prefix, stands_for in NAMES:
            if name.startswith(prefix):
                found[stands_for + name.removeprefix(prefix)] = array
                break
    return dict(sorted(found.items()))


def has_cost(learner: "oal.OAL") -> bool:
    """Whether there is a cost player."""
    return learner.config.cost is not None


def actor_arrays(policy: "oal.Policy") -> Trace:
    """Return the weights that a policy acts with."""
    return {
        f"actor/{i}/{part}": np.array(getattr(layer, part))
        for i, layer in enumerate(policy.actor.layers)
        for part in layer._fields
    }


def policy_of(env_id: str, weights: Sequence[tuple[np.ndarray, np.ndarray]], activation: Any) -> "oal.Policy":
    """Make a policy of given weights."""
    from oal.deep.nets import Layer

    return oal.Policy(spec_of(env_id), tuple(Layer(*layer) for layer in weights), activation=activation, seed=5)


def spec_of(env_id: str) -> Any:
    """Describe an environment."""
    env = oal.envs.make(env_id)
    try:
        return oal.envs.describe(env)
    finally:
        env.close()


def bc_config(**settings: Any) -> Any:
    """Settings of `oal.BC`."""
    from oal.deep.bc import BCConfig

    return BCConfig(**settings)


def expert_arrays(env_id: str, folder: Path) -> Trace:
    """Train an expert for a moment; return its records and everything that was learned."""
    from oal.lab import run
    from oal.lab.expert import expert_config

    config = expert_config(
        env_id,
        300,
        seed=3,
        settings={
            "policy.hidden": [8, 8],
            "policy.batch_size": 16,
            "replay.warmup_steps": 60,
            "replay.block": 60,
            "policy.learning_rate": 3e-4,
            "policy.target_rate": 0.005,
        },
        evaluate_every=120,
        evaluation_episodes=2,
        log_every=60,
        checkpoint_every=120,
    )
    going = run.start(config, folder / "run")
    records: list[Mapping[str, Any]] = []
    try:
        going.go(sinks=[records.append])
    finally:
        going.learner.close()
    return {
        **stacked([numbers_of({k: v for k, v in record.items() if k != "seconds"}, "record") for record in records]),
        **prefixed("policy", load_file(folder / "run" / "policy.safetensors")),
        **prefixed("best", load_file(folder / "run" / "best.safetensors")),
        **learned_arrays(folder / "run" / "checkpoint.safetensors"),
    }


def regret_meter(demos: Any, spec: Any, environments: int) -> Any:
    """Make the meter of the online regret."""
    from oal.deep.al_regret import RegretMeter

    return RegretMeter(demos, spec=spec, environments=environments)


def sampler(env_id: str, horizon: int) -> Any:
    """Make an environment that tabular learners may only sample."""
    return oal.tabular.Sampler(env_id, horizon, max_episode_steps=horizon + 1)


def generator(seed: int, purpose: str, *rest: int) -> np.random.Generator:
    """The package's own stream for a purpose, which the command line's demonstrations come from."""
    from oal.base import seeding

    return seeding.generator(seed, purpose, *rest)


# ----------------------------------------------------------------------------------------------------------------
# Arrays


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> Trace:
    return {f"{prefix}/{name}": arrays[name] for name in arrays}


def stacked(blocks: Sequence[Mapping[str, np.ndarray]]) -> Trace:
    """Make `blocks/...` of one dictionary per block; a number that a block lacks is NaN there."""
    names = dict.fromkeys(name for block in blocks for name in block)
    rows = {}
    for name in names:
        like = next(block[name] for block in blocks if name in block)
        missing = np.full(like.shape, np.nan, like.dtype) if like.dtype.kind == "f" else np.zeros_like(like)
        rows[BLOCKS + name] = np.stack([block.get(name, missing) for block in blocks])
    return rows


def numbers_of(value: Any, name: str) -> Trace:
    """Flatten nested results to arrays: numbers as float64, text as its bytes, None as NaN."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: array for part in value for key, array in numbers_of(value[part], f"{name}/{part}").items()}
    if isinstance(value, str):
        return {name: np.frombuffer(value.encode(), np.uint8)}
    if isinstance(value, (list, tuple)) and any(isinstance(part, (str, list, tuple, dict)) for part in value):
        return {key: array for i, part in enumerate(value) for key, array in numbers_of(part, f"{name}/{i}").items()}
    return {name: np.asarray(value, np.float64)}


@lru_cache
def demos_of(env_id: str) -> Any:
    """Three short demonstrations cut out of those that are shipped; one ends in a termination, so absorbing costs do.

    The environment never ends that episode there: what matters is that both players' absorbing masses are above 0.
    """
    from oal.demos import Demos, Trajectory

    def cut(trajectory: Any, start: int, steps: int, **ends: bool) -> Any:
        stop = start + steps
        observed, rewards = trajectory.observations[start : stop + 1], trajectory.rewards[start:stop]
        return Trajectory(observed, trajectory.actions[start:stop], rewards, **ends)

    shipped = oal.demos.load(env_id)
    parts = (cut(shipped[0], 0, 60, truncated=True), cut(shipped[1], 100, 60, truncated=True))
    return Demos((*parts, cut(shipped[2], 0, 40, terminated=True)), env_id=env_id)


@lru_cache
def pairs_of(env_id: str) -> tuple[np.ndarray, np.ndarray]:
    """Eight observations around the demonstrated ones, and actions for them in the environment's units."""
    demos, rng = demos_of(env_id), np.random.default_rng(7)
    observations = demos.observations[::20][:8] + rng.normal(0.0, 0.3, (8, demos.observations.shape[1]))
    actions = rng.integers(0, 2, 8) if env_id == DISCRETE else rng.uniform(-3.0, 3.0, (8, 1)).astype(np.float32)
    return observations.astype(np.float32), actions


# ----------------------------------------------------------------------------------------------------------------
# Learners

SMALL_OFF = {
    "policy.hidden": [8],
    "policy.batch_size": 16,
    "replay.block": 20,
    "replay.warmup_steps": 40,
    "replay.capacity": 100,  # the run is longer: the replay overwrites its oldest steps
    "replay.updates_per_step": 0.5,
}
SMALL_MDPO = {"policy.policy_steps": 4}
SMALL_ON = {"policy.hidden": [8], "policy.batch_steps": 30, "policy.critic_epochs": 2, "policy.critic_minibatch": 10}
SMALL_COST: dict[str, Any] = {"cost.update_every": 20, "cost.window": 60, "cost.minibatches": 3, "cost.batch_size": 16}
CLONED = {"bc.epochs": 4, "bc.batch_size": 32, "bc.members": 3}


def small(policy: str, cost: str | None, env_id: str, preset: str) -> dict[str, Any]:
    """Settings with which both players take several updates in 140 steps, and compiling takes most of the time.

    Under the default preset the cost player's settings are the same for all policies, so that they share its programs.
    """
    settings: dict[str, Any] = {} if cost is None else dict(SMALL_COST)
    if cost in ("neural", "gail"):
        # large steps: a cost that tells nothing apart yet is multiplied by 0
        settings |= {"cost.hidden": [8], "cost.learning_rate": 0.03, "cost.minibatches": 12}
        if preset == "default":
            settings["cost.lipschitz"] = 0.5
        elif cost == "neural" and policy in ("mdpo-on", "trpo"):
            settings["cost.bregman"] = 1.0  # the paper's 100 holds a cost for longer than these few blocks
    if preset == "default" and cost == "linear":
        settings["cost.step"] = 0.5
    if preset == "default" and cost is not None:
        settings["cost.window"] = None if env_id == CONTINUOUS else 60
    settings |= SMALL_OFF if policy in ("mdpo", "sac") else SMALL_ON
    if policy == "mdpo":
        settings |= SMALL_MDPO
    if preset == "default":
        settings |= CLONED
    return settings


def learner(
    policy: str,
    cost: str | None,
    env_id: str,
    preset: str = "default",
    changes: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Any:
    """Make a small learner."""
    options: dict[str, Any] = {"preset": preset, "seed": 11, **rest}
    options["settings"] = {**small(policy, cost, env_id, preset), **(changes or {})}
    if cost == "gail":
        return oal.GAIL(env_id, demos_of(env_id), policy, **options)
    return oal.OAL(env_id, demos_of(env_id), policy, cost, **options)


def learning(made: Callable[[], Any], env_id: str, steps: int = 140) -> Trace:
    """Let a learner learn: after each block its record, actor and costs; in the end all networks and its actions."""
    learns, (observations, actions) = made(), pairs_of(env_id)
    blocks: list[Trace] = []

    def look(now: Any) -> None:
        record = {name: value for name, value in now.record().items() if name != "seconds"}
        block = {name: np.array(np.nan if value is None else value, np.float64) for name, value in record.items()}
        block |= actor_arrays(now.policy())
        if has_cost(now):
            cost = oal.LearnedCost.of(now)
            block |= {"costs": cost(observations, actions), "absorbing": np.array(cost.absorbing)}
        blocks.append(block)

    with tempfile.TemporaryDirectory() as folder:
        try:
            learns.learn(steps, callback=look)
            learns.save(Path(folder) / "checkpoint")
            learned = learned_arrays(Path(folder) / "checkpoint")
            deterministic = learns.predict(observations)[0]
            sampled = learns.predict(observations, deterministic=False)[0]
        finally:
            learns.close()
    check_that_it_learned(learns, blocks)
    return {**stacked(blocks), **prefixed("end", learned), "end/mode": deterministic, "end/sampled": sampled}


def check_that_it_learned(learns: Any, blocks: Sequence[Trace]) -> None:
    """A trace in which nothing happens would be a net with no meshes."""
    first, last = blocks[0], blocks[-1]
    if np.array_equal(first["actor/0/weight"], last["actor/0/weight"]):
        raise AssertionError("the policy never moved")
    if not has_cost(learns):
        return
    if (
        learns.cost_updates < 3
        or not np.ptp(last["costs"]) > 0.01
        or not min(blocks[-2]["evidence"], last["evidence"]) > 0.01
    ):
        raise AssertionError("the cost tells nothing apart")


def products(observation: Any, action: Any) -> Any:
    """Features of a user's: the observation, the action, and the products of both."""
    import jax.numpy as jnp

    return jnp.concatenate([observation, action, observation * action[..., :1]], axis=-1)


def learning_traces() -> Iterator[tuple[str, Callable[[], Trace]]]:
    def add(
        name: str, policy: str, cost: str | None, env_id: str = CONTINUOUS, steps: int = 140, **options: Any
    ) -> tuple[str, Callable[[], Trace]]:
        return f"learn-{name}", partial(learning, partial(learner, policy, cost, env_id, **options), env_id, steps)

    for env_id, word in ((CONTINUOUS, "continuous"), (DISCRETE, "discrete")):
        for policy in POLICIES:
            for cost in COSTS:
                yield add(f"{policy}-{cost}-{word}", policy, cost, env_id)
    for policy in POLICIES:
        for cost in COSTS:
            yield add(f"{policy}-{cost}-paper", policy, cost, preset="paper")
    deep = {"policy.hidden": [8, 6], "cost.hidden": [8, 6]}
    yield add("mdpo-neural-deep", "mdpo", "neural", changes=deep)
    yield add("mdpo-neural-paper-discrete", "mdpo", "neural", DISCRETE, preset="paper")
    for geometry in ("l2", "simplex", "normalised"):
        changes = {"cost.features": "fourier", "cost.fourier_features": 24, "cost.step": 4.0, "cost.geometry": geometry}
        yield add(f"trpo-fourier-{geometry}", "trpo", "linear", changes=changes)
    yield add("trpo-function", "trpo", "linear", DISCRETE, features=products)
    yield add("trpo-neural-bregman", "trpo", "neural", changes={"cost.bregman": 10.0})
    states = {"cost.inputs": "states", "cost.scale": "unit", "cost.absorbing": None, "cost.reading": "softplus"}
    yield add("trpo-gail-states", "trpo", "gail", changes=states)
    plain = {"normalise": False, "policy.prior_weight": 0.0, "policy.standardise_advantages": True}
    yield add("trpo-linear-plain", "trpo", "linear", changes=plain)
    for policy in ("mdpo", "sac"):
        yield add(f"{policy}-neural-scratch", policy, "neural", changes={"bc.epochs": 0})
    free = {"normalise": False, "policy.prior_weight": 0.0, "policy.actor_average": 0.0, "replay.expert_fraction": 0.5}
    yield add("mdpo-linear-free", "mdpo", "linear", changes=free)
    live = {"policy.frozen_critic": False, "policy.layer_norm": True, "policy.flat_start": True}
    live |= {"policy.entropy_weight": 0.05, "bc.epochs": 4, "bc.validation_fraction": 0.0}
    yield add("mdpo-linear-live", "mdpo", "linear", changes=live, preset="paper")
    yield add("mdpo-true-cost", "mdpo", None, changes={"replay.expert_fraction": 0.0})
    yield add("trpo-true-cost", "trpo", None)
    yield add("trpo-linear-environments", "trpo", "linear", environments=2)
    yield add("mdpo-linear-environments", "mdpo", "linear", DISCRETE, environments=2)


# ----------------------------------------------------------------------------------------------------------------
# Cloning, experts, policies


def cloning(env_id: str, settings: Mapping[str, Any], **options: Any) -> Trace:
    config = bc_config(**{"batch_size": 32, **settings})
    clone = oal.BC(env_id, demos_of(env_id), config=config, hidden=(8, 8), seed=2, **options).learn()
    observations, _ = pairs_of(env_id)
    trace = {"loss": clone.history.loss}
    if clone.history.validation_loss is not None:
        trace["validation_loss"] = clone.history.validation_loss
    return {**trace, **actor_arrays(clone.policy()), "mode": clone.predict(observations)[0]}


def cloning_traces() -> Iterator[tuple[str, Callable[[], Trace]]]:
    plain = {"epochs": 15, "learning_rate": 3e-4, "schedule": "cooldown", "average": 0.0}
    yield "bc-plain", partial(cloning, CONTINUOUS, plain, normalise=False)
    yield "bc-continuous", partial(cloning, CONTINUOUS, {"epochs": 15})
    yield "bc-members", partial(cloning, CONTINUOUS, {"updates": 40, "members": 3, "schedule": "constant"})
    yield "bc-discrete", partial(cloning, DISCRETE, {"epochs": 10, "validation_fraction": 0.3})


def expert(env_id: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        return expert_arrays(env_id, Path(folder))


def acting() -> Trace:
    """Every kind of policy, of weights that NumPy draws."""
    trace: Trace = {}
    for env_id in (CONTINUOUS, DISCRETE):
        for activation in ("tanh", "relu"):
            rng = np.random.default_rng(3)
            sizes = (4, 8, 8, 2)
            weights = [
                (rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=m).astype(np.float32))
                for n, m in pairwise(sizes)
            ]
            policy, (observations, _) = policy_of(env_id, weights, activation), pairs_of(env_id)
            name = f"{env_id}/{activation}"
            trace[f"{name}/mode"] = policy.predict(observations)[0]
            trace[f"{name}/one"] = np.asarray(policy.predict(observations[0])[0])
            trace[f"{name}/sampled"] = policy.predict(observations, deterministic=False)[0]
            trace[f"{name}/encoded"] = policy.act(observations)
            trace[f"{name}/encoded-sampled"] = policy.sample(observations)
    return trace


# ----------------------------------------------------------------------------------------------------------------
# Finite MDPs


def tabular(problem: Any, settings: Mapping[str, Any], *, demos: int = 12, episodes: int = 60) -> Trace:
    """Learn in a finite MDP: the regret's curve first, then what came out."""
    rng = generator(4, "demonstrations", demos)
    shown = oal.mdp.sample(problem, oal.mdp.expert_policy(problem), demos, rng=rng)
    learns = oal.TabularOAL(problem, shown, seed=4, **settings).learn(episodes)
    trace = {"regret": learns.regret, "empirical_regret": learns.empirical_regret}
    trace["sizes"] = np.array([learns.visited, learns.successors])
    large = np.prod(problem.shape) > 2_000
    for name in ("policy", "average_policy", "cost"):
        values = getattr(learns, name)
        # of a large table, the states that the expert has seen
        trace[name] = values[np.arange(problem.shape[0]), shown.states[0]] if large else values
    if learns.cost_set.kind != "box":
        trace["weights"] = learns.weights
    if settings.get("decompose"):
        trace |= numbers_of(oal.regret.decompose(learns), "decomposition")
    if settings.get("keep_trajectories"):
        kept = learns.trajectories
        trace |= {"states": kept.states, "actions": kept.actions}
        estimate = oal.regret.estimate(learns.cost_set, kept, shown, resamples=40, rng=np.random.default_rng(1))
        trace |= numbers_of(estimate, "estimate")
    return trace


def _garnet(**options: Any) -> Any:
    return oal.mdp.garnet(6, 2, 4, seed=1, **options)


def tabular_options() -> Trace:
    """Every option by itself, on one stationary problem."""
    paper: dict[str, Any] = {"preset": "paper"}
    quiet = {**paper, "bonus_scale": 0.0}
    steps = {"policy_step_scale": 30.0, "cost_step_scale": 10.0}
    first = np.zeros((4, 6, 2))
    first[:, :3] = 0.5
    features = np.random.default_rng(2).uniform(-1.0, 1.0, (6, 3))
    variants: dict[str, dict[str, Any]] = {
        "paper": paper,
        "paper-bonus": {**paper, "bonus_scale": 0.005},
        "paper-bernstein": {**paper, "bonus_scale": 0.005, "bonus": "bernstein"},
        "paper-delta": {**paper, "bonus_scale": 0.005, "delta": 0.5},
        "paper-anytime": {**quiet, "anytime": True, **steps},
        "paper-anytime-bonus": {**paper, "bonus_scale": 0.005, "anytime": True},
        "paper-pooled": {**quiet, "pooled": True, **steps},
        "paper-pooled-bernstein": {**paper, "bonus_scale": 0.005, "pooled": True, "bonus": "bernstein"},
        "paper-expert-model": {**quiet, "expert_model": True, **steps},
        "paper-bc": {**quiet, "policy_start": "bc", "bc_smoothing": 0.1},
        "paper-bc-hard": {**quiet, "policy_start": "bc", **steps},
        "paper-steps": {**quiet, **steps},
        "paper-initial-known": {**quiet, "initial": "known", **steps},
        "paper-initial-cost": {**quiet, "initial_cost": 0.5, **steps},
        "paper-initial-costs": {**quiet, "initial_cost": first, **steps},
        "default": {},
        "default-planned": {"anytime": False},
        "default-per-step": {"pooled": False},
        "default-no-expert-model": {"expert_model": False},
        "default-uniform": {"policy_start": "uniform"},
        "default-bonus": {"bonus_scale": 0.001},
        "default-bernstein": {"bonus_scale": 0.001, "bonus": "bernstein"},
        "default-decomposed": {"decompose": True, "keep_trajectories": True},
        "known": {"model": "known"},
        "known-paper": {"model": "known", **quiet, **steps},
        "l2": {"cost_set": "l2"},
        "l2-paper": {"cost_set": "l2", **paper, "bonus_scale": 0.005},
        "l2-known": {"cost_set": "l2", "model": "known"},
        "l2-features": {"cost_set": "l2", "features": features, "decompose": True, "keep_trajectories": True},
        "simplex": {"cost_set": "simplex"},
        "simplex-paper": {"cost_set": "simplex", **paper, "bonus_scale": 0.005},
        "simplex-known": {"cost_set": "simplex", "model": "known"},
        "simplex-features": {"cost_set": "simplex", "features": features, "decompose": True, "keep_trajectories": True},
        "simplex-initial": {"cost_set": "simplex", "initial_cost": np.eye(6)[1]},
        "expert-given": {"expert": np.full((4, 6, 2), 0.5)},
    }
    trace: Trace = {}
    for name, settings in variants.items():
        trace |= prefixed(name, tabular(_garnet(stationary=True), settings, episodes=40))
    return trace


def tabular_problems() -> Trace:
    """Families, dynamics that depend on the step, a table so large that it is hashed, and samples alone."""
    problems: dict[str, tuple[Any, dict[str, Any]]] = {
        "chain": (oal.mdp.chain(6, 0.1), {}),
        "chain-paper": (oal.mdp.chain(6, 0.1), {"preset": "paper", "bonus_scale": 0.005}),
        "spawn": (oal.mdp.spawn(10, 3), {}),
        "gridworld": (oal.mdp.gridworld(3), {"cost_set": "l2"}),
        "changing": (_garnet(stationary=False), {}),
        "changing-known": (_garnet(stationary=False), {"model": "known"}),
        "changing-paper": (_garnet(stationary=False), {"preset": "paper", "bonus_scale": 0.005, "bonus": "bernstein"}),
    }
    large = oal.mdp.garnet(20_000, 2, 4, seed=1, stationary=True, reachable=30)
    problems |= {
        "hashed": (large, {}),
        "hashed-per-step": (large, {"pooled": False}),
        "hashed-known": (large, {"model": "known"}),
        "frozen-lake": (oal.mdp.from_gymnasium("FrozenLake-v1", 8), {}),
        "cliff": (oal.mdp.from_gymnasium("CliffWalking-v1", 6), {"cost_set": "simplex"}),
    }
    trace: Trace = {}
    for name, (problem, settings) in problems.items():
        trace |= prefixed(name, tabular(problem, settings, episodes=40))
    problem = oal.mdp.from_gymnasium("FrozenLake-v1", 8)
    shown = oal.mdp.sample(problem, oal.mdp.expert_policy(problem), 12, rng=generator(4, "demonstrations", 12))
    learns = oal.TabularOAL(sampler("FrozenLake-v1", 8), shown, seed=4).learn(30)
    trace |= {"samples/states": learns.trajectories.states, "samples/actions": learns.trajectories.actions}
    trace |= {"samples/policy": learns.policy, "samples/cost": learns.cost}
    estimate = oal.regret.estimate(learns.cost_set, learns.trajectories, shown, rng=np.random.default_rng(1))
    trace |= numbers_of(estimate, "samples/estimate")
    trace["bound"] = oal.regret.bound(problem.shape, 20, 12)
    # many seeds at once, and going on after a file
    seeds = oal.tabular.learn_seeds(lambda seed: oal.TabularOAL(problem, shown, seed=seed), range(3), 20, threads=2)
    trace |= {f"seeds/{i}": curve for i, curve in enumerate(seeds)}
    with tempfile.TemporaryDirectory() as folder:
        oal.TabularOAL(problem, shown, seed=1).learn(20).save(Path(folder) / "learner.npz")
        trace["resumed/regret"] = oal.TabularOAL.load(Path(folder) / "learner.npz", problem).learn(20).regret
    return trace


def solving() -> Trace:
    """The planning that everything tabular stands on, and the algorithms before OAL."""
    problem = _garnet(stationary=False)
    rng = np.random.default_rng(5)
    policy, cost = rng.dirichlet(np.ones(2), (4, 6)), rng.random((4, 6, 2))
    V, Q = oal.mdp.evaluate(problem, policy, cost)
    best, best_V = oal.mdp.optimal_policy(problem, cost)
    trace = {"V": V, "Q": Q, "best": best, "best_V": best_V, "occupancy": oal.mdp.occupancy(problem, policy)}
    shown = oal.mdp.sample(problem, oal.mdp.expert_policy(problem), 12, rng=generator(4, "demonstrations", 12))
    trace |= {"demonstrated/states": shown.states, "demonstrated/actions": shown.actions}
    prior = oal.prior
    model = prior.empirical_mdp([shown], problem)
    exact = oal.mdp.occupancy(problem, policy)
    judged = {"truth": problem, "true_expert": oal.mdp.occupancy(problem, oal.mdp.expert_policy(problem))}
    for name, (cost_set, solve) in {
        "cloning": ("box", prior.cloning),
        "cloning-l2": ("l2", prior.cloning),
        "projection": ("l2", partial(prior.projection, iterations=15)),
        "frank-wolfe": ("l2", partial(prior.frank_wolfe, iterations=15, away_steps=False)),
        "away-steps": ("l2", partial(prior.frank_wolfe, iterations=15)),
        "mwal": ("simplex", partial(prior.mwal, iterations=15)),
        "no-regret": ("box", partial(prior.no_regret_costs, iterations=15)),
        "lp-box": ("box", prior.solve_lp),
        "lp-l2": ("l2", prior.solve_lp),
        "lp-simplex": ("simplex", prior.solve_lp),
    }.items():
        cases = {"known": (problem, shown, {}), "estimated": (model, shown, judged), "exact": (problem, exact, {})}
        for case, (planned_in, imitated, rest) in cases.items():
            found = solve(prior.Game(planned_in, imitated, cost_set, **rest))
            trace[f"{name}/{case}/history"] = found.history
            bounds = (found.gap, found.upper, found.lower, found.mdps_solved, found.iterations)
            trace[f"{name}/{case}/bounds"] = np.array(bounds, np.float64)
            trace[f"{name}/{case}/occupancy"] = found.occupancy(problem)
    for cost_set in ("box", "l2", "simplex"):
        rows = prior.compare(problem, shown, cost_set, episodes=60, iterations=15, seed=4)
        trace |= numbers_of([asdict(row) for row in rows], f"compare/{cost_set}")
    return trace


# ----------------------------------------------------------------------------------------------------------------
# Certificates


def certificate(env_id: str) -> Trace:
    """Certify shortened demonstrations against whole ones, with a learned cost and without, and measure the regret."""
    from oal.demos import Trajectory

    shipped, spec = oal.demos.load(env_id), spec_of(env_id)
    rng = np.random.default_rng(9)
    rollouts = []
    for i, whole in enumerate(shipped[:5]):
        steps = 40 + 20 * i
        observed = whole.observations[: steps + 1] + rng.normal(0.0, 0.05, (steps + 1, spec.observation_size))
        rewards = whole.rewards[:steps]
        ends = {"terminated": i % 2 == 0, "truncated": i % 2 > 0}
        rollouts.append(Trajectory(observed, whole.actions[:steps], rewards, **ends))
    held_out, training = (
        [Trajectory(t.observations[:201], t.actions[:200], t.rewards[:200], truncated=True) for t in some]
        for some in (shipped[5:10], shipped[10:12])
    )
    meter = regret_meter(training, spec, 1)
    codec = oal.envs.ActionCodec(spec)
    trace: Trace = {}
    for i, episode in enumerate(rollouts):
        encoded, last = codec.encode(episode.actions), len(episode) - 1
        for t in range(len(episode)):
            ends = np.array([t == last and episode.terminated]), np.array([t == last and episode.truncated])
            meter.step(episode.observations[t : t + 1], encoded[t : t + 1], *ends, np.ones(1, bool))
        trace[f"regret/{i}"] = np.array([meter.l2, meter.simplex])
    trace |= prefixed("regret", meter.state())
    learns = learner("trpo", "linear", env_id)
    learns.learn(90)
    cost = oal.LearnedCost.of(learns)
    learns.close()
    options: dict[str, Any] = {"spec": spec, "resamples": 100, "seed": 3}
    plain = oal.certify(rollouts, held_out, **options)
    trace |= numbers_of(plain.to_json(), "plain")
    options |= {"training": training, "cost": cost.encoded, "absorbing_cost": cost.absorbing, "random_return": 5.0}
    return trace | numbers_of(oal.certify(rollouts, held_out, **options).to_json(), "learned-cost")


QUICK = (
    "mdpo-neural-continuous",
    "mdpo-linear-discrete",
    "mdpo-linear-environments",
    "mdpo-gail-paper",
    "sac-gail-continuous",
    "sac-neural-discrete",
    "sac-linear-paper",
    "mdpo-on-gail-continuous",
    "mdpo-on-neural-discrete",
    "mdpo-on-neural-paper",
    "trpo-linear-continuous",
    "trpo-gail-discrete",
    "trpo-neural-paper",
)
"""Learners of the fast tests: every player under every preset and kind of action, but not every pair."""

TRACES: dict[str, Callable[[], Trace]] = {
    **dict(learning_traces()),
    **dict(cloning_traces()),
    "expert-continuous": partial(expert, CONTINUOUS),
    "expert-discrete": partial(expert, DISCRETE),
    "policies": acting,
    "tabular-options": tabular_options,
    "tabular-problems": tabular_problems,
    "tabular-prior": solving,
    "certificate-continuous": partial(certificate, CONTINUOUS),
    "certificate-discrete": partial(certificate, DISCRETE),
}


SLOW = tuple(name for name in TRACES if name.startswith("learn-") and name.removeprefix("learn-") not in QUICK)


# ----------------------------------------------------------------------------------------------------------------
# Files, and where traces are computed

PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "jax", "jaxlib", "optax", "gymnasium", "mujoco")


@lru_cache
def surroundings() -> dict[str, str]:
    """Say what decides how numbers are rounded: versions, the processor, and how XLA was told to compile."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    compiling = ("NPROC", "JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS", "JAX_ENABLE_X64")
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "compiling": " ".join(f"{name}={os.environ.get(name, '')}" for name in compiling),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{model} {hashlib.sha256(features.encode()).hexdigest()[:8]}"


def write(name: str, trace: Trace) -> None:
    FOLDER.mkdir(exist_ok=True)
    arrays = {key: np.ascontiguousarray(array).reshape(np.shape(array)) for key, array in trace.items()}
    path = FOLDER / f"{name}.safetensors"
    save_file(arrays, path, {"surroundings": json.dumps(surroundings())})
    path.chmod(0o644)


def read(name: str) -> tuple[Trace, dict[str, str]]:
    """Return a written trace, and where it was computed."""
    path = FOLDER / f"{name}.safetensors"
    with safe_open(path, framework="numpy") as file:
        return load_file(path), json.loads(file.metadata()["surroundings"])


# ----------------------------------------------------------------------------------------------------------------
# Comparing


@dataclass(frozen=True)
class Difference:
    """The first place where two traces part, and how many arrays differ anywhere."""

    name: str
    index: tuple[int, ...]
    expected: Any
    got: Any
    differing: tuple[str, ...]

    def __str__(self) -> str:
        place = f"{self.name}{list(self.index) if self.index else ''}"
        if self.name.startswith(BLOCKS) and self.index:
            inner = list(self.index[1:]) or ""
            place = f"block {self.index[0]}, {self.name.removeprefix(BLOCKS)}{inner}"
        others = ", ".join(self.differing[:8]) + (", ..." if len(self.differing) > 8 else "")
        return (
            f"first difference at {place}: expected {self.expected!r}, got {self.got!r}; "
            f"{len(self.differing)} arrays differ: {others}"
        )


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may be apart: |got - expected| <= absolute + relative |expected|."""

    relative: float
    absolute: float


DRIFT = Tolerance(relative=2e-3, absolute=2e-4)
"""For networks in other surroundings. They compute in float32, and each update starts from the rounding of the one
before: with and without XLA's optimisations, most numbers are 1e-6 apart in the end and a few 2e-4. A mistake in a
formula shows in the first digits."""
ROUNDING = Tolerance(relative=1e-6, absolute=1e-9)
"""For finite MDPs, which are computed in float64."""


def check(name: str, trace: Trace) -> Difference | None:
    """Compare a trace with what is written: bit for bit in the surroundings it was written in, else to rounding."""
    expected = read(name)[0]
    if written_here(name):
        return first_difference(expected, trace)
    # the certificates' learned cost is a TRPO learner's, whose line search turns a last digit into another step
    kept = {key: value for key, value in trace.items() if not key.startswith("learned-cost/learned_cost/")}
    assert kept, f"{name}: nothing is left to compare"
    rounded = ROUNDING if name.startswith("tabular") else DRIFT
    return first_difference({key: value for key, value in expected.items() if key in kept}, kept, rounded)


def written_here(name: str) -> bool:
    """Say whether a trace was written in these surroundings."""
    return read(name)[1] == surroundings()


def unequal(expected: np.ndarray, got: np.ndarray, tolerance: Tolerance | None) -> np.ndarray:
    """Mark the numbers that differ: in any bit, or by more than the tolerance."""
    if tolerance is None:
        size = expected.dtype.itemsize
        bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, size) for array in (expected, got)]
        return (bits[0] != bits[1]).any(axis=1).reshape(expected.shape)
    if expected.dtype.kind != "f":
        return expected != got
    return ~np.isclose(got, expected, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True)


def first_difference(expected: Trace, got: Trace, tolerance: Tolerance | None = None) -> Difference | None:
    """Compare two traces in the order in which the second was computed; blocks row by row, before everything else."""
    for names, here, there in ((got, "computed", expected), (expected, "written", got)):
        for name in names:
            if name not in there:
                lost = tuple(sorted(expected.keys() ^ got.keys()))
                return Difference(name, (), *(("nothing", here) if here == "computed" else (here, "nothing")), lost)
    for name, array in got.items():
        kinds = [f"{one.dtype}{list(one.shape)}" for one in (expected[name], array)]
        if kinds[0] != kinds[1]:
            return Difference(name, (), *kinds, (name,))
    found = {name: unequal(expected[name], got[name], tolerance) for name in got}
    differing = tuple(name for name, marks in found.items() if marks.any())
    if not differing:
        return None
    order = {name: number for number, name in enumerate(got)}

    def place(name: str) -> tuple[int, int, int]:
        by_block = name.startswith(BLOCKS)
        row = int(np.argwhere(found[name])[0][0]) if by_block else 0
        return (0 if by_block else 1), row, order[name]

    name = min(differing, key=place)
    index = tuple(int(i) for i in np.argwhere(found[name])[0]) if found[name].ndim else ()
    return Difference(name, index, expected[name][index], got[name][index], differing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="compute traces and write them")
    what.add_argument("--check", action="store_true", help="compute traces and compare them")
    what.add_argument("--list", action="store_true", help="name all traces")
    parser.add_argument("names", nargs="*", help="traces; all of them if none is named")
    given = parser.parse_args()
    unknown = set(given.names) - TRACES.keys()
    if unknown:
        parser.error(f"no such trace: {', '.join(sorted(unknown))}")
    failures = 0
    for name in given.names or TRACES:
        if given.list:
            print(name)
            continue
        begun = time.perf_counter()
        trace = TRACES[name]()
        seconds = time.perf_counter() - begun
        difference = None
        if given.write:
            write(name, trace)
        else:
            difference = check(name, trace)
        failures += difference is not None
        print(f"{name}: {seconds:.1f} s" + ("" if difference is None else f": {difference}"), flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
