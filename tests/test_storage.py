"""Run folders in a storage: what is carried, in which order, and that a run goes on from there on another machine."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("fsspec")

import fsspec

from oal.base.folder import RunFolder, plain
from oal.errors import InputError
from oal.lab import executors, worker
from oal.lab import storage as storages
from oal.lab.executors import Processes, RayCluster
from oal.lab.storage import Storage
from oal.lab.worker import Job
from test_experiment import TINY, results, tiny, until


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path) -> str:
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{tmp_path.name}"


def written(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / {"metrics": "metrics.jsonl", "checkpoint": "checkpoint.safetensors"}.get(name, name)).write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_comes_back_as_it_was_without_hidden_files(url, tmp_path):
    store = Storage(url)
    here = written(tmp_path / "here", metrics="1\n", checkpoint="c", best="b")
    (here / ".lock").write_text("77")
    assert not store.holds("run")
    written(here, **{"status.json": "{}"})
    store.push(here, "run")
    assert store.holds("run")
    store.pull("run", tmp_path / "there")
    assert contents(tmp_path / "there") == {
        "metrics.jsonl": "1\n", "checkpoint.safetensors": "c", "best": "b", "status.json": "{}",
    }  # fmt: skip
    store.pull("run", tmp_path / "part", only=("status.json",))
    assert contents(tmp_path / "part") == {"status.json": "{}"}
    store.pull("nothing", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_only_what_changed_is_carried(url, tmp_path):
    store, here, there = Storage(url), tmp_path / "here", tmp_path / "there"
    store.push(written(here, metrics="1\n", checkpoint="c"), "run")
    store.pull("run", there)
    before = (there / "checkpoint.safetensors").stat().st_mtime_ns
    store.push(written(here, metrics="1\n2\n"), "run")
    store.pull("run", there)
    assert contents(there)["metrics.jsonl"] == "1\n2\n"
    # a sweep sees by the file's time that a run got no further
    assert (there / "checkpoint.safetensors").stat().st_mtime_ns == before


def test_the_records_of_a_checkpoint_are_there_before_it(url, tmp_path, monkeypatch):
    """A node may die between two files: the checkpoint must never be ahead of the records, nor the status of both."""
    store, here = Storage(url), written(tmp_path / "here", metrics="1\n", checkpoint="one", **{"status.json": "1"})
    store.push(here, "run")
    carried: list[str] = []
    move = store._fs.mv

    def recorded(source: str, target: str) -> None:
        carried.append(Path(target).name)
        if carried[-1] == "metrics.jsonl":
            # meanwhile the run goes on: this checkpoint's records were not carried
            there = here / "new"
            there.write_text("three")
            there.replace(here / "checkpoint.safetensors")
        move(source, target)

    written(here, metrics="1\n2\n", checkpoint="two", best="b", **{"status.json": "2"})
    monkeypatch.setattr(store._fs, "mv", recorded)
    store.push(here, "run")
    assert carried == ["metrics.jsonl", "best", "checkpoint.safetensors", "status.json"]
    Storage(url).pull("run", tmp_path / "there")
    assert contents(tmp_path / "there")["checkpoint.safetensors"] == "two"
    monkeypatch.undo()
    store.push(here, "run")
    Storage(url).pull("run", tmp_path / "later")
    assert contents(tmp_path / "later")["checkpoint.safetensors"] == "three"


def test_a_storage_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(InputError, match="the storage 'nosuch://x' cannot be used"):
        Storage("nosuch://x")
    (tmp_path / "file").write_text("")
    store = Storage(f"file://{tmp_path}/file/below")
    with pytest.raises(InputError, match=r"failed with the run r .*check the address"):
        store.push(written(tmp_path / "here", metrics="1"), "r")


def test_an_attempt_goes_on_from_the_storage_and_leaves_everything_there(tmp_path, monkeypatch):
    """Half a run on one machine, the rest on another that shares no disk with it: the same run."""
    url = f"file://{tmp_path}/store"
    (run,) = tiny(tmp_path / "whole", seed=[0]).runs()
    tiny(tmp_path / "whole", seed=[0]).go(Processes(1))
    again = tiny(tmp_path / "again", seed=[0])
    (half,) = again.runs()
    job = Job(str(half.folder.resolve()), plain(half.config.to_json()), ("oal",), str(tmp_path))

    store, first = Storage(url), tmp_path / "first" / half.name
    begun = plain(half.config.to_json()) | {"total_steps": 400}
    assert executors.attempt(Job(str(first), begun, ("oal",), str(tmp_path)).to_json()) == (worker.FINISHED, "")
    folder = RunFolder(first)
    folder.describe(job.config, folder.metadata)  # as it stood when its machine was lost
    folder.set_status("running", step=400)
    store.push(first, half.name)
    shutil.rmtree(first)

    monkeypatch.setattr(executors, "SYNC_SECONDS", 0.5)
    assert executors.attempt(job.to_json(), url) == (worker.FINISHED, "")
    assert not half.folder.exists()
    Storage(url).pull(half.name, half.folder)
    assert "resumes at step 400" in (half.folder / executors.LOG).read_text()
    assert results(again) == results(tiny(tmp_path / "whole", seed=[0]))
    assert run.name == half.name


RAY_SETTINGS = {"RAY_worker_niceness": "0", "RAY_worker_register_timeout_seconds": "600"}
"""On a busy machine Ray's workers, which give way to everything else, would not start within its minute."""


@pytest.mark.slow
def test_a_cluster_brings_results_through_a_storage(tmp_path, monkeypatch):
    """Workers get folders that only they have; the sweep's own appear from the storage."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    undisturbed = tiny(tmp_path / "inline", seed=[0, 1])
    undisturbed.go(Processes(2))
    monkeypatch.setattr(executors, "SYNC_SECONDS", 1.0)
    for name, value in RAY_SETTINGS.items():
        monkeypatch.setenv(name, value)
    sweep = tiny(tmp_path / "cluster", seed=[0, 1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        summary = sweep.go(RayCluster(cluster.address, storage=f"file://{tmp_path}/store"))
    finally:
        cluster.shutdown()
    assert summary.complete, summary
    assert results(sweep) == results(undisturbed)
    assert len(fsspec.filesystem("file").ls(f"{tmp_path}/store")) == 2
    assert TINY["total_steps"] == RunFolder(sweep.runs()[0].folder).status["step"]


class Refusing:
    """A file system of which every n-th write fails."""

    def __init__(self, inner, every: int) -> None:
        self._inner, self.every, self.writes, self.refused = inner, every, 0, 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def open(self, path, mode="rb", **options):
        if "w" in mode:
            self.writes += 1
            if self.writes % self.every == 0:
                self.refused += 1
                raise OSError(5, "Input/output error")
        return self._inner.open(path, mode, **options)


def refusing(store: Storage, every: int) -> Refusing:
    store._fs = Refusing(store._fs, every)
    return store._fs


def test_a_storage_that_refuses_every_tenth_write_loses_nothing(url, tmp_path, monkeypatch):
    monkeypatch.setattr(storages, "PAUSES", (0.0, 0.0))
    store, here = Storage(url), tmp_path / "here"
    fs = refusing(store, 10)
    for step in range(20):
        store.push(
            written(here, metrics=f"{step}\n" * step, checkpoint=f"c{step}", **{"status.json": str(step)}), "run"
        )
    assert fs.refused >= 5
    store.pull("run", tmp_path / "there")
    assert contents(tmp_path / "there") == contents(here)


def test_a_storage_that_refuses_every_write_is_named_after_some_tries(url, tmp_path, monkeypatch):
    monkeypatch.setattr(storages, "PAUSES", (0.0, 0.0))
    store = Storage(url)
    fs = refusing(store, 1)
    with pytest.raises(InputError, match=r"failed with the run r .Input/output error.: check the address"):
        store.push(written(tmp_path / "here", metrics="1"), "r")
    assert fs.writes == 3


class Ray:
    """What a cluster's executor asks of Ray, in this process: tasks are done at once; the head may go and come back."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError):
            def __init__(self, cause: BaseException) -> None:
                super().__init__("ray::attempt() (pid=1, ip=127.0.0.1)\nTraceback ...")
                self.cause = cause

    def __init__(self, address: str) -> None:
        self.address, self.inits, self.up = address, 0, False

    def is_initialized(self) -> bool:
        return self.up

    def init(self, **_) -> None:
        self.inits, self.up = self.inits + 1, True

    def shutdown(self) -> None:
        self.up = False

    def get_runtime_context(self):
        return self

    @property
    def gcs_address(self) -> str:
        return self.address

    def remote(self, **_):
        class Task:
            def __init__(self, work) -> None:
                self.work = work

            def remote(self, *words):
                return lambda: self.work(*words)

        return Task

    def wait(self, tasks, **_):
        return tasks[:1], tasks[1:]

    def get(self, task):
        try:
            return task()
        except InputError as error:
            raise self.exceptions.RayTaskError(error) from None


@pytest.fixture
def head(monkeypatch):
    """A port that answers like a head until it is closed, and Ray itself behind it."""
    server = socket.create_server(("127.0.0.1", 0))
    ray = Ray(f"127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setitem(sys.modules, "ray", ray)
    ray.server = server
    yield ray
    ray.server.close()


JOB = Job("/nowhere/run", {}, ("oal",), "/")


def test_a_head_that_is_gone_is_waited_for(head, monkeypatch, capsys):
    monkeypatch.setattr(executors, "HEAD_SECONDS", 0.0)
    cluster = RayCluster(head.address)
    cluster.start(JOB)
    port = head.server.getsockname()[1]
    head.server.close()

    def come_back(seconds: float) -> None:
        head.server = socket.create_server(("127.0.0.1", port))

    monkeypatch.setattr(executors.time, "sleep", come_back)
    (ending,) = cluster.ended(1.0)
    assert ending == (JOB, None, "the cluster's head was gone")
    assert head.inits == 2
    assert "is gone: waiting for it to come back" in capsys.readouterr().err
    assert cluster._jobs == {}


def test_a_head_that_stays_away_ends_the_sweep_with_the_way_on(head, monkeypatch):
    monkeypatch.setattr(executors, "HEAD_SECONDS", 0.0)
    monkeypatch.setattr(executors, "RETURN_SECONDS", -1.0)
    cluster = RayCluster(head.address)
    cluster.start(JOB)
    head.server.close()
    with pytest.raises(InputError, match=r"is gone since .*start it again, and the sweep too, which goes on"):
        cluster.ended(1.0)
    cluster.stop()


def test_what_an_attempt_says_is_the_reason(head, monkeypatch, tmp_path):
    """A node whose storage fails for good, and a download that does: neither ends the sweep, and both say why."""

    def failing(job: str, storage: str | None) -> None:
        raise InputError("the storage 's3://x' failed with the run r")

    monkeypatch.setattr(executors, "attempt", failing)
    cluster = RayCluster(head.address)
    cluster.start(JOB)
    assert cluster.ended(1.0) == [(JOB, None, "the storage 's3://x' failed with the run r")]
    monkeypatch.setattr(executors, "attempt", lambda job, storage: (worker.FINISHED, ""))
    cluster = RayCluster(head.address, storage=f"file://{tmp_path}/store")
    cluster.start(JOB)
    monkeypatch.setattr(Storage, "pull", lambda *_, **__: failing("", None))
    assert cluster.ended(1.0) == [(JOB, None, "the storage 's3://x' failed with the run r")]


def test_a_node_without_the_environments_module_says_so(tmp_path):
    """What a Ray task does there: the run has failed, its folder says why, and nothing is retried."""
    config = plain(tiny(tmp_path, seed=[0]).runs()[0].config.to_json()) | {"env": "no_such_module:Robot-v0"}
    job = Job(str(tmp_path / "run"), config, ("oal",), str(tmp_path))
    assert executors.attempt(job.to_json()) == (worker.FAILED, "")
    status = RunFolder(tmp_path / "run").status
    assert status["status"] == "failed"
    assert "no_such_module" in status["error"]
    assert "Traceback" not in status["error"]


HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "gcs_server_port": int(sys.argv[1])})
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
"""


HEAD_STARTS_WITHIN = 120.0


def ray_head(port: int) -> tuple[subprocess.Popen[str], str]:
    """Start a head with one core in a process of its own, and return its address; a line to it kills all of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(port)],
        env=os.environ | RAY_SETTINGS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    waited = threading.Timer(HEAD_STARTS_WITHIN, process.kill)  # which ends its lines
    waited.start()
    try:
        address = next((line.strip() for line in process.stdout if line.strip().endswith(f":{port}")), None)
    finally:
        waited.cancel()
    assert address is not None, f"no head within {HEAD_STARTS_WITHIN} s"
    return process, address


def fell(process: subprocess.Popen[str]) -> None:
    """Kill a head with all its workers."""
    if process.poll() is None:
        try:
            process.communicate("now\n", timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_cluster_whose_head_dies_and_comes_back_finishes_the_sweep(tmp_path, monkeypatch):
    """Ray itself: the head and all its workers are killed in the middle, and a new one answers at the same address."""
    pytest.importorskip("ray")
    undisturbed = tiny(tmp_path / "inline", seed=[0])
    undisturbed.go(Processes(1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    heads = [ray_head(port)]
    sweep = tiny(tmp_path / "cluster", seed=[0])
    folder = RunFolder(sweep.runs()[0].folder)

    def fall() -> None:
        until(lambda: folder.checkpoint.exists(), seconds=900.0)
        fell(heads[0][0])
        heads.append(ray_head(port))

    falling = threading.Thread(target=fall)
    falling.start()
    monkeypatch.setattr(executors, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(executors, "RETURN_SECONDS", 3 * HEAD_STARTS_WITHIN)
    try:
        summary = sweep.go(RayCluster(heads[0][1]))
    finally:
        falling.join()
        for process, _ in heads:
            fell(process)
    assert len(heads) == 2
    assert summary.complete, summary
    assert results(sweep) == results(undisturbed)
    assert "resumes at step" in (folder.path / executors.LOG).read_text()
