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
) -> float:
    """One update of Algorithm 3: the old actor, the actor, both critics, V, its target, and the cost network.

    The actor's gradient passes through two critics' worth of products whether it follows the live pair (forward and
    input gradient of both) or the frozen one (forward of the pair for V, forward and input gradient of the old one).
    """
    actor = products([observation_size, *hidden, 2 * action_size], batch_size)
    critic = products([observation_size + action_size, *hidden, 1], batch_size)
    value = products([observation_size, *hidden, 1], batch_size)
    policy = sum(actor) + fitted(actor) + 2 * (2 * sum(critic))
    values = sum(value) + fitted(value)
    return policy + values + 2 * fitted(critic) + charged(observation_size + action_size, cost_hidden, batch_size)


def charged(input_size: int, hidden: Sequence[int] | None, batch_size: int) -> float:
    """The costs of a batch; None: they are recorded ones."""
    return 0.0 if hidden is None else sum(products([input_size, *hidden, 1], batch_size))


def mirror(
    observation_size: int,
    action_size: int,
    hidden: Sequence[int],
    batch_size: int,
    cost_hidden: Sequence[int] | None = None,
    *,
    experts: int = 0,
    n_steps: int = 1,
) -> float:
    """One update of mirror descent towards a prior: that of soft actor-critic, the old actor, the next actions of the
    expert in both target critics for its `experts` rows, and the cost network on every step of the targets.

    The prior itself is computed once for each step, on the host.
    """
    old_actor = sum(products([observation_size, *hidden, 2 * action_size], batch_size))
    expert = 2 * sum(products([observation_size + action_size, *hidden, 1], experts))
    costs = charged(observation_size + action_size, cost_hidden, n_steps * batch_size)
    return sac(observation_size, action_size, hidden, batch_size) + old_actor + expert + costs
