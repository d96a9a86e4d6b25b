"""A process unit from start to report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import anyio
import pytest
from units.truth import MARK, alive, marked, survivors, until

from stopkit.outcome import Failed, Stopped, Succeeded, Unknown
from stopkit.stop import StopPolicy
from stopkit.units import OutputLimits, ProcessUnit
from stopkit.units.errors import UnitInputClosed, UnitNotStarted, UnitState

QUICK = StopPolicy(grace=0.3, verify_wait=2.0, output_wait=0.3)


def marked_env(mark):
    return {**os.environ, MARK: mark}


def run(main):
    async def checked():
        result = await main()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        return result

    return asyncio.run(checked())


async def ready(unit, word=b"ready"):
    async for chunk in unit.stream():
        if word in chunk.data:
            return
    raise AssertionError("its output ended first")


def test_a_program_that_ends_by_itself():
    async def main():
        async with ProcessUnit(["/bin/echo", "hello"]) as unit:
            return await unit.wait()

    report = run(main)
    facts = report.process
    assert isinstance(report.outcome, Succeeded)
    assert report.outcome.output == "hello\n"
    # That it ended well says nothing about what it did.
    assert report.outcome.effects == "unverified"
    assert facts.exit.code == 0
    assert facts.verified_empty == "yes"
    assert facts.signals == ()
    assert facts.output_complete
    assert facts.descriptors_released
    assert facts.argv == ("/bin/echo", "hello")
    assert report.cause is None
    json.loads(report.to_json())


def test_an_exit_code_is_a_failure_of_its_own_and_says_nothing_of_the_effects():
    async def main():
        async with ProcessUnit.shell("echo out; echo err >&2; exit 3") as unit:
            return await unit.wait()

    outcome = run(main).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.exit_code, outcome.effects) == (3, "unverified")
    assert outcome.output == "out\nerr\n"


def test_a_signal_that_we_did_not_send_is_not_a_stop():
    async def main():
        async with ProcessUnit.shell("kill -9 $$") as unit:
            return await unit.wait()

    report = run(main)
    assert isinstance(report.outcome, Failed)
    assert report.process.exit.signal == 9
    assert "did not send" in report.outcome.reason


def test_its_author_may_read_the_exit_code():
    def no_match_is_fine(facts, output):
        return Succeeded(output=output, effects="unverified") if facts.exit.code < 2 else None

    async def main():
        async with ProcessUnit.shell("exit 1", judge=no_match_is_fine, key="op_1") as unit:
            return await unit.wait()

    outcome = run(main).outcome
    assert (outcome.status, outcome.key) == ("succeeded", "op_1")


def test_a_stop_ends_the_tree_and_says_how(mark):
    async def main():
        command = "sleep 60 & setsid sleep 61 & echo ready; sleep 62"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=QUICK) as unit:
            await ready(unit)
            until(lambda: sorted(marked(mark).values()) == ["sh", "sleep", "sleep", "sleep"])
            return await unit.stop("user", words="enough")

    report = run(main)
    facts = report.process
    assert isinstance(report.outcome, Stopped)
    assert report.outcome.signal == signal.SIGTERM
    assert report.outcome.effects == "unverified"
    assert report.outcome.output == "ready\n"
    assert report.cause.words == "enough"
    assert facts.members_seen == 4
    assert {member.name for member in facts.members} == {"sh", "sleep"}
    first = facts.signals[0]
    assert first.signal == signal.SIGTERM
    assert len(first.pids) == 4
    assert facts.pid in first.pids
    assert 0 < first.after <= facts.exit.after
    assert not facts.forced
    assert survivors(mark, within=0) == {}


def test_what_ignores_the_request_is_killed_after_the_grace(mark):
    async def main():
        command = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=QUICK) as unit:
            await ready(unit)
            return await unit.stop()

    report = run(main)
    assert report.process.forced
    assert report.outcome.signal == signal.SIGKILL
    kill = next(sent for sent in report.process.signals if sent.signal == signal.SIGKILL)
    term = report.process.signals[0]
    assert kill.after - term.after >= QUICK.grace - 0.01
    assert report.process.verified_empty == "yes"


def test_one_that_ends_well_when_asked_was_stopped_all_the_same(mark):
    async def main():
        command = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        async with ProcessUnit.shell(command, env=marked_env(mark)) as unit:
            await ready(unit)
            return await unit.stop()

    outcome = run(main).outcome
    assert (outcome.status, outcome.exit_code) == ("stopped", 0)
    assert outcome.output.endswith("saved\n")


def test_a_result_that_came_before_the_stop_is_kept():
    async def main():
        async with ProcessUnit(["/bin/echo", "real"]) as unit:
            await unit.wait()
            return await unit.stop()

    assert run(main).outcome.output == "real\n"


def test_repeats_shorten_the_grace(mark):
    policy = StopPolicy(grace=30.0)

    async def main():
        command = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=policy) as unit:
            await ready(unit)
            for _ in range(3):
                unit.request_stop()
            return await unit.wait()

    report = run(main)
    assert report.duration < 20
    assert report.process.forced
    assert report.process.verified_empty == "yes"


def test_leaving_the_block_stops_it(mark):
    async def main():
        async with ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark)) as unit:
            pass
        return unit.report

    report = run(main)
    assert report.outcome.status == "stopped"
    assert report.cause.kind == "policy"


def test_a_cancelled_task_leaves_nothing_behind(mark):
    async def hold(unit, entered):
        async with unit:
            entered.set()
            await asyncio.Event().wait()

    async def main():
        unit = ProcessUnit.shell("sleep 60 & sleep 61", env=marked_env(mark))
        entered = asyncio.Event()
        task = asyncio.create_task(hold(unit, entered))
        await entered.wait()
        task.cancel()
        # A second cancel goes through any shield.
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return unit.report

    report = run(main)
    assert report.cause.kind == "parent"
    assert report.process.verified_empty == "yes"
    assert survivors(mark, within=0) == {}


def test_a_cancel_scope_outside_leaves_the_tool_its_grace(mark):
    """anyio cancels at every turn of the loop: one cancel, not so many presses."""

    async def main():
        command = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo ready; while :; do sleep 9; done"
        unit = ProcessUnit.shell(command, env=marked_env(mark))
        with anyio.CancelScope() as scope:
            async with unit:
                await ready(unit)
                scope.cancel()
                await anyio.sleep_forever()
        return unit.report, scope.cancelled_caught

    report, caught = run(main)
    assert caught
    assert report.cause.kind == "parent"
    assert not report.process.forced
    assert report.outcome.output.endswith("saved\n")


@pytest.mark.parametrize("yields", range(8))
def test_a_start_that_is_cancelled_leaves_nothing_behind(mark, yields):
    async def main():
        unit = ProcessUnit.shell("sleep 60 & sleep 61", env=marked_env(mark))
        task = asyncio.create_task(unit.start())
        for _ in range(yields):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            await unit.stop()
        return unit

    unit = run(main)
    assert survivors(mark) == {}
    if unit.ended:
        assert unit.report.process.verified_empty in ("yes", "unknown")


def test_the_end_of_the_event_loop_ends_the_unit(mark):
    seen = []

    async def main():
        unit = ProcessUnit.shell("sleep 60 & sleep 61", env=marked_env(mark), stop=QUICK)
        await unit.start()
        seen.append(unit)

    asyncio.run(main())
    assert survivors(mark, within=0) == {}
    assert seen[0].report.cause.kind == "shutdown"


def test_what_the_leader_leaves_behind_is_stopped_too(mark):
    async def main():
        command = "setsid sleep 60 >/dev/null 2>&1 & echo ready"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=QUICK) as unit:
            return await unit.wait()

    report = run(main)
    assert report.outcome.status == "succeeded"
    assert report.process.members_seen == 2
    assert report.process.verified_empty == "yes"
    assert survivors(mark, within=0) == {}


@pytest.mark.parametrize(
    ("argv", "options", "where"),
    [
        (["/no/such/program"], {}, "exec"),
        (["no-such-program-anywhere"], {}, "exec"),
        (["/etc/hostname"], {}, "exec"),
        (["/bin/true"], {"cwd": "/no/such/place"}, "cwd"),
    ],
)
def test_what_cannot_start_says_so_and_nothing_ran(argv, options, where):
    async def main():
        with pytest.raises(UnitNotStarted) as caught:
            await ProcessUnit(argv, **options).start()
        return caught.value

    error = run(main)
    assert error.where == where
    assert error.errno
    assert error.code == "unit_not_started"


def test_input_is_written_and_ended():
    async def main():
        async with ProcessUnit(["/bin/cat"], stdin="pipe") as unit:
            # More than a pipe holds: the write waits for the reader.
            await unit.write(b"a" * 300_000)
            unit.close_input()
            with pytest.raises(UnitInputClosed):
                await unit.write(b"more")
            return await unit.wait()

    report = run(main)
    assert report.process.output[0].total == 300_000


def test_input_given_at_the_start():
    async def main():
        async with ProcessUnit(["/usr/bin/wc", "-c"], stdin=b"x" * 200_000) as unit:
            return await unit.wait()

    assert run(main).outcome.output.strip() == "200000"


def test_input_that_nobody_reads():
    async def main():
        async with ProcessUnit.shell("exec 0<&-; sleep 60", stdin="pipe") as unit:
            with pytest.raises(UnitInputClosed):
                await unit.write(b"x" * 1_000_000)
            return await unit.stop()

    assert run(main).outcome.status == "stopped"


def test_the_streams_may_be_kept_apart():
    async def main():
        async with ProcessUnit.shell("echo out; echo err >&2", stderr="pipe") as unit:
            await unit.wait()
            return unit.stdout, unit.stderr

    assert run(main) == (b"out\n", b"err\n")


def test_its_surroundings_are_as_asked(tmp_path):
    script = (
        "import os, sys, signal\n"
        "print(os.getcwd(), sorted(os.listdir('/proc/self/fd')), os.environ.get('A'))\n"
        "print(os.getpgid(0) == os.getsid(0) == os.getpid())\n"
        "print(signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )

    async def main():
        env = {"A": "b", "PATH": os.defpath}
        argv = [sys.executable, "-I", "-S", "-c", "import signal\n" + script]
        async with ProcessUnit(argv, cwd=tmp_path, env=env) as unit:
            return await unit.wait()

    where, session, pipe, mask = run(main).outcome.output.splitlines()
    # The directory that lists them is the one descriptor above 2.
    assert where == f"{tmp_path} ['0', '1', '2', '3'] b"
    assert session == "True"
    # Python itself ignores it, and the line before was printed by another Python.
    assert pipe == "False"
    assert mask == "set()"


def test_names_are_bytes_to_the_kernel():
    async def main():
        odd = os.fsdecode(b"\xff\xfe\xe4")
        async with ProcessUnit(["/bin/echo", "-n", odd]) as unit:
            await unit.wait()
            return unit.stdout

    assert run(main) == b"\xff\xfe\xe4"


def test_a_unit_is_started_once():
    async def main():
        async with ProcessUnit(["/bin/true"]) as unit:
            with pytest.raises(UnitState):
                await unit.start()
            await unit.wait()
        return unit.report

    assert run(main).outcome.status == "succeeded"


def test_the_leader_alone_can_be_signalled(mark):
    async def main():
        command = "trap 'echo got it' INT; echo ready; for i in 1 2 3; do sleep 60; done"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=QUICK) as unit:
            await ready(unit)
            unit.signal(signal.SIGINT)
            # The shell runs its trap once the sleep in front of it has ended.
            child = until(lambda: [pid for pid, name in marked(mark).items() if name == "sleep"])
            os.kill(child[0], signal.SIGTERM)
            await asyncio.to_thread(until, lambda: b"got it" in unit.stdout)
            return await unit.stop()

    assert run(main).outcome.status == "stopped"


def test_a_detached_unit_outlives_its_block_and_is_on_record(mark, tmp_path):
    log = tmp_path / "log"

    async def main():
        unit = ProcessUnit.shell(
            "echo ready; exec sleep 60", env=marked_env(mark), detach=True, output_to=log
        )
        async with unit:
            pass
        return unit

    unit = run(main)
    assert isinstance(unit.report.outcome, Unknown)
    assert "detached" in unit.report.outcome.reason
    until(lambda: log.read_bytes() == b"ready\n")
    pid, _ = unit.handle.leader
    assert alive(pid)
    # Its warden is told as a service is: by SIGTERM.
    os.kill(unit.handle.warden[0], signal.SIGTERM)
    until(lambda: not alive(pid))


def test_a_lifetime_bounds_a_unit(mark):
    async def main():
        unit = ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark), lifetime=0.1)
        async with unit:
            return await unit.wait()

    report = run(main)
    assert report.outcome.status == "stopped"
    assert report.cause.kind == "deadline"
    assert report.process.verified_empty == "yes"


def test_a_warden_is_told_as_a_service_is(mark):
    async def main():
        async with ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark)) as unit:
            os.kill(unit.handle.warden[0], signal.SIGTERM)
            return await unit.wait()

    report = run(main)
    assert report.cause.kind == "operator"
    assert report.process.exit.signal == signal.SIGTERM
    assert report.process.guards_lost == ()


def test_words_that_nobody_reads_any_more_are_no_loss(mark):
    """A warden that leaves with a message unread resets the socket; what it said still counts."""

    async def main():
        reports = []
        for _ in range(10):
            async with ProcessUnit(["/bin/sleep", "60"], env=marked_env(mark)) as unit:
                for _ in range(30):
                    unit.request_stop()
                reports.append(await unit.wait())
        return reports

    reports = run(main)
    assert {report.process.guards_lost for report in reports} == {()}
    assert {report.process.verified_empty for report in reports} == {"yes"}


def test_two_hundred_at_once(mark):
    async def main():
        units = [ProcessUnit.shell("sleep 60 & sleep 61", env=marked_env(mark)) for _ in range(200)]
        await asyncio.gather(*(unit.start() for unit in units))
        assert len(marked(mark)) >= 200
        return await asyncio.gather(*(unit.stop() for unit in units))

    reports = run(main)
    assert {report.process.verified_empty for report in reports} == {"yes"}
    assert survivors(mark, within=0) == {}
    assert len({report.process.pid for report in reports}) == 200


def test_limits_are_checked():
    with pytest.raises(ValueError, match="number of bytes"):
        OutputLimits(memory=-1)
    with pytest.raises(ValueError, match="at least a program"):
        ProcessUnit([])
    with pytest.raises(ValueError, match="detached"):
        ProcessUnit(["/bin/cat"], detach=True, stdin="pipe")
