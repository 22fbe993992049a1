"""Checkpoint files: exact, atomic, and every kind of damage a clear error."""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from oal.base import checkpoint
from oal.errors import InputError

ARRAYS = {
    "a/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "key": np.array([1, 2**32 - 1], np.uint32),
    "flags": np.array([True, False]),
    "strided": np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
}
INFO = {"step": 3, "rng": {"state": 2**127 + 1}, "none": None}


def test_round_trip_is_exact_and_other_readers_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, ARRAYS, INFO, kind="test")
    arrays, info = checkpoint.load(path, kind="test")
    assert info == INFO
    theirs = load_file(path)
    assert arrays.keys() == ARRAYS.keys() == theirs.keys()
    for name, array in ARRAYS.items():
        for read in (arrays[name], theirs[name]):
            assert read.dtype == array.dtype
            assert read.shape == array.shape
            np.testing.assert_array_equal(read, array)


def test_a_mapped_array_is_the_files_and_survives_the_files_replacement(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    checkpoint.save(path, {"rows": rows, "empty": rows[:0]}, INFO, kind="test")
    arrays, _ = checkpoint.load(path, kind="test", mapped=["rows", "empty"])
    assert isinstance(arrays["rows"], np.memmap)
    assert not arrays["rows"].flags.writeable
    assert arrays["empty"].shape == (0, 2)
    checkpoint.save(path, {"rows": 0 * rows}, INFO, kind="test")
    np.testing.assert_array_equal(arrays["rows"], rows)


def test_the_previous_checkpoint_stays_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, ARRAYS, {"step": 1}, kind="test")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="No space left"):
        checkpoint.save(path, ARRAYS, {"step": 2}, kind="test")
    monkeypatch.undo()
    assert checkpoint.load(path, kind="test")[1] == {"step": 1}
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_damage_of_every_kind_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, ARRAYS, INFO, kind="test")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        if rng.random() < 0.3:
            damaged = damaged[: rng.integers(0, len(damaged))]
        else:
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(0, len(damaged))] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged))
        try:
            checkpoint.load(path, kind="test")
        except InputError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "header, message",
    [
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, "cut short"),
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}}, "does not fit"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}, "does not fit"),
        ({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, "damaged"),
    ],
)
def test_claims_beyond_the_file_are_refused(tmp_path: Path, header: dict[str, Any], message: str) -> None:
    metadata = {"format": "oal", "version": "1", "kind": "test", "info": "{}"}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    path = tmp_path / "c.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(InputError, match=message):
        checkpoint.load(path, kind="test")


def test_other_kinds_and_later_versions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, ARRAYS, INFO, kind="policy")
    with pytest.raises(InputError, match="holds a policy, not a test"):
        checkpoint.load(path, kind="test")
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 0)
    with pytest.raises(InputError, match="later version"):
        checkpoint.load(path, kind="policy")
    with pytest.raises(InputError, match="no such file"):
        checkpoint.load(tmp_path / "none", kind="test")
    with pytest.raises(InputError, match="'o' has type object"):
        checkpoint.save(path, {"o": np.array([None])}, {}, kind="test")


def test_a_tree_is_restored_or_the_difference_is_named() -> None:
    tree = {"layers": (jnp.ones((2, 3)), jnp.zeros(3)), "count": jnp.int32(4)}
    arrays = checkpoint.named(tree, "state")
    assert set(arrays) == {"state/layers/0", "state/layers/1", "state/count"}
    back = checkpoint.restored(tree, arrays, "state")
    np.testing.assert_array_equal(back["layers"][0], tree["layers"][0])
    assert back["count"] == 4
    with pytest.raises(InputError, match="lacks 'state/count'"):
        checkpoint.restored(tree, {k: v for k, v in arrays.items() if k != "state/count"}, "state")
    with pytest.raises(InputError, match="another environment"):
        checkpoint.restored(tree, {**arrays, "state/layers/1": np.zeros(5, np.float32)}, "state")
