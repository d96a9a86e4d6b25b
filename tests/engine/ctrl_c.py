"""A process with a write under way, for tests that send it signals.

`python -m engine.ctrl_c URL GRACE helper|bare`
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from stopkit.history import ToolCall
from stopkit.signal import stop_on_signals
from stopkit.stop import StopPolicy
from stopkit.store import SqlStore
from stopkit.testing import CountingIds
from stopkit.tool import ToolContext, tool


@tool(effect="write", status=None)
async def write(ctx: ToolContext) -> str:
    await ctx.dispatched()
    print("ready", flush=True)
    await asyncio.sleep(60)
    return ""


async def cleanup():
    print("cleanup", flush=True)


async def main():
    url, grace, mode = sys.argv[1:]
    store = SqlStore(url, ids=CountingIds())
    policy = StopPolicy(grace=float(grace), verify_wait=2, output_wait=10)
    scope = await store.open_run(session="s1", stop=policy)
    scope.signal.on_press(lambda: print("press", flush=True))
    helper = stop_on_signals(scope.signal) if mode == "helper" else contextlib.nullcontext()
    try:
        with helper:
            async with scope:
                scope.on_cleanup(cleanup)
                await scope.run_calls([ToolCall("c1", "write", {})], [write])
    finally:
        store.close()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
