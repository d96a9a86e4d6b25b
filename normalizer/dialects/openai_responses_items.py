"""The items of an `openai.responses` input: call families, kinds, and the fields of each type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "user",
    "system",
    "assistant",
    "reasoning",
    "call",
    "output",
    "program",
    "program_output",
    "hosted",
    "hosted_output",
    "approval_request",
    "approval_response",
    "compaction",
    "trigger",
    "reference",
    "setting",
    "unknown",
    "broken",
]
"""What an item is to its neighbours.

`call` and `output` are the client's business, `hosted` and `hosted_output` the provider's own
(tool search with `execution: "server"` included).  `system` covers developer messages, `setting`
items that change the request from here on.  A `broken` item takes part in nothing.
"""

MODEL_MADE: Final = frozenset(
    {
        "assistant",
        "reasoning",
        "call",
        "program",
        "program_output",
        "hosted",
        "hosted_output",
        "approval_request",
    }
)
"""Kinds that a model turn is made of."""

CLIENT_MADE: Final = frozenset({"user", "system", "output", "approval_response"})
"""Kinds that end a model turn."""

LEADS_TO: Final = frozenset({"assistant", "call", "program", "hosted", "approval_request"})
"""Kinds that reasoning leads to."""


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of call that the client runs, and the item that answers it."""

    call: str
    output: str
    words: str
    """What the API calls it when its output is missing."""
    id_optional: bool = True
    call_id_needed: bool = True


FAMILIES: Final = (
    Family("function_call", "function_call_output", "function call"),
    Family("custom_tool_call", "custom_tool_call_output", "custom tool call"),
    Family("local_shell_call", "local_shell_call_output", "local shell call", id_optional=False),
    Family("shell_call", "shell_call_output", "shell call"),
    Family("apply_patch_call", "apply_patch_call_output", "apply patch call"),
    Family("computer_call", "computer_call_output", "computer call", id_optional=False),
    Family("tool_search_call", "tool_search_output", "tool search call", call_id_needed=False),
)
PROGRAM: Final = Family("program", "program_output", "program", id_optional=False)
"""Run by the provider, paired like a call."""

BY_CALL: Final[dict[str, Family]] = {f.call: f for f in (*FAMILIES, PROGRAM)}
BY_OUTPUT: Final[dict[str, Family]] = {f.output: f for f in (*FAMILIES, PROGRAM)}

HOSTED: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
    }
)
ID_OPTIONAL: Final = frozenset(
    {
        "message",
        *(f.call for f in FAMILIES if f.id_optional),
        *(f.output for f in FAMILIES),
        "compaction",
        "compaction_trigger",
        "additional_tools",
        "configuration_update",
        "mcp_approval_response",
    }
)
"""The types whose id may be left out."""

_STR: Final = (str,)
_STR_OR_NONE: Final = (str, type(None))
_LIST: Final = (list,)
_LIST_OR_NONE: Final = (list, type(None))
_DICT: Final = (dict,)
_DICT_OR_NONE: Final = (dict, type(None))
_BOOL: Final = (bool,)
_BOOL_OR_NONE: Final = (bool, type(None))
_INT_OR_NONE: Final = (int, type(None))
_ANY: Final[tuple[type, ...]] = ()
"""Anything: the field has no type of its own, or a rule of its own judges it."""

_CALLED: Final[dict[str, tuple[type, ...]]] = {
    "id": _STR_OR_NONE,
    "call_id": _STR_OR_NONE,
    "status": _STR_OR_NONE,
}

_FIELDS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "message": {
        "type": _STR_OR_NONE,
        "id": _STR_OR_NONE,
        "role": _STR,
        "content": (str, list),
        "status": _STR_OR_NONE,
        "phase": _STR_OR_NONE,
    },
    "reasoning": {
        "id": _STR_OR_NONE,
        "summary": _LIST,
        "content": _LIST_OR_NONE,
        "encrypted_content": _ANY,
        "status": _STR_OR_NONE,
    },
    "function_call": {
        **_CALLED,
        "name": _ANY,
        "arguments": _ANY,
        "namespace": _STR_OR_NONE,
        "caller": _DICT_OR_NONE,
        "async": _BOOL_OR_NONE,
    },
    "function_call_output": {
        **_CALLED,
        "output": _ANY,
        "name": _STR_OR_NONE,
        "namespace": _STR_OR_NONE,
        "caller": _DICT_OR_NONE,
    },
    "custom_tool_call": {
        **_CALLED,
        "name": _ANY,
        "input": _ANY,
        "namespace": _STR_OR_NONE,
        "caller": _DICT_OR_NONE,
        "async": _BOOL_OR_NONE,
    },
    "custom_tool_call_output": {**_CALLED, "output": _ANY, "caller": _DICT_OR_NONE},
    "local_shell_call": {**_CALLED, "action": _DICT},
    "local_shell_call_output": {**_CALLED, "output": _STR},
    "shell_call": {
        **_CALLED,
        "action": _DICT,
        "environment": _DICT_OR_NONE,
        "caller": _DICT_OR_NONE,
    },
    "shell_call_output": {
        **_CALLED,
        "output": _LIST,
        "max_output_length": _INT_OR_NONE,
        "caller": _DICT_OR_NONE,
    },
    "apply_patch_call": {
        **_CALLED,
        "operation": _DICT,
        "caller": _DICT_OR_NONE,
    },
    "apply_patch_call_output": {
        **_CALLED,
        "output": _STR_OR_NONE,
        "caller": _DICT_OR_NONE,
    },
    "computer_call": {
        **_CALLED,
        "action": _DICT_OR_NONE,
        "actions": _LIST_OR_NONE,
        "pending_safety_checks": _LIST_OR_NONE,
    },
    "computer_call_output": {
        **_CALLED,
        "output": _DICT,
        "acknowledged_safety_checks": _LIST_OR_NONE,
    },
    "tool_search_call": {**_CALLED, "arguments": _ANY, "execution": _STR_OR_NONE},
    "tool_search_output": {**_CALLED, "tools": _LIST, "execution": _STR_OR_NONE},
    "program": {
        "id": _STR_OR_NONE,
        "call_id": _STR_OR_NONE,
        "code": _STR,
        "fingerprint": _STR,
    },
    "program_output": {**_CALLED, "result": _STR},
    "web_search_call": {
        "id": _STR_OR_NONE,
        "status": _STR_OR_NONE,
        "action": _DICT_OR_NONE,
    },
    "file_search_call": {
        "id": _STR_OR_NONE,
        "status": _STR_OR_NONE,
        "queries": _LIST,
        "results": _LIST_OR_NONE,
    },
    "code_interpreter_call": {
        "id": _STR_OR_NONE,
        "status": _STR_OR_NONE,
        "code": _STR_OR_NONE,
        "container_id": _STR_OR_NONE,
        "outputs": _LIST_OR_NONE,
    },
    "image_generation_call": {
        "id": _STR_OR_NONE,
        "status": _STR_OR_NONE,
        "result": _STR_OR_NONE,
        "action": _STR_OR_NONE,
        "background": _STR_OR_NONE,
        "error": _DICT_OR_NONE,
        "output_format": _STR_OR_NONE,
        "quality": _STR_OR_NONE,
        "revised_prompt": _STR_OR_NONE,
        "size": _STR_OR_NONE,
        "svg_usage": _DICT_OR_NONE,
    },
    "mcp_list_tools": {
        "id": _STR_OR_NONE,
        "server_label": _STR_OR_NONE,
        "tools": _LIST,
        "error": _ANY,
    },
    "mcp_call": {
        "id": _STR_OR_NONE,
        "status": _STR_OR_NONE,
        "server_label": _STR_OR_NONE,
        "name": _STR_OR_NONE,
        "arguments": _STR_OR_NONE,
        "output": _STR_OR_NONE,
        "error": _ANY,
        "approval_request_id": _STR_OR_NONE,
    },
    "mcp_approval_request": {
        "id": _STR,
        "server_label": _STR_OR_NONE,
        "name": _STR_OR_NONE,
        "arguments": _STR_OR_NONE,
    },
    "mcp_approval_response": {
        "id": _STR_OR_NONE,
        "approval_request_id": _STR,
        "approve": _BOOL,
        "reason": _STR_OR_NONE,
    },
    "compaction": {"id": _STR_OR_NONE, "encrypted_content": _ANY},
    "compaction_trigger": {"id": _STR_OR_NONE},
    "item_reference": {"type": _STR_OR_NONE, "id": _STR},
    "additional_tools": {"id": _STR_OR_NONE, "role": _STR_OR_NONE, "tools": _LIST},
    "configuration_update": {
        "id": _STR_OR_NONE,
        "reasoning": _DICT_OR_NONE,
        "text": _DICT_OR_NONE,
    },
}
FIELDS: Final = {kind: {"type": _STR, **fields} for kind, fields in _FIELDS.items()}
"""The fields of every known item and their classes, from the SDK's types.

Both the request's types and those of a stored response count, because what a response gave is
sent back as it is; `created_by` is the exception that no request takes.  A field may be absent
where no rule asks for it.
"""

_KINDS: Final[dict[str, Kind]] = {
    "reasoning": "reasoning",
    "program": "program",
    "program_output": "program_output",
    **dict.fromkeys(HOSTED, "hosted"),
    "mcp_list_tools": "hosted",
    "mcp_approval_request": "approval_request",
    "mcp_approval_response": "approval_response",
    "compaction": "compaction",
    "compaction_trigger": "trigger",
    "item_reference": "reference",
    "additional_tools": "setting",
    "configuration_update": "setting",
    **dict.fromkeys((f.call for f in FAMILIES), "call"),
    **dict.fromkeys((f.output for f in FAMILIES), "output"),
}
_ROLES: Final[dict[str, Kind]] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}


def type_of(item: Any) -> str:
    """The item's type, with the two that may leave it out: a message and an item reference."""
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else ""
    return kind if isinstance(kind, str) else ""


def kind_of(item: Any) -> Kind:
    """What the item is to its neighbours."""
    kind = type_of(item)
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, "broken") if isinstance(role, str) else "broken"
    if kind.startswith("tool_search_") and item.get("execution") == "server":
        return "hosted" if kind == "tool_search_call" else "hosted_output"
    return _KINDS.get(kind, "unknown") if kind else "broken"


def program_caller(item: Mapping[str, Any]) -> str | None:
    """The call_id of the program that made this call, or None."""
    caller = item.get("caller")
    if isinstance(caller, dict) and caller.get("type") == "program":
        owner = caller.get("caller_id")
        return owner if isinstance(owner, str) else ""
    return None
