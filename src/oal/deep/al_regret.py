"""The online AL regret of the linear class of costs, kept while a learner learns, and the features it is measured in.

An episode is an occupancy: it spreads a mass of 1 over its horizon, and what is left after a true termination lies in
the absorbing state (`oal.envs.occupancy_masses`). The rest of an episode that was cut off is unknown, and counts like
the expert's mean.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oal import equations
from oal.demos import Trajectory
from oal.demos.pairs import Encoded, encode
from oal.envs import EnvSpec, OccupancyMasses, occupancy_masses
from oal.envs.names import input_names
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64


class Features:
    """The linear class's features: (observation, action) standardised by some episodes' steps, and the absorbing state.

    A feature in which these never vary keeps its own unit.
    """

    def __init__(
        self, episodes: Sequence[Trajectory | Encoded], spec: EnvSpec, *, names: Sequence[str] | None = None
    ) -> None:
        names = input_names(spec) if names is None else names
        if len(names) != spec.observation_size + spec.action_size:
            raise InputError(
                f"{len(names)} names are given for {spec.observation_size} observations and {spec.action_size} actions"
            )
        self.names = (*names, "absorbing")
        steps = np.concatenate([np.concatenate([e.observation, e.action], axis=1) for e in encode(episodes, spec)])
        self.spec = spec
        self.mean = steps.mean(axis=0, dtype=np.float64)
        std = steps.std(axis=0, dtype=np.float64)
        self.std = np.where(std > 1e-6 * np.maximum(1.0, np.abs(self.mean)), std, 1.0)

    def standardised(
        self, observations: "Float[np.ndarray, 'N O']", actions: "Float[np.ndarray, 'N A']"
    ) -> "Float64[np.ndarray, 'N O+A']":
        """Pairs -> features, without the absorbing coordinate."""
        return (np.concatenate([observations, actions], axis=1) - self.mean) / self.std

    def of_episode(self, episode: Encoded) -> "Float64[np.ndarray, 'F']":
        """Return the F = O + A + 1 feature expectations of one episode's occupancy."""
        masses = episode_masses(episode, self.spec.horizon)
        steps = self.standardised(episode.observation, episode.action)
        return np.append(masses.alive @ steps, masses.absorbing)


def episode_masses(trajectory: Trajectory | Encoded, horizon: int) -> OccupancyMasses:
    """Spread an episode's mass over its recorded steps; with a stride each stands for the steps left out after it."""
    if trajectory.stride == 1:
        return occupancy_masses(len(trajectory), terminated=trajectory.terminated, horizon=horizon)
    length = min(len(trajectory) * trajectory.stride, horizon)
    masses = occupancy_masses(length, terminated=trajectory.terminated, horizon=horizon)
    return masses._replace(alive=np.full(len(trajectory), masses.alive.sum() / len(trajectory)))


class RegretMeter:
    """The online AL regret of the linear class,  max_{c in C} Σ_k <c, μ_k - μ_E>,  kept while a learner learns.

    μ_k are the feature expectations of the k-th finished episode (a sample of the k-th policy's), μ_E those of the
    demonstrations, with the features of `Features`. Regrets are per episode and per step of the horizon: times K and H
    they are the paper's. This runs once per environment step, so a step only adds up what it sees.
    """

    def __init__(self, expert: Sequence[Trajectory | Encoded], *, spec: EnvSpec, environments: int = 1) -> None:
        at_least("number of environments", environments, 1)
        episodes = encode(expert, spec)
        self.features = Features(episodes, spec)
        self.expert = np.mean([self.features.of_episode(episode) for episode in episodes], axis=0)
        self._observations = np.zeros((environments, spec.observation_size))
        self._actions = np.zeros((environments, spec.action_size))
        self._lengths = np.zeros(environments, np.int64)
        self.total = np.zeros_like(self.expert)
        """Σ_k (μ_k - μ_E)."""
        self.episodes = 0

    def step(
        self,
        observation: "Float[np.ndarray, 'n O']",
        action: "Float[np.ndarray, 'n A']",
        terminated: "Bool[np.ndarray, 'n']",
        truncated: "Bool[np.ndarray, 'n']",
        valid: "Bool[np.ndarray, 'n']",
    ) -> None:
        """See one step of all environments, with encoded actions; where not valid, none was taken."""
        if valid.all():
            self._observations += observation
            self._actions += action
            self._lengths += 1
            ended = terminated | truncated
        else:
            np.add(self._observations, observation, out=self._observations, where=valid[:, None])
            np.add(self._actions, action, out=self._actions, where=valid[:, None])
            self._lengths += valid
            ended = (terminated | truncated) & valid
        if ended.any():
            for i in np.flatnonzero(ended):
                self._finish(int(i), bool(terminated[i]))

    def _finish(self, i: int, terminated: bool) -> None:
        length, horizon = int(self._lengths[i]), self.features.spec.horizon
        masses = occupancy_masses(length, terminated=terminated, horizon=horizon)
        sums = np.concatenate([self._observations[i], self._actions[i]])
        steps = (sums - length * self.features.mean) / self.features.std
        self.add(np.append(steps / horizon, masses.absorbing))
        self._observations[i] = self._actions[i] = 0.0
        self._lengths[i] = 0

    def add(self, expectation: "Float64[np.ndarray, 'F']") -> None:
        """Count one finished episode with these feature expectations."""
        if np.shape(expectation) != self.expert.shape:
            raise InputError(
                f"feature expectations have the shape {np.shape(expectation)}: it must be {self.expert.shape}, "
                "with the absorbing coordinate last"
            )
        self.total += expectation - self.expert
        self.episodes += 1

    def abandon(self) -> None:
        """Forget the unfinished episodes: the environments were restarted."""
        self._observations[:] = self._actions[:] = 0.0
        self._lengths[:] = 0

    @property
    def l2(self) -> float | None:
        """The regret per episode over the L2 ball; None before an episode has finished."""
        return equations.ball_support(self.total) / self.episodes if self.episodes else None

    @property
    def simplex(self) -> float | None:
        """The regret per episode over the convex hull of the features and their negatives."""
        if not self.episodes:
            return None
        return equations.simplex_support(np.concatenate([self.total, -self.total])) / self.episodes

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of everything that grows, for a checkpoint."""
        return {
            "observations": self._observations.copy(),
            "actions": self._actions.copy(),
            "lengths": self._lengths.copy(),
            "total": self.total.copy(),
            "episodes": np.array([self.episodes]),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take back what `state` gave; the demonstrations must be the same."""
        own = {"observations": self._observations, "actions": self._actions, "lengths": self._lengths}
        for name, array in (own | {"total": self.total}).items():
            if np.shape(arrays[name]) != array.shape:
                raise InputError(
                    f"the saved regret has {name} of shape {np.shape(arrays[name])}, this run's is {array.shape}: "
                    "same environment and number of environments are needed"
                )
            array[...] = arrays[name]
        self.episodes = int(arrays["episodes"][0])
