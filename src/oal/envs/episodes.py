"""Whole episodes: run a policy to the end, and evaluate it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from oal.base.seeding import generator, integer
from oal.envs.hangs import watch
from oal.envs.observations import no_reward, observation_reader
from oal.envs.spec import Act, ActionCodec, EnvSource, EnvSpec, describe, make, uniform_actions
from oal.errors import at_least

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Int, Shaped


class Episode(NamedTuple):
    """One whole episode: actions in the environment's units, its rewards (NaN: none), flat observations."""

    observations: "Float32[np.ndarray, 'T+1 O']"
    actions: "Shaped[np.ndarray, 'T ...']"
    rewards: "Float[np.ndarray, 'T']"
    terminated: bool
    truncated: bool
    success: bool | None
    seed: int
    initial_state: dict[str, list[float]] | None


class Shown(NamedTuple):
    """What an episode shows to whoever chooses its next action."""

    seed: int
    step: int
    observation: Any
    """As the environment gave it."""
    flat: np.ndarray


Choose = Callable[[list[Shown]], Sequence[Any]]
"""What several episodes show -> an action for each, in the environment's units."""


class Evaluation(NamedTuple):
    """Returns (NaN without rewards), lengths and successes (None when none are reported) of whole episodes."""

    returns: "Float[np.ndarray, 'n']"
    lengths: "Int[np.ndarray, 'n']"
    successes: "Bool[np.ndarray, 'n'] | None"
    distance: float | None = None
    """From demonstrations, without looking at rewards: the smaller, the closer; None where there are none."""

    @classmethod
    def of(cls, episodes: "Sequence[Episode]", distance: float | None = None) -> "Evaluation":
        """Sum up whole episodes."""
        successes = [episode.success for episode in episodes]
        return cls(
            np.array([episode.rewards.sum() for episode in episodes]),
            np.array([len(episode.rewards) for episode in episodes]),
            None if None in successes else np.array(successes),
            distance,
        )

    def without_returns(self) -> "Evaluation":
        """Return the same with unknown returns: where rewards say nothing."""
        return self._replace(returns=np.full(len(self.returns), np.nan))

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


class EpisodeRunner:
    """Run whole episodes on separate environments, several in lockstep so that the policy sees batches."""

    def __init__(self, source: EnvSource, *, parallel: int = 1, horizon: int | None = None) -> None:
        at_least("parallel episodes", parallel, 1)
        self.envs = [make(source, horizon=horizon) for _ in range(parallel)]
        self.spec = describe(self.envs[0], horizon=horizon)
        self.codec = ActionCodec(self.spec)
        self._read = observation_reader(self.envs[0].observation_space, self.spec.env_id)

    def run(self, act: Act, seeds: Sequence[int]) -> list[Episode]:
        """Run one episode from each reset seed, by a function of flat observations that gives encoded actions."""

        def choose(shown: list[Shown]) -> Sequence[Any]:
            return self.codec.decode(act(np.stack([each.flat for each in shown])))

        return self.play(choose, seeds)

    def play(self, choose: Choose, seeds: Sequence[int]) -> list[Episode]:
        """Run one episode from each reset seed; `choose` gives actions in the environment's units."""
        episodes: list[Episode] = []
        for start in range(0, len(seeds), len(self.envs)):
            episodes += self._lockstep(choose, list(seeds[start : start + len(self.envs)]))
        return episodes

    def _lockstep(self, choose: Choose, seeds: list[int]) -> list[Episode]:
        count = len(seeds)
        raw: list[Any] = []
        observations: list[list[np.ndarray]] = []
        initial_states = []
        for env, seed in zip(self.envs, seeds, strict=False):
            watch.calls += 1
            observation, _ = env.reset(seed=seed)
            raw.append(observation)
            watch.calls += 1
            observations.append([self._flat(observation)])
            initial_states.append(simulator_state(env))
        actions: list[list[Any]] = [[] for _ in seeds]
        rewards: list[list[float]] = [[] for _ in seeds]
        ends: list[tuple[bool, bool, bool | None]] = [(False, False, None)] * count
        running = list(range(count))
        while running:
            chosen = choose([Shown(seeds[i], len(actions[i]), raw[i], observations[i][-1]) for i in running])
            still = []
            for i, action in zip(running, chosen, strict=True):
                actions[i].append(np.array(action))  # a copy: environments may change what they are given
                watch.calls += 1
                observation, reward, terminated, truncated, info = self.envs[i].step(action)
                watch.calls += 1
                raw[i] = observation
                observations[i].append(self._flat(observation))
                try:
                    rewards[i].append(np.nan if reward is None else float(reward))
                except (TypeError, ValueError):
                    raise no_reward(self.spec.env_id, reward, len(rewards[i])) from None
                if terminated or truncated:
                    success = info.get("is_success", info.get("success"))
                    ends[i] = (bool(terminated), bool(truncated), None if success is None else bool(success))
                else:
                    still.append(i)
            running = still
        return [
            Episode(
                np.stack(observations[i]),
                np.stack(actions[i]),
                np.array(rewards[i]),
                *ends[i],
                seed=seeds[i],
                initial_state=initial_states[i],
            )
            for i in range(count)
        ]

    def _flat(self, observation: Any) -> np.ndarray:
        # a copy: some environments hand out one buffer again and again
        return np.array(self._read(observation), np.float32)

    def evaluate(self, act: Act, seeds: Sequence[int]) -> Evaluation:
        """Run one episode from each reset seed and keep the returns, lengths and successes."""
        return Evaluation.of(self.run(act, seeds))

    def close(self) -> None:
        for env in self.envs:
            env.close()


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
