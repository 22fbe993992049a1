"""Learners, planners and certificates compute what they always did: bit for bit where they were written, else nearly.

A difference that is meant is written with `python tests/golden_traces.py --write name`.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import golden_traces
from golden_traces import DRIFT, SLOW, TRACES, first_difference

QUICK = [name for name in TRACES if name not in SLOW]


@pytest.mark.parametrize("name", QUICK)
def test_nothing_has_changed(name: str) -> None:
    if "trpo" in name and not golden_traces.written_here(name):
        pytest.skip("written in other surroundings: TRPO's line search turns a last digit into another step")
    difference = golden_traces.check(name, TRACES[name]())
    assert difference is None, f"{name}: {difference}"


@pytest.mark.slow
@pytest.mark.parametrize("names", [SLOW[::2], SLOW[1::2]], ids=["first", "second"])
def test_nothing_has_changed_in_any_pair_of_players(names: tuple[str, ...]) -> None:
    """In a process of its own: slow tests compile with all optimisations, which round differently."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    command = [sys.executable, Path(golden_traces.__file__).resolve(), "--check", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_trace_is_written_and_nothing_else() -> None:
    assert {path.stem for path in golden_traces.FOLDER.glob("*.safetensors")} == TRACES.keys()


def test_the_first_difference_is_found_by_one_bit() -> None:
    expected, _ = golden_traces.read("learn-mdpo-neural-continuous")
    order = sorted(expected, key=lambda name: not name.startswith("blocks/"))

    def changed(*places: tuple[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        copied = {name: expected[name].copy() for name in order}
        for name, index in places:
            bits = copied[name].view(f"u{copied[name].dtype.itemsize}")
            bits[index] ^= 1
        return copied

    assert first_difference(expected, changed()) is None
    late, early, end = ("blocks/costs", (5, 2)), ("blocks/entropy", (3,)), ("end/cost/mean", (1,))
    found = first_difference(expected, changed(late, early, end))
    assert found is not None
    assert (found.name, found.index) == early
    assert set(found.differing) == {late[0], early[0], end[0]}
    assert str(found).startswith("first difference at block 3, entropy: expected")
    assert "3 arrays differ" in str(found)
    found = first_difference(expected, changed(end))
    assert found is not None
    assert (found.name, found.index) == end
    assert (found.expected, found.got) == (expected["end/cost/mean"][1], changed(end)["end/cost/mean"][1])
    assert first_difference(expected, changed(late, early, end), DRIFT) is None, "one bit is rounding elsewhere"


def test_arrays_that_are_lost_or_of_another_shape_are_differences() -> None:
    one = {"a": np.zeros(3), "b": np.zeros(2)}
    for expected, got, name in (
        (one, {"a": one["a"]}, "b"),
        ({"a": one["a"]}, one, "b"),
        (one, {**one, "a": np.zeros(4)}, "a"),
        (one, {**one, "b": np.zeros(2, np.float32)}, "b"),
    ):
        found = first_difference(expected, got)
        assert found is not None
        assert found.name == name
    assert first_difference({"a": np.array([np.nan, 1.0])}, {"a": np.array([np.nan, 1.0 + 1e-9])}, DRIFT) is None
    assert first_difference({"a": np.array([1.0])}, {"a": np.array([1.1])}, DRIFT) is not None
