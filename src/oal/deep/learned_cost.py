"""A learned cost alone: call it on arrays, put it around an environment as its reward, look at it, save and load it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv

from oal.base import checkpoint, files, jsontext
from oal.base import config as configs
from oal.base.limits import damage
from oal.deep.costs import COSTS, CostBase, CostView, FeatureFunction, LinearConfig, NetworkCost, cost_player
from oal.deep.normaliser import KNEE, Normaliser
from oal.deep.replay import Pairs
from oal.envs import ActionCodec, Envs, EnvSpec, bootstrap_target, describe, flattener
from oal.envs.names import input_names
from oal.errors import InputError, choice

if TYPE_CHECKING:
    from jaxtyping import Float, Float32

    from oal.deep.loop import OAL

KIND = "cost"
ABSORBING = ("shift", "charge", "ignore")
_LARGEST_BATCH = 8_192
"""Larger batches are cut up, so that few sizes are ever compiled."""
_SHOWN_WEIGHTS = 40
_SHOWN_INPUTS = 6
_BASE_PAIRS = 128
"""Pairs over which a network's cost is averaged while one input moves."""


class LearnedCost:
    """What a cost player has learned: c(observation, action), and the cost of the absorbing state.

    Costs are in the units that the policy pays: standardised and clipped as the player's configuration says.
    """

    def __init__(
        self,
        player: CostBase,
        view: CostView,
        spec: EnvSpec,
        gamma: float,
        info: Mapping[str, Any] | None = None,
        *,
        names: Sequence[str] | None = None,
        normaliser: Normaliser | None = None,
    ) -> None:
        """`names` are those of the inputs, observation then encoded action; `input_names` finds them.

        `normaliser` is what stood before the cost while it learned.
        """
        sizes = (player.observation_size, player.action_size)
        if sizes != (spec.observation_size, spec.action_size):
            raise InputError(
                f"the cost takes observations and actions of {sizes[0]} and {sizes[1]} numbers, {spec.env_id} has "
                f"{spec.observation_size} and {spec.action_size}"
            )
        if not 0.0 <= gamma < 1.0:
            raise InputError(f"gamma is {gamma}: it must lie in [0, 1)")
        self.player, self.spec, self.gamma = player, spec, gamma
        # copies: the learner goes on with its own
        self.view: CostView = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), view)
        self.info, self.normaliser = dict(info or {}), normaliser
        self.names = tuple(input_names(spec) if names is None else names)
        if len(self.names) != spec.observation_size + spec.action_size:
            raise InputError(
                f"{len(self.names)} names are given for {spec.observation_size + spec.action_size} inputs of the cost"
            )
        self._codec = ActionCodec(spec)

    @classmethod
    def of(cls, learner: "OAL") -> "LearnedCost":
        """Take the cost out of a learner."""
        envs, player = learner.envs, learner.cost_player
        if not isinstance(player, CostBase):
            raise InputError(f"the cost player '{player.name}' is not one of oal's: only these can be saved alone")
        return cls(
            player,
            learner.cost.view,
            learner.spec,
            learner.player.gamma,
            {"step": learner.step, "seed": learner.seed, "algorithm": learner.algorithm},
            names=input_names(learner.spec, envs.envs[0] if isinstance(envs, Envs) else None),
            normaliser=learner.normaliser,
        )

    # ----- costs

    @property
    def kind(self) -> str:
        """Return the name of the cost player."""
        return self.player.name

    @property
    def absorbing(self) -> float:
        """Return the cost of each step after a true termination."""
        return float(self.player.absorbing_cost(self.view))

    def __call__(self, observations: Any, actions: Any) -> np.ndarray:
        """Costs [n] of observations and actions [n, ...] as the environment has them; or of one pair.

        An action beyond its bounds costs what the bound does: the cost knows nothing out there.
        """
        observations, actions = self.spec.flat(observations), np.asarray(actions)
        if observations.ndim == 1 and len(observations) == self.spec.observation_size:
            return self(observations[None], actions[None])[0]
        if len(observations) == 0:
            return np.zeros(0, np.float32)
        encoded = self._codec.encode(actions)
        return self.encoded(observations, encoded if self.spec.kind == "discrete" else np.clip(encoded, -1.0, 1.0))

    def encoded(
        self, observations: "Float[np.ndarray, 'N O']", actions: "Float[np.ndarray, 'N A']"
    ) -> "Float32[np.ndarray, 'N']":
        """Costs of flat observations and encoded actions."""
        count = len(observations)
        if count == 0:
            return np.zeros(0, np.float32)
        observations = np.asarray(observations, np.float32).reshape(count, -1)
        for name, array, size in (
            ("observations", observations, self.spec.observation_size),
            ("actions", actions, self.spec.action_size),
        ):
            if array.shape != (count, size):
                raise InputError(f"{name} have the shape {array.shape}: {self.spec.env_id} needs {(count, size)}")
        if self.normaliser is not None:
            observations = self.normaliser(observations)
        compiled = _compiled(self.player)
        costs = np.empty(count, np.float32)
        for start in range(0, count, _LARGEST_BATCH):
            parts = [array[start : start + _LARGEST_BATCH] for array in (observations, actions)]
            size = len(parts[0])
            # few sizes are compiled: the powers of two
            room = (1 << (size - 1).bit_length()) - size
            parts = [np.pad(np.asarray(part, np.float32), ((0, room), (0, 0))) for part in parts]
            costs[start : start + size] = np.asarray(compiled(self.view, *parts))[:size]
        return costs

    def reward_wrapper(
        self, env: gym.Env, *, absorbing: Literal["shift", "charge", "ignore"] = "shift"
    ) -> "CostReward":
        """Wrap one environment so that its reward is minus this cost; see `CostReward` for `absorbing`."""
        return CostReward(env, self, absorbing=absorbing)

    # ----- looking at it

    def weights(self) -> list[tuple[str, float]]:
        """Return (name, weight) of every feature of a linear cost; a feature is a standardised input unless said."""
        config = self.player.config
        if not isinstance(config, LinearConfig):
            raise InputError(f"a {self.kind} cost is a network and has no weight per feature: plot it, or call it")
        values = np.asarray(self.view.params, np.float64).tolist()
        if config.features == "inputs":
            return list(zip(self.names[: len(values)], values, strict=True))
        stem = "fourier" if config.features == "fourier" else "feature"
        return [(f"{stem}[{i}]", value) for i, value in enumerate(values)]

    def to_json(self) -> dict[str, Any]:
        """Describe a linear cost: cost = gain · clip((Σ weight · (input - mean) / std - centre) / scale).

        Mean and std are there when the features are the inputs; actions enter encoded (see `oal.envs.ActionCodec`).
        Where `normaliser` is there too, an observation that lies z of its standard deviations from its mean, with
        |z| above k, its `knee`, enters as if it lay ±k (1 + log(|z| / k)) of them away.
        """
        weights, config, view = self.weights(), self.player.config, self.view
        assert isinstance(config, LinearConfig)
        described = {
            "environment": self.spec.env_id,
            "features": [name for name, _ in weights],
            "weights": [weight for _, weight in weights],
            "absorbing": self.absorbing,
            "gamma": self.gamma,
            "centre": float(view.centre),
            "scale": float(view.scale),
            "gain": float(view.gain),
            "clip": config.clip,
        }
        if config.features == "inputs":
            described |= {name: part.tolist() for name, part in zip(("mean", "std"), self._scaling(), strict=True)}
            if self.normaliser is not None:
                parts = {"mean": self.normaliser.mean, "std": self.normaliser.std}
                described["normaliser"] = {"knee": KNEE} | {name: part.tolist() for name, part in parts.items()}
        return described

    def _scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the inputs [D], in the environment's units and encoded actions."""
        mean, std = np.asarray(self.view.mean, np.float64), np.asarray(self.view.std, np.float64)
        if self.normaliser is not None:
            size = self.spec.observation_size
            mean[:size] = self.normaliser.mean + self.normaliser.std * mean[:size]
            std[:size] *= self.normaliser.std
        return mean, std

    def summary(self) -> dict[str, str]:
        """Say in a few lines what this cost is."""
        config, info = self.player.config, self.info
        inputs = "observation and action" if config.inputs == "pairs" else "observation"
        if isinstance(config, LinearConfig):
            what = f"linear, {len(self.view.params)} features ({config.features}), {config.geometry}"
        else:
            activation = "tanh" if isinstance(self.player, NetworkCost) else "ReLU"
            what = f"{self.kind} network {'-'.join(map(str, config.hidden))} {activation}"
        lines = {"environment": self.spec.env_id, "cost": what, "of": inputs}
        if isinstance(info.get("step"), int):
            lines["learned in"] = f"{info['step']:,} steps"
        clip = "" if config.clip is None else f", cut to ±{config.clip:g}"
        if config.scale != "own":
            lines["standardised"] = f"centre {float(self.view.centre):.4g}, scale {float(self.view.scale):.4g}{clip}"
        value = self.absorbing / (1.0 - self.gamma)
        lines["absorbing"] = f"{self.absorbing:.4g} per step, {value:.4g} in all at discount {self.gamma:g}"
        return lines

    def plot(self, path: str | os.PathLike[str], *, observations: Any = None, actions: Any = None) -> list[Path]:
        """Draw the cost as PNG and SVG; return the two files.

        Linear: a bar per named feature. Network: the mean cost of the pairs given (the expert's, in the environment's
        units) while one input moves through their quantiles; without pairs, around the mean of all training data.
        """
        from oal.base import plots

        stem = str(path).removesuffix(".png").removesuffix(".svg")
        if isinstance(self.player.config, LinearConfig):
            weights = self.weights()
            largest = sorted(weights, key=lambda item: -abs(item[1]))[:_SHOWN_WEIGHTS]
            kept = [item for item in weights if item in largest] if len(weights) > len(largest) else weights
            with plots.picture(stem, width=5.5, height=1.0 + 0.2 * len(kept)) as axes:
                axes.barh(
                    [name for name, _ in kept],
                    [weight for _, weight in kept],
                    color=[plots.COLOURS[1] if weight > 0 else plots.COLOURS[0] for _, weight in kept],
                )
                axes.axvline(0.0, color="black", linewidth=0.8)
                axes.invert_yaxis()
                axes.margins(y=0.01)
                axes.set_xlabel("weight (a positive one makes large values dear)")
                of = f", largest {len(kept)} of {len(weights)}" if len(kept) < len(weights) else ""
                axes.set_title(f"{self.spec.env_id}: learned cost{of}")
        else:
            places, curves = self._dependence(observations, actions)
            with plots.picture(stem, width=6.5) as axes:
                for i in np.argsort(-np.ptp(curves, axis=1), kind="stable")[:_SHOWN_INPUTS]:
                    axes.plot(places, curves[i], label=self.names[i])
                axes.set_xlabel(
                    "distance from the mean in standard deviations"
                    if observations is None
                    else "quantile of the input among the pairs"
                )
                axes.set_ylabel("mean cost")
                axes.set_title(f"{self.spec.env_id}: learned cost, one input moved at a time")
                axes.legend(title="most influential inputs", loc="center left", bbox_to_anchor=(1.0, 0.5))
        return [Path(f"{stem}{suffix}") for suffix in (".png", ".svg")]

    def _dependence(self, observations: Any, actions: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return places [G] and mean costs [D, G] with each input in turn moved through its range."""
        size = min(self.player.input_size, len(self.names))
        if observations is None:
            mean, std = (part[:size] for part in self._scaling())
            places = np.linspace(-2.0, 2.0, 21)
            values = mean[:, None] + std[:, None] * places
            base = np.zeros((1, len(self.names)), np.float32)
            base[:, :size] = mean
        else:
            places = np.linspace(0.05, 0.95, 19)
            observations = np.asarray(observations, np.float32).reshape(len(observations), -1)
            base = np.concatenate([observations, self._codec.encode(actions)], axis=1)
            values = np.quantile(base[:, :size], places, axis=0).T
            base = base[:: max(1, len(base) // _BASE_PAIRS)]
        curves = np.empty((size, len(places)))
        for i in range(size):
            moved = np.repeat(base[None], len(places), axis=0)
            moved[:, :, i] = values[i][:, None]
            observed, action = np.split(moved.reshape(-1, base.shape[1]), [self.spec.observation_size], axis=1)
            curves[i] = self.encoded(observed, action).reshape(len(places), -1).mean(axis=1)
        return places, curves

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the cost as .safetensors (any cost), .json or .csv (linear costs)."""
        path = Path(path)
        suffix = choice(f"{path}: the file type", path.suffix, (".safetensors", ".json", ".csv"))
        if suffix == ".safetensors":
            self.save(path)
        elif suffix == ".json":
            files.write_json(path, self.to_json())
        else:
            rows = [*self.weights(), ("absorbing", self.absorbing)]
            files.write_csv(path, [{"feature": name, "weight": weight} for name, weight in rows])

    # ----- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but a user's feature function to one safetensors file."""
        checkpoint.save(
            path,
            checkpoint.named(self.view, "view") | ({} if self.normaliser is None else self.normaliser.arrays()),
            {
                "cost": self.kind,
                "config": asdict(self.player.config),
                "environment": self.spec.to_json(),
                "gamma": self.gamma,
                "names": list(self.names),
                "info": self.info,
            },
            kind=KIND,
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        features: FeatureFunction | None = None,
        inside: str | os.PathLike[str] | None = None,
    ) -> "LearnedCost":
        """Read a cost that `save` wrote; one of a user's features needs the feature function again.

        `inside` is the run folder that the file must not lead out of.
        """
        arrays, saved = checkpoint.load(path, kind=KIND, inside=inside)
        with damage(f"{path}: the cost is not complete, or damaged"):
            return cls._loaded(str(path), arrays, saved, features)

    @classmethod
    def _loaded(
        cls, path: str, arrays: Mapping[str, np.ndarray], saved: Mapping[str, Any], features: FeatureFunction | None
    ) -> "LearnedCost":
        try:
            kind = COSTS[choice("cost", saved["cost"], COSTS)]
            config = configs.build(kind.Config, saved["config"], name="cost")
            spec = EnvSpec.from_json(saved["environment"])
            gamma = jsontext.expect(saved["gamma"], f"{path}: gamma", float)
            names = [jsontext.expect(each, f"{path}: a name", str) for each in saved["names"]]
            info = jsontext.expect(saved["info"], f"{path}: info", dict)
        except KeyError as error:
            raise InputError(f"{path}: the cost lacks {error}") from None
        if isinstance(config, LinearConfig) and config.features == "function" and features is None:
            raise InputError(
                f"{path}: this cost is linear in features of a user's function, which no file holds: give it again "
                "with LearnedCost.load(path, features=function)"
            )
        normaliser = Normaliser.from_arrays(arrays, spec.observation_size, path)
        function = features if normaliser is None else normaliser.undone(features)
        player = cost_player(config, function=function).sized(spec.observation_size, spec.action_size, gamma)
        if not isinstance(player, CostBase):
            raise InputError(f"{path}: a cost of the kind '{saved['cost']}' is no function of observation and action")
        # any pair at all: only the shapes count, and nothing is computed
        nothing = np.zeros((2, spec.observation_size), np.float32), np.zeros((2, spec.action_size), np.float32)
        template = jax.eval_shape(lambda: player.init(0, Pairs(*nothing, np.ones(2, np.float32))).view)
        saved_weights = arrays.get("view/params")
        if features is not None and saved_weights is not None and saved_weights.shape != template.params.shape:
            raise InputError(
                f"{path}: the feature function gives {len(template.params)} features, the cost has "
                f"{saved_weights.size} weights: give the function it was learned with"
            )
        view = checkpoint.restored(template, arrays, "view")
        return cls(player, view, spec, gamma, info, names=names, normaliser=normaliser)


@lru_cache(maxsize=32)
def _compiled(player: CostBase) -> Any:
    return jax.jit(player.cost)


# ----------------------------------------------------------------------------------------------------------------
# The cost as a reward


class CostReward(gym.Wrapper):
    """One environment whose reward is minus a learned cost; its own reward is in info["environment_reward"].

    The cost of a step is that of the observation before it and the action, also in info["cost"]. What happens after a
    true termination matters: learners such as those of Stable-Baselines3 count nothing after it, so with costs above
    0 they learn to end episodes, with costs below 0 to prolong them. `absorbing` says how the cost of the absorbing
    state enters:

    shift:  every reward is c_abs - cost. The absorbing state then costs nothing, as the learner assumes, and no best
            policy changes. Right for every discount; what to train with.
    charge: the reward is -cost, and a last step that truly terminates also pays γ c_abs / (1-γ), all that the
            absorbing state would still cost. The learner's discount must be this cost's (`LearnedCost.gamma`).
    ignore: the reward is -cost and nothing else. For environments that never terminate, or to add up costs.

    A truncated step is an ordinary one in all three. Wrap before `Monitor` to log the learned reward, after it to log
    the environment's own. For vector environments: gymnasium.make_vec(..., wrappers=[cost.reward_wrapper]).
    """

    def __init__(self, env: gym.Env, cost: LearnedCost, *, absorbing: str = "shift") -> None:
        if isinstance(env, VectorEnv):
            raise InputError(
                "a vector environment cannot be wrapped as one: wrap each of its environments, as in "
                "gymnasium.make_vec(..., wrappers=[cost.reward_wrapper])"
            )
        super().__init__(env)
        self.cost = cost
        self.absorbing = choice("absorbing", absorbing, ABSORBING)
        fix = "wrap the same environment, before any wrapper that changes observations or actions"
        cost.spec.expect(describe(env, horizon=cost.spec.horizon), "the cost", fix)
        self._flatten = flattener(env.observation_space)
        self._before: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._before = self._flat(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self._before
        if before is None:
            raise gym.error.ResetNeeded("the environment must be reset before its first step")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._before = self._flat(observation)
        cost = float(self.cost(before, action))
        learned = cost
        if self.absorbing == "shift":
            learned = cost - self.cost.absorbing
        elif self.absorbing == "charge":
            learned = bootstrap_target(cost, 0.0, float(terminated), self.cost.gamma, self.cost.absorbing)
        info = {**info, "environment_reward": float("nan") if reward is None else float(reward), "cost": cost}
        return observation, -learned, terminated, truncated, info

    def _flat(self, observation: Any) -> np.ndarray:
        # a copy: some environments hand out one buffer again and again
        return np.array(observation if self._flatten is None else self._flatten(observation), np.float32)
