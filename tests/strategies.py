"""Histories for property tests: built valid, then damaged by composed operators.

`valid_history(api)` draws well-formed prefixes: they may end in open calls or the model's turn.
`damaged_history(api)` draws one to six damages on top.  Every recorded text is unique in a
history, and none is part of another, so that a lost one is seen; only damages that copy something
word for word repeat one.  `texts_of` lists them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from hypothesis import strategies as st

Item = dict[str, Any]
T = TypeVar("T")
Damage = Callable[[list[Item], "Pick"], None]
"""Damages a history in place; does nothing where it finds no target."""

_PIXEL = "iVBORw0KGgo="
_SEEDS = st.integers(0, 2**40)


def valid_history(api: str) -> st.SearchStrategy[list[Item]]:
    builders = _BUILDERS[api]
    return st.lists(st.tuples(st.sampled_from(builders), _SEEDS), min_size=1, max_size=5).map(
        lambda turns: _build(api, turns)
    )


def damaged_history(api: str) -> st.SearchStrategy[list[Item]]:
    damage = st.tuples(st.sampled_from(_DAMAGES[api]), _SEEDS)
    return st.tuples(valid_history(api), st.lists(damage, min_size=1, max_size=6)).map(
        lambda drawn: _damage(*drawn)
    )


def requests(api: str) -> st.SearchStrategy[Item]:
    """The rest of a request, as far as rules depend on it; mostly none."""
    return st.sampled_from([{}, {}, *_REQUESTS[api]])


def texts_of(api: str, items: list[Item]) -> list[str]:
    """Every text of a user, the model or a result that is not blank, in order."""
    texts: list[str] = []
    for item in items:
        if api == "openai.responses":
            texts += _texts_in_item(item)
        else:
            texts += _texts_in(item.get("content"))
            texts += _texts_in(item.get("refusal"))
    return [text for text in texts if text.strip()]


def _texts_in(content: Any) -> Iterator[str]:
    match content:
        case str():
            yield content
        case list():
            for part in content:
                yield from _texts_in(part)
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            yield text
        case {"type": "refusal", "refusal": str(text)}:
            yield text
        case {"type": "tool_result" | "mcp_tool_result", "content": inner}:
            yield from _texts_in(inner)
        case _:
            pass


def _texts_in_item(item: Item) -> Iterator[str]:
    match item:
        case {"type": "local_shell_call_output", "output": str(output)}:
            yield _stdout(output)
        case {"type": "shell_call_output", "output": list(parts)}:
            yield from (str(part.get("stdout", "")) for part in parts)
        case {"type": "program_output", "result": str(text)}:
            yield text
        case _:
            yield from _texts_in(item.get("content"))
            yield from _texts_in(item.get("output"))


def _stdout(output: str) -> str:
    """The text of a local shell's output: JSON as the tool writes it, or the words themselves."""
    try:
        return str(json.loads(output)["stdout"])
    except (ValueError, TypeError, KeyError):
        return output


class Pick:
    """Choices out of one drawn number, so that a whole damage or turn shrinks as one."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number
        self._counter = count(1)

    def below(self, limit: int) -> int:
        self._seed, choice = divmod(self._seed, limit)
        return choice

    def chance(self) -> bool:
        return self.below(2) == 1

    def one(self, options: list[T]) -> T:
        return options[self.below(len(options))]

    def order(self, options: list[T]) -> list[T]:
        rest = list(options)
        return [rest.pop(self.below(len(rest))) for _ in options]

    def text(self, kind: str) -> str:
        return f"{kind} <{self._number}-{next(self._counter)}>"

    def id(self, prefix: str) -> str:
        return f"{prefix}{self._number}x{next(self._counter)}"


Turn = Callable[[Pick, bool], list[Item]]
"""Builds one turn from its choices; the flag says that it is the last and may stay open."""


def _build(api: str, turns: list[tuple[Turn, int]]) -> list[Item]:
    items: list[Item] = []
    for number, (turn, seed) in enumerate(turns):
        items += turn(Pick(seed, number), number == len(turns) - 1)
    if api == "anthropic.messages":
        _keep_markers(items, 4)
    return items


def _damage(items: list[Item], damages: list[tuple[Damage, int]]) -> list[Item]:
    items = copy.deepcopy(items)
    for number, (damage, seed) in enumerate(damages, start=100):
        damage(items, Pick(seed, number))
    return items


# --- Anthropic Messages: valid turns -------------------------------------------------------------


def _text(text: str) -> Item:
    return {"type": "text", "text": text}


def _user(content: Any) -> Item:
    return {"role": "user", "content": content}


def _model(content: Any) -> Item:
    return {"role": "assistant", "content": content}


def _image() -> Item:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL},
    }


def _document() -> Item:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}


def _thinking(pick: Pick) -> list[Item]:
    signed = {"type": "thinking", "thinking": pick.text("thought"), "signature": pick.id("sig")}
    return pick.one(
        [
            [],
            [signed],
            [{**signed, "thinking": ""}],
            [{"type": "redacted_thinking", "data": pick.id("sealed")}],
            [signed, {"type": "redacted_thinking", "data": pick.id("sealed")}],
        ]
    )


def _ask(pick: Pick) -> list[Item]:
    text = pick.text("ask")
    marked = {**_text(text), "cache_control": {"type": "ephemeral"}}
    return pick.one(
        [
            [_user(text)],
            [_user([_text(text)])],
            [_user([marked])],
            [_user([_image(), _text(text), _document()])],
            [_user(text), _user([_text(pick.text("ask"))])],
            [_user([_text(text), {"type": "x_attachment", "ref": "a1"}])],
        ]
    )


def _say(pick: Pick) -> list[Item]:
    return [_model(pick.one([pick.text("answer"), [_text(pick.text("answer"))]]))]


def _call(pick: Pick, **more: Any) -> Item:
    arguments = pick.one([{}, {"path": "a.txt"}, {"n": [1, {"deep": None}]}])
    return {
        "type": "tool_use",
        "id": pick.id("toolu_"),
        "name": pick.one(["read_file", "bash"]),
        "input": arguments,
        **more,
    }


def _result(pick: Pick, call: Item) -> Item:
    result: Item = {"type": "tool_result", "tool_use_id": call["id"]}
    if "toolset_name" in call:
        result["toolset_name"] = call["toolset_name"]
    text = pick.text("result")
    more: Item = pick.one(
        [
            {"content": text},
            {"content": [_text(text)]},
            {"content": [_text(text), _image()]},
            {},
            {"content": text, "is_error": True},
            {"content": [_text(text), _text(pick.text("result"))], "is_error": True},
            {"content": [_document(), {"type": "tool_reference", "tool_name": "bash"}]},
            {"content": text, "cache_control": {"type": "ephemeral"}},
            {"content": text, "is_error": False},
        ]
    )
    return {**result, **more}


def _reply(pick: Pick, calls: list[Item], *, only_results: bool = False) -> list[Item]:
    """The results in any order, over one message or two, with or without text behind them."""
    results = pick.order([_result(pick, call) for call in calls])
    cut = pick.below(len(results))
    messages = [results[:cut], results[cut:]] if cut else [results]
    if not only_results:
        messages[-1] = messages[-1] + pick.one([[], [_text(pick.text("ask"))], [_image()]])
    return [_user(blocks) for blocks in messages]


def _plain(pick: Pick, last: bool) -> list[Item]:
    asked = _ask(pick)
    return asked if last and pick.chance() else asked + _say(pick)


def _thoughtful(pick: Pick, last: bool) -> list[Item]:
    del last
    return [*_ask(pick), _model([*_thinking(pick), _text(pick.text("answer"))])]


def _tool_turn(pick: Pick, last: bool) -> list[Item]:
    calls = [_call(pick) for _ in range(1 + pick.below(3))]
    words = pick.one([[], [_text(pick.text("answer"))]])
    messages = [_model([*_thinking(pick), *words, *calls])]
    if len(calls) > 1 and pick.chance():
        messages = [_model([*words, *calls[:1]]), _model(calls[1:])]
    asked = [*_ask(pick), *messages]
    if last and pick.chance():
        open_calls = pick.below(len(calls) + 1)
        if open_calls:
            known = calls[open_calls:]
            return asked + (_reply(pick, known, only_results=True) if known else [])
    return asked + _reply(pick, calls) + (_say(pick) if not last or pick.chance() else [])


def _same_id_again(pick: Pick, last: bool) -> list[Item]:
    """An id that other turns of the history use too: no violation."""
    del last
    call = {**_call(pick), "id": "toolu_again"}
    return [*_ask(pick), _model([call]), *_reply(pick, [call]), *_say(pick)]


def _toolset_turn(pick: Pick, last: bool) -> list[Item]:
    del last
    calls = [_call(pick, toolset_name="desk"), _call(pick)]
    return [*_ask(pick), _model(calls), *_reply(pick, calls), *_say(pick)]


def _server_pair(pick: Pick, name: str = "web_search") -> tuple[Item, Item]:
    call_id = pick.id("srvtoolu_")
    content: Any = []
    if name == "code_execution":
        content = {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0}
    return (
        {"type": "server_tool_use", "id": call_id, "name": name, "input": {"query": "q"}},
        {"type": f"{name}_tool_result", "tool_use_id": call_id, "content": content},
    )


def _server_turn(pick: Pick, last: bool) -> list[Item]:
    call, result = _server_pair(pick)
    words = _text(pick.text("answer"))
    if last and pick.chance():
        return [*_ask(pick), _model([words, call])]
    return _ask(pick) + pick.one(
        [
            [_model([*_thinking(pick), call, result, words])],
            [_model([words, call]), _model([result, _text(pick.text("answer"))])],
            [_model([call, result]), {"role": "system", "content": pick.text("rule")}, *_say(pick)],
        ]
    )


def _deferred_turn(pick: Pick, last: bool) -> list[Item]:
    server, result = _server_pair(pick)
    calls = [_call(pick) for _ in range(1 + pick.below(2))]
    opened = [*_ask(pick), _model([server, *calls]), *_reply(pick, calls, only_results=True)]
    if last and pick.chance():
        return opened
    return [*opened, _model([result, _text(pick.text("answer"))])]


def _program_turn(pick: Pick, last: bool) -> list[Item]:
    server, result = _server_pair(pick, "code_execution")
    caller = {"type": "code_execution_20250825", "tool_id": server["id"]}
    calls = [_call(pick, caller=caller), _call(pick, caller=caller)][: 1 + pick.below(2)]
    opened = [*_ask(pick), _model([server, *calls]), *_reply(pick, calls, only_results=True)]
    if last and pick.chance():
        return opened
    return [*opened, _model([result, _text(pick.text("answer"))])]


def _mcp_turn(pick: Pick, last: bool) -> list[Item]:
    del last
    call_id = pick.id("mcptoolu_")
    call = {
        "type": "mcp_tool_use",
        "id": call_id,
        "name": "find",
        "server_name": "tracker",
        "input": {},
    }
    result = {
        "type": "mcp_tool_result",
        "tool_use_id": call_id,
        "is_error": False,
        "content": [_text(pick.text("found"))],
    }
    return [*_ask(pick), _model([call, result, _text(pick.text("answer"))])]


def _system_turn(pick: Pick, last: bool) -> list[Item]:
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "bash"}}
    words = pick.text("rule")
    system = {
        "role": "system",
        "content": pick.one([words, [_text(words)], [_text(words), change]]),
    }
    return [*_ask(pick), system, *([] if last and pick.chance() else _say(pick))]


def _compacted(pick: Pick, last: bool) -> list[Item]:
    del last
    block = {"type": "compaction", "content": pick.one([pick.text("summary"), None])}
    return [*_ask(pick), _model([block, _text(pick.text("answer"))])]


def _fallback_turn(pick: Pick, last: bool) -> list[Item]:
    del last
    block = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    return [
        *_ask(pick),
        _model([_text(pick.text("answer")), block, *_thinking(pick), _text(pick.text("answer"))]),
    ]


def _keep_markers(items: list[Item], most: int) -> None:
    """Leaves only the last `most` cache markers."""
    marked = [block for _, block in _ant_blocks(items) if "cache_control" in block]
    for block in marked[:-most]:
        del block["cache_control"]


# --- Anthropic Messages: damages -----------------------------------------------------------------


def _ant_blocks(items: list[Item], *kinds: str) -> list[tuple[list[Item], Item]]:
    """Each block with the list it stands in; of the given types, or of all."""
    return [
        (message["content"], block)
        for message in items
        if isinstance(message["content"], list)
        for block in message["content"]
        if not kinds or block["type"] in kinds
    ]


def _forget(blocks: list[Item], block: Item) -> None:
    """Removes this very object, not an equal one."""
    del blocks[next(i for i, other in enumerate(blocks) if other is block)]


def _ant_drop_block(*kinds: str) -> Damage:
    def damage(items: list[Item], pick: Pick) -> None:
        if targets := _ant_blocks(items, *kinds):
            _forget(*pick.one(targets))

    return damage


def _ant_copy_result(items: list[Item], pick: Pick) -> None:
    """The same again, or with another text, or as a stand-in before or behind the recorded one."""
    if not (targets := _ant_blocks(items, "tool_result")):
        return
    blocks, result = pick.one(targets)
    at = next(i for i, other in enumerate(blocks) if other is result)
    twin = copy.deepcopy(result)
    words = pick.one([None, pick.text("result"), "[Tool call interrupted: no result recorded]"])
    if words is not None:
        twin["content"] = words
        twin.pop("is_error", None)
    blocks.insert(at + pick.below(2), twin)


def _ant_move_result(items: list[Item], pick: Pick) -> None:
    """To any other place: behind a later turn, before its call, into an assistant message."""
    if not (targets := _ant_blocks(items, "tool_result")):
        return
    blocks, result = pick.one(targets)
    _forget(blocks, result)
    goals = [message for message in items if message["role"] in ("user", "assistant")]
    goal = pick.one(goals)
    if pick.chance():
        items.insert(pick.below(len(items) + 1), _user([result]))
        return
    if isinstance(goal["content"], str):
        goal["content"] = [_text(goal["content"])]
    goal["content"].insert(pick.below(len(goal["content"]) + 1), result)


def _ant_orphan(items: list[Item], pick: Pick) -> None:
    orphan = {
        "type": "tool_result",
        "tool_use_id": pick.id("toolu_lost"),
        "content": pick.text("result"),
    }
    items.insert(pick.below(len(items) + 1), _user([orphan]))


def _insert_words(items: list[Item], pick: Pick) -> None:
    items.insert(pick.below(len(items) + 1), _user(pick.text("steer")))


def _ant_words_first(items: list[Item], pick: Pick) -> None:
    lists = [m["content"] for m in items if m["role"] == "user" and isinstance(m["content"], list)]
    if lists:
        blocks = pick.one(lists)
        blocks.insert(pick.below(len(blocks) + 1), pick.one([_text(pick.text("steer")), _image()]))


def _ant_shuffle(items: list[Item], pick: Pick) -> None:
    lists = [m["content"] for m in items if m["role"] == "user" and isinstance(m["content"], list)]
    if lists:
        blocks = pick.one(lists)
        blocks[:] = pick.order(blocks)


def _swap_neighbours(items: list[Item], pick: Pick) -> None:
    if len(items) > 1:
        at = pick.below(len(items) - 1)
        items[at], items[at + 1] = items[at + 1], items[at]


def _ant_split(items: list[Item], pick: Pick) -> None:
    """One user message in two, with or without words between."""
    long = [
        i
        for i, m in enumerate(items)
        if m["role"] == "user" and isinstance(m["content"], list) and len(m["content"]) > 1
    ]
    if long:
        at = pick.one(long)
        blocks = items[at]["content"]
        cut = 1 + pick.below(len(blocks) - 1)
        between = pick.one([[], [_user(pick.text("steer"))]])
        items[at : at + 1] = [_user(blocks[:cut]), *between, _user(blocks[cut:])]


def _ant_blank(items: list[Item], pick: Pick) -> None:
    blank = pick.one(["", " ", "\n\n"])
    if targets := _ant_blocks(items):
        blocks, block = pick.one(targets)
        inside = block.get("content") if block["type"] == "tool_result" else None
        goal = inside if isinstance(inside, list) else blocks
        goal.insert(pick.below(len(goal) + 1), _text(blank))


def _ant_no_content(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_result"):
        empty: list[Any] = [[], None, [_text("")], [_text(" "), _text("\n")]]
        pick.one(targets)[1]["content"] = pick.one(empty)


def _blank_message(items: list[Item], pick: Pick) -> None:
    role = pick.one(["assistant", "user"])
    content = pick.one(["", " \n", [], [{"type": "text", "text": " "}], None])
    items.insert(pick.below(len(items) + 1), {"role": role, "content": content})


def _ant_cut_input(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_use"):
        block = pick.one(targets)[1]
        block["input"] = pick.one(['{"path": "a.tx', '{"path": "b"}', None, [], ""])
        if pick.below(6) == 5:
            del block["input"]


def _ant_bad_id(items: list[Item], pick: Pick) -> None:
    """On a call with its results, or on one side only."""
    if not (targets := _ant_blocks(items, "tool_use")):
        return
    call = pick.one(targets)[1]
    old, new = call["id"], pick.one(["call 1", "read_file:0", "", "a.b", "a/b"])
    call["id"] = new
    if pick.chance():
        for _, result in _ant_blocks(items, "tool_result"):
            if result["tool_use_id"] == old:
                result["tool_use_id"] = new


def _ant_bad_name(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_use"):
        pick.one(targets)[1]["name"] = pick.one(["read file", "", "x" * 129, "a.b"])


def _ant_one_id(items: list[Item], pick: Pick) -> None:
    """Two calls, anywhere, and their results share one id."""
    calls = [block for _, block in _ant_blocks(items, "tool_use")]
    if len(calls) > 1:
        at = pick.below(len(calls) - 1)
        old, new = calls[at + 1]["id"], calls[at]["id"]
        calls[at + 1]["id"] = new
        for _, result in _ant_blocks(items, "tool_result"):
            if result["tool_use_id"] == old:
                result["tool_use_id"] = new


def _ant_unsign(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "thinking", "redacted_thinking"):
        block = pick.one(targets)[1]
        key = "signature" if block["type"] == "thinking" else "data"
        if pick.chance():
            block[key] = ""
        else:
            block.pop(key, None)


def _ant_cut_thinking(items: list[Item], pick: Pick) -> None:
    models = [m["content"] for m in items if m["role"] == "assistant"]
    lists = [content for content in models if isinstance(content, list)]
    if lists:
        block = {"type": "thinking", "thinking": "So the", "signature": ""}
        blocks = pick.one(lists)
        blocks.insert(pick.below(len(blocks) + 1), block)


def _copy_model_message(items: list[Item], pick: Pick) -> None:
    models = [i for i, m in enumerate(items) if m["role"] == "assistant"]
    if models:
        at = pick.one(models)
        items.insert(at + 1, copy.deepcopy(items[at]))


def _drop_first(items: list[Item], pick: Pick) -> None:
    del items[: 1 + pick.below(2)]


def _cut_end(items: list[Item], pick: Pick) -> None:
    if len(items) > 1:
        del items[len(items) - 1 - pick.below(2) :]


def _drop_message(items: list[Item], pick: Pick) -> None:
    if len(items) > 1:
        del items[pick.below(len(items))]


def _ant_markers(items: list[Item], pick: Pick) -> None:
    """More markers than four, or one on thinking."""
    thinking = _ant_blocks(items, "thinking")
    if thinking and pick.chance():
        pick.one(thinking)[1]["cache_control"] = {"type": "ephemeral"}
        return
    for _, block in _ant_blocks(items, "text", "tool_result"):
        block["cache_control"] = {"type": "ephemeral"}


def _ant_error_image(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_result"):
        result = pick.one(targets)[1]
        result["content"] = [_text(pick.text("result")), _image()]
        result["is_error"] = True


def _ant_wrong_part(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_result"):
        inner = {"type": "thinking", "thinking": "inside", "signature": "sig"}
        pick.one(targets)[1]["content"] = [_text(pick.text("result")), inner]


def _ant_foreign_server(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "server_tool_use"):
        call = pick.one(targets)[1]
        old, call["id"] = call["id"], "ws-123"
        for _, block in _ant_blocks(items):
            if block.get("tool_use_id") == old:
                block["tool_use_id"] = "ws-123"


def _ant_no_server_name(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "mcp_tool_use"):
        pick.one(targets)[1].pop("server_name", None)


def _ant_toolset(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "tool_use", "tool_result"):
        block = pick.one(targets)[1]
        block["toolset_name"] = pick.one(["desk", "other"])


def _ant_stored_fields(items: list[Item], pick: Pick) -> None:
    if items:
        message = pick.one(items)
        message["id"] = pick.id("msg_")
        message["usage"] = {"output_tokens": 1}


def _ant_misplace(items: list[Item], pick: Pick) -> None:
    """A block of the model in a user message."""
    targets = _ant_blocks(
        items, "tool_use", "thinking", "server_tool_use", "web_search_tool_result"
    )
    users = [m for m in items if m["role"] == "user" and isinstance(m["content"], list)]
    if targets and users:
        blocks = pick.one(users)["content"]
        blocks.insert(pick.below(len(blocks) + 1), copy.deepcopy(pick.one(targets)[1]))


def _ant_stray_system(items: list[Item], pick: Pick) -> None:
    content = pick.one([pick.text("rule"), [_text(pick.text("rule"))], [_text("")], []])
    items.insert(pick.below(len(items) + 1), {"role": "system", "content": content})


def _ant_stray_fallback(items: list[Item], pick: Pick) -> None:
    models = [m["content"] for m in items if m["role"] == "assistant"]
    lists = [content for content in models if isinstance(content, list)]
    if lists:
        pick.one(lists).append({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}})


def _ant_empty_compaction(items: list[Item], pick: Pick) -> None:
    if targets := _ant_blocks(items, "compaction"):
        pick.one(targets)[1]["content"] = ""


def _ant_string_model(items: list[Item], pick: Pick) -> None:
    items.append(_model([*_thinking(pick), _text(pick.text("cut"))]))
    if pick.chance():
        items.append(_user(pick.text("steer")))


# --- OpenAI Responses: valid turns ---------------------------------------------------------------


def _oai_message(role: str, content: Any, **more: Any) -> Item:
    return {"type": "message", "role": role, "content": content, **more}


def _oai_ask(pick: Pick) -> list[Item]:
    text = pick.text("ask")
    part = {"type": "input_text", "text": text}
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{_PIXEL}"}
    return [
        pick.one(
            [
                _oai_message("user", [part]),
                _oai_message("user", text),
                {"role": "user", "content": text},
                _oai_message("user", [image, part]),
            ]
        )
    ]


def _oai_say(pick: Pick) -> list[Item]:
    text = pick.text("answer")
    part = {"type": "output_text", "text": text, "annotations": []}
    return [
        pick.one(
            [
                _oai_message("assistant", [part], id=pick.id("msg_"), status="completed"),
                _oai_message("assistant", [part], phase="final_answer"),
                _oai_message("assistant", [{"type": "refusal", "refusal": text}]),
                {"role": "assistant", "content": text},
            ]
        )
    ]


def _reasoning(pick: Pick) -> list[Item]:
    item = {"type": "reasoning", "id": pick.id("rs_"), "summary": []}
    return pick.one([[], [item], [{**item, "encrypted_content": pick.id("gAAAA")}]])


def _oai_call(pick: Pick, kind: str) -> tuple[Item, Item]:
    """A call that the client runs, and its output."""
    call_id, text = pick.id("call_"), pick.text("result")
    call: Item = {"type": kind, "call_id": call_id}
    output: Item = {"type": f"{kind}_output", "call_id": call_id}
    match kind:
        case "function_call":
            call |= {"name": "read_file", "arguments": pick.one(["{}", '{"path": "a.txt"}'])}
            if pick.chance():
                call |= {"id": pick.id("fc_"), "status": "completed"}
            output["output"] = pick.one([text, [{"type": "input_text", "text": text}]])
        case "custom_tool_call":
            call |= {"name": "patch", "input": "*** free text"}
            output["output"] = text
        case "shell_call":
            call |= {"action": {"commands": ["ls"]}, "status": "completed"}
            outcome = {"type": "exit", "exit_code": 0}
            output["output"] = [{"stdout": text, "stderr": "", "outcome": outcome}]
        case "local_shell_call":
            action = {"type": "exec", "command": ["ls"], "env": {}}
            call |= {"id": pick.id("lsh_"), "action": action, "status": "completed"}
            output["output"] = json.dumps({"stdout": text})
        case "apply_patch_call":
            operation = {"type": "delete_file", "path": "a.txt"}
            call |= {"operation": operation, "status": "completed"}
            output |= {"status": "completed", "output": text}
        case "computer_call":
            call |= {
                "id": pick.id("cu_"),
                "action": {"type": "screenshot"},
                "pending_safety_checks": [],
                "status": "completed",
            }
            output["output"] = {"type": "computer_screenshot", "image_url": f"data:{_PIXEL}"}
        case _:
            call |= {"execution": "client", "arguments": {"query": "q"}, "status": "completed"}
            output["type"] = "tool_search_output"
            output |= {"execution": "client", "tools": [], "status": "completed"}
    return call, output


_OAI_CALLS = [
    "function_call",
    "custom_tool_call",
    "shell_call",
    "local_shell_call",
    "apply_patch_call",
    "computer_call",
    "tool_search_call",
]


def _oai_plain(pick: Pick, last: bool) -> list[Item]:
    asked = _oai_ask(pick)
    return asked if last and pick.chance() else [*asked, *_reasoning(pick), *_oai_say(pick)]


def _oai_tools(pick: Pick, last: bool) -> list[Item]:
    pairs = [
        _oai_call(pick, pick.one(["function_call", *_OAI_CALLS])) for _ in range(1 + pick.below(3))
    ]
    asked = [*_oai_ask(pick), *_reasoning(pick)]
    calls, outputs = [call for call, _ in pairs], pick.order([output for _, output in pairs])
    if last and pick.chance():
        return asked + calls + outputs[pick.below(len(outputs)) + 1 :]
    if pick.chance():
        steps = [step for pair in pairs for step in (*_reasoning(pick), *pair)]
        return [*_oai_ask(pick), *steps, *_oai_say(pick)]
    return asked + calls + outputs + ([] if last else _oai_say(pick))


def _oai_hosted(pick: Pick, last: bool) -> list[Item]:
    item: Item = pick.one(
        [
            {"type": "web_search_call", "id": pick.id("ws_"), "action": {"type": "search"}},
            {"type": "file_search_call", "id": pick.id("fs_"), "queries": ["q"]},
            {"type": "code_interpreter_call", "id": pick.id("ci_"), "code": "1", "outputs": []},
            {"type": "image_generation_call", "id": pick.id("ig_"), "result": _PIXEL},
        ]
    )
    item["status"] = pick.one(["completed", "failed"])
    return [*_oai_ask(pick), *_reasoning(pick), item, *([] if last else _oai_say(pick))]


def _oai_mcp(pick: Pick, last: bool) -> list[Item]:
    shared = {"server_label": "tracker", "name": "close_issue", "arguments": "{}"}
    listed = {"type": "mcp_list_tools", "id": pick.id("mcpl_"), "server_label": "t", "tools": []}
    asked = [*_oai_ask(pick), listed]
    request = {"type": "mcp_approval_request", "id": pick.id("mcpr_"), **shared}
    if last and pick.chance():
        return [*asked, *_reasoning(pick), request]
    granted = pick.chance()
    response = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": granted,
    }
    call = {"type": "mcp_call", "id": pick.id("mcp_"), **shared, "output": pick.text("found")}
    return [*asked, request, response, *([call] if granted else []), *_oai_say(pick)]


def _oai_program(pick: Pick, last: bool) -> list[Item]:
    call_id = pick.id("call_")
    program = {"type": "program", "id": pick.id("prog_"), "call_id": call_id, "code": "go()"}
    program["fingerprint"] = pick.id("print")
    caller = {"type": "program", "caller_id": call_id}
    pairs = [_oai_call(pick, "function_call") for _ in range(1 + pick.below(2))]
    steps = [{**item, "caller": caller} for pair in pairs for item in pair]
    output = {"type": "program_output", "id": pick.id("prog_"), "call_id": call_id}
    output |= {"result": pick.text("result"), "status": "completed"}
    opened = [*_oai_ask(pick), *_reasoning(pick), program, *steps]
    return opened if last and pick.chance() else [*opened, output, *_oai_say(pick)]


def _oai_server_search(pick: Pick, last: bool) -> list[Item]:
    del last
    call: Item = {
        "type": "tool_search_call",
        "execution": "server",
        "arguments": {},
        "call_id": None,
    }
    output: Item = {
        "type": "tool_search_output",
        "execution": "server",
        "tools": [],
        "call_id": None,
    }
    return [*_oai_ask(pick), call, output, *_oai_say(pick)]


def _oai_compacted(pick: Pick, last: bool) -> list[Item]:
    item = {"type": "compaction", "id": pick.id("cmp_"), "encrypted_content": pick.id("gAAAA")}
    trigger = [{"type": "compaction_trigger"}] if last and pick.chance() else []
    return [item, *_oai_ask(pick), *_oai_say(pick), *trigger]


def _oai_guided(pick: Pick, last: bool) -> list[Item]:
    del last
    role = pick.one(["system", "developer"])
    guide = _oai_message(role, [{"type": "input_text", "text": pick.text("rule")}])
    return [guide, *_oai_ask(pick), *_oai_say(pick)]


def _oai_other(pick: Pick, last: bool) -> list[Item]:
    del last
    other: list[Item] = [
        {"type": "item_reference", "id": pick.id("msg_")},
        {"type": "x_new", "a": 1},
    ]
    return [*_oai_ask(pick), pick.one(other), *_oai_say(pick)]


def _oai_open_reasoning(pick: Pick, last: bool) -> list[Item]:
    thought = {"type": "reasoning", "id": pick.id("rs_"), "summary": []}
    return [*_oai_ask(pick), thought, *([] if last else _oai_say(pick))]


# --- OpenAI Responses: damages -------------------------------------------------------------------


def _of_type(items: list[Item], *suffixes: str) -> list[int]:
    """Where items stand whose type ends in one of these."""
    return [i for i, item in enumerate(items) if str(item.get("type")).endswith(suffixes)]


def _oai_drop(*suffixes: str) -> Damage:
    def damage(items: list[Item], pick: Pick) -> None:
        if targets := _of_type(items, *suffixes):
            del items[pick.one(targets)]

    return damage


def _oai_copy_output(items: list[Item], pick: Pick) -> None:
    if targets := _of_type(items, "_output"):
        at = pick.one(targets)
        twin = copy.deepcopy(items[at])
        if twin["type"] in ("function_call_output", "custom_tool_call_output"):
            twin["output"] = pick.one([twin["output"], pick.text("result"), "aborted"])
        items.insert(at + pick.below(2), twin)


def _oai_move(items: list[Item], pick: Pick) -> None:
    if targets := _of_type(items, "_output", "_response"):
        item = items.pop(pick.one(targets))
        items.insert(pick.below(len(items) + 1), item)


def _oai_orphan(items: list[Item], pick: Pick) -> None:
    kind = pick.one(["function_call", "custom_tool_call", "local_shell_call", "shell_call"])
    _, output = _oai_call(pick, kind)
    items.insert(pick.below(len(items) + 1), output)


def _oai_wrong_family(items: list[Item], pick: Pick) -> None:
    targets = [i for i in _of_type(items, "_output") if isinstance(items[i].get("output"), str)]
    if targets:
        output = items[pick.one(targets)]
        swap = {"function_call_output": "custom_tool_call_output"}
        other = swap.get(output["type"], "function_call_output")
        if output["type"] == "local_shell_call_output":
            output["output"] = json.loads(output["output"])["stdout"]
        output["type"] = other
        output.pop("status", None)
        output.pop("id", None)


def _oai_shell_by_id(items: list[Item], pick: Pick) -> None:
    targets = [i for i in _of_type(items, "local_shell_call_output") if "call_id" in items[i]]
    if targets:
        output = items[pick.one(targets)]
        output["id"] = output.pop("call_id")


def _oai_copy_item(items: list[Item], pick: Pick) -> None:
    """Anything stored twice: messages, reasoning, calls with their id."""
    if targets := [i for i, item in enumerate(items) if "id" in item]:
        at = pick.one(targets)
        items.insert(pick.one([at + 1, len(items)]), copy.deepcopy(items[at]))


def _oai_same_item_id(items: list[Item], pick: Pick) -> None:
    calls = [item for item in items if item.get("type") == "function_call"]
    if len(calls) > 1:
        calls[0]["id"] = calls[1]["id"] = "fc_same"


def _oai_bad_id(items: list[Item], pick: Pick) -> None:
    kinds = ("function_call", "reasoning", "web_search_call", "mcp_call", "function_call_output")
    targets = [item for item in items if item.get("type") in kinds]
    if targets:
        pick.one(targets)["id"] = pick.one(["call_9", "zz_" + "9" * 70]) + pick.id("")


def _oai_call_ids(items: list[Item], pick: Pick) -> None:
    """Another call_id on a call, with or without its output: too long, empty, one in use."""
    calls = [item for item in items if "call_id" in item and not item["type"].endswith("_output")]
    if not calls:
        return
    call = pick.one(calls)
    old = call["call_id"]
    if old is None:
        return
    new = pick.one(["c" * 65 + pick.id(""), "", str(pick.one(calls)["call_id"] or "c")])
    call["call_id"] = new
    if pick.chance():
        for item in items:
            if item.get("call_id") == old:
                item["call_id"] = new


def _oai_cut_arguments(items: list[Item], pick: Pick) -> None:
    targets = [item for item in items if item.get("type") == "function_call"]
    if targets:
        cut: list[Any] = ['{"path": "a.tx', "", "null", {"path": "b"}, "[1]"]
        pick.one(targets)["arguments"] = pick.one(cut)


def _oai_bad_name(items: list[Item], pick: Pick) -> None:
    targets = [i for i in items if i.get("type") in ("function_call", "custom_tool_call")]
    if targets:
        pick.one(targets)["name"] = pick.one(["read file", "", "x" * 129])


def _oai_unfinished(items: list[Item], pick: Pick) -> None:
    hosted = ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call")
    targets = [item for item in items if item.get("type") in hosted]
    if targets:
        pick.one(targets)["status"] = "in_progress"


def _oai_strip_follower(items: list[Item], pick: Pick) -> None:
    if targets := [i for i in _of_type(items, "reasoning") if i + 1 < len(items)]:
        del items[pick.one(targets) + 1]


def _oai_lone_reasoning(items: list[Item], pick: Pick) -> None:
    thought = {"type": "reasoning", "id": pick.id("rs_"), "summary": [], "encrypted_content": "gA"}
    items.insert(pick.below(len(items) + 1), thought)


def _oai_bad_seal(items: list[Item], pick: Pick) -> None:
    if targets := _of_type(items, "reasoning"):
        items[pick.one(targets)]["encrypted_content"] = pick.one(["", 7])


def _oai_wrong_parts(items: list[Item], pick: Pick) -> None:
    parts = [
        part
        for item in items
        if isinstance(item.get("content"), list) and item.get("role")
        for part in item["content"]
        if part["type"] in ("input_text", "output_text")
    ]
    if parts:
        part = pick.one(parts)
        swap = {"input_text": "output_text", "output_text": "input_text"}
        part["type"] = pick.one([swap[part["type"]], "text"])


def _oai_fields(items: list[Item], pick: Pick) -> None:
    if targets := [item for item in items if item.get("type") != "x_new"]:
        item = pick.one(targets)
        item["created_by"] = "stored"
        if item.get("role") == "user":
            item["status"] = "completed"


def _oai_status(items: list[Item], pick: Pick) -> None:
    if targets := _of_type(items, "apply_patch_call", "apply_patch_call_output", "program_output"):
        items[pick.one(targets)]["status"] = "cancelled"


def _oai_compaction(items: list[Item], pick: Pick) -> None:
    broken = pick.one([{"type": "compaction"}, {"type": "compaction_trigger"}])
    items.insert(pick.below(len(items) + 1), broken)


def _oai_second_response(items: list[Item], pick: Pick) -> None:
    if targets := _of_type(items, "mcp_approval_response"):
        at = pick.one(targets)
        items.insert(at + 1, copy.deepcopy(items[at]))


def _oai_user(items: list[Item], pick: Pick) -> None:
    items.insert(pick.below(len(items) + 1), _oai_message("user", pick.text("steer")))


# --- OpenAI Chat Completions: valid turns --------------------------------------------------------


def _chat_ask(pick: Pick) -> list[Item]:
    text = pick.text("ask")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}"}}
    return [
        pick.one([_user(text), _user([_text(text)]), _user([image, _text(text)])]),
    ]


def _chat_say(pick: Pick) -> list[Item]:
    text = pick.text("answer")
    return [
        pick.one(
            [
                _model(text),
                _model([_text(text)]),
                {**_model(None), "refusal": text},
                _model([{"type": "refusal", "refusal": text}]),
            ]
        )
    ]


def _chat_call(pick: Pick) -> Item:
    call_id = pick.id("call_")
    if pick.below(4) == 3:
        return {"id": call_id, "type": "custom", "custom": {"name": "patch", "input": "*** free"}}
    arguments = pick.one(["{}", '{"path": "a.txt"}'])
    function = {"name": "read_file", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _chat_result(pick: Pick, call: Item) -> Item:
    text = pick.text("result")
    return {"role": "tool", "tool_call_id": call["id"], "content": pick.one([text, [_text(text)]])}


def _chat_plain(pick: Pick, last: bool) -> list[Item]:
    asked = _chat_ask(pick)
    return asked if last and pick.chance() else asked + _chat_say(pick)


def _chat_guided(pick: Pick, last: bool) -> list[Item]:
    guide = {"role": pick.one(["system", "developer"]), "content": pick.text("rule")}
    return [guide, *_chat_plain(pick, last)]


def _chat_tools(pick: Pick, last: bool) -> list[Item]:
    calls = [_chat_call(pick) for _ in range(1 + pick.below(3))]
    content = pick.one([None, "", pick.text("answer")])
    asked = [*_chat_ask(pick), {**_model(content), "tool_calls": calls}]
    results = pick.order([_chat_result(pick, call) for call in calls])
    if last and pick.chance():
        return asked + results[1 + pick.below(len(results)) :]
    return asked + results + ([] if last and pick.chance() else _chat_say(pick))


def _chat_same_id_again(pick: Pick, last: bool) -> list[Item]:
    del last
    call = {**_chat_call(pick), "id": "call_again"}
    asked = [*_chat_ask(pick), {**_model(None), "tool_calls": [call]}]
    return [*asked, _chat_result(pick, call), *_chat_say(pick)]


def _chat_legacy(pick: Pick, last: bool) -> list[Item]:
    call = {**_model(None), "function_call": {"name": "clock", "arguments": "{}"}}
    answer = {"role": "function", "name": "clock", "content": pick.text("result")}
    opened = [*_chat_ask(pick), call]
    return opened if last and pick.chance() else [*opened, answer, *_chat_say(pick)]


def _chat_audio(pick: Pick, last: bool) -> list[Item]:
    del last
    return [*_chat_ask(pick), {**_model(None), "audio": {"id": pick.id("audio_")}}]


# --- OpenAI Chat Completions: damages ------------------------------------------------------------


def _chat_drop(role: str) -> Damage:
    def damage(items: list[Item], pick: Pick) -> None:
        if targets := [i for i, m in enumerate(items) if m["role"] == role]:
            del items[pick.one(targets)]

    return damage


def _chat_callers(items: list[Item]) -> list[Item]:
    return [m for m in items if m["role"] == "assistant" and m.get("tool_calls")]


def _chat_functions(items: list[Item]) -> list[Item]:
    calls = [call for message in _chat_callers(items) for call in message["tool_calls"]]
    return [call["function"] for call in calls if "function" in call]


def _chat_drop_call(items: list[Item], pick: Pick) -> None:
    if targets := _chat_callers(items):
        message = pick.one(targets)
        del message["tool_calls"][pick.below(len(message["tool_calls"]))]
        if not message["tool_calls"] and pick.chance():
            del message["tool_calls"]


def _chat_copy_result(items: list[Item], pick: Pick) -> None:
    if targets := [i for i, m in enumerate(items) if m["role"] == "tool"]:
        at = pick.one(targets)
        twin = copy.deepcopy(items[at])
        twin["content"] = pick.one([twin["content"], pick.text("result"), "aborted"])
        items.insert(at + pick.below(2), twin)


def _chat_move_result(items: list[Item], pick: Pick) -> None:
    if targets := [i for i, m in enumerate(items) if m["role"] in ("tool", "function")]:
        item = items.pop(pick.one(targets))
        items.insert(pick.below(len(items) + 1), item)


def _chat_orphan(items: list[Item], pick: Pick) -> None:
    orphan: Item = {"role": "tool", "content": pick.text("result")}
    if pick.chance():
        orphan["tool_call_id"] = pick.id("call_lost")
    items.insert(pick.below(len(items) + 1), orphan)


def _chat_cut_arguments(items: list[Item], pick: Pick) -> None:
    if targets := _chat_functions(items):
        cut: list[Any] = ['{"path": "a.tx', "", None, {"path": "b"}, "[]"]
        pick.one(targets)["arguments"] = pick.one(cut)


def _chat_bad_name(items: list[Item], pick: Pick) -> None:
    if targets := _chat_functions(items):
        pick.one(targets)["name"] = pick.one(["read file", "", "x" * 65])


def _chat_bad_id(items: list[Item], pick: Pick) -> None:
    """Too long, empty, or one in use in the message; on one side or both."""
    if not (targets := _chat_callers(items)):
        return
    calls = pick.one(targets)["tool_calls"]
    call = pick.one(calls)
    old, new = call["id"], pick.one(["c" * 41 + pick.id(""), "", calls[0]["id"]])
    call["id"] = new
    if pick.chance():
        for message in items:
            if message["role"] == "tool" and message.get("tool_call_id") == old:
                message["tool_call_id"] = new


def _chat_copy_call(items: list[Item], pick: Pick) -> None:
    if targets := _chat_callers(items):
        calls = pick.one(targets)["tool_calls"]
        calls.append(copy.deepcopy(pick.one(calls)))


def _chat_blank(items: list[Item], pick: Pick) -> None:
    content: Any = pick.one([None, "", []])
    more: Item = pick.one([{}, {"tool_calls": []}, {"tool_calls": None}])
    items.insert(pick.below(len(items) + 1), {**_model(content), **more})


def _chat_tool_content(items: list[Item], pick: Pick) -> None:
    if targets := [m for m in items if m["role"] == "tool"]:
        image = {"type": "image_url", "image_url": {"url": f"data:{_PIXEL}"}}
        pick.one(targets)["content"] = pick.one([None, [_text(pick.text("result")), image]])


def _chat_mix(items: list[Item], pick: Pick) -> None:
    if targets := _chat_callers(items):
        pick.one(targets)["function_call"] = {"name": "clock", "arguments": "{}"}


# --- the lists to draw from ----------------------------------------------------------------------

_BUILDERS: dict[str, list[Turn]] = {
    "anthropic.messages": [
        _plain,
        _tool_turn,
        _thoughtful,
        _tool_turn,
        _same_id_again,
        _toolset_turn,
        _server_turn,
        _deferred_turn,
        _program_turn,
        _mcp_turn,
        _system_turn,
        _compacted,
        _fallback_turn,
    ],
    "openai.responses": [
        _oai_plain,
        _oai_tools,
        _oai_tools,
        _oai_hosted,
        _oai_mcp,
        _oai_program,
        _oai_server_search,
        _oai_compacted,
        _oai_guided,
        _oai_other,
        _oai_open_reasoning,
    ],
    "openai.chat": [
        _chat_plain,
        _chat_tools,
        _chat_tools,
        _chat_guided,
        _chat_same_id_again,
        _chat_legacy,
        _chat_audio,
    ],
}

_REQUESTS: dict[str, list[Item]] = {
    "anthropic.messages": [
        {"model": "claude-opus-5-5"},
        {"model": "claude-sonnet-4-5-20250929"},
        {"model": "claude-3-5-haiku-20241022"},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "disabled"}},
        {"tools": [{"name": "read_file", "cache_control": {"type": "ephemeral"}}]},
        {"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]},
    ],
    "openai.responses": [
        {"store": False},
        {"store": True},
        {"previous_response_id": "resp_1"},
    ],
    "openai.chat": [{"model": "gpt-5"}],
}

_DAMAGES: dict[str, list[Damage]] = {
    "anthropic.messages": [
        _ant_drop_block("tool_result"),
        _ant_drop_block("tool_use"),
        _ant_drop_block("web_search_tool_result", "code_execution_tool_result", "mcp_tool_result"),
        _ant_drop_block("server_tool_use", "mcp_tool_use"),
        _ant_copy_result,
        _ant_move_result,
        _ant_move_result,
        _ant_orphan,
        _insert_words,
        _ant_words_first,
        _ant_shuffle,
        _swap_neighbours,
        _ant_split,
        _ant_blank,
        _ant_no_content,
        _blank_message,
        _ant_cut_input,
        _ant_bad_id,
        _ant_bad_name,
        _ant_one_id,
        _ant_unsign,
        _ant_cut_thinking,
        _copy_model_message,
        _drop_first,
        _cut_end,
        _drop_message,
        _ant_markers,
        _ant_error_image,
        _ant_wrong_part,
        _ant_foreign_server,
        _ant_no_server_name,
        _ant_toolset,
        _ant_stored_fields,
        _ant_misplace,
        _ant_stray_system,
        _ant_stray_fallback,
        _ant_empty_compaction,
        _ant_string_model,
    ],
    "openai.responses": [
        _oai_drop("_output"),
        _oai_drop("_call"),
        _oai_drop("_request", "_response"),
        _oai_drop("program", "program_output"),
        _oai_copy_output,
        _oai_move,
        _oai_move,
        _oai_orphan,
        _oai_wrong_family,
        _oai_shell_by_id,
        _oai_copy_item,
        _oai_same_item_id,
        _oai_bad_id,
        _oai_call_ids,
        _oai_cut_arguments,
        _oai_bad_name,
        _oai_unfinished,
        _oai_strip_follower,
        _oai_lone_reasoning,
        _oai_bad_seal,
        _oai_wrong_parts,
        _oai_fields,
        _oai_status,
        _oai_compaction,
        _oai_second_response,
        _oai_user,
        _swap_neighbours,
        _drop_first,
        _cut_end,
        _drop_message,
    ],
    "openai.chat": [
        _chat_drop("tool"),
        _chat_drop("assistant"),
        _chat_drop("function"),
        _chat_drop_call,
        _chat_copy_result,
        _chat_move_result,
        _chat_move_result,
        _chat_orphan,
        _chat_cut_arguments,
        _chat_bad_name,
        _chat_bad_id,
        _chat_copy_call,
        _chat_blank,
        _chat_tool_content,
        _chat_mix,
        _insert_words,
        _swap_neighbours,
        _copy_model_message,
        _drop_first,
        _cut_end,
        _drop_message,
    ],
}
