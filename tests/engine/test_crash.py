"""Workers killed at every pause point; a replacement takes over and goes on.

`STOPKIT_KILLS` sets how many; the suite's own 200 fit its time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine.crash_worker import calls_of
from engine.service import Counting, tools_of

from stopkit.errors import ReconcileRequired, RunConflict
from stopkit.metrics import metrics
from stopkit.outcome import STATUSES
from stopkit.pauses import POINTS
from stopkit.run import TERMINAL
from stopkit.store import SqlStore
from stopkit.testing import check_events

KILLS = int(os.environ.get("STOPKIT_KILLS", "200"))
PARTS = 8
TESTS = Path(__file__).parent.parent

# How often a worker that is not stopped comes by each point.
VISITS = {
    "before_model_request": 2,
    "after_model_request": 2,
    "before_enqueue": 3,
    "before_start": 3,
    "after_intend": 3,
    "before_dispatch": 2,
    "after_dispatch": 2,
    "before_record": 3,
    "after_record": 3,
    "in_cleanup": 1,
    "before_end": 1,
}


def plans():
    """(point, visit, the point at which the worker stops itself, whether others ask)."""
    for point in POINTS:
        for visit in range(1, VISITS[point] + 1):
            for asked in (False, True):
                yield point, visit, None, asked
    for stops in ("after_model_request", "after_dispatch", "before_record"):
        for point in ("in_cleanup", "before_end"):
            yield point, 1, stops, False


@pytest.fixture(scope="module")
def forge():
    """A process with everything imported, which forks workers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.crash_worker"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def kill(task):
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield kill
    process.stdin.close()
    process.stdout.close()
    assert process.wait(10) == 0


async def take_over(store, service, session, *, asked, stopped):
    """What a replacement does, with every promise checked on the way."""
    tools = tools_of(service.port)
    run = f"run_1_{session}"
    assert store.durable
    if asked:
        receipt = await store.request_stop(run, "user")
        assert receipt.recorded
    with pytest.raises((RunConflict, ReconcileRequired)):
        await store.resume_run(run)
    before = dict(service.by_key)
    record = await store.take_over(run)
    assert service.by_key == before
    if asked or stopped:
        assert record.end == "cancelled"
        assert record.cause is not None
        assert record.cause.kind == "user"
    else:
        assert record.end == "failed"
    found = await store.reconcile(run, tools)
    assert found.open == ()
    assert found.status in TERMINAL
    assert service.by_key == before

    calls = calls_of(session)
    evidence = await store.evidence(run, calls)
    assert set(evidence) == {call.id for call in calls}
    assert all(outcome.status in STATUSES for outcome in evidence.values())
    events = await store.events(run)
    assert check_events(events) == []
    figures = metrics(events)
    assert figures.started_after_request == 0

    async with await store.resume_run(run) as scope:
        again = [call for call in calls if evidence[call.id].status != "succeeded"]
        outcomes = await scope.run_calls(again, tools)
        assert all(outcome.status == "succeeded" for outcome in outcomes)
    assert scope.report.status == "completed"
    assert scope.attempt == 2
    keys = {op.call_id: op.key for op in await store.operations(run) if op.effect == "write"}
    for entry in scope.report.calls:
        if entry.call.id in keys and entry.effect == "write":
            assert entry.key == keys[entry.call.id]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_worker_is_replaced_and_nothing_runs_twice(forge, tmp_path, part):
    share = KILLS // PARTS
    plan = itertools.islice(itertools.cycle(plans()), part * share, (part + 1) * share)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    killed = 0
    with Counting() as service:
        store = SqlStore(url, synchronous="NORMAL")
        for number, (point, visit, stops, asked) in enumerate(plan):
            session = f"s{number}"
            task = {
                "session": session,
                "url": url,
                "port": service.port,
                "point": point,
                "visit": visit,
                "stops": stops,
            }
            status = forge(task)
            assert os.WIFSIGNALED(status), (task, status)
            assert os.WTERMSIG(status) == signal.SIGKILL
            killed += 1
            asyncio.run(take_over(store, service, session, asked=asked, stopped=bool(stops)))
            for call in calls_of(session):
                expected = 1 if call.name == "write" else 0
                assert service.by_what[call.arguments["what"]] == expected
        assert max(service.by_key.values()) == 1
        assert len(service.by_key) == 2 * killed
        store.close()
    assert killed == share
