"""Read what needs a look: its messages, each cleaned for itself, grouped into exchanges."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from stopkit.normalizer.dialects.anthropic_blocks import (
    MAX_MARKERS,
    RESPONSE_FIELDS,
    ROLES,
    client_id,
    marker_places,
    markers_in_request,
    programmatic,
    thinks,
)
from stopkit.normalizer.dialects.anthropic_clean import Cleaner, is_fragment
from stopkit.normalizer.dialects.anthropic_memory import Memory
from stopkit.normalizer.dialects.anthropic_parts import (
    API,
    Cell,
    Exchange,
    Message,
    Region,
    cells_of,
    misshapen,
    take_out,
    takes_system,
)
from stopkit.normalizer.dialects.anthropic_scan import Scan
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.engine import Call
from stopkit.normalizer.plain import (
    Item,
    is_plain,
    part_at,
    replace_surrogates,
    role_of,
    surrogates,
    to_plain,
)
from stopkit.normalizer.result import Location
from stopkit.normalizer.splices import joined
from stopkit.normalizer.work import Context, Recorder


class Reader:
    """Reads the regions of one history.

    `turn` is the number of the newest model turn, `lost_before` whether what was sent waits for
    something that can no longer come.
    """

    def __init__(self, items: list[Any], found: Scan, context: Context, record: Recorder) -> None:
        self.items = items
        self.found = found
        self.memory: Memory = context.memory or Memory()
        self.record = record
        self.regions: list[Region] = []
        self.turn = 0
        self.lost_before = False
        self.cleaner = Cleaner(context.request, record, self._surplus_markers(context.request))

    @property
    def thinking(self) -> bool:
        """Whether any of the regions holds thinking."""
        return self.cleaner.thinking

    def read(self) -> list[Region]:
        """The regions, in order; one that hands something on takes in the exchanges it goes to.

        Raises:
            HistoryError: something in them cannot be repaired truthfully; the path names it.
        """
        spans = joined(self.found.spans)
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
            parts = self.cleaner.clean(message)
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
                    take_out(message, cell)
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
        self.record.add("removed", rule, cell.where, note, removed=cell.block)
        take_out(message, cell)

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
            for where in surrogates(item, (index,), API):
                if _in_thinking(item, where):
                    continue
                self.record.add(
                    "rewritten",
                    "GEN-JSON-1",
                    where,
                    "A lone surrogate, which is no text, became U+FFFD.",
                    removed=part_at(item, where[1:]),
                )
                touched = True
            if touched:
                item = _without_surrogates(item)
        if not isinstance(item, dict):
            raise misshapen("a message is an object", (index,))
        return item, touched

    def _surplus_markers(self, request: Mapping[str, Any]) -> frozenset[Location]:
        """Where the cache markers over the limit are: the earliest ones."""
        if not self.found.markers and not self.memory.markers:
            return frozenset()
        places: list[Location] = []
        for start, stop in self.found.spans:
            for index in range(start, stop):
                places += marker_places(self.items[index], index)
        fixed = self.memory.markers + markers_in_request(request)
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
    block = part_at(item, where[1:3])
    return thinks(block)


def _without_surrogates(item: Any) -> Any:
    mended = replace_surrogates(item)
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, list):
        mended["content"] = [
            old if thinks(old) else new for old, new in zip(content, mended["content"], strict=True)
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
