"""Feed mutated files to a reader, each in a process of its own with little memory and little time.

    python tests/fuzz_readers.py [READER ...] [--count N] [--seed S] [--only INDEX] [--keep FOLDER]

Readers: the demonstrations' (see fuzz_demos.py), run folders, resumed runs, metrics, checkpoints, cloning under way,
policies, learned costs, tabular and linear learners and sweep files; all of them if none is named. Allowed are a result
or an InputError. Anything else (another exception, a crash, more memory or time than allowed) is a finding: its file is
kept, and a table says how many there were. Every mutant follows from reader, seed and index.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fuzz_demos
from fuzz_demos import mutate_array, mutate_bytes, mutate_json, npy, zipped
from made_runs import CERTIFICATE, make_run, write
from oal.errors import InputError

SECONDS = 10
"""The processor's, for one file."""
WAITS = 6
"""So many times as long by the clock: a machine does other things too."""
Mutate = Callable[[random.Random], None]
Read = Callable[[], Any]


# ----- run folders and metrics


def run_folder_case(folder: Path) -> tuple[Read, Mutate]:
    """A folder with everything that is read as text: one file of it is mutated at a time."""
    from oal.base.folder import RunFolder
    from oal.cli.sweep import _row
    from oal.deep.presets import preset
    from oal.lab import run as training

    base, path = folder / "base", folder / "runs" / "run"
    make_run(base, steps=6_000)
    config = training.RunConfig("Hopper-v5", preset("mdpo", "linear"), 6_000).to_json()
    write(base / "config.json", {"format": 1, "kind": "learner", "config": config})
    write(base / "certificate.json", CERTIFICATE)
    write(base / "cost.json", {"features": ["a", "b"], "weights": [0.5, -1.0], "absorbing": 0.1})
    (base / "run.uuid").write_text("0" * 32 + "\n")
    names = ["config.json", "metadata.json", "status.json", "certificate.json", "cost.json", "run.uuid"]
    texts = {name: (base / name).read_text() for name in names}

    def mutate(rng: random.Random) -> None:
        for name, text in texts.items():
            (path / name).write_text(text)
        name = rng.choice(names)
        if name != "run.uuid" and rng.randrange(4):
            (path / name).write_bytes(mutate_json(texts[name], rng).encode("utf-8", "replace"))
        else:
            (path / name).write_bytes(mutate_bytes(texts[name].encode(), rng))

    def read() -> Any:
        opened = RunFolder(path)
        found = [
            attempt(lambda: training.config_of(RunFolder.open(path), trust=False)),
            attempt(lambda: opened.status),
            attempt(opened.records),
            opened.verified,
            opened.known_files(),
            _row(opened, path.parent),
            reported(path, folder),
        ]
        return first_refusal(found)

    shutil.copytree(base, path)
    read()  # what is imported and compiled at the first reading is there in every fork
    return read, mutate


def resumed_case(folder: Path) -> tuple[Read, Mutate]:
    """A run that has taken its steps, of which one text is mutated: shown, resumed, evaluated or filmed.

    Nothing more is learned or drawn, however many steps the mutant asks for.
    """
    from oal import OAL
    from oal.cli.sweep import show_run
    from oal.cli.train import _go
    from oal.deep import certificate
    from oal.deep.presets import preset
    from oal.deep.verdict import Certificate
    from oal.lab import run as training

    settings = {"policy.hidden": [4], "policy.batch_size": 8, "replay.capacity": 200, "replay.warmup_steps": 10}
    learner = replace(preset("mdpo", "linear", settings=settings), bc_config=None)
    steps: dict[str, Any] = dict.fromkeys(("total_steps", "log_every", "evaluate_every", "checkpoint_every"), 20)
    config = training.RunConfig("InvertedPendulum-v5", learner, trajectories=2, evaluation_episodes=1, **steps)
    base, path = folder / "base", folder / "run"
    begun = training.start(config, base)
    begun.go()
    begun.learner.close()
    (base / "held-out.npz").unlink()
    OAL.learn = lambda *_, **__: None  # type: ignore[method-assign]
    training.record_video = lambda *_, **__: 0.0
    Certificate.picture = lambda *_: None  # type: ignore[method-assign]
    certificate.CLASSIFIER_PERMUTATIONS, certificate.KERNEL_POINTS, certificate.CLASSIFIER_POINTS = 20, 60, 10
    certificate.certify = functools.partial(certificate.certify, resamples=100)
    names = ["config.json", "metadata.json", "status.json", "metrics.jsonl"]
    texts = {name: (base / name).read_text() for name in names}

    def go() -> None:
        resumed = training.resume(path)
        resumed.learner.pretrain = lambda **_: False  # type: ignore[method-assign]
        _go(resumed, quiet=True, tensorboard=False, wandb=None, threads=1, device=None)

    commands: list[Read] = [
        lambda: show_run(path),
        go,
        lambda: training.certify(path, episodes=2),
        lambda: (training.film(path), training.film_expert(path)),
    ]
    chosen = [go]

    def mutate(rng: random.Random) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base, path)
        name = rng.choice(names)
        lines = texts[name].splitlines() if name == "metrics.jsonl" else [texts[name]]
        at = rng.randrange(len(lines))
        lines[at] = mutate_json(lines[at], rng)
        data = "\n".join(lines).encode("utf-8", "replace") + b"\n"
        (path / name).write_bytes(mutate_bytes(data, rng) if rng.randrange(6) == 0 else data)
        chosen[0] = rng.choice(commands)

    def read() -> Any:
        nowhere = io.StringIO()
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            return chosen[0]()

    return read, mutate


def metrics_case(folder: Path) -> tuple[Read, Mutate]:
    """Records of which lines, values and bytes are mutated, read, rewound and written as a table."""
    from oal.base.folder import RunFolder

    path = make_run(folder / "runs" / "run", steps=6_000)
    lines = (path / "metrics.jsonl").read_text().splitlines()

    def mutate(rng: random.Random) -> None:
        changed = list(lines)
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(changed))
            changed[at] = mutate_json(lines[at], rng) if rng.randrange(4) else changed[at][: rng.randrange(20)]
        data = "\n".join(changed).encode("utf-8", "replace") + b"\n"
        (path / "metrics.jsonl").write_bytes(mutate_bytes(data, rng) if rng.randrange(3) == 0 else data)

    def read() -> Any:
        opened = RunFolder(path)
        found = [
            attempt(opened.records),
            attempt(opened.write_table),
            reported(path, folder),
            attempt(lambda: opened.rewind(3_000)),
        ]
        return first_refusal(found)

    read()
    return read, mutate


def packed_case(folder: Path) -> tuple[Read, Mutate]:
    """Runs packed into one file, unpacked beside nothing and reported; no name leads out of the folder."""
    from oal.base.folder import RunFolder
    from oal.lab.packing import pack, unpack

    made = make_run(folder / "made" / "run", steps=6_000)
    RunFolder(made).set_status("finished", step=6_000)
    path, out = folder / "inside" / "runs.jsonl", folder / "inside" / "again"
    pack([folder / "made"], path)
    line = path.read_text()

    def mutate(rng: random.Random) -> None:
        shutil.rmtree(out, ignore_errors=True)
        data = (mutate_json(line, rng) + "\n" + line).encode("utf-8", "replace")
        path.write_bytes(mutate_bytes(data, rng) if rng.randrange(3) == 0 else data)

    def read() -> Any:
        found = attempt(lambda: unpack(path, out))
        assert {each.name for each in (folder / "inside").iterdir()} <= {"runs.jsonl", "again"}
        return first_refusal([found, reported(out, folder)] if out.is_dir() else [found])

    read()
    return read, mutate


def reported(path: Path, folder: Path) -> Any:
    """Write a report of one run; what is read is the question, not the thousands of resamples of it."""
    from oal import report
    from oal.report import statistics

    statistics._enough = lambda *_: 20
    return report.write([path], folder / "report.html", csv=True)


def attempt(read: Read) -> Any:
    """What one of several readers of the same file gives, or its refusal."""
    try:
        return read()
    except InputError as error:
        return error


def first_refusal(found: list[Any]) -> Any:
    for each in found:
        if isinstance(each, InputError):
            raise each
    return found


# ----- safetensors


def safetensors_case(base: Path, path: Path, read: Read) -> tuple[Read, Mutate]:
    """Mutate arrays and what is said of them; digests are put right again, or nothing would get past them."""
    data = base.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata, body = header.pop("__metadata__"), data[8 + size :]
    types = {"F64": "f8", "F32": "f4", "I64": "i8", "I32": "i4", "U64": "u8", "U32": "u4", "U8": "u1", "BOOL": "?"}
    codes = {np.dtype(code): name for name, code in types.items()} | {np.dtype("i1"): "I8"}
    arrays = {
        name: np.frombuffer(body, types[entry["dtype"]], np.prod(entry["shape"], dtype=int), entry["data_offsets"][0])
        .reshape(entry["shape"])
        for name, entry in header.items()
    }  # fmt: skip

    def mutate(rng: random.Random) -> None:
        if rng.randrange(6) == 0:
            path.write_bytes(mutate_bytes(data, rng))
            return
        changed, about = dict(arrays), dict(metadata)
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(list(changed))
            kind = rng.randrange(6)
            if kind < 2:
                about["info"] = mutate_json(metadata["info"], rng)
            elif kind == 2:
                changed.pop(name)
            elif kind == 3 and len(changed) > 1:
                changed[name] = changed[rng.choice(list(changed))]
            else:
                odd = mutate_array(changed[name], rng)
                changed[name] = odd if odd.dtype in codes else changed[name]
        path.write_bytes(packed(changed, about, rng))

    def packed(changed: dict[str, np.ndarray], about: dict[str, str], rng: random.Random) -> bytes:
        entries, offset, parts, sums = {}, 0, [], {}
        for name, array in changed.items():
            raw = np.ascontiguousarray(array).tobytes()
            entries[name] = {
                "dtype": codes[np.asarray(array).dtype],
                "shape": list(np.shape(array)),
                "data_offsets": [offset, offset + len(raw)],
            }
            sums[name] = zlib.crc32(raw)
            offset += len(raw)
            parts.append(raw)
        if rng.randrange(8) == 0:
            entries = json.loads(json.dumps(entries))
            entry = entries[rng.choice(list(entries))]
            entry[rng.choice(list(entry))] = rng.choice((None, [0, 10**12], [-1, 4], [10**12], "F8", [8, 0], [2] * 40))
        about |= {"header_crc32": "00000000", "crc32": json.dumps(sums)}
        about = {"header_crc32": about.pop("header_crc32"), **about}
        text = json.dumps({"__metadata__": about, **entries}).encode("utf-8", "replace")
        text += b" " * (-len(text) % 8)
        text = text.replace(b"00000000", f"{zlib.crc32(text):08x}".encode(), 1)
        return len(text).to_bytes(8, "little") + text + b"".join(parts)

    return read, mutate


def pendulum() -> Any:
    from oal import demos

    return demos.load("InvertedPendulum-v5")[:1]


def checkpoint_case(folder: Path) -> tuple[Read, Mutate]:
    """A learner's checkpoint, mostly into a learner that is there already: making one takes longer than reading."""
    from oal import OAL
    from oal.deep.presets import preset

    settings = {"policy.hidden": [4], "cost.hidden": [4], "replay.capacity": 200, "replay.warmup_steps": 100}
    config = replace(preset("mdpo", "neural", settings=settings), bc_config=None)
    learner = OAL("InvertedPendulum-v5", pendulum(), config=config)
    learner.learn(60)
    learner.save(folder / "base.safetensors")
    path, reads = folder / "checkpoint.safetensors", itertools.count()

    def read() -> Any:
        return OAL.load(path) if next(reads) % 50 == 0 else learner.restore(path)

    return safetensors_case(folder / "base.safetensors", path, read)


def cloning_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.deep.nets import Layer
    from oal.deep.paused import PausedCloning

    fit = (Layer(np.zeros((2, 3), np.float32), np.zeros(3, np.float32)), np.zeros(2, np.float32))
    paused = PausedCloning(folder / "base.safetensors", seconds=1e-9)
    time.sleep(0.01)
    paused.keep(fit, [1.0, 2.0], [0.5, float("nan")])
    path = folder / "checkpoint.safetensors"
    return safetensors_case(folder / "base.safetensors", path, lambda: PausedCloning(path).taken(fit))


def policy_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.deep.bc import start_members
    from oal.deep.policy import Policy
    from oal.envs import describe, make

    spec = describe(make("InvertedPendulum-v5"))
    Policy(spec, start_members(spec, [4, 4], 1, 0)[0], info={"step": 1}).save(folder / "base.safetensors")
    path = folder / "policy.safetensors"

    def read() -> Any:
        policy = Policy.load(path)
        return policy.predict(np.zeros((2, 4), np.float32))

    return safetensors_case(folder / "base.safetensors", path, read)


def cost_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.deep.costs import cost_player
    from oal.deep.costs.linear import LinearConfig
    from oal.deep.learned_cost import LearnedCost
    from oal.deep.replay import ExpertData
    from oal.demos.pairs import encode
    from oal.envs import describe, make

    spec = describe(make("InvertedPendulum-v5"))
    player = cost_player(LinearConfig()).sized(4, 1, 0.99)
    pairs = ExpertData(encode(pendulum(), spec), spec, 0.99).pairs(None, player.weigh)
    LearnedCost(player, player.init(0, pairs).view, spec, 0.99, {"step": 1}).save(folder / "base.safetensors")
    path = folder / "cost.safetensors"

    def read() -> Any:
        cost = LearnedCost.load(path)
        return cost.summary(), cost.to_json()

    return safetensors_case(folder / "base.safetensors", path, read)


# ----- tabular and linear learners, and sweep files


def tabular_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.tabular import mdp
    from oal.tabular.learner import TabularOAL

    problem = mdp.gridworld(3, 5)
    shown = mdp.sample(problem, mdp.expert_policy(problem), 3, rng=np.random.default_rng(0))
    made = [
        TabularOAL(problem, shown, seed=index, **settings).learn(5)
        for index, settings in enumerate(({"preset": "paper", "bonus_scale": 0.01}, {"cost_set": "l2"}))
    ]
    return learner_case(folder, made, lambda path: TabularOAL.load(path, problem))


def linear_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.linear import LinearOAL, anchored

    problem = anchored(50, 3, 2, horizon=3, support=2)
    shown = problem.sample(3, rng=np.random.default_rng(0))
    made = [
        LinearOAL(problem, shown, algorithm=algorithm, bonus_scale=0.01, panel_samples=2).learn(5)
        for algorithm in ("ogap", "ilarl")
    ]
    return learner_case(folder, made, lambda path: LinearOAL.load(path, problem))


def learner_case(folder: Path, made: list[Any], load: Callable[[Path], Any]) -> tuple[Read, Mutate]:
    """Saved learners, of which members or single numbers are changed."""
    bases = []
    for index, learner in enumerate(made):
        learner.save(folder / f"{index}.npz")
        bases.append((folder / f"{index}.npz").read_bytes())
    mutant = fuzz_demos.archive_mutations(bases, str(folder / "mark"))
    members = [fuzz_demos.members_of(base) for base in bases]
    path = folder / "learner.npz"

    def mutate(rng: random.Random) -> None:
        if rng.randrange(2):
            path.write_bytes(mutant(rng))
            return
        changed = dict(rng.choice(members))  # one number of one array: what only its meaning can tell
        name = rng.choice([name for name in changed if name != "about.npy"])
        array = np.load(fuzz_demos.io.BytesIO(changed[name])).copy()
        if array.size and array.dtype.kind in "iuf":
            odd = (0, 1, -1, 2**31 - 1, 10**9, 7) if array.dtype.kind in "iu" else (np.nan, -1.0, 1e308, 0.0, 2.0)
            with contextlib.suppress(OverflowError, ValueError):
                array.flat[rng.randrange(array.size)] = rng.choice(odd)
        changed[name] = npy(array)
        path.write_bytes(zipped(list(changed.items()), 0))

    return (lambda: load(path).learn(2)), mutate


SWEEP = """[sweep]
env = "InvertedPendulum-v5"
total_steps = 600
cost = "linear"
checkpoint_every = 1000
"policy.hidden" = [16, 16]
stop_at_return = 5.5
name = "x"

[grid]
seed = [0, 1, 2]
"policy.kl_weight" = [0.1, 0.5]

[[runs]]
trajectories = 2

[[runs]]
trajectories = 3
preset = "paper"
"""
ODD_TOML = (
    "[]", "[[]]", "-1", "0", "1e400", "nan", "inf", '""', '"\\u0000"', "true", "{}", "{a = 1}", "1979-05-27", '"x"',
    "9223372036854775808", "1" * 5000, "[" * 500 + "]" * 500, "[1, [2]]", '"../../out"', '[["a"], 1]', "[0, false]",
    '"' + "y" * 5000 + '"', "1979-05-27T07:32:00Z", "07:32:00", '"policy:hidden"', "[nan, inf]", "2147483648",
)  # fmt: skip


def sweep_case(folder: Path) -> tuple[Read, Mutate]:
    from oal.lab.sweep import Sweep

    path = folder / "sweep.toml"

    def mutate(rng: random.Random) -> None:
        lines = SWEEP.splitlines()
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(lines))
            name, equals, _ = lines[at].partition(" = ")
            kind = rng.randrange(6)
            if kind < 3 and equals:
                lines[at] = f"{name} = {rng.choice(ODD_TOML)}"
            elif kind == 3:
                lines[at] = rng.choice(lines)
            elif kind == 4:
                odd = (
                    "policy.x",
                    '"policy."',
                    '"."',
                    '"cost.hidden"',
                    "replay",
                    "environments",
                    '"a.b.c.d"',
                    '""',
                    "seed",
                )
                lines[at] = f"{rng.choice(odd)} = {rng.choice(ODD_TOML)}"
            else:
                lines[at] = rng.choice(("[grid]", "[sweep]", "[[grid]]", "[runs]", "[other]", "[grid.policy]", "["))
        text = "\n".join(lines).encode()
        path.write_bytes(mutate_bytes(text, rng) if rng.randrange(4) == 0 else text)

    return (lambda: Sweep.read(path, most=2_000)), mutate


CASES: dict[str, Callable[[Path], tuple[Read, Mutate]]] = {
    "run folder": run_folder_case,
    "resumed run": resumed_case,
    "metrics": metrics_case,
    "packed runs": packed_case,
    "checkpoint": checkpoint_case,
    "cloning": cloning_case,
    "policy": policy_case,
    "learned cost": cost_case,
    "tabular learner": tabular_case,
    "linear learner": linear_case,
    "sweep file": sweep_case,
}


TOGETHER = ("resumed run", "checkpoint", "cloning", "learned cost")
"""Readers that compute with JAX, whose threads do not live on in a fork: one process reads many files, until one kills
it. The others have a process for each."""


def demos_case(reader: str, folder: Path) -> tuple[Read, Mutate]:
    (folder / "made").mkdir()
    read, mutant = fuzz_demos.case_of(reader, folder / "made", str(folder / "mark"))
    made: list[Any] = []

    def mutate(rng: random.Random) -> None:
        made[:] = [mutant(rng)]
        parts = made[0] if isinstance(made[0], tuple) else made
        for index, part in enumerate(parts):
            (folder / f"mutant-{index}").write_bytes(part or b"")

    return (lambda: read(made[0])), mutate


# ----- a process for each file


class Slow(BaseException):
    """A file takes too long."""


def slow(*_: object) -> None:
    raise Slow


def outcome(read: Read) -> tuple[str, str, float, str]:
    """Read one mutant: how it went, in a word and a sentence, the processor's seconds, and the stack of a finding."""
    begun, why = time.process_time(), ""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WAITS * SECONDS)
    try:
        read()
        result, message = "read", ""
    except InputError as error:
        result, message = "refused", re.sub(r"[\d.]+|'[^']*'|\(.*?\)|/\S+", "#", str(error))[:80]
    except BaseException as error:
        result, message, why = "finding", f"{type(error).__name__}: {str(error)[:200]}", traceback.format_exc()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    return result, message, time.process_time() - begun, why


def apart(read: Read) -> tuple[str, str, float, str]:
    """As `outcome`, in a copy of this process: what a file does to it ends with it, as does one that never ends."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(here, json.dumps(outcome(read)).encode()[:60_000])
        os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb") as pipe:
        if not select.select([pipe], [], [], WAITS * SECONDS + 5)[0]:  # inside compiled code, where no alarm is heard
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text:
        return tuple(json.loads(text))
    how = "Slow: ended by signal 9" if code == -signal.SIGKILL else f"exit code {code}"
    return "finding", how, 0.0, how


def work(readers: list[str], first: int, count: int, seed: int, keep: Path) -> None:
    """Read mutants, and say on stdout how each went, and which is next: the last line before a crash names it."""
    warnings.simplefilter("ignore")
    for reader in readers:
        if "learner" not in reader:  # numba keeps its compiled kernels as pickles of its own
            fuzz_demos.pickle.load = fuzz_demos.pickle.loads = fuzz_demos.opened_pickle  # type: ignore[assignment]
        folder = keep / "now" / reader.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        read, mutate = CASES[reader](folder) if reader in CASES else demos_case(reader.removeprefix("demos "), folder)
        if reader == readers[0]:
            fuzz_demos.limit_memory()
        for index in range(first, count):
            mutate(random.Random(f"{reader} {seed} {index}"))
            say(reader, index, "next")
            result, message, seconds, why = (outcome if reader in TOGETHER else apart)(read)
            if result == "finding":
                kept(keep, folder, reader, seed, index, why)
            say(reader, index, result, message, seconds)
        first = 0


def say(*words: Any) -> None:
    print(json.dumps(words), flush=True)


def kept(keep: Path, folder: Path, reader: str, seed: int, index: int, why: str) -> None:
    place = keep / f"{reader.replace(' ', '-')}-{seed}-{index}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place, symlinks=True, ignore=shutil.ignore_patterns("made", "base*", "report*"))
    (place / "why.txt").write_text(why)


def _fuzz_from(reader: str, first: int, count: int, seed: int, keep: Path, row: dict[str, Any]) -> int | None:
    """Read mutants from the first on; return where to go on after one that killed the process."""
    command = [sys.executable, __file__, reader, "--work", "--count", str(count), "--seed", str(seed)]
    command += ["--keep", str(keep), "--first", str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    last: list[Any] = [reader, first - 1, ""]
    assert process.stdout is not None
    watch = threading.Timer(0, process.kill)
    for line in process.stdout:
        watch.cancel()
        last = json.loads(line)
        if last[2] == "next":  # inside compiled code the process does not hear its own alarm
            watch = threading.Timer(WAITS * SECONDS + 30, process.kill)
            watch.start()
        else:
            _, index, result, message, seconds = last
            row[result] += 1
            row["messages"].add(message)
            row["slowest"] = max(row["slowest"], seconds)
            if result == "finding":
                row["findings"].append((index, message))
    assert process.stderr is not None
    stderr = process.stderr.read()
    if process.wait() == 0:
        return None
    _, index, what = last[:3]
    if what != "next":  # it did not die of a file
        raise RuntimeError(f"the fuzzer of {reader} failed:\n{stderr[-3000:]}")
    kept(keep, keep / "now" / reader.replace(" ", "-"), reader, seed, index, f"exit code {process.returncode}")
    row["finding"] += 1
    row["findings"].append((index, f"exit code {process.returncode}"))
    return index + 1


def fuzz(readers: list[str], count: int, seed: int, keep: Path, *, first: int = 0) -> dict[str, dict[str, Any]]:
    """Read `count` mutants with each reader, which has a process of its own that forks one for each file.

    If it dies itself, it is started again after the file that killed it.
    """
    table = {
        name: {"read": 0, "refused": 0, "finding": 0, "slowest": 0.0, "messages": set(), "findings": []}
        for name in readers
    }
    for reader in readers:
        at: int | None = first
        while at is not None:
            at = _fuzz_from(reader, at, count, seed, keep, table[reader])
    shutil.rmtree(keep / "now", ignore_errors=True)
    return table


def main() -> int:
    readers = [*(f"demos {name}" for name in fuzz_demos.READERS), *CASES]
    parser = argparse.ArgumentParser()
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(readers))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one mutant alone, with its traceback")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = given.readers or readers
    if unknown := set(chosen) - set(readers):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.only is not None:
        given.first, given.count, given.work = given.only, given.only + 1, True
    if given.work:
        work(chosen, given.first, given.count, given.seed, given.keep)
        return 0
    findings = 0
    print(
        f"{'reader':16} {'files':>7} {'read':>7} {'refused':>8} {'findings':>9} {'reasons':>8} {'slowest':>8} {'s':>7}"
    )
    for reader in chosen:
        begun = time.monotonic()
        row = fuzz([reader], given.count, given.seed, given.keep)[reader]
        files, seconds = row["read"] + row["refused"] + row["finding"], time.monotonic() - begun
        print(f"{reader:16} {files:7} {row['read']:7} {row['refused']:8} {row['finding']:9}", end=" ")
        print(f"{len(row['messages']):8} {row['slowest']:8.2f} {seconds:5.0f}", flush=True)
        for index, message in row["findings"][:20]:
            print(f"  {given.keep}/{reader.replace(' ', '-')}-{given.seed}-{index}: {message}", flush=True)
        findings += row["finding"]
    print("no finding" if not findings else f"{findings} findings, each with its file in {given.keep}")
    return int(findings > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch
        sys.exit(main())
