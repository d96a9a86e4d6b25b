"""Model text: partial and final are two types, and only one way leads from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stopkit.errors import PartialTextError
from stopkit.signal import StopSignal

SAVE_INTERVAL: Final = 0.25
"""Seconds after which text that has come in is made durable."""


@dataclass(frozen=True, slots=True)
class PartialText:
    """Text that was cut off: never an answer, and never sent on unmarked.

    Not a `str`, so that nothing takes it for one; `str()` marks it.  `text` is what came.
    """

    id: str
    text: str

    def __str__(self) -> str:
        return f"[interrupted] {self.text}"


@dataclass(frozen=True, slots=True)
class FinalText:
    """Text that came to its own end."""

    id: str
    text: str

    def __str__(self) -> str:
        return self.text


def final(text: FinalText | PartialText) -> FinalText:
    """The gate in front of whatever shows an answer.

    Raises:
        PartialTextError: for partial text, or anything else.
    """
    if not isinstance(text, FinalText):
        raise PartialTextError("this text is partial: it may not be shown or sent as final")
    return text


class TextBuffer:
    """Text of one model reply, while it comes in.

    `save(offset, chunk)` is called at most every `SAVE_INTERVAL` seconds, and at the end.
    """

    def __init__(
        self,
        id: str,
        signal: StopSignal,
        *,
        now: Callable[[], float],
        save: Callable[[int, str], None],
        finished: Callable[[FinalText], None],
    ) -> None:
        self.id = id
        self._signal = signal
        self._now = now
        self._save = save
        self._finished = finished
        self._parts: list[str] = []
        self._length = 0
        self._saved_parts = 0
        self._saved_length = 0
        self._saved_at = now()
        self._final: FinalText | None = None

    @property
    def partial(self) -> PartialText:
        return PartialText(self.id, "".join(self._parts))

    @property
    def finished(self) -> bool:
        return self._final is not None

    def append(self, delta: str) -> None:
        """Take in what came.

        Raises:
            StopRequested: after it was kept, once a stop is asked for.
            PartialTextError: if the text had ended.
        """
        if self._final is not None:
            raise PartialTextError("this text has ended")
        self._parts.append(delta)
        self._length += len(delta)
        if self._now() - self._saved_at >= SAVE_INTERVAL:
            self.flush()
        self._signal.checkpoint("text")

    def finish(self) -> FinalText:
        """Say that the text came to its own end.

        Raises:
            PartialTextError: once a stop was asked for: whether this is all of it is not known.
        """
        if self._final is None:
            if self._signal.requested:
                raise PartialTextError("the run was stopped before this text ended")
            self.flush()
            self._final = FinalText(self.id, "".join(self._parts))
            self._finished(self._final)
        return self._final

    def flush(self) -> None:
        """Make durable what has come since the last time."""
        self._saved_at = self._now()
        if self._length > self._saved_length:
            chunk = "".join(self._parts[self._saved_parts :])
            self._save(self._saved_length, chunk)
            self._saved_parts = len(self._parts)
            self._saved_length = self._length
