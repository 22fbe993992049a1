"""The README's Python blocks run as they stand; its commands exist; tables in the docs are those of the files."""

import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from oal.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "learner.npz").exists()
    assert names["few"]


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


def test_tables_in_the_docs_are_those_of_the_files():
    run = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
