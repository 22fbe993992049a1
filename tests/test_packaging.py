"""The package as people get it: one version, what to cite, and wheel and sdist installed outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import oal
from oal.cli import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_said_in_one_place():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/oal/__init__.py"
    # a citation is read without running anything, so it says it again
    assert re.search(r"^version: (.*)$", citation(), re.MULTILINE)[1] == oal.__version__  # type: ignore[index]


def citation() -> str:
    return (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_what_to_cite_is_what_the_citation_file_says():
    shown = CliRunner().invoke(app, ["cite"])
    assert shown.exit_code == 0
    fields = dict(re.findall(r"^  (\w+) += \{(.*)\},$", shown.stdout.split("@software")[0], re.MULTILINE))
    file = citation()
    assert fields["doi"] in file
    assert fields["title"] in file
    assert f"start: {fields['pages'].split('--')[0]}" in file
    assert f"end: {fields['pages'].split('--')[1]}" in file
    for family, given in re.findall(r"family-names: (\w+)\n +given-names: (\w+)", file):
        assert f"{family}, {given}" in fields["author"]
    assert f"version = {{{oal.__version__}}}" in shown.stdout
    assert shown.stdout.count("@") == 2
    assert shown.stdout.split("\n\n")[0] in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_projects_addresses_are_the_papers():
    assert PROJECT["project"]["urls"]["Paper"].endswith("10.1609/aaai.v36i8.20798")


# ----- as installed


def python_of(folder: Path) -> str:
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def run(*words: object, cwd: Path) -> str:
    """Run a command away from the checkout, and with nothing of it in the environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def made(folder: Path, *packages: object) -> str:
    """Make an empty environment and install packages into it; skip where there is no index to install from."""
    venv.create(folder, with_pip=True)
    words = [python_of(folder), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*words, *map(str, packages)], capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"packages cannot be installed here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python_of(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of the checkout."""
    folder = tmp_path_factory.mktemp("built")
    python = made(folder / "builder", "hatchling")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored)
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=source)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> str:
    """The Python of an environment with nothing but the wheel, what it needs, and the extra for ONNX."""
    (wheel,) = (built / "dist").glob("*.whl")
    return made(built / "user", f"oal[onnx] @ {wheel.as_uri()}")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A folder of a user's with the examples in it."""
    for path in (ROOT / "examples").glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_package(built: Path) -> None:
    (wheel,) = (built / "dist").glob("*.whl")
    (sdist,) = (built / "dist").glob("*.tar.gz")
    assert f"oal-{oal.__version__}" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "oal").rglob("*.py")}
    assert sources <= names
    assert "oal/data/demos/CartPole-v1.npz" in names
    assert not any(name.startswith(("tests", "docs")) for name in names)
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources} <= packed
    assert {"pyproject.toml", "README.md", "LICENSE", "examples/engineer.py", "tests/test_packaging.py"} <= packed


@pytest.mark.slow
def test_the_wheel_works_where_nothing_else_is(installed: str, away: Path) -> None:
    assert run(installed, "-m", "oal", "--version", cwd=away).strip() == f"oal {oal.__version__}"
    assert run(Path(installed).with_name("oal"), "--version", cwd=away).strip() == f"oal {oal.__version__}"
    assert "500.0" in run(installed, "-m", "oal", "demos", "show", "CartPole-v1", cwd=away)
    assert "Ready" in run(installed, "-m", "oal", "check", "CartPole-v1", "--demos", "CartPole-v1", cwd=away)
    where = run(installed, "-c", "import oal; print(oal.__file__)", cwd=away)
    assert str(ROOT) not in where


@pytest.mark.slow
def test_the_engineer_ends_with_a_policy_that_acts_without_oal(installed: str, away: Path, built: Path) -> None:
    said = run(installed, "engineer.py", "--steps", 4000, cwd=away)
    assert "Ready:" in said
    assert "no reward" in said
    elsewhere = made(built / "robot", "onnxruntime", "gymnasium", "numpy")
    assert "oal" not in run(elsewhere, "-m", "pip", "list", cwd=away)
    acted = run(elsewhere, "act_with_onnx.py", cwd=away)
    worst = float(re.search(r"([\d.]+) at worst", acted)[1])  # type: ignore[index]
    assert worst < 0.5  # the two targets are 2 apart, and episodes begin up to 2 away


@pytest.mark.slow
def test_the_researcher_feels_at_home(installed: str, away: Path) -> None:
    said = run(installed, "researcher.py", "--steps", 2000, cwd=away)
    assert "expert 1000" in said
    assert "went on to 2500 steps" in said
    assert "share reset seeds" not in said


# the newest PyTorch is not everywhere to be had
STABLE_BASELINES = ("torch==2.13.0", "stable-baselines3>=2.6")


@pytest.mark.slow
def test_the_researcher_goes_on_with_stable_baselines(built: Path, away: Path) -> None:
    (wheel,) = (built / "dist").glob("*.whl")
    python = made(built / "researcher", f"oal[sb3] @ {wheel.as_uri()}", *STABLE_BASELINES)
    said = run(python, "researcher.py", "--steps", 1500, cwd=away)
    assert said.count("evaluate_policy(") == 2
    assert "PPO on the learned cost: Demos(" in said
    assert "recorded as it is: Demos(InvertedPendulum-v5, 2 episodes" in said


@pytest.mark.slow
def test_the_student_sees_the_paper(installed: str, away: Path) -> None:
    said = run(installed, "student.py", "--episodes", 2000, cwd=away)
    assert "the theorem's bound" in said
    assert said.count("pays") == 3


def test_the_examples_are_python_of_today() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    assert sys.version_info >= (3, 11)
