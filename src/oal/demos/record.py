"""Record a policy's episodes as demonstrations."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from oal.demos.trajectories import Demos, Trajectory
from oal.envs.episodes import Choose, Episode, EpisodeRunner, Shown, episode_seeds
from oal.envs.spec import Act, EnvSource, flattener
from oal.errors import InputError, at_least, shortened


def record_demos(
    source: EnvSource | gym.Env,
    policy: Any,
    *,
    episodes: int,
    deterministic: bool = True,
    seed: int = 0,
    horizon: int | None = None,
    described_as: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Demos:
    """Run whole episodes of a policy and keep them as demonstrations.

    The policy is anything with `predict`, as oal's own, Stable-Baselines3's and sbx's have it, or a function; it is
    asked for one observation at a time, as the environment gives it, and answers in the environment's units.

    Each trajectory carries its reset seed and, where the environment shows it, the simulator's initial state.
    Observations that were flattened get the flattened space. Rewards that are None or NaN are not kept.
    """
    run = lambda runner, seeds: runner.play(_chooser(policy, runner.envs[0].action_space, deterministic), seeds)  # noqa: E731
    return _recorded(source, run, episodes, seed, horizon, described_as, metadata)


def record_encoded(
    source: EnvSource,
    act: Act,
    *,
    episodes: int,
    seed: int = 0,
    horizon: int | None = None,
    described_as: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Demos:
    """As `record_demos`, by a function from flat observations [n, O] to encoded actions [n, A]: several at a time."""
    return _recorded(
        source, lambda runner, seeds: runner.run(act, seeds), episodes, seed, horizon, described_as, metadata
    )


def _recorded(
    source: EnvSource | gym.Env,
    run: Callable[[EpisodeRunner, Sequence[int]], list[Episode]],
    episodes: int,
    seed: int,
    horizon: int | None,
    described_as: str | None,
    metadata: Mapping[str, Any] | None,
) -> Demos:
    at_least("episodes", episodes, 1)
    given = source if isinstance(source, gym.Env) else None
    runner = EpisodeRunner(
        (lambda: given) if given is not None else source,  # type: ignore[arg-type, return-value]
        parallel=1 if given is not None else min(episodes, 10),
        horizon=horizon,
    )
    try:
        recorded = run(runner, episode_seeds(seed, "demonstrations", episodes))
        observation_space = runner.envs[0].observation_space
        rewarded = not any(np.isnan(episode.rewards).any() for episode in recorded)
        return Demos(
            tuple(
                Trajectory(
                    episode.observations,
                    episode.actions,
                    episode.rewards.astype(np.float32) if rewarded else None,
                    episode.terminated,
                    episode.truncated,
                    seed=episode.seed,
                    initial_state=episode.initial_state,
                )
                for episode in recorded
            ),
            env_id=runner.spec.env_id,
            observation_space=(
                observation_space if flattener(observation_space) is None else spaces.flatten_space(observation_space)
            ),
            action_space=runner.envs[0].action_space,
            source=described_as,
            metadata=dict(metadata or {}),
        )
    finally:
        if given is None:
            runner.close()


def _chooser(policy: Any, space: spaces.Space, deterministic: bool) -> Choose:
    """Ask the policy for each observation alone, and keep what it remembers (a recurrent one's state) by episode."""
    ask = _asking(policy, deterministic)
    states: dict[int, Any] = {}

    def choose(shown: list[Shown]) -> list[Any]:
        actions = []
        for each in shown:
            first = each.step == 0
            action, states[each.seed] = ask(each.observation, None if first else states[each.seed], first)
            actions.append(_checked(action, space))
        return actions

    return choose


def _asking(policy: Any, deterministic: bool) -> Callable[[Any, Any, bool], tuple[Any, Any]]:
    predict = getattr(policy, "predict", None)
    if predict is None:
        if not callable(policy):
            raise InputError(f"the policy is {shortened(policy)}: it must be a function, or have a method predict")
        return lambda observation, state, first: (policy(observation), None)
    takes = inspect.signature(predict).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())

    def ask(observation: Any, state: Any, first: bool) -> tuple[Any, Any]:
        offered = {"state": state, "episode_start": np.array([first]), "deterministic": deterministic}
        given = {name: value for name, value in offered.items() if open_ended or name in takes}
        answer = predict(observation, **given)
        return answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)

    return ask


def _checked(action: Any, space: spaces.Space) -> Any:
    """Return an action as the environment takes it, or say what is wrong with it."""
    values = np.asarray(action)
    if isinstance(space, spaces.Discrete):
        if values.size != 1 or values.dtype.kind not in "iu":
            raise InputError(
                f"the policy gave the action {shortened(action)}: the environment takes one whole number of {space} "
                "(actions are in the environment's units; give the policy itself, not its act)"
            )
        return int(values.item())
    if values.size != np.prod(space.shape or ()) or values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        raise InputError(
            f"the policy gave the action {shortened(action)}: the environment takes finite numbers, shape {space.shape}"
        )
    return values.reshape(space.shape or ()).astype(space.dtype)
