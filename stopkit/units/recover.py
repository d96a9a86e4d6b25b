"""After a crash: find what units left behind, end it, and account for the calls that ran them."""

from __future__ import annotations

import asyncio
import json
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pydantic import JsonValue

from stopkit.errors import RunNotFound
from stopkit.operation import Operation
from stopkit.outcome import Outcome, Stopped, Unknown
from stopkit.run import ENDED, RunRecord
from stopkit.store import ledger
from stopkit.store.ledger import Settlement
from stopkit.store.tx import Tx
from stopkit.units.broker import ended_of, exit_of
from stopkit.units.facts import Emptiness, Exit, Survivor
from stopkit.units.guard import Ended
from stopkit.units.handle import UnitHandle
from stopkit.units.kernel import Kernel, default_kernel
from stopkit.units.record import end_unit, load_units
from stopkit.units.warden import Cgroup, Escalation, Identity, Proc

if TYPE_CHECKING:
    from stopkit.store.sql import Store

WITHIN: Final = 5.0
"""Seconds for the end of one unit's leftovers."""

_STEP: Final = 0.01

Skipped: TypeAlias = Literal["host_alive", "other_machine", "detached"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a warden wrote when its host was gone.  `exit` is None where it did not see one."""

    exit: Exit | None
    ended: Ended


@dataclass(frozen=True, slots=True)
class RecoveredUnit:
    """One unit whose host had died.  `found` counts the processes of it that were still there.

    `outcome` is what its call was settled with; None where the call had one, or has none.
    """

    handle: UnitHandle
    found: int
    verified_empty: Emptiness
    survivors: tuple[Survivor, ...]
    receipt: Receipt | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """`runs` were taken over; for the `skipped` units somebody still answers."""

    units: tuple[RecoveredUnit, ...]
    runs: tuple[RunRecord, ...]
    skipped: tuple[tuple[UnitHandle, Skipped], ...]


async def recover(
    store: Store,
    *,
    detached: Literal["keep", "stop"] = "keep",
    within: float = WITHIN,
    kernel: Kernel | None = None,
) -> Recovery:
    """End what dead hosts left behind on this machine, settle the calls, end the runs.

    A unit is left alone while its host lives, where it belongs to another machine, and, with
    `detached="keep"`, where it was started to outlive its host.  Nothing is run.

    Raises:
        NotRecorded: if what was found could not be written; it can be called again.
    """
    looked = kernel or default_kernel()
    handles = [handle for handle in await store.read(load_units) if handle.ended is None]
    skipped: list[tuple[UnitHandle, Skipped]] = []
    units: list[RecoveredUnit] = []
    lost: list[str] = []
    for handle in handles:
        why = _skip(handle, looked, keep_detached=detached == "keep")
        if why is not None:
            skipped.append((handle, why))
            continue
        unit = await asyncio.to_thread(end_leftovers, handle, looked, within)
        units.append(await _settle(store, unit))
        if handle.run is not None and not handle.detached and handle.run not in lost:
            lost.append(handle.run)
    held = {handle.run for handle, why in skipped if why == "host_alive"}
    runs = [await store.take_over(run) for run in lost if run not in held]
    return Recovery(tuple(units), tuple(runs), tuple(skipped))


async def stop_detached(
    store: Store, handle: UnitHandle, *, within: float = WITHIN, kernel: Kernel | None = None
) -> RecoveredUnit:
    """End a detached unit by its record, from whatever process."""
    looked = kernel or default_kernel()
    unit = await asyncio.to_thread(end_leftovers, handle, looked, within)
    return await _settle(store, unit)


def end_leftovers(handle: UnitHandle, kernel: Kernel, within: float = WITHIN) -> RecoveredUnit:
    """End what is left of one unit.  Blocks for up to `within` seconds.

    A living warden does it best, and is told; then come the cgroup, the marker, and the leader by
    its pid and start time.
    """
    if handle.boot_id != kernel.boot_id():
        # No process outlives a boot.
        return RecoveredUnit(replace(handle, ended="yes"), 0, "yes", ())
    until = time.monotonic() + within
    found: set[Identity] = {proc.identity for proc in _left(handle, kernel)}
    _end_by_warden(handle, kernel, until)
    cgroup = None if handle.cgroup is None else Cgroup(handle.cgroup)
    now = time.monotonic()
    escalation = Escalation(now, grace=0.0, verify=max(0.2, until - now))
    calm = 0
    living: Sequence[Proc] = ()
    while calm < 2 and not escalation.expired(now):
        living = _left(handle, kernel)
        held = cgroup is not None and cgroup.populated
        calm = 0 if living or held else calm + 1
        found.update(proc.identity for proc in living)
        for proc, number in escalation.step(now, living):
            if kernel.send(proc.pid, proc.start, number) == "refused":
                escalation.refused(proc)
        if held and cgroup is not None:
            cgroup.kill()
        time.sleep(_STEP if living or held else 0.0)
        now = time.monotonic()
    receipt = _take_receipt(handle)
    survivors = tuple(
        Survivor(proc.pid, proc.start, kernel.uid(proc.pid), proc.name, "deadline")
        for proc in living
    )
    if receipt is not None:
        # The marker does not show everybody's processes; those that the warden had to leave are.
        survivors = (
            *survivors,
            *(left for left in receipt.ended.survivors if _still(left, kernel)),
        )
    empty = _emptiness(cgroup, receipt, survivors)
    return RecoveredUnit(replace(handle, ended=empty), len(found), empty, survivors, receipt)


def _emptiness(
    cgroup: Cgroup | None, receipt: Receipt | None, survivors: Sequence[Survivor]
) -> Emptiness:
    if survivors:
        return "no"
    if cgroup is not None and (not cgroup.exists or cgroup.remove()):
        # A cgroup can be removed only when nothing is in it.
        return "yes"
    if receipt is not None and receipt.ended.verified_empty != "unknown":
        return "yes"
    return "unknown"


def _still(left: Survivor, kernel: Kernel) -> bool:
    proc = kernel.look(left.pid)
    return proc is not None and proc.alive and proc.start == left.start


def _take_receipt(handle: UnitHandle) -> Receipt | None:
    if handle.receipt is None:
        return None
    path = Path(handle.receipt)
    try:
        said = json.loads(path.read_bytes())
        path.unlink()
        ended = ended_of(said["ended"], said["ended"]["began"], ())
        exit_ = None if said["status"] is None else exit_of(said["status"], 0.0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Receipt(exit_, ended)


def _end_by_warden(handle: UnitHandle, kernel: Kernel, until: float) -> None:
    """Tell a living warden, and wait for its end."""
    if handle.warden is None:
        return
    pid, start = handle.warden
    if kernel.send(pid, start, signal.SIGTERM) != "sent":
        return
    while time.monotonic() < until:
        proc = kernel.look(pid)
        if proc is None or proc.start != start or not proc.alive:
            return
        time.sleep(_STEP)


def _left(handle: UnitHandle, kernel: Kernel) -> list[Proc]:
    found = {proc.identity: proc for proc in kernel.marked(handle.marker, since=handle.since)}
    if handle.leader is not None:
        leader = kernel.look(handle.leader[0])
        if leader is not None and leader.alive and leader.identity == handle.leader:
            found[leader.identity] = leader
    return list(found.values())


def _skip(handle: UnitHandle, kernel: Kernel, *, keep_detached: bool) -> Skipped | None:
    if handle.machine != platform.node():
        return "other_machine"
    if handle.boot_id != kernel.boot_id():
        return None
    host = kernel.look(handle.host[0])
    if host is not None and host.alive and host.start == handle.host[1]:
        return "host_alive"
    if handle.detached and keep_detached and _left(handle, kernel):
        return "detached"
    return None


async def _settle(store: Store, unit: RecoveredUnit) -> RecoveredUnit:
    """Write the unit's end and the outcome of its call, in one transaction."""
    handle, at = unit.handle, store.clock.wall()

    def apply(tx: Tx) -> Outcome | None:
        end_unit(tx, handle, at, _event(unit))
        operation = _open_operation(tx, handle)
        if operation is None:
            return None
        outcome = _outcome(unit, operation)
        return ledger.settle(tx, Settlement(operation, outcome), at)

    return replace(unit, outcome=await store.write(apply))


def _open_operation(tx: Tx, handle: UnitHandle) -> Operation | None:
    """The call's ledger row, while it has no outcome and its run no end."""
    if handle.run is None or handle.key is None:
        return None
    try:
        if ledger.load_run(tx, handle.run).status in ENDED:
            return None
    except RunNotFound:
        return None
    for operation in ledger.operations_of(tx, handle.run):
        if operation.key == handle.key and operation.outcome is None:
            return operation
    return None


def _outcome(unit: RecoveredUnit, operation: Operation) -> Outcome:
    receipt = unit.receipt
    evidence = ["its host died"]
    if receipt is not None and receipt.exit is not None:
        code, number = receipt.exit.code, receipt.exit.signal
        evidence.append(
            f"its leader ended with {f'code {code}' if number is None else f'signal {number}'}"
        )
    if unit.found:
        evidence.append(f"{unit.found} of its processes were found and ended")
    evidence.append(f"its process tree is empty: {unit.verified_empty}")
    ended_by_us = unit.found > 0 or (receipt is not None and receipt.ended.leader_signalled)
    if ended_by_us and not unit.survivors:
        return Stopped(
            reason="its host died, and its processes were ended after that",
            key=operation.key,
            effects="unverified",
            evidence=tuple(evidence),
        )
    reason = "its host died, and how it ended was not seen"
    if receipt is not None and receipt.exit is not None and not unit.survivors:
        reason = "it came to its own end, and its result was lost with its host"
    elif unit.survivors:
        reason = "its host died, and some of its processes are left"
    return Unknown(
        reason=reason,
        key=operation.key,
        evidence=tuple(evidence),
        check=f"ask the service for {operation.key}",
    )


def _event(unit: RecoveredUnit) -> dict[str, JsonValue]:
    return {
        "unit": unit.handle.id,
        "key": unit.handle.key,
        "recovered": True,
        "found": unit.found,
        "verified_empty": unit.verified_empty,
        "survivors": [
            {"pid": left.pid, "start": left.start, "uid": left.uid, "reason": left.reason}
            for left in unit.survivors
        ],
        "forced": unit.found > 0,
    }
