"""Read what needs a look: clean each message for itself, and group them into exchanges."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from stopkit.normalizer.dialects.anthropic_blocks import (
    MAX_MARKERS,
    NAME,
    RESPONSE_FIELDS,
    ROLES,
    SERVER_ID,
    SYSTEM_CONTENT,
    THINKING,
    blank,
    client_id,
    marked,
    markers_in_request,
    models_only,
    no_result_content,
    programmatic,
    signed,
    tool_names,
)
from stopkit.normalizer.dialects.anthropic_parts import (
    API,
    Cell,
    Exchange,
    Item,
    Message,
    Region,
    as_user_note,
    cells_of,
    misshapen,
    role_of,
    takes_system,
)
from stopkit.normalizer.dialects.anthropic_scan import Scan, touching_joined
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.engine import Call
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.models import takes_system_messages
from stopkit.normalizer.plain import (
    is_plain,
    path_of,
    replace_surrogates,
    sound,
    to_plain,
    unsound,
)
from stopkit.normalizer.result import Location
from stopkit.normalizer.wording import misplaced_call_note
from stopkit.normalizer.work import Context, Recorder

FRAGMENT: Final = "incomplete_arguments"
"""The key under which call arguments stand that never became a JSON object (ANT-ID-3)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the end of a frozen history asks of what follows it."""

    open_server: frozenset[str] = frozenset()
    """Provider-run calls that wait for their result."""
    results_only: str = ""
    """As `Exchange.results_only`, of the last exchange."""
    last_role: str = ""
    markers: int = 0
    """How many cache markers it holds: they stay, so later ones may have to go."""


class Reader:
    """Reads the regions of one history; `thinking` says whether any of them holds some."""

    def __init__(self, items: list[Any], found: Scan, context: Context, record: Recorder) -> None:
        self.items = items
        self.found = found
        self.request = request = context.request
        self.memory: Memory = context.memory or Memory()
        self.record = record
        self.tools = tool_names(request)
        self.system_here = takes_system_messages(request.get("model"))
        self.regions: list[Region] = []
        self.turn = 0
        self.thinking = False
        self.lost_before = False
        self.surplus = self._surplus_markers()

    def read(self) -> list[Region]:
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
                if region.plain:
                    break
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
        return self.regions

    def _exchange_before(self, start: int) -> int:
        start -= 1
        while start > 0 and role_of(self.items[start]) != "assistant":
            start -= 1
        while start > 0 and role_of(self.items[start - 1]) == "assistant":
            start -= 1
        return start

    def _exchange_end(self, stop: int) -> int:
        while stop < len(self.items) and role_of(self.items[stop]) == "assistant":
            stop += 1
        while stop < len(self.items) and role_of(self.items[stop]) != "assistant":
            stop += 1
        return stop

    def _spills(self, region: Region) -> bool:
        """Whether the region has to hand something on to the exchange behind it."""
        last = region.exchanges[-1] if region.exchanges else None
        if last is None:
            return False
        if last.results_only and any(
            cell.kind != "tool_result" for message in last.users for cell in message.cells
        ):
            return True
        has_system = any(message.role == "system" and message.cells for message in last.users)
        return has_system and not takes_system(last)

    def _read_region(self, start: int, stop: int) -> Region:
        region = Region(start, stop)
        messages: list[Message] = []
        for index in range(start, stop):
            message = self._read_message(index)
            if message is not None and not self._is_copy_of(messages, message):
                messages.append(message)
        cleaned: list[Message] = []
        gap = False
        for message in messages:
            parts = self._clean(message)
            if not parts:
                gap = gap or message.role != "assistant"
                continue
            parts[0].after_gap = gap
            gap = False
            cleaned += parts
        if start == 0 and self.memory.last_role == "system" and cleaned:
            self.lost_before = self.lost_before or cleaned[0].role != "assistant"
        region.vanished_first = start > 0 and (not cleaned or cleaned[0].role != "assistant")
        region.exchanges = self._exchanges(cleaned)
        self._server_tools(region, more=stop < len(self.items))
        return region

    def _read_plain_region(self, start: int, stop: int) -> Region:
        """A region whose messages are each fine in themselves."""
        messages: list[Message] = []
        for index in range(start, stop):
            item = self.items[index]
            content = item["content"]
            if content.__class__ is str:
                cells = [Cell({"type": "text", "text": content}, (index,))]
            else:
                cells = [
                    Cell(block, (index, "content", position))
                    for position, block in enumerate(content)
                ]
            message = Message(item["role"], cells, (index,), item, item, False)
            if not self._is_copy_of(messages, message):
                messages.append(message)
        return Region(start, stop, self._exchanges(messages), plain=True)

    def _is_copy_of(self, messages: list[Message], message: Message) -> bool:
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

    def _exchanges(self, messages: list[Message]) -> list[Exchange]:
        exchanges: list[Exchange] = []
        current: Exchange | None = None
        for message in messages:
            if message.role == "assistant":
                if (
                    current is None
                    or current.users
                    or not current.assistants
                    or (message.after_gap and _calls_in(current))
                ):
                    self.turn += 1
                    current = Exchange(self.turn)
                    exchanges.append(current)
                current.assistants.append(message)
            else:
                if current is None:
                    current = Exchange(self.turn)
                    if self.turn == 0:
                        current.results_only = self.memory.results_only
                        current.follows_user = self.memory.last_role == "user"
                    exchanges.append(current)
                current.users.append(message)
        for exchange in exchanges:
            self._collect_calls(exchange)
        return exchanges

    def _collect_calls(self, exchange: Exchange) -> None:
        seen: dict[str, Cell | set[bytes]] = {}
        for message in exchange.assistants:
            for cell in message.cells:
                block = cell.block
                if block["type"] != "tool_use":
                    continue
                call_id = client_id(block, "id")
                if _is_copy(seen, call_id, cell):
                    self.record.add(
                        "removed",
                        "ANT-ID-2",
                        cell.where,
                        "An identical copy of a call in its turn.",
                        call_id=call_id,
                        removed=block,
                    )
                    cell.gone = message.touched = True
                    continue
                cut = cell.cut or cell.nameless or is_fragment(block)
                name = block["name"]
                exchange.calls.append(
                    Call(call_id, name, exchange.turn, cell.where, (message, cell), cut)
                )
            if message.touched:
                message.tidy()
        if not all(message.cells for message in exchange.assistants):
            exchange.assistants = [message for message in exchange.assistants if message.cells]

    def _server_tools(self, region: Region, *, more: bool) -> None:
        """Drop server calls without result and hosted results without call (ANT-SRV-1, -4)."""
        turns = [exchange for exchange in region.exchanges if exchange.assistants]
        found = gaps(cells_of(turns), self.memory.open_server if region.start == 0 else ())
        self.lost_before = self.lost_before or found.lost_before
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
                alone = gaps(cells_of([exchange]))
                if alone.waiting or alone.lost:
                    exchange.results_only = "ANT-SRV-3"
                elif any(programmatic(call.item[1].block) for call in exchange.calls):
                    exchange.results_only = "ANT-SRV-7"
        for exchange in turns:
            for message in exchange.assistants:
                message.tidy()
            exchange.assistants = [message for message in exchange.assistants if message.cells]

    def _drop_cell(self, message: Message, cell: Cell, rule: str) -> None:
        note = (
            "A provider-run call that never got its result."
            if rule == "ANT-SRV-1"
            else "A provider's result without its call."
        )
        self._gone(rule, cell, note)
        cell.gone = message.touched = True

    def _read_message(self, index: int) -> Message | None:
        source = self.items[index]
        item, touched = self._sound(source, index)
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise misshapen("role: Input should be 'user' or 'assistant'", (index,))
        if item.get("stop_reason") == "refusal" and role == "assistant":
            self.record.add(
                "removed",
                "ANT-STOP-1",
                (index,),
                "The model refused in this turn; its partial output is to be discarded.",
                removed=source,
            )
            return None
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
        cells: list[Cell]
        if isinstance(content, str):
            cells = [Cell({"type": "text", "text": content}, (index,))]
        elif content is None:
            cells = []
        elif isinstance(content, list):
            cells = []
            for position, block in enumerate(content):
                where: Location = (index, "content", position)
                if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                    raise misshapen("a content block is an object with a type", where)
                cells.append(Cell(block, where))
        else:
            raise misshapen("content: Input should be a valid string or list", (index,))
        if item.get("stop_reason") == "max_tokens" and cells and cells[-1].kind == "tool_use":
            cells[-1].cut = True
        return Message(role, cells, (index,), item, source, touched)

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
                if _in_thinking(item, part.location):
                    continue
                self.record.add(
                    "rewritten",
                    "GEN-JSON-1",
                    part.location,
                    "A lone surrogate, which is no text, became U+FFFD.",
                    removed=_at(item, part.location[1:]),
                )
                touched = True
            if touched:
                item = _without_surrogates(item)
        if not isinstance(item, dict):
            raise misshapen("a message is an object", (index,))
        return item, touched

    def _clean(self, message: Message) -> list[Message]:
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
                name = _directive_name(cell.block)
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
                became=block,
                call_id=client_id(block, "id"),
                removed=given,
            )
            message.touched = True
        name = block.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            cell.nameless = not (isinstance(name, str) and name.strip())
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
                    became=block,
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
                    became=part.block,
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
                became=new,
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
                    became=cell.block,
                    call_id=client_id(cell.block, "tool_use_id"),
                )
        return parts

    def _surplus_markers(self) -> frozenset[Location]:
        """Where the cache markers over the limit are: the earliest ones."""
        if not self.found.markers and not self.memory.markers:
            return frozenset()
        places: list[Location] = []
        for start, stop in self.found.spans:
            for index in range(start, stop):
                places += marker_places(self.items[index], index)
        fixed = self.memory.markers + markers_in_request(self.request)
        surplus = len(places) + fixed - MAX_MARKERS
        return frozenset(places[: max(surplus, 0)])


def _calls_in(exchange: Exchange) -> bool:
    return any(
        cell.block["type"] == "tool_use"
        for message in exchange.assistants
        for cell in message.cells
    )


def _in_thinking(item: Any, where: Location) -> bool:
    """Whether a place in a message is inside a signed block, which is left as it is or leaves."""
    if len(where) < 4 or where[1] != "content":
        return False
    block = _at(item, where[1:3])
    return isinstance(block, dict) and block.get("type") in THINKING


def _without_surrogates(item: Any) -> Any:
    mended = replace_surrogates(item)
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, list):
        mended["content"] = [
            old if isinstance(old, dict) and old.get("type") in THINKING else new
            for old, new in zip(content, mended["content"], strict=True)
        ]
    return mended


def _is_copy(seen: dict[str, Cell | set[bytes]], call_id: str, cell: Cell) -> bool:
    """Whether a call of this turn has the same id and the same everything; notes it in `seen`."""
    known = seen.get(call_id)
    if known is None:
        seen[call_id] = cell
        return False
    if isinstance(known, Cell):
        known = seen[call_id] = {_bytes(known.block)}
    own = _bytes(cell.block)
    if own in known:
        return True
    known.add(own)
    return False


def _bytes(block: Item) -> bytes:
    return json.dumps(block, sort_keys=True).encode()


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


def is_fragment(block: Item) -> bool:
    given = block["input"]
    return len(given) == 1 and FRAGMENT in given


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _safe_name(name: object) -> str:
    given = name.strip() if isinstance(name, str) else ""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in given)[:128]
    return safe or "unnamed_tool"


def _directive_name(block: Item) -> str | None:
    tool = block.get("tool")
    name = block.get("tool_name") or block.get("name")
    if name is None and isinstance(tool, Mapping):
        name = tool.get("name")
    return name if isinstance(name, str) else None


def _move_marker(cell: Cell, kept: list[Cell]) -> None:
    """A removed block's cache marker goes to the cacheable block before it."""
    if kept and not marked(kept[-1].block) and kept[-1].kind not in THINKING:
        last = kept[-1]
        kept[-1] = Cell({**last.block, "cache_control": cell.block["cache_control"]}, last.where)


def marker_places(message: Any, index: int) -> Iterator[Location]:
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
