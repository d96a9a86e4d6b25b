"""Codex rollouts: the recordings, then each thing a reader must know about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit.normalizer.transcripts import Transcript, load, read_codex
from stopkit.outcome import Denied, Failed, Placeholder, Stopped, Succeeded, Unknown

RECORDED = Path(__file__).parent / "data" / "recorded" / "codex"
NAMES = sorted(path.name.removesuffix(".facts.json") for path in RECORDED.glob("*.facts.json"))
ABORTED = "Wall time: 0.6 seconds\naborted by user"


def recorded(name: str) -> Transcript:
    return load(RECORDED / f"{name}.jsonl")


def facts(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RECORDED / f"{name}.facts.json").read_text())
    return value


def lines(name: str) -> list[dict[str, Any]]:
    content = (RECORDED / f"{name}.jsonl").read_bytes()
    return [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]


def item(**payload: object) -> dict[str, Any]:
    return {"type": "response_item", "payload": payload}


def event(kind: str, **payload: object) -> dict[str, Any]:
    return {"type": "event_msg", "payload": {"type": kind, **payload}}


def call(call_id: str, arguments: str = "{}", name: str = "exec_command") -> dict[str, Any]:
    return item(type="function_call", call_id=call_id, name=name, arguments=arguments)


def output(call_id: str, said: object) -> dict[str, Any]:
    return item(type="function_call_output", call_id=call_id, output=said)


def ended(call_id: str, status: str, code: int, said: str = "") -> dict[str, Any]:
    command = {
        "type": "CommandExecution",
        "id": call_id,
        "status": status,
        "exit_code": code,
        "aggregated_output": said,
        "duration": {"secs": 1, "nanos": 500_000_000},
    }
    return event("item_completed", turn_id="t", item=command)


def message(role: str, text: str, *kinds: str) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    internal = {"content_item_kinds": list(kinds)} if kinds else {}
    return item(
        type="message",
        role=role,
        content=[part],
        internal_chat_message_metadata_passthrough=internal,
    )


def codes(transcript: Transcript) -> list[str]:
    return [note.code for note in transcript.notes]


# The recordings


@pytest.mark.parametrize("name", NAMES)
def test_every_call_has_the_outcome_the_record_proves(name: str) -> None:
    transcript = recorded(name)
    for fact in facts(name)["calls"]:
        right = {fact["truth"], *fact.get("also_acceptable", ())}
        assert transcript.outcome_of(fact["id"]).status in right, fact


@pytest.mark.parametrize("name", NAMES)
def test_every_turn_has_its_end(name: str) -> None:
    turns = [{"turn_id": turn.id, "end": turn.end} for turn in recorded(name).turns]
    assert turns == facts(name)["turns"]


@pytest.mark.parametrize("name", NAMES)
def test_every_history_item_names_its_rows(name: str) -> None:
    transcript = recorded(name)
    assert len(transcript.rows) == len(transcript.history)
    for value, source in zip(transcript.history, transcript.rows, strict=True):
        assert not any(key.startswith("internal_") for key in value)
        assert len(source.lines) == 1


def test_items_come_as_they_are_but_for_internal_fields() -> None:
    rows = lines("plain_turns")
    transcript = recorded("plain_turns")
    for value, source in zip(transcript.history, transcript.rows, strict=True):
        payload = dict(rows[source.lines[0] - 1]["payload"])
        payload.pop("internal_chat_message_metadata_passthrough", None)
        assert value == payload


# 1. "aborted by user" does not mean stopped


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        ("completed", 0, Succeeded),
        ("failed", -1, Stopped),
        ("failed", 137, Stopped),
        ("failed", 3, Failed),
        ("declined", 0, Denied),
    ],
)
def test_a_later_end_decides_over_aborted_by_user(
    status: str, code: int, outcome: type[object]
) -> None:
    rows = [call("c"), output("c", ABORTED), ended("c", status, code, "said\n")]
    transcript = read_codex(rows)
    assert isinstance(transcript.evidence["c"], outcome)
    assert transcript.calls[0].lines == (1, 2, 3)


def test_without_a_later_end_aborted_by_user_is_a_placeholder() -> None:
    transcript = read_codex([call("c"), output("c", ABORTED)])
    assert isinstance(transcript.evidence["c"], Placeholder)
    assert transcript.outcome_of("c").status == "unknown"
    assert transcript.history[1]["output"] == ABORTED


def test_a_stop_says_how_long_it_had_run_and_what_was_said() -> None:
    rows = [call("c"), output("c", ABORTED), ended("c", "failed", -1, "begun\n")]
    stopped = read_codex(rows).outcome_of("c")
    assert isinstance(stopped, Stopped)
    assert (stopped.after, stopped.exit_code, stopped.output) == (1.5, -1, "begun\n")
    assert stopped.evidence == ("item_completed in line 3: failed, exit code -1",)


def test_137_in_a_commands_own_output_is_its_failure() -> None:
    own = "Chunk ID: a\nWall time: 0.1 seconds\nProcess exited with code 137\nOutput:\n"
    failed = read_codex([call("c"), output("c", own), ended("c", "failed", 137)]).outcome_of("c")
    assert isinstance(failed, Failed)
    assert failed.exit_code == 137


# 2. Outputs come in call order


def test_a_call_without_output_that_an_event_ended_succeeded() -> None:
    transcript = recorded("kill_mid_command")
    known = transcript.evidence["call_k2"]
    assert isinstance(known, Succeeded)
    assert known.output == "b\n"
    assert known.evidence == ("item_completed in line 20: completed, exit code 0",)
    assert isinstance(transcript.evidence["call_k1"], Unknown)


# 3. Approvals leave no trace


def test_calls_cut_off_while_an_approval_was_open_are_unknown() -> None:
    transcript = recorded("approval_cancelled")
    assert {recorded.outcome.status for recorded in transcript.calls} == {"unknown"}


def test_a_declined_command_was_denied() -> None:
    denied = recorded("approval_declined").outcome_of("call_a")
    assert isinstance(denied, Denied)
    assert denied.by == "user"


# 4. No error flag


def test_the_exit_code_in_the_text_is_the_outcome() -> None:
    failed = recorded("plain_turns").outcome_of("call_p2")
    assert isinstance(failed, Failed)
    assert (failed.exit_code, failed.output) == (3, "oops\n")


def test_a_patch_that_did_not_verify_failed() -> None:
    failed = recorded("apply_patch_good_bad").outcome_of("call_ap2")
    assert isinstance(failed, Failed)
    assert failed.effects == "none"


def test_an_output_of_parts_is_read_by_its_texts() -> None:
    text = "Wall time: 0.1 seconds\nProcess exited with code 2\nOutput:\nno"
    rows = [call("c"), output("c", [{"type": "input_text", "text": text}])]
    assert read_codex(rows).outcome_of("c").status == "failed"


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    transcript = read_codex([call("c", '{"cmd": "e')])
    assert transcript.history[0]["arguments"] == '{"cmd": "e'
    assert transcript.calls[0].call.arguments == '{"cmd": "e'


def test_a_command_that_outlived_its_output_ends_where_an_event_or_a_poll_says() -> None:
    assert isinstance(recorded("background_terminal").evidence["call_bg"], Succeeded)
    running = "Wall time: 0.3 seconds\nProcess running with session ID 7\nOutput:\na\n"
    rows = [call("c"), output("c", running)]
    assert read_codex(rows).outcome_of("c").status == "unknown"
    for code, status in ((0, "succeeded"), (4, "failed")):
        seen = f"Wall time: 0.7 seconds\nProcess exited with code {code}\nOutput:\nb\n"
        poll = [call("p", '{"session_id": 7}', "write_stdin"), output("p", seen)]
        assert read_codex([*rows, *poll]).outcome_of("c").status == status


# 5. Ends of turns


def test_a_completed_turn_may_have_failed() -> None:
    transcript = recorded("half_arguments_drop")
    assert transcript.turns[0].error is not None
    assert "turn_failed" in codes(transcript)


def test_a_turn_without_an_end_is_told() -> None:
    (note,) = (n for n in recorded("kill_mid_text").notes if n.code == "turn_without_end")
    assert note.lines == (2,)


# 6. Resume repairs nothing


def test_open_calls_stay_open_in_the_middle() -> None:
    transcript = recorded("kill_mid_command_resumed")
    kinds = [value["type"] for value in transcript.history[-4:]]
    assert kinds == ["function_call", "function_call", "message", "message"]


# 7. Revert


def test_a_reverted_thread_goes_on_from_a_part_of_its_base() -> None:
    transcript = recorded("reverted")
    assert [source.base for source in transcript.rows] == [True, True, True, True, False, False]
    (gone,) = transcript.off_branch
    assert (gone.call.id, gone.outcome.status, gone.base) == ("call_r1", "succeeded", True)
    assert gone.lines == (19, 21, 22)


def test_without_its_base_a_reverted_thread_says_so() -> None:
    content = (RECORDED / "reverted.jsonl").read_bytes()
    assert "base_missing" in codes(read_codex(content))


def test_a_base_may_have_a_base() -> None:
    def meta(ordinal: int, end: int | None) -> dict[str, Any]:
        base = {} if end is None else {"history_base": {"end_ordinal_exclusive": end}}
        return {"type": "session_meta", "ordinal": ordinal, "payload": {"id": "x", **base}}

    def part(first: int, end: int | None, *texts: str) -> bytes:
        rows = [meta(first, end)]
        for number, text in enumerate(texts, first + 1):
            rows.append({**message("user", text, "user.text"), "ordinal": number})
        return b"\n".join(json.dumps(row).encode() for row in rows)

    oldest = part(0, None, "one", "gone")
    older = part(2, 2, "two", "gone too")
    transcript = read_codex(part(4, 4, "three"), (older, oldest))
    texts = [value["content"] for value in transcript.history]
    assert [part[0]["text"] for part in texts if isinstance(part, list)] == ["one", "two", "three"]


# 8. After a torn line


def test_a_row_with_the_ordinal_of_a_torn_one_is_read() -> None:
    rows = [json.dumps({"ordinal": 1, **message("user", "go")}).encode()]
    rows.append(json.dumps({"ordinal": 2, **call("c")}).encode()[:-40])
    rows.append(json.dumps({"ordinal": 2, **message("user", "on")}).encode())
    transcript = read_codex(b"\n".join(rows))
    assert [source.lines for source in transcript.rows] == [(1,), (3,)]
    assert "torn_line" in codes(transcript)


def test_a_call_in_a_torn_line_is_told() -> None:
    (note,) = (n for n in recorded("torn_tail").notes if n.code == "torn_call")
    assert (note.lines, note.note) == ((17,), "a call of exec_command stands in a line cut short")


# 9. <turn_aborted>, nested commands


@pytest.mark.parametrize("role", ["user", "developer"])
@pytest.mark.parametrize("kinds", [(), ("generic.turn_aborted",)])
def test_nobody_typed_turn_aborted(role: str, kinds: tuple[str, ...]) -> None:
    row = message(role, "<turn_aborted>\nThe user interrupted.\n</turn_aborted>", *kinds)
    assert [source.kind for source in read_codex([row]).rows] == ["harness"]


def test_a_nested_command_is_no_outcome_of_its_call() -> None:
    rows = [
        item(type="custom_tool_call", call_id="c", name="exec", input="await tools.x()"),
        ended("exec_1", "completed", 0),
        item(type="custom_tool_call_output", call_id="c", output="aborted by user after 5.0s"),
    ]
    transcript = read_codex(rows)
    assert transcript.outcome_of("c").status == "unknown"
    assert [note.lines for note in transcript.notes if note.code == "command_without_call"] == [
        (2,)
    ]


# 10. Compaction


def test_a_compaction_replaces_the_history_with_what_it_carries() -> None:
    transcript = recorded("compacted")
    assert [source.kind for source in transcript.rows[:4]] == [
        "harness",
        "harness",
        "typed",
        "summary",
    ]
    assert {source.lines for source in transcript.rows[:4]} == {(25,)}
    (gone,) = transcript.off_branch
    assert (gone.call.id, gone.where) == ("call_c1", "compacted")


def test_a_compactions_own_answer_is_no_message() -> None:
    texts = json.dumps(recorded("compacted").history)
    assert texts.count("Summary: one.txt was written.") == 1


def test_a_compaction_that_carries_only_words_leaves_them_as_the_summary() -> None:
    rows = [message("user", "go"), {"type": "compacted", "payload": {"message": "so far"}}]
    transcript = read_codex(rows)
    assert [source.kind for source in transcript.rows] == ["summary"]
    assert transcript.history[0]["content"] == [{"type": "input_text", "text": "so far"}]


# Anything else


def test_steers_are_typed_and_told() -> None:
    steered = [n.lines for n in recorded("steer_applied").notes if n.code == "steered"]
    assert steered == [(17,), (29,)]


def test_evidence_about_recurring_ids_names_the_occurrence() -> None:
    rows = [call("c"), output("c", "fine"), call("c"), output("c", ABORTED)]
    transcript = read_codex(rows)
    assert set(transcript.evidence) == {"c#2"}
    assert transcript.outcome_of("c").status == "succeeded"
    assert transcript.outcome_of("c", 2).status == "unknown"


@given(st.binary(max_size=200), st.integers(0, 30000), st.integers(0, 40))
def test_damaged_bytes_never_raise(junk: bytes, at: int, cut: int) -> None:
    content = (RECORDED / "interrupt_clean_next.jsonl").read_bytes()
    at %= len(content)
    transcript = read_codex(content[:at] + junk + content[at + cut :])
    assert len(transcript.rows) == len(transcript.history)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.data())
def test_rows_of_any_shape_never_raise(data: st.DataObject) -> None:
    names = ["interrupt_clean_next", "compacted", "background_terminal", "reverted"]
    rows = lines(data.draw(st.sampled_from(names)))
    base = (RECORDED / "reverted.base.jsonl").read_bytes()
    for _ in range(data.draw(st.integers(1, 4))):
        inner = data.draw(st.sampled_from(rows))
        while data.draw(st.booleans()):
            below = [value for value in inner.values() if isinstance(value, dict) and value]
            if not below:
                break
            inner = data.draw(st.sampled_from(below))
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(_JSON)
    transcript = read_codex(rows, base)
    assert len(transcript.rows) == len(transcript.history)
