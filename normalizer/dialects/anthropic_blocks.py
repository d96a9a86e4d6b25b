"""The words of the Anthropic Messages format that its checker, scan and repair share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

CLIENT_ID: Final = re.compile(r"[a-zA-Z0-9_-]+\Z")
SERVER_ID: Final = re.compile(r"srvtoolu_[a-zA-Z0-9_]+\Z")
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")

ROLES: Final = frozenset({"user", "assistant", "system"})
RESPONSE_FIELDS: Final = (
    "id",
    "type",
    "model",
    "stop_reason",
    "stop_sequence",
    "stop_details",
    "usage",
    "container",
    "context_management",
)
"""Fields of a stored response that a request's message does not take (ANT-SHAPE-1)."""

THINKING: Final = frozenset({"thinking", "redacted_thinking"})
SERVER_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
RESULT_CONTENT: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})
SYSTEM_CONTENT: Final = frozenset({"text", "tool_addition", "tool_removal"})
MAX_MARKERS: Final = 4
MAX_MESSAGES: Final = 100_000


def is_hosted_result(kind: str) -> bool:
    """A result that the provider writes: web_search_tool_result, mcp_tool_result, ..."""
    return kind.endswith("_tool_result")


def models_only(kind: str) -> bool:
    """A block that only an assistant message may hold (ANT-PLACE-1)."""
    return kind == "tool_use" or kind in THINKING or kind in SERVER_CALLS or is_hosted_result(kind)


def no_result_content(kind: str) -> bool:
    """A known block that may not stand inside a tool_result (ANT-TR-2)."""
    return models_only(kind) or kind == "tool_result"


def signed(block: Mapping[str, Any]) -> bool:
    """A thinking block that can be sent again (ANT-THINK-1)."""
    if block["type"] == "thinking":
        signature = block.get("signature")
        return (
            isinstance(block.get("thinking"), str)
            and isinstance(signature, str)
            and bool(signature)
        )
    data = block.get("data")
    return isinstance(data, str) and bool(data)


def blank(text: str) -> bool:
    """True for text without any character that is not white space."""
    return not text or text.isspace()


def programmatic(block: Mapping[str, Any]) -> bool:
    """A call made by provider-run code (ANT-SRV-7)."""
    caller = block.get("caller")
    return isinstance(caller, Mapping) and caller.get("type", "direct") != "direct"


def marked(block: Mapping[str, Any]) -> bool:
    return block.get("cache_control") is not None


def markers_in_request(request: Mapping[str, Any]) -> int:
    """How many cache markers the request's own system and tools hold (ANT-CACHE-1)."""
    count = 0
    for name in ("system", "tools"):
        value = request.get(name)
        if isinstance(value, list):
            count += sum(1 for part in value if isinstance(part, Mapping) and marked(part))
    return count


def tool_names(request: Mapping[str, Any]) -> frozenset[str] | None:
    """The names of the request's tools, or None where the request has none to judge by."""
    tools = request.get("tools")
    if not isinstance(tools, list) or not tools:
        return None
    return frozenset(
        tool["name"]
        for tool in tools
        if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)
    )


def client_id(block: Mapping[str, Any], field: str) -> str:
    """The id of a call or result as a key; "" where there is none."""
    value = block.get(field)
    if value is None:
        return ""
    return value if isinstance(value, str) else str(value)
