"""The invariants of a run, checked on its events alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stopkit.events import STARTS, Event
from stopkit.run import RUN_STATUSES, TRANSITIONS, RunStatus
from stopkit.steer import STEER_ENDS, STEER_STATUSES, STEER_TRANSITIONS, SteerStatus


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; `seq` is the event that breaks it, or the last one."""

    code: str
    run: str
    seq: int
    message: str


def check_events(events: Iterable[Event]) -> list[Violation]:
    """What the events of one or more runs, each in its order, have wrong; empty if nothing.

    A log may end anywhere: what has not happened yet is no violation while a run has no end.
    """
    runs: dict[str, _Checker] = {}
    for event in events:
        runs.setdefault(event.run, _Checker(event.run)).take(event)
    return [found for checker in runs.values() for found in checker.violations]


class _Checker:
    def __init__(self, run: str) -> None:
        self.run = run
        self.violations: list[Violation] = []
        self._seq = 0
        self._status: RunStatus | None = None
        self._requested = False
        self._ended = False
        self._open: dict[object, bool] = {}
        self._settled: dict[object, object] = {}
        self._steers: dict[object, SteerStatus] = {}
        self._finals: set[object] = set()

    def take(self, event: Event) -> None:
        if event.seq != self._seq + 1:
            self._bad("gap", event, f"event {event.seq} follows {self._seq}")
        self._seq = event.seq
        head, _, tail = event.kind.partition(".")
        if event.kind in STARTS and not event.data.get("cleanup"):
            self._may_start(event)
        match head:
            case "run":
                self._run_event(event)
            case "call":
                self._call_event(event, tail)
            case "steer":
                self._steer_event(event, tail)
            case "text":
                self._text_event(event, tail)
            case _:
                pass

    def _bad(self, code: str, event: Event, message: str) -> None:
        self.violations.append(Violation(code, self.run, event.seq, message))

    def _may_start(self, event: Event) -> None:
        if self._requested:
            self._bad("start_after_request", event, f"{event.kind} after the request to stop")
        elif self._status != "running":
            self._bad("start_outside", event, f"{event.kind} while the run is {self._status}")

    def _run_event(self, event: Event) -> None:
        to: object
        match event.kind:
            case "run.opened":
                if self._status is not None:
                    self._bad("opened_twice", event, "the run was opened before")
                self._status = "queued"
                return
            case "run.cancel_observed":
                if not self._requested:
                    self._bad("observed_unasked", event, "nobody had asked for a stop")
                return
            case "run.ended" | "run.reconciled":
                to = event.data.get("status")
            case _:
                to = event.kind.removeprefix("run.")
        if self._status is None:
            self._bad("not_opened", event, "the run was not opened")
        elif to not in RUN_STATUSES:
            self._bad("no_status", event, f"no such status: {to!r}")
            return
        elif to not in TRANSITIONS[self._status]:
            self._bad("illegal_move", event, f"from {self._status} to {to}")
        if event.kind == "run.cancel_requested":
            self._requested = True
        if event.kind == "run.ended":
            self._end(event, to)
        for status in RUN_STATUSES:
            if status == to:
                self._status = status

    def _end(self, event: Event, to: object) -> None:
        self._ended = True
        for key in [key for key, settled in self._open.items() if not settled]:
            self._bad("end_before_account", event, f"call {key} has no outcome")
        pending = event.data.get("to_reconcile")
        if bool(pending) != (to == "needs_reconciliation"):
            self._bad("unverified_end", event, f"ended as {to} with {pending} unverified")
        if to == "cancelled" and not self._requested:
            self._bad("cancelled_unasked", event, "cancelled without a request")

    def _call_event(self, event: Event, what: str) -> None:
        key = event.data.get("key")
        match what:
            case "intended":
                if self._open.get(key) is False:
                    self._bad("key_reused", event, f"{key} is at work already")
                self._open[key] = False
                self._settled.pop(key, None)
            case "dispatched":
                if not event.data.get("compensation") and self._open.get(key) is not False:
                    self._bad("dispatch_unintended", event, f"{key} was not intended, or has ended")
            case "settled":
                if key in self._settled:
                    self._bad("two_outcomes", event, f"{key} has an outcome already")
                self._open[key] = True
                self._settled[key] = event.data.get("status")
                if event.data.get("status") == "succeeded" and key is None:
                    self._bad("no_key", event, "an outcome without a key")
            case "reconciled":
                if key not in self._settled:
                    self._bad("reconciled_unsettled", event, f"{key} has no outcome")
                if not (event.data.get("by") or event.data.get("person")):
                    self._bad("reconciled_by_nobody", event, f"{key} changed without evidence")
                self._settled[key] = event.data.get("status")
            case _:
                pass

    def _steer_event(self, event: Event, what: str) -> None:
        name = event.data.get("steer")
        to: SteerStatus | None = next((known for known in STEER_STATUSES if known == what), None)
        if to is None:
            return
        before = self._steers.get(name)
        if before is None:
            if to != "queued":
                self._bad("steer_unqueued", event, f"{name} was never queued")
        elif to not in STEER_TRANSITIONS[before]:
            self._bad("illegal_steer", event, f"{name} from {before} to {to}")
        self._steers[name] = to
        if self._ended and to not in STEER_ENDS:
            self._bad("steer_after_end", event, f"{name} is {to} after the end")

    def _text_event(self, event: Event, what: str) -> None:
        name = event.data.get("text")
        if what == "final":
            self._finals.add(name)
        elif what == "shown" and event.data.get("as") == "final" and name not in self._finals:
            self._bad("partial_as_final", event, f"{name} was shown as final")
