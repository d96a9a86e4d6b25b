"""A host of beasts: starts each as a unit, stops it once its tree stands, prints the report.

    zoo_host.py '{"beasts": {NAME: MARK, ...}, "dir": ..., "cgroup": true, "python": ...}'

One line of JSON for each beast: its name, the report and what marks were alive right after it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from units.truth import MARK, marked, until

from stopkit.stop import StopPolicy
from stopkit.units import ProcessUnit

BEASTS = str(Path(__file__).with_name("beasts.py"))
POLICY = StopPolicy(grace=0.3, verify_wait=3.0, output_wait=0.3)


async def one(name, mark, job):
    ready = f"{job['dir']}/{name}-{mark}"
    env = {"PATH": os.defpath, MARK: mark, "STOPKIT_READY": ready}
    python = job.get("python") or sys.executable
    unit = ProcessUnit(
        [python, "-S", "-E", BEASTS, name],
        env=env,
        cwd="/",
        cgroup=job["cgroup"],
        stop=POLICY,
    )
    async with unit:
        # Some are over before they can say so.
        await asyncio.to_thread(until, lambda: os.path.exists(ready) or unit.ended, within=60)
        report = await unit.stop()
    left = sorted(marked(mark))
    print(json.dumps({"beast": name, "left": left, "report": report.to_dict()}), flush=True)


async def main(job):
    slots = asyncio.Semaphore(3)

    async def guarded(name, mark):
        async with slots:
            await one(name, mark, job)

    await asyncio.gather(*(guarded(name, mark) for name, mark in job["beasts"].items()))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
