"""The README's Python blocks run as they stand; its commands exist; tables in the docs are those of the files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from oal.cli import app
from oal.cli.cite import PAPER
from oal.errors import InputError

ROOT = Path(__file__).parent.parent


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "learner.npz").exists()
    assert names["few"]


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


@pytest.mark.parametrize("page", ["docs/demonstrations.md", "docs/own-environment.md"])
def test_the_blocks_of_the_guides_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python", page):
        exec(compile(block, page, "exec"), names)
    assert names["demos"].steps > 0


def test_every_command_of_the_readme_is_one():
    """Each `oal ...` line parses: the command, its options and the number of its arguments."""
    root = get_command(app)
    lines = [
        line.split("#")[0].split() for block in blocks("sh") for line in block.splitlines() if line.startswith("oal ")
    ]
    assert len(lines) >= 10
    for words in lines:
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
