"""The dialect `anthropic.messages`: the messages of Anthropic's Messages API.

What the rest of the package asks of it is here; `anthropic_scan`, `_check` and `_repair` hold the
fast pass, the exact checker and the repair, `_blocks` the words that these share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from stopkit.normalizer.dialects.anthropic_blocks import (
    MAX_MESSAGES,
    THINKING,
    awaits_provider,
    programmatic,
)
from stopkit.normalizer.dialects.anthropic_check import violations
from stopkit.normalizer.dialects.anthropic_memory import must_look, remember
from stopkit.normalizer.dialects.anthropic_parts import (
    API,
    blocks_of,
    calls_of,
    comparable,
    id_of,
    results_behind,
)
from stopkit.normalizer.dialects.anthropic_repair import repair
from stopkit.normalizer.dialects.anthropic_scan import Scan, scan
from stopkit.normalizer.engine import is_synthetic, outcome_of_result, outcome_of_verdict
from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.models import refuses_prefill
from stopkit.normalizer.plain import Item, role_of, text_in, to_plain
from stopkit.normalizer.result import CallOutcome, Hint, Splice
from stopkit.normalizer.work import Context, Repaired, counted_calls


def everything(items: list[Any]) -> Scan:
    """What `scan` gives where all of `items` needs a look."""
    return Scan([(0, len(items))], [0], [], -1, markers=True)


def outcomes(items: list[Any], repaired: Repaired, context: Context) -> Iterator[CallOutcome]:
    """What became of every client-run call of the input, in order."""
    results: dict[str, Item] = {}
    behind = -1
    for where, block, occurrence in counted_calls(
        calls_of(items), id_of, repaired.looked, repaired.decisions, context.past
    ):
        call_id = id_of(block)
        evidence = context.evidences.of(call_id, occurrence)
        decided = repaired.decisions.get(where)
        if decided is not None:
            outcome, synthetic = outcome_of_verdict(decided[1], evidence)
        else:
            index = cast("int", where[0])
            if index >= behind:
                results, behind = results_behind(items, index)
            found = results[call_id]
            text, is_error = text_in(found.get("content")), found.get("is_error")
            synthetic = is_synthetic(text, is_error, evidence)
            late = repaired.late.get((call_id, occurrence)) if synthetic else None
            if late is not None:
                text, is_error, evidence = late.text, late.is_error, None
            outcome = outcome_of_result(text, is_error, evidence)
        yield CallOutcome(call_id, occurrence, str(block.get("name")), outcome, synthetic)


def hints(items: list[Any], splices: list[Splice], context: Context) -> list[Hint]:
    """What the rest of the request must know about the repaired `items`."""
    said: list[Hint] = []
    request = context.request
    if "tools" in request and not request["tools"] and any(True for _ in calls_of(items)):
        said.append(
            Hint(
                "tools_required",
                "Some surfaces refuse tool blocks in a request without tools: pass the tools.",
                "tools",
            )
        )
    if not request.get("container") and _programmatic_end(items):
        said.append(
            Hint(
                "container_required",
                "Calls made by code execution need its latest container id in the request.",
                "container",
            )
        )
    return said


def end(items: list[Any], request: Mapping[str, Any]) -> tuple[bool, list[Hint]]:
    """Whether a request may end as `items` do (open calls aside), and what it takes if not."""
    if not items:
        return False, [_needs_user_turn("There is no message to answer.")]
    last = items[-1]
    if not isinstance(last, dict):
        try:
            last = to_plain(last, (len(items) - 1,), API)
        except HistoryError:
            return False, []
    if not isinstance(last, dict):
        return False, []
    blocks = blocks_of(last)
    final = blocks[-1] if blocks and isinstance(blocks[-1], dict) else {}
    if last.get("role") == "assistant":
        prefill = refuses_prefill(request.get("model")) is False and (
            str(final.get("type")) not in THINKING
        )
        if prefill or awaits_provider(blocks):
            return True, []
        return False, [_needs_user_turn("The last message is the assistant's.")]
    thinking = request.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled":
        # The rule looks at the last turn alone; the rest of a long history is not read for it.
        lost = [v for v in violations(items[-64:], request) if v.rule == "ANT-THINK-3"]
        if lost:
            return False, [
                Hint(
                    "thinking_lost",
                    "The turn before these results does not start with its thinking: send with "
                    "thinking off, or close the loop with a user turn.",
                )
            ]
    return len(items) <= MAX_MESSAGES, []


def user_message(blocks: list[Item] | str) -> Item:
    """A user message of blocks, or of one text."""
    content = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
    return {"role": "user", "content": content}


def answered(items: list[Any]) -> Iterator[tuple[str, object]]:
    """Every client call of a sendable history with its result's content, in order."""
    results: dict[str, Item] = {}
    behind = -1
    for where, block in calls_of(items):
        index = cast("int", where[0])
        if index >= behind:
            results, behind = results_behind(items, index)
        call_id = id_of(block)
        found = results.get(call_id)
        yield call_id, None if found is None else comparable(found)


def is_models(item: Any) -> bool:
    """Whether an item is a turn of the model."""
    return role_of(item) == "assistant"


def _needs_user_turn(why: str) -> Hint:
    return Hint("needs_user_turn", f"{why} The next request needs a user turn.")


def _programmatic_end(items: list[Any]) -> bool:
    """Whether the last model turn holds calls made by provider-run code that are being answered."""
    at = len(items) - 1
    while at >= 0 and role_of(items[at]) == "user":
        at -= 1
    if at < len(items) - 1 or at >= 0:
        for _, block in calls_of(items[at:] if at >= 0 else []):
            if programmatic(block):
                return True
    return False


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
