"""The items under repair, and what every part of the repair does with them.

A region is a stretch of items that the fast pass did not let through; a cell is one item of it.
What did not change is the same object, and stands where it stood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from stopkit.history import Api
from stopkit.normalizer.dialects.openai_responses_check import (
    is_chained,
    is_stateless,
    made_call_id,
    own_id,
)
from stopkit.normalizer.dialects.openai_responses_clean import is_fragment
from stopkit.normalizer.dialects.openai_responses_outputs import (
    comparable,
    is_error,
    media_of,
    text_of,
)
from stopkit.normalizer.dialects.openai_responses_shapes import (
    BY_CALL,
    MAX_ID,
    MODEL_MADE,
    Kind,
    kind_of,
    type_of,
)
from stopkit.normalizer.engine import Call, Result
from stopkit.normalizer.plain import to_plain
from stopkit.normalizer.result import ChangeKind, Location
from stopkit.normalizer.wording import late_note, orphan_note
from stopkit.normalizer.work import Context, Recorder, Repaired
from stopkit.outcome import Status

Item = dict[str, Any]
API: Final[Api] = "openai.responses"
SPOKEN: Final[tuple[Kind, ...]] = ("user", "assistant")
"""Kinds behind which no program is open any more."""


@dataclass(slots=True, eq=False)
class Cell:
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
    nameless: bool = False
    """A call that came without a name: nothing can have run it."""
    behind: list[Cell] = field(default_factory=list)
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
class Region:
    """The items from `start` up to `stop`, not included."""

    start: int
    stop: int
    cells: list[Cell] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Memory:
    """What later items have to know of a part that is frozen."""

    items: dict[str, Item] = field(default_factory=dict)
    """By their own id, which none of them may have again."""
    call_ids: set[str] = field(default_factory=set)
    programs: dict[str, None] = field(default_factory=dict)
    """The call_ids of programs without output, in order."""

    def concerns(self, item: Item) -> bool:
        """Whether an item repeats an id, or goes on where a program is still open."""
        if own_id(item) in self.items or made_call_id(item) in self.call_ids:
            return True
        return bool(self.programs) and kind_of(item) in SPOKEN

    def take_in(self, item: Item) -> None:
        id_, call_id = own_id(item), made_call_id(item)
        if id_ is not None:
            self.items.setdefault(id_, item)
        if call_id is not None:
            self.call_ids.add(call_id)
        match item:
            case {"type": "program", "call_id": str(call_id)}:
                self.programs[call_id] = None
            case {"type": "program_output", "call_id": str(call_id)}:
                self.programs.pop(call_id, None)
            case _:
                pass


_Said = tuple[ChangeKind, str, Location, Cell | None, str, str | None, Status | None, object]


class Bench:
    """The regions, and the account of what is done to them."""

    def __init__(self, items: list[Any], context: Context) -> None:
        self.items = items
        self.context = context
        self.chained = is_chained(context.request)
        self.stateless = is_stateless(context.request)
        self.result = Repaired()
        self.said: list[_Said] = []
        self.regions: list[Region] = []
        self.turn = 0
        self.used: set[str] | None = None
        self.numbers: dict[str, int] = {}
        self.placed: list[tuple[Cell, Cell]] = []
        """What goes behind the group of a call: the call, and the cell."""

    def say(
        self,
        kind: ChangeKind,
        rule: str,
        where: Location,
        note: str,
        *,
        cell: Cell | None = None,
        call_id: str | None = None,
        outcome: Status | None = None,
        removed: object = None,
    ) -> None:
        self.said.append((kind, rule, where, cell, note, call_id, outcome, removed))

    def leave(self, cell: Cell, rule: str, note: str, outcome: Status | None = None) -> None:
        cell.gone = True
        call_id = name_of_call(cell.item)
        self.say(
            "removed",
            rule,
            cell.where,
            note,
            call_id=call_id,
            outcome=outcome,
            removed=cell.item if cell.source is None else cell.source,
        )

    def cells(self) -> Iterator[Cell]:
        for region in self.regions:
            for cell in region.cells:
                if not cell.gone:
                    yield cell

    def strip_id(self, cell: Cell, rule: str, note: str) -> None:
        removed = cell.own().pop("id")
        self.say("removed", rule, (*cell.where, "id"), note, cell=cell, removed=removed)

    def move_behind(self, owner: Cell, cell: Cell, rule: str) -> Cell:
        """Take a cell from where it stands to behind the group of `owner`; gives its new self."""
        moved = Cell(cell.item, cell.kind, cell.where, cell.source, cell.turn, touched=cell.touched)
        cell.gone = True
        self.placed.append((owner, moved))
        note = "It stood before what it answers: it now stands behind it."
        call_id = name_of_call(cell.item)
        self.say("moved", rule, cell.where, note, cell=moved, call_id=call_id)
        return moved

    def place(self) -> None:
        """Put what was made up or moved behind the group of calls it answers."""
        if not self.placed:
            return
        ends = self.group_ends()
        for owner, cell in self.placed:
            ends[id(owner)].behind.append(cell)

    def group_ends(self) -> dict[int, Cell]:
        """For each call and request, by identity, the last one of the group that it stands in.

        The group is a run of its kind with its reasoning, or the whole of a model turn that is
        still open: an output inside it would end it.
        """
        live = {cell.turn for cell in self.cells() if cell.live}
        ends: dict[int, Cell] = {}
        for region in self.regions:
            end: Cell | None = None
            of_turn: dict[int, Cell] = {}
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

    def used_ids(self) -> set[str]:
        """Every call_id of the input, and those given out."""
        if self.used is None:
            self.used = {
                call_id
                for item in self.items
                if isinstance(item, dict) and isinstance(call_id := item.get("call_id"), str)
            }
        return self.used

    def free_id(self, wanted: str) -> str:
        """A call_id that nothing in the input has: `wanted`, or with a number."""
        used = self.used_ids()
        new = wanted
        base = wanted[: MAX_ID - 8]
        while new in used or new in self.context.past:
            self.numbers[base] = number = self.numbers.get(base, 1) + 1
            new = f"{base}-{number}"
        used.add(new)
        return new

    def call(self, cell: Cell) -> Call:
        """The call as the engine reads it; one without call_id gets an id of its own."""
        call_id = cell.item.get("call_id")
        if call_id is None:
            family = BY_CALL[type_of(cell.item)]
            call_id = anonymous_id(cell)
            if family.call_id_needed:
                call_id = self.free_id(call_id)
        return Call(
            id=call_id,
            name=tool_name(cell.item),
            turn=cell.turn,
            index=cell.where,
            item=cell,
            incomplete=cell.nameless or is_fragment(cell.item.get("arguments")),
        )

    def output_to_text(
        self, cell: Cell, call_id: str, second: bool, *, rule: str = "OAI-PAIR-2"
    ) -> None:
        """An output without a call, or the `second` of one, as attributed text where it stands."""
        text = text_of(cell.item) or None
        if second:
            note = "A second output: marked data where it arrived."
            self.to_text(
                cell, "delivered", "OAI-PAIR-4", late_note(call_id, 1, text), note, call_id
            )
            return
        note = "An output that no call of this input takes: attributed text."
        self.to_text(cell, "to_text", rule, orphan_note(call_id, text), note, call_id)

    def to_text(
        self, cell: Cell, kind: ChangeKind, rule: str, text: str, note: str, call_id: str
    ) -> None:
        removed = cell.item if cell.source is None else cell.source
        parts = [{"type": "input_text", "text": text}, *media_of(cell.item)]
        cell.item = {"type": "message", "role": "user", "content": parts}
        cell.kind, cell.touched, cell.note = "user", True, True
        self.say(kind, rule, cell.where, note, cell=cell, call_id=call_id, removed=removed)

    def last_of(self, *kinds: Kind) -> int:
        """Index of the last item of these kinds that stays and is not ours, or -1."""
        at = len(self.items)
        for region in reversed(self.regions):
            for n in range(at - 1, region.stop - 1, -1):
                if kind_of(self.items[n]) in kinds:
                    return n
            for cell in reversed(region.cells):
                if not cell.gone and cell.kind in kinds and not cell.note:
                    return cast("int", cell.where[0])
            at = region.start
        for n in range(at - 1, -1, -1):
            if kind_of(self.items[n]) in kinds:
                return n
        return -1

    def account(self) -> None:
        """Turn what was said into changes, now that each item is what it will be."""
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


def plain_items(items: list[Any]) -> Iterator[Item]:
    """The items as plain dicts, the caller's own objects included."""
    for n, item in enumerate(items):
        yield item if isinstance(item, dict) else to_plain(item, (n,), API)


def calls_of(items: list[Any]) -> Iterator[tuple[Location, Item]]:
    """Every call of an input that the client runs, and every approval asked, with its place."""
    for n, item in enumerate(plain_items(items)):
        if kind_of(item) in ("call", "approval_request"):
            yield (n,), item


def read_result(cell: Cell, call_id: str) -> Result:
    """An output as the engine reads it."""
    return Result(
        id=call_id,
        turn=cell.turn,
        index=cell.where,
        item=cell,
        text=text_of(cell.item),
        is_error=is_error(cell.item),
        content=comparable(cell.item),
    )


def anonymous_id(cell: Cell) -> str:
    return f"call_unnamed_{cell.where[0]}"


def tool_name(item: Item) -> str:
    name = item.get("name")
    return name if isinstance(name, str) else type_of(item).removesuffix("_call")


def name_of_call(item: Item) -> str | None:
    for name in ("call_id", "approval_request_id"):
        if isinstance(item.get(name), str):
            return cast("str", item[name])
    return cast("str | None", item.get("id")) if kind_of(item) == "approval_request" else None


def safe_id(call_id: str) -> str:
    """A valid call_id for an invalid one: the same for the same, another for another."""
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{call_id[:40] or 'call'}-{digest}"


def user_item(text: str) -> Item:
    """A user message of one text."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
