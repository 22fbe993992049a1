"""Seeds in the lanes of the vector unit learn bit for bit what they learn alone, with every option."""

import copy
import math
from typing import Any

import numpy as np
import pytest

from oal.base import seeding
from oal.lab.figures import OPTIONS
from oal.tabular import algorithm2, lanes, mdp, vectors
from oal.tabular import slots as memory
from oal.tabular.fastmath import exponentials, jit, uniform
from oal.tabular.learner import TabularOAL
from oal.tabular.ledger import settle_box
from oal.tabular.sampler import Sampler
from oal.tabular.seeds import learn_seeds, learn_together
from oal.tabular.slots import Rules

# Vectors against scalars ----------------------------------------------------------------------------------------------


@jit
def _compute(x, y, places, out):
    for i in range(len(x)):
        a, b = vectors.load(x, i), vectors.load(y, i)
        c = (a + b) * a - 2.0 / b
        c += vectors.minimum(vectors.maximum(a, b), 0.5)
        c -= vectors.square_root(b) / 3.0
        c *= vectors.exponential(vectors.minimum(a, 0.0))
        c = c + vectors.gather(y, 1, places, i, 2) - vectors.where_zero(places, i, a, vectors.splat(7.0))
        vectors.store(out, i, c)
    for i in range(len(x)):
        vectors.scatter_add(out, 1, places, i, vectors.load(x, i))
    vectors.scatter(out, 0, places, 0, vectors.load(y, 0))


def test_a_lane_computes_what_a_scalar_does(rng):
    x, y, out = (vectors.rows(9) for _ in range(3))
    x[:], y[:] = rng.normal(scale=30.0, size=x.shape), rng.exponential(size=y.shape)
    x[0, :3] = 0.0, -0.0, -np.inf
    places = vectors.rows(9, dtype=np.int64)
    places[:] = rng.integers(0, 4, places.shape)
    _compute(x, y, places, out)
    expected = np.empty_like(out)
    power = np.empty(1)
    for i, lane in np.ndindex(x.shape):
        a, b = float(x[i, lane]), float(y[i, lane])
        c = (a + b) * a - 2.0 / b
        c += min(max(a, b), 0.5)
        c -= math.sqrt(b) / 3.0
        exponentials(np.array([min(a, 0.0)]), power)
        c *= power[0]
        place = places[i, lane]
        expected[i, lane] = c + y[1 + 2 * place, lane] - (a if place == 0 else 7.0)
    for i, lane in np.ndindex(x.shape):
        expected[1 + places[i, lane], lane] += x[i, lane]
    expected[places[0], np.arange(vectors.LANES)] = y[0]
    np.testing.assert_array_equal(out.view(np.int64), expected.view(np.int64))


@jit
def _draw(stream, out):
    for i in range(len(out)):
        vectors.store(out, i, vectors.uniforms(stream))


def test_lanes_draw_as_streams_do_alone():
    stream, out = vectors.rows(4, dtype=np.uint64), vectors.rows(50)
    alone = [seeding.sequence(seed, "tabular").generate_state(4, np.uint64) for seed in range(vectors.LANES)]
    stream[:] = np.transpose(alone)
    _draw(stream, out)
    for lane, own in enumerate(alone):
        np.testing.assert_array_equal(out[:, lane], [uniform(own) for _ in range(50)])
        np.testing.assert_array_equal(stream[:, lane], own)


def test_rows_fill_cache_lines():
    for dtype in (np.float64, np.int64):
        made = vectors.rows(3, 2, dtype=dtype, fill=2)
        assert made.shape == (3, 2, vectors.LANES)
        assert made.ctypes.data % 64 == 0
        assert (made == 2).all()


@pytest.mark.parametrize("entries", [1, 3, 4, 7, 31, 32, 33, 48, 95, 128])
def test_regret_is_summed_in_one_order(entries, rng):
    """Against the definition to rounding, and the lanes' sums against it to the last bit."""
    occupancy, total, expert, demonstrated = rng.random((4, entries))
    summed = total.copy()
    found = settle_box(occupancy, summed, expert, demonstrated, 3.0)
    np.testing.assert_array_equal(summed, total + occupancy)
    for value, other in zip(found, (expert, demonstrated), strict=True):
        assert value == pytest.approx(np.maximum(summed - 3.0 * other, 0.0).sum(), rel=1e-13)
    sums = vectors.rows(2 * lanes.TERMS)
    whole = entries // lanes.TERMS * lanes.TERMS
    for i, term in enumerate(np.maximum(summed - 3.0 * expert, 0.0)):
        sums[i % lanes.TERMS if i < whole else lanes.TERMS + i - whole] += term
    lanes.fold(sums, entries - whole)
    assert (sums[0] == found[0]).all()


# Learners -------------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "chain": mdp.chain(6, 0.1),
    "pooled": mdp.garnet(7, 3, 4, branching=4, seed=1, stationary=True),
    "changing": mdp.garnet(6, 2, 4, seed=1, stationary=False),
    "spawn": mdp.spawn(10, 3),
    "long rows": mdp.garnet(25, 2, 3, branching=20, seed=2, stationary=True),
    "one step": mdp.garnet(5, 2, 1, seed=3, stationary=True),
}
PAPER: dict[str, Any] = {"preset": "paper", "bonus_scale": 0.005}
SETTINGS: dict[str, dict[str, Any]] = {
    **OPTIONS,
    "hard cloning": {"preset": "paper", "bonus_scale": 0.0, "policy_start": "bc", "policy_step_scale": 30.0},
    "Bernstein, pooled": {**PAPER, "bonus": "bernstein", "pooled": None},
    "Bernstein, anytime": {**PAPER, "bonus": "bernstein", "anytime": True},
    "expert model and bonus": {**PAPER, "expert_model": True},
    "known start": {**PAPER, "initial": "known"},
    "first cost": {**PAPER, "initial_cost": 0.5},
    "known model": {"model": "known"},
    "known model, paper": {"model": "known", **PAPER},
    "no regret": {"regret": "none"},
}


def make(problem: mdp.FiniteMDP, seed: int, **settings: Any) -> TabularOAL:
    rng = seeding.generator(seed, "demonstrations")
    return TabularOAL(problem, mdp.sample(problem, mdp.expert_policy(problem), 3, rng=rng), seed=seed, **settings)


def known(learner: TabularOAL) -> dict[str, Any]:
    """Everything that a learner knows, whatever memory it lies in."""
    slots, ledger, rules = learner._slots, learner._ledger, learner._rules
    found: dict[str, Any] = {"policy": learner.policy, "average_policy": learner.average_policy, "cost": learner.cost}
    found |= {"stream": learner._stream, "totals": ledger.totals, "true_sum": ledger.occupancy_sum}
    found |= {"visited": learner.visited, "successors": learner.successors, "episodes": learner.episodes}
    found |= {"starts": slots.start_weight[: slots.counts[0]], "start_total": slots.start_total, "counts": slots.counts}
    if learner.exact_regret:
        found |= {"regret": learner.regret, "empirical_regret": learner.empirical_regret}
    for name in ("state", "logits", "expert", "occupancy", "Q", "V", "mass"):
        values = getattr(slots, name)
        found[name] = np.concatenate([values[b : b + n] for b, n in zip(slots.base, slots.counts, strict=False)])
    for h in range(1 if rules.pooled else rules.horizon):
        for j in range(slots.counts[h]):
            row = slots.base[h] + j
            for name in ("visits", "inverse", "root"):
                found[f"{name} {h} {j}"] = getattr(slots, name)[row]
            for a in range(rules.n_actions):
                start, count = slots.edge_start[row, a], slots.edge_count[row, a]
                edges = slots.edge_to[start : start + count], slots.edge_weight[start : start + count]
                order = np.argsort(edges[0]) if rules.n_states <= 2 else slice(None)  # two in any order add up alike
                found[f"edges {h} {j} {a}"] = np.stack(edges)[:, order]
    return found


def assert_same(one: TabularOAL, other: TabularOAL) -> None:
    expected, found = known(one), known(other)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # bytes, so that 0.0 is not -0.0
        assert np.asarray(value).tobytes() == np.asarray(found[name]).tobytes(), name


@pytest.fixture
def runs(monkeypatch):
    """How many seeds ran in lanes, run by run."""
    found, enter = [], lanes.enter

    def counted(rules, truth, slots, *rest):
        found.append(len(slots))
        return enter(rules, truth, slots, *rest)

    monkeypatch.setattr(lanes, "enter", counted)
    return found


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_seed_in_a_lane_learns_what_it_learns_alone(problem, settings, runs):
    if settings.get("pooled") and not problem.stationary:
        pytest.skip("the dynamics depend on the step")
    together = [make(problem, seed, **settings) for seed in range(3)]
    learn_together(together, 40)
    assert runs == [3]
    for seed, learner in enumerate(together):
        alone = make(problem, seed, **settings).learn(40)
        assert_same(alone, learner)
        if seed == 1:  # and goes on as if it had been alone
            alone.learn(20, planned=60)
            learner.learn(20, planned=60)
            assert_same(alone, learner)


def test_first_costs_of_every_entry(runs, rng):
    problem = PROBLEMS["changing"]
    first = rng.random(problem.shape)
    learners = [make(problem, seed, initial_cost=first, **PAPER) for seed in range(2)]
    learn_together(learners, 30)
    assert runs == [2]
    for seed, learner in enumerate(learners):
        assert_same(make(problem, seed, initial_cost=first, **PAPER).learn(30), learner)


def test_demonstrations_may_know_transitions_that_the_truth_does_not(runs):
    problem = PROBLEMS["changing"]
    rng = np.random.default_rng(0)
    shown = mdp.Trajectories(rng.integers(0, 6, (40, 4)), rng.integers(0, 2, (40, 4)))
    expert = mdp.expert_policy(problem)
    settings = {"expert_model": True, "expert": expert, **PAPER}
    learners = [TabularOAL(problem, shown, seed=seed, **settings) for seed in range(2)]
    learn_together(learners, 30)
    assert runs == [2]
    for seed, learner in enumerate(learners):
        assert_same(TabularOAL(problem, shown, seed=seed, **settings).learn(30), learner)


@pytest.mark.parametrize("states, actions", [(2500, 2), (1500, 3), (1200, 4), (1100, 5), (900, 6)])
@pytest.mark.parametrize("settings", [{"model": "known"}, PAPER, {}], ids=["known model", "bonus", "pooled"])
def test_many_slots_are_updated_in_blocks_to_the_same_bits(settings, states, actions):
    """Lanes have one way for all sizes; alone, a learner with many slots takes another, compiled by its actions."""
    problem = mdp.garnet(states, actions, 4, seed=1, stationary=settings != PAPER)
    learners = [make(problem, seed, **settings) for seed in range(2)]
    for learner in learners:
        learner._slots = memory.reserve(learner._slots, learner._rules, states)
    alone = copy.deepcopy(learners[0])
    assert alone._slots.base[-1] * actions > algorithm2.LARGE
    learn_together(learners, 12)
    assert_same(alone.learn(12), learners[0])


ALONE: dict[str, dict[str, Any]] = {
    "l2": {"cost_set": "l2"},
    "simplex": {"cost_set": "simplex"},
    "decomposed": {"decompose": True},
    "trajectories": {"keep_trajectories": True},
}


@pytest.mark.parametrize("settings", ALONE.values(), ids=ALONE)
def test_what_the_lanes_do_not_take_learns_alone(settings, runs):
    problem = PROBLEMS["pooled"]
    learners = [make(problem, seed, **settings) for seed in range(2)]
    learn_together(learners, 20)
    assert runs == []
    for seed, learner in enumerate(learners):
        assert_same(make(problem, seed, **settings).learn(20), learner)


def test_large_problems_and_samplers_learn_alone(runs):
    large = mdp.garnet(20_000, 2, 4, seed=1, stationary=True, reachable=30)
    lake = mdp.from_gymnasium("FrozenLake-v1", 8)
    shown = mdp.sample(lake, mdp.expert_policy(lake), 3, rng=seeding.generator(0, "demonstrations"))
    learners = [make(large, seed) for seed in range(2)]
    sampled = [TabularOAL(Sampler("FrozenLake-v1", 8, max_episode_steps=9), shown, seed=seed) for seed in range(2)]
    learn_together([*learners, *sampled], 5)
    assert runs == []
    assert [learner.episodes for learner in (*learners, *sampled)] == [5] * 4
    np.testing.assert_array_equal(learners[1].regret, make(large, 1).learn(5).regret)


def test_only_the_same_problem_rules_and_episodes_share_lanes(runs):
    chain, other = PROBLEMS["chain"], mdp.chain(6, 0.2)
    ahead = make(chain, 4).learn(5, planned=20)
    learners = [make(chain, 0), make(other, 1), make(chain, 2), make(chain, 3, bonus_scale=0.1), ahead, make(other, 5)]
    learn_together(learners, 20)
    assert runs == [2, 2]
    assert_same(make(chain, 2).learn(20), learners[2])
    assert_same(make(other, 5).learn(20), learners[5])
    assert_same(make(chain, 3, bonus_scale=0.1).learn(20), learners[3])
    assert_same(make(chain, 4).learn(20), ahead)


def test_more_seeds_than_lanes_in_the_seeds_order(runs):
    problem = PROBLEMS["chain"]
    found = learn_seeds(lambda seed: make(problem, seed), range(11), 30, threads=1)
    assert runs == [8, 3]
    np.testing.assert_array_equal(found, [make(problem, seed).learn(30).regret for seed in range(11)])


def test_seeds_are_shared_out_among_threads_before_lanes(runs):
    learn_seeds(lambda seed: make(PROBLEMS["chain"], seed), range(6), 5, threads=2)
    assert sorted(runs) == [3, 3]


def test_lanes_know_every_rule():
    """A rule that is new has to be obeyed in the lanes too, or refused by `lanes.fit`; then it belongs in this list."""
    assert set(Rules._fields) == {
        *("n_states", "n_actions", "horizon", "pooled", "model_known", "initial_known", "bonus", "bonus_scale"),
        *("delta", "anytime", "planned_episodes", "policy_step", "cost_step", "cost_set", "cost_low", "cost_width"),
        *("default_cost", "features", "expert_features", "models"),
    }
