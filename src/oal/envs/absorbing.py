"""Absorbing states: what follows a true termination.

After a true termination the rest of the horizon is spent in an absorbing state with its own cost c_abs. Then
occupancies of policies that die and of policies that live have the same mass, and dying has a price that the cost
player sets. A truncated episode was only cut off: what follows is unknown, and nothing is booked for it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from jaxtyping import Float64


class OccupancyMasses(NamedTuple):
    """How one episode's share of the occupancy measure is spread: `alive` per step, `absorbing`, `unknown`.

    The three together sum to 1, for every episode.
    """

    alive: "Float64[np.ndarray, 'T']"
    absorbing: float
    unknown: float


def occupancy_masses(
    length: int, *, terminated: bool, gamma: float = 1.0, horizon: int | None = None
) -> OccupancyMasses:
    """Split an episode's occupancy among its steps, the absorbing state and the unseen rest after a truncation.

    Step t weighs γ^t, normalised over the horizon (endless when None, which needs γ < 1):
    alive_t = (1-γ) γ^t / (1-γ^H), and the remaining (γ^T - γ^H) / (1-γ^H) is absorbing mass if the episode truly
    terminated, unknown if it was cut off before the horizon.
    """
    at_least("episode length", length, 1)
    if not 0.0 < gamma <= 1.0:
        raise InputError(f"gamma is {gamma}: it must lie in (0, 1]")
    if horizon is None and gamma == 1.0:
        raise InputError("an endless horizon needs gamma below 1: say the horizon or lower gamma")
    if horizon is not None and length > horizon:
        raise InputError(f"the episode has {length} steps, more than the horizon of {horizon}")
    weights = np.power(gamma, np.arange(length, dtype=np.float64))
    total = 1.0 / (1.0 - gamma) if horizon is None else discounted_steps(horizon, gamma)
    alive = weights / total
    rest = max(0.0, 1.0 - float(alive.sum())) if length != horizon else 0.0
    return OccupancyMasses(alive, rest if terminated else 0.0, 0.0 if terminated else rest)


def discounted_steps(steps: Any, gamma: float) -> Any:
    """Σ_{t<n} γ^t: n when γ = 1, otherwise (1-γ^n)/(1-γ); of one n, or of an array of them."""
    return steps * 1.0 if gamma == 1.0 else (1.0 - gamma**steps) / (1.0 - gamma)


def absorbing_value(absorbing_cost: Any, gamma: float, *, steps_left: int | None = None) -> Any:
    """Cost still to pay in the absorbing state: c_abs/(1-γ), or c_abs (1-γ^n)/(1-γ) when only n steps are left."""
    if steps_left is None:
        return absorbing_cost / (1.0 - gamma)
    return absorbing_cost * discounted_steps(steps_left, gamma)


def bootstrap_target(
    cost: Any, next_value: Any, terminated: Any, gamma: float, absorbing_cost: Any = 0.0, discount: Any = None
) -> Any:
    """c + γ V(s'), where the successor of a true termination is the absorbing state with V = c_abs/(1-γ).

    `discount` stands in place of γ where s' is a state some steps later, and c what the steps until then cost.

    Truncation does not appear: a truncated step's successor is real and its value counts in full.
    Works on NumPy and on traced arrays; `terminated` is 0 or 1.
    """
    discount = gamma if discount is None else discount
    return cost + discount * (next_value + terminated * (absorbing_value(absorbing_cost, gamma) - next_value))
