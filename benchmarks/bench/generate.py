"""Synthetic agent histories in three wire formats, with seeded damage.

One turn is a question, an answer that makes two parallel calls, their two results of about 500
bytes each, and a closing answer: 4 messages for anthropic.messages, 5 for openai.chat, 7 items for
openai.responses.

Everything is parsed from JSON, as a store would give it: no string is shared or interned, so that
nobody's comparison is a pointer comparison by luck.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import orjson

Api: TypeAlias = Literal["anthropic.messages", "openai.responses", "openai.chat"]
Item: TypeAlias = dict[str, Any]
Damage: TypeAlias = Literal["missing", "orphan", "duplicate", "reordered"]

APIS: Final[tuple[Api, ...]] = ("anthropic.messages", "openai.chat", "openai.responses")
KINDS: Final[tuple[Damage, ...]] = ("missing", "orphan", "duplicate", "reordered")
PER_TURN: Final[dict[Api, int]] = {
    "anthropic.messages": 4,
    "openai.chat": 5,
    "openai.responses": 7,
}

_ID: Final[dict[Api, str]] = {
    "anthropic.messages": "toolu_01",
    "openai.chat": "call_",
    "openai.responses": "call_",
}
_PROSE: Final = (
    "config parser returns none when section is missing see line and retry after build "
    "failed with exit status warning deprecated import of module path test passed in seconds"
)
_WORDS: Final = _PROSE.split()


def history(
    api: Api,
    size: int,
    damage: float,
    *,
    seed: int = 7,
    kinds: tuple[Damage, ...] = KINDS,
) -> list[Item]:
    """At most `size` messages or items, whole turns; `damage` is the share of turns damaged."""
    return parsed(_history(api, size, damage, random.Random(seed), kinds))


def turn(api: Api, index: int, calls: int = 2) -> list[Item]:
    """One clean turn.  With one call it has 4 messages or items in every format."""
    rng = random.Random(index)
    results = [(_call_id(api, index, call), _prose(rng, 500)) for call in range(calls)]
    out: list[Item] = []
    _BUILD[api](out, index, [call_id for call_id, _ in results], results, None, _prose(rng, 120))
    if api == "openai.responses" and calls == 1:
        del out[1]  # the words before the call
    return parsed(out)


def corpus(api: Api, size: int, damage: float, *, turns: int = 10, seed: int = 7) -> bytes:
    """About `size` bytes of JSONL, one conversation a line under the field `messages`/`input`."""
    field = "input" if api == "openai.responses" else "messages"
    rng = random.Random(seed)
    lines: list[bytes] = []
    total = 0
    while total < size:
        items = _history(api, turns * (PER_TURN[api] + 1), damage, rng, KINDS)
        line = orjson.dumps({"id": f"conversation-{len(lines)}", field: items})
        lines.append(line)
        total += len(line) + 1
    return b"\n".join(lines) + b"\n"


def parsed(items: list[Item]) -> list[Item]:
    """The items as a JSON parser gives them."""
    fresh: list[Item] = orjson.loads(orjson.dumps(items))
    return fresh


def _history(
    api: Api, size: int, damage: float, rng: random.Random, kinds: tuple[Damage, ...]
) -> list[Item]:
    build = _BUILD[api]
    texts = [_prose(rng, rng.randint(440, 560)) for _ in range(257)]
    # Damage may add one message to a turn; the whole must stay within `size`.
    room = size - PER_TURN[api] - (1 if damage else 0)
    # One turn of so many is damaged, so that a short history has its share too.
    every = round(1 / damage) if damage else 0
    hit = -1
    out: list[Item] = []
    index = 0
    while len(out) <= room:
        if every and index % every == 0:
            hit = index + rng.randrange(every)
        kind = rng.choice(kinds) if index == hit else None
        ids = [_call_id(api, index, call) for call in range(2)]
        results = [(call_id, f"{call_id} {rng.choice(texts)}") for call_id in ids]
        between = None
        if kind == "missing":
            results.pop(rng.randrange(2))
        elif kind == "orphan":
            ghost = f"{_ID[api]}ghost{index:015d}"
            results.insert(rng.randrange(3), (ghost, f"{ghost} {rng.choice(texts)}"))
        elif kind == "duplicate":
            again = rng.choice(ids)
            results.append((again, f"{again} again {rng.choice(texts)}"))
        elif kind == "reordered":
            between = f"wait, look at part {index} too"
        build(out, index, ids, results, between, rng.choice(texts)[:120])
        index += 1
    return out


def _call_id(api: Api, index: int, call: int) -> str:
    return f"{_ID[api]}{index:020d}{'abcdefgh'[call]}"


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:size].strip()


def _arguments(index: int) -> Iterator[tuple[str, Item]]:
    yield "read_file", {"path": f"src/part{index}.py", "limit": 40}
    yield "grep", {"pattern": f"def part{index}"}


def _anthropic(
    out: list[Item],
    index: int,
    ids: list[str],
    results: list[tuple[str, str]],
    between: str | None,
    prose: str,
) -> None:
    def text(words: str) -> Item:
        return {"type": "text", "text": words}

    calls = [
        {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        for call_id, (name, arguments) in zip(ids, _arguments(index), strict=False)
    ]
    out.append({"role": "user", "content": [text(f"question {index}: {prose}")]})
    out.append({"role": "assistant", "content": [text(f"Looking at part {index}."), *calls]})
    if between is not None:
        out.append({"role": "user", "content": [text(between)]})
    blocks = [
        {"type": "tool_result", "tool_use_id": call_id, "content": [text(result)]}
        for call_id, result in results
    ]
    out.append({"role": "user", "content": blocks})
    out.append({"role": "assistant", "content": [text(f"answer {index}: {prose}")]})


def _chat(
    out: list[Item],
    index: int,
    ids: list[str],
    results: list[tuple[str, str]],
    between: str | None,
    prose: str,
) -> None:
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
        }
        for call_id, (name, arguments) in zip(ids, _arguments(index), strict=False)
    ]
    out.append({"role": "user", "content": f"question {index}: {prose}"})
    out.append({"role": "assistant", "content": f"Looking at part {index}.", "tool_calls": calls})
    if between is not None:
        out.append({"role": "user", "content": between})
    for call_id, result in results:
        out.append({"role": "tool", "tool_call_id": call_id, "content": result})
    out.append({"role": "assistant", "content": f"answer {index}: {prose}"})


def _responses(
    out: list[Item],
    index: int,
    ids: list[str],
    results: list[tuple[str, str]],
    between: str | None,
    prose: str,
) -> None:
    def user(words: str) -> Item:
        return {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": words}],
        }

    def assistant(mark: str, words: str) -> Item:
        return {
            "type": "message",
            "id": f"msg_{index:020d}{mark}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": words, "annotations": []}],
        }

    out.append(user(f"question {index}: {prose}"))
    out.append(assistant("a", f"Looking at part {index}."))
    for call_id, (name, arguments) in zip(ids, _arguments(index), strict=False):
        out.append(
            {
                "type": "function_call",
                "id": f"fc_{call_id[5:]}",
                "call_id": call_id,
                "name": name,
                "arguments": orjson.dumps(arguments).decode(),
                "status": "completed",
            }
        )
    if between is not None:
        out.append(user(between))
    for call_id, result in results:
        out.append({"type": "function_call_output", "call_id": call_id, "output": result})
    out.append(assistant("b", f"answer {index}: {prose}"))


_BUILD: Final = {
    "anthropic.messages": _anthropic,
    "openai.chat": _chat,
    "openai.responses": _responses,
}
