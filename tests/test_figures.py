"""The tabular figures: what they write, and how claims are decided."""

import csv
import json

import numpy as np
import pytest

from oal.lab import figures
from oal.tabular import mdp

TINY = {
    "exploration": {
        "seeds": 3,
        "episodes": 60,
        "horizon": 5,
        "demonstrations": (1, 4, 16),
        "scales": (0.01,),
        "scale_demonstrations": (4,),
    },
    "noise": {"seeds": 3, "episodes": 60, "horizon": 5, "alphas": (0.1, 0.5), "demonstrations": 5},
    "bc": {"seeds": 3, "bc_seeds": 20, "episodes": 60, "n_states": 6, "demonstrations": (1, 5, 50)},
    "options": {"seeds": 2, "episodes": 20, "variants": ("paper", "default", "default, per-step model")},
}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_writes_data_pictures_configuration_and_claims(name, tmp_path):
    claims = figures.FIGURES[name](tmp_path, threads=1, show_progress=False, **TINY[name])
    assert claims
    assert {claim.verdict for claim in claims} <= {"holds", "fails", "undecided"}
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {f"{name}.csv", f"{name}.png", f"{name}.svg", "claims.csv", "config.json"}
    rows = list(csv.DictReader((tmp_path / f"{name}.csv").open()))
    assert all(float(row["half_width_95"]) >= 0 and float(row["mean"]) >= 0 for row in rows)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["seeds"] == TINY[name]["seeds"]
    assert {"command", "commit", "versions"} <= set(config)


def test_a_figure_is_the_same_whatever_the_threads(tmp_path):
    for threads in (1, 3):
        figures.noise(tmp_path / str(threads), threads=threads, show_progress=False, **TINY["noise"])
    assert (tmp_path / "1" / "noise.csv").read_text() == (tmp_path / "3" / "noise.csv").read_text()


def test_bc_column_is_the_regret_of_cloning(tmp_path):
    """With every start demonstrated, cloning is the expert; with one, it errs at the other starts."""
    figures.bc(tmp_path, seeds=2, bc_seeds=30, episodes=20, n_states=4, demonstrations=(1, 400), show_progress=False)
    rows = {
        (int(r["demonstrations"]), r["variant"]): float(r["mean"]) for r in csv.DictReader((tmp_path / "bc.csv").open())
    }
    assert rows[400, "BC"] == pytest.approx(0, abs=1e-12)
    problem = mdp.spawn(4)
    expert = mdp.occupancy(problem, mdp.expert_policy(problem))
    one = mdp.Trajectories(np.array([[2, 0, 0]]), np.array([[0, 0, 0]]))
    from oal.tabular.learner import behavioural_cloning

    by_hand = np.maximum(mdp.occupancy(problem, behavioural_cloning(one, problem.shape)) - expert, 0).sum()
    assert 0 < rows[1, "BC"] <= by_hand * 1.5
