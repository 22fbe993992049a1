"""Algorithm 2 for eight seeds at once, one in each lane of the vector unit.

A seed learns bit for bit what it learns alone: the steps are those of `algorithm2` and `ledger`, in their order, with
costs of the box. Place j of layer h is the same row in every lane, though lanes may have different states there: each
gives out its places in the order of its own visits, which the order of additions follows from. There is room for all
states, so nothing moves. Places and edges that a lane has not opened while others have are computed along: they weigh
nothing, and adding zero changes no bit; without visits the policy stays uniform and the cost the default (see `slots`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.tabular import slots as memory
from oal.tabular.algorithm2 import step_sizes
from oal.tabular.costsets import BOX
from oal.tabular.fastmath import invert, jit, jit_inlined
from oal.tabular.ledger import TERMS, Ledger
from oal.tabular.passes import Index, Transitions
from oal.tabular.slots import BERNSTEIN, HOEFFDING, Rules, Slots, insert_key
from oal.tabular.vectors import (
    LANES,
    exponential,
    gather,
    load,
    maximum,
    minimum,
    rows,
    scatter,
    scatter_add,
    splat,
    square_root,
    store,
    uniforms,
    where_zero,
)

LARGEST = 1 << 15
"""Most entries (h, s, a) of a problem that runs in lanes: eight times more no longer stay near the processor."""


SAME = [name for name in Rules._fields if name not in ("features", "expert_features", "planned_episodes")]
"""Rules that lanes share. Features belong to linear costs, and the planned episodes are set for all lanes alike."""
SHORT = 16
"""Rows with fewer successors are searched one by one, longer ones by halves."""


class Lanes(NamedTuple):
    """What eight seeds know: the arrays of `Slots` and of the ledger with one more axis. Layer h begins at h * S."""

    counts: Index  # [H, 8]
    most: Index  # [H] the largest count of any lane
    place: Index  # [H * S, 8] of (h, s) in its layer; the last place of all if it was never visited
    state: Index  # [H * S, 8]
    logits: Array  # [H * S * A, 8], and so the next six
    policy: Array
    cost: Array
    expert: Array
    occupancy: Array
    occupancy_sum: Array
    Q: Array
    V: Array  # [H * S, 8]
    mass: Array  # [H * S, 8]
    visits: Array  # [rows * A, 8]
    inverse: Array  # [rows * A, 8]
    root: Array  # [rows * A, 8]
    edges: int  # room of a row
    direct: bool  # two states at most: edge e leads to place e, whenever it was found
    edge_count: Index  # [rows * A, 8], unless direct
    edge_most: Index  # [rows * A] the largest count of any lane
    edge_to: Index  # [rows * A * edges, 8]
    edge_weight: Array  # [rows * A * edges, 8]
    start_weight: Array  # [S, 8]
    start_total: Array  # [1, 8]
    stream: NDArray[np.uint64]  # [4, 8]
    exact: bool
    true_expert: Array  # [H * S * A] the same in all lanes
    demonstrated: Array  # [H * S * A, 8]
    true_sum: Array  # [H * S * A, 8]
    totals: Array  # [2, 8]


def fit(rules: Rules, other: Rules, ledger: Ledger, other_ledger: Ledger) -> bool:
    """Whether two seeds can share lanes: a small problem, costs of the box, the same rules and the same true expert."""
    return (
        rules.cost_set == BOX
        and rules.models == 0
        and rules.bonus in (HOEFFDING, BERNSTEIN)
        and rules.horizon * rules.n_states * rules.n_actions <= LARGEST
        and all(getattr(rules, name) == getattr(other, name) for name in SAME)
        and not (ledger.decompose or other_ledger.decompose)
        and ledger.exact == other_ledger.exact
        and np.array_equal(ledger.expert, other_ledger.expert)
    )


# In and out of the lanes ----------------------------------------------------------------------------------------------


def enter(
    rules: Rules,
    truth: Transitions,
    all_slots: Sequence[Slots],
    ledgers: Sequence[Ledger],
    streams: Sequence[NDArray[Any]],
) -> Lanes:
    """Copy up to eight seeds into lanes; lanes that are left over repeat the first."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    n, entries = H * S, H * S * A
    pairs = (S if rules.pooled else n) * A
    direct = S <= 2
    # demonstrations may hold transitions that the truth does not know
    known = max(int(slots.edges_used[1]) for slots in all_slots)
    edges = S if direct else min(S, int(np.diff(truth.indptr).max()) + known)
    ledger = ledgers[0]
    settled = entries if ledger.exact else 0
    whole = lambda *shape, fill=0: rows(*shape, dtype=np.int64, fill=fill)  # noqa: E731
    lanes = Lanes(
        counts=whole(H),
        most=np.zeros(H, dtype=np.int64),
        place=whole(n, fill=S - 1),
        state=whole(n),
        logits=rows(entries),
        policy=rows(entries, fill=1.0 / A),
        cost=rows(entries, fill=rules.default_cost),
        expert=rows(entries),
        occupancy=rows(entries),
        occupancy_sum=rows(entries),
        Q=rows(entries),
        V=rows(n),
        mass=rows(n),
        visits=rows(pairs),
        inverse=rows(pairs),
        root=rows(pairs, fill=1.0),
        edges=edges,
        direct=direct,
        edge_count=whole(pairs),
        edge_most=np.full(pairs, S if direct else 0, dtype=np.int64),
        edge_to=whole(pairs * edges),
        edge_weight=rows(pairs * edges),
        start_weight=rows(S),
        start_total=rows(1),
        stream=rows(4, dtype=np.uint64),
        exact=ledger.exact,
        true_expert=ledger.expert,
        demonstrated=rows(settled),
        true_sum=rows(settled),
        totals=rows(2),
    )
    if direct:
        lanes.edge_to[:] = np.tile(np.arange(S), pairs)[:, None]
    for lane in range(LANES):
        seed = lane if lane < len(all_slots) else 0
        copy_in(lanes, rules, all_slots[seed], lane)
        lanes.stream[:, lane] = streams[seed]
        lanes.totals[:, lane] = ledgers[seed].totals
        if ledger.exact:
            lanes.demonstrated[:, lane] = ledgers[seed].demonstrated
            lanes.true_sum[:, lane] = ledgers[seed].occupancy_sum
    return lanes


def leave(lanes: Lanes, rules: Rules, lane: int, ledger: Ledger, stream: NDArray[Any]) -> Slots:
    """Return a seed's slots, and write the rest of what it knows into its ledger and stream."""
    room = np.maximum(lanes.counts[:, lane], min(memory.FIRST_ROOM, rules.n_states))
    slots = memory.allocate(rules, room, int(np.count_nonzero(lanes.edge_weight[:, lane])))
    copy_out(lanes, rules, slots, lane)
    stream[:] = lanes.stream[:, lane]
    ledger.totals[:] = lanes.totals[:, lane]
    if ledger.exact:
        ledger.occupancy_sum[:] = lanes.true_sum[:, lane]
    return slots


@jit
def copy_in(lanes, rules, slots, lane):
    """Copy a seed's slots into a lane."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    for h in range(H):
        lanes.counts[h, lane] = slots.counts[h]
        lanes.most[h] = max(lanes.most[h], slots.counts[h])
        for j in range(slots.counts[h]):
            slot, to = slots.base[h] + j, h * S + j
            lanes.state[to, lane] = slots.state[slot]
            lanes.place[h * S + slots.state[slot], lane] = j
            lanes.V[to, lane] = slots.V[slot]
            lanes.mass[to, lane] = slots.mass[slot]
            for a in range(A):
                lanes.logits[to * A + a, lane] = slots.logits[slot, a]
                lanes.policy[to * A + a, lane] = slots.policy[slot, a]
                lanes.cost[to * A + a, lane] = slots.cost[slot, a]
                lanes.expert[to * A + a, lane] = slots.expert[slot, a]
                lanes.occupancy[to * A + a, lane] = slots.occupancy[slot, a]
                lanes.occupancy_sum[to * A + a, lane] = slots.occupancy_sum[slot, a]
                lanes.Q[to * A + a, lane] = slots.Q[slot, a]
    for h in range(1 if rules.pooled else H):
        for j in range(slots.counts[h]):
            for a in range(A):
                row, to = slots.base[h] + j, (h * S + j) * A + a
                lanes.visits[to, lane] = slots.visits[row, a]
                lanes.inverse[to, lane] = slots.inverse[row, a]
                lanes.root[to, lane] = slots.root[row, a]
                for e in range(slots.edge_start[row, a], slots.edge_start[row, a] + slots.edge_count[row, a]):
                    add_edge(lanes, to, slots.edge_to[e], slots.edge_weight[e], lane)
    for j in range(slots.counts[0]):
        lanes.start_weight[j, lane] = slots.start_weight[j]
    lanes.start_total[0, lane] = slots.start_total[0]


@jit
def copy_out(lanes, rules, slots, lane):
    """Copy a lane into empty slots that have room for it."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    for h in range(H):
        slots.counts[h] = lanes.counts[h, lane]
        for j in range(slots.counts[h]):
            slot, at = slots.base[h] + j, h * S + j
            slots.state[slot] = lanes.state[at, lane]
            insert_key(slots.place_keys, slots.place_values, slots.hashing, h * S + slots.state[slot], j)
            slots.V[slot] = lanes.V[at, lane]
            slots.mass[slot] = lanes.mass[at, lane]
            for a in range(A):
                slots.logits[slot, a] = lanes.logits[at * A + a, lane]
                slots.policy[slot, a] = lanes.policy[at * A + a, lane]
                slots.cost[slot, a] = lanes.cost[at * A + a, lane]
                slots.expert[slot, a] = lanes.expert[at * A + a, lane]
                slots.occupancy[slot, a] = lanes.occupancy[at * A + a, lane]
                slots.occupancy_sum[slot, a] = lanes.occupancy_sum[at * A + a, lane]
                slots.Q[slot, a] = lanes.Q[at * A + a, lane]
    used, most = 0, 0
    for h in range(1 if rules.pooled else H):
        for j in range(slots.counts[h]):
            for a in range(A):
                row, at = slots.base[h] + j, (h * S + j) * A + a
                slots.visits[row, a] = lanes.visits[at, lane]
                slots.inverse[row, a] = lanes.inverse[at, lane]
                slots.root[row, a] = lanes.root[at, lane]
                slots.edge_start[row, a] = used
                for e in range(at * lanes.edges, (at + 1) * lanes.edges):
                    if lanes.edge_weight[e, lane] > 0.0:
                        slots.edge_to[used] = lanes.edge_to[e, lane]
                        slots.edge_weight[used] = lanes.edge_weight[e, lane]
                        used += 1
                count = used - slots.edge_start[row, a]
                slots.edge_count[row, a] = slots.edge_capacity[row, a] = count
                most = max(most, count)
    slots.edges_used[0], slots.edges_used[1] = used, most
    for j in range(slots.counts[0]):
        slots.start_weight[j] = lanes.start_weight[j, lane]
    slots.start_total[0] = lanes.start_total[0, lane]


@jit
def add_edge(lanes, pair, to, weight, lane):
    """Add a successor to a row of one lane."""
    if lanes.direct:
        lanes.edge_weight[pair * lanes.edges + to, lane] = weight
        return
    e = lanes.edge_count[pair, lane]
    lanes.edge_to[pair * lanes.edges + e, lane] = to
    lanes.edge_weight[pair * lanes.edges + e, lane] = weight
    lanes.edge_count[pair, lane] += 1
    lanes.edge_most[pair] = max(lanes.edge_most[pair], e + 1)


@jit
def open_place(lanes, rules, h, s, lane):
    """Give (h, s) the next place in a lane; what no other lane computed along is already as it starts."""
    j = lanes.counts[h, lane]
    lanes.counts[h, lane] += 1
    lanes.most[h] = max(lanes.most[h], j + 1)
    at = h * rules.n_states + j
    lanes.place[h * rules.n_states + s, lane] = j
    lanes.state[at, lane] = s
    lanes.V[at, lane] = 0.0
    for a in range(rules.n_actions):
        lanes.Q[at * rules.n_actions + a, lane] = 0.0
    return j


# Algorithm 2, in all lanes ------------------------------------------------------------------------------------------


@jit
def learn(lanes, rules, truth, first, regrets):
    """Run Algorithm 2 from episode `first` on, until `regrets[lane, k] = (true, empirical)` is full."""
    H, S = rules.horizon, rules.n_states
    draws, at = np.empty((2 * H, LANES)), np.empty((2, LANES), dtype=np.int64)
    mass, after = np.empty((S, LANES)), np.empty((S, LANES))
    sums, empirical_sums = np.empty((2 * TERMS, LANES)), np.empty((2 * TERMS, LANES))
    states, actions = np.empty((H, LANES), dtype=np.int64), np.empty((H, LANES), dtype=np.int64)
    rising = rising_sums(truth)
    episodes = regrets.shape[1]
    for k in range(episodes):
        for i in range(2 * H):
            store(draws, i, uniforms(lanes.stream))
        roll_out(lanes, rules, truth, rising, draws, states, actions)
        if lanes.exact:
            settle(lanes, rules, truth, mass, after, sums, empirical_sums)
            for lane in range(LANES):
                regrets[lane, k, 0] = sums[0, lane]
                regrets[lane, k, 1] = empirical_sums[0, lane]
        estimate_occupancy(lanes, rules)
        update_players(lanes, rules, float(first + k), k + 1 == episodes)
        if not rules.model_known:
            count_trajectories(lanes, rules, states, actions, at)


@jit
def rising_sums(truth):
    """Return each row's running sums but the last, all rows as long as the longest; what is added is never reached."""
    longest = 1
    for row in range(len(truth.indptr) - 1):
        longest = max(longest, truth.indptr[row + 1] - truth.indptr[row])
    rising = np.full((len(truth.indptr) - 1, min(longest - 1, SHORT)), 2.0)
    for row in range(len(rising)):
        start = truth.indptr[row]
        for e in range(start, min(truth.indptr[row + 1] - 1, start + rising.shape[1])):
            rising[row, e - start] = truth.cumulative[e]
    return rising


@jit_inlined
def roll_out(lanes, rules, truth, rising, draws, states, actions):
    """Act every lane's pi_k for an episode. Sums are compared without branches, which would be guessed wrong."""
    short = rising.shape[1] < SHORT
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    place, policy = lanes.place, lanes.policy
    indptr, successors, cumulative = truth.indptr, truth.successors, truth.cumulative
    for lane in range(LANES):
        states[0, lane] = invert(truth.initial_cumulative, 0, S, draws[0, lane])
    for h in range(H):
        layer = 0 if truth.stationary else h
        for lane in range(LANES):
            s = states[h, lane]
            i = (h * S + place[h * S + s, lane]) * A
            u, total, a = draws[2 * h + 1, lane], 0.0, 0
            for b in range(A - 1):
                total += policy[i + b, lane]
                a += np.int64(u >= total)
            actions[h, lane] = a
            if h + 1 < H:
                u = draws[2 * h + 2, lane]
                row = (layer * S + s) * A + a
                e = indptr[row]
                if short:
                    for i in range(rising.shape[1]):
                        e += np.int64(rising[row, i] <= u)
                else:
                    e = invert(cumulative, e, indptr[row + 1], u)
                states[h + 1, lane] = successors[e]


@jit_inlined
def settle(lanes, rules, truth, mass, after, sums, empirical_sums):
    """Account for the episode as `ledger.settle` does; leave the two regrets in the first rows of the sums."""
    H, S, A = rules.horizon, rules.n_states, rules.n_actions
    place, policy, cost = lanes.place, lanes.policy, lanes.cost
    true_expert, demonstrated, true_sum = lanes.true_expert, lanes.demonstrated, lanes.true_sum
    indptr, successors, probabilities = truth.indptr, truth.successors, truth.probabilities
    entries = H * S * A
    summed = entries // TERMS * TERMS
    zero = splat(0.0)
    for i in range(2 * TERMS):
        store(sums, i, zero)
        store(empirical_sums, i, zero)
    k = lanes.totals[1, 0] + 1.0
    store(lanes.totals, 1, splat(k))
    played = zero
    for s in range(S):
        store(mass, s, splat(truth.initial[s]))
    for h in range(H):
        layer = 0 if truth.stationary else h
        for s in range(S):
            store(after, s, zero)
        for s in range(S):
            m = load(mass, s)
            for a in range(A):
                if lanes.direct:
                    first, second = h * S * A + a, (h * S + S - 1) * A + a
                    p = where_zero(place, h * S + s, load(policy, first), load(policy, second))
                    c = where_zero(place, h * S + s, load(cost, first), load(cost, second))
                else:
                    p = gather(policy, h * S * A + a, place, h * S + s, A)
                    c = gather(cost, h * S * A + a, place, h * S + s, A)
                x = m * p
                played += x * c
                if h + 1 < H:
                    row = (layer * S + s) * A + a
                    for e in range(indptr[row], indptr[row + 1]):
                        store(after, successors[e], load(after, successors[e]) + x * probabilities[e])
                i = (h * S + s) * A + a
                x += load(true_sum, i)
                store(true_sum, i, x)
                # what the sums leave over is kept behind them
                to = i % TERMS if i < summed else TERMS + i - summed
                store(sums, to, load(sums, to) + maximum(x - k * true_expert[i], 0.0))
                beyond = maximum(x - load(demonstrated, i) * k, 0.0)
                store(empirical_sums, to, load(empirical_sums, to) + beyond)
        mass, after = after, mass
    store(lanes.totals, 0, load(lanes.totals, 0) + played)
    fold(sums, entries - summed)
    fold(empirical_sums, entries - summed)


@jit
def fold(sums, left):
    """Add up 32 sums and what is left over, in the order of `ledger.settle_box`, into the first row."""
    for i in range(8):
        pairs = (load(sums, i) + load(sums, i + 8)) + (load(sums, i + 16) + load(sums, i + 24))
        store(sums, i, pairs)
    for half in (4, 2, 1):
        for i in range(half):
            store(sums, i, load(sums, i) + load(sums, i + half))
    if left > 0:
        fours = left // 4 * 4
        for i in range(1, 4):
            store(sums, i, splat(0.0))
        for i in range(fours):
            store(sums, i % 4, load(sums, i % 4) + load(sums, TERMS + i))
        total = (load(sums, 0) + load(sums, 2)) + (load(sums, 1) + load(sums, 3))
        for i in range(fours, left):
            total += load(sums, TERMS + i)
        store(sums, 0, total)


@jit_inlined
def estimate_occupancy(lanes, rules):
    """Algorithm 2, line 3: d_hat of the current policies by forward recursion under the empirical models."""
    H, S, A, E = rules.horizon, rules.n_states, rules.n_actions, lanes.edges
    most, mass, policy, inverse = lanes.most, lanes.mass, lanes.policy, lanes.inverse
    occupancy, occupancy_sum = lanes.occupancy, lanes.occupancy_sum
    edge_most, edge_to, edge_weight = lanes.edge_most, lanes.edge_to, lanes.edge_weight
    total = 1.0 / maximum(load(lanes.start_total, 0), 1.0)
    for j in range(most[0]):
        store(mass, j, load(lanes.start_weight, j) * total)
    for h in range(H):
        last = h + 1 == H
        below = (h + 1) * S
        if not last:
            for j in range(most[h + 1]):
                store(mass, below + j, splat(0.0))
        shift = h * S if rules.pooled else 0  # from slots to rows
        for slot in range(h * S, h * S + most[h]):
            m = load(mass, slot)
            for a in range(A):
                i = slot * A + a
                d = m * load(policy, i)
                store(occupancy, i, d)
                store(occupancy_sum, i, load(occupancy_sum, i) + d)
                if not last:
                    pair = i - shift * A
                    share = d * load(inverse, pair)
                    for e in range(edge_most[pair]):
                        x = share * load(edge_weight, pair * E + e)
                        if lanes.direct:
                            store(mass, below + e, load(mass, below + e) + x)
                        else:
                            scatter_add(mass, below, edge_to, pair * E + e, x)


@jit_inlined
def update_players(lanes, rules, k, keep_Q):
    """Algorithm 2, lines 4-18: optimistic evaluation backwards in time, and the mirror step of each player."""
    H, S, A, E = rules.horizon, rules.n_states, rules.n_actions, lanes.edges
    policy_step, cost_step, hoeffding, deviation, fallback = step_sizes(rules, k)
    with_bonus = rules.bonus_scale > 0.0 and not rules.model_known
    bernstein = with_bonus and rules.bonus == BERNSTEIN
    most, V, policy, logits, cost, Q = lanes.most, lanes.V, lanes.policy, lanes.logits, lanes.cost, lanes.Q
    occupancy, expert, inverse, root = lanes.occupancy, lanes.expert, lanes.inverse, lanes.root
    edge_most, edge_to, edge_weight = lanes.edge_most, lanes.edge_to, lanes.edge_weight
    direct = lanes.direct
    for h in range(H - 1, -1, -1):
        last = h + 1 == H
        below = (h + 1) * S
        shift = h * S if rules.pooled else 0  # from slots to rows
        for slot in range(h * S, h * S + most[h]):
            expected, largest = splat(0.0), splat(-np.inf)
            for a in range(A):
                i = slot * A + a
                pair = i - shift * A
                mean, variance = splat(0.0), splat(0.0)
                if not last:
                    for e in range(pair * E, pair * E + edge_most[pair]):
                        after = load(V, below + e - pair * E) if direct else gather(V, below, edge_to, e, 1)
                        mean += load(edge_weight, e) * after
                    mean *= load(inverse, pair)
                    if bernstein:
                        for e in range(pair * E, pair * E + edge_most[pair]):
                            after = load(V, below + e - pair * E) if direct else gather(V, below, edge_to, e, 1)
                            variance += load(edge_weight, e) * ((after - mean) * (after - mean))
                        variance *= load(inverse, pair)
                c = load(cost, i)
                q = c - rules.cost_low + mean  # line 7
                if bernstein:
                    q -= (square_root(variance) * deviation + load(root, pair) * fallback) * load(root, pair)
                elif with_bonus:
                    q -= load(root, pair) * hoeffding
                q = maximum(q, 0.0)  # line 8
                if keep_Q:
                    store(Q, i, q)
                expected += load(policy, i) * q  # line 9
                logit = load(logits, i) - q * policy_step  # line 14
                store(logits, i, logit)
                largest = maximum(largest, logit)
                c += (load(occupancy, i) - load(expert, i)) * cost_step  # line 16
                store(cost, i, minimum(maximum(c, 0.0), 1.0))  # line 17
            store(V, slot, expected)
            for a in range(A):
                # Kept near zero: a constant does not change the policy, and it keeps the digits for the differences.
                store(logits, slot * A + a, load(logits, slot * A + a) - largest)
    # a loop of its own: exponentials wait for themselves, and need others beside them
    for h in range(H):
        for slot in range(h * S, h * S + most[h]):
            total = splat(0.0)
            for i in range(slot * A, (slot + 1) * A):
                weight = exponential(load(logits, i))
                store(policy, i, weight)
                total += weight
            total = 1.0 / total
            for i in range(slot * A, (slot + 1) * A):
                store(policy, i, load(policy, i) * total)


@jit_inlined
def count_trajectories(lanes, rules, states, actions, at):
    """Update n and the empirical model of every lane with its trajectory; `at` holds rows and edges meanwhile."""
    H, S, A, E = rules.horizon, rules.n_states, rules.n_actions, lanes.edges
    place, counts = lanes.place, lanes.counts
    visits, inverse, root = lanes.visits, lanes.inverse, lanes.root
    edge_count, edge_to, edge_weight = lanes.edge_count, lanes.edge_to, lanes.edge_weight
    pooled, direct = rules.pooled, lanes.direct
    for h in range(H):
        shift = 0 if pooled else h * S
        for lane in range(LANES):
            s = states[h, lane]
            j = place[h * S + s, lane]
            if j >= counts[h, lane]:
                if pooled:
                    for step in range(H):
                        j = open_place(lanes, rules, step, s, lane)
                else:
                    j = open_place(lanes, rules, h, s, lane)
            if h == 0:
                at[1, lane] = j
            elif direct:
                at[1, lane] = at[0, lane] * E + j
            else:
                pair = at[0, lane]
                e, stop = pair * E, pair * E + edge_count[pair, lane]
                while e < stop and edge_to[e, lane] != j:
                    e += 1
                if e == stop:
                    add_edge(lanes, pair, j, 0.0, lane)
                at[1, lane] = e
            at[0, lane] = (shift + j) * A + actions[h, lane]
        if h > 0:
            scatter(edge_weight, 0, at, 1, gather(edge_weight, 0, at, 1, 1) + 1.0)
        elif not rules.initial_known:
            scatter(lanes.start_weight, 0, at, 1, gather(lanes.start_weight, 0, at, 1, 1) + 1.0)
            store(lanes.start_total, 0, load(lanes.start_total, 0) + 1.0)
        # A pooled row serves all steps: a visit at the last one, which has no successor, would take its mass away.
        if h + 1 < H or H == 1 or not pooled:
            n = gather(visits, 0, at, 0, 1) + 1.0
            scatter(visits, 0, at, 0, n)
            scatter(inverse, 0, at, 0, 1.0 / n)
            scatter(root, 0, at, 0, square_root(1.0 / n))
