"""What one Chat Completions message must look like, whatever stands around it.

`flaws(message, at)` judges the message at index `at` alone; pairing is `openai_chat_check`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, cast

import orjson

from stopkit.normalizer.result import Violation
from stopkit.normalizer.rules import RULES

Item: TypeAlias = dict[str, Any]

Place: TypeAlias = tuple[int, ...]
"""Where in its message a thing stands: `()` the message, `(0, j)` part `j`, `(1, j)` call `j`."""

ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MAX_ID: Final = 40
MAX_NAME: Final = 64
NAME: Final = "^[a-zA-Z0-9_-]{1,64}$"
good_name: Final = re.compile(NAME[1:-1]).fullmatch

_FIELDS: Final = ("content", "tool_calls")
_RULE_IDS: Final = tuple(RULES)
_RANK: Final = {rule: rank for rank, rule in enumerate(RULES)}
_PAYLOAD: Final[dict[str, type]] = {
    "text": str,
    "refusal": str,
    "image_url": dict,
    "input_audio": dict,
    "file": dict,
}
"""The content parts that are known: the payload stands in a field of the type's own name."""


Scope: TypeAlias = Literal["prefix", "send"]


class Flaw(NamedTuple):
    """A violation before it is put in order: flaws compare by position, then by rule."""

    at: int
    place: Place
    rank: int
    message: str
    scope: Scope

    @property
    def rule(self) -> str:
        return _RULE_IDS[self.rank]


def flaw(
    rule: str,
    at: int,
    message: str,
    place: Place = (),
    scope: Scope = "prefix",
) -> Flaw:
    return Flaw(at, place, _RANK[rule], message, scope)


def in_order(found: Iterable[Flaw]) -> list[Violation]:
    return [
        Violation(one.rule, path(one.at, one.place), one.message, RULES[one.rule].grade, one.scope)
        for one in sorted(found)
    ]


def path(at: int, place: Place = ()) -> str:
    """`messages.3`, `messages.3.content.1`, `messages.3.tool_calls.0`."""
    if not place:
        return f"messages.{at}"
    return f"messages.{at}.{_FIELDS[place[0]]}.{place[1]}"


def shown(value: str) -> str:
    """An id or name as a message may show it: bounded, and fit to be printed."""
    text = value if len(value) <= 100 else value[:100] + "…"
    return text.encode("utf-8", "replace").decode("utf-8")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parsed(text: str) -> object:
    """The value of a JSON text.

    orjson also refuses what JSON's grammar allows (numbers beyond a double, escaped lone
    surrogates), so its refusal is not the last word.

    Raises:
        ValueError: `text` is no JSON, or is nested too deep to tell.
    """
    try:
        return cast("object", orjson.loads(text))
    except orjson.JSONDecodeError:
        pass
    try:
        return cast("object", json.loads(text, parse_constant=_no_constant))
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_json_object(text: str) -> bool:
    try:
        return isinstance(parsed(text), dict)
    except ValueError:
        return False


def block_end(items: Sequence[Any], at: int) -> int:
    """The index behind the tool messages that follow the assistant message at `at`."""
    stop = at + 1
    while stop < len(items):
        message = items[stop]
        if not isinstance(message, dict) or message.get("role") != "tool":
            break
        stop += 1
    return stop


def ids_of(message: Any) -> set[str]:
    """The call ids of an assistant message; none for anything else."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return set()
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return set()
    ids = (call.get("id") for call in calls if isinstance(call, dict))
    return {call_id for call_id in ids if isinstance(call_id, str)}


def plainly_fine(message: Any) -> bool:
    """True for the commonest messages without flaws; what is False is for `flaws` to say."""
    if message.__class__ is not dict:
        return False
    content = message.get("content")
    if content.__class__ is not str or not content.isascii():
        return False
    match message.get("role"):
        case "tool":
            call_id = message.get("tool_call_id")
            if call_id.__class__ is not str or not call_id.isascii():
                return False
            return len(message) == 3 and 0 < len(call_id) <= MAX_ID
        case "user":
            return len(message) == 2
        case "assistant":
            return len(message) == 2 and content != ""
        case _:
            return False


def flaws(message: Any, at: int) -> list[Flaw]:
    """Everything that is wrong with one message by itself, in no particular order."""
    if not isinstance(message, dict):
        text = f"Invalid type for '{path(at)}': expected an object."
        return [flaw("GEN-SHAPE-1", at, text)]
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(f"'{name}'" for name in sorted(ROLES))
        text = f"Invalid 'messages[{at}].role'. Supported values are: {known}."
        return [flaw("GEN-SHAPE-1", at, text)]
    found = _content_flaws(message, role, at)
    if message.get("name") is not None and not isinstance(message["name"], str):
        found.append(_wrong_type(at, "name", "a string"))
    if role == "assistant":
        found += _assistant_flaws(message, at)
    elif role == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str | None):
            found.append(_wrong_type(at, "tool_call_id", "a string"))
        elif call_id is not None:
            found += _length_flaws(call_id, at, (), f"messages[{at}].tool_call_id")
    return found


def _wrong_type(at: int, field: str, expected: str, place: Place = ()) -> Flaw:
    text = f"Invalid type for '{path(at, place)}.{field}': expected {expected}."
    return flaw("GEN-SHAPE-1", at, text, place)


def _content_flaws(message: Item, role: str, at: int) -> list[Flaw]:
    content = message.get("content")
    if isinstance(content, str):
        return []
    if content is None:
        if role == "tool":
            return [flaw("CHAT-TOOL-1", at, f"Missing 'messages[{at}].content' of a tool message.")]
        if role in ("assistant", "function"):
            return []
        return [_wrong_type(at, "content", "a string or a list of parts")]
    if not isinstance(content, list):
        return [_wrong_type(at, "content", "a string or a list of parts")]
    found: list[Flaw] = []
    for j, part in enumerate(content):
        place = (0, j)
        if not isinstance(part, dict):
            text = f"Invalid type for '{path(at, place)}': expected an object."
            found.append(flaw("GEN-SHAPE-1", at, text, place))
            continue
        kind = part.get("type")
        if not isinstance(kind, str):
            found.append(_wrong_type(at, "type", "a string", place))
            continue
        payload = _PAYLOAD.get(kind)
        if payload is not None and not isinstance(part.get(kind), payload):
            expected = "a string" if payload is str else "an object"
            found.append(_wrong_type(at, kind, expected, place))
        if role == "tool" and kind != "text":
            text = f"Invalid value at '{path(at, place)}.type': '{shown(kind)}'. Supported values "
            found.append(flaw("CHAT-TOOL-1", at, text + "are: 'text'.", place))
    return found


def _assistant_flaws(message: Item, at: int) -> list[Flaw]:
    found: list[Flaw] = []
    if not isinstance(message.get("refusal"), str | None):
        found.append(_wrong_type(at, "refusal", "a string"))
    found += [
        _wrong_type(at, field, "an object")
        for field in ("audio", "function_call")
        if not isinstance(message.get(field), dict | None)
    ]
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    if calls is not None and not isinstance(calls, list):
        found.append(_wrong_type(at, "tool_calls", "a list"))
    elif "tool_calls" in message and not calls:
        error = RULES["CHAT-EMPTY-1"].error.format(n=at)
        found.append(flaw("CHAT-EMPTY-1", at, error))
    if isinstance(legacy, dict):
        if calls:
            mixed = f"'messages[{at}]' has both 'function_call' and 'tool_calls'."
            found.append(flaw("CHAT-FN-1", at, mixed))
        found += _function_flaws(legacy, at, ())
    called = calls or legacy is not None
    if not (called or any(message.get(field) for field in ("content", "refusal", "audio"))):
        found.append(flaw("CHAT-EMPTY-2", at, RULES["CHAT-EMPTY-2"].error))
    if isinstance(calls, list):
        found += _calls_flaws(calls, at)
    return found


def _calls_flaws(calls: list[Any], at: int) -> list[Flaw]:
    found: list[Flaw] = []
    seen: set[str] = set()
    for j, call in enumerate(calls):
        place = (1, j)
        if not isinstance(call, dict):
            text = f"Invalid type for '{path(at, place)}': expected an object."
            found.append(flaw("GEN-SHAPE-1", at, text, place))
            continue
        kind = call.get("type")
        if not isinstance(kind, str):
            found.append(_wrong_type(at, "type", "a string", place))
        found += _id_flaws(call.get("id"), seen, at, j)
        if kind in ("function", "custom"):
            body = call.get(kind)
            if not isinstance(body, dict):
                found.append(_wrong_type(at, kind, "an object", place))
            elif kind == "function":
                found += _function_flaws(body, at, place)
            else:
                found += [
                    _wrong_type(at, f"custom.{field}", "a string", place)
                    for field in ("name", "input")
                    if not isinstance(body.get(field), str)
                ]
    return found


def _id_flaws(call_id: Any, seen: set[str], at: int, j: int) -> list[Flaw]:
    place = (1, j)
    if not isinstance(call_id, str | None):
        return [_wrong_type(at, "id", "a string", place)]
    if call_id is None:
        call_id = ""
    if call_id in seen:
        return [flaw("CHAT-ID-1", at, twice(call_id, at), place)]
    seen.add(call_id)
    return _length_flaws(call_id, at, place, f"messages[{at}].tool_calls[{j}].id")


def _length_flaws(call_id: str, at: int, place: Place, field: str) -> list[Flaw]:
    if 0 < len(call_id) <= MAX_ID:
        return []
    if call_id:
        text = f"string too long. Expected a string with maximum length {MAX_ID}"
    else:
        text = "empty string. Expected a string with minimum length 1"
    text = f"Invalid '{field}': {text}, but got one with length {len(call_id)}."
    return [flaw("CHAT-ID-1", at, text, place)]


def twice(call_id: str, at: int) -> str:
    return f"Duplicate value for 'tool_call_id' of {shown(call_id)} in message[{at}]"


def _function_flaws(body: Item, at: int, place: Place) -> list[Flaw]:
    found: list[Flaw] = []
    name = body.get("name")
    if not isinstance(name, str) or not good_name(name):
        got = f"'{shown(name)}'" if isinstance(name, str) else "no string"
        text = f"Invalid function name at '{path(at, place)}': {got}. Expected a string that "
        found.append(flaw("CHAT-NAME-1", at, text + f"matches the pattern '{NAME}'.", place))
    arguments = body.get("arguments")
    if not isinstance(arguments, str) or not is_json_object(arguments):
        text = f"{path(at, place)}: {RULES['CHAT-ARG-1'].error}"
        found.append(flaw("CHAT-ARG-1", at, text, place))
    return found
