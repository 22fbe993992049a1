"""Sweeps: many runs from one file, each in the folder that its resolved configuration names.

A sweep can be stopped, extended and started again at any time. Finished runs are kept, interrupted ones resume from
their checkpoint, failed ones are reported, and nothing runs twice.
"""

import hashlib
import itertools
import json
import math
import os
import re
import sys
import time
import tomllib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from oal import envs
from oal.base import config as configs
from oal.base import console, opening, stopping
from oal.base.folder import RunFolder, flattened, plain
from oal.base.limits import MAX_TEXT
from oal.deep.presets import preset
from oal.errors import InputError, choice, shortened
from oal.lab import run as training
from oal.lab import worker
from oal.lab.executors import LOG, Ending, Executor, Processes
from oal.lab.run import CloneConfig, RunConfig
from oal.lab.worker import Job

RETRIES = 3
"""How often a run is restarted after its worker or its node died, without a new checkpoint in between."""
SAY_EVERY_SECONDS = 60.0
MAX_RUNS = 100_000
"""Runs that a sweep may have without being asked about: a list too many in [grid] multiplies them."""

MAX_DEPTH = 10

_RUN_FIELDS = tuple(field.name for field in fields(RunConfig) if field.name != "learner")
_PLAYERS = {"policy": "mdpo", "cost": "neural", "preset": "default"}
_PLAIN_SETTINGS = ("environments", "normalise")
FIELDS = ("env", *_PLAYERS, *(name for name in _RUN_FIELDS if name != "env"), *_PLAIN_SETTINGS)
"""What a sweep file may set, besides dotted settings of the players."""


# ----------------------------------------------------------------------------------------------------------------
# What is to be run


class TooManyRunsError(InputError):
    """A sweep has more runs than anybody is likely to mean."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: where it is, what it is, and what the sweep file says of it alone."""

    folder: Path
    config: RunConfig | CloneConfig
    point: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class Sweep:
    """A set of runs below one folder."""

    name: str
    out: Path
    planned: tuple[PlannedRun, ...]

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        out: str | os.PathLike[str] | None = None,
        most: int | None = MAX_RUNS,
    ) -> "Sweep":
        """Read a TOML file; see `parse`."""
        path = Path(path)
        data = opening.read_bytes(path, max_bytes=MAX_TEXT)
        try:
            tables = tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # also of what is no text, and of numbers with too many digits
            raise InputError(
                f'{path}: not valid TOML ({error}); dotted settings are quoted, as in "policy.kl_weight" = [0.1, 1.0]'
            ) from None
        with _naming(str(path)):
            _check_values(tables)
        return cls.parse(tables, name=path.stem, source=str(path), out=out, most=most)

    @classmethod
    def parse(
        cls,
        tables: Mapping[str, Any],
        *,
        name: str,
        source: str = "the sweep",
        out: str | os.PathLike[str] | None = None,
        most: int | None = MAX_RUNS,
    ) -> "Sweep":
        """Make a sweep from tables: every combination of [grid]'s lists, with each of [[runs]] if there are any.

        [sweep] holds what runs share unless one of [[runs]] says otherwise, and optionally the sweep's name and out,
        the folder of its runs. More than `most` runs are a TooManyRunsError; None: any number.
        """
        with _naming(source):
            for table in tables:
                choice("table", table, ("sweep", "grid", "runs"))
            # so that  policy.kl_weight  may be written with quotes or without
            shared = flattened(_table(tables, "sweep"))
            name, folder = str(shared.pop("name", name)), shared.pop("out", None)
            if not isinstance(folder, str | None):
                raise InputError(f"[sweep]: out is {folder!r}: give the path of a folder")
            out = Path(out if out is not None else folder if folder is not None else Path("runs") / name)
            grid = _grid(tables)
            variants = [flattened(variant) for variant in _variants(tables)]
            if not grid and variants == [{}]:
                raise InputError("there is nothing to run: add a [grid] with lists, as in  seed = [0, 1, 2]")
            for where, names in (("[sweep]", shared), ("[grid]", grid), *(("[[runs]]", each) for each in variants)):
                _check_names(where, names)
            _check_apart("[sweep]", shared, "[grid]", grid)
            for variant in variants:
                _check_apart("[grid]", grid, "[[runs]]", variant)
            count = len(variants) * math.prod(map(len, grid.values()))
            if most is not None and count > most:
                raise TooManyRunsError(f"these are {count:,} runs, more than {most:,}: add --yes if they are meant")
            points = [
                variant | dict(zip(grid, values, strict=True))
                for values in itertools.product(*grid.values())
                for variant in variants
            ]
            return cls(name, out, _planned(out, shared, points))

    def runs(self) -> tuple[PlannedRun, ...]:
        return self.planned

    def go(
        self,
        executor: Executor | None = None,
        *,
        retry: bool = False,
        retries: int = RETRIES,
        show: bool = False,
    ) -> "Summary":
        """Run what is not finished; `executor` None: local processes, one for each core.

        Failed runs are restarted with `retry`; a run whose worker dies is restarted up to `retries` times without a
        new checkpoint in between.
        `show` draws a table on stderr, or prints lines where there is no terminal. Ctrl-C stops the workers first.
        """
        executor = Processes() if executor is None else executor
        try:
            todo, outcomes = _sorted_out(self.planned, retry=retry)
            check(todo)
            with console.Board(_COLUMNS, enabled=show) as board, stopping.deferred():
                outcomes |= _Driver(todo, outcomes, executor, retries, board).go()
        finally:
            executor.stop()
        return Summary(tuple(outcomes[run.name] for run in self.planned))


def _check_values(value: Any, depth: int = 0) -> None:
    """Refuse what TOML can say and no setting means: dates, numbers beyond 64 bits, lists in lists in lists."""
    if isinstance(value, (dict, list)):
        if depth == MAX_DEPTH:
            raise InputError(f"tables and lists are nested more than {MAX_DEPTH} deep: flatten them")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_values(inner, depth + 1)
    elif not isinstance(value, (str, int, float)):
        raise InputError(f"{shortened(value)} is a date or a time: write it in quotes if it is a name")
    elif isinstance(value, int) and value.bit_length() > 63:
        raise InputError("a whole number has more than 64 bits: no setting is that large")


@contextmanager
def _naming(source: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        kind = TooManyRunsError if isinstance(error, TooManyRunsError) else InputError
        raise kind(f"{source}: {error}") from None


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise InputError(f"{name} is {shortened(table)}: write it as a table, [{name}]")
    return table


def _variants(tables: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if "runs" not in tables:
        return [{}]
    variants = tables["runs"]
    if not isinstance(variants, list) or not all(isinstance(variant, Mapping) for variant in variants):
        raise InputError("runs are tables, each under a line [[runs]]")
    if not variants or not all(variants):
        raise InputError("[[runs]] is empty: say what is particular to the run, or take it out")
    return variants


def _grid(tables: Mapping[str, Any]) -> dict[str, list[Any]]:
    grid = flattened(_table(tables, "grid"))
    if "grid" in tables and not grid:
        raise InputError("[grid] is empty: add lists, as in  seed = [0, 1, 2], or take it out")
    for name, values in grid.items():
        if not isinstance(values, list):
            raise InputError(f"[grid]: {name} is {shortened(values)}: give a list; what all runs share is in [sweep]")
        if not values:
            raise InputError(f"[grid]: {name} is an empty list: give at least one value, or take it out")
        counted = Counter(_canonical(value) for value in values)
        twice = next((text for text, times in counted.items() if times > 1), None)
        if twice is not None:
            raise InputError(f"[grid]: {name} lists {twice} twice: take one out")
    return grid


def _check_names(where: str, names: Mapping[str, Any]) -> None:
    for name in names:
        if "." not in name and name not in FIELDS:
            raise InputError(
                f"{where}: field '{name}' is unknown: choose one of {', '.join(FIELDS)}, or a player's setting, as in "
                '"policy.kl_weight"'
            )


def _check_apart(one: str, first: Mapping[str, Any], other: str, second: Mapping[str, Any]) -> None:
    for name in first:
        if name in second:
            raise InputError(f"{name} stands in {one} and in {other}: keep one of them")


def _planned(out: Path, shared: Mapping[str, Any], points: Sequence[dict[str, Any]]) -> tuple[PlannedRun, ...]:
    runs: dict[str, PlannedRun] = {}
    for point in points:
        with _naming(f"the run with {described(point)}"):
            config = run_config({**shared, **point})
        name = folder_name(config)
        if name in runs:
            raise InputError(
                f"the runs with {described(runs[name].point)} and with {described(point)} are the same, in one folder "
                f"({name}): take one out"
            )
        runs[name] = PlannedRun(out / name, config, point)
    return tuple(runs.values())


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """Make a run's configuration from a sweep's fields; trajectories = 0 stands for all."""
    for name in ("env", "total_steps"):
        if name not in values:
            raise InputError(f"{name} is missing: add it to [sweep], or as a list to [grid]")
    run = {name: value for name, value in values.items() if name in _RUN_FIELDS}
    if run.get("trajectories") == 0:
        run["trajectories"] = None
    players = [values.get(name, default) for name, default in _PLAYERS.items()]
    for name, player in zip(_PLAYERS, players, strict=True):
        if not isinstance(player, str):
            raise InputError(f'{name} is {shortened(player)}: give a name, as in  {name} = "{_PLAYERS[name]}"')
    settings = {name: value for name, value in values.items() if name not in run and name not in _PLAYERS}
    return configs.build(RunConfig, {**run, "learner": preset(*players, settings=settings)}, name="run")


def described(point: Mapping[str, Any]) -> str:
    """Say in one line what sets a run of the grid apart."""
    return ", ".join(f"{name} = {json.dumps(plain(value))}" for name, value in point.items())


def _canonical(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"))


def config_hash(config: RunConfig | CloneConfig) -> str:
    """Return the hash of everything that decides what a run does."""
    return hashlib.sha256(_canonical(config.to_json()).encode()).hexdigest()


def folder_name(config: RunConfig | CloneConfig) -> str:
    """Return a name that a reader knows the run by, and that no run with another configuration has."""
    env = re.sub(r"[^\w.-]", "_", config.env)
    players = "bc" if isinstance(config, CloneConfig) else f"{config.learner.policy}-{config.learner.cost}"
    return f"{env}-{players}-{config.seed}-{config_hash(config)[:8]}"


def check(runs: Sequence[PlannedRun]) -> None:
    """Make each environment and load each set of demonstrations once, so that a wrong name costs no run."""
    seen = set()
    for run in runs:
        config = run.config
        key = (config.env, config.horizon, config.demos, config.trajectories)
        if key in seen:
            continue
        seen.add(key)
        with _naming(f"the run {run.name}"):
            envs.make(config.env, horizon=config.horizon).close()
            training.select(config.demos, config.env, trajectories=config.trajectories)


# ----------------------------------------------------------------------------------------------------------------
# What became of it


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    run: PlannedRun
    state: str
    """finished (now), kept (finished before), failed, or busy (another process has it)."""
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Summary:
    """What became of a sweep's runs, in its order."""

    outcomes: tuple[Outcome, ...]

    def of(self, state: str) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.state == state)

    @property
    def complete(self) -> bool:
        """Whether every run is finished."""
        return all(outcome.state in ("finished", "kept") for outcome in self.outcomes)

    def __str__(self) -> str:
        words = {"finished": "finished", "kept": "finished before", "failed": "failed", "busy": "busy elsewhere"}
        parts = [f"{len(self.of(state))} {word}" for state, word in words.items() if self.of(state)]
        return f"{len(self.outcomes)} run{'s' * (len(self.outcomes) != 1)}: {', '.join(parts)}"


def _sorted_out(planned: Sequence[PlannedRun], *, retry: bool) -> tuple[tuple[PlannedRun, ...], dict[str, Outcome]]:
    """Separate the runs to do from those that have an outcome already."""
    todo, outcomes = [], {}
    for run in planned:
        try:
            status = _status(run)
        except InputError as error:
            remedy = f"see what is left, then  oal runs rm {run.folder}"
            outcomes[run.name] = Outcome(run, "failed", f"the run folder is damaged: {error}; {remedy}")
            continue
        state = status.get("status")
        if state == "finished":
            outcomes[run.name] = Outcome(run, "kept")
        elif state == "failed" and not retry:
            outcomes[run.name] = _failed(run, status)
        else:
            todo.append(run)
    return tuple(todo), outcomes


def _status(run: PlannedRun) -> dict[str, Any]:
    """Read how far a run is; empty if it has not started."""
    folder = RunFolder(run.folder)
    if not folder.described:
        return {}
    if _canonical(folder.config) != _canonical(run.config.to_json()):
        raise InputError(f"{run.folder} holds a run with another configuration (was it resumed to another end?)")
    return folder.status


def _failed(run: PlannedRun, status: Mapping[str, Any]) -> Outcome:
    return Outcome(run, "failed", str(status.get("error", "")), str(status.get("traceback", "")))


# ----------------------------------------------------------------------------------------------------------------
# Running it

_COLUMNS = ("run", "step", "of", "steps/s", "left", "return")


class _Driver:
    """Starts waiting runs, collects those that ended, and shows progress."""

    def __init__(
        self,
        todo: Sequence[PlannedRun],
        before: Mapping[str, Outcome],
        executor: Executor,
        retries: int,
        board: console.Board,
    ) -> None:
        self.executor, self.retries, self.board = executor, retries, board
        self.total, self.before = len(todo) + len(before), len(before)
        self.waiting = deque(todo)
        self.active: dict[str, _Watch] = {}
        self.attempts = dict.fromkeys((run.name for run in todo), 0)
        self.checkpoints: dict[str, int] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.said = time.monotonic()

    def go(self) -> dict[str, Outcome]:
        self.board.say(f"{self.total} in all, {len(self.waiting)} to do, {self.before} done before")
        try:
            while self.waiting or self.active:
                stopping.check()
                while self.waiting and len(self.active) < self.executor.slots:
                    self._start(self.waiting.popleft())
                if self.active:
                    self._show()
                    for ending in self.executor.ended(timeout=0.5):
                        self._take(ending)
        except KeyboardInterrupt:
            finished = sum(outcome.state == "finished" for outcome in self.outcomes.values())
            self.board.say(f"stopping, with {finished} of {self.total - self.before} finished; start it again to go on")
            raise
        return self.outcomes

    def _start(self, run: PlannedRun) -> None:
        folder = str(run.folder.resolve())
        job = Job(folder, plain(run.config.to_json()), tuple(sys.argv), os.getcwd())
        try:
            watch = _Watch(run)
            self.executor.start(job)
        except InputError as error:
            self._settle(Outcome(run, "failed", str(error)))
        else:
            self.active[folder] = watch

    def _take(self, ending: Ending) -> None:
        run = self.active.pop(ending.job.folder).run
        # the folder knows best: a worker that died may have finished first
        try:
            status = _status(run)
        except InputError as error:
            self._settle(Outcome(run, "failed", str(error)))
            return
        if status.get("status") == "finished":
            self._settle(Outcome(run, "finished"))
        elif ending.code == worker.FINISHED:
            where = "it must be on a disk that every node sees under this path, or give a storage"
            self._settle(
                Outcome(run, "failed", f"a worker finished the run, but {run.folder} does not show it: {where}")
            )
        elif ending.code == worker.FAILED and status.get("status") == "failed":
            self._settle(_failed(run, status))
        else:
            self._again(run, ending)

    def _again(self, run: PlannedRun, ending: Ending) -> None:
        """Restart a run whose worker is gone, unless that has happened too often."""
        busy = ending.code == worker.BUSY
        reason = "another process trains it" if busy else ending.reason or "the worker was stopped from outside"
        checkpoint = _stamp(RunFolder(run.folder).checkpoint)
        if not busy and checkpoint != self.checkpoints.get(run.name, 0):  # it made progress
            self.attempts[run.name], self.checkpoints[run.name] = 0, checkpoint
        self.attempts[run.name] += 1
        if self.attempts[run.name] <= self.retries:
            self.board.say(f"{run.name}: {reason}; it is restarted")
            self.waiting.appendleft(run) if not busy else self.waiting.append(run)
        elif busy:
            self._settle(Outcome(run, "busy", f"{reason}: wait for it, or stop it"))
        else:
            times = f"{self.attempts[run.name]} times since its last checkpoint"
            error = f"{reason}, {times}; {run.folder / LOG} may say why"
            tail = _tail(run.folder / LOG)
            folder = RunFolder(run.folder)
            if not folder.described:
                folder.describe(run.config.to_json(), {})
            folder.set_status("failed", step=_step(folder), error=error, traceback=tail)
            self._settle(Outcome(run, "failed", error, tail))

    def _settle(self, outcome: Outcome) -> None:
        self.outcomes[outcome.run.name] = outcome
        count = f"[{self.before + len(self.outcomes)}/{self.total}]"
        self.board.say(f"{count} {outcome.run.name}: {outcome.state}{outcome.error and f' ({outcome.error})'}")

    def _show(self) -> None:
        if not self.board.live and time.monotonic() - self.said < SAY_EVERY_SECONDS:
            return
        self.said = time.monotonic()
        watches = [watch for watch in self.active.values() if watch.look()]
        caption = self._caption(watches)
        if self.board.live:
            self.board.show([watch.row() for watch in watches], caption)
        else:
            self.board.say(caption)

    def _caption(self, watches: Sequence["_Watch"]) -> str:
        rate = sum(watch.rate for watch in watches)
        left = sum(watch.run.config.total_steps - watch.step for watch in self.active.values())
        left += sum(run.config.total_steps for run in self.waiting)
        failed = sum(outcome.state == "failed" for outcome in self.outcomes.values())
        parts = [
            f"{self.before + len(self.outcomes)} of {self.total} done" + (f" ({failed} failed)" if failed else ""),
            f"{len(watches)} running",
            f"{self.total - self.before - len(self.outcomes) - len(watches)} waiting",
        ]
        if rate:
            parts += [f"{rate:,.0f} steps/s", f"about {duration(left / rate)} left"]
        return ", ".join(parts)


class _Watch:
    """Follows one run by what its folder says."""

    def __init__(self, run: PlannedRun) -> None:
        self.run, self.folder = run, RunFolder(run.folder)
        self.step = self._first_step = _step(self.folder)
        self._status_path = run.folder / "status.json"
        self._before, self._first_time = _stamp(self._status_path), 0.0
        self.rate, self.last_return = 0.0, None

    def look(self) -> bool:
        """Read the folder again; say whether a worker has started to write to it."""
        stamp, now = _stamp(self._status_path), time.monotonic()
        if stamp == self._before:
            return self._first_time > 0
        self._before = stamp
        self.step = _step(self.folder)
        if not self._first_time:
            self._first_time, self._first_step = now, self.step
        elif now > self._first_time:
            self.rate = (self.step - self._first_step) / (now - self._first_time)
        returns = [record.get("evaluation_return") for record in self.folder.records()]
        self.last_return = next((value for value in reversed(returns) if value is not None), None)
        return True

    def row(self) -> tuple[Any, ...]:
        total = self.run.config.total_steps
        left = duration((total - self.step) / self.rate) if self.rate else ""
        earned = "" if self.last_return is None else f"{self.last_return:.1f}"
        return self.run.name, f"{self.step:,}", f"{total:,}", f"{self.rate:,.0f}" if self.rate else "", left, earned


def _stamp(path: Path) -> int:
    """Return when a file was written last, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _step(folder: RunFolder) -> int:
    try:
        return int(folder.status["step"])
    except (InputError, KeyError, TypeError, ValueError):  # not started yet
        return 0


def _tail(path: Path, lines: int = 30) -> str:
    try:
        with opening.opened(path, inside=path.parent) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_TEXT))
            return "\n".join(file.read(MAX_TEXT).decode("utf-8", "replace").splitlines()[-lines:])
    except (InputError, OSError):
        return ""


def duration(seconds: float) -> str:
    """Write a time for a reader: 40 s, 12 min, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
