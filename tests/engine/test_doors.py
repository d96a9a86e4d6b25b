"""The ways in and out of a run: entering, approving, cleaning up, and what is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engine.world import call, kinds, virtual
from tenacity import wait_none

from stopkit.errors import ApprovalNotPending, DecisionRefused
from stopkit.retry import retry
from stopkit.signal import StopSignal
from stopkit.store import MemoryStore, SqlStore
from stopkit.tool import tool

NAN = float("nan")


@tool(effect="write", status=None, approve=True)
async def sensitive() -> str:
    return "done"


async def asked(scope):
    """Run the call that needs an approval until it asks."""
    task = asyncio.create_task(scope.run_calls([call("sensitive")], [sensitive]))
    while not scope.approvals:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return task


def test_a_cancelled_entry_leaves_no_run_behind(tmp_path):
    """Its record was being written as running, and the block is never entered."""
    writing, go_on, armed = threading.Event(), threading.Event(), threading.Event()

    def fault(point):
        if point == "commit" and armed.is_set():
            armed.clear()
            writing.set()
            go_on.wait(10)

    async def main():
        store = SqlStore(f"sqlite:///{tmp_path}/s.db", fault=fault)
        try:
            scope = await store.open_run(session="s1")

            async def body():
                async with scope:
                    raise AssertionError

            armed.set()
            task = asyncio.create_task(body())
            await asyncio.to_thread(writing.wait, 10)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.wait({task})
            assert task.cancelled()
            return scope.report, await store.load(scope.id)
        finally:
            go_on.set()
            store.close()

    report, record = asyncio.run(main())
    assert report.status == record.status == "cancelled"
    assert record.cause.kind == "parent"


@pytest.mark.parametrize("yes", [True, False])
def test_a_word_from_another_thread_wakes_the_call(yes):
    async def main():
        store = MemoryStore()
        try:
            async with await store.open_run(session="s1") as scope:
                task = await asked(scope)
                refused = []

                def say():
                    if yes:
                        scope.approve("c1", by="ann")
                    else:
                        scope.deny("c1", "no", by="ann")
                    try:
                        scope.approve("c1", by="bob")
                    except ApprovalNotPending as error:
                        refused.append(error)

                # Nothing else wakes this loop.
                thread = threading.Thread(target=say)
                thread.start()
                (outcome,) = await asyncio.wait_for(task, 10)
                thread.join()
                assert len(refused) == 1
                return outcome
        finally:
            store.close()

    assert asyncio.run(main()).status == ("succeeded" if yes else "denied")


def test_an_approval_whose_caller_is_gone_is_withdrawn():
    async def main(world):
        async with await world.open() as scope:
            task = await asked(scope)
            task.cancel()
            await asyncio.wait({task})
            assert scope.approvals == ()
            with pytest.raises(ApprovalNotPending):
                scope.approve("c1", by="ann")
        assert scope.report.calls[0].outcome.status == "not_started"
        found = kinds(await world.report(scope.id))
        assert found.count("approval.withdrawn") == 1
        assert "approval.approved" not in found

    virtual(main)


def test_an_approval_names_somebody():
    async def main(world):
        async with await world.open() as scope:
            task = await asked(scope)
            with pytest.raises(DecisionRefused):
                scope.approve("c1", by=" ")
            with pytest.raises(DecisionRefused):
                scope.deny("c1", "no", by="")
            scope.approve("c1", by="ann")
            await task

    virtual(main)


def test_a_denial_right_before_a_stop_stays_a_denial():
    async def main(world):
        async with await world.open() as scope:
            task = await asked(scope)
            scope.deny("c1", "no", by="ann")
            # The stop comes to this call before the call itself has woken.
            scope._ending._tell_call(scope._work.calls[0])
            await asyncio.wait({task})
        return scope.report.calls[0].outcome

    outcome = virtual(main)
    assert (outcome.status, outcome.by) == ("denied", "ann")


def test_clean_up_of_one_run_is_ordinary_code_of_another():
    async def main(world):
        ran = []

        async def audit():
            async with await world.open() as other:
                await other.model_request(lambda: asyncio.sleep(0))
                ran.extend(await other.run_calls([call("look")], world.tools))

        async with await world.open() as scope:
            scope.on_cleanup(audit)
        assert scope.report.unconfirmed == ()
        assert [outcome.status for outcome in ran] == ["succeeded"]

    virtual(main)


def test_no_clean_up_starts_after_the_account():
    async def main(world):
        late = []

        async def stubborn():
            while not scope._work.accounted:
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    continue
            late.extend(await scope.run_calls([call("tidy")], world.tools))

        async with await world.open() as scope:
            scope.on_cleanup(stubborn)
            await scope.request_stop()
        # The clean-up function itself goes on for a few turns.
        for _ in range(50):
            await asyncio.sleep(0.1)
        assert world.entered == []
        assert [outcome.status for outcome in late] == ["not_started"]

    virtual(main)


def test_two_signals_at_one_deadline_do_not_wait_for_each_other():
    """Each thread makes one signal's request, and its callback wants the other signal's lock."""
    inside = threading.Barrier(2, timeout=10)

    def touch(other):
        inside.wait()
        other.child().close()

    a, b = StopSignal(deadline=0), StopSignal(deadline=0)
    a.on_request(lambda: touch(b))
    b.on_request(lambda: touch(a))
    threads = [
        threading.Thread(target=lambda one=one: one.requested, daemon=True) for one in (a, b)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert (a.presses, b.presses) == (1, 1)


def test_a_retry_passes_a_cancellation_on():
    async def main(_world):
        tries = []

        async def forever():
            tries.append(1)
            await asyncio.sleep(1000)

        task = asyncio.create_task(
            retry(
                forever, signal=StopSignal(), effect="read", on=lambda error: True, wait=wait_none()
            )
        )
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert tries == [1]

    virtual(main)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    async def main(world):
        async with await world.open() as scope:
            with pytest.raises(ValueError, match="limit"):
                await scope.run_calls([call("look")], world.tools, limit=limit)
        assert world.entered == []

    virtual(main)


def test_a_deadline_that_never_comes_is_refused():
    async def main(world):
        with pytest.raises(ValueError, match="NaN"):
            await world.open(deadline=NAN)
        assert await world.store.runs("s1") == ()

    virtual(main)
    with pytest.raises(ValueError, match="NaN"):
        StopSignal(deadline=NAN)
    with pytest.raises(ValueError, match="NaN"):
        StopSignal().child(deadline=NAN)
