"""Write a region anew: each turn as its assistant message, its answers in one block, the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from stopkit.normalizer.dialects.openai_chat_parts import (
    Cell,
    Entry,
    Region,
    Turn,
    calls_of,
    id_of,
)
from stopkit.normalizer.dialects.openai_chat_shapes import MAX_ID, Item
from stopkit.normalizer.engine import Call, Verdict
from stopkit.normalizer.result import Location, Splice
from stopkit.normalizer.wording import fold, late_note, made_up, read_note
from stopkit.normalizer.work import Recorder, Repaired, trimmed
from stopkit.outcome import Outcome


class Writer:
    """Writes the regions of one history, after all calls in them have been decided."""

    def __init__(
        self, items: list[Any], regions: list[Region], record: Recorder, result: Repaired
    ) -> None:
        self.items = items
        self.regions = regions
        self.record = record
        self.result = result
        self.used_ids: frozenset[str] | None = None
        self.numbers: dict[str, int] = {}

    def write(self) -> None:
        """Add the splices to the result."""
        offset = 0
        for region in self.regions:
            before = tuple(self.items[region.start : region.stop])
            after = self._write_region(region)
            splice = trimmed(region.start, before, region.start + offset, after)
            if splice is not None:
                self.result.splices.append(splice)
                offset += len(after) - len(before)
        self._announce(offset)

    def _write_region(self, region: Region) -> list[Any]:
        out: list[Any] = []
        for turn in region.turns:
            out += [entry.write() for entry in self._write_turn(turn)]
        return out

    def _write_turn(self, turn: Turn) -> list[Entry]:
        """The messages of a turn."""
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
        if parts:
            block.append(self._media_message(turn.head, parts))
        return [turn.head, *block, *rest]

    def _write_block(self, turn: Turn, answers: list[Entry]) -> list[Entry]:
        """The answers of a turn: those in place where they are, then the others by their calls."""
        own = {id(entry) for entry in answers}
        behind = {id(entry) for entry in turn.behind}
        block: list[Entry] = []
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

    def _stays_legacy(self, turn: Turn) -> bool:
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

    def _write_calls(self, head: Entry, calls: list[Call]) -> None:
        """Write the ids of the calls, and the message with its calls where one has changed."""
        used: set[str] = set()
        for call in calls:
            new = call.id
            if not 0 < len(new) <= MAX_ID:
                new = _safe_id(new)
            if new in used:
                new = self._another_id(new, used)
            used.add(new)
            cell: Cell = call.item
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

    def _answer(self, call: Call, verdict: Verdict) -> Entry:
        """The tool message that answers a call."""
        kept = verdict.keep
        if kept is None or verdict.rewrite:
            assert verdict.outcome is not None
            return self._made_up(call, None if kept is None else kept.item, verdict.outcome)
        entry: Entry = kept.item
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
                removed=entry.recorded,
            )
        self._clean_content(entry, call.id)
        if verdict.merge:
            self._merge(call, entry, [result.item for result in verdict.merge])
        if entry.item.get("tool_call_id") != call.id:
            entry.rewrite({**entry.item, "tool_call_id": call.id})
        return entry

    def _made_up(self, call: Call, old: Entry | None, outcome: Outcome) -> Entry:
        item: Item = {"role": "tool", "tool_call_id": call.id, "content": made_up(outcome)}
        entry = old or Entry("tool", item, None, call.index, made=True)
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
            removed=None if old is None else old.recorded,
        )
        return entry

    def _merge(self, call: Call, entry: Entry, others: list[Entry]) -> None:
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
                removed=other.recorded,
            )

    def _clean_content(self, entry: Entry, call_id: str) -> None:
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

    def _media_message(self, head: Entry, parts: list[tuple[Location, Item]]) -> Entry:
        for where, part in parts:
            self.record.add(
                "moved",
                "CHAT-TOOL-1",
                where,
                "A tool message holds text only: moved behind the tool messages.",
                became=part,
            )
        item: Item = {"role": "user", "content": [part for _, part in parts]}
        return Entry("user", item, None, head.where, touched=True, made=True)

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
