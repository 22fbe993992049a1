"""Compute with rliable what `oal.report.statistics` computes, as the numbers its tests compare with.

rliable is no dependency of oal: run this in an environment of its own.

    python -m venv rliable && rliable/bin/pip install rliable 'pandas<3'
    rliable/bin/python tools/rliable_reference.py > tests/rliable_reference.json
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from rliable import library, metrics

SEED = 7
REPLICATIONS = 2_000
LONG = 20_000
PAIR_REPLICATIONS = 500
THRESHOLDS = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1]
ESTIMATORS = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "inter-quartile mean": metrics.aggregate_iqm,
    "optimality gap": metrics.aggregate_optimality_gap,
}


def make_scores() -> dict[str, np.ndarray]:
    """Return scores [seeds, tasks] of three algorithms: even and odd numbers of seeds, draws, scores above 1."""
    rng = np.random.default_rng(0)
    rounded = np.round(rng.normal(0.7, 0.3, size=(4, 5)), 1)
    return {
        "three seeds": rng.normal(0.9, 0.2, size=(3, 5)),
        "five seeds": rng.normal(0.6, 0.4, size=(5, 5)),
        "draws": np.concatenate([rounded, rounded[:2]]),
    }


def intervals(scores, estimator, replications: int) -> list[float]:
    """Return value, low and high. rliable draws from NumPy's global generator, whatever random state it is given."""
    np.random.seed(SEED)  # noqa: NPY002
    value, limits = library.get_interval_estimates(
        {"it": scores}, lambda *each: np.array([estimator(*each)]), reps=replications
    )
    return [float(value["it"][0]), float(limits["it"][0][0]), float(limits["it"][1][0])]


def main() -> None:
    scores = make_scores()
    pairs = [("three seeds", "five seeds"), ("five seeds", "draws"), ("draws", "three seeds"), ("draws", "draws")]
    np.random.seed(SEED)  # noqa: NPY002
    profiles, bands = library.create_performance_profile(
        {"five seeds": scores["five seeds"]}, np.array(THRESHOLDS), reps=REPLICATIONS
    )
    reference = {
        "made by": "tools/rliable_reference.py",
        "versions": {name: version(name) for name in ("rliable", "arch", "numpy", "scipy")},
        "seed": SEED,
        "replications": REPLICATIONS,
        "long": LONG,
        "pair replications": PAIR_REPLICATIONS,
        "scores": {name: value.tolist() for name, value in scores.items()},
        "aggregates": {
            name: {key: intervals(value, estimator, REPLICATIONS) for key, estimator in ESTIMATORS.items()}
            for name, value in scores.items()
        },
        "long aggregates": {
            name: {key: intervals(value, estimator, LONG) for key, estimator in ESTIMATORS.items()}
            for name, value in scores.items()
        },
        "improvement": [
            {
                "first": first,
                "second": second,
                "interval": intervals(
                    [scores[first], scores[second]], metrics.probability_of_improvement, PAIR_REPLICATIONS
                ),
            }
            for first, second in pairs
        ],
        "profile": {
            "algorithm": "five seeds",
            "thresholds": THRESHOLDS,
            "value": profiles["five seeds"].tolist(),
            "low": bands["five seeds"][0].tolist(),
            "high": bands["five seeds"][1].tolist(),
        },
    }
    json.dump(reference, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
