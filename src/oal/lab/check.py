"""Look at an environment and at demonstrations for it before anything is learned: what is there, and what follows."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from oal.base.seeding import integer
from oal.base.spaces import is_composite, leaves
from oal.demos import Demos
from oal.envs import EnvSource, EnvSpec, UniformPolicy, describe, make, snapshots
from oal.envs.episodes import Episode, EpisodeRunner, episode_seeds
from oal.errors import InputError, at_least
from oal.lab.run import tells

Verdict = Literal["good", "note", "problem"]
LEARNED_FROM = 10
"""Demonstrations that `oal train` learns from unless told otherwise; the others are held out."""
REPLAYED = 10
"""Steps of a demonstration that are taken again."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what is there, and what oal does with it. A problem stops learning."""

    about: str
    verdict: Verdict
    found: str
    consequence: str


def check(
    env: EnvSource, demos: Demos | None = None, *, horizon: int | None = None, episodes: int = 3, seed: int = 0
) -> list[Finding]:
    """Check an environment by its spaces and by a few episodes of random actions; and demonstrations against it."""
    at_least("episodes", episodes, 1)
    made = make(env, horizon=horizon)
    try:
        findings, spec = _spaces(made, horizon)
        if spec is None:
            return findings
        runner = EpisodeRunner(env, horizon=spec.horizon)
        try:
            played = runner.run(UniformPolicy(spec, seed=seed).act, episode_seeds(seed, "check", episodes))
        finally:
            runner.close()
        findings += [
            _observed(made, spec, played, seed),
            _seeding(env, spec, seed),
            _ends(spec, played),
            _rewards(spec, played, demos),
            _resuming(made, seed),
        ]
        return findings if demos is None else findings + _demonstrations(made, spec, played, demos)
    finally:
        made.close()


# ----- the environment


def _spaces(env: gym.Env, horizon: int | None) -> tuple[list[Finding], EnvSpec | None]:
    """Look at spaces and time limit; what cannot be learned on comes with the reason that learning would give."""
    try:
        spec = describe(env, horizon=horizon)
    except InputError as error:
        return [Finding("environment", "problem", str(env), str(error))], None
    observed, acting = env.observation_space, env.action_space
    shown = f"{type(observed).__name__}, {spec.observation_size} numbers"
    kept = "taken as they are, as float32"
    if is_composite(observed):
        keys = ", ".join(f"{key} ({spaces.flatdim(leaf)})" for key, leaf in leaves(observed))
        shown, kept = f"{type(observed).__name__}: {keys}", f"joined in this order into {spec.observation_size} numbers"
    elif spec.space is not None:
        shown, kept = f"{observed}", f"flattened into {spec.observation_size} numbers"
    if spec.action_counts:
        actions = f"{acting}", f"one choice among {spec.action_size} combinations"
    elif spec.kind == "discrete":
        last = spec.action_start + spec.action_size - 1
        actions = f"Discrete, {spec.action_start} to {last}", f"a choice among {spec.action_size}"
    else:
        bounds = sorted(set(zip(spec.action_low, spec.action_high, strict=True)))
        ranges = ", ".join(f"[{low:g}, {high:g}]" for low, high in bounds[:4]) + (", ..." if len(bounds) > 4 else "")
        unit = bounds == [(-1.0, 1.0)]
        scaled = "taken as they are" if unit else "scaled from these bounds to [-1, 1] and back"
        actions = f"Box {acting.shape} in {ranges}", scaled
    limit = f"{spec.horizon} steps" + ("" if horizon is None else ", as given")
    return [
        Finding("observations", "good", shown, kept),
        Finding("actions", "good", *actions),
        Finding("horizon", "good", limit, "an episode that reaches it is cut off, not ended"),
    ], spec


def _observed(env: gym.Env, spec: EnvSpec, played: Sequence[Episode], seed: int) -> Finding:
    """Compare what random episodes showed with what the space says."""
    shown = np.concatenate([episode.observations for episode in played])
    if not np.isfinite(shown).all():
        episode = next(i for i, each in enumerate(played) if not np.isfinite(each.observations).all())
        step = int(np.argmin(np.isfinite(played[episode].observations).all(axis=1)))
        return Finding("numbers", "problem", f"NaN or infinite at step {step} of episode {episode}", "learning stops")
    first, _ = env.reset(seed=integer(seed, "check"))
    if not env.observation_space.contains(first):
        return Finding(
            "numbers", "note", f"the first observation is not in {env.observation_space}", "the space is not relied on"
        )
    still = int((shown.std(axis=0) == 0).sum())
    found = f"finite over {len(shown)} observations of random actions"
    if still and len(shown) > 2:
        return Finding("numbers", "note", f"{found}; {still} of {shown.shape[1]} never change", "no harm, no use")
    return Finding("numbers", "good", found, "standardised by the demonstrations' mean and spread")


def _seeding(source: EnvSource, spec: EnvSpec, seed: int) -> Finding:
    """Play the same actions from the same seed in two environments, and from another seed."""
    starts = [integer(seed, "check", 1), integer(seed, "check", 2)]

    def play(start: int) -> Episode:
        runner = EpisodeRunner(source, horizon=min(spec.horizon, 20))
        try:
            return runner.run(UniformPolicy(spec, seed=seed).act, [start])[0]
        finally:
            runner.close()

    one, again, other = play(starts[0]), play(starts[0]), play(starts[1])
    if not np.array_equal(one.observations, again.observations):
        return Finding(
            "seeding", "note", "the same seed and actions gave other observations", "runs cannot be repeated exactly"
        )
    if np.array_equal(one.observations[0], other.observations[0]):
        return Finding(
            "seeding",
            "note",
            "every seed begins in the same place",
            "runs can be repeated; episodes resemble each other",
        )
    return Finding("seeding", "good", "the same seed and actions give the same episode", "runs can be repeated")


def _ends(spec: EnvSpec, played: Sequence[Episode]) -> Finding:
    lengths = [len(episode.rewards) for episode in played]
    ended = sum(episode.terminated for episode in played)
    found = f"{ended} of {len(played)} random episodes ended by themselves, in {min(lengths)} to {max(lengths)} steps"
    if ended:
        return Finding("endings", "good", found, "after a true end the learner goes on paying, so ending is no way out")
    return Finding("endings", "good", found, f"all were cut off at {spec.horizon}; what follows still counts")


def _rewards(spec: EnvSpec, played: Sequence[Episode], demos: Demos | None) -> Finding:
    """Say whether returns tell anything: they are compared with random ones, and nothing is learned from them."""
    rewards = np.concatenate([episode.rewards for episode in played])
    unused = "not needed: progress shows the distance to the demonstrations, oal eval tells how close it is"
    if np.isnan(rewards).any():
        return Finding("reward", "note", "none (None or NaN)", unused)
    if not np.isfinite(rewards).all():
        return Finding("reward", "problem", "infinite", "learning stops: give finite rewards, or None")
    returns = np.array([episode.rewards.sum() for episode in played])
    found = f"{rewards.min():g} to {rewards.max():g} a step, return of random actions {returns.mean():.4g}"
    if not tells(returns, None if demos is None else demos.returns):
        always = f"always {rewards[0]:g}" if np.ptp(rewards) == 0 else "every episode's return is the same"
        return Finding("reward", "note", always, unused)
    if np.ptp(rewards) == 0:
        found = f"always {rewards[0]:g}: a return is a number of steps"
    return Finding("reward", "good", found, "never learned from; returns are shown beside the expert's")


def _resuming(env: gym.Env, seed: int) -> Finding:
    env.reset(seed=integer(seed, "check"))
    if snapshots.read(env) is not None:
        return Finding("resuming", "good", "its state can be saved", "a stopped run goes on bit for bit")
    return Finding("resuming", "good", "its state is its own", "episodes begin anew at each checkpoint")


# ----- demonstrations


def _demonstrations(env: gym.Env, spec: EnvSpec, played: Sequence[Episode], demos: Demos) -> list[Finding]:
    count = f"{len(demos)} episodes, {demos.steps} steps"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitting = demos.check(observation_space=env.observation_space, action_space=env.action_space)
    except InputError as error:
        return [Finding("demonstrations", "problem", count, str(error))]
    said = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    findings = [Finding("demonstrations", "note", count, message) for message in said]
    if not said:
        findings = [Finding("demonstrations", "good", count, "shapes and bounds fit")]
    return [
        *findings,
        _held_out(demos),
        _lengths(spec, demos),
        _endings(demos),
        _shown_rewards(demos),
        _scale(fitting, played),
        *_replayed(env, fitting),
    ]


def _held_out(demos: Demos) -> Finding:
    if len(demos) == 1:
        advice = "oal eval needs two to compare with: record more, and give them to it with --demos"
        return Finding("held out", "note", "the only one is learned from (--trajectories 0)", advice)
    if len(demos) <= LEARNED_FROM:
        return Finding(
            "held out",
            "note",
            f"all {len(demos)} are learned from (--trajectories 0)",
            "oal eval compares with what was learned from, which flatters: learn from fewer, or record more",
        )
    if len(demos) == LEARNED_FROM + 1:
        found = f"one is left when {LEARNED_FROM} are learned from"
        return Finding("held out", "note", found, f"oal eval needs two: learn from {LEARNED_FROM - 1} (--trajectories)")
    return Finding(
        "held out",
        "good",
        f"the first {LEARNED_FROM} are learned from (--trajectories)",
        f"oal eval compares with the other {len(demos) - LEARNED_FROM}",
    )


def _lengths(spec: EnvSpec, demos: Demos) -> Finding:
    steps = demos.lengths * demos[0].stride
    found = f"{steps.min()} to {steps.max()} steps" if np.ptp(steps) else f"{steps[0]} steps each"
    if steps.max() > spec.horizon:
        return Finding(
            "their length", "problem", found, f"longer than the horizon of {spec.horizon}: say --horizon {steps.max()}"
        )
    return Finding("their length", "good", found, f"the learner's episodes have at most {spec.horizon}")


def _endings(demos: Demos) -> Finding:
    ended = sum(trajectory.terminated for trajectory in demos)
    found = f"{ended} of {len(demos)} ended by themselves"
    if not demos.endings_known:
        return Finding(
            "their endings",
            "note",
            "not recorded, taken as cut off",
            "if short ones failed or succeeded, say so: oal demos convert --time-limit",
        )
    return Finding("their endings", "good", found, "counted as the learner's own are")


def _shown_rewards(demos: Demos) -> Finding:
    if demos.returns is None:
        return Finding("their rewards", "good", "none", "none are needed")
    if not tells(demos.returns) and not np.any(demos.returns):
        return Finding("their rewards", "note", "always 0", "taken as none")
    return Finding("their rewards", "good", f"return {demos.returns.mean():.4g}", "never learned from, only shown")


def _scale(demos: Demos, played: Sequence[Episode]) -> Finding:
    """Compare first observations: recordings in other units, or another order, show there."""
    begun = np.stack([t.observations[0] for t in demos]).reshape(len(demos), -1).astype(np.float64)
    everywhere = np.concatenate([episode.observations for episode in played]).astype(np.float64)
    low, high = everywhere.min(axis=0), everywhere.max(axis=0)
    room = 10.0 * (high - low) + 1e-3
    strange = np.flatnonzero(((begun < low - room) | (begun > high + room)).any(axis=0))
    if len(strange):
        place = int(strange[0])
        found = f"{len(strange)} of {len(low)} first numbers are far from any that random actions gave"
        return Finding(
            "their scale",
            "note",
            f"{found}: number {place} is {begun[0, place]:g}, there {low[place]:g} to {high[place]:g}",
            "are units and order the environment's?",
        )
    return Finding("their scale", "good", "they begin where the environment does", "units and order agree")


def _replayed(env: gym.Env, demos: Demos) -> list[Finding]:
    """Take a demonstration's first actions again from its seed, where it has one."""
    shown = demos[0]
    if shown.seed is None or shown.stride > 1:
        return []
    flat = _flattening(env)
    observation, _ = env.reset(seed=shown.seed)
    seen = [flat(observation)]
    for action in shown.actions[:REPLAYED]:
        observation, _, terminated, truncated, _ = env.step(int(action) if action.ndim == 0 else action)
        seen.append(flat(observation))
        if terminated or truncated:
            break
    length = min(len(seen), len(shown.observations))
    if np.allclose(np.stack(seen[:length]), shown.observations[:length], atol=1e-3, rtol=1e-3):
        return [Finding("replaying", "good", f"{length - 1} steps come out as recorded", "the same environment")]
    return [
        Finding(
            "replaying",
            "note",
            "the recorded seed and actions give other observations",
            "recorded in another version or with other settings? Learning is possible if the task is the same",
        )
    ]


def _flattening(env: gym.Env) -> Callable[[Any], np.ndarray]:
    return lambda observation: np.asarray(spaces.flatten(env.observation_space, observation), np.float32)
