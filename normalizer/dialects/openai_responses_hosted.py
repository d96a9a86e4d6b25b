"""What the provider runs and the client has a say in: programs and approvals."""

from __future__ import annotations

from typing import Any, cast

from stopkit.normalizer.dialects.openai_responses_bench import (
    SPOKEN,
    Bench,
    Cell,
    Item,
    Memory,
    read_result,
    safe_id,
    tool_name,
)
from stopkit.normalizer.dialects.openai_responses_shapes import MAX_ID, program_caller
from stopkit.normalizer.engine import Call, Result, Verdict, made_up_outcome
from stopkit.normalizer.result import Location
from stopkit.normalizer.wording import APPROVAL_NEVER_GIVEN, NO_RESULT, made_up
from stopkit.outcome import Denied, NotStarted, Placeholder, Running, Unknown


def settle_programs(bench: Bench) -> None:
    """A program without output, that is not open, leaves with what it owns (OAI-PROG-1)."""
    past = bench.context.past
    programs: dict[str, Cell] = {}
    answered: set[str] = set()
    for cell in bench.cells():
        call_id = cell.item.get("call_id") or ""
        if cell.kind == "program":
            if not call_id or call_id in programs:
                note = "A program that nothing can refer to: its call_id is another's, or none."
                bench.leave(cell, "OAI-ID-4" if call_id else "OAI-ID-3", note)
            else:
                programs[call_id] = cell
        elif cell.kind == "program_output":
            before = past.get(call_id)
            if before is not None and before.content is not None:
                answered.add(call_id)
            known = call_id in programs or before is not None
            if known and call_id not in answered:
                answered.add(call_id)
            elif known or not (bench.chained and call_id):
                bench.output_to_text(cell, call_id, known)
    spoken = bench.last_of(*SPOKEN) if programs else -1
    for call_id, cell in list(programs.items()):
        if call_id in answered:
            continue
        if cast("int", cell.where[0]) < spoken:
            del programs[call_id]
            bench.leave(cell, "OAI-PROG-1", "A program that never came to its end.")
        else:
            cell.live = True
    if not bench.chained:
        owned: list[Cell] = []
        for cell in bench.cells():
            owner = program_caller(cell.item) if cell.kind in ("call", "output") else None
            if owner is not None and owner not in programs and owner not in past:
                owned.append(cell)
        _disown(bench, owned)
    for call_id in programs:
        if len(call_id) > MAX_ID:
            _rename_program(bench, call_id, bench.free_id(safe_id(call_id)))


def close_frozen_programs(bench: Bench, news: list[Cell]) -> None:
    """Say of programs that went out open, and that nothing can take back, that they never ended."""
    memory: Memory | None = bench.context.memory
    if memory is None or not memory.programs:
        return
    cells = list(bench.cells())
    ended = {cell.item.get("call_id") for cell in cells if cell.kind == "program_output"}
    left = [call_id for call_id in memory.programs if call_id not in ended]
    at = next((n for n, cell in enumerate(cells) if cell.kind in SPOKEN), None)
    if not left or (at is None and not news):
        return
    made: list[Cell] = []
    for call_id in left:
        outcome = Unknown(reason=NO_RESULT)
        item: Item = {
            "type": "program_output",
            "call_id": call_id,
            "result": made_up(outcome),
            "status": "incomplete",
        }
        where = cells[at].where if at is not None else news[0].where
        made.append(Cell(item, "program_output", where))
        note = "The program was sent open and never came to its end: this says so."
        bench.say(
            "inserted",
            "OAI-PROG-1",
            where,
            note,
            cell=made[-1],
            call_id=call_id,
            outcome=outcome.status,
        )
    if at is None:
        news[:0] = made
        return
    while at > 0 and cells[at - 1].kind == "reasoning":
        at -= 1
    region = next(region for region in bench.regions if cells[at] in region.cells)
    place = region.cells.index(cells[at])
    region.cells[place:place] = made


def _disown(bench: Bench, owned: list[Cell]) -> None:
    """Calls and outputs of programs that are not there: the calls leave, the outputs are told."""
    outputs: dict[str, Result] = {}
    for cell in bench.cells() if owned else ():
        if cell.kind == "output":
            call_id = cell.item.get("call_id") or ""
            outputs.setdefault(call_id, read_result(cell, call_id))
    for cell in owned:
        if cell.kind == "output":
            bench.output_to_text(cell, cell.item.get("call_id") or "", False, rule="OAI-PROG-1")
    for cell in owned:
        if cell.kind != "call":
            continue
        call = bench.call(cell)
        kept = outputs.get(call.id)
        evidence = bench.context.evidences.of(call.id)
        outcome = made_up_outcome(call, evidence) if kept is None else None
        bench.result.decisions[cell.where] = (call, Verdict(keep=kept, outcome=outcome))
        status = outcome.status if outcome is not None else None
        bench.leave(cell, "OAI-PROG-1", "A call of a program that is not in the input.", status)


def _rename_program(bench: Bench, old: str, new: str) -> None:
    for cell in bench.cells():
        if cell.kind in ("program", "program_output") and cell.item.get("call_id") == old:
            cell.own()["call_id"] = new
            note = f"The program and what it owns now refer to {new}."
            where: Location = (*cell.where, "call_id")
            bench.say("renamed", "OAI-ID-3", where, note, cell=cell, removed=old)
        elif program_caller(cell.item) == old:
            cell.own()["caller"] = {**cell.item["caller"], "caller_id": new}


def settle_approvals(bench: Bench) -> None:
    """One decision for each request, and nobody's but the one that was made (OAI-MCP-1)."""
    requests: dict[str, Cell] = {}
    for cell in bench.cells():
        if cell.kind == "approval_request":
            requests.setdefault(cell.item["id"], cell)
    asked: set[str] = set()
    answers: dict[str, Cell] = {}
    for cell in bench.cells():
        if cell.kind == "approval_request":
            asked.add(cell.item["id"])
        elif cell.kind == "approval_response":
            id_ = cell.item["approval_request_id"]
            if id_ in answers:
                bench.leave(cell, "OAI-MCP-1", "A second decision about one request.")
            elif id_ in asked:
                answers[id_] = cell
            elif id_ in requests:
                answers[id_] = cell
                bench.move_behind(requests[id_], cell, "OAI-MCP-1")
            elif not bench.chained:
                bench.leave(cell, "OAI-MCP-1", "A decision about a request that is not here.")
    for id_, cell in requests.items():
        if id_ not in answers:
            _settle_undecided(bench, id_, cell)


def _settle_undecided(bench: Bench, id_: str, cell: Cell) -> None:
    evidence = bench.context.evidences.of(id_)
    call = Call(id=id_, name=tool_name(cell.item), turn=cell.turn, index=cell.where, item=cell)
    open_ = bench.context.live == "keep" and evidence is None and cell.turn == bench.turn
    if open_ or isinstance(evidence, Running):
        cell.live = True
        bench.result.decisions[cell.where] = (call, Verdict(pending=True))
        bench.result.pending.append(id_)
        return
    if isinstance(evidence, Denied):
        response: Item = {
            "type": "mcp_approval_response",
            "approval_request_id": id_,
            "approve": False,
        }
        if evidence.reason is not None:
            response["reason"] = evidence.reason
        made = Cell(response, "approval_response", cell.where)
        bench.placed.append((cell, made))
        bench.result.decisions[cell.where] = (call, Verdict(outcome=evidence))
        note = "The refusal that the caller knows of."
        bench.say(
            "inserted", "OAI-MCP-1", cell.where, note, cell=made, call_id=id_, outcome="denied"
        )
        return
    if evidence is None or isinstance(evidence, Placeholder):
        outcome: Any = NotStarted(
            reason=APPROVAL_NEVER_GIVEN, evidence=("no decision was recorded",)
        )
    else:
        outcome = evidence
    bench.result.decisions[cell.where] = (call, Verdict(outcome=outcome))
    note = f"No decision is recorded, and none can be made up; what is known: {outcome.status}."
    bench.leave(cell, "OAI-MCP-1", note, outcome.status)
