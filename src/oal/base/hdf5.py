"""Read HDF5 files of plain arrays from untrusted sources, with h5py and field by field.

A field's claimed size is held against what is stored and against the memory budget before anything is allocated, packed
chunks are unpacked here and no further than they claim, and links to other files are not followed.
"""

import itertools
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from oal.base.limits import DEFLATE_MAX_RATIO, MAX_TEXT, Budget, damage
from oal.base.opening import opened
from oal.errors import InputError, require

MAX_CHUNKS = 1 << 20
"""Of one dataset. Each takes some microseconds, whatever its size."""


def _damage(where: str) -> AbstractContextManager[None]:
    return damage(f"{where}: the HDF5 file is damaged", zlib.error)


class Fields:
    """A group of an HDF5 file whose datasets are read within a budget; `name` is what error messages call it."""

    def __init__(self, group: Any, name: str, left: list[int], file_bytes: int) -> None:
        self.group, self.name, self._left, self._file_bytes = group, name, left, file_bytes

    @classmethod
    @contextmanager
    def open(cls, file: str | BinaryIO, name: str, budget: Budget) -> "Iterator[Fields]":
        """Open a path or use an open file; HDF5 itself opens no file, so it cannot be led to another one."""
        h5py = require("h5py", extra="hdf5", needed_for=f"reading {name}")
        with ExitStack() as stack:
            if isinstance(file, str):
                file = stack.enter_context(opened(file, where=name))
            file_bytes = file.seek(0, os.SEEK_END)
            with _damage(name):
                group = h5py.File(file, "r")
            try:
                yield cls(group, name, [budget.of(file_bytes)], file_bytes)
            finally:
                with _damage(name):
                    group.close()

    def __contains__(self, key: str) -> bool:
        with _damage(f"{self.name}: '{key}'"):
            return "/" not in key and bool(self.group.id.links.exists(key.encode()))

    def _member(self, key: str, kind: str) -> Any:
        """Return a "Group" or "Dataset" of this file by its name, which must be no link to elsewhere.

        A name with slashes goes through groups: each of them is held to the same.
        """
        h5py = require("h5py", extra="hdf5", needed_for=f"reading {self.name}")
        member = self.group
        with _damage(f"{self.name}: '{key}'"):
            for part in key.split("/"):
                name = part.encode()
                if part in ("", ".") or not isinstance(member, h5py.Group) or not member.id.links.exists(name):
                    raise InputError(f"{self.name}: '{key}' is missing")
                if member.id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                    raise InputError(f"{self.name}: '{key}' is a link to elsewhere, which is not followed")
                member = member[name]
            if not isinstance(member, getattr(h5py, kind)):
                raise InputError(f"{self.name}: '{key}' is a {type(member).__name__}: it must be a {kind}")
            return member

    def fields(self, key: str) -> "Fields":
        """Return a group inside this one."""
        return Fields(self._member(key, "Group"), f"{self.name}: {key}", self._left, self._file_bytes)

    def spend(self, where: str, nbytes: int) -> None:
        """Take bytes from what is left of the budget."""
        if nbytes > self._left[0]:
            raise InputError(f"{where} takes {nbytes} bytes: too many for a file of {self._file_bytes} bytes")
        self._left[0] -= nbytes

    def read(self, key: str, *, max_bytes: int | None = None) -> np.ndarray:
        """Return one dataset as an array of numbers."""
        where = f"{self.name}: '{key}'"
        dataset = self._member(key, "Dataset")
        with _damage(where):
            layout = Layout.of(where, dataset)
            if max_bytes is not None and layout.nbytes > max_bytes:
                raise InputError(f"{where} claims {layout.nbytes} bytes: at most {max_bytes} are read")
            layout.check_stored(where, self._file_bytes)
            self.spend(where, layout.nbytes)
            if not layout.filters:
                return np.asarray(dataset[()])
            if layout.chunk_bytes > layout.nbytes:
                self.spend(f"{where}, one chunk of it,", layout.chunk_bytes)
            return _unpacked(where, dataset, layout, self._file_bytes)

    def read_text(self, key: str) -> str:
        """Return a dataset of bytes as text."""
        try:
            return self.read(key, max_bytes=MAX_TEXT).astype(np.uint8).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.name}: '{key}' is not valid text ({error})") from None

    def attribute(self, key: str) -> Any:
        """Return a whole-number attribute, or None."""
        with _damage(f"{self.name}: attribute '{key}'"):
            if key not in self.group.attrs:
                return None
            kind = self.group.attrs.get_id(key)
            if kind.shape != () or kind.dtype.kind not in "iu":
                return None
            return int(self.group.attrs[key])


@dataclass(frozen=True)
class Layout:
    """What a dataset claims about itself. `filters` are the names of those that pack its chunks, in writing order."""

    shape: tuple[int, ...]
    dtype: np.dtype
    stored: int
    chunk: tuple[int, ...] | None
    filters: tuple[str, ...]

    @classmethod
    def of(cls, where: str, dataset: Any) -> "Layout":
        import h5py

        settings = dataset.id.get_create_plist()
        kind = settings.get_layout()
        if settings.get_external_count() or kind == h5py.h5d.VIRTUAL:
            raise InputError(f"{where} keeps its data in other files, which are not opened")
        if dataset.dtype.kind not in "biuf" or dataset.dtype.itemsize > 8 or dataset.shape is None:
            raise InputError(f"{where} has dtype {dataset.dtype}: only plain booleans, integers and floats are read")
        codes = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
        names = {h5py.h5z.FILTER_DEFLATE: "gzip", h5py.h5z.FILTER_SHUFFLE: "shuffle"}
        filters = tuple(names.get(code, f"number {code}") for code in codes)
        if not set(filters) <= set(names.values()) or filters.count("gzip") > 1:
            packed = f"packed with the HDF5 filters {', '.join(filters)}"
            raise InputError(f"{where} is {packed}: only gzip and shuffle are read")
        chunk = settings.get_chunk() if kind == h5py.h5d.CHUNKED else None
        return cls(dataset.shape, dataset.dtype, dataset.id.get_storage_size(), chunk, filters if chunk else ())

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunk or ()) * self.dtype.itemsize

    def check_stored(self, where: str, file_bytes: int) -> None:
        """Refuse a claim that the stored bytes cannot meet."""
        possible = self.stored * DEFLATE_MAX_RATIO if "gzip" in self.filters else self.stored
        if self.nbytes > possible or self.stored > file_bytes:
            raise InputError(f"{where} claims shape {self.shape} of {self.dtype}, but {self.stored} bytes are stored")
        if self.chunk is not None:
            if len(self.chunk) != len(self.shape):
                raise InputError(f"{where} has chunks of another number of dimensions than its shape")
            chunks = math.prod(-(-length // size) for length, size in zip(self.shape, self.chunk, strict=True))
            if chunks > MAX_CHUNKS:
                raise InputError(f"{where} is cut into {chunks} chunks: at most {MAX_CHUNKS} are read")
            if chunks > file_bytes or (not self.filters and self.chunk_bytes > file_bytes):
                raise InputError(f"{where} claims {chunks} chunks of {self.chunk_bytes} bytes: too many for the file")


def _unpacked(where: str, dataset: Any, layout: Layout, file_bytes: int) -> np.ndarray:
    """Unpack a dataset's chunks here: HDF5's own inflating would follow a stream to its end, whatever it claimed."""
    from h5py import h5t

    if not dataset.id.get_type().equal(h5t.py_create(layout.dtype, logical=True)):
        raise InputError(f"{where} has an unusual number type: only plain booleans, integers and floats are read")
    array = np.zeros(layout.shape, layout.dtype)
    chunk = layout.chunk or ()
    raw_dtype = np.dtype(np.uint8) if layout.dtype.kind == "b" else layout.dtype  # a boolean may be any byte in a file
    starts = [range(0, length, size) for length, size in zip(layout.shape, chunk, strict=True)]
    sizes = _chunk_sizes(where, dataset, math.prod(map(len, starts)))
    for start in itertools.product(*starts):
        if sizes.get(start, file_bytes + 1) > file_bytes:
            raise InputError(f"{where}: the chunk at {start} is not in the file")
        skipped, content = dataset.id.read_direct_chunk(start)
        for position, name in reversed(list(enumerate(layout.filters))):
            if not skipped & 1 << position:
                content = _inflated(content, layout.chunk_bytes) if name == "gzip" else _unshuffled(content, raw_dtype)
        if len(content) != layout.chunk_bytes:
            raise InputError(f"{where}: the chunk at {start} does not unpack to {layout.chunk_bytes} bytes")
        values = np.frombuffer(content, raw_dtype).reshape(chunk)
        inside = tuple(slice(0, length - at) for at, length in zip(start, layout.shape, strict=True))
        target = tuple(slice(at, at + size) for at, size in zip(start, chunk, strict=True))
        array[target] = values[inside]
    return array


def _chunk_sizes(where: str, dataset: Any, count: int) -> dict[tuple[int, ...], int]:
    """Return the stored size of each chunk, in one pass: HDF5 goes through all chunks to tell the size of one."""
    sizes: dict[tuple[int, ...], int] = {}
    entries = itertools.count()

    def note(info: Any) -> bool | None:
        if next(entries) > 2 * count:  # chunks beyond the shape are odd but allowed, a circle of them is not
            return True
        sizes[tuple(info.chunk_offset)] = info.size
        return None

    if dataset.id.chunk_iter(note):
        raise InputError(f"{where} has more chunks than its shape")
    return sizes


def _inflated(content: bytes, limit: int) -> bytes:
    """Inflate a zlib stream, and not further than one byte beyond `limit`; a stream without an end gives nothing."""
    stream = zlib.decompressobj()
    inflated = stream.decompress(content, limit + 1)
    return inflated if stream.eof else b""


def _unshuffled(content: bytes, dtype: np.dtype) -> bytes:
    """Undo HDF5's shuffle, which puts the first bytes of all values first, then the second ones, and so on."""
    if len(content) % dtype.itemsize:
        return b""
    return np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
