"""Take recorded actions again, to check that a recording says what happened."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from oal.envs import simulator_state


def set_simulator_state(env: gym.Env, state: Mapping[str, Sequence[float]]) -> None:
    """Put a freshly reset environment into a state read by `simulator_state`."""
    inner: Any = env.unwrapped
    current = simulator_state(env)
    if current is None:
        raise ValueError(f"the state of {type(inner).__name__} cannot be set")
    if {name: len(part) for name, part in current.items()} != {name: len(part) for name, part in state.items()}:
        raise ValueError(f"the recorded state does not fit {type(inner).__name__}")
    if "qpos" in state:
        inner.set_state(np.asarray(state["qpos"]), np.asarray(state["qvel"]))
    else:
        inner.state = np.asarray(state["state"], np.float64)


def replay_rewards(
    env: gym.Env, actions: Iterable[Any], *, initial_state: Mapping[str, Sequence[float]] | None, seed: int
) -> np.ndarray:
    """Take recorded actions again from the recorded beginning; return the rewards up to the episode's end."""
    env.reset(seed=seed)
    if initial_state is not None:
        set_simulator_state(env, initial_state)
    rewards = []
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            break
    return np.array(rewards)
