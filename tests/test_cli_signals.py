"""Signals, and worker processes: what ends, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from cli_run import BROKEN, CLEAN, lines, stopkit, user

from stopkit.cli import outputs, workers, writing
from stopkit.cli.judged import Job
from stopkit.cli.workers import Task, Workers

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
TASK = Task("jsonl.conversations", text=lines(CLEAN))
CHECK = Job(action="check")


def _then_signal(real: Callable[..., Any], number: int) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        done = real(*arguments, **named)
        signal.raise_signal(number)
        return done

    return call


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("target", ["--in-place", "--out"])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (workers, "perform"),
        (writing.tempfile, "mkstemp"),
        (writing, "_take_on"),
        (outputs, "_write"),
        (os, "fsync"),
        (os, "replace"),
    ],
)
def test_a_signal_anywhere_leaves_no_half_written_file(
    tmp_path: Path, number: signal.Signals, target: str, module: ModuleType, name: str
) -> None:
    path = tmp_path / "a.jsonl"
    content = lines(BROKEN, CLEAN) + b"bad\n"
    path.write_bytes(content)
    arguments = [target] if target == "--in-place" else [target, tmp_path / "out"]
    with mock.patch.object(module, name, _then_signal(getattr(module, name), number)):
        ran = stopkit("normalize", path, *arguments)
    assert ran.code == 128 + number
    assert "interrupted" in ran.err
    left = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    if name != "replace":
        assert left == {"a.jsonl"}
        assert path.read_bytes() == content
    elif target == "--in-place":
        # It took its place just before the signal, so all of it is there, and the backup.
        assert left == {"a.jsonl", "a.jsonl.bak"}
        assert path.read_bytes().endswith(b"bad\n")


def test_a_copied_backup_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(BROKEN))
    made = writing.tempfile.mkstemp

    def signal_at_the_backup(**named: Any) -> Any:
        if ".bak" in named["prefix"]:
            signal.raise_signal(signal.SIGTERM)
        return made(**named)

    with (
        mock.patch.object(os, "link", side_effect=OSError(errno.EPERM, "no links here")),
        mock.patch.object(writing.tempfile, "mkstemp", signal_at_the_backup),
    ):
        assert stopkit("normalize", path, "--in-place").code == 143
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_second_signal_does_not_cut_the_clearing_up_short(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(BROKEN))
    discard = writing.Replacement.discard

    def signal_first(self: writing.Replacement) -> None:
        signal.raise_signal(signal.SIGHUP)
        discard(self)

    with (
        mock.patch.object(outputs, "_write", _then_signal(outputs._write, signal.SIGTERM)),
        mock.patch.object(writing.Replacement, "discard", signal_first),
    ):
        ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 143
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_signal_that_was_dropped_is_raised_once_more(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(BROKEN))
    perform = workers.perform

    def as_in_a_finalizer(task: Task, job: Job) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return perform(task, job)

    with mock.patch.object(workers, "perform", as_in_a_finalizer):
        ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 143
    assert path.read_bytes() == lines(BROKEN)


def test_a_file_that_cannot_get_its_mode_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(BROKEN))
    with mock.patch.object(os, "fchmod", side_effect=OSError(errno.EPERM, "not allowed")):
        ran = stopkit("normalize", path, "--in-place")
    assert ran.code == 2
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_handlers_of_the_caller_are_put_back_and_ignored_signals_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(CLEAN))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        handlers = [signal.getsignal(number) for number in NUMBERS]
        hung_up = _then_signal(workers.perform, signal.SIGHUP)
        with mock.patch.object(workers, "perform", hung_up):
            assert stopkit("check", path).code == 0
        assert [signal.getsignal(number) for number in NUMBERS] == handlers
    finally:
        signal.signal(signal.SIGHUP, before)


BUSY = """\
import os, sys
from stopkit.cli import main, workers

def forever(*_):
    os.write(1, b"x")
    while True:
        pass

workers.perform = forever
sys.exit(main())
"""


@pytest.mark.parametrize("number", [*NUMBERS, signal.SIGKILL])
@pytest.mark.parametrize("group", [False, True])
def test_no_worker_outlives_the_command(
    tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(CLEAN, [user("x" * (2 << 20))]) * 2)
    # Every process of the command holds the end of this pipe: it is read to its end when all left.
    ours, theirs = os.pipe()
    with (
        open(ours, "rb") as all_left,
        subprocess.Popen(
            [sys.executable, "-c", BUSY, "check", str(path), "--jobs", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,
        ) as process,
    ):
        os.close(theirs)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.read(2) == b"xx"
            if group and number != signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            code = process.wait()
            assert all_left.read() == b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        said = process.stderr.read()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("jobs", "tasks", "processors", "most"),
    [(8, 1, 8, 1), (2, 6, 8, 2), (1000, 6, 1, 2), (1000, 3, 8, 3), (1, 3, 8, 0)],
)
def test_processes_are_few_and_start_when_there_is_work(
    jobs: int, tasks: int, processors: int, most: int
) -> None:
    seen = 0
    before = len(multiprocessing.active_children())
    with mock.patch.object(workers, "usable_processors", return_value=processors):
        pool = Workers(jobs, CHECK)
    with pool:
        assert len(multiprocessing.active_children()) == before
        for step, judged in pool.map(range(tasks), lambda _: TASK):
            assert judged.lines == 1
            seen = max(seen, len(multiprocessing.active_children()) - before)
            assert step < tasks
    assert seen <= most
    assert (seen > 0) == (most > 0)
    assert len(multiprocessing.active_children()) == before


def test_there_is_a_processor_to_use() -> None:
    assert 1 <= workers.usable_processors() <= (os.cpu_count() or 1)


def test_a_worker_that_cannot_start_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(CLEAN))
    full = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    with mock.patch.object(BaseProcess, "start", side_effect=full):
        ran = stopkit("check", path, path, "--jobs", 2)
    assert ran.code == 2
    assert "no worker process can be started: Resource temporarily" in ran.err


def test_a_fault_in_a_worker_is_the_same_fault_here() -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("in a worker")

    with (
        mock.patch.object(workers, "perform", fault),
        Workers(2, CHECK) as pool,
        pytest.raises(ZeroDivisionError, match="in a worker"),
    ):
        list(pool.map([1, 2, 3], lambda _: TASK))


AT_IMPORT = """\
import signal, sys

where = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, *_):
        if name == where:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from stopkit.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["interrupts", "arguments", "commands", "report"])
def test_an_interrupt_while_it_starts(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AT_IMPORT, f"stopkit.cli.{module}", "check", "-"],
        input=lines(CLEAN),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 130
    assert ran.stdout == b""
    assert ran.stderr == b"stopkit: interrupted; no file was left half-written\n"


AT_THE_END = """\
import signal, sys
from stopkit.cli import main
main()
signal.raise_signal(int(sys.argv[-1]))
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_when_all_is_done_is_silent(number: signal.Signals) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AT_THE_END, "check", "--json", "-", "--jobs", str(int(number))],
        input=lines(CLEAN),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 128 + number
    assert ran.stdout.count(b"\n") == 1
    assert b"Traceback" not in ran.stderr
    assert b"interrupted" not in ran.stderr


def test_an_interrupt_does_not_wait_for_a_reader_that_reads_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    # More than a pipe holds: when the first of it has arrived, it is in vain that it writes on.
    path.write_bytes(lines([user("x" * (1 << 20))]) * 4)
    with subprocess.Popen(
        [sys.executable, "-m", "stopkit.cli", "normalize", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"["
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_help_tells_of_jobs_and_signals() -> None:
    shown = " ".join(stopkit("check", "--help").out.decode().split())
    assert "two for each usable processor" in shown
    assert "143 by SIGTERM, 129 by SIGHUP" in shown
