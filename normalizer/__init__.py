"""stopkit.normalizer: check and repair histories.

from stopkit.normalizer import check, normalize

result = normalize(messages, api="anthropic.messages")
result.history, result.changes, result.sendable, result.undo()
"""

from __future__ import annotations

from stopkit.normalizer.engine import Live
from stopkit.normalizer.errors import EvidenceError, HistoryError, UnknownApiError
from stopkit.normalizer.living import Normalizer
from stopkit.normalizer.repair import check, normalize
from stopkit.normalizer.result import (
    CallOutcome,
    Change,
    ChangeKind,
    Checked,
    Hint,
    Normalized,
    Splice,
    Violation,
)
from stopkit.normalizer.rules import RULES, Rule
from stopkit.normalizer.wording import read_outcome

__all__ = [
    "RULES",
    "CallOutcome",
    "Change",
    "ChangeKind",
    "Checked",
    "EvidenceError",
    "Hint",
    "HistoryError",
    "Live",
    "Normalized",
    "Normalizer",
    "Rule",
    "Splice",
    "UnknownApiError",
    "Violation",
    "check",
    "normalize",
    "read_outcome",
]
