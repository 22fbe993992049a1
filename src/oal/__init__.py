"""Online apprenticeship learning (say "owl"): policies as good as the expert for every cost in a set.

`import oal` is quick: modules and the names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from oal import demos, envs, linear, tabular
    from oal.base.runtime import set_device
    from oal.deep import callbacks
    from oal.deep.bc import BC
    from oal.deep.certificate import certify, imitation_distance
    from oal.deep.learned_cost import LearnedCost
    from oal.deep.loop import GAIL, OAL
    from oal.deep.policy import Policy
    from oal.errors import InputError
    from oal.lab import run as training
    from oal.linear import LinearMDP, LinearOAL
    from oal.tabular import TabularOAL, mdp, regret
    from oal.tabular import compare as prior
    from oal.tabular.costsets import CostSet
    from oal.tabular.mdp import FiniteMDP

_MODULES = {
    "callbacks": "deep.callbacks",
    "demos": "demos",
    "envs": "envs",
    "linear": "linear",
    "mdp": "tabular.mdp",
    "prior": "tabular.compare",
    "regret": "tabular.regret",
    "tabular": "tabular",
    "training": "lab.run",
}
_NAMES = {
    "BC": "deep.bc",
    "GAIL": "deep.loop",
    "OAL": "deep.loop",
    "CostSet": "tabular.costsets",
    "FiniteMDP": "tabular.mdp",
    "InputError": "errors",
    "LearnedCost": "deep.learned_cost",
    "LinearMDP": "linear.problem",
    "LinearOAL": "linear.learner",
    "Policy": "deep.policy",
    "TabularOAL": "tabular.learner",
    "certify": "deep.certificate",
    "imitation_distance": "deep.certificate",
    "set_device": "base.runtime",
}

__all__ = [
    "BC",
    "GAIL",
    "OAL",
    "CostSet",
    "FiniteMDP",
    "InputError",
    "LearnedCost",
    "LinearMDP",
    "LinearOAL",
    "Policy",
    "TabularOAL",
    "__version__",
    "callbacks",
    "certify",
    "demos",
    "envs",
    "imitation_distance",
    "linear",
    "mdp",
    "prior",
    "regret",
    "set_device",
    "tabular",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"oal.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(import_module(f"oal.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'oal' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
