"""The algorithms the paper stands on, which solve MDPs where online apprenticeship learning solves none.

Behavioural cloning, the projection algorithm (Abbeel & Ng 2004), multiplicative weights (MWAL, Syed & Schapire 2008),
Frank-Wolfe with and without away steps (Zahavy et al. 2020), and the exact value of the apprenticeship-learning game by
linear programming. Each plans in a `FiniteMDP`, the true one or one estimated by `empirical_mdp`, and returns a
`Solution` with its policy, the policy's gap, bounds on the game's value and the number of MDPs it solved.

The gap of an occupancy d is the worst difference of values over the cost set, `max_c <c, d> - <c, d^E>`. Any member c
of the set bounds the game's value from below by `min_pi <c, d^pi> - <c, d^E>`, and every MDP solved gives such a bound:
the iterative algorithms stop when their gap is certified to be within `tolerance` of the best possible.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal import kernels, seeding
from oal.costsets import CostSet
from oal.errors import InputError, at_least, choice
from oal.mdp import FiniteMDP, Trajectories, expert_policy, occupancy, policy_of_occupancy, sample, uniform_policy
from oal.tabular import Sampler, TabularOAL, behavioural_cloning

Array = NDArray[np.float64]
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
            total += weight * _occupancy(mdp, self.component(i))
        return total

    def markov(self, mdp: FiniteMDP) -> Array:
        """Return the Markov policy `[H, S, A]` with the same occupancy in this MDP, uniform where it never is."""
        return policy_of_occupancy(self.occupancy(mdp))

    def sample(self, env: FiniteMDP | Sampler, episodes: int, *, rng: np.random.Generator) -> Trajectories:
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
    iterations: int
    """Iterations done; for `solve_lp`, linear programs (box, simplex) or major cycles (l2)."""
    history: Array
    """`upper` after each iteration; one entry for an algorithm without iterations."""

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
    like: FiniteMDP | Sampler | tuple[int, int, int],
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

    An MDP with a sink has one state more than `like`. The algorithms of this module take it together with the cost set
    and the expert of `like`: the box then also holds costs of the sink, and linear costs get one feature more, which is
    one in the sink and zero elsewhere. Their policies are again policies of `like`.
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
    edges = np.concatenate([edges, never * total + default])
    order = np.argsort(edges)
    rows = edges[order] // total
    start = np.zeros(total)
    if initial == "known":
        if not isinstance(like, FiniteMDP):
            raise InputError(f"the initial distribution of {name} is not known: use initial='estimated'")
        start[:S] = like.initial
    else:
        start[:S] = np.bincount(states[:, 0], minlength=S) / len(states)
    return FiniteMDP(
        horizon=H,
        n_states=total,
        n_actions=A,
        initial=start,
        indptr=np.searchsorted(rows, np.arange(layers * total * A + 1)).astype(np.int64),
        successors=edges[order] % total,
        probabilities=np.concatenate([probabilities, np.ones(len(never))])[order],
        stationary=pooled,
        name=f"{name} estimated from {len(states)} episodes",
    )


# The game -----------------------------------------------------------------------------------------------------------


class _Game:
    """The game `min_pi max_c <c, d^pi> - <c, d^E>` in an MDP, in the cost set's coordinates; counts MDPs solved."""

    def __init__(
        self,
        algorithm: str,
        mdp: FiniteMDP,
        expert: Expert,
        cost_set: str | CostSet,
        truth: FiniteMDP | None,
        true_expert: Expert | None,
        *,
        kinds: Sequence[str] = ("box", "l2", "simplex"),
    ) -> None:
        if not isinstance(mdp, FiniteMDP):
            raise InputError(
                f"{algorithm} plans in a FiniteMDP, not in {type(mdp).__name__}: estimate one (empirical_mdp)"
            )
        given = CostSet(cost_set, (truth or mdp).shape) if isinstance(cost_set, str) else cost_set
        if given.kind not in kinds:
            raise InputError(
                f"{algorithm} is for the cost set {' or '.join(kinds)}, not for {given.kind}: give it "
                f"CostSet('{kinds[0]}', ...), or use solve_lp or no_regret_costs, which take every cost set"
            )
        H, S, A = given.shape
        if mdp.shape not in (given.shape, (H, S + 1, A)):
            raise InputError(
                f"the cost set is one of the shape {given.shape}, but {mdp.name} has the shape {mdp.shape}"
            )
        if truth is not None and truth.shape != given.shape:
            raise InputError(
                f"the cost set is one of the shape {given.shape}, but {truth.name} has the shape {truth.shape}"
            )
        self.algorithm, self.mdp, self.given, self.truth = algorithm, mdp, given, truth
        self.has_sink = mdp.shape != given.shape
        self.cost_set = _with_sink(given) if self.has_sink else given
        self.expert = _expert_occupancy(expert, given.shape)
        d = np.pad(self.expert, ((0, 0), (0, 1), (0, 0))) if self.has_sink else self.expert
        self.expert_in_model = d
        self.target = self.cost_set.coordinates(d)
        self.true_expert = self.expert if true_expert is None else _expert_occupancy(true_expert, given.shape)
        self.solved = 0

    @property
    def floor(self) -> float:
        """The bound on the game's value that needs no MDP: zero where the zero cost belongs to the set."""
        return -np.inf if self.cost_set.kind == "simplex" else 0.0

    def best_response(self, x: Array) -> tuple[Actions, Array, float]:
        """Solve the MDP with cost x; return an optimal policy's actions and coordinates, and `min_d <x, d - d^E>`."""
        self.solved += 1
        mdp = self.mdp
        cost = np.ascontiguousarray(self.cost_set.cost(x))
        policy, V = kernels.optimal(mdp.indptr, mdp.successors, mdp.probabilities, mdp.stationary, cost)
        bound = float(mdp.initial @ V[0]) - float((x * self.target).sum())
        return _compact(policy.argmax(-1), mdp.n_actions), self.cost_set.coordinates(_occupancy(mdp, policy)), bound

    def coordinates(self, actions: Actions) -> Array:
        return self.cost_set.coordinates(_occupancy(self.mdp, _one_hot(actions, self.mdp.n_actions)))

    def start(self, actions: ArrayLike | None) -> Actions:
        """Return the policy to start from: the one given (`[H, S]` or `[S]`), or the first action everywhere."""
        H, S, A = self.given.shape
        table = np.zeros((H, S), dtype=np.int64) if actions is None else np.asarray(actions)
        if table.shape not in ((H, S), (S,)) or not np.issubdtype(table.dtype, np.integer):
            raise InputError(f"start is {table.dtype} of the shape {table.shape}: give the actions [H, S] = {(H, S)}")
        if table.min() < 0 or table.max() >= A:
            raise InputError(f"start holds an action outside of 0..{A - 1}")
        table = np.broadcast_to(table, (H, S))
        return _compact(np.pad(table, ((0, 0), (0, 1))) if self.has_sink else table, A)

    def mixed(self, weights: Sequence[float] | Array, actions: Sequence[Actions]) -> MixedPolicy:
        weights = np.asarray(weights, dtype=np.float64)
        return MixedPolicy(weights / weights.sum(), np.stack(actions), self.mdp.n_actions)

    def solution(
        self, policy: Array | MixedPolicy, lower: float, iterations: int, history: Sequence[float] | None = None
    ) -> Solution:
        """Measure a policy of the model, and return it as a policy of the MDP the expert is one of."""
        d = _occupancy_of(policy, self.mdp)
        upper = self.cost_set.support(self.cost_set.coordinates(d) - self.target)
        S = self.given.shape[1]
        if isinstance(policy, MixedPolicy):
            policy = MixedPolicy(policy.weights, policy.actions[:, :, :S], policy.n_actions)
        else:
            policy = policy[:, :S]
        # In a model with a sink and without the truth, the only gap there is to measure is the model's own.
        gap = upper
        if self.truth is not None or not self.has_sink:
            executed = d if self.truth is None else _occupancy_of(policy, self.truth)
            gap = self.given.support(self.given.coordinates(executed - self.true_expert))
        return Solution(
            algorithm=self.algorithm,
            policy=policy,
            gap=gap,
            upper=upper,
            lower=lower,
            mdps_solved=self.solved,
            iterations=iterations,
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


def _occupancy(mdp: FiniteMDP, policy: Array) -> Array:
    """`oal.mdp.occupancy` for a policy known to be one."""
    return kernels.occupancy(mdp.indptr, mdp.successors, mdp.probabilities, mdp.stationary, mdp.initial, policy)


def _occupancy_of(policy: Array | MixedPolicy, mdp: FiniteMDP) -> Array:
    return policy.occupancy(mdp) if isinstance(policy, MixedPolicy) else occupancy(mdp, policy)


def _check_run(iterations: int, tolerance: float) -> None:
    at_least("number of iterations", iterations, 1)
    at_least("tolerance", tolerance, 0.0)


# The algorithms -----------------------------------------------------------------------------------------------------


def cloning(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "box",
    *,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Clone the expert's behaviour: its frequencies of actions, uniform where it never was. Solves no MDP."""
    game = _Game("behavioural cloning", mdp, expert, cost_set, truth, true_expert)
    if isinstance(expert, Trajectories) and not game.has_sink:
        policy = behavioural_cloning(expert, mdp.shape)
    else:
        policy = policy_of_occupancy(game.expert_in_model)
    return game.solution(policy, game.floor, 0)


def projection(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "l2",
    *,
    iterations: int = 1000,
    tolerance: float = 1e-6,
    start: ArrayLike | None = None,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Match feature expectations by the projection algorithm of Abbeel & Ng (2004), costs in the L2 ball.

    From a mixture with feature expectations Phi_bar: solve the MDP with weights `w = Phi_bar - Phi^E`, then move to the
    point nearest to Phi^E between Phi_bar and the solution's feature expectations. The nearest point of their line lies
    between them whenever Phi^E is that of some policy; with an expert estimated from few episodes it may not, so the
    step is cut at one. Stops when the gap is certified to within `tolerance`.

    Paper: Section 2.2, FEM and the projection algorithm.
    """
    _check_run(iterations, tolerance)
    game = _Game("projection", mdp, expert, cost_set, truth, true_expert, kinds=("l2",))
    mixture = _Mixture(game, game.start(start))
    lower, history = game.floor, []
    while len(history) < iterations and mixture.gap - lower > tolerance:
        w = mixture.point - game.target
        actions, vertex, bound = game.best_response(w)
        lower = max(lower, bound / mixture.gap)
        mixture.move_towards(actions, vertex, _nearest_share(w, vertex - mixture.point, 1.0))
        history.append(mixture.gap)
    return game.solution(mixture.policy(), lower, len(history), history)


def frank_wolfe(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "l2",
    *,
    away_steps: bool = True,
    iterations: int = 1000,
    tolerance: float = 1e-6,
    start: ArrayLike | None = None,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Match feature expectations by Frank-Wolfe on `||Phi - Phi^E||^2 / 2` with exact line search (Zahavy et al. 2020).

    Without away steps these are the projection algorithm's iterates, which slow down when the nearest point lies on the
    boundary of what policies can reach. With them (ASFW) an iteration may take weight from the worst component instead
    of adding to the best response, and the distance falls at a linear rate.
    """
    _check_run(iterations, tolerance)
    name = "Frank-Wolfe with away steps" if away_steps else "Frank-Wolfe"
    game = _Game(name, mdp, expert, cost_set, truth, true_expert, kinds=("l2",))
    mixture = _Mixture(game, game.start(start))
    lower, history = game.floor, []
    while len(history) < iterations and mixture.gap - lower > tolerance:
        gradient = mixture.point - game.target
        actions, vertex, bound = game.best_response(gradient)
        lower = max(lower, bound / mixture.gap)
        worst = mixture.worst(gradient)
        away = mixture.point - mixture.vertices[worst]
        if away_steps and gradient @ away < gradient @ (vertex - mixture.point):
            weight = mixture.weights[worst]
            largest = weight / (1 - weight) if weight < 1 else np.inf
            mixture.move_away(worst, _nearest_share(gradient, away, largest), largest)
        else:
            mixture.move_towards(actions, vertex, _nearest_share(gradient, vertex - mixture.point, 1.0))
        history.append(mixture.gap)
    return game.solution(mixture.policy(), lower, len(history), history)


def mwal(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "simplex",
    *,
    iterations: int = 1000,
    tolerance: float = 0.0,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Play multiplicative weights against best responses (MWAL, Syed & Schapire 2008), costs in the simplex.

    The weights of T iterations are `w_i <- w_i beta^(G_i)`, normalised, `beta = 1 / (1 + sqrt(2 log(d) / T))`, with the
    game's entry in [0, 1], `G = (2 - (Phi - Phi^E) / H) / 4`: features in [-1, 1] sum to at most H over an episode, so
    differences divided by H lie in [-2, 2]. Shift and scale only set the step: it is `log(1 / beta) / (4 H)` in the
    simplex's own mirror step. The mixture of all best responses, 1/T each, has a gap of at most the game's value plus
    `4 H (sqrt(2 log(d) / T) + log(d) / T)`.

    Paper: Section 2.2, MWAL.
    """
    _check_run(iterations, tolerance)
    game = _Game("MWAL", mdp, expert, cost_set, truth, true_expert, kinds=("simplex",))
    step = mwal_step_size(game.cost_set.dimension, mdp.horizon, iterations)
    return _play_best_responses(game, step, iterations, tolerance)


def no_regret_costs(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "box",
    *,
    iterations: int = 1000,
    tolerance: float = 0.0,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Play the cost set's mirror ascent against best responses: MWAL's scheme for any cost set, the box included.

    The step is that of the cost player's regret bound for T iterations; for the box the mixture's gap is at most the
    game's value plus `H sqrt(2 S A / T)`.

    Paper: Section 2.2, algorithms based on online convex optimization.
    """
    _check_run(iterations, tolerance)
    game = _Game("no-regret costs", mdp, expert, cost_set, truth, true_expert)
    return _play_best_responses(game, game.cost_set.step_size(iterations), iterations, tolerance)


def mwal_step_size(dimension: int, horizon: int, iterations: int) -> float:
    """Compute `log(1 / beta) / (4 H)`, `beta = 1 / (1 + sqrt(2 log(d) / T))`: MWAL as an `equations.simplex_step`."""
    return float(np.log1p(np.sqrt(2 * np.log(dimension) / iterations)) / (4 * horizon))


def _play_best_responses(game: _Game, step: float, iterations: int, tolerance: float) -> Solution:
    times: dict[bytes, int] = {}
    policies: dict[bytes, Actions] = {}
    x = game.cost_set.start()
    total = np.zeros_like(game.target)
    lower, history = game.floor, []
    while len(history) < iterations and not (history and history[-1] - lower <= tolerance):
        actions, vertex, bound = game.best_response(x)
        lower = max(lower, bound)
        times[actions.tobytes()] = times.get(actions.tobytes(), 0) + 1
        policies.setdefault(actions.tobytes(), actions)
        total += vertex
        history.append(game.cost_set.support(total / (len(history) + 1) - game.target))
        x = game.cost_set.step(x, vertex - game.target, step)
    policy = game.mixed([float(n) for n in times.values()], list(policies.values()))
    return game.solution(policy, lower, len(history), history)


def _nearest_share(residual: Array, direction: Array, largest: float) -> float:
    """Return the t in `[0, largest]` that minimises `||residual + t direction||` (exact line search)."""
    length = float(direction @ direction)
    return min(max(-float(residual @ direction) / length, 0.0), largest) if length > 0 else 0.0


class _Mixture:
    """Deterministic policies with weights and the feature expectations of the whole, moved by the algorithms."""

    def __init__(self, game: _Game, actions: Actions) -> None:
        self.game = game
        self.point = game.coordinates(actions)
        self.places = {actions.tobytes(): 0}
        self.actions = [actions]
        self.vertices = self.point[None].copy()
        self.weights = np.ones(1)

    @property
    def gap(self) -> float:
        return self.game.cost_set.support(self.point - self.game.target)

    def worst(self, gradient: Array) -> int:
        """Return the component that the gradient's cost is largest for."""
        return int(np.argmax(np.where(self.weights > 0, self.vertices @ gradient, -np.inf)))

    def move_towards(self, actions: Actions, vertex: Array, share: float) -> None:
        """Give a share of the mixture to a policy."""
        if share <= 0:
            return
        place = self.places.setdefault(actions.tobytes(), len(self.actions))
        if place == len(self.actions):
            self.actions.append(actions)
            self.vertices = np.vstack([self.vertices, vertex])
            self.weights = np.append(self.weights, 0.0)
        self.weights *= 1 - share
        self.weights[place] += share
        self.point = self.point + share * (vertex - self.point)

    def move_away(self, place: int, share: float, largest: float) -> None:
        """Take weight from a component and give it to all in proportion; at the largest share none is left."""
        self.weights *= 1 + share
        self.weights[place] = 0.0 if share == largest else max(self.weights[place] - share, 0.0)
        self.weights /= self.weights.sum()
        self.point = self.weights @ self.vertices

    def policy(self) -> MixedPolicy:
        used = np.flatnonzero(self.weights > 0)
        return self.game.mixed(self.weights[used], [self.actions[i] for i in used])


# The referee --------------------------------------------------------------------------------------------------------


def solve_lp(
    mdp: FiniteMDP,
    expert: Expert,
    cost_set: str | CostSet = "box",
    *,
    tolerance: float = 1e-9,
    iterations: int = 100_000,
    truth: FiniteMDP | None = None,
    true_expert: Expert | None = None,
) -> Solution:
    """Solve the apprenticeship-learning game exactly; `lower` and `upper` of the solution prove how exactly.

    Box: `min_d sum max(d - d^E, 0)`; simplex: `min_d max_i (Phi(d) - Phi^E)_i`, each one linear program (HiGHS) over
    the occupancies that satisfy the flow constraints, of which only those that can be reached are variables. The dual
    variables are a worst cost; one MDP is solved with it to prove the lower bound, whatever the program's tolerances.

    L2 ball: `min_d ||Phi(d) - Phi^E||` is no linear program. Wolfe's minimum-norm-point algorithm finds the nearest
    point of the polytope of feature expectations, its vertices found by solving MDPs; it is finite, and stops when the
    bounds are within `tolerance`, or after `iterations` major cycles, or when rounding leaves nothing to gain.

    `upper` is the gap of the policy returned, evaluated in the MDP itself. Paper: Section 2.2, equation "AL".
    """
    _check_run(iterations, tolerance)
    game = _Game("linear program", mdp, expert, cost_set, truth, true_expert)
    if game.cost_set.kind == "l2":
        game.algorithm = "minimum-norm point"
        return _nearest_point(game, iterations, tolerance)
    flow = Flow(mdp)
    program = _box_program if game.cost_set.kind == "box" else _simplex_program
    d, worst = program(game, flow)
    lower = max(game.floor, game.best_response(worst)[2])
    return game.solution(policy_of_occupancy(flow.dense(d)), lower, 1)


class Flow:
    """The occupancies of an MDP as a polytope: `matrix @ d = mass`, `d >= 0`, over the (h, s) that can be reached.

    The row of (h, s) says `sum_a d_h(s, a) - sum_{s', a'} p_{h-1}(s | s', a') d_{h-1}(s', a') = [h = 0] mu(s)`.
    """

    def __init__(self, mdp: FiniteMDP) -> None:
        from scipy import sparse

        H, S, A = self.shape = mdp.shape
        reached = np.flatnonzero(mdp.initial > 0)
        steps, states, rows, columns, entries = [], [], [], [], []
        first, place = 0, np.zeros(S, dtype=np.int64)
        for h in range(H):
            n = len(reached)
            steps.append(np.full(n, h))
            states.append(reached)
            variables = first * A + np.arange(n * A)
            rows.append(first + np.repeat(np.arange(n), A))
            columns.append(variables)
            entries.append(np.ones(n * A))
            first += n
            if h + 1 == H:
                break
            table = (((0 if mdp.stationary else h) * S + reached)[:, None] * A + np.arange(A)).ravel()
            width = mdp.indptr[table + 1] - mdp.indptr[table]
            edges = np.repeat(mdp.indptr[table] - np.cumsum(width) + width, width) + np.arange(width.sum())
            possible = mdp.probabilities[edges] > 0
            source, edges = np.repeat(variables, width)[possible], edges[possible]
            reached = np.unique(mdp.successors[edges])
            place[reached] = np.arange(len(reached))
            rows.append(first + place[mdp.successors[edges]])
            columns.append(source)
            entries.append(-mdp.probabilities[edges])
        self.steps, self.states = np.concatenate(steps), np.concatenate(states)
        where = (np.concatenate(rows), np.concatenate(columns))
        self.matrix = sparse.csr_array((np.concatenate(entries), where), shape=(first, first * A))
        self.mass = np.zeros(first)
        self.mass[: len(steps[0])] = mdp.initial[states[0]]

    def read(self, x: Array) -> Array:
        """Return the entries of `x[H, S, A]` that are variables."""
        return x[self.steps, self.states].ravel()

    def dense(self, d: Array) -> Array:
        """Return variables as an occupancy `[H, S, A]`, without the rounding below zero."""
        full = np.zeros(self.shape)
        full[self.steps, self.states] = np.maximum(d, 0.0).reshape(-1, self.shape[2])
        return full


def _box_program(game: _Game, flow: Flow) -> tuple[Array, Array]:
    """Solve `min sum_{d^E = 0} d + sum u`, `u >= d - d^E` where `d^E > 0`; return d and the dual cost `[H, S, A]`."""
    from scipy import sparse

    expert = flow.read(game.expert_in_model)
    shared = np.flatnonzero(expert > 0)
    n, m = len(expert), len(shared)
    objective = np.concatenate([(expert == 0).astype(np.float64), np.ones(m)])
    pick = sparse.csr_array((np.ones(m), (np.arange(m), shared)), shape=(m, n))
    above = sparse.hstack([pick, -sparse.eye_array(m)])
    equal = sparse.hstack([flow.matrix, sparse.csr_array((len(flow.mass), m))])
    x, dual = _linear_program(objective, above, expert[shared], equal, flow.mass, [(0, None)] * (n + m))
    cost = np.ones(n)
    cost[shared] = np.clip(-dual, 0.0, 1.0)
    return x[:n], flow.dense(cost)


def _simplex_program(game: _Game, flow: Flow) -> tuple[Array, Array]:
    """Solve `min t`, `Phi(d)_i - t <= Phi^E_i`; return d and the dual weights."""
    from scipy import sparse

    features = np.repeat(game.cost_set.phi[flow.states], flow.shape[2], axis=0).T
    k, n = features.shape
    above = sparse.hstack([sparse.csr_array(features), sparse.csr_array(-np.ones((k, 1)))])
    equal = sparse.hstack([flow.matrix, sparse.csr_array((len(flow.mass), 1))])
    objective = np.append(np.zeros(n), 1.0)
    x, dual = _linear_program(objective, above, game.target, equal, flow.mass, [(0, None)] * n + [(None, None)])
    weights = np.maximum(-dual, 0.0)
    return x[:n], weights / weights.sum()


def _linear_program(
    objective: Array, above: Any, most: Array, equal: Any, mass: Array, bounds: list[tuple[float | None, float | None]]
) -> tuple[Array, Array]:
    """Return the minimiser and the dual variables of `above @ x <= most`, which are not positive."""
    from scipy.optimize import linprog

    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    result: Any = linprog(
        objective,
        A_ub=above.tocsr(),
        b_ub=most,
        A_eq=equal.tocsr(),
        b_eq=mass,
        bounds=bounds,
        method="highs-ipm",
        options=options,
    )
    if not result.success:
        raise RuntimeError(f"HiGHS did not solve the linear program: {result.message}")
    return result.x, result.ineqlin.marginals


def _nearest_point(game: _Game, iterations: int, tolerance: float) -> Solution:
    """Find the feature expectations nearest to the expert's (Wolfe 1976, minimum-norm point in a polytope).

    `corral` holds affinely independent vertices minus Phi^E, `weights` the convex combination of least norm. A major
    cycle adds the vertex least in the direction of the point; minor cycles drop vertices until the least point of the
    affine hull lies inside.
    """
    actions = [game.start(None)]
    corral = game.coordinates(actions[0])[None] - game.target
    weights = np.ones(1)
    lower, history = game.floor, []
    solver = _by_products
    while len(history) < iterations:
        point = weights @ corral
        distance = float(np.linalg.norm(point))
        if distance - lower <= tolerance:
            break
        response, vertex, bound = game.best_response(point)
        lower = max(lower, bound / distance)
        added = np.vstack([corral, vertex - game.target])
        trial, kept = _least_convex_combination(added, np.append(weights, 0.0), solver)
        reached = float(np.linalg.norm(trial @ added[kept]))
        history.append(min(reached, distance))
        if reached < distance:
            actions = [(*actions, response)[i] for i in kept]
            corral, weights = added[kept], trial
        elif solver is _by_products:
            solver = _by_least_squares
        else:  # nothing but rounding is left to gain
            break
    return game.solution(game.mixed(weights, actions), lower, len(history), history)


def _least_convex_combination(
    points: Array, weights: Array, solver: Callable[[Array], Array]
) -> tuple[Array, NDArray[np.int64]]:
    """Do Wolfe's minor cycles from a convex combination; return the weights and indices of the points kept."""
    kept = np.arange(len(points))
    while True:
        affine = solver(points[kept])
        falling = affine <= 1e-12
        if not falling.any():
            return affine, kept
        ratio = weights[falling] / np.maximum(weights[falling] - affine[falling], 1e-300)
        weights = np.maximum(weights + min(1.0, float(ratio.min())) * (affine - weights), 0.0)
        weights[np.flatnonzero(falling)[np.argmin(ratio)]] = 0.0
        stay = weights > 1e-14
        kept, weights = kept[stay], weights[stay] / weights[stay].sum()


def _by_products(points: Array) -> Array:
    """Return the v that minimises `||v @ points||`, `sum v = 1`: quick, and exact to the root of the rounding.

    It is proportional to the solution of `(points @ points.T + 1) v = 1`.
    """
    products = points @ points.T
    products = products / max(float(np.diag(products).max()), 1e-300) + 1.0
    try:
        v = np.linalg.solve(products, np.ones(len(points)))
    except np.linalg.LinAlgError:
        return _by_least_squares(points)
    return v / v.sum()


def _by_least_squares(points: Array) -> Array:
    """Return the v that minimises `||v @ points||`, `sum v = 1`: slower, and exact to the rounding."""
    v = np.linalg.lstsq((points[1:] - points[0]).T, -points[0], rcond=None)[0]
    return np.concatenate([[1 - v.sum()], v])


# The comparison -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One row of the comparison: how good a policy, at which price."""

    algorithm: str
    model: str
    """`known`, `estimated` (from the demonstrations and the episodes sampled), or `none`."""
    gap: float
    """Worst difference of values to the expert over the cost set, in the true MDP."""
    mdps_solved: int
    episodes_sampled: int


def compare(
    mdp: FiniteMDP,
    demos: Trajectories,
    cost_set: str | CostSet = "box",
    *,
    episodes: int = 1000,
    iterations: int = 200,
    expert: ArrayLike | None = None,
    unseen: str = "sink",
    preset: str = "default",
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
    **settings: Any,
) -> list[Comparison]:
    """Compare tabular OAL with the algorithms the paper stands on, from the same demonstrations.

    The algorithms that plan are given the true model, or one estimated from the demonstrations and as many episodes of
    the uniform policy as OAL samples. OAL is read twice: the one policy it returns (`average_policy`), and the mixture
    of the policies it played, whose gap is its regret divided by K. With a known model these are the same, and its
    updates use no samples.

    Args:
        episodes: K, what OAL learns from and the estimated model is made of (besides the demonstrations).
        iterations: at most how many MDPs each of the algorithms that plan iteratively may solve.
        expert: the policy that gaps are measured against; without one, that of the MDP's family; if it has none, gaps
            are measured against the demonstrations and OAL's online mixture is left out.
        unseen: what rows never seen do in the estimated model, see `empirical_mdp`.
        preset: of `TabularOAL`, as are `settings`.
        advance: called with 1 for each row, to show progress.
    """
    at_least("number of episodes", episodes, 1)
    at_least("number of iterations", iterations, 1)
    demos.check(mdp.shape, of=mdp.name)
    costs = CostSet(cost_set, mdp.shape) if isinstance(cost_set, str) else cost_set
    if expert is None and (mdp.expert is not None or mdp.cost is not None):
        expert = expert_policy(mdp)
    d_expert = demos.occupancy(mdp.shape) if expert is None else occupancy(mdp, expert)
    explored = sample(mdp, uniform_policy(mdp), episodes, rng=seeding.generator(seed, "comparison"))
    model = empirical_mdp([demos, explored], mdp, unseen=unseen, pooled=bool(settings.get("pooled", False)))
    planners: dict[str, list[Callable[..., Solution]]] = {"box": [], "l2": [projection, frank_wolfe], "simplex": [mwal]}
    judged: dict[str, Any] = {"truth": mdp, "true_expert": d_expert}
    rows: list[Comparison] = []

    def add(algorithm: str, model: str, gap: float, mdps_solved: int, sampled: int) -> None:
        rows.append(Comparison(algorithm, model, float(gap), mdps_solved, sampled))
        if advance is not None:
            advance(1)

    clone = cloning(mdp, demos, costs, **judged)
    add(clone.algorithm, "none", clone.gap, clone.mdps_solved, 0)
    for name, planned_in, sampled in (("known", mdp, 0), ("estimated", model, episodes)):
        for algorithm in (*planners[costs.kind], no_regret_costs):
            found = algorithm(planned_in, demos, costs, iterations=iterations, **judged)
            add(found.algorithm, name, found.gap, found.mdps_solved, sampled)
        exact = solve_lp(planned_in, demos, costs, **judged)
        add(exact.algorithm, name, exact.gap, exact.mdps_solved, sampled)
        learner = TabularOAL(
            mdp, demos, cost_set=costs, expert=expert, preset=preset, model=name, seed=seed, **settings
        )
        learner.learn(episodes)
        returned = costs.coordinates(occupancy(mdp, learner.average_policy))
        add("OAL, policy returned", name, costs.support(returned - costs.coordinates(d_expert)), 0, sampled)
        if learner.exact_regret and name == "estimated":
            add("OAL, policies played", name, learner.regret[-1] / episodes, 0, sampled)
    return rows
