"""stopkit: what a stop is.  Knows no provider and no wire format."""

from __future__ import annotations

from stopkit.history import Api, SendableHistory, ToolCall
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

__all__ = [
    "STATUSES",
    "Api",
    "Denied",
    "Effects",
    "Evidence",
    "Failed",
    "NotStarted",
    "Outcome",
    "Placeholder",
    "Running",
    "SendableHistory",
    "Status",
    "Stopped",
    "Succeeded",
    "ToolCall",
    "Unknown",
    "parse_evidence",
    "parse_outcome",
]
