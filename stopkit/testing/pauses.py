"""Hold a run at a named point, do something there, or kill the process there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stopkit.pauses import POINTS, PausePoint

Action: TypeAlias = Callable[[], Awaitable[None] | None]


class Pauses:
    """A pause hook for a store: `SqlStore(url, pause=pauses)`.

    `visits` counts every arrival.  An action is taken at one visit of a point, the first unless
    `visit` says another.  `run` limits all this to one run's visits.
    """

    def __init__(self) -> None:
        self.run: str | None = None
        self.visits: Counter[PausePoint] = Counter()
        self._actions: dict[tuple[PausePoint, int], Action] = {}
        self._arrived: dict[PausePoint, asyncio.Event] = {}

    def at(self, point: PausePoint, action: Action, *, visit: int = 1) -> None:
        """Take `action` at a point; a run is held there while it is awaited."""
        if point not in POINTS:
            raise ValueError(f"no such pause point: {point!r}")
        self._actions[(point, visit)] = action

    def hold(self, point: PausePoint, *, visit: int = 1) -> asyncio.Event:
        """Hold a run at a point until the event that this returns is set."""
        release = asyncio.Event()

        async def wait() -> None:
            await release.wait()

        self.at(point, wait, visit=visit)
        return release

    async def reached(self, point: PausePoint) -> None:
        """Wait until a run has come to a point."""
        if not self.visits[point]:
            await self._arrived.setdefault(point, asyncio.Event()).wait()

    async def __call__(self, point: PausePoint, run: str) -> None:
        if self.run not in (None, run):
            return
        self.visits[point] += 1
        if point in self._arrived:
            self._arrived[point].set()
        action = self._actions.get((point, self.visits[point]))
        if action is not None:
            result = action()
            if result is not None:
                await result


def crash_at(point: PausePoint, *, visit: int = 1) -> Pauses:
    """Pauses that kill this process at a point, as a power cut would: nothing is cleaned up."""
    pauses = Pauses()
    pauses.at(point, lambda: os.kill(os.getpid(), signal.SIGKILL), visit=visit)
    return pauses
