"""Algorithm 1: one loop over any policy player and any cost player.

    policy player:  π <- argmin  <c, π> + (1/t) d(π, π_old)          (MDPO, SAC, TRPO)
    cost player:    c <- argmax  <c, μ_π - μ_E> - (1/t_c) d(c, c_old)  (linear, neural, GAIL)

The loop knows neither MDPO nor Lipschitz: it steps the environments, hands steps and costs to the players, and keeps
the books. A block is: improve the policy (which works ahead while the simulator steps), collect, improve the cost.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Self

import gymnasium as gym
import jax
import numpy as np
from gymnasium.vector import VectorEnv

from oal.base import checkpoint, console, seeding
from oal.deep import bc
from oal.deep.al_regret import RegretMeter
from oal.deep.costs import CostPlayer, FeatureFunction, LinearConfig, Pairs
from oal.deep.nets import MLP, HostActor
from oal.deep.offpolicy import OffPolicy, Shapes, recorded_cost
from oal.deep.onpolicy import OnPolicy
from oal.deep.policy import Policy
from oal.deep.presets import LearnerConfig
from oal.deep.presets import preset as make_config
from oal.deep.replay import Replay
from oal.demos import Demos, Trajectory
from oal.demos.pairs import encoded_pairs
from oal.envs import (
    Envs,
    EnvSource,
    EnvSpec,
    EpisodeRunner,
    Evaluation,
    Step,
    VectorEnvs,
    episode_seeds,
    flat_observations,
    stepping,
)
from oal.errors import InputError, at_least

KIND = "learner"
_REMEMBERED_EPISODES = 20
"""Episodes over which the learner's absorbing mass is averaged."""

Callback = Callable[["OAL"], bool | None]
"""Called after every block; returning False stops learning."""


class DivergedError(InputError):
    """A number that learning depends on is no longer finite."""


class PolicyPlayer(Protocol):
    """What the loop asks of a policy player."""

    actor: HostActor
    block: int
    state: Any

    def act(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray: ...
    def observe(self, step: Step) -> None: ...
    def improve(self, cost_params: Any) -> dict[str, Any]: ...
    def settle(self) -> None: ...
    def adopt(self, actor: MLP) -> None: ...
    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...
    def restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None: ...


class ExpertData:
    """The demonstrations as arrays: pairs [N, ...] for the cost, transitions in the replay's layout for the policy."""

    def __init__(self, demos: Demos, spec: EnvSpec, gamma: float) -> None:
        """Encode demonstrations; a last step whose successor is unknown gives a pair but no transition."""
        if len(demos) == 0:
            raise InputError("there is no demonstration to learn from: give at least one trajectory")
        memory = Replay(demos.steps, spec.observation_size, spec.action_size)
        pairs, masses = [], []
        for trajectory in demos:
            observation, action = encoded_pairs(trajectory, spec)
            time = np.arange(len(trajectory), dtype=np.int32) * trajectory.stride
            pairs.append((observation, action, time))
            masses.append(gamma ** (len(trajectory) * trajectory.stride) if trajectory.terminated else 0.0)
            if trajectory.stride > 1:  # the next kept step is not the successor
                continue
            successor = trajectory.observations[1:].reshape(-1, spec.observation_size)
            known = len(successor)
            terminated = (time[:known] == len(trajectory) - 1) & trajectory.terminated
            reward = np.zeros(known) if trajectory.rewards is None else trajectory.rewards[:known]
            memory.add(observation[:known], action[:known], -reward, successor, terminated, time[:known])
        self.observation, self.action, self.time = (np.concatenate(part) for part in zip(*pairs, strict=True))
        self.rows = memory.rows[: len(memory)]
        self.absorbing_mass = float(np.mean(masses))

    def pairs(self, index: np.ndarray, weigh: Callable[[np.ndarray], np.ndarray]) -> Pairs:
        return Pairs(self.observation[index], self.action[index], weigh(self.time[index]))


def pack_demos(demos: Demos) -> dict[str, np.ndarray]:
    """Demonstrations as named arrays, so that a checkpoint is complete in itself."""
    arrays = {}
    for index, trajectory in enumerate(demos):
        parts = {"observations": trajectory.observations, "actions": trajectory.actions}
        if trajectory.rewards is not None:
            parts["rewards"] = trajectory.rewards
        parts["ends"] = np.array([trajectory.terminated, trajectory.truncated])
        parts["stride"] = np.array(trajectory.stride)
        arrays |= {f"demos/{index}/{name}": array for name, array in parts.items()}
    return arrays


def unpack_demos(arrays: Mapping[str, np.ndarray], env_id: str) -> Demos:
    """Take back what `pack_demos` gave."""
    trajectories = []
    while f"demos/{len(trajectories)}/actions" in arrays:
        prefix = f"demos/{len(trajectories)}/"
        terminated, truncated = arrays[prefix + "ends"].tolist()
        trajectories.append(
            Trajectory(
                arrays[prefix + "observations"],
                arrays[prefix + "actions"],
                arrays.get(prefix + "rewards"),
                terminated,
                truncated,
                stride=int(arrays[prefix + "stride"]),
            )
        )
    return Demos(tuple(trajectories), env_id=env_id)


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take back what `prefixed` put under a name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def _spaces(envs: Envs | VectorEnvs) -> tuple[gym.Space, gym.Space]:
    if isinstance(envs, VectorEnvs):
        return envs.env.single_observation_space, envs.env.single_action_space
    return envs.envs[0].observation_space, envs.envs[0].action_space


class OAL:
    """Online apprenticeship learning: a policy as good as the demonstrated one for every cost of a class.

    A policy player (mdpo, sac, mdpo-on, trpo) against a cost player (neural, linear, gail), by mirror descent.
    """

    algorithm = "OAL"

    def __init__(
        self,
        env: EnvSource | gym.Env | VectorEnv,
        demos: Demos,
        policy: str = "mdpo",
        cost: str = "neural",
        *,
        preset: str = "default",
        seed: int = 0,
        environments: int = 1,
        horizon: int | None = None,
        settings: Mapping[str, Any] | None = None,
        features: FeatureFunction | None = None,
        debug_true_cost: bool = False,
        config: LearnerConfig | None = None,
    ) -> None:
        """`settings` change single fields of the preset by dotted name, as in {"policy.kl_weight": 0.1}.

        `features` is the linear cost's own feature function. `config` is everything resolved, in place of the names.
        """
        if config is None:
            chosen = {"environments": environments, "debug_true_cost": debug_true_cost, **(settings or {})}
            if features is not None:
                if cost != "linear":
                    raise InputError(f"a feature function is for the linear cost, not for '{cost}'")
                chosen = {"cost.features": "function", **chosen}
            config = make_config(policy, cost, preset, settings=chosen)
        self.config, self.seed = config, seed
        self._source, self._horizon = env, horizon
        self.envs = stepping(
            env, count=1 if isinstance(env, VectorEnv) else config.environments, seed=seed, horizon=horizon
        )
        spec = self.spec = self.envs.spec
        observation_space, action_space = _spaces(self.envs)
        self.demos = demos.check(observation_space=observation_space, action_space=action_space)
        self.expert = ExpertData(self.demos, spec, config.gamma)
        self.regret = RegretMeter(self.demos, spec=spec, environments=len(self.envs))
        shapes = Shapes.of(spec)
        self.cost_player = CostPlayer(config.cost_config, spec.observation_size, spec.action_size, function=features)
        everything = self.expert.pairs(np.arange(len(self.expert.time)), self._weigh)
        self.cost = self.cost_player.init(seeding.integer(seed, "cost-player"), everything)
        self._everything = jax.tree.map(lambda leaf: leaf[None], everything)
        relabel = recorded_cost if config.debug_true_cost else self.cost_player
        replay = config.replay_config
        cost_config = config.cost_config
        capacity = replay.capacity if replay else cost_config.window if cost_config.data == "window" else 1_000_000
        self.memory = Replay(capacity, spec.observation_size, spec.action_size)
        self.player: PolicyPlayer
        if replay is not None:
            policy_config: Any = config.policy_config
            self.player = OffPolicy(
                shapes, policy_config, replay, self.memory, seed=seed, relabel=relabel, expert_rows=self.expert.rows
            )
        else:
            policy_config = config.policy_config
            self.player = OnPolicy(shapes, policy_config, seed=seed, environments=len(self.envs), relabel=relabel)
        self.step = self.block_begun = self.goal = 0
        """Environment steps taken; those before the block at hand; those that `learn` was asked for."""
        self.seconds = 0.0
        self.cost_updates = 0
        self.metrics: dict[str, Any] = {}
        """The newest numbers of both players; device arrays until `numbers` reads them."""
        self.notes: dict[str, Any] = {}
        """What callbacks add to the next record."""
        self._action_rng = seeding.generator(seed, "actions")
        self._cost_rng = seeding.generator(seed, "cost-data")
        self._prediction_rng = seeding.generator(seed, "predictions")
        self._absorbing_masses: deque[float] = deque(maxlen=_REMEMBERED_EPISODES)
        self._runner: EpisodeRunner | None = None
        self._cloned = config.bc_config is None

    # ----- learning

    def learn(
        self,
        total_steps: int,
        *,
        callback: "Callback | Iterable[Callback] | None" = None,
        progress_bar: bool = False,
    ) -> Self:
        """Play on until `total_steps` environment steps have been taken in all; a second call goes on."""
        at_least("total_steps", total_steps, 1)
        self.goal = total_steps
        callbacks = [] if callback is None else [callback] if callable(callback) else list(callback)
        self.pretrain(progress_bar=progress_bar)
        with console.progress(self.spec.env_id, max(0, total_steps - self.step), enabled=progress_bar) as advance:
            goes_on = True
            while goes_on and self.step < total_steps:
                self.block_begun, begun = self.step, time.perf_counter()
                self._play_block(min(self.player.block, total_steps - self.step))
                self.seconds += time.perf_counter() - begun
                # every callback is asked, also when one of them says stop
                goes_on = False not in [called(self) for called in callbacks]
                advance(self.step - self.block_begun, self._note())
        self.player.settle()
        self.numbers()
        return self

    def _note(self) -> str:
        recent = self.envs.finished[-5:]
        return f"return {np.mean([value for value, _ in recent]):.0f}" if recent else ""

    def pretrain(self, *, progress_bar: bool = False) -> None:
        """Clone the expert's actions before the first step, if the configuration says so."""
        config = self.config.bc_config
        if self._cloned or config is None:
            return
        actor, _ = bc.clone(
            self.player.state.actor,
            self.demos,
            spec=self.spec,
            config=config,
            seed=self.seed,
            activation=self.player.actor.activation,
            progress_bar=progress_bar,
        )
        self.player.adopt(actor)
        self._cloned = True

    def _play_block(self, steps: int) -> None:
        before = self.step
        if self.step > 0:
            finished, under_way = self.metrics, self.player.improve(self.cost.view)
            self._read(finished)
            self.metrics = finished | under_way
        self._collect(steps)
        every = self.config.cost_config.update_every
        if not self.config.debug_true_cost and getattr(self.player, "ready", True):
            for _ in range(self.step // every - before // every):
                self._improve_cost()

    def _collect(self, steps: int) -> None:
        envs, player, memory = self.envs, self.player, self.memory
        begun = self.step
        for _ in range(-(-steps // len(envs))):
            times = np.array(envs.episode_lengths)
            try:
                step = envs.step(player.act(envs.observation, self._action_rng))
            except Exception:
                self._check_steps(begun)  # an observation before this step may be what broke it
                raise
            player.observe(step)
            self.regret.step(step.observation, step.action, step.terminated, step.truncated, step.valid)
            if step.valid.all():
                memory.add(step.observation, step.action, step.cost, step.next_observation, step.terminated, times)
            else:
                kept = step.valid
                memory.add(*(part[kept] for part in step[:5]), time=times[kept])
            self.step += int(step.valid.sum())
            for i in np.flatnonzero((step.terminated | step.truncated) & step.valid):
                mass = self.config.gamma ** (int(times[i]) + 1) if step.terminated[i] else 0.0
                self._absorbing_masses.append(mass)
        self._check_steps(begun)

    def _check_steps(self, begun: int) -> None:
        finite: np.ndarray = np.all(np.isfinite(self.memory.last(self.step - begun)), axis=1)
        if not finite.all():
            where = self.step - len(finite) + int(np.argmin(finite)) + 1
            raise DivergedError(f"{self.spec.env_id} gave an observation that is not finite at step {where}")

    def _improve_cost(self) -> None:
        config, rng, memory = self.config.cost_config, self._cost_rng, self.memory
        count, window = (config.minibatches, config.batch_size), memory.newest(config.window)
        if isinstance(config, LinearConfig):
            expert = self._everything
        else:
            expert = self.expert.pairs(rng.integers(0, len(self.expert.time), size=count), self._weigh)
        whole = isinstance(config, LinearConfig) and config.data == "window"
        if whole:  # a linear cost sees the means, of all that there is
            index = np.resize(window, (1, config.window))
        elif config.data == "window":
            index = rng.choice(window, size=count)
        else:
            index = rng.integers(0, len(memory), size=count)
        rows = memory.unpack(memory.rows[index])
        weight = self._weigh(memory.times[index])
        if whole:
            weight[:, len(window) :] = 0.0  # steps that are still to come
        learner = Pairs(rows.observation, rows.action, weight)
        mass = float(np.mean(self._absorbing_masses)) if self._absorbing_masses else 0.0
        self.cost, metrics = self.cost_player.update(self.cost, learner, expert, (mass, self.expert.absorbing_mass))
        self.metrics |= metrics
        self.cost_updates += 1

    def _weigh(self, times: np.ndarray) -> np.ndarray:
        if self.config.cost_config.discounted:
            return np.power(self.config.gamma, times, dtype=np.float32)
        return np.ones(times.shape, np.float32)

    def numbers(self) -> dict[str, float]:
        """Read the newest metrics (this waits for the block under way); a number that is not finite is an error."""
        return self._read(self.metrics)

    def _read(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        numbers = {name: float(value) for name, value in metrics.items()}
        bad = [name for name, value in numbers.items() if not np.isfinite(value)]
        if bad:
            raise DivergedError(
                f"{', '.join(bad)} became infinite or NaN by step {self.step}: lower the learning rate, or resume the "
                "last checkpoint with another seed"
            )
        return numbers

    def record(self) -> dict[str, Any]:
        """Say what happened since the last record: the behaviour's episodes, callbacks' notes, the players' numbers."""
        episodes, self.envs.finished = self.envs.finished, []
        returns, lengths = zip(*episodes, strict=True) if episodes else ((), ())
        notes, self.notes = self.notes, {}
        return {
            "step": self.step,
            "seconds": self.seconds,
            "return": float(np.mean(returns)) if returns else None,
            "length": float(np.mean(lengths)) if lengths else None,
            **notes,
            "al_regret_l2": self.regret.l2,
            "al_regret_simplex": self.regret.simplex,
            **self.numbers(),
        }

    # ----- acting

    def policy(self) -> Policy:
        """Return the current policy alone, to act with or to save."""
        self.player.settle()
        return Policy(
            self.spec,
            self.player.actor.layers,
            activation=self.player.actor.activation,
            info={"step": self.step, "seed": self.seed, "algorithm": self.algorithm},
        )

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, None]:
        """Return (action, no state) for an observation or a batch of them, in the environment's own units."""
        policy = self.policy()
        policy.rng = self._prediction_rng
        return policy.predict(flat_observations(_spaces(self.envs)[0], observation), deterministic)

    def evaluate(self, *, episodes: int = 10, deterministic: bool = True) -> Evaluation:
        """Run whole episodes on environments apart from training's, from the same initial states each time."""
        at_least("episodes", episodes, 1)
        if isinstance(self._source, (gym.Env, VectorEnv)):
            raise InputError("evaluation needs environments of its own: give the environment's id or a function")
        if self._runner is None or len(self._runner.envs) != min(episodes, 10):
            self._runner = EpisodeRunner(self._source, parallel=min(episodes, 10), horizon=self._horizon)
        policy = self.policy()
        act = policy.act if deterministic else policy.sample
        return self._runner.evaluate(act, episode_seeds(self.seed, "evaluation", episodes))

    # ----- saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file: learning goes on from it bit for bit."""
        self.player.settle()
        policy_arrays, policy_info = self.player.snapshot()
        rows, counters = self.memory.state()
        simulators = self.envs.state()
        arrays = {
            **policy_arrays,
            **checkpoint.named(self.cost, "cost"),
            **prefixed("memory", rows),
            **prefixed("regret", self.regret.state()),
            **prefixed("envs", simulators[0] if simulators else {}),
            **pack_demos(self.demos),
        }
        info = {
            "algorithm": self.algorithm,
            "config": self.config.to_json(),
            "seed": self.seed,
            "environment": self.spec.to_json(),
            "horizon": self._horizon,
            "step": self.step,
            "seconds": self.seconds,
            "metrics": self.numbers(),
            "cost_updates": self.cost_updates,
            "cloned": self._cloned,
            "policy": policy_info,
            "memory": counters,
            "envs": simulators[1] if simulators else None,
            "action_rng": self._action_rng.bit_generator.state,
            "cost_rng": self._cost_rng.bit_generator.state,
            "absorbing_masses": list(self._absorbing_masses),
        }
        checkpoint.save(path, arrays, info, kind=KIND)
        if simulators is None:
            self._restart()

    def _restart(self) -> None:
        """Where a simulator's state cannot be saved, episodes end with a checkpoint, in a resumed run and in others."""
        self.envs.restart(self.step)
        self.regret.abandon()

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take back what `save` wrote."""
        arrays, info = checkpoint.load(path, kind=KIND, mapped=["memory/rows"])
        self._restore(arrays, info)

    def _restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        self.player.restore(arrays, info["policy"])
        self.cost = checkpoint.restored(self.cost, arrays, "cost")
        self.memory.restore(below("memory", arrays), info["memory"])
        self.regret.restore(below("regret", arrays))
        self.step, self.seconds = int(info["step"]), float(info["seconds"])
        self.cost_updates, self._cloned = int(info["cost_updates"]), bool(info["cloned"])
        self._action_rng.bit_generator.state = info["action_rng"]
        self._cost_rng.bit_generator.state = info["cost_rng"]
        self._absorbing_masses = deque(info["absorbing_masses"], maxlen=_REMEMBERED_EPISODES)
        self.metrics = dict(info["metrics"])
        if info["envs"] is not None:
            self.envs.restore(below("envs", arrays), info["envs"])
        else:
            self._restart()
            self.envs.finished = []

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: EnvSource | gym.Env | VectorEnv | None = None,
        *,
        features: FeatureFunction | None = None,
    ) -> Self:
        """Read what `save` wrote, with the environment's id as it was or an environment given anew."""
        arrays, info = checkpoint.load(path, kind=KIND, mapped=["memory/rows"])
        spec = EnvSpec.from_json(info["environment"])
        learner = cls(
            spec.env_id if env is None else env,
            unpack_demos(arrays, spec.env_id),
            config=LearnerConfig.from_json(info["config"]),
            seed=info["seed"],
            horizon=info["horizon"],
            features=features,
        )
        learner._restore(arrays, info)
        return learner

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
        if self._runner is not None:
            self._runner.close()


class GAIL(OAL):
    """Generative adversarial imitation learning: the same loop with a discriminator as the cost player."""

    algorithm = "GAIL"

    def __init__(
        self, env: EnvSource | gym.Env | VectorEnv, demos: Demos, policy: str = "mdpo", **options: Any
    ) -> None:
        super().__init__(env, demos, policy, "gail", **options)
