"""`McpUnit`: one tool call of an MCP server, over the `mcp` SDK; `McpPeer` is the connection.

A cancel that was sent is one fact, a cancel that the server saw another: the protocol has no
acknowledgement, so only an answer can show it.  The SDK drops an answer that comes after its
cancel; here it is read where it leaves the transport, and kept.

How a call is cancelled goes by the negotiated version: `notifications/cancelled`, or, for
streamable HTTP from 2026-07-28 on, closing the stream of the call's response.
https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import anyio
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CallToolResult,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue

from stopkit.clock import SYSTEM_CLOCK, Clock
from stopkit.outcome import Failed, NotStarted, Outcome, Stopped, Succeeded, Unknown
from stopkit.stop import Cause, StopPolicy
from stopkit.units.errors import UnitError, UnitInputClosed, UnitState
from stopkit.units.facts import Late, McpFacts, UnitKind, UnitReport
from stopkit.units.handle import UnitRecords
from stopkit.units.output import OutputLimits
from stopkit.units.process import ProcessUnit
from stopkit.units.unit import OnLate, Unit

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Transport
    from mcp.shared._stream_protocols import ReadStream, WriteStream

CANCELLED: Final = -32800
"""The error code by which a server answers a request that was cancelled."""

CLOSE_WAIT: Final = 2.0
"""Seconds that a stdio server has to leave once its input is closed, before it is stopped."""

_REFUSED: Final = frozenset({-32700, -32600, -32601, -32602})
"""JSON-RPC errors of a request that was never taken on."""

Dialect: TypeAlias = Literal["notification", "close_stream"]
Mode: TypeAlias = Literal["auto", "legacy"] | str
Incoming: TypeAlias = SessionMessage | Exception
Answer: TypeAlias = JSONRPCResponse | JSONRPCError


class _Call:
    """One `tools/call`, as the wire shows it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id: int | str | None = None
        self.write_began = False
        self.cancel_sent_at: float | None = None
        self.answer: asyncio.Future[Answer] = loop.create_future()


_CALL: Final[contextvars.ContextVar[_Call | None]] = contextvars.ContextVar(
    "stopkit_mcp_call", default=None
)


class McpPeer:
    """A connection to one server, with `async with`; several units may call through it.

    `mode` is the SDK's: `auto`, `legacy`, or a version.  `report` is that of the server's process,
    once the connection is closed; None without one.

    Raises, on entering:
        UnitNotStarted: the server's program did not start.
        UnitError: the connection did not come about.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        streamable_http: bool,
        mode: Mode = "auto",
        clock: Clock = SYSTEM_CLOCK,
        process: ProcessUnit | None = None,
    ) -> None:
        self._transport = transport
        self._http = streamable_http
        self._mode = mode
        self._clock = clock
        self._process = process
        self._client: Client | None = None
        self._calls: dict[int | str, _Call] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._version = ""

    @classmethod
    def stdio(
        cls,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stop: StopPolicy | None = None,
        records: UnitRecords | None = None,
        mode: Mode = "auto",
    ) -> McpPeer:
        """A server that this process runs, as a process unit, and speaks to over its pipes."""
        unit = ProcessUnit(
            argv,
            env=env,
            cwd=cwd,
            stdin="pipe",
            stderr="pipe",
            output=OutputLimits(hold=True),
            stop=stop,
            records=records,
        )
        return cls(_over_process(unit), streamable_http=False, mode=mode, process=unit)

    @classmethod
    def http(
        cls, url: str, *, client: httpx2.AsyncClient | None = None, mode: Mode = "auto"
    ) -> McpPeer:
        """A server elsewhere, over streamable HTTP."""
        return cls(streamable_http_client(url, http_client=client), streamable_http=True, mode=mode)

    @property
    def protocol_version(self) -> str:
        """The negotiated version; empty before that."""
        return self._version

    @property
    def dialect(self) -> Dialect:
        """How a call is cancelled on this connection."""
        if self._http and self._version in MODERN_PROTOCOL_VERSIONS:
            return "close_stream"
        return "notification"

    @property
    def process(self) -> ProcessUnit | None:
        return self._process

    @property
    def report(self) -> UnitReport | None:
        """The server process's end.

        Raises:
            UnitState: while it has none.
        """
        return None if self._process is None else self._process.report

    async def __aenter__(self) -> McpPeer:
        if self._task is not None:
            raise UnitState("a connection is made once")
        loop = asyncio.get_running_loop()
        self._closing = loop.create_future()
        ready: asyncio.Future[None] = loop.create_future()
        # The SDK's scopes are entered and left in a task of their own: no cancellation of whoever
        # uses the connection gets into the middle of its end.
        self._task = loop.create_task(self._run(ready), context=contextvars.Context())
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._close()
            raise
        if not ready.done():
            self._task.result()
            raise UnitError("the connection ended before it was made")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        task, closing = self._task, self._closing
        assert task is not None
        assert closing is not None
        if not closing.done():
            closing.set_result(None)
        cancelled = False
        # As for the end of a unit: a cancel scope outside would cancel at every turn of the loop.
        with anyio.CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:
                    cancelled = True
                    task.cancel()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        if cancelled:
            raise asyncio.CancelledError

    async def _run(self, ready: asyncio.Future[None]) -> None:
        closing = self._closing
        assert closing is not None
        client = Client(_Tapped(self._transport, self._outgoing, self._incoming), mode=self._mode)
        try:
            async with client:
                self._client = client
                self._version = client.protocol_version
                ready.set_result(None)
                await asyncio.wait({closing})
        except* MCPError as group:
            if not ready.done():
                raise UnitError(f"no MCP session: {group.exceptions[0]}") from group

    async def call(self, call: _Call, tool: str, arguments: dict[str, JsonValue]) -> CallToolResult:
        if self._client is None:
            raise UnitState("the connection was not made")
        _CALL.set(call)
        return await self._client.call_tool(tool, arguments)

    def new_call(self) -> _Call:
        return _Call(asyncio.get_running_loop())

    def forget(self, call: _Call) -> None:
        if call.request_id is not None:
            self._calls.pop(call.request_id, None)

    def _outgoing(self, message: SessionMessage) -> None:
        match message.message:
            case JSONRPCRequest(id=request_id, method="tools/call"):
                call = _CALL.get()
                if call is not None:
                    self.forget(call)
                    if call.answer.done():
                        # That one only asked for more: the SDK sends the call once more with it.
                        call.answer = asyncio.get_running_loop().create_future()
                    call.request_id = request_id
                    call.write_began = True
                    self._calls[request_id] = call
            case JSONRPCNotification(method="notifications/cancelled", params=params):
                call = self._calls.get((params or {}).get("requestId", ""))
                if call is not None and call.cancel_sent_at is None:
                    call.cancel_sent_at = self._clock.monotonic()
            case _:
                pass

    def _incoming(self, message: Incoming) -> None:
        if isinstance(message, Exception):
            return
        match message.message:
            case JSONRPCResponse() | JSONRPCError() as answer:
                call = None if answer.id is None else self._calls.get(answer.id)
                if call is not None and not call.answer.done():
                    call.answer.set_result(answer)
            case _:
                pass


class McpUnit(Unit):
    """Calls `tool` of a connected peer.

    A stop cancels the call as the connection's version has it, and waits for an answer while the
    grace lasts: an answer that comes anyway is the outcome; none leaves it unknown.  What comes
    after the report is kept in it as `late`.  `deadline` is in seconds from the start.
    """

    kind: ClassVar[UnitKind] = "mcp"

    def __init__(
        self,
        peer: McpPeer,
        tool: str,
        arguments: Mapping[str, JsonValue] | None = None,
        *,
        key: str | None = None,
        deadline: float | None = None,
        stop: StopPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_late: OnLate | None = None,
    ) -> None:
        super().__init__(key=key, stop=stop, clock=clock, on_late=on_late)
        self._peer = peer
        self._tool = tool
        self._arguments = dict(arguments or {})
        self._deadline = deadline
        self._call: _Call | None = None

    async def start(self) -> None:
        self._open()
        self._live()

    async def _life(self) -> UnitReport:
        call = self._call = self._peer.new_call()
        if self._asking.done():
            kind = self._cause.kind if self._cause else None
            reason = "it was not sent: the stop came first"
            return self._made_report(call, NotStarted(reason=reason, cause=kind, key=self.key))
        calling = asyncio.ensure_future(self._peer.call(call, self._tool, self._arguments))
        calling.add_done_callback(_retrieved)
        await self._until_any(calling, self._asking, until=self._due)
        if not calling.done():
            if not self._asking.done():
                self._ask(Cause("deadline", self._clock.wall(), words="its deadline came"))
            # The SDK sends the cancel that belongs to the connection's version.
            calling.cancel()
            limit = self._clock.monotonic() + self._policy.ack_wait
            await self._until_all([calling], lambda: limit)
            if call.write_began and self._peer.dialect == "notification":
                await self._until_all([call.answer], self._grace_until)
        outcome = self._outcome(call, calling)
        report = self._made_report(call, outcome)
        if call.answer.done():
            self._peer.forget(call)
        else:
            call.answer.add_done_callback(self._answered_late)
        return report

    def _due(self) -> float:
        return float("inf") if self._deadline is None else self._began + self._deadline

    def _outcome(self, call: _Call, calling: asyncio.Task[CallToolResult]) -> Outcome:
        kind = self._cause.kind if self._cause else None
        if call.answer.done():
            return self._read(call.answer.result(), call)
        if not call.write_began:
            why = "the stop came first" if calling.cancelled() else _said(calling)
            return NotStarted(reason=f"it was not sent: {why}", cause=kind, key=self.key)
        if not calling.done() or calling.cancelled():
            how = "its stream was closed" if self._peer.dialect == "close_stream" else "it was told"
            reason = f"{how}, and the server has not answered"
        else:
            reason = f"no answer: {_said(calling)}"
        return Unknown(
            reason=reason,
            cause=kind,
            key=self.key,
            evidence=("the request was sent",),
            check="an answer that comes later is kept in the report",
        )

    def _read(self, answer: Answer, call: _Call) -> Outcome:
        kind = self._cause.kind if self._cause else None
        evidence = ("the server answered",)
        if call.cancel_sent_at is not None:
            evidence = ("the server answered after the cancel was sent",)
        if isinstance(answer, JSONRPCError):
            said = f"{answer.error.message} ({answer.error.code})"
            if answer.error.code == CANCELLED:
                return Stopped(
                    reason="the server says that it was cancelled",
                    cause=kind,
                    key=self.key,
                    after=self._after(),
                    evidence=evidence,
                )
            return Failed(
                reason=said,
                cause=kind,
                key=self.key,
                effects="none" if answer.error.code in _REFUSED else "unverified",
                evidence=evidence,
            )
        text = _text_of(answer.result)
        if answer.result.get("isError"):
            return Failed(
                reason="the tool reported an error",
                output=text,
                cause=kind,
                key=self.key,
                evidence=evidence,
            )
        return Succeeded(output=text, cause=kind, key=self.key, evidence=evidence)

    def _answered_late(self, answer: asyncio.Future[Answer]) -> None:
        if not answer.cancelled() and self._call is not None:
            self._peer.forget(self._call)
            outcome = self._read(answer.result(), self._call)
            self._came_late(Late("the server's answer", self._after(), outcome))

    def _made_report(self, call: _Call, outcome: Outcome) -> UnitReport:
        sent = call.cancel_sent_at
        observed = isinstance(outcome, Stopped)
        facts = McpFacts(
            tool=self._tool,
            protocol_version=self._peer.protocol_version,
            dialect=self._peer.dialect,
            request_id=None if call.request_id is None else str(call.request_id),
            sent=call.write_began,
            cancel_sent=sent is not None,
            cancel_sent_after=None if sent is None else max(0.0, sent - self._began),
            cancel_observed=observed,
            observed=f"it answered with {CANCELLED}" if observed else None,
            answered=call.answer.done(),
        )
        unknown = outcome.status == "unknown"
        return UnitReport(
            id=self.id,
            kind="mcp",
            key=self.key,
            outcome=outcome,
            cause=self._cause,
            duration=self._after(),
            mcp=facts,
            unconfirmed=(f"{self._tool}: {outcome.reason}",) if unknown else (),
        )


class _Tapped:
    """A transport whose messages are seen as they pass."""

    def __init__(
        self,
        inner: Transport,
        outgoing: Callable[[SessionMessage], None],
        incoming: Callable[[Incoming], None],
    ) -> None:
        self._inner = inner
        self._outgoing = outgoing
        self._incoming = incoming

    async def __aenter__(self) -> tuple[ReadStream[Incoming], WriteStream[SessionMessage]]:
        read, write = await self._inner.__aenter__()
        return _TappedRead(read, self._incoming), _TappedWrite(write, self._outgoing)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc, traceback)


class _TappedRead:
    def __init__(self, inner: ReadStream[Incoming], see: Callable[[Incoming], None]) -> None:
        self._inner = inner
        self._see = see

    async def receive(self) -> Incoming:
        message = await self._inner.receive()
        self._see(message)
        return message

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> _TappedRead:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _TappedRead:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


class _TappedWrite:
    def __init__(
        self, inner: WriteStream[SessionMessage], see: Callable[[SessionMessage], None]
    ) -> None:
        self._inner = inner
        self._see = see

    async def send(self, item: SessionMessage, /) -> None:
        # Before the write: one that is cut may have reached the server.
        self._see(item)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _TappedWrite:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


def _over_process(
    unit: ProcessUnit,
) -> AbstractAsyncContextManager[tuple[ReadStream[Incoming], WriteStream[SessionMessage]]]:
    """MCP over the pipes of a process unit, one JSON message to a line."""
    return _process_streams(unit)


@asynccontextmanager
async def _process_streams(
    unit: ProcessUnit,
) -> AsyncGenerator[tuple[ReadStream[Incoming], WriteStream[SessionMessage]]]:
    await unit.start()
    to_session, from_server = anyio.create_memory_object_stream[Incoming](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        rest = b""
        async with to_session:
            async for chunk in unit.stream():
                *lines, rest = (rest + chunk.data).split(b"\n")
                for line in filter(None, lines):
                    try:
                        await to_session.send(_parsed(line))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return

    async def write() -> None:
        async with from_session:
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await unit.write(text.encode("utf-8") + b"\n")
                except (UnitInputClosed, UnitState):
                    # Its output ends with it; the session hears of the loss there.
                    return

    reading = asyncio.ensure_future(read())
    writing = asyncio.ensure_future(write())
    try:
        yield from_server, to_server
    finally:
        with anyio.CancelScope(shield=True):
            # As the protocol has it: the end of its input first, then the stop.
            from_server.close()
            to_server.close()
            await _quietly([writing], CLOSE_WAIT / 4)
            unit.close_input()
            ending = asyncio.ensure_future(_ended(unit))
            await _quietly([ending], CLOSE_WAIT)
            if not unit.ended:
                unit.request_stop("policy", words="its connection was closed")
            await _quietly([ending], None)
            for task in (reading, writing):
                task.cancel()
            await _quietly([reading, writing], None)


async def _ended(unit: ProcessUnit) -> None:
    await unit.wait()


async def _quietly(futures: Sequence[asyncio.Future[None]], within: float | None) -> None:
    """Wait for them whatever cancels this; the unit's own times bound it."""
    end = None if within is None else asyncio.get_running_loop().time() + within
    while waiting := [future for future in futures if not future.done()]:
        left = None if end is None else end - asyncio.get_running_loop().time()
        if left is not None and left <= 0:
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(waiting, timeout=left)


def _parsed(line: bytes) -> Incoming:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        # The session takes a fault as a value.
        return error


def _text_of(result: Mapping[str, object]) -> str:
    """The text of a tool's result; JSON where it is something else."""
    content = result.get("content")
    if isinstance(content, list) and all(
        isinstance(block, dict) and block.get("type") == "text" for block in content
    ):
        return "\n".join(str(block.get("text", "")) for block in content)
    return json.dumps(result, default=str)


def _retrieved(calling: asyncio.Task[CallToolResult]) -> None:
    # Its outcome is read from the wire; the exception only says the same.
    if not calling.cancelled():
        calling.exception()


def _said(calling: asyncio.Task[CallToolResult]) -> str:
    error = calling.exception() if calling.done() and not calling.cancelled() else None
    return "it was cut" if error is None else f"{type(error).__name__}: {error}"
