"""After a run: find out what nobody verified, and undo what somebody asks to undo."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from stopkit.errors import RunNotFound, ToolFailed
from stopkit.operation import (
    UNDO_SUFFIX,
    Absent,
    NoAnswer,
    Operation,
    StatusAnswer,
    past_retention,
    resettle_by_answer,
)
from stopkit.outcome import Failed, Succeeded, Unknown
from stopkit.run import RunStatus
from stopkit.store import ledger
from stopkit.store.ledger import Settlement
from stopkit.store.tx import Tx
from stopkit.tool import Tool, Tools, by_name

if TYPE_CHECKING:
    from stopkit.store.sql import Store


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What asking came to.  `open` needs a person, or another try; nothing was run."""

    run: str
    status: RunStatus
    answers: Mapping[str, StatusAnswer]
    settled: tuple[Operation, ...]
    open: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Compensation:
    """What became of an undo.  `not_possible`: nothing was run, `reason` says why."""

    key: str
    status: Literal["done", "not_possible", "failed", "unknown"]
    reason: str = ""
    output: str | None = None


async def reconcile(store: Store, run: str, tools: Tools, *, within: float) -> Reconciliation:
    await store.read(partial(ledger.require_end, run=run))
    table = by_name(tools)
    answers: dict[str, StatusAnswer] = {}
    settled: list[Operation] = []
    for operation in await store.pending(run):
        answer = await _ask(store, table.get(operation.name), operation, within)
        answers[operation.key] = answer
        outcome = resettle_by_answer(operation, answer)
        if outcome is not None:
            known = await store.write(
                partial(
                    ledger.resettle,
                    run=run,
                    key=operation.key,
                    outcome=outcome,
                    at=store.clock.wall(),
                    by="status",
                )
            )
            if known is not None:
                settled.append(known)
    record = await store.write(partial(ledger.close_if_reconciled, run=run, at=store.clock.wall()))
    return Reconciliation(run, record.status, answers, tuple(settled), await store.pending(run))


async def _ask(
    store: Store, tool: Tool | None, operation: Operation, within: float
) -> StatusAnswer:
    if tool is None:
        return NoAnswer(f"there is no tool {operation.name!r}")
    if tool.status is None:
        return NoAnswer("the tool has no status check")
    try:
        async with asyncio.timeout(within):
            answer = await tool.status(operation.key)
    except TimeoutError:
        return NoAnswer(f"no answer within {within} s")
    except Exception as error:
        return NoAnswer(f"{type(error).__name__}: {error}")
    if isinstance(answer, Absent) and past_retention(
        operation, now=store.clock.wall(), retention=tool.retention
    ):
        # What it no longer remembers looks as what it never saw.
        return NoAnswer("the service says absent, and may have forgotten this key")
    return answer


async def compensate(
    store: Store, run: str, key: str, tools: Tools, *, by: str, within: float
) -> Compensation:
    operation = next((op for op in await store.operations(run) if op.key == key), None)
    if operation is None:
        raise RunNotFound(f"run {run} has no operation {key}", correlation_id=run)
    undo_key = key + UNDO_SUFFIX
    tenant = (await store.load(run)).tenant
    earlier = await store.read(partial(ledger.latest_with_key, key=undo_key, tenant=tenant))
    if earlier is not None:
        return _recorded(earlier)
    if not operation.standing:
        return Compensation(undo_key, "not_possible", "it is not known to have had an effect")
    tool = by_name(tools).get(operation.name)
    if tool is None or tool.compensate is None:
        return Compensation(undo_key, "not_possible", "its tool has no way to undo it")
    at = store.clock.wall()
    undo = replace(
        operation,
        key=undo_key,
        call_id=operation.call_id + UNDO_SUFFIX,
        name=f"undo {operation.name}",
        stage="dispatched",
        intended_at=at,
        dispatched_at=at,
        first_dispatched_at=at,
        settled_at=None,
        outcome=None,
        receipts=(),
        decided_by=None,
    )
    await store.write(partial(ledger.insert_compensation, undo=undo, by=by, at=at))
    outcome: Succeeded | Failed | Unknown
    try:
        async with asyncio.timeout(within):
            output = await tool.compensate(operation)
        outcome = Succeeded(output=output, key=undo_key, evidence=(f"undone for {by}",))
    except ToolFailed as error:
        effects: Literal["confirmed_absent", "unverified"]
        effects = "confirmed_absent" if error.no_effects else "unverified"
        outcome = Failed(reason=str(error), key=undo_key, effects=effects)
    except Exception as error:
        outcome = Unknown(reason=f"{type(error).__name__}: {error}", key=undo_key)

    def settle(tx: Tx) -> None:
        ended = store.clock.wall()
        ledger.settle(tx, Settlement(undo, outcome), ended)
        tx.event(run, "call.compensated", ended, {"key": key, "by": by, "status": outcome.status})

    await store.write(settle)
    return _recorded(replace(undo, outcome=outcome))


def _recorded(undo: Operation) -> Compensation:
    outcome = undo.outcome
    if isinstance(outcome, Succeeded):
        return Compensation(undo.key, "done", output=outcome.output)
    if isinstance(outcome, Failed):
        return Compensation(undo.key, "failed", outcome.reason or "")
    reason = (outcome.reason if outcome else None) or "its end was not recorded"
    return Compensation(undo.key, "unknown", reason)
