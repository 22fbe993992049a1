"""Stable-Baselines3 beside oal. Skipped where it is not installed: it brings PyTorch."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from games import CONTINUOUS, DICTIONARY, HORIZON, demos_of
from oal.deep.bc import BC
from oal.deep.learned_cost import LearnedCost
from oal.deep.loop import OAL
from oal.deep.policy import Policy
from oal.demos import record_demos
from oal.errors import InputError

sb3: Any = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed (oal[sb3])")

from stable_baselines3.common import callbacks as theirs  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

from oal.interop import sb3 as bridge  # noqa: E402

SMALL = {"policy.hidden": [8], "cost.hidden": [8], "bc.updates": 5, "replay.warmup_steps": 10, "replay.block": 10}


def vector(env_id: str = CONTINUOUS, count: int = 2) -> Any:
    return DummyVecEnv([lambda: gym.make(env_id)] * count)


def model_in(env: Any, kind: str = "MlpPolicy") -> Any:
    return sb3.PPO(kind, env, n_steps=16, batch_size=16, n_epochs=1, seed=1, device="cpu")


@pytest.mark.parametrize("normalised", [False, True])
def test_a_model_is_recorded_from_its_own_environment(normalised: bool) -> None:
    env = VecNormalize(vector()) if normalised else vector()
    model = model_in(env).learn(64)
    env.seed(3)
    recorded = bridge.record(model, episodes=5, described_as="PPO")
    assert len(recorded) == 5
    assert recorded.has_finals
    assert recorded.source == "PPO"
    for episode in recorded:
        # the walk moves by a quarter of (action - 1): what was kept is the environment's own
        moves = 0.25 * (np.clip(episode.actions[:, 0], -1, 3) - 1.0)
        np.testing.assert_allclose(np.diff(episode.observations[:, 0]), moves, atol=1e-4)
        assert (episode.observations[:, 1] == 1.0).all() or np.allclose(episode.observations[:, 1], 1.0, atol=1e-4)
        assert episode.terminated == (abs(episode.observations[-1, 0]) > 1.0)
        assert episode.terminated != episode.truncated
        assert episode.truncated == (len(episode) == HORIZON and not episode.terminated)
        np.testing.assert_allclose(episode.rewards, 1.0 - (episode.observations[1:, 0] - 0.5) ** 2, atol=1e-4)
    recorded.check(CONTINUOUS)


@pytest.mark.parametrize("part", ["model", "policy"])
@pytest.mark.parametrize("env_id, kind", [(CONTINUOUS, "MlpPolicy"), (DICTIONARY, "MultiInputPolicy")])
def test_models_and_policies_record_as_they_are(env_id: str, kind: str, part: str) -> None:
    model = model_in(vector(env_id), kind)
    recorded = record_demos(env_id, model if part == "model" else model.policy, episodes=2)
    first = gym.make(env_id).reset(seed=recorded[0].seed)[0]
    np.testing.assert_allclose(recorded[0].actions[0], model.predict(first, deterministic=True)[0], atol=1e-6)


@pytest.mark.parametrize("env_id", [CONTINUOUS, DICTIONARY, "CartPole-v1"])
def test_their_evaluation_takes_models_clones_and_policies(env_id: str) -> None:
    shown = record_demos(env_id, lambda o: 0, episodes=2) if env_id == "CartPole-v1" else demos_of(env_id)
    clone = BC(env_id, shown, hidden=(8,))
    learner = OAL(env_id, shown, settings=SMALL)
    env = Monitor(gym.make(env_id))
    for subject in (clone, clone.policy(), learner, learner.policy()):
        mean, _ = evaluate_policy(subject, env, n_eval_episodes=2)
        assert np.isfinite(mean)
        assert np.isfinite(evaluate_policy(subject, vector(env_id), n_eval_episodes=2, warn=False)[0])
    learner.close()


def test_their_callbacks_look_on_and_stop(tmp_path: Path) -> None:
    stop = theirs.StopTrainingOnRewardThreshold(reward_threshold=-1e9)
    evaluate = theirs.EvalCallback(
        Monitor(gym.make(CONTINUOUS)),
        callback_on_new_best=stop,
        n_eval_episodes=2,
        eval_freq=2,
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    learner = OAL(CONTINUOUS, demos_of(CONTINUOUS), settings=SMALL)
    learner.learn(100, callback=bridge.Callback(evaluate))
    assert learner.step == 20  # the second block, where it was first evaluated
    assert evaluate.num_timesteps == 20
    assert Policy.load(
        tmp_path / "best_model.zip" if (tmp_path / "best_model.zip").exists() else tmp_path / "best_model"
    )
    with pytest.raises(InputError, match="not a callback"):
        bridge.Callback(print)
    learner.close()


@pytest.mark.parametrize("absorbing", ["shift", "charge", "ignore"])
def test_the_learned_cost_is_charged_to_all_environments_at_once(absorbing: Any) -> None:
    learner = OAL(CONTINUOUS, demos_of(CONTINUOUS), settings=SMALL)
    cost = LearnedCost.of(learner)
    env = bridge.CostVecReward(vector(), cost, absorbing=absorbing)
    env.seed(5)
    env.reset()
    single = [cost.reward_wrapper(gym.make(CONTINUOUS), absorbing=absorbing) for _ in range(2)]
    for i, each in enumerate(single):
        each.reset(seed=5 + i)
    draw = np.random.default_rng(0)
    for _ in range(12):
        actions = draw.uniform(-1, 3, (2, 1)).astype(np.float32)
        _, rewards, dones, infos = env.step(actions)
        for i, each in enumerate(single):
            _, expected, terminated, truncated, info = each.step(actions[i])
            assert rewards[i] == pytest.approx(expected, abs=1e-5)
            assert infos[i]["environment_reward"] == pytest.approx(info["environment_reward"], abs=1e-5)
            assert dones[i] == (terminated or truncated)
            if terminated or truncated:
                each.reset()
    trained = model_in(env).learn(32)
    assert trained.num_timesteps >= 32
    for episode in bridge.record(trained, episodes=2):  # the environment's own reward, not the learned one
        np.testing.assert_allclose(episode.rewards, 1.0 - (episode.observations[1:, 0] - 0.5) ** 2, atol=1e-4)
    with pytest.raises(InputError, match="shows 4"):
        bridge.CostVecReward(vector("CartPole-v1"), cost)
    learner.close()
