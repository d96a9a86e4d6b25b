"""Calls and their outputs: read for the engine, paired by it, and written as it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopkit.normalizer.dialects.openai_responses_bench import (
    Bench,
    Cell,
    Item,
    Region,
    anonymous_id,
    read_result,
    safe_id,
)
from stopkit.normalizer.dialects.openai_responses_outputs import (
    comparable,
    make,
    merged,
    retyped,
)
from stopkit.normalizer.dialects.openai_responses_shapes import (
    BY_CALL,
    BY_OUTPUT,
    MAX_ID,
    Family,
    type_of,
)
from stopkit.normalizer.engine import Call, Result, Verdict, attribute, made_up_outcome, settle
from stopkit.normalizer.wording import late_note
from stopkit.normalizer.work import Answered


class Elsewhere:
    """The calls outside the regions, each with its output; indexed when somebody first asks."""

    __slots__ = ("_items", "_outputs", "_past", "_regions")

    def __init__(
        self, items: list[Any], regions: list[Region], past: Mapping[str, Answered]
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
        for region in [*self._regions, Region(len(self._items), len(self._items))]:
            for item in self._items[at : region.start]:
                if item.get("type") in BY_OUTPUT and item.get("call_id") is not None:
                    outputs[item["call_id"]] = item
            at = region.stop
        return outputs


def settle_calls(bench: Bench) -> None:
    """Answer every call once, and give every output a place."""
    elsewhere = Elsewhere(bench.items, bench.regions, bench.context.past)
    calls: dict[str, list[Call]] = {}
    results: dict[str, list[Result]] = {}
    families: dict[str, list[Family]] = {}
    shells: dict[str, str] = {}
    seen: dict[tuple[int, str], list[Item]] = {}
    searched = ""
    every: list[Call] = []
    for cell in bench.cells():
        if cell.kind != "call" or _is_copy(bench, cell, seen):
            continue
        call = bench.call(cell)
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
    _count_occurrences(bench, every)
    _account_for_lost_calls(bench)
    for cell in list(bench.cells()):
        if cell.kind == "call" and type_of(cell.item) == "tool_search_call":
            if cell.item.get("call_id") is None:
                searched = anonymous_id(cell)
        elif cell.kind == "output":
            result = _result(bench, cell, families, shells, searched)
            if result is not None:
                results.setdefault(type_of(cell.item), []).append(result)
    for output in list(results):
        for orphan in attribute(calls.get(output, ()), results[output], elsewhere):
            _settle_orphan(bench, orphan, elsewhere.get(orphan.id))
    for call in every:
        _settle(bench, call)
    _write_ids(bench, every)


def _account_for_lost_calls(bench: Bench) -> None:
    """What became of calls that could not stay for a reason of their own."""
    lost = [
        cell
        for region in bench.regions
        for cell in region.cells
        if cell.kind == "call" and cell.gone and not cell.copy
        if cell.where not in bench.result.decisions
    ]
    if not lost:
        return
    outputs: dict[str, Cell] = {}
    for cell in bench.cells():
        if cell.kind == "output" and isinstance(cell.item.get("call_id"), str):
            outputs.setdefault(cell.item["call_id"], cell)
    for cell in lost:
        call = bench.call(cell)
        found = outputs.get(call.id)
        kept = read_result(found, call.id) if found is not None else None
        evidence = bench.context.evidences.of(call.id)
        outcome = made_up_outcome(call, evidence) if kept is None else None
        bench.result.decisions[cell.where] = (call, Verdict(keep=kept, outcome=outcome))


def _is_copy(bench: Bench, cell: Cell, seen: dict[tuple[int, str], list[Item]]) -> bool:
    """Whether its model turn has the same call already (OAI-ID-4)."""
    call_id = cell.item.get("call_id")
    if call_id is None:
        return False
    bare = {name: v for name, v in cell.item.items() if name not in ("id", "status")}
    known = seen.setdefault((cell.turn, call_id), [])
    # Only the first few: ten thousand different calls of one id are no copies of each other.
    if bare in known[:8]:
        cell.copy = True
        bench.leave(cell, "OAI-ID-4", "An identical copy of a call in its turn.")
        return True
    known.append(bare)
    return False


def _result(
    bench: Bench,
    cell: Cell,
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
            _key_by_call_id(bench, cell, found)
            call_id = found
    if call_id is None and type_ == "tool_search_output" and searched:
        call_id = searched
    if call_id is None:
        if not bench.chained or type_ == "local_shell_call_output":
            bench.output_to_text(cell, "", False)
        return None
    own = BY_OUTPUT[type_]
    asked = families.get(call_id)
    if asked and own not in asked:
        new = retyped(cell.item, asked[0])
        if new is None:
            bench.output_to_text(cell, call_id, False, rule="OAI-PAIR-3")
            return None
        note = f"The output now has the type of its call: {asked[0].output}."
        bench.say(
            "rewritten",
            "OAI-PAIR-3",
            cell.where,
            note,
            cell=cell,
            call_id=call_id,
            removed=cell.source,
        )
        cell.item, cell.touched = new, True
    return read_result(cell, call_id)


def _key_by_call_id(bench: Bench, cell: Cell, call_id: str) -> None:
    item = cell.own()
    removed = item.get("id")
    item["call_id"] = call_id
    if removed != call_id:
        del item["id"]
    note = "A local shell output answers by call_id; it was recorded under id."
    bench.say(
        "rewritten",
        "OAI-SHELL-1",
        cell.where,
        note,
        cell=cell,
        call_id=call_id,
        removed={"id": removed},
    )


def _settle(bench: Bench, call: Call) -> None:
    cell: Cell = call.item
    evidence = bench.context.evidences.of(call.id, call.occurrence)
    keep_open = bench.context.live == "keep" and call.turn == bench.turn
    verdict = settle(call, evidence, last_turn=bench.turn, keep_open=keep_open)
    bench.result.decisions[call.index] = (call, verdict)
    family = BY_CALL[type_of(cell.item)]
    if verdict.pending:
        cell.live = True
        bench.result.pending.append(call.id)
    for result in verdict.drop:
        note = "A second output for one call, which only stands for one or repeats it."
        bench.leave(result.item, "OAI-PAIR-4", note)
    for result in verdict.deliver:
        _deliver(bench, call, result)
    kept = verdict.keep
    if kept is None:
        if not verdict.pending:
            _answer(bench, call, family, verdict)
        return
    home: Cell = kept.item
    if verdict.rewrite:
        _rewrite(bench, call, family, verdict, home)
    if verdict.merge:
        _merge(bench, call, home, verdict)
    if home.where < cell.where:
        kept.item = bench.move_behind(cell, home, "OAI-PAIR-2")


def _answer(bench: Bench, call: Call, family: Family, verdict: Verdict) -> None:
    """Make up the output of a call that has none, or take the call where none is true."""
    cell: Cell = call.item
    outcome = verdict.outcome
    assert outcome is not None
    if _has_no_made_up(cell.item):
        rule = "OAI-CU-1" if family.call == "computer_call" else "OAI-PAIR-1"
        note = f"No output can be made up for it; what is known: {outcome.status}."
        bench.leave(cell, rule, note, outcome.status)
        return
    made = Cell(make(family, cell.item.get("call_id"), cell.item, outcome), "output", cell.where)
    made.turn = cell.turn
    bench.placed.append((cell, made))
    call.results.append(_made_result(call, made))
    bench.say(
        "inserted",
        "OAI-PAIR-1",
        cell.where,
        f"No output was recorded; this one says what is known: {outcome.status}.",
        cell=made,
        call_id=call.id,
        outcome=outcome.status,
    )


def _rewrite(bench: Bench, call: Call, family: Family, verdict: Verdict, home: Cell) -> None:
    outcome = verdict.outcome
    assert outcome is not None
    old = home.write()
    new = make(family, home.item.get("call_id"), call.item.item, outcome)
    if new == home.item:
        return  # a tool search's output has no room for words
    home.item = new
    home.touched = True
    bench.say(
        "rewritten",
        "GEN-LATE-1",
        home.where,
        f"The placeholder now says what is known: {outcome.status}.",
        cell=home,
        call_id=call.id,
        outcome=outcome.status,
        removed=old,
    )


def _merge(bench: Bench, call: Call, home: Cell, verdict: Verdict) -> None:
    new = merged(home.item, [result.item.item for result in verdict.merge])
    if new is None:
        for result in verdict.merge:
            _deliver(bench, call, result)
        return
    home.item, home.touched = new, True
    for result in verdict.merge:
        cell: Cell = result.item
        cell.gone = True
        bench.say(
            "merged",
            "OAI-PAIR-4",
            cell.where,
            "Two outputs were recorded for one call: both stand in one.",
            cell=home,
            call_id=call.id,
            removed=cell.source,
        )


def _deliver(bench: Bench, call: Call, result: Result) -> None:
    bench.to_text(
        result.item,
        "delivered",
        "GEN-LATE-1",
        late_note(call.id, call.occurrence, result.text or None),
        "An output that came after the model had gone on: marked data where it arrived.",
        call.id,
    )


def _settle_orphan(bench: Bench, result: Result, answered: Answered | None) -> None:
    """An output that no call of the regions takes; `answered` is the call elsewhere, if any."""
    cell: Cell = result.item
    if answered is None:
        if not bench.chained or not 0 < len(result.id) <= MAX_ID:
            bench.output_to_text(cell, result.id, False)
    elif answered.content == result.content:
        bench.leave(cell, "OAI-PAIR-4", "A copy of an output that its call has already.")
    else:
        bench.to_text(
            cell,
            "delivered",
            "GEN-LATE-1",
            late_note(result.id, answered.occurrence, result.text or None),
            "An output that came after its call was answered: marked data where it arrived.",
            result.id,
        )


def _write_ids(bench: Bench, calls: list[Call]) -> None:
    """Give each call and its output a call_id that is valid and nobody else's."""
    taken = {cell.item["call_id"] for cell in bench.cells() if cell.kind == "program"}
    for call in calls:
        cell: Cell = call.item
        old = cell.item.get("call_id")
        if cell.gone or (old is None and not BY_CALL[type_of(cell.item)].call_id_needed):
            continue
        new, rule = call.id, "OAI-ID-3"
        if not new or len(new) > MAX_ID:
            new = bench.free_id(safe_id(new))
        elif new in taken or (call.id in bench.context.past and old is not None):
            new, rule = bench.free_id(new), "OAI-ID-4"
        taken.add(new)
        if new == old:
            continue
        cell.own()["call_id"] = new
        bench.say(
            "renamed",
            rule,
            (*cell.where, "call_id"),
            f"The call and its output are now called {new}.",
            cell=cell,
            call_id=call.id,
            removed=old,
        )
        kept = bench.result.decisions[call.index][1].keep
        answer = kept if kept is not None else next(iter(call.results), None)
        if answer is not None:
            answer.item.own()["call_id"] = new


def _count_occurrences(bench: Bench, calls: list[Call]) -> None:
    """Number the calls that share an id; what is not in a region shares none."""
    counts: dict[str, int] = {}
    for call in calls:
        if call.id not in counts:
            past = bench.context.past.get(call.id)
            counts[call.id] = past.occurrence if past is not None else 0
        counts[call.id] += 1
        call.occurrence = counts[call.id]


def _has_no_made_up(item: Item) -> bool:
    """Whether no output of this call can be true that nobody recorded (GEN-NOREP-1)."""
    if type_of(item) == "computer_call":
        return True
    environment = item.get("environment")
    return isinstance(environment, dict) and environment.get("type") == "container_reference"


def _made_result(call: Call, cell: Cell) -> Result:
    return Result(id=call.id, turn=call.turn, index=call.index, item=cell, text="", is_error=None)
