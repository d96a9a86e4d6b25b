"""Ten thousand runs in one process, stopped at once."""

from __future__ import annotations

import asyncio
import time

from engine.world import call

from stopkit.metrics import metrics
from stopkit.stop import StopPolicy
from stopkit.store import MemoryStore
from stopkit.tool import tool

RUNS = 10_000


@tool(effect="read")
async def wait() -> str:
    await asyncio.sleep(3600)
    return ""


def test_ten_thousand_runs_end_by_their_deadline():
    async def main():
        store = MemoryStore()
        policy = StopPolicy(grace=60, verify_wait=5, output_wait=5)
        scopes = [await store.open_run(session="s1", stop=policy) for _ in range(RUNS)]

        async def body(number, scope):
            async with scope:
                if number % 10:
                    await asyncio.sleep(3600)
                await scope.run_calls([call("wait")], [wait])

        tasks = [asyncio.create_task(body(*numbered)) for numbered in enumerate(scopes)]
        # Some are at their tool by then, some on the way there: all are alike to a stop.
        for _ in range(10):
            await asyncio.sleep(0)
        started = time.monotonic()
        for scope in scopes:
            scope.signal.request("operator")
        closed = time.monotonic() - started
        await asyncio.gather(*tasks)
        ended = time.monotonic() - started
        assert closed < ended < policy.total
        for scope in scopes:
            assert scope.report.status == "cancelled"
            assert scope.report.unconfirmed == ()
        for scope in scopes[:: RUNS // 100]:
            assert metrics(await store.events(scope.id)).started_after_request == 0
        store.close()
        return closed, ended

    asyncio.run(main())
