"""The life of a run, as one table.

    queued ──► running ──► cancel_requested ──► cancelling ──► cancelled
                  │                                 │     └──► completed | failed
                  ├──► completed | failed           └──► needs_reconciliation ──► (its end)
                  └──► needs_reconciliation

1. Every move is in `TRANSITIONS`; `move` refuses all others, and so does the store.
2. `cancelled` is reached only through `cancelling`, once every call has its outcome.
3. A request on a run that is being stopped, or has ended, moves nothing (`requestable`).
4. `needs_reconciliation` is an end for the worker, not for the record: once every effect is
   verified, or a named person has decided, the run moves to the end it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

from stopkit.errors import IllegalTransition
from stopkit.stop import Cause

RunStatus: TypeAlias = Literal[
    "queued",
    "running",
    "cancel_requested",
    "cancelling",
    "cancelled",
    "completed",
    "failed",
    "needs_reconciliation",
]
End: TypeAlias = Literal["cancelled", "completed", "failed"]

RUN_STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)

TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = MappingProxyType(
    {
        "queued": frozenset({"running", "cancel_requested", "failed"}),
        "running": frozenset({"cancel_requested", "completed", "failed", "needs_reconciliation"}),
        "cancel_requested": frozenset({"cancelling"}),
        "cancelling": frozenset({"cancelled", "completed", "failed", "needs_reconciliation"}),
        "needs_reconciliation": frozenset({"cancelled", "completed", "failed"}),
        "cancelled": frozenset(),
        "completed": frozenset(),
        "failed": frozenset(),
    }
)

TERMINAL: Final[frozenset[RunStatus]] = frozenset({"cancelled", "completed", "failed"})
"""No move leads out of these."""

ENDED: Final[frozenset[RunStatus]] = frozenset({*TERMINAL, "needs_reconciliation"})
"""No worker has anything left to do for a run in one of these."""

USER_MESSAGES: Final[Mapping[RunStatus, str]] = MappingProxyType(
    {
        "queued": "Waiting",
        "running": "Working",
        "cancel_requested": "Stopping work",
        "cancelling": "Finishing safe shutdown",
        "cancelled": "Stopped; no new work will run",
        "completed": "Done",
        "failed": "Failed",
        "needs_reconciliation": "Checking an action before closing",
    }
)
"""What a person may be told, by the record alone.  None of it speaks of undoing."""

USER_ACTIONS: Final[Mapping[RunStatus, tuple[str, ...]]] = MappingProxyType(
    {
        "queued": ("stop",),
        "running": ("stop",),
        "cancel_requested": ("wait", "hide"),
        "cancelling": ("wait", "details"),
        "cancelled": ("start_new_run",),
        "completed": ("start_new_run",),
        "failed": ("start_new_run",),
        "needs_reconciliation": ("retry_check", "contact_support"),
    }
)


def requestable(status: RunStatus) -> bool:
    """True where a request to stop would move the run."""
    return "cancel_requested" in TRANSITIONS[status]


def move(current: RunStatus, to: RunStatus, *, run: str | None = None) -> RunStatus:
    """`to`, if a run may go there from `current`.

    Raises:
        IllegalTransition: for every pair that `TRANSITIONS` does not list.
    """
    if to not in TRANSITIONS[current]:
        raise IllegalTransition(
            f"a run that is {current} cannot become {to}", run_status=current, correlation_id=run
        )
    return to


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The durable record of one run.  Times are seconds since the epoch.

    `version` grows by one with every move.  `presses` counts requests to stop, repeats included.
    `end` is what a run that awaits reconciliation will become.  `requests` counts model requests,
    over all attempts of the lineage.  `active_call` is the call that was started last.
    """

    id: str
    session: str
    tenant: str | None
    lineage: str
    attempt: int
    resumed_from: str | None
    parent: str | None
    status: RunStatus
    version: int
    requests: int
    opened_at: float
    deadline_at: float | None = None
    cause: Cause | None = None
    presses: int = 0
    cancel_requested_at: float | None = None
    terminal_at: float | None = None
    end: End | None = None
    failure: str | None = None
    active_call: str | None = None

    def __post_init__(self) -> None:
        if self.deadline_at is not None and math.isnan(self.deadline_at):
            raise ValueError("a deadline is a number of seconds, not NaN")

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def user_message(self) -> str:
        return USER_MESSAGES[self.status]
