"""Linear costs c_h(s, a) = w_h . phi(s, a), with weights of each step in the box, the L2 ball or the simplex.

phi(s, a) is a distribution, so that costs lie in [0, 1] (box, simplex) or [-1, 1] (ball). A discounted problem has one
step.
"""

from dataclasses import dataclass

import numpy as np

from oal import equations
from oal.equations import Array
from oal.errors import InputError, choice

KINDS = ("box", "l2", "simplex")


@dataclass(frozen=True)
class LinearCosts:
    """Weights `[H, d]`, the row of each step in the same convex set."""

    kind: str
    steps: int
    dimension: int
    length: float
    """The expected length of an episode; each step's features sum to one, a discounted episode's to this."""

    def __post_init__(self) -> None:
        choice("cost set", self.kind, KINDS)

    @property
    def low(self) -> float:
        """The least cost; taken off before policies are evaluated, so that costs to go are not negative."""
        return -1.0 if self.kind == "l2" else 0.0

    @property
    def width(self) -> float:
        """The range of costs."""
        return 1.0 - self.low

    @property
    def holds_zero(self) -> bool:
        return self.kind != "simplex"

    def start(self) -> Array:
        """Return where mirror ascent starts: zero costs, or equal weights in the simplex."""
        return np.full((self.steps, self.dimension), 1.0 / self.dimension if self.kind == "simplex" else 0.0)

    def step(self, w: Array, gradient: Array, t: float) -> Array:
        """Take the mirror ascent step of each row."""
        if self.kind == "box":
            return equations.box_step(w, gradient, t)
        move = equations.ball_step if self.kind == "l2" else equations.simplex_step
        return np.stack([move(row, g, t) for row, g in zip(w, gradient, strict=True)])

    def step_size(self, K: float) -> float:
        """Return the constant step size of the regret bound for K episodes."""
        mass = self.length / self.steps  # of a row's features
        if self.kind == "box":
            return equations.box_step_size((1, self.dimension, 1), K) / mass
        if self.kind == "l2":
            return equations.ball_step_size(mass, 1, K)
        return equations.simplex_step_size(mass, self.dimension, 1, K)

    def support(self, difference: Array) -> Array:
        """Return the largest sum_h w_h . difference_h over the set, for each difference `[..., H, d]`.

        The sum over h of `oal.equations`' support functions, of many differences at once.
        """
        if self.kind == "box":
            return np.maximum(difference, 0.0).sum((-2, -1))
        rows = np.linalg.norm(difference, axis=-1) if self.kind == "l2" else difference.max(-1)
        return rows.sum(-1)

    def best_response(self, difference: Array) -> Array:
        """Return weights that attain the support."""
        if self.kind == "box":
            return (difference > 0).astype(np.float64)
        if self.kind == "l2":
            return difference / np.maximum(np.linalg.norm(difference, axis=-1, keepdims=True), 1e-300)
        return np.eye(self.dimension)[difference.argmax(-1)]

    def check(self, w: Array) -> Array:
        """Return weights after checking that they belong to the set."""
        inside = w.shape == (self.steps, self.dimension) and bool(np.isfinite(w).all())
        if inside and self.kind == "l2":
            inside = bool(np.linalg.norm(w, axis=1).max() <= 1 + 1e-9)
        elif inside:
            inside = w.min() >= 0 and w.max() <= 1 + 1e-9
            inside = inside and (self.kind == "box" or bool(np.abs(w.sum(1) - 1).max() <= 1e-9))
        if not inside:
            raise InputError(f"weights of shape {w.shape} do not belong to the {self.kind} set")
        return w
