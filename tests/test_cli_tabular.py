"""The tabular commands: what they print, what they write, and how they refuse bad input."""

import csv
import json
import os
import subprocess
import sys

import pytest

from oal.cli import main


def run(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    """Run the command line in this process, as a user would."""
    monkeypatch.setattr(sys, "argv", ["oal", *words])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_learn_prints_a_summary_and_writes_curves(capsys, monkeypatch, tmp_path):
    words = ["tabular", "learn", "chain:0.1", "--demos", "20", "--episodes", "200", "--seeds", "3", "--horizon", "6"]
    code, out, _ = run(capsys, monkeypatch, *words, "--out", str(tmp_path))
    assert code == 0
    assert "AL regret per episode" in out
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    assert {path.name for path in tmp_path.iterdir()} >= {"regret.csv", "regret.png", "regret.svg", "config.json"}
    assert json.loads((tmp_path / "config.json").read_text())["command"].startswith("oal tabular learn chain:0.1")


@pytest.mark.parametrize("cost_set", ["box", "l2", "simplex"])
def test_learn_as_json_is_repeatable(capsys, monkeypatch, cost_set):
    words = ["tabular", "learn", "garnet:6:2", "--episodes", "100", "--seeds", "2", "--cost-set", cost_set, "--json"]
    code, first, _ = run(capsys, monkeypatch, *words)
    assert code == 0
    document = json.loads(first)
    assert document["cost_set"] == cost_set
    assert len(document["runs"]) == 2
    assert run(capsys, monkeypatch, *words)[1] == first


def test_learn_from_samples_only_estimates_the_regret(capsys, monkeypatch):
    words = [
        "tabular",
        "learn",
        "FrozenLake-v1",
        "--samples-only",
        "--horizon",
        "8",
        "--episodes",
        "60",
        "--seeds",
        "1",
    ]
    code, out, _ = run(capsys, monkeypatch, *words, "--json")
    assert code == 0
    result = json.loads(out)["runs"][0]
    assert result["low"] <= result["regret_per_episode"] <= result["high"]


def test_compare_lists_the_algorithms_and_the_mdps_they_solved(capsys, monkeypatch):
    words = ["tabular", "compare", "garnet:6:2", "--horizon", "4", "--iterations", "20", "--episodes", "100", "--json"]
    code, out, _ = run(capsys, monkeypatch, *words, "--cost-set", "simplex")
    assert code == 0
    rows = {(row["algorithm"], row["model"]): row for row in json.loads(out)}
    assert any("MWAL" in algorithm for algorithm, _ in rows)
    assert {("SOAR, policies played", "estimated"), ("MB-TAIL, policy returned", "estimated")} <= set(rows)
    oal = [row for (algorithm, _), row in rows.items() if algorithm.startswith("OAL")]
    assert oal
    assert all(row["mdps_solved"] == 0 for row in oal)


def test_compare_without_an_environment_draws_the_figure_of_all(capsys, monkeypatch, tmp_path):
    words = ["--quick", "--task", "chain", "--episodes", "20", "--seeds", "2", "--threads", "1", "--out", str(tmp_path)]
    code, out, _ = run(capsys, monkeypatch, "tabular", "compare", *words)
    assert code == 0
    assert "verdict" in out
    rows = list(csv.DictReader((tmp_path / "newer.csv").open()))
    # every algorithm at every length, on the one task that was named
    assert {row["task"] for row in rows} == {"chain"}
    assert len({row["variant"] for row in rows}) * len({row["episodes"] for row in rows}) == len(rows)
    assert {"BC", "explore, then plan", "OAL, default", "SOAR", "MB-TAIL"} <= {row["variant"] for row in rows}
    assert {row["seeds"] for row in rows} == {"2"}
    assert {row["episodes"] for row in rows} == {"1", "4", "20"}
    claims = list(csv.DictReader((tmp_path / "claims.csv").open()))
    assert {row["claim"] for row in claims} == {"below OAL's default", "OAL's default below what came before"}
    assert (tmp_path / "newer.png").stat().st_size > 1000
    assert json.loads((tmp_path / "config.json").read_text())["command"].startswith("oal tabular compare --quick")


BAD = [
    (["tabular", "learn", "chan"], "environment 'chan' is unknown"),
    (["tabular", "learn", "chain:x"], "environment 'chain:x'"),
    (["tabular", "learn", "chain:2"], "alpha is 2.0"),
    (["tabular", "learn", "Hopper-v5"], "Discrete spaces"),
    (["tabular", "learn", "NoSuch-v0"], "NoSuch"),
    (["tabular", "learn", "chain", "--demos", "0"], "--demos is 0"),
    (["tabular", "learn", "chain", "--episodes", "0"], "--episodes is 0"),
    (["tabular", "learn", "chain", "--seeds", "0"], "--seeds is 0"),
    (["tabular", "learn", "chain", "--cost-set", "cone"], "cost set 'cone' is unknown"),
    (["tabular", "learn", "chain", "--preset", "mine"], "preset 'mine' is unknown"),
    (["tabular", "learn", "chain", "--samples-only"], "--samples-only is for Gymnasium environments"),
    (["tabular", "learn", "spawn", "--pooled"], "depend on the step"),
    (["tabular", "learn", "chain", "--expert", "oracle"], "expert 'oracle' is unknown"),
    (["tabular", "learn", "chain", "--preset", "mb-tail", "--demos", "1"], "two demonstrations or more"),
    (["tabular", "compare", "chain", "--expert", "oracle"], "expert 'oracle' is unknown"),
    (["tabular", "compare", "chain", "--quick"], "--quick does not go with this comparison, where chain is"),
    (["tabular", "compare", "--cost-set", "box"], "--cost-set does not go with this comparison, where no env"),
    (["tabular", "compare", "--json"], "--json does not go with this comparison, where no environment"),
    (["tabular", "compare", "--task", "chess"], "task 'chess' is unknown"),
    (["figure", "nothing"], "figure 'nothing' is unknown"),
    (["figure", "bc", "--task", "chain"], "the figure bc has no option --task"),
    (["figure", "newer", "--task", "chess"], "task 'chess' is unknown"),
    (["figure", "bc", "--demos", "3"], "the figure bc has no option --demos"),
    (["figure", "gail-vs-oal", "--quick"], "the figure gail-vs-oal has no option --quick"),
    (["figure", "suite", "--scale", "smoke"], "the figure suite has no option --scale"),
    (["figure", "suite", "--until-decided"], "the figure suite has no option --until-decided"),
    (["figure", "lipschitz", "--regime", "one"], "the figure lipschitz has no option --regime"),
    (["figure", "bc", "--steps", "100"], "the figure bc has no option --steps"),
    (["figure", "exploration", "--seeds", "0"], "number of seeds is 0"),
]


@pytest.mark.parametrize("words,message", BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(capsys, monkeypatch, words, message):
    code, _, err = run(capsys, monkeypatch, *words)
    assert code == 2
    lines = [line for line in err.strip().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err


def test_demo_ends_with_pictures(tmp_path):
    """In a process of its own, as the command sets the threads of libraries that are not loaded yet."""
    words = ["demo", "--out", str(tmp_path), "--steps", "1000", "--episodes", "300", "--seeds", "2"]
    # programs of full size take twice as long where the fast tests' are compiled without care (conftest.py)
    carefully = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    command = [sys.executable, "-m", "oal", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=carefully)
    assert done.returncode == 0, done.stderr
    assert "behavioural cloning" in done.stdout
    assert "kernel" in done.stdout
    for picture in ("demo.png", "grid.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    for film in ("video.gif", "expert.gif"):
        assert (tmp_path / "run" / film).read_bytes().startswith(b"GIF8")
