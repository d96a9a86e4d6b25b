"""What a dialect's repair is given and what it gives back, before anybody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stopkit.history import Api
from stopkit.normalizer.engine import Call, Evidences, Live, RawChange, Result, Standin, Verdict
from stopkit.normalizer.plain import path_of
from stopkit.normalizer.result import Change, ChangeKind, Hint, Location, Splice
from stopkit.outcome import Status


@dataclass(slots=True)
class Answered:
    """A call that has its result outside the part under repair."""

    occurrence: int
    content: object
    """The result's content, to tell a copy from another result."""
    standin: Standin | None = None
    """What the result says of itself, where it only stands for one."""


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

    def mark(self) -> int:
        return len(self.changes)

    def rewind(self, mark: int) -> None:
        del self.changes[mark:]


def account(api: Api, changes: list[RawChange], splices: list[Splice]) -> list[Change]:
    """The changes with their paths before and after, in the order of the input."""
    places = _places(splices)
    account: list[Change] = []
    for kind, rule, where, became, call_id, outcome, note, removed in sorted(
        changes, key=lambda change: _order(change[2])
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


def _order(where: Location) -> tuple[tuple[int, int | str], ...]:
    return tuple((0, part) if isinstance(part, int) else (1, part) for part in where)


class LazyElsewhere:
    """The calls outside the part under repair, indexed when somebody first asks for one of them."""

    __slots__ = ("_build", "_ids", "_index", "_names", "_past")

    def __init__(
        self,
        build: Callable[[], Mapping[str, Answered]],
        past: Mapping[str, Answered],
        names: list[str] | None = None,
    ) -> None:
        """`build` reads the calls and their results; `names` are all their ids, where known."""
        self._names = names
        self._build = build
        self._past = past
        self._ids: set[str] | None = None
        self._index: Mapping[str, Answered] | None = None

    def __contains__(self, call_id: object, /) -> bool:
        return isinstance(call_id, str) and self.get(call_id) is not None

    def get(self, call_id: str) -> Answered | None:
        if self._ids is None and self._names is not None:
            self._ids = set(self._names)
        if self._ids is None or call_id in self._ids:
            if self._index is None:
                self._index = self._build()
            found = self._index.get(call_id)
            if found is not None:
                return found
        return self._past.get(call_id)


def trimmed(
    start: int, before: tuple[Any, ...], start_after: int, after: list[Any]
) -> Splice | None:
    """A splice of what really differs, or None where nothing does."""
    head = 0
    shortest = min(len(before), len(after))
    while head < shortest and before[head] is after[head]:
        head += 1
    tail = 0
    while tail < shortest - head and before[-1 - tail] is after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if not old and not new:
        return None
    return Splice(start + head, old, start_after + head, tuple(new))


def spliced(items: list[Any], splices: list[Splice]) -> list[Any]:
    """The items after all splices: the input's own list where there is none."""
    if not splices:
        return items
    out: list[Any] = []
    at = 0
    for splice in splices:
        out += items[at : splice.start]
        out += splice.after
        at = splice.start + len(splice.before)
    out += items[at:]
    return out
