"""Players with a prior in plain NumPy, a state at a time: small clones, policies, divergences and values."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from oal.deep import nets
from oal.deep.players import Shapes
from oal.deep.prior import Ensemble
from oal.deep.replay import Batch

CONTINUOUS, DISCRETE = Shapes("continuous", 3, 2), Shapes("discrete", 3, 4)


def members(shapes: Shapes, count: int = 3, seed: int = 0) -> list[nets.MLP]:
    """Draw actors with one hidden layer of 8 units; continuous ones have one log-std of -1, as clones have one."""
    keys = jax.random.split(jax.random.key(seed), count)
    drawn = [nets.init_actor(key, *shapes, (8,)) for key in keys]
    if shapes.kind == "discrete":
        return drawn
    size = shapes.action_size
    return [
        (*layers, nets.Layer(last.weight.at[:, size:].set(0.0), last.bias.at[size:].set(-1.0)))
        for *layers, last in drawn
    ]


def batch_of(
    shapes: Shapes, rng: np.random.Generator, ensemble: Ensemble | None, size: int = 16, experts: int = 0
) -> Batch:
    """Draw transitions, with the prior's columns at s and at s' beside them, and the expert's next actions of some."""
    observation, successor = rng.normal(size=(2, size, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    if shapes.kind == "discrete":
        action = np.eye(4, dtype=np.float32)[rng.integers(0, 4, size)]
    both = [np.zeros((size, 0), np.float32)] * 2
    if ensemble is not None:
        both = [ensemble.columns(observation), ensemble.columns(successor)]
    terminated = (rng.random(size) < 0.3).astype(np.float32)
    cost = rng.normal(size=size).astype(np.float32)
    following = action[rng.permutation(size)[:experts]] if experts else None
    return Batch(observation, action, cost, successor, terminated, np.concatenate(both, axis=1), following)


def outputs(network: Any, x: np.ndarray, *, activation: str = "relu", layer_norm: bool = False) -> np.ndarray:
    """One network at one input."""
    for layer in network[:-1]:
        x = np.asarray(x, np.float64) @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias)
        if layer_norm:
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0.0)
    return x @ np.asarray(network[-1].weight, np.float64) + np.asarray(network[-1].bias)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.sum(np.exp(logits)))


def gaussian_kl(mean: np.ndarray, log_std: np.ndarray, of: np.ndarray, with_log_std: np.ndarray) -> float:
    """KL(N(mean, std²), N(of, with_std²))."""
    total = 0.0
    for m, s, n, r in zip(mean, log_std, of, with_log_std, strict=True):
        total += r - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * r)) - 0.5
    return float(total)


def policy_at(
    shapes: Shapes, actor: Any, x: np.ndarray, columns: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (the policy's parameters, its action, KL to the prior) at one state.

    Parameters are the mean and the log-std, or all log-probabilities; the action is a draw, or all probabilities.
    """
    own, size = outputs(actor, x), shapes.action_size
    if shapes.kind == "discrete":
        start, log_prior = (columns[:size], columns[size:]) if columns.size else (0.0, np.zeros(size))
        log_probs = log_softmax(own + start)
        divergence = sum(np.exp(p) * (p - q) for p, q in zip(log_probs, log_prior, strict=True))
        return log_probs, np.exp(log_probs), float(divergence)
    if not columns.size:
        u = own[:size] + np.exp(own[size:]) * noise
        density = -0.5 * noise**2 - own[size:] - 0.5 * np.log(2 * np.pi) - np.log(1.0 - np.tanh(u) ** 2)
        return own, np.tanh(u), float(np.sum(density))
    mean, log_std = columns[:size] + own[:size], own[size:]
    divergence = gaussian_kl(mean, log_std, columns[:size], columns[size:])
    return np.concatenate([mean, log_std]), np.tanh(mean + np.exp(log_std) * noise), divergence


def divergence_between(shapes: Shapes, first: np.ndarray, second: np.ndarray) -> float:
    """KL of two policies at one state, by their parameters."""
    if shapes.kind == "discrete":
        return float(np.sum(np.exp(first) * (first - second)))
    return gaussian_kl(*np.split(first, 2), *np.split(second, 2))


def worst_cost(
    shapes: Shapes,
    critics: Sequence[Any],
    x: np.ndarray,
    action: np.ndarray,
    *,
    layer_norm: bool,
    spreads: float | None = None,
) -> float:
    """The largest of the critics' values: of a drawn action, or expected under probabilities.

    With `spreads`: their mean plus so many mean distances from it.
    """
    x = np.concatenate([x, action]) if shapes.kind == "continuous" else x
    each = np.stack([outputs(critic, x, layer_norm=layer_norm) for critic in critics])
    if spreads is None:
        bound = each.max(axis=0)
    else:
        bound = each.mean(axis=0) + spreads * np.abs(each - each.mean(axis=0)).mean(axis=0)
    return float(bound[0]) if shapes.kind == "continuous" else float(np.sum(action * bound))
