"""Compiled kernels of the tabular part: exact passes over sparse MDPs, and Algorithm 2 over what has been visited.

Everything here is plain loops over plain arrays, compiled by Numba without the interpreter lock and cached on disk.
The functions mutate only the arrays that their names or docstrings say they do.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

jit = numba.njit(cache=True, nogil=True)
# For the parts of one episode: a call that passes the slots on costs about as much as the part itself.
jit_inlined = numba.njit(cache=True, nogil=True, inline="always")

# Random numbers -----------------------------------------------------------------------------------------------------


@jit
def uniform(stream):
    """Draw from [0, 1) with xoshiro256++; `stream` is its state of four 64-bit words, seeded by a SeedSequence."""
    word = stream[0] + stream[3]
    word = ((word << np.uint64(23)) | (word >> np.uint64(41))) + stream[0]
    shifted = stream[1] << np.uint64(17)
    stream[2] ^= stream[0]
    stream[3] ^= stream[1]
    stream[1] ^= stream[2]
    stream[0] ^= stream[3]
    stream[2] ^= shifted
    stream[3] = (stream[3] << np.uint64(45)) | (stream[3] >> np.uint64(19))
    return (word >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def invert(cumulative, start, stop, u):
    """Return the first position in `start:stop` whose running sum exceeds u (the last one if rounding leaves none)."""
    if stop - start > 16:
        low, high = start, stop - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] > u:
                high = middle
            else:
                low = middle + 1
        return low
    for i in range(start, stop - 1):
        if cumulative[i] > u:
            return i
    return stop - 1


@jit
def draw(probabilities, u):
    """Return an index drawn from a row of probabilities by inversion."""
    total = 0.0
    last = len(probabilities) - 1
    for a in range(last):
        total += probabilities[a]
        if u < total:
            return a
    return last


# The exponential ------------------------------------------------------------------------------------------------------

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, which stands in the lowest bits then
ONE_BITS = 4607182418800017408  # the bits of 1.0


@jit
def exponentials(x, out):
    """Write exp(x) for x <= 0 into `out`, to the last bit or two; below -708 it stays at 3e-308.

    Written without calls and branches so that the compiler turns it into vector instructions: 2^n times the Taylor
    polynomial of the rest, |rest| <= ln(2) / 2.
    """
    for i in range(len(x)):
        y = max(x[i], -708.0)
        shifted = y * LOG2_E + ROUND
        n = shifted - ROUND
        r = (y - n * LN2_HIGH) - n * LN2_LOW
        p = 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        p = p * r + 1.0
        power = (np.float64(shifted).view(np.int64) << np.int64(52)) + np.int64(ONE_BITS)
        out[i] = p * np.int64(power).view(np.float64)


# Exact passes over an MDP -------------------------------------------------------------------------------------------


@jit
def cumulate_rows(indptr, probabilities):
    cumulative = np.empty_like(probabilities)
    for row in range(len(indptr) - 1):
        total = 0.0
        for e in range(indptr[row], indptr[row + 1]):
            total += probabilities[e]
            cumulative[e] = total
    return cumulative


@jit
def expected_next(indptr, successors, probabilities, row, values):
    """Return `sum_s' p(s' | row) values[s']`."""
    total = 0.0
    for e in range(indptr[row], indptr[row + 1]):
        total += probabilities[e] * values[successors[e]]
    return total


@jit
def evaluate(indptr, successors, probabilities, stationary, policy, cost):
    H, S, A = policy.shape
    V = np.zeros((H, S))
    Q = np.zeros((H, S, A))
    for h in range(H - 1, -1, -1):
        layer = 0 if stationary else h
        for s in range(S):
            for a in range(A):
                q = cost[h, s, a]
                if h + 1 < H:
                    q += expected_next(indptr, successors, probabilities, (layer * S + s) * A + a, V[h + 1])
                Q[h, s, a] = q
                V[h, s] += policy[h, s, a] * q
    return V, Q


@jit
def optimal(indptr, successors, probabilities, stationary, cost):
    H, S, A = cost.shape
    V = np.zeros((H, S))
    policy = np.zeros((H, S, A))
    for h in range(H - 1, -1, -1):
        layer = 0 if stationary else h
        for s in range(S):
            best, least = 0, np.inf
            for a in range(A):
                q = cost[h, s, a]
                if h + 1 < H:
                    q += expected_next(indptr, successors, probabilities, (layer * S + s) * A + a, V[h + 1])
                if q < least:
                    best, least = a, q
            policy[h, s, best] = 1.0
            V[h, s] = least
    return policy, V


@jit
def occupancy(indptr, successors, probabilities, stationary, initial, policy):
    H, S, A = policy.shape
    d = np.zeros((H, S, A))
    mass = initial.copy()
    for h in range(H):
        layer = 0 if stationary else h
        after = np.zeros(S)
        for s in range(S):
            if mass[s] == 0.0:
                continue
            for a in range(A):
                d[h, s, a] = mass[s] * policy[h, s, a]
                row = (layer * S + s) * A + a
                for e in range(indptr[row], indptr[row + 1]):
                    after[successors[e]] += d[h, s, a] * probabilities[e]
        mass = after
    return d


@jit
def sample(indptr, successors, cumulative, stationary, initial_cumulative, policy, episodes, stream):
    H, S, A = policy.shape
    states = np.empty((episodes, H), dtype=np.int64)
    actions = np.empty((episodes, H), dtype=np.int64)
    for i in range(episodes):
        s = invert(initial_cumulative, 0, S, uniform(stream))
        for h in range(H):
            a = draw(policy[h, s], uniform(stream))
            states[i, h] = s
            actions[i, h] = a
            if h + 1 < H:
                row = ((0 if stationary else h) * S + s) * A + a
                s = successors[invert(cumulative, indptr[row], indptr[row + 1], uniform(stream))]
    return states, actions


# Algorithm 2 over what has been visited -----------------------------------------------------------------------------
#
# A "slot" is a state at a step that somebody has visited (or whose start differs from the rest). The slots of step h
# are `base[h] + j` for `j < count[h]`; `j` is the slot's place in its layer and never changes, while `base` moves when
# the arrays grow. States without a slot keep their closed form for ever: the initial cost is constant over them, so
# their Q is constant over actions and their policy stays uniform; nothing leads to them under the empirical model.
#
# The empirical model lives in rows beside the slots. With pooled counts a state has its slots at all steps at once, at
# the same place in each layer, and the rows of the first layer serve all steps.

HOEFFDING, BERNSTEIN = 0, 1
BOX, L2, SIMPLEX = 0, 1, 2

GOES_ON, LAYER_FULL, EDGES_FULL = 0, 1, 2


class Slots(NamedTuple):
    """The visited part of the state space and everything the two players know about it."""

    base: Index  # [H + 1]
    counts: Index  # [H]
    place_keys: Index  # hash table (h * S + s) -> place in the layer
    place_values: Index
    hashing: NDArray[np.uint64]  # multiplier, shift
    state: Index  # [slots]
    logits: Array  # [slots, A] log pi up to a constant
    policy: Array  # [slots, A]
    cost: Array  # [slots, A]
    expert: Array  # [slots, A] the experts' empirical occupancy
    occupancy: Array  # [slots, A] of the learner under the empirical model, this episode
    occupancy_sum: Array  # [slots, A] over all episodes
    Q: Array  # [slots, A]
    V: Array  # [slots]
    mass: Array  # [slots] state occupancy
    visits: Array  # [rows, A]
    inverse: Array  # [rows, A] 1 / n, or 0 before the first visit
    root: Array  # [rows, A] 1 / sqrt(n v 1)
    edge_start: Index  # [rows, A]
    edge_count: Index  # [rows, A]
    edge_capacity: Index  # [rows, A]
    edge_to: Index  # [edges] place of the successor in its layer
    edge_weight: Array  # [edges] how often (or with which probability, when the model is known)
    edges_used: Index  # [2]: edges given out; most edges of any row
    start_weight: Array  # [slots of the first layer] how often an episode began there
    start_total: Array  # [1]


class Rules(NamedTuple):
    """What does not change during a run."""

    n_states: int
    n_actions: int
    horizon: int
    pooled: bool
    model_known: bool
    initial_known: bool
    bonus: int
    bonus_scale: float
    delta: float  # delta' of the theorem
    anytime: bool
    planned_episodes: float  # K
    policy_step: float  # t_pi * sqrt(K)
    cost_step: float  # t_c * sqrt(K)
    cost_set: int
    cost_low: float  # least cost in the set; taken off before the evaluation, so that it truncates at 0
    cost_width: float  # range of the costs in the set
    default_cost: float  # c at every (h, s, a) that was never touched
    features: Array  # [S, d] for linear costs
    expert_features: Array  # [d] feature expectations of the demonstrations


class Truth(NamedTuple):
    """The true MDP: to roll out in, and to measure the regret in. Learning reads nothing of it."""

    indptr: Index
    successors: Index
    probabilities: Array
    cumulative: Array
    stationary: bool
    initial: Array
    initial_cumulative: Array


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


@jit
def find(keys, values, hashing, key):
    """Return the place of the key h * S + s in its layer, or -1 if it was never visited."""
    mask = len(keys) - 1
    i = np.int64((np.uint64(key) * hashing[0]) >> hashing[1]) & mask
    while keys[i] != key:
        if keys[i] < 0:
            return -1
        i = (i + 1) & mask
    return values[i]


@jit
def insert_key(keys, values, hashing, key, value):
    mask = len(keys) - 1
    i = np.int64((np.uint64(key) * hashing[0]) >> hashing[1]) & mask
    while keys[i] >= 0:
        i = (i + 1) & mask
    keys[i] = key
    values[i] = value


@jit
def copy_places(keys, values, new_keys, new_values, hashing):
    for i in range(len(keys)):
        if keys[i] >= 0:
            insert_key(new_keys, new_values, hashing, keys[i], values[i])


@jit
def open_slot(slots, rules, h, s):
    """Give (h, s) a slot in its closed-form start: uniform policy, default cost, no visits. Return its place."""
    place = slots.counts[h]
    slots.counts[h] += 1
    insert_key(slots.place_keys, slots.place_values, slots.hashing, h * rules.n_states + s, place)
    slot = slots.base[h] + place
    slots.state[slot] = s
    for a in range(rules.n_actions):
        slots.logits[slot, a] = 0.0
        slots.policy[slot, a] = 1.0 / rules.n_actions
        slots.cost[slot, a] = rules.default_cost
    return place


@jit
def activate(slots, rules, h, s):
    """Return the place of (h, s), opening its slot (with pooled counts: its slots at all steps) if there is none."""
    place = find(slots.place_keys, slots.place_values, slots.hashing, h * rules.n_states + s)
    if place < 0:
        if rules.pooled:
            for step in range(rules.horizon):
                place = open_slot(slots, rules, step, s)
        else:
            place = open_slot(slots, rules, h, s)
    return place


@jit
def add_edge(slots, row, a, to, weight):
    """Add a successor to a row. There is room for it: `room_for_an_episode` was asked before."""
    start = slots.edge_start[row, a]
    used = slots.edge_count[row, a]
    if used == slots.edge_capacity[row, a]:
        # The row moves to the end with twice the room: contiguous rows, amortised copying.
        room = max(2, 2 * used)
        fresh = slots.edges_used[0]
        for e in range(used):
            slots.edge_to[fresh + e] = slots.edge_to[start + e]
            slots.edge_weight[fresh + e] = slots.edge_weight[start + e]
        slots.edges_used[0] += room
        slots.edge_start[row, a] = fresh
        slots.edge_capacity[row, a] = room
        start = fresh
    slots.edge_to[start + used] = to
    slots.edge_weight[start + used] = weight
    slots.edge_count[row, a] = used + 1
    slots.edges_used[1] = max(slots.edges_used[1], used + 1)


@jit
def room_for_an_episode(slots, rules):
    """Tell whether one more episode surely fits: at most one new state a step, and one new edge."""
    opened = rules.horizon if rules.pooled else 1
    for h in range(rules.horizon):
        if min(slots.counts[h] + opened, rules.n_states) > slots.base[h + 1] - slots.base[h]:
            return LAYER_FULL
    if slots.edges_used[0] + rules.horizon * max(2, 2 * slots.edges_used[1]) > len(slots.edge_to):
        return EDGES_FULL
    return GOES_ON


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


@jit
def add_demonstrations(slots, rules, states, actions, first, learn_model):
    """Add trajectories from number `first` on to d_hat^E (and to the model); return how far there was room."""
    for i in range(first, len(states)):
        if room_for_an_episode(slots, rules) != GOES_ON:
            return i
        for h in range(rules.horizon):
            place = activate(slots, rules, h, states[i, h])
            slots.expert[slots.base[h] + place, actions[i, h]] += 1.0 / len(states)
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
def action_probabilities(slots, rules, h, s, out):
    """Write pi_h(. | s) into `out`; states never visited are uniform."""
    place = find(slots.place_keys, slots.place_values, slots.hashing, h * rules.n_states + s)
    for a in range(rules.n_actions):
        out[a] = 1.0 / rules.n_actions if place < 0 else slots.policy[slots.base[h] + place, a]


# The passes below are the inner loop. They take fields into local names, flattened, first: reading them through the
# tuple inside a loop costs a reference count each time. Entry (slot, a) is number slot * A + a.


@jit_inlined
def estimate_occupancy(slots, rules):
    """Algorithm 2, line 3: d_hat of the current policy by forward recursion under the empirical model."""
    H, A = rules.horizon, rules.n_actions
    base, count, mass, policy = slots.base, slots.counts, slots.mass, slots.policy.ravel()
    occupancy, occupancy_sum, inverse = slots.occupancy.ravel(), slots.occupancy_sum.ravel(), slots.inverse.ravel()
    edge_start, edge_count = slots.edge_start.ravel(), slots.edge_count.ravel()
    edge_to, edge_weight, start_weight = slots.edge_to, slots.edge_weight, slots.start_weight
    mass[:] = 0.0
    total = 1.0 / max(slots.start_total[0], 1.0)
    for j in range(count[0]):
        mass[j] = start_weight[j] * total
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
                    for e in range(start, start + edge_count[row]):
                        mass[below + edge_to[e]] += share * edge_weight[e]


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
def bonus_log(rules, k):
    """log(3 H^2 S A K / delta'), with k in place of K when K is unknown."""
    episodes = k if rules.anytime else rules.planned_episodes
    return math.log(3.0 * rules.horizon**2 * rules.n_states * rules.n_actions * episodes / rules.delta)


@jit_inlined
def update_players(slots, rules, weights, k):
    """Algorithm 2, lines 4-18: optimistic evaluation backwards in time, and the mirror step of each player."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    decay = 1.0 / math.sqrt(k if rules.anytime else rules.planned_episodes)
    policy_step = rules.policy_step * decay
    cost_step = rules.cost_step * decay
    confidence = bonus_log(rules, k)
    hoeffding = rules.bonus_scale * rules.cost_width * math.sqrt(4.0 * H * H * S * confidence)
    deviation = rules.bonus_scale * math.sqrt(2.0 * confidence)
    fallback = rules.bonus_scale * rules.cost_width * 7.0 * H * confidence / 3.0
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
                q = cost[i] - rules.cost_low + mean
                if bernstein:
                    q -= (deviation * math.sqrt(variance) + fallback * root[row]) * root[row]
                elif with_bonus:
                    q -= hoeffding * root[row]
                q = max(q, 0.0)
                Q[i] = q
                expected += policy[i] * q
                logits[i] -= policy_step * q
                largest = max(largest, logits[i])
                if box:
                    c = cost[i] + cost_step * (occupancy[i] - expert[i])
                    cost[i] = min(max(c, 0.0), 1.0)
            V[slot] = expected
            for a in range(A):
                # Kept near zero: a constant does not change the policy, and it keeps the digits for the differences.
                logits[slot * A + a] -= largest
    exponentials(logits, policy)
    for slot in range(base[H]):
        total = 0.0
        for a in range(A):
            total += policy[slot * A + a]
        total = 1.0 / total
        for a in range(A):
            policy[slot * A + a] *= total
    if not box:
        update_weights(slots, rules, weights, cost_step)
        set_linear_costs(slots, rules, weights)


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


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def settle_box(occupancy, occupancy_sum, expert, demonstrated, k):
    """Add an occupancy to the sum; return the box's regret against the expert and against the demonstrations.

    The support function of the box is the sum of positive parts. Only the order of additions is left to the compiler.
    """
    regret, empirical = 0.0, 0.0
    for i in range(len(occupancy_sum)):
        x = occupancy_sum[i] + occupancy[i]
        occupancy_sum[i] = x
        regret += max(x - k * expert[i], 0.0)
        empirical += max(x - k * demonstrated[i], 0.0)
    return regret, empirical


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


@jit
def reachable(truth, horizon, n_states, n_actions):
    """Return which states can be reached at which step by some policy: `[H, S]`."""
    reached = np.zeros((horizon, n_states), dtype=np.bool_)
    for s in range(n_states):
        reached[0, s] = truth.initial[s] > 0.0
    for h in range(horizon - 1):
        layer = 0 if truth.stationary else h
        for s in range(n_states):
            if reached[h, s]:
                first = (layer * n_states + s) * n_actions
                for e in range(truth.indptr[first], truth.indptr[first + n_actions]):
                    if truth.probabilities[e] > 0.0:
                        reached[h + 1, truth.successors[e]] = True
    return reached


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


@jit_inlined
def update_from(slots, rules, weights, k, states, actions):
    """Do all of episode k but its rollout: estimate, evaluate, update both players, count. Return if slots opened."""
    estimate_occupancy(slots, rules)
    update_players(slots, rules, weights, k)
    opened = count_trajectory(slots, rules, states, actions)
    if opened and rules.cost_set != BOX:
        set_linear_costs(slots, rules, weights)
    return opened


@jit
def learn(slots, rules, truth, ledger, weights, stream, first, regrets, trajectories, keep):
    """Run Algorithm 2 from episode `first`; stop early when the arrays are full. Return (episodes done, why stopped).

    `regrets[k] = (true, empirical)` if the ledger is exact; `trajectories[k]` holds the episode if `keep`.
    """
    states = np.empty(rules.horizon, dtype=np.int64)
    actions = np.empty(rules.horizon, dtype=np.int64)
    status = room_for_an_episode(slots, rules)
    episodes = len(regrets)
    k = 0
    while k < episodes and status == GOES_ON:
        roll_out(slots, rules, truth, stream, states, actions)
        if keep:
            trajectories[k, 0] = states
            trajectories[k, 1] = actions
        if ledger.exact:
            regrets[k, 0], regrets[k, 1] = settle(slots, rules, truth, ledger, weights)
        if update_from(slots, rules, weights, float(first + k), states, actions):
            status = room_for_an_episode(slots, rules)
        k += 1
    return k, status
