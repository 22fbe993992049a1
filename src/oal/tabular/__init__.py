"""Tabular online apprenticeship learning: Algorithm 2 of the paper, exact regret, and the baselines before it."""

from oal.tabular.learner import Settings, TabularOAL, behavioural_cloning, settings_for
from oal.tabular.sampler import Sampler
from oal.tabular.seeds import learn_seeds

__all__ = ["Sampler", "Settings", "TabularOAL", "behavioural_cloning", "learn_seeds", "settings_for"]
