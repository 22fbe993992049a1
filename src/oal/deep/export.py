"""A policy for where oal is not installed: as ONNX, or as arrays that thirty lines of NumPy read (docs/deploying.md).

Both hold the deterministic policy from the environment's own observations to actions in its units: parts of a Dict are
joined, observations standardised if the policy does so, then come the network, the squashing and the bounds.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from oal.base import npz
from oal.base.files import replacing
from oal.base.spaces import leaves
from oal.deep.normaliser import KNEE
from oal.deep.policy import Policy
from oal.envs.names import input_names
from oal.envs.spec import centre_and_half
from oal.errors import InputError, require

OPSET = 17
IR_VERSION = 9
"""Of ONNX files: those that runtimes since 2023 read."""
VERSION = 1
"""Of the .npz format."""
OBSERVATION = "observation"
OUTPUTS = ("action", "mean", "log_std", "logits")


def normaliser_of(policy: Policy) -> dict[str, np.ndarray]:
    """Return mean, std [O] and knee of what stands before the network; nothing if it takes observations as they are."""
    if policy.normaliser is None:
        return {}
    return {"mean": policy.normaliser.mean, "std": policy.normaliser.std, "knee": np.array(KNEE, np.float32)}


def describe(policy: Policy) -> dict[str, Any]:
    """Say in words and numbers what the file holds."""
    spec = policy.spec
    parts = [] if spec.space is None else [[name or OBSERVATION, *_shape_of(leaf)] for name, leaf in leaves(spec.space)]
    return {
        "oal_policy": VERSION,
        "environment": spec.env_id,
        "kind": spec.kind,
        "activation": policy.actor.activation,
        "layers": len(policy.actor.layers),
        "inputs": input_names(spec)[: spec.observation_size],
        "parts": parts,
        "action_shape": list(spec.action_shape),
        "action_start": spec.action_start,
    }


def _shape_of(space: Any) -> tuple[str, list[int], list[int]]:
    """Return a part's kind and shape; of one choice or several, how many values each has, and the first."""
    if isinstance(space, spaces.Discrete):
        return "choice", [int(space.n)], [int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        if space.nvec.ndim != 1:
            raise InputError(f"observations of {space} cannot be exported: give them as one row of numbers")
        return "choices", space.nvec.tolist(), space.start.tolist()
    return "numbers", list(space.shape), []


def save_npz(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write the policy as plain arrays."""
    arrays = {"about": npz.text(json.dumps(describe(policy)))}
    for i, layer in enumerate(policy.actor.layers):
        arrays |= {f"weight_{i}": np.asarray(layer.weight), f"bias_{i}": np.asarray(layer.bias)}
    if policy.spec.combinations is not None:
        arrays["combinations"] = policy.spec.combinations
    if policy.spec.kind == "continuous":
        arrays["centre"], arrays["half"] = centre_and_half(policy.spec)
    npz.write(_ending(path, ".npz"), arrays | normaliser_of(policy))


def save_onnx(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write the policy as an ONNX model.

    Inputs: "observation" [n, O], or one for each part of a Dict under its key. Outputs: "action", and "mean" and
    "log_std" of the Gaussian before its squashing, or "logits", to draw actions from.
    """
    onnx: Any = require("onnx", extra="onnx", needed_for="exporting to ONNX")
    graph = _Graph(onnx)
    x = graph.observation(policy)
    normaliser = normaliser_of(policy)
    if normaliser:
        knee = normaliser["knee"]
        x = graph.node("Div", graph.node("Sub", x, normaliser["mean"]), normaliser["std"])
        beyond = graph.node("Log", graph.node("Div", graph.node("Max", graph.node("Abs", x), knee), knee))
        beyond = graph.node("Mul", graph.node("Mul", graph.node("Sign", x), knee), beyond)
        x = graph.node("Add", graph.node("Clip", x, -knee, knee), beyond)
    *hidden, last = policy.actor.layers
    for layer in hidden:
        x = graph.node("Gemm", x, layer.weight, layer.bias)
        x = graph.node("Relu" if policy.actor.activation == "relu" else "Tanh", x)
    outputs = graph.node("Gemm", x, last.weight, last.bias)
    spec = policy.spec
    if spec.kind == "discrete":
        graph.output("Identity", outputs, name="logits", shape=[spec.action_size])
        index = graph.node("ArgMax", outputs, axis=1, keepdims=0)
        if spec.combinations is not None:
            shape = list(spec.action_shape)
            graph.output("Gather", spec.combinations, index, name="action", shape=shape, whole=True)
        else:
            graph.output("Add", index, np.array(spec.action_start, np.int64), name="action", shape=[], whole=True)
    else:
        ends = [np.array([end], np.int64) for end in (0, spec.action_size, 2 * spec.action_size)]
        columns = np.array([1], np.int64)
        mean = graph.output("Slice", outputs, ends[0], ends[1], columns, name="mean", shape=[spec.action_size])
        graph.output("Slice", outputs, ends[1], ends[2], columns, name="log_std", shape=[spec.action_size])
        centre, half = centre_and_half(policy.spec)
        scaled = graph.node("Add", graph.node("Mul", graph.node("Tanh", mean), half), centre)
        shape = np.array([-1, *spec.action_shape], np.int64)
        graph.output("Reshape", scaled, shape, name="action", shape=list(spec.action_shape))
    target = _ending(path, ".onnx")
    model = graph.model({name: json.dumps(value) for name, value in describe(policy).items()})
    with replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString())


def _ending(path: str | os.PathLike[str], suffix: str) -> Path:
    if Path(path).suffix != suffix:
        raise InputError(f"{path}: the file must end in {suffix}")
    return Path(path)


class _Graph:
    """An ONNX graph under construction: nodes take names of earlier results, or arrays, which become constants."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *operands: Any, name: str | None = None, **options: Any) -> str:
        taken = [each if isinstance(each, str) else self.constant(each) for each in operands]
        result = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, taken, [result], **options))
        return result

    def constant(self, values: Any) -> str:
        name = f"constant_{len(self.constants)}"
        # a copy: an array that is a view of another's memory cannot be written
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def input(self, name: str, shape: list[int], *, whole: bool = False) -> str:
        self.inputs.append(self._value(name, shape, whole))
        return name

    def output(self, kind: str, *operands: Any, name: str, shape: list[int], whole: bool = False) -> str:
        self.outputs.append(self._value(name, shape, whole))
        return self.node(kind, *operands, name=name)

    def _value(self, name: str, shape: list[int], whole: bool) -> Any:
        kind = self.onnx.TensorProto.INT64 if whole else self.onnx.TensorProto.FLOAT
        return self.onnx.helper.make_tensor_value_info(name, kind, ["n", *shape])

    def observation(self, policy: Policy) -> str:
        """Add the inputs and return the flat vectors [n, O] that they make."""
        space = policy.spec.space
        if space is None:
            return self.input(OBSERVATION, [policy.spec.observation_size])
        for name in OUTPUTS:
            if any(name == taken for taken, _ in leaves(space)):
                raise InputError(
                    f"{policy.spec.env_id}: a part of its observations is called '{name}', as an output of the model "
                    "is: give it another name with gymnasium.wrappers.TransformObservation, or export --npz"
                )
        parts = [self._part(name or OBSERVATION, leaf) for name, leaf in leaves(space)]
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=1)

    def _part(self, name: str, space: Any) -> str:
        if isinstance(space, spaces.Discrete):
            return self._one_hot(self.input(name, [], whole=True), int(space.n), int(space.start))
        if isinstance(space, spaces.MultiDiscrete):
            given, counts, starts = self.input(name, list(space.shape), whole=True), space.nvec.ravel(), space.start
            rows = self.node("Reshape", given, np.array([-1, counts.size], np.int64))
            columns = [self.node("Gather", rows, np.array(i, np.int64), axis=1) for i in range(counts.size)]
            hot = [
                self._one_hot(column, int(count), int(start))
                for column, count, start in zip(columns, counts, starts.ravel(), strict=True)
            ]
            return self.node("Concat", *hot, axis=1)
        size = math.prod(space.shape)
        return self.node("Reshape", self.input(name, list(space.shape)), np.array([-1, size], np.int64))

    def _one_hot(self, index: str, count: int, start: int) -> str:
        shifted = self.node("Sub", index, np.array(start, np.int64))
        return self.node("OneHot", shifted, np.array(count, np.int64), np.array([0.0, 1.0], np.float32), axis=-1)

    def model(self, metadata: dict[str, str]) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "policy", self.inputs, self.outputs, self.constants)
        model = helper.make_model(
            graph, producer_name="oal", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model, full_check=True)
        return model
