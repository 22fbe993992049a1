"""Algorithm 3 of the paper: mirror descent policy optimisation (MDPO), off-policy, in cost form.

One update, on a batch (s, a, c, s', terminated), with the old policy frozen for m updates, t = `kl_weight` and
α = `entropy_weight`:
    π     <- Adam on mean E_{a~π}[t (log π - log π_old)(a|s) + α log π(a|s) + Q(s, a)]
    V     <- Adam on mean (V(s) - E_{a~π}[max_i Q_i(s, a) + α log π(a|s)])²
    Q_i   <- Adam on mean (Q_i(s, a) - c - γ (V_abs if terminated else V̄(s')))²
    V̄     <- V̄ + τ (V - V̄)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import optax

from oal.deep import nets
from oal.deep.nets import MLP, ActionKind
from oal.deep.offpolicy import OffPolicy, OffPolicyConfig, copied
from oal.deep.players import Shapes
from oal.deep.replay import Batch
from oal.envs import bootstrap_target
from oal.errors import at_least

if TYPE_CHECKING:
    from oal.deep.arrays import Actions, Float, Int, KeyData, Noise, Observations, PerRow, Scalar


@dataclass(frozen=True)
class MDPOConfig(OffPolicyConfig):
    """Off-policy MDPO's hyper-parameters; the defaults are the paper's table and the reference code's."""

    target_rate: float = 0.01
    kl_weight: float = 0.5
    """Weight t of the divergence from the old policy: the larger, the smaller the step."""
    entropy_weight: float = 0.0
    policy_steps: int = 10
    """Updates per frozen old policy (m in the paper)."""
    frozen_critic: bool = True
    """The actor follows the first critic as it was when the old policy was frozen; otherwise the live critics."""
    layer_norm: bool = False
    """Of critics and values."""
    flat_start: bool = False
    """Critics and value start near 0: as long as they know nothing, they have no slope for the policy to follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("kl_weight", self.kl_weight, 0.0)
        at_least("entropy_weight", self.entropy_weight, 0.0)
        at_least("policy_steps", self.policy_steps, 1)


class MDPONetworks(NamedTuple):
    """What gradients move."""

    actor: MLP
    critics: tuple[MLP, ...]
    value: MLP


class MDPOState(NamedTuple):
    """Everything the player learns, as one pytree of arrays."""

    networks: MDPONetworks
    target_value: MLP
    old_actor: MLP
    old_critic: MLP | None
    optimiser: optax.OptState
    updates: "Int[jax.Array, '']"

    @property
    def actor(self) -> MLP:
        return self.networks.actor

    def with_actor(self, actor: MLP) -> "MDPOState":
        """Start from another actor, which is the old one too."""
        return self._replace(networks=self.networks._replace(actor=copied(actor)), old_actor=copied(actor))


def init_mdpo(seed: int, shapes: Shapes, config: MDPOConfig) -> tuple[MDPOState, "KeyData"]:
    """Draw a fresh state and a key for the noise of updates; `seed` is a 32-bit integer."""
    actor_key, first_key, second_key, value_key, key = jax.random.split(jax.random.key(seed), 5)
    start = nets.nearly_zero if config.flat_start else lambda network: network
    networks = MDPONetworks(
        actor=nets.init_actor(actor_key, *shapes, config.hidden),
        critics=(
            start(nets.init_critic(first_key, *shapes, config.hidden)),
            start(nets.init_critic(second_key, *shapes, config.hidden)),
        ),
        value=start(nets.init_mlp(value_key, (shapes.observation_size, *config.hidden, 1))),
    )
    state = MDPOState(
        networks=networks,
        target_value=copied(networks.value),
        old_actor=copied(networks.actor),
        old_critic=copied(networks.critics[0]) if config.frozen_critic else None,
        optimiser=optax.adam(config.learning_rate).init(networks),
        updates=jnp.int32(0),
    )
    return state, jax.random.key_data(key)


class PolicyTerms(NamedTuple):
    """What MDPO's objective asks of the policy alone, at each state."""

    action: "Actions"
    """A reparameterised draw (continuous) or the probabilities of all actions (discrete)."""
    entropy: "PerRow"
    divergence_from: Callable[[MLP], "PerRow"]
    """KL(π, another actor's policy)."""


def policy_terms(actor: MLP, observation: "Observations", noise: "Noise", *, kind: ActionKind) -> PolicyTerms:
    """Evaluate the policy's own terms.

    Continuous: the draw stands for the mean of the entropy; the divergence of two squashed Gaussians is that of the
    Gaussians and is exact. Discrete: everything is exact.
    """
    if kind == "continuous":
        distribution = nets.gaussian(actor, observation)
        action, _, log_prob = nets.squashed(distribution, noise)
        return PolicyTerms(
            action,
            -log_prob,
            lambda other: nets.gaussian_divergence(distribution, nets.gaussian(other, observation)),
        )
    log_probs = nets.log_policy(actor, observation)
    action = jnp.exp(log_probs)
    return PolicyTerms(
        action,
        -jnp.sum(action * log_probs, axis=-1),
        lambda other: jnp.sum(action * (log_probs - nets.log_policy(other, observation)), axis=-1),
    )


def mdpo_update(
    state: MDPOState,
    batch: Batch,
    absorbing_cost: "Scalar",
    noise: "Float[jax.Array, '1 B Z']",
    *,
    shapes: Shapes,
    config: MDPOConfig,
) -> tuple[MDPOState, dict[str, "Scalar"]]:
    """Do one gradient step of actor, value and critics, then move the target value.

    `noise` is standard normal, for the actor's actions; discrete ones need none.
    """
    kind, layer_norm, networks = shapes.kind, config.layer_norm, state.networks
    # every m updates the policy that was reached becomes the old one
    freeze = state.updates % config.policy_steps == 0
    refreshed = partial(jax.tree.map, lambda new, old: jnp.where(freeze, new, old))
    old_actor = refreshed(networks.actor, state.old_actor)
    old_critic = None if state.old_critic is None else refreshed(networks.critics[0], state.old_critic)

    def actor_loss(actor: MLP) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
        terms = policy_terms(actor, batch.observation, noise[0], kind=kind)
        divergence = terms.divergence_from(old_actor)
        chosen = (kind, batch.observation, terms.action)
        worst = followed = nets.critic_bound(networks.critics, *chosen, layer_norm=layer_norm)
        if old_critic is not None:
            followed = nets.critic_value(old_critic, *chosen, layer_norm=layer_norm)
        loss = jnp.mean(config.kl_weight * divergence - config.entropy_weight * terms.entropy + followed)
        return loss, (worst, terms.entropy, divergence)

    (actor_value, (worst, entropy, divergence)), actor_gradient = jax.value_and_grad(actor_loss, has_aux=True)(
        networks.actor
    )
    soft_cost = worst - config.entropy_weight * entropy

    next_value = nets.mlp(state.target_value, batch.next_observation, layer_norm=layer_norm)[..., 0]
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost, batch.discount)

    def value_loss(value: MLP) -> jax.Array:
        return jnp.mean((nets.mlp(value, batch.observation, layer_norm=layer_norm)[..., 0] - soft_cost) ** 2)

    value_value, value_gradient = jax.value_and_grad(value_loss)(networks.value)
    critic_value, critic_gradient = nets.critic_regression(
        networks.critics, kind, batch.observation, batch.action, target, layer_norm=layer_norm
    )
    gradient = MDPONetworks(actor_gradient, critic_gradient, value_gradient)
    step, optimiser = optax.adam(config.learning_rate).update(gradient, state.optimiser)
    networks: Any = optax.apply_updates(networks, step)
    target_value: Any = optax.incremental_update(networks.value, state.target_value, config.target_rate)
    new = MDPOState(networks, target_value, old_actor, old_critic, optimiser, state.updates + 1)
    return new, {
        "critic_loss": critic_value,
        "value_loss": value_value,
        "actor_loss": actor_value,
        "divergence": jnp.mean(divergence),
        "entropy": jnp.mean(entropy),
        "target_mean": jnp.mean(target),
        "absorbing_cost": jnp.asarray(absorbing_cost, jnp.float32),
    }


@final
class MDPO(OffPolicy):
    """Off-policy mirror descent as a policy player: the paper's, with nothing added."""

    name = "mdpo"
    Config: ClassVar[type[MDPOConfig]] = MDPOConfig
    draws = 1
    update = staticmethod(mdpo_update)

    def init(self, seed: int, shapes: Shapes) -> tuple[MDPOState, "KeyData"]:
        return init_mdpo(seed, shapes, self.config)

    def with_actor(self, actor: MLP) -> MDPOState:
        return self.state.with_actor(actor)
