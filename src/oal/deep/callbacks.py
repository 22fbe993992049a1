"""What may look on while a learner learns: evaluation, records, checkpoints, early stop, loggers.

A callback is any function of the learner that is called after every block; returning False stops learning. Those here
act whenever a multiple of `every` environment steps was passed, and keep nothing that a resumed run would miss, but for
the score of the best policy so far: give a new `Evaluate` the `best_score` of the one before it.
"""

import importlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from oal.base import stopping
from oal.deep.loop import OAL, Scored
from oal.envs import Evaluation
from oal.errors import InputError, MissingExtraError, at_least, choice

_GROUPS = {
    "evaluation": ("evaluation_",),
    "behaviour": ("return", "length", "al_regret"),
    "time": ("seconds",),
    "cost": ("cost_", "evidence", "absorbing_mass", "feature_gap"),
}
"""Groups of metrics by how their names begin; the others are the policy player's."""

Sink = Callable[[Mapping[str, Any]], None]
"""Takes one record: a step and named numbers."""


class Every:
    """Act whenever a multiple of `every` steps was passed, and at the end of learning."""

    def __init__(self, every: int) -> None:
        at_least("every", every, 1)
        self.every = every

    def due(self, learner: OAL) -> bool:
        return learner.passed(self.every) or learner.step >= learner.goal

    def __call__(self, learner: OAL) -> bool | None:
        return self.act(learner) if self.due(learner) else None

    def act(self, learner: OAL) -> bool | None:
        raise NotImplementedError


def evaluation_notes(evaluation: Evaluation) -> dict[str, Any]:
    """What a record says of an evaluation; without rewards there is no return."""
    known = bool(np.isfinite(evaluation.returns).all())
    distance = {} if evaluation.distance is None else {"evaluation_distance": evaluation.distance}
    return {
        **distance,
        "evaluation_return": evaluation.mean_return if known else None,
        "evaluation_returns": evaluation.returns.tolist() if known else None,
        "evaluation_length": float(np.mean(evaluation.lengths)),
    }


Select = Literal["distance", "return"]
"""What the best policy is: the one nearest to the demonstrations, or the one with the largest return."""


def score(record: Mapping[str, Any], select: Select) -> float | None:
    """Return what a record's evaluation is worth, the larger the better; None without one."""
    if select == "return":
        return record.get("evaluation_return")
    distance = record.get("evaluation_distance")
    return None if distance is None else -distance


class Evaluate(Every):
    """Run whole episodes of the deterministic policy on environments of its own; keep the best policy in a file.

    The best is the one nearest to the demonstrations: nobody who imitates needs a reward. Without demonstrations, or
    with `select="return"`, it is the one with the largest return.
    """

    def __init__(
        self,
        every: int = 5_000,
        *,
        episodes: int = 10,
        best: str | os.PathLike[str] | None = None,
        select: Select = "distance",
    ) -> None:
        super().__init__(every)
        at_least("episodes", episodes, 1)
        self.episodes, self.best = episodes, None if best is None else Path(best)
        self.select: Select = choice("select", select, ("distance", "return"))
        self.best_score = -np.inf

    def act(self, learner: OAL) -> None:
        evaluation = learner.evaluate(episodes=self.episodes)
        if not learner.rewarded:
            evaluation = evaluation.without_returns()
        learner.scored = Scored(learner.step, evaluation)
        found = score(evaluation_notes(evaluation), self.select if learner.demos is not None else "return")
        # on a tie the later policy: it has seen more
        if found is not None and found >= self.best_score:
            self.best_score = found
            if self.best is not None:
                learner.policy().save(self.best)


class Record(Every):
    """Collect what happened since the last record and hand it to sinks: a run folder's log, TensorBoard, W&B."""

    def __init__(self, every: int = 1_000, *sinks: Sink) -> None:
        super().__init__(every)
        self.sinks = sinks
        self.last: dict[str, Any] = {}
        self._recorded: Scored | None = None

    def due(self, learner: OAL) -> bool:
        """Also when there is a new evaluation, which must not wait for the next record."""
        return learner.scored is not self._recorded or super().due(learner)

    def act(self, learner: OAL) -> None:
        self.last = learner.record()
        if learner.scored is not None and learner.scored is not self._recorded:
            self.last |= evaluation_notes(learner.scored.evaluation)
            self._recorded = learner.scored
        for sink in self.sinks:
            sink(self.last)


class Checkpoint(Every):
    """Save everything; the checkpoint before it is kept too. A signal that asks to stop is answered here.

    Also by the clock, every so many `seconds` (0: never), unless a simulator's state cannot be saved: episodes end with
    a checkpoint there, and what is learned must not depend on the clock.
    """

    def __init__(self, every: int, path: str | os.PathLike[str], *, seconds: float = stopping.KEEP_SECONDS) -> None:
        super().__init__(every)
        at_least("seconds", seconds, 0)
        self.path, self.pace = Path(path), stopping.Pace(seconds)

    def due(self, learner: OAL) -> bool:
        if super().due(learner) or stopping.asked():
            return True
        if self.pace.due() and learner.envs.state() is None:
            self.pace.seconds = 0
        return self.pace.due()

    def act(self, learner: OAL) -> bool:
        with self.pace.keeping():
            learner.save(self.path, keep_previous=True)
        return not stopping.asked()


class StopAtReturn:
    """Stop once an evaluation (by an `Evaluate` beside this) reaches a mean return."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, learner: OAL) -> bool:
        # a return that is not known (NaN) reaches nothing
        return learner.scored is None or not learner.scored.evaluation.mean_return >= self.threshold


def tensorboard_sink(folder: str | os.PathLike[str]) -> Sink:
    """Write records as TensorBoard scalars, so that `tensorboard --logdir` shows them beside others."""
    try:
        # generated code, of which type checkers know nothing
        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingExtraError("tensorboard", extra="tensorboard", needed_for="logging to TensorBoard") from None
    if Path(folder).is_symlink():
        raise InputError(f"{folder} is a link: nothing is written there; remove it")
    writer = EventFileWriter(str(folder))

    def write(record: Mapping[str, Any]) -> None:
        values = [summaries.Summary.Value(tag=grouped(name), simple_value=x) for name, x in _scalars(record).items()]
        summary = summaries.Summary(value=values)
        writer.add_event(events.Event(step=int(record["step"]), wall_time=time.time(), summary=summary))
        writer.flush()

    return write


def wandb_sink(project: str, config: Mapping[str, Any], *, name: str | None = None) -> Sink:
    """Send records to Weights & Biases (offline too, with WANDB_MODE=offline)."""
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError:
        raise MissingExtraError("wandb", extra="wandb", needed_for="logging to Weights & Biases") from None
    if not project:
        raise InputError("W&B needs the name of a project")
    run = wandb.init(project=project, name=name, config=dict(config), resume="allow")
    return lambda record: run.log(
        {grouped(name): value for name, value in _scalars(record).items()}, step=int(record["step"])
    )


def grouped(name: str) -> str:
    """Return a metric's name with its group, under which TensorBoard and W&B show it: evaluation/return."""
    for group, starts in _GROUPS.items():
        for start in starts:
            if name.startswith(start):
                return f"{group}/{name.removeprefix(group + '_')}"
    return f"policy/{name}"


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}
    return {name: float(value) for name, value in numbers.items()}
