"""The guard for macOS and the BSDs: a session, a poll of the tree, signals.  Best effort.

Nothing there adopts orphans, so what detaches between two polls is lost; this guard therefore
never says that a tree is empty, only that it sees nothing of it.  It dies with its host.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from stopkit.units.broker import exit_of
from stopkit.units.errors import UnitNotStarted
from stopkit.units.facts import Exit, Member, SignalSent, Survivor, SurvivorReason
from stopkit.units.guard import Ended, Order, Started
from stopkit.units.kernel import Kernel
from stopkit.units.warden import NAMED, Escalation, Identity, Proc, Sent

POLL: Final = 0.05
"""Seconds between two looks at the tree while it runs."""


class Tracker:
    """Which processes belong to a tree, by what is seen of it from one look to the next.  Pure.

    A process belongs if its parent, its group or its session does, or if it once did.
    """

    def __init__(self, leader: Proc, own_group: int) -> None:
        if leader.pgid == own_group:
            # Signalling it would reach this very process.
            raise ValueError("the leader is in the caller's own process group")
        self.leader = leader.pid
        self.known: dict[Identity, Proc] = {leader.identity: leader}
        self.groups: set[int] = {leader.pgid}
        self._sessions: set[int] = {leader.sid} - {0}
        self._own_group = own_group

    def look(self, table: Iterable[Proc]) -> list[Proc]:
        """The members that are there now, zombies included."""
        everyone = [proc for proc in table if proc.pgid != self._own_group]
        pids = {proc.pid for proc in everyone if proc.identity in self.known}
        grew = True
        while grew:
            grew = False
            for proc in everyone:
                if proc.pid in pids or not self._belongs(proc, pids):
                    continue
                pids.add(proc.pid)
                grew = True
                if proc.pgid == proc.pid:
                    self.groups.add(proc.pid)
                if proc.sid == proc.pid:
                    self._sessions.add(proc.pid)
        found = [proc for proc in everyone if proc.pid in pids]
        for proc in found:
            self.known[proc.identity] = proc
        return found

    def _belongs(self, proc: Proc, pids: set[int]) -> bool:
        return proc.ppid in pids or proc.pgid in self.groups or proc.sid in self._sessions


def deliver(
    kernel: Kernel, due: Sequence[tuple[Proc, int]], groups: Iterable[int]
) -> list[tuple[Proc, int, Sent]]:
    """Signal by group where that works, one by one where it is refused or reaches nobody.

    macOS refuses the whole group where one member may not be signalled.
    """
    results: list[tuple[Proc, int, Sent]] = []
    known = set(groups)
    for number in dict.fromkeys(sig for _, sig in due):
        reached: dict[int, Sent] = {}
        for proc, sig in due:
            if sig != number:
                continue
            if proc.pgid in known and proc.pgid not in reached:
                reached[proc.pgid] = kernel.send_group(proc.pgid, number)
            if reached.get(proc.pgid) == "sent":
                results.append((proc, number, "sent"))
            else:
                results.append((proc, number, kernel.send(proc.pid, proc.start, number)))
    return results


class GroupEnd:
    """One tree's end, pass by pass.  Pure but for the kernel that it is given."""

    def __init__(self, kernel: Kernel, tracker: Tracker, now: float, grace: float, verify: float):
        self._kernel = kernel
        self._tracker = tracker
        self._began = now
        self.escalation = Escalation(now, grace=grace, verify=verify)
        self._signals: list[SignalSent] = []
        self._refused: set[Identity] = set()
        self._calm = 0
        self._leader_signalled = False

    def step(self, now: float, origin: float) -> Ended | None:
        """Look, signal, and say what came of it once nothing is left or the time is up."""
        living = [proc for proc in self._tracker.look(self._kernel.processes()) if proc.alive]
        self._calm = 0 if living else self._calm + 1
        if self._calm >= 2 or self.escalation.expired(now):
            return self._ended(living)
        results = deliver(self._kernel, self.escalation.step(now, living), self._tracker.groups)
        for proc, _, how in results:
            if how == "refused":
                self.escalation.refused(proc)
                self._refused.add(proc.identity)
        for number in dict.fromkeys(sig for _, sig, _ in results):
            got = tuple(p.pid for p, sig, how in results if sig == number and how == "sent")
            no = tuple(p.pid for p, sig, how in results if sig == number and how == "refused")
            if self._tracker.leader in got:
                self._leader_signalled = True
            if (got or no) and len(self._signals) < NAMED:
                self._signals.append(
                    SignalSent(number, now - origin, len(got), got[:NAMED], no[:NAMED])
                )
        return None

    def _ended(self, living: Sequence[Proc]) -> Ended:
        kernel = self._kernel
        seen = list(self._tracker.known.values())
        return Ended(
            "no" if living else "unknown",
            self._leader_signalled,
            tuple(self._signals),
            len(seen),
            tuple(Member(p.pid, p.start, kernel.uid(p.pid), p.name) for p in seen[:NAMED]),
            tuple(
                Survivor(p.pid, p.start, kernel.uid(p.pid), p.name, self._reason(p))
                for p in living[:NAMED]
            ),
        )

    def _reason(self, proc: Proc) -> SurvivorReason:
        if proc.identity in self._refused:
            return "not_permitted"
        return "uninterruptible" if proc.state in ("D", "U") else "deadline"


class GroupGuard:
    """A guard inside the host."""

    def __init__(self, kernel: Kernel, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._kernel = kernel
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self.leader: asyncio.Future[Exit | None] = self._loop.create_future()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._tracker: Tracker | None = None
        self._end: GroupEnd | None = None
        self._task: asyncio.Task[None] | None = None
        self._began = 0.0

    async def start(self, order: Order, stdio: tuple[int, int, int]) -> Started:
        self._began = self._monotonic()
        try:
            process = _spawn(order, stdio)
        except OSError as error:
            where = "cwd" if error.filename == order.cwd else "exec"
            raise UnitNotStarted(f"{where}: {error}", where=where, errno=error.errno) from error
        self._process = process
        leader = self._kernel.look(process.pid) or Proc(
            process.pid, os.getpid(), process.pid, process.pid, 0, "Z", order.argv[0]
        )
        self._tracker = Tracker(leader, os.getpgid(0))
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        self._task = self._loop.create_task(self._follow())
        return Started(process.pid, leader.start, "group", self._began)

    def stop(self, *, grace: float, verify: float) -> None:
        now = self._monotonic()
        if self._end is not None:
            self._end.escalation.press(now, grace=grace, verify=verify)
        elif self._tracker is not None:
            self._end = GroupEnd(self._kernel, self._tracker, now, grace, verify)

    def force(self) -> None:
        if not self.ended.done():
            self.ended.set_result(Ended("unknown"))

    def signal(self, number: int) -> None:
        if self._process is not None and not self.leader.done():
            leader = self._kernel.look(self._process.pid)
            if leader is not None:
                self._kernel.send(leader.pid, leader.start, number)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        status = -code if code < 0 else code << 8
        after = self._monotonic() - self._began

        def tell() -> None:
            if not self.leader.done():
                self.leader.set_result(exit_of(status, after))

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    async def _follow(self) -> None:
        assert self._tracker is not None
        while not self.ended.done():
            if self._end is None:
                self._tracker.look(self._kernel.processes())
                await asyncio.sleep(POLL)
                continue
            ended = self._end.step(self._monotonic(), self._began)
            if ended is not None and not self.ended.done():
                self.ended.set_result(ended)
                return
            pause = self._end.escalation.delay(self._monotonic())
            await asyncio.sleep(min(POLL, max(0.002, pause)))


def _spawn(order: Order, stdio: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        order.argv,
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        cwd=order.cwd,
        env=dict(order.env),
        start_new_session=True,
    )
