"""What one caller does wrong stays with that caller; what the record says stays true."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from engine.world import call, kinds, virtual

from stopkit.errors import NotRecorded
from stopkit.history import SendableHistory, ToolCall
from stopkit.operation import Absent, Done
from stopkit.store import MemoryStore, SqlStore, ledger
from stopkit.tool import tool


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
