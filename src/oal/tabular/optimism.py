"""Algorithm 2 with another optimism than its bonus: the least value in a confidence set, or the spread of an ensemble.

Only lines 6-8 of Algorithm 2 differ:

    kl, intervals   Q <- c + min_{q in the set of (h, s, a)} q V        see `confidence`
    ensemble        Q <- c + min_l p_hat_l V, or the mean less the standard deviation over l, not below 0

The ensemble is SOAR's (Viel, Viano and Cevher 2025, "IL-SOAR: Imitation Learning with Soft Optimistic Actor cRitic",
the tabular algorithm): L models, each with its own episodes, `p_hat_l(s' | s, a) = n_l(s, a, s') / (n_l(s, a) + 2)`.
The two visits that nobody made lead nowhere, where nothing costs, and keep each model on the optimistic side.

Also here, whatever the optimism: the expert's occupancy estimated anew with each episode's model (`transition_aware`).
"""

import math
from typing import NamedTuple

import numpy as np

from oal.equations import Array
from oal.tabular.algorithm2 import (
    LARGE,
    count_trajectory,
    estimate_occupancy,
    estimate_occupancy_in_blocks,
    roll_out,
    set_linear_costs,
    update_players,
    update_weights,
)
from oal.tabular.confidence import bernoulli_least, bernoulli_most, interval_minimum, kl_minimum, kl_radius
from oal.tabular.costsets import BOX
from oal.tabular.fastmath import exponentials, jit
from oal.tabular.ledger import settle
from oal.tabular.slots import find, has_room
from oal.tabular.transition_aware import Covered, cover_slots, estimate_expert

BONUS, KL, INTERVALS, LEAST, SPREAD = 0, 1, 2, 3, 4
PRIOR_VISITS = 2.0
"""Of each row in each model of an ensemble, to nowhere."""


class Options(NamedTuple):
    """What this optimism adds to the rules of Algorithm 2."""

    optimism: int
    failure: float  # probability that a row's confidence set is wrong
    covered: Covered  # where the expert's actions are known, for the transition-aware estimate


class Bounds(NamedTuple):
    """The intervals of the transition probabilities; they follow from the counts and are kept for speed."""

    low: Array  # [edges]
    high: Array  # [edges]
    elsewhere: Array  # [rows, A] of all states together that were never seen to follow


# The parts of Algorithm 2 are inlined wherever they are called; compiled once here, for the callers of this kind.


@jit
def play_episode(slots, rules, counted, truth, ledger, weights, stream, states, actions):
    """Play an episode; return the regret so far, true and empirical, if it is kept."""
    roll_out(slots, rules, truth, stream, states, actions)
    if ledger.exact:
        return settle(slots, counted, truth, ledger, weights)
    return 0.0, 0.0


@jit
def occupy(slots, rules):
    """Estimate the policy's occupancy with the model."""
    if slots.base[rules.horizon] * rules.n_actions > LARGE:
        estimate_occupancy_in_blocks(slots, rules)
    else:
        estimate_occupancy(slots, rules)


@jit
def count_episode(slots, rules, weights, states, actions):
    """Count a trajectory; return whether something new was opened."""
    opened = count_trajectory(slots, rules, states, actions)
    if opened and rules.cost_set != BOX:
        set_linear_costs(slots, rules, weights)
    return opened


@jit
def learn(slots, rules, counted, options, truth, ledger, weights, stream, first, regrets, trajectories, keep):
    """Run from episode `first` until `regrets` or the slots are full; return how many episodes were done.

    `counted` are the rules with the features of the demonstrations themselves, which the ledger measures against.
    """
    states = np.empty(rules.horizon, dtype=np.int64)
    actions = np.empty(rules.horizon, dtype=np.int64)
    bounds = open_bounds(slots, rules, options)
    actions_at, mass = cover_slots(slots, options.covered)
    room = has_room(slots, rules)
    k = 0
    while k < len(regrets) and room:
        regrets[k] = play_episode(slots, rules, counted, truth, ledger, weights, stream, states, actions)
        if keep:
            trajectories[k, 0] = states
            trajectories[k, 1] = actions
        if step(slots, rules, options, bounds, actions_at, mass, weights, first + k, states, actions):
            room = has_room(slots, rules)
        k += 1
    return k


@jit
def update_from(slots, rules, options, weights, k, states, actions):
    """Do all of episode k but its rollout."""
    bounds = open_bounds(slots, rules, options)
    actions_at, mass = cover_slots(slots, options.covered)
    step(slots, rules, options, bounds, actions_at, mass, weights, k, states, actions)


@jit
def step(slots, rules, options, bounds, actions_at, mass, weights, k, states, actions):
    """Estimate, evaluate, update both players, count; return whether something new was opened."""
    occupy(slots, rules)
    if options.covered.used:
        estimate_expert(slots, rules, options.covered, actions_at, mass)
    if options.optimism == BONUS:
        update_players(slots, rules, weights, float(k))
    else:
        evaluate(slots, rules, options, bounds)
        mirror_steps(slots, rules, weights, float(k))
    opened = count_episode(slots, rules, weights, states, actions)
    if rules.models > 0:
        count_member(slots, rules, states, actions, (k - 1) % rules.models)
    if options.optimism == INTERVALS:
        bound_visited(slots, rules, options, bounds, states, actions)
    return opened


@jit
def evaluate(slots, rules, options, bounds):
    """Evaluate the policy optimistically, backwards in time: Q and V of all slots."""
    H, S, A, L = rules.horizon, rules.n_states, rules.n_actions, rules.models
    kind = options.optimism
    base, count, V, Q, cost, policy = slots.base, slots.counts, slots.V, slots.Q, slots.cost, slots.policy
    visits, inverse = slots.visits, slots.inverse
    edge_start, edge_count, edge_to, edge_weight = slots.edge_start, slots.edge_count, slots.edge_to, slots.edge_weight
    for h in range(H - 1, -1, -1):
        last = h + 1 == H
        below = base[h + 1]
        shift = base[h] if rules.pooled else 0  # from slots to rows
        outside = 0.0  # a state that was never visited may cost nothing
        if not last and count[h + 1] == S:
            outside = V[below]
            for slot in range(below, below + S):
                outside = min(outside, V[slot])
        for slot in range(base[h], base[h] + count[h]):
            row = slot - shift
            expected = 0.0
            for a in range(A):
                after = 0.0
                if not last:
                    start = edge_start[row, a]
                    stop = start + edge_count[row, a]
                    n = visits[row, a]
                    if kind == KL:
                        epsilon = np.inf
                        if n > 0.0:
                            epsilon = rules.bonus_scale * kl_radius(n, S, options.failure) * inverse[row, a]
                        after = kl_minimum(
                            edge_to, edge_weight, start, stop, inverse[row, a], V, below, epsilon, outside
                        )
                    elif kind == INTERVALS:
                        after = interval_minimum(
                            edge_to, bounds.low, bounds.high, start, stop, V, below, bounds.elsewhere[row, a], outside
                        )
                    else:
                        after = ensemble_value(slots, row, a, L, below, kind == LEAST)
                Q[slot, a] = cost[slot, a] - rules.cost_low + after
                expected += policy[slot, a] * Q[slot, a]
            V[slot] = expected


@jit
def ensemble_value(slots, row, a, models, below, least):
    """Return the least of the models' next values, or their mean less their standard deviation, not below 0."""
    start = slots.edge_start[row, a]
    total, square, lowest = 0.0, 0.0, np.inf
    for member in range(models):
        value = 0.0
        for e in range(start, start + slots.edge_count[row, a]):
            value += slots.member_weight[e, member] * slots.V[below + slots.edge_to[e]]
        value /= slots.member_visits[row, a, member] + PRIOR_VISITS
        total += value
        square += value * value
        lowest = min(lowest, value)
    if least:
        return lowest
    mean = total / models
    variance = max(square - total * mean, 0.0) / max(models - 1, 1)
    return max(mean - math.sqrt(variance), 0.0)


@jit
def mirror_steps(slots, rules, weights, k):
    """Algorithm 2, lines 13-18: the mirror step of each player with the Q of the slots."""
    H, A = rules.horizon, rules.n_actions
    decay = 1.0 / math.sqrt(k if rules.anytime else rules.planned_episodes)
    policy_step, cost_step = rules.policy_step * decay, rules.cost_step * decay
    logits, policy, cost = slots.logits, slots.policy, slots.cost
    for h in range(H):
        for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
            largest = -np.inf
            for a in range(A):
                logits[slot, a] -= policy_step * slots.Q[slot, a]
                largest = max(largest, logits[slot, a])
                if rules.cost_set == BOX:
                    c = cost[slot, a] + cost_step * (slots.occupancy[slot, a] - slots.expert[slot, a])
                    cost[slot, a] = min(max(c, 0.0), 1.0)
            for a in range(A):
                logits[slot, a] -= largest
    exponentials(logits.ravel(), policy.ravel())
    for slot in range(slots.base[H]):
        total = 0.0
        for a in range(A):
            total += policy[slot, a]
        for a in range(A):
            policy[slot, a] /= total
    if rules.cost_set != BOX:
        update_weights(slots, rules, weights, cost_step)
        set_linear_costs(slots, rules, weights)


# The ensemble's counts, and the intervals that follow from counts -----------------------------------------------------


@jit
def count_member(slots, rules, states, actions, member):
    """Give a trajectory that was counted already to one model of the ensemble."""
    H, S = rules.horizon, rules.n_states
    row, action = 0, 0
    for h in range(H):
        place = find(slots.place_keys, slots.place_values, slots.hashing, h * S + states[h])
        if h > 0:
            e = slots.edge_start[row, action]
            while slots.edge_to[e] != place:
                e += 1
            slots.member_weight[e, member] += 1.0
        row, action = (0 if rules.pooled else slots.base[h]) + place, actions[h]
        if h + 1 < H or H == 1 or not rules.pooled:
            slots.member_visits[row, action, member] += 1.0


@jit
def count_members(slots, rules, states, actions):
    """Give the demonstrations, which were counted already, to the models of the ensemble in turn."""
    for i in range(len(states)):
        count_member(slots, rules, states[i], actions[i], i % rules.models)


@jit
def open_bounds(slots, rules, options):
    """Make the intervals of all transition probabilities; empty ones where they are not used."""
    used = options.optimism == INTERVALS
    edges, rows = (len(slots.edge_to), len(slots.visits)) if used else (0, 0)
    bounds = Bounds(np.zeros(edges), np.zeros(edges), np.zeros((rows, rules.n_actions)))
    for row in range(rows):
        for a in range(rules.n_actions):
            bound_row(slots, rules, options, bounds, row, a)
    return bounds


@jit
def bound_row(slots, rules, options, bounds, row, a):
    """Write the interval of each transition of a row: those with n kl(p_hat, p) below the radius of two outcomes."""
    n = slots.visits[row, a]
    if n == 0.0:
        return
    S, start, known = rules.n_states, slots.edge_start[row, a], slots.edge_count[row, a]
    epsilon = rules.bonus_scale * kl_radius(n, 2, options.failure / S) / n
    for e in range(start, start + known):
        p = slots.edge_weight[e] / n
        bounds.low[e] = bernoulli_least(p, epsilon)
        bounds.high[e] = bernoulli_most(p, epsilon)
    bounds.elsewhere[row, a] = (S - known) * bernoulli_most(0.0, epsilon)


@jit
def bound_visited(slots, rules, options, bounds, states, actions):
    """Write the intervals of the rows that an episode has visited."""
    for h in range(rules.horizon):
        place = find(slots.place_keys, slots.place_values, slots.hashing, h * rules.n_states + states[h])
        bound_row(slots, rules, options, bounds, (0 if rules.pooled else slots.base[h]) + place, actions[h])
