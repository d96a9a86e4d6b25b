"""Ctrl-C, SIGTERM and SIGHUP: the work ends early, and clears up behind itself."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """One of `SIGNALS` came; `number` tells which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Now:
    """What the handler knows.  A process has one set of handlers, so there is one."""

    came: int | None = None
    waiting: bool = False
    """It came while it was held, and was not raised yet."""
    holds: int = 0


@contextlib.contextmanager
def raised(*, last: bool) -> Iterator[None]:
    """Within, the first signal that comes raises `Interrupted` in the main thread.

    Later ones do nothing: what runs by then is the clearing up, and some supervisors send two
    signals at once.  Afterwards they are as before, or with `last` end the process on the spot,
    silently, with 128 + the signal's number: nothing is left to clear up.

    A signal that is ignored (`nohup`) or has a handler of somebody else's stays so, and all do
    outside the main thread.
    """
    _Now.came, _Now.waiting, _Now.holds = None, False, 0
    usual = (signal.SIG_DFL, signal.default_int_handler)
    here = threading.current_thread() is threading.main_thread()
    before = {n: h for n in SIGNALS if here and (h := signal.getsignal(n)) in usual}
    try:
        for number in before:
            signal.signal(number, _raise)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, _leave if last else handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Within, a signal waits: it is raised on leaving.  For a few quick steps that belong together.

    Raises:
        Interrupted: on leaving.
    """
    _Now.holds += 1
    try:
        yield
    finally:
        _Now.holds -= 1
        if _Now.waiting and not _Now.holds:
            _Now.waiting = False
            checkpoint()


def checkpoint() -> None:
    """Raise what came, once more: Python drops what is raised in a finalizer.

    Raises:
        Interrupted: a signal came.
    """
    if _Now.came is not None:
        raise Interrupted(_Now.came)


def _raise(number: int, _: FrameType | None) -> None:
    if _Now.came is not None:
        return
    _Now.came = number
    if _Now.holds:
        _Now.waiting = True
    else:
        raise Interrupted(number)


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
