"""Stops: SIGINT, SIGTERM and SIGHUP end work where it can go on from, and a second one ends it at once.

Within `listening` a signal raises `Stopped` wherever the program is. Within `deferred` the first signal only asks: work
looks at `asked` between its blocks, keeps what it has, and raises `Stopped` (`check`); what is done by then just ends.
`going_on` adds the command that goes on. `Pace` says when to keep work without being asked.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
KEEP_SECONDS = 120.0
"""How often work is kept by the clock unless told otherwise."""
AT_ONCE_SECONDS = 2.0
"""How long a second signal waits for compiled code, which Python cannot interrupt, before it ends the process."""
_SAVING_SHARE = 20.0

_deferring = 0
_asked: int | None = None
_before: dict[int, Any] = {}
"""The handlers that were there; not empty while somebody listens."""


class Stopped(KeyboardInterrupt):
    """A signal stopped the work; `go_on` is the command that goes on from what was kept."""

    def __init__(self, number: int, go_on: str = "") -> None:
        super().__init__(number)
        self.number, self.go_on = number, go_on

    @property
    def code(self) -> int:
        """The exit code that shells know for this."""
        return 128 + self.number

    def __str__(self) -> str:
        how = f"; go on with\n  {self.go_on}" if self.go_on else ""
        return f"stopped by {signal.Signals(self.number).name}{how}"


def asked() -> bool:
    """Whether a signal has asked to stop; from any thread."""
    return _asked is not None


def check() -> None:
    """Raise `Stopped` if a signal has asked to stop."""
    if _asked is not None:
        raise Stopped(_asked)


@contextmanager
def going_on(command: str) -> Iterator[None]:
    """Say of a stop within which command goes on; the outermost one counts."""
    try:
        yield
    except Stopped as stop:
        stop.go_on = command
        raise


def typed() -> str:
    """Return the command that this process was started with."""
    return shlex.join(["oal", *sys.argv[1:]])


@contextmanager
def listening() -> Iterator[None]:
    """Turn the signals into `Stopped` from here on. Ignored ones (nohup) stay ignored; threads hear none."""
    if _before or threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: of C code that embeds Python
            _before[number] = signal.signal(number, _receive)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    done = threading.Event()
    threading.Thread(target=_end_at_the_second, args=(reading, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writing)  # the thread comes to its end
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()


@contextmanager
def deferred() -> Iterator[None]:
    """Let the first signal only ask; leaving the outermost block raises `Stopped` if nobody has."""
    global _deferring, _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with listening():
        _deferring += 1
        number = None
        try:
            yield
            number = _asked
        finally:
            _deferring -= 1
            if _deferring == 0:
                _asked = None
        if number is not None and _deferring == 0:
            raise Stopped(number)


def _receive(number: int, _: Any) -> None:
    global _asked
    if not _deferring or _asked is not None:
        raise Stopped(number)
    _asked = number
    with suppress(OSError):  # not print: the signal may have come in the middle of one
        os.write(2, b"stopping as soon as everything is kept; once more stops at once\n")


def _end_at_the_second(reading: int, done: threading.Event) -> None:
    """End the process after a second signal if the main thread does not: it may be inside compiled code for long."""
    count = 0
    while received := os.read(reading, 1):
        count += received[0] in _before
        if count > 1 and not done.wait(AT_ONCE_SECONDS):
            os._exit(128 + received[0])
    os.close(reading)


def _forget() -> None:
    """A forked process (a simulator's, say) has the signals as they were: one for it is not one for us."""
    global _deferring, _asked
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()
        _deferring, _asked = 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Pace:
    """Says when to keep work: at a stop, and every so many seconds (0: never), for a twentieth of the time at most."""

    def __init__(self, seconds: float = KEEP_SECONDS) -> None:
        self.seconds = seconds
        self._last, self._took = time.monotonic(), 0.0

    def due(self) -> bool:
        passed = time.monotonic() - self._last
        return asked() or (self.seconds > 0 and passed >= max(self.seconds, _SAVING_SHARE * self._took))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Time what is done within, and count from its end."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._took = self._last - begun
