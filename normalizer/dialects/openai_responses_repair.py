"""Read what needs a look, let the engine pair it, write it back.

A region is a stretch of items that the fast pass did not let through (see `openai_responses_scan`).
Each item is made right for itself; then ids, programs, approvals, calls and outputs of all regions
are settled together; last, reasoning that nothing follows leaves.  What did not change is the same
object, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from stopkit.history import Api
from stopkit.normalizer.dialects.openai_responses_check import is_chained, is_stateless, own_id
from stopkit.normalizer.dialects.openai_responses_clean import clean, is_fragment
from stopkit.normalizer.dialects.openai_responses_outputs import (
    comparable,
    is_error,
    make,
    media_of,
    merged,
    retyped,
    text_of,
)
from stopkit.normalizer.dialects.openai_responses_scan import Scan
from stopkit.normalizer.dialects.openai_responses_shapes import (
    BY_CALL,
    BY_OUTPUT,
    CLIENT_MADE,
    ID_OPTIONAL,
    LEADS_TO,
    MAX_ID,
    MODEL_MADE,
    Family,
    Kind,
    inspect,
    kind_of,
    program_caller,
    type_of,
)
from stopkit.normalizer.engine import Call, Result, Verdict, attribute, made_up_outcome, settle
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import is_plain, path_of, replace_surrogates, to_plain, unsound
from stopkit.normalizer.result import ChangeKind, Location, Splice
from stopkit.normalizer.wording import APPROVAL_NEVER_GIVEN, late_note, orphan_note, read_note
from stopkit.normalizer.work import Answered, Context, Recorder, Repaired, trimmed
from stopkit.outcome import Denied, NotStarted, Placeholder, Running, Status

Item = dict[str, Any]
API: Final[Api] = "openai.responses"

_NEVER_LED_TO: Final = frozenset({*CLIENT_MADE, "compaction", "trigger"})
_FOLLOWED: Final = frozenset({*LEADS_TO, "reference", "unknown"})


@dataclass(slots=True, eq=False)
class _Cell:
    """An item under repair, and where the input has it."""

    item: Item
    kind: Kind
    where: Location
    source: Any = None
    """The input's own object; None for what was not in the input."""
    turn: int = 0
    gone: bool = False
    copy: bool = False
    """It left because it stands in the input before."""
    note: bool = False
    """A user message of ours."""
    touched: bool = False
    live: bool = False
    """It stays open."""
    behind: list[_Cell] = field(default_factory=list)
    """Cells that go right behind it."""

    def own(self) -> Item:
        """The item, ours to write to."""
        if not self.touched:
            self.item = {**self.item}
            self.touched = True
        return self.item

    def write(self) -> Any:
        return self.item if self.touched or self.source is None else self.source


@dataclass(slots=True, eq=False)
class _Region:
    start: int
    stop: int
    cells: list[_Cell] = field(default_factory=list)


class _Elsewhere:
    """The calls outside the regions, each with its output; indexed when somebody first asks."""

    __slots__ = ("_items", "_outputs", "_past", "_regions")

    def __init__(
        self, items: list[Any], regions: list[_Region], past: Mapping[str, Answered]
    ) -> None:
        self._items = items
        self._regions = regions
        self._past = past
        self._outputs: dict[str, Item] | None = None

    def __contains__(self, call_id: object, /) -> bool:
        return isinstance(call_id, str) and self.get(call_id) is not None

    def get(self, call_id: str) -> Answered | None:
        if self._outputs is None:
            self._outputs = self._index()
        output = self._outputs.get(call_id)
        return self._past.get(call_id) if output is None else Answered(1, comparable(output))

    def _index(self) -> dict[str, Item]:
        outputs: dict[str, Item] = {}
        at = 0
        for region in [*self._regions, _Region(len(self._items), len(self._items))]:
            for item in self._items[at : region.start]:
                if item.get("type") in BY_OUTPUT and item.get("call_id") is not None:
                    outputs[item["call_id"]] = item
            at = region.stop
        return outputs


_Said = tuple[ChangeKind, str, Location, _Cell | None, str, str | None, Status | None, object]


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
        self.context = context
        self.chained = is_chained(context.request)
        self.stateless = is_stateless(context.request)
        self.result = Repaired()
        self.said: list[_Said] = []
        self.regions: list[_Region] = []
        self.turn = 0
        self.elsewhere = _Elsewhere(items, self.regions, context.past)
        self.used: set[str] | None = None
        self.numbers: dict[str, int] = {}
        self.placed: list[tuple[_Cell, _Cell]] = []
        """What goes behind the group of a call: the call, and the cell."""
        self.triggers: list[_Cell] = []
        self.news: list[_Cell] = []

    # -- the whole --------------------------------------------------------------------------

    def run(self) -> Repaired:
        for start, stop in self._stretches():
            region = _Region(start, stop)
            self.regions.append(region)
            region.cells = [self._read(n) for n in range(start, stop)]
        self._drop_repeated_items()
        self._number_turns()
        self._settle_programs()
        self._settle_approvals()
        self._settle_calls()
        self._place()
        self._place_triggers()
        self._announce()
        for region in self.regions:
            region.cells = _flat(region.cells)
        self._shelter_what_is_live()
        for region in self.regions:
            self._settle_reasoning(region)
        self._splice()
        self._account()
        return self.result

    def _stretches(self) -> list[tuple[int, int]]:
        spans = [span for span in self.spans if span[0] < span[1]]
        if spans:
            # Whatever may stay open at the end is then in the last region.
            start, stop = spans[-1]
            if not self._answers_within(stop, len(self.items)):
                spans[-1] = (start, len(self.items))
        return spans

    def _answers_within(self, start: int, stop: int) -> bool:
        """Whether a model turn stands in this stretch."""
        return any(kind_of(self.items[n]) in MODEL_MADE for n in range(start, stop))

    def _splice(self) -> None:
        offset = 0
        end = len(self.items)
        for region in self.regions:
            after = [cell.write() for cell in region.cells if not cell.gone]
            if region.stop == end:
                after += [cell.write() for cell in self._tail()]
            before = tuple(self.items[region.start : region.stop])
            splice = trimmed(region.start, before, region.start + offset, after)
            if splice is not None:
                self.result.splices.append(splice)
                offset += len(splice.after) - len(splice.before)
        tail = self._tail()
        if tail and not (self.regions and self.regions[-1].stop == end):
            self.result.splices.append(
                Splice(end, (), end + offset, tuple(cell.write() for cell in tail))
            )

    def _tail(self) -> list[_Cell]:
        return [*self.news, *self.triggers]

    def _account(self) -> None:
        record = Recorder()
        for kind, rule, where, cell, note, call_id, outcome, removed in self.said:
            became = None if cell is None or cell.gone else cell.item
            record.add(
                kind,
                rule,
                where,
                note,
                became=became,
                call_id=call_id,
                outcome=outcome,
                removed=removed,
            )
        self.result.changes = record.changes

    def _say(
        self,
        kind: ChangeKind,
        rule: str,
        where: Location,
        note: str,
        *,
        cell: _Cell | None = None,
        call_id: str | None = None,
        outcome: Status | None = None,
        removed: object = None,
    ) -> None:
        self.said.append((kind, rule, where, cell, note, call_id, outcome, removed))

    def _leave(self, cell: _Cell, rule: str, note: str, outcome: Status | None = None) -> None:
        cell.gone = True
        call_id = _name_of_call(cell.item)
        self._say(
            "removed",
            rule,
            cell.where,
            note,
            call_id=call_id,
            outcome=outcome,
            removed=cell.item if cell.source is None else cell.source,
        )

    def _cells(self) -> Iterator[_Cell]:
        for region in self.regions:
            for cell in region.cells:
                if not cell.gone:
                    yield cell

    # -- each item --------------------------------------------------------------------------

    def _read(self, n: int) -> _Cell:
        source = self.items[n]
        item, touched = self._sound(source, n)
        kind, issues = inspect(item, n, stateless=self.stateless)
        for rule, below, message in issues:
            if rule == "GEN-SHAPE-1":
                raise HistoryError(message, path=f"input.{n}{below}", rule=rule)
        cell = _Cell(item, kind, (n,), source, touched=touched)
        if issues:
            done = clean(item, kind, issues)
            for how, rule, below_item, note, removed in done.edits:
                cell.item, cell.touched = done.item, True
                where: Location = (n, *below_item)
                self._say(how, rule, where, note, cell=cell, removed=removed)
            if done.leaves is not None:
                self._leave(cell, *done.leaves)
        return cell

    def _sound(self, source: Any, n: int) -> tuple[Item, bool]:
        """An item as plain JSON, and whether that took a change."""
        if is_plain(source):
            return source, False
        item = to_plain(source, (n,), API)
        touched = False
        for part in unsound(item, (n,)):
            if not part.surrogate:
                raise HistoryError(
                    part.message, path=path_of(API, part.location), rule="GEN-JSON-1"
                )
            removed = item
            for step in part.location[1:]:
                removed = removed[step]
            note = "A lone surrogate, which is no text, became U+FFFD."
            self._say("rewritten", "GEN-JSON-1", part.location, note, removed=removed)
            touched = True
        return (replace_surrogates(item), True) if touched else (item, False)

    # -- what stands twice ------------------------------------------------------------------

    def _drop_repeated_items(self) -> None:
        first: dict[str, _Cell] = {}
        for cell in self._cells():
            id_ = None if cell.kind == "unknown" else own_id(cell.item)
            if id_ is None:
                continue
            known = first.setdefault(id_, cell)
            if known is cell:
                continue
            if known.item == cell.item:
                cell.copy = True
                self._leave(cell, "OAI-ID-1", "An identical item stands before it.")
            elif type_of(cell.item) in ID_OPTIONAL:
                self._strip_id(cell, "OAI-ID-1", "Another item has this id.")
            else:
                note = "Another item has its id, and its type needs one."
                self._leave(cell, "OAI-ID-1", note)

    def _strip_id(self, cell: _Cell, rule: str, note: str) -> None:
        removed = cell.own().pop("id")
        self._say("removed", rule, (*cell.where, "id"), note, cell=cell, removed=removed)

    def _number_turns(self) -> None:
        """Count the model turns: one ends where the client says something."""
        nexts = [region.start for region in self.regions][1:] + [len(self.items)]
        for region, behind in zip(self.regions, nexts, strict=False):
            in_turn = False
            for cell in region.cells:
                if cell.gone:
                    continue
                if cell.kind in MODEL_MADE:
                    if not in_turn:
                        self.turn += 1
                        in_turn = True
                elif cell.kind in CLIENT_MADE:
                    in_turn = False
                cell.turn = self.turn
            if self._answers_within(region.stop, behind):
                self.turn += 1

    # -- programs ---------------------------------------------------------------------------

    def _settle_programs(self) -> None:
        """A program without output, that is not open, leaves with what it owns (OAI-PROG-1)."""
        programs: dict[str, _Cell] = {}
        answered: set[str] = set()
        for cell in self._cells():
            call_id = cell.item.get("call_id") or ""
            if cell.kind == "program":
                if not call_id or call_id in programs:
                    note = "A program that nothing can refer to: its call_id is another's, or none."
                    self._leave(cell, "OAI-ID-4" if call_id else "OAI-ID-3", note)
                else:
                    programs[call_id] = cell
            elif cell.kind == "program_output":
                known = programs.get(call_id)
                if known is not None and call_id not in answered:
                    answered.add(call_id)
                elif known is not None or not (self.chained and call_id):
                    self._output_to_text(cell, call_id, known is not None)
        spoken = self._last_spoken()
        for call_id, cell in list(programs.items()):
            if call_id in answered:
                continue
            if cast("int", cell.where[0]) < spoken:
                del programs[call_id]
                self._leave(cell, "OAI-PROG-1", "A program that never came to its end.")
            else:
                cell.live = True
        if not self.chained:
            for cell in list(self._cells()):
                owner = program_caller(cell.item) if cell.kind in ("call", "output") else None
                if owner is not None and owner not in programs:
                    self._disown(cell)
        for call_id in programs:
            if len(call_id) > MAX_ID:
                self._rename_program(call_id, self._free_id(_safe_id(call_id)))

    def _disown(self, cell: _Cell) -> None:
        """What a program owned and cannot stay without it: an output's text does."""
        call_id = cell.item.get("call_id") or ""
        if cell.kind == "output":
            self._output_to_text(cell, call_id, False, rule="OAI-PROG-1")
            return
        call = self._call(cell)
        evidence = self.context.evidences.of(call_id)
        outcome = made_up_outcome(call, evidence)
        self.result.decisions[cell.where] = (call, Verdict(outcome=outcome))
        self._leave(
            cell, "OAI-PROG-1", "A call of a program that is not in the input.", outcome.status
        )

    def _rename_program(self, old: str, new: str) -> None:
        for cell in self._cells():
            if cell.kind in ("program", "program_output") and cell.item.get("call_id") == old:
                cell.own()["call_id"] = new
                note = f"The program and what it owns now refer to {new}."
                where: Location = (*cell.where, "call_id")
                self._say("renamed", "OAI-ID-3", where, note, cell=cell, removed=old)
            elif program_caller(cell.item) == old:
                cell.own()["caller"] = {**cell.item["caller"], "caller_id": new}

    def _last_spoken(self) -> int:
        """Index of the last user or assistant message that stays, or -1."""
        at = len(self.items)
        for region in reversed(self.regions):
            for n in range(at - 1, region.stop - 1, -1):
                if kind_of(self.items[n]) in ("user", "assistant"):
                    return n
            for cell in reversed(region.cells):
                if not cell.gone and cell.kind in ("user", "assistant") and not cell.note:
                    return cast("int", cell.where[0])
            at = region.start
        for n in range(at - 1, -1, -1):
            if kind_of(self.items[n]) in ("user", "assistant"):
                return n
        return -1

    # -- approvals --------------------------------------------------------------------------

    def _settle_approvals(self) -> None:
        requests: dict[str, _Cell] = {}
        for cell in self._cells():
            if cell.kind == "approval_request":
                requests.setdefault(cell.item["id"], cell)
        asked: set[str] = set()
        answers: dict[str, _Cell] = {}
        for cell in self._cells():
            if cell.kind == "approval_request":
                asked.add(cell.item["id"])
            elif cell.kind == "approval_response":
                id_ = cell.item["approval_request_id"]
                if id_ in answers:
                    self._leave(cell, "OAI-MCP-1", "A second decision about one request.")
                elif id_ in asked:
                    answers[id_] = cell
                elif id_ in requests:
                    answers[id_] = cell
                    self._move_behind(requests[id_], cell, "OAI-MCP-1")
                elif not self.chained:
                    self._leave(cell, "OAI-MCP-1", "A decision about a request that is not here.")
        for id_, cell in requests.items():
            if id_ not in answers:
                self._settle_undecided(id_, cell)

    def _settle_undecided(self, id_: str, cell: _Cell) -> None:
        evidence = self.context.evidences.of(id_)
        call = Call(id=id_, name=_name(cell.item), turn=cell.turn, index=cell.where, item=cell)
        open_ = self.context.live == "keep" and evidence is None and cell.turn == self.turn
        if open_ or isinstance(evidence, Running):
            cell.live = True
            self.result.decisions[cell.where] = (call, Verdict(pending=True))
            self.result.pending.append(id_)
            return
        if isinstance(evidence, Denied):
            response: Item = {
                "type": "mcp_approval_response",
                "approval_request_id": id_,
                "approve": False,
            }
            if evidence.reason is not None:
                response["reason"] = evidence.reason
            made = _Cell(response, "approval_response", cell.where)
            self.placed.append((cell, made))
            self.result.decisions[cell.where] = (call, Verdict(outcome=evidence))
            note = "The refusal that the caller knows of."
            self._say(
                "inserted", "OAI-MCP-1", cell.where, note, cell=made, call_id=id_, outcome="denied"
            )
            return
        if evidence is None or isinstance(evidence, Placeholder):
            outcome: Any = NotStarted(
                reason=APPROVAL_NEVER_GIVEN, evidence=("no decision was recorded",)
            )
        else:
            outcome = evidence
        self.result.decisions[cell.where] = (call, Verdict(outcome=outcome))
        self._leave(
            cell,
            "OAI-MCP-1",
            "Nobody decided about this request, and nobody can now.",
            outcome.status,
        )

    def _move_behind(self, owner: _Cell, cell: _Cell, rule: str) -> _Cell:
        """Take a cell from where it stands to behind the group of `owner`; gives its new self."""
        moved = _Cell(
            cell.item, cell.kind, cell.where, cell.source, cell.turn, touched=cell.touched
        )
        cell.gone = True
        self.placed.append((owner, moved))
        note = "It stood before what it answers: it now stands behind it."
        call_id = _name_of_call(cell.item)
        self._say("moved", rule, cell.where, note, cell=moved, call_id=call_id)
        return moved

    # -- calls and outputs ------------------------------------------------------------------

    def _settle_calls(self) -> None:
        calls: dict[str, list[Call]] = {}
        results: dict[str, list[Result]] = {}
        families: dict[str, list[Family]] = {}
        shells: dict[str, str] = {}
        seen: dict[tuple[int, str], list[Item]] = {}
        searched = ""
        every: list[Call] = []
        for cell in self._cells():
            if cell.kind != "call" or self._is_copy(cell, seen):
                continue
            call = self._call(cell)
            family = BY_CALL[type_of(cell.item)]
            calls.setdefault(family.output, []).append(call)
            every.append(call)
            known = families.setdefault(call.id, [])
            if family not in known:
                known.append(family)
            if family.call == "local_shell_call":
                for name in ("id", "call_id"):
                    if isinstance(cell.item.get(name), str):
                        shells.setdefault(cell.item[name], call.id)
        if self.context.evidences.by_occurrence or self.context.past:
            self._count_occurrences(every)
        for cell in list(self._cells()):
            if cell.kind == "call" and type_of(cell.item) == "tool_search_call":
                if cell.item.get("call_id") is None:
                    searched = _anonymous(cell)
            elif cell.kind == "output":
                result = self._result(cell, families, shells, searched)
                if result is not None:
                    results.setdefault(type_of(cell.item), []).append(result)
        for output in list(results):
            for orphan in attribute(calls.get(output, ()), results[output], self.elsewhere):
                self._settle_orphan(orphan)
        for call in every:
            self._settle(call)
        self._write_ids(every)

    def _call(self, cell: _Cell) -> Call:
        call_id = cell.item.get("call_id")
        if call_id is None:
            family = BY_CALL[type_of(cell.item)]
            call_id = _anonymous(cell)
            if family.call_id_needed:
                call_id = self._free_id(call_id)
        return Call(
            id=call_id,
            name=_name(cell.item),
            turn=cell.turn,
            index=cell.where,
            item=cell,
            incomplete=is_fragment(cell.item.get("arguments")),
        )

    def _is_copy(self, cell: _Cell, seen: dict[tuple[int, str], list[Item]]) -> bool:
        """Whether its model turn has the same call already (OAI-ID-4)."""
        call_id = cell.item.get("call_id")
        if call_id is None:
            return False
        bare = {name: v for name, v in cell.item.items() if name not in ("id", "status")}
        known = seen.setdefault((cell.turn, call_id), [])
        # Only the first few: ten thousand different calls of one id are no copies of each other.
        if bare in known[:8]:
            cell.copy = True
            self._leave(cell, "OAI-ID-4", "An identical copy of a call in its turn.")
            return True
        known.append(bare)
        return False

    def _result(
        self,
        cell: _Cell,
        families: Mapping[str, list[Family]],
        shells: Mapping[str, str],
        searched: str,
    ) -> Result | None:
        """The output as the engine reads it; None where it is settled already."""
        type_ = type_of(cell.item)
        call_id = cell.item.get("call_id")
        if call_id is None and type_ == "local_shell_call_output":
            found = shells.get(cell.item.get("id", ""))
            if found is not None:
                self._key_by_call_id(cell, found)
                call_id = found
        if call_id is None and type_ == "tool_search_output" and searched:
            call_id = searched
        if call_id is None:
            if not self.chained or type_ == "local_shell_call_output":
                self._output_to_text(cell, "", False)
            return None
        own = BY_OUTPUT[type_]
        asked = families.get(call_id)
        if asked and own not in asked:
            new = retyped(cell.item, asked[0])
            if new is None:
                self._output_to_text(cell, call_id, False, rule="OAI-PAIR-3")
                return None
            note = f"The output now has the type of its call: {asked[0].output}."
            self._say(
                "rewritten",
                "OAI-PAIR-3",
                cell.where,
                note,
                cell=cell,
                call_id=call_id,
                removed=cell.source,
            )
            cell.item, cell.touched = new, True
        return Result(
            id=call_id,
            turn=cell.turn,
            index=cell.where,
            item=cell,
            text=text_of(cell.item),
            is_error=is_error(cell.item),
            content=comparable(cell.item),
        )

    def _key_by_call_id(self, cell: _Cell, call_id: str) -> None:
        item = cell.own()
        removed = item.get("id")
        item["call_id"] = call_id
        if removed != call_id:
            del item["id"]
        note = "A local shell output answers by call_id; it was recorded under id."
        self._say(
            "rewritten",
            "OAI-SHELL-1",
            cell.where,
            note,
            cell=cell,
            call_id=call_id,
            removed={"id": removed},
        )

    def _settle(self, call: Call) -> None:
        cell: _Cell = call.item
        evidence = self.context.evidences.of(call.id, call.occurrence)
        keep_open = self.context.live == "keep" and call.turn == self.turn
        verdict = settle(call, evidence, last_turn=self.turn, keep_open=keep_open)
        self.result.decisions[call.index] = (call, verdict)
        family = BY_CALL[type_of(cell.item)]
        if verdict.pending:
            cell.live = True
            self.result.pending.append(call.id)
        for result in verdict.drop:
            note = "A second output for one call, which only stands for one or repeats it."
            self._leave(result.item, "OAI-PAIR-4", note)
        for result in verdict.deliver:
            self._deliver(call, result)
        kept = verdict.keep
        if kept is None:
            if not verdict.pending:
                self._answer(call, family, verdict)
            return
        home: _Cell = kept.item
        if verdict.rewrite:
            self._rewrite(call, family, verdict, home)
        if verdict.merge:
            self._merge(call, home, verdict)
        if home.where < cell.where:
            kept.item = self._move_behind(cell, home, "OAI-PAIR-2")

    def _answer(self, call: Call, family: Family, verdict: Verdict) -> None:
        """Make up the output of a call that has none, or take the call where none is true."""
        cell: _Cell = call.item
        outcome = verdict.outcome
        assert outcome is not None
        if _has_no_made_up(cell.item):
            rule = "OAI-CU-1" if family.call == "computer_call" else "OAI-PAIR-1"
            note = f"No output can be made up for it; what is known: {outcome.status}."
            self._leave(cell, rule, note, outcome.status)
            return
        made = _Cell(
            make(family, cell.item.get("call_id"), cell.item, outcome), "output", cell.where
        )
        made.turn = cell.turn
        self.placed.append((cell, made))
        call.results.append(_made_result(call, made))
        self._say(
            "inserted",
            "OAI-PAIR-1",
            cell.where,
            f"No output was recorded; this one says what is known: {outcome.status}.",
            cell=made,
            call_id=call.id,
            outcome=outcome.status,
        )

    def _rewrite(self, call: Call, family: Family, verdict: Verdict, home: _Cell) -> None:
        outcome = verdict.outcome
        assert outcome is not None
        old = home.write()
        home.item = make(family, home.item.get("call_id"), call.item.item, outcome)
        home.touched = True
        self._say(
            "rewritten",
            "GEN-LATE-1",
            home.where,
            f"The placeholder now says what is known: {outcome.status}.",
            cell=home,
            call_id=call.id,
            outcome=outcome.status,
            removed=old,
        )

    def _merge(self, call: Call, home: _Cell, verdict: Verdict) -> None:
        new = merged(home.item, [result.item.item for result in verdict.merge])
        if new is None:
            for result in verdict.merge:
                self._deliver(call, result)
            return
        home.item, home.touched = new, True
        for result in verdict.merge:
            cell: _Cell = result.item
            cell.gone = True
            self._say(
                "merged",
                "OAI-PAIR-4",
                cell.where,
                "Two outputs were recorded for one call: both stand in one.",
                cell=home,
                call_id=call.id,
                removed=cell.source,
            )

    def _deliver(self, call: Call, result: Result) -> None:
        self._to_text(
            result.item,
            "delivered",
            "GEN-LATE-1",
            late_note(call.id, call.occurrence, result.text or None),
            "An output that came after the model had gone on: marked data where it arrived.",
            call.id,
        )

    def _settle_orphan(self, result: Result) -> None:
        cell: _Cell = result.item
        answered = self.elsewhere.get(result.id)
        if answered is None:
            if not self.chained or not 0 < len(result.id) <= MAX_ID:
                self._output_to_text(cell, result.id, False)
        elif answered.content == result.content:
            self._leave(cell, "OAI-PAIR-4", "A copy of an output that its call has already.")
        else:
            self._to_text(
                cell,
                "delivered",
                "GEN-LATE-1",
                late_note(result.id, answered.occurrence, result.text or None),
                "An output that came after its call was answered: marked data where it arrived.",
                result.id,
            )

    def _output_to_text(
        self, cell: _Cell, call_id: str, second: bool, *, rule: str = "OAI-PAIR-2"
    ) -> None:
        text = text_of(cell.item) or None
        if second:
            note = "A second output: marked data where it arrived."
            self._to_text(
                cell, "delivered", "OAI-PAIR-4", late_note(call_id, 1, text), note, call_id
            )
            return
        note = "An output that no call of this input takes: attributed text."
        self._to_text(cell, "to_text", rule, orphan_note(call_id, text), note, call_id)

    def _to_text(
        self, cell: _Cell, kind: ChangeKind, rule: str, text: str, note: str, call_id: str
    ) -> None:
        removed = cell.item if cell.source is None else cell.source
        parts = [{"type": "input_text", "text": text}, *media_of(cell.item)]
        cell.item = {"type": "message", "role": "user", "content": parts}
        cell.kind, cell.touched, cell.note = "user", True, True
        self._say(kind, rule, cell.where, note, cell=cell, call_id=call_id, removed=removed)

    def _place(self) -> None:
        """Put what was made up or moved behind the group of calls it answers."""
        if not self.placed:
            return
        ends = self._group_ends()
        for owner, cell in self.placed:
            ends[id(owner)].behind.append(cell)

    def _group_ends(self) -> dict[int, _Cell]:
        """For each call and request, by identity, the last one of the group that it stands in.

        The group is a run of its kind with its reasoning, or the whole of a model turn that is
        still open: an output inside it would end it.
        """
        live = {cell.turn for cell in self._cells() if cell.live}
        ends: dict[int, _Cell] = {}
        for region in self.regions:
            end: _Cell | None = None
            of_turn: dict[int, _Cell] = {}
            for cell in reversed(region.cells):
                if cell.turn in live and not cell.gone and cell.kind in MODEL_MADE:
                    of_turn.setdefault(cell.turn, cell)
                if cell.kind in ("call", "approval_request"):
                    # One that left still marks where its group ends.
                    end = end if end is not None and end.kind == cell.kind else cell
                    ends[id(cell)] = of_turn.get(cell.turn, end)
                elif not cell.gone and cell.kind != "reasoning":
                    end = None
        return ends

    # -- ids --------------------------------------------------------------------------------

    def _used_ids(self) -> set[str]:
        """Every call_id of the input, and those given out."""
        if self.used is None:
            self.used = {
                call_id
                for item in self.items
                if isinstance(item, dict) and isinstance(call_id := item.get("call_id"), str)
            }
        return self.used

    def _free_id(self, wanted: str) -> str:
        """A call_id that nothing in the input has: `wanted`, or with a number."""
        used = self._used_ids()
        base = wanted[: MAX_ID - 8]
        number = self.numbers.get(wanted, 1)
        new = wanted if number == 1 else f"{base}-{number}"
        while new in used or new in self.context.past:
            number += 1
            new = f"{base}-{number}"
        self.numbers[wanted] = number
        used.add(new)
        return new

    def _write_ids(self, calls: list[Call]) -> None:
        """Give each call and its output a call_id that is valid and nobody else's."""
        taken = {cell.item["call_id"] for cell in self._cells() if cell.kind == "program"}
        for call in calls:
            cell: _Cell = call.item
            old = cell.item.get("call_id")
            if cell.gone or (old is None and not BY_CALL[type_of(cell.item)].call_id_needed):
                continue
            new, rule = call.id, "OAI-ID-3"
            if not new or len(new) > MAX_ID:
                new = _safe_id(new)
                if new in self._used_ids():
                    new = self._free_id(new)
            elif new in taken or (call.id in self.context.past and old is not None):
                new, rule = self._free_id(new), "OAI-ID-4"
            if new in taken:
                new = self._free_id(new)
            taken.add(new)
            if new == old:
                continue
            cell.own()["call_id"] = new
            self._say(
                "renamed",
                rule,
                (*cell.where, "call_id"),
                f"The call and its output are now called {new}.",
                cell=cell,
                call_id=call.id,
                removed=old,
            )
            kept = self.result.decisions[call.index][1].keep
            answer = kept if kept is not None else next(iter(call.results), None)
            if answer is not None:
                answer.item.own()["call_id"] = new

    def _count_occurrences(self, calls: list[Call]) -> None:
        counts = {call_id: known.occurrence for call_id, known in self.context.past.items()}
        numbers: dict[Location, int] = {}
        for where, item in calls_of(self.items):
            call_id = item.get("call_id")
            if isinstance(call_id, str):
                counts[call_id] = numbers[where] = counts.get(call_id, 0) + 1
        for call in calls:
            call.occurrence = numbers.get(call.index, 1)

    # -- the end ----------------------------------------------------------------------------

    def _place_triggers(self) -> None:
        """A compaction trigger is the last item (OAI-COMP-1)."""
        triggers = [cell for cell in self._cells() if cell.kind == "trigger"]
        end = len(self.items) - 1
        for cell in triggers:
            if cell is triggers[-1]:
                at = cell.where[0]
                moves = at != end
                cell.gone = True
                home = _Cell(cell.item, cell.kind, cell.where, cell.source, touched=cell.touched)
                self.triggers = [home]
                if moves:
                    note = "A compaction_trigger is the last item of an input."
                    self._say("moved", "OAI-COMP-1", cell.where, note, cell=home)
            else:
                self._leave(cell, "OAI-COMP-1", "A second compaction_trigger.")

    def _announce(self) -> None:
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
            for item in self.items
            for head in _notes_of(item)
        }
        for call, outcome in news:
            if (call.id, call.occurrence) in told:
                continue
            text = late_note(call.id, call.occurrence, outcome.output, outcome.status)
            cell = _Cell(user_item(text), "user", call.index, note=True)
            self.news.append(cell)
            self._say(
                "delivered",
                "GEN-LATE-1",
                call.index,
                f"News about an answered call: {outcome.status}.",
                cell=cell,
                call_id=call.id,
                outcome=outcome.status,
            )

    def _shelter_what_is_live(self) -> None:
        """Our notes stand before the model turn that is still open: behind it they would end it."""
        region = self.regions[-1] if self.regions else None
        if region is None or region.stop < len(self.items):
            return
        cells = [cell for cell in region.cells if not cell.gone]
        live = next((at for at, cell in enumerate(cells) if cell.live), None)
        if live is None:
            return
        while live > 0 and cells[live - 1].kind in MODEL_MADE:
            live -= 1
        notes = [cell for cell in cells[live:] if cell.note]
        notes += self.news
        if not notes or any(cell.kind == "user" and not cell.note for cell in cells[live:]):
            return
        rest = [cell for cell in cells[live:] if not cell.note]
        region.cells = [*cells[:live], *notes, *rest]
        self.news = []

    def _settle_reasoning(self, region: _Region) -> None:
        """Reasoning that nothing of the model's follows leaves (OAI-REAS-1)."""
        behind: Kind | None
        if region.stop < len(self.items):
            behind = kind_of(self.items[region.stop])
        else:
            tail = self._tail()
            behind = tail[0].kind if tail else None
        followed_gone = False
        follower: _Cell | None = None
        for cell in reversed(region.cells):
            if cell.kind != "reasoning":
                if not cell.gone:
                    behind, follower, followed_gone = cell.kind, cell, False
                elif cell.kind in _FOLLOWED:
                    followed_gone = True
                continue
            if cell.gone:
                if not cell.copy:
                    self._strip_dependent(follower)
                continue
            at_end = behind is None and (self.context.live == "close" or followed_gone)
            if followed_gone or at_end or behind in _NEVER_LED_TO:
                self._leave(cell, "OAI-REAS-1", "Reasoning without the item it led to.")
                self._strip_dependent(follower)

    def _strip_dependent(self, follower: _Cell | None) -> None:
        """The item behind removed reasoning does not ask for it (OAI-REAS-2)."""
        if (
            follower is not None
            and follower.kind in LEADS_TO
            and follower.item.get("id") is not None
            and type_of(follower.item) in ID_OPTIONAL
        ):
            self._strip_id(follower, "OAI-REAS-2", "Its reasoning left: an id would ask for it.")


# -- small readings --------------------------------------------------------------------------------


def calls_of(items: list[Any]) -> Iterator[tuple[Location, Item]]:
    """Every call of an input that the client runs, and every approval asked, with its place."""
    for n, item in enumerate(items):
        plain = item if isinstance(item, dict) else to_plain(item, (n,), API)
        if kind_of(plain) in ("call", "approval_request"):
            yield (n,), plain


def _flat(cells: list[_Cell]) -> list[_Cell]:
    flat: list[_Cell] = []
    for cell in cells:
        flat.append(cell)
        flat += cell.behind
        cell.behind = []
    return flat


def _anonymous(cell: _Cell) -> str:
    return f"call_unnamed_{cell.where[0]}"


def _name(item: Item) -> str:
    name = item.get("name")
    return name if isinstance(name, str) else type_of(item).removesuffix("_call")


def _name_of_call(item: Item) -> str | None:
    for name in ("call_id", "approval_request_id"):
        if isinstance(item.get(name), str):
            return cast("str", item[name])
    return cast("str | None", item.get("id")) if kind_of(item) == "approval_request" else None


def _has_no_made_up(item: Item) -> bool:
    """Whether no output of this call can be true that nobody recorded (GEN-NOREP-1)."""
    if type_of(item) == "computer_call":
        return True
    environment = item.get("environment")
    return isinstance(environment, dict) and environment.get("type") == "container_reference"


def _made_result(call: Call, cell: _Cell) -> Result:
    return Result(id=call.id, turn=call.turn, index=call.index, item=cell, text="", is_error=None)


def _safe_id(call_id: str) -> str:
    """A valid call_id for an invalid one: the same for the same, another for another."""
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{call_id[:40] or 'call'}-{digest}"


def user_item(text: str) -> Item:
    """A user message of one text."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _notes_of(item: Any) -> Iterator[Mapping[str, object]]:
    content = item.get("content") if isinstance(item, dict) else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            head = read_note(part["text"])
            if head is not None and head.get("kind") == "late_result":
                yield head


__all__ = ["API", "calls_of", "repair", "user_item"]
