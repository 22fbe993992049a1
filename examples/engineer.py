"""An engineer with her own demonstrations and environment: from arrays to a policy that acts without oal.

    python engineer.py [--steps 4000]

Her environment (my_robot.py) is not registered, shows dictionaries, takes odd actions and gives no reward.
"""

import argparse
import subprocess
import sys

import my_robot
import numpy as np

from oal.demos import Demos

ENV = "my_robot.py:make_env"


def oal(*words):
    """Run the `oal` command as she would type it."""
    print("$ oal", *words, flush=True)
    subprocess.run([sys.executable, "-m", "oal", *map(str, words)], check=True)


def recorded(episodes):
    """What her logger wrote: for each episode the dictionaries that were seen, and the actions that were taken."""
    env, observations, actions = my_robot.make_env(), [], []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        seen, taken, done = [observation], [], False
        while not done:
            taken.append(my_robot.expert(observation))
            observation, _, terminated, truncated, _ = env.step(taken[-1])
            seen.append(observation)
            done = terminated or truncated
        observations.append(seen)
        actions.append(np.array(taken))
    return observations, actions


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    steps = parser.parse_args().steps
    observations, actions = recorded(12)
    demos = Demos.from_arrays(observations, actions, env=my_robot.make_env, terminated=False)
    demos.save("demos.npz")
    print(demos)
    oal("check", ENV, "--demos", "demos.npz")
    oal("train", ENV, "--demos", "demos.npz", "--trajectories", 8, "--steps", steps, "--out", "robot", "--quiet")
    oal("eval", "robot", "--env", ENV, "--episodes", 10)
    oal("export", "robot", "--onnx", "policy.onnx", "--npz", "policy.npz")
    print("The policy acts without oal: python act_with_onnx.py")


if __name__ == "__main__":
    main()
