"""`oal expert`: train an expert on an environment's own reward and record its trajectories."""

from dataclasses import replace
from pathlib import Path

import typer


def expert(
    env: str = typer.Argument(..., help="A Gymnasium environment id, e.g. Hopper-v5."),
    steps: int | None = typer.Option(None, help="Environment steps; default 300,000, or what the resumed run says."),
    seed: int = typer.Option(0, help="Root seed of all random streams."),
    out: Path | None = typer.Option(None, help="Run folder; default runs/expert-ENV."),
    episodes: int = typer.Option(25, help="Trajectories to record at the end."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in the folder from its last checkpoint."),
    stop_at_return: float | None = typer.Option(None, help="Stop early once an evaluation reaches this mean return."),
    batch_size: int | None = typer.Option(None, help="Transitions per update; default 256."),
    checkpoint_every: int = typer.Option(50_000, help="Steps between checkpoints."),
    threads: int = typer.Option(1, help="Threads of computation."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
) -> None:
    """Train a soft actor-critic expert, keep its best policy and record trajectories of it."""
    from oal.base import console, runtime

    runtime.set_threads(threads)
    runtime.keep_compiled_programs()
    from oal.deep import expert as experts
    from oal.envs import describe, make

    folder = out if out is not None else Path("runs") / f"expert-{env.replace('/', '_')}"
    if steps is None:
        steps = experts.saved_steps(folder) if resume else 300_000
    config = experts.ExpertConfig(
        env_id=env,
        total_steps=steps,
        seed=seed,
        stop_at_return=stop_at_return,
        checkpoint_every=checkpoint_every,
    )
    if batch_size is not None and not resume:
        kind = describe(make(env)).kind
        config = replace(config, sac=replace(experts.default_sac(kind), batch_size=batch_size))
    trainer = experts.prepare(config, folder, resume=resume)
    try:
        with console.progress(env, steps, enabled=not quiet) as advance:
            shown = 0

            def show(progress: experts.Progress) -> None:
                nonlocal shown
                advance(progress.step - shown, f"return {progress.last_return:.0f}, best {progress.best_return:.0f}")
                shown = progress.step

            trainer.run(show)
    finally:
        trainer.close()
    typer.echo(f"{folder}: best evaluation {trainer.progress.best_return:.1f} in {trainer.progress.step:,} steps")
    if episodes:
        demos = experts.record(folder, episodes=episodes)
        typer.echo(f"{folder / 'demos.npz'}: {demos!r}")
