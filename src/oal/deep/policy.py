"""A saved policy: the actor's weights and what it needs to act in its environment, without the learner."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from oal.base import checkpoint, jsontext
from oal.base.limits import damage
from oal.deep.nets import MLP, Activation, HostActor, Layer
from oal.deep.normaliser import Normaliser
from oal.envs import ActionCodec, EnvSpec
from oal.envs.names import input_names
from oal.errors import InputError, choice, whole


class Policy:
    """Act on observations: `act` takes and gives batches in encoded form, `predict` speaks the environment's terms."""

    def __init__(
        self,
        spec: EnvSpec,
        params: MLP,
        *,
        normaliser: Normaliser | None = None,
        activation: Activation = "relu",
        info: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        if spec.kind not in ("continuous", "discrete"):
            raise InputError(f"action kind '{spec.kind}' is unknown")
        self.spec = spec
        self.info = dict(info or {})
        self.normaliser = normaliser
        """What stands before the network; None: it takes observations as they are."""
        self.actor = HostActor("continuous" if spec.kind == "continuous" else "discrete", params, activation=activation)
        self.codec = ActionCodec(spec)
        self.rng = np.random.default_rng(seed)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Flat observations [n, O] -> the encoded deterministic actions [n, A]."""
        return self.actor.mode(self._seen(observations))

    def sample(self, observations: np.ndarray) -> np.ndarray:
        """Flat observations [n, O] -> encoded actions [n, A] drawn from the policy."""
        return self.actor.sample(self._seen(observations), self.rng)

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        return observations if self.normaliser is None else self.normaliser(observations)

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, None]:
        """Return (action in the environment's units, no state) for an observation, or a batch of them.

        Observations are as the environment gives them, a Dict's included, or flat vectors. `state` and `episode_start`
        are there for code written for Stable-Baselines3.
        """
        if isinstance(state, bool):
            raise InputError(f"state is {state}: say deterministic={state} by name")
        flat = self.spec.flat(observation)
        batch = flat if flat.ndim == 2 else flat.reshape(1, -1)
        if batch.shape[1] != self.spec.observation_size:
            raise InputError(
                f"the observation has {batch.shape[1]} numbers, {self.spec.env_id} has {self.spec.observation_size}"
            )
        if not np.isfinite(batch).all():
            row, column = map(int, np.argwhere(~np.isfinite(batch))[0])
            raise InputError(f"the observation holds {batch[row, column]} at {input_names(self.spec)[column]}")
        actions = self.codec.decode(self.act(batch) if deterministic else self.sample(batch))
        return (np.stack([np.asarray(action) for action in actions]) if flat.ndim == 2 else actions[0]), None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and description to one safetensors file."""
        normaliser = {} if self.normaliser is None else self.normaliser.arrays()
        checkpoint.save(
            path,
            checkpoint.named(self.actor.layers, "actor") | normaliser,
            {
                "env": self.spec.to_json(),
                "layers": len(self.actor.layers),
                "activation": self.actor.activation,
                "info": self.info,
            },
            kind="policy",
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, inside: str | os.PathLike[str] | None = None) -> "Policy":
        """Read a policy that `save` wrote; `inside` is the run folder that the file must not lead out of."""
        arrays, info = checkpoint.load(path, kind="policy", inside=inside)
        with damage(f"{path}: the policy is not complete, or damaged"):
            count = whole(f"{path}: the number of layers", info["layers"], 1)
            if count > len(arrays):
                raise InputError(f"{path}: the policy has {len(arrays)} arrays for {count} layers")
            layers = tuple(
                Layer(arrays[f"actor/{index}/weight"], arrays[f"actor/{index}/bias"]) for index in range(count)
            )
            activation = choice("activation", info.get("activation", "relu"), ("relu", "tanh"))
            spec, about = EnvSpec.from_json(info["env"]), jsontext.expect(info["info"], f"{path}: info", dict)
            _check_layers(str(path), layers, spec)
            normaliser = Normaliser.from_arrays(arrays, spec.observation_size, path)
            return cls(spec, layers, normaliser=normaliser, activation=activation, info=about)


def _check_layers(path: str, layers: MLP, spec: EnvSpec) -> None:
    """Refuse weights that do not lead from the environment's observations to its actions."""
    size = spec.observation_size
    for index, (weight, bias) in enumerate(layers):
        shapes = np.shape(weight), np.shape(bias)
        if shapes != ((size, *shapes[1]), shapes[1]) or len(shapes[1]) != 1 or weight.dtype != np.float32:
            raise InputError(f"{path}: layer {index} is {shapes[0]} and {shapes[1]}, and takes {size} numbers")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise InputError(f"{path}: layer {index} has a weight that is not finite")
        size = shapes[1][0]
    if size != spec.action_size * (2 if spec.kind == "continuous" else 1):
        raise InputError(f"{path}: the last layer gives {size} numbers, for {spec.action_size} actions ({spec.kind})")
