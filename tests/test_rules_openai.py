"""The rules of OpenAI Responses and Chat, each by what a repair does and what none may do.

The mark `rule` names the rules that a test holds; docs/rules.md lists them.
"""

from __future__ import annotations

import pytest
from mended import codes, mended, rules_of, strings, told
from shapes import (
    ANSWER,
    APPROVAL,
    ASK,
    HI,
    IMAGE,
    LEGACY,
    LOCAL,
    PROGRAM,
    PROGRAM_OUT,
    SCREEN,
    SEARCHED,
    C,
    Item,
    R,
    calls,
    fc,
    out,
    says,
    text,
    thought,
    tool,
)

from stopkit.normalizer import (
    check,
    normalize,
    read_outcome,
)


@pytest.mark.rule("OAI-PAIR-1")
@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        (fc("a"), "function_call_output"),
        (
            {"type": "custom_tool_call", "call_id": "a", "name": "n", "input": "x"},
            "custom_tool_call_output",
        ),
        (LOCAL | {"call_id": "a"}, "local_shell_call_output"),
        ({"type": "shell_call", "call_id": "a", "action": {"commands": []}}, "shell_call_output"),
        (
            {"type": "apply_patch_call", "call_id": "a", "status": "completed", "operation": {}},
            "apply_patch_call_output",
        ),
        (
            {
                "type": "tool_search_call",
                "call_id": "a",
                "execution": "client",
                "status": "completed",
                "arguments": {},
            },
            "tool_search_output",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_family_is_answered_in_its_own_type(opened: Item, closed: str) -> None:
    done = mended(R, [ASK, opened, ASK])
    made = done.history[2]
    assert (made["type"], made["call_id"]) == (closed, "a")
    assert made.get("output") != ""
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("unknown", True)]


@pytest.mark.rule("OAI-PAIR-2")
def test_an_orphan_output_becomes_an_attributed_user_message() -> None:
    done = mended(R, [ASK, out("gone", output="42 rows"), ASK])
    note = done.history[1]
    assert (note["type"], note["role"]) == ("message", "user")
    (words,) = (one for one in strings(note["content"]) if one.startswith("[stopkit note "))
    assert words.endswith("\n42 rows")


@pytest.mark.rule("OAI-PAIR-3")
def test_an_output_of_another_family_is_retyped_only_where_it_carries_over() -> None:
    done = mended(R, [ASK, fc("a"), out("a", "custom_tool_call"), ASK])
    assert done.history[2] == out("a")
    found = {
        "type": "tool_search_output",
        "call_id": "a",
        "execution": "client",
        "status": "completed",
        "tools": [],
    }
    other = mended(R, [ASK, fc("a"), found, ASK])
    assert other.history[2]["type"] == "function_call_output"
    assert read_outcome(other.history[2]["output"]) is not None
    assert found in [change.removed for change in other.changes]


@pytest.mark.rule("OAI-SHELL-1")
def test_a_made_up_shell_output_claims_no_exit_of_its_own() -> None:
    opened = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}
    made = mended(R, [ASK, opened, ASK]).history[2]
    assert made["status"] == "incomplete"
    (one,) = made["output"]
    assert one["stdout"] == ""
    assert read_outcome(one["stderr"]) is not None
    assert one["outcome"] == {"type": "exit", "exit_code": -1}


@pytest.mark.rule("OAI-SHELL-1")
def test_an_output_keyed_by_id_is_its_calls() -> None:
    keyed = {"type": "local_shell_call_output", "id": "l", "output": '{"stdout":"Linux"}'}
    done = mended(R, [ASK, LOCAL, keyed, ASK])
    assert done.history[2]["call_id"] == "l"
    assert done.history[2]["output"] == keyed["output"]
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", False)]


@pytest.mark.rule("OAI-PATCH-1")
def test_a_made_up_patch_output_is_failed_and_says_that_it_may_be_applied() -> None:
    opened = {"type": "apply_patch_call", "call_id": "a", "status": "completed", "operation": {}}
    made = mended(R, [ASK, opened, ASK]).history[2]
    assert made["status"] == "failed"
    assert "may have run in whole" in made["output"]


@pytest.mark.rule("OAI-COMP-1")
def test_a_whole_compaction_is_left_alone_and_a_trigger_goes_last() -> None:
    whole = {"type": "compaction", "id": "cmp_1", "encrypted_content": "C=="}
    trigger = {"type": "compaction_trigger"}
    done = mended(R, [whole, trigger, ASK])
    assert list(done.history) == [whole, ASK, trigger]
    assert done.history[0] is whole


@pytest.mark.rule("OAI-CU-1", "OAI-REAS-1")
def test_an_open_screen_leaves_with_its_reasoning() -> None:
    done = mended(R, [ASK, thought(), SCREEN, ASK])
    assert list(done.history) == [ASK, ASK]
    assert [change.removed for change in done.changes] == [thought(), SCREEN]


@pytest.mark.rule("OAI-CHAIN-1", "OAI-PAIR-2")
@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
def test_under_a_chain_an_output_may_answer_a_call_of_the_server(chain: str) -> None:
    items = [out("z"), ASK]
    done = normalize(items, api=R, request={chain: "x_1"})
    assert done.history is items
    assert done.sendable
    assert codes(done) == ["chained"]
    assert check(items, api=R, request={chain: "x_1"}).valid
    assert not check(items, api=R).valid


@pytest.mark.rule("OAI-REAS-1")
def test_reasoning_alone_leaves_and_nothing_is_put_behind_it() -> None:
    done = mended(R, [ASK, thought(encrypted_content="E=="), ASK])
    assert list(done.history) == [ASK, ASK]


@pytest.mark.rule("OAI-REAS-2", "OAI-REAS-3")
def test_an_item_whose_reasoning_left_has_no_id_that_asks_for_it() -> None:
    cut = thought(encrypted_content="")
    done = mended(R, [ASK, cut, fc("a", id="fc_1"), out("a"), ASK])
    assert list(done.history) == [ASK, fc("a"), out("a"), ASK]
    assert rules_of(done) == ["removed OAI-REAS-3", "removed OAI-REAS-2"]
    assert done.changes[1].removed == "fc_1"


@pytest.mark.rule("OAI-ID-1")
def test_a_second_item_with_an_id_gets_no_new_one() -> None:
    one, other = says("assistant", id="msg_1"), says("assistant", id="msg_1", content="more")
    done = mended(R, [ASK, one, other, ASK])
    assert list(done.history) == [ASK, one, says("assistant", content="more"), ASK]
    copied = mended(R, [ASK, one, ASK, dict(one)])
    assert list(copied.history) == [ASK, one, ASK]


@pytest.mark.rule("OAI-ID-2")
def test_a_foreign_id_is_stripped_and_what_needs_one_leaves() -> None:
    done = mended(R, [ASK, fc("a", id="toolu_1"), out("a"), SEARCHED | {"id": "x"}, ANSWER])
    assert list(done.history) == [ASK, fc("a"), out("a"), ANSWER]
    assert done.changes[0].removed == "toolu_1"


@pytest.mark.rule("OAI-ID-4")
def test_a_call_id_that_comes_again_is_renamed_with_its_output() -> None:
    items = [fc("a"), out("a", output="1"), ASK, fc("a"), out("a", output="2"), ASK]
    done = mended(R, items)
    assert list(done.history)[:3] == items[:3]
    again, answer = done.history[3], done.history[4]
    assert again["call_id"] == answer["call_id"] != "a"
    assert answer["output"] == "2"


@pytest.mark.rule("OAI-STORE-1")
def test_without_a_store_only_what_is_whole_stays() -> None:
    sealed = thought("rs_2", encrypted_content="E==")
    items = [
        thought(),
        fc("a", id="fc_1"),
        out("a"),
        {"type": "item_reference", "id": "msg_1"},
        sealed,
        says("assistant", id="msg_2"),
        ASK,
    ]
    done = mended(R, items, request={"store": False})
    assert list(done.history) == [fc("a"), out("a"), sealed, ANSWER, ASK]
    assert normalize(items, api=R).changes == []


@pytest.mark.rule("OAI-HOST-1")
@pytest.mark.parametrize("status", ["in_progress", "searching", "interpreting"])
def test_an_unfinished_hosted_item_is_never_completed(status: str) -> None:
    done = mended(R, [ASK, thought(), SEARCHED | {"status": status}, ASK])
    assert list(done.history) == [ASK, ASK]


@pytest.mark.rule("OAI-MCP-1")
def test_only_a_refusal_the_caller_knows_of_is_sent() -> None:
    denied = {"status": "denied", "reason": "not this one"}
    done = mended(R, [ASK, APPROVAL, ASK], evidence={"mcpr_1": denied})
    assert done.history[2] == {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": False,
        "reason": "not this one",
    }
    undecided = mended(R, [ASK, APPROVAL, ASK])
    assert list(undecided.history) == [ASK, ASK]
    (one,) = undecided.outcomes
    assert (one.status, one.outcome.reason) == ("not_started", "approval_never_given")


@pytest.mark.rule("OAI-PROG-1")
def test_a_lost_program_leaves_and_what_it_did_is_told() -> None:
    by = {"caller": {"type": "program", "caller_id": "p"}}
    done = mended(R, [ASK, PROGRAM, fc("a", **by), out("a", output="42 rows"), ASK])
    assert "program" not in {item["type"] for item in done.history}
    assert any(words.endswith("42 rows") for words in strings(list(done.history)))
    whole = [ASK, PROGRAM, fc("a", **by), out("a"), PROGRAM_OUT, ANSWER, ASK]
    assert normalize(whole, api=R).history is whole


@pytest.mark.rule("OAI-PROG-1")
def test_the_outcome_of_a_call_that_left_with_its_program_is_its_outputs() -> None:
    by = {"caller": {"type": "program", "caller_id": "p"}}
    done = mended(R, [ASK, fc("a", **by), out("a", output="42 rows"), ASK])
    assert [(one.call_id, one.status) for one in done.outcomes] == [("a", "succeeded")]


@pytest.mark.rule("OAI-MCP-1")
def test_the_account_of_an_undecided_request_does_not_contradict_the_caller() -> None:
    items = [ASK, APPROVAL, ASK]
    done = mended(R, items, evidence={"mcpr_1": {"status": "succeeded", "output": "closed"}})
    assert list(done.history) == [ASK, ASK]
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("succeeded", True)]
    assert "Nobody decided" not in done.changes[0].note


@pytest.mark.rule("OAI-NS-1")
def test_a_namespace_stays() -> None:
    found = fc("a", namespace="crm")
    done = mended(R, [ASK, found, ASK])
    assert done.history[1] is found
    renamed = mended(R, [ASK, fc("a" * 65, namespace="crm"), out("a" * 65), ASK])
    assert renamed.history[1]["namespace"] == "crm"


@pytest.mark.rule("OAI-PHASE-1")
def test_a_phase_stays_and_none_is_given() -> None:
    said = says("assistant", phase="commentary", id="x_1")
    done = mended(R, [ASK, said, fc("a"), ASK])
    assert done.history[1]["phase"] == "commentary"
    assert "phase" not in mended(R, [ASK, says("assistant", id="x_1"), ASK]).history[1]


@pytest.mark.rule("OAI-SHAPE-1")
def test_a_long_output_is_cut_and_the_report_holds_the_whole() -> None:
    whole = "x" * 10_485_761
    done = mended(R, [fc("a"), out("a", output=whole), ASK])
    assert len(done.history[1]["output"]) <= 10_485_760
    assert done.changes[0].removed == whole


@pytest.mark.rule("OAI-SHAPE-2")
def test_text_parts_get_the_type_of_their_speaker() -> None:
    asked = says(content=[{"type": "output_text", "text": "x", "annotations": []}])
    said = says("assistant", content=[{"type": "input_text", "text": "y"}])
    done = mended(R, [asked, said, ASK])
    parts = [part for item in done.history[:2] for part in item["content"]]
    assert [(part["type"], part["text"]) for part in parts] == [
        ("input_text", "x"),
        ("output_text", "y"),
    ]


@pytest.mark.rule("OAI-SHAPE-3")
def test_a_field_the_api_does_not_know_leaves_and_the_report_holds_it() -> None:
    done = mended(R, [ASK, says("assistant", parsed={"n": 1}), ASK])
    assert done.history[1] == ANSWER
    assert done.changes[0].removed == {"n": 1}


@pytest.mark.rule("CHAT-PAIR-1")
def test_made_up_results_stand_behind_the_recorded_in_the_order_of_the_calls() -> None:
    recorded = tool("b")
    done = mended(C, [HI, calls("a", "b", "c"), recorded, HI])
    assert [item.get("tool_call_id") for item in done.history[2:5]] == ["b", "a", "c"]
    assert done.history[2] is recorded
    assert done.history[5] == HI


@pytest.mark.rule("CHAT-ORD-1")
def test_a_steer_between_two_results_goes_behind_them() -> None:
    items = [HI, calls("a", "b"), tool("a"), told("steer"), tool("b")]
    done = mended(C, items)
    assert list(done.history) == [items[0], items[1], items[2], items[4], items[3]]


@pytest.mark.rule("CHAT-PAIR-2")
def test_an_orphan_tool_message_becomes_an_attributed_user_message() -> None:
    done = mended(C, [HI, tool("gone", content="42 rows"), HI])
    assert done.history[1]["role"] == "user"
    (words,) = (one for one in strings(done.history[1]) if one.startswith("[stopkit note "))
    assert words.endswith("\n42 rows")


@pytest.mark.rule("CHAT-EMPTY-1")
def test_an_empty_list_of_calls_leaves_and_the_words_stay() -> None:
    done = mended(C, [HI, {"role": "assistant", "content": "so", "tool_calls": []}, HI])
    assert done.history[1] == {"role": "assistant", "content": "so"}


@pytest.mark.rule("CHAT-TOOL-1")
def test_a_picture_moves_behind_the_block_of_results() -> None:
    shown = tool("a", content=[text("see"), IMAGE])
    done = mended(C, [HI, calls("a", "b"), shown, tool("b", content=None), HI])
    assert done.history[2]["content"] == [text("see")]
    assert done.history[3]["content"] == ""
    assert done.history[4]["role"] == "user"
    assert IMAGE in done.history[4]["content"]


@pytest.mark.rule("CHAT-FN-1")
def test_an_unanswered_legacy_call_becomes_one_of_tool_calls() -> None:
    done = mended(C, [HI, LEGACY, HI])
    made = done.history[1]
    assert "function_call" not in made
    (one,) = made["tool_calls"]
    assert one["function"] == LEGACY["function_call"]
    assert done.history[2]["tool_call_id"] == one["id"]
    assert read_outcome(done.history[2]["content"]) is not None
    assert [(each.name, each.status) for each in done.outcomes] == [("clock", "unknown")]


@pytest.mark.rule("CHAT-LAST-1")
def test_an_assistant_at_the_end_is_sendable_with_a_hint() -> None:
    items = [HI, {"role": "assistant", "content": "so"}]
    done = normalize(items, api=C)
    assert done.history is items
    assert done.sendable
    assert codes(done) == ["needs_user_turn"]
    assert check(items, api=C).violations == ()
