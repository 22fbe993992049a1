"""Deep online apprenticeship learning: Algorithm 1 over exchangeable policy and cost players."""

from oal.base.runtime import default_device

default_device()  # before the modules of this package load JAX
