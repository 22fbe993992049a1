"""Reading the certificate: the code of docs/certificate.md, from which  make docs  writes this file."""

import gymnasium

import oal
from oal import envs

demos = oal.demos.load("CartPole-v1")
spec = envs.describe(gymnasium.make("CartPole-v1"))
experts = oal.certify(demos[:8], demos[8:16], spec=spec)
print(experts.sentence)

space = gymnasium.make("CartPole-v1").action_space
random = oal.demos.record_demos("CartPole-v1", lambda observation: space.sample(), episodes=8)
worse = oal.certify(random, demos[8:16], spec=spec)
print(worse.sentence)
for difference in worse.differences[:3]:
    print(difference)
