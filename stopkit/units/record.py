"""Units in a store.  The handle is durable before the start, the end comes with its event."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import sqlalchemy as sa
from pydantic import JsonValue

from stopkit.store import schema
from stopkit.store.tx import Tx
from stopkit.units.facts import UnitReport
from stopkit.units.handle import UnitHandle

if TYPE_CHECKING:
    from stopkit.store.sql import Store

_UNITS: Final = schema.units
_INSERT: Final = sa.insert(_UNITS)
_UPDATE: Final = (
    sa.update(_UNITS).where(_UNITS.c.id == sa.bindparam("unit")).values(facts=sa.bindparam("facts"))
)
_LIST: Final = sa.select(_UNITS.c.facts).order_by(_UNITS.c.id)
_BY_ID: Final = sa.select(_UNITS.c.facts).where(_UNITS.c.id == sa.bindparam("unit"))


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
