"""The byte pipeline: JSON text of conversations in, the places to change and the account out.

`judge_lines` takes one conversation a line, `judge_whole` one conversation in one text,
`judge_session` one that a reader of stored sessions made.  Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

from stopkit.cli.conversation import (
    EVIDENCE,
    Conversation,
    ConversationError,
    read_conversation,
)
from stopkit.cli.jsontext import BOM, PLAIN, JsonError, Style, dumps, has_long_number, loads
from stopkit.cli.records import checked_record, normalized_record
from stopkit.history import Api
from stopkit.normalizer import HistoryError, check, normalize
from stopkit.normalizer.result import Checked, Normalized
from stopkit.normalizer.transcripts import Transcript
from stopkit.normalizer.transcripts.transcript import Finding as TranscriptFinding
from stopkit.outcome import Evidence

Edit: TypeAlias = tuple[int, int, bytes]
"""Bytes `[start:stop]` of the text are to become these."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with every conversation."""

    action: Literal["check", "normalize"]
    api: Api | None = None
    field: str | None = None
    live: Literal["close", "keep"] = "close"
    evidence: Mapping[str, Evidence] | None = None
    """The caller's word; it wins over what a conversation carries."""
    records: bool = False
    """Make the `--json` objects."""
    edits: bool = True
    """Make the repaired text."""
    account: bool = True
    """Collect what was found, for a person."""
    keep_rejects: bool = True
    """Rows that cannot be read stay in the text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation or a change, in words for a person."""

    rule: str
    kind: str
    """The kind of change, or the scope of a violation."""
    where: str
    note: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that could not be read.  `line` counts from 1."""

    line: int
    reason: str
    text: bytes


@dataclass(slots=True)
class Told:
    """Conversations of one API: how many, how many of them taken for it untold, and what told."""

    times: int = 0
    untold: int = 0
    found_by: str = ""

    def add(self, times: int, untold: int, found_by: str) -> None:
        self.times += times
        self.untold += untold
        self.found_by = self.found_by or found_by


@dataclass(slots=True)
class Judged:
    """What became of a text, or of several put together."""

    lines: int = 0
    conversations: int = 0
    damaged: int = 0
    """Conversations with a violation, or a change."""
    unsendable: int = 0
    edits: list[Edit] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    body: bytes | None = None
    """The whole output, where it is no edited form of the text."""
    records: bytes = b""
    apis: dict[Api, Told] = field(default_factory=dict)
    """How many conversations are in which API, and what told it."""
    tallies: dict[tuple[str, str], tuple[int, Finding]] = field(default_factory=dict)
    """By rule and kind: how many, and the first."""
    findings: list[Finding] = field(default_factory=list)
    """Each one; for single conversations only."""
    hints: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    """Why a single conversation could not be read."""

    def count(self, finding: Finding) -> None:
        key = (finding.rule, finding.kind)
        times, first = self.tallies.get(key, (0, finding))
        self.tallies[key] = (times + 1, first)

    def add(self, later: Judged) -> None:
        """Join what became of the text behind this one; texts and edits are the caller's."""
        self.lines += later.lines
        self.conversations += later.conversations
        self.damaged += later.damaged
        self.unsendable += later.unsendable
        for api, told in later.apis.items():
            self.apis.setdefault(api, Told()).add(told.times, told.untold, told.found_by)
        for key, (times, finding) in later.tallies.items():
            before, first = self.tallies.get(key, (0, finding))
            self.tallies[key] = (before + times, first)
        self.findings += later.findings
        self.hints += later.hints
        self.pending += later.pending
        self.notes += later.notes
        self.error = self.error or later.error


def apply_edits(text: bytes, edits: list[Edit]) -> bytes:
    """The text with its edits made."""
    pieces: list[bytes] = []
    at = 0
    for start, stop, new in edits:
        pieces += (text[at:start], new)
        at = stop
    pieces.append(text[at:])
    return b"".join(pieces)


def judge_lines(text: bytes, job: Job, usual: Api | None = None) -> Judged:
    """Work through whole lines, each one conversation.  Lines are counted from 1 in this text.

    `usual` is the API of a conversation that does not tell its own.
    """
    done = Judged()
    records: list[bytes] = []
    start = 0
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        stop = start + len(line)
        try:
            new = _judge_line(line, job, done, records, number, usual)
        except Exception as error:
            if job.keep_rejects:
                new = None
            else:
                new, stop = b"", min(stop + 1, len(text))
            done.rejects.append(Reject(number, reason(error), line))
        if new is not None and job.edits:
            done.edits.append((start, stop, new))
        start += len(line) + 1
    done.lines = len(lines)
    done.records = b"".join(records)
    return done


def _judge_line(
    line: bytes, job: Job, done: Judged, records: list[bytes], number: int, usual: Api | None
) -> bytes | None:
    """The line's new text, or None where it stays as it is."""
    style = PLAIN
    if job.records and has_long_number(line):
        value, style = loads(line)
    else:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            if not line.removeprefix(BOM).strip():
                return None
            value, style = loads(line)
    conversation = read_conversation(value, job.field, job.api, usual)
    if job.action == "check":
        checked = check(conversation.history, api=conversation.api, request=conversation.request)
        if job.records:
            records.append(dumps(checked_record(checked)) + b"\n")
        _count(conversation, done)
        _account_checked(checked, job, done, number)
        return None
    result = _normalize(conversation, job)
    changed = result.history is not conversation.history
    if changed and style is PLAIN:
        if has_long_number(line):
            value, style = loads(line)
            conversation = read_conversation(value, job.field, job.api, usual)
            result = _normalize(conversation, job)
        elif line.endswith(b"\r"):
            style = Style(tail=b"\r")
    new = None
    if changed and job.edits:
        new = dumps(conversation.with_history(list(result.history)), style)
    if job.records:
        records.append(dumps(normalized_record(result), Style(exact=style.exact)) + b"\n")
    _count(conversation, done)
    if changed or not result.sendable:
        _account_normalized(result, job, done, number)
    return new


def judge_whole(text: bytes, form: str, job: Job) -> Judged:
    """Work through a text that is one conversation: a JSON value, or one message a line."""
    done = Judged()
    try:
        if form == "jsonl.messages":
            _judge_messages(text, job, done)
        else:
            _judge_value(text, job, done)
    except Exception as error:
        done.error = reason(error)
    return done


def _judge_value(text: bytes, job: Job, done: Judged) -> None:
    value, style = loads(text)
    conversation = read_conversation(value, job.field, job.api)
    result = _judge_one(conversation, job, done, style)
    if result is not None and job.edits and result.history is not conversation.history:
        new = dumps(conversation.with_history(list(result.history)), style)
        done.edits.append((0, len(text), new))


def _judge_messages(text: bytes, job: Job, done: Judged) -> None:
    """One message a line.  Rows that are no JSON are not part of the conversation."""
    spans: list[tuple[int, int]] = []
    numbers: list[int] = []
    items: list[Any] = []
    bad: list[Edit] = []
    exact = False
    start = len(BOM) if text.startswith(BOM) else 0
    for number, line in enumerate(text[start:].split(b"\n"), 1):
        stop = min(start + len(line) + 1, len(text))
        if line.strip():
            try:
                item, style = loads(line)
            except JsonError as error:
                done.rejects.append(Reject(number, str(error), line))
                if not job.keep_rejects:
                    bad.append((start, stop, b""))
            else:
                exact = exact or style.exact
                items.append(item)
                spans.append((start, stop))
                numbers.append(number)
        start = stop
    conversation = read_conversation(items, None, job.api)
    result = _judge_one(conversation, job, done, Style(exact=exact), numbers)
    if result is None or not job.edits:
        return
    done.edits = sorted([*bad, *_line_edits(text, spans, result, Style(exact=exact))])


def _line_edits(
    text: bytes, spans: list[tuple[int, int]], result: Normalized[Any], style: Style
) -> list[Edit]:
    """The splices of a repair as edits of the lines; items that only moved keep their bytes."""
    edits: list[Edit] = []
    end = b"\r\n" if text.split(b"\n", 1)[0].endswith(b"\r") else b"\n"
    for splice in result.splices:
        last = splice.start + len(splice.before)
        old = {
            id(item): text[slice(*span)]
            for item, span in zip(splice.before, spans[splice.start : last], strict=True)
        }
        lines = [old.get(id(item)) or dumps(item, style) + end for item in splice.after]
        lines = [line if line.endswith(b"\n") else line + end for line in lines]
        new = b"".join(lines)
        if not splice.before:
            at = spans[splice.start][0] if splice.start < len(spans) else len(text)
            if at == len(text) and not text.endswith(b"\n"):
                new = end + new
            edits.append((at, at, new))
            continue
        edits += [(*span, b"") for span in spans[splice.start : last]]
        first = len(edits) - len(splice.before)
        edits[first] = (*spans[splice.start], new)
    return edits


def judge_session(transcript: Transcript, job: Job) -> Judged:
    """Work through a stored session; its history comes out as a request body."""
    done = Judged()
    own = transcript.api
    if job.api not in (None, own):
        done.error = f"its history is written for {own}: --api cannot make it {job.api}"
        return done
    name = "input" if own == "openai.responses" else "messages"
    history = list(transcript.history)
    body = {name: history, EVIDENCE: dict(transcript.evidence)}
    rows = [0 if row.base or not row.lines else row.lines[0] for row in transcript.rows]
    done.notes = [_with_lines(note) for note in transcript.notes]
    try:
        result = _judge_one(Conversation(history, own, "", name, body), job, done, PLAIN, rows)
        if result is not None and job.edits:
            done.body = dumps({name: list(result.history)}) + b"\n"
    except Exception as error:
        done.error = reason(error)
    return done


def _with_lines(note: TranscriptFinding) -> str:
    lines = ", ".join(map(str, note.lines[:5]))
    return f"{note.note} (line {lines})" if lines else note.note


def reason(error: Exception) -> str:
    """Why a conversation could not be read, for a person.

    One conversation never ends the work on the others, whatever it sets off.
    """
    if isinstance(error, (JsonError, ConversationError, HistoryError)):
        return str(error)
    if isinstance(error, RecursionError):
        return "not readable: nested too deeply"
    return f"a fault of stopkit itself, please report it: {type(error).__name__}: {error}"


def _judge_one(
    conversation: Conversation,
    job: Job,
    done: Judged,
    style: Style,
    numbers: list[int] | None = None,
) -> Normalized[Any] | None:
    """Check or repair the only conversation of a file.

    `numbers` are the lines its items stand on, 0 where that is another file's.
    """
    where = _place(numbers)
    _count(conversation, done)
    if job.action == "check":
        checked = check(conversation.history, api=conversation.api, request=conversation.request)
        if job.records:
            done.records = dumps(checked_record(checked)) + b"\n"
        _account_checked(checked, job, done, None)
        if job.account:
            done.findings = [
                Finding(found.rule, found.scope, where(found.path), found.message)
                for found in checked.violations
            ]
        done.hints = [str(hint) for hint in checked.hints]
        done.pending = list(checked.pending)
        return None
    result = _normalize(conversation, job)
    if job.records:
        done.records = dumps(normalized_record(result), Style(exact=style.exact)) + b"\n"
    _account_normalized(result, job, done, None)
    if job.account:
        done.findings = [
            Finding(change.rule, change.kind, where(change.path), change.note)
            for change in result.changes
        ]
    done.hints = [str(hint) for hint in result.hints]
    done.pending = list(result.pending)
    return result


def _normalize(conversation: Conversation, job: Job) -> Normalized[Any]:
    known = conversation.evidence
    if job.evidence is not None and (known is None or isinstance(known, dict)):
        known = {**(known or {}), **job.evidence}
    return normalize(
        conversation.history,
        api=conversation.api,
        evidence=known,
        request=conversation.request,
        live=job.live,
    )


def _count(conversation: Conversation, done: Judged) -> None:
    done.conversations += 1
    told = done.apis.get(conversation.api)
    if told is None:
        told = done.apis[conversation.api] = Told()
    told.add(1, 0 if conversation.found_by else 1, conversation.found_by)


def _account_checked(checked: Checked, job: Job, done: Judged, line: int | None) -> None:
    done.damaged += bool(checked.violations)
    done.unsendable += not checked.sendable
    if job.account:
        for found in checked.violations:
            done.count(Finding(found.rule, found.scope, _in_line(line, found.path), found.message))


def _account_normalized(result: Normalized[Any], job: Job, done: Judged, line: int | None) -> None:
    done.damaged += bool(result.splices)
    done.unsendable += not result.sendable
    if job.account:
        for change in result.changes:
            done.count(Finding(change.rule, change.kind, _in_line(line, change.path), change.note))


def _in_line(line: int | None, path: str) -> str:
    return path if line is None else f"line {line}: {path}"


def _place(numbers: list[int] | None) -> Callable[[str], str]:
    """Paths with the line they stand on, where items stand on lines."""

    def where(path: str) -> str:
        index = path.split(".", 2)[1:2]
        if numbers and index and index[0].isdigit() and int(index[0]) < len(numbers):
            line = numbers[int(index[0])]
            return f"{path} (line {line})" if line else path
        return path

    return where
