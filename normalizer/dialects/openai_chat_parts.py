"""The pieces of a chat history under repair, and small readings of its messages."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stopkit.history import Api
from stopkit.normalizer.dialects.openai_chat_shapes import Item
from stopkit.normalizer.engine import Call
from stopkit.normalizer.plain import to_plain
from stopkit.normalizer.result import Location
from stopkit.normalizer.work import Answered, Recorder

API: Final[Api] = "openai.chat"


@dataclass(slots=True, eq=False)
class Cell:
    """A call of an assistant message in the form of `tool_calls`, and where the input has it."""

    block: Item
    where: Location
    legacy: bool = False
    """The input has it as `function_call`."""
    clean: bool = True
    incomplete: bool = False


@dataclass(slots=True, eq=False)
class Entry:
    """A message under repair.  `item` is its plain form, `source` the input's own object."""

    role: str
    item: Item
    source: Any
    where: Location
    touched: bool = False
    gone: bool = False
    """It has left, or is part of another."""
    taken: bool = False
    """It answers a call, whose turn writes it."""
    recorded: Item = field(default_factory=dict)
    """`item` as it was read."""
    flawed: bool = False
    """Something is wrong with the message by itself."""
    tool: bool = False
    """It is recorded as a tool message."""
    made: bool = False
    """It is ours, or stands for a result that could not stay one."""
    parts: Sequence[tuple[Location, Item]] = ()
    """What a tool message may not hold."""
    cells: Sequence[Cell] = ()

    def rewrite(self, item: Item) -> None:
        self.item = item
        self.touched = True

    def write(self) -> Any:
        return self.item if self.touched else self.source


@dataclass(slots=True, eq=False)
class Turn:
    """An assistant message (none where a region starts without) and what came behind it."""

    number: int
    head: Entry | None = None
    behind: list[Entry] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Region:
    start: int
    stop: int
    turns: list[Turn] = field(default_factory=list)


def role_of(message: Any) -> object:
    return message.get("role") if isinstance(message, dict) else getattr(message, "role", None)


def id_of(block: Item) -> str:
    """The id of a call; "" where it has none."""
    call_id = block.get("id")
    return call_id if isinstance(call_id, str) else ""


def name_of(block: Item) -> str:
    body = block.get(block["type"])
    name = body.get("name") if isinstance(body, dict) else None
    return name if isinstance(name, str) else block["type"]


def text_of(message: Item) -> str:
    """The text of a tool or function message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"]
        for part in content or ()
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def comparable(message: Item) -> object:
    """The content of a tool message, to tell a copy from another result."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
        return content[0]["text"]
    return "" if content is None else content


def legacy_call(index: int, body: Item) -> Item:
    """The `function_call` of message `index` in the form of `tool_calls`, under an id of ours."""
    return {"id": f"call_legacy_{index}", "type": "function", "function": body}


def calls_of(items: list[Any]) -> Iterator[tuple[Location, Item]]:
    """Every call of a history in the form of `tool_calls`, with where it stands."""
    for index, message in enumerate(items):
        if role_of(message) != "assistant":
            continue
        item = message if isinstance(message, dict) else to_plain(message, (index,), API)
        for at, block in enumerate(item.get("tool_calls") or ()):
            if not isinstance(block, dict):
                block = to_plain(block, (index, "tool_calls", at), API)
            yield (index, "tool_calls", at), block
        legacy = item.get("function_call")
        if legacy is not None:
            block = legacy_call(index, legacy)
            yield (index, "function_call"), block


def counted_calls(
    items: list[Any],
    looked: Sequence[tuple[int, int]],
    ours: Container[Location],
    past: Mapping[str, Answered],
) -> Iterator[tuple[Location, Item, int]]:
    """Every call with its number among those of its id.

    In the stretches that were looked at, only `ours` are calls: the rest were copies, or left.
    """
    counts: dict[str, int] = {}
    at = 0
    for where, block in calls_of(items):
        index = where[0]
        assert isinstance(index, int)
        while at < len(looked) and looked[at][1] <= index:
            at += 1
        if at < len(looked) and looked[at][0] <= index and where not in ours:
            continue
        call_id = id_of(block)
        before = counts.get(call_id)
        if before is None:
            known = past.get(call_id)
            before = known.occurrence if known else 0
        counts[call_id] = before + 1
        yield where, block, before + 1


def leaves(
    record: Recorder, entry: Entry, rule: str, note: str, call_id: str | None = None
) -> None:
    """Let a message leave; the account holds it."""
    entry.gone = True
    record.add("removed", rule, entry.where, note, call_id=call_id, removed=entry.recorded)
