"""`scan`: one fast pass that finds the stretches of a history which need a look.

The unit is the exchange: a run of assistant messages and the user messages behind it.  An exchange
passes when every block has one of a few exact, plain shapes and its results answer its calls and
nothing else; so what passes is clean in itself and closed to the rest.  Anything else is looked at
by the slow path, which may find nothing wrong with it.

This is the one place where speed shapes the code: no call per block on the common path, and a
dict of the expected length with the expected keys has no other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from stopkit.normalizer.dialects.anthropic_blocks import (
    CLIENT_ID,
    MAX_MARKERS,
    MAX_MESSAGES,
    NAME,
    marked,
    markers_in_request,
    signed,
)
from stopkit.normalizer.plain import encodable, sound

Item = dict[str, Any]
Span = tuple[int, int]

_ID_BYTES: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_ENDINGS: Final = ("model", "thinking")
"""Request fields on which the end rules depend."""


class Scan:
    """What the fast pass found.

    `spans` are half-open stretches of whole exchanges, in order; `odd` the starts of those in which
    some message has to be looked at for itself (in the others only results are out of place);
    `ids` the call ids of what passed; `thinking` the index of the last message that passed with
    thinking in it, or -1; `markers` whether cache markers have to be counted.
    """

    __slots__ = ("ids", "markers", "odd", "spans", "thinking")

    def __init__(
        self, spans: list[Span], odd: list[int], ids: list[str], thinking: int, markers: bool
    ) -> None:
        self.spans = spans
        self.odd = odd
        self.ids = ids
        self.thinking = thinking
        self.markers = markers


def scan(
    items: list[Any],
    request: Mapping[str, Any],
    touch: frozenset[str] = frozenset(),
    *,
    follows: bool = False,
) -> Scan:
    """Find the exchanges that need a look.

    `touch` are call ids that the caller knows more of; `follows` says that the items go on from a
    history which has begun with its user turn.
    """
    return _scan(items, request, touch, follows=follows, closely=False)


def _scan(
    items: list[Any],
    request: Mapping[str, Any],
    touch: frozenset[str],
    *,
    follows: bool,
    closely: bool,
) -> Scan:
    """`closely` looks into each call on its own, where the look at all of them found something."""
    spans: list[Span] = []
    odd: list[int] = []
    ids: list[str] = []
    inputs: list[Any] = []
    markers: list[int] = []
    names: set[str] = set()
    pend: list[str] | None = None
    dirty = loose = False
    start = 0
    was_assistant = False
    thinking = at = -1
    for message in items:
        at += 1
        try:
            content = message["content"]
            role = message["role"]
            if role == "assistant":
                if not was_assistant:
                    if dirty or loose or pend is not None or at == 0:
                        if at:
                            spans.append((start, at))
                            if dirty:
                                odd.append(start)
                        dirty, loose, pend = False, at == 0 and not follows, None
                    start = at
                    was_assistant = True
                elif pend is not None:
                    loose = True
                if content.__class__ is list and len(message) == 2 and content:
                    for block in content:
                        kind = block["type"]
                        if kind == "text":
                            text = block["text"]
                            if len(block) == 2 and text > "!" and text.isascii():
                                continue
                        elif kind == "tool_use" and len(block) == 4:
                            inputs.append(block["input"])
                            if block["name"] not in names:
                                if NAME.match(block["name"]):
                                    names.add(block["name"])
                                else:
                                    dirty = True
                            if pend is None:
                                pend = [block["id"]]
                            else:
                                pend.append(block["id"])
                            if closely and not _call_passes(block):
                                dirty = True
                            continue
                        if not _passes(block, kind):
                            dirty = True
                        elif kind != "text":
                            thinking = at
                        if "cache_control" in block:
                            markers.append(at)
                elif not (content.__class__ is str and len(message) == 2 and _text_passes(content)):
                    dirty = True
            elif content.__class__ is list and len(message) == 2 and content:
                was_assistant = False
                if role != "user":
                    dirty = True
                got: list[str] | None = None
                other = False
                for block in content:
                    kind = block["type"]
                    if kind == "tool_result":
                        if other:
                            loose = True
                        if got is None:
                            got = [block["tool_use_id"]]
                        else:
                            got.append(block["tool_use_id"])
                        if len(block) == 3:
                            inner = block["content"]
                            if inner.__class__ is list:
                                for part in inner:
                                    text = part["text"]
                                    if (
                                        len(part) == 2
                                        and text > "!"
                                        and text.isascii()
                                        and part["type"] == "text"
                                    ):
                                        continue
                                    break
                                else:
                                    if inner:
                                        continue
                            elif inner.__class__ is str and inner.isascii():
                                continue
                        if not _result_passes(block):
                            dirty = True
                    else:
                        other = True
                        if kind == "text":
                            text = block["text"]
                            if len(block) == 2 and text > "!" and text.isascii():
                                continue
                        if not _user_passes(block, kind):
                            dirty = True
                    if "cache_control" in block:
                        markers.append(at)
                if got != pend and not (got and pend and _same(got, pend)):
                    loose = True
                elif pend is not None:
                    if closely and len(set(pend)) < len(pend):
                        loose = True
                    ids += pend
                    pend = None
            else:
                was_assistant = False
                loose = loose or pend is not None
                if not (
                    role == "user"
                    and content.__class__ is str
                    and len(message) == 2
                    and _text_passes(content)
                ):
                    dirty = True
        except (KeyError, TypeError, AttributeError):
            # No dict, or a field of another kind than the shapes above: the slow path names it.
            dirty = True
            if _role(message) != "assistant":
                was_assistant = False
            elif not was_assistant:
                was_assistant = True
                if start < at:
                    spans.append((start, at))
                    odd.append(start)
                start, pend, loose = at, None, False
    if not closely and (not _inputs_pass(inputs) or len(set(ids)) < len(ids)):
        return _scan(items, request, touch, follows=follows, closely=True)
    at_end = bool(items) and _end_needs_a_look(items, request)
    if items and (dirty or loose or pend is not None or at_end):
        spans.append((start, len(items)))
        if dirty or at_end:
            odd.append(start)
    bad = touch
    if not _ids_pass(ids):
        bad = touch | {call_id for call_id in ids if not CLIENT_ID.match(call_id)}
    if bad:
        spans = _widened(items, spans, odd, _holding(items, bad))
    if markers and (odd or len(markers) + markers_in_request(request) > MAX_MARKERS):
        spans = _widened(items, spans, odd, iter(markers))
    return Scan(spans, odd, ids, thinking, bool(odd))


def _inputs_pass(inputs: list[Any]) -> bool:
    """Whether all inputs are JSON objects, in one call: orjson refuses what is not JSON or nested
    too deep (see `MAX_DEPTH`), and writes null for a number that is none."""
    try:
        if not set(map(type, inputs)) <= {dict}:
            return False
        return b"null" not in orjson.dumps(inputs)
    except (TypeError, ValueError, RecursionError):
        return False


def _call_passes(block: Item) -> bool:
    return block["input"].__class__ is dict and sound(block["input"])


def _ids_pass(ids: list[str]) -> bool:
    try:
        return all(ids) and not "".join(ids).encode().translate(None, _ID_BYTES)
    except UnicodeEncodeError:
        return False


def _same(got: list[str], pend: list[str]) -> bool:
    return len(got) == len(pend) and set(got) == set(pend)


def _text_passes(text: str) -> bool:
    return bool(text) and not text.isspace() and (text.isascii() or encodable(text))


def _passes(block: Item, kind: str) -> bool:
    """Whether a block of an assistant message is clean in itself and of no concern to others."""
    if kind == "text":
        return _text_passes(block["text"]) and sound(block)
    if kind == "thinking" or kind == "redacted_thinking":
        return signed(block) and not marked(block) and sound(block)
    return False


def _user_passes(block: Item, kind: str) -> bool:
    if kind == "text":
        return _text_passes(block["text"]) and sound(block)
    return kind in ("image", "document", "search_result") and sound(block)


def _result_passes(block: Item) -> bool:
    """A result with text, images and the like, or an error with text."""
    is_error = block.get("is_error")
    if is_error is not None and is_error.__class__ is not bool:
        return False
    if "toolset_name" in block or not sound(block):
        return False
    content = block.get("content", "")
    if content.__class__ is str:
        return True
    if content.__class__ is not list or not content:
        return False
    for inner in content:
        kind = inner["type"]
        if "cache_control" in inner:
            return False
        if kind == "text":
            if not _text_passes(inner["text"]):
                return False
        elif is_error or kind not in ("image", "document", "search_result"):
            return False
    return True


def _end_needs_a_look(items: list[Any], request: Mapping[str, Any]) -> bool:
    if len(items) > MAX_MESSAGES:
        return True
    last = items[-1]
    if isinstance(last, dict) and last.get("role") == "assistant":
        content = last.get("content")
        final = content[-1] if isinstance(content, list) and content else None
        if (
            isinstance(final, dict)
            and final.get("type") == "thinking"
            or final.get("type") == "redacted_thinking"
        ):
            return True
    return bool(request) and any(request.get(name) is not None for name in _ENDINGS)


def _holding(items: list[Any], ids: frozenset[str]) -> Iterable[int]:
    """The messages that hold a call or result with one of these ids."""
    for at, message in enumerate(items):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for block in content:
                if isinstance(block, dict) and (
                    _hashed(block.get("id")) in ids or _hashed(block.get("tool_use_id")) in ids
                ):
                    yield at
                    break


def _hashed(value: object) -> object:
    return value if isinstance(value, str) else None


def _widened(
    items: list[Any], spans: list[Span], odd: list[int], more: Iterable[int]
) -> list[Span]:
    """`spans` and the whole exchanges around the messages `more`, in order, joined.

    The exchanges join `odd`.
    """
    found: list[Span] = []
    reach = 0
    for at in more:
        if at < reach:
            continue
        first = at
        while first > 0 and not _starts_exchange(items, first):
            first -= 1
        stop = at + 1
        while stop < len(items) and not _starts_exchange(items, stop):
            stop += 1
        found.append((first, stop))
        odd.append(first)
        reach = stop
    return touching_joined(sorted({*spans, *found}))


def _starts_exchange(items: list[Any], at: int) -> bool:
    return _role(items[at]) == "assistant" and (at == 0 or _role(items[at - 1]) != "assistant")


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def touching_joined(spans: list[Span]) -> list[Span]:
    """Sorted spans with those that touch or overlap made one."""
    joined: list[Span] = []
    for first, stop in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return joined


__all__ = ["Scan", "Span", "scan", "touching_joined"]
