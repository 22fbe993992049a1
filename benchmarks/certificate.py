"""How often is the certificate right? Three cases whose truth is known, many times: python benchmarks/certificate.py

A pole on a cart, linearised, is held upright by an expert. The learner is the expert itself (the verdict must be
"indistinguishable", but for one time in twenty), a clone with too little gain that falls, or one that holds the pole as
well and stands elsewhere. Writes docs/results/certificate/certificate.csv, and how it was made beside it.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oal.base import files, provenance
from oal.base.stats import mean_interval
from oal.deep.certificate import certify
from oal.deep.verdict import Certificate
from oal.demos import Trajectory
from oal.envs import EnvSpec

HORIZON = 15
SPEC = EnvSpec("Pole-v0", "continuous", 4, 1, (-3.0,), (3.0,), (1,), horizon=HORIZON)
NAMES = ["position cart", "velocity cart", "position pole", "velocity pole", "push"]
STEP, FALLEN = 0.15, 0.15
MOVES = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, -0.2, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.2, 6.0, 0.0]])
PUSHES = np.array([0.0, 1.0, 0.0, -1.0])
GAINS = np.array([1.0, 2.0, 22.0, 8.0])
"""The expert's: push = gains · (state - where it stands)."""


def episode(rng: np.random.Generator, *, gain: float = 1.0, stands: float = 0.0) -> Trajectory:
    """One episode of a policy with some share of the expert's gain; gain 0 pushes at random."""
    state = np.array([stands, 0.0, 0.0, 0.0]) + rng.normal(0.0, 0.03, 4)
    observations, actions = [state], []
    fallen = False
    while len(actions) < HORIZON and not fallen:
        push = gain * GAINS @ (state - [stands, 0.0, 0.0, 0.0]) + rng.normal(0.0, 0.1)
        push = float(np.clip(push if gain else rng.uniform(-3.0, 3.0), -3.0, 3.0))
        state = state + STEP * (MOVES @ state + PUSHES * push) + rng.normal(0.0, 0.01, 4)
        observations.append(state)
        actions.append([push])
        fallen = bool(abs(state[2]) > FALLEN)
    return Trajectory(np.array(observations, np.float32), np.array(actions, np.float32), None, fallen, not fallen)


class Case(NamedTuple):
    name: str
    learner: dict[str, float]
    held_out: int
    expected: str
    right: Callable[[Certificate], bool]


def falls(found: Certificate) -> bool:
    return found.sentence.startswith("unlike the expert: it ends after")


def stands_elsewhere(found: Certificate) -> bool:
    return "differs in where it stands: position cart" in found.sentence


def indistinguishable(found: Certificate) -> bool:
    return found.sentence.startswith("indistinguishable")


CASES = (
    Case("two experts", {}, 8, "indistinguishable", indistinguishable),
    Case("two experts, 4 held out", {}, 4, "indistinguishable", indistinguishable),
    Case("a clone that falls", {"gain": 0.05}, 8, "it ends after ... steps", falls),
    Case("one that stands elsewhere", {"stands": 0.5}, 8, "it stands: position cart", stands_elsewhere),
)


def judge(case: int, seed: int) -> dict[str, float]:
    """One repetition: whether the sentence is right, and which p-values are below 0.05."""
    _, learner, held_out, _, right = CASES[case]
    rng = np.random.default_rng([case, seed])
    mine = [episode(rng, **learner) for _ in range(8)]
    expert = [episode(rng) for _ in range(held_out)]
    found = certify(
        mine,
        expert,
        spec=SPEC,
        names=NAMES,
        random=[episode(rng, gain=0.0) for _ in range(6)],
        resamples=500,
        seed=seed,
    )
    return {
        "right": float(right(found)),
        "indistinguishable": float(indistinguishable(found)),
        **{measure.name: float(measure.p_value <= 0.05) for measure in found.measures},
    }


def main() -> None:
    """Repeat every case and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/results/certificate"))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(chosen.processes) as pool:
        for place, case in enumerate(CASES):
            found = list(pool.map(partial(judge, place), range(chosen.repetitions), chunksize=10))
            shares = {name: mean_interval([each[name] for each in found]) for name in found[0]}
            row = {"case": case.name, "expected": case.expected, "repetitions": chosen.repetitions}
            row |= {"right": f"{shares.pop('right').mean:.3f}"}
            row |= {name: f"{share.mean:.3f}" for name, share in shares.items()}
            rows.append(row)
            files.write_csv(chosen.out / "certificate.csv", rows)
            print(row, flush=True)
    files.write_json(chosen.out / "config.json", provenance.provenance())


if __name__ == "__main__":
    main()
