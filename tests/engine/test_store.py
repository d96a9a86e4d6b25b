"""The durable record: real files, real processes, real faults."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import sqlalchemy as sa
from engine.world import call

from stopkit.errors import (
    IllegalTransition,
    NotRecorded,
    RunConflict,
    RunNotFound,
    SchemaMismatch,
    StopRequested,
    StoreClosed,
    StoreError,
)
from stopkit.stop import Cause, StopPolicy
from stopkit.store import MemoryStore, SqlStore, ledger, schema
from stopkit.store.sqlite import make_engine, migrate
from stopkit.testing import StoreFaults, check_events
from stopkit.tool import ToolContext, tool

QUICK = StopPolicy(ack_wait=0.2, grace=0.3, verify_wait=0.2, output_wait=0.2)


@tool(effect="write", status=None)
async def write(ctx: ToolContext, seconds: float = 0.0) -> str:
    await ctx.dispatched()
    await asyncio.sleep(seconds)
    return "written"


@tool(effect="read")
async def look(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "seen"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqlStore(f"sqlite:///{path}")
    yield store
    store.close()


def test_a_run_outlives_its_store(path):
    async def first():
        store = SqlStore(f"sqlite:///{path}")
        async with await store.open_run(session="s1", tenant="t1") as scope:
            await scope.run_calls([call("write")], [write])
            await scope.save([{"n": 1}, {"n": 2**70}], repairs=[{"r": "\ud800"}])
        store.close()
        return scope.id

    async def second(run):
        store = SqlStore(f"sqlite:///{path}")
        record = await store.load(run)
        assert (record.status, record.tenant) == ("completed", "t1")
        assert [op.outcome.status for op in await store.operations(run)] == ["succeeded"]
        assert await store.messages(run) == ({"n": 1}, {"n": 2**70})
        assert await store.repairs(run) == ({"r": "\ud800"},)
        events = await store.events(run)
        assert check_events(events) == []
        assert await store.events(run, after=3) == events[3:]
        assert [found.id for found in await store.runs("s1")] == [run]
        with pytest.raises(RunNotFound):
            await store.load("nothing")
        store.close()

    run = asyncio.run(first())
    asyncio.run(second(run))


def test_a_stale_version_changes_nothing(store):
    async def main():
        scope = await store.open_run(session="s1")
        stale = (await store.load(scope.id)).version
        await store.request_stop(scope.id)
        # A late worker that still thinks the run is queued.
        with pytest.raises(RunConflict):
            await store.write(
                partial(
                    ledger.move_run,
                    run=scope.id,
                    to="running",
                    at=1.0,
                    kind="run.running",
                    expected_version=stale,
                )
            )
        with pytest.raises(IllegalTransition):
            await store.write(
                partial(ledger.move_run, run=scope.id, to="running", at=1.0, kind="run.running")
            )
        assert (await store.load(scope.id)).status == "cancel_requested"
        assert len(await store.events(scope.id)) == 2

    asyncio.run(main())


def test_a_change_and_its_event_are_one_transaction(path):
    faults = StoreFaults()

    async def main():
        store = SqlStore(f"sqlite:///{path}", fault=faults)
        scope = await store.open_run(session="s1")
        faults.disk_full(count=1)
        receipt = await store.request_stop(scope.id)
        assert not receipt.recorded
        assert receipt.error is not None
        assert (await store.load(scope.id)).status == "queued"
        assert len(await store.events(scope.id)) == 1
        assert (await store.request_stop(scope.id)).recorded
        assert len(await store.events(scope.id)) == 2
        store.close()

    asyncio.run(main())


def test_group_commit_keeps_one_failure_to_itself(store):
    async def main():
        scopes = [await store.open_run(session="s1") for _ in range(20)]
        jobs = [store.submit(partial(ledger.start_run, run=scope.id, at=1.0)) for scope in scopes]
        jobs.insert(10, store.submit(partial(ledger.start_run, run="nothing", at=1.0)))
        done = await asyncio.gather(
            *(asyncio.wrap_future(job) for job in jobs), return_exceptions=True
        )
        assert isinstance(done[10], RunNotFound)
        assert sum(isinstance(found, BaseException) for found in done) == 1
        for scope in scopes:
            assert (await store.load(scope.id)).status == "running"

    asyncio.run(main())


def test_a_locked_store_is_waited_for_then_told(path, store):
    async def main():
        scope = await store.open_run(session="s1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = store.submit(partial(ledger.start_run, run=scope.id, at=1.0), patience=0.1)
        with pytest.raises(NotRecorded):
            await asyncio.wrap_future(waiting)
        patient = store.submit(partial(ledger.start_run, run=scope.id, at=1.0), patience=30)
        given_up = store.submit(partial(ledger.begin_request, run=scope.id, at=1.0), patience=30)
        assert given_up.cancel()
        await asyncio.sleep(0.1)
        assert not patient.done()
        other.execute("COMMIT")
        await asyncio.wrap_future(patient)
        record = await store.load(scope.id)
        assert (record.status, record.requests) == ("running", 0)
        other.close()

    asyncio.run(main())


def test_a_stop_works_with_the_database_locked(path, store):
    async def main():
        other = sqlite3.connect(path, isolation_level=None)
        async with await store.open_run(session="s1", stop=QUICK) as scope:

            async def stop():
                await asyncio.sleep(0.05)
                other.execute("BEGIN IMMEDIATE")
                started = time.monotonic()
                receipt = await scope.request_stop()
                assert not receipt.recorded
                report = await scope.stop()
                assert time.monotonic() - started < QUICK.total + 1
                return report

            stopping = asyncio.create_task(stop())
            (outcome,) = await scope.run_calls([call("look", seconds=60)], [look])
        report = await stopping
        assert outcome.status == "stopped"
        assert report.status == "running"
        assert report.stop is not None
        assert not report.stop.recorded
        assert "the end of the run" in report.not_persisted
        other.execute("ROLLBACK")
        other.close()
        # Nothing is written behind the report's back.
        await asyncio.sleep(0.2)
        assert (await store.load(scope.id)).status == "running"
        taken = await store.take_over(scope.id)
        assert taken.status == "failed"

    asyncio.run(main())


def test_a_stop_while_the_row_waits_for_the_lock_starts_nothing(path, store):
    entered = []

    @tool(effect="write", status=None)
    async def never(ctx: ToolContext) -> str:
        entered.append(1)
        return ""

    async def main():
        other = sqlite3.connect(path, isolation_level=None)
        async with await store.open_run(session="s1", stop=QUICK) as scope:
            other.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.1, scope.signal.request)
            (outcome,) = await scope.run_calls([call("never")], [never])
            assert outcome.status == "not_started"
        other.execute("ROLLBACK")
        other.close()

    asyncio.run(main())
    assert entered == []


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_takes_no_more_promises(path, store, how):
    async def main():
        async with await store.open_run(session="s1", stop=QUICK) as scope:
            path.unlink()
            if how == "replaced":
                path.write_bytes(b"")
            (outcome,) = await scope.run_calls([call("write")], [write])
            assert outcome.status == "not_started"
            assert outcome.cause == "not_recorded"
            with pytest.raises(NotRecorded):
                await scope.model_request(lambda: asyncio.sleep(0))
        assert scope.report.not_persisted

    asyncio.run(main())


def test_a_closed_store_says_so(path):
    async def main():
        store = SqlStore(f"sqlite:///{path}")
        store.close()
        store.close()
        with pytest.raises(StoreClosed):
            await store.open_run(session="s1")
        with pytest.raises(StoreClosed):
            await store.load("r")
        memory = MemoryStore()
        assert not memory.durable
        memory.close()
        memory.close()
        with pytest.raises(StoreClosed):
            await memory.open_run(session="s1")

    asyncio.run(main())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql+psycopg://x/y"])
def test_only_a_file_is_durable(url):
    with pytest.raises(StoreError):
        SqlStore(url)


def test_a_folder_that_is_not_there_cannot_be_opened(tmp_path):
    with pytest.raises(NotRecorded):
        SqlStore(f"sqlite:///{tmp_path / 'nothing' / 'runs.db'}")


def test_many_open_a_new_file_at_once(path):
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: SqlStore(f"sqlite:///{path}"), range(8)))

    async def main():
        scopes = [await store.open_run(session="s1") for store in stores]
        assert len(await stores[0].runs("s1")) == len(scopes) == 8

    asyncio.run(main())
    for store in stores:
        store.close()


def test_migrations(path):
    engine = make_engine(sa.make_url(f"sqlite:///{path}"), "FULL")
    migrate(engine)
    migrate(engine)

    def add_note(connection):
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN note TEXT")

    def broken(connection):
        connection.exec_driver_sql("CREATE TABLE half (x)")
        raise RuntimeError("half way")

    newer = (*schema.MIGRATIONS, add_note)
    with engine.connect() as connection:
        assert schema.migrate(connection, newer) == 2
        connection.rollback()
    with engine.connect() as connection:
        with pytest.raises(SchemaMismatch):
            schema.migrate(connection)
        with pytest.raises(RuntimeError, match="half way"):
            schema.migrate(connection, (*newer, broken))
    engine.dispose()
    with pytest.raises(SchemaMismatch):
        SqlStore(f"sqlite:///{path}")


def test_the_fields_of_the_record(path, store):
    found = sqlite3.connect(path)
    columns = {row[1] for row in found.execute("PRAGMA table_info(runs)")}
    assert {
        "id",
        "tenant",
        "status",
        "cancel_requested_at",
        "cause_kind",
        "active_call",
        "version",
        "terminal_at",
    } <= columns
    tables = {row[0] for row in found.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    assert {
        "runs",
        "operations",
        "steers",
        "units",
        "messages",
        "repairs",
        "events",
        "stopkit_meta",
    } == tables
    mode = found.execute("PRAGMA journal_mode").fetchone()[0]
    assert mode == "wal"
    found.close()


ASK = """
import asyncio, sys
from stopkit.store import SqlStore

async def main():
    store = SqlStore(sys.argv[1])
    for line in sys.stdin:
        receipt = await store.request_stop(line.strip(), "operator", words="from elsewhere")
        print(int(receipt.first), flush=True)
    store.close()

asyncio.run(main())
"""


def test_another_process_asks_and_is_seen_within_200_ms(path, store):
    async def main():
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            ASK,
            f"sqlite:///{path}",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert other.stdin is not None
        assert other.stdout is not None
        waits = []
        for _ in range(5):
            async with await store.open_run(session="s1") as scope:
                seen = []
                scope.signal.on_request(lambda: seen.append(time.monotonic()))  # noqa: B023
                other.stdin.write(f"{scope.id}\n".encode())

                async def answered():
                    line = await other.stdout.readline()
                    return line, time.monotonic()

                answer = asyncio.create_task(answered())
                await scope.run_calls([call("look", seconds=60)], [look])
            line, told = await answer
            assert line == b"1\n"
            waits.append(seen[0] - told)
            assert scope.report.status == "cancelled"
            assert scope.report.stop is not None
            assert scope.report.stop.cause.kind == "operator"
            assert scope.report.stop.cause.words == "from elsewhere"
            assert (await store.load(scope.id)).presses == 1
        other.stdin.close()
        await other.wait()
        assert sorted(waits)[len(waits) // 2] < 0.2

    asyncio.run(main())


def test_a_request_that_is_recorded_keeps_the_next_call_from_starting(path, store):
    """The record is asked at each step, so that even the time until the notice is covered."""

    async def main():
        other = SqlStore(f"sqlite:///{path}")
        async with await store.open_run(session="s1") as scope:
            other.submit(
                partial(ledger.request_stop, run=scope.id, cause=Cause("user", 1.0), at=1.0)
            ).result()
            # In the same turn of the loop: no notice can have come.
            (outcome,) = await scope.run_calls([call("write")], [write])
            assert outcome.status == "not_started"
            with pytest.raises(StopRequested):
                await scope.model_request(lambda: asyncio.sleep(0))
        assert check_events(await store.events(scope.id)) == []
        assert scope.report.status == "cancelled"
        other.close()

    asyncio.run(main())


def test_many_threads_ask_at_once(path, store):
    async def main():
        scope = await store.open_run(session="s1")
        stores = [SqlStore(f"sqlite:///{path}") for _ in range(4)]

        def ask(number):
            return (
                stores[number % 4]
                .submit(
                    partial(ledger.request_stop, run=scope.id, cause=Cause("user", 1.0), at=1.0),
                    patience=60,
                )
                .result()
            )

        with ThreadPoolExecutor(16) as pool:
            receipts = list(pool.map(ask, range(100)))
        assert sum(receipt.first for receipt in receipts) == 1
        events = [event.kind for event in await store.events(scope.id)]
        assert events == ["run.opened", "run.cancel_requested"]
        assert (await store.load(scope.id)).version == 2
        assert (await store.load(scope.id)).presses == 100
        for other in stores:
            other.close()

    asyncio.run(main())


def test_a_run_that_finished_before_it_saw_the_request_is_completed(path, store):
    async def main():
        other = SqlStore(f"sqlite:///{path}")
        async with await store.open_run(session="s1") as scope:
            other.submit(
                partial(ledger.request_stop, run=scope.id, cause=Cause("user", 1.0), at=1.0)
            ).result()
        assert scope.report.status == "completed"
        assert scope.report.stop is not None
        assert scope.report.stop.recorded
        assert check_events(await store.events(scope.id)) == []
        other.close()

    asyncio.run(main())
