"""Every tabular equation of the paper as one pure function, in the paper's order.

Costs are minimised. `d` are occupancies `[H, S, A]`, `p` transitions `[H, S, A, S']`, `pi` policies `[H, S, A]`, `c`
costs `[H, S, A]`; steps count from zero. These are the definitions: compiled code elsewhere is tested against
them. Each docstring names the place in the paper.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


# Section 2: preliminaries --------------------------------------------------------------------------------------------


def action_values(p: Array, pi: Array, c: Array) -> tuple[Array, Array]:
    """Evaluate a policy backwards in time: Q_h = c_h + p_h V_{h+1}, V_h = <Q_h, pi_h>, V_{H+1} = 0.

    Paper: Section 2, definitions of V and Q.
    """
    Q, V = np.zeros_like(c), np.zeros(c.shape[:2])
    after = np.zeros(c.shape[1])
    for h in reversed(range(len(c))):
        Q[h] = c[h] + p[h] @ after
        V[h] = after = (Q[h] * pi[h]).sum(-1)
    return Q, V


def occupancy(p: Array, pi: Array, mu: Array) -> Array:
    """Compute d_h(s, a) = Pr(s_h = s, a_h = a | mu, pi, p) by forward recursion.

    Paper: Section 2, occupancy measure. Rows of `p` that sum to less than one lose the rest of their mass.
    """
    d = np.zeros_like(pi)
    mass = mu
    for h in range(len(pi)):
        d[h] = mass[:, None] * pi[h]
        mass = np.einsum("sa,sat->t", d[h], p[h])
    return d


def inner(c: Array, d: Array) -> float:
    """Compute <c, d> = sum_{h,s,a} c_h(s, a) d_h(s, a), the value of a policy with occupancy d.

    Paper: Section 2, E[V_1] = <c, d>.
    """
    return float((c * d).sum())


def feature_expectations(d: Array, phi: Array) -> Array:
    """Compute Phi = E_d phi(s) = sum_{h,s,a} d_h(s, a) phi(s); phi is `[S, d]`.

    Paper: Section 2, apprenticeship learning, linear costs.
    """
    return d.sum((0, 2)) @ phi


# Section 3: the scheme -----------------------------------------------------------------------------------------------


def policy_step(pi: Array, Q: Array, t: float) -> Array:
    """Solve argmin_x <Q, x> + KL(x || pi) / t over distributions: pi exp(-t Q), normalised over the last axis.

    Paper: equation "OAL MD policy update" and Algorithm 2, line 14. The paper's equation multiplies the KL by t^pi
    where its algorithm multiplies Q: the algorithm's reading is used, a larger t is a larger step.
    """
    with np.errstate(divide="ignore"):
        logits = np.log(pi) - t * Q
    x = np.exp(logits - logits.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def cost_gradient(d: Array, d_expert: Array) -> Array:
    """Compute the ascent direction of the cost player, -grad_c L(pi, c) = d - d^E.

    Paper: Section 3.1, cost update: L(pi, c) = -(V^pi - V^E) is minimised by the cost player.
    """
    return d - d_expert


def box_step(c: Array, gradient: Array, t: float) -> Array:
    """Solve argmax_x <gradient, x> - ||x - c||^2 / (2 t) over [0, 1]: a step, then clipping.

    Paper: equation "OAL MD cost update", Algorithm 2, lines 16-17, and appendix "cost update tabular" (whose minus
    sign is a slip: line 16 has the plus).
    """
    return np.clip(c + t * gradient, 0.0, 1.0)


def ball_step(w: Array, gradient: Array, t: float) -> Array:
    """Solve argmax_x <gradient, x> - ||x - w||^2 / (2 t) over the L2 unit ball: a step, then scaling back.

    Paper: Section 2, W = unit ball, with the Euclidean Bregman divergence (appendix, costs optimization).
    """
    x = w + t * gradient
    return x / max(1.0, float(np.linalg.norm(x)))


def simplex_step(w: Array, gradient: Array, t: float) -> Array:
    """Solve argmax_x <gradient, x> - KL(x || w) / t over the simplex: w exp(t gradient), normalised.

    Paper: Section 2, W = simplex, with the KL Bregman divergence (appendix, costs optimization; MWAL's update).
    """
    x = w * np.exp(t * (gradient - gradient.max()))
    return x / x.sum()


# Section 3.2: Algorithm 2 --------------------------------------------------------------------------------------------


def empirical_model(counts: Array) -> Array:
    """Compute p_bar_h(s' | s, a) = n_h(s, a, s') / (n_h(s, a) v 1); rows never visited are zero.

    Paper: Algorithm 2, last line.
    """
    return counts / np.maximum(counts.sum(-1, keepdims=True), 1.0)


def optimistic_values(p_bar: Array, pi: Array, c: Array, b: Array) -> tuple[Array, Array]:
    """Evaluate optimistically: Q_h = max{c_h - b_h + p_bar_h V_{h+1}, 0}, V_h = <Q_h, pi_h>.

    Paper: Algorithm 2, lines 5-10.
    """
    Q, V = np.zeros_like(c), np.zeros(c.shape[:2])
    after = np.zeros(c.shape[1])
    for h in reversed(range(len(c))):
        Q[h] = np.maximum(c[h] - b[h] + p_bar[h] @ after, 0.0)
        V[h] = after = (Q[h] * pi[h]).sum(-1)
    return Q, V


def bonus_logarithm(shape: tuple[int, int, int], K: float, delta: float) -> float:
    """Compute log(3 H^2 S A K / delta') with delta' = delta / 3.

    Paper: appendix, policy optimization (the bonus), and the lemma of the good event.
    """
    H, S, A = shape
    return float(np.log(3 * H**2 * S * A * K / (delta / 3)))


def bonus(n: Array, shape: tuple[int, int, int], K: float, delta: float) -> Array:
    """Compute the UCB bonus b = sqrt(4 H^2 S log(3 H^2 S A K / delta') / (n v 1)).

    Paper: appendix, policy optimization.
    """
    H, S, _ = shape
    return np.sqrt(4 * H**2 * S * bonus_logarithm(shape, K, delta) / np.maximum(n, 1.0))


def bernstein_bonus(n: Array, variance: Array, shape: tuple[int, int, int], K: float, delta: float) -> Array:
    """Compute the empirical-Bernstein bonus sqrt(2 Var L / (n v 1)) + 7 H L / (3 (n v 1)), L the bonus's logarithm.

    Not in the paper; `variance` is that of V_{h+1} under the empirical model.
    """
    L = bonus_logarithm(shape, K, delta)
    n = np.maximum(n, 1.0)
    return np.sqrt(2 * variance * L / n) + 7 * shape[0] * L / (3 * n)


def policy_step_size(shape: tuple[int, int, int], K: float) -> float:
    """Compute t^pi = sqrt(2 log A / (H^2 K)).

    Paper: appendix, lemma of the policy player's regret.
    """
    H, _, A = shape
    return float(np.sqrt(2 * np.log(A) / (H**2 * K)))


def box_step_size(shape: tuple[int, int, int], K: float) -> float:
    """Compute t^c = sqrt(S A / (2 K)).

    Paper: appendix, end of the proof of the cost player's regret.
    """
    _, S, A = shape
    return float(np.sqrt(S * A / (2 * K)))


def ball_step_size(largest_feature: float, H: int, K: float) -> float:
    """Compute t^c = 1 / (2 H max||phi|| sqrt(K)): the OMD bound's best constant step from w = 0 in the unit ball.

    Paper: appendix, OMD regret bound, with B <= 1/2 and ||gradient|| <= 2 H max||phi||.
    """
    return float(1.0 / (2 * H * max(largest_feature, 1e-300) * np.sqrt(K)))


def simplex_step_size(largest_entry: float, dimension: int, H: int, K: float) -> float:
    """Compute t^c = sqrt(2 log d / K) / (2 H max|phi|): the OMD bound's best constant step in the simplex.

    Paper: appendix, OMD regret bound, with KL <= log d and ||gradient||_inf <= 2 H max|phi|.
    """
    return float(np.sqrt(2 * np.log(max(dimension, 2)) / K) / (2 * H * max(largest_entry, 1e-300)))


# Regret --------------------------------------------------------------------------------------------------------------


def box_support(x: Array) -> float:
    """Compute max_{c in [0,1]} <c, x>: the sum of positive parts. Paper: Definition 1 over bounded costs."""
    return float(np.maximum(x, 0.0).sum())


def ball_support(x: Array) -> float:
    """Compute max_{||w|| <= 1} <w, x>: the L2 norm. Paper: Section 2, feature expectation matching."""
    return float(np.linalg.norm(x))


def simplex_support(x: Array) -> float:
    """Compute max over the simplex of <w, x>: the largest entry. Paper: Section 2, MWAL's cost set."""
    return float(x.max())


def regret_bound(shape: tuple[int, int, int], K: Array | float, N: float) -> Array | float:
    """Compute sqrt(H^4 S^2 A K) + sqrt(H^3 S A K^2 / N), the theorem's bound with constants one and no logarithms.

    Paper: Theorem 1.
    """
    H, S, A = shape
    return np.sqrt(H**4 * S**2 * A * K) + np.sqrt(H**3 * S * A * np.square(K) / N)


def statistical_bound(shape: tuple[int, int, int], N: float, delta: float) -> float:
    """Compute sqrt(H^3 S A log(4 / delta') / (2 N)), which |<c, d^E - d_hat^E>| exceeds with probability <= delta'.

    Paper: appendix, failure event F^V.
    """
    H, S, A = shape
    return float(np.sqrt(H**3 * S * A * np.log(4 / (delta / 3)) / (2 * N)))


def value_difference(
    p: Array, pi: Array, c: Array, p_other: Array, pi_other: Array, c_other: Array, mu: Array
) -> float:
    """Compute V^{pi, M} - V^{pi', M'} by the value difference lemma.

    sum_h E_{pi', p'} [ <Q_h^{pi, M}, pi_h - pi'_h> + (c_h - c'_h) + (p_h - p'_h) V_{h+1}^{pi, M} ].
    Paper: appendix, corollary "Value difference".
    """
    Q, V = action_values(p, pi, c)
    after = np.concatenate([V[1:], np.zeros_like(V[:1])])
    d = occupancy(p_other, pi_other, mu)
    advantage = (Q * (pi - pi_other)).sum(-1, keepdims=True) * np.ones_like(Q)
    model = c - c_other + np.einsum("hsat,ht->hsa", p - p_other, after)
    return inner(advantage + model, d)
