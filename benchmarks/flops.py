"""Floating-point operations of the matrix products of one update: the work that the f32 matmul ceiling bounds.

A pass forward costs one product per layer. Gradients of the weights cost as much again, and gradients of a layer's
input as much again wherever that input depends on what is differentiated.
"""

import itertools
from collections.abc import Sequence


def products(sizes: Sequence[int], batch_size: int) -> list[float]:
    """One pass forward through a network of these widths, layer by layer."""
    return [2.0 * batch_size * a * b for a, b in itertools.pairwise(sizes)]


def fitted(layers: Sequence[float]) -> float:
    """Forward, the gradients of all weights, and of every layer's input but the first's."""
    return 2.0 * sum(layers) + sum(layers[1:])


def sac(observation_size: int, action_size: int, hidden: Sequence[int], batch_size: int) -> float:
    """One update of soft actor-critic: the target, both critics, and the actor through both critics."""
    actor = products([observation_size, *hidden, 2 * action_size], batch_size)
    critic = products([observation_size + action_size, *hidden, 1], batch_size)
    target = sum(actor) + 2 * sum(critic)
    return target + 2 * fitted(critic) + fitted(actor) + 2 * (2 * sum(critic))


def mdpo(
    observation_size: int,
    action_size: int,
    hidden: Sequence[int],
    batch_size: int,
    cost_hidden: Sequence[int] | None = None,
    anchored: bool = False,
) -> float:
    """One update of off-policy MDPO: the old actor, the actor, both critics, V, its target, and the cost network.

    An anchored policy also needs the policy it started from.

    The actor's gradient passes through two critics' worth of products whether it follows the live pair (forward and
    input gradient of both) or the frozen one (forward of the pair for V, forward and input gradient of the old one).
    """
    actor = products([observation_size, *hidden, 2 * action_size], batch_size)
    critic = products([observation_size + action_size, *hidden, 1], batch_size)
    value = products([observation_size, *hidden, 1], batch_size)
    policy = (1 + anchored) * sum(actor) + fitted(actor) + 2 * (2 * sum(critic))
    values = sum(value) + fitted(value)
    costs = 0.0 if cost_hidden is None else sum(products([observation_size + action_size, *cost_hidden, 1], batch_size))
    return policy + values + 2 * fitted(critic) + costs
