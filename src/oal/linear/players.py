"""The players' passes, compiled: playing, least-squares value iteration, the model's expected features.

The policy of mirror descent is pi_h(a | s) proportional to exp(-sum_j t_j Q_j(s, a)), where each term Q_j is a clipped
linear function of phi less a bonus. It cannot be stored for a million states, and a clipped sum has no closed form: so
the terms are kept, every state that was visited has a row in a roster with its sum so far, and a state that is new adds
up all terms once. A roster also holds the states that measure the regret (`oal.linear.evaluation`).

Finite horizons have a layer for each step, discounted problems one layer.

Numba compiles a function once more for each constant that it is called with: zeros are passed as `np.int64(0)`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.linear import cholesky
from oal.linear.features import Model, dot, fill_features, first_state, next_state
from oal.tabular.fastmath import draw, exponentials, jit, uniform

MIRROR, GREEDY, SOFT = 0, 1, 2
"""Rules: mirror descent with V = <pi, Q>; the best response to the newest Q; mirror descent with a soft minimum."""


class Roster(NamedTuple):
    """States with their features and what the policy does there: arrays `[H, rows, ...]`."""

    states: NDArray[np.int64]
    anchor: NDArray[np.int64]
    value: Array
    scores: Array
    """sum_j t_j Q_j, or the newest Q of a best response."""
    policy: Array
    bonus: Array
    """The elliptic norm of phi(s, a), for the bonus matrix in use."""
    V: Array


class Terms(NamedTuple):
    """The Q_j: arrays `[H, terms, ...]`, and the matrices that their bonuses were computed with."""

    theta: Array
    step: Array  # [terms]
    beta: Array  # [terms]
    epoch: NDArray[np.int64]
    """Which bonus matrix a term has."""
    inverse: Array  # [H, epochs, d, d]
    epochs: NDArray[np.int64]  # [H], how many there are
    determinant: Array  # [H], log det of the newest
    high: Array  # [H], where Q is cut


def roster(model: Model, layers: int, rows: int) -> Roster:
    """Return an empty roster."""
    A, m = model.n_actions, model.support
    return Roster(
        states=np.zeros((layers, rows), dtype=np.int64),
        anchor=np.zeros((layers, rows, A, m), dtype=np.int64),
        value=np.zeros((layers, rows, A, m)),
        scores=np.zeros((layers, rows, A)),
        policy=np.full((layers, rows, A), 1.0 / A),
        bonus=np.zeros((layers, rows, A)),
        V=np.zeros((layers, rows)),
    )


def terms(layers: int, d: int, high: Array) -> Terms:
    """Return no terms, with room for some."""
    return Terms(
        theta=np.zeros((layers, 4, d)),
        step=np.zeros(4),
        beta=np.zeros(4),
        epoch=np.zeros((layers, 4), dtype=np.int64),
        inverse=np.zeros((layers, 4, d, d)),
        epochs=np.zeros(layers, dtype=np.int64),
        determinant=np.full(layers, -np.inf),
        high=high,
    )


def grown(array: NDArray, axis: int, size: int) -> NDArray:
    """Return an array with room for `size` entries along an axis, doubling what it has."""
    if array.shape[axis] >= size:
        return array
    shape = list(array.shape)
    shape[axis] = max(size, 2 * array.shape[axis])
    larger = np.zeros(shape, dtype=array.dtype)
    larger[tuple(slice(0, n) for n in array.shape)] = array
    return larger


# The policy at the rows of a roster ----------------------------------------------------------------------------------


@jit
def elliptic(index, value, inverse):
    """Return sqrt(phi^T Lambda^-1 phi)."""
    total = 0.0
    for j in range(len(index)):
        for k in range(len(index)):
            total += value[j] * value[k] * inverse[index[j], index[k]]
    return math.sqrt(max(total, 0.0))


@jit
def set_bonus(roster, h, first, last, inverse):
    """Compute the elliptic norms of some rows."""
    for row in range(first, last):
        for a in range(roster.policy.shape[2]):
            roster.bonus[h, row, a] = elliptic(roster.anchor[h, row, a], roster.value[h, row, a], inverse)


@jit
def set_policy(roster, h, first, last, greedy):
    """Compute the policy of some rows from their scores."""
    A = roster.policy.shape[2]
    if greedy:
        for row in range(first, last):
            best = 0
            for a in range(A):
                roster.policy[h, row, a] = 0.0
                if roster.scores[h, row, a] < roster.scores[h, row, best]:
                    best = a
            roster.policy[h, row, best] = 1.0
        return
    scores, policy = roster.scores[h, first:last], roster.policy[h, first:last].reshape(-1)
    shifted = np.empty(len(policy))
    for row in range(last - first):
        least = scores[row, 0]
        for a in range(1, A):
            least = min(least, scores[row, a])
        for a in range(A):
            shifted[row * A + a] = least - scores[row, a]
    exponentials(shifted, policy)
    for row in range(last - first):
        total = 0.0
        for a in range(A):
            total += policy[row * A + a]
        for a in range(A):
            policy[row * A + a] /= total


@jit
def apply_term(roster, terms, h, j, first, last, rule):
    """Evaluate term j at some rows, whose elliptic norms are set: V, the scores and the policy."""
    A = roster.policy.shape[2]
    theta, beta, high, step = terms.theta[h, j], terms.beta[j], terms.high[h], terms.step[j]
    index, value, scores, policy = roster.anchor[h], roster.value[h], roster.scores[h], roster.policy[h]
    bonus, V = roster.bonus[h], roster.V[h]
    Q = np.empty(A)
    for row in range(first, last):
        least, expected = np.inf, 0.0
        for a in range(A):
            q = dot(index[row, a], value[row, a], theta)
            if beta > 0.0:
                q -= beta * bonus[row, a]
            q = min(max(q, 0.0), high)
            Q[a] = q
            least = min(least, q)
            expected += policy[row, a] * q
        V[row] = expected
        if rule == GREEDY:
            V[row] = least
        elif rule == SOFT and step > 0.0:
            total = 0.0
            for a in range(A):
                total += policy[row, a] * math.exp(step * (least - Q[a]))
            V[row] = least - math.log(total) / step
        for a in range(A):
            scores[row, a] = Q[a] if rule == GREEDY else scores[row, a] + step * Q[a]
    set_policy(roster, h, first, last, rule == GREEDY)


@jit
def catch_up(model, roster, terms, h, count, first, last, rule):
    """Fill rows whose states are set: features, and the policy after `count` terms."""
    A = roster.policy.shape[2]
    high = terms.high[h]
    norms = np.zeros(A)
    for row in range(first, last):
        fill_features(model, roster.states[h, row], roster.anchor[h, row], roster.value[h, row])
        roster.scores[h, row] = 0.0
        roster.V[h, row] = 0.0
        index, value, scores = roster.anchor[h, row], roster.value[h, row], roster.scores[h, row]
        epoch = -1
        # the last one is left to apply_term; before a best response there is nothing to add up
        for j in range(0 if rule != GREEDY else count - 1, count - 1):
            beta, step = terms.beta[j], terms.step[j]
            if beta > 0.0 and terms.epoch[h, j] != epoch:
                epoch = terms.epoch[h, j]
                for a in range(A):
                    norms[a] = elliptic(index[a], value[a], terms.inverse[h, epoch])
            for a in range(A):
                q = dot(index[a], value[a], terms.theta[h, j])
                if beta > 0.0:
                    q -= beta * norms[a]
                scores[a] += step * min(max(q, 0.0), high)
    set_policy(roster, h, first, last, rule == GREEDY)
    if count > 0:
        set_bonus(roster, h, first, last, terms.inverse[h, terms.epoch[h, count - 1]])
        apply_term(roster, terms, h, count - 1, first, last, rule)
    set_bonus(roster, h, first, last, terms.inverse[h, terms.epochs[h] - 1])


# Playing, and the data -----------------------------------------------------------------------------------------------


@jit
def play(model, roster, terms, count, rule, row, actions, stream):
    """Play an episode of H steps into row `row` of every layer."""
    s = first_state(model, stream)
    for h in range(len(roster.states)):
        roster.states[h, row] = s
        catch_up(model, roster, terms, h, count, row, row + 1, rule)
        actions[h, row] = draw(roster.policy[h, row], uniform(stream))
        if h + 1 < len(roster.states):
            a = actions[h, row]
            s = next_state(model, h, s, a, roster.anchor[h, row], roster.value[h, row], stream)


@jit
def play_discounted(model, roster, terms, count, rule, discount, longest, row, actions, stream):
    """Play an episode of random length into the rows from `row` on; return the row after its last state.

    The state after the last action has a row too, for its value; its action is -1.
    """
    s, layer = first_state(model, stream), np.int64(0)
    for _t in range(longest):
        roster.states[0, row] = s
        catch_up(model, roster, terms, layer, count, row, row + 1, rule)
        a = draw(roster.policy[0, row], uniform(stream))
        actions[0, row] = a
        s = next_state(model, layer, s, a, roster.anchor[0, row], roster.value[0, row], stream)
        row += 1
        if uniform(stream) >= discount:
            break
    roster.states[0, row] = s
    actions[0, row] = -1
    catch_up(model, roster, terms, layer, count, row, row + 1, rule)
    return row + 1


@jit
def add_data(roster, factor, h, first, last, actions, potential):
    """Add the features of rows' actions to Lambda_h, and their squared elliptic norms, cut at 1, to `potential`."""
    d = len(factor[h])
    x, y = np.empty(d), np.empty(d)
    for row in range(first, last):
        a = actions[h, row]
        if a < 0:
            continue
        x[:] = 0.0
        for j in range(roster.anchor.shape[3]):
            x[roster.anchor[h, row, a, j]] += roster.value[h, row, a, j]
        y[:] = x
        cholesky.solve(factor[h], y)
        potential[h] += min(1.0, np.sum(x * y))
        cholesky.update(factor[h], x)


@jit
def refresh(roster, terms, factor, h, first, last, growth, fresh):
    """Take Lambda_h as the bonus matrix once its determinant has grown by a factor, and set the rows' norms anew."""
    determinant = cholesky.log_determinant(factor[h])
    if determinant > terms.determinant[h] + math.log(growth):
        cholesky.inverse(factor[h], terms.inverse[h, terms.epochs[h]])
        terms.epochs[h] += 1
        terms.determinant[h] = determinant
        fresh[h] = True
        set_bonus(roster, h, first, last, terms.inverse[h, terms.epochs[h] - 1])


@jit
def count_episode(roster, terms, factor, row, actions, growth, potential, fresh):
    """Add an episode of H steps to the data."""
    for h in range(len(roster.states)):
        add_data(roster, factor, h, row, row + 1, actions, potential)
        refresh(roster, terms, factor, h, np.int64(0), row + 1, growth, fresh)


# Evaluation ----------------------------------------------------------------------------------------------------------


@jit
def backward(roster, terms, factor, j, n, rows, actions, cost, rule):
    """Least-squares value iteration with n episodes, backwards in time: make term j and evaluate it at `rows` rows.

    theta_h = cost_h + Lambda_h^-1 sum_i phi_h^i V_{h+1}(s_{h+1}^i).
    """
    H, d = cost.shape
    b = np.zeros(d)
    for h in range(H - 1, -1, -1):
        b[:] = 0.0
        if h + 1 < H:
            for i in range(n):
                add_features(roster, h, i, actions[h, i], roster.V[h + 1, i], b)
            cholesky.solve(factor[h], b)
        terms.theta[h, j] = cost[h] + b
        terms.epoch[h, j] = terms.epochs[h] - 1
        apply_term(roster, terms, h, j, np.int64(0), rows, rule)


@jit
def iterate(roster, terms, factor, j, first, rows, actions, cost, discount, rule):
    """One step of regularised value iteration over the rows from `first` on: make term j and evaluate it there."""
    b, layer = np.zeros(cost.shape[1]), np.int64(0)
    for i in range(first, rows):
        if actions[0, i] >= 0:
            add_features(roster, layer, i, actions[0, i], roster.V[0, i + 1], b)
    cholesky.solve(factor[0], b)
    terms.theta[0, j] = cost[0] + discount * b
    terms.epoch[0, j] = terms.epochs[0] - 1
    apply_term(roster, terms, layer, j, first, rows, rule)


@jit
def add_features(roster, h, row, action, weight, out):
    """Add weight * phi(s, a) to `out`."""
    for k in range(roster.anchor.shape[3]):
        out[roster.anchor[h, row, action, k]] += weight * roster.value[h, row, action, k]


@jit
def sum_features(roster, first, last, actions, out):
    """Add the features of some rows' actions to `out`, in a discounted problem."""
    for row in range(first, last):
        if actions[0, row] >= 0:
            add_features(roster, np.int64(0), row, actions[0, row], np.float64(1.0), out)


@jit
def add_mean_features(roster, h, row, weight, out):
    """Add weight * sum_a pi(a | s) phi(s, a) to `out`."""
    for a in range(roster.policy.shape[2]):
        add_features(roster, h, row, a, weight * roster.policy[h, row, a], out)


@jit
def forward(roster, factor, n, actions, out):
    """Write the expected features of the policy under the model of least squares into `out[H, d]`, from n episodes.

    The first step's are the average over the first states seen, the next step's sum_i (x^T Lambda^-1 phi_i) f(s'_i).
    """
    H, d = out.shape
    out[:] = 0.0
    x = np.empty(d)
    for i in range(n):
        add_mean_features(roster, np.int64(0), i, 1.0 / n, out[0])
    for h in range(H - 1):
        x[:] = out[h]
        cholesky.solve(factor[h], x)
        for i in range(n):
            a = actions[h, i]
            add_mean_features(roster, h + 1, i, dot(roster.anchor[h, i, a], roster.value[h, i, a], x), out[h + 1])


@jit
def forward_discounted(roster, factor, first, rows, actions, discount, out):
    """Write the policy's expected features in a discounted problem into `out[d]`, from the rows from `first` on.

    x = x_1 + gamma F^T x with the flow F = Lambda^-1 sum_i phi_i f(s'_i)^T and the first states' average x_1.
    """
    d = len(out)
    out[:] = 0.0
    f, F = np.empty(d), np.zeros((d, d))
    episodes, begins, layer = 0, True, np.int64(0)
    for i in range(first, rows):
        if begins:
            episodes += 1
            add_mean_features(roster, layer, i, np.float64(1.0), out)
        a = actions[0, i]
        begins = a < 0
        if begins:
            continue
        f[:] = 0.0
        add_mean_features(roster, layer, i + 1, np.float64(1.0), f)
        for k in range(roster.anchor.shape[3]):
            F[roster.anchor[0, i, a, k]] += roster.value[0, i, a, k] * f
    out /= episodes
    column = np.empty(d)
    for k in range(d):
        column[:] = F[:, k]
        cholesky.solve(factor[0], column)
        F[:, k] = column
    out[:] = np.linalg.solve(np.eye(d) - discount * F.T, out)


@jit
def action_probabilities(model, scratch, terms, h, count, rule, state):
    """Return the policy at a state, in a roster with one row."""
    scratch.states[h, 0] = state
    catch_up(model, scratch, terms, h, count, np.int64(0), np.int64(1), rule)
    return scratch.policy[h, 0]
