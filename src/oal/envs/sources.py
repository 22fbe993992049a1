"""Where environments come from: an id, "module:Name-v0", "module:function", "path/to/file.py:function", a function."""

import inspect
import os
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

from oal.errors import InputError, import_module_of

EnvSource = str | Callable[[], gym.Env]


def allow_current_folder() -> None:
    """Let modules in the current folder be imported: for a command whose user has typed the name of one.

    It comes last: a gymnasium.py that lies there is not the library.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def resolved(source: str) -> str | Callable[..., gym.Env]:
    """Return what makes the environment that a text names: an id of Gymnasium's, or a function of a module or file."""
    where, colon, name = source.rpartition(":")
    if not colon:
        if source.endswith(".py"):
            raise InputError(
                f"environment '{source}' is a file: name the function in it that makes the environment, as "
                f"{source}:make_env"
            )
        return source
    if where.endswith(".py"):
        module = _module_of_file(source, where)
    else:
        import_module_of(source)
        if name in gym.registry or _unversioned(name) in map(_unversioned, gym.registry):
            return source
        module = sys.modules[where]
    made_by: Any = getattr(module, name, None)
    if made_by is None:
        raise InputError(
            f"environment '{source}': {where} has no function '{name}', and registers no environment of that name"
        )
    if not callable(made_by):
        raise InputError(f"environment '{source}': '{name}' is a {type(made_by).__name__}: it must be a function")
    return cast("Callable[..., gym.Env]", made_by)


def call(source: Callable[..., gym.Env], *, render_mode: str | None = None) -> gym.Env:
    """Make an environment by a function, with a render mode if it takes one."""
    if render_mode is not None:
        try:
            takes = inspect.signature(source).parameters
        except (TypeError, ValueError):
            takes = {}
        if "render_mode" in takes:
            return source(render_mode=render_mode)
    return source()


def _unversioned(name: str) -> str:
    return name.rpartition("-v")[0] or name


def _module_of_file(source: str, where: str) -> Any:
    """Run a Python file once and return it as a module; what it imports from its own folder is found."""
    path = Path(where).resolve()
    name = f"oal_environment_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise InputError(f"environment '{source}': there is no file {where} in {Path.cwd()}")
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise InputError(
            f"environment '{source}': {where} cannot be imported "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error
    return module
