"""Results that a harness wrote, told apart from a tool's own, and what their words prove.

`recognise` answers for the text of a result that no tool gave back: a placeholder, a rejection, an
interruption.  `ended` answers for a tool's own result whose harness put the end of the process into
the text, where the API has no error flag.

A text counts only from its first character, and whole or up to a fixed head: a real output that
quotes one of these sentences somewhere inside is a real output.  What the words leave open stays
open.  Claude Code writes one rejection text for a refusal, for a call that never started and (after
SIGINT) for one that was running, so that text alone is a placeholder; and peers say "by the user"
of calls that a crash cut off, so those are placeholders too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from stopkit.outcome import Denied, Failed, NotStarted, Outcome, Placeholder, Stopped, Unknown

Recognised: TypeAlias = Placeholder | Outcome

_Make: TypeAlias = Callable[[str, str], Recognised | None]
"""From who wrote the text and what stands between its head and its tail."""


class _Form(NamedTuple):
    """One wording.  `tail` None: anything may follow `head`; else the text ends with it."""

    writer: str
    head: str
    make: _Make
    tail: str | None = ""
    flagged: bool = False
    """Its writer always sets the error flag, so a result that says it is no error is another's."""


def _standing(reason: str) -> _Make:
    return lambda writer, _: Placeholder(reason=reason, evidence=(_written(writer),))


def _never_ran(reason: str) -> _Make:
    return lambda writer, _: NotStarted(reason=reason, evidence=(_written(writer),))


def _refused(by: str | None) -> _Make:
    return lambda writer, _: Denied(by=by, evidence=(_written(writer),))


def _refused_with_words(by: str | None) -> _Make:
    """Refused, and the words that follow are the reason."""
    return lambda writer, words: Denied(
        by=by, reason=words.strip() or None, evidence=(_written(writer),)
    )


def _written(writer: str) -> str:
    return f"the result is {writer}'s wording, not the tool's output"


_NO_RESULT: Final = "its result was not recorded"
_INTERRUPTED: Final = "it was interrupted; whether it had begun is not recorded"
_REJECTION: Final = (
    "rejected or interrupted: the text is the same for a refusal, for a call that never started "
    "and for one that was running"
)

_REJECTED: Final = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected "
    "(eg. if it was a file edit, the new_string was NOT written to the file). "
)
_NOT_PERMITTED: Final = (
    "Permission for this tool use was denied. The tool use was rejected "
    "(eg. if it was a file edit, the new_string was NOT written to the file). "
)
_STOPPED_WHILE_RUNNING: Final = " Correction to the text above: this call was stopped while running"


def _after_rejection(writer: str, rest: str) -> Recognised:
    if rest.startswith(_STOPPED_WHILE_RUNNING):
        return Stopped(
            reason="it was stopped while it ran; how far it got is not recorded",
            evidence=(_written(writer), "the text says: stopped while running"),
        )
    return Placeholder(reason=_REJECTION, evidence=(_written(writer),))


def _after_codex_rejection(writer: str, words: str) -> Recognised:
    words = words.replace('\\"', '"').strip('"')
    evidence = (_written(writer),)
    if words == "approval request failed":
        return NotStarted(reason="the approval request failed", evidence=evidence)
    if words == "rejected by user":
        return Denied(by="user", evidence=evidence)
    return Denied(reason=words or None, evidence=evidence)


def _aborted_after(writer: str, seconds: str) -> Recognised | None:
    if not seconds.replace(".", "", 1).isdecimal():
        return None
    return Placeholder(reason=_INTERRUPTED, evidence=(_written(writer),))


_GUIDANCE: Final = " IMPORTANT: You *may* attempt to accomplish this action"


def _denied_by_rule(writer: str, words: str) -> Recognised | None:
    _, said, why = words.partition(" has been denied")
    reason, guidance, _ = why.partition(_GUIDANCE)
    # A program may say of its own that permission was denied: only this guidance is the CLI's.
    if not said or not (guidance or why.startswith(" because Claude Code is running")):
        return None
    return Denied(by="policy", reason=reason.strip(" .") or None, evidence=(_written(writer),))


def _hook_error(writer: str, words: str) -> Recognised | None:
    tool, said, why = words.partition(" hook error: ")
    if not said or " " in tool:
        return None
    return Denied(by="hook", reason=why.strip() or None, evidence=(_written(writer),))


def _rejected_by_name(writer: str, words: str) -> Recognised | None:
    _, said, reason = words.partition("` with reason: ")
    if said:
        return Denied(by="user", reason=reason.strip() or None, evidence=(_written(writer),))
    if re.fullmatch(r"[^`]*` with id \S+?(?:\. The tool was not executed\..*)?", words, re.DOTALL):
        return Denied(by="user", evidence=(_written(writer),))
    return None


def _user_feedback(writer: str, words: str) -> Recognised:
    return Denied(
        by="user",
        reason=words.strip().removeprefix("<feedback>").removesuffix("</feedback>").strip() or None,
        evidence=(_written(writer),),
    )


_CLAUDE: Final = "Claude Code"
_CODEX: Final = "Codex"

_FORMS: Final = (
    # Claude Code
    _Form(
        _CLAUDE,
        _REJECTED + "STOP what you are doing and wait for the user to tell you how to proceed.",
        _after_rejection,
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        _REJECTED + "To tell you how to proceed, the user said:",
        _refused_with_words("user"),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        _NOT_PERMITTED + "The user said:",
        _refused_with_words("user"),
        None,
        flagged=True,
    ),
    # A sub-agent's rejection; it says the same when a stop closed the open prompt.
    _Form(_CLAUDE, _NOT_PERMITTED, _standing(_REJECTION), None, flagged=True),
    _Form(
        _CLAUDE,
        "Permission for this tool use was denied: it requires interactive approval",
        _refused("policy"),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "Permission for this tool use was denied. It requires approval, and this session has no",
        _refused("policy"),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "Permission for this action has been denied. Reason: ",
        _refused_with_words("policy"),
        None,
        flagged=True,
    ),
    _Form(_CLAUDE, "Permission to use ", _denied_by_rule, None, flagged=True),
    _Form(_CLAUDE, "PreToolUse:", _hook_error, None, flagged=True),
    _Form(
        _CLAUDE,
        "Claude requested permissions to ",
        _never_ran("permission was asked for and not given"),
        "haven't granted it yet.",
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "The user doesn't want to take this action right now. STOP what you are doing and wait "
        "for the user to tell you how to proceed.",
        _standing(_INTERRUPTED),
        None,
        flagged=True,
    ),
    _Form(_CLAUDE, "[Request interrupted by user]", _standing(_INTERRUPTED), flagged=True),
    _Form(
        _CLAUDE, "[Request interrupted by user for tool use]", _standing(_INTERRUPTED), flagged=True
    ),
    _Form(
        _CLAUDE,
        "[Tool call interrupted: the session ended before this call's result was recorded",
        _standing("the session ended before its result was recorded"),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "[Tool result missing due to internal error]",
        _standing(_NO_RESULT),
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "[Tool call result not in this copy: ",
        _standing("the session was copied before its result was recorded"),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "[Tool call did not complete: the turn was ended to deliver the message that follows.",
        _standing(_INTERRUPTED),
        None,
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "[Tool call skipped: the turn ",
        _never_ran("the turn ended before it ran"),
        "re-run it if still needed.]",
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "[Tool call not completed: an approval request ",
        _never_ran("its approval request was never answered"),
        "ask again if it is still needed.]",
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "<tool_use_error>Cancelled: ",
        _standing("it was cancelled; whether it had begun is not recorded"),
        "</tool_use_error>",
        flagged=True,
    ),
    _Form(
        _CLAUDE,
        "<tool_use_error>Error: Streaming fallback - tool execution discarded</tool_use_error>",
        _standing("its execution was discarded; whether it had begun is not recorded"),
        flagged=True,
    ),
    # Codex
    _Form(_CODEX, "aborted", _standing(_NO_RESULT), flagged=True),
    # Not proof of a stop: the command runs on, and one that never began reads the same.
    _Form(_CODEX, "aborted by user", _standing(_INTERRUPTED), flagged=True),
    _Form(_CODEX, "aborted by user after ", _aborted_after, "s", flagged=True),
    _Form(_CODEX, "Wall time: ", _aborted_after, " seconds\naborted by user", flagged=True),
    _Form(
        _CODEX,
        'exec_command failed: CreateProcess { message: "Rejected(',
        _after_codex_rejection,
        ')" }',
        flagged=True,
    ),
    _Form(
        _CODEX,
        'exec_command failed: Rejected("',
        _after_codex_rejection,
        '")',
        flagged=True,
    ),
    _Form(_CODEX, "exec command rejected by user", _refused("user"), flagged=True),
    _Form(_CODEX, "patch rejected by user", _refused("user"), flagged=True),
    _Form(
        _CODEX,
        "dynamic tool call was cancelled before receiving a response",
        _standing("the call was cancelled before its tool answered"),
        flagged=True,
    ),
    # Python frameworks
    _Form(
        "pydantic-ai",
        "The tool call was interrupted before a result was produced.",
        _standing(_INTERRUPTED),
    ),
    _Form("pydantic-ai", "The tool call was denied.", _refused(None)),
    _Form(
        "pydantic-ai",
        "Tool not executed - a final result was already processed.",
        _never_ran("a final result was already there"),
    ),
    _Form(
        "LiteLLM",
        "[System: Tool execution skipped/interrupted by user. No result provided",
        _standing(_NO_RESULT),
        ".]",
    ),
    _Form(
        "LiteLLM",
        "[System: Tool execution skipped/interrupted by user. No result provided.]",
        _standing(_NO_RESULT),
    ),
    _Form(
        "deepagents",
        "Tool call ",
        _standing(_NO_RESULT),
        " did not complete - no result was recorded. It may have been cancelled or interrupted.",
    ),
    _Form(
        "deepagents",
        "Tool call ",
        _standing("another message came before its result"),
        " was cancelled - another message came in before it could be completed.",
    ),
    _Form(
        "deepagents",
        "Tool call ",
        _never_ran("its arguments were malformed or cut off"),
        " could not be executed - arguments were malformed or truncated.",
    ),
    _Form("LangChain", "User rejected the tool call for `", _rejected_by_name, None),
    _Form("Strands", "Tool was interrupted.", _standing(_INTERRUPTED), flagged=True),
    _Form("Strands", "Tool execution cancelled", _standing(_INTERRUPTED), flagged=True),
    _Form(
        "Strands",
        "Tool execution cancelled locally; remote execution may have continued",
        _standing("it was cancelled here; the remote side may have gone on"),
        flagged=True,
    ),
    _Form("Strands", "Tool cancelled by hook", _refused("hook"), flagged=True),
    _Form(
        "ADK",
        "Error: Missing tool result (tool execution may have been interrupted before a response "
        "was recorded).",
        _standing(_NO_RESULT),
    ),
    _Form("ADK", "Invocation was aborted by client.", _standing(_INTERRUPTED)),
    _Form("ADK", '{"error": "Invocation was aborted by client."}', _standing(_INTERRUPTED)),
    _Form("ADK", '{"error":"Invocation was aborted by client."}', _standing(_INTERRUPTED)),
    _Form("the Agents SDK", "Tool execution was not approved.", _refused(None)),
    _Form(
        "Agent Framework",
        "Error: Tool execution was aborted by middleware before a result was produced.",
        _standing(_INTERRUPTED),
    ),
    _Form("Agent Framework", "Error: Tool call was cancelled.", _standing(_INTERRUPTED)),
    _Form("Agent Framework", "Error: Tool call invocation was rejected by user.", _refused("user")),
    # Other agents
    _Form(
        "OpenClaw",
        "[openclaw] missing tool result in session history; ",
        _standing(_NO_RESULT),
        "inserted synthetic error result for transcript repair.",
        flagged=True,
    ),
    _Form(
        "Vellum",
        "<synthesized_result>tool result missing from history</synthesized_result>",
        _standing(_NO_RESULT),
        flagged=True,
    ),
    _Form(
        "Vellum",
        "[synthesized: tool result missing from history]",
        _standing(_NO_RESULT),
        flagged=True,
    ),
    _Form("Roo Code", "Tool execution was interrupted before completion.", _standing(_INTERRUPTED)),
    _Form(
        "Roo Code",
        "Task was interrupted before this tool call could be completed.",
        _standing(_INTERRUPTED),
    ),
    _Form("Cline", "result missing", _standing(_NO_RESULT)),
    _Form("Cline", "The user denied this operation.", _refused("user")),
    _Form(
        "Cline",
        "The user denied this operation and provided the following feedback:",
        _user_feedback,
        None,
    ),
    _Form("opencode", "[Tool execution was interrupted]", _standing(_INTERRUPTED), flagged=True),
    _Form("opencode", "Tool execution aborted", _standing(_INTERRUPTED), flagged=True),
    # It says "the user" also where nobody was there to be asked.
    _Form(
        "opencode",
        "The user rejected permission to use this specific tool call.",
        _refused(None),
        flagged=True,
    ),
    _Form(
        "opencode",
        "The user rejected permission to use this specific tool call with the following feedback:",
        _refused_with_words("user"),
        None,
        flagged=True,
    ),
    _Form("Zed", "Tool canceled by user", _standing(_INTERRUPTED), flagged=True),
    _Form("Zed", "Permission to run tool denied by user", _refused("user"), flagged=True),
    _Form("the AI SDK", "Tool call execution denied.", _refused(None)),
    _Form("the AI SDK", "Tool execution denied.", _refused(None)),
    _Form("a harness", "Interrupted by user", _standing(_INTERRUPTED), flagged=True),
)


_LOOK: Final = 7
"""Characters that rule out most real outputs in one look-up; no head is shorter."""


def _by_beginning() -> dict[str, tuple[_Form, ...]]:
    found: dict[str, list[_Form]] = {}
    for form in _FORMS:
        found.setdefault(form.head[:_LOOK], []).append(form)
    return {beginning: tuple(forms) for beginning, forms in found.items()}


_BY_BEGINNING: Final = _by_beginning()


def recognise(text: str, *, is_error: bool | None = None) -> Placeholder | Outcome | None:
    """What a result that a harness wrote proves about its call; None for a tool's own result.

    `is_error` is the result's own flag, None where it has none.
    """
    forms = _BY_BEGINNING.get(text[:_LOOK])
    if forms is None:
        return None
    text = _readable(text)
    for form in forms:
        if not text.startswith(form.head) or (form.flagged and is_error is False):
            continue
        rest = text[len(form.head) :]
        if form.tail is not None:
            rest = rest.rstrip()
            if not (rest.endswith(form.tail) if form.tail else not rest):
                continue
            rest = rest[: len(rest) - len(form.tail)]
        answer = form.make(form.writer, rest)
        if answer is not None:
            return answer
    return None


# Compiled when they are first needed: most programs that repair histories never meet one.
_CODEX_HEAD: Final = (
    r"(?:Chunk ID: \S+\n)?Wall time: [\d.]+ seconds\n"
    r"Process (?:exited with code (?P<code>-?\d{1,9})|running with session ID (?P<session>\d+))\n"
    r"(?:Original token count: \d+\n)?(?:Output:\n)?"
)
_PATCH_HEAD: Final = r"Exit code: (?P<code>-?\d{1,9})\nWall time: [\d.]+ seconds?\nOutput:\n"
_CLAUDE_HEAD: Final = r"Exit code (?P<code>\d{1,9})(?:\n|$)"
_CLAUDE_BACKGROUND: Final = r"Command running in background with ID: \S+\. Output is "

_REFUSED_ARGUMENTS: Final = (
    "apply_patch verification failed: ",
    "failed to parse function arguments: ",
    "unsupported call: ",
    "unsupported custom tool call: ",
)
_SIGKILLED: Final = 137
"""A shell's exit code for a child that signal 9 killed."""


def ended(text: str, *, is_error: bool | None = None) -> Failed | Stopped | Unknown | None:
    """How a call ended, where its harness put that into its own result; None: the text is silent.

    A result that only says that the work began (a background command, a process past its yield
    time) is no proof of its end: unknown.
    """
    if text[:4] not in _ENDS:
        return None
    text = _readable(text)
    if found := re.match(_CODEX_HEAD, text):
        output = text[found.end() :]
        if session := found["session"]:
            return Unknown(
                reason="it was still running when its result was written",
                output=output or None,
                check="look for the end of its process",
                evidence=(f"the result says: running with session ID {session}",),
            )
        return _exited(int(found["code"]), output)
    if found := re.match(_PATCH_HEAD, text):
        return _exited(int(found["code"]), text[found.end() :])
    if is_error and (found := re.match(_CLAUDE_HEAD, text)):
        return _exited(int(found["code"]), text[found.end() :])
    if re.match(_CLAUDE_BACKGROUND, text):
        return Unknown(
            reason="it was started in the background; its result does not say how it ended",
            output=text,
            check="look for the end of its process, or at its output file",
            evidence=("the result says: running in background",),
        )
    if text.startswith(_REFUSED_ARGUMENTS):
        return Failed(output=text, effects="none", evidence=("refused before it ran",))
    if text.startswith("exec_command failed: "):
        return Failed(output=text, evidence=("the result says: exec_command failed",))
    return None


_ENDS: Final = frozenset({"Chun", "Wall", "Exit", "Comm", "appl", "fail", "unsu", "exec"})


def _readable(text: str) -> str:
    """A lone surrogate is no text: it becomes U+FFFD before words are passed on."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _exited(code: int, output: str) -> Failed | Stopped | None:
    if code == 0:
        return None
    said = (f"the result says: exit code {code}",)
    if code == -1:
        # No program exits with -1: it is how Codex shows a process that it ended itself.
        return Stopped(output=output or None, exit_code=code, evidence=said)
    reason = "killed by signal 9; by whom is not recorded" if code == _SIGKILLED else None
    return Failed(output=output or None, exit_code=code, reason=reason, evidence=said)
