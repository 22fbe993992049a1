"""Learn from demonstrations with oal or with `imitation`, in a process of its own; print one line of JSON.

With `--steps` and `--skip`: environment steps per second. The clock starts after `--skip` steps, when learning has
begun and everything is compiled. With `--minutes`: the return of the deterministic policy every `--every` seconds. That
clock runs from the start of this process, imports and compilation included, and stands still during evaluations. With
`--until`: the same curve until so many environment steps, with a point every `--every-steps`.

Players: "off" is oal's MDPO or `imitation`'s SAC at one update per step; "on" is oal's TRPO or `imitation`'s PPO with 8
environments. Timed side by side, both sides have the same networks, batches, minibatches and discriminator steps as far
as the algorithms allow. Given minutes or steps to learn, each runs as its authors would: oal's default preset, and for
PPO and BC the settings that `imitation` ships as tuned for the task.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import limit_threads, memory_megabytes

BEGUN = time.perf_counter()
LEARNING_STARTS = 500
REPLAY_CAPACITY = 100_000
ENVIRONMENTS = 8
BATCH_STEPS = 2048
"""On-policy steps per update, over all environments together."""
COST_HIDDEN = (100, 100)
COST_STEPS = {"off": 100, "on": BATCH_STEPS}
"""Environment steps between two updates of the cost, of 10 minibatches of 100 learner's and 100 expert's pairs each."""
COST_MINIBATCHES, COST_BATCH = 10, 100

TUNED_NAMES = {"HalfCheetah": "half_cheetah", "Hopper": "hopper", "Walker2d": "walker"}
"""Tasks of which `imitation` ships tuned settings, and whose observations are the same in its environments, v4, and in
v5: those of Ant and Humanoid are not."""


class Clock:
    """Called with the steps taken whenever the learner pauses; `stop` is set when it has had enough."""

    stop = False

    def __call__(self, step: int, evaluate: Callable[[], float]) -> None:
        raise NotImplementedError


class RateClock(Clock):
    """Steps per second from the first pause at or after `skip` to the first at or after `steps`."""

    def __init__(self, steps: int, skip: int) -> None:
        self.steps, self.skip = steps, skip
        self.first: tuple[int, float] | None = None
        self.last: tuple[int, float] | None = None

    def __call__(self, step: int, evaluate: Callable[[], float]) -> None:
        if step >= self.skip:
            self.last = (step, time.perf_counter())
            self.first = self.first or self.last
        self.stop = step >= self.steps

    def result(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.last is not None
        return {"steps_per_second": (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])}


class CurveClock(Clock):
    """Mean returns over seconds of learning."""

    def __init__(self, minutes: float, every: float) -> None:
        self.seconds, self.every = 60.0 * minutes, every
        self.due = every
        self.evaluating = 0.0
        self.curve: list[dict[str, float]] = []

    def __call__(self, step: int, evaluate: Callable[[], float]) -> None:
        seconds = time.perf_counter() - BEGUN - self.evaluating
        self.stop = seconds >= self.seconds
        if self.stop or seconds >= self.due:
            begun = time.perf_counter()
            self.curve.append({"seconds": seconds, "step": step, "return": evaluate()})
            self.evaluating += time.perf_counter() - begun
            self.due = seconds + self.every

    def result(self) -> dict[str, Any]:
        return {"curve": self.curve}


class StepClock(CurveClock):
    """Mean returns over environment steps; the seconds stand beside them."""

    def __init__(self, until: int, every: int) -> None:
        super().__init__(0.0, 0.0)
        self.until, self.each = until, every
        self.next_step = every

    def __call__(self, step: int, evaluate: Callable[[], float]) -> None:
        self.stop = step >= self.until
        if self.stop or step >= self.next_step:
            seconds = time.perf_counter() - BEGUN - self.evaluating
            begun = time.perf_counter()
            self.curve.append({"seconds": seconds, "step": step, "return": evaluate()})
            self.evaluating += time.perf_counter() - begun
            self.next_step = (step // self.each + 1) * self.each


class StopLearning(Exception):
    """Leaves `imitation`'s training loop, which has no other way out."""


def learn_with_oal(options: argparse.Namespace, clock: Clock) -> None:
    from oal.base import runtime

    runtime.set_threads(options.threads)
    runtime.keep_compiled_programs()
    from oal import demos
    from oal.deep.loop import OAL

    on_policy, timed = options.player == "on", isinstance(clock, RateClock)
    settings: dict[str, Any] = {}
    if timed:
        settings = {
            "cost.hidden": COST_HIDDEN,
            "cost.minibatches": COST_MINIBATCHES,
            "cost.batch_size": COST_BATCH,
            "cost.update_every": COST_STEPS[options.player],
        }
        settings |= (
            {
                "policy.batch_steps": BATCH_STEPS,
                "policy.hidden": (64, 64),
                "policy.activation": "tanh",
                "cost.window": BATCH_STEPS,
            }
            if on_policy
            else {
                "policy.hidden": (256, 256),
                "policy.batch_size": 256,
                "replay.warmup_steps": LEARNING_STARTS,
                "replay.capacity": REPLAY_CAPACITY,
                "replay.updates_per_step": 1.0,
            }
        )
    # the default preset learns with clones as its prior: an epoch of cloning, before the clock starts, is enough
    epochs = int(options.preset == "default") if timed else options.bc_epochs
    if epochs is not None:
        settings["bc.epochs"] = epochs
    learner = OAL(
        options.env,
        demos.load(options.demos),
        policy="trpo" if on_policy else "mdpo",
        cost=options.cost,
        preset=options.preset,
        environments=ENVIRONMENTS if on_policy else 1,
        seed=options.seed,
        settings=settings,
    )

    def evaluate() -> float:
        return learner.evaluate(episodes=options.episodes).mean_return

    def pause(learner: OAL) -> bool:
        if not timed:
            # the block under way is learning, not evaluation: its time counts
            learner.player.settle()
        clock(learner.step, evaluate)
        return not clock.stop

    learner.learn(2**31, callback=pause)
    learner.close()


def tuned(algorithm: str, task: str) -> dict[str, Any]:
    """Read the settings that `imitation` ships as tuned for a task."""
    import imitation

    if task not in TUNED_NAMES:
        raise SystemExit(f"imitation has no environment with the observations of {task}-v5, or no settings for it")
    folder = Path(imitation.__file__).parent / "scripts" / "config" / "tuned_hps"
    return json.loads((folder / f"{algorithm}_seals_{TUNED_NAMES[task]}_best_hp_eval.json").read_text())


def tuned_networks(found: dict[str, Any]) -> dict[str, Any]:
    """Return a policy's networks as the tuned settings have them: 32-32 tanh where they name none."""
    import torch
    from imitation.policies.base import NormalizeFeaturesExtractor
    from imitation.util.networks import RunningNorm

    named = found["policy"].get("policy_kwargs", {})
    layers = named.get("net_arch", [32, 32])
    layers = layers[0]["pi"] if isinstance(layers[0], dict) else layers
    relu = "ReLU" in str(named.get("activation_fn", ""))
    return {
        "net_arch": layers,
        "activation_fn": torch.nn.ReLU if relu else torch.nn.Tanh,
        "features_extractor_class": NormalizeFeaturesExtractor,
        "features_extractor_kwargs": {"normalize_class": RunningNorm},
    }


def learn_with_imitation(options: argparse.Namespace, clock: Clock) -> None:
    # its dependencies' own deprecations are not this benchmark's business
    warnings.simplefilter("ignore")
    import numpy as np
    import torch
    from imitation.algorithms.adversarial.airl import AIRL
    from imitation.algorithms.adversarial.gail import GAIL
    from imitation.data import serialize
    from imitation.rewards.reward_nets import BasicRewardNet, BasicShapedRewardNet, NormalizedRewardNet
    from imitation.util import logger
    from imitation.util.networks import RunningNorm
    from imitation.util.util import make_vec_env
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(options.threads)
    on_policy, timed = options.player == "on", isinstance(clock, RateClock)
    task = options.env.split("-")[0]
    # the newest environments that its Gymnasium has
    env_id = f"{task}-v4"
    environments = make_vec_env(
        env_id, rng=np.random.default_rng(options.seed), n_envs=ENVIRONMENTS if on_policy else 1
    )
    fresh = make_vec_env(env_id, rng=np.random.default_rng(options.seed + 1), n_envs=1)

    def evaluated(policy: Any) -> float:
        return float(evaluate_policy(policy, fresh, n_eval_episodes=options.episodes, deterministic=True)[0])

    demonstrations = serialize.load(options.demos)
    if options.algorithm == "bc":
        policy = clone_with_imitation(options, environments, demonstrations)
        assert isinstance(clock, CurveClock)
        # a clone takes no steps: its curve is one point
        seconds = time.perf_counter() - BEGUN
        clock.curve.append({"seconds": seconds, "step": 0, "return": evaluated(policy)})
        return
    settings: dict[str, Any] = {"demo_batch_size": COST_BATCH, "n_disc_updates_per_round": COST_MINIBATCHES}
    networks: dict[str, Any] = {"hid_sizes": COST_HIDDEN}
    if not on_policy:
        player: Any = SAC(
            "MlpPolicy",
            environments,
            learning_starts=LEARNING_STARTS if timed else 1_000,
            batch_size=256,
            train_freq=1,
            gradient_steps=1,
            buffer_size=REPLAY_CAPACITY if timed else 1_000_000,
            policy_kwargs={"net_arch": [256, 256]},
            seed=options.seed,
        )
        # the discriminator sees all past policies, as oal's cost player does by default
        settings |= {"gen_train_timesteps": COST_STEPS["off"], "gen_replay_buffer_capacity": REPLAY_CAPACITY}
    elif timed:
        # minibatches and epochs as in oal's fit of the value function
        player = PPO(
            "MlpPolicy",
            environments,
            n_steps=BATCH_STEPS // ENVIRONMENTS,
            batch_size=128,
            n_epochs=10,
            policy_kwargs={"net_arch": [64, 64]},
            seed=options.seed,
            device="cpu",
        )
    else:
        found = tuned(options.algorithm, task)
        player = PPO(
            "MlpPolicy",
            environments,
            n_steps=found["rl"]["batch_size"] // ENVIRONMENTS,
            policy_kwargs=tuned_networks(found),
            seed=options.seed,
            device="cpu",
            **found["rl"]["rl_kwargs"],
        )
        settings, networks = found["algorithm_kwargs"], {}
    reward_class = BasicShapedRewardNet if options.algorithm == "airl" else BasicRewardNet
    if options.algorithm == "airl" and networks:
        networks = {"reward_hid_sizes": COST_HIDDEN, "potential_hid_sizes": COST_HIDDEN}
    reward: Any = reward_class(
        environments.observation_space, environments.action_space, normalize_input_layer=RunningNorm, **networks
    )
    if not timed:
        reward = NormalizedRewardNet(reward, normalize_output_layer=RunningNorm)
    trainer = {"gail": GAIL, "airl": AIRL}[options.algorithm](
        demonstrations=demonstrations,
        venv=environments,
        gen_algo=player,
        reward_net=reward,
        allow_variable_horizon=True,
        custom_logger=logger.configure(None, []),
        **settings,
    )

    def pause(_: int) -> None:
        clock(player.num_timesteps, lambda: evaluated(player))
        if clock.stop:
            raise StopLearning

    with suppress(StopLearning):
        trainer.train(2**31, callback=pause)


def clone_with_imitation(options: argparse.Namespace, environments: Any, demonstrations: Any) -> Any:
    """Return `imitation`'s clone of the demonstrations, fitted as it tuned it for the task."""
    import numpy as np
    import torch
    from imitation.algorithms.bc import BC
    from imitation.policies.base import FeedForward32Policy
    from imitation.util import logger

    found = tuned("bc", options.env.split("-")[0])
    torch.manual_seed(options.seed)
    spaces = environments.observation_space, environments.action_space
    networks = {name: value for name, value in tuned_networks(found).items() if name.startswith("features")}
    policy = FeedForward32Policy(*spaces, lr_schedule=lambda _: 1e-3, **networks)
    cloner = BC(
        observation_space=spaces[0],
        action_space=spaces[1],
        rng=np.random.default_rng(options.seed),
        policy=policy,
        demonstrations=demonstrations,
        batch_size=found["bc"]["batch_size"],
        optimizer_kwargs=found["bc"]["optimizer_kwargs"],
        l2_weight=found["bc"]["l2_weight"],
        custom_logger=logger.configure(None, []),
        device="cpu",
    )
    cloner.train(n_epochs=found["bc"]["train_kwargs"]["n_epochs"], progress_bar=False)
    return cloner.policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=["oal", "imitation"], required=True)
    parser.add_argument("--player", choices=["off", "on"], required=True)
    parser.add_argument("--algorithm", choices=["gail", "airl", "bc"], default="gail", help="of imitation")
    parser.add_argument("--cost", default="neural", help="oal's cost player")
    parser.add_argument("--preset", default="default", help="of oal")
    parser.add_argument("--bc-epochs", type=int, help="of oal; 0 starts at random, without it the preset's own")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--demos", required=True, help="demonstrations in imitation's npz format")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--skip", type=int, default=1_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--every", type=float, default=15.0, help="seconds of learning between two evaluations")
    parser.add_argument("--until", type=int, help="environment steps to learn")
    parser.add_argument("--every-steps", type=int, default=5_000, help="environment steps between two evaluations")
    parser.add_argument("--episodes", type=int, default=5, help="episodes of an evaluation")
    options = parser.parse_args()
    if sum(given is not None for given in (options.steps, options.minutes, options.until)) != 1:
        parser.error("give one of --steps, --minutes and --until")
    clock: Any = (
        RateClock(options.steps, options.skip)
        if options.steps is not None
        else CurveClock(options.minutes, options.every)
        if options.minutes is not None
        else StepClock(options.until, options.every_steps)
    )
    if options.library == "oal":
        learn_with_oal(options, clock)
    else:
        limit_threads(options.threads)
        learn_with_imitation(options, clock)
    print(json.dumps({**clock.result(), "peak_memory_megabytes": memory_megabytes("VmHWM")}))


if __name__ == "__main__":
    main()
