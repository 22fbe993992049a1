"""Where a sweep's runs are executed: in this process, in local processes, or on a Ray cluster.

An executor is told to start jobs and asked which have ended. It keeps no results: those are in the run folders, which
every executor's workers write and the sweep reads.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from oal.base import console, opening, stopping
from oal.base.folder import RunFolder
from oal.envs import hangs
from oal.errors import InputError, MissingExtraError, at_least
from oal.lab import worker
from oal.lab.storage import Storage
from oal.lab.worker import Job

GRACE_SECONDS = 60.0
"""How long a worker that is told to stop may take to come to the end of a block and write a checkpoint."""
SYNC_SECONDS = 30.0
"""How often an unfinished run is uploaded to a storage, and its records downloaded from there."""
HEAD_SECONDS = 5.0
"""How often the head of a cluster is asked whether it is there: a minute after it is gone Ray ends this process."""
RETURN_SECONDS = 600.0
"""How long to wait for a head that is gone."""
LOG = "worker.log"
"""What a run's workers say, in the run folder: when they began, from which step, and how they ended."""


class Ending(NamedTuple):
    """How an attempt at a job ended: one of `oal.lab.worker`'s codes, or None and why the worker is gone."""

    job: Job
    code: int | None
    reason: str = ""


class Executor(Protocol):
    """What a sweep asks of an executor."""

    slots: int
    """Jobs it takes at a time."""

    def start(self, job: Job) -> None: ...
    def ended(self, timeout: float) -> list[Ending]:
        """Return the jobs that have ended since; wait up to `timeout` seconds for the first."""
        ...

    def stop(self) -> None:
        """Stop what is under way, and let go of what was needed."""
        ...


class Inline:
    """One run after the other in this process: to look into a run with a debugger, and for tests."""

    slots = 1

    def __init__(self) -> None:
        self._waiting: list[Job] = []

    def start(self, job: Job) -> None:
        self._waiting.append(job)

    def ended(self, timeout: float) -> list[Ending]:
        job = self._waiting.pop()
        code = worker.execute(job)
        if code == worker.STOPPED:  # the signal reached the run first; it is meant for the sweep
            stopping.check()
            raise KeyboardInterrupt
        return [Ending(job, code)]

    def stop(self) -> None:
        self._waiting.clear()


class WorkerProcess:
    """A process that executes one job. It ends when this process does."""

    def __init__(self, job: Job) -> None:
        self.job = job
        log = Path(job.folder) / LOG
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            opening.check_target(log)
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    # -P: a gymnasium.py in the current folder is not the library
                    [sys.executable, "-P", "-m", "oal.lab.worker"],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the sweep, which tells its workers
                )
        except OSError as error:
            raise InputError(f"{log}: a worker cannot be started ({error.strerror}): check the folder") from None
        self._stdin: Any = self._process.stdin
        with suppress(BrokenPipeError):  # it died already, which `ending` will say
            self._stdin.write(job.to_json().encode() + b"\n")
            self._stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ending(self) -> Ending | None:
        """Say how the job ended, or None while the process runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        if code == hangs.EXIT_CODE:  # it hung in code that no signal interrupts, and said so in its run folder
            return Ending(self.job, worker.FAILED)
        if code in (worker.FINISHED, worker.FAILED, worker.BUSY, worker.STOPPED):
            return Ending(self.job, code)
        return Ending(self.job, None, f"the worker process {_cause(code)}")

    def ask_to_stop(self) -> None:
        """Ask it to record in its run folder that it was stopped, and to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self, timeout: float) -> None:
        """Wait for it to end; kill it if it does not."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Processes:
    """Local processes, one for each run, with one thread each."""

    def __init__(self, count: int | None = None) -> None:
        """`count` runs at a time; None: as many as there are cores."""
        if count is not None:
            at_least("processes", count, 1)
        self.slots = count or cores()
        self._workers: list[WorkerProcess] = []

    def start(self, job: Job) -> None:
        self._workers.append(WorkerProcess(job))

    def ended(self, timeout: float) -> list[Ending]:
        def ask() -> list[Ending]:
            endings = {one: one.ending() for one in self._workers}
            self._workers = [one for one, ending in endings.items() if ending is None]
            return [ending for ending in endings.values() if ending is not None]

        return _asked_until(ask, timeout)

    def stop(self) -> None:
        for one in self._workers:
            one.ask_to_stop()
        deadline = time.monotonic() + GRACE_SECONDS
        for one in self._workers:
            one.end(max(0.0, deadline - time.monotonic()))
        self._workers = []


def _asked_until(ask: Callable[[], list[Ending]], timeout: float) -> list[Ending]:
    deadline = time.monotonic() + timeout
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def attempt(job: str, storage: str | None = None) -> tuple[int | None, str]:
    """Execute a job in a separate process on this machine, and wait for it: what a Ray task does.

    With a storage, the run folder is a temporary one on this machine, downloaded from there and uploaded to it.
    """
    given = Job.from_json(job)
    if storage is None:
        return _attempt(given, lambda: None)
    store, name = Storage(storage), Path(given.folder).name
    with tempfile.TemporaryDirectory(prefix="oal-") as scratch:
        folder = Path(scratch) / name
        store.pull(name, folder)
        return _attempt(replace(given, folder=str(folder)), lambda: store.push(folder, name))


def _attempt(job: Job, upload: Callable[[], None]) -> tuple[int | None, str]:
    process = WorkerProcess(job)
    uploaded = time.monotonic()
    try:
        # a cancelled task is interrupted between two Python statements, never in a wait of the system
        while (ending := process.ending()) is None:
            time.sleep(0.2)
            if time.monotonic() - uploaded > SYNC_SECONDS:
                with suppress(InputError):  # the last one, which counts, says what is wrong
                    upload()
                uploaded = time.monotonic()
    finally:
        process.ask_to_stop()
        process.end(GRACE_SECONDS)
        upload()
    return ending.code, f"{ending.reason} on {socket.gethostname()}" if ending.reason else ""


class RayCluster:
    """A Ray cluster, one core for each run. Every node has oal.

    Every node sees the run folders under the same path, or results come through a storage of fsspec: nodes upload a run
    while it learns, and the sweep downloads it to its folder. Demonstrations are then a shipped set's name, or a
    path that every node has.
    """

    slots = 1_000_000  # all at once: the cluster queues them, and an autoscaler sees what is wanted

    def __init__(self, address: str = "auto", *, storage: str | None = None) -> None:
        """Connect to "auto" (the cluster this machine is part of, or RAY_ADDRESS), HOST:PORT or ray://HOST:PORT."""
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtraError("ray", extra="ray", needed_for="a sweep on a Ray cluster") from None
        self._storage = None if storage is None else Storage(storage)
        self._ray, self._address = ray, address
        self._own = not ray.is_initialized()
        if self._own:
            self._connect()
        self._attempt = ray.remote(num_cpus=1, max_retries=0)(attempt)
        self._head = str(ray.get_runtime_context().gcs_address)
        self._jobs: dict[Any, Job] = {}
        self._downloaded = self._asked = time.monotonic()

    def _connect(self) -> None:
        _check_reachable(self._address)
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise InputError(_unreachable(self._address, error)) from None

    def start(self, job: Job) -> None:
        if self._storage is not None:
            folder = Path(job.folder)
            if RunFolder(folder).described and not self._storage.holds(folder.name):
                self._storage.push(folder, folder.name)  # started here, before there was a storage
        self._jobs[self._attempt.remote(job.to_json(), self._storage and self._storage.url)] = job

    def ended(self, timeout: float) -> list[Ending]:
        if self._own and time.monotonic() - self._asked > HEAD_SECONDS:
            if not _reachable(self._head):
                return self._returned()
            self._asked = time.monotonic()
        if self._storage is not None and time.monotonic() - self._downloaded > SYNC_SECONDS:
            for job in self._jobs.values():
                with suppress(InputError):  # only to show how far it is
                    self._download(job, only=("metrics.jsonl", "status.json"))
            self._downloaded = time.monotonic()
        done, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        return [self._ending(task, self._jobs.pop(task)) for task in done]

    def _returned(self) -> list[Ending]:
        """Wait until a head that is gone is back; what was under way has ended, and goes on from its checkpoints."""
        jobs, self._jobs = list(self._jobs.values()), {}
        self._ray.shutdown()
        console.say(f"the cluster's head {self._head} is gone: waiting for it to come back", err=True)
        deadline = time.monotonic() + RETURN_SECONDS
        while True:
            stopping.check()
            with suppress(InputError):
                self._connect()
                break
            if time.monotonic() > deadline:
                raise InputError(
                    f"the head of the Ray cluster, {self._head}, is gone since {RETURN_SECONDS:.0f} seconds: start it "
                    "again, and the sweep too, which goes on from its checkpoints"
                )
            time.sleep(1.0)
        self._head, self._asked = str(self._ray.get_runtime_context().gcs_address), time.monotonic()
        return [Ending(job, None, "the cluster's head was gone") for job in jobs]

    def _download(self, job: Job, *, only: tuple[str, ...] = ()) -> None:
        if self._storage is not None:
            self._storage.pull(Path(job.folder).name, Path(job.folder), only=only)

    def _ending(self, task: Any, job: Job) -> Ending:
        try:
            code, reason = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # what the attempt itself raised
            code, reason = None, _first_line(error.cause)
        except self._ray.exceptions.RayError as error:  # the worker or its node is gone
            code, reason = None, _first_line(error)
        try:
            self._download(job)
        except InputError as error:
            code, reason = None, str(error)
        return Ending(job, code, reason)

    def stop(self) -> None:
        for task in self._jobs:
            self._ray.cancel(task)
        if self._jobs:
            self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=GRACE_SECONDS)
        for job in self._jobs.values():
            with suppress(InputError):  # what is there stays in the storage
                self._download(job)
        self._jobs = {}
        if self._own:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ask at HOST:PORT ourselves: Ray would try for a minute and fill the screen."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise InputError(_unreachable(address, error)) from None


def _reachable(address: str) -> bool:
    try:
        _check_reachable(address)
    except InputError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _unreachable(address: str, error: Exception) -> str:
    return (
        f"no Ray cluster can be reached at '{address}' ({_first_line(error)}): start one with  ray start --head  and "
        "join it from the other machines with  ray start --address HOST:PORT"
    )
