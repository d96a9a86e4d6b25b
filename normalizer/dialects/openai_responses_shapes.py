"""The items of an `openai.responses` input, each on its own: families, fields, and what is wrong.

Whatever needs a second item to be judged (pairs, order, ids that stand twice) is in
`openai_responses`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import orjson

from stopkit.normalizer.rules import RULES

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

Issue: TypeAlias = tuple[str, str, str]
"""A rule, a path below the item (`""`, `.content.0`, `.status`) and a message."""

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

MAX_ID: Final = 64
MAX_OUTPUT: Final = 10_485_760


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
ENDED: Final = frozenset({"completed", "failed", "incomplete"})
"""The statuses of a hosted item that nobody works on any more."""

PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctc",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
}
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

_STATELESS_ID: Final = frozenset({"message", *(f.call for f in FAMILIES if f.id_optional)})
"""The types whose id says nothing under `store: false`."""

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

_NEEDED: Final = {
    "message": ("content",),
    "mcp_approval_request": ("id",),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "item_reference": ("id",),
}
"""Fields without which an item says nothing."""

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
OUTPUT_PARTS: Final = ("input_text", "input_image", "input_file")
_NOT_ASSISTANT: Final = frozenset({"input_text", "text"})
_ASSISTANT_ONLY: Final = frozenset({"output_text", "text", "refusal"})
_TEXT_FIELD: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


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


def is_name(value: Any) -> bool:
    """Whether a tool may have this name."""
    return isinstance(value, str) and _NAME.match(value) is not None


def is_object_text(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        pass
    try:  # orjson refuses NaN, huge numbers, lone surrogates and deep nesting; the model may not
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
    except RecursionError:
        bare = text.strip()
        return bare.startswith("{") and bare.endswith("}")


def short(value: object) -> str:
    """An id for a message: at most 100 characters."""
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def words(rule: str, **values: object) -> str:
    """The API's own words for a rule, filled in."""
    return RULES[rule].error.format_map({key: short(value) for key, value in values.items()})


def program_caller(item: Mapping[str, Any]) -> str | None:
    """The call_id of the program that made this call, or None."""
    caller = item.get("caller")
    if isinstance(caller, dict) and caller.get("type") == "program":
        owner = caller.get("caller_id")
        return owner if isinstance(owner, str) else ""
    return None


def inspect(item: Any, n: int, *, stateless: bool) -> tuple[Kind, list[Issue]]:
    """The kind of item `n` and everything wrong with it that no other item is needed to see.

    `stateless` is True under `store: false`.  After a GEN-SHAPE-1 of its own fields an item is
    judged no further, and its kind is `broken`.
    """
    kind = kind_of(item)
    if kind == "broken":
        return kind, [("GEN-SHAPE-1", "", _why_broken(item))]
    if kind == "unknown":
        return kind, []
    type_ = type_of(item)
    fields = FIELDS[type_]
    issues: list[Issue] = []
    for name, value in item.items():
        classes = fields.get(name)
        if classes is None:
            issues.append(("OAI-SHAPE-3", f".{name}", words("OAI-SHAPE-3", n=n, field=name)))
        elif classes and not isinstance(value, classes):
            note = f"{type_}.{name} has the wrong type: {type(value).__name__}"
            return "broken", [("GEN-SHAPE-1", "", note)]
    for name in _NEEDED.get(type_, ()):
        if name not in item:
            return "broken", [("GEN-SHAPE-1", "", f"{type_}.{name} is missing")]
    if type_ == "message":
        if kind != "assistant" and "status" in item:
            issues.append(("OAI-SHAPE-3", ".status", words("OAI-SHAPE-3", n=n, field="status")))
        issues.extend(_message_parts(item["content"], kind))
    elif type_ == "reasoning":
        for field in ("summary", "content"):
            parts = item.get(field) or ()
            for m, part in enumerate(parts):
                if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                    issues.append(("GEN-SHAPE-1", f".{field}.{m}", f"a {field} part has no type"))
    issues.extend(_ids(item, type_, n, stateless=stateless))
    issues.extend(_values(item, type_))
    return kind, issues


def _why_broken(item: Any) -> str:
    if not isinstance(item, dict):
        return f"an item is an object, not {type(item).__name__}"
    if type_of(item) == "message":
        return f"unknown role: {short(item.get('role'))}"
    return "the item has no type"


def _message_parts(content: Any, kind: Kind) -> Iterator[Issue]:
    if isinstance(content, str):
        return
    wrong = _NOT_ASSISTANT if kind == "assistant" else _ASSISTANT_ONLY
    for m, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            yield "GEN-SHAPE-1", f".content.{m}", "a content part is an object with a type"
            continue
        type_ = part["type"]
        field = _TEXT_FIELD.get(type_)
        if field is not None and not isinstance(part.get(field), str):
            yield "GEN-SHAPE-1", f".content.{m}", f"{type_}.{field} is not a string"
        elif type_ in wrong:
            allowed = (
                "'output_text' and 'refusal'"
                if kind == "assistant"
                else "'input_text', 'input_image', 'input_file'"
            )
            text = f"Invalid value: '{type_}'. Supported values are: {allowed}."
            yield "OAI-SHAPE-2", f".content.{m}", text


def _ids(item: dict[str, Any], type_: str, n: int, *, stateless: bool) -> Iterator[Issue]:
    id_ = item.get("id")
    if id_ is not None:
        prefix = PREFIXES.get(type_)
        if prefix is not None and not id_.startswith(prefix):
            yield "OAI-ID-2", "", words("OAI-ID-2", n=n, id=id_, prefix=prefix)
        if len(id_) > MAX_ID:
            yield "OAI-ID-3", "", words("OAI-ID-3", n=n).replace("].call_id'", "].id'")
        if stateless and type_ in _STATELESS_ID:
            yield "OAI-STORE-1", "", words("OAI-STORE-1", id=id_)
    if stateless and (
        type_ == "item_reference" or (type_ == "reasoning" and not item.get("encrypted_content"))
    ):
        yield "OAI-STORE-1", "", words("OAI-STORE-1", id=id_)
    call_id = item.get("call_id")
    if call_id is None:
        if type_ in BY_CALL and BY_CALL[type_].call_id_needed:
            yield "OAI-ID-3", "", f"Missing required parameter: 'input[{n}].call_id'."
        elif type_ == "local_shell_call_output":
            yield "OAI-SHELL-1", "", words("OAI-SHELL-1", id=id_)
    elif len(call_id) > MAX_ID:
        yield "OAI-ID-3", "", words("OAI-ID-3", n=n)
    elif not call_id:
        text = "empty string. Expected a string with minimum length 1"
        yield "OAI-ID-3", "", f"Invalid 'input[{n}].call_id': {text}"


def _values(item: dict[str, Any], type_: str) -> Iterator[Issue]:
    if type_ in ("function_call", "custom_tool_call"):
        if not is_name(item.get("name")):
            yield "OAI-SHAPE-1", "", f"{type_}.name does not match ^[a-zA-Z0-9_-]{{1,128}}$"
        field = "arguments" if type_ == "function_call" else "input"
        text = item.get(field)
        if not isinstance(text, str):
            yield "OAI-SHAPE-1", "", f"{type_}.{field} is not a string"
        elif field == "arguments" and not is_object_text(text):
            yield "OAI-SHAPE-4", "", "function_call.arguments is no JSON object"
    elif type_ in ("function_call_output", "custom_tool_call_output"):
        yield from _output(item.get("output"), type_)
    elif type_ == "reasoning":
        content = item.get("encrypted_content")
        if content is not None and (not isinstance(content, str) or not content):
            yield "OAI-REAS-3", "", words("OAI-REAS-3", id=item.get("id"))
    elif type_ == "compaction":
        content = item.get("encrypted_content")
        if not isinstance(content, str) or not content:
            yield "OAI-COMP-1", "", "a compaction item needs its encrypted_content"
    elif type_ in HOSTED:
        status = item.get("status")
        if status is not None and status not in ENDED:
            yield "OAI-HOST-1", "", f"{type_} has not ended: status '{short(status)}'"
    elif type_ in _STATUSES:
        rule, allowed = _STATUSES[type_]
        status = item.get("status")
        if status not in allowed:
            text = f"{type_}.status is {' or '.join(allowed)}, not '{short(status)}'"
            yield rule, "", text


_STATUSES: Final = {
    "apply_patch_call": ("OAI-PATCH-1", ("in_progress", "completed")),
    "apply_patch_call_output": ("OAI-PATCH-1", ("completed", "failed")),
    "program_output": ("OAI-PROG-1", ("completed", "incomplete")),
}


def _output(output: Any, type_: str) -> Iterator[Issue]:
    if isinstance(output, str):
        if len(output) > MAX_OUTPUT:
            yield "OAI-SHAPE-1", "", f"{type_}.output is longer than {MAX_OUTPUT} characters"
    elif not isinstance(output, list):
        yield "OAI-SHAPE-1", "", f"{type_}.output is neither a string nor a list"
    else:
        for m, part in enumerate(output):
            if not isinstance(part, dict) or part.get("type") not in OUTPUT_PARTS:
                yield "OAI-SHAPE-1", "", f"{type_}.output.{m} is none of {', '.join(OUTPUT_PARTS)}"
                return
            if part["type"] == "input_text" and not isinstance(part.get("text"), str):
                yield "GEN-SHAPE-1", f".output.{m}", "input_text.text is not a string"
