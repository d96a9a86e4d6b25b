"""A store that fails when a test says so."""

from __future__ import annotations

import sqlite3
from typing import Final

from stopkit.store.sqlite import FaultPoint

_WORDS: Final = {
    "disk_full": "database or disk is full",
    "locked": "database is locked",
    "io": "disk I/O error",
}


class StoreFaults:
    """Give it to a store: `SqlStore(url, fault=faults)`.

    `disk_full` fails commits, `locked` fails the beginning of transactions, which the store waits
    out, and `io` fails both.  `count` is how many times; None is until `clear`.
    """

    def __init__(self) -> None:
        self.fired = 0
        self._words: dict[FaultPoint, str] = {}
        self._left: int | None = None

    def disk_full(self, count: int | None = None) -> None:
        self._set({"commit": _WORDS["disk_full"]}, count)

    def locked(self, count: int | None = None) -> None:
        self._set({"begin": _WORDS["locked"]}, count)

    def io(self, count: int | None = None) -> None:
        self._set({"begin": _WORDS["io"], "commit": _WORDS["io"]}, count)

    def clear(self) -> None:
        self._set({}, None)

    def __call__(self, point: FaultPoint) -> None:
        words = self._words.get(point)
        if words is None or self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        self.fired += 1
        raise sqlite3.OperationalError(words)

    def _set(self, words: dict[FaultPoint, str], count: int | None) -> None:
        self._words = words
        self._left = count
