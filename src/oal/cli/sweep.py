"""`oal sweep` and `oal runs`: many runs from one file, and what is in their folders."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oal.cli.train import DEVICE, prepare

if TYPE_CHECKING:
    from oal.base.folder import RunFolder
    from oal.lab.executors import Executor

runs_app = typer.Typer(no_args_is_help=True, help="List, show, pack and remove run folders.")


def sweep(
    file: Path = typer.Argument(..., help="A TOML file: fields of all runs, and a grid of lists."),
    out: Path | None = typer.Option(None, help="Folder of the runs; default: the file's out, or runs/NAME."),
    processes: int | None = typer.Option(None, help="Local processes, one thread each; default: one for each core."),
    inline: bool = typer.Option(False, "--inline", help="One run after the other in this process."),
    ray: str | None = typer.Option(None, help="A Ray cluster: auto, or HOST:PORT."),
    storage: str | None = typer.Option(
        None, help="With --ray, where nodes share no disk: an fsspec address, as in s3://bucket/runs."
    ),
    retry: bool = typer.Option(False, "--retry", help="Restart failed runs."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be run."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask about more than 100,000 runs."),
    device: str | None = DEVICE,
    quiet: bool = typer.Option(False, "--quiet", help="No table of progress."),
) -> None:
    """Run what is not finished yet of a sweep, which can be stopped and started again at any time."""
    from oal.base import console, stopping
    from oal.errors import InputError

    if sum((processes is not None, inline, ray is not None)) > 1:
        raise InputError("--processes, --inline and --ray exclude each other: give one of them")
    if storage is not None and ray is None:
        raise InputError("--storage is for a cluster whose nodes share no disk: add --ray, or leave it out")
    if device is not None and ray is not None:
        raise InputError("--device is for this machine: set JAX_PLATFORMS on the nodes of the cluster instead")
    prepare(1, device)
    from oal.base.folder import RunFolder
    from oal.lab.sweep import MAX_RUNS, Sweep, TooManyRunsError

    try:
        plan = Sweep.read(file, out=out, most=None if yes else MAX_RUNS)
    except TooManyRunsError as error:
        if not sys.stdin.isatty():
            raise
        console.say(error, err=True)
        typer.confirm("Go on?", abort=True)
        plan = Sweep.read(file, out=out, most=None)
    if dry_run:
        rows = [(run.name, run.config.total_steps, _state(RunFolder(run.folder))) for run in plan.runs()]
        console.table(f"{plan.name}, in {plan.out}", ("run", "steps", "state"), rows)
        return
    with stopping.going_on(stopping.typed()):
        summary = plan.go(_executor(processes, inline, ray, storage), retry=retry, show=not quiet)
    for outcome in summary.of("failed"):
        console.say(f"\n{outcome.run.folder} failed: {outcome.error}", err=True)
        if outcome.traceback:
            console.say(outcome.traceback.rstrip(), err=True)
    console.say(f"{plan.out}: {summary}")
    if not summary.complete:
        if summary.of("failed"):
            console.say("Failed runs are restarted with --retry.", err=True)
        raise typer.Exit(1)


def _executor(processes: int | None, inline: bool, ray: str | None, storage: str | None) -> "Executor":
    from oal.lab import executors

    if inline:
        return executors.Inline()
    return executors.Processes(processes) if ray is None else executors.RayCluster(ray, storage=storage)


ROOT = typer.Argument(Path("runs"), help="A folder with runs below it.")


@runs_app.command("list")
def list_runs(root: Path = ROOT) -> None:
    """List the runs below a folder, and how far they are."""
    from oal.base import console
    from oal.base.folder import RunFolder

    found = RunFolder.find(root)
    columns = ("run", "steps", "state", "return", "expert")
    console.table(f"{console.counted(len(found), 'run')} in {root}", columns, [_row(folder, root) for folder in found])


@runs_app.command("show")
def show_run(run: Path = typer.Argument(..., help="A run folder.")) -> None:
    """Show one run: its configuration, how far it is, its last record, and why it failed."""
    from oal.base import console
    from oal.base.folder import RunFolder, flattened

    folder = RunFolder.open(run)
    status, records = folder.status, folder.records()
    fields = [(name, json.dumps(value)) for name, value in flattened(folder.config).items()]
    console.table("Configuration", ("field", "value"), fields)
    if records:
        console.table("Last record", ("metric", "value"), [(n, v) for n, v in records[-1].items() if v is not None])
    total = folder.config.get("total_steps")
    console.say(f"{run}: {_state(folder)}, step {status.get('step')} of {total}")
    if status.get("error"):
        console.say(status.get("traceback") or status["error"])


@runs_app.command("pack")
def pack_runs(
    runs: list[Path] = typer.Argument(..., help="Run folders, or folders above them."),
    out: Path = typer.Option(Path("runs.jsonl"), "--out", "-o", help="The file to write."),
) -> None:
    """Write what reports read of finished runs to one small file: configurations, origins and curves.

    Policies, checkpoints and demonstrations stay behind. For keeping the evidence of a figure beside it.
    """
    from oal.base import console
    from oal.lab.packing import pack

    packed, unfinished = pack(runs, out)
    left = f"; not finished, and left out: {unfinished}" if unfinished else ""
    console.say(f"{out}: {console.counted(packed, 'run')}{left}")


@runs_app.command("unpack")
def unpack_runs(
    file: Path = typer.Argument(..., help="What  oal runs pack  wrote."),
    out: Path = typer.Option(Path("runs"), "--out", "-o", help="Folder for the runs."),
) -> None:
    """Make run folders of a packed file, for reports and figures; a sweep takes its runs for finished."""
    from oal.base import console
    from oal.lab.packing import unpack

    written, there = unpack(file, out)
    console.say(f"{out}: {console.counted(written, 'run')}{f'; there already: {there}' if there else ''}")


@runs_app.command("rm")
def remove_runs(
    runs: list[Path] = typer.Argument(..., help="Run folders, or folders above them."),
    state: str | None = typer.Option(None, help="Only runs in this state: failed, stopped, interrupted, damaged, ..."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
) -> None:
    """Remove runs: the files that a run writes, and their folders unless something else is in them.

    Runs that are being trained are refused, and folders that cannot be told for sure to be runs are left alone.
    """
    from oal.base import console
    from oal.base.folder import BusyError, RunFolder
    from oal.errors import InputError, choice

    if state is not None:
        choice("state", state, STATES)
    found = {folder.path: folder for root in runs for folder in RunFolder.find(root)}
    chosen = [folder for folder in found.values() if state is None or _state(folder) == state]
    for folder in chosen:
        if not folder.verified:
            console.say(f"{folder} cannot be told for sure to be a run: it is left alone", err=True)
    chosen = [folder for folder in chosen if folder.verified]
    if not chosen:
        raise InputError(f"there is no{'' if state is None else f' {state}'} run in {', '.join(map(str, runs))}")
    for folder in chosen:
        known, unknown = folder.known_files()
        console.say(f"{folder}: {_state(folder)}; removes {_names(folder, known)}")
        if unknown:
            console.say(f"{folder}: leaves {_names(folder, unknown)}")
    if not yes and not typer.confirm(f"Remove {'this run' if len(chosen) == 1 else f'these {len(chosen)} runs'}?"):
        raise typer.Exit(1)
    for folder in reversed(chosen):  # those inside of others first
        if folder.busy:
            raise BusyError(f"{folder} is being trained: stop it first")
        folder.remove()
    console.say(f"Removed: {len(chosen)}")


def _names(folder: "RunFolder", paths: list[Path]) -> str:
    return ", ".join(str(path.relative_to(folder.path)) for path in paths)


STATES = ("new", "running", "interrupted", "finished", "stopped", "failed", "damaged")


def _state(folder: "RunFolder") -> str:
    """Say in one word how a run is; one that was killed says of itself that it is running, but holds no lock."""
    from oal.errors import InputError

    if not folder.described:
        return "new"
    try:
        _, state = folder.config, folder.status["status"]
    except InputError:
        return "damaged"
    if state == "running" and not folder.busy:
        return "interrupted"
    return state if state in STATES else "damaged"


def _row(folder: "RunFolder", root: Path) -> tuple[Any, ...]:
    name = folder.path.name if folder.path == root else str(folder.path.relative_to(root))
    state = _state(folder)
    if state == "damaged":
        return name, "", state, "", ""
    from oal.errors import InputError

    try:
        config, records, metadata, status = folder.config, folder.records(), folder.metadata, folder.status
    except InputError:
        return name, "", "damaged", "", ""
    if str(config.get("env", "")) not in name:
        said = [config.get(field) for field in ("env", "policy", "cost", "seed")]
        name += f" ({' '.join(str(each) for each in said if each is not None)})"  # an expert has no cost
    returns = [record.get("evaluation_return") for record in records]
    last = next((value for value in reversed(returns) if value is not None), "")
    expert = metadata.get("expert_return")
    done, total = status.get("step", 0), config.get("total_steps", 0)
    steps = f"{done:,}" if done == total else f"{done:,}/{total:,}"
    return name, steps, state, last, "" if expert is None else expert
