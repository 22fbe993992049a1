"""How close is a policy to the expert, without a reward: the imitation certificate.

Learner and expert are compared as occupancies: each episode spreads a mass of 1 over its horizon, and what is left
after a true termination lies in the absorbing state (`oal.envs.occupancy_masses`). So a policy that dies early differs
from one that lives, whatever it does before. The rest of an episode that was cut off is unknown: it counts like the
mean of all steps in the linear features, and is left out of the other measures.

Four of the measures are the worst gap  max_{c in C} <c, μ - μ_E>  over a symmetric class C of costs:
    linear, L2       weights of norm at most 1 on (observation, action), standardised over all episodes, and absorbing
    linear, simplex  convex hull of these features and their negatives (largest absolute coordinate)
    kernel           unit ball of the Gaussian kernel's space; the square of that gap is MMD²
    learned cost     one cost and its negative
The fifth, the classifier, tells a learner's pair from an expert's.

Statistics. Steps of an episode depend on each other, so whole episodes are resampled, always.
- The interval is the gap plus and minus the `confidence` quantile of the gap between resampled and actual occupancies.
  A gap is a seminorm, so this holds for every cost of the class at once, also where the true gap is 0; resampling the
  gap itself would not do, as noise can only add to a norm. Both ends are widened as Student's t widens a normal
  interval, since spreads are estimated from few episodes.
- The scale is the same gap between two sets of expert episodes of the same sizes as the two sets compared, drawn from
  all the expert's episodes given (held-out and training). A gap of finite samples is never 0, and shrinks with their
  number: halves of the demonstrations would be smaller sets than those compared, and differ more. The classifier is the
  exception. It would recognise an episode drawn twice, so there the expert's episodes are split without repetition; the
  expected value, 0.5, does not depend on the sizes.
- p-values are exact: they permute whole episodes between learner and held-out demonstrations, and nothing that the
  measures are made of (units of the features, width of the kernel, covariance of the classifier) knows which are which.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oal import equations
from oal.base import seeding
from oal.base.stats import (
    Mean,
    difference_interval,
    mean_interval,
    permutation_p_value,
    resampled_shares,
    satterthwaite,
    student_widening,
)
from oal.deep.al_regret import Features, episode_masses
from oal.deep.verdict import AGAINST, AS_MUCH, LESS, MORE, Certificate, Difference, Measure, Score, judged
from oal.demos import Trajectory
from oal.demos.pairs import Encoded, encode
from oal.envs import EnvSpec
from oal.envs.episodes import Episode
from oal.errors import InputError, at_least, choice

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Float64, Int64

    from oal.deep.learned_cost import LearnedCost

Cost = Callable[["Float32[np.ndarray, 'T O']", "Float32[np.ndarray, 'T A']"], "Float[Any, 'T']"]
"""(observations, encoded actions) -> costs of the T steps."""
Seminorm = Callable[["Float64[np.ndarray, '*k N']"], "Float64[np.ndarray, '*k']"]
"""Signed weights of the N episodes -> the worst gap of the weighted sum of their occupancies."""

MOST_EPISODES = 100
"""Of more episodes of one kind, as many are drawn: the kernel and the classifier compare all with all."""
KERNEL_POINTS = 3_000
"""Steps, of all episodes together, that the kernel distance looks at."""
CLASSIFIER_POINTS = 100
"""Steps of each episode that the classifier looks at."""
MOST_PRODUCTS = 300
"""Products of two features that the classifier sees beside the features themselves; of more, as many are drawn."""
MOST_PAIRS = 100
"""Pairs of episodes that one permutation of the classifier's test looks at."""
CLASSIFIER_PERMUTATIONS = 200
RIDGE = 0.1
"""Added to the classifier's covariance of standardised features."""


# ----------------------------------------------------------------------------------------------------------------
# Episodes as occupancies of features


class _Episode(NamedTuple):
    """One episode, ready to be measured; weights and absorbing are shares of the mass that is known."""

    expectation: "Float64[np.ndarray, 'F']"
    features: "Float64[np.ndarray, 'T D']"
    weights: "Float64[np.ndarray, 'T']"
    absorbing: float
    cost: float


class _Sets(NamedTuple):
    """Episodes by index: first the learner's, then the held-out ones, the training demonstrations and others."""

    episodes: list[_Episode]
    learner: "Int64[np.ndarray, 'n']"
    held_out: "Int64[np.ndarray, 'm']"
    expert: "Int64[np.ndarray, 'p']"
    """Held-out and training together."""
    others: Mapping[str, "Int64[np.ndarray, 'k']"] = MappingProxyType({})
    """Policies to compare with, which the test knows nothing of: the clone, the random policy."""

    @property
    def pooled(self) -> int:
        """How many episodes are the learner's or the expert's: units and the kernel's width are theirs alone."""
        return len(self.learner) + len(self.expert)


def _episode(encoded: Encoded, features: Features, cost: Cost | None, absorbing_cost: float | None) -> _Episode:
    masses = episode_masses(encoded, features.spec.horizon)
    observations, actions = encoded.observation, encoded.action
    known = 1.0 - masses.unknown
    mean_cost = math.nan
    if cost is not None:
        costs = np.asarray(cost(observations, actions), np.float64)
        if costs.shape != (len(encoded),):
            raise InputError(f"the cost gave the shape {costs.shape} for {len(encoded)} pairs: one number each")
        if not np.isfinite(costs).all():
            raise InputError("the cost gave a number that is not finite")
        if masses.absorbing > 0.0 and absorbing_cost is None:
            raise InputError("an episode terminates before the horizon: say the cost of the absorbing state")
        mean_cost = float(masses.alive @ costs + masses.absorbing * (absorbing_cost or 0.0)) / known
    return _Episode(
        features.of_episode(encoded),
        features.standardised(observations, actions),
        masses.alive / known,
        masses.absorbing / known,
        mean_cost,
    )


# ----------------------------------------------------------------------------------------------------------------
# The certificate


def certify(
    rollouts: Sequence[Trajectory],
    held_out: Sequence[Trajectory],
    *,
    spec: EnvSpec,
    training: Sequence[Trajectory] = (),
    cost: "LearnedCost | Cost | None" = None,
    absorbing_cost: float | None = None,
    random_return: float | None = None,
    clone: Sequence[Trajectory] = (),
    random: Sequence[Trajectory] = (),
    against: str = "held-out",
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 1_000,
    seed: int = 0,
) -> Certificate:
    """Measure how far fresh rollouts of a learner are from demonstrations it has not learned from.

    `training` are the demonstrations it has learned from. They are compared with nobody, but tell more of how much the
    expert's own episodes differ. Against them as `held_out` a learner looks closer than it is; `against` says, for the
    words, what those compared with are (`oal.deep.verdict.AGAINST`). Rollouts need reset seeds of their own: those of
    the demonstrations would give both sides the same beginnings. `random` are episodes of a random policy, the 1 of the
    common scale, and `clone` those of a clone, to stand beside the learner.

    `cost` is a learned cost, or any function of flat observations and encoded actions; `absorbing_cost` is what it asks
    for each step after a termination, which a learned cost knows. `names` are those of the coordinates of observation
    and encoded action, which a learned cost knows too. Everything is deterministic from `seed`.
    """
    if cost is not None:
        from oal.deep.learned_cost import LearnedCost

        if isinstance(cost, LearnedCost):
            absorbing_cost = cost.absorbing if absorbing_cost is None else absorbing_cost
            names = cost.names if names is None else names
            # as a function it would take actions in the environment's units
            cost = cost.encoded
    rollouts, held_out, training = list(rollouts), list(held_out), list(training)
    for name, episodes in (("rollouts", rollouts), ("held-out demonstrations", held_out)):
        if len(episodes) < 2:
            raise InputError(f"there are {len(episodes)} {name}: at least 2 episodes are needed, 10 are better")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    at_least("resamples", resamples, 100)
    choice("against", against, AGAINST)
    seeds = {episode.seed for episode in held_out if episode.seed is not None}
    if any(episode.seed in seeds for episode in rollouts):
        warnings.warn(
            "rollouts and held-out demonstrations share reset seeds: they look closer than they are; use another seed",
            stacklevel=2,
        )
    beside = {"clone": list(clone), "random": list(random)}
    returns, lengths = _scores(rollouts, held_out, beside, random_return, spec.horizon or math.inf, confidence)

    draw = seeding.generator(seed, "certificate-episodes")
    rollouts, held_out, training = (_at_most(episodes, draw) for episodes in (rollouts, held_out, training))
    beside = {name: _at_most(episodes, draw) for name, episodes in beside.items() if len(episodes) > 1}
    n, m, pooled = len(rollouts), len(held_out), len(rollouts) + len(held_out) + len(training)
    encoded = encode([*rollouts, *held_out, *training, *chain(*beside.values())], spec)
    features = Features(encoded[:pooled], spec, names=names)
    episodes = [_episode(episode, features, cost, absorbing_cost) for episode in encoded]
    ends = np.cumsum([pooled, *map(len, beside.values())])
    others = {name: np.arange(*some) for name, some in zip(beside, pairwise(ends), strict=True)}
    sets = _Sets(episodes, np.arange(n), np.arange(n, n + m), np.arange(n, pooled), others)

    expectations = np.stack([episode.expectation for episode in episodes])
    difference = expectations[sets.learner].mean(0) - expectations[sets.held_out].mean(0)
    worst = int(np.abs(difference).argmax())
    length = equations.ball_support(difference)

    def gap(name: str, seminorm: Seminorm, stream: int) -> "_Gap":
        return _Gap(name, seminorm, sets, confidence, resamples, seeding.generator(seed, "certificate", stream))

    costs = np.array([episode.cost for episode in episodes])
    measures = {
        "linear_l2": gap("linear, L2", lambda g: np.linalg.norm(g @ expectations, axis=-1), 0).measure(),
        "linear_simplex": gap("linear, simplex", lambda g: np.abs(g @ expectations).max(axis=-1), 1).measure(),
    }
    if cost is not None:
        measures["learned_cost"] = gap("learned cost", lambda g: np.abs(g @ costs), 2).signed_measure(costs)
    measures["classifier"] = _classify(sets, confidence, resamples, seeding.generator(seed, "certificate", 3))
    gram = _gram(episodes, sets.pooled, seeding.generator(seed, "certificate", 4))
    measures["kernel"] = _kernel(gap, gram)
    found = dict(zip(measures, judged(list(measures.values()), n, m, confidence), strict=True))
    sides = encoded[:n], encoded[n : n + m], encoded[n:pooled]
    beyond = np.abs(difference) > found["linear_simplex"].scale_high
    absorbing = np.array([episode.absorbing for episode in episodes])
    return Certificate(
        env_id=spec.env_id,
        episodes=n,
        held_out=m,
        confidence=confidence,
        seed=seed,
        learned_cost=found.pop("learned_cost", None),
        **found,
        returns=returns,
        lengths=lengths,
        worst_l2=dict(zip(features.names, (difference / max(length, 1e-300)).tolist(), strict=True)),
        worst_simplex=f"{'+' if difference[worst] >= 0 else '-'} {features.names[worst]}",
        differences=_differences(*sides, features, beyond),
        absorbing=(float(absorbing[sets.learner].mean()), float(absorbing[sets.held_out].mean())),
        against=against,
    )


def _differences(
    learner: Sequence[Encoded],
    held_out: Sequence[Encoded],
    expert: Sequence[Encoded],
    features: Features,
    beyond: "Bool[np.ndarray, 'F']",
) -> tuple[Difference, ...]:
    """Compare the means of every feature over the steps that were taken, in the environment's units."""
    spec = features.spec
    low, span = np.zeros(len(features.mean)), np.ones(len(features.mean))
    if spec.kind == "continuous":
        # encoded actions lie in [-1, 1]
        ends = np.array(spec.action_low), np.array(spec.action_high)
        low[spec.observation_size :], span[spec.observation_size :] = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2

    def mean(episodes: Sequence[Encoded]) -> "Float64[np.ndarray, 'D']":
        masses = [episode_masses(episode, spec.horizon).alive for episode in episodes]
        sums = [
            mass @ np.concatenate([episode.observation, episode.action], axis=1, dtype=np.float64)
            for mass, episode in zip(masses, episodes, strict=True)
        ]
        return low + span * np.sum(sums, axis=0) / sum(mass.sum() for mass in masses)

    columns = mean(learner), mean(held_out), span * Features(expert, spec).std
    found = [
        Difference(name, *numbers, acts=place >= spec.observation_size, beyond=bool(beyond[place]))
        for place, (name, *numbers) in enumerate(
            zip(features.names[:-1], *(column.tolist() for column in columns), strict=True)
        )
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.deviations)))


def imitation_distance(
    episodes: Sequence[Trajectory | Episode], expert: Sequence[Trajectory | Episode], *, spec: EnvSpec, seed: int = 0
) -> float:
    """Return how far some episodes of a policy are from demonstrations: the kernel distance of their means, squared.

    It needs no reward, and takes about as long as a few episodes of a simulator: enough for every evaluation. Near 0
    for episodes like the demonstrations, at most 2; a random policy's own distance is the unit to read it in. For
    policies compared with the same demonstrations the smaller is the closer; take as many episodes of each.

    The certificate's kernel distance leaves out what an episode has in common with itself, which makes it 0 on average
    for two experts. To choose a policy by, that is worse: of two that are as near on average, the one whose episodes
    are all alike should be chosen before the one that falls now and then, and here it is the nearer one.
    """
    recorded = [
        e if isinstance(e, Trajectory) else Trajectory(e.observations, e.actions, None, e.terminated, e.truncated)
        for e in (*episodes, *expert)
    ]
    n = len(episodes)
    if not 0 < n < len(recorded):
        raise InputError(f"{n} episodes and {len(expert)} demonstrations are given: at least one of each is needed")
    draw = seeding.generator(seed, "certificate-episodes")
    sides = [_at_most(side, draw) for side in (recorded[:n], recorded[n:])]
    encoded = encode([*sides[0], *sides[1]], spec)
    features = Features(encoded, spec)
    made = [_episode(episode, features, None, None) for episode in encoded]
    weights = np.where(np.arange(len(made)) < len(sides[0]), 1.0 / len(sides[0]), -1.0 / len(sides[1]))
    gram = _gram(made, len(made), seeding.generator(seed, "certificate", 4))
    return float(weights @ gram @ weights)


def _at_most(episodes: list[Trajectory], rng: np.random.Generator) -> list[Trajectory]:
    if len(episodes) <= MOST_EPISODES:
        return episodes
    return [episodes[i] for i in sorted(rng.choice(len(episodes), MOST_EPISODES, replace=False))]


def _scores(
    rollouts: list[Trajectory],
    held_out: list[Trajectory],
    beside: Mapping[str, list[Trajectory]],
    random_return: float | None,
    horizon: float,
    confidence: float,
) -> tuple[Score | None, Score]:
    everyone = {"learner": rollouts, "expert": held_out, **{name: some for name, some in beside.items() if some}}
    # the last steps of a thinned episode are a guess, within the horizon
    steps = {name: [float(min(len(t) * t.stride, horizon)) for t in each] for name, each in everyone.items()}
    lengths = _score("length", steps, confidence)
    # a thinned episode has lost rewards
    earned = {
        name: [t.total_reward for t in episodes if t.total_reward is not None and t.stride == 1]
        for name, episodes in everyone.items()
    }
    if any(len(earned[name]) < len(everyone[name]) for name in everyone):
        return None, lengths
    returns = _score("return", earned, confidence)
    given = random_return is not None
    if not given and returns.random is not None:
        random_return = returns.random.mean
    if random_return is not None:
        span = returns.expert.mean - random_return
        if span == 0.0 and given:
            raise InputError(f"random_return is {random_return}, the expert's own: nothing can be normalised by it")
        learner = returns.learner
        if span != 0.0:
            normalised = Mean((learner.mean - random_return) / span, abs(learner.half_width / span), learner.n)
            returns = replace(returns, normalised=normalised)
    return returns, lengths


def _score(name: str, values: Mapping[str, list[float]], confidence: float) -> Score:
    """Compare the learner's mean with the expert's and the clone's, by Welch's interval."""

    def against(other: str) -> str:
        if other not in values:
            return ""
        found = difference_interval([values["learner"]], [values[other]], confidence)
        return LESS if found.high < 0.0 else MORE if found.low > 0.0 else AS_MUCH

    means = {who: mean_interval(some, confidence) for who, some in values.items()}
    return Score(name, **means, normalised=None, verdict=against("expert"), against_clone=against("clone"))


# ----------------------------------------------------------------------------------------------------------------
# Worst gaps over symmetric classes of costs


class _Gap:
    """A worst gap, and all that resampling tells of it."""

    def __init__(
        self,
        name: str,
        seminorm: Seminorm,
        sets: _Sets,
        confidence: float,
        resamples: int,
        rng: np.random.Generator,
    ) -> None:
        self.name, self.sets, self.confidence = name, sets, confidence
        n, m, p, size = len(sets.learner), len(sets.held_out), len(sets.expert), len(sets.episodes)
        self.actual = self._difference(sets.learner[None], sets.held_out[None])
        self.value = float(seminorm(self.actual)[0])

        # each set's spread about its own mean; resampling n episodes shows only (n-1)/n of the variance
        moved = np.zeros((resamples, size))
        moved[:, sets.learner] = (resampled_shares(rng, n, n, resamples) - 1 / n) * math.sqrt(n / (n - 1))
        moved[:, sets.held_out] = -(resampled_shares(rng, m, m, resamples) - 1 / m) * math.sqrt(m / (m - 1))
        variances = [_variance(seminorm, index, size) / len(index) for index in (sets.learner, sets.held_out)]
        degrees = float(satterthwaite(variances, [n - 1, m - 1]))
        self.radius = float(np.quantile(seminorm(moved), confidence)) * student_widening(confidence, degrees)

        null = np.zeros((resamples, size))
        null[:, sets.expert] = (
            resampled_shares(rng, n, p, resamples) - resampled_shares(rng, m, p, resamples)
        ) * math.sqrt(p / (p - 1))
        self.null = seminorm(null)
        """Expert against expert, for sets of the same sizes."""
        self.null_widening = student_widening(confidence, p - 1)

        self.seminorm, self.resamples, self.rng = seminorm, resamples, rng

    def _p_value(self, statistic: Seminorm) -> float:
        n, m = len(self.sets.learner), len(self.sets.held_out)
        return permutation_p_value(
            lambda mine, theirs: statistic(self._difference(mine, theirs)),
            n,
            n + m,
            permutations=self.resamples,
            rng=self.rng,
        )

    def _difference(
        self, mine: "Int64[np.ndarray, 'k n']", theirs: "Int64[np.ndarray, 'k m']"
    ) -> "Float64[np.ndarray, 'k N']":
        """Weights of the difference of means of two sets of episodes, k times."""
        weights = np.zeros((len(mine), len(self.sets.episodes)))
        np.put_along_axis(weights, mine, 1 / mine.shape[1], axis=1)
        np.put_along_axis(weights, theirs, -1 / theirs.shape[1], axis=1)
        return weights

    def measure(self) -> Measure:
        scale = float(np.median(self.null))
        found = Measure(
            self.name,
            self.value,
            max(0.0, self.value - self.radius),
            self.value + self.radius,
            scale,
            float(np.quantile(self.null, self.confidence)) * self.null_widening,
            self._p_value(self.seminorm),
            zero=scale,
        )
        return self._beside(found, self.seminorm)

    def signed_measure(self, costs: "Float64[np.ndarray, 'N']") -> Measure:
        """As `measure`, for a class of one cost and its negative, whose gap has a sign."""
        value = float(costs[self.sets.learner].mean() - costs[self.sets.held_out].mean())
        found = replace(self.measure(), value=value, low=value - self.radius, high=value + self.radius, zero=0.0)
        return self._beside(found, lambda weights: weights @ costs)

    def squared_measure(self, unbiased: Seminorm) -> Measure:
        """As `measure`, for the gap's square without the part that noise adds."""
        value = float(unbiased(self.actual)[0])
        squares = self.null**2
        found = Measure(
            self.name,
            value,
            min(value, max(0.0, self.value - self.radius) ** 2),
            (self.value + self.radius) ** 2,
            float(np.median(np.abs(squares - squares.mean()))),
            float(np.quantile(squares, self.confidence) * self.null_widening**2 - squares.mean()),
            self._p_value(unbiased),
            zero=0.0,
        )
        return self._beside(found, unbiased)

    def _beside(self, measure: Measure, statistic: Seminorm) -> Measure:
        """Add what the other policies give in the learner's place."""
        held_out = self.sets.held_out[None]
        others = self.sets.others.items()
        values = {name: float(statistic(self._difference(index[None], held_out))[0]) for name, index in others}
        return _beside(measure, values)


def _variance(seminorm: Seminorm, index: "Int64[np.ndarray, 'n']", size: int) -> float:
    """Mean square gap between one episode and its set's mean, with n - 1 in the denominator."""
    centred = np.zeros((len(index), size))
    centred[:, index] = np.eye(len(index)) - 1 / len(index)
    return float((seminorm(centred) ** 2).sum() / (len(index) - 1))


# ----------------------------------------------------------------------------------------------------------------
# Kernel distance


def _drawn(
    episodes: Sequence[_Episode], points: int, rng: np.random.Generator
) -> tuple["Float64[np.ndarray, 'N k D']", "Float64[np.ndarray, 'N k']"]:
    """Draw at most `points` steps of each episode: features and weights; short ones are filled up."""
    points = min(points, max(len(episode.features) for episode in episodes))
    features = np.zeros((len(episodes), points, episodes[0].features.shape[1]))
    weights = np.zeros((len(episodes), points))
    for i, episode in enumerate(episodes):
        count = min(points, len(episode.features))
        chosen = rng.choice(len(episode.features), count, replace=False)
        features[i, :count] = episode.features[chosen]
        weights[i, :count] = episode.weights.sum() / count
    return features, weights


def _gram(episodes: Sequence[_Episode], pooled: int, rng: np.random.Generator) -> "Float64[np.ndarray, 'N N']":
    """Return the inner products of the episodes' mean embeddings in the Gaussian kernel's space.

    The bandwidth is the median distance of steps of the first `pooled` episodes, whoever took them. The absorbing state
    is a separate point, at distance infinity. An episode's product with itself leaves out pairs of one step with
    itself, as if all steps were known.
    """
    count = len(episodes)
    features, weights = _drawn(episodes, max(10, KERNEL_POINTS // pooled), rng)
    points = weights.shape[1]
    flat, weight = features.reshape(count * points, -1).astype(np.float32), weights.ravel()
    squares = np.einsum("ij,ij->i", flat, flat)
    distances = np.maximum(squares[:, None] + squares - 2.0 * (flat @ flat.T), 0.0)
    taken = np.flatnonzero(weight[: pooled * points] > 0.0)
    some = rng.choice(taken, min(len(taken), 1_000), replace=False)
    between = distances[np.ix_(some, some)][np.triu_indices(len(some), 1)]
    median = float(np.median(between[between > 0.0])) if (between > 0.0).any() else 1.0
    kernel = np.exp(distances / np.float32(-2.0 * median))
    kernel *= weight.astype(np.float32)[:, None]
    kernel *= weight.astype(np.float32)
    gram = kernel.reshape(count, points, count, points).sum(axis=(1, 3), dtype=np.float64)
    itself = (weights**2).sum(axis=1)
    alive = weights.sum(axis=1)
    rest = alive**2 - itself
    # a single known step has no other to be paired with
    own = np.where(rest > 0.0, (np.diag(gram) - itself) * alive**2 / np.where(rest > 0.0, rest, 1.0), alive**2)
    np.fill_diagonal(gram, own)
    absorbing = np.array([episode.absorbing for episode in episodes])
    return gram + np.outer(absorbing, absorbing)


def _squared_distance(
    gram: "Float64[np.ndarray, 'N N']", weights: "Float64[np.ndarray, 'k N']"
) -> "Float64[np.ndarray, 'k']":
    """MMD² over pairs of different episodes, of those with positive and those with negative weights.

    An episode that is alone on its side is paired with itself.
    """
    mine, theirs = (weights > 0.0).astype(np.float64), (weights < 0.0).astype(np.float64)
    own = np.diag(gram)

    def within(member: "Float64[np.ndarray, 'k N']") -> "Float64[np.ndarray, 'k']":
        size, alone = member.sum(axis=1), member @ own
        pairs = np.einsum("bi,bi->b", member @ gram, member) - alone
        return np.where(size > 1.0, pairs / np.maximum(size * (size - 1.0), 1.0), alone)

    across = np.einsum("bi,bi->b", mine @ gram, theirs) / (mine.sum(axis=1) * theirs.sum(axis=1))
    return within(mine) + within(theirs) - 2.0 * across


def _kernel(gap: Callable[[str, Seminorm, int], _Gap], gram: "Float64[np.ndarray, 'N N']") -> Measure:
    def seminorm(weights: "Float64[np.ndarray, 'k N']") -> "Float64[np.ndarray, 'k']":
        return np.sqrt(np.maximum(np.einsum("bi,bi->b", weights @ gram, weights), 0.0))

    return gap("kernel distance", seminorm, 5).squared_measure(lambda weights: _squared_distance(gram, weights))


# ----------------------------------------------------------------------------------------------------------------
# Classifier two-sample test


class _Scoring:
    """A ridge discriminant on features and their products, which scores steps of episodes it has not seen.

    What it learns from labels is the difference of the two sets' means; the covariance that it weighs directions by is
    that of all steps, whoever took them. So leaving episodes out costs nothing: `scores[i, k, e]` is how much episode
    e, if it were the learner's, would raise the score of step k of episode i.
    """

    def __init__(self, sets: _Sets, members: "Int64[np.ndarray, 'N']", rng: np.random.Generator) -> None:
        chosen = [sets.episodes[i] for i in members]
        features, weights = _drawn(chosen, CLASSIFIER_POINTS, rng)
        count, points, size = features.shape
        first, second = np.triu_indices(size)
        if len(first) > MOST_PRODUCTS:
            kept = np.sort(rng.choice(len(first), MOST_PRODUCTS, replace=False))
            first, second = first[kept], second[kept]
        z = np.clip(features.reshape(count * points, size), -10.0, 10.0)
        x = np.concatenate([z, z[:, first] * z[:, second]], axis=1)
        weight = weights.ravel() / weights.sum()
        x -= weight @ x
        x /= np.sqrt(np.maximum(weight @ x**2, 1e-12))
        # the absorbing state is one more step, told by its own coordinate
        rows = np.zeros((count, points + 1, x.shape[1] + 1))
        rows[:, :-1, :-1] = x.reshape(count, points, -1)
        rows[:, -1, -1] = 1.0
        self.weights = np.concatenate([weights, [[episode.absorbing] for episode in chosen]], axis=1)
        means = np.einsum("nk,nkd->nd", self.weights, rows)
        flat = rows.reshape(-1, rows.shape[2])
        covariance = (flat * (self.weights.ravel() / count)[:, None]).T @ flat
        covariance[np.diag_indices_from(covariance)] += RIDGE
        self.scores = (flat @ np.linalg.solve(covariance, means.T)).reshape(count, points + 1, count)

    def areas(
        self, mine: "Int64[np.ndarray, 'n']", theirs: "Int64[np.ndarray, 'm']", i: np.ndarray, j: np.ndarray
    ) -> "Float64[np.ndarray, 'pairs']":
        """Return the areas under the curve, one for each pair (mine[i], theirs[j]) when trained without the two."""
        n, m = len(mine), len(theirs)
        of_mine, of_theirs = self.scores[:, :, mine].sum(-1), self.scores[:, :, theirs].sum(-1)
        one, other = mine[i], theirs[j]

        def scored(e: "Int64[np.ndarray, 'pairs']") -> "Float64[np.ndarray, 'pairs k']":
            without = self.scores[e, :, one], self.scores[e, :, other]
            return (of_mine[e] - without[0]) / (n - 1) - (of_theirs[e] - without[1]) / (m - 1)

        difference = scored(one)[:, :, None] - scored(other)[:, None, :]
        tie = 1e-9 * np.abs(self.scores).max()
        higher = 0.5 * ((difference > tie).astype(np.float64) + (difference >= -tie))
        return np.einsum("pk,pk->p", self.weights[one], np.einsum("pkl,pl->pk", higher, self.weights[other]))

    def mean_areas(
        self, mine: "Int64[np.ndarray, 'k n']", theirs: "Int64[np.ndarray, 'k m']", pairs: tuple[np.ndarray, ...]
    ) -> "Float64[np.ndarray, 'k']":
        """Return the mean area over the pairs of places, for each way to deal the episodes into two sets."""
        return np.array([self.areas(*sides, *pairs).mean() for sides in zip(mine, theirs, strict=True)])


def _classify(sets: _Sets, confidence: float, resamples: int, rng: np.random.Generator) -> Measure:
    """Report the area under the curve of a classifier of single steps, trained without the two episodes it compares.

    0.5: a step of the learner and one of the expert are not told apart; 1: always. The interval resamples the episodes
    that are compared, not those trained on: it is that of a classifier trained on as many episodes as here.
    """
    n, m = len(sets.learner), len(sets.held_out)
    scoring = _Scoring(sets, np.arange(n + m), rng)
    areas = np.stack([scoring.areas(sets.learner, sets.held_out, np.full(m, i), np.arange(m)) for i in range(n)])
    value = float(areas.mean())
    drawn = np.einsum(
        "bi,ij,bj->b", resampled_shares(rng, n, n, resamples), areas, resampled_shares(rng, m, m, resamples)
    )
    few = min(n, m)
    widening = math.sqrt(few / (few - 1)) * student_widening(confidence, few - 1)
    radius = float(np.quantile(np.abs(drawn - value), confidence)) * widening

    pairs = _some_pairs(n, m, rng)
    p_value = permutation_p_value(
        lambda mine, theirs: scoring.mean_areas(mine, theirs, pairs),
        n,
        n + m,
        permutations=CLASSIFIER_PERMUTATIONS,
        rng=rng,
    )

    scale = scale_high = math.nan
    if len(sets.expert) >= 4:
        expert = _Scoring(sets, sets.expert, rng)
        half = len(sets.expert) // 2
        pairs = _some_pairs(half, len(sets.expert) - half, rng)
        dealt = rng.permuted(np.tile(np.arange(len(sets.expert)), (CLASSIFIER_PERMUTATIONS, 1)), axis=1)
        null = expert.mean_areas(dealt[:, :half], dealt[:, half:], pairs)
        scale, scale_high = float(np.median(null)), float(np.quantile(null, confidence))
    found = Measure(
        "classifier", value, max(0.0, value - radius), min(1.0, value + radius), scale, scale_high, p_value, zero=0.5
    )
    return _beside(found, {name: _other_area(sets, index, rng) for name, index in sets.others.items()})


def _beside(measure: Measure, others: Mapping[str, float]) -> Measure:
    """Put the other policies' values beside the learner's."""
    return replace(measure, clone=others.get("clone", math.nan), random=others.get("random", math.nan))


def _other_area(sets: _Sets, other: "Int64[np.ndarray, 'k']", rng: np.random.Generator) -> float:
    """Return the area under the curve with another policy in the learner's place."""
    k, m = len(other), len(sets.held_out)
    scoring = _Scoring(sets, np.concatenate([other, sets.held_out]), rng)
    mine, theirs = np.arange(k), np.arange(k, k + m)
    return float(scoring.areas(mine, theirs, *_some_pairs(k, m, rng)).mean())


def _some_pairs(n: int, m: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Name all pairs of n and m episodes, or as many of them as one permutation may look at."""
    flat = np.arange(n * m) if n * m <= MOST_PAIRS else rng.choice(n * m, MOST_PAIRS, replace=False)
    return flat // m, flat % m
