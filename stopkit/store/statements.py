"""The statements of the ledger, each compiled once.

A bind name that is also a column's is that column's new value in an `UPDATE`; the names of the
conditions differ from all columns.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from stopkit.store import schema

RUNS = schema.runs
OPS = schema.operations
STEERS = schema.steers
MESSAGES = schema.messages
REPAIRS = schema.repairs
EVENTS = schema.events


BY_RUN: Final[sa.BindParameter[str]] = sa.bindparam("run")
GET_RUN: Final = sa.select(RUNS).where(RUNS.c.id == BY_RUN)
LIST_RUNS: Final = (
    sa.select(RUNS)
    .where(RUNS.c.session == sa.bindparam("session"))
    .order_by(RUNS.c.opened_at, RUNS.c.attempt)
)
LAST_ATTEMPT: Final = (
    sa.select(RUNS)
    .where(RUNS.c.lineage == sa.bindparam("lineage"))
    .order_by(RUNS.c.attempt.desc())
    .limit(1)
)
LIST_LINEAGE: Final = (
    sa.select(RUNS).where(RUNS.c.lineage == sa.bindparam("lineage")).order_by(RUNS.c.attempt)
)
BEING_STOPPED: Final = sa.select(RUNS).where(
    RUNS.c.status.in_([sa.literal_column("'cancel_requested'"), sa.literal_column("'cancelling'")])
)
INSERT_RUN: Final = sa.insert(RUNS)
MOVE_RUN: Final = (
    sa.update(RUNS)
    .where(RUNS.c.id == BY_RUN, RUNS.c.version == sa.bindparam("expected"))
    .values(
        status=sa.bindparam("status"),
        version=RUNS.c.version + 1,
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
PRESS: Final = sa.update(RUNS).where(RUNS.c.id == BY_RUN).values(presses=RUNS.c.presses + 1)
COUNT_REQUEST: Final = (
    sa.update(RUNS).where(RUNS.c.id == BY_RUN).values(requests=RUNS.c.requests + 1)
)
SET_ACTIVE: Final = (
    sa.update(RUNS).where(RUNS.c.id == BY_RUN).values(active_call=sa.bindparam("call"))
)

GET_OP: Final = sa.select(OPS).where(OPS.c.run == BY_RUN, OPS.c.key == sa.bindparam("key"))
LIST_OPS: Final = (
    sa.select(OPS)
    .where(OPS.c.run == BY_RUN)
    .order_by(OPS.c.request, OPS.c.call_id, OPS.c.occurrence)
)
OPS_BY_KEY: Final = (
    sa.select(OPS)
    .join(RUNS, RUNS.c.id == OPS.c.run)
    .where(
        OPS.c.key == sa.bindparam("key"),
        RUNS.c.tenant.is_not_distinct_from(sa.bindparam("of_tenant", type_=sa.Text)),
    )
)
INSERT_OP: Final = sa.insert(OPS)
DISPATCH_OP: Final = (
    sa.update(OPS)
    .where(
        OPS.c.run == BY_RUN,
        OPS.c.key == sa.bindparam("op"),
        OPS.c.stage == sa.literal_column("'intended'"),
    )
    .values(
        stage="dispatched",
        dispatched_at=sa.bindparam("at"),
        first_dispatched_at=sa.func.coalesce(OPS.c.first_dispatched_at, sa.bindparam("at")),
    )
)
SETTLE_OP: Final = (
    sa.update(OPS)
    .where(OPS.c.run == BY_RUN, OPS.c.key == sa.bindparam("op"))
    .values(
        stage="settled",
        settled_at=sa.bindparam("at"),
        outcome=sa.bindparam("settled"),
        receipts=sa.bindparam("proofs"),
        provider_request_id=sa.bindparam("request_id"),
        decided_by=sa.bindparam("person"),
    )
)
ADD_RECEIPT: Final = (
    sa.update(OPS)
    .where(OPS.c.run == BY_RUN, OPS.c.key == sa.bindparam("op"))
    .values(receipts=sa.bindparam("proofs"), provider_request_id=sa.bindparam("request_id"))
)

INSERT_STEER: Final = sa.insert(STEERS)
MOVE_STEER: Final = (
    sa.update(STEERS)
    .where(STEERS.c.id == sa.bindparam("steer"))
    .values(status=sa.bindparam("to"), proof=sa.bindparam("shown"))
)
KEPT_STEERS: Final = (
    sa.update(STEERS)
    .where(STEERS.c.run == BY_RUN, STEERS.c.status == sa.literal_column("'queued'"))
    .values(run=sa.bindparam("to"))
)
LIST_STEERS: Final = (
    sa.select(STEERS.c.id, STEERS.c.run, STEERS.c.content, STEERS.c.status, STEERS.c.proof)
    .where(STEERS.c.run == BY_RUN)
    .order_by(STEERS.c.ordinal)
)
COUNT_STEERS: Final = sa.select(sa.func.count()).where(STEERS.c.run == BY_RUN)

INSERT_MESSAGE: Final = sa.insert(MESSAGES)
INSERT_REPAIR: Final = sa.insert(REPAIRS)
LIST_MESSAGES: Final = (
    sa.select(MESSAGES.c.body).where(MESSAGES.c.run == BY_RUN).order_by(MESSAGES.c.ordinal)
)
LIST_REPAIRS: Final = (
    sa.select(REPAIRS.c.body).where(REPAIRS.c.run == BY_RUN).order_by(REPAIRS.c.ordinal)
)
LIST_EVENTS: Final = (
    sa.select(EVENTS)
    .where(EVENTS.c.run == BY_RUN, EVENTS.c.seq > sa.bindparam("after"))
    .order_by(EVENTS.c.seq)
)


DELETE_OP: Final = sa.delete(OPS).where(OPS.c.run == BY_RUN, OPS.c.key == sa.bindparam("key"))
