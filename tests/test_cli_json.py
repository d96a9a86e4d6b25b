"""`--json`, standard output, tables and exit codes, on single conversations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_run import BROKEN, CLEAN, Ran, call, lines, result, stopkit, text, user

from stopkit.normalizer import check, normalize


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.json"
    path.write_bytes(text({"model": "claude-sonnet-5", "messages": BROKEN, "max_tokens": 9}))
    return path


def test_check_json_has_exactly_its_keys(broken: Path) -> None:
    ran = stopkit("check", broken, "--json")
    (record,) = ran.records
    assert ran.code == 1
    assert set(record) == {"valid", "sendable", "violations"}
    assert record["valid"] is False
    assert record["sendable"] is False
    assert [set(found) for found in record["violations"]] == [{"rule", "path", "message"}]
    (found,) = record["violations"]
    assert found["rule"] == "ANT-PAIR-1"
    assert found["path"] == "messages.1.content.0"
    assert "toolu_1" in found["message"]


def test_normalize_json_has_exactly_its_keys(broken: Path) -> None:
    ran = stopkit("normalize", broken, "--json")
    (record,) = ran.records
    assert ran.code == 0
    assert set(record) == {
        "api",
        "history",
        "changes",
        "outcomes",
        "pending",
        "sendable",
        "hints",
    }
    assert record["api"] == "anthropic.messages"
    assert check(record["history"], api="anthropic.messages").valid
    (change,) = record["changes"]
    assert set(change) == {"kind", "rule", "path", "call_id", "outcome", "note", "removed"}
    assert (change["kind"], change["call_id"], change["outcome"]) == (
        "inserted",
        "toolu_1",
        "unknown",
    )
    assert record["outcomes"] == [
        {
            "call_id": "toolu_1",
            "occurrence": 1,
            "name": "run",
            "status": "unknown",
            "synthetic": True,
            "effects": "unverified",
        }
    ]
    assert record["pending"] == []
    assert record["sendable"] is True


def test_hints_have_code_note_and_path(tmp_path: Path) -> None:
    path = tmp_path / "ends.json"
    path.write_bytes(text([user("hi"), {"role": "assistant", "content": "hello"}]))
    (record,) = stopkit("normalize", path, "--json").records
    assert [set(hint) for hint in record["hints"]] == [{"code", "note", "path"}]
    assert record["hints"][0]["code"] == "needs_user_turn"


def test_what_left_is_in_removed(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(text([*CLEAN, {"role": "assistant", "content": ""}, user("x")]))
    (record,) = stopkit("normalize", path, "--json").records
    (change,) = record["changes"]
    assert (change["kind"], change["path"]) == ("removed", "messages.3")
    assert change["removed"]


def test_a_body_comes_out_as_the_body_it_was(broken: Path) -> None:
    ran = stopkit("normalize", broken)
    body = json.loads(ran.out)
    assert list(body) == ["model", "messages", "max_tokens"]
    assert body["messages"] == list(normalize(BROKEN, api="anthropic.messages").history)
    assert "1 change; sendable" in ran.err
    assert "ANT-PAIR-1" in ran.err


def test_a_list_comes_out_as_a_list() -> None:
    ran = stopkit("normalize", "-", stdin=text(BROKEN))
    assert json.loads(ran.out) == list(normalize(BROKEN, api="anthropic.messages").history)
    assert ran.code == 0


def test_message_lines_come_out_as_lines_and_keep_their_bytes() -> None:
    rows = [text(message) for message in BROKEN]
    ran = stopkit("normalize", "-", stdin=b"\n".join(rows))
    out = ran.out.split(b"\n")
    assert out[:2] == rows[:2]
    assert len(out) == 4 or out[2:] == rows[2:]
    repaired = [json.loads(line) for line in out if line]
    assert check(repaired, api="anthropic.messages").valid


def test_a_clean_history_keeps_every_byte(tmp_path: Path) -> None:
    for name, content in {
        "list.json": text(CLEAN),
        "body.json": json.dumps({"messages": CLEAN}, indent=3).encode() + b"\n\n",
        "messages.jsonl": lines(*CLEAN, end=b"\r\n"),
        "corpus.jsonl": b"\n" + lines({"messages": CLEAN}, CLEAN) + text(CLEAN),
        "bom.json": b"\xef\xbb\xbf" + text(CLEAN),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        ran = stopkit("normalize", path)
        assert (ran.code, ran.out) == (0, content)
        assert stopkit("check", path).code == 0


def test_evidence_beside_the_messages_decides_the_words(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    evidence = {"toolu_1": {"status": "stopped", "cause": "user", "output": "half", "key": "op_1"}}
    path.write_bytes(text({"messages": BROKEN, "evidence": evidence}))
    (record,) = stopkit("normalize", path, "--json").records
    assert record["outcomes"][0]["status"] == "stopped"
    assert "op_1" in json.dumps(record["history"])
    assert "half" in json.dumps(record["history"])
    # It stays where it was: the repaired body is the same body.
    assert json.loads(stopkit("normalize", path).out)["evidence"] == evidence


def test_the_evidence_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_bytes(text({"messages": BROKEN, "evidence": {"toolu_1": {"status": "denied"}}}))
    file = tmp_path / "evidence.json"
    file.write_bytes(text({"toolu_1": {"status": "not_started", "reason": "the queue was cut"}}))
    (record,) = stopkit("normalize", path, "--json", "--evidence", file).records
    assert record["outcomes"][0]["status"] == "not_started"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not an object"),
        (b'{"toolu_1": {"status": "maybe"}}', "toolu_1"),
        (b'{"toolu_1": 3}', "toolu_1"),
        (b'{"toolu_1": {"status": "stopped", "color": "red"}}', "toolu_1"),
    ],
)
def test_bad_evidence_is_refused(broken: Path, tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "evidence.json"
    file.write_bytes(content)
    ran = stopkit("normalize", broken, "--evidence", file)
    assert (ran.code, ran.out) == (2, b"")
    assert words in ran.err
    beside = tmp_path / "beside.json"
    body = {"messages": BROKEN, "evidence": {"toolu_1": {"status": "maybe"}}}
    beside.write_bytes(text(body))
    assert stopkit("normalize", beside).code == 2


def test_a_missing_evidence_file_is_said(broken: Path, tmp_path: Path) -> None:
    ran = stopkit("normalize", broken, "--evidence", tmp_path / "no.json")
    assert ran.code == 2
    assert "no.json: cannot be read" in ran.err


def test_live_keep_leaves_the_last_calls_open(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    path.write_bytes(text([user("go"), call("toolu_1")]))
    (closed,) = stopkit("normalize", path, "--json").records
    (kept,) = stopkit("normalize", path, "--json", "--live", "keep").records
    assert (closed["pending"], closed["sendable"]) == ([], True)
    assert (kept["pending"], kept["sendable"]) == (["toolu_1"], False)
    said = stopkit("normalize", path, "--live", "keep").err
    assert "still at work: toolu_1" in said


def test_running_evidence_is_pending(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    evidence = {"toolu_1": {"status": "running"}}
    path.write_bytes(text({"messages": [user("go"), call("toolu_1")], "evidence": evidence}))
    (record,) = stopkit("normalize", path, "--json").records
    assert record["pending"] == ["toolu_1"]


def test_the_request_fields_make_rules_exact(tmp_path: Path) -> None:
    ends = [user("hi"), {"role": "assistant", "content": "hello"}]
    path = tmp_path / "prefill.json"
    path.write_bytes(text({"model": "claude-opus-4-6", "messages": ends}))
    (with_model,) = stopkit("check", path, "--json").records
    path.write_bytes(text({"messages": ends}))
    (without,) = stopkit("check", path, "--json").records
    assert [found["rule"] for found in with_model["violations"]] == ["ANT-END-1"]
    assert without["violations"] == []


def test_the_human_report_tells_rule_place_wrong_and_done(broken: Path) -> None:
    checked = stopkit("check", broken)
    assert checked.code == 1
    table = checked.out.decode()
    assert "ANT-PAIR-1" in table
    assert "messages.1.content.0" in table
    repaired = stopkit("normalize", broken)
    assert "What was wrong" in repaired.err
    assert "result made up" in repaired.err
    assert "\x1b" not in checked.out.decode() + checked.err + repaired.err


def test_nothing_in_a_history_reaches_the_terminal_raw(tmp_path: Path) -> None:
    path = tmp_path / "evil.json"
    path.write_bytes(text([user("go"), call("a\x1b[2J\u202e[red]\ud800"), user("x")]))
    checked, repaired = stopkit("check", path), stopkit("normalize", path)
    told = (checked.out.decode(), checked.err, repaired.err)
    assert all(told)
    assert not any(mark in shown for mark in ("\x1b", "\u202e") for shown in told)


def test_a_file_with_message_lines_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n" + lines(*BROKEN))
    assert "(line 3)" in stopkit("check", path).out.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["repair"],
        ["check"],
        ["check", "x", "--api", "gemini"],
        ["check", "x", "--out", "y"],
        ["normalize", "x", "--out", "y", "--in-place"],
        ["normalize", "x", "--jobs", "0"],
        ["normalize", "x", "--jobs", "many"],
        ["normalize", "x", "--live", "maybe"],
        ["normalize", "-", "--in-place"],
    ],
)
def test_wrong_use_is_2(arguments: list[str]) -> None:
    ran = stopkit(*arguments)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.err.startswith("stopkit")


def test_help_teaches() -> None:
    assert stopkit("--help").code == 0
    for command in ((), ("check",), ("normalize",)):
        shown = stopkit(*command, "--help").out.decode()
        assert "examples:" in shown
        assert "exit codes:" in shown
    evidence = "status: running placeholder succeeded"
    assert evidence in stopkit("normalize", "--help").out.decode()


def test_the_version_is_shown() -> None:
    ran = stopkit("--version")
    assert ran.code == 0
    assert ran.out.startswith(b"stopkit")


def test_missing_and_unreadable_files_are_2_and_the_rest_is_done(
    tmp_path: Path, broken: Path
) -> None:
    ran = stopkit("check", tmp_path / "no.json", broken, "--json")
    assert ran.code == 2
    assert "no.json: cannot be read: No such file" in ran.err
    assert len(ran.records) == 1


def test_several_need_a_place_to_go(tmp_path: Path, broken: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(text(CLEAN))
    ran = stopkit("normalize", broken, other)
    assert (ran.code, ran.out) == (2, b"")
    assert "--out DIR, --in-place or --json" in ran.err
    assert stopkit("normalize", tmp_path).code == 2
    ran = stopkit("normalize", broken, other, "--json")
    assert ran.code == 0
    assert len(ran.records) == 2
    checked = stopkit("check", broken, other)
    assert checked.code == 1
    assert checked.out.decode().startswith(f"{broken}\n")
    assert str(other) not in checked.out.decode()


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    ran = stopkit("check", tmp_path)
    assert ran.code == 2
    assert "no .json" in ran.err


def _subprocess(file: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`stopkit check`, started beside the file: a source tree would shadow what is installed."""
    return subprocess.run(
        [sys.executable, "-m", "stopkit.cli", "check", file.name],
        cwd=file.parent,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_no_colour_without_a_terminal_even_if_forced(broken: Path) -> None:
    ran = _subprocess(broken, FORCE_COLOR="1", TERM="xterm-256color")
    assert ran.returncode == 1
    assert b"\x1b" not in ran.stdout + ran.stderr


def test_an_ascii_terminal_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "ümlaut.json"
    path.write_bytes(text([user("gö"), call("é"), user("x")]))
    ran = _subprocess(path, PYTHONIOENCODING="ascii")
    assert ran.returncode == 1
    assert b"Traceback" not in ran.stderr


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines({"messages": CLEAN}) * 20_000)
    with subprocess.Popen(
        [sys.executable, "-m", "stopkit.cli", "normalize", path.name],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert b"Traceback" not in said


def test_checking_a_clean_file_loads_no_table_library(tmp_path: Path) -> None:
    path = tmp_path / "clean.json"
    path.write_bytes(text(CLEAN))
    script = (
        "import sys; from stopkit.cli import main; code = main(sys.argv[1:]);"
        "print(code, [m for m in ('rich', 'typer', 'asyncio') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "check", path.name],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert ran.stdout == b"0 []\n"


def test_results_of_several_files_come_in_their_order(tmp_path: Path) -> None:
    for name, history in (("b", BROKEN), ("a", CLEAN), ("c", [*BROKEN, result("x")])):
        (tmp_path / f"{name}.json").write_bytes(text(history))
    one: Ran = stopkit("check", tmp_path, "--json")
    two: Ran = stopkit("check", tmp_path, "--json", "--jobs", 2)
    assert [len(record["violations"]) for record in one.records] == [0, 1, 2]
    assert one == two
