"""Any schedule of work, presses, cancels and steers: hypothesis over the whole scope."""

from __future__ import annotations

import asyncio

from engine.promises import keeps_its_promises
from engine.world import call, virtual
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stopkit.errors import StopRequested
from stopkit.stop import StopPolicy

times = st.floats(0, 6).map(lambda seconds: round(seconds, 2))
works = st.lists(
    st.tuples(st.sampled_from(["look", "write", "nothing"]), times), min_size=1, max_size=5
)
actions = st.lists(
    st.tuples(times, st.sampled_from(["press", "record", "cancel", "steer", "full", "mended"])),
    max_size=6,
)
policies = st.builds(
    StopPolicy,
    grace=st.sampled_from([0.0, 0.5, 3.0]),
    verify_wait=st.sampled_from([0.0, 0.5, 2.0]),
    output_wait=st.sampled_from([0.1, 0.5]),
    queued=st.just("drop"),
    deadline=st.sampled_from([None, 1.0]),
)


# Without shrinking: an example is a whole run, and says itself what it was.
@settings(max_examples=80, phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
@given(
    works=st.lists(works, min_size=1, max_size=3),
    actions=actions,
    policy=policies,
    limit=st.none() | st.integers(1, 2),
    deadline=st.none() | st.sampled_from([0.5, 2.0, 5.0]),
    loses_reply=st.booleans(),
)
def test_any_schedule_keeps_the_promises(works, actions, policy, limit, deadline, loses_reply):
    async def main(world):
        world.service.loses_reply = loses_reply
        scope = await world.open(deadline=deadline, stop=policy)

        async def body():
            async with scope:
                for turn, calls in enumerate(works):
                    await scope.model_request(lambda: asyncio.sleep(0.5))
                    scope.steers_due()
                    batch = []
                    for number, (name, seconds) in enumerate(calls):
                        arguments = {"seconds": seconds} if name == "look" else {"what": "x"}
                        batch.append(call(name, f"{turn}.{number}", **arguments))
                    world.service.seconds = calls[0][1]
                    await scope.run_calls(batch, world.tools, limit=limit)

        task = asyncio.create_task(body())

        async def act():
            for seconds, action in sorted(actions):
                await asyncio.sleep(max(0.0, seconds - world.clock.monotonic()))
                match action:
                    case "press":
                        scope.signal.request("user")
                    case "record":
                        await world.store.request_stop(scope.id, "operator")
                    case "cancel":
                        task.cancel()
                    case "steer":
                        try:
                            await scope.steer("more")
                        except StopRequested:
                            pass
                    case "full":
                        world.service.seconds = 100.0
                    case _:
                        world.service.loses_reply = not world.service.loses_reply

        acting = asyncio.create_task(act())
        await asyncio.wait([task])
        ended = world.clock.monotonic()
        if scope.report.stop is not None and scope.report.stop.cause.kind != "deadline":
            asked = (await world.store.load(scope.id)).cancel_requested_at
            assert ended + 1_000_000.0 - asked <= policy.total + 1e-6
        await keeps_its_promises(world, scope)
        await asyncio.wait([acting])

    virtual(main)
