"""Mutated files of every kind but demonstrations (test_demos_fuzz.py): each is read, or refused with an InputError.

Two hundred for each reader here, in a process of their own (fuzz_readers.py); `make fuzz` reads ten thousand.
"""

from pathlib import Path

import pytest

import fuzz_readers

COUNT = 200


@pytest.mark.parametrize("reader", fuzz_readers.CASES)
def test_mutated_files(reader: str, tmp_path: Path) -> None:
    row = fuzz_readers.fuzz([reader], COUNT, 0, tmp_path)[reader]
    assert not row["findings"]
    # mutants must get past the first check: some are harmless, and the others are refused for many reasons
    assert row["read"] + row["refused"] == COUNT
    assert row["read"] > COUNT / 50
    assert row["refused"] > COUNT / 10
    assert len(row["messages"]) > 8
    assert row["slowest"] < 5


CARELESS = {
    "TypeError": "None + 1",
    "MemoryError": "bytearray(8 << 30)",
    "exit code -11": "os.kill(os.getpid(), 11)",
    "Slow": "time.sleep(30)",
}


@pytest.mark.parametrize("says", CARELESS)
def test_a_careless_reader_is_found_out(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove nothing; the file of each finding is kept, and the others are read too."""
    code = f"""
import os, sys, time
sys.path.insert(0, {str(Path(fuzz_readers.__file__).parent)!r})
import fuzz_readers
fuzz_readers.SECONDS = 1
def careless(folder):
    path = folder / "file"
    def read():
        if path.read_text() == "3":
            {CARELESS[says]}
    numbers = iter(range({{first}}, 10))
    return read, lambda rng: path.write_text(str(next(numbers)))
fuzz_readers.CASES["metrics"] = lambda folder: careless(folder)
fuzz_readers.main()
"""
    script = tmp_path / "careless.py"
    script.write_text(code.replace("{first}", "int(sys.argv[sys.argv.index('--first') + 1])"))
    monkeypatch.setattr(fuzz_readers, "__file__", str(script))
    table = fuzz_readers.fuzz(["metrics"], 6, 0, tmp_path / "kept")
    assert (table["metrics"]["read"], table["metrics"]["finding"]) == (5, 1)
    assert says in table["metrics"]["findings"][0][1]
    assert (tmp_path / "kept" / "metrics-0-3" / "file").read_text() == "3"
    assert (tmp_path / "kept" / "metrics-0-3" / "why.txt").exists()
