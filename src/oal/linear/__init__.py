"""Linear function approximation: linear MDPs of any number of states, and OGAP, ILARL and BRIG in them."""

from oal.linear.learner import LinearOAL, Settings, settings_for
from oal.linear.problem import Episodes, LinearMDP, anchored, one_hot

__all__ = ["Episodes", "LinearMDP", "LinearOAL", "Settings", "anchored", "one_hot", "settings_for"]
