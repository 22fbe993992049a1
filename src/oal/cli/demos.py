"""`oal demos`: look at demonstrations, convert them, draw them, record them."""

import json
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.base import console
from oal.cli.typed import typed
from oal.errors import InputError, at_least

if TYPE_CHECKING:
    from oal.demos import Demos

app = typer.Typer(help="Look at demonstrations, convert, draw and record them.", no_args_is_help=True)

SOURCE = typer.Argument(..., metavar="FILE", help="A file or folder, minari:DATASET-ID, or a shipped name (Hopper-v5).")
ENV = typer.Option(None, "--env", help="Check them against this environment (an id, or path/to/file.py:function).")
STRICT = typer.Option(False, "--strict", help="Refuse actions outside the environment's bounds instead of clipping.")
TIME_LIMIT = typer.Option(None, "--time-limit", help="Episodes shorter than this terminated, those of this length not.")

LENGTHS = typer.Option(
    None, "--lengths", help="Steps of each episode (N, or N,M,...), for a file of plain arrays that does not say."
)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            console.say(f"warning: {warning.message}", err=True)


def _load(source: str, env: str | None, strict: bool, time_limit: int | None, lengths: str | None) -> "Demos":
    from oal import demos

    typed(env)
    with _plain_warnings():
        return demos.load(source, env=env, strict=strict, time_limit=time_limit, lengths=parse_lengths(lengths))


def parse_lengths(text: str | None) -> int | list[int] | None:
    """Read N or N,M,..."""
    try:
        numbers = None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--lengths is '{text}': write one number of steps, or several with commas") from None
    return numbers[0] if numbers is not None and len(numbers) == 1 else numbers


@app.command()
def show(
    file: str = SOURCE,
    episodes: bool = typer.Option(False, "--episodes", help="List every episode."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON, with figures of each dimension."),
    env: str | None = ENV,
    strict: bool = STRICT,
    time_limit: int | None = TIME_LIMIT,
    lengths: str | None = LENGTHS,
) -> None:
    """Show what is in FILE: shapes, returns, lengths, how episodes ended."""
    from oal.demos import detect

    demos = _load(file, env, strict, time_limit, lengths)
    format_name = detect(file)
    if as_json:
        console.say(json.dumps(_as_json(demos, format_name), indent=2))
        return
    summary = {"demonstrations": file, **_summary(demos, format_name)}
    for key, value in summary.items():
        console.say(f"{key:<{max(map(len, summary))}}  {value}")
    if episodes:
        console.table("Episodes", ("episode", "steps", "return", "ended"), [_row(i, t) for i, t in enumerate(demos)])


def _summary(demos: "Demos", format_name: str) -> dict[str, str]:
    figures = demos.statistics()
    first = demos[0]
    finals = sum(trajectory.has_final for trajectory in demos)
    endings = f"{figures.terminated} terminated, {figures.truncated} truncated"
    if not demos.endings_known:
        endings += " (a guess: the format does not say; see --time-limit)"
    observations, actions = (
        f"{array.shape[1:]} {array.dtype}, {space or 'space not recorded'}"
        for array, space in ((first.observations, demos.observation_space), (first.actions, demos.action_space))
    )
    summary = {
        "format": format_name,
        "environment": demos.env_id or "not recorded",
        "episodes": f"{figures.episodes}",
        "steps": f"{figures.steps}",
        "observations": observations,
        "actions": actions,
        "final observations": "all known" if demos.has_finals else f"{finals} of {len(demos)} known",
        "return": "no rewards" if figures.returns is None else _spread(figures.returns),
        "length": _spread(figures.lengths),
        "endings": endings,
    }
    if first.stride > 1:
        summary["kept steps"] = f"one in {first.stride}"
    if demos.source:
        summary["source"] = demos.source
    if demos.metadata:
        summary["metadata"] = ", ".join(f"{key} {value}" for key, value in demos.metadata.items())
    return {**summary, "content": f"sha256 {demos.content_hash[:16]}..."}


def _spread(spread: Any) -> str:
    return f"{spread.mean:.1f} ± {spread.std:.1f}, from {spread.min:g} to {spread.max:g}"


def _row(episode: int, trajectory: Any) -> tuple[Any, ...]:
    ended = [name for name in ("terminated", "truncated") if getattr(trajectory, name)]
    total = trajectory.total_reward
    return episode, len(trajectory), "" if total is None else total, " and ".join(ended) or "no"


def _as_json(demos: "Demos", format_name: str) -> dict[str, Any]:
    return {
        "format": format_name,
        "env_id": demos.env_id,
        "source": demos.source,
        "metadata": demos.metadata,
        "endings_known": demos.endings_known,
        "content_hash": demos.content_hash,
        "observation_space": None if demos.observation_space is None else str(demos.observation_space),
        "action_space": None if demos.action_space is None else str(demos.action_space),
        "statistics": asdict(demos.statistics()),
        "episode_returns": None if demos.returns is None else demos.returns.tolist(),
        "episode_lengths": demos.lengths.tolist(),
    }


@app.command()
def convert(
    source: str = SOURCE,
    target: str = typer.Argument(..., help="A file (.npz, .hdf5), a folder (Hugging Face) or minari:DATASET-ID."),
    to: str | None = typer.Option(None, "--to", help="oal, sb, imitation, hf, hdf5 or minari; else by TARGET's name."),
    first: int | None = typer.Option(None, "--first", help="Keep the first N episodes."),
    best: int | None = typer.Option(None, "--best", help="Keep the N episodes of highest return."),
    random: int | None = typer.Option(None, "--random", help="Keep N random episodes (see --seed)."),
    every: int = typer.Option(1, "--every", help="Keep every N-th step of each episode."),
    seed: int = typer.Option(0, "--seed", help="Seed of --random."),
    drop_last_step: bool = typer.Option(
        False, "--drop-last-step", help="Give up last steps whose next observation is not known, where TARGET needs it."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace TARGET if it is a file that exists."),
    env: str | None = ENV,
    strict: bool = STRICT,
    time_limit: int | None = TIME_LIMIT,
    lengths: str | None = LENGTHS,
) -> None:
    """Read demonstrations, keep some or all of them, and write them in another format."""
    if Path(target).is_file() and not overwrite:
        raise InputError(f"{target} exists already: choose another name or add --overwrite")
    if sum(choice is not None for choice in (first, best, random)) > 1:
        raise InputError("--first, --best and --random exclude each other: choose one")
    demos = _load(source, env, strict, time_limit, lengths)
    if first is not None:
        demos = demos.first(first)
    if best is not None:
        demos = demos.best(best)
    if random is not None:
        demos = demos.random(random, seed=seed)
    if every != 1:
        demos = demos.subsample(every)
    if drop_last_step:
        demos = demos.with_final()
    demos.save(target, format=to)
    console.say(f"{target}: {demos!r}")


@app.command()
def plot(
    file: str = SOURCE,
    out: Path | None = typer.Option(None, "--out", "-o", help="The picture (.png, .pdf, .svg); default NAME.png here."),
    env: str | None = ENV,
    strict: bool = STRICT,
    time_limit: int | None = TIME_LIMIT,
    lengths: str | None = LENGTHS,
) -> None:
    """Draw returns, lengths, and the distributions of observations and actions."""
    from oal.demos import picture

    demos = _load(file, env, strict, time_limit, lengths)
    name = file.removeprefix("minari:")
    path = out if out is not None else Path(Path(name).name.removesuffix(".npz").removesuffix(".hdf5") + ".png")
    picture.plot(demos, path, title=f"{Path(name).name}: {len(demos)} episodes, {demos.steps} steps")
    console.say(f"{path}")


@app.command()
def record(
    policy: str = typer.Argument(..., metavar="RUN|random", help="A run folder, a saved policy, or random."),
    env: str | None = typer.Option(None, "--env", help="The environment; a RUN knows its own."),
    episodes: int = typer.Option(10, "--episodes", help="How many whole episodes."),
    seed: int = typer.Option(0, "--seed", help="Root seed of the episodes (and of random actions)."),
    out: str = typer.Option("demos.npz", "--out", "-o", help="Where to: .npz, .hdf5, a folder or minari:DATASET-ID."),
    to: str | None = typer.Option(None, "--to", help="oal, sb, imitation, hf, hdf5 or minari; else by the name."),
    stochastic: bool = typer.Option(False, "--stochastic", help="Draw actions from the policy instead of its mode."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the file if it exists."),
    trust: bool = typer.Option(False, "--trust", help="Let the name in the RUN import a module or run a file."),
    horizon: int | None = typer.Option(None, help="Time limit, for an environment that has none; a RUN knows its own."),
) -> None:
    """Run a saved policy, or uniformly random actions, and keep the episodes as demonstrations."""
    at_least("episodes", episodes, 1)
    if Path(out).is_file() and not overwrite:
        raise InputError(f"{out} exists already: choose another name or add --overwrite")
    from oal import envs
    from oal.base import seeding
    from oal.demos.record import record_encoded

    typed(env, trust=trust)
    if policy == "random":
        if env is None:
            raise InputError("random actions need an environment: add --env ID")
        with closing(envs.make(env, horizon=horizon)) as made:
            spec = envs.describe(made, horizon=horizon)
        uniform = envs.UniformPolicy(spec)
        uniform.rng = seeding.generator(seed, "demos.record")
        env_id, act, described = env, uniform.act, "uniformly random actions"
    else:
        saved = _saved_policy(policy, seed)
        env_id = env or _environment_of(policy, saved.spec.env_id, trust)
        if env_id != saved.spec.env_id and ":" not in env_id:
            raise InputError(f"{policy} was trained on {saved.spec.env_id}, not on {env_id}: leave out --env")
        horizon = horizon or saved.spec.horizon or None
        with closing(envs.make(env_id, horizon=horizon)) as made:
            saved.spec.expect(envs.describe(made, horizon=horizon), policy)
        act = saved.sample if stochastic else saved.act
        described = f"the policy {policy}, {'sampled' if stochastic else 'deterministic'}"
    command = f"oal demos record {policy} --env {env_id} --episodes {episodes} --seed {seed}"
    demos = record_encoded(
        env_id,
        act,
        episodes=episodes,
        seed=seed,
        horizon=horizon,
        described_as=described,
        metadata={"command": command + (" --stochastic" if stochastic else "")},
    )
    demos.save(out, format=to)
    console.say(f"{out}: {demos!r}")


def _environment_of(run: str, known: str, trust: bool) -> str:
    """Return the environment of a run folder, which may be a function in a file, or of a policy alone."""
    from oal.base.folder import RunFolder
    from oal.envs import id_from_file

    if not Path(run).is_dir() or not RunFolder(Path(run)).described:
        return known
    return id_from_file(RunFolder(Path(run)).config.get("env", known), run, trust=trust)


def _saved_policy(run: str, seed: int) -> Any:
    """Load the policy of a run folder (the best one if it was kept) or of a policy file."""
    import numpy as np

    from oal.base.folder import RunFolder
    from oal.deep.policy import Policy

    path, inside = Path(run), None
    if path.is_dir():
        folder, inside = RunFolder(path), path
        found = [candidate for candidate in (folder.best, folder.policy) if candidate.is_file()]
        if not found:
            raise InputError(f"{run}: holds no policy (best.safetensors or policy.safetensors): has the run finished?")
        path = found[0]
    policy = Policy.load(path, inside=inside)
    policy.rng = np.random.default_rng(seed)
    return policy
