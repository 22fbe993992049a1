"""Algorithm 2 of the paper, compiled, over the slots of what has been visited.

    line   for k = 1..K                                                     learn
    2          roll out a trajectory by acting pi_k                         roll_out
    3          estimate d_hat_k with the empirical model                    estimate_occupancy
    5-10       Q <- max(c - b + p_bar V, 0), V <- <Q, pi>, backwards in h   update_players
    14         pi <- pi exp(-t_pi Q), normalised                            update_players
    16-17      c <- clip(c + t_c (d_hat_k - d_hat_E), 0, 1)                 update_players; linear: update_weights
    19         update the counters and the empirical model                  count_trajectory

Plain loops over plain arrays. The inner loops take fields into local names, flattened, first: reading them through the
tuple inside a loop costs a reference count each time. Entry (slot, a) is number slot * A + a.
"""

import math

import numpy as np

from oal import equations
from oal.tabular.costsets import BOX, L2
from oal.tabular.fastmath import exponentials, invert, jit, jit_inlined, uniform
from oal.tabular.ledger import settle
from oal.tabular.slots import BERNSTEIN, HOEFFDING, activate, add_edge, find, has_room

LARGE = 1 << 14
"""From so many entries on they are updated in blocks."""
BLOCK = 512
"""States in a block: of everything that is known of them, what is used twice fits the second-level cache."""

bonus_logarithm = jit(equations.bonus_logarithm)


@jit
def learn(slots, rules, truth, ledger, weights, stream, first, regrets, trajectories, keep):
    """Run Algorithm 2 from episode `first` until `regrets` or the slots are full; return how many episodes were done.

    `regrets[k] = (true, empirical)` if the ledger is exact; `trajectories[k]` holds the episode if `keep`.
    """
    states = np.empty(rules.horizon, dtype=np.int64)
    actions = np.empty(rules.horizon, dtype=np.int64)
    room = has_room(slots, rules)
    episodes = len(regrets)
    k = 0
    while k < episodes and room:
        roll_out(slots, rules, truth, stream, states, actions)
        if keep:
            trajectories[k, 0] = states
            trajectories[k, 1] = actions
        if ledger.exact:
            regrets[k, 0], regrets[k, 1] = settle(slots, rules, truth, ledger, weights)
        if update_from(slots, rules, weights, float(first + k), states, actions):
            room = has_room(slots, rules)
        k += 1
    return k


@jit_inlined
def update_from(slots, rules, weights, k, states, actions):
    """Do all of episode k but its rollout: estimate, evaluate, update both players, count. Return if slots opened."""
    large = slots.base[rules.horizon] * rules.n_actions > LARGE
    if large:
        estimate_occupancy_in_blocks(slots, rules)
    else:
        estimate_occupancy(slots, rules)
    if large and rules.cost_set == BOX and rules.bonus == HOEFFDING:
        update_players_in_blocks(slots, rules, k)
    else:
        update_players(slots, rules, weights, k)
    opened = count_trajectory(slots, rules, states, actions)
    if opened and rules.cost_set != BOX:
        set_linear_costs(slots, rules, weights)
    return opened


@jit_inlined
def roll_out(slots, rules, truth, stream, states, actions):
    """Act pi_k for an episode in the true MDP."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    keys, values, hashing, base, policy = slots.place_keys, slots.place_values, slots.hashing, slots.base, slots.policy
    indptr, successors, cumulative = truth.indptr, truth.successors, truth.cumulative
    s = invert(truth.initial_cumulative, 0, S, uniform(stream))
    for h in range(H):
        place = find(keys, values, hashing, h * S + s)
        u = uniform(stream)
        a = A - 1
        total = 0.0
        for b in range(A - 1):
            total += 1.0 / A if place < 0 else policy[base[h] + place, b]
            if u < total:
                a = b
                break
        states[h] = s
        actions[h] = a
        if h + 1 < H:
            row = ((0 if truth.stationary else h) * S + s) * A + a
            s = successors[invert(cumulative, indptr[row], indptr[row + 1], uniform(stream))]


@jit_inlined
def start_mass(slots):
    """Put the mass of an episode where episodes start."""
    mass, start_weight = slots.mass, slots.start_weight
    mass[:] = 0.0
    total = 1.0 / max(slots.start_total[0], 1.0)
    for j in range(slots.counts[0]):
        mass[j] = start_weight[j] * total


@jit_inlined
def estimate_occupancy(slots, rules):
    """Algorithm 2, line 3: d_hat of the current policy by forward recursion under the empirical model."""
    H, A = rules.horizon, rules.n_actions
    base, count, mass, policy = slots.base, slots.counts, slots.mass, slots.policy.ravel()
    occupancy, occupancy_sum, inverse = slots.occupancy.ravel(), slots.occupancy_sum.ravel(), slots.inverse.ravel()
    edge_start, edge_count = slots.edge_start.ravel(), slots.edge_count.ravel()
    edge_to, edge_weight = slots.edge_to, slots.edge_weight
    start_mass(slots)
    for h in range(H):
        last = h + 1 == H
        below = base[h + 1]
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + count[h]):
            m = mass[slot]
            for a in range(A):
                i = slot * A + a
                d = m * policy[i]
                occupancy[i] = d
                occupancy_sum[i] += d
                if not last:
                    row = i - shift * A
                    share = d * inverse[row]
                    start = edge_start[row]
                    # Most rows have one edge or none, which would be guessed wrong: none adds nothing somewhere.
                    one = min(edge_count[row], 1)
                    mass[below + edge_to[start] * one] += share * edge_weight[start] * one
                    for e in range(start + 1, start + edge_count[row]):
                        mass[below + edge_to[e]] += share * edge_weight[e]


# Where slots are many, the passes go in blocks of states that stay near the processor, with one loop for each kind of
# work: most become vector instructions, and every array is read in its order. All of it is bit for bit what the plain
# passes compute. Loops over actions are written once (`..._of`) and compiled for the usual numbers of them, which the
# compiler then unrolls: a loop of three whose length it does not know costs several times its work.


@jit
def estimate_occupancy_in_blocks(slots, rules):
    """Do what `estimate_occupancy` does, where the slots are many."""
    H, A = rules.horizon, rules.n_actions
    base, count, mass, policy = slots.base, slots.counts, slots.mass, slots.policy.ravel()
    occupancy, occupancy_sum, inverse = slots.occupancy.ravel(), slots.occupancy_sum.ravel(), slots.inverse.ravel()
    edge_start, edge_count = slots.edge_start.ravel(), slots.edge_count.ravel()
    start_mass(slots)
    for h in range(H):
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + count[h], BLOCK):
            stop = min(slot + BLOCK, base[h] + count[h])
            i, j = slot * A, stop * A
            d = occupancy[i:j]
            spread_mass(mass[slot:stop], policy[i:j], d, occupancy_sum[i:j], A)
            if h + 1 < H:
                row, last_row = (slot - shift) * A, (stop - shift) * A
                start, n, below = edge_start[row:last_row], edge_count[row:last_row], mass[base[h + 1] :]
                move_mass(d, start, n, slots.edge_to, slots.edge_weight, inverse[row:last_row], below)


@jit_inlined
def spread_mass_of(mass, policy, occupancy, occupancy_sum, A):
    """Write d_hat = mass pi of some states, and add it to its sum."""
    for j in range(len(mass)):
        for a in range(A):
            d = mass[j] * policy[j * A + a]
            occupancy[j * A + a] = d
            occupancy_sum[j * A + a] += d


@jit
def spread_mass(mass, policy, occupancy, occupancy_sum, A):
    """`spread_mass_of` with a known number of actions."""
    if A == 2:
        spread_mass_of(mass, policy, occupancy, occupancy_sum, 2)
    elif A == 3:
        spread_mass_of(mass, policy, occupancy, occupancy_sum, 3)
    elif A == 4:
        spread_mass_of(mass, policy, occupancy, occupancy_sum, 4)
    elif A == 6:
        spread_mass_of(mass, policy, occupancy, occupancy_sum, 6)
    else:
        spread_mass_of(mass, policy, occupancy, occupancy_sum, A)


@jit
def move_mass(occupancy, edge_start, edge_count, edge_to, edge_weight, inverse, mass):
    """Move the mass of some rows on to what follows them; `mass` begins with the layer below."""
    for i in range(len(occupancy)):
        share = occupancy[i] * inverse[i]
        start = edge_start[i]
        one = min(edge_count[i], 1)  # as in `estimate_occupancy`
        mass[edge_to[start] * one] += share * edge_weight[start] * one
        for e in range(start + 1, start + edge_count[i]):
            mass[edge_to[e]] += share * edge_weight[e]


@jit
def step_sizes(rules, k):
    """Return t_pi, t_c and the bonus' factors in episode k: Hoeffding's of 1/sqrt(n), and Bernstein's two."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    K = k if rules.anytime else rules.planned_episodes
    decay = 1.0 / math.sqrt(K)
    confidence = bonus_logarithm((H, S, A), K, rules.delta)
    return (
        rules.policy_step * decay,
        rules.cost_step * decay,
        rules.bonus_scale * rules.cost_width * math.sqrt(4.0 * H * H * S * confidence),
        rules.bonus_scale * math.sqrt(2.0 * confidence),
        rules.bonus_scale * rules.cost_width * 7.0 * H * confidence / 3.0,
    )


@jit_inlined
def normalise_of(policy, A):
    """Divide the numbers of each state by their sum."""
    for slot in range(len(policy) // A):
        total = 0.0
        for a in range(A):
            total += policy[slot * A + a]
        total = 1.0 / total
        for a in range(A):
            policy[slot * A + a] *= total


@jit
def normalised_exponentials(logits, policy, A):
    """Write pi = exp(logits), normalised in each state."""
    exponentials(logits, policy)
    if A == 2:
        normalise_of(policy, 2)
    elif A == 3:
        normalise_of(policy, 3)
    elif A == 4:
        normalise_of(policy, 4)
    elif A == 6:
        normalise_of(policy, 6)
    else:
        normalise_of(policy, A)


@jit_inlined
def update_players(slots, rules, weights, k):
    """Algorithm 2, lines 4-18: optimistic evaluation backwards in time, and the mirror step of each player."""
    H, A = rules.horizon, rules.n_actions
    policy_step, cost_step, hoeffding, deviation, fallback = step_sizes(rules, k)
    with_bonus = rules.bonus_scale > 0.0 and not rules.model_known
    bernstein = with_bonus and rules.bonus == BERNSTEIN
    box = rules.cost_set == BOX
    base, count, V = slots.base, slots.counts, slots.V
    policy, logits, cost, Q = slots.policy.ravel(), slots.logits.ravel(), slots.cost.ravel(), slots.Q.ravel()
    occupancy, expert = slots.occupancy.ravel(), slots.expert.ravel()
    inverse, root = slots.inverse.ravel(), slots.root.ravel()
    edge_start, edge_count = slots.edge_start.ravel(), slots.edge_count.ravel()
    edge_to, edge_weight = slots.edge_to, slots.edge_weight
    for h in range(H - 1, -1, -1):
        last = h + 1 == H
        below = base[h + 1]
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + count[h]):
            expected = 0.0
            largest = -np.inf
            for a in range(A):
                i = slot * A + a
                row = i - shift * A
                mean, variance = 0.0, 0.0
                if not last:
                    start = edge_start[row]
                    stop = start + edge_count[row]
                    for e in range(start, stop):
                        mean += edge_weight[e] * V[below + edge_to[e]]
                    mean *= inverse[row]
                    if bernstein:
                        for e in range(start, stop):
                            variance += edge_weight[e] * (V[below + edge_to[e]] - mean) ** 2
                        variance *= inverse[row]
                q = cost[i] - rules.cost_low + mean  # line 7
                if bernstein:
                    q -= (deviation * math.sqrt(variance) + fallback * root[row]) * root[row]
                elif with_bonus:
                    q -= hoeffding * root[row]
                q = max(q, 0.0)  # line 8
                Q[i] = q
                expected += policy[i] * q  # line 9
                logits[i] -= policy_step * q  # line 14
                largest = max(largest, logits[i])
                if box:
                    c = cost[i] + cost_step * (occupancy[i] - expert[i])  # line 16
                    cost[i] = min(max(c, 0.0), 1.0)  # line 17
            V[slot] = expected
            for a in range(A):
                # Kept near zero: a constant does not change the policy, and it keeps the digits for the differences.
                logits[slot * A + a] -= largest
    normalised_exponentials(logits, policy, A)
    if not box:
        update_weights(slots, rules, weights, cost_step)
        set_linear_costs(slots, rules, weights)


@jit
def update_players_in_blocks(slots, rules, k):
    """Do what `update_players` does with costs of the box and Hoeffding's bonus, where the slots are many."""
    H, A = rules.horizon, rules.n_actions
    policy_step, cost_step, hoeffding, _, _ = step_sizes(rules, k)
    bonus = 0.0 if rules.model_known else hoeffding
    base, count, V = slots.base, slots.counts, slots.V
    policy, logits, cost, Q = slots.policy.ravel(), slots.logits.ravel(), slots.cost.ravel(), slots.Q.ravel()
    occupancy, expert = slots.occupancy.ravel(), slots.expert.ravel()
    inverse, root = slots.inverse.ravel(), slots.root.ravel()
    edge_start, edge_count = slots.edge_start.ravel(), slots.edge_count.ravel()
    for h in range(H - 1, -1, -1):
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + count[h], BLOCK):
            stop = min(slot + BLOCK, base[h] + count[h])
            i, j = slot * A, stop * A
            row, last_row = (slot - shift) * A, (stop - shift) * A
            q, pi, z = Q[i:j], policy[i:j], logits[i:j]
            if h + 1 < H:
                start, n, below = edge_start[row:last_row], edge_count[row:last_row], V[base[h + 1] :]
                expect_next(q, start, n, slots.edge_to, slots.edge_weight, inverse[row:last_row], below)
            else:
                q[:] = 0.0
            d, d_E, b = occupancy[i:j], expert[i:j], root[row:last_row]
            update_entries(q, cost[i:j], z, d, d_E, b, rules.cost_low, bonus, policy_step, cost_step)
            update_states(q, pi, z, V[slot:stop], A)
            normalised_exponentials(z, pi, A)


@jit
def expect_next(mean, edge_start, edge_count, edge_to, edge_weight, inverse, V):
    """Write p_bar V of some rows into `mean`; V begins with the layer below."""
    for i in range(len(mean)):
        start = edge_start[i]
        one = min(edge_count[i], 1)  # as in `estimate_occupancy`
        total = edge_weight[start] * one * V[edge_to[start] * one]
        for e in range(start + 1, start + edge_count[i]):
            total += edge_weight[e] * V[edge_to[e]]
        mean[i] = total * inverse[i]


@jit
def update_entries(Q, cost, logits, occupancy, expert, root, low, bonus, policy_step, cost_step):
    """Lines 7, 8, 14, 16 and 17 of some entries, from the mean of what follows in Q: in vector instructions."""
    for i in range(len(Q)):
        q = max(cost[i] - low + Q[i] - bonus * root[i], 0.0)
        Q[i] = q
        logits[i] -= policy_step * q
        cost[i] = min(max(cost[i] + cost_step * (occupancy[i] - expert[i]), 0.0), 1.0)


@jit_inlined
def update_states_of(Q, policy, logits, V, A):
    """Line 9 of some states, and their largest logit moved to zero."""
    for j in range(len(V)):
        expected = 0.0
        largest = -np.inf
        for a in range(A):
            expected += policy[j * A + a] * Q[j * A + a]
            largest = max(largest, logits[j * A + a])
        V[j] = expected
        for a in range(A):
            logits[j * A + a] -= largest


@jit
def update_states(Q, policy, logits, V, A):
    """`update_states_of` with a known number of actions."""
    if A == 2:
        update_states_of(Q, policy, logits, V, 2)
    elif A == 3:
        update_states_of(Q, policy, logits, V, 3)
    elif A == 4:
        update_states_of(Q, policy, logits, V, 4)
    elif A == 6:
        update_states_of(Q, policy, logits, V, 6)
    else:
        update_states_of(Q, policy, logits, V, A)


@jit
def update_weights(slots, rules, weights, step):
    """The mirror step of a linear cost: Euclidean in the L2 ball, or KL in the simplex."""
    d = len(weights)
    gradient = np.zeros(d)
    for h in range(rules.horizon):
        for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
            if slots.mass[slot] > 0.0:
                for i in range(d):
                    gradient[i] += slots.mass[slot] * rules.features[slots.state[slot], i]
    largest = -np.inf
    for i in range(d):
        gradient[i] -= rules.expert_features[i]
        largest = max(largest, gradient[i])
    if rules.cost_set == L2:
        square = 0.0
        for i in range(d):
            weights[i] += step * gradient[i]
            square += weights[i] * weights[i]
        if square > 1.0:
            for i in range(d):
                weights[i] /= math.sqrt(square)
    else:
        total = 0.0
        for i in range(d):
            weights[i] *= math.exp(step * (gradient[i] - largest))
            total += weights[i]
        for i in range(d):
            weights[i] /= total


@jit
def set_linear_costs(slots, rules, weights):
    """Write c = w . phi(s) into the slots."""
    for h in range(rules.horizon):
        for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
            c = 0.0
            for i in range(len(weights)):
                c += weights[i] * rules.features[slots.state[slot], i]
            for a in range(rules.n_actions):
                slots.cost[slot, a] = c


@jit_inlined
def count_trajectory(slots, rules, states, actions):
    """Update n and the empirical model with one trajectory; return whether something new was opened.

    What is known already is found and counted right here: calls that pass the slots on cost more than the counting.
    """
    if rules.model_known:
        return False
    H, S = rules.horizon, rules.n_states
    keys, values, hashing, base = slots.place_keys, slots.place_values, slots.hashing, slots.base
    visits, inverse, root = slots.visits, slots.inverse, slots.root
    edge_start, edge_count, edge_to, edge_weight = slots.edge_start, slots.edge_count, slots.edge_to, slots.edge_weight
    opened = False
    row, action = 0, 0
    for h in range(H):
        place = find(keys, values, hashing, h * S + states[h])
        if place < 0:
            place = activate(slots, rules, h, states[h])
            opened = True
        if h == 0:
            if not rules.initial_known:
                slots.start_weight[place] += 1.0
                slots.start_total[0] += 1.0
        else:
            start = edge_start[row, action]
            stop = start + edge_count[row, action]
            while start < stop and edge_to[start] != place:
                start += 1
            if start < stop:
                edge_weight[start] += 1.0
            else:
                add_edge(slots, row, action, place, 1.0)
                opened = True
        row, action = (0 if rules.pooled else base[h]) + place, actions[h]
        # A pooled row serves all steps: a visit at the last one, which has no successor, would take its mass away.
        if h + 1 < H or H == 1 or not rules.pooled:
            visits[row, action] += 1.0
            inverse[row, action] = 1.0 / visits[row, action]
            root[row, action] = math.sqrt(inverse[row, action])
    return opened


# What a run starts from, and what it is asked for ---------------------------------------------------------------------


@jit
def add_demonstrations(slots, rules, states, actions, first, learn_model):
    """Add trajectories from number `first` on to d_hat^E (and to the model); return how far there was room."""
    keys, values, hashing, base, expert = slots.place_keys, slots.place_values, slots.hashing, slots.base, slots.expert
    share = 1.0 / len(states)
    for i in range(first, len(states)):
        if not has_room(slots, rules):
            return i
        for h in range(rules.horizon):
            # not `activate` at once: a call that passes the slots on costs more than all the rest
            place = find(keys, values, hashing, h * rules.n_states + states[i, h])
            if place < 0:
                place = activate(slots, rules, h, states[i, h])
            expert[base[h] + place, actions[i, h]] += share
        if learn_model:
            count_trajectory(slots, rules, states[i], actions[i])
    return len(states)


@jit
def clone_experts(slots, rules, smoothing):
    """Start the policy from behavioural cloning where the experts were seen."""
    for h in range(rules.horizon):
        for slot in range(slots.base[h], slots.base[h] + slots.counts[h]):
            seen = slots.expert[slot].sum()
            if seen > 0.0:
                for a in range(rules.n_actions):
                    probability = (1.0 - smoothing) * slots.expert[slot, a] / seen + smoothing / rules.n_actions
                    slots.policy[slot, a] = probability
                    slots.logits[slot, a] = math.log(probability) if probability > 0.0 else -np.inf


@jit
def install_model(slots, rules, truth, reached):
    """Make the exact model the model: rows of probabilities with one "visit" each, over what can be reached."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    for h in range(H):
        for s in range(S):
            if reached[h, s]:
                activate(slots, rules, h, s)
    for h in range(1 if rules.pooled else H):
        for j in range(slots.counts[h]):
            row = (0 if rules.pooled else slots.base[h]) + j
            s = slots.state[slots.base[h] + j]
            for a in range(A):
                slots.visits[row, a] = slots.inverse[row, a] = slots.root[row, a] = 1.0
                if H == 1 or (h + 1 == H and not rules.pooled):
                    continue
                index = ((0 if truth.stationary else h) * S + s) * A + a
                for e in range(truth.indptr[index], truth.indptr[index + 1]):
                    if truth.probabilities[e] > 0.0:
                        place = find(
                            slots.place_keys, slots.place_values, slots.hashing, (h + 1) * S + truth.successors[e]
                        )
                        if place >= 0:
                            add_edge(slots, row, a, place, truth.probabilities[e])


@jit
def action_probabilities(slots, rules, h, s, out):
    """Write pi_h(. | s) into `out`; states never visited are uniform."""
    place = find(slots.place_keys, slots.place_values, slots.hashing, h * rules.n_states + s)
    for a in range(rules.n_actions):
        out[a] = 1.0 / rules.n_actions if place < 0 else slots.policy[slots.base[h] + place, a]
