"""`CallableUnit`: a Python function as a unit.

A coroutine can be cancelled, and may take its time over it.  A function in a thread cannot be
ended by anybody: its unit says that it still runs, and keeps what it brings later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, cast

from stopkit.call import text_of
from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.errors import StopRequested, ToolFailed
from stopkit.outcome import Failed, Outcome, Stopped, Succeeded, Unknown
from stopkit.signal import StopSignal
from stopkit.stop import StopPolicy
from stopkit.units.facts import CallableFacts, Late, UnitKind, UnitReport
from stopkit.units.unit import AnyFuture, OnLate, Unit


class CallableUnit(Unit):
    """Runs `function(*args, **kwargs)`, in the event loop or in a thread, by what it is.

    On a stop a coroutine is cancelled at once and has the grace to save what it must; one that
    goes on is cancelled again after that, and reported if it still runs when the time to verify
    is over.  A function in a thread sees `unit.signal` if it looks at it, and has the grace to
    return by itself.
    """

    kind: ClassVar[UnitKind] = "callable"

    def __init__(
        self,
        function: Callable[..., object],
        *args: object,
        kwargs: dict[str, object] | None = None,
        key: str | None = None,
        stop: StopPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_late: OnLate | None = None,
    ) -> None:
        super().__init__(key=key, stop=stop, clock=clock, on_late=on_late)
        self.signal = StopSignal(clock=clock)
        """Requested when the unit's stop is."""
        self._function = function
        self._args = args
        self._kwargs = kwargs or {}
        self._in_thread = not inspect.iscoroutinefunction(function)
        self._work: AnyFuture | None = None
        self._cancelled = False

    async def start(self) -> None:
        self._open()
        if self._in_thread:
            self._work = self._thread()
        else:
            function = cast("Callable[..., Awaitable[object]]", self._function)
            self._work = asyncio.ensure_future(_awaited(function(*self._args, **self._kwargs)))
        self._live()

    def _thread(self) -> asyncio.Future[object]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def work() -> None:
            try:
                result = self._function(*self._args, **self._kwargs)
            except BaseException as error:
                tell = partial(future.set_exception, error)
            else:
                tell = partial(future.set_result, result)
            # A loop that is closed has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell)

        # A daemon thread: asyncio and the interpreter wait at their end for those of a pool.
        context = contextvars.copy_context()
        name = f"stopkit-{self._name}"
        threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
        return future

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    async def _life(self) -> UnitReport:
        work = self._work
        assert work is not None
        await self._until_any(work, self._asking)
        if not work.done():
            cause = self._cause
            assert cause is not None
            self.signal.request(cause)
            if not self._in_thread:
                self._cancel(work)
            await self._until_all([work], self._grace_until)
            if not work.done() and not self._in_thread:
                self._cancel(work)
                await self._until_all([work], self._verify_until)
        after = self._after()
        outcome = self._outcome(work, after)
        still = not work.done()
        if still:
            work.add_done_callback(self._ended_late)
        return UnitReport(
            id=self.id,
            kind="callable",
            key=self.key,
            outcome=outcome,
            cause=self._cause,
            duration=after,
            call=CallableFacts(self._name, self._in_thread, self._cancelled, still),
            unconfirmed=(f"{self._name} still runs",) if still else (),
        )

    def _cancel(self, work: AnyFuture) -> None:
        self._cancelled = True
        work.cancel()

    def _pressed(self) -> None:
        if self._work is not None and not self._work.done() and not self._in_thread:
            self._cancel(self._work)

    def _ended_late(self, work: AnyFuture) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._came_late(Late("its end", self._after(), self._outcome(work, self._after())))

    def _outcome(self, work: AnyFuture, after: float) -> Outcome:
        kind = self._cause.kind if self._cause else None
        if not work.done():
            return Unknown(
                reason="it runs in a thread, which nothing can end"
                if self._in_thread
                else "it did not end when it was cancelled",
                cause=kind,
                key=self.key,
                check="what it brings later is kept in the report",
            )
        if work.cancelled():
            return Stopped(
                reason="it was cancelled",
                cause=kind,
                key=self.key,
                after=after,
                evidence=("its task ended by the cancellation",),
            )
        error = work.exception()
        if error is None:
            said = "it returned after it was told to stop" if kind else "it returned"
            output = text_of(work.result())
            return Succeeded(output=output, cause=kind, key=self.key, evidence=(said,))
        if isinstance(error, StopRequested):
            return Stopped(
                reason="it ended itself at a checkpoint",
                cause=kind,
                key=self.key,
                after=after,
                evidence=(f"it left at the checkpoint {error.where!r}",),
            )
        vouched = isinstance(error, ToolFailed) and error.no_effects
        return Failed(
            reason=str(error)
            if isinstance(error, ToolFailed)
            else f"{type(error).__name__}: {error}",
            cause=kind,
            key=self.key,
            effects="confirmed_absent" if vouched else "unverified",
            evidence=("it raised",),
        )


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable
