"""Calls that Anthropic runs itself: which have their result, and which results have their call.

A result stands later in its call's message, or among the results that open the next assistant
message; a call by whose code later client calls are made (`caller.tool_id`) waits until their
messages are over (ANT-SRV-1, ANT-SRV-3, ANT-SRV-4, ANT-SRV-7).  Blank texts cannot stay, so they
are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stopkit.normalizer.dialects.anthropic_blocks import (
    SERVER_CALLS,
    blank,
    client_id,
    is_hosted_result,
)

Ref = TypeVar("Ref")


@dataclass(slots=True)
class Gaps(Generic[Ref]):
    """What is not paired, by the caller's own names for blocks."""

    lost: list[Ref] = field(default_factory=list)
    """Calls whose result should have come by now."""
    waiting: list[Ref] = field(default_factory=list)
    """Calls that the next assistant message may still answer."""
    callless: list[Ref] = field(default_factory=list)
    """Results whose call is neither in their message nor waiting from an earlier one."""
    lost_before: bool = False
    """A call from before the messages should have had its result by now."""
    open_ids: frozenset[str] = frozenset()
    """The ids of all calls that wait, those from before the messages included."""


def gaps(
    messages: Iterable[Sequence[tuple[dict[str, Any], Ref]]], open_before: Iterable[str] = ()
) -> Gaps[Ref]:
    """Read assistant messages in order; a message is its blocks, each with its name.

    `open_before` are calls of an earlier part that wait still.
    """
    found: Gaps[Ref] = Gaps()
    before: set[str] = set(open_before)
    waiting: list[tuple[str, Ref | None]] = [(call_id, None) for call_id in sorted(before)]
    for cells in messages:
        spoken = [cell for cell in cells if not _silent(cell[0])]
        if not spoken:
            continue
        opening = _opening(spoken) if waiting else set[str]()
        callers = _callers(spoken) if waiting else set[str]()
        still: list[tuple[str, Ref | None]] = []
        for call_id, ref in waiting:
            if call_id in opening:
                continue
            if call_id in callers:
                still.append((call_id, ref))
            elif ref is None:
                found.lost_before = True
            else:
                found.lost.append(ref)
        own: set[str] = set()
        answered: set[str] = set()
        for block, ref in spoken:
            if block["type"] in SERVER_CALLS:
                own.add(client_id(block, "id"))
            elif is_hosted_result(block["type"]):
                call_id = client_id(block, "tool_use_id")
                if call_id not in own and call_id not in before:
                    found.callless.append(ref)
        fresh: list[tuple[str, Ref]] = []
        for block, ref in reversed(spoken):
            if is_hosted_result(block["type"]):
                answered.add(client_id(block, "tool_use_id"))
            elif block["type"] in SERVER_CALLS and client_id(block, "id") not in answered:
                fresh.append((client_id(block, "id"), ref))
        waiting = [*still, *reversed(fresh)]
        before = own | {call_id for call_id, _ in still}
    found.waiting = [ref for _, ref in waiting if ref is not None]
    found.open_ids = frozenset(call_id for call_id, _ in waiting)
    return found


def _callers(cells: Sequence[tuple[dict[str, Any], Ref]]) -> set[str]:
    """The server calls whose code made a client call of this message."""
    ids: set[str] = set()
    for block, _ in cells:
        caller = block.get("caller")
        if block["type"] == "tool_use" and isinstance(caller, Mapping):
            ids.add(client_id(dict(caller), "tool_id"))
    return ids


def _opening(cells: Sequence[tuple[dict[str, Any], Ref]]) -> set[str]:
    ids: set[str] = set()
    for block, _ in cells:
        if not is_hosted_result(block["type"]):
            break
        ids.add(client_id(block, "tool_use_id"))
    return ids


def _silent(block: dict[str, Any]) -> bool:
    text = block.get("text")
    return block["type"] == "text" and isinstance(text, str) and blank(text)
