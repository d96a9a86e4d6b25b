"""The repair of an input as a whole.

Each item is made right for itself; then ids, programs, approvals, calls and outputs of all regions
are settled together; last, reasoning that nothing follows leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stopkit.normalizer.dialects.openai_responses_bench import (
    API,
    Bench,
    Cell,
    Item,
    Region,
    user_item,
)
from stopkit.normalizer.dialects.openai_responses_check import own_id
from stopkit.normalizer.dialects.openai_responses_clean import clean
from stopkit.normalizer.dialects.openai_responses_hosted import (
    close_frozen_programs,
    settle_approvals,
    settle_programs,
)
from stopkit.normalizer.dialects.openai_responses_pairs import settle_calls
from stopkit.normalizer.dialects.openai_responses_scan import Scan, Span
from stopkit.normalizer.dialects.openai_responses_shapes import (
    CLIENT_MADE,
    FIELDS,
    ID_OPTIONAL,
    LEADS_TO,
    MODEL_MADE,
    Kind,
    inspect,
    kind_of,
    type_of,
)
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import is_plain, path_of, replace_surrogates, to_plain, unsound
from stopkit.normalizer.result import Location, Splice
from stopkit.normalizer.wording import late_note, read_note
from stopkit.normalizer.work import Context, Repaired, trimmed

_NEVER_LED_TO: Final = frozenset({*CLIENT_MADE, "compaction", "trigger"})
_FOLLOWED: Final = frozenset({*LEADS_TO, "reference", "unknown"})


def repair(items: list[Any], found: Scan, context: Context) -> Repaired:
    """The splices that make `items` valid, with their account.

    Raises:
        HistoryError: something in the regions cannot be repaired truthfully; the path names it.
    """
    return _Repair(items, context).run(found.spans)


class _Repair(Bench):
    def __init__(self, items: list[Any], context: Context) -> None:
        super().__init__(items, context)
        self.triggers: list[Cell] = []
        self.news: list[Cell] = []

    def run(self, spans: list[Span]) -> Repaired:
        for start, stop in self._stretches(spans):
            region = Region(start, stop)
            self.regions.append(region)
            self.result.looked.append((start, stop))
            region.cells = [self._read(n) for n in range(start, stop)]
        self._drop_repeated_items()
        self._number_turns()
        settle_programs(self)
        settle_approvals(self)
        settle_calls(self)
        self.place()
        self._place_triggers()
        self._announce()
        for region in self.regions:
            region.cells = _flat(region.cells)
        self._shelter_what_is_live()
        close_frozen_programs(self, self.news)
        for region in self.regions:
            self._settle_reasoning(region)
        self._splice()
        self.account()
        return self.result

    def _stretches(self, spans: list[Span]) -> list[Span]:
        spans = [span for span in spans if span[0] < span[1]]
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

    def _tail(self) -> list[Cell]:
        return [*self.news, *self.triggers]

    def _read(self, n: int) -> Cell:
        source = self.items[n]
        item, touched = self._sound(source, n)
        kind, issues = inspect(item, n, stateless=self.stateless)
        for rule, below, message in issues:
            if rule == "GEN-SHAPE-1":
                raise HistoryError(message, path=f"input.{n}{below}", rule=rule)
        cell = Cell(item, kind, (n,), source, touched=touched)
        if issues:
            cell.nameless = kind == "call" and "name" in FIELDS[type_of(item)] and not _named(item)
            done = clean(item, kind, issues)
            for how, rule, below_item, note, removed in done.edits:
                cell.item, cell.touched = done.item, True
                where: Location = (n, *below_item)
                self.say(how, rule, where, note, cell=cell, removed=removed)
            if done.leaves is not None:
                self.leave(cell, *done.leaves)
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
            self.say("rewritten", "GEN-JSON-1", part.location, note, removed=removed)
            touched = True
        return (replace_surrogates(item), True) if touched else (item, False)

    def _drop_repeated_items(self) -> None:
        memory = self.context.memory
        frozen: dict[str, Item] = memory.items if memory is not None else {}
        first: dict[str, Item] = {}
        for cell in self.cells():
            id_ = None if cell.kind == "unknown" else own_id(cell.item)
            if id_ is None:
                continue
            known = frozen.get(id_) or first.setdefault(id_, cell.item)
            if known is cell.item:
                continue
            if known == cell.item:
                cell.copy = True
                self.leave(cell, "OAI-ID-1", "An identical item stands before it.")
            elif type_of(cell.item) in ID_OPTIONAL:
                self.strip_id(cell, "OAI-ID-1", "Another item has this id.")
            else:
                note = "Another item has its id, and its type needs one."
                self.leave(cell, "OAI-ID-1", note)

    def _number_turns(self) -> None:
        """Count the model turns: one ends where the client says something."""
        nexts = [*[region.start for region in self.regions[1:]], len(self.items)]
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

    def _place_triggers(self) -> None:
        """A compaction trigger is the last item (OAI-COMP-1)."""
        triggers = [cell for cell in self.cells() if cell.kind == "trigger"]
        end = len(self.items) - 1
        for cell in triggers:
            if cell is triggers[-1]:
                at = cell.where[0]
                moves = at != end
                cell.gone = True
                home = Cell(cell.item, cell.kind, cell.where, cell.source, touched=cell.touched)
                self.triggers = [home]
                if moves:
                    note = "A compaction_trigger is the last item of an input."
                    self.say("moved", "OAI-COMP-1", cell.where, note, cell=home)
            else:
                self.leave(cell, "OAI-COMP-1", "A second compaction_trigger.")

    def _announce(self) -> None:
        """Tell news about calls that were answered otherwise, once, at the end.

        An empty tool search says nothing that news could correct.
        """
        news = [
            (call, verdict.announce)
            for call, verdict in self.result.decisions.values()
            if verdict.announce is not None and call.item.item["type"] != "tool_search_call"
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
            cell = Cell(user_item(text), "user", call.index, note=True)
            self.news.append(cell)
            self.say(
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
        if not any(cell.live for cell in self.cells()):
            return
        asked = self.last_of("user")
        for number, region in enumerate(self.regions):
            cells = [cell for cell in region.cells if not cell.gone]
            live = next((n for n, c in enumerate(cells) if c.live and c.where > (asked,)), None)
            if live is None:
                continue
            while live > 0 and cells[live - 1].kind in MODEL_MADE:
                live -= 1
            notes = [cell for cell in cells[live:] if cell.note]
            region.cells = [c for c in cells[live:] if not c.note]
            for behind in self.regions[number + 1 :]:
                notes += [cell for cell in behind.cells if cell.note and not cell.gone]
                behind.cells = [cell for cell in behind.cells if not cell.note]
            region.cells = [*cells[:live], *notes, *self.news, *region.cells]
            self.news = []
            return

    def _settle_reasoning(self, region: Region) -> None:
        """Reasoning that nothing of the model's follows leaves (OAI-REAS-1)."""
        behind: Kind | None
        if region.stop < len(self.items):
            behind = kind_of(self.items[region.stop])
        else:
            tail = self._tail()
            behind = tail[0].kind if tail else None
        followed_gone = False
        follower: Cell | None = None
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
                self.leave(cell, "OAI-REAS-1", "Reasoning without the item it led to.")
                self._strip_dependent(follower)

    def _strip_dependent(self, follower: Cell | None) -> None:
        """The item behind removed reasoning does not ask for it (OAI-REAS-2)."""
        if (
            follower is not None
            and follower.kind in LEADS_TO
            and follower.item.get("id") is not None
            and type_of(follower.item) in ID_OPTIONAL
        ):
            self.strip_id(follower, "OAI-REAS-2", "Its reasoning left: an id would ask for it.")


def _named(item: Item) -> bool:
    name = item.get("name")
    return isinstance(name, str) and bool(name.strip())


def _flat(cells: list[Cell]) -> list[Cell]:
    flat: list[Cell] = []
    for cell in cells:
        flat.append(cell)
        flat += cell.behind
        cell.behind = []
    return flat


def _notes_of(item: Any) -> Iterator[Mapping[str, object]]:
    content = item.get("content") if isinstance(item, dict) else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            head = read_note(part["text"])
            if head is not None and head.get("kind") == "late_result":
                yield head
