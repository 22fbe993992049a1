"""Experiments: runs in folders, sweeps, the figures of the paper and the claims they decide."""
