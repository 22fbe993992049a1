"""Compiled arithmetic: a random stream, draws by inversion, and an exponential that runs in vector instructions.

Numba keeps compiled code on disk and compiles a function again when its own file changes, but not when a function that
it calls from another file does: after a change here, in `slots` or in `ledger`, delete this folder's `__pycache__`.
"""

import numba
import numpy as np

from oal.base import console


def _can_cache() -> bool:
    """Whether Numba finds a folder to keep compiled code in; where it finds none, it would refuse to compile at all."""
    try:
        numba.njit(cache=True)(lambda: 0)
    except RuntimeError:
        console.say("Numba can keep no compiled code here (NUMBA_CACHE_DIR says where): it is compiled anew", err=True)
        return False
    return True


CACHE = _can_cache()
jit = numba.njit(cache=CACHE, nogil=True)
# For the parts of one episode: a call that passes the slots on costs about as much as the part itself.
jit_inlined = numba.njit(cache=CACHE, nogil=True, inline="always")


@jit
def uniform(stream):
    """Draw from [0, 1) with xoshiro256++; `stream` is its state of four 64-bit words, seeded by a SeedSequence."""
    word = stream[0] + stream[3]
    word = ((word << np.uint64(23)) | (word >> np.uint64(41))) + stream[0]
    shifted = stream[1] << np.uint64(17)
    stream[2] ^= stream[0]
    stream[3] ^= stream[1]
    stream[1] ^= stream[2]
    stream[0] ^= stream[3]
    stream[2] ^= shifted
    stream[3] = (stream[3] << np.uint64(45)) | (stream[3] >> np.uint64(19))
    return (word >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def invert(cumulative, start, stop, u):
    """Return the first position in `start:stop` whose running sum exceeds u (the last one if rounding leaves none)."""
    if stop - start > 16:
        low, high = start, stop - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] > u:
                high = middle
            else:
                low = middle + 1
        return low
    for i in range(start, stop - 1):
        if cumulative[i] > u:
            return i
    return stop - 1


@jit
def draw(probabilities, u):
    """Return an index drawn from a row of probabilities by inversion."""
    total = 0.0
    last = len(probabilities) - 1
    for a in range(last):
        total += probabilities[a]
        if u < total:
            return a
    return last


LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, which stands in the lowest bits then
ONE_BITS = 4607182418800017408  # the bits of 1.0


@jit_inlined
def taylor(r):
    """Return exp(r) for |r| <= ln(2) / 2 by its polynomial; r is a number, or a vector of them."""
    p = r * (1.0 / 479001600.0) + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    return p * r + 1.0


@jit
def exponentials(x, out):
    """Write exp(x) for x <= 0 into `out`, to the last bit or two; below -708 it stays at 3e-308.

    Written without calls and branches so that the compiler turns it into vector instructions: 2^n times the Taylor
    polynomial of the rest, |rest| <= ln(2) / 2.
    """
    for i in range(len(x)):
        y = max(x[i], -708.0)
        shifted = y * LOG2_E + ROUND
        n = shifted - ROUND
        r = (y - n * LN2_HIGH) - n * LN2_LOW
        power = (np.float64(shifted).view(np.int64) << np.int64(52)) + np.int64(ONE_BITS)
        out[i] = taylor(r) * np.int64(power).view(np.float64)
