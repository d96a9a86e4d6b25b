"""Every rule by the shapes that break it, and the rules that hold for every API.

The mark `rule` names the rules that a test holds; docs/rules.md lists them.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import brute
import pytest
import shapes
from mended import codes, made_words, mended, rules_of, strings, told
from rules_table import TESTS, marked_tests, page, shapes_of
from shapes import (
    APIS,
    APPROVAL,
    ASK,
    HI,
    OPEN,
    REPAIRS,
    SCREEN,
    SEARCH,
    SEARCHED,
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
    says,
    text,
    tool,
    user,
)

from stopkit import Api
from stopkit.normalizer import (
    RULES,
    HistoryError,
    Normalizer,
    check,
    normalize,
)
from stopkit.normalizer.wording import read_note

BROKEN = [
    pytest.param(api, name, items, request, expected, id=f"{api.rpartition('.')[2]}: {name}")
    for api, rows in shapes.SHAPES
    for name, items, request, expected in rows
    if expected
]
REFUSED = {
    name
    for table in REPAIRS.values()
    for name, done in table.items()
    if done and done[0].startswith("refused")
}


@pytest.mark.parametrize(("api", "name", "items", "request_", "expected"), BROKEN)
def test_check_says_what_the_api_would_refuse(
    api: Api, name: str, items: list[Any], request_: Item, expected: list[str]
) -> None:
    found = check(items, api=api, request=request_)
    told = [f"{one.rule} {one.path} {one.scope}" for one in found.violations]
    assert sorted(told) == sorted(expected)
    for one in found.violations:
        assert one.message
        assert one.grade == RULES[one.rule].grade
    assert found.valid is all(entry.endswith(" send") for entry in expected)
    assert not found.sendable


@pytest.mark.parametrize(("api", "name", "items", "request_", "expected"), BROKEN)
def test_normalize_repairs_each_shape_and_says_how(
    api: Api, name: str, items: list[Any], request_: Item, expected: list[str]
) -> None:
    repairs = REPAIRS[api][name]
    if name in REFUSED:
        with pytest.raises(HistoryError) as refused:
            normalize(items, api=api, request=request_)
        assert repairs == [f"refused {refused.value.rule} {refused.value.path}"]
        assert str(refused.value).startswith(f"{refused.value.path}: ")
        return
    done = mended(api, items, request=request_)
    assert [f"{one.kind} {one.rule} {one.path}" for one in done.changes] == repairs
    if not repairs:
        assert not done.sendable
        assert done.history is items
    if done.sendable:
        assert brute.sendable(api, list(done.history), request_)


def test_every_broken_shape_has_its_repair() -> None:
    broken = {
        (api, name) for api, rows in shapes.SHAPES for name, _, _, expected in rows if expected
    }
    assert {(api, name) for api, table in REPAIRS.items() for name in table} == broken


@pytest.mark.parametrize(
    ("api", "items", "request_"),
    [
        pytest.param(api, items, request, id=f"{api.rpartition('.')[2]}: {name}")
        for api, rows in shapes.SHAPES
        for name, items, request, expected in rows
        if not expected
    ],
)
def test_a_valid_shape_comes_back_as_the_very_same_list(
    api: Api, items: list[Any], request_: Item
) -> None:
    assert check(items, api=api, request=request_).violations == ()
    done = normalize(items, api=api, request=request_)
    assert done.history is items
    assert done.changes == []


@pytest.mark.rule("GEN-2PRED-1")
@pytest.mark.parametrize("api", APIS)
def test_an_open_last_turn_is_a_valid_prefix_that_is_not_sendable(api: Api) -> None:
    found = check(OPEN[api], api=api)
    assert found.valid
    assert not found.sendable
    assert {one.scope for one in found.violations} == {"send"}


@pytest.mark.rule("GEN-LIVE-1")
@pytest.mark.parametrize("api", APIS)
def test_a_running_call_stays_open(api: Api) -> None:
    done = mended(api, OPEN[api], evidence={"a": {"status": "running"}})
    assert done.pending == ("a",)
    assert not done.sendable
    assert [(one.call_id, one.synthetic) for one in done.outcomes] == [("a", False), ("b", True)]
    assert len(made_words(done)) == 1
    whole = mended(api, OPEN[api], evidence={i: {"status": "running"} for i in "ab"})
    assert whole.history is OPEN[api]


@pytest.mark.rule("GEN-LIVE-1")
@pytest.mark.parametrize("api", APIS)
def test_keep_leaves_the_last_turn_open_and_no_other(api: Api) -> None:
    later = {
        A: [HI, model(call("a")), HI, model(call("b"))],
        R: [ASK, fc("a"), ASK, fc("b")],
        C: [HI, calls("a"), HI, calls("b")],
    }[api]
    done = mended(api, later, live="keep")
    assert done.pending == ("b",)
    assert not done.sendable
    assert [one.call_id for one in done.changes] == ["a"]
    closed = mended(api, later, live="close")
    assert closed.pending == ()
    assert [one.call_id for one in closed.changes] == ["a", "b"]


@pytest.mark.rule("GEN-LIVE-1")
@pytest.mark.parametrize("api", APIS)
def test_nobody_said_that_a_call_kept_open_is_running(api: Api) -> None:
    kept = normalize(OPEN[api], api=api, live="keep")
    assert [one.outcome.reason for one in kept.outcomes].count("still running") == 0
    told = normalize(OPEN[api], api=api, evidence={"a": {"status": "running"}}, live="keep")
    assert [one.outcome.reason for one in told.outcomes].count("still running") == 1


@pytest.mark.rule("GEN-LIVE-1", "ANT-END-1")
def test_a_pending_call_needs_its_result_and_no_user_turn() -> None:
    done = normalize([HI, model(call("a"))], api=A, live="keep")
    assert done.pending == ("a",)
    assert "needs_user_turn" not in codes(done)


@pytest.mark.rule("GEN-DET-1", "OAI-ID-3", "CHAT-ID-1", "ANT-ID-1")
@pytest.mark.parametrize(
    ("api", "items", "limit"),
    [
        (A, [HI, model(call("a b"), call("a:b"), call("a_b")), HI], 64),
        (R, [fc("a" * 65), fc("a" * 66), fc("a" * 64), ASK], 64),
        (C, [HI, calls("a" * 41, "a" * 42, "a" * 40), HI], 40),
    ],
)
def test_new_ids_follow_from_the_old_ones_and_never_meet(
    api: Api, items: list[Any], limit: int
) -> None:
    first = mended(api, items)
    assert list(mended(api, copy.deepcopy(items)).history) == list(first.history)
    written = json.dumps(list(first.history))
    ids = re.findall(r'"(?:id|call_id|tool_use_id|tool_call_id)": "([^"]*)"', written)
    # Three calls, each with its result: the same id on both sides.
    assert len(ids) == 6
    assert len(set(ids)) == 3
    assert all(re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{limit}}}", one) for one in ids)
    # The one that was fine keeps its own.
    assert {"a_b", "a" * 64, "a" * 40} & set(ids)


PLACEHOLDER = "The tool call was interrupted before a result was produced."
LATE: dict[Api, tuple[list[Any], list[Any]]] = {
    A: (
        [HI, model(call("a")), user(result("a", content=PLACEHOLDER))],
        [user(result("a", content="real"))],
    ),
    R: ([ASK, fc("a"), out("a", output=PLACEHOLDER)], [out("a", output="real")]),
    C: ([HI, calls("a"), tool("a", content=PLACEHOLDER)], [tool("a", content="real")]),
}


@pytest.mark.rule("GEN-LATE-1")
@pytest.mark.parametrize("api", APIS)
def test_a_real_result_takes_the_place_of_a_placeholder_nobody_answered(api: Api) -> None:
    before, late = LATE[api]
    done = mended(api, before + late)
    texts = list(strings(list(done.history)))
    assert texts.count("real") == 1
    assert PLACEHOLDER not in texts
    assert PLACEHOLDER in list(strings([one.removed for one in done.changes]))
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", False)]


@pytest.mark.rule("GEN-LATE-1", "ANT-PAIR-5", "OAI-PAIR-4")
@pytest.mark.parametrize("api", APIS)
def test_a_real_result_behind_an_answered_placeholder_is_told_where_it_arrived(api: Api) -> None:
    before, late = LATE[api]
    went_on = {A: model(text("so")), R: says("assistant"), C: {**told("so"), "role": "assistant"}}
    done = mended(api, [*before, went_on[api], *late])
    history = list(done.history)
    assert history[: len(before) + 1] == [*before, went_on[api]]
    (note,) = (words for words in strings(history[-1]) if words.startswith("[stopkit note "))
    head = read_note(note)
    assert head is not None
    assert (head["kind"], head["call_id"], head["occurrence"]) == ("late_result", "a", 1)
    assert note.endswith("\nreal")
    assert rules_of(done) == ["delivered GEN-LATE-1"]
    # The tool's own result is recorded: its outcome is known, though a stand-in answers the call.
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", True)]


@pytest.mark.rule("GEN-TWOWAY-1", "ANT-EMPTY-4")
def test_pairing_runs_on_what_removals_leave() -> None:
    # The blank message parts nothing any more once it left: the result stands behind its call.
    items = [HI, model(call("a")), user(text(" ")), user(result("a"))]
    done = mended(A, items)
    assert list(done.history) == [items[0], items[1], items[3]]
    # A model message of blank text only was all that stood between two user turns.
    parted = mended(A, [HI, model(call("a")), model(text("\n")), user(result("a"))])
    assert made_words(parted) == []
    assert [(one.status, one.synthetic) for one in parted.outcomes] == [("succeeded", False)]


@pytest.mark.rule("GEN-TWOWAY-1")
@pytest.mark.parametrize(
    ("api", "items"),
    [
        (A, [HI, model(call("a")), user(result("b"))]),
        (R, [ASK, fc("a"), out("b"), ASK]),
        (C, [HI, calls("a"), tool("b")]),
    ],
)
def test_a_call_and_a_result_with_different_ids_do_not_belong_together(
    api: Api, items: list[Any]
) -> None:
    done = mended(api, items)
    assert [(one.call_id, one.status, one.synthetic) for one in done.outcomes] == [
        ("a", "unknown", True)
    ]
    (orphan,) = (change for change in done.changes if change.kind == "to_text")
    assert orphan.call_id == "b"
    (note,) = (words for words in strings(list(done.history)) if words.endswith("\nOutput:\ndone"))
    head = read_note(note)
    assert head is not None
    assert head["kind"] == "orphan_result"


@pytest.mark.rule("GEN-STORE-1")
@pytest.mark.parametrize("api", APIS)
def test_a_repair_comes_back_the_same_from_its_record(api: Api) -> None:
    items = {
        A: [HI, model(call("a")), HI],
        R: [ASK, fc("a"), ASK],
        C: [HI, calls("a"), HI],
    }[api]
    living = Normalizer(api)
    living.extend(items)
    sent = living.request()
    assert sent.undo() == items
    stored = json.loads(json.dumps(living.dump()))
    loaded = Normalizer.load(stored, items)
    assert list(loaded.request().history) == list(sent.history)


NO_TRUTHFUL_RESULT = [
    pytest.param([ASK, SCREEN, ASK], "computer_call", id="computer call"),
    pytest.param([ASK, SEARCHED | {"status": "in_progress"}, ASK], "web_search_call", id="hosted"),
    pytest.param([ASK, APPROVAL, ASK], "mcp_approval_request", id="undecided"),
]


@pytest.mark.rule("GEN-NOREP-1", "OAI-CU-1", "OAI-HOST-1", "OAI-MCP-1")
@pytest.mark.parametrize(("items", "kind"), NO_TRUTHFUL_RESULT)
def test_what_has_no_truthful_result_leaves_and_the_report_holds_it(
    items: list[Any], kind: str
) -> None:
    done = mended(R, items)
    assert list(done.history) == [items[0], items[2]]
    (change,) = done.changes
    assert change.kind == "removed"
    assert change.removed is items[1]
    assert change.path_after is None
    assert items[1]["type"] == kind


@pytest.mark.rule("GEN-NOREP-1", "ANT-SRV-1", "ANT-SRV-2")
def test_no_result_of_a_server_tool_is_made_up() -> None:
    items = [HI, model(text(), SEARCH), HI]
    done = mended(A, items)
    assert list(done.history) == [HI, model(text()), HI]
    assert [change.removed for change in done.changes] == [SEARCH]


@pytest.mark.rule("GEN-JSON-1")
@pytest.mark.parametrize("api", APIS)
def test_a_lone_surrogate_is_replaced_and_kept_in_the_report(api: Api) -> None:
    done = mended(api, [told("half \ud83d a pair")])
    assert "half \ufffd a pair" in list(strings(done.history[0]))
    (change,) = done.changes
    assert (change.rule, change.removed) == ("GEN-JSON-1", "half \ud83d a pair")


@pytest.mark.rule("GEN-JSON-1")
@pytest.mark.parametrize("api", APIS)
def test_nesting_has_a_limit(api: Api) -> None:
    def nested(levels: int) -> Item:
        value: Any = []
        for _ in range(levels - 2):
            value = [value]
        return {**told(), "x_note": value}

    # The message itself is the first level.
    fine = check([nested(255), told()], api=api)
    assert "GEN-JSON-1" not in [one.rule for one in fine.violations]
    for items in ([nested(300)], [nested(300), told()]):
        found = check(items, api=api)
        assert "GEN-JSON-1" in [one.rule for one in found.violations]
    with pytest.raises(HistoryError) as refused:
        normalize([nested(300)], api=api)
    assert refused.value.rule == "GEN-JSON-1"


def test_the_page_of_rules_is_what_the_table_makes() -> None:
    assert (TESTS.parent / "docs" / "rules.md").read_text() == page(), "run `make docs`"


def test_every_rule_is_held_by_a_test() -> None:
    assert RULES.keys() == marked_tests().keys() | shapes_of().keys()
