"""What later requests have to know of a part of the history that was sent, and is frozen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stopkit.normalizer.dialects.anthropic_blocks import marker_places, programmatic
from stopkit.normalizer.dialects.anthropic_parts import API, blocks_of, calls_of
from stopkit.normalizer.dialects.anthropic_server import gaps
from stopkit.normalizer.plain import Item, role_of, to_plain


@dataclass(frozen=True, slots=True)
class Memory:
    """What the end of a frozen history asks of what follows it."""

    open_server: frozenset[str] = frozenset()
    """Provider-run calls that wait for their result."""
    results_only: str = ""
    """As `Exchange.results_only`, of the last exchange."""
    last_role: str = ""
    markers: int = 0
    """How many cache markers it holds: they stay, so later ones may have to go."""


def remember(memory: Memory | None, items: list[Any]) -> Memory:
    """What the end of a frozen history asks of what follows; `items` are new in it."""
    memory = memory or Memory()
    if items:
        memory = replace(memory, last_role=str(role_of(items[-1])))
    markers = sum(1 for n, item in enumerate(items) for _ in marker_places(item, n))
    memory = replace(memory, markers=memory.markers + markers)
    at = len(items) - 1
    while at >= 0 and role_of(items[at]) != "assistant":
        at -= 1
    if at < 0:
        return memory
    turns = [_numbered(item) for item in items if role_of(item) == "assistant"]
    open_server = gaps(turns, memory.open_server).open_ids
    while at > 0 and role_of(items[at - 1]) == "assistant":
        at -= 1
    calls = [block for _, block in calls_of(items[at:])]
    alone = gaps([_numbered(item) for item in items[at:] if role_of(item) == "assistant"])
    results_only = ""
    if not calls and open_server and role_of(items[-1]) == "assistant":
        # A paused turn was sent as it is: what the user says waits until it has gone on.
        results_only = "ANT-SRV-5"
    elif calls and alone.open_ids:
        results_only = "ANT-SRV-3"
    elif any(programmatic(block) for block in calls):
        results_only = "ANT-SRV-7"
    return replace(memory, open_server=open_server, results_only=results_only)


def must_look(memory: Memory | None, items: list[Any]) -> bool:
    """Whether the frozen part has a call open that only the provider can answer, or cache markers
    beside which those of `items` may be too many."""
    if memory is None:
        return False
    if memory.open_server or memory.results_only:
        return True
    if memory.last_role == "system" and role_of(items[0]) != "assistant":
        return True
    return bool(memory.markers) and any(
        True for n, item in enumerate(items) for _ in marker_places(item, n)
    )


def _numbered(message: Any) -> list[tuple[Item, int]]:
    plain = message if isinstance(message, dict) else to_plain(message, (), API)
    return [
        (block if isinstance(block, dict) else to_plain(block, (), API), number)
        for number, block in enumerate(blocks_of(plain))
    ]
