"""The format of a file is told by its rows, and `load` finds what stands beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopkit.normalizer import HistoryError
from stopkit.normalizer.transcripts import Format, detect, load

RECORDED = Path(__file__).parent / "data" / "recorded"
MESSAGE = {"role": "user", "content": "hello"}
ITEM = {"type": "function_call_output", "call_id": "c", "output": ""}


def jsonl(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


@pytest.mark.parametrize("folder", ["claude_code", "codex"])
def test_recordings_are_told_by_any_beginning(folder: Format) -> None:
    for path in (RECORDED / folder).rglob("*.jsonl"):
        content = path.read_bytes()
        first = content.index(b"\n") + 1
        for end in (first, first + 10, len(content) // 2, len(content)):
            assert detect(content[:end]) == folder, path
        assert detect(content[first + 5 :]) == folder, "its first line is torn"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", None),
        (b" \n\n", None),
        (b"hello\n", None),
        (b"\xff\xfe\x00", None),
        (b'{"a": 1}', None),
        (b"[1, 2]", None),
        (b"17", None),
        (jsonl(MESSAGE, MESSAGE), "jsonl.messages"),
        (jsonl(MESSAGE), "jsonl.messages"),
        (jsonl(ITEM, ITEM), "jsonl.messages"),
        (b"\xef\xbb\xbf" + jsonl(MESSAGE, MESSAGE), "jsonl.messages"),
        (jsonl({"type": "file-history-snapshot"}, MESSAGE), "jsonl.messages"),
        (jsonl({"messages": [MESSAGE]}, {"messages": []}), "jsonl.conversations"),
        (jsonl({"input": [ITEM]}, {"input": [ITEM]}), "jsonl.conversations"),
        (jsonl([MESSAGE], [MESSAGE]), "jsonl.conversations"),
        (jsonl({"id": 1, "turns": [MESSAGE]}, {"id": 2, "turns": []}), "jsonl.conversations"),
        (b'{"messa\n' + jsonl({"messages": [MESSAGE]}), "jsonl.conversations"),
        (jsonl([MESSAGE, MESSAGE]), "json.list"),
        (b"[]", "json.list"),
        (json.dumps([MESSAGE, MESSAGE], indent=2).encode(), "json.list"),
        (json.dumps([MESSAGE, MESSAGE], indent=2).encode()[:40], "json.list"),
        (jsonl({"model": "m", "messages": [MESSAGE]}), "json.request"),
        (jsonl({"model": "m", "input": "hello"}), "json.request"),
        (json.dumps({"model": "m", "input": [ITEM]}, indent=1).encode(), "json.request"),
        (json.dumps({"messages": [MESSAGE] * 9}, indent=1).encode()[:200], "json.request"),
    ],
)
def test_the_format_of_a_file(content: bytes, found: Format | None) -> None:
    assert detect(content) == found


@given(st.binary(max_size=300))
def test_any_bytes_have_a_format_or_none(content: bytes) -> None:
    assert detect(content) in {
        None,
        "claude_code",
        "codex",
        "jsonl.messages",
        "jsonl.conversations",
        "json.list",
        "json.request",
    }


@pytest.mark.parametrize("depth", [500, 1_100, 100_000])
def test_deep_nesting_is_no_crash(depth: int) -> None:
    assert detect(b'{"messages":' + b"[" * depth + b"]" * depth + b"}") in ("json.request", None)


def test_a_name_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollout.txt"
    shutil.copy(RECORDED / "claude_code" / "deny_two.jsonl", path)
    assert load(path).api == "anthropic.messages"


def test_load_takes_the_base_by_its_thread_and_rows(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "codex" / "reverted.jsonl", tmp_path / "b.jsonl")
    shutil.copy(RECORDED / "codex" / "plain_turns.jsonl", tmp_path / "a.jsonl")
    assert [note.code for note in load(tmp_path / "b.jsonl").notes] == ["base_missing"]
    shutil.copy(RECORDED / "codex" / "reverted.base.jsonl", tmp_path / "c.jsonl")
    assert load(str(tmp_path / "b.jsonl")).outcome_of("call_r1").status == "succeeded"


def test_load_refuses_what_is_no_transcript(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    path.write_bytes(jsonl(MESSAGE, MESSAGE))
    with pytest.raises(HistoryError, match=r"it is jsonl\.messages"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.jsonl")
