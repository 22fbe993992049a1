"""The expert's occupancy estimated with the transitions, not by counting alone.

One half of the demonstrations shows the expert's action in the states it visits. How often the expert is there, as
long as it has not left those states, follows exactly from the transitions. Only what happens after it has left them is
counted, in the other half:

    d_h(s, a) = Pr(s_h = s, a_h = a, s_1, ..., s_h in covered states) + share of the other half's episodes that are at
                (s, a) at step h and have left the covered states before or at h

Mimic-MD of Rajaraman et al. (2020, "Toward the Fundamental Limits of Imitation Learning"); TAIL and, with an estimated
model, MB-TAIL of Xu, Li and Yu (2021, "Nearly Minimax Optimal Adversarial Imitation Learning with Known and Unknown
Transitions"). For a deterministic expert and the true transitions it has no bias, and its error is of order
S H^1.5 / N where counting's is of order H sqrt(S / N). A state in which the half shows different actions is not
covered.
"""

from typing import NamedTuple

import numpy as np

from oal.equations import Array
from oal.errors import InputError
from oal.tabular.fastmath import jit
from oal.tabular.passes import Index
from oal.tabular.problem import FiniteMDP, Trajectories
from oal.tabular.slots import find

EXPERT_ESTIMATES = ("empirical", "transition-aware")


def covered_actions(demos: Trajectories, shape: tuple[int, int, int]) -> tuple[Index, Trajectories]:
    """Return the expert's action at each (h, s) that the first half covers, -1 elsewhere, and the other half.

    The halves are the demonstrations with even and with odd numbers.
    """
    H, S, _ = shape
    if len(demos) < 2:
        raise InputError("the transition-aware estimate needs two demonstrations or more: expert='empirical'")
    shown, counted = (Trajectories(demos.states[i::2], demos.actions[i::2]) for i in (0, 1))
    actions = np.full((H, S), -1, dtype=np.int64)
    steps = np.broadcast_to(np.arange(H), shown.states.shape)
    actions[steps, shown.states] = shown.actions
    differ = actions[steps, shown.states] != shown.actions
    actions[steps[differ], shown.states[differ]] = -1
    return actions, counted


def remainder(actions: Index, counted: Trajectories, shape: tuple[int, int, int]) -> Array:
    """Return the counted part: the shares of episodes at each (h, s, a) that have left the covered states by then."""
    steps = np.broadcast_to(np.arange(shape[0]), counted.states.shape)
    left = np.logical_or.accumulate(actions[steps, counted.states] < 0, axis=1)
    d = np.zeros(shape)
    np.add.at(d, (steps[left], counted.states[left], counted.actions[left]), 1.0 / len(counted))
    return d


def transition_aware(demos: Trajectories, mdp: FiniteMDP, shape: tuple[int, int, int] | None = None) -> Array:
    """Estimate the expert's occupancy `[H, S, A]` with the transitions of an MDP: the true one, or an estimated one.

    `shape` is that of the demonstrations' MDP, if the estimated one has a sink after its states.
    """
    H, S, A = shape = mdp.shape if shape is None else shape
    demos.check(shape, of=mdp.name)
    actions, counted = covered_actions(demos, shape)
    d = remainder(actions, counted, shape)
    mass = np.where(actions[0] >= 0, mdp.initial[:S], 0.0)
    for h in range(H):
        at = np.flatnonzero(mass)
        d[h, at, actions[h, at]] += mass[at]
        if h + 1 == H:
            break
        after = np.zeros(mdp.n_states)
        for s in at:
            row = ((0 if mdp.stationary else h) * mdp.n_states + s) * A + actions[h, s]
            edges = slice(mdp.indptr[row], mdp.indptr[row + 1])
            np.add.at(after, mdp.successors[edges], mass[s] * mdp.probabilities[edges])
        mass = np.where(actions[h + 1] >= 0, after[:S], 0.0)
    return d


# The same with the learner's own model, episode by episode, compiled --------------------------------------------------


class Covered(NamedTuple):
    """Where the expert's action is known, and the counted rest, by step and place in the layer, which never change."""

    used: bool
    step: Index  # [covered]
    place: Index  # [covered]
    action: Index  # [covered]
    rest_step: Index  # [rest]
    rest_place: Index  # [rest]
    rest_action: Index  # [rest]
    rest_share: Array  # [rest]


_none = np.zeros(0, dtype=np.int64)
NOTHING_COVERED = Covered(False, _none, _none, _none, _none, _none, _none, np.zeros(0))


def cover(demos: Trajectories, shape: tuple[int, int, int], place_keys, place_values, hashing) -> Covered:
    """Find the places of what the demonstrations cover and of the rest; all of them have slots."""
    actions, counted = covered_actions(demos, shape)
    rest = remainder(actions, counted, shape)

    def places(steps, states):
        keys = steps * shape[1] + states
        return np.array([find(place_keys, place_values, hashing, int(key)) for key in keys], dtype=np.int64)

    step, state = (index.astype(np.int64) for index in np.nonzero(actions >= 0))
    rest_step, rest_state, rest_action = (index.astype(np.int64) for index in np.nonzero(rest))
    return Covered(
        used=True,
        step=step,
        place=places(step, state),
        action=np.ascontiguousarray(actions[step, state]),
        rest_step=rest_step,
        rest_place=places(rest_step, rest_state),
        rest_action=rest_action,
        rest_share=rest[rest_step, rest_state, rest_action],
    )


@jit
def cover_slots(slots, covered):
    """Return the expert's action in each slot, -1 where it is not known, and room for the expert's masses."""
    size = len(slots.state) if covered.used else 0
    actions_at = np.full(size, -1)
    for i in range(len(covered.step)):
        actions_at[slots.base[covered.step[i]] + covered.place[i]] = covered.action[i]
    return actions_at, np.zeros(size)


@jit
def estimate_expert(slots, rules, covered, actions_at, mass):
    """Write the transition-aware estimate under the slots' model into the slots, and its features into the rules."""
    expert = slots.expert
    base, count = slots.base, slots.counts
    mass[:] = 0.0
    expert[:] = 0.0
    total = 1.0 / max(slots.start_total[0], 1.0)
    for j in range(count[0]):
        mass[j] = slots.start_weight[j] * total
    for h in range(rules.horizon):
        below = base[h + 1]
        shift = base[h] if rules.pooled else 0  # from slots to rows
        for slot in range(base[h], base[h] + count[h]):
            a = actions_at[slot]
            if a < 0 or mass[slot] == 0.0:
                continue
            expert[slot, a] = mass[slot]
            if h + 1 < rules.horizon:
                row = slot - shift
                share = mass[slot] * slots.inverse[row, a]
                start = slots.edge_start[row, a]
                for e in range(start, start + slots.edge_count[row, a]):
                    mass[below + slots.edge_to[e]] += share * slots.edge_weight[e]
    for i in range(len(covered.rest_step)):
        expert[base[covered.rest_step[i]] + covered.rest_place[i], covered.rest_action[i]] += covered.rest_share[i]
    features = rules.expert_features
    for i in range(len(features)):
        features[i] = 0.0
        for h in range(rules.horizon):
            for slot in range(base[h], base[h] + count[h]):
                for a in range(rules.n_actions):
                    features[i] += expert[slot, a] * rules.features[slots.state[slot], i]
