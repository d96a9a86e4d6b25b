"""What facts prove, and the small parts under the units."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from units.test_process import marked_env, run
from units.truth import alive, until

import stopkit.units
from stopkit.outcome import parse_outcome
from stopkit.stop import Cause
from stopkit.units import ProcessFacts, ProcessUnit, UnitReport
from stopkit.units.broker import BROKER, cgroup_base
from stopkit.units.facts import Exit, Survivor
from stopkit.units.verdict import verdict
from stopkit.units.warden import NAMED, LinuxKernel, Proc, Tally

STOP = Cause("user", 0.0)


def facts(**changes):
    values = {
        "argv": ("x",),
        "marker": "m",
        "boot_id": "b",
        "pid": 7,
        "start": 1,
        "containment": "subreaper",
        "detached": False,
        "exit": None,
        "leader_signalled": False,
        "signals": (),
        "members_seen": 1,
        "members": (),
        "verified_empty": "yes",
        "survivors": (),
        "output": (),
        "output_complete": True,
        "descriptors_released": True,
        **changes,
    }
    return ProcessFacts(**values)


LEFT = (Survivor(9, 1, 0, "x", "not_permitted"),)
OK, BAD, BY_SIGNAL = Exit(0, None, 1.0), Exit(3, None, 1.0), Exit(None, 15, 1.0)


@pytest.mark.parametrize(
    ("changes", "cause", "status"),
    [
        # It ended by itself: what it said counts, whatever came after.
        ({"exit": OK}, None, "succeeded"),
        ({"exit": OK}, STOP, "succeeded"),
        ({"exit": BAD}, None, "failed"),
        ({"exit": BY_SIGNAL}, None, "failed"),
        ({"exit": OK, "output_complete": False}, None, "succeeded"),
        ({"exit": OK, "verified_empty": "no", "survivors": LEFT}, None, "succeeded"),
        # We ended it: no code says anything about that.
        ({"exit": OK, "leader_signalled": True}, STOP, "stopped"),
        ({"exit": BAD, "leader_signalled": True}, STOP, "stopped"),
        ({"exit": BY_SIGNAL, "leader_signalled": True}, STOP, "stopped"),
        ({"exit": BY_SIGNAL, "leader_signalled": True}, None, "stopped"),
        # Somebody is left, or nobody saw it.
        (
            {
                "exit": BY_SIGNAL,
                "leader_signalled": True,
                "verified_empty": "no",
                "survivors": LEFT,
            },
            STOP,
            "unknown",
        ),
        ({"verified_empty": "unknown"}, STOP, "unknown"),
        ({"verified_empty": "no", "survivors": LEFT}, STOP, "unknown"),
        ({"guards_lost": ("warden",)}, None, "unknown"),
        ({"guards_lost": ("warden",)}, STOP, "stopped"),
    ],
)
def test_what_the_facts_of_a_process_prove(changes, cause, status):
    outcome = verdict(facts(**changes), "out", cause=cause, duration=2.0)
    assert outcome.status == status
    assert outcome.effects == "unverified"
    assert outcome.output == "out"


def test_a_report_is_plain_json():
    outcome = verdict(facts(exit=OK), "out", cause=None, duration=1.0)
    report = UnitReport(
        id="unit_1",
        kind="process",
        key=None,
        outcome=outcome,
        cause=STOP,
        duration=1.0,
        process=facts(exit=OK, survivors=LEFT),
    )
    plain = json.loads(report.to_json())
    assert parse_outcome(plain["outcome"]) == outcome
    assert plain["process"]["survivors"][0]["reason"] == "not_permitted"
    assert plain["process"]["exit"] == {"code": 0, "signal": None, "after": 1.0}
    assert plain["cause"]["kind"] == "user"


def test_the_door_of_the_package():
    names = stopkit.units.__all__
    assert names == sorted(names)
    assert all(getattr(stopkit.units, name) is not None for name in names)
    with pytest.raises(AttributeError):
        stopkit.units.nothing_of_this_name  # noqa: B018 - the look is what raises


def test_importing_the_units_loads_no_database_and_no_sdk():
    script = (
        "import sys, stopkit.units\n"
        "print([name for name in ('sqlalchemy', 'mcp', 'httpx') if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@given(st.lists(st.lists(st.integers(1, 4_000_000), max_size=400), max_size=300))
def test_a_tally_fits_into_one_message(passes):
    tally = Tally(LinuxKernel(), 0.0, leader=7)
    for pids in passes:
        procs = [Proc(pid, 1, pid, pid, 1, "S", "�" * 15) for pid in pids]
        tally.see(procs)
        tally.sent(1234.5678, [(proc, signal.SIGKILL, "sent") for proc in procs])
    said = tally.facts("no", [Proc(1, 1, 1, 1, 1, "S", "�" * 15)] * NAMED)
    assert len(json.dumps(said)) < 1 << 17
    assert said["leader_signalled"] is any(7 in pids for pids in passes[:])
    assert sum(sent["count"] for sent in said["signals"]) <= sum(map(len, passes))


def test_the_scan_finds_what_the_children_files_show(mark):
    async def main():
        command = "sleep 60 & setsid sleep 61 & wait"
        async with ProcessUnit.shell(command, env=marked_env(mark)) as unit:
            kernel, scanning = LinuxKernel(), LinuxKernel()
            scanning._lists_children = False
            warden = unit.handle.warden[0]
            until(lambda: len(kernel.tree(warden)) == 3)
            by_file = {proc.pid for proc in kernel.tree(warden)}
            by_scan = {proc.pid for proc in scanning.tree(warden)}
            without = kernel.tree(warden, apart_from=by_file)
        return by_file, by_scan, without

    by_file, by_scan, without = run(main)
    assert by_file == by_scan
    assert without == []


def test_a_process_is_signalled_only_if_it_is_the_one():
    kernel = LinuxKernel()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        proc = kernel.look(child.pid)
        assert proc.name == "sleep"
        assert kernel.send(child.pid, proc.start + 1, signal.SIGKILL) == "gone"
        assert alive(child.pid)
        assert kernel.send(child.pid, proc.start, signal.SIGKILL) == "sent"
    finally:
        child.kill()
        child.wait()
    assert kernel.send(child.pid, proc.start, signal.SIGKILL) == "gone"
    assert kernel.look(child.pid) is None
    assert kernel.uid(child.pid) is None


def test_our_own_group_is_refused():
    kernel = LinuxKernel()
    assert kernel.send_group(os.getpgid(0), 0) == "refused"
    assert kernel.send_group(0, 0) == "refused"
    assert kernel.send_group(1, 0) == "refused"


def test_a_broker_that_was_killed_is_replaced():
    async def main():
        async with ProcessUnit(["/bin/true"]) as first:
            await first.wait()
        killed = BROKER.pid
        os.kill(killed, signal.SIGKILL)
        until(lambda: not BROKER.alive)
        async with ProcessUnit(["/bin/echo", "again"]) as second:
            report = await second.wait()
        return killed, BROKER.pid, report

    killed, now, report = run(main)
    assert now != killed
    assert report.outcome.output == "again\n"
    assert report.process.guards_lost == ()


def test_a_broker_leaves_when_its_host_lets_it_go():
    async def main():
        async with ProcessUnit(["/bin/true"]) as unit:
            await unit.wait()
        return BROKER.pid

    broker = run(main)
    assert alive(broker)
    BROKER.close()
    until(lambda: not alive(broker))


def test_a_forked_host_has_a_broker_of_its_own(mark):
    """What a forked child starts is not held by its parent's broker."""

    async def main():
        async with ProcessUnit(["/bin/true"]) as unit:
            await unit.wait()
        return BROKER.pid

    before = run(main)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(asyncio.run(main())).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    its = int(os.read(reading, 32))
    os.close(reading)
    assert its != before
    assert BROKER.pid == before
    assert alive(before)
    until(lambda: not alive(its))


def test_the_cgroup_base_is_ours_to_write():
    base = cgroup_base()
    assert base is None or os.access(base, os.W_OK)


def test_the_units_can_be_imported_where_they_are_refused():
    """A system without these names still gets the typed refusal, not an AttributeError."""
    script = (
        "import signal, os, select\n"
        "import asyncio, socket, subprocess, tempfile, threading, ctypes\n"
        "for name in ('SIGPIPE', 'SIGXFSZ', 'SIGCHLD', 'SIGKILL', 'SIGCONT'):\n"
        "    delattr(signal, name)\n"
        "for name in ('pidfd_open', 'memfd_create', 'posix_spawn', 'fork', 'geteuid', 'setsid'):\n"
        "    delattr(os, name)\n"
        "del select.poll\n"
        "from stopkit.units import process, ProcessUnit, recover\n"
        "from stopkit.units.errors import UnitUnsupported\n"
        "process._PLATFORM = 'win32'\n"
        "async def main():\n"
        "    try:\n"
        "        await ProcessUnit(['x']).start()\n"
        "    except UnitUnsupported as error:\n"
        "        print(error.code)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("unsupported", 0), done.stderr
