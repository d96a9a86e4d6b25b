"""`StopSignal`: one request, with one cause, that everything below can see.

A signal is a notice, not force: it closes the doors that ask it, wakes what waits on it, and calls
its bridges.  `request` may come from any task, thread or signal handler.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal as _os_signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.errors import StopRequested
from stopkit.stop import Cause, CauseKind

if TYPE_CHECKING:
    # `import stopkit` reaches this module, and work on histories has no use for an event loop.
    import asyncio

_log = logging.getLogger("stopkit")

Unsubscribe: TypeAlias = Callable[[], None]

SIGNAL_CAUSES: Final[Mapping[int, CauseKind]] = MappingProxyType(
    {_os_signal.SIGINT: "user", _os_signal.SIGTERM: "shutdown"}
)


class Cancellable(Protocol):
    """An anyio or trio cancel scope, or whatever else has a `cancel()`."""

    def cancel(self) -> object: ...


class StopSignal:
    """Asked once, seen by all.  The first cause stays; repeats only count (`presses`).

    `deadline` is in seconds from now, and not NaN (ValueError).  It is kept as an absolute time,
    and children may only shorten it.  A deadline that has passed is a request of cause `deadline`,
    which the first look (`checkpoint`, `sleep`, `wait`) makes.
    """

    __slots__ = (
        "_callbacks",
        "_cause",
        "_children",
        "_clock",
        "_deadline_at",
        "_event",
        "_lock",
        "_on_press",
        "_parent",
        "_presses",
        "_run",
        "_seen",
    )

    def __init__(
        self, *, deadline: float | None = None, clock: Clock = SYSTEM_CLOCK, run: str | None = None
    ) -> None:
        _refuse_nan(deadline)
        self._clock = clock
        self._deadline_at = None if deadline is None else clock.monotonic() + deadline
        self._cause: Cause | None = None
        self._presses = 0
        # Reentrant: a signal handler may ask while its own thread is inside `request`.
        self._lock = threading.RLock()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._on_press: dict[object, Callable[[], object]] = {}
        self._children: dict[int, StopSignal] = {}
        self._parent: StopSignal | None = None
        self._event: threading.Event | None = None
        self._run = run
        self._seen = False

    @property
    def requested(self) -> bool:
        """True once a stop was asked for, or the deadline has passed."""
        if self._cause is None and self._deadline_at is not None:
            self._look_at_deadline()
        if self._cause is None:
            return False
        self._seen = True
        return True

    @property
    def cause(self) -> Cause | None:
        return self._cause

    @property
    def seen(self) -> bool:
        """True once somebody has looked at this signal since the request, or was woken by it.

        A signal that a lower layer ignores has no effect: this is how one can tell.
        """
        return self._seen

    @property
    def presses(self) -> int:
        return self._presses

    @property
    def deadline_at(self) -> float | None:
        """The deadline on the signal's monotonic clock."""
        return self._deadline_at

    def remaining(self) -> float:
        """Seconds left until the deadline, never below 0; infinite without one."""
        if self._deadline_at is None:
            return float("inf")
        return max(0.0, self._deadline_at - self._clock.monotonic())

    def request(
        self,
        cause: Cause | CauseKind = "user",
        *,
        actor: str | None = None,
        words: str | None = None,
    ) -> bool:
        """Ask for the stop.  True for the first request, False for a repeat, which changes nothing.

        Bridges and callbacks have been called when this returns.  One that raises is logged and
        keeps nobody else from being told.
        """
        return self._ask(cause, actor, words, again=True)

    def _ask(
        self, cause: Cause | CauseKind, actor: str | None, words: str | None, *, again: bool
    ) -> bool:
        """`request`; with `again` False, one that is not the first does not even count."""
        with self._lock:
            first = self._cause is None
            if not (first or again):
                return False
            self._presses += 1
            if first:
                if not isinstance(cause, Cause):
                    cause = Cause(cause, self._clock.wall(), actor, words)
                self._cause = cause
            told = self._take_told() if first else []
            pressed = list(self._on_press.values())
        # Outside the lock: a callback may want another signal's, whose callback wants this one.
        for call in told:
            _call(call)
        for call in pressed:
            _call(call)
        return first

    def child(self, *, deadline: float | None = None, run: str | None = None) -> StopSignal:
        """A signal that is asked whenever this one is, for the same cause, and may be asked alone.

        `deadline` can only shorten what remains here.  `close` it when its work has ended.
        """
        _refuse_nan(deadline)
        child = StopSignal(clock=self._clock, run=run or self._run)
        child._deadline_at = self._deadline_at
        if deadline is not None:
            own = self._clock.monotonic() + deadline
            child._deadline_at = own if self._deadline_at is None else min(own, self._deadline_at)
        child._parent = self
        with self._lock:
            cause = self._cause
            if cause is None:
                self._children[id(child)] = child
        if cause is not None:
            child.request(cause)
        return child

    def close(self) -> None:
        """Let go of the parent.  What was asked stays asked."""
        parent, self._parent = self._parent, None
        if parent is not None:
            with parent._lock:
                parent._children.pop(id(self), None)

    def checkpoint(self, where: str = "") -> None:
        """Return if the work may go on.

        Raises:
            StopRequested: if not, with the cause and `where`.
        """
        if self._cause is not None or (self._deadline_at is not None and self.requested):
            self._seen = True
            raise StopRequested(cause=self._cause, where=where, correlation_id=self._run)

    async def wait(self) -> Cause:
        """Wait for the request.

        Cancellation: nothing is left behind.
        """
        await self._until(None)
        assert self._cause is not None
        return self._cause

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless a stop is asked for first.

        Raises:
            StopRequested: as soon as the stop is asked for, or at the deadline.

        Cancellation: nothing is left behind.
        """
        self.checkpoint("sleep")
        if not await self._until(seconds):
            return
        self.checkpoint("sleep")

    def sleep_in_thread(self, seconds: float) -> None:
        """`sleep` for a worker thread."""
        self.checkpoint("sleep")
        limit = min(seconds, self.remaining())
        if self.as_event().wait(limit) or limit < seconds:
            self.checkpoint("sleep")

    def on_request(self, callback: Callable[[], object]) -> Unsubscribe:
        """Call `callback` once, at the request, in the thread that makes it; now, if it was made.

        It has to be quick, and safe in any thread.  Returns what takes it back.
        """
        token = object()
        with self._lock:
            asked = self._cause is not None
            if not asked:
                self._callbacks[token] = callback
        if asked:
            _call(callback)
        return lambda: _drop(self._callbacks, token)

    def on_press(self, callback: Callable[[], object]) -> Unsubscribe:
        """Call `callback` at every request from now on, repeats included."""
        token = object()
        self._on_press[token] = callback
        return lambda: _drop(self._on_press, token)

    def cancel_task(self, task: asyncio.Task[object]) -> Unsubscribe:
        """Cancel an asyncio task at the request, from whatever thread that comes."""
        loop = task.get_loop()
        return self.on_request(lambda: _soon(loop, task.cancel))

    def cancel_scope(self, scope: Cancellable) -> Unsubscribe:
        """Cancel a cancel scope of the running loop at the request."""
        import asyncio

        loop = asyncio.get_running_loop()
        return self.on_request(lambda: _soon(loop, scope.cancel))

    def as_event(self) -> threading.Event:
        """A `threading.Event` that is set at the request; who waits on it is not `seen`."""
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                self.on_request(self._event.set)
            return self._event

    def _take_told(self) -> list[Callable[[], object]]:
        # Children first: what works below hears of the stop before those who will wait for it.
        cause = self._cause
        assert cause is not None
        told: list[Callable[[], object]] = [_Ask(child, cause) for child in self._children.values()]
        told.extend(self._callbacks.values())
        self._children.clear()
        self._callbacks.clear()
        return told

    def _look_at_deadline(self) -> None:
        if self._deadline_at is not None and self._clock.monotonic() >= self._deadline_at:
            self._ask("deadline", None, None, again=False)

    async def _until(self, seconds: float | None) -> bool:
        """Wait for the request, the deadline or `seconds`; True unless the seconds came first."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        limit = self.remaining()
        sleeping = seconds is not None and seconds < limit
        if sleeping:
            limit = seconds or 0.0
        timer = None if limit == float("inf") else loop.call_later(limit, wake)
        unsubscribe = self.on_request(lambda: _soon(loop, wake))
        try:
            await woken
        finally:
            unsubscribe()
            if timer is not None:
                timer.cancel()
        if self._cause is not None:
            self._seen = True
            return True
        if sleeping:
            return False
        # The loop's timers may fire a clock tick early; the deadline has come all the same.
        self._ask("deadline", None, None, again=False)
        return True


class _Ask:
    __slots__ = ("_cause", "_signal")

    def __init__(self, signal: StopSignal, cause: Cause) -> None:
        self._signal = signal
        self._cause = cause

    def __call__(self) -> None:
        self._signal.request(self._cause)


@contextlib.contextmanager
def stop_on_signals(
    target: StopSignal, causes: Mapping[int, CauseKind] = SIGNAL_CAUSES
) -> Iterator[None]:
    """Turn the process's signals into requests: Ctrl-C asks, again shortens, a third forces.

    Put it around the whole `async with scope`, so that a second Ctrl-C finds it while the first
    one's stop is still at work.  Main thread only; the handlers before are put back at the end.

    Without this, `asyncio.run` turns the first Ctrl-C into a cancellation, which is a stop too; but
    the second raises KeyboardInterrupt wherever Python is just then, and the end of the run may
    remain for `store.take_over`.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        target.request(causes[number], words=_os_signal.Signals(number).name)

    before = {number: _os_signal.signal(number, handler) for number in causes}
    try:
        yield
    finally:
        for number, previous in before.items():
            _os_signal.signal(number, previous)


def _refuse_nan(deadline: float | None) -> None:
    if deadline is not None and math.isnan(deadline):
        # It would never come: no comparison with it is true.
        raise ValueError("a deadline is a number of seconds, not NaN")


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("a callback of a stop signal raised")


def _drop(table: dict[object, Callable[[], object]], token: object) -> None:
    table.pop(token, None)


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    # A loop that is closed has nothing left to tell.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
