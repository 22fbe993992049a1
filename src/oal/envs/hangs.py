"""Environments that hang: a step or a reset that takes longer than a limit is reported, and ends the run.

Who steps environments counts `watch.calls` up before and after, so that it is odd meanwhile: two additions a step. A
thread looks now and then whether it is odd and has stood still.
"""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from oal.errors import InputError, at_least

TIMEOUT_SECONDS = 300.0
LOOKS = 20
"""Times the thread looks within a time-out; a process that was suspended meanwhile has hung for one look at most."""
PATIENCE_SECONDS = 5.0
"""How long an environment may take to be interrupted: compiled code cannot be."""
EXIT_CODE = 2


class HungError(InputError):
    """An environment's step or reset did not return in time."""


class Watch:
    """Counts the calls into environments: odd within one."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


watch = Watch()


@contextmanager
def limited(seconds: float, env_id: str, *, give_up: Callable[[HungError], None] = lambda _: None) -> Iterator[None]:
    """Raise HungError where a step or a reset takes longer than so many seconds; 0: never.

    Where the environment cannot be interrupted, being inside compiled code, the process ends after `give_up`.
    """
    at_least("step_timeout", seconds, 0)
    if not seconds or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    error = HungError(
        f"{env_id} has been in one step or reset for {seconds:g} s: it hangs (stderr or worker.log has its stack); "
        "mend it, or give it longer with --step-timeout (0: for ever; in a sweep: step_timeout)"
    )

    def interrupt(*_: Any) -> None:
        raise error

    def look() -> None:
        before, times = watch.calls, 0
        while not done.wait(seconds / LOOKS):
            same = watch.calls == before and before % 2 == 1
            before, times = watch.calls, times + 1 if same else 0
            if times < LOOKS:
                continue
            with suppress(Exception):  # a stderr without a file descriptor
                faulthandler.dump_traceback(sys.__stderr__ or 2)
            signal.pthread_kill(main, signal.SIGALRM)
            if not left.wait(PATIENCE_SECONDS):
                print(f"error: {error}", file=sys.stderr, flush=True)
                give_up(error)
                os._exit(EXIT_CODE)
            return

    watch.calls = 0
    main, done, left = threading.get_ident(), threading.Event(), threading.Event()
    handler = signal.signal(signal.SIGALRM, interrupt)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        done.set()
        thread.join()
        signal.signal(signal.SIGALRM, handler)
