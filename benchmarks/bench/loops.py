"""Hand loops over plain dicts: how fast CPython can look at a history's pairing, and mend it.

They know client calls and their results and nothing else: no other rule, no account of what they
did, no words about what is known.  They are the floor that the normalizer is measured against, so
they are written for speed: they expect a turn's results in one place, and known shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bench.generate import Api, Item

_MISSING: Final = "No result was recorded for this call."


def check_anthropic(messages: list[Item]) -> bool:
    """Each assistant message's calls are answered, in any order, by the next message."""
    wanted: list[str] | None = None
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            if wanted is not None:
                return False
            if content.__class__ is list:
                for block in content:
                    if block["type"] == "tool_use":
                        if wanted is None:
                            wanted = [block["id"]]
                        else:
                            wanted.append(block["id"])
        elif content.__class__ is list:
            given: list[str] | None = None
            for block in content:
                if block["type"] == "tool_result":
                    if given is None:
                        given = [block["tool_use_id"]]
                    else:
                        given.append(block["tool_use_id"])
            if given != wanted and sorted(given or ()) != sorted(wanted or ()):
                return False
            wanted = None
        elif wanted is not None:
            return False
    return wanted is None


def check_chat(messages: list[Item]) -> bool:
    """Each assistant message's calls are answered by the tool messages right behind it."""
    wanted: list[str] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            try:
                wanted.remove(message["tool_call_id"])
            except ValueError:
                return False
        elif wanted:
            return False
        elif role == "assistant" and "tool_calls" in message:
            for call in message["tool_calls"]:
                wanted.append(call["id"])  # noqa: PERF401  (a comprehension is a call in 3.11)
    return not wanted


def check_responses(items: list[Item]) -> bool:
    """Each function call has one output, behind it."""
    wanted: set[str] = set()
    for item in items:
        kind = item.get("type")
        if kind == "function_call":
            call_id = item["call_id"]
            if call_id in wanted:
                return False
            wanted.add(call_id)
        elif kind == "function_call_output":
            try:
                wanted.remove(item["call_id"])
            except KeyError:
                return False
    return not wanted


def pair_anthropic(messages: list[Item]) -> list[Item]:
    """One result for each call, in the next message, ahead of everything else; no other results."""
    out: list[Item] = []
    keep = out.append
    count = len(messages)
    changed = False
    at = 0
    while at < count:
        message = messages[at]
        content = message["content"]
        at += 1
        if content.__class__ is not list:
            keep(message)
            continue
        if message["role"] != "assistant":
            for block in content:
                if block["type"] == "tool_result":
                    changed = True
                    rest = [b for b in content if b["type"] != "tool_result"]
                    if rest:
                        keep({**message, "content": rest})
                    break
            else:
                keep(message)
            continue
        keep(message)
        wanted: list[str] | None = None
        for block in content:
            if block["type"] == "tool_use":
                if wanted is None:
                    wanted = [block["id"]]
                else:
                    wanted.append(block["id"])
        if wanted is None:
            continue
        if at < count:
            following = messages[at]
            answer = following["content"]
            if following["role"] != "assistant" and answer.__class__ is list:
                given: list[str] | None = None
                plain = False
                for block in answer:
                    if block["type"] != "tool_result":
                        plain = True
                    elif plain:
                        given = None
                        break
                    elif given is None:
                        given = [block["tool_use_id"]]
                    else:
                        given.append(block["tool_use_id"])
                if given == wanted:
                    keep(following)
                    at += 1
                    continue
        changed = True
        found: dict[str, Item] = {}
        others: list[Any] = []
        while at < count and messages[at]["role"] != "assistant":
            answer = messages[at]["content"]
            at += 1
            if answer.__class__ is not list:
                others.append({"type": "text", "text": answer})
                continue
            for block in answer:
                if block["type"] != "tool_result":
                    others.append(block)
                else:
                    found.setdefault(block["tool_use_id"], block)
        results = [
            found.get(call_id)
            or {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": _MISSING,
                "is_error": True,
            }
            for call_id in wanted
        ]
        keep({"role": "user", "content": results + others})
    return out if changed else messages


def pair_chat(messages: list[Item]) -> list[Item]:
    """One tool message for each call, right behind its assistant message; no other ones."""
    out: list[Item] = []
    keep = out.append
    count = len(messages)
    changed = False
    at = 0
    while at < count:
        message = messages[at]
        at += 1
        role = message["role"]
        if role == "tool":
            changed = True
            continue
        keep(message)
        if role != "assistant" or "tool_calls" not in message:
            continue
        wanted: list[str] = []
        for call in message["tool_calls"]:
            wanted.append(call["id"])  # noqa: PERF401  (a comprehension is a call in 3.11)
        end = at
        for call_id in wanted:
            if (
                end == count
                or messages[end]["role"] != "tool"
                or messages[end]["tool_call_id"] != call_id
            ):
                break
            end += 1
        else:
            if end == count or messages[end]["role"] != "tool":
                out += messages[at:end]
                at = end
                continue
        changed = True
        found: dict[str, Item] = {}
        others: list[Item] = []
        while at < count and (role := messages[at]["role"]) != "assistant":
            if role == "tool":
                found.setdefault(messages[at]["tool_call_id"], messages[at])
            else:
                others.append(messages[at])
            at += 1
        for call_id in wanted:
            keep(
                found.get(call_id) or {"role": "tool", "tool_call_id": call_id, "content": _MISSING}
            )
        out += others
    return out if changed else messages


def pair_responses(items: list[Item]) -> list[Item]:
    """One output for each call, behind it; no other outputs."""
    outputs: dict[str, Item] = {}
    for item in items:
        if item.get("type") == "function_call_output":
            outputs.setdefault(item["call_id"], item)
    out: list[Item] = []
    keep = out.append
    waiting: set[str] = set()
    changed = False
    for item in items:
        kind = item.get("type")
        if kind == "function_call":
            keep(item)
            call_id = item["call_id"]
            if call_id in outputs:
                waiting.add(call_id)
            else:
                changed = True
                keep({"type": "function_call_output", "call_id": call_id, "output": _MISSING})
        elif kind == "function_call_output":
            try:
                waiting.remove(item["call_id"])
            except KeyError:
                changed = True
            else:
                keep(item)
        else:
            keep(item)
    return out if changed else items


CHECK: Final[dict[Api, Callable[[list[Item]], bool]]] = {
    "anthropic.messages": check_anthropic,
    "openai.chat": check_chat,
    "openai.responses": check_responses,
}
PAIR: Final[dict[Api, Callable[[list[Item]], list[Item]]]] = {
    "anthropic.messages": pair_anthropic,
    "openai.chat": pair_chat,
    "openai.responses": pair_responses,
}
