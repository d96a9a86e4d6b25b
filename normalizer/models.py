"""What a Claude model's name says about the rules it is under.

Sources: the model migration notes and the release notes of Opus 5.5.  A name that is not
understood says nothing.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(
    r"claude-(?P<family>opus|sonnet|haiku|fable)-(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)"
)
_OLD_NAME: Final = re.compile(r"claude-(?:instant|[123])\b|claude-3[-.]")


def _version(model: object) -> tuple[str, tuple[int, int]] | None:
    if not isinstance(model, str):
        return None
    found = _NAME.search(model)
    if found is None:
        return ("old", (0, 0)) if _OLD_NAME.search(model) else None
    return found["family"], (int(found["major"]), int(found["minor"] or 0))


def refuses_prefill(model: object) -> bool | None:
    """Whether the last message may not be the assistant's (ANT-END-1); None: not known."""
    version = _version(model)
    if version is None:
        return None
    family, number = version
    return number >= (4, 6) or family == "fable"


def takes_system_messages(model: object) -> bool | None:
    """Whether `role: system` may stand inside messages (ANT-SYS-1); None: not known."""
    version = _version(model)
    if version is None:
        return None
    family, number = version
    if family == "opus":
        return number >= (4, 8)
    if family == "fable":
        return True
    return number > (5, 0)


def binds_thinking(model: object) -> bool | None:
    """Whether thinking is bound to everything before it (ANT-THINK-6); None: not known."""
    version = _version(model)
    if version is None:
        return None
    family, number = version
    return number >= ((5, 1) if family == "fable" else (5, 5))
