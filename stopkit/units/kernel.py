"""What the units ask of an operating system: which processes there are, and to signal one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Protocol

from stopkit.units.ps import PsKernel
from stopkit.units.warden import LinuxKernel, Proc, Sent

# Annotated: a checker would otherwise call the other systems' code unreachable.
_PLATFORM: Final[str] = sys.platform


class Kernel(Protocol):
    """`start` tells two processes of one pid apart; its unit is the system's own."""

    def look(self, pid: int) -> Proc | None: ...

    def processes(self) -> Sequence[Proc]:
        """All of them, zombies included."""
        ...

    def marked(self, marker: str, *, since: int = 0) -> Sequence[Proc]:
        """The living ones whose environment has the marker, as far as we may look."""
        ...

    def uid(self, pid: int) -> int | None: ...

    def send(self, pid: int, start: int, number: int) -> Sent:
        """Signal one process, if it still is the one that started then."""
        ...

    def send_group(self, pgid: int, number: int) -> Sent:
        """Signal a process group, never the caller's own."""
        ...

    def writers(self, inode: int) -> Sequence[Proc]:
        """Who holds a pipe open for writing, as far as we may look."""
        ...

    def boot_id(self) -> str:
        """Different after each boot; empty where the system does not tell."""
        ...


def default_kernel() -> Kernel:
    """That of the system this runs on."""
    return LinuxKernel() if _PLATFORM.startswith("linux") else PsKernel()
