"""Files that are broken, wrong or meant to harm: a clear error that names file and field, no pickle, little memory."""

import io
import json
import os
import pickle
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import oal.demos
from oal.base import npz
from oal.base.spaces import space_from_json
from oal.demos import Budget, Demos, Trajectory
from oal.demos.arrow import read_shards
from oal.demos.hdf5 import read_minari
from oal.errors import InputError

MEGABYTE = 1 << 20


class Mark:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def some_demos() -> Demos:
    trajectories = (Trajectory(np.ones((n + 1, 2), np.float32), np.ones((n, 1)), np.ones(n), True) for n in (3, 2))
    return Demos(tuple(trajectories), "Some-v0", spaces.Box(-1, 1, (2,)))


@pytest.fixture
def path(tmp_path) -> Path:
    some_demos().save(tmp_path / "demos.npz")
    return tmp_path / "demos.npz"


def change(path: Path, **members: np.ndarray | bytes | str | None) -> None:
    """Replace members of an archive: arrays, npy bytes, the text about it, or (None) nothing at all."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for key, value in members.items():
        if isinstance(value, str):
            value = np.array(value)
        if isinstance(value, np.ndarray):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, value)
            value = buffer.getvalue()
        contents[f"{key}.npy"] = value
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)


def about(path: Path, **changes) -> str:
    with np.load(path) as archive:
        return json.dumps({**json.loads(str(archive["about"])), **changes})


def refused(source: object, **options) -> str:
    """Load, expect an InputError, little memory and little time; return the message."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(InputError) as error:
            oal.demos.load(str(source), **options) if not isinstance(source, Callable) else source()
        seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 250 * MEGABYTE
    assert seconds < 10
    return str(error.value)


# Damage


def test_a_file_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 41), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert str(path) in refused(path)


def test_a_flipped_bit_is_noticed_or_harmless(path):
    whole, demos = path.read_bytes(), oal.demos.load(path)
    noticed = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            found: Demos | str = oal.demos.load(path)
        except InputError as error:
            found = str(error)
        noticed += isinstance(found, str)
        assert str(path) in found if isinstance(found, str) else found == demos  # a flipped date harms nobody
    assert noticed > len(whole) / 7 / 2


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "is empty"),
        (b"hello", "no .npz archive and no HDF5 file"),
        (b"\x93NUMPY\x01\x00", "a single .npy array"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "the HDF5 file is damaged"),
        (b"PK\x03\x04" + bytes(100), "zip directory is missing"),
    ],
)
def test_other_files_are_told_apart(content, says, tmp_path):
    (tmp_path / "thing").write_bytes(content)
    assert says in refused(tmp_path / "thing")


def test_folders_and_missing_files(tmp_path):
    assert "neither a Hugging Face dataset nor a Minari one" in refused(tmp_path)
    assert "there is no such file" in refused(tmp_path / "nothing.npz")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../other.arrow"}]}')
    assert "it must be one in the folder" in refused(tmp_path)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "other.arrow"}]}')
    assert "other.arrow cannot be read (No such file" in refused(tmp_path)


# Wrong contents


@pytest.mark.parametrize(
    "members, says",
    [
        ({"observations": np.full((7, 2), np.nan, np.float32)}, "episode 0: observations hold nan at step 0"),
        ({"actions": np.array([[1], [1], [1], [1], [-np.inf]])}, "episode 1: actions hold -inf at step 1"),
        ({"lengths": np.array([5, 0])}, "lengths: episode 1 has length 0"),
        ({"lengths": np.array([3, 3])}, "observations has shape (7, 2): the lengths of the episodes want 8 rows"),
        ({"lengths": np.array([3, -(2**63)])}, "lengths: episode 1 has length -9223372036854775808"),
        ({"lengths": np.array([2**63, 2**63], np.uint64)}, "want 18446744073709551618 rows"),
        ({"terminated": np.array([1, 0])}, "terminated has shape (2,) of int64: it must be a vector of 2 booleans"),
        ({"truncated": np.array([True])}, "truncated has shape (1,)"),
        ({"rewards": np.ones((5, 1))}, "episode 0: rewards have shape (3, 1)"),
        ({"has_final": None}, "array 'has_final' is missing; the file holds: about, lengths, terminated"),
        ({"about": np.zeros(3)}, "'about' is an array of float64, shape (3,): it must be one text"),
        ({"about": "[1"}, "about is not valid JSON"),
        ({"about": "{}"}, "does not say 'oal_demos'"),
        (
            {"observations": np.ones((7, 3), np.float32)},
            "the observation space Box(-1.0, 1.0, (2,), float32) wants (2,)",
        ),
    ],
)
def test_contents_that_make_no_sense(members, says, path):
    change(path, **members)
    message = refused(path)
    assert says in message
    assert message.startswith(str(path))


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"oal_demos": 2}, "format version 2, newer than 1: update oal"),
        ({"oal_demos": True}, "does not say 'oal_demos'"),
        ({"env_id": 3}, "env_id is 3: it must be text"),
        ({"seeds": [1]}, "seeds has 1 entries: the file has 2 episodes"),
        ({"seeds": [1, "x"]}, "seeds of episode 1 is 'x'"),
        ({"strides": [1, 2]}, "episode 1: stride is 2 with a final observation"),
        ({"metadata": [1]}, "metadata is [1]"),
        ({"metadata": {"x": float("nan")}}, "metadata cannot be written as JSON"),
        ({"observation_space": {"type": "Box"}}, "observation_space is {'type': 'Box'}, which is no space"),
        ({"action_space": {"type": "Graph"}}, "spaces are Box, Discrete"),
        ({"endings_known": "yes"}, "endings_known is 'yes'"),
        ({"initial_states": [{"qpos": ["x"]}, None]}, "initial_states of episode 0"),
    ],
)
def test_text_about_demonstrations_that_makes_no_sense(changes, says, path):
    change(path, about=about(path, **changes))
    assert says in refused(path)


def test_deep_json_is_refused(path):
    good = about(path)
    change(path, about="[" * 100_000)
    assert "not valid JSON" in refused(path)
    change(path, about=good.replace('"metadata": {}', '"metadata": ' + '{"a":' * 50 + "1" + "}" * 50))
    assert str(oal.demos.load(path).metadata).count("{") == 50


# Pickles


def test_the_mark_works(tmp_path):
    """Otherwise the tests below would prove nothing."""
    np.savez(tmp_path / "evil.npz", obs=np.array([Mark(tmp_path / "mark")], object))
    np.load(tmp_path / "evil.npz", allow_pickle=True)["obs"]
    assert (tmp_path / "mark").exists()


def test_pickles_beside_the_arrays_are_never_touched(tmp_path):
    evil = np.array([Mark(tmp_path / "mark")] * 5, dtype=object)
    starts = np.array([True, False, False, True, False])
    np.savez(tmp_path / "sb.npz", obs=np.ones((5, 2)), actions=np.ones((5, 1)), episode_starts=starts, ep_obs=evil)
    np.savez(
        tmp_path / "imitation.npz",
        obs=np.ones((7, 2)),
        acts=np.ones((5, 1)),
        indices=np.array([3]),
        terminal=np.array([True, True]),
        infos=evil,
    )
    for name in ("sb", "imitation"):
        assert oal.demos.load(tmp_path / f"{name}.npz").lengths.tolist() == [3, 2]
    assert not (tmp_path / "mark").exists()


def test_pickles_in_place_of_arrays_are_refused_by_name(path, tmp_path):
    evil = Mark(tmp_path / "mark")
    whole = path.read_bytes()
    objects = np.array([evil] * 7, dtype=object)
    cases = {
        "array 'observations' holds Python objects (pickles), which are never opened": {"observations": objects},
        "array 'actions' is not an npy array (a pickle in disguise is not opened)": {"actions": pickle.dumps(evil)},
        "array 'lengths' holds Python objects": {"lengths": np.zeros(2, [("a", "O")])},
        "array 'about' holds Python objects": {"about": np.array(evil, dtype=object)},
    }
    for says, members in cases.items():
        path.write_bytes(whole)
        change(path, **members)
        assert says in refused(path)
    path.write_bytes(pickle.dumps(evil))
    assert "is a Python pickle, which is never opened" in refused(path)
    path.write_bytes(pickle.dumps(evil, protocol=0))
    assert "no .npz archive" in refused(path)
    assert not (tmp_path / "mark").exists()


# Bombs


def npy_claiming(shape: str, data: bytes = b"", descr: str = "<f4") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def test_claimed_shapes_are_not_believed(path):
    whole = path.read_bytes()
    for shape in ("(1000000000000,)", "(1000000, 1000000)", "(4611686018427387904, 4)", "(" + "9" * 50 + ",)"):
        path.write_bytes(whole)
        change(path, observations=npy_claiming(shape, bytes(64)))
        assert "array 'observations'" in refused(path)
    for size in (10**12, 2**32 - 2):  # the zip directory lies as well
        path.write_bytes(whole)
        change(path, observations=npy_claiming(f"({(size - 128) // 4},)", bytes(64)))
        raw = bytearray(path.read_bytes())
        name = raw.rfind(b"observations.npy")
        raw[name - 46 + 24 : name - 46 + 28] = struct.pack("<I", size & 0xFFFFFFFF)
        path.write_bytes(raw)
        assert "array 'observations'" in refused(path)


def deflated(content: bytes) -> bytes:
    """Deflate to blocks that can be repeated and continued."""
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)


def test_a_zip_bomb_is_refused_before_it_unfolds(tmp_path):
    """A member of zeros that deflates a thousandfold: honest about its size, and beyond the budget."""
    size = 256 * MEGABYTE
    zeros = bytes(MEGABYTE)
    header = npy_claiming(f"({size // 4}, 1)")
    crc = zlib.crc32(header)
    for _ in range(size // MEGABYTE):
        crc = zlib.crc32(zeros, crc)
    packed = deflated(header) + deflated(zeros) * (size // MEGABYTE) + zlib.compress(b"", wbits=-15)
    some_demos().save(tmp_path / "bomb.npz")
    with zipfile.ZipFile(tmp_path / "bomb.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    # zipfile cannot store what is deflated already, so the archive is written by hand
    body, directory, count = b"", b"", 0
    members["observations.npy"] = packed
    for name, content in members.items():
        method, raw_size = (8, len(header) + size) if content is packed else (0, len(content))
        check = crc if content is packed else zlib.crc32(content)
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, check, len(content), raw_size, len(name), 0)
        directory += b"PK\x01\x02\x14\x00" + fields + bytes(10) + struct.pack("<I", len(body)) + name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + content
        count += 1
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(directory), len(body), 0)
    (tmp_path / "bomb.npz").write_bytes(body + directory + end)
    assert zipfile.ZipFile(tmp_path / "bomb.npz").testzip() is None  # a good archive, were it not for its size
    assert "array 'observations' would bring the file to more than" in refused(tmp_path / "bomb.npz")


def test_the_budget_can_be_raised_and_lowered(path):
    small = Budget(floor=16, ratio=0)
    assert "would bring the file to more than 16 bytes" in refused(path, budget=small)
    assert oal.demos.load(path, budget=Budget(floor=10_000, ratio=0)) == some_demos()


def test_many_members_are_refused_quickly(path):
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(2000):
            archive.writestr(f"{i}.npy", b"")
    assert "holds 2008 members, more than the 1024 allowed" in refused(path)
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(18_000):
            archive.writestr(f"more{i}.npy", b"")
    assert "its zip directory claims" in refused(path)


def test_many_episodes_are_refused(path):
    count = 1 << 18
    steps = np.zeros((count, 1), np.uint8)
    flags = np.zeros(count, bool)
    npz.write(
        path,
        {
            "about": np.array('{"oal_demos": 1}'),
            "lengths": np.ones(count, np.uint8),
            "has_final": flags,
            "terminated": flags,
            "truncated": flags,
            "observations": steps,
            "actions": steps,
        },
    )
    assert f"lengths has {count} episodes: at most" in refused(path)
    npz.write(path, {"obs": steps, "actions": steps, "episode_starts": ~flags})
    assert f"episode_starts has {count} episodes" in refused(path)
    npz.write(path, {"obs": steps, "acts": steps, "indices": np.arange(count), "terminal": flags})
    assert f"indices has {count} episodes" in refused(path)


def test_long_text_is_refused(path):
    change(path, about=npy_claiming("()", bytes(4 * 9_000_000), descr="<U9000000"))
    assert "'about' claims 36000128 bytes" in refused(path)


@pytest.mark.parametrize(
    "space, says",
    [
        ({"type": "Box", "dtype": "float64", "shape": [10**12], "low": 0, "high": 1}, "no space"),
        ({"type": "Box", "dtype": "float64", "shape": [10**6, 10**6], "low": 0, "high": 1}, "larger than"),
        ({"type": "MultiBinary", "n": 10**12}, "no space"),
        ({"type": "Tuple", "subspaces": [{"type": "MultiBinary", "n": 10**6}] * 1000}, "larger than"),
    ],
)
def test_spaces_of_any_size_are_not_built(space, says):
    assert says in refused(lambda: space_from_json("here", space))


def test_nested_spaces_end_somewhere():
    space: dict = {"type": "Discrete", "n": 2, "start": 0}
    for _ in range(50):
        space = {"type": "Tuple", "subspaces": [space]}
    assert "nested more than" in refused(lambda: space_from_json("here", space))


# HDF5


def hdf5_with(path: Path, **datasets) -> Path:
    """A good D4RL file, some datasets of which a function makes."""
    import h5py

    some_demos().save(path)
    with h5py.File(path, "a") as file:
        for key, make in datasets.items():
            del file[key]
            make(file)
    return path


def test_hdf5_claims_are_not_believed(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "demos.hdf5"
    huge, small = {"shape": (10**12, 2), "dtype": "f4"}, {"shape": (5, 2), "dtype": "f4"}
    makers = {
        "bytes are stored": lambda f: f.create_dataset("observations", **huge, chunks=(1024, 2), compression="gzip"),
        "0 bytes are stored": lambda f: f.create_dataset("observations", **huge),
        "has dtype object": lambda f: f.create_dataset("observations", (5,), h5py.string_dtype()),
        "link to elsewhere": lambda f: f.__setitem__("observations", h5py.ExternalLink("/etc/passwd", "/x")),
        "is a link to": lambda f: f.__setitem__("observations", h5py.SoftLink("/actions")),
        "is a Group: it must be a Dataset": lambda f: f.create_group("observations"),
        "HDF5 filters number 32000": lambda f: f.create_dataset("observations", **small, compression="lzf"),
        "data in other files": lambda f: f.create_dataset("observations", **small, external=[("x", 0, 40)]),
        "which are not opened": lambda f: f.create_virtual_dataset("observations", h5py.VirtualLayout((5, 2), "f4")),
    }
    for says, make in makers.items():
        assert says in refused(hdf5_with(path, observations=make))


def test_an_hdf5_chunk_that_inflates_beyond_its_claim_is_refused(tmp_path):
    """HDF5 itself would inflate all of it: 400 megabytes for a claim of 40 bytes."""
    h5py = pytest.importorskip("h5py")
    bomb = zlib.compress(b"")[:2] + deflated(bytes(MEGABYTE)) * 400 + zlib.compress(b"")[2:]

    def make(file: h5py.File) -> None:
        dataset = file.create_dataset("observations", (5, 2), "f4", chunks=(5, 2), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), bomb)

    assert "does not unpack to 40 bytes" in refused(hdf5_with(tmp_path / "demos.hdf5", observations=make))


@pytest.mark.parametrize("shape, chunks", [((7, 3), (4, 2)), ((5,), (2,)), ((9, 2, 2), (4, 2, 1)), ((3, 2), (8, 8))])
@pytest.mark.parametrize("dtype", [">f8", "f4", "i2", "?"])
def test_packed_hdf5_is_unpacked_as_hdf5_does(shape, chunks, dtype, tmp_path):
    h5py = pytest.importorskip("h5py")
    from oal.base.hdf5 import Fields

    values = (np.random.default_rng(0).normal(size=shape) * 9).astype(dtype)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        grows = tuple(max(a, b) for a, b in zip(shape, chunks, strict=True))
        file.create_dataset("a", data=values, chunks=chunks, maxshape=grows, compression="gzip", shuffle=True)
        file.create_dataset("b", data=values, chunks=chunks, maxshape=grows, compression="gzip")
        file.create_dataset("c", data=values, chunks=chunks, maxshape=grows, shuffle=True)
    with Fields.open(str(tmp_path / "x.hdf5"), "x", Budget()) as fields:
        for key in "abc":
            read = fields.read(key)
            assert np.array_equal(read, values)
            assert read.dtype == values.dtype


def test_minari_metadata_is_checked(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    some_demos().save("minari:some/demos-v0")
    data = tmp_path / "some" / "demos-v0" / "data"
    good = json.loads((data / "metadata.json").read_text())
    for key, value, says in (
        ("total_episodes", 10**12, "total_episodes is 1000000000000"),
        ("total_episodes", 3, "'episode_2' is missing"),
        ("observation_space", None, "observation_space is missing"),
        ("action_space", "{}", "action_space is {}, which is no space"),
        ("oal", {}, "oal is {}: it must be text"),
    ):
        text = json.dumps({**good, key: value}).encode()
        assert says in refused(lambda text=text: read_minari(text, str(data / "main_data.hdf5"), "it"))
    (data / "main_data.hdf5").rename(data / "other")
    assert "only Minari's HDF5 storage is read" in refused("minari:some/demos-v0")


def test_minari_flattening_is_within_the_budget(tmp_path):
    """A few bytes of a Discrete space with a million values would become a million times as many."""
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        group = file.create_group("episode_0")
        group["observations/a"] = np.zeros(4001, np.int64)
        group["actions"], group["rewards"] = np.zeros((4000, 1)), np.zeros(4000)
        group["terminations"] = group["truncations"] = np.zeros(4000, bool)
    room = {"type": "Dict", "subspaces": {"a": {"type": "Discrete", "n": 10**6, "start": 0}}}
    box = {"type": "Box", "dtype": "float64", "shape": [1], "low": -1, "high": 1}
    metadata = {"total_episodes": 1, "observation_space": json.dumps(room), "action_space": json.dumps(box)}
    message = refused(lambda: read_minari(json.dumps(metadata).encode(), buffer, "it"))
    assert "observations, flattened, takes 32008000000 bytes" in message


# Arrow


def arrow_stream(columns: dict, compression: str | None = None) -> bytes:
    pa = pytest.importorskip("pyarrow")
    buffer = io.BytesIO()
    table = pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(buffer, table.schema, options=options) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def test_arrow_files_that_make_no_sense():
    pa = pytest.importorskip("pyarrow")
    good = {"obs": [[[1.0], [2.0]]], "acts": [[[1.0]]], "terminal": [True]}
    assert read_shards([arrow_stream(good)], None, "it").lengths.tolist() == [1]
    cases = {
        "compressed": arrow_stream({**good, "rews": [[0.0] * 1]}, "zstd"),
        "column 'acts' is missing": arrow_stream({key: good[key] for key in ("obs", "terminal")}),
        "'terminal' must be true or false": arrow_stream({**good, "terminal": [1]}),
        "rows of different lengths": arrow_stream({**good, "obs": [[[1.0], [2.0, 3.0]]]}),
        "is empty (null)": arrow_stream({**good, "obs": pa.array([None], pa.list_(pa.list_(pa.float32())))}),
        "entries of type 'string'": arrow_stream({**good, "acts": [[["x"]]]}),
        "must be a list per episode": arrow_stream({**good, "acts": [1.0]}),
        "episode 0: there are 2 observations and 3 actions": arrow_stream({**good, "acts": [[[1.0]] * 3]}),
        "dictionaries, which are not read": arrow_stream({**good, "rews": pa.array(["a"]).dictionary_encode()}),
        "or of none": arrow_stream({**good, "obs": pa.array([[[], []]], pa.list_(pa.list_(pa.float32(), 0)))}),
        "the Arrow file is damaged": arrow_stream(good)[:-100],
    }
    for says, content in cases.items():
        assert says in refused(lambda content=content: read_shards([content], None, "it"))
