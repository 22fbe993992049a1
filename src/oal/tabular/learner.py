"""Algorithm 2 of the paper, and its general scheme with a known model: tabular online apprenticeship learning.

`TabularOAL(env, demos).learn(episodes)` plays a policy player (KL mirror descent on optimistic values) against a cost
player (mirror ascent on the difference of occupancies). It touches only what it has visited: time per episode and
memory do not depend on the number of states.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal import equations
from oal.base import jsontext, npz, opening, seeding, stopping
from oal.base.config import build
from oal.base.console import progress
from oal.base.limits import damage
from oal.equations import Array
from oal.errors import InputError, at_least, choice, whole
from oal.tabular import algorithm2, fastmath, mbtail, optimism, passes, transition_aware
from oal.tabular import slots as memory
from oal.tabular.costsets import KINDS, CostSet
from oal.tabular.ledger import open_ledger
from oal.tabular.mdp import FiniteMDP, Trajectories, expert_policy, occupancy, policy_of_occupancy
from oal.tabular.sampler import Environment, Sampler
from oal.tabular.transition_aware import EXPERT_ESTIMATES

FORMAT = 1
KIND = "oal.TabularOAL"
LARGEST = 1 << 53
"""Numbers of episodes up to here are exact as floats, which the step sizes are computed from."""
PART_SECONDS = 0.25
CONFIDENCE_SETS = {"kl": optimism.KL, "intervals": optimism.INTERVALS}
SPREADS = {"least": optimism.LEAST, "deviation": optimism.SPREAD}
EXPLORERS = {"reward-free": mbtail.REWARD_FREE, "uniform": mbtail.UNIFORM}


@dataclass(frozen=True)
class Settings:
    """What can be chosen about Algorithm 2 and the algorithms after it.

    `preset="paper"` is the paper, `preset="default"` is ours, `"soar"` and `"mb-tail"` are two newer algorithms.
    """

    bonus: str = "hoeffding"
    """`hoeffding` (the paper's), `bernstein` (smaller where the next value varies little; no guarantee), or the least
    value in a confidence set: `kl` (a ball for each row) or `intervals` (one for each transition); these keep the
    theorem at scale 1, and need no K."""
    bonus_scale: float = 1.0
    """Multiplies the theorem's bonus, which is vacuous at ordinary numbers of episodes, or the radius of the confidence
    sets; 0 switches exploration off."""
    models: int = 0
    """SOAR: so many models with episodes of their own give the optimism by their spread, in place of a bonus."""
    model_spread: str = "least"
    """What SOAR takes of the models' values: the `least`, or the mean less one standard `deviation`."""
    expert_estimate: str = "empirical"
    """The expert's occupancy: `empirical` (counted), or `transition-aware` (with the model where the expert's actions
    are known). `TabularOAL(..., expert="transition-aware")` says the same."""
    explore: float = 0.0
    """MB-TAIL: this share of the planned episodes explores; then the game is solved in the model and played on."""
    explorer: str = "reward-free"
    """How: `reward-free` (towards the least certain; its bonus times `bonus_scale`) or `uniform`."""
    plan_iterations: int = 1000
    """Best responses that MB-TAIL computes in its model."""
    policy_step_scale: float = 1.0
    """Multiplies the theorem's step size of the policy player."""
    cost_step_scale: float = 1.0
    """Multiplies the theorem's step size of the cost player."""
    anytime: bool = False
    """Step sizes and bonus with k in place of K: no need to know the number of episodes."""
    pooled: bool | None = False
    """One model for all steps: right when, and only when, the dynamics do not depend on the step. None: where that is
    known, in a `FiniteMDP` with stationary dynamics or a Gymnasium environment."""
    expert_model: bool = False
    """Start the transition model from the experts' trajectories."""
    policy_start: str = "uniform"
    """`uniform`, or `bc`: behavioural cloning where the expert was seen."""
    bc_smoothing: float = 0.0
    """Share of the uniform policy in a policy started from BC; 0 rules unseen actions out for ever."""
    initial: str = "estimated"
    """Initial distribution of the model: `estimated` from episodes, or `known`."""
    delta: float = 0.1
    """Failure probability of the theorem; delta' = delta / 3."""

    def __post_init__(self) -> None:
        choice("bonus", self.bonus, ("hoeffding", "bernstein", *CONFIDENCE_SETS))
        choice("model_spread", self.model_spread, SPREADS)
        choice("expert_estimate", self.expert_estimate, EXPERT_ESTIMATES)
        choice("explorer", self.explorer, EXPLORERS)
        whole("models", self.models, 0)
        whole("plan_iterations", self.plan_iterations, 1)
        if self.models == 1:
            raise InputError("models is 1: one model has no spread; give 2 or more, or 0 for none")
        if not 0 <= self.explore < 1:
            raise InputError(f"explore is {self.explore}: it must be a share of the episodes, in [0, 1)")
        if self.explore > 0 and self.models > 0:
            raise InputError("explore and models are two algorithms (MB-TAIL and SOAR): set one of them to 0")
        choice("policy_start", self.policy_start, ("uniform", "bc"))
        choice("initial", self.initial, ("estimated", "known"))
        for name in ("bonus_scale", "policy_step_scale", "cost_step_scale"):
            at_least(name, getattr(self, name), 0.0)
        if not 0 <= self.bc_smoothing <= 1:
            raise InputError(f"bc_smoothing is {self.bc_smoothing}: it must lie in [0, 1]")
        if not 0 < self.delta < 1:
            raise InputError(f"delta is {self.delta}: it must lie strictly between 0 and 1")


PRESETS = {
    "paper": Settings(),
    "default": Settings(
        bonus_scale=0.0,
        policy_step_scale=30.0,
        cost_step_scale=10.0,
        anytime=True,
        pooled=None,
        expert_model=True,
        policy_start="bc",
        bc_smoothing=0.1,
    ),
}
PRESETS |= {
    "soar": dataclasses.replace(PRESETS["default"], models=4),
    "mb-tail": Settings(
        bonus_scale=0.001,
        cost_step_scale=10.0,
        pooled=None,
        expert_model=True,
        expert_estimate="transition-aware",
        explore=0.02,
        plan_iterations=2000,
    ),
}


def settings_for(preset: str, **changes: Any) -> Settings:
    """Return a preset with some of its fields changed."""
    base = PRESETS[choice("preset", preset, PRESETS)]
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in changes:
        choice("setting", name, sorted(known))
    return dataclasses.replace(base, **changes)


class TabularOAL:
    """Online apprenticeship learning in a finite MDP (Algorithm 2).

    Args:
        env: a `FiniteMDP`, a `Sampler`, or a Gymnasium environment (id or object, with `horizon`) to sample from.
        demos: the experts' trajectories.
        cost_set: `"box"` (every cost in [0, 1], the paper's), `"l2"` or `"simplex"` (linear costs), or a `CostSet`.
        features: `[S, d]` in [-1, 1] for linear costs; one for each state if not given.
        preset: `"default"`, `"paper"`, `"soar"` or `"mb-tail"`; any field of `Settings` can be given beside it.
        model: `"estimated"` while learning, or `"known"` (the general scheme, Algorithm 1, with the exact model).
        initial_cost: the first cost: one number for the box, or coordinates in the cost set.
        expert: the expert's policy, for the exact regret; found by itself for the families of `oal.mdp`. Or how the
            learner estimates the expert's occupancy: `"empirical"` or `"transition-aware"`.
        regret: `"exact"` (needs a `FiniteMDP` and its expert), `"none"`, or `"auto"`: exact where possible.
        decompose: also keep what `oal.regret.decompose` needs.
        keep_trajectories: keep the learner's episodes in `.trajectories` (needed for `oal.regret.estimate`).
    """

    def __init__(
        self,
        env: Environment | str | Any,
        demos: Trajectories,
        *,
        horizon: int | None = None,
        cost_set: str | CostSet = "box",
        features: ArrayLike | None = None,
        preset: str = "default",
        model: str = "estimated",
        initial_cost: ArrayLike | None = None,
        expert: ArrayLike | str | None = None,
        regret: str = "auto",
        decompose: bool = False,
        keep_trajectories: bool | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        if not isinstance(env, (FiniteMDP, Sampler)):
            if horizon is None:
                raise InputError("a Gymnasium environment needs a horizon: TabularOAL(env, demos, horizon=...)")
            env = Sampler(env, horizon)
        elif horizon not in (None, env.horizon):
            raise InputError(f"horizon is {horizon} but {env.name} has the horizon {env.horizon}: leave it out")
        demos.check(env.shape, of=env.name)
        self.env: Environment = env
        self.demos = demos
        if isinstance(expert, str):
            settings["expert_estimate"], expert = choice("expert", expert, EXPERT_ESTIMATES), None
        self.settings = settings_for(preset, **settings)
        self.model = choice("model", model, ("estimated", "known"))
        self.seed = seed
        self.episodes = 0
        self._env_seed: int | None = seeding.integer(seed, "tabular environment")
        if isinstance(cost_set, str):
            cost_set = CostSet(cost_set, env.shape, None if features is None else np.asarray(features, dtype=float))
        elif features is not None:
            raise InputError("features belong to the cost set: give them there, or name the cost set")
        self.cost_set = cost_set
        table = env if isinstance(env, FiniteMDP) else None
        if table is None and self.model == "known":
            raise InputError(
                f"{env.name} can only be sampled: a known model needs a FiniteMDP (oal.mdp.from_gymnasium)"
            )
        if table is None and self.settings.initial == "known":
            raise InputError(f"{env.name} can only be sampled: its initial distribution must be 'estimated'")
        stationary = table is None or table.stationary
        self.pooled = stationary if self.settings.pooled is None else self.settings.pooled
        if not stationary and self.pooled:
            raise InputError(
                f"the dynamics of {env.name} depend on the step: one model for all steps is wrong; pooled=False"
            )
        choice("regret", regret, ("auto", "exact", "none"))
        if regret == "exact" and table is None:
            raise InputError(f"{env.name} has no transition table: estimate the regret with oal.regret.estimate")
        self.keep_trajectories = table is None if keep_trajectories is None else keep_trajectories
        self._regrets: list[Array] = []
        self._trajectories: list[NDArray[np.int32]] = []
        self._stream = seeding.sequence(seed, "tabular").generate_state(4, np.uint64)
        self._truth = passes.NO_TRANSITIONS if table is None else table.transitions
        self._rules = self._counted = self._make_rules(initial_cost)
        self._slots = memory.empty(self._rules)
        self._weights = np.zeros(self.cost_set.phi.shape[1])
        self._prepare_slots(initial_cost)
        self._options = self._make_options()
        d_expert = None
        if table is not None and (regret == "exact" or (regret == "auto" and (expert is not None or table.has_expert))):
            d_expert = occupancy(table, expert_policy(table) if expert is None else expert)
        self._ledger = open_ledger(cost_set, demos, d_expert, decompose)

    # Set-up ---------------------------------------------------------------------------------------------------------

    def _make_rules(self, initial_cost: ArrayLike | None) -> memory.Rules:
        settings, cost_set = self.settings, self.cost_set
        H, S, A = self.env.shape
        default = 0.0
        if cost_set.kind == "box" and initial_cost is not None and np.ndim(initial_cost) == 0:
            default = float(np.asarray(initial_cost))
        if not 0 <= default <= 1:
            raise InputError(f"initial_cost is {default}: costs of the box lie in [0, 1]")
        known = self.model == "known"
        return memory.Rules(
            n_states=S,
            n_actions=A,
            horizon=H,
            pooled=self._truth.stationary if known else self.pooled,
            model_known=known,
            initial_known=known or settings.initial == "known",
            bonus=memory.HOEFFDING if settings.bonus == "hoeffding" else memory.BERNSTEIN,
            bonus_scale=float(settings.bonus_scale),
            delta=settings.delta,
            anytime=settings.anytime,
            planned_episodes=1.0,
            policy_step=settings.policy_step_scale
            * equations.policy_step_size(self.env.shape, 1.0)
            / max(cost_set.width, 1e-300),
            cost_step=settings.cost_step_scale * cost_set.step_size(1.0),
            cost_set=KINDS[cost_set.kind],
            cost_low=cost_set.low,
            cost_width=cost_set.width,
            default_cost=default,
            features=cost_set.phi,
            expert_features=cost_set.phi[self.demos.states].sum((0, 1)) / len(self.demos),
            models=0 if known else settings.models,
        )

    def _make_options(self) -> optimism.Options:
        """What differs from Algorithm 2: the optimism, and how the expert is estimated."""
        settings, rules = self.settings, self._rules
        kind = optimism.BONUS
        if not rules.model_known:
            if settings.models:
                kind = SPREADS[settings.model_spread]
            elif settings.bonus_scale > 0:
                kind = CONFIDENCE_SETS.get(settings.bonus, kind)
        covered = transition_aware.NOTHING_COVERED
        if settings.expert_estimate == "transition-aware":
            slots = self._slots
            covered = transition_aware.cover(
                self.demos, self.env.shape, slots.place_keys, slots.place_values, slots.hashing
            )
            # the ledger still measures against the demonstrations
            self._rules = rules._replace(expert_features=rules.expert_features.copy())
        H, S, A = self.env.shape
        rows = S * A if rules.pooled else H * S * A
        return optimism.Options(optimism=kind, failure=settings.delta / 3 / rows, covered=covered)

    def _prepare_slots(self, initial_cost: ArrayLike | None) -> None:
        """Open the slots whose start differs from the rest: the experts', known starts, given costs, a known model."""
        rules, truth = self._rules, self._truth
        if rules.model_known:
            reached = passes.reachable(truth, *self.env.shape)
            rows = int(reached.any(0).sum()) if rules.pooled else int(reached.sum(1).max())
            # A row that grows by doubling takes at most four times its successors, and two places at least.
            edges = 4 * len(truth.successors) + 2 * len(truth.indptr)
            self._slots = memory.reserve(self._slots, rules, rows, edges)
            algorithm2.install_model(self._slots, rules, truth, reached)
        done = 0
        while done < len(self.demos):
            self._slots = memory.make_room(self._slots, rules)
            done = algorithm2.add_demonstrations(
                self._slots, rules, self.demos.states, self.demos.actions, done, self.settings.expert_model
            )
        if rules.initial_known:
            support = np.flatnonzero(truth.initial)
            self._slots = memory.reserve(self._slots, rules, len(support) + int(self._slots.counts.max()))
            for s in support:
                place = memory.activate(self._slots, rules, 0, int(s))
                self._slots.start_weight[place] = truth.initial[s]
            self._slots.start_total[0] = 1.0
        if rules.models and self.settings.expert_model:
            optimism.count_members(self._slots, rules, self.demos.states, self.demos.actions)
        if self.settings.policy_start == "bc":
            algorithm2.clone_experts(self._slots, rules, float(self.settings.bc_smoothing))
        if self.cost_set.kind != "box":
            start = self.cost_set.start() if initial_cost is None else self.cost_set.check(initial_cost)
            self._weights = start.copy()
            algorithm2.set_linear_costs(self._slots, rules, self._weights)
        elif initial_cost is not None and np.ndim(initial_cost) > 0:
            cost = self.cost_set.check(initial_cost)
            self._slots = memory.reserve(self._slots, rules, rules.n_states)
            for h, s in np.argwhere(cost.any(-1)):
                place = memory.activate(self._slots, rules, int(h), int(s))
                self._slots.cost[self._slots.base[h] + place] = cost[h, s]

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(
        self,
        episodes: int,
        *,
        planned: int | None = None,
        progress_bar: bool = False,
        callback: Callable[["TabularOAL"], bool | None] | None = None,
    ) -> "TabularOAL":
        """Play and learn for a number of episodes. Calling it again goes on.

        `planned` is K of the theorem, for the step sizes and the bonus (without `anytime`): all episodes of this call
        if not given. `callback(self)` is called about a hundred times; returning False stops the learning.
        """
        at_least("number of episodes", episodes, 1)
        at_least("planned episodes", episodes if planned is None else planned, 1)
        self._rules = self._rules._replace(planned_episodes=float(planned or episodes))
        play = self._play_table if isinstance(self.env, FiniteMDP) else self._play_samples
        block = max(1, -(-episodes // 100)) if progress_bar or callback is not None else episodes
        with progress(f"{self.env.name}: episodes", episodes, enabled=progress_bar) as advance:
            for done in range(0, episodes, block):
                size = min(block, episodes - done)
                self._play_in_parts(play, size)
                advance(size)
                if callback is not None and callback(self) is False:
                    break
        return self

    def _play_in_parts(self, play: Callable[[int], None], episodes: int) -> None:
        """Play in parts of a quarter of a second, between which a signal can stop it: compiled code hears none."""
        part = 1
        while episodes > 0:
            stopping.check()
            begun, size = time.perf_counter(), min(part, episodes)
            play(size)
            episodes -= size
            part = max(1, int(size * min(8.0, PART_SECONDS / max(time.perf_counter() - begun, 1e-6))))

    def _play_table(self, episodes: int) -> None:
        keep = self.keep_trajectories
        regrets = np.zeros((episodes, 2))
        trajectories = np.empty((episodes if keep else 0, 2, self.env.horizon), dtype=np.int32)
        done = 0
        self._slots = memory.tidy(self._slots, self._rules)
        while done < episodes:
            self._slots = memory.make_room(self._slots, self._rules)
            run, arguments, most = self._kernel(episodes - done)
            played = run(
                self._slots,
                self._rules,
                *arguments,
                regrets[done : done + most],
                trajectories[done:] if keep else trajectories,
                keep,
            )
            done += played
            self.episodes += played
        if self.exact_regret:
            self._regrets.append(regrets)
        if keep:
            self._trajectories.append(trajectories)

    def _kernel(self, episodes: int) -> tuple[Callable[..., int], tuple[Any, ...], int]:
        """Return what plays the next episodes, what it is given besides the slots, and how many it may play."""
        shared, first = (self._truth, self._ledger, self._weights, self._stream), self.episodes + 1
        if self.settings.explore > 0:
            kind, most = self._phase(episodes)
            return mbtail.play, (self._counted, kind, *shared), most
        if self._options.optimism == optimism.BONUS and not self._options.covered.used:
            return algorithm2.learn, (*shared, first), episodes
        return optimism.learn, (self._counted, self._options, *shared, first), episodes

    def _phase(self, episodes: int) -> tuple[int, int]:
        """Return how MB-TAIL plays the next episodes, and for how many of them; plan when its exploration is over."""
        left = max(1, round(self.settings.explore * self._rules.planned_episodes)) - self.episodes
        if left > 0:
            return EXPLORERS[self.settings.explorer], min(left, episodes)
        if left == 0:
            iterations = self.settings.plan_iterations
            step = self.settings.cost_step_scale * self.cost_set.step_size(iterations)
            mbtail.plan(self._slots, self._rules, self._options.covered, self._weights, iterations, step)
        return mbtail.COMMIT, episodes

    def _play_samples(self, episodes: int) -> None:
        assert isinstance(self.env, Sampler)
        probabilities = np.empty(self.env.n_actions)

        def act(h: int, s: int) -> int:
            algorithm2.action_probabilities(self._slots, self._rules, h, s, probabilities)
            return fastmath.draw(probabilities, fastmath.uniform(self._stream))

        for _ in range(episodes):
            self._slots = memory.make_room(self._slots, self._rules)
            kernel, arguments, _ = self._kernel(1)
            if kernel is mbtail.play:
                mbtail.choose(self._slots, self._rules, arguments[1])
            # Only the first episode here seeds the environment: Gymnasium's generator then runs on by itself.
            states, actions = self.env.episode(act, seed=self._env_seed)
            self._env_seed = None
            learned = (self._weights, self.episodes + 1, states, actions)
            if kernel is mbtail.play:
                mbtail.count(self._slots, self._rules, self._weights, states, actions)
            elif kernel is optimism.learn:
                optimism.update_from(self._slots, self._rules, self._options, *learned)
            else:
                algorithm2.update_from(self._slots, self._rules, self._weights, float(learned[1]), states, actions)
            self.episodes += 1
            if self.keep_trajectories:
                self._trajectories.append(np.stack([states, actions]).astype(np.int32)[None])

    # What was learned -----------------------------------------------------------------------------------------------

    @property
    def regret(self) -> Array:
        """The AL regret after each episode, against the true expert (exact)."""
        return self._regret_column(0)

    @property
    def empirical_regret(self) -> Array:
        """The AL regret after each episode, against the demonstrations."""
        return self._regret_column(1)

    def _regret_column(self, column: int) -> Array:
        if not self.exact_regret:
            raise InputError("the exact regret was not kept: it needs a FiniteMDP with an expert, and regret='exact'")
        return np.concatenate([np.zeros(0), *(block[:, column] for block in self._regrets)])

    @property
    def trajectories(self) -> Trajectories:
        """The learner's own episodes."""
        if not self._trajectories:
            raise InputError("no episode was kept: learn first, with keep_trajectories=True")
        kept = np.concatenate(self._trajectories)
        return Trajectories(kept[:, 0].astype(np.int64), kept[:, 1].astype(np.int64))

    @property
    def exact_regret(self) -> bool:
        """Whether the exact regret is kept."""
        return self._ledger.exact

    def _dense(self, values: Array, default: float) -> Array:
        return memory.dense(self._slots, values, self.env.shape, default)

    @property
    def policy(self) -> Array:
        """The current policy, `[H, S, A]`."""
        return self._dense(self._slots.policy, 1.0 / self.env.n_actions)

    @property
    def average_policy(self) -> Array:
        """The policy whose occupancy is the average over the episodes, as the learner's model saw it, `[H, S, A]`."""
        average = policy_of_occupancy(self._slots.occupancy_sum, elsewhere=self._slots.policy)
        return self._dense(average, 1.0 / self.env.n_actions)

    @property
    def cost(self) -> Array:
        """The current cost, `[H, S, A]`."""
        if self.cost_set.kind == "box":
            return self._dense(self._slots.cost, self._rules.default_cost)
        return np.array(self.cost_set.cost(self._weights))

    @property
    def weights(self) -> Array:
        """The current weights of a linear cost."""
        if self.cost_set.kind == "box":
            raise InputError("costs of the box have no weights: read .cost")
        return self._weights.copy()

    @property
    def visited(self) -> int:
        """How many (h, s) the learner keeps: what was visited by it or by the experts."""
        return int(self._slots.counts.sum())

    @property
    def successors(self) -> int:
        """How many different transitions (h, s, a, s') its model knows."""
        return int(self._slots.edge_count.sum())

    def predict(
        self, state: int, step: int, *, deterministic: bool = False, rng: np.random.Generator | None = None
    ) -> tuple[int, None]:
        """Return `(action, None)` for a state at a step; the second entry is there for the usual signature."""
        if not (0 <= step < self.env.horizon and 0 <= state < self.env.n_states):
            raise InputError(f"(step {step}, state {state}) is outside of {self.env.name}")
        probabilities = np.empty(self.env.n_actions)
        algorithm2.action_probabilities(self._slots, self._rules, step, state, probabilities)
        if deterministic:
            return int(np.argmax(probabilities)), None
        u = (rng or np.random.default_rng()).random()
        return int(fastmath.draw(probabilities, u)), None

    # Files ----------------------------------------------------------------------------------------------------------

    def _changing(self) -> dict[str, NDArray[Any]]:
        """The arrays that learning writes into, besides the slots, by their names in a file."""
        kept = {f"ledger.{name}": value for name, value in self._ledger._asdict().items() if np.ndim(value)}
        return kept | {"weights": self._weights, "stream": self._stream}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on, as plain arrays and JSON."""
        no_episodes = np.zeros((0, 2, self.env.horizon), dtype=np.int32)
        arrays: dict[str, Any] = {f"slots.{name}": value for name, value in self._slots._asdict().items()}
        arrays |= self._changing() | {
            "demo_states": self.demos.states,
            "demo_actions": self.demos.actions,
            "regrets": np.concatenate([np.zeros((0, 2)), *self._regrets]),
            "trajectories": np.concatenate([no_episodes, *self._trajectories]),
            "features": self.cost_set.phi,
        }
        about = {
            "format": FORMAT,
            "what": KIND,
            "env": self.env.name,
            "shape": list(self.env.shape),
            "settings": dataclasses.asdict(self.settings),
            "model": self.model,
            "cost_set": self.cost_set.kind,
            "default_cost": self._rules.default_cost,
            "episodes": self.episodes,
            "seed": self.seed,
            "exact_regret": self.exact_regret,
            "decompose": bool(self._ledger.decompose),
            "keep_trajectories": self.keep_trajectories,
        }
        npz.write(path, arrays | {"about": npz.text(json.dumps(about))})

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: Environment | str | Any) -> "TabularOAL":
        """Read a learner written by `save`; `env` is the environment it learned in.

        The file may be a stranger's: everything that compiled code reads from it is checked before.
        """
        with damage(f"{path}: not a saved TabularOAL"):
            with opening.opened(path) as file, npz.Archive(file, str(path)) as archive:
                about = jsontext.expect(jsontext.parse(f"{path}:", archive.read_text("about")), f"{path}: about", dict)
                arrays = {name: archive.read(name) for name in archive.keys if name != "about"}
            if about["what"] != KIND or about["format"] > FORMAT:
                raise InputError(
                    f"{path}: {about['what']} of format {about['format']}, but {KIND} of {FORMAT} is read here"
                )
            if not isinstance(env, (FiniteMDP, Sampler)):
                env = Sampler(env, whole("horizon", about["shape"][0], 1))
            if list(env.shape) != about["shape"]:
                raise InputError(f"{path}: learned in {about['env']} of shape {about['shape']}, not in {env.shape}")
            for name in ("exact_regret", "decompose", "keep_trajectories"):
                if not isinstance(about[name], bool):
                    raise ValueError(f"{name} is {about[name]!r}")
            box = about["cost_set"] == "box"
            learner = cls(
                env,
                Trajectories(arrays["demo_states"], arrays["demo_actions"]),
                features=None if box else arrays["features"],
                preset="paper",
                initial_cost=float(about["default_cost"]) if box else None,
                regret="exact" if about["exact_regret"] else "none",
                **{name: about[name] for name in ("cost_set", "model", "decompose", "keep_trajectories", "seed")},
                **dataclasses.asdict(build(Settings, about["settings"], name="learner")),
            )
            learner._restore(arrays, whole("episodes", about["episodes"], 0))
        return learner

    def _restore(self, arrays: dict[str, NDArray[Any]], episodes: int) -> None:
        """Take over a file's arrays; a ValueError names one that cannot have come from `save`."""
        # files from before there were ensembles have none
        none = {"slots.member_visits": np.zeros((*arrays["slots.visits"].shape, 0))}
        arrays = none | {"slots.member_weight": np.zeros((len(arrays["slots.edge_to"]), 0))} | arrays
        given = memory.Slots(**{name: arrays[f"slots.{name}"] for name in memory.Slots._fields})
        self._slots = memory.adopt(given, self._slots, self._rules)
        for name, own in self._changing().items():
            array = arrays[name]
            if array.shape != own.shape or array.dtype != own.dtype or not np.isfinite(array).all():
                raise ValueError(f"{name} is {array.dtype}{array.shape}, not {own.dtype}{own.shape}, or not finite")
            own[...] = array
        if not self._stream.any():
            raise ValueError("stream is all zeros, from which no random number comes")
        H, S, A = self.env.shape
        regrets, played = arrays["regrets"], arrays["trajectories"]
        if regrets.dtype != float or regrets.shape[1:] != (2,) or not len(regrets) <= episodes <= LARGEST:
            raise ValueError(f"regrets are {regrets.dtype}{regrets.shape} after {episodes} episodes")
        if played.dtype != np.int32 or played.shape[1:] != (2, H) or len(played) > episodes:
            raise ValueError(f"trajectories are {played.dtype}{played.shape} after {episodes} episodes")
        if len(played) and (played.min() < 0 or played[:, 0].max() >= S or played[:, 1].max() >= A):
            raise ValueError("trajectories lead out of the environment")
        self._regrets, self._trajectories = [regrets], [played] if len(played) else []
        self.episodes = episodes
        if episodes:
            self._env_seed = seeding.integer(self.seed, "tabular environment", episodes)

    def __repr__(self) -> str:
        about = f"{self.cost_set.kind} costs, {len(self.demos)} demonstrations, {self.episodes} episodes"
        return f"TabularOAL({self.env.name}, {about})"


def behavioural_cloning(demos: Trajectories, shape: tuple[int, int, int]) -> Array:
    """Return the policy of behavioural cloning: the expert's frequencies, uniform at states it did not visit."""
    return policy_of_occupancy(demos.occupancy(shape))
