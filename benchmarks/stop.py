"""What a stop and a durable step cost, beside what others take for theirs.

`python benchmarks/stop.py [--quick]` prints one table.  Every ratio compares two figures of the
same run, taken in turns, so that a busy machine disturbs both; each is the median of its rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from stopkit import MemoryStore, SqlStore, StopPolicy, StopSignal, ToolCall, tool
from stopkit.events import Event
from stopkit.scope import RunScope
from stopkit.store import ledger
from stopkit.store.sqlite import Synchronous
from stopkit.testing import check_events

try:
    # Compared where it is installed.
    from pydantic_ai import CancellationToken  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    CancellationToken = None

ROUNDS = 5


@tool(effect="read")
async def nothing() -> str:
    return ""


def row(name: str, seconds: float, beside: str = "", ratio: float | None = None) -> None:
    units = (("ns", 1e9), ("us", 1e6), ("ms", 1e3))
    unit, factor = next((found for found in units if seconds * found[1] < 1000), ("s", 1.0))
    told = f"{seconds * factor:8.1f} {unit:2}"
    compared = f"   {ratio:6.2f} x {beside}" if ratio is not None else ""
    print(f"{name:62} {told}{compared}", flush=True)


def timed(work: Callable[[], object], times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


async def timed_async(work: Callable[[], Awaitable[object]], times: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(times):
        await work()
    return (time.perf_counter() - started) / times


def checkpoints() -> None:
    signal = StopSignal()
    bounded = StopSignal(deadline=3600)

    class Flag:
        requested = False

        def check(self) -> None:
            if self.requested:
                raise RuntimeError

    flag = Flag()
    plain, ours, timely = [], [], []
    for _ in range(ROUNDS):
        plain.append(timed(flag.check, 200_000))
        ours.append(timed(signal.checkpoint, 200_000))
        timely.append(timed(bounded.checkpoint, 200_000))
    base = statistics.median(plain)
    row("a method that looks at a flag", base)
    row("checkpoint()", statistics.median(ours), "flag", statistics.median(ours) / base)
    row(
        "checkpoint() with a deadline",
        statistics.median(timely),
        "flag",
        statistics.median(timely) / base,
    )


async def seen_by_children(count: int) -> None:
    """From the request until the last of `count` sleeping children has ended."""
    ours, groups, anyios, tokens = [], [], [], []
    for _ in range(ROUNDS if count < 5000 else 3):
        signal = StopSignal()

        async def child(signal: StopSignal = signal) -> None:
            try:
                await signal.child().sleep(3600)
            except Exception:
                return

        tasks = [asyncio.create_task(child()) for _ in range(count)]
        await asyncio.sleep(0)
        started = time.perf_counter()
        signal.request()
        await asyncio.gather(*tasks)
        ours.append(time.perf_counter() - started)

        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError

        started = 0.0
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(asyncio.sleep(3600))
                await asyncio.sleep(0)
                started = time.perf_counter()
                raise KeyError
        except BaseExceptionGroup:
            groups.append(time.perf_counter() - started)

        async with anyio.create_task_group() as nursery:
            for _ in range(count):
                nursery.start_soon(asyncio.sleep, 3600)
            await asyncio.sleep(0)
            started = time.perf_counter()
            nursery.cancel_scope.cancel()
        anyios.append(time.perf_counter() - started)
        if CancellationToken is not None:
            token = CancellationToken()
            started = time.perf_counter()
            token.cancel()
            tokens.append(time.perf_counter() - started)
    median = statistics.median(ours)
    name = f"request() seen by {count} sleeping children"
    row(name, median, "TaskGroup", median / statistics.median(groups))
    row("  asyncio.TaskGroup", statistics.median(groups))
    row("  anyio task group", statistics.median(anyios))
    if tokens:
        row("  pydantic-ai token, request only", statistics.median(tokens))


async def to_door_closed() -> None:
    store = MemoryStore()
    closed, ended = [], []
    for _ in range(50):
        scope = await store.open_run(session="s")

        async def body(scope: RunScope = scope) -> None:
            async with scope:
                await asyncio.sleep(3600)

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        started = time.perf_counter()
        scope.signal.request("user")
        closed.append(time.perf_counter() - started)
        await task
        ended.append(time.perf_counter() - started)
    store.close()
    row("stop: asked to door closed", statistics.median(closed))
    row("stop: asked to ended, in memory, one sleeping body", statistics.median(ended))


async def door_overhead() -> None:
    store = MemoryStore()
    bare, ours = [], []

    async def call_it() -> str:
        return ""

    async with await store.open_run(session="s") as scope:
        number = 0

        async def through_the_door() -> None:
            nonlocal number
            number += 1
            await scope.run_call(ToolCall(f"c{number}", "nothing", {}), [nothing])

        for _ in range(ROUNDS):
            bare.append(await timed_async(call_it, 10_000))
            ours.append(await timed_async(through_the_door, 200))
    store.close()
    row("a bare await", statistics.median(bare))
    row("the same as a call through the door, in memory", statistics.median(ours))


def bare_commits(path: Path, synchronous: Synchronous, times: int) -> Callable[[], float]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")

    def commit() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (b) VALUES ('x')")
        connection.execute("COMMIT")

    return lambda: timed(commit, times)


async def durable_steps(folder: Path, synchronous: Synchronous, quick: bool) -> None:
    times = 50 if quick else 200
    bare = bare_commits(folder / f"bare-{synchronous}.db", synchronous, times)
    store = SqlStore(f"sqlite:///{folder / f'ours-{synchronous}.db'}", synchronous=synchronous)
    scopes = [await store.open_run(session="s") for _ in range(100)]
    for scope in scopes:
        await store.write(partial(ledger.start_run, run=scope.id, at=1.0))

    async def step(scope: RunScope) -> None:
        await store.write(partial(ledger.begin_request, run=scope.id, at=1.0))

    async def all_at_once() -> None:
        await asyncio.gather(*(step(scope) for scope in scopes))

    alone, base, together = [], [], []
    for _ in range(ROUNDS):
        base.append(bare())
        alone.append(await timed_async(lambda: step(scopes[0]), times))
        base.append(bare())
        together.append(await timed_async(all_at_once, max(2, times // 20)) / len(scopes))
    commit = statistics.median(base)
    row(f"one bare commit, synchronous={synchronous}", commit)
    one = statistics.median(alone)
    row("  a durable step alone (at most 3 x)", one, "commit", one / commit)
    many = statistics.median(together)
    row("  a durable step, 100 runs at once (at most 1.3 x)", many, "commit", many / commit)
    store.close()


async def events_and_growth(folder: Path, quick: bool) -> None:
    store = SqlStore(f"sqlite:///{folder / 'events.db'}")
    scope = await store.open_run(session="s")
    await store.write(partial(ledger.start_run, run=scope.id, at=1.0))
    sizes = (1_000, 5_000) if quick else (1_000, 10_000, 50_000)
    done = 2
    for size in sizes:
        batch = size - done
        started = time.perf_counter()
        futures = [
            store.submit(lambda tx: tx.event(scope.id, "text.partial", 1.0, {"text": "t"}))
            for _ in range(batch)
        ]
        await asyncio.gather(*map(asyncio.wrap_future, futures))
        written = time.perf_counter() - started
        done = size
        started = time.perf_counter()
        events: tuple[Event, ...] = await store.events(scope.id)
        replayed = time.perf_counter() - started
        step = await timed_async(
            lambda: store.write(partial(ledger.begin_request, run=scope.id, at=1.0)), 50
        )
        done += 50
        assert len(events) == size
        assert not [found for found in check_events(events) if found.code == "gap"]
        print(
            f"a run with {size:6} events: {batch / written:9.0f} written/s"
            f" {size / replayed:9.0f} replayed/s   a step {step * 1e6:6.0f} us"
        )
    known = 1
    for count in (100, 1_000) if quick else (100, 1_000, 10_000):
        await asyncio.gather(*(store.open_run(session="s2") for _ in range(count - known)))
        known = count
        step = await timed_async(
            lambda: store.write(partial(ledger.begin_request, run=scope.id, at=1.0)), 100
        )
        print(f"a store with {count:6} runs: a step {step * 1e6:6.0f} us")
    store.close()


def resident() -> int:
    """Bytes of memory that this process has (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def many_runs(count: int) -> None:
    gc.collect()
    before = resident()
    store = MemoryStore()
    policy = StopPolicy(grace=120)
    scopes = [await store.open_run(session="s", stop=policy) for _ in range(count)]

    async def body(scope: RunScope) -> None:
        async with scope:
            await scope.model_request(lambda: asyncio.sleep(3600))

    tasks = [asyncio.create_task(body(scope)) for scope in scopes]
    for _ in range(20):
        await asyncio.sleep(0)
    memory = (resident() - before) / count
    started = time.perf_counter()
    for scope in scopes:
        scope.signal.request("shutdown")
    closed = time.perf_counter() - started
    await asyncio.gather(*tasks)
    ended = time.perf_counter() - started
    store.close()
    row(f"{count} runs stopped at once: all doors closed", closed)
    row("  all ended, per run", ended / count)
    print(f"  memory per run, record in memory included: {memory / 1024:.1f} KiB")


async def main(quick: bool) -> None:
    # First, while the memory that it counts is not yet used by anything else.
    await many_runs(1_000 if quick else 10_000)
    checkpoints()
    await to_door_closed()
    for count in (1, 100, 1_000 if quick else 10_000):
        await seen_by_children(count)
    await door_overhead()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        for synchronous in ("FULL", "NORMAL"):
            await durable_steps(folder, synchronous, quick)
        await events_and_growth(folder, quick)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller counts")
    asyncio.run(main(parser.parse_args().quick))
