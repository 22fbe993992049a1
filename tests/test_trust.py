"""Files of others: whatever they are or hold, they are read or refused with an InputError, soon and in little space."""

import io
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oal.demos
from fuzz_demos import mutate_bytes, mutate_json, small_demos
from made_runs import CERTIFICATE, make_run, write
from oal import report
from oal.base import checkpoint, files, hdf5, jsontext, opening
from oal.base.folder import RunFolder
from oal.base.spaces import space_from_json
from oal.demos.hdf5 import read_minari
from oal.errors import InputError
from oal.report import results

ARRAYS = {
    "net/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "memory/rows": np.arange(8, dtype=np.float32).reshape(4, 2),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 2)),
}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail instead of waiting for ever, for a pipe that nobody writes to, say."""

    def stop(*_: object) -> None:
        pytest.fail(f"not done within {seconds} s")  # which no reader takes for a fault of the disk

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(read: Callable[[], Any]) -> str:
    with within(20), pytest.raises(InputError) as error:
        read()
    return str(error.value)


def error_of(read: Callable[[], Any], otherwise: str) -> str:
    """Return the message if what is read is refused; anything but an InputError is let through."""
    try:
        read()
    except InputError as error:
        return str(error)
    return otherwise


# The opener ----------------------------------------------------------------------------------------------------------


def become_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def become_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def become_outside_link(path: Path) -> None:
    outside = path.parent.parent / f"outside-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


ODD_FILES = (become_pipe, become_device, become_outside_link)


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    become_pipe(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path, says in (
            (tmp_path, "is a folder, not a file"),
            (tmp_path / "pipe", "is a named pipe, not a file"),
            (Path("/dev/zero"), "is a device, not a file"),
            (tmp_path / "socket", "cannot be read"),
            (tmp_path / "none", "there is no such file"),
            (tmp_path / "file" / "below", "cannot be read (Not a directory)"),
            ("a\0b", "cannot be read (embedded null byte)"),
        ):
            assert says in refused(lambda path=path: opening.opened(path))
    assert opening.read_bytes(tmp_path / "file", max_bytes=5) == b"12345"
    assert "takes 5 bytes: at most 4 are read" in refused(lambda: opening.opened(tmp_path / "file", max_bytes=4))
    with opening.opened(tmp_path / "file") as file:  # it grew after it was opened
        assert "more than 4 bytes" in refused(lambda: opening.content(file, max_bytes=4, where="it"))


def test_links_are_followed_inside_a_folder_only(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    for folder in (inside, outside):
        (folder / "file").write_bytes(b"1")
    (inside / "deep" / "near").symlink_to("../file")
    (inside / "far").symlink_to(outside / "file")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to("loop")
    assert opening.read_bytes(inside / "deep" / "near", inside=inside, max_bytes=9) == b"1"
    for name in ("far", "folder/file", "../out/file"):
        assert "is a link out of its folder" in refused(lambda name=name: opening.opened(inside / name, inside=inside))
    assert "cannot be read" in refused(lambda: opening.opened(inside / "loop", inside=inside))
    assert opening.read_bytes(inside / "far", max_bytes=9) == b"1"  # a path that the user typed
    (tmp_path / "link").symlink_to(inside)
    assert opening.read_bytes(tmp_path / "link" / "file", inside=tmp_path / "link", max_bytes=9) == b"1"


def test_no_descriptor_is_left_open(tmp_path):
    become_pipe(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        refused(lambda: opening.opened(tmp_path / "pipe"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("become", ODD_FILES)
@pytest.mark.parametrize("name", ["config.json", "metadata.json", "status.json", "metrics.jsonl"])
def test_run_folders_with_odd_files_are_lines_of_the_report(name, become, tmp_path):
    make_run(tmp_path / "good", steps=2_000)
    become(make_run(tmp_path / "bad", steps=2_000, seed=1) / name)
    with within(20):
        found = results.read([tmp_path])
    assert [run.folder.path.name for run in found.runs] == ["good"]
    assert [Path(each.name).name for each in found.failures] == ["bad"]


@pytest.mark.parametrize("become", ODD_FILES)
@pytest.mark.parametrize("name", ["certificate.json", "cost.json", "video.gif"])
def test_odd_files_beside_a_run_are_said(name, become, tmp_path):
    folder = make_run(tmp_path / "run", steps=2_000)
    (folder / name).write_bytes(b"{}")
    become(folder / name)
    with within(20):
        page = report.write([tmp_path], tmp_path / "report.html")[0].read_text()
    assert f"{folder / name} is " in page


def arrow_folder(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    small_demos().save(tmp_path / "hf" / "set")
    return tmp_path / "hf" / "set"


def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    small_demos().save("minari:some/small-v0")
    return tmp_path / "some" / "small-v0"


@pytest.mark.parametrize("become", ODD_FILES)
def test_odd_files_among_demonstrations_are_refused(become, tmp_path, monkeypatch):
    single = tmp_path / "files" / "demos.npz"
    small_demos().save(single)
    if become is not become_outside_link:
        become(single)
        assert "not a file" in refused(lambda: oal.demos.load(single))
    folder = arrow_folder(tmp_path)
    for path in (next(folder.glob("*.arrow")), folder / "about.json"):
        copy = tmp_path / "copies" / path.name
        shutil.copytree(folder, copy)
        become(copy / path.name)
        assert path.name in refused(lambda copy=copy: oal.demos.load(copy))
    folder = minari_folder(tmp_path, monkeypatch)
    for name in ("main_data.hdf5", "metadata.json"):
        copy = tmp_path / "copies" / name
        shutil.copytree(folder / "data", copy)
        become(copy / name)
        assert name in refused(lambda copy=copy: oal.demos.load(copy))


# What files may take -------------------------------------------------------------------------------------------------


def test_a_shard_counts_once_whatever_its_names(tmp_path):
    folder = arrow_folder(tmp_path)
    shard = next(folder.glob("*.arrow")).name
    state = json.loads((folder / "state.json").read_text())
    os.link(folder / shard, folder / "again.arrow")
    (folder / "link.arrow").symlink_to(shard)
    assert len(oal.demos.load(folder)) == 3
    for other in (shard, "again.arrow", "link.arrow"):
        write(folder / "state.json", {**state, "_data_files": [{"filename": shard}, {"filename": other}]})
        assert "more than once" in refused(lambda: oal.demos.load(folder))


def safetensors(header: dict[str, Any], data: bytes, **metadata: str) -> bytes:
    known = {"format": "oal", "version": "1", "kind": "test", "info": "{}"} | metadata
    text = json.dumps({"__metadata__": known, **header}).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "offsets, says",
    [
        ([(0, 16)] * 400, "does not begin where the one before it ends"),
        ([(0, 16), (12, 28)], "does not begin where the one before it ends"),
        ([(0, 16), (20, 36)], "does not begin where the one before it ends"),
        ([(4, 20)], "does not begin where"),
        ([(0, 16)], "belong to nothing"),
        ([(0, 16), (16, 32), (32, 48)], "cut short"),
    ],
)
def test_tensors_must_cover_the_file_once(offsets, says, tmp_path):
    header = {
        f"a{i}": {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}
        for i, (start, stop) in enumerate(offsets)
    }
    size = {1: 36, 2: 28 if offsets[1:2] == [(12, 28)] else 36, 3: 40, 400: 16}[len(offsets)]
    (tmp_path / "c").write_bytes(safetensors(header, bytes(size)))
    assert says in refused(lambda: checkpoint.load(tmp_path / "c", kind="test"))


def test_a_sparse_checkpoint_does_not_fill_the_memory(tmp_path):
    size = 1 << 40
    start = safetensors({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, b"")
    with (tmp_path / "c").open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    assert "bytes of memory" in refused(lambda: checkpoint.load(tmp_path / "c", kind="test"))


def test_a_minari_key_with_a_slash_leads_to_no_other_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.full((3, 1), 42.0)
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group.create_group("observations")["good/x"] = np.zeros((3, 1))
        group["observations/link"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "/")
        group["observations/soft"] = h5py.SoftLink("/episode_0/observations/good")
        group["actions"], group["rewards"] = np.zeros((2, 1)), np.zeros(2)
        group["terminations"] = group["truncations"] = np.zeros(2, bool)
    box = {"type": "Box", "dtype": "float64", "shape": [1], "low": -1, "high": 1}

    def read(key: str) -> oal.demos.Demos:
        room = json.dumps({"type": "Dict", "subspaces": {key: box}})
        metadata = {"total_episodes": 1, "observation_space": room, "action_space": json.dumps(box)}
        return read_minari(json.dumps(metadata).encode(), str(tmp_path / "main_data.hdf5"), "it")

    for key in ("link/x", "soft/x"):
        assert "is a link to elsewhere" in refused(lambda key=key: read(key))
    for key in ("", ".", "/", "./good/x", "good//x", "/episode_0/rewards", "good/x/y", "\ud800", "a\0b"):
        assert refused(lambda key=key: read(key))
    assert read("good/x")[0].observations.shape == (3, 1)


def test_many_chunks_take_time_in_proportion(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    count = 30_000
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", (count, 1), "f4", chunks=(1, 1), compression="gzip")
        dataset[:] = np.arange(count, dtype=np.float32)[:, None]
    start = time.process_time()
    with hdf5.Fields.open(str(path), "it", oal.demos.Budget()) as fields:
        assert np.array_equal(fields.read("a")[:, 0], np.arange(count))
        assert time.process_time() - start < 3  # 8 s when every chunk was looked for among all
        monkeypatch.setattr(hdf5, "MAX_CHUNKS", count - 1)
        assert "is cut into 30000 chunks" in refused(lambda: fields.read("a"))


# JSON ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, says",
    [
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("[" * 200_000, "not valid JSON"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "not valid JSON"),
        ("9" * 101, "has 101 digits"),
        ("-" + "9" * 5_000, "digits"),
        ('["\\ud800"]', "half of a character"),
        ('{"\\uDFFF": 1}', "half of a character"),
        ("\ud800", "not valid text"),
        (b'"\xff"', "not valid text"),
        (b'"' + b"x" * 100 + b'"', "characters long"),
        ("", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
    ],
)
def test_json_that_is_refused(text, says):
    longest = 50 if says == "characters long" else 10**6
    assert says in refused(lambda: jsontext.parse("it", text, max_characters=longest))
    assert refused(lambda: jsontext.parse("it", text, max_characters=longest)).startswith("it ")


def test_json_that_is_read():
    assert jsontext.parse("it", "[" * 100 + "]" * 100)
    assert jsontext.parse("it", "[[], {}]".replace("[]", ",".join(["[]"] * 500))) is not None
    assert jsontext.parse("it", '{"a": 1, "a": 2}') == {"a": 2}
    assert jsontext.parse("it", '"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"
    assert jsontext.parse("it", str(2**127)) == 2**127
    assert jsontext.parse("it", "[NaN, -Infinity]", not_finite="null") == [None, None]
    assert str(jsontext.parse("it", "[NaN, -Infinity]")) == "[nan, -inf]"
    assert "NaN is no JSON number" in refused(lambda: jsontext.parse("it", "[NaN]", not_finite="refused"))


def test_fields_are_of_the_type_expected():
    for value, kind in ((1, int), (1, float), (0.5, float), ("a", str), ([], list), ({}, dict), (True, bool)):
        assert jsontext.expect(value, "it", kind) == value
    for value, kind, wanted in (
        (True, int, "a whole number"),
        (False, float, "a number"),
        (1.0, int, "a whole number"),
        ("1", int, "a whole number"),
        (None, str, "text"),
        (1, bool, "true or false"),
        ([], dict, "a dictionary"),
    ):
        assert refused(lambda v=value, k=kind: jsontext.expect(v, "it", k)) == f"it is {value!r}: it must be {wanted}"
    assert jsontext.expect(None, "it", str, or_none=True) is None
    assert jsontext.field("it", {"a": 1}, "a", int) == 1
    assert refused(lambda: jsontext.field("it", {}, "a", int)) == "it: 'a' is missing"


BOX = {"type": "Box", "dtype": "float64", "shape": [1], "low": -1, "high": 1}


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Dict", "subspaces": [BOX]},
        {"type": "Tuple", "subspaces": {"a": BOX}},
        {"type": "Dict", "subspaces": 3},
        {"type": "Tuple", "subspaces": None},
        {"type": ["Dict"], "subspaces": {}},
    ],
)
def test_composite_spaces_of_the_wrong_type_are_refused(space):
    assert refused(lambda: space_from_json("here", space)).startswith("here")


@pytest.mark.parametrize(
    "space, part",
    [
        ({"type": "Dict", "subspaces": {"a": BOX}}, np.zeros((0, 1))),
        ({"type": "Dict", "subspaces": {"a": {"type": "Discrete", "n": 2, "start": 0}}}, np.zeros(0, int)),
        ({"type": "Dict", "subspaces": {"a": {**BOX, "shape": [0]}}}, np.zeros((0, 0))),
        ({"type": "Dict", "subspaces": {}}, np.zeros((0, 1))),
    ],
)
def test_composite_spaces_without_rows_or_parts_are_refused(space, part):
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group("episode_0")
        group["observations/a"] = part
        group["actions"], group["rewards"] = np.zeros((2, 1)), np.zeros(2)
        group["terminations"] = group["truncations"] = np.zeros(2, bool)
    metadata = {"total_episodes": 1, "observation_space": json.dumps(space), "action_space": json.dumps(BOX)}
    assert refused(lambda: read_minari(json.dumps(metadata).encode(), buffer, "it")).startswith("it")


def test_half_characters_in_demonstrations_are_refused(tmp_path, monkeypatch):
    folder = minari_folder(tmp_path, monkeypatch)
    path = folder / "data" / "metadata.json"
    value = json.loads(path.read_text())
    del value["oal"]
    path.write_text(json.dumps({**value, "author": "HOLE"}).replace("HOLE", "\\ud800"))
    assert "half of a character" in refused(lambda: oal.demos.load(folder))


# Run folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value",
    [
        ("status.json", {"status": ["finished"], "step": 1}),
        ("status.json", {"status": {}, "step": 1}),
        ("status.json", {"status": "finished", "step": "1"}),
        ("status.json", {"status": "finished", "step": None}),
        ("status.json", {"status": "failed", "error": [1]}),
        ("config.json", {"format": 1, "config": {"env": "Hopper-v5", "total_steps": [1]}}),
        ("config.json", {"format": 1, "config": {"env": "Hopper-v5", "total_steps": None}}),
        ("config.json", {"format": 1, "config": {"env": "Hopper-v5", "seed": {}}}),
        ("metrics.jsonl", {"step": "1"}),
        ("metrics.jsonl", {"step": 1, "evaluation_return": [1]}),
        ("metrics.jsonl", {"step": 1, "return": {}}),
    ],
)
def test_wrong_types_in_a_run_folder_are_damage(name, value, tmp_path):
    folder = RunFolder(make_run(tmp_path / "run", steps=2_000))
    write(folder.path / name, value)

    def read() -> None:
        _ = folder.config, folder.status
        folder.rewind(0)

    assert name in refused(read)


def test_damaged_run_folders_do_not_stop_the_report(tmp_path):
    """All kinds of files, values in place of others and bytes: `tests/fuzz_demos.py` says how."""
    make_run(tmp_path / "good", steps=2_000)
    names = ("config.json", "metadata.json", "status.json", "metrics.jsonl", "certificate.json", "cost.json")
    for index in range(60):
        rng = random.Random(f"run {index}")
        folder = make_run(tmp_path / f"bad{index}", seed=index + 1, steps=2_000)
        write(folder / "certificate.json", CERTIFICATE)
        write(folder / "cost.json", {"features": ["a", "b"], "weights": [1.0, 2.0], "absorbing": 0.5})
        path = folder / rng.choice(names)
        lines = path.read_text().splitlines()
        lines[0] = mutate_json(lines[0], rng)
        path.write_text("\n".join(lines))
        if rng.randrange(4) == 0:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    with within(60):
        page = report.write([tmp_path], tmp_path / "report.html", csv=True, latex_table=True)[0].read_text()
    assert str(tmp_path / "good") in page
    for found in RunFolder.find(tmp_path):
        for read in (lambda f=found: f.config, lambda f=found: f.status, lambda f=found: f.metadata, found.records):
            assert str(found) in error_of(read, str(found))


def test_records_are_appended_to_a_regular_file_only(tmp_path):
    folder = RunFolder(make_run(tmp_path / "run", steps=2_000))
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder.metrics.unlink()
    folder.metrics.symlink_to(precious)
    assert "nothing is written there" in refused(lambda: folder.log({"step": 1}))
    assert "out of its folder" in refused(lambda: folder.rewind(0))
    become_pipe(folder.metrics)
    assert "nothing is written there" in refused(lambda: folder.log({"step": 1}))
    assert precious.read_text() == "mine"


def test_records_that_cannot_be_opened_are_kept(tmp_path, monkeypatch):
    folder = RunFolder(make_run(tmp_path / "run", steps=2_000))
    before = folder.metrics.read_bytes()

    def no_descriptor(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "open", no_descriptor)
    assert "Too many open files" in refused(lambda: folder.log({"step": 3_000}))
    monkeypatch.undo()
    assert folder.metrics.read_bytes() == before


def test_metrics_have_a_largest_size(tmp_path, monkeypatch):
    folder = RunFolder(make_run(tmp_path / "run", steps=2_000))
    monkeypatch.setattr("oal.base.folder.MAX_RECORDS", 1)
    assert "has 2 lines: at most 1" in refused(folder.records)
    monkeypatch.setattr("oal.base.folder.MAX_METRICS", 10)
    assert "at most 10 are read" in refused(folder.records)


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, ARRAYS, {"step": 1}, kind="test")
    return path


@pytest.mark.parametrize("mapped", [[], ["memory/rows", "flags"]])
def test_one_flipped_bit_anywhere_is_noticed(saved, mapped):
    whole = saved.read_bytes()
    arrays, info = checkpoint.load(saved, kind="test", mapped=mapped)
    assert info == {"step": 1}
    assert arrays.keys() == ARRAYS.keys()
    for at in range(len(whole)):
        for bit in (at % 8, (at + 3) % 8):
            saved.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(checkpoint.DamagedError):
                checkpoint.load(saved, kind="test", mapped=mapped)
    for size in range(len(whole)):
        saved.write_bytes(whole[:size])
        with pytest.raises(checkpoint.DamagedError):
            checkpoint.load(saved, kind="test", mapped=mapped)


def test_headers_that_make_no_sense_are_refused(tmp_path):
    """Values of every odd kind in each place, as in old files, whose header has no digest."""
    entries, data = {}, b""
    for name, array in ARRAYS.items():
        dtype = {"f": "F32", "b": "BOOL"}[array.dtype.kind] if array.dtype != np.float64 else "F64"
        place = [len(data), len(data) + array.nbytes]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": place}
        data += array.tobytes()
    whole = safetensors(entries, data)
    path = tmp_path / "c"
    path.write_bytes(whole)
    arrays, _ = checkpoint.load(path, kind="test")
    assert all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())
    text = whole[8 : len(whole) - len(data)].decode()
    for index in range(300):
        mutant = mutate_json(text, random.Random(f"header {index}")).encode("utf-8", "replace")
        path.write_bytes(len(mutant).to_bytes(8, "little") + mutant + data)
        said = error_of(lambda: checkpoint.load(path, kind="test", mapped=["memory/rows"]), str(path))
        assert str(path) in said


def test_truth_values_are_zero_or_one(tmp_path):
    header = {"a": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / "c").write_bytes(safetensors(header, b"\1\2"))
    assert "neither true nor false" in refused(lambda: checkpoint.load(tmp_path / "c", kind="test"))


def test_a_checkpoint_replaced_while_it_is_read_is_never_mixed(tmp_path):
    path = tmp_path / "c"

    def write_one(value: int) -> None:
        arrays = {f"a{i}": np.full(64, value, np.int64) for i in range(12)}
        checkpoint.save(path, arrays, {"value": value}, kind="test")

    write_one(0)
    done = threading.Event()

    def replace() -> None:
        value = 0
        while not done.is_set():
            write_one(value := value + 1)

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    try:
        stop = time.monotonic() + 1.5
        while time.monotonic() < stop:
            arrays, info = checkpoint.load(path, kind="test", mapped=["a3", "a7"])
            assert {int(value) for array in arrays.values() for value in array} == {info["value"]}
            seen.add(info["value"])
    finally:
        done.set()
        writer.join()
    assert len(seen) > 5


@pytest.mark.parametrize("become", [become_pipe, become_device])
def test_a_checkpoint_is_a_regular_file(saved, become):
    become(saved)
    assert "not a file" in refused(lambda: checkpoint.load(saved, kind="test"))


def test_a_checkpoint_of_a_run_folder_does_not_lead_out_of_it(saved, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint.safetensors").symlink_to(saved)
    checkpoint.load(folder / "checkpoint.safetensors", kind="test")
    inside = {"kind": "test", "inside": folder}
    assert "out of its folder" in refused(lambda: checkpoint.load_newest(folder / "checkpoint.safetensors", **inside))


def steps_kept(path: Path) -> list[int]:
    return [checkpoint.load(each, kind="test")[1]["step"] for each in (path, checkpoint.previous(path))]


def test_the_last_two_are_kept_and_the_older_is_used_when_the_newer_is_damaged(saved):
    assert checkpoint.previous(saved).name == "checkpoint.previous.safetensors"
    for step in (2, 3):
        checkpoint.save(saved, ARRAYS, {"step": step}, kind="test", keep_previous=True)
    assert steps_kept(saved) == [3, 2]
    assert len(os.listdir(saved.parent)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.load_newest(saved, kind="test")[1] == {"step": 3}
    whole = saved.read_bytes()
    for newer in (whole[:-1], whole[:100] + b"!" + whole[101:], b"", None):
        saved.unlink() if newer is None else saved.write_bytes(newer)
        assert checkpoint.exists(saved)
        with pytest.warns(UserWarning, match=r"checkpoint before it is used, checkpoint\.previous") as said:
            assert checkpoint.load_newest(saved, kind="test", mapped=["memory/rows"])[1] == {"step": 2}
        assert len(said) == 1
        assert "\n" not in str(said[0].message)
    checkpoint.previous(saved).write_bytes(b"")
    assert "there is no such file" in refused(lambda: checkpoint.load_newest(saved, kind="test"))
    checkpoint.previous(saved).unlink()
    assert not checkpoint.exists(saved)


def test_the_older_is_not_used_in_place_of_another_kind_or_a_later_version(saved, monkeypatch):
    checkpoint.save(saved, ARRAYS, {"step": 2}, kind="policy", keep_previous=True)
    assert "holds a policy, not a test" in refused(lambda: checkpoint.load_newest(saved, kind="test"))
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 3)
    checkpoint.save(saved, ARRAYS, {"step": 3}, kind="test", keep_previous=True)
    monkeypatch.undo()
    assert "later version" in refused(lambda: checkpoint.load_newest(saved, kind="test"))


def test_a_full_disk_costs_neither_of_the_two(saved, monkeypatch):
    checkpoint.save(saved, ARRAYS, {"step": 2}, kind="test", keep_previous=True)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    refused(lambda: checkpoint.save(saved, ARRAYS, {"step": 3}, kind="test", keep_previous=True))
    monkeypatch.undo()
    assert steps_kept(saved) == [2, 1]
    assert len(os.listdir(saved.parent)) == 2


def test_without_hard_links_the_last_two_are_kept_all_the_same(saved, monkeypatch):
    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    checkpoint.save(saved, ARRAYS, {"step": 2}, kind="test", keep_previous=True)
    assert steps_kept(saved) == [2, 1]


def test_killed_at_any_moment_a_checkpoint_is_there(saved, monkeypatch):
    """At each step of a save that keeps the previous one, what is on the disk can be loaded."""
    seen = []

    def watched(name: str, of: Any) -> None:
        original = getattr(of, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(checkpoint.load_newest(saved, kind="test")[1]["step"])
            done = original(*arguments, **options)
            seen.append(checkpoint.load_newest(saved, kind="test")[1]["step"])
            return done

        monkeypatch.setattr(of, name, call)

    watched("link", os)
    watched("replace", Path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not even for a moment is the older one needed
        for step in (2, 3):
            checkpoint.save(saved, ARRAYS, {"step": step}, kind="test", keep_previous=True)
    assert seen == [1] * 5 + [2] * 6 + [3]


def test_files_of_the_project_are_read_as_before(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": [1, 2.5, None, "ü"]})
    assert files.read_json(tmp_path / "x.json") == {"a": [1, 2.5, None, "ü"]}
