"""A kernel for tests: processes that exist as far as a test says so."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stopkit.units.warden import Proc, Sent

Reaction: TypeAlias = Callable[[int], None]


@dataclass
class FakeProcess:
    """`obeys` are the signals that end it; `on_signal` is called before that."""

    proc: Proc
    uid: int
    marker: str = ""
    obeys: frozenset[int] = frozenset({signal.SIGTERM, signal.SIGKILL})
    on_signal: Reaction | None = None
    got: list[int] = field(default_factory=list[int])


class FakeKernel:
    """`user` may signal its own processes only, unless it is 0.

    `refuses_groups`: a group signal is refused as soon as one member may not be signalled, as
    macOS does it.
    """

    def __init__(self, *, user: int = 501, refuses_groups: bool = True) -> None:
        self.user = user
        self.refuses_groups = refuses_groups
        self.table: dict[int, FakeProcess] = {}
        self.group_signals: list[tuple[int, int]] = []
        self._next = 100
        self._ticks = 0

    def spawn(
        self,
        *,
        parent: Proc | None = None,
        uid: int | None = None,
        new_group: bool = False,
        new_session: bool = False,
        obeys: Sequence[int] = (signal.SIGTERM, signal.SIGKILL),
        on_signal: Reaction | None = None,
        marker: str = "",
    ) -> Proc:
        pid, self._next = self._next, self._next + 1
        self._ticks += 1
        alone = parent is None or new_session
        proc = Proc(
            pid,
            1 if parent is None else parent.pid,
            pid if alone or new_group else parent.pgid if parent else pid,
            pid if alone else parent.sid if parent else pid,
            self._ticks,
            "S",
            f"p{pid}",
        )
        self.table[pid] = FakeProcess(
            proc,
            self.user if uid is None else uid,
            marker,
            frozenset(obeys),
            on_signal,
        )
        return proc

    def end(self, pid: int) -> None:
        """It ends; its children become those of process 1, as where nothing adopts them."""
        self.table.pop(pid, None)
        for entry in self.table.values():
            if entry.proc.ppid == pid:
                entry.proc = entry.proc._replace(ppid=1)

    def look(self, pid: int) -> Proc | None:
        entry = self.table.get(pid)
        return None if entry is None else entry.proc

    def processes(self) -> Sequence[Proc]:
        return [entry.proc for entry in self.table.values()]

    def marked(self, marker: str, *, since: int = 0) -> Sequence[Proc]:
        return [
            entry.proc
            for entry in self.table.values()
            if marker in entry.marker and entry.proc.start >= since and entry.uid == self.user
        ]

    def uid(self, pid: int) -> int | None:
        entry = self.table.get(pid)
        return None if entry is None else entry.uid

    def send(self, pid: int, start: int, number: int) -> Sent:
        entry = self.table.get(pid)
        if entry is None or entry.proc.start != start:
            return "gone"
        if not self._may(entry):
            return "refused"
        self._deliver(entry, number)
        return "sent"

    def send_group(self, pgid: int, number: int) -> Sent:
        members = [entry for entry in self.table.values() if entry.proc.pgid == pgid]
        if not members:
            return "gone"
        allowed = [entry for entry in members if self._may(entry)]
        if not allowed or (self.refuses_groups and len(allowed) < len(members)):
            return "refused"
        self.group_signals.append((pgid, number))
        for entry in allowed:
            self._deliver(entry, number)
        return "sent"

    def writers(self, inode: int) -> Sequence[Proc]:
        return ()

    def boot_id(self) -> str:
        return "fake"

    def _may(self, entry: FakeProcess) -> bool:
        return self.user in (0, entry.uid)

    def _deliver(self, entry: FakeProcess, number: int) -> None:
        entry.got.append(number)
        if entry.on_signal is not None:
            entry.on_signal(number)
        if number in entry.obeys:
            self.end(entry.proc.pid)
