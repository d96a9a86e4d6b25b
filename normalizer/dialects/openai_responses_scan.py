"""`scan`: one fast pass that finds the stretches of an input which need a look.

A stretch begins where no call is open and no reasoning waits for what it led to.  It passes when
every item is clean in itself and its outputs answer its calls and nothing else.  The commonest
shapes are tested inline; the rest of the known ones go through `inspect`, which is slower and says
the same.  Whatever is neither makes the stretch a span, up to the next user message or model turn.

This is the one place where speed shapes the code: no call per item on the common path, a dict of
the expected length with the expected keys has no other keys, and what can be proved for all ids at
once is proved at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from stopkit.normalizer.dialects.openai_responses_check import (
    is_chained,
    is_stateless,
    made_call_id,
    own_id,
)
from stopkit.normalizer.dialects.openai_responses_shapes import (
    BY_CALL,
    LEADS_TO,
    MAX_ID,
    MAX_OUTPUT,
    inspect,
    is_name,
    kind_of,
    program_caller,
    type_of,
)
from stopkit.normalizer.plain import encodable, is_plain

Span: TypeAlias = tuple[int, int]

_NO_MORE: Final = (-1, None)
_FOLLOWERS: Final = frozenset({*LEADS_TO, "reasoning"})
_CLOSED: Final = frozenset(
    {
        "system",
        "assistant",
        "hosted",
        "hosted_output",
        "compaction",
        "reference",
        "setting",
        "unknown",
    }
)
"""Kinds that concern no neighbour, once they are clean in themselves."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What the fast pass found: half-open stretches, in order; none of them touches another."""

    spans: list[Span]


def scan(
    items: list[Any],
    request: Mapping[str, Any],
    touch: frozenset[str] = frozenset(),
    *,
    follows: bool = False,
) -> Scan:
    """Find the stretches that need a look.

    `touch` are call ids that the caller knows more of: the stretches that hold them are spans.
    An empty input that no request may carry is the span (0, 0); `follows` says that more stands
    before these items.
    """
    if not items:
        fine = follows or is_chained(request) or request.get("prompt")
        return Scan([] if fine else [(0, 0)])
    return Scan(_Scan(items, request, touch).spans())


class _Scan:
    def __init__(self, items: list[Any], request: Mapping[str, Any], touch: frozenset[str]) -> None:
        self.items = items
        self.touch = touch
        self.stateless = is_stateless(request)
        self.open: dict[Any, None] = {}
        """Open calls: a function call by its id, any other by its output's type and id."""
        self.call_ids: list[str] = []
        self.message_ids: list[str] = []
        self.function_ids: list[str] = []
        self.names: set[str] = set()
        self.other_ids: list[str] = []
        self.other_call_ids: list[str] = []
        self.strays: set[str] = set()
        """The call_ids of outputs in spans."""
        self.spanned: set[str] = set()
        """The call_ids of calls that are known to be in spans."""
        self.foreign = False
        """An item is no dict: what it holds is not known here."""

    def spans(self) -> list[Span]:
        found = self._stretches()
        if self.foreign:
            return [(0, len(self.items))]
        if not self._ids_are_sound():
            found = _widened(self.items, found, self._unsound())
        if self._ids_recur():
            found = _widened(self.items, found, _recurring(self.items))
        far = self.strays - self.spanned
        if not far.isdisjoint(self.call_ids):
            # An output may belong to a call that seemed answered: they are looked at together.
            found = _widened(self.items, found, _holding(self.items, frozenset(far)))
        if self.touch and not self.touch.isdisjoint(self.call_ids + self.other_call_ids):
            found = _widened(self.items, found, _holding(self.items, self.touch))
        return _joined(found)

    def _stretches(self) -> list[Span]:
        items = self.items
        open_ = self.open
        call_ids, names = self.call_ids, self.names
        message_ids, function_ids = self.message_ids, self.function_ids
        loads = orjson.loads
        spans: list[Span] = []
        border = 0
        entries = enumerate(items)
        for n, item in entries:
            try:
                type_ = item["type"]
                if type_ == "function_call_output":
                    output = item["output"]
                    if (
                        len(item) == 3
                        and output.__class__ is str
                        and (output.isascii() or output.encode())
                        and len(output) <= MAX_OUTPUT
                    ):
                        del open_[item["call_id"]]
                        if not open_:
                            border = n + 1
                        continue
                elif type_ == "function_call":
                    arguments = item["arguments"]
                    if (
                        len(item) == 6
                        and item["status"] == "completed"
                        and arguments.__class__ is str
                        and loads(arguments).__class__ is dict
                    ):
                        id_ = item["id"]
                        call_id = item["call_id"]
                        names.add(item["name"])
                        open_[call_id] = None
                        call_ids.append(call_id)
                        function_ids.append(id_)
                        continue
                elif type_ == "message":
                    content = item["content"]
                    if item["role"] == "user":
                        if len(item) == 3 and not open_ and content.__class__ is list:
                            (part,) = content
                            text = part["text"]
                            if (
                                len(part) == 2
                                and part["type"] == "input_text"
                                and text.__class__ is str
                                and (text.isascii() or text.encode())
                            ):
                                border = n
                                continue
                    elif (
                        len(item) == 5
                        and item["status"] == "completed"
                        and item["role"] == "assistant"
                        and content.__class__ is list
                    ):
                        (part,) = content
                        text = part["text"]
                        if (
                            len(part) == 3
                            and part["type"] == "output_text"
                            and text.__class__ is str
                            and (text.isascii() or text.encode())
                            and not part["annotations"]
                        ):
                            message_ids.append(item["id"])
                            continue
            except (KeyError, TypeError, ValueError, AttributeError):
                # No dict, or a field of another kind than the shapes above: look closer.
                pass
            while not self._passes(n, item):
                if open_ and kind_of(item) == "user":
                    stop = n  # what stood open before it is the span; its own turn may be fine
                else:
                    if n == border and kind_of(item) == "output":
                        border = self._group_start(n, spans[-1][1] if spans else 0)
                    stop, item = self._next_stretch(n, entries)
                for key in open_:
                    self.spanned.add(key if key.__class__ is str else key[1])
                open_.clear()
                if stop < 0:
                    spans.append((border, len(items)))
                    return spans
                spans.append((border, stop))
                border = n = stop
            if not open_:
                kind = kind_of(item)
                border = n + 1 if kind == "output" else n if kind == "user" else border
        if open_:
            spans.append((border, len(items)))
        return spans

    def _passes(self, n: int, item: Any) -> bool:
        """Whether an item of a rarer shape is clean in itself and fits the open calls."""
        if item.__class__ is not dict:
            self.foreign = True
        if not is_plain(item):
            return False
        kind, issues = inspect(item, n, stateless=self.stateless)
        if issues or program_caller(item) is not None:
            return False
        if kind == "reasoning":
            behind = self.items[n + 1] if n + 1 < len(self.items) else None
            if kind_of(behind) not in _FOLLOWERS:
                return False
        elif kind == "user":
            if self.open:
                return False
        elif kind == "call" or kind == "output":
            call_id = item.get("call_id")
            if call_id is None:
                return False
            type_ = type_of(item)
            if kind == "call":
                output = BY_CALL[type_].output
                self.open[call_id if type_ == "function_call" else (output, call_id)] = None
                self.call_ids.append(call_id)
            else:
                key = call_id if type_ == "function_call_output" else (type_, call_id)
                if key not in self.open:
                    return False
                del self.open[key]
        elif kind not in _CLOSED:
            return False
        elif kind == "hosted":
            searched = made_call_id(item)
            if searched is not None:
                self.other_call_ids.append(searched)
        id_ = own_id(item)
        if id_ is not None and kind != "unknown":
            self.other_ids.append(id_)
        return True

    def _group_start(self, n: int, floor: int) -> int:
        """Where the calls begin that output `n` follows, if its own is among them; else `n`."""
        items = self.items
        wanted = items[n].get("call_id")
        if wanted.__class__ is not str:
            return n
        calls: set[str] = set()
        needed: set[str] = set()
        at = n
        while at > floor:
            before = items[at - 1]
            kind = kind_of(before)
            if not needed and calls and kind != "call" and kind != "reasoning":
                break
            if kind == "output":
                needed.add(before["call_id"])
            elif kind == "call":
                calls.add(before["call_id"])
                needed.discard(before["call_id"])
            elif not calls and not needed:
                return n
            at -= 1
        if wanted not in calls:
            return n
        self.spanned |= calls
        return at

    def _next_stretch(self, n: int, entries: Iterator[tuple[int, Any]]) -> tuple[int, Any]:
        """Go on to where the next stretch may begin; note the ids on the way."""
        self._note(self.items[n])
        was_output = kind_of(self.items[n]) == "output"
        for at, item in entries:
            kind = kind_of(item)
            if kind == "user" or (was_output and kind != "output"):
                return at, item
            was_output = kind == "output"
            self._note(item)
        return _NO_MORE

    def _note(self, item: Any) -> None:
        if item.__class__ is not dict:
            self.foreign = True
            return
        kind = kind_of(item)
        if kind != "unknown" and kind != "broken":
            id_ = own_id(item)
            if id_ is not None:
                self.other_ids.append(id_)
            call_id = made_call_id(item)
            if call_id is not None:
                self.other_call_ids.append(call_id)
                self.spanned.add(call_id)
            elif kind == "output":
                answers = item.get("call_id", item.get("id"))
                if answers.__class__ is str:
                    self.strays.add(answers)

    def _ids_are_sound(self) -> bool:
        """Whether the ids and names that the loop took unseen are as the API wants them."""
        if not all(map(is_name, self.names)):
            return False
        for prefix, ids in (("\nmsg", self.message_ids), ("\nfc", self.function_ids)):
            if not ids:
                continue
            if self.stateless:
                return False
            try:
                joined = "\n" + "\n".join(ids)
            except TypeError:
                return False
            if joined.count(prefix) != len(ids) or joined.count("\n") != len(ids):
                return False
            if len(max(ids, key=len)) > MAX_ID or not (joined.isascii() or encodable(joined)):
                return False
        if not self.call_ids:
            return True
        try:
            joined = "".join(self.call_ids)
        except TypeError:
            return False
        lengths = set(map(len, self.call_ids))
        return (
            max(lengths) <= MAX_ID and 0 not in lengths and (joined.isascii() or encodable(joined))
        )

    def _unsound(self) -> Iterator[int]:
        """The items that are not clean in themselves."""
        for n, item in enumerate(self.items):
            if not is_plain(item) or inspect(item, n, stateless=self.stateless)[1]:
                yield n

    def _ids_recur(self) -> bool:
        ids = self.message_ids + self.function_ids + self.other_ids
        call_ids = self.call_ids + self.other_call_ids
        try:
            return len(set(ids)) < len(ids) or len(set(call_ids)) < len(call_ids)
        except TypeError:  # not hashable: found above
            return False


def _recurring(items: list[Any]) -> Iterator[int]:
    """Items with an id or call_id of another, the first of them included."""
    first: dict[tuple[str, str], int] = {}
    for n, item in enumerate(items):
        kind = kind_of(item)
        if kind == "unknown" or kind == "broken":
            continue
        for where, value in (("id", own_id(item)), ("call_id", made_call_id(item))):
            if value is not None:
                before = first.setdefault((where, value), n)
                if before != n:
                    yield before
                    yield n


def _holding(items: list[Any], call_ids: frozenset[str]) -> Iterator[int]:
    for n, item in enumerate(items):
        if item.__class__ is dict:
            call_id = item.get("call_id")
            if call_id.__class__ is str and call_id in call_ids:
                yield n


def _widened(items: list[Any], spans: list[Span], more: Iterable[int]) -> list[Span]:
    """`spans`, and the whole stretches around the items `more`."""
    wanted = sorted(set(more))
    found = list(spans)
    given = iter([*spans, (len(items), len(items))])
    first, stop = next(given)
    border = 0
    open_: set[object] = set()
    stretches: list[int] = [0]
    n = 0
    while n < len(items):
        if n == first:  # a span is closed to the rest, and was looked at
            stretches.append(n)
            n = stop
            stretches.append(n)
            open_.clear()
            first, stop = next(given)
            continue
        item = items[n]
        kind = kind_of(item)
        call_id = item.get("call_id") if item.__class__ is dict else None
        if kind == "call" and call_id.__class__ is str:
            open_.add((BY_CALL[type_of(item)].output, call_id))
        elif kind == "output" and call_id.__class__ is str:
            open_.discard((type_of(item), call_id))
        if kind == "user" and not open_ and n > border:
            stretches.append(n)
            border = n
        n += 1
        if kind == "output" and not open_:
            stretches.append(n)
            border = n
    stretches.append(len(items))
    at = 0
    for n in wanted:
        while stretches[at + 1] <= n:
            at += 1
        found.append((stretches[at], stretches[at + 1]))
    return _joined(found)


def _joined(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for first, stop in sorted(set(spans)):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif first < stop:
            joined.append((first, stop))
    return joined


__all__ = ["Scan", "Span", "scan"]
