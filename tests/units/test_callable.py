"""Functions as units: what can be cancelled, what cannot, and what comes late."""

from __future__ import annotations

import asyncio
import threading

import pytest
from units.test_process import run

from stopkit.errors import ToolFailed
from stopkit.outcome import Failed, Stopped, Succeeded, Unknown
from stopkit.stop import StopPolicy
from stopkit.testing import run_virtual
from stopkit.units import CallableUnit
from stopkit.units.errors import UnitState

POLICY = StopPolicy(grace=2.0, verify_wait=1.0)


def virtual(main):
    """Run in no time, on a clock that jumps."""
    return run_virtual(main)


def test_a_coroutine_that_returns():
    async def work(a, *, b):
        return {"sum": a + b}

    async def main(clock):
        async with CallableUnit(work, 1, kwargs={"b": 2}, key="op_1", clock=clock) as unit:
            return await unit.wait()

    report = virtual(main)
    assert isinstance(report.outcome, Succeeded)
    assert (report.outcome.output, report.outcome.key) == ('{"sum":3}', "op_1")
    assert report.call.still_running is False
    assert report.process is None


@pytest.mark.parametrize(
    ("error", "effects"),
    [
        (ValueError("bad"), "unverified"),
        (ToolFailed("bad"), "unverified"),
        (ToolFailed("bad", no_effects=True), "confirmed_absent"),
    ],
)
def test_a_function_that_raises(error, effects):
    async def work():
        raise error

    async def main(clock):
        async with CallableUnit(work, clock=clock) as unit:
            return await unit.wait()

    outcome = virtual(main).outcome
    assert isinstance(outcome, Failed)
    assert outcome.effects == effects
    assert "bad" in outcome.reason


def test_a_stop_cancels_a_coroutine_at_once_and_lets_it_save():
    saved = []

    async def work():
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1.5)
            saved.append("yes")

    async def main(clock):
        async with CallableUnit(work, clock=clock, stop=POLICY) as unit:
            await asyncio.sleep(1)
            report = await unit.stop()
            return report, clock.monotonic()

    report, _ = virtual(main)
    assert saved == ["yes"]
    assert isinstance(report.outcome, Stopped)
    assert report.outcome.after == pytest.approx(2.5)
    assert report.call.cancelled


def test_a_result_after_the_cancel_is_kept_as_what_it_is():
    async def work():
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "done all the same"

    async def main(clock):
        async with CallableUnit(work, clock=clock) as unit:
            await asyncio.sleep(1)
            return await unit.stop()

    outcome = virtual(main).outcome
    assert isinstance(outcome, Succeeded)
    assert outcome.cause == "user"
    assert outcome.evidence == ("it returned after it was told to stop",)


def test_a_coroutine_that_will_not_end_is_reported_and_its_late_result_kept():
    told = []

    async def work():
        until = asyncio.get_running_loop().time() + 60
        while asyncio.get_running_loop().time() < until:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        return "at last"

    async def main(clock):
        unit = CallableUnit(work, clock=clock, stop=POLICY, on_late=told.append)
        await unit.start()
        await asyncio.sleep(1)
        report = await unit.stop()
        assert clock.monotonic() - unit._began == pytest.approx(4.0)
        await unit._work
        await asyncio.sleep(0)
        return report, unit.report

    report, later = virtual(main)
    assert isinstance(report.outcome, Unknown)
    assert report.call.still_running
    assert report.unconfirmed
    assert report.late == ()
    (late,) = later.late
    assert isinstance(late.outcome, Succeeded)
    assert late.outcome.output == "at last"
    assert told == [later]


def test_a_thread_cannot_be_ended_and_is_never_said_to_be():
    release, entered = threading.Event(), threading.Event()

    def work():
        entered.set()
        release.wait(60)
        return "written"

    async def main():
        policy = StopPolicy(grace=0.05, verify_wait=0.05)
        late = asyncio.Event()
        unit = CallableUnit(work, stop=policy, on_late=lambda _report: late.set())
        async with unit:
            await asyncio.to_thread(entered.wait)
            report = await unit.stop()
        release.set()
        await late.wait()
        return report, unit.report

    report, later = run(main)
    assert isinstance(report.outcome, Unknown)
    assert "thread" in report.outcome.reason
    assert report.call.in_thread
    assert report.call.still_running
    assert not report.call.cancelled
    assert later.late[0].outcome.output == "written"


def test_a_thread_that_looks_at_its_signal_ends_itself():
    entered = threading.Event()

    async def main():
        def work():
            entered.set()
            unit.signal.sleep_in_thread(60)

        unit = CallableUnit(work)
        async with unit:
            await asyncio.to_thread(entered.wait)
            return await unit.stop()

    outcome = run(main).outcome
    assert isinstance(outcome, Stopped)
    assert outcome.evidence == ("it left at the checkpoint 'sleep'",)


def test_a_thread_that_returns_within_the_grace_keeps_its_result():
    entered = threading.Event()

    async def main():
        def work():
            entered.set()
            unit.signal.as_event().wait(60)
            return "finished"

        unit = CallableUnit(work)
        async with unit:
            await asyncio.to_thread(entered.wait)
            return await unit.stop()

    assert run(main).outcome.output == "finished"


def test_a_unit_has_no_report_before_its_end():
    async def main(clock):
        unit = CallableUnit(asyncio.sleep, 5, clock=clock)
        with pytest.raises(UnitState):
            await unit.wait()
        with pytest.raises(UnitState):
            unit.request_stop()
        async with unit:
            with pytest.raises(UnitState):
                unit.report  # noqa: B018 - the look is what raises
            return await unit.wait()

    assert virtual(main).outcome.status == "succeeded"
