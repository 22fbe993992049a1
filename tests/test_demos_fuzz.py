"""Mutated files: every reader gives demonstrations or an InputError, opens no pickle, and stays small and quick.

The mutants are made and read in a process of its own (fuzz_demos.py) with a gigabyte of memory to spare, so that a
crash of a C library or an endless allocation is seen as a failure here. Minari's datasets are slow to open: the test
that runs by default takes a quarter of the ten thousand mutants, the slow one all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_demos.py")
NEEDS = {"hf": "datasets", "hdf5": "h5py", "minari": "minari"}
FULL = 10_000


def fuzz(reader: str, count: int, *more: str) -> dict:
    if reader in NEEDS:
        pytest.importorskip(NEEDS[reader])
    command = [sys.executable, str(SCRIPT), reader, "--count", str(count), *more]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=alone, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout)


def check(figures: dict, count: int) -> None:
    assert figures["accepted"] + figures["refused"] == count
    assert not figures["pickle_opened"]
    assert figures["slowest"] < 2
    assert figures["peak_mb"] < 1000
    # The mutants must reach past the first check: many are refused, for many reasons, and some are harmless.
    assert figures["accepted"] > count / 50
    assert figures["refused"] > count / 2
    assert figures["messages"] > 40


@pytest.mark.parametrize("reader", ["oal", "sb", "imitation", "hf", "hdf5"])
def test_mutated_files(reader):
    check(fuzz(reader, FULL), FULL)


def test_some_mutated_minari_datasets():
    check(fuzz("minari", FULL // 4), FULL // 4)


@pytest.mark.slow
def test_all_mutated_minari_datasets():
    check(fuzz("minari", FULL, "--seed", "1"), FULL)


CARELESS_READERS = {
    "a pickle was opened": "numpy.load(io.BytesIO(data), allow_pickle=True)['obs']",
    "MemoryError": "numpy.ones(2**28)",
    "exit code -11": "os.kill(os.getpid(), signal.SIGSEGV)",
}


@pytest.mark.parametrize("says", CARELESS_READERS)
def test_a_careless_reader_is_found_out(says):
    """Otherwise the tests above would prove nothing."""
    code = f"""
import io, os, signal, sys, numpy
sys.path.insert(0, {str(SCRIPT.parent)!r})
import fuzz_demos
def careless(data):
    try:
        {CARELESS_READERS[says]}
    except (ValueError, KeyError, OSError, EOFError, fuzz_demos.zipfile.BadZipFile):
        pass
    return fuzz_demos.small_demos()
fuzz_demos.read_archive = careless
sys.argv = ["fuzz_demos.py", "sb", "--count", "300"]
sys.exit(fuzz_demos.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in f"exit code {done.returncode}\n{done.stderr}"
