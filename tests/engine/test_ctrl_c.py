"""Real signals at a real process: once asks, twice shortens, three times forces."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stopkit.store import SqlStore
from stopkit.testing import check_events

TESTS = Path(__file__).parent.parent


class Process:
    def __init__(self, path, grace, mode):
        self.url = f"sqlite:///{path}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.ctrl_c", self.url, str(grace), mode],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None

    def expect(self, line):
        assert self.process.stdout.readline().strip() == line

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        started = time.monotonic()
        out, err = self.process.communicate(timeout=60)
        return out, err, time.monotonic() - started

    def record(self):
        async def look():
            store = SqlStore(self.url)
            record = await store.load("run_1")
            events = await store.events("run_1")
            operations = await store.operations("run_1")
            store.close()
            assert check_events(events) == []
            return record, operations

        return asyncio.run(look())


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGINT, "user"), (signal.SIGTERM, "shutdown")]
)
def test_one_signal_asks(tmp_path, number, cause):
    process = Process(tmp_path / "runs.db", 0.2, "helper")
    process.expect("ready")
    process.send(number)
    out, err, _ = process.end()
    assert (out, err) == ("press\ncleanup\ndone\n", "")
    record, (operation,) = process.record()
    assert record.status == "needs_reconciliation"
    assert record.cause is not None
    assert record.cause.kind == cause
    assert operation.outcome is not None
    assert operation.outcome.status == "unknown"


@pytest.mark.parametrize("presses", [2, 3])
def test_more_signals_hurry(tmp_path, presses):
    process = Process(tmp_path / "runs.db", 600, "helper")
    process.expect("ready")
    for number in range(presses):
        process.send(signal.SIGINT)
        # A signal that is pending swallows the next: wait until each was taken.
        if number + 1 < presses:
            while process.process.stdout.readline().strip() != "press":
                pass
    out, err, seconds = process.end()
    assert out.split()[-1] == "done"
    assert err == ""
    assert seconds < 60
    record, _ = process.record()
    assert record.status == "needs_reconciliation"
    assert record.presses == presses


def test_one_ctrl_c_under_plain_asyncio_run_is_a_stop(tmp_path):
    process = Process(tmp_path / "runs.db", 0.2, "bare")
    process.expect("ready")
    process.send(signal.SIGINT)
    out, err, _ = process.end()
    assert out == "press\ncleanup\n"
    assert "KeyboardInterrupt" in err
    record, (operation,) = process.record()
    assert record.status == "needs_reconciliation"
    assert record.cause is not None
    assert record.cause.kind == "parent"
    assert operation.outcome is not None


def test_a_second_ctrl_c_tears_the_loop_down_and_the_account_is_still_written(tmp_path):
    process = Process(tmp_path / "runs.db", 600, "bare")
    process.expect("ready")
    process.send(signal.SIGINT)
    process.expect("press")
    # Python raises the second KeyboardInterrupt wherever it is: here, in the waiting loop.
    process.expect("cleanup")
    time.sleep(0.2)
    process.send(signal.SIGINT)
    _, err, seconds = process.end()
    assert "KeyboardInterrupt" in err
    assert seconds < 60
    record, (operation,) = process.record()
    assert record.status == "needs_reconciliation"
    assert operation.outcome is not None
    assert operation.outcome.status == "unknown"


def test_what_is_killed_in_the_middle_of_its_stop_is_taken_over(tmp_path):
    process = Process(tmp_path / "runs.db", 600, "helper")
    process.expect("ready")
    process.send(signal.SIGINT)
    process.expect("press")

    async def until_recorded():
        store = SqlStore(process.url)
        for _ in range(1000):
            if (await store.load("run_1")).status != "running":
                break
            await asyncio.sleep(0.01)
        process.send(signal.SIGKILL)
        process.end()
        record = await store.take_over("run_1")
        assert record.end == "cancelled"
        assert record.cause is not None
        assert record.cause.kind == "user"
        store.close()

    asyncio.run(until_recorded())
    process.record()
