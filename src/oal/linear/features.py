"""Features and transitions of a linear MDP, made when they are asked for; compiled.

P_h(s' | s, a) = <phi(s, a), mu_h(s')>, and phi(s, a) is a distribution over d anchors: to go on, draw an anchor from
phi, then a state of the anchor's law mu. At most `support` entries of phi are not zero: kept as (index, value).

- one-hot: an anchor for each (s, a), whose law is that row of a transition table;
- anchored: the states are cut into d equal blocks, mu_i is uniform on block i, and phi(s, a) is computed from a hash of
  (s, a): nothing is stored for a state.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.tabular.fastmath import draw, invert, jit, uniform
from oal.tabular.passes import Transitions

ONE_HOT, ANCHORED = 0, 1


class Model(NamedTuple):
    """A linear MDP as the compiled code reads it."""

    kind: int
    n_states: int
    n_actions: int
    dimension: int
    support: int
    reach: int
    """Anchored: actions in block i lead to the `reach` blocks from i on, in a circle."""
    key: NDArray[np.uint64]
    """Anchored: what the hash of (s, a) is mixed with."""
    transitions: Transitions
    """One-hot: the table."""
    start: Array
    """Anchored: the anchors' shares in the initial distribution."""


@jit
def mixed(word):
    """Return the next word of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@jit
def block_start(model, anchor):
    """Return the first state of an anchor's block."""
    return anchor * model.n_states // model.dimension


@jit
def block_of(model, state):
    """Return the block that a state is in."""
    anchor = min(state * model.dimension // model.n_states, model.dimension - 1)
    while anchor + 1 < model.dimension and block_start(model, anchor + 1) <= state:
        anchor += 1
    return anchor


@jit
def fill_features(model, state, index, value):
    """Write phi(s, .) into `index[A, support]` and `value[A, support]`."""
    if model.kind == ONE_HOT:
        for a in range(model.n_actions):
            index[a, 0] = state * model.n_actions + a
            value[a, 0] = 1.0
        return
    block = block_of(model, state)
    golden = np.uint64(0x9E3779B97F4A7C15)
    for a in range(model.n_actions):
        word = mixed(model.key[0] + np.uint64(state * model.n_actions + a) * golden)
        total = 0.0
        for j in range(model.support):
            word += golden
            drawn = mixed(word)
            index[a, j] = (block + np.int64(drawn & np.uint64(0xFFFF)) * model.reach // 65536) % model.dimension
            # exponential draws, divided by their sum, are uniform on the simplex
            value[a, j] = -math.log(((drawn >> np.uint64(16)) + 0.5) * 2.0**-48)
            total += value[a, j]
        for j in range(model.support):
            value[a, j] /= total


@jit
def state_of(model, anchor, stream):
    """Draw a state of an anchor's block."""
    first = block_start(model, anchor)
    return first + np.int64(uniform(stream) * (block_start(model, anchor + 1) - first))


@jit
def first_state(model, stream):
    """Draw from the initial distribution."""
    if model.kind == ONE_HOT:
        return invert(model.transitions.initial_cumulative, 0, model.n_states, uniform(stream))
    return state_of(model, draw(model.start, uniform(stream)), stream)


@jit
def next_state(model, h, state, action, index, value, stream):
    """Draw the state after (s, a) at step h; `index` and `value` are phi(s, .)."""
    if model.kind == ONE_HOT:
        table = model.transitions
        row = ((0 if table.stationary else h) * model.n_states + state) * model.n_actions + action
        return table.successors[invert(table.cumulative, table.indptr[row], table.indptr[row + 1], uniform(stream))]
    return state_of(model, index[action, draw(value[action], uniform(stream))], stream)


@jit
def dot(index, value, weights):
    """Return phi . weights."""
    total = 0.0
    for j in range(len(index)):
        total += value[j] * weights[index[j]]
    return total


@jit
def softmin(x, out):
    """Write the distribution proportional to exp(-x) into `out`."""
    least = x[0]
    for a in range(1, len(x)):
        least = min(least, x[a])
    total = 0.0
    for a in range(len(x)):
        out[a] = math.exp(least - x[a])
        total += out[a]
    for a in range(len(x)):
        out[a] /= total


# Policies that are linear: pi(a | s) proportional to exp(-theta . phi(s, a)) -----------------------------------------


@jit
def sample_linear(model, theta, discount, episodes, longest, stream, states, actions, lengths):
    """Play a linear policy `theta[H, d]`; with a discount below one, an episode goes on with that probability."""
    A, m = model.n_actions, model.support
    index, value = np.empty((A, m), dtype=np.int64), np.empty((A, m))
    scores, probabilities = np.empty(A), np.empty(A)
    for i in range(episodes):
        s = first_state(model, stream)
        for t in range(longest):
            h = min(t, len(theta) - 1)
            fill_features(model, s, index, value)
            for a in range(A):
                scores[a] = dot(index[a], value[a], theta[h])
            softmin(scores, probabilities)
            action = draw(probabilities, uniform(stream))
            states[i, t] = s
            actions[i, t] = action
            lengths[i] = t + 1
            if t + 1 == longest or (discount < 1.0 and uniform(stream) >= discount):
                break
            s = next_state(model, t, s, action, index, value, stream)


@jit
def linear_flow(model, theta, flow):
    """Write E_{s ~ mu_i} sum_a pi(a | s) phi(s, a) into `flow[i]`, for every anchor, by visiting every state."""
    A, m = model.n_actions, model.support
    index, value = np.empty((A, m), dtype=np.int64), np.empty((A, m))
    scores, probabilities = np.empty(A), np.empty(A)
    flow[:] = 0.0
    for i in range(model.dimension):
        first, last = block_start(model, i), block_start(model, i + 1)
        share = 1.0 / (last - first)
        for s in range(first, last):
            fill_features(model, s, index, value)
            for a in range(A):
                scores[a] = dot(index[a], value[a], theta)
            softmin(scores, probabilities)
            for a in range(A):
                for j in range(m):
                    flow[i, index[a, j]] += share * probabilities[a] * value[a, j]


@jit
def open_states(model, states, index, value):
    """Write the features of many states into `index[n, A, support]` and `value[n, A, support]`."""
    for i in range(len(states)):
        fill_features(model, states[i], index[i], value[i])
