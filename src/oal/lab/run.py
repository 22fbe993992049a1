"""One training run in one folder: begin it, resume it, read what it left.

The folder is the only contract with reporting (see `oal.base.folder`). A run that is killed at any moment goes on from
its last checkpoint exactly as if it had never been stopped.
"""

import shlex
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from oal import demos
from oal.base import checkpoint, console, files, seeding, stopping
from oal.base import config as configs
from oal.base.folder import RunFolder
from oal.base.jsontext import expect, field
from oal.base.provenance import provenance
from oal.deep import callbacks, certificate
from oal.deep.bc import BC, BCConfig
from oal.deep.costs import CostBase
from oal.deep.learned_cost import LearnedCost, input_names
from oal.deep.loop import KIND, OAL, Callback
from oal.deep.paused import PausedCloning
from oal.deep.policy import Policy
from oal.deep.presets import ALGORITHMS, LearnerConfig
from oal.deep.verdict import Certificate
from oal.demos import Demos
from oal.demos.record import record_encoded
from oal.envs import (
    Act,
    ActionCodec,
    EnvSpec,
    Evaluation,
    UniformPolicy,
    describe,
    evaluate,
    hangs,
    id_from_file,
    make,
    record_video,
)
from oal.errors import InputError, at_least, whole

EXPERT = "expert"
COST_JSON = "cost.json"
RANDOM_EPISODES = 10
"""Episodes that measure what a random policy earns, the zero of the normalised return."""
_LATER = ("checkpoint_seconds", "step_timeout")
"""Fields that came later and change no result: a run that leaves them as they are has the name it always had."""


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
    checkpoint_seconds: float = stopping.KEEP_SECONDS
    """Checkpoints by the clock, between those; 0: none."""
    step_timeout: float = hangs.TIMEOUT_SECONDS
    """Seconds that a step or a reset of the environment may take; 0: any."""
    stop_at_return: float | None = None
    select: callbacks.Select = "distance"
    """What best.safetensors is: the policy nearest to the demonstrations, or the one with the largest return."""

    def __post_init__(self) -> None:
        at_least("steps", self.total_steps, 1)
        if self.trajectories is not None:
            at_least("trajectories", self.trajectories, 1)
        for name in ("subsample", "log_every", "evaluate_every", "evaluation_episodes", "checkpoint_every"):
            at_least(name, getattr(self, name), 1)
        at_least("checkpoint_seconds", self.checkpoint_seconds, 0)
        at_least("step_timeout", self.step_timeout, 0)
        if self.checkpoint_every % self.log_every:
            raise InputError(
                f"checkpoint_every is {self.checkpoint_every}: it must be a multiple of log_every ({self.log_every}), "
                "so that no record is cut in two"
            )

    @property
    def algorithm(self) -> str:
        return ALGORITHMS.get(self.learner.cost or "environment", "OAL")

    @property
    def kind(self) -> str:
        """What the folder of this run holds: a learner's run, or an expert's, which has no cost player."""
        return EXPERT if self.learner.cost is None else KIND

    def to_json(self) -> dict[str, Any]:
        """One flat object: the run's fields and the learner's beside them."""
        run = asdict(self)
        for name in _LATER:
            if run[name] == getattr(RunConfig, name):
                del run[name]
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
        select = "return" if learner.demos is None else config.select
        evaluation = callbacks.Evaluate(
            config.evaluate_every, episodes=config.evaluation_episodes, best=folder.best, select=select
        )
        record = callbacks.Record(config.log_every, folder.log, *sinks)
        records = list(folder.records())
        known = [callbacks.score(each, select) for each in records]
        evaluation.best_score = max((value for value in known if value is not None), default=-np.inf)
        returns = [each.get("evaluation_return") for each in records]
        highest = max((value for value in returns if value is not None), default=-np.inf)
        # first: what comes after writes files, and would make a deleted folder again
        steps: list[Callback] = [lambda _: folder.verify(), evaluation]
        if config.stop_at_return is not None:
            steps.append(callbacks.StopAtReturn(config.stop_at_return))
        steps += [
            record,
            callbacks.Checkpoint(config.checkpoint_every, folder.checkpoint, seconds=config.checkpoint_seconds),
            self._say_where,
        ]
        folder.set_status("running", step=learner.step)
        try:
            with stopping.going_on(self.command), stopping.deferred(), self._limited():
                # a run that was killed after its end or its early stop has nothing more to learn
                stopped = config.stop_at_return is not None and highest >= config.stop_at_return
                if learner.step < config.total_steps and not stopped:
                    # those of an earlier end would be taken for the last ones
                    for last in (folder.policy, folder.cost, folder.path / COST_JSON):
                        last.unlink(missing_ok=True)
                    if learner.pretrain(progress_bar=progress_bar):
                        # the clone is the first policy, and what learning is measured by
                        learner.policy().save(folder.clone)
                        evaluation.act(learner)
                        record.act(learner)
                    learner.learn(config.total_steps, callback=steps, progress_bar=progress_bar)
                if learner.step < config.total_steps:
                    stopping.check()
                self._finish()
        except KeyboardInterrupt:
            if folder.status["status"] == "finished":  # the signal came too late to stop anything
                raise
            folder.set_status("stopped", step=learner.step)
            raise
        except BaseException as error:
            folder.set_status("failed", step=learner.step, error=str(error), traceback=traceback.format_exc())
            raise
        finally:
            folder.release()
        return learner

    def _limited(self) -> AbstractContextManager[None]:
        def give_up(error: InputError) -> None:
            self.folder.set_status("failed", step=self.learner.step, error=str(error))

        return hangs.limited(self.config.step_timeout, self.config.env, give_up=give_up)

    @property
    def command(self) -> str:
        """The command that goes on with this run."""
        return _resume_command(self.folder.path, self.config.env)

    def _say_where(self, learner: OAL) -> None:
        if learner.passed(self.config.log_every):
            self.folder.set_status("running", step=learner.step)

    def _finish(self) -> None:
        folder, learner = self.folder, self.learner
        folder.verify()
        if learner.step < self.config.total_steps:  # stopped early, between two checkpoints
            learner.save(folder.checkpoint)
        learner.policy().save(folder.policy)
        if isinstance(learner.cost_player, CostBase):
            cost = LearnedCost.of(learner)
            cost.save(folder.cost)
            if self.config.learner.cost == "linear":
                files.write_json(folder.path / COST_JSON, cost.to_json())
        folder.write_table()
        folder.set_status("finished", step=learner.step)

    def worse_than_clone(self) -> str | None:
        """Say so if the last policy is further from the demonstrations than the clone it started from."""
        found = [(each.get("step"), each.get("evaluation_distance")) for each in self.folder.records()]
        distances = [(step, distance) for step, distance in found if distance is not None]
        if len(distances) < 2 or distances[0][0] != 0:
            return None
        begun, ended = (f"{distances[i][1]:.2g}" for i in (0, -1))
        if float(ended) <= float(begun):  # what looks the same in print is not worth a note
            return None
        return (
            f"the last policy is further from the demonstrations ({ended}) than the clone it started from ({begun}): "
            f"take {self.folder.best.name}, or {self.folder.clone.name}"
        )


def select(source: str, env: str, *, trajectories: int | None) -> tuple[Demos, Demos | None]:
    """Load demonstrations and split them: (to learn from, held out or None), both whole."""
    if not source and env not in demos.shipped():
        if ":" not in env:
            make(env).close()  # a mistyped environment is that, and no missing file
        raise InputError(
            f"no demonstrations of {env} are shipped, only of {', '.join(demos.shipped())}: name some with --demos FILE"
        )
    loaded = demos.load(source or env)
    if trajectories is not None and trajectories > len(loaded):
        raise InputError(
            f"{source or env} holds {console.counted(len(loaded), 'trajectory', 'trajectories')}, and {trajectories} "
            f"are to be learned from: say --trajectories {len(loaded)}, or 0 for all"
        )
    chosen = loaded if trajectories is None else loaded[:trajectories]
    rest = None if trajectories is None or trajectories == len(loaded) else loaded[trajectories:]
    return chosen, rest


def _metadata(
    chosen: Demos | None,
    held_out: Demos | None,
    spec: EnvSpec,
    env: str,
    seed: int,
    horizon: int | None,
    subsample: int = 1,
) -> dict[str, Any]:
    """Where a run comes from, and the two ends of the normalised return where there is an expert.

    The demonstrations are whole: what is left after subsampling does not tell the expert's return.
    """
    if chosen is None:
        return provenance() | {"environment": spec.to_json()}
    random = evaluate(env, UniformPolicy(spec, seed=seed).act, episodes=RANDOM_EPISODES, seed=seed, horizon=horizon)
    returns = chosen.returns if held_out is None or held_out.returns is None else held_out.returns
    known = tells(random.returns, chosen.returns, returns)
    parts = [part.returns for part in (chosen, held_out) if part is not None and part.returns is not None]
    return provenance() | {
        "demos_hash": chosen.subsample(subsample).content_hash,
        "environment": spec.to_json(),
        "rewarded": known,
        "expert_return": None if chosen.returns is None or not known else float(np.mean(chosen.returns)),
        "source_return": None if chosen.returns is None or not known else float(np.mean(np.concatenate(parts))),
        "held_out_return": None if returns is None or not known else float(np.mean(returns)),
        "random_return": random.mean_return if known else None,
    }


def tells(*returns: np.ndarray | None) -> bool:
    """Whether returns, of random episodes and of the expert's, say anything: not when they are NaN or all the same."""
    known = np.concatenate([part for part in returns if part is not None])
    return bool(np.isfinite(known).all() and np.ptp(known) > 1e-6 * np.abs(known).max())


def start(config: RunConfig, path: str | Path, *, demonstrations: tuple[Demos, Demos | None] | None = None) -> Run:
    """Begin a run in a new folder; `demonstrations` (to learn from, held out) stand for what `config.demos` names."""
    chosen, held_out = demonstrations or (None, None)
    if chosen is None and config.learner.cost is not None:
        chosen, held_out = select(config.demos, config.env, trajectories=config.trajectories)
    kept = None if chosen is None else chosen.subsample(config.subsample)
    with hangs.limited(config.step_timeout, config.env):
        learner = _learner(config, kept)
        about = (learner.spec, config.env, config.seed, config.horizon, config.subsample)
        metadata = _metadata(chosen, held_out, *about) | {
            "environment_state": "saved" if learner.envs.state() is not None else "episodes restart at each checkpoint",
        }
    # what is kept is what was learned from: flat, and within the bounds
    kept, held_out = (_fitting(part, learner.envs) for part in (kept, held_out))
    learner.rewarded = metadata.get("rewarded") is not False
    if config.stop_at_return is not None and not learner.rewarded:
        raise InputError(f"{config.env} gives no reward, or always the same: it cannot be stopped at a return")
    with stopping.going_on(_resume_command(path, config.env)), stopping.deferred():
        folder = RunFolder.create(path, config.to_json(), metadata, kind=config.kind)
        try:
            if held_out is not None:
                held_out.save(folder.held_out)
            if kept is not None:
                kept.save(folder.demos)  # last: a folder that has them can be resumed
            if stopping.asked():
                folder.set_status("stopped", step=0)
        except BaseException:
            folder.release()
            raise
    return Run(folder, config, learner)


def config_of(folder: RunFolder, *, trust: bool = False, env: str | None = None) -> RunConfig:
    """Read a run's configuration; an environment whose name runs code is refused without `trust`.

    `env` says again which environment it is, in place of `trust`. Its module or file may have moved.
    """
    config = RunConfig.from_json(folder.config)
    return replace(config, env=_environment(folder, config.env, trust=trust, env=env))


def _environment(folder: RunFolder, recorded: str, *, trust: bool, env: str | None) -> str:
    if env is None:
        id_from_file(recorded, str(folder), trust=trust)
        return recorded
    if env != recorded and not (":" in env and ":" in recorded):
        raise InputError(f"{folder} is a run on {recorded}, not on {env}")
    return env


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    step_timeout: float | None = None,
    checkpoint_seconds: float | None = None,
    trust: bool = False,
    env: str | None = None,
) -> Run:
    """Go on with a run from its last checkpoint, or from its beginning if it has none; a longer end may be given.

    `trust` allows the environment's name in the folder to import a module or run a file; or say it again as `env`.
    """
    given = {"total_steps": total_steps, "step_timeout": step_timeout, "checkpoint_seconds": checkpoint_seconds}
    folder = RunFolder.open(path)
    folder.lock()
    try:
        config = config_of(folder, trust=trust, env=env)
        if total_steps is not None:
            at_least("steps", total_steps, 1)
        config = replace(config, **{name: value for name, value in given.items() if value is not None})
        begun = checkpoint.exists(folder.checkpoint)
        if not begun and folder.status["status"] == "finished":
            raise InputError(
                f"{folder} has finished and holds no checkpoint to go on from: train anew, into another one"
            )
        with hangs.limited(config.step_timeout, config.env):
            learner = _learner(config, None if config.learner.cost is None else _kept(folder, folder.demos))
        learner.rewarded = folder.metadata.get("rewarded") is not False
        if begun:
            learner.restore(folder.checkpoint, inside=folder.path)
        if total_steps is not None and total_steps < learner.step:
            raise InputError(
                f"{folder} has taken {learner.step:,} steps, and {total_steps:,} are where it is to end: for "
                f"{total_steps:,} more, say --steps {learner.step + total_steps}"
            )
        if config.to_json() != folder.config:
            folder.describe(config.to_json(), folder.metadata, kind=config.kind)
        folder.rewind(learner.step if begun else -1)
    except BaseException:
        folder.release()
        raise
    return Run(folder, config, learner)


def _resume_command(path: str | Path, env: str) -> str:
    # an id that imports a module was typed by the user once, and comes from the folder then
    return f"oal resume {shlex.quote(str(path))}{' --trust' if ':' in env else ''}"


def _fitting(shown: Demos | None, env: Any) -> Demos | None:
    """Return demonstrations as an environment with these spaces shows itself; what does not fit was said before."""
    if shown is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return shown.check(observation_space=env.observation_space, action_space=env.action_space)


def _learner(config: RunConfig, chosen: Demos | None) -> OAL:
    return OAL(config.env, chosen, config=config.learner, seed=config.seed, horizon=config.horizon)


# ----------------------------------------------------------------------------------------------------------------
# Cloning alone

CLONE_KIND = "clone"


@dataclass(frozen=True)
class CloneConfig:
    """What is cloned, and how; the fields are those of a run's configuration."""

    env: str
    bc_config: BCConfig
    demos: str = ""
    trajectories: int | None = 10
    subsample: int = 1
    seed: int = 0
    horizon: int | None = None

    total_steps: ClassVar[int] = 0
    """It takes no steps in the environment."""

    def to_json(self) -> dict[str, Any]:
        return {"algorithm": "BC"} | asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CloneConfig":
        values = {name: item for name, item in value.items() if name != "algorithm"}
        cloning = configs.build(BCConfig, values.get("bc_config") or {}, name="bc")
        return configs.build(cls, {**values, "bc_config": cloning}, name="clone")


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
    step_timeout: float = hangs.TIMEOUT_SECONDS,
    progress_bar: bool = False,
) -> Evaluation:
    """Clone demonstrations into a run folder of its own: policy, and one record with its evaluation at step 0."""
    about = CloneConfig(env, config or BCConfig(), source, trajectories, subsample, seed, horizon)
    chosen, held_out = select(source, env, trajectories=trajectories)
    cloner = BC(env, chosen.subsample(subsample), config=about.bc_config, seed=seed, horizon=horizon)
    with hangs.limited(step_timeout, env), closing(make(env, horizon=horizon)) as made:
        metadata = _metadata(chosen, held_out, cloner.spec, env, seed, horizon, subsample)
        held_out = _fitting(held_out, made)
    metadata["evaluation_episodes"] = evaluation_episodes
    folder = RunFolder.create(path, about.to_json(), metadata, kind=CLONE_KIND)
    if held_out is not None:
        held_out.save(folder.held_out)
    cloner.demos.save(folder.demos)
    return _clone(folder, cloner, evaluation_episodes, progress_bar, step_timeout)


def resume_clone(
    path: str | Path, *, trust: bool = False, env: str | None = None, progress_bar: bool = False
) -> Evaluation:
    """Go on with cloning that was stopped; the demonstrations must be those that it was begun with."""
    folder = RunFolder.open(path, kind=CLONE_KIND)
    config, metadata, where = folder.config, folder.metadata, f"{folder}: config.json"
    env = _environment(folder, expect(config.get("env"), f"{where}: env", str), trust=trust, env=env)
    chosen, _ = select(
        expect(config.get("demos"), f"{where}: demos", str),
        env,
        trajectories=expect(config.get("trajectories"), f"{where}: trajectories", int, or_none=True),
    )
    chosen = chosen.subsample(whole(f"{where}: subsample", config.get("subsample"), 1))
    if chosen.content_hash != metadata.get("demos_hash"):
        raise InputError(f"{folder} was begun with other demonstrations than {config['demos'] or env}: clone them anew")
    folder.lock()
    fields = expect(config.get("bc_config"), f"{where}: bc_config", dict)
    cloner = BC(
        env,
        chosen,
        config=configs.build(BCConfig, fields, name="bc"),
        seed=whole(f"{where}: seed", config.get("seed"), 0),
        horizon=expect(config.get("horizon"), f"{where}: horizon", int, or_none=True),
    )
    folder.rewind(-1)
    episodes = whole(f"{folder}: metadata.json: evaluation_episodes", metadata.get("evaluation_episodes", 10), 1)
    return _clone(folder, cloner, episodes, progress_bar, hangs.TIMEOUT_SECONDS)


def _clone(folder: RunFolder, cloner: BC, episodes: int, progress_bar: bool, step_timeout: float) -> Evaluation:
    folder.set_status("running", step=0)
    try:
        with stopping.going_on(_resume_command(folder.path, folder.config["env"])), stopping.deferred():
            cloner.learn(progress_bar=progress_bar, paused=PausedCloning(folder.checkpoint))
            with hangs.limited(step_timeout, cloner.spec.env_id):
                evaluation = cloner.evaluate(episodes=episodes)
            if folder.metadata.get("rewarded") is False:
                evaluation = evaluation.without_returns()
            folder.verify()
            cloner.save(folder.policy)
            folder.log({"step": 0, **callbacks.evaluation_notes(evaluation)})
            folder.set_status("finished", step=0)
    except KeyboardInterrupt:
        if folder.status["status"] != "finished":
            folder.set_status("stopped", step=0)
        raise
    except BaseException as error:
        folder.set_status("failed", step=0, error=str(error), traceback=traceback.format_exc())
        raise
    finally:
        folder.release()
    return evaluation


# ----------------------------------------------------------------------------------------------------------------
# What a run left


def policy_of(folder: RunFolder, *, best: bool = False, env: str | None = None, trust: bool = False) -> Policy:
    """Load a run's last policy, or the one with the best evaluation; a run that goes on has its checkpoint's.

    `env` and `trust` are as in `resume`, and needed for a checkpoint only.
    """
    if best and not folder.best.exists():
        raise InputError(f"{folder} has no best policy: it was never evaluated; leave out --best")
    if best or folder.policy.exists():
        return Policy.load(folder.best if best else folder.policy, inside=folder.path)
    if not checkpoint.exists(folder.checkpoint):
        raise InputError(f"{folder} has neither a policy nor a checkpoint yet: let it run on")
    return OAL.load(folder.checkpoint, config_of(folder, env=env, trust=trust).env, inside=folder.path).policy()


class _Subject(NamedTuple):
    """What is said of a run of any kind: a learner's, a clone's or an expert's."""

    env: str
    seed: int
    horizon: int | None


def _subject(folder: RunFolder, *, trust: bool, env: str | None) -> _Subject:
    config, where = folder.config, f"{folder}: config.json"
    horizon = expect(config.get("horizon"), f"{where}: horizon", int, or_none=True)
    if horizon is not None:
        at_least(f"{where}: horizon", horizon, 1)
    subject = _Subject(field(where, config, "env", str), field(where, config, "seed", int), horizon)
    return subject._replace(env=_environment(folder, subject.env, trust=trust, env=env))


def _kept(folder: RunFolder, file: Path) -> Demos:
    """Load demonstrations that a run keeps in its folder."""
    return demos.load(file, inside=folder.path)


def _demonstrations(folder: RunFolder, given: str) -> tuple[Demos, Demos | None, str]:
    """What a policy is compared with, what else is known of the expert, and what the first are."""
    if given:
        return demos.load(given), None, "given"
    if not folder.demos.exists():
        raise InputError(f"{folder} holds no demonstrations to compare with: name some with --demos")
    learned = _kept(folder, folder.demos)
    if folder.kind == EXPERT:
        return learned, None, "own"
    if folder.held_out.exists():
        return _kept(folder, folder.held_out), learned, "held-out"
    return learned, None, "training"


def certify(
    path: str | Path,
    *,
    episodes: int = 20,
    best: bool = False,
    deterministic: bool = True,
    seed: int = 0,
    trust: bool = False,
    env: str | None = None,
    given: str = "",
    clone: str | Path | None = None,
) -> Certificate:
    """Measure how close a run's policy is to the expert, on fresh episodes; write it to certificate.json and .png.

    The demonstrations held out from learning are compared with, or those `given`; without any, those it learned from
    are, which flatters. An expert is compared with its own recorded episodes. `clone` is the run of a clone to stand
    beside the learner, in place of the one it started from. `trust` and `env` are as in `resume`.
    """
    folder = RunFolder.open(path)
    # an expert's trajectories are recorded from its best policy
    best = best or (folder.kind == EXPERT and folder.best.exists())
    subject = _subject(folder, trust=trust, env=env)
    policy = policy_of(folder, best=best, env=subject.env)
    spec = policy.spec
    held_out, training, against = _demonstrations(folder, given)
    if len(held_out) < 2:
        raise InputError(
            f"{folder} has one demonstration to compare with, and how much the expert's own episodes differ takes two: "
            "name a file of at least 2 with --demos, or learn from fewer (--trajectories)"
        )
    with closing(make(subject.env, horizon=subject.horizon)) as made:
        found = describe(made, horizon=subject.horizon)
        spec.expect(found, f"the policy of {folder}")
        names = input_names(found, made)
        held_out, training = (_fitting(part, made) for part in (held_out, training))
    assert held_out is not None

    def record(act: Act, count: int, *names: Any) -> Demos:
        # the run's own seed is in the stream, so that no initial state of its training or evaluation comes again
        start = seeding.integer(seed, "certificate-episodes", subject.seed, *names)
        recorded = record_encoded(subject.env, act, episodes=count, seed=start, horizon=subject.horizon)
        return recorded.without_rewards() if folder.metadata.get("rewarded") is False else recorded

    policy.rng = seeding.generator(seed, "certificate-actions", subject.seed)
    rollouts = record(policy.act if deterministic else policy.sample, episodes)
    beside = folder if clone is None else RunFolder.open(clone, kind=CLONE_KIND)
    other = beside.clone if clone is None else beside.policy
    result = certificate.certify(
        rollouts,
        held_out,
        training=training or (),
        spec=spec,
        cost=LearnedCost.load(folder.cost, inside=folder.path) if folder.cost.exists() else None,
        random_return=folder.metadata.get("random_return"),
        clone=record(Policy.load(other, inside=beside.path).act, episodes, 1) if other.exists() else (),
        random=record(UniformPolicy(spec, seed=seed).act, RANDOM_EPISODES, 2),
        against=against,
        names=names,
        seed=seed,
    )
    folder.verify()
    files.write_json(
        folder.certificate,
        {**result.to_json(), "policy": "best" if best else "last", "deterministic": deterministic},
    )
    result.picture(folder.path / "certificate")
    return result


def film(
    path: str | Path,
    video: str | Path | None = None,
    *,
    best: bool = False,
    seed: int = 0,
    trust: bool = False,
    env: str | None = None,
) -> float:
    """Film one episode of a run's policy, into the run folder unless told otherwise; return what it earned."""
    folder = RunFolder.open(path)
    config = _subject(folder, trust=trust, env=env)
    policy = policy_of(folder, best=best, env=config.env)
    with closing(make(config.env, horizon=config.horizon)) as made:
        policy.spec.expect(describe(made, horizon=config.horizon), f"the policy of {folder}")
    start = seeding.integer(seed, "video")
    return record_video(config.env, policy.act, video or folder.video, reset_seed=start, horizon=config.horizon)


def film_expert(path: str | Path, *, trust: bool = False, env: str | None = None) -> float | None:
    """Film a run's first demonstration by taking its actions again; None if it does not say how its episode began."""
    folder = RunFolder.open(path)
    config = _subject(folder, trust=trust, env=env)
    if not folder.demos.exists():
        return None
    shown = _kept(folder, folder.demos)[0]
    if shown.seed is None or shown.stride > 1:
        return None
    spec = EnvSpec.from_json(field(f"{folder}: metadata.json", folder.metadata, "environment", dict))
    encoded = ActionCodec(spec).encode(shown.actions)
    actions = iter(encoded[:, None])
    # an episode that goes on longer than the demonstration repeats its last action
    replay = lambda _: next(actions, encoded[-1:])  # noqa: E731
    return record_video(config.env, replay, folder.path / "expert.gif", reset_seed=shown.seed, horizon=config.horizon)
