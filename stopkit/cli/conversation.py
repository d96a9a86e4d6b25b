"""One conversation in a JSON value: where its history is, and which API it is written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stopkit.history import Api

EVIDENCE: Final = "evidence"
"""The field beside the messages that says what is known about calls."""


class ConversationError(ValueError):
    """The value holds no history; the message says why, for a person."""


@dataclass(slots=True)
class Conversation:
    """A history and what stood around it."""

    history: list[Any]
    api: Api
    found_by: str
    """What told the API, for a person; "" where nothing did."""
    field: str | None = None
    """The field of `body` the history stands in; None where it stood alone."""
    body: dict[str, Any] | None = None

    @property
    def evidence(self) -> Any:
        """What the body says about calls, unchecked; None where it says nothing."""
        return None if self.body is None else self.body.get(EVIDENCE)

    @property
    def request(self) -> Mapping[str, Any] | None:
        """The body's other fields."""
        if self.body is None:
            return None
        return {k: v for k, v in self.body.items() if k != self.field and k != EVIDENCE}

    def with_history(self, history: list[Any]) -> Any:
        """The whole value with another history, its keys in their order."""
        if self.body is None or self.field is None:
            return history
        return {**self.body, self.field: history}


def read_conversation(
    value: object, field: str | None, api: Api | None, usual: Api | None = None
) -> Conversation:
    """The conversation in a value: a list of items, or a body that has them in a field.

    `field` names that field (`messages` and `input` are known by themselves), `api` overrides
    what the content says, `usual` is taken where it says nothing.

    Raises:
        ConversationError: the value is neither.
    """
    if isinstance(value, list):
        if api is None:
            api, found_by = recognise_api(value, None, usual)
        else:
            found_by = "--api"
        return Conversation(value, api, found_by)
    if not isinstance(value, dict):
        raise ConversationError(f"neither a list nor an object, but {_name(value)}")
    name = history_field(value, field)
    if name is None:
        wanted = f"`{field}`" if field else "`messages` or `input`; --field names another"
        raise ConversationError(f"an object without the field {wanted}")
    history = value[name]
    if isinstance(history, str) and name == "input":
        # The short form of one user message.
        history = [{"role": "user", "content": history}]
    if not isinstance(history, list):
        raise ConversationError(f"its field `{name}` is no list, but {_name(history)}")
    if api is not None:
        found_by = "--api"
    elif name == "input" and field is None:
        api, found_by = "openai.responses", "the field `input`"
    else:
        api, found_by = recognise_api(history, value, usual)
    return Conversation(history, api, found_by, name, value)


def history_field(body: Mapping[str, Any], field: str | None) -> str | None:
    """The name of the field with the history, or None."""
    if field is not None:
        return field if field in body else None
    messages = body.get("messages")
    if isinstance(messages, list):
        return "messages"
    if isinstance(body.get("input"), (list, str)):
        return "input"
    return "messages" if "messages" in body else "input" if "input" in body else None


_ANTHROPIC_BLOCKS: Final = frozenset(
    {
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "search_result",
        "document",
        "image",
        "tool_addition",
        "tool_removal",
        "compaction",
    }
)
_CHAT_PARTS: Final = frozenset({"image_url", "input_audio", "refusal", "file"})
_RESPONSES_PARTS: Final = frozenset(
    {"input_text", "output_text", "input_image", "input_file", "summary_text"}
)
_RESPONSES_ITEMS: Final = frozenset(
    {
        "reasoning",
        "item_reference",
        "compaction",
        "compaction_trigger",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "tool_search_call",
        "tool_search_output",
        "program",
        "program_output",
    }
)
_ANTHROPIC_FIELDS: Final = (
    "system",
    "anthropic_version",
    "anthropic_beta",
    "thinking",
    "stop_sequences",
    "top_k",
)
_CHAT_FIELDS: Final = (
    "max_completion_tokens",
    "response_format",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "reasoning_effort",
    "functions",
    "function_call",
    "modalities",
)


def recognise_api(
    items: list[Any], body: Mapping[str, Any] | None, usual: Api | None = None
) -> tuple[Api, str]:
    """The API that a history is written for, and what told it.

    The items decide, the first telling one for all; then what only leans to one side; then the
    other fields of the body.  Plain text tells nothing: it is taken as `usual`, or as
    `anthropic.messages` with "" for the reason.
    """
    for item in items:
        if isinstance(item, dict):
            told = _told_by_item(item)
            if told is not None:
                return told
    leaning = _leaning(items)
    if leaning is not None:
        return leaning
    if body is not None:
        told = _told_by_request(body)
        if told is not None:
            return told
    if usual is not None:
        return usual, "the other conversations"
    return "anthropic.messages", ""


def _told_by_item(item: dict[str, Any]) -> tuple[Api, str] | None:
    role = item.get("role")
    if role == "tool" or role == "function":
        return "openai.chat", f"the role `{role}`"
    if "tool_calls" in item:
        return "openai.chat", "`tool_calls`"
    kind = item.get("type")
    if kind is not None and role is None and isinstance(kind, str) and kind in _RESPONSES_ITEMS:
        return "openai.responses", f"the item type `{kind}`"
    content = item.get("content")
    if isinstance(content, list):
        for block in content:
            told = _told_by_block(block)
            if told is not None:
                return told
    if kind == "message":
        # A stored Anthropic response has the type too, and fields beside it that no item has.
        if "stop_reason" in item or "usage" in item:
            return "anthropic.messages", "a stored response"
        return "openai.responses", "the item type `message`"
    if "function_call" in item:
        return "openai.chat", "`function_call`"
    return None


def _leaning(items: list[Any]) -> tuple[Api, str] | None:
    """Roles that more than one API has, where nothing else tells."""
    first = items[0] if items else None
    if isinstance(first, dict) and first.get("role") == "system" and first.get("content") != []:
        return "openai.chat", "a system message first"
    if any(isinstance(item, dict) and item.get("role") == "developer" for item in items):
        return "openai.chat", "the role `developer`"
    return None


def _told_by_block(block: object) -> tuple[Api, str] | None:
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if not isinstance(kind, str) or kind == "text":
        return None
    if kind in _ANTHROPIC_BLOCKS:
        return "anthropic.messages", f"`{kind}` blocks"
    if kind in _RESPONSES_PARTS:
        return "openai.responses", f"`{kind}` parts"
    if kind in _CHAT_PARTS:
        return "openai.chat", f"`{kind}` parts"
    return None


def _told_by_request(body: Mapping[str, Any]) -> tuple[Api, str] | None:
    for name in _ANTHROPIC_FIELDS:
        if name in body:
            return "anthropic.messages", f"the field `{name}`"
    for name in _CHAT_FIELDS:
        if name in body:
            return "openai.chat", f"the field `{name}`"
    tools = body.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], dict):
        if "input_schema" in tools[0]:
            return "anthropic.messages", "the tools' `input_schema`"
        if isinstance(tools[0].get("function"), dict):
            return "openai.chat", "the tools' `function`"
    model = body.get("model")
    if isinstance(model, str):
        if "claude" in model:
            return "anthropic.messages", f"the model `{model[:60]}`"
        if model.rpartition("/")[2].startswith(("gpt-", "chatgpt", "o1", "o3", "o4")):
            return "openai.chat", f"the model `{model[:60]}`"
    return None


def _name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
