"""Where repaired files go, and that no file is ever half-written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest
from cli_run import BROKEN, CLEAN, lines, stopkit, text, user

from stopkit.cli import outputs, workers
from stopkit.normalizer import check, normalize

REPAIRED = list(normalize(BROKEN, api="anthropic.messages").history)
SESSION = Path(__file__).parent / "data" / "recorded" / "claude_code" / "interrupt_bash.jsonl"
ROLLOUT = Path(__file__).parent / "data" / "recorded" / "codex" / "plain_turns.jsonl"


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_in_place_keeps_the_bytes_of_untouched_rows(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [
        text({"id": 1, "messages": CLEAN}) + b"\r\n",
        b"\n",
        text({"id": 2, "messages": BROKEN, "note": "é"}) + b"\r\n",
        b"  " + text(CLEAN) + b" \n",
        text(CLEAN),
    ]
    path.write_bytes(b"".join(rows))
    path.chmod(0o640)
    ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 0
    assert ran.out == b""
    after = path.read_bytes().splitlines(keepends=True)
    assert [*after[:2], *after[3:]] == [*rows[:2], *rows[3:]]
    assert after[2].endswith(b"}\r\n")
    assert list(json.loads(after[2])) == ["id", "messages", "note"]
    assert json.loads(after[2])["messages"] == REPAIRED
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = tmp_path / "corpus.jsonl.bak"
    assert backup.read_bytes() == b"".join(rows)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert str(backup) in ran.err


def test_in_place_leaves_a_clean_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines(CLEAN, {"messages": CLEAN}))
    before = path.stat()
    assert stopkit("normalize", path, "--in-place").code == 0
    assert path.stat() == before
    assert _names(tmp_path) == ["corpus.jsonl"]


def test_no_backup_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    (tmp_path / "chat.json.bak").write_text("mine")
    path.write_bytes(text(BROKEN))
    assert stopkit("normalize", path, "--in-place").code == 0
    assert (tmp_path / "chat.json.bak").read_text() == "mine"
    assert (tmp_path / "chat.json.bak.2").read_bytes() == text(BROKEN)
    assert json.loads(path.read_bytes()) == REPAIRED


def test_a_backup_is_copied_where_nothing_can_be_linked(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(text(BROKEN))
    path.chmod(0o600)
    with mock.patch.object(os, "link", side_effect=OSError(errno.EPERM, "no links here")):
        assert stopkit("normalize", path, "--in-place").code == 0
    backup = tmp_path / "chat.json.bak"
    assert backup.read_bytes() == text(BROKEN)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def test_in_place_follows_a_link_to_the_file(tmp_path: Path) -> None:
    real = tmp_path / "real" / "chat.json"
    real.parent.mkdir()
    real.write_bytes(text(BROKEN))
    link = tmp_path / "link.json"
    link.symlink_to(real)
    assert stopkit("normalize", link, "--in-place").code == 0
    assert link.is_symlink()
    assert json.loads(real.read_bytes()) == REPAIRED
    assert _names(tmp_path / "real") == ["chat.json", "chat.json.bak"]


def test_one_file_under_two_names_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(text(BROKEN))
    (tmp_path / "link.json").symlink_to(path)
    assert len(stopkit("check", path, tmp_path / "link.json", "--json").records) == 1


@pytest.mark.parametrize("recorded", [SESSION, ROLLOUT])
def test_a_session_file_is_not_rewritten_in_place(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / recorded.name
    path.write_bytes(recorded.read_bytes())
    ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 2
    assert "not rewritten in place" in ran.err
    assert path.read_bytes() == recorded.read_bytes()
    assert _names(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("recorded", "field", "api"),
    [(SESSION, "messages", "anthropic.messages"), (ROLLOUT, "input", "openai.responses")],
)
def test_a_session_file_comes_out_as_a_request_body(
    tmp_path: Path, recorded: Path, field: str, api: Any
) -> None:
    ran = stopkit("normalize", recorded)
    body = json.loads(ran.out)
    assert ran.code == 0
    assert list(body) == [field]
    assert check(body[field], api=api).valid
    assert api in ran.err
    out = tmp_path / "out"
    assert stopkit("normalize", recorded, "--out", out).code == 0
    assert json.loads((out / recorded.name).read_bytes()) == body
    assert stopkit("normalize", "-", stdin=recorded.read_bytes()).out == ran.out
    (record,) = stopkit("normalize", recorded, "--json").records
    assert record["history"] == body[field]


def test_a_session_file_cannot_be_another_api(tmp_path: Path) -> None:
    ran = stopkit("check", SESSION, "--api", "openai.chat")
    assert ran.code == 2
    assert "--api cannot make it openai.chat" in ran.err


def test_bad_rows_go_to_the_rejects_file_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    bad = [b'{"messages": [', b"\xff\xfe bytes", b'{"other": 1}', text(["no message"])]
    rows = [text(BROKEN), bad[0], text({"messages": CLEAN}), *bad[1:], text(BROKEN)]
    path.write_bytes(b"\n".join(rows) + b"\n")
    ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 2
    after = path.read_bytes().splitlines()
    assert after[1:6] == rows[1:6]
    assert json.loads(after[0]) == json.loads(after[6]) == REPAIRED
    rejects = [
        json.loads(line)
        for line in (tmp_path / "corpus.jsonl.rejects.jsonl").read_bytes().splitlines()
    ]
    assert [set(row) for row in rejects] == [{"line", "reason", "text"}] * 4
    assert [row["line"] for row in rejects] == [2, 4, 5, 6]
    assert [row["text"].encode("utf-8", "surrogateescape") for row in rejects] == bad
    assert "not JSON" in rejects[0]["reason"]
    assert "not UTF-8" in rejects[1]["reason"]
    assert "line 4" in ran.err

    out = tmp_path / "out"
    assert stopkit("normalize", tmp_path / "corpus.jsonl.bak", "--out", out).code == 2
    kept = (out / "corpus.jsonl.bak").read_bytes().splitlines()
    assert kept == [after[0], rows[2], after[6]]
    assert _names(out) == ["corpus.jsonl.bak", "corpus.jsonl.bak.rejects.jsonl"]


def test_rejects_of_standard_output_go_where_it_is_said(tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    data = lines({"messages": CLEAN}) + b"oops\n" + lines({"messages": CLEAN})
    ran = stopkit("normalize", "-", "--rejects", rejects, stdin=data)
    assert ran.code == 2
    assert ran.out == lines({"messages": CLEAN}) * 2
    (row,) = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert (row["file"], row["line"], row["text"]) == ("standard input", 2, "oops")
    ran = stopkit("normalize", "-", stdin=data)
    assert "line 2: not JSON" in ran.err


def test_a_bad_line_between_messages_is_told_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    torn = b'{"role": "user", "con'
    path.write_bytes(lines(*BROKEN[:2]) + torn + b"\n" + lines(user("x")))
    (record,) = stopkit("normalize", path, "--json").records
    assert check(record["history"], api="anthropic.messages").valid
    assert stopkit("normalize", path, "--json").code == 2
    assert stopkit("normalize", path, "--in-place").code == 2
    assert torn in path.read_bytes().splitlines()
    assert (tmp_path / "log.jsonl.rejects.jsonl").exists()


def test_out_mirrors_names_and_leaves_the_input(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.json").write_bytes(text(BROKEN))
    (folder / "deep" / "b.jsonl").write_bytes(lines({"messages": CLEAN}, BROKEN))
    (folder / "notes.txt").write_text("no JSON")
    (folder / ".hidden.json").write_text("no JSON")
    before = {name: (folder / name).read_bytes() for name in _names(folder)}
    out = tmp_path / "new" / "out"
    ran = stopkit("normalize", folder, "--out", out)
    assert ran.code == 0
    assert _names(out) == ["a.json", "deep/b.jsonl"]
    assert json.loads((out / "a.json").read_bytes()) == REPAIRED
    first, second = (out / "deep" / "b.jsonl").read_bytes().splitlines(keepends=True)
    assert first == lines({"messages": CLEAN})
    assert json.loads(second) == REPAIRED
    assert {name: (folder / name).read_bytes() for name in _names(folder)} == before


def test_out_never_writes_over_an_input_or_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text(BROKEN))
    ran = stopkit("normalize", path, "--out", tmp_path)
    assert ran.code == 2
    assert path.read_bytes() == text(BROKEN)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "a.json").write_bytes(text(BROKEN))
    ran = stopkit("normalize", path, tmp_path / "two" / "a.json", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "would both be written" in ran.err
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text(BROKEN))
    (tmp_path / "file").write_text("")
    ran = stopkit("normalize", path, "--out", tmp_path / "file")
    assert ran.code == 2
    assert "cannot be written" in ran.err


def test_a_file_written_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(BROKEN, BROKEN))
    perform = workers.perform

    def while_it_works(task: Any, job: Any) -> Any:
        if path.stat().st_size == len(lines(BROKEN, BROKEN)):
            with path.open("ab") as other:
                other.write(lines(CLEAN))
        return perform(task, job)

    with mock.patch.object(workers, "perform", while_it_works):
        ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 2
    assert "changed by somebody else" in ran.err
    assert path.read_bytes() == lines(BROKEN, BROKEN, CLEAN)
    assert _names(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("where", ["perform", "write", "fsync", "link", "replace"])
@pytest.mark.parametrize("target", ["--in-place", "--out"])
def test_an_interrupt_anywhere_leaves_no_half_written_file(
    tmp_path: Path, where: str, target: str
) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    content = lines(BROKEN, CLEAN, BROKEN) + b"bad\n"
    path.write_bytes(content)
    out = tmp_path / "out"
    arguments = [target] if target == "--in-place" else [target, str(out)]
    place = {
        "perform": (workers, "perform"),
        "write": (outputs, "_write"),
        "fsync": (os, "fsync"),
        "link": (os, "link"),
        "replace": (os, "replace"),
    }[where]
    with mock.patch.object(*place, side_effect=KeyboardInterrupt) as interrupted:
        ran = stopkit("normalize", path, *arguments)
    if not interrupted.called:
        assert (where, target) == ("link", "--out")
        return
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert path.read_bytes() == content
    left = _names(tmp_path)
    # A backup made before the interrupt is whole, and the file is still itself.
    assert [name for name in left if not name.endswith(".bak")] == ["in/a.jsonl"]
    assert all((tmp_path / name).read_bytes() == content for name in left)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text(BROKEN))
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(os, "fsync", side_effect=full):
        ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 2
    assert "cannot be written: No space left" in ran.err
    assert path.read_bytes() == text(BROKEN)
    assert _names(tmp_path) == ["a.json"]


def _feed_without_end(pipe: IO[bytes]) -> None:
    rows = lines({"messages": [user("x" * 100_000), *BROKEN[1:]]}) * 10
    with contextlib.suppress(BrokenPipeError), pipe:
        while True:
            pipe.write(rows)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_real_interrupt_of_long_work(tmp_path: Path, jobs: str) -> None:
    out = tmp_path / "out"
    arguments = ["normalize", "-", "--out", str(out), "--json", "--jobs", jobs]
    with subprocess.Popen(
        [sys.executable, "-m", "stopkit.cli", *arguments],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        feeder = threading.Thread(target=_feed_without_end, args=(process.stdin,))
        feeder.start()
        # When the first records arrive it is in the middle of the work.
        assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 130
        feeder.join()
    assert b"Traceback" not in said
    assert _names(tmp_path) == []
