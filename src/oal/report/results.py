"""What run folders hold; a damaged folder becomes a line of the report and never stops it."""

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from oal.base.files import read_object
from oal.base.folder import STATUSES, RunFolder
from oal.errors import InputError, shortened
from oal.report import statistics

Array = NDArray[np.float64]
Kind = Literal["behaviour", "evaluation", "regret", "distance"]
RETURNS: dict[Kind, str] = {"behaviour": "return", "evaluation": "evaluation_return"}
CURVES: dict[Kind, str] = {**RETURNS, "regret": "al_regret_l2", "distance": "evaluation_distance"}
"""What is read of every record, and its name there; behaviour and evaluation are returns."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run: what it was told, where it came from, and its returns (NaN where a record has none)."""

    folder: RunFolder
    config: dict[str, Any]
    metadata: dict[str, Any]
    status: str
    error: str
    steps: Array
    returns: dict[Kind, Array]
    seconds: float

    @property
    def name(self) -> str:
        return str(self.folder)

    @property
    def task(self) -> str:
        return self.config["env"]

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def expert_return(self) -> float:
        return as_number(self.metadata.get("expert_return"), "metadata expert_return")

    @property
    def source_return(self) -> float:
        """The mean over all demonstrations of the source, however few of them were learned from; runs on one and on
        ten of them are normalised alike. Runs of before it was recorded have that of their own demonstrations."""
        name = "source_return" if "source_return" in self.metadata else "expert_return"
        return as_number(self.metadata.get(name), f"metadata {name}")

    @property
    def random_return(self) -> float:
        return as_number(self.metadata.get("random_return"), "metadata random_return")

    @property
    def can_be_normalised(self) -> bool:
        span = self.source_return - self.random_return
        return math.isfinite(span) and span != 0

    @property
    def unfinished(self) -> bool:
        return self.status != "finished"

    def values(self, kind: Kind, *, normalised: bool) -> Array:
        """Return one return per record, normalised or as it is; all NaN if the expert's or random return is unknown."""
        values = self.returns[kind]
        if not normalised:
            return values
        if not self.can_be_normalised:
            return np.full_like(values, np.nan)
        return statistics.normalised(values, random=self.random_return, expert=self.source_return)

    def until(self, step: float) -> "Run":
        """Return the run as it was at a step."""
        kept = self.steps <= step
        return replace(
            self, steps=self.steps[kept], returns={kind: values[kept] for kind, values in self.returns.items()}
        )

    def has(self, kind: Kind) -> bool:
        return bool(np.isfinite(self.returns[kind]).any())


@dataclass(frozen=True)
class Failure:
    """A folder that does not count, or not fully, and why."""

    name: str
    status: str
    reason: str


@dataclass
class Results:
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def as_number(value: Any, name: str) -> float:
    """Return a JSON number as a float, null and what is not finite as NaN; anything else is damage."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} is {shortened(value)}, not a number: the file is damaged")
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def read_run(folder: RunFolder) -> Run:
    """Read one folder; an InputError says what is wrong with it."""
    config, metadata, status = folder.config, folder.metadata, folder.status
    if not isinstance(config.get("env"), str):
        raise InputError("config.json names no environment ('env'): not a run of a learner")
    if status["status"] not in STATUSES:
        raise InputError(f"status.json says {shortened(status['status'])}: it may say {', '.join(STATUSES)}")
    records = folder.records()
    steps = np.array([as_number(record.get("step"), "step of a record") for record in records], dtype=np.float64)
    if not (np.isfinite(steps).all() and (np.diff(steps) > 0).all() and (steps >= 0).all()):
        raise InputError("the steps in metrics.jsonl do not increase: did two runs write into this folder?")
    seconds = [as_number(record.get("seconds"), "seconds of a record") for record in records]
    run = Run(
        folder=folder,
        config=config,
        metadata=metadata,
        status=status["status"],
        error="\n".join(str(status[part]).strip() for part in ("error", "traceback") if status.get(part)),
        steps=steps,
        returns={
            kind: np.array([as_number(record.get(name), name) for record in records], dtype=np.float64)
            for kind, name in CURVES.items()
        },
        seconds=seconds[-1] if seconds else math.nan,
    )
    # Damaged scales are found here, with the folder's name, and not in the middle of a table.
    _ = run.can_be_normalised
    return run


def _find(paths: Iterable[str | os.PathLike[str]], results: Results) -> list[RunFolder]:
    """List the run folders below the paths, each once."""
    found: dict[Path, RunFolder] = {}
    for path in paths:
        try:
            below = RunFolder.find(path)
        except InputError as error:
            results.failures.append(Failure(str(path), "unreadable", str(error)))
            continue
        if not below:
            reason = "no run folder (one with config.json and status.json) here or below"
            results.failures.append(Failure(str(path), "unreadable", reason))
        for folder in below:
            found.setdefault(folder.path.resolve(), folder)
    return list(found.values())


def read(paths: Iterable[str | os.PathLike[str]]) -> Results:
    """Read all runs below the paths. What cannot be read, failed or has no records is listed with its reason."""
    results = Results()
    folders = _find(paths, results)
    if not folders:
        looked = "; ".join(f"{each.name}: {each.reason}" for each in results.failures)
        raise InputError(f"no runs to report: name run folders, or folders above them ({looked or 'none was named'})")
    experts = 0
    runs: list[Run] = []
    for folder in folders:
        try:
            if folder.kind == "expert":
                experts += 1
                continue
            runs.append(read_run(folder))
        except (InputError, OSError, RecursionError) as error:
            results.failures.append(Failure(str(folder), "unreadable", str(error) or type(error).__name__))
    recorded = {run: None for run in runs if any(run.has(kind) for kind in CURVES)}
    # of runs that are the same a finished one counts, else the first
    sound = [run for run in recorded if run.status != "failed"]
    counts: dict[str, str] = {}
    for run in sorted(sound, key=lambda run: run.unfinished):
        counts.setdefault(identity(run), run.name)
    for run in runs:
        if run.status == "failed":
            results.failures.append(Failure(run.name, "failed", run.error or "no reason was recorded"))
        elif run not in recorded:
            results.failures.append(Failure(run.name, run.status, "no record of any return or distance yet"))
        elif (twin := counts[identity(run)]) != run.name:
            results.failures.append(Failure(run.name, "left out", f"the same config and seed as {twin}"))
        else:
            results.runs.append(run)
            if run.unfinished:
                results.failures.append(Failure(run.name, run.status, f"{progress(run)} so far"))
    if experts:
        results.notices.append(f"Training runs of experts are left out: {experts}.")
    return results


def identity(run: Run) -> str:
    return json.dumps(run.config, sort_keys=True)


def progress(run: Run) -> str:
    total = run.config.get("total_steps")
    of = f" of {total:,}" if isinstance(total, int) else ""
    return f"{int(run.steps[-1]):,}{of} steps"


# What a run may hold besides -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearCost:
    """The weights of a learned linear cost, and the cost of the absorbing state."""

    features: tuple[str, ...]
    weights: tuple[float, ...]
    absorbing: float


def linear_cost(run: Run) -> LinearCost | None:
    """Read cost.json, which runs with a linear cost have."""
    path = run.folder.path / "cost.json"
    if not path.exists():
        return None
    value = read_object(path, inside=run.folder.path)
    features, weights = value.get("features"), value.get("weights")
    if not isinstance(features, list) or not isinstance(weights, list) or len(features) != len(weights):
        raise InputError(f"{path}: 'features' and 'weights' must be lists of one length")
    return LinearCost(
        tuple(str(name) for name in features),
        tuple(as_number(weight, "weight") for weight in weights),
        as_number(value.get("absorbing"), "absorbing"),
    )


@dataclass(frozen=True)
class Measure:
    """One line of a certificate: the learner's value with its interval, and what follows.

    On the common scale (0 two experts, 1 a random policy) where it is known, else in the measure's own units.
    """

    name: str
    value: float
    low: float
    high: float
    clone: float
    p_value: float
    verdict: str


@dataclass(frozen=True)
class Score:
    """Means of returns or lengths, by whose they are; NaN where not known."""

    name: str
    means: dict[str, float]
    half_width: float
    verdict: str


@dataclass(frozen=True)
class FeatureDifference:
    name: str
    learner: float
    expert: float
    spread: float
    deviations: float


@dataclass(frozen=True)
class Certificate:
    measures: tuple[Measure, ...]
    scores: tuple[Score, ...]
    worst_feature: str
    said: str
    """Its sentence and what it is compared with; the latter first where that flatters."""
    differences: tuple[FeatureDifference, ...]


WHOSE = ("learner", "expert", "clone", "random")


def certificate(run: Run) -> Certificate | None:
    """Read certificate.json: what in it has a value is a measure, what has means of learner and expert is a score."""
    path = run.folder.certificate
    if not path.exists():
        return None
    written = read_object(path, inside=run.folder.path)
    entries = {name: entry for name, entry in written.items() if isinstance(entry, dict)}
    listed = written.get("differences")
    return Certificate(
        tuple(_measure(name, entry) for name, entry in entries.items() if "value" in entry),
        tuple(
            _score(name, entry)
            for name, entry in entries.items()
            if isinstance(entry.get("learner"), dict) and isinstance(entry.get("expert"), dict)
        ),
        str(written.get("worst_simplex") or ""),
        _said(written),
        tuple(_difference(entry) for entry in (listed if isinstance(listed, list) else []) if isinstance(entry, dict)),
    )


def _said(written: dict[str, Any]) -> str:
    sentence, compared = (str(written.get(name) or "") for name in ("sentence", "compared"))
    if not sentence:
        return ""
    return f"{compared} {sentence}." if written.get("against") in ("training", "own") else f"{sentence}. {compared}"


def _measure(name: str, entry: dict[str, Any]) -> Measure:
    parts = ("value", "low", "high", "clone")
    scaled = entry.get("on_scale")
    known = isinstance(scaled, dict) and scaled.get("value") is not None
    source: dict[str, Any] = scaled if known else entry  # pyright: ignore[reportAssignmentType]
    numbers = [as_number(source.get(part), f"{name} {part}") for part in parts]
    adjusted = entry.get("adjusted_p", entry.get("p_value"))
    said = str(entry.get("name", name)) + ("" if known else " (unscaled)")
    return Measure(said, *numbers, p_value=as_number(adjusted, f"{name} p"), verdict=str(entry.get("verdict", "")))


def _score(name: str, entry: dict[str, Any]) -> Score:
    means = {who: entry[who] if isinstance(entry.get(who), dict) else {} for who in WHOSE}
    return Score(
        str(entry.get("name", name)),
        {who: as_number(mean.get("mean"), f"{name} mean of {who}") for who, mean in means.items()},
        as_number(means["learner"].get("half_width"), f"{name} half_width"),
        str(entry.get("verdict", "")),
    )


def _difference(entry: dict[str, Any]) -> FeatureDifference:
    parts = ("learner", "expert", "spread", "deviations")
    return FeatureDifference(str(entry.get("feature", "")), *(as_number(entry.get(part), part) for part in parts))


def gather(results: Results, reader: Callable[[Run], Any]) -> list[tuple[Run, Any]]:
    """Read something of every run; what is damaged joins the failures, what is absent is left out."""
    found = []
    for run in results.runs:
        try:
            value = reader(run)
        except (InputError, OSError) as error:
            results.failures.append(Failure(run.name, "damaged", str(error)))
            continue
        if value:
            found.append((run, value))
    return found
