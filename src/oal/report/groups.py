"""Runs that differ only in their seed are one algorithm on one task; its label is what sets it apart from others."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oal.base.folder import flattened
from oal.report.results import Run

MAIN_FIELDS = ("policy", "cost", "preset")
ABSENT = "-"


@dataclass(frozen=True)
class Group:
    """The seeds of one algorithm on one task."""

    task: str
    algorithm: str
    runs: tuple[Run, ...]

    @property
    def judged(self) -> tuple[Run, ...]:
        """The runs that numbers are made of: the finished ones; while none is, all as far as they have got."""
        return tuple(run for run in self.runs if not run.unfinished) or self.runs


def settings(run: Run) -> dict[str, str]:
    """Return what defines the algorithm and its task's settings: everything but seed and environment."""
    fields = {name: value for name, value in flattened(run.config).items() if name not in ("seed", "env")}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def shared(runs: Sequence[Run]) -> dict[str, str]:
    """Return the settings that all runs have in common."""
    all_fields = [settings(run) for run in runs]
    return {name: value for name, value in all_fields[0].items() if all(f.get(name) == value for f in all_fields)}


def labels(runs: Sequence[Run]) -> list[str]:
    """Name each run's algorithm by as few fields as tell the algorithms apart.

    Fields are taken in order, policy, cost and preset first, then the run's own, then the players' settings; a field
    joins the label only where runs of the same label still differ in it. A main field counts when it differs anywhere.
    Any other must differ within one task: what differs only between tasks (their demonstrations, their lengths) is a
    setting of the task.
    """
    fields = [settings(run) for run in runs]
    others = sorted(
        dict.fromkeys(name for each in fields for name in each if name not in MAIN_FIELDS), key=lambda name: "." in name
    )
    keys: list[tuple[tuple[str, str], ...]] = [()] * len(runs)
    for name in (*MAIN_FIELDS, *others):
        values: dict[Any, set[str]] = {}
        places = [(key, "" if name in MAIN_FIELDS else run.task) for key, run in zip(keys, runs, strict=True)]
        for place, each in zip(places, fields, strict=True):
            values.setdefault(place, set()).add(each.get(name, ABSENT))
        split = {key for (key, _), seen in values.items() if len(seen) > 1}
        keys = [
            (*key, (name, each.get(name, ABSENT))) if key in split else key
            for key, each in zip(keys, fields, strict=True)
        ]
    short = short_names({name for key in keys for name, _ in key})
    return [_label(key, each, short) for key, each in zip(keys, fields, strict=True)]


def short_names(names: set[str]) -> dict[str, str]:
    """Shorten dotted names to their last part where that is not ambiguous."""
    ends = {name: name.rsplit(".", 1)[-1] for name in names}
    count = Counter(ends.values())
    return {name: end if count[end] == 1 else name for name, end in ends.items()}


def _label(key: tuple[tuple[str, str], ...], fields: dict[str, str], short: dict[str, str]) -> str:
    if "policy" not in fields and "algorithm" in fields:  # clones have no players, and the name of what they are
        key = (("policy", fields["algorithm"]), *(each for each in key if each[0] not in MAIN_FIELDS))
    parts = [value if name in MAIN_FIELDS else f"{short[name].replace('_', ' ')} {value}" for name, value in key]
    if not parts:
        parts = [fields[name] for name in ("policy", "cost") if name in fields]
    return ", ".join(parts) or "runs"


def group(runs: Sequence[Run]) -> list[Group]:
    """Group runs by task and algorithm, in alphabetical order of tasks and in the order algorithms first appear."""
    names = labels(runs)
    cells: dict[tuple[str, str], list[Run]] = {}
    for run, label in zip(runs, names, strict=True):
        cells.setdefault((run.task, label), []).append(run)
    order = list(dict.fromkeys(names))
    groups = [Group(task, label, tuple(sorted(members, key=_seed))) for (task, label), members in cells.items()]
    return sorted(groups, key=lambda each: (each.task, order.index(each.algorithm)))


def _seed(run: Run) -> tuple[bool, float, str]:
    number = isinstance(run.seed, (int, float))
    return not number, run.seed if number else 0, str(run.seed)


def algorithms(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(each.algorithm for each in groups))


def tasks(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(each.task for each in groups))


def comparability(groups: Sequence[Group]) -> list[str]:
    """Say what makes the numbers of these groups hard to compare."""
    said = [text for task in tasks(groups) for text in _lengths([each for each in groups if each.task == task])]
    for each in groups:
        place, of = f"{each.task}, {each.algorithm}", f"of {len(each.runs)} runs"
        unknown = sum(not run.can_be_normalised for run in each.runs)
        if unknown:
            said.append(
                f"{place}: {unknown} {of} cannot be normalised, since the expert's or the random policy's return is "
                "not known, or they are equal."
            )
        unfinished = sum(run.unfinished for run in each.runs)
        if unfinished == len(each.runs):
            said.append(f"{place}: no run has finished; all numbers are as far as they have got.")
        elif unfinished:
            said.append(f"{place}: {unfinished} {of} unfinished; those are in the curves but not in the tables.")
    commits = {str(run.metadata.get("commit")) for each in groups for run in each.runs}
    if len(commits) > 1:
        said.append(f"The runs come from {len(commits)} different commits.")
    seeds = {len(each.judged) for each in groups}
    if len(seeds) > 1:
        said.append(f"Numbers of seeds differ: from {min(seeds)} to {max(seeds)}.")
    return said


def _lengths(groups: Sequence[Group]) -> list[str]:
    lengths = sorted({int(run.steps[-1]) for each in groups for run in each.judged})
    if len(lengths) < 2:
        return []
    listed = ", ".join(f"{length:,}" for length in lengths)
    return [
        f"{groups[0].task}: runs of different lengths ({listed} steps); final and area are of each one's own length."
    ]
