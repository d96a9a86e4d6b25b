"""What is durable of a unit, from before its start: enough to find and end it after a crash."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import sqlalchemy as sa
from pydantic import JsonValue

from stopkit.store import schema
from stopkit.store.codec import dumps, loads_object
from stopkit.store.tx import Tx
from stopkit.units.facts import Emptiness, UnitReport
from stopkit.units.warden import Identity

if TYPE_CHECKING:
    from stopkit.store.sql import Store

_UNITS: Final = schema.units
_INSERT: Final = sa.insert(_UNITS)
_UPDATE: Final = (
    sa.update(_UNITS).where(_UNITS.c.id == sa.bindparam("unit")).values(facts=sa.bindparam("facts"))
)
_LIST: Final = sa.select(_UNITS.c.facts).order_by(_UNITS.c.id)
_BY_ID: Final = sa.select(_UNITS.c.facts).where(_UNITS.c.id == sa.bindparam("unit"))


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
        return dumps(cast("dict[str, JsonValue]", asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> UnitHandle:
        facts: dict[str, Any] = dict(loads_object(text))
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


class StoreRecords:
    """The units of one run, in a store.  The end is written with its event.

    `reports` has the units that ended, as far as this object saw it.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self.run: str | None = run
        self.reports: list[UnitReport] = []

    async def intended(self, handle: UnitHandle) -> None:
        await self._store.write(partial(insert_unit, handle=handle))

    async def started(self, handle: UnitHandle) -> None:
        await self._store.write(partial(update_unit, handle=handle))

    async def ended(self, handle: UnitHandle, report: UnitReport) -> None:
        self.reports.append(report)
        await self._store.write(
            partial(
                end_unit, handle=handle, at=self._store.clock.wall(), data=event_of(handle, report)
            )
        )


def insert_unit(tx: Tx, handle: UnitHandle) -> None:
    tx.execute(
        _INSERT,
        {"id": handle.id, "run": handle.run or "", "key": handle.key, "facts": handle.to_json()},
    )


def update_unit(tx: Tx, handle: UnitHandle) -> None:
    tx.execute(_UPDATE, {"unit": handle.id, "facts": handle.to_json()})


def end_unit(tx: Tx, handle: UnitHandle, at: float, data: Mapping[str, JsonValue]) -> None:
    update_unit(tx, handle)
    if handle.run is not None:
        tx.event(handle.run, "unit.ended", at, data)


def load_units(tx: Tx) -> tuple[UnitHandle, ...]:
    """Every recorded unit, those that have ended included."""
    return tuple(UnitHandle.from_json(cast(str, row[0])) for row in tx.rows(_LIST, {}))


def load_unit(tx: Tx, unit: str) -> UnitHandle | None:
    row = tx.row(_BY_ID, {"unit": unit})
    return None if row is None else UnitHandle.from_json(cast(str, row[0]))


def event_of(handle: UnitHandle, report: UnitReport) -> dict[str, JsonValue]:
    """The data of `unit.ended`."""
    facts = report.process
    data: dict[str, JsonValue] = {
        "unit": handle.id,
        "key": handle.key,
        "status": report.outcome.status,
        "cause": None if report.cause is None else report.cause.kind,
    }
    if facts is not None:
        data |= {
            "verified_empty": facts.verified_empty,
            "survivors": [
                {"pid": left.pid, "start": left.start, "uid": left.uid, "reason": left.reason}
                for left in facts.survivors
            ],
            "forced": facts.forced,
            "output_complete": facts.output_complete,
            "containment": facts.containment,
        }
    return data


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
