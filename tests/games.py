"""Small environments and demonstrations for the tests of the deep learners, and a counter of compilations."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from oal.demos import Demos, Trajectory
from oal.demos.record import record_encoded


class Walk(gym.Env):
    """A walk on a line that falls off beyond ±1: a true termination. The reward is largest near +0.5.

    The observation is (place, 1). A continuous action in [-1, 3] moves by a quarter of (action - 1): encoded 0 stands
    still. The discrete actions 5, 6, 7 move left, nowhere and right.
    """

    def __init__(self, *, discrete: bool = False, dictionary: bool = False) -> None:
        self.discrete, self.dictionary = discrete, dictionary
        place = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.observation_space: Any = spaces.Box(-2.0, 2.0, (2,), np.float32)
        if dictionary:
            self.observation_space = spaces.Dict({"place": place, "one": place})
        self.action_space: Any = spaces.Discrete(3, start=5) if discrete else spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.place = 0.0

    def _observation(self) -> Any:
        if self.dictionary:
            return {"place": np.array([self.place], np.float32), "one": np.ones(1, np.float32)}
        return np.array([self.place, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-0.5, 0.5))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        move = float(action) - 6.0 if self.discrete else float(action[0]) - 1.0
        self.place += 0.25 * move
        return self._observation(), 1.0 - (self.place - 0.5) ** 2, abs(self.place) > 1.0, False, {}


CONTINUOUS, DISCRETE, DICTIONARY = "ContinuousWalk-v0", "DiscreteWalk-v0", "DictionaryWalk-v0"
HORIZON = 8
for _name, _options in ((CONTINUOUS, {}), (DISCRETE, {"discrete": True}), (DICTIONARY, {"dictionary": True})):
    gym.register(_name, entry_point=Walk, max_episode_steps=HORIZON, kwargs=_options)


def walk_to_the_middle(observation: np.ndarray) -> np.ndarray:
    """The expert of the continuous walk, in encoded actions: go to +0.5 and stay."""
    return np.clip(2.0 * (0.5 - observation[:, :1]), -1.0, 1.0).astype(np.float32)


def walk_to_the_middle_by_steps(observation: np.ndarray) -> np.ndarray:
    """The expert of the discrete walk."""
    gap = 0.5 - observation[:, 0]
    return np.eye(3, dtype=np.float32)[np.where(np.abs(gap) < 0.2, 1, np.where(gap < 0, 0, 2))]


@lru_cache
def demos_of(env_id: str, episodes: int = 3) -> Demos:
    """Demonstrations of an expert of one of the walks."""
    expert = walk_to_the_middle_by_steps if env_id == DISCRETE else walk_to_the_middle
    return record_encoded(env_id, _behind(expert) if env_id == DICTIONARY else expert, episodes=episodes)


def _behind(expert: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    # a dictionary is flattened in the order of its keys: (one, place)
    return lambda observation: expert(observation[:, ::-1])


class OneShot(gym.Env):
    """One observation, one step, no reward: nothing but the demonstrated action tells what to do."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, True, {}


def always_half(episodes: int = 20) -> Demos:
    """An expert of `OneShot` that always plays +0.5."""
    zero, half = np.zeros((2, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    return Demos(tuple(Trajectory(zero, half, np.zeros(1), truncated=True) for _ in range(episodes)))


compilations = 0
"""Programs that XLA compiled in this process so far."""


def _count(event: str, *_: Any, **__: Any) -> None:
    global compilations
    if event == "/jax/core/compile/backend_compile_duration":
        compilations += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def leaves_equal(first: Any, second: Any) -> bool:
    """Whether two pytrees hold the same bits."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


class Instead:
    """An object with some of its methods replaced."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self.__dict__.update(methods, inner=inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
