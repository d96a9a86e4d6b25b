"""Records to rows and back."""

from __future__ import annotations

from typing import Final, cast

from stopkit.operation import EffectClass, Operation, Stage
from stopkit.outcome import parse_outcome
from stopkit.run import RunRecord
from stopkit.stop import Cause
from stopkit.store import schema
from stopkit.store.codec import dumps, loads, loads_object
from stopkit.store.tx import Row, Value

_RUN_COLUMNS: Final = tuple(column.name for column in schema.runs.columns)
_OP_COLUMNS: Final = tuple(column.name for column in schema.operations.columns)
_CAUSE_COLUMNS: Final = ("cause_kind", "cause_at", "cause_actor", "cause_words")


def cause_parameters(cause: Cause | None) -> dict[str, Value]:
    if cause is None:
        return dict.fromkeys(_CAUSE_COLUMNS)
    return {
        "cause_kind": cause.kind,
        "cause_at": cause.at,
        "cause_actor": cause.actor,
        "cause_words": cause.words,
    }


def run_parameters(record: RunRecord) -> dict[str, Value]:
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
        **cause_parameters(record.cause),
        "presses": record.presses,
        "cancel_requested_at": record.cancel_requested_at,
        "terminal_at": record.terminal_at,
        "end": record.end,
        "failure": record.failure,
        "active_call": record.active_call,
    }


def run_of(row: Row) -> RunRecord:
    found = dict(zip(_RUN_COLUMNS, row, strict=True))
    cause = None
    if found["cause_kind"] is not None:
        cause = Cause(*(found[name] for name in _CAUSE_COLUMNS))  # type: ignore[arg-type]
    for name in _CAUSE_COLUMNS:
        del found[name]
    return RunRecord(**found, cause=cause)  # type: ignore[arg-type]


def operation_parameters(operation: Operation) -> dict[str, Value]:
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


def operation_of(row: Row) -> Operation:
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
