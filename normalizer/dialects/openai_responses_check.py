"""`violations`: everything that the Responses API would refuse in an input, exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stopkit.normalizer.dialects.openai_responses_shapes import (
    BY_CALL,
    BY_OUTPUT,
    CLIENT_MADE,
    MODEL_MADE,
    PROGRAM,
    Family,
    Kind,
    inspect,
    program_caller,
    type_of,
    words,
)
from stopkit.normalizer.result import Violation
from stopkit.normalizer.rules import RULES

_ORDER: Final = {rule: n for n, rule in enumerate(RULES)}
_NEVER_LED_TO: Final = frozenset({*CLIENT_MADE, "compaction", "trigger"})
"""Kinds that reasoning cannot have led to; nobody can judge a reference or an unknown item."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Where the live end of an input begins."""

    settled: int
    """Calls before this index have a user message or a later model turn behind them."""
    spoken: int
    """Index of the last user or assistant message, or -1."""


def is_chained(request: Mapping[str, Any]) -> bool:
    """Whether the server holds items that this input does not."""
    return bool(request.get("previous_response_id") or request.get("conversation"))


def is_stateless(request: Mapping[str, Any]) -> bool:
    """Whether nothing on the server can be referred to."""
    return request.get("store") is False


def frontier(kinds: list[Kind]) -> Frontier:
    """The live end of items of these kinds."""
    settled = 0
    spoken = -1
    in_turn = False
    for n, kind in enumerate(kinds):
        if kind in MODEL_MADE:
            if not in_turn:
                in_turn = True
                settled = n
        elif kind in CLIENT_MADE:
            in_turn = False
            if kind == "user":
                settled = n
        if kind == "user" or kind == "assistant":
            spoken = n
    return Frontier(settled, spoken)


def violations(items: list[Any], request: Mapping[str, Any]) -> list[Violation]:
    """What the API would refuse, by position and then in the order of the rules.

    GEN-JSON-1 is not judged here: `plain.unsound` is.  Never raises.
    """
    chained = is_chained(request)
    if not items and not (chained or request.get("prompt")):
        rule = RULES["OAI-SHAPE-4"]
        return [Violation(rule.id, "input", "the input is empty", rule.grade, "send")]
    check = _Check(items, chained=chained, stateless=is_stateless(request))
    check.reasoning()
    check.pairs()
    check.programs()
    check.approvals()
    check.ids()
    check.found.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in check.found]


class _Check:
    """One pass for each subject over the same items."""

    def __init__(self, items: list[Any], *, chained: bool, stateless: bool) -> None:
        self.items = items
        self.chained = chained
        self.kinds: list[Kind] = []
        self.found: list[tuple[int, int, int, Violation]] = []
        for n, item in enumerate(items):
            kind, issues = inspect(item, n, stateless=stateless)
            self.kinds.append(kind)
            for rule, below, message in issues:
                self.add(rule, n, message, below=below)
        self.frontier = frontier(self.kinds)

    def add(
        self,
        rule: str,
        n: int,
        message: str,
        *,
        below: str = "",
        scope: Literal["prefix", "send"] = "prefix",
    ) -> None:
        part = int(below.rpartition(".")[2]) if below and below[-1].isdecimal() else -1
        found = Violation(rule, f"input.{n}{below}", message, RULES[rule].grade, scope)
        self.found.append((n, part, _ORDER[rule], found))

    def _open(self, n: int) -> Literal["prefix", "send"]:
        return "prefix" if n < self.frontier.settled else "send"

    def reasoning(self) -> None:
        """OAI-REAS-1, and where a compaction trigger stands."""
        behind: Kind | None = None
        for n in range(len(self.items) - 1, -1, -1):
            kind = self.kinds[n]
            if kind == "reasoning":
                if behind is None or behind in _NEVER_LED_TO:
                    id_ = self.items[n].get("id")
                    scope: Literal["prefix", "send"] = "send" if behind is None else "prefix"
                    self.add("OAI-REAS-1", n, words("OAI-REAS-1", id=id_), scope=scope)
                continue
            if kind == "trigger" and n < len(self.items) - 1:
                self.add("OAI-COMP-1", n, "a compaction_trigger is the last item of the input")
            behind = kind

    def pairs(self) -> None:
        """Calls and outputs, in both directions.

        An output answers a call of its family with its call_id in the newest model turn before it
        that has one: there the first without an output.  An anonymous search output answers the
        newest anonymous search.
        """
        turn = 0
        families: dict[str | None, set[str]] = {}
        newest: dict[tuple[str, str | None], tuple[int, deque[int]]] = {}
        open_: dict[int, Family] = {}
        for n, item in enumerate(self.items):
            kind = self.kinds[n]
            if kind in ("call", "program"):
                family = BY_CALL[type_of(item)]
                call_id = item.get("call_id")
                open_[n] = family
                if call_id is None and family.call_id_needed:
                    continue
                families.setdefault(call_id, set()).add(family.output)
                key = (family.output, call_id)
                if call_id is None or key not in newest or newest[key][0] != turn:
                    newest[key] = (turn, deque())
                newest[key][1].append(n)
            elif kind in ("output", "program_output"):
                answered = self._answer(item, n, families, newest)
                open_.pop(answered, None)
            if kind in CLIENT_MADE:
                turn += 1
        for n, family in open_.items():
            self._unanswered(family, n, self.items[n].get("call_id") or "")

    def _answer(
        self,
        item: dict[str, Any],
        n: int,
        families: dict[str | None, set[str]],
        newest: dict[tuple[str, str | None], tuple[int, deque[int]]],
    ) -> int:
        """The index of the call that output `n` answers, or -1."""
        family = BY_OUTPUT[type_of(item)]
        call_id = item.get("call_id")
        if call_id is None and family.output == "local_shell_call_output":
            return -1  # OAI-SHELL-1 has told it
        known = families.get(call_id, ())
        if family.output in known:
            free = newest[family.output, call_id][1]
            if free:
                return free.popleft()
            text = words("OAI-PAIR-4", type=family.output, id=call_id or "")
            self.add("OAI-PAIR-4", n, text)
        elif known and call_id is not None:
            asked = next(f for f in BY_OUTPUT.values() if f.output in known)
            self.add("OAI-PAIR-3", n, words("OAI-PAIR-3", family=asked.words, id=call_id))
        elif not self.chained:
            text = words("OAI-PAIR-2", id=call_id or "")
            self.add("OAI-PAIR-2", n, text.replace("function call", family.words, 1))
        return -1

    def _unanswered(self, family: Family, n: int, call_id: str) -> None:
        if family is not PROGRAM:
            text = words("OAI-PAIR-1", family=family.words, id=call_id)
            self.add("OAI-PAIR-1", n, text, scope=self._open(n))
            if family.call == "computer_call":
                self.add("OAI-CU-1", n, words("OAI-CU-1", id=call_id), scope=self._open(n))
        elif n < self.frontier.spoken:
            self.add("OAI-PROG-1", n, f"No program output found for program {call_id[:100]}.")

    def programs(self) -> None:
        """OAI-PROG-1 for what programs own."""
        if self.chained:
            return
        programs = {
            item.get("call_id") for n, item in enumerate(self.items) if self.kinds[n] == "program"
        }
        for n, item in enumerate(self.items):
            if self.kinds[n] in ("call", "output"):
                owner = program_caller(item)
                if owner is not None and owner not in programs:
                    self.add("OAI-PROG-1", n, f"the program {owner[:100]} is not in the input")

    def approvals(self) -> None:
        """OAI-MCP-1."""
        asked: set[str] = set()
        answered: set[str] = set()
        for n, item in enumerate(self.items):
            if self.kinds[n] == "approval_request":
                asked.add(item["id"])
            elif self.kinds[n] == "approval_response":
                id_ = item["approval_request_id"]
                if id_ in answered:
                    self.add("OAI-MCP-1", n, f"Duplicate approval response for {id_[:100]}.")
                elif id_ in asked:
                    answered.add(id_)
                elif not self.chained:
                    self.add("OAI-MCP-1", n, f"No approval request found for {id_[:100]}.")
        for n, item in enumerate(self.items):
            if self.kinds[n] == "approval_request" and item["id"] not in answered:
                text = f"No approval response found for {item['id'][:100]}."
                self.add("OAI-MCP-1", n, text, scope=self._open(n))

    def ids(self) -> None:
        """OAI-ID-1 and OAI-ID-4."""
        seen: set[str] = set()
        called: set[str] = set()
        for n, item in enumerate(self.items):
            if self.kinds[n] in ("broken", "unknown"):
                continue
            id_ = own_id(item)
            if id_ is not None:
                if id_ in seen:
                    self.add("OAI-ID-1", n, words("OAI-ID-1", id=id_))
                seen.add(id_)
            call_id = made_call_id(item)
            if call_id is not None:
                if call_id in called:
                    self.add("OAI-ID-4", n, f"call_id '{call_id[:100]}' stands twice")
                called.add(call_id)


def own_id(item: dict[str, Any]) -> str | None:
    """The item's id, where it has one of its own: a local shell output repeats its call's."""
    id_ = item.get("id")
    if not isinstance(id_, str) or type_of(item) == "local_shell_call_output":
        return None
    return id_


def made_call_id(item: dict[str, Any]) -> str | None:
    """The call_id that this item brings into the input, where it is a call."""
    call_id = item.get("call_id")
    return call_id if isinstance(call_id, str) and type_of(item) in BY_CALL else None
