"""Steps in memory: the learner's replay on the host, and the demonstrations in the same layout."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oal.demos.pairs import Encoded
from oal.envs import EnvSpec
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Array, Float, Float32, Int, Shaped

Weigh = Callable[["Int[np.ndarray, '*n']"], "Float[np.ndarray, '*n']"]
"""Times of steps within their episodes -> how much each step counts."""


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
        width = 2 * observation_size + action_size + 2
        check_memory(capacity, width)
        self.rows = np.zeros((capacity, width), np.float32)
        self.times = np.zeros(capacity, np.int32)
        """Each transition's step within its episode."""
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
        if stop <= self.capacity:
            self.times[self.position : stop] = time
        else:
            place = np.arange(self.position, stop) % self.capacity
            self.rows[place], self.times[place] = rows, time
        self.position = stop % self.capacity
        self.size = min(self.size + count, self.capacity)

    def places(self, rng: np.random.Generator, *shape: int, recency: float = 1.0) -> "Int[np.ndarray, '*shape']":
        """Draw places of rows; the age of a row, in steps, is that of the oldest times u^recency with u uniform."""
        if self.size == 0:
            raise InputError("the replay is empty: collect transitions before sampling")
        if recency == 1.0:
            return rng.integers(0, self.size, size=shape)
        age = (self.size * rng.random(shape) ** recency).astype(np.int64)
        return (self.position - 1 - age) % self.capacity

    def sample(self, rng: np.random.Generator, *shape: int, recency: float = 1.0) -> "Float32[np.ndarray, '*shape W']":
        """Gather rows at drawn places into a fresh array (a compiled block may still read the last)."""
        index = self.places(rng, *shape, recency=recency)
        return self.rows.take(index.ravel(), axis=0).reshape(*shape, -1)

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
        return {"rows": self.rows[: self.size], "times": self.times[: self.size]}, {
            "size": self.size,
            "position": self.position,
        }

    def restore(self, arrays: dict[str, np.ndarray], counters: dict[str, int]) -> None:
        """Take back what `state` gave."""
        rows, times = arrays["rows"], arrays.get("times", np.zeros(len(arrays["rows"]), np.int32))
        if rows.ndim != 2 or rows.shape[1] != self.rows.shape[1] or len(rows) > self.capacity:
            raise InputError(
                f"the saved replay has shape {rows.shape}, which does not fit {self.rows.shape}: same environment "
                "and capacity are needed"
            )
        self.size, self.position = int(counters["size"]), int(counters["position"])
        if self.size < self.capacity and self.position != self.size:
            # a full ring goes on in a larger one: oldest first, so that the free rows are filled next
            rows, times = np.roll(rows, -self.position, axis=0), np.roll(times, -self.position)
            self.position = self.size
        self.rows[: len(rows)], self.times[: len(times)] = rows, times


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
