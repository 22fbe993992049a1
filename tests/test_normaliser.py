"""Observations standardised in front of both players: the numbers, the files, and what the loop does with them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import games
from games import CONTINUOUS, HORIZON, Walk, demos_of
from oal.deep.bc import BC, BCConfig
from oal.deep.costs import CostBase, LinearConfig, NeuralConfig, cost_player
from oal.deep.learned_cost import LearnedCost
from oal.deep.loop import OAL, DivergedError
from oal.deep.nets import init_actor
from oal.deep.normaliser import STD_FLOOR, Normaliser
from oal.deep.policy import Policy
from oal.deep.replay import Pairs
from oal.demos import Demos, Trajectory
from oal.demos.pairs import encode
from oal.envs import EnvSpec
from oal.errors import InputError
from shapes import check_shapes, checked

SPEC = EnvSpec("Probe-v0", "continuous", 3, 1, (-2.0,), (2.0,), (1,), horizon=50)
NORMALISER = Normaliser(np.float32([1.0, -2.0, 30.0]), np.float32([0.5, 2.0, 10.0]))
SMALL: dict[str, Any] = {
    "policy.hidden": [8],
    "policy.batch_size": 8,
    "replay.block": 10,
    "replay.warmup_steps": 20,
    "replay.capacity": 100,
    "cost.update_every": 20,
    "cost.window": 40,
    "bc.epochs": 2,
    "bc.members": 2,
}
ON = {
    "policy.hidden": [8],
    "policy.batch_steps": 20,
    "policy.critic_epochs": 1,
    "cost.update_every": 20,
    "bc.epochs": 2,
}
SHOWN = demos_of(CONTINUOUS)


def learner(policy: str = "mdpo", cost: str = "linear", env: Any = CONTINUOUS, **options: Any) -> OAL:
    settings = {**SMALL, **options.pop("settings", {})}
    return OAL(env, SHOWN, policy, cost, settings=settings, **options)


def shown(rng: np.random.Generator) -> list[Trajectory]:
    """Two episodes of other lengths; the last observation never varies."""
    made = []
    for steps in (20, 35):
        observations = (rng.normal(size=(steps + 1, 3)) * [2.0, 0.1, 0.0] + [5.0, -1.0, 7.0]).astype(np.float32)
        made.append(Trajectory(observations, np.zeros((steps, 1), np.float32), truncated=True))
    return made


# The numbers ---------------------------------------------------------------------------------------------------------


def test_it_is_the_demonstrated_mean_and_spread(rng: np.random.Generator) -> None:
    """Number by number, over the observations in which something was done."""
    episodes = encode(shown(rng), SPEC)
    found = checked(Normaliser.of)(episodes)
    check_shapes(found)
    seen = [row for episode in episodes for row in episode.observation]
    assert len(seen) == 55
    for i in range(3):
        mean = sum(float(row[i]) for row in seen) / 55
        spread = (sum((float(row[i]) - mean) ** 2 for row in seen) / 55) ** 0.5
        assert float(found.mean[i]) == pytest.approx(mean, rel=1e-4)
        if i < 2:
            assert float(found.std[i]) == pytest.approx(spread, rel=1e-4)
    assert float(found.std[2]) == 1.0, "what never varies stays in its own units"
    # sums of float32 would make it vary
    long = [replace(episodes[0], observation=np.full((1_000, 3), 1.3, np.float32))]
    assert Normaliser.of(long).std.tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(Normaliser.of(long).mean, np.float32(1.3))
    still = [replace(each, observation=np.float32(1e-5) * each.observation) for each in episodes]
    np.testing.assert_allclose(Normaliser.of(still).std, [STD_FLOOR, STD_FLOOR, 1.0])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_observations_are_standardised_and_drawn_in(kind: Any, rng: np.random.Generator) -> None:
    observations = (100.0 * rng.normal(size=(40, 3))).astype(kind)
    kept = observations.copy()
    found = checked(NORMALISER.__call__)(observations) if kind != np.int64 else NORMALISER(observations)
    assert found.dtype == np.float32

    def drawn_in(z: float) -> float:
        return z if abs(z) <= 5.0 else math.copysign(5.0 + 5.0 * math.log(abs(z) / 5.0), z)

    expected = [[drawn_in((x - m) / s) for x, m, s in zip(row, *NORMALISER, strict=True)] for row in observations]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found).max() > 10.0, "far observations are there"
    assert np.abs(found).min() < 5.0
    np.testing.assert_array_equal(observations, kept, err_msg="what is given stays as it is")
    np.testing.assert_array_equal(NORMALISER(observations[3]), found[3])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(bad: float) -> None:
    """An infinite observation must not be learned from as if it were a large one."""
    observations = np.zeros((4, 3), np.float32)
    observations[2, 1] = bad
    found = NORMALISER(observations)
    assert np.isfinite(found).sum() == 11
    np.testing.assert_array_equal(found[2, 1], bad)


def test_episodes_keep_everything_but_their_observations(rng: np.random.Generator) -> None:
    episodes = encode(shown(rng), SPEC)
    for before, after in zip(episodes, NORMALISER.episodes(episodes), strict=True):
        np.testing.assert_array_equal(after.observation, NORMALISER(before.observation))
        np.testing.assert_array_equal(after.next_observation, NORMALISER(before.next_observation))
        for name in ("action", "time", "terminated", "stride", "rewards"):
            assert getattr(after, name) is getattr(before, name)


# Files ---------------------------------------------------------------------------------------------------------------


def test_what_it_gives_a_file_is_what_it_is_read_from() -> None:
    read = Normaliser.from_arrays(NORMALISER.arrays(), 3, "here")
    assert read is not None
    assert games.leaves_equal(read, NORMALISER)
    assert Normaliser.from_arrays({"actor/0/weight": np.zeros(3)}, 3, "here") is None


HOSTILE = {
    "another size": {"normaliser/mean": np.zeros(4), "normaliser/std": np.ones(4)},
    "a square": {"normaliser/mean": np.zeros((3, 3)), "normaliser/std": np.ones((3, 3))},
    "a number": {"normaliser/mean": np.float32(0.0), "normaliser/std": np.float32(1.0)},
    "no std": {"normaliser/mean": np.zeros(3)},
    "no mean": {"normaliser/std": np.ones(3)},
    "a std of 0": {"normaliser/mean": np.zeros(3), "normaliser/std": np.float32([1.0, 0.0, 1.0])},
    "a std below 0": {"normaliser/mean": np.zeros(3), "normaliser/std": np.float32([1.0, -1.0, 1.0])},
    "a std that is no number": {"normaliser/mean": np.zeros(3), "normaliser/std": np.float32([1.0, np.nan, 1.0])},
    "an infinite std": {"normaliser/mean": np.zeros(3), "normaliser/std": np.float32([1.0, np.inf, 1.0])},
    "a mean that is no number": {"normaliser/mean": np.float32([0, np.nan, 0]), "normaliser/std": np.ones(3)},
}


@pytest.mark.parametrize("arrays", HOSTILE.values(), ids=HOSTILE)
def test_arrays_that_are_no_normaliser_are_refused(
    arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"here: the normaliser's mean and std .* must be \(3,\) and finite"):
        Normaliser.from_arrays(arrays, 3, "here")
    # and so are files with them
    monkeypatch.setattr(Normaliser, "arrays", lambda self: {k: np.asarray(v, np.float32) for k, v in arrays.items()})
    policy().save(tmp_path / "policy")
    cost().save(tmp_path / "cost")
    for load, name in ((Policy.load, "policy"), (LearnedCost.load, "cost")):
        with pytest.raises(InputError, match=f"{name}: the normaliser"):
            load(tmp_path / name)


def policy(normaliser: Normaliser | None = NORMALISER) -> Policy:
    return Policy(SPEC, init_actor(jax.random.key(0), "continuous", 3, 1, (8,)), normaliser=normaliser)


def cost(config: Any = None, function: Any = None, normaliser: Normaliser | None = NORMALISER) -> LearnedCost:
    config = config or NeuralConfig(hidden=(8,))
    player = cost_player(config, function=function if normaliser is None else normaliser.undone(function))
    rng = np.random.default_rng(0)
    expert = Pairs(*(rng.normal(size=(20, n)).astype(np.float32) for n in (3, 1)), np.ones(20, np.float32))
    player = player.sized(3, 1, 0.99)
    view = player.init(1, expert).view
    params = jax.tree.map(lambda leaf: jnp.array(rng.normal(size=leaf.shape), jnp.float32), view.params)
    return LearnedCost(player, view._replace(params=params), SPEC, 0.99, normaliser=normaliser)


def test_a_policy_takes_it_along(tmp_path: Path, rng: np.random.Generator) -> None:
    observations = (NORMALISER.mean + NORMALISER.std * rng.normal(size=(6, 3))).astype(np.float32)
    made, bare = policy(), policy(None)
    acted = made.act(observations)
    np.testing.assert_array_equal(acted, bare.act(NORMALISER(observations)))
    assert not np.allclose(acted, bare.act(observations), atol=1e-3)
    np.testing.assert_allclose(made.predict(observations[0])[0], 2.0 * acted[0], rtol=1e-6)
    made.save(tmp_path / "policy")
    read = Policy.load(tmp_path / "policy")
    assert read.normaliser is not None
    assert games.leaves_equal(read.normaliser, NORMALISER)
    np.testing.assert_array_equal(read.act(observations), acted)
    np.testing.assert_array_equal(read.sample(observations), made.sample(observations))
    bare.save(tmp_path / "bare")
    assert Policy.load(tmp_path / "bare").normaliser is None


@pytest.mark.parametrize("config", [NeuralConfig(hidden=(8,)), LinearConfig()], ids=["neural", "linear"])
def test_a_cost_takes_it_along(config: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    observations = (NORMALISER.mean + NORMALISER.std * rng.normal(size=(6, 3))).astype(np.float32)
    actions = rng.uniform(-2.0, 2.0, (6, 1)).astype(np.float32)
    made, bare = cost(config), cost(config, normaliser=None)
    np.testing.assert_array_equal(made(observations, actions), bare(NORMALISER(observations), actions))
    assert not np.allclose(made(observations, actions), bare(observations, actions), atol=1e-3)
    made.save(tmp_path / "cost")
    read = LearnedCost.load(tmp_path / "cost")
    assert read.normaliser is not None
    assert games.leaves_equal(read.normaliser, NORMALISER)
    np.testing.assert_array_equal(read(observations, actions), made(observations, actions))
    bare.save(tmp_path / "bare")
    assert LearnedCost.load(tmp_path / "bare").normaliser is None


def test_json_of_a_linear_cost_is_in_the_environments_units(rng: np.random.Generator) -> None:
    made = cost(LinearConfig(clip=5.0))
    described = made.to_json()
    observations = (NORMALISER.mean + NORMALISER.std * rng.normal(size=(30, 3))).astype(np.float32)
    actions = rng.uniform(-2.0, 2.0, (30, 1)).astype(np.float32)
    inputs = np.concatenate([observations, actions / 2.0], axis=1)
    expected = (inputs - described["mean"]) / described["std"] @ described["weights"]
    np.testing.assert_allclose(made(observations, actions), np.clip(expected, -5.0, 5.0), rtol=1e-3, atol=1e-4)
    # far from the demonstrations too
    far = (NORMALISER.mean + 20.0 * NORMALISER.std * rng.normal(size=(30, 3))).astype(np.float32)
    known = described["normaliser"]
    z = (far - known["mean"]) / known["std"]
    near = np.where(np.abs(z) > known["knee"], np.sign(z) * known["knee"] * (1 + np.log(np.abs(z) / known["knee"])), z)
    inputs[:, :3] = known["mean"] + near * known["std"]
    expected = (inputs - described["mean"]) / described["std"] @ described["weights"]
    np.testing.assert_allclose(made(far, actions), np.clip(expected, -5.0, 5.0), rtol=1e-3, atol=1e-3)
    # and so are the curves of a network
    curves = cost()
    _, dependence = curves._dependence(None, None)
    mean, std = (np.asarray(part) for part in curves._scaling())
    at = np.tile(mean.astype(np.float32), (21, 1))
    at[:, 1] = mean[1] + std[1] * np.linspace(-2.0, 2.0, 21)
    np.testing.assert_allclose(dependence[1], curves.encoded(at[:, :3], at[:, 3:]), atol=1e-4)


def test_a_users_features_see_the_environments_units(tmp_path: Path, rng: np.random.Generator) -> None:
    def features(observation: Any, action: Any) -> Any:
        return jnp.concatenate([observation, action**2], axis=-1)

    config = LinearConfig(features="function")
    made = cost(config, features)
    observations = (NORMALISER.mean + NORMALISER.std * rng.normal(size=(9, 3))).astype(np.float32)
    actions = rng.uniform(-2.0, 2.0, (9, 1)).astype(np.float32)
    weights = np.asarray(made.view.params, np.float64)
    expected = np.concatenate([observations, (actions / 2.0) ** 2], axis=1) @ weights
    np.testing.assert_allclose(made(observations, actions), expected, rtol=1e-4, atol=1e-4)
    made.save(tmp_path / "cost")
    read = LearnedCost.load(tmp_path / "cost", features=features)
    np.testing.assert_allclose(read(observations, actions), expected, rtol=1e-4, atol=1e-4)
    assert NORMALISER.undone(None) is None


# The loop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_name", ["mdpo", "trpo"])
def test_both_players_see_normalised_observations_and_the_regret_plain_ones(policy_name: str) -> None:
    made = learner(policy_name) if policy_name == "mdpo" else OAL(CONTINUOUS, SHOWN, policy_name, "linear", settings=ON)
    normaliser, stepped, player = made.normaliser, made.envs.step, made.player
    assert normaliser is not None
    raw, met, acted, observed = [], [], [], []

    def step(action: Any) -> Any:
        raw.append(stepped(action))
        return raw[-1]

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        acted.append(observation)
        return player.act(observation, rng)

    def observe(step: Any) -> None:
        observed.append(step)
        player.observe(step)

    made.envs.step = step
    made.player = games.Instead(player, act=act, observe=observe)
    meter = made.regret.step
    made.regret.step = lambda *args: (met.append(args[0].copy()), meter(*args))
    made.learn(40)
    assert len(raw) == 40
    for before, given, kept, measured in zip(raw, acted, observed, met, strict=True):
        np.testing.assert_array_equal(given, normaliser(before.observation))
        np.testing.assert_array_equal(kept.observation, normaliser(before.observation))
        np.testing.assert_array_equal(kept.next_observation, normaliser(before.next_observation))
        np.testing.assert_array_equal(measured, before.observation)
    stored = made.memory.unpack(made.memory.rows[: len(made.memory)])
    newest = np.concatenate([each.observation for each in raw])[-len(made.memory) :]
    np.testing.assert_array_equal(np.sort(stored.observation, axis=0), np.sort(normaliser(newest), axis=0))
    # what the expert did is there in the same units
    expert = np.concatenate([t.observations[:-1] for t in SHOWN]).astype(np.float32)
    np.testing.assert_array_equal(made.expert.observation, normaliser(expert))
    np.testing.assert_array_equal(made.policy().normaliser.mean, normaliser.mean)
    # whoever asks gives plain observations
    asked = np.array([0.3, 1.0], np.float32)
    action = made.player.actor.mode(normaliser(asked[None]))
    np.testing.assert_allclose(made.predict(asked)[0], 1.0 + 2.0 * action[0], atol=1e-6)


def test_it_can_be_left_out_and_is_left_out_without_demonstrations() -> None:
    assert learner(settings={"normalise": False}).normaliser is None
    alone = OAL(CONTINUOUS, None, cost=None)
    assert alone.normaliser is None
    plain = OAL(CONTINUOUS, SHOWN, preset="paper")
    assert plain.normaliser is None


def test_a_learner_is_read_with_its_normaliser(tmp_path: Path) -> None:
    made = learner()
    made.learn(20)
    made.save(tmp_path / "checkpoint")
    read = OAL.load(tmp_path / "checkpoint")
    assert games.leaves_equal(read.normaliser, made.normaliser)
    asked = np.array([[0.3, 1.0]], np.float32)
    np.testing.assert_array_equal(read.policy().act(asked), made.policy().act(asked))
    observations, actions = np.float32([[0.2, 1.0], [-0.4, 1.0]]), np.float32([[0.5], [2.0]])
    np.testing.assert_array_equal(
        *(LearnedCost.of(each)(observations, actions) for each in (made, read)),
    )


def test_a_learners_own_features_see_the_environments_units() -> None:
    """Recorded at every call with real numbers: the demonstrations, as they were shown."""
    seen: list[np.ndarray] = []

    def features(observation: Any, action: Any) -> Any:
        if not isinstance(observation, jax.core.Tracer):
            seen.append(np.asarray(observation))
        return jnp.concatenate([observation, action], axis=-1)

    made = learner(features=features)
    assert made.normaliser is not None
    np.testing.assert_allclose(seen[0], SHOWN[0].observations[:2], atol=1e-5)
    made.learn(40)
    found = LearnedCost.of(made)
    assert isinstance(made.cost_player, CostBase)
    observations, actions = np.float32([[0.2, 1.0], [-0.4, 1.0]]), np.float32([[0.5], [2.0]])
    view = made.cost.view
    inputs = np.concatenate([observations, (actions - 1.0) / 2.0], axis=1)
    paid = (inputs @ np.asarray(view.params) - float(view.centre)) / float(view.scale)
    np.testing.assert_allclose(found(observations, actions), float(view.gain) * np.clip(paid, -5, 5), atol=1e-3)


class Breaks(Walk):
    """The walk, with one observation that is not finite after 33 steps in all."""

    value = np.nan

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        self.steps += 1
        if self.steps == 33:
            observation[0] = self.value
        return observation, *rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_loop_still_says_that_an_observation_is_not_finite(value: float) -> None:
    kind = type("Breaks", (Breaks,), {"value": value})
    made = learner(env=kind, horizon=HORIZON)
    assert made.normaliser is not None
    with pytest.raises(DivergedError, match="Breaks gave an observation that is not finite at step 33"):
        made.learn(100)


@pytest.mark.parametrize("z", [0.0, -4.9, 5.0, 5.1, -30.0, 4000.0])
def test_undoing_gives_the_environments_units_back_however_far(z: float) -> None:
    observation = (NORMALISER.mean + NORMALISER.std * z).astype(np.float32)
    seen = NORMALISER.undone(lambda observation, _: observation)
    assert seen is not None
    np.testing.assert_allclose(seen(NORMALISER(observation), None), observation, rtol=1e-4, atol=1e-4)


def test_a_far_observation_is_drawn_in_and_learned_from() -> None:
    kind = type("Breaks", (Breaks,), {"value": 1e6})
    made = learner(env=kind, horizon=HORIZON)
    made.learn(60)
    assert 20.0 < np.abs(made.memory.rows).max() < 100.0
    assert all(np.isfinite(number) for number in made.numbers().values())


def test_a_clone_takes_it_along(tmp_path: Path) -> None:
    made = BC(CONTINUOUS, SHOWN, config=BCConfig(epochs=2), hidden=(8,)).learn()
    plain = BC(CONTINUOUS, SHOWN, config=BCConfig(epochs=2), hidden=(8,), normalise=False)
    assert made.normaliser is not None
    assert plain.normaliser is None
    made.save(tmp_path / "policy")
    read = Policy.load(tmp_path / "policy")
    asked = np.array([0.3, 1.0], np.float32)
    np.testing.assert_array_equal(read.predict(asked)[0], made.predict(asked)[0])
    assert read.normaliser is not None
    assert games.leaves_equal(read.normaliser, made.normaliser)


def test_demonstrations_of_one_step_are_enough() -> None:
    """Nothing varies: every observation stays in its own units."""
    one = Demos((Trajectory(np.float32([[0.1, 1.0], [0.2, 1.0]]), np.float32([[1.0]]), truncated=True),))
    made = OAL(CONTINUOUS, one, "mdpo", "linear", settings=SMALL)
    np.testing.assert_allclose(made.normaliser.std, 1.0)
    made.learn(40)
    assert np.isfinite(made.memory.rows).all()
