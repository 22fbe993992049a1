"""Fill the tables of docs/*.md from the files that commands wrote, and write the guides' scripts: `make docs`.

The site (mkdocs.yml) makes its reference by itself. This stays: tables must also be right where pages are read
without it, and results are files that commands wrote long before.

A block

    <!-- table: results/bc/bc.csv columns: demonstrations, variant, mean -->
    <!-- end -->

is filled with a table of that CSV (rows: `where: variant=BC` keeps some); `shipped demonstrations`, `config: FILE` and
`bench: FILE` make theirs from JSON. Everything between the two comments is replaced.

A guide's script under examples/ is its Python blocks, one after the other.
"""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SCRIPTS = {
    "first-policy.md": "first_policy.py",
    "extending.md": "own_player.py",
    "certificate.md": "certificate.py",
    "experiments.md": "experiments.py",
    "deploying.md": "deploy.py",
    "gpus.md": "gpus.py",
    "settings.md": "settings.py",
}
"""Guides whose script is their own code; the others have engineer.py, researcher.py and student.py."""
BLOCK = re.compile(r"(<!-- (?P<what>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def number(text: str) -> str:
    """Round a decimal number to three places, or to two digits where that says more; leave everything else alone."""
    if not re.fullmatch(r"-?\d+(\.\d+(e-?\d+)?|e-?\d+)", text):
        return text
    value = float(text)
    return f"{value:.3f}" if value == 0.0 or abs(value) >= 0.01 else f"{value:.2g}"


def table(what: str) -> str:
    found = re.fullmatch(r"table: (?P<file>\S+)(?: columns: (?P<columns>.*?))?(?: where: (?P<where>.*))?", what)
    if found is None:
        raise SystemExit(f"docs: cannot read the block '{what}'")
    with (DOCS / found["file"]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if found["where"]:
        column, value = found["where"].split("=", 1)
        rows = [row for row in rows if row[column].startswith(value)]
    columns = found["columns"].split(", ") if found["columns"] else list(rows[0])
    return markdown(columns, [[number(row[column]) for column in columns] for row in rows])


def config(what: str) -> str:
    """Say how a file was made; a benchmark's parts may come from several commands."""
    about = json.loads((DOCS / what.removeprefix("config: ")).read_text(encoding="utf-8"))
    origins: dict[str, list[str]] = {}
    for entry in about["results"] if "command" not in about else [{"provenance": about}]:
        origin = entry["provenance"]
        versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
        parts = origins.setdefault(f"`{origin['command']}` at commit `{origin['commit']}` ({versions}).", [])
        if entry.get("part", "") not in ("", *parts):
            parts.append(entry["part"])
    several = len(origins) > 1
    lines = [f"- {', '.join(parts)}: {origin}" if several else origin for origin, parts in origins.items()]
    return "\n" + "\n".join(lines) + "\n\n"


def shipped(_: str) -> str:
    path = DOCS.parent / "src" / "oal" / "data" / "demos" / "table.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        [
            name,
            entry["episodes"],
            f"{entry['transitions']:,}",
            f"{entry['return_mean']:.1f} ± {entry['return_std']:.1f}",
            f"{entry['policy_after_steps']:,} of {entry['trained_steps']:,}",
            f"`{entry['command']}`",
        ]
        for name, entry in entries.items()
    ]
    return markdown(["name", "episodes", "steps", "return (mean ± std)", "policy after steps", "command"], rows)


def bench(what: str) -> str:
    """Make a benchmark's table; `bench: FILE before: FILE` puts what an earlier run had beside it."""
    newest, _, earlier = what.removeprefix("bench: ").partition(" before: ")
    results = json.loads((DOCS / newest).read_text(encoding="utf-8"))["results"]
    before = json.loads((DOCS / earlier).read_text(encoding="utf-8"))["results"] if earlier else []
    ratios_before = {result["name"]: f"{result['ratio']['median']:.3g}" for result in before if "ratio" in result}
    rows = []
    for result in results:
        if "skipped" in result:
            rows.append([result["name"], "", "skipped", "", "", result["skipped"], "", ""])
            continue
        rates = ", ".join(
            f"{k} {v['median']:.4g}"
            for k, v in result.items()
            if k != "ratio" and isinstance(v, dict) and "median" in v
        )
        memory = ", ".join(f"{k} {v}" for k, v in result.get("peak_memory_megabytes", {}).items())
        spread = f"{result['ratio']['min']:.3g} to {result['ratio']['max']:.3g}"
        rows.append(
            [
                result["name"],
                ratios_before.get(result["name"], ""),
                f"{result['ratio']['median']:.3g}",
                spread,
                result.get("aim", ""),
                f"{rates} {result['unit']}",
                memory,
                result.get("differs", ""),
            ]
        )
    columns = ["what", "before", "ratio", "spread", "aim", "medians", "peak memory, MB", "what differs"]
    # columns that no row fills are left out
    kept = [i for i in range(len(columns)) if any(str(row[i]) for row in rows)]
    return markdown([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def filled(text: str) -> str:
    makers = {"table": table, "config": config, "shipped": shipped, "bench": bench}

    def fill(block: re.Match[str]) -> str:
        word = re.match(r"\w+", block["what"])
        maker = makers.get(word[0]) if word else None
        return block[0] if maker is None else block[1] + maker(block["what"]) + block[4]

    return BLOCK.sub(fill, text)


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def script(page: Path) -> str:
    """Return a guide's Python as a file, in the house's format."""
    text = page.read_text(encoding="utf-8")
    title = re.match(r"# (.*)", text)
    said = title[1] if title else page.stem
    code = f'"""{said}: the code of docs/{page.name}, from which  make docs  writes this file."""\n\n'
    code += "\n\n".join(python_blocks(text))
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "script.py", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True, cwd=DOCS.parent).stdout


def main() -> int:
    """Write the pages and scripts; with `--check`, only say which are out of date."""
    pages = {page: filled(page.read_text(encoding="utf-8")) for page in sorted(DOCS.glob("*.md"))}
    scripts = {DOCS.parent / "examples" / name: script(DOCS / page) for page, name in SCRIPTS.items()}
    stale = []
    for path, new in (pages | scripts).items():
        if not path.exists() or path.read_text(encoding="utf-8") != new:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(("out of date, run make docs: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
