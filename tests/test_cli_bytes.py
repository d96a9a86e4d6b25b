"""Whatever bytes the command is given: an answer, never a traceback."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cli_run import BROKEN, CLEAN, Ran, lines, stopkit, text
from hypothesis import given, settings
from hypothesis import strategies as st

DATA = Path(__file__).parent / "data"

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "id", "text", "messages", "input", "tool_calls", "name"]
            )
            | st.text(max_size=4),
            inner
            | st.sampled_from(["user", "assistant", "tool", "text", "tool_use", "function_call"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)

SEEDS = [
    text(BROKEN),
    text({"model": "m", "messages": BROKEN, "evidence": {"toolu_1": {"status": "stopped"}}}),
    lines(*BROKEN),
    lines({"messages": CLEAN}, BROKEN, {"input": "x"}),
    b'{"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}]}',
    (
        b'[{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": '
        rb'{"name": "n", "arguments": "{\"a\":"}}]}, {"role": "user", "content": "x"}]'
    ),
]


def _sound(ran: Ran) -> None:
    assert ran.code in (0, 1, 2)
    assert "Traceback" not in ran.err
    assert "fault of stopkit" not in ran.err
    assert ran.code == 0 or ran.err


def _judge(content: bytes) -> None:
    """Run it through standard input and through a file, every way out."""
    _sound(stopkit("check", "-", "--json", stdin=content))
    repaired = stopkit("normalize", "-", "--json", stdin=content)
    _sound(repaired)
    for record in repaired.records:
        assert isinstance(record["history"], list)
    written = stopkit("normalize", "-", stdin=content)
    _sound(written)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.jsonl")
        path.write_bytes(content)
        ran = stopkit("normalize", path, "--in-place")
        _sound(ran)
        assert ran.code == written.code or "session file" in ran.err
        if path.read_bytes() != content:
            assert Path(folder, "x.jsonl.bak").read_bytes() == content
        assert not [name for name in os.listdir(folder) if name.endswith(".part")]


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_raw_bytes(content: bytes) -> None:
    _judge(content)


@given(JSON | st.lists(JSON, max_size=3), st.sampled_from(["utf-8", "utf-16"]))
@settings(max_examples=80, deadline=None)
def test_any_json(value: Any, encoding: str) -> None:
    _judge(json.dumps(value).encode(encoding))


@given(
    st.sampled_from(SEEDS),
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(0, 12),
            st.sampled_from(
                [
                    b"",
                    b"\n",
                    b"\r",
                    b"null",
                    b"NaN",
                    b"[]",
                    b"{}",
                    b"1e999",
                    b'"\\ud800"',
                    b"\xff",
                    b"\x00",
                    b'"',
                    b",",
                    b"99999999999999999999",
                ]
            ),
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=120, deadline=None)
def test_damaged_json(seed: bytes, damages: list[tuple[int, int, bytes]]) -> None:
    content = seed
    for at, length, new in damages:
        at %= len(content) + 1
        content = content[:at] + new + content[at + length :]
    _judge(content)


RECORDED = sorted((DATA / "recorded").rglob("*.jsonl"))


@given(st.sampled_from(RECORDED), st.data())
@settings(max_examples=25, deadline=None)
def test_damaged_session_files(recorded: Path, data: st.DataObject) -> None:
    content = recorded.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    new = data.draw(st.sampled_from([b"", b"\n", b"null", b"\xff", b'"x":', b"]"]))
    length = data.draw(st.integers(0, 2000))
    damaged = content[:at] + new + content[at + length :]
    _sound(stopkit("check", "-", "--json", stdin=damaged))
    _sound(stopkit("normalize", "-", "--json", stdin=damaged))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'[{"role":"user","content":[{"type":"text","text":' + b"[" * 900 + b"]" * 900 + b"}]}]",
        b'[{"role":"user","content":"x","n":' + b"9" * 5000 + b"}]",
        b'[{"role":"user","content":NaN}]',
        b'[{"role":"user","content":"\\ud800"}]',
        b'{"role":"user","content":"\\udfff"}\n{"role":"user","content":"x"}',
        b"\xef\xbb\xbf",
        b"\xff\xfe[\x00]\x00",
        b"\x00" * 1000,
        b"\r\n\r\n",
        b"{}\n" * 1000,
        b'{"messages":[]}',
        b'{"input":""}',
        b"[]",
    ],
)
def test_shapes_that_break_parsers(content: bytes) -> None:
    _judge(content)


def test_a_lone_surrogate_in_a_history_is_repaired_and_kept_in_the_account() -> None:
    content = b'[{"role":"user","content":"a\\ud800b"}]'
    ran = stopkit("normalize", "-", "--json", stdin=content)
    (record,) = ran.records
    assert "a\ufffdb" in json.dumps(record["history"], ensure_ascii=False)
    assert "\\ud800" not in json.dumps(record["history"])
    assert "\\ud800" in ran.out.decode()


def test_places_that_are_no_files(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no", "/dev/null"):
        ran = stopkit("check", place)
        _sound(ran)
        assert ran.code == 2


def test_a_pipe_with_a_name_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, text(CLEAN))
    os.close(writing)
    assert stopkit("check", f"/dev/fd/{reading}").code == 0
    os.close(reading)
