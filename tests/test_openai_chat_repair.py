"""`normalize` for `openai.chat`: each repair by example, the public cases, and the invariants."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import brute
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_message_function_tool_call import Function

from stopkit import Api
from stopkit.normalizer import CallOutcome, HistoryError, Normalized, Normalizer, check, normalize
from stopkit.normalizer.dialects.openai_chat import violations
from stopkit.normalizer.wording import late_note, made_up, orphan_note
from stopkit.outcome import NotStarted, Placeholder, Running, Stopped, Succeeded, Unknown

API: Api = "openai.chat"
CASES = Path(__file__).parent / "data" / "cases"
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
Item = dict[str, Any]

unknown = made_up(Unknown(reason="no_result_recorded"))
not_started = made_up(NotStarted(reason="call_incomplete"))


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


def custom(call_id: Any = "c1", text: str = "ls") -> Item:
    return {"id": call_id, "type": "custom", "custom": {"name": "shell", "input": text}}


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


def text(words: str) -> Item:
    return {"type": "text", "text": words}


def mended(items: list[Any], **options: Any) -> Normalized[Any]:
    """`normalize`, with what holds for every repair."""
    before = copy.deepcopy(items)
    result = normalize(items, api=API, **options)
    assert items == before
    undone = result.undo()
    assert len(undone) == len(items)
    assert all(old is new for old, new in zip(undone, items, strict=True))
    return result


def history(items: list[Any], **options: Any) -> list[Any]:
    return list(mended(items, **options).history)


REPAIRS: dict[str, tuple[list[Item], list[Item]]] = {
    "CHAT-PAIR-1 made up behind what is recorded": (
        [calls(call("a"), call("b"), call("c")), tool("b"), user()],
        [
            calls(call("a"), call("b"), call("c")),
            *[tool("b"), tool("a", unknown), tool("c", unknown)],
            user(),
        ],
    ),
    "CHAT-PAIR-1 a custom call": ([calls(custom())], [calls(custom()), tool("c1", unknown)]),
    "CHAT-PAIR-1 a result behind a later turn": (
        [calls(call()), says(), user(), tool(), says("b")],
        [calls(call()), tool(), says(), user(), says("b")],
    ),
    "CHAT-PAIR-1 a result before its call": (
        [user(), tool(), calls(call()), says()],
        [user(), calls(call()), tool(), says()],
    ),
    "CHAT-ORD-1": (
        [calls(call("a"), call("b")), tool("a"), user(), tool("b")],
        [calls(call("a"), call("b")), tool("a"), tool("b"), user()],
    ),
    "CHAT-PAIR-2": (
        [user(), tool("gone", "42 rows"), says()],
        [user(), user(orphan_note("gone", "42 rows")), says()],
    ),
    "CHAT-PAIR-2 inside a block": (
        [calls(call("a"), call("b")), tool("a"), tool("x", "r"), tool("b")],
        [calls(call("a"), call("b")), tool("a"), tool("b"), user(orphan_note("x", "r"))],
    ),
    "CHAT-PAIR-2 with an image": (
        [user(), tool("x", [text("r"), IMAGE])],
        [user(), user([text(orphan_note("x", "r")), IMAGE])],
    ),
    "CHAT-ID-1 an identical copy of a result": (
        [calls(call()), tool(), tool()],
        [calls(call()), tool()],
    ),
    "CHAT-ID-1 two results": (
        [calls(call()), tool(content="one"), tool(content="two")],
        [calls(call()), tool(content="one\n[stopkit: recorded result 2 of the same call]\ntwo")],
    ),
    "CHAT-ID-1 two results, one with parts": (
        [calls(call()), tool(content=[text("one"), IMAGE]), tool(content="two")],
        [
            calls(call()),
            tool(
                content=[
                    text("one"),
                    text("[stopkit: recorded result 2 of the same call]"),
                    text("two"),
                ]
            ),
            user([IMAGE]),
        ],
    ),
    "CHAT-ID-1 a placeholder beside a result": (
        [calls(call()), tool(content="aborted"), tool(content="real")],
        [calls(call()), tool(content="real")],
    ),
    "CHAT-ID-1 two calls with one id": (
        [
            calls(call("t", "write", '{"f": "a"}'), call("t", "write", '{"f": "b"}')),
            tool("t", "wrote a"),
            tool("t", "wrote b"),
        ],
        [
            calls(call("t", "write", '{"f": "a"}'), call("t-2", "write", '{"f": "b"}')),
            tool("t", "wrote a"),
            tool("t-2", "wrote b"),
        ],
    ),
    "CHAT-ID-1 an identical copy of a call": (
        [calls(call(), call()), tool()],
        [calls(call()), tool()],
    ),
    "CHAT-ID-1 the same message twice": (
        [user(), calls(call()), calls(call()), tool()],
        [user(), calls(call()), tool()],
    ),
    "CHAT-ARG-1 an object": (
        [calls(call(arguments={"q": "é"})), tool()],
        [calls(call(arguments='{"q": "é"}')), tool()],
    ),
    "CHAT-ARG-1 nothing": (
        [
            calls(call("a", arguments=""), call("b", arguments=None), call("c", arguments="[]")),
            *[tool(one) for one in "abc"],
        ],
        [calls(call("a"), call("b"), call("c")), *[tool(one) for one in "abc"]],
    ),
    "CHAT-ARG-1 encoded twice": (
        [calls(call(arguments='"{\\"q\\": 1}"')), tool()],
        [calls(call(arguments='{"q": 1}')), tool()],
    ),
    "CHAT-ARG-1 a fragment": (
        [calls(call(arguments='{"q": "ti')), user()],
        [
            calls(call(arguments='{"incomplete_arguments": "{\\"q\\": \\"ti"}')),
            tool(content=not_started),
            user(),
        ],
    ),
    "CHAT-ARG-1 no JSON constant": (
        [calls(call(arguments='{"n": NaN}')), tool()],
        [calls(call(arguments='{"incomplete_arguments": "{\\"n\\": NaN}"}')), tool()],
    ),
    "CHAT-ARG-1 a list": (
        [calls(call(arguments="[1]"), call("b", arguments=[1])), tool(), tool("b")],
        [
            calls(
                call(arguments='{"incomplete_arguments": "[1]"}'),
                call("b", arguments='{"incomplete_arguments": "[1]"}'),
            ),
            *[tool(), tool("b")],
        ],
    ),
    "CHAT-ARG-1 a fragment that was answered": (
        [calls(call(arguments="{")), tool(content="error")],
        [calls(call(arguments='{"incomplete_arguments": "{"}')), tool(content="error")],
    ),
    "CHAT-EMPTY-1": ([{**says(), "tool_calls": []}], [says()]),
    "CHAT-EMPTY-2": (
        [user("hm"), calls(), user("still?"), says(""), says(None), {"role": "assistant"}],
        [user("hm"), user("still?")],
    ),
    "CHAT-EMPTY-2 between a call and its result": (
        [calls(call()), says(""), tool()],
        [calls(call()), tool()],
    ),
    "CHAT-TOOL-1 nothing": (
        [calls(call("a"), call("b")), tool("a", None), {"role": "tool", "tool_call_id": "b"}],
        [calls(call("a"), call("b")), tool("a", ""), tool("b", "")],
    ),
    "CHAT-TOOL-1 images": (
        [calls(call("a"), call("b")), tool("a", [IMAGE]), tool("b", [text("x"), IMAGE]), says()],
        [
            calls(call("a"), call("b")),
            *[tool("a", ""), tool("b", [text("x")])],
            user([IMAGE, IMAGE]),
            says(),
        ],
    ),
    "CHAT-FN-1 unanswered": (
        [user(), legacy(), user()],
        [user(), calls(call("call_legacy_1")), tool("call_legacy_1", unknown), user()],
    ),
    "CHAT-FN-1 displaced": (
        [legacy(), user(), function()],
        [calls(call("call_legacy_0")), tool("call_legacy_0"), user()],
    ),
    "CHAT-FN-1 answered twice": (
        [legacy(), function(content="one"), function(content="two")],
        [
            calls(call("call_legacy_0")),
            tool("call_legacy_0", "one\n[stopkit: recorded result 2 of the same call]\ntwo"),
        ],
    ),
    "CHAT-FN-1 an identical copy": (
        [legacy(), function(), function()],
        [legacy(), function()],
    ),
    "CHAT-FN-1 without a call": (
        [user(), function("clock", "12:00")],
        [user(), user(orphan_note("clock", "12:00"))],
    ),
    "CHAT-FN-1 both kinds": (
        [{**legacy("clock"), "tool_calls": [call("a")]}, tool("a"), function("clock", None)],
        [calls(call("a"), call("call_legacy_0", "clock")), tool("a"), tool("call_legacy_0", "")],
    ),
    "CHAT-FN-1 a fragment": (
        [legacy(arguments="{"), function()],
        [
            calls(call("call_legacy_0", arguments='{"incomplete_arguments": "{"}')),
            tool("call_legacy_0"),
        ],
    ),
    "CHAT-NAME-1": (
        [calls(call("a", "read file"), call("b", "n" * 65), call("c", None)), tool("a"), tool("b")],
        [
            calls(call("a", "read_file"), call("b", "n" * 64), call("c", "unnamed_tool")),
            tool("a"),
            tool("b"),
            tool("c", not_started),
        ],
    ),
    "GEN-JSON-1": (
        [user("a\ud800b"), calls(call(), content="\ud800"), tool()],
        [user("a\ufffdb"), calls(call(), content="\ufffd"), tool()],
    ),
}


@pytest.mark.parametrize(("items", "expected"), REPAIRS.values(), ids=REPAIRS.keys())
def test_each_repair(items: list[Item], expected: list[Item]) -> None:
    result = mended(items)
    assert result.history == expected
    assert violations(expected, {}) == []
    assert result.sendable
    assert result.changes != []


@pytest.mark.parametrize("call_id", ["", "i" * 41, "é" * 60, "x" * 1_000_000])
def test_an_id_that_does_not_fit_is_renamed_on_both_sides(call_id: str) -> None:
    items = [calls(call(call_id)), tool(call_id), calls(call(call_id)), tool(call_id)]
    out = history(items)
    new = out[0]["tool_calls"][0]["id"]
    assert 1 <= len(new) <= 40
    assert [out[1]["tool_call_id"], out[2]["tool_calls"][0]["id"]] == [new, new]
    assert violations(out, {}) == []


def test_renames_are_injective() -> None:
    ids = ["i" * 40 + str(n) for n in range(50)] + ["i" * 40, ""]
    out = history([calls(*map(call, ids)), *map(tool, ids)])
    assert len({one["id"] for one in out[0]["tool_calls"]}) == len(ids)
    assert violations(out, {}) == []


def test_many_calls_with_one_long_id_stay_apart() -> None:
    made = [call("i" * 40, arguments=json.dumps({"n": n})) for n in range(200)]
    out = history([calls(*made), *[tool("i" * 40, f"r{n}") for n in range(200)]])
    assert violations(out, {}) == []
    by_id = {one["tool_call_id"]: one["content"] for one in out[1:]}
    for n, one in enumerate(out[0]["tool_calls"]):
        assert json.loads(one["function"]["arguments"]) == {"n": n}
        assert by_id[one["id"]] == f"r{n}"


def test_a_valid_history_is_the_very_same_list() -> None:
    items = [user(), calls(call()), tool(), legacy(), function(), says()]
    assert mended(items).history is items


def test_a_late_result_behind_an_answered_placeholder_is_marked_data() -> None:
    items = [calls(call()), tool(content="aborted"), says("I go on"), user(), tool(content="late")]
    out = history(items)
    assert out == [*items[:4], user(late_note("c1", 1, "late"))]
    assert history(out) == out


def test_a_late_result_names_the_occurrence_of_its_call() -> None:
    first = [calls(call()), tool(content="one"), says()]
    second = [calls(call()), tool(content="aborted"), says(), user()]
    out = history([*first, *second, tool(content="late")])
    assert out == [*first, *second, user(late_note("c1", 2, "late"))]


def test_evidence_goes_by_the_id_that_was_recorded() -> None:
    long_id = "i" * 50
    result = mended([calls(call(long_id)), tool(long_id, "x")], evidence={long_id: Stopped()})
    assert [(one.call_id, one.status) for one in result.outcomes] == [(long_id, "stopped")]


def test_the_sdk_objects_are_taken_as_they_are() -> None:
    function_ = Function(name="read", arguments="{}")
    made = ChatCompletionMessageFunctionToolCall(id="c1", type="function", function=function_)
    message = ChatCompletionMessage(role="assistant", content=None, tool_calls=[made])
    result = mended([user(), message])
    assert result.history == [user(), message, tool(content=unknown)]
    assert result.history[1] is message
    assert [one.call_id for one in result.outcomes] == ["c1"]
    copied = mended([user(), message, message])
    json.dumps([one.removed for one in copied.changes])


def test_a_copy_of_a_result_that_came_late_leaves() -> None:
    items = [calls(call()), tool(), says(), user(), tool()]
    assert history(items) == items[:4]


def test_evidence_chooses_the_words() -> None:
    result = mended([calls(call())], evidence={"c1": {"status": "stopped", "cause": "user"}})
    assert result.history[1]["content"] == made_up(Stopped(cause="user"))
    assert [(one.status, one.synthetic) for one in result.outcomes] == [("stopped", True)]


def test_evidence_by_occurrence() -> None:
    items = [calls(call()), tool(), calls(call())]
    result = mended(items, evidence={"c1#2": Stopped()})
    assert result.history[3]["content"] == made_up(Stopped())
    assert [one.status for one in result.outcomes] == ["succeeded", "stopped"]


def test_a_placeholder_that_nobody_answered_is_replaced() -> None:
    known = Succeeded(output="42")
    out = history([calls(call()), tool(content=unknown)], evidence={"c1": known})
    assert out == [calls(call()), tool(content=made_up(known))]


def test_news_about_an_answered_placeholder_goes_to_the_end_once() -> None:
    known = {"c1": Succeeded(output="42")}
    items = [calls(call()), tool(content=unknown), says(), user()]
    out = history(items, evidence=known)
    assert out == [*items, user(late_note("c1", 1, "42", "succeeded"))]
    assert history(out, evidence=known) == out


def test_a_running_call_stays_open() -> None:
    result = mended([user(), calls(call("a"), call("b")), tool("a")], evidence={"b": Running()})
    assert result.pending == ("b",)
    assert not result.sendable
    assert len(result.history) == 3
    assert [one.status for one in result.outcomes] == ["succeeded", "unknown"]


def test_live_keep_leaves_what_stands_behind_an_open_call() -> None:
    items = [calls(call("a"), call("b")), tool("a", [text("r"), IMAGE]), tool("x", "lost"), user()]
    result = mended(items, live="keep")
    assert result.pending == ("b",)
    assert not result.sendable
    assert result.history[0] is items[0]
    assert result.history[1] == tool("a", [text("r")])
    assert result.history[2:] == [
        {"role": "user", "content": [IMAGE]},
        user(orphan_note("x", "lost")),
        user(),
    ]


def test_live_keep_leaves_an_open_legacy_call() -> None:
    result = mended([user(), legacy()], live="keep")
    assert result.history == [user(), legacy()]
    assert result.pending == ("call_legacy_1",)


def test_outcomes_have_an_entry_for_each_call() -> None:
    items = [calls(call("a"), custom("b")), tool("a", "x"), tool("b", "aborted"), legacy()]
    result = mended([*items, function(content="y"), calls(call("a"), call("a"))])
    assert [(o.call_id, o.occurrence, o.name, o.status, o.synthetic) for o in result.outcomes] == [
        ("a", 1, "read", "succeeded", False),
        ("b", 1, "shell", "unknown", True),
        ("call_legacy_3", 1, "read", "succeeded", False),
        ("a", 2, "read", "unknown", True),
    ]


def test_a_trailing_assistant_message_is_a_hint() -> None:
    result = mended([user(), says()])
    assert result.sendable
    assert [hint.code for hint in result.hints] == ["needs_user_turn"]
    assert [hint.code for hint in mended([user(), legacy(), function()]).hints] == []


def test_no_messages_are_not_sendable() -> None:
    assert not check([], api=API).sendable
    assert check([], api=API).valid


@pytest.mark.parametrize(
    ("items", "path", "rule"),
    [
        ([user(), 3], "messages.1", "GEN-SHAPE-1"),
        ([{"role": "robot", "content": ""}], "messages.0", "GEN-SHAPE-1"),
        ([user([{}])], "messages.0.content.0", "GEN-SHAPE-1"),
        ([calls(call(7))], "messages.0.tool_calls.0", "GEN-SHAPE-1"),
        ([user([{"type": "x", "n": float("nan")}])], "messages.0.content.0.n", "GEN-JSON-1"),
        ([calls(call(arguments={"n": 10**5000}))], "messages.0.tool_calls.0", "GEN-JSON-1"),
    ],
)
def test_what_has_no_truthful_repair_is_refused(items: list[Any], path: str, rule: str) -> None:
    with pytest.raises(HistoryError) as caught:
        normalize(items, api=API)
    assert (caught.value.path, caught.value.rule) == (path, rule)


def test_a_living_history_is_frozen_as_it_is_sent() -> None:
    living = Normalizer(API)
    living.extend([user(), calls(call())])
    living.resolve("c1", Placeholder(reason="still building"))
    first = list(living.request().history)
    assert first[:2] == [user(), calls(call())]
    living.extend([says("I wait"), user("and?"), tool(content="built")])
    second = list(living.request().history)
    assert second[:3] == first
    assert second[3:] == [says("I wait"), user("and?"), user(late_note("c1", 1, "built"))]


# --- cases that were seen in public ---------------------------------------------------------------


def bugs() -> list[Item]:
    found = [json.loads(path.read_text()) for path in sorted((CASES / "bugs").glob("*.json"))]
    return [case for case in found if case["api"] == "openai_chat"]


def peers() -> list[Item]:
    lines = [
        json.loads(line)
        for path in sorted((CASES / "peers").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [case for case in lines if case["api"] == API]


@pytest.mark.parametrize("case", bugs(), ids=lambda case: case["id"])
def test_public_bugs(case: Item) -> None:
    items, expected = case["input"]["messages"], case["expect"]
    assert violations(items, {}) != []
    result = mended(items, evidence=case["input"].get("evidence"))
    assert violations(list(result.history), {}) == []
    written = json.dumps(result.history)
    for wanted in expected["must_keep"]:
        kind, *_, words = wanted.split(":") if ":" in wanted else ("", wanted)
        if kind in ("text", "result"):
            assert json.dumps(words)[1:-1] in written
    outcomes: dict[str, CallOutcome] = {}
    for one in result.outcomes:
        outcomes.setdefault(one.call_id, one)
        outcomes[f"{one.call_id}#{one.occurrence}"] = one
    for call_id, facts in expected.get("results", {}).items():
        assert outcomes[call_id].status == facts["outcome"]
        assert outcomes[call_id].synthetic == facts["synthetic"]
        if "reason" in facts:
            assert outcomes[call_id].outcome.reason == facts["reason"]


@pytest.mark.parametrize("case", peers(), ids=lambda case: f"{case['peer']}-{case['case']}")
def test_cases_of_peers(case: Item) -> None:
    items = case["input"]
    result = mended(items)
    assert violations(list(result.history), {}) == []
    assert nothing_lost(items, result) == []
    if not violations(items, {}):
        assert result.history is items


# --- invariants -----------------------------------------------------------------------------------


def nothing_lost(items: list[Any], result: Normalized[Any]) -> list[str]:
    """The recorded texts that are neither in the history nor in the account."""
    kept = json.dumps([list(result.history), [one.removed for one in result.changes]])
    texts = strategies.texts_of(API, items)
    # A text inside an account of arguments or a result is JSON in JSON: escaped twice.
    return [one for one in texts if json.dumps(one)[1:-1] not in kept]


@given(strategies.valid_history(API), st.sampled_from(["close", "keep"]))
def test_a_valid_history_comes_back_untouched(items: list[Any], live: Any) -> None:
    checked = check(items, api=API)
    assert checked.valid
    result = mended(items, live=live)
    if checked.sendable or live == "keep":
        assert result.history is items


@given(strategies.damaged_history(API))
def test_a_damaged_history_is_mended(items: list[Any]) -> None:
    result = mended(items)
    out = list(result.history)
    assert violations(out, {}) == []
    assert brute.violations(API, out) == []
    assert result.sendable == bool(out)
    assert nothing_lost(items, result) == []


@given(strategies.damaged_history(API))
def test_a_repair_is_deterministic_and_idempotent(items: list[Any]) -> None:
    result = mended(items)
    again = mended(copy.deepcopy(items))
    assert json.dumps(result.history) == json.dumps(again.history)
    assert result.changes == again.changes
    twice = mended(list(result.history))
    assert twice.splices == ()
    if all(one.kind != "delivered" for one in result.changes):
        # What was delivered late is told in a user message, and no longer the call's own result.
        assert [one.status for one in twice.outcomes] == [one.status for one in result.outcomes]


@given(strategies.damaged_history(API))
def test_a_kept_open_history_lacks_only_the_open_calls(items: list[Any]) -> None:
    result = mended(items, live="keep")
    out = list(result.history)
    broken = {one.rule for one in violations(out, {}) if one.scope == "prefix"}
    assert broken <= ({"CHAT-PAIR-1", "CHAT-FN-1"} if result.pending else set())
    assert mended(out, live="keep").splices == ()
    assert nothing_lost(items, result) == []


@given(strategies.damaged_history(API))
def test_every_call_has_one_outcome(items: list[Any]) -> None:
    result = mended(items)
    copies = 0
    for change in result.changes:
        if change.rule == "CHAT-ID-1" and change.kind == "removed":
            left: Any = change.removed
            copies += len(calls_in(left)) if "role" in left else 1
    assert len(result.outcomes) == sum(len(calls_in(item)) for item in items) - copies


def calls_in(message: Item) -> list[Any]:
    legacy_call = message.get("function_call")
    return [*(message.get("tool_calls") or ()), *([legacy_call] if legacy_call else ())]


@given(strategies.damaged_history(API) | strategies.valid_history(API))
def test_check_agrees_with_the_brute_force_checker(items: list[Any]) -> None:
    found = sorted({(one.rule, one.path, one.scope) for one in violations(items, {})})
    assert found == brute.violations(API, items)
