"""`violations`: what the Chat Completions API would refuse, exactly, rule by rule.

A call's answers are the block of tool messages right behind its assistant message; ids bind only
there, so that one id may serve again in a later turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stopkit.normalizer.dialects.openai_chat_shapes import (
    Flaw,
    Item,
    Scope,
    block_end,
    flaw,
    flaws,
    ids_of,
    in_order,
    shown,
    twice,
)
from stopkit.normalizer.result import Violation
from stopkit.normalizer.rules import RULES


def violations(items: Sequence[Any], request: Mapping[str, Any]) -> list[Violation]:
    """Everything this API would refuse in `items`, by position and then by rule.

    No rule of this API depends on the rest of the request.
    """
    found: list[Flaw] = []
    previous: Any = None
    calls: set[str] = set()
    answered: set[str] = set()
    in_block = False
    for at, message in enumerate(items):
        found += flaws(message, at)
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            found += _tool_flaws(message, at, calls, answered, in_block)
        elif role == "assistant":
            in_block = True
            answered = set()
            calls = ids_of(message)
            found += _open_calls(items, at, message)
            found += _open_function(items, at, message)
        else:
            in_block = False
            if role == "function" and not _answers(previous, message):
                text = "messages with role 'function' must follow an assistant message with a "
                found.append(flaw("CHAT-FN-1", at, text + "'function_call' of the same name."))
        previous = message
    return in_order(found)


def _tool_flaws(
    message: Item, at: int, calls: set[str], answered: set[str], in_block: bool
) -> list[Flaw]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str | None):
        return []
    if call_id is None or call_id not in calls:
        return [flaw("CHAT-PAIR-2", at, RULES["CHAT-PAIR-2"].error)]
    if not in_block:
        text = f"The tool message for {shown(call_id)} stands behind another message."
        return [flaw("CHAT-ORD-1", at, text)]
    if call_id in answered:
        return [flaw("CHAT-ID-1", at, twice(call_id, at))]
    answered.add(call_id)
    return []


def _open_calls(items: Sequence[Any], at: int, message: Item) -> list[Flaw]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return []
    block = block_end(items, at)
    answers = {
        answer["tool_call_id"]
        for answer in items[at + 1 : block]
        if isinstance(answer.get("tool_call_id"), str)
    }
    found: list[Flaw] = []
    for j, call in enumerate(calls):
        if not isinstance(call, dict) or not isinstance(call.get("id"), str | None):
            continue
        call_id = call.get("id") or ""
        if call_id not in answers:
            text = RULES["CHAT-PAIR-1"].error.format(id=shown(call_id))
            scope: Scope = "send" if block == len(items) else "prefix"
            found.append(flaw("CHAT-PAIR-1", at, text, (1, j), scope))
    return found


def _open_function(items: Sequence[Any], at: int, message: Item) -> list[Flaw]:
    if not isinstance(message.get("function_call"), dict) or message.get("tool_calls"):
        return []
    if at + 1 < len(items) and _answers(message, items[at + 1]):
        return []
    text = "An assistant message with 'function_call' must be followed by a function message of "
    scope: Scope = "send" if at + 1 == len(items) else "prefix"
    return [flaw("CHAT-FN-1", at, text + "the same name.", (), scope)]


def _answers(message: Any, answer: Any) -> bool:
    """Whether `answer` is the function message that the legacy call of `message` waits for."""
    if not isinstance(message, dict) or not isinstance(answer, dict):
        return False
    call = message.get("function_call")
    return (
        message.get("role") == "assistant"
        and answer.get("role") == "function"
        and isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and answer.get("name") == call["name"]
    )
