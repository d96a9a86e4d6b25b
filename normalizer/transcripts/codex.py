"""Codex rollouts (`rollout-*.jsonl`), as the app-server 0.163 writes them.

A rollout is linear: `response_item` rows are the history, a `compacted` row replaces what stands
before it, and a file that a revert began goes on from a part of another file (`history_base`).
Events beside the items say what the items do not: how turns ended and how commands did.

Kept: every item the model is sent, also developer and environment messages.  Left out: the
`internal_*` fields, which the API does not take, and a compaction's own answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from stopkit.normalizer.transcripts.codex_outcomes import (
    evidence_of,
    session_of_arguments,
    session_of_output,
)
from stopkit.normalizer.transcripts.rows import (
    Row,
    Rows,
    TornLine,
    as_dict,
    as_list,
    as_text,
    read_rows,
    text_of,
)
from stopkit.normalizer.transcripts.transcript import (
    CallFacts,
    Finding,
    FindingCode,
    Kind,
    Source,
    Transcript,
    Turn,
    TurnEnd,
    Where,
    off_branch_findings,
    settle_calls,
)

Base: TypeAlias = bytes | Sequence[bytes]
"""The file that `history_base` names; with those that it names in turn, the nearest first."""

_OUTPUTS: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "tool_search_call": "tool_search_output",
}
_TORN_CALL: Final = re.compile(
    r'"type":"(?:function|custom_tool|local_shell)_call"(?:.*?"name":"(?P<name>[^"]*)")?'
)
_HARNESS_TEXTS: Final = (
    "<turn_aborted>",
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
)


def read_codex(source: Rows, base: Base | None = None) -> Transcript:
    """The thread in a Codex rollout.

    `source` is the file's content, or its rows; `base` the content of the file that its
    `history_base` names.  Without it the thread begins in the middle, and a note says so.
    """
    rows, torn = read_rows(source)
    bases = [base] if isinstance(base, bytes) else list(base or ())
    headless = bool(history_base(rows)) and not bases
    return _Reading(_placed(rows, bases), torn, headless).transcript()


def history_base(rows: Sequence[Row]) -> dict[str, Any]:
    """What a rollout says about the file it goes on from; empty where it says nothing."""
    for row in rows:
        if row.value.get("type") == "session_meta":
            return as_dict(as_dict(row.value.get("payload")).get("history_base"))
    return {}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row, whether it is the base's, and whether the thread still holds it."""

    row: Row
    base: bool
    reverted: bool


def _placed(rows: list[Row], bases: list[bytes]) -> list[_Placed]:
    own = [_Placed(row, base=False, reverted=False) for row in rows]
    cut = history_base(rows).get("end_ordinal_exclusive")
    if not bases or not isinstance(cut, int):
        return own
    base_rows, _ = read_rows(bases[0])
    earlier: list[_Placed] = []
    reverted = False
    for placed in _placed(base_rows, bases[1:]):
        ordinal = placed.row.value.get("ordinal")
        # From the first row behind the cut on: after a torn line ordinals are used twice.
        reverted = reverted or (isinstance(ordinal, int) and ordinal >= cut)
        earlier.append(_Placed(placed.row, base=True, reverted=reverted or placed.reverted))
    return [*earlier, *own]


@dataclass(slots=True)
class _Item:
    """One item of the history as it is read."""

    value: dict[str, Any]
    source: Source
    turn: str


@dataclass(slots=True)
class _Asked:
    """A call, the output that answers it, and the event that tells its end."""

    item: _Item
    where: Where
    output: _Item | None = None
    event: Row | None = None


class _Reading:
    """One pass over the rows of one thread."""

    def __init__(self, placed: list[_Placed], torn: list[TornLine], headless: bool) -> None:
        self.placed = placed
        self.torn = torn
        self.headless = headless
        self.items: list[_Item] = []
        self.asked: list[_Asked] = []
        self.by_id: dict[str, list[_Asked]] = {}
        self.unanswered: dict[tuple[str, str], list[_Asked]] = {}
        """Calls without an output, by their id and the type it will have; the newest is last."""
        self.turns: dict[str, Turn] = {}
        self.typed_in: set[str] = set()
        self.notes: list[Finding] = []

    def transcript(self) -> Transcript:
        for placed in self.placed:
            self._read(placed)
        calls, evidence = settle_calls(self._facts())
        self._find()
        self.notes.extend(off_branch_findings(calls))
        return Transcript(
            api="openai.responses",
            history=[item.value for item in self.items],
            evidence=evidence,
            rows=tuple(item.source for item in self.items),
            calls=calls,
            notes=tuple(sorted(self.notes, key=lambda note: note.lines[:1])),
            turns=tuple(self.turns.values()),
        )

    # Rows

    def _read(self, placed: _Placed) -> None:
        row = placed.row
        payload = as_dict(row.value.get("payload"))
        match row.value.get("type"):
            case "response_item":
                self._read_item(placed, payload)
            case "compacted":
                if not placed.reverted:
                    self._compact(placed, payload)
            case "event_msg":
                self._read_event(placed, payload)
            case _:
                pass

    def _read_item(self, placed: _Placed, payload: dict[str, Any]) -> None:
        row = placed.row
        if as_dict(row.value.get("metadata")).get("compaction_output") is True:
            self._note(
                "compaction_answer", "a compaction's own answer, no part of the thread", placed
            )
            return
        item = _Item(
            _plain(payload),
            Source(_kind(payload), (row.line,), base=placed.base),
            as_text(
                as_dict(payload.get("internal_chat_message_metadata_passthrough")).get("turn_id")
            ),
        )
        self._take(item, "other_branch" if placed.reverted else "history")
        if not placed.reverted:
            self.items.append(item)
            if item.source.kind == "typed" and item.turn:
                if item.turn in self.typed_in:
                    self._note(
                        "steered",
                        "a message into the running turn; text it cut off is not recorded",
                        placed,
                    )
                self.typed_in.add(item.turn)

    def _take(self, item: _Item, where: Where) -> None:
        kind = as_text(item.value.get("type"))
        if kind in _OUTPUTS:
            asked = _Asked(item, where)
            self.asked.append(asked)
            self.by_id.setdefault(_call_id(item), []).append(asked)
            self.unanswered.setdefault((_call_id(item), _OUTPUTS[kind]), []).append(asked)
        elif kind in _OUTPUTS.values():
            waiting = self.unanswered.get((as_text(item.value.get("call_id")), kind))
            if waiting:
                waiting.pop().output = item

    def _compact(self, placed: _Placed, payload: dict[str, Any]) -> None:
        """What the row carries takes the place of everything before it."""
        for asked in self.asked:
            if asked.where == "history":
                asked.where = "compacted"
        carried = as_list(payload.get("replacement_history"))
        if not isinstance(payload.get("replacement_history"), list):
            text = as_text(payload.get("message"))
            carried = [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": text}],
                    "internal_chat_message_metadata_passthrough": {
                        "content_item_kinds": ["compaction.summary"]
                    },
                }
            ]
        self.items = []
        for value in carried:
            item = _Item(
                _plain(as_dict(value)),
                Source(_kind(as_dict(value)), (placed.row.line,), base=placed.base),
                "",
            )
            self.items.append(item)
            self._take(item, "history")
        self._note("compacted", "the history begins with what a compaction carried", placed)

    def _read_event(self, placed: _Placed, payload: dict[str, Any]) -> None:
        turn = as_text(payload.get("turn_id"))
        match payload.get("type"):
            case "task_started":
                if not placed.base:
                    self.turns[turn] = Turn(turn, "none", line=placed.row.line)
            case "task_complete":
                error = payload.get("error")
                words = as_text(as_dict(error).get("message")) or None
                if error:
                    self._note("turn_failed", f"the turn failed: {words or error}", placed)
                self._end(turn, "error" if error else "complete", words)
            case "turn_aborted":
                self._note(
                    "turn_aborted",
                    "the turn was aborted; what the model was writing is not recorded",
                    placed,
                )
                self._end(turn, "aborted")
            case "item_completed":
                self._complete(placed, as_dict(payload.get("item")), turn)
            case _:
                pass

    def _end(self, turn: str, end: TurnEnd, error: str | None = None) -> None:
        if turn in self.turns:
            self.turns[turn] = Turn(turn, end, error, self.turns[turn].line)

    def _complete(self, placed: _Placed, item: dict[str, Any], turn: str) -> None:
        if item.get("type") in ("UserMessage", "AgentMessage", "Reasoning", "ContextCompaction"):
            return
        same = self.by_id.get(as_text(item.get("id")), [])
        # The event may come after a later turn began: its own turn decides, then the newest.
        in_turn = [asked for asked in same if asked.item.turn == turn]
        for asked in (in_turn or same)[-1:]:
            asked.event = placed.row
        if not same:
            self._note(
                "command_without_call",
                f"{item.get('type')} {item.get('id')} belongs to no call that a row holds "
                f"(code mode nests commands): {item.get('status')}",
                placed,
            )

    # What it all says

    def _facts(self) -> list[CallFacts]:
        polls = self._polls()
        facts: list[CallFacts] = []
        for asked in self.asked:
            value = asked.item.value
            text = None if asked.output is None else text_of(_output(asked.output))
            session = None if text is None else session_of_output(text)
            lines = set(asked.item.source.lines)
            if asked.output is not None:
                lines.update(asked.output.source.lines)
            if asked.event is not None:
                lines.add(asked.event.line)
            facts.append(
                CallFacts(
                    _call_id(asked.item),
                    as_text(value.get("name")) or as_text(value.get("type")),
                    as_text(value.get("arguments")) or as_text(value.get("input")),
                    asked.where,
                    tuple(sorted(lines)),
                    evidence_of(text, asked.event, polls.get(session) if session else None),
                    text,
                    base=asked.item.source.base,
                )
            )
        return facts

    def _polls(self) -> dict[str, str]:
        """What the last poll of each session said, by session."""
        polls: dict[str, str] = {}
        for asked in self.asked:
            if asked.item.value.get("name") == "write_stdin" and asked.output is not None:
                session = session_of_arguments(as_text(asked.item.value.get("arguments")))
                if session is not None:
                    polls[session] = text_of(_output(asked.output))
        return polls

    def _find(self) -> None:
        for line in self.torn:
            self.notes.append(line.finding())
            if found := _TORN_CALL.search(line.text):
                name = found["name"] or "some tool"
                self.notes.append(
                    Finding(
                        "torn_call", f"a call of {name} stands in a line cut short", (line.line,)
                    )
                )
        if self.headless:
            self.notes.append(
                Finding("base_missing", "the file that this thread goes on from was not read")
            )
        for turn in self.turns.values():
            if turn.end == "none":
                self.notes.append(
                    Finding(
                        "turn_without_end",
                        f"turn {turn.id} has no end: the process died, or it is at work",
                        (turn.line,),
                    )
                )

    def _note(self, code: FindingCode, note: str, placed: _Placed) -> None:
        self.notes.append(Finding(code, note, (placed.row.line,), base=placed.base))


def _plain(payload: dict[str, Any]) -> dict[str, Any]:
    """An item as the API takes it; the same object where nothing has to go."""
    if not any(key.startswith("internal_") for key in payload):
        return payload
    return {key: value for key, value in payload.items() if not key.startswith("internal_")}


def _call_id(item: _Item) -> str:
    return as_text(item.value.get("call_id")) or as_text(item.value.get("id"))


def _output(item: _Item) -> object:
    value = item.value.get("output")
    return value if value is not None else item.value.get("content")


def _kind(payload: dict[str, Any]) -> Kind:
    """Who wrote an item: the roles user and developer stand for much that nobody typed."""
    kind, role = as_text(payload.get("type")), payload.get("role")
    if kind.endswith("_output"):
        return "tool_result"
    if kind.startswith("compaction"):
        return "summary"
    if kind.endswith("_call") or kind == "reasoning" or role == "assistant":
        return "model"
    if kind != "message" or role != "user":
        return "harness"
    internal = as_dict(payload.get("internal_chat_message_metadata_passthrough"))
    parts = [part for part in as_list(internal.get("content_item_kinds")) if isinstance(part, str)]
    if any(part.startswith("compaction.") for part in parts):
        return "summary"
    if parts:
        return "typed" if any(part.startswith("user.") for part in parts) else "harness"
    text = text_of(payload.get("content"))
    return "harness" if text.startswith(_HARNESS_TEXTS) else "typed"
