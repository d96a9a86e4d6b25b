"""The rules of `openai.chat`: each by example, and the fast scan against the exact checker."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit.normalizer.dialects.openai_chat import scan, violations
from stopkit.normalizer.rules import RULES

Item = dict[str, Any]


def user(content: Any = "hi") -> Item:
    return {"role": "user", "content": content}


def says(content: Any = "ok") -> Item:
    return {"role": "assistant", "content": content}


def call(call_id: Any = "c1", name: Any = "read", arguments: Any = "{}") -> Item:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def custom(call_id: str = "c1", name: str = "shell", text: Any = "not json") -> Item:
    return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}


def calls(*made: Item, content: Any = None) -> Item:
    return {"role": "assistant", "content": content, "tool_calls": list(made)}


def tool(call_id: Any = "c1", content: Any = "done") -> Item:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def legacy(name: Any = "read", arguments: Any = "{}") -> Item:
    return {
        "role": "assistant",
        "content": None,
        "function_call": {"name": name, "arguments": arguments},
    }


def function(name: Any = "read", content: Any = "done") -> Item:
    return {"role": "function", "name": name, "content": content}


def found(items: list[Any]) -> list[tuple[str, str, str]]:
    return [(one.rule, one.path, one.scope) for one in violations(items, {})]


VALID: dict[str, list[Any]] = {
    "nothing": [],
    "talk": [{"role": "system", "content": "be brief"}, user(), says(), user("")],
    "parts": [user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}])],
    "developer": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}],
    "starts with the assistant": [says(), user()],
    "one call": [user(), calls(call()), tool(), says()],
    "answers in any order": [calls(call("a"), call("b")), tool("b"), tool("a")],
    "id used again in a later turn": [calls(call()), tool(), calls(call()), tool()],
    "custom call": [calls(custom(name="a b")), tool()],
    "call of an unknown type": [calls({"id": "c1", "type": "new", "new": 3}), tool()],
    "text parts in a result": [calls(call()), tool(content=[{"type": "text", "text": ""}])],
    "empty result": [calls(call()), tool(content="")],
    "white space": [says("  \n")],
    "refusal": [{"role": "assistant", "content": None, "refusal": "no"}],
    "audio": [{"role": "assistant", "audio": {"id": "a1"}}],
    "legacy pair": [legacy(), function(), says()],
    "legacy result of nothing": [legacy(), function(content=None)],
    "null where the API has it": [{**says(), "refusal": None, "audio": None}],
    "unknown fields and parts": [{**user([{"type": "new", "x": 1}]), "extra": {"deep": [1]}}],
    "longest id": [calls(call("i" * 40)), tool("i" * 40)],
    "longest name": [calls(call(name="n" * 64)), tool()],
    "arguments beyond a double": [calls(call(arguments='{"n": 1e999}')), tool()],
    "escaped lone surrogate in arguments": [calls(call(arguments='{"n": "\\ud800"}')), tool()],
    "not ascii": [user("é"), calls(call("ü", arguments='{"k": "é"}'), content="ß"), tool("ü")],
}

BROKEN: dict[str, tuple[list[Any], list[tuple[str, str, str]]]] = {
    "CHAT-PAIR-1 in the middle": (
        [calls(call("a"), call("b")), tool("a"), user()],
        [("CHAT-PAIR-1", "messages.0.tool_calls.1", "prefix")],
    ),
    "CHAT-PAIR-1 at the end": (
        [user(), calls(call("a"), call("b")), tool("a")],
        [("CHAT-PAIR-1", "messages.1.tool_calls.1", "send")],
    ),
    "CHAT-PAIR-1 behind an orphan": (
        [calls(call("a")), tool("x")],
        [
            ("CHAT-PAIR-1", "messages.0.tool_calls.0", "send"),
            ("CHAT-PAIR-2", "messages.1", "prefix"),
        ],
    ),
    "CHAT-ORD-1": (
        [calls(call("a"), call("b")), tool("a"), user(), tool("b")],
        [
            ("CHAT-PAIR-1", "messages.0.tool_calls.1", "prefix"),
            ("CHAT-ORD-1", "messages.3", "prefix"),
        ],
    ),
    "CHAT-PAIR-2 without a call": (
        [user(), tool(), says()],
        [("CHAT-PAIR-2", "messages.1", "prefix")],
    ),
    "CHAT-PAIR-2 without an id": (
        [calls(call()), tool(), {"role": "tool", "content": "x"}],
        [("CHAT-PAIR-2", "messages.2", "prefix")],
    ),
    "CHAT-PAIR-2 behind a later turn": (
        [calls(call()), says(), tool()],
        [
            ("CHAT-PAIR-1", "messages.0.tool_calls.0", "prefix"),
            ("CHAT-PAIR-2", "messages.2", "prefix"),
        ],
    ),
    "CHAT-ID-1 too long": (
        [calls(call("i" * 41)), tool("i" * 41)],
        [
            ("CHAT-ID-1", "messages.0.tool_calls.0", "prefix"),
            ("CHAT-ID-1", "messages.1", "prefix"),
        ],
    ),
    "CHAT-ID-1 empty": (
        [calls(call("")), tool("")],
        [
            ("CHAT-ID-1", "messages.0.tool_calls.0", "prefix"),
            ("CHAT-ID-1", "messages.1", "prefix"),
        ],
    ),
    "CHAT-ID-1 twice in a message": (
        [calls(call(arguments='{"a": 1}'), call()), tool()],
        [("CHAT-ID-1", "messages.0.tool_calls.1", "prefix")],
    ),
    "CHAT-ID-1 answered twice": (
        [calls(call()), tool(), tool(content="again")],
        [("CHAT-ID-1", "messages.2", "prefix")],
    ),
    "CHAT-ARG-1 fragment": (
        [calls(call(arguments='{"q": "tide tabl')), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-ARG-1 empty": (
        [calls(call(arguments="")), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-ARG-1 an object": (
        [calls(call(arguments={"q": 1})), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-ARG-1 JSON, but a list": (
        [calls(call(arguments="[]")), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-ARG-1 no JSON constant": (
        [calls(call(arguments='{"a": NaN}')), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-ARG-1 nested without end": (
        [calls(call(arguments='{"a":' * 100_000)), tool()],
        [("CHAT-ARG-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-EMPTY-1": (
        [{**says(), "tool_calls": []}, {**says(), "tool_calls": None}],
        [("CHAT-EMPTY-1", "messages.0", "prefix"), ("CHAT-EMPTY-1", "messages.1", "prefix")],
    ),
    "CHAT-EMPTY-2": (
        [says(None), says(""), says([]), {"role": "assistant"}],
        [("CHAT-EMPTY-2", f"messages.{at}", "prefix") for at in range(4)],
    ),
    "CHAT-EMPTY-1 and -2": (
        [calls()],
        [("CHAT-EMPTY-1", "messages.0", "prefix"), ("CHAT-EMPTY-2", "messages.0", "prefix")],
    ),
    "CHAT-TOOL-1 nothing": (
        [calls(call("a"), call("b")), tool("a", None), {"role": "tool", "tool_call_id": "b"}],
        [("CHAT-TOOL-1", "messages.1", "prefix"), ("CHAT-TOOL-1", "messages.2", "prefix")],
    ),
    "CHAT-TOOL-1 an image": (
        [
            calls(call()),
            tool(content=[{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]),
        ],
        [("CHAT-TOOL-1", "messages.1.content.1", "prefix")],
    ),
    "CHAT-FN-1 in the middle": (
        [legacy(), user()],
        [("CHAT-FN-1", "messages.0", "prefix")],
    ),
    "CHAT-FN-1 at the end": (
        [user(), legacy()],
        [("CHAT-FN-1", "messages.1", "send")],
    ),
    "CHAT-FN-1 another name": (
        [legacy("a"), function("b")],
        [("CHAT-FN-1", "messages.0", "prefix"), ("CHAT-FN-1", "messages.1", "prefix")],
    ),
    "CHAT-FN-1 answered twice": (
        [legacy(), function(), function()],
        [("CHAT-FN-1", "messages.2", "prefix")],
    ),
    "CHAT-FN-1 both kinds": (
        [{**legacy(), "tool_calls": [call()]}, tool()],
        [("CHAT-FN-1", "messages.0", "prefix")],
    ),
    "CHAT-NAME-1": (
        [calls(call("a", "no spaces"), call("b", ""), call("c", None), call("d", "n" * 65))]
        + [tool(call_id) for call_id in "abcd"],
        [("CHAT-NAME-1", f"messages.0.tool_calls.{j}", "prefix") for j in range(4)],
    ),
    "CHAT-NAME-1 with a newline": (
        [calls(call(name="read\n")), tool()],
        [("CHAT-NAME-1", "messages.0.tool_calls.0", "prefix")],
    ),
    "CHAT-NAME-1 and CHAT-ARG-1 legacy": (
        [legacy("a b", "x"), function("a b")],
        [("CHAT-ARG-1", "messages.0", "prefix"), ("CHAT-NAME-1", "messages.0", "prefix")],
    ),
    "GEN-SHAPE-1 messages": (
        [None, 3, "x", [], {}, {"role": None}, {"role": "robot", "content": "x"}],
        [("GEN-SHAPE-1", f"messages.{at}", "prefix") for at in range(7)],
    ),
    "GEN-SHAPE-1 content": (
        [user(None), {"role": "user"}, user(3), says({"a": 1}), user([3, {}, {"type": "text"}])],
        [("GEN-SHAPE-1", f"messages.{at}", "prefix") for at in range(4)]
        + [("GEN-SHAPE-1", f"messages.4.content.{j}", "prefix") for j in range(3)],
    ),
    "GEN-SHAPE-1 calls": (
        [
            calls(3, call(7), {"id": "b"}, {"id": "c", "type": "function"}, custom("d", text=3)),  # type: ignore[arg-type]
            *[tool(call_id) for call_id in "bcd"],
        ],
        [("GEN-SHAPE-1", f"messages.0.tool_calls.{j}", "prefix") for j in range(5)],
    ),
    "GEN-SHAPE-1 fields": (
        [
            {**says(), "tool_calls": {"a": 1}},
            {**says(), "function_call": "f"},
            {**says(), "refusal": 1},
            {**user(), "name": 1},
            tool(5),
        ],
        [("GEN-SHAPE-1", f"messages.{at}", "prefix") for at in range(5)],
    ),
}


@pytest.mark.parametrize("items", VALID.values(), ids=VALID.keys())
def test_what_the_api_takes_is_no_violation(items: list[Any]) -> None:
    assert found(items) == []


@pytest.mark.parametrize(("items", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_each_rule_fires_where_it_is_broken(
    items: list[Any], expected: list[tuple[str, str, str]]
) -> None:
    assert found(items) == expected
    assert scan(items, {}).spans != []


def test_messages_are_the_apis_words() -> None:
    items = [user(), calls(call("c1"), call("i" * 500)), user(), {**says(), "tool_calls": []}]
    said = [one.message for one in violations(items, {})]
    open_call = RULES["CHAT-PAIR-1"].error
    assert said == [
        open_call.format(id="c1"),
        open_call.format(id="i" * 100 + "…"),
        RULES["CHAT-ID-1"].error.format(n=1, m=1) + ", but got one with length 500.",
        RULES["CHAT-EMPTY-1"].error.format(n=3),
    ]


def test_a_message_about_a_lone_surrogate_can_be_encoded() -> None:
    items = [calls(call("\ud800", "\ud800")), user([{"type": "\ud800"}])]
    assert all(one.message.encode() for one in violations(items, {}))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "c1", "tool", "text"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["type", "text", "id", "role"]), inner, max_size=2),
    ),
    max_leaves=4,
)
IDS = st.sampled_from(["a", "b", "c"])
ODD_IDS = IDS | st.sampled_from(["", "i" * 40, "i" * 41, "é", "\ud800"]) | ANY_JSON
CALLS = st.builds(call, IDS) | st.builds(
    call, ODD_IDS, st.sampled_from(["read", "a b", ""]) | ANY_JSON,
    st.sampled_from(["{}", "", "{", "[]", '{"a": 1}']) | ANY_JSON,
) | st.builds(custom, IDS)  # fmt: skip
CONTENT = st.sampled_from(["x", "", "é", "\ud800"]) | ANY_JSON
PLAIN = st.one_of(
    st.just(user()),
    st.just(says()),
    st.builds(lambda made: calls(*made), st.lists(st.builds(call, IDS), min_size=1, max_size=3)),
    st.builds(tool, IDS),
    st.builds(tool, IDS),
)
ODD = st.one_of(
    ANY_JSON,
    st.builds(user, CONTENT | st.just([{"type": "text", "text": "x"}])),
    st.builds(says, CONTENT),
    st.builds(lambda made, text: calls(*made, content=text), st.lists(CALLS, max_size=3), CONTENT),
    st.builds(tool, ODD_IDS, CONTENT),
    st.builds(legacy),
    st.builds(function),
    st.just({**legacy(), "tool_calls": [call("a")]}),
    st.just({**says(), "refusal": None, "tool_calls": None}),
    st.just({**user(), "name": "n", "extra": ["\ud800"]}),
)
HISTORIES = st.lists(PLAIN, max_size=12) | st.lists(PLAIN | ODD, max_size=12)


@given(HISTORIES)
def test_scan_finds_whatever_the_exact_checker_finds(items: list[Any]) -> None:
    spans = scan(items, {}).spans
    assert spans == sorted(spans)
    assert all(0 <= start < stop <= len(items) for start, stop in spans)
    assert all(before < start for (_, before), (start, _) in pairwise(spans))
    suspect = {at for start, stop in spans for at in range(start, stop)}
    assert {int(one.path.split(".")[1]) for one in violations(items, {})} <= suspect


@given(HISTORIES)
def test_what_scan_passes_is_complete_in_itself(items: list[Any]) -> None:
    stop = 0
    for start, after in [*scan(items, {}).spans, (len(items), len(items))]:
        assert violations(items[stop:start], {}) == []
        stop = after


@given(HISTORIES)
def test_scan_includes_the_turn_of_a_late_answer(items: list[Any]) -> None:
    late = [calls(call("late")), tool("late"), says(), *items, user(), tool("late")]
    spans = scan(late, {}).spans
    assert spans[0][0] == 0
    assert spans[-1][1] == len(late)


def test_scan_includes_the_turns_that_the_caller_knows_more_of() -> None:
    items = [calls(call("a")), tool("a"), user(), calls(call("b")), tool("b"), says()]
    assert scan(items, {}, frozenset({"b", "elsewhere"})).spans == [(3, 5)]


@pytest.mark.parametrize("items", VALID.values(), ids=VALID.keys())
def test_scan_passes_plain_histories(items: list[Any]) -> None:
    legacy_items = [at for at, item in enumerate(items) if item["role"] == "function"]
    assert scan(items, {}).spans == [(at - 1, at + 1) for at in legacy_items]


def test_scan_takes_a_big_turn_answered_backwards() -> None:
    ids = [f"c{n}" for n in range(20_000)]
    items = [calls(*[call(one) for one in ids]), *[tool(one) for one in reversed(ids)]]
    assert scan(items, {}).spans == []
    assert found(items) == []


def test_scan_cuts_a_damaged_history_into_small_spans() -> None:
    turn = [user(), calls(call("a"), call("b")), tool("a"), tool("b"), says()]
    broken = [user(), calls(call("a"), call("b")), tool("a"), says()]
    items = json.loads(json.dumps(turn * 20 + broken + turn * 20))
    assert scan(items, {}).spans == [(101, 103)]
