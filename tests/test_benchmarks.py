"""The benchmark's own arithmetic: operations counted, results merged, ratios and minutes read off."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oal import demos
from oal.deep import nets
from oal.deep.costs import NeuralConfig, cost_player
from oal.deep.mdpo import MDPOConfig, init_mdpo, mdpo_update
from oal.deep.mirror import MirrorConfig, init_mirror, mirror_update
from oal.deep.players import Shapes
from oal.deep.replay import Batch, Pairs
from oal.deep.sac import SACConfig, init_sac, sac_update

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


SHAPES = Shapes("continuous", 17, 6)
ROWS = 32


def batch(columns: int = 0, experts: int = 0) -> Batch:
    observation, successor = np.zeros((2, ROWS, 17), np.float32)
    action, nothing = np.zeros((ROWS, 6), np.float32), np.zeros(ROWS, np.float32)
    following = action[:experts] if experts else None
    return Batch(observation, action, nothing, successor, nothing, np.zeros((ROWS, columns), np.float32), following)


def noise(draws: int) -> np.ndarray:
    return np.zeros((draws, ROWS, 6), np.float32)


def product_flops(function: Any, *arguments: Any) -> float:
    """Add up 2 m n k over all matrix products of a traced function, also those inside calls."""

    def count(jaxpr: Any) -> float:
        total = 0.0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                (contracted, _), _ = equation.params["dimension_numbers"]
                left = equation.invars[0].aval.shape
                inner = np.prod([left[axis] for axis in contracted])
                total += 2.0 * float(np.prod(equation.outvars[0].aval.shape)) * float(inner)
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    total += count(value.jaxpr)
                elif hasattr(value, "eqns"):
                    total += count(value)
        return total

    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_counter_of_products_counts_a_product():
    assert product_flops(lambda a, b: jax.jit(jnp.matmul)(a, b), jnp.ones((3, 5)), jnp.ones((5, 7))) == 2 * 3 * 5 * 7


def test_flops_of_sac_are_those_of_its_update():
    import flops

    config = SACConfig(hidden=(64, 32), batch_size=ROWS)
    found = product_flops(
        lambda state: sac_update(state, batch(), jnp.float32(0.0), noise(2), shapes=SHAPES, config=config),
        jax.eval_shape(lambda: init_sac(0, SHAPES, config)[0]),
    )
    assert found == flops.sac(17, 6, config.hidden, ROWS)


@pytest.mark.parametrize("frozen_critic", [False, True])
def test_flops_of_mdpo_are_those_of_its_update(frozen_critic):
    import flops

    # without layer norm, whose sums are written as products but are not work that the ceiling bounds
    config = MDPOConfig(hidden=(64, 32), batch_size=ROWS, frozen_critic=frozen_critic)
    cost = NeuralConfig(hidden=(20, 10))
    player = cost_player(cost).sized(17, 6, config.gamma)
    pairs = Pairs(np.zeros((4, 17), np.float32), np.zeros((4, 6), np.float32), np.ones(4, np.float32))

    def update(state, view):
        costs, absorbing = player(view, batch())
        return mdpo_update(state, batch()._replace(cost=costs), absorbing, noise(1), shapes=SHAPES, config=config)

    state = jax.eval_shape(lambda: init_mdpo(0, SHAPES, config)[0])
    view = jax.eval_shape(lambda: player.init(0, pairs).view)
    assert product_flops(update, state, view) == flops.mdpo(17, 6, config.hidden, ROWS, cost.hidden)


@pytest.mark.parametrize("experts", [0, 8])
@pytest.mark.parametrize("columns", [0, 24], ids=["uniform", "clones"])
def test_flops_of_mirror_descent_are_those_of_its_update(columns, experts, monkeypatch):
    import flops

    # without layer norm, see above
    for name in ("critic_bound", "critic_regression"):
        plain = getattr(nets, name)
        monkeypatch.setattr(nets, name, lambda *parts, layer_norm, plain=plain, **more: plain(*parts, **more))
    config, rows = MirrorConfig(hidden=(64, 32), batch_size=ROWS), batch(columns, experts)
    found = product_flops(
        lambda state: mirror_update(state, rows, jnp.float32(0.0), noise(2), shapes=SHAPES, config=config),
        jax.eval_shape(lambda: init_mirror(0, SHAPES, config)[0]),
    )
    assert found == flops.mirror(17, 6, config.hidden, ROWS, experts=experts)
    charged = flops.mirror(17, 6, config.hidden, ROWS, (20, 10), experts=experts)
    assert charged - found == 2.0 * ROWS * (23 * 20 + 20 * 10 + 10)
    walked = flops.mirror(17, 6, config.hidden, ROWS, (20, 10), experts=experts, n_steps=3)
    assert walked - found == 3.0 * (charged - found)


def test_every_player_of_the_update_benchmark_takes_its_rows():
    import update_worker

    for init, block, work, given in update_worker.players().values():
        assert work > 0.0
        state = jax.eval_shape(lambda init=init: init(0))
        _, _, metrics = jax.eval_shape(block, *state, *given(2))
        assert "critic_loss" in metrics


def test_ratio_of_pairs_with_spread():
    import common

    # not the ratio of medians: each repetition is compared with its own partner
    assert common.ratios([10.0, 30.0, 20.0], [5.0, 10.0, 20.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    with pytest.raises(ValueError, match="zip"):
        common.ratios([1.0], [1.0, 2.0])


def test_entry_against_a_peer():
    import common

    rates, memory = {"oal": [200.0, 300.0], "sbx": [100.0, 100.0]}, {"oal": [5.2, 7.9], "sbx": [9.0, 8.0]}
    entry = common.against(rates, memory, "sbx", name="n", aim=1.5)
    assert entry["ratio"] == {"median": 2.5, "min": 2.0, "max": 3.0}
    assert entry["peak_memory_megabytes"] == {"oal": 8, "sbx": 9}
    assert (entry["name"], entry["aim"], entry["repeats"]) == ("n", 1.5, 2)


def test_reason_has_no_paths():
    import common

    text = "Traceback\n  File x\nImportError: cannot load /a/b-c/lib.so (/d/e.py) needs glibc 2.38"
    assert common.reason(text) == "ImportError: cannot load needs glibc 2.38"
    assert common.reason("") == "no message"


def test_a_part_replaces_its_own_entries_only(tmp_path):
    import results

    path = tmp_path / "results.json"
    assert results.read(path) == []
    first = results.merged([], "sac", [{"name": "a"}, {"name": "b"}], {"commit": "one"})
    first = results.merged(first, "tabular", [{"name": "t"}], {"commit": "one"})
    second = results.merged(first, "sac", [{"name": "c"}], {"commit": "two"})
    assert [(entry["name"], entry["provenance"]["commit"]) for entry in second] == [("t", "one"), ("c", "two")]
    parts = ("tabular", "update", "sac")
    assert [entry["part"] for entry in results.ordered(first, parts)] == ["tabular", "sac", "sac"]
    results.write(path, second, results.missing(second, parts, ["sac"]))
    assert results.read(path) == second


def test_missing_names_what_is_not_there_and_what_is_under_way():
    import results

    entries = results.merged([], "sac", [{"name": "a"}], {})
    assert results.missing(entries, ("tabular", "sac"), []) == ["tabular"]
    assert results.missing(entries, ("tabular", "sac"), ["sac", "wallclock"]) == ["tabular", "sac", "wallclock"]
    complete = results.merged(entries, "tabular", [{"name": "t"}], {})
    assert results.missing(complete, ("tabular", "sac"), []) == []


def test_old_results_without_parts_are_left_behind(tmp_path):
    import results

    path = tmp_path / "results.json"
    path.write_text('{"results": [{"name": "old"}, {"name": "new", "part": "sac"}]}')
    assert [entry["name"] for entry in results.read(path)] == ["new"]


def entry(median: float, **more: Any) -> dict[str, Any]:
    ratio = {"median": median, "min": median, "max": median}
    return {"part": "p", "name": "n", "unit": "ms", "oal": ratio, "ratio": ratio, **more}


def test_verdicts_and_rows():
    import results

    assert results.verdict(entry(1.6, aim=1.5)) == "at least 1.5: reached"
    assert results.verdict(entry(1.4, aim=1.5)) == "at least 1.5: not reached"
    assert results.verdict(entry(1.4, aim=1.5, smaller_is_better=True)) == "at most 1.5: reached"
    assert results.verdict(entry(1.4)) == ""
    shown, skipped = results.rows(
        [
            entry(1.5, provenance={"commit": "c"}, peak_memory_megabytes={"oal": 7}),
            {"part": "p", "name": "s", "skipped": "why"},
        ]
    )
    assert shown == ["n", "1.5", "1.5 to 1.5", "", "ms: oal 1.5; peak MB: oal 7"]
    assert skipped == ["s", "skipped", "", "", "why"]
    same = [entry(1.0, differs="d"), {**entry(1.0, differs="d"), "name": "m"}, entry(1.0)]
    assert results.notes(same) == ["n; m: d."]


def test_a_peer_that_fails_is_skipped_and_ours_is_not():
    import common
    import deep

    def works():
        return {"steps_per_second": 2.0, "peak_memory_megabytes": 1.0}

    def fails():
        raise common.WorkerError("it does not run here")

    about = [("oal", name, {"name": f"against {name}"}) for name in ("sbx", "tianshou")]
    first, second = deep.compared({"oal": works, "sbx": works, "tianshou": fails}, about, 2)
    assert first["ratio"]["median"] == 1.0
    assert first["repeats"] == 2
    assert second == {"name": "against tianshou", "skipped": "it does not run here"}
    with pytest.raises(common.WorkerError):
        deep.compared({"oal": fails, "sbx": works}, about, 1)


def test_parts_and_groups(monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])  # the script adds its own folder
    import run

    assert run.chosen(None) == list(run.DEFAULT)
    assert "wallclock" not in run.DEFAULT
    assert run.chosen(["wallclock", "sac"]) == ["sac", "wallclock"]
    assert run.chosen(["deep", "sac"]) == [part for part in run.DEFAULT if part not in run.TABULAR]


def test_the_figure_of_exploration_is_timed_by_a_part_of_its_seeds():
    import tabular

    (entry,) = tabular.figure_of_exploration(seeds=8, episodes=5)
    # 28 cells of 400 seeds and 18 of 100, of which a fiftieth ran
    assert entry["name"].startswith("the figure of exploration, 13,000 runs: 50 times the processor seconds of 8 seeds")
    assert entry["ratio"]["median"] == pytest.approx(entry["oal"]["median"] / 480)
    assert 0 < entry["oal"]["median"] < 480


def test_minutes_to_the_expert():
    import wallclock

    curve = [{"seconds": 60.0, "normalised": 0.5}, {"seconds": 150.0, "normalised": 0.93}]
    assert wallclock.normalised(50.0, expert=100.0, random=-100.0) == 0.75
    assert wallclock.minutes_to(curve, 0.9, 10.0) == (2.5, True)
    assert wallclock.minutes_to(curve, 0.95, 10.0) == (10.0, False)
    assert wallclock.minutes_to(curve, 0.9, 2.4) == (2.4, True)
    assert wallclock.minutes_to(curve, 0.9, 2.0) == (2.0, False)


def test_minutes_of_a_learner_that_never_arrives_count_in_full():
    import wallclock

    def curve(learner: str, seconds: float, level: float) -> dict[str, Any]:
        points = [{"seconds": seconds, "step": 1, "return": 0.0, "normalised": level}]
        return {"environment": "E", "learner": learner, "peak_memory_megabytes": 1, "curve": points}

    curves = [curve("OAL-neural", 120.0, 0.95), curve("imitation GAIL + PPO", 600.0, 0.3)]
    (against_ppo,) = wallclock.entries(curves, {}, 10.0)
    assert against_ppo["ratio"]["median"] == 5.0
    assert against_ppo["reached"] == {"oal": 1, "imitation": 0}


def test_curves_over_minutes_go_on_where_they_were_stopped(monkeypatch, tmp_path):
    import wallclock

    asked = []

    def work(_: Any, __: str, **options: Any) -> dict[str, Any]:
        asked.append((options["env"], options["cost"]))
        points = [{"seconds": 60.0, "step": 10, "return": 5.0}]
        return {"curve": points, "peak_memory_megabytes": 1.0}

    monkeypatch.setattr(wallclock, "work", work)
    monkeypatch.setattr(wallclock, "task", lambda env_id, _: {"demos": env_id, "expert": 10.0, "random": 0.0})

    def measure(learner: str, minutes: float = 2.0, trajectories: int = 1) -> list[dict[str, Any]]:
        asked = {"minutes": minutes, "trajectories": trajectories, "seeds": 1}
        return wallclock.measure(env_ids=["E"], learners=[learner], out=tmp_path, resume=True, **asked)[0]

    measure("OAL-neural")
    measure("OAL-neural")
    assert asked == [("E", "neural")]
    both = measure("OAL-linear")
    assert [(curve["learner"], curve["curve"][0]["normalised"]) for curve in both] == [
        ("OAL-neural", 0.5),
        ("OAL-linear", 0.5),
    ]
    assert (tmp_path / "curves.csv").read_text().splitlines()[1:] == [
        "E,OAL-neural,0,1.0,10,5.0,0.5",
        "E,OAL-linear,0,1.0,10,5.0,0.5",
    ]
    assert (tmp_path / "arrivals.csv").read_text().splitlines()[1:] == [
        "E,OAL-neural,0,not in 2,0.5,10",
        "E,OAL-linear,0,not in 2,0.5,10",
    ]
    assert [curve["minutes"] for curve in measure("OAL-neural", minutes=3.0)] == [3.0], "other minutes, other curves"
    (other,) = measure("OAL-neural", minutes=3.0, trajectories=4)
    assert other["demonstrations"] == 4, "other demonstrations, other curves"


def test_a_profile_tells_kinds_of_operations_apart():
    from profile_update import operations

    x, narrow = jnp.ones((256, 256)), jnp.ones((256, 12))
    program = jax.jit(lambda x, y: (jnp.maximum(x @ x, 0.0), x.T @ x, x @ y, jnp.tanh(y))).lower(x, narrow).compile()
    found = list(operations(program.as_text()).values())
    work = {kind: sum(each.flops for each in found if each.kind == kind) for kind in {each.kind for each in found}}
    assert work == {
        "other 256 x 256 products": pytest.approx(2 * 256**3),
        "gradients of 256 x 256 weights": pytest.approx(2 * 256**3),
        "products with a narrow side": pytest.approx(2 * 256 * 256 * 12),
        "elementwise, 256 x 256": 0.0,
        "elementwise, smaller": 0.0,
    }


# OAL against the field -----------------------------------------------------------------------------------------------


def test_peers_run_once_for_every_task_learner_and_seed_and_go_on_where_they_stopped(tmp_path, monkeypatch):
    import field

    asked = []

    def work(python, script, **options):
        asked.append((options["env"], options["algorithm"], options["player"], options["seed"], options["until"]))
        if options["algorithm"] == "airl":
            raise field.WorkerError("it does not run here: no")
        return {"curve": [{"step": 10, "return": 5.0, "seconds": 1.0}, {"step": 20, "return": 8.0, "seconds": 2.0}]}

    monkeypatch.setattr(field, "work", work)
    monkeypatch.setattr(field, "install", lambda name: name)
    monkeypatch.setattr(field, "scale_of", lambda env_id, folder, out: (tmp_path / env_id, 10.0, 0.0))
    learners = ["imitation GAIL + SAC", "imitation GAIL + PPO", "imitation AIRL + SAC"]

    def run(seeds: int):
        options = {"env_ids": ["E", "F"], "learners": learners, "seeds": seeds, "steps": 20, "on_policy_steps": 50}
        return field.run_peers(tmp_path, **options)

    rows, skipped = run(1)
    assert skipped == {"imitation AIRL + SAC": "it does not run here: no"}
    assert asked.count(("E", "airl", "off", 0, 20)) == 1
    assert ("F", "gail", "on", 0, 50) in asked
    assert len(rows) == 2 * 2 * 2
    asked.clear()
    rows, _ = run(2)
    assert {each[3] for each in asked if each[1] != "airl"} == {1}, "what is in the file is not run again"
    assert [float(curve.values[-1]) for curve in field.curves_of_rows(field.read_rows(tmp_path / "field.csv"))] == [
        0.8
    ] * 8


def test_the_field_is_one_table_and_one_picture_of_runs_and_peers(tmp_path):
    import field

    from made_runs import made_clone, make_run
    from oal import report
    from oal.deep.bc import BCConfig
    from oal.errors import InputError
    from oal.lab.run import CloneConfig

    for seed in range(3):
        make_run(tmp_path / "runs" / f"neural-{seed}", seed=seed, bc_config=None)
        make_run(
            tmp_path / "runs" / f"dac-{seed}", seed=seed, cost="dac", policy="sac", bc_config={"updates": 1}, top=0.4
        )
        made_clone(tmp_path / "runs" / f"bc-{seed}", CloneConfig("Hopper-v5", BCConfig(), seed=seed), 0.3)
    make_run(tmp_path / "runs" / "one", trajectories=1, bc_config=None)
    make_run(tmp_path / "runs" / "paper", preset="paper", bc_config=None)
    ours = field.curves_of_runs(report.read([tmp_path / "runs"]).runs)
    assert sorted({curve.learner for curve in ours}) == ["oal BC", "oal DAC + SAC, cloned", "oal OAL, neural + MDPO"]
    row = {"environment": "Hopper-v5", "learner": "imitation GAIL + SAC", "expert_return": 10, "random_return": 0}
    peers = [
        row | {"seed": seed, "step": step, "return": 10 * level}
        for seed in range(3)
        for step, level in ((5_000, 0.2), (20_000, 0.5 + 0.01 * seed))
    ]
    rows = field.write(tmp_path, [*ours, *field.curves_of_rows(peers)], {})
    assert [each["learner"] for each in rows] == [
        *("oal OAL, neural + MDPO", "imitation GAIL + SAC", "oal DAC + SAC, cloned", "oal BC"),
    ], "the best first"
    of = {each["learner"]: each for each in rows}
    assert of["imitation GAIL + SAC"]["final evaluation"] == pytest.approx(0.51)
    assert of["imitation GAIL + SAC"]["low"] == pytest.approx(0.51 - 4.303 * 0.01 / 3**0.5, abs=2e-3)
    assert of["imitation GAIL + SAC"]["steps to 90% (median)"] == "never"
    assert of["oal OAL, neural + MDPO"]["seeds at 90%"] == 3
    assert of["oal BC"]["steps"] == 0
    written = (tmp_path / "field.svg").read_text()
    assert all(each["learner"] in written for each in rows)
    assert (tmp_path / "field-table.csv").exists()
    with pytest.raises(InputError, match="nothing to compare"):
        field.write(tmp_path, [], {})


def test_a_curve_over_steps_has_a_point_after_each_multiple():
    import imitation_worker

    clock = imitation_worker.StepClock(until=100, every=30)
    for step in (10, 29, 35, 40, 59, 61, 95, 101):
        clock(step, lambda step=step: float(step))
        if clock.stop:
            break
    assert [point["step"] for point in clock.result()["curve"]] == [35, 61, 95, 101]


def test_the_tasks_of_exploration_have_experts_that_random_steps_do_not_find():
    import exploration

    from oal.demos.record import record_demos
    from oal.envs import UniformPolicy, describe, evaluate, make

    for task, expert in exploration.TASKS.items():
        env = make(task)
        random = evaluate(task, UniformPolicy(describe(env)).act, episodes=5, seed=0).mean_return
        env.close()
        earned = float(record_demos(task, expert, episodes=5, seed=0).returns.mean())
        assert earned > random + 3.0, task


def test_what_optimism_adds_is_paired_over_seeds():
    import exploration

    rows = [
        {"task": "Maze-v0", "start": "scratch", "critics": critics, "seed": seed, "step": step, "share": share}
        for seed in range(3)
        for critics, add in (("two critics", 0.0), ("four, pessimistic", 0.1), ("four, optimistic", 0.4))
        for step, share in ((0, 9.0), (1_000, 0.1 * seed + add), (2_000, 0.1 * seed + add))
    ]
    (row,) = exploration.table(rows)
    assert (row["task"], row["seeds"], row["two critics"]) == ("Maze-v0", 3, 0.1)
    assert (row["optimism adds"], row["half width"], row["optimism matters"]) == (0.3, 0.0, "yes")
    for each in rows:
        each["share"] = 0.5
    assert exploration.table(rows)[0]["optimism matters"] == "no"


def test_critics_are_set_beside_what_whole_episodes_went_on_to_pay(tmp_path):
    import critics

    from oal import OAL, demos

    settings = {"policy.hidden": (8,), "policy.batch_size": 8, "replay.warmup_steps": 100, "cost.hidden": (8,)}
    learner = OAL("InvertedPendulum-v5", demos.load("InvertedPendulum-v5")[:1], settings={**settings, "bc": None})
    learner.learn(600)
    learner.save(tmp_path / "checkpoint.safetensors")
    first, every, shown = critics.compare(tmp_path, 4)
    assert (shown["where"], shown["episodes"]) == ("demonstrations", 1)
    assert (first["where"], first["episodes"], first["steps"]) == ("first step", 4, 600)
    memory, paid, starts = learner.memory, [], []
    begun = [t for t in range(600) if memory.times[t] == 0][-5:]
    for start, stop in pairwise(begun):
        rows = memory.unpack(memory.rows[start:stop])
        assert rows.terminated[-1], "a pole that a fresh policy holds falls"
        cost = np.asarray(learner.cost_player(learner.cost.view, rows).cost)
        paid += [sum(0.99**j * c for j, c in enumerate(cost[t:])) for t in range(len(cost))]
        starts.append(paid[-len(cost)])
    assert every["paid"] == pytest.approx(np.mean(paid), rel=1e-4)
    assert first["paid"] == pytest.approx(np.mean(starts), rel=1e-4)
    assert critics.costs_to_go(np.array([1.0, 2.0]), 4.0, 0.5).tolist() == [3.0, 4.0]


def test_widths_are_shares_of_how_much_the_actions_vary(monkeypatch):
    """The clone's own width, undone: dimension by dimension."""
    import widths

    from oal.deep import bc

    monkeypatch.setattr(bc, "unseen_error", lambda *_, **__: np.array([0.02]))
    shown = demos.load("InvertedPendulum-v5")[:1]
    assert widths.widths("InvertedPendulum-v5", shown, updates=1) == pytest.approx(
        0.02 / (shown[0].actions.std(axis=0) / 3.0), rel=1e-3
    )
