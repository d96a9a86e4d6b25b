"""Anthropic Messages: read what needs a look, let the engine pair it, write it back.

A region is a stretch of whole exchanges (see `anthropic_scan`).  Each message is cleaned for
itself, the calls and results of all regions are paired together, and each exchange is written
anew: its assistant messages, then one run of results in the order of the calls, then the rest of
its user turn.  What did not change is the same object.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

import orjson

from stopkit.history import Api
from stopkit.normalizer.dialects.anthropic_blocks import (
    CLIENT_ID,
    MAX_MARKERS,
    MAX_MESSAGES,
    NAME,
    RESPONSE_FIELDS,
    ROLES,
    SERVER_CALLS,
    SERVER_ID,
    SYSTEM_CONTENT,
    THINKING,
    blank,
    client_id,
    is_hosted_result,
    marked,
    markers_in_request,
    models_only,
    no_result_content,
    programmatic,
    signed,
    tool_names,
)
from stopkit.normalizer.dialects.anthropic_check import violations
from stopkit.normalizer.dialects.anthropic_scan import Scan, scan, touching_joined
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.engine import (
    Call,
    Result,
    Verdict,
    attribute,
    is_synthetic,
    outcome_of_result,
    settle,
)
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.models import binds_thinking, refuses_prefill, takes_system_messages
from stopkit.normalizer.plain import is_plain, path_of, replace_surrogates, to_plain, unsound
from stopkit.normalizer.result import CallOutcome, Hint, Location, Splice
from stopkit.normalizer.wording import (
    fold,
    history_start_note,
    late_note,
    made_up,
    misplaced_call_note,
    orphan_note,
    read_note,
    system_note,
)
from stopkit.normalizer.work import Answered, Context, LazyElsewhere, Recorder, Repaired, spliced, trimmed
from stopkit.outcome import Outcome, Succeeded, Unknown

Item = dict[str, Any]
API: Final[Api] = "anthropic.messages"
FRAGMENT: Final = "incomplete_arguments"
"""The key under which call arguments stand that never became a JSON object (ANT-ID-3)."""


@dataclass(slots=True, eq=False)
class _Cell:
    """A content block, and where the input has it."""

    block: Item
    where: Location
    gone: bool = False
    """It leaves its message when the message is next tidied."""
    behind: list[_Cell] | None = None
    """Cells that join the message right behind it."""
    cut: bool = False
    """A call that may have been cut by the end of its turn (ANT-STOP-1)."""

    @property
    def kind(self) -> str:
        return cast("str", self.block["type"])


@dataclass(slots=True, eq=False)
class _Message:
    """A message under repair.  `item` is its plain form, `source` the input's own object."""

    role: str
    cells: list[_Cell]
    where: Location
    item: Item = field(default_factory=dict)
    source: Any = None
    touched: bool = True
    """Whether it has to be written anew."""

    def tidy(self) -> None:
        """Let go of the cells that are gone, and take in those behind others."""
        if not self.touched:
            return
        cells: list[_Cell] = []
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
        return {**kept, "role": self.role, "content": [cell.block for cell in self.cells]}


@dataclass(slots=True, eq=False)
class _Exchange:
    """A model turn and what came back to it."""

    turn: int
    assistants: list[_Message] = field(default_factory=list)
    users: list[_Message] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results_only: bool = False
    """The user turn may hold results only (ANT-SRV-3, ANT-SRV-7)."""


@dataclass(slots=True, eq=False)
class _Region:
    start: int
    stop: int
    exchanges: list[_Exchange] = field(default_factory=list)
    vanished_first: bool = False
    """The first exchange lost its assistant messages: its user turn joins the one before."""


def repair(items: list[Any], found: Scan, context: Context) -> Repaired:
    """The splices that make `items` valid, with their account.

    Raises:
        HistoryError: something in the regions cannot be repaired truthfully; the path names it.
    """
    return _Repair(items, found, context).run()


class _Repair:
    def __init__(self, items: list[Any], found: Scan, context: Context) -> None:
        self.items = items
        self.found = found
        self.context = context
        self.tools = tool_names(context.request)
        self.system_here = takes_system_messages(context.request.get("model"))
        self.record = Recorder()
        self.result = Repaired()
        self.regions: list[_Region] = []
        self.turn = 0
        self.surplus = self._surplus_markers()
        self.elsewhere = LazyElsewhere(self._index_elsewhere, context.past, found.ids)
        self.used_ids: frozenset[str] | None = None
        self.numbers: dict[str, int] = {}
        self.thinking_read = False

    # -- the whole --------------------------------------------------------------------------

    def run(self) -> Repaired:
        self._read_regions()
        self._pair()
        exchanges = [exchange for region in self.regions for exchange in region.exchanges]
        for exchange in exchanges:
            self._write_ids(exchange)
            self._write_results(exchange)
        for exchange in exchanges:
            for message in exchange.users:
                message.tidy()
            exchange.users = [message for message in exchange.users if not message.empty]
        offset = 0
        for region in self.regions:
            before = tuple(self.items[region.start : region.stop])
            splice = trimmed(region.start, before, region.start + offset, self._write_region(region))
            if splice is not None:
                self.result.splices.append(splice)
                offset += len(splice.after) - len(splice.before)
        self._announce(offset)
        self._warn_of_thinking()
        self.result.changes = self.record.changes
        return self.result

    def _warn_of_thinking(self) -> None:
        """ANT-THINK-6: say so where a repair stands before signed thinking."""
        splices = self.result.splices
        if not splices or binds_thinking(self.context.request.get("model")) is False:
            return
        if not self.thinking_read and self.found.thinking < splices[0].start:
            return
        where = _thinking_behind(spliced(self.items, splices), splices[0])
        if where is not None:
            self.result.hints.append(
                Hint(
                    "thinking_prefix_changed",
                    "A repair stands before signed thinking. Models that bind thinking to what "
                    "precedes it (Opus 5.5, Sonnet 5.5, Fable 5.1 and later) refuse it unless the "
                    "request carries thinking.block_binding.prefix_mismatch_behavior: "
                    '"drop_block" (beta thinking-binding-controls-2026-08-01). Store the repair, '
                    "so that it is the same on each later request.",
                    path_of(API, where),
                )
            )

    def _read_regions(self) -> None:
        spans = touching_joined(self.found.spans)
        odd = sorted(self.found.odd)
        position = 0
        while position < len(spans):
            start, stop = spans[position]
            position += 1
            more = 1
            while True:
                mark, turn = self.record.mark(), self.turn
                at = bisect_left(odd, start)
                if at == len(odd) or odd[at] >= stop:
                    region = self._read_plain_region(start, stop)
                else:
                    region = self._read_region(start, stop)
                if region.vanished_first:
                    start = self._exchange_before(start)
                elif self._spills(region) and stop < len(self.items):
                    # Doubling keeps a long chain of such regions from being read again and again.
                    for _ in range(more):
                        stop = self._exchange_end(stop)
                    more *= 2
                    while position < len(spans) and spans[position][0] <= stop:
                        stop = max(stop, spans[position][1])
                        position += 1
                else:
                    break
                self.record.rewind(mark)
                self.turn = turn
            self.regions.append(region)
            if stop < len(self.items):
                # A later model turn stands behind the region, looked at or not.
                self.turn += 1

    def _exchange_before(self, start: int) -> int:
        start -= 1
        while start > 0 and _role(self.items[start]) != "assistant":
            start -= 1
        while start > 0 and _role(self.items[start - 1]) == "assistant":
            start -= 1
        return start

    def _exchange_end(self, stop: int) -> int:
        while stop < len(self.items) and _role(self.items[stop]) == "assistant":
            stop += 1
        while stop < len(self.items) and _role(self.items[stop]) != "assistant":
            stop += 1
        return stop

    def _spills(self, region: _Region) -> bool:
        """Whether the region has to hand something on to the exchange behind it."""
        last = region.exchanges[-1] if region.exchanges else None
        if last is None:
            return False
        if last.results_only and any(
            cell.kind != "tool_result" for message in last.users for cell in message.cells
        ):
            return True
        has_system = any(message.role == "system" and message.cells for message in last.users)
        return has_system and not _takes_system(last)

    # -- reading ----------------------------------------------------------------------------

    def _read_region(self, start: int, stop: int) -> _Region:
        region = _Region(start, stop)
        messages: list[_Message] = []
        for index in range(start, stop):
            message = self._read_message(index)
            if message is not None and not self._is_copy_of(messages, message):
                messages.append(message)
        cleaned: list[_Message] = []
        for message in messages:
            cleaned += self._clean(message)
        region.vanished_first = start > 0 and (not cleaned or cleaned[0].role != "assistant")
        region.exchanges = self._exchanges(cleaned)
        self._server_tools(region, more=stop < len(self.items))
        return region

    def _read_plain_region(self, start: int, stop: int) -> _Region:
        """A region whose messages are each fine in themselves."""
        messages: list[_Message] = []
        for index in range(start, stop):
            item = self.items[index]
            content = item["content"]
            if content.__class__ is str:
                cells = [_Cell({"type": "text", "text": content}, (index,))]
            else:
                cells = [
                    _Cell(block, (index, "content", position))
                    for position, block in enumerate(content)
                ]
            message = _Message(item["role"], cells, (index,), item, item, False)
            if not self._is_copy_of(messages, message):
                messages.append(message)
        return _Region(start, stop, self._exchanges(messages))

    def _is_copy_of(self, messages: list[_Message], message: _Message) -> bool:
        """Whether the same assistant message, with calls in it, was recorded right before."""
        if not messages or message.role != "assistant" or messages[-1].role != "assistant":
            return False
        if messages[-1].item != message.item or not any(
            cell.kind == "tool_use" for cell in message.cells
        ):
            return False
        self.record.add(
            "removed",
            "ANT-ID-2",
            message.where,
            "The same assistant message was recorded twice: one copy stays.",
            removed=message.source,
        )
        return True

    def _read_message(self, index: int) -> _Message | None:
        source = self.items[index]
        item, touched = self._sound(source, index)
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise _misshapen("role: Input should be 'user' or 'assistant'", (index,))
        for name in RESPONSE_FIELDS:
            if name in item:
                touched = True
                self.record.add(
                    "removed",
                    "ANT-SHAPE-1",
                    (index, name),
                    "A field of a stored response, which a request does not take.",
                    removed=item[name],
                )
        content = item.get("content")
        cells: list[_Cell]
        if isinstance(content, str):
            cells = [_Cell({"type": "text", "text": content}, (index,))]
        elif content is None:
            cells = []
        elif isinstance(content, list):
            cells = []
            for position, block in enumerate(content):
                where: Location = (index, "content", position)
                if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                    raise _misshapen("a content block is an object with a type", where)
                cells.append(_Cell(block, where))
        else:
            raise _misshapen("content: Input should be a valid string or list", (index,))
        if item.get("stop_reason") == "refusal" and role == "assistant":
            self.record.add(
                "removed",
                "ANT-STOP-1",
                (index,),
                "The model refused in this turn; its partial output is to be discarded.",
                removed=source,
            )
            return None
        if item.get("stop_reason") == "max_tokens" and cells and cells[-1].kind == "tool_use":
            cells[-1].cut = True
        return _Message(role, cells, (index,), item, source, touched)

    def _sound(self, source: Any, index: int) -> tuple[Item, bool]:
        """A message as plain JSON, and whether that took a change."""
        item = source
        touched = False
        if not is_plain(source):
            item = to_plain(source, (index,), API)
            for part in unsound(item, (index,)):
                if not part.surrogate:
                    raise HistoryError(
                        part.message, path=path_of(API, part.location), rule="GEN-JSON-1"
                    )
                self.record.add(
                    "rewritten",
                    "GEN-JSON-1",
                    part.location,
                    "A lone surrogate, which is no text, became U+FFFD.",
                    removed=_at(item, part.location[1:]),
                )
                touched = True
            if touched:
                item = replace_surrogates(item)
        if not isinstance(item, dict):
            raise _misshapen("a message is an object", (index,))
        return item, touched

    def _clean(self, message: _Message) -> list[_Message]:
        """The message without what may not stand in it; none, or split where a result stands."""
        was_empty = not message.cells
        fallback = max(
            (at for at, cell in enumerate(message.cells) if cell.kind == "fallback"), default=-1
        )
        kept: list[_Cell] = []
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
            return [self._as_user_note(message)]
        return [message]

    def _clean_cell(self, message: _Message, cell: _Cell, *, before_fallback: bool) -> list[_Cell]:
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
                name = _directive_name(cell.block)
                if self.tools is not None and name is not None and name not in self.tools:
                    return self._gone("ANT-SYS-2", cell, f"The request has no tool '{name[:100]}'.")
            case _:
                pass
        return [cell]

    def _gone(self, rule: str, cell: _Cell, note: str) -> list[_Cell]:
        self.record.add("removed", rule, cell.where, note, removed=cell.block)
        return []

    def _clean_text(self, cell: _Cell) -> list[_Cell]:
        text = cell.block.get("text")
        if not isinstance(text, str):
            raise _misshapen("text: Input should be a valid string", cell.where)
        if not blank(text):
            return [cell]
        if text:
            return self._gone("ANT-EMPTY-2", cell, "A text of white space only.")
        rule = "ANT-EMPTY-1" if len(cell.where) > 1 else "ANT-EMPTY-3"
        return self._gone(rule, cell, "A text without any character.")

    def _clean_thinking(self, message: _Message, cell: _Cell) -> list[_Cell]:
        self.thinking_read = True
        if not signed(cell.block):
            return self._gone(
                "ANT-THINK-1", cell, "Thinking that was cut before its signature came."
            )
        if marked(cell.block):
            return [self._without_marker(message, cell)]
        return [cell]

    def _clean_call(self, message: _Message, cell: _Cell) -> _Cell:
        block = cell.block
        given = block.get("input")
        if not isinstance(given, dict):
            whole = _whole_object(given)
            block = {**block, "input": whole if whole is not None else {FRAGMENT: _text(given)}}
            self.record.add(
                "rewritten",
                "ANT-ID-3",
                cell.where,
                "The arguments were a JSON text: parsed."
                if whole is not None
                else "The arguments never became a JSON object: kept as they are, under a key that "
                "says so.",
                became=block,
                call_id=client_id(block, "id"),
                removed=given,
            )
            message.touched = True
        name = block.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            block = {**block, "name": _safe_name(name)}
            self.record.add(
                "renamed",
                "ANT-NAME-1",
                cell.where,
                "A tool name that the API does not take.",
                became=block,
                call_id=client_id(block, "id"),
                removed=name,
            )
            message.touched = True
        cell.block = block
        return cell

    def _clean_result(self, message: _Message, cell: _Cell) -> list[_Cell]:
        """The result, and behind it the blocks that may not stand inside it."""
        block = cell.block
        is_error = block.get("is_error")
        if is_error is not None and not isinstance(is_error, bool):
            raise _misshapen("is_error: Input should be a valid boolean", cell.where)
        if "content" not in block or isinstance(block["content"], str):
            return [cell]
        content = block["content"]
        if content is not None and not isinstance(content, list):
            raise _misshapen("content: Input should be a valid string or list", cell.where)
        kept: list[Item] = []
        moved: list[_Cell] = []
        for position, inner in enumerate(content or ()):
            where: Location = (*cell.where, "content", position)
            if not isinstance(inner, dict) or not isinstance(inner.get("type"), str):
                raise _misshapen("a content block is an object with a type", where)
            part = _Cell(inner, where)
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
                    became=block,
                    removed=part.block,
                )
                part = _Cell({"type": "text", "text": text}, where)
                if is_error:
                    kept.append(part.block)
                    continue
            elif is_error:
                self.record.add(
                    "moved",
                    "ANT-TR-1",
                    where,
                    "A result that is an error holds text only: moved behind the results.",
                    became=part.block,
                    call_id=client_id(block, "tool_use_id"),
                )
                moved.append(part)
                continue
            kept.append(part.block)
        if kept and len(kept) == len(content or ()) and all(
            new is old for new, old in zip(kept, content or ())
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
                became=new,
                call_id=client_id(block, "tool_use_id"),
                removed=content,
            )
        cell.block = new
        return [cell, *moved]

    def _unknown_reference(self, block: Item) -> bool:
        return self.tools is not None and block.get("tool_name") not in self.tools

    def _misplaced(self, cell: _Cell) -> list[_Cell]:
        if cell.kind != "tool_use":
            return self._gone("ANT-PLACE-1", cell, "Only an assistant message holds such a block.")
        arguments = _text(cell.block.get("input"))
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
        return [_Cell(block, cell.where)]

    def _without_marker(self, message: _Message, cell: _Cell) -> _Cell:
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
        return _Cell(block, cell.where)

    def _split_around_results(self, message: _Message) -> list[_Message]:
        """Results recorded inside an assistant message, in user messages of their own.

        Signed thinking binds the blocks of its message together, so with thinking in it the
        message stays whole and the results follow it.
        """
        whole = any(cell.kind in THINKING for cell in message.cells)
        parts: list[_Message] = []
        for cell in message.cells:
            role = "user" if cell.kind == "tool_result" else "assistant"
            home = next((part for part in parts if part.role == role), None) if whole else None
            if home is None and parts and parts[-1].role == role:
                home = parts[-1]
            if home is None:
                home = _Message(role, [], message.where)
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
                    became=cell.block,
                    call_id=client_id(cell.block, "tool_use_id"),
                )
        return parts

    def _as_user_note(self, message: _Message) -> _Message:
        text = "\n".join(
            str(cell.block.get("text", json.dumps(cell.block, ensure_ascii=False)))
            for cell in message.cells
        )
        block: Item = {"type": "text", "text": system_note(text)}
        self.record.add(
            "to_text",
            "ANT-SYS-1",
            message.where,
            "A system message that this model or place does not take: a marked user note.",
            became=block,
            removed=message.source,
        )
        return _Message("user", [_Cell(block, message.where)], message.where)

    def _surplus_markers(self) -> frozenset[Location]:
        """Where the cache markers over the limit are: the earliest ones."""
        if not self.found.markers:
            return frozenset()
        places: list[Location] = []
        for start, stop in self.found.spans:
            for index in range(start, stop):
                places += _marker_places(self.items[index], index)
        surplus = len(places) + markers_in_request(self.context.request) - MAX_MARKERS
        return frozenset(places[: max(surplus, 0)])

    # -- exchanges --------------------------------------------------------------------------

    def _exchanges(self, messages: list[_Message]) -> list[_Exchange]:
        exchanges: list[_Exchange] = []
        current: _Exchange | None = None
        for message in messages:
            if message.role == "assistant":
                if current is None or current.users or not current.assistants:
                    self.turn += 1
                    current = _Exchange(self.turn)
                    exchanges.append(current)
                current.assistants.append(message)
            else:
                if current is None:
                    current = _Exchange(self.turn)
                    exchanges.append(current)
                current.users.append(message)
        for exchange in exchanges:
            self._collect_calls(exchange)
        return exchanges

    def _collect_calls(self, exchange: _Exchange) -> None:
        seen: dict[str, _Cell | set[bytes]] = {}
        for message in exchange.assistants:
            for cell in message.cells:
                if cell.block["type"] != "tool_use":
                    continue
                call_id = client_id(cell.block, "id")
                if _is_copy(seen, call_id, cell):
                    self.record.add(
                        "removed",
                        "ANT-ID-2",
                        cell.where,
                        "An identical copy of a call in its turn.",
                        call_id=call_id,
                        removed=cell.block,
                    )
                    cell.gone = message.touched = True
                    continue
                exchange.calls.append(
                    Call(
                        id=call_id,
                        name=str(cell.block.get("name")),
                        turn=exchange.turn,
                        index=cell.where,
                        item=(message, cell),
                        incomplete=cell.cut or _is_fragment(cell.block),
                    )
                )
            message.tidy()
        exchange.assistants = [message for message in exchange.assistants if message.cells]

    def _server_tools(self, region: _Region, *, more: bool) -> None:
        """Drop server calls without result and hosted results without call (ANT-SRV-1, -4)."""
        turns = [exchange for exchange in region.exchanges if exchange.assistants]
        found = gaps(_cells_of(turns))
        for message, cell in found.callless:
            self._drop_cell(message, cell, "ANT-SRV-4")
        last = turns[-1] if turns else None
        still_open = (
            last is not None
            and not more
            and last is region.exchanges[-1]
            and bool(last.calls or not last.users)
        )
        lost = found.lost if still_open else [*found.lost, *found.waiting]
        for message, cell in lost:
            self._drop_cell(message, cell, "ANT-SRV-1")
        for exchange in turns:
            if exchange.calls:
                alone = gaps(_cells_of([exchange]))
                exchange.results_only = bool(alone.waiting or alone.lost) or any(
                    programmatic(call.item[1].block) for call in exchange.calls
                )
        for exchange in turns:
            for message in exchange.assistants:
                message.tidy()
            exchange.assistants = [message for message in exchange.assistants if message.cells]

    def _drop_cell(self, message: _Message, cell: _Cell, rule: str) -> None:
        note = (
            "A provider-run call that never got its result."
            if rule == "ANT-SRV-1"
            else "A provider's result without its call."
        )
        self._gone(rule, cell, note)
        cell.gone = message.touched = True

    # -- pairing ----------------------------------------------------------------------------

    def _pair(self) -> None:
        calls: list[Call] = []
        results: list[Result] = []
        for region in self.regions:
            for exchange in region.exchanges:
                calls += exchange.calls
                for message in exchange.users:
                    for cell in message.cells:
                        if cell.kind == "tool_result":
                            results.append(_result(exchange.turn, message, cell))
        if self.context.evidences.by_occurrence or self.context.past:
            self._count_occurrences(calls)
        orphans = attribute(calls, results, self.elsewhere)
        for result in orphans:
            self._settle_orphan(result)
        for region in self.regions:
            for exchange in region.exchanges:
                for call in exchange.calls:
                    self._settle(call)

    def _settle(self, call: Call) -> None:
        evidence = self.context.evidences.of(call.id, call.occurrence)
        keep_open = self.context.live == "keep" and call.turn == self.turn
        verdict = settle(call, evidence, last_turn=self.turn, keep_open=keep_open)
        self.result.decisions[call.index] = (call, verdict)
        if verdict.pending:
            self.result.pending.append(call.id)
        if verdict.keep is None and call.item[1].cut:
            self._wrap_cut(call)
        for result in verdict.drop:
            message, cell = result.item
            self.record.add(
                "removed",
                "ANT-PAIR-5",
                result.index,
                "A second result for one call, which only stands for a result or repeats it.",
                call_id=call.id,
                removed=cell.block,
            )
            _take_out(message, cell)
        for result in verdict.deliver:
            self._to_text(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(call.id, call.occurrence, result.text or None),
                "A result that came after the model had gone on: marked data where it arrived.",
            )

    def _wrap_cut(self, call: Call) -> None:
        message, cell = call.item
        if _is_fragment(cell.block):
            return
        given = cell.block["input"]
        cell.block = {**cell.block, "input": {FRAGMENT: _text(given)}}
        message.touched = True
        self.record.add(
            "rewritten",
            "ANT-STOP-1",
            cell.where,
            "The turn ran into max_tokens in this call: its arguments may not be whole.",
            became=cell.block,
            call_id=call.id,
            removed=given,
        )

    def _settle_orphan(self, result: Result) -> None:
        answered = self.elsewhere.get(result.id)
        if answered is None:
            self._to_text(
                result,
                "to_text",
                "ANT-PAIR-4",
                orphan_note(result.id, result.text or None),
                "A result whose call is not in the history: attributed text.",
            )
        elif answered.content == result.content:
            message, cell = result.item
            self.record.add(
                "removed",
                "ANT-PAIR-5",
                result.index,
                "A copy of a result that its call has already.",
                call_id=result.id,
                removed=cell.block,
            )
            _take_out(message, cell)
        else:
            self._to_text(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(result.id, answered.occurrence, result.text or None),
                "A result that came after its call had been answered: marked data where it arrived.",
            )

    def _to_text(self, result: Result, kind: Any, rule: str, text: str, note: str) -> None:
        message, cell = result.item
        block: Item = {"type": "text", "text": text}
        self.record.add(
            kind, rule, result.index, note, became=block, call_id=result.id, removed=cell.block
        )
        content = cell.block.get("content")
        media = [
            _Cell(inner, (*cell.where, "content", at))
            for at, inner in enumerate(content if isinstance(content, list) else ())
            if inner["type"] in ("image", "document", "search_result")
        ]
        cell.block, cell.behind = block, media
        message.touched = True

    def _count_occurrences(self, calls: list[Call]) -> None:
        counts: dict[str, int] = {
            call_id: answered.occurrence for call_id, answered in self.context.past.items()
        }
        numbers: dict[Location, int] = {}
        for where, block in calls_of(self.items):
            call_id = client_id(block, "id")
            counts[call_id] = numbers[where] = counts.get(call_id, 0) + 1
        for call in calls:
            call.occurrence = numbers.get(call.index, 1)

    def _index_elsewhere(self) -> Mapping[str, Answered]:
        index: dict[str, Answered] = {}
        at = 0
        for region in [*self.regions, _Region(len(self.items), len(self.items))]:
            for message in self.items[at : region.start]:
                content = message["content"]
                if content.__class__ is list:
                    for block in content:
                        kind = block["type"]
                        if kind == "tool_use":
                            known = index.get(block["id"])
                            index[block["id"]] = Answered(known.occurrence + 1 if known else 1, None)
                        elif kind == "tool_result":
                            index[block["tool_use_id"]].content = _comparable(block)
            at = region.stop
        return index

    # -- writing ----------------------------------------------------------------------------

    def _write_region(self, region: _Region) -> list[Any]:
        out: list[_Message] = []
        carried: list[_Cell] = []
        system: list[_Message] = []
        for exchange in region.exchanges:
            carried = self._defer(exchange, carried)
            system = self._place_system(exchange, system)
            out += exchange.assistants
            out += exchange.users
        at_end = region.stop == len(self.items)
        if system:
            out += [self._as_user_note(message) for message in system]
        if carried:
            out += self._carry_out(region, carried)
        if region.start == 0 and not self.context.follows:
            self._open_with_user(region, out)
        if at_end:
            self._finish(out)
        return [message.write() for message in out]

    def _write_ids(self, exchange: _Exchange) -> None:
        used: set[str] = set()
        for call in exchange.calls:
            new = call.id
            if not CLIENT_ID.match(new):
                new = _safe_id(new)
            if new in used:
                new = self._another_id(new, used)
            used.add(new)
            if new == call.item[1].block.get("id"):
                continue
            message, cell = call.item
            old = cell.block.get("id")
            cell.block = {**cell.block, "id": new}
            message.touched = True
            self.record.add(
                "renamed",
                "ANT-ID-2" if old == call.id and CLIENT_ID.match(call.id) else "ANT-ID-1",
                cell.where,
                f"The call and its result are now called {new}.",
                became=cell.block,
                call_id=call.id,
                removed=old,
            )
            call.id = new

    def _another_id(self, call_id: str, used: set[str]) -> str:
        if self.used_ids is None:
            self.used_ids = frozenset(
                client_id(block, "id") for _, block in calls_of(self.items)
            )
        number = self.numbers.get(call_id, 2)
        while f"{call_id}-{number}" in used or f"{call_id}-{number}" in self.used_ids:
            number += 1
        self.numbers[call_id] = number + 1
        return f"{call_id}-{number}"

    def _write_results(self, exchange: _Exchange) -> None:
        answers: list[tuple[_Message | None, _Cell]] = []
        fresh = False
        for call in exchange.calls:
            verdict = self.result.decisions[call.index][1]
            if not verdict.pending:
                answer = self._answer(call, verdict)
                fresh = fresh or answer[0] is None
                answers.append(answer)
        for message in exchange.users:
            message.tidy()
        leading, results = _leading_run(exchange.users)
        if not fresh and len(results) == len(leading) == len(answers) and all(
            id(cell) in leading for _, cell in answers
        ):
            return
        if not answers:
            return
        run: list[_Cell] = []
        for owner, cell in answers:
            if owner is not None:
                if id(cell) not in leading:
                    self._say_moved(exchange, owner, cell)
                _take_out(owner, cell)
            run.append(_Cell(cell.block, cell.where))
        home = exchange.users[0] if exchange.users else None
        if home is None or home.role != "user":
            home = _Message("user", [], exchange.assistants[-1].where)
            exchange.users.insert(0, home)
        home.cells[:0] = run
        home.touched = True

    def _say_moved(self, exchange: _Exchange, owner: _Message, cell: _Cell) -> None:
        own = bool(exchange.users) and owner is exchange.users[0]
        self.record.add(
            "moved",
            "ANT-ORD-1" if own else "ANT-PAIR-3",
            cell.where,
            "The result now stands right behind its call, before everything else.",
            became=cell.block,
            call_id=client_id(cell.block, "tool_use_id"),
        )

    def _answer(self, call: Call, verdict: Verdict) -> tuple[_Message | None, _Cell]:
        """The result cell of a call, and the message it stands in now (None: a new one)."""
        _, call_cell = call.item
        toolset = call_cell.block.get("toolset_name")
        if verdict.keep is None or verdict.rewrite:
            outcome = verdict.outcome
            assert outcome is not None
            block: Item = {"type": "tool_result", "tool_use_id": call.id, "content": made_up(outcome)}
            if not isinstance(outcome, Succeeded):
                block["is_error"] = True
            if toolset is not None:
                block["toolset_name"] = toolset
            old: _Cell | None = None
            if verdict.keep is not None:
                message, old = verdict.keep.item
                _take_out(message, old)
            cell = _Cell(block, call.index if old is None else old.where)
            self.record.add(
                "inserted" if old is None else "rewritten",
                "ANT-PAIR-1" if old is None else "GEN-LATE-1",
                cell.where,
                f"No result was recorded; this one says what is known: {outcome.status}."
                if old is None
                else f"The placeholder now says what is known: {outcome.status}.",
                became=block,
                call_id=call.id,
                outcome=outcome.status,
                removed=None if old is None else old.block,
            )
            return None, cell
        message, cell = verdict.keep.item
        block = cell.block
        if verdict.merge:
            block = self._merged(call, block, verdict.merge)
        if block.get("tool_use_id") != call.id or block.get("toolset_name") != toolset:
            block = {**block, "tool_use_id": call.id}
            if toolset is None:
                block.pop("toolset_name", None)
            else:
                block["toolset_name"] = toolset
            if cell.block.get("toolset_name") != toolset:
                self.record.add(
                    "rewritten",
                    "ANT-ID-5",
                    cell.where,
                    "The result names the toolset of its call.",
                    became=block,
                    call_id=call.id,
                    removed=cell.block.get("toolset_name"),
                )
        if block is not cell.block:
            cell.block = block
            message.touched = True
        return message, cell

    def _merged(self, call: Call, block: Item, more: list[Result]) -> Item:
        blocks = [block]
        for result in more:
            message, cell = result.item
            blocks.append(cell.block)
            _take_out(message, cell)
        contents = [part.get("content", "") for part in blocks]
        merged = {**block}
        if all(isinstance(content, str) for content in contents):
            merged["content"] = fold(contents[0], contents[1:])
        else:
            parts: list[Item] = []
            for number, content in enumerate(contents, start=1):
                if number > 1:
                    head = f"[stopkit: recorded result {number} of the same call]"
                    parts.append({"type": "text", "text": head})
                if isinstance(content, str):
                    parts += [{"type": "text", "text": content}] if not blank(content) else []
                else:
                    parts += content
            merged["content"] = parts
        is_error = any(part.get("is_error") for part in blocks)
        if is_error:
            merged["is_error"] = True
            if isinstance(merged["content"], list):
                merged["content"] = [p for p in merged["content"] if p["type"] == "text"]
        for result in more:
            self.record.add(
                "merged",
                "ANT-PAIR-5",
                result.index,
                "Two results were recorded for one call: both stand in one block.",
                became=merged,
                call_id=call.id,
                removed=result.item[1].block,
            )
        return merged

    def _defer(self, exchange: _Exchange, carried: list[_Cell]) -> list[_Cell]:
        """Keep a reply to results only; what else it held goes to the next user turn."""
        if exchange.results_only:
            for message in exchange.users:
                rest = [cell for cell in message.cells if cell.kind != "tool_result"]
                if message.role != "user" or not rest:
                    continue
                message.cells = [cell for cell in message.cells if cell.kind == "tool_result"]
                message.touched = True
                carried = [*carried, *rest]
            exchange.users = [message for message in exchange.users if not message.empty]
            return carried
        home = next((m for m in exchange.users if m.role == "user"), None)
        if not carried or home is None:
            return carried
        for cell in carried:
            self._say_deferred(cell)
        home, at = _behind_results(exchange.users, home)
        home.cells[at:at] = carried
        home.touched = True
        return []

    def _say_deferred(self, cell: _Cell, *, gone: bool = False) -> None:
        self.record.add(
            "deferred",
            "ANT-SRV-3",
            cell.where,
            "While a provider-run call is open the reply holds results only: held back for the "
            "next user turn.",
            became=None if gone else cell.block,
            removed=cell.block if gone else None,
        )

    def _carry_out(self, region: _Region, carried: list[_Cell]) -> list[_Message]:
        last = region.exchanges[-1]
        if last.results_only:
            for cell in carried:
                self._say_deferred(cell, gone=True)
            self.result.deferred += [cell.block for cell in carried]
            return []
        for cell in carried:
            self._say_deferred(cell)
        return [_Message("user", carried, carried[0].where)]

    def _place_system(self, exchange: _Exchange, waiting: list[_Message]) -> list[_Message]:
        own = [m for m in exchange.users if m.role == "system" and m.cells]
        if not own and not waiting:
            return []
        wanted = [*waiting, *own]
        users = [m for m in exchange.users if m not in own]
        if not _takes_system(exchange):
            exchange.users = users
            return wanted
        if not waiting and len(own) == 1 and exchange.users[-1] is own[0]:
            return []
        home, *others = wanted
        for message in wanted:
            self.record.add(
                "moved",
                "ANT-SYS-1",
                message.where,
                "A system message stands right before the next assistant message.",
                became=message.cells[0].block,
            )
        for message in others:
            home.cells += message.cells
            home.touched = True
        exchange.users = [*users, home]
        return []

    def _open_with_user(self, region: _Region, out: list[_Message]) -> None:
        if out:
            first: object = out[0].role
        else:
            first = _role(self.items[region.stop]) if region.stop < len(self.items) else None
        if first == "assistant":
            block: Item = {"type": "text", "text": history_start_note()}
            self.record.add(
                "noted",
                "ANT-ROLE-1",
                (0,),
                "A history starts with the user: a marked note says that its beginning is missing.",
                became=block,
            )
            out.insert(0, _Message("user", [_Cell(block, (0,))], (0,)))

    def _finish(self, out: list[_Message]) -> None:
        """The end rules that a repair can meet (ANT-END-2, ANT-THINK-5)."""
        last = out[-1] if out else None
        if last is None or last.role != "assistant":
            return
        thinking = self.context.request.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
            hidden = [cell for cell in last.cells if cell.kind in THINKING]
            for cell in hidden:
                self._gone("ANT-THINK-5", cell, "Thinking in a last message, with thinking off.")
            if hidden:
                last.cells = [cell for cell in last.cells if cell.kind not in THINKING]
                last.touched = True
                if not last.cells:
                    out.pop()
                    return self._finish(out)
        if refuses_prefill(self.context.request.get("model")) is False:
            cell = last.cells[-1]
            if cell.kind == "text" and cell.block["text"] != cell.block["text"].rstrip():
                block = {**cell.block, "text": cell.block["text"].rstrip()}
                self.record.add(
                    "rewritten",
                    "ANT-END-2",
                    cell.where,
                    "White space at the end of a last assistant text.",
                    became=block,
                    removed=cell.block,
                )
                cell.block = block
                last.touched = True
        return None

    def _announce(self, offset: int) -> None:
        """Tell news about calls that were answered otherwise, once, at the end."""
        news = [
            (call, verdict.announce)
            for call, verdict in self.result.decisions.values()
            if verdict.announce is not None
        ]
        if not news:
            return
        told = {
            (head.get("call_id"), head.get("occurrence"))
            for message in self.items
            for head in _notes_of(message)
        }
        blocks: list[Item] = []
        for call, outcome in news:
            if (call.id, call.occurrence) in told:
                continue
            text = late_note(call.id, call.occurrence, outcome.output, outcome.status)
            block: Item = {"type": "text", "text": text}
            blocks.append(block)
            self.record.add(
                "delivered",
                "GEN-LATE-1",
                call.index,
                f"News about an answered call: {outcome.status}.",
                became=block,
                call_id=call.id,
                outcome=outcome.status,
            )
        if not blocks:
            return
        message: Item = {"role": "user", "content": blocks}
        end = len(self.items)
        if self.result.splices and self.result.splices[-1].start + len(
            self.result.splices[-1].before
        ) == end:
            last = self.result.splices.pop()
            last = Splice(last.start, last.before, last.start_after, (*last.after, message))
        else:
            last = Splice(end, (), end + offset, (message,))
        self.result.splices.append(last)


# -- what the rest of the package asks of a dialect ------------------------------------------------


def outcomes(items: list[Any], repaired: Repaired, context: Context) -> Iterator[CallOutcome]:
    """What became of every client-run call of the input, in order."""
    counts: dict[str, int] = {
        call_id: answered.occurrence for call_id, answered in context.past.items()
    }
    results: dict[str, Item] = {}
    behind = -1
    for where, block in calls_of(items):
        call_id = client_id(block, "id")
        counts[call_id] = occurrence = counts.get(call_id, 0) + 1
        evidence = context.evidences.of(call_id, occurrence)
        name = str(block.get("name"))
        decided = repaired.decisions.get(where)
        if decided is not None:
            outcome, synthetic = _decided(decided[0], decided[1], context)
        else:
            index = cast("int", where[0])
            if index >= behind:
                results, behind = _results_behind(items, index)
            found = results.get(call_id)
            if found is None:
                # A copy that collapsed into another call, or one that left with its message.
                counts[call_id] = occurrence - 1
                continue
            text, is_error = _text_of(found), found.get("is_error")
            outcome = outcome_of_result(text, is_error, evidence)
            synthetic = is_synthetic(text, is_error, evidence)
        yield CallOutcome(call_id, occurrence, name, outcome, synthetic)


def _decided(call: Call, verdict: Verdict, context: Context) -> tuple[Outcome, bool]:
    evidence = context.evidences.of(call.id, call.occurrence)
    if verdict.pending:
        return Unknown(reason="still running"), False
    if verdict.announce is not None:
        return verdict.announce, True
    if verdict.outcome is not None:
        return verdict.outcome, True
    if verdict.deliver:
        late = verdict.deliver[0]
        return outcome_of_result(late.text, late.is_error, None), False
    kept = verdict.keep
    assert kept is not None
    known = [kept, *verdict.merge]
    text = fold(known[0].text, [result.text for result in known[1:]])
    is_error = any(result.is_error for result in known) or kept.is_error
    outcome = outcome_of_result(text, is_error, evidence)
    return outcome, is_synthetic(text, is_error, evidence)


def hints(items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
    """What the rest of the request must know about the repaired `items`."""
    said: list[Hint] = []
    request = context.request
    if "tools" in request and not request["tools"] and any(True for _ in calls_of(items)):
        said.append(
            Hint(
                "tools_required",
                "Some surfaces refuse tool blocks in a request without tools: pass the tools.",
                "tools",
            )
        )
    if not request.get("container") and _programmatic_end(items):
        said.append(
            Hint(
                "container_required",
                "Calls made by code execution need its latest container id in the request.",
                "container",
            )
        )
    return said


def end(items: list[Any], request: Mapping[str, Any]) -> tuple[bool, list[Hint]]:
    """Whether a request may end as `items` do (open calls aside), and what it takes if not."""
    if not items:
        return False, [_needs_user_turn("There is no message to answer.")]
    last = to_plain(items[-1], (len(items) - 1,), API)
    content = last.get("content") if isinstance(last, dict) else None
    blocks = content if isinstance(content, list) else []
    final = blocks[-1] if blocks and isinstance(blocks[-1], dict) else {}
    if last.get("role") == "assistant":
        if final.get("type") in THINKING or refuses_prefill(request.get("model")) is not False:
            if not _paused(blocks):
                return False, [_needs_user_turn("The last message is the assistant's.")]
        return True, []
    thinking = request.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        lost = [v for v in violations(items[-64:], request) if v.rule == "ANT-THINK-3"]
        if lost:
            return False, [
                Hint(
                    "thinking_lost",
                    "The turn before these results does not start with its thinking: send with "
                    "thinking off, or close the loop with a user turn.",
                )
            ]
    return len(items) <= MAX_MESSAGES, []


def user_message(blocks: list[Item] | str) -> Item:
    """A user message of blocks, or of one text."""
    content = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
    return {"role": "user", "content": content}


def answered(items: list[Any]) -> Iterator[tuple[str, object]]:
    """Every client call of a sendable history with its result's content, in order."""
    results: dict[str, Item] = {}
    behind = -1
    for where, block in calls_of(items):
        index = cast("int", where[0])
        if index >= behind:
            results, behind = _results_behind(items, index)
        call_id = client_id(block, "id")
        found = results.get(call_id)
        yield call_id, None if found is None else _comparable(found)


def is_models(item: Any) -> bool:
    """Whether an item is a turn of the model."""
    return _role(item) == "assistant"


def _needs_user_turn(why: str) -> Hint:
    return Hint("needs_user_turn", f"{why} The next request needs a user turn.")


def _paused(blocks: list[Any]) -> bool:
    opened: set[str] = set()
    for block in blocks:
        if isinstance(block, dict):
            kind = block.get("type")
            if kind in SERVER_CALLS:
                opened.add(client_id(block, "id"))
            elif isinstance(kind, str) and is_hosted_result(kind):
                opened.discard(client_id(block, "tool_use_id"))
    return bool(opened)


def _programmatic_end(items: list[Any]) -> bool:
    """Whether the last model turn holds calls made by provider-run code that are being answered."""
    at = len(items) - 1
    while at >= 0 and _role(items[at]) == "user":
        at -= 1
    if at < len(items) - 1 or at >= 0:
        for _, block in calls_of(items[at:] if at >= 0 else []):
            if programmatic(block):
                return True
    return False


def _thinking_behind(items: list[Any], first: Splice) -> Location | None:
    same = 0
    for old, new in zip(first.before, first.after):
        if old is not new:
            break
        same += 1
    for index in range(first.start_after + same, len(items)):
        message = items[index]
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for position, block in enumerate(content):
                if isinstance(block, dict) and block.get("type") in THINKING:
                    return index, "content", position
    return None


# -- small readings --------------------------------------------------------------------------------


def _role(message: Any) -> object:
    if isinstance(message, dict):
        return message.get("role")
    return getattr(message, "role", None)


def _misshapen(message: str, where: Location) -> HistoryError:
    return HistoryError(message, path=path_of(API, where), rule="GEN-SHAPE-1")


def _at(item: Any, where: Location) -> object:
    for part in where:
        item = item[part]
    return item


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


def _is_fragment(block: Item) -> bool:
    given = block["input"]
    return len(given) == 1 and FRAGMENT in given


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _safe_name(name: object) -> str:
    given = name.strip() if isinstance(name, str) else ""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in given)[:128]
    return safe or "unnamed_tool"


def _safe_id(call_id: str) -> str:
    """A valid id for an invalid one: the same for the same, another for another."""
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in call_id[:40])
    return f"{safe or 'call'}-{digest}"


def _directive_name(block: Item) -> str | None:
    tool = block.get("tool")
    name = block.get("tool_name") or block.get("name")
    if name is None and isinstance(tool, Mapping):
        name = tool.get("name")
    return name if isinstance(name, str) else None


def _move_marker(cell: _Cell, kept: list[_Cell]) -> None:
    """A removed block's cache marker goes to the cacheable block before it."""
    if kept and not marked(kept[-1].block) and kept[-1].kind not in THINKING:
        last = kept[-1]
        kept[-1] = _Cell(
            {**last.block, "cache_control": cell.block["cache_control"]}, last.where
        )


def _marker_places(message: Any, index: int) -> Iterator[Location]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return
    for position, block in enumerate(content):
        if not isinstance(block, Mapping):
            continue
        if marked(block) and block.get("type") not in THINKING:
            yield (index, "content", position)
        inner = block.get("content")
        if block.get("type") == "tool_result" and isinstance(inner, list):
            for at, part in enumerate(inner):
                if isinstance(part, Mapping) and marked(part):
                    yield (index, "content", position, "content", at)


def _result(turn: int, message: _Message, cell: _Cell) -> Result:
    block = cell.block
    return Result(
        id=client_id(block, "tool_use_id"),
        turn=turn,
        index=cell.where,
        item=(message, cell),
        text=_text_of(block),
        is_error=block.get("is_error"),
        content=_comparable(block),
    )


def _text_of(block: Item) -> str:
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


def _cells_of(
    exchanges: list[_Exchange],
) -> Iterator[list[tuple[Item, tuple[_Message, _Cell]]]]:
    """The blocks of assistant messages as `gaps` reads them."""
    for exchange in exchanges:
        for message in exchange.assistants:
            yield [(cell.block, (message, cell)) for cell in message.cells if not cell.gone]


def _comparable(block: Item) -> object:
    content = block.get("content", "")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return (content, bool(block.get("is_error")))


def _take_out(message: _Message, cell: _Cell) -> None:
    cell.gone = message.touched = True


def _is_copy(seen: dict[str, _Cell | set[bytes]], call_id: str, cell: _Cell) -> bool:
    """Whether a call of this turn has the same id and the same everything; notes it in `seen`."""
    known = seen.get(call_id)
    if known is None:
        seen[call_id] = cell
        return False
    if isinstance(known, _Cell):
        known = seen[call_id] = {_bytes(known.block)}
    own = _bytes(cell.block)
    if own in known:
        return True
    known.add(own)
    return False


def _bytes(block: Item) -> bytes:
    return json.dumps(block, sort_keys=True).encode()


def _leading_run(users: list[_Message]) -> tuple[set[int], list[_Cell]]:
    """The result cells that lead a user turn (by identity), and all result cells in it."""
    leading: set[int] = set()
    results: list[_Cell] = []
    leads = True
    for message in users:
        leads = leads and message.role == "user"
        for cell in message.cells:
            if cell.kind != "tool_result":
                leads = False
                continue
            results.append(cell)
            if leads:
                leading.add(id(cell))
    return leading, results


def _behind_results(users: list[_Message], home: _Message) -> tuple[_Message, int]:
    """The first place of a user turn that is behind its leading results."""
    at = 0
    for message in users:
        if message.role != "user":
            break
        for place, cell in enumerate(message.cells):
            if cell.kind != "tool_result":
                return (message, place) if place else (home, at)
        home, at = message, len(message.cells)
    return home, at


def _takes_system(exchange: _Exchange) -> bool:
    """Whether a system message may end this exchange: behind a user message or a server result."""
    if exchange.calls or any(m.role == "user" and m.cells for m in exchange.users):
        return True
    last = exchange.assistants[-1] if exchange.assistants else None
    return last is not None and is_hosted_result(last.cells[-1].kind)


def calls_of(items: list[Any]) -> Iterator[tuple[Location, Item]]:
    """Every client call of a history, with where it stands."""
    for index, message in enumerate(items):
        plain = message if isinstance(message, dict) else to_plain(message, (index,), API)
        content = plain.get("content") if plain.get("role") == "assistant" else None
        if isinstance(content, list):
            for position, block in enumerate(content):
                if not isinstance(block, dict):
                    block = to_plain(block, (index, "content", position), API)
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    yield (index, "content", position), block


def _results_behind(items: list[Any], index: int) -> tuple[dict[str, Item], int]:
    """The results of the user turn behind the model turn of message `index`, and where it ends."""
    while index < len(items) and _role(items[index]) == "assistant":
        index += 1
    results: dict[str, Item] = {}
    while index < len(items) and _role(items[index]) == "user":
        content = items[index]["content"] if isinstance(items[index], dict) else None
        if isinstance(content, list):
            for block in content:
                if isinstance(block, dict) and block.get("type") == "tool_result":
                    results.setdefault(client_id(block, "tool_use_id"), block)
        index += 1
    return results, index


def _notes_of(message: Any) -> Iterator[Mapping[str, object]]:
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            head = read_note(block["text"])
            if head is not None and head.get("kind") == "late_result":
                yield head


__all__ = [
    "API",
    "answered",
    "calls_of",
    "end",
    "hints",
    "is_models",
    "outcomes",
    "repair",
    "scan",
    "user_message",
    "violations",
]
