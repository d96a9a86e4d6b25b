"""What is known of a unit before its start: enough to find and end it after a crash."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from stopkit.units.facts import Emptiness, UnitReport
from stopkit.units.warden import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHandle:
    """One process unit, as a later process finds it.

    `marker` is in the environment of every process of the unit; `since` is the tick of the clock
    since boot before which none of them started.  `host` ran the unit, on `machine`.  `leader` and
    `warden` are None until the start is recorded.  `receipt` is the file in which the warden leaves
    the end that it could tell nobody.  `ended` is how the end left it, None while it has none.
    """

    id: str
    run: str | None
    key: str | None
    argv: tuple[str, ...]
    marker: str
    boot_id: str
    since: int
    host: Identity
    machine: str
    detached: bool
    cgroup: str | None = None
    receipt: str | None = None
    leader: Identity | None = None
    warden: Identity | None = None
    ended: Emptiness | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> UnitHandle:
        facts: dict[str, Any] = json.loads(text)
        facts["argv"] = tuple(facts["argv"])
        for name in ("host", "leader", "warden"):
            if facts[name] is not None:
                facts[name] = tuple(facts[name])
        return cls(**facts)


class UnitRecords(Protocol):
    """Where a unit's life is written down."""

    run: str | None

    async def intended(self, handle: UnitHandle) -> None:
        """Written before the start; where it raises, nothing starts."""
        ...

    async def started(self, handle: UnitHandle) -> None: ...

    async def ended(self, handle: UnitHandle, report: UnitReport) -> None: ...


def ticks_now() -> int:
    """The clock that `/proc` gives start times on; one tick early, as it rounds down."""
    # A process's start is read from the system: no injected clock would fit it.
    boot = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
    return max(0, int(boot * os.sysconf("SC_CLK_TCK")) - 1)


def receipt_path(unit: str) -> str | None:
    """A file in a directory that is this user's alone; None where there can be none."""
    directory = os.path.join(tempfile.gettempdir(), f"stopkit-{os.geteuid()}")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError:
        return None
    # Somebody else's directory of this name would let them write our receipts.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return None
    return os.path.join(directory, f"{unit}.json")
