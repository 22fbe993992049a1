"""The benchmark's results file: written part by part, so a run that is stopped loses nothing.

{"results": [entry, ...], "missing": [part, ...]}. Each entry names its part and carries where it came from: a part that
is run alone replaces its own entries only.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oal.base import files, plots

Entry = dict[str, Any]


def read(path: str | os.PathLike[str]) -> list[Entry]:
    """Return the entries of a results file, none if there is no file; entries that name no part are left behind."""
    if not Path(path).exists():
        return []
    return [entry for entry in files.read_json(path)["results"] if "part" in entry]


def merged(
    entries: Iterable[Entry], part: str, new: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any]
) -> list[Entry]:
    """Replace a part's entries by new ones; the other parts' stay as they are."""
    kept = [entry for entry in entries if entry["part"] != part]
    return [*kept, *({"part": part, **entry, "provenance": dict(provenance)} for entry in new)]


def ordered(entries: Iterable[Entry], parts: Sequence[str]) -> list[Entry]:
    """Sort by part, in the order of `parts`; the order within a part stays."""
    places = {part: place for place, part in enumerate(parts)}
    return sorted(entries, key=lambda entry: places.get(entry["part"], len(places)))


def missing(entries: Iterable[Entry], expected: Iterable[str], pending: Iterable[str]) -> list[str]:
    """Name the expected parts that have no entry, and those of the run under way that are not finished."""
    present, pending = {entry["part"] for entry in entries}, list(pending)
    return [part for part in dict.fromkeys([*expected, *pending]) if part not in present or part in pending]


def write(path: str | os.PathLike[str], entries: Sequence[Entry], left: Sequence[str]) -> None:
    files.write_json(path, {"results": list(entries), "missing": list(left)})


def verdict(entry: Entry) -> str:
    """Say whether the median ratio reaches the aim; nothing without one."""
    if "aim" not in entry:
        return ""
    smaller = entry.get("smaller_is_better", False)
    ratio, aim = entry["ratio"]["median"], entry["aim"]
    reached = ratio <= aim if smaller else ratio >= aim
    return f"{'at most' if smaller else 'at least'} {aim:g}: {'reached' if reached else 'not reached'}"


def medians(entry: Entry) -> str:
    """List what was measured, in the entry's unit, and the workers' peak memory."""
    rates = {k: v["median"] for k, v in entry.items() if k != "ratio" and isinstance(v, dict) and "median" in v}
    memory = ", ".join(f"{name} {value}" for name, value in entry.get("peak_memory_megabytes", {}).items())
    text = f"{entry['unit']}: " + ", ".join(f"{k} {v:.4g}" for k, v in rates.items())
    return f"{text}; peak MB: {memory}" if memory else text


COLUMNS = ("what", "ratio", "spread", "aim", "medians")


def rows(entries: Iterable[Entry]) -> list[list[str]]:
    table = []
    for entry in entries:
        if "skipped" in entry:
            table.append([entry["name"], "skipped", "", "", entry["skipped"]])
            continue
        ratio = entry["ratio"]
        table.append(
            [
                entry["name"],
                f"{ratio['median']:.3g}",
                f"{ratio['min']:.3g} to {ratio['max']:.3g}",
                verdict(entry),
                medians(entry),
            ]
        )
    return table


def notes(entries: Iterable[Entry]) -> list[str]:
    """Say what is not equal in the comparisons; those with the same note share a line."""
    named: dict[str, list[str]] = {}
    for entry in entries:
        if "differs" in entry:
            named.setdefault(entry["differs"], []).append(entry["name"])
    return [f"{'; '.join(names)}: {note}." for note, names in named.items()]


def draw(path: str | os.PathLike[str], entries: Iterable[Entry]) -> None:
    """Draw every ratio with its spread and its aim."""
    measured = [entry for entry in entries if "ratio" in entry]
    with plots.picture(path, width=14, height=0.3 * len(measured) + 1) as axes:
        for y, entry in enumerate(measured):
            # a share of nothing has no place on a logarithmic axis
            ratio = {name: max(value, 1e-3) for name, value in entry["ratio"].items()}
            axes.errorbar(
                ratio["median"],
                y,
                xerr=[[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]],
                marker="o",
                ms=4,
                capsize=3,
                color=plots.COLOURS[0],
            )
            if "aim" in entry:
                axes.plot(entry["aim"], y, marker="|", ms=14, color=plots.COLOURS[1])
        axes.set_yticks(range(len(measured)), [entry["name"] for entry in measured], fontsize=7)
        axes.set(xscale="log", xlabel="ratio (bar: spread; vertical line: aim)")
        axes.invert_yaxis()
