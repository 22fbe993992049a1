"""Run folders: the one contract between what trains and what reports.

A folder holds config.json and metadata.json (what is run, and where it came from), status.json (how far it is),
metrics.jsonl (one record per line), metrics.csv (the same as a table) and the files named in `RunFolder`. Every file
is replaced in one step or only appended to, so a run killed at any moment leaves a folder that can be read and resumed.
run.uuid says which run the folder is: a process whose folder was replaced under it notices and stops.
"""

import json
import math
import os
import re
import stat
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from oal.base import files, jsontext, opening
from oal.base.jsontext import expect
from oal.errors import InputError, choice, is_whole

try:
    import fcntl
except ImportError:  # not on every system: there, nothing keeps two processes out of one folder
    fcntl = None

FORMAT_VERSION = 1
STATUSES = ("running", "finished", "stopped", "failed")
MAX_METRICS, MAX_RECORDS, MAX_NAMES = 128 << 20, 1 << 20, 1_000
"""Bytes of metrics.jsonl, its lines, and the different metrics in them: a table has a cell for each line and metric."""
_NUMBERS = ("step", "seconds", "return", "evaluation_return", "evaluation_distance")
"""What a record says with a number or null, if at all."""
_RETURNS = ("expert_return", "source_return", "held_out_return", "random_return")
"""What the metadata say with a number or null, if at all."""
_OLD_STATUSES = {"trained": "finished"}
_IDENTITY = re.compile(rb"[0-9a-f]{32}\n")
_BESIDE = ("cost.json", "expert.gif", "worker.log", "certificate.png", "certificate.svg")
"""What others write into a run folder, beside the files that `RunFolder` names."""
_PATTERNS = re.compile(r"checkpoint[\w.-]*\.safetensors|\..+\.[0-9a-f]{8}\.part(\.\w+)?")
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A lock in a stranger's folder may be a link to a file of the user's, or a pipe that waits for ever."""


class BusyError(InputError):
    """Another process trains into the folder."""


class RunFolder:
    """One run's folder. `RunFolder(path)` reads nothing yet; `open` and `create` say at once what is wrong."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = self.path = Path(path)
        self.metrics = path / "metrics.jsonl"
        self.table = path / "metrics.csv"
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.policy = path / "policy.safetensors"
        self.clone = path / "clone.safetensors"
        self.cost = path / "cost.safetensors"
        self.demos = path / "demos.npz"
        self.held_out = path / "held-out.npz"
        self.certificate = path / "certificate.json"
        self.video = path / "video.gif"
        self._config_path = path / "config.json"
        self._metadata_path = path / "metadata.json"
        self._status_path = path / "status.json"
        self._lock_path = path / ".lock"
        self._identity_path = path / "run.uuid"
        self._identity: str | None = None
        self._held: weakref.finalize | None = None

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # ----- begin and open

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        metadata: Mapping[str, Any],
        *,
        kind: str = "learner",
    ) -> "RunFolder":
        """Begin a run in a new folder and lock it; a folder that holds a run already is refused."""
        folder = cls(path)
        folder.lock()
        try:
            if any(file.exists() for file in (folder._config_path, folder.metrics, folder.checkpoint)):
                raise InputError(
                    f"{folder} holds a run already: go on with it by  oal resume {folder}  or choose another folder"
                )
            folder._identify()
            folder.set_status("running", step=0)
            # the config comes last: a folder has a run once everything else that describes it is there
            folder.describe(config, metadata, kind=kind)
        except BaseException:
            folder.release()
            raise
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, kind: str | None = None) -> "RunFolder":
        """Open an existing run; with `kind`, only one of that kind. Locking it is the caller's choice."""
        folder = cls(path)
        found, _ = folder._read_config()
        if kind is not None and found != kind:
            raise InputError(f"{folder} holds a run of kind '{found}', not '{kind}': choose another folder")
        _ = folder.metadata
        folder._identity = folder._read_identity()
        return folder

    @classmethod
    def find(cls, root: str | os.PathLike[str]) -> list["RunFolder"]:
        """List the run folders below a path, itself included, in the order of their paths."""
        root = Path(root)
        if not root.is_dir():
            raise InputError(f"{root}: there is no such folder")
        found = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            # other results have a config too; only a run has a status
            if "config.json" in names and "status.json" in names:
                found.append(Path(folder))
        return [cls(folder) for folder in sorted(found)]

    # ----- what the run is

    @property
    def kind(self) -> str:
        """What trains here: "learner" or "expert"."""
        return self._read_config()[0]

    @property
    def config(self) -> dict[str, Any]:
        return self._read_config()[1]

    @property
    def described(self) -> bool:
        """Whether `describe` was ever called here."""
        return self._config_path.exists()

    @property
    def metadata(self) -> dict[str, Any]:
        written = self._read_object(self._config_path)
        if "format" in written:
            known = self._read_object(self._metadata_path)
            for name in _RETURNS:
                expect(known.get(name), f"{self._metadata_path}: {name}", float, or_none=True)
            return known
        # before the format had a number, experts kept the environment beside the config and had no other metadata
        known = self._read_object(self._metadata_path) if self._metadata_path.exists() else {}
        return known | {"environment": written.get("environment")}

    def describe(self, config: Mapping[str, Any], metadata: Mapping[str, Any], *, kind: str = "learner") -> None:
        """Write what the run is: at its beginning, or again when a resumed run is given another end."""
        self.verify()
        files.write_json(self._metadata_path, plain(metadata))
        files.write_json(self._config_path, {"format": FORMAT_VERSION, "kind": kind, "config": plain(config)})

    def forget(self) -> None:
        """Take back `describe`: the folder holds no run any more. Hold the lock, and only where nothing was learned."""
        self._config_path.unlink(missing_ok=True)

    def _read_config(self) -> tuple[str, dict[str, Any]]:
        try:
            written = self._read_object(self._config_path)
        except opening.MissingFileError as error:
            raise InputError(f"{error}, so {self} holds no run: check the path") from None
        if "format" not in written and "expert" in written:
            kind, config = "expert", written["expert"]
        else:
            version = written.get("format")
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise InputError(f"{self} was written by a later version of oal (format {version}): update oal")
            kind, config = written.get("kind", "learner"), written.get("config")
        if not isinstance(kind, str) or not isinstance(config, dict):
            raise InputError(f"{self._config_path}: not the config of a run, or damaged: choose another folder")
        # what every reader takes for granted; the rest is checked by who trains with it
        expect(config.get("total_steps", 0), f"{self._config_path}: total_steps", int)
        expect(config.get("seed"), f"{self._config_path}: seed", int, or_none=True)
        return kind, config

    def _read_object(self, path: Path) -> dict[str, Any]:
        return files.read_object(path, inside=self.path)

    # ----- how far it is

    @property
    def status(self) -> dict[str, Any]:
        """What `set_status` wrote last. A killed run still says "running"."""
        status = self._read_object(self._status_path)
        expect(status.get("step", 0), f"{self._status_path}: step", int)
        for name in ("status", "error", "traceback"):
            expect(status.get(name), f"{self._status_path}: {name}", str, or_none=True)
        return status | {"status": _OLD_STATUSES.get(status.get("status", ""), status.get("status"))}

    def set_status(self, status: str, *, step: int, **extra: Any) -> None:
        choice("status", status, STATUSES)
        self.verify()
        files.write_json(self._status_path, plain({"status": status, "step": step, **extra}))

    # ----- metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record; numbers that are not finite become null."""
        self.verify()
        line = json.dumps(plain(record), allow_nan=False).encode() + b"\n"
        opening.check_target(self.metrics)
        size = None
        try:
            with self.metrics.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a kill cut the last line short: begin a new one
                        line = b"\n" + line
                file.write(line)
        except OSError as error:
            if size is not None:  # else it was not even opened
                os.truncate(self.metrics, size)
            raise InputError(
                f"{self.metrics}: the record could not be written ({error.strerror}); the records before it are kept: "
                "make room and resume"
            ) from error

    def records(self) -> list[dict[str, Any]]:
        """Read all records, without lines that a kill cut short."""
        return [record for _, record in self._lines()]

    def rewind(self, step: int) -> None:
        """Drop the records logged after `step`, where a checkpoint was taken."""
        self.verify()
        if self.metrics.exists():
            numbered = ((line, record.get("step")) for line, record in self._lines())
            kept = (line for line, number in numbered if number is not None and number <= step)
            files.write_text(self.metrics, "".join(line + "\n" for line in kept))

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            data = opening.read_bytes(self.metrics, inside=self.path, max_bytes=MAX_METRICS)
        except opening.MissingFileError:
            return
        lines = data.decode("utf-8", errors="replace").splitlines()
        if len(lines) > MAX_RECORDS:
            raise InputError(f"{self.metrics} has {len(lines)} lines: at most {MAX_RECORDS} are read")
        names: set[str] = set()
        for line in lines:
            try:
                record = jsontext.parse(str(self.metrics), line, not_finite="null")
            except InputError:
                continue
            if isinstance(record, dict):
                names.update(record)
                if len(names) > MAX_NAMES:
                    raise InputError(f"{self.metrics} has more than {MAX_NAMES} different metrics: the file is damaged")
                for name in _NUMBERS:
                    expect(record.get(name), f"{self.metrics}: {name} of a record", float, or_none=True)
                yield line, record

    def write_table(self) -> None:
        """Write metrics.csv: one column per metric that is never a list, in the order they first appear."""
        self.verify()
        records = self.records()
        columns = list(dict.fromkeys(name for record in records for name in record))
        lists = {name for record in records for name, value in record.items() if isinstance(value, (list, dict))}
        files.write_csv(self.table, records, columns=[name for name in columns if name not in lists])

    # ----- one folder for one run

    def verify(self) -> None:
        """Refuse to write into a folder that was deleted or replaced since this object opened it.

        A folder from before runs had an identity gets one when it is locked.
        """
        if self._identity is not None and self._read_identity() != self._identity:
            raise InputError(
                f"{self} was deleted or replaced while its run was under way: nothing is written to it any more; start "
                "the run again, in another folder if something else is there now"
            )

    def _identify(self) -> None:
        """Give the folder an identity unless it has one."""
        if self._identity is None:
            self._identity = uuid.uuid4().hex
            files.write_text(self._identity_path, self._identity + "\n")

    def _read_identity(self) -> str | None:
        try:
            descriptor = os.open(self._identity_path, os.O_RDONLY | _NO_LINKS)
        except OSError:
            return None
        try:
            written = os.read(descriptor, 64)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return written.decode().strip() if _IDENTITY.fullmatch(written) else None

    def known_files(self) -> tuple[list[Path], list[Path]]:
        """List what is in the folder: (files that a run writes, anything else)."""
        own = {path.name for path in vars(self).values() if isinstance(path, Path) and path != self.path}
        known, unknown = [], []
        for path in sorted(self.path.iterdir()):
            if path.name == "tensorboard" and path.is_dir() and not path.is_symlink():
                for event in sorted(path.iterdir()):
                    ours = event.name.startswith("events.out.tfevents.") and not event.is_dir()
                    (known if ours else unknown).append(event)
            else:
                ours = path.name in own or path.name in _BESIDE or _PATTERNS.fullmatch(path.name)
                (known if ours and (path.is_symlink() or not path.is_dir()) else unknown).append(path)
        return known, unknown

    @property
    def verified(self) -> bool:
        """Whether this is a run's folder for sure, and not somebody else's with files of the same names."""
        if self._read_identity() is not None:
            return True
        try:
            status = self.status
        except (InputError, TypeError):
            return False
        if status["status"] not in STATUSES or not is_whole(status.get("step")):
            return False
        try:
            self._read_object(self._config_path)
        except InputError:
            return True  # damaged beside the status of a run
        try:
            self._read_config()
        except InputError:
            return False
        return True

    def remove(self) -> list[Path]:
        """Remove the run's files, and the folder if nothing else is in it; return what is left in it."""
        if not self.verified:
            raise InputError(f"{self} cannot be told for sure to be a run: remove it yourself if it is one")
        known, unknown = self.known_files()
        for path in known:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            (self.path / "tensorboard").rmdir()
        if not unknown:
            self.path.rmdir()
        return unknown

    # ----- one process at a time

    def lock(self) -> None:
        """Keep other processes from training into this folder until `release`, or until this process is gone.

        Where the system or the file system has no locks, the run goes on without one.
        """
        if self._held is not None and self._held.alive:
            return
        try:
            if self._identity is None:
                self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o644)
        except OSError as error:
            why = "its .lock is a link" if self._lock_path.is_symlink() else error.strerror
            raise InputError(f"{self}: cannot be used as a run folder ({why}): choose another") from error
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:  # its other name may be a file of the user's
            os.close(descriptor)
            raise InputError(f"{self}: cannot be used as a run folder (its .lock is not a file of its own): remove it")
        # closed by `release`, with the object, or at the end of the process; closing gives the lock back
        self._held = weakref.finalize(self, os.close, descriptor)
        if fcntl is None:
            self._recognise()
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            self.release()
            raise BusyError(
                f"{self} is being trained into by another process (id {holder}): wait for it, stop it, or choose "
                "another folder"
            ) from None
        except OSError:
            self._recognise()
            return
        self._recognise()
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        files.sweep(self.path)

    def _recognise(self) -> None:
        """Read the identity of the folder that was just locked; a run from before there were any gets one."""
        try:
            self.verify()
            if self._identity is None:
                self._identity = self._read_identity()
            if self._identity is None and self.described:
                self._identify()
        except BaseException:
            self.release()
            raise

    @property
    def busy(self) -> bool:
        """Whether some process trains here now, as far as locks can tell."""
        if fcntl is None:
            return False
        try:
            descriptor = os.open(self._lock_path, os.O_RDONLY | _NO_LINKS)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Let other processes train into this folder."""
        if self._held is not None:
            self._held()


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: arrays become lists, numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give the values of nested tables dotted names: {"policy": {"hidden": 32}} becomes {"policy.hidden": 32}."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
