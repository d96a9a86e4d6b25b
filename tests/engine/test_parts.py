"""Tools, retries, files, metrics and the testing tools themselves."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from typing import Annotated

import pytest
from engine.world import call, kinds, virtual
from pydantic import Field
from tenacity import wait_fixed

import stopkit
from stopkit.errors import RestoreRefused, StopRequested, ToolRegistrationError
from stopkit.events import Event
from stopkit.files import ABSENT, UNREADABLE, look, restore, snapshot
from stopkit.metrics import metrics
from stopkit.outcome import Unknown
from stopkit.pauses import POINTS
from stopkit.retry import may_retry, retry
from stopkit.signal import StopSignal
from stopkit.store import MemoryStore
from stopkit.testing import (
    CountingIds,
    FakeClock,
    Pauses,
    StoreFaults,
    check_events,
    crash_at,
    run_virtual,
)
from stopkit.tool import ThreadContext, ToolContext, by_name, tool


def test_the_schema_comes_from_the_signature():
    @tool(effect="read")
    async def search(
        query: Annotated[str, Field(description="what to find")], limit: int = 10
    ) -> str:
        """Search the files."""
        return f"{query} {limit}"

    assert search.name == "search"
    assert search.description == "Search the files."
    assert search.schema["properties"]["query"]["description"] == "what to find"
    assert search.schema["required"] == ["query"]
    assert search.schema["additionalProperties"] is False
    assert search.bind({"query": "x"}) == {"query": "x", "limit": 10}
    with pytest.raises(ValueError, match="query"):
        search.bind({})
    assert not search.in_thread


def test_a_raw_schema_goes_with_a_function():
    async def run(ctx: ToolContext, arguments: dict) -> str:
        return arguments["x"]

    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    made = tool(effect="read", schema=schema, function=run, name="raw")
    assert made.schema is schema
    assert made.bind({"x": "1"}) == {"arguments": {"x": "1"}}
    with pytest.raises(ToolRegistrationError, match="arguments"):
        tool(effect="read", schema=schema, function=takes_none, name="bad")
    with pytest.raises(ToolRegistrationError, match="function"):
        tool(effect="read", schema=schema)


async def ask_status(_key):
    return None


async def takes_context(ctx: ToolContext, x: int) -> str:
    return ""


async def takes_none(x: int) -> str:
    return ""


async def untyped(x):
    return ""


async def variadic(*x: int):
    return ""


async def positional(x: int, /):
    return ""


async def late_context(x: int, ctx: ToolContext):
    return ""


async def thread_context(ctx: ThreadContext):
    return ""


def plain_with_async_context(ctx: ToolContext):
    return ""


async def strange(x: asyncio.Future):
    return ""


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (takes_context, {"effect": "write"}, "status"),
        (takes_context, {"effect": "detached"}, "status"),
        (takes_context, {"effect": "other"}, "effect class"),
        (takes_context, {"effect": "read", "status": ask_status}, "belong"),
        (takes_context, {"effect": "read", "compensate": ask_status}, "belong"),
        (takes_context, {"effect": "cleanup", "key": str}, "belong"),
        (takes_none, {"effect": "write", "status": ask_status}, "key"),
        (takes_none, {"effect": "write", "status": None, "cancel": ask_status}, "key"),
        (takes_context, {"effect": "read", "timeout": 0}, "timeout"),
        (takes_context, {"effect": "read", "timeout": float("inf")}, "timeout"),
        (takes_context, {"effect": "write", "status": None, "retention": -1}, "retention"),
        (untyped, {"effect": "read"}, "type"),
        (variadic, {"effect": "read"}, "schema"),
        (positional, {"effect": "read"}, "name"),
        (late_context, {"effect": "read"}, "first parameter"),
        (thread_context, {"effect": "read"}, "first parameter"),
        (plain_with_async_context, {"effect": "read"}, "first parameter"),
        (strange, {"effect": "read"}, "schema"),
    ],
)
def test_registration_refuses_what_leaves_something_unsaid(function, options, words):
    with pytest.raises(ToolRegistrationError, match=words):
        tool(**options)(function)


def test_two_tools_of_one_name_are_refused():
    made = tool(effect="read")(takes_none)
    with pytest.raises(ToolRegistrationError):
        by_name([made, made])
    assert by_name({"x": made})["x"] is made


@pytest.mark.parametrize(
    ("effect", "key", "stopped", "expected"),
    [
        ("read", None, False, True),
        ("read", None, True, False),
        ("write", None, False, False),
        ("write", "op_1", False, True),
        ("write", "op_1", True, False),
        ("detached", "op_1", False, True),
        ("cleanup", None, True, True),
    ],
)
def test_what_may_be_tried_again(effect, key, stopped, expected):
    assert may_retry(effect, key=key, stopped=stopped) == expected


def failing(times, error=ConnectionError):
    tries = []

    async def function():
        tries.append(1)
        if len(tries) <= times:
            raise error("no")
        return "yes"

    return function, tries


def test_retries_know_of_stops_deadlines_and_effects():
    async def main(clock):
        def signal(**options):
            return StopSignal(clock=clock, **options)

        function, tries = failing(2)
        assert await retry(function, signal=signal(), effect="read", wait=wait_fixed(1)) == "yes"
        assert len(tries) == 3

        function, tries = failing(2)
        with pytest.raises(ConnectionError):
            await retry(function, signal=signal(), effect="write", wait=wait_fixed(1))
        assert len(tries) == 1

        function, tries = failing(9)
        with pytest.raises(ConnectionError):
            await retry(function, signal=signal(), effect="write", key="op_1", attempts=4)
        assert len(tries) == 4

        function, tries = failing(9, ValueError)
        with pytest.raises(ValueError, match="no"):
            await retry(function, signal=signal(), effect="read", on=ConnectionError)
        assert len(tries) == 1

        # A back-off of a minute ends at once.
        stop = signal()
        function, tries = failing(9)
        asyncio.get_running_loop().call_later(1, stop.request)
        started = clock.monotonic()
        with pytest.raises(StopRequested):
            await retry(function, signal=stop, effect="read", wait=wait_fixed(60))
        assert clock.monotonic() - started == pytest.approx(1)
        with pytest.raises(StopRequested):
            await retry(function, signal=stop, effect="read")
        assert len(tries) == 1

        # So it does at the deadline.
        function, tries = failing(9)
        with pytest.raises(StopRequested):
            await retry(function, signal=signal(deadline=5), effect="read", wait=wait_fixed(60))
        assert len(tries) == 1

        # Clean-up is still tried again.
        function, tries = failing(2)
        assert await retry(function, signal=stop, effect="cleanup", wait=wait_fixed(1)) == "yes"

        # stopkit's own errors are never worth another try.
        async def stopped():
            tries.append(1)
            raise StopRequested

        tries.clear()
        with pytest.raises(StopRequested):
            await retry(stopped, signal=signal(), effect="read")
        assert len(tries) == 1

    run_virtual(main)


def test_files_before_and_after(tmp_path):
    one, two, three, folder = (tmp_path / name for name in ("one", "two", "three", "folder"))
    one.write_text("1")
    two.write_text("2")
    folder.mkdir()
    before = snapshot([one, two, three, folder])
    one.write_text("changed")
    three.write_text("new")
    diff = before.compare()
    assert [path for path, _, _ in diff.changed] == [str(one), str(three)]
    assert [path for path, _, _ in diff.unchanged] == [str(two)]
    assert diff.unknown == ((str(folder), UNREADABLE, UNREADABLE),)
    assert diff.changed[1][1] == ABSENT

    one.write_text("by somebody else")
    with pytest.raises(RestoreRefused, match="somebody else"):
        restore(before, diff)
    assert three.exists()
    one.write_text("changed")
    os.chmod(one, 0o640)
    assert restore(before, diff) == (str(one), str(three))
    assert one.read_text() == "1"
    assert not three.exists()
    assert look(str(one)).digest == before.versions[str(one)].digest


def test_large_files_are_compared_and_not_kept(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"x" * 1_000_001)
    before = snapshot([path])
    path.write_bytes(b"y")
    diff = before.compare()
    assert len(diff.changed) == 1
    with pytest.raises(RestoreRefused, match="too large"):
        restore(before, diff)


def test_a_stop_in_a_multi_file_edit_says_which_files_changed(tmp_path):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.write_text("old")

    @tool(effect="write", status=None, files=lambda _arguments: paths)
    async def edit(ctx: ToolContext) -> str:
        await ctx.dispatched()
        for path in paths:
            ctx.checkpoint(path.name)
            if path.name == "c":
                half_way.set()
                await release.wait()
                ctx.checkpoint("after the wait")
            path.write_text("new")
        return "all"

    async def main():
        store = MemoryStore()
        async with await store.open_run(session="s1") as scope:

            async def stop():
                await half_way.wait()
                scope.signal.request()
                release.set()

            stopping = asyncio.create_task(stop())
            await scope.run_calls([call("edit")], [edit])
            await stopping
        (entry,) = scope.report.calls
        assert entry.files is not None
        assert [path for path, _, _ in entry.files.changed] == [str(path) for path in paths[:2]]
        assert [path for path, _, _ in entry.files.unchanged] == [str(paths[2])]
        assert "files.changed" in kinds(await store.events(scope.id))
        store.close()

    release, half_way = asyncio.Event(), asyncio.Event()
    asyncio.run(main())


def log(*entries):
    """Events of one run from (kind, data) pairs, a second apart."""
    return [Event("r1", seq, float(seq), kind, data) for seq, (kind, data) in enumerate(entries, 1)]


OPENED = ("run.opened", {})
RUNNING = ("run.running", {})
ASKED = ("run.cancel_requested", {"cause": "user"})
CANCELLING = ("run.cancelling", {})


def ended(status, **data):
    return ("run.ended", {"status": status, "to_reconcile": [], **data})


def test_a_broken_worker_that_starts_work_after_the_request_is_counted():
    events = log(
        OPENED,
        RUNNING,
        ASKED,
        ("call.intended", {"key": "k"}),
        CANCELLING,
        ("call.settled", {"key": "k", "status": "succeeded"}),
        ended("cancelled", presses=5),
    )
    figures = metrics(events)
    assert figures.started_after_request == 1
    assert figures.duplicate_requests == 4
    assert figures.seconds_to_end == (4.0,)
    assert figures.histogram((1, 5)) == {"1": 0, "5": 1, "inf": 1}
    assert [found.code for found in check_events(events)] == ["start_after_request"]


def test_partial_text_that_is_shown_as_final_is_counted():
    events = log(
        OPENED,
        RUNNING,
        ("text.partial", {"text": "t1"}),
        ("text.partial", {"text": "t2"}),
        ("text.final", {"text": "t2"}),
        ("text.shown", {"text": "t2", "as": "final"}),
        ("text.shown", {"text": "t1", "as": "partial"}),
        ("text.shown", {"text": "t1", "as": "final"}),
    )
    figures = metrics(events)
    assert (figures.partial_texts, figures.partial_shown_as_final) == (1, 1)
    assert figures.partial_as_final_rate == 1.0
    assert [found.code for found in check_events(events)] == ["partial_as_final"]


def test_the_other_figures():
    lost = log(
        OPENED,
        RUNNING,
        ("call.intended", {"key": "k"}),
        ASKED,
        CANCELLING,
        ("unit.ended", {"survivors": [7], "forced": True, "output_complete": False}),
        ("breach", {"what": "x"}),
        ended("needs_reconciliation", to_reconcile=["k"], orphaned=1),
    )
    lost = [replace(event, run="r2") for event in lost]
    other = log(OPENED, RUNNING, ASKED, CANCELLING, ended("cancelled"))
    figures = metrics([*lost, *other])
    assert figures.orphaned_calls == 2
    assert figures.reconciliation_rate == 0.5
    assert (figures.units_survivors, figures.units_forced) == (1, 1)
    assert (figures.units_output_incomplete, figures.breaches) == (1, 1)
    assert metrics([]).reconciliation_rate == 0.0


def test_a_lost_workers_calls_are_counted_as_orphaned():
    async def main(world):
        scope = await world.open()
        world.pauses.at("after_dispatch", lambda: asyncio.sleep(1000))
        async with scope:
            work = asyncio.create_task(scope.run_calls([call("write", what="x")], world.tools))
            await world.pauses.reached("after_dispatch")
            await world.store.take_over(scope.id)
            figures = metrics(await world.store.events(scope.id))
            assert figures.orphaned_calls == 1
            scope.signal.request("operator")
            await work
        # The worker was not lost, and cannot write over what was said of it.
        assert scope.report.not_persisted
        assert (await world.store.load(scope.id)).status == "needs_reconciliation"

    virtual(main)


BAD_LOGS = [
    ("gap", [Event("r1", 2, 0.0, "run.opened", {})]),
    ("not_opened", log(RUNNING)),
    ("opened_twice", log(OPENED, OPENED)),
    ("illegal_move", log(OPENED, CANCELLING)),
    ("no_status", log(OPENED, RUNNING, ended("stopped"))),
    ("observed_unasked", log(OPENED, ("run.cancel_observed", {}))),
    ("start_outside", log(OPENED, ("request.started", {}))),
    (
        "end_before_account",
        log(OPENED, RUNNING, ("call.intended", {"key": "k"}), ended("completed")),
    ),
    ("unverified_end", log(OPENED, RUNNING, ended("needs_reconciliation"))),
    (
        "key_reused",
        log(OPENED, RUNNING, ("call.intended", {"key": "k"}), ("call.intended", {"key": "k"})),
    ),
    ("dispatch_unintended", log(OPENED, RUNNING, ("call.dispatched", {"key": "k"}))),
    (
        "two_outcomes",
        log(
            OPENED,
            RUNNING,
            ("call.settled", {"key": "k", "status": "unknown"}),
            ("call.settled", {"key": "k", "status": "succeeded"}),
        ),
    ),
    ("reconciled_unsettled", log(OPENED, RUNNING, ("call.reconciled", {"key": "k", "by": "x"}))),
    (
        "reconciled_by_nobody",
        log(
            OPENED,
            RUNNING,
            ("call.settled", {"key": "k", "status": "unknown"}),
            ("call.reconciled", {"key": "k", "status": "succeeded"}),
        ),
    ),
    ("steer_unqueued", log(OPENED, RUNNING, ("steer.sent", {"steer": "s"}))),
    (
        "illegal_steer",
        log(OPENED, RUNNING, ("steer.queued", {"steer": "s"}), ("steer.applied", {"steer": "s"})),
    ),
    (
        "steer_after_end",
        log(OPENED, RUNNING, ended("completed"), ("steer.queued", {"steer": "s"})),
    ),
    ("no_key", log(OPENED, RUNNING, ("call.settled", {"status": "succeeded"}))),
]


@pytest.mark.parametrize(("code", "events"), BAD_LOGS, ids=[code for code, _ in BAD_LOGS])
def test_the_checker_sees_each_broken_promise(code, events):
    assert code in {found.code for found in check_events(events)}


def test_a_cancel_nobody_asked_for_is_seen():
    events = log(OPENED, RUNNING, CANCELLING, ended("cancelled"))
    assert {"illegal_move", "cancelled_unasked"} <= {f.code for f in check_events(events)}


def test_pauses_hold_where_they_are_told():
    async def main():
        pauses = Pauses()
        release = pauses.hold("before_start")
        arrived = asyncio.create_task(pauses.reached("before_start"))
        await asyncio.sleep(0)
        held = asyncio.create_task(pauses("before_start", "r1"))
        await arrived
        assert not held.done()
        release.set()
        await held
        await pauses.reached("before_start")
        with pytest.raises(ValueError, match="pause point"):
            pauses.at("nowhere", lambda: None)
        assert set(POINTS) >= {"before_model_request", "after_dispatch", "in_cleanup"}

    asyncio.run(main())


def test_the_clock_and_the_ids_and_the_faults():
    clock = FakeClock(wall=10.0)
    clock.advance(5)
    assert (clock.monotonic(), clock.wall()) == (5.0, 15.0)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    ids = CountingIds()
    assert [ids("run"), ids("run"), ids("steer")] == ["run_1", "run_2", "steer_1"]
    faults = StoreFaults()
    faults("begin")
    faults.io(count=1)
    with pytest.raises(sqlite3.OperationalError):
        faults("commit")
    faults("commit")
    assert faults.fired == 1
    assert crash_at("before_start")._actions


def test_an_hour_passes_at_once():
    async def main(clock):
        await asyncio.sleep(3600)
        return clock.monotonic()

    assert run_virtual(main) == pytest.approx(3600)


def test_the_public_door_is_complete_and_light():
    assert stopkit.__all__ == sorted(stopkit.__all__, key=lambda name: (not name.isupper(), name))
    for name in stopkit.__all__:
        assert getattr(stopkit, name) is not None
    with pytest.raises(AttributeError):
        _ = stopkit.nothing
    loaded = subprocess.run(
        [sys.executable, "-c", "import stopkit, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.split()
    assert not {"asyncio", "sqlalchemy", "httpx", "anyio", "tenacity"} & set(loaded)
    # After all submodules are loaded, the door still gives the functions.
    for module in pkgutil.iter_modules(stopkit.__path__):
        assert module.name
    assert callable(stopkit.tool)
    assert callable(stopkit.metrics)
    assert Unknown().status == "unknown"
