"""The command: `stopkit check` and `stopkit normalize`.  It may import all layers, lazily."""

from __future__ import annotations

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

    Raises:
        SystemExit: from `--help`, `--version` (code 0) and a wrong use (code 2).
    """
    from stopkit.cli.arguments import parse

    options = parse(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A report may name what the terminal's encoding has no letters for.
            reconfigure(errors="backslashreplace")
    try:
        from stopkit.cli.commands import run

        code = run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopkit: interrupted; no file was left half-written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has no reader: keep the interpreter's own flush from failing.
        _close_to_devnull()
        return READER_GONE
    return code


def _close_to_devnull() -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return
