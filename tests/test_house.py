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

import import_graph
from house import LAYER, LAYERS, SOURCE, circle, graph, imports, packages, unit

ROOT = Path(__file__).parents[1]
HEAVY = ("jax", "numba", "gymnasium", "matplotlib", "scipy", "optax", "mujoco")


def test_every_module_has_a_layer():
    assert {unit(name) for name in graph()} == set(LAYER)
    assert len(LAYERS) <= 8


@pytest.mark.parametrize("name", sorted(graph()))
def test_imports_go_down(name):
    wrong = {used for used in graph()[name] if unit(used) != unit(name) and LAYER[unit(used)] >= LAYER[unit(name)]}
    assert not wrong, f"oal.{name} must not import {sorted(wrong)}: they are not in a layer below its own"


def test_no_circle_of_imports():
    assert not circle(graph()), " -> ".join(circle(graph()))
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c"]


def test_the_scanner_sees_imports_of_every_form():
    code = """
import oal.tabular.mdp
from oal.base import files
if TYPE_CHECKING:
    from oal.deep.loop import OAL
def f():
    from oal.envs.stepping import Envs
    import os
"""
    assert imports(ast.parse(code)) == {"tabular.mdp", "base.files", "envs.stepping"}


def test_the_picture_of_the_house_is_up_to_date():
    redraw = "the packages have changed: draw them again with  python tools/import_graph.py"
    assert (ROOT / "docs" / "house.txt").read_text(encoding="utf-8") == import_graph.text(), redraw
    picture = (ROOT / "docs" / "house.svg").read_text(encoding="utf-8")
    for name, box in import_graph.place(packages()).items():
        assert all(f">{line}</text>" in picture for line in (name, *box.lines)), redraw


def test_arrows_that_follow_from_others_are_left_out():
    used = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}
    assert import_graph.direct(used) == [("a", "b"), ("a", "d"), ("b", "c")]


# What stays unloaded -------------------------------------------------------------------------------------------------


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter; return which heavy packages it has loaded."""
    report = f"\nimport json, sys\nprint('\\n' + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_oal_loads_nothing_heavy():
    assert loaded_after("import oal, oal.errors, oal.base.files, oal.base.seeding, oal.base.console") == set()


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


def test_the_command_line_leaves_numpy_for_after_its_threads_are_set():
    """Loaded earlier, NumPy multiplies on every core, and rounds otherwise than on a machine with another number."""
    code = "import sys, oal.cli\nassert 'numpy' not in sys.modules\n"
    code += "from oal.cli.train import prepare\nprepare(1)\nassert 'numpy' not in sys.modules"
    assert loaded_after(code) == set()


def test_tabular_learning_does_without_the_deep_part():
    assert (
        loaded_after("import oal.tabular, oal.tabular.regret, oal.tabular.compare") & {"jax", "optax", "gymnasium"}
        == set()
    )


def test_the_package_runs_without_what_only_its_annotations_name():
    code = """
import sys
sys.modules["jaxtyping"] = None
import oal.deep.presets, oal.deep.bc, oal.deep.certificate, oal.deep.learned_cost, oal.demos, oal.envs
assert "oal.deep.arrays" not in sys.modules
"""
    assert "jax" in loaded_after(code)


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


def test_the_lock_has_the_hashes_of_exactly_what_is_pinned():
    import lock

    assert lock.problems() == []
    assert len(lock.locked()) > 50


# What is promised ------------------------------------------------------------------------------------------------


def test_every_guarantee_names_tests_that_are_there():
    """A row of SECURITY.md names files of tests, and after a file some tests in it."""
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| ")]
    assert rows[0] == ["guarantee", "mechanism", "tests"]
    assert len(rows) > 10
    for guarantee, mechanism, tests in rows[1:]:
        files = re.findall(r"`(test_\w+\.py)`", tests)
        assert mechanism, guarantee
        assert files, f"no test holds '{guarantee}'"
        text = {name: (ROOT / "tests" / name).read_text(encoding="utf-8") for name in files}
        for file, named in re.findall(r"`(test_\w+\.py)`((?:(?!`test_\w+\.py`).)*)", tests):
            for name in re.findall(r"`(test_\w+)`", named):
                assert f"def {name}(" in text[file], f"SECURITY.md: {file} has no {name}"
        for path in re.findall(r"`(?:src/oal/)?(\w+/\w+\.py)`", mechanism):
            assert (SOURCE / path).exists(), f"SECURITY.md: there is no {path}"
