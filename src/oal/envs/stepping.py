"""Step environments together: true successors, restarts, costs.

Here, and only here, cost = -reward.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from oal.base.arrays import below, prefixed
from oal.base.seeding import integer
from oal.envs import snapshots
from oal.envs.hangs import watch
from oal.envs.observations import no_reward, observation_reader
from oal.envs.spec import ActionCodec, EnvSource, describe, flattener, make
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32


class Step(NamedTuple):
    """What n environments did.

    `next_observation` is the true successor, also where the episode ended. `valid` is False where a vector
    environment only reset itself in this step, so nothing happened that could be learned from.
    """

    observation: "Float32[np.ndarray, 'n O']"
    action: "Float32[np.ndarray, 'n A']"
    cost: "Float32[np.ndarray, 'n']"
    next_observation: "Float32[np.ndarray, 'n O']"
    terminated: "Bool[np.ndarray, 'n']"
    truncated: "Bool[np.ndarray, 'n']"
    valid: "Bool[np.ndarray, 'n']"


class Envs:
    """n environments stepped together in this process; `observation` [n, O] is where to act next.

    An episode that ends is restarted at once. Environments are seeded once, from the seed of the stream `purpose`;
    `restart` begins new episodes from seeds that depend on its index only, so a resumed run meets the same ones.
    """

    def __init__(
        self, source: EnvSource, *, count: int = 1, seed: int = 0, purpose: str = "env", horizon: int | None = None
    ) -> None:
        at_least("number of environments", count, 1)
        self.envs = [make(source, horizon=horizon) for _ in range(count)]
        self.spec = describe(self.envs[0], horizon=horizon)
        self.codec = ActionCodec(self.spec)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self._read = observation_reader(self.observation_space, self.spec.env_id)
        self._seed, self._purpose = seed, purpose
        self._shape = (count, self.spec.observation_size)
        self.finished: list[tuple[float, int]] = []
        """(return, length) of the episodes that ended since the list was last emptied by the caller; without rewards
        the return is NaN."""
        self.needs_reward = True
        """Whether a reward of None or NaN is an error; otherwise it is no reward, and its step costs nothing."""
        # shared by all steps in which nothing ends, so they must not be written to
        self._always, self._never = np.ones(count, bool), np.zeros(count, bool)
        self._always.flags.writeable = self._never.flags.writeable = False
        self.restart(0)

    def __len__(self) -> int:
        return len(self.envs)

    def restart(self, index: int) -> None:
        """Begin new episodes in all environments, seeded by `index`."""
        self.observation = np.empty(self._shape, np.float32)
        for i, env in enumerate(self.envs):
            watch.calls += 1
            observation, _ = env.reset(seed=integer(self._seed, self._purpose, index, i))
            watch.calls += 1
            self.observation[i] = self._read(observation)
        self.episode_returns = [0.0] * len(self.envs)
        self.episode_lengths = [0] * len(self.envs)

    def step(self, encoded: np.ndarray) -> Step:
        """Take encoded actions [n, A] (continuous ones within [-1, 1]) and restart the episodes that end.

        A fast simulator's step costs as much as a few dozen operations of NumPy, so each one here counts.
        """
        actions = self.codec.decode_inside(encoded)
        read, returns, lengths = self._read, self.episode_returns, self.episode_lengths
        successor, costs = np.empty(self._shape, np.float32), np.empty(self._shape[0], np.float32)
        ends = []
        for i, env in enumerate(self.envs):
            watch.calls += 1
            observation, reward, terminated, truncated, _ = env.step(actions[i])
            watch.calls += 1
            try:
                reward = math.nan if reward is None else float(reward)
            except (TypeError, ValueError):
                raise no_reward(self.spec.env_id, reward, lengths[i]) from None
            if not math.isfinite(reward) and (self.needs_reward or math.isinf(reward)):
                raise InputError(f"{self.spec.env_id} gave the reward {reward} at step {lengths[i]}")
            successor[i] = read(observation)
            costs[i] = -reward if reward == reward else 0.0
            returns[i] += reward
            lengths[i] += 1
            if terminated or truncated:
                ends.append((i, terminated, truncated))
        following, terminations, truncations = successor, self._never, self._never
        if ends:
            following, terminations, truncations = successor.copy(), self._never.copy(), self._never.copy()
            for i, terminated, truncated in ends:
                terminations[i], truncations[i] = terminated, truncated
                self.finished.append((returns[i], lengths[i]))
                returns[i], lengths[i] = 0.0, 0
                watch.calls += 1
                observation, _ = self.envs[i].reset()
                watch.calls += 1
                following[i] = read(observation)
        step = Step(self.observation, encoded, costs, successor, terminations, truncations, self._always)
        self.observation = following
        return step

    def state(self) -> snapshots.Snapshot | None:
        """Return all it takes to go on from here bit for bit, or None where an environment's state cannot be read."""
        arrays: dict[str, np.ndarray] = {
            "observation": self.observation.copy(),
            "episode_returns": np.array(self.episode_returns, np.float64),
            "episode_lengths": np.array(self.episode_lengths, np.int64),
            "finished": np.array(self.finished, np.float64).reshape(-1, 2),
        }
        infos = []
        for i, env in enumerate(self.envs):
            snapshot = snapshots.read(env)
            if snapshot is None:
                return None
            arrays |= prefixed(i, snapshot[0])
            infos.append(snapshot[1])
        return arrays, {"environments": infos}

    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, in environments made in the same way."""
        if arrays["observation"].shape != self._shape:
            raise InputError(
                f"the saved state is of {arrays['observation'].shape} observations, {self.spec.env_id} steps "
                f"{self._shape}: it belongs to another environment or another number of them"
            )
        for i, (env, known) in enumerate(zip(self.envs, info["environments"], strict=True)):
            snapshots.write(env, below(i, arrays), known)
        self.observation = np.array(arrays["observation"], np.float32)
        self.episode_returns = arrays["episode_returns"].tolist()
        self.episode_lengths = arrays["episode_lengths"].tolist()
        self.finished = [(total, int(length)) for total, length in arrays["finished"].tolist()]

    def close(self) -> None:
        for env in self.envs:
            env.close()


class VectorEnvs:
    """A user's Gymnasium vector environment behind the same interface as `Envs`, in each of the three autoreset modes.

    Where the true successor of a last step is:
      next step: in the returned observation; the step after it only resets (`valid` False there).
      same step: in info["final_obs"]; the returned observation belongs to the new episode.
      disabled:  in the returned observation; we reset with a mask.
    """

    def __init__(self, env: VectorEnv, *, seed: int = 0, purpose: str = "env", horizon: int | None = None) -> None:
        self.env = env
        self.spec = describe(env, horizon=horizon)
        self.codec = ActionCodec(self.spec)
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._flatten = flattener(self.observation_space)
        self._read = observation_reader(self.observation_space, self.spec.env_id)
        self._seed, self._purpose = seed, purpose
        self.finished: list[tuple[float, int]] = []
        self.needs_reward = True
        self.restart(0)

    def __len__(self) -> int:
        return self.env.num_envs

    def restart(self, index: int) -> None:
        """Begin new episodes in all environments, seeded by `index`."""
        seeds: Any = [integer(self._seed, self._purpose, index, i) for i in range(len(self))]
        watch.calls += 1
        try:
            observation, _ = self.env.reset(seed=seeds)
        except gym.error.Error:  # some of Gymnasium's own take one seed for all of their environments
            observation, _ = self.env.reset(seed=seeds[0])
        watch.calls += 1
        self.observation = self._flat(observation)
        self.episode_returns = np.zeros(len(self))
        self.episode_lengths = np.zeros(len(self), np.int64)
        self._resetting = np.zeros(len(self), bool)

    def _flat(self, observations: Any) -> np.ndarray:
        if self._flatten is None:
            shape = (len(self), *(self.observation_space.shape or ()))
            if np.shape(observations) != shape:
                raise InputError(f"{self.spec.env_id} gave observations of shape {np.shape(observations)}, not {shape}")
            return np.array([self._read(part) for part in observations], np.float32)
        parts = gym.vector.utils.iterate(self.env.observation_space, observations)
        return np.stack([self._read(part) for part in parts])

    def step(self, encoded: np.ndarray) -> Step:
        """Take encoded actions [n, A]; `next_observation` is the true successor in every mode."""
        actions = np.stack([np.asarray(action) for action in self.codec.decode(encoded)])
        watch.calls += 1
        observation, reward, terminated, truncated, info = self.env.step(actions)
        watch.calls += 1
        returned = self._flat(observation)
        successor = returned
        valid = ~self._resetting
        done = (terminated | truncated) & valid
        reward = np.asarray(reward, np.float64)
        if not np.isfinite(reward[valid]).all() and (self.needs_reward or np.isinf(reward[valid]).any()):
            raise InputError(f"{self.spec.env_id} gave a reward that is not finite")
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            successor = returned.copy()
            finals = info["final_obs"]
            for i in np.flatnonzero(done):
                successor[i] = self._read(finals[i])
        following = returned
        if self.mode is AutoresetMode.DISABLED and done.any():
            watch.calls += 1
            observation, _ = self.env.reset(options={"reset_mask": done})
            watch.calls += 1
            following = np.where(done[:, None], self._flat(observation), returned)
        self.episode_returns += np.where(valid, reward, 0.0)
        self.episode_lengths += valid
        if self.episode_lengths.max() > self.spec.horizon:
            raise InputError(
                f"{self.spec.env_id}: an episode goes on after {self.spec.horizon} steps, the horizon, and a vector "
                "environment ends its own episodes: put gymnasium.wrappers.TimeLimit around each environment in it"
            )
        for i in np.flatnonzero(done):
            self.finished.append((float(self.episode_returns[i]), int(self.episode_lengths[i])))
        self.episode_returns[done] = 0.0
        self.episode_lengths[done] = 0
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = done
        step = Step(
            self.observation,
            encoded,
            np.where(np.isnan(reward), 0.0, -reward).astype(np.float32),
            successor,
            np.array(terminated, bool),
            np.array(truncated, bool),
            valid,
        )
        self.observation = following
        return step

    def state(self) -> snapshots.Snapshot | None:
        """Return None: what a user's vector environment holds is not known."""
        return None

    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        raise InputError(f"the state of the vector environment {self.spec.env_id} cannot be set: restart its episodes")

    def close(self) -> None:
        self.env.close()


def stepping(
    env: EnvSource | gym.Env | VectorEnv,
    *,
    count: int = 1,
    seed: int = 0,
    purpose: str = "env",
    horizon: int | None = None,
) -> Envs | VectorEnvs:
    """Put what the user gives behind one interface: an id, a function, an environment or a vector environment."""
    if isinstance(env, VectorEnv):
        return VectorEnvs(env, seed=seed, purpose=purpose, horizon=horizon)
    if isinstance(env, gym.Env):
        if count != 1:
            raise InputError(
                f"one environment object cannot be stepped {count} times at once: give its id or a function"
            )
        return Envs(lambda: env, seed=seed, purpose=purpose, horizon=horizon)
    return Envs(env, count=count, seed=seed, purpose=purpose, horizon=horizon)
