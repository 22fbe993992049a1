"""Who imports whom in `oal`, read from the source: the layers, the graph of imports and its circles.

The tests hold the package to it (tests/test_house.py), and tools/import_graph.py draws it.
"""

import ast
import functools
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "oal"

# A package or module imports from the layers below its own and from itself, also where an import waits in a function.
LAYERS = (
    ("errors", "equations"),
    ("base",),
    ("envs", "report"),
    ("demos",),
    ("tabular", "deep"),
    ("linear", "lab", "interop"),
    ("cli",),
)
LAYER = {unit: number for number, units in enumerate(LAYERS) for unit in units}
FRONT = {"__init__", "__main__"}
"""What stands above all layers: the names of the package, and the command."""


def module(path: Path) -> str:
    """Return a file's module below `oal`: base.files for base/files.py, base for base/__init__.py."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in SOURCE.rglob("*.py")}


def unit(name: str) -> str:
    """Return the package that a module is in, or the module itself if it stands alone."""
    return name.split(".")[0]


def imports(code: ast.AST) -> set[str]:
    """Return our modules that a file imports, at its top or in a function; what only type checkers see is left out."""
    found: set[str] = set()
    frontier: list[ast.AST] = [code]
    while frontier:
        node = frontier.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            frontier += node.orelse
            continue
        frontier += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this house"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")[1:] if name.startswith("oal.") else []
            # the longest prefix that is a module: the rest are names in it
            while parts and ".".join(parts) not in MODULES:
                parts.pop()
            if parts:
                found.add(".".join(parts))
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    return {
        name: imports(ast.parse(path.read_text(encoding="utf-8"))) - {name}
        for name, path in MODULES.items()
        if name not in FRONT
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports, or nothing."""
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for used in sorted(graph.get(name, ())):
            if found := visit(used, [*way, name]):
                return found
        done.add(name)
        return []

    for name in sorted(graph):
        if found := visit(name, []):
            return found
    return []


def packages() -> dict[str, list[str]]:
    """Return the modules inside each package, by their names there; a module that stands alone has none."""
    names: dict[str, list[str]] = {each: [] for units in LAYERS for each in units}
    for name in sorted(graph()):
        _, _, inside = name.partition(".")
        if inside:
            names[unit(name)].append(inside)
    return names


def package_graph() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    used: dict[str, set[str]] = {each: set() for each in LAYER}
    for name, names in graph().items():
        used[unit(name)] |= {unit(other) for other in names} - {unit(name)}
    return used
