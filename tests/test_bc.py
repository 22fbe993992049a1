"""Behavioural cloning: losses against references, policies that must be recovered, bad input."""

import math
from contextlib import contextmanager
from dataclasses import replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from oal import demos, envs
from oal.base import seeding
from oal.deep import bc, nets
from oal.deep.bc import PAPER_BC, BCConfig, clone, scheduled_adam
from oal.deep.policy import Policy
from oal.demos import Trajectory
from oal.envs import EnvSpec
from oal.errors import InputError
from shapes import check_shapes, checked

SPEC = EnvSpec("Probe-v0", "continuous", 3, 2, (-2.0, -1.0), (2.0, 3.0), (2,), horizon=50)
DISCRETE = EnvSpec("Buttons-v0", "discrete", 3, 3, action_start=1, horizon=50)


class Probe(gym.Env):
    """The spaces of `SPEC`; nobody steps here."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(np.float32([-2.0, -1.0]), np.float32([2.0, 3.0]))


QUICK = BCConfig(epochs=60, batch_size=64, learning_rate=3e-3, schedule="cooldown", average=0.0)


def actor(spec: EnvSpec = SPEC, seed: int = 0, hidden: tuple[int, ...] = (32,)) -> nets.MLP:
    kind = "continuous" if spec.kind == "continuous" else "discrete"
    return nets.init_actor(jax.random.key(seed), kind, spec.observation_size, spec.action_size, hidden)


def teacher(observations: np.ndarray) -> np.ndarray:
    """Pre-tanh means of the policy to be recovered."""
    return observations @ np.array([[0.8, -0.3], [-0.5, 0.2], [0.1, 0.6]]) + np.array([0.2, -0.1])


def in_units(encoded: np.ndarray) -> np.ndarray:
    """Encoded actions -> the environment's units."""
    return (encoded * 2.0 + np.array([0.0, 1.0])).astype(np.float32)


def demonstrations(
    rng: np.random.Generator, count: int = 8, *, std: tuple[float, float] = (0.0, 0.0)
) -> list[Trajectory]:
    made = []
    for _ in range(count):
        observations = rng.normal(size=(50, 3)).astype(np.float32)
        encoded = np.tanh(teacher(observations) + rng.normal(size=(50, 2)) * np.array(std))
        made.append(Trajectory(observations, in_units(encoded), truncated=True))
    return made


def same(one: nets.MLP, other: nets.MLP) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


# Losses --------------------------------------------------------------------------------------------------------------


def test_the_squared_error_is_that_of_the_deterministic_action(rng) -> None:
    params, observations = actor(), rng.normal(size=(5, 3)).astype(np.float32)
    actions = rng.uniform(-1, 1, (5, 2)).astype(np.float32)
    found = nets.HostActor("continuous", params).mode(observations)
    expected = np.mean([(found[i, j] - actions[i, j]) ** 2 for i in range(5) for j in range(2)])
    loss, gradient = jax.value_and_grad(bc.squared_error)(
        params, jnp.array(observations), jnp.array(actions), activation="relu"
    )
    assert loss == pytest.approx(expected, rel=1e-5)
    slope = 2.0 * (found - actions) * (1.0 - found**2) / 10.0
    np.testing.assert_allclose(gradient[-1].bias[:2], slope.sum(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(gradient[-1].bias[2:], 0.0)
    np.testing.assert_array_equal(gradient[-1].weight[:, 2:], 0.0)


def test_cross_entropy_is_the_mean_log_probability_of_the_actions_taken(rng) -> None:
    params, observations = actor(DISCRETE), rng.normal(size=(6, 3)).astype(np.float32)
    taken = rng.integers(0, 3, 6)
    logits = np.asarray(nets.mlp(params, jnp.array(observations)), np.float64)
    expected = -np.mean([logits[i, a] - np.log(np.exp(logits[i]).sum()) for i, a in enumerate(taken)])
    found = bc.cross_entropy(params, jnp.array(observations), jnp.eye(3)[taken], activation="relu")
    assert found == pytest.approx(expected, rel=1e-5)


# Recovery ------------------------------------------------------------------------------------------------------------


def test_a_deterministic_policy_is_recovered(rng) -> None:
    found, history = clone(actor(), demonstrations(rng), spec=SPEC, config=QUICK)
    fresh = rng.normal(size=(500, 3)).astype(np.float32)
    error = np.abs(nets.HostActor("continuous", found).mode(fresh) - np.tanh(teacher(fresh)))
    assert error.mean() < 0.03
    assert len(history.loss) == 60
    assert history.loss[-1] < history.loss[0]
    assert history.validation_loss is None


def test_a_clone_is_as_wide_as_the_demonstrated_actions_say(rng) -> None:
    """A share of the standard deviation of each dimension, in the scale of the bounds; a constant has a width too."""
    shown = demonstrations(rng, 2)
    still = [replace(each, actions=each.actions * np.array([1.0, 0.0], np.float32)) for each in shown]
    fresh = jnp.array(rng.normal(size=(20, 3)), jnp.float32)
    for demonstrated, config in ((shown, QUICK), (still, replace(QUICK, width=0.5))):
        found, _ = clone(actor(), demonstrated, spec=SPEC, config=replace(config, epochs=5))
        actions = np.concatenate([each.actions for each in demonstrated])
        scaled = (actions - np.array([0.0, 1.0])) / 2.0  # the bounds are [-2, 2] and [-1, 3]
        expected = np.log(config.width * np.maximum(scaled.std(axis=0), 1e-3))
        log_std = nets.gaussian(found, fresh).log_std
        np.testing.assert_allclose(log_std, np.tile(expected, (20, 1)), rtol=1e-4)


def joined(shown: list[Trajectory]) -> tuple[np.ndarray, np.ndarray]:
    """Observations and encoded actions of all of them."""
    actions = np.concatenate([each.actions for each in shown])
    return np.concatenate([each.observations for each in shown]), (actions - np.float32([0.0, 1.0])) / 2.0


def log_stds(found: nets.MLP) -> np.ndarray:
    return np.asarray(nets.gaussian(found, jnp.zeros((1, 3))).log_std)[0]


def test_a_clone_may_be_as_wide_as_it_is_off_on_pairs_it_has_not_seen(rng) -> None:
    """Parts, clones of the others and their errors, one by one; a tutor with noise is known no better than that."""
    shown = demonstrations(rng, 8, std=(0.05, 0.4))
    observation, action = joined(shown)
    config = replace(QUICK, epochs=20, width=None)
    starts = bc.start_members(SPEC, (16,), 2, seed=5)
    members, _ = bc.clone_members(starts, shown, spec=SPEC, config=config, seed=5)

    part = seeding.generator(5, "cloning-parts").permutation(400) % 5
    errors = []
    for i in range(5):
        seen = [Trajectory(observation[part != i], in_units(action[part != i]), truncated=True)]
        # the same pairs in another order and from another stream: as good a clone, not the same one
        alone, _ = clone(starts[i % 2], seen, spec=SPEC, config=replace(config, width=1.0), seed=i)
        for x, a in zip(observation[part == i], action[part == i], strict=True):
            errors.append((np.tanh(np.asarray(nets.mlp(alone, x))[:2]) - a) ** 2)
    expected = 0.5 * np.log(np.mean(errors, axis=0))
    for member in members:
        np.testing.assert_allclose(log_stds(member), expected, atol=0.15)
    noise = np.std(action - np.tanh(teacher(observation)), axis=0)
    assert (np.exp(log_stds(members[0])) > 0.9 * noise).all()
    assert np.exp(log_stds(members[0]))[1] < 1.5 * noise[1]


def test_each_member_learns_from_the_pairs_at_its_places_only(rng) -> None:
    observation, action = joined(demonstrations(rng, 2))
    places = np.stack([np.arange(0, 60), np.arange(40, 100)])
    starts = [actor(seed=0), actor(seed=1)]

    def fitted(actions: np.ndarray, **more) -> list[nets.MLP]:
        config = replace(QUICK, epochs=5)
        about = {"spec": SPEC, "config": config, "activation": "relu", "seed": 0, "stream": "x", "progress_bar": False}
        return bc._fitted(starts, (observation, actions), None, **about, **more)[0]

    first, second = fitted(action, places=places)
    changed = action.copy()
    changed[60:] = 0.3
    again, other = fitted(changed, places=places)
    assert same(first, again)
    assert not same(second, other)
    everywhere = fitted(action, places=np.tile(np.arange(100), (2, 1)))
    for one, all_pairs in zip(everywhere, fitted(action), strict=True):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(all_pairs), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_four_pairs_are_too_few_to_hold_some_back(rng) -> None:
    """Then a clone is as wide as the actions vary."""
    short = [Trajectory(each.observations[:4], each.actions[:4], truncated=True) for each in demonstrations(rng, 1)]
    found, _ = clone(actor(), short, spec=SPEC, config=replace(QUICK, epochs=2, width=None))
    np.testing.assert_allclose(log_stds(found), np.log(joined(short)[1].std(axis=0)), rtol=1e-4)


def test_discrete_actions_are_recovered_with_their_chances(rng) -> None:
    weights = np.array([[2.0, -1.0, 0.0], [0.0, 1.0, -2.0], [0.5, 0.5, -1.0]])

    def chances(observations: np.ndarray) -> np.ndarray:
        e = np.exp(observations @ weights)
        return e / e.sum(1, keepdims=True)

    shown = []
    for _ in range(40):
        observations = rng.normal(size=(50, 3)).astype(np.float32)
        taken = [rng.choice(3, p=p) + 1 for p in chances(observations)]
        shown.append(Trajectory(observations, np.array(taken), truncated=True))
    found, _ = clone(actor(DISCRETE), shown, spec=DISCRETE, config=replace(QUICK, epochs=15, learning_rate=1e-3))
    fresh = rng.normal(size=(400, 3)).astype(np.float32)
    learned = np.exp(nets.log_policy(found, jnp.array(fresh)))
    assert np.abs(learned - chances(fresh)).mean() < 0.05


def test_tiny_observations_are_learned_from_when_normalised(rng) -> None:
    """The clone sees standardised observations; whoever asks it gives plain ones."""
    shown = [replace(t, observations=t.observations * np.float32(0.01) + np.float32(3.0)) for t in demonstrations(rng)]
    clones = {
        normalise: bc.BC(
            Probe, demos.Demos(tuple(shown)), config=QUICK, hidden=(32,), normalise=normalise, horizon=50
        ).learn()
        for normalise in (True, False)
    }
    final = {normalise: cloned.history.loss[-1] for normalise, cloned in clones.items()}
    assert final[True] < 0.1 * final[False]
    fresh = rng.normal(size=(200, 3)).astype(np.float32)
    for normalise, cloned in clones.items():
        assert (cloned.normaliser is not None) == normalise
        error = np.abs(cloned.policy().act(0.01 * fresh + np.float32(3.0)) - np.tanh(teacher(fresh))).mean()
        assert (error < 0.05) == normalise


def test_a_normalised_clone_is_a_clone_of_normalised_demonstrations(rng) -> None:
    """`BC` against `clone` on episodes that NumPy standardised, from the same start."""
    shown = demos.Demos(tuple(demonstrations(rng, 3)))
    config = replace(QUICK, epochs=5)
    cloned = bc.BC(Probe, shown, config=config, hidden=(8,), seed=4, horizon=50).learn()
    seen = np.concatenate([t.observations for t in shown])
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    by_hand = [replace(t, observations=(t.observations - mean) / std) for t in shown]
    expected, _ = clone(bc.start_members(cloned.spec, (8,), 1, 4)[0], by_hand, spec=cloned.spec, config=config, seed=4)
    for one, other in zip(jax.tree.leaves(cloned.actor), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    mode = nets.HostActor("continuous", expected).mode((seen - mean) / std)
    np.testing.assert_allclose(cloned.policy().act(seen), mode, atol=1e-5)


def test_an_actor_with_tanh_is_fitted_as_such(rng) -> None:
    found, _ = clone(actor(), demonstrations(rng), spec=SPEC, config=QUICK, activation="tanh")
    fresh = rng.normal(size=(200, 3)).astype(np.float32)
    errors = {
        activation: np.abs(
            nets.HostActor("continuous", found, activation=activation).mode(fresh) - np.tanh(teacher(fresh))
        ).mean()
        for activation in ("tanh", "relu")
    }
    assert errors["tanh"] < 0.04 < errors["relu"]


# Machine facts -------------------------------------------------------------------------------------------------------


def test_learning_starts_from_the_actor_given_and_leaves_it_alone(rng) -> None:
    before = actor()
    copy = jax.tree.map(np.array, before)
    after, _ = clone(before, demonstrations(rng, 2), spec=SPEC, config=replace(QUICK, epochs=1, learning_rate=1e-12))
    fresh = rng.normal(size=(20, 3)).astype(np.float32)
    np.testing.assert_allclose(
        nets.HostActor("continuous", after).mode(fresh), nets.HostActor("continuous", before).mode(fresh), atol=1e-5
    )
    clone(before, demonstrations(rng, 2), spec=SPEC, config=replace(QUICK, epochs=2))
    assert same(before, copy)


def test_the_same_seed_gives_the_same_actor(rng) -> None:
    shown = demonstrations(rng, 3)
    config = replace(QUICK, epochs=4)
    one, again, other = (clone(actor(), shown, spec=SPEC, config=config, seed=seed)[0] for seed in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)


def test_a_second_fit_compiles_nothing(rng) -> None:
    shown, config = demonstrations(rng, 3), replace(QUICK, epochs=10)
    clone(actor(), shown, spec=SPEC, config=config)
    compiled = bc._compile_epochs(SPEC, config, "relu")
    size = compiled._cache_size()  # pyright: ignore
    assert size >= 1
    clone(actor(seed=5), shown, spec=SPEC, config=config, seed=9)
    assert compiled._cache_size() == size  # pyright: ignore


def test_progress_is_shown(rng, monkeypatch) -> None:
    shown: list[tuple[int, str]] = []

    @contextmanager
    def bar(text, total, *, enabled):
        assert (total, enabled) == (25, True)
        yield lambda steps, note: shown.append((steps, note))

    monkeypatch.setattr(bc.console, "progress", bar)
    config = replace(QUICK, epochs=25)
    _, history = clone(actor(), demonstrations(rng, 2), spec=SPEC, config=config, progress_bar=True)
    assert [steps for steps, _ in shown] == [10, 10, 5]
    assert [note for _, note in shown] == [f"loss {history.loss[i]:.4f}" for i in (9, 19, 24)]


# Validation ----------------------------------------------------------------------------------------------------------


def test_validation_takes_whole_episodes(rng) -> None:
    shown = [replace(t, observations=np.full((50, 3), i, np.float32)) for i, t in enumerate(demonstrations(rng, 10))]
    training, validation = bc._split(shown, SPEC, BCConfig(validation_fraction=0.3), seed=0)
    assert validation is not None
    mine, theirs = set(training[0][:, 0]), set(validation[0][:, 0])
    assert len(mine) == 7
    assert len(theirs) == 3
    assert not mine & theirs


def test_the_validation_loss_is_that_of_the_episodes_kept_back(rng) -> None:
    shown = demonstrations(rng, 4, std=(1.5, 1.5))
    config = replace(QUICK, epochs=60, validation_fraction=0.5)
    last, whole = clone(actor(hidden=(128, 128)), shown, spec=SPEC, config=config)
    _, validation = bc._split(shown, SPEC, config, seed=0)
    assert validation is not None
    assert whole.validation_loss is not None
    assert len(whole.validation_loss) == len(whole.loss) == 60
    assert bc.squared_error(last, *map(jnp.asarray, validation), activation="relu") == pytest.approx(
        whole.validation_loss[-1], rel=1e-3
    )


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1"),
        ({"schedule": "steps"}, "schedule 'steps' is unknown"),
        ({"average": 1.0}, "average is 1.0"),
        ({"updates": 0}, "updates is 0"),
        ({"members": 0}, "members is 0"),
    ],
)
def test_bad_settings_are_refused(settings, message) -> None:
    with pytest.raises(InputError, match=message):
        BCConfig(**settings)


def test_bad_data_is_refused(rng) -> None:
    shown = demonstrations(rng, 1)
    with pytest.raises(InputError, match="no demonstrations"):
        clone(actor(), [], spec=SPEC)
    with pytest.raises(InputError, match="another environment"):
        clone(actor(), shown, spec=replace(SPEC, observation_size=4))
    with pytest.raises(InputError, match="takes 3 numbers and gives 3, Probe-v0 needs 3 and 4"):
        clone(actor(DISCRETE), shown, spec=SPEC)
    with pytest.raises(InputError, match="cannot be split"):
        clone(actor(), shown, spec=SPEC, config=PAPER_BC)
    with pytest.raises(InputError, match="lower learning_rate"):
        clone(actor(), shown, spec=SPEC, config=replace(QUICK, learning_rate=1e38))


# Learning ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epochs"), [("CartPole-v1", 100), ("InvertedPendulum-v5", 100)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_clone_reaches_the_expert(name: str, epochs: int, seed: int) -> None:
    shown = demos.load(name).first(10)
    spec = envs.describe(envs.make(name))
    found, _ = clone(actor(spec, seed, (256, 256)), shown, spec=spec, config=BCConfig(epochs=epochs), seed=seed)
    kind = "continuous" if spec.kind == "continuous" else "discrete"
    reached = envs.evaluate(name, nets.HostActor(kind, found).mode, episodes=20, seed=seed)
    assert shown.returns is not None
    assert reached.mean_return >= 0.95 * shown.returns.mean()


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", [0.5 * (1.0 + math.cos(math.pi * k / 9)) for k in range(9)]),
        ("cooldown", [1.0] * 7 + [2 / 3, 1 / 3]),
        ("constant", [1.0] * 9),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: str, rates: list[float]) -> None:
    """Adam on a constant gradient moves by the learning rate at each update."""
    config = BCConfig(epochs=3, batch_size=10, learning_rate=0.01, schedule=schedule)
    adam = scheduled_adam(config, 35)  # 3 epochs of 3 whole batches
    state, moved = adam.init(jnp.float32(0.0)), []
    for _ in range(9):
        step, state = adam.update(jnp.float32(1.0), state)
        moved.append(-float(step) / 0.01)
    np.testing.assert_allclose(moved, rates, atol=1e-4)


def test_updates_are_counted_whatever_the_number_of_pairs() -> None:
    """Few pairs mean many passes: the updates are the same to within half a pass."""
    config = BCConfig(updates=3_000, batch_size=100)
    for pairs in (40, 100, 512, 1_000, 9_999, 50_000):
        batches = max(1, pairs // 100)
        assert abs(bc.epochs_of(config, pairs) * batches - 3_000) <= batches / 2
    assert bc.epochs_of(replace(config, epochs=7), 1_000) == 7


def test_the_actor_is_the_average_of_the_weights(rng) -> None:
    """Against the average written out over every update's weights."""
    config = replace(QUICK, epochs=6, average=0.7)
    shown, start = demonstrations(rng, 4), actor()
    weights = [clone(start, shown, spec=SPEC, config=replace(config, epochs=6, average=0.0))[0]]
    found, _ = clone(start, shown, spec=SPEC, config=config)
    assert not same(found, weights[0])
    average, steps = [np.zeros(3), np.zeros(3)], [rng.normal(size=3) for _ in range(40)]
    now = tuple(nets.Layer(jnp.zeros((1, 3)), jnp.zeros(3)) for _ in range(1))
    for k, step in enumerate(steps):
        keep = min(0.7, (1 + k) / (10 + k))
        average = [keep * part + (1 - keep) * step for part in average]
        now = bc.averaged(now, (nets.Layer(jnp.asarray(step)[None], jnp.asarray(step)),), jnp.float32(k), 0.7)
    np.testing.assert_allclose(now[0].weight[0], average[0], rtol=1e-5)
    np.testing.assert_allclose(now[0].bias, average[1], rtol=1e-5)


def test_members_are_clones_of_their_own_and_their_mean_is_one_network(rng) -> None:
    shown = demonstrations(rng, 4)
    config = replace(QUICK, epochs=20, members=3)
    starts = bc.start_members(SPEC, (16, 8), 3, seed=5)
    members, history = bc.clone_members(starts, shown, spec=SPEC, config=config, seed=5)
    assert len(members) == 3
    assert history.loss.shape == (20,)
    assert not same(members[0], members[1])
    alone, _ = clone(starts[0], shown, spec=SPEC, config=config, seed=5)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(members[0]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, err_msg="the first member is the clone that there is alone")
    observations = rng.normal(size=(7, 3)).astype(np.float32)
    expected = np.mean([nets.mlp(member, observations) for member in members], axis=0)
    mean = nets.mean_of(members)
    assert [layer.weight.shape for layer in mean] == [(3, 48), (48, 24), (24, 4)]
    np.testing.assert_allclose(nets.mlp(mean, observations), expected, atol=1e-5)
    assert nets.mean_of(members[:1]) is members[0]


def test_an_ensemble_acts_saves_and_loads_as_one_policy(tmp_path) -> None:
    shown = demos.load("InvertedPendulum-v5")[:2]
    config = BCConfig(updates=60, members=2)
    cloned = bc.BC("InvertedPendulum-v5", shown, config=config, hidden=(8, 8), seed=1).learn()
    cloned.save(tmp_path / "policy")
    observation = shown[0].observations[3]
    action, _ = cloned.predict(observation)
    np.testing.assert_array_equal(Policy.load(tmp_path / "policy").predict(observation)[0], action)
    assert cloned.normaliser is not None
    seen = cloned.normaliser(observation[None])
    means = [np.tanh(nets.HostActor("continuous", member).outputs(seen)[0, 0]) for member in cloned.members]
    assert min(means) <= action[0] / 3.0 <= max(means)


# Shapes --------------------------------------------------------------------------------------------------------------


def test_arrays_have_the_shapes_that_annotations_say(rng) -> None:
    params, observation, action = actor(), jnp.ones((5, 3)), jnp.zeros((5, 2))
    checked(bc.squared_error)(params, observation, action, activation="relu")
    checked(bc.cross_entropy)(actor(DISCRETE), observation, jnp.eye(3)[jnp.array([0, 1, 2, 0, 1])], activation="relu")
    config = replace(QUICK, epochs=2, validation_fraction=0.5)
    _, history = checked(clone)(params, demonstrations(rng, 2), spec=SPEC, config=config)
    check_shapes(history)
    with pytest.raises(AssertionError, match=r"action is float32\(1, 2\)"):
        checked(bc.squared_error)(params, observation, action[:1], activation="relu")
