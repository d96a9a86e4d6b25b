"""Where repaired text and unreadable rows go."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import BinaryIO, Protocol

from stopkit.cli.corpus import Edit, Judged, Reject
from stopkit.cli.writing import Replacement, back_up, same_version


class Output(Protocol):
    """Takes a text in pieces with the edits to make.  `finish` or `abandon` ends it, once.

    Raises:
        OSError: from all but `abandon`: it cannot be written.
    """

    def put(self, text: bytes, judged: Judged) -> None: ...
    def finish(self) -> str | None:
        """Make it last; a note for a person, or None."""

    def abandon(self) -> None:
        """Leave no trace."""


class Nothing:
    """No text is wanted."""

    def put(self, text: bytes, judged: Judged) -> None:
        pass

    def finish(self) -> None:
        return None

    def abandon(self) -> None:
        pass


class StandardOutput:
    def put(self, text: bytes, judged: Judged) -> None:
        _write(sys.stdout.buffer, text, judged)

    def finish(self) -> None:
        return None

    def abandon(self) -> None:
        pass


class NewFile:
    """A file that appears whole when it is finished."""

    def __init__(self, target: Path) -> None:
        self._target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self._new = Replacement(target)

    def put(self, text: bytes, judged: Judged) -> None:
        _write(self._new.file, text, judged)

    def finish(self) -> str:
        self._new.commit()
        return f"written to {self._target}"

    def abandon(self) -> None:
        self._new.discard()


class OverInput:
    """The input itself, replaced when it is finished; untouched where there is nothing to change.

    `before` is what the file was when it was opened.
    """

    def __init__(self, path: Path, before: os.stat_result) -> None:
        self._path = Path(os.path.realpath(path))
        self._before = before
        self._passed = 0
        self._new: Replacement | None = None

    def put(self, text: bytes, judged: Judged) -> None:
        if judged.edits and self._new is None:
            self._new = Replacement(self._path)
            with self._path.open("rb") as source:
                _copy_start(source, self._new.file, self._passed)
        if self._new is not None:
            _write(self._new.file, text, judged)
        self._passed += len(text)

    def finish(self) -> str | None:
        if self._new is None:
            return None
        self._new.seal()
        if not same_version(self._before, self._path.stat()):
            raise OSError("it was changed by somebody else meanwhile, and left as it is")
        backup = back_up(self._path)
        self._new.commit()
        return f"repaired in place; as it was: {backup}"

    def abandon(self) -> None:
        if self._new is not None:
            self._new.discard()


class RejectsFile:
    """Rows that could not be read, one JSON object a line; no file where there are none."""

    def __init__(self, target: Path, *, name_files: bool = False) -> None:
        self.target = target
        self._name_files = name_files
        self._new: Replacement | None = None

    def put(self, name: str, rejects: list[Reject]) -> None:
        for reject in rejects:
            if self._new is None:
                self.target.parent.mkdir(parents=True, exist_ok=True)
                self._new = Replacement(self.target)
            # Bytes that are not UTF-8 become lone surrogates, which JSON can escape.
            row = {
                "line": reject.line,
                "reason": reject.reason,
                "text": reject.text.decode("utf-8", "surrogateescape"),
            }
            if self._name_files:
                row = {"file": name, **row}
            self._new.file.write(json.dumps(row).encode("ascii") + b"\n")

    def finish(self) -> None:
        if self._new is not None:
            self._new.commit()
            self._new = None

    def abandon(self) -> None:
        if self._new is not None:
            self._new.discard()
            self._new = None


def _write(file: BinaryIO, text: bytes, judged: Judged) -> None:
    if judged.body is not None:
        file.write(judged.body)
        return
    view = memoryview(text)
    at = 0
    edit: Edit
    for edit in judged.edits:
        start, stop, new = edit
        file.write(view[at:start])
        file.write(new)
        at = stop
    file.write(view[at:])


def _copy_start(source: BinaryIO, target: BinaryIO, length: int) -> None:
    """The first `length` bytes."""
    while length:
        piece = source.read(min(length, 1 << 20))
        if not piece:
            raise OSError("it became shorter while it was being read, and was left as it is")
        target.write(piece)
        length -= len(piece)
