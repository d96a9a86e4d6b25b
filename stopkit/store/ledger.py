"""Every durable change, as a function over an open transaction.

Each checks, changes and tells (its event) in one step.  Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import sqlalchemy as sa
from pydantic import JsonValue

from stopkit.errors import ReconcileRequired, RunConflict, RunNotFound
from stopkit.events import Event, EventKind
from stopkit.operation import (
    Admission,
    EffectClass,
    Go,
    Operation,
    Stage,
    admit,
    outcome_of_lost_worker,
)
from stopkit.outcome import Outcome, parse_outcome
from stopkit.run import End, RunRecord, RunStatus, move, requestable
from stopkit.steer import Steer, SteerStatus
from stopkit.stop import Cause
from stopkit.store import schema
from stopkit.store.codec import dumps, loads, loads_object
from stopkit.store.tx import Row, Tx, Value

_RUNS = schema.runs
_OPS = schema.operations
_STEERS = schema.steers
_MESSAGES = schema.messages
_REPAIRS = schema.repairs
_EVENTS = schema.events

_RUN_COLUMNS: Final = tuple(column.name for column in _RUNS.columns)
_CAUSE_COLUMNS: Final = ("cause_kind", "cause_at", "cause_actor", "cause_words")
_OP_COLUMNS: Final = tuple(column.name for column in _OPS.columns)

_BY_RUN: Final[sa.BindParameter[str]] = sa.bindparam("run")
_GET_RUN: Final = sa.select(_RUNS).where(_RUNS.c.id == _BY_RUN)
_LIST_RUNS: Final = (
    sa.select(_RUNS)
    .where(_RUNS.c.session == sa.bindparam("session"))
    .order_by(_RUNS.c.opened_at, _RUNS.c.attempt)
)
_LAST_ATTEMPT: Final = (
    sa.select(_RUNS)
    .where(_RUNS.c.lineage == sa.bindparam("lineage"))
    .order_by(_RUNS.c.attempt.desc())
    .limit(1)
)
_LIST_LINEAGE: Final = (
    sa.select(_RUNS).where(_RUNS.c.lineage == sa.bindparam("lineage")).order_by(_RUNS.c.attempt)
)
_BEING_STOPPED: Final = sa.select(_RUNS).where(
    _RUNS.c.status.in_([sa.literal_column("'cancel_requested'"), sa.literal_column("'cancelling'")])
)
_INSERT_RUN: Final = sa.insert(_RUNS)
_MOVE_RUN: Final = (
    sa.update(_RUNS)
    .where(_RUNS.c.id == _BY_RUN, _RUNS.c.version == sa.bindparam("expected"))
    .values(
        status=sa.bindparam("status"),
        version=_RUNS.c.version + 1,
        cause_kind=sa.bindparam("cause_kind"),
        cause_at=sa.bindparam("cause_at"),
        cause_actor=sa.bindparam("cause_actor"),
        cause_words=sa.bindparam("cause_words"),
        presses=sa.bindparam("presses"),
        cancel_requested_at=sa.bindparam("cancel_requested_at"),
        terminal_at=sa.bindparam("terminal_at"),
        end=sa.bindparam("end"),
        failure=sa.bindparam("failure"),
    )
)
_PRESS: Final = sa.update(_RUNS).where(_RUNS.c.id == _BY_RUN).values(presses=_RUNS.c.presses + 1)
_COUNT_REQUEST: Final = (
    sa.update(_RUNS).where(_RUNS.c.id == _BY_RUN).values(requests=_RUNS.c.requests + 1)
)
_SET_ACTIVE: Final = (
    sa.update(_RUNS).where(_RUNS.c.id == _BY_RUN).values(active_call=sa.bindparam("call"))
)

_GET_OP: Final = sa.select(_OPS).where(_OPS.c.run == _BY_RUN, _OPS.c.key == sa.bindparam("key"))
_LIST_OPS: Final = (
    sa.select(_OPS)
    .where(_OPS.c.run == _BY_RUN)
    .order_by(_OPS.c.request, _OPS.c.call_id, _OPS.c.occurrence)
)
_OPS_BY_KEY: Final = sa.select(_OPS).where(_OPS.c.key == sa.bindparam("key"))
_INSERT_OP: Final = sa.insert(_OPS)
_DISPATCH_OP: Final = (
    sa.update(_OPS)
    .where(
        _OPS.c.run == _BY_RUN,
        _OPS.c.key == sa.bindparam("op"),
        _OPS.c.stage == sa.literal_column("'intended'"),
    )
    .values(
        stage="dispatched",
        dispatched_at=sa.bindparam("at"),
        first_dispatched_at=sa.func.coalesce(_OPS.c.first_dispatched_at, sa.bindparam("at")),
    )
)
_SETTLE_OP: Final = (
    sa.update(_OPS)
    .where(_OPS.c.run == _BY_RUN, _OPS.c.key == sa.bindparam("op"))
    .values(
        stage="settled",
        settled_at=sa.bindparam("at"),
        outcome=sa.bindparam("settled"),
        receipts=sa.bindparam("proofs"),
        provider_request_id=sa.bindparam("request_id"),
        decided_by=sa.bindparam("person"),
    )
)
_ADD_RECEIPT: Final = (
    sa.update(_OPS)
    .where(_OPS.c.run == _BY_RUN, _OPS.c.key == sa.bindparam("op"))
    .values(receipts=sa.bindparam("proofs"), provider_request_id=sa.bindparam("request_id"))
)

_INSERT_STEER: Final = sa.insert(_STEERS)
_MOVE_STEER: Final = (
    sa.update(_STEERS)
    .where(_STEERS.c.id == sa.bindparam("steer"))
    .values(status=sa.bindparam("to"), proof=sa.bindparam("shown"))
)
_KEPT_STEERS: Final = (
    sa.update(_STEERS)
    .where(_STEERS.c.run == _BY_RUN, _STEERS.c.status == sa.literal_column("'queued'"))
    .values(run=sa.bindparam("to"))
)
_LIST_STEERS: Final = (
    sa.select(_STEERS.c.id, _STEERS.c.run, _STEERS.c.content, _STEERS.c.status, _STEERS.c.proof)
    .where(_STEERS.c.run == _BY_RUN)
    .order_by(_STEERS.c.ordinal)
)
_COUNT_STEERS: Final = sa.select(sa.func.count()).where(_STEERS.c.run == _BY_RUN)

_INSERT_MESSAGE: Final = sa.insert(_MESSAGES)
_INSERT_REPAIR: Final = sa.insert(_REPAIRS)
_LIST_MESSAGES: Final = (
    sa.select(_MESSAGES.c.body).where(_MESSAGES.c.run == _BY_RUN).order_by(_MESSAGES.c.ordinal)
)
_LIST_REPAIRS: Final = (
    sa.select(_REPAIRS.c.body).where(_REPAIRS.c.run == _BY_RUN).order_by(_REPAIRS.c.ordinal)
)
_LIST_EVENTS: Final = (
    sa.select(_EVENTS)
    .where(_EVENTS.c.run == _BY_RUN, _EVENTS.c.seq > sa.bindparam("after"))
    .order_by(_EVENTS.c.seq)
)


@dataclass(frozen=True, slots=True)
class Closed:
    """The run may not start anything: its record says so, and why."""

    status: RunStatus
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class StopReceipt:
    """What became of a request to stop.

    `recorded` is True only once the request is committed; `status` and `version` are the
    record's, None where it could not be written, which `error` explains.  `first` is False for a
    repeat, and for a run that had ended; neither changes the record.  Nothing here says that
    anybody saw it: `observed` is whether the worker had by then.
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


def insert_run(tx: Tx, record: RunRecord, at: float) -> RunRecord:
    tx.execute(_INSERT_RUN, _run_parameters(record))
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
    row = tx.row(_GET_RUN, {"run": run})
    if row is None:
        raise RunNotFound(f"no run {run} in this store", correlation_id=run)
    return _run(row)


def runs_of_session(tx: Tx, session: str) -> tuple[RunRecord, ...]:
    return tuple(_run(row) for row in tx.rows(_LIST_RUNS, {"session": session}))


def runs_being_stopped(tx: Tx) -> tuple[RunRecord, ...]:
    return tuple(_run(row) for row in tx.rows(_BEING_STOPPED, {}))


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
    moved = tx.execute(
        _MOVE_RUN,
        {
            "run": run,
            "expected": record.version,
            "status": to,
            **_cause_parameters(asked),
            "presses": max(record.presses, presses, 1 if asked else 0),
            "cancel_requested_at": (at if to == "cancel_requested" else record.cancel_requested_at),
            "terminal_at": at if to in ("cancelled", "completed", "failed") else None,
            "end": end or record.end,
            "failure": failure or record.failure,
        },
    )
    if moved.rowcount != 1:
        raise RunConflict(f"run {run} moved meanwhile", correlation_id=run)
    tx.event(run, kind, at, data or {})
    return load_run(tx, run)


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
        tx.execute(_PRESS, {"run": run})
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
    tx.execute(_PRESS, {"run": run})


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
    tx.execute(_COUNT_REQUEST, {"run": run})
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
    earlier = latest_with_key(tx, operation.key)
    admission = admit(earlier, fingerprint=operation.fingerprint, now=at, retention=retention)
    if not isinstance(admission, Go):
        return admission
    parameters = _op_parameters(operation)
    if earlier is not None:
        parameters["first_dispatched_at"] = (
            earlier.first_dispatched_at or operation.first_dispatched_at
        )
        if earlier.run == operation.run:
            # The same key again within one run is the same row: its earlier attempt had no effect.
            tx.execute(_DELETE_OP, {"run": operation.run, "key": operation.key})
    tx.execute(_INSERT_OP, parameters)
    tx.execute(_SET_ACTIVE, {"run": operation.run, "call": operation.call_id})
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
    tx.execute(_INSERT_OP, _op_parameters(undo))
    tx.event(undo.run, "call.dispatched", at, {"key": undo.key, "compensation": True, "by": by})


_DELETE_OP: Final = sa.delete(_OPS).where(_OPS.c.run == _BY_RUN, _OPS.c.key == sa.bindparam("key"))


def dispatch(tx: Tx, run: str, key: str, at: float, *, cleanup: bool = False) -> Closed | None:
    """Record the commit point, before the effect can happen."""
    record = load_run(tx, run)
    if record.status != "running" and not (
        cleanup and record.status in ("cancel_requested", "cancelling")
    ):
        return Closed(record.status, record.cause)
    if tx.execute(_DISPATCH_OP, {"run": run, "op": key, "at": at}).rowcount:
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
        tx.execute(_INSERT_OP, _op_parameters(wanted))
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
        _ADD_RECEIPT,
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
) -> Operation:
    """Replace an outcome by what evidence (`by`) or a named person (`decided_by`) established."""
    operation = get_operation(tx, run, key)
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
    if record.status == "queued":
        record = move_run(tx, run, "running", at, kind="run.running")
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
    last = tx.row(_LAST_ATTEMPT, {"lineage": record.lineage})
    assert last is not None
    if not record.terminal or _run(last).id != old:
        raise RunConflict(
            f"run {old} is {record.status}; only the last attempt can be resumed, after its end",
            run_status=record.status,
            correlation_id=old,
        )
    insert_run(tx, new, at)
    append_messages(tx, new.id, 0, messages_of(tx, old))
    append_repairs(tx, new.id, 0, repairs_of(tx, old))
    # Steers that were kept for this attempt; all others have their end.
    tx.execute(_KEPT_STEERS, {"run": old, "to": new.id})
    for steer in steers_of(tx, new.id):
        tx.event(new.id, "steer.queued", at, {"steer": steer.id, "kept_from": old})
    return new


def get_operation(tx: Tx, run: str, key: str) -> Operation:
    operation = _get_operation(tx, run, key)
    if operation is None:
        raise RunNotFound(f"run {run} has no operation {key}", correlation_id=run)
    return operation


def operations_of(tx: Tx, run: str) -> tuple[Operation, ...]:
    return tuple(_operation(row) for row in tx.rows(_LIST_OPS, {"run": run}))


def pending_of(tx: Tx, run: str) -> tuple[Operation, ...]:
    return tuple(operation for operation in operations_of(tx, run) if operation.unverified)


def operations_of_lineage(tx: Tx, lineage: str) -> tuple[Operation, ...]:
    """The operations of all attempts, the latest attempt's last."""
    return tuple(
        operation
        for row in tx.rows(_LIST_LINEAGE, {"lineage": lineage})
        for operation in operations_of(tx, _run(row).id)
    )


def latest_with_key(tx: Tx, key: str) -> Operation | None:
    found = [_operation(row) for row in tx.rows(_OPS_BY_KEY, {"key": key})]
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
    count = tx.row(_COUNT_STEERS, {"run": steer.run})
    tx.execute(
        _INSERT_STEER,
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
    tx.execute(_MOVE_STEER, {"steer": steer.id, "to": steer.status, "shown": steer.proof})
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
        for row in tx.rows(_LIST_STEERS, {"run": run})
    )


def append_messages(tx: Tx, run: str, start: int, bodies: Sequence[object]) -> None:
    for ordinal, body in enumerate(bodies, start):
        tx.execute(_INSERT_MESSAGE, {"run": run, "ordinal": ordinal, "body": dumps(body)})


def append_repairs(tx: Tx, run: str, start: int, bodies: Sequence[object]) -> None:
    for ordinal, body in enumerate(bodies, start):
        tx.execute(_INSERT_REPAIR, {"run": run, "ordinal": ordinal, "body": dumps(body)})


def messages_of(tx: Tx, run: str) -> tuple[JsonValue, ...]:
    return tuple(loads(str(row[0])) for row in tx.rows(_LIST_MESSAGES, {"run": run}))


def repairs_of(tx: Tx, run: str) -> tuple[JsonValue, ...]:
    return tuple(loads(str(row[0])) for row in tx.rows(_LIST_REPAIRS, {"run": run}))


def events_of(tx: Tx, run: str, after: int = 0) -> tuple[Event, ...]:
    return tuple(
        Event(
            str(row[0]),
            cast(int, row[1]),
            cast(float, row[2]),
            cast(EventKind, row[3]),
            loads_object(str(row[4])),
        )
        for row in tx.rows(_LIST_EVENTS, {"run": run, "after": after})
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
        _SETTLE_OP,
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
    row = tx.row(_GET_OP, {"run": run, "key": key})
    return None if row is None else _operation(row)


def _cause_parameters(cause: Cause | None) -> dict[str, Value]:
    if cause is None:
        return dict.fromkeys(_CAUSE_COLUMNS)
    return {
        "cause_kind": cause.kind,
        "cause_at": cause.at,
        "cause_actor": cause.actor,
        "cause_words": cause.words,
    }


def _run_parameters(record: RunRecord) -> dict[str, Value]:
    return {
        "id": record.id,
        "session": record.session,
        "tenant": record.tenant,
        "lineage": record.lineage,
        "attempt": record.attempt,
        "resumed_from": record.resumed_from,
        "parent": record.parent,
        "status": record.status,
        "version": record.version,
        "requests": record.requests,
        "opened_at": record.opened_at,
        "deadline_at": record.deadline_at,
        **_cause_parameters(record.cause),
        "presses": record.presses,
        "cancel_requested_at": record.cancel_requested_at,
        "terminal_at": record.terminal_at,
        "end": record.end,
        "failure": record.failure,
        "active_call": record.active_call,
    }


def _run(row: Row) -> RunRecord:
    found = dict(zip(_RUN_COLUMNS, row, strict=True))
    cause = None
    if found["cause_kind"] is not None:
        cause = Cause(*(found[name] for name in _CAUSE_COLUMNS))  # type: ignore[arg-type]
    for name in _CAUSE_COLUMNS:
        del found[name]
    return RunRecord(**found, cause=cause)  # type: ignore[arg-type]


def _op_parameters(operation: Operation) -> dict[str, Value]:
    outcome = operation.outcome
    return {
        "run": operation.run,
        "key": operation.key,
        "request": operation.request,
        "call_id": operation.call_id,
        "occurrence": operation.occurrence,
        "name": operation.name,
        "arguments": dumps(dict(operation.arguments)),
        "fingerprint": operation.fingerprint,
        "effect": operation.effect,
        "stage": operation.stage,
        "intended_at": operation.intended_at,
        "dispatched_at": operation.dispatched_at,
        "first_dispatched_at": operation.first_dispatched_at,
        "settled_at": operation.settled_at,
        "outcome": None if outcome is None else outcome.model_dump_json(),
        "receipts": dumps(list(operation.receipts)),
        "provider_request_id": operation.provider_request_id,
        "decided_by": operation.decided_by,
    }


def _operation(row: Row) -> Operation:
    found = dict(zip(_OP_COLUMNS, row, strict=True))
    outcome = found["outcome"]
    return Operation(
        key=str(found["key"]),
        run=str(found["run"]),
        request=cast(int, found["request"]),
        call_id=str(found["call_id"]),
        occurrence=cast(int, found["occurrence"]),
        name=str(found["name"]),
        arguments=loads_object(str(found["arguments"])),
        fingerprint=str(found["fingerprint"]),
        effect=cast(EffectClass, found["effect"]),
        stage=cast(Stage, found["stage"]),
        intended_at=cast("float | None", found["intended_at"]),
        dispatched_at=cast("float | None", found["dispatched_at"]),
        first_dispatched_at=cast("float | None", found["first_dispatched_at"]),
        settled_at=cast("float | None", found["settled_at"]),
        outcome=None if outcome is None else parse_outcome(loads_object(str(outcome))),
        receipts=tuple(
            str(receipt) for receipt in cast("list[str]", loads(str(found["receipts"])))
        ),
        provider_request_id=cast("str | None", found["provider_request_id"]),
        decided_by=cast("str | None", found["decided_by"]),
    )
