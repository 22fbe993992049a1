"""Networks and distributions against slow obvious references; the host's actor against JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from oal.deep import nets
from shapes import checked


def test_mlp_equals_a_loop_over_units() -> None:
    params = nets.init_mlp(jax.random.key(0), (3, 5, 2))
    x = np.array([0.3, -1.2, 0.5])
    hidden = [max(0.0, sum(x[i] * params[0].weight[i, j] for i in range(3)) + params[0].bias[j]) for j in range(5)]
    out = [sum(hidden[i] * params[1].weight[i, j] for i in range(5)) + params[1].bias[j] for j in range(2)]
    np.testing.assert_allclose(nets.mlp(params, jnp.array(x, jnp.float32)), out, rtol=1e-5)


def test_layer_norm_standardises_each_samples_hidden_units() -> None:
    params = nets.init_mlp(jax.random.key(0), (3, 16, 2))
    x = np.array(jax.random.normal(jax.random.key(1), (4, 3)), np.float64)
    first, last = (nets.Layer(*(np.array(leaf, np.float64) for leaf in layer)) for layer in params)
    out = []
    for row in x:
        hidden = row @ first.weight + first.bias
        hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + 1e-5)
        out.append(np.maximum(hidden, 0.0) @ last.weight + last.bias)
    np.testing.assert_allclose(nets.mlp(params, jnp.array(x, jnp.float32), layer_norm=True), out, rtol=1e-4, atol=1e-5)


def test_layer_norms_derivative_equals_the_one_jax_derives_from_the_definition() -> None:
    params = nets.init_mlp(jax.random.key(0), (3, 16, 12, 2))
    x, weights = jax.random.normal(jax.random.key(1), (8, 3)), jax.random.normal(jax.random.key(2), (8, 2))

    def defined(params: nets.MLP, x: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            z = x @ layer.weight + layer.bias
            mean, variance = z.mean(axis=1, keepdims=True), z.var(axis=1, keepdims=True)
            x = jnp.maximum((z - mean) / jnp.sqrt(variance + 1e-5), 0.0)
        return jnp.sum(weights * (x @ params[-1].weight + params[-1].bias))

    def ours(params: nets.MLP, x: jax.Array) -> jax.Array:
        return jnp.sum(weights * nets.mlp(params, x, layer_norm=True))

    expected, found = (jax.grad(function, argnums=(0, 1))(params, x) for function in (defined, ours))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def test_layer_norm_makes_hidden_units_independent_of_the_scale_of_the_weights() -> None:
    params = nets.init_mlp(jax.random.key(0), (3, 64, 1))
    scaled = (nets.Layer(params[0].weight * 50.0, params[0].bias * 50.0), params[1])
    x = jax.random.normal(jax.random.key(1), (4, 3))
    np.testing.assert_allclose(
        nets.mlp(params, x, layer_norm=True), nets.mlp(scaled, x, layer_norm=True), rtol=1e-3, atol=1e-3
    )
    assert not np.allclose(nets.mlp(params, x), nets.mlp(scaled, x), rtol=0.1)


def test_squashed_density_is_the_change_of_variables_and_integrates_to_one() -> None:
    distribution = nets.Gaussian(jnp.array([[0.4]]), jnp.array([[-0.7]]))

    def density(action: float) -> float:
        pre_tanh = jnp.arctanh(jnp.array([[action]]))
        return float(jnp.exp(nets.gaussian_log_prob(distribution, pre_tanh))[0])

    a = 0.3
    expected = stats.norm(0.4, np.exp(-0.7)).pdf(np.arctanh(a)) / (1 - a**2)
    assert density(a) == pytest.approx(expected, rel=1e-5)
    grid = np.linspace(-0.9999, 0.9999, 2001)
    values = np.exp(
        nets.gaussian_log_prob(
            nets.Gaussian(jnp.full((2001, 1), 0.4), jnp.full((2001, 1), -0.7)), jnp.arctanh(jnp.array(grid))[:, None]
        )
    )
    assert integrate.trapezoid(values, grid) == pytest.approx(1.0, abs=1e-3)


def test_sampled_log_prob_is_the_density_at_the_sample_and_stays_finite_far_out() -> None:
    params = nets.init_actor(jax.random.key(0), "continuous", 3, 2, (16,))
    observation = jax.random.normal(jax.random.key(1), (64, 3))
    distribution = nets.gaussian(params, observation)
    action, pre_tanh, log_prob = nets.squashed(distribution, jax.random.normal(jax.random.key(2), (64, 2)))
    np.testing.assert_allclose(log_prob, nets.gaussian_log_prob(distribution, pre_tanh), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(action, np.tanh(pre_tanh), rtol=1e-6)
    far = nets.Gaussian(jnp.array([[50.0]]), jnp.array([[0.0]]))
    assert np.isfinite(nets.squashed(far, jnp.ones((1, 1)))[2]).all()


def test_log_std_is_clipped() -> None:
    params = nets.init_actor(jax.random.key(0), "continuous", 3, 2, (16,))
    pushed = (params[0], nets.Layer(params[1].weight, params[1].bias.at[2:].set(jnp.array([90.0, -90.0]))))
    distribution = nets.gaussian(pushed, jnp.zeros((1, 3)))
    assert distribution.log_std.tolist() == [[nets.LOG_STD_MAX, nets.LOG_STD_MIN]]


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_host_actor_equals_the_jax_actor(kind: nets.ActionKind, activation: nets.Activation) -> None:
    params = nets.init_actor(jax.random.key(0), kind, 17, 6, (256, 256))
    host = nets.HostActor(kind, params, activation=activation)
    observation = np.random.default_rng(0).normal(size=(50, 17)).astype(np.float32)
    expected = nets.mlp(params, jnp.array(observation), activation=activation)
    np.testing.assert_allclose(host.outputs(observation), expected, atol=2e-6)
    if kind == "continuous":
        expected = np.tanh(nets.gaussian(params, jnp.array(observation), activation=activation).mean)
        np.testing.assert_allclose(host.mode(observation), expected, atol=2e-6)
    else:
        expected = np.asarray(nets.log_policy(params, jnp.array(observation), activation=activation)).argmax(axis=1)
        np.testing.assert_array_equal(host.mode(observation).argmax(axis=1), expected)
        np.testing.assert_array_equal(host.mode(observation).sum(axis=1), 1.0)


def test_host_actor_samples_the_distribution_of_the_jax_actor() -> None:
    observation = np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32)
    many = np.repeat(observation, 20_000, axis=0)
    params = nets.init_actor(jax.random.key(0), "discrete", 4, 3, (16,))
    drawn = nets.HostActor("discrete", params).sample(many, np.random.default_rng(1)).mean(axis=0)
    np.testing.assert_allclose(drawn, np.exp(nets.log_policy(params, jnp.array(observation)))[0], atol=0.015)
    params = nets.init_actor(jax.random.key(0), "continuous", 4, 1, (16,))
    drawn = nets.HostActor("continuous", params).sample(many, np.random.default_rng(1))[:, 0]
    distribution = nets.gaussian(params, jnp.array(observation))
    law = stats.norm(float(distribution.mean[0, 0]), float(np.exp(distribution.log_std[0, 0])))
    assert stats.kstest(np.arctanh(drawn), law.cdf).pvalue > 1e-3


def test_host_actor_keeps_its_own_copy_of_the_weights() -> None:
    params = tuple(nets.Layer(np.ones((2, 2), np.float32), np.zeros(2, np.float32)) for _ in range(2))
    host = nets.HostActor("discrete", params)
    params[0].weight[:] = 9.0
    assert host.layers[0].weight.max() == 1.0


def test_critic_of_a_discrete_action_reads_that_action() -> None:
    params = nets.init_critic(jax.random.key(0), "discrete", 3, 4, (8,))
    observation = jax.random.normal(jax.random.key(1), (5, 3))
    chosen = np.array([0, 3, 1, 2, 2])
    values = nets.critic_value(params, "discrete", observation, jnp.eye(4)[chosen])
    np.testing.assert_allclose(values, np.asarray(nets.mlp(params, observation))[np.arange(5), chosen], rtol=1e-5)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_host_draws_are_the_samples_before_the_tanh(kind: nets.ActionKind) -> None:
    host = nets.HostActor(kind, nets.init_actor(jax.random.key(0), kind, 4, 3, (16,)))
    observation = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    drawn = host.draw(observation, np.random.default_rng(1))
    sampled = host.sample(observation, np.random.default_rng(1))
    np.testing.assert_array_equal(np.tanh(drawn) if kind == "continuous" else drawn, sampled)


def test_arrays_have_the_shapes_that_annotations_say() -> None:
    sizes = ("continuous", 3, 2, (8, 5))
    actor, critic = nets.init_actor(jax.random.key(0), *sizes), nets.init_critic(jax.random.key(0), *sizes)
    key, observation, action = jax.random.key(1), jnp.ones((7, 3)), jnp.zeros((7, 2))
    assert checked(nets.init_actor)(key, "discrete", 3, 2, (8,))[0].weight.shape == (3, 8)
    checked(nets.mlp)(actor, observation, layer_norm=True)
    policy = checked(nets.gaussian)(actor, observation)
    checked(nets.squashed)(policy, action)
    checked(nets.gaussian_log_prob)(policy, action)
    checked(nets.gaussian_divergence)(policy, policy)
    checked(nets.log_policy)(actor, observation)
    value = checked(nets.critic_bound)((critic, critic), "continuous", observation, action)
    checked(nets.critic_regression)((critic, critic), "continuous", observation, action, value)
    host = nets.HostActor("continuous", actor)
    checked(host.sample)(np.ones((4, 3), np.float32), np.random.default_rng(0))
    checked(host.mode)(np.ones((4, 3), np.float32))


def test_of_two_critics_the_bounds_are_the_larger_and_the_smaller() -> None:
    first, second = (nets.init_critic(jax.random.key(seed), "continuous", 3, 2, (8,)) for seed in (0, 1))
    rng = np.random.default_rng(0)
    where = ("continuous", rng.normal(size=(20, 3)), rng.uniform(-1.0, 1.0, (20, 2)))
    each = np.stack([nets.critic_value(critic, *where) for critic in (first, second)])
    assert len(set(each.argmax(axis=0))) == 2
    np.testing.assert_array_equal(nets.critic_bound((first, second), *where), each.max(axis=0))
    np.testing.assert_allclose(nets.critic_bound((first, second), *where, spreads=-1.0), each.min(axis=0), atol=1e-6)


def test_wrong_shapes_are_seen() -> None:
    policy = nets.Gaussian(jnp.zeros((7, 2)), jnp.zeros((7, 2)))
    with pytest.raises(AssertionError, match=r"noise is float32\(1, 2\)"):
        checked(nets.squashed)(policy, jnp.zeros((1, 2)))  # it would be broadcast
    with pytest.raises(AssertionError, match=r"second.mean is float32\(2,\)"):
        checked(nets.gaussian_divergence)(policy, nets.Gaussian(jnp.zeros(2), jnp.zeros(2)))
    with pytest.raises(AssertionError, match=r"key is uint32\(2,\)"):
        checked(nets.init_mlp)(jax.random.PRNGKey(0), (3, 2))
    with pytest.raises(AssertionError, match=r"params\[0\].bias is float32\(4,\)"):
        checked(nets.mlp)((nets.Layer(jnp.zeros((3, 1)), jnp.zeros(4)),), jnp.zeros((7, 3)))

    with pytest.raises(AssertionError, match=r"first is a tuple, annotated"):
        checked(nets.gaussian_divergence)((jnp.zeros((7, 2)), jnp.zeros((7, 2))), policy)

    def mean(values: "Float[jax.Array, 'B']") -> "Float[jax.Array, '']":  # noqa: F722, F821
        return values

    with pytest.raises(AssertionError, match=r"the result is float32\(7,\)"):
        checked(mean)(jnp.zeros(7))
    with pytest.raises(AssertionError, match=r"values is int32\(7,\)"):
        checked(mean)(jnp.zeros(7, int))
    with pytest.raises(AssertionError, match=r"values is 1.0"):
        checked(mean)(1.0)
