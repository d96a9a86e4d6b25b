"""A second checker, written from the table of rules alone, to hold `check` against.

It shares no code with the package, looks at everything again for each rule, and is slow on
purpose.  Where the table leaves a choice, the docstring of the function says what was chosen.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = tuple[str, str, str]
"""(rule, path, scope)"""
Block = dict[str, Any]
Request = Mapping[str, Any]


class _Found:
    """Entries by rule and path; a `prefix` entry beats a `send` one at the same place."""

    def __init__(self) -> None:
        self.scopes: dict[tuple[str, str], str] = {}

    def add(self, rule: str, path: str, scope: str = "prefix") -> None:
        if self.scopes.get((rule, path)) != "prefix":
            self.scopes[rule, path] = scope

    def entries(self) -> list[Entry]:
        return sorted((rule, path, scope) for (rule, path), scope in self.scopes.items())


def violations(api: str, items: Sequence[Any], request: Request | None = None) -> list[Entry]:
    """Every rule of scope prefix or send that `items` breaks, sorted."""
    found = _Found()
    root = "input" if api == "openai.responses" else "messages"
    for index, item in enumerate(items):
        _unsound(item, f"{root}.{index}", 1, found)
    judge = {
        "anthropic.messages": _anthropic,
        "openai.responses": _responses,
        "openai.chat": _chat,
    }[api]
    judge(items, request or {}, found)
    return found.entries()


def valid(api: str, items: Sequence[Any], request: Request | None = None) -> bool:
    return all(scope != "prefix" for _, _, scope in violations(api, items, request))


def sendable(api: str, items: Sequence[Any], request: Request | None = None) -> bool:
    if violations(api, items, request):
        return False
    if api != "anthropic.messages":
        return True
    if not items:
        return False
    if items[-1]["role"] != "assistant" or _version((request or {}).get("model")) is not None:
        return True
    *_, last = _turns(_messages(items, _Found()))
    return any(_server_calls(last, []))


# --- any API -------------------------------------------------------------------------------------


def _unsound(value: Any, path: str, level: int, found: _Found) -> None:
    """GEN-JSON-1. The message or item itself is level 1; a bad key is told at its value's path."""
    match value:
        case None | bool() | int():
            pass
        case float():
            if not math.isfinite(value):
                found.add("GEN-JSON-1", path)
        case str():
            if _has_surrogate(value):
                found.add("GEN-JSON-1", path)
        case list() | dict() if level > 255:
            found.add("GEN-JSON-1", path)
        case list():
            for index, part in enumerate(value):
                _unsound(part, f"{path}.{index}", level + 1, found)
        case dict():
            for key, part in value.items():
                if not isinstance(key, str) or _has_surrogate(key):
                    found.add("GEN-JSON-1", f"{path}.{key}")
                _unsound(part, f"{path}.{key}", level + 1, found)
        case _:
            found.add("GEN-JSON-1", path)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def _matches(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _blocks(content: Any, path: str, found: _Found) -> list[tuple[str, Block]]:
    """The blocks of a list content by path; what is no block is told and stands as an empty one."""
    if not isinstance(content, list):
        return []
    blocks: list[tuple[str, Block]] = []
    for index, block in enumerate(content):
        at = f"{path}.content.{index}"
        if isinstance(block, dict) and isinstance(block.get("type"), str):
            blocks.append((at, block))
        else:
            found.add("GEN-SHAPE-1", at)
            blocks.append((at, {"type": ""}))
    return blocks


# --- Anthropic Messages --------------------------------------------------------------------------

_THINKING = ("thinking", "redacted_thinking")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_ID = r"[a-zA-Z0-9_-]+"
_STORED_FIELDS = (
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


@dataclass(frozen=True)
class _Message:
    path: str
    role: str
    content: Any
    blocks: list[tuple[str, Block]]
    directive: bool = False
    """A system message that carries an output_config instead of content."""


@dataclass(frozen=True)
class _Turn:
    """A run of assistant messages and what stands behind it, up to the next run.

    The first turn of a history has no assistant messages: it is what stands before any.
    """

    model: list[_Message]
    reply: list[_Message]

    @property
    def blocks(self) -> list[tuple[str, Block]]:
        """The model's, by path."""
        return [block for message in self.model for block in message.blocks]

    @property
    def calls(self) -> list[tuple[str, Block]]:
        return [(path, block) for path, block in self.blocks if block["type"] == "tool_use"]

    @property
    def said(self) -> list[str]:
        """The paths in the user's messages of the reply that hold anything but results."""
        paths: list[str] = []
        for message in self.reply:
            if message.role == "user":
                if isinstance(message.content, str):
                    paths.append(message.path)
                paths += [path for path, block in message.blocks if block["type"] != "tool_result"]
        return paths


def _is_hosted_result(block: Block) -> bool:
    return str(block["type"]).endswith("_tool_result")


def _messages(items: Sequence[Any], found: _Found) -> list[_Message]:
    messages: list[_Message] = []
    for index, item in enumerate(items):
        path = f"messages.{index}"
        if (
            not isinstance(item, dict)
            or item.get("role") not in ("user", "assistant", "system")
            or not isinstance(item.get("content"), str | list | None)
        ):
            found.add("GEN-SHAPE-1", path)
            messages.append(_Message(path, "", None, []))
            continue
        content = item.get("content")
        directive = item["role"] == "system" and content == [] and "output_config" in item
        blocks = _blocks(content, path, found)
        messages.append(_Message(path, item["role"], content, blocks, directive))
    return messages


def _turns(messages: list[_Message]) -> list[_Turn]:
    turns = [_Turn([], [])]
    for message in messages:
        if message.role != "assistant":
            turns[-1].reply.append(message)
        elif turns[-1].model and not turns[-1].reply:
            turns[-1].model.append(message)
        else:
            turns.append(_Turn([message], []))
    return turns


def _anthropic(items: Sequence[Any], request: Request, found: _Found) -> None:
    messages = _messages(items, found)
    turns = _turns(messages)
    for message, item in zip(messages, items, strict=True):
        _ant_message(message, item, found)
        for path, block in message.blocks:
            _ant_block(path, block, message.role, request, found)
        _ant_fallback(message, found)
    for number, turn in enumerate(turns):
        later = turns[number + 1 :]
        _ant_results(turn, later[0] if later else None, found)
        _ant_call_ids(turn, found)
        _ant_server(turn, later, found)
    _ant_hosted_results(messages, found)
    _ant_system(messages, request, found)
    _ant_cache(messages, request, found)
    _ant_end(messages, turns, request, found)


def _ant_message(message: _Message, item: Any, found: _Found) -> None:
    """ANT-SHAPE-1, ANT-EMPTY-2, ANT-EMPTY-3 of a whole message, ANT-ROLE-1.

    A system message without content is ANT-SYS-1, in the API's words for it.
    """
    if message.role == "":
        return
    for name in _STORED_FIELDS:
        if name in item:
            found.add("ANT-SHAPE-1", f"{message.path}.{name}")
    if message.path == "messages.0" and message.role == "assistant":
        found.add("ANT-ROLE-1", message.path)
    if not message.content:
        if message.role != "system":
            found.add("ANT-EMPTY-3", message.path)
    elif isinstance(message.content, str) and not message.content.strip():
        found.add("ANT-EMPTY-2", message.path)


def _ant_block(path: str, block: Block, role: str, request: Request, found: _Found) -> None:
    """The rules of one block by itself.  A misplaced block is judged for its place only."""
    kind = block["type"]
    if role == "user" and (
        kind in ("tool_use", *_THINKING, *_SERVER_CALLS) or _is_hosted_result(block)
    ):
        found.add("ANT-PLACE-1", path)
        return
    match kind:
        case "text":
            _ant_text(path, block, found)
        case "thinking":
            signed = isinstance(block.get("signature"), str) and block["signature"] != ""
            if not signed or not isinstance(block.get("thinking"), str):
                found.add("ANT-THINK-1", path)
        case "redacted_thinking":
            if not isinstance(block.get("data"), str) or block["data"] == "":
                found.add("ANT-THINK-1", path)
        case "tool_use":
            if not _matches(_ID, block.get("id")):
                found.add("ANT-ID-1", path)
            if not isinstance(block.get("input"), dict):
                found.add("ANT-ID-3", path)
            if not _matches(r"[a-zA-Z0-9_-]{1,128}", block.get("name")):
                found.add("ANT-NAME-1", path)
        case "server_tool_use":
            if not _matches(r"srvtoolu_[a-zA-Z0-9_]+", block.get("id")):
                found.add("ANT-ID-4", path)
        case "mcp_tool_use":
            if not block.get("server_name"):
                found.add("ANT-ID-5", path)
        case "compaction":
            if block.get("content") == "":
                found.add("ANT-COMPACT-1", path)
        case "tool_result":
            _ant_result(path, block, request, found)
        case "tool_addition" | "tool_removal":
            tool = block.get("tool")
            known = _tool_names(request)
            reference = tool if isinstance(tool, dict) else {}
            by_name = reference.get("type") == "tool_reference"
            if known and by_name and reference.get("name") not in known:
                found.add("ANT-SYS-2", path)
        case _:
            pass


def _ant_text(path: str, block: Block, found: _Found) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        found.add("GEN-SHAPE-1", path)
    elif text == "":
        found.add("ANT-EMPTY-1", path)
    elif not text.strip():
        found.add("ANT-EMPTY-2", path)


def _tool_names(request: Request) -> list[Any]:
    """The names of the request's tools; none where it has no tools or an empty list of them."""
    return [tool.get("name") for tool in request.get("tools") or []]


def _is_blank(block: Block) -> bool:
    return block["type"] == "text" and not str(block.get("text") or "").strip()


def _ant_result(path: str, block: Block, request: Request, found: _Found) -> None:
    """A tool_result by itself.  String content may be blank: the rules speak of text blocks."""
    if not _matches(_ID, block.get("tool_use_id")):
        found.add("ANT-ID-1", path)
    content = block.get("content")
    if not isinstance(content, str | list | None):
        found.add("GEN-SHAPE-1", path)
    inner = _blocks(content, path, found)
    has_parts = "content" in block and not isinstance(content, str)
    if has_parts and all(_is_blank(part) for _, part in inner):
        found.add("ANT-TR-3", path)
    known = _tool_names(request)
    for at, part in inner:
        kind = part["type"]
        if kind == "":
            continue
        if kind == "text":
            _ant_text(at, part, found)
        elif block.get("is_error") is True:
            found.add("ANT-TR-1", at)
        if kind in ("tool_use", "tool_result", *_THINKING, *_SERVER_CALLS):
            found.add("ANT-TR-2", at)
        if _is_hosted_result(part):
            found.add("ANT-TR-2", at)
        if kind == "tool_reference" and known and part.get("tool_name") not in known:
            found.add("ANT-SRV-8", at)


def _ant_fallback(message: _Message, found: _Found) -> None:
    """ANT-THINK-7."""
    kinds = [block["type"] for _, block in message.blocks]
    if message.role != "assistant" or "fallback" not in kinds:
        return
    last = len(kinds) - 1 - kinds[::-1].index("fallback")
    for path, block in message.blocks[:last]:
        if block["type"] in (*_THINKING, "tool_use"):
            found.add("ANT-THINK-7", path)


def _ant_results(turn: _Turn, after: _Turn | None, found: _Found) -> None:
    """ANT-PAIR-1, 3, 4, 5, ANT-ORD-1, and the echo of ANT-ID-5.

    A message with content [] or null holds nothing that could end the leading run.
    """
    calls = [call for _, call in turn.calls if isinstance(call.get("id"), str)]
    answered: list[str] = []
    leading = True
    for message in turn.reply:
        if message.role != "user" or isinstance(message.content, str):
            leading = False
        behind_other = False
        for path, block in message.blocks:
            if block["type"] != "tool_result":
                leading = False
                behind_other = True
                continue
            call_id = block.get("tool_use_id")
            its_call = next((call for call in calls if call["id"] == call_id), None)
            if its_call is None or message.role != "user":
                found.add("ANT-PAIR-4", path)
                continue
            if block.get("toolset_name") != its_call.get("toolset_name"):
                found.add("ANT-ID-5", path)
            if not leading:
                found.add("ANT-ORD-1" if behind_other else "ANT-PAIR-3", path)
            elif call_id in answered:
                found.add("ANT-PAIR-5", path)
            else:
                answered.append(its_call["id"])
    for message in turn.model:
        for path, block in message.blocks:
            if block["type"] == "tool_result":
                found.add("ANT-PAIR-4", path)
    growing = after is None and all(
        message.role == "user"
        and not isinstance(message.content, str)
        and all(block["type"] == "tool_result" for _, block in message.blocks)
        for message in turn.reply
    )
    for path, call in turn.calls:
        if call.get("id") not in answered:
            found.add("ANT-PAIR-1", path, "send" if growing else "prefix")


def _ant_call_ids(turn: _Turn, found: _Found) -> None:
    """ANT-ID-2."""
    seen: list[str] = []
    for path, call in turn.calls:
        call_id = call.get("id")
        if isinstance(call_id, str):
            if call_id in seen:
                found.add("ANT-ID-2", path)
            seen.append(call_id)


def _server_calls(turn: _Turn, later: Sequence[_Turn]) -> Iterator[tuple[str, Block, str]]:
    """The server calls of a turn that have no result, each as `open` at the end or `lost`.

    A result counts later in the call's message, or among the hosted results at the start of the
    next assistant message.  A message with a client call that the server call's code made
    (`caller.tool_id`) keeps the server call waiting.  Blanks cannot stay and are passed over.
    """
    own = [message for message in turn.model if not _is_silent(message)]
    behind = [message for t in later for message in t.model if not _is_silent(message)]
    for number, message in enumerate(own):
        for index, (path, block) in enumerate(message.blocks):
            if block["type"] not in _SERVER_CALLS:
                continue
            if _answers([b for _, b in message.blocks[index + 1 :]], block):
                continue
            fate = _fate(block, [*own[number + 1 :], *behind])
            if fate != "answered":
                yield path, block, fate


def _fate(call: Block, following: Sequence[_Message]) -> str:
    for message in following:
        if _answers(_opening([message]), call):
            return "answered"
        if not _made_by(message, call):
            return "lost"
    return "open"


def _made_by(message: _Message, call: Block) -> bool:
    return any(
        block["type"] == "tool_use"
        and isinstance(block.get("caller"), dict)
        and block["caller"].get("tool_id") == call.get("id")
        for _, block in message.blocks
    )


def _is_silent(message: _Message) -> bool:
    if isinstance(message.content, str):
        return not message.content.strip()
    return all(_is_blank(block) for _, block in message.blocks)


def _opening(messages: list[_Message]) -> list[Block]:
    """The hosted results that the first of these messages begins with."""
    opening: list[Block] = []
    for _, block in messages[0].blocks if messages else []:
        if _is_hosted_result(block):
            opening.append(block)
        elif not _is_blank(block):
            break
    return opening


def _answers(blocks: list[Block], call: Block) -> bool:
    return any(_is_hosted_result(b) and b.get("tool_use_id") == call.get("id") for b in blocks)


def _ant_server(turn: _Turn, later: Sequence[_Turn], found: _Found) -> None:
    """ANT-SRV-1, 3, 7.

    A server call is open where the last turn was not replied to (ANT-SRV-5) or has a client call
    (ANT-SRV-3).
    """
    last = later[-1] if later else turn
    may_wait = not last.reply or bool(last.calls)
    lost = [path for path, _, fate in _server_calls(turn, later) if fate == "lost" or not may_wait]
    for path in lost:
        found.add("ANT-SRV-1", path)
    waiting = [path for path, _, _ in _server_calls(turn, []) if path not in lost]
    for path in turn.said:
        if waiting and turn.calls:
            found.add("ANT-SRV-3", path)
        if any(_is_programmatic(call) for _, call in turn.calls):
            found.add("ANT-SRV-7", path)


def _is_programmatic(call: Block) -> bool:
    caller = call.get("caller")
    return isinstance(caller, dict) and caller.get("type") != "direct"


def _ant_hosted_results(messages: list[_Message], found: _Found) -> None:
    """ANT-SRV-4.  Messages of blanks are passed over."""
    waiting: list[Block] = []
    for message in messages:
        if message.role != "assistant" or _is_silent(message):
            continue
        own: list[Block] = []
        for path, block in message.blocks:
            if _is_hosted_result(block):
                calls = [b for b in waiting + own if b["type"] in _SERVER_CALLS]
                if all(call.get("id") != block.get("tool_use_id") for call in calls):
                    found.add("ANT-SRV-4", path)
            own.append(block)
        waiting = own + [
            call
            for call in waiting
            if _made_by(message, call) and not _answers(_opening([message]), call)
        ]


def _ant_system(messages: list[_Message], request: Request, found: _Found) -> None:
    """ANT-SYS-1, always at the message.

    Content [] is legal beside an output_config, and then anywhere.
    """
    version = _version(request.get("model"))
    for index, message in enumerate(messages):
        if message.role != "system":
            continue
        if version is not None and not _takes_system(version):
            found.add("ANT-SYS-1", message.path)
        if message.directive:
            continue
        before = messages[index - 1] if index else None
        follows = before is not None and (
            before.role == "user"
            or (before.role == "assistant" and _ends_in(before, _is_hosted_result))
        )
        precedes = index + 1 == len(messages) or messages[index + 1].role == "assistant"
        if not follows or not precedes or not message.content:
            found.add("ANT-SYS-1", message.path)
        for _, block in message.blocks:
            if block["type"] not in ("text", "tool_addition", "tool_removal", ""):
                found.add("ANT-SYS-1", message.path)


def _ends_in(message: _Message, test: Callable[[Block], bool]) -> bool:
    return bool(message.blocks) and test(message.blocks[-1][1])


def _version(model: Any) -> tuple[str, tuple[int, int]] | None:
    """Family and version of a Claude model's name; None where it names no such model."""
    text = str(model or "")
    if match := re.search(r"(opus|sonnet|haiku|fable)-(\d{1,2})(?:-(\d{1,2}))?(?!\d)", text):
        return match[1], (int(match[2]), int(match[3] or 0))
    if match := re.search(r"claude-(\d+)(?:-(\d))?-(opus|sonnet|haiku)", text):
        return match[3], (int(match[1]), int(match[2] or 0))
    return None


def _takes_system(version: tuple[str, tuple[int, int]]) -> bool:
    family, number = version
    return (family == "opus" and number >= (4, 8)) or family == "fable"


def _ant_cache(messages: list[_Message], request: Request, found: _Found) -> None:
    """ANT-CACHE-1.  A marker on thinking is refused for itself, and counts."""
    system = request.get("system")
    fixed = [*(request.get("tools") or []), *(system if isinstance(system, list) else [])]
    count = sum(1 for part in fixed if part.get("cache_control") is not None)
    marked: list[str] = []
    for message in messages:
        for path, block in message.blocks:
            inner = block.get("content") if block["type"] == "tool_result" else None
            for at, part in [(path, block), *_blocks(inner, path, _Found())]:
                if part.get("cache_control") is None:
                    continue
                marked.append(at)
                if part["type"] in _THINKING and message.role == "assistant":
                    found.add("ANT-CACHE-1", at)
    for path in marked[: max(0, count + len(marked) - 4)]:
        found.add("ANT-CACHE-1", path)


def _ant_end(messages: list[_Message], turns: list[_Turn], request: Request, found: _Found) -> None:
    """ANT-END-1, 2, 3, ANT-THINK-3, 5, ANT-LIM-1: what the end of the history breaks.

    ANT-END-1, 3 and ANT-THINK-5 are told at the message, ANT-END-2 at its text, ANT-THINK-3 at the
    first block of the turn.
    """
    if len(messages) > 100_000:
        found.add("ANT-LIM-1", "messages.100000", "send")
    if not messages:
        return
    last, turn = messages[-1], turns[-1]
    version = _version(request.get("model"))
    thinking = (request.get("thinking") or {}).get("type")
    if last.role == "assistant":
        if version is not None and version[1] >= (4, 6):
            if not turn.calls and not any(_server_calls(turn, [])):
                found.add("ANT-END-1", last.path, "send")
        elif version is not None:
            path, text = last.path, last.content
            if last.blocks:
                path, block = last.blocks[-1]
                text = block.get("text") if block["type"] == "text" else None
            if isinstance(text, str) and text != text.rstrip():
                found.add("ANT-END-2", path, "send")
        if _ends_in(last, lambda block: block["type"] in _THINKING):
            found.add("ANT-END-3", last.path, "send")
        if thinking == "disabled" and any(b["type"] in _THINKING for _, b in last.blocks):
            found.add("ANT-THINK-5", last.path, "send")
    of_results = bool(last.blocks) and all(b["type"] == "tool_result" for _, b in last.blocks)
    if thinking == "enabled" and last.role == "user" and of_results and turn.calls:
        first = next(iter(turn.blocks), None)
        if isinstance(turn.model[0].content, str):
            found.add("ANT-THINK-3", turn.model[0].path, "send")
        elif first is not None and first[1]["type"] not in _THINKING:
            found.add("ANT-THINK-3", first[0], "send")


# --- OpenAI Responses ----------------------------------------------------------------------------

_OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
}
_CALL_OF = {output: call for call, output in _OUTPUT_OF.items()}
_HOSTED = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
)
_MODEL_MADE = (
    *_OUTPUT_OF,
    *_HOSTED,
    "reasoning",
    "mcp_list_tools",
    "mcp_approval_request",
    "program_output",
)
_ID_PREFIX = {
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "message": "msg",
    "reasoning": "rs",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "function_call_output": "fc",
    "custom_tool_call_output": "ctc",
}
_ID_OPTIONAL = (
    "function_call",
    "custom_tool_call",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
    "message",
)
_FIELDS = {
    "message": "role content phase id",
    "function_call": "id call_id name namespace arguments async caller status",
    "function_call_output": "id call_id name namespace output caller status",
    "custom_tool_call": "id call_id name namespace input async caller",
    "custom_tool_call_output": "id call_id output caller",
    "shell_call": "id call_id action environment caller status",
    "shell_call_output": "id call_id output max_output_length caller status",
    "local_shell_call": "id call_id action status",
    "local_shell_call_output": "id call_id output status",
    "apply_patch_call": "id call_id operation caller status",
    "apply_patch_call_output": "id call_id output caller status",
    "computer_call": "id call_id action actions pending_safety_checks status",
    "computer_call_output": "id call_id output acknowledged_safety_checks status",
    "tool_search_call": "id call_id arguments execution status",
    "tool_search_output": "id call_id tools execution status",
    "program": "id call_id code fingerprint",
    "program_output": "id call_id result status",
    "reasoning": "id summary content encrypted_content status",
    "compaction": "id encrypted_content",
    "compaction_trigger": "id",
    "item_reference": "id",
    "web_search_call": "id action status",
    "file_search_call": "id queries results status",
    "code_interpreter_call": "id code container_id outputs status",
    "image_generation_call": "id result status action background error output_format quality "
    "revised_prompt size svg_usage",
    "mcp_call": "id server_label name arguments output error approval_request_id status",
    "mcp_list_tools": "id server_label tools error",
    "mcp_approval_request": "id server_label name arguments",
    "mcp_approval_response": "id approval_request_id approve reason",
}
_TOOL_NAME = r"[a-zA-Z0-9_-]{1,128}"
_LONGEST_OUTPUT = 10_485_760


@dataclass(frozen=True)
class _Item:
    path: str
    kind: str
    raw: Block

    @property
    def model_made(self) -> bool:
        if self.kind == "message":
            return bool(self.raw["role"] == "assistant")
        return self.kind in _MODEL_MADE or (self.kind == "tool_search_output" and self.by_server)

    @property
    def client_made(self) -> bool:
        """Neither is what could be anybody's: references, compactions, unknown types."""
        if self.kind == "message":
            return not self.model_made
        return not self.model_made and (
            self.kind in _CALL_OF or self.kind == "mcp_approval_response"
        )

    @property
    def from_user(self) -> bool:
        return self.kind == "message" and self.raw["role"] == "user"

    @property
    def by_server(self) -> bool:
        """A tool search that the provider runs."""
        return self.raw.get("execution") == "server"

    @property
    def call_id(self) -> Any:
        return self.raw.get("call_id")


def _items(raw: Sequence[Any], found: _Found) -> list[_Item]:
    """The items by path; what is no item is told and stands as one of an unknown type."""
    items: list[_Item] = []
    for index, item in enumerate(raw):
        path = f"input.{index}"
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and "type" not in item and "role" in item:
            kind = "message"
        fits = isinstance(kind, str)
        if kind == "message":
            fits = item.get("role") in ("user", "assistant", "system", "developer") and isinstance(
                item.get("content"), str | list
            )
        if not fits:
            found.add("GEN-SHAPE-1", path)
        items.append(_Item(path, str(kind) if fits else "", item if fits else {}))
    return items


def _responses(raw: Sequence[Any], request: Request, found: _Found) -> None:
    items = _items(raw, found)
    chained = bool(request.get("previous_response_id") or request.get("conversation"))
    if not items and not chained and not request.get("prompt"):
        found.add("OAI-SHAPE-4", "input", "send")
    for index, item in enumerate(items):
        _oai_item(item, request, found)
        _oai_reasoning(items, index, found)
        if item.kind == "compaction_trigger" and index + 1 < len(items):
            found.add("OAI-COMP-1", item.path)
    _oai_pairs(items, chained, found)
    _oai_approvals(items, chained, found)
    _oai_callers(items, chained, found)
    _oai_ids(items, request, found)


def _oai_item(item: _Item, request: Request, found: _Found) -> None:
    """The rules of one item by itself."""
    raw, path = item.raw, item.path
    if item.kind in _FIELDS:
        fields = ["type", *_FIELDS[item.kind].split()]
        if item.kind == "message" and raw["role"] == "assistant":
            fields.append("status")
        for name in raw:
            if name not in fields:
                found.add("OAI-SHAPE-3", f"{path}.{name}")
    match item.kind:
        case "message":
            wrong = ("input_text", "text") if item.model_made else ("output_text", "text")
            for at, part in _blocks(raw["content"], path, found):
                if part["type"] in wrong:
                    found.add("OAI-SHAPE-2", at)
                elif part["type"].endswith("_text") and not isinstance(part.get("text"), str):
                    found.add("GEN-SHAPE-1", at)
        case "function_call":
            arguments = raw.get("arguments")
            if not isinstance(arguments, str) or not _matches(_TOOL_NAME, raw.get("name")):
                found.add("OAI-SHAPE-1", path)
            if isinstance(arguments, str) and not _is_json_object(arguments):
                found.add("OAI-SHAPE-4", path)
        case "custom_tool_call":
            if not isinstance(raw.get("input"), str) or not _matches(_TOOL_NAME, raw.get("name")):
                found.add("OAI-SHAPE-1", path)
        case "function_call_output" | "custom_tool_call_output":
            output = raw.get("output")
            parts = _blocks(output, path, _Found())
            kinds = [part["type"] for _, part in parts]
            if (
                not isinstance(output, str | list)
                or (isinstance(output, str) and len(output) > _LONGEST_OUTPUT)
                or any(kind not in ("input_text", "input_image", "input_file") for kind in kinds)
            ):
                found.add("OAI-SHAPE-1", path)
        case "local_shell_call_output":
            if item.call_id is None:
                found.add("OAI-SHELL-1", path)
        case "apply_patch_call":
            if raw.get("status") not in ("in_progress", "completed"):
                found.add("OAI-PATCH-1", path)
        case "apply_patch_call_output":
            if raw.get("status") not in ("completed", "failed"):
                found.add("OAI-PATCH-1", path)
        case "program_output":
            if raw.get("status") not in ("completed", "incomplete"):
                found.add("OAI-PROG-1", path)
        case "compaction":
            if not raw.get("encrypted_content"):
                found.add("OAI-COMP-1", path)
        case "reasoning":
            sealed = raw.get("encrypted_content")
            if sealed is not None and (not isinstance(sealed, str) or sealed == ""):
                found.add("OAI-REAS-3", path)
            if request.get("store") is False and not sealed:
                found.add("OAI-STORE-1", path)
        case "item_reference":
            if request.get("store") is False:
                found.add("OAI-STORE-1", path)
        case kind if kind in _HOSTED:
            if raw.get("status") not in (None, "completed", "failed", "incomplete"):
                found.add("OAI-HOST-1", path)
        case _:
            pass


def _oai_reasoning(items: list[_Item], index: int, found: _Found) -> None:
    """OAI-REAS-1.  A reference or an unknown type may be what the reasoning led to."""
    if items[index].kind != "reasoning":
        return
    behind = [item for item in items[index + 1 :] if item.kind != "reasoning"]
    if not behind:
        found.add("OAI-REAS-1", items[index].path, "send")
    elif behind[0].client_made or behind[0].kind in ("compaction", "compaction_trigger"):
        found.add("OAI-REAS-1", items[index].path)


def _live(items: list[_Item], index: int) -> bool:
    """No user message stands behind this item, and nothing of the model behind the client's."""
    replied = False
    for item in items[index + 1 :]:
        if item.from_user or (replied and item.model_made):
            return False
        replied = replied or item.client_made
    return True


def _model_turn(items: list[_Item], index: int) -> int:
    """How often the client spoke before this item: equal in one model turn."""
    return sum(1 for item in items[:index] if item.client_made)


def _oai_pairs(items: list[_Item], chained: bool, found: _Found) -> None:
    """OAI-PAIR-1 to 4, OAI-CU-1, and a program's output in OAI-PROG-1.

    An output belongs to a call of its family with its call_id in the latest model turn before it
    that has one, and there to the first without an output; so an id used again is paired by
    position.  Searches that the provider runs are not judged.
    """
    answered: list[int] = []
    for index, item in enumerate(items):
        if item.kind not in _CALL_OF or (item.kind == "tool_search_output" and item.by_server):
            continue
        if item.call_id is None and item.kind == "local_shell_call_output":
            continue
        same_id = [
            earlier
            for earlier in range(index)
            if items[earlier].kind in _OUTPUT_OF
            and items[earlier].call_id == item.call_id
            and not (items[earlier].kind == "tool_search_call" and items[earlier].by_server)
            and (item.call_id is not None or item.kind == "tool_search_output")
        ]
        own = [earlier for earlier in same_id if items[earlier].kind == _CALL_OF[item.kind]]
        if item.call_id is None:
            own = own[-1:]
        if own:
            turn = _model_turn(items, own[-1])
            free = [e for e in own if _model_turn(items, e) == turn and e not in answered]
            if free:
                answered.append(free[0])
            else:
                found.add("OAI-PAIR-4", item.path)
        elif same_id and item.call_id is not None:
            found.add("OAI-PAIR-3", item.path)
        elif not chained:
            found.add("OAI-PAIR-2", item.path)
    for index, item in enumerate(items):
        if item.kind not in _OUTPUT_OF or index in answered:
            continue
        if item.kind == "tool_search_call" and item.by_server:
            continue
        if item.kind == "program":
            spoken = ("user", "assistant")
            behind = [later for later in items[index + 1 :] if later.kind == "message"]
            if any(later.raw["role"] in spoken for later in behind):
                found.add("OAI-PROG-1", item.path)
            continue
        scope = "send" if _live(items, index) else "prefix"
        found.add("OAI-PAIR-1", item.path, scope)
        if item.kind == "computer_call":
            found.add("OAI-CU-1", item.path, scope)


def _oai_approvals(items: list[_Item], chained: bool, found: _Found) -> None:
    """OAI-MCP-1.  Under a chain the request may stand there."""
    asked: dict[int, Any] = {
        index: item.raw.get("id")
        for index, item in enumerate(items)
        if item.kind == "mcp_approval_request"
    }
    answered: list[Any] = []
    for index, item in enumerate(items):
        if item.kind == "mcp_approval_response":
            its = item.raw.get("approval_request_id")
            known = any(at < index and asked[at] == its for at in asked)
            if its in answered or (not known and not chained):
                found.add("OAI-MCP-1", item.path)
            elif known:
                answered.append(its)
    for index, its in asked.items():
        if its not in answered:
            scope = "send" if _live(items, index) else "prefix"
            found.add("OAI-MCP-1", items[index].path, scope)


def _oai_callers(items: list[_Item], chained: bool, found: _Found) -> None:
    """OAI-PROG-1 of what a program called.  Under a chain the program may stand there."""
    programs = [item.call_id for item in items if item.kind == "program"]
    for item in items:
        caller = item.raw.get("caller") or {}
        if (
            caller.get("type") == "program"
            and not chained
            and caller.get("caller_id") not in programs
        ):
            found.add("OAI-PROG-1", item.path)


def _oai_ids(items: list[_Item], request: Request, found: _Found) -> None:
    """OAI-ID-1 to 4, and the ids of OAI-STORE-1.

    The id of a local shell output without call_id stands for that (OAI-SHELL-1): it is no item's.
    """
    ids: list[Any] = []
    call_ids: list[Any] = []
    for item in items:
        item_id, call_id = item.raw.get("id"), item.call_id
        if item.kind == "local_shell_call_output" and call_id is None:
            continue
        if item.kind not in _FIELDS:
            continue
        if item_id is not None:
            if item_id in ids:
                found.add("OAI-ID-1", item.path)
            ids.append(item_id)
            if not isinstance(item_id, str):
                found.add("GEN-SHAPE-1", item.path)
                continue
            if not item_id.startswith(_ID_PREFIX.get(item.kind, "")):
                found.add("OAI-ID-2", item.path)
            if len(item_id) > 64:
                found.add("OAI-ID-3", item.path)
            if request.get("store") is False and item.kind in _ID_OPTIONAL:
                found.add("OAI-STORE-1", item.path)
        if call_id is None:
            if item.kind in _OUTPUT_OF and item.kind != "tool_search_call":
                found.add("OAI-ID-3", item.path)
            continue
        if not isinstance(call_id, str):
            found.add("GEN-SHAPE-1", item.path)
            continue
        if not 1 <= len(call_id) <= 64:
            found.add("OAI-ID-3", item.path)
        if item.kind in _OUTPUT_OF:
            if call_id in call_ids:
                found.add("OAI-ID-4", item.path)
            call_ids.append(call_id)


# --- OpenAI Chat Completions ---------------------------------------------------------------------

_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def _chat(raw: Sequence[Any], request: Request, found: _Found) -> None:
    del request
    messages: list[Block] = []
    for index, message in enumerate(raw):
        path = f"messages.{index}"
        fits = isinstance(message, dict) and message.get("role") in _CHAT_ROLES
        if fits:
            content = message.get("content")
            free = message["role"] in ("assistant", "tool", "function")
            fits = isinstance(content, str | list) or (content is None and free)
        if not fits:
            found.add("GEN-SHAPE-1", path)
        messages.append(message if fits else {"role": ""})
        if fits:
            _blocks(message.get("content"), path, found)
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        if message["role"] == "assistant":
            _chat_assistant(messages, index, path, found)
        elif message["role"] == "tool":
            _chat_tool(messages, index, path, found)
        elif message["role"] == "function":
            before = messages[index - 1] if index else {}
            if (before.get("function_call") or {}).get("name") != message.get("name"):
                found.add("CHAT-FN-1", path)


def _chat_calls(message: Block) -> list[Block]:
    calls = message.get("tool_calls")
    if message["role"] != "assistant" or not isinstance(calls, list):
        return []
    return [call if isinstance(call, dict) else {} for call in calls]


def _block_end(messages: list[Block], index: int) -> int:
    """Where the tool messages right behind a message end."""
    end = index + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return end


def _chat_assistant(messages: list[Block], index: int, path: str, found: _Found) -> None:
    """CHAT-PAIR-1, ID-1, NAME-1, ARG-1 of the calls; EMPTY-1, EMPTY-2; FN-1 at the message."""
    message = messages[index]
    if "tool_calls" in message and not message["tool_calls"]:
        found.add("CHAT-EMPTY-1", path)
    legacy = message.get("function_call")
    has_calls = bool(message.get("tool_calls")) or bool(legacy)
    if not has_calls and not any(message.get(key) for key in ("content", "refusal", "audio")):
        found.add("CHAT-EMPTY-2", path)
    if legacy:
        behind = messages[index + 1] if index + 1 < len(messages) else None
        if message.get("tool_calls"):
            found.add("CHAT-FN-1", path)
        if behind is None:
            found.add("CHAT-FN-1", path, "send")
        elif behind["role"] != "function" or behind.get("name") != legacy.get("name"):
            found.add("CHAT-FN-1", path)
    end = _block_end(messages, index)
    answers = [tool.get("tool_call_id") for tool in messages[index + 1 : end]]
    scope = "send" if end == len(messages) else "prefix"
    ids: list[Any] = []
    for number, call in enumerate(_chat_calls(message)):
        at = f"{path}.tool_calls.{number}"
        call_id = call.get("id")
        if not isinstance(call_id, str) or call_id in ids or not 1 <= len(call_id) <= 40:
            found.add("CHAT-ID-1", at)
        if call_id is None or call_id not in answers:
            found.add("CHAT-PAIR-1", at, scope)
        ids.append(call_id)
        if call.get("type") == "custom":
            continue
        function = call.get("function")
        if not isinstance(function, dict):
            found.add("GEN-SHAPE-1", at)
            continue
        if not _matches(r"[a-zA-Z0-9_-]{1,64}", function.get("name")):
            found.add("CHAT-NAME-1", at)
        arguments = function.get("arguments")
        if not isinstance(arguments, str) or not _is_json_object(arguments):
            found.add("CHAT-ARG-1", at)


def _chat_tool(messages: list[Block], index: int, path: str, found: _Found) -> None:
    """CHAT-PAIR-2, ORD-1, TOOL-1, and ID-1 of a tool message."""
    message = messages[index]
    call_id = message.get("tool_call_id")
    asker = index - 1
    while asker >= 0 and messages[asker]["role"] != "assistant":
        asker -= 1
    known = [call.get("id") for call in _chat_calls(messages[asker])] if asker >= 0 else []
    if call_id is None or call_id not in known:
        found.add("CHAT-PAIR-2", path)
    elif index >= _block_end(messages, asker):
        found.add("CHAT-ORD-1", path)
    elif call_id in [tool.get("tool_call_id") for tool in messages[asker + 1 : index]]:
        found.add("CHAT-ID-1", path)
    if isinstance(call_id, str) and not 1 <= len(call_id) <= 40:
        found.add("CHAT-ID-1", path)
    if message.get("content") is None:
        found.add("CHAT-TOOL-1", path)
    for at, part in _blocks(message.get("content"), path, _Found()):
        if part["type"] not in ("text", ""):
            found.add("CHAT-TOOL-1", at)
