"""What the tests of rules and cases share: a repair with what holds for every repair."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, get_args

import brute
from shapes import (
    Item,
)

from stopkit import Api
from stopkit.normalizer import (
    RULES,
    ChangeKind,
    Normalized,
    check,
    normalize,
)

SHORT_PATH = re.compile(r"(messages|input)(\.\w+)*")


def told(words: str = "words") -> Item:
    """A message whose content is `words`, as every API takes one."""
    return {"role": "user", "content": words}


def mended(api: Api, items: list[Any], **options: Any) -> Normalized[Any]:
    """`normalize`, with what holds for every history: valid, idempotent, undone, input left."""
    before = copy.deepcopy(items)
    request = options.get("request") or {}
    done = normalize(items, api=api, **options)
    assert items == before
    history = list(done.history)
    assert brute.valid(api, history, request)
    assert check(history, api=api, request=request).valid
    again = normalize(history, api=api, **options)
    assert list(again.history) == history
    undone = done.undo()
    assert len(undone) == len(items)
    assert all(was is now for was, now in zip(items, undone, strict=True))
    for change in done.changes:
        assert change.kind in get_args(ChangeKind)
        assert change.rule in RULES
        assert SHORT_PATH.match(change.path)
        assert change.note
    return done


def made_words(done: Normalized[Any]) -> list[str]:
    """Every text of the history that stopkit wrote as a result."""
    return [words for words in strings(list(done.history)) if words.startswith("[stopkit outcome ")]


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | tuple():
            for part in value:
                yield from strings(part)
        case dict():
            for part in value.values():
                yield from strings(part)
        case _:
            pass


def rules_of(done: Normalized[Any]) -> list[str]:
    return [f"{change.kind} {change.rule}" for change in done.changes]


def codes(done: Normalized[Any]) -> list[str]:
    return [hint.code for hint in done.hints]
