"""Experts: the loop with a policy player and no cost player, in a run folder, and demonstrations of the best policy."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oal.base.folder import RunFolder
from oal.deep.offpolicy import ReplayConfig
from oal.deep.policy import Policy
from oal.deep.presets import LearnerConfig, with_settings
from oal.deep.sac import DISCRETE_SAC, SACConfig
from oal.demos import Demos
from oal.demos.record import record_encoded
from oal.envs import describe, make
from oal.errors import InputError
from oal.lab import run
from oal.lab.run import EXPERT, Run, RunConfig


def expert_config(
    env: str,
    total_steps: int,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    horizon: int | None = None,
    checkpoint_every: int = 50_000,
    **options: Any,
) -> RunConfig:
    """Return the run that trains an expert: soft actor-critic on the environment's own cost.

    `settings` are dotted, policy.NAME or replay.NAME. Unless told otherwise it warms up for 5,000 steps, or a twentieth
    of the run if that is less, and is evaluated every fortieth of the run, between 1,000 and 10,000 steps.
    """
    made = make(env, horizon=horizon)
    sac = SACConfig() if describe(made, horizon=horizon).kind == "continuous" else DISCRETE_SAC
    made.close()
    replay = ReplayConfig(capacity=max(1, min(1_000_000, total_steps)), warmup_steps=min(5_000, total_steps // 20))
    options = {
        "evaluate_every": min(10_000, max(1_000, total_steps // 40)),
        "evaluation_episodes": 5,
        "log_every": math.gcd(1_000, checkpoint_every),
        "checkpoint_every": checkpoint_every,
        **options,
    }
    learner = with_settings(LearnerConfig("sac", None, "default", sac, None, replay, None), settings or {})
    return RunConfig(env, learner, total_steps, trajectories=None, seed=seed, horizon=horizon, **options)


def resume(path: str | Path, env: str, *, seed: int, total_steps: int | None = None, **paces: Any) -> Run:
    """Go on with an expert's run; `env` and `seed` must be what it was begun with. `paces` are as in `run.resume`."""
    saved = RunConfig.from_json(RunFolder.open(path, kind=EXPERT).config)
    if (saved.env, saved.seed) != (env, seed):
        raise InputError(f"{path} trains {saved.env} with seed {saved.seed}, not {env} with seed {seed}")
    return run.resume(path, total_steps=total_steps, trust=True, **paces)  # the same id was typed just now


def command(config: RunConfig) -> str:
    """Return the command line that trains this configuration: with a --set for each setting that is not the usual."""
    parts = ["oal expert", config.env, f"--steps {config.total_steps}", f"--seed {config.seed}"]
    if config.stop_at_return is not None:
        parts.append(f"--stop-at-return {config.stop_at_return:g}")
    if config.horizon is not None:
        parts.append(f"--horizon {config.horizon}")
    plain = expert_config(config.env, config.total_steps, horizon=config.horizon)
    settings, usual = (asdict(each) for each in (config.learner, plain.learner))
    for group in ("policy", "replay"):
        for name, value in settings[f"{group}_config"].items():
            if value != usual[f"{group}_config"][name]:
                parts.append(f"--set {shlex.quote(f'{group}.{name}={json.dumps(value)}')}")
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
        horizon=config.horizon,
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
