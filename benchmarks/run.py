"""`make bench`: everything side by side in one run, as ratios with their spread; writes .bench/results.json and a plot.

python benchmarks/run.py [--quick] [--only PART ...] [--out FOLDER]

Every part that is finished goes into results.json at once; a part that is run alone replaces its own entries there.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

# this process measures on one thread; each worker gets the threads it is given
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import deep  # noqa: E402
import load  # noqa: E402
import results  # noqa: E402
import startup  # noqa: E402
import sweep  # noqa: E402
import tabular  # noqa: E402
import wallclock  # noqa: E402
from common import ROOT, end_worker_when_stopped  # noqa: E402

from oal.base import console  # noqa: E402
from oal.base.provenance import provenance  # noqa: E402

PARTS: dict[str, Callable[..., list[results.Entry]]] = {
    "tabular": tabular.run,
    "rlberry": tabular.rlberry,
    "stepping": deep.stepping,
    "update": deep.update,
    "sac": deep.sac,
    "gail": deep.gail,
    "onpolicy": deep.onpolicy,
    "memory": deep.memory,
    "startup": startup.run,
    "sweep": sweep.run,
    "load": load.run,
    "wallclock": wallclock.run,
}
LONG = ("wallclock",)
"""Parts that take an hour or more: only run when named."""
DEFAULT = tuple(part for part in PARTS if part not in LONG)
TABULAR = ("tabular", "rlberry")
GROUPS = {"deep": tuple(part for part in DEFAULT if part not in TABULAR)}


def chosen(only: list[str] | None) -> list[str]:
    """Turn names of parts and groups into parts, in the order they run."""
    wanted = {part for name in only or DEFAULT for part in GROUPS.get(name, (name,))}
    return [part for part in PARTS if part in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure oal against its peers, as ratios in one run.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    parser.add_argument(
        "--only",
        action="append",
        choices=(*GROUPS, *PARTS),
        help="one part, or a group of them; may be given more than once (without it, all but the hour-long ones)",
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".bench", help="folder for results.json and the plot")
    options = parser.parse_args()
    end_worker_when_stopped()
    path = options.out / "results.json"
    parts, entries, failed = chosen(options.only), results.read(path), []
    origin = {**provenance(), "quick": options.quick}
    results.write(path, entries, results.missing(entries, DEFAULT, parts))
    for place, part in enumerate(parts):
        print(f"{part} ({place + 1} of {len(parts)}) ...", end=" ", flush=True)
        start = time.perf_counter()
        try:
            new = PARTS[part](quick=options.quick)
        except Exception:
            traceback.print_exc()
            failed.append(part)
        else:
            entries = results.ordered(results.merged(entries, part, new, origin), list(PARTS))
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
        results.write(path, entries, results.missing(entries, DEFAULT, [*failed, *parts[place + 1 :]]))
    now = [entry for entry in entries if entry["part"] in parts]
    console.table("oal's benchmark", results.COLUMNS, results.rows(now))
    for note in results.notes(now):
        print(f"What differs: {note}")
    results.draw(options.out / "results", entries)
    print(f"Written: {path}")
    if failed:
        print(f"Failed, and still missing: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
