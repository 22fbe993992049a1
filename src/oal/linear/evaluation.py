"""The AL regret of the learner's policies against the true expert: exact for one-hot features, else with an interval.

A policy's expected features follow from its anchor-to-anchor flow M_h[i] = E_{s ~ mu_i} sum_a pi_h(a | s) phi(s, a):
the next step's are x M. With one-hot features M is computed exactly, over all successors. In an anchored problem it is

    M = M_expert (exact, one visit to every state) + mean over sampled states of the difference of the two policies' f,

so that what is uncertain vanishes as the learner nears the expert. The samples are drawn once, anew for each step, in
REPLICATES independent panels that the learner never sees; each panel gives its own regret. Choosing the worst cost on
the panel that it is measured on counts noise as regret, choosing it on the others misses some: the mean of the former
bounds the regret from above, the mean of the latter from below, and each is moved outwards by its standard error.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.errors import InputError
from oal.linear import features, players
from oal.linear.costs import LinearCosts
from oal.linear.players import Roster, add_features, apply_term, catch_up, set_bonus
from oal.linear.problem import LinearMDP, block_sample
from oal.tabular.fastmath import jit

REPLICATES = 8
STUDENT = 2.3646242515927844
"""The 0.975 quantile of Student's t with 7 degrees of freedom."""
LARGEST_EXACT = 2_000_000
"""Entries of an exact panel."""


class Panel(NamedTuple):
    """Where the policies are looked at. Entry e of panel r at layer l says: from anchor `owner` one comes to the state
    in row `place` with probability `weight`.

    Layer h leads to step h; a discounted problem has a layer for the first state and one for all others.
    """

    roster: Roster
    owner: NDArray[np.int64]  # [layers, panels, entries]
    place: NDArray[np.int64]
    weight: Array
    first: Array
    """The anchors' shares before the first step."""
    base: Array
    """A policy that is taken off, at the roster's rows: the expert's, or zeros."""
    base_flow: Array
    """Its flow, `[layers, d, d]`."""


def panel(problem: LinearMDP, samples: int, rng: np.random.Generator) -> Panel:
    """Return the states at which a problem's policies are measured; `samples` of each anchor in each panel."""
    return _enumerated(problem) if problem.model.kind == features.ONE_HOT else _sampled(problem, samples, rng)


def _enumerated(problem: LinearMDP) -> Panel:
    """Every state, and every successor of every (s, a)."""
    table, S, d = problem.model.transitions, problem.n_states, problem.dimension
    starts = np.flatnonzero(table.initial)
    layers = [(np.zeros_like(starts), starts, table.initial[starts])]
    rows = np.repeat(np.arange(len(table.indptr) - 1), np.diff(table.indptr))
    for h in range((problem.horizon or 2) - 1):
        here = slice(None) if table.stationary else slice(*table.indptr[[h * d, (h + 1) * d]])
        layers.append((rows[here] % d, table.successors[here], table.probabilities[here]))
    longest = max(len(owner) for owner, _, _ in layers)
    if longest * len(layers) > LARGEST_EXACT:
        raise InputError(f"{problem.name} has too many transitions for its exact regret: use regret='none'")

    def stacked(column: int, dtype: type) -> NDArray:
        out = np.zeros((len(layers), 1, longest), dtype=dtype)
        for layer, entries in enumerate(layers):
            out[layer, 0, : len(entries[column])] = entries[column]
        return out

    roster = players.roster(problem.model, problem.steps, S)
    roster.states[:] = np.arange(S)
    return Panel(
        roster,
        stacked(0, np.int64),
        stacked(1, np.int64),
        stacked(2, np.float64),
        np.eye(1, d).ravel(),
        np.zeros_like(roster.policy),
        np.zeros((len(layers), d, d)),
    )


def _sampled(problem: LinearMDP, samples: int, rng: np.random.Generator) -> Panel:
    """States of each anchor for each panel and step, and the expert's exact flow."""
    if problem.expert is None:
        raise InputError(f"{problem.name} has no expert, whose flow its regret is measured from: use regret='none'")
    d, entries = problem.dimension, problem.dimension * samples
    roster = players.roster(problem.model, problem.steps, REPLICATES * entries)
    for h in range(problem.steps):
        states = [block_sample(problem, samples, rng).ravel() for _ in range(REPLICATES)]
        roster.states[h] = np.concatenate(states)
    base = np.empty_like(roster.policy)
    for h in range(problem.steps):
        index, value = problem.sparse_phi(roster.states[h])
        scores = (problem.expert[h][index] * value).sum(-1)
        base[h] = np.exp(scores.min(-1, keepdims=True) - scores)
        base[h] /= base[h].sum(-1, keepdims=True)
    layers = problem.horizon or 2
    shape = (layers, REPLICATES, entries)
    owner = np.ascontiguousarray(np.broadcast_to(np.repeat(np.arange(d), samples), shape))
    place = np.ascontiguousarray(np.broadcast_to(np.arange(REPLICATES * entries).reshape(shape[1:]), shape))
    flow = problem.expert_flow if problem.horizon is not None else np.repeat(problem.expert_flow, 2, axis=0)
    weight = np.full(shape, 1.0 / samples)
    return Panel(roster, owner, place, weight, problem.model.start, base, np.ascontiguousarray(flow))


# What the panels say of the current policy ---------------------------------------------------------------------------


@jit
def flow(panel, layer, h, r, e, mass, out):
    """Add entry e's share in the features after a layer: mass weight sum_a (pi - base)(a | s) phi(s, a)."""
    row = panel.place[layer, r, e]
    mass *= panel.weight[layer, r, e]
    if mass != 0.0:
        for a in range(panel.base.shape[2]):
            change = panel.roster.policy[h, row, a] - panel.base[h, row, a]
            add_features(panel.roster, h, row, a, mass * change, out)


@jit
def finite_features(panel, out):
    """Write the expected features of the policy at each step into `out[panels, H, d]`."""
    out[:] = 0.0
    for r in range(out.shape[0]):
        shares = panel.first
        for h in range(out.shape[1]):
            out[r, h] = shares @ panel.base_flow[h]
            for e in range(panel.owner.shape[2]):
                flow(panel, h, h, r, e, shares[panel.owner[h, r, e]], out[r, h])
            shares = out[r, h]


@jit
def matrices(panel, first, step):
    """Write the features of the first step `first[panels, d]` and the flow `step[panels, d, d]`, discounted."""
    for r in range(len(first)):
        first[r] = panel.first @ panel.base_flow[0]
        step[r] = panel.base_flow[1]
        for e in range(panel.owner.shape[2]):
            flow(panel, np.int64(0), np.int64(0), r, e, panel.first[panel.owner[0, r, e]], first[r])
            flow(panel, np.int64(1), np.int64(0), r, e, np.float64(1.0), step[r, panel.owner[1, r, e]])


@jit
def start_panel(model, panel, terms, count, rule):
    """Bring the panel's rows to the policy after `count` terms."""
    for h in range(len(panel.roster.states)):
        catch_up(model, panel.roster, terms, h, count, np.int64(0), panel.roster.states.shape[1], rule)


@jit
def follow(panel, terms, j, fresh, rule):
    """Take in term j; `fresh[h]` says that its bonus matrix is another one than the last term's, and is reset."""
    none, rows = np.int64(0), panel.roster.states.shape[1]
    for h in range(len(panel.roster.states)):
        if fresh[h]:
            set_bonus(panel.roster, h, none, rows, terms.inverse[h, terms.epoch[h, j]])
            fresh[h] = False
        apply_term(panel.roster, terms, h, j, none, rows, rule)


class Ledger:
    """The summed difference of expected features to the expert, for each panel, and the regret from it."""

    def __init__(self, problem: LinearMDP, costs: LinearCosts, where: Panel) -> None:
        self.problem, self.costs, self.panel = problem, costs, where
        self.panels = where.owner.shape[1]
        self.difference = np.zeros((self.panels, problem.steps, problem.dimension))
        self.expert = self._expert()

    @property
    def exact(self) -> bool:
        return self.panels == 1

    def features(self) -> Array:
        """Return the expected features of the policy that the panels hold, `[panels, H, d]`."""
        out = np.empty_like(self.difference)
        if self.problem.horizon is not None:
            finite_features(self.panel, out)
            return out
        d = self.problem.dimension
        first, step = np.empty((self.panels, d)), np.empty((self.panels, d, d))
        matrices(self.panel, first, step)
        for r in range(self.panels):
            out[r, 0] = np.linalg.solve((np.eye(d) - self.problem.discount * step[r]).T, first[r])
        return out

    def _expert(self) -> Array:
        """Return the expert's expected features `[H, d]`: those of a panel that holds the expert's own policy."""
        problem, roster = self.problem, self.panel.roster
        assert problem.expert is not None
        kept = roster.policy.copy()
        for h in range(problem.steps):
            if self.exact:
                scores = problem.expert[h].reshape(roster.policy.shape[1:])
                weights = np.exp(scores.min(-1, keepdims=True) - scores)
                roster.policy[h] = weights / weights.sum(-1, keepdims=True)
            else:
                roster.policy[h] = self.panel.base[h]
        found = self.features()[0]
        roster.policy[:] = kept
        return found

    def settle(self, episodes: int) -> tuple[float, float, float]:
        """Add `episodes` episodes of the panels' policy; return the regret so far and its interval."""
        self.difference += episodes * (self.features() - self.expert)
        return self.interval(self.difference)

    def gap(self) -> tuple[float, float, float]:
        """Return the gap of the panels' policy to the expert and its interval."""
        return self.interval(self.features() - self.expert)

    def interval(self, difference: Array) -> tuple[float, float, float]:
        """Return the support of the cost set at a difference `[panels, H, d]`, and its 95 % interval."""
        found = float(self.costs.support(difference.mean(0)))
        if self.exact:
            return found, found, found
        above = self.costs.support(difference)
        others = (difference.sum(0) - difference) / (self.panels - 1)
        below = (self.costs.best_response(others) * difference).sum((1, 2))
        outwards = STUDENT / np.sqrt(self.panels)
        low, high = below.mean() - outwards * below.std(ddof=1), above.mean() + outwards * above.std(ddof=1)
        if self.costs.holds_zero:
            low = max(low, 0.0)
        return found, float(min(low, found)), float(max(high, found))
