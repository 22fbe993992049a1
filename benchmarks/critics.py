"""Do the critics know what episodes cost? What they say, beside what the newest whole episodes of a run went on to pay.

    python benchmarks/critics.py RUN ... [--episodes 10] [--out FOLDER]

For runs of the default preset. Costs are the present ones, discounted; an episode that was cut off ends with the critics'
own word. Two places: the first step of episodes, and all their steps. A value below what is paid is one that the policy
runs after in vain. With --out, critics.csv and critics.json are written.
"""

import argparse
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
    """Return a row for the first steps and one for all steps of the newest whole episodes."""
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
    places = memory.newest(len(memory))
    starts = np.flatnonzero(memory.times[places] == 0)[-episodes - 1 :]
    paid, said = [], []
    for start, stop in zip(starts, starts[1:], strict=False):
        rows = memory.unpack(memory.rows[places[start:stop]])
        cost, absorbing = learner.cost_player(learner.cost.view, rows)
        says = nets.critic_bound(player.state.critics, kind, rows.observation, rows.action, layer_norm=True)
        ended = bool(rows.terminated[-1])
        after = float(absorbing_value(absorbing, player.gamma)) if ended else float(says[-1])
        paid.append(costs_to_go(np.asarray(cost), after, player.gamma))
        said.append(np.asarray(says))
    learner.close()
    about = {"run": run.name, "task": learner.spec.env_id, "steps": learner.step, "episodes": len(paid)}
    where = {"first step": [each[:1] for each in paid], "all steps": paid}
    critics = {"first step": [each[:1] for each in said], "all steps": said}
    return [
        {**about, "where": name, "paid": np.concatenate(found).mean(), "critics": np.concatenate(critics[name]).mean()}
        for name, found in where.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runtime.set_threads(1)
    rows = [row for run in options.runs for row in compare(run, options.episodes)]
    console.table("Cost to go", list(rows[0]), [list(row.values()) for row in rows])
    if options.out is not None:
        files.write_csv(options.out / "critics.csv", rows)
        files.write_json(options.out / "critics.json", provenance())


if __name__ == "__main__":
    main()
