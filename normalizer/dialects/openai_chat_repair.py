"""`repair`: read what needs a look, let the engine pair it, write it back.

A region is a stretch of whole turns (see `openai_chat_scan`): a turn is an assistant message and
what stands behind it up to the next.  Each message is cleaned for itself, the calls and results of
all regions are paired together, and each turn is written anew: its assistant message, one block of
tool messages, then the rest.  What did not change is the same object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from stopkit.history import Api
from stopkit.normalizer.dialects.openai_chat_scan import Scan
from stopkit.normalizer.dialects.openai_chat_shapes import (
    MAX_ID,
    MAX_NAME,
    Item,
    flaws,
    good_name,
    is_json_object,
    path,
    plainly_fine,
)
from stopkit.normalizer.engine import Call, Result, Verdict, attribute, settle
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import (
    Unsound,
    is_plain,
    path_of,
    replace_surrogates,
    to_plain,
    unsound,
)
from stopkit.normalizer.result import Location, Splice
from stopkit.normalizer.wording import fold, late_note, made_up, orphan_note, read_note
from stopkit.normalizer.work import Context, Recorder, Repaired
from stopkit.outcome import Outcome

API: Final[Api] = "openai.chat"
FRAGMENT: Final = "incomplete_arguments"
"""The key under which call arguments stand that never became a JSON object (CHAT-ARG-1)."""


@dataclass(slots=True, eq=False)
class _Cell:
    """A call of an assistant message in the form of `tool_calls`, and where the input has it."""

    block: Item
    where: Location
    legacy: bool = False
    """The input has it as `function_call`."""
    clean: bool = True
    incomplete: bool = False


@dataclass(slots=True, eq=False)
class _Entry:
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
    cells: Sequence[_Cell] = ()

    def rewrite(self, item: Item) -> None:
        self.item = item
        self.touched = True

    def write(self) -> Any:
        return self.item if self.touched else self.source


@dataclass(slots=True, eq=False)
class _Turn:
    """An assistant message (none where a region starts without) and what came behind it."""

    number: int
    head: _Entry | None = None
    behind: list[_Entry] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Region:
    start: int
    stop: int
    turns: list[_Turn] = field(default_factory=list)


def repair(items: list[Any], found: Scan, context: Context) -> Repaired:
    """The splices that make `items` valid, with their account.

    Raises:
        HistoryError: something in the regions cannot be repaired truthfully; the path names it.
    """
    return _Repair(items, found, context).run()


class _Repair:
    def __init__(self, items: list[Any], found: Scan, context: Context) -> None:
        self.items = items
        self.spans = found.spans
        self.clean_turns = found.turns
        self.context = context
        self.record = Recorder()
        self.result = Repaired()
        self.regions: list[_Region] = []
        self.turn = 0
        self.used_ids: frozenset[str] | None = None
        self.numbers: dict[str, int] = {}

    def run(self) -> Repaired:
        self._read_regions()
        self._pair()
        offset = 0
        for region in self.regions:
            before = tuple(self.items[region.start : region.stop])
            after = tuple(self._write_region(region))
            if len(after) == len(before) and all(
                a is b for a, b in zip(after, before, strict=True)
            ):
                continue
            self.result.splices.append(Splice(region.start, before, region.start + offset, after))
            offset += len(after) - len(before)
        self._announce(offset)
        self.result.changes = [
            (kind, rule, where, _final(became), call_id, outcome, note, removed)
            for kind, rule, where, became, call_id, outcome, note, removed in self.record.changes
        ]
        return self.result

    # -- reading ----------------------------------------------------------------------------

    def _read_regions(self) -> None:
        at, end = 0, len(self.items)
        may_wait = self.context.live == "keep" or bool(self.context.evidences)
        for number, (start, stop) in enumerate(self.spans, start=1):
            if self._model_spoke(at, start):
                self.turn += 1
            if may_wait and number == len(self.spans) and not self._model_spoke(stop, end):
                # What stands behind the last turn may have to give way to its open calls.
                stop = end
            self.regions.append(self._read_region(start, stop))
            at = stop
        if self._model_spoke(at, end):
            self.turn += 1

    def _model_spoke(self, start: int, stop: int) -> bool:
        return any(role_of(self.items[at]) == "assistant" for at in range(start, stop))

    def _read_region(self, start: int, stop: int) -> _Region:
        region = _Region(start, stop)
        turn = _Turn(self.turn)
        region.turns.append(turn)
        for index in range(start, stop):
            entry = self._read(index)
            if entry.role != "assistant":
                turn.behind.append(entry)
                continue
            if not self._clean_assistant(entry, index):
                continue
            self.turn += 1
            turn = _Turn(self.turn, entry)
            region.turns.append(turn)
            self._collect_calls(turn, entry)
        return region

    def _read(self, index: int) -> _Entry:
        item = source = self.items[index]
        role: str
        if index in self.clean_turns or plainly_fine(source):
            role = source["role"]
            return _Entry(role, source, source, (index,), recorded=source, tool=role == "tool")
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
        entry = _Entry(role, item, source, (index,), tool=role == "tool", flawed=bool(wrong or odd))
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

    def _clean_assistant(self, entry: _Entry, index: int) -> bool:
        """Read its calls; False where the message leaves."""
        item = entry.item
        calls, legacy = item.get("tool_calls"), item.get("function_call")
        has_calls = bool(calls) or legacy is not None
        if has_calls and index + 1 < len(self.items) and self.items[index + 1] == entry.source:
            self._leaves(
                entry, "CHAT-ID-1", "The same assistant message was recorded twice: one copy stays."
            )
            return False
        if not has_calls and not any(item.get(key) for key in ("content", "refusal", "audio")):
            self._leaves(entry, "CHAT-EMPTY-2", "An assistant message with nothing in it.")
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
        cells = [_Cell(block, (index, "tool_calls", at)) for at, block in enumerate(calls or ())]
        if legacy is not None:
            block = legacy_call(index, legacy)
            cells.append(_Cell(block, (index, "function_call"), legacy=True))
        for cell in cells:
            if cell.block["type"] == "function":
                if entry.flawed:
                    self._clean_call(cell)
                if _is_fragment(cell.block["function"]["arguments"]):
                    cell.incomplete = True
        entry.cells = cells
        return True

    def _leaves(self, entry: _Entry, rule: str, note: str, call_id: str | None = None) -> None:
        entry.gone = True
        self.record.add("removed", rule, entry.where, note, call_id=call_id, removed=entry.source)

    def _clean_call(self, cell: _Cell) -> None:
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
            whole = _whole_object(given)
            text = json.dumps({FRAGMENT: _text(given)}, ensure_ascii=False)
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

    def _collect_calls(self, turn: _Turn, entry: _Entry) -> None:
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

    def _drop_copies(self, entry: _Entry) -> None:
        """Let identical copies of a call collapse; other calls with its id stay."""
        seen: set[bytes] = set()
        kept: list[_Cell] = []
        for cell in entry.cells:
            own = json.dumps(cell.block, sort_keys=True).encode()
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

    # -- pairing ----------------------------------------------------------------------------

    def _turns(self) -> Iterator[_Turn]:
        for region in self.regions:
            yield from region.turns

    def _pair(self) -> None:
        calls: list[Call] = []
        results: list[Result] = []
        functions = _Functions()
        orphans: list[Result] = []
        for turn in self._turns():
            for call in turn.calls:
                if call.item.legacy and turn.head is not None:
                    name = turn.head.item["function_call"].get("name")
                    functions.called(call, name if isinstance(name, str) else "")
                else:
                    calls.append(call)
            for entry in turn.behind:
                if entry.role == "tool":
                    results.append(_result(turn.number, entry))
                elif entry.role == "function":
                    result = _result(turn.number, entry)
                    if not functions.answered(result):
                        orphans.append(result)
        if self.context.evidences.by_occurrence or self.context.past:
            self._count_occurrences(calls)
        # The scan has put the turn of the newest call before each stray result into a region, so
        # that no call between the regions can own one.
        for result in [*attribute(calls, results, self.context.past), *orphans]:
            self._settle_orphan(result)
        for turn in self._turns():
            for call in turn.calls:
                self._settle(call)

    def _settle(self, call: Call) -> None:
        evidence = self.context.evidences.of(call.id, call.occurrence)
        keep_open = self.context.live == "keep" and call.turn == self.turn
        verdict = settle(call, evidence, last_turn=self.turn, keep_open=keep_open)
        self.result.decisions[call.index] = (call, verdict)
        if verdict.pending:
            self.result.pending.append(call.id)
        if verdict.keep is not None:
            verdict.keep.item.taken = True
        for result in verdict.merge:
            result.item.gone = True
        for result in verdict.drop:
            self._leaves(
                result.item,
                "CHAT-ID-1" if result.item.role == "tool" else "CHAT-FN-1",
                "A second result for one call, which only stands for a result or repeats it.",
                call.id,
            )
        for result in verdict.deliver:
            self._to_user(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(call.id, call.occurrence, result.text or None),
                "A result that came after the model had gone on: marked data where it arrived.",
            )

    def _settle_orphan(self, result: Result) -> None:
        entry: _Entry = result.item
        answered = self.context.past.get(result.id) if entry.role == "tool" else None
        if answered is None:
            self._to_user(
                result,
                "to_text",
                "CHAT-PAIR-2" if entry.role == "tool" else "CHAT-FN-1",
                orphan_note(result.id, result.text or None),
                "A result whose call is not in the history: attributed text.",
            )
        elif answered.content == result.content:
            self._leaves(
                entry, "CHAT-ID-1", "A copy of a result that its call has already.", result.id
            )
        else:
            self._to_user(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(result.id, answered.occurrence, result.text or None),
                "A result that came after its call had been answered: marked data where it "
                "arrived.",
            )

    def _to_user(self, result: Result, kind: Any, rule: str, text: str, note: str) -> None:
        entry: _Entry = result.item
        media = _media(entry.item)
        content = [{"type": "text", "text": text}, *media] if media else text
        entry.role, entry.made = "user", True
        entry.rewrite({"role": "user", "content": content})
        self.record.add(
            kind,
            rule,
            entry.where,
            note,
            became=entry,
            call_id=result.id,
            removed=entry.source,
        )

    def _count_occurrences(self, calls: Iterable[Call]) -> None:
        counts = {call_id: known.occurrence for call_id, known in self.context.past.items()}
        numbers: dict[Location, int] = {}
        for where, block in calls_of(self.items):
            call_id = id_of(block)
            counts[call_id] = numbers[where] = counts.get(call_id, 0) + 1
        for call in calls:
            call.occurrence = numbers.get(call.index, 1)

    # -- writing ----------------------------------------------------------------------------

    def _write_region(self, region: _Region) -> list[Any]:
        out: list[Any] = []
        last = region.stop == len(self.items)
        for turn in region.turns:
            ends = last and turn is region.turns[-1]
            out += [entry.write() for entry in self._write_turn(turn, ends=ends)]
        return out

    def _write_turn(self, turn: _Turn, *, ends: bool) -> list[_Entry]:
        """The messages of a turn; `ends` where nothing stands behind it."""
        rest = [entry for entry in turn.behind if not entry.gone and not entry.taken]
        if turn.head is None:
            return rest
        verdicts = [(call, self.result.decisions[call.index][1]) for call in turn.calls]
        if self._stays_legacy(turn):
            block = [verdict.keep.item for _, verdict in verdicts if verdict.keep is not None]
        else:
            self._write_calls(turn.head, turn.calls)
            block = self._write_block(
                turn, [self._answer(*pair) for pair in verdicts if not pair[1].pending]
            )
        parts = [part for entry in block for part in entry.parts]
        pending = any(verdict.pending for _, verdict in verdicts)
        if pending and ends:
            self._defer(rest, parts)
            return [turn.head, *block]
        if parts:
            block.append(self._media_message(turn.head, parts))
        return [turn.head, *block, *rest]

    def _write_block(self, turn: _Turn, answers: list[_Entry]) -> list[_Entry]:
        """The answers of a turn: those in place where they are, then the others by their calls."""
        own = {id(entry) for entry in answers}
        behind = {id(entry) for entry in turn.behind}
        block: list[_Entry] = []
        for entry in turn.behind:
            if id(entry) in own:
                block.append(entry)
                own.discard(id(entry))
            elif not entry.tool:
                break
        for entry in answers:
            if id(entry) not in own:
                continue
            block.append(entry)
            if entry.source is not None:
                self.record.add(
                    "moved",
                    "CHAT-ORD-1" if id(entry) in behind else "CHAT-PAIR-2",
                    entry.where,
                    "The result now stands right behind its call, before everything else.",
                    became=entry,
                    call_id=entry.item["tool_call_id"],
                )
        return block

    def _stays_legacy(self, turn: _Turn) -> bool:
        """Whether the turn's one call is a legacy one that is fine as it is, open or answered."""
        if len(turn.calls) != 1:
            return not turn.calls
        call = turn.calls[0]
        verdict = self.result.decisions[call.index][1]
        if not (call.item.legacy and call.item.clean):
            return False
        if verdict.pending:
            return True
        if verdict.keep is None or verdict.rewrite or verdict.merge:
            return False
        first = next((entry for entry in turn.behind if not entry.gone), None)
        return first is verdict.keep.item

    def _write_calls(self, head: _Entry, calls: list[Call]) -> None:
        """Write the ids of the calls, and the message with its calls where one has changed."""
        used: set[str] = set()
        for call in calls:
            new = call.id
            if not 0 < len(new) <= MAX_ID:
                new = _safe_id(new)
            if new in used:
                new = self._another_id(new, used)
            used.add(new)
            cell: _Cell = call.item
            if new == cell.block.get("id"):
                continue
            self.record.add(
                "renamed",
                "CHAT-ID-1",
                cell.where,
                f"The call and its result are now called {new}.",
                became=cell,
                call_id=call.id,
                removed=cell.block.get("id"),
            )
            cell.block = {**cell.block, "id": new}
            cell.clean = False
            call.id = new
        if not head.touched and all(cell.clean and not cell.legacy for cell in head.cells):
            return
        legacy = head.item.get("function_call")
        item = {key: value for key, value in head.item.items() if key != "function_call"}
        head.rewrite({**item, "tool_calls": [cell.block for cell in head.cells]})
        for cell in head.cells:
            if cell.legacy:
                self.record.add(
                    "rewritten",
                    "CHAT-FN-1",
                    cell.where,
                    "A legacy call without its result right behind it is now one of tool_calls.",
                    became=cell,
                    call_id=id_of(cell.block),
                    removed=legacy,
                )

    def _another_id(self, call_id: str, used: set[str]) -> str:
        if self.used_ids is None:
            self.used_ids = frozenset(id_of(block) for _, block in calls_of(self.items))
        number = self.numbers.get(call_id, 2)
        while True:
            tail = f"-{number}"
            new = call_id[: MAX_ID - len(tail)] + tail
            number += 1
            if new not in used and new not in self.used_ids:
                self.numbers[call_id] = number
                return new

    def _answer(self, call: Call, verdict: Verdict) -> _Entry:
        """The tool message that answers a call."""
        kept = verdict.keep
        if kept is None or verdict.rewrite:
            assert verdict.outcome is not None
            return self._made_up(call, None if kept is None else kept.item, verdict.outcome)
        entry: _Entry = kept.item
        if entry.role == "function":
            content = entry.item.get("content") or ""
            entry.role = "tool"
            entry.rewrite({"role": "tool", "tool_call_id": call.id, "content": content})
            self.record.add(
                "rewritten",
                "CHAT-FN-1",
                entry.where,
                "A legacy result is now the tool message of its call.",
                became=entry,
                call_id=call.id,
                removed=entry.source,
            )
        self._clean_content(entry, call.id)
        if verdict.merge:
            self._merge(call, entry, [result.item for result in verdict.merge])
        if entry.item.get("tool_call_id") != call.id:
            entry.rewrite({**entry.item, "tool_call_id": call.id})
        return entry

    def _made_up(self, call: Call, old: _Entry | None, outcome: Outcome) -> _Entry:
        item: Item = {"role": "tool", "tool_call_id": call.id, "content": made_up(outcome)}
        entry = old or _Entry("tool", item, None, call.index, made=True)
        entry.role = "tool"
        entry.rewrite(item)
        self.record.add(
            "inserted" if old is None else "rewritten",
            "CHAT-PAIR-1" if old is None else "GEN-LATE-1",
            entry.where,
            f"No result was recorded; this one says what is known: {outcome.status}."
            if old is None
            else f"The placeholder now says what is known: {outcome.status}.",
            became=entry,
            call_id=call.id,
            outcome=outcome.status,
            removed=None if old is None else old.source,
        )
        return entry

    def _merge(self, call: Call, entry: _Entry, others: list[_Entry]) -> None:
        for other in others:
            self._clean_content(other, call.id)
            entry.parts = [*entry.parts, *other.parts]
        contents = [one.item["content"] for one in (entry, *others)]
        merged: Any
        if all(isinstance(content, str) for content in contents):
            merged = fold(contents[0], contents[1:])
        else:
            merged = []
            for number, content in enumerate(contents, start=1):
                if number > 1:
                    head = f"[stopkit: recorded result {number} of the same call]"
                    merged.append({"type": "text", "text": head})
                if isinstance(content, str):
                    content = [{"type": "text", "text": content}]
                merged += content
        entry.rewrite({**entry.item, "content": merged})
        for other in others:
            self.record.add(
                "merged",
                "CHAT-ID-1" if other.role == "tool" else "CHAT-FN-1",
                other.where,
                "Two results were recorded for one call: both stand in one message.",
                became=entry,
                call_id=call.id,
                removed=other.source,
            )

    def _clean_content(self, entry: _Entry, call_id: str) -> None:
        """Leave text only; other parts are noted, to stand behind the block."""
        content = entry.item.get("content")
        if content is None:
            entry.rewrite({**entry.item, "content": ""})
            self.record.add(
                "rewritten",
                "CHAT-TOOL-1",
                entry.where,
                "A result of nothing is an empty text.",
                became=entry,
                call_id=call_id,
            )
        elif isinstance(content, list):
            texts = [part for part in content if part["type"] == "text"]
            if len(texts) == len(content):
                return
            entry.parts = [
                ((*entry.where, "content", at), part)
                for at, part in enumerate(content)
                if part["type"] != "text"
            ]
            entry.rewrite({**entry.item, "content": texts or ""})

    def _media_message(self, head: _Entry, parts: list[tuple[Location, Item]]) -> _Entry:
        for where, part in parts:
            self.record.add(
                "moved",
                "CHAT-TOOL-1",
                where,
                "A tool message holds text only: moved behind the tool messages.",
                became=part,
            )
        item: Item = {"role": "user", "content": [part for _, part in parts]}
        return _Entry("user", item, None, head.where, touched=True, made=True)

    def _defer(self, rest: list[_Entry], parts: list[tuple[Location, Item]]) -> None:
        """Hold back what stands behind open calls: with it the history would be no prefix."""
        held = [*parts, *((entry.where, entry.write()) for entry in rest)]
        for where, what in held:
            self.record.add(
                "deferred",
                "GEN-LIVE-1",
                where,
                "While a call is open only tool messages may follow it: held back until it has its "
                "result.",
                removed=what,
            )

    def _announce(self, offset: int) -> None:
        """Tell news about calls that were answered otherwise, once, at the end."""
        news = [
            (call, verdict.announce)
            for call, verdict in self.result.decisions.values()
            if verdict.announce is not None
        ]
        if not news or self.result.pending:
            # Behind an open call the news has no place yet; it is told when the call is closed.
            return
        told = {
            (head.get("call_id"), head.get("occurrence"))
            for message in self.items
            for head in _late_notes(message)
        }
        texts: list[str] = []
        message: Item = {"role": "user", "content": ""}
        for call, outcome in news:
            if (call.id, call.occurrence) in told:
                continue
            texts.append(late_note(call.id, call.occurrence, outcome.output, outcome.status))
            self.record.add(
                "delivered",
                "GEN-LATE-1",
                call.index,
                f"News about an answered call: {outcome.status}.",
                became=message,
                call_id=call.id,
                outcome=outcome.status,
            )
        if not texts:
            return
        message["content"] = (
            texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
        )
        end = len(self.items)
        splices = self.result.splices
        if splices and splices[-1].start + len(splices[-1].before) == end:
            last = splices.pop()
            splices.append(
                Splice(last.start, last.before, last.start_after, (*last.after, message))
            )
        else:
            splices.append(Splice(end, (), end + offset, (message,)))


class _Functions:
    """Legacy calls and their results, which go by the function's name."""

    def __init__(self) -> None:
        self._open: dict[str, list[Call]] = {}
        self._last: dict[str, Call] = {}

    def called(self, call: Call, name: str) -> None:
        self._open.setdefault(name, []).append(call)

    def answered(self, result: Result) -> bool:
        """Give a result to the newest call of its name, an open one before an answered one."""
        waiting = self._open.get(result.id)
        call = waiting.pop() if waiting else self._last.get(result.id)
        if call is None:
            return False
        self._last[result.id] = call
        call.results.append(result)
        return True


# -- small readings --------------------------------------------------------------------------------


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


def legacy_call(index: int, body: Item) -> Item:
    """The `function_call` of message `index` in the form of `tool_calls`, under an id of ours."""
    return {"id": f"call_legacy_{index}", "type": "function", "function": body}


def _final(became: object) -> object:
    """What an entry or a call has become in the end."""
    if isinstance(became, _Entry):
        return became.write()
    return became.block if isinstance(became, _Cell) else became


def _at(item: Any, where: Location) -> object:
    for part in where:
        item = item[part]
    return item


def _result(turn: int, entry: _Entry) -> Result:
    given = entry.item.get("tool_call_id" if entry.role == "tool" else "name")
    call_id = given if isinstance(given, str) else ""
    return Result(call_id, turn, entry.where, entry, None, read=_contents)


def _contents(entry: _Entry) -> tuple[str, object]:
    return text_of(entry.recorded), comparable(entry.recorded)


def _media(message: Item) -> list[Item]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part for part in content if part["type"] != "text"]


def _whole_object(value: object) -> str | None:
    """The text of arguments that are a whole JSON object, in whatever form they were recorded."""
    if isinstance(value, str):
        if not value.strip():
            return "{}"
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, str):
            return value if is_json_object(value) else None
    if value is None or value == []:
        return "{}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None


def _is_fragment(arguments: str) -> bool:
    if FRAGMENT not in arguments:
        return False
    given = json.loads(arguments)
    return len(given) == 1 and FRAGMENT in given


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _safe_name(name: object) -> str:
    given = name.strip() if isinstance(name, str) else ""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in given)
    return safe[:MAX_NAME] or "unnamed_tool"


def _safe_id(call_id: str) -> str:
    """A valid id for an invalid one: the same for the same, another for another."""
    digest = sha256(call_id.encode()).hexdigest()[:16]
    return f"{call_id[: MAX_ID - 17] or 'call'}-{digest}"


def _late_notes(message: Any) -> Iterator[Mapping[str, object]]:
    content = message.get("content") if isinstance(message, dict) else None
    parts = [{"text": content}] if isinstance(content, str) else content
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            head = read_note(part["text"])
            if head is not None and head.get("kind") == "late_result":
                yield head
