"""Players of your own: the code of docs/extending.md, from which  make docs  writes this file."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from oal.deep.players import Charge
from oal.deep.replay import Pairs


class View(NamedTuple):
    expert: Any  # demonstrated pairs [N, O + A]
    scale: Any


class State(NamedTuple):
    view: View


class Nearest:
    name = "nearest"
    update_every = 200  # environment steps between two rounds
    remembers = 1_000  # of the learner's newest steps

    def sized(self, observation_size, action_size, gamma):
        return self

    def init(self, seed, expert, ended):
        pairs = np.concatenate([expert.observation, expert.action], axis=-1)
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:256]
        return State(View(jnp.asarray(pairs[chosen]), jnp.float32(1.0)))

    def weigh(self, times):
        return np.ones(times.shape, np.float32)

    def draw(self, memory, expert, rng) -> tuple[Pairs, Pairs]:
        return memory.pairs(memory.newest(self.remembers), self.weigh), expert.pairs(None, self.weigh)

    def update(self, state, learner, expert, masses):
        mean = jnp.mean(self.distance(state.view, learner.observation, learner.action))
        return State(state.view._replace(scale=mean + 1e-6)), {"mean_distance": mean}

    def distance(self, view, observation, action):
        pairs = jnp.concatenate([jnp.asarray(observation), jnp.asarray(action)], axis=-1)
        return jnp.sqrt(jnp.min(jnp.sum((pairs[:, None] - view.expert) ** 2, axis=-1), axis=1))

    def __call__(self, view, batch):
        return Charge(self.distance(view, batch.observation, batch.action) / view.scale, jnp.float32(1.0))


import jax
import optax

from oal.deep import nets
from oal.deep.offpolicy import OffPolicy, OffPolicyConfig, ReplayConfig, copied
from oal.envs import bootstrap_target


class ActorCritic(NamedTuple):
    actor: Any
    critic: Any
    optimiser: Any


def update(state, batch, absorbing_cost, noise, *, shapes, config):
    """One update: critic and actor together, by the same optimiser."""
    next_action, _, next_log = nets.squashed(nets.gaussian(state.actor, batch.next_observation), noise[0])
    next_value = nets.critic_value(state.critic, "continuous", batch.next_observation, next_action)
    next_value += 0.1 * next_log
    target = bootstrap_target(batch.cost, next_value, batch.terminated, config.gamma, absorbing_cost, batch.discount)

    def loss(networks):
        actor, critic = networks
        error = nets.critic_value(critic, "continuous", batch.observation, batch.action) - target
        action, _, log_prob = nets.squashed(nets.gaussian(actor, batch.observation), noise[1])
        value = nets.critic_value(state.critic, "continuous", batch.observation, action)
        return jnp.mean(error**2) + jnp.mean(value + 0.1 * log_prob)

    value, gradient = jax.value_and_grad(loss)((state.actor, state.critic))
    step, optimiser = optax.adam(config.learning_rate).update(gradient, state.optimiser)
    actor, critic = optax.apply_updates((state.actor, state.critic), step)
    return ActorCritic(actor, critic, optimiser), {"loss": value}


class Plain(OffPolicy):
    name = "plain"
    draws = 2  # normal noise for two actions in every row
    update = staticmethod(update)

    def init(self, seed, shapes):
        *keys, key = jax.random.split(jax.random.key(seed), 3)
        actor = nets.init_actor(keys[0], *shapes, self.config.hidden)
        critic = nets.init_critic(keys[1], *shapes, self.config.hidden)
        optimiser = optax.adam(self.config.learning_rate).init((actor, critic))
        return ActorCritic(actor, critic, optimiser), jax.random.key_data(key)

    def with_actor(self, actor):
        return self.state._replace(actor=copied(actor))


import oal

demos = oal.demos.load("InvertedPendulum-v5")[:4]
policy = Plain(OffPolicyConfig(hidden=(32, 32), batch_size=64), ReplayConfig(warmup_steps=200))
model = oal.OAL("InvertedPendulum-v5", demos, policy=policy, cost=Nearest(), seed=0).learn(600)
model.save("own.safetensors")

again = Plain(OffPolicyConfig(hidden=(32, 32), batch_size=64), ReplayConfig(warmup_steps=200))
model = oal.OAL.load("own.safetensors", policy=again, cost=Nearest()).learn(800)  # goes on bit for bit
