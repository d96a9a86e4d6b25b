"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_own_loop_writes_exactly_once():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "own_loop.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stderr == ""
    assert "book_invoice: unknown, effects unverified" in done.stdout
    assert "run: needs_reconciliation" in done.stdout
    assert "Done(output='booked for ann'" in done.stdout
    assert done.stdout.endswith("Writes at the service: 1\n")
