"""Presets: the paper's two tables field by field, changes by dotted names, and the way through JSON."""

import json
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from oal.deep import presets
from oal.deep.mdpo import MDPO
from oal.deep.mirror import Mirror
from oal.deep.presets import (
    COSTS,
    OFF_POLICY,
    POLICIES,
    PRESETS,
    PUBLISHED,
    CostName,
    LearnerConfig,
    PolicyName,
    PresetName,
    players,
    policy_player,
    preset,
    with_settings,
)
from oal.errors import InputError

OF_PAPER = tuple(cost for cost in COSTS if cost not in PUBLISHED)
PAIRS = [(policy, cost) for policy in POLICIES for cost in OF_PAPER]
ON_POLICY = tuple(policy for policy in POLICIES if policy not in OFF_POLICY)

# The tables of the paper's section "Hyperparameters", row by row: (GAIL, OAL linear, OAL neural). A dash in the paper
# is left out here. "cost range" is [-10, 10] for neural costs and "L2 normalized" for linear ones; "cost MD sgd
# updates" is the number of minibatches per update, where the linear cost has one closed-form step by construction.
ON_POLICY_TABLE: dict[str, dict[str, Any]] = {
    "policy.batch_steps": {"gail": 1024, "linear": 2000, "neural": 2000},
    "cost.update_every": {"gail": 3072, "linear": 6000, "neural": 6000},
    "cost.learning_rate": {"gail": 3e-4, "neural": 9e-5},
    "cost.bregman": {"neural": 100.0},
    "cost.minibatches": {"gail": 1, "neural": 10},
    "cost.clip": {"gail": None, "neural": 10.0},
    "cost.geometry": {"linear": "normalised"},
    "cost.hidden": {"gail": (100, 100, 100), "neural": (100, 100, 100)},
    "cost.step": {"linear": 0.05},
    "cost.lipschitz": {"gail": 0.0, "neural": 1.0},
    "cost.output_entropy": {"gail": 0.001, "neural": 0.001},
    "cost.batch_size": {"gail": 128, "neural": 128},
    "policy.entropy_weight": {"gail": 0.0, "linear": 0.0, "neural": 0.0},
    "policy.gamma": {"gail": 0.99, "linear": 0.99, "neural": 0.99},
    "policy.critic_learning_rate": {"gail": 3e-4, "linear": 3e-4, "neural": 3e-4},
    "policy.critic_minibatch": {"gail": 128, "linear": 128, "neural": 128},
}
# "policy stepsize 0.5" of the mirror step, where the divergence has the weight 1/t; TRPO has no such step.
MDPO_ON_TABLE: dict[str, dict[str, Any]] = {
    "policy.kl_weight": {"gail": 2.0, "linear": 2.0, "neural": 2.0},
    "policy.learning_rate": {"gail": 3e-4, "linear": 3e-4, "neural": 3e-4},
}
OFF_POLICY_TABLE: dict[str, dict[str, Any]] = {
    "cost.clip": {"gail": None, "neural": 10.0},
    "cost.geometry": {"linear": "normalised"},
    "cost.hidden": {"gail": (100, 100, 100), "neural": (100, 100, 100)},
    "cost.step": {"linear": 0.05},
    "cost.lipschitz": {"gail": 0.0, "neural": 1.0},
    "cost.update_every": {"gail": 2000, "linear": 2000, "neural": 2000},
    "cost.output_entropy": {"gail": 0.001, "neural": 0.001},
    "cost.learning_rate": {"gail": 3e-4, "neural": 3e-4},
    "policy.batch_size": {"gail": 256, "linear": 256, "neural": 256},
    "policy.learning_rate": {"gail": 3e-4, "linear": 3e-4, "neural": 3e-4},
    "policy.gamma": {"gail": 0.99, "linear": 0.99, "neural": 0.99},
    "policy.target_rate": {"gail": 0.01, "linear": 0.01, "neural": 0.01},
    "replay.capacity": {"gail": 10**6, "linear": 10**6, "neural": 10**6},
}
# Off-policy, the reference code multiplies the divergence by the table's step size: 0.5 is the weight itself.
MDPO_TABLE: dict[str, dict[str, Any]] = {
    "policy.entropy_weight": {"gail": 0.0, "linear": 0.0, "neural": 0.0},
    "policy.kl_weight": {"gail": 0.5, "linear": 0.5, "neural": 0.5},
    "policy.policy_steps": {"gail": 10, "linear": 10, "neural": 10},
}
# What the tables leave open, as the reference code settles it.
REFERENCE_CODE: dict[str, dict[str, Any]] = {
    "policy.hidden": {"gail": (256, 256), "linear": (256, 256), "neural": (256, 256)},
    "policy.frozen_critic": {"gail": True, "linear": True, "neural": True},
    "policy.layer_norm": {"gail": False, "linear": False, "neural": False},
    "replay.warmup_steps": {"gail": 10_000, "linear": 10_000, "neural": 10_000},
    "replay.updates_per_step": {"gail": 1.0, "linear": 1.0, "neural": 1.0},
    "replay.expert_fraction": {"gail": 0.0, "linear": 0.0, "neural": 0.0},
    "cost.window": {"gail": 2000, "linear": 2000, "neural": 2000},
    "cost.average": {"linear": "episodes"},
    "cost.scale": {"gail": "own", "linear": "own", "neural": "own"},
    "cost.absorbing": {"gail": None, "linear": None, "neural": None},
    "cost.reading": {"gail": "softplus"},
    "cost.features": {"linear": "inputs"},
}


def field(config: LearnerConfig, dotted: str) -> Any:
    group, name = dotted.split(".")
    return getattr(getattr(config, f"{group}_config"), name)


@pytest.mark.parametrize(
    "policy, table",
    [
        *((policy, ON_POLICY_TABLE) for policy in ON_POLICY),
        ("mdpo-on", MDPO_ON_TABLE),
        *((policy, OFF_POLICY_TABLE) for policy in OFF_POLICY),
        ("mdpo", MDPO_TABLE),
        ("mdpo", REFERENCE_CODE),
    ],
)
@pytest.mark.parametrize("cost", OF_PAPER)
def test_the_papers_tables_are_held_field_by_field(policy: str, cost: str, table: dict[str, dict[str, Any]]) -> None:
    config = preset(policy, cost, "paper")
    held = {name: field(config, name) for name, row in table.items() if cost in row}
    assert held == {name: row[cost] for name, row in table.items() if cost in row}


def test_the_papers_policies_have_two_hidden_layers_and_nothing_of_ours() -> None:
    for policy, cost in PAIRS:
        config = preset(policy, cost, "paper")
        assert len(config.policy_config.hidden) == 2
        assert config.bc_config is None
        assert not config.normalise
        assert getattr(config.policy_config, "prior_weight", 0.0) == 0.0


@pytest.mark.parametrize("policy", ON_POLICY)
@pytest.mark.parametrize("cost", OF_PAPER)
def test_on_policy_costs_learn_from_the_steps_since_their_last_update(policy: str, cost: str) -> None:
    config = preset(policy, cost, "paper")
    assert config.cost_config.window == config.cost_config.update_every == 3 * field(config, "policy.batch_steps")
    assert config.replay_config is None


def test_every_pair_has_every_preset_and_says_what_it_is() -> None:
    for name in PRESETS:
        for policy, cost in PAIRS:
            if name == "sample-efficient" and policy not in OFF_POLICY:
                with pytest.raises(InputError, match="is for off-policy players"):
                    preset(policy, cost, name)
                continue
            config = preset(policy, cost, name)
            assert (config.policy, config.cost, config.preset) == (policy, cost, name)
            assert type(config.policy_config) is policy_player(policy, name).Config
            assert type(players(config)[0]) is policy_player(policy, name)
            assert type(config.cost_config) is COSTS[cost].Config
            assert (config.replay_config is not None) == (policy in OFF_POLICY)
            if config.replay_config is not None:
                assert config.replay_config.warmup_steps <= config.replay_config.capacity


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("policy, cost", PAIRS)
def test_settings_survive_the_way_through_json(policy: str, cost: str, name: str) -> None:
    if name == "sample-efficient" and policy not in OFF_POLICY:
        return
    settings = {"bc.epochs": 7, "policy.hidden": [3, 4, 5], "environments": 2, "normalise": name == "paper"}
    config = preset(policy, cost, name, settings=settings)
    read = LearnerConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert read == config
    assert hash(read) == hash(config)
    assert read.policy_config.hidden == (3, 4, 5)
    assert read.normalise == (name == "paper")


def test_dotted_names_change_single_fields() -> None:
    base = preset("mdpo", "neural")
    config = preset(
        "mdpo",
        "neural",
        settings={
            "policy.kl_weight": 1,
            "policy.hidden": [32],
            "cost.clip": None,
            "replay.block": 10,
            "environments": 4,
        },
    )
    assert config.policy_config == with_settings(base, {"policy.hidden": (32,), "policy.kl_weight": 1.0}).policy_config
    assert field(config, "policy.kl_weight") == 1.0
    assert isinstance(field(config, "policy.kl_weight"), float)
    assert config.cost_config.clip is None
    assert field(config, "replay.block") == 10
    assert config.environments == 4
    assert field(config, "policy.gamma") == field(base, "policy.gamma")
    assert base == preset("mdpo", "neural"), "presets are not changed"


def test_cloning_is_switched_on_and_off() -> None:
    without = preset("mdpo", "neural", "paper")
    assert without.bc_config is None
    on = with_settings(without, {"bc.epochs": 3})
    assert on.bc_config is not None
    assert on.bc_config.epochs == 3
    for off in ({"bc.epochs": 0}, {"bc.updates": 0}, {"bc": None}):
        assert with_settings(on, off).bc_config is None
        scratch = preset("mdpo", "neural", settings=off)
        assert scratch.bc_config is None
        assert scratch == with_settings(preset("mdpo", "neural"), {"bc": None}), "nothing else changes with it"
    with pytest.raises(InputError, match="bc is 5: None switches cloning off"):
        preset("mdpo", "neural", settings={"bc": 5})


def test_a_policy_player_alone_knows_nothing_of_the_expert() -> None:
    for policy in POLICIES:
        config = preset(policy, None)
        assert (config.cost, config.cost_config, config.bc_config) == (None, None, None)
        assert config.replay_config is None or config.replay_config.expert_fraction == 0.0
        assert LearnerConfig.from_json(config.to_json()) == config
        assert config.policy_config == preset(policy, "neural").policy_config


def test_mdpo_is_algorithm_3_in_the_papers_preset_and_ours_elsewhere() -> None:
    assert policy_player("mdpo", "paper") is MDPO
    assert policy_player("mdpo", "default") is Mirror
    for name in ("sac", "mdpo-on", "trpo"):
        assert policy_player(name, "paper") is policy_player(name, "default")


def test_every_player_of_the_default_preset_starts_from_the_same_clones() -> None:
    for policy, cost in PAIRS:
        config = preset(policy, cost)
        assert config.normalise
        assert config.bc_config is not None
        assert (config.bc_config.updates, config.bc_config.members) == (3_000, 5)
        if policy != "sac":  # whose temperature weighs the prior
            assert field(config, "policy.prior_weight") == (0.08 if policy in OFF_POLICY else 0.1)
        assert field(config, "bc.width") is None, "as wide as they are off"
        assert field(config, "cost.scale") == "evidence"
        assert field(config, "cost.absorbing") == 1.3


def test_a_default_run_has_few_settings_and_all_are_read() -> None:
    """Each is one that somebody may have to understand: a new one should replace an old one."""
    config = preset("mdpo", "neural")
    groups = {name: getattr(config, f"{name}_config") for name in ("policy", "cost", "replay", "bc")}
    counts = {name: len(fields(group)) for name, group in groups.items()}
    assert counts == {"policy": 12, "cost": 13, "replay": 6, "bc": 9}
    assert sum(counts.values()) <= 40
    code = "".join(path.read_text(encoding="utf-8") for path in Path(presets.__file__).parent.rglob("*.py"))
    for group in groups.values():
        for setting in fields(group):
            assert re.search(rf"(config|replay)\.{setting.name}\b", code), setting.name


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"policy.kl": 1.0}, "policy setting 'kl' is unknown: choose one of .*kl_weight"),
        ({"cost.nothing": 1.0}, "cost setting 'nothing' is unknown"),
        ({"replay.size": 1}, "replay setting 'size' is unknown: choose one of .*capacity"),
        ({"bc.steps": 1}, "bc setting 'steps' is unknown"),
        ({"actor.hidden": [3]}, "'actor' is unknown: choose one of policy, cost, replay, bc"),
        (
            {"seed": 1},
            r"'seed' is unknown: choose one of environments, normalise, policy\.NAME, cost\.NAME, replay\.NAME, bc",
        ),
        ({"normalise": "often"}, "learner.normalise is 'often'"),
        ({"environments": 0}, "environments is 0"),
        ({"environments": "two"}, "learner.environments is 'two'"),
        ({"policy.gamma": 1.0}, "gamma is 1.0"),
        ({"policy.gamma": "high"}, "policy.gamma is 'high'"),
        ({"cost.scale": "largest"}, "scale 'largest' is unknown: choose one of own, unit, evidence"),
        ({"cost.window": 0}, "window is 0"),
        ({"cost.absorbing": -1.0}, "absorbing is -1.0"),
        ({"cost.data": "window"}, "cost setting 'data' is unknown"),
        ({"policy.anchor_weight": 1.0}, "policy setting 'anchor_weight' is unknown"),
        ({"bc.patience": 5}, "bc setting 'patience' is unknown"),
        ({"policy.": 3}, "policy setting '' is unknown"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        preset("mdpo", "neural", settings=settings)


def test_settings_of_the_replay_are_for_off_policy_players() -> None:
    with pytest.raises(InputError, match=r"replay\.block is for off-policy players, not for trpo"):
        preset("trpo", "neural", settings={"replay.block": 10})


@pytest.mark.parametrize(
    "names, message",
    [
        (("ppo", "neural", "paper"), "policy 'ppo' is unknown: choose one of mdpo, sac, mdpo-on, trpo"),
        (("mdpo", "wgan", "paper"), "cost 'wgan' is unknown: choose one of linear, neural, gail"),
        (("mdpo", "neural", "best"), "preset 'best' is unknown: choose one of default, sample-efficient, paper"),
    ],
)
def test_unknown_players_and_presets_are_refused(names: tuple[str, str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        preset(*names)


def test_what_is_no_configuration_is_refused() -> None:
    whole = preset("mdpo", "neural").to_json()
    for change, message in (
        ({"policy": "ppo"}, "policy 'ppo' is unknown"),
        ({"policy": "mdpo-prior"}, "policy 'mdpo-prior' is unknown"),
        ({"cost": "linear"}, "cost setting 'hidden' is unknown"),
        ({"colour": 1}, "learner setting 'colour' is unknown"),
        ({"policy_config": {**whole["policy_config"], "old_field": 1}}, "policy setting 'old_field' is unknown"),
    ):
        with pytest.raises(InputError, match=message):
            LearnerConfig.from_json({**whole, **change})
    for missing in ("policy", "preset", "policy_config", "replay_config"):
        with pytest.raises(InputError, match=f"lack '{missing}'"):
            LearnerConfig.from_json({name: value for name, value in whole.items() if name != missing})


def test_names_for_editors_and_the_shell_are_those_of_the_players() -> None:
    shell = import_module("oal.cli.train")
    assert get_args(PolicyName) == tuple(POLICIES) == tuple(shell.POLICIES)
    assert set(get_args(CostName)) == set(COSTS) == set(shell.COSTS)
    assert get_args(PresetName) == PRESETS == tuple(shell.PRESETS)
