"""Experts: the loop with a policy player and no cost player, in a run folder, and demonstrations of the best policy."""

import math
from pathlib import Path
from typing import Any

from oal.base.folder import RunFolder
from oal.deep.offpolicy import ReplayConfig
from oal.deep.policy import Policy
from oal.deep.presets import LearnerConfig
from oal.deep.sac import DISCRETE_SAC, SACConfig
from oal.demos import Demos
from oal.demos.record import record_encoded
from oal.envs import describe, make
from oal.errors import InputError
from oal.lab import run
from oal.lab.run import EXPERT, Run, RunConfig


def default_sac(kind: str) -> SACConfig:
    """Return the hyper-parameters used for a kind of actions unless others are given."""
    return SACConfig() if kind == "continuous" else DISCRETE_SAC


def expert_config(
    env: str,
    total_steps: int,
    *,
    seed: int = 0,
    sac: SACConfig | None = None,
    warmup_steps: int | None = None,
    block: int = 50,
    checkpoint_every: int = 50_000,
    **options: Any,
) -> RunConfig:
    """Return the run that trains an expert: soft actor-critic on the environment's own cost.

    Unless told otherwise it warms up for 5,000 steps, or a twentieth of the run if that is less, and is evaluated every
    fortieth of the run, between 1,000 and 10,000 steps.
    """
    if sac is None:
        made = make(env)
        sac = default_sac(describe(made).kind)
        made.close()
    replay = ReplayConfig(
        capacity=max(1, min(1_000_000, total_steps)),
        warmup_steps=min(5_000, total_steps // 20) if warmup_steps is None else warmup_steps,
        block=block,
    )
    options = {
        "evaluate_every": min(10_000, max(1_000, total_steps // 40)),
        "evaluation_episodes": 5,
        "log_every": math.gcd(1_000, checkpoint_every),
        "checkpoint_every": checkpoint_every,
        **options,
    }
    learner = LearnerConfig("sac", None, "default", sac, None, replay, None)
    return RunConfig(env, learner, total_steps, trajectories=None, seed=seed, **options)


def resume(path: str | Path, env: str, *, seed: int, total_steps: int | None = None) -> Run:
    """Go on with an expert's run; `env` and `seed` must be what it was begun with."""
    saved = RunConfig.from_json(RunFolder.open(path, kind=EXPERT).config)
    if (saved.env, saved.seed) != (env, seed):
        raise InputError(f"{path} trains {saved.env} with seed {saved.seed}, not {env} with seed {seed}")
    return run.resume(path, total_steps=total_steps, trust=True)  # the same id was typed just now


def command(config: RunConfig) -> str:
    """Return the command line that trains this configuration."""
    parts = ["oal expert", config.env, f"--steps {config.total_steps}", f"--seed {config.seed}"]
    if config.stop_at_return is not None:
        parts.append(f"--stop-at-return {config.stop_at_return:g}")
    policy = config.learner.policy_config
    if isinstance(policy, SACConfig) and policy.batch_size != SACConfig.batch_size:
        parts.append(f"--batch-size {policy.batch_size}")
    return " ".join(parts)


def record(path: str | Path, *, episodes: int, trust: bool = False) -> Demos:
    """Record trajectories of a run's best policy, acting deterministically, into its demos.npz.

    `trust` is as in `oal.lab.run.resume`.
    """
    folder = RunFolder.open(path, kind=EXPERT)
    config = run.config_of(folder, trust=trust)
    policy = Policy.load(folder.best, inside=folder.path)
    steps = policy.info.get("step")
    demos = record_encoded(
        config.env,
        policy.act,
        episodes=episodes,
        seed=config.seed,
        described_as=f"soft actor-critic, the best evaluated policy (after {steps} steps), deterministic",
        metadata={
            "algorithm": "sac",
            "command": command(config),
            "steps": steps,
            "seed": config.seed,
        },
    )
    demos.save(folder.demos)
    return demos
