"""`oal check`: is this environment, and are these demonstrations, fit to learn from?"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import typer

from oal.cli.demos import LENGTHS, parse_lengths
from oal.cli.train import ENV, HORIZON
from oal.cli.typed import typed


def check(
    env: str = ENV,
    demos: str | None = typer.Option(None, help="Demonstrations to check against it: a file, minari:ID or a name."),
    horizon: int | None = HORIZON,
    lengths: str | None = LENGTHS,
    episodes: int = typer.Option(3, help="Episodes of random actions to look at."),
    seed: int = typer.Option(0, help="Seed of the random actions."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Look at an environment, and at demonstrations for it, and say what oal will do with each thing.

    Exit code 1 if something stops learning.
    """
    typed(env)
    from oal import demos as demonstrations
    from oal.base import console
    from oal.lab.check import LEARNED_FROM
    from oal.lab.check import check as look

    shown = None if demos is None else demonstrations.load(demos, lengths=parse_lengths(lengths))
    findings = look(env, shown, horizon=horizon, episodes=episodes, seed=seed)

    def command() -> str:
        """Return what learns from this, as it stands here."""
        words, before = ["oal", "train", env], []
        if shown is not None and demos is not None:
            learned = demos
            if lengths is not None:  # only a file that has them can be learned from
                learned = f"{Path(demos).stem}-episodes.npz"
                before = ["oal", "demos", "convert", demos, learned, "--lengths", lengths]
            words += ["--demos", learned]
            words += ["--trajectories", "0"] if len(shown) < LEARNED_FROM else []
        words += [] if horizon is None else ["--horizon", str(horizon)]
        return (f"{shlex.join(before)} && " if before else "") + shlex.join(words)

    problems = [finding for finding in findings if finding.verdict == "problem"]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        marks = {"good": "", "note": "note", "problem": "PROBLEM"}
        rows = [(each.about, marks[each.verdict], each.found, each.consequence) for each in findings]
        console.table(f"{env}" if demos is None else f"{env} and {demos}", ("", "", "found", "what oal does"), rows)
        console.say(f"{len(problems)} to mend before learning." if problems else f"Ready:  {command()}")
    if problems:
        raise typer.Exit(1)
