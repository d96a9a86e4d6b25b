"""Everything that is timed side by side: stopkit, the hand loops, and each peer's own repair path.

A peer gets its own message objects ready-made: building them from the wire format, and turning
them back, is outside the timing.  Log output is off, the peers' warnings included.

The peers are looked up by name when asked for, so that this file needs none of them.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from bench import loops
from bench.generate import Api, Item, parsed


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Contestant:
    """`run` is what the clock sees; `load` makes its input from the wire, `dump` the wire again."""

    name: str
    package: str
    """The distribution whose version the report names."""
    what: str
    """What is timed, for the report."""
    run: Callable[[Any], Any]
    load: Callable[[list[Item]], Any] = _same
    dump: Callable[[Any], list[Item]] = _same
    mutates: bool = False

    @property
    def version(self) -> str:
        return version(self.package)


STOPKIT: Final = "stopkit normalize"
STOPKIT_ACCOUNT: Final = "stopkit normalize, account read"
STOPKIT_CHECK: Final = "stopkit check"
PAIR_LOOP: Final = "hand loop, pairs only"
CHECK_LOOP: Final = "hand loop, checks only"


def ours(api: Api) -> list[Contestant]:
    """stopkit and the two hand loops."""
    from stopkit.normalizer import check, normalize

    def history(items: list[Item]) -> object:
        return normalize(items, api=api)

    def account(items: list[Item]) -> object:
        result = normalize(items, api=api)
        return result.changes, result.outcomes

    def judged(items: list[Item]) -> object:
        return check(items, api=api)

    return [
        Contestant(
            STOPKIT, "stopkit", "`normalize`, all rules", history, dump=lambda r: list(r.history)
        ),
        Contestant(
            STOPKIT_ACCOUNT, "stopkit", "the same, then `.changes` and `.outcomes`", account
        ),
        Contestant(STOPKIT_CHECK, "stopkit", "`check`, all rules", judged),
        Contestant(PAIR_LOOP, "stopkit", "one pass that pairs calls and results", loops.PAIR[api]),
        Contestant(CHECK_LOOP, "stopkit", "one pass that says whether they pair", loops.CHECK[api]),
    ]


def peers(api: Api) -> list[Contestant]:
    """The peers that repair histories of this wire format, or of one that maps onto it."""
    # LiteLLM would ask the network for prices when it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    made = [make() for make in _PEERS[api]]
    logging.disable(logging.CRITICAL)
    return made


def _pydantic_ai() -> Contestant:
    messages = import_module("pydantic_ai.messages")
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def load(wire: list[Item]) -> list[Any]:
        out: list[Any] = []
        names: dict[str, str] = {}
        for message in wire:
            parts: list[Any] = []
            for block in message["content"]:
                if block["type"] == "tool_use":
                    names[block["id"]] = block["name"]
                    parts.append(
                        messages.ToolCallPart(
                            block["name"], block["input"], tool_call_id=block["id"]
                        )
                    )
                elif block["type"] == "tool_result":
                    call_id = block["tool_use_id"]
                    parts.append(
                        messages.ToolReturnPart(
                            names.get(call_id, "unknown"),
                            _words(block["content"]),
                            tool_call_id=call_id,
                            timestamp=at,
                        )
                    )
                elif message["role"] == "assistant":
                    parts.append(messages.TextPart(block["text"]))
                else:
                    parts.append(messages.UserPromptPart(block["text"], timestamp=at))
            if message["role"] == "assistant":
                out.append(messages.ModelResponse(parts=parts, timestamp=at))
            else:
                out.append(messages.ModelRequest(parts=parts, timestamp=at))
        return out

    def dump(native: list[Any]) -> list[Item]:
        out: list[Item] = []
        for message in native:
            content: list[Item] = []
            for part in message.parts:
                if isinstance(part, messages.ToolCallPart):
                    content.append(
                        {
                            "type": "tool_use",
                            "id": part.tool_call_id,
                            "name": part.tool_name,
                            "input": part.args_as_dict(),
                        }
                    )
                elif isinstance(part, messages.ToolReturnPart):
                    content.append(
                        {
                            "type": "tool_result",
                            "tool_use_id": part.tool_call_id,
                            "content": part.content,
                        }
                    )
                else:
                    content.append({"type": "text", "text": part.content})
            role = "assistant" if isinstance(message, messages.ModelResponse) else "user"
            out.append({"role": role, "content": content})
        return out

    return Contestant(
        "pydantic-ai",
        "pydantic-ai-slim",
        "`messages.repair_messages`",
        messages.repair_messages,
        load,
        dump,
    )


def _strands() -> Contestant:
    manager = import_module("strands.session.repository_session_manager")
    fix = manager.RepositorySessionManager._fix_broken_tool_use

    def load(wire: list[Item]) -> list[Item]:
        out: list[Item] = []
        for message in wire:
            content: list[Item] = []
            for block in message["content"]:
                if block["type"] == "tool_use":
                    use = {
                        "toolUseId": block["id"],
                        "name": block["name"],
                        "input": block["input"],
                    }
                    content.append({"toolUse": use})
                elif block["type"] == "tool_result":
                    result = {
                        "toolUseId": block["tool_use_id"],
                        "status": "success",
                        "content": [{"text": _words(block["content"])}],
                    }
                    content.append({"toolResult": result})
                else:
                    content.append({"text": block["text"]})
            out.append({"role": message["role"], "content": content})
        return out

    def dump(native: list[Item]) -> list[Item]:
        out: list[Item] = []
        for message in native:
            content: list[Item] = []
            for block in message["content"]:
                if "toolUse" in block:
                    use = block["toolUse"]
                    content.append(
                        {
                            "type": "tool_use",
                            "id": use["toolUseId"],
                            "name": use["name"],
                            "input": use["input"],
                        }
                    )
                elif "toolResult" in block:
                    result = block["toolResult"]
                    content.append(
                        {
                            "type": "tool_result",
                            "tool_use_id": result["toolUseId"],
                            "content": result["content"][0]["text"],
                        }
                    )
                else:
                    content.append({"type": "text", "text": block["text"]})
            out.append({"role": message["role"], "content": content})
        return out

    return Contestant(
        "Strands",
        "strands-agents",
        "`RepositorySessionManager._fix_broken_tool_use`",
        lambda messages: fix(None, messages),
        load,
        dump,
        mutates=True,
    )


def _litellm() -> Contestant:
    litellm: Any = import_module("litellm")
    litellm.modify_params = True
    litellm.suppress_debug_info = True
    factory = import_module("litellm.litellm_core_utils.prompt_templates.factory")
    return Contestant(
        "LiteLLM",
        "litellm",
        "`sanitize_messages_for_tool_calling`",
        factory.sanitize_messages_for_tool_calling,
        parsed,
    )


def _deepagents() -> Contestant:
    patch = import_module("deepagents.middleware.patch_tool_calls").PatchToolCallsMiddleware()
    core = import_module("langchain_core.messages")

    def run(messages: list[Any]) -> list[Any]:
        update = patch.before_agent({"messages": messages}, None)
        if update is None:
            return messages
        # The first is the order to forget all messages; the rest is the new history.
        renewed: list[Any] = update["messages"][1:]
        return renewed

    def load(wire: list[Item]) -> list[Any]:
        made: list[Any] = core.convert_to_messages(parsed(wire))
        return made

    return Contestant(
        "deepagents",
        "deepagents",
        "`PatchToolCallsMiddleware.before_agent`",
        run,
        load,
        core.convert_to_openai_messages,
    )


def _openai_agents() -> Contestant:
    items = import_module("agents.run_internal.items")

    def run(history: list[Item]) -> list[Item]:
        # What a run does with a session's stored items before its first request.
        stored = set(range(len(history)))
        shaped = [items.ensure_input_item_format(item) for item in history]
        paired = items.drop_orphan_function_calls(
            shaped, pruning_indexes=stored, output_pruning_indexes=stored
        )
        normal = items.normalize_input_items_for_api(paired)
        unique: list[Item] = items.deduplicate_input_items_preferring_latest(normal)
        return unique

    return Contestant(
        "openai-agents",
        "openai-agents",
        "the session path: format, drop orphans, normalize, drop duplicates",
        run,
        parsed,
    )


def _words(content: str | list[Item]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content)


_PEERS: Final[dict[Api, tuple[Callable[[], Contestant], ...]]] = {
    "anthropic.messages": (_pydantic_ai, _strands),
    "openai.chat": (_litellm, _deepagents),
    "openai.responses": (_openai_agents,),
}
