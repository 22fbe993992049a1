"""What is typed on the command line: environments, and options that may be left out."""

import re
from pathlib import Path
from typing import Any


def typed(env: str | None, *, trust: bool = False) -> None:
    """Let a name that the user has typed, or trusts, be found in the current folder; no other is looked for there."""
    if trust or (env is not None and ":" in env):
        from oal.envs.sources import allow_current_folder

        allow_current_folder()


def label(env: str) -> str:
    """Return a name for folders: the id, without what may not be in a file's name; of a file's function both names."""
    where, colon, name = env.rpartition(":")
    stem = f"{Path(where).stem}-{name}" if colon and where.endswith(".py") else env
    return re.sub(r"[^\w.-]", "_", stem)


def given(**options: Any) -> dict[str, Any]:
    """Keep the options that were given on the command line; the preset decides the others."""
    return {name: value for name, value in options.items() if value is not None}
