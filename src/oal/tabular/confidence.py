"""Sets of transition probabilities that hold the true ones, and the least next value within them.

The theorem's bonus bounds |(p_bar - p) V| by the L1 distance times H. These sets are tighter and need no K: both rest
on the time-uniform deviation inequality of Jonsson et al. (2020, "Planning in Markov Decision Processes with
Gap-Dependent Sample Complexity", Proposition 1): for m outcomes, with probability 1 - x, for all n at once,

    n KL(p_hat_n, p) <= log(1/x) + (m - 1) log(e (1 + n / (m - 1))).

`kl`: the ball {q: n KL(p_hat, q) <= radius} with m = S, one for each row (KL-UCRL, Filippi, Cappé and Garivier 2010).
`intervals`: the same for each single transition, m = 2, which suits rows with few of many successors (UCRL2B's and
UOB-REPS' sets, with the Bernoulli KL in place of Bernstein's inequality, which it implies).

The true p is in all sets at once with probability 1 - delta / 3. Then c + min_q q V <= c + p V for every V, which is
all that the proof of Theorem 1 takes from its bonus; by Pinsker's inequality the ball is no wider than the theorem's
bonus up to constants and a logarithm, so the theorem's rate stays.
"""

import math

import numpy as np

from oal.tabular.fastmath import jit

MOST_STEPS = 60
NOTHING = 1e-120
"""Values nearer than this are the same: the square of a smaller number is 0, which nothing can be divided by."""


def kl_radius(n: float, outcomes: int, failure: float) -> float:
    """Compute log(1 / x) + (m - 1) log(e (1 + n / (m - 1))), the bound of n KL(p_hat_n, p) for all n at once."""
    if outcomes == 1:
        return 0.0
    return math.log(1.0 / failure) + (outcomes - 1) * (1.0 + math.log1p(n / (outcomes - 1)))


kl_radius = jit(kl_radius)


@jit
def kl_minimum(edge_to, edge_weight, start, stop, inverse, V, below, epsilon, outside):
    """Return min q V over {q: KL(p_hat, q) <= epsilon}; `outside` is the least value of any state.

    The minimiser is q_i = p_i / (V_i - nu) / S1 with S1 = sum_i p_i / (V_i - nu), for some nu <= outside, and its value
    nu + 1 / S1. Its divergence f(nu) = sum_i p_i log(V_i - nu) + log S1 grows with nu: if it is still below epsilon at
    nu = outside, what is left of epsilon moves mass to where the least value is.
    """
    least, mean, square = np.inf, 0.0, 0.0
    for e in range(start, stop):
        v, p = V[below + edge_to[e]], edge_weight[e] * inverse
        least = min(least, v)
        mean += p * v
    if stop == start or math.isinf(epsilon):
        return outside
    for e in range(start, stop):
        square += edge_weight[e] * inverse * (V[below + edge_to[e]] - mean) ** 2
    if epsilon <= 0.0 or mean - outside <= 1e-14 * mean + NOTHING:
        return mean
    if outside < least:
        first, divergence = 0.0, 0.0
        for e in range(start, stop):
            v, p = V[below + edge_to[e]] - outside, edge_weight[e] * inverse
            first += p / v
            divergence += p * math.log(v)
        divergence += math.log(first)
        if divergence <= epsilon:
            return outside + math.exp(divergence - epsilon) / first
    # Newton's method on x = outside - nu, held between values on either side of the solution
    low, high = 0.0, np.inf
    x = max(math.sqrt(square / (2.0 * epsilon)), 1e-9 * (mean - outside))
    first = 1.0
    for _ in range(MOST_STEPS):
        if x < NOTHING:
            return outside
        first, second, divergence = 0.0, 0.0, 0.0
        for e in range(start, stop):
            v, p = V[below + edge_to[e]] - outside + x, edge_weight[e] * inverse
            first += p / v
            second += p / (v * v)
            divergence += p * math.log(v)
        divergence += math.log(first)
        if abs(divergence - epsilon) <= 1e-11 * epsilon:
            break
        if divergence > epsilon:
            low = x
        else:
            high = x
        slope = first - second / first
        x = x - (divergence - epsilon) / slope if slope < 0.0 else low
        if not low < x < high:
            x = 0.5 * (low + high) if high < np.inf else 2.0 * low
    return max(outside - x + 1.0 / first, outside)


@jit
def bernoulli_most(p, epsilon):
    """Return the largest q with kl(p, q) <= epsilon, of two coins."""
    if p >= 1.0 or epsilon <= 0.0:
        return p
    if p <= 0.0:
        return -math.expm1(-epsilon)
    low, high = p, 1.0
    x = p + math.sqrt(2.0 * p * (1.0 - p) * epsilon) + (1.0 - p) * epsilon
    for _ in range(MOST_STEPS):
        if not low < x < high:
            x = 0.5 * (low + high)
        if x >= 1.0 - 1e-15:
            return 1.0
        excess = p * math.log(p / x) + (1.0 - p) * math.log((1.0 - p) / (1.0 - x)) - epsilon
        if abs(excess) <= 1e-11 * epsilon:
            break
        if excess > 0.0:
            high = x
        else:
            low = x
        x -= excess * x * (1.0 - x) / (x - p)
    return min(max(x, p), 1.0)


@jit
def bernoulli_least(p, epsilon):
    """Return the least q with kl(p, q) <= epsilon, of two coins."""
    return 1.0 - bernoulli_most(1.0 - p, epsilon)


@jit
def interval_minimum(edge_to, low, high, start, stop, V, below, elsewhere, outside):
    """Return min q V over distributions with `low <= q <= high`, and at most `elsewhere` on states that never followed.

    All of that mass may be where the least value `outside` is. Every row gets its least probabilities first, and the
    rest goes to where it costs least.
    """
    if stop == start:
        return outside
    left, value = 1.0, 0.0
    for e in range(start, stop):
        left -= low[e]
        value += low[e] * V[below + edge_to[e]]
    moved = min(left, elsewhere)
    value += moved * outside
    left -= moved
    # the successors by their values, ties by their place; rows are short
    v, at = -np.inf, -1
    for _ in range(stop - start):
        if left <= 0.0:
            break
        best = -1
        for e in range(start, stop):
            w = V[below + edge_to[e]]
            if (w > v or (w == v and e > at)) and (best < 0 or w < V[below + edge_to[best]]):
                best = e
        v, at = V[below + edge_to[best]], best
        moved = min(left, high[best] - low[best])
        value += moved * v
        left -= moved
    return value
