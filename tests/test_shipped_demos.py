"""The shipped demonstrations: as good as their table says, and true to their environments."""

from importlib.resources import files

import numpy as np
import pytest

from oal import demos, envs
from oal.base.files import read_json
from replaying import replay_rewards

DATA = files("oal") / "data" / "demos"
TABLE = read_json(str(DATA / "table.json"))
LEAST_RETURN = {
    "CartPole-v1": 500.0,
    "HalfCheetah-v5": 4_000.0,
    "Hopper-v5": 2_500.0,
    "InvertedPendulum-v5": 1_000.0,
    "Pendulum-v1": -250.0,
    "Walker2d-v5": 3_500.0,
}


def test_the_table_lists_what_is_shipped_and_all_of_it_is_small() -> None:
    assert sorted(TABLE) == demos.shipped() == sorted(LEAST_RETURN)
    assert sum(entry["bytes"] for entry in TABLE.values()) < 10_000_000


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_table_is_true(name: str) -> None:
    shipped, entry = demos.load(name), TABLE[name]
    assert shipped.env_id == name
    assert shipped.content_hash == entry["content_hash"]
    assert shipped.returns is not None
    np.testing.assert_allclose(shipped.returns, entry["returns"], atol=1e-3)
    assert shipped.returns.mean() == pytest.approx(entry["return_mean"], abs=0.01)
    assert shipped.lengths.tolist() == entry["lengths"]
    assert len(shipped) >= 10
    assert shipped.has_finals
    assert shipped.observations.dtype == np.float32
    assert shipped.metadata["command"] == entry["command"]
    assert entry["command"].startswith(f"oal expert {name} --steps ")


@pytest.mark.parametrize("name", sorted(TABLE))
def test_they_come_from_an_expert(name: str) -> None:
    returns = demos.load(name).returns
    assert returns is not None
    assert returns.mean() >= LEAST_RETURN[name]


@pytest.mark.parametrize("name", sorted(TABLE))
def test_replaying_the_actions_from_the_recorded_state_gives_the_rewards(name: str) -> None:
    """The beginning of every episode, and one whole episode: legs that hit the ground amplify rounding on the way."""
    env = envs.make(name)
    for index, trajectory in enumerate(demos.load(name)):
        assert trajectory.seed is not None
        assert trajectory.rewards is not None
        steps = len(trajectory) if index == 0 else 50
        replayed = replay_rewards(
            env, trajectory.actions[:steps], initial_state=trajectory.initial_state, seed=trajectory.seed
        )
        np.testing.assert_allclose(replayed, trajectory.rewards[:steps], rtol=1e-4, atol=1e-4)
