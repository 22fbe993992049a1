"""The algorithms after OAL, slow and obvious: optimisers of SciPy and dense NumPy arrays."""

import itertools

import numpy as np
from scipy.optimize import brentq, linprog, minimize

from oal.tabular.mdp import Trajectories
from reference import ReferenceOAL


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p, q) over the last axis' support of p."""
    at = p > 0
    return float((p[at] * np.log(p[at] / q[at])).sum())


def radius(n: float, outcomes: int, failure: float) -> float:
    return np.log(1 / failure) + (outcomes - 1) * np.log(np.e * (1 + n / (outcomes - 1)))


def kl_least(p: np.ndarray, V: np.ndarray, epsilon: float) -> float:
    """Minimise q V over {q: KL(p, q) <= epsilon}: q_i in proportion to p_i / (V_i - nu), nu by bisection.

    If even nu = min V leaves some of epsilon, the rest moves mass to the least value.
    """
    if not p.any():
        return float(V.min())
    inside, least = p > 0, V.min()

    def member(nu: float) -> np.ndarray:
        q = np.zeros_like(p)
        q[inside] = p[inside] / (V[inside] - nu)
        return q / q.sum()

    if np.ptp(V[inside]) == 0 and V[inside][0] == least:
        return float(p @ V)
    if least < V[inside].min() and divergence(p, member(least)) <= epsilon:
        q = member(least)
        kept = np.exp(divergence(p, q) - epsilon)
        return float(kept * (q @ V) + (1 - kept) * least)
    low, high = -28.0, 40.0  # logarithms of min V - nu
    for _ in range(200):
        middle = (low + high) / 2
        if divergence(p, member(least - np.exp(middle))) > epsilon:
            low = middle
        else:
            high = middle
    return float(member(least - np.exp(high)) @ V)


def kl_least_slowly(p: np.ndarray, V: np.ndarray, epsilon: float) -> float:
    """The value that a general optimiser finds; infinity where it ends outside of the set, which it sometimes does."""
    one = {"type": "eq", "fun": lambda q: q.sum() - 1}
    near = {"type": "ineq", "fun": lambda q: epsilon - divergence(p, np.maximum(q, 1e-12))}
    start = 0.9 * p + 0.1 / len(p)
    options = {"ftol": 1e-12, "maxiter": 1000}
    q = minimize(lambda q: q @ V, start, constraints=[one, near], bounds=[(0, 1)] * len(p), options=options).x
    inside = abs(q.sum() - 1) < 1e-9 and divergence(p, np.maximum(q, 1e-12)) < epsilon + 1e-9
    return float(q @ V) if inside else np.inf


def bernoulli_interval(p: float, epsilon: float) -> tuple[float, float]:
    """The ends of {q: kl(p, q) <= epsilon} by root finding."""
    kl = lambda q: divergence(np.array([p, 1 - p]), np.array([q, 1 - q]))  # noqa: E731
    tiny = 1e-15
    low = brentq(lambda q: kl(q) - epsilon, tiny, p) if p > 0 and kl(tiny) > epsilon else 0.0
    high = brentq(lambda q: kl(q) - epsilon, p, 1 - tiny) if p < 1 and kl(1 - tiny) > epsilon else 1.0
    return low, high


def interval_least(p: np.ndarray, V: np.ndarray, epsilon: float) -> float:
    """Minimise q V by linear programming; the states that never followed share one place, at the least value of all."""
    if not p.any():
        return float(V.min())
    seen = p > 0
    bounds = [bernoulli_interval(float(x), epsilon) for x in p[seen]]
    values = list(V[seen])
    if not seen.all():
        bounds.append((0.0, min(1.0, (~seen).sum() * bernoulli_interval(0.0, epsilon)[1])))
        values.append(V.min())
    found = linprog(values, A_eq=np.ones((1, len(values))), b_eq=[1.0], bounds=bounds)
    assert found.success, found.message
    return float(found.fun)


def transition_aware(demos: Trajectories, p: np.ndarray, mu: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """The estimator, trajectory by trajectory of states: their probabilities, and whether they are covered."""
    H, S, _ = shape
    shown: dict[tuple[int, int], set[int]] = {}
    for states, actions in zip(demos.states[::2], demos.actions[::2], strict=True):
        for h in range(H):
            shown.setdefault((h, int(states[h])), set()).add(int(actions[h]))
    action = {key: next(iter(found)) for key, found in shown.items() if len(found) == 1}
    d = np.zeros(shape)
    for h in range(H):
        for states in itertools.product(range(S), repeat=h + 1):
            if not all((t, s) in action for t, s in enumerate(states)):
                continue
            probability = mu[states[0]]
            for t in range(h):
                probability *= p[t, states[t], action[t, states[t]], states[t + 1]]
            d[h, states[h], action[h, states[h]]] += probability
    others = list(zip(demos.states[1::2], demos.actions[1::2], strict=True))
    for states, actions in others:
        for h in range(H):
            if any((t, int(states[t])) not in action for t in range(h + 1)):
                d[h, states[h], actions[h]] += 1 / len(others)
    return d


class ReferenceNewer(ReferenceOAL):
    """Algorithm 2 with SOAR's ensemble, confidence sets and the transition-aware expert, from whole trajectories."""

    def __init__(self, mdp, demos, settings, cost_set, **others) -> None:
        self.given, self.demos = [], demos
        super().__init__(mdp, demos, settings, cost_set, **others)

    def count(self, states, actions) -> None:
        # demonstrations and episodes each begin with the first model
        of_demos = getattr(self, "pi", None) is None
        before = len(self.given) if of_demos else self.k - 1
        self.given.append((before % max(self.settings.models, 1), states.copy(), actions.copy()))
        super().count(states, actions)

    def member_model(self, member: int) -> np.ndarray:
        counts, n = np.zeros((*self.shape, self.shape[1])), np.zeros(self.shape)
        for owner, states, actions in self.given:
            if owner == member:
                for h in range(self.shape[0]):
                    n[h, states[h], actions[h]] += 1
                    if h + 1 < self.shape[0]:
                        counts[h, states[h], actions[h], states[h + 1]] += 1
        if self.settings.pooled:
            counts = np.broadcast_to(counts.sum(0), counts.shape)
            n = np.broadcast_to(n[:-1].sum(0), n.shape)
        return counts / (n[..., None] + 2)

    def optimistic_next(self, h, p_bar, n, next_values, K):
        settings, (H, S, A) = self.settings, self.shape
        if self.known or not (settings.models or settings.bonus in ("kl", "intervals")):
            return super().optimistic_next(h, p_bar, n, next_values, K)
        if h + 1 == H:
            return np.zeros((S, A))
        if settings.models:
            values = np.array([self.member_model(member)[h] @ next_values for member in range(settings.models)])
            if settings.model_spread == "least":
                return values.min(0)
            return np.maximum(values.mean(0) - values.std(0, ddof=1), 0)
        visited = np.zeros(S, dtype=bool)  # states that were never visited may cost nothing
        for states in (*self.demos.states, *(states for _, states, _ in self.given)):
            visited[states if settings.pooled else states[h + 1]] = True
        V = np.where(visited, next_values, 0.0)
        found = np.zeros((S, A))
        failure = settings.delta / 3 / (S * A if settings.pooled else H * S * A)
        for s, a in np.ndindex(S, A):
            if n[h, s, a] == 0:
                found[s, a] = V.min()
            elif settings.bonus == "kl":
                epsilon = settings.bonus_scale * radius(n[h, s, a], S, failure) / n[h, s, a]
                found[s, a] = kl_least(p_bar[h, s, a], V, epsilon)
            else:
                epsilon = settings.bonus_scale * radius(n[h, s, a], 2, failure / S) / n[h, s, a]
                found[s, a] = interval_least(p_bar[h, s, a], V, epsilon)
        return found

    def expert_occupancy(self, p_bar, mu):
        if self.settings.expert_estimate == "empirical":
            return self.d_hat_expert
        return transition_aware(self.demos, p_bar, mu, self.shape)
