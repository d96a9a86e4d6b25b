"""What all units share: one life, one end, one report."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, TypeAlias, TypeVar

import anyio

from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.stop import Cause, CauseKind, StopPlan, StopPolicy
from stopkit.units.errors import UnitState
from stopkit.units.facts import Late, UnitKind, UnitReport

Self = TypeVar("Self", bound="Unit")

AnyFuture: TypeAlias = asyncio.Future[Any]
OnLate: TypeAlias = Callable[[UnitReport], object]
"""Told, in the event loop, when something arrived after the report; it gets the new report."""


class Unit(ABC):
    """Started once, by `start` or `async with`; it ends by itself or by `stop`.

    Its end is a task of its own: no cancellation of a waiter reaches it, and one of the task
    itself, which the end of `asyncio.run` sends, only hurries it.
    """

    kind: ClassVar[UnitKind]

    def __init__(
        self,
        *,
        key: str | None = None,
        stop: StopPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_late: OnLate | None = None,
    ) -> None:
        self.id = f"unit_{uuid.uuid4().hex}"
        self.key = key
        self._policy = stop or StopPolicy()
        self._clock = clock
        self._on_late = on_late
        self._began = 0.0
        self._plan: StopPlan | None = None
        self._asked: asyncio.Future[None] | None = None
        self._nudge: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._report: asyncio.Future[UnitReport] | None = None
        self._late: tuple[Late, ...] = ()

    @abstractmethod
    async def start(self) -> None:
        """Start it.

        Raises:
            UnitNotStarted: nothing ran.
            UnitState: if it was started before.
        """

    @property
    def ended(self) -> bool:
        return self._report is not None and self._report.done()

    @property
    def report(self) -> UnitReport:
        """What the unit came to, with what arrived since.

        Raises:
            UnitState: before its end.
        """
        if self._report is None or not self._report.done():
            raise UnitState("the unit has no report before its end")
        return replace(self._report.result(), late=self._late)

    async def wait(self) -> UnitReport:
        """Wait for its end.

        Cancellation: changes nothing for the unit.
        """
        if self._report is None:
            raise UnitState("the unit was not started")
        await asyncio.shield(self._report)
        return self.report

    def request_stop(
        self,
        cause: Cause | CauseKind = "user",
        *,
        policy: StopPolicy | None = None,
        words: str | None = None,
    ) -> None:
        """Ask for its end and return at once.  A repeat shortens the grace, a third ends it."""
        if self._report is None or self._task is None:
            raise UnitState("the unit was not started")
        if not isinstance(cause, Cause):
            cause = Cause(cause, self._clock.wall(), words=words)
        if not self._report.done():
            self._ask(cause, policy)

    async def stop(
        self,
        cause: Cause | CauseKind = "user",
        *,
        policy: StopPolicy | None = None,
        words: str | None = None,
    ) -> UnitReport:
        """End it and whatever it started; the report comes by the policy's deadline.

        Cancellation: the stop goes on.
        """
        self.request_stop(cause, policy=policy, words=words)
        return await self.wait()

    async def __aenter__(self: Self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._report is None or self._task is None:
            return
        if not self.ended:
            self._leave_block(cut=isinstance(exc, asyncio.CancelledError))
        await self._settled()

    # -- for the kinds --------------------------------------------------------------------------

    @abstractmethod
    async def _life(self) -> UnitReport:
        """From the start to the report; it waits by `_until` alone, which absorbs cancellations."""

    def _pressed(self) -> None:  # noqa: B027 - most kinds have nobody to pass it on to
        """Called when a stop that is on its way was asked for once more."""

    def _leave_block(self, *, cut: bool) -> None:
        words = "its task was cancelled" if cut else "its block was left"
        self._ask(Cause("parent" if cut else "policy", self._clock.wall(), words=words))

    def _open(self) -> None:
        if self._report is not None:
            raise UnitState("a unit is started once")
        loop = asyncio.get_running_loop()
        self._asked = loop.create_future()
        self._report = loop.create_future()
        self._began = self._clock.monotonic()

    def _live(self) -> None:
        # A context of its own: no cancel scope of the caller reaches the end of a unit.
        self._task = asyncio.get_running_loop().create_task(
            self._whole_life(), name=f"stopkit-{self.id}", context=contextvars.Context()
        )

    async def _whole_life(self) -> None:
        assert self._report is not None
        try:
            self._report.set_result(await self._life())
        except BaseException as error:
            self._report.set_exception(error)
            # Whoever waits gets it.
            self._report.exception()
            raise

    @property
    def _asking(self) -> asyncio.Future[None]:
        """Done once a stop was asked for."""
        assert self._asked is not None
        return self._asked

    @property
    def _cause(self) -> Cause | None:
        return self._plan.cause if self._plan else None

    def _after(self) -> float:
        """Seconds since the start."""
        return max(0.0, self._clock.monotonic() - self._began)

    def _ask(self, cause: Cause, policy: StopPolicy | None = None) -> None:
        now = self._clock.monotonic()
        first = not self._asking.done()
        if self._plan is None:
            self._plan = StopPlan.begin(cause, policy or self._policy, now)
        elif self._plan.cause is None:
            # Its own end is on its way; what is left of it is now a stop's.
            self._plan = replace(self._plan, cause=cause)
        else:
            self._plan = self._plan.press(now)
        if first:
            self._asking.set_result(None)
        if self._nudge is not None and not self._nudge.done():
            self._nudge.set_result(None)
        if not first:
            self._pressed()

    def _grace_until(self) -> float:
        assert self._plan is not None
        return self._plan.grace_until

    def _verify_until(self) -> float:
        assert self._plan is not None
        return self._plan.verify_until

    async def _settled(self) -> None:
        """Wait for the end; a cancellation meanwhile hurries it, and then goes on its way."""
        assert self._task is not None
        cancelled = False
        # The shield keeps an outer cancel scope of anyio from cancelling at every turn of the
        # loop, which would count as so many presses.  A raw cancel goes through it.
        with anyio.CancelScope(shield=True):
            while not self._task.done():
                try:
                    await asyncio.wait({self._task})
                except asyncio.CancelledError:
                    cancelled = True
                    self._ask(Cause("parent", self._clock.wall(), words="its task was cancelled"))
        self._task.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _until_any(
        self, *futures: AnyFuture, until: Callable[[], float] | None = None
    ) -> None:
        await self._until(futures, lambda: any(future.done() for future in futures), until)

    async def _until_all(
        self,
        futures: Sequence[AnyFuture],
        until: Callable[[], float],
        *,
        unless: AnyFuture | None = None,
    ) -> None:
        """Wait for all of them, up to `until`, or until `unless` is done."""
        extra = () if unless is None else (unless,)
        await self._until(
            (*futures, *extra),
            lambda: (
                all(future.done() for future in futures) or any(future.done() for future in extra)
            ),
            until,
        )

    async def _until(
        self,
        futures: Sequence[AnyFuture],
        done: Callable[[], bool],
        until: Callable[[], float] | None = None,
    ) -> None:
        """Absorbs cancellations, each of which hurries the end: this task is that end."""
        while not done():
            timeout = None
            if until is not None:
                timeout = until() - self._clock.monotonic()
                if timeout <= 0:
                    return
            self._nudge = asyncio.get_running_loop().create_future()
            waiting = [future for future in futures if not future.done()]
            try:
                await asyncio.wait(
                    [*waiting, self._nudge],
                    timeout=timeout,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            except asyncio.CancelledError:
                words = "the event loop is ending"
                self._ask(Cause("shutdown", self._clock.wall(), words=words))

    def _came_late(self, late: Late) -> None:
        """Keep a fact that arrived after the report."""
        self._late = (*self._late, late)
        if self._on_late is not None and self.ended:
            self._on_late(self.report)
