"""Fill a replay memory, write it to a checkpoint and read it back; print one line of JSON on this process's memory."""

import argparse
import json
import tempfile
from pathlib import Path

from common import ROOT, memory_megabytes

CHUNK = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--env", default="Humanoid-v5")
    parser.add_argument("--transitions", type=int, default=1_000_000)
    options = parser.parse_args()
    from oal.base import runtime

    runtime.set_threads(options.threads)
    import numpy as np

    from oal.base import checkpoint
    from oal.deep.replay import Replay
    from oal.envs import describe, make

    env = make(options.env)
    spec = describe(env)
    env.close()
    before = memory_megabytes("VmRSS")
    memory = Replay(options.transitions, spec.observation_size, spec.action_size)
    rng = np.random.default_rng(0)
    for _ in range(options.transitions // CHUNK):
        observation, following = rng.standard_normal((2, CHUNK, spec.observation_size), np.float32)
        action = rng.standard_normal((CHUNK, spec.action_size), np.float32)
        cost = np.zeros(CHUNK, np.float32)
        memory.add(observation, action, cost, following, cost, np.arange(CHUNK))
    filled, peak = memory_megabytes("VmRSS"), memory_megabytes("VmHWM")
    with tempfile.TemporaryDirectory(dir=ROOT / ".bench") as folder:
        path = Path(folder) / "checkpoint.safetensors"
        arrays, info = memory.state()
        checkpoint.save(path, arrays, info, kind="replay")
        saved = memory_megabytes("VmHWM")
        size = path.stat().st_size
        # pages of the file that is read are the system's to drop: only the process's own memory counts
        own = memory_megabytes("RssAnon")
        arrays, info = checkpoint.load(path, kind="replay", mapped=["rows"])
        memory.restore(arrays, info)
        restored = memory_megabytes("RssAnon")
    print(
        json.dumps(
            {
                "replay_bytes": memory.rows.nbytes + memory.times.nbytes,
                "checkpoint_bytes": size,
                "resident_megabytes": filled - before,
                "more_while_saving_megabytes": saved - peak,
                "more_while_loading_megabytes": restored - own,
                "peak_memory_megabytes": saved,
            }
        )
    )


if __name__ == "__main__":
    main()
