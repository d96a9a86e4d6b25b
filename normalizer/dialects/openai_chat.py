"""The dialect `openai.chat`: the messages of OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stopkit.normalizer.dialects.openai_chat_check import violations
from stopkit.normalizer.dialects.openai_chat_parts import (
    API,
    calls_of,
    comparable,
    counted_calls,
    id_of,
    name_of,
    role_of,
    text_of,
)
from stopkit.normalizer.dialects.openai_chat_repair import repair
from stopkit.normalizer.dialects.openai_chat_scan import Scan, scan
from stopkit.normalizer.dialects.openai_chat_shapes import Item
from stopkit.normalizer.engine import Verdict, is_synthetic, outcome_of_result, pending_outcome
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.plain import to_plain
from stopkit.normalizer.result import CallOutcome, Hint, Splice
from stopkit.normalizer.wording import fold
from stopkit.normalizer.work import Context, Repaired
from stopkit.outcome import Evidence, Outcome


def outcomes(items: list[Any], repaired: Repaired, context: Context) -> Iterator[CallOutcome]:
    """What became of every call of the input, in order.

    A legacy call goes by the id `call_legacy_<index of its message>`.
    """
    answers: dict[str, Item] = {}
    answers_of = -1
    for where, block, occurrence in counted_calls(
        items, repaired.looked, repaired.decisions, context.past
    ):
        call_id = id_of(block)
        evidence = context.evidences.of(call_id, occurrence)
        decided = repaired.decisions.get(where)
        if decided is not None:
            outcome, synthetic = _decided(decided[1], evidence)
        else:
            index = where[0]
            assert isinstance(index, int)
            if index != answers_of:
                answers, answers_of = _answers(items, index), index
            text = text_of(answers[call_id])
            outcome = outcome_of_result(text, None, evidence)
            synthetic = is_synthetic(text, None, evidence)
        yield CallOutcome(call_id, occurrence, name_of(block), outcome, synthetic)


def _decided(verdict: Verdict, evidence: Evidence | None) -> tuple[Outcome, bool]:
    if verdict.pending:
        return pending_outcome(evidence), False
    said = verdict.announce or verdict.outcome
    if said is not None:
        return said, True
    if verdict.deliver:
        return outcome_of_result(verdict.deliver[0].text, None, None), True
    kept = verdict.keep
    assert kept is not None
    text = fold(kept.text, [result.text for result in verdict.merge])
    return outcome_of_result(text, None, evidence), is_synthetic(text, None, evidence)


def hints(items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
    """None: no rule of this API binds a history to the rest of the request."""
    return []


def end(items: list[Any], request: Mapping[str, Any]) -> tuple[bool, list[Hint]]:
    """Whether a request may end as `items` do (open calls aside), and what it takes if not."""
    if not items:
        return False, [
            Hint("needs_user_turn", "There is no message to answer: the request needs a user turn.")
        ]
    last = items[-1]
    if not isinstance(last, dict):
        try:
            last = to_plain(last, (len(items) - 1,), API)
        except HistoryError:
            return False, []
    if role_of(last) != "assistant" or last.get("tool_calls") or last.get("function_call"):
        return True, []
    return True, [
        Hint(
            "needs_user_turn",
            "The last message is the assistant's. OpenAI takes that, many other hosts of this API "
            "do not: there the next request needs a user turn.",
        )
    ]


def answered(items: list[Any]) -> Iterator[tuple[str, object]]:
    """Every call of a sendable history with its result's content, in order; legacy calls apart."""
    answers: dict[str, Item] = {}
    answers_of = -1
    for where, block in calls_of(items):
        index = where[0]
        if where[1] != "tool_calls" or not isinstance(index, int):
            continue
        if index != answers_of:
            answers, answers_of = _answers(items, index), index
        found = answers.get(id_of(block))
        yield id_of(block), None if found is None else comparable(found)


def everything(items: list[Any]) -> Scan:
    """What `scan` gives where all of `items` needs a look."""
    return Scan([(0, len(items))], {})


def remember(memory: None, items: list[Any]) -> None:
    """Nothing: a call and its answers stand together, so none can be open in a frozen part."""


def must_look(memory: None, items: list[Any]) -> bool:
    """Nothing is remembered, so nothing asks for a look."""
    return False


def user_message(blocks: list[Item] | str) -> Item:
    """A user message of one text, or of content parts."""
    return {"role": "user", "content": blocks}


def is_models(item: Any) -> bool:
    """Whether an item is a turn of the model."""
    return role_of(item) == "assistant"


def _answers(items: list[Any], index: int) -> dict[str, Item]:
    """The tool messages right behind the assistant message `index`, by call id."""
    answers: dict[str, Item] = {}
    for at in range(index + 1, len(items)):
        if role_of(items[at]) != "tool":
            break
        item = to_plain(items[at], (at,), API)
        call_id = item.get("tool_call_id")
        if isinstance(call_id, str):
            answers.setdefault(call_id, item)
    return answers


__all__ = [
    "API",
    "answered",
    "calls_of",
    "end",
    "everything",
    "hints",
    "is_models",
    "must_look",
    "outcomes",
    "remember",
    "repair",
    "scan",
    "user_message",
    "violations",
]
