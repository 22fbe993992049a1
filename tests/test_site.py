"""The documentation site: navigation, files and links agree; names on its pages are there; it builds strictly."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FROM_THE_ROOT = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_page_stands_in_the_navigation_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = config[config.index("\nnav:") : config.index("\nvalidation:")]
    named = re.findall(r": ([\w-]+\.md)$", nav, flags=re.MULTILINE)
    assert sorted(named) == sorted({page.name for page in PAGES} | {page.name.lower() for page in FROM_THE_ROOT})


@pytest.mark.parametrize("page", [ROOT / "README.md", *FROM_THE_ROOT, *PAGES], ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if urlsplit(target).scheme:
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {target}"
        assert path.suffix not in (".csv", ".json", ".txt"), f"{page.name} links to {target}, which the site leaves out"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {slug(title) for title in titles}, f"{page.name} links to {target}"


def slug(title: str) -> str:
    """What a heading is called in a link, by Python-Markdown's rule."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_pages_name_are_there(page: Path) -> None:
    for file, test in re.findall(r"(test_\w+\.py)::(\w+)", page.read_text(encoding="utf-8")):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_guides_have_a_script() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    guides = re.findall(r"([\w-]+\.md)", config[config.index("- Guides:") : config.index("- Theory:")])
    for guide in guides:
        if guide not in ("demonstrations.md", "deep.md", "faq.md"):  # what the others refer to
            scripts = re.findall(r"\(\.\./(examples/\w+\.py)\)", (DOCS / guide).read_text(encoding="utf-8"))
            assert scripts, f"{guide} names no script"


NOTEBOOKS = ["tabular_regret", "one_demonstration", "own_environment"]


def test_notebooks_are_small() -> None:
    paths = sorted((ROOT / "examples").glob("*.ipynb"))
    assert [path.stem for path in paths] == sorted(NOTEBOOKS)
    assert sum(path.stat().st_size for path in paths) < 1_000_000


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_keep_their_outputs(name: str) -> None:
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells), "it was not run to its end: make notebooks"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebooks = pytest.importorskip("notebooks", exc_type=ImportError)  # tools/notebooks.py, which needs nbclient
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"\b(STEPS|EPISODES) = [\d_]+", r"\1 = 1_500", cell.source)
    notebooks.executed(notebook, tmp_path)


class Links(HTMLParser):
    """What a page has: ids, links, and what it would ask other machines for."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        for name in ("src", "href"):
            if tag in ("script", "img", "link", "iframe", "source") and given.get(name):
                self.loaded.append(given[name] or "")


@pytest.mark.slow
def test_the_site_builds_strictly_and_works_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {}
    for file in tmp_path.rglob("*.html"):
        pages[file] = Links()
        pages[file].feed(file.read_text(encoding="utf-8"))
    assert len(pages) > 100
    for file, page in pages.items():
        for target in page.loaded:
            assert not urlsplit(target).netloc, f"{file.name} loads {target}"
        if file.name == "404.html":
            continue  # its links are those of the server's root
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{file.name} links to {target}"
            if parts.fragment and there in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[there].ids, f"{file.name} links to {target}"
    theory = (tmp_path / "theory.html").read_text(encoding="utf-8")
    assert theory.count("<math") > 20
    assert "arithmatex" not in theory
    assert "reference/oal.equations.html#oal.equations.policy_step" in theory
    assert "tests/test_regret.html#test_the_decomposition_is_an_identity_and_the_lemma_holds" in theory
