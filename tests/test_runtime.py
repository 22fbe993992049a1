"""Options of compiled programs: which are asked for, and that threads do not make a run irreproducible."""

import os
import subprocess
import sys

import jax
import pytest

from oal.base import runtime
from oal.errors import InputError

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
from oal.errors import InputError
runtime.set_threads(int(sys.argv[1]))
import jax, numpy as np
from oal.deep.mdpo import MDPOConfig, init_mdpo, mdpo_update
from oal.deep.offpolicy import compile_block
from oal.deep.players import Shapes
shapes, config = Shapes("continuous", 17, 6), MDPOConfig(hidden=(256, 256), batch_size=256)
rows = np.random.default_rng(0).normal(size=(20, 256, 42)).astype(np.float32)
for _ in range(3):
    block = compile_block(mdpo_update, shapes, config, draws=1)
    state, _, metrics = block(*init_mdpo(0, shapes, config), rows, None)
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


def in_python(code: str, **variables: str) -> str:
    """Run code in a fresh Python on the checkout, with no device said but in `variables`; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PLATFORMS = "import jax; print(jax.config.jax_platforms)"


@pytest.mark.parametrize("name", ["oal.OAL", "oal.training", "oal.Policy", "oal.callbacks"])
def test_python_computes_where_the_command_line_does(name):
    assert in_python(f"import oal; {name}; {PLATFORMS}") == "cpu"


def test_what_the_user_says_of_the_device_stands():
    assert in_python(f"import oal; oal.OAL; {PLATFORMS}", JAX_PLATFORMS="cuda,cpu") == "cuda,cpu"
    assert in_python(f"import jax; import oal; oal.OAL; {PLATFORMS}") == "None", "JAX was there first"
    assert in_python(f"import oal; oal.demos; oal.tabular; {PLATFORMS}") == "None", "nothing of oal needs JAX there"
    code = f"import oal; oal.set_device('auto'); oal.OAL; {PLATFORMS}; print(jax.default_backend())"
    assert in_python(code).splitlines()[0] in ("", "None")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    code = "import oal\ntry: oal.set_device('gpu')\nexcept oal.InputError as error: print(error)"
    said = in_python(code)
    if not said:
        pytest.skip("there is a GPU here")
    assert said.startswith("device 'gpu' cannot be used (Unable to initialize backend")
    assert "jax[cuda12]" in said
    with pytest.raises(InputError, match="device 'fpga' is unknown"):
        runtime.set_device("fpga")
    done = subprocess.run(
        [sys.executable, "-m", "oal", "train", "InvertedPendulum-v5", "--device", "gpu"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: device 'gpu' cannot be used")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # as if something had been computed there
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(InputError, match="JAX computes on 'gpu' already"):
        runtime.set_device("cpu")
