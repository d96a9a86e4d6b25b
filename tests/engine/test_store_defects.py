"""What one caller does wrong stays with that caller; what the record says stays true."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import anyio
import pytest
from engine.world import call, kinds, virtual

from stopkit.errors import NotRecorded
from stopkit.history import SendableHistory, ToolCall
from stopkit.operation import Absent, Done
from stopkit.store import MemoryStore, SqlStore, ledger
from stopkit.testing import check_events
from stopkit.tool import ToolContext, tool


@tool(effect="read")
async def look() -> str:
    return "seen"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqlStore(f"sqlite:///{path}")
    yield store
    store.close()


def _bad_bind(tx):
    ledger.press(tx, object())


def _no_row(tx):
    tx.execute(ledger.q.INSERT_MESSAGE, {"run": "r", "ordinal": 0, "body": None})


class _End(BaseException):
    pass


def _ends(_tx):
    raise _End


@pytest.mark.parametrize("bad", [_bad_bind, _no_row, _ends])
def test_a_refused_statement_fails_its_own_job_only(store, bad):
    gate = threading.Event()
    holding = store.submit(lambda _tx: gate.wait(10))
    # All of these share the transaction after the one that is held.
    futures = [store.submit(job) for job in (lambda _tx: 1, bad, lambda _tx: 3)]
    gate.set()
    assert holding.result(10)
    assert futures[0].result(10) == 1
    assert futures[2].result(10) == 3
    assert isinstance(futures[1].exception(10), (_End, NotRecorded))


@pytest.mark.parametrize("error", [RuntimeError("commit"), _End()])
def test_the_writer_outlives_any_error_of_a_commit(path, error):
    left = [error]

    def fault(point):
        if point == "commit" and left:
            raise left.pop()

    store = SqlStore(f"sqlite:///{path}", fault=fault)
    assert store.submit(lambda _tx: 1).exception(10) is error
    assert store.submit(lambda _tx: 2).result(10) == 2
    store.close()


def test_a_memory_store_tells_every_error_through_the_future():
    store = MemoryStore()
    with pytest.raises(ValueError, match="no"):
        store.submit(lambda _tx: int("no")).result()
    assert isinstance(store.submit(_no_row).exception(), NotRecorded)
    assert store.submit(lambda _tx: 1).result() == 1
    store.close()


def test_evidence_goes_back_through_the_attempts():
    async def main(world):
        given = {}

        def complete(_messages, evidence):
            given.update(evidence)
            return SendableHistory("openai.chat", (), True)

        async with await world.open() as first:
            await first.model_request(lambda: asyncio.sleep(0))
            await first.run_calls([call("write", "a", what="x")], world.tools)
        async with await world.store.resume_run(first.id, complete=complete) as second:
            await second.model_request(lambda: asyncio.sleep(0))
            await second.run_calls([call("nothing", "a")], world.tools)
        asked = [ToolCall("a", "write", {}), ToolCall("a", "nothing", {}, 2)]
        found = await world.store.evidence(second.id, asked)
        assert {name: outcome.status for name, outcome in found.items()} == {
            "a": "succeeded",
            "a#2": "not_started",
        }
        assert given == found
        # With one call more than rows, the rows may be those of any of them.
        found = await world.store.evidence(second.id, [*asked, ToolCall("a", "write", {}, 3)])
        assert {outcome.status for outcome in found.values()} == {"unknown"}

    virtual(main)


async def _lose(world, tools):
    world.service.loses_reply = True
    async with await world.open() as scope:
        await scope.run_calls([call("write", what="x")], tools)
    world.service.loses_reply = False
    assert scope.report.status == "needs_reconciliation"
    return scope, scope.report.to_reconcile[0]


def test_reconciling_leaves_what_became_known_meanwhile():
    async def main(world):
        asked, gate = asyncio.Event(), asyncio.Event()

        async def status(_key):
            asked.set()
            await gate.wait()
            return Absent()

        write = replace(world.write, status=status)
        scope, key = await _lose(world, [write])
        reconciling = asyncio.create_task(world.store.reconcile(scope.id, [write]))
        await asked.wait()
        await world.store.decide(scope.id, key, "happened", by="ann")
        gate.set()
        assert (await reconciling).settled == ()
        (operation,) = await world.store.operations(scope.id)
        assert (operation.outcome.status, operation.decided_by) == ("succeeded", "ann")
        events = kinds(await world.store.events(scope.id))
        assert events.count("call.reconciled") == 1

    virtual(main)


def test_two_reconciliations_are_told_once():
    async def main(world):
        async def status(_key):
            await asyncio.sleep(1)
            return Done("x")

        write = replace(world.write, status=status)
        scope, _ = await _lose(world, [write])
        found = await asyncio.gather(*(world.store.reconcile(scope.id, [write]) for _ in range(2)))
        assert sorted(len(one.settled) for one in found) == [0, 1]
        assert {one.status for one in found} == {"completed"}
        assert kinds(await world.store.events(scope.id)).count("call.reconciled") == 1

    virtual(main)


@pytest.mark.parametrize(("seconds", "left"), [(0, 0), (7200, 1)])
def test_absent_proves_nothing_past_the_retention(seconds, left):
    async def main(world):
        async def status(_key):
            return Absent()

        write = replace(world.write, status=status, retention=3600)
        scope, _ = await _lose(world, [write])
        world.clock.advance(seconds)
        found = await world.store.reconcile(scope.id, [write])
        assert len(found.open) == left
        assert found.status == ("needs_reconciliation" if left else "completed")

    virtual(main)


def test_a_business_key_is_of_one_tenant_and_is_not_replayed_once_undone():
    async def main(world):
        write = replace(world.write, key=lambda _arguments: "invoice-1")

        async def run(tenant):
            opened = await world.store.open_run(session="s1", tenant=tenant)
            async with opened as scope:
                (outcome,) = await scope.run_calls([call("write", what="x")], [write])
            return scope.id, outcome

        first, outcome = await run("t1")
        assert outcome.status == "succeeded"
        _, replayed = await run("t1")
        assert replayed.evidence[-1] == f"recorded in run {first}"
        for tenant in ("t2", None):
            before = world.entered.count("write")
            _, other = await run(tenant)
            assert other.status == "succeeded"
            assert world.entered.count("write") == before + 1
        undone = await world.store.compensate(first, "invoice-1", [write], by="ann")
        assert undone.status == "done"
        _, again = await run("t1")
        assert (again.status, again.cause) == ("not_started", "undone")
        _, other = await run("t2")
        assert other.status == "succeeded"

    virtual(main)


LONE = "\ud800"


def test_lone_surrogates_are_written_everywhere(store):
    @tool(effect="write", status=None)
    async def odd(ctx: ToolContext) -> str:
        ctx.receipt(LONE, provider_request_id=LONE)
        return LONE

    async def main():
        async with await store.open_run(session=LONE, tenant=LONE) as scope:
            (outcome,) = await scope.run_calls([ToolCall("c" + LONE, "odd", {})], [odd])
            assert outcome.output == LONE
            await scope.save([{"a": LONE, "b": _Odd()}])
            receipt = await store.request_stop(scope.id, actor=LONE, words=LONE)
            assert receipt.recorded
        assert scope.report.not_persisted == ()
        (operation,) = await store.operations(scope.id)
        assert operation.outcome == outcome
        found = await store.evidence(scope.id, [ToolCall("c" + LONE, "odd", {})])
        assert list(found.values()) == [outcome]
        assert await store.messages(scope.id) == ({"a": LONE, "b": "<_Odd>"},)

    asyncio.run(main())


class _Odd:
    def __repr__(self):
        raise RuntimeError("no words")


def test_any_failed_write_is_named():
    async def main(world):
        async with await world.open() as scope:
            scope._work.write(lambda _tx: int("no"), "a note")
        assert scope.report.not_persisted == ("a note: ValueError",)

    virtual(main)


def test_a_resumed_run_goes_on_with_its_repairs():
    async def main(world):
        async with await world.open() as first:
            await first.save([{"m": 1}], repairs=[{"r": 1}])
        async with await world.store.resume_run(first.id) as second:
            await second.save([*second.messages, {"m": 2}], repairs=[{"r": 1}, {"r": 2}])
        assert await world.store.messages(second.id) == ({"m": 1}, {"m": 2})
        assert await world.store.repairs(second.id) == ({"r": 1}, {"r": 2})

    virtual(main)


def test_a_save_that_failed_for_any_reason_is_made_again():
    async def main(world):
        loop: list[object] = []
        loop.append(loop)
        async with await world.open() as scope:
            with pytest.raises((ValueError, RecursionError)):
                await scope.save([loop])
            await scope.save([{"m": 1}])
        assert await world.store.messages(scope.id) == ({"m": 1},)

    virtual(main)


def test_a_request_through_the_store_is_seen_while_the_file_is_locked(path, store):
    async def main():
        other = sqlite3.connect(path, isolation_level=None)
        async with await store.open_run(session="s1") as scope:
            other.execute("BEGIN IMMEDIATE")
            asking = asyncio.create_task(store.request_stop(scope.id))
            seen = asyncio.Event()
            running = asyncio.get_running_loop()
            scope.signal.on_request(lambda: running.call_soon_threadsafe(seen.set))
            async with asyncio.timeout(3):
                with anyio.CancelScope(shield=True):
                    await seen.wait()
            assert not asking.done()
            other.execute("ROLLBACK")
            with anyio.CancelScope(shield=True):
                receipt = await asking
        assert (receipt.recorded, receipt.first, receipt.presses) == (True, True, 1)
        record = await store.load(scope.id)
        assert (record.status, record.presses) == ("cancelled", 1)
        assert scope.report.stop.recorded
        assert check_events(await store.events(scope.id)) == []
        other.close()

    asyncio.run(main())


FORK = """
import asyncio, os, sys
from stopkit.errors import StoreClosed
from stopkit.store import MemoryStore, SqlStore

stores = [SqlStore(sys.argv[1]), MemoryStore()]
child = os.fork()
if child == 0:
    refused = 0
    for store in stores:
        for work in (store.open_run(session="s"), store.load("r")):
            try:
                asyncio.run(work)
            except StoreClosed:
                refused += 1
        store.close()
    os._exit(0 if refused == 4 else 1)
_, status = os.waitpid(child, 0)
asyncio.run(stores[0].open_run(session="s"))
for store in stores:
    store.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_store_is_not_taken_along_by_a_fork(path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, f"sqlite:///{path}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
