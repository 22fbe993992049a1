"""`oal report`: one page of evidence from run folders."""

from pathlib import Path

import typer

from oal.base import console


def report(
    runs: list[Path] = typer.Argument(..., help="Run folders, or folders above them."),
    out: Path = typer.Option(Path("report.html"), "--out", "-o", help="The page to write."),
    title: str = typer.Option("Report of runs", help="The page's title."),
    csv: bool = typer.Option(False, "--csv", help="Also write all numbers (report.csv, report-steps.csv)."),
    png: bool = typer.Option(False, "--png", help="Also draw the charts as pictures (report-*.png, .svg)."),
    latex_table: bool = typer.Option(False, "--latex-table", help="Also write the summary for LaTeX (report.tex)."),
) -> None:
    """Write one self-contained HTML page about runs: tables, learning curves, aggregates, certificates, failures.

    Runs that differ only in their seed are one algorithm on one task.
    """
    from oal import report as reporting

    for path in reporting.write(runs, out, title=title, csv=csv, png=png, latex_table=latex_table):
        console.say(path)
