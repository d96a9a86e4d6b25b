"""Any order of requests, moves, crashes and decisions over the record, against a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from stopkit.errors import DecisionRefused, IllegalTransition, ReconcileRequired, RunConflict
from stopkit.metrics import metrics
from stopkit.operation import Absent, Done, Go, NoAnswer, Operation, fingerprint
from stopkit.outcome import Failed, Stopped, Succeeded, Unknown
from stopkit.run import TERMINAL, TRANSITIONS, RunRecord
from stopkit.stop import CAUSE_KINDS, Cause
from stopkit.store import MemoryStore, ledger
from stopkit.store.ledger import Closed, Settlement
from stopkit.testing import CountingIds, FakeClock, check_events
from stopkit.tool import ToolContext, tool

ARGUMENTS = {"n": 1}
MARK = fingerprint("pay", ARGUMENTS)


class RecordMachine(RuleBasedStateMachine):
    """The store's functions in any order; the model keeps what was promised."""

    runs = Bundle("runs")
    operations = Bundle("operations")

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.ids = CountingIds()
        self.store = MemoryStore(clock=self.clock, ids=self.ids)
        self.causes = {}
        self.versions = {}
        self.keys = {}
        self.succeeded = set()
        self.ended = {}
        self.answers = {}
        self.refused = (set(), set())
        self.loop = asyncio.new_event_loop()

        async def status(key):
            return self.answers.get(key, NoAnswer())

        @tool(effect="write", status=status)
        async def pay(ctx: ToolContext, n: int) -> str:
            return ""

        self.tools = [pay]

    def teardown(self):
        self.store.close()
        self.loop.close()

    def apply(self, function, *arguments, **options):
        self.clock.advance(1)
        return self.store.submit(partial(function, *arguments, **options)).result()

    def apply_at(self, function, *arguments, **options):
        return self.apply(function, *arguments, at=self.clock.wall(), **options)

    def record(self, run):
        return self.store.submit(partial(ledger.load_run, run=run)).result()

    def events(self, run):
        return self.store.submit(partial(ledger.events_of, run=run)).result()

    @rule(target=runs)
    def open(self):
        run = self.ids("run")
        self.apply_at(
            ledger.insert_run,
            record=RunRecord(
                id=run,
                session="s1",
                tenant=None,
                lineage=run,
                attempt=1,
                resumed_from=None,
                parent=None,
                status="queued",
                version=1,
                requests=0,
                opened_at=self.clock.wall(),
            ),
        )
        return run

    @rule(run=runs)
    def start(self, run):
        before = self.record(run).status
        started = self.apply_at(ledger.start_run, run=run)
        assert isinstance(started, Closed) == (before != "queued")

    @rule(run=runs, kind=st.sampled_from(CAUSE_KINDS), version=st.none() | st.integers(1, 5))
    def request(self, run, kind, version):
        before = self.record(run)
        cause = Cause(kind, self.clock.wall())
        receipt = self.apply_at(ledger.request_stop, run=run, cause=cause)
        after = self.record(run)
        assert receipt.first == (before.status in ("queued", "running"))
        if receipt.first:
            self.causes[run] = cause
            assert after.version == before.version + 1
        else:
            assert (after.version, after.status) == (before.version, before.status)
        assert after.cause == self.causes.get(run)

    @rule(run=runs)
    def observe(self, run):
        cause = Cause("user", self.clock.wall())
        if self.record(run).status in ("queued", "running"):
            self.causes[run] = cause
        self.apply_at(ledger.observe_stop, run=run, cause=cause)

    @rule(run=runs, to=st.sampled_from(sorted(TRANSITIONS)), stale=st.booleans())
    def compare_and_set(self, run, to, stale):
        record = self.record(run)
        # Ends go through finish_run, which has the account in the same transaction.
        if to in (*TERMINAL, "needs_reconciliation", "cancel_requested", "cancelling"):
            return
        version = record.version - 1 if stale else record.version
        move = partial(
            ledger.move_run, run=run, to=to, kind="run.running", expected_version=version
        )
        if stale:
            with pytest.raises(RunConflict):
                self.apply_at(move)
        elif to not in TRANSITIONS[record.status]:
            with pytest.raises(IllegalTransition):
                self.apply_at(move)
        else:
            self.apply_at(move)

    @rule(run=runs)
    def model_request(self, run):
        begun = self.apply_at(ledger.begin_request, run=run)
        assert isinstance(begun, Closed) == (self.record(run).status != "running")

    @rule(target=operations, run=runs, again=st.none() | operations, plain=st.booleans())
    def intend(self, run, again, plain):
        key = again[1] if again else self.ids("op")
        operation = Operation(
            key=key,
            run=run,
            request=1,
            call_id=self.ids("call"),
            occurrence=1,
            name="pay",
            arguments=ARGUMENTS,
            fingerprint=MARK,
            effect="write",
            stage="intended",
            intended_at=self.clock.wall(),
        )
        if plain:
            at = self.clock.wall()
            operation = replace(
                operation, stage="dispatched", dispatched_at=at, first_dispatched_at=at
            )
        status = self.record(run).status
        admission = self.apply_at(ledger.intend, operation=operation, retention=None)
        if status != "running":
            assert isinstance(admission, Closed)
        if isinstance(admission, Go):
            assert key not in self.succeeded
            self.keys.setdefault(key, MARK)
            return (run, key)
        return multiple()

    @rule(operation=operations)
    def dispatch(self, operation):
        run, key = operation
        status = self.record(run).status
        closed = self.apply_at(ledger.dispatch, run=run, key=key)
        assert (closed is None) == (status == "running")

    @rule(
        operation=operations,
        outcome=st.sampled_from(
            [Succeeded(output="x"), Unknown(), Stopped(effects="none"), Failed(reason="no")]
        ),
    )
    def settle(self, operation, outcome):
        run, key = operation
        before = self.get(run, key)
        settled = self.apply_at(ledger.settle, settlement=Settlement(before, outcome))
        if before.outcome is None:
            assert settled == outcome
        elif before.outcome.status != "unknown":
            assert settled == before.outcome
        if self.get(run, key).outcome.status == "succeeded":
            self.succeeded.add(key)

    @rule(run=runs, end=st.sampled_from(["cancelled", "completed", "failed"]))
    def finish(self, run, end):
        record = self.record(run)
        if record.terminal or record.status == "needs_reconciliation":
            return
        if record.status == "queued" and end == "completed":
            return
        cause = Cause("user", self.clock.wall()) if end == "cancelled" else None
        settlements = [
            Settlement(operation, Unknown())
            for operation in self.store.submit(partial(ledger.operations_of, run=run)).result()
            if operation.outcome is None
        ]
        self.apply_at(ledger.finish_run, run=run, end=end, settlements=settlements, cause=cause)
        if cause and record.status in ("queued", "running"):
            self.causes[run] = cause

    @rule(run=runs)
    def worker_is_lost(self, run):
        before = self.record(run)
        after = self.apply_at(ledger.take_over, run=run)
        if before.status in ("cancel_requested", "cancelling"):
            assert after.status in ("cancelled", "needs_reconciliation")

    @rule(
        operation=operations,
        answer=st.sampled_from([Done("x"), Absent(), NoAnswer()]),
    )
    def reconcile(self, operation, answer):
        run, key = operation
        if self.record(run).status != "needs_reconciliation":
            return
        self.answers = {key: answer}
        pending = self.get(run, key).unverified
        self.loop.run_until_complete(self.store.reconcile(run, self.tools))
        after = self.get(run, key)
        assert after.unverified == (pending and isinstance(answer, NoAnswer))
        if after.outcome.status == "succeeded":
            self.succeeded.add(key)

    @rule(
        operation=operations,
        decision=st.sampled_from(["happened", "did_not_happen", "accept_unknown"]),
    )
    def decide(self, operation, decision):
        run, key = operation
        deciding = self.store.decide(run, key, decision, by="ann")
        if not self.get(run, key).unverified:
            with pytest.raises(DecisionRefused):
                self.loop.run_until_complete(deciding)
            return
        if self.record(run).status != "needs_reconciliation":
            deciding.close()
            return
        self.loop.run_until_complete(deciding)
        if decision == "happened":
            self.succeeded.add(key)

    @rule(target=runs, run=consumes(runs))
    def resume(self, run):
        record = self.record(run)
        new = replace(
            record,
            id=self.ids("run"),
            attempt=record.attempt + 1,
            resumed_from=run,
            status="queued",
            version=1,
            cause=None,
            presses=0,
            end=None,
            terminal_at=None,
            cancel_requested_at=None,
            failure=None,
        )
        pending = self.store.submit(partial(ledger.pending_of, run=run)).result()
        try:
            self.apply_at(ledger.resume_run, old=run, new=new)
        except ReconcileRequired as error:
            self.refused = (set(error.keys), {operation.key for operation in pending})
            return run
        except RunConflict:
            assert not record.terminal
            return run
        assert record.terminal
        assert not pending
        return new.id

    def get(self, run, key):
        return self.store.submit(partial(ledger.get_operation, run=run, key=key)).result()

    @invariant()
    def a_refusal_names_what_is_pending(self):
        named, pending = self.refused
        assert named == pending

    @invariant()
    def logs_keep_every_promise(self):
        records = self.store.submit(partial(ledger.runs_of_session, session="s1")).result()
        for record in records:
            events = self.events(record.id)
            assert check_events(events) == []
            assert metrics(events).started_after_request == 0
            assert record.version >= self.versions.get(record.id, 1)
            self.versions[record.id] = record.version
            if record.id in self.ended:
                assert record.status == self.ended[record.id]
            if record.terminal:
                self.ended[record.id] = record.status
            operations = self.store.submit(partial(ledger.operations_of, run=record.id)).result()
            if record.status in (*TERMINAL, "needs_reconciliation"):
                assert all(operation.outcome is not None for operation in operations)
            if record.terminal:
                assert not any(operation.unverified for operation in operations)


RecordMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, derandomize=True
)
TestRecord = RecordMachine.TestCase


class FollowTheSecondArticle:
    """The second article's own sample, which sets the request again on every call."""

    def __init__(self, status):
        self.status = status
        self.version = 1
        self.outbox = []

    def request_cancel(self):
        if self.status in ("completed", "failed", "cancelled"):
            return self
        self.status = "cancel_requested"
        self.version += 1
        self.outbox.append("run.cancel_requested")
        return self


@pytest.mark.parametrize("status", ["cancel_requested", "cancelling", "needs_reconciliation"])
def test_the_articles_sample_breaks_its_own_rule_and_ours_does_not(status):
    sample = FollowTheSecondArticle(status)
    sample.request_cancel()
    assert sample.version == 2
    assert sample.outbox
    assert sample.status == "cancel_requested"

    store = MemoryStore(clock=FakeClock(), ids=CountingIds())
    cause = Cause("user", 1.0)
    run = "run_1"
    store.submit(
        partial(
            ledger.insert_run,
            record=RunRecord(
                run, "s", None, run, 1, None, None, "queued", version=1, requests=0, opened_at=1.0
            ),
            at=1.0,
        )
    ).result()
    store.submit(partial(ledger.start_run, run=run, at=1.0)).result()
    store.submit(partial(ledger.request_stop, run=run, cause=cause, at=1.0)).result()
    if status != "cancel_requested":
        store.submit(partial(ledger.observe_stop, run=run, cause=cause, at=1.0)).result()
    if status == "needs_reconciliation":
        lost = Operation(
            "op_1", run, 1, "c", 1, "pay", {}, MARK, "write", "dispatched", dispatched_at=1.0
        )
        settlement = Settlement(lost, Unknown())
        store.submit(
            partial(ledger.finish_run, run=run, at=1.0, end="cancelled", settlements=[settlement])
        ).result()
    before = store.submit(partial(ledger.load_run, run=run)).result()
    events = store.submit(partial(ledger.events_of, run=run)).result()
    assert before.status == status
    receipt = store.submit(
        partial(ledger.request_stop, run=run, cause=Cause("operator", 2.0), at=2.0)
    ).result()
    after = store.submit(partial(ledger.load_run, run=run)).result()
    assert not receipt.first
    assert (after.status, after.version, after.cause) == (status, before.version, cause)
    assert store.submit(partial(ledger.events_of, run=run)).result() == events
    store.close()
