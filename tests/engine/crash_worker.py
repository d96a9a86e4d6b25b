"""The worker that is killed.  Started once, it forks a fresh worker for every line it reads.

A line says where to die; the answer is how the worker ended, as `os.waitpid` tells it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys

from engine.service import tools_of

from stopkit.history import ToolCall
from stopkit.pauses import POINTS
from stopkit.store import SqlStore
from stopkit.testing import CountingIds, crash_at

CALLS = (("write", "one"), ("look", "two"), ("write", "three"))


def calls_of(session):
    return [
        ToolCall(f"c{number}", name, {"what": f"{session}-{what}"})
        for number, (name, what) in enumerate(CALLS)
    ]


class SessionIds(CountingIds):
    """Ids that the other side knows: the session's name is in them."""

    def __init__(self, session):
        super().__init__()
        self.session = session

    def __call__(self, kind):
        return f"{super().__call__(kind)}_{self.session}"


async def work(task):
    session = task["session"]
    crash = crash_at(task["point"], visit=task["visit"])
    if task["stops"]:
        crash.at(task["stops"], lambda: scope.signal.request("user") and None)
    store = SqlStore(task["url"], synchronous="NORMAL", pause=crash, ids=SessionIds(session))
    tools = tools_of(task["port"])

    async def send():
        await asyncio.sleep(0)

    async with await store.open_run(session=session) as scope:
        calls = calls_of(session)
        await scope.steer("hurry")
        await scope.model_request(send)
        await scope.save([{"calls": [call.id for call in calls]}])
        scope.steers_due()
        await scope.run_calls(calls[:1], tools)
        await scope.run_calls(calls[1:], tools)
        await scope.model_request(send)
    store.close()


def main():
    assert POINTS
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            # A worker that hangs says where, and dies by another signal than the test's.
            faulthandler.dump_traceback_later(50, exit=False)
            signal.alarm(60)
            try:
                asyncio.run(work(json.loads(line)))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
