"""Processes as `ps` shows them, for systems without `/proc`.  Start times are whole seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from stopkit.units.warden import Proc, Sent

_COLUMNS: Final = "pid=,ppid=,pgid=,uid=,stat=,lstart=,comm="
_WAIT: Final = 5.0


class PsKernel:
    """The kernel layer of macOS and the BSDs, by one run of `ps` for each look."""

    def __init__(self) -> None:
        self._uids: dict[int, int] = {}

    def look(self, pid: int) -> Proc | None:
        found = self._ps("-p", str(pid))
        return found[0] if found else None

    def processes(self) -> Sequence[Proc]:
        return self._ps("-ax")

    def marked(self, marker: str, *, since: int = 0) -> Sequence[Proc]:
        # macOS shows an environment by -E, the others by e.
        show = ["-axww", "-E"] if sys.platform == "darwin" else ["axeww"]
        lines = _run([*show, "-o", "pid=,command="])
        pids = {int(line.split(None, 1)[0]) for line in lines if marker in line}
        return [
            proc
            for proc in self.processes()
            if proc.pid in pids and proc.alive and proc.start >= since
        ]

    def uid(self, pid: int) -> int | None:
        return self._uids.get(pid)

    def send(self, pid: int, start: int, number: int) -> Sent:
        proc = self.look(pid)
        if proc is None or proc.start != start:
            return "gone"
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return "gone"
        except OSError:
            return "refused"
        return "sent"

    def send_group(self, pgid: int, number: int) -> Sent:
        # A group of ours would take this very process with it.
        if pgid in (0, 1, os.getpgid(0)):
            return "refused"
        try:
            os.killpg(pgid, number)
        except ProcessLookupError:
            return "gone"
        except OSError:
            return "refused"
        return "sent"

    def writers(self, inode: int) -> Sequence[Proc]:
        """Nobody: `ps` does not tell."""
        return ()

    def boot_id(self) -> str:
        return ""

    def _ps(self, *which: str) -> list[Proc]:
        found: list[Proc] = []
        for line in _run([*which, "-o", _COLUMNS]):
            proc = parse(line)
            if proc is not None:
                found.append(proc[0])
                self._uids[proc[0].pid] = proc[1]
        return found


def parse(line: str) -> tuple[Proc, int] | None:
    """A process and its uid from one line; None for a line that is not one."""
    part = line.split(None, 10)
    if len(part) < 11:
        return None
    try:
        pid, ppid, pgid, uid = (int(text) for text in part[:4])
        start = int(time.mktime(time.strptime(" ".join(part[5:10]), "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return None
    # `ps` has no portable column for the session; groups and parents have to do.
    return Proc(pid, ppid, pgid, 0, start, part[4][0], part[10].strip()), uid


def _run(arguments: Sequence[str]) -> list[str]:
    try:
        done = subprocess.run(
            ["ps", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            timeout=_WAIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()
