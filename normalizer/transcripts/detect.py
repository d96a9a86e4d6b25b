"""Which format a file is in, by what its rows hold, and the reading of the two stored ones.

A file's name says nothing: sessions get copied, exported and renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from stopkit.normalizer.errors import HistoryError
from stopkit.normalizer.transcripts.claude_code import read_claude_code
from stopkit.normalizer.transcripts.codex import history_base, read_codex
from stopkit.normalizer.transcripts.rows import Row, as_dict, as_list, as_text, parse, read_rows
from stopkit.normalizer.transcripts.transcript import Transcript

Format: TypeAlias = Literal[
    "claude_code", "codex", "jsonl.messages", "jsonl.conversations", "json.list", "json.request"
]
"""`jsonl.messages` has a message or item in each line, `jsonl.conversations` a whole conversation;
`json.list` is one history, `json.request` one request body."""

_CODEX_ROWS: Final = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"}
)
_ITEMS: Final = frozenset({"message", "reasoning", "compaction", "item_reference"})
_FIRST: Final = 3
_BEGINNING: Final = 1 << 20
"""Bytes; the first row of a session is far shorter."""
_LOOKED_AT: Final = 50
"""Lines; the first one may be torn."""


def detect(first_bytes: bytes) -> Format | None:
    """The format of a file by its beginning, which holds at least its first line whole.

    None where nothing in it is evidence.
    """
    text = first_bytes.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        return None
    try:
        return _of_document(parse(text))
    except ValueError:
        pass
    lines = [line for line in text.split(b"\n", _LOOKED_AT)[:_LOOKED_AT] if line.strip()]
    if _is_spread(lines):
        return _of_beginning(text)
    for value in _values(lines):
        found = _of_row(value, one_of_many=True)
        if found is not None:
            return found
    return None


def _of_document(value: Any) -> Format | None:
    """The format of a file that is one JSON value."""
    if isinstance(value, list):
        return "json.list" if _holds_objects(value) else None
    return _of_row(value, one_of_many=False)


def _is_spread(lines: list[bytes]) -> bool:
    """True for one JSON value written over several lines, of which this is the beginning."""
    if lines[0].strip() in (b"[", b"{"):
        return True
    return (
        len(lines) > 1 and lines[1][:1] in (b" ", b"\t") and next(_values(lines[:1]), None) is None
    )


def _of_beginning(text: bytes) -> Format | None:
    if text.startswith(b"["):
        return "json.list"
    keyed = any(b'"' + key + b'":' in text.replace(b" ", b"") for key in (b"messages", b"input"))
    return "json.request" if text.startswith(b"{") and keyed else None


def _values(lines: Iterable[bytes]) -> Iterator[Any]:
    for line in lines:
        try:
            yield parse(line)
        except ValueError:
            continue


def _of_row(value: object, *, one_of_many: bool) -> Format | None:
    if isinstance(value, list):
        return "jsonl.conversations" if value and _holds_objects(value) else None
    row = as_dict(value)
    kind = as_text(row.get("type"))
    if kind in _CODEX_ROWS and isinstance(row.get("payload"), dict):
        return "codex"
    if kind and ("parentUuid" in row or "sessionId" in row or "leafUuid" in row):
        return "claude_code"
    asked = row.get("input")
    if isinstance(row.get("messages"), list) or isinstance(asked, list if kind else (list, str)):
        return "jsonl.conversations" if one_of_many else "json.request"
    if as_text(row.get("role")) or kind in _ITEMS or kind.endswith(("_call", "_output")):
        return "jsonl.messages"
    if any(_is_history(field) for field in row.values()):
        return "jsonl.conversations"
    return None


def _holds_objects(value: object) -> bool:
    return all(isinstance(item, dict) for item in as_list(value))


def _is_history(value: object) -> bool:
    """True for a list of messages or items, as a conversation has under some name."""
    items = as_list(value)
    return bool(items) and all(as_dict(item).keys() & {"role", "type"} for item in items)


def load(path: str | Path) -> Transcript:
    """The conversation in a stored transcript, with what stands in the files beside it.

    For Claude Code these are the sub-agents' files (in a folder named as the file without its
    suffix), for Codex the rollouts that `history_base` names, if they are in the same folder.

    Raises:
        OSError: a file cannot be read.
        HistoryError: it is neither a Claude Code session file nor a Codex rollout.
    """
    file = Path(path)
    content = file.read_bytes()
    match detect(content[:_BEGINNING]):
        case "claude_code":
            folder = file.with_suffix("") / "subagents"
            beside = sorted(folder.glob("agent-*.json*")) if folder.is_dir() else []
            return read_claude_code(content, {item.name: item.read_bytes() for item in beside})
        case "codex":
            return read_codex(content, _bases(file, content))
        case other:
            found = f"it is {other}" if other else "its format is not known"
            raise HistoryError(f"not a stored transcript: {found}", path="")


def _bases(file: Path, content: bytes) -> list[bytes]:
    """The files that a rollout goes on from, the nearest first."""
    found: list[bytes] = []
    seen = {file.resolve()}
    while named := history_base(_first_rows(content)):
        for item in sorted(file.parent.glob("*.jsonl")):
            if item.resolve() in seen or not _is_of_thread(item, named.get("thread_id")):
                continue
            candidate = item.read_bytes()
            if _holds_rows_before(candidate, named.get("end_ordinal_exclusive")):
                seen.add(item.resolve())
                found.append(candidate)
                content = candidate
                break
        else:
            break
    return found


def _is_of_thread(item: Path, thread_id: object) -> bool:
    """True for a rollout of that thread, by its first lines; a folder may hold many others."""
    try:
        with item.open("rb") as file:
            rows = _first_rows(b"".join(islice(file, _FIRST)))
    except OSError:
        return False
    return any(
        row.value.get("type") == "session_meta"
        and as_dict(row.value.get("payload")).get("id") == thread_id
        for row in rows
    )


def _holds_rows_before(candidate: bytes, cut: object) -> bool:
    if not isinstance(cut, int):
        return False
    return any(row.value.get("ordinal") == cut - 1 for row in read_rows(candidate)[0])


def _first_rows(content: bytes) -> list[Row]:
    """The rows of the beginning of a file, where its `session_meta` stands."""
    return read_rows(b"\n".join(content.split(b"\n", _FIRST)[:_FIRST]))[0]
