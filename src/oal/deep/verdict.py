"""What a certificate says: its measures on one scale, one sentence, tables, and the features that differ most.

The scale is the same for all measures: 0 is what two sets of the expert's own episodes give, 1 what a random policy
gives. Verdicts follow from p-values that are adjusted for the number of measures (Benjamini-Hochberg), so p and verdict
never disagree, and two experts are told apart by any of the measures no more often than the confidence allows.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from oal.base.folder import plain
from oal.base.stats import Mean

FEATURES_NAMED = 3
"""Features that the sentence names, at most."""
FEATURES_SHOWN = 12
FAR = 0.5
"""A linear gap beyond this, half of the way to a random policy, is not called near."""

AGAINST = {
    "held-out": "Compared with {} demonstrations that were held out from learning.",
    "training": (
        "None of the {} demonstrations is held out: it is compared with those it learned from, and looks closer than "
        "it is."
    ),
    "own": "Compared with {} recorded episodes of its own best policy.",
    "given": "Compared with {} demonstrations that were given for it.",
}
FLATTERS = ("training", "own")
"""Comparisons that make a policy look closer to the expert than it is, which is said first."""
NEAR, DIFFERS, TOO_FEW = "as two experts", "differs", "too few"
AS_MUCH, LESS, MORE = "as the expert", "below the expert", "above the expert"


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
    zero: float
    """What two experts give: the 0 of the common scale."""
    random: float = math.nan
    """What a random policy gives: the 1 of the common scale; unknown without its episodes."""
    clone: float = math.nan
    adjusted_p: float = math.nan
    """The p-value, adjusted for the number of measures."""
    verdict: str = ""

    @property
    def differs(self) -> bool:
        return self.verdict.startswith(DIFFERS)

    def on_scale(self, value: float) -> float:
        """Return a value of this measure on the common scale; NaN if a random policy passes for a second expert."""
        span = self.random - self.zero
        return (value - self.zero) / span if span > 0.0 and not self.random <= self.scale_high else math.nan


@dataclass(frozen=True)
class Score:
    """A mean over the learner's episodes with Student's interval, and the expert's; normalised: random 0, expert 1."""

    name: str
    learner: Mean
    expert: Mean
    normalised: Mean | None
    verdict: str
    clone: Mean | None = None
    random: Mean | None = None
    against_clone: str = ""


@dataclass(frozen=True)
class Difference:
    """One feature's mean over the steps of learner and expert, in its own units."""

    feature: str
    learner: float
    expert: float
    spread: float
    """The standard deviation of the expert's steps, in the same units; 1 where the expert never varies."""
    acts: bool
    """Whether it is a part of the action."""
    beyond: bool
    """Whether two experts differ less, with the certificate's confidence for all features at once."""

    @property
    def deviations(self) -> float:
        return (self.learner - self.expert) / self.spread

    def __str__(self) -> str:
        return (
            f"{self.feature} {_number(self.learner)} instead of {_number(self.expert)} ({_signed(self.deviations)} sd)"
        )


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
    differences: tuple[Difference, ...] = ()
    """All features, those first that differ by most standard deviations of the expert."""
    absorbing: tuple[float, float] = (0.0, 0.0)
    """The learner's and the expert's share of the horizon after a termination."""
    against: str = "held-out"
    """What the demonstrations compared with are: see `AGAINST`."""

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
        written = plain(asdict(self))
        for name, entry in written.items():
            measure = getattr(self, name)
            if isinstance(measure, Measure):
                parts = ("value", "low", "high", "clone")
                entry["on_scale"] = plain({part: measure.on_scale(getattr(measure, part)) for part in parts})
        for entry, difference in zip(written["differences"], self.differences, strict=True):
            entry["deviations"] = plain(difference.deviations)
        return {"format": 2, "sentence": self.sentence, "compared": self.compared, **written}

    # ----- words

    @property
    def compared(self) -> str:
        """Say what the learner was compared with."""
        return AGAINST[self.against].format(self.held_out)

    @property
    def sentence(self) -> str:
        """Say in one sentence how close the learner is."""
        if self.kernel.verdict == TOO_FEW:
            return (
                f"too few episodes to tell: {self.episodes} of the policy and {self.held_out} of the expert; "
                "10 of each are better"
            )
        if not any(measure.differs for measure in self.measures):
            parts = [f"indistinguishable from the expert on {self.episodes} episodes"]
        else:
            parts = [self._standing(), *self._where()]
        return "; ".join(parts + self._beside_the_clone())

    def _standing(self) -> str:
        returns, gap = self.returns, self.linear_l2
        falls = self.lengths.verdict == LESS and self.absorbing[0] > self.absorbing[1]
        earlier = f"after {_number(self.lengths.learner.mean)} steps instead of {_number(self.lengths.expert.mean)}"
        beside = f" (a random policy: {gap.random:.2g})" if math.isfinite(gap.random) else ""
        near = not (gap.differs and gap.on_scale(gap.value) > FAR)
        as_good = f"as good as the expert for every linear cost within {gap.high:.2g}{beside}"
        if not gap.differs and gap.high >= gap.random:  # a bound that a random policy keeps says nothing
            as_good = "no linear cost tells it from the expert"
        if returns is not None:
            mine, theirs = _number(returns.learner.mean), _number(returns.expert.mean)
            if returns.verdict == LESS:
                return f"worse than the expert: return {mine} instead of {theirs}" + (f", it ends {earlier}" * falls)
            # another way to the same return is no failure, however far apart the two are
            earns = f"earns what the expert earns ({mine} against {theirs})"
            return f"{earns}, {as_good}" if near else earns
        if falls:
            return f"unlike the expert: it ends {earlier}"
        return as_good if near else f"far from the expert: a linear cost tells them apart by {gap.value:.2g}{beside}"

    def _where(self) -> list[str]:
        named = [each for each in self.differences if each.beyond][:FEATURES_NAMED]
        if not named:
            return ["differs in how things go together, in no single feature"]
        stands, acts = ([each for each in named if each.acts is acts] for acts in (False, True))
        places = ("differs in where it stands: ", stands), ("differs in what it does: ", acts)
        return [start + ", ".join(map(str, some)) for start, some in places if some]

    def _beside_the_clone(self) -> list[str]:
        returns, kernel = self.returns, self.kernel
        if returns is not None and returns.clone is not None:
            return {LESS: ["worse than the clone"], MORE: ["better than the clone"]}.get(returns.against_clone, [])
        if kernel.low > kernel.clone:
            return ["farther from the expert than the clone"]
        return []

    # ----- tables, for `oal.base.console.table`

    @property
    def columns(self) -> tuple[str, ...]:
        clone = ("clone",) if any(math.isfinite(measure.clone) for measure in self.measures) else ()
        return ("measure", "learner", f"{self.confidence:.0%}", *clone, "p", "verdict")

    def table(self) -> list[tuple[str, ...]]:
        """Rows under `columns`, on the common scale; with a * what is in its own units, as it has no place there."""
        rows = []
        for m in self.measures:
            scaled = math.isfinite(m.on_scale(m.value))
            value, low, high, clone = (
                f"{m.on_scale(x) + 0.0:z.2f}" if scaled else f"{x:.2g}" for x in (m.value, m.low, m.high, m.clone)
            )
            beside = (clone if math.isfinite(m.clone) else "–",) if "clone" in self.columns else ()
            name = m.name if scaled else f"{m.name}*"
            rows.append((name, value, f"{low} to {high}", *beside, f"{m.adjusted_p:.3f}", m.verdict))
        return rows

    score_columns = ("mean", "learner", "expert", "clone", "random", "verdict")

    def score_table(self) -> list[tuple[str, ...]]:
        """Rows under `score_columns`: returns as returns, lengths as steps."""
        rows = []
        for s in self.scores:
            others = ("–" if x is None else _number(x.mean) for x in (s.expert, s.clone, s.random))
            half = f" ± {_number(s.learner.half_width)}" if s.learner.half_width > 0.0 else ""
            rows.append((s.name, _number(s.learner.mean) + half, *others, s.verdict))
        return rows

    feature_columns = ("feature", "learner", "expert", "expert's sd", "differs by")

    def feature_table(self, most: int = 5) -> list[tuple[str, ...]]:
        """Rows under `feature_columns`: those that differ most, in their own units and in standard deviations."""
        return [
            (d.feature, *(_number(x) for x in (d.learner, d.expert, d.spread)), f"{_signed(d.deviations)} sd")
            for d in self.differences[:most]
        ]

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the features that differ most as PNG and SVG."""
        from oal.base import plots

        shown = self.differences[:FEATURES_SHOWN]
        with plots.picture(path, width=6.5, height=1.2 + 0.25 * len(shown)) as axes:
            colours = [plots.COLOURS[1] if each.beyond else "0.6" for each in shown]
            bars = axes.barh([each.feature for each in shown], [each.deviations for each in shown], color=colours)
            labels = [f"{_number(each.learner)} for {_number(each.expert)}" for each in shown]
            axes.bar_label(bars, labels, padding=3, fontsize=8)
            axes.axvline(0.0, color="black", linewidth=0.8)
            axes.invert_yaxis()
            axes.margins(x=0.25)
            axes.set_xlabel("learner - expert, in the expert's standard deviations (grey: as two experts)")
            axes.set_title(f"{self.env_id}: where the learner differs")

    @property
    def lines(self) -> tuple[str, str]:
        """The sentence and what it is compared with; the latter first where it flatters."""
        said = f"{self.env_id}: {self.sentence}."
        return (self.compared, said) if self.against in FLATTERS else (said, self.compared)

    def __str__(self) -> str:
        return " ".join(self.lines)


def judged(measures: Sequence[Measure], n: int, m: int, confidence: float) -> list[Measure]:
    """Adjust the p-values of all measures for their number, and say what follows."""
    from scipy.stats import false_discovery_control

    adjusted = false_discovery_control([measure.p_value for measure in measures])
    # the smallest p-value that n and m episodes allow; where n = m two ways to deal them are the same
    too_few = 2 / math.comb(n + m, n) > 1.0 - confidence
    found = []
    for measure, p_value in zip(measures, adjusted.tolist(), strict=True):
        verdict = TOO_FEW if too_few else DIFFERS if p_value <= 1.0 - confidence else NEAR
        found.append(replace(measure, adjusted_p=p_value, verdict=verdict))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 10 else f"{value:+.2g}"
