"""Read the imitation library's Hugging Face datasets: a folder as `datasets.Dataset.save_to_disk` leaves it.

hf           state.json names Arrow stream files with a row per episode: obs (T + 1 rows), acts, rews, terminal, infos
             (never decoded); here with about.json beside them, since imitation refuses columns it does not know

The Arrow files are read with pyarrow itself, fully validated, and uncompressed only (as `datasets` writes them), so
that nothing can unpack to more than the bytes of the file.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from oal.base import jsontext
from oal.base.limits import DEFAULT_BUDGET, MAX_TEXT, Budget, check_episodes, damage
from oal.base.opening import MissingFileError, content, opened, read_bytes
from oal.demos import about as about_text
from oal.demos.about import About
from oal.demos.assembly import build
from oal.demos.trajectories import Demos
from oal.errors import InputError, require, shortened

MAX_SHARDS = 1024
MAX_NESTING = 8


def read_folder(folder: Path, name: str, *, budget: Budget = DEFAULT_BUDGET) -> Demos:
    """Read a folder written by `save_to_disk`, of a dataset or of a dictionary with one split."""
    root = folder
    if (folder / "dataset_dict.json").is_file():
        splits = _json(folder / "dataset_dict.json", root, f"{name}: dataset_dict.json").get("splits")
        if not isinstance(splits, list) or len(splits) != 1 or not _is_plain(splits[0]):
            raise InputError(f"{name}: has the splits {shortened(splits)}: name the folder of one of them")
        folder, name = folder / splits[0], f"{name}/{splits[0]}"
    entries = _json(folder / "state.json", root, f"{name}: state.json").get("_data_files")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_SHARDS:
        raise InputError(f"{name}: state.json: _data_files must name the Arrow files")
    shards: list[bytes] = []
    left, seen = budget.ceiling, set()
    for entry in entries:
        filename = entry.get("filename") if isinstance(entry, dict) else None
        if not _is_plain(filename):
            raise InputError(f"{name}: state.json names the file {shortened(filename)}: it must be one in the folder")
        where = f"{name}: {filename}"
        try:
            with opened(folder / filename, inside=root, where=where) as file:
                found = os.fstat(file.fileno())
                # by what it is and not by its name: links would be as many names as one likes
                if (found.st_dev, found.st_ino) in seen:
                    raise InputError(f"{name}: state.json names the file {shortened(filename)} more than once")
                seen.add((found.st_dev, found.st_ino))
                if found.st_size > left:
                    raise InputError(f"{name}: holds more than {budget.ceiling} bytes")
                shards.append(content(file, max_bytes=left, where=where))
                left -= len(shards[-1])
        except MissingFileError:
            raise InputError(f"{where} cannot be read (No such file or directory)") from None
    about_path = folder / "about.json"
    text = None
    if about_path.exists():
        text = read_bytes(about_path, inside=root, max_bytes=MAX_TEXT, where=f"{name}: about.json")
    return read_shards(shards, text, name)


def _is_plain(filename: Any) -> "TypeGuard[str]":
    return isinstance(filename, str) and filename not in ("", ".", "..") and not set(filename) & set("/\\\0")


def _json(path: Path, root: Path, where: str) -> dict[str, Any]:
    value = jsontext.parse(where, read_bytes(path, inside=root, max_bytes=MAX_TEXT, where=where))
    return jsontext.expect(value, where, dict)


def read_shards(shards: Sequence[bytes], about_json: bytes | None, name: str) -> Demos:
    """Read the Arrow streams of a dataset, and the text about it if there is one."""
    # The format's `terminal` says that the episode ended, not how.
    about = About(endings_known=False) if about_json is None else about_text.read(f"{name}: about.json", about_json)
    with damage(f"{name}: the dataset is damaged"):
        episodes: list[dict[str, Any]] = []
        for index, shard in enumerate(shards):
            episodes += _read_shard(shard, f"{name}: shard {index}" if len(shards) > 1 else name)
            check_episodes(name, len(episodes))
        about.check_rewards(f"{name}: column 'rews'", all("rewards" in arguments for arguments in episodes))
        return build(name, episodes, about)


def _read_shard(content: bytes, where: str) -> list[dict[str, Any]]:
    pa = require("pyarrow", extra="datasets", needed_for=f"reading {where}")
    with damage(f"{where}: the Arrow file is damaged", pa.ArrowException, struct.error):
        _refuse_compression(pa, content, where)
        with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
            episodes = []
            for batch in stream:
                batch.validate(full=True)
                episodes += _read_batch(pa, batch, where, len(episodes))
            return episodes


def _refuse_compression(pa: Any, content: bytes, where: str) -> None:
    """Refuse compressed batches, whose claimed size would be allocated: walk the stream and look into each header."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(content))
    for message in reader:
        if message.type == "record batch" and _has_compression(message.metadata.to_pybytes()):
            raise InputError(f"{where}: its Arrow batches are compressed, which is not read")
        if message.type == "dictionary":
            raise InputError(f"{where}: its Arrow columns are dictionaries, which are not read")


def _has_compression(header: bytes) -> bool:
    """Whether field 3 (compression) of the RecordBatch in field 2 of a flatbuffers Message is set."""
    (message,) = struct.unpack_from("<I", header, 0)
    batch_field = message + _flatbuffer_field(header, message, 2)
    batch = batch_field + struct.unpack_from("<I", header, batch_field)[0]
    return _flatbuffer_field(header, batch, 3) != 0


def _flatbuffer_field(buffer: bytes, table: int, index: int) -> int:
    """Return the offset of a field inside a flatbuffers table, 0 when it is not set."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    (vtable_bytes,) = struct.unpack_from("<H", buffer, vtable)
    at = 4 + 2 * index
    return struct.unpack_from("<H", buffer, vtable + at)[0] if at + 2 <= vtable_bytes else 0


def _read_batch(pa: Any, batch: Any, where: str, first: int) -> list[dict[str, Any]]:
    check_episodes(where, first + batch.num_rows)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for key in ("obs", "acts", "terminal"):
        if key not in columns:
            raise InputError(f"{where}: column '{key}' is missing; there are: {', '.join(columns) or 'none'}")
    if not pa.types.is_boolean(columns["terminal"].type) or columns["terminal"].null_count:
        raise InputError(f"{where}: column 'terminal' must be true or false for each episode")
    wanted = {"obs": "observations", "acts": "actions", "rews": "rewards"}
    arrays = {
        argument: _rows(pa, columns[key], f"{where}: column '{key}'")
        for key, argument in wanted.items()
        if key in columns
    }
    ended = columns["terminal"].to_pylist()
    return [
        {**{argument: rows[i] for argument, rows in arrays.items()}, "terminated": False, "truncated": ended[i]}
        for i in range(batch.num_rows)
    ]


def _rows(pa: Any, array: Any, where: str) -> list[np.ndarray]:
    """Return a column of lists (of lists) of numbers as one array per row; inner lists must be of one length each."""
    if not _is_list(pa, array.type):
        raise InputError(f"{where} has type {shortened(str(array.type))}: it must be a list per episode")
    if array.null_count:
        raise InputError(f"{where} is empty (null) for some episode")
    ends = np.cumsum(array.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    flat = array.flatten()
    shape: list[int] = []
    while _is_list(pa, flat.type) or pa.types.is_fixed_size_list(flat.type):
        size = flat.type.list_size if pa.types.is_fixed_size_list(flat.type) else _common_length(flat)
        if flat.null_count or not size or len(shape) == MAX_NESTING:
            raise InputError(f"{where} has rows of different lengths or of none: all steps must have one shape")
        shape.append(size)
        flat = flat.flatten()
    kind = flat.type
    if flat.null_count or not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise InputError(f"{where} has entries of type {shortened(str(kind))}: they must be numbers")
    values = flat.to_numpy(zero_copy_only=False).reshape(-1, *shape)
    if len(ends) and len(values) != ends[-1]:
        raise InputError(f"{where} has {len(values)} steps, its episodes want {ends[-1]}")
    return np.split(values, ends[:-1])


def _is_list(pa: Any, kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _common_length(array: Any) -> int:
    """Return the length that all lists of an array have, 0 if they differ."""
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0
