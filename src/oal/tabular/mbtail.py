"""MB-TAIL: explore without a cost, then imitate in the model, then play what was found.

Xu, Li and Yu (2021), "Nearly Minimax Optimal Adversarial Imitation Learning with Known and Unknown Transitions":

    1. for a share of the episodes, explore: greedily where the model is least certain (RF-Express, Ménard et al. 2021,
       "Fast active learning for pure exploration in reinforcement learning"),
           W_h(s, a) = min(H, 15 H^2 beta(n) / n + (1 + 1/H) p_bar_h max_a' W_{h+1}(s', a')),
           beta(n) = log(3 S A H / delta) + S log(8 e (n + 1)), and H where n = 0, or uniformly;
    2. estimate the expert's occupancy with the model (`transition_aware`), or by counting;
    3. solve the game in the model: mirror ascent of the cost player against best responses, no episode is played;
    4. play the policy whose occupancy is the average over the iterations.

With uniform exploration and counting these are the algorithms before OAL, which plan in a model that was estimated.
Rows that were never visited cost all there is in step 3: who plans once must not count on what it does not know.
"""

import math

import numpy as np

from oal.tabular.algorithm2 import set_linear_costs, update_weights
from oal.tabular.costsets import BOX
from oal.tabular.fastmath import jit
from oal.tabular.optimism import count_episode, occupy, play_episode
from oal.tabular.slots import has_room
from oal.tabular.transition_aware import cover_slots, estimate_expert

REWARD_FREE, UNIFORM, COMMIT = 0, 1, 2


@jit
def play(slots, rules, counted, kind, truth, ledger, weights, stream, regrets, trajectories, keep):
    """Explore, or play the policy that is there, until `regrets` or the slots are full; return how many episodes."""
    states = np.empty(rules.horizon, dtype=np.int64)
    actions = np.empty(rules.horizon, dtype=np.int64)
    room = has_room(slots, rules)
    k = 0
    while k < len(regrets) and room:
        choose(slots, rules, kind)
        regrets[k] = play_episode(slots, rules, counted, truth, ledger, weights, stream, states, actions)
        if keep:
            trajectories[k, 0] = states
            trajectories[k, 1] = actions
        if count(slots, rules, weights, states, actions):
            room = has_room(slots, rules)
        k += 1
    return k


@jit
def choose(slots, rules, kind):
    """Set the policy of the next episode, if it is one of exploration."""
    if kind == REWARD_FREE:
        explore(slots, rules)
    elif kind == UNIFORM:
        slots.policy[:] = 1.0 / rules.n_actions
        slots.logits[:] = 0.0


@jit
def count(slots, rules, weights, states, actions):
    """Account for an episode that no player learns from; return whether something new was opened."""
    occupy(slots, rules)
    return count_episode(slots, rules, weights, states, actions)


@jit
def explore(slots, rules):
    """Set the policy to the greedy one for the model's uncertainty; among equals, to the action taken least often."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    base, V, Q, visits = slots.base, slots.V, slots.Q, slots.visits
    scale = rules.bonus_scale * 15.0 * H * H
    logarithm = math.log(3.0 * S * A * H / rules.delta)
    for h in range(H - 1, -1, -1):
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + slots.counts[h]):
            row, best = slot - shift, 0
            for a in range(A):
                n = visits[row, a]
                W = float(H)
                if n > 0.0:
                    W = scale * (logarithm + S * math.log(8.0 * math.e * (n + 1.0))) / n
                    if h + 1 < H:
                        W += (1.0 + 1.0 / H) * next_value(slots, row, a, base[h + 1])
                    W = min(W, float(H))
                Q[slot, a] = W
                if Q[slot, best] < W or (Q[slot, best] == W and n < visits[row, best]):
                    best = a
            V[slot] = Q[slot, best]
            play_only(slots, slot, best, A)


@jit
def next_value(slots, row, a, below):
    """Return p_bar V of a row."""
    start = slots.edge_start[row, a]
    total = 0.0
    for e in range(start, start + slots.edge_count[row, a]):
        total += slots.edge_weight[e] * slots.V[below + slots.edge_to[e]]
    return total * slots.inverse[row, a]


@jit
def play_only(slots, slot, action, n_actions):
    """Set the policy of a slot to one action."""
    for a in range(n_actions):
        slots.policy[slot, a] = 1.0 if a == action else 0.0
        slots.logits[slot, a] = 0.0 if a == action else -np.inf


@jit
def plan(slots, rules, covered, weights, iterations, cost_step):
    """Solve the game in the model, and set the policy to the average of the best responses."""
    H, A = rules.horizon, rules.n_actions
    played = slots.occupancy_sum.copy()
    slots.occupancy_sum[:] = 0.0
    if covered.used:
        actions_at, mass = cover_slots(slots, covered)
        estimate_expert(slots, rules, covered, actions_at, mass)
    for _ in range(iterations):
        respond(slots, rules)
        occupy(slots, rules)
        if rules.cost_set == BOX:
            for h in range(H):
                for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
                    for a in range(A):
                        c = slots.cost[slot, a] + cost_step * (slots.occupancy[slot, a] - slots.expert[slot, a])
                        slots.cost[slot, a] = min(max(c, 0.0), 1.0)
        else:
            update_weights(slots, rules, weights, cost_step)
            set_linear_costs(slots, rules, weights)
    for h in range(H):
        for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
            total = 0.0
            for a in range(A):
                total += slots.occupancy_sum[slot, a]
            if total > 0.0:
                for a in range(A):
                    p = slots.occupancy_sum[slot, a] / total
                    slots.policy[slot, a] = p
                    slots.logits[slot, a] = math.log(p) if p > 0.0 else -np.inf
    slots.occupancy_sum[:] = played


@jit
def respond(slots, rules):
    """Set the policy to a best response to the costs in the model; the first action among equals."""
    H, A = rules.horizon, rules.n_actions
    base, V, Q = slots.base, slots.V, slots.Q
    for h in range(H - 1, -1, -1):
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + slots.counts[h]):
            row, best = slot - shift, 0
            for a in range(A):
                Q[slot, a] = slots.cost[slot, a] - rules.cost_low
                if h + 1 < H:
                    if slots.inverse[row, a] > 0.0:
                        Q[slot, a] += next_value(slots, row, a, base[h + 1])
                    else:
                        Q[slot, a] += rules.cost_width * (H - 1 - h)
                if Q[slot, a] < Q[slot, best]:
                    best = a
            V[slot] = Q[slot, best]
            play_only(slots, slot, best, A)
