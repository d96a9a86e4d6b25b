"""What units raise.

StopkitError
  UnitError                 base
    UnitUnsupported         this platform has no way to hold what the unit would start
    UnitNotStarted          nothing ran; `where` says how far the start came
    UnitStartUnknown        its guard was lost in the start; it may have run for a moment
    UnitInputClosed         the process does not read its input any more
    UnitState               the unit is not in the state that the call needs
    UnitOutcomeUnknown      a unit's end, raised in a tool: nobody knows what became of it
"""

from __future__ import annotations

from typing import ClassVar

from stopkit.errors import StopkitError


class UnitError(StopkitError):
    code: ClassVar[str] = "unit_error"


class UnitUnsupported(UnitError):
    code: ClassVar[str] = "unsupported"


class UnitNotStarted(UnitError):
    """`where`: `record`, `broker`, `fork`, `cwd`, `exec`, ...  `errno` is the system's, if any."""

    code: ClassVar[str] = "unit_not_started"
    retry_safe: ClassVar[bool] = True

    def __init__(self, message: str, *, where: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.errno = errno


class UnitStartUnknown(UnitError):
    code: ClassVar[str] = "unit_start_unknown"


class UnitInputClosed(UnitError):
    code: ClassVar[str] = "unit_input_closed"


class UnitState(UnitError):
    code: ClassVar[str] = "unit_state"


class UnitOutcomeUnknown(UnitError):
    code: ClassVar[str] = "unit_outcome_unknown"
