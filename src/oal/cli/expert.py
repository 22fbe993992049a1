"""`oal expert`: train an expert on an environment's own reward and record its trajectories."""

import shlex
from pathlib import Path

import typer

from oal.cli.train import DEVICE, prepare
from oal.cli.typed import given, label, typed
from oal.errors import InputError


def expert(
    env: str = typer.Argument(..., help="A Gymnasium id (Hopper-v5), module:Name-v0 or path/to/file.py:function."),
    steps: int | None = typer.Option(None, help="Environment steps; default 300,000, or what the resumed run says."),
    seed: int = typer.Option(0, help="Root seed of all random streams."),
    out: Path | None = typer.Option(None, help="Run folder; default runs/expert-ENV."),
    episodes: int = typer.Option(25, help="Trajectories to record at the end."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in the folder from its last checkpoint."),
    stop_at_return: float | None = typer.Option(None, help="Stop early once an evaluation reaches this mean return."),
    horizon: int | None = typer.Option(None, help="Steps of an episode, where the environment has no limit."),
    batch_size: int | None = typer.Option(None, help="Transitions per update; default 256."),
    set_: list[str] = typer.Option([], "--set", help="Change a setting, e.g. --set replay.n_steps=3; repeatable."),
    checkpoint_every: int | None = typer.Option(None, help="Steps between checkpoints; default 50,000."),
    step_timeout: float | None = typer.Option(
        None, help="Seconds that a step of the environment may take; default 300, 0 for any."
    ),
    checkpoint_seconds: float | None = typer.Option(
        None, help="Seconds between further checkpoints; default 120, 0 for none."
    ),
    threads: int = typer.Option(1, help="Threads of computation."),
    device: str | None = DEVICE,
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
) -> None:
    """Train a soft actor-critic expert, keep its best policy and record trajectories of it."""
    from oal.base import config as configs
    from oal.base import console, stopping

    prepare(threads, device)
    typed(env)
    from oal.base.folder import RunFolder
    from oal.lab import expert as experts
    from oal.lab import run

    folder = out if out is not None else Path("runs") / f"expert-{label(env)}"
    settings = dict(configs.parse(text) for text in set_)
    if batch_size is not None:
        settings["policy.batch_size"] = batch_size
    paces = given(step_timeout=step_timeout, checkpoint_seconds=checkpoint_seconds)
    if resume:
        others = {"--stop-at-return": stop_at_return, "--horizon": horizon, "--checkpoint-every": checkpoint_every}
        changed = [*settings, *(name for name, value in others.items() if value is not None)]
        if changed:
            raise InputError(f"--resume goes on with the run's own settings: leave out {', '.join(changed)}")
        going = experts.resume(folder, env, seed=seed, total_steps=steps, **paces)
    else:
        config = experts.expert_config(
            env,
            300_000 if steps is None else steps,
            seed=seed,
            settings=settings,
            stop_at_return=stop_at_return,
            horizon=horizon,
            checkpoint_every=50_000 if checkpoint_every is None else checkpoint_every,
            **paces,
        )
        going = run.start(config, folder)
    words = ["oal", "expert", env, "--resume", "--seed", seed, "--out", folder, "--episodes", episodes]
    words += [] if threads == 1 else ["--threads", threads]
    words += [] if device is None else ["--device", device]
    with stopping.going_on(shlex.join(map(str, words))):
        learner = going.go(progress_bar=not quiet)
        returns = [record.get("evaluation_return") for record in RunFolder(folder).records()]
        best = max((value for value in returns if value is not None), default=None)
        said = "no evaluation" if best is None else f"best evaluation {best:.1f}"
        console.say(f"{folder}: {said} in {learner.step:,} steps")
        if episodes:
            demos = experts.record(folder, episodes=episodes, trust=True)
            console.say(f"{folder / 'demos.npz'}: {demos!r}")
