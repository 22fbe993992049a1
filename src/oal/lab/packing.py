"""Many finished runs in one small file: what reports read of them, without policies, checkpoints and demonstrations.

A line is one run: its folder below the packed one, its configuration, where it came from, and its curves. Unpacked, it
is a run folder again that a report reads and a sweep takes for finished; it cannot act or learn on.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from oal.base import files, jsontext, opening
from oal.base.folder import RunFolder, plain
from oal.errors import InputError
from oal.report.results import CURVES

MAX_BYTES = 256 * 2**20
COLUMNS = ("step", "seconds", *CURVES.values())
DIGITS = 6
"""Of a return: more than any table shows."""


def pack(roots: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> tuple[int, int]:
    """Write every finished run below the roots to one file; return how many, and how many were not finished."""
    roots, lines, unfinished = [*map(Path, roots)], {}, 0
    for root in roots:
        for folder in RunFolder.find(root):
            if folder.status["status"] != "finished":
                unfinished += 1
                continue
            name = folder.path.name if folder.path == root else folder.path.relative_to(root).as_posix()
            if name in lines:
                raise InputError(f"two runs are called {name}: pack the folder above both of them")
            lines[name] = json.dumps(_packed(name, folder), allow_nan=False)
    if not lines:
        raise InputError(f"there is no finished run in {', '.join(map(str, roots))}")
    files.write_text(out, "".join(lines[name] + "\n" for name in sorted(lines)))
    return len(lines), unfinished


def unpack(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> tuple[int, int]:
    """Write the runs of a packed file as run folders; return how many, and how many were there already."""
    written, there = 0, 0
    for name, run in _lines(path):
        folder = RunFolder(Path(out) / name)
        if folder.described:
            there += 1
            continue
        made = RunFolder.create(folder.path, run["config"], run["metadata"], kind=run["kind"])
        try:
            for record in run["records"]:
                made.log(record)
            made.set_status("finished", step=run["step"])
        finally:
            made.release()
        written += 1
    return written, there


def _packed(name: str, folder: RunFolder) -> dict[str, Any]:
    records = folder.records()
    curves = {column: [_rounded(record.get(column)) for record in records] for column in COLUMNS}
    return {
        "run": name,
        "kind": folder.kind,
        "step": folder.status.get("step", 0),
        "config": folder.config,
        "metadata": plain(folder.metadata),
        "curves": {column: values for column, values in curves.items() if any(value is not None for value in values)},
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read a packed file; each run's name is a relative path that stays where it is."""
    text = opening.read_bytes(path, max_bytes=MAX_BYTES).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        run = jsontext.expect(jsontext.parse(f"{where}:", line, max_characters=MAX_BYTES), where, dict)
        name = jsontext.field(where, run, "run", str)
        parts = PurePosixPath(name).parts
        if not parts or name != "/".join(parts) or any(part in ("..", "/") or "\\" in part for part in parts):
            raise InputError(f"{where}: the run's name '{name}' is no path below a folder: the file is damaged")
        curves = jsontext.field(where, run, "curves", dict)
        columns = {key: jsontext.expect(curves[key], f"{where}: {key}", list) for key in COLUMNS if key in curves}
        if len({len(values) for values in columns.values()}) > 1:
            raise InputError(f"{where}: the curves differ in length: the file is damaged")
        for key, values in columns.items():
            for value in values:
                jsontext.expect(value, f"{where}: {key}", float, or_none=True)
        yield (
            name,
            {
                "kind": jsontext.field(where, run, "kind", str),
                "step": jsontext.field(where, run, "step", int),
                "config": jsontext.field(where, run, "config", dict),
                "metadata": jsontext.field(where, run, "metadata", dict),
                "records": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            },
        )
