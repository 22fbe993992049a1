"""Slow, obvious references: Algorithm 2 transcribed line by line with dense NumPy arrays."""

import numpy as np

from oal import equations
from oal.tabular.costsets import CostSet
from oal.tabular.fastmath import uniform
from oal.tabular.learner import Settings
from oal.tabular.mdp import FiniteMDP, Trajectories


class ReferenceOAL:
    """Algorithm 2 with dense arrays `[H, S, A]`, every option included, one episode per call of `episode`."""

    def __init__(
        self,
        mdp: FiniteMDP,
        demos: Trajectories,
        settings: Settings,
        cost_set: CostSet,
        *,
        K: int,
        known: bool = False,
        initial_cost=None,
        expert: np.ndarray,
        stream: np.ndarray,
    ) -> None:
        self.mdp, self.settings, self.set, self.K, self.known = mdp, settings, cost_set, K, known
        self.stream = stream
        self.p = mdp.table()
        H, S, A = self.shape = mdp.shape
        self.counts = np.zeros((H, S, A, S))
        self.last_counts = np.zeros((S, A))  # n at the last step, which has no successor
        self.starts = np.zeros(S)
        self.d_hat_expert = demos.occupancy(self.shape)
        if settings.expert_model:
            for states, actions in zip(demos.states, demos.actions, strict=True):
                self.count(states, actions)
        self.pi = np.full(self.shape, 1 / A)
        if settings.policy_start == "bc":
            for h in range(H):
                for s in range(S):
                    seen = self.d_hat_expert[h, s].sum()
                    if seen > 0:
                        bc = self.d_hat_expert[h, s] / seen
                        self.pi[h, s] = (1 - settings.bc_smoothing) * bc + settings.bc_smoothing / A
        self.x = cost_set.start()
        if initial_cost is not None:
            self.x = self.x * 0 + initial_cost
        self.k = 0
        self.d_expert = equations.occupancy(self.p, expert, mdp.initial)
        self.occupancy_sum = np.zeros(self.shape)
        self.regret, self.empirical_regret = [], []

    def count(self, states, actions) -> None:
        self.starts[states[0]] += 1
        for h in range(self.shape[0] - 1):
            self.counts[h, states[h], actions[h], states[h + 1]] += 1
        self.last_counts[states[-1], actions[-1]] += 1

    def model(self):
        """Return p_bar, n and the initial distribution the learner believes in."""
        H = self.shape[0]
        counts = self.counts
        n = counts.sum(-1)
        if self.settings.pooled and H > 1:
            # n counts transitions: visits at the last step have no successor and say nothing about the dynamics.
            counts = np.broadcast_to(counts.sum(0), counts.shape)
            n = np.broadcast_to(n.sum(0), n.shape)
        else:
            n[-1] = self.last_counts
        p_bar = counts / np.maximum(n, 1)[..., None]
        mu = self.starts / max(self.starts.sum(), 1)
        if self.known:
            p_bar, n = self.p, np.full(n.shape, np.inf)
        if self.known or self.settings.initial == "known":
            mu = self.mdp.initial
        assert len(p_bar) == H
        return p_bar, n, mu

    def roll_out(self):
        H = self.shape[0]
        draw = lambda row: int(np.argmax(np.cumsum(row) > uniform(self.stream)))  # noqa: E731
        states, actions = np.zeros(H, dtype=int), np.zeros(H, dtype=int)
        s = draw(self.mdp.initial)
        for h in range(H):
            a = draw(self.pi[h, s])
            states[h], actions[h] = s, a
            if h + 1 < H:
                s = draw(self.p[h, s, a])
        return states, actions

    def optimistic_next(self, h, p_bar, n, next_values, K):
        """Return p_bar V less the bonus, of every (s, a) of a step."""
        settings = self.settings
        mean = p_bar[h] @ next_values
        if self.known:
            b = 0.0
        elif settings.bonus == "hoeffding":
            b = self.set.width * equations.bonus(n[h], self.shape, K, settings.delta)
        else:
            # The values are in the costs' units already; the range term is scaled by the width of the set.
            variance = (p_bar[h] * (next_values - mean[..., None]) ** 2).sum(-1)
            no_variance = equations.bernstein_bonus(n[h], 0 * variance, self.shape, K, settings.delta)
            full = equations.bernstein_bonus(n[h], variance, self.shape, K, settings.delta)
            b = full + (self.set.width - 1) * no_variance
        return mean - settings.bonus_scale * b

    def expert_occupancy(self, p_bar, mu):
        """Return d_hat^E, which the cost player compares with."""
        return self.d_hat_expert

    def episode(self) -> None:
        H, S, _ = self.shape
        settings = self.settings
        self.k += 1
        K = self.k if settings.anytime else self.K
        states, actions = self.roll_out()  # line 2
        p_bar, n, mu = self.model()
        d_hat = equations.occupancy(p_bar, self.pi, mu)  # line 3
        c = np.array(self.set.cost(self.x))

        self.occupancy_sum += equations.occupancy(self.p, self.pi, self.mdp.initial)
        difference = lambda d: self.set.coordinates(self.occupancy_sum - self.k * d)  # noqa: E731
        self.regret.append(self.set.support(difference(self.d_expert)))
        self.empirical_regret.append(self.set.support(difference(self.d_hat_expert)))

        Q = np.zeros(self.shape)  # lines 4-10
        after = np.zeros(S)
        for h in reversed(range(H)):
            next_values = after if h + 1 < H else np.zeros(S)
            Q[h] = np.maximum(c[h] - self.set.low + self.optimistic_next(h, p_bar, n, next_values, K), 0)
            after = (Q[h] * self.pi[h]).sum(-1)

        t_pi = settings.policy_step_scale * equations.policy_step_size(self.shape, K) / self.set.width
        t_c = settings.cost_step_scale * self.set.step_size(K)
        self.pi = equations.policy_step(self.pi, Q, t_pi)  # line 14
        gradient = self.set.coordinates(equations.cost_gradient(d_hat, self.expert_occupancy(p_bar, mu)))
        self.x = self.set.step(self.x, gradient, t_c)  # lines 16-17
        self.count(states, actions)  # line 19
        self.Q = Q
