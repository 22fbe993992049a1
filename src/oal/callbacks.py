"""What may look on while a learner learns: evaluation, records, checkpoints, early stop, loggers.

A callback is any function of the learner that is called after every block; returning False stops learning. Those here
act whenever a multiple of `every` environment steps was passed, and keep nothing that a resumed run would miss.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oal.errors import InputError, MissingExtraError, at_least
from oal.learner import OAL

Sink = Callable[[Mapping[str, Any]], None]
"""Takes one record: a step and named numbers."""


class Every:
    """Act whenever a multiple of `every` steps was passed, and at the end of learning."""

    def __init__(self, every: int) -> None:
        at_least("every", every, 1)
        self.every = every

    def due(self, learner: OAL) -> bool:
        return learner.block_begun // self.every != learner.step // self.every or learner.step >= learner.goal

    def __call__(self, learner: OAL) -> bool | None:
        return self.act(learner) if self.due(learner) else None

    def act(self, learner: OAL) -> bool | None:
        raise NotImplementedError


class Evaluate(Every):
    """Run whole episodes of the deterministic policy on environments of its own; keep the best policy in a file."""

    def __init__(self, every: int = 5_000, *, episodes: int = 10, best: str | os.PathLike[str] | None = None) -> None:
        super().__init__(every)
        at_least("episodes", episodes, 1)
        self.episodes, self.best = episodes, None if best is None else Path(best)
        self.best_return = -np.inf

    def act(self, learner: OAL) -> None:
        evaluation = learner.evaluate(episodes=self.episodes)
        learner.notes |= {
            "evaluation_return": evaluation.mean_return,
            "evaluation_returns": evaluation.returns.tolist(),
            "evaluation_length": float(np.mean(evaluation.lengths)),
        }
        # on a tie the later policy: it has seen more
        if evaluation.mean_return >= self.best_return:
            self.best_return = evaluation.mean_return
            if self.best is not None:
                learner.policy().save(self.best)


class Record(Every):
    """Collect what happened since the last record and hand it to sinks: a run folder's log, TensorBoard, W&B."""

    def __init__(self, every: int = 1_000, *sinks: Sink) -> None:
        super().__init__(every)
        self.sinks = sinks
        self.last: dict[str, Any] = {}

    def act(self, learner: OAL) -> None:
        self.last = learner.record()
        for sink in self.sinks:
            sink(self.last)


class Checkpoint(Every):
    """Save everything, over the checkpoint before it."""

    def __init__(self, every: int, path: str | os.PathLike[str]) -> None:
        super().__init__(every)
        self.path = Path(path)

    def act(self, learner: OAL) -> None:
        learner.save(self.path)


class StopAtReturn:
    """Stop once an evaluation (by an `Evaluate` that comes before this in the list) reaches a mean return."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, learner: OAL) -> bool:
        reached = learner.notes.get("evaluation_return")
        return reached is None or reached < self.threshold


def tensorboard_sink(folder: str | os.PathLike[str]) -> Sink:
    """Write records as TensorBoard scalars, so that `tensorboard --logdir` shows them beside others."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingExtraError("tensorboard", extra="tensorboard", needed_for="logging to TensorBoard") from None
    writer = EventFileWriter(str(folder))

    def write(record: Mapping[str, Any]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in _scalars(record).items()]
        writer.add_event(
            Event(step=int(record["step"]), wall_time=time.time(), summary=Summary(value=values))
        )
        writer.flush()

    return write


def wandb_sink(project: str, config: Mapping[str, Any], *, name: str | None = None) -> Sink:
    """Send records to Weights & Biases (offline too, with WANDB_MODE=offline)."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", extra="wandb", needed_for="logging to Weights & Biases") from None
    if not project:
        raise InputError("W&B needs the name of a project")
    run = wandb.init(project=project, name=name, config=dict(config), resume="allow")
    return lambda record: run.log(_scalars(record), step=int(record["step"]))


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}
    return {name: float(value) for name, value in numbers.items()}
