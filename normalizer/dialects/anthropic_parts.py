"""What a region of an Anthropic history is made of while it is under repair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from stopkit.history import Api
from stopkit.normalizer.dialects.anthropic_blocks import (
    RESPONSE_FIELDS,
    client_id,
    is_hosted_result,
)
from stopkit.normalizer.engine import Call, Result
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import path_of, to_plain
from stopkit.normalizer.result import Location
from stopkit.normalizer.wording import system_note
from stopkit.normalizer.work import Recorder

Item = dict[str, Any]
API: Final[Api] = "anthropic.messages"


@dataclass(slots=True, eq=False)
class Cell:
    """A content block, and where the input has it."""

    block: Item
    where: Location
    gone: bool = False
    """It leaves its message when the message is next tidied."""
    behind: list[Cell] | None = None
    """Cells that join the message right behind it."""
    nameless: bool = False
    """A call without a tool name: it cannot have run."""
    cut: bool = False
    """A call that may have been cut by the end of its turn (ANT-STOP-1)."""

    @property
    def kind(self) -> str:
        return cast("str", self.block["type"])


@dataclass(slots=True, eq=False)
class Message:
    """A message under repair.  `item` is its plain form, `source` the input's own object."""

    role: str
    cells: list[Cell]
    where: Location
    item: Item = field(default_factory=dict)
    source: Any = None
    touched: bool = True
    """Whether it has to be written anew."""
    after_gap: bool = False
    """A message of the user's stood before it, and left because there was nothing in it."""

    def tidy(self) -> None:
        """Let go of the cells that are gone, and take in those behind others."""
        if not self.touched:
            return
        cells: list[Cell] = []
        for cell in self.cells:
            if not cell.gone:
                cells.append(cell)
                if cell.behind:
                    cells += cell.behind
                    cell.behind = None
        self.cells = cells

    @property
    def empty(self) -> bool:
        return not self.cells and not (self.role == "system" and "output_config" in self.item)

    def write(self) -> Any:
        if not self.touched:
            return self.source
        kept = {key: value for key, value in self.item.items() if key not in RESPONSE_FIELDS}
        content: object = [cell.block for cell in self.cells]
        if len(self.cells) == 1 and self.cells[0].where == self.where and "content" in kept:
            # String content that nothing joined stays a string.
            content = self.cells[0].block["text"]
        return {**kept, "role": self.role, "content": content}


@dataclass(slots=True, eq=False)
class Exchange:
    """A model turn and what came back to it."""

    turn: int
    assistants: list[Message] = field(default_factory=list)
    users: list[Message] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    follows_user: bool = False
    """A frozen user message stands right before it."""
    results_only: str = ""
    """The rule by which the user turn may hold results only (ANT-SRV-3, -5, -7), or ""."""


@dataclass(slots=True, eq=False)
class Region:
    start: int
    stop: int
    exchanges: list[Exchange] = field(default_factory=list)
    plain: bool = False
    """Its messages are each fine in themselves: only results are out of place."""
    vanished_first: bool = False
    """The first exchange lost its assistant messages: its user turn joins the one before."""


def role_of(message: Any) -> object:
    if isinstance(message, dict):
        return message.get("role")
    return getattr(message, "role", None)


def misshapen(message: str, where: Location) -> HistoryError:
    return HistoryError(message, path=path_of(API, where), rule="GEN-SHAPE-1")


def take_out(message: Message, cell: Cell) -> None:
    cell.gone = message.touched = True


def takes_system(exchange: Exchange) -> bool:
    """Whether a system message may end this exchange: behind a user message or a server result."""
    if exchange.calls or exchange.follows_user:
        return True
    if any(m.role == "user" and m.cells for m in exchange.users):
        return True
    last = exchange.assistants[-1] if exchange.assistants else None
    return last is not None and is_hosted_result(last.cells[-1].kind)


def cells_of(
    exchanges: list[Exchange],
) -> Iterator[list[tuple[Item, tuple[Message, Cell]]]]:
    """The blocks of assistant messages as `gaps` reads them."""
    for exchange in exchanges:
        for message in exchange.assistants:
            yield [(cell.block, (message, cell)) for cell in message.cells if not cell.gone]


def result_of(turn: int, message: Message, cell: Cell) -> Result:
    block = cell.block
    return Result(
        client_id(block, "tool_use_id"),
        turn,
        cell.where,
        (message, cell),
        block.get("is_error"),
        _contents,
    )


def _contents(item: tuple[Message, Cell]) -> tuple[str, object]:
    block = item[1].block
    return text_of(block), comparable(block)


def text_of(block: Item) -> str:
    content = block.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"]
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )


def comparable(block: Item) -> object:
    content = block.get("content", "")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return (content, bool(block.get("is_error")))


def calls_of(items: list[Any]) -> Iterator[tuple[Location, Item]]:
    """Every client call of a history, with where it stands; what is no message is passed over."""
    for index, message in enumerate(items):
        plain = message if isinstance(message, dict) else _plain_or_nothing(message)
        content = plain.get("content") if plain.get("role") == "assistant" else None
        if isinstance(content, list):
            for position, block in enumerate(content):
                if not isinstance(block, dict):
                    block = _plain_or_nothing(block)
                if block.get("type") == "tool_use":
                    yield (index, "content", position), block


def _plain_or_nothing(value: Any) -> Item:
    try:
        plain = to_plain(value, (), API)
    except HistoryError:
        return {}
    return plain if isinstance(plain, dict) else {}


def results_behind(items: list[Any], index: int) -> tuple[dict[str, Item], int]:
    """The results of the user turn behind the model turn of message `index`, and where it ends."""
    while index < len(items) and role_of(items[index]) == "assistant":
        index += 1
    results: dict[str, Item] = {}
    while index < len(items) and role_of(items[index]) == "user":
        content = items[index]["content"] if isinstance(items[index], dict) else None
        if isinstance(content, list):
            for block in content:
                if isinstance(block, dict) and block.get("type") == "tool_result":
                    results.setdefault(client_id(block, "tool_use_id"), block)
        index += 1
    return results, index


def as_user_note(record: Recorder, message: Message) -> Message:
    text = "\n".join(
        str(cell.block.get("text", json.dumps(cell.block, ensure_ascii=False)))
        for cell in message.cells
    )
    block: Item = {"type": "text", "text": system_note(text)}
    record.add(
        "to_text",
        "ANT-SYS-1",
        message.where,
        "A system message that this model or place does not take: a marked user note.",
        became=block,
        removed=message.source,
    )
    return Message("user", [Cell(block, message.where)], message.where)
