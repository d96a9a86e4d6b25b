"""What holds for every run that has come to its end, whatever happened to it."""

from __future__ import annotations

from stopkit.metrics import metrics
from stopkit.outcome import STATUSES


async def keeps_its_promises(world, scope):
    """Check a run's report against its record, its log and what the service saw."""
    report = scope.report

    # 12: every call has exactly one outcome, the same in the report and in the record.
    operations = {op.key: op for op in await world.store.operations(scope.id)}
    assert {entry.key for entry in report.calls} == set(operations)
    for entry in report.calls:
        assert entry.outcome.status in STATUSES
        assert entry.recorded
        assert operations[entry.key].outcome == entry.outcome

    # Nothing ran that is said not to have started, and nothing twice.
    assert max(world.service.calls.values(), default=0) <= 1
    for entry in report.calls:
        ran = world.service.calls[entry.key] or (
            world.service.calls[f"plain {entry.call.arguments.get('what')}"]
            if entry.call.name == "plain"
            else 0
        )
        if entry.outcome.status == "not_started":
            assert not ran
        if entry.call.name in ("write", "plain") and ran:
            assert entry.outcome.status in ("succeeded", "unknown")

    # 8: what is not known is named, and keeps the run from its end.
    record = await world.store.load(scope.id)
    assert report.status == record.status
    assert bool(report.to_reconcile) == (record.status == "needs_reconciliation")
    assert {op.key for op in await world.store.pending(scope.id)} == set(report.to_reconcile)

    # 13: no steer is lost.
    assert all(steer.status in ("applied", "returned", "unknown") for steer in report.steers)

    # 1: nothing started after the request.
    events = await world.store.events(scope.id)
    assert metrics(events).started_after_request == 0
    assert report.breaches == ()
    return record
