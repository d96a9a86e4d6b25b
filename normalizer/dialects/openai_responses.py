"""The dialect `openai.responses`: input items of the Responses API.

What the rest of the package asks of it is here; `openai_responses_scan`, `_check` and `_repair`
hold the fast pass, the exact checker and the repair, `_shapes` the table of item families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stopkit.normalizer.dialects.openai_responses_bench import (
    API,
    Memory,
    calls_of,
    plain_items,
    user_item,
)
from stopkit.normalizer.dialects.openai_responses_check import is_chained, violations
from stopkit.normalizer.dialects.openai_responses_outputs import comparable, is_error, text_of
from stopkit.normalizer.dialects.openai_responses_repair import repair
from stopkit.normalizer.dialects.openai_responses_scan import Scan, scan
from stopkit.normalizer.dialects.openai_responses_shapes import (
    MODEL_MADE,
    kind_of,
    type_of,
)
from stopkit.normalizer.engine import Verdict, is_synthetic, outcome_of_result
from stopkit.normalizer.plain import to_plain
from stopkit.normalizer.result import CallOutcome, Hint, Splice
from stopkit.normalizer.wording import NO_RESULT, fold
from stopkit.normalizer.work import Context, Repaired
from stopkit.outcome import Denied, Evidence, Outcome, Placeholder, Running, Unknown

Item = dict[str, Any]


def outcomes(items: list[Any], repaired: Repaired, context: Context) -> Iterator[CallOutcome]:
    """What became of every client-run call of the input, in order, and of refused approvals."""
    counts: dict[str, int] = {}
    looked = {n for start, stop in repaired.looked for n in range(start, stop)}
    outputs: dict[str, Item] = {}
    refusals: dict[str, Item] = {}
    for item in plain_items(items):
        kind = kind_of(item)
        if kind == "output" and isinstance(item.get("call_id"), str):
            outputs.setdefault(item["call_id"], item)
        elif kind == "approval_response" and item.get("approve") is False:
            refusals.setdefault(str(item.get("approval_request_id")), item)
    for where, item in calls_of(items):
        asked = type_of(item) == "mcp_approval_request"
        call_id = item.get("id" if asked else "call_id")
        decided = repaired.decisions.get(where)
        if decided is not None:
            call, verdict = decided
            call_id = call_id if isinstance(call_id, str) else call.id
            occurrence = counts[call_id] = call.occurrence
            outcome, synthetic = _decided(verdict, context.evidences.of(call_id, occurrence))
            yield CallOutcome(call_id, occurrence, call.name, outcome, synthetic)
            continue
        found = (refusals if asked else outputs).get(str(call_id))
        if found is None or not isinstance(call_id, str):
            continue  # a request that was granted, and is the provider's now
        if not asked and where[0] in looked:
            continue  # a copy
        if asked:
            refused = Denied(reason=found.get("reason"), evidence=("a refusal was recorded",))
            yield CallOutcome(call_id, 1, str(item.get("name")), refused, False)
            continue
        occurrence = _counted(counts, call_id, context)
        evidence = context.evidences.of(call_id, occurrence)
        text, failed = text_of(found), is_error(found)
        name = item.get("name") or type_of(item).removesuffix("_call")
        outcome = outcome_of_result(text, failed, evidence)
        synthetic = is_synthetic(text, failed, evidence)
        yield CallOutcome(call_id, occurrence, str(name), outcome, synthetic)


def _counted(counts: dict[str, int], call_id: str, context: Context) -> int:
    """The number of this call among those with its id."""
    if call_id not in counts:
        past = context.past.get(call_id)
        counts[call_id] = past.occurrence if past is not None else 0
    counts[call_id] += 1
    return counts[call_id]


def _decided(verdict: Verdict, evidence: Evidence | None) -> tuple[Outcome, bool]:
    if verdict.pending:
        running = isinstance(evidence, Running)
        return Unknown(reason="still running" if running else NO_RESULT), False
    if verdict.announce is not None:
        return verdict.announce, True
    if verdict.outcome is not None:
        return verdict.outcome, True
    kept = verdict.keep
    assert kept is not None
    if verdict.deliver and (kept.standin is not None or isinstance(evidence, Placeholder)):
        late = verdict.deliver[0]
        return outcome_of_result(late.text, late.is_error, None), True
    known = [kept, *verdict.merge]
    text = fold(known[0].text, [result.text for result in known[1:]])
    failed = any(result.is_error for result in known) or kept.is_error
    outcome = outcome_of_result(text, failed, evidence)
    return outcome, is_synthetic(text, failed, evidence)


def hints(items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
    """What the rest of the request must know about the repaired `items`."""
    del items, splices
    if not is_chained(context.request):
        return []
    chain = (
        "previous_response_id" if context.request.get("previous_response_id") else "conversation"
    )
    return [
        Hint(
            "chained",
            "The server holds earlier items of this conversation, which were not judged: calls "
            "open there need their outputs here, and items kept there must not be sent again.",
            chain,
        )
    ]


def end(items: list[Any], request: Mapping[str, Any]) -> tuple[bool, list[Hint]]:
    """Whether a request may end as `items` do (open calls aside), and what it takes if not."""
    if not items:
        if is_chained(request) or request.get("prompt"):
            return True, []
        return False, [
            Hint("needs_user_turn", "The input is empty: it needs a user turn.", "input")
        ]
    last = items[-1] if isinstance(items[-1], dict) else to_plain(items[-1], (len(items) - 1,), API)
    if kind_of(last) == "reasoning":
        return False, [
            Hint(
                "needs_user_turn",
                "The last item is reasoning without what it led to: the turn is not over.",
                f"input.{len(items) - 1}",
            )
        ]
    return True, []


def answered(items: list[Any]) -> Iterator[tuple[str, object]]:
    """Every call and program of a sendable history with its output's content, in order.

    A program that is still open has None, and is there again once its output comes.
    """
    contents: dict[str, object] = {}
    for item in plain_items(items):
        call_id = item.get("call_id")
        if isinstance(call_id, str) and kind_of(item) in ("output", "program_output"):
            contents.setdefault(call_id, comparable(item))
    for item in plain_items(items):
        call_id = item.get("call_id")
        if isinstance(call_id, str) and kind_of(item) in ("call", "program"):
            yield call_id, contents.pop(call_id, None)
    for call_id, content in contents.items():
        if content is not None:
            yield call_id, content


def everything(items: list[Any]) -> Scan:
    """What `scan` gives where all of `items` needs a look."""
    return Scan([(0, len(items))])


def remember(memory: Memory | None, items: list[Any]) -> Memory:
    """The ids and open programs of a frozen part; `items` are new in it."""
    memory = Memory() if memory is None else memory
    for item in plain_items(items):
        memory.take_in(item)
    return memory


def must_look(memory: Memory | None, items: list[Any]) -> bool:
    """Whether one of `items`, clean or not, does not go with what is frozen."""
    return memory is not None and any(
        item.__class__ is not dict or memory.concerns(item) for item in items
    )


def user_message(blocks: list[Item] | str) -> Item:
    """A user message of content parts, or of one text."""
    if isinstance(blocks, str):
        return user_item(blocks)
    return {"type": "message", "role": "user", "content": blocks}


def is_models(item: Any) -> bool:
    """Whether an item is part of a model turn."""
    return kind_of(item) in MODEL_MADE


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
