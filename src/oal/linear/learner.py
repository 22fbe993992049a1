"""Online apprenticeship learning with linear function approximation: OGAP, and ILARL with its finite-horizon form BRIG.

`LinearOAL(problem, demos, algorithm=...).learn(episodes)`; time and memory do not depend on the number of states. What
an episode does, with costs that are minimised:

    OGAP   play pi_k; theta_h <- w_h + Lambda_h^-1 sum phi V_{h+1}, Q_h = clip(phi.theta_h - bonus), V_h = <pi_k, Q_h>;
           pi_{k+1} ~ pi_k exp(-t Q); w_h <- project(w_h + t (features of pi_k - the expert's))
    BRIG   the same evaluation with V_h = min_a Q_h first, then play the best response; the same cost step
    ILARL  discounted, in batches: play pi for some episodes; then repeat: cost step, theta <- w + gamma Lambda^-1 sum
           phi V(s'), Q = clip(phi.theta - bonus), V = soft minimum of Q at pi, pi ~ pi exp(-t Q)
"""

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oal import equations as tabular_equations
from oal.base import jsontext, npz, opening, seeding, stopping
from oal.base.config import build
from oal.base.console import progress
from oal.base.limits import damage
from oal.equations import Array
from oal.errors import InputError, at_least, choice, whole
from oal.linear import equations, evaluation, features, players
from oal.linear.costs import LinearCosts
from oal.linear.players import GREEDY, MIRROR, SOFT
from oal.linear.problem import Episodes, LinearMDP
from oal.tabular import fastmath
from oal.tabular.mdp import Trajectories

FORMAT = 1
KIND = "oal.LinearOAL"
ALGORITHMS = ("ogap", "ilarl")
LEAST_RIDGE = 1e-12
LARGEST = 1 << 30
LARGEST_PANEL = 10_000
LARGEST_NUMBER = 1e100
"""Larger ones cannot have been learned, and their sums would overflow."""


@dataclass(frozen=True)
class Settings:
    """What can be chosen. `preset="paper"` has the theorems' sizes, `preset="default"` what we found to work."""

    bonus_scale: float = 1.0
    """Multiplies the theorems' bonus, which is vacuous at ordinary numbers of episodes; 0 switches exploration off."""
    policy_step_scale: float = 1.0
    """Multiplies the theorems' step size of the policy player."""
    cost_step_scale: float = 1.0
    """Multiplies the theorems' step size of the cost player."""
    anytime: bool = False
    """Step sizes and bonus with k in place of K: no need to know the number of episodes."""
    ridge: float = 1.0
    """What Lambda starts from."""
    gradient: str = "episode"
    """The cost player's view of the policy's features: those of its `episode` (the papers'), or those that the `model`
    of least squares expects."""
    refresh: float = 2.0
    """The bonus takes a new matrix when the determinant of Lambda has grown by this factor: at most sqrt(2) larger."""
    batch: int = 5
    """ILARL: episodes that are played with one policy."""
    updates: int = 5
    """ILARL: steps of both players after a batch."""
    keep_data: bool = False
    """ILARL: learn from all batches, not only from the last one."""
    delta: float = 0.1
    """Failure probability of the theorems."""

    def __post_init__(self) -> None:
        for name in ("bonus_scale", "policy_step_scale", "cost_step_scale"):
            at_least(name, getattr(self, name), 0.0)
        at_least("ridge", self.ridge, LEAST_RIDGE)
        at_least("refresh", self.refresh, 1.0)
        whole("batch", self.batch, 1)
        whole("updates", self.updates, 1)
        choice("gradient", self.gradient, ("episode", "model"))
        if not 0 < self.delta < 1:
            raise InputError(f"delta is {self.delta}: it must lie strictly between 0 and 1")


PRESETS = {
    "paper": Settings(),
    "default": Settings(
        bonus_scale=0.0,
        policy_step_scale=10.0,
        cost_step_scale=10.0,
        anytime=True,
        ridge=0.1,
        gradient="model",
        keep_data=True,
    ),
}


def settings_for(preset: str, **changes: Any) -> Settings:
    """Return a preset with some of its fields changed."""
    base = PRESETS[choice("preset", preset, PRESETS)]
    for name in changes:
        choice("setting", name, sorted(field.name for field in dataclasses.fields(Settings)))
    return dataclasses.replace(base, **changes)


class LinearOAL:
    """Online apprenticeship learning in a linear MDP.

    Args:
        problem: a `LinearMDP`, with a horizon or discounted.
        demos: the experts' episodes (`LinearMDP.sample`), or `Trajectories` of a finite MDP.
        algorithm: `"ogap"` (needs a horizon), or `"ilarl"`: ILARL where the problem is discounted, BRIG where it has a
            horizon.
        cost_set: weights of each step in the `"box"` [0, 1], the `"l2"` ball or the `"simplex"`.
        preset: `"default"` or `"paper"`; any field of `Settings` can be given beside it.
        regret: `"auto"` measures it where the problem has an expert (`oal.linear.evaluation`), `"none"` does not.
        panel_samples: states of each anchor in each of the panels that measure it, where it is not exact.
    """

    def __init__(
        self,
        problem: LinearMDP,
        demos: Episodes | Trajectories,
        *,
        algorithm: str = "ogap",
        cost_set: str = "box",
        preset: str = "default",
        regret: str = "auto",
        panel_samples: int = 8,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.env = problem
        self.demos = problem.check(demos)
        self.algorithm = choice("algorithm", algorithm, ALGORITHMS)
        if algorithm == "ogap" and problem.horizon is None:
            raise InputError(f"{problem.name} is discounted and OGAP needs a horizon: use algorithm='ilarl'")
        self.settings = settings_for(preset, **settings)
        self.cost_set = LinearCosts(cost_set, problem.steps, problem.dimension, problem.length)
        self.seed = seed
        self.panel_samples = whole("panel_samples", panel_samples, 1)
        if panel_samples > LARGEST_PANEL:
            raise InputError(
                f"panel_samples is {panel_samples}: at most {LARGEST_PANEL} states of an anchor are looked at"
            )
        self.episodes = 0
        self.planned: int | None = None
        self._rule = MIRROR if algorithm == "ogap" else SOFT if problem.horizon is None else GREEDY
        H, d = problem.steps, problem.dimension
        left = np.arange(H, 0, -1) if problem.horizon is not None else problem.length
        self._terms = players.terms(H, d, self.cost_set.width * left * np.ones(H))
        self._roster = players.roster(problem.model, H, 4)
        self._actions = np.zeros((H, 4), dtype=np.int64)
        self._scratch = players.roster(problem.model, H, 1)
        self._rows = self._count = 0
        self._potential = np.zeros(H)
        self._fresh = np.ones(H, dtype=np.bool_)
        self._forget()
        players_start = (self._roster, self._terms, self._factor)
        for h in range(H):
            players.refresh(*players_start, h, 0, 0, self.settings.refresh, self._fresh)
        self._weights = self.cost_set.start()
        self._expert_features = problem.feature_sums(self.demos)
        self._stream = seeding.sequence(seed, "linear").generate_state(4, np.uint64)
        self._regrets: list[tuple[float, float, float]] = []
        self._ledger = None
        choice("regret", regret, ("auto", "none"))
        if regret == "auto" and problem.expert is not None:
            panel = evaluation.panel(problem, panel_samples, seeding.generator(seed, "linear panel"))
            evaluation.start_panel(problem.model, panel, self._terms, 0, self._rule)
            self._ledger = evaluation.Ledger(problem, self.cost_set, panel)

    def _forget(self) -> None:
        """Start Lambda anew, and let it be the next bonus matrix."""
        H, d = self.env.steps, self.env.dimension
        self._factor = np.repeat(np.sqrt(self.settings.ridge) * np.eye(d)[None], H, axis=0)
        self._terms.determinant[:] = -np.inf

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(
        self,
        episodes: int,
        *,
        planned: int | None = None,
        progress_bar: bool = False,
        callback: Callable[["LinearOAL"], bool | None] | None = None,
    ) -> "LinearOAL":
        """Play and learn for a number of episodes. Calling it again goes on.

        `planned` is K of the theorems, for the step sizes and the bonus (without `anytime`): all episodes of this call
        if not given. `callback(self)` is called about a hundred times; returning False stops the learning.
        """
        at_least("number of episodes", episodes, 1)
        at_least("planned episodes", episodes if planned is None else planned, 1)
        size = 1 if self.env.horizon is not None else self.settings.batch
        if episodes % size:
            raise InputError(f"number of episodes is {episodes}: it must be a multiple of the batch, {size}")
        self.planned = planned or episodes
        advance_by = max(1, episodes // size // 100) * size
        with progress(f"{self.env.name}: episodes", episodes, enabled=progress_bar) as advance:
            for done in range(size, episodes + 1, size):
                stopping.check()
                if self.env.horizon is None:
                    self._play_batch()
                else:
                    self._play_episode()
                if done % advance_by == 0 or done == episodes:
                    advance(advance_by if done % advance_by == 0 else done % advance_by)
                    if callback is not None and callback(self) is False:
                        break
        return self

    def _make_room(self, rows: int, count: int) -> None:
        """Make room for rows and terms, and for another bonus matrix of each step."""
        if self._roster.states.shape[1] < rows:
            self._roster = players.Roster(*(players.grown(array, 1, rows) for array in self._roster))
            self._actions = players.grown(self._actions, 1, rows)
        terms, epochs = self._terms, int(self._terms.epochs.max()) + 1
        if terms.step.size < count or terms.inverse.shape[1] < epochs:
            self._terms = terms._replace(
                theta=players.grown(terms.theta, 1, count),
                epoch=players.grown(terms.epoch, 1, count),
                step=players.grown(terms.step, 0, count),
                beta=players.grown(terms.beta, 0, count),
                inverse=players.grown(terms.inverse, 1, epochs),
            )

    def _step_sizes(self) -> float:
        """Set step and bonus of the next term; return the cost player's step."""
        settings, length, width = self.settings, self.env.length, self.cost_set.width
        assert self.planned is not None
        K = float(self._count + 1)
        if not settings.anytime:
            per_batch = settings.updates / settings.batch if self.env.horizon is None else 1.0
            K = self.planned * per_batch
        step = tabular_equations.policy_step_size((1, 1, self.env.n_actions), K) / (length * width)
        self._terms.step[self._count] = settings.policy_step_scale * step
        factor = equations.bonus_factor(self.env.dimension, length, K, settings.delta)
        self._terms.beta[self._count] = settings.bonus_scale * width * factor
        return settings.cost_step_scale * self.cost_set.step_size(K)

    def _play_episode(self) -> None:
        """One episode of OGAP or BRIG."""
        n, j, greedy = self._rows, self._count, self._rule == GREEDY
        self._make_room(n + 1, j + 1)
        cost_step = self._step_sizes()
        model, roster, terms, actions = self.env.model, self._roster, self._terms, self._actions
        evaluate = (roster, terms, self._factor, j, n)
        cost = self._weights - self.cost_set.low
        if greedy:
            players.backward(*evaluate, n, actions, cost, self._rule)
            self._take_in(j)
        self._settle(1)
        players.play(model, roster, terms, j + greedy, self._rule, n, actions, self._stream)
        mine = np.zeros_like(cost)
        if self.settings.gradient == "model":
            players.forward(roster, self._factor, n, actions, mine)
        else:
            for h in range(len(mine)):
                players.add_features(roster, h, n, actions[h, n], 1.0, mine[h])
        if not greedy:
            players.backward(*evaluate, n + 1, actions, cost, self._rule)
            self._take_in(j)
        self._weights = self.cost_set.step(self._weights, mine - self._expert_features, cost_step)
        growth = self.settings.refresh
        players.count_episode(roster, terms, self._factor, n, actions, growth, self._potential, self._fresh)
        self._rows, self._count, self.episodes = n + 1, j + 1, self.episodes + 1

    def _play_batch(self) -> None:
        """One batch of ILARL."""
        settings, problem, begin = self.settings, self.env, self._rows
        self._settle(settings.batch)
        room = begin + settings.batch * (problem.longest + 1)
        self._make_room(room, self._count + settings.updates)
        for _ in range(settings.batch):
            self._rows = players.play_discounted(
                problem.model,
                self._roster,
                self._terms,
                self._count,
                self._rule,
                problem.discount,
                problem.longest,
                self._rows,
                self._actions,
                self._stream,
            )
        mine = self._add_batch(begin, self._rows) / settings.batch
        first = 0 if settings.keep_data else begin
        if settings.gradient == "model":
            data = (first, self._rows, self._actions)
            players.forward_discounted(self._roster, self._factor, *data, problem.discount, mine[0])
        for _ in range(settings.updates):
            j = self._count
            cost_step = self._step_sizes()
            self._weights = self.cost_set.step(self._weights, mine - self._expert_features, cost_step)
            cost = self._weights - self.cost_set.low
            players.iterate(
                self._roster,
                self._terms,
                self._factor,
                j,
                first,
                self._rows,
                self._actions,
                cost,
                problem.discount,
                self._rule,
            )
            self._take_in(j)
            self._count += 1
        self.episodes += settings.batch

    def _add_batch(self, begin: int, end: int) -> Array:
        """Add a batch's rows to Lambda; return the sum of their features."""
        if not self.settings.keep_data:
            self._forget()
        rows, actions = self._roster, self._actions
        players.add_data(rows, self._factor, 0, begin, end, actions, self._potential)
        first = 0 if self.settings.keep_data else begin
        growth = self.settings.refresh
        players.refresh(rows, self._terms, self._factor, 0, first, end, growth, self._fresh)
        summed = np.zeros((1, self.env.dimension))
        players.sum_features(rows, begin, end, actions, summed[0])
        return summed

    def _settle(self, episodes: int) -> None:
        if self._ledger is not None:
            before = self._ledger.difference.copy() if episodes > 1 else None
            found = self._ledger.settle(episodes)
            if before is None:
                self._regrets.append(found)
                return
            change = (self._ledger.difference - before) / episodes
            self._regrets += [self._ledger.interval(before + i * change) for i in range(1, episodes)] + [found]

    def _take_in(self, j: int) -> None:
        if self._ledger is not None:
            evaluation.follow(self._ledger.panel, self._terms, j, self._fresh, self._rule)

    # What was learned -----------------------------------------------------------------------------------------------

    @property
    def regret(self) -> Array:
        """The AL regret after each episode against the true expert: exact, or the middle of `regret_interval`."""
        return self.regret_interval[:, 0]

    @property
    def regret_interval(self) -> Array:
        """The AL regret after each episode with the ends of its 95 % interval, `[K, 3]`; the same where it is exact."""
        if self._ledger is None:
            raise InputError("the regret was not measured: it needs an expert of the problem, and regret='auto'")
        return np.array(self._regrets).reshape(-1, 3)

    @property
    def exact_regret(self) -> bool:
        """Whether the regret is exact."""
        return self._ledger is not None and self._ledger.exact

    def gap(self) -> tuple[float, float, float]:
        """Return the gap of the current policy to the expert, the worst over the cost set, and its 95 % interval."""
        if self._ledger is None:
            raise InputError("the gap cannot be measured: it needs an expert of the problem, and regret='auto'")
        return self._ledger.gap()

    @property
    def weights(self) -> Array:
        """The current weights of the cost, `[H, d]`."""
        return self._weights.copy()

    @property
    def trajectories(self) -> Episodes:
        """The learner's own episodes."""
        if not self.episodes:
            raise InputError("no episode was played yet: learn first")
        if self.env.horizon is not None:
            states, actions = self._roster.states[:, : self._rows].T, self._actions[:, : self._rows].T
            return Episodes(states, actions, np.full(self._rows, self.env.horizon))
        ends = np.flatnonzero(self._actions[0, : self._rows] < 0)
        lengths = np.diff(np.concatenate([[-1], ends])) - 1
        states = np.zeros((len(ends), lengths.max()), dtype=np.int64)
        actions = np.zeros_like(states)
        inside = np.arange(states.shape[1]) < lengths[:, None]
        played = self._actions[0, : self._rows] >= 0
        states[inside] = self._roster.states[0, : self._rows][played]
        actions[inside] = self._actions[0, : self._rows][played]
        return Episodes(states, actions, lengths)

    @property
    def elliptic_potential(self) -> Array:
        """sum_k min(1, phi_k^T Lambda_k^-1 phi_k) of each step, which `equations.potential_bound` bounds."""
        return self._potential.copy()

    def action_probabilities(self, state: int, step: int = 0) -> Array:
        """Return the current policy at a state, `[A]`."""
        if not (0 <= step < self.env.steps and 0 <= state < self.env.n_states):
            raise InputError(f"(step {step}, state {state}) is outside of {self.env.name}")
        where = (self.env.model, self._scratch, self._terms, step, self._count, self._rule, state)
        return players.action_probabilities(*where).copy()

    def predict(
        self, state: int, step: int = 0, *, deterministic: bool = False, rng: np.random.Generator | None = None
    ) -> tuple[int, None]:
        """Return `(action, None)` for a state (at a step); the second entry is there for the usual signature."""
        probabilities = self.action_probabilities(state, step)
        if deterministic:
            return int(np.argmax(probabilities)), None
        return int(fastmath.draw(probabilities, (rng or np.random.default_rng()).random())), None

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on, as plain arrays and JSON: what can be computed from it is left out."""
        rows, count = self._rows, self._count
        arrays = {
            "theta": self._terms.theta[:, :count],
            "step": self._terms.step[:count],
            "beta": self._terms.beta[:count],
            "states": self._roster.states[:, :rows],
            "actions": self._actions[:, :rows],
            "weights": self._weights,
            "stream": self._stream,
            "difference": np.zeros(0) if self._ledger is None else self._ledger.difference,
            "regrets": np.array(self._regrets).reshape(-1, 3),
            "demo_states": self.demos.states,
            "demo_actions": self.demos.actions,
            "demo_lengths": self.demos.lengths,
        }
        about = {
            "format": FORMAT,
            "what": KIND,
            "problem": self.env.name,
            "fingerprint": self.env.fingerprint,
            "algorithm": self.algorithm,
            "cost_set": self.cost_set.kind,
            "settings": dataclasses.asdict(self.settings),
            "panel_samples": self.panel_samples,
            "regret": "none" if self._ledger is None else "auto",
            "episodes": self.episodes,
            "planned": self.planned,
            "seed": self.seed,
        }
        npz.write(path, arrays | {"about": npz.text(json.dumps(about))})

    @classmethod
    def load(cls, path: str | os.PathLike[str], problem: LinearMDP) -> "LinearOAL":
        """Read a learner written by `save`; `problem` is the one it learned in.

        The file may be a stranger's. It holds episodes, terms and sums; they are checked, and everything else is
        computed from them again, which takes up to half as long as learning did.
        """
        with damage(f"{path}: not a saved LinearOAL"):
            with opening.opened(path) as file, npz.Archive(file, str(path)) as archive:
                about = jsontext.expect(jsontext.parse(f"{path}:", archive.read_text("about")), f"{path}: about", dict)
                arrays = {name: archive.read(name) for name in archive.keys if name != "about"}
            if about["what"] != KIND or about["format"] > FORMAT:
                raise InputError(
                    f"{path}: {about['what']} of format {about['format']}, but {KIND} of {FORMAT} is read here"
                )
            if about["fingerprint"] != problem.fingerprint:
                raise InputError(f"{path}: learned in {about['problem']}, which is not this {problem}")
            learner = cls(
                problem,
                Episodes(arrays["demo_states"], arrays["demo_actions"], arrays["demo_lengths"]),
                preset="paper",
                **{name: about[name] for name in ("algorithm", "cost_set", "panel_samples", "regret", "seed")},
                **dataclasses.asdict(build(Settings, about["settings"], name="learner")),
            )
            episodes = whole("episodes", about["episodes"], 0)
            if episodes > LARGEST:
                raise ValueError(f"episodes is {episodes}")
            learner.planned = None if about["planned"] is None else whole("planned", about["planned"], 1)
            learner._restore(arrays, episodes)
        return learner

    def _restore(self, arrays: dict[str, NDArray[Any]], episodes: int) -> None:
        """Take over a file's arrays; a ValueError names one that cannot have come from `save`."""
        H, d = self.env.steps, self.env.dimension
        finite = self.env.horizon is not None
        size = 1 if finite else self.settings.batch
        if episodes % size:
            raise ValueError(f"{episodes} episodes are no whole number of batches")
        count = episodes // size * (1 if finite else self.settings.updates)
        states, actions = arrays["states"], arrays["actions"]
        rows = episodes if finite else states.shape[-1]
        shapes: dict[str, tuple[type, tuple[int, ...]]] = {
            "theta": (np.float64, (H, count, d)),
            "step": (np.float64, (count,)),
            "beta": (np.float64, (count,)),
            "states": (np.int64, (H, rows)),
            "actions": (np.int64, (H, rows)),
            "weights": (np.float64, (H, d)),
            "stream": (np.uint64, (4,)),
            "difference": (np.float64, (0,) if self._ledger is None else self._ledger.difference.shape),
            "regrets": (np.float64, (0 if self._ledger is None else episodes, 3)),
        }
        for name, (dtype, shape) in shapes.items():
            array = arrays[name]
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name} is {array.dtype}{array.shape}, not {np.dtype(dtype)}{shape}")
            if array.dtype == np.float64 and not (np.abs(array) < LARGEST_NUMBER).all():
                raise ValueError(f"{name} holds a number that is not finite or too large")
        if rows and (states.min() < 0 or states.max() >= self.env.n_states):
            raise ValueError("states lead out of the problem")
        if rows and (actions.min() < (0 if finite else -1) or actions.max() >= self.env.n_actions):
            raise ValueError("actions lead out of the problem")
        if count and (arrays["step"].min() < 0 or arrays["beta"].min() < 0):
            raise ValueError("steps or bonuses are negative")
        if not arrays["stream"].any():
            raise ValueError("stream is all zeros, from which no random number comes")
        ends = np.flatnonzero(actions[0] < 0) + 1
        if not finite and (
            len(ends) != episodes or (rows and (ends[-1] != rows or np.diff(ends, prepend=0).min() < 2))
        ):
            raise ValueError(f"actions do not make {episodes} episodes")
        self._make_room(rows, count)
        self._roster.states[:, :rows] = states
        self._actions[:, :rows] = actions
        for h in range(H):
            layer = self._roster
            features.open_states(self.env.model, layer.states[h, :rows], layer.anchor[h], layer.value[h])
        self._terms.theta[:, :count] = arrays["theta"]
        self._terms.step[:count], self._terms.beta[:count] = arrays["step"], arrays["beta"]
        self._replay_data(episodes, ends)
        for h in range(H):
            players.catch_up(self.env.model, self._roster, self._terms, h, count, 0, rows, self._rule)
        self._rows, self._count, self.episodes = rows, count, episodes
        self._weights = np.array(self.cost_set.check(arrays["weights"]))
        self._stream[:] = arrays["stream"]
        self._fresh[:] = True
        if self._ledger is not None:
            evaluation.start_panel(self.env.model, self._ledger.panel, self._terms, count, self._rule)
            self._ledger.difference[:] = arrays["difference"]
            self._regrets = [(float(a), float(b), float(c)) for a, b, c in arrays["regrets"]]

    def _replay_data(self, episodes: int, ends: NDArray[np.int64]) -> None:
        """Add the episodes to Lambda as they came, so that each term finds the bonus matrix that it was made with."""
        settings = self.settings
        if self.env.horizon is not None:
            for n in range(episodes):
                self._make_room(0, 0)
                self._terms.epoch[:, n] = self._terms.epochs - 1
                data = (self._roster, self._terms, self._factor, n, self._actions)
                players.count_episode(*data, settings.refresh, self._potential, self._fresh)
            return
        begin = 0
        for b, end in enumerate(ends[settings.batch - 1 :: settings.batch]):
            self._make_room(0, 0)
            self._add_batch(begin, int(end))
            self._terms.epoch[:, b * settings.updates : (b + 1) * settings.updates] = self._terms.epochs[0] - 1
            begin = int(end)

    def __repr__(self) -> str:
        name = {MIRROR: "OGAP", GREEDY: "BRIG", SOFT: "ILARL"}[self._rule]
        about = f"{self.cost_set.kind} costs, {len(self.demos)} demonstrations, {self.episodes} episodes"
        return f"LinearOAL({self.env.name}, {name}, {about})"
