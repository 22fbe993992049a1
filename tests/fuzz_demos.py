"""Feed mutated files to one reader of demonstrations, in a process of its own with little memory.

    python tests/fuzz_demos.py READER [--count N] [--seed S] [--only INDEX]

Prints figures as JSON. Every mutant follows from reader, seed and index alone, so a find can be repeated with --only.
Anything but `Demos` or an InputError, a pickle that is opened, or more memory than allowed ends it with an error.
"""

import argparse
import io
import json
import os
import pickle
import random
import re
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from oal.demos import Demos, Trajectory, arrow, hdf5
from oal.demos.read import read_npz
from oal.errors import InputError

READERS = ("oal", "sb", "imitation", "hf", "hdf5", "minari")
EXTRA_MEMORY = 1 << 30
SLOWEST_ALLOWED = 5.0

Reader = Callable[[Any], Demos]
Mutate = Callable[[random.Random], Any]


class Mark:
    """Unpickling it creates a file: proof that a pickle was opened."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def small_demos(*, discrete: bool = False) -> Demos:
    """A few short episodes with everything a file can say."""
    from gymnasium import spaces

    draw = np.random.default_rng(0)
    trajectories = []
    for seed, length in enumerate((3, 2, 4)):
        observations = draw.normal(size=(length + 1, 2)).astype(np.float32)
        actions = draw.integers(3, size=length) if discrete else draw.uniform(-1, 1, (length, 1)).astype(np.float32)
        trajectories.append(
            Trajectory(
                observations,
                actions,
                draw.normal(size=length),
                terminated=seed == 0,
                truncated=seed == 1,
                seed=seed,
                initial_state={"qpos": [0.5, seed], "qvel": [1.0]},
            )
        )
    action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return Demos(tuple(trajectories), "Env-v0", observation_space, action_space, "a test", {"steps": [1, 2]})


# Mutations of bytes, of JSON, of arrays


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        if not mutant:
            break
        at, size = rng.randrange(len(mutant)), rng.choice((1, 2, 4, 8, 16, 64))
        kind = rng.randrange(9)
        if kind == 0:
            mutant[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            mutant[at] = rng.randrange(256)
        elif kind == 2:
            number = rng.choice((0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 10**12, (1 << 64) - 1))
            code = rng.choice(["<B", "<H", "<I", "<Q", ">I", ">Q"])
            width = struct.calcsize(code)
            mutant[at : at + width] = struct.pack(code, number & ((1 << (8 * width)) - 1))
        elif kind == 3:
            del mutant[at:]
        elif kind == 4:
            del mutant[at : at + size]
        elif kind == 5:
            mutant[at:at] = mutant[at : at + size]
        elif kind == 6:
            other = rng.randrange(len(mutant))
            mutant[at : at + size] = mutant[other : other + size]
        elif kind == 7:
            mutant[at:at] = rng.randbytes(size)
        else:
            mutant[at : at + size] = bytes(size)
    return bytes(mutant)


ODD_JSON: tuple[str, ...] = (
    "null", "true", "-1", "0", "1", "3", "1e400", "NaN", "-Infinity", "1" * 30, "9" * 5000, '""', '"x"', '"\\ud800"',
    '"' + "y" * 5000 + '"', "[]", "[1]", "[null]", '["a"]', "{}", '{"type": "Box"}',
    '{"type": "Discrete", "n": -2, "start": 0}',
    "[" * 3000 + "]" * 3000, '{"a":' * 2000 + "1" + "}" * 2000, "[true, false, true]", "[1, 2, 3]", "[[0.5], [1], [2]]",
    '{"type": "Box", "dtype": "float64", "shape": [1000000, 1000000], "low": 0, "high": 1}',
    '{"type": "Box", "dtype": "O", "shape": [2], "low": 0, "high": 1}',
    '{"type": "Dict", "subspaces": []}', '{"type": "Dict", "subspaces": [1]}', '{"type": "Dict", "subspaces": {}}',
    '{"type": "Tuple", "subspaces": {"a": 1}}', '{"type": "Tuple", "subspaces": [{"type": "Box", "dtype": "float32",'
    ' "shape": [0], "low": 0, "high": 1}]}', '{"\\udfff": "\\udc00"}',
    '{"type": "MultiBinary", "n": 1000000000000}', '{"type": "MultiDiscrete", "nvec": [3, -1], "start": [0, 0]}',
    '{"type": "Tuple", "subspaces": [{"type": "Discrete", "n": 1000000000000, "start": 0}]}',
)  # fmt: skip


def mutate_json(text: str, rng: random.Random) -> str:
    """Put something odd in the place of a random value."""
    hole = "\uf8ff"
    value = json.loads(text)
    spots: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in pairs:
            spots.append((node, key))
            visit(child)

    visit(value)
    for _ in range(rng.choice((1, 1, 2))):
        node, key = rng.choice(spots)
        if rng.randrange(6) == 0 and isinstance(node, dict):
            node.pop(key, None)
        elif isinstance(node, list) and rng.randrange(4) == 0:
            node.append(node[0])
        else:
            node[key] = hole
    parts = json.dumps(value).split(json.dumps(hole))
    return "".join(part + (rng.choice(ODD_JSON) if i < len(parts) - 1 else "") for i, part in enumerate(parts))


def mutate_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    kind = rng.randrange(8)
    changed = array.copy()
    if kind == 0 and array.dtype.kind in "biuf" and array.size:
        odd = {"f": (np.nan, np.inf, -np.inf, 1e30, -0.0), "b": (True, False)}.get(array.dtype.kind, (0, 1, 99, 127))
        changed.flat[rng.randrange(array.size)] = rng.choice(odd)
        return changed
    if kind == 1:
        return changed[: rng.randrange(len(array) + 1)] if array.ndim else changed
    if kind == 2 and array.dtype.kind in "biuf":
        return changed.astype(rng.choice(("?", "i1", "u8", "f2", "f4", "f8", "c16", ">f4", ">i8")), casting="unsafe")
    if kind == 3:
        return changed[None]
    if kind == 4:
        return changed[..., None]
    if kind == 5 and array.ndim:
        return np.concatenate([changed, changed])
    if kind == 6:
        return changed.reshape(-1)[rng.randrange(array.size)] if array.size else changed
    return changed[rng.randrange(len(array)) :] if array.ndim and len(array) else changed


# Archives


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zipped(members: list[tuple[str, bytes]], method: int) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def mutate_header(content: bytes, rng: random.Random) -> bytes:
    """Replace the claim of an npy header, keeping its length."""
    (size,) = struct.unpack_from("<H", content, 8)
    header = content[10 : 10 + size].decode("latin-1")
    descr = rng.choice(("'<f4'", "'|O'", "'<U10'", "'<f8'", "'|V8'", "[('a', '<f4')]", "[('a', '|O')]", "'<i3'"))
    huge = "(" + "9" * 90 + ",)"
    shape = rng.choice(("(1000000000000,)", "(9, 2)", "(0,)", "()", "(-1,)", "(1, 1000000)", "(2, 2, 2)", huge))
    header = re.sub(r"'descr': [^,\]]+\]?", f"'descr': {descr}", header) if rng.randrange(2) else header
    header = re.sub(r"'shape': \([^)]*\)", f"'shape': {shape}", header) if rng.randrange(2) else header
    return content[:10] + header.strip().ljust(size - 1)[: size - 1].encode() + b"\n" + content[10 + size :]


def archive_mutations(bases: list[bytes], mark: str) -> Mutate:
    contents = [members_of(base) for base in bases]
    evil = npy(np.array([Mark(mark)] * 9, dtype=object))
    raw_pickle = pickle.dumps(Mark(mark))

    def mutate(rng: random.Random) -> bytes:
        which = rng.randrange(len(bases))
        if rng.randrange(3) == 0:
            return mutate_bytes(bases[which], rng)
        members = dict(contents[which])
        name = rng.choice(list(members))
        extra: list[tuple[str, bytes]] = []
        kind = rng.randrange(10)
        if name == "about.npy" and kind < 6:
            text = str(np.load(io.BytesIO(members[name])))
            members[name] = npy(np.array(mutate_json(text, rng)))
        elif kind < 3 and name != "infos.npy":
            members[name] = npy(mutate_array(np.load(io.BytesIO(members[name])), rng))
        elif kind < 5:
            members[name] = mutate_bytes(members[name], rng)
        elif kind == 5:
            members[name] = mutate_header(members[name], rng)
        elif kind == 6:
            del members[name]
        elif kind == 7:
            extra = [(name, members[name])] if rng.randrange(4) == 0 else [("more.npy", rng.choice((evil, raw_pickle)))]
        elif kind == 8:
            members[name] = rng.choice((evil, raw_pickle, evil[:60]))
        else:
            members[name] = members[rng.choice(list(members))]
        return zipped([*members.items(), *extra], rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))

    return mutate


def read_archive(data: bytes) -> Demos:
    return read_npz(io.BytesIO(data), "mutant")


def archive_bases(reader: str, folder: Path, mark: str) -> list[bytes]:
    bases = []
    for index, discrete in enumerate((False, True)):
        path = folder / f"{index}.npz"
        small_demos(discrete=discrete).save(path, format=reader)
        bases.append(path.read_bytes())
    bare = {key: value for key, value in members_of(bases[0]).items() if reader == "oal" or key != "about.npy"}
    if reader == "imitation":
        bare["infos.npy"] = npy(np.array([Mark(mark)] * 9, dtype=object))
    return [*bases, zipped(list(bare.items()), zipfile.ZIP_STORED)]


# HDF5


def hdf5_arrays(data: bytes) -> dict[str, np.ndarray]:
    import h5py

    found: dict[str, np.ndarray] = {}
    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(lambda key, item: found.update({key: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def hdf5_file(arrays: dict[str, np.ndarray]) -> bytes:
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    return buffer.getvalue()


def mutate_hdf5(base: bytes, arrays: dict[str, np.ndarray], rng: random.Random) -> bytes:
    if rng.randrange(5):
        return mutate_bytes(base, rng)
    changed = dict(arrays)
    key = rng.choice(list(changed))
    if key == "about" and rng.randrange(2):
        text = mutate_json(changed[key].tobytes().decode(), rng)
        changed[key] = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    elif rng.randrange(5):
        changed[key] = mutate_array(changed[key], rng)
    else:
        del changed[key]
    return hdf5_file(changed)


def d4rl_case(folder: Path) -> tuple[Reader, Mutate]:
    bases = []
    for index, discrete in enumerate((False, True)):
        path = folder / f"{index}.hdf5"
        small_demos(discrete=discrete).save(path)
        bases.append((path.read_bytes(), hdf5_arrays(path.read_bytes())))
    bases.append((hdf5_file({k: v for k, v in bases[0][1].items() if k not in ("about", "timeouts")}), bases[0][1]))
    return (
        lambda data: hdf5.read_d4rl(io.BytesIO(data), "mutant"),
        lambda rng: mutate_hdf5(*rng.choice(bases), rng),
    )


def minari_case(folder: Path) -> tuple[Reader, Mutate]:
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    small_demos().save("minari:fuzz/small-v0")
    data = folder / "fuzz" / "small-v0" / "data"
    base, metadata = (data / "main_data.hdf5").read_bytes(), (data / "metadata.json").read_text()
    arrays = hdf5_arrays(base)
    bare = json.dumps({key: value for key, value in json.loads(metadata).items() if key != "oal"})

    def mutate(rng: random.Random) -> tuple[bytes, bytes]:
        text = rng.choice((metadata, bare))
        kind = rng.randrange(4)
        if kind == 0:
            return mutate_json(text, rng).encode("utf-8", "replace"), base
        if kind == 1:
            return (mutate_bytes(text.encode(), rng) if rng.randrange(2) else inner(text, rng)), base
        return text.encode(), mutate_hdf5(base, arrays, rng)

    def inner(text: str, rng: random.Random) -> bytes:
        """Mutate one of the JSON texts inside the JSON."""
        value = json.loads(text)
        key = rng.choice([key for key in ("observation_space", "action_space", "oal") if key in value])
        return json.dumps({**value, key: mutate_json(value[key], rng)}).encode()

    return (lambda files: hdf5.read_minari(files[0], io.BytesIO(files[1]), "mutant")), mutate


# Arrow


def hf_case(folder: Path) -> tuple[Reader, Mutate]:
    import pyarrow as pa

    bases = []
    for index, discrete in enumerate((False, True)):
        small_demos(discrete=discrete).save(folder / f"hf{index}")
        bases.append(next((folder / f"hf{index}").glob("*.arrow")).read_bytes())
    about = (folder / "hf0" / "about.json").read_bytes()
    columns = pa.ipc.open_stream(bases[0]).read_all().to_pydict()
    types = (
        pa.list_(pa.list_(pa.float32())), pa.list_(pa.float64()), pa.float64(), pa.string(), pa.bool_(), pa.int64(),
        pa.null(),
        pa.large_list(pa.list_(pa.float32(), 2)), pa.list_(pa.list_(pa.float32(), 0)), pa.list_(pa.string()),
        pa.binary(),
        pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.list_(pa.list_(pa.int8()))), pa.struct([("a", pa.int8())]),
    )  # fmt: skip

    def stream(names: list[str], values: list[Any], compression: str | None) -> bytes:
        buffer = io.BytesIO()
        table = pa.table(dict(zip(names, values, strict=True)))
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(buffer, table.schema, options=options) as writer:
            writer.write_table(table)
        return buffer.getvalue()

    def mutate(rng: random.Random) -> tuple[bytes, bytes | None]:
        text = about if rng.randrange(2) else None
        if text is not None and rng.randrange(3) == 0:
            return bases[0], mutate_json(text.decode(), rng).encode("utf-8", "replace")
        if rng.randrange(4):
            return mutate_bytes(rng.choice(bases), rng), text
        changed = dict(columns)
        key = rng.choice(list(changed))
        rows = [json.loads(json.dumps(row)) for row in changed[key]]
        spot = rng.randrange(len(rows))
        if rng.randrange(2):
            rows[spot] = rng.choice((None, [], [[]], [[1.0], [2.0, 3.0]], [None], [[None]], [["x"]], 1.5, True))
            changed[key] = rows
        values = []
        for name, column in changed.items():
            try:
                values.append(pa.array(column, rng.choice(types) if name == key and rng.randrange(2) else None))
            except (pa.ArrowException, TypeError, ValueError):
                values.append(pa.nulls(3, rng.choice(types)))
        compression = rng.choice((None, None, "lz4", "zstd"))
        return stream(list(changed), values, compression), text

    return (lambda files: arrow.read_shards([files[0]], files[1], "mutant")), mutate


def case_of(reader: str, folder: Path, mark: str) -> tuple[Reader, Mutate]:
    if reader in ("oal", "sb", "imitation"):
        return read_archive, archive_mutations(archive_bases(reader, folder, mark), mark)
    return {"hf": hf_case, "hdf5": d4rl_case, "minari": minari_case}[reader](folder)


# The run


def limit_memory() -> None:
    """Allow a gigabyte above what the imports took, so that an unbounded allocation fails at once."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        allowed = int(statm.read_text().split()[0]) * resource.getpagesize() + EXTRA_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def opened_pickle(*_: object, **__: object) -> None:
    raise AssertionError("a pickle was opened")


def fuzz(reader: str, count: int, seed: int, only: int | None) -> dict[str, Any]:
    figures: dict[str, Any] = {"reader": reader, "count": count, "accepted": 0, "refused": 0, "slowest": 0.0}
    messages: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        mark = str(Path(name) / "mark")
        read, mutate = case_of(reader, Path(name), mark)
        limit_memory()
        pickle.load = pickle.loads = pickle.Unpickler = opened_pickle  # type: ignore[assignment,misc]
        for index in range(count) if only is None else [only]:
            mutant = mutate(random.Random(f"{reader} {seed} {index}"))
            start = time.process_time()  # of this process alone, whatever else the machine does
            try:
                result = read(mutant)
                assert isinstance(result, Demos)
                figures["accepted"] += 1
            except InputError as error:
                figures["refused"] += 1
                messages.add(re.sub(r"[\d.]+|'[^']*'|\(.*?\)", "#", str(error))[:80])
            except BaseException:
                print(f"mutant {index} of {reader}, seed {seed}:", file=sys.stderr)
                raise
            seconds = time.process_time() - start
            if seconds > figures["slowest"]:
                figures["slowest"], figures["slowest_index"] = seconds, index
        figures["pickle_opened"] = Path(mark).exists()
    figures["messages"] = len(messages)
    # not getrusage, where a process that was started by a larger one inherits its peak
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None
    figures["peak_mb"] = int(peak[1]) // 1024
    return figures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    try:
        figures = fuzz(arguments.reader, arguments.count, arguments.seed, arguments.only)
    except BaseException:
        traceback.print_exc()
        return 1
    figures["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(figures))
    return int(figures["pickle_opened"] or figures["slowest"] > SLOWEST_ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
