"""`check` and `normalize`: the two functions on a history as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar, cast, overload

from stopkit.history import Api
from stopkit.normalizer.engine import NO_EVIDENCE, Evidences, Live
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import field_of, is_plain, path_of, split_request, to_plain, unsound
from stopkit.normalizer.result import (
    Checked,
    Hint,
    Location,
    Normalized,
    Splice,
    Violation,
)
from stopkit.normalizer.rules import RULES
from stopkit.normalizer.work import Context, Repaired, account, spliced
from stopkit.outcome import Evidence

ItemT = TypeVar("ItemT")


class Found(Protocol):
    """What a dialect's fast pass found; `spans` are the stretches that need a look."""

    @property
    def spans(self) -> list[tuple[int, int]]: ...


class Dialect(Protocol):
    """One history format: a module of `stopkit.normalizer.dialects`.

    All functions are pure.  `items` are the caller's own objects: plain dicts wherever the fast
    pass lets them through, anything elsewhere.
    """

    def scan(
        self,
        items: list[Any],
        request: Mapping[str, Any],
        touch: frozenset[str] = ...,
        *,
        follows: bool = ...,
    ) -> Found:
        """Find, fast, what needs a look.  No spans: `violations` finds nothing."""
        ...

    def everything(self, items: list[Any]) -> Found:
        """What `scan` gives where all of `items` needs a look."""
        ...

    def violations(self, items: Sequence[Any], request: Mapping[str, Any]) -> list[Violation]:
        """Everything the API would refuse in plain `items`."""
        ...

    def repair(self, items: list[Any], found: Any, context: Context) -> Repaired:
        """The splices that mend `items`."""
        ...

    def outcomes(self, items: list[Any], repaired: Repaired, context: Context) -> Any:
        """Iterate over the `CallOutcome`s of the input."""
        ...

    def hints(self, items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
        """What the rest of the request must know about repaired `items`."""
        ...

    def end(self, items: list[Any], request: Mapping[str, Any]) -> tuple[bool, list[Hint]]:
        """Whether a request may end as `items` do, open calls aside, and what it takes if not."""
        ...

    def answered(self, items: list[Any]) -> Any:
        """Iterate over `(call_id, comparable result)` of a sendable history."""
        ...

    def remember(self, memory: Any, items: list[Any]) -> Any:
        """What later repairs have to know of a frozen part, `items` being new in it.

        `memory` is what this function gave for the part before, or None; it may be changed.
        """
        ...

    def must_look(self, memory: Any, items: list[Any]) -> bool:
        """Whether what is remembered asks for a look at the start of `items`, clean or not."""
        ...

    def user_message(self, blocks: Any) -> Any:
        """A user message of one text, or of the dialect's blocks."""
        ...

    def is_models(self, item: Any) -> bool:
        """Whether an item is a turn of the model, or part of one."""
        ...


_MODULES: Final[dict[Api, str]] = {
    "anthropic.messages": "anthropic_messages",
    "openai.responses": "openai_responses",
    "openai.chat": "openai_chat",
}
_LOADED: Final[dict[str, Dialect]] = {}
_LIVE: Final = ("close", "keep")


def dialect(api: Api) -> Dialect:
    """The dialect of an api, loaded when first asked for.

    Raises:
        UnknownApiError: there is none.
    """
    try:
        return _LOADED[api]
    except (KeyError, TypeError):
        field_of(api)
    module = import_module(f"stopkit.normalizer.dialects.{_MODULES[api]}")
    return _LOADED.setdefault(api, cast("Dialect", module))


@overload
def check(
    history: Sequence[object], *, api: Api, request: Mapping[str, object] | None = None
) -> Checked: ...
@overload
def check(
    history: Mapping[str, object], *, api: Api, request: Mapping[str, object] | None = None
) -> Checked: ...
def check(
    history: Sequence[object] | Mapping[str, object],
    *,
    api: Api,
    request: Mapping[str, object] | None = None,
) -> Checked:
    """Say what the API would refuse in a history, and where.

    Args:
        history: messages or items as plain dicts or the SDK's objects, or a whole request body,
            whose other fields are the `request`.
        api: the format.
        request: the rest of the request (`model`, `thinking`, `tools`, `store`, ...); it makes
            conditional rules exact.  docs/rules.md states the default of each.

    Raises:
        HistoryError: `history` is neither a list nor a request body, or `api` is unknown.  Anything
            wrong inside the history is a violation.
    """
    items, given = split_request(history, api, request)
    speaks = dialect(api)
    found: list[Violation] = []
    if speaks.scan(items, given).spans:
        items, found = _plain_items(items, api)
        found += speaks.violations(items, given)
    may_end, hints = speaks.end(items, given)
    if found:
        hints = []
    hints += speaks.hints(items, [], _context(api, given))
    return Checked(
        api=api,
        violations=tuple(found),
        sendable=may_end and not found,
        pending=(),
        hints=tuple(hints),
    )


def normalize(
    history: Sequence[ItemT] | Mapping[str, object],
    *,
    api: Api,
    evidence: Mapping[str, Evidence | Mapping[str, object]] | None = None,
    request: Mapping[str, object] | None = None,
    live: Live = "close",
) -> Normalized[ItemT]:
    """Repair a history into one that the API accepts, with an account of every change.

    Pure: the input is never touched, and untouched items come back as the same objects; a history
    that needs nothing comes back as the very list it was.

    Args:
        history: as for `check`.
        api: the format.
        evidence: what the caller knows about calls, `{call_id: Evidence}` or the same as plain
            dicts; `call_id#2` is the second call with that id.  It decides the outcome and the
            words of a made-up result.  Without it the outcome of an unanswered call is unknown.
        request: as for `check`.
        live: `close` for a history at rest: open calls are closed unless evidence says running.
            `keep` leaves the open calls of the last turn pending.

    Raises:
        HistoryError: the input is no history of that API, or something in it cannot be repaired
            truthfully; the path names it.
        EvidenceError: `evidence` is not in that form.
    """
    if live not in _LIVE:
        raise HistoryError(f"live is one of {', '.join(_LIVE)}, not {live!r}", path="live")
    items, given = split_request(history, api, request)
    speaks = dialect(api)
    evidences = Evidences(evidence) if evidence is not None else NO_EVIDENCE
    found = speaks.scan(items, given, evidences.ids)
    context = Context(api=api, request=given, evidences=evidences, live=live)
    repaired = speaks.repair(items, found, context) if found.spans else Repaired()
    out = spliced(items, repaired.splices)
    may_end, hints = speaks.end(out, given)
    if repaired.pending:
        # What is needed is the result of a call, whatever else the end would ask for.
        hints = []
    if found.spans or given:
        hints += repaired.hints + speaks.hints(out, repaired.splices, context)
    return Normalized(
        api=api,
        history=cast("list[ItemT]", out),
        pending=tuple(repaired.pending),
        sendable=may_end and not repaired.pending,
        hints=tuple(hints),
        splices=tuple(repaired.splices),
        _changes=lambda: account(api, repaired.changes, repaired.splices),
        _outcomes=lambda: list(speaks.outcomes(items, repaired, context)),
    )


def _context(api: Api, request: Mapping[str, Any]) -> Context:
    return Context(api=api, request=request, evidences=NO_EVIDENCE, live="close")


def _plain_items(items: list[Any], api: Api) -> tuple[list[Any], list[Violation]]:
    """The items as plain JSON, and what in them is none (GEN-JSON-1)."""
    plain: list[Any] = []
    found: list[Violation] = []
    grade = RULES["GEN-JSON-1"].grade
    for index, item in enumerate(items):
        if not is_plain(item):
            where: Location = (index,)
            try:
                item = to_plain(item, where, api)
            except HistoryError as error:
                found.append(Violation("GEN-JSON-1", error.path, error.message, grade))
                item = None if not isinstance(item, dict) else item
            else:
                found += [
                    Violation("GEN-JSON-1", path_of(api, part.location), part.message, grade)
                    for part in unsound(item, where)
                ]
        plain.append(item)
    return plain, found
