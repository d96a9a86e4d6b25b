"""What a stored transcript holds, once it is read: the history, what is known, where it came from.

Transcript      a conversation's active branch, ready for `normalize`, and all that it knows
  Source        the rows that one item of the history came from, and who wrote them
  RecordedCall  one call that the transcript holds, with its outcome
  Turn          one turn of a format that marks where turns end
  Finding       something that a reader of the history alone would not see
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from stopkit.history import Api, ToolCall
from stopkit.normalizer.recognise import ended, recognise
from stopkit.outcome import Evidence, Failed, Outcome, Succeeded, Unknown

Kind: TypeAlias = Literal[
    "typed", "model", "tool_result", "harness", "summary", "queued", "synthetic"
]
"""Who wrote an item.

`typed` a person, or the program in their place; `model`; `tool_result` the result of a call, or
what the harness wrote in its place; `harness` a user or developer item that nobody typed;
`summary` a compaction's; `queued` typed while the model worked, stored apart from the messages;
`synthetic` an assistant message that is the harness's own.
"""

Where: TypeAlias = Literal["history", "other_branch", "compacted", "torn"]
"""Where a call stands: in the history, on an abandoned branch, before a compaction, or in a row
that was cut short."""

TurnEnd: TypeAlias = Literal["complete", "error", "aborted", "none"]
"""How a turn ended; `none` where no row says so: the process died, or is at work."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of one history item."""

    kind: Kind
    lines: tuple[int, ...]
    """Line numbers, from 1; in the base file where `base` is true."""
    cut: bool = False
    """Some of its text was cut off while it streamed: it is not final."""
    base: bool = False


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that the transcript holds, wherever it stands, and its outcome."""

    call: ToolCall
    outcome: Outcome
    where: Where
    lines: tuple[int, ...]
    """The rows of the call and of what decided its outcome."""
    base: bool = False
    """The line numbers are the base file's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, as far as rows mark it; `error` holds the words of a turn that failed."""

    id: str
    end: TurnEnd
    error: str | None = None
    line: int = 0
    """Where it began."""


FindingCode: TypeAlias = Literal[
    "api_error",
    "base_missing",
    "call_off_branch",
    "command_without_call",
    "compacted",
    "compaction_answer",
    "context_left_out",
    "cut_text",
    "input_may_differ",
    "lost_parent",
    "no_stop_reason",
    "queued_message",
    "queued_never_sent",
    "result_left_out",
    "steered",
    "subagent",
    "subagent_missing",
    "tool_used_without_call",
    "torn_call",
    "torn_line",
    "turn_aborted",
    "turn_failed",
    "turn_without_end",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the rows show that the history does not; `note` is for a person."""

    code: FindingCode
    note: str
    lines: tuple[int, ...] = ()
    call_id: str | None = None
    base: bool = False
    """The line numbers are the base file's."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A stored conversation.

    `history` holds plain messages or items as the API takes them, in the order the model saw them;
    `rows` says for each where it came from.  `evidence` is for `normalize`: what the rows prove
    about calls of the history beyond the recorded results; where an id recurs its keys are `id#n`.
    """

    api: Api
    history: list[dict[str, object]]
    evidence: Mapping[str, Evidence]
    rows: tuple[Source, ...]
    calls: tuple[RecordedCall, ...] = ()
    notes: tuple[Finding, ...] = ()
    turns: tuple[Turn, ...] = ()
    subagents: Mapping[str, Transcript] = field(default_factory=dict[str, "Transcript"])
    """The transcripts of sub-agents, by the name of their file or group of rows."""

    @property
    def off_branch(self) -> tuple[RecordedCall, ...]:
        """Calls the history does not hold.  What they did to the world, they did."""
        return tuple(recorded for recorded in self.calls if recorded.where != "history")

    def outcome_of(self, call_id: str, occurrence: int = 1) -> Outcome:
        """What became of a call: by evidence, else by its recorded result.

        The calls of the history are counted first, then those off it, then the sub-agents'.  A call
        that no row holds is unknown, not denied: rows get lost.
        """
        same = [recorded for recorded in self.calls if recorded.call.id == call_id]
        same.sort(key=lambda recorded: recorded.where != "history")
        if len(same) >= occurrence >= 1:
            return same[occurrence - 1].outcome
        if not same:
            for subagent in self.subagents.values():
                if any(recorded.call.id == call_id for recorded in subagent.calls):
                    return subagent.outcome_of(call_id, occurrence)
        return Unknown(reason="no row of the transcript holds this call")


@dataclass(slots=True)
class CallFacts:
    """A call while its transcript is read: what is known of it, before ids are counted."""

    id: str
    name: str
    arguments: Mapping[str, object] | str
    where: Where
    lines: tuple[int, ...]
    evidence: Evidence | None = None
    text: str | None = None
    """The text of its recorded result; None where there is none."""
    is_error: bool | None = None
    base: bool = False


def outcome_by(evidence: Evidence | None, text: str | None, is_error: bool | None) -> Outcome:
    """The outcome that evidence and a recorded result establish, the evidence first."""
    known = evidence
    if known is None and text is not None:
        known = recognise(text, is_error=is_error) or ended(text, is_error=is_error)
        if known is None:
            said = ("its result was recorded",)
            if is_error:
                return Failed(output=text, evidence=(*said, "it is marked as an error"))
            return Succeeded(output=text, evidence=said)
    if known is None:
        return Unknown(reason="no result was recorded")
    if known.status == "placeholder" or known.status == "running":
        return Unknown(
            reason=known.reason or "only a placeholder was recorded", evidence=known.evidence
        )
    return known


def settle_calls(
    facts: Iterable[CallFacts],
) -> tuple[tuple[RecordedCall, ...], dict[str, Evidence]]:
    """Count the occurrences of each id, and give the calls and the evidence about the history's."""
    known = sorted(facts, key=lambda fact: fact.where != "history")
    recurring = Counter(fact.id for fact in known if fact.where == "history")
    seen: Counter[str] = Counter()
    calls: list[RecordedCall] = []
    evidence: dict[str, Evidence] = {}
    for fact in known:
        seen[fact.id] += 1
        call = ToolCall(fact.id, fact.name, fact.arguments, seen[fact.id])
        outcome = outcome_by(fact.evidence, fact.text, fact.is_error)
        calls.append(RecordedCall(call, outcome, fact.where, fact.lines, fact.base))
        if fact.where == "history" and fact.evidence is not None:
            recurs = recurring[fact.id] > 1
            evidence[f"{fact.id}#{call.occurrence}" if recurs else fact.id] = fact.evidence
    return tuple(calls), evidence


_OFF: Final[Mapping[Where, str]] = {
    "other_branch": "was made on an abandoned branch",
    "compacted": "was made before the compaction",
}


def off_branch_findings(calls: Iterable[RecordedCall]) -> list[Finding]:
    """One finding for each call that the history does not hold and that may have run."""
    return [
        Finding(
            "call_off_branch",
            f"{recorded.call.name} {_OFF[recorded.where]}: {recorded.outcome.status}",
            recorded.lines,
            recorded.call.id,
            recorded.base,
        )
        for recorded in calls
        if recorded.where in _OFF and recorded.outcome.effects != "none"
    ]
