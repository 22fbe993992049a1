import os
import signal

import numpy as np
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """The fast tests run small programs once or twice: compiling them takes longest, so it is done without care.

    Programs of full size run at half their speed that way, so the slow tests are left alone. All tests compute on one
    thread, as the workers of a sweep do: products are rounded otherwise on several (`runtime.compiler_options`).
    """
    os.environ.setdefault("NPROC", "1")
    # a shell's background job ignores Ctrl-C, and so would every process that the tests start and stop
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("markexpr") == "not slow":
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator of its own for each test, the same at every run."""
    return np.random.default_rng([ord(letter) for letter in request.node.name])
