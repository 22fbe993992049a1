"""What the default preset puts around Algorithm 3 when it starts from a cloned policy.

An anchor holds the policy near the cloned one as long as there is no evidence against it; the critics are fitted before
the policy first moves; and a clone that is plainly not the expert is released from all of this.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp

from oal.deep.mdpo import Around, MDPOConfig, MDPOState, PolicyTerms, init_mdpo, mdpo_update
from oal.deep.nets import MLP
from oal.deep.offpolicy import OffPolicy, copied
from oal.deep.players import Shapes
from oal.deep.replay import Batch
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Float, KeyData, Scalar


@dataclass(frozen=True)
class AnchoredConfig(MDPOConfig):
    """Off-policy MDPO and what is put around it; by default nothing."""

    evaluation_updates: int = 0
    """Updates of value and critics before the policy first moves: a cloned policy is evaluated before it is left."""
    anchor_weight: float = 0.0
    """Weight of the divergence from the policy that learning started with, in every state of the batch."""
    anchor_updates: int = 10_000
    """The anchor's weight falls as 1/(1 + k/this) over updates k that move the policy, as in following the leader."""
    by_evidence: bool = False
    """The anchor's weight is multiplied by (1 - e²)² and the entropy's by e², where e in [0, 1] is how well the cost
    tells learner and expert apart: a policy that imitates already is held, one that does not is let go and explores."""
    release_above: float | None = None
    """If the cost tells the policy apart from the expert better than this when it first moves, cloning has failed: from
    then on there is no anchor, all of the entropy, and the KL weight `released_kl_weight`. None: never."""
    released_kl_weight: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.release_above is not None and not self.by_evidence:
            raise InputError("release_above goes by the evidence: set by_evidence=True too")
        at_least("released_kl_weight", self.released_kl_weight, 0.0)
        at_least("anchor_weight", self.anchor_weight, 0.0)
        at_least("anchor_updates", self.anchor_updates, 1)
        at_least("evaluation_updates", self.evaluation_updates, 0)


class AnchoredState(NamedTuple):
    """Algorithm 3's state, the actor that learning started with (if it is held near it), and whether it was let go."""

    mdpo: MDPOState
    anchor: MLP | None
    released: "Scalar | None"
    """1 or 0, if the policy may be released."""

    @property
    def actor(self) -> MLP:
        return self.mdpo.networks.actor


def anchored_update(
    state: AnchoredState,
    batch: Batch,
    absorbing_cost: "Scalar",
    noise: "Float[jax.Array, '1 B Z']",
    evidence: "Scalar | float" = 1.0,
    *,
    shapes: Shapes,
    config: AnchoredConfig,
) -> tuple[AnchoredState, dict[str, "Scalar"]]:
    """Do one update of Algorithm 3 with the weights, the penalty and the pause that the evidence asks for."""
    updates, released = state.mdpo.updates, state.released
    freedom = evidence**2 if config.by_evidence else None
    kl_weight: Scalar | float = config.kl_weight
    if released is not None:
        assert config.release_above is not None
        assert freedom is not None
        failed = jnp.asarray(evidence > config.release_above, jnp.float32)
        released = jnp.where(updates == config.evaluation_updates, failed, released)
        kl_weight += released * (config.released_kl_weight - kl_weight)
        freedom = jnp.maximum(freedom, released)

    def penalty(terms: PolicyTerms) -> "Scalar":
        assert state.anchor is not None
        moved = jnp.maximum(updates - config.evaluation_updates, 0)
        weight = config.anchor_weight / (1.0 + moved / config.anchor_updates)
        if freedom is not None:
            weight *= (1.0 - freedom) ** 2
        return weight * jnp.mean(terms.divergence_from(state.anchor))

    around = Around(
        kl_weight,
        config.entropy_weight if freedom is None else config.entropy_weight * freedom,
        None if state.anchor is None else penalty,
        (updates >= config.evaluation_updates).astype(jnp.float32) if config.evaluation_updates > 0 else 1.0,
    )
    mdpo, metrics = mdpo_update(
        state.mdpo, batch, absorbing_cost, noise, evidence, around, shapes=shapes, config=config
    )
    if released is not None:
        metrics["released"] = released
    return AnchoredState(mdpo, state.anchor, released), metrics


@final
class AnchoredMDPO(OffPolicy):
    """Off-policy mirror descent as a policy player, held near a cloned policy; without an anchor it is `MDPO`."""

    name = "mdpo"
    Config: ClassVar[type[AnchoredConfig]] = AnchoredConfig
    draws = 1
    update = staticmethod(anchored_update)

    def init(self, seed: int, shapes: Shapes) -> tuple[AnchoredState, "KeyData"]:
        config: AnchoredConfig = self.config
        mdpo, key = init_mdpo(seed, shapes, config)
        anchor = copied(mdpo.actor) if config.anchor_weight > 0.0 else None
        return AnchoredState(mdpo, anchor, None if config.release_above is None else jnp.float32(0.0)), key

    def with_actor(self, actor: MLP) -> AnchoredState:
        anchor = None if self.state.anchor is None else copied(actor)
        return self.state._replace(mdpo=self.state.mdpo.with_actor(actor), anchor=anchor)
