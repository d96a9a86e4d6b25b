"""Every durable change, as a function over an open transaction.

Each checks, changes and tells (its event) in one step.  Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from pydantic import JsonValue

from stopkit.errors import ReconcileRequired, RunConflict, RunNotFound
from stopkit.events import Event, EventKind
from stopkit.operation import (
    UNDO_SUFFIX,
    Admission,
    Go,
    Operation,
    admit,
    outcome_of_lost_worker,
)
from stopkit.outcome import Outcome
from stopkit.run import ENDED, TERMINAL, End, RunRecord, RunStatus, move, requestable
from stopkit.steer import Steer, SteerStatus
from stopkit.stop import Cause
from stopkit.store import statements as q
from stopkit.store.codec import dumps, loads, loads_object
from stopkit.store.rows import (
    cause_parameters,
    operation_of,
    operation_parameters,
    run_of,
    run_parameters,
)
from stopkit.store.tx import Tx


@dataclass(frozen=True, slots=True)
class Closed:
    """The run may not start anything: its record says so, and why."""

    status: RunStatus
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class ChildReceipt:
    """One call that was at work when a stop was asked for.

    `observed`: its code has looked at its signal since, or was woken by it.
    """

    call_id: str
    name: str
    observed: bool


@dataclass(frozen=True, slots=True)
class StopReceipt:
    """What became of a request to stop.

    `recorded` is True only once the request is committed; `status` and `version` are the
    record's, None where it could not be written, which `error` explains.  `first` is False for a
    repeat, and for a run that had ended; neither changes the record.  Nothing here says that
    anybody saw it: `observed` is whether the worker had by then, and `children` says it of each
    call at work, where the run is this process's.
    """

    run: str
    status: RunStatus | None = None
    cause: Cause | None = None
    recorded: bool = False
    first: bool = False
    presses: int = 0
    observed: bool = False
    version: int | None = None
    error: str | None = None
    children: tuple[ChildReceipt, ...] = ()


def insert_run(tx: Tx, record: RunRecord, at: float) -> RunRecord:
    tx.execute(q.INSERT_RUN, run_parameters(record))
    tx.event(
        record.id,
        "run.opened",
        at,
        {
            "session": record.session,
            "lineage": record.lineage,
            "attempt": record.attempt,
            "resumed_from": record.resumed_from,
            "parent": record.parent,
            "deadline_at": record.deadline_at,
        },
    )
    return record


def load_run(tx: Tx, run: str) -> RunRecord:
    row = tx.row(q.GET_RUN, {"run": run})
    if row is None:
        raise RunNotFound(f"no run {run} in this store", correlation_id=run)
    return run_of(row)


def runs_of_session(tx: Tx, session: str) -> tuple[RunRecord, ...]:
    return tuple(run_of(row) for row in tx.rows(q.LIST_RUNS, {"session": session}))


def runs_being_stopped(tx: Tx) -> tuple[RunRecord, ...]:
    return tuple(run_of(row) for row in tx.rows(q.BEING_STOPPED, {}))


def move_run(
    tx: Tx,
    run: str,
    to: RunStatus,
    at: float,
    *,
    kind: EventKind,
    data: Mapping[str, JsonValue] | None = None,
    expected_version: int | None = None,
    cause: Cause | None = None,
    end: End | None = None,
    failure: str | None = None,
    presses: int = 0,
) -> RunRecord:
    """Move a run and tell it.

    Raises:
        IllegalTransition: for a move outside the table.
        RunConflict: if the record is not at `expected_version`.
    """
    record = load_run(tx, run)
    if expected_version is not None and record.version != expected_version:
        raise RunConflict(
            f"run {run} is at version {record.version}, not {expected_version}",
            run_status=record.status,
            correlation_id=run,
        )
    move(record.status, to, run=run)
    asked = record.cause or cause
    after = replace(
        record,
        status=to,
        version=record.version + 1,
        cause=asked,
        presses=max(record.presses, presses, 1 if asked else 0),
        cancel_requested_at=at if to == "cancel_requested" else record.cancel_requested_at,
        terminal_at=at if to in TERMINAL else None,
        end=end or record.end,
        failure=failure or record.failure,
    )
    moved = tx.execute(
        q.MOVE_RUN,
        {
            "run": run,
            "expected": record.version,
            "status": after.status,
            **cause_parameters(after.cause),
            "presses": after.presses,
            "cancel_requested_at": after.cancel_requested_at,
            "terminal_at": after.terminal_at,
            "end": after.end,
            "failure": after.failure,
        },
    )
    if moved.rowcount != 1:
        raise RunConflict(f"run {run} moved meanwhile", correlation_id=run)
    tx.event(run, kind, at, data or {})
    return after


def start_run(tx: Tx, run: str, at: float) -> RunRecord | Closed:
    record = load_run(tx, run)
    if record.status != "queued":
        return Closed(record.status, record.cause)
    return move_run(tx, run, "running", at, kind="run.running")


def request_stop(tx: Tx, run: str, cause: Cause, at: float) -> StopReceipt:
    """Record a request, once.  A repeat is only counted; the count is no part of the version."""
    record = load_run(tx, run)
    if first := requestable(record.status):
        record = move_run(
            tx,
            run,
            "cancel_requested",
            at,
            kind="run.cancel_requested",
            data=cause_data(cause),
            cause=cause,
        )
    elif record.status in ("cancel_requested", "cancelling"):
        tx.execute(q.PRESS, {"run": run})
        record = load_run(tx, run)
    return StopReceipt(
        run=run,
        status=record.status,
        cause=record.cause,
        recorded=True,
        first=first,
        presses=record.presses,
        observed=record.status not in ("queued", "running", "cancel_requested"),
        version=record.version,
    )


def press(tx: Tx, run: str) -> None:
    """Count a repeated request."""
    tx.execute(q.PRESS, {"run": run})


def observe_stop(tx: Tx, run: str, cause: Cause | None, at: float) -> RunRecord:
    """The worker saw the request, and its clean-up begins.  Records the request if need be."""
    record = load_run(tx, run)
    if cause is not None and requestable(record.status):
        request_stop(tx, run, cause, at)
        record = load_run(tx, run)
    if record.status != "cancel_requested":
        return record
    tx.event(run, "run.cancel_observed", at, {})
    return move_run(tx, run, "cancelling", at, kind="run.cancelling")


def begin_request(tx: Tx, run: str, at: float) -> int | Closed:
    """The ordinal of a model request that may start now."""
    record = load_run(tx, run)
    if record.status != "running":
        return Closed(record.status, record.cause)
    tx.execute(q.COUNT_REQUEST, {"run": run})
    ordinal = record.requests + 1
    tx.event(run, "request.started", at, {"request": ordinal})
    return ordinal


def intend(
    tx: Tx, operation: Operation, at: float, *, retention: float | None, cleanup: bool = False
) -> Admission | Closed:
    """Write the row of a call that may start now.

    `cleanup` lets a clean-up tool start while its run is being stopped.
    """
    record = load_run(tx, operation.run)
    allowed = record.status == "running" or (
        cleanup and record.status in ("cancel_requested", "cancelling")
    )
    if not allowed:
        return Closed(record.status, record.cause)
    earlier = latest_with_key(tx, operation.key, record.tenant)
    admission = admit(
        earlier,
        fingerprint=operation.fingerprint,
        now=at,
        retention=retention,
        undo=_get_operation(tx, earlier.run, earlier.key + UNDO_SUFFIX) if earlier else None,
    )
    if not isinstance(admission, Go):
        return admission
    parameters = operation_parameters(operation)
    if earlier is not None:
        parameters["first_dispatched_at"] = (
            earlier.first_dispatched_at or operation.first_dispatched_at
        )
        if earlier.run == operation.run:
            # The same key again within one run is the same row: its earlier attempt had no effect.
            tx.execute(q.DELETE_OP, {"run": operation.run, "key": operation.key})
    tx.execute(q.INSERT_OP, parameters)
    tx.execute(q.SET_ACTIVE, {"run": operation.run, "call": operation.call_id})
    tx.event(
        operation.run,
        "call.intended",
        at,
        {
            "key": operation.key,
            "call_id": operation.call_id,
            "name": operation.name,
            "effect": operation.effect,
            "request": operation.request,
            "occurrence": operation.occurrence,
            "again": admission.again,
            "cleanup": cleanup,
        },
    )
    if operation.dispatched_at is not None:
        tx.event(operation.run, "call.dispatched", at, {"key": operation.key, "at_start": True})
    return admission


def insert_compensation(tx: Tx, undo: Operation, by: str, at: float) -> None:
    """Write the row of an undo, which a person asked for after its run."""
    tx.execute(q.INSERT_OP, operation_parameters(undo))
    tx.event(undo.run, "call.dispatched", at, {"key": undo.key, "compensation": True, "by": by})


def dispatch(tx: Tx, run: str, key: str, at: float, *, cleanup: bool = False) -> Closed | None:
    """Record the commit point, before the effect can happen."""
    record = load_run(tx, run)
    if record.status != "running" and not (
        cleanup and record.status in ("cancel_requested", "cancelling")
    ):
        return Closed(record.status, record.cause)
    if tx.execute(q.DISPATCH_OP, {"run": run, "op": key, "at": at}).rowcount:
        tx.event(run, "call.dispatched", at, {"key": key})
    return None


@dataclass(frozen=True, slots=True)
class Settlement:
    """An outcome to record for one call, with the row to make where there is none yet."""

    operation: Operation
    outcome: Outcome
    receipts: tuple[str, ...] = ()
    provider_request_id: str | None = None


def settle(tx: Tx, settlement: Settlement, at: float) -> Outcome:
    """Record an outcome; the first stays.  A later one is kept as an event, and returns the first.

    What was settled as unknown becomes the late result, if that is real: a result is evidence.
    """
    wanted = settlement.operation
    operation = _get_operation(tx, wanted.run, wanted.key)
    if operation is None:
        tx.execute(q.INSERT_OP, operation_parameters(wanted))
        operation = wanted
    late = operation.outcome is not None
    if late:
        before = operation.outcome
        assert before is not None
        if before == settlement.outcome:
            return before
        tx.event(
            wanted.run,
            "call.late",
            at,
            {"key": wanted.key, "call_id": wanted.call_id, **_outcome_data(settlement.outcome)},
        )
        if not _says_more(settlement.outcome, before):
            return before
    _write_outcome(
        tx,
        operation,
        settlement.outcome,
        at,
        receipts=settlement.receipts or operation.receipts,
        provider_request_id=settlement.provider_request_id or operation.provider_request_id,
        decided_by=operation.decided_by,
    )
    if not late:
        tx.event(
            wanted.run,
            "call.settled",
            at,
            {
                "key": wanted.key,
                "call_id": wanted.call_id,
                "occurrence": wanted.occurrence,
                "request": wanted.request,
                "effect": wanted.effect,
                **_outcome_data(settlement.outcome),
            },
        )
    else:
        tx.event(
            wanted.run,
            "call.reconciled",
            at,
            {"key": wanted.key, "by": "late result", **_outcome_data(settlement.outcome)},
        )
        close_if_reconciled(tx, wanted.run, at)
    return settlement.outcome


def _says_more(late: Outcome, before: Outcome) -> bool:
    """Whether a late result settles what was unknown, without unsettling what was known."""
    if before.status != "unknown":
        return False
    if late.status == "failed":
        return late.effects != "unverified" or before.effects == "unverified"
    return late.status == "succeeded"


def add_receipt(
    tx: Tx, run: str, key: str, *, receipts: Sequence[str], provider_request_id: str | None
) -> None:
    tx.execute(
        q.ADD_RECEIPT,
        {
            "run": run,
            "op": key,
            "proofs": dumps(list(receipts)),
            "request_id": provider_request_id,
        },
    )


def resettle(
    tx: Tx,
    run: str,
    key: str,
    outcome: Outcome,
    at: float,
    *,
    by: str,
    decided_by: str | None = None,
) -> Operation | None:
    """Replace an outcome by what evidence (`by`) or a named person (`decided_by`) established.

    None, and nothing is changed, where it became known meanwhile.

    Raises:
        RunConflict: while the run has no end: its own worker may still bring the result.
    """
    require_end(tx, run)
    operation = get_operation(tx, run, key)
    if not operation.unverified:
        return None
    _write_outcome(
        tx,
        operation,
        outcome,
        at,
        receipts=operation.receipts,
        provider_request_id=operation.provider_request_id,
        decided_by=decided_by or operation.decided_by,
    )
    before = operation.outcome
    tx.event(
        run,
        "call.reconciled",
        at,
        {
            "key": key,
            "call_id": operation.call_id,
            "by": by,
            "person": decided_by,
            "from": before.status if before else None,
            **_outcome_data(outcome),
        },
    )
    return get_operation(tx, run, key)


def require_end(tx: Tx, run: str) -> RunRecord:
    """The record of a run that no worker has anything left to do for.

    Raises:
        RunConflict: while it has no end.
    """
    record = load_run(tx, run)
    if record.status not in ENDED:
        raise RunConflict(
            f"run {run} is {record.status}: it may still find out by itself",
            run_status=record.status,
            correlation_id=run,
        )
    return record


def finish_run(
    tx: Tx,
    run: str,
    at: float,
    *,
    end: End,
    settlements: Sequence[Settlement] = (),
    steers: Sequence[Steer] = (),
    failure: str | None = None,
    cause: Cause | None = None,
    presses: int = 0,
    data: Mapping[str, JsonValue] | None = None,
) -> RunRecord:
    """The account and the end, in one transaction: no end is visible without its account."""
    for settlement in settlements:
        settle(tx, settlement, at)
    for steer in steers:
        move_steer(tx, steer, at)
    record = load_run(tx, run)
    if cause is not None or record.status == "cancel_requested":
        # What could not be written at its time, or was asked for as the run came to its end.
        record = observe_stop(tx, run, cause or record.cause, at)
    open_keys: list[JsonValue] = [op.key for op in operations_of(tx, run) if op.unverified]
    to: RunStatus = "needs_reconciliation" if open_keys else end
    return move_run(
        tx,
        run,
        to,
        at,
        kind="run.ended",
        data={
            "status": to,
            "end": end,
            "presses": max(record.presses, presses),
            "to_reconcile": open_keys,
            "failure": failure,
            **(data or {}),
        },
        end=end,
        failure=failure,
        presses=presses,
    )


def close_if_reconciled(tx: Tx, run: str, at: float) -> RunRecord:
    """Give a run that awaits reconciliation its end, once nothing is unverified."""
    record = load_run(tx, run)
    if record.status != "needs_reconciliation" or pending_of(tx, run):
        return record
    end = record.end or "failed"
    return move_run(tx, run, end, at, kind="run.reconciled", data={"status": end})


def take_over(tx: Tx, run: str, at: float) -> RunRecord:
    """Account for a run whose worker is gone, and end it.  A run that has ended stays as it is.

    A recorded request is honoured: the run becomes cancelled.  Without one it has failed.
    """
    record = load_run(tx, run)
    if record.status in ("cancelled", "completed", "failed", "needs_reconciliation"):
        return record
    settlements = [
        Settlement(operation, outcome_of_lost_worker(operation))
        for operation in operations_of(tx, run)
        if operation.outcome is None
    ]
    asked = record.status in ("cancel_requested", "cancelling")
    return finish_run(
        tx,
        run,
        at,
        end="cancelled" if asked else "failed",
        settlements=settlements,
        steers=[steer.end() for steer in steers_of(tx, run)],
        failure=None if asked else "its worker was lost",
        data={"taken_over": True, "orphaned": len(settlements)},
    )


def resume_run(tx: Tx, old: str, new: RunRecord, at: float) -> RunRecord:
    """Open the next attempt of a lineage; its messages are copied.

    Raises:
        ReconcileRequired: while an effect of the old attempt is unverified.
        RunConflict: if the old attempt is at work, or was resumed already.
    """
    record = load_run(tx, old)
    pending = pending_of(tx, old)
    if pending:
        raise ReconcileRequired(
            f"run {old} has {len(pending)} operations that nobody verified",
            keys=[operation.key for operation in pending],
            run_status=record.status,
            correlation_id=old,
        )
    last = tx.row(q.LAST_ATTEMPT, {"lineage": record.lineage})
    assert last is not None
    if not record.terminal or run_of(last).id != old:
        raise RunConflict(
            f"run {old} is {record.status}; only the last attempt can be resumed, after its end",
            run_status=record.status,
            correlation_id=old,
        )
    insert_run(tx, new, at)
    append_messages(tx, new.id, 0, messages_of(tx, old))
    append_repairs(tx, new.id, 0, repairs_of(tx, old))
    # Steers that were kept for this attempt; all others have their end.
    tx.execute(q.KEPT_STEERS, {"run": old, "to": new.id})
    for steer in steers_of(tx, new.id):
        tx.event(new.id, "steer.queued", at, {"steer": steer.id, "kept_from": old})
    return new


def get_operation(tx: Tx, run: str, key: str) -> Operation:
    operation = _get_operation(tx, run, key)
    if operation is None:
        raise RunNotFound(f"run {run} has no operation {key}", correlation_id=run)
    return operation


def operations_of(tx: Tx, run: str) -> tuple[Operation, ...]:
    return tuple(operation_of(row) for row in tx.rows(q.LIST_OPS, {"run": run}))


def pending_of(tx: Tx, run: str) -> tuple[Operation, ...]:
    return tuple(operation for operation in operations_of(tx, run) if operation.unverified)


def operations_of_lineage(tx: Tx, lineage: str) -> tuple[Operation, ...]:
    """The operations of all attempts, the latest attempt's last."""
    return tuple(
        operation
        for row in tx.rows(q.LIST_LINEAGE, {"lineage": lineage})
        for operation in operations_of(tx, run_of(row).id)
    )


def latest_with_key(tx: Tx, key: str, tenant: str | None) -> Operation | None:
    """The operation that speaks for a key: in all sessions of one tenant, and in no other's."""
    found = [operation_of(row) for row in tx.rows(q.OPS_BY_KEY, {"key": key, "of_tenant": tenant})]
    # What happened once stays the answer, whatever a later attempt came to.
    return max(
        found,
        key=lambda op: (
            op.outcome is not None and op.outcome.status == "succeeded",
            op.intended_at or op.settled_at or 0.0,
        ),
        default=None,
    )


def add_steer(tx: Tx, steer: Steer, at: float) -> None:
    count = tx.row(q.COUNT_STEERS, {"run": steer.run})
    tx.execute(
        q.INSERT_STEER,
        {
            "id": steer.id,
            "run": steer.run,
            "ordinal": count[0] if count else 0,
            "content": dumps(steer.content),
            "status": steer.status,
            "proof": steer.proof,
        },
    )
    tx.event(steer.run, "steer.queued", at, {"steer": steer.id})


_STEER_KINDS: Final[Mapping[SteerStatus, EventKind]] = {
    "queued": "steer.queued",
    "sent": "steer.sent",
    "accepted": "steer.accepted",
    "waiting": "steer.waiting",
    "applied": "steer.applied",
    "returned": "steer.returned",
    "unknown": "steer.unknown",
}


def move_steer(tx: Tx, steer: Steer, at: float) -> None:
    """Record a steer that has moved already; writing the same status twice tells it once."""
    stored = {found.id: found for found in steers_of(tx, steer.run)}.get(steer.id)
    if stored is None or stored.status == steer.status:
        return
    tx.execute(q.MOVE_STEER, {"steer": steer.id, "to": steer.status, "shown": steer.proof})
    tx.event(steer.run, _STEER_KINDS[steer.status], at, {"steer": steer.id, "proof": steer.proof})


def steers_of(tx: Tx, run: str) -> tuple[Steer, ...]:
    return tuple(
        Steer(
            str(row[0]),
            str(row[1]),
            cast("str | Mapping[str, JsonValue]", loads(str(row[2]))),
            cast(SteerStatus, row[3]),
            cast("str | None", row[4]),
        )
        for row in tx.rows(q.LIST_STEERS, {"run": run})
    )


def append_messages(tx: Tx, run: str, start: int, bodies: Sequence[object]) -> None:
    for ordinal, body in enumerate(bodies, start):
        tx.execute(q.INSERT_MESSAGE, {"run": run, "ordinal": ordinal, "body": dumps(body)})


def append_repairs(tx: Tx, run: str, start: int, bodies: Sequence[object]) -> None:
    for ordinal, body in enumerate(bodies, start):
        tx.execute(q.INSERT_REPAIR, {"run": run, "ordinal": ordinal, "body": dumps(body)})


def messages_of(tx: Tx, run: str) -> tuple[JsonValue, ...]:
    return tuple(loads(str(row[0])) for row in tx.rows(q.LIST_MESSAGES, {"run": run}))


def repairs_of(tx: Tx, run: str) -> tuple[JsonValue, ...]:
    return tuple(loads(str(row[0])) for row in tx.rows(q.LIST_REPAIRS, {"run": run}))


def events_of(tx: Tx, run: str, after: int = 0) -> tuple[Event, ...]:
    return tuple(
        Event(
            str(row[0]),
            cast(int, row[1]),
            cast(float, row[2]),
            cast(EventKind, row[3]),
            loads_object(str(row[4])),
        )
        for row in tx.rows(q.LIST_EVENTS, {"run": run, "after": after})
    )


def cause_data(cause: Cause) -> dict[str, JsonValue]:
    return {"cause": cause.kind, "actor": cause.actor, "words": cause.words, "asked_at": cause.at}


def _write_outcome(
    tx: Tx,
    operation: Operation,
    outcome: Outcome,
    at: float,
    *,
    receipts: Sequence[str],
    provider_request_id: str | None,
    decided_by: str | None,
) -> None:
    tx.execute(
        q.SETTLE_OP,
        {
            "run": operation.run,
            "op": operation.key,
            "at": at,
            "settled": outcome.model_dump_json(),
            "proofs": dumps(list(receipts)),
            "request_id": provider_request_id,
            "person": decided_by,
        },
    )


def _outcome_data(outcome: Outcome) -> dict[str, JsonValue]:
    return {
        "status": outcome.status,
        "effects": outcome.effects,
        "reason": outcome.reason,
        "cause": outcome.cause,
    }


def _get_operation(tx: Tx, run: str, key: str) -> Operation | None:
    row = tx.row(q.GET_OP, {"run": run, "key": key})
    return None if row is None else operation_of(row)
