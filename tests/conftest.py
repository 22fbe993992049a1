import numpy as np
import pytest


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator of its own for each test, the same at every run."""
    return np.random.default_rng([ord(letter) for letter in request.node.name])
