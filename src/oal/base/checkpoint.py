"""Checkpoints: one safetensors file holding named arrays and a JSON text, replaced in one step.

The file is complete or not there: the previous one stays until the new one is on the disk. Arrays are written from
where they lie, so a large replay needs no second copy in memory. No pickle is read or written.

Every array and the header have a CRC-32, checked on loading. It notices every flipped bit and every damaged stretch of
up to 32 bits, and anything else but for one time in 2^32; it is several times as fast as a cryptographic digest, which
counts for a replay of gigabytes. It is meant against faults of disks and copies. Against people no digest inside the
file helps: who can change the data can change the digest.
"""

import json
import math
import os
import warnings
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from oal.base import files, jsontext, opening
from oal.base.limits import damage
from oal.errors import InputError

FORMAT_VERSION = 2
"""1: without digests. It is still read."""

MAX_HEADER = 64 << 20
MAX_IN_MEMORY = 4 << 30
"""Bytes of arrays that are read into memory; mapped ones do not count."""

_DIGEST_KEY = '"header_crc32": "'
_NO_DIGEST = "00000000"
_PIECE = 16 << 20
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "int64": "I64",
    "int32": "I32",
    "uint64": "U64",
    "uint32": "U32",
    "uint8": "U8",
    "int8": "I8",
    "bool": "BOOL",
}
_NUMPY_DTYPES = {name: np.dtype(numpy_name) for numpy_name, name in _DTYPES.items()}

T = TypeVar("T")


class DamagedError(InputError):
    """The file is no checkpoint, or not the one that was written."""


def save(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    info: Mapping[str, Any],
    *,
    kind: str,
    keep_previous: bool = False,
) -> None:
    """Write arrays and JSON-able `info` to one file; `kind` names what it is and is checked on loading.

    keep_previous: keep the file that was there under the name `previous(path)`, where `load_newest` finds it.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in contiguous.items():
        if array.dtype.name not in _DTYPES:
            raise InputError(f"{path}: array '{name}' has type {array.dtype}, which a checkpoint cannot hold")
        entries[name] = {
            "dtype": _DTYPES[array.dtype.name],
            # ascontiguousarray turns a scalar into one number of shape (1,); the caller's shape is the right one
            "shape": list(np.shape(arrays[name])),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    metadata = {
        "header_crc32": _NO_DIGEST,  # first, so that `_header_digest` finds it
        "format": "oal",
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "info": json.dumps(info, allow_nan=False),
        "crc32": json.dumps({name: _crc32(_bytes(array)) for name, array in contiguous.items()}),
    }
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    text = text.replace(_NO_DIGEST.encode(), f"{zlib.crc32(text):08x}".encode(), 1)
    with files.replacing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for array in contiguous.values():
                file.write(_bytes(array).data)
            file.flush()
            os.fsync(file.fileno())
        if keep_previous:  # only now: a disk that is full costs neither of the two
            _keep(Path(path))


def previous(path: str | os.PathLike[str]) -> Path:
    """Return where the checkpoint before the one at `path` is kept: checkpoint.previous.safetensors."""
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether `load_newest` has anything to load."""
    return Path(path).exists() or previous(path).exists()


def _keep(path: Path) -> None:
    """Give the file at `path` its second name, `previous(path)`."""
    if not path.exists():
        return
    # linked, not renamed, so that there is a file at `path` at every moment
    link = path.with_name(f".{path.stem}.{os.urandom(4).hex()}.part{path.suffix}")
    try:
        os.link(path, link)
    except OSError:  # not every file system has links
        path.replace(previous(path))
        return
    try:
        link.replace(previous(path))
    finally:
        with suppress(OSError):
            link.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Place:
    """Where an array lies in the file, and what it is."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    crc32: int | None


def load(
    path: str | os.PathLike[str],
    *,
    kind: str,
    mapped: Collection[str] = (),
    inside: str | os.PathLike[str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save` wrote; a file that is damaged, of another kind or from a later version is an InputError.

    The file is opened once: who replaces it meanwhile does not change what is read.

    The arrays named in `mapped` are left in the file and read where they are used: a large replay that is copied to its
    place needs no second copy in memory. They are checked all the same, which reads them once.
    inside: the run folder that the file must not lead out of, see `opening.opened`.
    """
    path = Path(path)
    with opening.opened(path, inside=inside) as file:
        try:
            with damage(f"{path}: not a checkpoint of oal, or damaged"):
                return _load(file, str(path), kind, mapped)
        except (_OtherError, DamagedError):
            raise
        except InputError as error:
            raise DamagedError(str(error)) from None


def load_newest(
    path: str | os.PathLike[str],
    *,
    kind: str,
    mapped: Collection[str] = (),
    inside: str | os.PathLike[str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the checkpoint at `path`, or, with a warning, the one before it if that one is damaged or gone."""
    try:
        return load(path, kind=kind, mapped=mapped, inside=inside)
    except (DamagedError, opening.MissingFileError) as error:
        try:
            found = load(previous(path), kind=kind, mapped=mapped, inside=inside)
        except InputError:
            raise error from None
        warnings.warn(f"{error}; the checkpoint before it is used, {previous(path).name}", stacklevel=2)
        return found


class _OtherError(InputError):
    """A whole file, but not the one that is wanted."""


def _load(
    file: BinaryIO, path: str, kind: str, mapped: Collection[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_HEADER):
        raise InputError(f"{path}: not a checkpoint, or cut short")
    text = file.read(length)
    header = jsontext.expect(_json(f"{path}: header", text), f"{path}: header", dict)
    metadata = jsontext.field(path, header, "__metadata__", dict)
    if metadata.get("format") != "oal":
        raise InputError(f"{path}: a safetensors file, but not one of oal's, or damaged")
    version = int(jsontext.field(path, metadata, "version", str))
    if version < 1:
        raise InputError(f"{path}: format {version} does not exist: the file is damaged")
    # before anything else is believed, the version included: every version from 2 on has this digest
    if version > 1 and metadata.get("header_crc32") != _header_digest(text):
        raise InputError(f"{path}: the header is not what was written: the file is damaged")
    if version > FORMAT_VERSION:
        raise _OtherError(f"{path}: written by a later version of oal (format {version}): update oal")
    if metadata.get("kind") != kind:
        raise _OtherError(f"{path}: holds a {metadata.get('kind')}, not a {kind}")
    info = jsontext.expect(_json(f"{path}: info", jsontext.field(path, metadata, "info", str)), f"{path}: info", dict)
    digests = _json(f"{path}: crc32", jsontext.field(path, metadata, "crc32", str)) if version > 1 else None
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    places = [_place(path, name, entry, digests) for name, entry in entries.items()]
    _check_places(path, places, size - 8 - length, mapped)
    arrays = {place.name: _read(file, path, place, 8 + length, place.name in mapped) for place in places}
    return arrays, info


def _json(where: str, text: str | bytes) -> Any:
    return jsontext.parse(where, text, max_characters=MAX_HEADER, not_finite="refused")


def _place(path: str, name: str, entry: Any, digests: Any) -> _Place:
    where = f"{path}: array '{name}'"
    entry = jsontext.expect(entry, where, dict)
    dtype = jsontext.field(where, entry, "dtype", str)
    if dtype not in _NUMPY_DTYPES:
        raise InputError(f"{where} has type {dtype}, which no checkpoint holds: the file is damaged")
    shape, offsets = (
        tuple(jsontext.expect(value, f"{where}: {key}", int) for value in jsontext.field(where, entry, key, list))
        for key in ("shape", "data_offsets")
    )
    start, stop = offsets
    if min((*shape, start), default=0) < 0 or stop - start != math.prod(shape) * _NUMPY_DTYPES[dtype].itemsize:
        raise InputError(f"{where} does not fit its place in the file")
    crc32 = None if digests is None else jsontext.field(f"{path}: crc32", digests, name, int)
    return _Place(name, _NUMPY_DTYPES[dtype], shape, start, stop, crc32)


def _check_places(path: str, places: list[_Place], nbytes: int, mapped: Collection[str]) -> None:
    """Refuse arrays that share bytes of the file, leave some out or go beyond its end."""
    at = 0
    for place in sorted(places, key=lambda each: (each.start, each.stop)):
        if place.stop > nbytes:
            raise InputError(f"{path}: cut short at array '{place.name}'")
        if place.start != at:
            raise InputError(f"{path}: array '{place.name}' does not begin where the one before it ends")
        at = place.stop
    if at != nbytes:
        raise InputError(f"{path}: {nbytes - at} bytes after the last array belong to nothing: the file is damaged")
    in_memory = sum(place.stop - place.start for place in places if place.name not in mapped)
    if in_memory > MAX_IN_MEMORY:
        raise InputError(f"{path}: its arrays take {in_memory} bytes of memory: at most {MAX_IN_MEMORY} are read")


def _read(file: BinaryIO, path: str, place: _Place, data_start: int, is_mapped: bool) -> np.ndarray:
    where = f"{path}: array '{place.name}'"
    if is_mapped and place.stop > place.start:
        array: np.ndarray = np.memmap(file, place.dtype, "r", data_start + place.start, place.shape)
    else:
        array = np.empty(place.shape, place.dtype)
        file.seek(data_start + place.start)
        target: Any = file  # a buffered reader, which has readinto; typed as BinaryIO, which has not
        if target.readinto(_bytes(array).data) != array.nbytes:
            raise InputError(f"{path}: cut short at array '{place.name}'")
    stored = _bytes(array)
    if place.crc32 is not None and _crc32(stored) != place.crc32:
        raise InputError(f"{where} is not what was written: the file is damaged")
    if place.dtype == bool and array.size and stored.max() > 1:
        raise InputError(f"{where} holds truth values that are neither true nor false: the file is damaged")
    return array


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return a contiguous array as the bytes it is stored as."""
    return array.reshape(-1).view(np.uint8)


def _crc32(stored: np.ndarray) -> int:
    """Return the digest of an array's bytes; a mapped one is not kept in memory longer than it takes to read it."""
    digest = 0
    for start in range(0, len(stored), _PIECE):
        digest = zlib.crc32(stored[start : start + _PIECE].data, digest)
    return digest


def _header_digest(text: bytes) -> str:
    """Return the digest of a header as it was before its digest was put in."""
    at = text.find(_DIGEST_KEY.encode()) + len(_DIGEST_KEY)
    blank = text[:at] + _NO_DIGEST.encode() + text[at + len(_NO_DIGEST) :]
    return f"{zlib.crc32(blank):08x}"


def named(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Name a pytree's arrays by their paths, as host arrays: prefix/actor/0/weight."""
    from jax import tree_util

    leaves = tree_util.tree_flatten_with_path(tree)[0]
    return {_name(prefix, path): np.asarray(leaf) for path, leaf in leaves}


def restored(template: T, arrays: Mapping[str, np.ndarray], prefix: str) -> T:
    """Fill a pytree of the template's structure from named arrays; shapes and types must agree."""
    import jax

    def fill(path: Any, leaf: Any) -> Any:
        name = _name(prefix, path)
        if name not in arrays:
            raise InputError(f"the checkpoint lacks '{name}': it belongs to another algorithm or configuration")
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise InputError(
                f"the checkpoint's '{name}' is {array.dtype}{array.shape}, {leaf.dtype}{leaf.shape} is needed: "
                "it belongs to another environment or configuration"
            )
        # a copy owned by JAX: a donated buffer must not be the file's or another array's memory
        return jax.numpy.array(array, copy=True)

    return jax.tree_util.tree_map_with_path(fill, template)


def _name(prefix: str, path: Any) -> str:
    from jax import tree_util

    return f"{prefix}/{tree_util.keystr(path, simple=True, separator='/')}"
