"""What looks on while a learner learns: when it acts, what it writes, how it stops."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oal.deep import callbacks
from oal.envs import Evaluation
from oal.errors import InputError, MissingExtraError


class Learner:
    """Steps through blocks and remembers what it was asked."""

    def __init__(self, returns: list[float], distances: list[float] | None = None) -> None:
        self.demos, self.distances = None if distances is None else "some", list(distances or [])
        self.step = self.block_begun = 0
        self.goal = 100
        self.scored: Any = None
        self.rewarded = True
        self.returns, self.saved, self.policies = list(returns), [], []

    def play(self, steps: int) -> None:
        self.block_begun, self.step = self.step, self.step + steps

    def passed(self, every: int) -> bool:
        return self.block_begun // every != self.step // every

    def evaluate(self, *, episodes: int) -> Evaluation:
        value = self.returns.pop(0)
        distance = self.distances.pop(0) if self.distances else None
        return Evaluation(np.full(episodes, value), np.full(episodes, 7), None, distance)

    def record(self) -> dict[str, Any]:
        return {"step": self.step, "seconds": 0.5, "text": "no number", "nothing": None}

    def save(self, path: Path, *, keep_previous: bool) -> None:
        assert keep_previous
        self.saved.append((self.step, path))

    def policy(self) -> Any:
        return SimpleNamespace(save=lambda path: self.policies.append((self.step, path)))


def acted(callback: Any, learner: Any, block: int, blocks: int) -> list[int]:
    steps = []
    for _ in range(blocks):
        learner.play(block)
        if callback.due(learner):
            steps.append(learner.step)
    return steps


@pytest.mark.parametrize(("block", "expected"), [(10, [30, 60, 90, 100]), (20, [40, 60, 100]), (50, [50, 100])])
def test_acts_when_a_multiple_was_passed_and_at_the_end(block: int, expected: list[int]) -> None:
    assert acted(callbacks.Checkpoint(30, "x"), Learner([]), block, 100 // block) == expected


def test_evaluation_keeps_the_best_and_the_later_of_equals(tmp_path: Path) -> None:
    learner: Any = Learner([1.0, 3.0, 2.0, 3.0])
    evaluate = callbacks.Evaluate(25, episodes=2, best=tmp_path / "best")
    for _ in range(4):
        learner.play(25)
        assert evaluate(learner) is None
    assert [step for step, _ in learner.policies] == [25, 50, 100]
    assert evaluate.best_score == 3.0
    assert learner.scored.step == 100
    notes = {"evaluation_return": 3.0, "evaluation_returns": [3.0, 3.0], "evaluation_length": 7.0}
    assert callbacks.evaluation_notes(learner.scored.evaluation) == notes


@pytest.mark.parametrize(("select", "kept"), [("distance", [25, 50]), ("return", [25, 75])])
def test_with_demonstrations_the_best_is_the_nearest(tmp_path: Path, select: Any, kept: list[int]) -> None:
    """The reward is not looked at, unless somebody asks for it."""
    learner: Any = Learner([1.0, 0.5, 3.0], distances=[0.4, 0.1, 0.2])
    evaluate = callbacks.Evaluate(25, episodes=2, best=tmp_path / "best", select=select)
    for _ in range(3):
        learner.play(25)
        evaluate(learner)
    assert [step for step, _ in learner.policies] == kept
    assert callbacks.evaluation_notes(learner.scored.evaluation)["evaluation_distance"] == 0.2


def test_early_stop_follows_the_evaluation() -> None:
    learner: Any = Learner([1.0, 3.0])
    evaluate, stop = callbacks.Evaluate(10, episodes=1), callbacks.StopAtReturn(2.5)
    learner.play(10)
    evaluate(learner)
    assert stop(learner) is True
    learner.play(10)
    evaluate(learner)
    assert stop(learner) is False


def test_a_return_that_is_not_known_stops_nothing() -> None:
    learner: Any = Learner([np.nan])
    evaluate = callbacks.Evaluate(10, episodes=1)
    learner.play(10)
    evaluate(learner)
    assert callbacks.StopAtReturn(2.5)(learner) is True


def test_records_go_to_every_sink() -> None:
    learner: Any = Learner([])
    seen: list[Any] = []
    record = callbacks.Record(10, seen.append, seen.append)
    learner.play(10)
    record(learner)
    assert [entry["step"] for entry in seen] == [10, 10]
    assert record.last["step"] == 10


def test_an_evaluation_between_two_records_is_recorded() -> None:
    learner: Any = Learner([1.0])
    seen: list[Any] = []
    evaluate, record = callbacks.Evaluate(15, episodes=1), callbacks.Record(40, seen.append)
    for _ in range(4):
        learner.play(10)
        evaluate(learner) if learner.step == 20 else None
        record(learner)
    assert [(entry["step"], entry.get("evaluation_return")) for entry in seen] == [(20, 1.0), (40, None)]


def test_the_order_of_callbacks_does_not_matter() -> None:
    """Two logs both get the evaluation, and an early stop before the evaluation stops one block later."""
    learner: Any = Learner([1.0, 3.0])
    first, second = [], []
    evaluate, stop = callbacks.Evaluate(20, episodes=1), callbacks.StopAtReturn(2.5)
    order = [callbacks.Record(100, first.append), stop, evaluate, callbacks.Record(100, second.append)]
    stopped = []
    for _ in range(5):
        learner.play(10)
        stopped.append(False in [callback(learner) for callback in order])
    assert [(entry["step"], entry.get("evaluation_return")) for entry in second] == [(20, 1.0), (40, 3.0)]
    assert [(entry["step"], entry.get("evaluation_return")) for entry in first] == [(30, 1.0), (50, 3.0)]
    assert stopped == [False, False, False, False, True]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = callbacks.tensorboard_sink(tmp_path)
    for step in (1000, 2000):
        sink({"step": step, "return": step / 10, "length": None, "evaluation_returns": [1.0]})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["behaviour/return"]
    assert [(event.step, event.value) for event in events.Scalars("behaviour/return")] == [(1000, 100.0), (2000, 200.0)]


def test_metrics_are_grouped() -> None:
    names = {
        "evaluation_return": "evaluation/return",
        "return": "behaviour/return",
        "al_regret_l2": "behaviour/al_regret_l2",
        "seconds": "time/seconds",
        "cost_loss": "cost/loss",
        "actor_loss": "policy/actor_loss",
    }
    assert {name: callbacks.grouped(name) for name in names} == names


def test_wandb_gets_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: logged.append((step, values)))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    callbacks.wandb_sink("project", {"seed": 0})({"step": 5, "return": 2, "text": "x", "nothing": None})
    assert logged == [(5, {"behaviour/return": 2.0})]
    with pytest.raises(InputError, match="project"):
        callbacks.wandb_sink("", {})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("wandb", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"oal\[wandb\]"):
        callbacks.wandb_sink("project", {})
    with pytest.raises(MissingExtraError, match=r"oal\[tensorboard\]"):
        callbacks.tensorboard_sink(tmp_path)


@pytest.mark.parametrize("every", [0, -1])
def test_intervals_must_be_positive(every: int) -> None:
    with pytest.raises(InputError, match="every"):
        callbacks.Checkpoint(every, "x")
