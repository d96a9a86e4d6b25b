"""After a crash: nothing of a unit is left, every call has one outcome, and nothing is made up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest
from units.conftest import HERE, Person
from units.test_process import marked_env, run
from units.truth import alive, clean, marked, survivors, until

from stopkit.outcome import Stopped, Unknown
from stopkit.run import ENDED
from stopkit.store import MemoryStore, SqlStore
from stopkit.testing import check_events
from stopkit.units import ProcessUnit, StoreRecords, recover, stop_detached
from stopkit.units.handle import UnitHandle
from stopkit.units.record import insert_unit, load_unit, load_units
from stopkit.units.recover import end_leftovers
from stopkit.units.testing import FakeKernel

POINTS = [
    ("before_model_request", 1, False),
    ("after_model_request", 1, False),
    ("before_enqueue", 2, False),
    ("before_start", 2, False),
    ("after_intend", 2, False),
    ("before_dispatch", 2, False),
    ("after_dispatch", 2, False),
    ("before_record", 1, False),
    ("after_record", 1, False),
    ("unit_intended", 1, False),
    ("unit_intended", 2, False),
    ("unit_started", 1, False),
    ("unit_started", 2, False),
    ("unit_running", 1, False),
    ("unit_ending", 1, False),
    ("unit_ended", 1, False),
    ("unit_ending", 2, True),
    ("unit_ended", 2, True),
    ("in_cleanup", 1, True),
    ("before_end", 1, True),
]


@pytest.fixture(scope="module")
def worker():
    me = Person("me", os.geteuid(), sys.executable)
    process = subprocess.Popen(
        [sys.executable, "-B", str(HERE / "unit_worker.py")],
        env=me.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()


@pytest.fixture(scope="module")
def crashes(worker, tmp_path_factory):
    """Every crash, one after the other; what a recovery right after each found."""
    return [crash(worker, tmp_path_factory.mktemp("crash"), *point) for point in POINTS]


def crash(worker, directory, point, visit, stops, beast="env_scrubber"):
    mark = uuid.uuid4().hex
    url = f"sqlite:///{directory}/runs.db"
    task = {
        "point": point,
        "visit": visit,
        "stops": stops,
        "url": url,
        "mark": mark[::-1],
        "ready": str(directory / "ready"),
        "beast": beast,
    }
    worker.stdin.write(json.dumps(task) + "\n")
    worker.stdin.flush()
    status = int(worker.stdout.readline())

    async def look():
        store = SqlStore(url)
        try:
            recovery = await recover(store)
            (record,) = await store.runs("s1")
            if record.status not in ENDED:
                # No unit of it was at work: its worker was lost all the same.
                record = await store.take_over(record.id)
            again = await recover(store)
            operations = await store.operations(record.id)
            events = await store.events(record.id)
            return recovery, again, record, operations, events
        finally:
            store.close()

    try:
        found = asyncio.run(look())
        return point, status, survivors(mark, within=2.0), *found
    finally:
        clean(mark)


def test_every_crash_is_accounted_for(crashes):
    for point, status, left, recovery, again, record, operations, events in crashes:
        assert os.WTERMSIG(status) == signal.SIGKILL, point
        assert left == {}, point
        assert record.status in ENDED, point
        assert all(operation.outcome is not None for operation in operations), point
        assert check_events(events) == [], point
        # The second look finds everything settled.
        assert again.units == (), point
        assert all(unit.verified_empty != "no" for unit in recovery.units), point


def test_a_recovery_says_what_it_saw_and_no_more(crashes):
    by_point = {point: rest for point, *rest in crashes}
    *_, recovery, _, _, operations, _ = by_point["unit_running"]
    (unit,) = recovery.units
    outcome = operations[1].outcome
    assert unit.outcome == outcome
    assert isinstance(outcome, Stopped)
    assert outcome.effects == "unverified"
    assert outcome.evidence[0] == "its host died"
    assert unit.verified_empty == "yes"
    # The first call had its result before the crash, and keeps it.
    assert operations[0].outcome.output == "quick\n"


def recorded(main):
    async def inside():
        store = MemoryStore()
        try:
            scope = await store.open_run(session="s1")
            return await main(store, scope.id)
        finally:
            store.close()

    return run(inside)


def test_a_unit_is_on_record_before_it_starts(mark):
    seen = []

    class Looking(StoreRecords):
        async def intended(self, handle):
            await super().intended(handle)
            seen.append(marked(mark))

    async def main(store, run_id):
        unit = ProcessUnit(
            ["/bin/sleep", "60"], env=marked_env(mark), key="op_1", records=Looking(store, run_id)
        )
        async with unit:
            running = await store.read(lambda tx: load_unit(tx, unit.id))
        ended = await store.read(lambda tx: load_unit(tx, unit.id))
        events = [event for event in await store.events(run_id) if event.kind == "unit.ended"]
        return unit, running, ended, events

    unit, running, ended, events = recorded(main)
    assert seen == [{}]
    assert running.leader == (unit.report.process.pid, unit.report.process.start)
    assert running.ended is None
    assert running.marker == unit.report.process.marker
    assert running.boot_id
    assert running.host[0] == os.getpid()
    assert ended.ended == "yes"
    assert UnitHandle.from_json(running.to_json()) == running
    (event,) = events
    assert event.data["verified_empty"] == "yes"
    assert (event.data["unit"], event.data["survivors"]) == (unit.id, [])


def test_a_start_that_fails_leaves_no_open_record():
    async def main(store, run_id):
        unit = ProcessUnit(["/no/such/program"], records=StoreRecords(store, run_id))
        try:
            await unit.start()
        except Exception as error:
            return error, await store.read(load_units)

    error, units = recorded(main)
    assert error.where == "exec"
    assert [unit.ended for unit in units] == ["yes"]


def test_a_unit_that_cannot_be_recorded_does_not_start(mark):
    async def main(store, run_id):
        records = StoreRecords(store, run_id)
        store.close()
        unit = ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark), records=records)
        try:
            await unit.start()
        except Exception as error:
            return error

    error = recorded(main)
    assert error.where == "record"
    assert marked(mark) == {}


def test_the_units_of_a_living_host_are_left_alone(mark):
    async def main(store, run_id):
        unit = ProcessUnit(
            ["/bin/sleep", "60"], env=marked_env(mark), records=StoreRecords(store, run_id)
        )
        async with unit:
            recovery = await recover(store)
            still = marked(mark)
        return recovery, still

    recovery, still = recorded(main)
    assert recovery.units == ()
    assert [why for _, why in recovery.skipped] == ["host_alive"]
    assert len(still) == 1


def a_handle(**changes):
    handle = UnitHandle(
        id="unit_1",
        run=None,
        key=None,
        argv=("x",),
        marker="m" * 32,
        boot_id="fake",
        since=0,
        host=(99, 1),
        machine=os.uname().nodename,
        detached=False,
    )
    return replace(handle, **changes)


def test_another_machine_answers_for_its_own():
    async def main(store, _run):
        await store.write(lambda tx: insert_unit(tx, a_handle(machine="elsewhere")))
        return await recover(store, kernel=FakeKernel())

    assert [why for _, why in recorded(main).skipped] == ["other_machine"]


def test_nothing_outlives_a_boot():
    kernel = FakeKernel()
    innocent = kernel.spawn(marker="m" * 32)
    unit = end_leftovers(a_handle(boot_id="before", leader=innocent.identity), kernel)
    assert (unit.found, unit.verified_empty) == (0, "yes")
    assert innocent.pid in kernel.table


def test_a_recycled_pid_is_nobody_of_ours():
    kernel = FakeKernel()
    innocent = kernel.spawn()
    unit = end_leftovers(a_handle(leader=(innocent.pid, innocent.start + 1)), kernel, within=0.3)
    assert unit.found == 0
    assert innocent.pid in kernel.table


def test_an_older_process_with_the_mark_is_nobody_of_ours():
    kernel = FakeKernel()
    older = kernel.spawn(marker="m" * 32)
    end_leftovers(a_handle(since=older.start + 1), kernel, within=0.3)
    assert older.pid in kernel.table


def test_leftovers_are_ended_by_their_mark_and_nobody_vouches_for_the_rest():
    kernel = FakeKernel()
    left = [kernel.spawn(marker="m" * 32, obeys=[signal.SIGKILL]) for _ in range(3)]
    unit = end_leftovers(a_handle(), kernel, within=1.0)
    assert unit.found == len(left)
    assert kernel.table == {}
    assert unit.verified_empty == "unknown"


def test_a_detached_unit_is_kept_until_somebody_stops_it(mark, tmp_path):
    async def main(store, run_id):
        unit = ProcessUnit(
            ["/bin/sleep", "60"],
            env=marked_env(mark),
            detach=True,
            records=StoreRecords(store, run_id),
        )
        async with unit:
            pass
        handle = unit.handle
        # As a later process finds it: its host is not there any more.
        gone = replace(handle, host=(handle.host[0], handle.host[1] + 1))
        await store.write(lambda tx: insert_unit(tx, replace(gone, id="unit_later")))
        recovery = await recover(store)
        kept = marked(mark)
        stopped = await stop_detached(store, replace(gone, id="unit_later"))
        return recovery, kept, stopped

    recovery, kept, stopped = recorded(main)
    assert "detached" in [why for _, why in recovery.skipped]
    assert len(kept) == 1
    assert survivors(mark) == {}
    # Its warden told what it saw.
    assert stopped.verified_empty == "yes"
    assert stopped.found == 1
    assert stopped.receipt.exit.signal == signal.SIGTERM


def test_a_receipt_that_says_its_own_end_is_no_success(tmp_path):
    """Its host died and it went on to its end: the result is lost, and that is what is said."""
    receipt = tmp_path / "receipt.json"
    receipt.write_text(
        json.dumps(
            {
                "status": 0,
                "ended": {
                    "empty": "yes",
                    "began": 0.0,
                    "leader_signalled": False,
                    "signals": [],
                    "seen": 1,
                    "members": [],
                    "survivors": [],
                },
            }
        )
    )
    unit = end_leftovers(a_handle(receipt=str(receipt)), FakeKernel(), within=0.2)
    assert unit.verified_empty == "yes"
    assert unit.receipt.exit.code == 0
    assert not receipt.exists()
    from stopkit.units.recover import _outcome

    class Row:
        key = "op_1"

    outcome = _outcome(unit, Row())
    assert isinstance(outcome, Unknown)
    assert "lost with its host" in outcome.reason


def test_a_broken_receipt_is_no_receipt(tmp_path):
    receipt = tmp_path / "receipt.json"
    receipt.write_text("{")
    unit = end_leftovers(a_handle(receipt=str(receipt)), FakeKernel(), within=0.2)
    assert unit.receipt is None
    assert unit.verified_empty == "unknown"


def test_wardens_leave_nothing_behind(mark):
    """The wardens of ended units are gone as well."""

    async def main():
        async with ProcessUnit(["/bin/true"], env=marked_env(mark)) as unit:
            await unit.wait()
        return unit.handle.warden[0]

    warden = run(main)
    until(lambda: not alive(warden))
