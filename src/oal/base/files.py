"""Files that are never half written: everything goes to a temporary name beside the target and is renamed."""

import csv
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from oal.base import jsontext, opening
from oal.base.limits import MAX_TEXT
from oal.errors import InputError

MAX_JSON = 64 << 20


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it becomes `path` in one step, on failure it is removed.

    The data is flushed to the disk before the rename, so a crash leaves the old file or the new one, never a part.
    The temporary name keeps the suffix of `path`, since libraries choose a format by it.
    A full disk or a folder that cannot be written to is an InputError.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        kept = "; the file that was there before is kept" if path.exists() else ""
        raise InputError(f"{path}: could not be written ({error.strerror or error}){kept}") from error
    finally:
        with suppress(OSError):  # the folder itself may be what is missing
            temporary.unlink(missing_ok=True)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed processes left in a folder. Nobody else may be writing there."""
    for left in Path(folder).glob(".*.????????.part*"):
        left.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON for people to read, whole or not at all; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False, allow_nan=False) + "\n")


def write_csv(
    path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]], *, columns: Sequence[str] | None = None
) -> None:
    """Write a table; without `columns` they are those of the first row, and every row has the same."""
    names = columns if columns is not None else list(rows[0]) if rows else []
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, names, extrasaction="raise" if columns is None else "ignore")
        writer.writerow({name: csv_cell(name) for name in names})
        for row in rows:
            writer.writerow({name: csv_cell(value) for name, value in row.items()})


def csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet computes: text that begins like a formula and is no number gets an apostrophe.

    Names in tables come from run folders and demonstrations, which may be a stranger's.
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def read_json(
    path: str | os.PathLike[str], *, inside: str | os.PathLike[str] | None = None, max_bytes: int = MAX_JSON
) -> Any:
    """Return the value in a JSON file; `inside` is the folder it must not lead out of, see `opening.opened`."""
    data = opening.read_bytes(path, inside=inside, max_bytes=max_bytes)
    return jsontext.parse(f"{path}:", data, max_characters=max_bytes)


def read_object(path: str | os.PathLike[str], *, inside: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the dictionary in a JSON file of a run folder."""
    value = read_json(path, inside=inside, max_bytes=MAX_TEXT)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object but {type(value).__name__}: the file is damaged")
    return value
