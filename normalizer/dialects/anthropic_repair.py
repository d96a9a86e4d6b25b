"""`repair`: read what needs a look, let the engine pair it, write it back.

A region is a stretch of whole exchanges (see `anthropic_scan`).  Each message is cleaned for
itself, the calls and results of all regions are paired together, and each exchange is written
anew: its assistant messages, then one run of results in the order of the calls, then the rest of
its user turn.  What did not change is the same object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stopkit.normalizer.dialects.anthropic_blocks import thinks
from stopkit.normalizer.dialects.anthropic_clean import as_text, is_fragment
from stopkit.normalizer.dialects.anthropic_parts import (
    API,
    Cell,
    Region,
    blocks_of,
    calls_of,
    comparable,
    id_of,
    result_of,
    take_out,
)
from stopkit.normalizer.dialects.anthropic_read import Reader
from stopkit.normalizer.dialects.anthropic_scan import Scan
from stopkit.normalizer.dialects.anthropic_write import Writer
from stopkit.normalizer.engine import Call, Result, attribute, settle
from stopkit.normalizer.models import binds_thinking
from stopkit.normalizer.plain import Item, path_of
from stopkit.normalizer.result import ChangeKind, Hint, Location, Splice
from stopkit.normalizer.splices import spliced
from stopkit.normalizer.wording import FRAGMENT, late_note, orphan_note
from stopkit.normalizer.work import (
    Answered,
    Context,
    LazyElsewhere,
    Recorder,
    Repaired,
    counted_calls,
)


def repair(items: list[Any], found: Scan, context: Context) -> Repaired:
    """The splices that make `items` valid, with their account.

    Raises:
        HistoryError: something in the regions cannot be repaired truthfully; the path names it.
    """
    record = Recorder()
    reader = Reader(items, found, context, record)
    regions = reader.read()
    result = _Pairing(items, found, context, record, regions, reader.turn).pair()
    Writer(items, regions, context, record, result).write()
    result.changes = record.finished(_final)
    if reader.lost_before:
        result.blocked = True
        result.hints.append(
            Hint(
                "sent_history_broken",
                "What was sent ends in a provider-run call or a system message that only the "
                "model's next turn may follow, and something else does: what was sent is not "
                "rewritten here. Normalize the log anew.",
            )
        )
    if result.splices and (reader.thinking or found.thinking >= result.splices[0].start):
        result.hints += _thinking_hints(items, result.splices, context)
    return result


def _final(became: object) -> object:
    """What a cell is in the output, after all that was done to it."""
    if not isinstance(became, Cell):
        return became
    return became.block if became.written is None else became.written


class _Pairing:
    """Decides about every call of the regions, and marks what leaves or moves because of it."""

    def __init__(
        self,
        items: list[Any],
        found: Scan,
        context: Context,
        record: Recorder,
        regions: list[Region],
        last_turn: int,
    ) -> None:
        self.items = items
        self.context = context
        self.record = record
        self.regions = regions
        self.turn = last_turn
        self.result = Repaired(looked=[(region.start, region.stop) for region in regions])
        self.calls: list[Call] = []
        self.counted = False
        self.elsewhere = LazyElsewhere(self._index_elsewhere, context.past, found.ids)

    def pair(self) -> Repaired:
        calls: list[Call] = []
        results: list[Result] = []
        for region in self.regions:
            for exchange in region.exchanges:
                calls += exchange.calls
                results += [
                    result_of(exchange.turn, message, cell)
                    for message in exchange.users
                    for cell in message.cells
                    if cell.block["type"] == "tool_result"
                ]
        self.calls = calls
        if self.context.evidences.by_occurrence:
            self._count_occurrences()
        orphans = attribute(calls, results, self.elsewhere)
        for result in orphans:
            self._settle_orphan(result)
        for region in self.regions:
            for exchange in region.exchanges:
                for call in exchange.calls:
                    self._settle(call)
        return self.result

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
            take_out(message, cell)
        if verdict.deliver or verdict.announce is not None:
            self._count_occurrences()
        for result in verdict.deliver:
            self._to_text(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(
                    call.id, call.occurrence, result.text or None, is_error=bool(result.is_error)
                ),
                "A result that came after the model had gone on: marked data where it arrived.",
            )

    def _wrap_cut(self, call: Call) -> None:
        message, cell = call.item
        if is_fragment(cell.block):
            return
        given = cell.block["input"]
        cell.block = {**cell.block, "input": {FRAGMENT: as_text(given)}}
        message.touched = True
        self.record.add(
            "rewritten",
            "ANT-STOP-1",
            cell.where,
            "The turn ran into max_tokens in this call: its arguments may not be whole.",
            became=cell,
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
            take_out(message, cell)
        else:
            self.result.late.setdefault((result.id, answered.occurrence), result)
            self._to_text(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(
                    answered.sent_as or result.id,
                    answered.occurrence,
                    result.text or None,
                    is_error=bool(result.is_error),
                ),
                "A result that came after its call had been answered: marked data where it "
                "arrived.",
            )

    def _to_text(self, result: Result, kind: ChangeKind, rule: str, text: str, note: str) -> None:
        message, cell = result.item
        block: Item = {"type": "text", "text": text}
        self.record.add(
            kind, rule, result.index, note, became=cell, call_id=result.id, removed=cell.block
        )
        content = cell.block.get("content")
        media = [
            Cell(inner, (*cell.where, "content", at))
            for at, inner in enumerate(content if isinstance(content, list) else ())
            if inner["type"] in ("image", "document", "search_result")
        ]
        cell.block, cell.behind = block, media
        message.touched = True

    def _count_occurrences(self) -> None:
        """Number the calls that share an id.  Most repairs never ask."""
        if self.counted:
            return
        self.counted = True
        ours = {call.index: call for call in self.calls}
        spans = [(region.start, region.stop) for region in self.regions]
        for where, _, occurrence in counted_calls(
            calls_of(self.items), id_of, spans, ours, self.context.past
        ):
            if where in ours:
                ours[where].occurrence = occurrence

    def _index_elsewhere(self) -> Callable[[str], Answered | None]:
        index: dict[str, Answered] = {}
        at = 0
        for region in [*self.regions, Region(len(self.items), len(self.items))]:
            for message in self.items[at : region.start]:
                content = message["content"]
                if content.__class__ is list:
                    for block in content:
                        kind = block["type"]
                        if kind == "tool_use":
                            known = index.get(block["id"])
                            index[block["id"]] = Answered(
                                known.occurrence + 1 if known else 1, None
                            )
                        elif kind == "tool_result":
                            index[block["tool_use_id"]].content = comparable(block)
            at = region.stop
        return index.get


def _thinking_hints(items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
    """ANT-THINK-6: what to do where a repair stands before signed thinking."""
    if binds_thinking(context.request.get("model")) is False:
        return []
    where = _thinking_behind(spliced(items, splices), splices[0])
    if where is None:
        return []
    note = (
        "A repair stands before signed thinking. Models that bind thinking to what precedes it "
        "(Opus 5.5, Sonnet 5.5, Fable 5.1 and later) refuse it unless the request carries "
        'thinking.block_binding.prefix_mismatch_behavior: "drop_block" (beta '
        "thinking-binding-controls-2026-08-01). Store the repair, so that it is the same on each "
        "later request."
    )
    return [Hint("thinking_prefix_changed", note, path_of(API, where))]


def _thinking_behind(items: list[Any], first: Splice) -> Location | None:
    old = blocks_of(first.before[0]) if first.before else []
    new = blocks_of(first.after[0]) if first.after else []
    same = 0
    while same < min(len(old), len(new)) and old[same] is new[same]:
        same += 1
    for index in range(first.start_after, len(items)):
        for position, block in enumerate(blocks_of(items[index])):
            if index == first.start_after and position < same:
                continue
            if thinks(block):
                return index, "content", position
    return None
