"""What Algorithm 2 remembers of the states it has visited: slots, a table from (h, s) to them, and the empirical model.

A slot is a state at a step that somebody has visited (or whose start differs from the rest). The slots of step h are
`base[h] + j` for `j < counts[h]`; `j` is the slot's place in its layer and never changes, while `base` moves when the
arrays grow. States without a slot keep their closed form: the initial cost is constant over them, so their Q is
constant over actions and their policy stays uniform; nothing leads to them under the empirical model.

The empirical model lives in rows beside the slots. With pooled counts a state has its slots at all steps at once, at
the same place in each layer, and the rows of the first layer serve all steps.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oal.equations import Array
from oal.tabular.fastmath import jit
from oal.tabular.passes import Index

HOEFFDING, BERNSTEIN = 0, 1
FIRST_ROOM = 4
SMALL_TABLE = 1 << 16


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
    member_visits: Array  # [rows, A, models] what each model of an ensemble counted of `visits`
    member_weight: Array  # [edges, models] and of `edge_weight`


class Rules(NamedTuple):
    """What does not change during a run of Algorithm 2."""

    n_states: int
    n_actions: int
    horizon: int
    pooled: bool
    model_known: bool
    initial_known: bool
    bonus: int
    bonus_scale: float
    delta: float  # failure probability of the theorem
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
    models: int = 0  # members of an ensemble, each with its own share of the episodes


# The table from (h, s) to slots, and the empirical model's edges, compiled --------------------------------------------


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
    """Write the place of a key that is not in the table yet."""
    mask = len(keys) - 1
    i = np.int64((np.uint64(key) * hashing[0]) >> hashing[1]) & mask
    while keys[i] >= 0:
        i = (i + 1) & mask
    keys[i] = key
    values[i] = value


@jit
def copy_places(keys, values, new_keys, new_values, hashing):
    """Write all places into another table."""
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
    """Add a successor to a row. There is room for it: `has_room` was asked before."""
    start = slots.edge_start[row, a]
    used = slots.edge_count[row, a]
    if used == slots.edge_capacity[row, a]:
        # The row moves to the end with twice the room: contiguous rows, amortised copying.
        room = max(2, 2 * used)
        fresh = slots.edges_used[0]
        for e in range(used):
            slots.edge_to[fresh + e] = slots.edge_to[start + e]
            slots.edge_weight[fresh + e] = slots.edge_weight[start + e]
            for member in range(slots.member_weight.shape[1]):
                slots.member_weight[fresh + e, member] = slots.member_weight[start + e, member]
        slots.edges_used[0] += room
        slots.edge_start[row, a] = fresh
        slots.edge_capacity[row, a] = room
        start = fresh
    slots.edge_to[start + used] = to
    slots.edge_weight[start + used] = weight
    slots.edge_count[row, a] = used + 1
    slots.edges_used[1] = max(slots.edges_used[1], used + 1)


@jit
def has_room(slots, rules):
    """Tell whether one more episode surely fits: at most one new state a step, and one new edge."""
    opened = rules.horizon if rules.pooled else 1
    for h in range(rules.horizon):
        if min(slots.counts[h] + opened, rules.n_states) > slots.base[h + 1] - slots.base[h]:
            return False
    return slots.edges_used[0] + rules.horizon * max(2, 2 * slots.edges_used[1]) <= len(slots.edge_to)


@jit
def pack_edges(slots, rules, edge_to, edge_weight, member_weight):
    """Copy the rows' edges from elsewhere, in the rows' order, so that a pass reads one after the other."""
    used = 0
    for h in range(1 if rules.pooled else rules.horizon):
        for row in range(slots.base[h], slots.base[h] + slots.counts[h]):
            for a in range(rules.n_actions):
                start, count = slots.edge_start[row, a], slots.edge_count[row, a]
                slots.edge_start[row, a] = used
                slots.edge_capacity[row, a] = count
                for e in range(start, start + count):
                    slots.edge_to[used] = edge_to[e]
                    slots.edge_weight[used] = edge_weight[e]
                    for member in range(rules.models):
                        slots.member_weight[used, member] = member_weight[e, member]
                    used += 1
    slots.edges_used[0] = used


@jit
def scattered(slots, rules):
    """Tell whether more than one row in eight has its edges before those of the row before it."""
    count, back, last = 0, 0, 0
    for h in range(1 if rules.pooled else rules.horizon):
        for row in range(slots.base[h], slots.base[h] + slots.counts[h]):
            for a in range(rules.n_actions):
                if slots.edge_count[row, a] > 0:
                    count += 1
                    back += slots.edge_start[row, a] < last
                    last = slots.edge_start[row, a]
    return 8 * back > count


# Memory: allocated, grown, and checked when it comes from a file ------------------------------------------------------

PER_SLOT = ("state", "logits", "policy", "cost", "expert", "occupancy", "occupancy_sum", "Q", "V", "mass")
PER_ROW = ("visits", "inverse", "root", "edge_start", "edge_count", "edge_capacity", "member_visits")


def empty(rules: Rules) -> Slots:
    """Return memory for a few states at each step, none of them visited."""
    room = np.full(rules.horizon, min(FIRST_ROOM, rules.n_states), dtype=np.int64)
    return allocate(rules, room, 8 * rules.horizon)


def make_room(slots: Slots, rules: Rules) -> Slots:
    """Grow until one more episode surely fits."""
    while not has_room(slots, rules):
        room, edges = np.diff(slots.base), len(slots.edge_to)
        opened = rules.horizon if rules.pooled else 1
        tight = np.minimum(slots.counts + opened, rules.n_states) > room
        room = np.where(tight, np.minimum(2 * room + opened, rules.n_states), room)
        if not tight.any():
            edges = 2 * edges + rules.horizon * 2 * max(1, int(slots.edges_used[1]))
        slots = _resize(slots, rules, room, edges)
    return slots


def tidy(slots: Slots, rules: Rules) -> Slots:
    """Bring the edges into the rows' order where visits have scattered them: memory is quick in order only."""
    return _resize(slots, rules, np.diff(slots.base), len(slots.edge_to)) if scattered(slots, rules) else slots


def reserve(slots: Slots, rules: Rules, states_per_step: int, edges: int = 0) -> Slots:
    """Grow to hold so many states at each step, and so many edges."""
    return _resize(slots, rules, np.maximum(np.diff(slots.base), states_per_step), max(edges, len(slots.edge_to)))


def dense(slots: Slots, values: Array, shape: tuple[int, int, int], default: float) -> Array:
    """Return values of the slots as `[H, S, A]`; states without a slot have the default."""
    full = np.full(shape, default)
    for h, (first, count) in enumerate(zip(slots.base[:-1], slots.counts, strict=True)):
        full[h, slots.state[first : first + count]] = values[first : first + count]
    return full


def allocate(rules: Rules, room: Index, edges: int) -> Slots:
    """Return empty slots with `room[h]` places in layer h and room for `edges` edges."""
    H, A = rules.horizon, rules.n_actions
    base = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
    total, rows = int(base[-1]), int(base[1] if rules.pooled else base[-1])
    keys, values, hashing = place_table(rules, total)
    whole = lambda *shape: np.zeros(shape, dtype=np.int64)  # noqa: E731
    by_action = ("logits", "policy", "cost", "expert", "occupancy", "occupancy_sum", "Q")
    return Slots(
        base=base,
        counts=whole(H),
        place_keys=keys,
        place_values=values,
        hashing=hashing,
        state=whole(total),
        V=np.zeros(total),
        mass=np.zeros(total),
        visits=np.zeros((rows, A)),
        inverse=np.zeros((rows, A)),
        root=np.ones((rows, A)),
        edge_start=whole(rows, A),
        edge_count=whole(rows, A),
        edge_capacity=whole(rows, A),
        edge_to=whole(edges),
        edge_weight=np.zeros(edges),
        edges_used=whole(2),
        start_weight=np.zeros(int(base[1])),
        start_total=np.zeros(1),
        member_visits=np.zeros((rows, A, rules.models)),
        member_weight=np.zeros((edges, rules.models)),
        **{name: np.zeros((total, A)) for name in by_action},
    )


def place_table(rules: Rules, slots: int) -> tuple[Index, Index, NDArray[np.uint64]]:
    """Make an empty table from (h, s) to places: direct for small MDPs, hashed (half full at most) for large ones."""
    pairs = rules.horizon * rules.n_states
    direct = pairs <= SMALL_TABLE
    bits = max(1, (pairs - 1 if direct else 2 * slots).bit_length())
    hashing = np.array([1, 0] if direct else [0x9E3779B97F4A7C15, 64 - bits], dtype=np.uint64)
    return np.full(1 << bits, -1, dtype=np.int64), np.zeros(1 << bits, dtype=np.int64), hashing


def _resize(slots: Slots, rules: Rules, room: Index, edges: int) -> Slots:
    """Copy the slots into other memory; places in the layers stay."""
    new = allocate(rules, room, edges)
    for name in PER_SLOT + PER_ROW:
        old_values, new_values = getattr(slots, name), getattr(new, name)
        for h in range(1 if rules.pooled and name in PER_ROW else rules.horizon):
            count = slots.counts[h]
            new_values[new.base[h] : new.base[h] + count] = old_values[slots.base[h] : slots.base[h] + count]
    for name in ("counts", "edges_used", "start_total"):
        getattr(new, name)[:] = getattr(slots, name)
    new.start_weight[: slots.counts[0]] = slots.start_weight[: slots.counts[0]]
    pack_edges(new, rules, slots.edge_to, slots.edge_weight, slots.member_weight)
    copy_places(slots.place_keys, slots.place_values, new.place_keys, new.place_values, new.hashing)
    return new


def adopt(given: Slots, fresh: Slots, rules: Rules) -> Slots:
    """Return slots read from a file in memory of our own, or raise ValueError: the compiled code checks no bounds.

    What follows from other arrays is made again instead of believed: the table of places, and all unused memory.
    """
    for name in Slots._fields:
        array, like = getattr(given, name), getattr(fresh, name)
        if array.dtype != like.dtype or array.ndim != like.ndim or array.shape[1:] != like.shape[1:]:
            raise ValueError(f"slots.{name} is {array.dtype}{array.shape}")
    _check_lengths(given, rules)
    _check_states(given, rules)
    _check_edges(given, rules)
    _check_numbers(given, rules)
    table = _table_of(given, rules)
    _require(np.array_equal(given.hashing, table[2]), "hashing")
    _require(len(given.place_keys) == len(given.place_values) == len(table[0]), "place_keys")
    _require(_same_places(given.place_keys, given.place_values, *table[:2]), "place_values")
    keys, values, hashing = table
    rebuilt = given._replace(place_keys=keys, place_values=values, hashing=hashing)
    return _resize(rebuilt, rules, np.diff(given.base), len(given.edge_to))


def _require(sound: bool | np.bool_, name: str) -> None:
    if not sound:
        raise ValueError(f"slots.{name} contradicts what was visited")


def _check_lengths(slots: Slots, rules: Rules) -> None:
    for name, length in (("base", rules.horizon + 1), ("counts", rules.horizon), ("hashing", 2), ("edges_used", 2)):
        _require(len(getattr(slots, name)) == length, name)
    total = len(slots.state)
    _require(slots.base[0] == 0 and slots.base[-1] == total, "base")
    # no value leaves [0, total], so no difference overflows
    _require(slots.base.min() >= 0 and slots.base.max() <= total and (np.diff(slots.base) >= 0).all(), "base")
    rows = int(slots.base[1 if rules.pooled else -1])
    wanted = dict.fromkeys(PER_SLOT, total) | dict.fromkeys(PER_ROW, rows)
    wanted |= {"start_weight": int(slots.base[1]), "start_total": 1}
    wanted |= dict.fromkeys(("edge_weight", "member_weight"), len(slots.edge_to))
    for name, length in wanted.items():
        _require(len(getattr(slots, name)) == length, name)
    _require((slots.counts >= 0).all() and (slots.counts <= np.diff(slots.base)).all(), "counts")


def _check_states(slots: Slots, rules: Rules) -> None:
    """Each layer's places hold different states; with pooled counts, every layer holds the same at the same place."""
    layers = [slots.state[first : first + count] for first, count in zip(slots.base, slots.counts, strict=False)]
    for layer in layers:
        _require(layer.min(initial=0) >= 0 and layer.max(initial=0) < rules.n_states, "state")
        _require(len(np.unique(layer)) == len(layer), "state")
        _require(not rules.pooled or np.array_equal(layer, layers[0]), "state")


def _check_edges(slots: Slots, rules: Rules) -> None:
    """Every row's edges lie in room of its own and lead to places that the layer after it has."""
    used, most = (int(number) for number in slots.edges_used)
    _require(0 <= used <= len(slots.edge_to), "edges_used")
    taken, longest = [], 0
    for h in range(1 if rules.pooled else rules.horizon):
        rows = slice(int(slots.base[h]), int(slots.base[h] + slots.counts[h]))
        start, count, room = (a[rows].ravel() for a in (slots.edge_start, slots.edge_count, slots.edge_capacity))
        # each alone first: their sums cannot overflow then
        for name, values in (("edge_start", start), ("edge_capacity", room), ("edge_count", count)):
            _require(values.min(initial=0) >= 0 and values.max(initial=0) <= used, name)
        _require((count <= room).all(), "edge_count")
        _require((start + room <= used).all(), "edge_capacity")
        last = rules.horizon == 1 or (h + 1 == rules.horizon and not rules.pooled)
        _require(not last or not count.any(), "edge_count")
        edges = _ranges(start, count)
        to, weight = slots.edge_to[edges], slots.edge_weight[edges]
        places = 0 if last else int(slots.counts[h if rules.pooled else h + 1])
        _require(len(to) == 0 or (to.min() >= 0 and to.max() < places), "edge_to")
        _require(np.isfinite(weight).all() and (weight >= 0).all(), "edge_weight")
        _check_members(slots.member_weight[edges], weight, "member_weight")
        sums = np.bincount(np.repeat(np.arange(len(count)), count), weight, minlength=len(count))
        _require((sums <= slots.visits[rows].ravel() * (1 + 1e-9) + 1e-9).all(), "edge_weight")
        taken.append(np.stack([start, room])[:, room > 0])
        longest = max(longest, int(count.max(initial=0)))
    _require(most == longest, "edges_used")
    start, room = np.concatenate(taken, axis=1)
    order = np.argsort(start)
    _require((start[order][:-1] + room[order][:-1] <= start[order][1:]).all(), "edge_start")


def _check_members(members: Array, whole: Array, name: str) -> None:
    """The models of an ensemble share what was counted."""
    _require(np.isfinite(members).all() and (members >= 0).all(), name)
    _require(members.shape[-1] == 0 or np.allclose(members.sum(-1), whole, rtol=1e-9, atol=1e-9), name)


def _ranges(start: Index, count: Index) -> Index:
    """Return the numbers of `start[i], ..., start[i] + count[i] - 1` for all i, one range after the other."""
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(int(count.sum()))


def _check_numbers(slots: Slots, rules: Rules) -> None:
    """Probabilities are some, counts fit their inverses, and nothing is NaN: in the slots and rows in use."""
    used = _ranges(slots.base[:-1], slots.counts)
    rows = used[: slots.counts[0]] if rules.pooled else used
    for name in ("policy", "expert", "occupancy", "occupancy_sum", "Q", "V", "mass", "visits", "start_weight"):
        where = rows if name in PER_ROW else slice(int(slots.counts[0])) if name == "start_weight" else used
        values = getattr(slots, name)[where]
        _require(np.isfinite(values).all() and (values >= 0).all(), name)
    _check_members(slots.member_visits[rows], slots.visits[rows], "member_visits")
    _require(np.isfinite(slots.cost[used]).all(), "cost")
    logits, visits = slots.logits[used], slots.visits[rows]
    _require((logits <= 0).all() and (logits > -np.inf).any(-1).all(), "logits")
    _require((np.abs(slots.policy[used].sum(-1) - 1) <= 1e-6).all(), "policy")
    with np.errstate(divide="ignore"):
        inverse = np.where(visits > 0, 1 / visits, 0.0)
    _require(np.allclose(slots.inverse[rows], inverse, rtol=1e-9, atol=0), "inverse")
    _require(np.allclose(slots.root[rows], np.where(visits > 0, np.sqrt(inverse), 1.0), rtol=1e-9, atol=0), "root")
    begun = slots.start_weight[: slots.counts[0]].sum()
    _require(np.isclose(slots.start_total[0], begun, rtol=1e-9, atol=1e-9), "start_total")


def _table_of(slots: Slots, rules: Rules) -> tuple[Index, Index, NDArray[np.uint64]]:
    """Make the table of places from the states in the slots."""
    keys, values, hashing = place_table(rules, len(slots.state))
    for h, (first, count) in enumerate(zip(slots.base, slots.counts, strict=False)):
        wanted = h * rules.n_states + slots.state[first : first + count]
        copy_places(wanted, np.arange(count), keys, values, hashing)
    return keys, values, hashing


def _same_places(keys: Index, values: Index, other_keys: Index, other_values: Index) -> bool:
    """Whether two tables say the same; where in a table an entry stands depends on the order of visits."""
    pairs = [np.stack([k, v])[:, k >= 0] for k, v in ((keys, values), (other_keys, other_values))]
    one, other = (pair[:, np.lexsort(pair[::-1])] for pair in pairs)
    return np.array_equal(one, other)
