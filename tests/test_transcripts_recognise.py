"""Harness wording: what it proves about a call, and what it leaves open."""

from __future__ import annotations

import pytest

from stopkit.normalizer.recognise import ended, recognise
from stopkit.outcome import Denied, Failed, NotStarted, Stopped, Unknown

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was "
    "a file edit, the new_string was NOT written to the file). "
)
STOP = "STOP what you are doing and wait for the user to tell you how to proceed."
CORRECTION = " Correction to the text above: this call was stopped while running, not refused"
NOTE = "\n\nNote: The user's next message may contain a correction or preference."
NOT_PERMITTED = (
    "Permission for this tool use was denied. The tool use was rejected (eg. if it was a file "
    "edit, the new_string was NOT written to the file). "
)

PLACEHOLDERS = (
    REJECTED + STOP,
    REJECTED + STOP + NOTE,
    NOT_PERMITTED + "Try a different approach or report the limitation to complete your task.",
    "The user doesn't want to take this action right now. " + STOP,
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    (
        "[Tool call interrupted: the session ended before this call's result was recorded, so its "
        "outcome is unknown. Check whether it took effect before relying on it or running it "
        "again.]"
    ),
    "[Tool result missing due to internal error]",
    "[Tool call result not in this copy: this session was copied from another session before.]",
    (
        "[Tool call did not complete: the turn was ended to deliver the message that follows. "
        "Nothing refused it; re-run it if still needed.]"
    ),
    "<tool_use_error>Cancelled: parallel tool call Bash errored</tool_use_error>",
    "<tool_use_error>Error: Streaming fallback - tool execution discarded</tool_use_error>",
    "aborted",
    "aborted by user",
    "aborted by user after 0.8s",
    "Wall time: 1.2 seconds\naborted by user",
    "dynamic tool call was cancelled before receiving a response",
    "The tool call was interrupted before a result was produced.",
    "[System: Tool execution skipped/interrupted by user. No result provided for tool 'f'.]",
    (
        "Tool call f with id c1 did not complete - no result was recorded. It may have been "
        "cancelled "
        "or interrupted."
    ),
    "Tool call f with id c1 was cancelled - another message came in before it could be completed.",
    "Tool was interrupted.",
    "Tool execution cancelled",
    "Tool execution cancelled locally; remote execution may have continued",
    (
        "Error: Missing tool result (tool execution may have been interrupted before a response "
        "was "
        "recorded)."
    ),
    '{"error": "Invocation was aborted by client."}',
    "Error: Tool execution was aborted by middleware before a result was produced.",
    "Error: Tool call was cancelled.",
    (
        "[openclaw] missing tool result in session history; inserted synthetic error result for "
        "transcript repair."
    ),
    "<synthesized_result>tool result missing from history</synthesized_result>",
    "Tool execution was interrupted before completion.",
    "Task was interrupted before this tool call could be completed.",
    "result missing",
    "[Tool execution was interrupted]",
    "Tool execution aborted",
    "Tool canceled by user",
    "Interrupted by user",
)

DENIALS = (
    (REJECTED + "To tell you how to proceed, the user said:\nuse staging", "user", "use staging"),
    (NOT_PERMITTED + "The user said:\nnot now", "user", "not now"),
    (
        (
            "Permission to use Bash has been denied because Claude Code is running in don't ask "
            "mode. "
            "IMPORTANT: You *may* attempt to accomplish this action using other tools"
        ),
        "policy",
        "because Claude Code is running in don't ask mode",
    ),
    ("Permission for this action has been denied. Reason: it deletes", "policy", "it deletes"),
    ("PreToolUse:Bash hook error: not on Fridays", "hook", "not on Fridays"),
    (
        'exec_command failed: CreateProcess { message: "Rejected(\\"rejected by user\\")" }',
        "user",
        None,
    ),
    ('exec_command failed: Rejected("rejected by user")', "user", None),
    ("exec command rejected by user", "user", None),
    ("patch rejected by user", "user", None),
    ("The tool call was denied.", None, None),
    ("User rejected the tool call for `f` with reason: too risky", "user", "too risky"),
    (
        (
            "User rejected the tool call for `f` with id c1. The tool was not executed. Do not "
            "retry "
            "this tool call unless the user explicitly requests it."
        ),
        "user",
        None,
    ),
    ("Tool cancelled by hook", "hook", None),
    ("Tool execution was not approved.", None, None),
    ("Error: Tool call invocation was rejected by user.", "user", None),
    ("The user denied this operation.", "user", None),
    (
        (
            "The user denied this operation and provided the following feedback:\n"
            "<feedback>\nread first\n</feedback>"
        ),
        "user",
        "read first",
    ),
    ("The user rejected permission to use this specific tool call.", None, None),
    (
        (
            "The user rejected permission to use this specific tool call with the following "
            "feedback: "
            "read first"
        ),
        "user",
        "read first",
    ),
    ("Permission to run tool denied by user", "user", None),
    ("Tool call execution denied.", None, None),
)

NEVER_RAN = (
    (
        "[Tool call skipped: the turn was stopped before this call ran, by the check whose "
        "denial is "
        "on another call in this batch. Nothing refused this call and it had no effects; re-run "
        "it if "
        "still needed.]"
    ),
    (
        "[Tool call not completed: an approval request expired with no answer, so the action "
        "awaiting "
        "approval did not run. Nobody refused it, so this is not the user's decision; ask again "
        "if it "
        "is still needed.]"
    ),
    "Claude requested permissions to use Bash, but you haven't granted it yet.",
    'exec_command failed: CreateProcess { message: "Rejected(\\"approval request failed\\")" }',
    "Tool not executed - a final result was already processed.",
    "Tool call f with id c1 could not be executed - arguments were malformed or truncated.",
)

ALL = (*PLACEHOLDERS, *(text for text, _, _ in DENIALS), *NEVER_RAN, REJECTED + STOP + CORRECTION)


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_words_that_leave_it_open_are_placeholders(text: str) -> None:
    found = recognise(text)
    assert found is not None
    assert found.status == "placeholder"
    assert found.reason
    assert found.evidence


@pytest.mark.parametrize(("text", "by", "reason"), DENIALS)
def test_words_of_a_refusal_are_a_denial_with_its_reason(
    text: str, by: str | None, reason: str | None
) -> None:
    found = recognise(text)
    assert isinstance(found, Denied)
    assert (found.by, found.reason) == (by, reason)


@pytest.mark.parametrize("text", NEVER_RAN)
def test_words_that_say_nothing_ran_are_believed(text: str) -> None:
    assert isinstance(recognise(text), NotStarted)


def test_the_correction_says_that_it_had_begun() -> None:
    found = recognise(REJECTED + STOP + CORRECTION, is_error=True)
    assert isinstance(found, Stopped)
    assert found.effects == "unverified"


@pytest.mark.parametrize("text", ALL)
def test_a_quotation_is_a_real_output(text: str) -> None:
    assert recognise("grep found:\n" + text) is None
    assert recognise(" " + text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        "aborted: 3 tests",
        "aborted by users",
        "Tool call f with id c1 was fine",
        "result missing in file a.py",
        "Tool was interrupted. And then it went on.",
        "Wall time: 1.2 seconds\nProcess exited with code 0\nOutput:\naborted by user",
        "Permission to use billing has been denied on this project",
        "The user doesn't want to proceed",
        "User rejected the tool call for `f` because",
    ],
)
def test_a_tools_own_output_is_none_of_them(text: str) -> None:
    assert recognise(text) is None


def test_a_result_marked_as_no_error_is_not_from_a_harness_that_marks_errors() -> None:
    assert recognise("Tool canceled by user", is_error=False) is None
    assert recognise(REJECTED + STOP, is_error=False) is None
    assert recognise("result missing", is_error=False) is not None


def test_trailing_white_space_changes_nothing() -> None:
    assert recognise("aborted\n") == recognise("aborted")


def test_words_that_are_no_text_are_made_text() -> None:
    found = recognise("PreToolUse:Bash hook error: \ud800!")
    assert isinstance(found, Denied)
    assert found.reason == "\ufffd!"


CODEX = "Chunk ID: a1\nWall time: 0.2 seconds\nProcess exited with code {}\nOutput:\nsaid\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CODEX.format(3), 3),
        ("Exit code: 1\nWall time: 0 seconds\nOutput:\nsaid\n", 1),
    ],
)
def test_an_exit_code_in_the_text_is_a_failure(text: str, code: int) -> None:
    found = ended(text)
    assert isinstance(found, Failed)
    assert (found.exit_code, found.output) == (code, "said\n")


def test_an_exit_code_behind_the_error_flag_only() -> None:
    found = ended("Exit code 137\nbegun", is_error=True)
    assert isinstance(found, Failed)
    assert (found.exit_code, found.output) == (137, "begun")
    assert ended("Exit code 137\nbegun") is None


def test_no_program_exits_with_minus_one() -> None:
    assert isinstance(ended(CODEX.format(-1)), Stopped)


@pytest.mark.parametrize(
    "text",
    [
        "Wall time: 0.3 seconds\nProcess running with session ID 7\nOutput:\na\n",
        "Command running in background with ID: b1. Output is being written to: b1.output.",
    ],
)
def test_a_start_is_no_end(text: str) -> None:
    assert isinstance(ended(text), Unknown)


@pytest.mark.parametrize(
    "text",
    ["", "fine", CODEX.format(0), "Exit code: 0\nWall time: 0 seconds\nOutput:\nfine", *ALL[:20]],
)
def test_most_results_say_nothing_of_their_end(text: str) -> None:
    assert ended(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "apply_patch verification failed: no such file",
        "failed to parse function arguments: EOF",
        "unsupported call: nope",
    ],
)
def test_what_was_refused_for_its_arguments_had_no_effects(text: str) -> None:
    found = ended(text)
    assert isinstance(found, Failed)
    assert found.effects == "none"
