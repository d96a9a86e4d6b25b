"""What a dialect's repair is given, what it gives back, and what every repair does alike."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from stopkit.history import Api
from stopkit.normalizer.engine import Call, Live, RawChange, Result, Standin, Verdict
from stopkit.normalizer.evidence import Evidences
from stopkit.normalizer.plain import Item, path_of
from stopkit.normalizer.result import (
    CallOutcome,
    Change,
    ChangeKind,
    Hint,
    Location,
    Splice,
    reading_order,
)
from stopkit.normalizer.wording import read_late
from stopkit.outcome import Outcome, Status


@dataclass(slots=True)
class Answered:
    """A call that has its result outside the part under repair."""

    occurrence: int
    content: object
    """The result's content, to tell a copy from another result."""
    standin: Standin | None = None
    """What the result says of itself, where it only stands for one."""
    sent_as: str = ""
    """Its id in what was sent, where that is known; else the recorded one."""


@dataclass(slots=True)
class Context:
    """What a repair may know beside the items."""

    api: Api
    request: Mapping[str, Any]
    evidences: Evidences
    live: Live
    past: Mapping[str, Answered] = field(default_factory=dict)
    """Calls of an earlier, frozen part of the history, by id: the newest of each."""
    follows: bool = False
    """The items go on from such a part: their first message need not be the user's."""
    memory: Any = None
    """What else the dialect has to know of that part (its `remember`)."""


@dataclass(slots=True)
class Repaired:
    """A repair as splices of the input, with its account in raw form."""

    splices: list[Splice] = field(default_factory=list)
    changes: list[RawChange] = field(default_factory=list)
    decisions: dict[Location, tuple[Call, Verdict]] = field(default_factory=dict)
    """What was decided about each call that was looked at, by where it stands in the input."""
    looked: list[tuple[int, int]] = field(default_factory=list)
    """The half-open stretches of the input that were looked at."""
    late: dict[tuple[str, int], Result] = field(default_factory=dict)
    """What arrived for calls outside those stretches, by call id and occurrence."""
    pending: list[str] = field(default_factory=list)
    deferred: list[Any] = field(default_factory=list)
    """Blocks held back for the next user turn."""
    hints: list[Hint] = field(default_factory=list)
    blocked: bool = False
    """No later item can make the frozen part sendable again."""


class Recorder:
    """Collects raw changes; `mark` and `rewind` take back those of a reading that is redone."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[RawChange] = []

    def add(
        self,
        kind: ChangeKind,
        rule: str,
        where: Location,
        note: str,
        *,
        became: object = None,
        call_id: str | None = None,
        outcome: Status | None = None,
        removed: object = None,
    ) -> None:
        """`became` is the object in the output that the change speaks of, by identity."""
        self.changes.append((kind, rule, where, became, call_id, outcome, note, removed))

    def finished(self, final: Callable[[object], object]) -> list[RawChange]:
        """The changes with what each became as `final` gives it, once everything is written."""
        return [
            (kind, rule, where, final(became), call_id, outcome, note, removed)
            for kind, rule, where, became, call_id, outcome, note, removed in self.changes
        ]

    def mark(self) -> int:
        return len(self.changes)

    def rewind(self, mark: int) -> None:
        del self.changes[mark:]


def account(api: Api, changes: list[RawChange], splices: list[Splice]) -> list[Change]:
    """The changes with their paths before and after, in the order of the input."""
    places = _places(splices)
    account: list[Change] = []
    for kind, rule, where, became, call_id, outcome, note, removed in sorted(
        changes, key=lambda change: reading_order(change[2])
    ):
        after = places.get(id(became)) if became is not None else None
        account.append(
            Change(
                kind=kind,
                rule=rule,
                path=path_of(api, where),
                path_after=None if after is None else path_of(api, after),
                note=note,
                call_id=call_id,
                outcome=outcome,
                removed=removed,
            )
        )
    return account


def _places(splices: list[Splice]) -> dict[int, Location]:
    """Where each dict of the new items is, by identity."""
    places: dict[int, Location] = {}
    for splice in splices:
        stack: list[tuple[Any, Location]] = [
            (item, (splice.start_after + offset,)) for offset, item in enumerate(splice.after)
        ]
        while stack:
            value, where = stack.pop()
            if isinstance(value, dict):
                places[id(value)] = where
                stack.extend(
                    (inner, (*where, key))
                    for key, inner in value.items()
                    if key in ("content", "tool_calls", "output")
                )
            elif isinstance(value, list):
                stack.extend((inner, (*where, at)) for at, inner in enumerate(value))
    return places


class LazyElsewhere:
    """The calls outside the part under repair, indexed when somebody first asks for one of them."""

    __slots__ = ("_find", "_ids", "_index", "_names", "_past")

    def __init__(
        self,
        index: Callable[[], Callable[[str], Answered | None]],
        past: Mapping[str, Answered],
        names: list[str] | None = None,
    ) -> None:
        """`index` reads the calls and gives a look-up; `names` are all their ids, where known."""
        self._names = names
        self._index = index
        self._past = past
        self._ids: set[str] | None = None
        self._find: Callable[[str], Answered | None] | None = None

    def __contains__(self, call_id: object, /) -> bool:
        return isinstance(call_id, str) and self.get(call_id) is not None

    def get(self, call_id: str) -> Answered | None:
        """The newest call with the id, or None."""
        if self._ids is None and self._names is not None:
            self._ids = set(self._names)
        if self._ids is None or call_id in self._ids:
            if self._find is None:
                self._find = self._index()
            found = self._find(call_id)
            if found is not None:
                return found
        return self._past.get(call_id)


def counted_calls(
    calls: Iterable[tuple[Location, Item]],
    id_of: Callable[[Item], str],
    looked: Sequence[tuple[int, int]],
    ours: Container[Location],
    past: Mapping[str, Answered],
) -> Iterator[tuple[Location, Item, int]]:
    """Every call with its number, from 1, among those of its id; `past` calls count too.

    In the stretches that were looked at, only `ours` are calls: the rest were copies, or left.
    """
    counts: dict[str, int] = {}
    at = 0
    for where, block in calls:
        index = cast("int", where[0])
        while at < len(looked) and looked[at][1] <= index:
            at += 1
        if at < len(looked) and looked[at][0] <= index and where not in ours:
            continue
        call_id = id_of(block)
        before = counts.get(call_id)
        if before is None:
            known = past.get(call_id)
            before = known.occurrence if known else 0
        counts[call_id] = before + 1
        yield where, block, before + 1


def untold_news(
    decisions: Mapping[Location, tuple[Call, Verdict]], items: Iterable[Any]
) -> list[tuple[Call, Outcome]]:
    """What is to be announced, without what a note in `items` has told already."""
    news = [
        (call, verdict.announce)
        for call, verdict in decisions.values()
        if verdict.announce is not None
    ]
    if not news:
        return []
    told = late_outcomes(items)
    return [(call, known) for call, known in news if (call.id, call.occurrence) not in told]


def with_late_news(
    outcomes: Iterable[CallOutcome], items: Iterable[Any], evidences: Evidences
) -> list[CallOutcome]:
    """The outcomes, with what notes in `items` told later of calls that have a stand-in."""
    known: dict[tuple[str, int], Outcome] | None = None
    settled: list[CallOutcome] = []
    for entry in outcomes:
        if entry.synthetic and evidences.of(entry.call_id, entry.occurrence) is None:
            if known is None:
                known = late_outcomes(items)
            told = known.get((entry.call_id, entry.occurrence))
            if told is not None:
                entry = replace(entry, outcome=told)
        settled.append(entry)
    return settled


def late_outcomes(items: Iterable[Any]) -> dict[tuple[str, int], Outcome]:
    """What notes in a history tell of calls that were answered otherwise; the last word counts."""
    return {
        (told[0], told[1]): told[2]
        for item in items
        for text in _texts(item)
        if (told := read_late(text)) is not None
    }


def _texts(item: Any) -> Iterator[str]:
    content = item.get("content") if isinstance(item, dict) else None
    parts = [{"text": content}] if isinstance(content, str) else content
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
