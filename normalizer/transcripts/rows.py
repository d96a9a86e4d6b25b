"""From the bytes of a JSON Lines file to its rows.  A torn line costs itself and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import orjson

from stopkit.normalizer.transcripts.transcript import Finding

Rows: TypeAlias = bytes | Sequence[Mapping[str, object]]
"""A file's content, or its rows."""

_BOM: Final = b"\xef\xbb\xbf"
_ROW_HEAD: Final = re.compile(rb'\{"(?:parentUuid|timestamp)":')
_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class Row:
    """One row and its line number, from 1."""

    line: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TornLine:
    """A line that is no JSON object; `text` is what there is of it."""

    line: int
    text: str

    def finding(self) -> Finding:
        shown = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "…"
        return Finding(
            "torn_line", f"line {self.line} was cut short or is damaged: {shown}", (self.line,)
        )


def parse(data: bytes) -> Any:
    """A JSON value, also one with NaN, lone surrogates or huge integers.

    Raises:
        ValueError: it is no JSON, or too deep to read.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_rows(source: Rows) -> tuple[list[Row], list[TornLine]]:
    """The rows of a file in order, and the lines that are none."""
    if not isinstance(source, bytes):
        return [Row(number, dict(row)) for number, row in enumerate(source, 1)], []
    rows: list[Row] = []
    torn: list[TornLine] = []
    for number, line in enumerate(source.removeprefix(_BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        value = _row(line)
        if value is None:
            torn_part, value = _glued(line)
            torn.append(TornLine(number, torn_part.decode("utf-8", "replace")))
        if value is not None:
            rows.append(Row(number, value))
    return rows, torn


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse(line)
    except ValueError:
        return None
    row: dict[str, Any] | None = value if isinstance(value, dict) else None
    return row


def _glued(line: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """A torn line, and the whole row that a later writer may have put right behind it."""
    starts = [found.start() for found in _ROW_HEAD.finditer(line)]
    if starts and starts[-1] and (value := _row(line[starts[-1] :])) is not None:
        return line[: starts[-1]], value
    return line, None


def lines_of(rows: Iterable[Row]) -> tuple[int, ...]:
    return tuple(row.line for row in rows)


def as_dict(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one: rows are read, never trusted."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    items: list[Any] = value if isinstance(value, list) else []
    return items


def as_text(value: object) -> str:
    """`value` if it is a string; a lone surrogate in it, which is no text, becomes U+FFFD."""
    if not isinstance(value, str):
        return ""
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_of(content: object) -> str:
    """The text of a message's or a result's content: a string, or the texts of its parts."""
    if isinstance(content, str):
        return as_text(content)
    parts = (as_dict(part).get("text") for part in as_list(content))
    return "\n".join(as_text(part) for part in parts if isinstance(part, str))
