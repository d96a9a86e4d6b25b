"""Names and ids that an API takes, in place of recorded ones that it does not take."""

from __future__ import annotations

from hashlib import sha256


def safe_name(name: object, limit: int) -> str:
    """A tool name of letters, digits, `_` and `-`, at most `limit` characters long."""
    given = name.strip() if isinstance(name, str) else ""
    return plain_characters(given)[:limit] or "unnamed_tool"


def safe_id(call_id: str, head: str) -> str:
    """A valid id for an invalid one: the same for the same, another for another.

    `head`, what can be kept of the old id, is followed by 17 characters.
    """
    digest = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{head or 'call'}-{digest}"


def plain_characters(text: str) -> str:
    """The text with `_` for every character but ASCII letters, digits, `_` and `-`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in text)
