"""Histories that broke in public, and peers' cases, each with its right value.

`expect` of a file in data/cases/bugs describes a right answer, not its bytes; `peer_expected` of a
line in data/cases/peers is what that project does, and `PEERS` what is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mended import codes, made_words, mended, strings
from shapes import A, C, Item, R
from strategies import texts_of

from stopkit import Api
from stopkit.normalizer import Normalized, normalize, read_outcome
from stopkit.normalizer.wording import read_note

CASES = Path(__file__).parent / "data" / "cases"
API_OF: dict[str, Api] = {"anthropic_messages": A, "openai_responses": R, "openai_chat": C}
BUGS: list[dict[str, Any]] = [
    json.loads(path.read_text()) for path in sorted((CASES / "bugs").glob("*.json"))
]
OURS = [case for case in BUGS if case["api"] in API_OF]

NOT_OUR_APIS = {"bedrock-unsigned-reasoning-after-abort": "bedrock_converse"}
"""Cases of formats that stopkit does not know."""

ALTERNATIVES = {
    "orphan-result-after-interrupted-turn": (
        "text of the user's turn that names the call: what was recorded is not lost"
    ),
    "orphan-output-after-chained-compaction": (
        "a user message that names the call: what was recorded is not lost"
    ),
}
"""Where a case allows two answers and ours is its second."""

FIRST_ANSWERS = {
    "partial-json-arguments-in-memory",
    "real-result-behind-a-later-assistant-turn",
    "server-and-client-call-in-one-turn-plus-user-text",
    "web-search-cut-before-its-result",
}
"""Where a case allows two answers and ours is its first."""

REASONS = {
    "result_removed_by_compaction": (
        "no_result_recorded",
        "that a compaction took the result is the caller's to know: the history does not say it",
    ),
}
"""Reasons that a case names and a history alone cannot prove, with what is said instead."""


# --- reading a history ---------------------------------------------------------------------------


def facts(api: Api, items: list[Any]) -> Iterator[tuple[str, str, str]]:
    """What a history says: ("text", role, words), ("call", id, ""), ("result", id, words)."""
    for item in items:
        if api == R:
            yield from _facts_of_item(item)
            continue
        role = item["role"]
        for made in item.get("tool_calls") or ():
            yield "call", made["id"], ""
        if role == "tool":
            yield "result", item["tool_call_id"], " ".join(strings(item["content"]))
        elif isinstance(item["content"], str):
            yield "text", role, item["content"]
        else:
            for block in item["content"] or ():
                yield from _facts_of_block(role, block)


def _facts_of_block(role: str, block: Item) -> Iterator[tuple[str, str, str]]:
    match block["type"]:
        case "text":
            yield "text", role, block["text"]
        case "tool_use" | "server_tool_use":
            yield ("call" if block["type"] == "tool_use" else block["type"]), block["id"], ""
        case "tool_result":
            yield "result", block["tool_use_id"], " ".join(strings(block.get("content")))
        case "thinking":
            yield "thinking", block["signature"], ""
        case _:
            pass


def _facts_of_item(item: Item) -> Iterator[tuple[str, str, str]]:
    kind = item["type"]
    if kind == "message":
        yield "text", item["role"], " ".join(strings(item["content"]))
    elif kind in ("reasoning", "compaction"):
        yield kind, item["id"], ""
    elif kind.endswith("_output"):
        yield "result", item["call_id"], " ".join(strings(item["output"]))
    elif kind.endswith("_call"):
        yield "call", item["call_id"], ""


def _denial(done: Normalized[Any]) -> bool:
    (words,) = made_words(done)
    outcome = read_outcome(words)
    return outcome is not None and outcome.reason == "show me the outline beforehand"


def _order(done: Normalized[Any], *parts: str) -> bool:
    """Whether the history holds these texts in this order."""
    whole = json.dumps(list(done.history), ensure_ascii=False)
    places = [whole.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


FREE_WORDS: dict[str, Callable[[Normalized[Any]], bool]] = {
    "two image blocks in order": lambda done: (
        [block["type"] for block in done.history[2]["content"]]
        == ["tool_result", "tool_result", "image", "image"]
    ),
    "thinking:sigAAAA== unchanged, before toolu_01M1": lambda done: (
        done.history[1]["content"][0]
        == {
            "type": "thinking",
            "thinking": "Start with the parser.",
            "signature": "sigAAAA==",
        }
    ),
    "denial reason": _denial,
    "denial of mcpr_j1": lambda done: (
        done.history[2]
        == {
            "type": "mcp_approval_response",
            "approval_request_id": "mcpr_j1",
            "approve": False,
            "reason": "not this one",
        }
    ),
    "deferred text: Also use USD.": lambda done: (
        [change.removed for change in done.changes if change.kind == "deferred"]
        == [{"type": "text", "text": "Also use USD."}]
    ),
    "compaction:cmp_1 unchanged": lambda done: (
        done.history[0] == {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAC1"}
    ),
    "reasoning:rs_f1 once": lambda done: (
        [item["type"] for item in done.history].count("reasoning") == 1
    ),
    "write a -> wrote a": lambda done: _order(done, '\\"a\\"', "wrote a"),
    "write b -> wrote b": lambda done: _order(done, '\\"b\\"', "wrote b"),
}
"""What a case keeps in words of its own."""


def keeps(api: Api, done: Normalized[Any], entry: str) -> bool:
    if entry in FREE_WORDS:
        return FREE_WORDS[entry](done)
    found = list(facts(api, list(done.history)))
    kind, _, rest = entry.partition(":")
    if kind == "text":
        role, _, part = rest.partition(":")
        return any(one[:2] == ("text", role) and part in one[2] for one in found)
    if kind == "result":
        # An id may hold a colon of its own.
        return any(
            one[0] == "result" and rest.startswith(one[1]) and rest[len(one[1]) + 1 :] in one[2]
            for one in found
        )
    assert kind in ("call", "server_tool_use", "reasoning", "thinking"), entry
    return any(one[:2] == (kind, rest) for one in found)


# --- bugs ----------------------------------------------------------------------------------------


def split(case: dict[str, Any]) -> tuple[Api, list[Any], dict[str, Any], dict[str, Any]]:
    """The api, the items, and the rest of the request; evidence is the caller's."""
    request = dict(case["input"])
    api = API_OF[case["api"]]
    evidence = request.pop("evidence", {})
    return api, request.pop("input" if api == R else "messages"), request, evidence


def repaired(case: dict[str, Any]) -> Normalized[Any]:
    api, items, request, evidence = split(case)
    return mended(api, items, request=request, evidence=evidence)


def test_cases_of_other_apis_are_known() -> None:
    others = {case["id"]: case["api"] for case in BUGS if case["api"] not in API_OF}
    assert others == NOT_OUR_APIS


def test_two_right_answers_are_decided() -> None:
    open_ = {case["id"] for case in OURS if "acceptable_alternatives" in case["expect"]}
    assert open_ == ALTERNATIVES.keys() | FIRST_ANSWERS


@pytest.mark.parametrize("case", OURS, ids=lambda case: str(case["id"]))
def test_a_case_keeps_what_it_must(case: dict[str, Any]) -> None:
    api, done = API_OF[case["api"]], repaired(case)
    expect = case["expect"]
    assert expect["valid"] is True
    assert [entry for entry in expect["must_keep"] if not keeps(api, done, entry)] == []
    if expect.get("dropped") and case["id"] not in ALTERNATIVES:
        assert any(change.removed is not None for change in done.changes)
    if expect.get("moved"):
        assert {"moved", "deferred"} & {change.kind for change in done.changes}


@pytest.mark.parametrize("case", OURS, ids=lambda case: str(case["id"]))
def test_a_case_is_sendable_or_pending(case: dict[str, Any]) -> None:
    done = repaired(case)
    assert done.sendable is case["expect"].get("sendable", True)
    assert list(done.pending) == case["expect"].get("pending", [])


@pytest.mark.parametrize(
    "case",
    [case for case in OURS if "results" in case["expect"]],
    ids=lambda case: str(case["id"]),
)
def test_the_outcomes_of_a_case(case: dict[str, Any]) -> None:
    done = repaired(case)
    expected: dict[str, dict[str, Any]] = case["expect"]["results"]
    found = {
        (one.call_id, one.occurrence): one
        for one in done.outcomes
        if one.call_id not in done.pending
    }
    wanted: dict[tuple[str, int], dict[str, Any]] = {}
    for name, want in expected.items():
        call_id, mark, number = name.partition("#")
        wanted[call_id, int(number) if mark else 1] = want
    assert found.keys() == wanted.keys()
    for key, want in wanted.items():
        one = found[key]
        assert (one.status, one.synthetic) == (want["outcome"], want["synthetic"])
        if "effects" in want:
            assert one.effects == {"possible": "unverified"}.get(want["effects"], want["effects"])
        if "reason" in want:
            told, _ = REASONS.get(want["reason"], (want["reason"], ""))
            assert one.outcome.reason == told
        if "is_error" in want:
            blocks = [block for item in done.history for block in item["content"]]
            (result,) = (
                block
                for block in blocks
                if isinstance(block, dict) and block.get("tool_use_id") == one.call_id
            )
            assert result["is_error"] is want["is_error"]
        if want.get("representation") == "item dropped":
            assert one.call_id not in json.dumps(list(done.history))


def test_only_the_reasons_of_the_table_differ() -> None:
    named = {
        fact["reason"]
        for case in OURS
        for fact in case["expect"].get("results", {}).values()
        if "reason" in fact
    }
    assert named >= REASONS.keys()
    # What the history cannot prove, the caller may say.
    case = next(case for case in OURS if case["id"] == "summary-replaced-the-result-message")
    api, items, _, _ = split(case)
    known = {"toolu_01K1": {"status": "unknown", "reason": "result_removed_by_compaction"}}
    (one,) = mended(api, items, evidence=known).outcomes
    assert one.outcome.reason == "result_removed_by_compaction"


@pytest.mark.parametrize("case_id", ALTERNATIVES)
def test_an_alternative_is_attributed_text(case_id: str) -> None:
    case = next(case for case in OURS if case["id"] == case_id)
    done = repaired(case)
    (change,) = done.changes
    assert change.kind == "to_text"
    (note,) = (words for words in strings(list(done.history)) if read_note(words) is not None)
    head = read_note(note)
    assert head is not None
    assert (head["kind"], head["call_id"]) == ("orphan_result", change.call_id)
    (recorded,) = (
        text
        for text in strings(change.removed)
        if text not in (change.call_id, "tool_result", "function_call_output")
    )
    assert note.endswith(f"\n{recorded}")


def test_a_repair_before_bound_thinking_says_so_and_is_the_same_again() -> None:
    case = next(c for c in OURS if c["id"] == "repair-edits-prefix-of-bound-thinking")
    done = repaired(case)
    assert codes(done) == ["thinking_prefix_changed"]
    assert json.dumps(list(repaired(case).history)) == json.dumps(list(done.history))


# --- peers ---------------------------------------------------------------------------------------


class Right(NamedTuple):
    """What is right about a peer's case."""

    outcomes: str = ""
    """`id=status` of every call, in order; `!` where the result is no tool's own."""
    touched: tuple[int, ...] = ()
    """Items that do not come back as the very same object; every other does."""
    moved: bool = False
    """Items that come back as they were stand in another order."""
    added: int = 0
    """How many items the history has more (or fewer) than the input."""
    text: tuple[str, ...] = ()
    """Ids of the calls and results that are attributed text now."""
    needs_user: bool = False
    """A user turn has to come before it can be sent."""
    why: str = ""
    """Why the peer's answer is not ours."""


KEPT = "a call that may have had effects is never dropped, and its outcome is unknown"
TOLD = "nothing recorded is dropped: a result without its call becomes attributed text"
BOTH = "two recorded results are both kept"
APART = "neighbours of one role are no error: nothing is merged"
LABEL = "an id is never matched by position: that can hand one tool's output to another call"
START = "a history that begins with the model gets a marked note, and nothing is dropped"
RENAME = "a call is renamed, not dropped: it may have run"
ENDED = "an open call is refused, whatever ended its turn"
WORDS = "the made-up result says what is known, and blames nobody"

PEERS: dict[str, Right] = {
    "agno:history_cut_leaves_output_at_1": Right(touched=(1,), text=("call_cut",)),
    "codex:missing_custom_output": Right("tool-x=unknown!", added=1, why=WORDS),
    "codex:missing_local_shell_output": Right(
        "shell-1=unknown!", added=1, why="each family has its own output type, and " + WORDS
    ),
    "codex:orphan_function_output": Right(touched=(0,), text=("orphan-1",), why=TOLD),
    "codex:valid_pair": Right("call-1=succeeded"),
    "codex:output_before_call": Right(
        "call-2=succeeded",
        moved=True,
        why="an output moves behind its call",
    ),
    "codex:custom_pair": Right("tool-1=succeeded"),
    "codex:wrong_family_output": Right(
        "t9=succeeded",
        touched=(1,),
        why="the output is the call's: it gets the type of its family, and none is made up",
    ),
    "codex:tool_search_client_missing": Right(
        "ts1=unknown!", added=1, why="an empty completed output says that nothing was found"
    ),
    "codex:tool_search_server_output_kept": Right(),
    "deepagents:missing_one": Right("123=unknown!", added=1),
    "deepagents:none_missing": Right("123=succeeded"),
    "deepagents:invalid_args_truncated": Right("bad1=not_started!", touched=(1,), added=1),
    "deepagents:id_reused_later": Right(
        "x1=unknown! x1=succeeded", added=1, why="an id may come again: each call has its result"
    ),
    "google-adk:orphan_response_tail": Right(touched=(2,), text=("adk_gone",), why=TOLD),
    "google-adk:call_then_user_interrupt": Right("adk_1=unknown!", touched=(2,), why=KEPT),
    "google-adk:id_reused_across_turns": Right("call_0=succeeded call_0=succeeded"),
    "goose:valid_prefix_1": Right(),
    "goose:valid_prefix_3": Right("search_1=succeeded"),
    "goose:role_alternation_and_misplaced_content": Right(
        touched=(2, 4), added=1, text=("orphan_1", "bad_req"), why=f"{APART}; {TOLD}"
    ),
    "goose:tool_result_then_user_text": Right("search_1=succeeded"),
    "goose:split_assistant_text_blocks": Right(why="two text blocks are no error"),
    "goose:three_user_runs_with_hidden_notes": Right(why=APART),
    "goose:many_consecutive_user_turns": Right(why=APART),
    "goose:leading_and_trailing_assistant": Right(
        added=1, needs_user=True, why=f"{START}; the last answer stays and a hint asks for a user"
    ),
    "goose:only_assistant_visible": Right(added=1, needs_user=True, why=START),
    "goose:interleaved_hidden_notes_valid": Right(),
    "inspect-ai:compaction_orphan_result_to_text": Right(touched=(1,), text=("gone",)),
    "issues:claude-code_interrupt_mid_batch": Right(
        # The peer's own words stand for results: they prove an interruption and no more.
        "t1=unknown! t2=unknown! t3=unknown!",
        touched=(2,),
    ),
    "issues:claude-code_teleport_orphan": Right(touched=(2,), text=("toolu_gone",)),
    "issues:openclaw_success_reported_as_error": Right("toolu_r=unknown!", touched=(2,)),
    "issues:deepagents_success_status": Right("call-1=unknown!", added=1, why=WORDS),
    "issues:deepagents_responses_block": Right("call_paris=unknown!", added=1),
    "issues:compaction_tail_starts_with_results": Right(touched=(0, 1), text=("gone_1", "gone_2")),
    "issues:responses_null_call_id_output": Right(touched=(1,), text=("",)),
    "issues:call_id_over_64_chars": Right(f"call_{'x' * 80}=succeeded", touched=(1, 2)),
    "litellm:missing_one_of_two": Right("call_1=succeeded call_2=unknown!", added=1),
    "litellm:orphan_result": Right(touched=(2,), text=("nonexistent_id",), why=TOLD),
    "litellm:valid_pair": Right("call_123=succeeded"),
    "litellm:nonempty_kept": Right(),
    "litellm:flag_off": Right(
        "call_1=unknown!", added=1, why="there is no flag: an open call at rest is closed"
    ),
    "litellm:duplicate_results_keep_last": Right(
        "dup1=succeeded", touched=(2, 3), added=-1, why=BOTH
    ),
    "litellm:three_user_turns_last_empty": Right(why="Chat takes an empty user message"),
    "litellm:empty_blocks_in_list": Right(why="Chat takes an empty text part of a user"),
    "litellm:native_missing_at_end": Right("toolu_014=unknown!", added=1),
    "litellm:native_missing_before_user_text": Right("toolu_abc=unknown!", touched=(2,)),
    "litellm:native_valid": Right("toolu_xyz=succeeded"),
    "litellm:native_partial": Right("tid_1=succeeded tid_2=unknown!", touched=(2,)),
    "litellm:native_text_after_tool_use": Right(
        "toolu_1=succeeded toolu_2=succeeded", why="blocks of an assistant message keep their order"
    ),
    "mastra:parallel_half_recalled": Right("m1=succeeded m2=unknown!", added=1, why=KEPT),
    "openai-agents:lone_reasoning_kept": Right(
        touched=(0,),
        added=-1,
        needs_user=True,
        why="at rest, reasoning without the item it led to is refused",
    ),
    "openai-agents:reasoning_before_message_kept": Right("orphan_call=unknown!", added=1, why=KEPT),
    "openai-agents:tool_search_orphan": Right(why="a search that the server runs needs no output"),
    "openai-agents:tool_search_anonymous_pair": Right(),
    "openai-agents:tool_search_anonymous_latest": Right(
        why="a search that the server runs needs no output"
    ),
    "openai-agents:tool_search_named_vs_anonymous": Right(
        why="a search that the server runs needs no output"
    ),
    "openai-agents:active_program_chain": Right("function_completed=succeeded"),
    "openai-agents:dedupe_output_latest": Right(
        "call_1=succeeded", touched=(1, 3), added=-1, why=BOTH
    ),
    "openai-agents:dedupe_keeps_call_before_output": Right(
        "call_1=succeeded call_1=unknown!",
        touched=(2,),
        added=1,
        why="other arguments are another call, without an output of its own",
    ),
    "openai-agents:dedupe_reasoning_anchor": Right("call_1=succeeded", touched=(3,), added=-1),
    "openai-agents:unique_items_untouched": Right("c1=succeeded"),
    "openclaw:duplicate_within_span": Right(
        "call_1=succeeded", touched=(1, 2), why=f"{START}; {BOTH}"
    ),
    "openclaw:orphan_result": Right(touched=(1,), text=("call_orphan",), needs_user=True, why=TOLD),
    "openclaw:stop_reason_error_no_synthesis": Right(
        "call_error=unknown!",
        touched=(1,),
        added=1,
        why=ENDED,
    ),
    "openclaw:stop_reason_aborted_no_synthesis": Right(
        "call_aborted=unknown!",
        touched=(1,),
        added=1,
        why=ENDED,
    ),
    "openclaw:stop_reason_tooluse_repaired": Right("call_normal=unknown!", touched=(1,), added=1),
    "openclaw:errored_turn_dropped_with_results": Right(
        "call_err=failed", why="nothing is wrong with it on the wire"
    ),
    "openclaw:errored_text_turn_kept": Right(),
    "openclaw:call_without_input": Right("call_1=unknown!", touched=(0, 1), added=1, why=KEPT),
    "openclaw:blank_name_or_id": Right(
        # Without a name, or with one of white space, no tool can have been run.
        "call_ok=unknown! call_empty_name=not_started! call_blank_name=not_started! =unknown!",
        touched=(0,),
        added=2,
        why=RENAME,
    ),
    "openclaw:malformed_or_long_name": Right(
        "call_ok=unknown! call_bad_chars=unknown! call_too_long=unknown!",
        touched=(0,),
        added=2,
        why=f"{RENAME}; the API takes 128 characters",
    ),
    "openclaw:name_not_in_allowlist": Right(
        "call_ok=unknown! call_unknown=unknown!", added=2, why=KEPT
    ),
    "openclaw:name_whitespace": Right(
        "call_1=unknown! call_2=unknown!",
        touched=(0,),
        added=2,
        why="each character the API does not take becomes _: two names never become one unseen",
    ),
    "openclaw:ids_mixed_providers": Right(
        "toolu_valid1=succeeded kimi!uuid!2=succeeded", touched=(0, 1), added=1
    ),
    "pydantic-ai:dangling_mid_history": Right("call_1=unknown!", touched=(2,)),
    "pydantic-ai:args_cut_off": Right(
        # `_raw` is that peer's own mark; to the API it is an argument like any other.
        "call_1=unknown! call_2=unknown!",
        touched=(2,),
    ),
    "pydantic-ai:only_cut_off_call": Right("call_1=unknown!", touched=(2,)),
    "pydantic-ai:trailing_call_is_live_frontier": Right("call_1=unknown!", added=1),
    "pydantic-ai:result_before_call": Right(
        "call_1=succeeded",
        touched=(1, 3),
        added=-1,
        why="the recorded result moves behind its call, and none is made up",
    ),
    "pydantic-ai:orphan_empties_last": Right(touched=(2,), text=("ghost",), why=TOLD),
    "pydantic-ai:server_tool_left_alone": Right(
        touched=(1,), why="with words behind it the provider's call can no longer end: it leaves"
    ),
    "pydantic-ai:retry_answers_call": Right("call_1=failed"),
    "pydantic-ai:id_reused_second_dangling": Right(
        "call_1=succeeded call_1=unknown!", touched=(4,)
    ),
    "pydantic-ai:id_reused_first_shadowed": Right("call_1=unknown! call_1=succeeded", touched=(2,)),
    "pydantic-ai:dangling_then_assistant": Right(
        "call_1=unknown!",
        touched=(3,),
        why="neighbouring model messages are one turn: the result stands behind both",
    ),
    "pydantic-ai:crash_mid_execution": Right(
        "call_volume=succeeded call_mass=unknown!", touched=(2,)
    ),
    "pydantic-ai:history_processor_truncation": Right("call_1=unknown!", touched=(2,)),
    "roo:wrong_id_fixed_by_position": Right(
        "correct-id-123=unknown!", touched=(1,), added=1, text=("wrong-id-456",), why=LABEL
    ),
    "roo:one_wrong_of_two": Right(
        "id-1=succeeded id-2=unknown!", touched=(1,), added=1, text=("wrong-id",), why=LABEL
    ),
    "roo:wrong_id_with_text": Right(
        "tool-123=unknown!", touched=(1,), added=1, text=("wrong-id",), why=LABEL
    ),
    "roo:user_string": Right(
        "tool-123=unknown!", touched=(1,), added=1, why="a string is content as well"
    ),
    "roo:assistant_string": Right(touched=(1,), added=1, text=("tool-123",), why=TOLD),
    "roo:more_results_than_calls": Right(
        "tool-1=unknown!", touched=(1,), added=1, text=("wrong-1", "extra-id"), why=LABEL
    ),
    "roo:invalid_then_valid": Right(
        "call_55577629=succeeded", touched=(1,), added=1, text=("call_08230257",), why=LABEL
    ),
    "roo:orphan_with_text_between": Right(
        "tool-1=unknown!", touched=(1,), added=1, text=("wrong-1", "extra-id"), why=LABEL
    ),
    "roo:duplicate_with_text": Right("tool-123=succeeded", touched=(1,), added=1, why=BOTH),
    "roo:fewer_results": Right(
        "tool-1=unknown! tool-2=unknown!", touched=(1,), added=1, text=("wrong-1",), why=LABEL
    ),
    "roo:no_results_single": Right("tool-123=unknown!", touched=(1,), added=1),
    "roo:no_results_two": Right("tool-1=unknown! tool-2=unknown!", touched=(1,), added=1),
    "roo:some_results": Right("tool-1=succeeded tool-2=unknown!", touched=(1,), added=1),
    "strands:missing_before_text": Right("orphaned-123=unknown!", touched=(1,), added=1),
    "strands:partial": Right("complete-123=succeeded missing-456=unknown!", touched=(1,), added=1),
    "strands:valid": Right("v-123=succeeded"),
    "strands:orphan_at_start": Right(touched=(0,), text=("orphaned-result-123",), why=TOLD),
    "strands:stale_id_replaced": Right("new-1=unknown!", touched=(2,), text=("old-1",), why=TOLD),
    "vellum:valid": Right("tu_1=succeeded", needs_user=True),
    "vellum:result_in_assistant_no_call": Right(touched=(1,), added=1, text=("tu_x",), why=TOLD),
    "vellum:partial": Right("tu_1=succeeded tu_2=unknown!", touched=(2,), needs_user=True),
    "vellum:trailing_call": Right("tu_1=unknown!", added=1),
    "vellum:orphan_next_to_real": Right(
        "tu_1=succeeded", touched=(2,), text=("tu_unknown",), needs_user=True
    ),
    "vellum:orphan_no_call": Right(touched=(0,), text=("tu_gone",), needs_user=True),
    "vellum:idempotence_fixture": Right(
        "tu_1=unknown!", touched=(1, 2), added=1, text=("tu_x", "tu_orphan"), needs_user=True
    ),
    "vellum:three_missing": Right("tu_a=unknown! tu_b=unknown! tu_c=unknown!", touched=(2,)),
    "vellum:result_inside_assistant": Right(
        "tu_1=succeeded", touched=(1,), added=1, needs_user=True
    ),
    "vellum:three_user_turns": Right(needs_user=True, why=APART),
    "vellum:server_pair_in_assistant": Right(
        touched=(1,),
        needs_user=True,
        why="Anthropic takes ids of its own searches only: a foreign pair leaves",
    ),
    "vellum:deep_leading_assistant_and_empty": Right(
        touched=(1,), needs_user=True, why=f"{START}; {APART}"
    ),
    "vercel:input_available_no_output": Right("tc1=unknown!", added=1, why=KEPT),
    "vercel:approval_denied": Right(
        "tc1=unknown!", added=1, why="the denial is not in the history: it is the caller's evidence"
    ),
    "vercel:reasoning_before_dropped_call": Right("tc1=unknown!", added=1, why=KEPT),
    "zed:cancel_mid_batch": Right("z1=succeeded z2=unknown!", touched=(2,), why=WORDS),
}

PEER_CASES: dict[str, dict[str, Any]] = {
    f"{case['peer']}:{case['case']}": case
    for path in sorted((CASES / "peers").glob("*.jsonl"))
    for line in path.read_text().splitlines()
    if (case := json.loads(line))
}


def test_every_case_of_a_peer_has_its_right_value() -> None:
    assert PEERS.keys() == PEER_CASES.keys()


@pytest.mark.parametrize("name", PEER_CASES)
def test_what_is_right_about_a_peers_case(name: str) -> None:
    case, right = PEER_CASES[name], PEERS[name]
    api: Api = case["api"]
    items: list[Any] = case["input"]
    done = mended(api, items)
    history = list(done.history)
    told = [f"{one.call_id}={one.status}{'!' * one.synthetic}" for one in done.outcomes]
    assert " ".join(told) == right.outcomes
    kept = {id(item) for item in history}
    assert tuple(at for at, item in enumerate(items) if id(item) not in kept) == right.touched
    assert len(history) - len(items) == right.added
    texts = tuple(change.call_id or "" for change in done.changes if change.kind == "to_text")
    assert texts == right.text
    assert done.pending == ()
    assert done.sendable is not right.needs_user
    if right.needs_user:
        assert "needs_user_turn" in codes(done)
    if not (right.touched or right.added):
        assert (done.history is not items) is right.moved


@pytest.mark.parametrize("name", PEER_CASES)
def test_nothing_recorded_in_a_peers_case_is_lost(name: str) -> None:
    case = PEER_CASES[name]
    done = normalize(case["input"], api=case["api"])
    held = [*strings(list(done.history)), *strings([change.removed for change in done.changes])]
    for words in texts_of(case["api"], case["input"]):
        assert any(words in one for one in held)


@pytest.mark.parametrize("name", PEER_CASES)
def test_a_later_pass_reads_the_same_outcomes(name: str) -> None:
    case = PEER_CASES[name]
    first = normalize(case["input"], api=case["api"])
    later = normalize(list(first.history), api=case["api"])
    assert [(one.status, one.synthetic) for one in later.outcomes] == [
        (one.status, one.synthetic) for one in first.outcomes
    ]


def test_what_a_peer_keeps_beside_the_history_is_evidence() -> None:
    case = PEER_CASES["vercel:approval_denied"]
    done = mended(case["api"], case["input"], evidence={"tc1": {"status": "denied"}})
    assert [(one.status, one.synthetic) for one in done.outcomes] == [("denied", True)]


def test_a_live_end_may_stay_open() -> None:
    case = PEER_CASES["pydantic-ai:trailing_call_is_live_frontier"]
    done = normalize(case["input"], api=case["api"], live="keep")
    assert done.history is case["input"]
    assert done.pending == ("call_1",)


def test_the_reasons_against_a_peer_are_sentences() -> None:
    for right in PEERS.values():
        assert re.fullmatch(r"([^\n]{10,160})?", right.why)
