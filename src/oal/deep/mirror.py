"""Mirror descent towards a prior: the policy player of the default preset.

Update number k, on a batch (s, a, c, s', terminated), with the old policy frozen for m updates, t = `kl_weight` and
α = `prior_weight` (1 + `prior_updates` / k), the regulariser's weight against the mean of k costs in follow the
regularised leader (`prior_weight` alone where the prior is uniform):
    y     = C + γⁿ (V_abs if terminated else E_{a'~π}[max_i Q̄_i(s', a')] + α (KL(π, prior)(s') - its mean))
    Q_i  <- Adam on mean (Q_i(s, a) - y)²
    π    <- Adam on mean [α KL(π, prior)(s) + t KL(π, π_old)(s) + E_{a~π} max_i Q_i(s, a)]   (min_i: `optimism` 1)
    Q̄_i  <- Q̄_i + τ (Q_i - Q̄_i)
C = c + γ c' + ... is what the n steps from (s, a) on cost (`replay.n_steps`), and s' the state after them; n is less
where the episode or the memory is over before. On the expert's transitions the value of s' is no less than that of the
expert's own next action there: leaving its path is never thought better than staying on it.
The mean is the batch's. It stands for the divergence that the absorbing state would be charged: without it the end of
an episode would be the way out of paying for every state in which the policy is not quite its prior.
What acts is the exponential average of the actor's weights.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from oal.deep import nets
from oal.deep.nets import MLP
from oal.deep.offpolicy import OffPolicyConfig, WithPrior, copied
from oal.deep.players import Shapes
from oal.deep.prior import Chosen, chosen, on_its_path
from oal.deep.replay import Batch
from oal.envs import bootstrap_target
from oal.errors import InputError, at_least, at_most

if TYPE_CHECKING:
    from oal.deep.arrays import KeyData


@dataclass(frozen=True)
class MirrorConfig(OffPolicyConfig):
    """How far, how fast and how freely the policy leaves its prior."""

    batch_size: int = 128
    prior_weight: float = 0.08
    """What a step away from the prior costs in the end, in units of the costs."""
    prior_updates: int = 30_000
    """The prior counts as much as so many updates: its weight begins above `prior_weight` and falls to twice that by
    then. Critics that have seen little say little."""
    kl_weight: float = 0.04
    """Weight t of the divergence from the old policy: the larger, the smaller the step."""
    policy_steps: int = 10
    """Updates per frozen old policy (m in the paper)."""
    actor_average: float = 0.9995
    """Decay of the average of the actor's weights, which acts and is evaluated; 0: the newest weights."""
    critics: int = 2
    optimism: float = 0.0
    """Which of the critics the actor believes: 0 the larger of two costs, as the targets do, 1 the smaller one; of more
    critics, their mean plus and minus the mean distance from it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("prior_weight", self.prior_weight, 0.0)
        at_least("prior_updates", self.prior_updates, 0)
        at_least("kl_weight", self.kl_weight, 0.0)
        at_least("policy_steps", self.policy_steps, 1)
        at_least("critics", self.critics, 2)
        at_most("critics", self.critics, 100)
        if not 0.0 <= self.optimism <= 1.0:
            raise InputError(f"optimism is {self.optimism}: it must lie in [0, 1]")
        if not 0.0 <= self.actor_average < 1.0:
            raise InputError(f"actor_average is {self.actor_average}: it must lie in [0, 1)")


class MirrorState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    actor: MLP
    average: MLP
    old_actor: MLP
    critics: tuple[MLP, ...]
    target_critics: tuple[MLP, ...]
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    updates: jax.Array


def init_mirror(seed: int, shapes: Shapes, config: MirrorConfig) -> tuple[MirrorState, jax.Array]:
    """Draw a fresh state and a key for the noise of updates; `seed` is a 32-bit integer."""
    actor_key, first_key, second_key, key = jax.random.split(jax.random.key(seed), 4)
    more = [jax.random.fold_in(second_key, i) for i in range(config.critics - 2)]
    actor = nets.init_actor(actor_key, *shapes, config.hidden)
    # critics that know nothing yet have no slope for the policy to follow
    critics = tuple(
        nets.nearly_zero(nets.init_critic(each, *shapes, config.hidden)) for each in (first_key, second_key, *more)
    )
    adam = optax.adam(config.learning_rate)
    state = MirrorState(
        actor=actor,
        average=copied(actor),
        old_actor=copied(actor),
        critics=critics,
        target_critics=copied(critics),
        actor_optimiser=adam.init(actor),
        critic_optimiser=adam.init(critics),
        updates=jnp.int32(0),
    )
    return state, jax.random.key_data(key)


def mirror_update(
    state: MirrorState,
    batch: Batch,
    absorbing_cost: jax.Array,
    noise: jax.Array,
    *,
    shapes: Shapes,
    config: MirrorConfig,
) -> tuple[MirrorState, dict[str, jax.Array]]:
    """Do one gradient step of critics and actor, then move the target critics and the average actor.

    `noise` is standard normal [2, B, A]: for the target's actions and for the actor's. Discrete actions need none.
    `batch.extra` are the prior's columns at s and at s', side by side; none for the uniform prior.
    """
    kind, alpha = shapes.kind, config.prior_weight
    adam = optax.adam(config.learning_rate)
    assert batch.extra is not None
    prior, next_prior = jnp.split(batch.extra, 2, axis=-1)
    if prior.shape[-1] > 0:  # the uniform prior knows nothing that would be worth waiting for
        alpha *= 1.0 + config.prior_updates / (1.0 + state.updates)
    observation, successor = batch.observation, batch.next_observation
    # every m updates the policy that was reached becomes the old one
    freeze = state.updates % config.policy_steps == 0
    old_actor = jax.tree.map(lambda new, old: jnp.where(freeze, new, old), state.actor, state.old_actor)

    then = chosen(state.actor, None, successor, next_prior, noise[0], kind=kind)
    next_value = alpha * (then.from_prior - jnp.mean(then.from_prior)) + nets.critic_bound(
        state.target_critics, kind, successor, then.action, layer_norm=True
    )
    next_value = on_its_path(next_value, batch, state.target_critics, kind=kind, layer_norm=True)
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost, batch.discount)
    critic_value, gradient = nets.critic_regression(
        state.critics, kind, observation, batch.action, target, layer_norm=True
    )
    step, critic_optimiser = adam.update(gradient, state.critic_optimiser)
    critics: Any = optax.apply_updates(state.critics, step)

    def actor_loss(actor: MLP) -> tuple[jax.Array, Chosen]:
        now = chosen(actor, old_actor, observation, prior, noise[1], kind=kind)
        spreads = 1.0 - 2.0 * config.optimism
        value = nets.critic_bound(critics, kind, observation, now.action, layer_norm=True, spreads=spreads)
        return jnp.mean(alpha * now.from_prior + config.kl_weight * now.from_old + value), now

    (actor_value, now), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
    step, actor_optimiser = adam.update(gradient, state.actor_optimiser)
    actor: Any = optax.apply_updates(state.actor, step)
    average: Any = optax.incremental_update(actor, state.average, 1.0 - config.actor_average)
    target_critics: Any = optax.incremental_update(critics, state.target_critics, config.target_rate)
    new = state._replace(
        actor=actor,
        average=average,
        old_actor=old_actor,
        critics=critics,
        target_critics=target_critics,
        actor_optimiser=actor_optimiser,
        critic_optimiser=critic_optimiser,
        updates=state.updates + 1,
    )
    return new, {
        "critic_loss": critic_value,
        "actor_loss": actor_value,
        "divergence": jnp.mean(now.from_old),
        "prior_divergence": jnp.mean(now.from_prior),
        "entropy": jnp.mean(now.entropy),
        "target_mean": jnp.mean(target),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }


@final
class Mirror(WithPrior):
    """Mirror descent towards a prior as a policy player."""

    name = "mdpo"
    Config: ClassVar[type[MirrorConfig]] = MirrorConfig
    draws = 2
    update = staticmethod(mirror_update)

    def init(self, seed: int, shapes: Shapes) -> tuple[MirrorState, "KeyData"]:
        return init_mirror(seed, shapes, self.config)

    def with_actor(self, actor: MLP) -> MirrorState:
        optimiser = optax.adam(self.config.learning_rate).init(actor)
        return self.state._replace(
            actor=copied(actor), average=copied(actor), old_actor=copied(actor), actor_optimiser=optimiser
        )

    def acting(self) -> MLP:
        return self.state.average
