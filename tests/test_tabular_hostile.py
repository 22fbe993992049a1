"""Saved tabular learners from strangers: every array damaged in several ways, refused or learned on without harm.

Run as a program it does the learning: `test_what_is_accepted_stays_inside_its_arrays` starts it with Numba's bounds
checks, which are off otherwise and cannot be switched on in a process that has compiled already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oal import mdp as mdps
from oal.base import npz
from oal.errors import InputError
from oal.tabular import Sampler, TabularOAL
from oal.tabular import slots as memory

KINDS: dict[str, dict[str, Any]] = {
    "layered": {"preset": "paper", "decompose": True, "keep_trajectories": True},
    "pooled": {"preset": "default", "cost_set": "l2"},
    "known": {"preset": "paper", "model": "known", "bonus": "bernstein"},
    "hashed": {"preset": "paper", "regret": "none"},
}


@cache
def problem(kind: str) -> mdps.FiniteMDP:
    states = 20_000 if kind == "hashed" else 7
    return mdps.garnet(n_states=states, n_actions=2, horizon=4, branching=3, seed=3, stationary=kind == "pooled")


def saved(kind: str, folder: Path) -> dict[str, np.ndarray]:
    """Learn a little, save, and return what the file holds."""
    mdp = problem(kind)
    demos = mdps.sample(mdp, mdps.expert_policy(mdp), 5, rng=np.random.default_rng(1))
    TabularOAL(mdp, demos, **KINDS[kind]).learn(30).save(folder / "learner.npz")
    return read(folder / "learner.npz")


def read(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file, npz.Archive(file, "test") as archive:
        return {name: archive.read(name) for name in archive.keys}


def damaged(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield the file with one array changed: (what was done, arrays)."""
    for name, array in arrays.items():
        if name == "about":
            continue
        for what, changed in _changes(array):
            yield f"{name} {what}", arrays | {name: changed}
        yield f"{name} gone", {key: value for key, value in arrays.items() if key != name}


def _changes(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "shorter", array[:-1].copy()
    yield "longer", np.concatenate([array, array[-1:]] if len(array) else [np.ones((1, *array.shape[1:]), array.dtype)])
    yield "empty", array[:0].copy()
    yield "one number", array.ravel()[:1].reshape(()) if array.size else np.zeros((), array.dtype)
    yield "of another type", array.astype(np.float32 if array.dtype.kind in "iu" else np.int64)
    yield "in the other byte order", array.astype(array.dtype.newbyteorder())
    if not array.size:
        return
    yield "reversed", array[::-1].copy()
    values: tuple[Any, ...] = (np.nan, np.inf, -np.inf, -1.0, 1e300)
    if array.dtype.kind in "iu":
        top = np.iinfo(array.dtype)
        values = (top.max, top.min, 1, 5, 6, 7, 100, *(() if array.dtype.kind == "u" else (-1, -(1 << 20))))
    for value in values:
        yield f"all {value}", np.full_like(array, value)
        for place in {0, array.size // 2, array.size - 1}:
            changed = array.copy()
            changed.reshape(-1)[place] = value
            yield f"{value} at {place}", changed
    if array.dtype.kind in "iu":
        for step in (1, -1):
            changed = array.copy()
            changed.reshape(-1)[array.size // 2] += np.array(step).astype(array.dtype)
            yield f"{step:+d} in the middle", changed


def about(arrays: dict[str, np.ndarray], **changes: Any) -> dict[str, np.ndarray]:
    return arrays | {"about": npz.text(json.dumps(json.loads(str(arrays["about"])) | changes))}


def load(arrays: dict[str, np.ndarray], path: Path, kind: str = "layered") -> TabularOAL:
    np.savez(path, **arrays)  # quicker than our own, which packs and flushes: there are thousands
    return TabularOAL.load(path, problem(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_is_checked_before_compiled_code_sees_it(kind: str, tmp_path: Path) -> None:
    """Refused with our own error, or taken over into memory whose table leads to each state's own place."""
    refused = 0
    # every fourth, another fourth for each kind; the slow test takes all
    for what, arrays in islice(damaged(saved(kind, tmp_path)), list(KINDS).index(kind), None, 4):
        try:
            learner = load(arrays, tmp_path / "damaged.npz", kind)
        except InputError:
            refused += 1
            continue
        slots = learner._slots
        for h, (first, count) in enumerate(zip(slots.base, slots.counts, strict=False)):
            for place, state in enumerate(slots.state[first : first + count]):
                key = h * learner.env.n_states + int(state)
                found = memory.find(slots.place_keys, slots.place_values, slots.hashing, key)
                assert found == place, what
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "change"),
    [
        # one more than its own layer has, though the largest layer has it
        ("place_values", lambda s: _one_past_its_layer(s)),
        ("edge_to", lambda s: _edge_past_its_layer(s)),
        ("edges_used", lambda s: s["edges_used"] * np.array([1, 0])),
        ("hashing", lambda s: np.array([1, 60], np.uint64)),
        ("hashing", lambda s: np.array([3, 0], np.uint64)),
        # a full table in which an unknown state is looked for without end
        ("place_keys", lambda s: np.where(s["place_keys"] < 0, 1 << 40, s["place_keys"])),
        ("edge_start", lambda s: np.where(s["edge_capacity"] > 0, 0, s["edge_start"])),
        ("policy", lambda s: np.full_like(s["policy"], np.nan)),
        ("logits", lambda s: np.full_like(s["logits"], -np.inf)),
        ("inverse", lambda s: s["inverse"] * 2),
    ],
)
def test_what_reached_the_kernels_is_refused_by_name(name: str, change: Any, tmp_path: Path) -> None:
    arrays = saved("layered", tmp_path)
    slots = {key.removeprefix("slots."): value for key, value in arrays.items()}
    with pytest.raises(InputError, match=r"damaged\.npz.*slots\."):
        load(arrays | {f"slots.{name}": change(slots)}, tmp_path / "damaged.npz")


def _one_past_its_layer(slots: dict[str, np.ndarray]) -> np.ndarray:
    small = int(np.argmin(slots["counts"]))
    values = slots["place_values"].copy()
    here = (slots["place_keys"] >= 0) & (slots["place_keys"] // 7 == small)
    values[np.flatnonzero(here)[0]] = slots["counts"][small]
    assert slots["counts"][small] <= slots["counts"].max()
    return values


def _edge_past_its_layer(slots: dict[str, np.ndarray]) -> np.ndarray:
    to = slots["edge_to"].copy()
    row, action = np.argwhere(slots["edge_count"] > 0)[0]
    to[slots["edge_start"][row, action]] = slots["counts"][1]
    return to


@pytest.mark.parametrize(
    "changes",
    [
        {"episodes": -1},
        {"episodes": 10**30},
        {"episodes": True},
        {"episodes": None},
        {"keep_trajectories": "yes"},
        {"decompose": 1},
        {"seed": -1},
        {"seed": "x"},
        {"settings": {"bonus_scale": "much"}},
        {"settings": {"anytime": 3}},
        {"settings": []},
        {"default_cost": float("nan")},
        {"shape": [4, 7]},
        {"cost_set": ["box"]},
        {"what": None},
        {"format": "1"},
    ],
)
def test_what_the_file_says_of_itself_is_checked(changes: dict[str, Any], tmp_path: Path) -> None:
    arrays = about(saved("layered", tmp_path), **changes)
    with pytest.raises(InputError):
        load(arrays, tmp_path / "damaged.npz")


def test_deeply_nested_text_is_refused(tmp_path: Path) -> None:
    arrays = saved("layered", tmp_path) | {"about": npz.text("[" * 100_000)}
    with pytest.raises(InputError):
        load(arrays, tmp_path / "damaged.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_file_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    arrays = saved(kind, tmp_path)
    resumed = load(arrays, tmp_path / "again.npz", kind).learn(20, planned=30)
    once = load(arrays, tmp_path / "again.npz", kind)
    once.save(tmp_path / "again.npz")
    again = TabularOAL.load(tmp_path / "again.npz", problem(kind)).learn(20, planned=30)
    np.testing.assert_array_equal(resumed.policy, again.policy)


def test_a_state_outside_of_the_space_is_refused_while_sampling() -> None:
    import gymnasium

    class Liar(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            return 1_000_000, 0.0, False, False, {}

    with pytest.raises(InputError, match="gave the state 1000000"):
        Sampler(Liar(), 3).episode(lambda h, s: 0)


@pytest.mark.slow
def test_what_is_accepted_stays_inside_its_arrays(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "accepted" in done.stdout


def main(folder: Path) -> None:
    accepted = 0
    for kind in KINDS:
        for what, arrays in damaged(saved(kind, folder)):
            print(kind, what, flush=True)  # the last line says what killed the process
            try:
                learner = load(arrays, folder / "damaged.npz", kind)
            except InputError:
                continue
            learner.learn(20)
            accepted += 1
    print(f"{accepted} accepted")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
