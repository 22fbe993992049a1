"""Gymnasium environments with Discrete spaces, to be sampled from."""

from collections.abc import Callable
from typing import Any

import numpy as np

from oal.errors import InputError, at_least, import_module_of
from oal.tabular.passes import Index
from oal.tabular.problem import FiniteMDP


def make_discrete(env_id: str, **options: Any) -> Any:
    """Make a Gymnasium environment with Discrete observations and actions, or say why it is not one."""
    import gymnasium

    import_module_of(env_id)
    try:
        env = gymnasium.make(env_id, **options)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise InputError(f"environment '{env_id}' cannot be made: {error}") from None
    for what, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
            raise InputError(f"{what} of {env_id} are {space}: tabular learning needs Discrete spaces that start at 0")
    return env


class Sampler:
    """A Gymnasium environment with Discrete spaces, to be learned from samples only: no transition table is read.

    An episode that terminates stays in the state it ended in for the rest of the horizon; a time limit of the
    environment's own that comes before the horizon is an error, since the rest of the episode is unknown then.
    """

    def __init__(self, env: Any, horizon: int, **options: Any) -> None:
        at_least("horizon", horizon, 1)
        self.env = make_discrete(env, **options) if isinstance(env, str) else env
        self.name = env if isinstance(env, str) else str(getattr(env.spec, "id", env))
        self.horizon = int(horizon)
        self.n_states = int(self.env.observation_space.n)
        self.n_actions = int(self.env.action_space.n)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.horizon, self.n_states, self.n_actions

    def episode(self, act: Callable[[int, int], int], *, seed: int | None = None) -> tuple[Index, Index]:
        """Play an episode of H steps with `act(h, s)`; return its states and actions."""
        states = np.empty(self.horizon, dtype=np.int64)
        actions = np.empty(self.horizon, dtype=np.int64)
        s = self._state(self.env.reset(seed=seed)[0])
        ended = False
        for h in range(self.horizon):
            states[h] = s
            actions[h] = a = act(h, s)
            if ended or h + 1 == self.horizon:
                continue
            after, _, ended, truncated, _ = self.env.step(a)
            s = self._state(after)
            if truncated and not ended:
                raise InputError(
                    f"{self.name} cut the episode off after {h + 1} steps but the horizon is {self.horizon}: give a "
                    f"horizon of at most {h + 1}, or make the environment with max_episode_steps={self.horizon}"
                )
        return states, actions

    def _state(self, observation: Any) -> int:
        """Return an observation as a state; compiled code takes it for a place in memory, so it must be one."""
        s = int(observation)
        if not 0 <= s < self.n_states:
            raise InputError(f"{self.name} gave the state {s}: its observation space has 0..{self.n_states - 1}")
        return s


Environment = FiniteMDP | Sampler
