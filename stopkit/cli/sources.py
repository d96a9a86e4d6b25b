"""What the command is pointed at: files, folders, standard input, and the form of each."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, TypeAlias

from stopkit.cli.conversation import ConversationError, history_field, read_conversation
from stopkit.cli.jsontext import BOM, JsonError, loads
from stopkit.history import Api

Form: TypeAlias = Literal["json", "jsonl.messages", "jsonl.conversations", "claude_code", "codex"]
"""One JSON value; one message a line; one conversation a line; an agent's own session file."""

FORMS: Final[dict[Form, str]] = {
    "json": "one JSON value",
    "jsonl.messages": "one message a line",
    "jsonl.conversations": "one conversation a line",
    "claude_code": "a Claude Code session file",
    "codex": "a Codex rollout",
}

REJECTS: Final = ".rejects.jsonl"
_SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
_HEAD: Final = 1 << 16
_SAMPLE: Final = 200
"""Lines that are looked at before the form is decided."""


class UnreadableError(ValueError):
    """The source holds nothing this command reads; the message says why, for a person."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read.  `path` is None for standard input."""

    path: Path | None
    name: str
    """What to call it."""
    mirror: Path
    """Its name below an output folder."""

    def open(self) -> BinaryIO:
        """Raises OSError."""
        if self.path is None:
            return sys.stdin.buffer
        return self.path.open("rb")


def expand(arguments: Sequence[str]) -> list[Source]:
    """The sources that the arguments name, each once, in their order; folders by sorted path.

    Raises:
        UnreadableError: a folder without a JSON file in it.
    """
    found: dict[str, Source] = {}
    for argument in arguments:
        if argument == "-":
            found.setdefault("-", Source(None, "standard input", Path("stdin.jsonl")))
            continue
        path = Path(argument)
        if not path.is_dir():
            found.setdefault(os.path.realpath(path), Source(path, argument, Path(path.name)))
            continue
        inside = list(_walk(path))
        if not inside:
            raise UnreadableError(f"{argument}: no {', '.join(_SUFFIXES)} file in this folder")
        for file in inside:
            source = Source(file, str(file), file.relative_to(path))
            found.setdefault(os.path.realpath(file), source)
    return list(found.values())


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            hidden = name.startswith(".") or name.endswith(REJECTS)
            if not hidden and name.endswith(_SUFFIXES):
                yield Path(root, name)


def is_regular(file: BinaryIO) -> bool:
    """True for a file that can be read again from any place."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):
        return False


@dataclass(slots=True)
class Opened:
    """A source whose form is known.  `head` was read already: it comes before what `file` gives."""

    form: Form
    head: bytes
    file: BinaryIO
    usual: Api | None = None
    """The API of most of the first conversations that tell theirs."""

    def read(self) -> bytes:
        """All of it."""
        return self.head + self.file.read()

    def batches(self, size: int) -> Iterator[bytes]:
        """All of it in pieces of whole lines, of about `size` bytes; memory holds one at a time."""
        piece = self.head
        while True:
            piece += self.file.read(max(size - len(piece), 0))
            if not piece.endswith(b"\n"):
                piece += self.file.readline()
            if not piece:
                return
            yield piece
            piece = b""


def open_source(file: BinaryIO, field: str | None) -> Opened:
    """Decide the form by what is inside, never by a name.

    Raises:
        UnreadableError: empty, or neither JSON nor JSON lines of this kind.
        OSError: it cannot be read.
    """
    head = file.read(_HEAD) + file.readline()
    beyond = file.readline()
    head += beyond
    session = _session_form(head)
    if session is not None:
        return Opened(session, head, file)
    lines = [line for line in head.removeprefix(BOM).split(b"\n") if line.strip()]
    if not lines and not beyond:
        raise UnreadableError("empty: nothing to read")
    kinds: list[_Kind] = [_kind(line, field) for line in lines[:_SAMPLE]]
    rows = sum(kind in ("message", "conversation") for kind in kinds)
    if len(lines) == 1 and not beyond and kinds[0] != "message":
        return _whole(Opened("json", head, file), [])
    if kinds and (kinds[0] != "broken" or rows * 2 > len(kinds)):
        form = _line_form(kinds)
        usual = _usual_api(lines, field) if form == "jsonl.conversations" else None
        return Opened(form, head, file, usual)
    # A value written over several lines looks like broken lines at first.
    return _whole(Opened("json", head, file), kinds)


_Kind: TypeAlias = Literal["message", "conversation", "other", "broken"]


def _kind(line: bytes, field: str | None) -> _Kind:
    try:
        value, _ = loads(line)
    except JsonError:
        return "broken"
    if isinstance(value, list):
        return "conversation"
    if not isinstance(value, dict):
        return "other"
    if history_field(value, field) is not None:
        return "conversation"
    return "message" if field is None and ("role" in value or "type" in value) else "other"


def _line_form(kinds: list[_Kind]) -> Form:
    for kind in kinds:
        if kind == "message":
            return "jsonl.messages"
        if kind == "conversation":
            return "jsonl.conversations"
    raise UnreadableError(
        "its lines are neither messages nor conversations (a list, or an object with `messages` "
        "or `input`; --field names another)"
    )


def _usual_api(lines: list[bytes], field: str | None) -> Api | None:
    told: Counter[Api] = Counter()
    for line in lines[:_SAMPLE]:
        try:
            conversation = read_conversation(loads(line)[0], field, None)
        except (JsonError, ConversationError):
            continue
        if conversation.found_by:
            told[conversation.api] += 1
    return told.most_common(1)[0][0] if told else None


def _whole(opened: Opened, kinds: list[_Kind]) -> Opened:
    content = opened.read()
    try:
        loads(content)
    except JsonError as error:
        if "message" not in kinds and "conversation" not in kinds:
            raise UnreadableError(str(error)) from None
        opened.form = _line_form(kinds)
    return Opened(opened.form, content, opened.file)


def _session_form(head: bytes) -> Form | None:
    from stopkit.normalizer.transcripts import detect

    found = detect(head)
    if found == "claude_code":
        return "claude_code"
    return "codex" if found == "codex" else None
