"""All kinds of units behind the run's door: its stop is theirs, and their facts are its calls'."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from units.test_http import Service
from units.test_mcp import Script
from units.test_process import marked_env, run
from units.truth import marked, survivors, until

from stopkit.history import ToolCall
from stopkit.metrics import metrics
from stopkit.outcome import Failed, Stopped, Succeeded, Unknown
from stopkit.stop import StopPolicy
from stopkit.store import MemoryStore
from stopkit.testing import check_events
from stopkit.tool import ToolContext, tool
from stopkit.units import (
    CallableUnit,
    Endpoint,
    HttpUnit,
    McpPeer,
    McpUnit,
    ProcessUnit,
    StoreRecords,
    Unit,
    UnitReport,
    attend,
)

POLICY = StopPolicy(grace=0.4, verify_wait=2.0, ack_wait=1.0)
RUN = StopPolicy(grace=8.0)


def in_a_run(make, *, effect="write", stop_when=None, cancel=None):
    """One call of a tool whose work is a unit; the outcome, the run's report, its events."""

    async def main():
        store = MemoryStore()
        units = []
        status = {} if effect == "read" else {"status": None}

        @tool(effect=effect, **status)
        async def work(ctx: ToolContext) -> str:
            unit = await make(ctx, StoreRecords(store, ctx.run))
            units.append(unit)
            return await attend(unit, ctx)

        try:
            async with await store.open_run(session="s1", stop=RUN) as scope:
                if stop_when is not None:

                    async def stopper():
                        await stop_when(units)
                        await scope.request_stop("user", words="enough")

                    stopping = asyncio.create_task(stopper())
                outcome = await scope.run_call(ToolCall("c1", "work", {}), [work])
            if stop_when is not None:
                await stopping
            events = await store.events(scope.id)
            assert check_events(events) == []
            return outcome, scope.report, events, units[0] if units else None
        finally:
            store.close()

    return run(main)


def process_of(mark, command):
    async def make(ctx, records):
        return ProcessUnit.shell(
            command, env=marked_env(mark), key=ctx.key, records=records, stop=POLICY
        )

    return make


def when_marked(mark, number):
    async def ready(_units):
        await asyncio.to_thread(until, lambda: len(marked(mark)) >= number)

    return ready


def test_a_process_behind_the_door(mark):
    outcome, report, events, unit = in_a_run(process_of(mark, "echo hello"))
    assert isinstance(outcome, Succeeded)
    assert outcome.output == "hello\n"
    assert "process unit: its process tree was verified empty" in outcome.evidence
    assert report.status == "completed"
    assert [event.kind for event in events if event.kind.startswith("unit")] == ["unit.ended"]
    assert unit.report.key == outcome.key


def test_a_process_that_fails_behind_the_door(mark):
    outcome, *_ = in_a_run(process_of(mark, "echo why; exit 4"))
    assert isinstance(outcome, Failed)
    assert outcome.output == "why\n"
    assert outcome.effects == "unverified"


@pytest.mark.parametrize("effect", ["read", "write"])
def test_a_stop_of_the_run_stops_the_tree(mark, effect):
    outcome, report, events, unit = in_a_run(
        process_of(mark, "echo partial; setsid sleep 60 & sleep 61"),
        effect=effect,
        stop_when=when_marked(mark, 3),
    )
    assert survivors(mark, within=0) == {}
    assert isinstance(outcome, Stopped)
    assert outcome.cause == "user"
    assert outcome.output == "partial\n"
    assert "process unit: its process tree was verified empty" in outcome.evidence
    assert outcome.effects == ("unverified" if effect == "write" else "none")
    assert unit.report.cause.kind == "user"
    assert unit.report.process.members_seen == 3
    assert report.breaches == ()
    found = metrics(events)
    assert found.units_survivors == 0
    if effect == "write":
        assert report.status == "needs_reconciliation"


def test_a_program_that_is_not_there_behind_the_door(mark):
    async def make(ctx, records):
        return ProcessUnit(["/no/such/program"], records=records)

    outcome, *_ = in_a_run(make)
    assert isinstance(outcome, Failed)
    assert outcome.effects == "confirmed_absent"


def test_a_function_behind_the_door():
    async def work():
        return "done"

    async def make(ctx, records):
        return CallableUnit(work, key=ctx.key)

    outcome, *_ = in_a_run(make)
    assert isinstance(outcome, Succeeded)
    assert outcome.output == "done"


def test_a_service_that_lost_its_reply_behind_the_door():
    """Nobody can be asked: the outcome of the call is unknown, with its key."""

    async def main():
        store = MemoryStore()

        async with Service() as service, httpx.AsyncClient() as client:
            service.lose = "after_work"

            @tool(effect="write", status=None)
            async def order(ctx: ToolContext) -> str:
                unit = HttpUnit(client, "POST", service.url + "/orders", key=ctx.key, stop=POLICY)
                return await attend(unit, ctx)

            @tool(effect="write", status=None)
            async def asked(ctx: ToolContext) -> str:
                status = Endpoint("GET", service.url + "/status/{key}")
                unit = HttpUnit(
                    client, "POST", service.url + "/x", key=ctx.key, status=status, stop=POLICY
                )
                return await attend(unit, ctx)

            async with await store.open_run(session="s1") as scope:
                first = await scope.run_call(ToolCall("c1", "order", {}), [order])
                second = await scope.run_call(ToolCall("c2", "asked", {}), [asked])
        store.close()
        return first, second, service

    first, second, service = run(main)
    assert isinstance(first, Unknown)
    assert service.done[first.key] == 1
    assert isinstance(second, Succeeded)
    assert service.done[second.key] == 1


def test_an_mcp_call_behind_the_door():
    async def main():
        store = MemoryStore()
        script = Script()
        peer = McpPeer(script.transport(), streamable_http=False, mode="legacy")
        async with peer:

            @tool(effect="write", status=None)
            async def remote(ctx: ToolContext) -> str:
                return await attend(McpUnit(peer, "t", key=ctx.key, stop=POLICY), ctx)

            async with await store.open_run(session="s1", stop=RUN) as scope:

                async def stopper():
                    await script.called.wait()
                    await scope.request_stop()

                stopping = asyncio.create_task(stopper())
                outcome = await scope.run_call(ToolCall("c1", "remote", {}), [remote])
            await stopping
        store.close()
        return outcome, script

    outcome, script = run(main)
    # Told is not stopped.
    assert isinstance(outcome, Unknown)
    assert len(script.cancelled) == 1


def test_nothing_of_a_unit_starts_after_the_close(mark):
    async def main():
        store = MemoryStore()
        made = []

        @tool(effect="write", status=None)
        async def work(ctx: ToolContext) -> str:
            await scope.request_stop()
            unit = ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark))
            made.append(unit)
            return await attend(unit, ctx)

        async with await store.open_run(session="s1", stop=RUN) as scope:
            outcome = await scope.run_call(ToolCall("c1", "work", {}), [work])
        store.close()
        return outcome, made

    outcome, made = run(main)
    assert isinstance(outcome, Stopped)
    assert outcome.effects == "none"
    # Either the tool was cut before it made one, or the dispatch refused it.
    assert all(unit._report is None for unit in made)


def test_all_kinds_have_one_interface():
    for kind in (ProcessUnit, CallableUnit, HttpUnit, McpUnit):
        assert issubclass(kind, Unit)
    assert {kind.kind for kind in (ProcessUnit, CallableUnit, HttpUnit, McpUnit)} == {
        "process",
        "callable",
        "http",
        "mcp",
    }
    assert UnitReport.__dataclass_params__.frozen
