"""Input of any kind to plain JSON values, and what in them is no JSON.

Untouched plain values come back as the same objects; SDK objects (pydantic models) and mappings
of other classes are dumped to plain dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stopkit.history import Api
from stopkit.normalizer.errors import HistoryError, UnknownApiError
from stopkit.normalizer.result import Location

MAX_DEPTH: Final = 255
"""Levels of nesting below a message or item.  A tool input is three levels down, and orjson takes
254 levels: so a list of inputs that orjson takes is one that this limit takes."""

_FIELD: Final[dict[Api, str]] = {
    "anthropic.messages": "messages",
    "openai.responses": "input",
    "openai.chat": "messages",
}


def field_of(api: Api) -> str:
    """The field of a request body that holds the history.

    Raises:
        UnknownApiError: `api` is none of the three.
    """
    try:
        return _FIELD[api]
    except (KeyError, TypeError):
        known = ", ".join(_FIELD)
        raise UnknownApiError(f"unknown api {api!r}; known: {known}", path="api") from None


def path_of(api: Api, location: Location) -> str:
    """`(3, "content", 1)` as the API writes it: `messages.3.content.1`."""
    return ".".join([_FIELD[api], *map(str, location)])


def split_request(
    history: object, api: Api, request: Mapping[str, object] | None
) -> tuple[list[Any], Mapping[str, Any]]:
    """The items of a history and the rest of the request that would carry them.

    A list comes back as itself.  A body's own fields are the request; `request` overrides them.

    Raises:
        HistoryError: `history` is neither a list nor a body with the API's field.
    """
    name = field_of(api)
    if request is not None and not isinstance(request, Mapping):
        raise HistoryError("the request is a mapping of its other fields", path="request")
    given = dict(request) if request else {}
    if history.__class__ is list:
        return history, given
    body = history
    if not isinstance(body, Mapping) and hasattr(body, "model_dump"):
        body = to_plain(body, (), api)
    if isinstance(body, Mapping):
        if name not in body:
            raise HistoryError(f"the request body has no {name}", path=name)
        given = {**{k: v for k, v in body.items() if k != name}, **given}
        history = body[name]
        if api == "openai.responses" and isinstance(history, str):
            return [{"role": "user", "content": history}], given
    if history.__class__ is list:
        return history, given
    if isinstance(history, Sequence) and not isinstance(history, (str, bytes, bytearray)):
        return list(history), given
    raise HistoryError(
        f"a history is a list or a request body, not {type(history).__name__}", path=name
    )


def to_plain(value: Any, location: Location, api: Api) -> Any:
    """`value` as plain dicts and lists; itself where it already is.

    Raises:
        HistoryError: something in it is no JSON and no SDK object, or is nested too deep.
    """
    return value if is_plain(value) else _converted(value, location, api, 0)


def is_plain(value: Any) -> bool:
    """True where `value` is sound and holds only dicts, lists and JSON scalars of these classes."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            return False
        if item.__class__ is dict:
            for key in item:
                if key.__class__ is not str or not (key.isascii() or encodable(key)):
                    return False
            inner: Iterable[Any] = item.values()
        elif item.__class__ is list:
            inner = item
        else:
            inner = (item,)
        depth += 1
        for part in inner:
            kind = part.__class__
            if kind is str:
                if not (part.isascii() or encodable(part)):
                    return False
            elif kind is dict or kind is list:
                stack.append((part, depth))
            elif kind is float:
                if not math.isfinite(part):
                    return False
            elif not (kind is int or kind is bool or part is None):
                return False
    return True


def _converted(value: Any, location: Location, api: Api, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth > MAX_DEPTH:
        raise _unsound(f"nested more than {MAX_DEPTH} levels deep", location[:8], api)
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        value = dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _unsound(f"the key {key!r} is no string", location, api)
            plain[key] = _converted(inner, (*location, key), api, depth + 1)
        return plain
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [
            _converted(inner, (*location, position), api, depth + 1)
            for position, inner in enumerate(value)
        ]
    raise _unsound(f"{type(value).__name__} is no JSON value", location, api)


def _unsound(message: str, location: Location, api: Api) -> HistoryError:
    return HistoryError(message, path=path_of(api, location), rule="GEN-JSON-1")


def sound(value: Any) -> bool:
    """True where every part of a plain value is JSON that an API takes."""
    return next(unsound(value), None) is None


class Unsound:
    """One part of a value that is no JSON: where, why, and whether it is only a lone surrogate."""

    __slots__ = ("location", "message", "surrogate")

    def __init__(self, location: Location, message: str, surrogate: bool = False) -> None:
        self.location = location
        self.message = message
        self.surrogate = surrogate


def unsound(value: Any, location: Location = ()) -> Any:
    """Yield an `Unsound` for each part of a plain value that breaks GEN-JSON-1, in order."""
    stack: list[tuple[Any, Location, int]] = [(value, location, 0)]
    while stack:
        item, where, depth = stack.pop()
        kind = item.__class__
        if kind is str:
            if not item.isascii() and not encodable(item):
                yield Unsound(where, "lone surrogate in a string", surrogate=True)
        elif kind is float:
            if not math.isfinite(item):
                yield Unsound(where, f"{item!r} is no JSON number")
        elif kind is dict or kind is list:
            if depth > MAX_DEPTH:
                yield Unsound(where[:8], f"nested more than {MAX_DEPTH} levels deep")
                continue
            if kind is dict:
                for key in item:
                    if not key.isascii() and not encodable(key):
                        yield Unsound((*where, key), "lone surrogate in a key")
                pairs = list(item.items())
            else:
                pairs = list(enumerate(item))
            stack.extend((inner, (*where, key), depth + 1) for key, inner in reversed(pairs))


def encodable(text: str) -> bool:
    """False where `text` holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(value: Any) -> Any:
    """A plain value with each lone surrogate as U+FFFD; parts without one are shared."""
    if value.__class__ is str:
        if value.isascii() or encodable(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if value.__class__ is dict:
        return {key: replace_surrogates(inner) for key, inner in value.items()}
    if value.__class__ is list:
        return [replace_surrogates(inner) for inner in value]
    return value
