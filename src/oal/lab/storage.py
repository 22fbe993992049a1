"""Run folders in a storage of fsspec (s3://, gs://, file:// and others): for clusters whose nodes share no disk."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from oal.base import files, opening
from oal.errors import InputError, MissingExtraError

_FIRST, _LAST = ("metrics.jsonl",), ("checkpoint.previous.safetensors", "checkpoint.safetensors", "status.json")
"""The records up to a checkpoint are there before it, and the status, which says what is done, comes last."""
_PART = ".part"
PAUSES = (0.1, 0.5, 2.0, 8.0)
"""Seconds before a copy that failed is tried again."""


class Storage:
    """A place for run folders, each below its name. Only files that have changed are copied."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise MissingExtraError("fsspec", extra="ray", needed_for="storing runs at an address") from None
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, OSError, ValueError) as error:
            raise InputError(f"the storage '{url}' cannot be used ({error}): check the address") from None
        self.url = url
        self._pushed: dict[Path, tuple[int, int]] = {}
        self._pulled: dict[Path, str] = {}

    def holds(self, name: str) -> bool:
        """Whether a run of this name was ever pushed."""
        with self._naming(name):
            return bool(self._fs.exists(f"{self._root}/{name}/status.json"))

    def push(self, folder: Path, name: str) -> None:
        """Upload a run folder's files.

        A process that trains there meanwhile replaces files: all are opened first, so that the checkpoint that is
        uploaded is not newer than the records uploaded before it.
        """
        found = [path for path in folder.iterdir() if not path.is_dir() and not path.name.startswith(".")]
        with ExitStack() as stack, self._naming(name):
            opened = {
                path: stack.enter_context(opening.opened(path, inside=folder))
                for path in sorted(found, key=_order, reverse=True)
            }
            self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
            for path, source in reversed(opened.items()):
                status = os.fstat(source.fileno())  # of what was opened: the path may be another file by now
                stamp = (status.st_mtime_ns, status.st_size)
                if self._pushed.get(path) == stamp:
                    continue
                target = f"{self._root}/{name}/{path.name}"
                self._tried(lambda source=source, target=target: self._upload(source, target))
                self._pushed[path] = stamp

    def _upload(self, source: BinaryIO, target: str) -> None:
        source.seek(0)
        with self._fs.open(target + _PART, "wb") as output:
            shutil.copyfileobj(source, output)
        self._fs.mv(target + _PART, target)

    def _tried(self, work: Callable[[], None]) -> None:
        """Do something again that the storage has refused: those behind a network do so now and then."""
        for pause in (*PAUSES, None):
            try:
                work()
                return
            except OSError:
                if pause is None:
                    raise
                time.sleep(pause)

    def pull(self, name: str, folder: Path, *, only: tuple[str, ...] = ()) -> None:
        """Download a run's files, or only those with the names in `only`."""
        root = f"{self._root}/{name}"
        with self._naming(name):
            self._fs.invalidate_cache()
            if not self._fs.exists(root):
                return
            for path in sorted(self._fs.find(root), key=_order):
                file = path.rsplit("/", 1)[-1]
                target, version = folder / file, self._fs.ukey(path)
                unchanged = target.exists() and self._pulled.get(target) == version
                if file.endswith(_PART) or unchanged or (only and file not in only):
                    continue
                with files.replacing(target) as temporary:
                    self._tried(lambda path=path, temporary=temporary: self._fs.get_file(path, str(temporary)))
                self._pulled[target] = version

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Turn what a file system raises into an error that says where."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the storage '{self.url}' failed with the run {name} ({error.strerror or error}): check the address "
                "and the rights"
            ) from error


def _order(path: Any) -> int:
    """Return a file's place in the order of copying."""
    name = str(path).rsplit("/", 1)[-1]
    return -1 if name in _FIRST else 1 + _LAST.index(name) if name in _LAST else 0
