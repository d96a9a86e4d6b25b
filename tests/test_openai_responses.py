"""The rules of `openai.responses`: each by example, and the fast scan against the exact checker."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import brute
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from stopkit.normalizer.dialects import openai_responses
from stopkit.normalizer.dialects.openai_responses import violations
from stopkit.normalizer.dialects.openai_responses_shapes import BY_CALL, FIELDS, inspect
from stopkit.normalizer.plain import is_plain
from stopkit.normalizer.rules import RULES

API = "openai.responses"
Item = dict[str, Any]


def scan(
    items: list[Any], given_request: Item, touch: frozenset[str] = frozenset()
) -> list[tuple[int, int]]:
    return openai_responses.scan(items, given_request, touch).spans


def user(content: Any = "hi", **more: Any) -> Item:
    return {"type": "message", "role": "user", "content": content, **more}


def says(content: Any = "ok", **more: Any) -> Item:
    return {"type": "message", "role": "assistant", "content": content, **more}


def call(call_id: Any = "c1", arguments: Any = "{}", **more: Any) -> Item:
    made = {"type": "function_call", "name": "read", "arguments": arguments, **more}
    return made if call_id is None else {**made, "call_id": call_id}


def custom(call_id: str = "c1", **more: Any) -> Item:
    made = {"type": "custom_tool_call", "call_id": call_id, "name": "patch", "input": "free"}
    return {**made, **more}


def output(call_id: Any = "c1", text: Any = "done", **more: Any) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text, **more}


def reasoning(id_: str = "rs_1", **more: Any) -> Item:
    return {"type": "reasoning", "id": id_, "summary": [], **more}


def search(status: str = "completed") -> Item:
    action = {"type": "search", "query": "q"}
    return {"type": "web_search_call", "id": "ws_1", "status": status, "action": action}


def request(id_: str = "mcpr_1") -> Item:
    asked = {"server_label": "s", "name": "n", "arguments": "{}"}
    return {"type": "mcp_approval_request", "id": id_, **asked}


def response(id_: str = "mcpr_1", approve: Any = True) -> Item:
    return {"type": "mcp_approval_response", "approval_request_id": id_, "approve": approve}


def program(call_id: str = "p1") -> Item:
    return {"type": "program", "id": "prog_1", "call_id": call_id, "code": "x", "fingerprint": "f"}


def program_output(call_id: str = "p1", status: str = "completed") -> Item:
    made = {"type": "program_output", "id": "po_1", "call_id": call_id}
    return {**made, "result": "r", "status": status}


def of_program(call_id: str = "p1") -> Item:
    return {"caller": {"type": "program", "caller_id": call_id}}


def tool_search(call_id: str | None = "c1", **more: Any) -> Item:
    made = {"type": "tool_search_call", "call_id": call_id, "arguments": {}, "execution": "client"}
    return {**made, **more}


def tools(call_id: str | None = "c1", **more: Any) -> Item:
    made = {"type": "tool_search_output", "call_id": call_id, "tools": [], "execution": "client"}
    return {**made, **more}


def patch(status: str = "completed") -> Item:
    operation = {"type": "delete_file", "path": "a"}
    made = {"type": "apply_patch_call", "call_id": "c1", "status": status}
    return {**made, "operation": operation}


def patched(status: str = "completed") -> Item:
    return {"type": "apply_patch_call_output", "call_id": "c1", "status": status}


def found(items: list[Any], **given_request: Any) -> list[tuple[str, str, str]]:
    return [(one.rule, one.path, one.scope) for one in violations(items, given_request)]


LONG = "x" * 65
LOCAL_SHELL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "c1",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
COMPUTER = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c1",
    "status": "completed",
    "pending_safety_checks": [],
}

BROKEN: list[tuple[str, list[Any], list[tuple[str, str, str]]]] = [
    ("open at the end", [call()], [("OAI-PAIR-1", "input.0", "send")]),
    ("open before a user", [call(), user()], [("OAI-PAIR-1", "input.0", "prefix")]),
    (
        "open before a later model turn",
        [call("c1"), call("c2"), output("c2"), says()],
        [("OAI-PAIR-1", "input.0", "prefix")],
    ),
    (
        "open beside an answered one",
        [call("c1"), call("c2"), output("c2")],
        [("OAI-PAIR-1", "input.0", "send")],
    ),
    ("orphan", [output()], [("OAI-PAIR-2", "input.0", "prefix")]),
    ("orphan without a call_id", [output(None)], [("OAI-PAIR-2", "input.0", "prefix")]),
    (
        "output before its call",
        [output(), call()],
        [("OAI-PAIR-2", "input.0", "prefix"), ("OAI-PAIR-1", "input.1", "send")],
    ),
    (
        "another family's output",
        [custom(), output()],
        [("OAI-PAIR-1", "input.0", "send"), ("OAI-PAIR-3", "input.1", "prefix")],
    ),
    ("two outputs", [call(), output(), output()], [("OAI-PAIR-4", "input.2", "prefix")]),
    (
        "local shell output by id",
        [LOCAL_SHELL, {"type": "local_shell_call_output", "id": "c1", "output": "{}"}],
        [("OAI-PAIR-1", "input.0", "send"), ("OAI-SHELL-1", "input.1", "prefix")],
    ),
    ("patch call status", [patch("failed"), patched()], [("OAI-PATCH-1", "input.0", "prefix")]),
    ("patch output status", [patch(), patched("x")], [("OAI-PATCH-1", "input.1", "prefix")]),
    ("bare compaction", [{"type": "compaction"}], [("OAI-COMP-1", "input.0", "prefix")]),
    (
        "early trigger",
        [{"type": "compaction_trigger"}, user()],
        [("OAI-COMP-1", "input.0", "prefix")],
    ),
    (
        "open computer call",
        [COMPUTER, user()],
        [("OAI-PAIR-1", "input.0", "prefix"), ("OAI-CU-1", "input.0", "prefix")],
    ),
    ("reasoning at the end", [reasoning()], [("OAI-REAS-1", "input.0", "send")]),
    ("reasoning left alone", [reasoning(), user()], [("OAI-REAS-1", "input.0", "prefix")]),
    (
        "empty encrypted content",
        [reasoning(encrypted_content=""), says()],
        [("OAI-REAS-3", "input.0", "prefix")],
    ),
    (
        "item twice",
        [says(id="msg_1"), says(id="msg_1")],
        [("OAI-ID-1", "input.1", "prefix")],
    ),
    ("foreign id", [says(id="chatcmpl-1")], [("OAI-ID-2", "input.0", "prefix")]),
    ("long id", [says(id="msg" + LONG)], [("OAI-ID-3", "input.0", "prefix")]),
    (
        "long call_id",
        [call(LONG), output(LONG)],
        [("OAI-ID-3", "input.0", "prefix"), ("OAI-ID-3", "input.1", "prefix")],
    ),
    (
        "empty call_id",
        [call(""), output("")],
        [("OAI-ID-3", "input.0", "prefix"), ("OAI-ID-3", "input.1", "prefix")],
    ),
    (
        "no call_id",
        [call(None)],
        [("OAI-PAIR-1", "input.0", "send"), ("OAI-ID-3", "input.0", "prefix")],
    ),
    (
        "call_id in two turns",
        [call(), output(), call(), output()],
        [("OAI-ID-4", "input.2", "prefix")],
    ),
    (
        "call copied",
        [call(), call(), output()],
        [("OAI-PAIR-1", "input.1", "send"), ("OAI-ID-4", "input.1", "prefix")],
    ),
    ("unfinished search", [search("searching")], [("OAI-HOST-1", "input.0", "prefix")]),
    ("undecided at the end", [request()], [("OAI-MCP-1", "input.0", "send")]),
    ("undecided", [request(), user()], [("OAI-MCP-1", "input.0", "prefix")]),
    ("decision about nothing", [response()], [("OAI-MCP-1", "input.0", "prefix")]),
    (
        "two decisions",
        [request(), response(), response()],
        [("OAI-MCP-1", "input.2", "prefix")],
    ),
    ("program left open", [program(), user()], [("OAI-PROG-1", "input.0", "prefix")]),
    (
        "program output status",
        [program(), program_output(status="failed")],
        [("OAI-PROG-1", "input.1", "prefix")],
    ),
    (
        "caller without program",
        [call(**of_program()), output(**of_program())],
        [("OAI-PROG-1", "input.0", "prefix"), ("OAI-PROG-1", "input.1", "prefix")],
    ),
    ("arguments object", [call(arguments={}), output()], [("OAI-SHAPE-1", "input.0", "prefix")]),
    ("name", [call(name="a.b"), output()], [("OAI-SHAPE-1", "input.0", "prefix")]),
    (
        "name too long",
        [
            custom(name="n" * 129),
            {"type": "custom_tool_call_output", "call_id": "c1", "output": ""},
        ],
        [("OAI-SHAPE-1", "input.0", "prefix")],
    ),
    ("output object", [call(), output(text={"a": 1})], [("OAI-SHAPE-1", "input.1", "prefix")]),
    (
        "output part",
        [call(), output(text=[{"type": "text", "text": "x"}])],
        [("OAI-SHAPE-1", "input.1", "prefix")],
    ),
    (
        "assistant input_text",
        [says([{"type": "input_text", "text": "x"}])],
        [("OAI-SHAPE-2", "input.0.content.0", "prefix")],
    ),
    (
        "user output_text",
        [user([{"type": "input_text", "text": "x"}, {"type": "output_text", "text": "x"}])],
        [("OAI-SHAPE-2", "input.0.content.1", "prefix")],
    ),
    ("user status", [user(status="completed")], [("OAI-SHAPE-3", "input.0.status", "prefix")]),
    (
        "stored field",
        [call(created_by="x"), output()],
        [("OAI-SHAPE-3", "input.0.created_by", "prefix")],
    ),
    ("cut arguments", [call(arguments='{"a": '), output()], [("OAI-SHAPE-4", "input.0", "prefix")]),
    ("no arguments", [call(arguments=""), output()], [("OAI-SHAPE-4", "input.0", "prefix")]),
    ("nothing", [], [("OAI-SHAPE-4", "input", "send")]),
    ("no object", ["hi"], [("GEN-SHAPE-1", "input.0", "prefix")]),
    ("no type", [{}], [("GEN-SHAPE-1", "input.0", "prefix")]),
    ("unknown role", [{"role": "tool", "content": ""}], [("GEN-SHAPE-1", "input.0", "prefix")]),
    ("no content", [{"role": "user"}], [("GEN-SHAPE-1", "input.0", "prefix")]),
    ("content of a number", [user(7)], [("GEN-SHAPE-1", "input.0", "prefix")]),
    ("part of a number", [user([7])], [("GEN-SHAPE-1", "input.0.content.0", "prefix")]),
    ("call_id of a list", [call([])], [("GEN-SHAPE-1", "input.0", "prefix")]),
    (
        "approve of text",
        [request(), response(approve="yes")],
        [
            ("OAI-MCP-1", "input.0", "send"),
            ("GEN-SHAPE-1", "input.1", "prefix"),
        ],
    ),
    (
        "the newest anonymous search is answered",
        [tool_search(None), tool_search(None), tools(None)],
        [("OAI-PAIR-1", "input.0", "send")],
    ),
]

STATELESS: list[tuple[str, list[Item], list[tuple[str, str, str]]]] = [
    ("plain reasoning", [reasoning(), says()], [("OAI-STORE-1", "input.0", "prefix")]),
    (
        "reference",
        [{"type": "item_reference", "id": "msg_1"}],
        [("OAI-STORE-1", "input.0", "prefix")],
    ),
    ("message id", [says(id="msg_1")], [("OAI-STORE-1", "input.0", "prefix")]),
    ("call id", [call(id="fc_1"), output()], [("OAI-STORE-1", "input.0", "prefix")]),
    ("sealed reasoning", [reasoning(encrypted_content="g"), says()], []),
    ("hosted id", [search()], []),
]

FINE: list[tuple[str, list[Any]]] = [
    ("text between call and output", [call(), user(), output(), says()]),
    ("answered in any order", [call("a"), call("b"), output("b"), output("a")]),
    ("reasoning before a call", [reasoning("rs_1"), reasoning("rs_2"), call(), output()]),
    ("reasoning before a reference", [reasoning(), {"type": "item_reference", "id": "msg_1"}]),
    ("reference without a type", [{"id": "msg_1"}]),
    ("message without a type", [{"role": "developer", "content": "be brief"}]),
    ("search by the provider", [tool_search("s", execution="server"), user()]),
    ("output of the provider's search", [tools("s", execution="server")]),
    ("open program", [program(), call(**of_program()), output(**of_program())]),
    ("ended program", [program(), program_output(), user()]),
    ("direct caller", [call(caller={"type": "direct"}), output()]),
    ("decided", [request(), response(), user()]),
    ("unknown type", [{"type": "hologram", "id": 7}, user()]),
    ("unknown part", [user([{"type": "input_smell", "smell": 1}])]),
    ("NaN in arguments", [call(arguments='{"a": NaN}'), output()]),
    ("deep arguments", [call(arguments='{"a":' * 5000 + "1" + "}" * 5000), output()]),
    ("compaction first", [{"type": "compaction", "encrypted_content": "g"}, user()]),
    ("trigger last", [user(), {"type": "compaction_trigger"}]),
    ("output parts", [call(), output(text=[{"type": "input_text", "text": "x"}])]),
    ("refusal", [says([{"type": "refusal", "refusal": "no"}], phase="final_answer")]),
]


@pytest.mark.parametrize(("items", "expected"), [case[1:] for case in BROKEN])
def test_each_rule_fires_at_its_place(
    items: list[Any], expected: list[tuple[str, str, str]]
) -> None:
    assert found(items) == expected
    assert scan(items, {}) != []


@pytest.mark.parametrize(("items", "expected"), [case[1:] for case in STATELESS])
def test_store_false_refers_to_nothing(
    items: list[Any], expected: list[tuple[str, str, str]]
) -> None:
    assert found(items, store=False) == expected
    assert found(items) == []
    assert bool(scan(items, {"store": False})) == bool(expected)


@pytest.mark.parametrize("items", [case[1] for case in FINE])
def test_what_is_fine_is_left_alone(items: list[Any]) -> None:
    assert found(items) == []


def test_every_rule_of_this_api_is_among_the_examples() -> None:
    shown = {rule for case in (*BROKEN, *STATELESS) for rule, _, _ in case[2]}
    judged = {rule.id for rule in RULES.values() if rule.scope in ("prefix", "send")}
    assert {rule for rule in judged if rule.startswith("OAI-")} == shown - {"GEN-SHAPE-1"}


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("items", [[], [output()], [response()], [output(**of_program())]])
def test_under_a_chain_the_other_half_may_stand_on_the_server(chain: str, items: list[Any]) -> None:
    assert found(items, **{chain: "r_1"}) == []
    assert found([call(), user()], **{chain: "r_1"}) == [("OAI-PAIR-1", "input.0", "prefix")]


def test_a_prompt_may_stand_for_the_input() -> None:
    assert found([], prompt={"id": "pmpt_1"}) == []
    assert scan([], {"prompt": {"id": "pmpt_1"}}) == []
    assert scan([], {}) == [(0, 0)]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (custom(), "No tool output found for custom tool call c1."),
        (LOCAL_SHELL, "No tool output found for local shell call c1."),
        (COMPUTER, "No tool output found for computer call c1."),
        (tool_search(), "No tool output found for tool search call c1."),
        (call("c" * 200), "No tool output found for function call " + "c" * 97 + "...."),
    ],
)
def test_messages_are_in_the_words_of_the_api(made: Item, words: str) -> None:
    pairing = [one for one in violations([made, user()], {}) if one.rule == "OAI-PAIR-1"]
    assert [one.message for one in pairing] == [words]
    assert [one.grade for one in pairing] == ["R"]


def test_positions_come_in_order_and_then_the_rules() -> None:
    items = [says(id="x" * 70), user([{"type": "text", "text": ""}], status="x"), call()]
    rules = [(rule, path) for rule, path, _ in found(items)]
    assert rules == [
        ("OAI-ID-2", "input.0"),
        ("OAI-ID-3", "input.0"),
        ("OAI-SHAPE-3", "input.1.status"),
        ("OAI-SHAPE-2", "input.1.content.0"),
        ("OAI-PAIR-1", "input.2"),
    ]


# --- the fast pass ---


def turn(n: int) -> list[Item]:
    """One turn in the shapes that the loop of `scan` tests inline."""
    part = {"type": "output_text", "text": f"answer {n}", "annotations": []}
    done = {"status": "completed"}
    return [
        user([{"type": "input_text", "text": f"question {n}"}]),
        says([part], id=f"msg_{n}a", **done),
        call(f"c{n}a", '{"n": 1}', id=f"fc_{n}a", **done),
        call(f"c{n}b", '{"n": 2}', id=f"fc_{n}b", **done),
        output(f"c{n}a", "one"),
        output(f"c{n}b", "two"),
        says([part], id=f"msg_{n}b", **done),
    ]


def turns(count: int) -> list[Item]:
    return [item for n in range(count) for item in turn(n)]


def _set(field: str, value: Any) -> Callable[[list[Any], int], None]:
    def damage(items: list[Any], n: int) -> None:
        items[n] = {**items[n], field: value}

    return damage


def _drop(items: list[Any], n: int) -> None:
    del items[n]


def _double(items: list[Any], n: int) -> None:
    items.insert(n, items[n])


def _swap(items: list[Any], n: int) -> None:
    items[n - 1], items[n] = items[n], items[n - 1]


DAMAGES: list[Callable[[list[Any], int], None]] = [
    _drop,
    _double,
    _swap,
    *(
        _set(field, value)
        for field in ("id", "call_id", "name", "arguments", "output", "content", "type", "status")
        for value in (None, "", "\ud800", "c0a", "msg_0a", "fc_0a", LONG, "a\nfc_b", 7, [], [{}])
    ),
    *(_set("role", role) for role in ("user", "assistant", "system", "tool")),
    *(_set("content", [{"type": kind, "text": "x"}]) for kind in ("input_text", "output_text")),
    _set("extra", 1),
]


@st.composite
def plain_with_damage(draw: st.DrawFn) -> list[Any]:
    items: list[Any] = turns(draw(st.integers(1, 4)))
    for damage in draw(st.lists(st.sampled_from(DAMAGES), max_size=3)):
        if items:
            damage(items, draw(st.integers(0, len(items) - 1)))
    return items


REQUESTS = st.sampled_from([{}, {"store": False}, {"previous_response_id": "resp_1"}])


def assert_covered(items: list[Any], given_request: dict[str, Any]) -> None:
    """Every violation lies in a span, and no pair crosses the border of one."""
    spans = scan(items, given_request)
    assert all(first < stop for first, stop in spans)
    assert all(before[1] < behind[0] for before, behind in pairwise(spans))
    looked = {n for first, stop in spans for n in range(first, stop)}
    for one in violations(items, given_request):
        assert int(one.path.split(".")[1]) in looked, one
    assert all(n in looked or is_plain(item) for n, item in enumerate(items))
    borders = [0, *(n for span in spans for n in span), len(items)]
    for first, stop in zip(borders[::2], borders[1::2], strict=True):
        told = violations(items[first:stop], given_request)
        assert [one for one in told if one.path != "input"] == []


@given(plain_with_damage(), REQUESTS)
def test_what_the_scan_skips_is_clean_and_closed(
    items: list[Any], given_request: dict[str, Any]
) -> None:
    if items:
        assert_covered(items, given_request)


@given(strategies.damaged_history(API), REQUESTS)
def test_the_scan_misses_nothing_in_any_family(
    items: list[Any], given_request: dict[str, Any]
) -> None:
    if items:
        assert_covered(items, given_request)


def test_a_clean_history_has_no_span() -> None:
    assert scan(turns(50), {}) == []
    assert violations(turns(50), {}) == []


@given(strategies.valid_history(API))
def test_a_valid_history_is_valid(items: list[Any]) -> None:
    assert [one for one in violations(items, {}) if one.scope == "prefix"] == []


def test_a_span_is_about_one_turn() -> None:
    items = turns(30)
    del items[10 * 7 + 4]
    assert scan(items, {}) == [(70, 76)]
    items = turns(30)
    items.insert(10 * 7 + 4, user())
    assert scan(items, {}) == [(70, 77)]
    items = turns(30)
    items[20 * 7 + 1] = {**items[20 * 7 + 1], "id": "msg_3a"}
    spans = scan(items, {})
    assert [span[0] for span in spans] == [21, 140]
    assert sum(stop - first for first, stop in spans) <= 14


def test_a_long_run_without_a_user_is_cut_between_model_turns() -> None:
    items: list[Any] = [user()]
    for n in range(40):
        items += [call(f"c{n}"), output(f"c{n}")]
    items[41] = {**items[41], "arguments": "{"}
    assert scan(items, {}) == [(41, 43)]


def test_touched_calls_are_looked_at() -> None:
    assert scan(turns(9), {}, frozenset({"c4b"})) == [(28, 34)]
    assert scan(turns(9), {}, frozenset({"elsewhere"})) == []


# --- anything at all ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "c1", "message", "user"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "role"]), inner, max_size=2)
    ),
    max_leaves=4,
)
ODD_ITEMS = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda type_: st.fixed_dictionaries(
        {"type": st.just(type_)},
        optional={name: JSON for name in FIELDS[type_] if name != "type"},
    )
)


@given(st.lists(ODD_ITEMS | JSON, max_size=6), REQUESTS)
def test_no_shape_raises(items: list[Any], given_request: dict[str, Any]) -> None:
    told = violations(items, given_request)
    assert told == sorted(told, key=lambda one: (one.path != "input", int(_index(one.path))))
    if items:
        assert_covered(items, given_request)


def _index(path: str) -> str:
    return path.split(".")[1] if "." in path else "-1"


@given(strategies.damaged_history(API), REQUESTS)
def test_the_checker_agrees_with_brute_force(
    items: list[Any], given_request: dict[str, Any]
) -> None:
    told = {(one.rule, one.path, one.scope) for one in violations(items, given_request)}
    expected = brute.violations(API, items, given_request)
    assert sorted(told) == [entry for entry in expected if entry[0] != "GEN-JSON-1"]


@pytest.mark.parametrize("count", [400])
def test_ten_thousand_levels_and_long_ids_are_no_problem(count: int) -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    items = [user(), {**call(), "caller": deep}, call("c" * 1_000_000)] * count
    assert len(violations(items, {})) >= count
    assert scan(items, {}) == [(0, len(items))]


def test_calls_of_every_family_are_known_by_their_fields() -> None:
    for family in BY_CALL.values():
        assert "call_id" in FIELDS[family.call]
        assert "call_id" in FIELDS[family.output]
        assert inspect({"type": family.call}, 0, stateless=False)[0] in ("call", "program")
    assert json.loads(json.dumps(sorted(FIELDS))) == sorted(FIELDS)
