"""An environment of one's own, as an engineer has it: Dict observations, odd action bounds, no reward, no registration.

A cart on a rail is pushed by a motor whose command lies in [2, 6] (4 is rest); a valve in [-0.5, 0.5] tilts its load.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class Robot(gymnasium.Env):
    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "cart": spaces.Box(-10.0, 10.0, (2,), np.float32),  # place and speed
                "load": spaces.Box(-10.0, 10.0, (1,), np.float32),  # tilt
                "mode": spaces.Discrete(2),  # which of two places is the target
            }
        )
        self.action_space = spaces.Box(np.array([2.0, -0.5], np.float32), np.array([6.0, 0.5], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(-1.0, 1.0), 0.0
        self.tilt, self.mode = self.np_random.uniform(-0.5, 0.5), int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.05 * (float(action[0]) - 4.0)
        self.place += self.speed
        self.tilt = 0.95 * self.tilt + 0.1 * float(action[1]) + 0.1 * self.speed
        return self._seen(), None, abs(self.place) > 5.0, False, {}

    def _seen(self):
        cart, load = np.array([self.place, self.speed], np.float32), np.array([self.tilt], np.float32)
        return {"cart": cart, "load": load, "mode": self.mode}


def make_env():
    return gymnasium.wrappers.TimeLimit(Robot(), 100)


def expert(observation):
    """What the engineer's own controller does: drive to the target and keep the load level."""
    (place, speed), (tilt,) = observation["cart"], observation["load"]
    target = 1.0 if observation["mode"] == 1 else -1.0
    return np.clip([4.0 + 3.0 * (target - place) - 12.0 * speed, -4.0 * tilt], [2.0, -0.5], [6.0, 0.5])
