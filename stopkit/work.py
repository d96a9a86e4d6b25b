"""What one run has at work in this process, and the writes that tell of it.

Shared by the door (`scope.py`) and the stop (`stopping.py`); everything here belongs to the run's
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pydantic import JsonValue

from stopkit.call import BodyEnd, CallState, StillAtWork, judge, never_started
from stopkit.errors import NotRecorded, StopkitError, StopRequested, StoreClosed
from stopkit.events import EventKind
from stopkit.history import SendableHistory
from stopkit.operation import Operation, outcomes_by_call_id
from stopkit.outcome import Evidence, Outcome
from stopkit.pauses import PausePoint
from stopkit.report import CallReport
from stopkit.run import RunRecord
from stopkit.signal import StopSignal
from stopkit.steer import Steer
from stopkit.stop import StopPlan, StopPolicy
from stopkit.store import ledger
from stopkit.store.ledger import Settlement, StopReceipt
from stopkit.store.tx import Tx
from stopkit.text import TextBuffer

if TYPE_CHECKING:
    from stopkit.store.sql import Store

T = TypeVar("T")

Complete: TypeAlias = Callable[[Sequence[object], Mapping[str, Evidence]], SendableHistory]
"""Makes the saved messages sendable; the evidence is by call id (`id#n` where ids recur)."""

Cleanup: TypeAlias = Callable[[], Awaitable[object]]

WRITE_PATIENCE: Final = 5.0

IN_CLEANUP: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar(
    "stopkit_in_cleanup", default=None
)
"""The run whose clean-up functions the current task runs."""


class Work:
    def __init__(
        self,
        store: Store,
        record: RunRecord,
        signal: StopSignal,
        policy: StopPolicy,
        complete: Complete | None,
    ) -> None:
        self.store = store
        self.clock = store.clock
        self.record = record
        self.signal = signal
        self.policy = policy
        self.complete = complete
        self.plan: StopPlan | None = None
        self.calls: list[CallState] = []
        self.inherited: Sequence[Operation] = ()
        self.requests: dict[asyncio.Task[object], int] = {}
        self.cut_requests: set[asyncio.Task[object]] = set()
        self.performers: set[asyncio.Task[None]] = set()
        self.cleanups: list[Cleanup] = []
        self.texts: list[TextBuffer] = []
        self.steers: dict[str, Steer] = {}
        self.messages: list[object] = []
        self.failure: str | None = None
        self.body_failed = False
        self.request_recorded = False
        self.recorded_first = False
        self._request_submitted = False
        self.not_persisted: list[str] = []
        self.unconfirmed: list[str] = []
        self.breaches: list[str] = []
        self._writes: set[Future[Any]] = set()
        loop = asyncio.get_running_loop()
        self.loop = loop
        self.closed: asyncio.Future[None] = loop.create_future()
        self.body_left: asyncio.Future[None] = loop.create_future()
        # Until the block is entered there is no code of the run's own to wait for.
        self.body_left.set_result(None)
        self.request_known: asyncio.Future[None] = loop.create_future()

    @property
    def run(self) -> str:
        return self.record.id

    @property
    def in_cleanup(self) -> bool:
        """True in the tasks that run this run's clean-up functions, and in no other run's."""
        return IN_CLEANUP.get() == self.run

    @property
    def accounted(self) -> bool:
        """True once every call has its outcome, and no more may come."""
        return self.plan is not None and any(phase == "account" for phase, _ in self.plan.entered)

    async def pause(self, point: PausePoint) -> None:
        if self.store.pause is not None:
            await self.store.pause(point, self.run)

    def patience(self) -> float:
        """Seconds that a write may wait now."""
        if self.plan is None:
            return WRITE_PATIENCE
        return max(0.0, self.plan.deadline_at - self.clock.monotonic())

    def write(self, apply: Callable[[Tx], T], what: str) -> Future[T]:
        """Submit a change; one that fails is named in the report."""
        future = self.store.submit(apply, patience=self.patience())
        self._writes.add(future)
        future.add_done_callback(partial(self._written, what=what))
        return future

    async def unless_closed(self, future: Future[T]) -> T:
        """A write's result; taken back, if it has not begun, when the run closes.

        Raises:
            StopRequested: where it was taken back.
        """
        wrapped = asyncio.wrap_future(future)
        # Clean-up starts after the close.
        if not self.in_cleanup:
            if not wrapped.done() and not self.closed.done():
                waiting: list[asyncio.Future[Any]] = [wrapped, self.closed]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not wrapped.done() and future.cancel():
                raise StopRequested(cause=self.signal.cause, correlation_id=self.run)
        return await wrapped

    def event(self, kind: EventKind, data: Mapping[str, JsonValue]) -> Future[None]:
        at = self.clock.wall()
        return self.write(lambda tx: tx.event(self.run, kind, at, data), kind)

    def approval_withdrawn(self, state: CallState) -> None:
        self.event("approval.withdrawn", {"call_id": state.call.id})

    def record_request(self) -> Future[StopReceipt] | None:
        """Record the request to stop, once; None where that was done before."""
        cause = self.signal.cause
        if self.request_recorded or self._request_submitted or cause is None:
            return None
        self._request_submitted = True
        future = self.write(
            partial(ledger.request_stop, run=self.run, cause=cause, at=self.clock.wall()),
            "the request to stop",
        )
        future.add_done_callback(self._request_written)
        return future

    def request_is_recorded(self) -> None:
        self.request_recorded = True
        self._know_request()

    def breach(self, what: str) -> None:
        """Report code that went on after it was told to end."""
        self.breaches.append(what)
        self.event("breach", {"what": what})

    def withdraw_writes(self) -> None:
        """Take back every write that has not begun."""
        for future in list(self._writes):
            future.cancel()

    def settle(self, state: CallState, outcome: Outcome) -> Outcome:
        """Give a call its outcome, in memory at once, and record it.  The first one stays."""
        if state.outcome is not None:
            return state.outcome
        state.outcome = outcome
        state.stage = "ended"
        if state.signal is not None:
            state.signal.close()
        if not state.ended.done():
            state.ended.set_result(None)
        future = self._record(state, outcome)
        future.add_done_callback(partial(self._settled, state=state))
        return outcome

    def body_ended(self, state: CallState, end: BodyEnd) -> None:
        """A call's function has ended: settle it, or keep what came too late."""
        outcome = judge(state, end, self.clock.monotonic())
        if state.outcome is None:
            self.settle(state, outcome)
        elif state.outcome != outcome:
            self._record(state, outcome)

    def settlement(self, state: CallState, outcome: Outcome) -> Settlement:
        return Settlement(
            state.operation, outcome, tuple(state.receipts), state.provider_request_id
        )

    def account(self) -> list[Settlement]:
        """An outcome for every call that has none, and those that are not recorded."""
        open_: list[Settlement] = []
        for state in self.calls:
            if state.outcome is None:
                cause = self.signal.cause
                if state.stage in ("queued", "intended"):
                    outcome: Outcome = never_started(
                        state, "the run was stopped first", cause=cause.kind if cause else None
                    )
                else:
                    state.cause = state.cause or cause
                    outcome = judge(state, StillAtWork(), self.clock.monotonic())
                    self.unconfirmed.append(f"{state.label}: {outcome.reason}")
                state.outcome = outcome
                state.stage = "ended"
                if not state.ended.done():
                    state.ended.set_result(None)
            if not state.recorded:
                open_.append(self.settlement(state, state.outcome))
        return open_

    def call_reports(self) -> tuple[CallReport, ...]:
        return tuple(
            CallReport(
                state.call,
                state.operation.request,
                state.operation.key,
                state.effect if state.tool else None,
                state.outcome,
                state.recorded,
                tuple(state.receipts),
                state.provider_request_id,
                state.diff,
            )
            for state in self.calls
            if state.outcome is not None
        )

    def evidence(self) -> dict[str, Evidence]:
        """What became of the calls of all attempts, as the messages name them."""
        own = [replace(state.operation, outcome=state.outcome) for state in self.calls]
        found: dict[str, Evidence] = {}
        for call_id, outcomes in outcomes_by_call_id([*self.inherited, *own]).items():
            for occurrence, outcome in enumerate(outcomes, 1):
                if outcome is not None:
                    found[call_id if occurrence == 1 else f"{call_id}#{occurrence}"] = outcome
        return found

    def _request_written(self, future: Future[StopReceipt]) -> None:
        recorded = not future.cancelled() and future.exception() is None
        if recorded:
            self.recorded_first = future.result().first
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(
                self.request_is_recorded if recorded else self._know_request
            )

    def _know_request(self) -> None:
        if not self.request_known.done():
            self.request_known.set_result(None)

    def _record(self, state: CallState, outcome: Outcome) -> Future[Outcome]:
        at = self.clock.wall()
        settlement = self.settlement(state, outcome)
        return self.write(
            partial(ledger.settle, settlement=settlement, at=at), f"the outcome of {state.label}"
        )

    def _settled(self, future: Future[Outcome], *, state: CallState) -> None:
        # In the writer's thread.
        recorded = not future.cancelled() and future.exception() is None

        def tell() -> None:
            state.recorded = state.recorded or recorded
            if not state.done.done():
                state.done.set_result(None)

        try:
            self.loop.call_soon_threadsafe(tell)
        except RuntimeError:
            # The loop is closed: nobody waits any more, and the record has what it has.
            state.recorded = state.recorded or recorded

    def _written(self, future: Future[Any], *, what: str) -> None:
        self._writes.discard(future)
        if future.cancelled():
            self.not_persisted.append(what)
            return
        error = future.exception()
        if isinstance(error, (NotRecorded, StoreClosed)):
            self.not_persisted.append(what)
        elif isinstance(error, StopkitError):
            self.not_persisted.append(f"{what}: {error}")
