"""Observations standardised by the demonstrations, before any network sees them.

Where an observation hardly varies in the demonstrations but does elsewhere, standardised values can be thousands. They
stay as they are within a few standard deviations and grow like a logarithm beyond: no network is driven out of its
range by one of them, and further off still looks further off (a pole that leans ten times as far as it ever did in the
demonstrations, or a hundred times).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from oal.demos.pairs import Encoded
from oal.errors import InputError

if TYPE_CHECKING:
    from oal.deep.arrays import Float, Float32

STD_FLOOR = 1e-3
"""Observations that hardly vary are not scaled up more than a thousandfold."""
KNEE = 5.0
"""Standard deviations up to which the scale is linear."""


class Normaliser(NamedTuple):
    """Flat observations in, z = (x - mean) / std out; beyond k = KNEE it is ±k (1 + log(|z|/k)), which joins smoothly.

    What is not finite stays so, and is noticed.
    """

    mean: "Float32[np.ndarray, 'O']"
    std: "Float32[np.ndarray, 'O']"

    def __call__(self, observation: "Float[np.ndarray, '*n O']") -> "Float32[np.ndarray, '*n O']":
        # in place from the first difference on: this runs at every step
        scaled = np.subtract(observation, self.mean, dtype=np.float32)
        scaled /= self.std
        far = np.abs(scaled) > KNEE
        if far.any():
            beyond = scaled[far]
            scaled[far] = np.copysign(KNEE * (1.0 + np.log(np.abs(beyond) / KNEE)), beyond)
        return scaled

    def episodes(self, episodes: Sequence[Encoded]) -> tuple[Encoded, ...]:
        """Return the same episodes with standardised observations."""
        return tuple(
            replace(each, observation=self(each.observation), next_observation=self(each.next_observation))
            for each in episodes
        )

    def undone(self, function: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any] | None:
        """Return a function of (observation, action) that takes normalised observations in place of plain ones."""
        if function is None:
            return None

        def plain(observation: Any, action: Any) -> Any:
            size = jnp.abs(observation)
            far = jnp.sign(observation) * KNEE * jnp.exp(jnp.maximum(size, KNEE) / KNEE - 1.0)
            return function(jnp.where(size > KNEE, far, observation) * self.std + self.mean, action)

        return plain

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a file keeps."""
        return {"normaliser/mean": self.mean, "normaliser/std": self.std}

    @classmethod
    def of(cls, episodes: Sequence[Encoded]) -> "Normaliser":
        """Measure the demonstrated observations."""
        observation = np.concatenate([each.observation for each in episodes])
        # added up in float64: a running sum of a thousand float32 already makes what never varies vary
        mean, std = observation.mean(axis=0, dtype=np.float64), observation.std(axis=0, dtype=np.float64)
        constant = std <= 1e-6 * np.abs(mean)  # rounding leaves a little; what never varies says nothing of its scale
        scale = np.where(constant, 1.0, np.maximum(std, STD_FLOOR))
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], size: int, where: object) -> "Normaliser | None":
        """Read what `arrays` gave; None if the file has none."""
        if "normaliser/mean" not in arrays and "normaliser/std" not in arrays:
            return None
        found = [arrays.get(f"normaliser/{name}", np.zeros(0)) for name in ("mean", "std")]
        fits = all(part.shape == (size,) and np.isfinite(part).all() for part in found)
        if not fits or not found[1].min(initial=1.0) > 0.0:
            raise InputError(
                f"{where}: the normaliser's mean and std have the shapes {found[0].shape} and {found[1].shape}: both "
                f"must be {(size,)} and finite, and every std above 0"
            )
        return cls(*(part.astype(np.float32) for part in found))
