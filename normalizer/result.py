"""What `check` and `normalize` give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from stopkit.history import Api, SendableHistory
from stopkit.outcome import Effects, Outcome, Status

ItemT = TypeVar("ItemT")

ChangeKind: TypeAlias = Literal[
    "inserted",
    "moved",
    "merged",
    "rewritten",
    "renamed",
    "to_text",
    "removed",
    "deferred",
    "delivered",
    "noted",
]
"""What a change did.

`inserted` a made-up result; `moved` something recorded; `merged` two recorded results into one;
`rewritten` a value in place; `renamed` an id or name on both sides; `to_text` something that could
not stay, as attributed text; `removed` something, which the change holds; `deferred` content to the
next user turn; `delivered` a late result as marked data; `noted` a marked context note.
"""

Location: TypeAlias = tuple[str | int, ...]
"""A place in a history: `(3, "content", 1)` is `messages.3.content.1`."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing the API would refuse, in its own words, with what the rule rests on.

    `scope` is `prefix` where the history itself is broken, `send` where only the request that
    would carry it now is.
    """

    rule: str
    path: str
    message: str
    grade: str
    scope: Literal["prefix", "send"] = "prefix"


@dataclass(frozen=True, slots=True)
class Hint:
    """A condition on the rest of the request, or on the next turn; `code` is stable."""

    code: str
    note: str
    path: str = ""

    def __str__(self) -> str:
        return self.note


@dataclass(frozen=True, slots=True)
class Checked:
    """What the API would refuse.

    `valid`: the history is a well-formed prefix.  `sendable`: a request may carry it as it is.
    """

    api: Api
    violations: tuple[Violation, ...]
    sendable: bool
    pending: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()

    @property
    def valid(self) -> bool:
        return all(violation.scope != "prefix" for violation in self.violations)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that `normalize` did, with what left the history because of it."""

    kind: ChangeKind
    rule: str
    path: str
    """Where it was in the input."""
    path_after: str | None
    """Where it is now; None where it left."""
    note: str
    """What happened and why, for a person."""
    call_id: str | None = None
    outcome: Status | None = None
    removed: object = None
    """What left the history or was replaced, as it was; None where nothing did."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of one call of the history.

    `synthetic` is True where the result in the history is made up by us, or only stands for one.
    """

    call_id: str
    occurrence: int
    name: str
    outcome: Outcome
    synthetic: bool

    @property
    def status(self) -> Status:
        return self.outcome.status

    @property
    def effects(self) -> Effects:
        return self.outcome.effects


@dataclass(frozen=True, slots=True)
class Splice:
    """One stretch of items that was replaced: enough to repeat the repair, or to undo it."""

    start: int
    """Index in the input of the first item of `before`."""
    before: tuple[Any, ...]
    start_after: int
    after: tuple[Any, ...]


@dataclass(slots=True)
class Normalized(Generic[ItemT]):
    """A repaired history and the account of every change.

    `history` is the input itself where nothing had to change, and shares every untouched item
    with it otherwise.  `pending` names calls still at work: their results are to come, and until
    they are there the history is not sendable.
    """

    api: Api
    history: Sequence[ItemT]
    pending: tuple[str, ...]
    sendable: bool
    hints: tuple[Hint, ...]
    splices: tuple[Splice, ...] = ()
    _changes: Callable[[], list[Change]] = field(default=list, repr=False)
    _outcomes: Callable[[], list[CallOutcome]] = field(default=list, repr=False)
    _made_changes: list[Change] | None = field(default=None, repr=False)
    _made_outcomes: list[CallOutcome] | None = field(default=None, repr=False)

    @property
    def changes(self) -> list[Change]:
        """Every change, in the order of the input."""
        if self._made_changes is None:
            self._made_changes = self._changes()
        return self._made_changes

    @property
    def outcomes(self) -> list[CallOutcome]:
        """One entry for each client-run call, in the order of the history."""
        if self._made_outcomes is None:
            self._made_outcomes = self._outcomes()
        return self._made_outcomes

    def undo(self) -> list[ItemT]:
        """The input, exactly: the same items in the same order."""
        items: list[Any] = list(self.history)
        for splice in reversed(self.splices):
            stop = splice.start_after + len(splice.after)
            items[splice.start_after : stop] = splice.before
        return items

    def to_sendable(self) -> SendableHistory:
        """The neutral form that the rest of stopkit passes on."""
        return SendableHistory(
            api=self.api,
            items=tuple(self.history),
            sendable=self.sendable,
            pending=self.pending,
            hints=tuple(hint.note for hint in self.hints),
        )
