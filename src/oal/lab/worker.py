"""One run of a sweep, started or resumed, in a separate process: `python -m oal.lab.worker`.

The job comes as one line of JSON on stdin. stdin stays open as long as the parent process lives: when it closes,
this process ends at once, and the run resumes from its checkpoint when it is asked for again.
"""

import faulthandler
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oal.base import jsontext, runtime, stopping
from oal.base.folder import BusyError, RunFolder
from oal.base.jsontext import expect, field
from oal.base.provenance import provenance
from oal.errors import is_whole

if TYPE_CHECKING:
    from oal.lab.run import Run

FINISHED, FAILED, BUSY, STOPPED = 0, 10, 75, 130
"""How a worker ends. Any other code, and any signal, is the death of the process."""
PATIENCE_SECONDS = 20.0
"""How long to wait for a folder that another process holds: one that was just told to end may need a moment."""


@dataclass(frozen=True)
class Job:
    """A run to execute: its folder, its configuration as JSON, and the command that asked for it."""

    folder: str
    config: Mapping[str, Any]
    command: tuple[str, ...]
    directory: str
    """The working directory, in which a relative path of demonstrations is meant."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        value = expect(jsontext.parse("the job", text), "the job", dict)
        return cls(
            folder=field("the job", value, "folder", str),
            config=field("the job", value, "config", dict),
            command=tuple(field("the job", value, "command", list)),
            directory=field("the job", value, "directory", str),
        )


def execute(job: Job) -> int:
    """Train a run to its end, from the beginning or from its checkpoint; say how it went. The folder says the rest."""
    folder = RunFolder(job.folder)
    try:
        if job.config.get("algorithm") == "BC":
            _clone(folder, job)
            return FINISHED
        run = _opened(folder, job)
    except BusyError as error:
        _say(str(error))
        return BUSY
    except KeyboardInterrupt:
        return STOPPED
    except Exception as error:
        _note_failure(folder, job, error)
        return FAILED
    try:
        if folder.status["status"] == "finished":  # by another process, since the sweep looked
            run.folder.release()
            return FINISHED
        _say(f"resumes at step {run.learner.step:,}" if run.learner.step else "starts")
        run.go()
    except KeyboardInterrupt:
        _say(f"stopped at step {run.learner.step:,}")
        return STOPPED
    except Exception:
        _say(f"failed at step {run.learner.step:,}\n{traceback.format_exc()}")
        return FAILED
    finally:
        run.learner.close()
    _say(f"finished at step {run.learner.step:,}")
    return FINISHED


def _opened(folder: RunFolder, job: Job) -> "Run":
    """Start a run or resume it; wait a while if another process holds it."""
    from oal.lab import run as training

    if _begun(folder):
        return training.resume(folder.path, trust=_asked_for(folder, job))
    return training.start(training.RunConfig.from_json(job.config), folder.path)


def _clone(folder: RunFolder, job: Job) -> None:
    """Clone the demonstrations of a job, or go on with it."""
    from oal.lab import run as training

    if not _begun(folder):
        _say("starts cloning")
        config = training.CloneConfig.from_json(job.config)
        training.clone(
            config.env,
            folder.path,
            source=config.demos,
            trajectories=config.trajectories,
            subsample=config.subsample,
            config=config.bc_config,
            seed=config.seed,
            horizon=config.horizon,
        )
    elif folder.status["status"] != "finished":
        _say("goes on cloning")
        training.resume_clone(folder.path, trust=_asked_for(folder, job))
    _say("finished cloning")


def _begun(folder: RunFolder) -> bool:
    """Say whether a run can be resumed; wait a while if another process holds it, and clear what cannot be."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while folder.busy and time.monotonic() < deadline:
        time.sleep(0.2)
    if folder.demos.exists():
        return True
    # killed at its start, or failed before it: what is there describes a run that has not started
    folder.lock()
    folder.forget()
    folder.release()
    return False


def _asked_for(folder: RunFolder, job: Job) -> bool:
    """The sweep's own environment was asked for; whatever else the folder says is the folder's word."""
    return folder.config.get("env") == job.config.get("env")


def _note_failure(folder: RunFolder, job: Job, error: Exception) -> None:
    """Write to the folder why a run could not start, so that it is listed among the failures."""
    _say(f"could not start\n{traceback.format_exc()}")
    if not folder.described:
        folder.describe(job.config, provenance())
    steps = [record.get("step") for record in folder.records()]
    step = steps[-1] if steps and is_whole(steps[-1]) else 0
    folder.set_status("failed", step=step, error=str(error), traceback=traceback.format_exc())


def _say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{stamp} process {os.getpid()} on {platform.node()}: {text}", flush=True)


def _end_with_the_other_side() -> None:
    while sys.stdin.buffer.raw.read(1024):  # type: ignore[attr-defined]
        pass
    os._exit(STOPPED)


def main() -> int:
    """Execute the job on stdin with one thread."""
    line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]
    if not line:
        return STOPPED
    job = Job.from_json(line.decode())
    faulthandler.enable()  # a crash in compiled code leaves the Python stack in the log
    threading.Thread(target=_end_with_the_other_side, daemon=True).start()
    runtime.set_threads(1)
    runtime.keep_compiled_programs()
    if Path(job.directory).is_dir():
        os.chdir(job.directory)
    sys.argv = list(job.command)  # what the run's provenance is to say
    with stopping.listening():
        return execute(job)


if __name__ == "__main__":
    sys.exit(main())
