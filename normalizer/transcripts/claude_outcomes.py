"""What a Claude Code session's rows prove about a call, by flags first and words second.

A result's row says more than its text: `toolDenialBeforeRun` that the call never ran,
`permissionDecision` and `toolDenialKind` that somebody or some rule refused it (a refusal's text is
free).  `toolDenialKind` `user-rejected` proves nothing by itself: stops carry it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stopkit.normalizer.recognise import ended, recognise
from stopkit.normalizer.transcripts.rows import Row, as_dict, as_text, text_of
from stopkit.outcome import (
    Denied,
    Evidence,
    Failed,
    NotStarted,
    Placeholder,
    Stopped,
    Succeeded,
    Unknown,
)

_REFUSALS: Final = frozenset(
    {"permission-rule", "automode-blocked", "automode-unavailable", "automode-parsing-error"}
)
_NOTICE: Final = re.compile(r"<(tool-use-id|status|summary|note)>(.*?)</\1>", re.DOTALL)
_EXIT_CODE: Final = re.compile(r"exit code (\d{1,9})")


@dataclass(frozen=True, slots=True)
class Notice:
    """A `<task-notification>` about a background call."""

    call_id: str
    status: str
    summary: str
    line: int
    guessed: bool
    """Written when a session was resumed, of a task whose end nobody saw."""


def notices(texts: Iterable[tuple[int, str]]) -> dict[str, Notice]:
    """The last word about each background call, by call id, from texts and their lines.

    A guess never takes the place of an observation.
    """
    found: dict[str, Notice] = {}
    for line, text in texts:
        if not text.startswith("<task-notification>"):
            continue
        fields: dict[str, str] = dict(_NOTICE.findall(text))
        call_id = fields.get("tool-use-id", "").strip()
        summary = fields.get("summary", "").strip()
        guessed = "previous session ended" in summary or fields.get("note", "").strip().startswith(
            "No completion record"
        )
        known = found.get(call_id)
        if call_id and not (guessed and known is not None and not known.guessed):
            status = fields.get("status", "").strip()
            found[call_id] = Notice(call_id, status, summary, line, guessed)
    return found


def evidence_of(row: Row, block: dict[str, Any], notice: Notice | None) -> Evidence | None:
    """What a result's row proves beyond its block; None where the block says it all.

    `notice` is the last task notification about the call.
    """
    text, is_error = text_of(block.get("content")), flag_of(block)
    said = recognise(text, is_error=is_error)
    kind = as_text(row.value.get("toolDenialKind"))
    decision = as_dict(row.value.get("permissionDecision"))
    if row.value.get("toolDenialBeforeRun") is True:
        if isinstance(said, Denied):
            return said
        return NotStarted(
            reason="it was stopped before it ran", evidence=("toolDenialBeforeRun: true",)
        )
    if decision.get("decision") == "reject" or kind in _REFUSALS:
        if isinstance(said, Denied) and said.reason:
            text = said.reason
        source = as_text(decision.get("source"))
        facts = (
            f"toolDenialKind: {kind}" if kind else "",
            f"decided by: {source}" if source else "",
        )
        return Denied(
            by=_refuser(source) if source else "policy",
            reason=text or None,
            evidence=tuple(fact for fact in facts if fact),
        )
    if said is not None:
        return said
    if kind in ("user-rejected", "interrupted", "cancelled"):
        return Placeholder(
            reason="it was interrupted; whether it had begun is not recorded",
            evidence=(f"toolDenialKind: {kind}",),
        )
    own = as_dict(row.value.get("toolUseResult"))
    if _in_background(own, text, is_error):
        return _background(notice, text)
    if own.get("interrupted") is True:
        return Stopped(output=text or None, evidence=("toolUseResult.interrupted: true",))
    return None


def flag_of(block: dict[str, Any]) -> bool | None:
    flag = block.get("is_error")
    return flag if isinstance(flag, bool) else None


def _refuser(source: str) -> str:
    for who in ("user", "hook"):
        if source.startswith(who):
            return who
    return "policy"


def _in_background(own: dict[str, Any], text: str, is_error: bool | None) -> bool:
    return (
        bool(own.get("backgroundTaskId"))
        or own.get("status") == "async_launched"
        or isinstance(ended(text, is_error=is_error), Unknown)
    )


def _background(notice: Notice | None, text: str) -> Evidence:
    if notice is None:
        return Unknown(
            reason="it was started in the background; no row says how it ended",
            output=text or None,
            check="look for its process or its output file",
            evidence=("its result only says that it was started",),
        )
    said = f"task-notification in line {notice.line}: {notice.status}"
    found = _EXIT_CODE.search(notice.summary)
    code = int(found[1]) if found else None
    evidence = (said if code is None else f"{said}, exit code {code}",)
    if notice.guessed:
        return Unknown(
            reason=notice.summary or None,
            check="look for its process or its output file",
            evidence=(*evidence, "written at a resume: a guess"),
        )
    if notice.status == "completed" and not code:
        return Succeeded(evidence=evidence)
    if notice.status in ("completed", "failed"):
        return Failed(exit_code=code, reason=notice.summary or None, evidence=evidence)
    if notice.status in ("stopped", "killed"):
        return Stopped(exit_code=code, reason=notice.summary or None, evidence=evidence)
    return Unknown(reason=notice.summary or None, evidence=evidence)
