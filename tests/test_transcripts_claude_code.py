"""Claude Code session files: the recordings, then each thing a reader must know about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit.normalizer.transcripts import Transcript, load, read_claude_code
from stopkit.outcome import Denied, Failed, NotStarted, Placeholder, Stopped, Succeeded, Unknown

RECORDED = Path(__file__).parent / "data" / "recorded" / "claude_code"
NAMES = sorted(path.name.removesuffix(".facts.json") for path in RECORDED.glob("*.facts.json"))

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). STOP what you are doing and wait "
    "for the user to tell you how to proceed."
)
PLACEHOLDER = "[Tool result missing due to internal error]"


def recorded(name: str) -> Transcript:
    return load(RECORDED / f"{name}.jsonl")


def facts(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RECORDED / f"{name}.facts.json").read_text())
    return value


def lines(name: str) -> list[dict[str, Any]]:
    content = (RECORDED / f"{name}.jsonl").read_bytes()
    return [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]


def user(uuid: str, parent: str | None, content: object, **fields: object) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": message, **fields}


def said(
    uuid: str, parent: str | None, message_id: str, *blocks: object, **fields: object
) -> dict[str, Any]:
    message = {"id": message_id, "role": "assistant", "content": list(blocks), "stop_reason": "x"}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message, **fields}


def call(call_id: str, name: str = "Bash", **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: object, is_error: bool | None = None) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return block if is_error is None else {**block, "is_error": is_error}


def codes(transcript: Transcript) -> list[str]:
    return [note.code for note in transcript.notes]


def kinds(transcript: Transcript) -> list[str]:
    return [source.kind for source in transcript.rows]


# The recordings


@pytest.mark.parametrize("name", NAMES)
def test_every_call_has_the_outcome_the_record_proves(name: str) -> None:
    transcript = recorded(name)
    for fact in facts(name)["calls"]:
        right = {fact["truth"], *fact.get("also_acceptable", ())}
        held = transcript.subagents[Path(fact["file"]).name] if "file" in fact else transcript
        assert held.outcome_of(fact["id"]).status in right, fact


@pytest.mark.parametrize("name", NAMES)
def test_every_history_item_names_its_rows(name: str) -> None:
    transcript = recorded(name)
    total = len((RECORDED / f"{name}.jsonl").read_bytes().split(b"\n"))
    assert len(transcript.rows) == len(transcript.history)
    for item, source in zip(transcript.history, transcript.rows, strict=True):
        assert set(item) == {"role", "content"}
        assert source.lines
        assert all(1 <= line <= total for line in source.lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_history_ends_at_the_active_leaf(name: str) -> None:
    leaf = facts(name)["active_leaf"]
    uuids = [row.get("uuid") for row in lines(name)]
    assert uuids.index(leaf) + 1 in recorded(name).rows[-1].lines


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_parsed_already_read_the_same(name: str) -> None:
    content = (RECORDED / f"{name}.jsonl").read_bytes()
    if name != "torn_tail":
        assert read_claude_code(lines(name)).history == read_claude_code(content).history


# 1. Evidence keys


def test_a_call_that_a_stop_kept_from_running_was_not_started() -> None:
    transcript = recorded("three_sequential")
    assert isinstance(transcript.evidence["toolu_s3"], NotStarted)
    assert isinstance(transcript.evidence["toolu_s2"], Stopped)
    assert transcript.evidence["toolu_s3"].evidence == ("toolDenialBeforeRun: true",)


def test_a_bare_rejection_is_unknown() -> None:
    rows = [
        user("u", None, "go"),
        said("a", "u", "m", call("t")),
        user("r", "a", [result("t", REJECTED, True)], toolDenialKind="user-rejected"),
    ]
    transcript = read_claude_code(rows)
    assert isinstance(transcript.evidence["t"], Placeholder)
    assert isinstance(transcript.outcome_of("t"), Unknown)


def test_a_refusal_is_told_by_its_flags_and_keeps_its_words() -> None:
    denied = recorded("deny_two").outcome_of("toolu_d1")
    assert isinstance(denied, Denied)
    assert (denied.by, denied.reason) == ("user", "Policy: no writes on the release branch.")


def test_a_result_without_flag_or_with_a_false_one_succeeded() -> None:
    transcript = recorded("parallel_done_thinking")
    assert isinstance(transcript.outcome_of("toolu_r1"), Succeeded)
    failed = transcript.outcome_of("toolu_r3")
    assert isinstance(failed, Failed)
    assert failed.exit_code == 3


# 2. A tree, not a list


def test_results_that_hang_off_their_own_call_are_all_there() -> None:
    content = recorded("three_sequential").history[2]["content"]
    assert isinstance(content, list)
    assert [block["tool_use_id"] for block in content] == ["toolu_s1", "toolu_s2", "toolu_s3"]


def test_a_call_that_the_walk_skips_is_in_its_message() -> None:
    rows = [
        user("u", None, "go"),
        said("a1", "u", "m", call("t1")),
        said("a2", "a1", "m", call("t2")),
        user("r1", "a1", [result("t1", "one")]),
        user("u2", "r1", "next"),
    ]
    transcript = read_claude_code(rows)
    assert transcript.history[1]["content"] == [call("t1"), call("t2")]
    assert transcript.rows[1].lines == (2, 3)
    assert transcript.outcome_of("t2").status == "unknown"


def test_results_follow_their_call_by_row_where_ids_recur() -> None:
    rows = [
        user("u", None, "go"),
        said("a", "u", "m1", call("t", n=1)),
        said("b", "ra", "m2", call("t", n=2)),
        user("ra", "a", [result("t", "first")]),
        user("rb", "b", [result("t", "second", True)], sourceToolAssistantUUID="b"),
    ]
    transcript = read_claude_code(rows)
    assert [message["content"] for message in transcript.history[2::2]] == [
        [result("t", "first")],
        [result("t", "second", True)],
    ]
    assert transcript.outcome_of("t").status == "succeeded"
    assert transcript.outcome_of("t", 2).status == "failed"


def test_evidence_about_recurring_ids_names_the_occurrence() -> None:
    rows = [
        user("u", None, "go"),
        said("a", "u", "m1", call("t", n=1)),
        user("ra", "a", [result("t", "first")]),
        said("b", "ra", "m2", call("t", n=2)),
    ]
    assert set(read_claude_code(rows).evidence) == {"t#2"}


# 3. Forks inside a message


def test_a_recorded_result_on_the_other_branch_beats_a_placeholder() -> None:
    rows = [
        user("u", None, "go"),
        said("a", "u", "m", call("t")),
        user("real", "a", [result("t", "done")]),
        said("x", "real", "m2", {"type": "text", "text": "old"}),
        user("made", "a", [result("t", PLACEHOLDER, True)]),
        user("u2", "made", "other"),
    ]
    transcript = read_claude_code(rows)
    assert transcript.history[2]["content"] == [result("t", "done")]
    assert transcript.outcome_of("t").status == "succeeded"
    assert [note.lines for note in transcript.notes if note.code == "result_left_out"] == [(5,)]


def test_a_rewound_turn_leaves_the_history_and_not_the_world() -> None:
    transcript = recorded("fork_rewind")
    assert "Second request" not in [message["content"] for message in transcript.history]
    (gone,) = transcript.off_branch
    assert (gone.call.id, gone.where, gone.outcome.status) == (
        "toolu_f1",
        "other_branch",
        "succeeded",
    )
    assert "toolu_f1" not in transcript.evidence
    assert "call_off_branch" in codes(transcript)


# 4. Torn lines


def test_a_torn_last_line_costs_itself_and_its_call_is_told() -> None:
    transcript = recorded("torn_tail")
    assert transcript.history[-1]["content"] == [{"type": "text", "text": "Working."}]
    assert [note.call_id for note in transcript.notes if note.code == "torn_call"] == ["toolu_t1"]
    (torn,) = transcript.off_branch
    assert (torn.where, torn.outcome.status) == ("torn", "unknown")


def test_a_torn_line_in_the_middle_costs_only_itself() -> None:
    rows = [json.dumps(row).encode() for row in (user("u", None, "go"), user("v", "u", "on"))]
    torn = json.dumps(said("a", "u", "m", call("t"))).encode()[:-30]
    transcript = read_claude_code(b"\n".join([rows[0], torn, rows[1], b""]))
    assert [message["content"] for message in transcript.history] == ["go", "on"]
    assert [note.lines for note in transcript.notes if note.code == "torn_line"] == [(2,)]
    assert transcript.outcome_of("t").status == "unknown"


def test_a_row_written_right_behind_a_torn_one_survives() -> None:
    first = json.dumps(user("u", None, "go")).encode()
    late = json.dumps({"parentUuid": "u", **user("v", "u", "on")}).encode()
    transcript = read_claude_code(first + b"\n" + first[:25] + late + b"\n")
    assert [message["content"] for message in transcript.history] == ["go", "on"]
    assert "torn_line" in codes(transcript)


def test_a_lost_parent_is_bridged_and_told() -> None:
    transcript = read_claude_code([user("u", None, "go"), user("w", "lost", "on")])
    assert [message["content"] for message in transcript.history] == ["go", "on"]
    assert codes(transcript) == ["lost_parent"]


# 5. User text outside user rows


def test_messages_folded_into_a_running_turn_are_user_messages() -> None:
    transcript = recorded("queued_fold")
    queued = [
        message["content"]
        for message, source in zip(transcript.history, transcript.rows, strict=True)
        if source.kind == "queued"
    ]
    assert queued == ["Also be verbose", "And use tabs"]
    assert codes(transcript).count("queued_message") == 2


def test_a_message_that_was_queued_and_never_taken_up_is_told() -> None:
    rows: list[dict[str, Any]] = [
        user("u", None, "go"),
        {"type": "queue-operation", "operation": "enqueue", "content": "and this"},
    ]
    (note,) = read_claude_code(rows).notes
    assert (note.code, note.lines) == ("queued_never_sent", (2,))
    assert "and this" in note.note


# 6. User-role rows nobody typed


@pytest.mark.parametrize(
    ("name", "kind", "line"),
    [
        ("interrupt_text", "harness", 21),
        ("background_shell", "harness", 32),
        ("compacted", "summary", 34),
        ("compacted", "harness", 35),
        ("compacted", "harness", 36),
        ("compacted", "harness", 37),
        ("compacted", "typed", 45),
    ],
)
def test_who_wrote_a_user_row(name: str, kind: str, line: int) -> None:
    found = {source.lines: source.kind for source in recorded(name).rows}
    assert found[(line,)] == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("Continue from where you left off.", "harness"),
        ("[Request interrupted by user]", "harness"),
        ("<local-command-stdout>ok</local-command-stdout>", "harness"),
        ("Please continue from where you left off.", "typed"),
    ],
)
def test_rows_without_flags_are_told_by_their_words(content: str, kind: str) -> None:
    assert kinds(read_claude_code([user("u", None, content)])) == [kind]


def test_typed_words_that_look_like_a_marker_stay_typed() -> None:
    row = user("u", None, "Continue from where you left off.", promptSource="sdk")
    assert kinds(read_claude_code([row])) == ["typed"]


def test_an_answer_nobody_gave_is_synthetic() -> None:
    assert kinds(recorded("kill_mid_tool_resumed"))[5] == "synthetic"


# 7. Cut text


def test_cut_text_is_marked_with_or_without_its_marker_row() -> None:
    rows = lines("interrupt_text")
    steered = [row for row in rows if row.get("uuid") != rows[20]["uuid"]]
    steered[-1:] = []
    for row in steered:
        if row.get("parentUuid") == rows[20]["uuid"]:
            row["parentUuid"] = rows[19]["uuid"]
    for transcript in (recorded("interrupt_text"), read_claude_code(steered)):
        assert [source.lines for source in transcript.rows if source.cut] == [(20,)]
        assert "cut_text" in codes(transcript)


def test_a_message_cut_behind_a_whole_block_has_no_stop_reason() -> None:
    transcript = recorded("half_tool_input")
    assert "no_stop_reason" in codes(transcript)
    assert not any(source.cut for source in transcript.rows)


# 8. Background calls


def notice(status: str, summary: str, note: str = "") -> str:
    return (
        "<task-notification>\n<task-id>b</task-id>\n<tool-use-id>t</tool-use-id>\n"
        f"<status>{status}</status>\n<summary>{summary}</summary>\n<note>{note}</note>\n"
        "</task-notification>"
    )


@pytest.mark.parametrize(
    ("texts", "status"),
    [
        ([], "unknown"),
        ([notice("completed", 'Background command "x" completed (exit code 0)')], "succeeded"),
        ([notice("failed", 'Background command "x" failed with exit code 3')], "failed"),
        ([notice("stopped", 'Background command "x" was stopped')], "stopped"),
        ([notice("stopped", "It didn't finish before the previous session ended")], "unknown"),
        ([notice("stopped", "gone", "No completion record was found for it")], "unknown"),
        (
            [
                notice("completed", "completed (exit code 0)"),
                notice("stopped", "gone", "No completion record was found for it"),
            ],
            "succeeded",
        ),
    ],
)
def test_how_a_background_call_ended(texts: list[str], status: str) -> None:
    started = "Command running in background with ID: b. Output is being written to: b.output."
    rows = [
        user("u", None, "go"),
        said("a", "u", "m", call("t", run_in_background=True)),
        user("r", "a", [result("t", started)], toolUseResult={"backgroundTaskId": "b"}),
        *(
            user(f"n{number}", "r", text, origin={"kind": "task-notification"})
            for number, text in enumerate(texts)
        ),
    ]
    assert read_claude_code(rows).outcome_of("t").status == status


# 9. Changed input


def test_a_call_approved_by_hand_may_have_run_with_another_input() -> None:
    (note,) = (n for n in recorded("deny_two").notes if n.code == "input_may_differ")
    assert note.call_id == "toolu_d2"


# 10. Compaction


def test_what_a_compaction_kept_stands_behind_its_summary() -> None:
    transcript = recorded("compacted")
    assert [source.lines for source in transcript.rows[:3]] == [(34,), (26,), (35,)]
    (gone,) = transcript.off_branch
    assert (gone.call.id, gone.where) == ("toolu_c1", "compacted")


# 11. SIGTERM


def test_exit_137_names_its_signal_and_nobody() -> None:
    outcome = recorded("sigterm_cli").outcome_of("toolu_i1")
    assert isinstance(outcome, Failed)
    assert (outcome.exit_code, outcome.output) == (137, "partial")
    assert outcome.reason == "killed by signal 9; by whom is not recorded"


# 12. No row at all


def test_a_tool_that_only_a_trace_names_is_told() -> None:
    transcript = recorded("crash_while_streaming")
    assert transcript.calls == ()
    (note,) = (n for n in transcript.notes if n.code == "tool_used_without_call")
    assert note.note.startswith("Bash ")


def test_a_tool_whose_calls_are_there_is_no_finding() -> None:
    assert "tool_used_without_call" not in codes(recorded("subagents_interrupted"))


# 13. System rows and sub-agents


def test_api_errors_are_links_of_the_chain_and_no_messages() -> None:
    transcript = recorded("api_error")
    assert transcript.history[0]["content"] == "Do it"
    assert [note.lines for note in transcript.notes if note.code == "api_error"] == [
        (26, 30, 32, 34)
    ]


def test_an_api_error_in_the_models_place_is_left_out() -> None:
    text = {"type": "text", "text": "API Error: overloaded"}
    rows = [user("u", None, "go"), said("a", "u", "m", text, isApiErrorMessage=True)]
    transcript = read_claude_code(rows)
    assert len(transcript.history) == 1
    assert "API Error: overloaded" in transcript.notes[0].note


def test_sub_agents_are_transcripts_of_their_own() -> None:
    transcript = recorded("subagents_interrupted")
    assert sorted(transcript.subagents) == [
        "agent-a4bf5164d6a10210d.jsonl",
        "agent-ad236f9606f421af5.jsonl",
    ]
    linked = {note.call_id for note in transcript.notes if note.code == "subagent"}
    assert linked == {"toolu_ag1", "toolu_ag2"}
    assert transcript.outcome_of("toolu_s2").status == "stopped"
    assert "toolu_s2" not in {recorded.call.id for recorded in transcript.calls}


def test_without_the_sub_agents_files_their_absence_is_told() -> None:
    content = (RECORDED / "subagents_interrupted.jsonl").read_bytes()
    missing = [n for n in read_claude_code(content).notes if n.code == "subagent_missing"]
    assert [note.call_id for note in missing] == ["toolu_ag1", "toolu_ag2"]


def test_sidechain_rows_in_the_main_file_are_not_its_history() -> None:
    rows = [
        user("u", None, "go"),
        user("s", None, "do a part", isSidechain=True, agentId="x"),
        said("sa", "s", "ms", call("inner"), isSidechain=True, agentId="x"),
        said("a", "u", "m", {"type": "text", "text": "done"}),
    ]
    transcript = read_claude_code(rows)
    assert len(transcript.history) == 2
    assert transcript.subagents["x"].outcome_of("inner").status == "unknown"
    assert transcript.subagents["x"].rows[1].lines == (3,)


# Anything else


def test_a_call_that_no_row_holds_is_unknown() -> None:
    assert recorded("api_error").outcome_of("toolu_none").status == "unknown"


@given(st.binary(max_size=200), st.integers(0, 30000), st.integers(0, 40))
def test_damaged_bytes_never_raise(junk: bytes, at: int, cut: int) -> None:
    content = (RECORDED / "deny_two.jsonl").read_bytes()
    at %= len(content)
    transcript = read_claude_code(content[:at] + junk + content[at + cut :])
    assert len(transcript.rows) == len(transcript.history)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.data())
def test_rows_of_any_shape_never_raise(data: st.DataObject) -> None:
    rows = lines(data.draw(st.sampled_from(["deny_two", "compacted", "background_shell"])))
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.sampled_from(rows))
        inner = data.draw(st.sampled_from([row, *(v for v in row.values() if isinstance(v, dict))]))
        if inner:
            inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(_JSON)
    transcript = read_claude_code(rows)
    assert len(transcript.rows) == len(transcript.history)
