"""The linear commands: what they print, what they write, how they refuse bad input; the page's Python block runs."""

import csv
import json
from pathlib import Path

import pytest

from test_cli_tabular import run
from test_readme import blocks

TINY = ["--demos", "20", "--episodes", "20", "--seeds", "2"]


def test_learn_prints_a_summary_and_writes_curves(capsys, monkeypatch, tmp_path):
    words = ["linear", "learn", "anchored:5000:4:3", "--horizon", "3", *TINY]
    code, out, _ = run(capsys, monkeypatch, *words, "--out", str(tmp_path))
    assert code == 0
    assert "AL regret per episode" in out
    assert "95 % interval is at most" in out
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1"]
    for row in rows:
        assert float(row["regret_low"]) <= float(row["regret_per_episode"]) <= float(row["regret_high"])
    assert {path.name for path in tmp_path.iterdir()} == {
        *("runs.csv", "regret.csv", "regret.png", "regret.svg", "config.json")
    }
    picture = (tmp_path / "regret.svg").read_text()
    assert ">10</text>" in picture  # plain numbers along a logarithmic axis, no unparsed formulas
    assert "mathdefault" not in picture
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["command"].startswith("oal linear learn anchored:5000:4:3")
    assert config["algorithm"] == "ogap"


@pytest.mark.parametrize(
    "words", [["chain:0.2", "--horizon", "4"], ["chain:0.2", "--algorithm", "ilarl", "--discount", "0.8"]]
)
def test_finite_mdps_are_exact_and_repeatable(capsys, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    code, first, _ = run(capsys, monkeypatch, "linear", "learn", *words, *TINY, "--json")
    assert code == 0
    document = json.loads(first)
    for one in document["runs"]:
        assert one["regret_low"] == one["regret_high"] == one["regret_per_episode"]
    assert run(capsys, monkeypatch, "linear", "learn", *words, *TINY, "--json")[1] == first


def test_scale_compares_dimensions_and_algorithms(capsys, monkeypatch, tmp_path):
    words = ["linear", "scale", "--states", "500", "--dimensions", "3,5", "--horizon", "3", *TINY]
    code, out, _ = run(capsys, monkeypatch, *words, "--out", str(tmp_path))
    assert code == 0
    assert "500 states" in out
    rows = list(csv.DictReader((tmp_path / "linear.csv").open()))
    assert [(row["algorithm"], row["dimension"]) for row in rows] == [
        (name, d) for d in ("3", "5") for name in ("OGAP", "BRIG", "ILARL")
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("linear.csv", "linear.png", "linear.svg", "regret.csv", "runs.csv", "config.json")
    }
    curves = list(csv.DictReader((tmp_path / "regret.csv").open()))
    assert {(row["algorithm"], row["seed"]) for row in curves} >= {("OGAP", "0"), ("ILARL", "1")}
    last = [row for row in curves if row["episode"] == "20" and row["algorithm"] == "OGAP" and row["dimension"] == "3"]
    mean = sum(float(row["regret"]) for row in last) / 2 / 20
    assert float(rows[0]["regret_per_episode"]) == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize(
    "words, message",
    [
        (["learn", "anchored:many"], "after the colon come whole numbers"),
        (["learn", "anchored:9:3:2:1"], "at most STATES, DIMENSION and ACTIONS"),
        (["learn", "anchored:2:3"], "number of states is 2"),
        (["learn", "lake"], "environment 'lake' is unknown"),
        (["learn", "anchored:100:3", "--algorithm", "lsvi"], "algorithm 'lsvi' is unknown"),
        (["learn", "anchored:100:3", "--discount", "0.9"], "OGAP needs a horizon"),
        (["learn", "anchored:100:3", "--discount", "0.9", "--horizon", "3"], "give one of the two"),
        (["learn", "anchored:100:3", "--demos", "0"], "--demos is 0"),
        (["learn", "anchored:100:3", "--episodes", "0"], "--episodes is 0"),
        (["scale", "--dimensions", "ten"], "--dimensions is 'ten'"),
        (["scale", "--horizon", "1"], "--horizon is 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, monkeypatch, "linear", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python", "docs/linear.md")
    names: dict = {}
    exec(compile(block, "linear.md", "exec"), names)
    assert names["learner"].episodes == 60
    assert 0 <= names["action"] < 5
    assert Path("linear.npz").exists()


def test_the_page_names_functions_and_tests_that_exist():
    import re

    import oal.linear.equations as equations
    from oal.linear import cholesky, players

    page = (Path(__file__).parent.parent / "docs" / "linear.md").read_text(encoding="utf-8")
    tests = (Path(__file__).parent / "test_linear.py").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|") and "`test_" in line]
    assert len(rows) >= 5
    for _, _, functions, compiled, named, _ in rows:
        assert all(hasattr(equations, name) for name in re.findall(r"`(\w+)`", functions))
        for module, name in re.findall(r"`(players|cholesky)\.(\w+)`", compiled):
            assert hasattr({"players": players, "cholesky": cholesky}[module], name)
        assert all(f"def {name}(" in tests for name in re.findall(r"`(test_\w+)`", named))
