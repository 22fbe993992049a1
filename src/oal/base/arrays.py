"""Sets of named arrays inside a larger one: each under a prefix, as in a checkpoint."""

from collections.abc import Mapping

import numpy as np


def prefixed(prefix: object, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put arrays under a name; `below` takes them back."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def below(prefix: object, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take back what `prefixed` put under a name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
