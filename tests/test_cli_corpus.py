"""The byte pipeline over corpora: every row on its own, in order, in one process or several."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cli_run import BROKEN, CLEAN, call, lines, stopkit, text, user

from stopkit.cli import corpus
from stopkit.cli.corpus import Job, apply_edits, judge_lines, judge_whole
from stopkit.normalizer import check, normalize

REPAIR = Job("normalize")


def _repaired(history: list[Any]) -> list[Any]:
    return list(normalize(history, api="anthropic.messages").history)


def test_only_damaged_rows_are_edited() -> None:
    rows = [text({"messages": CLEAN}), text(BROKEN), text({"messages": BROKEN}), b"", text(CLEAN)]
    content = b"\n".join(rows) + b"\n"
    judged = judge_lines(content, REPAIR)
    assert (judged.conversations, judged.damaged, judged.lines) == (4, 2, 5)
    assert len(judged.edits) == 2
    after = apply_edits(content, judged.edits).split(b"\n")
    assert [after[0], *after[3:]] == [rows[0], *rows[3:], b""]
    assert json.loads(after[1]) == json.loads(after[2])["messages"] == _repaired(BROKEN)


def test_a_repaired_corpus_is_not_edited_again() -> None:
    content = lines(BROKEN, {"messages": BROKEN})
    once = apply_edits(content, judge_lines(content, REPAIR).edits)
    assert judge_lines(once, REPAIR).edits == []


@pytest.mark.parametrize(
    ("column", "written"),
    [
        (b"123456789012345678901234567890", b"123456789012345678901234567890"),
        (b"-9223372036854775809", b"-9223372036854775809"),
        (b"NaN", b"NaN"),
        (b'"\\ud800"', b'"\\ud800"'),
    ],
)
def test_other_columns_of_a_damaged_row_lose_nothing(column: bytes, written: bytes) -> None:
    row = b'{"x":' + column + b',"messages":' + text(BROKEN) + b"}\n"
    judged = judge_lines(row, Job("normalize", records=True))
    assert judged.rejects == []
    assert apply_edits(row, judged.edits).startswith(b'{"x":' + written + b',"messages":[')


def test_long_integers_in_a_history_stay_whole_in_records() -> None:
    number = 123456789012345678901234567890
    history = [user("go"), call("toolu_1"), user("x")]
    history[1]["content"][0]["input"] = {"n": number}
    judged = judge_lines(lines(history), Job("normalize", records=True))
    assert json.loads(judged.records)["history"][1]["content"][0]["input"] == {"n": number}
    after = apply_edits(lines(history), judged.edits)
    assert json.loads(after)[1]["content"][0]["input"] == {"n": number}


def test_a_row_that_is_no_history_names_its_path() -> None:
    judged = judge_lines(lines({"messages": [user("x"), 3]}, CLEAN), REPAIR)
    (reject,) = judged.rejects
    assert reject.line == 1
    assert "messages.1" in reject.reason
    assert judged.conversations == 1


def test_message_lines_are_edited_by_line() -> None:
    rows = [text(message) + b"\r\n" for message in [*CLEAN, *BROKEN[1:], user("later")]]
    content = b"\xef\xbb\xbf" + b"".join(rows)
    judged = judge_whole(content, "jsonl.messages", REPAIR)
    after = apply_edits(content, judged.edits)
    kept = after.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    assert after.startswith(b"\xef\xbb\xbf{")
    assert all(row.endswith(b"\r\n") for row in kept)
    assert kept[:3] == rows[:3]
    assert check([json.loads(row) for row in kept], api="anthropic.messages").valid


def test_a_message_added_behind_a_last_line_without_end() -> None:
    content = b"\n".join(map(text, [user("go"), call("toolu_1")]))
    judged = judge_whole(content, "jsonl.messages", REPAIR)
    after = apply_edits(content, judged.edits)
    assert after.startswith(content + b"\n")
    assert [json.loads(row) for row in after.splitlines()] == _repaired(
        [user("go"), call("toolu_1")]
    )


def _corpus(count: int) -> bytes:
    """Rows of about 20 kB, each fifth of them damaged: two hundred are more than one piece."""
    long = user("x" * 20_000)
    return b"".join(
        lines({"n": n, "messages": [long, *(CLEAN if n % 5 else BROKEN)[1:]]}) for n in range(count)
    )


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_jobs_change_nothing_but_the_time(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(_corpus(200) + b"bad\n" + _corpus(100))
    one = stopkit("normalize", path, *arguments)
    two = stopkit("normalize", path, "--jobs", 2, *arguments)
    assert one == two
    assert "line 201: not JSON" in two.err
    piped = stopkit("normalize", "-", "--jobs", 2, *arguments, stdin=path.read_bytes())
    assert piped.out == one.out
    checked = stopkit("check", path, "--json")
    assert stopkit("check", path, "--json", "--jobs", 2) == checked
    assert [r["valid"] for r in checked.records[:6]] == [False, True, True, True, True, False]


def test_jobs_write_the_same_file_in_place(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        path = tmp_path / f"{jobs}.jsonl"
        path.write_bytes(_corpus(300))
        assert stopkit("normalize", path, "--in-place", "--jobs", jobs).code == 0
    after = (tmp_path / "1.jsonl").read_bytes()
    assert after == (tmp_path / "2.jsonl").read_bytes()
    assert after == apply_edits(_corpus(300), judge_lines(_corpus(300), REPAIR).edits)


def test_the_tally_counts_by_rule_and_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(_corpus(50))
    ran = stopkit("normalize", path)
    assert "ANT-PAIR-1" in ran.err
    assert "line 1:" in ran.err
    assert "50 conversations, 10 repaired" in ran.err
    checked = stopkit("check", path)
    assert checked.code == 1
    assert "10" in checked.out.decode()


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(pieces: int) -> int:
        path = tmp_path / f"{pieces}.jsonl"
        row = lines({"messages": [user("x" * 20_000), *CLEAN[1:]]})
        bad = lines({"messages": [user("x" * 20_000), *BROKEN[1:]]})
        with path.open("wb") as file:
            for _ in range(pieces):
                file.write(row * 99 + bad)
        tracemalloc.start()
        ran = stopkit("normalize", path, "--out", tmp_path / "out")
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert ran.code == 0
        assert (tmp_path / "out" / path.name).stat().st_size > pieces * 2_000_000
        return highest

    peak(1)
    assert peak(24) < peak(4) * 1.5


def _rows() -> Iterator[bytes]:
    for n in range(3):
        yield text({"conversation": BROKEN, "n": n})


def test_field_names_where_the_history_stands(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n".join(_rows()))
    ran = stopkit("normalize", path, "--field", "conversation")
    assert ran.code == 0
    after = [json.loads(line) for line in ran.out.splitlines()]
    assert [list(row) for row in after] == [["conversation", "n"]] * 3
    assert after[0]["conversation"] == _repaired(BROKEN)
    assert stopkit("normalize", path).code == 2


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_worker_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(_corpus(200))
    out = tmp_path / "out"
    with mock.patch.object(corpus, "normalize", _die):
        ran = stopkit("normalize", path, "--out", out, "--jobs", 2)
    assert ran.code == 2
    assert "a worker process was ended from outside" in ran.err
    assert list(tmp_path.rglob("*.part")) == []
    assert not (out / "corpus.jsonl").exists()
