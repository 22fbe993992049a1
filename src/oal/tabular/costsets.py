"""Sets of costs the learner must match the expert on: the box (the paper's), and linear costs in a ball or simplex."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oal import equations
from oal.equations import Array
from oal.errors import InputError, choice

Shape = tuple[int, int, int]

BOX, L2, SIMPLEX = 0, 1, 2
KINDS = {"box": BOX, "l2": L2, "simplex": SIMPLEX}
"""The sets by name, and their numbers in compiled code."""


@dataclass(frozen=True, eq=False)
class CostSet:
    """A convex set of costs of an MDP of shape `(H, S, A)`.

    A cost is given by its coordinates: the cost `c[H, S, A]` itself for the box, weights `w[d]` of the state features
    `phi[S, d]` for the linear sets, `c(s) = w . phi(s)`. Occupancies are read in the same coordinates (`coordinates`),
    so that `<cost(x), d> = x . coordinates(d)` for every set.
    """

    kind: str
    shape: Shape
    features: Array | None = None

    def __post_init__(self) -> None:
        choice("cost set", self.kind, KINDS)
        if self.kind == "box":
            if self.features is not None:
                raise InputError(
                    "the box is a set of costs of every (h, s, a): it takes no features; use l2 or simplex"
                )
            return
        features = np.eye(self.shape[1]) if self.features is None else np.asarray(self.features, dtype=np.float64)
        if features.ndim != 2 or len(features) != self.shape[1] or features.shape[1] == 0:
            raise InputError(f"features have the shape {features.shape}: it must be [S, d] with S = {self.shape[1]}")
        if not np.all(np.isfinite(features)) or np.abs(features).max() > 1 + 1e-12:
            raise InputError(
                f"features must lie in [-1, 1]: scale them (their largest entry is {np.abs(features).max():g})"
            )
        # A copy, not a view: read-only features are another type to Numba, which would compile the learner again.
        object.__setattr__(self, "features", np.array(features, order="C"))

    @property
    def phi(self) -> Array:
        """The features `[S, d]`; with none given, one for each state."""
        return np.zeros((self.shape[1], 0)) if self.features is None else self.features

    @property
    def dimension(self) -> int:
        return int(np.prod(self.shape)) if self.kind == "box" else self.phi.shape[1]

    @property
    def low(self) -> float:
        """The least cost that any member gives to any state, or 0 if that is less."""
        return {"box": 0.0, "l2": -self._longest, "simplex": float(self.phi.min(initial=0.0))}[self.kind]

    @property
    def width(self) -> float:
        """The range of costs: 1 for the box."""
        high = {"box": 1.0, "l2": self._longest, "simplex": float(self.phi.max(initial=0.0))}[self.kind]
        return high - self.low

    @property
    def _longest(self) -> float:
        return float(np.linalg.norm(self.phi, axis=1).max(initial=0.0))

    def coordinates(self, d: Array) -> Array:
        """Read an occupancy in the set's coordinates: itself, or its feature expectations."""
        return d if self.kind == "box" else equations.feature_expectations(d, self.phi)

    def cost(self, x: ArrayLike) -> Array:
        """Return the cost `[H, S, A]` with coordinates x."""
        x = np.asarray(x, dtype=np.float64)
        return x if self.kind == "box" else np.broadcast_to((self.phi @ x)[None, :, None], self.shape)

    def support(self, difference: Array) -> float:
        """Return the largest `x . difference` over the set; `difference` is in its coordinates."""
        function = {"box": equations.box_support, "l2": equations.ball_support, "simplex": equations.simplex_support}
        return function[self.kind](difference)

    def best_response(self, difference: Array) -> Array:
        """Return coordinates of a cost that attains the support function."""
        if self.kind == "box":
            return (difference > 0).astype(np.float64)
        if self.kind == "l2":
            return difference / max(float(np.linalg.norm(difference)), 1e-300)
        return np.eye(len(difference))[int(np.argmax(difference))]

    def start(self) -> Array:
        """Return the coordinates mirror descent starts from: zero costs, or equal weights in the simplex."""
        if self.kind == "box":
            return np.zeros(self.shape)
        return np.full(self.dimension, 1.0 / self.dimension if self.kind == "simplex" else 0.0)

    def step(self, x: Array, gradient: Array, t: float) -> Array:
        """Take the mirror ascent step of the set."""
        function = {"box": equations.box_step, "l2": equations.ball_step, "simplex": equations.simplex_step}
        return function[self.kind](x, gradient, t)

    def step_size(self, K: float) -> float:
        """Return the constant step size of the regret bound for K episodes."""
        H = self.shape[0]
        if self.kind == "box":
            return equations.box_step_size(self.shape, K)
        if self.kind == "l2":
            return equations.ball_step_size(self._longest, H, K)
        return equations.simplex_step_size(float(np.abs(self.phi).max()), self.dimension, H, K)

    def check(self, x: ArrayLike) -> Array:
        """Return coordinates as an array after checking that they belong to the set."""
        x = np.asarray(x, dtype=np.float64)
        expected = self.shape if self.kind == "box" else (self.dimension,)
        if x.shape != expected:
            raise InputError(f"initial cost has the shape {x.shape}: the {self.kind} set wants {expected}")
        inside = {
            "box": lambda: x.min() >= 0 and x.max() <= 1,
            "l2": lambda: np.linalg.norm(x) <= 1 + 1e-9,
            "simplex": lambda: x.min() >= 0 and abs(x.sum() - 1) <= 1e-9,
        }
        if not np.all(np.isfinite(x)) or not inside[self.kind]():
            raise InputError(f"initial cost is outside the {self.kind} set")
        return x
