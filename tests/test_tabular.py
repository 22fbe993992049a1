"""Algorithm 2's kernel against its plain transcription, and the facts users rely on."""

import numpy as np
import pytest

from oal.base import seeding
from oal.errors import InputError
from oal.tabular import mdp as mdps
from oal.tabular.costsets import CostSet
from oal.tabular.learner import PRESETS, TabularOAL, behavioural_cloning, settings_for
from oal.tabular.mdp import FiniteMDP, Trajectories
from oal.tabular.sampler import Sampler
from oal.tabular.seeds import learn_seeds
from reference import ReferenceOAL

OPTIONS = [
    {},
    {"bonus_scale": 0.0},
    {"bonus_scale": 0.01, "policy_step_scale": 10.0, "cost_step_scale": 5.0},
    {"bonus_scale": 0.02, "anytime": True, "policy_step_scale": 20.0},
    {"bonus_scale": 0.05, "bonus": "bernstein", "policy_step_scale": 20.0},
    {"bonus_scale": 0.01, "pooled": True, "policy_step_scale": 20.0},
    {"bonus_scale": 0.01, "expert_model": True, "policy_step_scale": 20.0},
    {"bonus_scale": 0.01, "expert_model": True, "pooled": True, "bonus": "bernstein", "anytime": True},
    {"bonus_scale": 0.01, "policy_start": "bc", "bc_smoothing": 0.1, "policy_step_scale": 20.0},
    {"bonus_scale": 0.01, "policy_start": "bc", "policy_step_scale": 20.0},
    {"bonus_scale": 0.01, "initial": "known", "policy_step_scale": 20.0},
]


def random_problem(rng: np.random.Generator, *, stationary: bool, demos: int = 4):
    H, S, A = (int(x) for x in (rng.integers(2, 6), rng.integers(2, 7), rng.integers(2, 4)))
    p = rng.dirichlet(np.full(S, 0.3), size=(S, A) if stationary else (H, S, A))
    p[rng.random(p.shape) < 0.3] = 0
    p[..., 0] += 1e-3
    p /= p.sum(-1, keepdims=True)
    expert = rng.dirichlet(np.full(A, 0.3), size=(H, S))
    problem = FiniteMDP.dense(
        p, rng.dirichlet(np.ones(S)), horizon=H if stationary else None, expert=expert / expert.sum(-1, keepdims=True)
    )
    return problem, mdps.sample(problem, problem.expert, demos, rng=rng)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "theorem")
@pytest.mark.parametrize("kind", ["box", "l2", "simplex"])
@pytest.mark.parametrize("known", [False, True], ids=["estimated", "known"])
def test_kernel_equals_the_transcription_episode_by_episode(rng, options, kind, known):
    for stationary in (True,) if options.get("pooled") else (False, True):
        problem, demos = random_problem(rng, stationary=stationary)
        features = None if kind == "box" else rng.uniform(-1, 1, size=(problem.n_states, 3))
        cost_set = CostSet(kind, problem.shape, features)
        K = 40
        learner = TabularOAL(
            problem,
            demos,
            cost_set=cost_set,
            preset="paper",
            model="known" if known else "estimated",
            seed=3,
            **options,
        )
        reference = ReferenceOAL(
            problem,
            demos,
            settings_for("paper", **options),
            cost_set,
            K=K,
            known=known,
            expert=problem.expert,
            stream=seeding.sequence(3, "tabular").generate_state(4, np.uint64),
        )
        for _ in range(K):
            learner.learn(1, planned=K)
            reference.episode()
            # A known model is held over what can be reached: elsewhere the policy does not matter and stays uniform.
            mass = mdps.occupancy(problem, np.full(problem.shape, 1 / problem.n_actions)).sum(-1) > 0
            where = mass if known else np.ones_like(mass)
            np.testing.assert_allclose(learner.policy[where], reference.pi[where], atol=1e-10, rtol=0)
            np.testing.assert_allclose(learner.cost, cost_set.cost(reference.x), atol=1e-10, rtol=0)
            np.testing.assert_allclose(learner.regret[-1], reference.regret[-1], atol=1e-10, rtol=1e-12)
            np.testing.assert_allclose(
                learner.empirical_regret[-1], reference.empirical_regret[-1], atol=1e-10, rtol=1e-12
            )


@pytest.mark.parametrize("initial_cost", [0.0, 0.4, 1.0, "array"])
def test_initial_cost_is_where_the_costs_start(rng, initial_cost):
    problem, demos = random_problem(rng, stationary=False)
    start = rng.random(problem.shape) if initial_cost == "array" else initial_cost
    learner = TabularOAL(problem, demos, preset="paper", bonus_scale=0.01, initial_cost=start)
    np.testing.assert_allclose(learner.cost, np.broadcast_to(start, problem.shape))
    reference = ReferenceOAL(
        problem,
        demos,
        settings_for("paper", bonus_scale=0.01),
        CostSet("box", problem.shape),
        K=30,
        initial_cost=start,
        expert=problem.expert,
        stream=seeding.sequence(0, "tabular").generate_state(4, np.uint64),
    )
    learner.learn(30)
    for _ in range(30):
        reference.episode()
    np.testing.assert_allclose(learner.policy, reference.pi, atol=1e-10)
    np.testing.assert_allclose(learner.cost, reference.x, atol=1e-10)


def test_same_seed_same_run_whatever_the_threads(rng):
    problem, _ = random_problem(rng, stationary=False)

    def make(seed):
        demos = mdps.sample(problem, problem.expert, 5, rng=seeding.generator(seed, "demos"))
        return TabularOAL(problem, demos, seed=seed)

    one = learn_seeds(make, range(6), 300, threads=1)
    many = learn_seeds(make, range(6), 300, threads=4)
    np.testing.assert_array_equal(one, many)
    assert len({float(curve[-1]) for curve in one}) == 6, "different seeds must give different runs"


def test_learning_in_parts_equals_learning_at_once(rng):
    problem, demos = random_problem(rng, stationary=False)
    once = TabularOAL(problem, demos, preset="paper", bonus_scale=0.01).learn(200)
    parts = TabularOAL(problem, demos, preset="paper", bonus_scale=0.01)
    for _ in range(4):
        parts.learn(50, planned=200)
    np.testing.assert_array_equal(once.regret, parts.regret)
    np.testing.assert_array_equal(once.policy, parts.policy)


@pytest.mark.parametrize("kind", ["box", "l2"])
def test_saved_and_loaded_goes_on_as_if_never_stopped(rng, tmp_path, kind):
    problem, demos = random_problem(rng, stationary=False)
    options = {"cost_set": kind, "preset": "default", "keep_trajectories": True, "decompose": True}
    whole = TabularOAL(problem, demos, **options).learn(100)
    half = TabularOAL(problem, demos, **options).learn(60)
    half.save(tmp_path / "half.npz")
    resumed = TabularOAL.load(tmp_path / "half.npz", problem).learn(40)
    np.testing.assert_array_equal(whole.regret, resumed.regret)
    np.testing.assert_array_equal(whole.policy, resumed.policy)
    np.testing.assert_array_equal(whole.trajectories.states, resumed.trajectories.states)


def test_a_file_that_is_not_a_learner_is_refused(tmp_path, rng):
    problem, demos = random_problem(rng, stationary=False)
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"not a zip file at all")
    with pytest.raises(InputError, match=r"junk\.npz"):
        TabularOAL.load(junk, problem)
    TabularOAL(problem, demos).learn(5).save(tmp_path / "good.npz")
    data = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cut\.npz"):
        TabularOAL.load(tmp_path / "cut.npz", problem)
    with pytest.raises(InputError, match="learned in mdp of shape"):
        TabularOAL.load(tmp_path / "good.npz", mdps.chain(4, 0.1))


def test_time_and_memory_follow_what_is_visited_not_the_number_of_states():
    counts = []
    for n_states in (60, 20_000):
        problem = mdps.garnet(n_states, 2, 6, branching=2, seed=1, reachable=30)
        expert = mdps.expert_policy(problem)
        demos = mdps.sample(problem, expert, 5, rng=np.random.default_rng(0))
        learner = TabularOAL(problem, demos, regret="none", bonus_scale=0.0).learn(400)
        counts.append(learner.visited)
        kept = sum(array.nbytes for array in learner._slots if isinstance(array, np.ndarray))
        assert kept < 2_000_000
    # The step sizes depend on S, so the runs differ; what they visit is bounded by what can be reached.
    assert max(counts) <= 6 * 30


def test_large_sparse_mdp_equals_the_same_mdp_small():
    """The hashed table of places and the direct one give the same run (all that depends on S is switched off)."""
    curves = []
    for n_states in (30, 50_000):
        problem = mdps.garnet(n_states, 2, 6, branching=2, seed=1, reachable=30)
        place = np.flatnonzero(np.asarray(problem.cost).any((0, 2)))
        demos = mdps.sample(problem, mdps.expert_policy(problem), 5, rng=np.random.default_rng(0))
        scale = np.sqrt(30 / n_states)
        learner = TabularOAL(problem, demos, bonus_scale=0.0, preset="paper", cost_step_scale=scale).learn(300)
        curves.append((learner.regret, place.size))
    assert curves[0][1] == curves[1][1] == 30
    np.testing.assert_allclose(np.sort(curves[0][0]), np.sort(curves[1][0]), rtol=0.2)


def test_successors_counts_the_different_transitions_that_were_seen(rng):
    problem, demos = random_problem(rng, stationary=False)
    learner = TabularOAL(problem, demos, preset="paper", keep_trajectories=True).learn(5)
    seen = set()
    for states, actions in zip(learner.trajectories.states, learner.trajectories.actions, strict=True):
        seen |= {(h, states[h], actions[h], states[h + 1]) for h in range(len(states) - 1)}
    assert learner.successors == len(seen)


def test_unvisited_states_are_uniform_and_have_the_default_cost(rng):
    problem, demos = random_problem(rng, stationary=False)
    learner = TabularOAL(problem, demos, initial_cost=0.25).learn(3)
    seen = np.zeros(problem.shape[:2], dtype=bool)
    for h, (first, count) in enumerate(zip(learner._slots.base, learner._slots.counts, strict=False)):
        seen[h, learner._slots.state[first : first + count]] = True
    assert learner.visited == seen.sum()
    np.testing.assert_array_equal(learner.cost[~seen], 0.25)
    np.testing.assert_allclose(learner.policy[~seen], 1 / problem.n_actions)


def test_oal_learns_to_imitate():
    problem = mdps.gridworld(4, horizon=12, slip=0.1)
    demos = mdps.sample(problem, mdps.expert_policy(problem), 200, rng=np.random.default_rng(0))
    learner = TabularOAL(problem, demos, seed=0).learn(4000)
    late = (learner.regret[-1] - learner.regret[-401]) / 400
    d_expert = mdps.occupancy(problem, mdps.expert_policy(problem))
    uniform_gap = learner.cost_set.support(mdps.occupancy(problem, mdps.uniform_policy(problem)) - d_expert)
    cloned = behavioural_cloning(demos[:10], problem.shape)
    assert late < 0.05 * uniform_gap
    assert late < learner.cost_set.support(mdps.occupancy(problem, cloned) - d_expert)
    true_cost = problem.cost
    expert = mdps.value(problem, mdps.expert_policy(problem), true_cost)
    uniform = mdps.value(problem, mdps.uniform_policy(problem), true_cost)
    for policy in (learner.policy, learner.average_policy):
        assert mdps.value(problem, policy, true_cost) < expert + 0.3 * (uniform - expert)


def test_samples_only_learning_reads_no_table(monkeypatch):
    import gymnasium

    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    problem = mdps.from_gymnasium("FrozenLake-v1", 12, is_slippery=False)
    demos = mdps.sample(problem, mdps.expert_policy(problem), 20, rng=np.random.default_rng(0))

    class NoTable:
        def __getattr__(self, name):
            raise AssertionError("the transition table was read")

    step = env.unwrapped.step
    table = env.unwrapped.P

    def step_with_table(action):
        env.unwrapped.P = table
        try:
            return step(action)
        finally:
            env.unwrapped.P = NoTable()

    monkeypatch.setattr(env.unwrapped, "step", step_with_table)
    env.unwrapped.P = NoTable()
    learner = TabularOAL(Sampler(env, 12), demos, seed=1)
    learner.learn(600)
    assert learner.episodes == 600
    gap = mdps.value(problem, learner.policy, problem.cost) - mdps.value(
        problem, mdps.expert_policy(problem), problem.cost
    )
    assert gap < 0.2, "the learner should reach the goal about as often as the expert"


def test_samples_and_table_give_the_same_learner_from_the_same_episodes(rng):
    """Feeding the table's episodes through a scripted environment ends in the same policy."""
    problem, demos = random_problem(rng, stationary=False)
    table = TabularOAL(problem, demos, pooled=False, keep_trajectories=True, seed=5).learn(50)

    class Script:
        spec = None

        def __init__(self):
            self.episodes = iter(zip(table.trajectories.states, table.trajectories.actions, strict=True))

    sampler = Sampler.__new__(Sampler)
    sampler.name, sampler.horizon, sampler.n_states, sampler.n_actions = "script", *problem.shape
    script = Script()
    sampler.episode = lambda act, seed=None: next(script.episodes)
    sampled = TabularOAL(sampler, demos, pooled=False, seed=5).learn(50)
    np.testing.assert_array_equal(table.policy, sampled.policy)


def test_environment_that_cuts_off_early_is_an_error():
    import gymnasium

    env = gymnasium.make("FrozenLake-v1", max_episode_steps=5)
    demos = Trajectories(np.zeros((1, 10), dtype=int), np.zeros((1, 10), dtype=int))
    with pytest.raises(InputError, match="cut the episode off after 5 steps but the horizon is 10"):
        TabularOAL(env, demos, horizon=10).learn(20)


def test_predict_follows_the_policy(rng):
    problem, demos = random_problem(rng, stationary=False)
    learner = TabularOAL(problem, demos).learn(100)
    action, state = learner.predict(0, 1, deterministic=True)
    assert state is None
    assert action == np.argmax(learner.policy[1, 0])
    draws = [learner.predict(0, 1, rng=rng)[0] for _ in range(2000)]
    np.testing.assert_allclose(np.bincount(draws, minlength=problem.n_actions) / 2000, learner.policy[1, 0], atol=0.06)


def test_behavioural_cloning_counts_and_is_uniform_elsewhere():
    demos = Trajectories(np.array([[0, 1], [0, 1], [0, 2]]), np.array([[0, 1], [1, 1], [0, 0]]))
    policy = behavioural_cloning(demos, (2, 3, 2))
    np.testing.assert_allclose(policy[0], [[2 / 3, 1 / 3], [0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(policy[1], [[0.5, 0.5], [0, 1], [1, 0]])


def test_callback_can_stop_the_learning(rng):
    problem, demos = random_problem(rng, stationary=False)
    learner = TabularOAL(problem, demos).learn(1000, callback=lambda learner: learner.episodes < 200)
    assert learner.episodes == 200
    assert len(learner.regret) == 200


BAD = [
    ({"cost_set": "ball"}, "cost set 'ball' is unknown"),
    ({"preset": "mine"}, "preset 'mine' is unknown"),
    ({"model": "guessed"}, "model 'guessed' is unknown"),
    ({"bonus": "ucb"}, "bonus 'ucb' is unknown"),
    ({"bonus_size": 1.0}, "setting 'bonus_size' is unknown"),
    ({"bonus_scale": -1.0}, "bonus_scale is -1.0"),
    ({"bonus_scale": float("nan")}, "bonus_scale is nan"),
    ({"delta": 0.0}, "delta is 0.0"),
    ({"initial_cost": 2.0}, "initial_cost is 2.0"),
    ({"initial_cost": np.full((1, 2), 0.5)}, "initial cost has the shape"),
    ({"seed": -1}, "seed is -1"),
    ({"cost_set": "l2", "features": np.ones((2, 2)) * 3}, r"features"),
    ({"cost_set": "box", "features": np.ones((2, 2))}, "takes no features"),
]


@pytest.mark.parametrize("options,message", BAD, ids=[message for _, message in BAD])
def test_bad_options_are_refused_by_name(options, message):
    problem = mdps.chain(4, 0.1)
    demos = mdps.sample(problem, problem.expert, 2, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match=message):
        TabularOAL(problem, demos, **options)


def test_one_model_for_all_steps_is_refused_where_the_dynamics_change():
    problem = mdps.spawn(5)
    demos = mdps.sample(problem, problem.expert, 2, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="depend on the step"):
        TabularOAL(problem, demos, pooled=True)


def test_zero_episodes_are_refused():
    problem = mdps.chain(4, 0.1)
    demos = mdps.sample(problem, problem.expert, 2, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="number of episodes is 0"):
        TabularOAL(problem, demos).learn(0)
    with pytest.raises(InputError, match="number of episodes is 0"):
        mdps.sample(problem, problem.expert, 0, rng=np.random.default_rng(0))


def test_demonstrations_of_another_mdp_are_refused():
    short = Trajectories(np.zeros((2, 3), dtype=int), np.zeros((2, 3), dtype=int))
    with pytest.raises(InputError, match="demonstrations have 3 steps but the horizon of chain"):
        TabularOAL(mdps.chain(4, 0.1), short)
    other = Trajectories(np.full((2, 4), 7), np.zeros((2, 4), dtype=int))
    with pytest.raises(InputError, match="hold the state 7 but chain"):
        TabularOAL(mdps.chain(4, 0.1), other)


def test_presets_are_what_the_documentation_says():
    paper = PRESETS["paper"]
    assert (paper.bonus, paper.bonus_scale, paper.policy_step_scale, paper.cost_step_scale) == ("hoeffding", 1, 1, 1)
    assert (paper.anytime, paper.pooled, paper.expert_model, paper.policy_start) == (False, False, False, "uniform")
