"""Your first policy: the code of docs/first-policy.md, from which  make docs  writes this file."""

import oal

demos = oal.demos.load("Hopper-v5")
one, others = demos[:1], demos[1:]
print(one)

model = oal.OAL("Hopper-v5", one, seed=0)
model.learn(20_000, callback=oal.callbacks.Evaluate(5_000, best="best.safetensors"))


policy = oal.Policy.load("best.safetensors")
rollouts = oal.demos.record_demos("Hopper-v5", policy, episodes=10, seed=1)
certificate = oal.certify(rollouts, others, training=one, spec=model.spec, cost=oal.LearnedCost.of(model))
print(certificate.sentence)
print(f"return {rollouts.returns.mean():.0f}, the expert's {others.returns.mean():.0f}")


action, _ = policy.predict(others[0].observations[0], deterministic=True)
