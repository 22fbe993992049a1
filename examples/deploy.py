"""Deploying a policy: the code of docs/deploying.md, from which  make docs  writes this file."""

import json
import numpy as np


class Policy:
    def __init__(self, path):
        self.a = dict(np.load(path))
        self.about = json.loads(str(self.a["about"]))

    def __call__(self, observation):
        a, about, x = self.a, self.about, observation
        if about["parts"]:  # a Dict, or anything else that is no plain vector
            x = np.concatenate([flat(x[key] if isinstance(x, dict) else x, *how) for key, *how in about["parts"]], -1)
        if "mean" in a:
            x, k = (x - a["mean"]) / a["std"], a["knee"]
            x = np.clip(x, -k, k) + np.sign(x) * k * np.log(np.maximum(np.abs(x), k) / k)
        for i in range(about["layers"]):
            x = np.asarray(x, np.float32) @ a[f"weight_{i}"] + a[f"bias_{i}"]
            x = x if i == about["layers"] - 1 else np.maximum(x, 0) if about["activation"] == "relu" else np.tanh(x)
        if about["kind"] == "discrete":
            return a["combinations"][x.argmax(-1)] if "combinations" in a else x.argmax(-1) + about["action_start"]
        x = np.tanh(x[..., : x.shape[-1] // 2]) * a["half"] + a["centre"]
        return x.reshape(*x.shape[:-1], *about["action_shape"])


def flat(values, kind, sizes, starts):
    values = np.asarray(values)[..., None] if kind == "choice" else np.asarray(values)
    if kind == "numbers":
        return values.reshape(*values.shape[: values.ndim - len(sizes)], -1)
    return np.concatenate([np.eye(n)[values[..., i] - k] for i, (n, k) in enumerate(zip(sizes, starts))], -1)


import oal
from oal.deep.bc import BCConfig
from oal.deep.export import save_npz

demos = oal.demos.load("Pendulum-v1")
clone = oal.BC("Pendulum-v1", demos[:4], config=BCConfig(updates=300), seed=0).learn()
clone.save("policy.safetensors")
policy = oal.Policy.load("policy.safetensors")
save_npz(policy, "policy.npz")  # save_onnx(policy, "policy.onnx") with oal[onnx]
observations = demos[0].observations[:100]
there = Policy("policy.npz")(observations)
here, _ = policy.predict(observations, deterministic=True)
assert np.allclose(there, here, atol=1e-4)
