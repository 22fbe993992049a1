"""Networks and action distributions: pure functions over pytrees, and the same actor in NumPy for the host.

Actions are *encoded* throughout: continuous actions scaled to [-1, 1], discrete ones one-hot (see `oal.envs`).
"""

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oal.errors import InputError, shortened

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Array, Float, Observations, PerRow, RngKey, Scalar

ActionKind = Literal["continuous", "discrete"]
Activation = Literal["relu", "tanh"]

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class Layer(NamedTuple):
    """One affine map x -> x weight + bias."""

    weight: "Float[Array, 'D F']"
    bias: "Float[Array, 'F']"


MLP = tuple[Layer, ...]
MAX_LAYERS, MAX_WEIGHTS = 100, 1 << 27
"""Of one network; a player has several, each with its slow copy and the optimiser's moments."""


def init_mlp(key: "RngKey", sizes: Sequence[int]) -> MLP:
    """Draw an MLP with the given layer widths; weights and biases uniform in ±1/sqrt(fan in)."""
    _check_sizes(sizes)
    layers = []
    for layer_key, fan_in, fan_out in zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False):
        bound = 1.0 / math.sqrt(fan_in)
        weight_key, bias_key = jax.random.split(layer_key)
        layers.append(
            Layer(
                jax.random.uniform(weight_key, (fan_in, fan_out), jnp.float32, -bound, bound),
                jax.random.uniform(bias_key, (fan_out,), jnp.float32, -bound, bound),
            )
        )
    return tuple(layers)


def _check_sizes(sizes: Sequence[int]) -> None:
    """Refuse what would only fail in the middle of being made: a file may ask for networks of any size."""
    hidden = list(sizes[1:-1])
    if min(sizes) < 1:
        raise InputError(f"hidden is {shortened(hidden)}: every layer has at least one unit")
    weights = sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes))
    if len(hidden) > MAX_LAYERS or weights > MAX_WEIGHTS:
        raise InputError(
            f"hidden is {shortened(hidden)}: a network of {len(hidden)} layers and {weights:,} weights; at most "
            f"{MAX_LAYERS} layers and {MAX_WEIGHTS:,} weights are made"
        )


def nearly_zero(params: MLP) -> MLP:
    """Shrink the last layer to a hundredth: a fresh network then gives nearly 0 everywhere, and has hardly a slope."""
    return (*params[:-1], Layer(0.01 * params[-1].weight, 0.01 * params[-1].bias))


def mean_of(members: Sequence[MLP]) -> MLP:
    """Return one network whose outputs are the mean of the members': their hidden layers side by side.

    For a Gaussian actor that is the mean of the pre-tanh means, and the geometric mean of the standard deviations.
    """
    if len(members) == 1:
        return members[0]
    first, *middle, last = zip(*members, strict=True)
    layers = [Layer(jnp.concatenate([m.weight for m in first], axis=1), jnp.concatenate([m.bias for m in first]))]
    for same in middle:
        blocks = jax.scipy.linalg.block_diag(*(jnp.asarray(m.weight) for m in same))
        layers.append(Layer(blocks, jnp.concatenate([m.bias for m in same])))
    share = 1.0 / len(members)
    weight = share * jnp.concatenate([m.weight for m in last])
    return (*layers, Layer(weight, share * sum(m.bias for m in last)))


def sum_of(networks: Sequence[MLP]) -> MLP:
    """Return one network whose outputs are the sum of the others', which have as many layers."""
    *hidden, last = mean_of(networks)
    return (*hidden, Layer(len(networks) * last.weight, len(networks) * last.bias))


def mlp(
    params: MLP, x: "Float[jax.Array, '*B D']", *, layer_norm: bool = False, activation: Activation = "relu"
) -> "Float[jax.Array, '*B F']":
    """Apply affine maps with an activation between them; `layer_norm` standardises each hidden layer before a ReLU."""
    return _affine(params[-1], _hidden(params, x, layer_norm=layer_norm, activation=activation))


def _hidden(params: MLP, x: jax.Array, *, layer_norm: bool = False, activation: Activation = "relu") -> jax.Array:
    """Apply all layers but the last."""
    activate = jax.nn.relu if activation == "relu" else jnp.tanh
    for layer in params[:-1]:
        x = _standardised_relu(layer, x) if layer_norm else activate(_affine(layer, x))
    return x


def _affine(layer: Layer, x: jax.Array) -> jax.Array:
    return x @ layer.weight + layer.bias


@jax.custom_vjp
def _standardised_relu(layer: Layer, x: jax.Array) -> jax.Array:
    """Apply an affine map, layer norm and ReLU: y = max(0, z r) with z = x W + b centred and r = 1/sqrt(mean z² + ε).

    Weights are centred, not outputs: it is the same, and there are fewer. The derivative is written out, because it
    needs fewer passes over activations than the one that JAX derives:
        dz = [y > 0] r dy - z r² mean(dy y),  dW = xᵀ dz centred,  dx = dz Wᵀ
    """
    return _standardised_relu_forwards(layer, x)[0]


def _standardised_relu_forwards(layer: Layer, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    weight = layer.weight - _row_mean(layer.weight)
    z = _affine(Layer(weight, layer.bias - jnp.mean(layer.bias)), x)
    r = jax.lax.rsqrt(_row_mean(z * z) + 1e-5)
    y = jnp.maximum(z * r, 0.0)
    return y, (weight, x, z, r, y)


def _standardised_relu_backwards(kept: tuple[jax.Array, ...], dy: jax.Array) -> tuple[Layer, jax.Array]:
    weight, x, z, r, y = kept
    dz = jnp.where(y > 0.0, dy * r, 0.0) - z * (r * r * _row_mean(dy * y))
    dweight = x.T @ dz
    # the barrier keeps the mean below from summing the whole batch again
    dbias = jax.lax.optimization_barrier(jnp.sum(dz, axis=0))
    return Layer(dweight - _row_mean(dweight), dbias - jnp.mean(dbias)), dz @ weight.T


_standardised_relu.defvjp(_standardised_relu_forwards, _standardised_relu_backwards)


def _row_mean(x: jax.Array) -> jax.Array:
    """Mean over the last axis, kept, as a product: on a CPU, XLA does not vectorise sums along rows."""
    return x @ jnp.full((x.shape[-1], 1), 1.0 / x.shape[-1], x.dtype)


def init_actor(key: "RngKey", kind: ActionKind, observation_size: int, action_size: int, hidden: Sequence[int]) -> MLP:
    """Draw an actor: outputs mean and log-std of each action (continuous) or one logit per action (discrete)."""
    outputs = 2 * action_size if kind == "continuous" else action_size
    return init_mlp(key, (observation_size, *hidden, outputs))


def init_critic(key: "RngKey", kind: ActionKind, observation_size: int, action_size: int, hidden: Sequence[int]) -> MLP:
    """Draw a critic: (observation, action) -> one value (continuous), observation -> a value per action (discrete)."""
    if kind == "continuous":
        return init_mlp(key, (observation_size + action_size, *hidden, 1))
    return init_mlp(key, (observation_size, *hidden, action_size))


def critic_value(
    params: MLP, kind: ActionKind, observation: "Observations", action: "Actions", *, layer_norm: bool = False
) -> "PerRow":
    """Q(s, a) of encoded actions; a discrete action may also be a distribution, giving the mean over it."""
    return critic_bound((params,), kind, observation, action, layer_norm=layer_norm)


def critic_bound(
    critics: Sequence[MLP],
    kind: ActionKind,
    observation: "Observations",
    action: "Actions",
    *,
    layer_norm: bool = False,
    spreads: float = 1.0,
) -> "PerRow":
    """Return the critics' mean cost-to-go plus so many mean distances from it; of a distribution, the mean of it.

    Of two critics that is the larger one, and with -1 the smaller one.
    """
    taken_in = jnp.concatenate([observation, action], axis=-1) if kind == "continuous" else observation
    outputs = [mlp(critic, taken_in, layer_norm=layer_norm) for critic in critics]
    if len(outputs) <= 2 and spreads == 1.0:
        output = reduce(jnp.maximum, outputs)
    else:
        mean = reduce(add, outputs) / len(outputs)
        output = mean + spreads * reduce(add, [jnp.abs(each - mean) for each in outputs]) / len(outputs)
    return output[..., 0] if kind == "continuous" else jnp.sum(output * action, axis=-1)


def critic_regression(
    critics: tuple[MLP, ...],
    kind: ActionKind,
    observation: "Observations",
    action: "Actions",
    target: "PerRow",
    *,
    layer_norm: bool = False,
) -> tuple["Scalar", tuple[MLP, ...]]:
    """Return Σ_i mean (Q_i(s, a) - target)² and its gradient in all critics."""

    def loss(critics: tuple[MLP, ...]) -> jax.Array:
        values = [critic_value(critic, kind, observation, action, layer_norm=layer_norm) for critic in critics]
        return reduce(add, [jnp.mean((value - target) ** 2) for value in values])

    return jax.value_and_grad(loss)(critics)


class Gaussian(NamedTuple):
    """Diagonal Gaussian before the tanh."""

    mean: "Actions"
    log_std: "Actions"


def gaussian(params: MLP, observation: "Observations", *, activation: Activation = "relu") -> Gaussian:
    """Return the actor's pre-tanh Gaussian; log-std depends on the state and is clipped to [-20, 2]."""
    hidden, last = _hidden(params, observation, activation=activation), params[-1]
    # samples in columns: the gradients of the few outputs are then rows, which XLA joins and multiplies much faster;
    # the barriers keep it from turning them back, and the product from being turned to columns too
    weight = jax.lax.optimization_barrier(last.weight.T)
    outputs = _as_written(jnp.einsum("bi,oi->bo", hidden, weight)).T + last.bias[:, None]
    mean, log_std = (part.T for part in jnp.split(outputs, 2))
    return Gaussian(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


@jax.custom_jvp
def _as_written(x: jax.Array) -> jax.Array:
    """Keep XLA from computing x in another layout; derivatives pass freely."""
    return jax.lax.optimization_barrier(x)


_as_written.defjvp(lambda primals, tangents: (_as_written(*primals), *tangents))


def gaussian_divergence(first: Gaussian, second: Gaussian) -> "PerRow":
    """KL(first, second); a map both pass through, such as tanh, does not change it."""
    gap = (first.mean - second.mean) * jnp.exp(-second.log_std)
    log_ratio = first.log_std - second.log_std
    return 0.5 * jnp.sum(gap**2 + jnp.exp(2.0 * log_ratio) - 1.0 - 2.0 * log_ratio, axis=-1)


def squash_log_det(pre_tanh: "Actions") -> "Actions":
    """log d tanh(u)/du = log(1 - tanh(u)²) = 2 (log 2 - u - softplus(-2u)), stable for large |u|."""
    # softplus(-2u) without log1p, which XLA does not vectorise; log(1 + y) is as exact to 1e-7
    softplus = jnp.maximum(-2.0 * pre_tanh, 0.0) + jnp.log(1.0 + jnp.exp(-2.0 * jnp.abs(pre_tanh)))
    return 2.0 * (math.log(2.0) - pre_tanh - softplus)


def gaussian_log_prob(distribution: Gaussian, pre_tanh: "Actions") -> "PerRow":
    """log π(tanh(u) | s) of the tanh-squashed Gaussian at the pre-tanh value u."""
    standardised = (pre_tanh - distribution.mean) * jnp.exp(-distribution.log_std)
    log_density = -0.5 * standardised**2 - distribution.log_std - _LOG_SQRT_2PI
    return jnp.sum(log_density - squash_log_det(pre_tanh), axis=-1)


def squashed(distribution: Gaussian, noise: "Actions") -> tuple["Actions", "Actions", "PerRow"]:
    """Return the action that standard normal noise draws, reparameterised: (tanh(u), u, log π(tanh(u)))."""
    pre_tanh = distribution.mean + jnp.exp(distribution.log_std) * noise
    # the noise is the standardised value, so the density needs no division by the std
    log_density = -0.5 * noise**2 - distribution.log_std - _LOG_SQRT_2PI
    log_prob = jnp.sum(log_density - squash_log_det(pre_tanh), axis=-1)
    return jnp.tanh(pre_tanh), pre_tanh, log_prob


def log_policy(params: MLP, observation: "Observations", *, activation: Activation = "relu") -> "Actions":
    """log π(· | s) of a discrete actor."""
    return jax.nn.log_softmax(mlp(params, observation, activation=activation), axis=-1)


class HostActor:
    """The actor in NumPy, on host copies of its weights: an action costs microseconds, not a JAX dispatch.

    Its numbers equal the JAX actor's to float32 rounding. Observations in, encoded actions out.
    """

    def __init__(self, kind: ActionKind, params: MLP, *, activation: Activation = "relu") -> None:
        self.kind: ActionKind = kind
        self.activation: Activation = activation
        self.layers: tuple[Layer, ...] = ()
        self.load(params)

    def load(self, params: MLP) -> None:
        """Take copies of new weights (JAX may reuse the device's buffers)."""
        self.layers = tuple(
            Layer(np.array(layer.weight, np.float32), np.array(layer.bias, np.float32)) for layer in params
        )

    def outputs(self, observation: "Float[np.ndarray, 'n O']") -> "Float[np.ndarray, 'n F']":
        """Return the network's raw outputs: [mean, log-std] or logits."""
        x = observation
        for layer in self.layers[:-1]:
            x = x @ layer.weight
            x += layer.bias
            if self.activation == "relu":
                np.maximum(x, 0.0, out=x)
            else:
                np.tanh(x, out=x)
        x = x @ self.layers[-1].weight
        x += self.layers[-1].bias
        return x

    def sample(
        self,
        observation: "Float[np.ndarray, 'n O']",
        rng: np.random.Generator,
        *,
        offset: "Float[np.ndarray, 'n D'] | None" = None,
    ) -> "Float[np.ndarray, 'n A']":
        """Draw encoded actions from the policy; the first columns of `offset` are added to means or logits."""
        drawn = self.draw(observation, rng, offset=offset)
        return np.tanh(drawn) if self.kind == "continuous" else drawn

    def draw(
        self,
        observation: "Float[np.ndarray, 'n O']",
        rng: np.random.Generator,
        *,
        offset: "Float[np.ndarray, 'n D'] | None" = None,
    ) -> "Float[np.ndarray, 'n A']":
        """Draw from the policy without the squashing: pre-tanh values, or one-hot actions."""
        outputs = self.outputs(observation)
        size = outputs.shape[1] // (2 if self.kind == "continuous" else 1)
        if offset is not None:
            outputs[:, :size] += offset[:, :size]
        if self.kind == "continuous":
            std = np.exp(np.clip(outputs[:, size:], LOG_STD_MIN, LOG_STD_MAX))
            return outputs[:, :size] + std * rng.standard_normal((len(outputs), size), np.float32)
        # the Gumbel trick: argmax of logits plus Gumbel noise is a draw from the softmax
        return _one_hot_argmax(outputs + rng.gumbel(size=outputs.shape).astype(np.float32))

    def mode(self, observation: "Float[np.ndarray, 'n O']") -> "Float[np.ndarray, 'n A']":
        """Return the encoded deterministic actions: tanh of the mean, or the likeliest action."""
        outputs = self.outputs(observation)
        if self.kind == "continuous":
            return np.tanh(outputs[:, : outputs.shape[1] // 2])
        return _one_hot_argmax(outputs)


def _one_hot_argmax(scores: np.ndarray) -> np.ndarray:
    encoded = np.zeros_like(scores, np.float32)
    encoded[np.arange(len(scores)), scores.argmax(axis=1)] = 1.0
    return encoded
