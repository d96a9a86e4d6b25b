"""A clock that stands still, and an event loop that jumps to its next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class FakeClock:
    """Give it to a store.  It moves only by `advance`, or with the loop of `run_virtual`."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self._now = 0.0
        self._wall = wall

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self._now += seconds


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting for a time, moves the clock there."""

    def __init__(self, clock: FakeClock) -> None:
        self._inner = selectors.DefaultSelector()
        self._clock = clock

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # No timer at all: only a thread or a descriptor can bring anything.
            return self._inner.select(None)
        ready = self._inner.select(0)
        if not ready and timeout > 0:
            self._clock.advance(timeout)
        return ready

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic()


def run_virtual(
    main: Callable[[FakeClock], Coroutine[object, object, T]], clock: FakeClock | None = None
) -> T:
    """Run `main(clock)` in a loop without waiting: hours pass at once, in the right order.

    For work of the loop's own; a thread that is at work does not hold the clock.
    """
    clock = clock or FakeClock()
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(clock)) as runner:
        return runner.run(main(clock))
