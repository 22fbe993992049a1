"""The algorithms before online apprenticeship learning, which solve MDPs where it solves none.

Behavioural cloning, the projection algorithm (Abbeel & Ng 2004), multiplicative weights (MWAL, Syed & Schapire 2008),
no-regret costs, Frank-Wolfe with away steps (Zahavy et al. 2020), and the exact value of the game by linear
programming. Each takes a `Game` and returns a `Solution` with its policy, the policy's gap, bounds on the game's value
and the number of MDPs it solved.

Every MDP solved gives a bound on the game's value (see `oal.tabular.game`): the iterative algorithms stop when their
gap is certified to be within `tolerance` of the best possible.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oal.errors import at_least
from oal.tabular import passes
from oal.tabular.game import Actions, Array, Game, MixedPolicy, Solution
from oal.tabular.mdp import FiniteMDP, policy_of_occupancy


def _check_run(iterations: int, tolerance: float) -> None:
    at_least("number of iterations", iterations, 1)
    at_least("tolerance", tolerance, 0.0)


# The algorithms -----------------------------------------------------------------------------------------------------


def cloning(game: Game) -> Solution:
    """Clone the expert's behaviour: its frequencies of actions, uniform where it never was. Solves no MDP."""
    return game.solution("behavioural cloning", policy_of_occupancy(game.expert), game.floor, 0)


def projection(
    game: Game, *, iterations: int = 1000, tolerance: float = 1e-6, start: ArrayLike | None = None
) -> Solution:
    """Match feature expectations by the projection algorithm of Abbeel & Ng (2004), costs in the L2 ball.

    From a mixture with feature expectations Phi_bar: solve the MDP with weights `w = Phi_bar - Phi^E`, then move to the
    point nearest to Phi^E between Phi_bar and the solution's feature expectations. The nearest point of their line lies
    between them whenever Phi^E is that of some policy; with an expert estimated from few episodes it may not, so the
    step is cut at one. Stops when the gap is certified to within `tolerance`.

    Paper: Section 2.2, FEM and the projection algorithm.
    """
    return _move_mixture(game, "projection", False, iterations, tolerance, start)


def frank_wolfe(
    game: Game,
    *,
    away_steps: bool = True,
    iterations: int = 1000,
    tolerance: float = 1e-6,
    start: ArrayLike | None = None,
) -> Solution:
    """Match feature expectations by Frank-Wolfe on `||Phi - Phi^E||^2 / 2` with exact line search (Zahavy et al. 2020).

    Without away steps these are the projection algorithm's iterates, which slow down when the nearest point lies on the
    boundary of what policies can reach. With them (ASFW) an iteration may take weight from the worst component instead
    of adding to the best response, and the distance falls at a linear rate.
    """
    name = "Frank-Wolfe with away steps" if away_steps else "Frank-Wolfe"
    return _move_mixture(game, name, away_steps, iterations, tolerance, start)


def mwal(game: Game, *, iterations: int = 1000, tolerance: float = 0.0) -> Solution:
    """Play multiplicative weights against best responses (MWAL, Syed & Schapire 2008), costs in the simplex.

    The weights of T iterations are `w_i <- w_i beta^(G_i)`, normalised, `beta = 1 / (1 + sqrt(2 log(d) / T))`, with the
    game's entry in [0, 1], `G = (2 - (Phi - Phi^E) / H) / 4`: features in [-1, 1] sum to at most H over an episode, so
    differences divided by H lie in [-2, 2]. Shift and scale only set the step: it is `log(1 / beta) / (4 H)` in the
    simplex's own mirror step. The mixture of all best responses, 1/T each, has a gap of at most the game's value plus
    `4 H (sqrt(2 log(d) / T) + log(d) / T)`.

    Paper: Section 2.2, MWAL.
    """
    _check_run(iterations, tolerance)
    game.require("simplex", "MWAL")
    step = float(np.log1p(np.sqrt(2 * np.log(game.cost_set.dimension) / iterations)) / (4 * game.mdp.horizon))
    return _play_best_responses(game, "MWAL", step, iterations, tolerance)


def no_regret_costs(game: Game, *, iterations: int = 1000, tolerance: float = 0.0) -> Solution:
    """Play the cost set's mirror ascent against best responses: MWAL's scheme for any cost set, the box included.

    The step is that of the cost player's regret bound for T iterations; for the box the mixture's gap is at most the
    game's value plus `H sqrt(2 S A / T)`.

    Paper: Section 2.2, algorithms based on online convex optimization.
    """
    _check_run(iterations, tolerance)
    step = game.cost_set.step_size(iterations)
    return _play_best_responses(game, "no-regret costs", step, iterations, tolerance)


def solve_lp(game: Game, *, tolerance: float = 1e-9, iterations: int = 100_000) -> Solution:
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
    if game.cost_set.kind == "l2":
        return _nearest_point(game, iterations, tolerance)
    flow = Flow(game.mdp)
    program = _box_program if game.cost_set.kind == "box" else _simplex_program
    d, worst = program(game, flow)
    lower = max(game.floor, game.best_response(worst)[2])
    return game.solution("linear program", policy_of_occupancy(flow.dense(d)), lower, 1)


# Moving a mixture, and playing best responses -------------------------------------------------------------------------


def _move_mixture(
    game: Game, algorithm: str, away_steps: bool, iterations: int, tolerance: float, start: ArrayLike | None
) -> Solution:
    """Do Frank-Wolfe on the distance to the expert's feature expectations."""
    _check_run(iterations, tolerance)
    game.require("l2", algorithm)
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
    return game.solution(algorithm, mixture.policy(), lower, len(history), history)


def _play_best_responses(game: Game, algorithm: str, step: float, iterations: int, tolerance: float) -> Solution:
    """Play mirror ascent in the cost set against best responses; return the mixture of all responses."""
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
        history.append(game.gap(total / (len(history) + 1)))
        x = game.cost_set.step(x, vertex - game.target, step)
    policy = game.mixed([float(n) for n in times.values()], list(policies.values()))
    return game.solution(algorithm, policy, lower, len(history), history)


def _nearest_share(residual: Array, direction: Array, largest: float) -> float:
    """Return the t in `[0, largest]` that minimises `||residual + t direction||` (exact line search)."""
    length = float(direction @ direction)
    return min(max(-float(residual @ direction) / length, 0.0), largest) if length > 0 else 0.0


class _Mixture:
    """Deterministic policies with weights and the feature expectations of the whole, moved by the algorithms."""

    def __init__(self, game: Game, actions: Actions) -> None:
        self.game = game
        self.point = game.coordinates(actions)
        self.places = {actions.tobytes(): 0}
        self.actions = [actions]
        self.vertices = self.point[None].copy()
        self.weights = np.ones(1)

    @property
    def gap(self) -> float:
        return self.game.gap(self.point)

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


# The exact value ----------------------------------------------------------------------------------------------------


class Flow:
    """The occupancies of an MDP as a polytope: `matrix @ d = mass`, `d >= 0`, over the (h, s) that can be reached.

    The row of (h, s) says `sum_a d_h(s, a) - sum_{s', a'} p_{h-1}(s | s', a') d_{h-1}(s', a') = [h = 0] mu(s)`.
    """

    def __init__(self, mdp: FiniteMDP) -> None:
        from scipy import sparse

        H, S, A = self.shape = mdp.shape
        reached = passes.reachable(mdp.transitions, H, S, A)
        self.steps, self.states = np.nonzero(reached)
        n = len(self.steps)
        place = np.zeros((H, S), dtype=np.int64)
        place[reached] = np.arange(n)
        # Variables, A for each place, and the edges that lead from them to the next step.
        before_last = np.flatnonzero(np.repeat(self.steps + 1 < H, A))
        first = self.states if mdp.stationary else self.steps * S + self.states
        table = (first[:, None] * A + np.arange(A)).ravel()[before_last]
        width = mdp.indptr[table + 1] - mdp.indptr[table]
        edges = np.repeat(mdp.indptr[table] - np.cumsum(width) + width, width) + np.arange(width.sum())
        source = np.repeat(before_last, width)
        possible = mdp.probabilities[edges] > 0
        source, edges = source[possible], edges[possible]
        after = place[self.steps[source // A] + 1, mdp.successors[edges]]
        entries = np.concatenate([np.ones(n * A), -mdp.probabilities[edges]])
        where = np.concatenate([np.repeat(np.arange(n), A), after]), np.concatenate([np.arange(n * A), source])
        self.matrix = sparse.csr_array((entries, where), shape=(n, n * A))
        self.mass = np.where(self.steps == 0, mdp.initial[self.states], 0.0)

    def read(self, x: Array) -> Array:
        """Return the entries of `x[H, S, A]` that are variables."""
        return x[self.steps, self.states].ravel()

    def dense(self, d: Array) -> Array:
        """Return variables as an occupancy `[H, S, A]`, without the rounding below zero."""
        full = np.zeros(self.shape)
        full[self.steps, self.states] = np.maximum(d, 0.0).reshape(-1, self.shape[2])
        return full


def _box_program(game: Game, flow: Flow) -> tuple[Array, Array]:
    """Solve `min sum_{d^E = 0} d + sum u`, `u >= d - d^E` where `d^E > 0`; return d and the dual cost `[H, S, A]`."""
    from scipy import sparse

    expert = flow.read(game.expert)
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


def _simplex_program(game: Game, flow: Flow) -> tuple[Array, Array]:
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


def _nearest_point(game: Game, iterations: int, tolerance: float) -> Solution:
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
    return game.solution("minimum-norm point", game.mixed(weights, actions), lower, len(history), history)


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
