"""The exact regret while Algorithm 2 runs: the true occupancy of each policy played, summed and measured, compiled.

Learning reads nothing of this. `oal.tabular.regret` defines the regret and splits it from the sums kept here.
"""

import math
from typing import NamedTuple

import numpy as np

from oal import equations
from oal.equations import Array
from oal.tabular.costsets import BOX, L2, CostSet
from oal.tabular.fastmath import jit, jit_inlined
from oal.tabular.problem import Trajectories
from oal.tabular.slots import find
from oal.tabular.vectors import LANES, folded, load, maximum, splat, store


class Ledger(NamedTuple):
    """What is accumulated to know the regret exactly; dense, so its size is that of the MDP."""

    exact: bool
    decompose: bool
    expert: Array  # [H * S * A] true occupancy of the expert
    demonstrated: Array  # [H * S * A] empirical occupancy of the demonstrations
    occupancy_sum: Array  # [H * S * A] of the learner's true occupancies
    cost_sum: Array  # [H * S * A] of the costs played (box)
    weight_sum: Array  # [d] of the weights played (linear costs)
    feature_sum: Array  # [d] of the learner's true feature expectations
    true_expert_features: Array  # [d]
    occupancy: Array  # [H * S * A] scratch
    mass: Array  # [S] scratch
    mass_after: Array  # [S] scratch
    totals: Array  # [2]: sum of <c_k, d_k>; episodes so far


def open_ledger(cost_set: CostSet, demos: Trajectories, expert: Array | None, decompose: bool) -> Ledger:
    """Make an empty ledger against the expert's true occupancy and the demonstrations; without an expert, keep none."""
    exact, d = expert is not None, cost_set.phi.shape[1]
    if expert is None:
        expert = demonstrated = np.zeros((0, 0, 0))
        expert_features = np.zeros(d)
    else:
        demonstrated = demos.occupancy(cost_set.shape)
        expert_features = equations.feature_expectations(expert, cost_set.phi)
    return Ledger(
        exact=exact,
        decompose=decompose,
        expert=expert.ravel(),
        demonstrated=demonstrated.ravel(),
        occupancy_sum=np.zeros(expert.size),
        cost_sum=np.zeros(expert.size if decompose and cost_set.kind == "box" else 0),
        weight_sum=np.zeros(d),
        feature_sum=np.zeros(d),
        true_expert_features=expert_features,
        occupancy=np.zeros(expert.size),
        mass=np.zeros(expert.shape[1]),
        mass_after=np.zeros(expert.shape[1]),
        totals=np.zeros(2),
    )


@jit_inlined
def true_occupancy(slots, rules, truth, ledger):
    """Write the occupancy of the current policy in the true MDP into the ledger; return <c_k, d_k> of the box."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    keys, values, hashing = slots.place_keys, slots.place_values, slots.hashing
    base, policy, cost = slots.base, slots.policy, slots.cost
    indptr, successors, probabilities = truth.indptr, truth.successors, truth.probabilities
    d, mass, after = ledger.occupancy, ledger.mass, ledger.mass_after
    played = 0.0
    mass[:] = truth.initial
    for h in range(H):
        layer = 0 if truth.stationary else h
        after[:] = 0.0
        for s in range(S):
            if mass[s] == 0.0:
                for a in range(A):
                    d[(h * S + s) * A + a] = 0.0
                continue
            place = find(keys, values, hashing, h * S + s)
            slot = base[h] + place
            for a in range(A):
                x = mass[s] * (1.0 / A if place < 0 else policy[slot, a])
                d[(h * S + s) * A + a] = x
                played += x * (rules.default_cost if place < 0 else cost[slot, a])
                if h + 1 < H:
                    row = (layer * S + s) * A + a
                    for e in range(indptr[row], indptr[row + 1]):
                        after[successors[e]] += x * probabilities[e]
        mass, after = after, mass
    return played


TERMS = 32
"""How many sums a long sum is kept in until its end."""


@jit
def settle_box(occupancy, occupancy_sum, expert, demonstrated, k):
    """Add an occupancy to the sum; return the box's regret against the expert and against the demonstrations.

    The support function of the box is the sum of positive parts. It is added up in 32 sums, which vector registers
    hold, and what is left over in four, then one by one: the same order on every machine, and in `lanes`.
    """
    sums = len(occupancy_sum) // TERMS * TERMS
    r0, r1, r2, r3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    e0, e1, e2, e3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for i in range(0, sums // LANES, 4):
        x0 = load(occupancy_sum, i) + load(occupancy, i)
        x1 = load(occupancy_sum, i + 1) + load(occupancy, i + 1)
        x2 = load(occupancy_sum, i + 2) + load(occupancy, i + 2)
        x3 = load(occupancy_sum, i + 3) + load(occupancy, i + 3)
        store(occupancy_sum, i, x0)
        store(occupancy_sum, i + 1, x1)
        store(occupancy_sum, i + 2, x2)
        store(occupancy_sum, i + 3, x3)
        r0 += maximum(x0 - load(expert, i) * k, 0.0)
        r1 += maximum(x1 - load(expert, i + 1) * k, 0.0)
        r2 += maximum(x2 - load(expert, i + 2) * k, 0.0)
        r3 += maximum(x3 - load(expert, i + 3) * k, 0.0)
        e0 += maximum(x0 - load(demonstrated, i) * k, 0.0)
        e1 += maximum(x1 - load(demonstrated, i + 1) * k, 0.0)
        e2 += maximum(x2 - load(demonstrated, i + 2) * k, 0.0)
        e3 += maximum(x3 - load(demonstrated, i + 3) * k, 0.0)
    regret, empirical = folded((r0 + r1) + (r2 + r3)), folded((e0 + e1) + (e2 + e3))
    if sums == len(occupancy_sum):
        return regret, empirical
    above, beyond = np.zeros(4), np.zeros(4)
    above[0], beyond[0] = regret, empirical
    fours = len(occupancy_sum) // 4 * 4
    for i in range(sums, len(occupancy_sum)):
        if i == fours:
            above[0], beyond[0] = folded_four(above), folded_four(beyond)
        x = occupancy_sum[i] + occupancy[i]
        occupancy_sum[i] = x
        j = i % 4 if i < fours else 0
        above[j] += max(x - k * expert[i], 0.0)
        beyond[j] += max(x - k * demonstrated[i], 0.0)
    if fours == len(occupancy_sum):
        return folded_four(above), folded_four(beyond)
    return above[0], beyond[0]


@jit
def folded_four(x):
    """Return the sum of four numbers: the halves added first."""
    return (x[0] + x[2]) + (x[1] + x[3])


@jit
def support_of_difference(cost_set, total, expert, k):
    """Support function of the linear cost sets at `total - k * expert`: the L2 norm, or the largest entry."""
    square, largest = 0.0, -np.inf
    for i in range(len(total)):
        x = total[i] - k * expert[i]
        square += x * x
        largest = max(largest, x)
    return math.sqrt(square) if cost_set == L2 else largest


@jit_inlined
def settle(slots, rules, truth, ledger, weights):
    """Account for the episode about to be learned from; return the regret so far, true and empirical."""
    ledger.totals[1] += 1.0
    k = ledger.totals[1]
    played = true_occupancy(slots, rules, truth, ledger)
    if rules.cost_set == BOX:
        regret, empirical = settle_box(ledger.occupancy, ledger.occupancy_sum, ledger.expert, ledger.demonstrated, k)
        if ledger.decompose:
            ledger.cost_sum[:] += rules.default_cost
            for h in range(rules.horizon):
                for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
                    s = slots.state[slot]
                    for a in range(rules.n_actions):
                        ledger.cost_sum[(h * rules.n_states + s) * rules.n_actions + a] += (
                            slots.cost[slot, a] - rules.default_cost
                        )
    else:
        played = 0.0
        ledger.occupancy_sum[:] += ledger.occupancy
        for h in range(rules.horizon):
            for s in range(rules.n_states):
                first = (h * rules.n_states + s) * rules.n_actions
                mass = ledger.occupancy[first : first + rules.n_actions].sum()
                if mass > 0.0:
                    for i in range(len(weights)):
                        ledger.feature_sum[i] += mass * rules.features[s, i]
                        played += weights[i] * mass * rules.features[s, i]
        for i in range(len(weights)):
            ledger.weight_sum[i] += weights[i]
        regret = support_of_difference(rules.cost_set, ledger.feature_sum, ledger.true_expert_features, k)
        empirical = support_of_difference(rules.cost_set, ledger.feature_sum, rules.expert_features, k)
    ledger.totals[0] += played
    return regret, empirical
