"""The command: `stopkit check` and `stopkit normalize`.  It may import all layers, lazily."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
READER_GONE = 141
"""128 + SIGPIPE, as shells report it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 fine or repaired, 1 violations, 2 unreadable.

    Ctrl-C, SIGTERM and SIGHUP end it early, with 128 + the signal's number.  Without `argv` the
    process is the command's own: its arguments are taken, and it should end when this returns.

    Raises:
        SystemExit: from `--help`, `--version` (code 0) and a wrong use (code 2).
    """
    try:
        # All imports are in here: Ctrl-C may come while they load.
        from stopkit.cli.interrupts import raised

        with raised(last=argv is None):
            return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt as interrupt:
        if argv is None:
            # The reader may be stuck, or gone as well, and the interpreter's own flush with it.
            _close_to_devnull()
        # With SIGHUP the terminal may be gone.
        with contextlib.suppress(OSError):
            print("stopkit: interrupted; no file was left half-written", file=sys.stderr)
        number: int | None = getattr(interrupt, "number", None)
        return INTERRUPTED if number is None else 128 + number
    except BrokenPipeError:
        # What is still buffered has no reader: keep the interpreter's own flush from failing.
        _close_to_devnull()
        return READER_GONE


def _run(argv: Sequence[str]) -> int:
    from stopkit.cli.arguments import parse

    options = parse(argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A report may name what the terminal's encoding has no letters for.
            reconfigure(errors="backslashreplace")
    from stopkit.cli.commands import run

    code = run(options)
    sys.stdout.flush()
    return code


def _close_to_devnull() -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
