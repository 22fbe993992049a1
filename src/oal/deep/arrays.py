"""Arrays by type and shape, for annotations. Type checkers and tests load this; the package runs without jaxtyping.

A letter is one size throughout a signature: B rows of a batch; O numbers of an observation, A of an encoded action, and
Z of the noise that draws it (A, or 0 for discrete ones); T steps of n environments; N pairs or episodes; D inputs and F
features or outputs; W = 2 O + A + 2, the width of a row in the replay memory.
"""

from typing import Any

import jax
from jaxtyping import Bool, Float, Float32, Int, Key, Shaped, UInt32  # noqa: F401 (imported from here)

Array = Any
"""NumPy's, JAX's or a traced one: they share no type."""

Observations = Float[jax.Array, "B O"]
Actions = Float[jax.Array, "B A"]
AnyObservations = Float[Array, "B O"]
AnyActions = Float[Array, "B A"]
Noise = Float[jax.Array, "B Z"]
Inputs = Float[jax.Array, "B D"]
Features = Float[Array, "B F"]
PerRow = Float[jax.Array, "B"]
PerStep = Float[jax.Array, "T n"]
Scalar = Float[jax.Array, ""]
Parameters = Float[jax.Array, "P"]
"""All of a network's, in one row."""
RngKey = Key[jax.Array, ""]
KeyData = UInt32[jax.Array, "2"]
"""A key as plain numbers, which a checkpoint can hold."""
