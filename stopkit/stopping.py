"""Drives a run to its end: the plan of `stop.py`, carried out.

One task of its own, with its own deadline.  It waits only on futures and absorbs whatever cancels
it: a raw cancel goes through any shield, and the end of `asyncio.run` cancels every task.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from stopkit.call import CallState, never_started
from stopkit.errors import StopkitError
from stopkit.history import SendableHistory
from stopkit.pauses import PausePoint
from stopkit.report import RunReport, StopReport
from stopkit.run import End, RunRecord, RunStatus
from stopkit.steer import Steer
from stopkit.stop import Phase, StopPlan, treatment
from stopkit.store import ledger
from stopkit.text import FinalText
from stopkit.work import IN_CLEANUP, Work

T = TypeVar("T")

RECORD_FIRST: Final = 0.25
"""Seconds that the telling waits for the record, at most: a stop never waits for a database."""

LAST_TURNS: Final = 20
"""Turns of the loop that what was cut gets at least, so that no wait of 0 s accuses it."""

_log = logging.getLogger("stopkit")


class Ending:
    """`start` begins the end, once; `press` hurries it; `ended` has the report.

    `cancel_body` cancels the code inside the scope; `body_is_outside` tells whether that is at
    something of its own, which the door cannot end.
    """

    def __init__(
        self,
        work: Work,
        *,
        cancel_body: Callable[[], None],
        body_is_outside: Callable[[], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._work = work
        self._cancel_body = cancel_body
        self._body_is_outside = body_is_outside
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[object]] = set()
        self._kept: set[CallState] = set()
        self._wake: asyncio.Future[None] | None = None
        self.ended: asyncio.Future[RunReport] = work.loop.create_future()

    @property
    def started(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Close, in memory, at once; the rest follows in a task."""
        if self._task is not None:
            return
        work = self._work
        work.plan = StopPlan.begin(work.signal.cause, work.policy, work.clock.monotonic())
        if not work.closed.done():
            work.closed.set_result(None)
        # A context of its own: the body's cancel scopes and variables are not the clean-up's.
        self._task = work.loop.create_task(
            self._drive(), name=f"stopkit-end-{work.run}", context=contextvars.Context()
        )

    def press(self) -> None:
        plan = self._work.plan
        if plan is not None and not self.ended.done():
            self._work.plan = plan.press(self._work.clock.monotonic())
            if self._wake is not None and not self._wake.done():
                self._wake.set_result(None)

    async def _drive(self) -> None:
        try:
            report = await self._phases()
        except BaseException as error:
            _log.exception("the end of run %s went wrong", self._work.run)
            self._on_end()
            self.ended.set_exception(error)
            # Whoever waits gets it; if nobody does, the log has it.
            self.ended.exception()
            return
        self._on_end()
        self.ended.set_result(report)

    async def _phases(self) -> RunReport:
        work = self._work
        stopped = work.signal.cause is not None
        if stopped:
            await self._record()
            self._tell()
        else:
            self._enter("record")
            self._enter("tell")
        in_time = await self._settle()
        with contextlib.suppress(asyncio.CancelledError):
            # The callbacks of what ended last tell of it before the account.
            await asyncio.sleep(0)
        self._enter("account")
        settlements = work.account()
        for performer in list(work.performers):
            performer.cancel()
        for text in work.texts:
            if not text.finished:
                text.flush()
        steers = self._end_steers()
        self._enter("complete")
        history: SendableHistory | None = None
        if work.complete is not None:
            try:
                history = work.complete(tuple(work.messages), work.evidence())
            except Exception as error:
                _log.exception("the history of run %s could not be completed", work.run)
                work.unconfirmed.append(f"the history was not completed: {error}")
        await self._pause("before_end")
        self._enter("end")
        end = self._end_of(stopped)
        finished = work.write(
            partial(
                ledger.finish_run,
                run=work.run,
                at=work.clock.wall(),
                end=end,
                settlements=settlements,
                steers=steers,
                failure=work.failure,
                cause=work.signal.cause if stopped else None,
                presses=work.signal.presses if stopped else 0,
                data={
                    "unconfirmed": list(work.unconfirmed),
                    "not_persisted": list(work.not_persisted),
                },
            ),
            "the end of the run",
        )
        await self._until_written([finished], self._deadline)
        if not finished.done():
            # What is still in the queue is not written behind the report's back.
            work.withdraw_writes()
            if not finished.done():
                work.not_persisted.append("the end of the run, which was being written")
        record = await self._record_after(finished)
        if record is not None:
            work.record = record
            for state in work.calls:
                state.recorded = True
        assert work.plan is not None
        return self._report(work.plan, record, steers, history, in_time=in_time)

    def _end_of(self, stopped: bool) -> End:
        if self._work.body_failed:
            return "failed"
        return "cancelled" if stopped else "completed"

    async def _record(self) -> None:
        work = self._work
        self._enter("record")
        future = work.record_request()
        if future is not None:
            until = min(work.clock.monotonic() + RECORD_FIRST, self._deadline())
            await self._until_written([future], lambda: until)

    def _tell(self) -> None:
        work = self._work
        self._enter("tell")
        cause = work.signal.cause
        assert cause is not None
        work.write(
            partial(ledger.observe_stop, run=work.run, cause=cause, at=work.clock.wall()),
            "that the worker saw the request",
        )
        for state in work.calls:
            if state.outcome is None:
                self._tell_call(state)
        for task in list(work.requests):
            work.cut_requests.add(task)
            task.cancel()
        if self._body_is_outside():
            self._cancel_body()

    def _tell_call(self, state: CallState) -> None:
        work = self._work
        cause = work.signal.cause
        if state.stage == "queued":
            if (approval := state.approval) is not None:
                withdrawn = never_started(
                    state,
                    "the run was stopped before anybody approved it",
                    cause=cause.kind if cause else None,
                )
                approval.answer(withdrawn, partial(work.approval_withdrawn, state))
                if approval.refusal is not None:
                    # This one, or a person's just before it: the call is about to wake to it.
                    return
            work.settle(
                state,
                never_started(
                    state,
                    "the run was stopped while it was queued",
                    cause=cause.kind if cause else None,
                ),
            )
            return
        state.cause = cause
        what = treatment(state.effect, dispatched=state.dispatched, policy=work.policy)
        if what == "keep":
            self._kept.add(state)
            return
        if state.stage != "running":
            return
        if state.dispatched and state.tool is not None and state.tool.cancel is not None:
            self._help(self._cancel_remote(state, state.tool.cancel(state.operation.key)))
        # Cutting a thread only stops the listening: it gets the grace to bring its result.
        if what == "cut" and state.thread is None:
            self._cut(state)

    async def _cancel_remote(self, state: CallState, asked: object) -> None:
        try:
            if asyncio.iscoroutine(asked) or isinstance(asked, asyncio.Future):
                await asked
        except Exception as error:
            state.receipts.append(f"the service was asked to cancel it, and failed: {error}")
        else:
            state.receipts.append("the service was asked to cancel it")

    async def _settle(self) -> bool:
        """Wait for what is at work, then cut it; True if all of it has ended."""
        work = self._work
        self._enter("settle")
        await self._pause("in_cleanup")
        for cleanup in work.cleanups:
            self._help(self._clean_up(cleanup))
        if await self._until(self._open_work, self._grace):
            return True
        for state in work.calls:
            if state.task is not None and not state.task.done() and state not in self._kept:
                self._cut(state)
        for task in [*work.requests, *self._helpers]:
            task.cancel()
        if self._body_is_outside():
            self._cancel_body()
        # Code that waits at the door gets the outcomes of what was cut, and time to keep them.
        if await self._until(self._open_work, self._half_of_verify):
            return True
        self._cancel_body()
        if await self._until(self._open_work, self._verify):
            return True
        self._name_what_is_left()
        return False

    async def _clean_up(self, cleanup: Callable[[], object]) -> None:
        IN_CLEANUP.set(self._work.run)
        try:
            result = cleanup()
            if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
                await result
        except Exception as error:
            self._work.unconfirmed.append(f"clean-up failed: {type(error).__name__}: {error}")

    def _name_what_is_left(self) -> None:
        work = self._work
        for state in work.calls:
            if state.task is not None and not state.task.done() and state not in self._kept:
                work.breach(f"{state.label} did not end when it was cancelled")
        for task, ordinal in work.requests.items():
            if not task.done():
                work.unconfirmed.append(f"model request {ordinal} did not end")
                work.breach(f"model request {ordinal} did not end when it was cancelled")
        if any(not helper.done() for helper in self._helpers):
            work.unconfirmed.append("clean-up did not end in time")
        if not work.body_left.done():
            work.unconfirmed.append("the run's own code did not end")
            work.breach("the run's own code did not end when it was cancelled")

    def _open_work(self) -> Iterable[asyncio.Future[Any]]:
        work = self._work
        for state in work.calls:
            # Its outcome, not its task: that is done one turn before its callback has judged it.
            if state.task is not None and state not in self._kept:
                yield state.ended
        yield from work.requests
        yield from self._helpers
        yield work.body_left

    def _cut(self, state: CallState) -> None:
        if state.task is not None and not state.task.done():
            state.cut_at = self._work.clock.monotonic()
            state.cause = state.cause or self._work.signal.cause
            state.task.cancel()

    def _end_steers(self) -> list[Steer]:
        work = self._work
        keep = work.policy.queued == "keep"
        for steer in list(work.steers.values()):
            if not (keep and steer.status == "queued"):
                work.steers[steer.id] = steer.end()
        return list(work.steers.values())

    def _report(
        self,
        plan: StopPlan,
        record: RunRecord | None,
        steers: list[Steer],
        history: SendableHistory | None,
        *,
        in_time: bool,
    ) -> RunReport:
        work = self._work
        status: RunStatus = work.record.status
        cause = plan.cause or (record.cause if record else None)
        stop = None
        if cause is not None:
            stop = StopReport(
                cause=cause,
                presses=max(work.signal.presses, record.presses if record else 0),
                recorded=work.request_recorded or (record is not None and record.cause is not None),
                forced=plan.forced,
                in_time=in_time,
                phases=tuple((phase, at - plan.asked_at) for phase, at in plan.entered),
            )
        finals = [text.finish() for text in work.texts if text.finished]
        final: FinalText | None = finals[-1] if finals else None
        calls = work.call_reports()
        unverified = [
            state.operation.key
            for state in work.calls
            if state.outcome is not None
            and state.effect in ("write", "detached")
            and state.dispatched
            and state.outcome.status != "succeeded"
            and state.outcome.effects == "unverified"
        ]
        return RunReport(
            run=work.run,
            session=work.record.session,
            lineage=work.record.lineage,
            attempt=work.record.attempt,
            status=status,
            durable=work.store.durable,
            calls=calls,
            stop=stop,
            # A run that was stopped has no final answer, even if an earlier text had ended.
            final_text=None if plan.cause is not None else final,
            partial_text=tuple(text.partial for text in work.texts if not text.finished),
            steers=tuple(steers),
            to_reconcile=tuple(unverified),
            unconfirmed=tuple(work.unconfirmed),
            breaches=tuple(work.breaches),
            not_persisted=tuple(work.not_persisted),
            history=history,
            failure=work.failure,
            requests=work.record.requests,
        )

    async def _record_after(self, finished: Future[RunRecord]) -> RunRecord | None:
        """The record as the end left it, or None where the end was not written."""
        if finished.done() and not finished.cancelled() and finished.exception() is None:
            return finished.result()
        with contextlib.suppress(StopkitError, asyncio.CancelledError):
            self._work.record = await self._work.store.load(self._work.run)
        return None

    async def _pause(self, point: PausePoint) -> None:
        if self._work.store.pause is not None:
            held = self._work.loop.create_task(self._held(point))
            await self._until(lambda: [held], self._deadline)
            held.cancel()

    async def _held(self, point: PausePoint) -> object:
        await self._work.pause(point)
        return None

    def _help(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        self._helpers.add(self._work.loop.create_task(work))

    def _enter(self, phase: Phase) -> None:
        assert self._work.plan is not None
        self._work.plan = self._work.plan.enter(phase, self._work.clock.monotonic())

    def _grace(self) -> float:
        assert self._work.plan is not None
        return self._work.plan.grace_until

    def _verify(self) -> float:
        assert self._work.plan is not None
        return self._work.plan.verify_until

    def _half_of_verify(self) -> float:
        return (self._grace() + self._verify()) / 2

    def _deadline(self) -> float:
        assert self._work.plan is not None
        return self._work.plan.deadline_at

    async def _until_written(
        self, futures: Iterable[Future[T]], until: Callable[[], float]
    ) -> None:
        """Wait for writes, without ever taking one back."""
        wrapped = [asyncio.wrap_future(future) for future in futures if not future.done()]
        await self._until(lambda: wrapped, until)
        for waiter in wrapped:
            if waiter.done() and not waiter.cancelled():
                # Its failure is told by the write itself.
                waiter.exception()

    async def _until(
        self,
        open_: Callable[[], Iterable[asyncio.Future[Any]]],
        until: Callable[[], float],
    ) -> bool:
        """Wait until all are done, or the time has come; True if they are.

        Both are looked at again after each wake, since a press may change the time and clean-up
        may add work.  Cancellation is absorbed.
        """
        work = self._work
        turns = LAST_TURNS
        while True:
            waiting: list[asyncio.Future[Any]] = [future for future in open_() if not future.done()]
            if not waiting:
                return True
            left = until() - work.clock.monotonic()
            if left <= 0:
                if turns == 0:
                    return False
                turns -= 1
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                continue
            wake = self._wake = work.loop.create_future()
            gate = _Gate(len(waiting), wake)
            timer = work.loop.call_later(left, _set, wake)
            for future in waiting:
                future.add_done_callback(gate)
            try:
                await wake
            except asyncio.CancelledError:
                continue
            finally:
                timer.cancel()
                for future in waiting:
                    future.remove_done_callback(gate)


class _Gate:
    """Opens after as many calls as there were futures."""

    __slots__ = ("_left", "_wake")

    def __init__(self, count: int, wake: asyncio.Future[None]) -> None:
        self._left = count
        self._wake = wake

    def __call__(self, _future: object) -> None:
        self._left -= 1
        if self._left == 0:
            _set(self._wake)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
