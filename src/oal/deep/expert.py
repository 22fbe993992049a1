"""Train an expert: soft actor-critic on an environment's own cost, resumable, and record its trajectories.

Its run folder holds best.safetensors (the policy with the best evaluation), policy.safetensors (the last one) and, at
the end, demos.npz.

Every checkpoint ends the episode at hand and begins a new one from a seed of its own. So a run resumed from a
checkpoint continues exactly as the run that was never stopped, for environments whose state cannot be saved too.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from oal.base import checkpoint, seeding
from oal.base.folder import RunFolder
from oal.base.provenance import provenance
from oal.deep.nets import HostActor
from oal.deep.offpolicy import DISCRETE_SAC, SACConfig, Shapes, compile_sac, init_sac
from oal.deep.policy import Policy
from oal.deep.replay import Replay
from oal.demos import Demos
from oal.demos.record import record_demos
from oal.envs import Envs, EpisodeRunner, Evaluation, describe, episode_seeds, make, uniform_actions
from oal.errors import InputError, at_least

KIND = "expert"


@dataclass(frozen=True)
class ExpertConfig:
    """What is trained, for how long, and how often it is looked at. Steps are environment steps."""

    env_id: str
    total_steps: int
    seed: int = 0
    warmup_steps: int | None = None
    """Uniformly random steps before learning; None: 5,000, or a twentieth of the run if that is less."""
    block: int = 50
    """Environment steps, and as many updates, per compiled block."""
    replay_capacity: int = 1_000_000
    evaluate_every: int | None = None
    """None: a fortieth of the run, between 1,000 and 10,000 steps."""
    evaluation_episodes: int = 5
    checkpoint_every: int = 50_000
    stop_at_return: float | None = None
    """Stop early once an evaluation's mean return reaches this."""
    sac: SACConfig | None = None
    """None: the paper's for continuous actions, `DISCRETE_SAC` for discrete ones; resolved when the run is prepared."""

    def __post_init__(self) -> None:
        at_least("steps", self.total_steps, 1)
        at_least("block", self.block, 1)
        at_least("evaluation_episodes", self.evaluation_episodes, 1)
        at_least("checkpoint_every", self.checkpoint_every, self.block)
        if self.evaluate_every is not None:
            at_least("evaluate_every", self.evaluate_every, 1)

    @property
    def warmup(self) -> int:
        return min(5_000, self.total_steps // 20) if self.warmup_steps is None else self.warmup_steps

    @property
    def evaluation_interval(self) -> int:
        if self.evaluate_every is not None:
            return self.evaluate_every
        return min(10_000, max(1_000, self.total_steps // 40))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ExpertConfig":
        sac = dict(value["sac"])
        sac["hidden"] = tuple(sac["hidden"])
        return cls(**{**value, "sac": SACConfig(**sac)})

    def resolved(self, kind: str) -> "ExpertConfig":
        """Fill in what depends on the kind of actions."""
        return self if self.sac is not None else replace(self, sac=default_sac(kind))


def default_sac(kind: str) -> SACConfig:
    """Return the hyper-parameters used for a kind of actions unless others are given."""
    return SACConfig() if kind == "continuous" else DISCRETE_SAC


@dataclass
class Progress:
    """Where a run is; handed to the progress callback after every block."""

    step: int = 0
    best_return: float = -np.inf
    last_return: float = np.nan
    training_return: float = np.nan
    steps_per_second: float = np.nan


class ExpertTrainer:
    """One training run in one folder."""

    def __init__(self, config: ExpertConfig, folder: RunFolder) -> None:
        self.folder = folder
        self.progress = Progress()
        self.envs = Envs(config.env_id, seed=config.seed, purpose="expert-env")
        spec = self.spec = self.envs.spec
        config = self.config = config.resolved(spec.kind)
        sac = self.sac = config.sac or default_sac(spec.kind)
        self.shapes = Shapes(
            "continuous" if spec.kind == "continuous" else "discrete", spec.observation_size, spec.action_size
        )
        self.runner = EpisodeRunner(config.env_id, parallel=config.evaluation_episodes)
        self.state = init_sac(seeding.integer(config.seed, "expert-learner"), self.shapes, sac)
        self.block = compile_sac(self.shapes, sac)
        self.actor = HostActor(self.shapes.kind, self.state.actor)
        self.replay = Replay(min(config.replay_capacity, config.total_steps), spec.observation_size, spec.action_size)
        self.action_rng = seeding.generator(config.seed, "expert-actions")
        self.replay_rng = seeding.generator(config.seed, "expert-replay")

    def _collect(self, steps: int) -> None:
        for _ in range(steps):
            warming_up = self.progress.step < self.config.warmup
            if warming_up:
                action = uniform_actions(self.spec, 1, self.action_rng)
            else:
                action = self.actor.sample(self.envs.observation, self.action_rng)
            step = self.envs.step(action)
            self.replay.add(step.observation, step.action, step.cost, step.next_observation, step.terminated)
            self.progress.step += 1
        if not np.isfinite(self.replay.last(steps)).all():
            raise InputError(
                f"{self.spec.env_id} gave an observation that is not finite near step {self.progress.step}"
            )

    def run(self, on_progress: Callable[[Progress], None] = lambda _: None) -> Evaluation | None:
        """Train to the end; return the last evaluation."""
        config, progress = self.config, self.progress
        evaluation = None
        metrics: dict[str, Any] = {}
        self._write_status("running")
        since, steps_since = time.perf_counter(), progress.step
        goal = np.inf if config.stop_at_return is None else config.stop_at_return
        while progress.step < config.total_steps and progress.best_return < goal:
            steps = min(config.block, config.total_steps - progress.step)
            learning = progress.step >= max(config.warmup, 1)
            if learning:
                # the compiled block runs while the simulator collects the next steps with the actor before it
                rows = self.replay.sample(self.replay_rng, config.block, self.sac.batch_size)
                self.state, metrics = self.block(self.state, rows, None)
            before = progress.step
            self._collect(steps)
            if learning:
                self.actor.load(self.state.actor)
            if self.envs.finished:
                progress.training_return = float(np.mean([value for value, _ in self.envs.finished[-10:]]))
            if _crossed(before, progress.step, config.evaluation_interval) or progress.step == config.total_steps:
                now = time.perf_counter()
                progress.steps_per_second = (progress.step - steps_since) / (now - since)
                evaluation = self._evaluate(metrics)
                since, steps_since = time.perf_counter(), progress.step
            if _crossed(before, progress.step, config.checkpoint_every):
                self.checkpoint()
            on_progress(progress)
        self.checkpoint()
        self._policy().save(self.folder.policy)
        self._write_status("finished")
        return evaluation

    def _policy(self) -> Policy:
        return Policy(
            self.spec,
            self.actor.layers,
            info={"step": self.progress.step, "seed": self.config.seed, "algorithm": "sac"},
        )

    def _evaluate(self, metrics: dict[str, Any]) -> Evaluation:
        """Evaluate on the same initial states each time, log, and keep the best policy."""
        config, progress = self.config, self.progress
        seeds = episode_seeds(config.seed, "expert-evaluation", config.evaluation_episodes)
        evaluation = self.runner.evaluate(self.actor.mode, seeds)
        progress.last_return = evaluation.mean_return
        numbers = {name: float(value) for name, value in metrics.items()}
        bad = [name for name, value in numbers.items() if not np.isfinite(value)]
        if bad:
            raise InputError(
                f"{', '.join(bad)} became infinite or NaN by step {progress.step}; the last checkpoint in "
                f"{self.folder} is good: resume with another seed or a smaller learning rate"
            )
        # on a tie the later policy: it has seen more
        if progress.last_return >= progress.best_return:
            progress.best_return = progress.last_return
            self._policy().save(self.folder.best)
        recent = self.envs.finished
        record = {
            "step": progress.step,
            **evaluation.to_json(),
            "training_return": float(np.mean([value for value, _ in recent])) if recent else None,
            "training_length": float(np.mean([length for _, length in recent])) if recent else None,
            "steps_per_second": round(progress.steps_per_second, 1),
            **numbers,
        }
        self.envs.finished = []
        self.folder.log(record)
        return evaluation

    # ----- stop and resume

    def checkpoint(self) -> None:
        """Save everything, then begin a new episode from a seed that a resumed run derives as well."""
        rows, counters = self.replay.state()
        info = {
            "config": asdict(self.config),
            "step": self.progress.step,
            "best_return": self.progress.best_return if np.isfinite(self.progress.best_return) else None,
            "replay": counters,
            "action_rng": self.action_rng.bit_generator.state,
            "replay_rng": self.replay_rng.bit_generator.state,
            "environment": "restarted at this checkpoint",
        }
        arrays = {
            **checkpoint.named(self.state, "state"),
            "replay/rows": rows["rows"],
        }
        checkpoint.save(self.folder.checkpoint, arrays, info, kind="expert-checkpoint")
        self._begin_episode()

    def _begin_episode(self) -> None:
        self.envs.restart(self.progress.step)
        self.envs.finished = []

    def resume(self) -> None:
        """Continue from the folder's checkpoint; metrics logged after it are dropped."""
        arrays, info = checkpoint.load(self.folder.checkpoint, kind="expert-checkpoint", mapped=["replay/rows"])
        self.state = checkpoint.restored(self.state, arrays, "state")
        self.actor.load(self.state.actor)
        self.replay.restore({"rows": arrays["replay/rows"]}, info["replay"])
        self.action_rng.bit_generator.state = info["action_rng"]
        self.replay_rng.bit_generator.state = info["replay_rng"]
        self.progress.step = int(info["step"])
        self.progress.best_return = -np.inf if info["best_return"] is None else float(info["best_return"])
        self.folder.rewind(self.progress.step)
        self._begin_episode()

    def _write_status(self, status: str) -> None:
        self.folder.set_status(status, step=self.progress.step, best_return=self.progress.best_return)

    def close(self) -> None:
        self.envs.close()
        self.runner.close()
        self.folder.release()


def _crossed(before: int, after: int, interval: int) -> bool:
    return before // interval != after // interval


def prepare(config: ExpertConfig, folder: str | Path, *, resume: bool = False) -> ExpertTrainer:
    """Open a run folder: a new one, or with `resume` one that was begun before.

    A resumed run keeps its own settings; its end (`total_steps`, `stop_at_return`) is taken from `config`.
    """
    if resume:
        run = RunFolder.open(folder, kind=KIND)
        saved = ExpertConfig.from_json(run.config)
        if saved.env_id != config.env_id or saved.seed != config.seed:
            raise InputError(
                f"{folder} trains {saved.env_id} with seed {saved.seed}, not {config.env_id} with seed {config.seed}"
            )
        if config.sac is not None and config.sac != saved.sac:
            raise InputError(f"{folder} was begun with other hyper-parameters: {saved.sac}")
        config = replace(saved, total_steps=config.total_steps, stop_at_return=config.stop_at_return)
        run.lock()
        run.describe(asdict(config), provenance() | {"environment": run.metadata["environment"]}, kind=KIND)
    else:
        spec = describe(make(config.env_id))
        config = config.resolved(spec.kind)
        run = RunFolder.create(folder, asdict(config), provenance() | {"environment": spec.to_json()}, kind=KIND)
    trainer = ExpertTrainer(config, run)
    if run.checkpoint.exists():
        trainer.resume()
    else:
        run.rewind(-1)  # killed before its first checkpoint: it begins anew
    return trainer


def saved_steps(folder: str | Path) -> int:
    """Return how many steps a run was meant to take."""
    return ExpertConfig.from_json(RunFolder.open(folder, kind=KIND).config).total_steps


def best_policy(folder: str | Path) -> Policy:
    """Load a run's policy with the best evaluation."""
    return Policy.load(RunFolder(folder).best)


def command(config: ExpertConfig) -> str:
    """Return the command line that trains this configuration."""
    parts = ["oal expert", config.env_id, f"--steps {config.total_steps}", f"--seed {config.seed}"]
    if config.stop_at_return is not None:
        parts.append(f"--stop-at-return {config.stop_at_return:g}")
    if config.sac is not None and config.sac.batch_size != SACConfig.batch_size:
        parts.append(f"--batch-size {config.sac.batch_size}")
    return " ".join(parts)


def record(folder: str | Path, *, episodes: int) -> Demos:
    """Record trajectories of a run's best policy, acting deterministically, into its demos.npz."""
    run = RunFolder.open(folder, kind=KIND)
    config = ExpertConfig.from_json(run.config)
    policy = best_policy(folder)
    demos = record_demos(
        config.env_id,
        policy.act,
        episodes=episodes,
        seed=config.seed,
        described_as=f"soft actor-critic, the best evaluated policy (after {policy.info['step']} steps), deterministic",
        metadata={
            "algorithm": "sac",
            "command": command(config),
            "steps": policy.info["step"],
            "seed": config.seed,
        },
    )
    demos.save(run.demos)
    return demos
