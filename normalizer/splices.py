"""Stretches of a history: joined, replaced, put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from stopkit.normalizer.result import Splice

Span: TypeAlias = tuple[int, int]
"""Items from the first index up to the second, not included."""


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, with those that touch or overlap made one; empty ones are left out."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


def trimmed(
    start: int, before: tuple[Any, ...], start_after: int, after: list[Any]
) -> Splice | None:
    """A splice of what really differs, or None where nothing does."""
    head = 0
    shortest = min(len(before), len(after))
    while head < shortest and before[head] is after[head]:
        head += 1
    tail = 0
    while tail < shortest - head and before[-1 - tail] is after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if not old and not new:
        return None
    return Splice(start + head, old, start_after + head, tuple(new))


def spliced(items: list[Any], splices: list[Splice]) -> list[Any]:
    """The items after all splices: the input's own list where there is none."""
    if not splices:
        return items
    out: list[Any] = []
    at = 0
    for splice in splices:
        out += items[at : splice.start]
        out += splice.after
        at = splice.start + len(splice.before)
    out += items[at:]
    return out


def add_at_end(splices: list[Splice], end: int, offset: int, item: Any) -> None:
    """Let `item` follow everything else.

    `end` is the length of the input, `offset` how many items longer the splices make it.
    """
    if splices and splices[-1].start + len(splices[-1].before) == end:
        last = splices.pop()
        splices.append(Splice(last.start, last.before, last.start_after, (*last.after, item)))
    else:
        splices.append(Splice(end, (), end + offset, (item,)))
