"""The host's side of broker and wardens (`warden.py` is theirs)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stopkit.units import warden
from stopkit.units.errors import UnitNotStarted, UnitStartUnknown, UnitUnsupported
from stopkit.units.facts import Emptiness, Exit, Member, SignalSent, Survivor
from stopkit.units.guard import Ended, GuardLoss, Order, Started
from stopkit.units.kernel import Kernel, default_kernel
from stopkit.units.warden import MARKER, Cgroup, Escalation, LinuxKernel, Proc, Sent

START_WAIT: Final = 10.0
"""Seconds that a start may take: the exec of a program on a slow disk included."""

_TAKE_OVER_WAIT: Final = 3.0
_MESSAGE: Final = 1 << 18
_FILE: Final = str(Path(warden.__file__))


class Broker:
    """This process's broker, started when the first unit is, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._owner = 0
        self._pid = 0
        self._former: set[int] = set()
        self.starts = 0

    @property
    def pid(self) -> int:
        """The broker's pid; 0 before the first start."""
        return self._pid if self._owner == os.getpid() else 0

    @property
    def alive(self) -> bool:
        """False once it is known to be gone."""
        with self._lock:
            sock = self._socket if self._owner == os.getpid() else None
            if sock is None:
                return False
            try:
                # It never writes here: only its end can be read.
                return bool(sock.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                return True
            except OSError:
                return False

    async def send(self, message: bytes, fds: Sequence[int]) -> None:
        """Hand descriptors to the broker.

        Raises:
            OSError: if it cannot be started, or dies at once each time.
        """
        again = 3
        while True:
            with self._lock:
                sock = self._started()
            try:
                socket.send_fds(sock, [message], fds)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED) and again:
                    again -= 1
                    self.forget(sock)
                elif error.errno in (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS):
                    # It has not taken in what was sent before.
                    await asyncio.sleep(0.001)
                else:
                    raise
            else:
                return

    async def took_over(self, warden_pid: int) -> Mapping[str, Any] | None:
        """What the broker found below a warden that is gone; None where it cannot say."""
        with self._lock:
            sock = self._socket if self._owner == os.getpid() else None
        if sock is None:
            return None
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with theirs:
                try:
                    socket.send_fds(sock, [b"%d" % warden_pid], [theirs.fileno()])
                except OSError:
                    return None
            mine.setblocking(False)
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(_TAKE_OVER_WAIT):
                    raw = await loop.sock_recv(mine, _MESSAGE)
            except (TimeoutError, OSError):
                return None
        found = json.loads(raw)["took_over"] if raw else None
        return found if isinstance(found, dict) else None

    def forget(self, sock: socket.socket) -> None:
        with self._lock:
            if self._socket is sock:
                self._socket = None
                self._reap()
        sock.close()

    def close(self) -> None:
        """Let the broker go; it leaves once its wardens have."""
        with self._lock:
            if self._socket is not None and self._owner == os.getpid():
                self._socket.close()
                self._socket = None
                self._reap()

    def _started(self) -> socket.socket:
        if self._owner != os.getpid() and self._socket is not None:
            # A forked host: this one is the parent's, and its pidfd is the parent's too.
            self._socket.close()
            self._socket = None
            self._former.clear()
        if self._socket is None:
            self._start()
        assert self._socket is not None
        return self._socket

    def _start(self) -> None:
        import fcntl

        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Away from the number it gets in the broker: a dup onto itself would keep close-on-exec.
        high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
        theirs.close()
        try:
            mine.setblocking(False)
            keep = ("PATH", "LD_LIBRARY_PATH", MARKER)
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", _FILE, "3", str(os.getpid())],
                {name: os.environ[name] for name in keep if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                    (os.POSIX_SPAWN_DUP2, 0, 2),
                    (os.POSIX_SPAWN_DUP2, high, 3),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
            )
        except BaseException:
            mine.close()
            raise
        finally:
            os.close(high)
        self._socket = mine
        self._owner = os.getpid()
        self.starts += 1

    def _reap(self) -> None:
        self._former.add(self._pid)
        for pid in list(self._former):
            try:
                gone, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                gone = pid
            if gone == pid:
                self._former.discard(pid)


BROKER: Final = Broker()
atexit.register(BROKER.close)


class WardenGuard:
    """A guard that is a process of its own: it outlives the host by as long as the end takes."""

    def __init__(self, *, broker: Broker = BROKER, kernel: Kernel | None = None) -> None:
        self._broker = broker
        self._kernel: Kernel = kernel or default_kernel()
        self._loop = asyncio.get_running_loop()
        self.leader: asyncio.Future[Exit | None] = self._loop.create_future()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self._answer: asyncio.Future[Started] = self._loop.create_future()
        self._control: socket.socket | None = None
        self._order: Order | None = None
        self._started: Started | None = None
        self._began = 0.0
        self._brokers = 0
        self._broker_pid = 0
        self._stop: tuple[float, float] | None = None
        self._taking_over: asyncio.Task[None] | None = None

    async def start(self, order: Order, stdio: tuple[int, int, int]) -> Started:
        if not sys.executable:
            raise UnitUnsupported("no Python interpreter to run the broker with")
        self._order = order
        self._began = time.monotonic()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        self._control = mine
        memo = os.memfd_create("stopkit-order", os.MFD_CLOEXEC)
        try:
            _write_all(memo, json.dumps(_wire(order)).encode("ascii"))
            await self._broker.send(b"unit", [theirs.fileno(), memo, *stdio])
        except OSError as error:
            self.close()
            raise UnitNotStarted(
                f"the broker cannot be reached: {error}", where="broker", errno=error.errno
            ) from error
        finally:
            theirs.close()
            os.close(memo)
        self._brokers = self._broker.starts
        self._broker_pid = self._broker.pid
        self._loop.add_reader(mine.fileno(), self._readable)
        try:
            async with asyncio.timeout(START_WAIT):
                started = await asyncio.shield(self._answer)
        except TimeoutError:
            self.stop(grace=0.0, verify=order.verify)
            raise UnitStartUnknown(f"no word of the start within {START_WAIT} s") from None
        except asyncio.CancelledError:
            # Said aloud: a host that has forked does not end the socket by closing it.
            self.stop(grace=0.0, verify=order.verify)
            self._answer.add_done_callback(_retrieved)
            raise
        self._started = started
        return started

    def stop(self, *, grace: float, verify: float) -> None:
        self._stop = (grace, verify)
        self._tell({"stop": {"grace": grace, "verify": verify}})

    def signal(self, number: int) -> None:
        self._tell({"signal": number})

    def force(self) -> None:
        """Kill the warden: its broker inherits the tree, and ends it."""
        if self._started is not None and self._started.guard is not None:
            pid, start = self._started.guard
            self._kernel.send(pid, start, signal.SIGKILL)
        self._lost()

    def close(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

    def _tell(self, message: Mapping[str, object]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps(message).encode("ascii"))

    def _readable(self) -> None:
        assert self._control is not None
        try:
            raw = self._control.recv(_MESSAGE)
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            # A reset only says that the warden left with a message of ours unread; what it said
            # before that is still to come.
            return
        except OSError:
            raw = b""
        if not raw:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            if not self.ended.done():
                self._lost()
            return
        self._take(json.loads(raw))

    def _take(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"started": said}:
                started = Started(
                    said["pid"],
                    said["start"],
                    said["containment"],
                    said["at"],
                    (said["warden"], said["warden_start"]),
                )
                if not self._answer.done():
                    self._answer.set_result(started)
            case {"failed": said}:
                error = UnitNotStarted(
                    f"{said['where']}: {said['what']}", where=said["where"], errno=said["errno"]
                )
                self._fail_start(error)
                self.ended.set_result(Ended("yes"))
            case {"leader": said}:
                if not self.leader.done():
                    self.leader.set_result(exit_of(said["status"], said["at"] - self._began))
            case {"ended": said}:
                if not self.ended.done():
                    self.ended.set_result(self._ended_of(said, ()))
                if not self.leader.done():
                    self.leader.set_result(None)
            case _:
                pass

    def _fail_start(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.add_done_callback(_retrieved)
        if not self.leader.done():
            self.leader.set_result(None)

    def _lost(self) -> None:
        if self._taking_over is None:
            self._taking_over = self._loop.create_task(self._end_without_warden())

    async def _end_without_warden(self) -> None:
        """The warden was killed.  Its broker has the tree; without one, only marks are left."""
        ended = Ended("unknown", guards_lost=("warden",))
        try:
            guard = self._started.guard if self._started else None
            found: Mapping[str, Any] | None = None
            losses: tuple[GuardLoss, ...] = ("warden",)
            if guard is not None and self._broker.starts == self._brokers:
                found = await self._broker.took_over(guard[0])
            if found is None:
                losses = ("warden", "broker")
            ended = await self._sweep(found, losses)
        finally:
            if not self.ended.done():
                self.ended.set_result(ended)
            self._fail_start(UnitStartUnknown("its warden was lost during the start"))

    async def _sweep(self, found: Mapping[str, Any] | None, losses: tuple[GuardLoss, ...]) -> Ended:
        """Kill what bears the marker, and what the cgroup holds."""
        order = self._order
        assert order is not None
        now = time.monotonic()
        escalation = Escalation(now, grace=0.0, verify=order.verify)
        tally = warden.Tally(LinuxKernel(), now)
        cgroup = None if order.cgroup is None else Cgroup(order.cgroup)
        calm = 0
        living: Sequence[Proc] = ()
        marked = 0
        while calm < 2 and not escalation.expired(time.monotonic()):
            now = time.monotonic()
            living = self._kernel.marked(order.marker)
            held = cgroup is not None and cgroup.populated
            calm = 0 if living or held else calm + 1
            tally.see(living)
            due = escalation.step(now, living)
            marked += len(due)
            results: list[tuple[Proc, int, Sent]] = [
                (p, sig, self._kernel.send(p.pid, p.start, sig)) for p, sig in due
            ]
            tally.sent(now, results)
            if held and cgroup is not None:
                cgroup.kill()
            await asyncio.sleep(escalation.delay(now))
        before = Ended("unknown") if found is None else self._ended_of(found, ())
        swept = self._ended_of(tally.facts("unknown", living), losses)
        if cgroup is not None and cgroup.exists:
            held = cgroup.populated
            cgroup.remove()
            empty: Emptiness = "no" if living or held else "yes"
        elif living:
            empty = "no"
        else:
            # Without guard and cgroup nobody can vouch for what has emptied its environment.
            empty = before.verified_empty
        return Ended(
            empty,
            True,
            (*before.signals, *swept.signals),
            before.members_seen + swept.members_seen,
            (*before.members, *swept.members),
            (*before.survivors, *swept.survivors),
            marked,
            losses,
        )

    def _ended_of(self, said: Mapping[str, Any], losses: tuple[GuardLoss, ...]) -> Ended:
        if not losses and not (self._broker.pid == self._broker_pid and self._broker.alive):
            losses = ("broker",)
        return ended_of(said, self._began, losses)


def ended_of(said: Mapping[str, Any], began: float, losses: tuple[GuardLoss, ...]) -> Ended:
    return Ended(
        said["empty"],
        said["leader_signalled"],
        tuple(
            SignalSent(
                sent["signal"],
                sent["at"] - began,
                sent["count"],
                tuple(sent["pids"]),
                tuple(sent["refused"]),
            )
            for sent in said["signals"]
        ),
        said["seen"],
        tuple(Member(**member) for member in said["members"]),
        tuple(Survivor(**survivor) for survivor in said["survivors"]),
        said.get("marked", 0),
        losses,
        said.get("why", ""),
    )


def exit_of(status: int, after: float) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(code, None, after) if code >= 0 else Exit(None, -code, after)


def cgroup_base() -> str | None:
    """The directory of this process's own cgroup v2, if it may make others below it."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
        own = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in own if line.startswith("0::")), None)
    for line in mounts:
        fields = line.split()
        if path is not None and fields[fields.index("-") + 1] == "cgroup2":
            base = f"{fields[4]}{path}".rstrip("/") or fields[4]
            return base if os.access(base, os.W_OK | os.X_OK) else None
    return None


def _wire(order: Order) -> dict[str, object]:
    def text(value: str) -> str:
        return os.fsencode(value).decode("latin-1")

    return {
        "argv": [text(part) for part in order.argv],
        "env": {text(name): text(value) for name, value in order.env.items()},
        "cwd": text(order.cwd),
        "marker": order.marker,
        "cgroup": order.cgroup,
        "detached": order.detached,
        "grace": order.grace,
        "verify": order.verify,
        "lifetime": order.lifetime,
        "receipt": order.receipt,
    }


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _retrieved(future: asyncio.Future[Started]) -> None:
    if not future.cancelled():
        future.exception()
