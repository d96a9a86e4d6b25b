"""What is really alive, found without the code under test: a mark of the tests' own, and /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "STOPKIT_ZOO"


def marked(mark):
    """pid and name of what lives and bears the mark, in its environment or its argv."""
    needle = mark.encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        for part in ("environ", "cmdline"):
            try:
                with open(f"/proc/{name}/{part}", "rb") as file:
                    text = file.read()
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            head, _, rest = stat.rpartition(b")")
            if needle in text and rest.split()[0] not in (b"Z", b"X"):
                found[int(name)] = head.partition(b"(")[2].decode()
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def until(condition, *, within=20.0, step=0.01):
    """The first true value of `condition()`."""
    end = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {within} s: {condition}")
        time.sleep(step)


def survivors(mark, *, within=2.0):
    """What bears the mark and does not go away."""
    end = time.monotonic() + within
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def clean(mark):
    """End what a failed test leaves behind; only what bears its mark."""
    for _ in range(100):
        left = marked(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
