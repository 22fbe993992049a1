"""Finite MDPs against enumeration, laws on random MDPs, and the families against what they are said to be."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from scipy import stats

import bruteforce
from bruteforce import random_distributions, random_mdp
from oal import equations
from oal.errors import InputError
from oal.tabular import mdp as mdps
from oal.tabular.mdp import FiniteMDP, Trajectories

STATIONARY = pytest.mark.parametrize("stationary", [False, True], ids=["time-dependent", "stationary"])


def shuffled_rows(mdp: FiniteMDP, rng: np.random.Generator) -> FiniteMDP:
    """Store the same MDP otherwise: rows in another order, successors split in two, zeros kept."""
    indptr, successors, probabilities = [0], [], []
    for row in range(len(mdp.indptr) - 1):
        part = slice(mdp.indptr[row], mdp.indptr[row + 1])
        split = rng.random(part.stop - part.start)
        to = np.concatenate([mdp.successors[part], mdp.successors[part], [rng.integers(mdp.n_states)]])
        weight = np.concatenate([mdp.probabilities[part] * split, mdp.probabilities[part] * (1 - split), [0.0]])
        order = rng.permutation(len(to))
        successors.append(to[order])
        probabilities.append(weight[order])
        indptr.append(indptr[-1] + len(to))
    return FiniteMDP(
        horizon=mdp.horizon,
        n_states=mdp.n_states,
        n_actions=mdp.n_actions,
        initial=mdp.initial,
        indptr=np.array(indptr),
        successors=np.concatenate(successors),
        probabilities=np.concatenate(probabilities),
        stationary=mdp.stationary,
    )


# Exact passes against enumeration ------------------------------------------------------------------------------------


@STATIONARY
def test_occupancy_adds_up_the_trajectories(rng, stationary):
    for _ in range(5):
        mdp = random_mdp(rng, stationary=stationary)
        pi = random_distributions(rng, *mdp.shape)
        expected = bruteforce.occupancy(mdp.table(), pi, mdp.initial)
        np.testing.assert_allclose(mdps.occupancy(mdp, pi), expected, atol=1e-14)
        np.testing.assert_allclose(equations.occupancy(mdp.table(), pi, mdp.initial), expected, atol=1e-14)


@STATIONARY
def test_values_average_the_trajectories(rng, stationary):
    for _ in range(3):
        mdp = random_mdp(rng, stationary=stationary)
        pi, c = random_distributions(rng, *mdp.shape), rng.normal(size=mdp.shape)
        V, Q = bruteforce.values(mdp.table(), pi, c)
        for got_Q, got_V in (equations.action_values(mdp.table(), pi, c), mdps.evaluate(mdp, pi, c)[::-1]):
            np.testing.assert_allclose(got_V, V, atol=1e-13)
            np.testing.assert_allclose(got_Q, Q, atol=1e-13)
        assert mdps.value(mdp, pi, c) == pytest.approx(mdp.initial @ V[0], abs=1e-13)


@STATIONARY
def test_optimal_policy_is_the_best_of_all(rng, stationary):
    for _ in range(5):
        mdp = random_mdp(rng, 3, 2, 2, stationary=stationary)
        c = rng.normal(size=mdp.shape)
        p = mdp.table()
        best = np.min(
            [equations.action_values(p, pi, c)[1] for pi in bruteforce.deterministic_policies(3, 2, 2)], axis=0
        )
        policy, V = mdps.optimal_policy(mdp, c)
        np.testing.assert_allclose(V, best, atol=1e-13)
        np.testing.assert_allclose(mdps.evaluate(mdp, policy, c)[0], best, atol=1e-13)
        assert set(np.unique(policy)) == {0.0, 1.0}


def test_optimal_policy_takes_the_first_action_among_equals():
    mdp = mdps.garnet(5, 4, 3, seed=1)
    policy, V = mdps.optimal_policy(mdp, np.full(mdp.shape, 0.5))
    assert (policy.argmax(-1) == 0).all()
    np.testing.assert_allclose(V, np.array([1.5, 1.0, 0.5])[:, None] * np.ones(5))


@STATIONARY
def test_compiled_passes_equal_the_dense_equations_on_larger_mdps(rng, stationary):
    mdp = random_mdp(rng, 9, 40, 4, stationary=stationary)
    pi, c = random_distributions(rng, *mdp.shape), rng.normal(size=mdp.shape)
    p = mdp.table()
    np.testing.assert_allclose(mdps.occupancy(mdp, pi), equations.occupancy(p, pi, mdp.initial), atol=1e-13)
    Q, V = equations.action_values(p, pi, c)
    got_V, got_Q = mdps.evaluate(mdp, pi, c)
    np.testing.assert_allclose(got_V, V, atol=1e-12)
    np.testing.assert_allclose(got_Q, Q, atol=1e-12)


@STATIONARY
def test_the_way_rows_are_stored_does_not_matter(rng, stationary):
    dense = random_mdp(rng, 4, 6, 3, stationary=stationary)
    sparse = shuffled_rows(dense, rng)
    pi, c = random_distributions(rng, *dense.shape), rng.normal(size=dense.shape)
    np.testing.assert_allclose(sparse.table(), dense.table(), atol=1e-15)
    np.testing.assert_allclose(mdps.occupancy(sparse, pi), mdps.occupancy(dense, pi), atol=1e-14)
    for got, expected in zip(mdps.evaluate(sparse, pi, c), mdps.evaluate(dense, pi, c), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-13)
    np.testing.assert_allclose(mdps.optimal_policy(sparse, c)[1], mdps.optimal_policy(dense, c)[1], atol=1e-13)


def test_stationary_dynamics_are_the_same_at_every_step(rng):
    once = random_mdp(rng, 5, 4, 2, stationary=True)
    unrolled = FiniteMDP.dense(once.table(), once.initial)
    assert (once.layers, unrolled.layers) == (1, 5)
    pi, c = random_distributions(rng, *once.shape), rng.random(once.shape)
    np.testing.assert_allclose(mdps.occupancy(once, pi), mdps.occupancy(unrolled, pi), atol=1e-15)
    np.testing.assert_allclose(mdps.evaluate(once, pi, c)[1], mdps.evaluate(unrolled, pi, c)[1], atol=1e-14)


def test_policies_and_costs_without_steps_hold_at_every_step(rng):
    mdp = random_mdp(rng, 4, 3, 2)
    pi, c = random_distributions(rng, 3, 2), rng.random((3, 2))
    each = np.broadcast_to(pi, mdp.shape), np.broadcast_to(c, mdp.shape)
    assert mdps.value(mdp, pi, c) == pytest.approx(mdps.value(mdp, *each), abs=1e-15)
    np.testing.assert_array_equal(mdps.occupancy(mdp, pi), mdps.occupancy(mdp, each[0]))


def test_a_hundred_thousand_states_fit():
    mdp = mdps.garnet(100_000, 2, 4, branching=3, seed=0)
    kept = sum(array.nbytes for array in (mdp.indptr, mdp.successors, mdp.probabilities, mdp.transitions.cumulative))
    assert kept < 100e6
    d = mdps.occupancy(mdp, mdps.uniform_policy(mdp))
    np.testing.assert_allclose(d.sum((1, 2)), 1.0, atol=1e-12)
    with pytest.raises(InputError, match="use the sparse rows"):
        mdp.table()


# Laws on random MDPs -------------------------------------------------------------------------------------------------


@STATIONARY
def test_flow_is_conserved(rng, stationary):
    for _ in range(10):
        mdp = random_mdp(rng, 6, 7, 3, stationary=stationary)
        pi = random_distributions(rng, *mdp.shape)
        d = mdps.occupancy(mdp, pi)
        p = mdp.table()
        np.testing.assert_allclose(d[0].sum(-1), mdp.initial, atol=1e-14)
        for h in range(5):
            np.testing.assert_allclose(d[h + 1].sum(-1), np.einsum("sa,sat->t", d[h], p[h]), atol=1e-14)
        np.testing.assert_allclose(d, d.sum(-1, keepdims=True) * pi, atol=1e-14)


def test_value_is_the_inner_product_with_the_occupancy(rng):
    for _ in range(10):
        mdp = random_mdp(rng, 6, 7, 3)
        pi, c = random_distributions(rng, *mdp.shape), rng.normal(size=mdp.shape)
        assert mdps.value(mdp, pi, c) == pytest.approx(equations.inner(c, mdps.occupancy(mdp, pi)), abs=1e-12)


def test_values_are_monotone_and_linear_in_the_cost(rng):
    for _ in range(10):
        mdp = random_mdp(rng, 5, 6, 3)
        pi, c, more = random_distributions(rng, *mdp.shape), rng.normal(size=mdp.shape), rng.random(mdp.shape)
        V, Q = mdps.evaluate(mdp, pi, c)
        larger_V, larger_Q = mdps.evaluate(mdp, pi, c + more)
        assert (larger_V >= V).all()
        assert (larger_Q >= Q).all()
        np.testing.assert_allclose(larger_Q - Q, mdps.evaluate(mdp, pi, more)[1], atol=1e-12)
        assert (mdps.optimal_policy(mdp, c)[1] <= V + 1e-12).all()
        assert (mdps.optimal_policy(mdp, c + more)[1] >= mdps.optimal_policy(mdp, c)[1]).all()


def test_optimal_value_is_concave_in_the_cost(rng):
    mdp = random_mdp(rng, 5, 6, 3)
    for _ in range(20):
        a, b, t = rng.normal(size=mdp.shape), rng.normal(size=mdp.shape), rng.random()
        mixed = mdps.optimal_policy(mdp, t * a + (1 - t) * b)[1]
        assert (mixed >= t * mdps.optimal_policy(mdp, a)[1] + (1 - t) * mdps.optimal_policy(mdp, b)[1] - 1e-12).all()


def test_a_policy_is_recovered_from_its_occupancy(rng):
    mdp = random_mdp(rng, 5, 6, 3)
    pi = random_distributions(rng, *mdp.shape)
    d = mdps.occupancy(mdp, pi)
    recovered = mdps.policy_of_occupancy(d)
    reached = d.sum(-1) > 0
    np.testing.assert_allclose(recovered[reached], pi[reached], atol=1e-12)
    np.testing.assert_array_equal(recovered[~reached], 1 / 3)
    # The average of occupancies is the occupancy of a policy: what "mixed policies" rests on.
    other = mdps.occupancy(mdp, random_distributions(rng, *mdp.shape))
    average = (d + other) / 2
    np.testing.assert_allclose(mdps.occupancy(mdp, mdps.policy_of_occupancy(average)), average, atol=1e-13)


# Sampling ------------------------------------------------------------------------------------------------------------


@STATIONARY
def test_whole_trajectories_are_drawn_with_their_probabilities(rng, stationary):
    mdp = random_mdp(rng, 3, 3, 2, stationary=stationary)
    pi = random_distributions(rng, *mdp.shape)
    episodes = 100_000
    drawn = mdps.sample(mdp, pi, episodes, rng=rng)
    keys, counts = np.unique(np.concatenate([drawn.states, drawn.actions], 1), axis=0, return_counts=True)
    observed = {tuple(key): count for key, count in zip(keys.tolist(), counts, strict=True)}
    expected = {
        (*states, *actions): episodes * probability
        for probability, states, actions in bruteforce.all_trajectories(mdp.table(), pi, mdp.initial)
        if probability > 0
    }
    assert set(observed) <= set(expected), "a trajectory of probability zero was drawn"
    often = [key for key, count in expected.items() if count >= 5]
    f_obs = np.array([observed.get(key, 0) for key in often] + [episodes - sum(observed.get(k, 0) for k in often)])
    f_exp = np.array([expected[key] for key in often] + [episodes - sum(expected[key] for key in often)])
    kept = f_exp > 1e-6
    assert stats.chisquare(f_obs[kept], f_exp[kept], sum_check=False).pvalue > 1e-3


def test_sampled_frequencies_are_the_occupancy_where_rows_are_long(rng):
    """More than sixteen successors are found by bisection."""
    mdp = random_mdp(rng, 4, 60, 2)
    pi = random_distributions(rng, *mdp.shape)
    episodes = 200_000
    d = mdps.occupancy(mdp, pi)
    frequencies = mdps.sample(mdp, pi, episodes, rng=rng).occupancy(mdp.shape)
    assert (frequencies[d == 0] == 0).all()
    for h in range(4):
        often = episodes * d[h] >= 5
        f_obs, f_exp = episodes * frequencies[h][often], episodes * d[h][often]
        f_obs, f_exp = np.append(f_obs, episodes - f_obs.sum()), np.append(f_exp, episodes - f_exp.sum())
        kept = f_exp > 1e-6
        assert stats.chisquare(f_obs[kept], f_exp[kept], sum_check=False).pvalue > 1e-3


def test_sampling_repeats_with_its_seed_and_moves_on_with_its_generator(rng):
    mdp = random_mdp(rng, 5, 6, 3)
    pi = random_distributions(rng, *mdp.shape)
    generator = np.random.default_rng(1)
    first, second = (mdps.sample(mdp, pi, 50, rng=generator) for _ in range(2))
    again = mdps.sample(mdp, pi, 50, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(first.states, again.states)
    np.testing.assert_array_equal(first.actions, again.actions)
    assert (first.states != second.states).any()


def test_empirical_occupancy_counts_by_hand():
    demos = Trajectories(np.array([[0, 1], [0, 2], [1, 2], [0, 1]]), np.array([[0, 1], [1, 0], [0, 0], [0, 1]]))
    d = demos.occupancy((2, 3, 2))
    assert len(demos) == 4
    np.testing.assert_array_equal(d[0], [[0.5, 0.25], [0.25, 0], [0, 0]])
    np.testing.assert_array_equal(d[1], [[0, 0], [0, 0.5], [0.5, 0]])
    np.testing.assert_array_equal(demos[:2].states, [[0, 1], [0, 2]])


# Families ------------------------------------------------------------------------------------------------------------


def test_chain_is_the_one_of_the_paper():
    mdp = mdps.chain(horizon=6, alpha=0.2)
    p = mdp.table()
    assert mdp.shape == (6, 2, 2)
    assert mdp.stationary
    np.testing.assert_allclose(p[3], [[[0.8, 0.2], [0, 1]], [[0, 1], [0, 1]]])
    d = mdps.occupancy(mdp, mdps.expert_policy(mdp))
    np.testing.assert_allclose(d[:, 0, 0], 0.8 ** np.arange(6))
    np.testing.assert_allclose(d[..., 1], 0)


def test_spawn_is_the_one_of_the_paper():
    mdp = mdps.spawn(n_states=50, horizon=3)
    p = mdp.table()
    np.testing.assert_allclose(mdp.initial, 1 / 50)
    for s in range(50):
        np.testing.assert_array_equal(p[0, s, 0], np.eye(50)[0])
        np.testing.assert_array_equal(p[0, s, 1], np.eye(50)[s])
        np.testing.assert_array_equal(p[1, s, 0], np.eye(50)[s])
        np.testing.assert_array_equal(p[1, s, 1], np.eye(50)[s])
    d = mdps.occupancy(mdp, mdps.expert_policy(mdp))
    np.testing.assert_allclose(d[1:, 0, 0], 1.0)


@STATIONARY
def test_garnets_have_distinct_successors_and_repeat_with_their_seed(stationary):
    for branching, n_states in ((1, 1), (3, 3), (3, 4), (4, 20), (7, 50)):
        mdp = mdps.garnet(n_states, 2, 4, branching=branching, seed=3, stationary=stationary)
        rows = mdp.successors.reshape(-1, branching)
        assert all(len(set(row)) == branching for row in rows.tolist())
        again = mdps.garnet(n_states, 2, 4, branching=branching, seed=3, stationary=stationary)
        np.testing.assert_array_equal(mdp.successors, again.successors)
        np.testing.assert_array_equal(mdp.probabilities, again.probabilities)
        np.testing.assert_array_equal(mdp.cost, again.cost)
    other = mdps.garnet(50, 2, 4, branching=7, seed=4, stationary=stationary)
    assert (other.successors != mdp.successors).any()


@STATIONARY
def test_a_garnet_among_more_states_is_the_same_process(stationary, rng):
    small = mdps.garnet(12, 3, 5, seed=2, stationary=stationary)
    large = mdps.garnet(300, 3, 5, seed=2, stationary=stationary, reachable=12)
    assert (small.n_states, large.n_states) == (12, 300)
    assert mdps.value(small, mdps.uniform_policy(small), small.cost) == pytest.approx(
        mdps.value(large, mdps.uniform_policy(large), large.cost), abs=1e-13
    )
    d_small, d_large = (mdps.occupancy(mdp, mdps.expert_policy(mdp)) for mdp in (small, large))
    np.testing.assert_allclose(
        np.sort(d_large.reshape(5, -1), 1)[:, -36:], np.sort(d_small.reshape(5, -1), 1), atol=1e-14
    )
    reached = mdps.occupancy(large, mdps.uniform_policy(large)).sum((0, 2)) > 0
    assert reached.sum() <= 12
    aside = np.flatnonzero(~np.asarray(large.cost).any((0, 2)))
    p = large.table()
    np.testing.assert_array_equal(p[:, aside[:, None], :, aside[:, None]], 1.0)


def gridworld_step(rng, size, slip, walls, state, action):
    """One move in a grid, as the docstring tells it."""
    if state == size * size - 1:
        return state
    if rng.random() < slip:
        action = (action + rng.choice([-1, 1])) % 4
    row, column = divmod(state, size)
    row, column = {
        0: (row - 1, column),
        1: (row, column + 1),
        2: (row + 1, column),
        3: (row, column - 1),
    }[int(action)]
    inside = 0 <= row < size and 0 <= column < size and (row, column) not in walls
    return row * size + column if inside else state


def test_gridworld_moves_like_a_grid(rng):
    size, slip, walls = 3, 0.3, [(1, 1)]
    p = mdps.gridworld(size, slip=slip, walls=walls).table()[0]
    draws = 2000
    for state in range(9):
        for action in range(4):
            landed = [gridworld_step(rng, size, slip, walls, state, action) for _ in range(draws)]
            counts = np.bincount(landed, minlength=9)
            assert (counts[p[state, action] == 0] == 0).all()
            np.testing.assert_allclose(counts / draws, p[state, action], atol=5 * np.sqrt(0.25 / draws))


@pytest.mark.parametrize("size", [2, 4, 5])
def test_gridworlds_expert_takes_a_shortest_path(size):
    mdp = mdps.gridworld(size, slip=0.0)
    assert mdp.horizon == 4 * size
    assert mdps.value(mdp, mdps.expert_policy(mdp), mdp.cost) == pytest.approx(2 * (size - 1))
    walled = mdps.gridworld(3, 12, slip=0.0, walls=[(0, 1), (1, 1)])
    assert mdps.value(walled, mdps.expert_policy(walled), walled.cost) == pytest.approx(4)


TOY_TEXT = [
    ("FrozenLake-v1", {"is_slippery": True}),
    ("FrozenLake-v1", {"is_slippery": False, "map_name": "8x8"}),
    ("CliffWalking-v1", {}),
    ("CliffWalking-v1", {"is_slippery": True}),
    ("Taxi-v4", {}),
]


@pytest.mark.parametrize("env_id,options", TOY_TEXT, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_toy_text_tables_agree_with_the_environments_own_steps(env_id, options):
    mdp = mdps.from_gymnasium(env_id, 8, **options)
    env = gymnasium.make(env_id, **options).unwrapped
    env.reset(seed=1)
    p = np.zeros((mdp.n_states, mdp.n_actions, mdp.n_states))
    rows = np.repeat(np.arange(mdp.n_states * mdp.n_actions), np.diff(mdp.indptr))
    np.add.at(p.reshape(-1, mdp.n_states), (rows, mdp.successors), mdp.probabilities)
    d = mdps.occupancy(mdps.from_gymnasium(env_id, 40, **options), np.full(mdp.shape[1:], 1 / mdp.n_actions))
    playable = [s for s in np.flatnonzero(d.sum((0, 2)) > 0) if not (p[s, :, s] == 1).all()]
    slippery = options.get("is_slippery", False)
    draws = 400 if slippery else 1
    assert len(playable) > 5
    for s in playable:
        for a in range(mdp.n_actions):
            counts, reward = np.zeros(mdp.n_states), 0.0
            for _ in range(draws):
                env.s, env.lastaction = int(s), None
                after, r, terminated, _, _ = env.step(a)
                counts[after] += 1
                reward += float(r) / draws
                if terminated:
                    assert (p[after, :, after] == 1).all(), "an episode that ended moved on"
            assert (counts[p[s, a] == 0] == 0).all()
            possible = p[s, a] > 0
            # 5e-6 for each of a few hundred rows: about one false alarm in a thousand choices of the seed.
            if possible.sum() > 1:
                assert stats.chisquare(counts[possible], draws * p[s, a, possible]).pvalue > 5e-6
            spread = np.ptp([r for _, _, r, _ in env.P[s][a]])
            assert -mdp.cost[0, s, a] == pytest.approx(reward, abs=1e-9 + 5 * spread / np.sqrt(draws))


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_toy_text_start_where_the_environments_start(env_id):
    mdp = mdps.from_gymnasium(env_id, 3)
    env = gymnasium.make(env_id)
    starts = np.bincount([int(env.reset(seed=seed)[0]) for seed in range(1500)], minlength=mdp.n_states)
    possible = mdp.initial > 0
    assert starts[~possible].sum() == 0
    if possible.sum() > 1:
        assert stats.chisquare(starts[possible], 1500 * mdp.initial[possible]).pvalue > 1e-3


def test_frozen_lakes_value_is_the_mean_return_of_its_episodes(rng):
    """The whole way: the table's value of a policy against episodes played in the environment."""
    horizon = 15
    mdp = mdps.from_gymnasium("FrozenLake-v1", horizon)
    pi = mdps.expert_policy(mdp)
    env = gymnasium.make("FrozenLake-v1")
    returns = []
    for episode in range(1500):
        s, _ = env.reset(seed=episode)
        total = 0.0
        for h in range(horizon):
            s, reward, terminated, _, _ = env.step(int(rng.choice(4, p=pi[h, s])))
            total += float(reward)
            if terminated:
                break
        returns.append(total)
    error = np.std(returns) / np.sqrt(len(returns))
    assert -mdps.value(mdp, pi, mdp.cost) == pytest.approx(np.mean(returns), abs=4 * error)


class Corridor(gymnasium.Env):
    """Left and right in a row of four states; state 1 can be passed through, or end the episode by action 2."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, start: int = 0, table: bool = True) -> None:
        self.initial_state_distrib = np.eye(4)[start]
        if table:
            self.P = {
                s: {
                    0: [(1.0, max(s - 1, 0), -1.0, False)],
                    1: [(1.0, min(s + 1, 3), -1.0, s == 2)],
                    2: [(0.5, 1, 5.0, True), (0.5, s, -1.0, False)],
                }
                for s in range(4)
            }


@pytest.fixture
def corridor():
    gymnasium.register("OalCorridor-v0", entry_point=Corridor)
    yield "OalCorridor-v0"
    del gymnasium.registry["OalCorridor-v0"]


def test_a_state_that_ends_some_episodes_only_gets_a_copy(corridor):
    mdp = mdps.from_gymnasium(corridor, 4)
    assert mdp.n_states == 5, "state 1 and the end at state 1 must be told apart"
    p = mdp.table()[0]
    np.testing.assert_allclose(p[0, 2], [0.5, 0, 0, 0, 0.5])
    np.testing.assert_allclose(p[1, 1], [0, 0, 1, 0, 0])
    np.testing.assert_allclose(p[1, 2], [0, 0.5, 0, 0, 0.5])
    for end in (3, 4):
        np.testing.assert_allclose(p[end, :, end], 1)
        np.testing.assert_allclose(mdp.cost[0, end], 0)
    assert mdp.cost[0, 0, 2] == pytest.approx(-2)


def test_a_start_that_also_ends_episodes_is_not_absorbing(corridor):
    """Started in 3, which otherwise is only entered when an episode ends."""
    mdp = mdps.from_gymnasium(corridor, 4, start=3)
    assert mdp.n_states == 6
    p = mdp.table()[0]
    np.testing.assert_allclose(p[3, 0], np.eye(6)[2])
    np.testing.assert_allclose(p[2, 1], np.eye(6)[5])
    np.testing.assert_allclose(p[5, :, 5], 1)


# Bad input -----------------------------------------------------------------------------------------------------------


def rows(**changes):
    """A sound MDP of two states and one action, with some of its fields changed."""
    fields = {
        "horizon": 2,
        "n_states": 2,
        "n_actions": 1,
        "initial": np.array([1.0, 0.0]),
        "indptr": np.array([0, 1, 2]),
        "successors": np.array([1, 0]),
        "probabilities": np.array([1.0, 1.0]),
        "stationary": True,
    }
    return FiniteMDP(**(fields | changes))


def dense(p, initial=0, **options):
    return FiniteMDP.dense(np.array(p, dtype=float), initial, **({"horizon": 2} | options))


SOUND = [[[0.5, 0.5]], [[0.0, 1.0]]]
BAD = {
    "no horizon": (lambda: FiniteMDP.dense(SOUND), "give the horizon too"),
    "horizon 0": (lambda: dense(SOUND, horizon=0), "horizon is 0: it must be at least 1"),
    "another horizon": (lambda: FiniteMDP.dense([SOUND], horizon=2), "horizon is 2 but p has 1 steps"),
    "not square": (lambda: dense(np.ones((2, 1, 3)) / 3), r"p has the shape \(2, 1, 3\)"),
    "two axes": (lambda: dense(np.ones((2, 2)) / 2), r"p has the shape \(2, 2\)"),
    "sum": (lambda: dense([[[0.5, 0.4]], [[0.0, 1.0]]]), r"row \(s=0, a=0\) sums to 0.9: it must sum to one"),
    "sum at a step": (
        lambda: FiniteMDP.dense([SOUND, [[[0.5, 0.5]], [[1.0, 1.0]]]]),
        r"row \(h=1, s=1, a=0\) sums to 2",
    ),
    "negative": (lambda: dense([[[1.5, -0.5]], [[0.0, 1.0]]]), r"row \(s=0, a=0\) holds the probability -0.5"),
    "nan": (lambda: dense([[[0.5, 0.5]], [[np.nan, 1.0]]]), r"row \(s=1, a=0\) holds the probability nan"),
    "infinite": (lambda: dense([[[0.5, 0.5]], [[np.inf, 1.0]]]), r"row \(s=1, a=0\) holds the probability inf"),
    "empty row": (lambda: dense([[[0.0, 0.0]], [[0.0, 1.0]]]), r"row \(s=0, a=0\) has no successor"),
    "initial sum": (lambda: dense(SOUND, [0.5, 0.4]), "initial distribution sums to 0.9"),
    "initial shape": (lambda: dense(SOUND, [1.0]), r"initial distribution has the shape \(1,\): it must be \(2,\)"),
    "initial nan": (lambda: dense(SOUND, [np.nan, 1.0]), "initial distribution holds nan"),
    "initial infinite": (lambda: dense(SOUND, [np.inf, 1.0]), "initial distribution holds inf"),
    "initial negative": (lambda: dense(SOUND, [-0.5, 1.5]), "initial distribution holds -0.5"),
    "initial state": (lambda: dense(SOUND, 2), r"initial state 2 is outside the states 0\.\.1"),
    "no states": (lambda: rows(n_states=0), "n_states is 0"),
    "no actions": (lambda: rows(n_actions=0), "n_actions is 0"),
    "rows": (lambda: rows(indptr=np.array([0, 2])), r"has 1 rows: it must have S\*A = 2"),
    "rows of steps": (lambda: rows(stationary=False), r"has 2 rows: it must have H\*S\*A = 4"),
    "end of rows": (lambda: rows(indptr=np.array([0, 1, 3])), "indptr runs from 0 to 3: .* successors, 2"),
    "lengths": (lambda: rows(probabilities=np.ones(3)), "2 successors but 3 probabilities"),
    "successor": (lambda: rows(successors=np.array([1, 2])), r"successor 2 is outside the states 0\.\.1"),
    "negative successor": (lambda: rows(successors=np.array([1, -1])), r"successor -1 is outside the states 0\.\.1"),
    "cost shape": (lambda: dense(SOUND, cost=np.zeros(2)), r"cost has the shape \(2,\): it must be \[H, S, A\]"),
    "cost nan": (lambda: dense(SOUND, cost=[[np.nan], [0.0]]), "cost holds a value that is not finite"),
    "expert": (lambda: dense(SOUND, expert=[[0.9], [1.0]]), r"policy at \(h=0, s=0\) is \[0.9\]"),
    "policy shape": (lambda: mdps.occupancy(mdps.chain(3), np.ones(2)), r"policy has the shape \(2,\)"),
    "policy negative": (
        lambda: mdps.occupancy(mdps.chain(3), [[1.0, 0.0], [1.5, -0.5]]),
        r"policy at \(h=0, s=1\) is \[ 1.5 -0.5\]: it must be a distribution",
    ),
    "policy nan": (lambda: mdps.occupancy(mdps.chain(3), [[1, 0], [np.nan, 1]]), "policy holds a value that is not"),
    "no expert": (lambda: mdps.expert_policy(dense(SOUND)), "neither an expert nor a cost"),
    "alpha": (lambda: mdps.chain(3, 1.5), "alpha is 1.5: it must be a probability"),
    "alpha nan": (lambda: mdps.chain(3, np.nan), "alpha is nan: it must be a probability"),
    "spawn states": (lambda: mdps.spawn(1), "n_states is 1: it must be at least 2"),
    "spawn horizon": (lambda: mdps.spawn(5, 1), "horizon is 1: it must be at least 2"),
    "branching": (lambda: mdps.garnet(5, branching=0), "branching is 0"),
    "too much branching": (lambda: mdps.garnet(2, branching=3), "must not decrease"),
    "reachable": (lambda: mdps.garnet(10, reachable=11), "must not decrease"),
    "garnet seed": (lambda: mdps.garnet(seed=-1), "seed is -1"),
    "garnet actions": (lambda: mdps.garnet(5, 0), "n_actions is 0"),
    "grid size": (lambda: mdps.gridworld(1), "size is 1"),
    "grid horizon": (lambda: mdps.gridworld(3, horizon=0), "horizon is 0"),
    "slip": (lambda: mdps.gridworld(3, slip=-0.1), "slip is -0.1: it must be a probability"),
    "wall on the goal": (lambda: mdps.gridworld(3, walls=[(2, 2)]), r"wall \(2, 2\) is the start, the goal"),
    "wall outside": (lambda: mdps.gridworld(3, walls=[(0, 3)]), r"wall \(0, 3\) is"),
    "no episodes": (lambda: mdps.sample(mdps.chain(3), [[1, 0], [1, 0]], 0, rng=np.random.default_rng(0)), "is 0"),
    "unknown environment": (lambda: mdps.from_gymnasium("Nowhere-v0", 5), "environment 'Nowhere-v0' cannot be made"),
    "unknown option": (lambda: mdps.from_gymnasium("FrozenLake-v1", 5, slippery=1), "cannot be made: .*slippery"),
    "unknown package": (lambda: mdps.from_gymnasium("nowhere:Lake-v1", 5), "module 'nowhere' cannot be imported"),
    "continuous": (lambda: mdps.from_gymnasium("CartPole-v1", 5), "observations of CartPole-v1 are Box"),
    "environment horizon": (lambda: mdps.from_gymnasium("FrozenLake-v1", 0), "horizon is 0"),
    "no trajectories": (
        lambda: Trajectories(np.zeros((0, 3), int), np.zeros((0, 3), int)),
        r"states .* shape \(0, 3\)",
    ),
    "flat trajectories": (lambda: Trajectories(np.zeros(3, int), np.zeros(3, int)), r"it must be \[N, H\]"),
    "fractions": (lambda: Trajectories(np.zeros((1, 3)), np.zeros((1, 3), int)), "are float64: they must be whole"),
    "unequal": (
        lambda: Trajectories(np.zeros((1, 3), int), np.zeros((1, 2), int)),
        r"states \(1, 3\) and actions \(1, 2\)",
    ),
    "demonstrated steps": (
        lambda: Trajectories(np.zeros((1, 3), int), np.zeros((1, 3), int)).occupancy((4, 2, 2)),
        "demonstrations have 3 steps but the horizon of the MDP is 4",
    ),
    "demonstrated state": (
        lambda: Trajectories(np.full((1, 3), 2), np.zeros((1, 3), int)).occupancy((3, 2, 2)),
        r"hold the state 2 but the MDP has the states 0\.\.1",
    ),
    "demonstrated action": (
        lambda: Trajectories(np.zeros((1, 3), int), np.full((1, 3), -1)).occupancy((3, 2, 2)),
        r"hold the action -1 but the MDP has the actions 0\.\.1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case):
    build, message = BAD[case]
    with pytest.raises(InputError, match=message):
        build()


def test_an_environment_without_a_table_is_refused(corridor):
    with pytest.raises(InputError, match="has no transition table: learn from samples"):
        mdps.from_gymnasium(corridor, 4, table=False)


def test_oal_mdp_offers_the_problem_what_is_done_with_it_and_the_families():
    import oal

    problem = {"FiniteMDP", "Trajectories", "as_cost", "as_policy", "expert_policy", "uniform_policy"}
    done = {"evaluate", "occupancy", "optimal_policy", "policy_of_occupancy", "sample", "value"}
    families = {"chain", "from_gymnasium", "garnet", "gridworld", "make_discrete", "spawn"}
    assert set(oal.mdp.__all__) == problem | done | families
    assert all(hasattr(oal.mdp, name) for name in oal.mdp.__all__)


def test_an_mdp_does_not_change(rng):
    mdp = random_mdp(rng)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mdp.horizon = 5
    assert "H=3, S=3, A=2, time-dependent" in repr(mdp)
