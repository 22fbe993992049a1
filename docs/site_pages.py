"""What the site has beyond docs/*.md, as hooks of MkDocs (mkdocs.yml): nothing here is written by hand twice.

- pages made from code: the API by mkdocstrings, the command line by typer, examples, notebooks and tests as they stand;
- names in code spans become links: `oal.OAL`, `test_equations.py::test_...`; a name that is not there fails the build;
- formulas become MathML: they need no script, no font and no network.

What is missing is a warning, and `mkdocs build --strict` fails at any.
"""

import ast
import base64
import html
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from latex2mathml import converter
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
log = get_plugin_logger("site_pages")

FENCE = re.compile(r"(^[ ]*(`{3,}).*?^[ ]*\2[ ]*$)", re.MULTILINE | re.DOTALL)
LINK = r"!?\[(?:[^\[\]]|\[[^\]]*\])*\](?:\([^)]*\)|\[[^\]]*\])"
NAME = re.compile(rf"({LINK})|`(oal(?:\.\w+)+)(\([^`]*\))?`|`(test_\w+\.py)::(\w+)`")
OUTSIDE = re.compile(r"(?<=\]\()\.\./([\w./-]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
UNLISTED = ("oal.cli", "oal.report")
PROJECT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


# pages made from code ------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return the pages that have no file of their own under docs/: {address: Markdown}."""
    made = {"reference/index.md": overview(), "reference/cli.md": commands()}
    for module in modules():
        made[f"reference/{module.path}.md"] = reference(module)
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix == ".py":
            made[f"examples/{path.stem}.md"] = script(path)
        elif path.suffix == ".ipynb":
            made[f"examples/{path.stem}.md"] = notebook(path)
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        made[f"tests/{path.stem}.md"] = tests(path)
    for file, address in PROJECT.items():
        made[address] = (ROOT / file).read_text(encoding="utf-8")
    return made


@cache
def package() -> griffe.Module:
    loaded = griffe.load("oal", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Module)
    return loaded


def modules() -> list[griffe.Module]:
    """Return what the reference has a page of: every module but those that only commands use, which have their page."""

    def below(module: griffe.Module) -> Iterator[griffe.Module]:
        for member in module.modules.values():
            if not (member.is_alias or member.name.startswith("_") or member.path in UNLISTED):
                yield member
                yield from below(member)

    return sorted(below(package()), key=lambda module: module.path)


def canonical(name: str) -> str:
    """Say where a name is defined: `oal.mdp.FiniteMDP` is `oal.tabular.problem.FiniteMDP`."""
    try:
        return package()[name.removeprefix("oal.")].canonical_path
    except (KeyError, griffe.AliasResolutionError):
        return name  # the reference has no such place, and says so


def summary(thing: griffe.Object | griffe.Alias) -> str:
    return thing.docstring.value.splitlines()[0] if thing.docstring else ""


def names(module: griffe.Module) -> str:
    """List what a package exports, each with the first line of its docstring."""
    lines = []
    for name in module.exports or []:
        thing = module.members.get(str(name))
        if thing is not None and not str(name).startswith("__"):
            lines.append(f"| [`{module.path}.{name}`][{thing.canonical_path}] | {plain(summary(thing))} |")
    return "\n".join(["| name | |", "|---|---|", *lines]) + "\n" if lines else ""


def overview() -> str:
    return f"""# The names of `oal`

`import oal` is quick: everything below is loaded when it is first used. The pages beside this one have every module,
package by package; the [command line](cli.md) has its own.

{names(package())}"""


def reference(module: griffe.Module) -> str:
    for thing in without_docstring(module):
        log.warning(f"{thing.path} has no docstring: {thing.relative_package_filepath}:{thing.lineno}")
    page = f"# `{module.path}`\n\n::: {module.path}\n    options:\n      show_root_heading: false\n"
    if not module.is_init_module:
        return page
    # what a package only passes on has its place elsewhere
    own = [
        name for name, member in module.members.items() if not (member.is_alias or member.is_module or name[0] == "_")
    ]
    return f"{page}      members: {json.dumps(own) if own else 'false'}\n\n{names(module)}"


def without_docstring(module: griffe.Module) -> Iterator[griffe.Object]:
    """Find what a reader of the reference would find no word about: modules, classes and functions, not all methods."""
    if not module.docstring:
        yield module
    for thing in (*module.classes.values(), *module.functions.values()):
        if isinstance(thing, griffe.Object) and not thing.name.startswith("_") and not thing.docstring:
            yield thing


def commands() -> str:
    """Let typer describe the command line."""
    words = [sys.executable, "-m", "typer", "oal.cli", "utils", "docs", "--name", "oal", "--title", "The command line"]
    made = subprocess.run(words, capture_output=True, text=True, check=True, encoding="utf-8")
    return made.stdout


def script(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(source)) or ""
    return f"# {path.name}\n\n{about.splitlines()[0] if about else ''}\n\n{code(source)}"


def tests(path: Path) -> str:
    """Show a file of tests with a heading for each, which links go to."""
    source = path.read_text(encoding="utf-8")
    lines, parts, done = source.splitlines(), [f"# {path.name}\n"], 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
            assert node.end_lineno is not None
            parts += [code("\n".join(lines[done:first])), f"## {node.name} {{#{node.name}}}\n"]
            parts.append(code("\n".join(lines[first : node.end_lineno])))
            done = node.end_lineno
    return "\n".join([*parts, code("\n".join(lines[done:]))])


def code(source: str, language: str = "python") -> str:
    return f"````{language}\n{source.strip()}\n````\n" if source.strip() else ""


def notebook(path: Path) -> str:
    """Show a notebook with the outputs it was saved with."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source + "\n" if cell["cell_type"] == "markdown" else code(source))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
                parts.append(f"![what the cell above draws](data:image/png;base64,{picture})\n")
            else:
                parts.append(code("".join(output.get("text", data.get("text/plain", ""))), "text"))
    parts.append(f"This page is the notebook `examples/{path.name}` with its outputs.\n")
    return "\n".join(parts)


# hooks ---------------------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fill the two empty places of the navigation."""
    examples = sorted((ROOT / "examples").iterdir(), key=lambda path: (path.suffix != ".ipynb", path.name))
    filled = {
        "examples/": [f"examples/{path.stem}.md" for path in examples if path.suffix in (".py", ".ipynb")],
        "reference/": [{"Names": "reference/index.md"}, {"Command line": "reference/cli.md"}, *api()],
    }
    for section in config.nav:
        ((title, content),) = section.items()
        section[title] = filled.get(content, content) if isinstance(content, str) else content
    return config


def api() -> list[Any]:
    """Arrange the reference: a section for each package."""
    sections: dict[str, list[Any]] = {}
    for module in modules():
        parts = module.path.split(".")
        sections.setdefault(".".join(parts[:2]), []).append({module.path: f"reference/{module.path}.md"})
    return [{title: found} if len(found) > 1 else found[0] for title, found in sections.items()]


def on_files(files: Any, config: Any) -> Any:
    for address, text in pages().items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link what is named: files beside docs/, tests, and everything of oal's."""
    here = page.file.src_uri
    if here.startswith("tests/"):
        return markdown
    markdown = OUTSIDE.sub(lambda found: relative(here, outside(found[1])), markdown)
    if here in PROJECT.values():  # written for the root of the checkout
        markdown = re.sub(r"(?<=\]\()docs/", "", markdown)
    if here.startswith("examples/"):
        markdown = markdown.replace("](../docs/", "](../")
    if here == "equations.md":
        markdown = re.sub(r"(?<=\| )`(\w+)`(?= \|)", r"[`\1`][oal.equations.\1]", markdown)

    def linked(found: re.Match[str]) -> str:
        link, name, call, file, test = found.groups()
        if link or name in UNLISTED:
            return found[0]
        if file:
            return f"[`{test}`]({relative(here, f'tests/{Path(file).stem}.md')}#{test})"
        return f"[`{name}{call or ''}`][{canonical(name)}]"

    parts = FENCE.split(markdown)  # text, a fenced block, its fence, text, ...
    return "".join(
        "".join(line if line.startswith("#") else NAME.sub(linked, line) for line in part.splitlines(keepends=True))
        if number % 3 == 0
        else part
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def outside(path: str) -> str:
    """Say which page shows a file of the checkout."""
    if path in PROJECT:
        return PROJECT[path]
    file = Path(path)
    if path.startswith("src/"):
        return f"reference/{'.'.join(file.with_suffix('').parts[1:])}.md"
    return file.with_suffix(".md").as_posix()


def relative(here: str, address: str) -> str:
    return posixpath.relpath(address, posixpath.dirname(here) or ".")


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Turn formulas into MathML."""

    def drawn(found: re.Match[str]) -> str:
        formula = html.unescape(found[2] or found[3])
        made = converter.convert(formula, display="inline" if found[2] else "block")
        if unknown := re.search(r">\\\w+", made):  # what the converter does not know it shows as it stands
            log.warning(f"{page.file.src_path}: {unknown[0][1:]} of a formula is not known: {formula}")
        return made

    return FORMULA.sub(drawn, content)


def plain(text: str) -> str:
    """Keep a docstring's bars and brackets from being read as Markdown."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text)
