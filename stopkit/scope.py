"""`RunScope`: one run, its record, its signal, and the only door through which work starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
from pydantic import JsonValue

from stopkit.call import CallState
from stopkit.errors import (
    ApprovalNotPending,
    CleanupOnly,
    DecisionRefused,
    InsideTheRun,
    StopkitError,
    StopRequested,
)
from stopkit.events import EventKind
from stopkit.history import ToolCall
from stopkit.operation import Operation
from stopkit.outcome import Denied, Outcome
from stopkit.performing import CallRunner
from stopkit.report import RunReport
from stopkit.run import RunRecord
from stopkit.signal import StopSignal
from stopkit.steer import Steer
from stopkit.stop import Cause, CauseKind, StopPolicy
from stopkit.stopping import Ending
from stopkit.store import ledger
from stopkit.store.ledger import ChildReceipt, Closed, StopReceipt
from stopkit.store.tx import Tx
from stopkit.text import FinalText, PartialText, TextBuffer
from stopkit.tool import Tools, by_name
from stopkit.work import Complete, Work

if TYPE_CHECKING:
    from stopkit.store.sql import Store

T = TypeVar("T")

REFUSALS_BEFORE_BREACH = 3
"""Times that the run's own code may knock at the closed door before that is reported."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits for somebody's word.  `occurrence` tells calls with one id apart."""

    call_id: str
    occurrence: int
    name: str
    arguments: Mapping[str, object]


class RunScope:
    """Made by `store.open_run` and `store.resume_run`; used once, with `async with`.

    Inside, `model_request` and `run_calls` are the ways to start work.  A stop closes both, ends
    what is at work, and cancels the code inside where that waits for something of its own.  The
    block is left without an exception then, and `report` says what became of everything.

    Cancelling the task that is inside is a stop too (cause `parent`); the cancellation goes on its
    way once the run has its end.
    """

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        *,
        deadline: float | None,
        policy: StopPolicy | None,
        parent: RunScope | None,
        complete: Complete | None,
        messages: Sequence[JsonValue] = (),
        inherited: Sequence[Operation] = (),
        steers: Sequence[Steer] = (),
    ) -> None:
        self.id = record.id
        self.session = record.session
        self.attempt = record.attempt
        self.signal = StopSignal(deadline=deadline, clock=store.clock, run=record.id)
        self._work = Work(store, record, self.signal, policy or StopPolicy(), complete)
        self._work.inherited = tuple(inherited)
        self._work.messages.extend(messages)
        self._work.steers.update((steer.id, steer) for steer in steers)
        self._saved = len(messages)
        self._saved_repairs = 0
        self._ending = Ending(
            self._work,
            cancel_body=self._cancel_body,
            body_is_outside=lambda: self._host is not None and self._inside == 0,
            on_end=self._let_go,
        )
        self._runner = CallRunner(self._work, inherited, self._take_notice)
        self._handed: list[str] = []
        self._host: asyncio.Task[object] | None = None
        self._inside = 0
        self._refusals = 0
        self._presses_seen = 0
        self._durable_presses = 0
        self._cancel_scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None
        self._unsubscribe = self.signal.on_press(self._asked)
        self._unsubscribe_parent: Callable[[], None] | None = None
        if parent is not None:
            self._unsubscribe_parent = parent.signal.on_request(partial(self._parent_asked, parent))

    # -- the block ------------------------------------------------------------------------------

    async def __aenter__(self) -> RunScope:
        work = self._work
        self._host = asyncio.current_task()
        try:
            started = await work.store.write(
                partial(ledger.start_run, run=self.id, at=work.clock.wall())
            )
        except asyncio.CancelledError:
            # It may be recorded as running all the same, and no block will be left to end it.
            self.signal.request("parent", words="the task that ran it was cancelled")
            self._begin()
            await self._await_end()
            raise
        work.store.listen(self.id, self._noticed)
        remaining = self.signal.remaining()
        if remaining != float("inf"):
            self._timer = work.loop.call_later(remaining, self._deadline_came)
        self._cancel_scope.__enter__()
        work.body_left = work.loop.create_future()
        if isinstance(started, Closed):
            # Stopped while it was queued: the block is entered, and nothing starts in it.
            self._take_notice(started)
        else:
            work.record = started
        if self._ending.started:
            # It has told everybody already, and nobody was inside then.
            self._cancel_body()
        elif self.signal.requested:
            self._begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        own_cancel = bool(self._cancel_scope.__exit__(exc_type, exc, traceback))
        work = self._work
        cancelled = isinstance(exc, asyncio.CancelledError) and not own_cancel
        swallow = own_cancel or self._is_own_stop(exc)
        if cancelled:
            self.signal.request("parent", words="the task that ran it was cancelled")
        elif isinstance(exc, StopRequested) and not swallow:
            # The stop of a run around this one passes through; it ends this one too.
            self.signal.request("parent", words=str(exc))
        elif isinstance(exc, (KeyboardInterrupt, SystemExit)):
            self.signal.request("shutdown", words=type(exc).__name__)
        elif exc is not None and not swallow:
            work.failure = f"{type(exc).__name__}: {exc}"
            work.body_failed = True
        if not work.body_left.done():
            work.body_left.set_result(None)
        self._begin()
        absorbed = await self._await_end()
        if absorbed and (exc is None or swallow):
            # It was taken in for the time of the end only, and now goes on its way.
            raise asyncio.CancelledError
        return swallow

    @property
    def report(self) -> RunReport:
        """What the run came to.

        Raises:
            InsideTheRun: while it has no end.
        """
        if not self._ending.ended.done():
            raise InsideTheRun("the run has no report before its end", correlation_id=self.id)
        return self._ending.ended.result()

    @property
    def record(self) -> RunRecord:
        """The record as this process last wrote or read it."""
        return self._work.record

    @property
    def messages(self) -> tuple[object, ...]:
        """The saved messages, those of earlier attempts first."""
        return tuple(self._work.messages)

    # -- the door -------------------------------------------------------------------------------

    async def model_request(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send one request to a model, if the run may.

        Raises:
            StopRequested: once a stop is asked for; the request was not sent, or was cut.
            NotRecorded: if it could not be written down first; it was not sent.

        Cancellation: cuts the request.  That the provider stopped too is not known.
        """
        async with self._door("model_request"):
            work = self._work
            await work.pause("before_model_request")
            await self._check("model_request")
            begun = await work.unless_closed(
                work.store.submit(
                    partial(ledger.begin_request, run=self.id, at=work.clock.wall()),
                    patience=work.patience(),
                ),
            )
            if isinstance(begun, Closed):
                self._take_notice(begun)
                await self._check("model_request")
            ordinal = cast(int, begun)
            self._runner.ordinal = ordinal
            if self.signal.requested:
                work.event("request.ended", {"request": ordinal, "how": "not_sent"})
                await self._check("model_request")
            steers = self._send_steers(ordinal)
            task = work.loop.create_task(_awaited(send()))
            work.requests[task] = ordinal
            task.add_done_callback(self._request_ended)
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                work.cut_requests.add(task)
                task.cancel()
                raise
            if task.cancelled():
                await self._check("model_request")
                raise asyncio.CancelledError
            reply = task.result()
            self._steers_applied(steers, ordinal)
            await work.pause("after_model_request")
            return reply

    async def run_calls(
        self, calls: Sequence[ToolCall], tools: Tools, *, limit: int | None = None
    ) -> list[Outcome]:
        """Run the calls of one reply, at most `limit` at a time; an outcome each, in their order.

        A tool's own error is an outcome.  After the close every call is `not_started`.

        Raises:
            ValueError: for a limit below 1.
            CleanupOnly: inside a clean-up function, for any tool whose effect is not `cleanup`.

        Cancellation: cuts these calls as a stop would; their outcomes are in the report.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit is at least 1, not {limit!r}")
        table = by_name(tools)
        cleanup = self._work.in_cleanup
        if cleanup and any(
            (found := table.get(call.name)) is None or found.effect != "cleanup" for call in calls
        ):
            raise CleanupOnly("clean-up may save, release and verify", correlation_id=self.id)
        slots = asyncio.Semaphore(limit) if limit is not None else None
        states = [self._runner.register(call, table.get(call.name), cleanup) for call in calls]
        with self._within():
            work = self._work
            performers = [
                work.loop.create_task(self._runner.perform(state, slots)) for state in states
            ]
            work.performers.update(performers)
            for performer in performers:
                performer.add_done_callback(work.performers.discard)
            try:
                if performers:
                    await asyncio.wait(performers)
            except asyncio.CancelledError:
                for state, performer in zip(states, performers, strict=True):
                    self._runner.cut(state, performer)
                raise
            for performer in performers:
                if not performer.cancelled() and (error := performer.exception()) is not None:
                    raise error
            if any(state.outcome is None for state in states):
                # Only the end of the whole loop cancels performers from elsewhere.
                raise asyncio.CancelledError
        return [cast(Outcome, state.outcome) for state in states]

    async def run_call(self, call: ToolCall, tools: Tools) -> Outcome:
        """`run_calls` for one call."""
        return (await self.run_calls([call], tools))[0]

    # -- approvals ------------------------------------------------------------------------------

    @property
    def approvals(self) -> tuple[ApprovalRequest, ...]:
        """The calls that wait for an approval."""
        return tuple(
            ApprovalRequest(
                state.call.id, state.call.occurrence, state.call.name, state.operation.arguments
            )
            for state in self._work.calls
            if state.approval is not None and not state.approval.answered
        )

    def approve(self, call_id: str, *, by: str, occurrence: int = 1) -> None:
        """Let a call start.  From any thread.

        Raises:
            ApprovalNotPending: if it does not wait, or not any more.
            DecisionRefused: if nobody is named.
        """
        self._answer(call_id, occurrence, None, "approval.approved", {"by": by})

    def deny(self, call_id: str, reason: str, *, by: str, occurrence: int = 1) -> None:
        """Keep a call from running, and no other; `reason` goes to the model.

        From any thread.

        Raises:
            ApprovalNotPending: if it does not wait, or not any more.
            DecisionRefused: if nobody is named.
        """
        denied = Denied(by=by, reason=reason)
        self._answer(call_id, occurrence, denied, "approval.denied", {"by": by, "reason": reason})

    # -- steering -------------------------------------------------------------------------------

    async def steer(self, content: str | Mapping[str, JsonValue]) -> Steer:
        """Queue a message for the run's next model request.

        Raises:
            StopRequested: after the close; the message stays with its author.
            NotRecorded: if it could not be written down.
        """
        await self._check("steer")
        work = self._work
        steer = Steer(work.store.ids("steer"), self.id, content)
        await work.store.write(partial(ledger.add_steer, steer=steer, at=work.clock.wall()))
        work.steers[steer.id] = steer
        if self.signal.requested:
            # The stop handed back what was queued before this one came.
            work.steers[steer.id] = steer.end()
        return work.steers[steer.id]

    def steers_due(self) -> list[dict[str, JsonValue]]:
        """The queued messages, in order, for the next model request; each is handed out once."""
        due = [
            steer
            for steer in self._work.steers.values()
            if steer.status == "queued" and steer.id not in self._handed
        ]
        if self.signal.requested:
            return []
        self._handed.extend(steer.id for steer in due)
        return [steer.message() for steer in due]

    # -- text and messages ----------------------------------------------------------------------

    def text(self) -> TextBuffer:
        """A buffer for the text of one reply, made durable as it comes in."""
        work = self._work
        name = work.store.ids("text")

        def save(offset: int, chunk: str) -> None:
            work.event("text.partial", {"text": name, "offset": offset, "chunk": chunk})

        def finished(text: FinalText) -> None:
            work.event("text.final", {"text": text.id, "length": len(text.text)})

        buffer = TextBuffer(
            name, self.signal, now=work.clock.monotonic, save=save, finished=finished
        )
        work.texts.append(buffer)
        return buffer

    def shown(self, text: FinalText | PartialText) -> None:
        """Tell that a text was shown to somebody, as what its type says."""
        kind = "final" if isinstance(text, FinalText) else "partial"
        self._work.event("text.shown", {"text": text.id, "as": kind})

    async def save(self, messages: Sequence[object], *, repairs: Sequence[object] = ()) -> None:
        """Record the conversation until here: what a resume starts from.

        `messages` is the whole of it; what was saved before is not written again.

        Raises:
            NotRecorded: if it could not be written.
        """
        work = self._work
        new = list(messages[self._saved :])
        start, self._saved = self._saved, self._saved + len(new)
        new_repairs = list(repairs[self._saved_repairs :])
        repairs_start = self._saved_repairs
        self._saved_repairs += len(new_repairs)
        del work.messages[start:]
        work.messages.extend(new)

        def append(tx: Tx) -> None:
            ledger.append_messages(tx, self.id, start, new)
            ledger.append_repairs(tx, self.id, repairs_start, new_repairs)

        try:
            await asyncio.shield(asyncio.wrap_future(work.write(append, "messages")))
        except StopkitError:
            self._saved, self._saved_repairs = start, repairs_start
            raise

    # -- stopping -------------------------------------------------------------------------------

    def on_cleanup(self, cleanup: Callable[[], Awaitable[object]]) -> None:
        """Call `cleanup` when the run ends, within the grace: to save, release and verify.

        It runs in a task of its own, which the stop does not cancel before that.
        """
        self._work.cleanups.append(cleanup)

    async def request_stop(
        self,
        cause: Cause | CauseKind = "user",
        *,
        actor: str | None = None,
        words: str | None = None,
    ) -> StopReceipt:
        """Ask for the stop and say what became of the request; the stop goes on by itself.

        Returns once the request is recorded, or could not be within the policy's `ack_wait`.

        Cancellation: the request stands.
        """
        work = self._work
        if self._ending.ended.done():
            record = await work.store.load(self.id)
            return _receipt(record, first=False)
        first = self.signal.request(cause, actor=actor, words=words)
        self._begin()
        at_work = [state for state in work.calls if state.outcome is None and state.signal]
        with self._within():
            await asyncio.wait({work.request_known}, timeout=work.policy.ack_wait)
        if not work.request_recorded:
            return StopReceipt(
                self.id,
                cause=self.signal.cause,
                first=first,
                presses=self.signal.presses,
                error="the request is not recorded, or not yet",
                children=_children(at_work),
            )
        # Somebody may have asked through the record while this one was on its way there.
        receipt = _receipt(await work.store.load(self.id), first=first and work.recorded_first)
        return replace(receipt, children=_children(at_work))

    async def stop(
        self,
        cause: Cause | CauseKind = "user",
        *,
        actor: str | None = None,
        words: str | None = None,
    ) -> RunReport:
        """Ask for the stop and wait for the run's end, which comes by the policy's deadline.

        Raises:
            InsideTheRun: from the run's own code, which has to be left for the run to end.

        Cancellation: the stop goes on.
        """
        self._refuse_inside()
        if not self._ending.ended.done():
            self.signal.request(cause, actor=actor, words=words)
            self._begin()
        return await self.wait()

    async def wait(self) -> RunReport:
        """Wait for the run's end.

        Raises:
            InsideTheRun: from the run's own code.

        Cancellation: changes nothing for the run.
        """
        self._refuse_inside()
        return await asyncio.shield(self._ending.ended)

    # -- inside ---------------------------------------------------------------------------------

    def _refuse_inside(self) -> None:
        if asyncio.current_task() is self._host and not self._work.body_left.done():
            raise InsideTheRun(
                "the run's own code cannot wait for the run's end; use request_stop",
                correlation_id=self.id,
            )

    def _asked(self) -> None:
        # In any thread, signal handlers included.
        with contextlib.suppress(RuntimeError):
            self._work.loop.call_soon_threadsafe(self._begin_or_press)

    def _begin_or_press(self) -> None:
        if self._ending.ended.done() or not self.signal.requested:
            return
        if not self._ending.started:
            self._begin()
        work = self._work
        if work.plan is not None and work.plan.cause is None:
            # The run was coming to its end by itself; the record says which was first.
            work.record_request()
            self._presses_seen = max(self._presses_seen, 1)
            self._durable_presses = max(self._durable_presses, 1)
        while self._presses_seen < self.signal.presses:
            self._presses_seen += 1
            self._ending.press()
            if self._durable_presses < self._presses_seen:
                self._durable_presses = self._presses_seen
                work.write(partial(ledger.press, run=self.id), "a repeated request")

    def _begin(self) -> None:
        if not self._ending.started:
            if self.signal.requested:
                self._presses_seen = 1
                self._durable_presses = max(self._durable_presses, 1)
            self._ending.start()

    def _noticed(self, cause: Cause, presses: int | None) -> None:
        # In the writer's thread, or in that of a task which asked through the store.
        if presses is None:
            self.signal.request(cause)
            return
        with contextlib.suppress(RuntimeError):
            self._work.loop.call_soon_threadsafe(self._recorded_elsewhere, presses)
        while self.signal.presses < presses:
            self.signal.request(cause)

    def _recorded_elsewhere(self, presses: int) -> None:
        self._work.request_is_recorded()
        self._durable_presses = max(self._durable_presses, presses)

    def _take_notice(self, closed: Closed) -> None:
        # In any thread.  Before the signal: the stop that this begins finds it recorded.
        with contextlib.suppress(RuntimeError):
            self._work.loop.call_soon_threadsafe(self._recorded_elsewhere, 1)
        if not self.signal.requested:
            cause = closed.cause or Cause(
                "operator", self._work.clock.wall(), words=f"its record says {closed.status}"
            )
            self.signal.request(cause)

    def _parent_asked(self, parent: RunScope) -> None:
        cause = parent.signal.cause
        assert cause is not None
        self.signal.request(cause.for_child(self._work.clock.wall()))

    def _deadline_came(self) -> None:
        # The first look at a passed deadline makes the request.
        if not self.signal.requested:
            self.signal.request("deadline")

    def _cancel_body(self) -> None:
        if not self._work.body_left.done():
            self._cancel_scope.cancel()

    def _let_go(self) -> None:
        self._work.store.unlisten(self.id)
        self._unsubscribe()
        if self._unsubscribe_parent is not None:
            self._unsubscribe_parent()
        if self._timer is not None:
            self._timer.cancel()

    async def _await_end(self) -> bool:
        """Wait for the end; True if that took in a cancellation."""
        absorbed = False
        ended = self._ending.ended
        # The shield keeps an outer cancel scope of anyio from cancelling at every turn of the
        # loop.  A raw cancel goes through it, and hurries the end as a press would.
        with anyio.CancelScope(shield=True):
            while not ended.done():
                try:
                    await asyncio.wait({ended})
                except asyncio.CancelledError:
                    absorbed = True
                    self._ending.press()
        ended.result()
        return absorbed

    def _is_own_stop(self, exc: BaseException | None) -> bool:
        if isinstance(exc, BaseExceptionGroup):
            return all(self._is_own_stop(inner) for inner in exc.exceptions)
        return (
            isinstance(exc, StopRequested)
            and self.signal.requested
            and exc.cause is self.signal.cause
        )

    @contextlib.asynccontextmanager
    async def _door(self, where: str) -> AsyncIterator[None]:
        await self._check(where)
        if self._work.in_cleanup:
            raise CleanupOnly("clean-up may not go on with the task", correlation_id=self.id)
        with self._within():
            yield

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        """Count the run's own task in, so that a stop ends its wait by way of the door."""
        host = asyncio.current_task() is self._host
        if host:
            self._inside += 1
        try:
            yield
        finally:
            if host:
                self._inside -= 1

    async def _check(self, where: str) -> None:
        if not (self.signal.requested or self._ending.started):
            return
        self._refusals += 1
        if self._refusals == REFUSALS_BEFORE_BREACH:
            self._work.breach(f"the run's own code goes on after the close, at {where}")
        # Code that catches this and tries again must not keep the loop from ending it.
        await asyncio.sleep(0)
        raise StopRequested(
            cause=self.signal.cause,
            where=where,
            run_status=self._work.record.status,
            correlation_id=self.id,
        )

    def _answer(
        self,
        call_id: str,
        occurrence: int,
        refusal: Denied | None,
        kind: EventKind,
        data: Mapping[str, JsonValue],
    ) -> None:
        if not str(data["by"]).strip():
            raise DecisionRefused("an approval names who gave it", correlation_id=self.id)
        tell = partial(self._work.event, kind, {"call_id": call_id, **data})
        # A copy: this may be another thread than the loop's.
        for state in list(self._work.calls):
            if (state.call.id, state.call.occurrence) == (call_id, occurrence) and (
                state.approval is not None and state.approval.answer(refusal, tell)
            ):
                return
        raise ApprovalNotPending(
            f"call {call_id} does not wait for an approval", correlation_id=self.id
        )

    def _request_ended(self, task: asyncio.Task[object]) -> None:
        work = self._work
        ordinal = work.requests.pop(task)
        cut = task in work.cut_requests
        work.cut_requests.discard(task)
        data: dict[str, JsonValue] = {"request": ordinal}
        if task.cancelled():
            # That we hung up says nothing about the provider.
            work.event("request.ended", {**data, "how": "cut", "upstream": "unconfirmed"})
        elif (error := task.exception()) is not None:
            how = "cut" if isinstance(error, StopRequested) else "failed"
            said = f"{type(error).__name__}: {error}"
            work.event("request.ended", {**data, "how": how, "error": said})
        else:
            work.event("request.ended", {**data, "how": "completed", "late": cut})

    def _send_steers(self, ordinal: int) -> list[str]:
        work = self._work
        sent: list[str] = []
        for name in self._handed:
            steer = work.steers[name]
            if steer.status == "queued":
                self._move_steer(steer.move("sent", f"request {ordinal} carries it"))
                sent.append(name)
        self._handed.clear()
        return sent

    def _steers_applied(self, names: Sequence[str], ordinal: int) -> None:
        for name in names:
            steer = self._work.steers[name]
            if steer.status == "sent":
                self._move_steer(steer.move("applied", f"request {ordinal} carried it"))

    def _move_steer(self, steer: Steer) -> None:
        work = self._work
        work.steers[steer.id] = steer
        work.write(
            partial(ledger.move_steer, steer=steer, at=work.clock.wall()), f"steer {steer.id}"
        )


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _children(states: Sequence[CallState]) -> tuple[ChildReceipt, ...]:
    return tuple(
        ChildReceipt(
            state.call.id,
            state.call.name,
            state.outcome is not None or (state.signal is not None and state.signal.seen),
        )
        for state in states
    )


def _receipt(record: RunRecord, *, first: bool) -> StopReceipt:
    return StopReceipt(
        run=record.id,
        status=record.status,
        cause=record.cause,
        recorded=True,
        first=first,
        presses=record.presses,
        observed=record.status not in ("queued", "running", "cancel_requested"),
        version=record.version,
    )
