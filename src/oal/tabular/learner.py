"""Algorithm 2 of the paper, and its general scheme with a known model: tabular online apprenticeship learning.

`TabularOAL(env, demos).learn(episodes)` plays a policy player (KL mirror descent on optimistic values) against a cost
player (mirror ascent on the difference of occupancies). It touches only what it has visited: time per episode and
memory do not depend on the number of states. `learn_seeds` runs many seeds in parallel threads.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal import equations
from oal.base import seeding
from oal.errors import InputError, at_least, choice
from oal.tabular import kernels
from oal.tabular.costsets import KINDS, CostSet
from oal.tabular.mdp import FiniteMDP, Trajectories, expert_policy, make_discrete, occupancy

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

FORMAT = 1
KIND = "oal.TabularOAL"


@dataclass(frozen=True)
class Settings:
    """What can be chosen about Algorithm 2. `preset="paper"` is the paper, `preset="default"` is ours."""

    bonus: str = "hoeffding"
    """`hoeffding` (the paper's) or `bernstein` (smaller where the next value varies little)."""
    bonus_scale: float = 1.0
    """Multiplies the theorem's bonus, which is vacuous at ordinary numbers of episodes; 0 switches exploration off."""
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
        choice("bonus", self.bonus, ("hoeffding", "bernstein"))
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


def settings_for(preset: str, **changes: Any) -> Settings:
    """Return a preset with some of its fields changed."""
    base = PRESETS[choice("preset", preset, PRESETS)]
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in changes:
        choice("setting", name, sorted(known))
    return dataclasses.replace(base, **changes)


class Sampler:
    """A Gymnasium environment with Discrete spaces, to be learned from samples only: no transition table is read.

    An episode that terminates stays in the state it ended in for the rest of the horizon; a time limit of the
    environment's own that comes before the horizon is an error, since the rest of the episode is unknown then.
    """

    def __init__(self, env: Any, horizon: int, **options: Any) -> None:
        at_least("horizon", horizon, 1)
        self.env = make_discrete(env, **options) if isinstance(env, str) else env
        self.name = env if isinstance(env, str) else str(getattr(env.spec, "id", env))
        self.horizon = int(horizon)
        self.n_states = int(self.env.observation_space.n)
        self.n_actions = int(self.env.action_space.n)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.horizon, self.n_states, self.n_actions

    def episode(self, act: Callable[[int, int], int], *, seed: int | None = None) -> tuple[Ints, Ints]:
        """Play an episode of H steps with `act(h, s)`; return its states and actions."""
        states = np.empty(self.horizon, dtype=np.int64)
        actions = np.empty(self.horizon, dtype=np.int64)
        s = int(self.env.reset(seed=seed)[0])
        ended = False
        for h in range(self.horizon):
            states[h] = s
            actions[h] = a = act(h, s)
            if ended or h + 1 == self.horizon:
                continue
            after, _, ended, truncated, _ = self.env.step(a)
            s = int(after)
            if truncated and not ended:
                raise InputError(
                    f"{self.name} cut the episode off after {h + 1} steps but the horizon is {self.horizon}: give a "
                    f"horizon of at most {h + 1}, or make the environment with max_episode_steps={self.horizon}"
                )
        return states, actions


Environment = FiniteMDP | Sampler


class TabularOAL:
    """Online apprenticeship learning in a finite MDP (Algorithm 2).

    Args:
        env: a `FiniteMDP`, a `Sampler`, or a Gymnasium environment (id or object, with `horizon`) to sample from.
        demos: the experts' trajectories.
        cost_set: `"box"` (every cost in [0, 1], the paper's), `"l2"` or `"simplex"` (linear costs), or a `CostSet`.
        features: `[S, d]` in [-1, 1] for linear costs; one for each state if not given.
        preset: `"default"` or `"paper"`; any field of `Settings` can be given beside it.
        model: `"estimated"` while learning, or `"known"` (the general scheme, Algorithm 1, with the exact model).
        initial_cost: the first cost: one number for the box, or coordinates in the cost set.
        expert: the expert's policy, for the exact regret; found by itself for the families of `oal.tabular.mdp`.
        regret: `"exact"` (needs a `FiniteMDP` and its expert), `"none"`, or `"auto"`: exact where possible.
        decompose: also keep what `oal.tabular.regret.decompose` needs.
        keep_trajectories: keep the learner's episodes in `.trajectories` (needed for `oal.tabular.regret.estimate`).
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
        expert: ArrayLike | None = None,
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
        self.settings = settings_for(preset, **settings)
        self.model = choice("model", model, ("estimated", "known"))
        self.seed = seed
        self.episodes = 0
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
        has_expert = table is not None and (expert is not None or table.expert is not None or table.cost is not None)
        self.exact_regret = regret == "exact" or (regret == "auto" and has_expert)
        self.keep_trajectories = table is None if keep_trajectories is None else keep_trajectories
        self._regrets: list[Array] = []
        self._trajectories: list[NDArray[np.int32]] = []
        self._stream = seeding.sequence(seed, "tabular").generate_state(4, np.uint64)
        self._truth = _truth(table, env.shape)
        self._rules = self._make_rules(initial_cost)
        self._slots = _empty_slots(self._rules)
        self._weights = np.zeros(self.cost_set.phi.shape[1])
        self._prepare_slots(initial_cost)
        self._ledger = self._make_ledger(table, expert, decompose)

    # Set-up ---------------------------------------------------------------------------------------------------------

    def _make_rules(self, initial_cost: ArrayLike | None) -> kernels.Rules:
        H, S, A = self.env.shape
        box = self.cost_set.kind == "box"
        default = (
            float(np.asarray(initial_cost)) if box and initial_cost is not None and np.ndim(initial_cost) == 0 else 0.0
        )
        if not 0 <= default <= 1:
            raise InputError(f"initial_cost is {default}: costs of the box lie in [0, 1]")
        known = self.model == "known"
        stationary = known and isinstance(self.env, FiniteMDP) and self.env.stationary
        return kernels.Rules(
            n_states=S,
            n_actions=A,
            horizon=H,
            pooled=stationary if known else self.pooled,
            model_known=known,
            initial_known=known or self.settings.initial == "known",
            bonus=kernels.HOEFFDING if self.settings.bonus == "hoeffding" else kernels.BERNSTEIN,
            bonus_scale=float(self.settings.bonus_scale),
            delta=self.settings.delta / 3,
            anytime=self.settings.anytime,
            planned_episodes=1.0,
            policy_step=self.settings.policy_step_scale
            * equations.policy_step_size(self.env.shape, 1.0)
            / max(self.cost_set.width, 1e-300),
            cost_step=self.settings.cost_step_scale * self.cost_set.step_size(1.0),
            cost_set=KINDS[self.cost_set.kind],
            cost_low=self.cost_set.low,
            cost_width=self.cost_set.width,
            default_cost=default,
            features=self.cost_set.phi,
            expert_features=_demonstrated_features(self.demos, self.cost_set.phi),
        )

    def _prepare_slots(self, initial_cost: ArrayLike | None) -> None:
        """Open the slots whose start differs from the rest: the experts', known starts, given costs, a known model."""
        rules = self._rules
        if rules.model_known:
            reached = kernels.reachable(self._truth, *self.env.shape)
            rows = int(reached.sum(1).max()) if not rules.pooled else int(reached.any(0).sum())
            # A row that grows by doubling takes at most four times its successors, and two places at least.
            edges = 4 * len(self._truth.successors) + 2 * len(self._truth.indptr)
            self._reserve(rows, edges)
            kernels.install_model(self._slots, rules, self._truth, reached)
        done = 0
        while done < len(self.demos):
            self._make_room()
            done = kernels.add_demonstrations(
                self._slots, rules, self.demos.states, self.demos.actions, done, self.settings.expert_model
            )
        if rules.initial_known:
            support = np.flatnonzero(self._truth.initial)
            self._reserve(len(support) + int(self._slots.counts.max()), 0)
            for s in support:
                place = kernels.activate(self._slots, rules, 0, int(s))
                self._slots.start_weight[place] = self._truth.initial[s]
            self._slots.start_total[0] = 1.0
        if self.settings.policy_start == "bc":
            kernels.clone_experts(self._slots, rules, float(self.settings.bc_smoothing))
        if rules.cost_set != kernels.BOX:
            start = self.cost_set.start() if initial_cost is None else self.cost_set.check(initial_cost)
            self._weights = start.copy()
            kernels.set_linear_costs(self._slots, rules, self._weights)
        elif initial_cost is not None and np.ndim(initial_cost) > 0:
            cost = self.cost_set.check(np.asarray(initial_cost))
            given = np.argwhere(cost.any(-1))
            self._reserve(int(self._slots.counts.max()) + self.env.shape[1], 0)
            for h, s in given:
                place = kernels.activate(self._slots, rules, int(h), int(s))
                self._slots.cost[self._slots.base[h] + place] = cost[h, s]

    def _make_ledger(self, table: FiniteMDP | None, expert: ArrayLike | None, decompose: bool) -> kernels.Ledger:
        size = int(np.prod(self.env.shape)) if self.exact_regret else 0
        d = self.cost_set.phi.shape[1]
        truth = np.zeros(self.env.shape if self.exact_regret else (0, 0, 0))
        if self.exact_regret:
            assert table is not None
            truth = occupancy(table, expert_policy(table) if expert is None else expert)
        box = self.cost_set.kind == "box"
        return kernels.Ledger(
            exact=self.exact_regret,
            decompose=decompose,
            expert=truth.ravel(),
            demonstrated=self.demos.occupancy(self.env.shape).ravel() if size else np.zeros(0),
            occupancy_sum=np.zeros(size),
            cost_sum=np.zeros(size if box and decompose else 0),
            weight_sum=np.zeros(d),
            feature_sum=np.zeros(d),
            true_expert_features=equations.feature_expectations(truth, self.cost_set.phi) if size else np.zeros(d),
            occupancy=np.zeros(size),
            mass=np.zeros(self.env.n_states if size else 0),
            mass_after=np.zeros(self.env.n_states if size else 0),
            totals=np.zeros(2),
        )

    def _make_room(self) -> None:
        while (status := kernels.room_for_an_episode(self._slots, self._rules)) != kernels.GOES_ON:
            self._grow(status)

    def _grow(self, status: int) -> None:
        slots, rules = self._slots, self._rules
        if status == kernels.LAYER_FULL:
            room = slots.base[1:] - slots.base[:-1]
            opened = rules.horizon if rules.pooled else 1
            tight = np.minimum(slots.counts + opened, rules.n_states) > room
            more = np.minimum(2 * room + opened, rules.n_states)
            self._slots = _resize(slots, rules, np.where(tight, more, room), len(slots.edge_to))
        else:
            need = rules.horizon * 2 * max(1, int(slots.edges_used[1]))
            self._slots = _resize(slots, rules, slots.base[1:] - slots.base[:-1], 2 * len(slots.edge_to) + need)

    def _reserve(self, states_per_step: int, edges: int) -> None:
        room = self._slots.base[1:] - self._slots.base[:-1]
        self._slots = _resize(
            self._slots, self._rules, np.maximum(room, states_per_step), max(edges, len(self._slots.edge_to))
        )

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
        if not progress_bar and callback is None:
            play(episodes)
            return self
        from oal.base.console import progress

        done = 0
        block = max(1, -(-episodes // 100))
        with progress(f"{self.env.name}: episodes", episodes, enabled=progress_bar) as advance:
            while done < episodes:
                size = min(block, episodes - done)
                play(size)
                done += size
                advance(size)
                if callback is not None and callback(self) is False:
                    break
        return self

    def _play_table(self, episodes: int) -> None:
        keep = self.keep_trajectories
        regrets = np.zeros((episodes, 2))
        trajectories = np.empty((episodes if keep else 0, 2, self.env.horizon), dtype=np.int32)
        done = 0
        while done < episodes:
            self._make_room()
            played, _ = kernels.learn(
                self._slots,
                self._rules,
                self._truth,
                self._ledger,
                self._weights,
                self._stream,
                self.episodes + 1,
                regrets[done:],
                trajectories[done:] if keep else trajectories,
                keep,
            )
            done += played
            self.episodes += played
        if self.exact_regret:
            self._regrets.append(regrets)
        if keep:
            self._trajectories.append(trajectories)

    def _play_samples(self, episodes: int) -> None:
        assert isinstance(self.env, Sampler)
        probabilities = np.empty(self.env.n_actions)

        def act(h: int, s: int) -> int:
            kernels.action_probabilities(self._slots, self._rules, h, s, probabilities)
            return kernels.draw(probabilities, kernels.uniform(self._stream))

        for _ in range(episodes):
            self._make_room()
            # Only the first episode seeds the environment: Gymnasium's generator then runs on by itself.
            first = seeding.integer(self.seed, "tabular environment") if self.episodes == 0 else None
            states, actions = self.env.episode(act, seed=first)
            kernels.update_from(self._slots, self._rules, self._weights, float(self.episodes + 1), states, actions)
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
        return np.concatenate([block[:, column] for block in self._regrets]) if self._regrets else np.zeros(0)

    @property
    def trajectories(self) -> Trajectories:
        """The learner's own episodes."""
        if not self._trajectories:
            raise InputError("no episode was kept: learn first, with keep_trajectories=True")
        kept = np.concatenate(self._trajectories)
        return Trajectories(kept[:, 0].astype(np.int64), kept[:, 1].astype(np.int64))

    def _dense(self, values: Array, default: float) -> Array:
        full = np.full(self.env.shape, default)
        for h, (first, count) in enumerate(zip(self._slots.base, self._slots.counts, strict=False)):
            full[h, self._slots.state[first : first + count]] = values[first : first + count]
        return full

    @property
    def policy(self) -> Array:
        """The current policy, `[H, S, A]`."""
        return self._dense(self._slots.policy, 1.0 / self.env.n_actions)

    @property
    def average_policy(self) -> Array:
        """The policy whose occupancy is the average over the episodes, as the learner's model saw it, `[H, S, A]`."""
        total = self._slots.occupancy_sum
        mass = total.sum(-1, keepdims=True)
        shares = np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), self._slots.policy)
        return self._dense(shares, 1.0 / self.env.n_actions)

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
        kernels.action_probabilities(self._slots, self._rules, step, state, probabilities)
        if deterministic:
            return int(np.argmax(probabilities)), None
        u = (rng or np.random.default_rng()).random()
        return int(kernels.draw(probabilities, u)), None

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on, as plain arrays and JSON."""
        arrays: dict[str, Any] = {f"slots.{name}": value for name, value in self._slots._asdict().items()}
        arrays |= {
            f"ledger.{name}": value for name, value in self._ledger._asdict().items() if isinstance(value, np.ndarray)
        }
        arrays |= {
            "weights": self._weights,
            "stream": self._stream,
            "demo_states": self.demos.states,
            "demo_actions": self.demos.actions,
            "regrets": np.concatenate(self._regrets) if self._regrets else np.zeros((0, 2)),
            "trajectories": np.concatenate(self._trajectories)
            if self._trajectories
            else np.zeros((0, 2, self.env.horizon), dtype=np.int32),
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
        from oal.base import npz

        npz.write(path, arrays | {"about": npz.text(json.dumps(about))})

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: Environment | str | Any) -> "TabularOAL":
        """Read a learner written by `save`; `env` is the environment it learned in."""
        from oal.base import npz

        try:
            with open(path, "rb") as file, npz.Archive(file, str(path)) as archive:
                about = json.loads(archive.read_text("about"))
                arrays = {name: archive.read(name) for name in archive.keys if name != "about"}
            if about["what"] != KIND or about["format"] > FORMAT:
                raise InputError(
                    f"{path}: {about['what']} of format {about['format']}, but {KIND} of {FORMAT} is read here"
                )
            if not isinstance(env, (FiniteMDP, Sampler)):
                env = Sampler(env, about["shape"][0])
            if list(env.shape) != about["shape"]:
                raise InputError(f"{path}: learned in {about['env']} of shape {about['shape']}, not in {env.shape}")
            learner = cls(
                env,
                Trajectories(arrays["demo_states"], arrays["demo_actions"]),
                cost_set=about["cost_set"],
                features=None if about["cost_set"] == "box" else arrays["features"],
                preset="paper",
                model=about["model"],
                initial_cost=about["default_cost"] if about["cost_set"] == "box" else None,
                regret="exact" if about["exact_regret"] else "none",
                decompose=about["decompose"],
                keep_trajectories=about["keep_trajectories"],
                seed=about["seed"],
                **about["settings"],
            )
            slots = kernels.Slots(**{n: arrays[f"slots.{n}"].copy() for n in kernels.Slots._fields})
            _check_slots(slots, learner._slots, learner._rules)
            learner._slots = slots
            for name, fresh in learner._ledger._asdict().items():
                if isinstance(fresh, np.ndarray):
                    fresh[...] = _like(f"ledger.{name}", arrays[f"ledger.{name}"], fresh)
            learner._weights[...] = _like("weights", arrays["weights"], learner._weights)
            learner._stream[...] = _like("stream", arrays["stream"], learner._stream)
            learner._regrets = [arrays["regrets"]]
            learner._trajectories = [arrays["trajectories"]] if len(arrays["trajectories"]) else []
            learner.episodes = about["episodes"]
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a saved TabularOAL ({error})") from None
        return learner

    def __repr__(self) -> str:
        about = f"{self.cost_set.kind} costs, {len(self.demos)} demonstrations, {self.episodes} episodes"
        return f"TabularOAL({self.env.name}, {about})"


def learn_seeds(
    make: Callable[[int], TabularOAL],
    seeds: Iterable[int],
    episodes: int,
    *,
    threads: int | None = None,
    each: Callable[[TabularOAL], Any] = lambda learner: learner.regret,
    advance: Callable[[int], None] | None = None,
) -> list[Any]:
    """Run `make(seed).learn(episodes)` for each seed in parallel threads; return `each(learner)` in the seeds' order.

    The kernels hold no interpreter lock, each learner has its own random stream: threads change nothing but the time.
    """
    seeds = list(seeds)
    if not seeds:
        raise InputError("no seeds: give at least one")

    def run(seed: int) -> Any:
        result = each(make(seed).learn(episodes))
        if advance is not None:
            advance(1)
        return result

    workers = threads or os.cpu_count() or 1
    if workers == 1 or len(seeds) == 1:
        return [run(seed) for seed in seeds]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, seeds))


def behavioural_cloning(demos: Trajectories, shape: tuple[int, int, int]) -> Array:
    """Return the policy of behavioural cloning: the expert's frequencies, uniform at states it did not visit."""
    from oal.tabular.mdp import policy_of_occupancy

    return policy_of_occupancy(demos.occupancy(shape))


# Slots --------------------------------------------------------------------------------------------------------------


def _truth(table: FiniteMDP | None, shape: tuple[int, int, int]) -> kernels.Truth:
    if table is None:
        nothing, index = np.zeros(0), np.zeros(0, dtype=np.int64)
        return kernels.Truth(index, index, nothing, nothing, True, nothing, nothing)
    return kernels.Truth(
        indptr=table.indptr,
        successors=table.successors,
        probabilities=table.probabilities,
        cumulative=table.cumulative,
        stationary=table.stationary,
        initial=table.initial,
        initial_cumulative=np.cumsum(table.initial),
    )


def _demonstrated_features(demos: Trajectories, phi: Array) -> Array:
    return phi[demos.states].sum((0, 1)) / len(demos) if phi.shape[1] else np.zeros(0)


FIRST_ROOM = 4
SMALL_TABLE = 1 << 16


def _empty_slots(rules: kernels.Rules) -> kernels.Slots:
    H, A = rules.horizon, rules.n_actions
    room = np.full(H, min(FIRST_ROOM, rules.n_states), dtype=np.int64)
    base = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
    total, rows = int(base[-1]), int(base[1] if rules.pooled else base[-1])
    keys, values, hashing = _place_table(rules, total)
    zeros = lambda *shape: np.zeros(shape)  # noqa: E731
    whole = lambda *shape: np.zeros(shape, dtype=np.int64)  # noqa: E731
    return kernels.Slots(
        base=base,
        counts=whole(H),
        place_keys=keys,
        place_values=values,
        hashing=hashing,
        state=whole(total),
        logits=zeros(total, A),
        policy=zeros(total, A),
        cost=zeros(total, A),
        expert=zeros(total, A),
        occupancy=zeros(total, A),
        occupancy_sum=zeros(total, A),
        Q=zeros(total, A),
        V=zeros(total),
        mass=zeros(total),
        visits=zeros(rows, A),
        inverse=zeros(rows, A),
        root=np.ones((rows, A)),
        edge_start=whole(rows, A),
        edge_count=whole(rows, A),
        edge_capacity=whole(rows, A),
        edge_to=whole(8 * H),
        edge_weight=zeros(8 * H),
        edges_used=whole(2),
        start_weight=zeros(int(base[1])),
        start_total=zeros(1),
    )


def _place_table(rules: kernels.Rules, slots: int) -> tuple[Any, Any, Any]:
    """Make an empty table from (h, s) to places: direct for small MDPs, hashed (half full at most) for large ones."""
    pairs = rules.horizon * rules.n_states
    bits = max(1, (min(pairs, SMALL_TABLE) - 1).bit_length() if pairs <= SMALL_TABLE else (2 * slots).bit_length())
    hashing = np.array([1, 0] if pairs <= SMALL_TABLE else [0x9E3779B97F4A7C15, 64 - bits], dtype=np.uint64)
    return np.full(1 << bits, -1, dtype=np.int64), np.zeros(1 << bits, dtype=np.int64), hashing


def _resize(slots: kernels.Slots, rules: kernels.Rules, room: NDArray[np.int64], edges: int) -> kernels.Slots:
    """Lay the slots out again with `room[h]` places in layer h and `edges` edges; places in the layers stay."""
    base = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
    total, rows = int(base[-1]), int(base[1] if rules.pooled else base[-1])
    moved: dict[str, Any] = {"base": base}
    row_fields = ("visits", "inverse", "root", "edge_start", "edge_count", "edge_capacity")
    for name in (
        "state",
        "logits",
        "policy",
        "cost",
        "expert",
        "occupancy",
        "occupancy_sum",
        "Q",
        "V",
        "mass",
        *row_fields,
    ):
        old = getattr(slots, name)
        pooled_rows = name in row_fields and rules.pooled
        fill = np.ones if name == "root" else np.zeros
        new = fill((rows if name in row_fields else total, *old.shape[1:]), dtype=old.dtype)
        for h in range(1 if pooled_rows else rules.horizon):
            count = slots.counts[h]
            new[base[h] : base[h] + count] = old[slots.base[h] : slots.base[h] + count]
        moved[name] = new
    used = int(slots.edges_used[0])
    for name in ("edge_to", "edge_weight"):
        moved[name] = np.zeros(edges, dtype=getattr(slots, name).dtype)
        moved[name][:used] = getattr(slots, name)[:used]
    moved["start_weight"] = np.zeros(int(base[1]))
    moved["start_weight"][: slots.counts[0]] = slots.start_weight[: slots.counts[0]]
    if 2 * total > len(slots.place_keys) and slots.hashing[1] != 0:
        keys, values, hashing = _place_table(rules, total)
        kernels.copy_places(slots.place_keys, slots.place_values, keys, values, hashing)
        moved |= {"place_keys": keys, "place_values": values, "hashing": hashing}
    return slots._replace(**moved)


def _like(name: str, given: Any, fresh: Any) -> Any:
    if given.shape != fresh.shape or given.dtype != fresh.dtype:
        raise ValueError(f"{name} is {given.dtype}{given.shape}, not {fresh.dtype}{fresh.shape}")
    return given


def _check_slots(slots: kernels.Slots, fresh: kernels.Slots, rules: kernels.Rules) -> None:
    """Refuse slots read from a file that the compiled code, which checks no bounds, would stumble over."""
    for name in kernels.Slots._fields:
        given, like = getattr(slots, name), getattr(fresh, name)
        if given.dtype != like.dtype or given.shape[1:] != like.shape[1:] or not given.flags.c_contiguous:
            raise ValueError(f"slots.{name} is {given.dtype}{given.shape}")
    H = rules.horizon
    total, rows = int(slots.base[-1]), int(slots.base[1 if rules.pooled else -1])
    of_slots = (slots.state, slots.logits, slots.policy, slots.cost, slots.expert, slots.occupancy)
    of_slots += (slots.occupancy_sum, slots.Q, slots.V, slots.mass)
    of_rows = (slots.visits, slots.inverse, slots.root, slots.edge_start, slots.edge_count, slots.edge_capacity)
    edges = len(slots.edge_to)
    places = len(slots.place_keys)
    last_edge = slots.edge_start + slots.edge_capacity
    sound = (
        len(slots.base) == H + 1
        and len(slots.counts) == H
        and slots.base[0] == 0
        and all(0 <= count <= room for count, room in zip(slots.counts, np.diff(slots.base), strict=True))
        and all(len(array) == total for array in of_slots)
        and all(len(array) == rows for array in of_rows)
        and len(slots.start_weight) == slots.base[1]
        and len(slots.edge_weight) == edges
        and 0 <= slots.edges_used[0] <= edges
        and all(array.min(initial=0) >= 0 for array in (slots.edge_start, slots.edge_count, slots.state, slots.edge_to))
        and last_edge.max(initial=0) <= slots.edges_used[0]
        and (slots.edge_count <= slots.edge_capacity).all()
        and slots.state.max(initial=0) < rules.n_states
        and slots.edge_to.max(initial=0) < slots.counts.max(initial=1)
        and places == len(slots.place_values)
        and places & (places - 1) == 0
        and (slots.hashing[1] == 0 or (slots.place_keys < 0).any())
        and slots.place_values.min() >= 0
        and slots.place_values.max() <= slots.counts.max()
        and slots.hashing[1] < 64
    )
    if not sound:
        raise ValueError("its tables of visited states contradict each other")
