"""Steps in memory: the learner's replay on the host, and the demonstrations in the same layout."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oal.demos.pairs import Encoded
from oal.envs import EnvSpec
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Array, Bool, Float, Float32, Int, Shaped

Weigh = Callable[["Int[np.ndarray, '*n']"], "Float[np.ndarray, '*n']"]
"""Times of steps within their episodes -> how much each step counts."""


MAX_ENVIRONMENTS = 4_096
"""Stepped together in this process; a simulator takes about a megabyte."""


def check_memory(capacity: int, width: int) -> None:
    """Refuse a memory that is larger than this machine's: it would fill up hours later."""
    needed = 4 * capacity * width
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on every system
        return
    if 0 < there < needed:
        raise InputError(
            f"a memory of {capacity:,} steps of {width:,} numbers takes {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB: lower replay.capacity, or make the observations smaller"
        )


class Pairs(NamedTuple):
    """State-action pairs of a player for the cost, and how much each counts."""

    observation: "Float[Array, '*pairs O']"
    action: "Float[Array, '*pairs A']"
    weight: "Float[Array, '*pairs']"


class Batch(NamedTuple):
    """Transitions; `next_observation` is the true successor, never an auto-reset one."""

    observation: "Float[Array, '*G B O']"
    action: "Float[Array, '*G B A']"
    cost: "Float[Array, '*G B']"
    next_observation: "Float[Array, '*G B O']"
    terminated: "Float[Array, '*G B']"
    extra: "Float[Array, '*G B E'] | None" = None
    """What a player put beside its rows."""
    following: "Float[Array, '*G K A'] | None" = None
    """What the expert did at s' in the last K rows, which are its own; NaN where its path ends."""
    discount: "Float[Array, '*G B'] | None" = None
    """What the value of s' counts for where that is not γ: with targets of several steps the cost is that of all of
    them, and s' the state after the last."""


class Path(NamedTuple):
    """What came of drawn steps: each of them with those that followed it, n in all."""

    steps: "Float32[Array, '*G B n P']"
    """Observation, action and cost of each: a row up to what came after it, which the next of them tells."""
    there: "Bool[Array, '*G B n']"
    """False where the episode or the memory was over before."""
    discount: "Float[Array, '*G B']"
    """What the value of the state after the last of them counts for."""


def walk(
    hops: "Int[np.ndarray, 'capacity']", place: "Int[np.ndarray, '*G']", steps: int
) -> "tuple[Int[np.ndarray, '*G steps'], Bool[np.ndarray, '*G steps']]":
    """Walk along episodes: (places of each drawn step and of those after it, whether there was such a step).

    `hops` are how many places further on in the ring each row's successor lies; where that is 0 the walk stands still.
    """
    places, there = [place], [np.ones(place.shape, bool)]
    for _ in range(steps - 1):
        hop = hops[places[-1]]
        there.append(there[-1] & (hop > 0))
        places.append((places[-1] + hop) % len(hops))
    return np.stack(places, axis=-1), np.stack(there, axis=-1)


class Replay:
    """A ring of transitions, each one packed float32 row, so that a batch is one gather.

    Row layout: observation, action, cost, next observation, terminated. A truncated transition is stored as an
    ordinary one: its successor is real, and only `terminated` ends bootstrapping.
    """

    def __init__(self, capacity: int, observation_size: int, action_size: int) -> None:
        at_least("replay capacity", capacity, 1)
        self.capacity = capacity
        self.observation_size = observation_size
        self.action_size = action_size
        self.own = observation_size + action_size + 1
        """So many numbers of a row are of the step itself; the others are what came after it."""
        width = self.own + observation_size + 1
        check_memory(capacity, width)
        self.rows = np.zeros((capacity, width), np.float32)
        self.times = np.zeros(capacity, np.int32)
        """Each transition's step within its episode."""
        self.sources = np.full(capacity, -1, np.int32)
        """Which environment each transition is of; -1: of none that goes on."""
        self.hops = np.zeros(capacity, np.int32)
        """How many places further on the next transition of the same episode lies; 0: there is none (yet)."""
        self._newest = np.zeros(0, np.int64)  # the place of each source's newest transition; -1: it has none
        self.size = 0
        self.position = 0

    def __len__(self) -> int:
        return self.size

    def add(
        self,
        observation: "Float[np.ndarray, 'n O']",
        action: "Float[np.ndarray, 'n A']",
        cost: "Float[np.ndarray, 'n']",
        next_observation: "Float[np.ndarray, 'n O']",
        terminated: "Shaped[np.ndarray, 'n']",
        time: "Int[np.ndarray, 'n'] | int" = 0,
        source: "Int[np.ndarray, 'n'] | int" = -1,
    ) -> None:
        """Store transitions over the oldest ones."""
        count = len(cost)
        stop = self.position + count
        if stop <= self.capacity:
            rows = self.rows[self.position : stop]
        else:
            if count > self.capacity:
                raise InputError(f"{count} transitions at once do not fit a replay of {self.capacity}: enlarge it")
            rows = np.empty((count, self.rows.shape[1]), np.float32)
        o, a = self.observation_size, self.action_size
        rows[:, :o] = observation
        rows[:, o : o + a] = action
        rows[:, o + a] = cost
        rows[:, o + a + 1 : -1] = next_observation
        rows[:, -1] = terminated
        place = np.arange(self.position, stop) % self.capacity
        if stop > self.capacity:
            self.rows[place] = rows
        self.times[place], self.sources[place], self.hops[place] = time, source, 0
        self._link(place)
        self.position = stop % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _link(self, place: "Int[np.ndarray, 'n']") -> None:
        """Let the step before each of these (oldest first), in the same episode, know where its successor is."""
        place = place[self.sources[place] >= 0]
        place = place[np.argsort(self.sources[place], kind="stable")]
        if len(place) == 0:
            return
        source = self.sources[place]
        if source[-1] >= len(self._newest):
            self._newest = np.append(self._newest, np.full(source[-1] + 1 - len(self._newest), -1))
        first = np.append(True, source[1:] != source[:-1])
        before = np.where(first, self._newest[source], np.roll(place, 1))
        goes_on = (before >= 0) & (self.sources[before] == source) & (self.times[before] + 1 == self.times[place])
        self.hops[before[goes_on]] = (place - before)[goes_on] % self.capacity
        self._newest[source] = place

    def places(self, rng: np.random.Generator, *shape: int, recency: float = 1.0) -> "Int[np.ndarray, '*shape']":
        """Draw places of rows; the age of a row, in steps, is that of the oldest times u^recency with u uniform."""
        if self.size == 0:
            raise InputError("the replay is empty: collect transitions before sampling")
        if recency > 1.0:
            age = (self.size * rng.random(shape) ** recency).astype(np.int64)
            return (self.position - 1 - age) % self.capacity
        return rng.integers(0, self.size, size=shape)

    def newest(self, count: int) -> "Int[np.ndarray, 'N']":
        """Return the places of the newest `count` rows (fewer if there are fewer), oldest first."""
        return np.arange(self.position - min(count, self.size), self.position) % self.capacity

    def last(self, count: int) -> "Float32[np.ndarray, 'N W']":
        """Return copies of the newest `count` rows (fewer if there are fewer), oldest first."""
        return self.rows[self.newest(count)]

    def pairs(self, index: "Int[np.ndarray, '*pairs']", weigh: Weigh) -> Pairs:
        """Gather the pairs at these places."""
        rows = self.unpack(self.rows[index])
        return Pairs(rows.observation, rows.action, weigh(self.times[index]))

    def unpack(self, rows: "Float32[Array, '*G B W']") -> Batch:
        """Cut packed rows (NumPy or traced JAX) into named parts."""
        return unpack(rows, self.observation_size, self.action_size)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return (the filled rows as a view, counters) for a checkpoint."""
        kept = {"rows": self.rows, "times": self.times, "sources": self.sources}
        return {name: array[: self.size] for name, array in kept.items()}, {
            "size": self.size,
            "position": self.position,
        }

    def restore(self, arrays: dict[str, np.ndarray], counters: dict[str, int]) -> None:
        """Take back what `state` gave."""
        rows = arrays["rows"]
        times = arrays.get("times", np.zeros(len(rows), np.int32))
        sources = arrays.get("sources", np.full(len(rows), -1, np.int32))
        if rows.ndim != 2 or rows.shape[1] != self.rows.shape[1] or len(rows) > self.capacity:
            raise InputError(
                f"the saved replay has shape {rows.shape}, which does not fit {self.rows.shape}: same environment "
                "and capacity are needed"
            )
        if sources.shape != (len(rows),) or not ((sources >= -1) & (sources < MAX_ENVIRONMENTS)).all():
            raise InputError(f"the saved replay's steps are of no environment there is: -1 to {MAX_ENVIRONMENTS - 1}")
        self.size, self.position = int(counters["size"]), int(counters["position"])
        if self.size < self.capacity and self.position != self.size:
            # a full ring goes on in a larger one: oldest first, so that the free rows are filled next
            rows, times, sources = (np.roll(array, -self.position, axis=0) for array in (rows, times, sources))
            self.position = self.size
        self.rows[: len(rows)], self.times[: len(times)], self.sources[: len(sources)] = rows, times, sources
        self.hops[:], self._newest = 0, np.zeros(0, np.int64)
        self._link(self.newest(self.size))


def unpack(rows: "Float32[Array, '*G B W']", observation_size: int, action_size: int) -> Batch:
    """Cut packed rows of width W = 2 O + A + 2 into named parts."""
    o, a = observation_size, action_size
    return Batch(
        observation=rows[..., :o],
        action=rows[..., o : o + a],
        cost=rows[..., o + a],
        next_observation=rows[..., o + a + 1 : 2 * o + a + 1],
        terminated=rows[..., 2 * o + a + 1],
        extra=rows[..., 2 * o + a + 2 :],
    )


class ExpertData:
    """The demonstrations as arrays: N pairs for the cost, transitions in the replay's layout for the policy."""

    def __init__(self, episodes: Sequence[Encoded], spec: EnvSpec, gamma: float) -> None:
        """Without any episode there is no expert, and nothing to learn from one."""
        memory = Replay(max(1, sum(map(len, episodes))), spec.observation_size, spec.action_size)
        for episode in episodes:
            memory.add(*episode.transitions())
        self.rows = memory.rows[: len(memory)]
        nothing = np.zeros((0, spec.observation_size), np.float32), np.zeros((0, spec.action_size), np.float32)
        self.observation = np.concatenate([nothing[0], *(episode.observation for episode in episodes)])
        self.action = np.concatenate([nothing[1], *(episode.action for episode in episodes)])
        self.time = np.concatenate([np.zeros(0, np.int32), *(episode.time for episode in episodes)])
        self.stride = np.concatenate([np.full(len(episode), episode.stride) for episode in episodes] or [self.time])
        """How many steps of its episode each pair stands for."""
        self.ends = sum(episode.terminated for episode in episodes)
        """Episodes that truly ended."""
        masses = [gamma**episode.steps if episode.terminated else 0.0 for episode in episodes]
        self.absorbing_mass = float(np.mean(masses)) if masses else 0.0
        self.ended = float(np.mean([episode.terminated for episode in episodes])) if episodes else 1.0

    def price(self, cost: float) -> None:
        """Record this cost with every transition."""
        self.rows[:, self.observation.shape[1] + self.action.shape[1]] = cost

    def pairs(self, index: "Int[np.ndarray, '*pairs'] | None", weigh: Weigh) -> Pairs:
        """Gather the pairs at these places, or all of them."""
        if index is None:
            return Pairs(self.observation, self.action, weigh(self.time))
        return Pairs(self.observation[index], self.action[index], weigh(self.time[index]))
