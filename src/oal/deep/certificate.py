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
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oal import equations
from oal.base import seeding
from oal.base.folder import plain
from oal.base.stats import (
    Mean,
    mean_interval,
    permutation_p_value,
    resampled_shares,
    satterthwaite,
    student_widening,
)
from oal.deep.al_regret import Features, episode_masses
from oal.demos import Trajectory
from oal.demos.pairs import Encoded, encode
from oal.envs import EnvSpec
from oal.envs.episodes import Episode
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Float64, Int64

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
ENOUGH_EPISODES = 4
"""With fewer on either side no difference can be significant at 95 %: there are too few ways to permute them."""


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
    """Episodes by index: first the learner's, then the held-out ones, then the training demonstrations."""

    episodes: list[_Episode]
    learner: "Int64[np.ndarray, 'n']"
    held_out: "Int64[np.ndarray, 'm']"
    expert: "Int64[np.ndarray, 'p']"
    """Held-out and training together."""


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
# Results


@dataclass(frozen=True)
class Measure:
    """One way to tell learner and expert apart, with its interval and what two sets of expert episodes give."""

    name: str
    value: float
    low: float
    high: float
    scale: float
    """The typical (median) value of expert against expert; for the classifier, of a split of the expert's episodes."""
    scale_high: float
    """Expert against expert stays below this, with the certificate's confidence."""
    p_value: float
    """How often episodes that are split at random into learner and expert differ as much."""
    verdict: str


@dataclass(frozen=True)
class Score:
    """A mean over the learner's episodes with Student's interval, and the expert's; normalised: random 0, expert 1."""

    name: str
    learner: Mean
    expert: Mean
    normalised: Mean | None
    verdict: str


@dataclass(frozen=True)
class Certificate:
    """How far the learner's episodes are from the expert's, measure by measure; nothing here needs a reward."""

    env_id: str
    episodes: int
    held_out: int
    confidence: float
    seed: int
    linear_l2: Measure
    linear_simplex: Measure
    learned_cost: Measure | None
    classifier: Measure
    kernel: Measure
    returns: Score | None
    """The true return, if both sides recorded rewards."""
    lengths: Score
    worst_l2: Mapping[str, float]
    """Weights of the L2 ball's worst cost, by feature: positive where the learner has more than the expert."""
    worst_simplex: str
    """The worst single feature, with its sign."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that need no reward, those that were taken."""
        found = (self.linear_l2, self.linear_simplex, self.learned_cost, self.classifier, self.kernel)
        return tuple(measure for measure in found if measure is not None)

    @property
    def scores(self) -> tuple[Score, ...]:
        return (self.lengths,) if self.returns is None else (self.returns, self.lengths)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what is not known (such as the width of an interval from one episode) is None."""
        return {"format": 1, **plain(asdict(self))}

    columns = ("measure", "learner", "interval", "expert", "p", "verdict")

    def table(self) -> list[tuple[str, ...]]:
        """Rows for `oal.base.console.table`, under `columns`."""

        def row(name: str, value: float, low: float, high: float, *rest: str) -> tuple[str, ...]:
            return name, f"{value:.3g}", f"[{low:.3g}, {high:.3g}]", *rest

        rows = []
        for m in self.measures:
            expert = f"{m.scale:.3g} (below {m.scale_high:.3g})"
            rows.append(row(m.name, m.value, m.low, m.high, expert, f"{m.p_value:.3f}", m.verdict))
        for s in self.scores:
            rows.append(
                row(s.name, s.learner.mean, s.learner.low, s.learner.high, f"{s.expert.mean:.3g}", "", s.verdict)
            )
        return rows


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
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 1_000,
    seed: int = 0,
) -> Certificate:
    """Measure how far fresh rollouts of a learner are from demonstrations it has not learned from.

    `training` are the demonstrations it has learned from. They are compared with nobody, but tell more of how much the
    expert's own episodes differ. Against them as `held_out` a learner looks closer than it is. Rollouts need reset
    seeds of their own: those of the demonstrations would give both sides the same beginnings.

    `cost` is a learned cost, or any function of flat observations and encoded actions; `absorbing_cost` is what it asks
    for each step after a termination, which a learned cost knows. `names` are those of the coordinates of observation
    and encoded action. Everything is deterministic from `seed`.
    """
    if cost is not None:
        from oal.deep.learned_cost import LearnedCost

        if isinstance(cost, LearnedCost):
            absorbing_cost = cost.absorbing if absorbing_cost is None else absorbing_cost
            # as a function it would take actions in the environment's units
            cost = cost.encoded
    rollouts, held_out, training = list(rollouts), list(held_out), list(training)
    for name, episodes in (("rollouts", rollouts), ("held-out demonstrations", held_out)):
        if len(episodes) < 2:
            raise InputError(f"there are {len(episodes)} {name}: at least 2 episodes are needed, 10 are better")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    at_least("resamples", resamples, 100)
    seeds = {episode.seed for episode in held_out if episode.seed is not None}
    if any(episode.seed in seeds for episode in rollouts):
        warnings.warn(
            "rollouts and held-out demonstrations share reset seeds: they look closer than they are; use another seed",
            stacklevel=2,
        )
    returns, lengths = _scores(rollouts, held_out, random_return, confidence)

    draw = seeding.generator(seed, "certificate-episodes")
    rollouts, held_out, training = (_at_most(episodes, draw) for episodes in (rollouts, held_out, training))
    n, m = len(rollouts), len(held_out)
    encoded = encode([*rollouts, *held_out, *training], spec)
    features = Features(encoded, spec, names=names)
    episodes = [_episode(episode, features, cost, absorbing_cost) for episode in encoded]
    sets = _Sets(episodes, np.arange(n), np.arange(n, n + m), np.arange(n, len(episodes)))

    expectations = np.stack([episode.expectation for episode in episodes])
    difference = expectations[sets.learner].mean(0) - expectations[sets.held_out].mean(0)
    worst = int(np.abs(difference).argmax())
    length = equations.ball_support(difference)

    def gap(name: str, seminorm: Seminorm, stream: int) -> "_Gap":
        return _Gap(name, seminorm, sets, confidence, resamples, seeding.generator(seed, "certificate", stream))

    costs = np.array([episode.cost for episode in episodes])
    return Certificate(
        env_id=spec.env_id,
        episodes=n,
        held_out=m,
        confidence=confidence,
        seed=seed,
        linear_l2=gap("linear cost, L2 ball", lambda g: np.linalg.norm(g @ expectations, axis=-1), 0).measure(),
        linear_simplex=gap("linear cost, simplex", lambda g: np.abs(g @ expectations).max(axis=-1), 1).measure(),
        learned_cost=(
            None
            if cost is None
            else gap("learned cost", lambda g: np.abs(g @ costs), 2).signed_measure(
                float(costs[sets.learner].mean() - costs[sets.held_out].mean())
            )
        ),
        classifier=_classify(sets, confidence, resamples, seeding.generator(seed, "certificate", 3)),
        kernel=_kernel(gap, _gram(episodes, seeding.generator(seed, "certificate", 4))),
        returns=returns,
        lengths=lengths,
        worst_l2=dict(zip(features.names, (difference / max(length, 1e-300)).tolist(), strict=True)),
        worst_simplex=f"{'+' if difference[worst] >= 0 else '-'} {features.names[worst]}",
    )


def imitation_distance(
    episodes: Sequence[Trajectory | Episode], expert: Sequence[Trajectory | Episode], *, spec: EnvSpec, seed: int = 0
) -> float:
    """Return how far some episodes of a policy are from demonstrations: the certificate's kernel distance, MMD².

    It needs no reward, and takes about as long as a few episodes of a simulator: enough for every evaluation. 0 on
    average for two sets of expert episodes, at most 2; a random policy's own distance is the unit to read it in. For
    policies compared with the same demonstrations the smaller is the closer; take as many episodes of each.
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
    weights = np.where(np.arange(len(made)) < len(sides[0]), 1.0, -1.0)
    gram = _gram(made, seeding.generator(seed, "certificate", 4))
    return float(_squared_distance(gram, weights[None])[0])


def _at_most(episodes: list[Trajectory], rng: np.random.Generator) -> list[Trajectory]:
    if len(episodes) <= MOST_EPISODES:
        return episodes
    return [episodes[i] for i in sorted(rng.choice(len(episodes), MOST_EPISODES, replace=False))]


def _scores(
    rollouts: list[Trajectory], held_out: list[Trajectory], random_return: float | None, confidence: float
) -> tuple[Score | None, Score]:
    lengths = Score(
        "length",
        *(mean_interval([len(t) * t.stride for t in episodes], confidence) for episodes in (rollouts, held_out)),
        normalised=None,
        verdict="mean number of steps",
    )
    # a thinned episode has lost rewards
    mine, theirs = (
        [t.total_reward for t in episodes if t.total_reward is not None and t.stride == 1]
        for episodes in (rollouts, held_out)
    )
    if len(mine) < len(rollouts) or len(theirs) < len(held_out):
        return None, lengths
    learner, expert = mean_interval(mine, confidence), mean_interval(theirs, confidence)
    normalised = None
    inside = learner.low <= expert.mean <= learner.high
    verdict = f"expert's mean {'inside' if inside else 'outside'} the interval"
    if random_return is not None:
        span = expert.mean - random_return
        if span == 0.0:
            raise InputError(f"random_return is {random_return}, the expert's own: nothing can be normalised by it")
        normalised = Mean((learner.mean - random_return) / span, abs(learner.half_width / span), learner.n)
        verdict = f"normalised {normalised.mean:.3f}, {verdict}"
    return Score("true return", learner, expert, normalised, verdict), lengths


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
        degrees = satterthwaite(variances, [n - 1, m - 1])
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

    def verdict(self, value: float, scale: float, scale_high: float) -> str:
        """Say how the value compares with two sets of expert episodes, and with their typical value (2.0x)."""
        n, m = len(self.sets.learner), len(self.sets.held_out)
        if scale > 0.0:
            ratio = abs(value) / scale
            times = f"{ratio:.1f}x" if ratio < 10.0 else f"{ratio:.0f}x"
        else:
            times = "0x" if value == 0.0 else "experts do not differ"
        if min(n, m) < ENOUGH_EPISODES:
            return f"too few episodes to tell ({times})"
        if abs(value) <= scale_high:
            return f"as near as two experts ({times})"
        return f"farther than two experts ({times})"

    def measure(self) -> Measure:
        scale = float(np.median(self.null))
        scale_high = float(np.quantile(self.null, self.confidence)) * self.null_widening
        return Measure(
            self.name,
            self.value,
            max(0.0, self.value - self.radius),
            self.value + self.radius,
            scale,
            scale_high,
            self._p_value(self.seminorm),
            self.verdict(self.value, scale, scale_high),
        )

    def signed_measure(self, value: float) -> Measure:
        """As `measure`, for a class of one cost and its negative, whose gap has a sign."""
        found = self.measure()
        verdict = found.verdict
        if abs(value) > found.scale_high:
            verdict += f", {'dearer' if value > 0 else 'cheaper'}"
        return replace(found, value=value, low=value - self.radius, high=value + self.radius, verdict=verdict)

    def squared_measure(self, unbiased: Seminorm) -> Measure:
        """As `measure`, for the gap's square without the part that noise adds."""
        value = float(unbiased(self.actual)[0])
        squares = self.null**2
        scale = float(np.median(np.abs(squares - squares.mean())))
        scale_high = float(np.quantile(squares, self.confidence) * self.null_widening**2 - squares.mean())
        return Measure(
            self.name,
            value,
            min(value, max(0.0, self.value - self.radius) ** 2),
            (self.value + self.radius) ** 2,
            scale,
            scale_high,
            self._p_value(unbiased),
            self.verdict(max(value, 0.0), scale, scale_high),
        )


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


def _gram(episodes: Sequence[_Episode], rng: np.random.Generator) -> "Float64[np.ndarray, 'N N']":
    """Return the inner products of the episodes' mean embeddings in the Gaussian kernel's space.

    The bandwidth is the median distance of all steps, whoever took them. The absorbing state is a separate point, at
    distance infinity. An episode's product with itself leaves out pairs of one step with itself, as if all steps were
    known.
    """
    count = len(episodes)
    features, weights = _drawn(episodes, max(10, KERNEL_POINTS // count), rng)
    points = weights.shape[1]
    flat, weight = features.reshape(count * points, -1).astype(np.float32), weights.ravel()
    squares = np.einsum("ij,ij->i", flat, flat)
    distances = np.maximum(squares[:, None] + squares - 2.0 * (flat @ flat.T), 0.0)
    taken = np.flatnonzero(weight > 0.0)
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

    return gap("kernel distance, MMD²", seminorm, 5).squared_measure(lambda weights: _squared_distance(gram, weights))


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
    if min(n, m) < ENOUGH_EPISODES:
        verdict = "too few episodes to tell"
    elif p_value > 1.0 - confidence:
        verdict = "not told apart"
    else:
        verdict = f"told apart, {value:.0%} of steps ordered right"
    return Measure(
        "classifier, AUC",
        value,
        max(0.0, value - radius),
        min(1.0, value + radius),
        scale,
        scale_high,
        p_value,
        verdict,
    )


def _some_pairs(n: int, m: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Name all pairs of n and m episodes, or as many of them as one permutation may look at."""
    flat = np.arange(n * m) if n * m <= MOST_PAIRS else rng.choice(n * m, MOST_PAIRS, replace=False)
    return flat // m, flat % m
