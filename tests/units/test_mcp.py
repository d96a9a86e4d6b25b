"""Calls of an MCP server: a cancel in each state; answers that come, come late or never."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from units.test_process import run
from units.truth import MARK, survivors, until

from stopkit.outcome import Failed, NotStarted, Stopped, Succeeded, Unknown
from stopkit.stop import StopPolicy
from stopkit.testing import run_virtual
from stopkit.units import McpPeer, McpUnit, ProcessUnit
from stopkit.units.errors import UnitError, UnitNotStarted
from stopkit.units.mcp import _CALL, CANCELLED

SERVER = str(Path(__file__).with_name("mcp_server.py"))
POLICY = StopPolicy(grace=2.0, verify_wait=1.0)
QUICK = StopPolicy(grace=0.3, verify_wait=1.0, ack_wait=1.0)


class Script:
    """A server without a process: it answers as a test says, and notes what it was sent."""

    def __init__(self, version="2025-11-25"):
        self.version = version
        self.calls = []
        self.cancelled = []
        self.on_call = lambda request: None
        self.on_cancel = lambda request_id: None
        self.called = asyncio.Event()

    @asynccontextmanager
    async def transport(self):
        self.out, read = anyio.create_memory_object_stream(100)
        write, self.inbox = anyio.create_memory_object_stream(100)
        serving = asyncio.ensure_future(self.serve())
        try:
            yield read, write
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            for stream in (self.out, read, write, self.inbox):
                stream.close()

    async def serve(self):
        async for item in self.inbox:
            message = item.message
            if isinstance(message, JSONRPCRequest):
                self.request(message)
            elif message.method == "notifications/cancelled":
                request_id = message.params["requestId"]
                self.cancelled.append(request_id)
                self.on_cancel(request_id)

    def request(self, message):
        match message.method:
            case "initialize":
                self.answer(
                    message.id,
                    {
                        "protocolVersion": self.version,
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "script", "version": "1"},
                    },
                )
            case "tools/call":
                self.calls.append(message)
                self.called.set()
                self.on_call(message)
            case "tools/list":
                schema = {"type": "object", "properties": {}}
                self.answer(message.id, {"tools": [{"name": "t", "inputSchema": schema}]})
            case _:
                self.error(message.id, -32601, "no such method")

    def answer(self, request_id, result):
        self.say(JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result))

    def text(self, request_id, text, **more):
        self.answer(request_id, {"content": [{"type": "text", "text": text}], **more})

    def error(self, request_id, code, message):
        error = ErrorData(code=code, message=message)
        self.say(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    def say(self, message):
        self.out.send_nowait(SessionMessage(message))


def scripted(main, version="2025-11-25"):
    """Run `main(script, peer, clock)` in no time."""

    async def inside(clock):
        script = Script(version)
        peer = McpPeer(script.transport(), streamable_http=False, mode="legacy", clock=clock)
        async with peer:
            return await main(script, peer, clock)

    return run_virtual(inside)


def stopped_call(on_call=lambda s, r: None, on_cancel=lambda s, r: None, version="2025-11-25"):
    async def main(script, peer, clock):
        script.on_call = lambda request: on_call(script, request.id)
        script.on_cancel = lambda request_id: on_cancel(script, request_id)
        async with McpUnit(peer, "t", {"a": 1}, clock=clock, stop=POLICY, key="op_1") as unit:
            await script.called.wait()
            report = await unit.stop()
        await asyncio.sleep(10)
        return report, unit.report, script

    return scripted(main, version)


def test_an_answer():
    async def main(script, peer, clock):
        script.on_call = lambda request: script.text(request.id, "hello")
        async with McpUnit(peer, "t", {"a": 1}, clock=clock) as unit:
            report = await unit.wait()
        return report, script.calls[0].params

    report, params = scripted(main)
    assert isinstance(report.outcome, Succeeded)
    assert report.outcome.output == "hello"
    assert params["arguments"] == {"a": 1}
    assert report.mcp.sent
    assert report.mcp.answered
    assert not report.mcp.cancel_sent


@pytest.mark.parametrize(
    ("code", "effects"), [(-32602, "none"), (-32601, "none"), (-32603, "unverified")]
)
def test_an_error_of_the_protocol(code, effects):
    async def main(script, peer, clock):
        script.on_call = lambda request: script.error(request.id, code, "bad")
        async with McpUnit(peer, "t", clock=clock) as unit:
            return await unit.wait()

    outcome = scripted(main).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.effects, outcome.reason) == (effects, f"bad ({code})")


def test_an_error_of_the_tool():
    async def main(script, peer, clock):
        script.on_call = lambda request: script.text(request.id, "no", isError=True)
        async with McpUnit(peer, "t", clock=clock) as unit:
            return await unit.wait()

    outcome = scripted(main).outcome
    assert (outcome.status, outcome.effects, outcome.output) == ("failed", "unverified", "no")


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
def test_a_stop_sends_the_cancel_of_the_version_once(version):
    report, _, script = stopped_call(version=version)
    assert report.mcp.protocol_version == version
    assert report.mcp.dialect == "notification"
    assert [str(one) for one in script.cancelled] == [report.mcp.request_id]
    assert report.mcp.cancel_sent
    # Sent is not observed: this server has said nothing at all.
    assert not report.mcp.cancel_observed
    assert isinstance(report.outcome, Unknown)
    assert (report.outcome.effects, report.outcome.key) == ("unverified", "op_1")
    assert report.duration == pytest.approx(POLICY.grace, abs=0.01)
    assert report.unconfirmed


def test_a_server_that_says_it_was_cancelled():
    report, _, _ = stopped_call(
        on_cancel=lambda script, rid: script.error(rid, CANCELLED, "Request cancelled")
    )
    assert isinstance(report.outcome, Stopped)
    assert report.mcp.cancel_observed
    assert str(CANCELLED) in report.mcp.observed
    # What it did before that, nobody has said.
    assert report.outcome.effects == "unverified"


def test_a_server_that_answers_anyway():
    report, _, _ = stopped_call(on_cancel=lambda script, rid: script.text(rid, "done"))
    assert isinstance(report.outcome, Succeeded)
    assert report.outcome.output == "done"
    assert report.outcome.evidence == ("the server answered after the cancel was sent",)
    assert not report.mcp.cancel_observed


def test_an_answer_after_the_report_is_kept():
    def later(script, rid):
        asyncio.get_running_loop().call_later(5, script.text, rid, "at last")

    report, kept, _ = stopped_call(on_cancel=later)
    assert isinstance(report.outcome, Unknown)
    assert report.late == ()
    (late,) = kept.late
    assert isinstance(late.outcome, Succeeded)
    assert late.outcome.output == "at last"
    assert late.after == pytest.approx(5.0, abs=0.1)


def test_a_stop_before_it_was_sent_sends_nothing():
    async def main(script, peer, clock):
        unit = McpUnit(peer, "t", clock=clock, stop=POLICY)
        await unit.start()
        report = await unit.stop()
        return report, script

    report, script = scripted(main)
    assert isinstance(report.outcome, NotStarted)
    assert not report.mcp.sent
    assert not report.mcp.cancel_sent
    assert script.calls == []
    assert script.cancelled == []


def test_a_stop_after_the_answer_changes_nothing():
    async def main(script, peer, clock):
        script.on_call = lambda request: script.text(request.id, "hello")
        async with McpUnit(peer, "t", clock=clock) as unit:
            await unit.wait()
            return await unit.stop(), script.cancelled

    report, cancelled = scripted(main)
    assert report.outcome.output == "hello"
    assert cancelled == []


def test_a_deadline_is_not_the_users_stop():
    async def main(script, peer, clock):
        async with McpUnit(peer, "t", clock=clock, stop=POLICY, deadline=5.0) as unit:
            return await unit.wait()

    report = scripted(main)
    assert report.cause.kind == "deadline"
    assert report.mcp.cancel_sent_after == pytest.approx(5.0, abs=0.01)


def test_an_answer_that_asks_for_more_is_not_the_outcome():
    """A call that the SDK sends again is one call, and its last answer counts."""

    async def main(script, peer, clock):
        async with McpUnit(peer, "t", clock=clock, stop=POLICY) as unit:
            await script.called.wait()
            first = script.calls[0].id
            peer._incoming(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=first, result={})))
            again = JSONRPCRequest(jsonrpc="2.0", id=77, method="tools/call", params={"name": "t"})
            unit._call.answer.result()
            context = contextvars.copy_context()
            context.run(_CALL.set, unit._call)
            context.run(peer._outgoing, SessionMessage(again))
            return await unit.stop()

    report = scripted(main)
    assert report.mcp.request_id == "77"
    assert isinstance(report.outcome, Unknown)


@settings(max_examples=60)
@given(
    answer_at=st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.9, 3.0, 3.1, 8.0])),
    stop_at=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    how=st.sampled_from(["result", "cancelled", "error"]),
    heeds=st.booleans(),
)
def test_no_order_of_cancel_and_answer_loses_a_fact(answer_at, stop_at, how, heeds):
    """Every answer is the outcome or is kept as late; none is made up."""

    def give(script, rid):
        if how == "result":
            script.text(rid, "done")
        elif how == "cancelled":
            script.error(rid, CANCELLED, "Request cancelled")
        else:
            script.error(rid, -32603, "broke")

    async def main(script, peer, clock):
        loop = asyncio.get_running_loop()
        given_ = []

        def answer(rid):
            given_.append(rid)
            give(script, rid)

        timers = []

        def on_call(request):
            if answer_at is not None:
                timers.append(loop.call_later(answer_at, answer, request.id))

        def on_cancel(_rid):
            if heeds:
                for timer in timers:
                    timer.cancel()

        script.on_call, script.on_cancel = on_call, on_cancel
        async with McpUnit(peer, "t", clock=clock, stop=POLICY) as unit:
            await script.called.wait()
            await asyncio.sleep(stop_at)
            report = await unit.stop()
        await asyncio.sleep(20)
        ours = {request.id for request in script.calls}
        # The SDK may be cut in a question of its own, about the tool's schema.
        return report, unit.report, given_, len([rid for rid in script.cancelled if rid in ours])

    report, kept, given_, cancels = scripted(main)
    kinds = {"result": Succeeded, "cancelled": Stopped, "error": Failed}
    answers = [report.outcome] if not isinstance(report.outcome, Unknown) else []
    answers += [late.outcome for late in kept.late]
    assert len(answers) == len(given_)
    assert all(isinstance(answer, kinds[how]) for answer in answers)
    assert cancels == int(report.mcp.cancel_sent)


# -- a real server over its pipes -----------------------------------------------------------------


def over_stdio(mark, notes, main):
    env = {**os.environ, MARK: mark}

    async def inside():
        peer = McpPeer.stdio([sys.executable, SERVER, "stdio", str(notes)], env=env, stop=QUICK)
        async with peer:
            result = await main(peer)
        return result, peer.report

    return run(inside)


async def seen(path):
    await asyncio.to_thread(until, path.exists)


def test_a_stdio_server_runs_inside_a_process_unit(mark, tmp_path):
    async def main(peer):
        async with McpUnit(peer, "echo", {"text": "hi"}) as unit:
            first = await unit.wait()
        async with McpUnit(peer, "fail") as unit:
            second = await unit.wait()
        async with McpUnit(peer, "daemon") as unit:
            await unit.wait()
        return first, second

    (first, second), process = over_stdio(mark, tmp_path, main)
    assert first.outcome.output == "hi"
    assert second.outcome.status == "failed"
    assert first.mcp.dialect == "notification"
    # The daemon that a tool of it left is a member like any other.
    assert process.process.verified_empty == "yes"
    assert "sleep" in {member.name for member in process.process.members}
    assert survivors(mark, within=0) == {}


def test_a_stdio_server_observes_the_cancel(mark, tmp_path):
    async def main(peer):
        async with McpUnit(peer, "slow", stop=QUICK) as unit:
            await seen(tmp_path / "started")
            report = await unit.stop()
        await seen(tmp_path / "cancelled")
        async with McpUnit(peer, "echo", {"text": "alive"}) as unit:
            after = await unit.wait()
        return report, after

    (report, after), _ = over_stdio(mark, tmp_path, main)
    assert report.mcp.cancel_sent
    # This server ends the tool and answers nothing: by the protocol, nobody can tell.
    assert report.outcome.status in ("unknown", "stopped")
    assert report.mcp.cancel_observed is (report.outcome.status == "stopped")
    assert after.outcome.output == "alive"
    assert not (tmp_path / "finished").exists()


def test_a_tool_that_goes_on_is_never_said_to_be_stopped(mark, tmp_path):
    async def main(peer):
        async with McpUnit(peer, "stubborn", stop=QUICK) as unit:
            await seen(tmp_path / "started")
            report = await unit.stop()
        (tmp_path / "release").touch()
        await seen(tmp_path / "finished")
        return report

    report, _ = over_stdio(mark, tmp_path, main)
    assert isinstance(report.outcome, Unknown)
    assert report.outcome.effects == "unverified"


def test_a_server_that_dies_in_a_call(mark, tmp_path):
    async def main(peer):
        async with McpUnit(peer, "die") as unit:
            return await unit.wait()

    report, process = over_stdio(mark, tmp_path, main)
    assert isinstance(report.outcome, Unknown)
    assert report.mcp.sent
    assert process.process.exit.code == 3


def test_a_server_that_is_no_server(mark):
    async def main():
        env = {**os.environ, MARK: mark}
        peer = McpPeer.stdio(["/bin/sh", "-c", "exit 1"], env=env, stop=QUICK)
        with pytest.raises(UnitError):
            await peer.__aenter__()
        return peer.process.report

    assert run(main).process.exit.code == 1


def test_a_program_that_is_not_there():
    async def main():
        peer = McpPeer.stdio(["/no/such/server"])
        with pytest.raises(UnitNotStarted):
            await peer.__aenter__()

    run(main)


def test_a_cancelled_connection_leaves_no_server(mark, tmp_path):
    env = {**os.environ, MARK: mark}

    async def main():
        peer = McpPeer.stdio([sys.executable, SERVER, "stdio", str(tmp_path)], env=env, stop=QUICK)

        async def use():
            async with peer, McpUnit(peer, "slow", stop=QUICK) as unit:
                await unit.wait()

        task = asyncio.create_task(use())
        await seen(tmp_path / "started")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return peer.report

    report = run(main)
    assert report.process.verified_empty == "yes"
    assert survivors(mark, within=0) == {}


# -- a real server over streamable HTTP -----------------------------------------------------------


def over_http(mark, notes, main, mode):
    env = {**os.environ, MARK: mark}

    async def inside():
        server = ProcessUnit([sys.executable, SERVER, "http", str(notes)], env=env, stop=QUICK)
        async with server:
            await asyncio.to_thread(until, lambda: (notes / "port").exists() or server.ended)
            url = f"http://127.0.0.1:{(notes / 'port').read_text()}/mcp"
            async with McpPeer.http(url, mode=mode) as peer:
                return await main(peer)

    return run(inside)


MODES = {"legacy": "notification", MODERN_PROTOCOL_VERSIONS[-1]: "close_stream"}


@pytest.mark.parametrize("mode", MODES)
def test_over_streamable_http_a_cancel_is_that_of_the_version(mark, tmp_path, mode):
    async def main(peer):
        async with McpUnit(peer, "echo", {"text": "hi"}) as unit:
            first = await unit.wait()
        async with McpUnit(peer, "slow", stop=QUICK) as unit:
            await seen(tmp_path / "started")
            report = await unit.stop()
        await seen(tmp_path / "cancelled")
        return first, report

    first, report = over_http(mark, tmp_path, main, mode)
    assert first.outcome.output == "hi"
    assert report.mcp.dialect == MODES[mode]
    assert report.mcp.cancel_sent
    if mode == "legacy":
        # Here the server answers that it has ended the call.
        assert report.mcp.cancel_observed
        assert isinstance(report.outcome, Stopped)
    else:
        assert not report.mcp.cancel_observed
        assert isinstance(report.outcome, Unknown)
    assert not (tmp_path / "finished").exists()


@pytest.mark.parametrize("mode", MODES)
def test_over_streamable_http_a_tool_that_goes_on_stays_unknown(mark, tmp_path, mode):
    async def main(peer):
        async with McpUnit(peer, "stubborn", stop=QUICK) as unit:
            await seen(tmp_path / "started")
            report = await unit.stop()
        (tmp_path / "release").touch()
        await seen(tmp_path / "finished")
        return report

    assert isinstance(over_http(mark, tmp_path, main, mode).outcome, Unknown)
