"""Time one library's soft actor-critic and print one line of JSON: run by benchmarks/deep.py, each in its own process.

The clock starts after `--skip` steps, when learning has begun and everything is compiled, and stops at `--steps`.
Everything is equal where the libraries allow it: 256-256 ReLU networks, batch 256, one update per environment step,
Adam 3e-4, automatic temperature, room for 100,000 transitions, the same environment, no evaluation, and the threads
given.
"""

import argparse
import json
import sys
import time

from common import limit_threads, memory_megabytes

LEARNING_STARTS = 500
REPLAY_CAPACITY = 100_000


def oal_rate(env_id: str, steps: int, skip: int, threads: int) -> float:
    from oal.base import runtime

    runtime.set_threads(threads)
    runtime.keep_compiled_programs()
    from oal import OAL
    from oal.deep.offpolicy import ReplayConfig
    from oal.deep.sac import SAC, SACConfig

    marks: list[tuple[int, float]] = []

    def mark(learner: OAL) -> None:
        if learner.step >= skip:
            marks.append((learner.step, time.perf_counter()))

    replay = ReplayConfig(capacity=REPLAY_CAPACITY, warmup_steps=LEARNING_STARTS)
    learner = OAL(env_id, None, SAC(SACConfig(), replay), cost=None)
    learner.learn(steps, callback=mark)
    learner.close()
    (first, start), (last, end) = marks[0], marks[-1]
    return (last - first) / (end - start)


def stable_baselines_rate(library: str, env_id: str, steps: int, skip: int, threads: int) -> float:
    import gymnasium
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        start = 0.0

        def _on_step(self) -> bool:
            if self.num_timesteps == skip:
                self.start = time.perf_counter()
            return True

    if library == "sbx":
        from sbx import SAC
    else:
        import torch
        from stable_baselines3 import SAC

        torch.set_num_threads(threads)
    model = SAC(
        "MlpPolicy",
        gymnasium.make(env_id),
        learning_starts=LEARNING_STARTS,
        batch_size=256,
        train_freq=1,
        gradient_steps=1,
        buffer_size=REPLAY_CAPACITY,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
    )
    clock = Clock()
    model.learn(steps, callback=clock)
    return (steps - skip) / (time.perf_counter() - clock.start)


def tianshou_rate(env_id: str, steps: int, skip: int, threads: int) -> float:
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 tianshou draws its batches from the global generator
    env = gymnasium.make(env_id)
    observations, actions = env.observation_space.shape, env.action_space.shape
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=observations, hidden_sizes=[256, 256]),
        action_shape=actions,
        unbounded=True,
        conditioned_sigma=True,
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(state_shape=observations, action_shape=actions, hidden_sizes=[256, 256], concat=True)
        )
        for _ in range(2)
    ]
    adam = AdamOptimizerFactory(lr=3e-4)
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        alpha=AutoAlpha(-float(np.prod(actions)), 0.0, adam),
    )
    environments = DummyVectorEnv([lambda: gymnasium.make(env_id)])
    collector = Collector(algorithm, environments, VectorReplayBuffer(REPLAY_CAPACITY, 1), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=LEARNING_STARTS, random=True)
    clock: list[float] = []

    def mark(_: int, step: int) -> None:
        if step >= skip - LEARNING_STARTS and not clock:
            clock.append(time.perf_counter())

    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps - LEARNING_STARTS,
            collection_step_num_env_steps=1,
            update_step_num_gradient_steps_per_sample=1.0,
            batch_size=256,
            training_fn=mark,
            test_in_training=False,
            show_progress=False,
            verbose=False,
        )
    )
    return (steps - skip) / (time.perf_counter() - clock[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=["oal", "sbx", "sb3", "tianshou"], required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--skip", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not LEARNING_STARTS < options.skip < options.steps:
        sys.exit(f"--skip must lie between {LEARNING_STARTS} and --steps")
    arguments = (options.env, options.steps, options.skip, options.threads)
    if options.library == "oal":
        rate = oal_rate(*arguments)
    else:
        limit_threads(options.threads)
        rate = (
            tianshou_rate(*arguments)
            if options.library == "tianshou"
            else stable_baselines_rate(options.library, *arguments)
        )
    print(json.dumps({"steps_per_second": rate, "peak_memory_megabytes": memory_megabytes("VmHWM")}))


if __name__ == "__main__":
    main()
