"""Pairing: which result belongs to which call, and what the history is to say about each call.

One engine for all dialects.  A dialect reads its items into `Call`s and `Result`s, numbered by
model turn, asks `attribute` which belongs to which and `settle` what to do, and writes the answer
in its own format.  Nothing here knows a wire format.

A result belongs to the newest earlier call with its id; among equal ids of one turn, by position;
recorded before its only call, to that call.  Ids are never matched by position alone: that could
hand one tool's output to another call.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, Protocol, TypeAlias

from pydantic import ValidationError

from stopkit.normalizer.errors import EvidenceError
from stopkit.normalizer.recognise import ended, recognise
from stopkit.normalizer.result import ChangeKind, Location
from stopkit.normalizer.wording import CALL_INCOMPLETE, NO_RESULT, read_outcome
from stopkit.outcome import (
    Denied,
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
)

Live: TypeAlias = Literal["close", "keep"]
Standin: TypeAlias = Outcome | Placeholder

EvidenceMap: TypeAlias = Mapping[str, Evidence]


@dataclass(slots=True)
class Call:
    """A call that the client runs, where it stands."""

    id: str
    name: str
    turn: int
    """Number of the model turn it stands in, counted over the part under repair."""
    index: Location
    item: Any
    """The block or item in the dialect's own form; the dialect's to read and replace."""
    incomplete: bool = False
    """Its arguments never became whole: it cannot have run."""
    occurrence: int = 1
    results: list[Result] = field(default_factory=list)


class Result:
    """A recorded result, or something recorded in place of one.

    `turn` is the model turn it stands behind.  `read` gives its text and what tells two results
    apart, in the dialect's own form; most results are never asked.
    """

    __slots__ = (
        "_content",
        "_looked",
        "_read",
        "_standin",
        "id",
        "index",
        "is_error",
        "item",
        "turn",
    )

    def __init__(
        self,
        id: str,
        turn: int,
        index: Location,
        item: Any,
        is_error: bool | None,
        read: Callable[[Any], tuple[str, object]] | None = None,
        text: str = "",
        content: object = None,
    ) -> None:
        self.id = id
        self.turn = turn
        self.index = index
        self.item = item
        self.is_error = is_error
        self._read = read
        self._content: tuple[str, object] | None = None if read else (text, content)
        self._standin: Standin | None = None
        self._looked = False

    @property
    def text(self) -> str:
        return self._contents()[0]

    @property
    def content(self) -> object:
        return self._contents()[1]

    @property
    def standin(self) -> Standin | None:
        """What a result that is no tool's own says of itself: ours, or a peer's wording."""
        if not self._looked:
            self._looked = True
            self._standin = read_standin(self.text, self.is_error)
        return self._standin

    def _contents(self) -> tuple[str, object]:
        if self._content is None:
            assert self._read is not None
            self._content = self._read(self.item)
        return self._content


@dataclass(slots=True)
class Verdict:
    """What the history is to say about one call."""

    keep: Result | None = None
    """The result that answers it."""
    merge: Sequence[Result] = ()
    """Recorded results that go into the kept one's block."""
    drop: Sequence[Result] = ()
    """Copies and stand-ins that leave; the report holds them."""
    deliver: Sequence[Result] = ()
    """Recorded results that arrived after the call was answered: marked data, where they stand."""
    outcome: Outcome | None = None
    """The outcome, where it is not the kept result's own; made up when `keep` is None."""
    pending: bool = False
    """The call is at work: it stays open."""
    rewrite: bool = False
    """The kept stand-in is replaced by words for `outcome`: nothing was written on top of it."""
    announce: Outcome | None = None
    """News about a call that was answered otherwise: marked data at the end of the history."""


class Elsewhere(Protocol):
    """The calls outside the part under repair: each has its result."""

    def __contains__(self, call_id: object, /) -> bool: ...


def read_standin(text: str, is_error: bool | None) -> Standin | None:
    """What a result says of itself when it is ours, or some harness's own words."""
    return read_outcome(text) or recognise(text, is_error=is_error)


def outcome_of_result(text: str, is_error: bool | None, evidence: Evidence | None) -> Outcome:
    """The outcome of a call with this recorded result, as far as evidence and words prove it."""
    if evidence is not None and not isinstance(evidence, (Running, Placeholder)):
        return evidence
    standin = read_standin(text, is_error)
    if isinstance(evidence, Placeholder) or isinstance(standin, Placeholder):
        known = evidence if isinstance(evidence, Placeholder) else standin
        reason = known.reason if isinstance(known, Placeholder) else None
        return Unknown(reason=reason or NO_RESULT, evidence=("a placeholder was recorded",))
    if standin is not None:
        return standin
    own = ended(text, is_error=is_error)
    if own is not None:
        return own
    if is_error:
        return Failed(output=text, evidence=("the recorded result is an error",))
    return Succeeded(output=text, evidence=("a result was recorded",))


def is_synthetic(text: str, is_error: bool | None, evidence: Evidence | None) -> bool:
    """True where a recorded result is no tool's own."""
    return isinstance(evidence, Placeholder) or read_standin(text, is_error) is not None


@cache
def _nothing_known() -> Outcome:
    return Unknown(reason=NO_RESULT)


def pending_outcome(evidence: Evidence | None) -> Outcome:
    """The outcome of a call that is left open: nobody knows yet."""
    reason = "still running" if isinstance(evidence, Running) else "left open"
    return Unknown(reason=reason)


def made_up_outcome(call: Call, evidence: Evidence | None) -> Outcome:
    """The outcome of a call without any result."""
    if evidence is not None and not isinstance(evidence, (Running, Placeholder)):
        return evidence
    if call.incomplete:
        return NotStarted(reason=CALL_INCOMPLETE, evidence=("the call's text never became whole",))
    if isinstance(evidence, Placeholder):
        return Unknown(reason=evidence.reason or NO_RESULT, cause=evidence.cause, key=evidence.key)
    return _nothing_known()


def attribute(
    calls: Iterable[Call], results: Iterable[Result], elsewhere: Elsewhere
) -> list[Result]:
    """Give each result to its call (in `Call.results`), and return those without one.

    A result that stands before the only call with its id belongs to an answered call `elsewhere`,
    if there is one.
    """
    by_id: dict[str, Call | _Namesakes] = {}
    for call in calls:
        known = by_id.setdefault(call.id, call)
        if known is call:
            continue
        if isinstance(known, Call):
            known = by_id[call.id] = _Namesakes(known)
        known.add(call)
    orphans: list[Result] = []
    for result in results:
        owner = by_id.get(result.id)
        if isinstance(owner, _Namesakes):
            owner = owner.owner(result, elsewhere)
        elif owner is not None and result.turn < owner.turn and result.id in elsewhere:
            owner = None
        if owner is None:
            orphans.append(result)
        else:
            owner.results.append(result)
    return orphans


class _Namesakes:
    """The calls that share an id, by turn."""

    __slots__ = ("_given", "_groups", "_turns")

    def __init__(self, call: Call) -> None:
        self._turns = [call.turn]
        self._groups = [[call]]
        self._given: dict[int, int] = {}

    def add(self, call: Call) -> None:
        if self._turns[-1] == call.turn:
            self._groups[-1].append(call)
        else:
            self._turns.append(call.turn)
            self._groups.append([call])

    def owner(self, result: Result, elsewhere: Elsewhere) -> Call | None:
        at = bisect_right(self._turns, result.turn) - 1
        if at < 0:
            if result.id in elsewhere:
                return None
            # Recorded before its call: the first call with the id, unless that has one already.
            at = min(self._given.get(-1, 0), len(self._groups) - 1)
            self._given[-1] = at + 1
        group = self._groups[at]
        # Equal ids in one turn: by position, each call once before any call twice.
        number = self._given.get(at, 0)
        self._given[at] = number + 1
        return group[number % len(group)]


def settle(call: Call, evidence: Evidence | None, *, last_turn: int, keep_open: bool) -> Verdict:
    """What the history is to say about `call`, by its results and what the caller knows.

    `last_turn` is the number of the newest model turn: a result the model has not yet answered can
    be replaced.  `keep_open` leaves a call without result open (the live frontier).
    """
    if not call.results:
        if isinstance(evidence, Running) or (keep_open and evidence is None):
            return Verdict(pending=True)
        return Verdict(outcome=made_up_outcome(call, evidence))
    if len(call.results) == 1:
        only = call.results[0]
        if evidence is None or isinstance(evidence, Running):
            return Verdict(keep=only)
        return _with_news(call, only, evidence, last_turn)
    return _choose(call, evidence, last_turn)


def _with_news(call: Call, only: Result, evidence: Evidence, last_turn: int) -> Verdict:
    """One result and the caller's word about it.  A recorded result stays, whatever is said."""
    standin = only.standin
    if isinstance(evidence, (Running, Placeholder)) or standin is None:
        return Verdict(keep=only)
    if not is_news(standin, evidence):
        return Verdict(keep=only)
    if only.turn == call.turn and call.turn < last_turn:
        return Verdict(keep=only, announce=evidence)
    return Verdict(keep=only, rewrite=True, outcome=evidence)


def is_news(standin: Standin, known: Outcome) -> bool:
    """Whether `known` says more of a call than what stands for its result."""
    says_more = known.output is not None or (
        isinstance(standin, (Placeholder, Unknown)) and not isinstance(known, Unknown)
    )
    return says_more and standin.model_dump(exclude=_BASIS) != known.model_dump(exclude=_BASIS)


_BASIS: Final = {"evidence"}
"""What a made-up text does not carry."""


def _choose(call: Call, evidence: Evidence | None, last_turn: int) -> Verdict:
    """Several results: recorded beats made-up, and none that was recorded is lost."""
    standins = [r for r in call.results if r.standin is not None]
    recorded = [r for r in call.results if r.standin is None]
    if isinstance(evidence, Placeholder) and recorded and not standins:
        # The caller knows that one of them only stands for the other: the first came first.
        standins, recorded = recorded[:1], recorded[1:]
    in_place = [r for r in call.results if r.turn == call.turn]
    if not recorded:
        keep = in_place[0] if in_place else call.results[0]
        return Verdict(keep=keep, drop=[r for r in call.results if r is not keep])
    answered = [r for r in standins if r.turn == call.turn]
    if answered and all(r.turn > call.turn for r in recorded):
        # The model went on from the placeholder; what arrived later is told where it arrived.
        keep = answered[0]
        firsts: dict[str, Result] = {}
        copies = [r for r in recorded if firsts.setdefault(_key(r), r) is not r]
        drop = [*(r for r in standins if r is not keep), *copies]
        return Verdict(keep=keep, drop=drop, deliver=list(firsts.values()))
    recorded_in_place = [r for r in recorded if r.turn == call.turn]
    keep = recorded_in_place[0] if recorded_in_place else recorded[0]
    drop, merge, deliver = standins, list[Result](), list[Result]()
    known = {_key(keep)}
    for result in recorded:
        if result is keep:
            continue
        if _key(result) in known:
            drop.append(result)
        elif result.turn > keep.turn and recorded_in_place:
            deliver.append(result)
        else:
            merge.append(result)
        known.add(_key(result))
    return Verdict(keep=keep, merge=merge, drop=drop, deliver=deliver)


def _key(result: Result) -> str:
    """The same for results of the same content."""
    return json.dumps(result.content, sort_keys=True, default=repr)


class Evidences:
    """What the caller knows, by call id, and by occurrence where an id recurs."""

    __slots__ = ("_by_id", "_by_occurrence", "ids")

    def __init__(self, given: Mapping[str, Evidence | Mapping[str, object]] | None) -> None:
        """Raises EvidenceError: not a mapping, or a value that is no evidence."""
        self._by_id: dict[str, Evidence] = {}
        self._by_occurrence: dict[str, Evidence] = {}
        self.ids: frozenset[str] = frozenset()
        """Every id that evidence speaks of, with and without its occurrence."""
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise EvidenceError("evidence is {call_id: Evidence}", path="evidence")
        for key, value in given.items():
            if not isinstance(key, str):
                raise EvidenceError(f"the call id {key!r} is no string", path="evidence")
            parsed = parsed_evidence(key, value)
            self._by_id[key] = parsed
            base, mark, count = key.rpartition("#")
            if mark and count.isdigit() and base:
                self._by_occurrence[key] = parsed
        bases = (key.rpartition("#")[0] for key in self._by_occurrence)
        self.ids = frozenset((*self._by_id, *bases))

    def __bool__(self) -> bool:
        return bool(self._by_id)

    @property
    def by_occurrence(self) -> bool:
        return bool(self._by_occurrence)

    def of(self, call_id: str, occurrence: int = 1) -> Evidence | None:
        if not self._by_id:
            return None
        if self._by_occurrence:
            found = self._by_occurrence.get(f"{call_id}#{occurrence}")
            if found is not None:
                return found
        return self._by_id.get(call_id)


NO_EVIDENCE: Final = Evidences(None)


def parsed_evidence(key: str, value: Evidence | Mapping[str, object]) -> Evidence:
    """The evidence for a call, from itself or from its plain-dict form; else EvidenceError."""
    try:
        return parse_evidence(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][-1:])
        raise EvidenceError(
            f"{first['msg']} ({where})" if where else first["msg"],
            path=f"evidence.{key[:100]}",
        ) from None


RawChange: TypeAlias = tuple[
    ChangeKind, str, Location, object, str | None, Status | None, str, object
]
"""A change before paths are known: kind, rule, where it was, the object it became (or None), call
id, outcome, note, what left.  Cheap to make; `Change` is built from it when somebody looks."""

__all__ = [
    "NO_EVIDENCE",
    "Call",
    "Denied",
    "EvidenceMap",
    "Evidences",
    "Live",
    "RawChange",
    "Result",
    "Standin",
    "Stopped",
    "Verdict",
    "attribute",
    "is_news",
    "is_synthetic",
    "made_up_outcome",
    "outcome_of_result",
    "parsed_evidence",
    "pending_outcome",
    "read_standin",
    "settle",
]
