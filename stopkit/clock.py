"""The one way in for time, and the one for ids."""

from __future__ import annotations

import time
import uuid
from typing import Final, Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; the event loop's timers run on the same."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for records."""
        ...


class Ids(Protocol):
    def __call__(self, kind: str) -> str:
        """A new id; `kind` (`run`, `steer`, ...) is its readable head."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def random_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


SYSTEM_CLOCK: Final[Clock] = SystemClock()
