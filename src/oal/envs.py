"""The one boundary to Gymnasium 1.x: stepping, final observations, action scaling, absorbing states, evaluation.

Inside oal observations are flat float32 vectors, actions are *encoded* (continuous ones scaled to [-1, 1], discrete
ones one-hot) and costs are minimised; here, and only here, cost = -reward.
"""

import importlib
import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from oal import files, snapshots
from oal.errors import InputError, at_least
from oal.seeding import generator, integer

if TYPE_CHECKING:
    from oal.demos import Demos, Trajectory

EnvSource = str | Callable[[], gym.Env]
Act = Callable[[np.ndarray], np.ndarray]
"""Observations [n, O] -> encoded actions [n, A]."""


# ----------------------------------------------------------------------------------------------------------------
# What an environment looks like


@dataclass(frozen=True)
class EnvSpec:
    """Sizes, action bounds and horizon of an environment, as plain values that fit in JSON."""

    env_id: str
    kind: str
    observation_size: int
    action_size: int
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    action_shape: tuple[int, ...] = ()
    action_start: int = 0
    horizon: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "EnvSpec":
        try:
            fields: dict[str, Any] = {n: tuple(item) if isinstance(item, list) else item for n, item in value.items()}
            return cls(**fields)
        except TypeError as error:
            raise InputError(f"the description of the environment cannot be read ({error})") from None


def describe(env: gym.Env | VectorEnv, *, horizon: int | None = None) -> EnvSpec:
    """Read an environment's spaces; refuse what cannot be learned on, naming why."""
    vector = isinstance(env, VectorEnv)
    observation_space = env.single_observation_space if vector else env.observation_space
    action_space = env.single_action_space if vector else env.action_space
    env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if not observation_space.is_np_flattenable:
        raise InputError(f"{env_id}: observations of {observation_space} have no fixed size and cannot be flattened")
    steps = horizon if horizon is not None else (env.spec.max_episode_steps if env.spec is not None else None)
    if steps is None:
        raise InputError(f"{env_id} has no time limit: register it with max_episode_steps, or say the horizon")
    at_least("horizon", steps, 1)
    common: dict[str, Any] = {
        "env_id": env_id,
        "observation_size": spaces.flatdim(observation_space),
        "horizon": int(steps),
    }
    if isinstance(action_space, spaces.Discrete):
        return EnvSpec(kind="discrete", action_size=int(action_space.n), action_start=int(action_space.start), **common)
    if isinstance(action_space, spaces.Box):
        low, high = action_space.low.astype(np.float64).ravel(), action_space.high.astype(np.float64).ravel()
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InputError(f"{env_id}: the action space {action_space} is unbounded; wrap it with RescaleAction")
        if not (low < high).all():
            raise InputError(f"{env_id}: the action space {action_space} has a dimension without room (low = high)")
        return EnvSpec(
            kind="continuous",
            action_size=len(low),
            action_low=tuple(low.tolist()),
            action_high=tuple(high.tolist()),
            action_shape=tuple(action_space.shape),
            **common,
        )
    raise InputError(f"{env_id}: actions of {action_space} are not supported; Box and Discrete are")


class ActionCodec:
    """Encode environment actions for the learner and decode the learner's: one scale for learner and expert alike."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        # rows [1, A]: NumPy multiplies equal shapes in half the time it takes to spread one over the other
        self._low = np.array([spec.action_low], np.float32)
        self._high = np.array([spec.action_high], np.float32)
        self._centre = (self._high + self._low) * np.float32(0.5)
        self._half = (self._high - self._low) * np.float32(0.5)
        self._is_unit = bool((self._low == -1.0).all() and (self._high == 1.0).all())
        self._is_centred = not self._centre.any()
        self._is_flat = len(spec.action_shape) == 1
        self._is_discrete = spec.kind == "discrete"

    def encode(self, actions: np.ndarray) -> np.ndarray:
        """Environment actions [n, ...] -> encoded [n, A]: scaled to [-1, 1], or one-hot."""
        actions = np.asarray(actions)
        if self.spec.kind == "discrete":
            index = actions.reshape(len(actions)).astype(np.int64) - self.spec.action_start
            if len(index) and not (index.min() >= 0 and index.max() < self.spec.action_size):
                raise InputError(f"an action lies outside the {self.spec.action_size} actions of {self.spec.env_id}")
            return np.eye(self.spec.action_size, dtype=np.float32)[index]
        flat = actions.reshape(len(actions), -1).astype(np.float32)
        if flat.shape[1] != self.spec.action_size:
            raise InputError(f"actions have {flat.shape[1]} numbers, {self.spec.env_id} takes {self.spec.action_size}")
        return flat if self._is_unit else (flat - self._centre) / self._half

    def decode(self, encoded: np.ndarray) -> Any:
        """Encoded actions [n, A] -> a sequence of n environment actions; continuous ones are clipped to the bounds."""
        if self.spec.kind == "discrete":
            return self.decode_inside(encoded)
        return self.decode_inside(np.minimum(np.maximum(encoded, np.float32(-1.0)), np.float32(1.0)))

    def decode_inside(self, encoded: np.ndarray) -> Any:
        """As `decode`, for actions known to lie in [-1, 1], as every actor of oal gives them.

        This runs once per environment step: each operation is a percent of a fast simulator's step.
        """
        if self._is_discrete:
            start = self.spec.action_start
            return [index + start for index in encoded.argmax(axis=1).tolist()]
        scaled = encoded if self._is_unit else encoded * self._half
        if not self._is_centred:
            scaled += self._centre
        return scaled if self._is_flat else scaled.reshape(len(scaled), *self.spec.action_shape)


def encoded_pairs(trajectory: "Trajectory", spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return a trajectory's observations [T, O] and encoded actions [T, A], as the learner sees its own."""
    observations = trajectory.observations[: len(trajectory)].reshape(len(trajectory), -1).astype(np.float32)
    if observations.shape[1] != spec.observation_size:
        raise InputError(
            f"observations have {observations.shape[1]} numbers, {spec.env_id} gives {spec.observation_size}: "
            "is this a trajectory of another environment?"
        )
    return observations, ActionCodec(spec).encode(trajectory.actions)


def flattener(space: spaces.Space) -> Callable[[Any], np.ndarray] | None:
    """Return the map from observations to flat vectors, or None when they are flat vectors already."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return None
    return lambda observation: np.asarray(spaces.flatten(space, observation), np.float32)


def flat_observations(space: spaces.Space, observation: Any) -> np.ndarray:
    """Return an observation of the space as a flat vector [O], or a batch as vector environments give it as [n, O]."""
    flatten = flattener(space)
    if flatten is None:
        return np.asarray(observation, np.float32)
    leaf_space, leaf = space, observation
    while isinstance(leaf_space, (spaces.Dict, spaces.Tuple)):
        key: Any = next(iter(leaf_space.spaces)) if isinstance(leaf_space, spaces.Dict) else 0
        leaf_space, leaf = leaf_space[key], leaf[key]
    if np.ndim(leaf) == len(leaf_space.shape or ()):
        return flatten(observation)
    parts = gym.vector.utils.iterate(gym.vector.utils.batch_space(space, len(leaf)), observation)
    return np.stack([flatten(part) for part in parts])


def make(
    source: EnvSource, *, horizon: int | None = None, render_mode: str | None = None, picture_size: int = 240
) -> gym.Env:
    """Make an environment from its id or from a function; a name Gymnasium does not know is an InputError.

    With a render mode, MuJoCo's pictures are `picture_size` pixels wide and high (drawn by the processor, size costs).
    """
    try:
        if not isinstance(source, str):
            env = source()
        else:
            extra: dict[str, Any] = {} if horizon is None else {"max_episode_steps": horizon}
            if render_mode is not None:  # an environment that cannot be drawn need not know the word
                extra["render_mode"] = render_mode
            if _is_mujoco(source):
                _warn_through_python()
                if render_mode is not None:
                    extra |= {"width": picture_size, "height": picture_size}
            env = gym.make(source, disable_env_checker=True, **extra)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"environment {source}: {error}") from None
    except gym.error.Error as error:
        raise InputError(f"environment '{source}' cannot be made: {error}") from None
    if not isinstance(env, gym.Env):
        raise InputError(f"{source} made a {type(env).__name__}: a gymnasium.Env is needed")
    if not isinstance(source, str) and horizon is not None:
        env = gym.wrappers.TimeLimit(env, horizon)
    return env


def _is_mujoco(env_id: str) -> bool:
    registered = gym.registry.get(env_id)
    return registered is not None and str(registered.entry_point).startswith("gymnasium.envs.mujoco")


def _warn_through_python() -> None:
    """Send MuJoCo's warnings to Python's: by itself it writes a log file into whatever folder the user is in.

    A model file's deprecated attribute is Gymnasium's affair and no news to the user.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(
        lambda message: None if "deprecated" in message else warnings.warn(f"MuJoCo: {message}", stacklevel=2)
    )


# ----------------------------------------------------------------------------------------------------------------
# Stepping


class Step(NamedTuple):
    """What n environments did: [n, O], [n, A], [n], [n, O], [n], [n], [n].

    `next_observation` is the true successor, also where the episode ended. `valid` is False where a vector
    environment only reset itself in this step, so nothing happened that could be learned from.
    """

    observation: np.ndarray
    action: np.ndarray
    cost: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


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
        self._flatten = flattener(self.envs[0].observation_space)
        self._seed, self._purpose = seed, purpose
        self._shape = (count, self.spec.observation_size)
        self.finished: list[tuple[float, int]] = []
        """(return, length) of the episodes that ended since the list was last emptied by the caller."""
        # shared by all steps in which nothing ends, so nobody may write to them
        self._always, self._never = np.ones(count, bool), np.zeros(count, bool)
        self._always.flags.writeable = self._never.flags.writeable = False
        self.restart(0)

    def __len__(self) -> int:
        return len(self.envs)

    def restart(self, index: int) -> None:
        """Begin new episodes in all environments, seeded by `index`."""
        self.observation = np.empty(self._shape, np.float32)
        for i, env in enumerate(self.envs):
            observation, _ = env.reset(seed=integer(self._seed, self._purpose, index, i))
            self.observation[i] = observation if self._flatten is None else self._flatten(observation)
        self.episode_returns = [0.0] * len(self.envs)
        self.episode_lengths = [0] * len(self.envs)

    def step(self, encoded: np.ndarray) -> Step:
        """Take encoded actions [n, A] (continuous ones within [-1, 1]) and restart the episodes that end.

        A fast simulator's step costs as much as a few dozen operations of NumPy: each one here is felt.
        """
        actions = self.codec.decode_inside(encoded)
        flatten, returns, lengths = self._flatten, self.episode_returns, self.episode_lengths
        successor, costs = np.empty(self._shape, np.float32), np.empty(self._shape[0], np.float32)
        ends = []
        for i, env in enumerate(self.envs):
            observation, reward, terminated, truncated, _ = env.step(actions[i])
            reward = float(reward)
            if not math.isfinite(reward):
                raise InputError(f"{self.spec.env_id} gave the reward {reward} at step {lengths[i]}")
            successor[i] = observation if flatten is None else flatten(observation)
            costs[i] = -reward
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
                observation, _ = self.envs[i].reset()
                following[i] = observation if flatten is None else flatten(observation)
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
            arrays |= {f"{i}/{name}": array for name, array in snapshot[0].items()}
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
            prefix = f"{i}/"
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            snapshots.write(env, own, known)
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
        self._flatten = flattener(env.single_observation_space)
        self._seed, self._purpose = seed, purpose
        self.finished: list[tuple[float, int]] = []
        self.restart(0)

    def __len__(self) -> int:
        return self.env.num_envs

    def restart(self, index: int) -> None:
        """Begin new episodes in all environments, seeded by `index`."""
        seeds: Any = [integer(self._seed, self._purpose, index, i) for i in range(len(self))]
        observation, _ = self.env.reset(seed=seeds)
        self.observation = self._flat(observation)
        self.episode_returns = np.zeros(len(self))
        self.episode_lengths = np.zeros(len(self), np.int64)
        self._resetting = np.zeros(len(self), bool)

    def _flat(self, observations: Any) -> np.ndarray:
        if self._flatten is None:
            return np.array(observations, np.float32)
        parts = gym.vector.utils.iterate(self.env.observation_space, observations)
        return np.stack([self._flatten(part) for part in parts])

    def step(self, encoded: np.ndarray) -> Step:
        """Take encoded actions [n, A]; `next_observation` is the true successor in every mode."""
        actions = np.stack([np.asarray(action) for action in self.codec.decode(encoded)])
        observation, reward, terminated, truncated, info = self.env.step(actions)
        returned = self._flat(observation)
        successor = returned
        valid = ~self._resetting
        done = (terminated | truncated) & valid
        if not np.isfinite(reward[valid]).all():
            raise InputError(f"{self.spec.env_id} gave a reward that is not finite")
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            successor = returned.copy()
            finals = info["final_obs"]
            for i in np.flatnonzero(done):
                successor[i] = finals[i] if self._flatten is None else self._flatten(finals[i])
        following = returned
        if self.mode is AutoresetMode.DISABLED and done.any():
            observation, _ = self.env.reset(options={"reset_mask": done})
            following = np.where(done[:, None], self._flat(observation), returned)
        self.episode_returns += np.where(valid, reward, 0.0)
        self.episode_lengths += valid
        for i in np.flatnonzero(done):
            self.finished.append((float(self.episode_returns[i]), int(self.episode_lengths[i])))
        self.episode_returns[done] = 0.0
        self.episode_lengths[done] = 0
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = done
        step = Step(
            self.observation,
            encoded,
            -np.asarray(reward, np.float32),
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
    """Put whatever the user brings behind one interface: an id, a function, an environment or a vector environment."""
    if isinstance(env, VectorEnv):
        return VectorEnvs(env, seed=seed, purpose=purpose, horizon=horizon)
    if isinstance(env, gym.Env):
        if count != 1:
            raise InputError(
                f"one environment object cannot be stepped {count} times at once: give its id or a function"
            )
        return Envs(lambda: env, seed=seed, purpose=purpose, horizon=horizon)
    return Envs(env, count=count, seed=seed, purpose=purpose, horizon=horizon)


# ----------------------------------------------------------------------------------------------------------------
# Absorbing states
#
# After a true termination the rest of the horizon is spent in an absorbing state with its own cost c_abs. Then
# occupancies of policies that die and of policies that live have the same mass, and dying has a price that the cost
# player sets. A truncated episode was only cut off: what follows is unknown, and nothing is booked for it.


class OccupancyMasses(NamedTuple):
    """How one episode's share of the occupancy measure is spread: `alive` [T] per step, `absorbing`, `unknown`.

    The three together sum to 1, for every episode.
    """

    alive: np.ndarray
    absorbing: float
    unknown: float


def occupancy_masses(
    length: int, *, terminated: bool, gamma: float = 1.0, horizon: int | None = None
) -> OccupancyMasses:
    """Split an episode's occupancy among its steps, the absorbing state and the unseen rest after a truncation.

    Step t weighs γ^t, normalised over the horizon (endless when None, which needs γ < 1):
    alive_t = (1-γ) γ^t / (1-γ^H), and the remaining (γ^T - γ^H) / (1-γ^H) is absorbing mass if the episode truly
    terminated, unknown if it was cut off before the horizon.
    """
    at_least("episode length", length, 1)
    if not 0.0 < gamma <= 1.0:
        raise InputError(f"gamma is {gamma}: it must lie in (0, 1]")
    if horizon is None and gamma == 1.0:
        raise InputError("an endless horizon needs gamma below 1: say the horizon or lower gamma")
    if horizon is not None and length > horizon:
        raise InputError(f"the episode has {length} steps, more than the horizon of {horizon}")
    weights = np.power(gamma, np.arange(length, dtype=np.float64))
    total = 1.0 / (1.0 - gamma) if horizon is None else discounted_steps(horizon, gamma)
    alive = weights / total
    rest = max(0.0, 1.0 - float(alive.sum())) if length != horizon else 0.0
    return OccupancyMasses(alive, rest if terminated else 0.0, 0.0 if terminated else rest)


def discounted_steps(steps: int, gamma: float) -> float:
    """Σ_{t<n} γ^t: n when γ = 1, otherwise (1-γ^n)/(1-γ)."""
    return float(steps) if gamma == 1.0 else (1.0 - gamma**steps) / (1.0 - gamma)


def absorbing_value(absorbing_cost: Any, gamma: float, *, steps_left: int | None = None) -> Any:
    """Cost still to pay in the absorbing state: c_abs/(1-γ), or c_abs (1-γ^n)/(1-γ) when only n steps are left."""
    if steps_left is None:
        return absorbing_cost / (1.0 - gamma)
    return absorbing_cost * discounted_steps(steps_left, gamma)


def bootstrap_target(cost: Any, next_value: Any, terminated: Any, gamma: float, absorbing_cost: Any = 0.0) -> Any:
    """c + γ V(s'), where the successor of a true termination is the absorbing state with V = c_abs/(1-γ).

    Truncation does not appear: a truncated step's successor is real and its value counts in full.
    Works on NumPy and on traced arrays; `terminated` is 0 or 1.
    """
    return cost + gamma * (next_value + terminated * (absorbing_value(absorbing_cost, gamma) - next_value))


# ----------------------------------------------------------------------------------------------------------------
# Episodes: evaluation, recording, video


class Episode(NamedTuple):
    """One whole episode in the environment's own terms: actions in its units, rewards, T+1 flat observations."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool
    success: bool | None
    seed: int
    initial_state: dict[str, list[float]] | None


class Evaluation(NamedTuple):
    """Returns, lengths and successes (None when the environment does not report any) of whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    def to_json(self) -> dict[str, float]:
        summary = {
            "return_mean": self.mean_return,
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "length_mean": float(self.lengths.mean()),
        }
        if self.successes is not None:
            summary["success_rate"] = float(self.successes.mean())
        return summary


def simulator_state(env: gym.Env) -> dict[str, list[float]] | None:
    """Read the simulator's state where the environment shows it: MuJoCo's qpos and qvel, classic control's state."""
    inner: Any = env.unwrapped
    if hasattr(inner, "data") and hasattr(inner.data, "qpos"):
        return {"qpos": inner.data.qpos.tolist(), "qvel": inner.data.qvel.tolist()}
    state = getattr(inner, "state", None)
    return None if state is None else {"state": np.asarray(state, np.float64).ravel().tolist()}


def set_simulator_state(env: gym.Env, state: Mapping[str, Sequence[float]]) -> None:
    """Put a freshly reset environment into a state read by `simulator_state`."""
    inner: Any = env.unwrapped
    current = simulator_state(env)
    if current is None:
        raise InputError(f"{type(inner).__name__}: the simulator's state cannot be set; replay from the reset seed")
    if {name: len(part) for name, part in current.items()} != {name: len(part) for name, part in state.items()}:
        raise InputError(f"the recorded state does not fit {type(inner).__name__}: is it another environment's?")
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


class EpisodeRunner:
    """Whole episodes on environments of its own, several in lockstep so that the policy sees batches."""

    def __init__(self, source: EnvSource, *, parallel: int = 1, horizon: int | None = None) -> None:
        at_least("parallel episodes", parallel, 1)
        self.envs = [make(source, horizon=horizon) for _ in range(parallel)]
        self.spec = describe(self.envs[0], horizon=horizon)
        self.codec = ActionCodec(self.spec)
        self._flatten = flattener(self.envs[0].observation_space)

    def run(self, act: Act, seeds: Sequence[int]) -> list[Episode]:
        """Run one episode from each reset seed."""
        episodes: list[Episode] = []
        for start in range(0, len(seeds), len(self.envs)):
            episodes += self._lockstep(act, list(seeds[start : start + len(self.envs)]))
        return episodes

    def _lockstep(self, act: Act, seeds: list[int]) -> list[Episode]:
        count = len(seeds)
        observations: list[list[np.ndarray]] = []
        initial_states = []
        for env, seed in zip(self.envs, seeds, strict=False):
            observation, _ = env.reset(seed=seed)
            observations.append([self._flat(observation)])
            initial_states.append(simulator_state(env))
        actions: list[list[Any]] = [[] for _ in seeds]
        rewards: list[list[float]] = [[] for _ in seeds]
        ends: list[tuple[bool, bool, bool | None]] = [(False, False, None)] * count
        running = list(range(count))
        while running:
            encoded = act(np.stack([observations[i][-1] for i in running]))
            still = []
            for i, action in zip(running, self.codec.decode(encoded), strict=True):
                observation, reward, terminated, truncated, info = self.envs[i].step(action)
                observations[i].append(self._flat(observation))
                actions[i].append(action)
                rewards[i].append(float(reward))
                if terminated or truncated:
                    success = info.get("is_success", info.get("success"))
                    ends[i] = (bool(terminated), bool(truncated), None if success is None else bool(success))
                else:
                    still.append(i)
            running = still
        return [
            Episode(
                np.stack(observations[i]),
                np.stack([np.asarray(action) for action in actions[i]]),
                np.array(rewards[i]),
                *ends[i],
                seed=seeds[i],
                initial_state=initial_states[i],
            )
            for i in range(count)
        ]

    def _flat(self, observation: Any) -> np.ndarray:
        # a copy: some environments hand out one buffer again and again
        return np.array(observation if self._flatten is None else self._flatten(observation), np.float32)

    def evaluate(self, act: Act, seeds: Sequence[int]) -> Evaluation:
        """Run one episode from each reset seed and keep the returns, lengths and successes."""
        return summarise(self.run(act, seeds))

    def close(self) -> None:
        for env in self.envs:
            env.close()


def summarise(episodes: Sequence[Episode]) -> Evaluation:
    """Collect returns, lengths and successes of episodes."""
    successes = [episode.success for episode in episodes]
    known = [success for success in successes if success is not None]
    return Evaluation(
        np.array([episode.rewards.sum() for episode in episodes]),
        np.array([len(episode.rewards) for episode in episodes]),
        np.array(known) if len(known) == len(successes) else None,
    )


def episode_seeds(seed: int, purpose: str, count: int) -> list[int]:
    """Reset seeds of `count` episodes of a named stream."""
    return [integer(seed, purpose, index) for index in range(count)]


def evaluate(
    source: EnvSource, act: Act, *, episodes: int = 10, seed: int = 0, horizon: int | None = None
) -> Evaluation:
    """Evaluate a policy on fresh environments, with seeds apart from training's."""
    at_least("episodes", episodes, 1)
    runner = EpisodeRunner(source, parallel=min(episodes, 10), horizon=horizon)
    try:
        return runner.evaluate(act, episode_seeds(seed, "evaluation", episodes))
    finally:
        runner.close()


class UniformPolicy:
    """Act uniformly at random: the other end of the scale from the expert."""

    def __init__(self, spec: EnvSpec, *, seed: int = 0) -> None:
        self.spec = spec
        self.rng = generator(seed, "uniform-policy")

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Flat observations [n, O] -> uniformly drawn encoded actions [n, A]."""
        return uniform_actions(self.spec, len(observations), self.rng)


class ActionShape(Protocol):
    """The kind and number of actions, as `EnvSpec` and the learners' own shapes say it."""

    @property
    def kind(self) -> str: ...
    @property
    def action_size(self) -> int: ...


def uniform_actions(spec: ActionShape, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` encoded actions uniformly: in the box [-1, 1]^A, or one of the discrete ones."""
    if spec.kind == "continuous":
        return rng.uniform(-1.0, 1.0, (count, spec.action_size)).astype(np.float32)
    return np.eye(spec.action_size, dtype=np.float32)[rng.integers(0, spec.action_size, size=count)]


def record_demos(
    source: EnvSource,
    act: Act,
    *,
    episodes: int,
    seed: int = 0,
    horizon: int | None = None,
    described_as: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> "Demos":
    """Run whole episodes of a policy and keep them as demonstrations: actions in the environment's units.

    Each trajectory carries its reset seed and, where the environment shows it, the simulator's initial state.
    Observations that were flattened get the flattened space.
    """
    from oal.demos import Demos, Trajectory

    at_least("episodes", episodes, 1)
    runner = EpisodeRunner(source, parallel=min(episodes, 10), horizon=horizon)
    try:
        recorded = runner.run(act, episode_seeds(seed, "demonstrations", episodes))
        observation_space = runner.envs[0].observation_space
        return Demos(
            tuple(
                Trajectory(
                    episode.observations,
                    episode.actions,
                    episode.rewards.astype(np.float32),
                    episode.terminated,
                    episode.truncated,
                    seed=episode.seed,
                    initial_state=episode.initial_state,
                )
                for episode in recorded
            ),
            env_id=runner.spec.env_id,
            observation_space=(
                observation_space if flattener(observation_space) is None else spaces.flatten_space(observation_space)
            ),
            action_space=runner.envs[0].action_space,
            source=described_as,
            metadata=dict(metadata or {}),
        )
    finally:
        runner.close()


def record_video(
    source: EnvSource,
    act: Act,
    path: str | os.PathLike[str],
    *,
    reset_seed: int = 0,
    horizon: int | None = None,
    frames: int = 200,
    picture_size: int = 240,
) -> float:
    """Film one episode as .gif or .mp4 in at most about `frames` pictures; return the episode's return.

    An environment made by a function must have been made with render mode rgb_array.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"{path}: a video is a .gif or an .mp4 file")
    at_least("frames", frames, 1)
    if "MUJOCO_GL" not in os.environ and not os.environ.get("DISPLAY"):
        os.environ["MUJOCO_GL"] = "egl"  # without a screen MuJoCo draws off-screen only if told how
    env = make(source, horizon=horizon, render_mode="rgb_array", picture_size=picture_size)
    try:
        spec = describe(env, horizon=horizon)
        codec, flatten = ActionCodec(spec), flattener(env.observation_space)
        observation, _ = env.reset(seed=reset_seed)
        every = math.ceil(spec.horizon / frames)
        pictures: list[np.ndarray] = []
        total, step, done = 0.0, 0, False
        while not done:
            if step % every == 0:
                pictures.append(_frame(env, spec))
            flat = np.asarray(observation if flatten is None else flatten(observation), np.float32)
            observation, reward, terminated, truncated, _ = env.step(codec.decode(act(flat[None]))[0])
            total += float(reward)
            step += 1
            done = terminated or truncated
        pictures.append(_frame(env, spec))
        fps = max(1.0, float(env.metadata.get("render_fps") or 30) / every)
        _write_video(path, pictures, fps)
        return total
    finally:
        env.close()


def _frame(env: gym.Env, spec: EnvSpec) -> np.ndarray:
    try:
        frame: Any = env.render()
    except gym.error.Error as error:
        raise InputError(f"{spec.env_id} cannot be drawn: {error}") from None
    if not isinstance(frame, np.ndarray):
        raise InputError(f"{spec.env_id} gives no picture in render mode rgb_array")
    return frame


def _write_video(path: Path, frames: list[np.ndarray], fps: float) -> None:
    if path.suffix == ".gif":
        from PIL import Image

        pictures = [Image.fromarray(frame).quantize(64) for frame in frames]
        with files.replacing(path) as temporary:
            pictures[0].save(
                temporary, save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0, optimize=False
            )
        return
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise InputError(f"{path}: an .mp4 needs  pip install imageio-ffmpeg ; a .gif needs nothing more")
    from imageio import v2 as imageio

    with files.replacing(path) as temporary:
        write_movie: Any = imageio.mimwrite
        write_movie(temporary, frames, fps=fps)
