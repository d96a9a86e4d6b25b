"""One call at work: what is known of it, and what its end proves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic_core import to_json

from stopkit.errors import StopRequested, ToolFailed
from stopkit.files import FileDiff, Snapshot
from stopkit.history import ToolCall
from stopkit.operation import EffectClass, Operation
from stopkit.outcome import Failed, NotStarted, Outcome, Stopped, Succeeded, Unknown
from stopkit.signal import StopSignal
from stopkit.stop import Cause
from stopkit.tool import Tool

CallStage: TypeAlias = Literal["queued", "intended", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Returned:
    output: str


@dataclass(frozen=True, slots=True)
class Raised:
    error: BaseException


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Its task ended by the cancellation it was given."""


@dataclass(frozen=True, slots=True)
class StillAtWork:
    """Nothing was heard of it by the time somebody had to say what became of it."""


BodyEnd: TypeAlias = Returned | Raised | Cancelled | StillAtWork


class Approval:
    """A call's wait for somebody's word.  The first answer stays; it may come from any thread.

    `woken` is done once the answer is there; `refusal` is None where it was yes.
    """

    __slots__ = ("_lock", "_loop", "answered", "refusal", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self.answered = False
        self.refusal: Outcome | None = None
        self.woken: asyncio.Future[None] = loop.create_future()

    def answer(self, refusal: Outcome | None, tell: Callable[[], object]) -> bool:
        """Give the answer and `tell` of it before the call goes on; False if there was one."""
        with self._lock:
            if self.answered:
                return False
            self.answered = True
            self.refusal = refusal
            tell()
        # A loop that is closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)
        return True

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class CallState:
    """A live handle; its facts go into the ledger and the report.

    `ended` is set with the outcome, `done` once that is recorded or could not be.  `returned` is
    the function's result from the moment it has one.  `abandoned`: its thread goes on alone.
    """

    __slots__ = (
        "abandoned",
        "approval",
        "breached",
        "call",
        "cause",
        "cleanup",
        "cut_at",
        "diff",
        "dispatched",
        "done",
        "ended",
        "operation",
        "outcome",
        "output",
        "provider_request_id",
        "receipts",
        "recorded",
        "returned",
        "returned_at",
        "signal",
        "snapshot",
        "stage",
        "started_at",
        "task",
        "thread",
        "timed_out",
        "tool",
    )

    def __init__(
        self,
        call: ToolCall,
        tool: Tool | None,
        operation: Operation,
        loop: asyncio.AbstractEventLoop,
        *,
        cleanup: bool,
    ) -> None:
        self.call = call
        self.tool = tool
        self.operation = operation
        self.ended: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.cleanup = cleanup
        self.stage: CallStage = "queued"
        self.signal: StopSignal | None = None
        self.task: asyncio.Task[object] | None = None
        self.thread: Future[object] | None = None
        self.started_at: float | None = None
        self.dispatched = False
        self.cut_at: float | None = None
        self.cause: Cause | None = None
        self.timed_out = False
        self.breached = False
        self.output: list[str] = []
        self.receipts: list[str] = []
        self.provider_request_id: str | None = None
        self.approval: Approval | None = None
        self.snapshot: Snapshot | None = None
        self.diff: FileDiff | None = None
        self.returned: str | None = None
        self.returned_at = 0.0
        self.abandoned = False
        self.outcome: Outcome | None = None
        self.recorded = False

    @property
    def effect(self) -> EffectClass:
        return self.operation.effect

    @property
    def label(self) -> str:
        return f"call {self.call.id} ({self.call.name})"

    @property
    def at_work(self) -> bool:
        """True while its function may be running, whatever its outcome is by now."""
        if self.thread is not None and not self.thread.done():
            return True
        return self.task is not None and not self.task.done()


def text_of(result: object) -> str:
    """A tool's result as text: a string as it is, anything else as JSON, or else its repr.

    It never raises: what a tool returned is a fact, whether or not it can be written as JSON.
    """
    if result is None:
        return ""
    if isinstance(result, str):
        return result
    try:
        return to_json(result, fallback=repr).decode()
    except Exception:
        pass
    try:
        return repr(result)
    except Exception:
        return f"<{type(result).__name__}>"


def words_of(error: BaseException) -> str:
    """What an exception says, even where its own words cannot be had."""
    try:
        said = str(error)
    except Exception:
        said = "(its words raised)"
    return f"{type(error).__name__}: {said}"


def judge(state: CallState, end: BodyEnd, now: float) -> Outcome:
    """What the end of a call's function proves about the call.

    A real result is kept whatever came at the same time.  Past the commit point of a write, only
    what the tool vouches for is known.
    """
    key = state.operation.key
    cause = state.cause.kind if state.cause else None
    output = "".join(state.output) or None
    receipts = tuple(state.receipts)
    committed = state.effect in ("write", "detached") and state.dispatched
    after = None if state.started_at is None else max(0.0, now - state.started_at)
    match end:
        case Returned(text):
            return Succeeded(
                output=text, key=key, cause=cause, evidence=(*receipts, "the tool returned")
            )
        case Raised(ToolFailed() as error):
            return Failed(
                reason=str(error),
                output=output,
                key=key,
                cause=cause,
                effects=_effects_of_failure(committed, vouched=error.no_effects),
                evidence=(*receipts, "the tool reported its failure"),
            )
        case Raised(StopRequested() as error):
            return Stopped(
                reason="the tool ended itself at a checkpoint",
                cause=cause,
                output=output,
                key=key,
                after=after,
                effects="unverified" if committed else "none",
                evidence=(*receipts, f"it left at the checkpoint {error.where!r}"),
            )
        case Raised(error):
            said = words_of(error)
            if committed:
                return _unknown(state, f"it raised after its commit point: {said}", output, cause)
            return Failed(
                reason=said,
                output=output,
                key=key,
                cause=cause,
                effects="none",
                evidence=_before_commit(state),
            )
        case Cancelled() if state.timed_out:
            said = f"its timeout of {state.tool.timeout if state.tool else '?'} s ran out"
            if committed:
                return _unknown(state, f"{said} after its commit point", output, cause)
            return Failed(
                reason=said,
                output=output,
                key=key,
                cause=cause,
                effects="none",
                evidence=_before_commit(state),
            )
        case Cancelled():
            if committed:
                return _unknown(state, "it was cut after its commit point", output, cause)
            return Stopped(
                reason="it was cut",
                cause=cause,
                output=output,
                key=key,
                after=after,
                effects="none",
                evidence=_before_commit(state),
            )
        case StillAtWork():
            said = (
                "still at work in a thread, which nothing can end"
                if state.thread is not None
                else "still at work: it did not end when it was told to"
            )
            if state.signal is not None and not state.signal.seen:
                said += "; it never looked at its signal"
            return _unknown(state, said, output, cause)


def unjudged(state: CallState, said: str) -> Unknown:
    """The outcome of a call whose end itself could not be judged."""
    return _unknown(state, f"its end could not be judged: {said}", None, None)


def never_started(state: CallState, reason: str, *, cause: str | None = None) -> NotStarted:
    return NotStarted(
        reason=reason,
        cause=cause,
        key=state.operation.key,
        evidence=("its function was never entered",),
    )


def _effects_of_failure(
    committed: bool, *, vouched: bool
) -> Literal["none", "unverified", "confirmed_absent"]:
    if not committed:
        return "none"
    return "confirmed_absent" if vouched else "unverified"


def _before_commit(state: CallState) -> tuple[str, ...]:
    if state.effect == "read":
        return ("declared read-only",)
    return ("it had not reached its commit point",)


def _unknown(state: CallState, reason: str, output: str | None, cause: str | None) -> Unknown:
    key = state.operation.key
    has_status = state.tool is not None and state.tool.status is not None
    return Unknown(
        reason=reason,
        cause=cause,
        output=output,
        key=key,
        evidence=tuple(state.receipts),
        check=f"reconcile asks the service for {key}" if has_status else None,
    )
