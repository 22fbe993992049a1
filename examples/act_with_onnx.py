"""The engineer's policy on her robot, where oal is not installed: gymnasium, numpy and onnxruntime only."""

import my_robot
import numpy as np
import onnxruntime


def main():
    session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
    env, misses = my_robot.make_env(), []
    for seed in range(100, 110):
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            inputs = {
                "cart": observation["cart"][None],
                "load": observation["load"][None],
                "mode": np.array([observation["mode"]]),
            }
            (action,) = session.run(["action"], inputs)
            observation, _, terminated, truncated, _ = env.step(action[0])
            done = terminated or truncated
        target = 1.0 if observation["mode"] == 1 else -1.0
        misses.append(abs(observation["cart"][0] - target))
    mean, worst = np.mean(misses), np.max(misses)
    print(f"{len(misses)} episodes: ends {mean:.3f} from the target on average, {worst:.3f} at worst")


if __name__ == "__main__":
    main()
