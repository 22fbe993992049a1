"""The AL regret (Definition 1), its decomposition, the theorem's bound, and an estimate from samples alone.

Reg_AL(K) = max_{c in C} sum_k <c, d^{pi_k} - d^E> is the support function of the cost set at the summed difference of
occupancies; `TabularOAL` accumulates it exactly, episode by episode, where the transitions are known.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal import equations
from oal.equations import Array
from oal.errors import InputError, at_least
from oal.tabular.costsets import CostSet
from oal.tabular.learner import TabularOAL
from oal.tabular.mdp import FiniteMDP, Trajectories, optimal_policy


def al_regret(cost_set: CostSet, occupancies: Array, expert: Array) -> Array:
    """Return Reg_AL after each episode, from the occupancies `[K, H, S, A]` of the learner's policies.

    `expert` is `[H, S, A]`: the true expert's occupancy, or its empirical estimate. This is the definition, for small
    problems; the learner keeps the same numbers as it goes.
    """
    difference = np.cumsum(occupancies - expert, axis=0)
    return np.array([cost_set.support(cost_set.coordinates(d)) for d in difference])


@dataclass(frozen=True)
class Decomposition:
    """The AL regret as the sum of its parts (appendix, lemma of the regret decomposition), exactly.

    `regret = policy + cost + statistical`. The lemma bounds the statistical part by `statistical_limit`, twice the
    number of episodes times the largest |<c, d^E - d_hat^E>|.
    """

    regret: float
    policy: float
    """The policy player's regret, sum_k <c_k, d_k> - min_pi sum_k <c_k, d_pi>."""
    cost: float
    """The cost player's regret, max_c sum_k <c, d_k - d_hat^E> - sum_k <c_k, d_k - d_hat^E>."""
    statistical: float
    """What is left, since demonstrations are not the expert: the regret less the regret against the demonstrations,
    plus min_pi <sum_k c_k, d_pi - d_hat^E>."""
    statistical_limit: float

    @property
    def bound(self) -> float:
        """The right-hand side of the lemma."""
        return self.policy + self.cost + self.statistical_limit


def decompose(learner: TabularOAL) -> Decomposition:
    """Split the regret of a learner made with `decompose=True` into its players' parts."""
    ledger = learner._ledger
    if not (ledger.exact and ledger.decompose):
        raise InputError("the decomposition needs a learner made with regret='exact' and decompose=True")
    if learner.episodes == 0:
        raise InputError("nothing was learned yet: there is no regret to decompose")
    assert isinstance(learner.env, FiniteMDP)
    mdp, cost_set, K = learner.env, learner.cost_set, learner.episodes
    shape = mdp.shape
    d_expert, d_hat = ledger.expert.reshape(shape), ledger.demonstrated.reshape(shape)
    summed = ledger.occupancy_sum.reshape(shape)
    costs = ledger.cost_sum.reshape(shape) if cost_set.kind == "box" else np.array(cost_set.cost(ledger.weight_sum))
    played = float(ledger.totals[0])
    read = cost_set.coordinates
    regret = cost_set.support(read(summed - K * d_expert))
    empirical = cost_set.support(read(summed - K * d_hat))
    least = float(mdp.initial @ optimal_policy(mdp, costs)[1][0])
    demonstrated = equations.inner(costs, d_hat)
    return Decomposition(
        regret=regret,
        policy=played - least,
        cost=empirical - (played - demonstrated),
        statistical=(regret - empirical) + (least - demonstrated),
        statistical_limit=2
        * K
        * max(cost_set.support(read(d_expert - d_hat)), cost_set.support(read(d_hat - d_expert))),
    )


def bound(shape: tuple[int, int, int], episodes: int, demonstrations: int) -> Array:
    """Return the theorem's bound after 1..K episodes, with constants one and without logarithms."""
    K = np.arange(1, episodes + 1, dtype=np.float64)
    return np.asarray(equations.regret_bound(shape, K, demonstrations))


@dataclass(frozen=True)
class Estimate:
    """An estimate of the AL regret from samples, with a confidence interval."""

    regret: float
    low: float
    high: float
    level: float
    episodes: int


def estimate(
    cost_set: CostSet,
    learner: Trajectories,
    demos: Trajectories,
    *,
    level: float = 0.95,
    resamples: int = 400,
    rng: np.random.Generator,
    held_out: bool = False,
    expert_features: ArrayLike | None = None,
) -> Estimate:
    """Estimate Reg_AL from the learner's episodes and the demonstrations alone: no transition table.

    For one cost fixed in advance the episodes' costs estimate the regret without bias. The maximum over costs does not:
    choosing the cost on the same episodes counts noise as regret, choosing it on others misses some. So both are done:
    the lower end takes costs chosen on one half (of episodes and demonstrations) and measured on the other, the upper
    end those chosen and measured on all. Each is moved outwards by its standard error, from resampling whole episodes.
    The estimate is the latter less its bias, which resampling shows as well.

    A learner comes nearer to the demonstrations it learned from than to the expert: the difference from them is too
    small. The expert may be wherever resampled demonstrations are while the learner stays; the upper end and the
    estimate are therefore taken from the average over those. Demonstrations `held_out` from the learning need no such
    care, nor do `expert_features` (the expert's coordinates, if they are known), which replace the demonstrations.
    """
    from scipy.stats import norm

    if not 0 < level < 1:
        raise InputError(f"level is {level}: it must lie strictly between 0 and 1")
    if len(learner) < 4 or (expert_features is None and len(demos) < 4):
        raise InputError("at least 4 episodes and 4 demonstrations are needed to estimate a regret")
    at_least("resamples", resamples, 2)
    demos.check(cost_set.shape)
    learner.check(cost_set.shape)
    K = len(learner)
    x, columns = _episode_coordinates(cost_set, learner, demos)
    mine, theirs = x[:K].T, x[K:].T
    known = None
    if expert_features is not None:
        known = np.asarray(expert_features, dtype=np.float64)
        expected = cost_set.shape if cost_set.kind == "box" else (cost_set.dimension,)
        if known.shape != expected:
            raise InputError(f"expert_features have the shape {known.shape}: the {cost_set.kind} set wants {expected}")
        known = known.ravel()[columns]

    def difference(weights_mine: Array, weights_theirs: Array) -> Array:
        expert = known if known is not None else theirs @ weights_theirs / weights_theirs.sum()
        return K * (mine @ weights_mine / weights_mine.sum() - expert)

    def plug_in(weights_mine: Array, weights_theirs: Array) -> float:
        return cost_set.support(difference(weights_mine, weights_theirs))

    half_mine, half_theirs = _halves(K, rng), _halves(len(demos), rng)

    def crossed(weights_mine: Array, weights_theirs: Array) -> float:
        halves = [difference(weights_mine * half_mine[i], weights_theirs * half_theirs[i]) for i in (0, 1)]
        return float(np.mean([cost_set.best_response(halves[1 - i]).ravel() @ halves[i] for i in (0, 1)]))

    all_mine, all_theirs = np.ones(K), np.ones(len(demos))
    draws = np.empty((resamples, 4))
    for draw in draws:
        drawn_mine = _resampled(half_mine, rng)
        drawn_theirs = all_theirs if known is not None else _resampled(half_theirs, rng)
        draw[:] = (
            crossed(drawn_mine, drawn_theirs),
            plug_in(drawn_mine, drawn_theirs),
            plug_in(drawn_mine, all_theirs),
            plug_in(all_mine, drawn_theirs),
        )
    mean, deviation = draws.mean(0), draws.std(0, ddof=1)
    found = plug_in(all_mine, all_theirs)
    outwards = float(norm.ppf(0.5 + level / 2))
    low = crossed(all_mine, all_theirs) - outwards * deviation[0]
    if held_out or known is not None:
        high, corrected = found + outwards * deviation[1], 2 * found - mean[1]
    else:
        high, corrected = mean[3] + outwards * np.hypot(*deviation[2:]), mean[3] - (mean[2] - found)
    # The box and the ball hold the zero cost, so that the regret is never negative there.
    if cost_set.kind != "simplex":
        low = max(low, 0.0)
    return Estimate(
        regret=float(np.clip(corrected, low, high)), low=float(low), high=float(high), level=level, episodes=K
    )


def _halves(n: int, rng: np.random.Generator) -> Array:
    first = np.zeros(n)
    first[rng.permutation(n)[: n // 2]] = 1.0
    return np.stack([first, 1.0 - first])


def _resampled(halves: Array, rng: np.random.Generator) -> Array:
    """Draw as many episodes from each half as it has, with replacement, so that neither half is ever empty."""
    return np.sum([rng.multinomial(int(half.sum()), half / half.sum()) for half in halves], axis=0).astype(np.float64)


def _episode_coordinates(
    cost_set: CostSet, learner: Trajectories, demos: Trajectories
) -> tuple[Any, NDArray[np.int64]]:
    """Read each episode in the set's coordinates; for the box, sparse: only those that some episode visited."""
    states = np.concatenate([learner.states, demos.states])
    actions = np.concatenate([learner.actions, demos.actions])
    if cost_set.kind != "box":
        return cost_set.phi[states].sum(1), np.arange(cost_set.dimension)
    from scipy.sparse import csr_array

    H, S, A = cost_set.shape
    flat = (np.arange(H) * S + states) * A + actions
    columns, places = np.unique(flat, return_inverse=True)
    ends = np.arange(len(states) + 1) * H
    return csr_array((np.ones(flat.size), places.ravel(), ends), shape=(len(states), len(columns))), columns
