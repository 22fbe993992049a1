"""Settings of the deep learners: the paper's two tables, ours, and how a user's changes enter them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from oal.base import config as configs
from oal.deep.bc import PAPER_BC, BCConfig
from oal.deep.costs import COSTS, AnyCostConfig, GAILConfig, LinearConfig, NetworkConfig, NeuralConfig
from oal.deep.offpolicy import MDPOConfig, ReplayConfig, SACConfig
from oal.deep.onpolicy import PAPER_MDPO_ON, PAPER_TRPO, MDPOOnConfig, TRPOConfig
from oal.errors import InputError, at_least, choice

AnyPolicyConfig = MDPOConfig | SACConfig | MDPOOnConfig | TRPOConfig

POLICIES: dict[str, type[Any]] = {"mdpo": MDPOConfig, "sac": SACConfig, "mdpo-on": MDPOOnConfig, "trpo": TRPOConfig}
PRESETS = ("default", "paper")
OFF_POLICY = ("mdpo", "sac")


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that decides how a learner learns, apart from the environment, the demonstrations and the seed."""

    policy: str
    cost: str
    preset: str
    policy_config: AnyPolicyConfig
    cost_config: AnyCostConfig
    replay_config: ReplayConfig | None
    """None for on-policy players."""
    bc_config: BCConfig | None
    """Behavioural cloning of the policy before learning; None for a random start."""
    environments: int = 1
    debug_true_cost: bool = False
    """The policy pays the environment's own cost: a test of the policy player alone."""

    def __post_init__(self) -> None:
        at_least("environments", self.environments, 1)

    @property
    def gamma(self) -> float:
        return self.policy_config.gamma

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LearnerConfig":
        """Read what `to_json` gave; unknown players and fields are errors."""
        try:
            policy, cost = value["policy"], value["cost"]
            choice("policy", policy, POLICIES)
            choice("cost", cost, COSTS)
            replay, cloning = value["replay_config"], value["bc_config"]
            parts = {
                "policy_config": configs.build(POLICIES[policy], value["policy_config"], name="policy"),
                "cost_config": configs.build(COSTS[cost], value["cost_config"], name="cost"),
                "replay_config": None if replay is None else configs.build(ReplayConfig, replay, name="replay"),
                "bc_config": None if cloning is None else configs.build(BCConfig, cloning, name="bc"),
            }
        except KeyError as error:
            raise InputError(f"the learner's settings lack {error}") from None
        return configs.build(cls, {**value, **parts}, name="learner")


def preset(
    policy: str, cost: str, name: str = "default", *, settings: Mapping[str, Any] | None = None
) -> LearnerConfig:
    """Return the settings of a policy player and a cost player, with the user's changes.

    `settings` are dotted: policy.kl_weight, cost.step, replay.warmup_steps, bc.epochs (any bc.* switches cloning on;
    bc.epochs=0 switches it off), environments, debug_true_cost.
    """
    choice("policy", policy, POLICIES)
    choice("cost", cost, COSTS)
    choice("preset", name, PRESETS)
    base = _paper(policy, cost) if name == "paper" else _default(policy, cost)
    settings = settings or {}
    cloning = [setting for setting in settings if setting.startswith("bc.")]
    if settings.get("debug_true_cost") and not cloning:
        base = replace(base, bc_config=None)  # a policy player alone, and nothing of the expert in it
    if (base.bc_config is None and not cloning) or settings.get("bc.epochs") == 0:
        base = _from_scratch(base)
    return with_settings(base, settings)


def _from_scratch(config: LearnerConfig) -> LearnerConfig:
    """Without a cloned policy there is none to evaluate first, none to stay near, and a longer way to go.

    Larger steps of the policy and steeper costs then learn several times faster.
    """
    policy, cost, replay = config.policy_config, config.cost_config, config.replay_config
    if not isinstance(policy, MDPOConfig) or replay is None or config.preset == "paper":
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
            choice("setting", group, ("environments", "debug_true_cost"))
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
        if group == "bc":
            if values.get("epochs") == 0:
                config = replace(config, bc_config=None)
                continue
            current = current or (PAPER_BC if config.preset == "paper" else BCConfig())
        config = replace(config, **{f"{group}_config": configs.changed(current, values, name=group)})
    return config


def _paper(policy: str, cost: str) -> LearnerConfig:
    """The paper's tables; what they leave open is as in the reference code (see docs/deviations.md)."""
    costs: dict[str, AnyCostConfig]
    if policy in OFF_POLICY:
        costs = {"linear": LinearConfig(discounted=True), "neural": NeuralConfig(), "gail": GAILConfig()}
        policies = {"mdpo": MDPOConfig(), "sac": SACConfig(target_rate=0.01)}
        return LearnerConfig(
            policy, cost, "paper", policies[policy], costs[cost], replay_config=ReplayConfig(), bc_config=None
        )
    # on-policy: the cost moves every third batch, on the pairs of those three batches
    batch = 1_024 if cost == "gail" else 2_000
    span: dict[str, Any] = {"update_every": 3 * batch, "window": 3 * batch}
    costs = {
        "linear": LinearConfig(discounted=True, **span),
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
    }
    costs: dict[str, AnyCostConfig] = {
        "linear": LinearConfig(geometry="l2", update_every=500, window=5_000, **shared),
        "neural": NeuralConfig(**network),
        "gail": GAILConfig(reading="logit", **network),
    }
    cost_config = costs[cost]
    # exploration comes from the cloned policy's own width; wider, its gait falls apart
    cloning = BCConfig(epochs=300, log_std=-3.0)
    if policy == "mdpo":
        policy_config: AnyPolicyConfig = MDPOConfig(
            batch_size=128,
            kl_weight=1.0,
            entropy_weight=0.04,
            frozen_critic=False,
            layer_norm=True,
            evaluation_updates=2_000,
            anchor_weight=1.0,
            anchor_updates=50_000,
            by_evidence=True,
            release_above=0.5,
        )
        # half as many updates as steps take half the time, and a cloned policy has not far to go
        replay_config = ReplayConfig(warmup_steps=1_000, updates_per_step=0.5, expert_fraction=0.25)
        return LearnerConfig(policy, cost, "default", policy_config, cost_config, replay_config, cloning)
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
