"""Open files that somebody else may have written: the one way to read run folders, checkpoints and demonstrations.

What is opened is a regular file, checked on the descriptor and not on the path, so that a pipe cannot make the reader
wait and a device cannot fill the memory. The caller reads everything through the one file it gets: opened again, a path
may be another file by then, since writers replace files while others read them.
"""

import os
import stat
from contextlib import suppress
from typing import BinaryIO

from oal.errors import InputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
# Without waiting for the other end of a pipe, and as bytes on systems that know text files; each where it exists.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


class MissingFileError(InputError):
    """There is no such file."""


def opened(
    path: str | os.PathLike[str],
    *,
    inside: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    where: str = "",
) -> BinaryIO:
    """Open a regular file for reading; anything else, and a file of more than `max_bytes`, is an InputError.

    inside: the folder that the file belongs to, if a name in it was not typed by the user: a symbolic link that leads
    out of the folder is refused.
    where: what messages call the file, its path if not given.
    """
    where = where or str(path)
    target, flags = os.fspath(path), _FLAGS
    try:
        if inside is not None:
            root, target = os.path.realpath(inside), os.path.realpath(path)
            if os.path.commonpath([root, target]) != root:
                raise InputError(f"{where} is a link out of its folder, which is not followed: copy the file there")
            flags |= getattr(os, "O_NOFOLLOW", 0)  # a link that took the file's place since
        descriptor = os.open(target, flags)
    except FileNotFoundError:
        raise MissingFileError(f"{where}: there is no such file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{where} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, not a file")
        if max_bytes is not None and found.st_size > max_bytes:
            raise InputError(f"{where} takes {found.st_size} bytes: at most {max_bytes} are read")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse to append to what is there but no regular file, such as a link to a file elsewhere."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise InputError(f"{path} is a link, a pipe or the like, not a file: nothing is written there")


def read_bytes(
    path: str | os.PathLike[str],
    *,
    max_bytes: int,
    inside: str | os.PathLike[str] | None = None,
    where: str = "",
) -> bytes:
    """Return the whole of a regular file, see `opened`."""
    with opened(path, inside=inside, max_bytes=max_bytes, where=where) as file:
        return content(file, max_bytes=max_bytes, where=where or str(path))


def content(file: BinaryIO, *, max_bytes: int, where: str) -> bytes:
    """Return the rest of an open file, which may have grown since it was opened."""
    try:
        data = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror})") from None
    if len(data) > max_bytes:
        raise InputError(f"{where} takes more than {max_bytes} bytes: no more are read")
    return data
