"""Ids that are the same in every run of a test."""

from __future__ import annotations

from collections import Counter


class CountingIds:
    """`run_1`, `run_2`, `steer_1`, ..."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __call__(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind]}"
