"""Where the time of one update goes, by kinds of operations of the compiled block, on one thread.

python benchmarks/profile_update.py [--updates 20] [--repeats 6] [--out FOLDER]

Durations are those of JAX's own profiler: the median over all executions of an operation, added up over operations.
With --out, profile.csv and profile.json are written.
"""

import argparse
import collections
import math
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from update_worker import matmul_ceiling, players

from oal.base import console, files, runtime
from oal.base.provenance import provenance

LARGE_PRODUCT = 1e7
"""Operations: products of two hidden layers have 3e7, those with a narrow side less than a tenth of it."""
LARGE = 256 * 256

_INSTRUCTION = re.compile(r"%(?P<name>\S+) = (?P<shape>\w+\[[\d,]*\])\S* (?P<code>[\w-]+)\((?P<rest>.*)")
_DOT = re.compile(r"lhs_contracting_dims=\{(?P<axis>\d)\}")


class Operation(NamedTuple):
    kind: str
    flops: float


def dimensions(shape: str) -> list[int]:
    """Read the dimensions of  f32[256,17] ."""
    return [int(size) for size in re.findall(r"\d+", shape.split("[", 1)[1])]


def operations(program: str) -> dict[str, Operation]:
    """Name every product, loop and copy of a compiled program and say what kind it is."""
    shapes = {found["name"]: found["shape"] for found in map(_INSTRUCTION.search, program.splitlines()) if found}
    products: dict[str, tuple[float, bool]] = {}
    """Of each computation that holds one: the work of its product, and whether its left side is transposed."""
    computation, known = "", {}
    fused = set(re.findall(r"calls=(%[\w.-]+)", program))
    for line in program.splitlines():
        if line.startswith(("%", "ENTRY")):
            computation = line.split(" ", 1)[0]
        found = _INSTRUCTION.search(line)
        if found is None:
            continue
        product = None
        if found["code"] == "dot" and (axis := _DOT.search(line)):
            left = re.findall(r"%([\w.-]+)", found["rest"])[0]
            inner = dimensions(shapes[left])[int(axis["axis"])]
            product = 2.0 * math.prod(dimensions(found["shape"])) * inner, axis["axis"] == "0"
            products[computation] = product
        elif found["code"] == "fusion" and (called := re.search(r"calls=(%[\w.-]+)", line)):
            product = products.get(called[1])
        if computation not in fused and found["code"] in ("dot", "fusion", "copy"):
            known[found["name"]] = _classified(found["code"], dimensions(found["shape"]), product)
    return known


def _classified(code: str, shape: list[int], product: tuple[float, bool] | None) -> Operation:
    if product is not None:
        flops, transposed = product
        if flops < LARGE_PRODUCT:
            return Operation("products with a narrow side", flops)
        return Operation("gradients of 256 x 256 weights" if transposed else "other 256 x 256 products", flops)
    if code == "copy":
        return Operation("copies", 0.0)
    return Operation("elementwise, 256 x 256" if math.prod(shape) >= LARGE else "elementwise, smaller", 0.0)


def measured(
    init: Any, block: Any, given: tuple[Any, ...], *, updates: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Profile a block; return microseconds and operations of an update by kind."""
    import jax

    state = init(0)
    known = operations(block.lower(*state, *given).compile().as_text())
    *state, _ = jax.block_until_ready(block(*state, *given))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                *state, _ = jax.block_until_ready(block(*state, *given))
        (trace,) = Path(folder).glob("**/*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(trace))
        durations: dict[str, list[float]] = collections.defaultdict(list)
        for plane in data.planes:
            for line in plane.lines:
                for event in line.events:
                    if event.name in known:
                        durations[event.name].append(event.duration_ns)
    table: dict[str, dict[str, float]] = {}
    for name, values in durations.items():
        runs = len(values) / (updates * repeats)
        kind, flops = known[name]
        row = table.setdefault(kind, {"microseconds": 0.0, "operations": 0.0, "flops": 0.0})
        row["microseconds"] += runs * statistics.median(values) / 1e3
        row["operations"] += runs
        row["flops"] += runs * flops
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runtime.set_threads(1)
    ceiling = matmul_ceiling()
    table = []
    for name, (init, block, _, given) in players().items():
        kinds = measured(init, block, given(options.updates), updates=options.updates, repeats=options.repeats)
        whole = sum(row["microseconds"] for row in kinds.values())
        for kind, row in sorted(kinds.items(), key=lambda item: -item[1]["microseconds"]):
            table.append(
                {
                    "update": name,
                    "kind": kind,
                    "operations": round(row["operations"]),
                    "microseconds": round(row["microseconds"]),
                    "share": f"{row['microseconds'] / whole:.0%}",
                    "at the ceiling": round(1e6 * row["flops"] / ceiling) or "",
                }
            )
    console.table(
        f"Where an update's time goes (one thread, ceiling {ceiling / 1e9:.0f} GFLOP/s)",
        list(table[0]),
        [list(row.values()) for row in table],
    )
    if options.out is not None:
        files.write_csv(options.out / "profile.csv", table)
        about = {"updates": options.updates, "repeats": options.repeats, "ceiling_gigaflops": ceiling / 1e9}
        files.write_json(options.out / "profile.json", provenance() | about)


if __name__ == "__main__":
    main()
