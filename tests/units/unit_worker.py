"""A worker whose tools are process units, killed with SIGKILL at a chosen point.

Started once, it forks a fresh worker for every line it reads, and answers how that ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from units.truth import MARK, until

from stopkit.history import ToolCall
from stopkit.stop import StopPolicy
from stopkit.store import SqlStore
from stopkit.tool import ToolContext, tool
from stopkit.units import ProcessUnit, StoreRecords, attend

BEASTS = str(Path(__file__).with_name("beasts.py"))


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Killer:
    """A pause hook; it dies at the wanted visit of the wanted point, and may ask for a stop."""

    def __init__(self, task):
        self.task = task
        self.visits = Counter()
        self.scope = None

    def visit(self, point):
        self.visits[point] += 1
        if (point, self.visits[point]) == (self.task["point"], self.task["visit"]):
            die()

    async def __call__(self, point, run):
        if point == "after_dispatch" and self.visits[point] == 1 and self.task["stops"]:
            self.scope.signal.request("user")
        self.visit(point)


class Records(StoreRecords):
    def __init__(self, store, run, killer):
        super().__init__(store, run)
        self.killer = killer

    async def intended(self, handle):
        await super().intended(handle)
        self.killer.visit("unit_intended")

    async def started(self, handle):
        await super().started(handle)
        self.killer.visit("unit_started")

    async def ended(self, handle, report):
        self.killer.visit("unit_ending")
        await super().ended(handle, report)
        self.killer.visit("unit_ended")


async def work(task):
    killer = Killer(task)
    store = SqlStore(task["url"], synchronous="NORMAL", pause=killer)
    environment = {"PATH": os.defpath, MARK: task["mark"][::-1], "STOPKIT_READY": task["ready"]}
    policy = StopPolicy(grace=1.0)

    def unit(argv, ctx):
        records = Records(store, ctx.run, killer)
        return ProcessUnit(argv, env=environment, key=ctx.key, records=records, stop=policy)

    @tool(effect="write", status=None)
    async def quick(ctx: ToolContext) -> str:
        return await attend(unit(["/bin/echo", "quick"], ctx), ctx)

    @tool(effect="write", status=None)
    async def long(ctx: ToolContext) -> str:
        argv = [sys.executable, "-S", "-E", BEASTS, task["beast"]]
        beast = asyncio.ensure_future(attend(unit(argv, ctx), ctx))
        if task["point"] == "unit_running":
            await asyncio.to_thread(until, lambda: os.path.exists(task["ready"]))
            die()
        return await beast

    async def send():
        await asyncio.sleep(0)

    scope = await store.open_run(session="s1", stop=policy)
    killer.scope = scope
    async with scope:
        await scope.model_request(send)
        await scope.run_call(ToolCall("c0", "quick", {}), [quick])
        await scope.run_call(ToolCall("c1", "long", {}), [long])
    store.close()


def main():
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            asyncio.run(work(json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
