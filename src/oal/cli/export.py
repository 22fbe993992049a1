"""`oal export`: a run's policy for where oal is not installed."""

from pathlib import Path

import typer

from oal.cli.train import ENV_AGAIN, TRUST
from oal.cli.typed import typed


def export(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder, or a saved policy."),
    onnx: Path | None = typer.Option(None, help="Write it as an ONNX model, FILE.onnx (needs oal[onnx])."),
    npz: Path | None = typer.Option(None, help="Write it as plain arrays for NumPy, FILE.npz."),
    best: bool = typer.Option(False, "--best", help="The policy with the best evaluation instead of the last one."),
    trust: bool = TRUST,
    env: str | None = ENV_AGAIN,
) -> None:
    """Write a run's deterministic policy as ONNX or as plain arrays: observations in, actions in their units out."""
    from oal.base import console
    from oal.base.folder import RunFolder
    from oal.errors import InputError

    if onnx is None and npz is None:
        raise InputError("say where to: --onnx policy.onnx, or --npz policy.npz")
    typed(env, trust=trust)
    from oal.deep import export as exporting
    from oal.deep.policy import Policy
    from oal.lab.run import policy_of

    policy = Policy.load(run) if run.is_file() else policy_of(RunFolder.open(run), best=best, env=env, trust=trust)
    for path, save in ((onnx, exporting.save_onnx), (npz, exporting.save_npz)):
        if path is not None:
            save(policy, path)
            console.say(f"written: {path}")
