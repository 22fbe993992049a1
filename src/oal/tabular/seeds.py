"""Many seeds in parallel threads, which keep what they have when they are stopped, and go on from there."""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from oal.base import files, stopping
from oal.base.folder import plain
from oal.errors import InputError

RESULTS = "results.json"


class Learner(Protocol):
    """What can learn for some episodes, be kept in a file, and go on: `TabularOAL`, or a learner like it."""

    env: Any
    episodes: int

    def learn(
        self, episodes: int, *, planned: int | None = None, callback: Callable[[Any], bool | None] | None = None
    ) -> Self: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: Any, /) -> Self: ...


L = TypeVar("L", bound=Learner)


class Kept:
    """What seeds have learned so far: results of those that finished, and learners under way.

    The folder is named after the settings, so that only the same ones go on from it. It is written at a stop and by the
    clock; what finishes sooner writes nothing.
    """

    def __init__(
        self,
        above: str | os.PathLike[str],
        settings: Mapping[str, Any],
        *,
        seconds: float = stopping.KEEP_SECONDS,
    ) -> None:
        text = json.dumps(plain(settings), sort_keys=True, default=str)
        self.folder = Path(above) / f"unfinished-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        self.seconds, self._pace, self._lock = seconds, stopping.Pace(seconds), threading.Lock()
        path = self.folder / RESULTS
        self._results = files.read_object(path, inside=self.folder) if path.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def add(self, key: str, result: Any) -> None:
        """Take in the result of a seed that finished."""
        with self._lock:
            self._results[key] = plain(result)
            if self._pace.due():
                with self._pace.keeping():
                    files.write_json(self.folder / RESULTS, self._results)
        self._learner(key).unlink(missing_ok=True)

    def write(self) -> None:
        """Write the results so far."""
        with self._lock:
            files.write_json(self.folder / RESULTS, self._results)

    def learn(self, key: str, learner: L, episodes: int) -> L:
        """Learn for so many episodes, from what was kept of this seed or with the fresh learner given."""
        path, pace = self._learner(key), stopping.Pace(self.seconds)
        if path.exists():
            learner = type(learner).load(path, learner.env)

        def keep(learner: L) -> None:
            if pace.due():
                with pace.keeping():
                    learner.save(path)

        if learner.episodes < episodes:
            try:
                learner.learn(episodes - learner.episodes, planned=episodes, callback=keep)
            except stopping.Stopped:
                learner.save(path)
                raise
        return learner

    def remove(self) -> None:
        """Remove the folder: everything is finished."""
        for path in (*self.folder.glob("*.npz"), self.folder / RESULTS):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _learner(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def learn_seeds(
    make: Callable[[int], L],
    seeds: Iterable[int],
    episodes: int,
    *,
    threads: int | None = None,
    each: Callable[[L], Any] = lambda learner: learner.regret,  # pyright: ignore[reportAttributeAccessIssue]
    advance: Callable[[int], None] | None = None,
    kept: Kept | None = None,
    named: str = "",
) -> list[Any]:
    """Run `make(seed).learn(episodes)` for each seed in parallel threads; return `each(learner)` in the seeds' order.

    The kernels hold no interpreter lock, each learner has its own random stream: threads change nothing but the time.
    `kept` keeps what is unfinished at a stop, under names that begin with `named`; results are JSON values then.
    """
    seeds = list(seeds)
    if not seeds:
        raise InputError("no seeds: give at least one")

    def run(seed: int) -> Any:
        stopping.check()
        key = f"{named}{seed}"
        if kept is None:
            result = each(make(seed).learn(episodes))
        elif key in kept:
            result = kept[key]
        else:
            result = each(kept.learn(key, make(seed), episodes))
            kept.add(key, result)
        if advance is not None:
            advance(1)
        return result

    workers = threads or os.cpu_count() or 1
    try:
        if workers == 1 or len(seeds) == 1:
            return [run(seed) for seed in seeds]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(run, seeds))
    except stopping.Stopped:
        if kept is not None:
            kept.write()
        raise
