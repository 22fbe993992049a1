"""Read `.npz` archives of plain arrays from untrusted sources: no pickle is opened, no claim about a size believed.

An archive is accepted only member by member: the zip directory is small, each wanted member's claimed size agrees with
its npy header and with what its compressed bytes can hold, and all wanted members together fit the budget. Other
members (pickled `infos` of other libraries, say) are never opened.
"""

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any, BinaryIO

import numpy as np

from oal.base.files import replacing
from oal.base.limits import DEFAULT_BUDGET, DEFLATE_MAX_RATIO, MAX_TEXT, Budget, damage
from oal.errors import InputError

MAX_MEMBERS = 1024
MAX_DIRECTORY_BYTES = 1 << 20
MAX_NPY_HEADER_BYTES = 4096
MAX_DIMENSIONS = 16
READ_BYTES = 1 << 20

_END_OF_DIRECTORY = b"PK\x05\x06"
_ZIP64_LOCATOR = b"PK\x06\x07"
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    r"\{\s*'descr'\s*:\s*(?P<descr>'[^']{1,16}'|\[[^\]]*\])\s*,\s*'fortran_order'\s*:\s*(?P<order>True|False)\s*,"
    r"\s*'shape'\s*:\s*\((?P<shape>[\d, ]*)\)\s*,?\s*\}\s*",
)
_PLAIN_DTYPE = re.compile(r"'[<>|=]?(?:b1|[iu][1248]|f[248]|U\d{1,9})'")


class Archive:
    """An open `.npz`; use it in a `with` block. `name` is what error messages call it. The file stays the caller's."""

    def __init__(self, file: BinaryIO, name: str, budget: Budget = DEFAULT_BUDGET) -> None:
        self.name = name
        self._bytes = file.seek(0, os.SEEK_END)
        self._budget = self._left = budget.of(self._bytes)
        self._check_directory(file)
        file.seek(0)
        with damage(f"{name}: the zip archive is damaged", zipfile.BadZipFile, struct.error):
            self._zip = zipfile.ZipFile(file)
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            raise InputError(f"{name}: holds {len(members)} members, more than the {MAX_MEMBERS} allowed")
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        if len(self._members) < len(members):
            raise InputError(f"{name}: holds two members of the same name")

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    @property
    def keys(self) -> list[str]:
        return list(self._members)

    def _check_directory(self, file: BinaryIO) -> None:
        """Refuse a huge member list before `zipfile` builds an object for each entry."""
        tail_bytes = min(self._bytes, 22 + 20 + 0xFFFF)
        file.seek(-tail_bytes, os.SEEK_END)
        tail = file.read(tail_bytes)
        end = tail.rfind(_END_OF_DIRECTORY)
        if end < 0 or len(tail) - end < 22:
            raise InputError(f"{self.name}: not a whole .npz archive: its zip directory is missing (cut short?)")
        if tail[max(0, end - 20) : end].startswith(_ZIP64_LOCATOR):
            raise InputError(f"{self.name}: is a zip64 archive, meant for more than 4 GiB: split the demonstrations")
        (directory_bytes,) = struct.unpack_from("<I", tail, end + 12)
        if directory_bytes > min(MAX_DIRECTORY_BYTES, self._bytes):
            raise InputError(f"{self.name}: its zip directory claims {directory_bytes} bytes, which is too many")

    def read(self, key: str, *, max_bytes: int | None = None) -> np.ndarray:
        """Return one member as a read-only array."""
        where = f"{self.name}: array '{key}'"
        if key not in self._members:
            raise InputError(f"{where} is missing; the file holds: {', '.join(self.keys) or 'nothing'}")
        info = self._members[key]
        if max_bytes is not None and info.file_size > max_bytes:
            raise InputError(f"{where} claims {info.file_size} bytes: at most {max_bytes} are read")
        broken = (zipfile.BadZipFile, zlib.error, EOFError, struct.error)
        with damage(f"{where} is damaged", *broken), self._zip.open(info) as member:
            return self._read_member(where, info, member)

    def _read_member(self, where: str, info: zipfile.ZipInfo, member: IO[bytes]) -> np.ndarray:
        if info.compress_type == zipfile.ZIP_STORED:
            possible = info.compress_size
        elif info.compress_type == zipfile.ZIP_DEFLATED:
            possible = DEFLATE_MAX_RATIO * (info.compress_size + 8)
        else:
            raise InputError(
                f"{where} is packed with zip method {info.compress_type}: only stored and deflated are read"
            )
        if info.compress_size > self._bytes or info.file_size > possible:
            raise InputError(
                f"{where} claims {info.file_size} bytes, more than its {info.compress_size} stored can hold"
            )
        dtype, fortran, shape, header_bytes = _npy_header(where, member)
        data_bytes = dtype.itemsize * math.prod(shape)
        if header_bytes + data_bytes != info.file_size:
            raise InputError(f"{where} has shape {shape} of {dtype}, which is not the {info.file_size} bytes it holds")
        if data_bytes > self._left:
            raise InputError(
                f"{where} would bring the file to more than {self._budget} bytes of arrays: too much for a file of "
                f"{self._bytes} bytes (raise the limit with the argument `budget` if you trust it)"
            )
        self._left -= data_bytes
        raw = np.empty(data_bytes, dtype=np.uint8)
        stream: Any = member  # typed as IO, which lacks readinto; ZipFile.open gives a buffered reader
        done = 0
        while done < data_bytes:
            count = stream.readinto(raw[done : done + READ_BYTES])
            if not count:
                raise InputError(f"{where} ends after {done} of {data_bytes} bytes")
            done += count
        if member.read(1):  # reaching the end also checks the member's CRC
            raise InputError(f"{where} is longer than it claims")
        array = raw.view(dtype).reshape(shape, order="F" if fortran else "C")
        array.flags.writeable = False
        return array

    def read_text(self, key: str) -> str:
        """Return a member that holds one string."""
        array = self.read(key, max_bytes=4 * MAX_TEXT + MAX_NPY_HEADER_BYTES)
        if array.dtype.kind != "U" or array.ndim != 0:
            raise InputError(
                f"{self.name}: '{key}' is an array of {array.dtype}, shape {array.shape}: it must be one text"
            )
        try:
            text = str(array[()])
            text.encode("utf-8")
        except (ValueError, UnicodeError, SystemError) as error:
            raise InputError(f"{self.name}: '{key}' is not valid text ({error})") from None
        return text


def _npy_header(where: str, member: IO[bytes]) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    """Parse an npy header without evaluating it: dtype, Fortran order, shape, and how long the header is."""
    start = member.read(8)
    if start[:6] != _NPY_MAGIC or len(start) < 8:
        raise InputError(f"{where} is not an npy array (a pickle in disguise is not opened)")
    major = start[6]
    if major not in (1, 2, 3):
        raise InputError(f"{where} has npy version {major}: 1 to 3 are read")
    size_format = "<H" if major == 1 else "<I"
    size_field = member.read(struct.calcsize(size_format))
    (size,) = struct.unpack(size_format, size_field)
    if size > MAX_NPY_HEADER_BYTES:
        raise InputError(f"{where} has an npy header of {size} bytes: at most {MAX_NPY_HEADER_BYTES} are read")
    match = _NPY_HEADER.fullmatch(member.read(size).decode("latin-1"))
    if match is None:
        raise InputError(f"{where} has an npy header that cannot be read")
    descr = match["descr"]
    if "O" in descr:
        raise InputError(f"{where} holds Python objects (pickles), which are never opened: save it as plain numbers")
    if not _PLAIN_DTYPE.fullmatch(descr):
        raise InputError(f"{where} has dtype {descr}: only plain booleans, integers, floats and text are read")
    shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
    if len(shape) > MAX_DIMENSIONS or any(length >= 1 << 62 for length in shape):
        raise InputError(f"{where} claims shape {match['shape']!r}, which no array has")
    return np.dtype(descr.strip("'")), match["order"] == "True", shape, 8 + len(size_field) + size


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write plain arrays as an `.npz` in one step; the same arrays always give the same bytes."""
    method = zipfile.ZIP_DEFLATED
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", method, compresslevel=9) as archive:
        for key, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = method, 0o644 << 16
            archive.writestr(entry, buffer.getvalue())


def text(value: str) -> np.ndarray:
    """Return a string as the array that `Archive.read_text` reads."""
    return np.array(value)
