"""Online apprenticeship learning (say "owl"): policies as good as the expert for every cost in a set."""

__version__ = "0.1.0"
