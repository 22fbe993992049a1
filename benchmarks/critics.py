"""Do the critics know what episodes cost? What they say, beside what a run's newest episodes went on to pay.

    python benchmarks/critics.py RUN ... [--episodes 10] [--out FOLDER]

For runs of the default preset. Costs are the present ones, discounted; an episode that was cut off ends with the
critics' own word. Three places: the first step of the newest whole episodes, all their steps, and the demonstrations,
where whole transitions of them are known. A value far below what is paid is one that the policy runs after in vain.
With --out, critics.csv and critics.json are written.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np

from oal.base import console, files, runtime
from oal.base.provenance import provenance


def costs_to_go(cost: np.ndarray, after: float, gamma: float) -> np.ndarray:
    """Return what is paid from each step on, with what comes after the last."""
    found = np.empty(len(cost))
    for t in reversed(range(len(cost))):
        after = found[t] = cost[t] + gamma * after
    return found


def compare(run: Path, episodes: int) -> list[dict]:
    """Return a row for the first steps, one for all steps of the newest whole episodes, and the demonstrations'."""
    from oal import OAL
    from oal.deep import nets
    from oal.deep.mirror import Mirror
    from oal.envs.absorbing import absorbing_value
    from oal.errors import InputError

    learner = OAL.load(run / "checkpoint.safetensors")
    player, memory = learner.player, learner.memory
    if not isinstance(player, Mirror) or learner.cost is None:
        raise InputError(f"{run}: only runs of the default preset, with a learned cost, have these critics")
    kind = "continuous" if learner.spec.kind == "continuous" else "discrete"

    def both(packed: np.ndarray) -> np.ndarray:
        """Rows of one episode -> what is paid from each step on, and what the critics say of it."""
        rows = memory.unpack(packed)
        cost, absorbing = learner.cost_player(learner.cost.view, rows)
        said = nets.critic_bound(player.state.critics, kind, rows.observation, rows.action, layer_norm=True)
        after = float(absorbing_value(absorbing, player.gamma)) if rows.terminated[-1] else float(said[-1])
        return np.stack([costs_to_go(np.asarray(cost), after, player.gamma), np.asarray(said)])

    places = memory.newest(len(memory))
    starts = np.flatnonzero(memory.times[places] == 0)[-episodes - 1 :]
    played = [both(memory.rows[places[start:stop]]) for start, stop in pairwise(starts)]
    rows, shown = learner.expert.rows, []
    if len(rows) == len(learner.expert.time):  # of subsampled ones there are pairs, and no transitions
        ends = np.append(np.flatnonzero(learner.expert.time == 0), len(rows))
        shown = [both(rows[start:stop]) for start, stop in pairwise(ends)]
    learner.close()
    where = {"first step": [each[:, :1] for each in played], "all steps": played, "demonstrations": shown}
    about = {"run": run.name, "task": learner.spec.env_id, "steps": learner.step}
    found = []
    for name, parts in where.items():
        if parts:
            paid, said = np.concatenate(parts, axis=1).mean(axis=1)
            found.append({**about, "where": name, "episodes": len(parts), "paid": paid, "critics": said})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runtime.set_threads(1)
    rows = [row for run in options.runs for row in compare(run, options.episodes)]
    shown = [[*list(row.values())[1:5], f"{row['paid']:.1f}", f"{row['critics']:.1f}"] for row in rows]
    console.table("Cost to go", list(rows[0])[1:], shown)
    if options.out is not None:
        files.write_csv(options.out / "critics.csv", rows)
        files.write_json(options.out / "critics.json", provenance())


if __name__ == "__main__":
    main()
