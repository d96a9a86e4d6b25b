"""What the command takes its input to be, and that it says so."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from cli_run import BROKEN, CLEAN, call, lines, result, stopkit, text, user

from stopkit.cli.conversation import ConversationError, read_conversation, recognise_api
from stopkit.cli.jsontext import JsonError, dumps, loads
from stopkit.cli.sources import Opened, UnreadableError, open_source

CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    ],
}
CHAT_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
RESPONSES_CALL = {"type": "function_call", "call_id": "call_1", "name": "run", "arguments": "{}"}
RESPONSES_RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}


@pytest.mark.parametrize(
    ("items", "body", "api"),
    [
        ([user("x"), call("toolu_1")], None, "anthropic.messages"),
        ([user("x"), result("toolu_1")], None, "anthropic.messages"),
        ([user("x"), CHAT_CALL], None, "openai.chat"),
        ([user("x"), CHAT_RESULT], None, "openai.chat"),
        ([{"role": "system", "content": "s"}, user("x")], None, "openai.chat"),
        ([{"role": "system", "content": "s"}, user("x"), call("a")], None, "anthropic.messages"),
        ([{"role": "developer", "content": "s"}, user("x")], None, "openai.chat"),
        ([{"role": "developer", "content": "s"}, RESPONSES_CALL], None, "openai.responses"),
        ([user("x"), RESPONSES_CALL, RESPONSES_RESULT], None, "openai.responses"),
        ([{"type": "message", "role": "user", "content": "x"}], None, "openai.responses"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            None,
            "openai.responses",
        ),
        (
            [
                user("x"),
                {
                    "type": "message",
                    "role": "assistant",
                    "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": "y"}],
                },
            ],
            None,
            "anthropic.messages",
        ),
        ([user("x")], {"system": "s"}, "anthropic.messages"),
        ([user("x")], {"max_completion_tokens": 5}, "openai.chat"),
        ([user("x")], {"model": "claude-sonnet-5"}, "anthropic.messages"),
        ([user("x")], {"model": "openai/gpt-5"}, "openai.chat"),
        ([user("x")], {"tools": [{"type": "function", "function": {}}]}, "openai.chat"),
        ([user("x")], {"tools": [{"name": "t", "input_schema": {}}]}, "anthropic.messages"),
    ],
)
def test_the_content_tells_the_api(items: list[Any], body: dict[str, Any] | None, api: str) -> None:
    found, told_by = recognise_api(items, body)
    assert found == api
    assert told_by


def test_plain_text_tells_nothing_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_bytes(text([user("hello")]))
    assert recognise_api([user("hello")], None) == ("anthropic.messages", "")
    assert recognise_api([user("hello")], None, "openai.chat")[0] == "openai.chat"
    ran = stopkit("check", path)
    assert "nothing in it tells the API" in ran.err


@pytest.mark.parametrize("junk", [None, 3, "x", [], {"role": []}, {"content": [None, {"type": 1}]}])
def test_an_api_is_found_in_any_shape(junk: object) -> None:
    assert recognise_api([junk, user("x")], {"model": 1, "tools": [None]})[1] == ""


def test_input_means_responses_and_may_be_a_string() -> None:
    body = {"model": "x", "input": "hello", "store": False, "evidence": {}}
    conversation = read_conversation(body, None, None)
    assert conversation.api == "openai.responses"
    assert conversation.history == [user("hello")]
    assert conversation.request == {"model": "x", "store": False}


def test_a_field_of_any_name_holds_the_history() -> None:
    body = {"id": 1, "turns": CLEAN, "messages": "no"}
    conversation = read_conversation(body, "turns", None)
    assert conversation.history is body["turns"]
    assert list(conversation.with_history([])) == ["id", "turns", "messages"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "a number"),
        (None, "null"),
        ({}, "--field names another"),
        ({"messages": {}}, "no list, but an object"),
        ({"input": 3}, "no list, but a number"),
    ],
)
def test_what_is_no_conversation_is_said(value: object, words: str) -> None:
    with pytest.raises(ConversationError, match=words):
        read_conversation(value, None, None)


def _open(content: bytes, field: str | None = None) -> Opened:
    return open_source(io.BytesIO(content), field)


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (text(CLEAN), "json"),
        (text({"messages": CLEAN}), "json"),
        (json.dumps({"messages": CLEAN}, indent=2).encode(), "json"),
        (b"[\n" + b",\n".join(map(text, CLEAN)) + b"\n]\n", "json"),
        (b"\xef\xbb\xbf" + text(CLEAN), "json"),
        (lines(*CLEAN), "jsonl.messages"),
        (text(user("alone")), "jsonl.messages"),
        (b"\xef\xbb\xbf" + lines(*CLEAN, end=b"\r\n"), "jsonl.messages"),
        (lines({"messages": CLEAN}, {"messages": CLEAN}), "jsonl.conversations"),
        (lines(CLEAN, CLEAN), "jsonl.conversations"),
        (b'{"messages": [{"ro\n' + lines({"messages": CLEAN}, CLEAN), "jsonl.conversations"),
        (b'{"messages": [{"ro\n' + lines({"messages": CLEAN}), "jsonl.conversations"),
        (b"\n\n" + lines(*CLEAN), "jsonl.messages"),
    ],
)
def test_the_form_is_told_by_the_content(content: bytes, form: str) -> None:
    opened = _open(content)
    assert opened.form == form
    assert opened.read() == content


def test_the_field_decides_what_a_row_is() -> None:
    rows = lines({"turns": CLEAN}, {"turns": CLEAN})
    assert _open(rows, "turns").form == "jsonl.conversations"
    with pytest.raises(UnreadableError, match="--field"):
        _open(rows)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"  \n \n", "empty"),
        (b"hello", "not JSON"),
        (b"hello\nworld\n", "not JSON"),
        (b"[1, 2", "not JSON"),
        (text(CLEAN).decode().encode("utf-16"), "UTF-16"),
        (text(CLEAN).decode().encode("utf-32"), "UTF-32"),
        (b'"\xff\xfe"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"9" * 10_000, "integer string conversion"),
        (b"1\n2\n", "neither messages nor conversations"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_code_is_2(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    for action in ("check", "normalize"):
        ran = stopkit(action, path)
        assert ran.code == 2
        assert words in ran.err
        assert ran.out == b""


def test_pieces_are_whole_lines_and_bounded() -> None:
    rows = lines(*[{"messages": CLEAN, "n": n} for n in range(3000)])
    opened = _open(rows)
    pieces = list(opened.batches(10_000))
    assert b"".join(pieces) == rows
    longest = max(map(len, rows.splitlines(keepends=True)))
    first = len(pieces[0])
    assert first <= (1 << 16) + 2 * longest
    assert all(len(piece) <= 10_000 + longest for piece in pieces[1:])
    assert all(piece.endswith(b"\n") for piece in pieces)


def test_a_line_longer_than_a_piece_stays_whole() -> None:
    long = text({"messages": [user("x" * 200_000)]})
    rows = b"\n".join([text({"messages": CLEAN}), long, long])
    assert list(_open(rows).batches(1000))[-1].endswith(long)
    assert b"".join(_open(rows).batches(1000)) == rows


@pytest.mark.parametrize(
    "written",
    [
        b'{"n":123456789012345678901234567890}',
        b'{"n":-9223372036854775809}',
        b'{"x":NaN,"y":Infinity}',
        b'{"s":"\\ud800","t":"caf\\u00e9"}',
        b"[1,2.5,null,true]",
        b'\xef\xbb\xbf{"a":1}\r\n',
    ],
)
def test_json_comes_back_as_it_was(written: bytes) -> None:
    value, style = loads(written)
    again, _ = loads(dumps(value, style))
    assert repr(again) == repr(value)
    assert dumps(value, style).replace("é".encode(), b"\\u00e9") == written


def test_an_indented_text_stays_indented() -> None:
    written = json.dumps({"a": [1, {"b": "é"}]}, indent=2, ensure_ascii=False).encode() + b"\n"
    value, style = loads(written)
    assert dumps(value, style) == written


def test_deep_values_cannot_be_read() -> None:
    with pytest.raises(JsonError, match="nested too deeply"):
        loads(b'{"a":' * 50_000)


def test_the_format_is_said_and_api_overrides(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(text(BROKEN))
    said = stopkit("check", path).err
    assert "one JSON value, anthropic.messages (told by `tool_use` blocks)" in said
    said = stopkit("check", path, "--api", "openai.chat").err
    assert "openai.chat (told by --api)" in said


def test_a_conversation_that_tells_nothing_goes_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines([user("hello")], [user("x"), CHAT_CALL, CHAT_RESULT]))
    ran = stopkit("normalize", path, "--json")
    assert [record["api"] for record in ran.records] == ["openai.chat"] * 2
    assert "2 openai.chat" in ran.err
