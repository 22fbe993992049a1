"""Settings of the deep learners: the paper's two tables, ours, and how a user's changes enter them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from oal.base import config as configs
from oal.deep.bc import PAPER_BC, BCConfig
from oal.deep.costs import COSTS, AnyCostConfig, CSILConfig, DACConfig, FeatureFunction, SQILConfig, cost_player
from oal.deep.costs.environment import EnvironmentCost
from oal.deep.costs.gail import GAILConfig
from oal.deep.costs.linear import LinearConfig
from oal.deep.costs.neural import NeuralConfig
from oal.deep.mdpo import MDPO, MDPOConfig
from oal.deep.mdpo_on import PAPER_MDPO_ON, MDPOOn, MDPOOnConfig
from oal.deep.mirror import Mirror, MirrorConfig
from oal.deep.offpolicy import ReplayConfig
from oal.deep.players import CostPlayer, PolicyPlayer
from oal.deep.replay import MAX_ENVIRONMENTS
from oal.deep.sac import SAC, SACConfig
from oal.deep.trpo import PAPER_TRPO, TRPO, TRPOConfig
from oal.errors import InputError, at_least, at_most, choice

AnyPolicyConfig = MirrorConfig | MDPOConfig | SACConfig | MDPOOnConfig | TRPOConfig

PRESETS = ("default", "sample-efficient", "paper")
"""Ours, for the best return per minute on two cores; the same with more updates, for the best per environment step; and
the paper's tables."""
POLICIES = ("mdpo", "sac", "mdpo-on", "trpo")
# for completion in editors; the names are those of the classes
PolicyName = Literal["mdpo", "sac", "mdpo-on", "trpo"]
CostName = Literal["linear", "neural", "gail", "sqil", "dac", "csil"]
PresetName = Literal["default", "sample-efficient", "paper"]
OFF_POLICY = ("mdpo", "sac")
PUBLISHED: dict[str, AnyCostConfig] = {"sqil": SQILConfig(), "dac": DACConfig(), "csil": CSILConfig()}
"""Costs of other papers, as those papers have them, in every preset."""
UPDATES_PER_STEP = 6.0
"""Of the preset sample-efficient; the default has 2."""


def policy_player(name: str, preset: str) -> type[Any]:
    """Return the class of a policy player: "mdpo" is Algorithm 3 in the paper's preset, and ours in the others."""
    players = (MDPO if preset == "paper" else Mirror, SAC, MDPOOn, TRPO)
    return dict(zip(POLICIES, players, strict=True))[choice("policy", name, POLICIES)]


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that decides how a learner learns, apart from the environment, the demonstrations and the seed."""

    policy: str
    cost: str | None
    """None: there is no cost player, the environment's own cost is paid."""
    preset: str
    policy_config: AnyPolicyConfig | None
    """None for a player of the user's own, which knows its settings itself; likewise below."""
    cost_config: AnyCostConfig | None
    replay_config: ReplayConfig | None
    """None for on-policy players."""
    bc_config: BCConfig | None
    """Behavioural cloning of the policy before learning; None for a random start."""
    normalise: bool = False
    """Both players see observations standardised by the demonstrations."""
    environments: int = 1

    def __post_init__(self) -> None:
        at_least("environments", self.environments, 1)
        at_most("environments", self.environments, MAX_ENVIRONMENTS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LearnerConfig":
        """Read what `to_json` gave; unknown players and fields are errors."""
        built: dict[str, Any] = {}
        kinds: dict[str, Callable[[], type[Any]]] = {
            "policy": lambda: policy_player(value["policy"], value["preset"]).Config,
            "cost": lambda: COSTS[choice("cost", value["cost"], COSTS)].Config,
            "replay": lambda: ReplayConfig,
            "bc": lambda: BCConfig,
        }
        for group, kind in kinds.items():
            try:
                given = value[f"{group}_config"]
                if given is not None:
                    given = configs.build(kind(), given, name=group)
            except KeyError as error:
                raise InputError(f"the learner's settings lack {error}") from None
            built[f"{group}_config"] = given
        return configs.build(cls, {**value, **built}, name="learner")


def preset(
    policy: str | PolicyPlayer,
    cost: str | CostPlayer | None,
    name: str = "default",
    *,
    settings: Mapping[str, Any] | None = None,
) -> LearnerConfig:
    """Return the settings of a policy player and a cost player, with the user's changes.

    `settings` are dotted: policy.kl_weight, cost.step, replay.warmup_steps, bc.updates (any bc.* switches cloning on;
    bc=None, bc.updates=0 or bc.epochs=0 switches it off), environments, normalise. A player that is an object has its
    settings already.
    """
    choice("preset", name, PRESETS)
    names = [
        choice("policy", policy, POLICIES) if isinstance(policy, str) else "mdpo",
        choice("cost", cost, COSTS) if isinstance(cost, str) else "neural",
    ]
    if names[1] == "sqil" and names[0] not in OFF_POLICY:
        raise InputError(
            f"the cost sqil prices the expert's steps in a memory: '{names[0]}' has none, choose mdpo or sac"
        )
    base = _paper(*names) if name == "paper" else _default(*names)
    if names[1] == "sqil" and base.replay_config is not None:
        # half of each batch are the expert's, which is all that there is to learn from
        base = replace(base, replay_config=replace(base.replay_config, expert_fraction=0.5))
    if name == "sample-efficient":
        if base.replay_config is None:
            raise InputError(f"the preset sample-efficient is for off-policy players: '{names[0]}' uses a step once")
        more = replace(base.replay_config, updates_per_step=UPDATES_PER_STEP)
        base = replace(base, preset=name, replay_config=more)
    if not isinstance(policy, str):
        base = replace(base, policy=policy.name, policy_config=None, replay_config=None, bc_config=None)
    if not isinstance(cost, str):
        base = replace(base, cost=None if cost is None else cost.name, cost_config=None)
    settings = settings or {}
    if cost is None and not any(setting.startswith("bc.") for setting in settings):
        # a policy player alone, and nothing of the expert in it
        alone = None if base.replay_config is None else replace(base.replay_config, expert_fraction=0.0)
        base = replace(base, bc_config=None, replay_config=alone)
    made = with_settings(base, settings)
    if cost == "sqil" and made.replay_config is not None and made.replay_config.expert_fraction == 0.0:
        raise InputError("replay.expert_fraction is 0: the cost sqil needs the expert's steps in the batches")
    return made


def players(
    config: LearnerConfig,
    policy: str | PolicyPlayer = "",
    cost: str | CostPlayer | None = "",
    *,
    features: FeatureFunction | None = None,
) -> tuple[PolicyPlayer, CostPlayer]:
    """Return both players: those that are objects as they are, the others as the configuration has them."""
    if not isinstance(policy, str):
        chosen = policy
    elif config.policy_config is None:
        raise InputError(f"the policy player '{config.policy}' is not one of oal's: give the object as policy=")
    else:
        replay = () if config.replay_config is None else (config.replay_config,)
        chosen = policy_player(config.policy, config.preset)(config.policy_config, *replay)
    if config.cost_config is not None:
        return chosen, cost_player(config.cost_config, function=features)
    if features is not None:
        raise InputError(f"a feature function is for the linear cost, not for '{config.cost}'")
    if cost is not None and not isinstance(cost, str):
        return chosen, cost
    if config.cost is not None:
        raise InputError(f"the cost player '{config.cost}' is not one of oal's: give the object as cost=")
    return chosen, EnvironmentCost()


ALGORITHMS = {"environment": "RL"} | {name: name.upper() for name in ("gail", *PUBLISHED)}
"""What the loop is called with a cost player; with any other it is OAL."""


def algorithm(cost: CostPlayer) -> str:
    """Return the name of the loop with this cost player."""
    return ALGORITHMS.get(cost.name, "OAL")


def with_settings(config: LearnerConfig, settings: Mapping[str, Any]) -> LearnerConfig:
    """Return a configuration with dotted settings changed."""
    groups: dict[str, dict[str, Any]] = {}
    for dotted, value in settings.items():
        group, dot, field = dotted.partition(".")
        if not dot:
            groups_known = (f"{name}.NAME" for name in ("policy", "cost", "replay"))
            choice("setting", group, ("environments", "normalise", *groups_known, "bc", "bc.NAME"))
            if group == "bc":
                if value is not None:
                    raise InputError(f"bc is {value}: None switches cloning off, bc.updates and the like change it")
                group = "bc_config"
            config = configs.changed(config, {group: value}, name="learner")
            continue
        choice(f"setting '{dotted}': group", group, ("policy", "cost", "replay", "bc"))
        groups.setdefault(group, {})[field] = value
    for group, values in groups.items():
        current = getattr(config, f"{group}_config")
        if group == "replay" and current is None:
            raise InputError(
                f"the setting replay.{next(iter(values))} is for off-policy players, not for {config.policy}"
            )
        if group in ("policy", "cost") and current is None:
            raise InputError(
                f"the setting {group}.{next(iter(values))} is for oal's own players: '{getattr(config, group)}' has "
                "its settings already"
            )
        if group == "bc":
            if 0 in (values.get("updates"), values.get("epochs")):
                config = replace(config, bc_config=None)
                continue
            current = current or (PAPER_BC if config.preset == "paper" else BCConfig())
        config = replace(config, **{f"{group}_config": configs.changed(current, values, name=group)})
    return config


def _paper(policy: str, cost: str) -> LearnerConfig:
    """The paper's tables; what they leave open is as in the reference code (see docs/deviations.md)."""
    costs: dict[str, AnyCostConfig]
    if policy in OFF_POLICY:
        costs = {
            "linear": LinearConfig(average="episodes"),
            "neural": NeuralConfig(),
            "gail": GAILConfig(),
            **PUBLISHED,
        }
        policies = {"mdpo": MDPOConfig(), "sac": SACConfig(target_rate=0.01)}
        return LearnerConfig(
            policy, cost, "paper", policies[policy], costs[cost], replay_config=ReplayConfig(), bc_config=None
        )
    # on-policy: the cost moves every third batch, on the pairs of those three batches
    batch = 1_024 if cost == "gail" else 2_000
    span: dict[str, Any] = {"update_every": 3 * batch, "window": 3 * batch}
    costs = {
        "linear": LinearConfig(average="episodes", **span),
        "neural": NeuralConfig(learning_rate=9e-5, bregman=100.0, minibatches=10, **span),
        "gail": GAILConfig(minibatches=1, **span),
        **PUBLISHED,
    }
    policy_config = replace(PAPER_MDPO_ON if policy == "mdpo-on" else PAPER_TRPO, batch_steps=batch)
    return LearnerConfig(policy, cost, "paper", policy_config, costs[cost], replay_config=None, bc_config=None)


def _default(policy: str, cost: str) -> LearnerConfig:
    """Ours; docs/deep.md says how it learns, experiments/ingredients.toml leaves its ingredients out one by one."""
    shared: dict[str, Any] = {"scale": "evidence", "clip": 5.0, "absorbing": 1.3}
    network: dict[str, Any] = {
        **shared,
        "hidden": (100, 100),
        "window": None,
        "update_every": 100,
        "minibatches": 10,
        "batch_size": 100,
        "lipschitz": 10.0,
    }
    costs: dict[str, AnyCostConfig] = {
        "linear": LinearConfig(geometry="l2", update_every=500, window=5_000, **shared),
        "neural": NeuralConfig(**network),
        "gail": GAILConfig(reading="logit", **network),
        **PUBLISHED,
    }
    cost_config, replay_config = costs[cost], None
    networks: dict[str, Any] = {"hidden": (256, 256), "activation": "relu", "prior_weight": 0.1}
    policy_config: AnyPolicyConfig
    match policy:
        case "mdpo":
            policy_config = MirrorConfig()
        case "sac":
            policy_config = SACConfig(batch_size=128, layer_norm=True)
        case "mdpo-on":
            policy_config = MDPOOnConfig(**networks)
        case _:
            policy_config = TRPOConfig(**networks)
    if policy in OFF_POLICY:
        replay_config = ReplayConfig(warmup_steps=1_000, updates_per_step=2.0, n_steps=5, expert_fraction=0.25)
    else:
        # a batch of fresh steps at a time: the costs move with it
        cost_config = replace(cost_config, update_every=2_000, window=6_000)
    cloning = BCConfig(updates=3_000, members=5, width=None)
    return LearnerConfig(policy, cost, "default", policy_config, cost_config, replay_config, cloning, normalise=True)
