"""`repair`: read what needs a look, let the engine pair it, write it back.

A region is a stretch of whole turns (see `openai_chat_scan`): a turn is an assistant message and
what stands behind it up to the next.  Each message is cleaned for itself, the calls and results of
all regions are paired together, and each turn is written anew: its assistant message, one block of
tool messages, then the rest.  What did not change is the same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stopkit.normalizer.dialects.openai_chat_parts import (
    Cell,
    Entry,
    Region,
    Turn,
    calls_of,
    comparable,
    id_of,
    leaves,
)
from stopkit.normalizer.dialects.openai_chat_read import Reader
from stopkit.normalizer.dialects.openai_chat_scan import Scan
from stopkit.normalizer.dialects.openai_chat_write import Writer
from stopkit.normalizer.engine import Call, Result, attribute, settle
from stopkit.normalizer.plain import Item, text_in
from stopkit.normalizer.result import ChangeKind
from stopkit.normalizer.wording import late_note, orphan_note
from stopkit.normalizer.work import Context, Recorder, Repaired, counted_calls


def repair(items: list[Any], found: Scan, context: Context) -> Repaired:
    """The splices that make `items` valid, with their account.

    Raises:
        HistoryError: something in the regions cannot be repaired truthfully; the path names it.
    """
    record = Recorder()
    reader = Reader(items, found, context, record)
    regions = reader.read()
    result = _Pairing(items, regions, context, record, reader.turn).pair()
    Writer(items, regions, record, result).write()
    result.changes = record.finished(_final)
    return result


class _Pairing:
    """Decides about every call of the regions; `last_turn` is the number of the newest turn."""

    def __init__(
        self,
        items: list[Any],
        regions: list[Region],
        context: Context,
        record: Recorder,
        last_turn: int,
    ) -> None:
        self.items = items
        self.regions = regions
        self.context = context
        self.record = record
        self.turn = last_turn
        self.result = Repaired(looked=[(region.start, region.stop) for region in regions])
        self.calls: list[Call] = []
        self.counted = False

    def pair(self) -> Repaired:
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
        self.calls = calls
        if self.context.evidences.by_occurrence:
            self._count_occurrences()
        # The scan has put the turn of the newest call before each stray result into a region, so
        # that no call between the regions can own one.
        for result in [*attribute(calls, results, self.context.past), *orphans]:
            self._settle_orphan(result)
        for turn in self._turns():
            for call in turn.calls:
                self._settle(call)
        return self.result

    def _turns(self) -> Iterator[Turn]:
        for region in self.regions:
            yield from region.turns

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
            leaves(
                self.record,
                result.item,
                "CHAT-ID-1" if result.item.role == "tool" else "CHAT-FN-1",
                "A second result for one call, which only stands for a result or repeats it.",
                call.id,
            )
        if verdict.deliver or verdict.announce is not None:
            self._count_occurrences()
        for result in verdict.deliver:
            self._to_user(
                result,
                "delivered",
                "GEN-LATE-1",
                late_note(
                    call.id, call.occurrence, result.text or None, is_error=bool(result.is_error)
                ),
                "A result that came after the model had gone on: marked data where it arrived.",
            )

    def _settle_orphan(self, result: Result) -> None:
        entry: Entry = result.item
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
            leaves(
                self.record,
                entry,
                "CHAT-ID-1",
                "A copy of a result that its call has already.",
                result.id,
            )
        else:
            self._to_user(
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

    def _to_user(self, result: Result, kind: ChangeKind, rule: str, text: str, note: str) -> None:
        entry: Entry = result.item
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
            removed=entry.recorded,
        )

    def _count_occurrences(self) -> None:
        """Number the calls that share an id.  Most repairs never ask."""
        if self.counted:
            return
        self.counted = True
        ours = {call.index: call for call in self.calls}
        for where, _, occurrence in counted_calls(
            calls_of(self.items), id_of, self.result.looked, ours, self.context.past
        ):
            if where in ours:
                ours[where].occurrence = occurrence


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


def _final(became: object) -> object:
    """What an entry or a call has become in the end."""
    if isinstance(became, Entry):
        return (became.home or became).write()
    return became.block if isinstance(became, Cell) else became


def _result(turn: int, entry: Entry) -> Result:
    given = entry.item.get("tool_call_id" if entry.role == "tool" else "name")
    call_id = given if isinstance(given, str) else ""
    return Result(call_id, turn, entry.where, entry, None, read=_contents)


def _contents(entry: Entry) -> tuple[str, object]:
    return text_in(entry.recorded.get("content")), comparable(entry.recorded)


def _media(message: Item) -> list[Item]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part for part in content if part["type"] != "text"]
