"""stopkit: what a stop is.  Knows no provider and no wire format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stopkit.errors import ErrorEnvelope, StopkitError, StopRequested, ToolFailed
from stopkit.events import Event
from stopkit.history import Api, SendableHistory, ToolCall

# A submodule of the same name takes the place of a lazy attribute; these two are light enough.
from stopkit.metrics import Metrics, metrics
from stopkit.outcome import (
    STATUSES,
    Denied,
    Effects,
    Evidence,
    Failed,
    NotStarted,
    Outcome,
    Placeholder,
    Running,
    Status,
    Stopped,
    Succeeded,
    Unknown,
    parse_evidence,
    parse_outcome,
)
from stopkit.tool import ThreadContext, Tool, ToolContext, tool

if TYPE_CHECKING:
    from stopkit.operation import Absent, Done, NoAnswer
    from stopkit.report import RunReport, StopReport
    from stopkit.run import RunRecord, RunStatus
    from stopkit.scope import RunScope
    from stopkit.signal import StopSignal, stop_on_signals
    from stopkit.stop import Cause, StopPolicy
    from stopkit.store.ledger import StopReceipt
    from stopkit.store.sql import MemoryStore, SqlStore
    from stopkit.text import FinalText, PartialText

# What loads a database or a network library is imported when it is first asked for.
_LAZY = {
    "Absent": "operation",
    "Cause": "stop",
    "Done": "operation",
    "FinalText": "text",
    "MemoryStore": "store.sql",
    "NoAnswer": "operation",
    "PartialText": "text",
    "RunRecord": "run",
    "RunReport": "report",
    "RunScope": "scope",
    "RunStatus": "run",
    "SqlStore": "store.sql",
    "StopPolicy": "stop",
    "StopReceipt": "store.ledger",
    "StopReport": "report",
    "StopSignal": "signal",
    "stop_on_signals": "signal",
}

__all__ = [
    "STATUSES",
    "Absent",
    "Api",
    "Cause",
    "Denied",
    "Done",
    "Effects",
    "ErrorEnvelope",
    "Event",
    "Evidence",
    "Failed",
    "FinalText",
    "MemoryStore",
    "Metrics",
    "NoAnswer",
    "NotStarted",
    "Outcome",
    "PartialText",
    "Placeholder",
    "RunRecord",
    "RunReport",
    "RunScope",
    "RunStatus",
    "Running",
    "SendableHistory",
    "SqlStore",
    "Status",
    "StopPolicy",
    "StopReceipt",
    "StopReport",
    "StopRequested",
    "StopSignal",
    "StopkitError",
    "Stopped",
    "Succeeded",
    "ThreadContext",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolFailed",
    "Unknown",
    "metrics",
    "parse_evidence",
    "parse_outcome",
    "stop_on_signals",
    "tool",
]


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
