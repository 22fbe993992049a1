"""Many seeds in parallel, in threads and in the lanes of the vector unit; stopped, they keep what they have.

A seed learns bit for bit the same whatever runs beside it. Learners that the lanes do not take (see `lanes.fit`) learn
one after the other.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

import numpy as np

from oal.base import files, stopping
from oal.base.folder import plain
from oal.errors import InputError
from oal.tabular import algorithm2, lanes
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP
from oal.tabular.vectors import LANES

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

    def load(self, key: str, fresh: L) -> L:
        """Return what was kept of a learner under way, or the fresh one."""
        path = self._learner(key)
        return type(fresh).load(path, fresh.env) if path.exists() else fresh

    def save(self, key: str, learner: Learner) -> None:
        """Keep a learner under way."""
        learner.save(self._learner(key))

    def remove(self) -> None:
        """Remove the folder: everything is finished."""
        for path in (*self.folder.glob("*.npz"), self.folder / RESULTS):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _learner(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def learn_together(
    learners: Sequence[L],
    episodes: int,
    *,
    finished: Callable[[L], None] = lambda _: None,
    pace: stopping.Pace | None = None,
    save: Callable[[L], None] = lambda _: None,
) -> None:
    """Learn until each has so many episodes, which are the planned ones too; those that can, in lanes side by side.

    Each goes to `finished` when it is there, and those under way to `save` when the pace says so, and at a stop.
    """

    def keep(some: Sequence[L]) -> None:
        if pace is not None and pace.due():
            with pace.keeping():
                for learner in some:
                    save(learner)

    waiting = list(learners)
    while waiting:
        first = waiting[0]
        beside = [first, *(learner for learner in waiting[1:] if _alike(first, learner))][:LANES]
        waiting = [learner for learner in waiting if all(learner is not one for one in beside)]
        left = episodes - first.episodes
        try:
            if left > 0 and len(beside) > 1:
                _learn_in_lanes(cast(Any, beside), left, episodes, pace, cast(Any, keep))
            elif left > 0:
                first.learn(left, planned=episodes, callback=None if pace is None else lambda one: keep([one]))
        except stopping.Stopped:
            for learner in beside:
                save(learner)
            raise
        for learner in beside:
            finished(learner)


def _alike(one: Learner, other: Learner) -> bool:
    """Whether two learners can learn side by side."""
    return (
        isinstance(one, TabularOAL)
        and isinstance(other, TabularOAL)
        and all(isinstance(each.env, FiniteMDP) and not each.keep_trajectories for each in (one, other))
        and all(each._kernel(1)[0] is algorithm2.learn for each in (one, other))
        and one.episodes == other.episodes
        and all(x is y or np.array_equal(x, y) for x, y in zip(one._truth, other._truth, strict=True))
        and lanes.fit(one._rules, other._rules, one._ledger, other._ledger)
    )


def _learn_in_lanes(
    learners: Sequence[TabularOAL],
    episodes: int,
    planned: int,
    pace: stopping.Pace | None,
    keep: Callable[[Sequence[TabularOAL]], None],
) -> None:
    first = learners[0]
    truth, rules = first._truth, first._rules._replace(planned_episodes=float(planned))
    inside = lanes.enter(
        rules,
        truth,
        [learner._slots for learner in learners],
        [learner._ledger for learner in learners],
        [learner._stream for learner in learners],
    )

    def leave() -> None:
        for lane, learner in enumerate(learners):
            learner._rules = learner._rules._replace(planned_episodes=float(planned))
            learner._slots = lanes.leave(inside, rules, lane, learner._ledger, learner._stream)

    def play(size: int) -> None:
        regrets = np.zeros((LANES, size, 2))
        lanes.learn(inside, rules, truth, first.episodes + 1, regrets)
        for learner, own in zip(learners, regrets, strict=False):
            learner.episodes += size
            if learner.exact_regret:
                learner._regrets.append(own)
        if pace is not None and pace.due():
            leave()
            keep(learners)

    try:
        first._play_in_parts(play, episodes)
    finally:
        leave()


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
    """Run `make(seed).learn(episodes)` for each seed, in threads and lanes; return `each(learner)` in the seeds' order.

    The kernels hold no interpreter lock, each learner has its own random stream: both change nothing but the time.
    `kept` keeps what is unfinished at a stop, under names that begin with `named`; results are JSON values then.
    """
    seeds = list(seeds)
    if not seeds:
        raise InputError("no seeds: give at least one")
    workers = threads or os.cpu_count() or 1
    size = min(LANES, -(-len(seeds) // workers))

    def run(some: Sequence[int]) -> list[Any]:
        """Run seeds that may fit into lanes side by side."""
        stopping.check()
        results: dict[str, Any] = {}
        learners, keys = [], {}
        for seed in some:
            key = f"{named}{seed}"
            if kept is not None and key in kept:
                results[key] = kept[key]
            else:
                learners.append(make(seed) if kept is None else kept.load(key, make(seed)))
                keys[id(learners[-1])] = key

        def finished(learner: L) -> None:
            key = keys[id(learner)]
            results[key] = each(learner)
            if kept is not None:
                kept.add(key, results[key])
            if advance is not None:
                advance(1)

        def save(learner: L) -> None:
            if kept is not None:
                kept.save(keys[id(learner)], learner)

        if advance is not None:
            advance(len(results))
        pace = None if kept is None else stopping.Pace(kept.seconds)
        learn_together(learners, episodes, finished=finished, pace=pace, save=save)
        return [results[f"{named}{seed}"] for seed in some]

    groups = [seeds[first : first + size] for first in range(0, len(seeds), size)]
    try:
        if workers == 1 or len(groups) == 1:
            found = [run(group) for group in groups]
        else:
            with ThreadPoolExecutor(workers) as pool:
                found = list(pool.map(run, groups))
    except stopping.Stopped:
        if kept is not None:
            kept.write()
        raise
    return [result for group in found for result in group]
