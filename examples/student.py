"""A student with the paper: Algorithm 2 on a small MDP, its regret, and the prior algorithms beside it.

python student.py [--episodes 2000]
"""

import argparse

import numpy as np

import oal
from oal import mdp
from oal.tabular import TabularOAL, behavioural_cloning


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000)
    episodes = parser.parse_args().episodes

    # the paper's setting: an MDP without its cost, N trajectories of an expert (Section 2)
    problem = mdp.from_gymnasium("FrozenLake-v1", horizon=20)
    expert = mdp.expert_policy(problem)
    shown = mdp.sample(problem, expert, 50, rng=np.random.default_rng(0))

    # Algorithm 2: mirror descent for the policy and for the cost, with a bonus for what was seen rarely
    learner = TabularOAL(problem, shown, seed=0).learn(episodes)
    regret = learner.regret  # Definition 1: the largest gap to the expert over all costs, summed over episodes
    for k in (10, 100, 1000, episodes):
        if k <= episodes:
            print(f"after {k:5} episodes: AL regret {regret[k - 1]:8.2f}, per episode {regret[k - 1] / k:.4f}")
    half = episodes // 2
    assert regret[-1] / episodes < regret[half - 1] / half, "the regret per episode falls: it grows slower than K"

    # Theorem 1's bound, without its constants
    bound = oal.regret.bound(problem.shape, episodes, 50)
    print(f"the theorem's bound (constants 1) at the end: {bound[-1]:.0f}")

    # by the true cost, which the learner never saw
    clone = behavioural_cloning(shown, problem.shape)
    for name, policy in (("expert", expert), ("oal", learner.average_policy), ("clone", clone)):
        print(f"{name:7} pays {mdp.value(problem, policy, problem.cost):.3f} in an episode")

    # the algorithms before it, each of which solves an MDP in every iteration
    for row in oal.prior.compare(problem, shown, "l2", iterations=20, episodes=episodes, seed=0):
        print(row)


if __name__ == "__main__":
    main()
