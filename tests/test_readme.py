"""The README and the guides run as they stand; their commands exist; tables in the docs are those of the files."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.main import get_command

from oal.cli import app
from oal.cli.cite import PAPER
from oal.errors import InputError

ROOT = Path(__file__).parent.parent


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_python_blocks_run_in_order(tmp_path):
    """In a process of its own: programs of full size take twice as long where tests' are compiled without care."""
    found = blocks("python")
    assert len(found) >= 3
    (tmp_path / "readme.py").write_text("\n".join([*found, "assert few, 'the last block'"]))
    carefully = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, env=carefully, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "learner.npz").exists()


def test_the_page_on_own_players_runs_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python", "docs/extending.md"):
        exec(compile(block, "extending.md", "exec"), names)
    resumed = names["model"]
    assert (resumed.step, resumed.config.policy, resumed.config.cost) == (800, "plain", "nearest")
    assert resumed.cost_updates == 4
    assert {"loss", "mean_distance"} <= resumed.numbers().keys()
    config, replay = resumed.player.config, resumed.player.replay
    whole = names["oal"].OAL(
        "InvertedPendulum-v5", names["demos"], policy=names["Plain"](config, replay), cost=names["Nearest"](), seed=0
    )
    whole.learn(600).learn(800)
    for one, other in zip(whole.policy().actor.layers, resumed.policy().actor.layers, strict=True):
        assert (one.weight == other.weight).all()
    with pytest.raises(InputError, match="policy player 'plain' is not one of oal's"):
        names["oal"].OAL.load("own.safetensors")
    with pytest.raises(InputError, match="cost player 'nearest' is not one of oal's"):
        names["oal"].OAL.load("own.safetensors", policy=names["Plain"](config, replay))


def run_blocks(page: str) -> dict:
    names: dict = {"__name__": "__main__"}
    found = blocks("python", page)
    assert found, f"{page} has no code that is run"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*share reset seeds")  # a page shows how it is done
        for block in found:
            exec(compile(shortened(block), page, "exec"), names)
    return names


def shortened(text: str) -> str:
    """Say the same with a thousand steps where a page has tens of thousands: what is tested is that it works."""
    text = re.sub(r"(?<=learn\()\d\d_000\b|(?<=--steps )\d{5,}", "1200", text)
    return re.sub(r"(?<=Evaluate\()5_000\b", "1_000, episodes=2", text)


QUICK = ["demonstrations", "own-environment", "certificate", "gpus"]
LONGER = ["coming-from", "deploying", "experiments", "first-policy", "settings"]


@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in LONGER)])
def test_the_blocks_of_the_guides_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks(f"docs/{page}.md")
    if page == "experiments":
        assert names["summary"].complete
    else:
        assert names["demos"].steps > 0
    if page == "certificate":
        assert "indistinguishable" in names["experts"].sentence
        assert "worse" in names["worse"].sentence


def typed(page: str) -> list[list[str]]:
    """The `oal` commands of a page, as words."""
    found = "".join(blocks("sh", page)).splitlines()
    return [shlex.split(line, comments=True) for line in found if line.startswith("oal ")]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-policy", "own-environment", "experiments", "settings"])
def test_the_commands_of_the_guides_run(page, tmp_path):
    """As they are typed, one after the other, in an empty folder with the files that the page shows."""
    path = f"docs/{page}.md"
    if page == "own-environment":
        shutil.copy(ROOT / "examples" / "my_robot.py", tmp_path)
        record = "oal.demos.record_demos(m.make_env, m.expert, episodes=12).save('demos.npz')"
        making = f"import oal, my_robot as m; {record}"
        subprocess.run([sys.executable, "-c", making], cwd=tmp_path, check=True)
    for text in blocks("toml", path):
        (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text, encoding="utf-8")
    commands = typed(path)
    assert commands
    for words in commands:
        line = shlex.split(shortened(shlex.join(words)))
        done = subprocess.run([sys.executable, "-m", *line], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", [page for page in PAGES if typed(page)])
def test_every_command_of_the_pages_is_one(page):
    """Each `oal ...` line parses: the command, its options and the number of its arguments."""
    root = get_command(app)
    for words in typed(page):
        command, rest = root, words[1:]
        while hasattr(command, "commands"):
            command = command.commands[rest[0]]
            rest = rest[1:]
        command.make_context(words[0], list(rest), resilient_parsing=False)


def test_the_readme_leads_to_all_its_parts_and_cites_as_the_command_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    anchor = lambda title: re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")  # noqa: E731
    parts = [anchor(title) for title in re.findall(r"^## (.*)$", text, re.MULTILINE)]
    assert re.findall(r"\]\(#([a-z-]+)\)", text[text.index("Contents:") : text.index("| part")]) == parts
    assert blocks("bibtex") == [f"{PAPER}\n"]


def test_tables_in_the_docs_are_those_of_the_files():
    run = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
