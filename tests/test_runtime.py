"""Options of compiled programs: which are asked for, and that threads do not make a run irreproducible."""

import os
import subprocess
import sys

import jax
import pytest

from oal.base import runtime

IN_PLACE = "xla_cpu_copy_insertion_use_region_analysis"
PRODUCTS = "xla_cpu_experimental_ynn_fusion_type"


@pytest.fixture
def asked(monkeypatch):
    """Return what is asked for with so many threads, of an XLA that does not know the `unknown` option."""

    real = jax.jit

    def options(threads: str, unknown: str = "") -> set[str]:
        def jit(*arguments, compiler_options, **named):
            if unknown in compiler_options:
                raise RuntimeError(f"No such compile option: '{unknown}'")
            return real(*arguments, **named)

        monkeypatch.setattr(jax, "jit", jit)
        monkeypatch.setenv("NPROC", threads)
        runtime.compiler_options.cache_clear()
        return set(runtime.compiler_options())

    yield options
    runtime.compiler_options.cache_clear()


def test_products_are_left_to_eigen_on_several_threads_only(asked):
    assert asked("1") == {IN_PLACE}
    assert asked("2") == {IN_PLACE, PRODUCTS}


def test_an_option_that_xla_does_not_know_is_left_out(asked):
    assert asked("2", unknown=IN_PLACE) == {PRODUCTS}
    assert asked("2", unknown=PRODUCTS) == {IN_PLACE}


def test_a_nonsensical_number_of_threads_counts_as_every_core(asked, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert asked("many") == {IN_PLACE}
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert asked("") == {IN_PLACE, PRODUCTS}


PROGRAM = """
import hashlib, sys
from oal.base import runtime
runtime.set_threads(int(sys.argv[1]))
import jax, numpy as np
from oal.deep.offpolicy import MDPOConfig, Shapes, compile_mdpo, init_mdpo
shapes, config = Shapes("continuous", 17, 6), MDPOConfig(hidden=(256, 256), batch_size=256)
rows = np.random.default_rng(0).normal(size=(20, 256, 42)).astype(np.float32)
for _ in range(3):
    state, metrics = compile_mdpo(shapes, config)(init_mdpo(0, shapes, config), rows, None)
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
    print(hashlib.sha256(b"".join(leaves)).hexdigest(), float(metrics["critic_loss"]))
"""


def test_a_block_is_the_same_from_run_to_run_on_two_threads():
    variables = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}

    def lines(threads: int) -> list[list[str]]:
        command = [sys.executable, "-c", PROGRAM, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
        return [line.split() for line in done.stdout.splitlines()]

    two = lines(2)
    assert len(two) == 3
    assert len({digest for digest, _ in two + lines(2)}) == 1
    assert float(two[0][1]) == pytest.approx(float(lines(1)[0][1]), rel=1e-3)
