"""The door, the races of a stop, and what the report says."""

from __future__ import annotations

import asyncio
import time

import anyio
import pytest
from engine.world import call, kinds, virtual

from stopkit.errors import (
    ApprovalNotPending,
    CleanupOnly,
    InsideTheRun,
    NotRecorded,
    PartialTextError,
    StopRequested,
    ToolFailed,
)
from stopkit.history import SendableHistory, ToolCall
from stopkit.metrics import metrics
from stopkit.outcome import NotStarted, Succeeded, Unknown
from stopkit.stop import StopPolicy
from stopkit.testing import check_events
from stopkit.text import FinalText, PartialText, final
from stopkit.tool import ThreadContext, ToolContext, tool


async def reply(value="hello", seconds=0.0):
    await asyncio.sleep(seconds)
    return value


def after(seconds, action):
    """Do something later, from another task."""

    async def later():
        await asyncio.sleep(seconds)
        result = action()
        if asyncio.iscoroutine(result):
            return await result
        return result

    return asyncio.create_task(later())


def test_the_loop_of_the_design_runs_as_written():
    async def main(world):
        store, tools = world.store, world.tools
        sent = []
        async with await store.open_run(session="s1", deadline=60) as scope:
            messages = [{"role": "user", "content": "go"}]
            turn = 0
            while True:
                turn += 1
                sent.append(list(messages))
                await scope.model_request(lambda: reply(seconds=1))
                if turn == 3:
                    break
                calls = [ToolCall("c1", "look", {}), ToolCall("c2", "write", {"what": "x"})]
                if turn == 1:
                    await scope.steer("hurry")
                for outcome in await scope.run_calls(calls, tools):
                    assert outcome.status == "succeeded"
                messages += scope.steers_due()
        report = scope.report
        assert report.status == "completed"
        assert report.stop is None
        assert [steer.status for steer in report.steers] == ["applied"]
        assert report.steers[0].proof == "request 2 carried it"
        assert sent[1][-1] == {"role": "user", "content": "hurry"}
        assert len({entry.key for entry in report.calls}) == 4
        assert report.requests == 3
        assert len(report.standing) == 2
        assert report.calls[1].provider_request_id is not None

    virtual(main)


def test_race_1_stopped_while_queued_nothing_starts():
    async def main(world):
        scope = await world.open()
        receipt = await world.store.request_stop(scope.id, "user")
        assert receipt.first
        sent = []
        async with scope:
            await scope.model_request(lambda: reply(sent.append(1)))
        assert sent == []
        assert scope.report.status == "cancelled"
        events = await world.report(scope.id)
        assert "request.started" not in kinds(events)
        assert "run.running" not in kinds(events)

    virtual(main)


def test_race_2_stopped_during_streaming():
    async def main(world):
        seen = []
        async with await world.open() as scope:
            text = scope.text()

            async def stream():
                for number in range(100):
                    await asyncio.sleep(1)
                    seen.append(number)
                    text.append(f"{number} ")
                return text.finish()

            after(5.5, lambda: scope.signal.request("user"))
            await scope.model_request(stream)
        report = scope.report
        assert seen == [0, 1, 2, 3, 4]
        assert report.final_text is None
        assert [str(part) for part in report.partial_text] == ["[interrupted] 0 1 2 3 4 "]
        ended = [e for e in await world.report(scope.id) if e.kind == "request.ended"]
        assert ended[0].data["how"] == "cut"
        assert ended[0].data["upstream"] == "unconfirmed"
        saved = [e for e in await world.report(scope.id) if e.kind == "text.partial"]
        assert "".join(str(e.data["chunk"]) for e in saved) == "0 1 2 3 4 "

    virtual(main)


@pytest.mark.parametrize("point", ["before_enqueue", "before_start", "after_intend"])
def test_race_3_stopped_between_model_output_and_dispatch_no_tool_begins(point):
    async def main(world):
        async with await world.open() as scope:
            world.pauses.at(point, lambda: scope.signal.request("user") and None)
            await scope.model_request(reply)
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
            assert outcome.status == "not_started"
            assert outcome.cause == "user"
            await scope.model_request(reply)
        assert world.entered == []
        assert scope.report.status == "cancelled"
        assert scope.report.requests == 1

    virtual(main)


def test_race_4_two_parallel_tools_reach_a_known_end():
    async def main(world):
        async with await world.open() as scope:
            after(0.5, lambda: scope.signal.request("user"))
            calls = [call("look", "a", seconds=60), call("write", "b", what="x")]
            outcomes = await scope.run_calls(calls, world.tools)
        assert [outcome.status for outcome in outcomes] == ["stopped", "succeeded"]
        assert scope.report.status == "cancelled"
        assert scope.report.outcomes == tuple(outcomes)
        assert world.clock.monotonic() < 2

    virtual(main)


def test_race_5_after_a_dispatch_the_write_is_reconciled_never_repeated():
    async def main(world):
        world.service.seconds = 100.0
        async with await world.open() as scope:
            after(0.5, lambda: scope.signal.request("user"))
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
        assert isinstance(outcome, Unknown)
        assert outcome.effects == "unverified"
        assert scope.report.status == "needs_reconciliation"
        key = scope.report.to_reconcile[0]
        found = await world.store.reconcile(scope.id, world.tools)
        assert found.status == "cancelled"
        assert found.settled[0].outcome == Succeeded(
            output="written",
            key=key,
            cause="user",
            evidence=("its status check says done", f"receipt {key}"),
        )
        assert found.open == ()
        assert world.service.calls[key] == 1
        assert (await world.store.load(scope.id)).status == "cancelled"

    virtual(main)


def test_race_7_a_hundred_requests_are_one_transition():
    async def main(world):
        async with await world.open(stop=StopPolicy(grace=3)) as scope:
            world.service.seconds = 100.0
            stops = [after(0.5, scope.request_stop) for _ in range(50)]
            stops += [after(0.5, lambda: world.store.request_stop(scope.id)) for _ in range(50)]
            await scope.run_calls([call("write", what="x")], world.tools)
        receipts = await asyncio.gather(*stops)
        assert sum(receipt.first for receipt in receipts) == 1
        assert all(receipt.recorded for receipt in receipts)
        events = kinds(await world.report(scope.id))
        for kind in ("run.cancel_requested", "run.cancel_observed", "call.settled", "run.ended"):
            assert events.count(kind) == 1
        version = (await world.store.load(scope.id)).version
        again = await world.store.request_stop(scope.id)
        assert not again.first
        assert (await world.store.load(scope.id)).version == version
        assert scope.report.stop is not None
        assert scope.report.stop.forced

    virtual(main)


def test_race_8_a_resume_is_a_new_attempt_with_its_provenance():
    asked = []

    async def main(world):
        world.store._policy = lambda record: asked.append(record.attempt)
        async with await world.open() as scope:
            await scope.save([{"role": "user", "content": "go"}])
            await scope.request_stop()
        assert scope.report.status == "cancelled"
        async with await world.store.resume_run(scope.id) as second:
            assert second.messages == ({"role": "user", "content": "go"},)
        record = await world.store.load(second.id)
        assert (record.attempt, record.resumed_from) == (2, scope.id)
        assert record.lineage == scope.id
        assert asked == [1, 2]
        assert (await world.store.load(scope.id)).status == "cancelled"

    virtual(main)


def test_x36_a_stop_between_the_check_and_the_dispatch_is_unknown():
    async def main(world):
        async with await world.open(stop=StopPolicy(grace=0.0)) as scope:

            async def hold():
                scope.signal.request("user")
                await asyncio.sleep(60)

            world.pauses.at("after_dispatch", hold)
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
        assert isinstance(outcome, Unknown)
        assert scope.report.to_reconcile == (outcome.key,)

    virtual(main)


def test_a_stop_before_the_commit_point_leaves_nothing_to_verify():
    async def main(world):
        async with await world.open() as scope:
            world.pauses.at("before_dispatch", lambda: scope.signal.request("user") and None)
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
        assert outcome.status == "stopped"
        assert outcome.effects == "none"
        assert world.service.calls.total() == 0
        assert scope.report.status == "cancelled"

    virtual(main)


def test_x115_success_and_stop_at_once_keep_the_success():
    async def main(world):
        async with await world.open() as scope:
            world.pauses.at("before_record", lambda: scope.signal.request("user") and None)
            (outcome,) = await scope.run_calls([call("look")], world.tools)
        assert outcome.status == "succeeded"
        assert scope.report.status == "cancelled"
        assert scope.report.breaches == ()

    virtual(main)


def test_what_finished_is_not_relabelled():
    async def main(world):
        async with await world.open() as scope:
            await scope.run_calls([call("look", "a"), call("write", "b", what="x")], world.tools)
            scope.signal.request("user")
            (deploy,) = await scope.run_calls([call("write", "c", what="deploy")], world.tools)
            assert deploy.status == "not_started"
        statuses = [outcome.status for outcome in scope.report.outcomes]
        assert statuses == ["succeeded", "succeeded", "not_started"]
        assert scope.report.status == "cancelled"

    virtual(main)


def test_queued_calls_are_not_started_and_none_failed():
    async def main(world):
        async with await world.open() as scope:
            after(0.5, lambda: scope.signal.request("user"))
            calls = [call("look", f"c{n}", seconds=60) for n in range(6)]
            outcomes = await scope.run_calls(calls, world.tools, limit=1)
        assert [outcome.status for outcome in outcomes] == ["stopped"] + ["not_started"] * 5
        assert world.entered == ["look"]
        operations = await world.store.operations(scope.id)
        assert len(operations) == 6

    virtual(main)


def test_a_checkpoint_keeps_the_second_effect_from_happening():
    steps = []

    @tool(effect="write", status=None)
    async def two_steps(ctx: ToolContext) -> str:
        await ctx.dispatched()
        steps.append("first")
        ctx.output("first step done")
        await asyncio.sleep(1)
        ctx.checkpoint("second step")
        steps.append("second")
        return "both"

    async def main(world):
        async with await world.open() as scope:
            after(0.5, lambda: scope.signal.request("user"))
            (outcome,) = await scope.run_calls([call("two_steps")], [two_steps])
        assert steps == ["first"]
        assert outcome.status == "stopped"
        assert outcome.effects == "unverified"
        assert outcome.output == "first step done"
        assert scope.report.status == "needs_reconciliation"

    virtual(main)


def test_two_runs_are_two_scopes():
    async def main(world):
        async def one(scope, seconds):
            async with scope:
                await scope.model_request(lambda: reply(seconds=seconds))

        first, second = await world.open(), await world.open()
        tasks = [asyncio.create_task(one(first, 5)), asyncio.create_task(one(second, 5))]
        await asyncio.sleep(1)
        report = await first.stop("operator")
        await asyncio.gather(*tasks)
        assert report.status == "cancelled"
        assert report.stop is not None
        assert report.stop.cause.kind == "operator"
        assert second.report.status == "completed"

    virtual(main)


def test_a_receipt_says_of_each_call_whether_it_saw_the_request():
    @tool(effect="read")
    async def watches(ctx: ToolContext) -> str:
        await ctx.sleep(60)
        return ""

    async def main(world):
        world.service.seconds = 2.0
        receipts = []
        async with await world.open() as scope:

            async def stop():
                await asyncio.sleep(1)
                scope.signal.request("user")
                receipts.append(await scope.request_stop())
                await asyncio.sleep(0.1)
                receipts.append(await scope.request_stop())

            stopping = asyncio.create_task(stop())
            await scope.run_calls(
                [call("write", "a", what="x"), call("watches", "b")], [*world.tools, watches]
            )
        await stopping
        seen = [{c.call_id: c.observed for c in receipt.children} for receipt in receipts]
        assert seen[0]["a"] is False
        assert seen[1] == {"a": False}
        assert receipts[0].recorded

    virtual(main)


def test_a_run_that_never_started_did_not_run():
    async def main(world):
        scope = await world.open()
        record = await world.store.take_over(scope.id)
        assert record.status == "failed"
        assert kinds(await world.report(scope.id)) == ["run.opened", "run.ended"]

    virtual(main)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 5.0])
def test_a_run_that_is_stopped_before_its_block_is_entered(seconds):
    async def main(world):
        scope = await world.open()
        asking = asyncio.create_task(scope.request_stop())
        await asyncio.sleep(seconds)
        entered = []
        async with scope:
            await asyncio.sleep(100)
            entered.append("it went on")
        assert (await asking).recorded
        assert entered == []
        assert scope.report.status == "cancelled"
        assert scope.report.breaches == ()
        assert world.clock.monotonic() < 6

    virtual(main)


def test_asked_and_ended_are_two_moments():
    async def main(world):
        world.service.seconds = 3.0
        scope = await world.open()

        async def body():
            async with scope:
                await scope.run_calls([call("write", what="x")], world.tools)

        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        receipt = await scope.request_stop()
        asked = world.clock.monotonic()
        assert receipt.recorded
        assert not task.done()
        record = await world.store.load(scope.id)
        assert record.status in ("cancel_requested", "cancelling")
        report = await scope.wait()
        assert world.clock.monotonic() - asked == pytest.approx(2.0)
        assert report.outcomes[0].status == "succeeded"
        await task

    virtual(main)


def test_a_deadline_is_a_stop_with_its_own_cause():
    async def main(world):
        async with await world.open(deadline=10) as scope:
            await scope.model_request(lambda: reply(seconds=60))
        assert scope.report.stop is not None
        assert scope.report.stop.cause.kind == "deadline"
        assert world.clock.monotonic() == pytest.approx(10)
        assert scope.report.status == "cancelled"

    virtual(main)


def test_what_remains_goes_down_to_the_tool():
    left = []

    @tool(effect="read", timeout=30)
    async def measure(ctx: ToolContext) -> str:
        left.append(ctx.remaining())
        return ""

    async def main(world):
        async with await world.open(deadline=60) as scope:
            await scope.run_calls([call("measure", "a")], [measure])
            await asyncio.sleep(50)
            await scope.run_calls([call("measure", "b")], [measure])
        assert left == [30, 10]

    virtual(main)


def test_a_parents_stop_reaches_its_child_runs():
    async def main(world):
        async with await world.open(deadline=60) as parent:
            after(1, lambda: parent.signal.request("user", words="enough"))
            async with await world.open(parent=parent, deadline=600) as child:
                assert child.signal.remaining() <= 60
                await child.model_request(lambda: reply(seconds=500))
            assert child.report.stop is not None
            assert child.report.stop.cause.kind == "parent"
            assert "enough" in (child.report.stop.cause.words or "")
            await parent.model_request(reply)
        assert parent.report.stop is not None
        assert parent.report.stop.cause.kind == "user"
        assert (await world.store.load(child.id)).parent == parent.id

    virtual(main)


def test_the_stop_of_a_run_around_passes_through():
    async def main(world):
        async with await world.open() as outer:
            outer.signal.request("user")
            async with await world.open() as inner:
                outer.signal.checkpoint("inside the inner one")
        assert inner.report.status == "cancelled"
        assert inner.report.stop is not None
        assert inner.report.stop.cause.kind == "parent"
        assert outer.report.status == "cancelled"

    virtual(main)


def test_a_raw_cancel_is_a_stop_and_goes_on_its_way():
    async def main(world):
        world.service.seconds = 2.0
        scope = await world.open()

        async def body():
            async with scope:
                await scope.run_calls([call("write", what="x")], world.tools)

        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scope.report.status in ("cancelled", "needs_reconciliation")
        assert scope.report.stop is not None
        assert scope.report.stop.cause.kind == "parent"
        assert scope.report.calls[0].recorded

    virtual(main)


def test_an_outer_cancel_scope_does_not_spin_or_force():
    async def main(world):
        world.service.seconds = 2.0
        with anyio.move_on_after(1) as outer:
            async with await world.open() as scope:
                await scope.run_calls([call("write", what="x")], world.tools)
        assert outer.cancelled_caught
        assert scope.report.outcomes[0].status == "succeeded"
        assert scope.report.stop is not None
        assert not scope.report.stop.forced

    virtual(main)


def test_a_timeout_around_one_batch_cuts_the_batch_and_not_the_run():
    async def main(world):
        async with await world.open() as scope:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await scope.run_calls([call("look", seconds=60)], world.tools)
            (outcome,) = await scope.run_calls([call("look", "c2")], world.tools)
            assert outcome.status == "succeeded"
        assert scope.report.status == "completed"
        assert [o.status for o in scope.report.outcomes] == ["stopped", "succeeded"]

    virtual(main)


def test_second_and_third_press_shorten_and_force():
    async def main(world):
        world.service.seconds = 1000.0
        times = {}
        for presses in (1, 2, 3):
            async with await world.open(stop=StopPolicy(grace=60)) as scope:
                started = world.clock.monotonic()
                for number in range(presses):
                    after(1 + number * 0.01, lambda s=scope: s.signal.request("user"))
                await scope.run_calls([call("write", what="x")], world.tools)
            times[presses] = world.clock.monotonic() - started
            assert scope.report.stop is not None
            assert scope.report.stop.presses == presses
            assert scope.report.stop.forced == (presses == 3)
            assert (await world.store.load(scope.id)).presses == presses
        assert times[1] == pytest.approx(61)
        assert times[2] == pytest.approx(1.51)
        assert times[3] == pytest.approx(1.02)

    virtual(main)


def test_a_tool_that_never_ends_cannot_hold_the_stop():
    @tool(effect="read")
    async def stubborn() -> str:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if release:
                    raise

    release = []

    async def main(world):
        async with await world.open(stop=StopPolicy(grace=1, verify_wait=1)) as scope:
            after(1, lambda: scope.signal.request("user"))
            await scope.run_calls([call("stubborn")], [stubborn])
        report = scope.report
        assert world.clock.monotonic() <= 1 + StopPolicy(grace=1, verify_wait=1).total
        assert report.outcomes[0].status == "unknown"
        assert any("stubborn" in what for what in report.unconfirmed)
        assert any("did not end" in what for what in report.breaches)
        assert report.stop is not None
        assert not report.stop.in_time
        release.append(True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.1)

    virtual(main)


def test_a_step_that_swallows_its_cancellation_is_caught():
    @tool(effect="read")
    async def greedy() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return "all the same"

    async def main(world):
        async with await world.open() as scope:
            after(1, lambda: scope.signal.request("user"))
            (outcome,) = await scope.run_calls([call("greedy")], [greedy])
        assert outcome.status == "succeeded"
        assert any("swallowed" in what for what in scope.report.breaches)
        assert "breach" in kinds(await world.report(scope.id))

    virtual(main)


def test_the_runs_own_code_that_goes_on_is_caught():
    async def main(world):
        knocked = []
        async with await world.open(stop=StopPolicy(grace=2)) as scope:
            scope.signal.request("user")
            while len(knocked) < 20:
                try:
                    await scope.model_request(reply)
                except (StopRequested, asyncio.CancelledError):
                    knocked.append(1)
        assert len(knocked) == 20
        assert any("goes on after the close" in what for what in scope.report.breaches)
        assert scope.report.requests == 0
        assert scope.report.status == "cancelled"

    virtual(main)


def test_the_runs_own_wait_is_ended_too():
    async def main(world):
        async with await world.open() as scope:
            after(1, lambda: scope.signal.request("user"))
            await asyncio.sleep(1000)
        assert world.clock.monotonic() == pytest.approx(1)
        assert scope.report.status == "cancelled"

    virtual(main)


def test_a_task_group_inside_is_left_without_an_error():
    async def main(world):
        async with await world.open() as scope:
            after(1, lambda: scope.signal.request("user"))
            async with asyncio.TaskGroup() as group:
                for name in ("a", "b"):
                    group.create_task(
                        scope.run_calls([call("look", name, seconds=60)], world.tools)
                    )
                group.create_task(scope.model_request(lambda: reply(seconds=60)))
        assert {o.status for o in scope.report.outcomes} == {"stopped"}

    virtual(main)


def test_an_error_of_the_runs_own_code_is_a_failure_and_goes_on():
    async def main(world):
        scope = await world.open()

        async def body():
            async with scope:
                await scope.run_calls([call("look")], world.tools)
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError):
            await body()
        assert scope.report.status == "failed"
        assert scope.report.failure == "ZeroDivisionError: mine"
        assert scope.report.stop is None

    virtual(main)


def test_clean_up_runs_and_may_not_go_on_with_the_task():
    async def main(world):
        said = []

        async def cleanup():
            (outcome,) = await scope.run_calls([call("tidy", "t")], world.tools)
            said.append(outcome.status)
            for attempt in (
                scope.run_calls([call("look")], world.tools),
                scope.run_calls([call("write", what="x")], world.tools),
            ):
                with pytest.raises(CleanupOnly):
                    await attempt
            with pytest.raises(StopRequested):
                await scope.model_request(reply)

        async with await world.open() as scope:
            scope.on_cleanup(cleanup)
            after(1, lambda: scope.signal.request("user"))
            await scope.model_request(lambda: reply(seconds=60))
        assert said == ["succeeded"]
        assert world.entered == ["tidy"]
        assert scope.report.status == "cancelled"

    virtual(main)


def test_clean_up_is_bounded_and_cancelled_only_there():
    async def main(world):
        saved = []

        async def quick():
            await asyncio.sleep(1)
            saved.append("quick")

        async def slow():
            await asyncio.sleep(1000)
            saved.append("slow")

        async def broken():
            raise OSError("no space")

        async with await world.open(stop=StopPolicy(grace=2)) as scope:
            for cleanup in (quick, slow, broken):
                scope.on_cleanup(cleanup)
            scope.signal.request("user")
            await scope.model_request(reply)
        assert saved == ["quick"]
        assert world.clock.monotonic() <= StopPolicy(grace=2).total
        assert any("no space" in what for what in scope.report.unconfirmed)

    virtual(main)


def test_the_run_is_cancelling_while_clean_up_is_at_work():
    async def main(world):
        async def cleanup():
            await asyncio.sleep(1)
            record = await world.store.load(scope.id)
            seen.append(record.status)
            assert record.user_message == "Finishing safe shutdown"

        seen = []
        async with await world.open() as scope:
            scope.on_cleanup(cleanup)
            scope.signal.request("user")
            await scope.model_request(reply)
        assert seen == ["cancelling"]

    virtual(main)


def test_the_five_facts_of_a_cancel_are_five_events_in_order():
    async def main(world):
        async with await world.open() as scope:
            after(1, lambda: scope.signal.request("user", actor="ann", words="enough"))
            await scope.run_calls([call("look", seconds=60)], world.tools)
        events = await world.report(scope.id)
        assert kinds(events) == [
            "run.opened",
            "run.running",
            "call.intended",
            "run.cancel_requested",
            "run.cancel_observed",
            "run.cancelling",
            "call.settled",
            "run.ended",
        ]
        assert events[3].data["actor"] == "ann"
        assert scope.report.stop is not None
        assert [phase for phase, _ in scope.report.stop.phases] == [
            "close",
            "record",
            "tell",
            "settle",
            "account",
            "complete",
            "end",
        ]

    virtual(main)


def test_looking_away_is_no_stop():
    async def main(world):
        scope = await world.open()
        seen, again = [], []

        async def watch():
            async for event in world.store.follow(scope.id):
                seen.append(event)
                if event.kind == "request.started":
                    break

        async def come_back():
            await asyncio.sleep(2)
            coming = world.store.follow(scope.id, after=seen[-1].seq)
            again.extend([event async for event in coming])

        watchers = [asyncio.create_task(watch()), asyncio.create_task(come_back())]
        async with scope:
            await scope.model_request(lambda: reply(seconds=1))
            assert seen[-1].kind == "request.started"
            assert (await world.store.load(scope.id)).status == "running"
            await scope.run_calls([call("look", seconds=5)], world.tools)
        await asyncio.gather(*watchers)
        assert scope.report.status == "completed"
        assert (*seen, *again) == await world.store.events(scope.id)

    virtual(main)


def test_approvals():
    async def main(world):
        @tool(effect="write", status=None, approve=lambda arguments: arguments["n"] > 0)
        async def risky(ctx: ToolContext, n: int) -> str:
            await ctx.dispatched()
            return f"did {n}"

        async with await world.open() as scope:

            async def decide():
                assert [request.call_id for request in scope.approvals] == ["a", "b", "c"]
                scope.approve("a", by="ann")
                scope.deny("b", "not this one", by="ann")
                scope.approve("c", by="ann")
                with pytest.raises(ApprovalNotPending):
                    scope.approve("b", by="ann")

            after(1, decide)
            calls = [call("risky", name, n=n) for n, name in enumerate("zabc")]
            outcomes = await scope.run_calls(calls, [risky])
            assert [o.status for o in outcomes] == ["succeeded", "succeeded", "denied", "succeeded"]
            assert outcomes[2].reason == "not this one"
            after(1, lambda: scope.signal.request("user"))
            (withdrawn,) = await scope.run_calls([call("risky", "d", n=9)], [risky])
            assert isinstance(withdrawn, NotStarted)
            assert "approved" in (withdrawn.reason or "")
            with pytest.raises(ApprovalNotPending):
                scope.approve("d", by="ann")
        found = kinds(await world.report(scope.id))
        assert found.count("approval.requested") == 4
        assert found.count("approval.withdrawn") == 1
        assert "approval.denied" in found

    virtual(main)


def test_steers_end_as_applied_returned_or_unknown():
    async def main(world):
        async with await world.open() as scope:
            await scope.steer("first")
            await scope.steer({"role": "user", "content": [{"type": "text", "text": "second"}]})
            assert len(scope.steers_due()) == 2
            assert scope.steers_due() == []
            await scope.model_request(reply)
            await scope.steer("third")
            scope.steers_due()
            after(1, lambda: scope.signal.request("user"))
            with pytest.raises(StopRequested):
                await scope.model_request(lambda: reply(seconds=60))
            with pytest.raises(StopRequested):
                await scope.steer("fifth")
            raise StopRequested(cause=scope.signal.cause)
        statuses = [steer.status for steer in scope.report.steers]
        assert statuses == ["applied", "applied", "unknown"]

    virtual(main)


def test_a_steer_that_was_not_sent_goes_back_or_waits():
    async def main(world):
        for policy, expected in (("drop", "returned"), ("keep", "queued")):
            async with await world.open(stop=StopPolicy(queued=policy)) as scope:
                await scope.steer("later")
                scope.signal.request("user")
                await scope.model_request(reply)
            assert scope.report.steers[0].status == expected
        async with await world.store.resume_run(scope.id) as second:
            assert second.steers_due() == [{"role": "user", "content": "later"}]
            await second.model_request(reply)
        assert second.report.steers[0].status == "applied"

    virtual(main)


def test_partial_text_is_never_final():
    async def main(world):
        async with await world.open() as scope:
            first = scope.text()
            first.append("all of it")
            done = first.finish()
            scope.shown(done)
            assert final(done).text == "all of it"
            with pytest.raises(PartialTextError):
                first.append("more")
            second = scope.text()
            second.append("half")
            scope.shown(second.partial)
            scope.signal.request("user")
            with pytest.raises(PartialTextError):
                second.finish()
            with pytest.raises(PartialTextError):
                final(second.partial)
            assert not isinstance(second.partial, str)
        assert scope.report.partial_text == (PartialText("text_2", "half"),)
        assert scope.report.final_text is None
        async with await world.open() as scope:
            text = scope.text()
            text.append("done")
            text.finish()
        assert scope.report.final_text == FinalText("text_3", "done")

    virtual(main)


def test_what_a_write_raises_after_its_commit_point_leaves_it_unknown():
    @tool(effect="write", status=None)
    async def refuses(ctx: ToolContext, sure: bool) -> str:
        await ctx.dispatched()
        raise ToolFailed("the service said no", no_effects=sure)

    @tool(effect="write", status=None)
    async def early(ctx: ToolContext) -> str:
        raise ValueError("before anything")

    @tool(effect="write", status=None, timeout=1)
    async def slow(ctx: ToolContext) -> str:
        await ctx.dispatched()
        await asyncio.sleep(60)
        return ""

    @tool(effect="read", timeout=1)
    async def slow_read() -> str:
        await asyncio.sleep(60)
        return ""

    async def main(world):
        world.service.loses_reply = True
        async with await world.open() as scope:
            outcomes = await scope.run_calls(
                [
                    call("write", "a", what="x"),
                    call("refuses", "b", sure=True),
                    call("refuses", "c", sure=False),
                    call("early", "d"),
                    call("slow", "e"),
                    call("slow_read", "f"),
                ],
                [*world.tools, refuses, early, slow, slow_read],
            )
        facts = [(outcome.status, outcome.effects) for outcome in outcomes]
        assert facts == [
            ("unknown", "unverified"),
            ("failed", "confirmed_absent"),
            ("failed", "unverified"),
            ("failed", "none"),
            ("unknown", "unverified"),
            ("failed", "none"),
        ]
        assert len(scope.report.to_reconcile) == 3
        assert scope.report.status == "needs_reconciliation"
        assert scope.report.user_message.startswith("The local work has ended")

    virtual(main)


def test_calls_that_cannot_start():
    async def main(world):
        async with await world.open() as scope:
            outcomes = await scope.run_calls(
                [
                    call("nothing", "a"),
                    ToolCall("b", "write", '{"what": "x'),
                    call("write", "c", which="x"),
                    call("look", "d"),
                    call("look", "d"),
                ],
                world.tools,
            )
        assert [outcome.status for outcome in outcomes] == ["not_started"] * 3 + ["succeeded"] * 2
        assert len({outcome.key for outcome in outcomes}) == 5
        assert [entry.call.occurrence for entry in scope.report.calls] == [1, 1, 1, 1, 2]

    virtual(main)


def test_the_own_code_cannot_wait_for_its_own_end():
    async def main(world):
        async with await world.open() as scope:
            with pytest.raises(InsideTheRun):
                await scope.stop()
            with pytest.raises(InsideTheRun):
                await scope.wait()
            with pytest.raises(InsideTheRun):
                _ = scope.report
        assert scope.report.stop is None
        receipt = await scope.request_stop()
        assert not receipt.first
        assert receipt.status == "completed"
        assert await scope.stop() is scope.report

    virtual(main)


def test_cancelling_the_wait_for_a_stop_never_cancels_the_stop():
    async def main(world):
        world.service.seconds = 3.0
        scope = await world.open()

        async def body():
            async with scope:
                await scope.run_calls([call("write", what="x")], world.tools)

        task = asyncio.create_task(body())
        await asyncio.sleep(1)
        stopping = asyncio.create_task(scope.stop())
        await asyncio.sleep(0.1)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await task
        assert scope.report.status == "cancelled"
        assert scope.report.outcomes[0].status == "succeeded"

    virtual(main)


def test_the_history_is_completed_with_the_evidence():
    async def main(world):
        def complete(messages, evidence):
            assert {name: fact.status for name, fact in evidence.items()} == {"c1": "stopped"}
            return SendableHistory("anthropic.messages", (*messages, "result"), True)

        async with await world.open(complete=complete) as scope:
            await scope.save(["call"])
            after(1, lambda: scope.signal.request("user"))
            await scope.run_calls([call("look", seconds=60)], world.tools)
        assert scope.report.history is not None
        assert scope.report.history.items == ("call", "result")

        def broken(_messages, _evidence):
            raise KeyError("mine")

        async with await world.open(complete=broken) as scope:
            pass
        assert scope.report.history is None
        assert any("history" in what for what in scope.report.unconfirmed)

    virtual(main)


def test_a_detached_tool_may_be_kept_at_work():
    @tool(effect="detached", status=None)
    async def background(ctx: ToolContext) -> str:
        await ctx.dispatched()
        await asyncio.sleep(30)
        return "finished later"

    async def main(world):
        async with await world.open(stop=StopPolicy(background="keep")) as scope:
            after(1, lambda: scope.signal.request("user"))
            batch = asyncio.create_task(scope.run_calls([call("background")], [background]))
            await asyncio.sleep(1000)
        assert world.clock.monotonic() < 2
        assert scope.report.outcomes[0].status == "unknown"
        assert scope.report.status == "needs_reconciliation"
        await asyncio.sleep(60)
        (operation,) = await world.store.operations(scope.id)
        assert operation.outcome is not None
        assert operation.outcome.output == "finished later"
        assert (await world.store.load(scope.id)).status == "cancelled"
        await batch

    virtual(main)


def test_the_service_is_asked_to_cancel_what_was_dispatched():
    async def main(world):
        service = world.service
        service.seconds = 2.0

        @tool(effect="write", status=service.status, cancel=service.cancel)
        async def job(ctx: ToolContext) -> str:
            await ctx.dispatched()
            return await service.write(ctx.key)

        async with await world.open() as scope:
            after(1, lambda: scope.signal.request("user"))
            (outcome,) = await scope.run_calls([call("job")], [job])
        assert service.cancelled == [outcome.key]
        assert outcome.status == "succeeded"
        assert "the service was asked to cancel it" in outcome.evidence

    virtual(main)


def test_without_a_record_no_tool_starts_and_the_report_says_what_is_missing():
    async def main(world):
        async with await world.open() as scope:
            world.faults.disk_full()
            (outcome,) = await scope.run_calls([call("write", what="x")], world.tools)
            assert outcome.status == "not_started"
            assert outcome.cause == "not_recorded"
            with pytest.raises(NotRecorded):
                await scope.model_request(reply)
            world.faults.clear()
            (outcome,) = await scope.run_calls([call("look", "c2")], world.tools)
            assert outcome.status == "succeeded"
            world.pauses.at("before_record", world.faults.disk_full, visit=2)
            (outcome,) = await scope.run_calls([call("look", "c3")], world.tools)
            assert outcome.status == "succeeded"
            receipt = await scope.request_stop()
            assert not receipt.recorded
        report = scope.report
        assert report.status == "running"
        assert "the end of the run" in report.not_persisted
        assert "the outcome of call c3 (look)" in report.not_persisted
        assert "the request to stop" in report.not_persisted
        assert report.stop is not None
        assert not report.stop.recorded
        assert world.entered == ["look", "look"]
        assert not report.calls[2].recorded
        world.faults.clear()

    virtual(main)


def test_a_thread_cannot_be_ended_and_the_report_says_so():
    release = []

    @tool(effect="write", status=None)
    def blocking(ctx: ThreadContext, stubborn: bool) -> str:
        ctx.dispatched()
        while not release:
            if not stubborn:
                ctx.sleep(0.01)
            time.sleep(0.001)
        return "late"

    from stopkit.store import MemoryStore

    async def main():
        store = MemoryStore()
        policy = StopPolicy(grace=0.1, verify_wait=0.05, output_wait=0.05)
        async with await store.open_run(session="s1", stop=policy) as scope:
            after(0.1, lambda: scope.signal.request("user"))
            outcomes = await scope.run_calls(
                [call("blocking", "a", stubborn=False), call("blocking", "b", stubborn=True)],
                [blocking],
            )
        assert [outcome.status for outcome in outcomes] == ["stopped", "unknown"]
        assert any("thread" in what for what in scope.report.unconfirmed)
        assert "it never looked at its signal" in (outcomes[1].reason or "")
        release.append(True)
        for _ in range(200):
            await asyncio.sleep(0.01)
            late = [e for e in await store.events(scope.id) if e.kind == "call.late"]
            if late:
                break
        assert late[0].data["status"] == "succeeded"
        operations = {op.call_id: op for op in await store.operations(scope.id)}
        assert operations["b"].outcome is not None
        assert operations["b"].outcome.output == "late"
        store.close()

    asyncio.run(main())


def test_a_worker_that_is_broken_on_purpose_is_counted(monkeypatch):
    """The two figures that must be zero are not, once the door is taken out of its frame."""

    async def no_check(_self, _where):
        return None

    def no_look(tx, run, at):
        tx.event(run, "request.started", at, {"request": 99})
        return 99

    async def main(world):
        async with await world.open(stop=StopPolicy(grace=1)) as scope:
            text = scope.text()
            text.append("half of it")
            text.flush()
            scope.signal.request("user")
            await scope.request_stop()
            monkeypatch.setattr("stopkit.scope.RunScope._check", no_check)
            monkeypatch.setattr("stopkit.store.ledger.begin_request", no_look)
            await scope.model_request(reply)
            scope.shown(FinalText(text.id, text.partial.text))
        monkeypatch.undo()
        events = await world.store.events(scope.id)
        figures = metrics(events)
        assert figures.started_after_request == 1
        assert figures.partial_shown_as_final == 1
        assert {found.code for found in check_events(events)} == {
            "start_after_request",
            "partial_as_final",
        }
        return "broken"

    assert virtual(main, checked=False) == "broken"
