"""The formulas of learning with linear function approximation, each as one pure function.

OGAP: Liu, Zhang, Fu, Yang and Wang (2021), "Provably efficient generative adversarial imitation learning for online
and offline setting with linear function approximation". ILARL and BRIG: Viano, Skoulakis and Cevher (2024), "Imitation
learning in discounted linear MDPs without exploration assumptions". Both maximise rewards or write their own signs;
here costs are minimised. `phi` are features `[..., d]`, `Lambda` is `[d, d]`. These are the definitions: the compiled
code is tested against them. How the papers were read is in docs/deviations.md (L1 and on).
"""

import numpy as np

from oal.equations import Array


def covariance(phi: Array, ridge: float) -> Array:
    """Compute Lambda = ridge I + sum_i phi_i phi_i^T over the rows of `phi[n, d]`."""
    return ridge * np.eye(phi.shape[1]) + phi.T @ phi


def least_squares(phi: Array, targets: Array, ridge: float) -> Array:
    """Compute theta = Lambda^-1 sum_i phi_i y_i: least-squares value iteration with the targets y_i = V(s'_i)."""
    return np.asarray(np.linalg.solve(covariance(phi, ridge), phi.T @ targets), dtype=np.float64)


def elliptic_norm(phi: Array, Lambda: Array) -> Array:
    """Compute sqrt(phi^T Lambda^-1 phi), how little the data say about a direction."""
    return np.sqrt(np.einsum("...i,...i->...", phi, np.linalg.solve(Lambda, phi[..., None])[..., 0]))


def bonus_factor(d: int, H: float, K: float, delta: float) -> float:
    """Compute beta = d H sqrt(log(2 d H K / delta)), which multiplies the elliptic norm (the theorems' constant is 1).

    In discounted problems H is 1 / (1 - gamma).
    """
    return float(d * H * np.sqrt(np.log(2 * d * H * K / delta)))


def optimistic_q(phi: Array, theta: Array, Lambda: Array, beta: float, high: float) -> Array:
    """Compute Q(s, a) = clip(phi . theta - beta sqrt(phi^T Lambda^-1 phi), 0, high)."""
    return np.clip(phi @ theta - beta * elliptic_norm(phi, Lambda), 0.0, high)


def soft_minimum(pi: Array, Q: Array, t: float) -> Array:
    """Compute V = min_x <x, Q> + KL(x || pi) / t = -log(sum_a pi exp(-t Q)) / t; <pi, Q> where t is 0."""
    if t == 0:
        return (pi * Q).sum(-1)
    least = Q.min(-1)
    return least - np.log((pi * np.exp(-t * (Q - least[..., None]))).sum(-1)) / t


def next_features(phi_bar: Array, phi: Array, f_next: Array, ridge: float) -> Array:
    """Compute the next step's expected features sum_i (phi_bar^T Lambda^-1 phi_i) f(s'_i), f(s) = sum_a pi phi(s, a).

    This is the model of least squares: E[g(s')] = phi_bar^T Lambda^-1 sum_i phi_i g(s'_i) for every g. With one-hot
    features and no ridge it is the empirical model of Algorithm 2.
    """
    return (phi @ np.linalg.solve(covariance(phi, ridge), phi_bar)) @ f_next


def potential_bound(d: int, K: float, ridge: float) -> float:
    """Compute 2 d log(1 + K / (ridge d)), which sum_k min(1, phi_k^T Lambda_k^-1 phi_k) cannot exceed if |phi| <= 1.

    The elliptic potential lemma; Lambda_k holds the features before phi_k.
    """
    return float(2 * d * np.log1p(K / (ridge * d)))
