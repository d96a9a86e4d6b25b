"""A progress bar for long work, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LONG: Final = 16 << 20
"""Bytes from which the work is worth a bar."""
_MANY: Final = 100
"""Files from which it is."""


class Progress:
    """A context manager; without a terminal, or for short work, it shows nothing."""

    def __init__(self, total: int, files: int) -> None:
        self._total = total
        self._wanted = sys.stderr.isatty() and (total >= _LONG or files >= _MANY)
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self._wanted:
            from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            from stopkit.cli.report import console

            # Drawn from `advance` alone: a thread of its own would be there when workers fork.
            self._bar = Bar(
                BarColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=console(sys.stderr),
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total)
        return self

    def advance(self, size: int) -> None:
        """`size` more bytes are through."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=size)
            self._bar.refresh()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
