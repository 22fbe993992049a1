"""Probe games for two players: tiny, each isolating one thing that the whole loop must get right."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import games
from oal.deep.loop import OAL
from oal.deep.replay import unpack
from oal.demos import Demos, Trajectory

QUICK = {
    "policy.hidden": [16],
    "policy.batch_size": 32,
    "policy.learning_rate": 3e-3,
    "policy.target_rate": 0.05,
    "policy.actor_average": 0.99,
    "replay.block": 20,
    "replay.warmup_steps": 100,
    "replay.capacity": 4_000,
    "bc.epochs": 0,
}


@pytest.mark.parametrize("cost", ["linear", "neural", "gail"])
def test_the_demonstrated_action_is_imitated(cost: str) -> None:
    """One observation, one action, no reward: what is played is +0.5, because the expert plays it.

    The linear cost has Fourier features here. One that is linear in the action itself is least at one end or the other,
    so that its game goes round about +0.5 for ever, and only the average of what is played comes near.
    """
    own = (
        {"cost.window": 200, "cost.features": "fourier", "cost.fourier_features": 32}
        if cost == "linear"
        else {"cost.hidden": [16], "cost.learning_rate": 3e-3}
    )
    settings = {**QUICK, "policy.gamma": 0.0, "cost.update_every": 20, **own}
    learner = OAL(games.OneShot, games.always_half(), cost=cost, horizon=1, settings=settings)
    learner.learn(2_000)
    assert np.mean(unpack(learner.memory.last(500), 1, 1).action) == pytest.approx(0.5, abs=0.15)
    action, _ = learner.predict(np.zeros(1, np.float32))
    assert action[0] == pytest.approx(0.5, abs=0.15)


class Beacon(gym.Env):
    """Stay, or jump and end the episode. The expert saw a light that the learner will never see.

    So the learner can always be told from the expert, and while it lives it pays more than the middle of both.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, action == 1, False, {}


@pytest.mark.parametrize("cost", ["linear", "neural"])
@pytest.mark.parametrize("absorbing", [1.3, None], ids=["price", "none"])
def test_dying_early_is_tempting_unless_the_absorbing_state_has_its_price(cost: str, absorbing: float | None) -> None:
    """The bias of termination: when nothing is paid after the end, a learner whose life costs something ends it."""
    stay = Trajectory(np.ones((21, 1), np.float32), np.zeros(20, np.int64), truncated=True)
    network = {"cost.hidden": [16], "cost.update_every": 20}
    learner = OAL(
        Beacon,
        Demos((stay,)),
        cost=cost,
        horizon=20,
        settings={
            **QUICK,
            "policy.gamma": 0.9,
            "replay.expert_fraction": 0.0,
            "cost.absorbing": absorbing,
            **({"cost.update_every": 20, "cost.window": 200} if cost == "linear" else network),
        },
    )
    learner.learn(2_000)
    lived = learner.evaluate(episodes=1).lengths[0]
    assert lived == (20 if absorbing is not None else 1)
