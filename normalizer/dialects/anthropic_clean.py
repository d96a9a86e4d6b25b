"""One message made right for itself: blocks that cannot stay, arguments, names, cache markers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from stopkit.normalizer.dialects.anthropic_blocks import (
    NAME,
    SERVER_ID,
    SYSTEM_CONTENT,
    THINKING,
    blank,
    client_id,
    directive_name,
    marked,
    models_only,
    no_result_content,
    signed,
    tool_names,
)
from stopkit.normalizer.dialects.anthropic_parts import Cell, Message, as_user_note, misshapen
from stopkit.normalizer.models import takes_system_messages
from stopkit.normalizer.names import safe_name
from stopkit.normalizer.plain import Item, sound
from stopkit.normalizer.result import Location
from stopkit.normalizer.wording import FRAGMENT, misplaced_call_note
from stopkit.normalizer.work import Recorder

_MAX_NAME: Final = 128


class Cleaner:
    """Mends messages one by one; `thinking` says whether any of them held some.

    `surplus` are the places of cache markers over the limit.
    """

    def __init__(
        self, request: Mapping[str, Any], record: Recorder, surplus: frozenset[Location]
    ) -> None:
        self.record = record
        self.surplus = surplus
        self.tools = tool_names(request)
        self.system_here = takes_system_messages(request.get("model"))
        self.thinking = False

    def clean(self, message: Message) -> list[Message]:
        """The message without what may not stand in it; none, or split where a result stands."""
        content = message.item.get("content")
        if isinstance(content, str) and blank(content) and message.role != "system":
            self.record.add(
                "removed",
                "ANT-EMPTY-2" if content else "ANT-EMPTY-3",
                message.where,
                "A message without any character that is not white space.",
                removed=message.source,
            )
            return []
        was_empty = not message.cells
        fallback = max(
            (at for at, cell in enumerate(message.cells) if cell.kind == "fallback"), default=-1
        )
        kept: list[Cell] = []
        for position, cell in enumerate(message.cells):
            new = self._clean_cell(message, cell, before_fallback=position < fallback)
            if len(new) != 1 or new[0] is not cell:
                message.touched = True
                if not new and marked(cell.block) and cell.where not in self.surplus:
                    _move_marker(cell, kept)
            kept += new
        message.cells = kept
        directive = message.role == "system" and was_empty and "output_config" in message.item
        if not kept and not directive:
            if was_empty or message.role == "system":
                self.record.add(
                    "removed",
                    "ANT-SYS-1" if message.role == "system" else "ANT-EMPTY-3",
                    message.where,
                    "A message without content.",
                    removed=message.source,
                )
            return []
        if message.role == "assistant" and any(cell.kind == "tool_result" for cell in kept):
            return self._split_around_results(message)
        if message.role == "system" and self.system_here is False and kept:
            return [as_user_note(self.record, message)]
        return [message]

    def _clean_cell(self, message: Message, cell: Cell, *, before_fallback: bool) -> list[Cell]:
        kind, role = cell.kind, message.role
        if cell.where in self.surplus:
            cell = self._without_marker(message, cell)
        if role == "system" and kind not in SYSTEM_CONTENT:
            return self._gone("ANT-SYS-1", cell, "A system message holds no such block.")
        if role == "user" and models_only(kind):
            return self._misplaced(cell)
        if before_fallback and (kind in THINKING or kind == "tool_use"):
            return self._gone("ANT-THINK-7", cell, "It stands before the fallback of its message.")
        match kind:
            case "text":
                return self._clean_text(cell)
            case "tool_use":
                return [self._clean_call(message, cell)]
            case "tool_result":
                return self._clean_result(message, cell)
            case "thinking" | "redacted_thinking":
                return self._clean_thinking(message, cell)
            case "server_tool_use":
                if not isinstance(cell.block.get("id"), str) or not SERVER_ID.match(
                    cell.block["id"]
                ):
                    return self._gone("ANT-ID-4", cell, "A server call that is not Anthropic's.")
            case "mcp_tool_use":
                name = cell.block.get("server_name")
                if not isinstance(name, str) or not name:
                    return self._gone("ANT-ID-5", cell, "An MCP call that names no server.")
            case "compaction":
                if cell.block.get("content") == "":
                    return self._gone("ANT-COMPACT-1", cell, "A compaction without content.")
            case "tool_addition" | "tool_removal":
                name = directive_name(cell.block)
                if self.tools is not None and name is not None and name not in self.tools:
                    return self._gone("ANT-SYS-2", cell, f"The request has no tool '{name[:100]}'.")
            case _:
                pass
        return [cell]

    def _gone(self, rule: str, cell: Cell, note: str) -> list[Cell]:
        self.record.add("removed", rule, cell.where, note, removed=cell.block)
        return []

    def _clean_text(self, cell: Cell) -> list[Cell]:
        text = cell.block.get("text")
        if not isinstance(text, str):
            raise misshapen("text: Input should be a valid string", cell.where)
        if not blank(text):
            return [cell]
        if text:
            return self._gone("ANT-EMPTY-2", cell, "A text of white space only.")
        return self._gone("ANT-EMPTY-1", cell, "A text without any character.")

    def _clean_thinking(self, message: Message, cell: Cell) -> list[Cell]:
        self.thinking = True
        if not sound(cell.block):
            return self._gone(
                "GEN-JSON-1", cell, "Signed thinking with a lone surrogate: it cannot be mended."
            )
        if not signed(cell.block):
            return self._gone(
                "ANT-THINK-1", cell, "Thinking that was cut before its signature came."
            )
        if marked(cell.block):
            return [self._without_marker(message, cell)]
        return [cell]

    def _clean_call(self, message: Message, cell: Cell) -> Cell:
        block = cell.block
        given = block.get("input")
        if not isinstance(given, dict):
            whole = _whole_object(given)
            block = {**block, "input": whole if whole is not None else {FRAGMENT: as_text(given)}}
            self.record.add(
                "rewritten",
                "ANT-ID-3",
                cell.where,
                "The arguments were a JSON text: parsed."
                if isinstance(given, str) and given and whole is not None
                else "There were no arguments: an empty object."
                if whole is not None
                else "The arguments never became a JSON object: kept as they are, under a key that "
                "says so.",
                became=cell,
                call_id=client_id(block, "id"),
                removed=given,
            )
            message.touched = True
        name = block.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            cell.nameless = not (isinstance(name, str) and name.strip())
            block = {**block, "name": safe_name(name, _MAX_NAME)}
            self.record.add(
                "renamed",
                "ANT-NAME-1",
                cell.where,
                "A tool name that the API does not take.",
                became=cell,
                call_id=client_id(block, "id"),
                removed=name,
            )
            message.touched = True
        cell.block = block
        return cell

    def _clean_result(self, message: Message, cell: Cell) -> list[Cell]:
        """The result, and behind it the blocks that may not stand inside it."""
        block = cell.block
        is_error = block.get("is_error")
        if is_error is not None and not isinstance(is_error, bool):
            raise misshapen("is_error: Input should be a valid boolean", cell.where)
        if "content" not in block or isinstance(block["content"], str):
            return [cell]
        content = block["content"]
        if content is not None and not isinstance(content, list):
            raise misshapen("content: Input should be a valid string or list", cell.where)
        kept: list[Item] = []
        moved: list[Cell] = []
        for position, inner in enumerate(content or ()):
            where: Location = (*cell.where, "content", position)
            if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
                raise misshapen("a content block is an object with a type", where)
            part = Cell(inner, where)
            kind = part.kind
            if where in self.surplus:
                part = self._without_marker(message, part)
            if kind == "text":
                if not self._clean_text(part):
                    continue
            elif no_result_content(kind):
                self._gone("ANT-TR-2", part, "A result holds no such block.")
                continue
            elif kind == "tool_reference" and self._unknown_reference(part.block):
                text = f"[stopkit: reference to the tool {part.block.get('tool_name')!r:.100}]"
                self.record.add(
                    "to_text",
                    "ANT-SRV-8",
                    where,
                    "A reference to a tool that the request does not have.",
                    became=cell,
                    removed=part.block,
                )
                part = Cell({"type": "text", "text": text}, where)
                if is_error:
                    kept.append(part.block)
                    continue
            elif is_error:
                self.record.add(
                    "moved",
                    "ANT-TR-1",
                    where,
                    "A result that is an error holds text only: moved behind the results.",
                    became=part,
                    call_id=client_id(block, "tool_use_id"),
                )
                moved.append(part)
                continue
            kept.append(part.block)
        if (
            kept
            and len(kept) == len(content or ())
            and all(new is old for new, old in zip(kept, content or (), strict=True))
        ):
            return [cell]
        message.touched = True
        new = {key: value for key, value in block.items() if key != "content"}
        if kept:
            new["content"] = kept
        elif not content:
            self.record.add(
                "rewritten",
                "ANT-TR-3",
                cell.where,
                "A result without content has no content key.",
                became=cell,
                call_id=client_id(block, "tool_use_id"),
                removed=content,
            )
        cell.block = new
        return [cell, *moved]

    def _unknown_reference(self, block: Item) -> bool:
        return self.tools is not None and block.get("tool_name") not in self.tools

    def _misplaced(self, cell: Cell) -> list[Cell]:
        if cell.kind != "tool_use":
            return self._gone("ANT-PLACE-1", cell, "Only an assistant message holds such a block.")
        arguments = as_text(cell.block.get("input"))
        text = misplaced_call_note(str(cell.block.get("name") or "unnamed_tool"), arguments)
        block: Item = {"type": "text", "text": text}
        self.record.add(
            "to_text",
            "ANT-PLACE-1",
            cell.where,
            "A tool call recorded in a user turn is none of the model's.",
            became=block,
            call_id=client_id(cell.block, "id"),
            removed=cell.block,
        )
        return [Cell(block, cell.where)]

    def _without_marker(self, message: Message, cell: Cell) -> Cell:
        block = {key: value for key, value in cell.block.items() if key != "cache_control"}
        self.record.add(
            "removed",
            "ANT-CACHE-1",
            cell.where,
            "A cache marker more than the API takes.",
            became=block,
            removed=cell.block["cache_control"],
        )
        message.touched = True
        return Cell(block, cell.where)

    def _split_around_results(self, message: Message) -> list[Message]:
        """Results recorded inside an assistant message, in user messages of their own.

        Signed thinking binds the blocks of its message together, so with thinking in it the
        message stays whole and the results follow it.
        """
        whole = any(cell.kind in THINKING for cell in message.cells)
        parts: list[Message] = []
        for cell in message.cells:
            role = "user" if cell.kind == "tool_result" else "assistant"
            home = next((part for part in parts if part.role == role), None) if whole else None
            if home is None and parts and parts[-1].role == role:
                home = parts[-1]
            if home is None:
                home = Message(role, [], message.where)
                parts.append(home)
            home.cells.append(cell)
        if whole:
            parts.sort(key=lambda part: part.role != "assistant")
        for part in parts:
            if part.role == "assistant":
                part.item = message.item
                continue
            for cell in part.cells:
                self.record.add(
                    "moved",
                    "ANT-PAIR-4",
                    cell.where,
                    "A result recorded inside an assistant message stands in a user message.",
                    became=cell,
                    call_id=client_id(cell.block, "tool_use_id"),
                )
        return parts


def _whole_object(value: object) -> Item | None:
    """Arguments that are a whole JSON object, in whatever form they were recorded."""
    if value is None or value == [] or value == "":
        return {}
    if isinstance(value, str):
        try:
            parsed = orjson.loads(value)
        except ValueError:
            return None
        return cast("Item", parsed) if isinstance(parsed, dict) else None
    return None


def is_fragment(block: Item) -> bool:
    """Whether a call's arguments hold a fragment that a repair put there."""
    given = block["input"]
    return len(given) == 1 and FRAGMENT in given


def as_text(value: object) -> str:
    """Arguments as they were recorded, as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _move_marker(cell: Cell, kept: list[Cell]) -> None:
    """A removed block's cache marker goes to the cacheable block before it."""
    if kept and not marked(kept[-1].block) and kept[-1].kind not in THINKING:
        last = kept[-1]
        kept[-1] = Cell({**last.block, "cache_control": cell.block["cache_control"]}, last.where)
