"""Set up the numerical libraries before they load: threads, the device, and a place for compiled programs."""

import hashlib
import os
import platform
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from oal.base import console
from oal.errors import InputError, at_least, choice


def set_threads(threads: int = 1) -> None:
    """Give this process `threads` threads of computation; call it before NumPy and JAX are imported.

    The networks here are small: one-thread processes side by side do more together than one process with many
    threads. NumPy's products on the host are smaller still, and always get one thread. What the user has set stands.
    """
    at_least("threads", threads, 1)
    if "jax" in sys.modules:
        raise InputError("threads cannot be set once JAX is loaded: call oal.base.runtime.set_threads first")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # the size of XLA's own pool; without it, XLA takes every core whatever the flag below says
    os.environ.setdefault("NPROC", str(threads))
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    default_device()


DEVICES = ("cpu", "gpu", "tpu", "auto")


def default_device() -> None:
    """Let JAX compute on the processor, unless the user has said otherwise or has loaded JAX before oal.

    The simulator is there, and the networks are small: they would wait for each other across the bus.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def set_device(device: str) -> None:
    """Compute on "cpu", "gpu", "tpu" or "auto", what JAX prefers; call it before anything is learned or loaded."""
    platforms = "" if choice("device", device, DEVICES) == "auto" else device
    os.environ["JAX_PLATFORMS"] = platforms  # workers take it over
    if device == "cpu" and "jax" not in sys.modules:
        return
    import jax

    jax.config.update("jax_platforms", platforms or None)
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        reason = str(error).partition(" (set ")[0]
        raise InputError(
            f"device {device!r} cannot be used ({reason}): install JAX for it, as with  pip install 'jax[cuda12]', or "
            "choose cpu"
        ) from None
    if found != (device if platforms else found):
        raise InputError(f"JAX computes on {found!r} already: call oal.set_device({device!r}) before anything else")


def keep_compiled_programs() -> None:
    """Keep JAX's compiled programs in the user's cache folder, so that a second run starts in seconds.

    A program fits the processor it was compiled for, so each kind of processor has its own folder. Call it
    before JAX is imported. A folder the user has set stands; an unwritable one only costs the time to compile.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        try:
            folder = _cache_folder()
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
            console.say(f"compiled programs cannot be kept ({error}): they are compiled in every process", err=True)
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    # small programs too: there are dozens before the first step
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _cache_folder() -> Path:
    """Return the folder for compiled programs after trying to write there: JAX would warn at every program."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "oal" / f"compiled-{_processor()}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


@lru_cache(maxsize=1)
def compiler_options() -> dict[str, str | bool]:
    """Return XLA's options for a long loop of small networks' products; those that this XLA does not know are left out.

    The loop's weights are updated in place instead of copied from step to step. On several threads YNNPACK splits such
    products badly, and Eigen splits them well; on one thread YNNPACK is the quicker. The two round differently, so a
    run on one thread and the same run on several agree to rounding only.
    """
    import jax

    options: dict[str, str | bool] = {"xla_cpu_copy_insertion_use_region_analysis": True}
    threads = os.environ.get("NPROC", "")
    if (int(threads) if threads.isdigit() else os.cpu_count()) != 1:
        options["xla_cpu_experimental_ynn_fusion_type"] = ""

    def known(name: str) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options={name: options[name]}).lower(0.0).compile()
        except RuntimeError:
            return False
        return True

    return {name: value for name, value in options.items() if known(name)}


def _processor() -> str:
    """Return a short name for this kind of processor: its architecture and a hash of what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"
