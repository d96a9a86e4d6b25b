"""Recorded runs, replayed: the same script has to give the same events, to the byte.

`STOPKIT_RECORD=1` writes the recordings anew, for a change of the log that is meant.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from engine.world import call, virtual

from stopkit.events import Event
from stopkit.metrics import metrics
from stopkit.stop import StopPolicy
from stopkit.testing import check_events

TRACES = Path(__file__).parent / "traces"


def later(seconds, action):
    asyncio.get_running_loop().call_later(seconds, action)


async def stopped_in_a_stream(world):
    async with await world.open() as scope:
        text = scope.text()

        async def stream():
            for word in ["one", "two", "three", "four"]:
                await asyncio.sleep(0.3)
                text.append(word)

        later(1.0, lambda: scope.signal.request("user", actor="ann", words="enough"))
        await scope.model_request(stream)


async def stopped_after_a_dispatch(world):
    world.service.seconds = 100.0
    async with await world.open(stop=StopPolicy(grace=2)) as scope:
        await scope.model_request(lambda: asyncio.sleep(0.5))
        later(1.0, scope.signal.request)
        await scope.run_calls(
            [call("look", "a"), call("write", "b", what="x"), call("look", "c", seconds=50)],
            world.tools,
        )
    await world.store.reconcile(scope.id, world.tools)
    async with await world.store.resume_run(scope.id) as second:
        await second.model_request(lambda: asyncio.sleep(0.5))


async def pressed_three_times(world):
    world.service.seconds = 100.0
    async with await world.open(stop=StopPolicy(grace=60)) as scope:
        for seconds in (1.0, 2.0, 2.1):
            later(seconds, scope.signal.request)
        await scope.run_calls([call("write", what="x")], world.tools)


async def out_of_time(world):
    async with await world.open(deadline=3) as scope:
        await scope.steer("hurry")
        while True:
            await scope.model_request(lambda: asyncio.sleep(1))
            scope.steers_due()
            await scope.run_calls([call("look", seconds=0.5)], world.tools)


async def a_worker_lost(world):
    scope = await world.open()
    held = world.pauses.hold("after_dispatch")
    async with scope:
        work = asyncio.create_task(scope.run_calls([call("write", what="x")], world.tools))
        await world.pauses.reached("after_dispatch")
        await world.store.take_over(scope.id)
        (operation,) = await world.store.pending(scope.id)
        await world.store.decide(
            scope.id, operation.key, "did_not_happen", by="ann", words="I looked"
        )
        scope.signal.request("operator")
        held.set()
        await work


SCRIPTS = [
    stopped_in_a_stream,
    stopped_after_a_dispatch,
    pressed_three_times,
    out_of_time,
    a_worker_lost,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.__name__ for script in SCRIPTS])
def test_a_recorded_run_replays(script):
    async def main(world):
        await script(world)
        return [
            event
            for run in await world.store.runs("s1")
            for event in await world.store.events(run.id)
        ]

    events = virtual(main)
    path = TRACES / f"{script.__name__}.jsonl"
    lines = [event.to_json() for event in events]
    if os.environ.get("STOPKIT_RECORD") == "1":
        TRACES.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    recorded = path.read_text().splitlines()
    assert lines == recorded
    replayed = [Event.from_json(line) for line in recorded]
    assert replayed == events
    assert check_events(replayed) == []
    assert metrics(replayed).started_after_request == 0
