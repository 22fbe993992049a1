"""Checkpoints: one safetensors file holding named arrays and a JSON text, replaced in one step.

The file is complete or not there: the previous one stays until the new one is on the disk. Arrays are written from
where they lie, so a large replay needs no second copy in memory. No pickle is read or written.
"""

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from oal.base import files
from oal.errors import InputError

FORMAT_VERSION = 1

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


def save(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], info: Mapping[str, Any], *, kind: str) -> None:
    """Write arrays and JSON-able `info` to one file; `kind` names what it is and is checked on loading."""
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "oal",
            "version": str(FORMAT_VERSION),
            "kind": kind,
            "info": json.dumps(info, allow_nan=False),
        }
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    offset = 0
    for name, array in contiguous.items():
        if array.dtype.name not in _DTYPES:
            raise InputError(f"{path}: array '{name}' has type {array.dtype}, which a checkpoint cannot hold")
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            # ascontiguousarray turns a scalar into one number of shape (1,); the caller's shape is the right one
            "shape": list(np.shape(arrays[name])),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in contiguous.values():
            file.write(array.reshape(-1).view(np.uint8).data)


def load(
    path: str | os.PathLike[str], *, kind: str, mapped: Collection[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save` wrote; a file that is damaged, of another kind or from a later version is an InputError.

    The arrays named in `mapped` are left in the file and read where they are used: a large replay that is copied to its
    place needs no second copy in memory.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise InputError(f"{path}: not a checkpoint, or cut short")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        if metadata["format"] != "oal":
            raise InputError(f"{path}: a safetensors file, but not one of oal's")
        if int(metadata["version"]) > FORMAT_VERSION:
            raise InputError(f"{path}: written by a later version of oal (format {metadata['version']}): update oal")
        if metadata["kind"] != kind:
            raise InputError(f"{path}: holds a {metadata['kind']}, not a {kind}")
        info = json.loads(metadata["info"])
        arrays = {}
        for name, entry in header.items():
            start, stop = (int(value) for value in entry["data_offsets"])
            dtype = _NUMPY_DTYPES[entry["dtype"]]
            shape = tuple(int(value) for value in entry["shape"])
            if min((*shape, start), default=0) < 0 or stop - start != math.prod(shape) * dtype.itemsize:
                raise InputError(f"{path}: array '{name}' does not fit its place in the file")
            if 8 + length + stop > size:
                raise InputError(f"{path}: cut short at array '{name}'")
            place = 8 + length + start
            if name in mapped and stop > start:
                arrays[name] = np.memmap(path, dtype, "r", place, shape)
            else:
                arrays[name] = np.fromfile(path, dtype, math.prod(shape), offset=place).reshape(shape)
        return arrays, info
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a checkpoint of oal, or damaged ({error})") from None


def named(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Name a pytree's arrays by their paths, as host arrays: prefix/actor/0/weight."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(prefix, path): np.asarray(leaf) for path, leaf in leaves}


def restored(template: T, arrays: Mapping[str, np.ndarray], prefix: str) -> T:
    """Fill a pytree of the template's structure from named arrays; shapes and types must agree."""

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
    return f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}"
