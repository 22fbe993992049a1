"""Tabular online apprenticeship learning: Algorithm 2 of the paper, exact regret, and the algorithms before it."""

from oal.tabular.learner import Sampler, Settings, TabularOAL, behavioural_cloning, learn_seeds, settings_for

__all__ = ["Sampler", "Settings", "TabularOAL", "behavioural_cloning", "learn_seeds", "settings_for"]
