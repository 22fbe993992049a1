"""`make bench`: everything side by side in one run, as ratios with their spread; writes .bench/results.json and a plot.

python benchmarks/run.py [--quick] [--only tabular|deep] [--out FOLDER]
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import ROOT  # noqa: E402

from oal import console, files, plots  # noqa: E402
from oal.provenance import provenance  # noqa: E402

NOT_RATES = {"name", "unit", "ratio", "aim", "repeats", "threads", "smaller_is_better", "skipped"}


def rows(results: list[dict[str, Any]]) -> list[list[Any]]:
    table = []
    for result in results:
        if "skipped" in result:
            table.append([result["name"], "skipped", "", "", result["skipped"]])
            continue
        rates = {
            k: v["median"] for k, v in result.items() if k not in NOT_RATES and isinstance(v, dict) and "median" in v
        }
        ratio, aim = result["ratio"], result.get("aim")
        better = (lambda r, a: r <= a) if result.get("smaller_is_better") else (lambda r, a: r >= a)
        verdict = (
            ""
            if aim is None
            else f"{'at most' if result.get('smaller_is_better') else 'at least'} {aim:g}: "
            + ("reached" if better(ratio["median"], aim) else "not reached")
        )
        table.append(
            [
                result["name"],
                f"{ratio['median']:.3g}",
                f"{ratio['min']:.3g} to {ratio['max']:.3g}",
                verdict,
                f"{result['unit']}: " + ", ".join(f"{k} {v:.4g}" for k, v in rates.items()),
            ]
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure oal against its peers, as ratios in one run.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    parser.add_argument("--only", choices=("tabular", "deep"), help="one half of it")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench", help="folder for results.json and the plot")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    if options.only != "deep":
        import tabular

        results += tabular.run(quick=options.quick)
    if options.only != "tabular":
        import deep

        results += deep.run(quick=options.quick)
    console.table("oal's benchmark", ["what", "ratio", "spread", "aim", "medians"], rows(results))
    files.write_json(options.out / "results.json", {"results": results, "quick": options.quick} | provenance())
    measured = [result for result in results if "ratio" in result]
    with plots.picture(options.out / "results", width=9, height=0.45 * len(measured) + 1) as axes:
        for y, result in enumerate(measured):
            ratio = result["ratio"]
            axes.errorbar(
                ratio["median"],
                y,
                xerr=[[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]],
                marker="o",
                capsize=3,
                color=plots.COLOURS[0],
            )
            if "aim" in result:
                axes.plot(result["aim"], y, marker="|", ms=14, color=plots.COLOURS[1])
        axes.set_yticks(range(len(measured)), [result["name"] for result in measured], fontsize=7)
        axes.set(xscale="log", xlabel="ratio (bar: spread; vertical line: aim)")
        axes.invert_yaxis()
    print(f"Written: {(options.out / 'results.json')}")


if __name__ == "__main__":
    main()
