"""`normalize` for `openai.responses`: each repair by example, and drawn histories."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

import brute
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from test_openai_responses import (
    COMPUTER,
    LOCAL_SHELL,
    call,
    custom,
    of_program,
    output,
    patch,
    program,
    program_output,
    reasoning,
    request,
    response,
    says,
    search,
    tool_search,
    tools,
    turns,
    user,
)

from stopkit.normalizer import HistoryError, Normalized, Normalizer, check, normalize
from stopkit.normalizer.wording import late_note, made_up, orphan_note
from stopkit.outcome import Denied, Failed, NotStarted, Stopped, Succeeded, Unknown

API: Literal["openai.responses"] = "openai.responses"
Item = dict[str, Any]

NOTHING_KNOWN = made_up(Unknown(reason="no_result_recorded"))
SHELL = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}


def mended(items: list[Any], **options: Any) -> Normalized[Any]:
    """`normalize`, with what holds for every repair."""
    before = copy.deepcopy(items)
    done = normalize(items, api=API, **options)
    assert items == before
    undone = done.undo()
    assert len(undone) == len(items)
    assert all(was is now for was, now in zip(items, undone, strict=True))
    history = list(done.history)
    told = options.get("request") or {}
    assert brute.valid(API, history, told)
    assert check(history, api=API, request=told).valid
    again = normalize(history, api=API, **options)
    assert list(again.history) == history
    assert again.changes == []
    return done


def note(text: str) -> Item:
    return user([{"type": "input_text", "text": text}])


def outcomes(done: Normalized[Any]) -> list[tuple[str, str, bool]]:
    return [(one.call_id, one.status, one.synthetic) for one in done.outcomes]


# --- made-up outputs ---


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call(), output(text=NOTHING_KNOWN)),
        (
            custom(),
            {"type": "custom_tool_call_output", "call_id": "c1", "output": NOTHING_KNOWN},
        ),
        (
            LOCAL_SHELL,
            {
                "type": "local_shell_call_output",
                "call_id": "c1",
                "output": json.dumps({"stdout": "", "stderr": NOTHING_KNOWN}, ensure_ascii=False),
            },
        ),
        (
            SHELL,
            {
                "type": "shell_call_output",
                "call_id": "c1",
                "output": [
                    {
                        "stdout": "",
                        "stderr": NOTHING_KNOWN,
                        "outcome": {"type": "exit", "exit_code": -1},
                    }
                ],
                "status": "incomplete",
            },
        ),
        (
            patch(),
            {
                "type": "apply_patch_call_output",
                "call_id": "c1",
                "status": "failed",
                "output": NOTHING_KNOWN,
            },
        ),
        (tool_search(), tools(status="incomplete")),
        (tool_search(None), tools(None, status="incomplete")),
    ],
)
def test_each_family_has_its_own_made_up_output(made: Item, expected: Item) -> None:
    done = mended([made, user()])
    assert list(done.history) == [made, expected, user()]
    assert [status for _, status, _ in outcomes(done)] == ["unknown"]
    read = normalize(done.history, api=API)
    assert [(s, synthetic) for _, s, synthetic in outcomes(read)] == [("unknown", True)]


def test_evidence_gives_a_made_up_output_its_words() -> None:
    stopped = {"status": "stopped", "cause": "user", "output": "half", "key": "op_1"}
    done = mended([call(), user()], evidence={"c1": stopped})
    words = made_up(Stopped(cause="user", output="half", key="op_1"))
    assert done.history[1] == output(text=words)
    assert [one.outcome for one in normalize(done.history, api=API).outcomes] == [
        Stopped(cause="user", output="half", key="op_1")
    ]


def test_a_patch_that_succeeded_elsewhere_is_completed() -> None:
    done = mended([patch(), user()], evidence={"c1": {"status": "succeeded", "output": "ok"}})
    assert done.history[1]["status"] == "completed"
    assert done.history[1]["output"] == made_up(Succeeded(output="ok"))


def test_a_shell_that_was_killed_keeps_the_exit_code_that_is_known() -> None:
    done = mended([SHELL, user()], evidence={"c1": {"status": "stopped", "exit_code": 143}})
    assert done.history[1]["output"][0]["outcome"] == {"type": "exit", "exit_code": 143}


def test_outputs_are_made_up_behind_the_group_in_the_order_of_the_calls() -> None:
    items = [call("a"), reasoning(), call("b"), output("b"), says(), user()]
    done = mended(items)
    assert [item.get("call_id") for item in done.history] == ["a", None, "b", "a", "b", None, None]


@pytest.mark.parametrize(
    "left",
    [COMPUTER, {**SHELL, "environment": {"type": "container_reference", "container_id": "k"}}],
)
def test_what_has_no_true_output_leaves_with_its_reasoning(left: Item) -> None:
    done = mended([user(), reasoning(), left, call("c2", id="fc_2"), output("c2"), user()])
    assert [item.get("call_id") for item in done.history] == [None, "c2", "c2", None]
    assert "id" not in done.history[1]
    assert outcomes(done) == [("c1", "unknown", True), ("c2", "succeeded", False)]
    assert left in [change.removed for change in done.changes]


# --- outputs in the wrong place, type or number ---


def test_an_output_before_its_call_moves_behind_it() -> None:
    late = output()
    done = mended([user(), late, call(), says()])
    assert [item["type"] for item in done.history] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert done.history[2] is late
    assert [(c.kind, c.rule, c.path_after) for c in done.changes] == [
        ("moved", "OAI-PAIR-2", "input.2")
    ]


def test_an_orphan_becomes_attributed_text_with_its_pictures() -> None:
    image = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
    done = mended([output("x", [{"type": "input_text", "text": "seen"}, image]), user()])
    assert done.history[0] == user(
        [{"type": "input_text", "text": orphan_note("x", "seen")}, image]
    )
    screen = {"type": "computer_screenshot", "image_url": "data:,1"}
    lost = {"type": "computer_call_output", "call_id": "x", "output": screen}
    assert mended([lost]).history[0]["content"][1] == {
        "type": "input_image",
        "detail": "auto",
        "image_url": "data:,1",
    }


@pytest.mark.parametrize(
    ("made", "given_output", "kept"),
    [
        (custom(), output(text="ok"), "ok"),
        (LOCAL_SHELL, output(text=[{"type": "input_text", "text": "ok"}]), "[{"),
        (
            call(),
            {
                "type": "shell_call_output",
                "call_id": "c1",
                "output": [{"stdout": "ok", "stderr": "", "outcome": {"type": "timeout"}}],
            },
            "ok",
        ),
    ],
)
def test_an_output_of_another_family_is_retyped(made: Item, given_output: Item, kept: str) -> None:
    done = mended([made, given_output, user()])
    assert len(done.history) == 3
    assert done.history[1]["type"] == made["type"] + "_output"
    assert done.history[1]["output"].startswith(kept)
    assert [change.rule for change in done.changes] == ["OAI-PAIR-3"]


def test_what_does_not_carry_over_is_told_beside_a_made_up_output() -> None:
    done = mended([SHELL, output(text="ok"), user()])
    assert [item["type"] for item in done.history] == [
        "shell_call",
        "shell_call_output",
        "message",
        "message",
    ]
    assert done.history[2] == note(orphan_note("c1", "ok"))


def test_two_recorded_outputs_stand_in_one() -> None:
    parts = [{"type": "input_text", "text": "two"}]
    for first, second, expected in (
        ("one", "two", "one\n[stopkit: recorded result 2 of the same call]\ntwo"),
        ("one", parts, None),
    ):
        done = mended([call(), output(text=first), output(text=second), user()])
        assert len(done.history) == 3
        told = done.history[1]["output"]
        if expected is not None:
            assert told == expected
        else:
            assert [part["text"] for part in told][0::2] == ["one", "two"]
        assert outcomes(done)[0][1] == "succeeded"


def test_a_late_output_takes_the_place_of_a_stand_in_nobody_built_on() -> None:
    done = mended([call(), output(text=NOTHING_KNOWN), output(text="real"), user()])
    assert list(done.history) == [call(), output(text="real"), user()]
    done = mended([call(), output(text="aborted"), says(), output(text="real"), user()])
    assert [item["type"] for item in done.history] == [
        "function_call",
        "function_call_output",
        "message",
        "message",
        "message",
    ]
    assert done.history[3] == note(late_note("c1", 1, "real"))
    assert outcomes(done) == [("c1", "succeeded", True)]


def test_ten_outputs_of_one_call_are_all_kept() -> None:
    items = [call(), *(output(text=f"result {n}") for n in range(10)), user()]
    done = mended(items)
    assert all(f"result {n}" in done.history[1]["output"] for n in range(10))


# --- ids ---


def test_a_call_id_that_comes_again_is_renamed_with_its_output() -> None:
    items = [call(arguments='{"n": 1}'), output(text="1"), call(), output(text="2"), user()]
    done = mended(items)
    assert [item.get("call_id") for item in done.history] == ["c1", "c1", "c1-2", "c1-2", None]
    assert outcomes(done) == [("c1", "succeeded", False), ("c1", "succeeded", False)]
    assert [one.occurrence for one in done.outcomes] == [1, 2]


def test_equal_ids_in_one_turn_are_paired_by_position() -> None:
    items = [call(), call(arguments='{"n": 2}'), output(text="1"), output(text="2"), user()]
    done = mended(items)
    assert [(i.get("call_id"), i.get("output")) for i in done.history][2:4] == [
        ("c1", "1"),
        ("c1-2", "2"),
    ]


def test_a_copy_of_a_call_in_its_turn_collapses() -> None:
    done = mended([call(id="fc_1"), call(id="fc_2"), output(), user()])
    assert list(done.history) == [call(id="fc_1"), output(), user()]
    assert outcomes(done) == [("c1", "succeeded", False)]


def test_long_and_missing_call_ids_are_made_valid_and_stay_apart() -> None:
    longs = ["x" * 65 + "a", "x" * 65 + "b"]
    items = [*map(call, longs), *map(output, longs), call(None), user()]
    done = mended(items)
    ids = [item["call_id"] for item in done.history[:-1]]
    assert ids[:2] == ids[2:4]
    assert len(set(ids)) == 3
    assert all(0 < len(id_) <= 64 for id_ in ids)
    assert [one.call_id for one in done.outcomes][:2] == longs


def test_a_new_id_never_meets_one_that_is_there() -> None:
    items = [call(), output(), call(), output(), call("c1-2"), output("c1-2"), user()]
    ids = [item.get("call_id") for item in mended(items).history]
    assert ids == ["c1", "c1", "c1-3", "c1-3", "c1-2", "c1-2", None]


# --- programs, approvals, hosted items, reasoning ---


def test_a_lost_program_leaves_with_what_it_owns() -> None:
    owned = [call("a", **of_program()), output("a", "42", **of_program())]
    done = mended([user(), program(), *owned, user()])
    assert list(done.history) == [user(), note(orphan_note("a", "42")), user()]
    assert outcomes(done) == [("a", "succeeded", False)]


def test_an_open_program_stays_and_our_notes_stand_before_it() -> None:
    owned = [call("a", **of_program()), output("a", "42", **of_program())]
    items = [user(), reasoning(), program(), *owned, output("lost", "7")]
    done = mended(items)
    assert list(done.history) == [
        user(),
        note(orphan_note("lost", "7")),
        reasoning(),
        program(),
        *owned,
    ]


def test_a_call_of_a_program_is_answered_for_the_program() -> None:
    done = mended([program(), call("a", **of_program()), program_output(), user()])
    assert done.history[2]["caller"] == of_program()["caller"]
    assert done.history[2]["output"] == NOTHING_KNOWN


def test_undecided_and_refused_approvals() -> None:
    items = [user(), request("mcpr_1"), request("mcpr_2"), user()]
    done = mended(items, evidence={"mcpr_1": Denied(reason="not this one")})
    assert done.history[2] == {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": False,
        "reason": "not this one",
    }
    assert [(one.call_id, one.outcome.reason) for one in done.outcomes] == [
        ("mcpr_1", "not this one"),
        ("mcpr_2", "approval_never_given"),
    ]
    kept = normalize(items[:3], api=API, live="keep")
    assert kept.pending == ("mcpr_1", "mcpr_2")
    assert not kept.sendable


def test_an_unfinished_search_leaves_with_its_reasoning() -> None:
    done = mended([user(), reasoning(), search("searching"), says(id="msg_1"), user()])
    assert list(done.history) == [user(), says(), user()]
    assert [c.rule for c in done.changes] == ["OAI-REAS-1", "OAI-HOST-1", "OAI-REAS-2"]


def test_reasoning_at_the_end_leaves_only_when_nothing_is_live() -> None:
    items = [user(), reasoning()]
    assert list(mended(items).history) == [user()]
    kept = normalize(items, api=API, live="keep")
    assert kept.history is items
    assert not kept.sendable
    assert [hint.code for hint in kept.hints] == ["needs_user_turn"]


# --- live calls ---


def test_a_running_call_stays_open_and_notes_stand_before_its_turn() -> None:
    items = [user(), reasoning(), call("a"), call("b"), output("b"), output("lost", "7")]
    done = mended(items, evidence={"a": {"status": "running"}})
    assert done.pending == ("a",)
    assert not done.sendable
    assert list(done.history) == [user(), note(orphan_note("lost", "7")), *items[1:5]]


def test_an_output_that_moves_does_not_end_a_turn_that_is_open() -> None:
    items = [output("b"), user(), call("a"), call("b"), says()]
    done = mended(items, live="keep")
    assert done.pending == ("a",)
    assert list(done.history) == [user(), call("a"), call("b"), says(), output("b")]


def test_news_about_an_answered_call_is_told_once_and_before_a_trigger() -> None:
    trigger = {"type": "compaction_trigger"}
    items = [call(), output(text=NOTHING_KNOWN), says(), trigger]
    done = mended(items, evidence={"c1": {"status": "failed", "output": "boom"}})
    assert list(done.history) == [
        *items[:3],
        note(late_note("c1", 1, "boom", Failed(output="boom"))),
        trigger,
    ]


# --- shapes ---


@pytest.mark.parametrize(
    ("given_arguments", "kept", "status"),
    [
        ("", "{}", "unknown"),
        ("null", "{}", "unknown"),
        ({"a": 1}, '{"a": 1}', "unknown"),
        ('"{\\"a\\": 1}"', '{"a": 1}', "unknown"),
        ('{"a": "x', '{"incomplete_arguments": "{\\"a\\": \\"x"}', "not_started"),
    ],
)
def test_arguments_become_an_object_and_none_is_completed(
    given_arguments: Any, kept: str, status: str
) -> None:
    done = mended([call(arguments=given_arguments), user()])
    assert done.history[0]["arguments"] == kept
    assert outcomes(done) == [("c1", status, True)]
    if status == "not_started":
        assert done.history[1]["output"] == made_up(NotStarted(reason="call_incomplete"))


def test_parts_fields_and_names_are_mended_and_the_report_holds_what_left() -> None:
    items = [
        user([{"type": "output_text", "text": "a", "annotations": []}], status="completed"),
        says([{"type": "input_text", "text": "b"}]),
        call(name="a.b", created_by="x"),
        output(text={"ok": True}),
        user(),
    ]
    done = mended(items)
    assert list(done.history) == [
        user([{"type": "input_text", "text": "a"}]),
        says([{"type": "output_text", "text": "b"}]),
        call(name="a_b"),
        output(text='{"ok": true}'),
        user(),
    ]
    removed = [change.removed for change in done.changes]
    assert all(left in removed for left in ("completed", "x", "a.b", {"ok": True}))
    assert all(change.path_after is not None for change in done.changes)


def test_a_namespace_is_mended_as_a_name_is() -> None:
    done = mended([call(namespace="n s"), output(namespace="n s"), user()])
    assert done.history == [call(namespace="n_s"), output(namespace="n_s"), user()]
    assert [(one.kind, one.path, one.removed) for one in done.changes] == [
        ("renamed", "input.0.namespace", "n s"),
        ("renamed", "input.1.namespace", "n s"),
    ]
    assert mended([custom(namespace=" "), user()]).history[0] == custom()


def test_a_call_without_a_name_cannot_have_run() -> None:
    done = mended([call(name=""), user()])
    assert done.history[0]["name"] == "unnamed_tool"
    assert outcomes(done) == [("c1", "not_started", True)]
    assert outcomes(mended([call(name=""), output(), user()])) == [("c1", "succeeded", False)]


def test_output_parts_of_no_known_kind_become_text() -> None:
    odd: list[Any] = ["plain", {"type": "text", "text": "t"}, {"type": "audio", "id": 1}]
    done = mended([call(), output(text=odd), user()])
    assert [part["text"] for part in done.history[1]["output"]] == [
        "plain",
        "t",
        '{"type": "audio", "id": 1}',
    ]


def test_a_lone_surrogate_is_replaced_and_reported() -> None:
    done = mended([user("a\ud800b")])
    assert done.history[0]["content"] == "a\ufffdb"
    assert [(c.rule, c.path, c.removed) for c in done.changes] == [
        ("GEN-JSON-1", "input.0.content", "a\ud800b")
    ]


CHAIN = {"previous_response_id": "resp_1"}
APPLIED = {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"}


@pytest.mark.parametrize(
    "items",
    [
        [APPLIED, patch(), APPLIED],
        [APPLIED, APPLIED, patch(), APPLIED],
        [APPLIED, call(), output()],
        [program_output(), program(), {**program_output(), "id": "po_2"}],
        [response(), request(), response()],
        [program_output(), user()],
        [output(), user()],
    ],
)
def test_under_a_chain_what_is_valid_is_left_alone(items: list[Item]) -> None:
    assert check(items, api=API, request=CHAIN).sendable
    done = mended(items, request=CHAIN)
    assert done.history is items
    assert done.changes == []


def test_under_a_chain_an_output_still_moves_to_a_call_that_has_none() -> None:
    done = mended([output(), user(), call()], request=CHAIN)
    assert done.history == [user(), call(), output()]


@pytest.mark.parametrize(
    ("items", "told", "rule"),
    [
        ([call(), output(), program_output("c1"), user()], 2, "OAI-PAIR-3"),
        ([program(), program_output(), output("p1"), user()], 2, "OAI-PAIR-3"),
        ([program_output("x" * 70), user()], 0, "OAI-PAIR-2"),
        ([output("x" * 70), user()], 0, "OAI-PAIR-2"),
    ],
)
def test_under_a_chain_what_no_call_takes_is_told(items: list[Item], told: int, rule: str) -> None:
    done = mended(items, request=CHAIN)
    assert done.history[told]["role"] == "user"
    assert [(one.kind, one.rule, one.path) for one in done.changes] == [
        ("to_text", rule, f"input.{told}")
    ]


def test_a_call_id_that_a_search_of_the_provider_has_is_renamed() -> None:
    done = mended([tool_search(execution="server"), custom(), user()])
    assert [item.get("call_id") for item in done.history] == ["c1", "c1-2", "c1-2", None]


def test_the_account_says_where_what_changed_is_now() -> None:
    done = mended([custom(), output(text="a\ud800"), output(text="b"), user(), call("c2")])
    assert [(one.kind, one.rule, one.path, one.path_after) for one in done.changes] == [
        ("rewritten", "OAI-PAIR-3", "input.1", "input.1"),
        ("rewritten", "GEN-JSON-1", "input.1.output", "input.1"),
        ("rewritten", "OAI-PAIR-3", "input.2", "input.1"),
        ("merged", "OAI-PAIR-4", "input.2", "input.1"),
        ("inserted", "OAI-PAIR-1", "input.4", "input.4"),
    ]
    moved = mended([output(), user(), custom()])
    assert [(one.kind, one.rule, one.path_after) for one in moved.changes] == [
        ("rewritten", "OAI-PAIR-3", "input.2"),
        ("moved", "OAI-PAIR-2", "input.2"),
    ]


@pytest.mark.parametrize(
    ("items", "path"),
    [
        ([user(), 7], "input.1"),
        ([user([7])], "input.0.content.0"),
        ([{"type": "message", "role": "robot", "content": ""}], "input.0"),
        ([call(), {**output(), "call_id": ["c1"]}], "input.1"),
        ([user(float("nan"))], "input.0.content"),
    ],
)
def test_what_is_no_history_is_refused_at_its_path(items: list[Any], path: str) -> None:
    with pytest.raises(HistoryError) as refused:
        normalize(items, api=API)
    assert refused.value.path == path


# --- a living history ---


def test_a_program_goes_on_over_requests() -> None:
    living = Normalizer(API)
    opened = [user(), program(), call("a", **of_program()), output("a", **of_program())]
    living.extend(opened)
    assert living.request().sendable
    more = [call("b", **of_program()), output("b", **of_program()), program_output(), says()]
    living.extend(more)
    done = living.request()
    assert done.history == [*opened, *more]
    living.extend([output("b", "again", **of_program())])
    assert living.request().changes[0].kind in ("to_text", "delivered")


def test_a_program_that_went_out_open_and_never_ended_says_so() -> None:
    living = Normalizer(API)
    opened = [user(), program()]
    living.extend(opened)
    assert living.request().sendable
    living.extend([reasoning(), says(), user()])
    done = living.request()
    made = done.history[2]
    assert (made["type"], made["status"]) == ("program_output", "incomplete")
    assert made["result"] == NOTHING_KNOWN
    assert done.history[3:] == [reasoning(), says(), user()]
    assert not brute.violations(API, done.history)


def test_ids_of_what_went_out_are_not_used_again() -> None:
    living = Normalizer(API)
    sent = [user(), says("one", id="msg_1"), call(id="fc_1"), output(), user()]
    living.extend(sent)
    assert living.request().history == sent
    living.extend([says("two", id="msg_1"), call(id="fc_1"), call(arguments="[]"), output()])
    new = list(living.request().history)[len(sent) :]
    assert "id" not in new[0]
    assert [item.get("call_id") for item in new] == [None, "c1-2", "c1-2"]


# --- drawn histories ---


@given(
    strategies.damaged_history(API),
    st.sampled_from([{}, {"store": False}, {"previous_response_id": "resp_1"}]),
)
def test_every_repair_is_valid_stable_and_loses_nothing(items: list[Item], told: Item) -> None:
    done = mended(items, request=told)
    held = json.dumps([list(done.history), [change.removed for change in done.changes]])
    plain = held.encode().decode("unicode_escape")
    for words in strategies.texts_of(API, items):
        assert words in held or words in plain
    if done.history:
        assert done.sendable
        assert not brute.violations(API, list(done.history), told)


@given(strategies.valid_history(API))
def test_a_valid_history_comes_back_as_it_is(items: list[Item]) -> None:
    done = normalize(items, api=API, live="keep")
    assert done.history is items
    assert done.changes == []


# --- work ---


def _parallel(k: int) -> list[Any]:
    return [user(), *(call(f"c{n}") for n in range(k)), user()]


def _separate(k: int) -> list[Any]:
    return [item for n in range(k) for item in (call(f"c{n}"), user())]


def _reasoning_run(k: int) -> list[Any]:
    return [user(), *(reasoning(f"rs_{n}") for n in range(k)), COMPUTER, user()]


def _programs(k: int) -> list[Any]:
    return [*({**program(f"p{n}"), "id": f"prog_{n}"} for n in range(k)), user()]


def _requests(k: int) -> list[Any]:
    return [*(request(f"mcpr_{n}") for n in range(k)), user()]


def _same_id(k: int) -> list[Any]:
    return [*(call(arguments=f'{{"n": {n}}}') for n in range(k)), user()]


def _copies(k: int) -> list[Any]:
    return [call()] * k + [output()] * k


def _long_ids(k: int) -> list[Any]:
    return [item for n in range(k) for item in (call("x" * 60 + f"{n:05}"), user())]


def _late(k: int) -> list[Any]:
    return [*turns(k), *(output(f"c{n}a", "late") for n in range(k))]


def _damaged(k: int) -> list[Any]:
    return [item for n, item in enumerate(turns(k)) if n % 70 != 4]


def _work(items: list[Any]) -> int:
    """How many functions, ours and C ones, `normalize` calls: no clock, so no noise."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    denied = {one["id"]: Denied() for one in items if one["type"] == "mcp_approval_request"}
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        done = normalize(items, api=API, evidence=denied)
        made = len(done.changes) + len(done.outcomes)
    finally:
        sys.setprofile(before)
    assert made
    return calls


@pytest.mark.parametrize(
    "shape",
    [
        _parallel,
        _separate,
        _reasoning_run,
        _programs,
        _requests,
        _same_id,
        _copies,
        _long_ids,
        _late,
        _damaged,
    ],
)
def test_twice_the_history_is_twice_the_work(shape: Callable[[int], list[Any]]) -> None:
    _work(shape(20))  # what is built once, when it is first asked for, is no work of a history
    # Caches that other tests have filled cost calls too; quadratic work would be four times.
    assert min(_work(shape(400)) for _ in range(2)) <= 3 * _work(shape(200))
