"""A host that is killed with SIGKILL at a chosen moment of a unit's life.

doomed_host.py '{"phase": NAME, "mark": MARK, "ready": FILE, "cgroup": true}'
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from units.truth import MARK, until

from stopkit.stop import StopPolicy
from stopkit.units import ProcessUnit
from stopkit.units.broker import BROKER

BEASTS = str(Path(__file__).with_name("beasts.py"))


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def dies_around_send(*, before):
    send = BROKER.send

    async def doomed(message, fds):
        if before:
            # The broker is there, and knows of nothing.
            BROKER._started()
            die()
        await send(message, fds)
        die()

    BROKER.send = doomed


async def main(job):
    phase = job["phase"]
    env = {"PATH": os.defpath, MARK: job["mark"][::-1], "STOPKIT_READY": job["ready"]}
    unit = ProcessUnit(
        [sys.executable, "-S", "-E", BEASTS, job.get("beast", "daemon")],
        env=env,
        cgroup=job["cgroup"],
        stop=StopPolicy(grace=20.0),
        detach=phase == "detached",
    )
    if phase in ("before_send", "after_send"):
        dies_around_send(before=phase == "before_send")
    await unit.start()
    if phase == "started":
        die()
    await asyncio.to_thread(until, lambda: os.path.exists(job["ready"]), within=60)
    if phase == "detached":
        print(json.dumps({"warden": unit.handle.warden[0]}), flush=True)
    if phase == "forked" and os.fork() == 0:
        # It keeps every descriptor of the host open, the control sockets among them.
        print(json.dumps({"child": os.getpid()}), flush=True)
        os.close(1)
        signal.alarm(60)
        while True:
            signal.pause()
    if phase == "forked":
        await asyncio.sleep(0)
    if phase == "stopping":
        unit.request_stop()
        # The tree has been told, and takes its time.
        await asyncio.to_thread(until, lambda: os.path.exists(job["ready"] + ".told"), within=60)
    if phase == "ended":
        await unit.stop()
    die()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
