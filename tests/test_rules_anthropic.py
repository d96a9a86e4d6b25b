"""The rules of Anthropic Messages, each by what a repair does and what none may do.

The mark `rule` names the rules that a test holds; docs/rules.md lists them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from mended import codes, made_words, mended, rules_of, strings
from shapes import (
    ASK,
    COMPACTION,
    FALLBACK,
    HI,
    HITS,
    IMAGE,
    MARK,
    PROGRAMMATIC,
    SEARCH,
    SYSTEM,
    THINKING,
    TOOL_CHANGE,
    A,
    C,
    Item,
    R,
    call,
    calls,
    fc,
    model,
    out,
    result,
    server,
    text,
    tool,
    user,
)

from stopkit import Api
from stopkit.normalizer import (
    check,
    normalize,
)
from stopkit.normalizer.wording import made_up, read_note, read_outcome
from stopkit.outcome import Succeeded, Unknown


@pytest.mark.rule("ANT-PAIR-1")
def test_a_recorded_result_is_moved_and_none_made_up() -> None:
    recorded = result("a", content="real")
    done = mended(A, [HI, model(call("a")), HI, model(text()), user(recorded), HI])
    assert done.history[2]["content"][0] is recorded
    assert made_words(done) == []


@pytest.mark.rule("ANT-PAIR-2")
@pytest.mark.parametrize(
    "replies",
    [
        [user(result("b"), result("a"), text())],
        [user(result("b")), user(result("a"), text())],
        [user(result("a")), user(result("b")), HI],
    ],
)
def test_results_in_any_order_over_user_messages_are_left_alone(replies: list[Item]) -> None:
    items = [HI, model(call("a"), call("b")), *replies]
    assert normalize(items, api=A).history is items


@pytest.mark.rule("ANT-PAIR-3", "ANT-ORD-1")
def test_hoisted_results_keep_the_words_and_pictures_in_order() -> None:
    one, two = result("a"), result("b")
    done = mended(A, [HI, model(call("a"), call("b")), user(one, IMAGE, text(), two), HI])
    assert done.history[2]["content"] == [one, two, IMAGE, text()]
    assert [change.kind for change in done.changes] == ["moved"]


@pytest.mark.rule("ANT-PAIR-4")
def test_an_orphan_becomes_attributed_text_and_no_call_is_invented() -> None:
    orphan = result("gone", content="42 rows")
    done = mended(A, [user(orphan, text("and?"))])
    note, words = done.history[0]["content"]
    head = read_note(note["text"])
    assert head is not None
    assert head["call_id"] == "gone"
    assert note["text"].endswith("\n42 rows")
    assert words == text("and?")
    assert done.changes[0].removed == orphan


@pytest.mark.rule("ANT-PAIR-5", "OAI-PAIR-4", "CHAT-ID-1")
@pytest.mark.parametrize(
    ("api", "items"),
    [
        (A, [HI, model(call("a")), user(result("a"), result("a", content="more")), HI]),
        (R, [ASK, fc("a"), out("a"), out("a", output="more"), ASK]),
        (C, [HI, calls("a"), tool("a"), tool("a", content="more"), HI]),
    ],
)
def test_two_recorded_results_are_kept_in_one(api: Api, items: list[Any]) -> None:
    done = mended(api, items)
    (both,) = (words for words in strings(list(done.history)) if words.startswith("done"))
    assert both.endswith("more")
    assert [change.kind for change in done.changes] == ["merged"]
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", False)]


@pytest.mark.rule("ANT-PAIR-5")
def test_merged_errors_stay_errors() -> None:
    first = result("a", content="hunk 2 failed", is_error=True)
    second = result("a", content="Error executing tool", is_error=True)
    done = mended(A, [HI, model(call("a")), user(first, second)])
    (merged,) = done.history[2]["content"]
    assert merged["is_error"] is True
    assert [one.status for one in done.outcomes] == ["failed"]


@pytest.mark.rule("ANT-PAIR-5")
def test_pictures_of_two_results_both_stay() -> None:
    other = {**IMAGE, "source": {"type": "url", "url": "https://example.org/b.png"}}
    one, two = result("a", content=[IMAGE]), result("a", content=[other])
    done = mended(A, [HI, model(call("a")), user(one, two, one), HI])
    mark = text("[stopkit: recorded result 2 of the same call]")
    assert done.history[2]["content"] == [result("a", content=[IMAGE, mark, other])]


@pytest.mark.rule("ANT-PAIR-5")
def test_words_behind_a_picture_leave_it_in_place() -> None:
    first, second = result("a", content=[IMAGE]), result("a", content="more")
    done = mended(A, [HI, model(call("a")), user(first, second), HI])
    mark = text("[stopkit: recorded result 2 of the same call]")
    assert done.history[2]["content"] == [result("a", content=[IMAGE, mark, text("more")])]
    done = mended(A, [HI, model(call("a")), user(first, result("a", content=" ")), HI])
    assert done.history[2]["content"] == [result("a", content=[IMAGE, mark])]


@pytest.mark.rule("GEN-SHAPE-1", "ANT-EMPTY-1")
@pytest.mark.parametrize(
    ("wrong", "violations"),
    [
        ({"is_error": "no"}, ["GEN-SHAPE-1 messages.2.content.0"]),
        ({"content": 7}, ["GEN-SHAPE-1 messages.2.content.0"]),
        (
            {"content": [7, text("")]},
            [
                "GEN-SHAPE-1 messages.2.content.0.content.0",
                "ANT-EMPTY-1 messages.2.content.0.content.1",
            ],
        ),
    ],
)
def test_a_result_of_another_kind_is_refused_at_its_place(
    wrong: Item, violations: list[str]
) -> None:
    items = [HI, model(call("a")), user(result("a", **wrong))]
    assert [f"{one.rule} {one.path}" for one in check(items, api=A).violations] == violations


@pytest.mark.rule("ANT-SYS-1")
def test_a_block_that_no_system_message_holds_is_judged_once() -> None:
    items = [HI, {"role": "system", "content": [call("a b")]}, model(text()), HI]
    (one,) = check(items, api=A).violations
    assert (one.rule, one.path) == ("ANT-SYS-1", "messages.1")


@pytest.mark.rule("ANT-PAIR-5", "ANT-TR-1")
def test_a_merged_error_holds_text_only() -> None:
    first = result("a", content="hunk 2 failed", is_error=True)
    items = [HI, model(call("a")), user(first, result("a", content=[text("half"), IMAGE]))]
    merged = mended(A, items).history[2]["content"][0]
    mark = "[stopkit: recorded result 2 of the same call]"
    assert merged["is_error"] is True
    assert list(strings(merged["content"]))[1::2] == ["hunk 2 failed", mark, "half"]


@pytest.mark.rule("ANT-ORD-2")
def test_blocks_of_an_assistant_message_keep_their_order() -> None:
    turn = model(text("one"), call("a"), text("two"), call("b"))
    items = [HI, turn, user(result("b")), HI]
    done = mended(A, items)
    assert done.history[1] is turn
    parted = mended(A, [HI, model(text("one"), call("a"), result("a"), text("two")), HI])
    assert list(parted.history) == [
        HI,
        model(text("one"), call("a")),
        user(result("a")),
        model(text("two")),
        HI,
    ]


@pytest.mark.rule("ANT-ORD-2", "ANT-THINK-2")
def test_a_message_with_thinking_is_never_split() -> None:
    done = mended(A, [HI, model(THINKING, call("a"), result("a"), text("two")), HI])
    assert done.history[1] == model(THINKING, call("a"), text("two"))
    assert done.history[1]["content"][0] is THINKING
    assert done.history[2] == user(result("a"))


@pytest.mark.rule("ANT-PLACE-1")
def test_a_call_in_the_users_turn_is_told_and_never_answered() -> None:
    done = mended(A, [user(text(), call("a", input={"n": 1}))])
    note = done.history[0]["content"][1]["text"]
    head = read_note(note)
    assert head is not None
    assert (head["kind"], head["name"]) == ("misplaced_call", "run")
    assert json.loads(note.partition("\nOutput:\n")[2]) == {"n": 1}
    assert done.outcomes == []


@pytest.mark.rule("ANT-ID-1")
def test_equal_ids_after_cleaning_stay_apart() -> None:
    ids = ("a b", "a_b", "a:b")
    items = [
        HI,
        model(*[call(one, input={"of": one}) for one in ids]),
        user(*[result(one, content=one) for one in ids]),
    ]
    done = mended(A, items)
    named = {block["id"]: block["input"]["of"] for block in done.history[1]["content"]}
    answers = {block["tool_use_id"]: block["content"] for block in done.history[2]["content"]}
    assert named == answers
    assert len(named) == 3
    assert [one.call_id for one in done.outcomes] == list(ids)
    assert [name[:4] for name in named] == ["a_b-", "a_b", "a_b-"]


@pytest.mark.rule("ANT-ID-2")
def test_a_copy_of_a_call_collapses_and_another_call_is_renamed() -> None:
    copied = [HI, model(text(), call("a")), model(text(), call("a")), user(result("a"))]
    done = mended(A, copied)
    assert list(done.history) == [copied[0], copied[1], copied[3]]
    assert done.changes[0].removed is copied[2]
    assert len([block for item in done.history for block in item["content"]]) == 5
    first, second = call("a", input={"n": 1}), call("a", input={"n": 2})
    two = [HI, model(first, second), user(result("a", content="1"), result("a", content="2"))]
    done = mended(A, two)
    renamed = done.history[1]["content"][1]["id"]
    assert renamed != "a"
    assert [(block["tool_use_id"], block["content"]) for block in done.history[2]["content"]] == [
        ("a", "1"),
        (renamed, "2"),
    ]
    assert [(one.call_id, one.occurrence) for one in done.outcomes] == [("a", 1), ("a", 2)]


@pytest.mark.rule("ANT-ID-2")
@pytest.mark.parametrize("later", [False, True])
def test_a_renamed_call_takes_no_id_that_is_taken(later: bool) -> None:
    twice, answers = [call("a"), call("a", input={"n": 1})], [result("a"), result("a")]
    if later:
        taken = [model(call("a-2")), user(result("a-2"))]
        items = [HI, model(*twice), user(*answers), *taken]
    else:
        items = [HI, model(*twice, call("a-2")), user(*answers, result("a-2"))]
    done = mended(A, items)
    named = [block["id"] for block in done.history[1]["content"]]
    assert named == ["a", "a-3", "a-2"][: len(named)]
    assert rules_of(done) == ["renamed ANT-ID-2"]


@pytest.mark.rule("ANT-ID-2")
def test_an_id_that_comes_again_in_a_later_turn_is_left_alone() -> None:
    items = [HI, model(call("a")), user(result("a")), model(call("a")), user(result("a"))]
    assert normalize(items, api=A).history is items


INCOMPLETE = [
    pytest.param(A, [HI, model(call("a", input='{"n": 1')), HI], id="messages"),
    pytest.param(R, [ASK, fc("a", arguments='{"n": 1'), ASK], id="responses"),
    pytest.param(C, [HI, calls("a", arguments='{"n": 1'), HI], id="chat"),
]


@pytest.mark.rule("ANT-ID-3", "OAI-SHAPE-4", "CHAT-ARG-1")
@pytest.mark.parametrize(("api", "items"), INCOMPLETE)
def test_a_cut_call_is_kept_as_it_is_and_was_never_run(api: Api, items: list[Any]) -> None:
    done = mended(api, items)
    written = done.history[1]
    arguments = {
        A: lambda: written["content"][0]["input"],
        R: lambda: json.loads(written["arguments"]),
        C: lambda: json.loads(written["tool_calls"][0]["function"]["arguments"]),
    }[api]()
    assert arguments == {"incomplete_arguments": '{"n": 1'}
    (one,) = done.outcomes
    assert (one.status, one.effects, one.outcome.reason) == (
        "not_started",
        "none",
        "call_incomplete",
    )
    assert '{"n": 1' in [change.removed for change in done.changes]


@pytest.mark.rule("ANT-ID-3", "OAI-SHAPE-1", "OAI-SHAPE-4", "CHAT-ARG-1")
def test_whole_arguments_in_another_form_are_the_same_arguments() -> None:
    def inputs(value: Any) -> Any:
        done = mended(A, [HI, model(call("a", input=value)), user(result("a"))])
        return done.history[1]["content"][0]["input"]

    assert [inputs(value) for value in ('{"n": 1}', None, [], "")] == [{"n": 1}, {}, {}, {}]

    def written(value: Any) -> tuple[Any, Any]:
        one = mended(R, [fc("a", arguments=value), out("a"), ASK])
        other = mended(C, [HI, calls("a", arguments=value), tool("a")])
        call_of = other.history[1]["tool_calls"][0]["function"]
        return one.history[0]["arguments"], call_of["arguments"]

    forms: list[tuple[Any, Item]] = [({"n": 1}, {"n": 1}), ("", {})]
    for value, expected in forms:
        assert [json.loads(each) for each in written(value)] == [expected, expected]


@pytest.mark.rule("ANT-ID-3")
def test_the_account_of_a_call_without_input_speaks_of_no_text() -> None:
    done = mended(A, [HI, model(call("a", input=None)), user(result("a"))])
    assert "JSON text" not in done.changes[0].note


@pytest.mark.rule("ANT-ID-4")
def test_a_foreign_search_leaves_and_its_words_stay() -> None:
    pair = [server("ws_1"), {**HITS, "tool_use_id": "ws_1"}]
    done = mended(A, [HI, model(*pair, text("so")), HI])
    assert done.history[1] == model(text("so"))
    assert [change.removed for change in done.changes] == pair


@pytest.mark.rule("ANT-NAME-1", "OAI-SHAPE-1", "CHAT-NAME-1")
@pytest.mark.parametrize(
    ("api", "items"),
    [
        (A, [HI, model(call("a", name="read file!"), call("b", name="")), HI]),
        (R, [fc("a", name="read file!"), fc("b", name=""), ASK]),
        (
            C,
            [
                HI,
                {
                    **calls("a", "b"),
                    "tool_calls": [
                        *calls("a", name="read file!")["tool_calls"],
                        *calls("b", name="")["tool_calls"],
                    ],
                },
                HI,
            ],
        ),
    ],
)
def test_a_name_the_api_does_not_take_is_cleaned_and_remembered(api: Api, items: list[Any]) -> None:
    done = mended(api, items)
    texts = list(strings(list(done.history)))
    assert "read_file_" in texts
    assert "unnamed_tool" in texts
    assert "read file!" in [change.removed for change in done.changes]
    assert [(one.name, one.status) for one in done.outcomes] == [
        ("read file!", "unknown"),
        ("", "not_started"),
    ]


@pytest.mark.rule("ANT-ROLE-1")
def test_a_note_before_the_models_first_words_is_marked() -> None:
    done = mended(A, [model(text()), HI])
    (first,) = done.history[0]["content"]
    head = read_note(first["text"])
    assert head is not None
    assert head["kind"] == "history_start"


@pytest.mark.rule("ANT-ROLE-2")
def test_neighbours_of_one_role_are_left_apart() -> None:
    items = [HI, HI, model(text("a")), model(text("b")), HI, HI]
    assert normalize(items, api=A).history is items


@pytest.mark.rule("ANT-END-1", "ANT-END-3")
@pytest.mark.parametrize(
    ("last", "model_name", "sendable"),
    [
        (model(text()), None, False),
        (model(text()), "claude-opus-4-6", False),
        (model(text()), "claude-sonnet-4-5-20250929", True),
        (model(text()), "somebody-elses-model", False),
        (model(THINKING), "claude-sonnet-4-5-20250929", False),
    ],
)
def test_the_end_is_told_and_never_touched(
    last: Item, model_name: str | None, sendable: bool
) -> None:
    items = [HI, last]
    done = normalize(items, api=A, request={} if model_name is None else {"model": model_name})
    assert done.history is items
    assert done.sendable is sendable
    assert codes(done) == ([] if sendable else ["needs_user_turn"])


@pytest.mark.rule("ANT-END-2")
def test_only_the_white_space_at_the_end_goes() -> None:
    done = mended(A, [HI, model(text("a "), text(" so \n"))], request={"model": "claude-3-opus"})
    assert done.history[1] == model(text("a "), text(" so"))
    assert done.sendable


@pytest.mark.rule("ANT-SYS-1")
def test_system_messages_moved_to_one_place_are_one_message() -> None:
    other = {"role": "system", "content": [text("other")]}
    done = mended(A, [HI, SYSTEM, HI, other, HI, model(text()), HI])
    assert [item["role"] for item in done.history] == [*["user"] * 3, "system", "assistant", "user"]
    assert done.history[3]["content"] == [text("rule"), text("other")]


@pytest.mark.rule("ANT-SYS-1")
def test_system_words_keep_their_place_or_their_mark() -> None:
    newer = mended(A, [SYSTEM, HI, model(text()), HI], request={"model": "claude-opus-5"})
    assert list(newer.history) == [HI, SYSTEM, model(text()), HI]
    listed = {"role": "system", "content": [text("rule")]}
    (moved,) = mended(A, [listed, HI, model(text()), HI]).changes
    assert (moved.path, moved.path_after) == ("messages.0", "messages.1.content.0")
    older = mended(A, [HI, SYSTEM], request={"model": "claude-sonnet-4-5"})
    (note,) = strings(older.history[1]["content"][0]["text"])
    head = read_note(note)
    assert head is not None
    assert head["kind"] == "system_note"
    assert note.endswith("\nrule")
    assert [item["role"] for item in older.history] == ["user", "user"]


@pytest.mark.rule("ANT-EMPTY-1", "ANT-EMPTY-2", "ANT-EMPTY-3", "CHAT-EMPTY-2")
def test_nothing_is_written_where_nothing_was() -> None:
    items = [HI, model(text(""), text("  \n")), HI, model(), HI]
    assert list(mended(A, items).history) == [HI, HI, HI]
    empty: Item = {"role": "assistant", "content": None, "tool_calls": []}
    assert list(mended(C, [HI, empty, HI]).history) == [HI, HI]


@pytest.mark.rule("ANT-THINK-1")
def test_unsigned_thinking_is_neither_forged_nor_shown() -> None:
    cut = {"type": "thinking", "thinking": "secret thoughts", "signature": ""}
    done = mended(A, [HI, model(cut, text("I would")), HI])
    assert list(done.history) == [HI, model(text("I would")), HI]
    assert done.changes[0].removed == cut


@pytest.mark.rule("ANT-THINK-2")
def test_signed_thinking_is_the_very_same_object_over_repairs_around_it() -> None:
    hidden = {"type": "redacted_thinking", "data": "e=="}
    turn = model(THINKING, hidden, text(""), call("a b"), result("a b"), call("c", input="{"))
    done = mended(A, [model(text()), turn, user(text(" ")), HI])
    blocks = [block for item in done.history for block in item["content"] if block != "hi"]
    kept = [block for block in blocks if block in (THINKING, hidden)]
    assert [id(block) for block in kept] == [id(THINKING), id(hidden)]


@pytest.mark.rule("ANT-THINK-2", "GEN-JSON-1")
def test_signed_thinking_that_is_no_unicode_leaves() -> None:
    # Its signature speaks of bytes that no request can carry.
    broken = {"type": "thinking", "thinking": "half \ud83d a pair", "signature": "sig=="}
    done = mended(A, [HI, model(broken, text()), HI])
    assert list(done.history) == [HI, model(text()), HI]
    assert done.changes[0].removed == broken


@pytest.mark.rule("ANT-THINK-3")
def test_lost_thinking_is_told_and_never_made_up() -> None:
    items = [HI, model(call("a")), user(result("a"))]
    done = normalize(items, api=A, request={"thinking": {"type": "enabled"}})
    assert done.history is items
    assert not done.sendable
    assert codes(done) == ["thinking_lost"]
    closed = normalize([*items, HI], api=A, request={"thinking": {"type": "enabled"}})
    assert closed.sendable


@pytest.mark.rule("ANT-THINK-4", "ANT-THINK-8")
def test_signed_thinking_without_text_stays() -> None:
    items = [HI, model({**THINKING, "thinking": ""}, call("a")), user(result("a"))]
    assert check(items, api=A).valid
    assert normalize(items, api=A).history is items


@pytest.mark.rule("ANT-THINK-6")
@pytest.mark.parametrize(
    ("model_name", "bound"),
    [
        (None, True),
        ("claude-opus-5-5", True),
        ("claude-sonnet-5-5-20270101", True),
        ("claude-fable-5-1", True),
        ("claude-opus-6", True),
        ("claude-fable-5", False),
        ("claude-opus-5", False),
        ("claude-sonnet-4-5-20250929", False),
        ("claude-3-7-sonnet-20250219", False),
    ],
)
def test_a_repair_before_bound_thinking_is_told_to_the_request(
    model_name: str | None, bound: bool
) -> None:
    later = model(THINKING, text())
    items = [HI, model(call("a")), HI, later, HI, later, HI]
    done = mended(A, items, request={} if model_name is None else {"model": model_name})
    assert codes(done) == (["thinking_prefix_changed"] if bound else [])
    for hint in done.hints:
        assert hint.path == "messages.3.content.0"
        assert "drop_block" in str(hint)


@pytest.mark.rule("ANT-THINK-6")
@pytest.mark.parametrize(
    "turn", [model(THINKING, call("a")), model(THINKING, call("a"), result("a"), text())]
)
def test_thinking_before_the_repair_is_not_spoken_of(turn: Item) -> None:
    assert codes(mended(A, [HI, turn, HI])) == []


@pytest.mark.rule("ANT-THINK-7")
def test_a_fallback_stays_where_it_is() -> None:
    done = mended(A, [HI, model(THINKING, text("a"), FALLBACK, THINKING, text("b")), HI])
    assert done.history[1] == model(text("a"), FALLBACK, THINKING, text("b"))
    assert done.history[1]["content"][1] is FALLBACK


@pytest.mark.rule("ANT-SRV-3", "ANT-SRV-7")
@pytest.mark.parametrize(
    ("turn", "later"),
    [
        (model(SEARCH, call("a")), model(HITS, text())),
        (model(call("a", **PROGRAMMATIC)), model(text())),
    ],
)
def test_words_beside_open_server_work_wait_for_the_next_user_turn(turn: Item, later: Item) -> None:
    done = mended(A, [HI, turn, user(result("a"), text("use USD")), later, HI])
    assert list(done.history)[:4] == [HI, turn, user(result("a")), later]
    assert [block["text"] for block in done.history[4]["content"]] == ["use USD", "hi"]
    assert done.changes[0].kind == "deferred"
    alone = mended(A, [HI, turn, user(result("a"), text("use USD"))])
    assert list(alone.history) == [HI, turn, user(result("a"))]
    assert alone.changes[0].removed == text("use USD")


@pytest.mark.rule("ANT-SRV-3")
def test_held_back_words_stand_behind_the_next_results() -> None:
    reply = user(result("a"), text("held"))
    turns = [HI, model(SEARCH, call("a")), reply, model(HITS, call("b")), user(result("b"), text())]
    done = mended(A, turns)
    assert done.history[4]["content"] == [result("b"), text("held"), text()]


@pytest.mark.rule("ANT-SRV-5")
def test_a_paused_turn_is_sent_as_it_is() -> None:
    items = [HI, model(text(), SEARCH)]
    done = normalize(items, api=A)
    assert done.history is items
    assert done.sendable
    assert done.hints == ()


@pytest.mark.rule("ANT-SRV-6")
def test_open_programmatic_work_asks_for_its_container() -> None:
    items = [HI, model(call("a", **PROGRAMMATIC)), user(result("a"))]
    assert codes(normalize(items, api=A)) == ["container_required"]
    assert codes(normalize(items, api=A, request={"container": "container_1"})) == []
    done = [*items, model(text()), HI]
    assert codes(normalize(done, api=A)) == []


@pytest.mark.rule("ANT-TR-1")
def test_a_picture_in_an_error_moves_behind_the_results() -> None:
    failed = result("a", content=[text("no"), IMAGE], is_error=True)
    done = mended(A, [HI, model(call("a"), call("b")), user(failed, result("b"))])
    assert done.history[2]["content"] == [{**failed, "content": [text("no")]}, result("b"), IMAGE]


@pytest.mark.rule("ANT-TR-3", "ANT-EMPTY-1")
@pytest.mark.parametrize("content", [[], None, [text("")]])
def test_a_result_of_nothing_stays_a_success_of_nothing(content: Any) -> None:
    done = mended(A, [HI, model(call("a")), user(result("a", content=content))])
    assert done.history[2]["content"] == [{"type": "tool_result", "tool_use_id": "a"}]
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", False)]


@pytest.mark.rule("ANT-TOOLS-1")
def test_tool_blocks_without_tools_are_a_hint() -> None:
    items = [HI, model(call("a")), user(result("a"))]
    assert codes(normalize(items, api=A, request={"tools": []})) == ["tools_required"]
    assert check(items, api=A, request={"tools": []}).violations == ()
    assert codes(normalize(items, api=A)) == []
    assert codes(normalize([HI], api=A, request={"tools": []})) == []


@pytest.mark.rule("ANT-CACHE-1")
def test_a_marker_of_what_leaves_moves_to_the_block_before() -> None:
    done = mended(A, [HI, model(text("a"), {**text(""), **MARK}), HI])
    assert done.history[1] == model({**text("a"), **MARK})


@pytest.mark.rule("ANT-CACHE-1")
def test_the_last_markers_stay() -> None:
    marked = [{**text(str(n)), **MARK} for n in range(6)]
    done = mended(A, [user(*marked)])
    kept = [block["text"] for block in done.history[0]["content"] if "cache_control" in block]
    assert kept == ["2", "3", "4", "5"]


@pytest.mark.rule("ANT-LIM-1")
def test_a_history_too_long_is_reported_and_not_shortened() -> None:
    items = [HI] * 100_001
    done = normalize(items, api=A)
    assert done.history is items
    assert not done.sendable
    assert check(items[:-1], api=A).sendable


@pytest.mark.rule("ANT-ID-5")
def test_a_result_echoes_the_toolset_of_its_call() -> None:
    recorded = result("a", toolset_name="other")
    done = mended(A, [HI, model(call("a", toolset_name="desk")), user(recorded)])
    assert done.history[2]["content"] == [{**recorded, "toolset_name": "desk"}]
    made = mended(A, [HI, model(call("a", toolset_name="desk")), HI]).history[2]["content"][0]
    assert made["toolset_name"] == "desk"
    bare = mended(A, [HI, model(call("a")), user(recorded)])
    assert bare.history[2]["content"] == [result("a")]
    assert [change.removed for change in bare.changes] == ["other"]


@pytest.mark.rule("ANT-SHAPE-1")
def test_fields_of_a_stored_response_leave_one_by_one() -> None:
    stored = {**model(text()), "id": "msg_1", "usage": {"output_tokens": 3}, "x_note": 1}
    done = mended(A, [HI, stored, HI])
    assert done.history[1] == {**model(text()), "x_note": 1}
    assert [change.removed for change in done.changes] == ["msg_1", {"output_tokens": 3}]


@pytest.mark.rule("ANT-THINK-5")
def test_thinking_that_is_off_leaves_the_last_message_only() -> None:
    items = [HI, model(THINKING, text("a")), HI, model(THINKING, text("b"))]
    done = mended(A, items, request={"thinking": {"type": "disabled"}})
    assert list(done.history) == [*items[:3], model(text("b"))]
    assert done.history[1] is items[1]


@pytest.mark.rule("ANT-THINK-5", "ANT-END-2")
def test_an_end_behind_thinking_that_is_off_is_an_end_too() -> None:
    request = {"thinking": {"type": "disabled"}, "model": "claude-sonnet-4-5"}
    assert list(mended(A, [HI, model(THINKING)], request=request).history) == [HI]
    done = mended(A, [HI, model(text("so ")), model(THINKING)], request=request)
    assert list(done.history) == [HI, model(text("so"))]
    assert rules_of(done) == ["rewritten ANT-END-2", "removed ANT-THINK-5"]


@pytest.mark.rule("ANT-SRV-4", "ANT-COMPACT-1", "ANT-TR-2")
@pytest.mark.parametrize(
    ("items", "lost"),
    [
        ([HI, model(HITS, text()), HI], HITS),
        ([HI, model(COMPACTION, text()), HI], COMPACTION),
    ],
)
def test_what_cannot_stay_leaves_whole_and_the_report_holds_it(
    items: list[Item], lost: Item
) -> None:
    done = mended(A, items)
    assert list(done.history) == [HI, model(text()), HI]
    assert [change.removed for change in done.changes] == [lost]


@pytest.mark.rule("ANT-TR-2", "ANT-SRV-8")
def test_a_result_keeps_its_text_beside_what_it_cannot_hold() -> None:
    reference = {"type": "tool_reference", "tool_name": "gone"}
    mixed = result("a", content=[text("see"), THINKING, reference])
    request = {"tools": [{"name": "run"}]}
    done = mended(A, [HI, model(call("a")), user(mixed)], request=request)
    seen, told = done.history[2]["content"][0]["content"]
    assert seen == text("see")
    assert told["type"] == "text"
    assert "gone" in told["text"]
    assert THINKING in [change.removed for change in done.changes]


@pytest.mark.rule("ANT-SYS-2")
def test_only_the_change_of_an_unknown_tool_leaves() -> None:
    known = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "run"}}
    items = [HI, {"role": "system", "content": [known, TOOL_CHANGE]}]
    done = mended(A, items, request={"tools": [{"name": "run"}]})
    assert done.history[1]["content"] == [known]
    assert normalize(items, api=A).history is items


@pytest.mark.rule("ANT-CIT-1")
def test_citations_and_sealed_hits_are_left_alone() -> None:
    hits = {**HITS, "content": [{"type": "web_search_result", "encrypted_content": "E=="}]}
    cited = {**text("so"), "citations": [{"type": "x", "encrypted_index": "I=="}]}
    turn = model(SEARCH, hits, cited, call("a"))
    done = mended(A, [HI, turn, HI])
    assert done.history[1] is turn


@pytest.mark.rule("ANT-STOP-1")
def test_a_refused_turn_leaves_and_the_report_holds_it() -> None:
    refused = {**model(text("half an")), "stop_reason": "refusal"}
    done = mended(A, [HI, refused, HI])
    assert list(done.history) == [HI, HI]
    assert done.changes[0].rule == "ANT-STOP-1"
    assert text("half an") in done.changes[0].removed["content"]  # type: ignore[index]


@pytest.mark.rule("ANT-STOP-1")
def test_the_last_call_of_a_turn_that_ran_into_its_limit_is_incomplete() -> None:
    cut = {
        **model(call("a", input={"n": 1}), call("b", input={"n": 1})),
        "stop_reason": "max_tokens",
    }
    done = mended(A, [HI, cut, HI])
    first, last = done.history[1]["content"]
    assert first["input"] == {"n": 1}
    assert list(last["input"]) == ["incomplete_arguments"]
    assert [one.status for one in done.outcomes] == ["unknown", "not_started"]
    # A recorded result proves that the call was whole.
    answered = mended(A, [HI, {**model(call("a")), "stop_reason": "max_tokens"}, user(result("a"))])
    assert answered.history[1] == model(call("a"))


STANDIN = result("a", content=made_up(Unknown(reason="lost")), is_error=True)
KNOWN = Succeeded(output="42")


@pytest.mark.rule("GEN-LATE-1")
def test_a_placeholder_nobody_answered_says_what_became_known() -> None:
    done = mended(A, [HI, model(call("a")), user(STANDIN)], evidence={"a": KNOWN})
    (now,) = done.history[2]["content"]
    assert read_outcome(now["content"]) == KNOWN
    assert "is_error" not in now
    (change,) = done.changes
    assert (change.kind, change.rule, change.path) == (
        "rewritten",
        "GEN-LATE-1",
        "messages.2.content.0",
    )
    assert (change.call_id, change.outcome, change.removed) == ("a", "succeeded", STANDIN)
    assert change.note == "The placeholder now says what is known: succeeded."


@pytest.mark.rule("GEN-LATE-1")
@pytest.mark.parametrize("end", [[], [HI], [user(text("")), HI], [HI, user(text(" "), text())]])
def test_news_of_an_answered_call_stands_at_the_end_once(end: list[Item]) -> None:
    items = [HI, model(call("a")), user(STANDIN), model(text()), *end]
    done = mended(A, items, evidence={"a": KNOWN})
    assert list(done.history[:4]) == items[:4]
    (block,) = done.history[-1]["content"]
    head = read_note(block["text"])
    assert head is not None
    assert (head["kind"], head["call_id"], head["occurrence"]) == ("late_result", "a", 1)
    assert block["text"].endswith("\n42")
    told = [change for change in done.changes if change.kind == "delivered"]
    assert [(one.rule, one.path, one.call_id, one.outcome) for one in told] == [
        ("GEN-LATE-1", "messages.1.content.0", "a", "succeeded")
    ]
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", True)]
