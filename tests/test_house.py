"""The rules of the house: which way imports go, what stays unloaded, and what must not be in the tree."""

import ast
import functools
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "oal"
HEAVY = ("jax", "numba", "gymnasium", "matplotlib", "scipy", "optax", "mujoco")

# What each module may import of ours, now or later in a function. A module that is not here yet obeys the laws below.
GROUND = {"errors", "files", "seeding", "console", "provenance", "runtime"}
ARROWS = {
    "errors": set(),
    "equations": set(),
    "kernels": set(),
    "nets": set(),
    "console": set(),
    "provenance": set(),
    "files": {"errors"},
    "seeding": {"errors"},
    "stats": {"errors"},
    "runtime": {"errors"},
    "replay": {"errors"},
    "plots": GROUND | {"stats"},
    "checkpoint": GROUND,
    "runs": {"errors", "files"},
    "claims": {"stats"},
    "studies": {"claims", "demos", "errors", "executors", "experiment", "files", "report", "stats"},
    "report": GROUND | {"plots", "runs"},
    "snapshots": {"errors"},
    "equations_doc": GROUND | {"equations"},
    "mdp": {"errors", "kernels"},
    "costsets": {"errors", "equations", "kernels"},
    "tabular": GROUND | {"costsets", "equations", "kernels", "mdp", "demos"},
    "regret": {"errors", "costsets", "equations", "mdp", "tabular"},
    "game": GROUND | {"costsets", "kernels", "mdp", "tabular"},
    "prior": GROUND | {"costsets", "equations", "game", "kernels", "mdp", "tabular"},
    "demos": GROUND | {"envs"},
    "envs": GROUND | {"demos", "snapshots"},
    "config": {"errors"},
    "policy": {"checkpoint", "envs", "errors", "nets"},
    "costs": {"errors", "nets", "replay"},
    "learned": GROUND | {"checkpoint", "config", "costs", "envs", "learner", "plots"},
    "offpolicy": GROUND | {"checkpoint", "envs", "nets", "replay"},
    "onpolicy": GROUND | {"checkpoint", "envs", "nets", "offpolicy", "replay"},
    "bc": GROUND | {"demos", "envs", "nets", "policy"},
    "certificate": GROUND | {"demos", "envs", "equations", "stats"},
    "presets": {"bc", "config", "costs", "errors", "offpolicy", "onpolicy"},
    # the loop knows the players by their interface; of their settings it knows the presets
    "learner": GROUND
    | {
        "bc",
        "certificate",
        "checkpoint",
        "costs",
        "demos",
        "envs",
        "nets",
        "offpolicy",
        "onpolicy",
        "policy",
        "presets",
    }
    | {"replay"},
    "callbacks": {"envs", "errors", "learner"},
    "training": GROUND
    | {"bc", "callbacks", "certificate", "config", "demos", "envs", "learned", "learner", "policy", "presets", "runs"},
    "worker": {"provenance", "runs", "runtime", "training"},
    "storage": {"errors", "files"},
    "executors": {"errors", "runs", "storage", "worker"},
    "experiment": GROUND | {"config", "envs", "executors", "presets", "runs", "training", "worker"},
}
REPORTING = {"claims", "stats", "plots", "report"}
LEARNERS = {
    *("tabular", "prior", "offpolicy", "onpolicy", "bc", "costs", "learned", "learner", "training", "expert"),
    *("experiment", "figures", "studies"),
}


def unit(path: Path) -> str:
    """Return the module a file belongs to; a package is one module."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


UNITS = {unit(path) for path in SOURCE.rglob("*.py")} - {"__init__", "__main__"}


def imported(tree: ast.AST, *, anywhere: bool) -> set[str]:
    """Return our modules that a file imports: anywhere in it, or only when it is itself imported."""
    found = set()
    for node in ast.walk(tree) if anywhere else ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this house"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("oal.")}
    return found & UNITS


@functools.cache
def arrows(*, anywhere: bool) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {name: set() for name in UNITS}
    for path in SOURCE.rglob("*.py"):
        if unit(path) in graph:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            graph[unit(path)] |= imported(tree, anywhere=anywhere) - {unit(path)}
    return graph


def reached_from(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, frontier = set(), [start]
    while frontier:
        new = graph[frontier.pop()] - seen
        seen |= new
        frontier += new
    return seen


@pytest.mark.parametrize("name", sorted(ARROWS))
def test_modules_import_only_what_they_may(name):
    assert name in UNITS, f"{name} is gone: take it out of the map"
    extra = arrows(anywhere=True)[name] - ARROWS[name]
    assert not extra, f"oal.{name} must not import {sorted(extra)}"


def test_imports_go_one_way():
    graph = arrows(anywhere=False)
    circles = sorted(name for name in graph if name in reached_from(name, graph))
    assert not circles, f"these modules import each other in a circle: {circles}"


def test_only_the_command_line_imports_the_command_line():
    users = sorted(name for name, used in arrows(anywhere=True).items() if "cli" in used)
    assert not users, f"the library must not know its command line: {users}"


@pytest.mark.parametrize("name", sorted(REPORTING & UNITS))
def test_reporting_does_not_know_the_learners(name):
    known = reached_from(name, arrows(anywhere=True)) & LEARNERS
    assert not known, f"oal.{name} reads results only, but reaches {sorted(known)}"


def test_the_law_of_arrows_can_be_broken():
    """The scanner sees imports of every form, at the top and inside functions."""
    text = "import oal.mdp\nfrom oal import kernels\ndef f():\n    from oal.tabular import TabularOAL\n    import os\n"
    assert imported(ast.parse(text), anywhere=False) == {"mdp", "kernels"}
    assert imported(ast.parse(text), anywhere=True) == {"mdp", "kernels", "tabular"}


# What stays unloaded -------------------------------------------------------------------------------------------------


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter; return which heavy packages it has loaded."""
    report = f"\nimport json, sys\nprint('\\n' + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_oal_loads_nothing_heavy():
    assert loaded_after("import oal, oal.errors, oal.files, oal.seeding, oal.console") == set()


def test_the_help_of_every_command_loads_nothing_heavy():
    code = """
import typer
from typer.testing import CliRunner
from oal.cli import app

def show(command, path):
    shown = CliRunner().invoke(app, [*path, "--help"])
    assert shown.exit_code == 0 and "Usage" in shown.output, path
    inner = getattr(command, "commands", {})
    return 1 + sum(show(each, [*path, name]) for name, each in inner.items())

assert show(typer.main.get_command(app), []) > 5
"""
    assert loaded_after(code) == set()


def test_tabular_learning_does_without_the_deep_part():
    assert loaded_after("import oal.mdp, oal.tabular, oal.regret, oal.prior") & {"jax", "optax", "gymnasium"} == set()


# What must not be in the tree ----------------------------------------------------------------------------------------


@functools.cache
def tree() -> tuple[Path, ...]:
    """Every text file of the repository: what git tracks, or without git whatever is not hidden or built."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = []
    if not paths:
        tops = ("src", "tests", "docs", "benchmarks", "tools")
        paths = [path for top in tops for path in (ROOT / top).rglob("*")] + list(ROOT.glob("*"))
    return tuple(
        path
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts and b"\0" not in path.read_bytes()[:4096]
    )


def python_files() -> list[Path]:
    return [path for path in tree() if path.suffix == ".py"]


def test_the_tree_is_found():
    names = {path.name for path in tree()}
    assert {"pyproject.toml", "equations.py", "test_house.py", "equations.md"} <= names


PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def pickling(code: ast.AST) -> list[str]:
    """Return what a module does with pickles: imports of picklers, and `allow_pickle` that is not a plain False."""
    found = []
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in PICKLING]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLING:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                refused = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "allow_pickle" and not refused:
                    found.append(ast.unparse(node))
    return found


def test_nothing_in_the_package_touches_a_pickle():
    for path in SOURCE.rglob("*.py"):
        assert not pickling(ast.parse(path.read_text(encoding="utf-8"))), path
    assert pickling(ast.parse("import pickle")) == ["pickle"]
    assert pickling(ast.parse("np.load(f, allow_pickle=True)"))
    assert pickling(ast.parse("np.load(f, allow_pickle=flag)"))
    assert not pickling(ast.parse("np.load(f, allow_pickle=False)"))


# Absolute paths of somebody's machine; put together so that this file is no hit itself.
MACHINE_PATH = re.compile(r"(?<![\w.~:/%-])" + "/" + r"(?:work|root|tmp|home|Users)" + r"\b(?!-)")


def test_no_file_names_a_path_of_a_machine():
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in tree()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not hits, "\n".join(hits)
    assert MACHINE_PATH.search("see " + "/" + "home/me/x")
    assert not MACHINE_PATH.search("https://example.org" + "/" + "work/x")


UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def test_no_comment_puts_work_off():
    hits = []
    for path in python_files():
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
                    hits.append(f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}")
    for path in tree():
        if path.suffix in (".md", ".toml", ".yml", ".cff") or path.name in ("Makefile", "run"):
            hits += [
                f"{path.relative_to(ROOT)}: {line}" for line in path.read_text().splitlines() if UNFINISHED.search(line)
            ]
    assert not hits, "\n".join(hits)


def test_links_between_the_documents_lead_somewhere():
    broken = []
    for path in tree():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
                if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.split("#")[0]).exists():
                    broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert not broken, "\n".join(broken)
