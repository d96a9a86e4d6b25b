"""Write a region anew: each exchange as its assistant messages, one run of results, the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stopkit.normalizer.dialects.anthropic_blocks import (
    CLIENT_ID,
    THINKING,
    awaits_provider,
    blank,
    client_id,
)
from stopkit.normalizer.dialects.anthropic_parts import (
    Cell,
    Exchange,
    Message,
    Region,
    as_user_note,
    calls_of,
    id_of,
    take_out,
    takes_system,
)
from stopkit.normalizer.engine import Call, Result, Verdict
from stopkit.normalizer.models import refuses_prefill
from stopkit.normalizer.names import plain_characters, safe_id
from stopkit.normalizer.plain import Item, role_of
from stopkit.normalizer.splices import add_at_end, trimmed
from stopkit.normalizer.wording import fold_contents, history_start_note, late_note, made_up
from stopkit.normalizer.work import Context, Recorder, Repaired, untold_news
from stopkit.outcome import Succeeded


class Writer:
    """Writes the regions of one history, after all calls in them have been decided."""

    def __init__(
        self,
        items: list[Any],
        regions: list[Region],
        context: Context,
        record: Recorder,
        result: Repaired,
    ) -> None:
        self.items = items
        self.regions = regions
        self.context = context
        self.record = record
        self.result = result
        self.used_ids: frozenset[str] | None = None
        self.numbers: dict[str, int] = {}

    def write(self) -> None:
        """Add the splices, and what could not be placed, to the result."""
        exchanges = [exchange for region in self.regions for exchange in region.exchanges]
        for exchange in exchanges:
            self._write_ids(exchange)
            self._write_results(exchange)
        for exchange in exchanges:
            if any(message.touched for message in exchange.users):
                for message in exchange.users:
                    message.tidy()
                exchange.users = [message for message in exchange.users if not message.empty]
        offset = 0
        for region in self.regions:
            before = tuple(self.items[region.start : region.stop])
            splice = trimmed(
                region.start, before, region.start + offset, self._write_region(region)
            )
            if splice is not None:
                self.result.splices.append(splice)
                offset += len(splice.after) - len(splice.before)
        self._announce(offset)

    def _write_region(self, region: Region) -> list[Any]:
        out: list[Message] = []
        carried: list[tuple[Cell, str]] = []
        system: list[Message] = []
        for exchange in region.exchanges:
            if not region.plain:
                carried = self._defer(exchange, carried)
                system = self._place_system(exchange, system)
            out += exchange.assistants
            out += exchange.users
        at_end = region.stop == len(self.items)
        notes = [as_user_note(self.record, message) for message in system]
        last = region.exchanges[-1] if region.exchanges else None
        if last is not None and last.results_only:
            carried += [(cell, last.results_only) for note in notes for cell in note.cells]
        else:
            out += notes
        for cell, rule in carried:
            self._say_deferred(cell, rule, gone=True)
        self.result.deferred += [cell.block for cell, _ in carried]
        if region.start == 0 and not self.context.follows:
            self._open_with_user(region, out)
        if at_end:
            self._finish(out)
        return [message.write() for message in out]

    def _write_ids(self, exchange: Exchange) -> None:
        used: set[str] = set()
        for call in exchange.calls:
            new = call.id
            if not CLIENT_ID.match(new):
                new = safe_id(new, plain_characters(new[:40]))
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
                became=cell,
                call_id=call.id,
                removed=old,
            )
            call.id = new

    def _another_id(self, call_id: str, used: set[str]) -> str:
        if self.used_ids is None:
            self.used_ids = frozenset(id_of(block) for _, block in calls_of(self.items))
        number = self.numbers.get(call_id, 2)
        while f"{call_id}-{number}" in used or f"{call_id}-{number}" in self.used_ids:
            number += 1
        self.numbers[call_id] = number + 1
        return f"{call_id}-{number}"

    def _write_results(self, exchange: Exchange) -> None:
        answers: list[tuple[Message | None, Cell]] = []
        fresh = False
        for call in exchange.calls:
            verdict = self.result.decisions[call.index][1]
            if not verdict.pending:
                answer = self._answer(call, verdict)
                fresh = fresh or answer[0] is None or bool(answer[1].behind)
                answers.append(answer)
        for message in exchange.users:
            message.tidy()
        leading, results = _leading_run(exchange.users)
        if (
            not fresh
            and len(results) == len(leading) == len(answers)
            and all(id(cell) in leading for _, cell in answers)
        ):
            return
        if not answers:
            return
        run: list[Cell] = []
        behind: list[Cell] = []
        for owner, cell in answers:
            if owner is not None:
                if id(cell) not in leading:
                    self._say_moved(exchange, owner, cell)
                take_out(owner, cell)
            run.append(cell.moved())
            behind += cell.behind or ()
            cell.behind = None
        home = exchange.users[0] if exchange.users else None
        if home is None or home.role != "user":
            home = Message("user", [], exchange.assistants[-1].where)
            exchange.users.insert(0, home)
        home.cells[:0] = [*run, *behind]
        home.touched = True

    def _say_moved(self, exchange: Exchange, owner: Message, cell: Cell) -> None:
        own = bool(exchange.users) and owner is exchange.users[0]
        self.record.add(
            "moved",
            "ANT-ORD-1" if own else "ANT-PAIR-3",
            cell.where,
            "The result now stands right behind its call, before everything else.",
            became=cell,
            call_id=client_id(cell.block, "tool_use_id"),
        )

    def _answer(self, call: Call, verdict: Verdict) -> tuple[Message | None, Cell]:
        """The result cell of a call, and the message it stands in now (None: a new one)."""
        _, call_cell = call.item
        toolset = call_cell.block.get("toolset_name")
        if verdict.keep is None or verdict.rewrite:
            outcome = verdict.outcome
            assert outcome is not None
            block: Item = {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": made_up(outcome),
            }
            if not isinstance(outcome, Succeeded):
                block["is_error"] = True
            if toolset is not None:
                block["toolset_name"] = toolset
            old: Cell | None = None
            if verdict.keep is not None:
                message, old = cast("tuple[Message, Cell]", verdict.keep.item)
                take_out(message, old)
            cell = Cell(block, call.index if old is None else old.where)
            self.record.add(
                "inserted" if old is None else "rewritten",
                "ANT-PAIR-1" if old is None else "GEN-LATE-1",
                cell.where,
                f"No result was recorded; this one says what is known: {outcome.status}."
                if old is None
                else f"The placeholder now says what is known: {outcome.status}.",
                became=cell,
                call_id=call.id,
                outcome=outcome.status,
                removed=None if old is None else old.block,
            )
            return None, cell
        message, cell = verdict.keep.item
        block = cell.block
        if verdict.merge:
            block = self._merged(call, cell, verdict.merge)
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
                    became=cell,
                    call_id=call.id,
                    removed=cell.block.get("toolset_name"),
                )
        if block is not cell.block:
            cell.block = block
            message.touched = True
        return message, cell

    def _merged(self, call: Call, cell: Cell, more: Sequence[Result]) -> Item:
        block = cell.block
        blocks = [block]
        for result in more:
            message, other = result.item
            blocks.append(other.block)
            take_out(message, other)
        contents = [part.get("content", "") for part in blocks]
        merged = {**block}
        folded = fold_contents(contents, "text")
        if isinstance(folded, list):
            # A result may be an empty string, but no part of one may be an empty text.
            folded = [p for p in folded if p["type"] != "text" or not blank(p["text"])]
        merged["content"] = folded
        is_error = any(part.get("is_error") for part in blocks)
        if is_error:
            merged["is_error"] = True
            if isinstance(merged["content"], list):
                cell.behind = [
                    Cell(part, cell.where) for part in merged["content"] if part["type"] != "text"
                ]
                merged["content"] = [p for p in merged["content"] if p["type"] == "text"]
        for result in more:
            self.record.add(
                "merged",
                "ANT-PAIR-5",
                result.index,
                "Two results were recorded for one call: both stand in one block.",
                became=cell,
                call_id=call.id,
                removed=result.item[1].block,
            )
        return merged

    def _defer(self, exchange: Exchange, carried: list[tuple[Cell, str]]) -> list[tuple[Cell, str]]:
        """Keep a reply to results only; what else it held goes to the next user turn.

        `carried` are the cells held back so far, each with the rule that held it.
        """
        if exchange.results_only:
            for message in exchange.users:
                rest = [cell for cell in message.cells if cell.kind != "tool_result"]
                if message.role != "user" or not rest:
                    continue
                message.cells = [cell for cell in message.cells if cell.kind == "tool_result"]
                message.touched = True
                carried += [(cell, exchange.results_only) for cell in rest]
            exchange.users = [message for message in exchange.users if not message.empty]
            return carried
        if not carried:
            return carried
        for cell, rule in carried:
            self._say_deferred(cell, rule)
        cells = [cell for cell, _ in carried]
        home = next((m for m in exchange.users if m.role == "user"), None)
        if home is None:
            exchange.users.insert(0, Message("user", cells, cells[0].where))
            return []
        home, at = _behind_results(exchange.users, home)
        home.cells[at:at] = cells
        home.touched = True
        return []

    def _say_deferred(self, cell: Cell, rule: str, *, gone: bool = False) -> None:
        why = (
            "The reply to calls that code made holds results only"
            if rule == "ANT-SRV-7"
            else "While a provider-run call is open the reply holds results only"
        )
        self.record.add(
            "deferred",
            rule,
            cell.where,
            f"{why}: held back for the next user turn.",
            became=None if gone else cell,
            removed=cell.block if gone else None,
        )

    def _place_system(self, exchange: Exchange, waiting: list[Message]) -> list[Message]:
        own = [m for m in exchange.users if m.role == "system" and m.cells]
        if not own and not waiting:
            return []
        wanted = [*waiting, *own]
        users = [m for m in exchange.users if m not in own]
        if not takes_system(exchange):
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
                became=message.cells[0],
            )
        for message in others:
            home.cells += message.cells
            home.touched = True
        exchange.users = [*users, home]
        return []

    def _open_with_user(self, region: Region, out: list[Message]) -> None:
        if out:
            first: object = out[0].role
        else:
            first = role_of(self.items[region.stop]) if region.stop < len(self.items) else None
        if first == "assistant":
            block: Item = {"type": "text", "text": history_start_note()}
            self.record.add(
                "noted",
                "ANT-ROLE-1",
                (0,),
                "A history starts with the user: a marked note says that its beginning is missing.",
                became=block,
            )
            out.insert(0, Message("user", [Cell(block, (0,))], (0,)))

    def _finish(self, out: list[Message]) -> None:
        """The end rules that a repair can meet (ANT-END-2, ANT-THINK-5)."""
        last = out[-1] if out else None
        if last is None or last.role != "assistant":
            return
        thinking = self.context.request.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
            hidden = [cell for cell in last.cells if cell.kind in THINKING]
            for cell in hidden:
                self.record.add(
                    "removed",
                    "ANT-THINK-5",
                    cell.where,
                    "Thinking in a last message, with thinking off.",
                    removed=cell.block,
                )
            if hidden:
                last.cells = [cell for cell in last.cells if cell.kind not in THINKING]
                last.touched = True
                if not last.cells:
                    out.pop()
                    self._finish(out)
                    return
        if refuses_prefill(self.context.request.get("model")) is False:
            cell = last.cells[-1]
            if cell.kind == "text" and cell.block["text"] != cell.block["text"].rstrip():
                block = {**cell.block, "text": cell.block["text"].rstrip()}
                self.record.add(
                    "rewritten",
                    "ANT-END-2",
                    cell.where,
                    "White space at the end of a last assistant text.",
                    became=cell,
                    removed=cell.block if len(cell.where) > 1 else cell.block["text"],
                )
                cell.block = block
                last.touched = True

    def _announce(self, offset: int) -> None:
        """Tell news about calls that were answered otherwise, once, at the end."""
        news = untold_news(self.result.decisions, self.items)
        if news and not self._takes_news():
            return
        blocks: list[Item] = []
        for call, outcome in news:
            text = late_note(call.id, call.occurrence, outcome.output, outcome)
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
        if blocks:
            message: Item = {"role": "user", "content": blocks}
            add_at_end(self.result.splices, len(self.items), offset, message)

    def _takes_news(self) -> bool:
        """Whether a user message may stand at the end: else the news waits for a later pass."""
        if self.result.pending:
            return False
        region = self.regions[-1]
        if region.stop < len(self.items) or not region.exchanges:
            return True
        last = region.exchanges[-1]
        if last.results_only or any(message.role == "system" for message in last.users):
            return False
        blocks = [cell.block for message in last.assistants for cell in message.cells]
        return bool(last.users) or not awaits_provider(blocks)


def _leading_run(users: list[Message]) -> tuple[set[int], list[Cell]]:
    """The result cells that lead a user turn (by identity), and all result cells in it."""
    leading: set[int] = set()
    results: list[Cell] = []
    leads = True
    for message in users:
        leads = leads and message.role == "user"
        for cell in message.cells:
            if cell.block["type"] != "tool_result":
                leads = False
                continue
            results.append(cell)
            if leads:
                leading.add(id(cell))
    return leading, results


def _behind_results(users: list[Message], home: Message) -> tuple[Message, int]:
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
