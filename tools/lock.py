"""Write requirements.lock: what constraints.txt pins, with the hashes of every file of these versions.

    python tools/lock.py [--check]

The hashes come from the package index (PIP_INDEX_URL, or pypi.org), for all systems. `make locked` installs from it,
and refuses any other file. --check only says whether the lock agrees with constraints.txt; it needs no network.
"""

import html
import os
import re
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
_LINK = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Read what is pinned: {name: version}."""
    lines = (line.split("#")[0].strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines())
    return {canonical(line.split("==")[0]): line.split("==")[1] for line in lines if line}


def locked() -> dict[str, tuple[str, set[str]]]:
    """Read the lock: {name: (version, hashes)}."""
    text = LOCK.read_text(encoding="utf-8").replace("\\\n", " ") if LOCK.exists() else ""
    found = {}
    for line in text.splitlines():
        if "==" in line and not line.startswith("#"):
            requirement, *options = line.split()
            name, version = requirement.split("==")
            found[name] = version, {option.removeprefix("--hash=sha256:") for option in options}
    return found


def hashes(name: str, version: str) -> list[str]:
    """Ask the index for the hashes of a version's files."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    found = set()
    for file, digest in _LINK.findall(page):
        wheel = unquote(html.unescape(file)).removesuffix(".metadata")
        parts = wheel.split("-") if wheel.endswith(".whl") else re.sub(r"\.(tar\.gz|zip)$", "", wheel).rsplit("-", 1)
        if canonical(parts[0]) == name and parts[1] == version:
            found.add(digest)
    if not found:
        raise SystemExit(f"error: {INDEX} has no file of {name} {version}")
    return sorted(found)


def problems() -> list[str]:
    """Say where the lock and constraints.txt disagree."""
    wanted, have = pins(), locked()
    said = [f"{name} {version} is pinned, but not locked" for name, version in wanted.items() if name not in have]
    said += [f"{name} is locked, but not pinned" for name in have if name not in wanted]
    for name, (version, digests) in have.items():
        if wanted.get(name, version) != version:
            said.append(f"{name} is pinned to {wanted[name]} and locked to {version}")
        if not digests or not all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
            said.append(f"{name} has no hash")
    return said


def main() -> int:
    if "--check" in sys.argv:
        for problem in problems():
            print(f"requirements.lock: {problem}: write it again with  make lock", file=sys.stderr)
        return int(bool(problems()))
    lines = ["# Written by tools/lock.py from constraints.txt: the hashes of every file of these versions."]
    for name, version in sorted(pins().items()):
        digests = [f"--hash=sha256:{digest}" for digest in hashes(name, version)]
        lines.append(" \\\n    ".join([f"{name}=={version}", *digests]))
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {len(pins())} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
