"""Settings of the deep learners: the paper's two tables, ours, and how a user's changes enter them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from oal.base import config as configs
from oal.deep.anchored import AnchoredConfig, AnchoredMDPO
from oal.deep.bc import PAPER_BC, BCConfig
from oal.deep.costs import COSTS, AnyCostConfig, FeatureFunction, cost_player
from oal.deep.costs.environment import EnvironmentCost
from oal.deep.costs.gail import GAILConfig
from oal.deep.costs.linear import LinearConfig
from oal.deep.costs.network import NetworkConfig
from oal.deep.costs.neural import NeuralConfig
from oal.deep.mdpo_on import PAPER_MDPO_ON, MDPOOn, MDPOOnConfig
from oal.deep.offpolicy import ReplayConfig
from oal.deep.players import CostPlayer, PolicyPlayer
from oal.deep.prior import PriorConfig, PriorMDPO
from oal.deep.sac import SAC, SACConfig
from oal.deep.trpo import PAPER_TRPO, TRPO, TRPOConfig
from oal.errors import InputError, at_least, choice

AnyPolicyConfig = AnchoredConfig | PriorConfig | SACConfig | MDPOOnConfig | TRPOConfig

POLICIES: dict[str, type[Any]] = {player.name: player for player in (AnchoredMDPO, PriorMDPO, SAC, MDPOOn, TRPO)}
PRESETS = ("default", "paper")
# for completion in editors; the names are those of the classes
PolicyName = Literal["mdpo", "mdpo-prior", "sac", "mdpo-on", "trpo"]
CostName = Literal["linear", "neural", "gail"]
PresetName = Literal["default", "paper"]
OFF_POLICY = ("mdpo", "mdpo-prior", "sac")
PAPER_POLICIES = ("mdpo", "sac", "mdpo-on", "trpo")


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
    environments: int = 1

    def __post_init__(self) -> None:
        at_least("environments", self.environments, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LearnerConfig":
        """Read what `to_json` gave; unknown players and fields are errors."""
        built: dict[str, Any] = {}
        for group, kinds in {"policy": POLICIES, "cost": COSTS, "replay": ReplayConfig, "bc": BCConfig}.items():
            try:
                given = value[f"{group}_config"]
                if given is not None:
                    kind = kinds[choice(group, value[group], kinds)].Config if isinstance(kinds, dict) else kinds
                    given = configs.build(kind, given, name=group)
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
    bc.updates=0 or bc.epochs=0 switches it off), environments. A player that is an object has its settings already.
    """
    choice("preset", name, PRESETS)
    names = [
        choice("policy", policy, POLICIES) if isinstance(policy, str) else "mdpo",
        choice("cost", cost, COSTS) if isinstance(cost, str) else "neural",
    ]
    if name == "paper" and names[0] not in PAPER_POLICIES:
        raise InputError(f"the paper has no policy player '{names[0]}': use the preset default")
    base = _paper(*names) if name == "paper" else _default(*names)
    if not isinstance(policy, str):
        base = replace(base, policy=policy.name, policy_config=None, replay_config=None, bc_config=None)
    if not isinstance(cost, str):
        base = replace(base, cost=None if cost is None else cost.name, cost_config=None)
    settings = settings or {}
    cloning = [setting for setting in settings if setting.startswith("bc.")]
    if cost is None and not cloning:  # a policy player alone, and nothing of the expert in it
        alone = None if base.replay_config is None else replace(base.replay_config, expert_fraction=0.0)
        base = replace(base, bc_config=None, replay_config=alone)
    if (base.bc_config is None and not cloning) or _no_cloning(settings):
        base = _from_scratch(base)
    return with_settings(base, settings)


def players(
    config: LearnerConfig,
    policy: str | PolicyPlayer = "",
    cost: str | CostPlayer | None = "",
    *,
    features: FeatureFunction | None = None,
) -> tuple[PolicyPlayer, CostPlayer]:
    """Return both players: those that are objects as they are, the others as the configuration has them."""
    if not isinstance(policy, str):
        policy_player = policy
    elif config.policy_config is None:
        raise InputError(f"the policy player '{config.policy}' is not one of oal's: give the object as policy=")
    else:
        replay = () if config.replay_config is None else (config.replay_config,)
        policy_player = POLICIES[config.policy](config.policy_config, *replay)
    if config.cost_config is not None:
        return policy_player, cost_player(config.cost_config, function=features)
    if features is not None:
        raise InputError(f"a feature function is for the linear cost, not for '{config.cost}'")
    if cost is not None and not isinstance(cost, str):
        return policy_player, cost
    if config.cost is not None:
        raise InputError(f"the cost player '{config.cost}' is not one of oal's: give the object as cost=")
    return policy_player, EnvironmentCost()


def algorithm(cost: CostPlayer) -> str:
    """Return the name of the loop with this cost player."""
    return {"gail": "GAIL", "environment": "RL"}.get(cost.name, "OAL")


def _from_scratch(config: LearnerConfig) -> LearnerConfig:
    """Without a cloned policy there is none to evaluate first, none to stay near, and a longer way to go.

    Larger steps of the policy and steeper costs then learn several times faster.
    """
    policy, cost, replay = config.policy_config, config.cost_config, config.replay_config
    if not isinstance(policy, AnchoredConfig) or replay is None or config.preset == "paper":
        return config
    if isinstance(cost, NetworkConfig):
        cost = replace(cost, lipschitz=1.0)
    policy = replace(
        policy, evaluation_updates=0, anchor_weight=0.0, kl_weight=policy.released_kl_weight, release_above=None
    )
    return replace(config, policy_config=policy, cost_config=cost, replay_config=replace(replay, updates_per_step=1.0))


def with_settings(config: LearnerConfig, settings: Mapping[str, Any]) -> LearnerConfig:
    """Return a configuration with dotted settings changed."""
    groups: dict[str, dict[str, Any]] = {}
    for dotted, value in settings.items():
        group, dot, field = dotted.partition(".")
        if not dot:
            choice("setting", group, ("environments", *(f"{name}.NAME" for name in ("policy", "cost", "replay", "bc"))))
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
            if _no_cloning({f"bc.{name}": value for name, value in values.items()}):
                config = replace(config, bc_config=None)
                continue
            current = current or (PAPER_BC if config.preset == "paper" else BCConfig())
        config = replace(config, **{f"{group}_config": configs.changed(current, values, name=group)})
    return config


def _no_cloning(settings: Mapping[str, Any]) -> bool:
    return 0 in (settings.get("bc.updates"), settings.get("bc.epochs"))


def _paper(policy: str, cost: str) -> LearnerConfig:
    """The paper's tables; what they leave open is as in the reference code (see docs/deviations.md)."""
    costs: dict[str, AnyCostConfig]
    if policy in OFF_POLICY:
        costs = {
            "linear": LinearConfig(discounted=True, average="episodes"),
            "neural": NeuralConfig(),
            "gail": GAILConfig(),
        }
        policies = {"mdpo": AnchoredConfig(), "sac": SACConfig(target_rate=0.01)}
        return LearnerConfig(
            policy, cost, "paper", policies[policy], costs[cost], replay_config=ReplayConfig(), bc_config=None
        )
    # on-policy: the cost moves every third batch, on the pairs of those three batches
    batch = 1_024 if cost == "gail" else 2_000
    span: dict[str, Any] = {"update_every": 3 * batch, "window": 3 * batch}
    costs = {
        "linear": LinearConfig(discounted=True, average="episodes", **span),
        "neural": NeuralConfig(learning_rate=9e-5, bregman=100.0, minibatches=10, **span),
        "gail": GAILConfig(minibatches=1, **span),
    }
    policy_config = replace(PAPER_MDPO_ON if policy == "mdpo-on" else PAPER_TRPO, batch_steps=batch)
    return LearnerConfig(policy, cost, "paper", policy_config, costs[cost], replay_config=None, bc_config=None)


def _default(policy: str, cost: str) -> LearnerConfig:
    """Ours; docs/deep.md says how it learns, experiments/ingredients.toml leaves its ingredients out one by one."""
    shared: dict[str, Any] = {"standardise": True, "amplitude": "gap", "clip": 5.0, "absorbing": "coordinate"}
    network: dict[str, Any] = {
        **shared,
        "hidden": (100, 100),
        "data": "replay",
        "update_every": 100,
        "minibatches": 10,
        "batch_size": 100,
        "lipschitz": 10.0,
        "flat_start": True,
    }
    costs: dict[str, AnyCostConfig] = {
        "linear": LinearConfig(geometry="l2", update_every=500, window=5_000, **shared),
        "neural": NeuralConfig(**network),
        "gail": GAILConfig(reading="logit", **network),
    }
    cost_config = costs[cost]
    # exploration comes from the cloned policy's own width; wider, its gait falls apart
    cloning = BCConfig(epochs=300, batch_size=128, learning_rate=3e-4, schedule="cooldown", average=0.0, log_std=-3.0)
    if policy == "mdpo":
        policy_config: AnyPolicyConfig = AnchoredConfig(
            batch_size=128,
            kl_weight=1.0,
            entropy_weight=0.04,
            frozen_critic=False,
            layer_norm=True,
            flat_start=True,
            evaluation_updates=2_000,
            anchor_weight=1.0,
            anchor_updates=50_000,
            by_evidence=True,
            release_above=0.5,
        )
        # half as many updates as steps take half the time, and a cloned policy has not far to go
        replay_config = ReplayConfig(warmup_steps=1_000, updates_per_step=0.5, expert_fraction=0.25)
        return LearnerConfig(policy, cost, "default", policy_config, cost_config, replay_config, cloning)
    if policy == "mdpo-prior":
        replay_config = ReplayConfig(warmup_steps=1_000, updates_per_step=2.0, expert_fraction=0.25)
        cloning = BCConfig(updates=3_000, members=5)
        return LearnerConfig(policy, cost, "default", PriorConfig(), cost_config, replay_config, cloning)
    if policy == "sac":
        # its temperature widens any policy it is given: it starts from scratch
        policy_config = SACConfig(batch_size=128, target_rate=0.01, layer_norm=True)
        replay_config = ReplayConfig(warmup_steps=1_000, expert_fraction=0.25)
        return LearnerConfig(policy, cost, "default", policy_config, cost_config, replay_config, bc_config=None)
    networks: dict[str, Any] = {"hidden": (256, 256), "activation": "relu", "by_evidence": True}
    policy_config = TRPOConfig(**networks) if policy == "trpo" else MDPOOnConfig(**networks)
    # a batch of fresh steps at a time: the costs move with it
    cost_config = replace(cost_config, update_every=2_000, data="window", window=6_000)
    return LearnerConfig(
        policy, cost, "default", policy_config, cost_config, None, bc_config=replace(cloning, log_std=-2.0)
    )
