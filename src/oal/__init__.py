"""Online apprenticeship learning (say "owl"): policies as good as the expert for every cost in a set.

`import oal` is quick: modules and the names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from oal import callbacks, demos, envs, mdp, prior, regret, tabular, training
    from oal.bc import BC
    from oal.certificate import certify
    from oal.costsets import CostSet
    from oal.errors import InputError
    from oal.learned import LearnedCost
    from oal.learner import GAIL, OAL
    from oal.mdp import FiniteMDP
    from oal.policy import Policy
    from oal.tabular import TabularOAL

_MODULES = ("callbacks", "demos", "envs", "mdp", "prior", "regret", "tabular", "training")
_NAMES = {
    "BC": "bc",
    "GAIL": "learner",
    "OAL": "learner",
    "CostSet": "costsets",
    "FiniteMDP": "mdp",
    "InputError": "errors",
    "LearnedCost": "learned",
    "Policy": "policy",
    "TabularOAL": "tabular",
    "certify": "certificate",
}

__all__ = [
    "BC",
    "GAIL",
    "OAL",
    "CostSet",
    "FiniteMDP",
    "InputError",
    "LearnedCost",
    "Policy",
    "TabularOAL",
    "__version__",
    "callbacks",
    "certify",
    "demos",
    "envs",
    "mdp",
    "prior",
    "regret",
    "tabular",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"oal.{name}")
    if name in _NAMES:
        return getattr(import_module(f"oal.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'oal' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
