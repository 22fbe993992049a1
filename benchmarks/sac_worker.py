"""Time one library's soft actor-critic and print one line of JSON: run by benchmarks/deep.py, each in its own process.

The clock starts after `--skip` steps, when learning has begun and everything is compiled, and stops at `--steps`.
Everything is equal where the libraries allow it: 256-256 ReLU networks, batch 256, one update per environment step,
Adam 3e-4, automatic temperature, the same environment, no evaluation, and the threads given.
"""

import argparse
import json
import os
import sys
import tempfile
import time

LEARNING_STARTS = 500


def oal_rate(env_id: str, steps: int, skip: int, threads: int) -> float:
    from oal import runtime

    runtime.set_threads(threads)
    from oal.expert import ExpertConfig, Progress, prepare

    marks: list[tuple[int, float]] = []

    def mark(progress: Progress) -> None:
        if progress.step >= skip:
            marks.append((progress.step, time.perf_counter()))

    config = ExpertConfig(
        env_id,
        total_steps=steps,
        warmup_steps=LEARNING_STARTS,
        evaluate_every=10 * steps,
        evaluation_episodes=1,
        checkpoint_every=10 * steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = prepare(config, f"{folder}/run")
        # the last block's updates are part of the work: the final evaluation and checkpoint come after the last mark
        trainer.run(mark)
        trainer.close()
    # the final call of `mark` comes after the run's closing evaluation, so the last full block before it is used
    (first, start), (last, end) = marks[0], marks[-2]
    return (last - first) / (end - start)


def stable_baselines_rate(library: str, env_id: str, steps: int, skip: int, threads: int) -> float:
    os.environ.setdefault("NPROC", str(threads))
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
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
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
    )
    clock = Clock()
    model.learn(steps, callback=clock)
    return (steps - skip) / (time.perf_counter() - clock.start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=["oal", "sbx", "sb3"], required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--skip", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not LEARNING_STARTS < options.skip < options.steps:
        sys.exit(f"--skip must lie between {LEARNING_STARTS} and --steps")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    arguments = (options.env, options.steps, options.skip, options.threads)
    rate = oal_rate(*arguments) if options.library == "oal" else stable_baselines_rate(options.library, *arguments)
    print(json.dumps({"library": options.library, "steps_per_second": rate}))


if __name__ == "__main__":
    main()
