"""The apprenticeship-learning game in an MDP: mixed policies, certified solutions, and models estimated from episodes.

The gap of an occupancy d is the worst difference of values over the cost set, `max_c <c, d> - <c, d^E>`. Any member c
of the set bounds the game's value from below by `min_pi <c, d^pi> - <c, d^E>`, and every MDP solved gives such a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.equations import Array
from oal.errors import InputError, at_least, choice
from oal.tabular import passes
from oal.tabular.costsets import CostSet
from oal.tabular.mdp import FiniteMDP, Trajectories, occupancy, policy_of_occupancy, sample
from oal.tabular.sampler import Environment
from oal.tabular.transition_aware import EXPERT_ESTIMATES, transition_aware

Actions = NDArray[Any]
Expert = Trajectories | ArrayLike
"""The experts' trajectories, whose occupancy is counted, or an occupancy `[H, S, A]`."""


# Policies and results -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixedPolicy:
    """A distribution over deterministic policies: one is drawn at the start of an episode and followed to its end.

    Paper: Section 2. `actions[i, h, s]` is the action of component i, `weights[i]` its probability.
    """

    weights: Array
    actions: Actions
    n_actions: int

    def __post_init__(self) -> None:
        weights, actions = np.asarray(self.weights, dtype=np.float64), np.asarray(self.actions)
        if actions.ndim != 3 or weights.shape != actions.shape[:1] or actions.size == 0:
            raise InputError(
                f"a mixed policy of weights {weights.shape} and actions {actions.shape}: give [n] and [n, H, S]"
            )
        if not np.issubdtype(actions.dtype, np.integer) or actions.min() < 0 or actions.max() >= self.n_actions:
            raise InputError(f"actions of a mixed policy must be whole numbers in 0..{self.n_actions - 1}")
        if not np.all(weights >= 0) or abs(weights.sum() - 1) > 1e-8:
            raise InputError(f"weights of a mixed policy must be a distribution: they sum to {weights.sum():.10g}")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "actions", actions)

    def __len__(self) -> int:
        return len(self.weights)

    def component(self, i: int) -> Array:
        """Return the i-th deterministic policy as `[H, S, A]`."""
        return _one_hot(self.actions[i], self.n_actions)

    def draw(self, rng: np.random.Generator) -> Actions:
        """Draw the policy of an episode: its actions `[H, S]`."""
        return self.actions[rng.choice(len(self), p=self.weights / self.weights.sum())]

    def occupancy(self, mdp: FiniteMDP) -> Array:
        """Return the occupancy in an MDP, the components' weighted average."""
        self._check(mdp.shape, mdp.name)
        total = np.zeros(mdp.shape)
        for i, weight in enumerate(self.weights):
            total += weight * passes.occupancy(mdp.transitions, self.component(i))
        return total

    def markov(self, mdp: FiniteMDP) -> Array:
        """Return the Markov policy `[H, S, A]` with the same occupancy in this MDP, uniform where it never is."""
        return policy_of_occupancy(self.occupancy(mdp))

    def sample(self, env: Environment, episodes: int, *, rng: np.random.Generator) -> Trajectories:
        """Execute the mixed policy: for each episode draw a component and follow it."""
        at_least("number of episodes", episodes, 1)
        self._check(env.shape, env.name)
        drawn = rng.choice(len(self), size=episodes, p=self.weights / self.weights.sum())
        states = np.empty((episodes, env.horizon), dtype=np.int64)
        actions = np.empty_like(states)
        for i in np.unique(drawn):
            which = np.flatnonzero(drawn == i)
            if isinstance(env, FiniteMDP):
                played = sample(env, self.component(i), len(which), rng=rng)
                states[which], actions[which] = played.states, played.actions
                continue
            table = self.actions[i]
            for episode in which:
                seed = int(rng.integers(2**31))
                states[episode], actions[episode] = env.episode(lambda h, s, table=table: int(table[h, s]), seed=seed)
        return Trajectories(states, actions)

    def _check(self, shape: tuple[int, int, int], name: str) -> None:
        own = (*self.actions.shape[1:], self.n_actions)
        if own != shape:
            raise InputError(f"the mixed policy is one of an MDP of shape {own}, but {name} has the shape {shape}")

    def __repr__(self) -> str:
        return f"MixedPolicy({len(self)} deterministic policies, largest weight {self.weights.max():.3g})"


@dataclass(frozen=True, eq=False)
class Solution:
    """What an algorithm found, and what it took."""

    algorithm: str
    policy: Array | MixedPolicy
    """A Markov policy `[H, S, A]`, or a mixed policy."""
    gap: float
    """Worst difference of values to the (true) expert over the cost set, in the true MDP when it was given."""
    upper: float
    """The policy's gap in the MDP planned in, against the expert given: what the algorithm makes small."""
    lower: float
    """A proven lower bound of the best `upper` that any policy has: `upper - lower` certifies the solution."""
    mdps_solved: int
    """One in each iteration; none for cloning, and one for a linear program, to prove its bound."""
    history: Array
    """`upper` after each iteration; one entry for an algorithm without iterations."""

    @property
    def iterations(self) -> int:
        return self.mdps_solved

    def occupancy(self, mdp: FiniteMDP) -> Array:
        """Return the policy's occupancy in an MDP."""
        return _occupancy_of(self.policy, mdp)

    def markov(self, mdp: FiniteMDP) -> Array:
        """Return the policy, or the Markov policy that has the mixed policy's occupancy in this MDP, `[H, S, A]`."""
        return self.policy.markov(mdp) if isinstance(self.policy, MixedPolicy) else self.policy

    def sample(self, mdp: FiniteMDP, episodes: int, *, rng: np.random.Generator) -> Trajectories:
        """Execute the policy for a number of episodes."""
        if isinstance(self.policy, MixedPolicy):
            return self.policy.sample(mdp, episodes, rng=rng)
        return sample(mdp, self.policy, episodes, rng=rng)

    def __repr__(self) -> str:
        return (
            f"Solution({self.algorithm}: gap {self.gap:.4g}, value in [{self.lower:.4g}, {self.upper:.4g}], "
            f"{self.mdps_solved} MDPs solved)"
        )


# Estimated models ---------------------------------------------------------------------------------------------------


def empirical_mdp(
    trajectories: Trajectories | Sequence[Trajectories],
    like: Environment | tuple[int, int, int],
    *,
    unseen: str = "sink",
    pooled: bool = False,
    initial: str = "estimated",
) -> FiniteMDP:
    """Estimate an MDP by counting transitions, `p_hat_h(s' | s, a) = n_h(s, a, s') / n_h(s, a)`.

    Args:
        trajectories: episodes of any policies; several sets are counted together.
        like: what they were recorded in; of a `FiniteMDP`, only its shape is read (and `initial`, if known).
        unseen: what a row `(h, s, a)` never seen does. `"sink"`: it leads to an absorbing state that is added as the
            last one and that costs charge for (see below), so that planning keeps to what was seen. `"stay"`: it stays
            in s, and the states remain those of `like`; planning may then exploit rows that nobody has tried.
        pooled: one estimate for all steps, right when the dynamics do not depend on the step.
        initial: the initial distribution, `"estimated"` from the first states or `"known"` (needs a `FiniteMDP`).

    An MDP with a sink has one state more than `like`. A `Game` takes it together with the cost set and the expert of
    `like`: the box then also holds costs of the sink, and linear costs get one feature more, which is one in the sink
    and zero elsewhere. Policies of its solutions are again policies of `like`.
    """
    choice("unseen", unseen, ("sink", "stay"))
    choice("initial", initial, ("estimated", "known"))
    H, S, A = shape = like if isinstance(like, tuple) else like.shape
    name = "the MDP" if isinstance(like, tuple) else like.name
    sets = [trajectories] if isinstance(trajectories, Trajectories) else list(trajectories)
    if not sets:
        raise InputError("no trajectories to estimate an MDP from: give at least one set")
    for episodes in sets:
        episodes.check(shape, of=name)
    states = np.concatenate([episodes.states for episodes in sets])
    actions = np.concatenate([episodes.actions for episodes in sets])
    total, layers = (S + 1 if unseen == "sink" else S), (1 if pooled else H)
    layer = np.zeros(H - 1, dtype=np.int64) if pooled else np.arange(H - 1)
    row = (layer * total + states[:, :-1]) * A + actions[:, :-1]
    edges, counts = np.unique(row * total + states[:, 1:], return_counts=True)
    visits = np.bincount(edges // total, weights=counts, minlength=layers * total * A)
    probabilities = counts / visits[edges // total]
    never = np.flatnonzero(visits == 0)
    default = np.full(len(never), S) if unseen == "sink" else never // A % total
    start = np.zeros(total)
    if initial == "known":
        if not isinstance(like, FiniteMDP):
            raise InputError(f"the initial distribution of {name} is not known: use initial='estimated'")
        start[:S] = like.initial
    else:
        start[:S] = np.bincount(states[:, 0], minlength=S) / len(states)
    return FiniteMDP.sparse(
        (H, total, A),
        np.concatenate([edges // total, never]),
        np.concatenate([edges % total, default]),
        np.concatenate([probabilities, np.ones(len(never))]),
        start,
        stationary=pooled,
        name=f"{name} estimated from {len(states)} episodes",
    )


# The game -----------------------------------------------------------------------------------------------------------


class Game:
    """The game `min_pi max_c <c, d^pi> - <c, d^E>` in an MDP, read in the cost set's coordinates.

    Args:
        mdp: what is planned in: the true MDP, or one estimated by `empirical_mdp`.
        expert: whom to match: trajectories, or an occupancy `[H, S, A]`.
        cost_set: its name, or a `CostSet` of the true MDP's shape.
        truth: the true MDP, to measure gaps in; `mdp` if not given.
        true_expert: whom gaps in the truth are measured against; `expert` if not given.
        expert_estimate: how trajectories become an occupancy: `"empirical"` (counted) or `"transition-aware"`, with the
            transitions of `mdp`.
    """

    def __init__(
        self,
        mdp: FiniteMDP,
        expert: Expert,
        cost_set: str | CostSet = "box",
        *,
        truth: FiniteMDP | None = None,
        true_expert: Expert | None = None,
        expert_estimate: str = "empirical",
    ) -> None:
        if not isinstance(mdp, FiniteMDP):
            raise InputError(f"a game plans in a FiniteMDP, not in {type(mdp).__name__}: estimate one (empirical_mdp)")
        given = CostSet(cost_set, (truth or mdp).shape) if isinstance(cost_set, str) else cost_set
        H, S, A = given.shape
        for one, shapes in ((mdp, (given.shape, (H, S + 1, A))), (truth, (given.shape,))):
            if one is not None and one.shape not in shapes:
                raise InputError(
                    f"the cost set is one of the shape {given.shape}, but {one.name} has the shape {one.shape}"
                )
        self.mdp, self.true_cost_set, self.truth = mdp, given, truth
        self.has_sink = mdp.shape != given.shape
        self.cost_set = _with_sink(given) if self.has_sink else given
        if choice("expert_estimate", expert_estimate, EXPERT_ESTIMATES) == "transition-aware":
            if not isinstance(expert, Trajectories):
                raise InputError("the transition-aware estimate needs trajectories, not an occupancy: leave it out")
            expert = transition_aware(expert, mdp, given.shape)
        else:
            expert = _expert_occupancy(expert, given.shape)
        self.expert = np.pad(expert, ((0, 0), (0, 1), (0, 0))) if self.has_sink else expert
        """The expert's occupancy in the MDP planned in: never in the sink."""
        self.target = self.cost_set.coordinates(self.expert)
        self.true_expert = expert if true_expert is None else _expert_occupancy(true_expert, given.shape)

    @property
    def floor(self) -> float:
        """The bound on the game's value that needs no MDP: zero where the zero cost belongs to the set."""
        return -np.inf if self.cost_set.kind == "simplex" else 0.0

    def require(self, kind: str, algorithm: str) -> None:
        """Refuse a cost set that an algorithm is not for."""
        if self.true_cost_set.kind != kind:
            raise InputError(
                f"{algorithm} is for the cost set {kind}, not for {self.true_cost_set.kind}: give the game "
                f"CostSet('{kind}', ...), or use solve_lp or no_regret_costs, which take every cost set"
            )

    def best_response(self, x: Array) -> tuple[Actions, Array, float]:
        """Solve the MDP with cost x; return an optimal policy's actions and coordinates, and `min_d <x, d - d^E>`."""
        mdp = self.mdp
        policy, V = passes.optimal(mdp.transitions, np.ascontiguousarray(self.cost_set.cost(x)))
        bound = float(mdp.initial @ V[0]) - float((x * self.target).sum())
        d = passes.occupancy(mdp.transitions, policy)
        return _compact(policy.argmax(-1), mdp.n_actions), self.cost_set.coordinates(d), bound

    def coordinates(self, actions: Actions) -> Array:
        """Read a deterministic policy's occupancy in the cost set's coordinates."""
        d = passes.occupancy(self.mdp.transitions, _one_hot(actions, self.mdp.n_actions))
        return self.cost_set.coordinates(d)

    def gap(self, coordinates: Array) -> float:
        """Return the worst difference to the expert in the MDP planned in."""
        return self.cost_set.support(coordinates - self.target)

    def start(self, actions: ArrayLike | None) -> Actions:
        """Return the policy to start from: the one given (`[H, S]` or `[S]`), or the first action everywhere."""
        H, S, A = self.true_cost_set.shape
        table = np.zeros((H, S), dtype=np.int64) if actions is None else np.asarray(actions)
        if table.shape not in ((H, S), (S,)) or not np.issubdtype(table.dtype, np.integer):
            raise InputError(f"start is {table.dtype} of the shape {table.shape}: give the actions [H, S] = {(H, S)}")
        if table.min() < 0 or table.max() >= A:
            raise InputError(f"start holds an action outside of 0..{A - 1}")
        table = np.broadcast_to(table, (H, S))
        return _compact(np.pad(table, ((0, 0), (0, 1))) if self.has_sink else table, A)

    def mixed(self, weights: Sequence[float] | Array, actions: Sequence[Actions]) -> MixedPolicy:
        """Return the mixture of deterministic policies in proportion to weights."""
        weights = np.asarray(weights, dtype=np.float64)
        return MixedPolicy(weights / weights.sum(), np.stack(actions), self.mdp.n_actions)

    def solution(
        self,
        algorithm: str,
        policy: Array | MixedPolicy,
        lower: float,
        mdps_solved: int,
        history: Sequence[float] | None = None,
    ) -> Solution:
        """Measure a policy of the model, and return it as a policy of the MDP the expert is one of."""
        d = _occupancy_of(policy, self.mdp)
        upper = self.gap(self.cost_set.coordinates(d))
        S = self.true_cost_set.shape[1]
        if isinstance(policy, MixedPolicy):
            policy = MixedPolicy(policy.weights, policy.actions[:, :, :S], policy.n_actions)
        else:
            policy = policy[:, :S]
        # In a model with a sink and without the truth, the only gap there is to measure is the model's own.
        gap = upper
        if self.truth is not None or not self.has_sink:
            executed = d if self.truth is None else _occupancy_of(policy, self.truth)
            gap = self.true_cost_set.support(self.true_cost_set.coordinates(executed - self.true_expert))
        return Solution(
            algorithm=algorithm,
            policy=policy,
            gap=gap,
            upper=upper,
            lower=lower,
            mdps_solved=mdps_solved,
            history=np.asarray([upper] if history is None else history),
        )


def _with_sink(cost_set: CostSet) -> CostSet:
    H, S, A = cost_set.shape
    if cost_set.kind == "box":
        return CostSet("box", (H, S + 1, A))
    features = np.pad(cost_set.phi, ((0, 1), (0, 1)))
    features[-1, -1] = 1.0
    return CostSet(cost_set.kind, (H, S + 1, A), features)


def _expert_occupancy(expert: Expert, shape: tuple[int, int, int]) -> Array:
    if isinstance(expert, Trajectories):
        return expert.occupancy(shape)
    d = np.asarray(expert, dtype=np.float64)
    if d.shape != shape:
        raise InputError(f"the expert's occupancy has the shape {d.shape}: it must be [H, S, A] = {shape}")
    mass = d.sum((1, 2))
    if not np.all(np.isfinite(d)) or d.min() < 0 or np.abs(mass - 1).max() > 1e-6:
        step = int(np.argmax(np.nan_to_num(np.abs(mass - 1), nan=np.inf)))
        raise InputError(
            f"the expert's occupancy at step {step} sums to {mass[step]:.6g} (least entry {d.min():.6g}): it must be a "
            "distribution over (s, a) at each step; from a policy, make it with oal.mdp.occupancy(mdp, policy)"
        )
    return d


def _one_hot(actions: Actions, n_actions: int) -> Array:
    return (actions[..., None] == np.arange(n_actions)).astype(np.float64)


def _compact(actions: Actions, n_actions: int) -> Actions:
    return actions.astype(np.min_scalar_type(n_actions - 1))


def _occupancy_of(policy: Array | MixedPolicy, mdp: FiniteMDP) -> Array:
    return policy.occupancy(mdp) if isinstance(policy, MixedPolicy) else occupancy(mdp, policy)
