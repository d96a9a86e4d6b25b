"""For tests of stops: hold, crash, fail and check at named places, without waiting."""

from __future__ import annotations

from stopkit.testing.check import Violation, check_events
from stopkit.testing.clock import FakeClock, run_virtual
from stopkit.testing.faults import StoreFaults
from stopkit.testing.ids import CountingIds
from stopkit.testing.pauses import Pauses, crash_at

__all__ = [
    "CountingIds",
    "FakeClock",
    "Pauses",
    "StoreFaults",
    "Violation",
    "check_events",
    "crash_at",
    "run_virtual",
]
