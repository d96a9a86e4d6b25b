"""What is wrong with one item of an `openai.responses` input by itself.

Whatever needs a second item to be judged (pairs, order, ids that stand twice) is in
`openai_responses_check`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import orjson

from stopkit.normalizer.dialects.openai_responses_items import (
    BY_CALL,
    FAMILIES,
    FIELDS,
    HOSTED,
    Kind,
    kind_of,
    type_of,
)
from stopkit.normalizer.rules import RULES

Issue: TypeAlias = tuple[str, str, str]
"""A rule, a path below the item (`""`, `.content.0`, `.status`) and a message."""

MAX_ID: Final = 64
MAX_OUTPUT: Final = 10_485_760

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
_STATELESS_ID: Final = frozenset({"message", *(f.call for f in FAMILIES if f.id_optional)})
"""The types whose id says nothing under `store: false`."""

_NEEDED: Final = {
    "message": ("content",),
    "mcp_approval_request": ("id",),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "item_reference": ("id",),
}
"""Fields without which an item says nothing."""

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
_NAMESPACE: Final = re.compile(r"[a-zA-Z0-9_-]+\Z")


def is_name(value: Any) -> bool:
    """Whether a tool may have this name."""
    return isinstance(value, str) and _NAME.match(value) is not None


def is_namespace(value: str | None) -> bool:
    """Whether a tool may be in this namespace; None is the default one."""
    return value is None or _NAMESPACE.match(value) is not None


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
    if "namespace" in FIELDS[type_] and not is_namespace(item.get("namespace")):
        yield "OAI-SHAPE-1", "", f"{type_}.namespace does not match ^[a-zA-Z0-9_-]+$"
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
        yield from output_issues(item.get("output"), type_)
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


def output_issues(output: Any, type_: str) -> Iterator[Issue]:
    """What is wrong with the output of a function or custom tool."""
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
