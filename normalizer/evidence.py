"""What the caller knows about calls, by call id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from stopkit.normalizer.errors import EvidenceError
from stopkit.normalizer.plain import encodable, replace_surrogates
from stopkit.outcome import Evidence, parse_evidence

_OCCURRENCE: Final = re.compile(r"(.+)#([1-9][0-9]{0,8})", re.DOTALL)


class Evidences:
    """What the caller knows, by call id, and by occurrence where an id recurs."""

    __slots__ = ("_by_id", "_by_occurrence", "ids")

    def __init__(self, given: Mapping[str, Evidence | Mapping[str, object]] | None) -> None:
        """Raises EvidenceError: not a mapping, or a value that is no evidence."""
        self._by_id: dict[str, Evidence] = {}
        self._by_occurrence: dict[str, Evidence] = {}
        self.ids: frozenset[str] = frozenset()
        """Every id that evidence speaks of, with and without its occurrence."""
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise EvidenceError("evidence is {call_id: Evidence}", path="evidence")
        for key, value in given.items():
            if not isinstance(key, str):
                raise EvidenceError(f"the call id {key!r} is no string", path="evidence")
            parsed = parsed_evidence(key, value)
            self._by_id[key] = parsed
            if split_occurrence(key)[1]:
                self._by_occurrence[key] = parsed
        bases = (split_occurrence(key)[0] for key in self._by_occurrence)
        self.ids = frozenset((*self._by_id, *bases))

    def __bool__(self) -> bool:
        return bool(self._by_id)

    @property
    def by_occurrence(self) -> bool:
        """Whether any of it names an occurrence, so that calls have to be counted."""
        return bool(self._by_occurrence)

    def of(self, call_id: str, occurrence: int = 1) -> Evidence | None:
        """The evidence for one call; what names its occurrence comes before what names its id."""
        if not self._by_id:
            return None
        if self._by_occurrence:
            found = self._by_occurrence.get(f"{call_id}#{occurrence}")
            if found is not None:
                return found
        return self._by_id.get(call_id)


NO_EVIDENCE: Final = Evidences(None)


def split_occurrence(key: str) -> tuple[str, int]:
    """`"call_1#2"` as `("call_1", 2)`; a key that names no occurrence comes back with 0."""
    found = _OCCURRENCE.fullmatch(key)
    return (found[1], int(found[2])) if found else (key, 0)


def parsed_evidence(key: str, value: Evidence | Mapping[str, object]) -> Evidence:
    """The evidence for a call, from itself or from its plain-dict form; else EvidenceError."""
    try:
        parsed = parse_evidence(value)
        return _encodable(key, parsed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][-1:])
        raise EvidenceError(
            f"{first['msg']} ({where})" if where else first["msg"],
            path=f"evidence.{key[:100]}",
        ) from None


def _encodable(key: str, parsed: Evidence) -> Evidence:
    """The evidence with U+FFFD for a lone surrogate in its words; an operation key has none."""
    if parsed.key is not None and not encodable(parsed.key):
        raise EvidenceError("a lone surrogate (key)", path=f"evidence.{key[:100]}")
    words = {
        name: text
        for name in ("reason", "cause", "output", "by", "check")
        if isinstance(text := getattr(parsed, name, None), str) and not encodable(text)
    }
    if not words:
        return parsed
    return parsed.model_copy(update={n: replace_surrogates(text) for n, text in words.items()})
