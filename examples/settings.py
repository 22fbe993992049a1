"""Choosing settings: the code of docs/settings.md, from which  make docs  writes this file."""

import oal

demos = oal.demos.load("InvertedPendulum-v5")[:4]
model = oal.OAL(
    "InvertedPendulum-v5",
    demos,
    cost="linear",
    seed=0,
    settings={"policy.prior_weight": 0.2, "replay.updates_per_step": 1, "bc.members": 3},
)
assert model.config.policy_config.prior_weight == 0.2
