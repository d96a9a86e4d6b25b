"""A store in memory, a clock that jumps, and a few tools with a service behind them."""

from __future__ import annotations

import asyncio
from collections import Counter

from stopkit.errors import ToolFailed
from stopkit.history import ToolCall
from stopkit.operation import Absent, Done, NoAnswer
from stopkit.store import MemoryStore
from stopkit.testing import CountingIds, Pauses, StoreFaults, check_events, run_virtual
from stopkit.tool import ToolContext, tool


class Service:
    """Counts what it did by key; it may lose the reply, or refuse."""

    def __init__(self):
        self.done = Counter()
        self.calls = Counter()
        self.seconds = 1.0
        self.loses_reply = False
        self.down = False
        self.cancelled = []

    async def write(self, key):
        self.calls[key] += 1
        if not self.done[key]:
            self.done[key] += 1
        await asyncio.sleep(self.seconds)
        if self.loses_reply:
            raise ConnectionError("connection lost")
        return f"written {key}"

    async def status(self, key):
        if self.down:
            raise ConnectionError("down")
        return Done("written", f"receipt {key}") if self.done[key] else Absent("never seen")

    async def cancel(self, key):
        self.cancelled.append(key)

    async def undo(self, operation):
        if not self.done[operation.key]:
            raise ToolFailed("no such thing", no_effects=True)
        del self.done[operation.key]
        return "undone"


class World:
    def __init__(self, clock):
        self.clock = clock
        self.pauses = Pauses()
        self.faults = StoreFaults()
        self.service = Service()
        self.store = MemoryStore(
            clock=clock, ids=CountingIds(), pause=self.pauses, fault=self.faults
        )
        self.entered = []
        service, entered = self.service, self.entered

        @tool(effect="read")
        async def look(seconds: float = 0.0) -> str:
            """Look at something."""
            entered.append("look")
            await asyncio.sleep(seconds)
            return "seen"

        @tool(effect="write", status=service.status, compensate=service.undo)
        async def write(ctx: ToolContext, what: str) -> str:
            entered.append("write")
            await ctx.dispatched()
            reply = await service.write(ctx.key)
            ctx.receipt(reply, provider_request_id=f"req-{ctx.key}")
            return reply

        @tool(effect="cleanup")
        async def tidy() -> str:
            entered.append("tidy")
            return "tidied"

        self.look, self.write, self.tidy = look, write, tidy
        self.tools = [look, write, tidy]

    def open(self, **options):
        return self.store.open_run(session="s1", **options)

    async def report(self, run):
        """The events of a run, checked."""
        events = await self.store.events(run)
        assert check_events(events) == []
        return events


def virtual(main, *, checked=True):
    """Run `main(world)` in no time, and check the log of every run at the end."""

    async def inside(clock):
        world = World(clock)
        try:
            result = await main(world)
            if checked:
                for run in await world.store.runs("s1"):
                    await world.report(run.id)
            left = [
                task.get_name()
                for task in asyncio.all_tasks()
                if task is not asyncio.current_task()
            ]
            assert left == []
            return result
        finally:
            world.store.close()

    return run_virtual(inside)


def call(name, call_id="c1", **arguments):
    return ToolCall(call_id, name, arguments)


def kinds(events):
    return [event.kind for event in events]


async def no_answer(_key):
    return NoAnswer("it cannot be asked")
