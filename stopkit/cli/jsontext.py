"""JSON text to values and back, losing nothing: orjson, or the stdlib's json where it must be.

orjson refuses NaN, lone surrogates and deep nesting, which one can tell; and reads integers beyond
64 bits as floats, which one cannot.  What the stdlib read, it also writes.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

BOM: Final = codecs.BOM_UTF8
_LONG_NUMBER: Final = re.compile(rb"(?:^|[\[:,\s])-?[0-9]{19}")
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_NINETEEN: Final = b"0" * 19
_FOREIGN_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


class JsonError(ValueError):
    """The text is no JSON; the message says why, for a person."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a text was written, as far as its rewritten form keeps it."""

    exact: bool = False
    """Read by the stdlib's json: only that one writes it back without loss."""
    indent: int | None = None
    head: bytes = b""
    """A byte order mark."""
    tail: bytes = b""
    """White space behind the value, the line's end included."""


PLAIN: Final = Style()


def loads(text: bytes) -> tuple[Any, Style]:
    """The value and what to know to write it back; `dumps` takes both.

    Raises:
        JsonError: no JSON, not UTF-8, or nested deeper than the parsers go.
    """
    head = BOM if text.startswith(BOM) else b""
    body = text[len(head) :]
    value, exact = _parse(body)
    tail = body[len(body.rstrip(b" \t\r\n")) :]
    return value, Style(exact=exact, indent=_indent(body), head=head, tail=tail)


def _parse(body: bytes) -> tuple[Any, bool]:
    if not has_long_number(body):
        try:
            return orjson.loads(body), False
        except orjson.JSONDecodeError:
            pass
    return _parse_exactly(body), True


def _parse_exactly(text: bytes) -> Any:
    for mark, name in _FOREIGN_MARKS:
        if text.startswith(mark):
            raise JsonError(f"not UTF-8: the text looks like {name}")
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8: byte 0x{text[error.start]:02x} at {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"column {error.colno}"
        if error.lineno > 1:
            where = f"line {error.lineno} {where}"
        raise JsonError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}, {where}") from None
    except RecursionError:
        raise JsonError("not readable: nested too deeply") from None
    except ValueError as error:
        # An integer of more digits than the interpreter converts.
        raise JsonError(f"not readable: {error}") from None


def has_long_number(text: bytes) -> bool:
    """True where orjson may have read an integer as a float."""
    # Most texts have no run of digits that long; to see that takes a fraction of the search.
    if _NINETEEN not in text.translate(_AS_ZEROS):
        return False
    return _LONG_NUMBER.search(text) is not None


def dumps(value: Any, style: Style = PLAIN) -> bytes:
    """The value as JSON text, in the style it was read in.

    Raises:
        JsonError: nested deeper than the writers go.
    """
    if not style.exact:
        try:
            option = orjson.OPT_INDENT_2 if style.indent else 0
            return style.head + orjson.dumps(value, option=option) + style.tail
        except TypeError:
            # A lone surrogate, a long integer or deep nesting that came in by another way.
            pass
    separators = (",", ": ") if style.indent else (",", ":")
    try:
        text = json.dumps(value, indent=style.indent, separators=separators, ensure_ascii=False)
    except RecursionError:
        raise JsonError("not writable: nested too deeply") from None
    try:
        written = text.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates exist as escapes only.
        text = json.dumps(value, indent=style.indent, separators=separators)
        written = text.encode("ascii")
    return style.head + written + style.tail


def _indent(body: bytes) -> int | None:
    stripped = body.strip(b" \t\r\n")
    return 2 if b"\n" in stripped else None
