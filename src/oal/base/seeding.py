"""One recorded root seed, and a separate random stream for each purpose and index."""

import zlib

import numpy as np

from oal.errors import whole


def sequence(seed: int, purpose: str, *index: int) -> np.random.SeedSequence:
    """Derive the seed sequence of a named stream; different names or indices give independent streams."""
    return np.random.SeedSequence(entropy=whole("seed", seed, 0), spawn_key=(zlib.crc32(purpose.encode()), *index))


def generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return the NumPy generator of a named stream."""
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, *index)))


def integer(seed: int, purpose: str, *index: int) -> int:
    """Return a 32-bit seed of a named stream, for libraries that want a number (Gymnasium, JAX keys)."""
    return int(sequence(seed, purpose, *index).generate_state(1)[0])
