"""Pipes: holders, floods, binary output, spill files, and three facts apart."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time

import pytest
from units.test_process import QUICK, marked_env, ready, run
from units.truth import MARK, marked, until

from stopkit.stop import StopPolicy
from stopkit.units import OutputLimits, ProcessUnit
from stopkit.units.errors import UnitState

BYTES = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4)"


def test_a_holder_of_the_pipe_keeps_nobody_waiting(mark):
    async def main():
        began = time.monotonic()
        async with ProcessUnit.shell("sleep 60 & echo done", env=marked_env(mark), stop=QUICK) as u:
            report = await u.wait()
        return report, time.monotonic() - began

    report, took = run(main)
    # The leader had ended; what it left behind was ended after the wait for its output.
    assert report.outcome.output == "done\n"
    assert QUICK.output_wait <= report.process.signals[0].after
    assert took < 10
    assert report.process.output_complete


def lending(fd, mark):
    """A process outside of the unit that holds a descriptor of it; its pid."""
    return os.posix_spawn(
        "/bin/sleep",
        ["sleep", "60"],
        {MARK: mark},
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, 1)],
    )


def test_a_holder_outside_of_the_tree_is_named(mark):
    """Exited, not complete, not released."""

    async def main():
        async with ProcessUnit.shell("echo ready; sleep 60", env=marked_env(mark), stop=QUICK) as u:
            await ready(u)
            fd = os.open(f"/proc/{u.pid}/fd/1", os.O_WRONLY)
            holder = lending(fd, mark)
            os.close(fd)
            report = await u.stop()
        os.kill(holder, 9)
        return report, holder

    report, holder = run(main)
    os.waitpid(holder, 0)
    facts = report.process
    assert facts.exit is not None
    assert not facts.output_complete
    assert not facts.descriptors_released
    assert [held.pid for held in facts.holders] == [holder]
    assert facts.verified_empty == "yes"
    assert any(str(holder) in words for words in report.unconfirmed)
    assert "its output is not complete" in report.outcome.evidence


def test_output_may_be_complete_while_the_process_goes_on(mark):
    """Complete and released, not exited."""

    async def main():
        command = "echo all; exec sleep 60 >/dev/null 2>&1"
        async with ProcessUnit.shell(command, env=marked_env(mark), stop=QUICK) as unit:
            chunks = [chunk.data async for chunk in unit.stream()]
            running = marked(mark)
            report = await unit.stop()
        return chunks, running, report

    chunks, running, report = run(main)
    assert b"".join(chunks) == b"all\n"
    assert list(running.values()) == ["sleep"]
    assert report.process.output_complete
    assert report.outcome.status == "stopped"


def test_reading_may_be_given_up_with_nobody_holding_the_pipe(mark):
    """Exited and released, not complete."""
    impatient = StopPolicy(grace=0.3, output_wait=0.0)

    async def main():
        # A reader that does not read: the pipe stays full of what the tool left in it.
        limits = OutputLimits(memory=1000, hold=True)
        command = "head -c 10000000 /dev/zero & echo $! ; wait"
        async with ProcessUnit.shell(
            command, env=marked_env(mark), stop=impatient, output=limits
        ) as unit:
            stream = unit.stream()
            await anext(stream)
            await asyncio.sleep(0)
            return await unit.stop()

    facts = run(main).process
    assert facts.exit is not None
    if os.geteuid() == 0:
        assert facts.descriptors_released
    assert facts.holders == ()


def test_binary_output_is_kept_as_it_is():
    async def main():
        async with ProcessUnit([sys.executable, "-S", "-c", BYTES]) as unit:
            await unit.wait()
            return unit.stdout, unit.report

    data, report = run(main)
    assert data == bytes(range(256)) * 4
    assert report.outcome.output.startswith("\x00\x01")


def test_a_gigabyte_costs_no_memory():
    limit = 1 << 20

    async def main():
        unit = ProcessUnit(
            ["/usr/bin/head", "-c", str(1 << 30), "/dev/zero"], output=OutputLimits(memory=limit)
        )
        async with unit:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            report = await unit.wait()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return report, after - before

    report, grown = run(main)
    (facts,) = report.process.output
    assert facts.total == 1 << 30
    assert facts.kept == limit
    assert facts.dropped == (1 << 30) - limit
    assert facts.complete
    assert grown < 16 * 1024


def test_a_writer_that_never_stops_is_stopped(mark):
    async def main():
        async with ProcessUnit(["/usr/bin/yes"], env=marked_env(mark), stop=QUICK) as unit:
            await ready(unit, b"y")
            return await unit.stop()

    report = run(main)
    assert report.process.verified_empty == "yes"
    assert report.process.output_complete


def test_the_newest_bytes_are_kept_and_the_oldest_spilled(tmp_path):
    async def main():
        limits = OutputLimits(memory=10, spill=tmp_path, spill_limit=20)
        async with ProcessUnit.shell("printf '%060d' 7", output=limits) as unit:
            return await unit.wait()

    report = run(main)
    (facts,) = report.process.output
    assert (facts.total, facts.kept, facts.spilled, facts.dropped) == (60, 10, 20, 30)
    assert report.outcome.output == "0000000007"
    with open(facts.spill, "rb") as file:
        assert file.read() == b"0" * 20
    assert os.stat(facts.spill).st_mode & 0o777 == 0o600


def test_a_spill_that_cannot_be_written_costs_the_file_alone(tmp_path):
    async def main():
        limits = OutputLimits(spill=tmp_path / "nowhere")
        async with ProcessUnit(["/bin/echo", "x"], output=limits) as unit:
            return await unit.wait()

    (facts,) = run(main).process.output
    assert "No such file" in facts.spill_error
    assert facts.kept == 2


def test_a_slow_reader_misses_some_and_sees_the_gap():
    async def main():
        limits = OutputLimits(memory=1000)
        line = "printf first; read go; head -c 3000000 /dev/zero"
        async with ProcessUnit.shell(line, stdin="pipe", output=limits) as unit:
            stream = unit.stream()
            # The first look takes what is there; the rest comes while nobody reads.
            first = await anext(stream)
            await unit.write(b"\n")
            await unit.wait()
            rest = [chunk async for chunk in stream]
        return first, rest, unit.report

    first, rest, report = run(main)
    (facts,) = report.process.output
    seen = len(first.data) + sum(len(chunk.data) for chunk in rest)
    assert seen < facts.total
    assert rest[-1].offset + len(rest[-1].data) == facts.total
    assert rest[0].offset > first.offset + len(first.data)


def test_a_held_tool_waits_for_its_reader():
    async def main():
        limits = OutputLimits(memory=1000, hold=True)
        async with ProcessUnit.shell("head -c 3000000 /dev/zero", output=limits) as unit:
            stream = unit.stream()
            await anext(stream)
            # Nothing is lost however long this takes; its pipe and our queue are full.
            end = 0
            async for chunk in stream:
                await asyncio.sleep(0)
                end = chunk.offset + len(chunk.data)
                if end < 2_000_000:
                    assert not unit.ended
            await unit.wait()
            return end, unit.report

    end, report = run(main)
    assert end == 3_000_000
    assert report.process.output[0].dropped == 3_000_000 - 1000


def test_one_reader_for_a_stream():
    async def main():
        async with ProcessUnit(["/bin/true"]) as unit:
            unit.stream()
            with pytest.raises(UnitState):
                unit.stream()
            with pytest.raises(UnitState):
                unit.stream("stderr")
            await unit.wait()

    run(main)


def test_output_to_a_file(tmp_path):
    path = tmp_path / "log"

    async def main():
        async with ProcessUnit.shell("echo a; echo b >&2", output_to=path) as unit:
            return await unit.wait()

    report = run(main)
    assert path.read_text() == "a\nb\n"
    assert report.process.output == ()
    until(lambda: report.process.output_complete)
