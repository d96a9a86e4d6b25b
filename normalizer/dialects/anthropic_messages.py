"""Anthropic Messages: read what needs a look, let the engine pair it, write it back.

A region is a stretch of whole exchanges (see `anthropic_scan`).  Each message is cleaned for
itself, the calls and results of all regions are paired together, and each exchange is written
anew: its assistant messages, then one run of results in the order of the calls, then the rest of
its user turn.  What did not change is the same object.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from stopkit.normalizer.dialects.anthropic_blocks import (
    MAX_MESSAGES,
    SERVER_CALLS,
    THINKING,
    client_id,
    is_hosted_result,
    programmatic,
)
from stopkit.normalizer.dialects.anthropic_check import violations
from stopkit.normalizer.dialects.anthropic_parts import (
    API,
    Cell,
    Item,
    Region,
    calls_of,
    comparable,
    result_of,
    results_behind,
    role_of,
    take_out,
    text_of,
)
from stopkit.normalizer.dialects.anthropic_read import (
    FRAGMENT,
    Memory,
    Reader,
    as_text,
    is_fragment,
    marker_places,
)
from stopkit.normalizer.dialects.anthropic_scan import Scan, scan
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.dialects.anthropic_write import Writer
from stopkit.normalizer.engine import (
    Call,
    Result,
    Verdict,
    attribute,
    is_synthetic,
    outcome_of_result,
    pending_outcome,
    settle,
)
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.models import binds_thinking, refuses_prefill
from stopkit.normalizer.plain import path_of, to_plain
from stopkit.normalizer.result import CallOutcome, Hint, Location, Splice
from stopkit.normalizer.wording import fold, late_note, orphan_note
from stopkit.normalizer.work import Answered, Context, LazyElsewhere, Recorder, Repaired, spliced
from stopkit.outcome import Evidence, Outcome


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
    result.changes = record.changes
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
                late_note(call.id, call.occurrence, result.text or None),
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
            take_out(message, cell)
        else:
            self.result.late.setdefault((result.id, answered.occurrence), result)
            self._to_text(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(result.id, answered.occurrence, result.text or None),
                "A result that came after its call was answered: marked data where it arrived.",
            )

    def _to_text(self, result: Result, kind: Any, rule: str, text: str, note: str) -> None:
        message, cell = result.item
        block: Item = {"type": "text", "text": text}
        self.record.add(
            kind, rule, result.index, note, became=block, call_id=result.id, removed=cell.block
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
        for where, _, occurrence in counted_calls(self.items, spans, ours, self.context.past):
            if where in ours:
                ours[where].occurrence = occurrence

    def _index_elsewhere(self) -> Mapping[str, Answered]:
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
        return index


def everything(items: list[Any]) -> Scan:
    """What `scan` gives where all of `items` needs a look."""
    return Scan([(0, len(items))], [0], [], -1, markers=True)


def outcomes(items: list[Any], repaired: Repaired, context: Context) -> Iterator[CallOutcome]:
    """What became of every client-run call of the input, in order."""
    results: dict[str, Item] = {}
    behind = -1
    for where, block, occurrence in counted_calls(
        items, repaired.looked, repaired.decisions, context.past
    ):
        call_id = client_id(block, "id")
        evidence = context.evidences.of(call_id, occurrence)
        decided = repaired.decisions.get(where)
        if decided is not None:
            outcome, synthetic = _decided(decided[1], evidence)
        else:
            index = cast("int", where[0])
            if index >= behind:
                results, behind = results_behind(items, index)
            found = results[call_id]
            text, is_error = text_of(found), found.get("is_error")
            synthetic = is_synthetic(text, is_error, evidence)
            late = repaired.late.get((call_id, occurrence)) if synthetic else None
            if late is not None:
                text, is_error, evidence = late.text, late.is_error, None
            outcome = outcome_of_result(text, is_error, evidence)
        yield CallOutcome(call_id, occurrence, str(block.get("name")), outcome, synthetic)


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
        index = cast("int", where[0])
        while at < len(looked) and looked[at][1] <= index:
            at += 1
        if at < len(looked) and looked[at][0] <= index and where not in ours:
            continue
        call_id = client_id(block, "id")
        before = counts.get(call_id)
        if before is None:
            known = past.get(call_id)
            before = known.occurrence if known else 0
        counts[call_id] = before + 1
        yield where, block, before + 1


def _decided(verdict: Verdict, evidence: Evidence | None) -> tuple[Outcome, bool]:
    if verdict.pending:
        return pending_outcome(evidence), False
    if verdict.announce is not None:
        return verdict.announce, True
    if verdict.outcome is not None:
        return verdict.outcome, True
    if verdict.deliver:
        late = verdict.deliver[0]
        return outcome_of_result(late.text, late.is_error, None), True
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
    last = items[-1]
    if not isinstance(last, dict):
        try:
            last = to_plain(last, (len(items) - 1,), API)
        except HistoryError:
            return False, []
    if not isinstance(last, dict):
        return False, []
    content = last.get("content")
    blocks = content if isinstance(content, list) else []
    final = blocks[-1] if blocks and isinstance(blocks[-1], dict) else {}
    if last.get("role") == "assistant":
        prefill = refuses_prefill(request.get("model")) is False and (
            str(final.get("type")) not in THINKING
        )
        if prefill or _paused(blocks):
            return True, []
        return False, [_needs_user_turn("The last message is the assistant's.")]
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


def remember(memory: Memory | None, items: list[Any]) -> Memory:
    """What the end of a frozen history asks of what follows; `items` are new in it."""
    memory = memory or Memory()
    if items:
        memory = replace(memory, last_role=str(role_of(items[-1])))
    markers = sum(1 for n, item in enumerate(items) for _ in marker_places(item, n))
    memory = replace(memory, markers=memory.markers + markers)
    at = len(items) - 1
    while at >= 0 and role_of(items[at]) != "assistant":
        at -= 1
    if at < 0:
        return memory
    turns = [_numbered(item) for item in items if role_of(item) == "assistant"]
    open_server = gaps(turns, memory.open_server).open_ids
    while at > 0 and role_of(items[at - 1]) == "assistant":
        at -= 1
    calls = [block for _, block in calls_of(items[at:])]
    alone = gaps([_numbered(item) for item in items[at:] if role_of(item) == "assistant"])
    results_only = ""
    if not calls and open_server and role_of(items[-1]) == "assistant":
        # A paused turn was sent as it is: what the user says waits until it has gone on.
        results_only = "ANT-SRV-5"
    elif calls and alone.open_ids:
        results_only = "ANT-SRV-3"
    elif any(programmatic(block) for block in calls):
        results_only = "ANT-SRV-7"
    return replace(memory, open_server=open_server, results_only=results_only)


def must_look(memory: Memory | None, items: list[Any]) -> bool:
    """Whether the frozen part has a call open that only the provider can answer, or cache markers
    beside which those of `items` may be too many."""
    if memory is None:
        return False
    if memory.open_server or memory.results_only:
        return True
    if memory.last_role == "system" and role_of(items[0]) != "assistant":
        return True
    return bool(memory.markers) and any(
        True for n, item in enumerate(items) for _ in marker_places(item, n)
    )


def _numbered(message: Any) -> list[tuple[Item, int]]:
    plain = message if isinstance(message, dict) else to_plain(message, (), API)
    return [
        (block if isinstance(block, dict) else to_plain(block, (), API), number)
        for number, block in enumerate(_blocks(plain))
    ]


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
            results, behind = results_behind(items, index)
        call_id = client_id(block, "id")
        found = results.get(call_id)
        yield call_id, None if found is None else comparable(found)


def is_models(item: Any) -> bool:
    """Whether an item is a turn of the model."""
    return role_of(item) == "assistant"


def _needs_user_turn(why: str) -> Hint:
    return Hint("needs_user_turn", f"{why} The next request needs a user turn.")


def _paused(blocks: list[Any]) -> bool:
    opened: set[str] = set()
    for block in blocks:
        if isinstance(block, dict):
            kind = block.get("type")
            if isinstance(kind, str) and kind in SERVER_CALLS:
                opened.add(client_id(block, "id"))
            elif isinstance(kind, str) and is_hosted_result(kind):
                opened.discard(client_id(block, "tool_use_id"))
    return bool(opened)


def _programmatic_end(items: list[Any]) -> bool:
    """Whether the last model turn holds calls made by provider-run code that are being answered."""
    at = len(items) - 1
    while at >= 0 and role_of(items[at]) == "user":
        at -= 1
    if at < len(items) - 1 or at >= 0:
        for _, block in calls_of(items[at:] if at >= 0 else []):
            if programmatic(block):
                return True
    return False


def _thinking_behind(items: list[Any], first: Splice) -> Location | None:
    old = _blocks(first.before[0]) if first.before else []
    new = _blocks(first.after[0]) if first.after else []
    same = 0
    while same < min(len(old), len(new)) and old[same] is new[same]:
        same += 1
    for index in range(first.start_after, len(items)):
        for position, block in enumerate(_blocks(items[index])):
            if index == first.start_after and position < same:
                continue
            if isinstance(block, dict) and block.get("type") in THINKING:
                return index, "content", position
    return None


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


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


__all__ = [
    "API",
    "answered",
    "calls_of",
    "end",
    "everything",
    "hints",
    "is_models",
    "must_look",
    "outcomes",
    "remember",
    "repair",
    "scan",
    "user_message",
    "violations",
]
