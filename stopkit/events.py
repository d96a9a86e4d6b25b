"""What happened to a run: one numbered event for each change, written with the change.

Within a run `seq` counts 1, 2, 3, ... without a gap, so that a reader can go on from any number.
`at` is seconds since the epoch.  `data` is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from pydantic import JsonValue

EventKind: TypeAlias = Literal[
    "run.opened",
    "run.running",
    "run.cancel_requested",
    "run.cancel_observed",
    "run.cancelling",
    "run.ended",
    "run.reconciled",
    "request.started",
    "request.ended",
    "provider.told",
    "provider.acknowledged",
    "provider.ended",
    "call.intended",
    "call.dispatched",
    "call.settled",
    "call.late",
    "call.reconciled",
    "call.compensated",
    "approval.requested",
    "approval.approved",
    "approval.denied",
    "approval.withdrawn",
    "steer.queued",
    "steer.sent",
    "steer.accepted",
    "steer.waiting",
    "steer.applied",
    "steer.returned",
    "steer.unknown",
    "text.partial",
    "text.final",
    "text.shown",
    "files.changed",
    "unit.ended",
    "breach",
]
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)

STARTS: Final[frozenset[EventKind]] = frozenset({"request.started", "call.intended"})
"""Events that say new work begins; none may follow the request to stop."""


@dataclass(frozen=True, slots=True)
class Event:
    run: str
    seq: int
    at: float
    kind: EventKind
    data: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def to_json(self) -> str:
        return json.dumps(
            {
                "run": self.run,
                "seq": self.seq,
                "at": self.at,
                "kind": self.kind,
                "data": dict(self.data),
            },
            ensure_ascii=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Event:
        """The event that `to_json` wrote.

        Raises:
            ValueError: for anything else.
        """
        try:
            row = json.loads(text)
            event = cls(row["run"], row["seq"], row["at"], row["kind"], row["data"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {text[:80]!r}") from error
        if event.kind not in EVENT_KINDS:
            raise ValueError(f"no such kind of event: {event.kind!r}")
        return event
