"""JSON text for the columns."""

from __future__ import annotations

import json
from typing import cast

import orjson
from pydantic import JsonValue


def plain(text: str) -> str:
    """Text that a column can hold: lone surrogates are written out as `\\udxxx`."""
    return text.encode("utf-8", "backslashreplace").decode()


def _described(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def dumps(value: object) -> str:
    """JSON text; what JSON has no form for becomes its `repr`.

    orjson refuses lone surrogates, which models do produce, and integers over 64 bits.
    """
    try:
        return orjson.dumps(value, default=_described, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return json.dumps(value, default=_described, ensure_ascii=True, separators=(",", ":"))


def loads(text: str) -> JsonValue:
    try:
        return cast(JsonValue, orjson.loads(text))
    except orjson.JSONDecodeError:
        return cast(JsonValue, json.loads(text))


def loads_object(text: str) -> dict[str, JsonValue]:
    """As `loads`, for a column that holds an object."""
    value = loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text[:80]!r}")
    return value
