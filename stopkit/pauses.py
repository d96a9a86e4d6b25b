"""The named places where a run can be held, stopped or crashed by a test."""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias, get_args

PausePoint: TypeAlias = Literal[
    "before_model_request",
    "after_model_request",
    "before_enqueue",
    "before_start",
    "after_intend",
    "before_dispatch",
    "after_dispatch",
    "before_record",
    "after_record",
    "in_cleanup",
    "before_end",
]
POINTS: Final[tuple[PausePoint, ...]] = get_args(PausePoint)


class PauseHook(Protocol):
    """Awaited at each point.  A store has none unless a test gives it one."""

    async def __call__(self, point: PausePoint, run: str) -> None: ...
