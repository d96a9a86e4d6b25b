"""`HttpUnit`: one operation of a service, sent once, with its key, its status and its cancel.

Ceasing to wait ends nothing at the other side.  What failed before a byte was sent did not start;
from the first byte on, only the service knows, and is asked.
"""

from __future__ import annotations

import asyncio
import json as json_
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol, TypeAlias

from pydantic import JsonValue

from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.operation import Absent, Done, NoAnswer
from stopkit.outcome import NotStarted, Outcome, Stopped, Succeeded, Unknown
from stopkit.stop import Cause, StopPolicy
from stopkit.units.answers import (
    GoingOn,
    OperationStatus,
    Reply,
    Undecided,
    before_any_byte,
    read_reply,
    read_status,
)
from stopkit.units.facts import Exchange, HttpFacts, UnitKind, UnitReport
from stopkit.units.unit import AnyFuture, OnLate, Unit

STATUS_POLL: Final = 0.25
"""Seconds between two looks at an operation's status."""

ABSENT_AFTER: Final = 1.0
"""Seconds after the last byte from which on "no such operation" is believed: until then the
request may still be on its way to the service."""

TraceCallback: TypeAlias = Callable[[str, Mapping[str, object]], Awaitable[None]]


class HttpResponse(Protocol):
    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...


class HttpClient(Protocol):
    """What is used of an `httpx.AsyncClient`; one of httpx2 fits as well."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the client's own parameter
        follow_redirects: bool = False,
        extensions: dict[str, TraceCallback] | None = None,
    ) -> HttpResponse: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask about an operation; `{key}` and `{operation}` in the URL are filled in."""

    method: Literal["GET", "HEAD", "POST", "PUT", "DELETE"]
    url: str


class HttpUnit(Unit):
    """Sends `method url` with `client`, which stays the caller's.

    `json` or `content` is the body.  `key` goes into `key_header`.  `deadline` is in seconds from
    the start; what remains of it bounds each request, and goes to the service in
    `remaining_header`, in milliseconds, where that is named.  `status` and `cancel` ask the service
    about the operation; `read` reads the reply of `status`.  `writes=False` for an operation
    without effects.

    `retention`: seconds for which the service remembers a key, and `first_sent_at` when it was
    first sent (seconds since the epoch): past that nothing is sent, and "absent" is not believed.
    """

    kind: ClassVar[UnitKind] = "http"

    def __init__(
        self,
        client: HttpClient,
        method: str,
        url: str,
        *,
        json: JsonValue = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        writes: bool = True,
        key: str | None = None,
        key_header: str = "Idempotency-Key",
        deadline: float | None = None,
        remaining_header: str | None = None,
        status: Endpoint | None = None,
        read: Callable[[Reply], OperationStatus] = read_status,
        cancel: Endpoint | None = None,
        absent_after: float = ABSENT_AFTER,
        retention: float | None = None,
        first_sent_at: float | None = None,
        stop: StopPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_late: OnLate | None = None,
    ) -> None:
        super().__init__(key=key, stop=stop, clock=clock, on_late=on_late)
        if json is not None and content is not None:
            raise ValueError("a request has one body: json or content")
        self._client = client
        self._method = method
        self._url = url
        self._content = content if json is None else json_.dumps(json).encode("utf-8")
        self._headers = dict(headers or {})
        if json is not None:
            self._headers.setdefault("Content-Type", "application/json")
        if key is not None:
            self._headers[key_header] = key
        self._writes = writes
        self._deadline = deadline
        self._remaining_header = remaining_header
        self._status = status
        self._read = read
        self._cancel = cancel
        self._absent_after = absent_after
        self._retention = retention
        self._first_sent_at = first_sent_at
        self._deadline_at: float | None = None
        self._exchanges: list[Exchange] = []
        self._sending: asyncio.Task[Reply] | None = None
        self._bytes_sent = False
        self._traced = False
        self._last_byte = 0.0
        self._check_from = 0.0
        self._replayed = False
        self._retry_after: float | None = None
        self._cancel_sent = False
        self._cancel_observed = False

    async def start(self) -> None:
        self._open()
        self._last_byte = self._began
        if self._deadline is not None:
            self._deadline_at = self._began + self._deadline
        if not self._past_retention():
            self._sending = asyncio.ensure_future(self._send())
        self._live()

    # -- its life -------------------------------------------------------------------------------

    async def _life(self) -> UnitReport:
        sending = self._sending
        if sending is None:
            return self._made_report(
                NotStarted(
                    reason="the service may have forgotten its key",
                    cause="key_past_retention",
                    key=self.key,
                    evidence=("nothing was sent",),
                )
            )
        await self._until_any(sending, self._asking, until=self._operation_until)
        cancelling: asyncio.Task[None] | None = None
        waits = self._asking.done()
        if not sending.done() and not waits:
            self._ask(Cause("deadline", self._clock.wall(), words="its deadline came"))
        if not sending.done() and self._bytes_sent:
            if self._cancel is not None:
                cancelling = asyncio.ensure_future(self._send_cancel(self._cancel))
            if waits:
                # The reply is the best evidence there is: it has the grace to come.
                await self._until_all([sending], self._grace_until)
        await self._hang_up(sending)
        outcome = self._outcome_of_sending(sending)
        if isinstance(outcome, Undecided):
            outcome = await self._ask_status(outcome.reason)
        if cancelling is not None:
            await self._until_all([cancelling], self._check_until)
            cancelling.cancel()
        return self._made_report(outcome)

    async def _hang_up(self, sending: asyncio.Task[Reply]) -> None:
        if not sending.done():
            sending.cancel()
            limit = self._clock.monotonic() + self._policy.ack_wait
            await self._until_all([sending], lambda: limit)

    def _outcome_of_sending(self, sending: asyncio.Task[Reply]) -> Outcome | Undecided:
        if not sending.done() or sending.cancelled():
            cause = self._cause
            late = cause is not None and cause.kind == "deadline"
            why = "its deadline came" if late else "it was cut by the stop"
            # A transport that does not trace says nothing of its bytes.
            if self._traced and not self._bytes_sent:
                return self._unsent(f"{why} before a byte was sent")
            return Undecided(f"{why}; a byte of it may have been sent")
        error = sending.exception()
        if error is None:
            reply = sending.result()
            self._replayed = reply.replayed
            self._retry_after = reply.retry_after
            return read_reply(reply, writes=self._writes)
        said = f"{type(error).__name__}: {error}"
        if not self._bytes_sent and (self._traced or before_any_byte(error)):
            return self._unsent(f"no byte was sent: {said}")
        return Undecided(f"the connection was lost after its first byte: {said}")

    def _unsent(self, reason: str) -> NotStarted:
        cause = self._cause
        return NotStarted(
            reason=reason,
            cause=cause.kind if cause else None,
            evidence=("no byte was sent",),
        )

    def _operation_until(self) -> float:
        return float("inf") if self._deadline_at is None else self._deadline_at

    def _check_until(self) -> float:
        if self._plan is not None and self._plan.cause is not None:
            return self._plan.verify_until
        return self._check_from + self._policy.verify_wait

    # -- what is sent ---------------------------------------------------------------------------

    async def _send(self) -> Reply:
        headers = dict(self._headers)
        remaining = self._remaining()
        if self._remaining_header is not None and remaining is not None:
            headers[self._remaining_header] = str(int(remaining * 1000))
        return await self._exchange(
            "operation", self._method, self._url, headers, self._content, remaining
        )

    async def _send_cancel(self, endpoint: Endpoint) -> None:
        self._cancel_sent = True
        reply = await self._at(endpoint, "cancel")
        # A 2xx says that the cancel arrived; what came of it the status says.
        self._cancel_observed = reply is not None and 200 <= reply.status < 300

    async def _ask_status(self, reason: str) -> Outcome:
        """Ask until it is known, or the time is up."""
        self._check_from = self._clock.monotonic()
        if self._status is None:
            return self._unknown(reason, "nobody can be asked: it has no status endpoint")
        heard = "it was not asked: no time was left"
        while self._check_until() > self._clock.monotonic():
            asking = asyncio.ensure_future(self._at(self._status, "status"))
            await self._until_all([asking], self._check_until)
            if not asking.done():
                asking.cancel()
                heard = "its status endpoint did not answer in time"
                break
            reply = asking.result()
            answer = NoAnswer("no answer") if reply is None else self._read(reply)
            outcome, heard = self._read_answer(answer, reason)
            if outcome is not None:
                return outcome
            await self._pause()
        return self._unknown(reason, heard)

    def _read_answer(self, answer: OperationStatus, reason: str) -> tuple[Outcome | None, str]:
        cause = self._cause.kind if self._cause else None
        match answer:
            case Done(output, receipt):
                evidence = (reason, "its status check says done")
                return (
                    Succeeded(
                        output=output,
                        cause=cause,
                        evidence=(*evidence, receipt) if receipt else evidence,
                    ),
                    "",
                )
            case Absent(note):
                if self._past_retention():
                    return None, "the service may have forgotten its key"
                if self._clock.monotonic() < self._last_byte + self._absent_after:
                    return None, "it was not there yet, and may have been on its way"
                said = f"its status check says absent: {note}"
                if cause is not None:
                    return (
                        Stopped(
                            reason="it was stopped before it took effect",
                            cause=cause,
                            after=self._after(),
                            effects="confirmed_absent",
                            evidence=(reason, said),
                        ),
                        "",
                    )
                return (
                    Unknown(
                        reason="it did not take effect",
                        effects="confirmed_absent",
                        evidence=(reason, said),
                    ),
                    "",
                )
            case GoingOn(note):
                return None, f"the service is still at it: {note}"
            case NoAnswer(note):
                return None, f"its status is not known: {note}"

    def _unknown(self, reason: str, heard: str) -> Unknown:
        where = self._filled(self._status.url) if self._status else None
        return Unknown(
            reason=reason,
            cause=self._cause.kind if self._cause else None,
            effects="unverified",
            evidence=(heard,),
            check=f"ask {where}" if where else None,
        )

    async def _pause(self) -> None:
        limit = self._clock.monotonic() + STATUS_POLL
        never: AnyFuture = asyncio.get_running_loop().create_future()
        await self._until_all([never], lambda: min(limit, self._check_until()))

    async def _at(self, endpoint: Endpoint, purpose: Literal["status", "cancel"]) -> Reply | None:
        left = max(0.001, self._check_until() - self._clock.monotonic())
        try:
            return await self._exchange(
                purpose, endpoint.method, self._filled(endpoint.url), {}, None, left
            )
        except Exception:
            # The exchange has it; an unanswered question is no answer.
            return None

    async def _exchange(
        self,
        purpose: Literal["operation", "status", "cancel"],
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        within: float | None,
    ) -> Reply:
        sent = False

        async def trace(event: str, _info: Mapping[str, object]) -> None:
            nonlocal sent
            if purpose == "operation":
                self._traced = True
            if event.endswith(".send_request_headers.started"):
                sent = True
                if purpose == "operation":
                    self._bytes_sent = True

        # None would take away the client's own time limits.
        bounds = {} if within is None else {"timeout": within}
        after = self._after()
        status: int | None = None
        error: str | None = None
        request_id: str | None = None
        try:
            response = await self._client.request(
                method,
                url,
                content=content,
                headers=headers,
                **bounds,
                follow_redirects=False,
                extensions={"trace": trace},
            )
            lower = {name.lower(): value for name, value in response.headers.items()}
            reply = Reply(response.status_code, lower, response.content)
            status, request_id, sent = reply.status, reply.request_id, True
            return reply
        except BaseException as caught:
            error = f"{type(caught).__name__}: {caught}".rstrip(": ")
            sent = sent or not (self._traced or before_any_byte(caught))
            raise
        finally:
            if purpose == "operation":
                self._last_byte = self._clock.monotonic()
            self._exchanges.append(
                Exchange(purpose, method, url, after, sent, status, error, request_id)
            )

    # -- small parts ----------------------------------------------------------------------------

    def _remaining(self) -> float | None:
        if self._deadline_at is None:
            return None
        return max(0.0, self._deadline_at - self._clock.monotonic())

    def _past_retention(self) -> bool:
        if self._retention is None or self._first_sent_at is None:
            return False
        return self._clock.wall() - self._first_sent_at > self._retention

    def _filled(self, url: str) -> str:
        return url.replace("{key}", self.key or "").replace("{operation}", self.id)

    def _made_report(self, outcome: Outcome) -> UnitReport:
        facts = HttpFacts(
            self.id,
            self.key,
            tuple(self._exchanges),
            self._replayed,
            self._cancel_sent,
            self._cancel_observed,
            self._retry_after,
        )
        unconfirmed = (f"{self._method} {self._url}: {outcome.reason}",)
        return UnitReport(
            id=self.id,
            kind="http",
            key=self.key,
            outcome=outcome.model_copy(update={"key": self.key}),
            cause=self._cause,
            duration=self._after(),
            http=facts,
            unconfirmed=unconfirmed
            if outcome.status == "unknown" and outcome.effects == "unverified"
            else (),
        )
