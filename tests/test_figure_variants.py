"""Each variant of a tabular figure runs with what its name says: its numbers against Algorithm 2 set up by hand."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from oal.base import seeding
from oal.cli import app
from oal.tabular import TabularOAL, mdp

SEEDS, EPISODES = 2, 200


def means(folder, name: str, *options: str) -> dict[tuple[str, ...], float]:
    """Draw a figure on the command line; return its means by whatever else its rows say."""
    words = ["figure", name, "--quick", "--seeds", str(SEEDS), "--episodes", str(EPISODES), "--threads", "1", *options]
    done = CliRunner().invoke(app, [*words, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    rows = csv.DictReader((folder / f"{name}.csv").open())
    keys = ("task", "alpha", "demonstrations", "variant")
    return {tuple(row[key] for key in keys if key in row): float(row["mean"]) for row in rows}


def by_hand(problem: mdp.FiniteMDP, demonstrations: int, **settings) -> float:
    """The mean regret per episode of Algorithm 2 with these settings."""
    regrets = []
    for seed in range(SEEDS):
        rng = seeding.generator(seed, "demonstrations", demonstrations)
        demos = mdp.sample(problem, mdp.expert_policy(problem), demonstrations, rng=rng)
        regrets.append(TabularOAL(problem, demos, seed=seed, **settings).learn(EPISODES).regret[-1] / EPISODES)
    return float(np.mean(regrets))


def check(found: dict[tuple[str, ...], float], expected: dict[tuple[str, ...], float]) -> None:
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert np.diff(sorted(expected.values())).min() > 1e-5, "the variants are too much alike to be told apart"


FOUR = {
    "no bonus": {"bonus_scale": 0.0, "expert_model": False},
    "bonus": {"bonus_scale": 0.005, "expert_model": False},
    "no bonus, expert model": {"bonus_scale": 0.0, "expert_model": True},
    "bonus, expert model": {"bonus_scale": 0.005, "expert_model": True},
}
# Larger steps than the paper's, so that a few hundred episodes tell the variants apart.
STEPS = {"policy_step_scale": 30.0, "cost_step_scale": 10.0}
STEP_OPTIONS = ("--policy-step-scale", "30", "--cost-step-scale", "10")


def test_exploration(tmp_path):
    problem = mdp.chain(32, 0.1)
    found = means(tmp_path, "exploration", *STEP_OPTIONS)
    check(found, {("10", name): by_hand(problem, 10, preset="paper", **STEPS, **own) for name, own in FOUR.items()})


def test_noise(tmp_path):
    problem = mdp.chain(32, 0.3)
    found = means(tmp_path, "noise", *STEP_OPTIONS, "--demos", "20")
    check(found, {("0.3", name): by_hand(problem, 20, preset="paper", **STEPS, **own) for name, own in FOUR.items()})


def test_bc(tmp_path):
    problem = mdp.spawn(50, 3)
    expected = by_hand(problem, 10, preset="paper", bonus_scale=0.005, policy_start="bc")
    assert means(tmp_path, "bc")["10", "OAL from BC"] == pytest.approx(expected, abs=1e-6)
    assert abs(expected - by_hand(problem, 10, preset="paper", bonus_scale=0.005)) > 1e-3


def test_options(tmp_path):
    problem = mdp.chain(32, 0.1)
    options = {
        "paper": {"preset": "paper"},
        "default": {"preset": "default"},
        "default, per-step model": {"preset": "default", "pooled": False},
    }
    found = {(variant,): mean for (task, _, variant), mean in means(tmp_path, "options").items() if task == "chain"}
    check(found, {(name,): by_hand(problem, 100, **own) for name, own in options.items()})


def test_optimism(tmp_path):
    problem = mdp.chain(32, 0.1)
    options = {
        "no bonus": {"bonus_scale": 0.0},
        "theorem's bonus": {},
        "pooled, KL sets": {"bonus": "kl", "pooled": True},
    }
    found = {(v,): mean for (_, v), mean in means(tmp_path, "optimism").items() if v in options}
    check(found, {(name,): by_hand(problem, 10, preset="paper", **own) for name, own in options.items()})
