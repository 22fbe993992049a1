"""Lambda = ridge I + sum phi phi^T by its Cholesky factor, brought up to date one phi at a time; compiled.

A factor stays exact to rounding for a ridge as small as 1e-12, where Sherman and Morrison's formula for the inverse has
lost every digit.
"""

import math

import numpy as np

from oal.tabular.fastmath import jit


@jit
def update(L, x):
    """Make L the factor of L L^T + x x^T; x is used up."""
    d = len(x)
    for k in range(d):
        if x[k] == 0.0:
            continue
        r = math.hypot(L[k, k], x[k])
        c, s = r / L[k, k], x[k] / L[k, k]
        L[k, k] = r
        for i in range(k + 1, d):
            L[i, k] = (L[i, k] + s * x[i]) / c
            x[i] = c * x[i] - s * L[i, k]


@jit
def solve(L, b):
    """Replace b by (L L^T)^-1 b."""
    d = len(b)
    for i in range(d):
        total = b[i]
        for j in range(i):
            total -= L[i, j] * b[j]
        b[i] = total / L[i, i]
    for i in range(d - 1, -1, -1):
        total = b[i]
        for j in range(i + 1, d):
            total -= L[j, i] * b[j]
        b[i] = total / L[i, i]


@jit
def inverse(L, out):
    """Write (L L^T)^-1 into `out`."""
    d = len(L)
    column = np.empty(d)
    for k in range(d):
        column[:] = 0.0
        column[k] = 1.0
        solve(L, column)
        out[:, k] = column


@jit
def log_determinant(L):
    """Return log det L L^T."""
    total = 0.0
    for i in range(len(L)):
        total += 2.0 * math.log(L[i, i])
    return total
