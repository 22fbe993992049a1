"""Algorithm 1: one loop over any policy player and any cost player.

    repeat:
        play the policy and keep its steps
        policy player:  π <- argmin  <c, π> + (1/t) d(π, π_old)
        cost player:    c <- argmax  <c, μ_π - μ_E> - (1/t_c) d(c, c_old)

The loop knows the players by what they can do (`oal.deep.players`): it steps the environments, hands steps and costs to
the players, and keeps the books. Without a cost player it trains an expert on the environment's own cost.
"""

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from oal.base import checkpoint, console, seeding
from oal.base.arrays import below, prefixed
from oal.base.limits import damage
from oal.deep import bc, presets
from oal.deep.al_regret import RegretMeter
from oal.deep.certificate import imitation_distance
from oal.deep.costs.linear import FeatureFunction
from oal.deep.normaliser import Normaliser
from oal.deep.players import CostPlayer, Game, PolicyPlayer, PricesBySource, Shapes
from oal.deep.policy import Policy
from oal.deep.presets import CostName, LearnerConfig, PolicyName, PresetName
from oal.deep.replay import MAX_ENVIRONMENTS, ExpertData, Replay
from oal.demos import Demos
from oal.demos.pack import pack, unpack
from oal.demos.pairs import encode
from oal.envs import EnvSource, EnvSpec, EpisodeRunner, Evaluation, episode_seeds, stepping
from oal.errors import InputError, at_least, at_most

KIND = "learner"
_REMEMBERED_EPISODES = 20
"""Episodes over which the learner's absorbing mass is averaged."""

Callback = Callable[["OAL"], bool | None]
"""Called after every block; returning False stops learning."""


class DivergedError(InputError):
    """A number that learning depends on is no longer finite."""


class Scored(NamedTuple):
    """The newest evaluation, and after how many steps it was made."""

    step: int
    evaluation: Evaluation


class OAL:
    """Online apprenticeship learning: a policy as good as the demonstrated one for every cost of a class.

    A policy player (mdpo, sac, mdpo-on, trpo) against a cost player (neural, linear, gail), by mirror
    descent; each is a name, or an object with the methods of `oal.deep.players`.
    """

    def __init__(
        self,
        env: EnvSource | gym.Env | VectorEnv,
        demos: Demos | None,
        policy: PolicyName | PolicyPlayer = "mdpo",
        cost: CostName | CostPlayer | None = "neural",
        *,
        preset: PresetName = "default",
        seed: int = 0,
        environments: int = 1,
        horizon: int | None = None,
        settings: Mapping[str, Any] | None = None,
        features: FeatureFunction | None = None,
        config: LearnerConfig | None = None,
    ) -> None:
        """`settings` change single fields of the preset by dotted name, as in {"policy.kl_weight": 0.1}.

        `features` is the linear cost's own feature function. `cost=None` pays the environment's own cost, and needs no
        demonstrations. `config` is everything resolved, in place of the names.
        """
        if config is None:
            chosen = {"environments": environments, **(settings or {})}
            if features is not None and cost == "linear":
                chosen = {"cost.features": "function", **chosen}
            config = presets.preset(policy, cost, preset, settings=chosen)
        self.config, self.seed = config, seed
        self._source, self._horizon = env, horizon
        self.envs = stepping(
            env, count=1 if isinstance(env, VectorEnv) else config.environments, seed=seed, horizon=horizon
        )
        self.envs.needs_reward = config.cost is None
        envs, spec = self.envs, self.envs.spec
        at_most("environments", len(envs), MAX_ENVIRONMENTS)
        self.spec = spec
        if demos is None and config.cost is not None:
            raise InputError("there are no demonstrations: give some, or cost=None for the environment's own cost")
        self.demos = (
            None
            if demos is None
            else demos.check(observation_space=envs.observation_space, action_space=envs.action_space)
        )
        self._episodes = () if self.demos is None else encode(self.demos, spec)
        rewards = None if self.demos is None else self.demos.rewards
        self.rewarded = rewards is None or bool(rewards.any())
        """Whether the environment's rewards say anything: where they do not, no return is shown or chosen by."""
        self.regret = RegretMeter(self._episodes, spec=spec, environments=len(self.envs)) if self._episodes else None
        self.normaliser = Normaliser.of(self._episodes) if config.normalise and self._episodes else None
        """What stands before both players; None: they see observations as they are."""
        if self.normaliser is not None:
            self._episodes, features = self.normaliser.episodes(self._episodes), self.normaliser.undone(features)
        self.player, cost_player = presets.players(config, policy, cost, features=features)
        self.cost_player = cost_player.sized(spec.observation_size, spec.action_size, self.player.gamma)
        self.algorithm = presets.algorithm(self.cost_player)
        self.expert = ExpertData(self._episodes, spec, self.player.gamma)
        self.prices = self.cost_player.prices if isinstance(self.cost_player, PricesBySource) else None
        """What is recorded as the cost of a step; None: the environment's own."""
        if self.prices is not None:
            if not len(self.expert.rows):
                raise InputError(
                    f"the cost '{self.cost_player.name}' prices the expert's transitions, and the demonstrations hold "
                    "none (subsampled ones do not): give whole ones, or choose another cost"
                )
            self.expert.price(self.prices.expert)
        everything = self.expert.pairs(None, self.cost_player.weigh)
        self.cost = self.cost_player.init(seeding.integer(seed, "cost-player"), everything, self.expert.ended)
        remembered = self.player.remembers
        if remembered is None:  # a block at least, whose steps are looked at when it is over
            remembered = max(self.cost_player.remembers, self.player.block + len(envs))
        self.memory = Replay(remembered, spec.observation_size, spec.action_size)
        self.player.begin(Game(Shapes.of(spec), seed, len(self.envs), self.memory, self.cost_player, self.expert.rows))
        self.step = self.block_begun = self.goal = 0
        """Environment steps taken; those before the block at hand; those that `learn` was asked for."""
        self._worked = 0
        """Environment steps that the policy player has had its updates for."""
        self.seconds = 0.0
        self.cost_updates = 0
        self.metrics: dict[str, Any] = {}
        """The newest numbers of both players; device arrays until `numbers` reads them."""
        self.scored: Scored | None = None
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
        """Play on until `total_steps` environment steps have been taken in all; a second call goes on.

        Stable-Baselines3 counts otherwise: its learn(n) takes n steps more, from 0 or, with
        reset_num_timesteps=False, from where it was. That is learn(model.step + n) here; nothing is ever reset.
        """
        at_least("total_steps", total_steps, 1)
        self.goal = total_steps
        callbacks = [] if callback is None else [callback] if callable(callback) else list(callback)
        self.pretrain(progress_bar=progress_bar)
        if self.step >= total_steps:
            warnings.warn(_nothing_left(self.step, total_steps), stacklevel=2)
        with console.progress("learning", max(0, total_steps - self.step), enabled=progress_bar) as advance:
            goes_on = True
            while goes_on and self.step < total_steps:
                self.block_begun, begun = self.step, time.perf_counter()
                self._play_block(min(self.player.block, total_steps - self.step))
                self.seconds += time.perf_counter() - begun
                # every callback is asked, also when one of them says stop
                goes_on = False not in [called(self) for called in callbacks]
                advance(self.step - self.block_begun, self._progress_note())
        self.player.settle()
        self.numbers()
        return self

    def passed(self, every: int) -> bool:
        """Whether the last block passed a multiple of so many steps."""
        return self.block_begun // every != self.step // every

    def _progress_note(self) -> str:
        if self.scored is not None and self.scored.evaluation.distance is not None:
            return f"distance to the expert {self.scored.evaluation.distance:.3f}"
        recent = self.envs.finished[-5:]
        value = self._mean_return([value for value, _ in recent])
        if not recent or value is not None:
            return "" if value is None else f"return {value:.0f}"
        return f"length {np.mean([length for _, length in recent]):.0f}"

    def _mean_return(self, returns: Sequence[float]) -> float | None:
        """Return the mean, or None where there is nothing, or no reward, to take it of."""
        return _known(float(np.mean(returns))) if returns and self.rewarded else None

    def pretrain(self, *, progress_bar: bool = False) -> bool:
        """Clone the expert's actions before the first step, if the configuration says so; return whether it did."""
        config = self.config.bc_config
        if self._cloned or config is None:
            return False
        if self.demos is None:
            raise InputError("there are no demonstrations to clone: give some, or leave out the bc settings")
        # the first member starts from the player's own weights, the others from weights of their own
        hidden = [layer.bias.size for layer in self.player.actor.layers[:-1]]
        others = bc.start_members(self.spec, hidden, config.members, self.seed)[1:]
        members, _ = bc.clone_members(
            [self.player.actor.layers, *others],
            self._episodes,
            spec=self.spec,
            config=config,
            seed=self.seed,
            activation=self.player.actor.activation,
            progress_bar=progress_bar,
        )
        self.player.adopt(members)
        self._cloned = True
        return True

    def _play_block(self, steps: int) -> None:
        before = self.step
        # what was cut short by the end of `learn` waits for the steps that a block's updates are for
        if self.step - self._worked >= self.player.block:
            self._worked += self.player.block
            finished, under_way = self.metrics, self.player.work_ahead(self.cost.view)
            self._read(finished)
            self.metrics = finished | under_way
        self._collect(steps)
        self.metrics |= self.player.improve(self.cost.view)
        if self.player.ready:
            every = self.cost_player.update_every
            for _ in range(self.step // every - before // every):
                self._improve_cost()

    def _collect(self, steps: int) -> None:
        envs, player, memory = self.envs, self.player, self.memory
        begun, sources = self.step, np.arange(len(envs))
        for _ in range(-(-steps // len(envs))):
            times = np.array(envs.episode_lengths)
            try:
                step = envs.step(player.act(self._seen(envs.observation), self._action_rng))
            except Exception:
                self._check_steps(begun)  # an observation before this step may be what broke it
                raise
            if self.regret is not None:
                self.regret.step(step.observation, step.action, step.terminated, step.truncated, step.valid)
            if self.normaliser is not None:
                before, after = (self.normaliser(seen) for seen in (step.observation, step.next_observation))
                step = step._replace(observation=before, next_observation=after)
            if self.prices is not None:
                step = step._replace(cost=np.full_like(step.cost, self.prices.learner))
            player.observe(step)
            if step.valid.all():
                memory.add(*step[:5], time=times, source=sources)
            else:
                kept = step.valid
                memory.add(*(part[kept] for part in step[:5]), time=times[kept], source=sources[kept])
            self.step += int(step.valid.sum())
            for i in np.flatnonzero((step.terminated | step.truncated) & step.valid):
                mass = player.gamma ** (int(times[i]) + 1) if step.terminated[i] else 0.0
                self._absorbing_masses.append(mass)
        self._check_steps(begun)

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        return observation if self.normaliser is None else self.normaliser(observation)

    def _check_steps(self, begun: int) -> None:
        finite: np.ndarray = np.all(np.isfinite(self.memory.last(self.step - begun)), axis=1)
        if not finite.all():
            where = self.step - len(finite) + int(np.argmin(finite)) + 1
            raise DivergedError(f"{self.spec.env_id} gave an observation that is not finite at step {where}")

    def _improve_cost(self) -> None:
        learner, expert = self.cost_player.draw(self.memory, self.expert, self._cost_rng)
        mass = float(np.mean(self._absorbing_masses)) if self._absorbing_masses else 0.0
        self.cost, metrics = self.cost_player.update(self.cost, learner, expert, (mass, self.expert.absorbing_mass))
        self.metrics |= metrics
        self.cost_updates += 1

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
        """Say what happened since the last record: the behaviour's episodes and the players' numbers."""
        episodes, self.envs.finished = self.envs.finished, []
        returns, lengths = zip(*episodes, strict=True) if episodes else ((), ())
        regret = {}
        if self.regret is not None:
            regret = {"al_regret_l2": self.regret.l2, "al_regret_simplex": self.regret.simplex}
        return {
            "step": self.step,
            "seconds": self.seconds,
            "return": self._mean_return(returns),
            "length": float(np.mean(lengths)) if lengths else None,
            **regret,
            **self.numbers(),
        }

    # ----- acting

    def policy(self) -> Policy:
        """Return the current policy alone, to act with or to save."""
        self.player.settle()
        return Policy(
            self.spec,
            self.player.actor.layers,
            normaliser=self.normaliser,
            activation=self.player.actor.activation,
            info={"step": self.step, "seed": self.seed, "algorithm": self.algorithm},
        )

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, None]:
        """Return (action, no state) for an observation or a batch of them, in the environment's own units."""
        policy = self.policy()
        policy.rng = self._prediction_rng
        return policy.predict(observation, state, episode_start, deterministic)

    def evaluate(self, *, episodes: int = 10, deterministic: bool = True) -> Evaluation:
        """Run whole episodes on environments apart from training's, from the same initial states each time.

        Where there are demonstrations, the evaluation says how far from them the episodes are.
        """
        at_least("episodes", episodes, 1)
        if isinstance(self._source, (gym.Env, VectorEnv)):
            raise InputError("evaluation needs environments of its own: give the environment's id or a function")
        if self._runner is None or len(self._runner.envs) != min(episodes, 10):
            self._runner = EpisodeRunner(self._source, parallel=min(episodes, 10), horizon=self._horizon)
        policy = self.policy()
        act = policy.act if deterministic else policy.sample
        ran = self._runner.run(act, episode_seeds(self.seed, "evaluation", episodes))
        distance = None if self.demos is None else imitation_distance(ran, self.demos, spec=self.spec, seed=self.seed)
        return Evaluation.of(ran, distance)

    # ----- saving

    def save(self, path: str | os.PathLike[str], *, keep_previous: bool = False) -> None:
        """Write everything to one file: learning goes on from it bit for bit.

        `keep_previous` keeps the file that was there under another name; `load` takes it if the new one is damaged.
        """
        self.player.settle()
        policy_arrays, policy_info = self.player.snapshot()
        rows, counters = self.memory.state()
        simulators = self.envs.state()
        arrays = {
            **policy_arrays,
            **checkpoint.named(self.cost, "cost"),
            **prefixed("memory", rows),
            **prefixed("regret", {} if self.regret is None else self.regret.state()),
            **prefixed("envs", simulators[0] if simulators else {}),
            **prefixed("demos", {} if self.demos is None else pack(self.demos)),
        }
        info = {
            "algorithm": self.algorithm,
            "config": self.config.to_json(),
            "seed": self.seed,
            "environment": self.spec.to_json(),
            "horizon": self._horizon,
            "step": self.step,
            "worked": self._worked,
            "seconds": self.seconds,
            "metrics": self.numbers(),
            "cost_updates": self.cost_updates,
            "cloned": self._cloned,
            "policy": policy_info,
            "memory": counters,
            "envs": simulators[1] if simulators else None,
            # where the simulators' state is not saved; without rewards a return is NaN, for which JSON has no word
            "finished": None if simulators else [(_known(total), length) for total, length in self.envs.finished],
            "action_rng": self._action_rng.bit_generator.state,
            "cost_rng": self._cost_rng.bit_generator.state,
            "absorbing_masses": list(self._absorbing_masses),
        }
        checkpoint.save(path, arrays, info, kind=KIND, keep_previous=keep_previous)
        if simulators is None:
            self._restart()

    def _restart(self) -> None:
        """Where a simulator's state cannot be saved, episodes end with a checkpoint, in a resumed run and in others."""
        self.envs.restart(self.step)
        if self.regret is not None:
            self.regret.abandon()

    def restore(self, path: str | os.PathLike[str], *, inside: str | os.PathLike[str] | None = None) -> None:
        """Take back what `save` wrote; `inside` is the run folder that the file must not lead out of."""
        arrays, info = checkpoint.load_newest(path, kind=KIND, mapped=["memory/rows"], inside=inside)
        with damage(f"{path}: not a checkpoint of this learner, or damaged"):
            self._restore(arrays, info)

    def _restore(self, arrays: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> None:
        self.player.restore(arrays, info["policy"])
        self.cost = checkpoint.restored(self.cost, arrays, "cost")
        self.memory.restore(below("memory", arrays), info["memory"])
        if self.regret is not None:
            self.regret.restore(below("regret", arrays))
        self.step, self.seconds = int(info["step"]), float(info["seconds"])
        self._worked = int(info.get("worked", max(0, self.step - self.player.block)))
        self.cost_updates, self._cloned = int(info["cost_updates"]), bool(info["cloned"])
        self._action_rng.bit_generator.state = info["action_rng"]
        self._cost_rng.bit_generator.state = info["cost_rng"]
        self._absorbing_masses = deque(info["absorbing_masses"], maxlen=_REMEMBERED_EPISODES)
        self.metrics = dict(info["metrics"])
        if info["envs"] is not None:
            self.envs.restore(below("envs", arrays), info["envs"])
        else:
            self._restart()
            finished = info.get("finished") or []
            self.envs.finished = [(np.nan if total is None else float(total), int(n)) for total, n in finished]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        env: EnvSource | gym.Env | VectorEnv | None = None,
        *,
        policy: str | PolicyPlayer = "",
        cost: str | CostPlayer | None = "",
        features: FeatureFunction | None = None,
        inside: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Read what `save` wrote, with the environment's id as it was or an environment given anew.

        Players that were objects, and a feature function, are given again. `inside` is as in `restore`.
        """
        arrays, info = checkpoint.load_newest(path, kind=KIND, mapped=["memory/rows"], inside=inside)
        with damage(f"{path}: not a checkpoint of a learner, or damaged"):
            spec, config = EnvSpec.from_json(info["environment"]), LearnerConfig.from_json(info["config"])
            packed = below("demos", arrays)
            learner = cls(
                spec.env_id if env is None else env,
                unpack(packed, spec.env_id) if packed else None,
                policy,  # pyright: ignore[reportArgumentType]
                cost,  # pyright: ignore[reportArgumentType]
                config=config,
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


def _known(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _nothing_left(step: int, total_steps: int) -> str:
    return (
        f"nothing is left to learn: {step:,} environment steps have been taken, and learn({total_steps}) asks for "
        f"{total_steps:,} in all; for {total_steps:,} more, say learn({step + total_steps})"
    )


class GAIL(OAL):
    """Generative adversarial imitation learning: the same loop with a discriminator as the cost player."""

    def __init__(
        self,
        env: EnvSource | gym.Env | VectorEnv,
        demos: Demos,
        policy: PolicyName | PolicyPlayer = "mdpo",
        cost: CostName | CostPlayer | None = "gail",
        **options: Any,
    ) -> None:
        super().__init__(env, demos, policy, cost, **options)
