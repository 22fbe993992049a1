"""One training run in one folder: begin it, resume it, read what it left.

The folder is the only contract with reporting (see `oal.base.folder`). A run that is killed at any moment goes on from
its last checkpoint exactly as if it had never been stopped.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oal import demos
from oal.base import checkpoint, console, files, seeding
from oal.base import config as configs
from oal.base.folder import RunFolder
from oal.base.provenance import provenance
from oal.deep import callbacks, certificate
from oal.deep.bc import BC, BCConfig
from oal.deep.learned_cost import LearnedCost, input_names
from oal.deep.loop import KIND, OAL, Callback
from oal.deep.policy import Policy
from oal.deep.presets import LearnerConfig
from oal.deep.verdict import Certificate
from oal.demos import Demos, Trajectory
from oal.demos.record import record_demos
from oal.envs import (
    Act,
    ActionCodec,
    EnvSpec,
    Evaluation,
    UniformPolicy,
    describe,
    evaluate,
    id_from_file,
    make,
    record_video,
)
from oal.errors import InputError, at_least

EXPERT = "expert"
RANDOM_EPISODES = 10
"""Episodes that measure what a random policy earns, the zero of the normalised return."""


@dataclass(frozen=True)
class RunConfig:
    """What is learned, from what, and for how long. Intervals are in environment steps."""

    env: str
    learner: LearnerConfig
    total_steps: int
    demos: str = ""
    """A file, or the name of shipped demonstrations; empty: those shipped for the environment."""
    trajectories: int | None = 10
    """How many of them to learn from, the first ones; the others are held out. None: all."""
    subsample: int = 1
    """Keep every n-th step of the demonstrations."""
    seed: int = 0
    horizon: int | None = None
    log_every: int = 1_000
    evaluate_every: int = 5_000
    evaluation_episodes: int = 10
    checkpoint_every: int = 25_000
    stop_at_return: float | None = None

    def __post_init__(self) -> None:
        at_least("steps", self.total_steps, 1)
        if self.trajectories is not None:
            at_least("trajectories", self.trajectories, 1)
        for name in ("subsample", "log_every", "evaluate_every", "evaluation_episodes", "checkpoint_every"):
            at_least(name, getattr(self, name), 1)
        if self.checkpoint_every % self.log_every:
            raise InputError(
                f"checkpoint_every is {self.checkpoint_every}: it must be a multiple of log_every ({self.log_every}), "
                "so that no record is cut in two"
            )

    @property
    def algorithm(self) -> str:
        return {"gail": "GAIL", None: "RL"}.get(self.learner.cost, "OAL")

    @property
    def kind(self) -> str:
        """What the folder of this run holds: a learner's run, or an expert's, which has no cost player."""
        return EXPERT if self.learner.cost is None else KIND

    def to_json(self) -> dict[str, Any]:
        """One flat object: the run's fields and the learner's beside them."""
        run = asdict(self)
        return {"algorithm": self.algorithm} | run.pop("learner") | run

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RunConfig":
        values = {name: item for name, item in value.items() if name != "algorithm"}
        learner_fields = LearnerConfig.__dataclass_fields__
        learner = LearnerConfig.from_json({name: values.pop(name) for name in learner_fields if name in values})
        return configs.build(cls, {**values, "learner": learner}, name="run")


class Run:
    """A run that can go on: its folder, its configuration and its learner."""

    def __init__(self, folder: RunFolder, config: RunConfig, learner: OAL) -> None:
        self.folder, self.config, self.learner = folder, config, learner

    def go(self, *, progress_bar: bool = False, sinks: Sequence[callbacks.Sink] = ()) -> OAL:
        """Learn to the end; what stops it is written to status.json before it is raised."""
        config, folder, learner = self.config, self.folder, self.learner
        evaluation = callbacks.Evaluate(config.evaluate_every, episodes=config.evaluation_episodes, best=folder.best)
        known = [record.get("evaluation_return") for record in folder.records()]
        evaluation.best_return = max((value for value in known if value is not None), default=-np.inf)
        # first: what comes after writes files, and would make a deleted folder again
        steps: list[Callback] = [lambda _: folder.verify(), evaluation]
        if config.stop_at_return is not None:
            steps.append(callbacks.StopAtReturn(config.stop_at_return))
        steps += [
            callbacks.Record(config.log_every, folder.log, *sinks),
            callbacks.Checkpoint(config.checkpoint_every, folder.checkpoint),
            self._say_where,
        ]
        folder.set_status("running", step=learner.step)
        try:
            # a run that was killed after its end or its early stop has nothing more to learn
            stopped = config.stop_at_return is not None and evaluation.best_return >= config.stop_at_return
            if learner.step < config.total_steps and not stopped:
                self._clone(progress_bar)
                learner.learn(config.total_steps, callback=steps, progress_bar=progress_bar)
            self._finish()
        except KeyboardInterrupt:
            folder.set_status("stopped", step=learner.step)
            raise
        except BaseException as error:
            folder.set_status("failed", step=learner.step, error=str(error), traceback=traceback.format_exc())
            raise
        finally:
            folder.release()
        return learner

    def _clone(self, progress_bar: bool) -> None:
        """Clone first, where the configuration says so, and keep the clone to compare the learner with."""
        if self.config.learner.bc_config is not None and self.learner.step == 0:
            self.learner.pretrain(progress_bar=progress_bar)
            self.learner.policy().save(self.folder.clone)

    def _say_where(self, learner: OAL) -> None:
        if learner.passed(self.config.log_every):
            self.folder.set_status("running", step=learner.step)

    def _finish(self) -> None:
        folder, learner = self.folder, self.learner
        folder.verify()
        if learner.step < self.config.total_steps:  # stopped early, between two checkpoints
            learner.save(folder.checkpoint)
        learner.policy().save(folder.policy)
        if self.config.learner.cost is not None:
            cost = LearnedCost.of(learner)
            cost.save(folder.cost)
            if self.config.learner.cost == "linear":
                files.write_json(folder.path / "cost.json", cost.to_json())
        folder.write_table()
        folder.set_status("finished", step=learner.step)


def select(source: str, env: str, *, trajectories: int | None, subsample: int = 1) -> tuple[Demos, Demos | None]:
    """Load demonstrations and split them: (to learn from, held out or None)."""
    if not source and env not in demos.shipped():
        make(env).close()  # a mistyped environment is that, and no missing file
        raise InputError(
            f"no demonstrations of {env} are shipped, only of {', '.join(demos.shipped())}: name a file with --demos"
        )
    loaded = demos.load(source or env)
    if trajectories is not None and trajectories > len(loaded):
        raise InputError(
            f"{source or env} holds {console.counted(len(loaded), 'trajectory', 'trajectories')}, and {trajectories} "
            f"are to be learned from: say --trajectories {len(loaded)}, or 0 for all"
        )
    chosen = loaded if trajectories is None else loaded[:trajectories]
    rest = None if trajectories is None or trajectories == len(loaded) else loaded[trajectories:]
    return (chosen if subsample == 1 else chosen.subsample(subsample)), rest


def _metadata(
    chosen: Demos | None, held_out: Demos | None, spec: EnvSpec, env: str, seed: int, horizon: int | None
) -> dict[str, Any]:
    """Where a run comes from, and the two ends of the normalised return where there is an expert."""
    if chosen is None:
        return provenance() | {"environment": spec.to_json()}
    random = evaluate(env, UniformPolicy(spec, seed=seed).act, episodes=RANDOM_EPISODES, seed=seed, horizon=horizon)
    returns = chosen.returns if held_out is None or held_out.returns is None else held_out.returns
    return provenance() | {
        "demos_hash": chosen.content_hash,
        "environment": spec.to_json(),
        "expert_return": None if chosen.returns is None else float(np.mean(chosen.returns)),
        "held_out_return": None if returns is None else float(np.mean(returns)),
        "random_return": random.mean_return,
    }


def start(config: RunConfig, path: str | Path, *, demonstrations: tuple[Demos, Demos | None] | None = None) -> Run:
    """Begin a run in a new folder; `demonstrations` (to learn from, held out) stand for what `config.demos` names."""
    chosen, held_out = demonstrations or (None, None)
    if chosen is None and config.learner.cost is not None:
        chosen, held_out = select(
            config.demos, config.env, trajectories=config.trajectories, subsample=config.subsample
        )
    learner = _learner(config, chosen)
    metadata = _metadata(chosen, held_out, learner.spec, config.env, config.seed, config.horizon) | {
        "environment_state": "saved" if learner.envs.state() is not None else "episodes restart at each checkpoint",
    }
    folder = RunFolder.create(path, config.to_json(), metadata, kind=config.kind)
    try:
        if held_out is not None:
            held_out.save(folder.held_out)
        if chosen is not None:
            chosen.save(folder.demos)  # last: a folder that has them can be resumed
    except BaseException:
        folder.release()
        raise
    return Run(folder, config, learner)


def config_of(folder: RunFolder, *, trust: bool = False) -> RunConfig:
    """Read a run's configuration; an environment whose id imports a module is refused without `trust`."""
    config = RunConfig.from_json(folder.config)
    id_from_file(config.env, str(folder), trust=trust)
    return config


def resume(path: str | Path, *, total_steps: int | None = None, trust: bool = False) -> Run:
    """Go on with a run from its last checkpoint, or from its beginning if it has none; a longer end may be given.

    `trust` allows an environment's id in the folder to import a module, which runs its code.
    """
    folder = RunFolder.open(path)
    folder.lock()
    try:
        config = config_of(folder, trust=trust)
        if total_steps is not None and total_steps != config.total_steps:
            at_least("steps", total_steps, 1)
            config = replace(config, total_steps=total_steps)
            folder.describe(config.to_json(), folder.metadata, kind=config.kind)
        learner = _learner(config, None if config.learner.cost is None else demos.load(folder.demos))
        if checkpoint.exists(folder.checkpoint):
            learner.restore(folder.checkpoint)
        folder.rewind(learner.step)
    except BaseException:
        folder.release()
        raise
    return Run(folder, config, learner)


def _learner(config: RunConfig, chosen: Demos | None) -> OAL:
    return OAL(config.env, chosen, config=config.learner, seed=config.seed, horizon=config.horizon)


# ----------------------------------------------------------------------------------------------------------------
# Cloning alone

CLONE_KIND = "clone"


def clone(
    env: str,
    path: str | Path,
    *,
    source: str = "",
    trajectories: int | None = 10,
    subsample: int = 1,
    config: BCConfig | None = None,
    seed: int = 0,
    horizon: int | None = None,
    evaluation_episodes: int = 10,
    progress_bar: bool = False,
) -> Evaluation:
    """Clone demonstrations into a run folder of its own: policy, and one record with its evaluation at step 0."""
    config = config or BCConfig()
    chosen, held_out = select(source, env, trajectories=trajectories, subsample=subsample)
    cloner = BC(env, chosen, config=config, seed=seed, horizon=horizon)
    about = {
        "algorithm": "BC",
        "env": env,
        "demos": source,
        "trajectories": trajectories,
        "subsample": subsample,
        "seed": seed,
        "horizon": horizon,
        "bc_config": asdict(config),
    }
    folder = RunFolder.create(
        path, about, _metadata(chosen, held_out, cloner.spec, env, seed, horizon), kind=CLONE_KIND
    )
    try:
        if held_out is not None:
            held_out.save(folder.held_out)
        chosen.save(folder.demos)
        cloner.learn(progress_bar=progress_bar)
        evaluation = cloner.evaluate(episodes=evaluation_episodes)
        folder.verify()
        cloner.save(folder.policy)
        folder.log({"step": 0, **callbacks.evaluation_notes(evaluation)})
        folder.set_status("finished", step=0)
    finally:
        folder.release()
    return evaluation


# ----------------------------------------------------------------------------------------------------------------
# What a run left


def policy_of(folder: RunFolder, *, best: bool = False) -> Policy:
    """Load a run's last policy, or the one with the best evaluation; a run that goes on has its checkpoint's."""
    if best or folder.policy.exists():
        return Policy.load(folder.best if best else folder.policy)
    if not checkpoint.exists(folder.checkpoint):
        raise InputError(f"{folder} has neither a policy nor a checkpoint yet: let it run on")
    return OAL.load(folder.checkpoint).policy()


class _Subject(NamedTuple):
    """What is said of a run of any kind: a learner's, a clone's or an expert's."""

    env: str
    seed: int
    horizon: int | None


def _subject(folder: RunFolder, *, trust: bool) -> _Subject:
    config = folder.config
    try:
        subject = _Subject(str(config["env"]), int(config["seed"]), config.get("horizon"))
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{folder}: its configuration names no environment and seed") from None
    id_from_file(subject.env, str(folder), trust=trust)
    return subject


def _demonstrations(folder: RunFolder, given: str) -> tuple[Demos, Sequence[Trajectory], str]:
    """What a policy is compared with, what else is known of the expert, and what the first are."""
    if given:
        return demos.load(given), (), "given"
    if not folder.demos.exists():
        raise InputError(f"{folder} holds no demonstrations to compare with: name some with --demos")
    learned = demos.load(folder.demos)
    if folder.kind == EXPERT:
        return learned, (), "own"
    if folder.held_out.exists():
        return demos.load(folder.held_out), learned, "held-out"
    return learned, (), "training"


def certify(
    path: str | Path,
    *,
    episodes: int = 20,
    best: bool = False,
    deterministic: bool = True,
    seed: int = 0,
    trust: bool = False,
    given: str = "",
    clone: str | Path | None = None,
) -> Certificate:
    """Measure how close a run's policy is to the expert, on fresh episodes; write it to certificate.json and .png.

    The demonstrations held out from learning are compared with, or those `given`; without any, those it learned from
    are, which flatters. An expert is compared with its own recorded episodes. `clone` is the run of a clone to stand
    beside the learner, in place of the one it started from. `trust` is as in `resume`.
    """
    folder = RunFolder.open(path)
    # an expert's trajectories are recorded from its best policy
    best = best or (folder.kind == EXPERT and folder.best.exists())
    subject, policy = _subject(folder, trust=trust), policy_of(folder, best=best)
    env, spec = subject.env, policy.spec

    def record(act: Act, count: int, *names: Any) -> Demos:
        # the run's own seed is in the stream, so that no initial state of its training or evaluation comes again
        start = seeding.integer(seed, "certificate-episodes", subject.seed, *names)
        return record_demos(env, act, episodes=count, seed=start, horizon=subject.horizon)

    policy.rng = seeding.generator(seed, "certificate-actions", subject.seed)
    rollouts = record(policy.act if deterministic else policy.sample, episodes)
    other = RunFolder.open(clone, kind=CLONE_KIND).policy if clone is not None else folder.clone
    held_out, training, against = _demonstrations(folder, given)
    result = certificate.certify(
        rollouts,
        held_out,
        training=training,
        spec=spec,
        cost=LearnedCost.load(folder.cost) if folder.cost.exists() else None,
        random_return=folder.metadata.get("random_return"),
        clone=record(Policy.load(other).act, episodes, 1) if other.exists() else (),
        random=record(UniformPolicy(spec, seed=seed).act, RANDOM_EPISODES, 2),
        against=against,
        names=_names(subject),
        seed=seed,
    )
    folder.verify()
    files.write_json(
        folder.certificate,
        {**result.to_json(), "policy": "best" if best else "last", "deterministic": deterministic},
    )
    result.picture(folder.path / "certificate")
    return result


def _names(subject: _Subject) -> list[str]:
    env = make(subject.env, horizon=subject.horizon)
    try:
        return input_names(describe(env, horizon=subject.horizon), env)
    finally:
        env.close()


def film(
    path: str | Path, video: str | Path | None = None, *, best: bool = False, seed: int = 0, trust: bool = False
) -> float:
    """Film one episode of a run's policy, into the run folder unless told otherwise; return what it earned."""
    folder = RunFolder.open(path)
    config, policy = _subject(folder, trust=trust), policy_of(folder, best=best)
    start = seeding.integer(seed, "video")
    return record_video(config.env, policy.act, video or folder.video, reset_seed=start, horizon=config.horizon)


def film_expert(path: str | Path, *, trust: bool = False) -> float | None:
    """Film a run's first demonstration by taking its actions again; None if it does not say how its episode began."""
    folder = RunFolder.open(path)
    config = _subject(folder, trust=trust)
    shown = demos.load(folder.demos)[0]
    if shown.seed is None or shown.stride > 1:
        return None
    spec = EnvSpec.from_json(folder.metadata["environment"])
    encoded = ActionCodec(spec).encode(shown.actions)
    actions = iter(encoded[:, None])
    # an episode that goes on longer than the demonstration repeats its last action
    replay = lambda _: next(actions, encoded[-1:])  # noqa: E731
    return record_video(config.env, replay, folder.path / "expert.gif", reset_seed=shown.seed, horizon=config.horizon)
