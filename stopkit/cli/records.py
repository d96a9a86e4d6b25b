"""The objects that `--json` prints, one a conversation."""

from __future__ import annotations

from typing import Any

from stopkit.normalizer.result import Checked, Normalized


def checked_record(checked: Checked) -> dict[str, Any]:
    return {
        "valid": checked.valid,
        "sendable": checked.sendable,
        "violations": [
            {"rule": found.rule, "path": found.path, "message": found.message}
            for found in checked.violations
        ],
    }


def normalized_record(result: Normalized[Any]) -> dict[str, Any]:
    return {
        "api": result.api,
        "history": list(result.history),
        "changes": [
            {
                "kind": change.kind,
                "rule": change.rule,
                "path": change.path,
                "call_id": change.call_id,
                "outcome": change.outcome,
                "note": change.note,
                "removed": change.removed,
            }
            for change in result.changes
        ],
        "outcomes": [
            {
                "call_id": call.call_id,
                "occurrence": call.occurrence,
                "name": call.name,
                "status": call.status,
                "synthetic": call.synthetic,
                "effects": call.effects,
            }
            for call in result.outcomes
        ],
        "pending": list(result.pending),
        "sendable": result.sendable,
        "hints": [
            {"code": hint.code, "note": hint.note, "path": hint.path} for hint in result.hints
        ],
    }
