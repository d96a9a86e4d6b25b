"""StopSignal: asked once, from anywhere, seen everywhere."""

from __future__ import annotations

import asyncio
import logging
import os
import signal as os_signal
import threading
import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit.errors import StopRequested
from stopkit.signal import StopSignal, stop_on_signals


class ManualClock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def wall(self):
        return self.now + 1e9


def test_the_first_cause_stays():
    signal = StopSignal()
    assert not signal.requested
    assert signal.request("user", actor="ann", words="enough")
    assert not signal.request("operator")
    assert signal.cause is not None
    assert (signal.cause.kind, signal.cause.actor, signal.cause.words) == ("user", "ann", "enough")
    assert signal.presses == 2


def test_a_checkpoint_raises_with_cause_and_place():
    signal = StopSignal(run="r1")
    signal.checkpoint("early")
    signal.request("policy")
    with pytest.raises(StopRequested) as caught:
        signal.checkpoint("before the write")
    assert caught.value.where == "before the write"
    assert caught.value.cause is signal.cause
    assert caught.value.correlation_id == "r1"


def test_children_hear_of_it_and_may_be_asked_alone():
    signal = StopSignal()
    first, second = signal.child(), signal.child()
    grandchild = second.child()
    first.request("policy")
    assert not signal.requested
    assert not grandchild.requested
    signal.request("user")
    assert grandchild.cause is signal.cause
    assert first.cause is not None
    assert first.cause.kind == "policy"
    assert signal.child().cause is signal.cause


def test_a_closed_child_is_let_go():
    signal = StopSignal()
    child = signal.child()
    child.close()
    signal.request()
    assert not child.requested


def test_callbacks_are_called_once_and_a_bad_one_stops_nobody(caplog):
    signal, heard = StopSignal(), []

    def bad():
        raise RuntimeError("mine")

    signal.on_request(bad)
    signal.on_request(lambda: heard.append("a"))
    signal.on_request(lambda: heard.append("gone"))()
    with caplog.at_level(logging.ERROR, logger="stopkit"):
        signal.request()
        signal.request()
    signal.on_request(lambda: heard.append("late"))
    assert heard == ["a", "late"]
    assert "callback" in caplog.text


def test_presses_are_told_each_time():
    signal, heard = StopSignal(), []
    unsubscribe = signal.on_press(lambda: heard.append(signal.presses))
    signal.request()
    signal.request()
    unsubscribe()
    signal.request()
    assert heard == [1, 2]


@given(st.lists(st.floats(0, 100) | st.none(), max_size=5), st.floats(0, 10))
def test_what_remains_only_shrinks_on_the_way_down(deadlines, passed):
    clock = ManualClock()
    signal = StopSignal(deadline=60, clock=clock)
    clock.now += passed
    for deadline in deadlines:
        child = signal.child(deadline=deadline)
        assert child.remaining() <= signal.remaining()
        signal = child
        clock.now += 0.5
        assert signal.remaining() <= max(0.0, 60 - passed)


def test_a_deadline_is_a_cause_of_its_own():
    clock = ManualClock()
    signal = StopSignal(deadline=60, clock=clock)
    clock.now += 50
    assert signal.child(deadline=60).remaining() == 10
    clock.now += 10
    with pytest.raises(StopRequested):
        signal.checkpoint()
    assert signal.cause is not None
    assert signal.cause.kind == "deadline"
    assert StopSignal().remaining() == float("inf")


def test_sleep_and_wait_end_at_the_request():
    async def main():
        signal = StopSignal()
        await signal.sleep(0)
        sleeper = asyncio.create_task(signal.sleep(60))
        waiter = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        started = time.monotonic()
        signal.request()
        with pytest.raises(StopRequested):
            await sleeper
        assert (await waiter).kind == "user"
        assert time.monotonic() - started < 0.05
        with pytest.raises(StopRequested):
            await signal.sleep(0)

    asyncio.run(main())


def test_sleep_ends_at_the_deadline():
    async def main():
        signal = StopSignal(deadline=0.01)
        with pytest.raises(StopRequested) as caught:
            await signal.sleep(60)
        assert caught.value.cause is not None
        assert caught.value.cause.kind == "deadline"
        assert (await StopSignal(deadline=0.0).wait()).kind == "deadline"

    asyncio.run(main())


def test_a_cancelled_wait_leaves_nothing_behind():
    async def main():
        signal = StopSignal()
        waiter = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert not signal._callbacks

    asyncio.run(main())


def test_another_thread_asks():
    async def main():
        signal = StopSignal()
        thread = threading.Thread(target=signal.request)
        waiter = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        thread.start()
        await waiter
        thread.join()

    asyncio.run(main())


def test_a_worker_thread_sleeps():
    signal, ended = StopSignal(), []

    def work():
        signal.sleep_in_thread(0)
        try:
            signal.sleep_in_thread(60)
        except StopRequested:
            ended.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    signal.request()
    thread.join(5)
    assert ended == ["stopped"]


def test_bridges_to_tasks_scopes_and_events():
    async def main():
        signal = StopSignal()
        task = asyncio.create_task(asyncio.sleep(60))
        signal.cancel_task(task)
        event = signal.as_event()
        assert signal.as_event() is event
        asyncio.get_running_loop().call_soon(signal.request)
        with anyio.CancelScope() as scope:
            signal.cancel_scope(scope)
            await asyncio.sleep(60)
        assert scope.cancelled_caught
        assert event.is_set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_closed_loop_has_nothing_to_hear():
    async def main():
        signal.cancel_task(asyncio.create_task(asyncio.sleep(0)))

    signal = StopSignal()
    asyncio.run(main())
    assert signal.request()


def test_signals_of_the_process_are_presses():
    signal = StopSignal()
    before = os_signal.getsignal(os_signal.SIGTERM)
    with stop_on_signals(signal):
        os.kill(os.getpid(), os_signal.SIGTERM)
        os.kill(os.getpid(), os_signal.SIGINT)
    assert os_signal.getsignal(os_signal.SIGTERM) is before
    assert signal.cause is not None
    assert signal.cause.kind == "shutdown"
    assert signal.cause.words == "SIGTERM"
    assert signal.presses == 2


def test_a_request_inside_a_request_counts_and_does_not_hang():
    signal = StopSignal()
    signal.on_request(signal.request)
    assert signal.request()
    assert signal.presses == 2
