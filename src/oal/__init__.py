"""Online apprenticeship learning (say "owl"): policies as good as the expert for every cost in a set.

`import oal` is quick: modules and the names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from oal import demos, envs, mdp, prior, regret, tabular
    from oal.costsets import CostSet
    from oal.errors import InputError
    from oal.mdp import FiniteMDP
    from oal.tabular import TabularOAL

_MODULES = ("demos", "envs", "mdp", "prior", "regret", "tabular")
_NAMES = {"CostSet": "costsets", "FiniteMDP": "mdp", "InputError": "errors", "TabularOAL": "tabular"}

__all__ = [
    "CostSet",
    "FiniteMDP",
    "InputError",
    "TabularOAL",
    "__version__",
    "demos",
    "envs",
    "mdp",
    "prior",
    "regret",
    "tabular",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"oal.{name}")
    if name in _NAMES:
        return getattr(import_module(f"oal.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'oal' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
