"""Whatever is handed in: a typed error that names the place, or a lossless answer."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast

import anthropic.types as ant
import openai.types.chat as oai_chat
import openai.types.responses as oai
import pytest
from client_calls import APIS
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged_history, valid_history

from stopkit import Api
from stopkit.normalizer import (
    EvidenceError,
    HistoryError,
    Normalizer,
    UnknownApiError,
    check,
    normalize,
)

Item = dict[str, Any]
every_api = pytest.mark.parametrize("api", APIS)


def root_of(api: Api) -> str:
    return "input" if api == "openai.responses" else "messages"


def told(api: Api, history: Any, request: Any = None) -> str | None:
    """What check and normalize make of it: the path that normalize refuses, or None.

    Anything but a HistoryError comes through, and so fails the test.
    """
    checked = check(history, api=api, request=request)
    assert all(v.path.startswith(root_of(api)) and v.message for v in checked.violations)
    try:
        result = normalize(history, api=api, request=request)
    except HistoryError as error:
        refused = error
    else:
        assert len(result.undo()) == len(history)
        assert isinstance(result.changes, list)
        assert isinstance(result.outcomes, list)
        return None
    assert refused.path.startswith(root_of(api)), refused
    assert not checked.valid, refused
    return refused.path


# --- not a history -------------------------------------------------------------------------------


NOT_HISTORIES: list[Any] = [None, True, 0, 1.5, "[]", b"[]", bytearray(b"[]"), {1}, {}, object()]


@every_api
@pytest.mark.parametrize("function", [check, normalize])
@pytest.mark.parametrize("what", NOT_HISTORIES, ids=lambda what: type(what).__name__)
def test_what_is_no_list_is_refused(api: Api, function: Callable[..., object], what: Any) -> None:
    for history in (what, {root_of(api): what}, iter([{"role": "user", "content": "x"}])):
        if api == "openai.responses" and history == {"input": "[]"}:
            continue  # the API takes a text as its input
        with pytest.raises(HistoryError) as refused:
            function(history, api=api)
        assert refused.value.path == root_of(api)


@pytest.mark.parametrize("function", [check, normalize])
@pytest.mark.parametrize("wrong", ["", "openai", "anthropic.messages ", None, 7, [], {}])
def test_an_unknown_api_is_refused(function: Callable[..., object], wrong: Any) -> None:
    with pytest.raises(UnknownApiError) as refused:
        function([], api=wrong)
    assert refused.value.path == "api"
    with pytest.raises(UnknownApiError):
        Normalizer(wrong)


@every_api
def test_an_unknown_word_for_live_is_refused(api: Api) -> None:
    with pytest.raises(HistoryError) as refused:
        normalize([], api=api, live=cast("Any", "maybe"))
    assert refused.value.path == "live"


@every_api
@pytest.mark.parametrize("request_", [7, "x", [], [("model", "x")]])
def test_a_request_is_a_mapping(api: Api, request_: Any) -> None:
    for function in (check, normalize):
        with pytest.raises(HistoryError) as refused:
            function([], api=api, request=request_)
        assert refused.value.path == "request"


EVIDENCE: list[tuple[Any, str]] = [
    (7, "evidence"),
    ([], "evidence"),
    ("c", "evidence"),
    ({7: {"status": "running"}}, "evidence"),
    ({"c": None}, "evidence.c"),
    ({"c": "running"}, "evidence.c"),
    ({"c": {}}, "evidence.c"),
    ({"c": {"status": "cancelled"}}, "evidence.c"),
    ({"c": {"status": []}}, "evidence.c"),
    ({"c": {"status": "running", "extra": 1}}, "evidence.c"),
    ({"c": {"status": "stopped", "after": float("nan")}}, "evidence.c"),
    ({"c": {"status": "succeeded", "output": 7}}, "evidence.c"),
]


@every_api
@pytest.mark.parametrize(("evidence", "path"), EVIDENCE, ids=lambda part: repr(part)[:40])
def test_evidence_that_is_none_is_refused(api: Api, evidence: Any, path: str) -> None:
    with pytest.raises(EvidenceError) as refused:
        normalize([], api=api, evidence=evidence)
    assert refused.value.path == path


@every_api
def test_requests_of_any_kind_are_read_or_left(api: Api) -> None:
    history = [{"role": "user", "content": "x"}]
    odd: list[Any] = [None, 7, "x", [], {}, [None], [7], [{}], {"type": 7}, [{"name": []}]]
    fields = ("model", "thinking", "tools", "system", "store", "previous_response_id")
    for field in (*fields, "conversation", "container", "tool_choice", "prompt", "include"):
        for value in odd:
            assert told(api, history, {field: value}) is None
            assert normalize({root_of(api): history, field: value}, api=api).undo() == history


# --- wrong things inside -------------------------------------------------------------------------


def places_in(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, from the outside in."""
    if where:
        yield where
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, (dict, list)):
            yield from places_in(part, (*where, key))
        else:
            yield (*where, key)


def put(history: Any, where: tuple[Any, ...], value: Any) -> None:
    if not where:
        history.append(value)
        return
    for key in where[:-1]:
        history = history[key]
    history[where[-1]] = value


WRONG: list[Any] = [
    None,
    True,
    0,
    -1.5,
    float("nan"),
    float("inf"),
    10**400,
    "",
    " ",
    "x",
    "\udcff",
    '{"a": NaN}',
    [],
    [None],
    [[]],
    [7],
    ["x"],
    {},
    {"type": None},
    {"type": "text"},
    {"type": "tool_use"},
    {"type": "tool_result"},
    {"type": ["text"]},
    {"role": "user"},
    {"\udcff": 1},
    {7: 1},
    b"x",
    {1, 2},
    object(),
    Decimal(1),
    (1, 2),
]


@every_api
def test_any_wrong_value_at_any_place(api: Api) -> None:
    refused = 0

    @settings(max_examples=300)
    @given(
        st.one_of(valid_history(api), damaged_history(api)),
        st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(WRONG)), min_size=1, max_size=2),
    )
    def answered(history: list[Any], wrongs: list[tuple[int, Any]]) -> None:
        nonlocal refused
        history = copy.deepcopy(history)
        for at, wrong in wrongs:
            places = list(places_in(history)) or [()]
            put(history, places[at % len(places)], copy.deepcopy(wrong))
        refused += told(api, history) is not None

    answered()
    assert refused


@every_api
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_a_wrong_item_among_others(api: Api, wrong: Any) -> None:
    for history in ([wrong], [{"role": "user", "content": "x"}, wrong]):
        assert told(api, history) is None or told(api, history).startswith(  # type: ignore[union-attr]
            f"{root_of(api)}.{len(history) - 1}"
        )


@every_api
@pytest.mark.parametrize("role", ["", "tool_", "USER", "ipython", None, 7, [], {}])
def test_an_unknown_role_is_told_at_its_message(api: Api, role: Any) -> None:
    history = [{"role": "user", "content": "x"}, {"role": role, "content": "y"}]
    checked = check(history, api=api)
    assert "GEN-SHAPE-1" in {violation.rule for violation in checked.violations}
    path = told(api, history)
    assert path is not None
    assert path.startswith(f"{root_of(api)}.1")


UNKNOWN: dict[Api, list[Any]] = {
    "anthropic.messages": [
        {"role": "user", "content": [{"type": "hologram", "data": {"deep": [1]}}]},
        {"role": "assistant", "content": [{"type": "daydream", "id": 7}]},
    ],
    "openai.responses": [
        {"type": "message", "role": "user", "content": [{"type": "input_smell", "smell": "tea"}]},
        {"type": "dream", "id": 7, "call_id": ["x"]},
    ],
    "openai.chat": [
        {"role": "user", "content": [{"type": "input_smell", "smell": "tea"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "y"}, {"type": "sigh"}]},
    ],
}


@every_api
def test_unknown_types_pass_untouched(api: Api) -> None:
    history = UNKNOWN[api]
    result = normalize(history, api=api)
    assert result.history is history
    orphan: Any = {
        "anthropic.messages": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "gone", "content": "r"}],
        },
        "openai.responses": {"type": "function_call_output", "call_id": "gone", "output": "r"},
        "openai.chat": {"role": "tool", "tool_call_id": "gone", "content": "r"},
    }[api]
    mended = normalize([*history, orphan], api=api)
    assert [id(item) for item in mended.history[:2]] == [id(item) for item in history]
    assert mended.changes


@every_api
def test_surrogates_become_a_mark_and_the_report_holds_them(api: Api) -> None:
    history: list[Any] = [{"role": "user", "content": "a\ud800b"}]
    result = normalize(history, api=api)
    assert "a\ufffdb" in str(result.history)
    assert "\\ud800" in ascii([change.removed for change in result.changes])
    assert result.undo() == history
    assert told(api, [{"role": "user", "content": "x", "\ud800": 1}]) is not None
    assert told(api, [{"role": "user", "content": "x", "k": {"\ud800": 1}}]) is not None


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


@every_api
@pytest.mark.parametrize("levels", [300, 10_000])
def test_deep_nesting_is_told_at_its_item(api: Api, levels: int) -> None:
    history = [{"role": "user", "content": "x"}, {"role": "user", "content": nested(levels)}]
    path = told(api, history)
    assert path is not None
    assert path.startswith(f"{root_of(api)}.1.content")
    assert len(path) < 200
    del history[1]["content"]
    for place in ("input", "extra"):
        history[1] = {"role": "user", "content": "x", place: nested(levels)}
        path = told(api, history)
        assert path is not None
        assert path.startswith(f"{root_of(api)}.1.{place}")


@every_api
def test_text_of_a_call_may_be_nested_json(api: Api) -> None:
    """JSON in a string is nested without any nesting of ours."""
    deep = "[" * 100_000
    histories: dict[Api, list[Any]] = {
        "anthropic.messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": deep}],
            },
        ],
        "openai.responses": [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": deep}
        ],
        "openai.chat": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
                ],
            }
        ],
    }
    assert told(api, histories[api]) is None


@every_api
@pytest.mark.parametrize("link", ["list", "dict", "item", "crossed"])
def test_what_contains_itself_is_refused(api: Api, link: str) -> None:
    loop: Any = []
    match link:
        case "list":
            loop.append(loop)
        case "dict":
            loop = {"type": "text", "text": "x"}
            loop["self"] = loop
        case "crossed":
            other: Any = {"type": "text", "text": "x", "other": loop}
            loop.append(other)
        case _:
            loop = {"role": "user"}
            loop["content"] = [loop]
    history = [loop] if link == "item" else [{"role": "user", "content": [loop]}]
    path = told(api, history)
    assert path is not None
    assert path.startswith(f"{root_of(api)}.0")
    assert len(path) < 200


@every_api
def test_a_history_that_contains_itself_is_refused(api: Api) -> None:
    history: list[Any] = [{"role": "user", "content": "x"}]
    history.append(history)
    path = told(api, history)
    assert path is not None
    assert path.startswith(f"{root_of(api)}.1")
    body: Item = {}
    body[root_of(api)] = body
    with pytest.raises(HistoryError):
        check(body, api=api)
    with pytest.raises(HistoryError):
        normalize(body, api=api)


# --- much of it ----------------------------------------------------------------------------------


def calls_in_one_turn(api: Api, ids: list[str]) -> list[Any]:
    match api:
        case "anthropic.messages":
            blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            return [{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}]
        case "openai.responses":
            call = {"type": "function_call", "name": "f", "arguments": "{}"}
            return [{"role": "user", "content": "x"}, *({**call, "call_id": i} for i in ids)]
        case "openai.chat":
            function = {"name": "f", "arguments": "{}"}
            made = [{"id": i, "type": "function", "function": function} for i in ids]
            turn = {"role": "assistant", "content": None, "tool_calls": made}
            return [{"role": "user", "content": "x"}, turn]


def results_of(api: Api, ids: list[str]) -> list[Any]:
    match api:
        case "anthropic.messages":
            return [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": i, "content": f"r {n}"}],
                }
                for n, i in enumerate(ids)
            ]
        case "openai.responses":
            kind = "function_call_output"
            return [{"type": kind, "call_id": i, "output": f"r {n}"} for n, i in enumerate(ids)]
        case "openai.chat":
            return [
                {"role": "tool", "tool_call_id": i, "content": f"r {n}"} for n, i in enumerate(ids)
            ]


@every_api
def test_a_hundred_thousand_open_calls_in_one_turn(api: Api) -> None:
    ids = [f"call_{number}" for number in range(100_000)]
    result = normalize([*calls_in_one_turn(api, ids), {"role": "user", "content": "y"}], api=api)
    assert Counter(entry.status for entry in result.outcomes) == {"unknown": len(ids)}
    assert result.sendable
    assert len(result.changes) >= len(ids)


@every_api
def test_all_results_of_a_large_turn_behind_a_later_one(api: Api) -> None:
    ids = [f"call_{number}" for number in range(10_000)]
    later = [{"role": "assistant", "content": "done"}, {"role": "user", "content": "y"}]
    history = [*calls_in_one_turn(api, ids), *later, *results_of(api, ids)]
    result = normalize(history, api=api)
    assert Counter(entry.status for entry in result.outcomes) == {"succeeded": len(ids)}
    assert check(result.history, api=api).valid
    assert len(result.undo()) == len(history)


@every_api
def test_all_calls_of_a_large_turn_with_one_id(api: Api) -> None:
    ids = ["call_x"] * 10_000
    history = [*calls_in_one_turn(api, ids), *results_of(api, ids)]
    result = normalize(history, api=api)
    assert check(result.history, api=api).valid
    kept = json.dumps(list(result.history)) + json.dumps([c.removed for c in result.changes])
    words = set(re.findall(r"r \d+\b", kept))
    assert words >= {f"r {number}" for number in range(len(ids))}


@every_api
def test_ids_of_a_megabyte(api: Api) -> None:
    long = ["a" * 1_000_000, "a" * 999_999 + "b"]
    history = [*calls_in_one_turn(api, long), *results_of(api, long)]
    assert not check(history, api=api).valid or api == "anthropic.messages"
    result = normalize(history, api=api)
    assert check(result.history, api=api).valid
    assert [entry.status for entry in result.outcomes] == ["succeeded"] * 2
    assert [entry.outcome.output for entry in result.outcomes] == ["r 0", "r 1"]
    assert result.undo() == history
    again = normalize(history, api=api)
    assert again.history == result.history
    orphans = normalize([{"role": "user", "content": "x"}, *results_of(api, long)], api=api)
    assert len(json.dumps(list(orphans.history))) < 2_100_000


# --- other classes -------------------------------------------------------------------------------


class Words(str):
    """A string of another class, as template engines make them."""


@every_api
def test_other_mappings_sequences_and_strings_are_read(api: Api) -> None:
    plain: list[Any] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    for history in (
        tuple(plain),
        deque(plain),
        [UserDict(item) for item in plain],
        [MappingProxyType(item) for item in plain],
        [{**plain[0], "content": Words("x")}, plain[1]],
        MappingProxyType({root_of(api): plain}),
        UserDict({root_of(api): tuple(plain)}),
    ):
        assert check(cast("Any", history), api=api).valid
        result = normalize(cast("Any", history), api=api)
        assert result.changes == []
        assert len(result.history) == 2
        assert result.history[0]["content"] == "x"


def anthropic_objects() -> list[Any]:
    usage = ant.Usage(input_tokens=1, output_tokens=1)
    asked = ant.Message(
        id="msg_1",
        content=[
            ant.ThinkingBlock(type="thinking", thinking="hm", signature="sig"),
            ant.TextBlock(type="text", text="look", citations=None),
            ant.ToolUseBlock(type="tool_use", id="toolu_1", name="f", input={"a": 1}),
            ant.ToolUseBlock(type="tool_use", id="toolu_2", name="f", input={}),
        ],
        model="claude-sonnet-4-5",
        role="assistant",
        stop_reason="tool_use",
        stop_sequence=None,
        type="message",
        usage=usage,
    )
    answer = ant.ToolResultBlockParam(type="tool_result", tool_use_id="toolu_1", content="r1")
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [answer]},
    ]


def test_objects_of_the_anthropic_sdk() -> None:
    go, asked, answer = anthropic_objects()
    api: Api = "anthropic.messages"
    whole = [go, {**asked, "content": asked["content"][:3]}, answer]
    result = normalize(whole, api=api)
    assert check(whole, api=api).sendable
    assert result.sendable
    assert all(old is new for old, new in zip(whole, result.history, strict=True))
    assert result.changes == []

    broken = [*whole, {"role": "assistant", "content": "so"}, go, asked, go]
    mended = normalize(broken, api=api)
    assert all(old is new for old, new in zip(broken[:5], mended.history[:5], strict=True))
    assert mended.sendable
    assert mended.undo() == broken
    assert [entry.status for entry in mended.outcomes] == ["succeeded", "unknown", "unknown"]
    plain = json.dumps(mended.history[5:], default=lambda value: value.model_dump(mode="json"))
    assert "signature" in plain


def test_a_message_object_as_it_came_from_the_anthropic_sdk() -> None:
    message = ant.Message(
        id="msg_1",
        content=[ant.ToolUseBlock(type="tool_use", id="toolu_1", name="f", input={})],
        model="claude-sonnet-4-5",
        role="assistant",
        stop_reason="tool_use",
        stop_sequence=None,
        type="message",
        usage=ant.Usage(input_tokens=1, output_tokens=1),
    )
    history: list[Any] = [{"role": "user", "content": "go"}, message]
    result = normalize(history, api="anthropic.messages")
    assert result.history[0] is history[0]
    assert [entry.status for entry in result.outcomes] == ["unknown"]
    assert check(result.history, api="anthropic.messages").sendable
    assert result.undo() == history
    assert result.undo()[1] is message


def test_objects_of_the_openai_sdk_for_responses() -> None:
    api: Api = "openai.responses"
    reasoning = oai.ResponseReasoningItem(id="rs_1", summary=[], type="reasoning")
    call = oai.ResponseFunctionToolCall(
        id="fc_1", call_id="call_1", name="f", arguments="{}", type="function_call"
    )
    text = oai.ResponseOutputText(annotations=[], text="so", type="output_text")
    said = oai.ResponseOutputMessage(
        id="msg_1", content=[text], role="assistant", status="completed", type="message"
    )
    output = {"type": "function_call_output", "call_id": "call_1", "output": "r"}
    go = {"role": "user", "content": "go"}
    whole: list[Any] = [go, reasoning, call, output, said, go]
    result = normalize(whole, api=api)
    assert check(whole, api=api).sendable
    assert result.sendable
    assert all(old is new for old, new in zip(whole, result.history, strict=True))
    assert [entry.status for entry in result.outcomes] == ["succeeded"]

    broken: list[Any] = [go, reasoning, call, said, go]
    mended = normalize(broken, api=api)
    assert mended.sendable
    assert [mended.history[at] is broken[at] for at in range(3)] == [True] * 3
    assert mended.history[-1] is go
    assert mended.history[-2] is said
    assert [entry.status for entry in mended.outcomes] == ["unknown"]
    assert mended.undo() == broken


def test_objects_of_the_openai_sdk_for_chat() -> None:
    api: Api = "openai.chat"
    asked = oai_chat.ChatCompletionMessage(
        role="assistant",
        content=None,
        tool_calls=[
            oai_chat.ChatCompletionMessageToolCall(
                id="call_1",
                type="function",
                function=oai_chat.chat_completion_message_function_tool_call.Function(
                    name="f", arguments="{}"
                ),
            )
        ],
    )
    said = oai_chat.ChatCompletionMessage(role="assistant", content="so")
    go = oai_chat.ChatCompletionUserMessageParam(role="user", content="go")
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "r"}
    whole: list[Any] = [go, asked, answer, said, go]
    result = normalize(whole, api=api)
    assert check(whole, api=api).sendable
    assert all(old is new for old, new in zip(whole, result.history, strict=True))
    assert [entry.status for entry in result.outcomes] == ["succeeded"]

    broken: list[Any] = [go, asked, said, go]
    mended = normalize(broken, api=api)
    assert mended.sendable
    assert [mended.history[at] is broken[at] for at in range(2)] == [True] * 2
    assert mended.history[-2] is said
    assert [entry.status for entry in mended.outcomes] == ["unknown"]
    assert mended.undo() == broken
