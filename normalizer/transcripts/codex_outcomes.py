"""What a Codex rollout's rows prove about a call.

An output row says little: it has no error flag, "aborted by user" is written over a command that
runs on, and "running with session ID" is no end.  What decides is the `item_completed` event under
the call's id, also one that comes after the turn was over.  Answers to approval requests leave no
row at all: a call that was cut off while one was open stays unknown.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from stopkit.normalizer.recognise import ended, recognise
from stopkit.normalizer.transcripts.rows import Row, as_dict, as_text
from stopkit.outcome import (
    Denied,
    Evidence,
    Failed,
    Outcome,
    Placeholder,
    Stopped,
    Succeeded,
    Unknown,
)

_SESSION: Final = re.compile(r"Process running with session ID (\d+)\n")
_KILLED: Final = 137
_FOREVER: Final = 2**40
_HEAD: Final = 200
"""Characters; what Codex itself says of a command comes before the command's output."""
_NEVER_RETURNED: Final = -1
"""No program exits with it: it is how Codex shows a process that it ended."""


def evidence_of(text: str | None, event: Row | None, poll_text: str | None) -> Evidence | None:
    """What is known of a call; None where its output is a plain result and nothing more is known.

    `text` is its output, None where there is none; `event` the `item_completed` under its id;
    `poll_text` what a later poll of its session said.
    """
    said = None if text is None else recognise(text) or ended(text)
    open_ended = text is None or isinstance(said, (Placeholder, Unknown))
    if event is not None:
        known = _by_event(event, own_end=not open_ended)
        if known is not None and (open_ended or known.status != _status(said)):
            return known
    if isinstance(said, Unknown) and poll_text is not None:
        end = ended(poll_text)
        if not isinstance(end, Unknown) and "Process exited with code " in poll_text[:_HEAD]:
            evidence = ("a later poll of its session saw it end",)
            return Succeeded(evidence=evidence) if end is None else _with(end, evidence)
    if text is None:
        return Unknown(
            reason="the rollout holds neither an output nor an end for it",
            evidence=("no output and no item_completed",),
        )
    return said


def _status(said: Placeholder | Outcome | None) -> str:
    return "succeeded" if said is None else said.status


def _with(end: Failed | Stopped, evidence: tuple[str, ...]) -> Failed | Stopped:
    return end.model_copy(update={"evidence": evidence})


def _by_event(event: Row, *, own_end: bool) -> Outcome | None:
    item = as_dict(as_dict(event.value.get("payload")).get("item"))
    status = item.get("status")
    code = item.get("exit_code")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    output = as_text(item.get("aggregated_output")) or as_text(item.get("stdout")) or None
    said = f"item_completed in line {event.line}: {status}"
    evidence = (said if code is None else f"{said}, exit code {code}",)
    if status == "declined":
        return Denied(evidence=evidence)
    # 137 in a command's own output may be anybody's kill; after an abort it is the clean-up's.
    if code == _NEVER_RETURNED or (code == _KILLED and not own_end):
        return Stopped(
            output=output,
            exit_code=code,
            signal=9 if code == _KILLED else None,
            after=_seconds(item.get("duration")),
            evidence=evidence,
        )
    if status == "completed" and not code:
        return Succeeded(output=output, evidence=evidence)
    if status in ("completed", "failed"):
        return Failed(output=output, exit_code=code, evidence=evidence)
    return None


def _seconds(duration: object) -> float | None:
    parts: dict[str, Any] = as_dict(duration)
    secs, nanos = parts.get("secs"), parts.get("nanos")
    if not isinstance(secs, int) or not isinstance(nanos, int):
        return None
    if not 0 <= secs < _FOREVER or not 0 <= nanos < 1_000_000_000:
        return None
    return secs + nanos / 1e9


def session_of_output(text: str) -> str | None:
    """The session a command went on in, by its output."""
    found = _SESSION.search(text[:_HEAD])
    return found[1] if found else None


def session_of_arguments(arguments: str) -> str | None:
    """The session that a `write_stdin` call polls."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    session = as_dict(value).get("session_id")
    return str(session) if isinstance(session, (int, str)) else None
