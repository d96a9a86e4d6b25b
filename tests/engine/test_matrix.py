"""Every pause point times every way to be stopped there, with a run at work on everything."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from engine.promises import keeps_its_promises
from engine.world import call, virtual

from stopkit.pauses import POINTS
from stopkit.stop import StopPolicy
from stopkit.tool import tool

WAYS = ("stop", "deadline", "parent", "shutdown", "raw_cancel", "second_stop", "third_stop")
CAUSES = {
    "stop": "user",
    "deadline": "deadline",
    "parent": "parent",
    "shutdown": "shutdown",
    "raw_cancel": "parent",
    "second_stop": "user",
    "third_stop": "user",
}
POLICY = StopPolicy(grace=2, verify_wait=1)

# Points that a run which nobody stops comes to by its own end.
AT_THE_END = ("in_cleanup", "before_end")


class Case:
    """One run, with all kinds of work, stopped in one way at one point."""

    def __init__(self, world, way):
        self.world = world
        self.way = way
        self.scope = None
        self.parent = None
        self.task = None
        self.asked_at = None

    async def strike(self):
        """Ask for the stop, then hold the point for a while."""
        self.asked_at = self.world.clock.monotonic()
        match self.way:
            case "deadline":
                self.world.clock.advance(60)
                self.asked_at = self.world.clock.monotonic()
            case "parent":
                self.parent.signal.request("user")
            case "shutdown":
                self.scope.signal.request("shutdown")
            case "raw_cancel":
                self.task.cancel()
            case _:
                for _ in range(("stop", "second_stop", "third_stop").index(self.way) + 1):
                    self.scope.signal.request("user")
        await asyncio.sleep(0.5)

    async def body(self):
        world, scope = self.world, self.scope

        @tool(effect="write", status=None)
        async def plain(what: str) -> str:
            world.entered.append("plain")
            return await world.service.write(f"plain {what}")

        async def send():
            await asyncio.sleep(1)
            text = scope.text()
            text.append("hello")
            text.finish()

        async def cleanup():
            await scope.run_calls([call("tidy", "t")], world.tools)

        async with scope:
            scope.on_cleanup(cleanup)
            for turn in range(2):
                await scope.steer(f"steer {turn}")
                await scope.model_request(send)
                scope.steers_due()
                await scope.run_calls(
                    [
                        call("look", f"a{turn}", seconds=1),
                        call("write", f"b{turn}", what=f"{turn}"),
                        call("plain", f"c{turn}", what=f"{turn}"),
                        call("look", f"d{turn}"),
                    ],
                    [*world.tools, plain],
                    limit=3,
                )

    async def run(self):
        async with await self.world.open() as self.parent:
            self.scope = await self.world.open(
                deadline=60 if self.way == "deadline" else None,
                stop=POLICY,
                parent=self.parent if self.way == "parent" else None,
            )
            self.world.pauses.run = self.scope.id
            self.task = asyncio.create_task(self.body())
            await asyncio.wait([self.task])
        # The parent's stop has ended its own wait.
        await asyncio.wait([self.task])


@pytest.mark.parametrize(("point", "way", "visit"), list(itertools.product(POINTS, WAYS, (1, 2))))
def test_every_point_and_every_way(point, way, visit):
    async def main(world):
        case = Case(world, way)
        world.pauses.at(point, case.strike, visit=visit)
        await case.run()
        scope = case.scope
        report = scope.report
        reached = world.pauses.visits[point] >= visit
        assert reached == (case.asked_at is not None)
        ended_at = world.clock.monotonic()

        # 10: it ends by its deadline.
        if reached:
            assert ended_at - case.asked_at <= POLICY.total + 0.5

        record = await keeps_its_promises(world, scope)

        if reached and report.stop is not None:
            assert report.stop.cause.kind == CAUSES[way]
            assert record.cause == report.stop.cause
        if reached and point not in AT_THE_END:
            assert report.stop is not None
            if not report.to_reconcile:
                assert record.status == "cancelled"
        if way == "third_stop" and reached:
            assert record.presses == 3

    virtual(main)
