"""The calls that a client answers, and their results, read off a history of any API.

Families are told apart: a `shell_call` is not answered by a `function_call_output`.  A request for
approval counts as a call, and the decision as its result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stopkit import Api

APIS: tuple[Api, ...] = ("anthropic.messages", "openai.responses", "openai.chat")

Key = tuple[str, str]
"""(family, call id); for a legacy function call of Chat, its name."""

_FAMILY_OF_OUTPUT = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "shell_call_output": "shell_call",
    "local_shell_call_output": "local_shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "computer_call_output": "computer_call",
    "tool_search_output": "tool_search_call",
}


def calls(api: Api, items: Sequence[Any]) -> list[Key]:
    """Every call that the client answers, in order."""
    return [key for is_call, key in _read(api, items) if is_call]


def results(api: Api, items: Sequence[Any]) -> list[Key]:
    """Every result, in order, by the call it names."""
    return [key for is_call, key in _read(api, items) if not is_call]


def call_ids(api: Api, items: Sequence[Any]) -> list[str]:
    """The ids of `calls`; a legacy call of Chat has none."""
    return [call_id for family, call_id in calls(api, items) if family != "legacy"]


def unanswered(api: Api, items: Sequence[Any]) -> list[Key]:
    """The calls without a result, sorted."""
    return sorted((Counter(calls(api, items)) - Counter(results(api, items))).elements())


def without_results(api: Api, items: list[Any]) -> list[Any]:
    """The history as it was before any call had its result."""
    if api != "anthropic.messages":
        return [item for item in items if not results(api, [item])]
    kept: list[Any] = []
    for message in items:
        content = message["content"]
        if isinstance(content, list):
            content = [block for block in content if block["type"] != "tool_result"]
        if content:
            kept.append({**message, "content": content})
    return kept


def strings_of(value: object) -> Iterator[str]:
    """Every string in a JSON value, and in the JSON that strings hold."""
    match value:
        case str():
            yield value
            if value[:1] in ("{", "["):
                try:
                    yield from strings_of(json.loads(value))
                except ValueError:
                    pass
        case dict():
            for key, inner in value.items():
                yield key
                yield from strings_of(inner)
        case list() | tuple():
            for inner in value:
                yield from strings_of(inner)
        case _:
            pass


def _read(api: Api, items: Sequence[Any]) -> Iterator[tuple[bool, Key]]:
    read = {
        "anthropic.messages": _anthropic,
        "openai.responses": _responses,
        "openai.chat": _chat,
    }[api]
    for item in items:
        yield from read(item)


def _anthropic(message: Mapping[str, Any]) -> Iterator[tuple[bool, Key]]:
    content = message["content"]
    for block in content if isinstance(content, list) else []:
        if block["type"] == "tool_use" and message["role"] == "assistant":
            yield True, ("tool", block["id"])
        elif block["type"] == "tool_result":
            yield False, ("tool", block["tool_use_id"])


def _responses(item: Mapping[str, Any]) -> Iterator[tuple[bool, Key]]:
    kind = str(item.get("type"))
    if kind.startswith("tool_search") and item.get("execution") == "server":
        return
    if kind == "mcp_approval_request":
        yield True, ("approval", str(item["id"]))
    elif kind == "mcp_approval_response":
        yield False, ("approval", str(item["approval_request_id"]))
    elif kind in _FAMILY_OF_OUTPUT.values():
        yield True, (kind, str(item.get("call_id")))
    elif kind in _FAMILY_OF_OUTPUT:
        call_id = item.get("call_id")
        if call_id is None and kind == "local_shell_call_output":
            call_id = item.get("id")
        yield False, (_FAMILY_OF_OUTPUT[kind], str(call_id))


def _chat(message: Mapping[str, Any]) -> Iterator[tuple[bool, Key]]:
    for call in message.get("tool_calls") or ():
        yield True, ("tool", str(call["id"]))
    if message.get("function_call"):
        yield True, ("legacy", message["function_call"]["name"])
    if message["role"] == "tool":
        yield False, ("tool", str(message.get("tool_call_id")))
    elif message["role"] == "function":
        yield False, ("legacy", message["name"])
