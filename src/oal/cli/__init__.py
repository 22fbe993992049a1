"""The `oal` command. Each verb lives in its own module and imports what is heavy only when it runs."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from oal import __version__
from oal.base import console, stopping
from oal.cli import demos, linear, tabular
from oal.cli.check import check
from oal.cli.cite import cite
from oal.cli.cost import cost
from oal.cli.demo import demo
from oal.cli.expert import expert
from oal.cli.export import export
from oal.cli.figure import HELP as FIGURE_HELP
from oal.cli.figure import figure
from oal.cli.report import report
from oal.cli.sweep import runs_app, sweep
from oal.cli.train import clone, evaluate, resume, train
from oal.errors import InputError


class _Commands(TyperGroup):
    """Ends a command that a signal stopped with the command that goes on, and the exit code that shells know."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except stopping.Stopped as stop:
            console.say(stop, err=True)
            raise typer.Exit(stop.code) from None


app = typer.Typer(
    name="oal",
    cls=_Commands,
    help="Online apprenticeship learning: from demonstrations, a policy as good as the expert for every cost in a set.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"oal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None: ...


app.command()(demo)
app.command()(check)
app.command()(train)
app.command()(clone)
app.command()(resume)
app.command("eval")(evaluate)
app.command()(sweep)
app.add_typer(runs_app, name="runs")
app.command()(report)
app.command()(cost)
app.command()(export)
app.command()(expert)
app.add_typer(demos.app, name="demos")
app.add_typer(tabular.app, name="tabular")
app.add_typer(linear.app, name="linear")
app.command(help=FIGURE_HELP)(figure)
app.command()(cite)


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr and exit code 2, never a traceback."""
    try:
        with stopping.listening():
            app()
    except InputError as error:
        console.say(f"error: {error}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not str(error).startswith("RESOURCE_EXHAUSTED"):  # JAX's own
            raise
        said = " ".join(str(error).split()) or "no more is left"
        console.say(f"error: there is not enough memory for this ({said}): ask for less at a time", err=True)
        sys.exit(2)
    except stopping.Stopped as stop:  # outside of a command
        sys.exit(stop.code)
