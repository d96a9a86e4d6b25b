"""Figures about stops, as a pure function of events.

Two of them must be zero: `started_after_request` and `partial_shown_as_final`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stopkit.events import STARTS, Event


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counts over the runs that the events tell of; times in seconds.

    `seconds_to_end`: from the request to the end of each stopped run that has one, sorted.
    `started_after_request`: stopped runs in which something started after the request.
    `orphaned_calls`: calls whose worker was lost, or which were left without an outcome at the end.
    `to_reconcile`: stopped runs that ended with an effect unverified.
    `duplicate_requests`: requests that repeated an earlier one.
    `partial_texts`: texts that never came to their end; `partial_shown_as_final`: those shown as
    answers all the same.
    `units_*`: processes left alive, units that had to be killed, outputs cut short.
    """

    runs: int
    stopped: int
    seconds_to_end: tuple[float, ...]
    started_after_request: int
    orphaned_calls: int
    to_reconcile: int
    duplicate_requests: int
    partial_texts: int
    partial_shown_as_final: int
    breaches: int
    units_survivors: int
    units_forced: int
    units_output_incomplete: int

    @property
    def reconciliation_rate(self) -> float:
        """The share of stopped runs that ended with an effect unverified."""
        return self.to_reconcile / self.stopped if self.stopped else 0.0

    @property
    def partial_as_final_rate(self) -> float:
        """The share of partial texts that were shown as final."""
        return self.partial_shown_as_final / self.partial_texts if self.partial_texts else 0.0

    def histogram(self, bounds: Sequence[float] = (0.1, 0.5, 1, 2, 5, 10, 30)) -> dict[str, int]:
        """How many stopped runs ended within each bound, cumulated as Prometheus does."""
        counts = {
            str(bound): sum(seconds <= bound for seconds in self.seconds_to_end) for bound in bounds
        }
        return {**counts, "inf": len(self.seconds_to_end)}


def metrics(events: Iterable[Event]) -> Metrics:
    """The figures of all runs in `events`, which may be mixed but keep each run's order."""
    runs: dict[str, _Run] = {}
    for event in events:
        runs.setdefault(event.run, _Run()).take(event)
    stopped = [run for run in runs.values() if run.requested_at is not None]
    return Metrics(
        runs=len(runs),
        stopped=len(stopped),
        seconds_to_end=tuple(
            sorted(
                run.ended_at - run.requested_at
                for run in stopped
                if run.ended_at is not None and run.requested_at is not None
            )
        ),
        started_after_request=sum(run.started_after for run in stopped),
        orphaned_calls=sum(run.orphaned for run in runs.values()),
        to_reconcile=sum(run.needs_reconciliation for run in stopped),
        duplicate_requests=sum(max(0, run.presses - 1) for run in runs.values()),
        partial_texts=sum(len(run.texts - run.finals) for run in runs.values()),
        partial_shown_as_final=sum(len(run.shown - run.finals) for run in runs.values()),
        breaches=sum(run.breaches for run in runs.values()),
        units_survivors=sum(run.survivors for run in runs.values()),
        units_forced=sum(run.forced for run in runs.values()),
        units_output_incomplete=sum(run.incomplete for run in runs.values()),
    )


class _Run:
    def __init__(self) -> None:
        self.requested_at: float | None = None
        self.ended_at: float | None = None
        self.started_after = False
        self.open_calls: set[object] = set()
        self.orphaned = 0
        self.needs_reconciliation = False
        self.presses = 0
        self.texts: set[object] = set()
        self.finals: set[object] = set()
        self.shown: set[object] = set()
        self.breaches = 0
        self.survivors = 0
        self.forced = 0
        self.incomplete = 0

    def take(self, event: Event) -> None:
        data = event.data
        if event.kind in STARTS and self.requested_at is not None and not data.get("cleanup"):
            self.started_after = True
        match event.kind:
            case "run.cancel_requested":
                self.requested_at = event.at
                self.presses = max(self.presses, 1)
            case "run.ended":
                self.ended_at = event.at
                self.needs_reconciliation = data.get("status") == "needs_reconciliation"
                self.presses = max(self.presses, _count(data, "presses"))
                self.orphaned += _count(data, "orphaned") + len(self.open_calls)
            case "call.intended":
                self.open_calls.add(data.get("key"))
            case "call.settled":
                self.open_calls.discard(data.get("key"))
            case "text.partial":
                self.texts.add(data.get("text"))
            case "text.final":
                self.finals.add(data.get("text"))
            case "text.shown":
                if data.get("as") == "final":
                    self.shown.add(data.get("text"))
            case "breach":
                self.breaches += 1
            case "unit.ended":
                survivors = data.get("survivors")
                self.survivors += len(survivors) if isinstance(survivors, list) else 0
                self.forced += data.get("forced") is True
                self.incomplete += data.get("output_complete") is False
            case _:
                pass


def _count(data: Mapping[str, object], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0
