"""Brings single calls to their outcomes: key, approval, row, function, result."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from stopkit.call import (
    Approval,
    BodyEnd,
    CallState,
    Cancelled,
    Raised,
    Returned,
    StillAtWork,
    never_started,
    text_of,
    unjudged,
    words_of,
)
from stopkit.errors import NotRecorded, StopRequested, StoreClosed
from stopkit.files import snapshot
from stopkit.history import ToolCall
from stopkit.operation import Operation, Refuse, Replay, allocate_key, fingerprint
from stopkit.signal import StopSignal
from stopkit.store import ledger
from stopkit.store.ledger import Closed
from stopkit.tool import FilesOf, ThreadContext, Tool, ToolContext
from stopkit.work import Work

_log = logging.getLogger("stopkit")


class CallRunner:
    """`register` takes a call in, `perform` brings it to its outcome, `cut` ends it early.

    `ordinal` is the model request that the calls come from.  `take_notice` is told, in any thread,
    when the record says that the run was stopped elsewhere.
    """

    def __init__(
        self,
        work: Work,
        inherited: Sequence[Operation],
        take_notice: Callable[[Closed], None],
    ) -> None:
        self._work = work
        self._take_notice = take_notice
        self._keys = _InheritedKeys(inherited)
        self._seen: set[tuple[int, str, int]] = set()
        self.ordinal = work.record.requests

    def register(self, call: ToolCall, tool: Tool | None, cleanup: bool) -> CallState:
        occurrence = call.occurrence
        while (self.ordinal, call.id, occurrence) in self._seen:
            occurrence += 1
        self._seen.add((self.ordinal, call.id, occurrence))
        if occurrence != call.occurrence:
            call = replace(call, occurrence=occurrence)
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        effect = tool.effect if tool else "read"
        operation = Operation(
            key=allocate_key(self._work.record.lineage, self.ordinal, call.id, occurrence),
            run=self._work.run,
            request=self.ordinal,
            call_id=call.id,
            occurrence=occurrence,
            name=call.name,
            arguments=arguments,
            fingerprint=fingerprint(call.name, arguments),
            effect=effect,
            stage="intended",
        )
        state = CallState(call, tool, operation, self._work.loop, cleanup=cleanup)
        self._work.calls.append(state)
        return state

    async def perform(self, state: CallState, slots: asyncio.Semaphore | None) -> None:
        """Bring one call to its outcome.

        This task may be cancelled, so it waits on the call's futures without owning them.
        """
        work = self._work
        try:
            if slots is None:
                await self._start(state)
            else:
                async with slots:
                    await self._start(state)
                    await asyncio.wait({state.ended})
        except StopRequested:
            self._settle_unstarted(state, "the run was stopped before it started")
        except (NotRecorded, StoreClosed) as error:
            work.settle(
                state,
                never_started(
                    state, f"its record could not be written: {error}", cause="not_recorded"
                ),
            )
        except Exception as error:
            if state.stage not in ("queued", "intended"):
                raise
            _log.exception("%s could not be started", state.label)
            work.settle(state, never_started(state, f"it could not be started: {words_of(error)}"))
        await asyncio.wait({state.ended})
        if not state.done.done():
            # Once a stop is on, the report says what was not recorded; nobody waits for it here.
            await asyncio.wait({state.done, work.closed}, return_when=asyncio.FIRST_COMPLETED)
        await work.pause("after_record")

    def _settle_unstarted(self, state: CallState, reason: str) -> None:
        cause = self._work.signal.cause
        self._work.settle(state, never_started(state, reason, cause=cause.kind if cause else None))

    def _may_start(self, state: CallState) -> bool:
        """Whether a call may go on towards its start."""
        if state.outcome is not None:
            return False
        if state.cleanup:
            return not self._work.accounted
        return not (self._work.signal.requested or self._work.closed.done())

    async def _start(self, state: CallState) -> None:
        work = self._work
        tool = state.tool
        await work.pause("before_enqueue")
        if not self._may_start(state):
            self._settle_unstarted(state, "the run was stopped before it was queued")
            return
        if tool is None:
            work.settle(state, never_started(state, f"there is no tool {state.call.name!r}"))
            return
        if not isinstance(state.call.arguments, Mapping):
            work.settle(state, never_started(state, "its arguments never became whole JSON"))
            return
        try:
            arguments = tool.bind(state.call.arguments)
            self._give_key(state, tool)
            asks = tool.asks_first(state.call.arguments)
        except ValueError as error:
            work.settle(state, never_started(state, f"its arguments do not fit: {error}"))
            return
        except Exception as error:
            said = f"its arguments do not fit: {words_of(error)}"
            work.settle(state, never_started(state, said))
            return
        if asks and not await self._approved(state):
            return
        await work.pause("before_start")
        if tool.files is not None and not await self._look_at_files(state, tool.files):
            return
        if not self._may_start(state):
            self._settle_unstarted(state, "the run was stopped before it started")
            return
        if not await self._intend(state, tool):
            return
        await work.pause("after_intend")
        if not self._may_start(state):
            self._settle_unstarted(state, "the run was stopped before it started")
            return
        self._launch(state, tool, arguments)

    async def _look_at_files(self, state: CallState, files: FilesOf) -> bool:
        """Take the snapshot, before anything counts as done; True if that came about."""
        try:
            paths = list(files(state.operation.arguments))
            looking = self._work.loop.create_task(asyncio.to_thread(snapshot, paths))
            # Large files take their time; a stop does not wait for it.
            waiting: list[asyncio.Future[Any]] = [looking, state.ended]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                looking.cancel()
                return False
            state.snapshot = looking.result()
        except Exception as error:
            said = f"its files could not be looked at: {words_of(error)}"
            self._work.settle(state, never_started(state, said))
            return False
        return True

    async def _approved(self, state: CallState) -> bool:
        work = self._work
        approval = state.approval = Approval(work.loop)
        work.event(
            "approval.requested",
            {
                "call_id": state.call.id,
                "occurrence": state.call.occurrence,
                "name": state.call.name,
            },
        )
        await asyncio.wait({approval.woken})
        if (refusal := approval.refusal) is not None:
            work.settle(state, refusal.model_copy(update={"key": state.operation.key}))
            return False
        return True

    def _give_key(self, state: CallState, tool: Tool) -> None:
        arguments = state.operation.arguments
        key = tool.key(arguments) if tool.key else None
        if tool.key and not (isinstance(key, str) and key):
            raise TypeError(f"its key is a string with something in it, not {key!r}")
        if key is None and tool.effect in ("write", "detached"):
            key = self._keys.take(state.operation.fingerprint)
        if key is not None:
            state.operation = replace(state.operation, key=key)

    async def _intend(self, state: CallState, tool: Tool) -> bool:
        """Write the row; True if the call may start."""
        work = self._work
        at = work.clock.wall()
        allocated = state.operation
        operation = replace(allocated, intended_at=at)
        if tool.effect in ("write", "detached") and not tool.says_when:
            operation = replace(
                operation, stage="dispatched", dispatched_at=at, first_dispatched_at=at
            )
        admission = await self._work.unless_closed(
            work.store.submit(
                partial(
                    ledger.intend,
                    operation=operation,
                    at=at,
                    retention=tool.retention,
                    cleanup=state.cleanup,
                ),
                patience=work.patience(),
            ),
        )
        if isinstance(admission, Closed):
            self._take_notice(admission)
            self._settle_unstarted(state, "the run was stopped before it started")
            return False
        if isinstance(admission, (Replay, Refuse)):
            # The row of the key is the earlier operation's; this call gets one of its own.
            own = allocate_key(
                work.record.lineage, operation.request, state.call.id, state.call.occurrence
            )
            outcome = admission.outcome.model_copy(update={"key": operation.key})
            state.operation = replace(allocated, key=own)
            work.settle(state, outcome)
            return False
        state.operation = operation
        state.dispatched = operation.dispatched_at is not None
        state.stage = "intended"
        return True

    def _launch(self, state: CallState, tool: Tool, arguments: dict[str, object]) -> None:
        work = self._work
        # Clean-up runs while the run's own signal is set: it has one of its own.
        if state.cleanup:
            signal = StopSignal(clock=work.clock, deadline=tool.timeout, run=self._work.run)
        else:
            signal = self._work.signal.child(deadline=tool.timeout)
        state.signal = signal
        state.stage = "running"
        state.started_at = work.clock.monotonic()
        state.task = work.loop.create_task(self._body(state, tool, arguments, signal))
        state.task.add_done_callback(partial(self._body_ended, state))
        if tool.timeout is not None:
            timer = work.loop.call_later(tool.timeout, self._time_out, state)
            state.task.add_done_callback(lambda _task: timer.cancel())

    def _time_out(self, state: CallState) -> None:
        if state.outcome is None and state.task is not None and state.cut_at is None:
            state.timed_out = True
            state.task.cancel()

    async def _body(
        self, state: CallState, tool: Tool, arguments: dict[str, object], signal: StopSignal
    ) -> object:
        work = self._work
        ports = _CallPorts(work, state, self._take_notice)
        if tool.in_thread:
            result = await self._in_thread(state, tool, arguments, signal, ports)
        else:
            if tool.takes_context:
                context = ToolContext(
                    signal=signal,
                    key=state.operation.key,
                    run=self._work.run,
                    attempt=self._work.record.attempt,
                    ports=ports,
                )
                result = tool.function(context, **arguments)
            else:
                result = tool.function(**arguments)
        if inspect.isawaitable(result):
            # Also of a plain function: its work is done once that is.
            result = await result
        if isinstance(result, (AsyncGenerator, Generator)):
            raise TypeError("it returned a generator, whose work had not begun")
        state.returned = text_of(result)
        state.returned_at = work.clock.monotonic()
        await work.pause("before_record")
        return None

    async def _in_thread(
        self,
        state: CallState,
        tool: Tool,
        arguments: dict[str, object],
        signal: StopSignal,
        ports: _CallPorts,
    ) -> object:
        """Run a plain function in a thread of its own, which an exit of the process ends.

        A pool would not do: asyncio waits at its end for threads of a pool.
        """
        future: Future[object] = Future()
        # Marked as running, it cannot be cancelled: its result is kept even if nobody waits.
        future.set_running_or_notify_cancel()
        state.thread = future
        given: tuple[object, ...] = ()
        if tool.takes_context:
            given = (
                ThreadContext(
                    signal=signal,
                    key=state.operation.key,
                    run=self._work.run,
                    attempt=self._work.record.attempt,
                    ports=ports,
                ),
            )

        def work() -> None:
            try:
                future.set_result(tool.function(*given, **arguments))
            except StopIteration as error:
                # No future takes that one, and whoever waited for it would wait for ever.
                future.set_exception(RuntimeError(f"the tool raised {words_of(error)}"))
            except BaseException as error:
                future.set_exception(error)

        future.add_done_callback(partial(self._thread_ended, state))
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(work,), name=f"stopkit-tool-{tool.name}", daemon=True
        ).start()
        return await asyncio.wrap_future(future)

    def _thread_ended(self, state: CallState, future: Future[object]) -> None:
        def late() -> None:
            if state.abandoned:
                self._tell_end(state, _end_of_thread(future) or StillAtWork())

        with contextlib.suppress(RuntimeError):
            self._work.loop.call_soon_threadsafe(late)

    def _body_ended(self, state: CallState, task: asyncio.Task[object]) -> None:
        end: BodyEnd
        if task.cancelled():
            end = Cancelled()
        elif (error := task.exception()) is not None:
            end = Raised(error)
        else:
            end = Returned("")
        if state.returned is not None:
            end = Returned(state.returned)
            if state.cut_at is not None and state.returned_at > state.cut_at:
                self._work.breach(f"{state.label} swallowed its cancellation and went on")
        elif isinstance(end, Cancelled) and state.thread is not None:
            if not state.thread.done():
                state.abandoned = True
                end = StillAtWork()
                self._work.unconfirmed.append(f"{state.label}: its thread is still at work")
            else:
                # It ended while its cut was on the way: what it brought is real.
                end = _end_of_thread(state.thread) or end
        if state.snapshot is not None and state.diff is None:
            state.diff = state.snapshot.compare()
            self._work.event(
                "files.changed",
                {
                    "key": state.operation.key,
                    "changed": [list(entry) for entry in state.diff.changed],
                    "unchanged": [list(entry) for entry in state.diff.unchanged],
                    "unknown": [list(entry) for entry in state.diff.unknown],
                },
            )
        self._tell_end(state, end)

    def _tell_end(self, state: CallState, end: BodyEnd) -> None:
        try:
            self._work.body_ended(state, end)
        except Exception as error:
            # Without an outcome, everybody who waits for the call would wait for ever.
            _log.exception("the end of %s could not be judged", state.label)
            self._work.settle(state, unjudged(state, words_of(error)))

    def cut(self, state: CallState, performer: asyncio.Task[None]) -> None:
        """End a call that its caller does not wait for any more."""
        performer.cancel()
        if state.outcome is not None:
            return
        if state.stage in ("queued", "intended"):
            outcome = never_started(state, "its caller was cancelled")
            if state.approval is not None:
                state.approval.answer(outcome, partial(self._work.approval_withdrawn, state))
            self._work.settle(state, outcome)
        elif state.task is not None and not (
            state.dispatched and state.effect in ("write", "detached")
        ):
            state.cut_at = self._work.clock.monotonic()
            state.task.cancel()


def _end_of_thread(thread: Future[object]) -> BodyEnd | None:
    """What a thread that has ended brought; None where that was not its work's end."""
    if (error := thread.exception()) is not None:
        return Raised(error)
    result = thread.result()
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or isinstance(result, (AsyncGenerator, Generator)):
        return None
    return Returned(text_of(result))


class _InheritedKeys:
    """The keys that a resumed run takes over: one tool, one set of arguments, one candidate."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        latest = {operation.key: operation for operation in operations}
        self._keys: dict[str, list[str]] = {}
        for operation in latest.values():
            ran = operation.outcome is not None and operation.outcome.status == "succeeded"
            if operation.effect in ("write", "detached") and not ran:
                self._keys.setdefault(operation.fingerprint, []).append(operation.key)

    def take(self, mark: str) -> str | None:
        keys = self._keys.get(mark, [])
        return keys.pop() if len(keys) == 1 else None


class _CallPorts:
    """What a tool's context reaches of its run."""

    def __init__(self, work: Work, state: CallState, take_notice: Callable[[Closed], None]) -> None:
        self._work = work
        self._state = state
        self._take_notice = take_notice

    def dispatch(self) -> Future[None]:
        work = self._work
        outer: Future[None] = Future()
        inner = work.store.submit(
            partial(
                ledger.dispatch,
                run=work.run,
                key=self._state.operation.key,
                at=work.clock.wall(),
                cleanup=self._state.cleanup,
            ),
            patience=work.patience(),
        )

        def written(done: Future[Closed | None]) -> None:
            if (error := done.exception()) is not None:
                _fail(outer, error)
            elif (closed := done.result()) is not None:
                self._take_notice(closed)
                _fail(outer, StopRequested(cause=closed.cause, where="dispatch"))
            elif outer.set_running_or_notify_cancel():
                outer.set_result(None)

        inner.add_done_callback(written)
        return outer

    def committed(self) -> None:
        self._state.dispatched = True

    async def paused(self, point: Literal["before_dispatch", "after_dispatch"]) -> None:
        await self._work.pause(point)

    def output(self, text: str) -> None:
        self._state.output.append(text)

    def receipt(self, text: str | None, provider_request_id: str | None) -> None:
        state, work = self._state, self._work
        if text is not None:
            state.receipts.append(text)
        state.provider_request_id = provider_request_id or state.provider_request_id
        work.write(
            partial(
                ledger.add_receipt,
                run=work.run,
                key=state.operation.key,
                receipts=tuple(state.receipts),
                provider_request_id=state.provider_request_id,
            ),
            f"a receipt of {state.label}",
        )


def _fail(future: Future[None], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
