"""A researcher who comes from `imitation` and Stable-Baselines3: the same data, the same habits, other answers.

    python researcher.py [--steps 3000]

With Stable-Baselines3 installed it also evaluates with `evaluate_policy`, uses SB3's callbacks, and trains PPO on the
cost that was learned. Without it, those parts are left out, and it says so.
"""

import argparse
import importlib.util

import oal
from oal.demos import Demos

ENV = "InvertedPendulum-v5"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    steps = parser.parse_args().steps

    # demonstrations in imitation's own format, written and read again
    expert = oal.demos.load(ENV)
    expert.save("expert.npz", format="imitation")
    demos: Demos = oal.demos.load("expert.npz", env=ENV)
    learn, held_out = demos[:10], demos[10:]

    clone = oal.BC(ENV, learn, seed=0).learn()
    model = oal.OAL(ENV, learn, policy="mdpo", cost="linear", seed=0).learn(steps)
    for name, subject in (("clone", clone), ("oal", model)):
        print(f"{name} {subject.evaluate(episodes=5).mean_return:.0f}")
    print(f"expert {held_out.returns.mean():.0f}")

    # any policy records: oal's, SB3's, a function; what the environment gives in, what it takes out
    rollouts = oal.demos.record_demos(ENV, model.policy(), episodes=5, seed=1)
    cost = oal.LearnedCost.of(model)
    print(oal.certify(rollouts, held_out, training=learn, spec=model.spec, cost=cost))
    for name, weight in sorted(cost.weights(), key=lambda pair: -abs(pair[1]))[:3]:
        print(f"  the learned cost weighs {name} with {weight:+.3f}")
    model.save("model.safetensors")
    again = oal.OAL.load("model.safetensors").learn(steps + 500)
    print(f"went on to {again.step} steps")

    if importlib.util.find_spec("stable_baselines3") is None:
        print("Stable-Baselines3 is not installed: its part is left out")
        return
    with_stable_baselines(model, cost)


def with_stable_baselines(model, cost):
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from oal.interop import sb3

    env = Monitor(gymnasium.make(ENV))
    for name, subject in (("model", model), ("policy", model.policy())):
        mean, spread = evaluate_policy(subject, env, n_eval_episodes=3)
        print(f"evaluate_policy({name}): {mean:.0f} ± {spread:.0f}")
    charged = sb3.CostVecReward(DummyVecEnv([lambda: gymnasium.make(ENV)] * 2), cost)
    ppo = PPO("MlpPolicy", charged, n_steps=256, seed=0, device="cpu").learn(1024)
    print("PPO on the learned cost:", sb3.record(ppo, episodes=2))
    print("recorded as it is:", oal.demos.record_demos(ENV, ppo, episodes=2))


if __name__ == "__main__":
    main()
