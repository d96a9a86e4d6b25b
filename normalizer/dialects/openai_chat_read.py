"""Read a region: each message cleaned for itself, its calls collected."""

from __future__ import annotations

import json
from typing import Any, Final

from stopkit.normalizer.dialects.openai_chat_parts import (
    API,
    Cell,
    Entry,
    Region,
    Turn,
    id_of,
    leaves,
    legacy_call,
    name_of,
    role_of,
)
from stopkit.normalizer.dialects.openai_chat_scan import Scan
from stopkit.normalizer.dialects.openai_chat_shapes import (
    MAX_NAME,
    Item,
    flaws,
    good_name,
    is_json_object,
    parsed,
    path,
    plainly_fine,
)
from stopkit.normalizer.engine import Call
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import (
    Unsound,
    is_plain,
    path_of,
    replace_surrogates,
    to_plain,
    unsound,
)
from stopkit.normalizer.result import Location
from stopkit.normalizer.work import Context, Recorder

FRAGMENT: Final = "incomplete_arguments"
"""The key under which call arguments stand that never became a JSON object (CHAT-ARG-1)."""


class Reader:
    """Reads the spans of one scan into regions; `turn` is the number of the newest model turn."""

    def __init__(self, items: list[Any], found: Scan, context: Context, record: Recorder) -> None:
        self.items = items
        self.spans = found.spans
        self.clean_turns = found.turns
        self.context = context
        self.record = record
        self.turn = 0

    def read(self) -> list[Region]:
        """The regions, in order.

        Raises:
            HistoryError: a message in them is none of this format; the path names the place.
        """
        regions: list[Region] = []
        at, end = 0, len(self.items)
        may_wait = self.context.live == "keep" or bool(self.context.evidences)
        for number, (start, stop) in enumerate(self.spans, start=1):
            if self._model_spoke(at, start):
                self.turn += 1
            if may_wait and number == len(self.spans) and not self._model_spoke(stop, end):
                # What stands behind the last turn may have to give way to its open calls.
                stop = end
            regions.append(self._read_region(start, stop))
            at = stop
        if self._model_spoke(at, end):
            self.turn += 1
        return regions

    def _model_spoke(self, start: int, stop: int) -> bool:
        return any(role_of(self.items[at]) == "assistant" for at in range(start, stop))

    def _read_region(self, start: int, stop: int) -> Region:
        region = Region(start, stop)
        turn = Turn(self.turn)
        region.turns.append(turn)
        for index in range(start, stop):
            entry = self._read(index)
            if entry.role != "assistant":
                turn.behind.append(entry)
                continue
            if not self._clean_assistant(entry, index):
                continue
            self.turn += 1
            turn = Turn(self.turn, entry)
            region.turns.append(turn)
            self._collect_calls(turn, entry)
        return region

    def _read(self, index: int) -> Entry:
        item = source = self.items[index]
        role: str
        if index in self.clean_turns or plainly_fine(source):
            role = source["role"]
            return Entry(role, source, source, (index,), recorded=source, tool=role == "tool")
        odd: list[Unsound] = []
        if not is_plain(source):
            item = to_plain(source, (index,), API)
            odd = list(unsound(item, (index,)))
        wrong = flaws(item, index)
        for one in wrong:
            if one.rule == "GEN-SHAPE-1":
                raise HistoryError(one.message, path=path(one.at, one.place), rule=one.rule)
        for part in odd:
            if not part.surrogate:
                where = path_of(API, part.location)
                raise HistoryError(part.message, path=where, rule="GEN-JSON-1")
        role = item["role"]
        entry = Entry(role, item, source, (index,), tool=role == "tool", flawed=bool(wrong or odd))
        if odd:
            entry.rewrite(replace_surrogates(item))
            for part in odd:
                self.record.add(
                    "rewritten",
                    "GEN-JSON-1",
                    part.location,
                    "A lone surrogate, which is no text, became U+FFFD.",
                    became=entry,
                    removed=_at(item, part.location[1:]),
                )
        entry.recorded = entry.item
        return entry

    def _clean_assistant(self, entry: Entry, index: int) -> bool:
        """Read its calls; False where the message leaves."""
        item = entry.item
        calls, legacy = item.get("tool_calls"), item.get("function_call")
        has_calls = bool(calls) or legacy is not None
        if has_calls and index + 1 < len(self.items) and self.items[index + 1] == entry.source:
            leaves(
                self.record,
                entry,
                "CHAT-ID-1",
                "The same assistant message was recorded twice: one copy stays.",
            )
            return False
        if not has_calls and not any(item.get(key) for key in ("content", "refusal", "audio")):
            leaves(self.record, entry, "CHAT-EMPTY-2", "An assistant message with nothing in it.")
            return False
        if "tool_calls" in item and not calls:
            entry.rewrite({key: value for key, value in item.items() if key != "tool_calls"})
            self.record.add(
                "rewritten",
                "CHAT-EMPTY-1",
                (index, "tool_calls"),
                "A message without calls has no list of calls.",
                became=entry,
                removed=calls,
            )
        cells = [Cell(block, (index, "tool_calls", at)) for at, block in enumerate(calls or ())]
        if legacy is not None:
            block = legacy_call(index, legacy)
            cells.append(Cell(block, (index, "function_call"), legacy=True))
        for cell in cells:
            if cell.block["type"] == "function":
                if entry.flawed:
                    self._clean_call(cell)
                if _is_fragment(cell.block["function"]["arguments"]):
                    cell.incomplete = True
        entry.cells = cells
        return True

    def _clean_call(self, cell: Cell) -> None:
        body: Item = cell.block["function"]
        call_id = id_of(cell.block)
        name, given = body.get("name"), body.get("arguments")
        if not isinstance(name, str) or not good_name(name):
            body = {**body, "name": _safe_name(name)}
            # A call that never got its name cannot have been run by it.
            cell.incomplete = not name
            self.record.add(
                "renamed",
                "CHAT-NAME-1",
                cell.where,
                "A tool name that the API does not take.",
                became=cell,
                call_id=call_id,
                removed=name,
            )
        if not isinstance(given, str) or not is_json_object(given):
            whole = _whole_object(given, cell.where)
            text = given if isinstance(given, str) else _written(given, cell.where)
            text = _written({FRAGMENT: text}, cell.where)
            body = {**body, "arguments": text if whole is None else whole}
            self.record.add(
                "rewritten",
                "CHAT-ARG-1",
                cell.where,
                "The arguments never became a JSON object: kept as they are, under a key that says "
                "so."
                if whole is None
                else "The arguments are now the text of a JSON object.",
                became=cell,
                call_id=call_id,
                removed=given,
            )
        if body is not cell.block["function"]:
            cell.block = {**cell.block, "function": body}
            cell.clean = False

    def _collect_calls(self, turn: Turn, entry: Entry) -> None:
        if len(entry.cells) > 1 and entry.flawed:
            self._drop_copies(entry)
        for cell in entry.cells:
            block = cell.block
            turn.calls.append(
                Call(
                    id_of(block),
                    name_of(block),
                    turn.number,
                    cell.where,
                    cell,
                    incomplete=cell.incomplete,
                )
            )

    def _drop_copies(self, entry: Entry) -> None:
        """Let identical copies of a call collapse; other calls with its id stay."""
        seen: set[str] = set()
        kept: list[Cell] = []
        for cell in entry.cells:
            own = _written(cell.block, cell.where)
            if own not in seen:
                seen.add(own)
                kept.append(cell)
                continue
            entry.touched = True
            self.record.add(
                "removed",
                "CHAT-ID-1",
                cell.where,
                "An identical copy of a call in its message.",
                call_id=id_of(cell.block),
                removed=cell.block,
            )
        entry.cells = kept


def _at(item: Any, where: Location) -> object:
    for part in where:
        item = item[part]
    return item


def _whole_object(value: object, where: Location) -> str | None:
    """The text of arguments that are a whole JSON object, in whatever form they were recorded."""
    if isinstance(value, str):
        if not value.strip():
            return "{}"
        try:
            value = parsed(value)
        except ValueError:
            return None
        if isinstance(value, str):
            return value if is_json_object(value) else None
    if value is None or value == []:
        return "{}"
    return _written(value, where) if isinstance(value, dict) else None


def _is_fragment(arguments: str) -> bool:
    if FRAGMENT not in arguments:
        return False
    given = parsed(arguments)
    return isinstance(given, dict) and len(given) == 1 and FRAGMENT in given


def _written(value: object, where: Location) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except ValueError as error:
        # Python writes no integer of more than some thousand digits.
        raise HistoryError(str(error), path=path_of(API, where), rule="GEN-JSON-1") from None


def _safe_name(name: object) -> str:
    given = name.strip() if isinstance(name, str) else ""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in given)
    return safe[:MAX_NAME] or "unnamed_tool"
