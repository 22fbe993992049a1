"""Set up the numerical libraries before they load."""

import os
import sys

from oal.errors import InputError, at_least


def set_threads(threads: int = 1) -> None:
    """Give this process `threads` threads of computation; call it before NumPy and JAX are imported.

    The networks here are small: one-thread processes side by side do more together than one process with many
    threads. NumPy's products on the host are smaller still, and always get one thread. What the user has set stands.
    """
    at_least("threads", threads, 1)
    if "jax" in sys.modules:
        raise InputError("threads cannot be set once JAX is loaded: call oal.runtime.set_threads first")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # the size of XLA's own pool; without it, XLA takes every core whatever the flag below says
    os.environ.setdefault("NPROC", str(threads))
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
