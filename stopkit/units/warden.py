"""The Linux side of process units: one broker for a host process, one warden for each unit.

    host ──── socket ────► broker ──fork──► warden ──fork, exec──► the tool and its tree
      └──────────────── control, one per unit ┘

Runs alone, by `python -I -S`, on nothing but the standard library; the host imports it too, for
the kernel layer and the escalation.

1. A warden is a child subreaper in a session of its own: whatever its tool starts stays below it,
   in whatever session, and once nothing is below it the kernel itself says so (ECHILD).
2. A broker is one too: it inherits the tree of a warden that was killed, and ends it.
3. The tool never holds the control socket (close-on-exec): it can neither keep the host waiting
   nor speak in its warden's place.
4. The end of the host is seen by pidfd as well as by the control socket's end: a host that has
   forked leaves that open.
5. A process is signalled through a pidfd, after another look at its start time: pids recycle.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

MARKER: Final = "STOPKIT_UNIT"
"""The environment variable that marks every process of a unit."""

HOST_LOST_GRACE: Final = 0.5
"""Seconds of grace, at most, for a tool whose host has died: nobody waits for what it may save."""

NAMED: Final = 256
"""Members and signalled processes that a report names; the rest is counted."""

Sent: TypeAlias = Literal["sent", "gone", "refused"]
Identity: TypeAlias = tuple[int, int]
"""A pid with its start time: a process, where a pid alone is a number that recycles."""

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_WALL: Final = 0x40000000
_SYS_CLONE3: Final = 435
_CLONE_INTO_CGROUP: Final = 0x200000000
# The interpreter's lock stays ours over a call: a clone must not find it let go.
_LIBC: Final = ctypes.PyDLL(None if os.name == "posix" else "kernel32", use_errno=True)
_LEFT_SURVIVORS: Final = 3
_MESSAGE: Final = 1 << 18


class Proc(NamedTuple):
    """One process.  `start` is in clock ticks since boot."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    start: int
    state: str
    name: str

    @property
    def identity(self) -> Identity:
        return self.pid, self.start

    @property
    def alive(self) -> bool:
        # A zombie runs nothing any more, whoever has yet to reap it.
        return self.state not in ("Z", "X", "x")


class LinuxKernel:
    """Processes, as `/proc` shows them."""

    def __init__(self) -> None:
        # A kernel without CONFIG_PROC_CHILDREN only leaves the scan by parent.
        self._lists_children = os.path.exists(f"/proc/self/task/{os.getpid()}/children")

    def look(self, pid: int) -> Proc | None:
        raw = _read(f"/proc/{pid}/stat")
        if raw is None:
            return None
        # The name is in parentheses, and may hold some itself.
        head, _, rest = raw.rpartition(b")")
        part = rest.split()
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return Proc(
            pid,
            int(part[1]),
            int(part[2]),
            int(part[3]),
            int(part[19]),
            part[0].decode("ascii"),
            name,
        )

    def processes(self) -> list[Proc]:
        found = (self.look(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return [proc for proc in found if proc is not None]

    def children(self, pid: int) -> list[int]:
        found: list[int] = []
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                raw = _read(f"/proc/{pid}/task/{task}/children")
                if raw:
                    found.extend(map(int, raw.split()))
        except OSError:
            pass
        return found

    def tree(self, root: int, apart_from: Iterable[int] = ()) -> list[Proc]:
        """Everything below `root`, zombies included; not what is below `apart_from`."""
        apart = set(apart_from)
        if not self._lists_children:
            return self._tree_by_scan(root, apart)
        found: list[Proc] = []
        todo = self.children(root)
        while todo:
            pid = todo.pop()
            if pid in apart:
                continue
            proc = self.look(pid)
            if proc is not None:
                found.append(proc)
                todo.extend(self.children(pid))
        return found

    def _tree_by_scan(self, root: int, apart: set[int]) -> list[Proc]:
        below: dict[int, list[Proc]] = {}
        for proc in self.processes():
            below.setdefault(proc.ppid, []).append(proc)
        found: list[Proc] = []
        todo = list(below.get(root, ()))
        while todo:
            proc = todo.pop()
            if proc.pid not in apart:
                found.append(proc)
                todo.extend(below.get(proc.pid, ()))
        return found

    def marked(self, marker: str, *, since: int = 0) -> list[Proc]:
        """The living processes whose environment has the marker, started at tick `since` or later.

        Blind to a process of another user, and to one that has emptied its environment.
        """
        needle = marker.encode("ascii")
        found: list[Proc] = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            raw = _read(f"/proc/{name}/environ")
            if raw and any(
                needle in entry for entry in raw.split(b"\0") if entry.startswith(_MARKER_ENTRY)
            ):
                proc = self.look(int(name))
                if proc is not None and proc.alive and proc.start >= since:
                    found.append(proc)
        return found

    def uid(self, pid: int) -> int | None:
        try:
            return os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return None

    def send(self, pid: int, start: int, number: int) -> Sent:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return "gone"
        except OSError:
            return "refused"
        try:
            proc = self.look(pid)
            if proc is None or proc.start != start:
                return "gone"
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return "gone"
        except OSError:
            return "refused"
        finally:
            os.close(fd)
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

    def writers(self, inode: int) -> list[Proc]:
        """The processes that hold a pipe open for writing, as far as we may look."""
        target = f"pipe:[{inode}]"
        found: list[Proc] = []
        for name in os.listdir("/proc"):
            if name.isdigit() and _writes(int(name), target):
                proc = self.look(int(name))
                if proc is not None:
                    found.append(proc)
        return found

    def boot_id(self) -> str:
        raw = _read("/proc/sys/kernel/random/boot_id")
        return raw.decode("ascii").strip() if raw else ""


class Escalation:
    """TERM, grace, KILL: who is signalled next, and when to look again.  Pure.

    Readings are those of one monotonic clock, in seconds.  `step` is given what lives now, at each
    pass: whatever appears later is signalled when it appears.
    """

    def __init__(self, now: float, *, grace: float, verify: float) -> None:
        self.began = now
        self.grace_until = now + grace
        self.expires = self.grace_until + verify
        self._verify = verify
        self._asked: set[tuple[Identity, str]] = set()
        self._killed: set[Identity] = set()
        self._fresh = False

    def press(self, now: float, *, grace: float, verify: float | None = None) -> None:
        """Shorten: no time ever moves further away."""
        self.grace_until = min(self.grace_until, now + grace)
        left = self._verify if verify is None else min(verify, self._verify)
        self.expires = min(self.expires, max(now, self.grace_until) + left)

    def killing(self, now: float) -> bool:
        return now >= self.grace_until

    def expired(self, now: float) -> bool:
        return now >= self.expires

    def step(self, now: float, living: Sequence[Proc]) -> list[tuple[Proc, int]]:
        self._fresh = False
        due: list[tuple[Proc, int]] = []
        for proc in living:
            if self.killing(now):
                if proc.identity not in self._killed:
                    self._killed.add(proc.identity)
                    due.append((proc, signal.SIGKILL))
                continue
            # By its name too: what a shell was asked between its fork and its exec, the program
            # never hears of.
            asked = (proc.identity, proc.name)
            if asked not in self._asked:
                self._asked.add(asked)
                due.append((proc, signal.SIGTERM))
                if proc.state == "T":
                    # A stopped process obeys only once it goes on.
                    due.append((proc, signal.SIGCONT))
        self._fresh = bool(due)
        return due

    def refused(self, proc: Proc) -> None:
        """Try again at the next pass: a process may change its user."""
        self._asked.discard((proc.identity, proc.name))
        self._killed.discard(proc.identity)

    def delay(self, now: float) -> float:
        """Seconds until the next pass, at most."""
        if self.killing(now):
            # One that forks and leaves faster than we look is only caught without a pause.
            return 0.0 if self._fresh else 0.001 if now - self.grace_until < 0.05 else 0.005
        pause = 0.002 if now - self.began < 0.05 else 0.01
        return max(0.0, min(pause, self.grace_until - now))


class Tally:
    """What an escalation did and saw, in plain JSON."""

    def __init__(self, kernel: LinuxKernel, began: float, leader: int = 0) -> None:
        self._kernel = kernel
        self._began = began
        self._leader = leader
        self._leader_signalled = False
        self._pids = 0
        self._seen: dict[Identity, tuple[str, int | None]] = {}
        self._count = 0
        self._refusals: set[Identity] = set()
        self.rounds: list[dict[str, Any]] = []

    def see(self, procs: Iterable[Proc]) -> None:
        for proc in procs:
            if proc.identity not in self._seen:
                self._count += 1
                if len(self._seen) < NAMED * 16:
                    named = len(self._seen) < NAMED
                    self._seen[proc.identity] = (
                        proc.name,
                        self._kernel.uid(proc.pid) if named else None,
                    )

    def sent(self, now: float, results: Sequence[tuple[Proc, int, Sent]]) -> None:
        for number in sorted({number for _, number, _ in results}):
            got = [proc.pid for proc, sig, how in results if sig == number and how == "sent"]
            no = [proc for proc, sig, how in results if sig == number and how == "refused"]
            new = [proc.pid for proc in no if proc.identity not in self._refusals]
            self._refusals.update(proc.identity for proc in no)
            if self._leader in got:
                self._leader_signalled = True
            if (got or new) and len(self.rounds) < NAMED:
                # A report has to fit into one message, whatever a tree does.
                room = max(0, 4 * NAMED - self._pids)
                self._pids += min(room, len(got) + len(new))
                self.rounds.append(
                    {
                        "signal": number,
                        "at": now,
                        "pids": got[:room],
                        "refused": new[: max(0, room - len(got))],
                        "count": len(got),
                    }
                )

    def survivor(self, proc: Proc) -> dict[str, Any]:
        reason = "deadline"
        if proc.identity in self._refusals:
            reason = "not_permitted"
        elif proc.state == "D":
            reason = "uninterruptible"
        return {
            "pid": proc.pid,
            "start": proc.start,
            "uid": self._kernel.uid(proc.pid),
            "name": proc.name,
            "reason": reason,
        }

    def facts(self, empty: str, living: Sequence[Proc]) -> dict[str, Any]:
        named = list(self._seen.items())[:NAMED]
        return {
            "empty": empty,
            "began": self._began,
            "leader_signalled": self._leader_signalled,
            "signals": self.rounds,
            "seen": self._count,
            "members": [
                {"pid": pid, "start": start, "uid": uid, "name": name}
                for (pid, start), (name, uid) in named
            ],
            "survivors": [self.survivor(proc) for proc in living[:NAMED]],
        }


class Cgroup:
    """A cgroup v2 of one unit.  The kernel keeps its members; nothing leaves it by forking."""

    def __init__(self, path: str) -> None:
        self.path = path

    def make(self) -> bool:
        try:
            os.mkdir(self.path)
        except OSError:
            return False
        if os.path.exists(f"{self.path}/cgroup.kill"):
            return True
        self.remove()
        return False

    def fork(self) -> int:
        """As `os.fork`, with the child inside from its first instruction.

        Writing a pid to `cgroup.procs` takes a lock for the whole system, and tens of milliseconds.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            pid = _clone_into(fd)
            if pid < 0:
                # Before Linux 5.7.
                pid = os.fork()
                if pid == 0:
                    with open(f"{self.path}/cgroup.procs", "w") as file:
                        file.write("0")
        finally:
            os.close(fd)
        return pid

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.path)

    @property
    def populated(self) -> bool:
        raw = _read(f"{self.path}/cgroup.events")
        return raw is not None and b"populated 1" in raw

    def kill(self) -> None:
        with contextlib.suppress(OSError), open(f"{self.path}/cgroup.kill", "w") as file:
            file.write("1")

    def remove(self) -> bool:
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class Warden:
    """One unit: starts the tool, waits, and ends the tree when told, or when nobody can tell."""

    def __init__(self, control: int, order: int, tool: tuple[int, int, int], host: int) -> None:
        self._control = socket.socket(fileno=control)
        self._tool = tool
        self._host = host
        self._kernel = LinuxKernel()
        size = os.fstat(order).st_size
        self._order: dict[str, Any] = json.loads(os.pread(order, size, 0))
        os.close(order)
        self._detached = bool(self._order["detached"])
        self._grace = float(self._order["grace"])
        self._verify = float(self._order["verify"])
        lifetime = self._order["lifetime"]
        self._lives_until = None if lifetime is None else time.monotonic() + float(lifetime)
        self._wake = _wake_on(signal.SIGCHLD, signal.SIGTERM)
        self._cgroup: Cgroup | None = None
        self._leader = 0
        self._first: Proc | None = None
        self._exit: int | None = None
        self._alone = False
        self._host_gone = False
        self._escalation: Escalation | None = None
        self._tally: Tally | None = None
        self._why = ""
        self._marked: dict[Identity, Proc] = {}

    def run(self) -> int:
        if (path := self._order["cgroup"]) is not None:
            cgroup = Cgroup(path)
            self._cgroup = cgroup if cgroup.make() else None
        if not self._start():
            return 0
        poll = select.poll()
        for fd in (self._control.fileno(), self._host, self._wake):
            poll.register(fd, select.POLLIN)
        while True:
            timeout = self._timeout()
            for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
                if fd == self._wake:
                    self._woken()
                elif fd == self._control.fileno():
                    if not self._told():
                        poll.unregister(fd)
                        self._host_lost()
                else:
                    poll.unregister(fd)
                    self._host_lost()
            self._reap()
            now = time.monotonic()
            if self._lives_until is not None and now >= self._lives_until:
                self._lives_until = None
                self._end("lifetime", self._grace, self._verify)
            if self._alone and self._detached and self._escalation is None:
                # It has come to its own end, and nobody need be there to say so.
                self._end("finished", 0.0, self._verify)
            if self._escalation is not None and (code := self._pass(now)) is not None:
                return code

    # -- the start ------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Start the tool and say so; False if it could not be."""
        try:
            if self._cgroup is None:
                self._leader = _spawn(self._order, self._tool)
            else:
                self._leader = _spawn_inside(self._cgroup, self._order, self._tool)
        except _NoStart as error:
            if self._cgroup is not None:
                self._cgroup.remove()
            what = os.strerror(error.number)
            self._say({"failed": {"where": error.where, "errno": error.number, "what": what}})
            return False
        for fd in set(self._tool):
            os.close(fd)
        leader, me = self._kernel.look(self._leader), self._kernel.look(os.getpid())
        self._first = leader
        self._say(
            {
                "started": {
                    "pid": self._leader,
                    "start": leader.start if leader else 0,
                    "warden": os.getpid(),
                    "warden_start": me.start if me else 0,
                    "containment": "subreaper" if self._cgroup is None else "cgroup",
                    "at": time.monotonic(),
                }
            }
        )
        return True

    # -- what happens ---------------------------------------------------------------------------

    def _woken(self) -> None:
        numbers = os.read(self._wake, 4096)
        if signal.SIGTERM in numbers:
            self._end("terminated", self._grace, self._verify)

    def _told(self) -> bool:
        """Take one message; False at the socket's end."""
        try:
            raw = self._control.recv(_MESSAGE)
        except ConnectionError:
            return False
        if not raw:
            return False
        message = json.loads(raw)
        if "stop" in message:
            asked = message["stop"]
            self._end("asked", float(asked["grace"]), float(asked["verify"]))
        elif "signal" in message:
            leader = self._kernel.look(self._leader)
            if leader is not None and self._exit is None:
                self._kernel.send(self._leader, leader.start, int(message["signal"]))
        return True

    def _host_lost(self) -> None:
        self._host_gone = True
        if not self._detached:
            self._end("host_lost", min(self._grace, HOST_LOST_GRACE), self._verify)

    def _end(self, why: str, grace: float, verify: float) -> None:
        now = time.monotonic()
        if self._escalation is not None:
            self._escalation.press(now, grace=grace, verify=verify)
            return
        self._why = why
        self._escalation = Escalation(now, grace=grace, verify=verify)
        self._tally = Tally(self._kernel, now, self._leader)
        if self._first is not None:
            self._tally.see([self._first])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                self._alone = False
                return
            if pid == self._leader:
                self._exit = status
                self._say({"leader": {"status": status, "at": time.monotonic()}})

    # -- the end --------------------------------------------------------------------------------

    def _pass(self, now: float) -> int | None:
        escalation, tally = self._escalation, self._tally
        assert escalation is not None
        assert tally is not None
        living = [] if self._alone else self._living()
        if self._alone and not (self._cgroup is not None and self._cgroup.populated):
            living = self._second_opinion()
            if not living:
                return self._finish("yes", [])
        tally.see(living)
        if escalation.expired(now):
            return self._finish("no" if living else "unknown", living)
        results: list[tuple[Proc, int, Sent]] = [
            (proc, number, self._kernel.send(proc.pid, proc.start, number))
            for proc, number in escalation.step(now, living)
        ]
        for proc, _, how in results:
            if how == "refused":
                escalation.refused(proc)
        tally.sent(now, results)
        if self._cgroup is not None and escalation.killing(now):
            self._cgroup.kill()
        return None

    def _living(self) -> list[Proc]:
        return [proc for proc in self._kernel.tree(os.getpid()) if proc.alive]

    def _second_opinion(self) -> list[Proc]:
        """What bears the marker although nothing is below us: somebody else started it."""
        marked = self._kernel.marked(self._order["marker"])
        for proc in marked:
            self._marked[proc.identity] = proc
        return marked

    def _finish(self, empty: str, living: Sequence[Proc]) -> int:
        assert self._tally is not None
        removed = self._cgroup.remove() if self._cgroup is not None else True
        ended = {
            **self._tally.facts(empty, living),
            "why": self._why,
            "marked": len(self._marked),
            "cgroup_removed": removed,
            "at": time.monotonic(),
        }
        self._say({"ended": ended})
        if self._host_gone and self._order["receipt"] is not None:
            self._leave_receipt(self._order["receipt"], {"status": self._exit, "ended": ended})
        return _LEFT_SURVIVORS if living else 0

    def _leave_receipt(self, path: str, receipt: Mapping[str, Any]) -> None:
        """Write down for a later host what there is nobody to tell now."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            fd = os.open(path + ".part", flags, 0o600)
            os.write(fd, json.dumps(receipt).encode("ascii"))
            os.close(fd)
            os.rename(path + ".part", path)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        waits: list[float] = []
        if self._escalation is not None:
            waits.append(self._escalation.delay(now))
        if self._lives_until is not None:
            waits.append(max(0.0, self._lives_until - now))
        return min(waits) if waits else None

    def _say(self, message: Mapping[str, Any]) -> None:
        # A host that has gone, or does not listen, keeps no tree alive.
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode("ascii"), socket.MSG_DONTWAIT)


class Broker:
    """Forks wardens, and ends what a killed one leaves behind."""

    def __init__(self, host: socket.socket, host_pid: int) -> None:
        self._socket = host
        self._kernel = LinuxKernel()
        self._wardens: set[int] = set()
        self._wake = _wake_on(signal.SIGCHLD)
        self._host = os.pidfd_open(host_pid)
        self._host_gone = os.getppid() != host_pid
        self._escalation: Escalation | None = None
        self._tally: Tally | None = None
        self._calm = 0
        self._lost: set[int] = set()
        self._took_over: dict[int, dict[str, Any]] = {}
        self._asking: list[tuple[int, socket.socket]] = []

    def run(self) -> None:
        poll = select.poll()
        for fd in (self._socket.fileno(), self._host, self._wake):
            poll.register(fd, select.POLLIN)
        gc.collect()
        # Forked wardens then share these pages for good.
        gc.freeze()
        while not (self._host_gone and not self._wardens and self._escalation is None):
            timeout = None
            if self._escalation is not None:
                timeout = self._escalation.delay(time.monotonic()) * 1000
            for fd, _ in poll.poll(timeout):
                if fd == self._wake:
                    os.read(self._wake, 4096)
                elif fd == self._socket.fileno():
                    if not self._told():
                        poll.unregister(fd)
                        self._host_gone = True
                else:
                    poll.unregister(fd)
                    self._host_gone = True
            self._reap()
            if self._escalation is not None:
                self._pass()
            self._answer()

    def _told(self) -> bool:
        try:
            raw, fds = _receive(self._socket)
        except ConnectionError:
            return False
        if not raw:
            return False
        if raw == b"unit":
            self._fork(fds)
        else:
            # The host asks what became of the tree of a warden that it lost.
            self._asking.append((int(raw), socket.socket(fileno=fds[0])))
        return True

    def _fork(self, fds: Sequence[int]) -> None:
        control, order, *tool = fds
        try:
            pid = os.fork()
        except OSError as error:
            said = {"failed": {"where": "fork", "errno": error.errno, "what": str(error)}}
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(control)) as reply:
                reply.send(json.dumps(said).encode("ascii"))
        else:
            if pid == 0:
                _be_warden(self, control, order, (tool[0], tool[1], tool[2]))
            self._wardens.add(pid)
        for fd in fds:
            os.close(fd)

    def leave(self) -> int:
        """In a new warden: keep nothing of the broker's but the host's pidfd."""
        self._socket.close()
        os.close(self._wake)
        for _, reply in self._asking:
            reply.close()
        return self._host

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._wardens:
                self._wardens.discard(pid)
                if status != 0:
                    self._take_over(pid)

    def _take_over(self, warden: int) -> None:
        self._lost.add(warden)
        self._calm = 0
        if self._escalation is None:
            now = time.monotonic()
            # Their guard is gone: nothing is left to hold them through a grace.
            self._escalation = Escalation(now, grace=0.0, verify=2.0)
            self._tally = Tally(self._kernel, now)

    def _pass(self) -> None:
        escalation, tally = self._escalation, self._tally
        assert escalation is not None
        assert tally is not None
        now = time.monotonic()
        tree = self._kernel.tree(os.getpid(), self._wardens)
        living = [proc for proc in tree if proc.alive]
        tally.see(living)
        self._calm = 0 if tree else self._calm + 1
        if self._calm >= 2 or escalation.expired(now):
            empty = "yes" if not tree else "no" if living else "unknown"
            facts = {**tally.facts(empty, living), "at": now}
            self._took_over.update(dict.fromkeys(self._lost, facts))
            self._lost.clear()
            self._escalation = None
            return
        results: list[tuple[Proc, int, Sent]] = [
            (proc, number, self._kernel.send(proc.pid, proc.start, number))
            for proc, number in escalation.step(now, living)
        ]
        for proc, _, how in results:
            if how == "refused":
                escalation.refused(proc)
        tally.sent(now, results)

    def _answer(self) -> None:
        waiting: list[tuple[int, socket.socket]] = []
        for warden, reply in self._asking:
            if warden in self._wardens or self._escalation is not None:
                waiting.append((warden, reply))
                continue
            said = {"took_over": self._took_over.pop(warden, None)}
            with contextlib.suppress(OSError), reply:
                reply.send(json.dumps(said).encode("ascii"))
        self._asking = waiting


_MARKER_ENTRY: Final = MARKER.encode("ascii") + b"="


class _NoStart(Exception):
    def __init__(self, where: str, number: int) -> None:
        super().__init__(where)
        self.where = where
        self.number = number


def _defaults() -> tuple[int, ...]:
    """What Python ignores, or we handle, and what would stay so in the tool."""
    # Not a constant: the host imports this file on systems that lack some of them.
    return signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD


def _spawn(order: Mapping[str, Any], tool: tuple[int, int, int]) -> int:
    """Start the tool without copying this process; its pid."""
    argv, env, cwd = _words(order)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise _NoStart("cwd", error.errno or errno.EIO) from error
    places = [argv[0]]
    if b"/" not in argv[0]:
        path = env.get(b"PATH", os.defpath.encode("ascii"))
        places = [os.path.join(place, argv[0]) for place in path.split(b":")]
    number = errno.ENOENT
    for place in places:
        try:
            pid = os.posix_spawn(
                place,
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(tool)],
                setsid=True,
                setsigdef=_defaults(),
            )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                number = error.errno or errno.EIO
        else:
            # A unit keeps no directory busy beyond its tool's own.
            os.chdir("/")
            return pid
    raise _NoStart("exec", number)


def _spawn_inside(cgroup: Cgroup, order: Mapping[str, Any], tool: tuple[int, int, int]) -> int:
    """Start the tool inside a cgroup; its pid.  Nothing but a fork of our own can do that."""
    reading, writing = os.pipe()
    pid = cgroup.fork()
    if pid == 0:
        _exec(order, tool, writing)
    os.close(writing)
    said = os.read(reading, 256)
    os.close(reading)
    if said:
        os.waitpid(pid, 0)
        where, _, number = said.decode("ascii").partition(" ")
        raise _NoStart(where, int(number))
    return pid


def _exec(order: Mapping[str, Any], tool: tuple[int, int, int], status: int) -> NoReturn:
    where = "exec"
    try:
        os.setsid()
        for target, fd in enumerate(tool):
            os.dup2(fd, target)
        for number in _defaults():
            signal.signal(number, signal.SIG_DFL)
        argv, env, cwd = _words(order)
        where = "cwd"
        os.chdir(cwd)
        where = "exec"
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(status, f"{where} {error.errno or errno.EIO}".encode("ascii"))
    except BaseException:
        os.write(status, f"{where} {errno.EIO}".encode("ascii"))
    finally:
        os._exit(127)


def _words(order: Mapping[str, Any]) -> tuple[list[bytes], dict[bytes, bytes], bytes]:
    argv = [_bytes(part) for part in order["argv"]]
    env = {_bytes(name): _bytes(value) for name, value in order["env"].items()}
    return argv, env, _bytes(order["cwd"])


def _bytes(text: str) -> bytes:
    # Names are bytes to the kernel; latin-1 carries them through JSON whatever the host's locale.
    return text.encode("latin-1")


def _be_warden(broker: Broker, control: int, order: int, tool: tuple[int, int, int]) -> NoReturn:
    code = 1
    try:
        host = broker.leave()
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _name("stopkit-warden")
        code = Warden(control, order, tool, host).run()
    finally:
        os._exit(code)


def _wake_on(*numbers: int) -> int:
    """A descriptor that becomes readable when one of the signals comes; it yields their numbers."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, close-on-exec (which `socket.recv_fds` drops)."""
    space = socket.CMSG_SPACE(8 * 4)
    raw, ancillary, _, _ = sock.recvmsg(64, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4]))
    return raw, fds


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def _writes(pid: int, target: str) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}") != target:
                    continue
            except OSError:
                continue
            raw = _read(f"/proc/{pid}/fdinfo/{fd}") or b""
            for line in raw.splitlines():
                if line.startswith(b"flags:"):
                    if int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                        return True
                    break
    except OSError:
        pass
    return False


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    ]


def _clone_into(cgroup: int) -> int:
    """clone3(2) with CLONE_INTO_CGROUP; -1 where there is no such thing.

    The child shares nothing with us, as after a fork; it may only set itself up and exec, as the C
    library does not know that it was made.
    """
    arguments = _CloneArgs(flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=cgroup)
    size = ctypes.sizeof(arguments)
    return int(_LIBC.syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.c_size_t(size)))


def prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _name(name: str) -> None:
    _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")), 0, 0, 0)


def main(arguments: Sequence[str]) -> None:
    fd, host_pid = map(int, arguments)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _name("stopkit-broker")
    # The tools' descriptors come later, and must never be 0, 1 or 2.
    os.set_inheritable(fd, False)
    os.chdir("/")
    os.closerange(3, fd)
    os.closerange(fd + 1, 1 << 16)
    try:
        broker = Broker(socket.socket(fileno=fd), host_pid)
    except ProcessLookupError:
        return
    broker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
