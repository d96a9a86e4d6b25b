"""`ProcessUnit`: a process and everything it starts, as one thing that can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Literal, TypeAlias

from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.errors import StopkitError
from stopkit.outcome import NotStarted, Outcome, Unknown
from stopkit.stop import Cause, StopPlan, StopPolicy
from stopkit.units.broker import WardenGuard, cgroup_base
from stopkit.units.errors import (
    UnitInputClosed,
    UnitNotStarted,
    UnitState,
    UnitUnsupported,
)
from stopkit.units.facts import Member, ProcessFacts, UnitKind, UnitReport
from stopkit.units.group import GroupGuard
from stopkit.units.guard import Ended, Guard, Order, Started
from stopkit.units.handle import UnitHandle, UnitRecords, receipt_path, ticks_now
from stopkit.units.kernel import Kernel, default_kernel
from stopkit.units.output import Chunk, InputPipe, OutputLimits, OutputPipe
from stopkit.units.ps import PsKernel
from stopkit.units.unit import Unit
from stopkit.units.verdict import verdict
from stopkit.units.warden import MARKER

StdinFrom: TypeAlias = Literal["null", "pipe"] | bytes
StderrTo: TypeAlias = Literal["merge", "pipe", "null"]
Judge: TypeAlias = Callable[[ProcessFacts, str], Outcome]
GuardFactory: TypeAlias = Callable[[], Guard]

ANSWER_SLACK: Final = 1.0
"""Seconds beyond a stop's own times for a guard to answer, before it is taken for lost."""

_FORCE_WAIT: Final = 6.0
_HOLDERS_WAIT: Final = 1.0
_PLATFORM: Final[str] = sys.platform


class ProcessUnit(Unit):
    """A process and all that it starts.

    Its end is the end of everything it started: what the leader leaves behind is stopped too.
    Work that is meant to go on is a unit of its own, with `detach=True`: leaving the block, the
    end of the run and the death of the host leave it alone; its record says where to find it.

    `env` replaces the environment; None inherits it.  `stdin` is closed input, a pipe for `write`,
    or bytes.  `stderr` goes with stdout, to a pipe of its own, or nowhere.  `output_to` is a file
    for all of it, which a detached unit needs in place of a pipe.  `lifetime` bounds the unit, in
    seconds.  `judge` reads the outcome of a unit that came to its own end; by default exit code 0
    is `succeeded` and any other `failed`, and the effects are `unverified` with both.
    `guard` and `kernel` are for tests.
    """

    kind: ClassVar[UnitKind] = "process"

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: StdinFrom = "null",
        stderr: StderrTo = "merge",
        output: OutputLimits | None = None,
        output_to: str | os.PathLike[str] | None = None,
        stop: StopPolicy | None = None,
        detach: bool = False,
        lifetime: float | None = None,
        cgroup: bool = True,
        key: str | None = None,
        judge: Judge | None = None,
        records: UnitRecords | None = None,
        clock: Clock = SYSTEM_CLOCK,
        guard: GuardFactory | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        if not argv:
            raise ValueError("argv names at least a program")
        if detach and stdin == "pipe":
            raise ValueError("a detached unit cannot take input: its host may be gone")
        super().__init__(key=key, stop=stop, clock=clock)
        self.argv = tuple(os.fspath(part) for part in argv)
        self.detached = detach
        self._cwd = None if cwd is None else os.fspath(cwd)
        self._env = env
        self._stdin_from = stdin
        self._stderr_to = stderr
        self._limits = output or OutputLimits()
        self._output_to = output_to
        self._lifetime = lifetime
        self._use_cgroup = cgroup
        self._judge = judge
        self._records = records
        self._make_guard = guard
        self._kernel = kernel
        self._marker = uuid.uuid4().hex
        self._guard: Guard | None = None
        self._started: Started | None = None
        self._handle: UnitHandle | None = None
        self._outputs: tuple[OutputPipe, ...] = ()
        self._stdin: InputPipe | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._left = False
        self._looked_for_holders = False
        self._not_persisted: list[str] = []

    @classmethod
    def shell(
        cls,
        command: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: StdinFrom = "null",
        stderr: StderrTo = "merge",
        output: OutputLimits | None = None,
        output_to: str | os.PathLike[str] | None = None,
        stop: StopPolicy | None = None,
        detach: bool = False,
        lifetime: float | None = None,
        key: str | None = None,
        judge: Judge | None = None,
        records: UnitRecords | None = None,
    ) -> ProcessUnit:
        """A unit that runs `command` by `/bin/sh -c`."""
        return cls(
            ("/bin/sh", "-c", command),
            cwd=cwd,
            env=env,
            stdin=stdin,
            stderr=stderr,
            output=output,
            output_to=output_to,
            stop=stop,
            detach=detach,
            lifetime=lifetime,
            key=key,
            judge=judge,
            records=records,
        )

    # -- looking --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The leader's pid.

        Raises:
            UnitState: before the start.
        """
        if self._started is None:
            raise UnitState("the unit was not started")
        return self._started.pid

    @property
    def handle(self) -> UnitHandle:
        """What the record says of the unit.

        Raises:
            UnitState: before the start.
        """
        if self._handle is None:
            raise UnitState("the unit was not started")
        return self._handle

    @property
    def stdout(self) -> bytes:
        """The newest output, up to the limit; while it runs, what there is by now."""
        return self._kept("stdout")

    @property
    def stderr(self) -> bytes:
        """As `stdout`; empty unless `stderr="pipe"`."""
        return self._kept("stderr")

    def stream(self, name: Literal["stdout", "stderr"] = "stdout") -> AsyncIterator[Chunk]:
        """The output as it comes, for one reader.

        Raises:
            UnitState: before the start, for a second reader, or without such a pipe.
        """
        for pipe in self._outputs:
            if pipe.name == name:
                return pipe.stream()
        raise UnitState(f"the unit has no pipe for {name}")

    # -- living ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it.

        Raises:
            UnitNotStarted: nothing ran.
            UnitStartUnknown: it may have run for a moment; whatever ran was ended.
            UnitUnsupported: this platform has no way to hold a process tree.
            UnitState: if it was started before.

        Cancellation: what had started is ended before this raises.
        """
        self._open()
        guard = self._guard = (self._make_guard or _default_guard)()
        kernel = self._kernel = self._kernel or default_kernel()
        me = kernel.look(os.getpid())
        handle = UnitHandle(
            id=self.id,
            run=self._records.run if self._records else None,
            key=self.key,
            argv=self.argv,
            marker=self._marker,
            boot_id=kernel.boot_id(),
            since=ticks_now(),
            host=(os.getpid(), me.start if me else 0),
            machine=platform.node(),
            detached=self.detached,
            cgroup=self._cgroup_path(),
            receipt=None if self._records is None else receipt_path(self.id),
        )
        if self._records is not None:
            try:
                await self._records.intended(handle)
            except StopkitError as error:
                raise UnitNotStarted(f"it was not recorded: {error}", where="record") from error
        self._handle = handle
        theirs: list[int] = []
        try:
            stdio = self._open_stdio(theirs)
            self._began = self._clock.monotonic()
            self._started = await guard.start(self._order(), stdio)
        except UnitNotStarted:
            self._close_pipes()
            guard.close()
            await self._record_no_start()
            raise
        except OSError as error:
            self._close_pipes()
            guard.close()
            await self._record_no_start()
            raise UnitNotStarted(str(error), where="pipes", errno=error.errno) from error
        except BaseException:
            self._ask(Cause("shutdown", self._clock.wall(), words="its start was cut"))
            self._live()
            await self._settled()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._live()
        if isinstance(self._stdin_from, bytes) and self._stdin is not None:
            self._feeding = asyncio.ensure_future(self._feed(self._stdin, self._stdin_from))
        self._handle = replace(
            handle,
            leader=(self._started.pid, self._started.start),
            warden=self._started.guard,
            cgroup=handle.cgroup if self._started.containment == "cgroup" else None,
        )
        if self._records is not None:
            try:
                await self._records.started(self._handle)
            except StopkitError:
                # The marker is recorded: it can be found all the same.
                self._not_persisted.append(f"the start of {self.id}")
            except asyncio.CancelledError:
                self._ask(Cause("shutdown", self._clock.wall(), words="its start was cut"))
                await self._settled()
                raise

    async def write(self, data: bytes) -> None:
        """Write to its input, waiting for it to read.

        Raises:
            UnitInputClosed: if it does not read any more.
            UnitState: unless `stdin="pipe"`.
        """
        if self._stdin is None or self._stdin_from != "pipe":
            raise UnitState("the unit takes no input")
        await self._stdin.write(data)

    def close_input(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    def signal(self, number: int) -> None:
        """Signal the leader alone, if it is there.  A stop is `stop`."""
        if self._guard is not None and not self.ended:
            self._guard.signal(number)

    def leave(self) -> UnitHandle:
        """Let a detached unit go on without this host.

        Raises:
            UnitState: for any other unit.
        """
        if not self.detached or self._started is None:
            raise UnitState("only a detached unit can be left")
        self._left = True
        if not self._asking.done():
            self._asking.set_result(None)
        return self.handle

    # -- inside ---------------------------------------------------------------------------------

    def _pressed(self) -> None:
        if self._guard is not None and not self._left:
            self._tell_guard()

    def _leave_block(self, *, cut: bool) -> None:
        if self.detached:
            self.leave()
        else:
            super()._leave_block(cut=cut)

    def _tell_guard(self) -> None:
        plan, guard = self._plan, self._guard
        assert plan is not None
        assert guard is not None
        now = self._clock.monotonic()
        guard.stop(
            grace=max(0.0, plan.grace_until - now),
            verify=max(0.0, plan.verify_until - max(now, plan.grace_until)),
        )

    async def _life(self) -> UnitReport:
        guard = self._guard
        assert guard is not None
        try:
            ended = await self._until_ended(guard)
            if ended is None:
                return self._left_report()
            holders = await self._release()
            cause = self._cause or self._cause_of(ended.why)
            return await self._recorded(self._made_report(self._facts(ended, holders), cause))
        finally:
            if self._feeding is not None:
                self._feeding.cancel()
            guard.close()
            self._close_pipes()

    async def _until_ended(self, guard: Guard) -> Ended | None:
        """Wait, end the tree and hear what came of it; None where it was left to itself."""
        asked = self._asking
        if self.detached:
            await self._until_any(asked, guard.ended)
        else:
            await self._until_any(asked, guard.ended, guard.leader)
            if not asked.done() and not guard.ended.done():
                # What the leader leaves behind may hold the pipes for ever.
                limit = self._clock.monotonic() + self._policy.output_wait
                outputs = [pipe.ended for pipe in self._outputs]
                await self._until_all(outputs, lambda: limit, unless=asked)
        if self._left:
            return None
        self.close_input()
        for pipe in self._outputs:
            pipe.drain()
        if not guard.ended.done():
            if self._plan is None:
                self._plan = StopPlan.begin(None, self._policy, self._clock.monotonic())
            self._tell_guard()
            await self._until_all([guard.ended], self._answer_due)
        if not guard.ended.done():
            guard.force()
            limit = self._clock.monotonic() + _FORCE_WAIT
            await self._until_all([guard.ended], lambda: limit)
        return guard.ended.result() if guard.ended.done() else Ended("unknown")

    def _answer_due(self) -> float:
        assert self._plan is not None
        return self._plan.verify_until + ANSWER_SLACK

    async def _release(self) -> tuple[Member, ...]:
        """Read what is left, then let go of the pipes; returns who still holds them."""
        open_ = [pipe for pipe in self._outputs if not pipe.ended.done()]
        limit = self._clock.monotonic() + self._policy.output_wait
        await self._until_all([pipe.ended for pipe in open_], lambda: limit)
        holders: tuple[Member, ...] = ()
        inodes = [pipe.inode for pipe in open_ if not pipe.complete]
        if inodes:
            looking = asyncio.get_running_loop().run_in_executor(None, self._find_holders, inodes)
            limit = self._clock.monotonic() + _HOLDERS_WAIT
            await self._until_all([looking], lambda: limit)
            if looking.done() and not looking.cancelled() and looking.exception() is None:
                holders = looking.result()
                self._looked_for_holders = True
        self._close_pipes()
        return holders

    def _find_holders(self, inodes: Sequence[int]) -> tuple[Member, ...]:
        kernel = self._kernel
        assert kernel is not None
        found = {proc.identity: proc for inode in inodes for proc in kernel.writers(inode)}
        return tuple(
            Member(proc.pid, proc.start, kernel.uid(proc.pid), proc.name) for proc in found.values()
        )

    def _facts(self, ended: Ended, holders: tuple[Member, ...]) -> ProcessFacts:
        guard, started, handle = self._guard, self._started, self._handle
        assert guard is not None
        assert handle is not None
        leader = guard.leader.result() if guard.leader.done() else None
        complete = all(pipe.complete for pipe in self._outputs)
        # An ordinary user cannot look into everybody's descriptors: finding none proves nothing.
        none_left = self._looked_for_holders and not holders and os.geteuid() == 0
        return ProcessFacts(
            argv=self.argv,
            marker=self._marker,
            boot_id=handle.boot_id,
            pid=started.pid if started else 0,
            start=started.start if started else 0,
            containment=started.containment if started else "group",
            detached=self.detached,
            exit=leader,
            leader_signalled=ended.leader_signalled,
            signals=ended.signals,
            members_seen=ended.members_seen,
            members=ended.members,
            verified_empty=ended.verified_empty,
            survivors=ended.survivors,
            output=tuple(pipe.facts() for pipe in self._outputs),
            output_complete=complete,
            descriptors_released=complete or none_left,
            holders=holders,
            marked=ended.marked,
            guards_lost=ended.guards_lost,
        )

    def _cause_of(self, why: str) -> Cause | None:
        """The cause of an end that did not begin here."""
        if why == "lifetime":
            return Cause("deadline", self._clock.wall(), words="its lifetime was over")
        if why == "terminated":
            return Cause("operator", self._clock.wall(), words="its warden got SIGTERM")
        return None

    def _made_report(self, facts: ProcessFacts, cause: Cause | None) -> UnitReport:
        duration = self._after()
        text = (self.stdout + self.stderr).decode("utf-8", "replace")
        own_end = facts.exit is not None and not facts.leader_signalled
        if own_end and self._judge is not None:
            outcome = self._judge(facts, text)
        else:
            outcome = verdict(facts, text, cause=cause, duration=duration)
        if self.key is not None:
            outcome = outcome.model_copy(update={"key": self.key})
        return UnitReport(
            id=self.id,
            kind="process",
            key=self.key,
            outcome=outcome,
            cause=cause,
            duration=duration,
            process=facts,
            unconfirmed=unconfirmed_of(facts),
            not_persisted=tuple(self._not_persisted),
        )

    def _left_report(self) -> UnitReport:
        handle = self.handle
        return UnitReport(
            id=self.id,
            kind="process",
            key=self.key,
            outcome=Unknown(
                reason="detached, and left at work",
                key=self.key,
                check=f"the record of {handle.id} says where it is",
            ),
            cause=None,
            duration=self._after(),
            process=self._facts(Ended("unknown"), ()),
            unconfirmed=(f"{handle.id} goes on, detached",),
            not_persisted=tuple(self._not_persisted),
        )

    async def _recorded(self, report: UnitReport) -> UnitReport:
        if self._records is None or self._handle is None or report.process is None:
            return report
        self._handle = replace(self._handle, ended=report.process.verified_empty)
        writing = asyncio.ensure_future(self._records.ended(self._handle, report))
        limit = self._clock.monotonic() + self._policy.ack_wait
        await self._until_all([writing], lambda: limit)
        if writing.done() and not writing.cancelled() and writing.exception() is None:
            return report
        writing.cancel()
        return replace(report, not_persisted=(*report.not_persisted, f"the end of {self.id}"))

    async def _record_no_start(self) -> None:
        if self._records is None or self._handle is None:
            return
        self._handle = replace(self._handle, ended="yes")
        report = UnitReport(
            id=self.id,
            kind="process",
            key=self.key,
            outcome=NotStarted(reason="its start was refused", key=self.key),
            cause=None,
            duration=0.0,
        )
        with contextlib.suppress(StopkitError):
            await self._records.ended(self._handle, report)

    # -- the start's parts ----------------------------------------------------------------------

    def _order(self) -> Order:
        handle = self._handle
        assert handle is not None
        env = dict(os.environ if self._env is None else self._env)
        # A unit inside a unit bears both marks.
        outer = os.environ.get(MARKER)
        env[MARKER] = f"{outer}:{self._marker}" if outer else self._marker
        return Order(
            argv=self.argv,
            env=env,
            # The broker's own directory is not this process's.
            cwd=os.path.abspath(self._cwd or os.curdir),
            marker=self._marker,
            cgroup=handle.cgroup,
            detached=self.detached,
            grace=self._policy.grace,
            verify=self._policy.verify_wait,
            lifetime=self._lifetime,
            receipt=handle.receipt,
        )

    def _cgroup_path(self) -> str | None:
        if not self._use_cgroup or not _PLATFORM.startswith("linux"):
            return None
        base = cgroup_base()
        return None if base is None else f"{base}/stopkit-{self.id}"

    def _open_stdio(self, theirs: list[int]) -> tuple[int, int, int]:
        """The tool's three descriptors; all of `theirs` are to be closed after the start."""
        stdin = self._open_stdin(theirs)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        theirs.append(null)
        if self._output_to is not None or self.detached:
            stdout = null
            if self._output_to is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                stdout = os.open(self._output_to, flags, 0o600)
                theirs.append(stdout)
            return stdin, stdout, null if self._stderr_to == "null" else stdout
        stdout = self._open_output("stdout", theirs)
        if self._stderr_to == "pipe":
            return stdin, stdout, self._open_output("stderr", theirs)
        return stdin, stdout, stdout if self._stderr_to == "merge" else null

    def _open_stdin(self, theirs: list[int]) -> int:
        if self._stdin_from == "null":
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.append(fd)
            return fd
        fd, ours = os.pipe()
        theirs.append(fd)
        self._stdin = InputPipe(ours)
        return fd

    def _open_output(self, name: Literal["stdout", "stderr"], theirs: list[int]) -> int:
        ours, fd = os.pipe()
        theirs.append(fd)
        pipe = OutputPipe(name, ours, os.fstat(ours).st_ino, self._limits, self.id)
        self._outputs = (*self._outputs, pipe)
        return fd

    async def _feed(self, pipe: InputPipe, data: bytes) -> None:
        with contextlib.suppress(UnitInputClosed):
            await pipe.write(data)
        pipe.close()

    def _kept(self, name: str) -> bytes:
        return b"".join(pipe.kept for pipe in self._outputs if pipe.name == name)

    def _close_pipes(self) -> None:
        self.close_input()
        for pipe in self._outputs:
            pipe.close()


def unconfirmed_of(facts: ProcessFacts) -> tuple[str, ...]:
    said = [
        f"process {left.pid} ({left.name}, uid {left.uid}) outlives the unit: {left.reason}"
        for left in facts.survivors
    ]
    if facts.verified_empty == "unknown":
        said.append("whether anything of the process tree is left is not known")
    if not facts.descriptors_released:
        who = ", ".join(f"{holder.pid} ({holder.name})" for holder in facts.holders)
        said.append(f"its output is held open by {who or 'a process that cannot be looked into'}")
    return tuple(said)


def _default_guard() -> Guard:
    if _PLATFORM.startswith("linux"):
        return WardenGuard()
    if _PLATFORM == "darwin" or "bsd" in _PLATFORM:
        return GroupGuard(PsKernel())
    raise UnitUnsupported(f"process units do not run on {_PLATFORM}: nothing would be held")
