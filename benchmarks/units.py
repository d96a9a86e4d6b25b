"""Start, stop and verify of a process tree: stopkit's unit beside the usual ways.

    python benchmarks/units.py [--rounds 20]

The tree is a shell with a child in its session and one in a session of its own; all of it obeys
SIGTERM.  The ways take turns within each round.  Survivors are counted in /proc by a mark of the
benchmark's own, after the way has said that it is done, and ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import secrets
import signal
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from stopkit.stop import StopPolicy
from stopkit.units import ProcessUnit

MARK = "STOPKIT_BENCH"
TREE = "sleep 300 & setsid sleep 301 & echo ready; wait"
ARGV = ("/bin/sh", "-c", TREE)
GRACE = 0.3


@dataclass
class Way:
    name: str
    once: Callable[[dict[str, str], str], Awaitable[tuple[float, float]]]
    starts: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    survivors: int = 0


async def ready(mark: str) -> None:
    """All three are there, under their own names."""
    while sum(name == "sleep" for name in marked(mark).values()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def bare(env: dict[str, str], mark: str) -> tuple[float, float]:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*ARGV, env=env, stdout=subprocess.DEVNULL)
    started = time.perf_counter()
    await ready(mark)
    stopping = time.perf_counter()
    process.terminate()
    await process.wait()
    return started - began, time.perf_counter() - stopping


async def by_anyio(env: dict[str, str], mark: str) -> tuple[float, float]:
    began = time.perf_counter()
    async with await anyio.open_process(ARGV, env=env, stdout=subprocess.DEVNULL) as process:
        started = time.perf_counter()
        await ready(mark)
        stopping = time.perf_counter()
        process.terminate()
        await process.wait()
        stopped = time.perf_counter()
    return started - began, stopped - stopping


async def by_psutil(env: dict[str, str], mark: str) -> tuple[float, float]:
    import psutil

    began = time.perf_counter()
    # Not asyncio's: psutil waits for the child itself, and takes its exit status away.
    process = subprocess.Popen(ARGV, env=env, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    started = time.perf_counter()
    await ready(mark)
    stopping = time.perf_counter()
    parent = psutil.Process(process.pid)
    members = [*parent.children(recursive=True), parent]
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, alive = await asyncio.to_thread(psutil.wait_procs, members, GRACE)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    stopped = time.perf_counter()
    process.poll()
    return started - began, stopped - stopping


async def by_processkit(env: dict[str, str], mark: str) -> tuple[float, float]:
    import processkit

    command = processkit.Command(ARGV[0], list(ARGV[1:]))
    for name, value in env.items():
        command = command.env(name, value)
    began = time.perf_counter()
    task = asyncio.ensure_future(command.aoutput())
    await asyncio.sleep(0)
    started = time.perf_counter()
    await ready(mark)
    stopping = time.perf_counter()
    task.cancel()
    with contextlib.suppress(BaseException):
        await task
    return started - began, time.perf_counter() - stopping


def by_unit(*, cgroup: bool) -> Callable[[dict[str, str], str], Awaitable[tuple[float, float]]]:
    async def once(env: dict[str, str], mark: str) -> tuple[float, float]:
        policy = StopPolicy(grace=GRACE)
        unit = ProcessUnit(ARGV, env=env, stop=policy, cgroup=cgroup)
        began = time.perf_counter()
        async with unit:
            started = time.perf_counter()
            await ready(mark)
            stopping = time.perf_counter()
            report = await unit.stop()
            stopped = time.perf_counter()
        assert report.process is not None
        assert report.process.verified_empty == "yes"
        return started - began, stopped - stopping

    return once


def marked(mark: str) -> dict[int, str]:
    needle = f"{MARK}={mark}".encode()
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read()
            with open(f"/proc/{name}/stat", "rb") as file:
                head, _, rest = file.read().rpartition(b")")
        except OSError:
            continue
        if needle in environment.split(b"\0") and rest.split()[0] != b"Z":
            found[int(name)] = head.partition(b"(")[2].decode()
    return found


async def measure(rounds: int) -> list[Way]:
    ways = [
        Way("asyncio.create_subprocess_exec, terminate", bare),
        Way("anyio.open_process, terminate", by_anyio),
        Way("stopkit unit (subreaper)", by_unit(cgroup=False)),
        Way("stopkit unit (cgroup where there is one)", by_unit(cgroup=True)),
    ]
    if importlib.util.find_spec("psutil"):
        ways.insert(2, Way("psutil's recipe for a tree", by_psutil))
    if importlib.util.find_spec("processkit"):
        ways.insert(3, Way("processkit (Rust), output() cancelled", by_processkit))
    for turn in range(-1, rounds):
        for way in ways:
            mark = secrets.token_hex(8)
            start, stop = await way.once({**os.environ, MARK: mark}, mark)
            left = marked(mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if turn < 0:
                # The first turn warms up: imports, the broker.
                continue
            way.starts.append(start * 1000)
            way.stops.append(stop * 1000)
            way.survivors += len(left)
    return ways


async def many(number: int) -> tuple[float, float, int]:
    mark = secrets.token_hex(8)
    env = {**os.environ, MARK: mark}
    units = [ProcessUnit(ARGV, env=env, stop=StopPolicy(grace=5.0)) for _ in range(number)]
    began = time.perf_counter()
    await asyncio.gather(*(unit.start() for unit in units))
    started = time.perf_counter()
    reports = await asyncio.gather(*(unit.stop() for unit in units))
    stopped = time.perf_counter()
    assert all(r.process is not None and r.process.verified_empty == "yes" for r in reports)
    return started - began, stopped - started, len(marked(mark))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    ways = asyncio.run(measure(arguments.rounds))
    base = statistics.median(ways[0].starts)
    print(f"a tree of 3, medians of {arguments.rounds} rounds, milliseconds\n")
    print("| way | start | x bare | stop and verify | survivors |")
    print("|---|---|---|---|---|")
    for way in ways:
        start, stop = statistics.median(way.starts), statistics.median(way.stops)
        per = way.survivors / arguments.rounds
        print(f"| {way.name} | {start:.1f} | {start / base:.1f} | {stop:.1f} | {per:.1f} of 3 |")
    unit = statistics.median(ways[-2].starts)
    print(f"\nthe goal for a start is {1.5 * base + 5:.1f} (1.5 x bare + 5); it took {unit:.1f}")
    start, stop, left = asyncio.run(many(200))
    print(f"200 units at once: started in {start:.2f} s, stopped in {stop:.2f} s, {left} left")


if __name__ == "__main__":
    main()
