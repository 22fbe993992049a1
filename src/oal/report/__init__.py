"""Evidence from run folders: statistics, charts, one self-contained page. Reads run folders only, knows no learner."""

import os
from collections.abc import Iterable
from pathlib import Path

from oal.base import files
from oal.base.provenance import provenance
from oal.errors import InputError
from oal.report import summary
from oal.report.groups import group
from oal.report.page import Report, render
from oal.report.results import Run, read

__all__ = ["Run", "read", "write"]


def write(
    runs: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    title: str = "Report of runs",
    csv: bool = False,
    png: bool = False,
    latex_table: bool = False,
) -> list[Path]:
    """Write a report of all runs below the given folders; return the files made, the page first.

    `csv` writes the numbers as a tidy table, and in NAME-steps.csv what was reached at round numbers of steps, `png`
    the charts as pictures, `latex_table` the summary for a paper, each beside the page and with its name.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the report '{out}' must be an .html file: give it such a name")
    results = read(runs)
    groups = group(results.runs)
    aggregates = [found for measure in summary.MEASURES if (found := summary.aggregate(groups, measure))]
    files.write_text(out, render(Report(title, results, groups, aggregates, provenance())))
    tables: dict[Path, str] = {}
    if csv:
        tables[out.with_suffix(".csv")] = summary.csv_text(summary.COLUMNS, summary.tidy(groups, aggregates))
        steps = summary.csv_text(summary.MILESTONE_COLUMNS, summary.at_milestones(groups))
        tables[out.with_name(f"{out.stem}-steps.csv")] = steps
    if latex_table:
        tables[out.with_suffix(".tex")] = summary.latex_text(groups)
    for path, text in tables.items():
        files.write_text(path, text)
    made = [out, *tables]
    if png:
        from oal.report import pictures

        made += pictures.draw(out.with_suffix(""), groups, aggregates)
    return made
