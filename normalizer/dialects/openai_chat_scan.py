"""`scan`: one fast pass that finds the stretches of a history which need a look.

This is the one place where speed shapes the code: no call per message on the common path, and a
dict of the expected length with the expected keys has no other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from stopkit.normalizer.dialects.openai_chat_shapes import (
    MAX_ID,
    block_end,
    flaws,
    ids_of,
    plainly_fine,
)
from stopkit.normalizer.plain import is_plain

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scan:
    """What the fast pass found.

    `spans` are half-open stretches of items that need a look, in order and apart.  What stands
    between them is clean and complete in itself: each call there has its answers there, and each
    answer its call.  A span holds whole turns, clean ones too.
    """

    spans: list[Span]
    turns: dict[int, None]
    """The assistant messages with calls that are clean in themselves, in order."""


def scan(
    items: list[Any],
    request: Mapping[str, Any],
    touch: frozenset[str] = frozenset(),
    *,
    follows: bool = False,
) -> Scan:
    """Find the turns that need a look; `touch` are call ids that the caller knows more of."""
    # The loop takes the plain shapes of each role; whatever else it meets, known or odd, is
    # judged by `flaws` behind it.  An exception here only means "not plain".
    spans: list[Span] = []
    strays: dict[int, str] = {}  # answers without a call in their turn, by index
    turns: dict[int, None] = {}
    names: set[str] = set()
    loads = orjson.loads
    longest = MAX_ID
    start = 0  # the last assistant message
    waiting: list[Any] = []  # its unanswered ids, the next one last
    loose: set[str] = set()  # the same, once an answer has come out of turn
    own: set[str] = set()  # the ids of `owner`, an assistant message with strays behind it
    owner = -1
    for at, message in enumerate(items):
        try:
            role = message["role"]
            content = message["content"]
            if role == "tool":
                if (
                    message["tool_call_id"] == waiting[-1]
                    and len(message) == 3
                    and content.__class__ is str
                    and (content.isascii() or content.encode())
                ):
                    del waiting[-1]
                    continue
            elif waiting:
                pass
            elif len(message) == 2:
                if content.__class__ is str:
                    if content.isascii() or content.encode():
                        if role == "user":
                            continue
                        if role == "assistant" and content:
                            start = at
                            continue
                elif role == "user" and content.__class__ is list:
                    for part in content:
                        text = part["text"]
                        if not (
                            len(part) == 2
                            and part["type"] == "text"
                            and text.__class__ is str
                            and (text.isascii() or text.encode())
                        ):
                            break
                    else:
                        continue
            elif (
                role == "assistant"
                and len(message) == 3
                and (
                    content is None
                    or (content.__class__ is str and (content.isascii() or content.encode()))
                )
            ):
                ids = []
                for call in message["tool_calls"][::-1]:
                    body = call["function"]
                    text = body["arguments"]
                    call_id = call["id"]
                    if not (
                        len(call) == 3
                        and call["type"] == "function"
                        and call_id.__class__ is str
                        and 0 < len(call_id) <= longest
                        and call_id.isascii()
                        and len(body) == 2
                        and body["name"] in names
                        and text.__class__ is str
                        and loads(text).__class__ is dict
                    ):
                        break
                    ids.append(call_id)
                else:
                    if ids[0] != ids[1] if len(ids) == 2 else ids and len(set(ids)) == len(ids):
                        start = at
                        waiting = ids
                        turns[at] = None
                        continue
        except (LookupError, TypeError, AttributeError, ValueError):
            pass

        fine = plainly_fine(message)
        odd = not fine and (bool(flaws(message, at)) or not is_plain(message))
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            call_id = message.get("tool_call_id")
            if waiting and not loose:
                loose = set(waiting)
                waiting = [None]
            if not odd and call_id in loose:
                loose.discard(call_id)
                if not loose:
                    waiting = []
                continue
            # One bad answer makes the whole turn one span: none of its calls waits any longer.
            waiting = []
            loose = set()
            _add(spans, start, at + 1)
            if start != owner:
                own = ids_of(items[start])
                owner = start
            if isinstance(call_id, str) and call_id not in own:
                strays[at] = call_id
            continue
        if waiting:
            waiting = []
            loose = set()
            _add(spans, start, at)
        if fine and role == "user":
            continue
        if role == "assistant":
            start = at
            odd = odd or message.get("function_call") is not None
            if not odd and message.get("tool_calls"):
                turns[at] = None
                for call in message["tool_calls"]:
                    waiting.append(call["id"])
                    if call["type"] == "function":
                        names.add(call["function"]["name"])
                waiting.reverse()
        if odd or role == "function":
            _add(spans, at, at + 1)
    if waiting:
        _add(spans, start, len(items))
    if strays or touch:
        needed = _turns_of(strays, touch, turns, items)
        spans = _joined([*spans, *((at, block_end(items, at)) for at in needed)])
    return Scan(spans, turns)


def _add(spans: list[Span], start: int, stop: int) -> None:
    """Add a span that ends at or behind all others, and join it to those that it touches."""
    while spans and spans[-1][1] >= start:
        start = min(start, spans.pop()[0])
    spans.append((start, stop))


def _turns_of(
    strays: dict[int, str], touch: frozenset[str], turns: Iterable[int], items: list[Any]
) -> set[int]:
    """The turn of the latest call before each stray tool message that has its id, and the turns
    with a call in `touch`.
    """
    wanted = touch.union(strays.values())
    latest: dict[str, int] = {}
    needed: set[int] = set()
    strays_left = iter([*strays.items(), (len(items), "")])
    at, stray = next(strays_left)
    for turn in [*turns, len(items)]:
        while at <= turn:
            if stray in latest:
                needed.add(latest[stray])
            at, stray = next(strays_left, (len(items) + 1, ""))
        if turn < len(items):
            for call in items[turn]["tool_calls"]:
                call_id = call["id"]
                if call_id in wanted:
                    latest[call_id] = turn
                    if call_id in touch:
                        needed.add(turn)
    return needed


def _joined(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
