"""After a run: keys, replays, reconciliation, resume, decisions and undoing."""

from __future__ import annotations

import asyncio

import pytest
from engine.world import call, no_answer, virtual

from stopkit.errors import (
    DecisionRefused,
    ReconcileRequired,
    RunConflict,
    RunNotFound,
    ToolFailed,
)
from stopkit.history import ToolCall
from stopkit.outcome import Succeeded
from stopkit.tool import ToolContext, tool


async def lose_a_write(world, tools=None, what="x"):
    """A run that was stopped while a write was under way."""
    world.service.seconds = 100.0
    async with await world.open() as scope:
        asyncio.get_running_loop().call_later(1, scope.signal.request)
        await scope.model_request(lambda: asyncio.sleep(0))
        await scope.run_calls([call("write", what=what)], tools or world.tools)
    world.service.seconds = 1.0
    assert scope.report.status == "needs_reconciliation"
    return scope


def test_a_resume_waits_until_every_write_is_verified():
    async def main(world):
        lost = await lose_a_write(world)
        (key,) = lost.report.to_reconcile
        with pytest.raises(ReconcileRequired) as caught:
            await world.store.resume_run(lost.id)
        assert caught.value.keys == (key,)
        # A new run of the session is always allowed.
        async with await world.open():
            pass
        world.service.down = True
        found = await world.store.reconcile(lost.id, world.tools)
        assert [operation.key for operation in found.open] == [key]
        assert found.status == "needs_reconciliation"
        world.service.down = False
        found = await world.store.reconcile(lost.id, world.tools)
        assert found.status == "cancelled"
        async with await world.store.resume_run(lost.id) as scope:
            # It is done: when the model asks again, that is a new operation.
            await scope.model_request(lambda: asyncio.sleep(0))
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
        assert outcome.key != key
        assert world.service.calls.total() == 2
        with pytest.raises(RunConflict):
            await world.store.resume_run(lost.id)

    virtual(main)


def test_an_absent_write_runs_again_with_its_own_key():
    async def main(world):
        lost = await lose_a_write(world)
        (key,) = lost.report.to_reconcile
        world.service.done.clear()
        world.service.calls.clear()
        found = await world.store.reconcile(lost.id, world.tools)
        assert found.settled[0].outcome is not None
        assert found.settled[0].outcome.effects == "confirmed_absent"
        async with await world.store.resume_run(lost.id) as scope:
            await scope.model_request(lambda: asyncio.sleep(0))
            other, same, again = await scope.run_calls(
                [call("write", name, what=what) for name, what in zip("abc", "yxx", strict=True)],
                world.tools,
                limit=1,
            )
        assert same.key == key
        assert len({other.key, same.key, again.key}) == 3
        assert world.service.calls[key] == 1
        events = [e for e in await world.report(scope.id) if e.kind == "call.intended"]
        assert [e.data["again"] for e in events] == [False, True, False]

    virtual(main)


def test_without_a_status_check_a_person_decides_by_name():
    @tool(effect="write", status=None)
    async def write(ctx: ToolContext, what: str) -> str:
        await ctx.dispatched()
        await asyncio.sleep(100)
        return ""

    async def main(world):
        ends = {}
        for decision in ("happened", "did_not_happen", "accept_unknown"):
            lost = await lose_a_write(world, [write], what=decision)
            (key,) = lost.report.to_reconcile
            found = await world.store.reconcile(lost.id, [write])
            assert [operation.key for operation in found.open] == [key]
            with pytest.raises(DecisionRefused):
                await world.store.decide(lost.id, key, decision, by="")
            operation = await world.store.decide(lost.id, key, decision, by="ann", words="I looked")
            assert operation.decided_by == "ann"
            with pytest.raises(DecisionRefused):
                await world.store.decide(lost.id, key, decision, by="bob")
            ends[decision] = operation.outcome
            assert (await world.store.load(lost.id)).status == "cancelled"
            told = [e for e in await world.report(lost.id) if e.kind == "call.reconciled"]
            assert told[0].data["person"] == "ann"
        assert ends["happened"].status == "succeeded"
        assert ends["did_not_happen"].effects == "confirmed_absent"
        assert ends["accept_unknown"].effects == "unverified"

    virtual(main)


def test_what_is_still_at_work_is_not_settled_from_outside():
    async def main(world):
        world.service.seconds = 10.0
        scope = await world.open()

        async def body():
            async with scope:
                await scope.run_calls([call("write", what="x")], world.tools)

        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        (operation,) = await world.store.pending(scope.id)
        with pytest.raises(RunConflict):
            await world.store.reconcile(scope.id, world.tools)
        with pytest.raises(RunConflict):
            await world.store.decide(scope.id, operation.key, "did_not_happen", by="ann")
        await task
        assert scope.report.outcomes[0].status == "succeeded"
        assert scope.report.status == "completed"

    virtual(main)


def test_answers_that_do_not_come():
    async def hangs(_key):
        await asyncio.sleep(1000)

    async def main(world):
        for status, words in ((hangs, "within"), (no_answer, "asked")):

            @tool(effect="write", status=status)
            async def write(ctx: ToolContext, what: str) -> str:
                await ctx.dispatched()
                await asyncio.sleep(100)
                return ""

            lost = await lose_a_write(world, [write])
            found = await world.store.reconcile(lost.id, [write], within=5)
            (answer,) = found.answers.values()
            assert words in answer.reason
            found = await world.store.reconcile(lost.id, [])
            (answer,) = found.answers.values()
            assert "no tool" in answer.reason

    virtual(main)


def test_a_business_key_is_one_operation():
    async def main(world):
        service = world.service

        @tool(effect="write", status=service.status, key=lambda a: f"invoice-{a['n']}")
        async def invoice(ctx: ToolContext, n: int, amount: int) -> str:
            await ctx.dispatched()
            return await service.write(ctx.key)

        async with await world.open() as scope:
            calls = [call("invoice", name, n=1, amount=10) for name in "ab"]
            first, second = await scope.run_calls(calls, [invoice], limit=1)
            (other,) = await scope.run_calls([call("invoice", "c", n=1, amount=99)], [invoice])
        assert first.key == "invoice-1"
        assert isinstance(second, Succeeded)
        assert second.output == first.output
        assert other.status == "not_started"
        assert other.cause == "key_conflict"
        assert service.calls == {"invoice-1": 1}
        async with await world.open() as later:
            (third,) = await later.run_calls([call("invoice", n=1, amount=10)], [invoice])
        assert third.output == first.output
        assert service.calls == {"invoice-1": 1}

    virtual(main)


def test_past_retention_nothing_is_replayed_on_trust():
    async def main(world):
        @tool(effect="write", status=None, retention=3600, key=lambda a: "pay-1")
        async def write(ctx: ToolContext, what: str) -> str:
            await ctx.dispatched()
            await world.service.write(ctx.key)
            return "paid"

        lost = await lose_a_write(world, [write])
        await world.store.decide(lost.id, "pay-1", "accept_unknown", by="ann")
        world.clock.advance(7200)
        async with await world.store.resume_run(lost.id) as scope:
            (outcome,) = await scope.run_calls([call("write", what="x")], [write])
        assert outcome.status == "not_started"
        assert outcome.cause == "key_past_retention"
        assert world.service.calls["pay-1"] == 1

    virtual(main)


def test_evidence_for_a_history():
    async def main(world):
        async with await world.open() as scope:
            await scope.run_calls([call("look", "a"), call("look", "a")], world.tools)
        calls = [ToolCall("a", "look", {}), ToolCall("a", "look", {}, 2), ToolCall("b", "look", {})]
        evidence = await world.store.evidence(scope.id, calls)
        statuses = {name: outcome.status for name, outcome in evidence.items()}
        assert statuses == {"a": "succeeded", "a#2": "succeeded", "b": "not_started"}

    virtual(main)


def test_undoing_is_a_call_of_its_own_and_may_not_be_possible():
    async def main(world):
        service = world.service

        @tool(effect="write", status=None)
        async def mail(ctx: ToolContext) -> str:
            await ctx.dispatched()
            return "sent"

        async def refuse(_operation):
            raise ToolFailed("too late", no_effects=True)

        async def lose(_operation):
            raise ConnectionError("lost")

        async def slow(_operation):
            await asyncio.sleep(100)

        def undoable(name, compensate):
            @tool(effect="write", status=None, name=name, compensate=compensate)
            async def made(ctx: ToolContext) -> str:
                await ctx.dispatched()
                return name

            return made

        tools = [
            *world.tools,
            mail,
            undoable("refused", refuse),
            undoable("lost", lose),
            undoable("slow", slow),
        ]
        async with await world.open() as scope:
            calls = [
                call("write", "a", what="x"),
                call("mail", "b"),
                call("look", "c"),
                call("refused", "d"),
                call("lost", "e"),
                call("slow", "f"),
            ]
            await scope.run_calls(calls, tools)
        keys = {entry.call.id: entry.key for entry in scope.report.calls}

        async def undo(name):
            return await world.store.compensate(scope.id, keys[name], tools, by="ann", within=5)

        done = await undo("a")
        assert (done.status, done.output) == ("done", "undone")
        assert not service.done[keys["a"]]
        assert await undo("a") == done
        assert (await undo("b")).status == "not_possible"
        assert (await undo("c")).status == "not_possible"
        failed = await undo("d")
        assert (failed.status, failed.reason) == ("failed", "too late")
        assert (await undo("e")).status == "unknown"
        assert (await undo("f")).status == "unknown"
        with pytest.raises(RunNotFound):
            await world.store.compensate(scope.id, "op_none", tools, by="ann")
        # The first operation stands in the record as it was.
        operations = {op.key: op for op in await world.store.operations(scope.id)}
        assert operations[keys["a"]].outcome.status == "succeeded"

    virtual(main)


def test_a_cancelled_run_never_goes_on_by_itself():
    async def main(world):
        lost = await lose_a_write(world)
        before = world.service.calls.copy()
        taken = await world.store.take_over(lost.id)
        assert taken.status == "needs_reconciliation"
        await asyncio.sleep(1000)
        assert world.service.calls == before

    virtual(main)
