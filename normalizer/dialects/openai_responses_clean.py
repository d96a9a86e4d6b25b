"""One item made right for itself: fields, parts, arguments, statuses, ids that may go."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from stopkit.normalizer.dialects.openai_responses_shapes import (
    FIELDS,
    ID_OPTIONAL,
    MAX_ID,
    MAX_OUTPUT,
    OUTPUT_PARTS,
    Issue,
    Kind,
    is_name,
    is_object_text,
    type_of,
)
from stopkit.normalizer.result import ChangeKind
from stopkit.normalizer.wording import made_up
from stopkit.outcome import Unknown

Item = dict[str, Any]
Edit = tuple[ChangeKind, str, tuple[str | int, ...], str, object]
"""Kind, rule, place below the item, note, what left."""

FRAGMENT: Final = "incomplete_arguments"
"""The key under which call arguments stand that never became a JSON object (OAI-SHAPE-4)."""

_LEAVES: Final = {
    "OAI-REAS-3": "Encrypted reasoning that is not whole.",
    "OAI-STORE-1": "Under store: false nothing on the server can be referred to.",
    "OAI-COMP-1": "A compaction without its content.",
    "OAI-HOST-1": "A provider-run call that never ended: nobody can finish it.",
}


@dataclass(slots=True)
class Cleaned:
    """An item after its repair; `leaves` names the rule and the reason where it cannot stay."""

    item: Item
    edits: list[Edit] = field(default_factory=list)
    leaves: tuple[str, str] | None = None


def clean(item: Item, kind: Kind, issues: list[Issue]) -> Cleaned:
    """Mend what `inspect` found wrong with an item, as far as the item alone can tell.

    GEN-SHAPE-1 is the caller's, and so are the rules of call ids.
    """
    rules = {rule for rule, _, _ in issues}
    done = Cleaned({**item})
    for rule in _LEAVES:
        if rule in rules and not _only_an_id(rule, kind):
            if rule == "OAI-COMP-1" and kind == "trigger":
                continue
            done.leaves = (rule, _LEAVES[rule])
            return done
    for rule, mend in _MENDS.items():
        if rule in rules:
            mend(done, kind)
            if done.leaves is not None:
                return done
    return done


def strip_id(done: Cleaned, rule: str, note: str) -> None:
    """Take the item's id, or the item where its type needs one."""
    type_ = type_of(done.item)
    if type_ not in ID_OPTIONAL:
        done.leaves = (rule, f"{note} Its type needs one, so the item left.")
        return
    done.edits.append(("removed", rule, ("id",), note, done.item.pop("id")))


def is_fragment(arguments: object) -> bool:
    """Whether call arguments hold a fragment that this module put there."""
    if not isinstance(arguments, str) or FRAGMENT not in arguments:
        return False
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and list(parsed) == [FRAGMENT]


def _only_an_id(rule: str, kind: Kind) -> bool:
    return rule == "OAI-STORE-1" and kind not in ("reasoning", "reference")


def _fields(done: Cleaned, kind: Kind) -> None:
    known = FIELDS[type_of(done.item)]
    for name in list(done.item):
        if name not in known or (name == "status" and kind in ("user", "system")):
            note = "A field that this item does not have."
            done.edits.append(("removed", "OAI-SHAPE-3", (name,), note, done.item.pop(name)))


def _parts(done: Cleaned, kind: Kind) -> None:
    content = list(done.item["content"])
    own = "output_text" if kind == "assistant" else "input_text"
    for m, part in enumerate(content):
        type_ = part["type"]
        wrong = (
            ("input_text", "text") if kind == "assistant" else ("output_text", "text", "refusal")
        )
        if type_ not in wrong:
            continue
        if kind == "assistant":
            content[m] = {**part, "type": own}
        else:
            content[m] = {"type": own, "text": part["refusal" if type_ == "refusal" else "text"]}
        note = f"A {type_} part of this role is {own}."
        done.edits.append(("rewritten", "OAI-SHAPE-2", ("content", m), note, part))
    done.item["content"] = content


def _values(done: Cleaned, kind: Kind) -> None:
    item = done.item
    if kind == "output":
        _output(done)
        return
    if not is_name(item.get("name")):
        old = item.get("name")
        item["name"] = _safe_name(old)
        note = "A tool name that the API does not take."
        done.edits.append(("renamed", "OAI-SHAPE-1", ("name",), note, old))
    if type_of(item) == "custom_tool_call" and not isinstance(item.get("input"), str):
        _serialise(done, "input", "")
    elif type_of(item) == "function_call" and not isinstance(item.get("arguments"), str):
        _serialise(done, "arguments", "{}")
        if not is_object_text(item["arguments"]):
            _arguments(done, kind)


def _serialise(done: Cleaned, name: str, nothing: str) -> None:
    old = done.item.get(name)
    done.item[name] = nothing if old is None or old == [] else _json(old)
    note = f"{name} is a text: written as one."
    done.edits.append(("rewritten", "OAI-SHAPE-1", (name,), note, old))


def _arguments(done: Cleaned, kind: Kind) -> None:
    del kind
    old = done.item.get("arguments")
    if not isinstance(old, str):
        return
    whole = _whole_object(old)
    done.item["arguments"] = whole if whole is not None else _json({FRAGMENT: old})
    note = (
        "The arguments were no JSON object and say nothing else: an empty one, or the one in them."
        if whole is not None
        else "The arguments never became a JSON object: kept as they are, under a key that says so."
    )
    done.edits.append(("rewritten", "OAI-SHAPE-4", ("arguments",), note, old))


def _whole_object(text: str) -> str | None:
    """The JSON object that a text means, as text."""
    if text.strip() in ("", "null", "[]"):
        return "{}"
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and is_object_text(inner) else None


def _output(done: Cleaned) -> None:
    old = done.item.get("output")
    note = "An output is a text, or a list of input parts."
    if isinstance(old, str):
        done.item["output"] = old[:MAX_OUTPUT]
        note = f"An output has at most {MAX_OUTPUT} characters: cut there."
    elif isinstance(old, list):
        done.item["output"] = [_output_part(part) for part in old]
    else:
        done.item["output"] = "" if old is None else _json(old)
    done.edits.append(("rewritten", "OAI-SHAPE-1", ("output",), note, old))


def _output_part(part: Any) -> Any:
    match part:
        case {"type": str(type_)} if type_ in OUTPUT_PARTS:
            return part
        case {"type": "text" | "output_text", "text": str(text)} | str(text):
            return {"type": "input_text", "text": text}
        case _:
            return {"type": "input_text", "text": _json(part)}


def _ids(done: Cleaned, kind: Kind) -> None:
    """A foreign or long id goes; under store: false every one on a call or message."""
    del kind
    id_ = done.item.get("id")
    if isinstance(id_, str):
        strip_id(done, "OAI-ID-2", "An id that does not begin as its type's ids do.")


def _long_id(done: Cleaned, kind: Kind) -> None:
    del kind
    id_ = done.item.get("id")
    if isinstance(id_, str) and len(id_) > MAX_ID:
        strip_id(done, "OAI-ID-3", "An id of more than 64 characters.")


def _stateless_id(done: Cleaned, kind: Kind) -> None:
    del kind
    if "id" in done.item:
        strip_id(done, "OAI-STORE-1", "Under store: false no item of the server can be named.")


def _patch_status(done: Cleaned, kind: Kind) -> None:
    old = done.item.get("status")
    if kind == "call":
        # The weaker of the two words: the call was made, and nothing more is said.
        done.item["status"] = "in_progress"
    else:
        done.item["status"] = "failed"
        if not done.item.get("output"):
            said = Unknown(reason=f"the recorded status is {old!r:.100}")
            done.item["output"] = made_up(said)
    note = "A status that the API does not know."
    done.edits.append(("rewritten", "OAI-PATCH-1", ("status",), note, old))


def _program_status(done: Cleaned, kind: Kind) -> None:
    if kind != "program_output":
        return
    note = "A status that the API does not know."
    old = done.item.get("status")
    done.item["status"] = "incomplete"
    done.edits.append(("rewritten", "OAI-PROG-1", ("status",), note, old))


_MENDS: Final[dict[str, Callable[[Cleaned, Kind], None]]] = {
    "OAI-SHAPE-1": _values,
    "OAI-SHAPE-2": _parts,
    "OAI-SHAPE-3": _fields,
    "OAI-SHAPE-4": _arguments,
    "OAI-ID-2": _ids,
    "OAI-ID-3": _long_id,
    "OAI-STORE-1": _stateless_id,
    "OAI-PATCH-1": _patch_status,
    "OAI-PROG-1": _program_status,
}


def _safe_name(name: object) -> str:
    given = name.strip() if isinstance(name, str) else ""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in given)[:128]
    return safe or "unnamed_tool"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
