"""GPUs: the code of docs/gpus.md, from which  make docs  writes this file."""

import jax

import oal

demos = oal.demos.load("CartPole-v1")
print(jax.default_backend(), [str(device) for device in jax.devices()])
