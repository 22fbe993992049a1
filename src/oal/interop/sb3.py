"""Stable-Baselines3 beside oal: record its policies, use its callbacks, train it on a learned cost.

What needs no bridge: `oal.demos.record_demos(env, model, episodes=10)` records any model or policy of SB3 or sbx, and
SB3's `evaluate_policy(x, env)` takes oal's models, clones and policies, as they all have SB3's `predict`.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

import numpy as np

from oal.deep.learned_cost import ABSORBING, LearnedCost
from oal.deep.loop import OAL
from oal.demos import Demos, Trajectory
from oal.envs import bootstrap_target, flat_observations
from oal.errors import InputError, at_least, choice, require

require("stable_baselines3", extra="sb3", needed_for="working with Stable-Baselines3")
vec_env: Any = import_module("stable_baselines3.common.vec_env")
sb3_callbacks: Any = import_module("stable_baselines3.common.callbacks")
sb3_logger: Any = import_module("stable_baselines3.common.logger")


def record(
    model: Any, env: Any = None, *, episodes: int = 10, deterministic: bool = True, described_as: str | None = None
) -> Demos:
    """Run whole episodes of a model in its own vector environment, or in one that is given, and keep them.

    The model sees what it was trained on: stacked, normalised (`VecNormalize`) or otherwise wrapped. What is kept is
    what the environment itself gave, without `VecNormalize` and `CostVecReward`: its observations, actions in its
    units, its rewards.
    """
    at_least("episodes", episodes, 1)
    env = model.get_env() if env is None else env
    if env is None:
        raise InputError("the model has no environment: give one, as a vector environment of Stable-Baselines3")
    normaliser = vec_env.unwrap_vec_normalize(env)
    space = env.observation_space if normaliser is None else normaliser.venv.observation_space

    def flat(observation: Any, original: Callable[[], Any] | None) -> np.ndarray:
        return flat_observations(space, observation if original is None else original())

    shown = env.reset()
    plain = flat(shown, None if normaliser is None else normaliser.get_original_obs)
    state, starts = None, np.ones(env.num_envs, bool)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
    # each environment has its share, as SB3's evaluate_policy does it: otherwise short episodes would be preferred
    wanted = [(episodes + i) // env.num_envs for i in range(env.num_envs)]
    done: list[Trajectory] = []
    while any(wanted):
        actions, state = model.predict(shown, state=state, episode_start=starts, deterministic=deterministic)
        shown, rewards, starts, infos = env.step(actions)
        paid = rewards if normaliser is None else normaliser.get_original_reward()
        following = flat(shown, None if normaliser is None else normaliser.get_original_obs)
        for i in range(env.num_envs):
            own = infos[i].get("environment_reward", paid[i])  # not what a learned cost pays
            rows[i].append((plain[i], np.asarray(actions[i]), float(own)))
            if not starts[i]:
                continue
            if wanted[i]:
                wanted[i] -= 1
                done.append(_trajectory(rows[i], infos[i], space, normaliser))
            rows[i] = []
        plain = following
    return Demos(tuple(done), action_space=env.action_space, source=described_as)


def _trajectory(rows: list[tuple[Any, ...]], info: Mapping[str, Any], space: Any, normaliser: Any) -> Trajectory:
    last = info["terminal_observation"]
    if normaliser is not None:
        last = normaliser.unnormalize_obs(last)
    observations, actions, rewards = zip(*rows, strict=True)
    truncated = bool(info.get("TimeLimit.truncated", False))
    return Trajectory(
        np.stack([*observations, flat_observations(space, last)]).astype(np.float32),
        np.stack(actions),
        None if np.isnan(rewards).any() else np.array(rewards, np.float32),
        terminated=not truncated,
        truncated=truncated,
    )


# ----- callbacks


class _Model:
    """What SB3's callbacks look at in a model, answered by a learner of oal's."""

    def __init__(self, learner: OAL) -> None:
        self.learner = learner
        self.num_timesteps = learner.step
        self.logger = sb3_logger.Logger(folder=None, output_formats=[])
        self.observation_space, self.action_space = learner.envs.observation_space, learner.envs.action_space
        self.n_envs = self.num_envs = len(learner.envs)

    def predict(self, *args: Any, **options: Any) -> Any:
        return self.learner.predict(*args, **options)

    def save(self, path: Any, *_: Any, **__: Any) -> None:
        self.learner.policy().save(path)

    def get_env(self) -> "_Model":
        """Callbacks want an environment to be there; what they do with it is count."""
        return self

    def get_vec_normalize_env(self) -> None:
        return None


class Callback:
    """One of SB3's callbacks as a callback of `OAL.learn`: called after every block, stops learning where it says so.

    `EvalCallback`, `CheckpointCallback`, `StopTrainingOnRewardThreshold` and the like work; models that they save are
    policies of oal's (`oal.Policy.load`). `n_calls` counts blocks. Those that look into an algorithm's local variables
    (rollouts, `dones`) find nothing there.
    """

    def __init__(self, callback: Any) -> None:
        if not isinstance(callback, sb3_callbacks.BaseCallback):
            raise InputError(f"{type(callback).__name__} is not a callback of Stable-Baselines3")
        self.callback = callback
        self._model: _Model | None = None

    def __call__(self, learner: OAL) -> bool | None:
        if self._model is None or self._model.learner is not learner:
            self._model = _Model(learner)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the environment of training is not of SB3's kind
                self.callback.init_callback(self._model)
            self.callback.on_training_start({}, {})
        self._model.num_timesteps = learner.step
        goes_on = self.callback.on_step()
        if learner.step >= learner.goal or not goes_on:
            self.callback.on_training_end()
        return None if goes_on else False


# ----- the learned cost as a reward


class CostVecReward(vec_env.VecEnvWrapper):
    """A vector environment of SB3's whose reward is minus a learned cost; its own is in info["environment_reward"].

    The steps of all environments are charged at once. `absorbing` is as in `oal.deep.learned_cost.CostReward`. Put it
    below `VecNormalize` and `VecFrameStack`: the cost knows the environment's own observations and actions.
    """

    def __init__(
        self, venv: Any, cost: LearnedCost, *, absorbing: Literal["shift", "charge", "ignore"] = "shift"
    ) -> None:
        super().__init__(venv)
        self.cost, self.absorbing = cost, choice("absorbing", absorbing, ABSORBING)
        sample = flat_observations(venv.observation_space, venv.observation_space.sample())
        if sample.shape != (cost.spec.observation_size,):
            raise InputError(
                f"the cost was learned on {cost.spec.env_id} with {cost.spec.observation_size} numbers, this "
                f"environment shows {sample.size}: wrap the same environment, before wrappers that change observations"
            )

    def reset(self) -> Any:
        observation = self.venv.reset()
        self._before = self._flat(observation)
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = np.array(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, rewards, dones, infos = self.venv.step_wait()
        costs = self.cost(self._before, self._actions)
        # with SB3's automatic resets this is where the next step begins, also after an end
        self._before = self._flat(observation)
        learned = costs
        if self.absorbing == "shift":
            learned = costs - self.cost.absorbing
        elif self.absorbing == "charge":
            ended = np.array([d and not i.get("TimeLimit.truncated", False) for d, i in zip(dones, infos, strict=True)])
            learned = bootstrap_target(costs, 0.0, ended, self.cost.gamma, self.cost.absorbing)
        infos = [
            {**info, "environment_reward": float(reward), "cost": float(cost)}
            for info, reward, cost in zip(infos, rewards, costs, strict=True)
        ]
        return observation, -np.asarray(learned, np.float32), dones, infos

    def _flat(self, observation: Any) -> np.ndarray:
        return np.array(flat_observations(self.venv.observation_space, observation), np.float32)
