"""`oal train`, `oal resume`, `oal eval`: learn from demonstrations, go on, and say how close the learner is."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.cli.typed import label, typed
from oal.errors import InputError

if TYPE_CHECKING:
    from oal.deep.verdict import Certificate
    from oal.envs import Evaluation
    from oal.lab.run import Run

POLICIES = ["mdpo", "sac", "mdpo-on", "trpo"]
COSTS = ["neural", "linear", "gail", "sqil", "dac", "csil"]
PRESETS = ["default", "sample-efficient", "paper"]
"""Names that the shell completes, without importing the players."""
DEVICES = ["cpu", "gpu", "tpu", "auto"]
PAPER_STEPS = 3_000_000

ENV = typer.Argument(
    ..., help="A Gymnasium id (Hopper-v5), module:Name-v0, module:function or path/to/file.py:function."
)
DEMOS = typer.Option("", help="A file, minari:ID or a shipped name; default: the environment's shipped ones.")
TRAJECTORIES = typer.Option(10, help="Demonstrations to learn from, the first ones; 0 for all.")
SUBSAMPLE = typer.Option(1, help="Keep every n-th step of the demonstrations.")
SEED = typer.Option(0, help="Root seed of all random streams.")
HORIZON = typer.Option(None, help="Time limit, for an environment that has none.")
THREADS = typer.Option(1, help="Threads of computation; one-thread runs side by side do more together.")
DEVICE = typer.Option(
    None,
    help="Where networks are computed: cpu, gpu, tpu, or auto; default cpu, or JAX_PLATFORMS.",
    autocompletion=lambda: DEVICES,
)
TRUST = typer.Option(False, "--trust", help="Let the environment's name in the folder import a module or run a file.")
ENV_AGAIN = typer.Option(None, "--env", help="The run's environment, typed again: in place of --trust.")
STEP_TIMEOUT = typer.Option(300.0, help="Seconds that a step or reset of the environment may take; 0 for any.")
CHECKPOINT_SECONDS = typer.Option(120.0, help="Seconds between further checkpoints; 0 for none.")
STEP_TIMEOUT_AGAIN = typer.Option(None, "--step-timeout", help="As in oal train; the run's own if not given.")
CHECKPOINT_SECONDS_AGAIN = typer.Option(None, "--checkpoint-seconds", help="Likewise.")
QUIET = typer.Option(False, "--quiet", help="No progress bar.")
TENSORBOARD = typer.Option(False, "--tensorboard", help="Also write TensorBoard events into the run folder.")
WANDB = typer.Option(None, help="Also log to this Weights & Biases project.")


def train(
    env: str = ENV,
    demos: str = DEMOS,
    trajectories: int = TRAJECTORIES,
    subsample: int = SUBSAMPLE,
    policy: str = typer.Option(
        "mdpo", help="Policy player: mdpo, sac, mdpo-on or trpo.", autocompletion=lambda: POLICIES
    ),
    cost: str = typer.Option(
        "neural",
        help="Cost player: neural, linear, gail; or another paper's: sqil, dac, csil.",
        autocompletion=lambda: COSTS,
    ),
    preset: str = typer.Option(
        "default",
        help="default; sample-efficient, with more updates; or paper, whose tables need millions of steps.",
        autocompletion=lambda: PRESETS,
    ),
    set_: list[str] = typer.Option([], "--set", help="Change a setting, e.g. --set policy.kl_weight=0.1; repeatable."),
    steps: int = typer.Option(150_000, help="Environment steps."),
    seed: int = SEED,
    out: Path | None = typer.Option(None, help="Run folder; default runs/ENV-POLICY-COST-SEED."),
    horizon: int | None = HORIZON,
    evaluate_every: int = typer.Option(5_000, help="Steps between evaluations."),
    evaluation_episodes: int = typer.Option(10, help="Episodes per evaluation."),
    checkpoint_every: int = typer.Option(25_000, help="Steps between checkpoints; a multiple of 1,000."),
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    step_timeout: float = STEP_TIMEOUT,
    stop_at_return: float | None = typer.Option(None, help="Stop early once an evaluation reaches this mean return."),
    select: str = typer.Option("distance", help="best.safetensors: nearest to the demonstrations, or largest return."),
    tensorboard: bool = TENSORBOARD,
    wandb: str | None = WANDB,
    threads: int = THREADS,
    device: str | None = DEVICE,
    quiet: bool = QUIET,
) -> None:
    """Learn a policy from demonstrations, into a run folder."""
    prepare(threads, device)
    typed(env)
    from oal.base import config, console
    from oal.deep.presets import preset as make_config
    from oal.errors import choice
    from oal.lab import run as training

    if preset == "paper" and steps < PAPER_STEPS:
        console.say(
            f"The paper's settings learn from scratch, over {PAPER_STEPS:,} steps: after {steps:,} expect little more "
            "than a random policy (docs/results-older.md). The default preset clones first and starts near the expert.",
            err=True,
        )
    settings = dict(config.parse(text) for text in set_)
    run = training.start(
        training.RunConfig(
            env=env,
            learner=make_config(policy, cost, preset, settings=settings),
            total_steps=steps,
            demos=demos,
            trajectories=trajectories or None,
            subsample=subsample,
            seed=seed,
            horizon=horizon,
            evaluate_every=evaluate_every,
            evaluation_episodes=evaluation_episodes,
            checkpoint_every=checkpoint_every,
            checkpoint_seconds=checkpoint_seconds,
            step_timeout=step_timeout,
            stop_at_return=stop_at_return,
            select=choice("select", select, ("distance", "return")),
        ),
        out if out is not None else Path("runs") / f"{label(env)}-{policy}-{cost}-{seed}",
    )
    _go(run, quiet=quiet, tensorboard=tensorboard, wandb=wandb, threads=threads, device=device)


def clone(
    env: str = ENV,
    demos: str = DEMOS,
    trajectories: int = TRAJECTORIES,
    subsample: int = SUBSAMPLE,
    updates: int = typer.Option(10_000, help="Gradient steps."),
    epochs: int | None = typer.Option(None, help="Passes over the demonstrations, in place of --updates."),
    members: int = typer.Option(1, help="Clones whose mean acts: an ensemble falls less often."),
    seed: int = SEED,
    out: Path | None = typer.Option(None, help="Run folder; default runs/ENV-clone-SEED."),
    horizon: int | None = HORIZON,
    evaluation_episodes: int = typer.Option(10, help="Episodes of the evaluation at the end."),
    step_timeout: float = STEP_TIMEOUT,
    threads: int = THREADS,
    device: str | None = DEVICE,
    quiet: bool = QUIET,
) -> None:
    """Clone the demonstrations' actions, without touching the environment: the baseline to beat."""
    prepare(threads, device)
    typed(env)
    from oal.deep.bc import BCConfig
    from oal.lab import run as training

    folder = out if out is not None else Path("runs") / f"{label(env)}-clone-{seed}"
    evaluation = training.clone(
        env,
        folder,
        source=demos,
        trajectories=trajectories or None,
        subsample=subsample,
        config=BCConfig(updates=updates, epochs=epochs, members=members),
        seed=seed,
        horizon=horizon,
        evaluation_episodes=evaluation_episodes,
        step_timeout=step_timeout,
        progress_bar=not quiet,
    )
    _say_cloned(folder, evaluation)


def _say_cloned(folder: Path, evaluation: "Evaluation") -> None:
    from oal.base import console

    console.say(f"{folder}: {_return(evaluation.mean_return)} over {len(evaluation.returns)} episodes")


def resume(
    run: Path = typer.Argument(..., help="A run folder."),
    steps: int | None = typer.Option(None, help="A new end, in environment steps; default: the run's own."),
    checkpoint_seconds: float | None = CHECKPOINT_SECONDS_AGAIN,
    step_timeout: float | None = STEP_TIMEOUT_AGAIN,
    trust: bool = TRUST,
    env: str | None = ENV_AGAIN,
    tensorboard: bool = TENSORBOARD,
    wandb: str | None = WANDB,
    threads: int = THREADS,
    device: str | None = DEVICE,
    quiet: bool = QUIET,
) -> None:
    """Go on with a run from its last checkpoint, exactly as if it had never been stopped."""
    prepare(threads, device)
    typed(env, trust=trust)
    from oal.base.folder import RunFolder
    from oal.lab import run as training

    if RunFolder.open(run).kind == training.CLONE_KIND:
        if steps is not None:
            raise InputError(f"{run} is cloning, which takes no steps in an environment: leave out --steps")
        _say_cloned(run, training.resume_clone(run, trust=trust, env=env, progress_bar=not quiet))
        return
    resumed = training.resume(
        run,
        total_steps=steps,
        step_timeout=step_timeout,
        checkpoint_seconds=checkpoint_seconds,
        trust=trust,
        env=env,
    )
    _go(resumed, quiet=quiet, tensorboard=tensorboard, wandb=wandb, threads=threads, device=device)


def evaluate(
    run: Path = typer.Argument(..., help="A run folder: of train, clone or expert."),
    episodes: int = typer.Option(20, help="Fresh episodes of the policy."),
    best: bool = typer.Option(False, "--best", help="The policy with the best evaluation instead of the last one."),
    sampled: bool = typer.Option(False, "--sampled", help="Draw actions instead of taking the likeliest."),
    seed: int = typer.Option(0, help="Seed of the fresh episodes."),
    video: Path | None = typer.Option(None, help="Film one episode as .gif or .mp4."),
    film: bool = typer.Option(False, "--film", help="Film policy and expert into the run folder, for the report."),
    demos: str = typer.Option("", help="Compare with these demonstrations in place of the run's own."),
    clone: Path | None = typer.Option(None, help="A run of oal clone to show beside the learner."),
    trust: bool = TRUST,
    env: str | None = ENV_AGAIN,
) -> None:
    """Say how close a run's policy is to the expert: the imitation certificate, and the return where there is one."""
    prepare(1)
    typed(env, trust=trust)
    from oal.base import console
    from oal.lab import run as training

    asked: dict[str, Any] = {"trust": trust, "env": env}
    result = training.certify(
        run, episodes=episodes, best=best, deterministic=not sampled, seed=seed, given=demos, clone=clone, **asked
    )
    show_certificate(result)
    console.say(f"{run / 'certificate.json'}: all numbers; certificate.png: where it differs")
    if video is not None:
        earned = training.film(run, video, best=best, seed=seed, **asked)
        console.say(f"{video}: one episode, {_return(earned)}")
    if film:
        earned = training.film(run, best=best, seed=seed, **asked)
        expert = training.film_expert(run, **asked)
        beside = "" if expert is None else f"; expert.gif: the expert's, {_return(expert)}"
        console.say(f"{run / 'video.gif'}: one episode, {_return(earned)}{beside}")


def show_certificate(result: "Certificate") -> None:
    """Print what a certificate says: the sentence, the measures on one scale, returns, and where it differs."""
    from oal.base import console

    for line in result.lines:
        console.say(line)
    title = f"{result.episodes} episodes against {result.held_out}; 0 = two experts, 1 = a random policy"
    if any(row[0].endswith("*") for row in result.table()):
        title += " (* own units)"
    console.table(title, result.columns, result.table())
    console.table(
        "The same episodes by length, and by reward where there is one", result.score_columns, result.score_table()
    )
    console.table("Features that differ most", result.feature_columns, result.feature_table())


def prepare(threads: int, device: str | None = None) -> None:
    """Set up JAX before it is loaded."""
    from oal.base import runtime

    runtime.set_threads(threads)
    if device is not None:
        runtime.set_device(device)
    runtime.keep_compiled_programs()


def _return(value: float | None) -> str:
    """Name a return; NaN and None are those of an environment without a reward."""
    return "no reward" if value is None or math.isnan(value) else f"return {value:.1f}"


def _go(run: "Run", *, quiet: bool, tensorboard: bool, wandb: str | None, threads: int, device: str | None) -> None:
    from oal.base import console, stopping
    from oal.deep import callbacks

    sinks: list[Any] = []
    if run.learner.step >= run.config.total_steps:
        console.say(
            f"{run.folder} has taken its {run.learner.step:,} steps: for more, say  {run.command} --steps N", err=True
        )
    if tensorboard:
        sinks.append(callbacks.tensorboard_sink(run.folder.path / "tensorboard"))
    if wandb is not None:
        sinks.append(callbacks.wandb_sink(wandb, run.config.to_json(), name=run.folder.path.name))
    options = [run.command, *(["--tensorboard"] if tensorboard else [])]
    options += [] if wandb is None else ["--wandb", shlex.quote(wandb)]
    options += [] if threads == 1 else ["--threads", str(threads)]
    options += [] if device is None else ["--device", device]
    with stopping.going_on(" ".join(options)):
        learner = run.go(progress_bar=not quiet, sinks=sinks)
    returns = [record.get("evaluation_return") for record in run.folder.records()]
    last = next((value for value in reversed(returns) if value is not None), None)
    expert = run.folder.metadata.get("expert_return")
    against = "" if expert is None else f"; the expert's is {expert:.1f}"
    console.say(f"{run.folder}: {learner.step:,} steps, {_return(last)}{against}")
    if last is None:
        console.say(f"How close it is to the expert is shown by  oal eval {run.folder}")
    worse = run.worse_than_clone()
    if worse is not None:
        console.say(f"Note: {worse}.")
    learner.close()
